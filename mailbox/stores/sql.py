"""SQL texts, made from record types and queries.  Pure: it knows no database.

Binding NULL through `sqlite3` costs ten times what binding a string does (it looks for an adapter first), and most
columns of an intent are NULL most of the time.  So a statement is made for each pattern of absent values, with NULL
written out, and remembered; the state machine has only a few dozen such patterns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from itertools import repeat
from typing import Any, Final

from fencepost.mailbox.codec import codec_of, plain
from fencepost.mailbox.query import NOT_NULL, Query
from fencepost.mailbox.records import Record

__all__ = ["TableSql", "count_sql", "select_sql", "table_sql"]

PATTERNS_MAX: Final = 256
"""How many patterns of absent values a table remembers statements for before it starts afresh."""

Row = tuple[object, ...]


def _picker(indexes: Sequence[int]) -> Callable[[Row], Row]:
    """Return a function that picks these columns from a row, always as a tuple."""
    if len(indexes) == 1:
        (only,) = indexes
        return lambda row: (row[only],)
    return operator.itemgetter(*indexes) if indexes else lambda _row: ()


class TableSql:
    """The statements of one record type's table.

    `insert` and `update` answer a statement and its parameters for one record.  An update changes exactly the row
    with the record's key, the revision before and the same fixed fields, or none.
    """

    def __init__(self, record_type: type[Record]) -> None:
        codec = codec_of(record_type)
        table, key, fixed = record_type.TABLE, record_type.KEY, record_type.FIXED
        by_key = " AND ".join(f"{name} = ?" for name in key)
        self.table = table
        self.select = f"SELECT {', '.join(codec.columns)} FROM {table}"  # noqa: S608 - names are the program's own
        self.delete = f"DELETE FROM {table} WHERE {by_key}"  # noqa: S608
        self.exists = f"SELECT 1 FROM {table} WHERE {by_key}"  # noqa: S608
        self.identity = f"SELECT {', '.join(('revision', *fixed))} FROM {table} WHERE {by_key}"  # noqa: S608
        self._encode = codec.encode
        self._columns = codec.columns
        self._changing = tuple(name for name in codec.columns if name not in key and name not in fixed)
        self._where = " AND ".join([by_key, "revision = ?", *(f"{name} IS ?" for name in fixed)])
        index_of = codec.columns.index
        self._changing_of = _picker([index_of(name) for name in self._changing])
        self._key_of = _picker([index_of(name) for name in key])
        self._fixed_of = _picker([index_of(name) for name in fixed])
        self._inserts: dict[bytes, str] = {}
        self._updates: dict[bytes, str] = {}

    def insert(self, record: Record) -> tuple[str, Sequence[object]]:
        """Return the statement that inserts `record`, and its parameters."""
        row = self._encode(record)
        pattern = bytes(map(operator.is_, row, repeat(None)))
        sql = self._inserts.get(pattern) or self._remember(self._inserts, pattern, self._insert_sql)
        return sql, [value for value in row if value is not None]

    def update(self, record: Record, revision_before: int) -> tuple[str, Sequence[object]]:
        """Return the statement that updates `record` from `revision_before`, and its parameters."""
        row = self._encode(record)
        values = self._changing_of(row)
        pattern = bytes(map(operator.is_, values, repeat(None)))
        sql = self._updates.get(pattern) or self._remember(self._updates, pattern, self._update_sql)
        parameters = [value for value in values if value is not None]
        parameters += self._key_of(row)
        parameters.append(revision_before)
        parameters += self._fixed_of(row)
        return sql, parameters

    def _remember(self, known: dict[bytes, str], pattern: bytes, make: Callable[[bytes], str]) -> str:
        if len(known) >= PATTERNS_MAX:
            known.clear()
        known[pattern] = sql = make(pattern)
        return sql

    def _insert_sql(self, pattern: bytes) -> str:
        present = [name for name, absent in zip(self._columns, pattern, strict=True) if not absent]
        marks = ", ".join("?" * len(present))
        return f"INSERT INTO {self.table} ({', '.join(present)}) VALUES ({marks})"  # noqa: S608

    def _update_sql(self, pattern: bytes) -> str:
        changes = ", ".join(
            f"{name} = {'NULL' if absent else '?'}" for name, absent in zip(self._changing, pattern, strict=True)
        )
        return f"UPDATE {self.table} SET {changes} WHERE {self._where}"  # noqa: S608


@cache
def table_sql(record_type: type[Record]) -> TableSql:
    """Return the statements of `record_type`'s table, made once."""
    return TableSql(record_type)


def _where(query: Query[Any]) -> tuple[str, list[object]]:
    """Return ` WHERE …`, or nothing, and its parameters."""
    terms: list[str] = []
    parameters: list[object] = []
    for name, value in query.where.items():
        if value is None:
            terms.append(f"{name} IS NULL")
        elif value is NOT_NULL:
            terms.append(f"{name} IS NOT NULL")
        elif isinstance(value, tuple):
            terms.append(f"{name} IN ({', '.join('?' * len(value))})")
            parameters.extend(map(plain, value))
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


def count_sql(query: Query[Any]) -> tuple[str, list[object]]:
    """Return the statement that counts what `query` matches, and its parameters."""
    where, parameters = _where(query)
    return f"SELECT count(*) FROM {query.record_type.TABLE}{where}", parameters  # noqa: S608
