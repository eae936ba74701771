"""The store without a disk, for tests and for bridges that can afford to forget.

It keeps the records themselves and holds the same laws as the SQL stores (`rows`, `laws`).  A refused mutation is
undone from a journal of what it overwrote, and so is a whole batch that did not get to its end.  The rows have a lock
of their own: a reader in another thread waits for the running batch, so it never sees half of one.

`memory://NAME` is found again in this process under its name; what "durable" means there is the life of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from attrs import define

from fencepost.mailbox.errors import StoreFault, StoreOwned
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.stores.rows import Refusal, Rows
from fencepost.mailbox.stores.rows_reader import Shared, SharedReader
from fencepost.mailbox.stores.store import Answer, Job, Probe, Run, StoreReader

__all__ = ["MemoryStore", "reader_of"]


@define(eq=False)
class _Held(Shared):
    """All that one memory store holds."""

    owned_since: datetime | None = None


_NAMED: Final[dict[str, _Held]] = {}
_NAMED_LOCK: Final = threading.Lock()


class MemoryStore:
    """Rows in this process; `name` None makes fresh ones that go with this object."""

    def __init__(self, name: str | None = None) -> None:
        self.url = f"memory://{name or ''}"
        self.quick = True
        self._name = name
        self._held: _Held | None = None
        self._owning = False
        self._refused: BaseException | None = None
        self._events_kept_max = 0

    async def open(self, events_kept_max: int) -> None:
        """Take ownership of the rows, made now if there are none of that name.  Raises `StoreOwned`."""
        self._events_kept_max = events_kept_max
        with _NAMED_LOCK:
            held = _Held() if self._name is None else _NAMED.setdefault(self._name, _Held())
            if held.owned_since is not None:
                raise StoreOwned(self.url, f"this process, since {held.owned_since:%Y-%m-%d %H:%M:%S} UTC")
            held.owned_since = datetime.now(UTC)
            self._held = held
            self._owning = True

    async def serve(self, work: Callable[[Run], None]) -> None:
        """See `Store.serve`."""
        work(self.run)

    def run(self, jobs: Sequence[Job], probe: Probe | None) -> list[Answer]:
        """See `Run`."""
        held = self._usable()
        with held.lock:
            rows = held.rows
            rows.begin()
            try:
                answers = self._run(rows, jobs, probe)
                self._usable()
            except BaseException:
                rows.roll_back()
                raise
            if (last := rows.trim_due(self._events_kept_max)) is not None:
                rows.trim(last)
        if probe is not None and isinstance(answers[0], tuple):
            probe("committed")
        return answers

    def _run(self, rows: Rows, jobs: Sequence[Job], probe: Probe | None) -> list[Answer]:
        if probe is not None:
            probe("begun")
        answers: list[Answer] = []
        for job in jobs:
            self._usable()
            answers.append(_answer(rows, job))
        if probe is not None and isinstance(answers[0], tuple):
            probe("written")
        return answers

    def refuse(self, cause: BaseException) -> None:
        """See `Store.refuse`."""
        self._refused = cause

    async def close(self) -> None:
        """Let go of the rows; those of a name stay."""
        if self._owning and self._held is not None:
            self._owning = False
            self._held.owned_since = None

    def reader(self) -> StoreReader:
        """See `Store.reader`."""
        if self._held is None:
            raise StoreFault(f"{self.url} was never opened")
        return SharedReader(self._held)

    def _usable(self) -> _Held:
        if self._refused is not None:
            raise StoreFault(f"{self.url} refuses every call: {self._refused}") from self._refused
        if self._held is None or not self._owning:
            raise StoreFault(f"{self.url} is not open")
        return self._held


def _answer(rows: Rows, job: Job) -> Answer:
    if not isinstance(job, Mutation):
        return rows.load(job)
    mark = rows.mark()
    try:
        return rows.write(job).events
    except Refusal as refusal:
        rows.undo(mark)
        return refusal.of(job)


def reader_of(name: str) -> StoreReader:
    """Return a reader of the rows called `name`; `StoreFault` if this process never opened such a store."""
    with _NAMED_LOCK:
        held = _NAMED.get(name) if name else None
    if held is None:
        url = f"memory://{name}"
        raise StoreFault(f"{url} does not exist in this process" if name else f"{url} has no name to be found under")
    return SharedReader(held)
