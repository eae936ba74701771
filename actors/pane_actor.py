"""A pane's actor: the one place where everything about a pane is decided, one call at a time.

The decisions are pure (`boundary`, `incarnation_state`, `pane_state` and what that names); this shell finds what they
must look at, commits what they say, applies it, and answers.

* What a decision touches of an intent travels to that intent's actor, which adds its own part (`joining`).  If an
  intent's actor dies on the way, nobody here knows whether the commit happened, so the pane reads itself from the
  store again and its caller gets `ActorCrashed`.
* What the pane knows without asking the store is its memory (`pane_memory`).
* A call that must wait for a reconciliation is *parked*: its reply slot is kept, the actor goes on (`pane_waiting`).
  When the reconciliation ends, when its budget is spent, or when its incarnation is retired, it is decided again.
* Launches, retirements and the Launcher are served by `pane_incarnations`, tool batches by `pane_batches`, deliveries
  out and in by `pane_deliveries`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import ClassVar

from fencepost.actors.actor import ANSWERS, Actor, System
from fencepost.actors.boundary import Boundary, decide_boundary
from fencepost.actors.calls import (
    AttemptFailed,
    Detect,
    DiscardIntent,
    EnsureAttempt,
    GiveUpWaiting,
    LaunchFailed,
    LaunchHarness,
    OutcomeReported,
    PostToolBatch,
    PreparePayload,
    PreToolUse,
    RearmIntent,
    ReportDelivered,
    ResolveIntent,
    RetireIncarnation,
    StartupReady,
    StopFailed,
    SyncStatusQuery,
    ToolsEnded,
    Withdraw,
)
from fencepost.actors.decision import Decision, Replace, RetiredIncarnation
from fencepost.actors.delivery_calls import DeliveryCall
from fencepost.actors.joining import chained, join
from fencepost.actors.messages import BlockRestart, DetectedIntent, Reconciled, ToolBoundary
from fencepost.actors.pane_batches import PaneBatches
from fencepost.actors.pane_deliveries import PaneDeliveries
from fencepost.actors.pane_detection import decide_detect
from fencepost.actors.pane_incarnations import PaneIncarnations
from fencepost.actors.pane_memory import DamageElsewhere, PaneMemory
from fencepost.actors.pane_outcome import decide_outcome
from fencepost.actors.pane_reports import decide_batch_completed, decide_mark_delivered
from fencepost.actors.pane_resolution import decide_discard, decide_rearm, decide_resolve
from fencepost.actors.pane_state import PaneState
from fencepost.actors.pane_waiting import Waiting
from fencepost.actors.tool_calls import PlaceResults, StartBatch
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import (
    ActorCrashed,
    ActorQuarantined,
    CorruptRecord,
    InvalidTransition,
    MutationRefused,
)
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import AdmissionDecision, AdmissionRecord, IntentState, TriggerRecord

__all__ = ["PaneActor"]


class PaneActor(Actor):
    """One activation of `pane:<pane_id>`."""

    KIND: ClassVar[str] = "pane"

    def __init__(self, address: str, activation: int, system: System) -> None:
        super().__init__(address, activation, system)
        self.pane_id = address.partition(":")[2]
        self.memory = PaneMemory(self.pane_id, system.line)
        self.waiting = Waiting(self, self._decide_parked)
        self._incarnations = PaneIncarnations(self)
        self.batches = PaneBatches(self)
        self._deliveries = PaneDeliveries(self, self.pane_id, lambda: self.state.live)

    @property
    def state(self) -> PaneState:
        """The pane as stored."""
        return self.memory.state

    @property
    def left_alone(self) -> bool:
        """Whether the head is in quarantine: nobody is to wait for what only its revival can bring."""
        head = self.state.head
        return head is not None and self.system.in_quarantine(f"intent:{head.intent_id}")

    def mint(self, kind: str) -> str:
        """A fresh id of this kind, for a decision."""
        return self.system.ids.new_id(kind)

    # -- life --

    async def load(self) -> None:
        """Read the pane from the store and take up what an earlier activation left undone."""
        await self.memory.load()
        head = self.state.head
        if head is not None and head.state is IntentState.RECONCILING:
            self.spawn(self._ensure_attempt, head.intent_id)
        await self.batches.take_up()
        await self._incarnations.recover()
        await self._deliveries.load()

    async def _ensure_attempt(self, intent_id: str) -> None:
        with suppress(ActorQuarantined):  # its revival starts it, and that resumes the attempt
            await self.system.ask(f"intent:{intent_id}", EnsureAttempt())

    @property
    def owes(self) -> bool:
        """Parked callers, a relaunch, an unproved startup, and a process that would not stop keep a pane awake."""
        return bool(self.waiting) or self.working or self._incarnations.owes or self._deliveries.owes

    def leftovers(self) -> list[Envelope]:
        """The parked callers of a dying activation."""
        return [*self._incarnations.held, *self.waiting, *self._deliveries.leftovers()]

    async def handle(self, envelope: Envelope) -> None:
        """Serve one call; then decide parked calls again if this one changed what they wait for."""
        await self._guarded(envelope, self._dispatch(envelope))
        while self.waiting.recheck:
            await self.waiting.settle(None if self.state.head is None else self.state.head.batch_id)

    async def _dispatch(self, envelope: Envelope) -> None:
        match envelope.message:
            case PreToolUse() as message:
                await self._pre_tool_use(envelope, message)
            case PostToolBatch() as message:
                await self._post_tool_batch(envelope, message)
            case ReportDelivered() as message:
                await self._mark_delivered(envelope, message)
            case Detect() as message:
                await self._detect(envelope, message)
            case LaunchHarness() as message:
                await self._incarnations.launch(envelope, message)
            case StartupReady() as message:
                await self._incarnations.startup_ready(envelope, message)
            case LaunchFailed() as message:
                await self._incarnations.launch_failed(envelope, message)
            case RetireIncarnation() as message:
                await self._incarnations.retire(envelope, message)
            case Withdraw():
                await self._incarnations.withdraw(envelope)
            case StopFailed() as message:
                await self._incarnations.stop_failed(envelope, message)
            case PreparePayload():
                await self._incarnations.prepare_payload(envelope)
            case RearmIntent() as message:
                await self._rearm(envelope, message)
            case DiscardIntent() as message:
                await self._discard(envelope, message)
            case ResolveIntent() as message:
                await self._resolve(envelope, message)
            case SyncStatusQuery():
                await self._sync_status(envelope)
            case OutcomeReported() as message:
                await self._outcome_reported(envelope, message)
            case AttemptFailed() as message:
                await self._attempt_failed(envelope, message)
            case GiveUpWaiting() as message:
                await self._give_up_waiting(envelope, message)
            case ToolsEnded() as message:
                await self._tools_ended(envelope, message)
            case StartBatch() as message:
                await self.batches.start(envelope, message)
            case PlaceResults() as message:
                await self.batches.place(envelope, message)
            case DeliveryCall():
                await self._deliveries.serve(envelope)
            case other:
                raise InvalidTransition(f"a pane has no answer to {other!r}", address=self.address)

    async def _guarded(self, envelope: Envelope, serving: Awaitable[None]) -> None:
        """Serve one caller; what goes wrong with its call is its own, the pane lives on."""
        try:
            await serving
        except ANSWERS as error:
            envelope.reply.fail(error)
        except ActorCrashed as crash:
            # An intent died with our part in its hands; whether that was committed only the store knows.
            await self.memory.load()
            self._make_up_for_unseen()
            envelope.reply.fail(crash)
        except DamageElsewhere as damage:
            envelope.reply.fail(damage.__cause__ or damage)
        except ActorQuarantined as quarantined:
            # The intent was never asked, and a chain is asked from its front: nothing was committed.
            envelope.reply.fail(quarantined)

    # -- committing --

    async def commit(
        self,
        transition: str,
        decision: Decision,
        *,
        reported: OutcomeReported | None = None,
        before: Mutation | None = None,
    ) -> None:
        """Make a decision durable, then apply it, then carry its effects out.

        `reported` is the outcome it is about, if it is about one; `before` is another actor's part.
        """
        self.reached(transition, "decided")
        if not decision.writes and before is None:
            return
        part = Mutation(
            label=f"pane.{transition}",
            puts=decision.puts,
            events=decision.events,
            dead_letters=decision.dead_letters,
        )
        if before is not None:
            part = before.joined(part)
        if decision.intent_events:
            links = chained(decision.intent_events, reported)
            puts = await join(self.system, links, part, self.system.clock.now_ns())
        else:
            await self.system.line.commit(part)
            puts = part.puts
        await self.memory.apply(puts)
        self.reached(transition, "applied")
        self._act(decision)

    def _act(self, decision: Decision) -> None:
        for effect in decision.effects:
            match effect:
                case RetiredIncarnation():
                    self.memory.forget_admissions()
                    self.waiting.recheck = True
                    self.spawn(self.batches.take_up)
                case Replace():
                    self._incarnations.resume_relaunching()

    def _make_up_for_unseen(self) -> None:
        """Carry out whatever effects a commit may have had that was not seen; here, each follows from the rows too."""
        self.waiting.recheck = True
        self.spawn(self.batches.take_up)
        self._incarnations.resume_relaunching()

    async def decide(self, envelope: Envelope, decision: Decision) -> None:
        """Commit a decision and answer its caller: the whole life of most calls."""
        await self.commit(envelope.message.CALL, decision)
        self.answer(envelope, decision.answer)

    # -- tool calls --

    async def _pre_tool_use(self, envelope: Envelope, message: PreToolUse) -> None:
        if not envelope.reply.abandoned:  # nobody would hear of it, and it might bind an intent to a batch that is over
            await self._boundary(envelope, message, patient=message.wait_seconds > 0)

    async def _boundary(self, envelope: Envelope, message: PreToolUse, *, patient: bool, parked: bool = False) -> None:
        """Decide a tool call until it has an answer or is parked; an acknowledgement is not an answer."""
        while True:
            boundary = await self._describe(message.boundary, patient=patient and not self.left_alone)
            decision = decide_boundary(self.state, boundary)
            if isinstance(decision.answer, BlockRestart) and await self.memory.recalled(message.boundary):
                continue  # a restart writes no admission, so the store would not contradict it
            try:
                await self.commit("pre_tool_use", decision)
            except MutationRefused as refused:
                if refused.table != AdmissionRecord.TABLE or not await self.memory.recalled(message.boundary):
                    raise
                continue
            if boundary.tools_running:
                self.batches.watch()
            if decision.park is not None:
                if not parked:
                    self.waiting.park(envelope, decision.park, message.wait_seconds)
                return
            if not decision.again:
                self.answer(envelope, decision.answer)
                return

    async def _describe(self, call: ToolBoundary, *, patient: bool) -> Boundary:
        """Everything the pure decision needs to know about a call."""
        admission = self.memory.admission(call)
        blocked_by = None
        if admission is not None and admission.intent_id is not None:
            blocked_by = await self.memory.intent(admission.intent_id)
        running = await self._tools_running(call, admission)
        return Boundary(
            call=call,
            speaker=await self.memory.speaker(call.incarnation_id),
            admission=admission,
            blocked_by=blocked_by,
            tools_running=bool(running),
            patient=patient and not any(map(self.system.in_quarantine, running)),  # that end is a person's matter
            limits=self.system.limits,
            now=self.system.clock.now_ns(),
            mint=self.mint,
        )

    async def _tools_running(self, call: ToolBoundary, admission: AdmissionRecord | None) -> list[str]:
        """The addresses of other batches whose tools may still run; asked only where the answer could matter."""
        head = self.state.head
        if head is None or head.state is not IntentState.DETECTED:
            return []
        if admission is not None and admission.decision is AdmissionDecision.PASS:
            return []
        return await self.batches.running(call)

    async def _post_tool_batch(self, envelope: Envelope, message: PostToolBatch) -> None:
        decision = decide_batch_completed(
            self.state,
            await self.memory.speaker(message.incarnation_id),
            incarnation_id=message.incarnation_id,
            turn_id=message.turn_id,
            batch_id=message.batch_id,
            now=self.system.clock.now_ns(),
        )
        await self.decide(envelope, decision)

    async def _mark_delivered(self, envelope: Envelope, message: ReportDelivered) -> None:
        decision = decide_mark_delivered(
            self.state,
            await self.memory.speaker(message.incarnation_id),
            await self.memory.intent(message.intent_id),
            intent_id=message.intent_id,
            incarnation_id=message.incarnation_id,
            turn_id=message.turn_id,
            batch_id=message.batch_id,
            now=self.system.clock.now_ns(),
        )
        await self.decide(envelope, decision)

    # -- behind a reconciliation --

    async def _decide_parked(self, envelope: Envelope, patient: bool) -> None:
        """Decide again a call that waits."""
        message = envelope.message
        if isinstance(message, PreToolUse):
            serving = self._boundary(envelope, message, patient=patient, parked=True)
        else:
            serving = self._incarnations.decide_parked(envelope, patient=patient)
        await self._guarded(envelope, serving)

    async def _give_up_waiting(self, envelope: Envelope, message: GiveUpWaiting) -> None:
        await self.waiting.give_up(message.ticket)
        envelope.reply.answer(None)

    async def _outcome_reported(self, envelope: Envelope, message: OutcomeReported) -> None:
        """A reconciliation ended: prepare or block, then serve those who waited."""
        intent = await self.memory.intent(message.intent_id)
        if intent is None:
            raise CorruptRecord(f"intent:{message.intent_id}", "was reconciled but has no row")
        known: frozenset[str] = frozenset()
        outcome = message.outcome
        if isinstance(outcome, Reconciled) and outcome.discovered:
            operations = tuple(transition.trigger_op for transition in outcome.discovered)
            query = Query(TriggerRecord, {"pane_id": self.pane_id, "operation_id": operations})
            (rows,) = await self.system.line.load(query)
            known = frozenset(row.operation_id for row in rows)
        now, limits = self.system.clock.now_ns(), self.system.limits
        decision = decide_outcome(self.state, intent, outcome, known, limits, now, self.mint)
        await self.commit("reconciled", decision, reported=message)
        self.answer(envelope, decision.answer)
        self.waiting.recheck = True
        self._incarnations.resume_relaunching()

    async def _attempt_failed(self, envelope: Envelope, message: AttemptFailed) -> None:
        """The reconciler raised: nobody waits for it any longer, and nobody is let through."""
        self.waiting.lose_patience(message.intent_id)
        self.answer(envelope, None)

    async def _tools_ended(self, envelope: Envelope, message: ToolsEnded) -> None:
        """What the head waited for with its reconciliation is over; or it is not to be waited for."""
        if message.held_up is None:
            self.waiting.recheck = True
            self._incarnations.resume_relaunching()
        elif self.state.head is not None:
            self.waiting.lose_patience(self.state.head.intent_id)
        self.answer(envelope, None)

    # -- detection and a human's word --

    async def _detect(self, envelope: Envelope, message: Detect) -> None:
        if self.system.reconciler is None:
            raise InvalidTransition(
                "detect needs a Reconciler: open the runtime with reconciler=…", event="detect", address=self.address
            )
        decision = decide_detect(self.state, message.transition, self.system.clock.now_ns(), self.mint)
        try:
            await self.decide(envelope, decision)
        except MutationRefused as refused:
            if refused.table != TriggerRecord.TABLE:
                raise
            await self._seen_before(envelope, message.transition.trigger_op)

    async def _seen_before(self, envelope: Envelope, trigger_op: str) -> None:
        trigger = await self.memory.find(TriggerRecord, pane_id=self.pane_id, operation_id=trigger_op)
        intent = None if trigger is None else await self.memory.intent(trigger.intent_id)
        if intent is None:
            raise CorruptRecord(self.address, f"trigger {trigger_op!r} exists and its intent cannot be read")
        self.answer(envelope, DetectedIntent(intent.intent_id, intent.seq, coalesced=False))

    async def _resolve(self, envelope: Envelope, message: ResolveIntent) -> None:
        now = self.system.clock.now_ns()
        decision = decide_resolve(
            self.state,
            message.intent_id,
            message.resolution,
            message.by,
            now,
            await self.memory.resolved(message.intent_id),
        )
        await self.decide(envelope, decision)

    async def _rearm(self, envelope: Envelope, message: RearmIntent) -> None:
        over = await self.memory.resolved(message.intent_id)
        await self.decide(envelope, decide_rearm(self.state, message.intent_id, self.system.clock.now_ns(), over))

    async def _discard(self, envelope: Envelope, message: DiscardIntent) -> None:
        now = self.system.clock.now_ns()
        over = await self.memory.resolved(message.intent_id)
        await self.decide(envelope, decide_discard(self.state, message.intent_id, message.approval, now, over))

    async def _sync_status(self, envelope: Envelope) -> None:
        self.answer(envelope, self.state.sync_status())
