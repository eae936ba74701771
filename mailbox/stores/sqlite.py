"""The store in one SQLite file, WAL mode, every commit synced.

The one module that talks to aiosqlite; it runs on the line's asyncio loop and offers nothing to trio.  aiosqlite gives
each connection a thread and each call a hop to it, which per statement would cost more than SQLite does.  So the
connection is subclassed with one method that runs a function over there, and a whole batch is one call of it.

A batch is BEGIN IMMEDIATE, the jobs in order, COMMIT.  A mutation of several statements runs in a savepoint, so that a
refused one leaves nothing; one of a single statement needs none, since SQLite undoes a failed statement by itself.
Events and dead letters are checked with their mutation but inserted together, before the next load or the COMMIT.

Ownership is an `flock` on `FILE.lock`: the kernel lets go of it however the process ends, and it holds between two
runtimes of one process too.  What is not a store of ours is found out on a read-only connection and stays untouched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar, cast
from urllib.parse import quote

import aiosqlite

from fencepost.mailbox.codec import (
    DEAD_LETTER_COLUMNS,
    EVENT_COLUMNS,
    UNSTORABLE,
    codec_of,
    decode_dead_letter,
    decode_event,
    encode_dead_letter,
    encode_event,
    require_storable,
)
from fencepost.mailbox.errors import CorruptRecord, FencepostError, MutationRefused, SchemaTooNew, StoreFault, StoreOwned
from fencepost.mailbox.mutation import DeadLetter, Delete, Event, Guard, Mutation, Unchanged
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import RECORD_TYPES, Record
from fencepost.mailbox.stores.sql import TableSql, count_sql, select_sql, table_sql
from fencepost.mailbox.stores.store import (
    SCHEMA_VERSION,
    Answer,
    Job,
    Load,
    LoadEvents,
    Probe,
    StoreReader,
    trim_to,
)

__all__ = ["APPLICATION_ID", "SqliteReader", "SqliteStore", "schema_text"]

R = TypeVar("R", bound=Record)
P = ParamSpec("P")
T = TypeVar("T")

APPLICATION_ID: Final = 0x46_4E_43_50  # "FNCP": tells our files from another program's
BUSY_SECONDS: Final = 5.0
"""How long another program's lock (somebody's sqlite3 shell, say) is waited for before it counts as a fault."""
STATEMENTS_CACHED: Final = 512  # more than the patterns of absent values that occur
WAL_BYTES_KEPT_MAX: Final = 64 * 1024 * 1024

_EVENTS_SQL: Final = f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
_LETTERS_SQL: Final = (
    f"SELECT {', '.join(DEAD_LETTER_COLUMNS)} FROM dead_letters WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
)


def schema_text() -> str:
    """Return the schema's SQL."""
    return resources.files("fencepost.mailbox.stores").joinpath("schema", "sqlite.sql").read_text(encoding="utf-8")


class _Refusal(Exception):  # noqa: N818 - becomes a MutationRefused one frame up
    """A row stood in the way of a mutation."""

    def __init__(self, table: str, key: tuple[object, ...], why: str) -> None:
        super().__init__(why)
        self.table = table
        self.key = key
        self.why = why


class _Connection(aiosqlite.Connection):
    """An aiosqlite connection that can run a whole function on its thread, for one hop."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` on the connection's thread and return what it returns."""
        return cast("T", await self._execute(function, *args, **kwargs))

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
        await connection
    except BaseException:
        connection.join()  # or its thread would still be talking to this loop when that is closed
        raise
    return connection


class SqliteStore:
    """The store in the file at `path`."""

    def __init__(self, path: Path, *, url: str | None = None, busy_seconds: float = BUSY_SECONDS) -> None:
        self.url = url or f"sqlite:///{path}"
        self._path = path
        self._busy_seconds = busy_seconds
        self._lock: int | None = None
        self._connection: _Connection | None = None
        self._writer: _Writer | None = None
        self._refused: BaseException | None = None

    async def open(self, events_kept_max: int) -> None:
        """See `Store.open`; an absent or empty file becomes a new store, its folder must exist."""
        self._path = self._path.absolute()
        self._lock = _take_lock(self._path)
        try:
            _inspect(self._path)
            self._connection = connection = await _connected(self._connect)
            self._writer = await connection.run(_Writer, connection.raw, str(self._path), events_kept_max)
            if self._refused is not None:
                self._writer.refused = self._refused
        except sqlite3.Error as error:
            await self.close()
            raise _opening_fault(self._path, error) from error
        except BaseException:
            await self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path, timeout=self._busy_seconds, isolation_level=None, cached_statements=STATEMENTS_CACHED
        )

    async def run(self, jobs: Sequence[Job], probe: Probe | None = None) -> list[Answer]:
        """See `Store.run`."""
        if self._connection is None or self._writer is None:
            raise StoreFault(f"{self._path} is not open")
        return await self._connection.run(self._writer.run, jobs, probe)

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


