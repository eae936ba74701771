"""Running tools: from an admitted effect to its staged outcome, and what becomes of effects nobody settled.

* An execution starts when its admission is durable, and its tool is an errand: it ends, or is given up.  Either way
  its invocation expires first, every progress it had asked to be saved is written, and only then its outcome is made:
  what the tool answered or raised, looked at by `after_tool`; or the truth about its abortion.
* `after_tool` is an errand too.  The effect has happened, so a hook that raises, or has to be given up, changes
  nothing: the tool's own result is kept, and an event tells.
* An activation that finds effect_pending rows finds *orphans*: an earlier life began their effects and did not settle
  them.  `judge_orphan` says which of them are replayed; the others are settled as interrupted, many in one mutation.
* Nothing can end code that ignores its cancellation, so an orphan's old execution may still run in this process.  Its
  replay waits no longer than the grace (`Actor.unwinding_seconds`).  Then it starts beside it, and an event says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import trio
from attrs import define, evolve

from fencepost.actors.invocation import Invocation
from fencepost.actors.tool_messages import ToolResult
from fencepost.actors.tool_results import (
    Outcome,
    Progress,
    aborted,
    failure_of,
    interrupted,
    outcome_of,
    progress_data,
    result_of,
)
from fencepost.actors.tool_state import Orphan, call_view, judge_orphan
from fencepost.actors.tool_steps import Step
from fencepost.actors.tool_writes import clear_and_replay, hook_failed, names_of, settle
from fencepost.mailbox.errors import OperationEnded
from fencepost.mailbox.mutation import Event
from fencepost.mailbox.records import CallRecord
from fencepost.mailbox.strict_json import json_copy, json_value
from fencepost.mailbox.text import told

if TYPE_CHECKING:
    from fencepost.actors.tool_batch_actor import ToolBatchActor
    from fencepost.actors.tool_errands import Errand
    from fencepost.actors.tool_messages import Tool
    from fencepost.mailbox.mutation import Mutation

__all__ = ["Execution", "Executions"]

ORPHANS_AT_ONCE: Final = 250
"""How many orphans' leavings, each perhaps 50 KiB of saved progress, are read and settled together."""
HOOK_GIVEN_UP: Final = "it ignored its cancellation and was given up"


@define(eq=False)
class Execution:
    """One running tool, until its outcome is made."""

    call: CallRecord
    """The row as its effect was admitted."""
    invocation: Invocation
    recovery: bool
    memos: Collection[str]
    """The names of what earlier executions of the call remembered."""
    progress: Progress | None
    """The latest snapshot of this execution; before its first one, what an earlier one had saved."""
    reported: bool = False
    """Whether `progress` is this execution's own."""


