"""Who goes on next, when one owner asks much at once: one of his requests is at work at a time, the others queue.

The bridge has one interpreter, and trio runs every task that can go on before it looks again.  So what one pane's
requests cost another's is how many of them can go on: with turns it is one, and not all that the pane may have open.

A request whose turn has lasted `turn_seconds` is taken to wait rather than to work: a poll for its event, a hook for
its files, a body for its slow sender.  It goes on, and the next one begins beside it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
from attrs import define, field

__all__ = ["Turns"]


@define(eq=False)
class _Turn:
    """One request's turn: over at a time, or when the request has ended."""

    over_at: float
    ended: trio.Event = field(factory=trio.Event)

    @property
    def is_over(self) -> bool:
        return self.ended.is_set() or trio.current_time() >= self.over_at


@define(eq=False)
class _Queue:
    """One owner's requests."""

    newest: _Turn = field(factory=lambda: _Turn(-math.inf))
    requests: int = 0
    first: trio.Lock = field(factory=trio.Lock)
    """Held by whoever is next; those behind wait for it, in the order of their coming."""

    async def wait(self) -> None:
        if self.newest.is_over and not self.first.locked():
            return
        async with self.first:
            with trio.move_on_at(self.newest.over_at):
                await self.newest.ended.wait()


class Turns:
    """The turns of all owners, each of which lasts `turn_seconds` at most."""

    def __init__(self, turn_seconds: float) -> None:
        self._turn_seconds = turn_seconds
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def take(self, owner: str) -> AsyncGenerator[None]:
        """Wait for the owner's next turn, and have it to the end of the block or of its time."""
        queue = self._queues.setdefault(owner, _Queue())
        queue.requests += 1
        try:
            await queue.wait()
            queue.newest = turn = _Turn(trio.current_time() + self._turn_seconds)
            try:
                yield
            finally:
                turn.ended.set()
        finally:
            queue.requests -= 1
            if not queue.requests:
                del self._queues[owner]
