"""Time for tests: trio's clock for the runtime, and a trio run that is driven from outside while time stands still."""

from __future__ import annotations

import threading
from typing import Any

import trio
import trio.testing

__all__ = ["Loop", "TrioClock"]


class TrioClock:
    """A Clock that follows trio's own, so that idleness is measured on the clock that jumps."""

    def now_ns(self) -> int:
        return int(trio.current_time() * 1e9)

    def monotonic(self) -> float:
        return trio.current_time()


class Loop:
    """A trio run in a thread of its own, whose clock stands still."""

    def __init__(self) -> None:
        self.clock = trio.testing.MockClock()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,), kwargs={"clock": self.clock})
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        async with trio.open_nursery() as self.nursery:
            self._ready.set()
            await self._end.wait()
            self.nursery.cancel_scope.cancel()

    def run(self, fn, *args) -> Any:
        """Call `fn` there and answer what it answers."""
        return trio.from_thread.run(fn, *args, trio_token=self._token)

    def run_until_quiet(self, fn, *args) -> Any:
        """Call `fn` there, and return its answer once nothing moves any more."""

        async def quiet() -> Any:
            answer = await fn(*args)
            await trio.testing.wait_all_tasks_blocked()
            return answer

        return self.run(quiet)

    def close(self) -> None:
        """End the run, and whatever still runs in it."""
        trio.from_thread.run_sync(self._end.set, trio_token=self._token)
        self._thread.join()