def _take_lock(path: Path) -> int:
    """Return the descriptor that owns the store at `path`; closing it gives the store back.  Raises `StoreOwned`."""
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreFault(f"{path}: cannot make the lock beside it: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        os.pwrite(lock, f"process {os.getpid()}, since {since} UTC\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(lock, 200, 0).decode(errors="replace").strip()
        os.close(lock)
        raise StoreOwned(str(path), holder or "a process that has not said its name yet") from error
    except OSError as error:
        os.close(lock)
        raise StoreFault(f"{path}: cannot lock it: {error}") from error
    return lock


def _opening_fault(path: Path, error: sqlite3.Error) -> StoreFault:
    """Return what to raise for an error met while opening: damage is told from trouble."""
    if error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return CorruptRecord(str(path), str(error))
    return StoreFault(f"{path}: {error}")


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that can change nothing, also where a finished store lies in a folder we may not write."""
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN or Path(f"{path}-wal").exists():
            raise
        connection = sqlite3.connect(f"{uri}&immutable=1", uri=True, isolation_level=None, check_same_thread=False)
    except BaseException:
        connection.close()
        raise
    return connection


def _inspect(path: Path) -> None:
    """Raise if the file at `path` is something that must not be written to; an absent or empty one is fine."""
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        return
    if not path.is_file():
        raise StoreFault(f"{path} is not a file")
    try:
        with closing(_connect_read_only(path)) as connection:
            _require_ours(connection, path)
    except sqlite3.Error as error:
        raise _opening_fault(path, error) from error


def _require_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `SchemaTooNew` or `CorruptRecord` unless this is a store of ours or has nothing in it yet."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (tables or version or application):
        raise CorruptRecord(str(path), "is a SQLite database of another program")
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(str(path), version, SCHEMA_VERSION)
    if version:
        for record_type in RECORD_TYPES:
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({record_type.TABLE})")}
            if columns != set(codec_of(record_type).columns):
                raise CorruptRecord(f"{path}: {record_type.TABLE}", f"has columns {', '.join(sorted(columns)) or 'none'}")


class _Writer:
    """What runs on the connection's thread: one batch at a time, and the numbers given to events and dead letters."""

    def __init__(self, connection: sqlite3.Connection, where: str, events_kept_max: int) -> None:
        self.refused: BaseException | None = None
        self._where = where
        self._events_kept_max = events_kept_max
        self._connection = connection
        self._cursor = connection.cursor()
        self._execute = self._cursor.execute
        self._prepare()
        (self._event_seq,) = self._execute("SELECT max(last_event_seq, (SELECT ifnull(max(seq), 0) FROM events)) FROM trimmed").fetchone()
        (self._trimmed_seq,) = self._execute("SELECT last_event_seq FROM trimmed").fetchone()
        (self._letter_seq,) = self._execute("SELECT ifnull(max(seq), 0) FROM dead_letters").fetchone()
        self._new_events: list[tuple[object, ...]] = []
        self._new_letters: list[tuple[object, ...]] = []

    def _prepare(self) -> None:
        """Set the connection up and make the tables if there are none."""
        (mode,) = self._execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreFault(f"{self._where}: SQLite keeps it in {mode} mode, where a commit may be lost")
        for pragma in ("synchronous = FULL", "foreign_keys = ON", f"journal_size_limit = {WAL_BYTES_KEPT_MAX}"):
            self._execute(f"PRAGMA {pragma}")
        (version,) = self._execute("PRAGMA user_version").fetchone()
        if not version:
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {schema_text()}; PRAGMA application_id = {APPLICATION_ID};"
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )

    def run(self, jobs: Sequence[Job], probe: Probe | None) -> list[Answer]:
        """Run `jobs` in one transaction; see `Store.run`."""
        self._require_usable()
        event_seq, letter_seq = self._event_seq, self._letter_seq
        self._execute("BEGIN IMMEDIATE" if any(type(job) is Mutation for job in jobs) else "BEGIN")
        try:
            answers = self._run(jobs, probe)
            self._require_usable()
            self._execute("COMMIT")
        except BaseException:
            self._event_seq, self._letter_seq = event_seq, letter_seq
            self._new_events.clear()
            self._new_letters.clear()
            self._roll_back()
            raise
        if probe is not None and isinstance(answers[0], tuple):
            probe("committed")
        return answers

    def _run(self, jobs: Sequence[Job], probe: Probe | None) -> list[Answer]:
        if probe is not None:
            probe("begun")
        answers: list[Answer] = []
        for job in jobs:
            if self.refused is not None:
                self._require_usable()
            answers.append(self._mutate(job) if type(job) is Mutation else self._load(job))
        self._flush()
        self._trim()
        if probe is not None and isinstance(answers[0], tuple):
            probe("written")
        return answers

    def _require_usable(self) -> None:
        if self.refused is not None:
            raise StoreFault(f"{self._where} refuses every call: {self.refused}") from self.refused

    def _roll_back(self) -> None:
        """End the transaction, if the error that led here has not ended it already; that error is the one to tell."""
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._execute("ROLLBACK")

    def _mutate(self, mutation: Mutation) -> Answer:
        """Write one mutation, or refuse it and leave nothing of it."""
        events = len(self._new_events)
        letters = len(self._new_letters)
        event_seq, letter_seq = self._event_seq, self._letter_seq
        savepoint = len(mutation.puts) + len(mutation.deletes) > 1
        if savepoint:
            self._execute("SAVEPOINT mutation")
        try:
            answer = self._take_events(mutation)
            self._write(mutation)
        except _Refusal as refusal:
            if savepoint:
                self._execute("ROLLBACK TO mutation")
                self._execute("RELEASE mutation")
            del self._new_events[events:], self._new_letters[letters:]
            self._event_seq, self._letter_seq = event_seq, letter_seq
            return MutationRefused(mutation.label, refusal.table, refusal.key, refusal.why)
        if savepoint:
            self._execute("RELEASE mutation")
        return answer

    def _take_events(self, mutation: Mutation) -> tuple[Event, ...]:
        """Number the mutation's events and dead letters and keep their rows for `_flush`."""
        for letter in mutation.dead_letters:
            try:
                row = encode_dead_letter(letter)
            except UNSTORABLE as error:
                raise _Refusal("dead_letters", (letter.address,), f"cannot be stored: {error}") from error
            self._letter_seq += 1
            self._new_letters.append((self._letter_seq, *row))
        if not mutation.events:
            return ()
        answer: list[Event] = []
        for event in mutation.events:
            try:
                encoded = encode_event(event)
            except UNSTORABLE as error:
                raise _Refusal("events", (event.kind,), f"cannot be stored: {error}") from error
            self._event_seq += 1
            numbered = (self._event_seq, *encoded)
            self._new_events.append(numbered)
            answer.append(decode_event(numbered, self._where))
        return tuple(answer)

    def _write(self, mutation: Mutation) -> None:
        """Check the guards and write the rows.  Raises `_Refusal` for what is the mutation's own fault."""
        for guard in mutation.guards:
            self._check(guard)
        for record in mutation.puts:
            self._put(record)
        for delete in mutation.deletes:
            self._delete(delete)

    def _put(self, record: Record) -> None:
        table = table_sql(type(record))
        try:
            revision = record.revision if record.VERSIONED else 1  # type: ignore[attr-defined]
            if revision == 1:
                self._execute(*table.insert(record))
                return
            if self._execute(*table.update(record, revision - 1)).rowcount == 1:
                return
        except sqlite3.IntegrityError as error:
            raise _Refusal(record.TABLE, record.key, self._why_not_written(table, record, error)) from error
        except (*UNSTORABLE, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError) as error:
            _require_unstorable(record, error)
            raise _Refusal(record.TABLE, record.key, f"cannot be stored: {error}") from error
        raise _Refusal(record.TABLE, record.key, self._why_not_updated(table, record, revision - 1))

    def _why_not_written(self, table: TableSql, record: Record, error: sqlite3.IntegrityError) -> str:
        """Return why SQLite refused `record`; it names any one of the laws that were broken, the key's not first."""
        inserted = not record.VERSIONED or record.revision == 1  # type: ignore[attr-defined]
        if inserted and self._execute(table.exists, record.key).fetchone() is not None:
            return "exists already"
        return str(error)

    def _why_not_updated(self, table: TableSql, record: Record, expected: int) -> str:
        stored = self._execute(table.identity, record.key).fetchone()
        if stored is None:
            return "does not exist"
        if stored[0] != expected:
            return f"has revision {stored[0]}, not {expected}"
        changed = [
            name for name, value in zip(record.FIXED, stored[1:], strict=True) if value != getattr(record, name)
        ]
        return f"would change {', '.join(changed)}"

    def _check(self, guard: Guard) -> None:
        if isinstance(guard, Unchanged):
            record = guard.record
            table, key = table_sql(type(record)), record.key
            stored = self._look(table.identity if record.VERSIONED else table.exists, record.TABLE, key)
            if stored is None:
                raise _Refusal(record.TABLE, key, "does not exist")
            if record.VERSIONED and stored[0] != record.revision:  # type: ignore[attr-defined]
                raise _Refusal(record.TABLE, key, f"has revision {stored[0]}, not {record.revision}")  # type: ignore[attr-defined]
        elif self._look(table_sql(guard.record_type).exists, guard.record_type.TABLE, guard.key) is not None:
            raise _Refusal(guard.record_type.TABLE, guard.key, "exists already")

    def _look(self, sql: str, table: str, key: tuple[object, ...]) -> tuple[Any, ...] | None:
        try:
            return cast("tuple[Any, ...] | None", self._execute(sql, key).fetchone())
        except UNSTORABLE as error:
            raise _Refusal(table, key, f"cannot be a key: {error}") from error

    def _delete(self, delete: Delete) -> None:
        table = delete.record_type.TABLE
        try:
            self._execute(table_sql(delete.record_type).delete, delete.key)
        except sqlite3.IntegrityError as error:
            raise _Refusal(table, delete.key, str(error)) from error
        except UNSTORABLE as error:
            raise _Refusal(table, delete.key, f"cannot be a key: {error}") from error

    def _flush(self) -> None:
        """Insert the events and dead letters taken so far."""
        if self._new_events:
            self._cursor.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", self._new_events)
            self._new_events.clear()
        if self._new_letters:
            self._cursor.executemany("INSERT INTO dead_letters VALUES (?, ?, ?, ?, ?, ?, ?)", self._new_letters)
            self._new_letters.clear()

    def _trim(self) -> None:
        last = trim_to(self._event_seq, self._trimmed_seq, self._events_kept_max)
        if last is not None:
            self._execute("DELETE FROM events WHERE seq <= ?", (last,))
            self._execute("UPDATE trimmed SET last_event_seq = ?", (last,))
            self._trimmed_seq = last  # if this batch fails, the line is faulted and the number is never used

    def _load(self, job: Job) -> Answer:
        self._flush()
        try:
            if isinstance(job, Load):
                return [_select(self._cursor, query, self._where) for query in job.queries]
            assert not isinstance(job, Mutation)
            if isinstance(job, LoadEvents):
                return _events(self._cursor, job.after, job.limit, self._where)
            return _dead_letters(self._cursor, job.after, job.limit)
        except CorruptRecord as error:
            return error


