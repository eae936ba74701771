"""A pane that was ended stays without a process until a person starts one, whatever the runtime had decided before."""

from __future__ import annotations

import json
import math
import shlex
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from attrs import evolve
from bridge.claude_program import install
from bridge.program_world import Life, Run, World, moved, world

from fencepost.supervisor import Applied, IntentState, Launch, Reason, Refused
from fencepost.supervisor.bridge import pane_processes
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.launchers import LaunchError
from fencepost.supervisor.bridge.launching import PaneLauncher
from fencepost.supervisor.bridge.operator_api import ACTIONS
from fencepost.supervisor.bridge.pane_processes import PaneProcesses
from fencepost.supervisor.bridge.panes import PaneBook, PaneSpec, Restart
from fencepost.supervisor.bridge.seats import NotThere, Seats


@pytest.fixture
async def place():
    async with world() as made:
        install(made.program.parent, "9.9.9")  # a version nobody proved: it is told by a restart
        yield made


def reconciles_at_a_word(place: World) -> tuple[str, Path]:
    """A reconciling program that waits for a file, and the file."""
    answer = {"result_op": "op-2", "workspace_commit": "c", "payload": "the files moved"}
    line = json.dumps({"reconciled": {**answer, "anchor": {"change_id": "c", "commit_id": "c", "op_id": "o"}}})
    word = place.home / "word"
    script = f"read attempt; while [ ! -e {word} ]; do sleep 0.02; done; echo {shlex.quote(line)}"
    return shlex.join(["sh", "-c", script]), word


async def blocked(life: Life, place: World) -> Run:
    """A process that the runtime is about to replace."""
    first = await life.processes.run("left", place.spec(prompt="go"))
    run = await place.next_run()
    assert await run.batch("a1") == [None]
    await life.pane.detect(moved())
    run.tell(batch=["b1"])
    await life.kind("incarnation.retired")
    with trio.fail_after(30):
        await life.processes.launcher.wait(first.incarnation_id)
    return run


async def is_not_started(life: Life) -> None:
    """What the runtime had decided to start was launched, and declined."""
    second = await life.until(lambda event: event.kind == "incarnation.launched" and event.data["epoch"] == 2)
    over = await life.until(lambda event: event.kind == "incarnation.retired" and event.data["epoch"] == 2)
    assert over.data["reason"] == "ended by the operator"
    assert second.data["startup_delivery_id"] is not None
    assert await life.processes.launcher.processes() == {}
    (intent,) = await life.pane.intents()
    assert (intent.state, intent.exhausted_at) == (IntentState.MATERIALIZED, None)
    assert [one async for one in life.supervisor.events(over.seq, follow=False)] == []


async def is_started_by_hand(life: Life, place: World, old: Run) -> None:
    launch = await life.processes.again("left")
    new = await place.next_run()
    assert launch.epoch == 3
    assert (new.about["environ"]["FENCEPOST_INCARNATION"], new.about["session"]) == (
        launch.incarnation_id,
        old.about["session"],
    )
    assert "the files moved" in new.about["said"]
    assert await new.batch("c1") == [None]
    await life.processes.end("left")


async def test_a_stop_reaches_a_successor_that_waits_for_its_reconciliation(place: World):
    reconcile, word = reconciles_at_a_word(place)
    async with place.bridge(reconcile=reconcile) as life:
        old = await blocked(life, place)
        await life.kind("intent.reconciling")
        await life.processes.end("left")
        word.touch()
        await is_not_started(life)
        await is_started_by_hand(life, place, old)


async def test_a_stop_reaches_a_successor_that_is_launched_and_not_begun(place: World, monkeypatch):
    reconcile, word = reconciles_at_a_word(place)
    asked, go_on, start = trio.Event(), trio.Event(), PaneLauncher.start

    async def start_late(launcher: PaneLauncher, launch: Launch) -> None:
        if launch.epoch == 2:
            asked.set()
            await go_on.wait()
        await start(launcher, launch)

    monkeypatch.setattr(PaneLauncher, "start", start_late)
    word.touch()
    async with place.bridge(reconcile=reconcile) as life:
        old = await blocked(life, place)
        await asked.wait()
        await life.processes.end("left")
        go_on.set()
        await is_not_started(life)
        await is_started_by_hand(life, place, old)


