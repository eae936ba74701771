"""What a process that ends by itself leaves running, a tool in the background, is ended before anything follows it."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
from contextlib import closing

import pytest
import trio
import trio.testing
from bridge.program_world import Life, Run, World, moved, world
from launch_world import end, eventually, running

from fencepost.mailbox.errors import StoreFault
from fencepost.supervisor import ActorQuarantined, Applied, LaunchBlocked, open_supervisor
from fencepost.supervisor.bridge.launchers.child import ChildProcessLauncher
from fencepost.supervisor.bridge.launching import PaneLauncher
from fencepost.supervisor.bridge.panes import PaneBook, PaneSpec, Restart, Terminal
from fencepost.supervisor.bridge.watching import Watcher

NEEDS_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
WHERE = [Terminal.NONE, pytest.param(Terminal.TMUX, marks=NEEDS_TMUX)]
SLEEPS = ["sleep", "1000"]


@pytest.fixture
async def place():
    async with world() as made:
        yield made
    for run in made.driver.runs:
        for pid in run.left:
            end(pid)


async def started(life: Life, place: World, pane_id: str, terminal: Terminal) -> tuple[Run, int]:
    """A run of the program that has left a process running, which has a session of its own."""
    await life.processes.run(pane_id, place.spec(prompt="go", terminal=terminal))
    run = await place.next_run()
    return run, await run.leave(*SLEEPS)


async def until_forgotten(place: World, notes: int = 0) -> None:
    """A note is removed when nothing is left of its process; so many remain."""
    folder = place.folder / "launcher" / "processes"
    await trio.to_thread.run_sync(eventually, lambda: len(list(folder.glob("*.json"))) == notes)


@pytest.mark.parametrize("terminal", WHERE)
async def test_it_is_ended_though_nothing_is_started_in_its_pane(place: World, terminal, caplog):
    caplog.set_level(logging.INFO, "fencepost.bridge")
    async with place.bridge() as life:
        run, left = await started(life, place, "left", terminal)
        other, others = await started(life, place, "right", terminal)
        os.kill(run.about["pid"], signal.SIGKILL)
        await until_forgotten(place, notes=1)
        assert (running(left), running(others), running(other.about["pid"])) == (False, True, True)
        incarnation_id = run.about["environ"]["FENCEPOST_INCARNATION"]
        said = f"pane 'left': what incarnation {incarnation_id!r} had left running is ended: {left}"
        assert [one.message for one in caplog.records if "had left" in one.message] == [said]
        assert await life.processes.end("left") is False
        await life.processes.end("right")


@pytest.mark.parametrize("terminal", WHERE)
async def test_what_was_left_while_no_bridge_ran_is_ended_before_the_next_one_serves(place: World, terminal):
    async with place.bridge() as life:
        run, left = await started(life, place, "left", terminal)
    os.kill(run.about["pid"], signal.SIGKILL)
    assert running(left)
    async with place.bridge() as life:
        assert not running(left)
        assert (await life.kind("incarnation.retired")).data["reason"] == "the process ended"


async def test_a_bridge_that_died_between_the_retirement_and_the_end_is_followed_by_one_that_ends_it(
    place: World, monkeypatch
):
    async with place.bridge() as life:
        run, left = await started(life, place, "left", Terminal.NONE)
        await life.pane.detect(moved())
        with monkeypatch.context() as patched:
            patched.setattr(PaneLauncher, "end", forever)
            os.kill(run.about["pid"], signal.SIGKILL)
            await life.kind("incarnation.retired")
            assert running(left)
    ended = []
    start = ChildProcessLauncher.start

    async def observed(launcher: ChildProcessLauncher, launch) -> None:
        ended.append(not running(left))
        await start(launcher, launch)

    monkeypatch.setattr(ChildProcessLauncher, "start", observed)
    async with place.bridge() as life:
        assert not running(left)
        assert "main-2" in (await place.next_run()).about["said"]
        assert ended == [True]
        await life.processes.end("left")


async def test_a_note_of_a_process_that_ended_is_told_until_nothing_is_left_of_it(place: World):
    async with place.bridge() as life:
        run, left = await started(life, place, "left", Terminal.NONE)
    launcher = life.processes.launcher._child
    assert launcher.ended() == []
    os.kill(run.about["pid"], signal.SIGKILL)
    eventually(launcher.ended)
    assert [one.pid for one in launcher.ended()] == [run.about["pid"]]
    async with place.bridge():
        pass
    assert (launcher.ended(), running(left)) == ([], False)


async def test_what_may_be_a_stranger_is_left_alone_and_nothing_is_started_beside_it(place: World, caplog):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        unmarked = await run.leave("env", "-i", *SLEEPS, own_session=False)
    os.kill(run.about["pid"], signal.SIGKILL)
    # Collected, as it is by init where its bridge died: its number is free from here on.
    await trio.to_thread.run_sync(os.waitpid, run.about["pid"], 0)
    async with place.bridge() as life:
        assert any("may be its children or strangers" in one.message for one in caplog.records)
        await life.kind("incarnation.retired")
        with pytest.raises(LaunchBlocked, match="may be its children or strangers"):
            await life.processes.again("left", "go on")
        assert running(unmarked)
        end(unmarked)
        await life.processes.again("left", "go on")
        assert (await place.next_run()).about["said"] == "go on"
        await life.processes.end("left")


async def forever(*_: object) -> None:
    await trio.sleep_forever()


class Pane:
    """A pane, a supervisor and a launcher, who write down what they are asked."""

    def __init__(self, fault: Exception | None) -> None:
        self.fault = fault
        self.asked: list[str] = []
        self.over = trio.Event()

    def pane(self, _pane_id: str) -> Pane:
        return self

    async def unresolved_intents(self) -> list[object]:
        return []

    async def launch_failed(self, _incarnation_id: str, _reason: str) -> Applied:
        self.asked.append("launch_failed")
        if self.fault is not None:
            raise self.fault
        return Applied()

    async def wait(self, _incarnation_id: str) -> None:
        await trio.lowlevel.checkpoint()

    async def end(self, pane_id: str, incarnation_id: str) -> None:
        self.asked.append(f"end {incarnation_id} in {pane_id}")
        if self.fault is not None:
            self.over.set()

    async def start_again(self, _pane_id: str, _ended: str | None) -> None:
        self.asked.append("start_again")
        self.over.set()


@pytest.mark.parametrize(
    ("fault", "then"),
    [(None, ["start_again"]), (ActorQuarantined("pane:left"), []), (StoreFault("no space is left"), [])],
)
async def test_it_is_ended_before_a_successor_is_started_and_also_where_the_pane_cannot_be_asked(fault, then):
    pane, book = Pane(fault), PaneBook()
    spec = PaneSpec(argv=("claude",), cwd="/", environment={}, harness="claude-code", restart=Restart.ALWAYS)
    book.put("left", spec)
    watcher = Watcher(pane, pane, book, pane.start_again, forever)
    watcher.watch("left", "incarnation-1")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            await pane.over.wait()
            nursery.cancel_scope.cancel()
    assert pane.asked == ["launch_failed", "end incarnation-1 in left", *then]


class Endless:
    """A launcher whose processes go on until they are ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.over = trio.Event()

    async def wait(self, _incarnation_id: str) -> None:
        await trio.sleep_forever()

    async def end(self, pane_id: str, _incarnation_id: str) -> None:
        self.ended.append(pane_id)
        if pane_id == "last":
            self.over.set()


