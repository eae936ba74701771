"""Death at every point of every scenario: the store stays true, and a new bridge brings the work to its end."""

from __future__ import annotations

import pytest
import trio
from deaths import distinct_deaths
from intent_scenarios import SCENARIOS, covered_and_discovered, finish, soft_delivery
from store_urls import KINDS, urls

from fencepost.mailbox.ports import Kill
from fencepost.supervisor import Chaos, StoreFault, open_supervisor
from fencepost.supervisor.chaos import _Arm, _die_once

DISKS = KINDS[1:]


def assert_all_ok(results):
    bad = [result for result in results if not result.ok]
    assert not bad, "\n".join(map(str, bad[:10]))


async def sweep(scenario, url_of):
    """Every death there is, as a bridge's own sweep tries them."""
    chaos = Chaos()
    results = await chaos.sweep(scenario, url_of, finish=finish)
    assert_all_ok(results)
    assert len(results) == 2 * len(chaos.trace)


@pytest.fixture(scope="module")
def deaths_of():
    """For each scenario its deaths that differ from each other and from those in the scenarios before it."""
    met = set()
    found = {}
    for scenario in SCENARIOS:
        learning = Chaos()
        trio.run(scenario, f"memory://distinct-{scenario.__name__}", learning)
        found[scenario] = [_Arm(*death) for death in distinct_deaths(learning.trace, met)]
    return found


async def die(scenario, deaths, url_of):
    assert_all_ok([await _die_once(scenario, finish, url_of(str(number)), arm) for number, arm in enumerate(deaths)])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_death_of_every_scenario_in_memory(scenario, tmp_path, deaths_of):
    assert len(deaths_of[scenario]) > 20
    await die(scenario, deaths_of[scenario], urls(tmp_path, "memory"))


@pytest.mark.parametrize("kind", DISKS)
async def test_every_death_of_a_soft_delivery_on_a_disk(tmp_path, deaths_of, kind):
    """Only a runtime that dies around a commit leaves something else on a disk than in memory."""
    at = ("/written", "/committed")
    deaths = [arm for arm in deaths_of[soft_delivery] if arm.kill is Kill.RUNTIME and arm.point.endswith(at)]
    assert len(deaths) > 20
    await die(soft_delivery, deaths, urls(tmp_path, kind))


async def test_the_librarys_sweep_leaves_no_death_out(tmp_path):
    await sweep(covered_and_discovered, urls(tmp_path, "memory"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("kind", KINDS)
async def test_every_death_at_every_point_of_every_scenario(scenario, tmp_path, kind):
    await sweep(scenario, urls(tmp_path, kind))


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
