"""The laws between rows, for a store that has no SQL to hold them: uniqueness, references, and what may follow what.

Pure.  schema/sqlite.sql says the same in SQL; tests/mailbox lets both stores run side by side and compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import frozen

from fencepost.mailbox.records import (
    ACTIVE_STATES,
    AcceptanceRecord,
    AdmissionRecord,
    ArgumentsRecord,
    BatchRecord,
    CallRecord,
    CheckpointRecord,
    DeliveryRecord,
    EntryRecord,
    IncarnationRecord,
    IntentRecord,
    MemoRecord,
    OutcomeRecord,
    ProjectionRecord,
    Record,
    RunRecord,
    TombstoneRecord,
    TriggerRecord,
    UsageRecord,
)

__all__ = ["FOREIGN_KEYS", "UNIQUES", "ForeignKey", "Unique", "ends_operation", "forbidden_succession"]


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
    """Where `field` of a `child` is set, a `parent` with that key exists, and the two agree in all of `matching`."""

    child: type[Record]
    field: str
    parent: type[Record]
    matching: tuple[str, ...] = ("pane_id",)

    def holds(self, child: Record, parent: Record) -> bool:
        """Return whether the two agree as they must."""
        return all(getattr(child, name) == getattr(parent, name) for name in self.matching)


def _always(_: Record) -> bool:
    return True


def _active(record: Record) -> bool:
    return isinstance(record, IntentRecord) and record.state in ACTIVE_STATES


def _live(record: Record) -> bool:
    return isinstance(record, IncarnationRecord) and record.live


def _open(record: Record) -> bool:
    return isinstance(record, BatchRecord) and record.open


def _unresolved(record: Record) -> bool:
    return isinstance(record, DeliveryRecord) and record.resolved_at is None


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
    Unique(IncarnationRecord, ("delivered_intent_id",), _has("delivered_intent_id"), "one incarnation marks an intent"),
    Unique(BatchRecord, ("pane_id", "seq"), _always, "a batch's seq is used once in its pane"),
    Unique(BatchRecord, ("pane_id",), _open, "one batch of a pane is open at a time"),
    Unique(CallRecord, ("batch", "source_index"), _always, "a source position is used once in its batch"),
    Unique(EntryRecord, ("pane_id", "seq"), _always, "an entry's seq is used once in its pane"),
    Unique(DeliveryRecord, ("pane_id",), _unresolved, "one delivery to a pane is unresolved at a time"),
    Unique(RunRecord, ("delivery_id",), _always, "a delivery is run at most once"),
)

FOREIGN_KEYS: Final = (
    ForeignKey(IntentRecord, "incarnation_id", IncarnationRecord),
    ForeignKey(TriggerRecord, "intent_id", IntentRecord),
    ForeignKey(IncarnationRecord, "delivered_intent_id", IntentRecord),
    ForeignKey(IncarnationRecord, "startup_intent_id", IntentRecord),
    ForeignKey(AdmissionRecord, "incarnation_id", IncarnationRecord),
    ForeignKey(AdmissionRecord, "intent_id", IntentRecord),
    ForeignKey(ProjectionRecord, "intent_id", IntentRecord),
    ForeignKey(BatchRecord, "incarnation_id", IncarnationRecord),
    ForeignKey(CallRecord, "batch", BatchRecord),
    ForeignKey(CallRecord, "intent_id", IntentRecord),
    ForeignKey(ArgumentsRecord, "invocation_id", CallRecord, matching=()),
    ForeignKey(MemoRecord, "invocation_id", CallRecord, matching=("status",)),
    ForeignKey(CheckpointRecord, "invocation_id", CallRecord, matching=("status",)),
    ForeignKey(OutcomeRecord, "invocation_id", CallRecord, matching=("status",)),
    ForeignKey(EntryRecord, "entry_id", CallRecord, matching=()),
    ForeignKey(UsageRecord, "entry_id", EntryRecord, matching=()),
    ForeignKey(AcceptanceRecord, "delivery_id", TombstoneRecord, matching=("pane_id", "binding", "fingerprint")),
    ForeignKey(RunRecord, "delivery_id", TombstoneRecord),
)


def forbidden_succession(old: Record, new: Record) -> str | None:
    """Return why `new` may never take the place of `old` (same key, next revision), or None if it may."""
    if old.SEAL is not None and getattr(old, old.SEAL) is not None:
        return f"is sealed by its {old.SEAL}"
    for name in old.FIXED:
        if getattr(old, name) != getattr(new, name):
            return f"would change {name}"
    for name in old.SETTLED:
        if getattr(old, name) is not None and getattr(old, name) != getattr(new, name):
            return f"would change {name}, which is set"
    return None


def ends_operation(record: Record) -> bool:
    """Return whether writing `record` ends an operation: its intent is resolved, or its batch of tool calls closed.

    From then on what led there is history, and a store that keeps history may have some to throw away.
    """
    if isinstance(record, IntentRecord):
        return record.resolved
    return isinstance(record, BatchRecord) and not record.open
