"""One call across the border between an asyncio host and its trio guest, in either direction; no thread, no queue.

Guest mode runs trio's ticks as callbacks of the loop, in the loop's thread.  Between two ticks the host's code may
call trio's synchronous functions directly, and that is the bridge:

    host task   `Call`      spawn_system_task(…)  ──►  tick: the trio task runs  ──►  future.set_result: host wakes up
    trio task   `Callback`  loop.call_soon(create_task)  ──►  the asyncio task  ──►  event.set: trio task wakes up
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import trio

from fencepost.mailbox.errors import MailboxClosed
from fencepost.supervisor.hosts import CallbackStopped, answer_of

if TYPE_CHECKING:
    from fencepost.supervisor.guest_run import GuestRun

__all__ = ["Call", "Callback", "outlast"]

T = TypeVar("T")


class Call(Generic[T]):
    """One run of a trio coroutine function for the host.

    The future only says "ended": the outcome is kept beside it, because a future that holds an exception nobody came
    for complains when it is collected, and nobody comes after a cancelled wait.
    """

    __slots__ = ("_error", "_run", "_value", "ended", "scope")

    def __init__(self, run: GuestRun) -> None:
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


class Callback(Generic[T]):
    """One run of a function of the host's on its loop, for a trio task that waits for it."""

    __slots__ = ("_args", "_cancelled", "_fn", "_run", "_task", "ended")

    def __init__(self, run: GuestRun, fn: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> None:
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


async def outlast(waiter: asyncio.Future[None], seconds: float) -> asyncio.CancelledError | None:
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