async def test_a_damaged_event_hides_no_other_retirement(tmp_path, caplog):
    path = tmp_path / "store.db"
    async with open_supervisor(f"sqlite:///{path}") as supervisor:
        for pane_id in ("old", "older"):
            await supervisor.pane(pane_id).launch("plain")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE events SET data = '{' WHERE seq = 1")
        connection.execute(
            "CREATE TRIGGER harm AFTER INSERT ON events"
            " WHEN NEW.address = 'pane:harmed' AND NEW.kind = 'incarnation.retired'"
            " BEGIN UPDATE events SET data = '{' WHERE seq = NEW.seq; END"
        )
    launcher = Endless()
    async with open_supervisor(f"sqlite:///{path}") as supervisor:
        watcher = Watcher(supervisor, launcher, PaneBook(), forever, forever)
        launched = {}
        for pane_id in ("first", "harmed", "last"):
            launched[pane_id] = (await supervisor.pane(pane_id).launch("plain")).incarnation_id
            watcher.watch(pane_id, launched[pane_id])
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watcher.run)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(watcher.end_the_fenced)
                for pane_id, incarnation_id in launched.items():
                    await supervisor.pane(pane_id).retire(incarnation_id, "a test ends it")
                await launcher.over.wait()
                nursery.cancel_scope.cancel()
    assert sorted(launcher.ended) == ["first", "last"]
    assert [one.message.split(";")[0] for one in caplog.records if one.levelno >= logging.WARNING] == [
        "event 1 cannot be read",
        "event 7 cannot be read",
    ]
