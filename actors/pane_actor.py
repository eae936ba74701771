"""A pane's actor: the one place where everything about a pane is decided, one call at a time.

The decisions are pure (`boundary`, `incarnation_state`, `pane_state`); this shell finds what they must look at,
commits what they say, applies it, and answers.

* What a decision touches of an intent travels to that intent's actor as a `Join`; the last one of the chain commits
  both parts as one mutation.  If an intent's actor dies on the way, nobody here knows whether the commit happened, so
  the pane reads itself from the store again and its caller gets `ActorCrashed`.
* Admissions are looked up in a bounded memory of the latest batches.  A miss is treated as a new batch: if the store
  knows better it refuses the insert, the stored admission is read, and the call is decided again.
* A call that must wait for a reconciliation is *parked*: its reply slot is kept, the actor goes on.  When the
  reconciliation ends, when its budget is spent, or when its incarnation is retired, it is decided again.
* With a Launcher, replacing a process takes as long as stopping one does; that runs in a child task, which speaks to
  this actor by messages (`relaunch`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import ClassVar, Final, TypeVar

import trio
from attrs import define, evolve

from fencepost.actors.actor import ANSWERS, Actor, System
from fencepost.actors.boundary import Boundary, decide_boundary
from fencepost.actors.calls import (
    AttemptFailed,
    Call,
    Detect,
    DiscardIntent,
    EnsureAttempt,
    GiveUpWaiting,
    Join,
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
    SyncStatusQuery,
    Withdraw,
)
from fencepost.actors.decision import Decision, Replace, RetiredIncarnation
from fencepost.actors.incarnation_state import (
    LaunchRequest,
    begin_unattended,
    check_launch,
    decide_discard,
    decide_handshake,
    decide_launch,
    decide_launch_failed,
    decide_rearm,
    decide_retire,
    give_up,
    needs_payload_first,
    unproved,
    withdraw,
)
from fencepost.actors.messages import (
    BlockRestart,
    DetectedIntent,
    Reconciled,
    SyncStatus,
    ToolBoundary,
)
from fencepost.actors.pane_state import (
    PaneState,
    decide_batch_completed,
    decide_detect,
    decide_mark_delivered,
    decide_outcome,
    decide_placement,
    decide_resolve,
)
from fencepost.actors.relaunch import Relauncher
from fencepost.actors.tool_calls import CancelBatch, PlaceResults, StartBatch
from fencepost.actors.tool_plan import judge_repeated, plan
from fencepost.mailbox.address import Address
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import (
    ActorCrashed,
    ActorQuarantined,
    CorruptRecord,
    InvalidTransition,
    LaunchBlocked,
    MutationRefused,
)
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import (
    UNRESOLVED_STATES,
    AdmissionRecord,
    BatchMode,
    BatchRecord,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    Record,
    TriggerRecord,
)

__all__ = ["PaneActor"]

ADMISSIONS_KEPT: Final = 256
"""How many batches a pane remembers without asking the store; more than any harness has under way."""

STRANGERS_KEPT: Final = 64
"""How many retired incarnations a pane remembers, so that a chatty zombie costs no read each time."""

R = TypeVar("R", bound=Record)


@define(eq=False)
class _Parked:
    """A caller that waits behind the reconciliation of `intent_id`."""

    envelope: Envelope
    intent_id: str
    gives_up_at: float
    """On trio's clock; infinity for one that waits for as long as it takes."""
    patient: bool = True


