"""Small synced writes, off the event loop: a disk may take long, and every hook of every pane waits for the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple, Unpack

import trio

__all__ = ["durably"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_TURNS: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("_TURNS")


async def durably(write: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
    """Run `write` in a worker thread, to its end, and answer what it does; raises what it raises.

    Writes come one after another, in the order in which they were asked for.  One that was asked for is made, whole,
    also if its caller is cancelled, who learns of that later: as if the loop itself had waited for the disk.  They
    have a thread of their own: work of other kinds, however long, leaves it free.
    """
    with trio.CancelScope(shield=True):
        return await trio.to_thread.run_sync(write, *args, limiter=_turns())
    raise AssertionError("nothing cancels a shielded scope")


def _turns() -> trio.CapacityLimiter:
    try:
        return _TURNS.get()
    except LookupError:
        _TURNS.set(trio.CapacityLimiter(1))
        return _TURNS.get()
