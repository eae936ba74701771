"""A base moved: which intent tells of it (protocol-intent.md section 2).  Pure."""

from __future__ import annotations

from fencepost.actors.decision import Decision
from fencepost.actors.intent_events import Coalesce, DivergeTopology, IntentEvent
from fencepost.actors.messages import BaseTransition, DetectedIntent
from fencepost.actors.pane_state import Mint, PaneState
from fencepost.mailbox.mutation import NewEvent
from fencepost.mailbox.records import IntentRecord, IntentState, TriggerRecord
from fencepost.mailbox.text import storable_text

__all__ = ["decide_detect", "opened"]


def decide_detect(state: PaneState, transition: BaseTransition, now: int, mint: Mint) -> Decision:
    """Coalesce into the newest intent while it is detected and unbound, else open a new one.

    The trigger row is inserted unconditionally: a trigger seen before makes the store refuse the whole mutation, and
    the pane then answers the intent that has it (contract I-2).
    """
    tail = state.intents[-1] if state.intents else None
    if tail is not None and tail.state is IntentState.DETECTED and tail.to_base == transition.from_base:
        return _coalesced(state, tail, transition, now)
    return opened(state, transition, now, mint)


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


def opened(state: PaneState, transition: BaseTransition, now: int, mint: Mint) -> Decision:
    """Open a new intent behind all there are; the answer is its `DetectedIntent`."""
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
