"""What followers are told of an intent's transitions (contract G-6).  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.actors.intent_events import (
    AcceptHandshake,
    Acknowledge,
    AcknowledgeRecovered,
    BeginUnattended,
    BindSoft,
    Coalesce,
    CompleteBatch,
    Discard,
    DivergeTopology,
    Exhaust,
    IntentEvent,
    MarkDelivered,
    Prepare,
    Rearm,
    RequireRecovery,
    Resolve,
    Supersede,
)
from fencepost.mailbox.mutation import NewEvent
from fencepost.mailbox.records import IntentRecord, IntentState

__all__ = ["NEWS", "news_of"]

NEWS: Final[Mapping[type[IntentEvent], str]] = {
    Coalesce: "intent.coalesced",
    Supersede: "intent.superseded",
    BindSoft: "intent.reconciling",
    BeginUnattended: "intent.reconciling",
    Prepare: "intent.materialized",
    RequireRecovery: "intent.recovery_required",
    DivergeTopology: "intent.topology_diverged",
    Resolve: "intent.reconciling",
    MarkDelivered: "intent.delivered",
    CompleteBatch: "intent.batch_completed",
    Acknowledge: "intent.acknowledged",
    AcknowledgeRecovered: "intent.acknowledged",
    AcceptHandshake: "intent.delivered",
    Exhaust: "intent.exhausted",
    Rearm: "intent.rearmed",
    Discard: "intent.discarded",
}
"""The kind of each; an offer, a rebind and a bind of a replacement are no news of their own."""


def news_of(event: IntentEvent, after: IntentRecord, now: int) -> tuple[NewEvent, ...]:
    """The event followers see once `after` is durable."""
    kind = NEWS.get(type(event))
    if kind is None:
        return ()
    if after.state is IntentState.DETECTED and isinstance(event, Resolve):
        kind = "intent.detected"
    data: dict[str, object] = {
        "intent_id": after.intent_id,
        "pane_id": after.pane_id,
        "intent_seq": after.seq,
        "state": after.state.value,
    }
    for name in ("incarnation_id", "batch_id", "payload_sha256"):
        value = getattr(after, name)
        if value is not None:
            data[name] = value
    match event:
        case RequireRecovery() | DivergeTopology() | Supersede():
            data["reason"] = after.reason
        case Coalesce():
            data["to_base"] = after.to_base
        case AcknowledgeRecovered():
            data["recovered"] = True
        case _:
            pass
    return (NewEvent(kind=kind, address=f"intent:{after.intent_id}", at=now, data=data),)
