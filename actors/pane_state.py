"""A pane: its incarnations, the order of its intents, and what a change to either writes.  Pure.

Theory of operation
===================

Every call about a pane is decided by one actor, one call at a time: that is the thread's lock of the notes
(protocol-intent.md section 3).  `PaneState` is all that such a decision may look at:

* `latest`, the incarnation with the highest epoch; the live one, if any is live, is always the latest;
* `intents`, the unresolved intents, oldest first.  The rows belong to the intents' own actors; every event that
  touches one goes through the pane, so what stands here is what is stored.  The first of them, the *head*, is the
  only one that may be bound: at most one intent of a pane is active, and a later one stays detected until the
  earlier is acknowledged or superseded (section 10, invariant 4);
* `seq_last`, from which the next intent's sequence number follows, and `tail_triggers`, how many triggers the newest
  intent has.  Once a tail is superseded the count is unknown (None) until the store is asked.

Decisions live in `boundary` (a tool call), `incarnation_state` (launch to retirement) and here (detection,
reconciliation results, a human's word).  None of them reads a clock or mints an id by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, assert_never

import orjson
from attrs import evolve, frozen

from fencepost.actors.decision import Decision, Replace
from fencepost.actors.intent_state import (
    Coalesce,
    CompleteBatch,
    DivergeTopology,
    IntentEvent,
    MarkDelivered,
    Prepare,
    RequireRecovery,
    Resolve,
    Supersede,
    judge_batch_completed,
    judge_mark_delivered,
    judge_prepare,
)
from fencepost.actors.messages import (
    Applied,
    BaseTransition,
    DetectedIntent,
    Diverged,
    NeedsRecovery,
    Outcome,
    Reason,
    Reconciled,
    Refused,
    SyncStatus,
    Unchanged,
)
from fencepost.mailbox.mutation import NewDeadLetter, NewEvent
from fencepost.mailbox.records import (
    IncarnationRecord,
    IntentRecord,
    IntentState,
    Record,
    TriggerRecord,
)
from fencepost.mailbox.text import storable_text

__all__ = [
    "Limits",
    "Mint",
    "PaneState",
    "decide_batch_completed",
    "decide_detect",
    "decide_mark_delivered",
    "decide_outcome",
    "decide_placement",
    "decide_resolve",
    "judge_speaker",
    "refusal",
]

Mint: TypeAlias = Callable[[str], str]
"""Makes a fresh id of a kind; handed in, so that a decision can be replayed."""

_CONFLICTED_STATES: Final = frozenset({IntentState.RECOVERY_REQUIRED, IntentState.TOPOLOGY_DIVERGED})


@frozen(kw_only=True)
class Limits:
    """The bounds a pane's decisions obey (contract G-3)."""

    startup_attempts_max: int = 3
    soft_redeliveries_max: int = 1
    payload_bytes_max: int = 1_048_576


@frozen(kw_only=True)
class PaneState:
    """Everything a pane decides by; see the module's theory of operation."""

    pane_id: str
    latest: IncarnationRecord | None = None
    intents: tuple[IntentRecord, ...] = ()
    seq_last: int = 0
    tail_triggers: int | None = 0
    """How many triggers the newest unresolved intent has; None when the store must be asked."""

    @property
    def address(self) -> str:
        """This pane's address, as events and dead letters carry it."""
        return f"pane:{self.pane_id}"

    @property
    def live(self) -> IncarnationRecord | None:
        """The live incarnation, if there is one."""
        return self.latest if self.latest is not None and self.latest.live else None

    @property
    def head(self) -> IntentRecord | None:
        """The oldest unresolved intent: the only one that may be bound."""
        return self.intents[0] if self.intents else None

    def find(self, intent_id: str) -> IntentRecord | None:
        """The unresolved intent with this id."""
        return next((intent for intent in self.intents if intent.intent_id == intent_id), None)

    def is_live(self, incarnation_id: str | None) -> bool:
        """Whether this is the id of the live incarnation."""
        return self.live is not None and self.live.incarnation_id == incarnation_id

    @property
    def startup_attempts(self) -> int:
        """How many startup attempts the head's current epoch has used (section 7.5).

        Between the bind of an intent and its end no other launch is possible, so the latest incarnation, whose row
        names its attempt, tells.
        """
        latest, head = self.latest, self.head
        if latest is None or head is None:
            return 0
        if (latest.startup_intent_id, latest.startup_epoch) != (head.intent_id, head.epoch):
            return 0
        return latest.startup_attempt or 0

    def sync_status(self) -> SyncStatus:
        """Always a query over the intents (section 1.3)."""
        if any(intent.state in _CONFLICTED_STATES or intent.exhausted_at is not None for intent in self.intents):
            return SyncStatus.CONFLICTED
        return SyncStatus.PENDING if self.intents else SyncStatus.IN_SYNC

    def after(self, records: Iterable[Record]) -> PaneState:
        """This state with committed rows applied; resolved intents leave it."""
        state = self
        for record in records:
            match record:
                case IncarnationRecord():
                    if state.latest is None or record.epoch >= state.latest.epoch:
                        state = evolve(state, latest=record)
                case IntentRecord():
                    state = state.with_intent(record)
                case TriggerRecord() if state.intents and state.intents[-1].intent_id == record.intent_id:
                    state = evolve(state, tail_triggers=record.position + 1)
                case _:
                    pass
        return state

    def with_intent(self, intent: IntentRecord) -> PaneState:
        """This state with one intent's committed row; a resolved one leaves it."""
        if intent.seq > self.seq_last:
            rest = () if intent.resolved else (intent,)
            return evolve(self, intents=self.intents + rest, seq_last=intent.seq, tail_triggers=0)
        kept = tuple(
            intent if known.intent_id == intent.intent_id else known
            for known in self.intents
            if known.intent_id != intent.intent_id or not intent.resolved
        )
        same_tail = bool(kept) and kept[-1].intent_id == self.intents[-1].intent_id
        return evolve(self, intents=kept, tail_triggers=self.tail_triggers if same_tail or not kept else None)