class PaneActor(Actor):
    """One activation of `pane:<pane_id>`."""

    KIND: ClassVar[str] = "pane"

    def __init__(self, address: str, activation: int, system: System) -> None:
        super().__init__(address, activation, system)
        self.pane_id = address.partition(":")[2]
        self.state = PaneState(pane_id=self.pane_id)
        self._admissions: OrderedDict[tuple[object, ...], AdmissionRecord] = OrderedDict()
        self._strangers: OrderedDict[str, IncarnationRecord | None] = OrderedDict()
        self._parked: dict[int, _Parked] = {}
        self._tickets = 0
        self._alarm: trio.CancelScope | None = None
        """Ends with the first budget of those that are parked."""
        self._recheck = False
        self._relauncher = None if system.launcher is None else Relauncher(self, system.launcher)
        self._serving: dict[type[Call], Callable[[Envelope], Awaitable[None]]] = {
            PreToolUse: self._pre_tool_use,
            PostToolBatch: self._post_tool_batch,
            ReportDelivered: self._mark_delivered,
            Detect: self._detect,
            LaunchHarness: self._launch,
            StartupReady: self._startup_ready,
            LaunchFailed: self._launch_failed,
            RetireIncarnation: self._retire,
            RearmIntent: self._rearm,
            DiscardIntent: self._discard,
            ResolveIntent: self._resolve,
            SyncStatusQuery: self._sync_status,
            OutcomeReported: self._outcome_reported,
            AttemptFailed: self._attempt_failed,
            GiveUpWaiting: self._give_up_waiting,
            Withdraw: self._withdraw,
            PreparePayload: self._prepare_payload,
            StartBatch: self._start_batch,
            PlaceResults: self._place_results,
        }

    # -- life --

    async def load(self) -> None:
        """Read the pane from the store and take up what an earlier activation left undone."""
        self.state = await self._read()
        head = self.state.head
        if head is not None and head.state is IntentState.RECONCILING:
            self.spawn(self._ensure_attempt, head.intent_id)
        await self._cancel_orphaned_batch()
        await self._recover_launch()

    async def _read(self) -> PaneState:
        pane = {"pane_id": self.pane_id}
        unresolved = tuple(state.value for state in UNRESOLVED_STATES)
        incarnations, intents, newest = await self.system.line.load(
            Query(IncarnationRecord, pane, order_by=("epoch",), descending=True, limit=1),
            Query(IntentRecord, {**pane, "state": unresolved}, order_by=("seq",)),
            Query(IntentRecord, pane, order_by=("seq",), descending=True, limit=1),
        )
        state = PaneState(pane_id=self.pane_id).after([*_only(IncarnationRecord, incarnations)])
        state = state.after(intent.require_intact() for intent in _only(IntentRecord, intents))
        last = _only(IntentRecord, newest)
        if last:
            state = evolve(state, seq_last=last[0].seq)
        return await self._with_tail_triggers(state)

    async def _with_tail_triggers(self, state: PaneState) -> PaneState:
        """The state with the newest intent's triggers counted."""
        if not state.intents:
            return state
        (triggers,) = await self.system.line.load(Query(TriggerRecord, {"intent_id": state.intents[-1].intent_id}))
        return evolve(state, tail_triggers=len(triggers))

    async def _recover_launch(self) -> None:
        """With a Launcher, a startup nobody can vouch for is given up, and a wished-for successor is started (I-16)."""
        if self._relauncher is None:
            return
        if unproved(self.state):
            now = self.system.clock.now_ns()
            reason = "unproved when the pane was recovered"
            await self._commit(
                "recover", give_up(self.state, reason, self.system.limits, now, self._mint, replace=True)
            )
        else:
            self._relauncher.resume()

    async def _ensure_attempt(self, intent_id: str) -> None:
        with suppress(ActorQuarantined):  # its revival starts it, and that resumes the attempt
            await self.system.ask(f"intent:{intent_id}", EnsureAttempt())

    @property
    def owes(self) -> bool:
        """Parked callers, a relaunch, an unproved startup, and a process that would not stop keep a pane awake."""
        if self._parked or self.working:
            return True
        return self._relauncher is not None and (self._relauncher.stop_failed or unproved(self.state))

    def leftovers(self) -> list[Envelope]:
        """The parked callers of a dying activation."""
        held = [] if self._relauncher is None else self._relauncher.held
        return [*held, *(parked.envelope for parked in self._parked.values())]

    async def handle(self, envelope: Envelope) -> None:
        """Serve one call; then decide parked calls again if this one changed what they wait for."""
        serve = self._serving.get(type(envelope.message))
        if serve is None:
            raise InvalidTransition(f"a pane has no answer to {envelope.message!r}", address=self.address)
        await self._guarded(envelope, serve(envelope))
        while self._recheck:
            await self._settle_parked()

    async def _guarded(self, envelope: Envelope, serving: Awaitable[None]) -> None:
        """Serve one caller; what goes wrong with its call is its own, the pane lives on."""
        try:
            await serving
        except ANSWERS as error:
            envelope.reply.fail(error)
        except ActorCrashed as crash:
            # An intent died with our part in its hands; whether that was committed only the store knows.
            self.state = await self._read()
            self._admissions.clear()
            self._recheck = True
            self._resume_relaunching()  # the one effect that a commit we did not see may have left to us
            envelope.reply.fail(crash)
        except ActorQuarantined as quarantined:
            # The intent was never asked, and a chain is asked from its front: nothing was committed.
            envelope.reply.fail(quarantined)

    def _mint(self, kind: str) -> str:
        return self.system.ids.new_id(kind)

    # -- looking things up --

    async def _find(self, record_type: type[R], **where: str) -> R | None:
        (rows,) = await self.system.line.load(Query(record_type, where))
        found = _only(record_type, rows)
        return found[0] if found else None

    async def _speaker(self, incarnation_id: str) -> IncarnationRecord | None:
        """The incarnation a call names: the live one from memory, any other from the store."""
        latest = self.state.latest
        if latest is not None and latest.incarnation_id == incarnation_id:
            return latest
        if incarnation_id in self._strangers:
            return self._strangers[incarnation_id]
        found = await self._find(IncarnationRecord, incarnation_id=incarnation_id)
        if found is not None and not found.live and found.pane_id == self.pane_id:
            self._strangers[incarnation_id] = found
            if len(self._strangers) > STRANGERS_KEPT:
                self._strangers.popitem(last=False)
        return found

    async def _intent(self, intent_id: str) -> IntentRecord | None:
        """An intent of this or another pane: an unresolved one from memory, any other from the store."""
        known = self.state.find(intent_id)
        if known is not None:
            return known
        found = await self._find(IntentRecord, intent_id=intent_id)
        return None if found is None else found.require_intact()

    async def _over(self, intent_id: str) -> IntentRecord | None:
        """The intent, if it is one of this pane's that is resolved."""
        intent = await self._intent(intent_id)
        return intent if intent is not None and intent.pane_id == self.pane_id and intent.resolved else None

    def _remember(self, admission: AdmissionRecord) -> None:
        self._admissions[admission.key] = admission
        if len(self._admissions) > ADMISSIONS_KEPT:
            self._admissions.popitem(last=False)

    # -- committing --

    async def _commit(
        self,
        transition: str,
        decision: Decision,
        activation: tuple[int, int] | None = None,
        *,
        before: Mutation | None = None,
    ) -> None:
        """Make a decision durable, then apply it, then carry its effects out; `before` is another actor's part."""
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
            puts = await self._join(part, decision, activation)
        else:
            await self.system.line.commit(part)
            puts = part.puts
        self.state = self.state.after(puts)
        if self.state.tail_triggers is None:
            self.state = await self._with_tail_triggers(self.state)
        for record in puts:
            if isinstance(record, AdmissionRecord):
                self._remember(record)
        self.reached(transition, "applied")
        self._act(decision)

    async def _join(self, part: Mutation, decision: Decision, activation: tuple[int, int] | None) -> tuple[Record, ...]:
        """Hand our part along the intents; the last one commits the whole."""
        (seen, event), *rest = decision.intent_events
        then = tuple(later for intent, later in rest if intent.intent_id == seen.intent_id)
        rest = [(intent, later) for intent, later in rest if intent.intent_id != seen.intent_id]
        message = Join(
            event=event,
            then=then,
            seen=seen,
            part=part,
            rest=tuple(rest),
            activation=activation,
            now=self.system.clock.now_ns(),
        )
        answer = await self.system.ask(f"intent:{seen.intent_id}", message)
        if not isinstance(answer, tuple):
            raise CorruptRecord(self.address, f"a join was answered with {answer!r}")
        return answer

    def _act(self, decision: Decision) -> None:
        for effect in decision.effects:
            match effect:
                case RetiredIncarnation():
                    self._admissions.clear()
                    self._recheck = True
                    self.spawn(self._cancel_orphaned_batch)
                case Replace():
                    self._resume_relaunching()

    async def _decide(self, envelope: Envelope, decision: Decision) -> None:
        """Commit a decision and answer its caller: the whole life of most calls."""
        await self._commit(envelope.message.CALL, decision)
        self.answer(envelope, decision.answer)

    # -- tool calls --

    async def _pre_tool_use(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, PreToolUse)
        await self._boundary(envelope, message, patient=message.wait_seconds > 0)

    async def _boundary(
        self, envelope: Envelope, message: PreToolUse, *, patient: bool, parked: _Parked | None = None
    ) -> None:
        """Decide a tool call until it has an answer or is parked; an acknowledgement is not an answer."""
        while True:
            boundary = await self._describe(message.boundary, patient=patient)
            decision = decide_boundary(self.state, boundary)
            if isinstance(decision.answer, BlockRestart) and await self._recalled(message.boundary):
                continue  # a restart writes no admission, so the store would not contradict it
            try:
                await self._commit("pre_tool_use", decision)
            except MutationRefused as refused:
                if refused.table != AdmissionRecord.TABLE or not await self._recalled(message.boundary):
                    raise
                continue
            if decision.park is not None:
                self._park(envelope, decision.park, message.wait_seconds, parked)
                return
            if not decision.again:
                self.answer(envelope, decision.answer)
                return

    async def _describe(self, call: ToolBoundary, *, patient: bool) -> Boundary:
        """Everything the pure decision needs to know about a call."""
        admission = self._admissions.get(_batch_key(call))
        blocked_by = None
        if admission is not None and admission.intent_id is not None:
            blocked_by = await self._intent(admission.intent_id)
        return Boundary(
            call=call,
            speaker=await self._speaker(call.incarnation_id),
            admission=admission,
            blocked_by=blocked_by,
            patient=patient,
            limits=self.system.limits,
            now=self.system.clock.now_ns(),
            mint=self._mint,
        )

    async def _recalled(self, call: ToolBoundary) -> bool:
        """Whether the store knows a first decision of this batch that we had forgotten; then we know it again."""
        incarnation_id, turn_id, batch_id = _batch_key(call)
        if (incarnation_id, turn_id, batch_id) in self._admissions:
            return False
        found = await self._find(AdmissionRecord, incarnation_id=incarnation_id, turn_id=turn_id, batch_id=batch_id)
        if found is not None:
            self._remember(found)
        return found is not None

    async def _post_tool_batch(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, PostToolBatch)
        decision = decide_batch_completed(
            self.state,
            await self._speaker(message.incarnation_id),
            incarnation_id=message.incarnation_id,
            turn_id=message.turn_id,
            batch_id=message.batch_id,
            now=self.system.clock.now_ns(),
        )
        await self._decide(envelope, decision)

    async def _mark_delivered(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, ReportDelivered)
        decision = decide_mark_delivered(
            self.state,
            await self._speaker(message.incarnation_id),
            await self._intent(message.intent_id),
            intent_id=message.intent_id,
            incarnation_id=message.incarnation_id,
            turn_id=message.turn_id,
            batch_id=message.batch_id,
            now=self.system.clock.now_ns(),
        )
        await self._decide(envelope, decision)

    # -- tool batches (design section 8) --

    async def _start_batch(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, StartBatch)
        request = message.request
        address = str(Address.batch(self.pane_id, request.operation_id, request.turn.id))
        pane = {"pane_id": self.pane_id}
        same, opened, newest = await self.system.line.load(
            Query(BatchRecord, {"address": address}),
            Query(BatchRecord, {**pane, "checkpoint": None}),
            Query(BatchRecord, pane, order_by=("seq",), descending=True, limit=1),
        )
        if same:
            judge_repeated(same[0], request)
        else:
            tools = [self.system.tools.get(call.name) for call in request.calls]
            in_turn = any(tool is not None and tool.mode is BatchMode.SEQUENTIAL for tool in tools)
            mutation = plan(
                self.pane_id,
                request,
                live=self.state.live,
                open_batch=opened[0] if opened else None,
                latest=newest[0] if newest else None,
                mode=BatchMode.SEQUENTIAL if in_turn else request.mode,
                now=self.system.clock.now_ns(),
                mint=self._mint,
            )
            self.reached("start_batch", "decided")
            await self.system.line.commit(mutation)
            self.reached("start_batch", "applied")
        self.system.wake(address)
        self.answer(envelope, None)

    async def _place_results(self, envelope: Envelope) -> None:
        """Commit a batch's placement with what it means for our intents: a delivery, a completed batch, or nothing."""
        message = envelope.message
        assert isinstance(message, PlaceResults)
        decision = decide_placement(
            self.state,
            await self._speaker(message.incarnation_id),
            None if message.delivers is None else await self._intent(message.delivers),
            incarnation_id=message.incarnation_id,
            turn_id=message.turn_id,
            batch_id=message.batch_id,
            completes=message.completes,
            now=self.system.clock.now_ns(),
        )
        await self._commit("place_results", decision, before=message.part)
        self.answer(envelope, None)

    async def _cancel_orphaned_batch(self) -> None:
        """A batch runs for one incarnation, and ends with it (contract T-5)."""
        query = Query(BatchRecord, {"pane_id": self.pane_id, "checkpoint": None})
        (opened,) = await self.system.line.load(query)
        for batch in opened:
            if not self.state.is_live(batch.incarnation_id):
                self.spawn(self._cancel_batch, batch.address)

    async def _cancel_batch(self, address: str) -> None:
        with suppress(ActorCrashed, ActorQuarantined):  # its next activation sees for itself
            await self.system.ask(address, CancelBatch("its incarnation was retired"))

    # -- waiting behind a reconciliation --

    def _park(self, envelope: Envelope, intent_id: str, wait_seconds: float, parked: _Parked | None) -> None:
        """Keep the caller for later; its budget runs from the first time it is parked."""
        if parked is not None:
            return
        self._tickets += 1
        gives_up_at = trio.current_time() + wait_seconds
        self._parked[self._tickets] = _Parked(envelope, intent_id, gives_up_at)
        if self._alarm is not None:
            self._alarm.deadline = min(self._alarm.deadline, gives_up_at)
        elif math.isfinite(gives_up_at):
            self._alarm = trio.CancelScope(deadline=gives_up_at)
            self.spawn(self._watch_budgets, self._alarm, daemon=True)

    async def _watch_budgets(self, alarm: trio.CancelScope) -> None:
        """Tell the actor whose budget is spent: one task for all who are parked, and for those parked meanwhile."""
        while True:
            with alarm:
                await trio.sleep_forever()
            patient = {ticket: parked.gives_up_at for ticket, parked in self._parked.items() if parked.patient}
            for ticket, gives_up_at in patient.items():
                if gives_up_at <= trio.current_time():
                    await self.system.ask(self.address, GiveUpWaiting(ticket))
            first = min((parked.gives_up_at for parked in self._parked.values() if parked.patient), default=math.inf)
            if not math.isfinite(first):
                self._alarm = None
                return
            self._alarm = alarm = trio.CancelScope(deadline=first)

    async def _give_up_waiting(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, GiveUpWaiting)
        parked = self._parked.get(message.ticket)
        if parked is not None:
            parked.patient = False
            await self._decide_parked(message.ticket, parked)
        envelope.reply.answer(None)

    async def _settle_parked(self) -> None:
        """Something the parked callers wait for has changed: decide each again, first come first served.

        Those of the bound batch come first: what a later batch gets may bind the intent to that one instead.
        """
        self._recheck = False
        for ticket, parked in sorted(self._parked.items(), key=self._of_another_batch):
            await self._decide_parked(ticket, parked)

    def _of_another_batch(self, ticket_and_parked: tuple[int, _Parked]) -> bool:
        head, message = self.state.head, ticket_and_parked[1].envelope.message
        return head is None or not isinstance(message, PreToolUse) or message.boundary.batch_id != head.batch_id

    async def _decide_parked(self, ticket: int, parked: _Parked) -> None:
        envelope, message = parked.envelope, parked.envelope.message
        if not envelope.reply.abandoned:
            if isinstance(message, PreToolUse):
                serving = self._boundary(envelope, message, patient=parked.patient, parked=parked)
            else:
                serving = self._launch_parked(envelope, patient=parked.patient)
            await self._guarded(envelope, serving)
        if envelope.reply.settled or envelope.reply.abandoned:
            self._parked.pop(ticket, None)

    async def _outcome_reported(self, envelope: Envelope) -> None:
        """A reconciliation ended: prepare or block, then serve those who waited."""
        message = envelope.message
        assert isinstance(message, OutcomeReported)
        intent = await self._intent(message.intent_id)
        if intent is None:
            raise CorruptRecord(f"intent:{message.intent_id}", "was reconciled but has no row")
        known: frozenset[str] = frozenset()
        outcome = message.outcome
        if isinstance(outcome, Reconciled) and outcome.discovered:
            operations = tuple(transition.trigger_op for transition in outcome.discovered)
            query = Query(TriggerRecord, {"pane_id": self.pane_id, "operation_id": operations})
            (rows,) = await self.system.line.load(query)
            known = frozenset(row.operation_id for row in _only(TriggerRecord, rows))
        now, limits = self.system.clock.now_ns(), self.system.limits
        decision = decide_outcome(self.state, intent, outcome, known, limits, now, self._mint)
        await self._commit("reconciled", decision, message.activation)
        self.answer(envelope, decision.answer)
        self._recheck = True
        self._resume_relaunching()

    async def _attempt_failed(self, envelope: Envelope) -> None:
        """The reconciler raised: nobody waits for it any longer, and nobody is let through."""
        message = envelope.message
        assert isinstance(message, AttemptFailed)
        for parked in self._parked.values():
            if parked.intent_id == message.intent_id:
                parked.patient = False
        self._recheck = True
        self.answer(envelope, None)

    # -- detection and a human's word --

    async def _detect(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, Detect)
        if self.system.reconciler is None:
            raise InvalidTransition(
                "detect needs a Reconciler: open the runtime with reconciler=…", event="detect", address=self.address
            )
        decision = decide_detect(self.state, message.transition, self.system.clock.now_ns(), self._mint)
        try:
            await self._decide(envelope, decision)
        except MutationRefused as refused:
            if refused.table != TriggerRecord.TABLE:
                raise
            await self._seen_before(envelope, message.transition.trigger_op)

    async def _seen_before(self, envelope: Envelope, trigger_op: str) -> None:
        trigger = await self._find(TriggerRecord, pane_id=self.pane_id, operation_id=trigger_op)
        intent = None if trigger is None else await self._intent(trigger.intent_id)
        if intent is None:
            raise CorruptRecord(self.address, f"trigger {trigger_op!r} exists and its intent cannot be read")
        self.answer(envelope, DetectedIntent(intent.intent_id, intent.seq, coalesced=False))

    async def _resolve(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, ResolveIntent)
        now = self.system.clock.now_ns()
        decision = decide_resolve(
            self.state, message.intent_id, message.resolution, message.by, now, await self._over(message.intent_id)
        )
        await self._decide(envelope, decision)
        self._resume_relaunching()

    async def _rearm(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, RearmIntent)
        over = await self._over(message.intent_id)
        await self._decide(envelope, decide_rearm(self.state, message.intent_id, self.system.clock.now_ns(), over))

    async def _discard(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, DiscardIntent)
        now = self.system.clock.now_ns()
        over = await self._over(message.intent_id)
        await self._decide(envelope, decide_discard(self.state, message.intent_id, message.approval, now, over))

    async def _sync_status(self, envelope: Envelope) -> None:
        unstoppable = self._relauncher is not None and self._relauncher.stop_failed
        status = SyncStatus.CONFLICTED if unstoppable else self.state.sync_status()
        self.answer(envelope, status)

    # -- incarnations --

    async def _startup_ready(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, StartupReady)
        speaker = await self._speaker(message.incarnation_id)
        intent = None
        if speaker is not None and speaker.startup_intent_id is not None:
            intent = await self._intent(speaker.startup_intent_id)
        decision = decide_handshake(
            self.state,
            speaker,
            intent,
            incarnation_id=message.incarnation_id,
            startup_delivery_id=message.startup_delivery_id,
            payload_sha256=message.payload_sha256,
            now=self.system.clock.now_ns(),
        )
        await self._decide(envelope, decision)

    async def _launch_failed(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, LaunchFailed)
        await self._ended(envelope, decide_launch_failed, message.incarnation_id, message.reason)

    async def _retire(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, RetireIncarnation)
        await self._ended(envelope, decide_retire, message.incarnation_id, message.reason)

    async def _ended(
        self, envelope: Envelope, decide: Callable[..., Decision], incarnation_id: str, reason: str
    ) -> None:
        decision = decide(
            self.state,
            await self._speaker(incarnation_id),
            incarnation_id,
            reason,
            self.system.clock.now_ns(),
            limits=self.system.limits,
            mint=self._mint,
        )
        await self._decide(envelope, decision)

    async def _launch(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, LaunchHarness)
        check_launch(self.state, self.system.limits)
        if self._relauncher is not None and not message.started_by_runtime:
            self._relauncher.launch_for_host(envelope, message.request)
        elif needs_payload_first(self.state, message.request.capabilities):
            await self._begin_unattended("launch")
            assert self.state.head is not None
            self._park(envelope, self.state.head.intent_id, math.inf, None)
        else:
            await self._launch_now(envelope, message.request)

    async def _begin_unattended(self, transition: str) -> None:
        """Begin reconciling the head with no process alive; who waits for that must not wait for ever."""
        head = self.state.head
        if head is not None and self.system.reconciler is None:
            why = "it must be reconciled first, and this runtime has no Reconciler"
            raise LaunchBlocked(head.intent_id, head.state, why)
        await self._commit(transition, begin_unattended(self.state, self.system.clock.now_ns()))

    async def _launch_now(self, envelope: Envelope, request: LaunchRequest) -> None:
        now = self.system.clock.now_ns()
        await self._decide(envelope, decide_launch(self.state, request, self.system.limits, now, self._mint))

    async def _launch_parked(self, envelope: Envelope, *, patient: bool) -> None:
        """A launch, or the launching task, that waits for the head's payload."""
        head = self.state.head
        if head is not None and head.state is IntentState.RECONCILING and patient:
            return
        try:
            check_launch(self.state, self.system.limits)
            if isinstance(envelope.message, LaunchHarness):
                await self._launch_now(envelope, envelope.message.request)
            else:
                self.answer(envelope, None)
        except LaunchBlocked as blocked:
            envelope.reply.fail(blocked)

    # -- with a Launcher (contract I-11) --

    async def _withdraw(self, envelope: Envelope) -> None:
        check_launch(self.state, self.system.limits)
        await self._decide(envelope, withdraw(self.state, self.system.clock.now_ns()))

    async def _prepare_payload(self, envelope: Envelope) -> None:
        head = self.state.head
        if head is not None and head.state is IntentState.DETECTED:
            await self._begin_unattended("prepare_payload")
        head = self.state.head
        if head is not None and head.state is IntentState.RECONCILING:
            self._park(envelope, head.intent_id, math.inf, None)
            return
        check_launch(self.state, self.system.limits)
        self.answer(envelope, None)

    def _resume_relaunching(self) -> None:
        """Go on with a replacement that had to wait, or that an earlier activation had begun."""
        if self._relauncher is not None:
            self._relauncher.resume()


def _batch_key(call: ToolBoundary) -> tuple[str, str, str]:
    return (call.incarnation_id, "" if call.turn is None else call.turn.id, call.batch_id)


def _only(record_type: type[R], rows: Sequence[Record]) -> list[R]:
    """The rows of a query, typed; a store that answers another class is corrupt."""
    for row in rows:
        if not isinstance(row, record_type):
            raise CorruptRecord(record_type.TABLE, f"the store answered a {type(row).__name__}")
    return [row for row in rows if isinstance(row, record_type)]
