"""The PreToolUse decision, in order (protocol-intent.md sections 3, 4 and 7.4).  Pure.

Each step either answers or falls through to the next:

    1  the speaker is unknown, retired or of another pane      generic block, a dead letter, nothing else written
    2  the head is bound to a replacement process              section 7.4: only the exact echo acknowledges
    3  the head is bound to a soft batch                       section 4: `intent_verdicts.judge_call`
    4  this batch was admitted before                          its first decision stands, for ever [D12]
    5  the adapter let a call of this batch pass unseen        "yes" makes it a pass, "maybe" a restart
    6  the head is conflicted                                  generic block; the queue behind it does not move
    7  the head is detected                                    bind this batch to it, durably, before any file changes;
                                                               while tools of another batch may run, wait for their end
    8  nothing is pending                                      admit the batch, durably, and allow

Steps 2 and 3 may acknowledge the head; the decision then says `again`, and the same call is decided by whatever the
next intent says.  Nothing is ever allowed while a proof is open, and no batch of which one call was blocked is
allowed later: its calls were planned by a model that had not been told.
"""

from __future__ import annotations

from attrs import field, frozen

from fencepost.actors.decision import Decision
from fencepost.actors.incarnation_state import give_up
from fencepost.actors.intent_events import (
    Acknowledge,
    AcknowledgeRecovered,
    BindSoft,
    Exhaust,
    IntentEvent,
    Offer,
    Rebind,
)
from fencepost.actors.intent_verdicts import Verdict, judge_call, relation_of
from fencepost.actors.messages import (
    Allow,
    BlockGeneric,
    BlockPayload,
    BlockRestart,
    Reason,
    Refused,
    ToolBoundary,
)
from fencepost.actors.pane_state import Limits, Mint, PaneState, conflicted, dead_letter, judge_speaker
from fencepost.mailbox.mutation import NewDeadLetter
from fencepost.mailbox.records import (
    AdmissionDecision,
    AdmissionRecord,
    DeliveryMode,
    IncarnationRecord,
    IntentRecord,
    IntentState,
)

__all__ = ["Boundary", "decide_boundary", "generic"]

_BLOCKED: dict[Reason, str] = {
    Reason.UNKNOWN_INCARNATION: "This process is not known to the supervisor. Stop; nothing you do is recorded.",
    Reason.OTHER_PANE: "This process belongs to another pane. Stop; nothing you do is recorded.",
    Reason.RETIRED_INCARNATION: "This process has been replaced. Stop; nothing you do is recorded.",
    Reason.RECONCILING: "The files are being brought up to date. Do not act on them; try again shortly.",
    Reason.CONFLICTED: "The files are in a state that a person must resolve first. Do not act on them.",
    Reason.EXHAUSTED: "The update could not be delivered; a person must decide. Do not act on the files.",
    Reason.BATCH_NOT_COMPLETE: "An update was given to an earlier batch that never completed. This process restarts.",
    Reason.TURN_ORDER_UNKNOWN: "An update is pending and the order of turns cannot be proved. This process restarts.",
    Reason.REDELIVERIES_SPENT: "An update could not be delivered into this process. It restarts.",
    Reason.PAYLOAD_UNBOUND: "An update is pending that reaches you only at the start of a process. This one restarts.",
    Reason.ADMISSION_LOST: "It is not known whether a call of this batch already ran. This process restarts.",
    Reason.WRONG_STARTUP_ID: "This process did not prove that it was given its startup update. It restarts.",
    Reason.UNPROVED_STARTUP: "The startup update of this process was never accepted. It restarts.",
}


def generic(reason: Reason) -> BlockGeneric:
    """A block with fixed text; never the payload."""
    return BlockGeneric(reason, _BLOCKED[reason])


@frozen(kw_only=True)
class Boundary:
    """One tool call at its boundary, and what the pane knows of its speaker and batch.

    `speaker` is the incarnation named by the call, wherever it was found; `admission` is the batch's stored first
    decision; `blocked_by` is the intent that decision names, resolved or not; `tools_running` says whether tools of
    another batch of the pane may still run; `patient` whether the caller may still wait for a reconciliation.
    """

    call: ToolBoundary
    speaker: IncarnationRecord | None
    admission: AdmissionRecord | None = None
    blocked_by: IntentRecord | None = None
    tools_running: bool = False
    patient: bool = False
    limits: Limits = field(factory=Limits)
    now: int
    mint: Mint


