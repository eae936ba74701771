"""Files that only this user can read: each is written beside its place and put there whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["create_private"]


def create_private(path: Path, content: bytes) -> bool:
    """Write a file where none is; False, and nothing is changed, where one is.  Whole or not at all; durable on return.

    One writer a folder at a time.  Raises OSError.
    """
    part = _written_beside(path, content)
    try:
        path.hardlink_to(part)
    except FileExistsError:
        return False
    finally:
        part.unlink()
    _sync(path.parent)
    return True


def _written_beside(path: Path, content: bytes) -> Path:
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - the descriptor is what makes it private
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return part


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
