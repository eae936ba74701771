"""SQL texts, made from record types and queries.  Pure: it knows no database.

Binding NULL through `sqlite3` costs ten times what binding a string does (it looks for an adapter first), and most
columns of an intent are NULL most of the time.  So a statement is made for each pattern of absent values, with NULL
written out, and remembered; the state machine has only a few dozen such patterns.

An UPDATE that assigns a foreign key makes SQLite keep a journal of that one statement, even if the value stays; one
that assigns a payload writes the payload again.  Most updates change neither.  So an update has up to three forms, to
be tried in turn: one that assigns neither and demands that both stand as the record has them, one that assigns what
was not settled yet, one that assigns everything.  Each demands all it does not assign, so any of them that changes a
row has done the right thing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, Final

import orjson

from fencepost.mailbox.codec import codec_of, plain
from fencepost.mailbox.query import NOT_NULL, Above, Query
from fencepost.mailbox.records import Record
from fencepost.mailbox.stores.laws import FOREIGN_KEYS

__all__ = ["KEPT_BY_KEY", "VARIABLES_MAX", "TableSql", "count_sql", "field_sql", "select_sql", "table_sql"]

KEPT_BY_KEY: Final = frozenset({"triggers", "admissions", "projections", "calls", "memos", "inbound_fences"})
"""The tables WITHOUT ROWID: nothing in them tells which row was written first."""
PATTERNS_MAX: Final = 256
"""How many patterns of absent values a table remembers statements for before it starts afresh."""
VARIABLES_MAX: Final = 10_000
"""More wanted values than this are bound as one JSON text: SQLite as it is built by default binds 32,766 at most."""

Row = tuple[object, ...]


class _Form:
    """One statement of a table, in as many versions as there are patterns of absent values.

    `bound` are the columns whose values it takes, in order; `write` makes the text from each with its mark, a
    placeholder or NULL.
    """

    def __init__(
        self,
        bound: Sequence[str],
        values_of: Callable[[Record], Row],
        write: Callable[[Sequence[tuple[str, str]]], str],
    ) -> None:
        self._bound = bound
        self._values_of = values_of
        self._write = write
        self._texts: dict[bytes, str] = {}

    def statement(self, record: Record) -> tuple[str, list[object]]:
        """Return the text for this record's pattern of absent values, and the values to bind."""
        values = self._values_of(record)
        pattern = bytes(map(operator.is_, values, repeat(None)))
        text = self._texts.get(pattern)
        if text is None:
            text = self._make(pattern)
        return text, [value for value in values if value is not None]

    def _make(self, pattern: bytes) -> str:
        if len(self._texts) >= PATTERNS_MAX:
            self._texts.clear()
        marks = [(name, "NULL" if absent else "?") for name, absent in zip(self._bound, pattern, strict=True)]
        self._texts[pattern] = text = self._write(marks)
        return text


