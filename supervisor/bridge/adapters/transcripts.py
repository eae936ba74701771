"""Reads the end of a transcript whose path a harness named: bounded, and only where transcripts are.

The path is not trusted.  What is opened is a regular file of this user, below one of the given folders after every link
is resolved, named like a transcript, and opened so that neither a pipe nor a terminal can hold the reader up.  What is
in it is not trusted either, so a window of its end is all that is held in memory.
"""

from __future__ import annotations

import os
import stat
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from fencepost.supervisor.bridge.adapters.claude_chain import answered_above
from fencepost.supervisor.bridge.adapters.claude_turns import Entry, NoTurn, Place, begins_here, place_of, read_entries
from fencepost.supervisor.bridge.startup_tag import StartupTag, startup_of

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "WINDOW_BYTES",
    "WINDOW_BYTES_MAX",
    "Look",
    "RefusedPath",
    "Told",
    "TranscriptMemory",
    "holds",
    "look_for",
    "read_tail",
    "told_in",
    "transcript_roots",
]

WINDOW_BYTES: Final = 256 * 1024
"""How much of a transcript's end is read first: the message that makes a call is among its last lines."""
WINDOW_BYTES_MAX: Final = 16 * 1024 * 1024
"""How much of it is read at most; what lies before that is not looked for."""

_PATH_MAX: Final = 4096
_REMEMBERED_MAX: Final = 128
_MARK_BYTES: Final = 256


class RefusedPath(ValueError):  # noqa: N818 - what it is
    """The file is none that may be read as a transcript, or is not there."""


@frozen
class Look:
    """What one look at a transcript found: the call's place, and the entries it was found among."""

    found: Place | NoTurn
    entries: Sequence[Entry] = ()


@frozen
class Told:
    """The prompt that told an agent: its id, and the tag it carries."""

    prompt_id: str
    tag: StartupTag


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


def told_in(path: str, call: str, startup_delivery_id: str, roots: Sequence[Path]) -> Told | None:
    """Find the prompt with that tag among those that the agent which made `call` had answered (`claude_chain`).

    As much of the transcript's end is read as that takes.  Blocking; raises `RefusedPath`.
    """
    window = WINDOW_BYTES
    with _opened(path, roots) as (descriptor, size):
        while True:
            start = max(0, size - window)
            for prompt in answered_above(_read(descriptor, start, size - start), call, cut=start > 0):
                tag = startup_of(prompt.text or "")
                if tag is not None and tag.startup_delivery_id == startup_delivery_id:
                    return Told(prompt.prompt_id, tag)
            if start == 0 or window >= WINDOW_BYTES_MAX:
                return None
            window = min(window * 8, WINDOW_BYTES_MAX)


def holds(path: str, message_id: str, offset: int, roots: Sequence[Path]) -> bool:
    """Whether that message begins at that byte of the transcript.  Blocking; raises `RefusedPath`."""
    with _opened(path, roots) as (descriptor, _):
        line = b""
        while b"\n" not in line and len(line) < WINDOW_BYTES_MAX:
            part = _read(descriptor, offset + len(line), WINDOW_BYTES)
            if not part:
                break
            line += part
        return any(entry.message_id == message_id for entry in read_entries(line.partition(b"\n")[0] + b"\n"))


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


# -- what was read before ----------------------------------------------------------------------------------------------


@frozen
class _Seen:
    """The window of a file as it was read, up to the end of a line; `mark` is the last that was read of it."""

    device: int
    inode: int
    size: int
    """Of the file at that time.  If it is smaller now, lines are within the window that were before it."""
    end: int
    mark: bytes
    entries: tuple[Entry, ...]


class TranscriptMemory:
    """Looks at transcripts that were looked at before, and reads only what was added to them.

    A look finds exactly what `look_for` finds.  What is remembered is one window a file, of the files looked at last;
    it is forgotten if the file is another one, is shorter, or has other bytes where the reading ended.  Threads may
    share it.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._lock = threading.Lock()

    def look_for(self, path: str, call: str, roots: Sequence[Path], deepest: int = WINDOW_BYTES_MAX) -> Look:
        """See `look_for`."""
        with _opened(path, roots) as (descriptor, size):
            seen = self._brought_up(path, descriptor, size)
        start = max(0, size - WINDOW_BYTES)
        found = place_of(seen.entries, call)
        if start == 0 or (isinstance(found, Place) and begins_here(seen.entries, found)):
            return Look(found, seen.entries)
        if found in {NoTurn.NESTED, NoTurn.AMBIGUOUS}:
            return Look(found, seen.entries)
        return look_for(path, call, roots, deepest)

    def _brought_up(self, path: str, descriptor: int, size: int) -> _Seen:
        """The window of the file's end, read or remembered."""
        status = os.fstat(descriptor)
        start = max(0, size - WINDOW_BYTES)
        with self._lock:
            seen = self._seen.get(path)
        if seen is None or not _continues(seen, descriptor, status, start, size):
            seen = _Seen(status.st_dev, status.st_ino, size, start, b"", ())
            added = _read(descriptor, start, size - start)
            entries = read_entries(added, start)
        else:
            added = _read(descriptor, seen.end, size - seen.end)
            entries = _entries_behind(added, seen.end)
        seen = _grown(seen, added, entries, start, size)
        with self._lock:
            self._seen[path] = seen
            self._seen.move_to_end(path)
            if len(self._seen) > _REMEMBERED_MAX:
                self._seen.popitem(last=False)
        return seen


def _continues(seen: _Seen, descriptor: int, status: os.stat_result, start: int, size: int) -> bool:
    """Whether the file is the one that was read, and what was read of it still reaches to the window."""
    if (status.st_dev, status.st_ino) != (seen.device, seen.inode) or size < seen.size:
        return False
    if not start < seen.end <= size or not seen.mark:
        return False
    return _read(descriptor, seen.end - len(seen.mark), len(seen.mark)) == seen.mark


def _entries_behind(added: bytes, end: int) -> list[Entry]:
    """The entries of what was added behind the end of a line, which is no window that begins within one."""
    return [evolve(entry, offset=entry.offset + end) for entry in read_entries(added)]


def _grown(seen: _Seen, added: bytes, entries: Sequence[Entry], start: int, size: int) -> _Seen:
    """The window with what was added, as far as that has whole lines, and without what has left it."""
    whole = added.rfind(b"\n") + 1
    mark = (seen.mark + added[:whole])[-_MARK_BYTES:]
    kept = [*seen.entries, *entries]
    if start:  # a line that begins exactly where the window does is not known to
        del kept[: bisect_right(kept, start, key=lambda entry: entry.offset)]
    return _Seen(seen.device, seen.inode, size, seen.end + whole, mark, tuple(kept))
