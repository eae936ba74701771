"""Visit every state there is, breadth first, and tell the way to the first law that fails: the search of deliveries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

from model_check.outlets import Broken

__all__ = ["Found", "search"]

S = TypeVar("S", bound=Hashable)


class Found(NamedTuple):
    """What an exploration saw."""

    states: int
    transitions: int
    ends: int
    """States in which everybody has been told how it ended."""


def search(
    first: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    judge: Callable[[S, S], None],
    finished: Callable[[S], bool],
) -> Found:
    """Visit every state; raise `Broken`, with the way there, at the first law that fails.

    `judge` is given each step that leads to a new state, the state before it and the new one; `steps` may raise
    `Broken` itself.
    """
    came: dict[S, tuple[S, str] | None] = {first: None}
    waiting, transitions, ends = deque([first]), 0, 0
    while waiting:
        state = waiting.popleft()
        ends += finished(state)
        judged: list[str] = []  # a law that a step itself breaks has no name of a step
        try:
            for name, after in steps(state):
                transitions += 1
                if after not in came:
                    judged = [name]
                    judge(state, after)
                    judged = []
                    came[after] = (state, name)
                    waiting.append(after)
        except Broken as broken:
            way = ", ".join([*_way(came, state), *judged]) or "nothing"
            raise Broken(f"{broken}; after {way}") from broken
    return Found(len(came), transitions, ends)


def _way(came: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    way: list[str] = []
    while (step := came[state]) is not None:
        state, name = step
        way.append(name)
    return way[::-1]
