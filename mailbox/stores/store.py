"""What the mutation line asks of a store, and how a URL becomes one.

    memory://          rows that live as long as this one store object
    memory://NAME      rows that live as long as the process; closed, killed or not, they can be opened again
    sqlite:///PATH     one file, PATH relative to the working directory; sqlite:////PATH is absolute
    jsonl:///PATH      the same, as a log of JSON lines

A store has two sides.  The *writing* side belongs to one runtime at a time and is used by the line alone; it takes
whole batches, and it takes the line's loop to wherever its data is, so that waking it costs one hop.  The *reading*
side is plain blocking calls on a connection of its own, safe beside an open runtime and useful without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol, Self, TypeAlias, TypeVar

from attrs import frozen

from fencepost.mailbox.errors import CorruptEvent, FencepostError, InvalidStoreUrl
from fencepost.mailbox.mutation import DeadLetter, Event, Mutation
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import RECORD_TYPES, Record

__all__ = [
    "RAW_TABLES",
    "SCHEMA_VERSION",
    "SCHEMES",
    "Answer",
    "Job",
    "Load",
    "LoadDeadLetters",
    "LoadEvents",
    "LoadFields",
    "Probe",
    "Run",
    "Store",
    "StoreReader",
    "open_reader",
    "open_store",
    "past_damage",
    "require_raw_table",
    "trim_to",
]

R = TypeVar("R", bound=Record)
T = TypeVar("T")

SCHEMA_VERSION: Final = 1
RAW_TABLES: Final = (*(kind.TABLE for kind in RECORD_TYPES), "events", "dead_letters", "trimmed")
"""What `StoreReader.raw` reads: every table there is."""
SCHEMES: Final = ("memory://", "memory://NAME", "sqlite:///PATH", "jsonl:///PATH")


@frozen
class Load:
    """Answer each query with its records, all from the same moment."""

    queries: tuple[Query[Record], ...]


@frozen
class LoadFields:
    """Answer each query with what one field of its records holds, undecoded, all from one moment.

    For whoever must find records that may be damaged: it needs no more of a row than that the query matches it.  The
    order is that in which the rows were first written; tables that are kept by their key have none.
    """

    wanted: tuple[tuple[Query[Record], str], ...]


@frozen
class LoadEvents:
    """Answer the stored events with a seq over `after`, oldest first, at most `limit`, up to one that is damaged.

    If that is the first, the answer is `CorruptEvent`.
    """

    after: int
    limit: int | None


@frozen
class LoadDeadLetters:
    """Answer the dead letters with a seq over `after`, oldest first, at most `limit`."""

    after: int
    limit: int | None


Job: TypeAlias = Mutation | Load | LoadFields | LoadEvents | LoadDeadLetters

Answer: TypeAlias = (
    tuple[Event, ...] | list[list[Record]] | list[list[object]] | list[Event] | list[DeadLetter] | FencepostError
)
"""A job's answer.  A tuple of events answers a mutation and nothing else does; an error is that job's alone."""

Probe: TypeAlias = Callable[[str], None]
"""Called with `begun`, `written` and `committed` as a batch of one mutation gets there, the last two only if it was
not refused; what it raises ends the store's life."""


class Run(Protocol):
    """Runs a batch; called only from within `serve`."""

    def __call__(self, jobs: Sequence[Job], probe: Probe | None) -> list[Answer]:
        """Run `jobs` in order in one transaction; on return all of it is durable, and each job has its answer.

        A mutation that a guard, a constraint or one of its own values forbids is answered with `MutationRefused` and
        leaves nothing; a load that meets a record no protocol can have written is answered with `CorruptRecord`.
        Anything else that fails is raised, and then nothing of the batch is visible.
        """
        ...


class Store(Protocol):
    """The writing side, for the line's thread; only `refuse` and `reader` may be called from others."""

    @property
    def url(self) -> str:
        """The URL it was made from."""
        ...

    @property
    def quick(self) -> bool:
        """Whether a batch takes no longer than waiting for it would: nothing to sync, nothing to read from a disk."""
        ...

    async def open(self, events_kept_max: int) -> None:
        """Take ownership and make ready; on an error nothing stays open or owned.

        Raises `StoreOwned`, `SchemaTooNew`, `CorruptRecord` or `StoreFault`; all leave the stored data untouched.
        """
        ...

    async def serve(self, work: Callable[[Run], None]) -> None:
        """Call `work` with this store's `Run`, on the thread that is nearest to the data, and return when it does.

        `work` blocks that thread for as long as the line lives.
        """
        ...

    def refuse(self, cause: BaseException) -> None:
        """From now on refuse every call, also the running one at its next step.  Thread-safe, at once."""
        ...

    async def close(self) -> None:
        """Give everything back, ownership last; what was not committed is gone.  Does nothing the second time."""
        ...

    def reader(self) -> StoreReader:
        """Open the reading side of this very store (which must have been opened once)."""
        ...


