"""The model checker finds nothing in the shipped protocol, and every deliberate mistake; `make model-check` goes on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from model_check import cli, delivery_world, pump_world
from model_check.cli import BOUNDS, caught, main
from model_check.delivery_faults import DELIVERY_FAULTS, QUICK, caught_delivery, explored
from model_check.faults import FAULTS, deliberate
from model_check.outlets import Broken
from model_check.search import Found, explore
from model_check.story import told
from model_check.world import World

from fencepost.actors.intent_state import TABLE
from fencepost.mailbox.records import BatchMode

NARROW = BOUNDS["small"]._replace(calls=1, batches_a_turn=1, soft_redeliveries=0)
"""Two intents in a world hardly larger than the tiny one: enough for most of what that does not show."""

PROGRAM = Path(__file__).with_name("model_check")


@pytest.fixture(scope="module")
def small() -> tuple[World, Found]:
    world = World(BOUNDS["small"])
    return world, explore(world)


def test_every_law_holds_and_no_state_is_a_dead_end(small):
    world, found = small
    story = [] if found.counterexample is None else told(world, found.counterexample)
    assert not story, "\n".join(story)
    assert found.states > 5_000
    assert found.good_ends > 500


def test_the_small_world_takes_most_rows_of_the_table(small):
    world, _ = small
    assert world.ledger.taken <= TABLE.keys()
    assert len(world.ledger.taken) > 0.8 * len(TABLE)


@pytest.mark.parametrize("name", FAULTS)
def test_a_deliberate_mistake_is_caught(name):
    found = caught(name, [BOUNDS["tiny"], NARROW, BOUNDS["small"]])
    assert found.counterexample is not None
    assert found.counterexample.broken


def test_a_deliberate_mistake_lasts_no_longer_than_its_context():
    for name in FAULTS:
        with deliberate(name):
            pass
    assert explore(World(BOUNDS["tiny"]._replace(faults=0))).counterexample is None


@pytest.mark.parametrize("world", QUICK, ids=str)
def test_10_10_and_10_11_and_10_12_every_interleaving_of_a_small_world_of_deliveries(world):
    found = explored(world)
    assert found.states > 1_000
    assert found.ends > 100 or world.foreign, "a service of another make never says how a delivery ended"


@pytest.mark.slow
@pytest.mark.parametrize("world", pump_world.WORLDS, ids=str)
def test_10_10_and_10_11_and_10_12_every_interleaving_of_pumps_and_a_mailbox(world):
    assert explored(world).states > 1_000


def test_the_worlds_of_deliveries_have_every_kind_of_damage():
    assert {world.mechanism for world in pump_world.WORLDS if world.unreadable_max} == {"fleet_seat", "head_seat"}
    assert {len(world.wanted) for world in delivery_world.WORLDS if world.unreadable_max} == {1, 2}


@pytest.mark.parametrize("fault", DELIVERY_FAULTS.values(), ids=DELIVERY_FAULTS)
def test_a_deliberate_mistake_in_deliveries_is_caught_by_its_law(fault):
    assert str(caught_delivery(fault)).startswith(f"{fault.law}: ")


def test_laws_10_to_12_have_each_several_deliberate_mistakes():
    laws = [fault.law for fault in DELIVERY_FAULTS.values()]
    assert {law: laws.count(law) >= 3 for law in set(laws)} == {10: True, 11: True, 12: True}


def test_a_mistake_in_deliveries_lasts_no_longer_than_its_context():
    for fault in DELIVERY_FAULTS.values():
        with fault.deliberate():
            pass
    assert explored(QUICK[0]).states > 1_000


def test_a_mistake_in_deliveries_is_told_with_the_way_to_it():
    ran = CliRunner().invoke(main, ["--fault", "acknowledge-what-was-not-written"])
    assert ran.exit_code == 1
    assert ran.output == (
        "a pump and a service of another make: 11: pump 0 acknowledges 'one', whose write it has not completed; "
        "after pump 0 polls, the page (0,) arrives, pump 0 begins to write 'one', the write of pump 0 fails\n"
    )


def test_all_mistakes_in_deliveries_are_counted(monkeypatch):
    missed = {"never-to-be-seen": DELIVERY_FAULTS["forget-what-was-written"]._replace(law=10)}
    monkeypatch.setattr(cli, "FAULTS", {})
    for faults, status, last in ({}, 0, "0 of 0"), (missed, 1, "0 of 1"):
        monkeypatch.setattr(cli, "DELIVERY_FAULTS", faults)
        monkeypatch.setattr(cli, "caught_delivery", lambda _fault: Broken("11: written twice"))
        ran = CliRunner().invoke(main, ["--all-faults", "--quiet"])
        assert ran.exit_code == status
        assert ran.output.splitlines()[-1] == f"{last} deliberate faults in deliveries caught"


def test_a_counterexample_is_told_in_numbered_sentences_with_codes():
    ran = CliRunner().invoke(main, ["--fault", "lose-a-pass", "--bounds", "tiny", "--quiet"])
    assert ran.exit_code == 1, ran.output
    story = ran.output.splitlines()
    assert any(re.match(r" +1\. \w", line) for line in story)
    assert any(re.match(r" +\[1: D; process live, alive", line) for line in story)
    assert story[-1].startswith("  => ")


def run_as_a_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=False)


def test_it_runs_as_a_program():
    ran = run_as_a_program("--bounds", "tiny", "--fault", "lose-a-pass", "--quiet")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "faults=1" in ran.stdout


@pytest.mark.slow
def test_as_a_program_it_checks_every_core():
    ran = run_as_a_program("--bounds", "tiny", "--faults", "0")
    assert ran.returncode == 0, ran.stderr
    assert "two bridges that send 'one' and 'other'" in ran.stdout
    assert "every law holds" in ran.stdout
    for mode in BatchMode:
        assert f"a {mode} batch of three" in ran.stdout


def test_what_holds_is_said_of_every_core(monkeypatch):
    monkeypatch.setattr(cli, "BatchMode", [BatchMode.SEQUENTIAL])  # the parallel one takes its time
    monkeypatch.setattr(cli, "WORLDS", [delivery_world.World((("same",), ("same",)), doubled_max=0)])
    ran = CliRunner().invoke(main, ["--bounds", "tiny", "--faults", "0", "--quiet"])
    assert ran.exit_code == 0, ran.output
    assert "every law holds" in ran.output
    assert "faults=0" in ran.output
    assert "a sequential batch of three" in ran.output
    assert "no law is broken" in ran.output


def test_a_run_out_of_time_is_no_failure_and_says_that_it_was_not_exhaustive(monkeypatch):
    monkeypatch.setenv("FENCEPOST_MODEL_CHECK_SECONDS", "0.2")
    ran = CliRunner().invoke(main, ["--quiet", "--core", "intents"])
    assert ran.exit_code == 0, ran.output
    assert "NOT EXHAUSTIVE: the time of 0.2 s was up" in ran.output
    assert "every law holds" not in ran.output
    assert "everything there is" not in ran.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--core", "none"],
        ["--seconds", "0"],
        ["--bounds", "huge"],
        ["--fault", "nonesuch"],
        ["--faults", "-1"],
        ["surplus"],
    ],
)
def test_bad_usage_exits_with_2(arguments):
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_both_ways_to_name_faults_at_once_is_bad_usage():
    assert CliRunner().invoke(main, ["--all-faults", "--fault", "lose-a-pass"]).exit_code == 2


def test_the_faults_are_listed():
    assert CliRunner().invoke(main, ["--list-faults"]).output.split() == [*FAULTS, *DELIVERY_FAULTS]
