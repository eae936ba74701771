"""What the parts of the audit share: what they find, and the rows they look at."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from fencepost.mailbox.records import RECORD_TYPES, Record

__all__ = ["TYPES", "Row", "Stored", "Violation", "later", "sha256_of", "violation"]

Row: TypeAlias = Mapping[str, Any]
"""A row as it is stored.  A bad one holds anything anywhere, so no value is used before its type was looked at."""

TYPES: Final[Mapping[str, type[Record]]] = {kind.TABLE: kind for kind in RECORD_TYPES}
"""The record type of each table that has one."""


@frozen
class Violation:
    """One broken law: its number, the table and the readable key of the row that shows it, and what is wrong."""

    number: int
    table: str
    key: str
    message: str


def violation(number: int, table: str, row: Row, message: str) -> Violation:
    """A violation that this row of `table` shows; what has no record type, an event say, goes by its seq."""
    names = TYPES[table].KEY if table in TYPES else ("seq",)
    key = ", ".join(value if isinstance(value, str) else repr(value) for value in (row[name] for name in names))
    return Violation(number, table, key, message)


@frozen
class Stored:
    """What the laws between rows need: intents and incarnations by key, without the payloads."""

    intents: dict[object, Row] = field(factory=dict)
    incarnations: dict[object, Row] = field(factory=dict)
    intents_of: dict[object, list[Row]] = field(factory=lambda: defaultdict(list))
    incarnations_of: dict[object, list[Row]] = field(factory=lambda: defaultdict(list))

    def parent(self, table: str, key: object) -> Row | None:
        """The row of `intents` or `incarnations` with this key."""
        return (self.intents if table == "intents" else self.incarnations).get(key)

    def live_of(self, pane_id: object) -> list[Row]:
        """The incarnations of a pane that nobody retired."""
        return [row for row in self.incarnations_of.get(pane_id, ()) if row["retired_at"] is None]


def later(one: object, other: object) -> bool:
    """Whether both are times and the first is the later one."""
    return type(one) is int and type(other) is int and one > other


def sha256_of(payload: object) -> str | None:
    """The hash of a payload, as lower-case hex, or None if this is no payload."""
    return hashlib.sha256(payload).hexdigest() if isinstance(payload, bytes) else None