async def test_a_stop_holds_for_the_next_bridge_which_comes_to_the_successor(place: World):
    reconcile, word = reconciles_at_a_word(place)
    async with place.bridge(reconcile=reconcile) as life:
        old = await blocked(life, place)
        await life.kind("intent.reconciling")
        await life.processes.end("left")
    word.touch()
    async with place.bridge(reconcile=reconcile) as life:
        await is_not_started(life)
        await is_started_by_hand(life, place, old)


async def test_a_successor_that_a_dead_bridge_had_not_come_to_decline_is_declined_by_the_next(
    place: World, monkeypatch
):
    reconcile, word = reconciles_at_a_word(place)
    declining = trio.Event()

    async def decline(*_: object) -> None:
        declining.set()
        await trio.sleep_forever()

    async with place.bridge(reconcile=reconcile) as life:
        await blocked(life, place)
        await life.kind("intent.reconciling")
        await life.processes.end("left")
        monkeypatch.setattr(life.processes.launcher, "_decline", decline)
        word.touch()
        await declining.wait()
    async with place.bridge(reconcile=reconcile) as life:
        over = await life.until(lambda event: event.kind == "incarnation.retired" and event.data["epoch"] == 3)
        assert over.data["reason"] == "ended by the operator"
        assert await life.processes.launcher.processes() == {}
        assert [one async for one in life.supervisor.events(over.seq, follow=False)] == []


# -- a start that waits for the pane's files ---------------------------------------------------------------------------


async def owed(life: Life, place: World) -> Run:
    """A pane without a process, whose next start must wait for its files."""
    await life.processes.run("left", place.spec(prompt="go", restart=Restart.NEVER))
    run = await place.next_run()
    assert await run.batch("a1") == [None]
    await life.processes.end("left")
    await life.pane.detect(moved())
    return run


class Starts:
    """Starts by hand, and why they came to nothing."""

    def __init__(self, life: Life, nursery: trio.Nursery) -> None:
        self.life = life
        self.nursery = nursery
        self.says, self.said = trio.open_memory_channel[str](math.inf)

    async def begin(self, *, replace: bool = False) -> None:
        """One that waits for the pane's files, or for its turn."""
        self.nursery.start_soon(self._start, replace)
        await self.life.kind("intent.reconciling")
        await trio.testing.wait_all_tasks_blocked()

    async def all(self, count: int) -> list[str]:
        """What came of so many, in the order in which it was known."""
        return [await self.said.receive() for _ in range(count)]

    async def _start(self, replace: bool) -> None:
        try:
            launch = await self.life.processes.again("left", replace=replace)
        except LaunchError as error:
            await self.says.send(str(error))
        else:
            await self.says.send(f"epoch {launch.epoch}")


@pytest.fixture
def at_once(monkeypatch):
    """A start by hand is in its pane's queue as soon as it is asked for: the program's version is known."""

    async def known(_spec: PaneSpec) -> str:
        return "9.9.9"

    monkeypatch.setattr(pane_processes, "_version", known)


async def test_a_stop_ends_the_wait_of_all_who_were_to_start_something(place: World, at_once):
    reconcile, word = reconciles_at_a_word(place)
    async with place.bridge(reconcile=reconcile) as life, trio.open_nursery() as nursery:
        old, starts = await owed(life, place), Starts(life, nursery)
        await starts.begin()
        await starts.begin()
        await life.processes.end("left")
        assert not word.exists()
        assert not life.processes.book.wants("left")
        assert [said.endswith("it is not started") for said in await starts.all(2)] == [True] * 2
        word.touch()
        await is_not_started(life)
        await is_started_by_hand(life, place, old)


async def test_a_start_after_such_a_stop_is_not_taken_for_the_one_that_was_called_off(place: World, at_once):
    reconcile, word = reconciles_at_a_word(place)
    async with place.bridge(reconcile=reconcile) as life, trio.open_nursery() as nursery:
        starts = Starts(life, nursery)
        await owed(life, place)
        await starts.begin()
        await life.processes.end("left")
        await starts.begin()
        await starts.begin(replace=True)
        word.touch()
        await is_not_started(life)
        run = await place.next_run()
        assert await run.batch("c1") == [None]
        assert ((await starts.all(3))[-1], len(place.driver.runs)) == ("epoch 3", 2)
        await life.processes.end("left")


