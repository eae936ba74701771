"""Real processes killed with SIGKILL: whatever a bridge was told is true in the store it leaves behind."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

import intent_scenarios
import kill_bridge
import pytest
from bridges import Workspace
from children import SIGKILLED
from intent_scenarios import finish

from fencepost.mailbox.query import Query
from fencepost.mailbox.records import AdmissionRecord, IncarnationRecord, IntentRecord
from fencepost.mailbox.stores.store import open_reader
from fencepost.supervisor import (
    Allow,
    BlockPayload,
    Chaos,
    LaunchBlocked,
    ModelTurn,
    ToolBoundary,
    check,
    open_supervisor,
)

STUCK = 120


FORKING = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def server():
    """A process that has imported everything; each bridge is a fork of it, which costs a tenth of a start."""
    FORKING.set_forkserver_preload(["kill_bridge"])
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("PYTHONPATH", str(Path(kill_bridge.__file__).parent))
        forkserver.ensure_running()


class Bridge:
    """A bridge process."""

    def __init__(self, mode: str, url: str, *args: str) -> None:
        self.complaints = Path(url.removeprefix("sqlite:///") + ".complaints")
        reading, writing = FORKING.Pipe(duplex=False)
        told = (writing, str(self.complaints), mode, url, *args)
        self.process = FORKING.Process(target=kill_bridge.run, args=told, daemon=True)
        self.process.start()
        writing.close()
        self.facts = os.fdopen(os.dup(reading.fileno()), encoding="utf-8")
        reading.close()

    def ended(self) -> tuple[int, str]:
        """How it ended, and the rest of what it said."""
        rest = self.facts.read()
        self.process.join()
        return self.process.exitcode, rest


@contextmanager
def bridge(mode: str, url: str, *args: str):
    """A bridge process; killed, at the latest, when this block ends or when it is stuck."""
    alive = Bridge(mode, url, *args)
    stuck = threading.Timer(STUCK, alive.process.kill)
    stuck.start()
    try:
        yield alive
    finally:
        alive.process.kill()
        alive.process.join()
        alive.facts.close()
        stuck.cancel()


def killed_after(url: str, mode: str, lines: int, moment: float = 0) -> list[dict]:
    """Let a bridge live until it has told so many facts, kill it, and answer all that it told until it was dead."""
    with bridge(mode, url) as alive:
        told = list(itertools.islice(alive.facts, lines))
        time.sleep(moment)
        alive.process.kill()
        code, rest = alive.ended()
        assert (code, len(told)) == (SIGKILLED, lines), alive.complaints.read_text()
    # The last line may have been cut short, then nobody was told.
    return [json.loads(line) for line in [*told, *rest.splitlines(keepends=True)] if line.endswith("\n")]


def assert_not_owned(url: str) -> None:
    lock = Path(url.removeprefix("sqlite:///") + ".lock")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def rows(url: str, record_type, **where):
    with open_reader(url) as reader:
        return reader.select(Query(record_type, where))


def assert_true(url: str, facts: list[dict]) -> None:
    """Every fact is in the rows."""
    intents = {row.intent_id: row for row in rows(url, IntentRecord)}
    processes = {row.incarnation_id: row for row in rows(url, IncarnationRecord)}
    admitted = {(row.incarnation_id, row.turn_id, row.batch_id): row.decision for row in rows(url, AdmissionRecord)}
    for fact in facts:
        match fact["fact"]:
            case "launched":
                row = processes[fact["incarnation"]]
                assert (row.epoch, row.startup_delivery_id) == (fact["epoch"], fact["startup"])
            case "allowed":
                assert admitted[fact["incarnation"], f"turn-{fact['turn']}", fact["batch"]] == "pass"
            case "detected":
                assert fact["intent"] in intents
            case "payload":
                payload = intents[fact["intent"]].payload
                assert payload is not None
                assert hashlib.sha256(payload).hexdigest() == fact["sha"]
            case "delivered":
                assert intents[fact["intent"]].delivered_at is not None
            case "completed":
                row = intents[fact["intent"]]
                assert (
                    row.batch_completed_at is not None or row.state == "acknowledged" or row.mode == "restart_startup"
                )
            case "acknowledged":
                assert intents[fact["intent"]].state == "acknowledged"
            case "planned":
                assert intents[fact["intent"]].planned_op == fact["operation"]
            case other:
                raise AssertionError(other)
    used = [row.startup_delivery_id for row in processes.values() if row.startup_delivery_id is not None]
    assert len(used) == len(set(used))


async def assert_told_again(url: str, facts: list[dict]) -> None:
    """A runtime over what is left says the same once more: admitted batches pass, payloads are the same bytes."""
    before = {row.startup_delivery_id for row in rows(url, IncarnationRecord)} - {None}
    live = {row.incarnation_id for row in rows(url, IncarnationRecord) if row.live}
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        views = {view.intent_id: view for view in await pane.intents()}
        told = {fact["intent"]: fact["sha"] for fact in facts if fact["fact"] == "payload"}
        assert {intent_id: views[intent_id].payload_sha256 for intent_id in told} == told
        bound = any(view.mode is not None for view in views.values())
        for fact in facts:
            if fact["fact"] == "allowed" and fact["incarnation"] in live and not bound:
                turn = ModelTurn(f"turn-{fact['turn']}", fact["turn"])
                assert await pane.pre_tool_use(ToolBoundary(fact["incarnation"], turn, fact["batch"])) == Allow()
        try:
            launch = await pane.launch("claude-code")
        except LaunchBlocked:
            return
        assert launch.startup is None or launch.startup.startup_delivery_id not in before


async def assert_survived(url: str, facts: list[dict]) -> None:
    """The whole of what a killed bridge must leave behind, and that its successor brings it to its end."""
    assert_not_owned(url)
    assert await check(url) == []
    assert_true(url, facts)
    await assert_told_again(url, facts)
    await finish(url)
    assert await check(url) == []
    assert_true(url, facts)
    assert all(row.resolved for row in rows(url, IntentRecord))


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/killed.db"


@pytest.mark.parametrize("lines", range(1, 16))
async def test_killed_after_each_fact_of_a_life(url, lines):
    await assert_survived(url, killed_after(url, "live", lines))


async def test_killed_again_and_again(url):
    """Each bridge takes up what the one before it left, and is killed as well."""
    facts: list[dict] = []
    for lines in (6, 2, 13):
        facts += killed_after(url, "live", lines)
        assert await check(url) == []
        assert_true(url, facts)
        await finish(url)
    await assert_survived(url, facts)


async def test_killed_in_the_middle_of_a_reconciliation(url):
    class Probing(Workspace):
        plans: tuple = ()

        async def reconcile(self, attempt):
            self.plans = (*self.plans, (attempt.resumed, attempt.planned_op, attempt.starting_op))
            return await super().reconcile(attempt)

    facts = killed_after(url, "plan", 3)
    assert [fact["fact"] for fact in facts] == ["launched", "detected", "planned"]
    assert_not_owned(url)
    assert await check(url) == []
    assert_true(url, facts)
    probing = Probing()
    async with open_supervisor(url, reconciler=probing) as supervisor:
        call = ToolBoundary(facts[0]["incarnation"], ModelTurn("turn-1", 1), "b1")
        decision = await supervisor.pane("pane").pre_tool_use(call)
        assert isinstance(decision, BlockPayload)
        assert decision.intent_id == facts[1]["intent"]
    assert probing.plans == ((True, "rebase-7", "start-7"),)
    await assert_survived(url, facts)


# -- at exact points ---------------------------------------------------------------------------------------------


async def passings(scenario: str) -> list[tuple[str, int]]:
    """Every passing of every point in the scenario."""
    chaos = Chaos()
    await getattr(intent_scenarios, scenario)("memory://", chaos)
    counts: Counter[str] = Counter()
    found = []
    for point in chaos.trace:
        counts[point] += 1
        found.append((point, counts[point]))
    return found


async def assert_survives_death_at(url: str, scenario: str, point: str, nth: int) -> None:
    with bridge("die", url, scenario, point, str(nth)) as doomed:
        assert doomed.ended() == (SIGKILLED, ""), doomed.complaints.read_text()
    await assert_survived(url, [])


@pytest.mark.parametrize(
    ("scenario", "point", "nth"),
    [
        ("soft_delivery", "intent.bind_soft/begun", 1),
        ("soft_delivery", "intent.bind_soft/committed", 1),
        ("soft_delivery", "intent.mark_delivered/written", 1),
        ("soft_delivery", "intent.acknowledge/committed", 1),
        ("restart_delivery", "intent.bind_restart/written", 1),
        ("restart_delivery", "intent.bind_restart/committed", 1),
        ("restart_delivery", "intent.accept_handshake/committed", 1),
    ],
)
async def test_killed_at_a_commit(url, scenario, point, nth):
    await assert_survives_death_at(url, scenario, point, nth)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["soft_delivery", "restart_delivery"])
async def test_killed_at_every_point(tmp_path, scenario, seed, sweep_seconds):
    end = time.monotonic() + sweep_seconds
    points = await passings(scenario)
    random.Random(seed).shuffle(points)
    for number, (point, nth) in enumerate(points):
        await assert_survives_death_at(f"sqlite:///{tmp_path}/{number}.db", scenario, point, nth)
        if time.monotonic() >= end:
            return


@pytest.mark.slow
async def test_killed_at_random_moments(tmp_path, seed, sweep_seconds):
    end = time.monotonic() + sweep_seconds
    chance = random.Random(seed)
    for number in itertools.count():
        url = f"sqlite:///{tmp_path}/{number}.db"
        facts: list[dict] = []
        for _ in range(chance.randint(1, 3)):
            facts += killed_after(url, "live", chance.randint(1, 60), chance.uniform(0, 0.02))
            assert await check(url) == []
            assert_true(url, facts)
            await finish(url)
        await assert_survived(url, facts)
        if time.monotonic() >= end:
            return
