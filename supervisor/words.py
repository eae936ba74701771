"""What a person is told: why an intent waits, and how far a delivery got, in words that claim no more than is known.

Pure.  The words are fixed and hold ids and reasons as they are stored, so whoever shows them escapes them.
"""

from __future__ import annotations

from typing import Final

from fencepost.actors.pane_state import conflicted, stop_failure
from fencepost.mailbox.delivery_records import DeliveryRecord
from fencepost.mailbox.ladder import Stage, Stop
from fencepost.mailbox.records import DeliveryMode, IncarnationRecord, IntentRecord, IntentState

__all__ = ["ABANDONED", "STAGES", "STOPS", "delivery_in_words", "needs_a_person", "reach_in_words", "why_it_waits"]

STAGES: Final = {
    Stage.STORED: "stored, not handed to the pane yet",
    Stage.DELIVERED: "reached the pane, not yet consumed",
    Stage.CONSUMED: "taken by the harness; whether the model has read it is not known",
    Stage.RESPONDED: "answered",
}
"""How far it got."""

STOPS: Final = {
    Stop.UNAVAILABLE: "not sent: nobody was there to take it",
    Stop.UNCERTAIN: "uncertain: it may have arrived, and nobody knows",
    Stop.EXPIRED: "given up before it was taken, or while its turn ran",
    Stop.REJECTED: "refused",
}
"""Where it stopped."""

ABANDONED: Final = "abandoned by a person; whether it arrived stays unknown"
"""What is said of a message, in either direction, that somebody settled."""


def delivery_in_words(delivery: DeliveryRecord) -> str:
    """How far a message to a pane got, with what its mechanism said of it."""
    words = reach_in_words(delivery)
    is_told = delivery.detail and delivery.outcome is not None and delivery.abandoned_at is None
    return f"{words} ({delivery.detail})" if is_told else words


def reach_in_words(delivery: DeliveryRecord) -> str:
    """How far a message to a pane got, in fixed words."""
    if delivery.abandoned_at is not None:
        return ABANDONED
    if delivery.outcome is None:
        return "on its way: it may have left, and nothing has come back yet"
    return STOPS[delivery.stop] if delivery.stop is not None else STAGES[delivery.stage or Stage.STORED]


def needs_a_person(intent: IntentRecord) -> bool:
    """Whether nothing but a person's word leads on."""
    return conflicted(intent)


def why_it_waits(intent: IntentRecord, latest: IncarnationRecord | None, head_id: str | None) -> str | None:
    """What has to happen next for an intent; None if it is over.

    `latest` is the pane's latest incarnation, `head_id` its oldest unresolved intent, where that is known.
    """
    if intent.resolved:
        return None
    if intent.exhausted_at is not None:
        return "every permitted start with its payload failed: a person must rearm or discard it"
    if head_id not in {None, intent.intent_id}:
        return f"waits for intent {head_id}, which comes first"
    live = latest is not None and latest.live
    not_stopped = stop_failure(latest)
    reason = f": {intent.reason}" if intent.reason else ""
    match intent.state:
        case IntentState.RECOVERY_REQUIRED:
            return f"a person must resolve the workspace{reason}"
        case IntentState.TOPOLOGY_DIVERGED:
            return f"a person must say where the base is{reason}"
        case IntentState.RECONCILING:
            return "the workspace is being reconciled; tool calls are blocked meanwhile"
        case _ if not_stopped is not None:
            return f"its old process could not be stopped, and nothing is started beside it: {not_stopped}"
        case IntentState.DETECTED:
            return _detected(live=live, ever=latest is not None)
        case _ if intent.mode is DeliveryMode.SOFT_BATCH:
            return _softly(intent, live=live)
        case _:
            return _by_restart(intent, live=live)


def _detected(*, live: bool, ever: bool) -> str:
    if live:
        return "waits for the next batch of tool calls, which it will block"
    return "waits to be reconciled; no process is live" if ever else "waits to be reconciled; no process was launched"


def _softly(intent: IntentRecord, *, live: bool) -> str:
    """Bound to a batch of tool calls, with a payload (protocol-intent.md section 4)."""
    if not live:
        return "its process is gone: waits for a replacement that is started with the payload"
    if intent.batch_completed_at is not None:
        if intent.state is IntentState.DELIVERED or intent.payload_offered_at is not None:
            return "its batch has completed: waits for a tool call of a later turn, which proves that it was read"
        return "its batch completed without the payload: waits for the next tool call, which gets it"
    if intent.state is IntentState.DELIVERED:
        return f"written to the harness: waits for batch {intent.batch_id} to complete"
    if intent.payload_offered_at is not None:
        return f"handed to the hook of batch {intent.batch_id}: waits to hear that it was written"
    return f"its payload is saved: waits for the blocked calls of batch {intent.batch_id} to fetch it"


def _by_restart(intent: IntentRecord, *, live: bool) -> str:
    """To be delivered as the first input of a replacement (section 7)."""
    if not live or intent.mode is None:
        return "its payload is saved: waits for a process that is started with it"
    if intent.handshake_at is None:
        return "a replacement was started: waits for it to accept the payload as its first input"
    return "accepted by the replacement: waits for its first tool call, which proves that it was read"