async def test_a_stop_reaches_a_start_whose_program_has_not_told_its_version_yet(place: World, monkeypatch):
    asked, answers = trio.Event(), trio.Event()

    async def slow(_spec: PaneSpec) -> str:
        asked.set()
        await answers.wait()
        return "9.9.9"

    monkeypatch.setattr(pane_processes, "_version", slow)
    async with place.bridge() as life, trio.open_nursery() as nursery:

        async def run() -> None:
            with pytest.raises(LaunchError, match="it is not started"):
                await life.processes.run("left", place.spec(prompt="go"))

        nursery.start_soon(run)
        await asked.wait()
        assert not await life.processes.end("left")
        answers.set()


async def test_a_start_by_hand_takes_precedence_over_one_of_the_watcher_that_waits(place: World, monkeypatch):
    reconcile, word = reconciles_at_a_word(place)
    async with place.bridge(reconcile=reconcile) as life, trio.open_nursery() as nursery:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
        run.tell(exit=0)
        await life.kind("intent.reconciling")
        called_off, unwanted = trio.Event(), PaneBook.unwanted

        def call_off(book: PaneBook, pane_id: str) -> None:
            unwanted(book, pane_id)
            trio.from_thread.run_sync(called_off.set)

        monkeypatch.setattr(PaneBook, "unwanted", call_off)
        starts = Starts(life, nursery)
        await starts.begin()
        await called_off.wait()
        word.touch()
        run = await place.next_run()
        assert "the files moved" in run.about["said"]
        assert await run.batch("c1") == [None]
        assert (await starts.all(1), len(place.driver.runs)) == (["epoch 3"], 2)
        await life.processes.end("left")


# -- what else a pane that was ended is told ---------------------------------------------------------------------------


SPEC = PaneSpec(argv=("claude",), cwd="/", environment={}, harness="claude-code", restart=Restart.ALWAYS, wanted=True)


def processes_of(book: PaneBook, **launcher: object) -> PaneProcesses:
    return PaneProcesses(SimpleNamespace(), SimpleNamespace(**launcher), book, {})


@pytest.fixture
def book():
    made = PaneBook()
    made.put("left", evolve(SPEC, wanted=False))
    return made


class Rearming:
    """A supervisor whose pane is told to rearm, and who looks at the book then."""

    def __init__(self, book: PaneBook, answer: object) -> None:
        self.book = book
        self.answer = answer
        self.wanted: list[bool] = []

    def pane(self, _pane_id: str) -> Rearming:
        return self

    async def rearm(self, _intent_id: str) -> object:
        await trio.lowlevel.checkpoint()
        self.wanted.append(self.book.wants("left"))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def discard(self, _intent_id: str, _approval: str) -> object:
        return await self.rearm("")


@pytest.mark.parametrize(
    ("answer", "is_wanted"),
    [(Applied(), True), (Refused(Reason.NOT_EXHAUSTED, "why"), False), (ValueError("malformed"), False)],
)
async def test_a_rearmed_pane_may_be_given_processes_again_though_it_was_ended(book, answer, is_wanted):
    rearming = Rearming(book, answer)
    bridge = Bridge(rearming, Seats(), processes=processes_of(book))
    with pytest.raises(ValueError, match="malformed") if isinstance(answer, ValueError) else nullcontext():
        assert await bridge.decide(ACTIONS["rearm"], "left", {"intent_id": "intent-1"}) == answer
    assert (rearming.wanted, book.wants("left")) == ([True], is_wanted)


async def test_a_discarded_intent_starts_nothing_in_a_pane_that_was_ended(book):
    rearming = Rearming(book, Applied())
    bridge = Bridge(rearming, Seats(), processes=processes_of(book))
    fields = {"intent_id": "intent-1", "approval": "token"}
    assert await bridge.decide(ACTIONS["discard"], "left", fields) == Applied()
    assert (rearming.wanted, book.wants("left")) == ([False], False)


async def test_a_pane_that_was_given_another_process_is_not_left_without_one(book):
    book.put("left", SPEC)
    there = processes_of(book)
    there.started("left", "incarnation-2")
    await there.leave("left", "incarnation-1")
    assert book.wants("left")
    await there.leave("left", "incarnation-2")
    assert not book.wants("left")


