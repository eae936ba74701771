"""A tool batch's actor: it carries each call from planned to its outcome, and places the outcomes in source order.

The protocol is `tool_state`; this shell clears, runs, waits, commits and tells.

* Each open call is *carried* by a task of its own; in a sequential batch one task carries them one after the other.
  It commits the call's transitions itself, each its own mutation: only one task ever works on a call's row, and what
  other calls commit meanwhile shares the line's transactions, so a batch of n costs a few syncs and not n.
* Whoever has made an outcome durable tries to place.  One placement is under way at a time; placements, cancellation
  and the end from outside exclude each other, because all three write the batch's row.
* Clearing a planned call is a tool boundary of its pane (design section 8): the pane decides, and a call it blocks
  never runs.  A placement that delivers a payload or completes the batch goes through the pane too, which adds what
  that means for its intents and commits the whole.
* Tools and hooks are the bridge's code and run on its loop, outside any transaction.  A tool's execution is a task
  beside its carrier, so that a tool which ignores its cancellation can be abandoned after a grace; its invocation has
  expired by then, and the store refuses whatever it still writes.
* An activation that finds effect_pending rows finds orphans: nothing of theirs runs any more.  They are replayed or
  interrupted, as `judge_orphan` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, Final, cast

import trio
from attrs import define, evolve, field, frozen

from fencepost.actors.actor import Actor, System
from fencepost.actors.calls import Call, PreToolUse
from fencepost.actors.invocation import Invocation
from fencepost.actors.messages import (
    Allow,
    Applied,
    BlockGeneric,
    BlockPayload,
    BlockRestart,
    ModelTurn,
    Reason,
    ToolBoundary,
    Unchanged,
)
from fencepost.actors.tool_calls import CancelBatch, FinalizeBatch, PlaceResults, SnapshotBatch, WaitForBatch
from fencepost.actors.tool_messages import (
    BatchOutcome,
    Block,
    LaneSnapshot,
    Replace,
    Running,
    Settled,
    Tool,
    ToolResult,
)
from fencepost.actors.tool_results import (
    Outcome,
    Progress,
    aborted,
    entry_view,
    error_outcome,
    failure_of,
    interrupted,
    missing_tool,
    not_executed,
    outcome_of,
    progress_data,
    progress_of_record,
    result_of,
    result_of_outcome,
    result_of_progress,
)
from fencepost.actors.tool_state import (
    BatchState,
    Orphan,
    admit,
    boundary_batch_id,
    call_view,
    cancel,
    clear_and_replay,
    finalize,
    interrupt,
    judge_orphan,
    place,
    settle,
    stage_synthetic,
    to_work_on,
)
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import ActorCrashed, CorruptRecord, InvalidTransition, MutationRefused, OperationEnded
from fencepost.mailbox.mutation import Event, Mutation, NewEvent
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import (
    ArgumentsRecord,
    BatchMode,
    BatchRecord,
    CallRecord,
    CallStatus,
    Checkpoint,
    CheckpointRecord,
    EntryRecord,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    MemoRecord,
    OutcomeRecord,
    Record,
)
from fencepost.mailbox.strict_json import json_copy, json_text, json_value
from fencepost.mailbox.text import told

__all__ = ["ToolBatchActor"]

ORPHANS_AT_ONCE: Final = 250
"""How many interrupted calls, each perhaps with 50 KiB of saved progress, are settled in one transaction."""
FINALIZE_TRIES: Final = 100
"""How often a memo may be written between looking for them and ending the batch; each one is of a running tool."""


@frozen(kw_only=True)
class _Cleared:
    """The call may run, with these arguments (JSON text)."""

    tool: Tool
    arguments: str


@frozen(kw_only=True)
class _Blocked:
    """The call never runs; this is its result."""

    outcome: Outcome
    intent_id: str | None = None
    retired: bool = False
    """Its incarnation is no more: the whole batch is to be cancelled."""


@define(eq=False)
class _Asking:
    """A question to the pane that is under way, and its answer; None clears the call."""

    blocked: _Blocked | None = None
    known: bool = False
    answered: trio.Event = field(factory=trio.Event)


@define(eq=False)
class _Execution:
    """One running tool: its task's scope, and what it came to."""

    invocation: Invocation
    scope: trio.CancelScope | None = None
    progress: Progress | None = None
    """The latest snapshot of this execution; before its first one, what an earlier one had saved."""
    reported: bool = False
    """Whether `progress` is this execution's own."""
    result: object = None
    error: Exception | None = None
    returned: bool = False
    over: bool = False
    """The execution's task has ended."""
    woken: trio.Event = field(factory=trio.Event)
    """What its carrier waits for: that it is over, or that it was told to stop."""

    def stop(self) -> None:
        """Cancel the tool; its carrier need not wait longer than the grace now."""
        if self.scope is not None:
            self.scope.cancel()
        self._wake()

    def end(self) -> None:
        """The execution's task ends here."""
        self.over = True
        self._wake()

    def _wake(self) -> None:
        woken = self.woken
        if not self.over:
            self.woken = trio.Event()
        woken.set()


