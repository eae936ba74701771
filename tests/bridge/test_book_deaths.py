"""A bridge is killed between any two steps of a start or a stop; the next one's book tells what runs in the pane."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from bridge import deadly_start
from bridge.program_world import Life, Run, World, world
from launch_world import running

from fencepost.supervisor.bridge.panes import PaneBook, PaneSpec

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")]
DEATHS = [
    (how, step)
    for how in ("run", "again")
    for step in ("asked", "intended", "fenced", "stopped", "launched", "written", "started", "settled")
]


@pytest.fixture
async def place():
    async with world() as made:
        yield made


def deadly_bridge(place: World, how: str, step: str) -> subprocess.Popen[str]:
    program = [sys.executable, deadly_start.__file__, str(place.folder.parent), how, step]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(program, env=environment, stdin=subprocess.PIPE, text=True)


async def killed(place: World, how: str, step: str) -> Run:
    """The run that a bridge had started, which died as it was to replace it, or to end it."""
    with deadly_bridge(place, how, step) as bridge:
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await trio.to_thread.run_sync(bridge.communicate, "now\n")
    assert bridge.returncode == -signal.SIGKILL
    return run


def entry(place: World) -> PaneSpec:
    """What the next bridge will read of the pane."""
    spec = PaneBook(place.folder / "panes.json").get("left")
    assert spec is not None
    return spec


async def is_told(life: Life, run: Run, model: str) -> None:
    """The book speaks of this run, which is the one that lives in the pane, and is served."""
    spec, living = life.processes.book.get("left"), await life.processes.launcher.processes()
    assert spec is not None
    assert (spec.argv[-1], run.about["argv"][-1]) == (model, model)
    assert (spec.session_id, living["left"].pid) == (run.about["session"], run.about["pid"])
    assert await run.batch("b1") == [None]


@pytest.mark.parametrize(("how", "step"), DEATHS)
async def test_a_bridge_that_dies_in_a_start_leaves_a_book_that_tells_what_runs(place: World, how: str, step: str):
    old = await killed(place, how, step)
    model = "m" if how == "again" or step in {"asked", "intended", "fenced", "stopped"} else "other"
    if step in {"asked", "intended", "fenced", "stopped"}:
        assert (entry(place).argv[-1], entry(place).prompt) == ("m", None), "the book speaks of the old one till then"
    async with place.bridge() as life:
        book = life.processes.book
        assert book.intended("left") is None
        match step:
            case "asked" | "intended":
                await is_told(life, old, model)
            case "fenced" | "stopped":  # for good, so the runtime starts it anew, in its conversation
                again = await place.next_run()
                assert (again.about["session"], again.about["said"]) == (old.about["session"], None)
                await is_told(life, again, model)
            case "launched" | "written":  # and not started, so nothing runs; it is what is started by hand
                assert await life.processes.launcher.processes() == {}
                await life.until(lambda event: event.data.get("reason") == "the process ended")
                await life.processes.again("left")
                new = await place.next_run()
                assert new.about["said"] == "more"
                await is_told(life, new, model)
            case _:
                new = await place.next_run()
                assert new.about["said"] == "more"
                await is_told(life, new, model)
        assert running(old.about["pid"]) == (step in {"asked", "intended"})
        await life.processes.end("left")


@pytest.mark.parametrize("step", ["ending", "ended"])
async def test_a_bridge_that_dies_in_a_stop_is_followed_by_one_that_ends_it(place: World, step: str):
    old = await killed(place, "end", step)
    assert running(old.about["pid"])
    async with place.bridge() as life:
        assert await life.processes.launcher.processes() == {}
        assert not running(old.about["pid"])
        (retired,) = [one async for one in life.supervisor.events(follow=False) if one.kind == "incarnation.retired"]
        assert retired.data["reason"] == "ended by the operator"
