"""A bridge is killed between any two steps of a start or a stop; its successor finds what there is, and ends it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
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
EVERYDAY = 12
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


def places(lines: int, request) -> list[int]:
    """Before which lines to die."""
    everyone = list(range(1, lines + 1))
    if request.config.getoption("markexpr") == "slow":
        return everyone
    return everyone[:: max(1, lines // EVERYDAY)]


def is_gone(bridges: Bridges, launch) -> bool:
    """Nothing with the mark runs, nor does anything that the harness has told of."""
    folder = bridges.folder / launch.incarnation_id
    pids = [int(path.read_text(encoding="ascii")) for path in folder.glob("*[!w]")]
    return not marked(launch.incarnation_id) and not any(map(running, pids))


async def killed_in_a_start(bridges: Bridges, mode: str, request) -> None:
    whole = new_launch()
    lines = int(bridges.do(whole, mode, "start"))
    told(bridges.folder, whole, mode)
    assert lines > 20
    await bridges.successor(whole, mode).stop(view_of(whole))
    for line in places(lines, request):
        launch = new_launch()
        assert bridges.do(launch, mode, "start", line) == "killed", line
        successor = bridges.successor(launch, mode)
        if not successor.processes():
            # The note is not there, so the gate was never opened: whatever waits at it ends by itself.
            eventually(lambda launch=launch: not marked(launch.incarnation_id))
            assert not list((bridges.folder / launch.incarnation_id).glob("*")), line
        await successor.stop(view_of(launch))
        assert is_gone(bridges, launch), line
    again = new_launch()
    successor = bridges.successor(again, mode)
    await successor.start(again)
    told(bridges.folder, again, mode)
    assert set(successor.processes()) == {"pane"}
    await successor.stop(view_of(again))
    if bridges.kind == "tmux":
        assert set(successor.panes()) == {"pane"}


async def killed_in_a_stop(bridges: Bridges, mode: str, request) -> None:
    whole = new_launch()
    bridges.do(whole, mode, "start")
    told(bridges.folder, whole, mode)
    lines = int(bridges.do(whole, mode, "stop"))
    assert is_gone(bridges, whole)
    for line in places(lines, request):
        launch = new_launch()
        bridges.do(launch, mode, "start")
        told(bridges.folder, launch, mode)
        assert bridges.do(launch, mode, "stop", line) in {"killed", str(line - 1)}, line
        await bridges.successor(launch, mode).stop(view_of(launch))
        assert is_gone(bridges, launch), line


@pytest.mark.parametrize("bridges", KINDS, indirect=True)
async def test_killed_in_a_start(bridges: Bridges, request) -> None:
    await killed_in_a_start(bridges, "obeys", request)


@pytest.mark.parametrize("bridges", KINDS, indirect=True)
async def test_killed_in_a_stop(bridges: Bridges, request) -> None:
    await killed_in_a_stop(bridges, "ignores", request)


@pytest.mark.slow
@pytest.mark.parametrize("mode", sorted(PARTS.keys() - {"left_unmarked", "left_daemon"}))
@pytest.mark.parametrize("bridges", KINDS, indirect=True)
async def test_killed_at_each_step(bridges: Bridges, mode: str, request) -> None:
    await killed_in_a_start(bridges, mode, request)
    await killed_in_a_stop(bridges, mode, request)


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
