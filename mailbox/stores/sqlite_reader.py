"""The reading side of a SQLite store, beside an open runtime or without one."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self, TypeVar, cast

from fencepost.mailbox.errors import StoreFault
from fencepost.mailbox.mutation import DeadLetter, Event
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import Record
from fencepost.mailbox.stores.ownership import why_no_file
from fencepost.mailbox.stores.sql import count_sql
from fencepost.mailbox.stores.sqlite_file import connect_read_only, opening_fault, require_ours
from fencepost.mailbox.stores.sqlite_rows import select_dead_letters, select_events, select_records, text_or_bytes
from fencepost.mailbox.stores.store import require_raw_table

__all__ = ["SqliteReader"]

R = TypeVar("R", bound=Record)

_PANES_SQL: Final = """
    WITH RECURSIVE pane(id) AS (
        SELECT min(id) FROM (SELECT min(pane_id) AS id FROM incarnations UNION ALL SELECT min(pane_id) FROM intents)
        UNION ALL
        SELECT (
            SELECT min(id) FROM (
                SELECT (SELECT min(pane_id) FROM incarnations WHERE pane_id > pane.id) AS id
                UNION ALL SELECT (SELECT min(pane_id) FROM intents WHERE pane_id > pane.id)
            )
        ) FROM pane WHERE pane.id IS NOT NULL
    )
"""
"""Hops from one pane to the next through the indexes instead of going through all their rows."""
_PANE_COUNT_SQL: Final = f"{_PANES_SQL} SELECT count(id) FROM pane"  # noqa: S608 - nothing in it comes from outside
_PANE_IDS_SQL: Final = f"{_PANES_SQL} SELECT id FROM pane WHERE id IS NOT NULL"  # noqa: S608 - as above
RAW_ROWS_AT_ONCE: Final = 64


class SqliteReader:
    """The reading side: a connection of its own that can only read, beside an open runtime or without one."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        if not self._path.is_file():
            raise StoreFault(f"{self._path} {why_no_file(self._path)}")
        with self._faults():
            self._connection = connect_read_only(self._path)
            try:
                require_ours(self._connection, self._path)
                if not self._connection.execute("PRAGMA user_version").fetchone()[0]:
                    raise StoreFault(f"{self._path} has nothing in it yet")
            except BaseException:
                self._connection.close()
                raise

    @contextmanager
    def _faults(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise opening_fault(self._path, error) from error

    def select(self, query: Query[R]) -> list[R]:
        """See `StoreReader.select`."""
        with self._faults():
            return select_records(self._connection.cursor(), query, str(self._path))

    def count(self, query: Query[R]) -> int:
        """See `StoreReader.count`."""
        with self._faults():
            return cast("int", self._connection.execute(*count_sql(query)).fetchone()[0])

    def events(self, after: int = 0, limit: int | None = None) -> list[Event]:
        """See `StoreReader.events`."""
        with self._faults():
            return select_events(self._connection.cursor(), after, limit, str(self._path))

    def dead_letters(self, after: int = 0, limit: int | None = None) -> list[DeadLetter]:
        """See `StoreReader.dead_letters`."""
        with self._faults():
            return select_dead_letters(self._connection.cursor(), after, limit, str(self._path))

    def pane_count(self) -> int:
        """See `StoreReader.pane_count`; two index seeks a pane, however long its history is."""
        with self._faults():
            return cast("int", self._connection.execute(_PANE_COUNT_SQL).fetchone()[0])

    def pane_ids(self) -> list[str]:
        """See `StoreReader.pane_ids`; as cheap as counting them."""
        with self._faults():
            self._connection.text_factory = text_or_bytes
            try:
                found = self._connection.execute(_PANE_IDS_SQL).fetchall()
            finally:
                self._connection.text_factory = str
        return sorted(pane_id for (pane_id,) in found if type(pane_id) is str)

    def dead_letter_count(self) -> int:
        """See `StoreReader.dead_letter_count`."""
        with self._faults():
            return cast("int", self._connection.execute("SELECT count(*) FROM dead_letters").fetchone()[0])

    def raw(self, table: str) -> Iterator[dict[str, object]]:
        """See `StoreReader.raw`."""
        require_raw_table(table)
        return self._raw(table)

    def _raw(self, table: str) -> Iterator[dict[str, object]]:
        with self._faults():
            cursor = self._connection.execute(f"SELECT * FROM {table}")  # noqa: S608 - one of RAW_TABLES
            columns = [description[0] for description in cursor.description]
            while rows := self._fetch_raw(cursor):
                for row in rows:
                    yield dict(zip(columns, row, strict=True))

    def _fetch_raw(self, cursor: sqlite3.Cursor) -> list[tuple[object, ...]]:
        self._connection.text_factory = text_or_bytes
        try:
            return cursor.fetchmany(RAW_ROWS_AT_ONCE)
        finally:
            self._connection.text_factory = str

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """See `StoreReader.snapshot`."""
        with self._faults():
            self._connection.execute("BEGIN")
            try:
                self._connection.execute("SELECT 1 FROM trimmed").fetchone()  # a snapshot begins with the first look
                yield
            finally:
                self._connection.execute("COMMIT")

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
