"""An intent's actor: it owns the intent's row, works on its reconciliation, and makes its transcript projection.

Events reach it from its pane only, as `Join`: it adds its own new row to the mutation that carries the pane's part
and commits the two as one (`joining`).  The reconciliation runs in a child task, so the intent can answer
while a reconciler is at work; its result goes to the pane, which alone knows what else is written with it, and comes
back as a `Join`.  The runtime owns the reconciliation, not the call that caused it (contract I-12).

If the reconciler raises, this activation dies; the next one finds the row reconciling and resumes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Final, get_args

from attrs import evolve

from fencepost.actors.actor import Actor, System
from fencepost.actors.calls import AttemptFailed, Call, EnsureAttempt, Join, OutcomeReported, PlanAttempt
from fencepost.actors.intent_events import IntentEvent, Plan
from fencepost.actors.intent_state import starts_attempt, step, steps
from fencepost.actors.intent_view import view_of
from fencepost.actors.joining import join
from fencepost.actors.messages import Diverged, IntentView, NeedsRecovery, Outcome, Reconciled
from fencepost.mailbox.address import check_id
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import (
    ActorCrashed,
    ActorQuarantined,
    CorruptRecord,
    Fenced,
    InvalidTransition,
    MutationRefused,
)
from fencepost.mailbox.mutation import Delete, Mutation, NewDeadLetter, NewEvent
from fencepost.mailbox.ports import ActorKilled
from fencepost.mailbox.query import Query, only
from fencepost.mailbox.records import (
    IntentRecord,
    IntentState,
    ProjectionRecord,
    TranscriptRecord,
    TriggerRecord,
)
from fencepost.mailbox.text import told

__all__ = ["Attempt", "IntentActor"]


_NAMES: Final[Mapping[type, str]] = {
    event_type: re.sub(r"(?<!^)(?=[A-Z])", "_", event_type.__name__).lower() for event_type in get_args(IntentEvent)
}
"""The transitions' names in chaos points: `MarkDelivered` is `mark_delivered`."""


class Attempt:
    """One attempt at reconciling an intent, as the Reconciler is given it (contract I-12)."""

    def __init__(self, actor: IntentActor, view: IntentView, *, starting_op: str | None, resumed: bool) -> None:
        self._actor = actor
        self._token = actor.token
        self._system = actor.system
        self._over = False
        self._intent = view
        self._planned_op = view.planned_op
        self._starting_op = starting_op
        self._resumed = resumed

    @property
    def intent(self) -> IntentView:
        """The intent, as it stood when the attempt began."""
        return self._intent

    @property
    def resumed(self) -> bool:
        """True when an earlier attempt may have changed files: probe before anything is mutated."""
        return self._resumed

    @property
    def planned_op(self) -> str | None:
        """The operation a plan names, of this attempt or an earlier one."""
        return self._planned_op

    @property
    def starting_op(self) -> str | None:
        """The operation the plan starts from."""
        return self._starting_op

    async def plan(self, planned_op: str, starting_op: str) -> None:
        """Commit which operation is about to run, before it runs; durable on return.

        The same ids again are fine.  Raises `InvalidTransition` for others, `Fenced` if this attempt is no longer
        the current one, `InvalidIdentifier` for ids out of bounds.
        """
        check_id("planned_op", planned_op)
        check_id("starting_op", starting_op)
        await self._system.call_from_host(self._plan, planned_op, starting_op)
        self._planned_op, self._starting_op = planned_op, starting_op

    async def _plan(self, planned_op: str, starting_op: str) -> None:
        """Ask the actor, unless it is no longer ours: its successor waits for us to be gone and could not answer."""
        if self._over or self._actor.ended:
            raise await self._actor.refused("plan", f"this attempt of {self._actor.address} is over")
        message = PlanAttempt(planned_op, starting_op, self._token)
        await self._system.ask(self._actor.address, message)

    def end(self) -> None:
        """The reconciler has answered or raised: whatever still speaks for this attempt is fenced."""
        self._over = True


