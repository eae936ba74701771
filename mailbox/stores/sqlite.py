"""The store in one SQLite file, WAL mode, every commit synced.

The one module that talks to aiosqlite; it runs on the line's asyncio loop and offers nothing to trio.  aiosqlite gives
each connection a thread and each call a hop to it, which per statement would cost more than SQLite does.
So the connection is subclassed with one method that runs a function over there, and the line's whole loop is one call
of it: between the line's callers and SQLite there is one thread to wake, not two.

`sqlite_writer` is what runs there, `sqlite_reader` the reading side; `sqlite_file` tells a store of ours from any other
file, and opens one to be read only.  Ownership is a lock on `FILE.lock` (`ownership`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec, TypeVar, cast

import aiosqlite

from fencepost.mailbox.errors import StoreFault
from fencepost.mailbox.stores.ownership import make_private, resolved, take_lock
from fencepost.mailbox.stores.sqlite_file import BUSY_SECONDS, opening_fault, require_ours_or_empty
from fencepost.mailbox.stores.sqlite_reader import SqliteReader
from fencepost.mailbox.stores.sqlite_writer import Writer
from fencepost.mailbox.stores.store import Run, StoreReader

__all__ = ["SqliteStore"]

P = ParamSpec("P")
T = TypeVar("T")

STATEMENTS_CACHED: Final = 512  # more than the patterns of absent values that occur


class _Connection(aiosqlite.Connection):
    """An aiosqlite connection that can run a whole function on its thread, for one hop."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` on the connection's thread and return what it returns."""
        return cast("T", await self._execute(function, *args, **kwargs))  # type: ignore[no-untyped-call]

    @property
    def raw(self) -> sqlite3.Connection:
        """The connection itself, for functions that run on its thread."""
        return self._conn

    def join(self) -> None:
        """Wait until the connection's thread, told to end by `close`, has ended."""
        self._thread.join()


async def _connected(connector: Callable[[], sqlite3.Connection]) -> _Connection:
    connection = _Connection(connector, iter_chunk_size=64)
    try:
        return cast("_Connection", await connection)
    except BaseException:
        connection.join()  # or its thread would still be talking to this loop when that is closed
        raise


class SqliteStore:
    """The store in the file at `path`."""

    def __init__(self, path: Path, *, url: str | None = None, busy_seconds: float = BUSY_SECONDS) -> None:
        self.url = url or f"sqlite:///{path}"
        self.quick = False
        self._path = path
        self._busy_seconds = busy_seconds
        self._lock: int | None = None
        self._connection: _Connection | None = None
        self._writer: Writer | None = None
        self._refused: BaseException | None = None

    async def open(self, events_kept_max: int) -> None:
        """See `Store.open`; an absent or empty file becomes a new store, its folder must exist."""
        self._path = resolved(self._path)
        self._lock = take_lock(self._path)
        try:
            require_ours_or_empty(self._path)
            make_private(self._path)  # SQLite gives its journals the rights of the database
            self._connection = connection = await _connected(self._connect)
            self._writer = await connection.run(Writer, connection.raw, str(self._path), events_kept_max)
            if self._refused is not None:
                self._writer.refused = self._refused
        except sqlite3.Error as error:
            await self.close()
            raise opening_fault(self._path, error) from error
        except BaseException:
            await self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path, timeout=self._busy_seconds, isolation_level=None, cached_statements=STATEMENTS_CACHED
        )

    async def serve(self, work: Callable[[Run], None]) -> None:
        """See `Store.serve`; `work` runs on the connection's thread."""
        if self._connection is None or self._writer is None:
            raise StoreFault(f"{self._path} is not open")
        await self._connection.run(work, self._writer.run)

    def refuse(self, cause: BaseException) -> None:
        """See `Store.refuse`."""
        self._refused = cause
        if self._writer is not None:
            self._writer.refused = cause

    async def close(self) -> None:
        """See `Store.close`.  SQLite rolls back what was not committed."""
        connection, self._connection, self._writer = self._connection, None, None
        try:
            if connection is not None:
                try:
                    await connection.close()
                finally:
                    connection.join()
        finally:
            if self._lock is not None:
                lock, self._lock = self._lock, None
                os.close(lock)

    def reader(self) -> StoreReader:
        """See `Store.reader`."""
        return SqliteReader(self._path)
