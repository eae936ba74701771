"""What a harness reports of a delivery: the payload was written out, the batch completed (section 5).  Pure.

A fenced or mistaken report is refused and leaves a dead letter, nothing else; `intent_verdicts` says which is which.
"""

from __future__ import annotations

from fencepost.actors.decision import Decision
from fencepost.actors.intent_events import CompleteBatch, MarkDelivered
from fencepost.actors.intent_verdicts import judge_batch_completed, judge_mark_delivered
from fencepost.actors.messages import Applied, Reason, Refused, Unchanged
from fencepost.actors.pane_state import PaneState, fenced, refusal
from fencepost.mailbox.records import IncarnationRecord, IntentRecord

__all__ = ["decide_batch_completed", "decide_mark_delivered", "decide_placement"]


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
