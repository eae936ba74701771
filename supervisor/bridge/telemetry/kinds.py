"""The runtime's events and dead letters as log records: their levels, and which of their data is told.  Pure.

Ids are told, and short words that say how something stands.  Arguments and results of tools, texts of messages and
payloads are not: they belong to the agents, and can be of any size.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from fencepost.supervisor import DeadLetter, Event, Reason

__all__ = [
    "KINDS",
    "OTHER",
    "REASONS",
    "dead_letter_fields",
    "event_fields",
    "kind_label",
    "level_of",
    "reason_label",
]

OTHER: Final = "other"
"""The label of whatever is not known here: a store may have been written by a later version, or by hand."""

KINDS: Final[Mapping[str, int]] = {
    "incarnation.launched": logging.INFO,
    "incarnation.ready": logging.INFO,
    "incarnation.retired": logging.INFO,
    "incarnation.stop_failed": logging.ERROR,
    "intent.detected": logging.INFO,
    "intent.coalesced": logging.INFO,
    "intent.reconciling": logging.INFO,
    "intent.materialized": logging.INFO,
    "intent.delivered": logging.INFO,
    "intent.batch_completed": logging.INFO,
    "intent.acknowledged": logging.INFO,
    "intent.superseded": logging.INFO,
    "intent.rearmed": logging.INFO,
    "intent.discarded": logging.INFO,
    "intent.recovery_required": logging.WARNING,
    "intent.topology_diverged": logging.WARNING,
    "intent.exhausted": logging.ERROR,
    "transcript.failed": logging.WARNING,
    "delivery.dispatched": logging.INFO,
    "delivery.reported": logging.INFO,
    "delivery.settled": logging.INFO,
    "delivery.accepted": logging.INFO,
    "delivery.ended": logging.INFO,
    "delivery.failed": logging.WARNING,
    "delivery.conversation_reset": logging.INFO,
    "tool_start": logging.DEBUG,
    "tool_update": logging.DEBUG,
    "tool_end": logging.DEBUG,
    "tool_replay.overlaps": logging.WARNING,
    "after_tool.failed": logging.WARNING,
    "message_start": logging.DEBUG,
    "message_end": logging.DEBUG,
    "entry_added": logging.DEBUG,
    "usage": logging.DEBUG,
    "turn_end": logging.DEBUG,
    "actor.crashed": logging.ERROR,
    "actor.quarantined": logging.ERROR,
    "actor.revived": logging.INFO,
    "runtime.faulted": logging.CRITICAL,
}
"""Every kind of event, and the level it is logged at."""

REASONS: Final = frozenset({*(reason.value for reason in Reason), "older_activation"})
"""Every reason of a dead letter."""

_IDS: Final = (
    "pane_id",
    "incarnation_id",
    "intent_id",
    "batch_id",
    "turn_id",
    "delivery_id",
    "startup_delivery_id",
    "session_id",
    "operation_id",
    "invocation_id",
    "tool_call_id",
    "run_id",
    "conversation_id",
    "entry_id",
)
_WORDS: Final = (
    "state",
    "stage",
    "stop",
    "outcome",
    "mechanism",
    "native",
    "delay",
    "reason",
    "harness",
    "epoch",
    "intent_seq",
    "from_base",
    "to_base",
    "trigger_op",
    "payload_sha256",
    "recovered",
    "tool_name",
    "source_index",
    "recovery",
    "checkpoint",
    "activation",
    "cause",
    "error",
    "fault",
    "forgotten",
)
_TOLD_MAX: Final = 300


def level_of(event: Event) -> int:
    """The level it is logged at.  A delivery of which nobody knows is worth a warning, however it was reported."""
    level = KINDS.get(event.kind, logging.INFO)
    if event.kind == "delivery.reported" and event.data.get("stop") == "uncertain":
        return logging.WARNING
    return level


def event_fields(event: Event) -> dict[str, object]:
    """The fields of its record; every value is an int, a float, a bool or a short text."""
    fields: dict[str, object] = {"kind": event.kind[:_TOLD_MAX], "seq": event.seq, "address": event.address[:_TOLD_MAX]}
    fields |= _ids_of(event.address)
    for name in (*_IDS, *_WORDS):
        value = event.data.get(name)
        if isinstance(value, str):
            fields[name] = value[:_TOLD_MAX]
        elif isinstance(value, int | float):
            fields[name] = value
    return fields


def dead_letter_fields(letter: DeadLetter) -> dict[str, object]:
    """The fields of its record."""
    return {
        "seq": letter.seq,
        "address": letter.address[:_TOLD_MAX],
        **_ids_of(letter.address),
        "incarnation_id": letter.incarnation_id,
        "call": letter.call[:_TOLD_MAX],
        "reason": letter.reason[:_TOLD_MAX],
        "detail": letter.detail[:_TOLD_MAX],
    }


def kind_label(kind: str) -> str:
    """The kind, or `other`."""
    return kind if kind in KINDS else OTHER


def reason_label(reason: str) -> str:
    """The reason, or `other`."""
    return reason if reason in REASONS else OTHER


def _ids_of(address: str) -> dict[str, object]:
    """The ids that an actor's address is made of."""
    kind, _, key = address.partition(":")
    match kind, key.split("/"):
        case "pane", _:
            return {"pane_id": key[:_TOLD_MAX]}
        case "intent", _:
            return {"intent_id": key[:_TOLD_MAX]}
        case "batch", [pane, operation, turn]:
            names = {"pane_id": pane, "operation_id": operation, "turn_id": turn}
            return {name: part.replace("%2F", "/").replace("%25", "%")[:_TOLD_MAX] for name, part in names.items()}
        case _:
            return {}
