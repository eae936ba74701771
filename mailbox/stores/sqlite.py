"""The store in one SQLite file, WAL mode, every commit synced.

The one module that talks to aiosqlite; it runs on the line's asyncio loop and offers nothing to trio.  aiosqlite gives
each connection a thread and each call a hop to it, which per statement would cost more than SQLite does.
So the connection is subclassed with one method that runs a function over there, and the line's whole loop is one call
of it: between the line's callers and SQLite there is one thread to wake, not two.

A batch is BEGIN IMMEDIATE, the jobs in order, COMMIT.  Refusals are rare and savepoints are not free (SQLite copies
every page before it changes), so a batch first runs in good hope, without any.  SQLite undoes a failed statement by
itself; only if a mutation is refused that has already written something is the batch rolled back and run again, now
with a savepoint around each mutation of several statements.  Events and dead letters are checked with their mutation
but inserted together, before the next load or the COMMIT.

Ownership is a lock on `FILE.lock` (`ownership`).  What is not a store of ours is found out on a read-only connection
and stays untouched.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, Self, TypeVar, cast
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
    encode_numbered_event,
)
from fencepost.mailbox.errors import CorruptRecord, MutationRefused, SchemaTooNew, StoreFault
from fencepost.mailbox.mutation import DeadLetter, Delete, Event, Guard, Mutation, Unchanged
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import RECORD_TYPES, Record, Versioned
from fencepost.mailbox.storable import require_storable
from fencepost.mailbox.stores.laws import forbidden_succession
from fencepost.mailbox.stores.ownership import take_lock
from fencepost.mailbox.stores.sql import TableSql, count_sql, field_sql, select_sql, table_sql
from fencepost.mailbox.stores.store import (
    SCHEMA_VERSION,
    Answer,
    Job,
    Load,
    LoadEvents,
    LoadFields,
    Probe,
    Run,
    StoreReader,
    require_raw_table,
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
_LETTERS_SQL: Final = f"SELECT {', '.join(DEAD_LETTER_COLUMNS)} FROM dead_letters WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608


_NUMBERS_SQL: Final = """
SELECT max(last_event_seq, (SELECT ifnull(max(seq), 0) FROM events)),
       (SELECT ifnull(max(seq), 0) FROM dead_letters),
       last_event_seq
FROM trimmed
"""


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


def schema_text() -> str:
    """Return the schema's SQL."""
    return resources.files("fencepost.mailbox.stores").joinpath("schema", "sqlite.sql").read_text(encoding="utf-8")


