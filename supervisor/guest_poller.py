"""Trio's I/O waited for with the loop's own selector, so that a guest run needs no thread.

Between ticks stock guest mode waits for trio's I/O in a worker thread, so that each call costs two thread switches
(measured: 72 µs a call, against 37 µs without the thread).  On Linux, macOS and the BSDs trio waits on one descriptor
(epoll, kqueue) that asyncio can watch like any other: `Poller` hands it to `loop.add_reader`, and the thread is not
needed.  This uses attributes of trio that are private.  All of them are looked up before anything is changed, and if
one is missing, or the loop cannot watch descriptors, the guest run stays in stock guest mode: slower, and with a worker
thread.
"""

# ruff: noqa: SLF001 - trio's, with the precautions told above

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import outcome
import sniffio
import trio

if TYPE_CHECKING:
    from fencepost.supervisor.guest_run import GuestRun

__all__ = ["Poller"]


class Poller:
    """Waits for trio's I/O with the loop's own selector, in place of stock guest mode's worker thread.

    `tick` does what trio's `GuestState.guest_tick` does up to the point where that would start a thread; there it
    parks.  Trio's descriptor becomes readable when trio's I/O is ready and when `force_guest_tick_asap` writes to
    trio's wakeup socket, which covers every way to wake a parked trio but one, the deadline: that is a loop timer.
    """

    def __init__(self, run: GuestRun, state: Any, events_fd: int) -> None:  # noqa: ANN401 - trio's, private
        self.parked = False
        self._run = run
        self._state = state
        self._runner = state.runner
        self._fd = events_fd
        self._timer: asyncio.TimerHandle | None = None
        self._timeout = 0.0

    @classmethod
    def adopt(cls, run: GuestRun, guest_tick: Callable[[], object]) -> Self | None:
        """Take over the guest run whose first tick this is; None, and nothing changed, where that cannot be done."""
        state: Any = getattr(guest_tick, "__self__", None)
        try:
            runner = state.runner
            _ = state.unrolled_run_gen, state.unrolled_run_next_send, runner.main_task_outcome
            _ = runner.guest_tick_scheduled, runner.io_manager.get_events, runner.io_manager.force_wakeup
            events = getattr(runner.io_manager, "_epoll", None) or runner.io_manager._kqueue
            # A duplicate, because trio closes its own before we hear of the end, and a closed descriptor's number may
            # already be somebody else's when the loop is told to forget it.
            fd = os.dup(events.fileno())
        except (AttributeError, OSError):
            return None
        poller = cls(run, state, fd)
        try:
            run.loop.add_reader(fd, poller._wake)
        except (NotImplementedError, OSError):
            os.close(fd)
            return None
        return poller

    def tick(self) -> None:
        """Let trio run what is runnable, then ask for the next tick or park."""
        state, library = self._state, sniffio.thread_local
        previous, library.name = library.name, "trio"
        try:
            self._timeout = state.unrolled_run_next_send.send(state.unrolled_run_gen)
        except StopIteration:
            self._run.finish(self._runner.main_task_outcome)
            return
        except trio.TrioInternalError as error:
            self._run.finish(outcome.Error(error))
            return
        finally:
            library.name = previous
        events = state.unrolled_run_next_send = outcome.capture(self._runner.io_manager.get_events, 0)
        if self._timeout <= 0 or isinstance(events, outcome.Error) or events.value:
            self._runner.guest_tick_scheduled = True
            self._run.soon(self.tick)
        else:
            self._runner.guest_tick_scheduled = False
            self.parked = True
            if not self._run.loop.is_closed():
                self._set_timer()

    def _set_timer(self) -> None:
        """See that a tick comes when the timeout is over.  A timer that is early only costs a tick, so it may stay."""
        loop = self._run.loop
        due = loop.time() + self._timeout
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._deadline)

    def _deadline(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        """Something to look at.  While ticks are under way they look for themselves."""
        if self.parked:
            self.resume(0)

    def leave_park(self) -> None:
        """If parked, run a tick in the loop's next round."""
        if self.parked:
            self.parked = False
            self._runner.guest_tick_scheduled = True
            self._run.soon(self.tick)

    def resume(self, patience: float) -> None:
        """Leave the park: wait for trio's I/O for at most `patience` seconds, then run a tick."""
        self.parked = False
        timeout = min(patience, self._timeout)
        self._state.unrolled_run_next_send = outcome.capture(self._runner.io_manager.get_events, timeout)
        self._runner.guest_tick_scheduled = True
        self.tick()

    def close(self) -> None:
        """Trio is gone; let go of its descriptor."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._run.loop.is_closed():
            self._run.loop.remove_reader(self._fd)
        os.close(self._fd)
