"""Death at every point of every scenario: the store stays true, and a new bridge brings the work to its end."""

from __future__ import annotations

import itertools

import pytest
from intent_scenarios import SCENARIOS, finish, soft_delivery

from fencepost.supervisor import Chaos, StoreFault, open_supervisor

_RUNS = itertools.count()


def urls(tmp_path, kind):
    run = next(_RUNS)

    def url_of(name: str) -> str:
        if kind == "memory":
            return f"memory://sweep-{run}-{name}"
        return f"sqlite:///{tmp_path}/{run}-{name}.db"

    return url_of


async def sweep(scenario, url_of):
    chaos = Chaos()
    results = await chaos.sweep(scenario, url_of, finish=finish)
    bad = [result for result in results if not result.ok]
    assert not bad, "\n".join(map(str, bad[:10]))
    assert len(results) == 2 * len(chaos.trace)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_death_of_every_scenario_in_memory(scenario, tmp_path):
    await sweep(scenario, urls(tmp_path, "memory"))


async def test_every_death_of_a_soft_delivery_on_sqlite(tmp_path):
    await sweep(soft_delivery, urls(tmp_path, "sqlite"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_death_of_every_scenario_on_sqlite(scenario, tmp_path):
    await sweep(scenario, urls(tmp_path, "sqlite"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_the_same_scenario_passes_the_same_points_in_the_same_order(scenario, tmp_path):
    url_of = urls(tmp_path, "memory")
    traces = []
    for name in ("one", "two"):
        chaos = Chaos()
        await scenario(url_of(name), chaos)
        traces.append(chaos.trace)
    assert traces[0] == traces[1]


async def test_a_point_that_was_armed_and_never_reached_is_told(url):
    chaos = Chaos()
    chaos.kill_at("pane.rearm/committed")
    await soft_delivery(url, chaos)
    assert chaos.unhit() == ["pane.rearm/committed"]


@pytest.mark.parametrize("point", ["nonsense", "pane.detect/nowhere", "detect/committed"])
def test_a_point_that_cannot_exist_is_refused(point):
    with pytest.raises(ValueError, match=r"kind\.transition/boundary"):
        Chaos().kill_at(point)


async def test_after_a_runtime_kill_every_call_meets_the_fault(url):
    chaos = Chaos()
    chaos.kill_at("pane.launch/written", what="runtime")
    async with open_supervisor(url, chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        with pytest.raises(StoreFault, match="killed"):
            await pane.launch("claude-code")
        for call in (pane.sync_status, pane.intents, supervisor.dead_letters, supervisor.status):
            with pytest.raises(StoreFault, match="killed"):
                await call()
    async with open_supervisor(url) as supervisor:
        assert (await supervisor.status()).panes == 0
