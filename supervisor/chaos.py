"""Chaos: named points around every commit, and what dies at them.

Given to `open_supervisor`, a `Chaos` records every point the runtime passes (`kind.transition/boundary`) and kills an
actor, or the whole runtime, at the ones that were armed.  Not given, no point is passed at all.

    received   the actor took the message              written    its statements ran, the transaction is open
    decided    the pure decision was made              committed  durable; nobody knows it yet
    enqueued   the mutation is in the line             applied    the actor's memory follows
    begun      its transaction has begun               answered   the caller has its answer

`sweep` runs a scenario once to learn its points, then once for each point and each kind of kill, each time on a fresh
store, reopens the store after the death and audits it.
"""

from __future__ import annotations

import inspect
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, MutableSequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, Literal

from attrs import frozen

from fencepost.mailbox.errors import FencepostError
from fencepost.mailbox.ports import Kill
from fencepost.supervisor.invariants import Violation, check

__all__ = ["BOUNDARIES", "Chaos", "SweepResult"]

BOUNDARIES: Final = ("received", "decided", "enqueued", "begun", "written", "committed", "applied", "answered")


class _Steady(random.Random):
    """A source of randomness that leaves every order as it is: trio reverses, or under hypothesis shuffles, by it."""

    def random(self) -> float:
        """The value that reverses nothing."""
        return 1.0

    def shuffle(self, x: MutableSequence[object]) -> None:
        """Leave `x` in its order."""


_open_runtimes = 0


@contextmanager
def steady_scheduling() -> Generator[None]:
    """While a runtime is under chaos, have trio run ready tasks in one and the same order every time.

    trio reverses each batch of ready tasks at random, so that nobody relies on an order; a sweep must pass the same
    points in the same order.  The coin is private to trio: where it is not found, order is left to chance and an
    armed point that is missed is told by `unhit`.
    """
    global _open_runtimes  # noqa: PLW0603 - the coin is one for the whole process
    scheduler: Any = import_module("trio._core._run")
    if not hasattr(scheduler, "_r"):
        yield
        return
    if _open_runtimes == 0:
        scheduler._r = _Steady()  # noqa: SLF001
    _open_runtimes += 1
    try:
        yield
    finally:
        _open_runtimes -= 1
        if _open_runtimes == 0:
            scheduler._r = random.Random()  # noqa: S311, SLF001 - a coin, not a key


@frozen
class SweepResult:
    """One death of a sweep: where, of what, and how the store looked afterwards."""

    point: str
    what: str
    ok: bool
    violations: tuple[Violation, ...]
    error: str | None


@frozen
class _Arm:
    point: str
    nth: int
    kill: Kill


