"""Death at every point of every scenario: the store stays true, and a new bridge brings the work to its end."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import trio
from intent_scenarios import SCENARIOS, covered_and_discovered, finish, soft_delivery

from fencepost.mailbox.ports import Kill
from fencepost.supervisor import Chaos, StoreFault, open_supervisor
from fencepost.supervisor.chaos import _Arm, _die_once

_RUNS = itertools.count()


def urls(tmp_path, kind):
    run = next(_RUNS)

    def url_of(name: str) -> str:
        if kind == "memory":
            return f"memory://sweep-{run}-{name}"
        return f"sqlite:///{tmp_path}/{run}-{name}.db"

    return url_of


def assert_all_ok(results):
    bad = [result for result in results if not result.ok]
    assert not bad, "\n".join(map(str, bad[:10]))


async def sweep(scenario, url_of):
    """Every death there is, as a bridge's own sweep tries them."""
    chaos = Chaos()
    results = await chaos.sweep(scenario, url_of, finish=finish)
    assert_all_ok(results)
    assert len(results) == 2 * len(chaos.trace)


# While its commit is on the line an actor cannot die: it dies behind it, wherever it was hit.  A runtime that dies
# before the commit has lost it, however far that had got; how each store loses it is tried in the stores' own suite.
AS_GOOD_AS_COMMITTED = {"enqueued", "begun", "written"}
AS_GOOD_AS_WRITTEN = {"enqueued", "begun"}


@pytest.fixture(scope="module")
def deaths_of():
    """For each scenario its deaths that differ from each other and from those in the scenarios before it.

    A scenario leaves where it meets a death, so what was passed until then is all that a death can depend on.
    """
    met = set()
    found = {scenario: [] for scenario in SCENARIOS}
    for scenario, deaths in found.items():
        learning = Chaos()
        trio.run(scenario, f"memory://distinct-{scenario.__name__}", learning)
        counts = Counter()
        for index, point in enumerate(learning.trace, start=1):
            counts[point] += 1
            for what, same in ((Kill.ACTOR, AS_GOOD_AS_COMMITTED), (Kill.RUNTIME, AS_GOOD_AS_WRITTEN)):
                death = (what, *learning.trace[:index])
                if point.rpartition("/")[2] not in same and death not in met:
                    met.add(death)
                    deaths.append(_Arm(point, counts[point], what))
    return found


async def die(scenario, deaths, url_of):
    assert_all_ok([await _die_once(scenario, finish, url_of(str(number)), arm) for number, arm in enumerate(deaths)])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_death_of_every_scenario_in_memory(scenario, tmp_path, deaths_of):
    assert len(deaths_of[scenario]) > 20
    await die(scenario, deaths_of[scenario], urls(tmp_path, "memory"))


async def test_every_death_of_a_soft_delivery_on_sqlite(tmp_path, deaths_of):
    """Only a runtime that dies around a commit leaves something else on a disk than in memory."""
    at = ("/written", "/committed")
    deaths = [arm for arm in deaths_of[soft_delivery] if arm.kill is Kill.RUNTIME and arm.point.endswith(at)]
    assert len(deaths) > 20
    await die(soft_delivery, deaths, urls(tmp_path, "sqlite"))


async def test_the_librarys_sweep_leaves_no_death_out(tmp_path):
    await sweep(covered_and_discovered, urls(tmp_path, "memory"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
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
