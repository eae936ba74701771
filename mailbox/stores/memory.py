"""The store without a disk, for tests and for bridges that can afford to forget.

It keeps the records themselves and holds the same laws as the SQL stores (`laws`).  A refused mutation is undone from
a journal of what it overwrote, and so is a whole batch that did not get to its end.  The rows have a lock of their
own: a reader in another thread waits for the running batch, so it never sees half of one.

`memory://NAME` is found again in this process under its name; what "durable" means there is the life of the process.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeAlias, TypeVar, cast

from attrs import define, field

from fencepost.mailbox.codec import (
    DEAD_LETTER_COLUMNS,
    EVENT_COLUMNS,
    UNSTORABLE,
    codec_of,
    decode_dead_letter,
    encode_dead_letter,
    encode_numbered_event,
    plain,
)
from fencepost.mailbox.errors import MutationRefused, StoreFault, StoreOwned
from fencepost.mailbox.mutation import (
    DeadLetter,
    Delete,
    Event,
    Guard,
    Mutation,
    NewDeadLetter,
    Unchanged,
)
from fencepost.mailbox.query import NOT_NULL, Above, Query
from fencepost.mailbox.records import RECORD_TYPES, IncarnationRecord, IntentRecord, Record, Versioned
from fencepost.mailbox.storable import require_storable
from fencepost.mailbox.stores.laws import FOREIGN_KEYS, UNIQUES, ForeignKey, Unique, forbidden_succession
from fencepost.mailbox.stores.store import (
    Answer,
    Job,
    Load,
    LoadEvents,
    Probe,
    Run,
    StoreReader,
    require_raw_table,
    trim_to,
)

__all__ = ["MemoryReader", "MemoryStore", "reader_of"]

R = TypeVar("R", bound=Record)
Key: TypeAlias = tuple[object, ...]
Overwritten: TypeAlias = tuple[type[Record], Key, Record | None]
"""A step of the journal: which row it was, and what stood there before."""


class _Refusal(Exception):  # noqa: N818 - becomes a MutationRefused one frame up
    """A row stood in the way of a mutation."""

    def __init__(self, table: str, key: Key, why: str) -> None:
        super().__init__(why)
        self.table = table
        self.key = key
        self.why = why


class _Table:
    """The rows of one record type and the indexes over them."""

    def __init__(self, record_type: type[Record]) -> None:
        self.rows: dict[Key, Record] = {}
        self.paned = "pane_id" in codec_of(record_type).columns
        self.of_pane: dict[object, dict[Key, Record]] = {}
        self.uniques: list[tuple[Unique, dict[Key, Key]]] = [
            (unique, {}) for unique in UNIQUES if unique.record_type is record_type
        ]
        self.references: dict[ForeignKey, dict[object, dict[Key, Record]]] = {
            foreign: {} for foreign in FOREIGN_KEYS if foreign.child is record_type
        }
        """For each reference of this table, who names which row by it."""

    def place(self, key: Key, record: Record | None) -> Record | None:
        """Put `record` where `key` is, or nothing, keep the indexes, and return what was there."""
        old = self.rows.pop(key, None)
        if old is not None:
            if self.paned:
                del self.of_pane[old.pane_id][key]  # type: ignore[attr-defined]
            for unique, index in self.uniques:
                if (value := unique.value_of(old)) is not None:
                    del index[value]
            for foreign, naming in self.references.items():
                if (name := getattr(old, foreign.field)) is not None:
                    del naming[name][key]
                    if not naming[name]:
                        del naming[name]
        if record is not None:
            self.rows[key] = record
            if self.paned:
                self.of_pane.setdefault(record.pane_id, {})[key] = record  # type: ignore[attr-defined]
            for unique, index in self.uniques:
                if (value := unique.value_of(record)) is not None:
                    index[value] = key
            for foreign, naming in self.references.items():
                if (name := getattr(record, foreign.field)) is not None:
                    naming.setdefault(name, {})[key] = record
        return old

    def clash(self, key: Key, record: Record) -> str | None:
        """Return which uniqueness `record` would break, or None."""
        for unique, index in self.uniques:
            if (value := unique.value_of(record)) is not None and index.get(value, key) != key:
                return unique.why
        return None

    def select(self, query: Query[Any]) -> list[Record]:
        """Return what matches, in the query's order and within its limit."""
        order = operator.attrgetter(*query.order)

        def sort_key(record: Record) -> object:
            values = order(record)
            values = values if isinstance(values, tuple) else (values,)
            return tuple((value is not None, plain(value)) for value in values)

        found = sorted(self.matching(query), key=sort_key, reverse=query.descending)  # type: ignore[arg-type]
        return found if query.limit is None else found[: query.limit]

    def matching(self, query: Query[Any]) -> Iterator[Record]:
        """Yield what matches, in no order."""
        where = query.where
        candidates: Mapping[Key, Record] = self.rows
        names = query.record_type.KEY
        if self.paned and isinstance(pane_id := where.get("pane_id"), str):
            candidates = self.of_pane.get(pane_id, {})
        elif all(isinstance(where.get(name), str) for name in names):
            key = tuple(where[name] for name in names)
            candidates = {key: self.rows[key]} if key in self.rows else {}
        tests = [(name, _test(value)) for name, value in where.items()]
        for record in candidates.values():
            if all(test(getattr(record, name)) for name, test in tests):
                yield record