class Chaos:
    """Points passed and points armed.  Safe to share between the runtime's threads; good for several runtimes."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        """Every point passed, in order, since this Chaos was made."""
        self._counts: Counter[str] = Counter()
        self._arms: list[_Arm] = []
        self._hit: set[_Arm] = set()
        self._lock = threading.Lock()

    def kill_at(self, point: str, nth: int = 1, what: Literal["actor", "runtime"] = "actor") -> None:
        """Arm a point: the `nth` time it is passed, counted from the making of this Chaos, `what` dies there.

        Raises `ValueError` for a point without a known boundary, an `nth` below 1 or a time already past.
        """
        transition, slash, boundary = point.rpartition("/")
        if not slash or "." not in transition or boundary not in BOUNDARIES:
            raise ValueError(f"a point is kind.transition/boundary with a boundary of {BOUNDARIES}, not {point!r}")
        if isinstance(nth, bool) or not isinstance(nth, int) or nth < 1:
            raise ValueError(f"nth counts from 1, not {nth!r}")
        arm = _Arm(point, nth, Kill(what))
        with self._lock:
            if self._counts[point] >= nth:
                raise ValueError(f"{point} was already passed {self._counts[point]} times; nth={nth} is in the past")
            self._arms.append(arm)

    def unhit(self) -> list[str]:
        """The armed points that were never reached; a test that leaves any has tested nothing there."""
        with self._lock:
            return [arm.point for arm in self._arms if arm not in self._hit]

    def passed(self, point: str) -> Kill | None:
        """Record a point and say what dies at it.  Called by the runtime."""
        with self._lock:
            self.trace.append(point)
            self._counts[point] += 1
            for arm in self._arms:
                if arm.point == point and arm.nth == self._counts[point]:
                    self._hit.add(arm)
                    return arm.kill
        return None

    async def sweep(
        self,
        scenario: Callable[[str, Chaos], Awaitable[object]],
        store_url_of: Callable[..., str],
        *,
        finish: Callable[[str], Awaitable[object]] | None = None,
    ) -> list[SweepResult]:
        """Kill at every point `scenario` passes, once as an actor and once as the runtime; reopen and audit each.

        `scenario(url, chaos)` opens a runtime on `url` with `chaos` and does its work; whatever `FencepostError` a
        death raises from its calls is expected of it.  `store_url_of(name)` answers the URL of a fresh store for each
        name (letters, digits and dashes); it may also take no argument.  After each death the store is opened by a
        runtime of its own, closed and audited; `finish(url)`, if given, then brings the work to its end, and the
        store is audited once more.  A point that is not reached again is an error of its result.
        """
        url_of = _naming(store_url_of)
        learning = Chaos()
        await scenario(url_of("learn"), learning)
        self.trace.extend(learning.trace)
        results = []
        for index, (point, nth) in enumerate(_occurrences(learning.trace)):
            for what in Kill:
                url = url_of(f"{index}-{what.value}")
                results.append(await _die_once(scenario, finish, url, _Arm(point, nth, what)))
        return results


def _naming(store_url_of: Callable[..., str]) -> Callable[[str], str]:
    """The bridge's function as one of a name, whether or not it wants one."""
    if inspect.signature(store_url_of).parameters:
        return store_url_of
    return lambda _name: store_url_of()


def _occurrences(trace: list[str]) -> list[tuple[str, int]]:
    """Each passing of each point, as the point and which passing of it this is."""
    counts: Counter[str] = Counter()
    found = []
    for point in trace:
        counts[point] += 1
        found.append((point, counts[point]))
    return found


async def _die_once(
    scenario: Callable[[str, Chaos], Awaitable[object]],
    finish: Callable[[str], Awaitable[object]] | None,
    url: str,
    arm: _Arm,
) -> SweepResult:
    """Run with one arm, reopen, audit; then finish and audit again."""
    chaos = Chaos()
    chaos.kill_at(arm.point, arm.nth, arm.kill.value)
    error = await _run("while dying", scenario, url, chaos)
    if chaos.unhit():
        error = error or f"{arm.point} (passing {arm.nth}) was not reached"
    error = error or await _run("when reopened", _reopen, url)
    violations = list(await check(url))
    if finish is not None and error is None:
        error = await _run("while finishing", finish, url, expected=())
        violations += await check(url)
    name = arm.point if arm.nth == 1 else f"{arm.point}#{arm.nth}"
    ok = error is None and not violations
    return SweepResult(name, arm.kill.value, ok=ok, violations=tuple(violations), error=error)


async def _run(
    when: str,
    fn: Callable[..., Awaitable[object]],
    *args: object,
    expected: tuple[type[Exception], ...] = (FencepostError,),
) -> str | None:
    """Run one stage of a death; what went wrong beyond the expected, in words."""
    try:
        await fn(*args)
    except Exception as error:  # noqa: BLE001 - reported with its point
        unexpected = [leaf for leaf in _leaves(error) if not isinstance(leaf, expected)]
        if unexpected:
            return f"{when}: {unexpected[0]!r}"
    return None


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for member in error.exceptions for leaf in _leaves(member)]
    return [error]


async def _reopen(url: str) -> None:
    """Open the store as a restarted bridge without any callbacks would, and close it again."""
    from fencepost.supervisor.runtime import open_supervisor

    async with open_supervisor(url) as supervisor:
        await supervisor.status()
