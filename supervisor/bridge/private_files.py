"""The bridge's private files and folders: how each is made, replaced, read and told from one that others can reach.

A file is written beside its place and put there whole, or not at all; a name that ends in `.part` is what a death in
between left, and is never read.  Whoever writes a file lets nobody else write it at the same time, unless it is shared.
A file is read only if this user alone can read and write it: what is in it is believed, or is a secret.

Standard library only: the channel program reads with it too.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

__all__ = [
    "Unsafe",
    "create_private",
    "open_private",
    "private_folder",
    "read_private",
    "replace_private",
    "require_private_folder",
    "sync_folder",
]

_OTHERS: Final = 0o077
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unsafe(PermissionError):  # noqa: N818 - what it is
    """A file or folder that must be private is not; the message says which, and what to do."""


# -- folders -----------------------------------------------------------------------------------------------------------


def private_folder(path: Path) -> Path:
    """Make a folder that only this user can enter, or see that it is one.  Raises `Unsafe` or OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return require_private_folder(path)


def require_private_folder(path: Path) -> Path:
    """See that a folder can be entered by this user only.  Raises `Unsafe`, or OSError where there is none."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OTHERS:
        raise Unsafe(f"{path} must be a folder of yours with mode 0700 (chmod 700)")
    return path


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable.  Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- files -------------------------------------------------------------------------------------------------------------


def replace_private(path: Path, content: bytes | str, *, shared: bool = False) -> None:
    """Put a file in the place of what was there, whole or not at all.  Durable on return; raises OSError.

    `shared`: another process may do the same at the same time; then one of the two is there, whole.
    """
    _written_beside(path, content, f".{os.getpid()}" if shared else "").replace(path)
    sync_folder(path.parent)


def create_private(path: Path, content: bytes | str) -> bool:
    """Write a file where none is; False, and nothing is changed, where one is.  Whole or not at all; durable on return.

    Raises OSError.
    """
    part = _written_beside(path, content)
    try:
        path.hardlink_to(part)
    except FileExistsError:
        return False
    finally:
        part.unlink()
    sync_folder(path.parent)
    return True


def _written_beside(path: Path, content: bytes | str, whose: str = "") -> Path:
    part = path.with_name(f"{path.name}{whose}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, _NEW, 0o600), "wb") as file:  # noqa: PTH123 - the descriptor is what makes it private
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    return part


def read_private(path: Path, bytes_max: int = -1) -> bytes:
    """A file, or its beginning, that only this user can read.  Raises `Unsafe`, or OSError where there is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - opened without following a link, or waiting for a pipe
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OTHERS:
            raise Unsafe(f"{path} must be a file of yours with mode 0600 (chmod 600)")
        return file.read(bytes_max)


def open_private(path: str, flags: int) -> int:
    """An `opener` of a file that is written as it goes: one that is made is this user's alone.  Raises OSError."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
