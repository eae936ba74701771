"""What runs on the thread of a SQLite store's connection: one batch at a time.

A batch is BEGIN IMMEDIATE, the jobs in order, COMMIT.  Refusals are rare and savepoints are not free (SQLite copies
every page before it changes), so a batch first runs in good hope, without any.  SQLite undoes a failed statement by
itself; only if a mutation is refused that has already written something is the batch rolled back and run again, now
with a savepoint around each mutation of several statements.  Events and dead letters are checked with their mutation
but inserted together, before the next load or the COMMIT.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from fencepost.mailbox.codec import UNSTORABLE, codec_of, encode_dead_letter, encode_numbered_event
from fencepost.mailbox.errors import CorruptRecord, MutationRefused, StoreFault
from fencepost.mailbox.mutation import Delete, Event, Guard, Live, Mutation, Unchanged
from fencepost.mailbox.records import IncarnationRecord, Record, Versioned
from fencepost.mailbox.storable import require_storable
from fencepost.mailbox.stores.laws import forbidden_succession
from fencepost.mailbox.stores.sql import TableSql, table_sql
from fencepost.mailbox.stores.sqlite_file import APPLICATION_ID, schema_text
from fencepost.mailbox.stores.sqlite_rows import select_dead_letters, select_events, select_records
from fencepost.mailbox.stores.store import SCHEMA_VERSION, Answer, Job, Load, LoadEvents, Probe, trim_to

__all__ = ["Writer"]

WAL_BYTES_KEPT_MAX: Final = 64 * 1024 * 1024

_LIVE_SQL: Final = "SELECT 1 FROM incarnations WHERE incarnation_id = ? AND retired_at IS NULL"

_NUMBERS_SQL: Final = """
SELECT max(last_event_seq, (SELECT ifnull(max(seq), 0) FROM events)),
       (SELECT ifnull(max(seq), 0) FROM dead_letters),
       last_event_seq
FROM trimmed
"""


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


class Writer:
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
        elif isinstance(guard, Live):
            if self._look(_LIVE_SQL, IncarnationRecord.TABLE, (guard.incarnation_id,)) is None:
                raise _Refusal(IncarnationRecord.TABLE, (guard.incarnation_id,), "is not live")
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
                return [select_records(self._cursor, query, self._where) for query in job.queries]
            assert not isinstance(job, Mutation)
            if isinstance(job, LoadEvents):
                return select_events(self._cursor, job.after, job.limit, self._where)
            return select_dead_letters(self._cursor, job.after, job.limit, self._where)
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