class Executions:
    """The executions of one activation, by source position."""

    def __init__(self, actor: ToolBatchActor) -> None:
        self._actor = actor
        self._system = actor.system
        self._rows = actor.rows
        self.running: dict[int, Execution] = {}

    def expire(self, why: str, *, ended: bool = False) -> None:
        """Every capability handed out ends here."""
        for execution in self.running.values():
            execution.invocation.expire(why, ended=ended)

    # -- running --

    def start(
        self,
        index: int,
        tool: Tool,
        arguments: str,
        *,
        saved: Progress | None = None,
        memos: Collection[str] = (),
        recovery: bool = False,
    ) -> None:
        """Run the tool of a call whose effect was just admitted, unless the batch was ended or cancelled in between."""
        if not self._rows.open:
            return  # both were committed, and the end was heard of first
        call = self._rows.now.calls[index]
        if self._rows.now.cancelled:
            # A first effect never began, and what an earlier execution had saved is still told.
            outcome = interrupted(saved, self._bytes_max) if recovery else aborted(None, 0, started=False)
            self._stage(call, outcome, memos, progress=False, recovery=recovery)
            return
        execution = self._new(call, saved, memos, recovery=recovery)
        self.running[index] = execution
        self._actor.errands.run(partial(self._over, execution), self._call_tool, tool, arguments, execution.invocation)

    def _new(self, call: CallRecord, saved: Progress | None, memos: Collection[str], *, recovery: bool) -> Execution:
        batch = self._rows.now.batch
        invocation = Invocation(
            self._system,
            call,
            batch.operation_id,
            batch.turn_id,
            on_progress=self._on_progress,
            start_daemon=self._start_daemon,
            on_killed=self._actor.crash,
        )
        return Execution(call, invocation, recovery, memos, saved)

    def _start_daemon(self, fn: Callable[[], Awaitable[None]]) -> trio.CancelScope:
        return self._actor.spawn(fn, daemon=True)

    def _on_progress(self, call: CallRecord, progress: Progress) -> None:
        execution = self.running[call.source_index]
        execution.progress, execution.reported = progress, True
        data = {**names_of(call, recovery=execution.recovery), "result": json_copy(progress_data(progress))}
        now = self._system.clock.now_ns()
        self._system.tell_live(Event(seq=None, at=now, kind="tool_update", address=self._actor.address, data=data))

    async def _call_tool(self, tool: Tool, arguments: str, invocation: Invocation) -> object:
        executing, name = self._system.executing, invocation.invocation_id

        async def counted() -> object:
            """On the bridge's loop, so that what goes on there unheeded is counted until it ends."""
            executing[name] += 1
            try:
                return await tool.execute(json_value(arguments), invocation)
            finally:
                executing[name] -= 1
                if not executing[name]:
                    del executing[name]

        return await self._system.callback(counted, grace=self._system.tool_grace_seconds)

    # -- from the end of a tool to its outcome --

    def _over(self, execution: Execution, errand: Errand) -> None:
        """The tool has ended or was given up."""
        execution.invocation.expire()
        if execution.invocation.all_written():
            self._conclude(execution, errand)
        else:
            self._actor.spawn(self._conclude_written, execution, errand)

    async def _conclude_written(self, execution: Execution, errand: Errand) -> None:
        await execution.invocation.checkpoints_written()
        self._conclude(execution, errand)

    def _conclude(self, execution: Execution, errand: Errand) -> None:
        """Make the outcome: the tool's own result, its error, or the truth about its abortion."""
        if errand.returned:
            outcome = outcome_of(errand.value, self._bytes_max)
        elif errand.error is not None:
            outcome = failure_of(errand.error, self._bytes_max)
        else:
            self._settle(execution, self._abortion_of(execution, begun=errand.begun))
            return
        hook = cast("Callable[..., Awaitable[object]] | None", self._system.hooks.after_tool)
        if hook is None or self._rows.now.cancelled or not self._rows.open:
            self._settle(execution, outcome)
        else:
            self._actor.errands.run(
                partial(self._reviewed, execution, outcome), self._review, hook, execution.call, outcome
            )

    def _abortion_of(self, execution: Execution, *, begun: bool) -> Outcome:
        if execution.recovery and not begun:
            return interrupted(execution.progress, self._bytes_max)
        return aborted(execution.progress, self._bytes_max, started=begun)

    async def _review(
        self, hook: Callable[..., Awaitable[object]], call: CallRecord, outcome: Outcome
    ) -> ToolResult | None:
        grace = self._system.tool_grace_seconds
        replaced = await self._system.callback(
            hook, call_view(call), result_of(outcome), call.invocation_id, grace=grace
        )
        if replaced is not None and not isinstance(replaced, ToolResult):
            raise TypeError(f"after_tool must answer None or a ToolResult, not {replaced!r}")
        return replaced

    def _reviewed(self, execution: Execution, outcome: Outcome, errand: Errand) -> None:
        """`after_tool` has spoken, raised, or was stopped."""
        if errand.error is not None or errand.given_up:
            why = HOOK_GIVEN_UP if errand.error is None else told(errand.error)
            self._actor.spawn(self._settle_unreviewed, execution, outcome, why)
            return
        if errand.value is not None:
            outcome = outcome_of(errand.value, self._bytes_max)
        self._settle(execution, outcome)

    async def _settle_unreviewed(self, execution: Execution, outcome: Outcome, why: str) -> None:
        await self._system.line.commit(hook_failed(execution.call, why, self._system.clock.now_ns()))
        self._settle(execution, outcome)

    def _settle(self, execution: Execution, outcome: Outcome) -> None:
        """The execution is over; its outcome is staged, and its memos and progress go with it."""
        invocation = execution.invocation
        invocation.stop_writing()
        del self.running[execution.call.source_index]
        if self._rows.open:
            memos = {*execution.memos, *invocation.memo_names}
            progress, recovery = invocation.checkpointed, execution.recovery
            self._stage(execution.call, outcome, memos, progress=progress, recovery=recovery)

    def _stage(
        self, call: CallRecord, outcome: Outcome, memos: Collection[str], *, progress: bool, recovery: bool
    ) -> None:
        if outcome.terminate and self._rows.now.cancelled:
            outcome = evolve(outcome, terminate=False)
        now = self._system.clock.now_ns()
        mutation = settle(call, outcome, now, memos=sorted(memos), recovery=recovery, progress=progress)
        again = partial(self._settlement, call, outcome, recovery=recovery)
        self._actor.stagings.put(Step(mutation, again=again))

    async def _settlement(self, call: CallRecord, outcome: Outcome, *, recovery: bool) -> Mutation:
        """Something of the call is there that this activation did not know of: the settlement that knows of it."""
        memos = await self._rows.memo_names(call)
        return settle(call, outcome, self._system.clock.now_ns(), memos=sorted(memos), recovery=recovery)

    # -- what an earlier life left behind --

    async def take_up(self, orphans: Sequence[CallRecord]) -> None:
        """Replay or interrupt each of these effects that an earlier life began."""
        interrupting = [call for call in orphans if self._fate_of(call) is Orphan.INTERRUPT]
        replaying = [call for call in orphans if self._fate_of(call) is Orphan.REPLAY]
        for first in range(0, len(interrupting), ORPHANS_AT_ONCE):
            await self._interrupt(interrupting[first : first + ORPHANS_AT_ONCE])
        for first in range(0, len(replaying), ORPHANS_AT_ONCE):
            await self._replay(replaying[first : first + ORPHANS_AT_ONCE])

    def _fate_of(self, call: CallRecord) -> Orphan:
        tool = self._system.tools.get(call.name)
        return judge_orphan(call.replay, None if tool is None else tool.replay, cancelled=self._rows.now.cancelled)

    async def _interrupt(self, calls: Sequence[CallRecord]) -> None:
        saved, memos = await self._rows.leavings_of(calls)
        if not self._rows.open:
            return
        for call in calls:
            name = call.invocation_id
            outcome = interrupted(saved.get(name), self._bytes_max)
            self._stage(call, outcome, memos.get(name, ()), progress=name in saved, recovery=True)

    async def _replay(self, calls: Sequence[CallRecord]) -> None:
        try:
            sources = await self._rows.arguments_of(calls)
        except OperationEnded:
            return
        saved, memos = await self._rows.leavings_of(calls)
        if not self._rows.open:
            return
        for call in calls:
            name = call.invocation_id
            progress, remembered = saved.get(name), memos.get(name, ())
            tool = self._system.tools.get(call.name)
            if tool is None or self._rows.now.cancelled:  # cancelled while we looked
                outcome = interrupted(progress, self._bytes_max)
                self._stage(call, outcome, remembered, progress=True, recovery=True)
                continue
            arguments = sources[name].arguments
            beside = bool(self._system.executing[name])
            mutation = clear_and_replay(
                call,
                arguments,
                self._system.clock.now_ns(),
                incarnation_id=self._rows.now.batch.incarnation_id,
                progress=progress is not None,
                beside=beside,
            )
            then = partial(
                self.start, call.source_index, tool, arguments, saved=progress, memos=remembered, recovery=True
            )
            again = partial(self._not_replayed, call, progress, remembered, mutation)
            self._actor.replays.put(Step(mutation, then, again=again))

    async def _not_replayed(
        self, call: CallRecord, progress: Progress | None, memos: Collection[str], mutation: Mutation
    ) -> Mutation | None:
        """The store refused the replay.  If the call's incarnation was retired meanwhile, there is to be none."""
        if not await self._actor.outlives_incarnation():
            return mutation
        self._stage(call, interrupted(progress, self._bytes_max), memos, progress=True, recovery=True)
        return None

    @property
    def _bytes_max(self) -> int:
        return self._system.result_bytes_max
