"""A sweep of scenarios by death, as those of deliveries and of tool batches are swept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest
import trio
from attrs import frozen
from deaths import Death, all_deaths, distinct_deaths

from fencepost.supervisor import Chaos

Scenario = Callable[[str, Chaos, Any], Awaitable[None]]


def each(scenarios: Sequence[Scenario]) -> pytest.MarkDecorator:
    """A test of every scenario, under its name."""
    return pytest.mark.parametrize("scenario", scenarios, ids=lambda scenario: scenario.__name__)


@frozen
class Sweep:
    """What all sweeps do with their scenarios; `die_once` answers in words what went wrong in one death."""

    world: Callable[[], Any]
    die_once: Callable[[Scenario, str, str, int, str], Awaitable[list[str]]]

    async def trace(self, scenario: Scenario, url: str) -> list[str]:
        """The points that the scenario passes when nobody dies."""
        chaos = Chaos()
        await scenario(url, chaos, self.world())
        return chaos.trace

    def distinct(self, scenarios: Sequence[Scenario]) -> dict[Scenario, list[Death]]:
        """For each scenario its deaths that differ from each other and from those in the scenarios before it."""
        met, found = set[tuple[object, ...]](), {}
        for number, scenario in enumerate(scenarios):
            trace = trio.run(self.trace, scenario, f"memory://distinct-{id(met)}-{number}")
            assert any(point.endswith("/committed") for point in trace), "nothing of it is durable"
            found[scenario] = list(distinct_deaths(trace, met))
        return found

    async def die(self, scenario: Scenario, deaths: Iterable[Death], url_of: Callable[[str], str]) -> None:
        """Die each death on a store of its own."""
        bad = []
        for number, (point, nth, kill) in enumerate(deaths):
            wrong = await self.die_once(scenario, url_of(str(number)), point, nth, kill.value)
            bad += [f"{point}#{nth} {kill}: {one}" for one in wrong]
        assert not bad, "\n".join(bad[:20])

    async def die_everywhere(self, scenario: Scenario, url_of: Callable[[str], str]) -> None:
        """Die at every point that the scenario passes on such a store."""
        await self.die(scenario, all_deaths(await self.trace(scenario, url_of("learn"))), url_of)

    async def repeat(self, scenario: Scenario, url_of: Callable[[str], str]) -> None:
        """The same scenario passes the same points in the same order: else `nth` would mean nothing."""
        assert await self.trace(scenario, url_of("one")) == await self.trace(scenario, url_of("two"))

    async def by_the_library(self, scenario: Scenario, url_of: Callable[[str], str]) -> None:
        """`Chaos.sweep` takes the scenario too."""
        results = await Chaos().sweep(lambda url, chaos: scenario(url, chaos, self.world()), url_of)
        bad = [result for result in results if not result.ok]
        assert results
        assert not bad, "\n".join(map(str, bad[:10]))
