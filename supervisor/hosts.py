"""Where the runtime meets the program that opened it: the `Host` port, the trio host, and background services.

The runtime's own code is trio code.  The program around it, the host, may run trio or asyncio, and two kinds of calls
cross the border between them:

* `call`: the host's task wants something from the runtime;
* `callback`: the runtime wants something from the host (a reconciler, a tool, a launcher).

On trio both are plain awaits in the caller's own task; `Host.direct` says so, and a caller that counts microseconds
tests it and awaits the function itself.  On asyncio `asyncio_host` carries them across a trio guest run that lives on
the host's own event loop.  `acquire_host` finds out which it is; `release` gives it back; `open_host` is the pair.

What outlives single calls is a **service**: one trio coroutine function that opens the nursery of the actors, says
`started(value)`, and runs until it is asked to close.  It is a trio *system task*, which is what makes the three
promises of this module possible:

* The host's block is never cancelled by the runtime.  A system task has no nursery of the host's above it, so there
  is no path from a failed actor to the host's cancel scopes.  A failure is kept in `Service.failure` for whoever asks.
* A failure never becomes trio's own (`TrioInternalError`): everything the service raises stops at its outermost frame.
  Ctrl-C is the exception that is not the service's to keep: if it happens to hit while an actor runs, it is handed
  back to the host's main task.
* Closing is bounded.  `stop_service` asks politely, then cancels, then walks away.  What it waits for are events and
  never the closing code itself, so that code which shields itself from cancellation cannot stretch the bound; the
  host's own cancellation cannot cut it short either.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar, TypeVarTuple, Unpack

import sniffio
import trio

__all__ = [
    "CallbackStopped",
    "ClosableIterator",
    "Host",
    "Service",
    "TrioHost",
    "acquire_host",
    "open_host",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")

# How long a cancelled service may still clean up before it is abandoned.  Longer than a callback's grace
# (`asyncio_host.CALLBACK_GRACE`), so that one stubborn callback does not make its whole service a stubborn one.
STOP_MARGIN = 1.0


class CallbackStopped(RuntimeError):  # noqa: N818 - it says what happened, as the errors of the mailbox do
    """A callback ended by something that is no `Exception`: asyncio's cancellation, the interpreter's exit, its own.

    Those mean something else to the runtime, or would end it; `__cause__` is what was raised.
    """


class ClosableIterator(Protocol[T_co]):
    """An async iterator that can be closed before its end; closing twice does nothing."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def __anext__(self) -> Awaitable[T_co]: ...

    async def aclose(self) -> None:
        """End the iteration and let go of what it holds."""
        ...


class Host(Protocol):
    """The program around the runtime, seen from the runtime.

    Once `release` was called, `call` and the other methods raise `MailboxClosed` on an asyncio host.  On a trio host
    they are plain awaits and keep working; the runtime behind them answers for itself.
    """

    @property
    def direct(self) -> bool:
        """True if host and runtime share trio: `await fn(*args)` is then the same as `await host.call(fn, *args)`."""
        ...

    async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Host task → runtime: run the trio coroutine function and answer its value or raise its exception.

        Cancelling the waiting task cancels `fn`.  On asyncio the waiting ends at once and `fn` may finish behind it.

        Raises: what `fn` raises; `MailboxClosed` if the runtime's trio ended before `fn` did.
        """
        ...

    async def callback(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, grace: float = 0) -> T:
        """Runtime → host: run the host's own function on the host's loop and answer its value or raise its exception.

        A function that returns something other than an awaitable is tolerated: that is the answer.  Cancelling the
        waiting trio task cancels the callback; what it still returns or raises is its answer.  On asyncio a callback
        that has not ended `grace` seconds later, or the host's own shorter bound where that is more or the runtime is
        stopping, is abandoned; whatever it does later is ignored.

        Raises: what `fn` raises; `CallbackStopped` if it ended by something that is not an `Exception`.
        """
        ...

    async def to_thread(self, fn: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Runtime: run a blocking function in a worker thread, as `trio.to_thread.run_sync` does.

        On an asyncio host the worker does not outlive the last runtime; trio alone would keep it idle for 10 seconds.
        """
        ...

    def iterate(self, source: AsyncIterator[T]) -> ClosableIterator[T]:
        """Make a trio async iterator usable by the host's tasks, one at a time.

        Several trio tasks step through `source` in turn, so it must not yield from within a nursery or a cancel scope.
        """
        ...

    async def start_service(self, run: Callable[[Callable[[T], None]], Awaitable[object]]) -> Service[T]:
        """Start `run(started)` in the background and wait until it calls `started(value)`.

        If the waiting is cancelled, the service is cancelled and its end awaited (bounded) before this raises.

        Raises: what `run` raises before it started; `RuntimeError` if it returns without having started.
        """
        ...

    async def stop_service(
        self, service: Service[T], close: Callable[[], Awaitable[object]], seconds: float, margin: float = STOP_MARGIN
    ) -> None:
        """Ask a service to end with the trio coroutine function `close`, and wait a bounded time.

        At most `seconds` for both to end; then both are cancelled and may take `margin` more; then they are abandoned
        (`service.ended` stays false).  A service that ended before is not asked: `close` is not called.

        Raises nothing of the service (see `Service.failure`).  The host's cancellation waits until this is done.
        """
        ...

    async def release(self) -> None:
        """Give the host back; bounded, shielded from the host's cancellation, and harmless the second time."""
        ...