class ToolBatchActor(Actor):
    """One activation of `batch:<pane_id>/<operation_id>/<turn_id>`."""

    KIND: ClassVar[str] = "batch"

    def __init__(self, address: str, activation: int, system: System) -> None:
        super().__init__(address, activation, system)
        self._state: BatchState | None = None
        self._echo: str | None = None
        """The startup delivery id of the batch's incarnation: its boundary must show it (protocol-intent 7.4)."""
        self._recovered: frozenset[int] = frozenset()
        self._outcomes: dict[str, OutcomeRecord] = {}
        self._sources: dict[str, ArgumentsRecord] = {}
        """Arguments of planned calls, read together and taken by their carriers."""
        self._executions: dict[int, _Execution] = {}
        self._asking: _Asking | None = None
        self._clearing: set[trio.CancelScope] = set()
        self._waiting: list[Envelope] = []
        self._placing = False
        self._writing = trio.Lock()
        """Held while the batch's row, or anything it forbids, is written."""
        self._serving: dict[type[Call], Callable[[Envelope], Awaitable[None]]] = {
            WaitForBatch: self._wait,
            CancelBatch: self._cancel,
            FinalizeBatch: self._finalize,
            SnapshotBatch: self._snapshot,
        }

    # -- life --

    async def load(self) -> None:
        """Read the batch and go on with it; nothing else is read before it is needed."""
        batch, calls = await self._read()
        if batch is None:
            return
        self._state = state = BatchState.of(batch, calls)
        if not state.open:
            return
        begun = {CallStatus.EFFECT_PENDING, CallStatus.OUTCOME_READY}
        self._recovered = frozenset(call.source_index for call in state.calls if call.status in begun)
        (rows,) = await self.system.line.load(Query(IncarnationRecord, {"incarnation_id": batch.incarnation_id}))
        if not rows:
            raise CorruptRecord(self.address, f"runs for incarnation {batch.incarnation_id}, which has no row")
        self._echo = rows[0].startup_delivery_id
        if not rows[0].live and not state.cancelled:
            await self._request_cancel("its incarnation was retired")
        self.spawn(self._go_on)

    async def _read(self) -> tuple[BatchRecord | None, list[CallRecord]]:
        batches: Query[BatchRecord] = Query(BatchRecord, {"address": self.address})
        calls: Query[CallRecord] = Query(CallRecord, {"batch": self.address}, order_by=("source_index",))
        found = await self.system.line.load(cast("Query[Record]", batches), cast("Query[Record]", calls))
        return cast("BatchRecord | None", next(iter(found[0]), None)), cast("list[CallRecord]", found[1])

    async def _go_on(self) -> None:
        """Have somebody work on every call that can be worked on, and place what is ready."""
        await self._interrupt_orphans()
        if self._now.batch.mode is BatchMode.SEQUENTIAL:
            await self._carry_in_turn()
            return
        indexes = to_work_on(self._now)
        await self._fetch_arguments(indexes)
        for index in indexes:
            self.spawn(self._carry, index)
        await self._place()

    @property
    def _now(self) -> BatchState:
        if self._state is None:
            raise InvalidTransition(f"there is no {self.address}", state="absent", address=self.address)
        return self._state

    @property
    def owes(self) -> bool:
        """An open batch stays awake."""
        return self.working or (self._state is not None and self._state.open)

    @property
    def finished(self) -> bool:
        """A closed batch has nothing more to do than to answer."""
        return self._state is not None and not self._state.open and not self.working

    @property
    def unwinding_seconds(self) -> float:
        """A tool that ignores the end of its activation is abandoned after the grace as well."""
        return self.system.tool_grace_seconds

    def leftovers(self) -> list[Envelope]:
        """Those who wait for the outcome."""
        return list(self._waiting)

    def crash(self, error: BaseException) -> None:
        """End this activation, its carriers with it: what a tool makes of the death must not become its outcome."""
        super().crash(error)
        self.end_children()

    def end_children(self) -> None:
        """The activation is over: every invocation it handed out expires."""
        for execution in self._executions.values():
            execution.invocation.expire("the activation that ran it has ended")
        super().end_children()

    async def handle(self, envelope: Envelope) -> None:
        """Serve one message."""
        serve = self._serving.get(type(envelope.message))
        if serve is None:
            raise InvalidTransition(f"a batch has no answer to {envelope.message!r}", address=self.address)
        await serve(envelope)

    # -- carrying calls --

    async def _carry_in_turn(self) -> None:
        """A sequential batch: a call is cleared only when every earlier one is placed."""
        await self._place()
        while indexes := to_work_on(self._now):
            await self._carry(indexes[0])

    async def _carry(self, index: int) -> None:
        """Bring one call to its outcome, then place what can be placed."""
        call = self._now.calls[index]
        try:
            if call.status is CallStatus.PLANNED:
                await self._carry_planned(call)
            elif call.status is CallStatus.EFFECT_PENDING:
                await self._carry_orphan(call)
        except OperationEnded:
            return  # ended from outside while we looked
        await self._place()

    async def _carry_planned(self, call: CallRecord) -> None:
        source = await self._arguments(call)
        verdict: _Cleared | _Blocked | None = None
        if not self._now.cancelled:
            with trio.CancelScope() as scope:
                self._clearing.add(scope)
                verdict = await self._clear(call, source.arguments)
            self._clearing.discard(scope)
        if isinstance(verdict, _Blocked) and verdict.retired:
            await self._request_cancel("its incarnation was retired")
        if not self._now.open:
            return
        if verdict is None or (self._now.cancelled and isinstance(verdict, _Cleared)):
            verdict = _Blocked(outcome=aborted(None, self._bytes_max, started=False))
        if isinstance(verdict, _Blocked):
            await self._stage_synthetic(call, verdict, source.arguments)
            return
        mutation = admit(call, verdict.tool.replay, source, verdict.arguments, self.system.clock.now_ns())
        if await self._commit("admit", mutation):
            admitted = self._now.calls[call.source_index]
            await self._run(admitted, verdict.tool, verdict.arguments, None, recovery=False)

    async def _fetch_arguments(self, indexes: tuple[int, ...]) -> None:
        """Read what the planned ones of these calls are about to need, all at once."""
        calls = [self._now.calls[index] for index in indexes]
        ids = tuple(call.invocation_id for call in calls if call.status is CallStatus.PLANNED)
        if ids:
            (rows,) = await self.system.line.load(Query(ArgumentsRecord, {"invocation_id": ids}))
            self._sources = {row.invocation_id: row for row in rows}

    async def _arguments(self, call: CallRecord) -> ArgumentsRecord:
        source = self._sources.pop(call.invocation_id, None)
        if source is not None:
            return source
        (rows,) = await self.system.line.load(Query(ArgumentsRecord, {"invocation_id": call.invocation_id}))
        if not rows:
            if not self._now.open:
                raise OperationEnded(f"{self.address} was finalized from outside")
            raise CorruptRecord(f"{self.address}: call_arguments({call.invocation_id!r},)", "is missing")
        return rows[0]

    async def _interrupt_orphans(self) -> None:
        """Settle every effect that an earlier life began and nobody may repeat, many in one transaction."""
        orphans = [self._now.calls[index] for index in to_work_on(self._now)]
        orphans = [call for call in orphans if call.status is CallStatus.EFFECT_PENDING]
        orphans = [call for call in orphans if self._fate_of(call) is Orphan.INTERRUPT]
        for first in range(0, len(orphans), ORPHANS_AT_ONCE):
            calls = orphans[first : first + ORPHANS_AT_ONCE]
            ids = tuple(call.invocation_id for call in calls)
            (saved,) = await self.system.line.load(Query(CheckpointRecord, {"invocation_id": ids}))
            (memos,) = await self.system.line.load(Query(MemoRecord, {"invocation_id": ids}))
            progress = {row.invocation_id: progress_of_record(row) for row in saved}
            outcomes = [interrupted(progress.get(call.invocation_id), self._bytes_max) for call in calls]
            mutation = interrupt(calls, outcomes, [memo.key for memo in memos], self.system.clock.now_ns())
            await self._commit("stage", mutation)

    def _fate_of(self, call: CallRecord) -> Orphan:
        tool = self.system.tools.get(call.name)
        return judge_orphan(call.replay, None if tool is None else tool.replay, cancelled=self._now.cancelled)

    async def _carry_orphan(self, call: CallRecord) -> None:
        """An effect that an earlier life began and did not settle, and that may be repeated."""
        tool = self.system.tools.get(call.name)
        progress = await self._saved_progress(call)
        if self._fate_of(call) is Orphan.REPLAY and tool is not None:
            source = await self._arguments(call)
            if not self._now.cancelled:
                mutation = clear_and_replay(call, source.arguments, self.system.clock.now_ns())
                if await self._commit("replay", mutation):
                    admitted = self._now.calls[call.source_index]
                    await self._run(admitted, tool, source.arguments, progress, recovery=True)
                return
        await self._settle(call, interrupted(progress, self._bytes_max), None, recovery=True)

    async def _saved_progress(self, call: CallRecord) -> Progress | None:
        (rows,) = await self.system.line.load(Query(CheckpointRecord, {"invocation_id": call.invocation_id}))
        return progress_of_record(rows[0]) if rows else None

    # -- clearance: the pane's word, then the call's own --

    async def _clear(self, call: CallRecord, arguments: str) -> _Cleared | _Blocked:
        """Decide whether a planned call may run; nothing is written here but the pane's own admission."""
        blocked = await self._ask_together(call)
        if blocked is not None:
            return blocked
        if call.refusal is not None:
            return _Blocked(outcome=not_executed(call.refusal, self._bytes_max))
        tool = self.system.tools.get(call.name)
        if tool is None:
            return _Blocked(outcome=missing_tool(call.name))
        try:
            arguments = await self._validated(tool, arguments)
            return await self._before_tool(call, tool, arguments)
        except Exception as error:  # noqa: BLE001 - whatever a validator or a hook raises blocks its call
            return _Blocked(outcome=failure_of(error, self._bytes_max))

    async def _ask_together(self, call: CallRecord) -> _Blocked | None:
        """Ask the pane once for all calls that want to know at this moment: they are of one turn and batch."""
        while (asking := self._asking) is not None:
            await asking.answered.wait()
            if asking.known:
                return asking.blocked
        self._asking = asking = _Asking()
        try:
            asking.blocked = await self._ask_pane(call)
            asking.known = True
        finally:
            self._asking = None
            asking.answered.set()
        return asking.blocked

    async def _ask_pane(self, call: CallRecord) -> _Blocked | None:
        """Have the pane decide; wait for a reconciliation as long as it takes (contract T-5)."""
        batch = self._now.batch
        boundary = ToolBoundary(
            batch.incarnation_id,
            ModelTurn(batch.turn_id, batch.turn_ordinal),
            self._boundary_batch_id,
            call.tool_call_id,
            self._echo,
        )
        while True:
            try:
                decision = await self.system.ask(self._pane, PreToolUse(boundary, float("inf")))
            except ActorCrashed:
                continue  # the pane's next activation knows what was decided
            match decision:
                case Allow():
                    return None
                case BlockPayload():
                    return _Blocked(outcome=error_outcome(decision.payload.decode()), intent_id=decision.intent_id)
                case BlockGeneric(reason=Reason.RECONCILING) if await self._still_reconciling():
                    continue
                case BlockGeneric() | BlockRestart():
                    retired = isinstance(decision, BlockRestart) or decision.reason is Reason.RETIRED_INCARNATION
                    return _Blocked(outcome=error_outcome(decision.message), retired=retired)
                case other:
                    raise CorruptRecord(self._pane, f"a tool call was answered with {other!r}")

    async def _still_reconciling(self) -> bool:
        """Whether an attempt failed that will be resumed: then the call goes on waiting for it."""
        batch = self._now.batch
        where = {
            "pane_id": batch.pane_id,
            "state": IntentState.RECONCILING.value,
            "incarnation_id": batch.incarnation_id,
            "batch_id": self._boundary_batch_id,
        }
        (rows,) = await self.system.line.load(Query(IntentRecord, where))
        return bool(rows)

    async def _validated(self, tool: Tool, arguments: str) -> str:
        if tool.validate is None:
            return arguments
        validate = cast("Callable[..., Awaitable[object]]", tool.validate)
        answer = await self.system.callback(validate, json_value(arguments))
        return json_text(answer, "the validated arguments")

    async def _before_tool(self, call: CallRecord, tool: Tool, arguments: str) -> _Cleared | _Blocked:
        hook = cast("Callable[..., Awaitable[object]] | None", self.system.hooks.before_tool)
        if hook is None:
            return _Cleared(tool=tool, arguments=arguments)
        answer = await self.system.callback(hook, call_view(call), json_value(arguments), call.invocation_id)
        match answer:
            case None:
                return _Cleared(tool=tool, arguments=arguments)
            case Replace():
                replaced = json_text(answer.arguments, "the replaced arguments")
                return _Cleared(tool=tool, arguments=await self._validated(tool, replaced))
            case Block():
                return _Blocked(outcome=not_executed(answer.text, self._bytes_max, terminate=answer.terminate))
            case _:
                raise TypeError(f"before_tool must answer None, Replace or Block, not {answer!r}")

    # -- running a tool --

    async def _run(
        self, call: CallRecord, tool: Tool, arguments: str, saved: Progress | None, *, recovery: bool
    ) -> None:
        """Execute an admitted effect and make its outcome durable."""
        if self._now.cancelled:
            # Cancelled between the intent and the effect: a first effect never began, and what an earlier execution
            # had saved is still told.
            outcome = interrupted(saved, self._bytes_max) if recovery else aborted(None, self._bytes_max, started=False)
            await self._settle(call, outcome, None, recovery=recovery)
            return
        execution = self._execute(call, tool, arguments, saved, recovery=recovery)
        await self._until_over(execution)
        if not execution.over and execution.scope is not None:
            self.abandon(execution.scope)
        invocation = execution.invocation
        invocation.expire()
        await invocation.checkpoints_written()
        outcome = await self._outcome_of(call, execution)
        del self._executions[call.source_index]
        if self._now.open:
            await self._settle(call, outcome, invocation, recovery=recovery)
        invocation.stop_writing()

    def _execute(
        self, call: CallRecord, tool: Tool, arguments: str, saved: Progress | None, *, recovery: bool
    ) -> _Execution:
        """Start the tool's own task and the one that writes its checkpoints."""
        batch = self._now.batch

        def on_progress(progress: Progress) -> None:
            execution.progress, execution.reported = progress, True
            self._tell_update(call, progress, recovery=recovery)

        invocation = Invocation(
            self.system,
            call,
            batch.operation_id,
            batch.turn_id,
            on_progress=on_progress,
            on_checkpoint=lambda: self.spawn(invocation.write_checkpoints, daemon=True),
            on_killed=self.crash,
        )
        execution = _Execution(invocation=invocation, progress=saved)
        self._executions[call.source_index] = execution
        execution.scope = self.spawn(self._call_tool, execution, tool, arguments, daemon=True)
        return execution

    async def _call_tool(self, execution: _Execution, tool: Tool, arguments: str) -> None:
        try:
            execution.result = await self.system.callback(tool.execute, json_value(arguments), execution.invocation)
            execution.returned = True
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is its result
            execution.error = error
        finally:
            execution.end()

    async def _until_over(self, execution: _Execution) -> None:
        """Wait for the tool; once it was told to stop, only for the grace (contract T-3)."""
        if not execution.over:
            await execution.woken.wait()
        if not execution.over:
            with trio.move_on_after(self.system.tool_grace_seconds):
                await execution.woken.wait()

    async def _outcome_of(self, call: CallRecord, execution: _Execution) -> Outcome:
        """What the execution came to: its own result, its error, or the truth about its abortion."""
        if execution.returned:
            outcome = outcome_of(execution.result, self._bytes_max)
            if self._now.cancelled:
                return evolve(outcome, terminate=False)
            return await self._after_tool(call, outcome)
        if execution.error is not None:
            outcome = failure_of(execution.error, self._bytes_max)
            return outcome if self._now.cancelled else await self._after_tool(call, outcome)
        return aborted(execution.progress, self._bytes_max, started=True)

    async def _after_tool(self, call: CallRecord, outcome: Outcome) -> Outcome:
        hook = cast("Callable[..., Awaitable[object]] | None", self.system.hooks.after_tool)
        if hook is None or not self._now.open:
            return outcome
        replaced: object = None
        with trio.CancelScope() as scope:
            self._clearing.add(scope)
            try:
                replaced = await self.system.callback(hook, call_view(call), result_of(outcome), call.invocation_id)
                if replaced is not None and not isinstance(replaced, ToolResult):
                    raise TypeError(f"after_tool must answer None or a ToolResult, not {replaced!r}")
            except Exception as error:  # noqa: BLE001 - the effect has happened: its result is kept
                replaced = None
                await self._tell_hook_failure(call, error)
        self._clearing.discard(scope)
        if replaced is not None:
            outcome = outcome_of(replaced, self._bytes_max)
        return evolve(outcome, terminate=False) if self._now.cancelled else outcome

    async def _tell_hook_failure(self, call: CallRecord, error: Exception) -> None:
        event = NewEvent(
            kind="after_tool.failed",
            address=self.address,
            at=self.system.clock.now_ns(),
            data={
                "invocation_id": call.invocation_id,
                "tool_call_id": call.tool_call_id,
                "source_index": call.source_index,
                "recovery": False,
                "error": told(error),
            },
        )
        await self.system.line.commit(Mutation(label="batch.hook_failed", events=(event,)))

    def _tell_update(self, call: CallRecord, progress: Progress, *, recovery: bool) -> None:
        data = {
            "invocation_id": call.invocation_id,
            "tool_call_id": call.tool_call_id,
            "source_index": call.source_index,
            "recovery": recovery,
            "tool_name": call.name,
            "result": json_copy(progress_data(progress)),
        }
        now = self.system.clock.now_ns()
        self.system.tell_live(Event(seq=None, at=now, kind="tool_update", address=self.address, data=data))

    # -- making outcomes durable --

    async def _stage_synthetic(self, call: CallRecord, blocked: _Blocked, arguments: str) -> None:
        now = self.system.clock.now_ns()
        mutation = stage_synthetic(call, blocked.outcome, arguments, now, intent_id=blocked.intent_id)
        await self._commit("stage", mutation)

    async def _settle(
        self, call: CallRecord, outcome: Outcome, invocation: Invocation | None, *, recovery: bool
    ) -> None:
        """Stage an effect's outcome; its memos and its progress go with it."""
        if invocation is None or recovery:
            memos, saved = await self._memo_names(call), True
        else:
            memos, saved = invocation.memo_names, invocation.checkpointed
        now = self.system.clock.now_ns()
        mutation = settle(call, outcome, now, memos=sorted(memos), recovery=recovery, progress=saved)
        try:
            await self._commit("stage", mutation)
        except MutationRefused:
            # Something of this call is there that this activation does not know of; now it does, and can fail for good.
            memos = await self._memo_names(call)
            await self._commit("stage", settle(call, outcome, now, memos=sorted(memos), recovery=recovery))

    async def _memo_names(self, call: CallRecord) -> set[str]:
        (rows,) = await self.system.line.load(Query(MemoRecord, {"invocation_id": call.invocation_id}))
        return {memo.name for memo in rows}

    async def _commit(self, transition: str, mutation: Mutation) -> bool:
        """Commit a step of a call and apply it; False if the batch was ended from outside meanwhile."""
        self.reached(transition, "decided")
        try:
            await self.system.line.commit(mutation)
        except MutationRefused:
            if self._now.open:
                raise
            return False
        self._apply(mutation.puts)
        self.reached(transition, "applied")
        return True

    def _apply(self, records: tuple[Record, ...]) -> None:
        self._state = self._now.after(records)
        for record in records:
            if isinstance(record, OutcomeRecord):
                self._outcomes[record.invocation_id] = record

    # -- placement --

    async def _place(self) -> None:
        """Place ready prefixes until there is none; one placement is under way at a time."""
        if self._placing:
            return  # whoever places looks again when it is done
        self._placing = True
        try:
            while self._now.open and self._now.ready:
                async with self._writing:
                    await self._place_prefix()
        finally:
            self._placing = False

    async def _place_prefix(self) -> None:
        state = self._now
        if not state.open:
            return
        prefix = state.ready
        await self._fetch_outcomes(prefix)
        mutation = place(state, self._outcomes, self.system.clock.now_ns(), recovered=self._recovered)
        if mutation is None:
            return
        completes = state.placed + len(prefix) == len(state.calls)
        delivers = next((call.intent_id for call in prefix if call.intent_id is not None), None)
        self.reached("place", "decided")
        if completes or delivers is not None:
            if not await self._place_through_pane(mutation, delivers, completes=completes):
                return
        else:
            await self.system.line.commit(mutation)
        self._apply(mutation.puts)
        for call in prefix:
            self._outcomes.pop(call.invocation_id, None)
        self.reached("place", "applied")
        if not self._now.open:
            await self._answer_waiting()

    async def _fetch_outcomes(self, prefix: tuple[CallRecord, ...]) -> None:
        """Read the exact outcomes that an earlier life staged."""
        missing = tuple(call.invocation_id for call in prefix if call.invocation_id not in self._outcomes)
        if missing:
            (rows,) = await self.system.line.load(Query(OutcomeRecord, {"invocation_id": missing}))
            self._outcomes.update((row.invocation_id, row) for row in rows)

    async def _place_through_pane(self, mutation: Mutation, delivers: str | None, *, completes: bool) -> bool:
        """Hand the placement to the pane; False if it died on the way and the store had to be asked."""
        batch = self._now.batch
        message = PlaceResults(
            part=mutation,
            incarnation_id=batch.incarnation_id,
            turn_id=batch.turn_id,
            batch_id=self._boundary_batch_id,
            delivers=delivers,
            completes=completes,
        )
        try:
            await self.system.ask(self._pane, message)
        except ActorCrashed:
            await self._ask_store()
            return False
        return True

    async def _ask_store(self) -> None:
        """Nobody here knows whether a commit happened: take over whatever rows are newer than ours."""
        batch, calls = await self._read()
        if batch is None:
            raise CorruptRecord(self.address, "has lost its row")
        self._state = self._now.after([batch, *calls])
        if not self._now.open:
            await self._answer_waiting()

    # -- waiting, cancelling, ending --

    async def _wait(self, envelope: Envelope) -> None:
        if self._now.open:
            self._waiting.append(envelope)
        else:
            await self._answer_outcome(envelope)

    async def _answer_waiting(self) -> None:
        while self._waiting:
            envelope = self._waiting[0]  # stays among the leftovers until it has its answer
            try:
                await self._answer_outcome(envelope)
            except OperationEnded as ended:
                envelope.reply.fail(ended)
            if self._waiting and self._waiting[0] is envelope:
                del self._waiting[0]

    async def _answer_outcome(self, envelope: Envelope) -> None:
        batch = self._now.batch
        if batch.checkpoint is Checkpoint.ENDED or batch.checkpoint is None:
            raise OperationEnded(f"{self.address} was finalized from outside")
        seqs = tuple(range(batch.first_entry_seq, batch.first_entry_seq + batch.calls_count))
        query = Query(EntryRecord, {"pane_id": batch.pane_id, "seq": seqs}, order_by=("seq",))
        (rows,) = await self.system.line.load(query)
        self.answer(envelope, BatchOutcome([entry_view(row) for row in rows], batch.checkpoint))

    async def _cancel(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, CancelBatch)  # the dispatch table says so
        if await self._request_cancel(message.reason):
            self.answer(envelope, Applied())
        else:
            self.answer(envelope, Unchanged())

    async def _request_cancel(self, reason: str) -> bool:
        """Commit a cancellation, then stop what runs; False where there is nothing to cancel any more."""
        async with self._writing:
            if self._now.cancelled or not self._now.open:
                return False
            mutation = cancel(self._now, reason, self.system.clock.now_ns())
            self.reached("cancel", "decided")
            await self.system.line.commit(mutation)
            self._apply(mutation.puts)
            self.reached("cancel", "applied")
        self._stop_running()
        return True

    def _stop_running(self) -> None:
        for scope in list(self._clearing):
            scope.cancel()
        for execution in list(self._executions.values()):
            execution.stop()

    async def _finalize(self, envelope: Envelope) -> None:
        async with self._writing:
            if not self._now.open:
                self.answer(envelope, Unchanged())
                return
            await self._end()
        self.answer(envelope, Applied())
        await self._answer_waiting()

    async def _end(self) -> None:
        """End the batch, however many memos its tools are just writing."""
        ids = tuple(call.invocation_id for call in self._now.calls)
        self.reached("finalize", "decided")
        mutation = await self._commit_end(ids, FINALIZE_TRIES)
        for execution in self._executions.values():
            execution.invocation.expire("its operation was finalized from outside", ended=True)
        self._apply(mutation.puts)
        self._stop_running()
        self.reached("finalize", "applied")

    async def _commit_end(self, ids: tuple[str, ...], tries: int) -> Mutation:
        (memos,) = await self.system.line.load(Query(MemoRecord, {"invocation_id": ids}))
        mutation = finalize(self._now, memos, self.system.clock.now_ns())
        try:
            await self.system.line.commit(mutation)
        except MutationRefused:
            if tries <= 1:
                raise
            return await self._commit_end(ids, tries - 1)
        return mutation

    # -- looking --

    async def _snapshot(self, envelope: Envelope) -> None:
        rows: list[Running | Settled] = []
        if self._now.open:
            for call in self._now.calls[self._now.placed :]:
                row = await self._row_of(call)
                if row is not None:
                    rows.append(row)
        self.answer(envelope, LaneSnapshot(rows))

    async def _row_of(self, call: CallRecord) -> Running | Settled | None:
        """One call as a reconnecting client sees it; planned and placed ones are not shown."""
        name = (call.invocation_id, call.tool_call_id, call.name)
        if call.status is CallStatus.EFFECT_PENDING:
            execution = self._executions.get(call.source_index)
            if execution is not None:
                progress = execution.progress if execution.reported else None
            else:
                progress = await self._saved_progress(call)
            return Running(*name, None if progress is None else result_of_progress(progress))
        if call.status is CallStatus.OUTCOME_READY:
            await self._fetch_outcomes((call,))
            outcome = self._outcomes.get(call.invocation_id)
            if outcome is None:
                return None  # placed while we looked
            result = result_of_outcome(outcome, terminate=call.terminate)
            return Settled(*name, result, outcome.is_error)
        return None

    # -- small things --

    @property
    def _pane(self) -> str:
        return f"pane:{self._now.batch.pane_id}"

    @property
    def _boundary_batch_id(self) -> str:
        return boundary_batch_id(self._now.batch.operation_id, self._now.batch.turn_id)

    @property
    def _bytes_max(self) -> int:
        return self.system.result_bytes_max
