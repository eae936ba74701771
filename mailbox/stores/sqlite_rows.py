"""What a SQLite store holds, read through a cursor: by its writer, and by readers beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from fencepost.mailbox.codec import DEAD_LETTER_COLUMNS, EVENT_COLUMNS, codec_of, decode_dead_letter, decode_event
from fencepost.mailbox.errors import CorruptEvent, CorruptRecord
from fencepost.mailbox.mutation import DeadLetter, Event
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import Record
from fencepost.mailbox.stores.sql import field_sql, select_sql

__all__ = ["select_dead_letters", "select_events", "select_field", "select_records", "text_or_bytes"]

R = TypeVar("R", bound=Record)

_EVENTS_SQL: Final = f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
_LETTERS_SQL: Final = f"SELECT {', '.join(DEAD_LETTER_COLUMNS)} FROM dead_letters WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608


def text_or_bytes(stored: bytes) -> str | bytes:
    """Return what a TEXT column holds, as bytes where it is not UTF-8; a connection's `text_factory`."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _rows(cursor: sqlite3.Cursor, sql: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
    """Return the rows; text that is not UTF-8, which no store of ours writes, comes as bytes.

    sqlite3 raises on such text, and that error tells neither the row nor the column; who decodes the bytes can.
    """
    try:
        return cursor.execute(sql, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if not str(error).startswith("Could not decode"):
            raise
    cursor.connection.text_factory = text_or_bytes
    try:
        return cursor.execute(sql, parameters).fetchall()
    finally:
        cursor.connection.text_factory = str


def select_records(cursor: sqlite3.Cursor, query: Query[R], where: str) -> list[R]:
    """Return the records that match.  Raises `CorruptRecord` with `where` for one that no protocol can have written."""
    decode = codec_of(query.record_type).decode
    return [decode(row, where) for row in _rows(cursor, *select_sql(query))]


def select_field(cursor: sqlite3.Cursor, query: Query[Any], name: str) -> list[object]:
    """Return what one field of each match holds, as it is stored; see `LoadFields`."""
    return [value for (value,) in _rows(cursor, *field_sql(query, name))]


def _numbered(cursor: sqlite3.Cursor, sql: str, after: int, limit: int | None) -> list[tuple[Any, ...]]:
    """Return rows of a table with a seq."""
    return _rows(cursor, sql, (after, -1 if limit is None else limit))


def select_events(cursor: sqlite3.Cursor, after: int, limit: int | None, where: str) -> list[Event]:
    """Return the stored events with a seq over `after`, oldest first, up to one that cannot be read.

    Raises `CorruptEvent` if that is the first; so who reads on from what came gets all there is before it, and who
    reads on from its number what is behind.
    """
    events: list[Event] = []
    for row in _numbered(cursor, _EVENTS_SQL, after, limit):
        try:
            events.append(decode_event(row, where))
        except CorruptEvent:
            if not events:
                raise
            break
    return events


def select_dead_letters(cursor: sqlite3.Cursor, after: int, limit: int | None, where: str) -> list[DeadLetter]:
    """Return the dead letters with a seq over `after`, oldest first.  Raises `CorruptRecord`."""
    rows = _numbered(cursor, _LETTERS_SQL, after, limit)
    for row in rows:
        if any(type(value) is bytes for value in row):
            raise CorruptRecord(f"{where}: dead_letters: seq {row[0]}", "holds text that is not UTF-8")
    return [decode_dead_letter(row) for row in rows]