class Service(Generic[T]):
    """One trio coroutine function in the background.  Its methods are trio code; hosts wrap them.

    Attributes: `ended` (bool); `failure` (what it, or closing it, raised, else None; read it once `ended`);
    `value` (what `started` was called with; `AttributeError` before).
    """

    value: T

    def __init__(
        self, run: Callable[[Callable[[T], None]], Awaitable[object]], interrupted: Callable[[], None]
    ) -> None:
        """`interrupted()` is called when a Ctrl-C that was meant for the host ended up in the service."""
        self.failure: BaseException | None = None
        self._run = run
        self._interrupted = interrupted
        self._scope = trio.CancelScope()
        self._has_started = False
        self._settled = trio.Event()  # started, or ended without
        self._end = trio.Event()

    @property
    def ended(self) -> bool:
        """True once nothing of the service runs any more."""
        return self._end.is_set()

    async def start(self) -> None:
        """Start the service and wait for its word; see `Host.start_service`."""
        _spawn(self._live)
        try:
            await self._settled.wait()
        except BaseException:
            await self.abort()
            raise
        if not self._has_started:
            if self.failure is not None:
                raise self.failure
            raise RuntimeError("the service returned before it had started")

    async def stop(self, close: Callable[[], Awaitable[object]], seconds: float, margin: float = STOP_MARGIN) -> None:
        """See `Host.stop_service`."""
        with trio.CancelScope(shield=True):
            if not self.ended:
                # In a task of its own: this one must be able to walk away from a `close` stuck behind a shield.
                closing, closed = trio.CancelScope(), trio.Event()
                _spawn(self._close, close, closing, closed)
                with trio.move_on_after(seconds):
                    await self._end.wait()
                    await closed.wait()
                closing.cancel()
            await self.abort(margin)

    async def abort(self, margin: float = STOP_MARGIN) -> None:
        """Cancel the service and wait for its end, at most `margin` seconds, whatever is cancelled meanwhile."""
        self._scope.cancel()
        with trio.move_on_after(margin, shield=True):
            await self._end.wait()

    def _started(self, value: T) -> None:
        if self._has_started:
            raise RuntimeError("a service starts once")
        self.value = value
        self._has_started = True
        self._settled.set()

    async def _live(self) -> None:
        try:
            with self._scope:
                await self._run(self._started)
        except BaseException as error:  # noqa: BLE001 - the outermost frame: past it is trio's own crash
            self._keep(error)
        finally:
            self._end.set()
            self._settled.set()

    async def _close(self, close: Callable[[], Awaitable[object]], scope: trio.CancelScope, closed: trio.Event) -> None:
        try:
            with scope:
                await close()
        except BaseException as error:  # noqa: BLE001 - as above
            self._keep(error)
            self._scope.cancel()
        finally:
            closed.set()

    def _keep(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        if holds(error, KeyboardInterrupt):
            self._interrupted()


class TrioHost:
    """The host of a program that runs trio: everything is a plain await in the caller's own task."""

    direct = True

    async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Await `fn(*args)`."""
        return await fn(*args)

    async def callback(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, grace: float = 0) -> T:  # noqa: ARG002 - nothing is abandoned here
        """Await `fn(*args)`, or answer its value if there is nothing to await.

        Whatever a callback raises ends its own work and not the runtime, Ctrl-C excepted; see `_own_end`.
        """
        try:
            return await answer_of(fn, *args)
        except (Exception, trio.Cancelled, KeyboardInterrupt):
            raise
        except BaseException as error:
            own = _own_end(error)
            if own is error:
                raise
            raise own from error

    async def to_thread(self, fn: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run `fn(*args)` in one of trio's worker threads, which are the host's own and follow its rules."""
        return await trio.to_thread.run_sync(fn, *args)

    def iterate(self, source: AsyncIterator[T]) -> ClosableIterator[T]:
        """Answer `source` with an `aclose` if it has none."""
        return _DirectIterator(source)

    async def start_service(self, run: Callable[[Callable[[T], None]], Awaitable[object]]) -> Service[T]:
        """See `Host.start_service`."""
        service = Service(run, _interrupt_main_task)
        await service.start()
        return service

    async def stop_service(
        self, service: Service[T], close: Callable[[], Awaitable[object]], seconds: float, margin: float = STOP_MARGIN
    ) -> None:
        """See `Host.stop_service`.  A service that was abandoned still keeps `trio.run` from returning."""
        await service.stop(close, seconds, margin)

    async def release(self) -> None:
        """Do nothing: nothing was acquired."""


class _DirectIterator(Generic[T]):
    """`source` itself, and an `aclose` that also works where it has none."""

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source

    def __aiter__(self) -> _DirectIterator[T]:
        return self

    def __anext__(self) -> Awaitable[T]:
        return self._source.__anext__()

    async def aclose(self) -> None:
        """Close `source` if it can be closed."""
        await close_iterator(self._source)


async def acquire_host() -> Host:
    """Answer the host of the calling task; whoever acquires must `release`.

    Raises `RuntimeError` where neither trio nor asyncio runs the caller, and where this thread already runs another
    trio that the asyncio loop could not share.
    """
    library = sniffio.current_async_library()
    if library == "trio":
        return TrioHost()
    if library == "asyncio":
        from fencepost.supervisor.asyncio_host import AsyncioHost  # a program on trio may never load asyncio

        return await AsyncioHost.acquire()
    raise RuntimeError(f"fencepost runs under trio and asyncio, not under {library}")


@asynccontextmanager
async def open_host() -> AsyncGenerator[Host, None]:
    """`acquire_host` and `release` as a block."""
    host = await acquire_host()
    try:
        yield host
    finally:
        await host.release()


async def answer_of(fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
    """Call a host's function and await what it returns, if that is something to await."""
    answer: object = fn(*args)
    if inspect.isawaitable(answer):
        answer = await answer
    return answer  # type: ignore[return-value]  # what a host returned against its own annotation is its business


def _own_end(error: BaseException) -> BaseException:
    """What a callback's end by something that is no `Exception` means to whoever waits for it.

    Several tasks of a cancelled callback end by several things at once.  What it raised beside its cancellation is its
    answer then, as it is for a callback of one task, whose own error takes the place of the cancellation.
    """
    own = error.split(trio.Cancelled)[1] if isinstance(error, BaseExceptionGroup) else error
    if own is None or holds(own, KeyboardInterrupt):
        return error
    return own if isinstance(own, Exception) else CallbackStopped(f"the callback ended by {type(own).__name__}")


async def close_iterator(source: AsyncIterator[object]) -> None:
    """Call the iterator's `aclose` if it has one."""
    aclose = getattr(source, "aclose", None)
    if aclose is not None:
        await aclose()


def _spawn(fn: Callable[[Unpack[Ts]], Awaitable[object]], *args: *Ts) -> None:
    """Start a system task that sees the caller's context variables; trio would show it those of the run's start."""
    trio.lowlevel.spawn_system_task(fn, *args, context=contextvars.copy_context())


def holds(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether `error` is of that kind or is a group with one of that kind in it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kind) is not None
    return isinstance(error, kind)


def _interrupt_main_task() -> None:
    """Repeat a Ctrl-C that hit an actor.

    System tasks are protected from it, so trio's handler, reached from here, gives it to the host's main task; a
    handler of the host's own simply sees it again.
    """
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
