"""A mutation: all that one transition writes, as one value.

The mutation line commits each mutation whole or not at all.  Pure: building one touches no store.

    guards        rows that must stand as the decision saw them, though this mutation does not write them
    deletes       keys to remove, before anything is put; removing what is absent is no error
    puts          records to insert (unversioned, or revision 1) or to update (versioned, guarded by revision - 1)
    events        what happened, told to followers once durable; their gap-free `seq` is given at commit
    dead_letters  what was refused, kept with a `seq` of their own

Two actors that change together put their halves into one mutation: `first.joined(second)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from attrs import field, frozen

from fencepost.mailbox.records import Record

__all__ = [
    "Absent",
    "DeadLetter",
    "Delete",
    "Event",
    "Guard",
    "Live",
    "Mutation",
    "NewDeadLetter",
    "NewEvent",
    "Unchanged",
]

JsonScalar: TypeAlias = str | int | float | bool | None


@frozen
class Unchanged:
    """Guard: the versioned row `record.key` still has exactly `record.revision`."""

    record: Record


@frozen
class Absent:
    """Guard: no row of `record_type` has this key."""

    record_type: type[Record]
    key: tuple[object, ...]


@frozen
class Live:
    """Guard: this incarnation is there and was not retired."""

    incarnation_id: str


Guard: TypeAlias = Unchanged | Absent | Live


@frozen
class Delete:
    """Remove the row of `record_type` with this key."""

    record_type: type[Record]
    key: tuple[object, ...]


@frozen(kw_only=True)
class NewEvent:
    """An event not yet committed.  `data` holds JSON values only."""

    kind: str
    address: str
    at: int
    data: Mapping[str, object] = field(factory=dict)


@frozen(kw_only=True)
class Event:
    """Something that happened, durable (contract G-6).  `seq` is gap-free; None for live-only events."""

    seq: int | None
    at: int
    kind: str
    address: str
    data: Mapping[str, object]


@frozen(kw_only=True)
class NewDeadLetter:
    """A refused call, not yet committed."""

    at: int
    address: str
    call: str
    incarnation_id: str | None
    reason: str
    detail: str


@frozen(kw_only=True)
class DeadLetter:
    """A call that was refused or fenced, durable (contract G-7)."""

    seq: int
    at: int
    address: str
    call: str
    incarnation_id: str | None
    reason: str
    detail: str


@frozen(kw_only=True)
class Mutation:
    """Everything one transition writes.  `label` is `kind.transition`, as chaos points and errors show it."""

    label: str
    guards: tuple[Guard, ...] = ()
    puts: tuple[Record, ...] = ()
    deletes: tuple[Delete, ...] = ()
    events: tuple[NewEvent, ...] = ()
    dead_letters: tuple[NewDeadLetter, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether committing it would change nothing."""
        return not (self.guards or self.puts or self.deletes or self.events or self.dead_letters)

    def joined(self, other: Mutation) -> Mutation:
        """This mutation's writes, then `other`'s, as one; the label is `other`'s, whose actor commits it."""
        return Mutation(
            label=other.label,
            guards=self.guards + other.guards,
            puts=self.puts + other.puts,
            deletes=self.deletes + other.deletes,
            events=self.events + other.events,
            dead_letters=self.dead_letters + other.dead_letters,
        )
