"""A tool batch's actor: it carries each call from planned to its outcome, and places the outcomes in source order.

Theory of operation
===================

The protocol is `tool_state`; this activation owns the batch's rows (`tool_rows`) and lets four parts work on them:

    clearance ──admissions──▶ executions ──stagings──▶ placement
        │                                      ▲
        └────────synthetic results─────────────┘

* `tool_clearance` asks the pane, the validators and the hooks whether planned calls may run; `tool_execution` runs
  them and takes up what an earlier life began; `tool_placement` turns outcomes into entries, in source order.
* Between them a call travels as a step (`tool_steps`): the next part begins when its step is durable and applied.
  Steps that are ready together share a mutation, so a batch of n costs a few syncs and not n.  Only one step of a
  call is ever under way, so nothing else works on its row.
* What runs the bridge's code is an errand (`tool_errands`): it ends, or is given up a grace after it was told to.
* In a parallel batch all calls are worked on from the start; in a sequential one the next is cleared when the one
  before it is placed.
* Placing, cancelling and ending from outside exclude each other, because all three write the batch's own row.
* A pane or an intent in quarantine holds the batch up: what is durable stays, nothing is run again, those who wait are
  told whom to revive, and the batch goes on by itself once somebody has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final

from fencepost.actors.actor import Actor, System
from fencepost.actors.calls import Call
from fencepost.actors.messages import Applied, Unchanged
from fencepost.actors.tool_calls import (
    AwaitTools,
    CancelBatch,
    FinalizeBatch,
    SnapshotBatch,
    TakeUpBatch,
    WaitForBatch,
)
from fencepost.actors.tool_clearance import Clearance
from fencepost.actors.tool_errands import Errands
from fencepost.actors.tool_execution import Executions
from fencepost.actors.tool_messages import BatchOutcome
from fencepost.actors.tool_placement import Placement
from fencepost.actors.tool_results import entry_view
from fencepost.actors.tool_rows import BatchRows
from fencepost.actors.tool_snapshot import lane_snapshot
from fencepost.actors.tool_state import to_work_on
from fencepost.actors.tool_steps import StepQueue
from fencepost.actors.tool_writes import cancel, finalize
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import (
    ActorQuarantined,
    CorruptRecord,
    InvalidTransition,
    MutationRefused,
    OperationEnded,
)
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import (
    BatchMode,
    CallStatus,
    Checkpoint,
    EntryRecord,
    IncarnationRecord,
    MemoRecord,
)

__all__ = ["ToolBatchActor"]

FINALIZE_TRIES: Final = 100
"""How often a memo may be written between looking for them and ending the batch; each one is of a running tool."""


class ToolBatchActor(Actor):
    """One activation of `batch:<pane_id>/<operation_id>/<turn_id>`."""

    KIND: ClassVar[str] = "batch"

    def __init__(self, address: str, activation: int, system: System) -> None:
        super().__init__(address, activation, system)
        self.echo: str | None = None
        """The startup delivery id of the batch's incarnation: its boundary must show it (protocol-intent 7.4)."""
        self.rows = BatchRows(address, system.line)
        self.errands = Errands(self, on_idle=self._tools_ended)
        self._placement = Placement(self, on_placed=self._after_placement, on_closed=self._after_last_placement)
        self.admissions = StepQueue("admit", self, self.rows, _nothing)
        self.replays = StepQueue("replay", self, self.rows, _nothing)
        self.stagings = StepQueue("stage", self, self.rows, self._placement.look)
        self.executions = Executions(self)
        self._clearance = Clearance(self)
        self._waiting: list[Envelope] = []
        self._awaiting_tools: list[Envelope] = []
        self._held_up_by: Counter[str] = Counter()
        """The quarantined addresses without which something here cannot go on."""
        self._serving: dict[type[Call], Callable[[Envelope], Awaitable[None]]] = {
            TakeUpBatch: self._taken_up,
            AwaitTools: self._await_tools,
            WaitForBatch: self._wait,
            CancelBatch: self._cancel,
            FinalizeBatch: self._finalize,
            SnapshotBatch: self._snapshot,
        }

    # -- life --

    async def load(self) -> None:
        """Read the batch and go on with it; nothing else is read before it is needed."""
        await self.rows.read()
        if not self.rows.open:
            self._tools_ended()
            return
        self._placement.loaded()
        await self.outlives_incarnation()
        self.spawn(self._go_on)

    async def outlives_incarnation(self) -> bool:
        """Whether the incarnation it runs for was retired; then the batch is cancelled on return."""
        batch = self.rows.now.batch
        (rows,) = await self.system.line.load(Query(IncarnationRecord, {"incarnation_id": batch.incarnation_id}))
        if not rows:
            raise CorruptRecord(self.address, f"runs for incarnation {batch.incarnation_id}, which has no row")
        self.echo = rows[0].startup_delivery_id
        if not rows[0].live:
            await self.request_cancel("its incarnation was retired")
        return not rows[0].live

    async def _go_on(self) -> None:
        """Take up every call that can be worked on now, and place what is ready."""
        calls = [self.rows.now.calls[index] for index in to_work_on(self.rows.now)]
        orphans = [call for call in calls if call.status is CallStatus.EFFECT_PENDING]
        planned = [call for call in calls if call.status is CallStatus.PLANNED]
        self._placement.look()
        if orphans:
            await self.executions.take_up(orphans)
        if planned:
            await self._clearance.clear(planned)

    def _after_placement(self) -> None:
        """In a sequential batch it is the next call's turn."""
        if self.rows.now.batch.mode is BatchMode.SEQUENTIAL:
            self.spawn(self._go_on)

    async def _after_last_placement(self, placed: Sequence[EntryRecord]) -> None:
        self._tools_ended()
        await self._answer_waiting(placed)

    @property
    def owes(self) -> bool:
        """An open batch stays awake, and one whose tools have a grace to end."""
        return self.working or self.rows.open or self.errands.busy

    @property
    def finished(self) -> bool:
        """A closed batch has nothing more to do than to answer."""
        return self.rows.exist and not self.rows.open and not self.working and not self.errands.busy

    @property
    def unwinding_seconds(self) -> float:
        """A tool that ignores the end of its activation is abandoned after the grace as well."""
        return self.system.tool_grace_seconds

    def leftovers(self) -> list[Envelope]:
        """Those who wait for the outcome, or for the tools to end."""
        return [*self._waiting, *self._awaiting_tools]

    def crash(self, error: BaseException) -> None:
        """End this activation and its errands: what a tool makes of the death must not become its outcome."""
        super().crash(error)
        self.end_children()

    def end_children(self) -> None:
        """The activation is over: every invocation it handed out expires."""
        self.executions.expire("the activation that ran it has ended")
        super().end_children()

    async def handle(self, envelope: Envelope) -> None:
        """Serve one message."""
        serve = self._serving.get(type(envelope.message))
        if serve is None:
            raise InvalidTransition(f"a batch has no answer to {envelope.message!r}", address=self.address)
        if not self.rows.exist:
            await self.load()  # somebody had asked before the batch was started, and this may be later
        await serve(envelope)

    async def _taken_up(self, envelope: Envelope) -> None:
        self.answer(envelope, None)

    # -- waiting --

    async def held_up_by(self, quarantined: ActorQuarantined) -> None:
        """Tell those who wait, and return once the quarantined address was revived."""
        address = quarantined.address
        self._held_up_by[address] += 1
        waiting, self._waiting = self._waiting, []
        for envelope in waiting:
            envelope.reply.fail(ActorQuarantined(address))
        try:
            await self.system.until_revived(address)
        finally:
            self._held_up_by[address] -= 1

    async def _wait(self, envelope: Envelope) -> None:
        if not self.rows.now.open:
            await self._answer_outcome(envelope, ())
            return
        in_quarantine = (one for one, count in self._held_up_by.items() if count and self.system.in_quarantine(one))
        address = next(in_quarantine, None)
        if address is None:
            # Whoever looks now and then with a timeout of its own must not leave a caller behind each time.
            self._waiting = [one for one in self._waiting if not one.reply.abandoned]
            self._waiting.append(envelope)
        else:
            envelope.reply.fail(ActorQuarantined(address))

    async def _await_tools(self, envelope: Envelope) -> None:
        if self.rows.now.open or self.errands.busy:
            self._awaiting_tools.append(envelope)
        else:
            self.answer(envelope, None)

    def _tools_ended(self) -> None:
        """Tell those who wait for it that the batch is closed and none of its tools is waited for, if it is so."""
        if self.rows.open or self.errands.busy:
            return
        self.system.lingering.pop(self.address, None)
        while self._awaiting_tools:
            self.answer(self._awaiting_tools.pop(0), None)

    async def _answer_waiting(self, placed: Sequence[EntryRecord] = ()) -> None:
        while self._waiting:
            envelope = self._waiting[0]  # stays among the leftovers until it has its answer
            try:
                await self._answer_outcome(envelope, placed)
            except OperationEnded as ended:
                envelope.reply.fail(ended)
            if self._waiting and self._waiting[0] is envelope:
                del self._waiting[0]

    async def _answer_outcome(self, envelope: Envelope, placed: Sequence[EntryRecord]) -> None:
        """Answer with every entry; they are read from the store, unless all of them were `placed` just now."""
        batch = self.rows.now.batch
        if batch.checkpoint is Checkpoint.ENDED or batch.checkpoint is None:
            raise OperationEnded(f"{self.address} was finalized from outside")
        if len(placed) != batch.calls_count:
            seqs = tuple(range(batch.first_entry_seq, batch.first_entry_seq + batch.calls_count))
            query = Query(EntryRecord, {"pane_id": batch.pane_id, "seq": seqs}, order_by=("seq",))
            (placed,) = await self.system.line.load(query)
        self.answer(envelope, BatchOutcome([entry_view(row) for row in placed], batch.checkpoint))

    # -- cancelling --

    async def _cancel(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, CancelBatch)  # the dispatch table says so
        if await self.request_cancel(message.reason):
            self.answer(envelope, Applied())
        else:
            self.answer(envelope, Unchanged())

    async def request_cancel(self, reason: str) -> bool:
        """Commit a cancellation, then stop what runs; False where there is nothing to cancel any more."""
        async with self._placement.writing:
            if self.rows.now.cancelled or not self.rows.now.open:
                return False
            mutation = cancel(self.rows.now, reason, self.system.clock.now_ns())
            self.reached("cancel", "decided")
            await self.system.line.commit(mutation)
            self.rows.apply(mutation.puts)
            self.reached("cancel", "applied")
        self._stop_running()
        return True

    def _stop_running(self) -> None:
        self._clearance.stop()
        self.errands.stop()

    # -- ending from outside --

    async def _finalize(self, envelope: Envelope) -> None:
        async with self._placement.writing:
            if not self.rows.now.open:
                self.answer(envelope, Unchanged())
                return
            await self._end()
        self.answer(envelope, Applied())
        await self._answer_waiting()

    async def _end(self) -> None:
        """End the batch, however many memos its tools are just writing."""
        ids = tuple(call.invocation_id for call in self.rows.now.calls)
        self.system.lingering[self.address] = self.rows.now.batch.pane_id
        self.reached("finalize", "decided")
        mutation = await self._commit_end(ids, FINALIZE_TRIES)
        self.executions.expire("its operation was finalized from outside", ended=True)
        self.rows.apply(mutation.puts)
        self._stop_running()
        self._tools_ended()
        self.reached("finalize", "applied")

    async def _commit_end(self, ids: tuple[str, ...], tries: int) -> Mutation:
        (memos,) = await self.system.line.load(Query(MemoRecord, {"invocation_id": ids}))
        mutation = finalize(self.rows.now, memos, self.system.clock.now_ns())
        try:
            await self.system.line.commit(mutation)
        except MutationRefused:
            if tries <= 1:
                raise
            return await self._commit_end(ids, tries - 1)
        return mutation

    # -- looking --

    async def _snapshot(self, envelope: Envelope) -> None:
        self.answer(envelope, await lane_snapshot(self.rows, self.executions))


def _nothing() -> None:
    """What follows from admissions and replays follows from each of them alone."""