# -- who speaks, and refusals ------------------------------------------------------------------------------------


def judge_speaker(pane_id: str, speaker: IncarnationRecord | None) -> Reason | None:
    """The fence: why this incarnation may not speak for this pane, or None if it may (section 3, step 1)."""
    if speaker is None:
        return Reason.UNKNOWN_INCARNATION
    if speaker.pane_id != pane_id:
        return Reason.OTHER_PANE
    return None if speaker.live else Reason.RETIRED_INCARNATION


def refusal(state: PaneState, call: str, incarnation_id: str | None, refused: Refused, now: int) -> Decision:
    """Answer a refusal; its only trace is a dead letter."""
    return Decision(answer=refused, dead_letters=(dead_letter(state, call, incarnation_id, refused, now),))


def dead_letter(state: PaneState, call: str, incarnation_id: str | None, refused: Refused, now: int) -> NewDeadLetter:
    """What is kept of a refused or fenced call."""
    return NewDeadLetter(
        at=now,
        address=state.address,
        call=call,
        incarnation_id=incarnation_id,
        reason=refused.reason,
        detail=refused.detail,
    )


def fenced(
    state: PaneState, call: str, incarnation_id: str, speaker: IncarnationRecord | None, now: int
) -> Decision | None:
    """The refusal of a call whose speaker is fenced, or None if it may speak."""
    reason = judge_speaker(state.pane_id, speaker)
    if reason is None:
        return None
    return refusal(
        state, call, incarnation_id, Refused(reason, f"incarnation {incarnation_id!r} is {_FENCED[reason]}"), now
    )


_FENCED: Final = {
    Reason.UNKNOWN_INCARNATION: "unknown here",
    Reason.OTHER_PANE: "of another pane",
    Reason.RETIRED_INCARNATION: "retired",
}


# -- detection (section 2) ---------------------------------------------------------------------------------------


def decide_detect(state: PaneState, transition: BaseTransition, now: int, mint: Mint) -> Decision:
    """Coalesce into the newest intent while it is detected and unbound, else open a new one.

    The trigger row is inserted unconditionally: a trigger seen before makes the store refuse the whole mutation, and
    the pane then answers the intent that has it (contract I-2).
    """
    tail = state.intents[-1] if state.intents else None
    if tail is not None and tail.state is IntentState.DETECTED and tail.to_base == transition.from_base:
        return _coalesced(state, tail, transition, now)
    return _opened(state, transition, now, mint)


def _coalesced(state: PaneState, tail: IntentRecord, transition: BaseTransition, now: int) -> Decision:
    assert state.tail_triggers is not None  # the actor asks the store before it decides again
    trigger = _trigger(state, tail.intent_id, transition, state.tail_triggers, now)
    events: list[tuple[IntentRecord, IntentEvent]] = [
        (
            tail,
            Coalesce(
                kind=transition.kind,
                to_base=transition.to_base,
                classification_op=transition.classification_op,
            ),
        )
    ]
    if transition.ambiguous is not None:
        events = [(tail, DivergeTopology(reason=storable_text(transition.ambiguous)))]
    return Decision(
        answer=DetectedIntent(tail.intent_id, tail.seq, coalesced=True), puts=(trigger,), intent_events=tuple(events)
    )