def decide_boundary(state: PaneState, boundary: Boundary) -> Decision:
    """Decide one tool call; see the module's steps."""
    fence = judge_speaker(state.pane_id, boundary.speaker)
    if fence is not None or boundary.speaker is None:
        return _zombie(state, boundary, fence or Reason.UNKNOWN_INCARNATION)  # step 1
    head = state.head
    if head is not None and head.exhausted_at is None:
        if head.mode is DeliveryMode.RESTART_STARTUP:
            return _first_boundary(state, boundary, boundary.speaker, head)  # step 2
        if head.mode is DeliveryMode.SOFT_BATCH:
            return _soft_proof(state, boundary, boundary.speaker, head)  # step 3
    return _no_proof(state, boundary, boundary.speaker, head)


def _zombie(state: PaneState, boundary: Boundary, reason: Reason) -> Decision:
    call = boundary.call
    refused = Refused(reason, f"tool call of batch {call.batch_id!r}")
    letter: NewDeadLetter = dead_letter(state, "pre_tool_use", call.incarnation_id, refused, boundary.now)
    return Decision(answer=generic(reason), dead_letters=(letter,))


# -- step 2: the first managed boundary of a replacement (section 7.4) -------------------------------------------


def _first_boundary(state: PaneState, boundary: Boundary, speaker: IncarnationRecord, head: IntentRecord) -> Decision:
    if speaker.incarnation_id != head.incarnation_id:
        return _restart(state, boundary, Reason.PAYLOAD_UNBOUND)
    if boundary.call.startup_delivery_id != head.startup_delivery_id:
        return _restart(state, boundary, Reason.WRONG_STARTUP_ID)
    if head.handshake_at is None:
        return _restart(state, boundary, Reason.UNPROVED_STARTUP)
    return _acknowledged(speaker, head, Acknowledge())


def _acknowledged(speaker: IncarnationRecord, head: IntentRecord, event: IntentEvent) -> Decision:
    """State, time, proof and marker in one transaction; then the same call is decided by the next intent."""
    marked = speaker.delivered_intent_id is not None
    puts = (speaker.next(delivered_intent_id=None),) if marked else ()
    return Decision(puts=puts, intent_events=((head, event),), again=True)


def _restart(state: PaneState, boundary: Boundary, reason: Reason) -> Decision:
    """Fence the live incarnation and say so; the replacement is somebody else's next step.

    Behind the last permitted attempt there is none, and then the agent is not told of one.
    """
    retired = give_up(state, reason.value, boundary.limits, boundary.now, boundary.mint, replace=True)
    exhausted = any(isinstance(event, Exhaust) for _, event in retired.intent_events)
    words = _BLOCKED[Reason.EXHAUSTED if exhausted else reason]
    return Decision.plus(retired, Decision(answer=BlockRestart(reason, words)))


# -- step 3: an open soft proof (section 4) ----------------------------------------------------------------------


def _soft_proof(state: PaneState, boundary: Boundary, speaker: IncarnationRecord, head: IntentRecord) -> Decision:
    if speaker.incarnation_id != head.incarnation_id:
        return _restart(state, boundary, Reason.PAYLOAD_UNBOUND)
    call = boundary.call
    match judge_call(head, relation_of(head, call.turn, call.batch_id)):
        case Verdict.WAIT:
            return _wait(boundary, head)
        case Verdict.PAYLOAD:
            return _payload(boundary, head)
        case Verdict.REBIND:
            return _rebind(state, boundary, head)
        case Verdict.ACKNOWLEDGE:
            return _acknowledged(speaker, head, Acknowledge())
        case Verdict.ACKNOWLEDGE_RECOVERED:
            return _acknowledged(speaker, head, AcknowledgeRecovered())
        case Verdict.GENERIC_RECONCILING:
            return Decision(answer=generic(Reason.RECONCILING), puts=_admit_block(boundary, head))
        case Verdict.GENERIC_CONFLICTED:
            return Decision(answer=generic(Reason.CONFLICTED), puts=_admit_block(boundary, head))
        case Verdict.RESTART_NOT_COMPLETE:
            return _restart(state, boundary, Reason.BATCH_NOT_COMPLETE)
        case Verdict.RESTART_UNORDERED:
            return _restart(state, boundary, Reason.TURN_ORDER_UNKNOWN)
        case Verdict() as never:  # the enum is covered above; this arm is for a verdict added without its row
            raise AssertionError(never)


def _wait(boundary: Boundary, head: IntentRecord) -> Decision:
    """Blocked until the head is reconciled: inside the caller's budget for the payload, after it generically."""
    puts = _admit_block(boundary, head)
    if boundary.patient:
        return Decision(puts=puts, park=head.intent_id)
    return Decision(answer=generic(Reason.RECONCILING), puts=puts)