def _require_unstorable(record: Record, error: Exception) -> None:
    """Raise `error` again unless one of the record's own values is what caused it."""
    if isinstance(error, sqlite3.DataError):
        return
    try:
        for value in codec_of(type(record)).encode(record):
            require_storable(value)
    except UNSTORABLE:
        return
    raise error


def _select(cursor: sqlite3.Cursor, query: Query[R], where: str) -> list[R]:
    decode = codec_of(query.record_type).decode
    return [decode(row, where) for row in cursor.execute(*select_sql(query))]


def _events(cursor: sqlite3.Cursor, after: int, limit: int | None, where: str) -> list[Event]:
    rows = cursor.execute(_EVENTS_SQL, (after, -1 if limit is None else limit))
    return [decode_event(row, where) for row in rows]


def _dead_letters(cursor: sqlite3.Cursor, after: int, limit: int | None) -> list[DeadLetter]:
    return [decode_dead_letter(row) for row in cursor.execute(_LETTERS_SQL, (after, -1 if limit is None else limit))]


class SqliteReader:
    """The reading side: a connection of its own that can only read, beside an open runtime or without one."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        if not self._path.is_file():
            raise StoreFault(f"{self._path} does not exist")
        with self._faults():
            self._connection = _connect_read_only(self._path)
            try:
                _require_ours(self._connection, self._path)
                if not self._connection.execute("PRAGMA user_version").fetchone()[0]:
                    raise StoreFault(f"{self._path} has nothing in it yet")
            except BaseException:
                self._connection.close()
                raise

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if isinstance(error, FencepostError):
                raise
            raise _opening_fault(self._path, error) from error

    def select(self, query: Query[R]) -> list[R]:
        """See `StoreReader.select`."""
        with self._faults():
            return _select(self._connection.cursor(), query, str(self._path))

    def count(self, query: Query[R]) -> int:
        """See `StoreReader.count`."""
        with self._faults():
            return cast("int", self._connection.execute(*count_sql(query)).fetchone()[0])

    def events(self, after: int = 0, limit: int | None = None) -> list[Event]:
        """See `StoreReader.events`."""
        with self._faults():
            return _events(self._connection.cursor(), after, limit, str(self._path))

    def dead_letters(self, after: int = 0, limit: int | None = None) -> list[DeadLetter]:
        """See `StoreReader.dead_letters`."""
        with self._faults():
            return _dead_letters(self._connection.cursor(), after, limit)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
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