def _test(wanted: object) -> Callable[[object], bool]:
    """Return whether a field's value is what `where` wants."""
    if wanted is None:
        return lambda value: value is None
    if wanted is NOT_NULL:
        return lambda value: value is not None
    if isinstance(wanted, tuple):
        return lambda value: value is not None and value in wanted
    if isinstance(wanted, Above):
        return lambda value: isinstance(value, int) and value > wanted.number
    return lambda value: value is not None and value == wanted


@define(eq=False)
class _Rows:
    """All that one memory store holds.  `lock` is held by whoever looks or writes."""

    lock: threading.Lock = field(factory=threading.Lock)
    owned_since: datetime | None = None
    tables: dict[type[Record], _Table] = field(factory=lambda: {kind: _Table(kind) for kind in RECORD_TYPES})
    events: list[Event] = field(factory=list)
    last_event_seq: int = 0
    dead_letters: list[DeadLetter] = field(factory=list)

    @property
    def trimmed_seq(self) -> int:
        """The last event seq that was trimmed away."""
        return self.last_event_seq - len(self.events)

    def events_after(self, after: int, limit: int | None) -> list[Event]:
        """Return the stored events with a seq over `after`, oldest first."""
        first = max(0, after - self.trimmed_seq)
        return self.events[first : None if limit is None else first + limit]

    def dead_letters_after(self, after: int, limit: int | None) -> list[DeadLetter]:
        """Return the dead letters with a seq over `after`, oldest first."""
        first = max(0, after)
        return self.dead_letters[first : None if limit is None else first + limit]


_NAMED: Final[dict[str, _Rows]] = {}
_NAMED_LOCK: Final = threading.Lock()


