"""The asyncio host: trio as a guest on the host program's own event loop.

**One guest run per loop.**  `AsyncioHost.acquire` starts a trio guest run (`trio.lowlevel.start_guest_run`) on the
running loop, or joins the one that an earlier, still open runtime started there; each `release` gives one reference
back, and the last one ends the run and waits for its end.  Trio allows one run a thread, so the current one is kept in
a thread-local; several threads with a loop each do not meet.  Nothing of asyncio's is replaced: no policy, no task
factory, no wakeup descriptor, no signal handler.

**No waiting across threads.**  Guest mode runs trio's ticks as callbacks of the loop, in the loop's thread.  Between
two ticks the host's code may call trio's synchronous functions directly, and that is the bridge:

    host task   call        spawn_system_task(…)  ──►  tick: the trio task runs  ──►  future.set_result: host wakes up
    trio task   callback    loop.call_soon(create_task)  ──►  the asyncio task  ──►  event.set: trio task wakes up

**No thread at all, where that is possible.**  Between ticks stock guest mode waits for trio's I/O in a worker thread,
so that each call costs two thread switches (measured: 72 µs a call, against 37 µs without the thread).  On Linux, macOS
and the BSDs trio waits on one descriptor (epoll, kqueue) that asyncio can watch like any other: `_Poller` hands it to
`loop.add_reader`, and the thread is not needed.  This uses attributes of trio that are private.  All of them are looked
up before anything is changed, and if one is missing, or the loop cannot watch descriptors, the guest run stays in stock
guest mode: slower, and with a worker thread.

**No thread left behind.**  A worker of trio's thread cache stays idle for ten seconds before it exits.  Whoever opened
and closed a runtime should find the threads he had before, so when a guest run has ended, the workers it used and that
are idle now are told to exit (`_retire`); workers that other trio runs use, or used and we did not, are not touched.

**Leaving.**  A host that is cancelled, `asyncio.run`'s cancel-all included, still leaves its blocks one after another,
and each wait on the way out (`_outlast`) survives further cancellations up to a bound; the cancellation is raised
afterwards.  A loop that is closed while a runtime is open on it strands the guest run; the thread's next runtime finds
it, drives it to its end without the loop (`_GuestRun.reap`), and only then starts its own.
"""

# ruff: noqa: SLF001 - trio's, in `_Poller` and `_retire`, with the precautions told above

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Generic, Self, TypeVar, TypeVarTuple, Unpack, cast

import outcome
import sniffio
import trio

from fencepost.mailbox.errors import MailboxClosed
from fencepost.supervisor.hosts import (
    STOP_MARGIN,
    CallbackStopped,
    ClosableIterator,
    Service,
    answer_of,
    close_iterator,
    holds,
)