class TableSql:
    """The statements of one record type's table."""

    def __init__(self, record_type: type[Record]) -> None:
        codec = codec_of(record_type)
        table, self._key = record_type.TABLE, record_type.KEY
        by_key = " AND ".join(f"{name} = ?" for name in self._key)
        self.select = f"SELECT {', '.join(codec.columns)} FROM {table}"  # noqa: S608 - names are the program's own
        self.select_one = f"{self.select} WHERE {by_key}"
        self.delete = f"DELETE FROM {table} WHERE {by_key}"  # noqa: S608
        self.exists = f"SELECT 1 FROM {table} WHERE {by_key}"  # noqa: S608
        self.revision = f"SELECT revision FROM {table} WHERE {by_key}"  # noqa: S608
        self._type = record_type
        self._columns = codec.columns
        self._encoder_of = codec.encoder_of
        self._insert = _Form(codec.columns, codec.encode, self._write_insert)
        self._updates = self._update_forms() if record_type.VERSIONED else ()

    def insert(self, record: Record) -> tuple[str, list[object]]:
        """Return the statement that inserts `record`, and its parameters."""
        return self._insert.statement(record)

    def updates(self, record: Record) -> Iterator[tuple[str, list[object]]]:
        """Yield the statements, each with its parameters, to be tried until one of them changes a row.

        If none does, the stored row has not the revision before the record's, or may not be followed by it.
        """
        for form in self._updates:
            yield form.statement(record)

    def _write_insert(self, marks: Sequence[tuple[str, str]]) -> str:
        present = [name for name, mark in marks if mark == "?"]
        places = ", ".join("?" * len(present))
        return f"INSERT INTO {self._type.TABLE} ({', '.join(present)}) VALUES ({places})"  # noqa: S608

    def _update_forms(self) -> tuple[_Form, ...]:
        """Return the forms of an update, the one that assigns least first."""
        fixed, settled = self._type.FIXED, self._type.SETTLED
        unassigned = {*fixed, *self._type.KEY}
        references = tuple(key.field for key in FOREIGN_KEYS if key.child is self._type and key.field not in unassigned)
        return tuple(self._update_form((*fixed, *kept)) for kept in ((*references, *settled), references, ()))

    def _update_form(self, kept: tuple[str, ...]) -> _Form:
        """Return the form that demands `kept` and assigns the rest."""
        assigned = [name for name in self._columns if name not in self._key and name not in kept]
        settling = [name for name in self._type.SETTLED if name in assigned]
        bound = (*assigned, *self._key, "revision", *kept, *settling)

        def write(marks: Sequence[tuple[str, str]]) -> str:
            rest = iter(marks)
            changes = ", ".join(f"{name} = {mark}" for name, mark in islice(rest, len(assigned)))
            terms = [f"{name} = {mark}" for name, mark in islice(rest, len(self._key))]
            terms += [f"{name} = {mark} - 1" for name, mark in islice(rest, 1)]
            terms += [f"+{name} IS {mark}" for name, mark in islice(rest, len(kept))]
            terms += [f"(+{name} IS NULL OR +{name} IS {mark})" for name, mark in rest]
            if self._type.SEAL is not None:
                terms.append(f"{self._type.SEAL} IS NULL")
            return f"UPDATE {self._type.TABLE} SET {changes} WHERE {' AND '.join(terms)}"  # noqa: S608

        return _Form(bound, self._encoder_of(bound), write)


_TABLES: Final[dict[type[Record], TableSql]] = {}


def table_sql(record_type: type[Record]) -> TableSql:
    """Return the statements of `record_type`'s table, made once."""
    table = _TABLES.get(record_type)
    if table is None:
        table = _TABLES[record_type] = TableSql(record_type)
    return table


def _where(query: Query[Any]) -> tuple[str, list[object]]:
    """Return ` WHERE …`, or nothing, and its parameters."""
    terms: list[str] = []
    parameters: list[object] = []
    for name, value in query.where.items():
        if value is None:
            terms.append(f"{name} IS NULL")
        elif value is NOT_NULL:
            terms.append(f"{name} IS NOT NULL")
        elif isinstance(value, bool):
            terms.append(f"{name} = {value:d}")  # written out, so that a partial index over it can be used
        elif isinstance(value, tuple) and len(value) > VARIABLES_MAX:
            terms.append(f"{name} IN (SELECT value FROM json_each(?))")  # noqa: S608 - the program's own name
            parameters.append(orjson.dumps([plain(one) for one in value]).decode())
        elif isinstance(value, tuple):
            terms.append(f"{name} IN ({', '.join('?' * len(value))})")
            parameters.extend(map(plain, value))
        elif isinstance(value, Above):
            terms.append(f"{name} > ?")
            parameters.append(value.number)
        else:
            terms.append(f"{name} = ?")
            parameters.append(plain(value))
    return (f" WHERE {' AND '.join(terms)}" if terms else ""), parameters


def select_sql(query: Query[Any]) -> tuple[str, list[object]]:
    """Return the statement that answers `query` with rows in the codec's order of columns, and its parameters."""
    where, parameters = _where(query)
    direction = " DESC" if query.descending else ""
    order = ", ".join(f"{name}{direction}" for name in query.order)
    sql = f"{table_sql(query.record_type).select}{where} ORDER BY {order}"
    if query.limit is not None:
        sql += " LIMIT ?"
        parameters.append(query.limit)
    return sql, parameters


def field_sql(query: Query[Any], name: str) -> tuple[str, list[object]]:
    """Return the statement that answers what the field `name` of each match holds, and its parameters."""
    where, parameters = _where(query)
    table = query.record_type.TABLE
    order = "" if table in KEPT_BY_KEY else " ORDER BY rowid"
    return f"SELECT {name} FROM {table}{where}{order}", parameters  # noqa: S608


def count_sql(query: Query[Any]) -> tuple[str, list[object]]:
    """Return the statement that counts what `query` matches, and its parameters."""
    where, parameters = _where(query)
    return f"SELECT count(*) FROM {query.record_type.TABLE}{where}", parameters  # noqa: S608
