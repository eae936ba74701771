"""What each event sets in an intent's row, field by field (protocol-intent.md sections 5 to 7).  Pure.

Whether an event is possible is not asked here: `intent_state.transition` asks it before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, assert_never

from fencepost.actors.intent_events import (
    AcceptHandshake,
    Acknowledge,
    AcknowledgeRecovered,
    BeginUnattended,
    BindRestart,
    BindSoft,
    Coalesce,
    CompleteBatch,
    DeliveringEvent,
    Discard,
    DivergeTopology,
    Exhaust,
    IntentEvent,
    MarkDelivered,
    Offer,
    Plan,
    Prepare,
    Rearm,
    Rebind,
    ReconcilingEvent,
    RequireRecovery,
    Resolve,
    RestartEvent,
    Supersede,
)
from fencepost.actors.messages import ModelTurn
from fencepost.mailbox.records import DeliveryMode, IntentRecord, IntentState

__all__ = ["changes"]

_NO_SOFT_PROOF: Final[Mapping[str, None]] = {
    "turn_id": None,
    "turn_ordinal": None,
    "batch_id": None,
    "bound_at": None,
    "batch_completed_at": None,
    "payload_offered_at": None,
}
_NO_PROOF: Final[Mapping[str, None]] = {
    **_NO_SOFT_PROOF,
    "mode": None,
    "incarnation_id": None,
    "startup_delivery_id": None,
    "handshake_at": None,
}


def changes(intent: IntentRecord, event: IntentEvent, now: int) -> Mapping[str, object]:
    """Which fields `event` sets.  `now` is in nanoseconds."""
    if isinstance(event, ReconcilingEvent):
        return _reconciling(intent, event, now)
    if isinstance(event, DeliveringEvent):
        return _delivering(intent, event, now)
    return _restarting(intent, event, now)


def _reconciling(intent: IntentRecord, event: ReconcilingEvent, now: int) -> Mapping[str, object]:
    """From the detection to the payload, or to a state that has none."""
    match event:
        case Coalesce():
            return {"kind": event.kind, "to_base": event.to_base, "classification_op": event.classification_op}
        case Supersede():
            return {"state": IntentState.SUPERSEDED, "reason": f"covered by intent {event.by_intent_id}"}
        case BindSoft():
            return {"state": IntentState.RECONCILING, **_soft(event.incarnation_id, event.turn, event.batch_id, now)}
        case BeginUnattended():
            return {"state": IntentState.RECONCILING}
        case Plan():
            return {"planned_op": event.planned_op, "starting_op": event.starting_op}
        case Prepare():
            return _prepared(event, now)
        case RequireRecovery():
            return {
                "state": IntentState.RECOVERY_REQUIRED,
                "reason": event.reason,
                "bundle_path": event.bundle_path,
                "bundle_fingerprint": event.bundle_fingerprint,
                "recovery_details": event.details,
            }
        case DivergeTopology():
            return {
                "state": IntentState.TOPOLOGY_DIVERGED,
                "reason": event.reason,
                "recovery_details": event.details,
            }
        case Resolve():
            state = IntentState.DETECTED if event.attended and intent.mode is None else IntentState.RECONCILING
            return {"state": state, "resolution": event.resolution, "resolved_by": event.by}
        case _:
            assert_never(event)


def _delivering(intent: IntentRecord, event: DeliveringEvent, now: int) -> Mapping[str, object]:
    """The payload on its way into a batch of the live process, and every acknowledgement."""
    match event:
        case Offer():
            return {"payload_offered_at": _first(intent.payload_offered_at, now)}
        case Rebind():
            return {
                **_soft(str(intent.incarnation_id), event.turn, event.batch_id, now),
                "batch_completed_at": None,
                "payload_offered_at": now,
                "soft_redeliveries": intent.soft_redeliveries + 1,
            }
        case MarkDelivered():
            consumed = now if intent.batch_completed_at is not None else None
            return {
                "state": IntentState.DELIVERED,
                "delivered_at": _first(intent.delivered_at, now),
                "consumed_at": intent.consumed_at if consumed is None else _first(intent.consumed_at, consumed),
            }
        case CompleteBatch():
            consumed = _first(intent.consumed_at, now) if intent.delivered_at is not None else None
            return {"batch_completed_at": _first(intent.batch_completed_at, now), "consumed_at": consumed}
        case Acknowledge():
            return {**_acknowledged(intent.delivered_at, now), **_NO_PROOF}
        case AcknowledgeRecovered():
            # Delivered when the batch completed: that is when the harness had shown the model what it was given.
            completed = intent.batch_completed_at
            return {
                **_acknowledged(completed, now),
                "delivered_at": completed,
                "consumed_at": completed,
                **_NO_PROOF,
            }
        case _:
            assert_never(event)


def _restarting(intent: IntentRecord, event: RestartEvent, now: int) -> Mapping[str, object]:
    """The payload on its way into a replacement process."""
    match event:
        case BindRestart():
            return {
                **_NO_PROOF,
                "mode": DeliveryMode.RESTART_STARTUP,
                "incarnation_id": event.incarnation_id,
                "startup_delivery_id": event.startup_delivery_id,
            }
        case AcceptHandshake():
            return {
                "state": IntentState.DELIVERED,
                "delivered_at": _first(intent.delivered_at, now),
                "consumed_at": _first(intent.consumed_at, now),
                "handshake_at": now,
            }
        case Exhaust():
            return {"exhausted_at": now, "approval": event.approval}
        case Rearm():
            return {"exhausted_at": None, "approval": None, "epoch": intent.epoch + 1, "soft_redeliveries": 0}
        case Discard():
            return {
                **_acknowledged(intent.delivered_at, now),
                "discarded": True,
                "resolution": "discarded",
                "exhausted_at": None,
                "approval": None,
                **_NO_PROOF,
            }
        case _:
            assert_never(event)


def _first(earlier: int | None, now: int) -> int:
    """Times are written once: the first one keeps (section 10, invariant 9)."""
    return now if earlier is None else earlier


def _acknowledged(delivered_at: int | None, now: int) -> Mapping[str, object]:
    """Never earlier than the delivery, even where the clock was set back between the two (invariant 10)."""
    return {"state": IntentState.ACKNOWLEDGED, "acknowledged_at": max(now, delivered_at or now)}


def _soft(incarnation_id: str, turn: ModelTurn, batch_id: str, now: int) -> Mapping[str, object]:
    return {
        "mode": DeliveryMode.SOFT_BATCH,
        "incarnation_id": incarnation_id,
        "turn_id": turn.id,
        "turn_ordinal": turn.ordinal,
        "batch_id": batch_id,
        "bound_at": now,
    }


def _prepared(event: Prepare, now: int) -> Mapping[str, object]:
    """Result, payload, anchor, time and state in one write; a leftover tuple of a retired process is cleared."""
    result = event.result
    return {
        "state": IntentState.MATERIALIZED,
        "result_op": result.result_op,
        "workspace_commit": result.workspace_commit,
        "payload": result.payload,
        "payload_sha256": hashlib.sha256(result.payload).hexdigest(),
        "anchor_change_id": result.anchor.change_id,
        "anchor_commit_id": result.anchor.commit_id,
        "anchor_op_id": result.anchor.op_id,
        "prepared_at": now,
        **({} if event.live else _NO_PROOF),
    }
