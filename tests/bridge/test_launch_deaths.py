"""A bridge is killed between any two steps of a start or a stop; its successor finds what there is, and ends it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import launch_bridge
import pytest
import trio
from launch_world import PARTS, eventually, marked, new_launch, running, told, view_of

KINDS = [
    "child",
    pytest.param(
        "tmux", marks=pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux program here")
    ),
]
EVERYDAY = 5
"""So many of the places to die, evenly spread; the sweep takes every one."""


class Bridges:
    """Bridges, one after the other, over one state folder; each may be killed."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, kind: str) -> None:
        self.process = process
        self.folder = folder
        self.kind = kind
        self.server = f"fencepost-test-{uuid.uuid4().hex[:12]}"

    def order(self, launch, mode: str, do: str, line: int | None = None) -> dict[str, object]:
        more = {"kind": self.kind, "server": self.server, "folder": str(self.folder), "mode": mode}
        return {**more, "pane": launch.pane_id, "incarnation": launch.incarnation_id, "do": do, "line": line}

    def do(self, *args) -> str:
        print(json.dumps(self.order(*args)), file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def successor(self, launch, mode: str):
        return launch_bridge.launcher_of(self.order(launch, mode, "stop"))


@pytest.fixture
def bridges(tmp_path, request):
    program = [sys.executable, launch_bridge.__file__]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        made = Bridges(process, tmp_path, request.param)
        yield made
        process.stdin.close()
        if made.kind == "tmux":
            subprocess.run(["tmux", "-L", made.server, "kill-server"], capture_output=True, check=False)


Places = Callable[[int], Iterable[int]]
"""Of so many lines, those to die before."""


def some(lines: int) -> Iterable[int]:
    return range(1, lines + 1, max(1, lines // EVERYDAY))


def all_in_time(seconds: float, seed: int) -> Places:
    """Every line, in an order of chance, for as long as there is time; some of them in any case."""

    def places(lines: int) -> Iterator[int]:
        deadline = time.monotonic() + seconds
        for number, line in enumerate(random.Random(seed).sample(range(1, lines + 1), lines)):
            if number < EVERYDAY or time.monotonic() < deadline:
                yield line

    return places


def died(answer: str, line: int) -> bool:
    """Whether the bridge died; it may have needed fewer lines this time, as what it waits for comes sooner."""
    if answer == "killed":
        return True
    assert int(answer) < line
    return False


def is_gone(bridges: Bridges, launch) -> bool:
    """Nothing with the mark runs, nor does anything that the harness has told of."""
    folder = bridges.folder / launch.incarnation_id
    pids = [int(path.read_text(encoding="ascii")) for path in folder.glob("*[!w]")]
    return not marked(launch.incarnation_id) and not any(map(running, pids))


async def killed_in_a_start(bridges: Bridges, mode: str, places: Places) -> None:
    lines = 0
    for _ in range(2):  # the second finds the terminal there, as those to come do
        whole = new_launch()
        lines = int(bridges.do(whole, mode, "start"))
        told(bridges.folder, whole, mode)
        await bridges.successor(whole, mode).stop(view_of(whole))
    killed = 0
    for line in places(lines):
        launch = new_launch()
        killed += died(bridges.do(launch, mode, "start", line), line)
        successor = bridges.successor(launch, mode)
        if successor._notes.read(launch.incarnation_id) is None:
            # The note is not there, so the gate was never opened: whatever waits at it ends by itself.
            eventually(lambda launch=launch: not marked(launch.incarnation_id))
            assert not list((bridges.folder / launch.incarnation_id).glob("*")), line
        await successor.stop(view_of(launch))
        assert is_gone(bridges, launch), line
    assert killed > 1
    again = new_launch()
    successor = bridges.successor(again, mode)
    await successor.start(again)
    told(bridges.folder, again, mode)
    assert set(successor.processes()) == {"pane"}
    await successor.stop(view_of(again))
    if bridges.kind == "tmux":
        assert set(successor.panes()) == {"pane"}


async def killed_in_a_stop(bridges: Bridges, mode: str, places: Places) -> None:
    whole = new_launch()
    bridges.do(whole, mode, "start")
    told(bridges.folder, whole, mode)
    lines = int(bridges.do(whole, mode, "stop"))
    assert is_gone(bridges, whole)
    killed = 0
    for line in places(lines):
        launch = new_launch()
        bridges.do(launch, mode, "start")
        told(bridges.folder, launch, mode)
        killed += died(bridges.do(launch, mode, "stop", line), line)
        await bridges.successor(launch, mode).stop(view_of(launch))
        assert is_gone(bridges, launch), line
    assert killed > 1


@pytest.mark.parametrize("bridges", KINDS, indirect=True)
async def test_killed_in_a_start(bridges: Bridges) -> None:
    await killed_in_a_start(bridges, "obeys", some)


@pytest.mark.parametrize("bridges", KINDS, indirect=True)
async def test_killed_in_a_stop(bridges: Bridges) -> None:
    await killed_in_a_stop(bridges, "ignores", some)


@pytest.mark.slow
@pytest.mark.parametrize("bridges", KINDS, indirect=True)
async def test_killed_at_each_step_of_a_start(bridges: Bridges, sweep_seconds: float, seed: int) -> None:
    await killed_in_a_start(bridges, "stray", all_in_time(sweep_seconds, seed))


@pytest.mark.slow
@pytest.mark.parametrize("mode", sorted(PARTS.keys() - {"left_unmarked", "left_daemon"}))
@pytest.mark.parametrize("bridges", KINDS, indirect=True)
async def test_killed_at_each_step_of_a_stop(bridges: Bridges, mode: str, sweep_seconds: float, seed: int) -> None:
    await killed_in_a_stop(bridges, mode, all_in_time(sweep_seconds, seed))


@pytest.mark.parametrize("bridges", ["child"], indirect=True)
async def test_a_harness_outlives_its_bridge_and_the_next_one_watches_it(bridges: Bridges) -> None:
    launch = new_launch()
    bridges.do(launch, "obeys", "start")
    leader = told(bridges.folder, launch, "obeys")["leader"]
    successor = bridges.successor(launch, "obeys")
    assert successor.processes()["pane"].pid == leader
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(successor.wait, launch.incarnation_id)
            await successor.stop(view_of(launch))
    assert not running(leader)
