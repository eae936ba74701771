"""What one pane's flood costs another pane's hook, beside what that hook takes when nobody floods.

One pane asks as in hooks.py, one call after the other; processes of the other send whatever the bridge must read and
turn down or answer, as fast as they are answered, or connect and leave.  Both share two things that no bound divides:
the machine's processors, which the flood's own processes use as well, and the bridge's one interpreter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final
from urllib.parse import urlsplit

from attrs import frozen
from figures import Run
from hooks import Bridge, asked, bridge, request_of

BODY_BYTES: Final = 8 * 1024 * 1024 - 1024
VALUES: Final = 190_000
"""A body as long, and of as many values, as the bridge will parse."""


@frozen
class Flood:
    """What the second pane does, so many times at once, and how the first one asks meanwhile."""

    key: str
    name: str
    told: Callable[[Bridge], dict[str, object]]
    connections: int
    newcomer: bool = False
    """The first pane asks over the fleet listener, with a new connection each."""


def measure_floods(run: Run) -> None:
    """Measure (m)."""
    with bridge(run, 2) as there:
        for flood in FLOODS:
            run.report.heading(f"(m) a hook beside another pane's flood: {flood.name}")
            beside(run, there, flood)


def beside(run: Run, there: Bridge, flood: Flood) -> None:
    """One flood, in turns with none."""
    question = _line(
        _newcomer(there, run.sizes.flooded_calls) if flood.newcomer else _question(there, run.sizes.hook_questions)
    )
    flooding = _line({"do": "flood", **flood.told(there), "connections": flood.connections})
    calm, flooded, medians, ratios = list[float](), list[float](), list[float](), list[float]()
    there.done([question])  # a warm-up
    for _ in run.rounds(flood.name):
        alone = there.done([question])
        there.done([_NOTHING, flooding])
        during = there.done([question])
        there.done([_NOTHING, _line({"do": "calm"})])
        medians.append(median(alone))
        ratios.append(median(during) / medians[-1])
        calm += alone
        flooded += during
    report = run.report
    report.times("floor: nobody floods", f"flood_{flood.key}_floor", calm)
    report.times("flooded", f"flood_{flood.key}", flooded, median(ratios))
    report.keep(**{f"flood_{flood.key}_over_floor": median(ratios)})
    report.steadiness(f"flood_{flood.key}_floor", medians)


def _line(told: dict[str, object]) -> str:
    return json.dumps(told) + "\n"


_NOTHING: Final = _line({"do": "calm"})


def _question(there: Bridge, times: int) -> dict[str, object]:
    return asked(there.members[0], there.folder / "local.sock", times)


def _newcomer(there: Bridge, times: int) -> dict[str, object]:
    pane = there.members[0]
    return {
        "do": "call",
        "address": _fleet(there),
        "request": request_of(pane, pane.event, link=pane.link),
        "times": times,
    }


def _fleet(there: Bridge) -> Sequence[str | int | None]:
    url = urlsplit(there.fleet)
    return url.hostname, url.port


def _hooks(there: Bridge) -> dict[str, object]:
    pane = there.members[1]
    return {"with": "requests", "socket": str(there.folder / "local.sock"), "request": request_of(pane, pane.event)}


def _bodies(there: Bridge) -> dict[str, object]:
    event = {"values": [0] * VALUES, "text": "x" * (BODY_BYTES - 2 * VALUES)}
    body = request_of(there.members[1], event)
    return {"with": "requests", "socket": str(there.folder / "local.sock"), "request": body}


def _unix(there: Bridge) -> dict[str, object]:
    return {"with": "connects", "address": str(there.folder / "local.sock")}


def _tcp(there: Bridge) -> dict[str, object]:
    return {"with": "connects", "address": _fleet(there)}


FLOODS: Final = (
    Flood("hooks", "64 connections that ask", _hooks, 64),
    Flood("bodies", "4 connections with the largest bodies", _bodies, 4),
    Flood("connects", "8 processes that connect and leave", _unix, 8),
    Flood("tcp", "8 that connect to the fleet listener, and leave; a new connection each", _tcp, 8, newcomer=True),
)