def _opened(state: PaneState, transition: BaseTransition, now: int, mint: Mint) -> Decision:
    ambiguous = transition.ambiguous is not None
    intent = IntentRecord(
        intent_id=mint("intent"),
        pane_id=state.pane_id,
        seq=state.seq_last + 1,
        kind=transition.kind,
        from_base=transition.from_base,
        to_base=transition.to_base,
        classification_op=transition.classification_op,
        detected_at=now,
        state=IntentState.TOPOLOGY_DIVERGED if ambiguous else IntentState.DETECTED,
        reason=None if transition.ambiguous is None else storable_text(transition.ambiguous),
    )
    event = NewEvent(
        kind="intent.topology_diverged" if ambiguous else "intent.detected",
        address=f"intent:{intent.intent_id}",
        at=now,
        data={
            "intent_id": intent.intent_id,
            "pane_id": state.pane_id,
            "intent_seq": intent.seq,
            "state": intent.state.value,
            "from_base": intent.from_base,
            "to_base": intent.to_base,
            "trigger_op": transition.trigger_op,
        },
    )
    return Decision(
        answer=DetectedIntent(intent.intent_id, intent.seq, coalesced=False),
        puts=(intent, _trigger(state, intent.intent_id, transition, 0, now)),
        events=(event,),
    )


def _trigger(state: PaneState, intent_id: str, transition: BaseTransition, position: int, now: int) -> TriggerRecord:
    return TriggerRecord(
        pane_id=state.pane_id,
        operation_id=transition.trigger_op,
        intent_id=intent_id,
        position=position,
        at=now,
    )


# -- delivery reports (section 5) --------------------------------------------------------------------------------


def decide_mark_delivered(
    state: PaneState,
    speaker: IncarnationRecord | None,
    intent: IntentRecord | None,
    *,
    intent_id: str,
    incarnation_id: str,
    turn_id: str,
    batch_id: str,
    now: int,
) -> Decision:
    """The hook wrote the payload out: state, first delivery time and the marker in one transaction (I-7).

    `intent` is the row with that id, resolved or not, or None if there is none.
    """
    stopped = fenced(state, "mark_delivered", incarnation_id, speaker, now)
    if stopped is not None:
        return stopped
    assert speaker is not None
    if intent is None or intent.pane_id != state.pane_id:
        refused = Refused(Reason.UNKNOWN_INTENT, f"pane {state.pane_id} has no intent {intent_id!r}")
        return refusal(state, "mark_delivered", incarnation_id, refused, now)
    answer = judge_mark_delivered(intent, incarnation_id, turn_id, batch_id)
    if isinstance(answer, Refused):
        return refusal(state, "mark_delivered", incarnation_id, answer, now)
    if isinstance(answer, Unchanged):
        return Decision(answer=answer)
    return Decision(
        answer=answer,
        puts=(speaker.next(delivered_intent_id=intent_id),),
        intent_events=((intent, MarkDelivered()),),
    )


def decide_batch_completed(
    state: PaneState,
    speaker: IncarnationRecord | None,
    *,
    incarnation_id: str,
    turn_id: str,
    batch_id: str,
    now: int,
) -> Decision:
    """Record that the exact blocked batch completed; nothing else, and nothing for any other batch (I-8)."""
    stopped = fenced(state, "post_tool_batch", incarnation_id, speaker, now)
    if stopped is not None:
        return stopped
    answer = judge_batch_completed(state.head, incarnation_id, turn_id, batch_id)
    if isinstance(answer, Refused):
        return refusal(state, "post_tool_batch", incarnation_id, answer, now)
    if isinstance(answer, Unchanged) or state.head is None:
        return Decision(answer=Unchanged())
    return Decision(answer=answer, intent_events=((state.head, CompleteBatch()),))


def decide_placement(
    state: PaneState,
    speaker: IncarnationRecord | None,
    intent: IntentRecord | None,
    *,
    incarnation_id: str,
    turn_id: str,
    batch_id: str,
    completes: bool,
    now: int,
) -> Decision:
    """What the placement of a batch's results means for the intents (contract T-5).

    A result that is the payload of `intent` is its delivery, the last result of the batch its completion; what does
    not apply (the incarnation was retired meanwhile, say) is no reason not to place, and leaves nothing behind.
    """
    tuple_ = {"incarnation_id": incarnation_id, "turn_id": turn_id, "batch_id": batch_id}
    decision = Decision()
    if intent is not None:
        delivered = decide_mark_delivered(state, speaker, intent, intent_id=intent.intent_id, now=now, **tuple_)
        if isinstance(delivered.answer, Applied):
            decision = delivered
    if completes:
        completed = decide_batch_completed(state, speaker, now=now, **tuple_)
        if isinstance(completed.answer, Applied):
            decision = decision.plus(completed)
    return decision


# -- how a reconciliation ended (section 5) ----------------------------------------------------------------------


