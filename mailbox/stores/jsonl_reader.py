"""The reading side of a JSON lines store, beside an open runtime or without one.

It replays the file into rows of its own and then follows what is appended.  A log that was compacted is another file
under the same name, one that was cut back is shorter or no longer has the line that was read last; then all is replayed
anew.  Nothing is shown before this reader has synced what it read: its writer may be about to, or about to die.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fencepost.mailbox.errors import CorruptRecord, StoreFault
from fencepost.mailbox.stores.jsonl_replay import Replay
from fencepost.mailbox.stores.ownership import why_no_file
from fencepost.mailbox.stores.rows import Rows
from fencepost.mailbox.stores.rows_reader import RowsReader

__all__ = ["JsonlReader"]


class JsonlReader(RowsReader):
    """Reads the log at `path` and changes nothing.

    Raises `StoreFault` for a missing or empty file, `SchemaTooNew` and `CorruptRecord`, from the start or wherever a
    later look meets it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        if not self._path.is_file():
            raise StoreFault(f"{self._path} {why_no_file(self._path)}")
        self._replay = Replay(str(self._path))
        self._fd: int | None = None
        self._still = False
        try:
            self._refresh()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _looking(self) -> Generator[Rows]:
        if not self._still:
            self._refresh()
        yield self._replay.rows

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """See `StoreReader.snapshot`; these rows are this reader's own, it just does not follow meanwhile."""
        self._refresh()
        self._still = True
        try:
            yield
        finally:
            self._still = False

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def _refresh(self) -> None:
        """Take in what is durable by now."""
        try:
            try:
                self._follow()
            except CorruptRecord:  # or a torn end was cut off and written over between two looks
                self.close()
                self._follow()
        except OSError as error:
            self.close()
            raise StoreFault(f"{self._path}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _follow(self) -> None:
        fd = self._fd
        if fd is None or not self._is_what_was_read(fd):
            self.close()
            self._replay = Replay(str(self._path))
            self._fd = fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        elif os.fstat(fd).st_size == self._replay.offset:
            return
        with open(fd, "rb", closefd=False) as file:
            self._replay.read(file)
        _sync(fd)

    def _is_what_was_read(self, fd: int) -> bool:
        """Return whether the name still leads to this file, and this file still has what was read."""
        if not os.path.samestat(self._path.stat(), os.fstat(fd)):
            return False
        at, seal = self._replay.last_seal
        return os.fstat(fd).st_size >= self._replay.offset and os.pread(fd, len(seal), at) == seal


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.EINVAL}:  # there it is on the disk already, or on none
            raise
