"""The laws between rows, for a store that has no SQL to hold them: uniqueness, references, and what may follow what.

Pure.  schema/sqlite.sql says the same in SQL; tests/mailbox lets both stores run side by side and compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import frozen

from fencepost.mailbox.records import (
    ACTIVE_STATES,
    AdmissionRecord,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    ProjectionRecord,
    Record,
    TriggerRecord,
)

__all__ = ["FOREIGN_KEYS", "UNIQUES", "ForeignKey", "Unique", "forbidden_succession"]


@frozen(eq=False)
class Unique:
    """No two records of `record_type` for which `among` holds agree in all of `fields`."""

    record_type: type[Record]
    fields: tuple[str, ...]
    among: Callable[[Record], bool]
    why: str

    def value_of(self, record: Record) -> tuple[object, ...] | None:
        """Return what must be unique, or None if the law does not bind this record."""
        return tuple(getattr(record, name) for name in self.fields) if self.among(record) else None


@frozen(eq=False)
class ForeignKey:
    """Where `field` of a `child` is set, a `parent` with that key and the same pane exists."""

    child: type[Record]
    field: str
    parent: type[Record]


def _always(_: Record) -> bool:
    return True


def _active(record: Record) -> bool:
    return isinstance(record, IntentRecord) and record.state in ACTIVE_STATES


def _live(record: Record) -> bool:
    return isinstance(record, IncarnationRecord) and record.live


def _has(name: str) -> Callable[[Record], bool]:
    return lambda record: getattr(record, name) is not None


UNIQUES: Final = (
    Unique(IntentRecord, ("pane_id", "seq"), _always, "a seq is used once in its pane"),
    Unique(IntentRecord, ("pane_id",), _active, "one intent of a pane is active at a time"),
    Unique(IncarnationRecord, ("pane_id", "epoch"), _always, "an epoch is used once in its pane"),
    Unique(IncarnationRecord, ("pane_id",), _live, "one incarnation of a pane is live at a time"),
    Unique(
        IncarnationRecord, ("startup_delivery_id",), _has("startup_delivery_id"), "a startup delivery id is used once"
    ),
    Unique(
        IncarnationRecord, ("delivered_intent_id",), _has("delivered_intent_id"), "one incarnation marks an intent"
    ),
)

FOREIGN_KEYS: Final = (
    ForeignKey(IntentRecord, "incarnation_id", IncarnationRecord),
    ForeignKey(TriggerRecord, "intent_id", IntentRecord),
    ForeignKey(IncarnationRecord, "delivered_intent_id", IntentRecord),
    ForeignKey(IncarnationRecord, "startup_intent_id", IntentRecord),
    ForeignKey(AdmissionRecord, "incarnation_id", IncarnationRecord),
    ForeignKey(AdmissionRecord, "intent_id", IntentRecord),
    ForeignKey(ProjectionRecord, "intent_id", IntentRecord),
)

PREPARED_FIELDS: Final = (
    "prepared_at",
    "payload_sha256",
    "payload",
    "result_op",
    "workspace_commit",
    "anchor_change_id",
    "anchor_commit_id",
    "anchor_op_id",
    "to_base",
)


def forbidden_succession(old: Record, new: Record) -> str | None:
    """Return why `new` may never take the place of `old` (same key, next revision), or None if it may."""
    for name in old.FIXED:
        if getattr(old, name) != getattr(new, name):
            return f"would change {name}"
    if isinstance(old, IntentRecord):
        assert isinstance(new, IntentRecord)
        return _forbidden_intent(old, new)
    if isinstance(old, IncarnationRecord):
        assert isinstance(new, IncarnationRecord)
        if old.retired_at is not None and new.retired_at != old.retired_at:
            return "a retired incarnation stays retired"
    return None


def _forbidden_intent(old: IntentRecord, new: IntentRecord) -> str | None:
    if old.state is IntentState.ACKNOWLEDGED:
        return "an acknowledged intent is never written again"
    if old.prepared_at is not None and any(getattr(old, name) != getattr(new, name) for name in PREPARED_FIELDS):
        return "what was prepared never changes"
    if old.delivered_at is not None and new.delivered_at != old.delivered_at:
        return "the first delivery time stays"
    return None