def decide_outcome(
    state: PaneState,
    intent: IntentRecord,
    outcome: Outcome,
    known_triggers: frozenset[str],
    limits: Limits,
    now: int,
    mint: Mint,
) -> Decision:
    """Prepare the payload, or block truthfully.  A result that is already prepared changes nothing [D8].

    `known_triggers` are those of `outcome.discovered` the pane has seen before.
    """
    if intent.state is not IntentState.RECONCILING:
        if isinstance(outcome, Reconciled):
            answer = judge_prepare(intent, outcome)
            if isinstance(answer, Refused):
                return refusal(state, "prepare", intent.incarnation_id, answer, now)
        return Decision(answer=Unchanged())
    match outcome:
        case Reconciled():
            unfit = _unfit(outcome.payload, limits)
            if unfit is not None:
                return Decision(answer=Applied(), intent_events=((intent, RequireRecovery(reason=unfit)),))
            return _prepared(state, intent, outcome, known_triggers, now, mint)
        case NeedsRecovery():
            blocked: IntentEvent = RequireRecovery(
                reason=storable_text(outcome.reason),
                bundle_path=None if outcome.bundle_path is None else storable_text(outcome.bundle_path),
                bundle_fingerprint=outcome.bundle_fingerprint,
                details=_details(outcome.details),
            )
        case Diverged():
            blocked = DivergeTopology(reason=storable_text(outcome.reason), details=_details(outcome.details))
        case _:
            assert_never(outcome)
    return Decision(answer=Applied(), intent_events=((intent, blocked),))


def _unfit(payload: bytes, limits: Limits) -> Reason | None:
    """Why no channel could carry these bytes unchanged, if so (I-15)."""
    if len(payload) > limits.payload_bytes_max:
        return Reason.PAYLOAD_TOO_LARGE
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return Reason.PAYLOAD_NOT_TEXT
    return None


def _details(details: object) -> str | None:
    """What a reconciler says beside its reason, as text; whatever it is, it must not cost the outcome."""
    if details is None:
        return None
    if isinstance(details, str):
        return storable_text(details)
    try:
        return orjson.dumps(details, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):
        return storable_text(repr(details))


def _prepared(
    state: PaneState,
    intent: IntentRecord,
    result: Reconciled,
    known_triggers: frozenset[str],
    now: int,
    mint: Mint,
) -> Decision:
    """Result, payload and state in one transaction, with the intents it covers and the ones it discovered."""
    covered = [
        other
        for other in state.intents
        if other.intent_id in result.covers and other.state is IntentState.DETECTED and other.seq > intent.seq
    ]
    superseding = Decision(intent_events=tuple((other, Supersede(by_intent_id=intent.intent_id)) for other in covered))
    decision = superseding.plus(
        Decision(
            answer=Applied(),
            intent_events=((intent, Prepare(result=result, live=state.is_live(intent.incarnation_id))),),
        )
    )
    # Discovered intents are opened behind everything there is; they never coalesce, their order is the result's, and
    # their rows are put in that order, so that whoever applies them sees each seq after the one before it.
    gone = {other.intent_id for other in covered}
    later = evolve(state, intents=tuple(known for known in state.intents if known.intent_id not in gone))
    seen = set(known_triggers)
    found = Decision()
    for transition in result.discovered:
        if transition.trigger_op in seen:
            continue
        seen.add(transition.trigger_op)
        opened = _opened(later, transition, now, mint)
        later = later.after(opened.puts)
        found = found.plus(opened)
    return found.plus(decision)


# -- a human's word (contract I-13) ------------------------------------------------------------------------------


def decide_resolve(
    state: PaneState, intent_id: str, resolution: str, by: str, now: int, resolved: IntentRecord | None = None
) -> Decision:
    """Leave recovery_required or topology_diverged, with the choice recorded.

    `resolved` is the intent with that id where it is one of this pane's that is over.
    """
    intent = state.find(intent_id) or resolved
    if intent is None:
        refused = Refused(Reason.UNKNOWN_INTENT, f"pane {state.pane_id} has no intent {intent_id!r}")
        return refusal(state, "resolve", None, refused, now)
    if intent.state not in _CONFLICTED_STATES:
        return Decision(answer=Unchanged())
    if intent is not state.head:
        head = state.head
        assert head is not None
        refused = Refused(Reason.RECONCILING, f"intent {head.intent_id} comes first and is {head.state}")
        return refusal(state, "resolve", None, refused, now)
    # A retired process may still be there, with tools running that were let pass.  Only an intent that got beyond
    # detection is known to have been begun with no such tools about; a diverged one may have been found so.
    lingering = state.latest is not None and intent.state is IntentState.TOPOLOGY_DIVERGED
    event = Resolve(resolution=resolution, by=by, attended=state.live is not None or lingering)
    # A successor that was wished for while only a human could lead on has nothing else left to wait for.
    wished = state.latest is not None and state.latest.relaunch
    return Decision(answer=Applied(), intent_events=((intent, event),), effects=(Replace(),) if wished else ())