class IntentActor(Actor):
    """One activation of `intent:<intent_id>`."""

    KIND: ClassVar[str] = "intent"

    def __init__(self, address: str, activation: int, system: System, seen: IntentRecord | None = None) -> None:
        super().__init__(address, activation, system)
        self._intent_id = address.partition(":")[2]
        self._seen = seen
        self._record: IntentRecord | None = None
        self._attempting = False
        self._attempt = 0
        """Counts the attempts of this activation; what an earlier one still says is fenced."""

    # -- life --

    async def load(self) -> None:
        """Take the row the pane has just seen, or read it; resume what an earlier activation left undone."""
        seen = self._seen
        if seen is not None and seen.state is not IntentState.RECONCILING and seen.delivered_at is None:
            # Only a plan is written behind the pane's back, and only while reconciling: the pane's row is current.
            # Before the first delivery no projection can be owed either.
            self._record, self._seen = self._seen, None
            return
        self._seen = None
        rows, owed = await self.system.line.load(
            Query(IntentRecord, {"intent_id": self._intent_id}),
            Query(ProjectionRecord, {"intent_id": self._intent_id}),
        )
        for record in only(IntentRecord, rows):
            self._record = record.require_intact()
            if record.state is IntentState.RECONCILING:
                self._begin_attempt(record, resumed=True)
        if owed:
            self.spawn(self._project)

    @property
    def owes(self) -> bool:
        """A reconciling intent stays awake, and so does a projection under way."""
        return self.working

    @property
    def finished(self) -> bool:
        """Resolved intents need no actor once their projection is made."""
        return (self._record is None or self._record.resolved) and not self.working

    @property
    def last_word(self) -> tuple[str, Call] | None:
        """Those who wait in the pane for the reconciliation would wait for ever."""
        if self._record is None:
            return None
        return f"pane:{self._record.pane_id}", AttemptFailed(self._intent_id)

    async def handle(self, envelope: Envelope) -> None:
        """Serve a pane's join or an attempt's plan."""
        match envelope.message:
            case Join() as message:
                await self._join(envelope, message)
            case PlanAttempt() as message:
                await self._plan(envelope, message)
            case EnsureAttempt():
                self._ensure_attempt()
                self.answer(envelope, None)
            case other:
                raise InvalidTransition(f"an intent has no answer to {other!r}", address=self.address)

    def _current(self) -> IntentRecord:
        if self._record is None:
            raise CorruptRecord(self.address, "has no row in the store")
        return self._record

    @property
    def token(self) -> tuple[int, int]:
        """This activation and its current attempt: who may speak for the reconciliation."""
        return (self.activation, self._attempt)

    def _fence(self, activation: tuple[int, int] | None, call: str) -> Fenced | None:
        if activation is None or activation == self.token:
            return None
        return Fenced(f"{call} of activation {activation} came to {self.address}, which is at {self.token}")

    # -- events from the pane --

    async def _join(self, envelope: Envelope, message: Join) -> None:
        link, *rest = message.links
        fenced = self._fence(link.attempt, message.part.label)
        if fenced is not None:
            await self._refuse(envelope, fenced, message.part.label, message.now)
            return
        name = _NAMES[type(link.events[0])]
        taken = steps(self._current(), link.events, message.now)
        self.reached(name, "decided")
        whole = message.part.joined(Mutation(label=f"intent.{name}", puts=taken.puts, events=taken.events))
        if rest:
            puts = await join(self.system, tuple(rest), whole, message.now)
        else:
            await self.system.line.commit(whole)
            puts = whole.puts
        self._record = taken.after
        self.reached(name, "applied")
        if any(starts_attempt(event, taken.after) for event in link.events):
            resumed = taken.after.resolution is not None
            self._begin_attempt(taken.after, resumed=resumed)
        self.answer(envelope, puts)
        if any(isinstance(record, ProjectionRecord) for record in taken.puts):
            await self._begin_projection()

    async def _plan(self, envelope: Envelope, message: PlanAttempt) -> None:
        now = self.system.clock.now_ns()
        fenced = self._fence(message.activation, "plan")
        if fenced is None and not self._attempting:
            fenced = Fenced(f"no attempt of {self.address} is under way")
        if fenced is not None:
            await self._refuse(envelope, fenced, "plan", now)
            return
        record = self._current()
        planned = (record.planned_op, record.starting_op)
        if planned == (message.planned_op, message.starting_op):
            self.answer(envelope, None)
            return
        if record.planned_op is not None:
            raise InvalidTransition(
                f"{self.address} already plans operation {planned[0]!r} from {planned[1]!r}, "
                f"not {message.planned_op!r} from {message.starting_op!r}",
                state=record.state,
                event="plan",
                address=self.address,
            )
        taken = step(record, Plan(planned_op=message.planned_op, starting_op=message.starting_op), now)
        self.reached("plan", "decided")
        await self.system.line.commit(Mutation(label="intent.plan", puts=taken.puts, events=taken.events))
        self._record = taken.after
        self.reached("plan", "applied")
        self.answer(envelope, None)

    async def _refuse(self, envelope: Envelope, fenced: Fenced, call: str, now: int) -> None:
        """A zombie activation spoke: keep a dead letter, write nothing else."""
        await self._bury_call(call, fenced, now)
        envelope.reply.fail(fenced)

    async def refused(self, call: str, detail: str) -> Fenced:
        """What a call gets that comes too late to be asked of any activation; its dead letter is kept first."""
        fenced = Fenced(detail)
        try:
            await self._bury_call(call, fenced, self.system.clock.now_ns())
        except ActorKilled:
            return fenced  # the chaos point was passed on nobody's behalf; the commit stands
        return fenced

    async def _bury_call(self, call: str, fenced: Fenced, now: int) -> None:
        letter = NewDeadLetter(
            at=now, address=self.address, call=call, incarnation_id=None, reason="older_activation", detail=str(fenced)
        )
        await self.system.line.commit(Mutation(label="intent.fenced", dead_letters=(letter,)))

    # -- the reconciliation --

    def _ensure_attempt(self) -> None:
        record = self._current()
        if record.state is IntentState.RECONCILING and not self._attempting:
            self._begin_attempt(record, resumed=True)

    def _begin_attempt(self, record: IntentRecord, *, resumed: bool) -> None:
        if self.system.reconciler is None:
            return  # a runtime without one only looks after the store: the row stays reconciling and keeps blocking
        self._attempting = True
        self._attempt += 1
        self.spawn(self._reconcile, record, resumed, self.token)

    async def _reconcile(self, record: IntentRecord, resumed: bool, token: tuple[int, int]) -> None:
        """One attempt, from the reconciler's call to the pane's receipt of what came of it."""
        pane = f"pane:{record.pane_id}"
        try:
            outcome = await self._ask_reconciler(record, resumed=resumed)
        except Exception:
            await self._tell(pane, AttemptFailed(self._intent_id))
            raise  # ends this activation; the next one resumes
        self.reached("reconcile", "decided")
        await self._tell(pane, OutcomeReported(self._intent_id, token, outcome))
        if token == self.token:
            self._attempting = False

    async def _ask_reconciler(self, record: IntentRecord, *, resumed: bool) -> Outcome:
        reconciler = self.system.reconciler
        assert reconciler is not None  # no attempt begins without one
        query = Query(TriggerRecord, {"intent_id": self._intent_id}, order_by=("position",))
        (rows,) = await self.system.line.load(query)
        triggers = tuple(row.operation_id for row in rows if isinstance(row, TriggerRecord))
        attempt = Attempt(self, view_of(record, triggers, 0), starting_op=record.starting_op, resumed=resumed)
        try:
            outcome = await self.system.callback(reconciler.reconcile, attempt)
        finally:
            attempt.end()
        if not isinstance(outcome, Reconciled | NeedsRecovery | Diverged):
            raise TypeError(f"reconcile must answer Reconciled, NeedsRecovery or Diverged, not {outcome!r}")
        return outcome

    async def _tell(self, pane: str, message: AttemptFailed | OutcomeReported) -> None:
        """Tell the pane, over as many of its deaths as it takes; a quarantined pane resumes us when it is revived."""
        while True:
            try:
                await self.system.ask(pane, message)
            except ActorCrashed as crash:
                if crash.address != pane:
                    raise
            except ActorQuarantined:
                return
            else:
                return

    # -- the transcript projection (contract I-17) --

    async def _begin_projection(self) -> None:
        """The built-in one is a single commit, made on the spot; a bridge's takes as long as it takes."""
        if self.system.transcript is None:
            await self._project()
        else:
            self.spawn(self._project)

    async def _project(self) -> None:
        """Make the owed projection; a failure is an event and changes nothing else, a later activation tries again."""
        record = self._current()
        assert record.payload is not None
        key, now = f"cascade:{self._intent_id}", self.system.clock.now_ns()
        if self.system.transcript is not None:
            try:
                await self.system.callback(self.system.transcript.project, key, self._intent_id, record.payload)
            except Exception as error:  # noqa: BLE001 - whatever the bridge's code raises
                await self.system.line.commit(self._projection_failed(error))
                return
        row = TranscriptRecord(dedup_key=key, intent_id=self._intent_id, payload=record.payload, at=now)
        paid = Mutation(label="intent.project", puts=(row,), deletes=(Delete(ProjectionRecord, (self._intent_id,)),))
        try:
            await self.system.line.commit(paid)
        except MutationRefused:
            # The row is there from an earlier life that died before it could say so: only the debt is left.
            await self.system.line.commit(evolve(paid, puts=()))

    def _projection_failed(self, error: Exception) -> Mutation:
        event = NewEvent(
            kind="transcript.failed",
            address=self.address,
            at=self.system.clock.now_ns(),
            data={"intent_id": self._intent_id, "error": told(error)},
        )
        return Mutation(label="intent.projection_failed", events=(event,))