@pytest.mark.parametrize(
    ("starting", "living", "is_wanted"),
    [(None, {}, False), ("incarnation-1", {}, False), ("incarnation-2", {}, True), (None, {"left": None}, True)],
)
async def test_a_start_that_failed_leaves_its_pane_empty_unless_another_process_is_there(
    book, starting, living, is_wanted
):
    async def processes() -> dict[str, None]:
        await trio.lowlevel.checkpoint()
        return living

    book.put("left", SPEC)
    there = processes_of(book, processes=processes, current=lambda _pane_id: starting)
    there.started("left", "incarnation-1")
    await there._not_started("left")
    assert book.wants("left") == is_wanted


# -- panes of which nothing is known -----------------------------------------------------------------------------------


async def test_a_first_start_that_is_called_off_uses_up_one_attempt_and_not_all(place: World):
    reconcile, word = reconciles_at_a_word(place)
    async with place.bridge(reconcile=reconcile) as life, trio.open_nursery() as nursery:
        await life.pane.detect(moved())

        async def run() -> None:
            with pytest.raises(LaunchError):
                await life.processes.run("left", place.spec(prompt="go"))

        nursery.start_soon(run)
        await life.kind("intent.reconciling")
        await trio.testing.wait_all_tasks_blocked()
        await life.processes.end("left")
        word.touch()
        await life.until(lambda event: event.kind == "incarnation.retired" and event.data["epoch"] == 1)
        await trio.testing.wait_all_tasks_blocked()
        (intent,) = await life.pane.intents()
        assert (intent.exhausted_at, intent.startup_attempts) == (None, 1)
        await life.processes.run("left", place.spec(prompt="go"))
        assert "the files moved" in (await place.next_run()).about["said"]
        await life.processes.end("left")


async def test_an_agent_whose_book_was_lost_is_not_replaced_by_nothing_until_its_attempts_are_gone(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
    (place.folder / "panes.json").unlink()
    async with place.bridge() as life:
        await life.pane.detect(moved())
        run.tell(batch=["b1"])
        await life.until(lambda event: event.kind == "incarnation.retired" and event.data["epoch"] == 2)
        await trio.testing.wait_all_tasks_blocked()
        (intent,) = await life.pane.intents()
        assert (intent.exhausted_at, intent.startup_attempts) == (None, 1)
        await life.processes.end("left")


# -- what a start by hand must not cost --------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
async def test_a_start_by_hand_that_cannot_be_leaves_the_restart_that_is_owed(again: bool, place: World):
    reconcile, word = reconciles_at_a_word(place)
    async with place.bridge(reconcile=reconcile) as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
        run.tell(exit=0)
        await life.kind("intent.reconciling")
        await trio.testing.wait_all_tasks_blocked()
        if again:
            place.program.rename(place.program.with_name("away"))
            with pytest.raises(LaunchError):
                await life.processes.again("left")
            place.program.with_name("away").rename(place.program)
        else:
            mistyped = evolve(place.spec(prompt="x"), argv=(f"{place.program}-mistyped",))
            with pytest.raises(LaunchError):
                await life.processes.run("left", mistyped)
        assert life.processes.book.wants("left")
        word.touch()
        assert "the files moved" in (await place.next_run()).about["said"]
        await life.processes.end("left")


async def test_a_rearm_does_not_wait_for_a_start_that_waits_for_its_files(place: World):
    reconcile, word = reconciles_at_a_word(place)
    async with place.bridge(reconcile=reconcile) as life, trio.open_nursery() as nursery:
        await life.pane.detect(moved())
        nursery.start_soon(life.processes.run, "left", place.spec(prompt="go"))
        await life.kind("intent.reconciling")
        await trio.testing.wait_all_tasks_blocked()
        (intent,) = await life.pane.intents()
        with trio.fail_after(20):
            answer = await life.processes.rearmed("left", lambda: life.pane.rearm(intent.intent_id))
        assert (type(answer), answer.reason) == (Refused, Reason.NOT_EXHAUSTED)
        word.touch()
        await place.next_run()
        await life.processes.end("left")


async def test_a_process_that_is_gone_before_it_is_a_member_is_a_failed_start(place: World, monkeypatch):
    def gone(_seats: Seats, _pane_id: str, _pid: int) -> None:
        raise NotThere("no such process")

    async with place.bridge() as life:
        with monkeypatch.context() as patch:
            patch.setattr(Seats, "occupy", gone)
            with pytest.raises(LaunchError, match="cannot be made its member: no such process"):
                await life.processes.run("left", place.spec(prompt="go"))
        await life.processes.end("left")
