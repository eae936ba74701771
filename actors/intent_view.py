"""An intent's row as a bridge sees it.  Pure."""

from __future__ import annotations

from typing import Final

from attrs import fields

from fencepost.actors.messages import Anchor, IntentView, ModelTurn
from fencepost.mailbox import ladder
from fencepost.mailbox.ladder import Reach
from fencepost.mailbox.records import DeliveryMode, IntentRecord, IntentState

__all__ = ["reach_of", "view_of"]


def reach_of(intent: IntentRecord) -> Reach:
    """How far the intent got on the delivery ladder (design section 7, contract DA-17)."""
    if intent.exhausted_at is not None or intent.discarded:
        # A discard settles nothing about the delivery: its outcome stays unknown.
        return ladder.report("intent", "exhausted")
    if intent.state is IntentState.DELIVERED and intent.consumed_at is not None:
        native = "handshake_accepted" if intent.mode is DeliveryMode.RESTART_STARTUP else "batch_completed"
        return ladder.report("intent", "delivered", native)
    if intent.state in {IntentState.MATERIALIZED, IntentState.DELIVERED, IntentState.ACKNOWLEDGED}:
        return ladder.report("intent", intent.state.value)
    return Reach()


def view_of(intent: IntentRecord, triggers: tuple[str, ...], startup_attempts: int) -> IntentView:
    """The row as a bridge sees it (I-1); `startup_attempts` are those of its current epoch."""
    reach = reach_of(intent)
    anchor = None
    if intent.anchor_change_id is not None and intent.anchor_commit_id is not None and intent.anchor_op_id is not None:
        anchor = Anchor(intent.anchor_change_id, intent.anchor_commit_id, intent.anchor_op_id)
    turn = None
    if intent.turn_id is not None and intent.turn_ordinal is not None:
        turn = ModelTurn(intent.turn_id, intent.turn_ordinal)
    return IntentView(
        triggers=triggers,
        anchor=anchor,
        turn=turn,
        startup_attempts=startup_attempts,
        stage=reach.stage,
        stop=reach.stop,
        **{name: getattr(intent, name) for name in _SHARED_FIELDS},
    )


_SHARED_FIELDS: Final = tuple(
    attribute.name
    for attribute in fields(IntentView)
    if attribute.name not in {"triggers", "anchor", "turn", "startup_attempts", "stage", "stop"}
)
