"""The asyncio host: trio as a guest on the host program's own event loop.

**One guest run per loop.**  `AsyncioHost.acquire` joins the trio guest run of the running loop, which the first runtime
there starts and the last `release` ends (`guest_run`).  Nothing of asyncio's is replaced.

**No waiting across threads.**  Host and guest take turns in the loop's thread, so each starts the other's work by a
plain function call and is woken by one (`asyncio_calls`).

**No thread at all, where that is possible.**  Between ticks the loop's selector watches trio's I/O too
(`guest_poller`); where it cannot, a worker thread does, and goes with the guest run (`trio_workers`).

**Leaving.**  A host that is cancelled, `asyncio.run`'s cancel-all included, still leaves its blocks one after another,
and each wait on the way out (`outlast`) survives further cancellations up to a bound; the cancellation is raised
afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Self, TypeVar, TypeVarTuple, Unpack

import trio

from fencepost.mailbox.errors import MailboxClosed
from fencepost.supervisor.asyncio_calls import Call, Callback, outlast
from fencepost.supervisor.guest_run import GuestRun
from fencepost.supervisor.hosts import STOP_MARGIN, ClosableIterator, Service, close_iterator

__all__ = ["AsyncioHost"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CALLBACK_GRACE = 0.5
"""Seconds a cancelled callback of the host may take to end before it is abandoned, unless it is given more."""


class AsyncioHost:
    """One runtime's hold on the guest run of its loop (see `hosts.Host`).

    Every method but `callback`, `to_thread` and `iterate` belongs to the host's tasks on the loop that acquired it.
    """

    direct = False

    def __init__(self, run: GuestRun) -> None:
        """Use `acquire`."""
        self._run = run
        self._released = False
        self._stopping = False
        self._lingering: set[trio.CancelScope] = set()
        """The waits for cancelled callbacks that may take their time."""

    @classmethod
    async def acquire(cls) -> Self:
        """Join the guest run of the running loop, or start it.  Raises `RuntimeError` where that cannot be."""
        return cls(await GuestRun.acquire())

    async def release(self) -> None:
        """Give the guest run back; the last one ends it and waits, in bounded time.  Once."""
        if not self._released:
            self._released = True
            await self._run.release()

    @property
    def closed(self) -> bool:
        """True once nothing more can be called."""
        return self._released or self._run.ending

    # --- host → runtime

    async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """See `Host.call`."""
        call = self.begin(fn, *args)
        try:
            await call.ended
        except asyncio.CancelledError:
            call.scope.cancel()
            raise
        return call.answer()

    def iterate(self, source: AsyncIterator[T]) -> ClosableIterator[T]:
        """See `Host.iterate`.  A cancelled `anext` (a timeout, say) loses nothing: the next one takes its place."""
        return _BridgedIterator(self, source)

    async def start_service(self, run: Callable[[Callable[[T], None]], Awaitable[object]]) -> Service[T]:
        """See `Host.start_service`."""
        service = Service(run, self._run.interrupt)
        call = self.begin(service.start)
        try:
            await asyncio.wait([call.ended])
        except asyncio.CancelledError:
            # It may have started in the very moment the host stopped waiting for it, so cancel both.
            call.scope.cancel()
            if not self.closed:
                await outlast(self.begin(service.abort).ended, STOP_MARGIN * 2)
            raise
        call.answer()
        return service

    async def stop_service(
        self, service: Service[T], close: Callable[[], Awaitable[object]], seconds: float, margin: float = STOP_MARGIN
    ) -> None:
        """See `Host.stop_service`."""
        if service.ended or self._run.over:
            return

        async def hurried() -> None:
            self._hurry()
            await close()

        call = self.begin(service.stop, hurried, seconds, margin)
        # The trio side keeps its bounds by itself; the sum of them is for a trio that has stopped ticking.
        cancellation = await outlast(call.ended, seconds + margin + STOP_MARGIN)
        if cancellation is not None:
            raise cancellation

    def begin(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> Call[T]:
        """Start `fn(*args)` as a trio task in the caller's context variables."""
        run = self._run
        if asyncio.get_running_loop() is not run.loop:
            raise RuntimeError("a runtime belongs to the event loop that opened it")
        if self.closed:
            raise MailboxClosed("the runtime is closed")
        call: Call[T] = Call(run)
        run.nudge()
        trio.lowlevel.spawn_system_task(call.run, fn, args, name=fn, context=contextvars.copy_context())
        return call

    # --- runtime → host

    async def callback(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, grace: float = 0) -> T:
        """See `Host.callback`."""
        if self._run.loop.is_closed():
            raise MailboxClosed("the host's event loop is closed")
        callback = Callback(self._run, fn, args)
        self._run.loop.call_soon(callback.start)
        try:
            await callback.ended.wait()
        except trio.Cancelled:
            callback.cancel()
            await self._linger(callback.ended, grace)
            if not callback.came_to_something:
                raise
        return callback.answer()

    async def _linger(self, ended: trio.Event, grace: float) -> None:
        """Wait for a cancelled callback; a runtime that is stopping has no more than `CALLBACK_GRACE` for it."""
        seconds = CALLBACK_GRACE if self._stopping else max(grace, CALLBACK_GRACE)
        with trio.move_on_after(seconds, shield=True) as scope:
            self._lingering.add(scope)
            try:
                await ended.wait()
            finally:
                self._lingering.discard(scope)

    def _hurry(self) -> None:
        """The runtime is stopping: let nobody linger any longer than that allows."""
        self._stopping = True
        latest = trio.current_time() + CALLBACK_GRACE
        for scope in self._lingering:
            scope.deadline = min(scope.deadline, latest)

    async def to_thread(self, fn: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """See `Host.to_thread`."""

        def work() -> T:
            self._run.workers.add(threading.current_thread())
            return fn(*args)

        return await trio.to_thread.run_sync(work)


class _BridgedIterator(Generic[T]):
    """Steps a trio iterator from the host's tasks.

    A step belongs to the iterator, not to the `anext` that started it: if that one is cancelled, the step goes on and
    the next `anext` gets its item.  So a timeout around `anext` neither loses an item nor ends an async generator.
    """

    def __init__(self, host: AsyncioHost, source: AsyncIterator[T]) -> None:
        self._host = host
        self._source = source
        self._step: Call[T] | None = None
        self._waiting = False
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """The next item.  Raises `RuntimeError` if another task waits for it already."""
        if self._waiting:
            raise RuntimeError("another task waits for this iterator's next item")
        if self._closed:
            raise StopAsyncIteration
        if self._step is None:
            self._step = self._host.begin(self._source.__anext__)
        self._waiting = True
        try:
            await asyncio.wait([self._step.ended])
        finally:
            self._waiting = False
        step, self._step = self._step, None
        if self._closed or step is None:
            raise StopAsyncIteration
        return step.answer()

    async def aclose(self) -> None:
        """Cancel the step under way and close the source; a waiting `anext` ends as at the iterator's end."""
        if self._closed:
            return
        self._closed = True
        if self._step is not None:
            self._step.scope.cancel()
            await asyncio.wait([self._step.ended])
        if not self._host.closed:
            await self._host.call(close_iterator, self._source)

    def __del__(self) -> None:
        """Dropped without `aclose`: do not leave a step waiting for an item that nobody will take."""
        step = self._step
        if step is not None and not step.ended.done():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                step.ended.get_loop().call_soon_threadsafe(step.scope.cancel)
