"""Visit every state, least faulty first; then see that from each of them a good end can be reached.

States are numbered in the order they are found.  A state is expanded once, with the fewest faults that lead to it: the
steps that take one more fault wait in the next round.  So the first broken law found is told with the fewest faults,
and among those with the fewest steps.

A search may be given a time: it then ends early, between two states.  Dead ends are looked for among the states of the
rounds that were finished, since what those lead to without a further fault is known.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from model_check.world import State, World

__all__ = ["Counterexample", "Found", "explore"]


class Counterexample(NamedTuple):
    """The states on the way, the text of the last step, and what it broke."""

    path: list[State]
    last: str | None
    broken: str


class Found(NamedTuple):
    """What an exploration found."""

    states: int
    transitions: int
    faults: int
    """The most faults that any state needed."""
    good_ends: int
    complete: bool
    """Whether every state was visited, however many faults it needs."""
    in_time: bool
    """Whether it ended by itself, and not because its time was up."""
    seconds: float
    counterexample: Counterexample | None


def explore(world: World, report: Callable[[str], None] = lambda _text: None, seconds: float | None = None) -> Found:
    """Explore the whole world, or as much of it as can be done in so many seconds."""
    return _Search(world, report, seconds).run()


class _Search:
    def __init__(self, world: World, report: Callable[[str], None], seconds: float | None) -> None:
        self.world, self.report = world, report
        self.numbers: dict[State, int] = {}
        self.states: list[State] = []
        self.parents: list[int] = []
        self.reversed: list[list[int]] = []  # for each state, those it can be reached from without a fault
        self.transitions = 0
        self.began = time.monotonic()
        self.told = self.began
        self.ends = self.began + (math.inf if seconds is None else seconds)
        self.in_time = True

    def run(self) -> Found:
        limit = self.world.bounds.faults
        queue: deque[int] = deque([self._number(State(), 0)])
        later: list[tuple[State, int]] = []
        faults = deepest = closed = 0
        counterexample = None
        while counterexample is None:
            counterexample = self._round(queue, later, faults)
            if not self.in_time:
                break
            closed = len(self.states)
            if not later or (limit is not None and faults == limit):
                break
            faults += 1
            waiting, later = later, []
            queue = deque()
            for state, parent in waiting:
                if state not in self.numbers:
                    queue.append(self._number(state, parent))
                    deepest = faults
        complete = self.in_time and counterexample is None and all(state in self.numbers for state, _ in later)
        good = [number for number, state in enumerate(self.states) if self.world.good_end(state)]
        if counterexample is None:
            counterexample = self._dead_end(good, closed)
        return Found(
            states=len(self.states),
            transitions=self.transitions,
            faults=deepest,
            good_ends=len(good),
            complete=complete,
            in_time=self.in_time,
            seconds=time.monotonic() - self.began,
            counterexample=counterexample,
        )

    def _number(self, state: State, parent: int) -> int:
        number = self.numbers[state] = len(self.states)
        self.states.append(state)
        self.parents.append(parent)
        self.reversed.append([])
        return number

    def _round(self, queue: deque[int], later: list[tuple[State, int]], faults: int) -> Counterexample | None:
        """Everything that is reachable from the queue without a further fault."""
        numbers = self.numbers
        postponed: set[State] = set()
        while queue:
            now = time.monotonic()
            if now >= self.ends:
                self.in_time = False
                return None
            number = queue.popleft()
            self._progress(faults, len(queue), now)
            for step in self.world.steps(self.states[number]):
                self.transitions += 1
                if step.broken is not None:
                    return Counterexample(self._path(number), step.text, step.broken)
                target = numbers.get(step.state)
                if step.faults:
                    # More than one fault in one step is the same as one in each of two rounds.
                    if target is None and step.state not in postponed:
                        postponed.add(step.state)
                        later.append((step.state, number))
                    continue
                if target is None:
                    target = self._number(step.state, number)
                    queue.append(target)
                self.reversed[target].append(number)
        return None

    def _path(self, number: int) -> list[State]:
        path = [self.states[number]]
        while number:
            number = self.parents[number]
            path.append(self.states[number])
        return path[::-1]

    def _dead_end(self, good: list[int], closed: int) -> Counterexample | None:
        """The first of the first `closed` states from which no good end can be reached."""
        saved = bytearray(len(self.states))
        for number in good:
            saved[number] = 1
        waiting = list(good)
        while waiting:
            for source in self.reversed[waiting.pop()]:
                if not saved[source]:
                    saved[source] = 1
                    waiting.append(source)
        lost = saved.find(0, 0, closed)
        if lost < 0:
            return None
        return Counterexample(
            self._path(lost), None, "a dead end: from here, no good end can be reached without a further fault"
        )

    def _progress(self, faults: int, waiting: int, now: float) -> None:
        if now - self.told >= 2:
            self.told = now
            self.report(
                f"{len(self.states):,} states, {self.transitions:,} transitions, {waiting:,} waiting, "
                f"{faults} faults, {now - self.began:.0f} s"
            )