__all__ = ["AsyncioHost"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CALLBACK_GRACE = 0.5
"""Seconds a cancelled callback of the host may take to end before it is abandoned, unless it is given more."""

RELEASE_SECONDS = 5.0
"""Seconds the last `release` waits for the guest run to end.  Services end before; this bound is for stuck calls."""

USE_POLLER = True
"""Tests turn this off to run in stock guest mode."""

_log = logging.getLogger("fencepost.supervisor")
_thread = threading.local()  # .guest: the guest run of this thread


class _Call(Generic[T]):
    """One run of a trio coroutine function for the host.

    The future only says "ended": the outcome is kept beside it, because a future that holds an exception nobody came
    for complains when it is collected, and nobody comes after a cancelled wait.
    """

    __slots__ = ("_error", "_run", "_value", "ended", "scope")

    def __init__(self, run: _GuestRun) -> None:
        self.ended: asyncio.Future[None] = run.loop.create_future()
        self.scope = trio.CancelScope()
        self._run = run
        self._error: BaseException | None = None
        self._value: T | None = None
        run.calls.add(self)

    async def run(self, fn: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> None:
        """The trio side, as a system task: never raises."""
        try:
            with self.scope:
                self._value = await fn(*args)
            if self.scope.cancelled_caught:
                self._error = MailboxClosed("the call was cancelled")
        except trio.Cancelled as error:
            # Not our scope's, so the guest run is ending; trio's own exception means nothing to the host.
            self.fail(error)
        except BaseException as error:  # noqa: BLE001 - the host's to see; a system task must not raise
            self._error = error
        self._run.calls.discard(self)
        self.end()

    def fail(self, cause: BaseException | None) -> None:
        """The guest run ended first."""
        self._error = MailboxClosed("the runtime's event loop ended before the call did")
        self._error.__cause__ = cause

    def end(self) -> None:
        """Wake the host, if it still waits and still has a loop to be woken by."""
        if not self.ended.done() and not self._run.loop.is_closed():
            self.ended.set_result(None)

    def answer(self) -> T:
        """The outcome, once."""
        error, self._error = self._error, None
        if error is None:
            return cast("T", self._value)
        try:
            raise error
        finally:
            del error  # the traceback holds this frame; do not let the frame hold the error


class _GuestRun:
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
        self.calls: set[_Call[Any]] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.workers: set[threading.Thread] = set()
        self._stop = trio.Event()
        self._poller: _Poller | None = None
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
            self._poller = _Poller.adopt(self, tick)
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
        _retire(self.workers)

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


class _Poller:
    """Waits for trio's I/O with the loop's own selector, in place of stock guest mode's worker thread.

    `tick` does what trio's `GuestState.guest_tick` does up to the point where that would start a thread; there it
    parks.  Trio's descriptor becomes readable when trio's I/O is ready and when `force_guest_tick_asap` writes to
    trio's wakeup socket, which covers every way to wake a parked trio but one, the deadline: that is a loop timer.
    """

    def __init__(self, run: _GuestRun, state: Any, events_fd: int) -> None:  # noqa: ANN401 - trio's, private
        self.parked = False
        self._run = run
        self._state = state
        self._runner = state.runner
        self._fd = events_fd
        self._timer: asyncio.TimerHandle | None = None
        self._timeout = 0.0

    @classmethod
    def adopt(cls, run: _GuestRun, guest_tick: Callable[[], object]) -> Self | None:
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


class _Callback(Generic[T]):
    """One run of a function of the host's on its loop, for a trio task that waits for it."""

    __slots__ = ("_args", "_cancelled", "_fn", "_run", "_task", "ended")

    def __init__(self, run: _GuestRun, fn: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> None:
        self.ended = trio.Event()
        self._run = run
        self._fn = fn
        self._args = args
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False

    def start(self) -> None:
        """Make the task.

        Called by the loop and not by trio's tick: a loop with an eager task factory runs the first step right here,
        and the host's code must find itself in asyncio.
        """
        if self._cancelled:
            self._run.nudge()
            self.ended.set()
            return
        self._task = self._run.loop.create_task(answer_of(self._fn, *self._args))
        self._run.tasks.add(self._task)
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[T]) -> None:
        self._run.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # somebody asked: an abandoned callback's failure is nobody's news
        if not self._run.over:
            self._run.nudge()
            self.ended.set()

    def cancel(self) -> None:
        """Ask it to end."""
        self._cancelled = True
        if self._task is not None and not self._run.loop.is_closed():
            self._task.cancel()

    @property
    def came_to_something(self) -> bool:
        """Whether it has ended, and by a result or an error of its own instead of its cancellation."""
        return self._task is not None and self._task.done() and not self._task.cancelled()

    def answer(self) -> T:
        """The outcome.  Raises what the function raised, or `CallbackStopped`."""
        task = self._task
        if task is None or task.cancelled():
            raise CallbackStopped("the callback was cancelled on the host's side")
        error = task.exception()
        if error is None or isinstance(error, Exception):
            return task.result()
        raise CallbackStopped(f"the callback ended by {type(error).__name__}") from error


class AsyncioHost:
    """One runtime's hold on the guest run of its loop (see `hosts.Host`).

    Every method but `callback`, `to_thread` and `iterate` belongs to the host's tasks on the loop that acquired it.
    """

    direct = False

    def __init__(self, run: _GuestRun) -> None:
        """Use `acquire`."""
        self._run = run
        self._released = False
        self._stopping = False
        self._lingering: set[trio.CancelScope] = set()
        """The waits for cancelled callbacks that may take their time."""

    @classmethod
    async def acquire(cls) -> Self:
        """Join the guest run of the running loop, or start it.  Raises `RuntimeError` where that cannot be."""
        loop = asyncio.get_running_loop()
        while (run := cast("_GuestRun | None", getattr(_thread, "guest", None))) is not None:
            if run.loop.is_closed():
                run.reap()
            elif run.loop is not loop:
                raise RuntimeError("a runtime is still open in this thread on another event loop")
            elif not run.ending:
                break
            elif not (await asyncio.wait([run.ended], timeout=RELEASE_SECONDS))[0]:
                raise RuntimeError("an earlier runtime of this event loop does not end")
        else:
            run = _thread.guest = _GuestRun(loop)
        run.references += 1
        return cls(run)

    async def release(self) -> None:
        """Give the guest run back; the last one ends it and waits, at most `RELEASE_SECONDS`."""
        if self._released:
            return
        self._released = True
        run = self._run
        run.references -= 1
        if run.references or run.over:
            return
        run.stop()
        cancellation = await _outlast(run.ended, RELEASE_SECONDS)
        if not run.over:
            _log.error("trio code that ignores cancellation keeps the runtime's guest run alive")
        if cancellation is not None:
            raise cancellation

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
                await _outlast(self.begin(service.abort).ended, STOP_MARGIN * 2)
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
        cancellation = await _outlast(call.ended, seconds + margin + STOP_MARGIN)
        if cancellation is not None:
            raise cancellation

    def begin(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> _Call[T]:
        """Start `fn(*args)` as a trio task in the caller's context variables."""
        run = self._run
        if asyncio.get_running_loop() is not run.loop:
            raise RuntimeError("a runtime belongs to the event loop that opened it")
        if self.closed:
            raise MailboxClosed("the runtime is closed")
        call: _Call[T] = _Call(run)
        run.nudge()
        trio.lowlevel.spawn_system_task(call.run, fn, args, name=fn, context=contextvars.copy_context())
        return call

    # --- runtime → host

    async def callback(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, grace: float = 0) -> T:
        """See `Host.callback`."""
        if self._run.loop.is_closed():
            raise MailboxClosed("the host's event loop is closed")
        callback = _Callback(self._run, fn, args)
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
        self._step: _Call[T] | None = None
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


async def _outlast(waiter: asyncio.Future[None], seconds: float) -> asyncio.CancelledError | None:
    """Wait for `waiter`, at most `seconds`, through every cancellation; answer the last one for the caller to raise."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    cancellation = None
    while not waiter.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait([waiter], timeout=left)
        except asyncio.CancelledError as error:
            cancellation = error
    return cancellation


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


class _LastCall:
    """What a retired worker of trio's thread cache finds in place of its cache and of its lock: no more jobs."""

    def __init__(self, worker: object) -> None:
        self._idle_workers = {worker: None}

    def acquire(self, timeout: float) -> bool:  # noqa: ARG002 - a lock's signature
        return False


def _retire(threads: set[threading.Thread]) -> None:
    """Make the idle ones of these workers of trio's thread cache exit now, and wait for that.

    Private attributes of trio: a worker waits on `_worker_lock` for a `_job`, and exits when that wait times out and it
    finds itself among the `_idle_workers` of its `_thread_cache`.  A worker we take out of the real cache is ours
    alone (taking out is how the cache itself hands out jobs), so giving it a cache of its own, and a lock that has
    always timed out, lets it leave by its own door.  One last empty job wakes it from the wait it is in.  If trio looks
    different, nothing is done and the worker exits after trio's ten seconds.
    """
    try:
        from trio._core._thread_cache import THREAD_CACHE  # private: may be gone

        idle: dict[Any, None] = THREAD_CACHE._idle_workers  # pyright: ignore[reportPrivateUsage]
        mine = [worker for worker in list(idle) if worker._thread in threads]
        for worker in mine:
            lock, _ = worker._worker_lock, (worker._thread_cache, worker._job)
            if idle.pop(worker, threads) is threads:
                continue  # another trio run was faster
            last_call = _LastCall(worker)
            worker._job = (lambda: None, lambda _: None, None)
            worker._thread_cache = last_call
            worker._worker_lock = last_call
            lock.release()
            worker._thread.join(timeout=1.0)
    except (ImportError, AttributeError, TypeError) as error:
        _log.debug("trio's thread cache is not what it was: %r", error)
