"""What hooks did while nobody answered them, taken in before anything more is decided.

`hook.py` says how it gets there and why its lock is held over the bridge's decision.  What a line says was written by a
process of the pane and is not trusted: a line that names no process or no event, and one cut off by a crash, says only
that something may have passed.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import frozen

from fencepost.supervisor.bridge.hook import open_spool, spool_of, try_lock

__all__ = ["Spool", "SpoolHeld", "Spooled", "Unseen", "parse_spool"]

SPOOL_BYTES_MAX: Final = 1024 * 1024
PATIENCE_SECONDS: Final = 2.0
"""How long a lock is waited for; a hook holds it for one sync and one query."""
_POLL_SECONDS: Final = 0.002


class SpoolHeld(Exception):  # noqa: N818 - what it is
    """Another process keeps the spool's lock."""


@frozen
class Unseen:
    """One event that a hook handled on its own."""

    incarnation_id: str
    event: Mapping[str, object]


@frozen
class Spooled:
    """A pane's spool, locked: what is in it, and whether something in it cannot be read."""

    descriptor: int
    unseen: tuple[Unseen, ...]
    unclear: bool

    def clear(self) -> None:
        """Forget it; called once what it says is durable elsewhere, and harmless if that is lost."""
        if self.unseen or self.unclear:
            os.ftruncate(self.descriptor, 0)


class Spool:
    """The folder of spools; made when it is first needed, private to this user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turns: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)

    @asynccontextmanager
    async def held(self, pane_id: str) -> AsyncGenerator[Spooled]:
        """Hold the pane's spool.  Raises `SpoolHeld`, and OSError for a folder or file that is not private."""
        async with self._turns[pane_id]:
            descriptor = open_spool(str(self._folder), pane_id)
            try:
                give_up_at = trio.current_time() + PATIENCE_SECONDS
                while not try_lock(descriptor):
                    if trio.current_time() >= give_up_at:
                        raise SpoolHeld(f"the spool of {pane_id!r} is held")
                    await trio.sleep(_POLL_SECONDS)
                yield Spooled(descriptor, *parse_spool(os.pread(descriptor, SPOOL_BYTES_MAX + 1, 0)))
            finally:
                os.close(descriptor)

    async def forget(self, pane_id: str) -> None:
        """Remove the pane's spool, in which no process of the pane writes any more.  Raises OSError."""
        async with self._turns[pane_id]:
            path = Path(spool_of(str(self._folder), pane_id))
            await trio.to_thread.run_sync(partial(path.unlink, missing_ok=True))
        self._turns.pop(pane_id, None)


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
        case {"version": 1, "incarnation_id": str(incarnation_id), "event": dict(event)}:
            return Unseen(incarnation_id, event)
        case _:
            return None