def _payload(boundary: Boundary, head: IntentRecord) -> Decision:
    """The saved bytes.  The first time they leave for the open bound batch, that is committed before they do [D2]."""
    assert head.payload is not None
    first_offer = head.batch_completed_at is None and head.payload_offered_at is None
    return Decision(
        answer=BlockPayload(head.intent_id, head.payload),
        puts=_admit_block(boundary, head),
        intent_events=((head, Offer()),) if first_offer else (),
    )


def _rebind(state: PaneState, boundary: Boundary, head: IntentRecord) -> Decision:
    """A completed batch that was shown no payload: hand it to this call's batch, a bounded number of times."""
    call = boundary.call
    if head.soft_redeliveries >= boundary.limits.soft_redeliveries_max:
        return _restart(state, boundary, Reason.REDELIVERIES_SPENT)
    assert head.payload is not None and call.turn is not None  # noqa: PT018 - the verdict's row says so
    return Decision(
        answer=BlockPayload(head.intent_id, head.payload),
        puts=_admit_block(boundary, head),
        intent_events=((head, Rebind(turn=call.turn, batch_id=call.batch_id)),),
    )


# -- steps 4 to 8: no open proof ---------------------------------------------------------------------------------


def _no_proof(state: PaneState, boundary: Boundary, speaker: IncarnationRecord, head: IntentRecord | None) -> Decision:
    call, admission = boundary.call, boundary.admission
    if admission is not None and admission.decision is AdmissionDecision.PASS:
        return Decision(answer=Allow())  # step 4
    if admission is None and call.passed_unseen == "yes":
        return Decision(answer=Allow(), puts=(_admission(boundary, AdmissionDecision.PASS, None),))  # step 5
    if admission is None and call.passed_unseen == "maybe":
        return _restart(state, boundary, Reason.ADMISSION_LOST)
    if head is None:
        return _nothing_pending(boundary)  # step 8
    if conflicted(head):
        return Decision(answer=generic(Reason.CONFLICTED), puts=_admit_block(boundary, head))  # step 6
    if admission is not None and head.state is IntentState.DETECTED and admission.intent_id != head.intent_id:
        return _first_decision(boundary)  # blocked by an intent now resolved; a later batch may be running already
    if head.state is not IntentState.DETECTED or not speaker.soft_batches:
        return _restart(state, boundary, Reason.PAYLOAD_UNBOUND)  # step 7, its net and [D6]
    if call.turn is None or not speaker.turn_order:
        return _restart(state, boundary, Reason.TURN_ORDER_UNKNOWN)
    if boundary.tools_running:
        return _wait(boundary, head)  # binding begins the reconciliation, and files change
    bind = BindSoft(incarnation_id=speaker.incarnation_id, turn=call.turn, batch_id=call.batch_id)
    waiting = _wait(boundary, head)
    return Decision(
        answer=waiting.answer,
        puts=waiting.puts,
        intent_events=((head, bind),),
        park=waiting.park,
    )


def _nothing_pending(boundary: Boundary) -> Decision:
    """Admit the batch, unless one of its calls was blocked before: then its first decision stands."""
    if boundary.admission is None:
        return Decision(answer=Allow(), puts=(_admission(boundary, AdmissionDecision.PASS, None),))
    return _first_decision(boundary)


def _first_decision(boundary: Boundary) -> Decision:
    """What a call of a batch gets whose block stands, though the intent that blocked it is resolved."""
    blocked_by = boundary.blocked_by
    if blocked_by is not None and blocked_by.payload is not None:
        return Decision(answer=BlockPayload(blocked_by.intent_id, blocked_by.payload))
    return Decision(answer=generic(Reason.RECONCILING))


def _admit_block(boundary: Boundary, head: IntentRecord) -> tuple[AdmissionRecord, ...]:
    """The batch's first decision, if this is it."""
    if boundary.admission is not None:
        return ()
    return (_admission(boundary, AdmissionDecision.BLOCK, head.intent_id),)


def _admission(boundary: Boundary, decision: AdmissionDecision, intent_id: str | None) -> AdmissionRecord:
    call = boundary.call
    return AdmissionRecord(
        incarnation_id=call.incarnation_id,
        turn_id="" if call.turn is None else call.turn.id,
        batch_id=call.batch_id,
        pane_id=boundary.speaker.pane_id if boundary.speaker is not None else "",
        turn_ordinal=None if call.turn is None else call.turn.ordinal,
        decision=decision,
        intent_id=intent_id,
        at=boundary.now,
    )
