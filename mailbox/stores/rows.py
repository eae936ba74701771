"""Rows held as the records themselves, under the laws that SQL stores keep in SQL; for stores that keep them so.

`Rows` is what one store holds.  A transaction is `begin`, mutations, and perhaps `roll_back`: everything overwritten is
in a journal, from which one refused mutation is undone as well as a whole batch.  Nothing in here locks, waits or
touches a file; `rows_reader` is for those that look.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from attrs import define, field

from fencepost.mailbox.codec import (
    UNSTORABLE,
    codec_of,
    decode_dead_letter,
    encode_dead_letter,
    encode_numbered_event,
    plain,
)
from fencepost.mailbox.errors import MutationRefused
from fencepost.mailbox.mutation import DeadLetter, Delete, Event, Guard, Live, Mutation, Unchanged
from fencepost.mailbox.query import NOT_NULL, Above, Query
from fencepost.mailbox.records import RECORD_TYPES, IncarnationRecord, Record, Versioned
from fencepost.mailbox.storable import require_storable
from fencepost.mailbox.stores.laws import FOREIGN_KEYS, UNIQUES, ForeignKey, Unique, forbidden_succession
from fencepost.mailbox.stores.store import Answer, Job, Load, LoadEvents, trim_to

__all__ = ["Key", "Mark", "Refusal", "Row", "Rows", "Step", "Table", "Written"]

Key: TypeAlias = tuple[object, ...]
Row: TypeAlias = tuple[object, ...]


class Step(NamedTuple):
    """A step of the journal: which row was written, what stood there before and what stands there now."""

    record_type: type[Record]
    key: Key
    old: Record | None
    new: Record | None


class Mark(NamedTuple):
    """A moment of the rows, to go back to within a transaction."""

    steps: int
    events: int
    last_event_seq: int
    dead_letters: int


class Written(NamedTuple):
    """What one mutation came to: its numbered events, their rows, its dead letters' rows, and its steps."""

    events: tuple[Event, ...]
    event_rows: Sequence[Row]
    letter_rows: Sequence[Row]
    steps: Sequence[Step]


class Refusal(Exception):  # noqa: N818 - becomes a MutationRefused one frame up
    """A row stood in the way of a mutation."""

    def __init__(self, table: str, key: Key, why: str) -> None:
        super().__init__(why)
        self.table = table
        self.key = key
        self.why = why

    def of(self, mutation: Mutation) -> MutationRefused:
        """Return the answer of the mutation that met it."""
        return MutationRefused(mutation.label, self.table, self.key, self.why)


class Table:
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
        tests = [(name, _test(value)) for name, value in query.where.items()]
        for record in self._candidates(query):
            if all(test(getattr(record, name)) for name, test in tests):
                yield record

    def _candidates(self, query: Query[Any]) -> Iterable[Record]:
        """Return what may match: a batch asks for its calls' rows by their ids, and must not look through all rows."""
        wanted = [query.where.get(name) for name in query.record_type.KEY]
        if all(isinstance(value, str) for value in wanted):
            keys: Iterable[Key] = (tuple(wanted),)
        elif len(wanted) == 1 and isinstance(wanted[0], tuple):
            keys = ((value,) for value in dict.fromkeys(wanted[0]))
        elif (naming := self._naming(query)) is not None:
            return naming
        elif self.paned and isinstance(pane_id := query.where.get("pane_id"), str):
            return self.of_pane.get(pane_id, {}).values()
        else:
            return self.rows.values()
        return [self.rows[key] for key in keys if key in self.rows]

    def _naming(self, query: Query[Any]) -> list[Record] | None:
        """Return the rows that refer to those the query names, or None if it names none."""
        for foreign, naming in self.references.items():
            wanted = query.where.get(foreign.field)
            if isinstance(wanted, str | tuple):
                names = (wanted,) if isinstance(wanted, str) else dict.fromkeys(wanted)
                return [record for name in names for record in naming.get(name, {}).values()]
        return None


