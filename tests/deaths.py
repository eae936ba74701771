"""Which deaths of a scenario differ: what a death can depend on is what was passed until then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fencepost.mailbox.ports import Kill

# While its commit is on the line an actor cannot die: it dies behind it, wherever it was hit.  A runtime that dies
# before the commit has lost it, however far that had got; how each store loses it is tried in the stores' own suite.
AS_GOOD_AS_COMMITTED = {"enqueued", "begun", "written"}
AS_GOOD_AS_WRITTEN = {"enqueued", "begun"}

Death = tuple[str, int, Kill]
"""A point, its how-manieth passing, and who dies there."""


def all_deaths(trace: Iterable[str]) -> list[Death]:
    """Every death that a scenario with this trace can die."""
    counts: Counter[str] = Counter()
    found = []
    for point in trace:
        counts[point] += 1
        found += [(point, counts[point], kill) for kill in (Kill.ACTOR, Kill.RUNTIME)]
    return found


def distinct_deaths(trace: list[str], met: set[tuple[object, ...]]) -> Iterator[Death]:
    """Those that differ from each other and from the ones in `met`, which they are added to.

    A scenario leaves where it meets a death, so what was passed until then is all that a death can depend on.
    """
    for index, (point, nth, kill) in enumerate(all_deaths(trace)):
        same = AS_GOOD_AS_COMMITTED if kill is Kill.ACTOR else AS_GOOD_AS_WRITTEN
        death = (kill, *trace[: index // 2 + 1])
        if point.rpartition("/")[2] not in same and death not in met:
            met.add(death)
            yield point, nth, kill
