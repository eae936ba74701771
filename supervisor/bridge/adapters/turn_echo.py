"""An adapter's part for harnesses that can be told only by a restart, and whose prompts and calls share a `turn_id`.

Such a harness's hooks do not show what soft delivery needs.  So its capabilities are none at any version, each call is
a batch of its own without a turn, and the first call beside a pending intent makes the pane replace the process.

The echo of a startup delivery is the `turn_id`, which the prompt's hook and every call that follows from it share.  An
agent may answer that prompt without a call.  `Stop` says that it did, and so that its model was given the text; from
then on any call of that process in the same session has the echo, until the harness says that the answered turn was
taken back (`Forgotten`).  What a nested agent is asked and what it calls carries `agent_id`, and is never an echo,
whatever its caller quoted to it.

All of this is remembered in memory alone: a bridge that restarts in between loses it, and the process is replaced once
more.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Final

from attrs import Factory, define

from fencepost.supervisor import Capabilities, Pane, Refused, ToolBoundary
from fencepost.supervisor.bridge.adapters import HookAnswer
from fencepost.supervisor.bridge.adapters.answers import answer_of
from fencepost.supervisor.bridge.adapters.events import kind_of, optional, required, unproved_batch
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.adapters.spool import Unseen
from fencepost.supervisor.bridge.startup_tag import startup_of

__all__ = ["TurnEchoAdapter"]

_LOGGER: Final = logging.getLogger(__name__)
_REMEMBERED_MAX: Final = 4096
"""Of each kind, a pane."""


@define(eq=False)
class _Known:
    """What is remembered of one pane.  What another pane's processes say neither changes it nor crowds it out."""

    turns: OrderedDict[tuple[str, str], str] = Factory(OrderedDict[tuple[str, str], str])
    """The startup delivery ids, by the process and the turn that began with one."""
    sessions: OrderedDict[tuple[str, str], str] = Factory(OrderedDict[tuple[str, str], str])
    """The same by the process and its session, once that turn was answered."""


class TurnEchoAdapter:
    """See `Adapter`.  Runs on trio; one serves all panes.  `gate` is the bridge's."""

    def __init__(self, harness: str, gate: Gate | None = None) -> None:
        self._harness = harness
        self._gate = gate or Gate()
        self._gate.retell_by(harness, self._retell)
        self._known: defaultdict[str, _Known] = defaultdict(_Known)

    async def forget(self, pane_id: str) -> None:
        """See `Forgets`."""
        self._known.pop(pane_id, None)
        await self._gate.forget(pane_id)

    @property
    def harness(self) -> str:
        """See `Adapter.harness`."""
        return self._harness

    def capabilities(self, version: str | None) -> Capabilities:  # noqa: ARG002 - no version was proved to do more
        """See `Adapter.capabilities`."""
        return Capabilities(soft_batches=False, turn_order=False)

    async def on_hook(
        self, pane: Pane, incarnation_id: str, event: Mapping[str, object], wait_seconds: float
    ) -> HookAnswer:
        """See `Adapter.on_hook`."""
        match kind_of(event):
            case "PreToolUse":
                boundary = self._boundary(pane, incarnation_id, event)
                decision = await self._gate.pre_tool_use(pane, boundary, wait_seconds)
                return answer_of(decision, boundary, verbatim=False)
            case "UserPromptSubmit":
                await self._prompt(pane, incarnation_id, event)
            case "Stop":
                self._answered(pane, incarnation_id, event)
            case "Forgotten":
                self._known[pane.pane_id].sessions.pop((incarnation_id, optional(event, "session_id")), None)
            case _:
                pass
        return HookAnswer()

    def _boundary(self, pane: Pane, incarnation_id: str, event: Mapping[str, object]) -> ToolBoundary:
        turn_id, call = optional(event, "turn_id"), required(event, "tool_use_id")
        known = self._known[pane.pane_id]
        echo = known.turns.get((incarnation_id, turn_id)) or known.sessions.get(
            (incarnation_id, optional(event, "session_id"))
        )
        if optional(event, "agent_id"):
            echo = None
        return ToolBoundary(incarnation_id, None, unproved_batch(turn_id, call), call, startup_delivery_id=echo)

    async def _retell(self, pane: Pane, unseen: Unseen) -> bool:
        """A call that passed unseen was a batch of its own, so nothing about it is unclear."""
        try:
            if kind_of(unseen.event) != "PreToolUse":
                return True
            passed = self._boundary(pane, unseen.incarnation_id, unseen.event)
        except ValueError:
            return False
        passed = ToolBoundary(passed.incarnation_id, None, passed.batch_id, passed_unseen="yes")
        await pane.pre_tool_use(passed, wait_seconds=0)
        return True

    async def _prompt(self, pane: Pane, incarnation_id: str, event: Mapping[str, object]) -> None:
        """The handshake, if the prompt carries the tag; what it is worth is decided at the first tool call."""
        prompt, turn_id = event.get("prompt"), optional(event, "turn_id")
        tag = startup_of(prompt) if isinstance(prompt, str) else None
        if tag is None or not turn_id or optional(event, "agent_id"):
            return
        answer = await pane.startup_ready(incarnation_id, tag.startup_delivery_id, tag.payload_sha256)
        if isinstance(answer, Refused):
            _LOGGER.warning("process %r: its startup input is refused: %s", incarnation_id, answer.reason)
        _remember(self._known[pane.pane_id].turns, (incarnation_id, turn_id), tag.startup_delivery_id)

    def _answered(self, pane: Pane, incarnation_id: str, event: Mapping[str, object]) -> None:
        """The model has answered a turn; if that began with the tag, it was given what the tag carries."""
        known = self._known[pane.pane_id]
        echo = known.turns.get((incarnation_id, optional(event, "turn_id")))
        session_id = optional(event, "session_id")
        if echo is not None and session_id and not optional(event, "agent_id"):
            _remember(known.sessions, (incarnation_id, session_id), echo)


def _remember(echoes: OrderedDict[tuple[str, str], str], key: tuple[str, str], startup_delivery_id: str) -> None:
    echoes[key] = startup_delivery_id
    if len(echoes) > _REMEMBERED_MAX:
        echoes.popitem(last=False)
