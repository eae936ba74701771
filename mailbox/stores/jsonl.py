"""The store in one file of JSON lines: a log of committed mutations, synced once a batch, replayed when it is opened.

The rows are in memory, as the memory store has them; the file is what makes them durable.  A batch is applied to the
rows, encoded, and appended by one write and one sync; if that fails the rows go back, the file is cut back, and the
store is over.  `jsonl_format` has the lines and `jsonl_changes` what they say, `jsonl_replay` tells a torn end from
damage, `jsonl_file` writes.

A row that is written again leaves its older line behind, dead.  When a mutation ends an operation (`ends_operation`)
and dead bytes outweigh live ones, the log is compacted: all that is live is written to a new file, which then takes the
log's name.  The commit was durable before that began and stands whatever comes of it.  A compaction that fails for want
of room is logged and put off until the dead bytes have doubled.  If it is unclear which file has the name for good, the
store refuses every later call: what it would append might be appended to a file that is gone.

Ownership is a lock on `FILE.lock` (`ownership`); replacing the log does not touch it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from attrs import define, field

from fencepost.mailbox.errors import StoreFault
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.stores.jsonl_changes import Change, Weights, encode_mutation, encode_trim
from fencepost.mailbox.stores.jsonl_file import LogFile, NotReplaced
from fencepost.mailbox.stores.jsonl_format import Header, base_lines, group_lines, header_line
from fencepost.mailbox.stores.jsonl_replay import Replay
from fencepost.mailbox.stores.laws import ends_operation
from fencepost.mailbox.stores.ownership import resolved, take_lock
from fencepost.mailbox.stores.rows import Refusal, Rows
from fencepost.mailbox.stores.rows_reader import Shared, SharedReader
from fencepost.mailbox.stores.store import Answer, Job, Probe, Run, StoreReader

__all__ = ["DEAD_BYTES_MIN", "JsonlStore"]

DEAD_BYTES_MIN: Final = 64 * 1024
"""Fewer dead bytes than this are not worth a new file."""

_LOGGER: Final = logging.getLogger(__name__)


@define(eq=False)
class _Batch:
    """What a batch will append: the content of each line and what it changes."""

    contents: list[bytes] = field(factory=list)
    changes: list[Change] = field(factory=list)
    ends_operation: bool = False


class JsonlStore:
    """The store in the file at `path`."""

    def __init__(self, path: Path, *, url: str | None = None) -> None:
        self.url = url or f"jsonl:///{path}"
        self.quick = False
        self._path = path
        self._lock: int | None = None
        self._log: LogFile | None = None
        self._shared: Shared | None = None
        self._weights = Weights(0)
        self._next_group = 1
        self._compact_over = DEAD_BYTES_MIN
        self._events_kept_max = 0
        self._refused: BaseException | None = None

    async def open(self, events_kept_max: int) -> None:
        """See `Store.open`; an absent or empty file becomes a new store, its folder must exist.

        The torn end of a batch that was never answered is cut off and told to the log of this module.
        """
        self._events_kept_max = events_kept_max
        self._path = resolved(self._path)
        self._lock = take_lock(self._path)
        try:
            self._open()
        except OSError as error:
            await self.close()
            raise StoreFault(f"{self._path}: {error}") from error
        except BaseException:
            await self.close()
            raise

    def _open(self) -> None:
        self._log = log = LogFile(self._path, header_line(Header(base_lines=0, next_group=1, trimmed_seq=0)))
        replay = Replay(str(self._path))
        with self._path.open("rb") as file:
            torn = replay.read(file)
        log.forget_temporary()
        if torn:
            _LOGGER.warning("%s: %d bytes of an unfinished commit are cut off its end", self._path, torn)
            log.cut(replay.offset)
        self._shared = Shared(replay.rows)
        self._weights, self._next_group = replay.weights, replay.next_group
        self._compact_if_it_pays(log, replay.rows)

    async def serve(self, work: Callable[[Run], None]) -> None:
        """See `Store.serve`; the data is in this very thread."""
        self._usable()
        work(self.run)

    def refuse(self, cause: BaseException) -> None:
        """See `Store.refuse`."""
        self._refused = cause

    async def close(self) -> None:
        """See `Store.close`."""
        log, self._log = self._log, None
        lock, self._lock = self._lock, None
        try:
            if log is not None:
                log.close()
        finally:
            if lock is not None:
                os.close(lock)

    def reader(self) -> StoreReader:
        """See `Store.reader`; it looks at this store's own rows and waits for a batch that is being synced."""
        if self._shared is None:
            raise StoreFault(f"{self._path} was never opened")
        return SharedReader(self._shared)

    # ------------------------------------------------------------------------------------------------------- batches

    def run(self, jobs: Sequence[Job], probe: Probe | None) -> list[Answer]:
        """See `Run`."""
        log, shared = self._usable()
        rows, batch = shared.rows, _Batch()
        with shared.lock:
            rows.begin()
            try:
                answers = self._run(rows, jobs, probe, batch)
                if batch.contents:
                    self._append(log, group_lines(self._next_group, batch.contents))
            except BaseException:
                rows.roll_back()
                raise
            self._take_in(rows, batch)
        if probe is not None and isinstance(answers[0], tuple):
            probe("committed")
        if batch.ends_operation:
            self._compact_if_it_pays(log, rows)
        return answers

    def _run(self, rows: Rows, jobs: Sequence[Job], probe: Probe | None, batch: _Batch) -> list[Answer]:
        if probe is not None:
            probe("begun")
        answers: list[Answer] = []
        for job in jobs:
            self._require_usable()
            answers.append(_mutate(rows, job, batch) if isinstance(job, Mutation) else rows.load(job))
        if (last := rows.trim_due(self._events_kept_max)) is not None:
            content, change = encode_trim(last)
            batch.contents.append(content)
            batch.changes.append(change)
        if probe is not None and isinstance(answers[0], tuple):
            probe("written")
        self._require_usable()
        return answers

    def _append(self, log: LogFile, lines: bytes) -> None:
        try:
            log.append(lines)
        except BaseException as error:
            self._refused = self._refused or error
            raise

    def _take_in(self, rows: Rows, batch: _Batch) -> None:
        """Count what has become durable."""
        if not batch.contents:
            return
        self._next_group += 1
        for change in batch.changes:
            self._weights.count(change)
            if change.trimmed is not None:
                rows.trim(change.trimmed)

    def _usable(self) -> tuple[LogFile, Shared]:
        self._require_usable()
        if self._log is None or self._shared is None:
            raise StoreFault(f"{self._path} is not open")
        return self._log, self._shared

    def _require_usable(self) -> None:
        if self._refused is not None:
            raise StoreFault(f"{self._path} refuses every call: {self._refused}") from self._refused

    # ---------------------------------------------------------------------------------------------------- compaction

    def _compact_if_it_pays(self, log: LogFile, rows: Rows) -> None:
        """Rewrite the log if that halves it at least; never raises, see the module's theory."""
        dead = log.size - self._weights.live
        if dead <= max(self._weights.live, self._compact_over):
            return
        lines, weights = base_lines(rows, self._next_group)
        try:
            log.replace(lines)
        except NotReplaced as error:
            self._compact_over = 2 * dead
            _LOGGER.warning("%s: the log of %d bytes could not be compacted: %s", self._path, log.size, error.__cause__)
            return
        except OSError as error:
            self._refused = self._refused or error
            return
        self._weights = weights
        self._compact_over = DEAD_BYTES_MIN


def _mutate(rows: Rows, mutation: Mutation, batch: _Batch) -> Answer:
    """Write one mutation, or refuse it and leave nothing of it."""
    mark = rows.mark()
    try:
        written = rows.write(mutation)
        content, change = encode_mutation(mutation.label, written)
    except Refusal as refusal:
        rows.undo(mark)
        return refusal.of(mutation)
    if content != b"{}":
        batch.contents.append(content)
        batch.changes.append(change)
        batch.ends_operation |= any(ends_operation(record) for record in change.puts)
    return written.events
