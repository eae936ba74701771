"""What hooks did while nobody answered them, taken in before anything more is decided.

`hook.py` says how it gets there and why its lock is held over the bridge's decision.  What a line says was written by a
process of the pane and is not trusted: a line that names no process or no event, and one cut off by a crash, says only
that something may have passed.
"""

from __future__ import annotations

import json
import os
import weakref
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import field, frozen

from fencepost.supervisor.bridge.hook import MOVED_WHEN_BOUND, open_spool, spool_of, try_lock
from fencepost.supervisor.bridge.private_files import private_folder, sync_folder

__all__ = ["Spool", "SpoolHeld", "Spooled", "Unseen", "parse_spool", "tell_hooks"]

SPOOL_BYTES_MAX: Final = 1024 * 1024
PATIENCE_SECONDS: Final = 2.0
"""How long a lock is waited for; a hook holds it for one sync and one query."""
_POLL_SECONDS: Final = 0.002


class SpoolHeld(Exception):  # noqa: N818 - what it is
    """Another process keeps the spool's lock."""


@frozen
class Unseen:
    """One event that a hook handled on its own; `harness` is whose words it is in."""

    incarnation_id: str
    harness: str
    event: Mapping[str, object]


@frozen
class Spooled:
    """A pane's spool, locked until `release`: what is in it, and whether something in it cannot be read."""

    descriptor: int
    unseen: tuple[Unseen, ...]
    unclear: bool
    _spool: Spool = field(repr=False)
    _turn: trio.Semaphore = field(repr=False)

    def clear(self) -> None:
        """Forget it; called once what it says is durable elsewhere, and harmless if that is lost."""
        if self.unseen or self.unclear:
            os.ftruncate(self.descriptor, 0)

    def release(self, *, unlock: bool = True) -> None:
        """Let go of it, from any task, once.  Without `unlock` the lock stays for as long as the `Spool` is there."""
        if unlock:
            os.close(self.descriptor)
        else:
            weakref.finalize(self._spool, os.close, self.descriptor)
        self._turn.release()


class Spool:
    """The folder of spools; made when it is first needed, private to this user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turns: defaultdict[str, trio.Semaphore] = defaultdict(lambda: trio.Semaphore(1))

    async def take(self, pane_id: str) -> Spooled:
        """Lock the pane's spool, in the order of the calls.

        Raises `SpoolHeld`, and OSError for a folder or file that is not private.
        """
        turn = self._turns[pane_id]
        await turn.acquire()
        try:
            descriptor = open_spool(str(self._folder), pane_id)
            try:
                await self._lock(pane_id, descriptor)
                parsed = parse_spool(os.pread(descriptor, SPOOL_BYTES_MAX + 1, 0))
            except BaseException:
                os.close(descriptor)
                raise
        except BaseException:
            turn.release()
            raise
        return Spooled(descriptor, *parsed, self, turn)

    async def forget(self, pane_id: str) -> None:
        """Remove the pane's spool, in which no process of the pane writes any more.  Raises OSError."""
        async with self._turns[pane_id]:
            path = Path(spool_of(str(self._folder), pane_id))
            await trio.to_thread.run_sync(partial(path.unlink, missing_ok=True))
        self._turns.pop(pane_id, None)

    async def _lock(self, pane_id: str, descriptor: int) -> None:
        give_up_at = trio.current_time() + PATIENCE_SECONDS
        while not try_lock(descriptor):
            if trio.current_time() >= give_up_at:
                raise SpoolHeld(f"the spool of {pane_id!r} is held")
            await trio.sleep(_POLL_SECONDS)


def tell_hooks(folder: Path, *, moved_when_bound: bool, is_clear: bool) -> None:
    """Tell hooks whether files move only for a bound intent; durable on return, until another life says otherwise.

    `is_clear`: no intent of the store is unresolved.  One that was detected under a bridge that said nothing may have
    moved its files already, so that they move when bound is said anew only without one.

    Raises OSError for a folder that is not private.
    """
    mark = folder / MOVED_WHEN_BOUND
    if not moved_when_bound:
        if not mark.exists():
            return
        mark.unlink()
    elif mark.exists() or not is_clear:
        return
    else:
        private_folder(folder)
        mark.touch(mode=0o600)
    sync_folder(folder)


def parse_spool(content: bytes) -> tuple[tuple[Unseen, ...], bool]:
    """Return the events in `content`, oldest first, and whether anything of it cannot be read.  Total."""
    if len(content) > SPOOL_BYTES_MAX:
        return (), True
    lines = content.split(b"\n")
    unclear = lines.pop() != b""
    unseen = []
    for line in filter(None, lines):
        event = _unseen(line)
        if event is None:
            unclear = True
        else:
            unseen.append(event)
    return tuple(unseen), unclear


def _unseen(line: bytes) -> Unseen | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match said:
        case {"version": 1, "incarnation_id": str(incarnation_id), "harness": str(harness), "event": dict(event)}:
            return Unseen(incarnation_id, harness, event)
        case _:
            return None
