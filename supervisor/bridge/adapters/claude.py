"""The adapter of Claude Code, at the version it was proved on (docs/harnesses.md).

    UserPromptSubmit  whose text carries the startup tag: the handshake, and the prompt the echo follows from; what a
                      nested agent is asked is none, whatever its caller quoted to it
    PreToolUse        the decision
    PostToolBatch     the completion of a main chain's batch; a nested agent's is none
    any other         nothing

`claude_turns` says what proves a turn.  Where the proof fails, the call has no turn: with nothing pending it runs, with
an intent pending the pane restarts the process.  A process whose proof failed once stays without turns, because a call
that was let run without its turn could be a sibling of one that has it; the pane's stored admissions say so to the next
life of the bridge.  A nested agent's calls have none either, and that says nothing about their caller's.

A person may begin another conversation within a process (`/clear`, `/resume`), and places in two transcripts have no
order.  So a call in another transcript than the last one has no turn while a proof is open in that: its process is
replaced, and the conversation told by its first input.

The echo survives a restart of the bridge: it is read from the transcript, where the tagged prompt stands under the
prompt id that the call carries.  An agent that answered that prompt without a call makes its first one under another
prompt id; then the echo is read there too, from the chain of the conversation (`claude_chain`).  Either way the
handshake is made up for first, as it would have been made from the hook.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio
from attrs import Factory, define, evolve, field, frozen

from fencepost.supervisor import (
    Capabilities,
    DeliveryMode,
    IntentState,
    InvalidIdentifier,
    ModelTurn,
    Pane,
    Refused,
    ToolBoundary,
)
from fencepost.supervisor.bridge.adapters import HookAnswer
from fencepost.supervisor.bridge.adapters.answers import answer_of
from fencepost.supervisor.bridge.adapters.claude_turns import Entry, NoTurn, Place, completed, prompt_texts
from fencepost.supervisor.bridge.adapters.events import (
    calls_of,
    is_unproved,
    kind_of,
    nested_batch,
    optional,
    required,
    unproved_batch,
)
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.adapters.spool import Unseen
from fencepost.supervisor.bridge.adapters.transcripts import (
    WINDOW_BYTES,
    WINDOW_BYTES_MAX,
    Look,
    RefusedPath,
    TranscriptMemory,
    holds,
    read_tail,
    told_in,
    transcript_roots,
)
from fencepost.supervisor.bridge.startup_tag import StartupTag, startup_of

__all__ = ["PROVED_VERSIONS", "ClaudeCodeAdapter"]

T = TypeVar("T")
K = TypeVar("K")

_LOGGER: Final = logging.getLogger(__name__)

PROVED_VERSIONS: Final = frozenset({"2.1.197"})

_LOOK_SECONDS: Final = 1.0
"""How long the transcript is waited for: its last line may be half written, and it is written before the hook runs."""
_LOOK_AGAIN_SECONDS: Final = 0.02
_TO_BE_PROVED: Final = frozenset({IntentState.MATERIALIZED, IntentState.DELIVERED})
_REMEMBERED_MAX: Final = 4096
"""Of each kind, a pane."""


@frozen
class _Call:
    """A `PreToolUse`, taken apart."""

    incarnation_id: str
    tool_use_id: str
    prompt_id: str
    transcript: str
    nested: bool

    @classmethod
    def of(cls, incarnation_id: str, event: Mapping[str, object]) -> _Call:
        return cls(
            incarnation_id,
            required(event, "tool_use_id"),
            optional(event, "prompt_id"),
            optional(event, "transcript_path"),
            nested=bool(optional(event, "agent_id")),
        )

    def alone(self, *, nested: bool = False) -> ToolBoundary:
        """It without a turn, a batch of its own.  Raises `InvalidIdentifier` for an incarnation that has no id."""
        named = nested_batch if nested or self.nested else unproved_batch
        return ToolBoundary(self.incarnation_id, None, named(self.prompt_id, self.tool_use_id))


@frozen
class _Placed:
    """A call's boundary without its echo, and the transcript entries it was found among."""

    boundary: ToolBoundary
    entries: Sequence[Entry] = field(default=(), repr=False)


