"""Death at every point of every batch: the store stays true, nothing durable runs twice, the work ends well."""

from __future__ import annotations

import pytest
from store_urls import KINDS, urls
from sweeps import Sweep, each
from tool_scenarios import SCENARIOS, World, die_once, parallel

SWEEP = Sweep(World, die_once)


@pytest.fixture(scope="module")
def deaths_of():
    return SWEEP.distinct(SCENARIOS)


@each(SCENARIOS)
async def test_every_death_of_every_batch_in_memory(scenario, tmp_path, deaths_of):
    assert len(deaths_of[scenario]) > 10
    assert any(point.startswith("batch.") for point, _, _ in deaths_of[scenario])
    await SWEEP.die(scenario, deaths_of[scenario], urls(tmp_path, "memory"))


@pytest.mark.slow
@each(SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
async def test_every_death_at_every_point_of_every_batch(scenario, tmp_path, kind):
    await SWEEP.die_everywhere(scenario, urls(tmp_path, kind))


@each(SCENARIOS)
async def test_the_same_batch_passes_the_same_points_in_the_same_order(scenario, tmp_path):
    await SWEEP.repeat(scenario, urls(tmp_path, "memory"))


async def test_the_sweep_of_the_library_takes_a_batch_too(tmp_path):
    await SWEEP.by_the_library(parallel, urls(tmp_path, "memory"))
