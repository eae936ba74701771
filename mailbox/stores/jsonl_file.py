"""The file of a JSON lines store: appended to, cut, and replaced, each durable at return.

The one module that writes the log.  It knows bytes and nothing of what they say.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fencepost.mailbox.errors import StoreFault
from fencepost.mailbox.stores.ownership import PRIVATE

__all__ = ["LogFile", "NotReplaced"]


class NotReplaced(Exception):  # noqa: N818 - never leaves the store
    """The new file could not be made; the old one is in use as before.  `__cause__` is the OSError."""


class LogFile:
    """The log at `path`, open for appending; made now, of the line `first`, if there is none or an empty one.

    Its folder must exist, and the caller owns it.  What it holds is synced at return, and so is its name.  Raises
    `StoreFault` if something that is no file has that name, and OSError.
    """

    def __init__(self, path: Path, first: bytes) -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.name}.new")
        if path.exists() and not path.is_file():
            raise StoreFault(f"{path} is not a file")
        if not path.exists() or not path.stat().st_size:
            self._fd = self._written_anew([first])
            try:
                self._temporary.replace(path)
            except BaseException:
                os.close(self._fd)
                raise
        else:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.fsync(self._fd)  # a process that died may have left pages that are on no disk
            _sync_folder(path)
            self.size = os.fstat(self._fd).st_size
        except BaseException:
            self.close()
            raise

    def append(self, data: bytes) -> None:
        """Write and sync `data`.

        If that fails the file is cut back to what it was as well as it can be, and must not be appended to again: after
        a failed sync nobody knows which of its pages are on the disk.
        """
        try:
            _write(self._fd, data)
            os.fsync(self._fd)
        except BaseException:
            with suppress(OSError):
                self.cut(self.size)
            raise
        self.size += len(data)

    def cut(self, size: int) -> None:
        """Cut the file off behind `size` bytes."""
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        self.size = size

    def replace(self, lines: Iterable[bytes]) -> None:
        """Put a file that consists of `lines` into this one's place.

        Whenever this is interrupted, the whole old or the whole new file has the name.  Raises `NotReplaced` if that is
        certainly the old one; on an OSError it is not certain which will have it after a loss of power, so nothing may
        be appended to either.
        """
        try:
            new = self._written_anew(lines)
        except (OSError, MemoryError) as error:
            raise NotReplaced from error
        try:
            self._temporary.replace(self._path)
        except OSError as error:
            os.close(new)
            self.forget_temporary()
            if os.path.samestat(self._path.stat(), os.fstat(self._fd)):
                raise NotReplaced from error
            raise
        old, self._fd = self._fd, new
        with suppress(OSError):  # all of it was synced, and nobody will look at it again
            os.close(old)
        self.size = os.fstat(new).st_size
        _sync_folder(self._path)

    def forget_temporary(self) -> None:
        """Remove what an interrupted `replace` left, if it can be removed."""
        with suppress(OSError):
            self._temporary.unlink()

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def _written_anew(self, lines: Iterable[bytes]) -> int:
        """Return the descriptor of a synced new file beside the log, or leave none."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        new = os.open(self._temporary, flags, PRIVATE)
        try:  # a log that replaces another has the other's rights
            os.fchmod(new, stat.S_IMODE(self._path.stat().st_mode) if self._path.exists() else PRIVATE)
            for line in lines:
                _write(new, line)
            os.fsync(new)
        except BaseException:
            os.close(new)
            self.forget_temporary()
            raise
        return new


def _write(fd: int, data: bytes) -> None:
    """Write all of `data`; the system may take it in parts."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _sync_folder(path: Path) -> None:
    """Make the name of the file at `path` durable."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