def _test(wanted: object) -> Callable[[object], bool]:
    """Return whether a field's value is what `where` wants."""
    if wanted is None:
        return lambda value: value is None
    if wanted is NOT_NULL:
        return lambda value: value is not None
    if isinstance(wanted, tuple):
        among = frozenset(wanted)
        return lambda value: value is not None and value in among
    if isinstance(wanted, Above):
        return lambda value: isinstance(value, int) and value > wanted.number
    return lambda value: value is not None and value == wanted


@define(eq=False)
class Rows:
    """All that one store holds: the tables, the events that were not trimmed away, the dead letters."""

    tables: dict[type[Record], Table] = field(factory=lambda: {kind: Table(kind) for kind in RECORD_TYPES})
    events: list[Event] = field(factory=list)
    last_event_seq: int = 0
    dead_letters: list[DeadLetter] = field(factory=list)
    _journal: list[Step] = field(factory=list, init=False)
    _began: Mark = field(default=Mark(0, 0, 0, 0), init=False)

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

    def copy(self) -> Rows:
        """Return rows of their own that hold the same; the records are not copied."""
        copy = Rows(events=list(self.events), last_event_seq=self.last_event_seq, dead_letters=list(self.dead_letters))
        for kind, table in self.tables.items():
            for key, record in table.rows.items():
                copy.tables[kind].place(key, record)
        return copy

    # -------------------------------------------------------------------------------------------------- transactions

    def begin(self) -> None:
        """Begin a transaction; what was written before stands from now on."""
        self._journal.clear()
        self._began = self.mark()

    def roll_back(self) -> None:
        """Undo everything since `begin`."""
        self.undo(self._began)

    def mark(self) -> Mark:
        """Return this moment."""
        return Mark(len(self._journal), len(self.events), self.last_event_seq, len(self.dead_letters))

    def undo(self, mark: Mark) -> None:
        """Undo everything since `mark`, which is of this transaction."""
        while len(self._journal) > mark.steps:
            step = self._journal.pop()
            self.tables[step.record_type].place(step.key, step.old)
        del self.events[mark.events :], self.dead_letters[mark.dead_letters :]
        self.last_event_seq = mark.last_event_seq

    def write(self, mutation: Mutation) -> Written:
        """Check the guards and write all of `mutation`, or raise `Refusal`; then the caller goes back to its mark."""
        first_seq = self.last_event_seq + 1
        with _storable("events", ()):
            numbered = [encode_numbered_event(seq, new) for seq, new in enumerate(mutation.events, first_seq)]
        with _storable("dead_letters", ()):
            letters = [
                (seq, *encode_dead_letter(letter))
                for seq, letter in enumerate(mutation.dead_letters, len(self.dead_letters) + 1)
            ]
        for guard in mutation.guards:
            self._check(guard)
        first_step = len(self._journal)
        events = tuple(event for _, event in numbered)
        self.apply(mutation.deletes, mutation.puts, events, letters)
        return Written(events, [row for row, _ in numbered], letters, self._journal[first_step:])

    def apply(
        self, deletes: Sequence[Delete], puts: Sequence[Record], events: Sequence[Event], letters: Sequence[Row]
    ) -> None:
        """Write what has its numbers already, under all laws between rows; raises `Refusal`, see `write`."""
        for delete in deletes:
            self._delete(delete)
        for record in puts:
            self._put(record)
        self.events.extend(events)
        self.last_event_seq += len(events)
        self.dead_letters.extend(map(decode_dead_letter, letters))

    def load(self, job: Job) -> Answer:
        """Answer a job that is no mutation."""
        assert not isinstance(job, Mutation)
        if isinstance(job, Load):
            return [self.tables[query.record_type].select(query) for query in job.queries]
        if isinstance(job, LoadEvents):
            return self.events_after(job.after, job.limit)
        return self.dead_letters_after(job.after, job.limit)

    def trim_due(self, events_kept_max: int) -> int | None:
        """Return the last event seq to trim away now, or None; see `trim_to`."""
        return trim_to(self.last_event_seq, self.trimmed_seq, events_kept_max)

    def trim(self, last: int) -> None:
        """Forget the events up to the seq `last`; no transaction takes that back."""
        del self.events[: last - self.trimmed_seq]

    # ---------------------------------------------------------------------------------------------------------- laws

    def restore(self, record: Record) -> None:
        """Put a row back as it once stood, at any revision; what it refers to may follow (`missing_parent`)."""
        table, key = self.tables[type(record)], record.key
        why = "exists already" if key in table.rows else table.clash(key, record)
        if why is not None:
            raise Refusal(record.TABLE, key, why)
        table.place(key, record)

    def missing_parent(self, record: Record) -> str | None:
        """Return which reference of `record` leads nowhere, or None."""
        for foreign in self.tables[type(record)].references:
            if (name := getattr(record, foreign.field)) is not None:
                parent = self.tables[foreign.parent].rows.get((name,))
                if parent is None or not foreign.holds(record, parent):
                    fitting = f"with this {' and '.join(foreign.matching)}" if foreign.matching else "there is"
                    return f"{foreign.field} names {name!r}, which is no {foreign.parent.TABLE} row {fitting}"
        return None

    def _check(self, guard: Guard) -> None:
        if isinstance(guard, Unchanged):
            record = guard.record
            stored = self.tables[type(record)].rows.get(record.key)
            if stored is None:
                raise Refusal(record.TABLE, record.key, "does not exist")
            if isinstance(record, Versioned) and isinstance(stored, Versioned) and stored.revision != record.revision:
                raise Refusal(record.TABLE, record.key, f"has revision {stored.revision}, not {record.revision}")
        elif isinstance(guard, Live):
            key = (guard.incarnation_id,)
            incarnation = self.tables[IncarnationRecord].rows.get(key)
            if not (isinstance(incarnation, IncarnationRecord) and incarnation.live):
                raise Refusal(IncarnationRecord.TABLE, key, "is not live")
        elif guard.key in self.tables[guard.record_type].rows:
            raise Refusal(guard.record_type.TABLE, guard.key, "exists already")

    def _put(self, record: Record) -> None:
        table, key = self.tables[type(record)], record.key
        with _storable(record.TABLE, key):
            for value in codec_of(type(record)).encode(record):
                if value is not None:
                    require_storable(value)
        old = table.rows.get(key)
        why = _misplaced(old, record) or table.clash(key, record) or self.missing_parent(record)
        if why is None and old is not None:
            why = self._left_behind(record)
        if why is not None:
            raise Refusal(record.TABLE, key, why)
        self._journal.append(Step(type(record), key, table.place(key, record), record))

    def _delete(self, delete: Delete) -> None:
        table = self.tables[delete.record_type]
        old = table.rows.get(delete.key)
        if old is None:
            return
        for foreign, _ in self._children(old):
            raise Refusal(old.TABLE, delete.key, f"{foreign.child.TABLE}.{foreign.field} still names it")
        self._journal.append(Step(delete.record_type, delete.key, table.place(delete.key, None), None))

    def _children(self, parent: Record) -> Iterator[tuple[ForeignKey, Record]]:
        """Yield every record that names `parent`, with the reference by which it does."""
        for foreign in FOREIGN_KEYS:
            if foreign.parent is type(parent):
                for child in self.tables[foreign.child].references[foreign].get(parent.key[0], {}).values():
                    yield foreign, child

    def _left_behind(self, record: Record) -> str | None:
        """Return which record names this row as it was and could not name it as it is now."""
        for foreign, child in self._children(record):
            if not foreign.holds(child, record):
                return f"{foreign.child.TABLE}.{foreign.field} still names it as it was"
        return None


@contextmanager
def _storable(table: str, key: Key) -> Generator[None]:
    """Turn the error of a value that no store can hold into a refusal."""
    try:
        yield
    except UNSTORABLE as error:
        raise Refusal(table, key, f"cannot be stored: {error}") from error


def _misplaced(old: Record | None, record: Record) -> str | None:
    """Return why `record` may not stand where `old` (or nothing) stands now."""
    if not isinstance(record, Versioned) or record.revision == 1:
        return None if old is None else "exists already"
    if not isinstance(old, Versioned):
        return "does not exist"
    if old.revision != record.revision - 1:
        return f"has revision {old.revision}, not {record.revision - 1}"
    return forbidden_succession(old, record)
