"""The capability a running tool holds: its progress, its memos, its steps; and how it ends.

Theory of operation
===================

An invocation is good for one execution of one call.  It is fenced twice:

* in memory: `expire` is called before the outcome of the execution is made, and when the activation that started it
  dies; from then on updates are ignored and everything else raises `CapabilityExpired`;
* in the store: each of its mutations demands that its call's row still has the revision it was admitted with, and a
  memo or a checkpoint refers to a call that is effect_pending.  So neither a zombie of an older activation nor a late
  task can write into what came after, whatever it believes.

`update` is synchronous and belongs to the bridge's loop.  What it accepts is copied at once and queued; the queue is
worked off on the runtime's side, the snapshots to the followers and the wanted checkpoints, each of them, in order,
to the mutation line.  Settlement expires the invocation and then waits for the queue, so every accepted checkpoint
is committed before the outcome that deletes it.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, TypeVarTuple, Unpack, cast

import trio

from fencepost.actors.actor import System
from fencepost.actors.tool_messages import ToolResult
from fencepost.actors.tool_results import Progress, checkpoint_record, progress_of
from fencepost.mailbox.errors import (
    CapabilityExpired,
    DuplicateStep,
    InvalidIdentifier,
    MutationRefused,
    OperationEnded,
)
from fencepost.mailbox.mutation import Delete, Mutation, Unchanged
from fencepost.mailbox.ports import ActorKilled
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import CallRecord, CheckpointRecord, MemoRecord, Record
from fencepost.mailbox.strict_json import json_text, json_value

__all__ = ["Invocation", "check_memo_name"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MEMO_NAME_MAX: Final = 256
STEP: Final = "step/"


class _OperationEnded(CapabilityExpired, OperationEnded):
    """The capability expired because its operation was finalized from outside."""


def check_memo_name(name: object) -> str:
    """Return `name` if it can name a memo, else raise `InvalidIdentifier`."""
    if isinstance(name, str) and 1 <= len(name) <= MEMO_NAME_MAX and ":" not in name and _encodable(name):
        return name
    raise InvalidIdentifier("name", name, f"must be a text of 1 to {MEMO_NAME_MAX} characters without a colon")


def _encodable(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


class Invocation:
    """What `Tool.execute` is given beside its arguments."""

    def __init__(
        self,
        system: System,
        call: CallRecord,
        operation_id: str,
        turn_id: str,
        *,
        on_progress: Callable[[CallRecord, Progress], None],
        start_daemon: Callable[[Callable[[], Awaitable[None]]], trio.CancelScope],
        on_killed: Callable[[BaseException], None],
    ) -> None:
        """`call` is the row as it was admitted.

        All on the runtime's side: `on_progress` is told of each snapshot; `start_daemon` starts a task beside the
        actor, for the writing of checkpoints, once the first is wanted; `on_killed` is told when chaos kills the actor
        in the middle of a tool's own call.
        """
        self._system = system
        self._call = call
        self._operation_id = operation_id
        self._turn_id = turn_id
        self._on_progress = on_progress
        self._start_daemon = start_daemon
        self._on_killed = on_killed
        self._writer: trio.CancelScope | None = None
        self._token = trio.lowlevel.current_trio_token()
        self._expired: str | None = None
        self._ended = False
        self._settling = False
        """Whether the outcome is being made: nothing is passed on any more."""
        self._accepted: deque[tuple[Progress, bool]] = deque()
        self._wanted: deque[Progress] = deque()
        self._more: trio.Event | None = None
        self._idle: trio.Event | None = None
        """Set once everything wanted is committed; None before the first checkpoint is wanted."""
        self._steps: set[str] = set()
        self.memo_names: set[str] = set()
        """Every memo this execution may have written."""
        self.checkpointed = False
        """Whether this execution may have written a checkpoint."""

    @property
    def invocation_id(self) -> str:
        """Names this call for ever, and stays the same when it is replayed."""
        return self._call.invocation_id

    @property
    def operation_id(self) -> str:
        """The operation the batch belongs to."""
        return self._operation_id

    @property
    def turn_id(self) -> str:
        """The model turn whose calls the batch runs."""
        return self._turn_id

    # -- progress --

    def update(self, partial: ToolResult, checkpoint: bool = False) -> None:
        """Show the whole progress so far to followers and snapshots; with `checkpoint`, have it saved as well.

        Returns at once and acknowledges nothing.  A snapshot is complete and bounded by the tool; it replaces the one
        before it.  Raises ValueError, and then shows and saves nothing, for what JSON does not have.  Once the call is
        settled it is ignored in silence.
        """
        if self._expired is not None:
            return
        self._accepted.append((progress_of(partial), bool(checkpoint)))
        if trio.lowlevel.in_trio_task():
            self.take_updates()
        else:
            self._token.run_sync_soon(self.take_updates)

    def take_updates(self) -> None:
        """Runtime's side: pass on what `update` accepted."""
        while self._accepted:
            progress, checkpoint = self._accepted.popleft()
            if self._settling:
                continue  # of another thread, which was looking away when the invocation expired
            self._on_progress(self._call, progress)
            if checkpoint:
                self._want(progress)

    def _want(self, progress: Progress) -> None:
        self.checkpointed = True
        self._wanted.append(progress)
        if self._idle is None or self._idle.is_set():
            self._idle = trio.Event()
        if self._more is not None:
            self._more.set()
        if self._writer is None:
            self._writer = self._start_daemon(self.write_checkpoints)

    async def write_checkpoints(self) -> None:
        """Runtime's side: a task that commits every wanted checkpoint in order, until it is cancelled."""
        while True:
            while self._wanted:
                await self._write_checkpoint(self._wanted.popleft())
            if self._idle is not None:
                self._idle.set()
            self._more = trio.Event()
            await self._more.wait()

    async def _write_checkpoint(self, progress: Progress) -> None:
        row = checkpoint_record(self.invocation_id, progress, self._system.clock.now_ns())
        mutation = Mutation(
            label="batch.checkpoint",
            guards=(Unchanged(self._call),),
            deletes=(Delete(CheckpointRecord, row.key),),
            puts=(row,),
        )
        try:
            await self._system.line.commit(mutation)
        except MutationRefused:
            return  # the call is no longer ours: late progress is no news

    def all_written(self) -> bool:
        """Runtime's side, after `expire`: pass on every accepted update; whether all checkpoints are committed."""
        self.take_updates()
        self._settling = True
        return self._idle is None or self._idle.is_set()

    async def checkpoints_written(self) -> None:
        """Runtime's side, after `all_written`: return once every checkpoint is committed."""
        if self._idle is not None:
            await self._idle.wait()

    def stop_writing(self) -> None:
        """Runtime's side: end the task that writes checkpoints."""
        if self._writer is not None:
            self._writer.cancel()

    # -- the end --

    def expire(self, why: str = "its outcome is settled", *, ended: bool = False) -> None:
        """From now on nothing is accepted; `ended` when the operation was finalized from outside."""
        if self._expired is None:
            self._expired = why
        self._ended = self._ended or ended

    def _require_live(self) -> None:
        if self._expired is not None:
            raise self._expiry(self._expired)

    def _expiry(self, why: str) -> CapabilityExpired:
        message = f"the capability of call {self.invocation_id} has expired: {why}"
        return _OperationEnded(message) if self._ended else CapabilityExpired(message)

    async def run_inside(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Run a trio function on the runtime's own loop, whatever the bridge's is; for built-in tools."""
        return await self._system.call_from_host(fn, *args)

    # -- memos --

    async def get_memo(self, name: str) -> object:
        """Return what was saved under `name` by this or an earlier execution of the call, a copy; None if nothing was.

        Raises `InvalidIdentifier` and `CapabilityExpired`.
        """
        memo = await self._read(check_memo_name(name))
        return None if memo is None else json_value(memo.value)

    async def set_memo(self, name: str, value: object) -> None:
        """Save a copy of `value` under `name`; durable on return, and kept until the call's outcome is.  None deletes.

        Raises `InvalidIdentifier`, ValueError for what JSON does not have, `CapabilityExpired`.  `step/NAME` is where
        the step NAME records its value: whoever sets it has the step answer that, and its effect not run.
        """
        await self._write(check_memo_name(name), None if value is None else json_text(value))

    async def _read(self, name: str) -> MemoRecord | None:
        self._require_live()
        return await self._system.call_from_host(self._load, name)

    async def _load(self, name: str) -> MemoRecord | None:
        queries: tuple[Query[Record], ...] = (
            cast("Query[Record]", Query(CallRecord, {"invocation_id": self.invocation_id})),
            cast("Query[Record]", Query(MemoRecord, {"invocation_id": self.invocation_id, "name": name})),
        )
        call, memo = await self._system.line.load(*queries)
        if not call or call[0] != self._call:
            raise self._expiry("its call is no longer running here")
        return cast("MemoRecord", memo[0]) if memo else None

    async def _write(self, name: str, value: str | None) -> None:
        self._require_live()
        await self._system.call_from_host(self._save, name, value)

    async def _save(self, name: str, value: str | None) -> None:
        self.memo_names.add(name)
        key = (self.invocation_id, name)
        puts: tuple[MemoRecord, ...] = ()
        if value is not None:
            now = self._system.clock.now_ns()
            puts = (MemoRecord(invocation_id=self.invocation_id, name=name, value=value, at=now),)
        mutation = Mutation(
            label="batch.memo", guards=(Unchanged(self._call),), deletes=(Delete(MemoRecord, key),), puts=puts
        )
        try:
            await self._system.line.commit(mutation)
        except MutationRefused as refused:
            raise self._expiry("its call is no longer running here") from refused
        except ActorKilled as killed:
            self._on_killed(killed)
            raise self._expiry("the activation that ran it has died") from killed

    # -- steps --

    async def step(self, name: str, effect: Callable[[], Awaitable[T] | T]) -> T:
        """Run `effect` unless an earlier execution of this call recorded its value; answer the recorded value.

        Recorded exactly once, executed at least once: a crash between the effect and its record runs it again.  An
        error is not recorded.  A name is used once in an execution, else `DuplicateStep`, also after its effect raised.
        Raises what `effect` raises, ValueError for a value JSON does not have, `InvalidIdentifier` and
        `CapabilityExpired`.
        """
        check_memo_name(name)
        if name in self._steps:
            raise DuplicateStep(f"step {name!r} was already taken in this execution of call {self.invocation_id}")
        self._steps.add(name)
        memo = await self._read(STEP + name)
        if memo is not None:
            return cast("T", json_value(memo.value))
        value: object = effect()
        if inspect.isawaitable(value):
            value = await value
        text = json_text(value, f"the value of step {name!r}")
        await self._write(STEP + name, text)
        return cast("T", json_value(text))