@define(eq=False)
class _Known:
    """What is remembered of one pane.  What another pane's processes say neither changes it nor crowds it out."""

    echoes: OrderedDict[tuple[str, str], str | None] = Factory(OrderedDict[tuple[str, str], str | None])
    without_turns: OrderedDict[str, bool] = Factory(OrderedDict[str, bool])
    """Whether a proof of this process failed once."""
    conversations: OrderedDict[str, str] = Factory(OrderedDict[str, str])
    owing_nothing: OrderedDict[str, None] = Factory(OrderedDict[str, None])
    """The processes without an open startup delivery: one is bound when a process is launched, and never later."""
    memory: TranscriptMemory = Factory(TranscriptMemory)
    reading: trio.CapacityLimiter = Factory(lambda: trio.CapacityLimiter(1))
    """One transcript of a pane is read at a time: a long one keeps a thread and the interpreter busy for seconds."""

    async def read(self, work: Callable[[], T]) -> T:
        """Read a file without holding up other panes; a file system that hangs costs this pane alone."""
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self.reading)


class ClaudeCodeAdapter:
    """See `Adapter`.  Runs on trio; one serves all panes.

    `gate` is the bridge's.  `transcripts` are the folders that transcripts may be in, or answers them at each look.
    """

    def __init__(
        self, gate: Gate | None = None, transcripts: Sequence[Path] | Callable[[], Sequence[Path]] = transcript_roots
    ) -> None:
        self._gate = gate or Gate()
        self._gate.retell_by(self.harness, self._retell)
        self._transcripts = transcripts
        self._known: defaultdict[str, _Known] = defaultdict(_Known)

    @property
    def _roots(self) -> Sequence[Path]:
        return self._transcripts() if callable(self._transcripts) else self._transcripts

    async def forget(self, pane_id: str) -> None:
        """See `Forgets`."""
        self._known.pop(pane_id, None)
        await self._gate.forget(pane_id)

    @property
    def harness(self) -> str:
        """See `Adapter.harness`."""
        return "claude-code"

    def capabilities(self, version: str | None) -> Capabilities:
        """See `Adapter.capabilities`."""
        proved = version in PROVED_VERSIONS
        return Capabilities(soft_batches=proved, turn_order=proved)

    async def on_hook(
        self, pane: Pane, incarnation_id: str, event: Mapping[str, object], wait_seconds: float
    ) -> HookAnswer:
        """See `Adapter.on_hook`."""
        match kind_of(event):
            case "PreToolUse":
                return await self._pre_tool_use(pane, _Call.of(incarnation_id, event), wait_seconds)
            case "UserPromptSubmit":
                await self._prompt(pane, incarnation_id, event)
            case "PostToolBatch":
                await self._batch_ended(pane, incarnation_id, event)
            case _:
                pass
        return HookAnswer()

    # -- tool calls --

    async def _pre_tool_use(self, pane: Pane, call: _Call, wait_seconds: float) -> HookAnswer:
        end = trio.current_time() + wait_seconds
        placed = await self._place(pane, call, wait_seconds / 2)
        echo = None if call.nested else await self._echo(pane, call, placed.entries)
        boundary = placed.boundary
        if boundary.turn is not None and self._known[pane.pane_id].without_turns.get(call.incarnation_id):
            boundary = call.alone()  # a sibling's proof failed meanwhile; from here on the gate keeps the order
        boundary = evolve(boundary, tool_call_id=call.tool_use_id, startup_delivery_id=echo)
        left = max(0.0, end - trio.current_time())
        decision = await self._gate.pre_tool_use(pane, boundary, left)
        return answer_of(decision, boundary, verbatim=True)

    async def _place(self, pane: Pane, call: _Call, patience: float) -> _Placed:
        """Find the call's turn and batch, or none.  Raises `InvalidIdentifier` for an incarnation that has no id."""
        if call.nested:
            return _Placed(call.alone())
        known = self._known[pane.pane_id]
        if await self._is_without_turns(pane, call.incarnation_id):
            return _Placed(call.alone(), await self._tail(known, call.transcript))
        look = await self._look(known, call, patience)
        if isinstance(look.found, Place):
            if not await self._goes_on(pane, call):
                return _Placed(call.alone(), look.entries)
            try:
                turn = ModelTurn(look.found.message_id, look.found.offset)
                return _Placed(ToolBoundary(call.incarnation_id, turn, look.found.batch_id), look.entries)
            except InvalidIdentifier:
                pass  # a message id that is none
        if look.found is NoTurn.NESTED:
            return _Placed(call.alone(nested=True), look.entries)
        _LOGGER.warning("process %r has no provable turns from now on: %s", call.incarnation_id, look.found)
        _remember(known.without_turns, call.incarnation_id, True)
        return _Placed(call.alone(), look.entries)

    async def _is_without_turns(self, pane: Pane, incarnation_id: str) -> bool:
        """Whether a proof of this process failed once, in this life of the bridge or in an earlier one."""
        without_turns = self._known[pane.pane_id].without_turns
        if incarnation_id not in without_turns:
            passed = any(map(is_unproved, await pane.passed_without_turn(incarnation_id)))
            if incarnation_id not in without_turns:  # a sibling's may have failed meanwhile
                _remember(without_turns, incarnation_id, passed)
        return without_turns[incarnation_id]

    async def _goes_on(self, pane: Pane, call: _Call) -> bool:
        """Whether the call's place can be compared with the turn of each proof that its process has open."""
        known = self._known[pane.pane_id]
        if known.conversations.get(call.incarnation_id) == call.transcript:
            return True
        for one in await pane.unresolved_intents():
            turn = one.turn
            if one.incarnation_id != call.incarnation_id or turn is None:
                continue
            try:
                same = await known.read(partial(holds, call.transcript, turn.id, turn.ordinal, self._roots))
            except RefusedPath:
                same = False
            if not same:
                _LOGGER.warning("process %r: another conversation than that of an open proof", call.incarnation_id)
                return False
        _remember(known.conversations, call.incarnation_id, call.transcript)
        return True

    async def _look(self, known: _Known, call: _Call, patience: float) -> Look:
        """Look for the call until it is found; deep at first, then only at what may have been added."""
        give_up_at = trio.current_time() + min(patience, _LOOK_SECONDS)
        deepest = WINDOW_BYTES_MAX
        while True:
            try:
                look = await known.read(
                    partial(known.memory.look_for, call.transcript, call.tool_use_id, self._roots, deepest)
                )
            except RefusedPath as refused:
                look = Look(NoTurn.MISSING)  # the file of a new session may be about to be made
                if trio.current_time() >= give_up_at:
                    _LOGGER.warning("process %r: %s", call.incarnation_id, ascii(str(refused)))
            if look.found is not NoTurn.MISSING or trio.current_time() >= give_up_at:
                return look
            deepest = WINDOW_BYTES
            await trio.sleep(_LOOK_AGAIN_SECONDS)

    async def _tail(self, known: _Known, transcript: str) -> Sequence[Entry]:
        try:
            return await known.read(partial(read_tail, transcript, self._roots))
        except RefusedPath:
            return ()

    async def _retell(self, pane: Pane, unseen: Unseen) -> bool:
        """Tell the pane what a hook did on its own; False if it cannot be told which batch that was of."""
        try:
            if kind_of(unseen.event) == "PostToolBatch":
                await self._batch_ended(pane, unseen.incarnation_id, unseen.event)
                return True
            call = _Call.of(unseen.incarnation_id, unseen.event)
            placed = (await self._place(pane, call, 0)).boundary
        except ValueError:  # InvalidIdentifier is one
            return False
        await pane.pre_tool_use(evolve(placed, passed_unseen="yes"), wait_seconds=0)
        return placed.turn is not None or call.nested

    # -- the end of a batch --

    async def _batch_ended(self, pane: Pane, incarnation_id: str, event: Mapping[str, object]) -> None:
        """Report the batch whose calls these are, all of them; anything else is not the end of a batch."""
        calls, transcript = calls_of(event), optional(event, "transcript_path")
        if optional(event, "agent_id") or not calls:
            return
        known = self._known[pane.pane_id]
        try:
            look = await known.read(partial(known.memory.look_for, transcript, min(calls), self._roots))
        except RefusedPath as refused:
            _LOGGER.warning("process %r: %s", incarnation_id, ascii(str(refused)))
            return
        place = completed(look.entries, calls)
        if place is None:
            _LOGGER.warning("process %r: a batch ended that is none of its transcript's", incarnation_id)
            return
        await pane.post_tool_batch(incarnation_id, place.message_id, place.batch_id)

    # -- the echo of a startup delivery --

    async def _prompt(self, pane: Pane, incarnation_id: str, event: Mapping[str, object]) -> None:
        prompt = event.get("prompt")
        prompt_id = optional(event, "prompt_id")
        if not isinstance(prompt, str) or not prompt_id or optional(event, "agent_id"):
            return
        await self._heard(pane, incarnation_id, prompt_id, startup_of(prompt))

    async def _echo(self, pane: Pane, call: _Call, entries: Sequence[Entry]) -> str | None:
        key, echoes = (call.incarnation_id, call.prompt_id), self._known[pane.pane_id].echoes
        texts = [] if key in echoes else prompt_texts(entries, call.prompt_id)
        if texts:  # without one it is not within reach, and perhaps not there: nothing is remembered
            tags = [tag for text in texts if (tag := startup_of(text)) is not None]
            await self._heard(pane, call.incarnation_id, call.prompt_id, tags[0] if tags else None)
        return echoes.get(key) or await self._told_before(pane, call)

    async def _told_before(self, pane: Pane, call: _Call) -> str | None:
        """The echo of a call whose agent was told by an earlier prompt of the same conversation, and answered that."""
        known = self._known[pane.pane_id]
        if call.incarnation_id in known.owing_nothing:
            return None
        for one in await pane.unresolved_intents():
            bound = one.mode is DeliveryMode.RESTART_STARTUP and one.incarnation_id == call.incarnation_id
            if bound and one.startup_delivery_id is not None and one.state in _TO_BE_PROVED:
                startup = one.startup_delivery_id
                break
        else:
            _remember(known.owing_nothing, call.incarnation_id, None)
            return None
        try:
            told = await known.read(partial(told_in, call.transcript, call.tool_use_id, startup, self._roots))
        except RefusedPath:
            return None
        if told is None:
            return None
        if known.echoes.get((call.incarnation_id, told.prompt_id)) != startup:
            await self._heard(pane, call.incarnation_id, told.prompt_id, told.tag)
        return startup

    async def _heard(self, pane: Pane, incarnation_id: str, prompt_id: str, tag: StartupTag | None) -> None:
        """A prompt was accepted: tell the pane if it is a startup input, and remember which prompt that was.

        A refusal changes nothing here: whether this process may go on is decided at its first tool call.
        """
        if tag is not None:
            answer = await pane.startup_ready(incarnation_id, tag.startup_delivery_id, tag.payload_sha256)
            if isinstance(answer, Refused):
                _LOGGER.warning("process %r: its startup input is refused: %s", incarnation_id, answer.reason)
        echoes = self._known[pane.pane_id].echoes
        _remember(echoes, (incarnation_id, prompt_id), None if tag is None else tag.startup_delivery_id)


def _remember(kept: OrderedDict[K, T], key: K, value: T) -> None:
    """Keep the youngest; what is forgotten is read from the transcript again, or costs a restart."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _REMEMBERED_MAX:
        kept.popitem(last=False)
