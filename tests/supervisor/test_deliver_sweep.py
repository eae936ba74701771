"""Death at every point of every delivery: nothing leaves or is worked on twice, and no answer becomes untrue."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from delivery_scenarios import SCENARIOS, World, accepted, die_once

from fencepost.supervisor import Chaos

_RUNS = itertools.count()


def urls(tmp_path, kind):
    run = next(_RUNS)

    def url_of(name: str) -> str:
        if kind == "memory":
            return f"memory://deliveries-{run}-{name}"
        return f"sqlite:///{tmp_path}/{run}-{name}.db"

    return url_of


async def sweep(scenario, url_of):
    learning = Chaos()
    await scenario(url_of("learn"), learning, World())
    counts: Counter[str] = Counter()
    bad = []
    for index, point in enumerate(learning.trace):
        counts[point] += 1
        for what in ("actor", "runtime"):
            wrong = await die_once(scenario, url_of(f"{index}-{what}"), point, counts[point], what)
            bad += [f"{point}#{counts[point]} {what}: {one}" for one in wrong]
    assert not bad, "\n".join(bad[:20])
    assert any(point.startswith("pane.") and point.endswith("/committed") for point in learning.trace)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_death_of_every_delivery_in_memory(scenario, tmp_path):
    await sweep(scenario, urls(tmp_path, "memory"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_death_of_every_delivery_on_sqlite(scenario, tmp_path):
    await sweep(scenario, urls(tmp_path, "sqlite"))


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