def _text_or_bytes(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


class _Refusal(Exception):  # noqa: N818 - becomes a MutationRefused one frame up
    """A row stood in the way of a mutation."""

    def __init__(self, table: str, key: tuple[object, ...], why: str) -> None:
        super().__init__(why)
        self.table = table
        self.key = key
        self.why = why


class _StartOver(Exception):  # noqa: N818 - never leaves this module
    """A mutation was refused after it had written something: the batch must be run again with savepoints."""


class _Numbers(NamedTuple):
    """The last numbers given: to an event, to a dead letter, and of the event trimmed away last."""

    event_seq: int
    letter_seq: int
    trimmed_seq: int


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
        self._writer: _Writer | None = None
        self._refused: BaseException | None = None

    async def open(self, events_kept_max: int) -> None:
        """See `Store.open`; an absent or empty file becomes a new store, its folder must exist."""
        self._path = self._path.resolve()
        self._lock = take_lock(self._path)
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


def _opening_fault(path: Path, error: sqlite3.Error) -> StoreFault:
    """Return what to raise for an error met while opening: damage is told from trouble."""
    if error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return CorruptRecord(str(path), str(error))
    return StoreFault(f"{path}: {error}")


def _connect_read_only(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """Return a connection that can change nothing.

    SQLite reads a store beside its writer through two files next to it, and makes them if need be.  Where it must not
    (the store is all ours, `alone`) or cannot (a folder we may not write), and no such file holds anything, the main
    file is all there is and is read without them.
    """
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    finished = not Path(f"{path}-wal").exists() and not Path(f"{path}-journal").exists()
    if alone and finished:
        uri += "&immutable=1"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if alone or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN or not finished:
            raise
        return _connect_read_only(path, alone=True)
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
        with closing(_connect_read_only(path, alone=True)) as connection:
            _require_ours(connection, path)
    except sqlite3.Error as error:
        raise _opening_fault(path, error) from error


def _require_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `SchemaTooNew` or `CorruptRecord` unless this is a store of ours or has nothing in it yet."""
    _require_whole(connection, path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(str(path), version, SCHEMA_VERSION)
    if application != APPLICATION_ID and (tables or version or application):
        raise CorruptRecord(str(path), "is a SQLite database of another program")
    if version:
        for record_type in RECORD_TYPES:
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({record_type.TABLE})")}
            if columns != set(codec_of(record_type).columns):
                found = ", ".join(sorted(columns)) or "none"
                raise CorruptRecord(f"{path}: {record_type.TABLE}", f"has columns {found}")


def _require_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `CorruptRecord` if the file's end is missing; SQLite would take what is missing for zeroes."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    log = Path(f"{path}-wal")
    if log.exists() and log.stat().st_size:
        return  # what the main file has not got yet may be in there
    size = path.stat().st_size
    if size < pages * page_bytes or (size and not pages):
        raise CorruptRecord(str(path), f"is cut off: {size} bytes of {pages} pages of {page_bytes} bytes")


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
        self._numbers = _Numbers(*self._execute(_NUMBERS_SQL).fetchone())
        self._careful = False
        self._written = 0
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
        """Run `jobs` in one transaction; see `Run`."""
        if self.refused is not None:
            self._require_usable()
        numbers = self._numbers
        begin = "BEGIN IMMEDIATE" if any(type(job) is Mutation for job in jobs) else "BEGIN"
        self._execute(begin)
        try:
            if probe is not None:
                probe("begun")
            self._careful = False
            try:
                answers = self._run(jobs)
            except _StartOver:
                self._forget(numbers)
                self._execute("ROLLBACK")
                self._execute(begin)
                self._careful = True
                answers = self._run(jobs)
            if probe is not None and isinstance(answers[0], tuple):
                probe("written")
            self._require_usable()
            self._execute("COMMIT")
        except BaseException:
            self._forget(numbers)
            self._roll_back()
            raise
        if probe is not None and isinstance(answers[0], tuple):
            probe("committed")
        return answers

    def _run(self, jobs: Sequence[Job]) -> list[Answer]:
        answers: list[Answer] = []
        for job in jobs:
            if self.refused is not None:
                self._require_usable()
            answers.append(self._mutate(job) if type(job) is Mutation else self._load(job))
        self._flush()
        self._trim()
        return answers

    def _forget(self, numbers: _Numbers) -> None:
        """Take back the numbers given since `numbers` and what was kept for `_flush`."""
        self._numbers = numbers
        self._new_events.clear()
        self._new_letters.clear()

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
        numbers, events, letters = self._numbers, len(self._new_events), len(self._new_letters)
        savepoint = self._careful and len(mutation.puts) + len(mutation.deletes) > 1
        if savepoint:
            self._execute("SAVEPOINT mutation")
        self._written = 0
        try:
            answer = self._take_events(mutation)
            self._write(mutation)
        except _Refusal as refusal:
            if savepoint:
                self._execute("ROLLBACK TO mutation")
                self._execute("RELEASE mutation")
            elif self._written:
                raise _StartOver from refusal
            del self._new_events[events:], self._new_letters[letters:]
            self._numbers = numbers
            return MutationRefused(mutation.label, refusal.table, refusal.key, refusal.why)
        if savepoint:
            self._execute("RELEASE mutation")
        return answer

    def _take_events(self, mutation: Mutation) -> tuple[Event, ...]:
        """Number the mutation's events and dead letters and keep their rows for `_flush`."""
        if not mutation.events and not mutation.dead_letters:
            return ()
        event_seq, letter_seq, trimmed_seq = self._numbers
        answer: list[Event] = []
        try:
            for event in mutation.events:
                row, stored = encode_numbered_event(event_seq + 1, event)
                event_seq += 1
                self._new_events.append(row)
                answer.append(stored)
            for letter in mutation.dead_letters:
                self._new_letters.append((letter_seq + 1, *encode_dead_letter(letter)))
                letter_seq += 1
        except UNSTORABLE as error:
            table = "events" if len(answer) < len(mutation.events) else "dead_letters"
            raise _Refusal(table, (), f"cannot be stored: {error}") from error
        self._numbers = _Numbers(event_seq, letter_seq, trimmed_seq)
        return tuple(answer)

    def _write(self, mutation: Mutation) -> None:
        """Check the guards and write the rows.  Raises `_Refusal` for what is the mutation's own fault."""
        for guard in mutation.guards:
            self._check(guard)
        for delete in mutation.deletes:
            self._delete(delete)
            self._written += 1
        for record in mutation.puts:
            self._put(record)
            self._written += 1

    def _put(self, record: Record) -> None:
        table = table_sql(type(record))
        insert = not isinstance(record, Versioned) or record.revision == 1
        try:
            if insert:
                self._execute(*table.insert(record))
                return
            for sql, parameters in table.updates(record):
                if self._execute(sql, parameters).rowcount == 1:
                    return
        except sqlite3.IntegrityError as error:
            exists = insert and self._execute(table.exists, record.key).fetchone() is not None
            # SQLite names any one of the laws that were broken, and the key's not first.
            raise _Refusal(record.TABLE, record.key, "exists already" if exists else str(error)) from error
        except (*UNSTORABLE, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError) as error:
            _require_unstorable(record, error)
            raise _Refusal(record.TABLE, record.key, f"cannot be stored: {error}") from error
        assert isinstance(record, Versioned)
        raise _Refusal(record.TABLE, record.key, self._why_not_updated(table, record))

    def _why_not_updated(self, table: TableSql, record: Versioned) -> str:
        row = self._execute(table.select_one, record.key).fetchone()
        if row is None:
            return "does not exist"
        stored = codec_of(type(record)).decode(row, self._where)
        if stored.revision != record.revision - 1:
            return f"has revision {stored.revision}, not {record.revision - 1}"
        return forbidden_succession(stored, record) or "is not as it should be"

    def _check(self, guard: Guard) -> None:
        if isinstance(guard, Unchanged):
            record = guard.record
            table, key = table_sql(type(record)), record.key
            versioned = isinstance(record, Versioned)
            stored = self._look(table.revision if versioned else table.exists, record.TABLE, key)
            if stored is None:
                raise _Refusal(record.TABLE, key, "does not exist")
            if isinstance(record, Versioned) and stored[0] != record.revision:
                raise _Refusal(record.TABLE, key, f"has revision {stored[0]}, not {record.revision}")
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
        except (sqlite3.IntegrityError, *UNSTORABLE) as error:
            raise _Refusal(table, delete.key, str(error)) from error

    def _flush(self) -> None:
        """Insert the events and dead letters taken so far."""
        if self._new_events:
            self._cursor.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", self._new_events)
            self._new_events.clear()
        if self._new_letters:
            self._cursor.executemany("INSERT INTO dead_letters VALUES (?, ?, ?, ?, ?, ?, ?)", self._new_letters)
            self._new_letters.clear()

    def _trim(self) -> None:
        numbers = self._numbers
        last = trim_to(numbers.event_seq, numbers.trimmed_seq, self._events_kept_max)
        if last is not None:
            self._execute("DELETE FROM events WHERE seq <= ?", (last,))
            self._execute("UPDATE trimmed SET last_event_seq = ?", (last,))
            self._numbers = numbers._replace(trimmed_seq=last)

    def _load(self, job: Job) -> Answer:
        self._flush()
        try:
            if isinstance(job, Load):
                return [_select(self._cursor, query, self._where) for query in job.queries]
            assert not isinstance(job, Mutation)
            if isinstance(job, LoadFields):
                return [_field(self._cursor, query, name) for query, name in job.wanted]
            if isinstance(job, LoadEvents):
                return _events(self._cursor, job.after, job.limit, self._where)
            return _dead_letters(self._cursor, job.after, job.limit, self._where)
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


def _rows(cursor: sqlite3.Cursor, sql: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
    """Return the rows; text that is not UTF-8, which no store of ours writes, comes as bytes.

    sqlite3 raises on such text, and that error tells neither the row nor the column; who decodes the bytes can.
    """
    try:
        return cursor.execute(sql, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if not str(error).startswith("Could not decode"):
            raise
    cursor.connection.text_factory = _text_or_bytes
    try:
        return cursor.execute(sql, parameters).fetchall()
    finally:
        cursor.connection.text_factory = str


def _select(cursor: sqlite3.Cursor, query: Query[R], where: str) -> list[R]:
    decode = codec_of(query.record_type).decode
    return [decode(row, where) for row in _rows(cursor, *select_sql(query))]


def _field(cursor: sqlite3.Cursor, query: Query[Any], name: str) -> list[object]:
    return [value for (value,) in _rows(cursor, *field_sql(query, name))]


def _numbered(cursor: sqlite3.Cursor, sql: str, after: int, limit: int | None, where: str) -> list[tuple[Any, ...]]:
    """Return rows of a table with a seq and no blobs."""
    rows = _rows(cursor, sql, (after, -1 if limit is None else limit))
    for row in rows:
        if any(type(value) is bytes for value in row):
            raise CorruptRecord(f"{where}: seq {row[0]}", "holds text that is not UTF-8")
    return rows


def _events(cursor: sqlite3.Cursor, after: int, limit: int | None, where: str) -> list[Event]:
    return [decode_event(row, where) for row in _numbered(cursor, _EVENTS_SQL, after, limit, f"{where}: events")]


def _dead_letters(cursor: sqlite3.Cursor, after: int, limit: int | None, where: str) -> list[DeadLetter]:
    return [decode_dead_letter(row) for row in _numbered(cursor, _LETTERS_SQL, after, limit, f"{where}: dead_letters")]


class SqliteReader:
    """The reading side: a connection of its own that can only read, beside an open runtime or without one."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        if not self._path.is_file():
            raise StoreFault(f"{self._path} is a folder" if self._path.is_dir() else f"{self._path} does not exist")
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
    def _faults(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
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
            return _dead_letters(self._connection.cursor(), after, limit, str(self._path))

    def pane_count(self) -> int:
        """See `StoreReader.pane_count`; two index seeks a pane, however long its history is."""
        with self._faults():
            return cast("int", self._connection.execute(_PANE_COUNT_SQL).fetchone()[0])

    def pane_ids(self) -> list[str]:
        """See `StoreReader.pane_ids`; as cheap as counting them."""
        with self._faults():
            self._connection.text_factory = _text_or_bytes
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
        self._connection.text_factory = _text_or_bytes
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
