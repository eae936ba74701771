"""The reading side of stores that hold `Rows`.

A store that lets other threads look at the rows it writes puts them in a `Shared` and holds its lock for a whole batch.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Self, TypeVar, cast

from attrs import define, field

from fencepost.mailbox.codec import (
    DEAD_LETTER_COLUMNS,
    EVENT_COLUMNS,
    codec_of,
    encode_dead_letter,
    encode_numbered_event,
    plain,
)
from fencepost.mailbox.mutation import DeadLetter, Event, NewDeadLetter
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import RECORD_TYPES, IncarnationRecord, IntentRecord, Record
from fencepost.mailbox.stores.rows import Rows
from fencepost.mailbox.stores.store import require_raw_table

__all__ = ["RowsReader", "Shared", "SharedReader"]

R = TypeVar("R", bound=Record)


@define(eq=False)
class Shared:
    """Rows that several threads look at; `lock` is held by whoever looks or writes."""

    rows: Rows = field(factory=Rows)
    lock: threading.Lock = field(factory=threading.Lock)


class RowsReader:
    """The reading side of a store that holds `Rows`; `_looking` is where they come from."""

    def _looking(self) -> AbstractContextManager[Rows]:
        """Hold the rows still and hand them out."""
        raise NotImplementedError

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
        return len(self.pane_ids())

    def pane_ids(self) -> list[str]:
        """See `StoreReader.pane_ids`."""
        with self._looking() as rows:
            tables = (rows.tables[IncarnationRecord], rows.tables[IntentRecord])
            return sorted({str(pane_id) for table in tables for pane_id, held in table.of_pane.items() if held})

    def dead_letter_count(self) -> int:
        """See `StoreReader.dead_letter_count`."""
        with self._looking() as rows:
            return len(rows.dead_letters)

    def raw(self, table: str) -> Iterator[dict[str, object]]:
        """See `StoreReader.raw`."""
        require_raw_table(table)
        with self._looking() as rows:
            return iter(list(_raw(rows, table)))

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SharedReader(RowsReader):
    """Looks at rows that a store of this process writes; waits for a running batch, so it never sees half of one."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._snapshot: Rows | None = None

    @contextmanager
    def _looking(self) -> Generator[Rows]:
        if self._snapshot is not None:
            yield self._snapshot
        else:
            with self._shared.lock:
                yield self._shared.rows

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """See `StoreReader.snapshot`; the rows are copied, the records are not."""
        with self._looking() as rows:
            self._snapshot = rows.copy()
        try:
            yield
        finally:
            self._snapshot = None


def _raw(rows: Rows, table: str) -> Iterator[dict[str, object]]:
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
