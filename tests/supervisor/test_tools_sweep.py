"""Death at every point of every batch: the store stays true, nothing durable runs twice, the work ends well."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from tool_scenarios import SCENARIOS, World, die_once, parallel

from fencepost.supervisor import Chaos

_RUNS = itertools.count()


def urls(tmp_path, kind):
    run = next(_RUNS)

    def url_of(name: str) -> str:
        if kind == "memory":
            return f"memory://tools-{run}-{name}"
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
    assert any(point.startswith("batch.") for point in learning.trace)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_death_of_every_batch_in_memory(scenario, tmp_path):
    await sweep(scenario, urls(tmp_path, "memory"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_death_of_every_batch_on_sqlite(scenario, tmp_path):
    await sweep(scenario, urls(tmp_path, "sqlite"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_the_same_batch_passes_the_same_points_in_the_same_order(scenario, tmp_path):
    url_of = urls(tmp_path, "memory")
    traces = []
    for name in ("one", "two"):
        chaos = Chaos()
        await scenario(url_of(name), chaos, World())
        traces.append(chaos.trace)
    assert traces[0] == traces[1]


async def test_the_sweep_of_the_library_takes_a_batch_too(tmp_path):
    async def scenario(url, chaos):
        await parallel(url, chaos, World())

    results = await Chaos().sweep(scenario, urls(tmp_path, "memory"))
    bad = [result for result in results if not result.ok]
    assert not bad, "\n".join(map(str, bad[:10]))