class StoreReader(Protocol):
    """The reading side: blocking calls, each of which sees only what is durable.  Use it from one thread at a time."""

    def select(self, query: Query[R]) -> list[R]:
        """Return the records that match.  Raises `CorruptRecord` or `StoreFault`."""
        ...

    def count(self, query: Query[R]) -> int:
        """Return how many records match (order and limit do not matter)."""
        ...

    def events(self, after: int = 0, limit: int | None = None) -> list[Event]:
        """Return the stored events with a seq over `after`, oldest first, up to one that cannot be read.

        Raises `CorruptEvent` if that is the first; see `past_damage`.
        """
        ...

    def dead_letters(self, after: int = 0, limit: int | None = None) -> list[DeadLetter]:
        """Return the dead letters with a seq over `after`, oldest first."""
        ...

    def pane_count(self) -> int:
        """Return how many panes ever had an incarnation or an intent; the history's length costs nothing."""
        ...

    def pane_ids(self) -> list[str]:
        """Return the panes of `pane_count` in the order of their ids; one whose id is no text is left out."""
        ...

    def dead_letter_count(self) -> int:
        """Return how many dead letters there are."""
        ...

    def raw(self, table: str) -> Iterator[dict[str, object]]:
        """Yield the rows of one of `RAW_TABLES` as they are stored, undecoded and in no order.

        For auditors, who must see what no record can be: a value may be of any type the store can hold, text that is
        no text comes as bytes.  Raises ValueError for another table and `StoreFault`.
        """
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Within it every call sees one and the same moment."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def require_raw_table(table: str) -> None:
    """Raise ValueError unless `StoreReader.raw` can read `table`."""
    if table not in RAW_TABLES:
        raise ValueError(f"{table!r} is none of the tables {', '.join(RAW_TABLES)}")


def past_damage(
    read: Callable[[int, int | None], list[T]], skip: Callable[[CorruptEvent], None]
) -> Callable[[int, int | None], list[T]]:
    """Return a `read` of events that tells `skip` of one that cannot be read, and answers what is behind it."""

    def read_on(after: int, limit: int | None) -> list[T]:
        while True:
            try:
                return read(after, limit)
            except CorruptEvent as damaged:
                skip(damaged)
                after = damaged.seq

    return read_on


def trim_to(last_seq: int, trimmed_seq: int, events_kept_max: int) -> int | None:
    """Return the last event seq to trim away now, or None while that can wait.

    Trimming is put off until it removes about a hundredth of what is kept, so that it costs next to nothing.
    """
    if last_seq - trimmed_seq <= events_kept_max + events_kept_max // 100:
        return None
    return last_seq - events_kept_max


def _parse(url: str) -> tuple[str, str]:
    """Return the scheme and what it names; raise `InvalidStoreUrl` where the two do not fit."""
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or scheme not in {"memory", "sqlite", "jsonl"}:
        raise InvalidStoreUrl(url, f"known are {', '.join(SCHEMES)}")
    if scheme == "memory":
        return scheme, rest
    if not rest.startswith("/") or rest in {"/", "//"} or "\0" in rest:
        raise InvalidStoreUrl(url, f"a file is {scheme}:///relative or {scheme}:////absolute")
    return scheme, rest[1:]


def open_store(url: str) -> Store:
    """Return the store that `url` names, not opened yet; nothing is touched.  Raises `InvalidStoreUrl`."""
    scheme, rest = _parse(url)
    if scheme == "memory":
        from fencepost.mailbox.stores.memory import MemoryStore

        return MemoryStore(rest or None)
    if scheme == "jsonl":
        from fencepost.mailbox.stores.jsonl import JsonlStore

        return JsonlStore(Path(rest), url=url)
    from fencepost.mailbox.stores.sqlite import SqliteStore

    return SqliteStore(Path(rest), url=url)


def open_reader(url: str) -> StoreReader:
    """Open the reading side of the store that `url` names; it needs no runtime and disturbs none.

    Creates nothing: a store that does not exist is a `StoreFault`.  Also raises `SchemaTooNew`, `CorruptRecord` and
    `InvalidStoreUrl`.
    """
    scheme, rest = _parse(url)
    if scheme == "memory":
        from fencepost.mailbox.stores.memory import reader_of

        return reader_of(rest)
    if scheme == "jsonl":
        from fencepost.mailbox.stores.jsonl_reader import JsonlReader

        return JsonlReader(Path(rest))
    from fencepost.mailbox.stores.sqlite_reader import SqliteReader

    return SqliteReader(Path(rest))
