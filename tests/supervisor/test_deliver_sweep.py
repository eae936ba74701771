"""Death at every point of every delivery: nothing leaves or is worked on twice, and no answer becomes untrue."""

from __future__ import annotations

import pytest
from delivery_scenarios import SCENARIOS, World, accepted, die_once
from store_urls import KINDS, urls
from sweeps import Sweep, each

SWEEP = Sweep(World, die_once)


@pytest.fixture(scope="module")
def deaths_of():
    return SWEEP.distinct(SCENARIOS)


@each(SCENARIOS)
async def test_every_death_of_every_delivery_in_memory(scenario, tmp_path, deaths_of):
    await SWEEP.die(scenario, deaths_of[scenario], urls(tmp_path, "memory"))


@pytest.mark.slow
@each(SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
async def test_every_death_at_every_point_of_every_delivery(scenario, tmp_path, kind):
    await SWEEP.die_everywhere(scenario, urls(tmp_path, kind))


@each(SCENARIOS)
async def test_the_same_delivery_passes_the_same_points_in_the_same_order(scenario, tmp_path):
    await SWEEP.repeat(scenario, urls(tmp_path, "memory"))


async def test_the_sweep_of_the_library_takes_a_delivery_too(tmp_path):
    await SWEEP.by_the_library(accepted, urls(tmp_path, "memory"))
