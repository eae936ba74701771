"""Who owns a store that is a file: an `flock` on `FILE.lock`.

The kernel lets go of it however the process ends, and it holds between two runtimes of one process too.  The lock is on
a file of its own because the store's may be replaced.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from fencepost.mailbox.errors import StoreFault, StoreOwned

__all__ = ["PRIVATE", "make_private", "resolved", "take_lock", "why_no_file"]

PRIVATE: Final = 0o600
"""The rights of a store that is made: it holds what agents were told, and said.  Those of one that is there stay."""


def make_private(path: Path) -> None:
    """Make an empty file that only this user can read, whatever the umask; one that is there stays as it is.

    Raises `StoreFault`.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    except FileExistsError:
        return
    except OSError as error:
        raise StoreFault(f"{path}: {error}") from error
    try:
        os.fchmod(descriptor, PRIVATE)
    finally:
        os.close(descriptor)


def resolved(path: Path) -> Path:
    """Return `path` without a link in it.  Raises `StoreFault` where its links lead round in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise StoreFault(f"{path} cannot be followed: {error}") from error


def why_no_file(path: Path) -> str:
    """Say of a path that is no file what it is instead, as the end of a sentence."""
    if path.is_dir():
        return "is a folder"
    if path.exists():
        return "is not a file"
    return "is a link that leads to no file" if path.is_symlink() else "does not exist"


def take_lock(path: Path) -> int:
    """Return the descriptor that owns the store at `path`; closing it gives the store back.

    `path` has no link in it (`Path.resolve`): one file, one lock, by whatever link it was reached.  Raises `StoreOwned`
    with what the holder wrote of itself, or `StoreFault` where no lock can be made.
    """
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError as error:
        raise StoreFault(f"{path}: cannot make the lock beside it: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        os.pwrite(lock, f"process {os.getpid()}, since {since} UTC\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(lock, 200, 0).decode(errors="replace").strip()
        os.close(lock)
        raise StoreOwned(str(path), holder or "a process that has not said its name yet") from error
    except OSError as error:
        os.close(lock)
        raise StoreFault(f"{path}: cannot lock it: {error}") from error
    return lock
