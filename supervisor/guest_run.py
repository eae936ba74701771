"""Trio as a guest of an asyncio loop: one guest run a loop, however many runtimes are open on it.

`GuestRun.acquire` starts a trio guest run (`trio.lowlevel.start_guest_run`) on the running loop, or joins the one that
an earlier, still open runtime started there; each `release` gives one reference back, and the last one ends the run and
waits for its end.  Trio allows one run a thread, so the current one is kept in a thread-local; several threads with a
loop each do not meet.  Nothing of asyncio's is replaced: no policy, no task factory, no wakeup descriptor, no signal
handler.

A loop that is closed while a runtime is open on it strands the guest run; the thread's next runtime finds it, drives
it to its end without the loop (`GuestRun.reap`), and only then starts its own.

Between its ticks the run waits for trio's I/O in the loop's own selector (`guest_poller`), or in a worker thread where
that cannot be (`trio_workers` sees that the worker goes with the run).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator
from typing import Any, Self, cast

import outcome
import trio

from fencepost.supervisor.asyncio_calls import Call, outlast
from fencepost.supervisor.guest_poller import Poller
from fencepost.supervisor.hosts import holds
from fencepost.supervisor.trio_workers import retire

__all__ = ["GuestRun"]

RELEASE_SECONDS = 5.0
"""Seconds the last `release` waits for the guest run to end.  Services end before; this bound is for stuck calls."""

USE_POLLER = True
"""Tests turn this off to run in stock guest mode."""

_log = logging.getLogger("fencepost.supervisor")
_thread = threading.local()  # .guest: the guest run of this thread


class GuestRun:
    """Trio as a guest of one asyncio loop: its life, its ticks, and how many runtimes use it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start it.  Raises `RuntimeError` if trio already runs in this thread."""
        if trio.lowlevel.in_trio_run():
            raise RuntimeError("another trio run that is not fencepost's already uses this thread")
        self.loop = loop
        self.references = 0
        self.ending = False
        self.over = False
        self.ended: asyncio.Future[None] = loop.create_future()
        self.calls: set[Call[Any]] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.workers: set[threading.Thread] = set()
        self._stop = trio.Event()
        self._poller: Poller | None = None
        # What the loop owes us.  Its own queue is out of reach once it is closed, and `reap` needs them then.
        self._ticks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        with _sigint_left_alone():
            trio.lowlevel.start_guest_run(
                self._stop.wait,
                run_sync_soon_threadsafe=self._tick_from_worker,
                run_sync_soon_not_threadsafe=self._first_tick,
                done_callback=self.finish,
                host_uses_signal_set_wakeup_fd=True,
            )

    # --- who uses it

    @classmethod
    async def acquire(cls) -> Self:
        """Take a reference on the guest run of the running loop, started if need be.

        Raises `RuntimeError` where that cannot be: on another loop of this thread a runtime is still open, or an
        earlier guest run does not end.
        """
        loop = asyncio.get_running_loop()
        while (run := cast("Self | None", getattr(_thread, "guest", None))) is not None:
            if run.loop.is_closed():
                run.reap()
            elif run.loop is not loop:
                raise RuntimeError("a runtime is still open in this thread on another event loop")
            elif not run.ending:
                break
            elif not (await asyncio.wait([run.ended], timeout=RELEASE_SECONDS))[0]:
                raise RuntimeError("an earlier runtime of this event loop does not end")
        else:
            run = _thread.guest = cls(loop)
        run.references += 1
        return run

    async def release(self) -> None:
        """Give one reference back; the last one ends the run and waits, at most `RELEASE_SECONDS`."""
        self.references -= 1
        if self.references or self.over:
            return
        self.stop()
        cancellation = await outlast(self.ended, RELEASE_SECONDS)
        if not self.over:
            _log.error("trio code that ignores cancellation keeps the runtime's guest run alive")
        if cancellation is not None:
            raise cancellation

    # --- ticks

    def soon(self, tick: Callable[[], object]) -> None:
        """Run `tick` in the loop's next round."""
        self._ticks.put(tick)
        if not self.loop.is_closed():
            self.loop.call_soon(self._tick)

    def nudge(self) -> None:
        """The loop is about to make a trio task runnable: spare trio the detour through its wakeup socket."""
        if self._poller is not None:
            self._poller.leave_park()

    def _first_tick(self, tick: Callable[[], object]) -> None:
        """Trio asks for its first tick, or in stock guest mode for any tick it need not wait for."""
        if USE_POLLER and self._poller is None:
            self._poller = Poller.adopt(self, tick)
        self.soon(tick if self._poller is None else self._poller.tick)

    def _tick_from_worker(self, tick: Callable[[], object]) -> None:
        """Stock guest mode: a worker thread is done waiting."""
        self.workers.add(threading.current_thread())
        self._ticks.put(tick)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._tick)

    def _tick(self) -> None:
        with contextlib.suppress(queue.Empty):  # `reap` was here
            self._ticks.get_nowait()()

    # --- its life

    def stop(self) -> None:
        """Let the run end: what is still running in it is cancelled."""
        self.ending = True
        self._stop.set()

    def finish(self, result: outcome.Outcome[None]) -> None:
        """Trio's last word, after which nothing of it runs: wake whoever still waits for something."""
        self.over = self.ending = True
        _thread.guest = None
        error = getattr(result, "error", None)
        if error is not None:
            _log.error("the runtime's trio crashed", exc_info=error)
        if self._poller is not None:
            self._poller.close()
        for call in self.calls:
            call.fail(error)
            call.end()
        if not self.loop.is_closed():
            for task in self.tasks:
                task.cancel()
            self.ended.set_result(None)
            if error is not None and holds(error.__cause__, KeyboardInterrupt):
                self.interrupt()  # Ctrl-C hit trio's own code, which does not survive that; the host must
        retire(self.workers)

    def interrupt(self) -> None:
        """A Ctrl-C hit the runtime: raise it where the loop lets it through, to whoever runs the loop."""
        if not self.loop.is_closed():
            self.loop.call_soon(_interrupt)

    def reap(self) -> None:
        """The loop is closed: run the guest to its end without it, in bounded time.

        Raises `RuntimeError` if the guest does not end.
        """
        warnings.warn("an event loop was closed while a runtime was open on it", ResourceWarning, stacklevel=2)
        hooks = sys.get_asyncgen_hooks()  # trio's end puts back those it found: a closed loop's
        deadline = time.monotonic() + RELEASE_SECONDS
        self.stop()
        try:
            while not self.over and (left := deadline - time.monotonic()) > 0:
                if self._poller is not None and self._poller.parked:
                    self._poller.resume(left)
                else:
                    with contextlib.suppress(queue.Empty):
                        self._ticks.get(timeout=left)()
        finally:
            sys.set_asyncgen_hooks(*hooks)
        if not self.over:
            raise RuntimeError("a runtime of a closed event loop still runs in this thread and does not end")


def _interrupt(*_: object) -> None:
    """As a callback of the loop, and as a signal handler that does what Python's own does."""
    raise KeyboardInterrupt


@contextlib.contextmanager
def _sigint_left_alone() -> Generator[None, None, None]:
    """Keep trio from installing its SIGINT handler in this thread.

    Trio does so where it finds Python's own handler, which is where the loop was not started by `asyncio.run`.  Its
    handler would give every Ctrl-C to the guest's main task, a bare `event.wait`, and the host would never hear of it.
    For the moment of trio's look another function stands there that does the same as Python's own.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