class MemoryStore:
    """Rows in this process; `name` None makes fresh ones that go with this object."""

    def __init__(self, name: str | None = None) -> None:
        self.url = f"memory://{name or ''}"
        self.quick = True
        self._name = name
        self._rows: _Rows | None = None
        self._owning = False
        self._refused: BaseException | None = None
        self._events_kept_max = 0
        self._journal: list[Overwritten] = []

    async def open(self, events_kept_max: int) -> None:
        """Take ownership of the rows, made now if there are none of that name.  Raises `StoreOwned`."""
        self._events_kept_max = events_kept_max
        with _NAMED_LOCK:
            rows = _Rows() if self._name is None else _NAMED.setdefault(self._name, _Rows())
            if rows.owned_since is not None:
                raise StoreOwned(self.url, f"this process, since {rows.owned_since:%Y-%m-%d %H:%M:%S} UTC")
            rows.owned_since = datetime.now(UTC)
            self._rows = rows
            self._owning = True

    async def serve(self, work: Callable[[Run], None]) -> None:
        """See `Store.serve`."""
        work(self.run)

    def run(self, jobs: Sequence[Job], probe: Probe | None) -> list[Answer]:
        """See `Run`."""
        rows = self._usable()
        with rows.lock:
            before = (len(rows.events), len(rows.dead_letters), rows.last_event_seq)
            self._journal.clear()
            try:
                answers = self._run(rows, jobs, probe)
                self._usable()
            except BaseException:
                self._undo(rows, 0)
                rows.last_event_seq = before[2]
                del rows.events[before[0] :], rows.dead_letters[before[1] :]
                raise
            last_trimmed = trim_to(rows.last_event_seq, rows.trimmed_seq, self._events_kept_max)
            if last_trimmed is not None:
                del rows.events[: last_trimmed - rows.trimmed_seq]
        if probe is not None and isinstance(answers[0], tuple):
            probe("committed")
        return answers

    def _run(self, rows: _Rows, jobs: Sequence[Job], probe: Probe | None) -> list[Answer]:
        if probe is not None:
            probe("begun")
        answers: list[Answer] = []
        for job in jobs:
            self._usable()
            answers.append(self._answer(rows, job))
        if probe is not None and isinstance(answers[0], tuple):
            probe("written")
        return answers

    def refuse(self, cause: BaseException) -> None:
        """See `Store.refuse`."""
        self._refused = cause

    async def close(self) -> None:
        """Let go of the rows; those of a name stay."""
        if self._owning and self._rows is not None:
            self._owning = False
            self._rows.owned_since = None

    def reader(self) -> StoreReader:
        """See `Store.reader`."""
        if self._rows is None:
            raise StoreFault(f"{self.url} was never opened")
        return MemoryReader(self.url, self._rows)

    def _usable(self) -> _Rows:
        if self._refused is not None:
            raise StoreFault(f"{self.url} refuses every call: {self._refused}") from self._refused
        if self._rows is None or not self._owning:
            raise StoreFault(f"{self.url} is not open")
        return self._rows

    def _answer(self, rows: _Rows, job: Job) -> Answer:
        if isinstance(job, Mutation):
            mark = len(self._journal)
            try:
                return self._write(rows, job)
            except _Refusal as refusal:
                self._undo(rows, mark)
                return MutationRefused(job.label, refusal.table, refusal.key, refusal.why)
        if isinstance(job, Load):
            return [rows.tables[query.record_type].select(query) for query in job.queries]
        if isinstance(job, LoadEvents):
            return rows.events_after(job.after, job.limit)
        return rows.dead_letters_after(job.after, job.limit)

    def _undo(self, rows: _Rows, mark: int) -> None:
        """Put back what the journal has since `mark`."""
        while len(self._journal) > mark:
            record_type, key, old = self._journal.pop()
            rows.tables[record_type].place(key, old)

    def _write(self, rows: _Rows, mutation: Mutation) -> tuple[Event, ...]:
        first_seq = rows.last_event_seq + 1
        with _storable("events", ()):
            events = tuple(encode_numbered_event(seq, new)[1] for seq, new in enumerate(mutation.events, first_seq))
        with _storable("dead_letters", ()):
            letters = [encode_dead_letter(letter) for letter in mutation.dead_letters]
        for guard in mutation.guards:
            self._check(rows, guard)
        for delete in mutation.deletes:
            self._delete(rows, delete)
        for record in mutation.puts:
            self._put(rows, record)
        rows.events.extend(events)
        rows.last_event_seq += len(events)
        for row in letters:
            rows.dead_letters.append(decode_dead_letter((len(rows.dead_letters) + 1, *row)))
        return events

    def _check(self, rows: _Rows, guard: Guard) -> None:
        if isinstance(guard, Unchanged):
            record = guard.record
            stored = rows.tables[type(record)].rows.get(record.key)
            if stored is None:
                raise _Refusal(record.TABLE, record.key, "does not exist")
            if isinstance(record, Versioned) and isinstance(stored, Versioned) and stored.revision != record.revision:
                raise _Refusal(record.TABLE, record.key, f"has revision {stored.revision}, not {record.revision}")
        elif guard.key in rows.tables[guard.record_type].rows:
            raise _Refusal(guard.record_type.TABLE, guard.key, "exists already")

    def _put(self, rows: _Rows, record: Record) -> None:
        table, key = rows.tables[type(record)], record.key
        with _storable(record.TABLE, key):
            for value in codec_of(type(record)).encode(record):
                require_storable(value)
        old = table.rows.get(key)
        why = _misplaced(old, record) or table.clash(key, record) or _missing_parent(rows, record)
        if why is None and old is not None:
            why = _left_behind(rows, record)
        if why is not None:
            raise _Refusal(record.TABLE, key, why)
        self._journal.append((type(record), key, table.place(key, record)))

    def _delete(self, rows: _Rows, delete: Delete) -> None:
        table = rows.tables[delete.record_type]
        old = table.rows.get(delete.key)
        if old is None:
            return
        for foreign, _ in _children(rows, old):
            raise _Refusal(old.TABLE, delete.key, f"{foreign.child.TABLE}.{foreign.field} still names it")
        self._journal.append((delete.record_type, delete.key, table.place(delete.key, None)))


@contextmanager
def _storable(table: str, key: Key) -> Generator[None]:
    """Turn the error of a value that no store can hold into a refusal."""
    try:
        yield
    except UNSTORABLE as error:
        raise _Refusal(table, key, f"cannot be stored: {error}") from error


def _misplaced(old: Record | None, record: Record) -> str | None:
    """Return why `record` may not stand where `old` (or nothing) stands now."""
    if not isinstance(record, Versioned) or record.revision == 1:
        return None if old is None else "exists already"
    if not isinstance(old, Versioned):
        return "does not exist"
    if old.revision != record.revision - 1:
        return f"has revision {old.revision}, not {record.revision - 1}"
    return forbidden_succession(old, record)


