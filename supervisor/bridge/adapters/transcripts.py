"""Reads the end of a transcript whose path a harness named: bounded, and only where transcripts are.

The path is not trusted.  What is opened is a regular file of this user, below one of the given folders after every link
is resolved, named like a transcript, and opened so that neither a pipe nor a terminal can hold the reader up.  What is
in it is not trusted either, so a window of its end is all that is held in memory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from fencepost.supervisor.bridge.adapters.claude_turns import Entry, NoTurn, Place, begins_here, place_of, read_entries

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["WINDOW_BYTES", "WINDOW_BYTES_MAX", "Look", "RefusedPath", "look_for", "read_tail", "transcript_roots"]

WINDOW_BYTES: Final = 256 * 1024
"""How much of a transcript's end is read first: the message that makes a call is among its last lines."""
WINDOW_BYTES_MAX: Final = 16 * 1024 * 1024
"""How much of it is read at most; what lies before that is not looked for."""

_PATH_MAX: Final = 4096


class RefusedPath(ValueError):  # noqa: N818 - what it is
    """The file is none that may be read as a transcript, or is not there."""


@frozen
class Look:
    """What one look at a transcript found: the call's place, and the entries it was found among."""

    found: Place | NoTurn
    entries: Sequence[Entry] = ()


def transcript_roots(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return where Claude Code keeps its transcripts, for processes with this environment, by default our own."""
    home = environment.get("HOME")
    base = Path("~").expanduser() if home is None else Path(home)
    return (Path(environment.get("CLAUDE_CONFIG_DIR") or base / ".claude") / "projects",)


def look_for(path: str, call: str, roots: Sequence[Path], deepest: int = WINDOW_BYTES_MAX) -> Look:
    """Find the message that made `call`, in as much of the transcript's end as that takes.

    A call that is not in the last `deepest` bytes is not looked for further up.  One that is may be found together with
    a line that is longer than that, such as the result before it: where its message begins is looked for as far as
    anything is read.  Blocking; raises `RefusedPath`.
    """
    window = min(WINDOW_BYTES, deepest)
    with _opened(path, roots) as (descriptor, size):
        while True:
            start = max(0, size - window)
            entries = read_entries(_read(descriptor, start, size - start), start)
            found = place_of(entries, call)
            whole = start == 0 or (isinstance(found, Place) and begins_here(entries, found))
            if whole or found in {NoTurn.NESTED, NoTurn.AMBIGUOUS}:
                return Look(found, entries)
            if window >= (WINDOW_BYTES_MAX if isinstance(found, Place) else deepest):
                return Look(NoTurn.MISSING, entries)  # it may begin before what may be read
            window = min(window * 8, WINDOW_BYTES_MAX)


def read_tail(path: str, roots: Sequence[Path], window: int = WINDOW_BYTES) -> list[Entry]:
    """Return the entries of the last `window` bytes.  Blocking; raises `RefusedPath`."""
    with _opened(path, roots) as (descriptor, size):
        start = max(0, size - window)
        return read_entries(_read(descriptor, start, size - start), start)


@contextmanager
def _opened(path: str, roots: Sequence[Path]) -> Generator[tuple[int, int]]:
    """Open the transcript; hands out its descriptor and its size at this moment."""
    try:
        resolved = _resolve(path, roots)
        descriptor = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise RefusedPath(f"no transcript at {path[:_PATH_MAX]!r}: {error}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise RefusedPath(f"{path!r} is not a regular file of this user")
        yield descriptor, status.st_size
    except OSError as error:
        raise RefusedPath(f"{path!r} cannot be read: {error}") from error
    finally:
        os.close(descriptor)


def _resolve(path: str, roots: Sequence[Path]) -> Path:
    if len(path) > _PATH_MAX or not path.startswith("/") or not path.endswith(".jsonl"):
        raise ValueError("not the absolute path of a .jsonl file")
    resolved = Path(path).resolve(strict=True)
    if not any(resolved.is_relative_to(root.resolve()) for root in roots):
        raise ValueError("outside of the folders transcripts are in")
    return resolved


def _read(descriptor: int, start: int, length: int) -> bytes:
    """Read up to `length` bytes from `start`; the file may have been cut meanwhile."""
    parts = []
    while length > 0:
        part = os.pread(descriptor, length, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
        length -= len(part)
    return b"".join(parts)
