"""Death at every point of every delivery: nothing leaves or is worked on twice, and no answer becomes untrue."""

from __future__ import annotations

import pytest
import trio
from deaths import all_deaths, distinct_deaths
from delivery_scenarios import SCENARIOS, World, accepted, die_once
from store_urls import KINDS, urls

from fencepost.supervisor import Chaos


@pytest.fixture(scope="module")
def deaths_of():
    """For each scenario its deaths that differ from each other and from those in the scenarios before it."""
    met = set()
    found = {}
    for scenario in SCENARIOS:
        learning = Chaos()
        trio.run(scenario, f"memory://distinct-delivery-{scenario.__name__}", learning, World())
        assert any(point.startswith("pane.") and point.endswith("/committed") for point in learning.trace)
        found[scenario] = list(distinct_deaths(learning.trace, met))
    return found


async def die(scenario, deaths, url_of):
    bad = []
    for number, (point, nth, kill) in enumerate(deaths):
        wrong = await die_once(scenario, url_of(str(number)), point, nth, kill.value)
        bad += [f"{point}#{nth} {kill}: {one}" for one in wrong]
    assert not bad, "\n".join(bad[:20])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_death_of_every_delivery_in_memory(scenario, tmp_path, deaths_of):
    await die(scenario, deaths_of[scenario], urls(tmp_path, "memory"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("kind", KINDS)
async def test_every_death_at_every_point_of_every_delivery(scenario, tmp_path, kind):
    url_of = urls(tmp_path, kind)
    learning = Chaos()
    await scenario(url_of("learn"), learning, World())
    await die(scenario, all_deaths(learning.trace), url_of)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_the_same_delivery_passes_the_same_points_in_the_same_order(scenario, tmp_path):
    url_of = urls(tmp_path, "memory")
    traces = []
    for name in ("one", "two"):
        chaos = Chaos()
        await scenario(url_of(name), chaos, World())
        traces.append(chaos.trace)
    assert traces[0] == traces[1]


async def test_the_sweep_of_the_library_takes_a_delivery_too(tmp_path):
    async def scenario(url, chaos):
        await accepted(url, chaos, World())

    results = await Chaos().sweep(scenario, urls(tmp_path, "memory"))
    bad = [result for result in results if not result.ok]
    assert not bad, "\n".join(map(str, bad[:10]))
