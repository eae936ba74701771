"""A bridge that kills itself, as the kernel does, at a step of a start: `deadly_start.py FOLDER HOW STEP`.

It starts the program in pane "left".  At a line on its stdin it replaces that, HOW being "run" (another program, in
another conversation) or "again", or ends it ("end"), and dies at the STEP; told "none" it ends with what that answers.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import trio
from attrs import evolve
from bridge.program_world import World

from fencepost.supervisor import Pane
from fencepost.supervisor.bridge.launchers import TmuxLauncher
from fencepost.supervisor.bridge.launching import PaneLauncher
from fencepost.supervisor.bridge.pane_processes import PaneProcesses
from fencepost.supervisor.bridge.panes import PaneBook, Terminal

STEPS: MappingProxyType[str, tuple[type, str, str]] = MappingProxyType(
    {
        "asked": (PaneBook, "intend", "before"),
        "intended": (PaneBook, "intend", "after"),
        "fenced": (PaneLauncher, "stop", "before"),
        "stopped": (PaneLauncher, "stop", "after"),
        "launched": (PaneLauncher, "start", "before"),
        "written": (PaneBook, "launched", "after"),
        "started": (TmuxLauncher, "start", "after"),
        "settled": (PaneProcesses, "_settled", "after"),
        "ending": (PaneBook, "unwanted", "after"),
        "ended": (Pane, "retire", "after"),
    }
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(owner: type, name: str, when: str) -> None:
    """Have the process die before, or after, the next call of this."""
    whole: Any = getattr(owner, name)

    @functools.wraps(whole)
    async def deadly(*arguments: object, **more: object) -> object:
        if when == "before":
            die()
        answer = await whole(*arguments, **more)
        die()
        return answer

    @functools.wraps(whole)
    def deadly_at_once(*arguments: object, **more: object) -> object:
        if when == "before":
            die()
        answer = whole(*arguments, **more)
        die()
        return answer

    setattr(owner, name, deadly if inspect.iscoroutinefunction(whole) else deadly_at_once)


async def main(folder: Path, how: str, step: str) -> None:
    place = World(folder)
    async with place.bridge() as life:
        spec = place.spec(prompt="go", terminal=Terminal.TMUX)
        await life.processes.run("left", spec)
        await trio.to_thread.run_sync(sys.stdin.readline)
        if step in STEPS:
            arm(*STEPS[step])
        if how == "run":
            other = (*spec.argv[:-1], "other")
            await life.processes.run("left", evolve(spec, argv=other, prompt="more"), replace=True)
        elif how == "again":
            await life.processes.again("left", "more", replace=True)
        else:
            await life.processes.end("left")


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), *sys.argv[2:])