def _missing_parent(rows: _Rows, record: Record) -> str | None:
    for foreign in rows.tables[type(record)].references:
        if (name := getattr(record, foreign.field)) is not None:
            parent = rows.tables[foreign.parent].rows.get((name,))
            if parent is None or not foreign.holds(record, parent):
                fitting = f"with this {' and '.join(foreign.matching)}" if foreign.matching else "there is"
                return f"{foreign.field} names {name!r}, which is no {foreign.parent.TABLE} row {fitting}"
    return None


def _children(rows: _Rows, parent: Record) -> Iterator[tuple[ForeignKey, Record]]:
    """Yield every record that names `parent`, with the reference by which it does."""
    for foreign in FOREIGN_KEYS:
        if foreign.parent is type(parent):
            for child in rows.tables[foreign.child].references[foreign].get(parent.key[0], {}).values():
                yield foreign, child


def _left_behind(rows: _Rows, record: Record) -> str | None:
    """Return which record names this row as it was and could not name it as it is now."""
    for foreign, child in _children(rows, record):
        if not foreign.holds(child, record):
            return f"{foreign.child.TABLE}.{foreign.field} still names it as it was"
    return None


class MemoryReader:
    """The reading side of a memory store; waits for a running batch, then looks at what is there."""

    def __init__(self, url: str, rows: _Rows) -> None:
        self._url = url
        self._rows = rows
        self._snapshot: _Rows | None = None

    def select(self, query: Query[R]) -> list[R]:
        """See `StoreReader.select`."""
        with self._looking() as rows:
            return cast("list[R]", rows.tables[query.record_type].select(query))

    def count(self, query: Query[R]) -> int:
        """See `StoreReader.count`."""
        with self._looking() as rows:
            return sum(1 for _ in rows.tables[query.record_type].matching(query))

    def events(self, after: int = 0, limit: int | None = None) -> list[Event]:
        """See `StoreReader.events`."""
        with self._looking() as rows:
            return rows.events_after(after, limit)

    def dead_letters(self, after: int = 0, limit: int | None = None) -> list[DeadLetter]:
        """See `StoreReader.dead_letters`."""
        with self._looking() as rows:
            return rows.dead_letters_after(after, limit)

    def pane_count(self) -> int:
        """See `StoreReader.pane_count`."""
        with self._looking() as rows:
            tables = (rows.tables[IncarnationRecord], rows.tables[IntentRecord])
            return len({pane_id for table in tables for pane_id, held in table.of_pane.items() if held})

    def dead_letter_count(self) -> int:
        """See `StoreReader.dead_letter_count`."""
        with self._looking() as rows:
            return len(rows.dead_letters)

    def raw(self, table: str) -> Iterator[dict[str, object]]:
        """See `StoreReader.raw`."""
        require_raw_table(table)
        with self._looking() as rows:
            return iter(list(_raw(rows, table)))

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """See `StoreReader.snapshot`; the rows are copied, the records are not."""
        with self._looking() as rows:
            copy = _Rows(
                events=list(rows.events), last_event_seq=rows.last_event_seq, dead_letters=list(rows.dead_letters)
            )
            for kind, table in rows.tables.items():
                for key, record in table.rows.items():
                    copy.tables[kind].place(key, record)
        self._snapshot = copy
        try:
            yield
        finally:
            self._snapshot = None

    @contextmanager
    def _looking(self) -> Generator[_Rows]:
        rows = self._snapshot or self._rows
        with rows.lock:
            yield rows

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _raw(rows: _Rows, table: str) -> Iterator[dict[str, object]]:
    """Yield the rows of `table` as a store with columns would hold them."""
    if table == "events":
        for event in rows.events:
            yield dict(zip(EVENT_COLUMNS, encode_numbered_event(cast("int", event.seq), event)[0], strict=True))
    elif table == "dead_letters":
        for letter in rows.dead_letters:
            row = (letter.seq, *encode_dead_letter(cast("NewDeadLetter", letter)))
            yield dict(zip(DEAD_LETTER_COLUMNS, row, strict=True))
    elif table == "trimmed":
        yield {"only": 1, "last_event_seq": rows.trimmed_seq}
    else:
        record_type = next(kind for kind in RECORD_TYPES if table == kind.TABLE)
        for record in rows.tables[record_type].rows.values():
            yield {name: _stored(getattr(record, name)) for name in codec_of(record_type).columns}


def _stored(value: object) -> object:
    value = plain(value)
    return int(value) if isinstance(value, bool) else value


def reader_of(name: str) -> MemoryReader:
    """Return a reader of the rows called `name`; `StoreFault` if this process never opened such a store."""
    with _NAMED_LOCK:
        rows = _NAMED.get(name) if name else None
    if rows is None:
        url = f"memory://{name}"
        raise StoreFault(f"{url} does not exist in this process" if name else f"{url} has no name to be found under")
    return MemoryReader(f"memory://{name}", rows)
