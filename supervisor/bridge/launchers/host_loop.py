"""Blocking work under whichever loop the host runs: callbacks are called on the host's own (contract G-2)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

import trio
from sniffio import current_async_library

__all__ = ["to_its_end", "until_called_off", "until_readable"]

T = TypeVar("T")


async def to_its_end(work: Callable[[], T]) -> T:
    """Run `work` in a thread and wait for its end, also when cancelled: what it has begun must not outlive its call."""
    if current_async_library() == "trio":
        return await trio.to_thread.run_sync(work)
    future = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        future.exception()  # nobody else will ask for it
        raise


async def until_called_off(work: Callable[[threading.Event], T]) -> T:
    """Run `work` in a thread; when cancelled, set the event it was handed, by which it soon ends, and leave."""
    called_off = threading.Event()
    try:
        if current_async_library() == "trio":
            return await trio.to_thread.run_sync(work, called_off, abandon_on_cancel=True)
        return await asyncio.to_thread(work, called_off)
    finally:
        called_off.set()


async def until_readable(descriptor: int) -> None:
    """Wait until there is something to read."""
    if current_async_library() == "trio":
        await trio.lowlevel.wait_readable(descriptor)
        return
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
