"""What the tests of launchers share: badly behaved harnesses, and a look at the process table of their own."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from fencepost.supervisor import IncarnationView, Launch
from fencepost.supervisor.bridge.launchers import Command

CHILDREN = Path(__file__).with_name("launch_children.py")
PATIENCE_SECONDS = 30.0
PARTS = {
    "obeys": ("leader",),
    "ignores": ("leader",),
    "ends": ("leader",),
    "stray": ("leader", "stray"),
    "daemon": ("leader", "daemon"),
    "forgetful_daemon": ("leader", "daemon"),
    "other_group": ("leader", "other_group"),
    "zombie": ("leader", "zombie"),
    "stopped": ("leader",),
    "last_thread": ("leader",),
    "left_daemon": ("leader", "daemon", "member"),
    "left_session": ("leader", "daemon"),
    "left_unmarked": ("leader", "member"),
}


def new_launch(pane_id: str = "pane", **more) -> Launch:
    return Launch(
        **{
            "pane_id": pane_id,
            "incarnation_id": str(uuid.uuid4()),
            "epoch": 1,
            "harness": "claude-code",
            "session_id": None,
            "startup": None,
            **more,
        }
    )


def view_of(launch: Launch) -> IncarnationView:
    return IncarnationView(
        launch.incarnation_id, launch.pane_id, launch.epoch, launch.harness, launch.session_id, 0, None
    )


def harness(folder: Path, mode: str) -> Callable[[Launch], Command]:
    """A `command_for`: one of the badly behaved, its files in a folder for each incarnation."""

    def command_for(launch: Launch) -> Command:
        place = folder / launch.incarnation_id
        place.mkdir(parents=True, exist_ok=True)
        return Command((sys.executable, "-I", "-S", str(CHILDREN), str(place), mode))

    return command_for


def eventually(holds: Callable[[], object]) -> None:
    """Wait until it holds: facts of other processes can only be looked at."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


def told(folder: Path, launch: Launch, mode: str) -> dict[str, int]:
    """Wait until every process of the harness is what it is to be; their pids by part."""
    paths = [folder / launch.incarnation_id / part for part in PARTS[mode]]
    eventually(lambda: all(path.exists() for path in paths))
    return {path.name: int(path.read_text(encoding="ascii")) for path in paths}


def running(pid: int) -> bool:
    """Whether any thread of a process is not dead; read here on its own, task by task."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return False
    return any(_state(task) not in {"Z", "X", ""} for task in tasks)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def marked(incarnation_id: str) -> set[int]:
    """Who runs with this incarnation in its environment."""
    mark = f"FENCEPOST_INCARNATION={incarnation_id}".encode()
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
        except OSError:
            continue
    return {pid for pid in found if running(pid)}


def end(pid: int) -> None:
    """Clean up behind a test that was not to kill this one."""
    if running(pid):
        os.kill(pid, 9)
        eventually(lambda: not running(pid))
