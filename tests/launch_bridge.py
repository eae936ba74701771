"""A bridge that is killed in the middle of a start or a stop: `launch_bridge.py`, its orders on stdin, one a line.

An order is JSON: `kind` ("child", "tmux"), `server`, `folder`, `mode`, `pane`, `incarnation`, `do` ("start", "stop")
and `line`: before the so-manieth line of the launchers' own code, the bridge kills itself, as the kernel does; null: it
lives.  Each order is a fork of this process, which has imported everything; the answer is a line with the number of
lines it ran, or "killed".
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from launch_world import harness, new_launch

from fencepost.supervisor.bridge import launchers
from fencepost.supervisor.bridge.launchers import ChildProcessLauncher, TmuxLauncher
from fencepost.supervisor.bridge.launchers.held import HeldLauncher

HERE = str(Path(launchers.__file__).parent)
STEPS_OF_A_STOP = {"stop_processes", "until_empty", "signal_all"}


class Lines:
    """Counts lines of the launchers as they are run, and dies before the one it is told."""

    def __init__(self, deadly: int | None) -> None:
        self.count = 0
        self._deadly = deadly

    def __call__(self, frame, event, _):
        code = frame.f_code
        ours = code.co_filename.startswith(HERE) or code.co_name in STEPS_OF_A_STOP
        if not ours:
            return None
        if event == "line":
            self.count += 1
            if self.count == self._deadly:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def launcher_of(order) -> HeldLauncher:
    folder = Path(order["folder"])
    command_for = harness(folder, order["mode"])
    if order["kind"] == "tmux":
        return TmuxLauncher(command_for, folder / "state", server=order["server"], grace_seconds=0.05)
    return ChildProcessLauncher(command_for, folder / "state", grace_seconds=0.05)


def obey(order) -> int:
    """Carry an order out; the number of lines that took."""
    launcher = launcher_of(order)
    lines = Lines(order["line"])
    sys.settrace(lines)
    if order["do"] == "start":
        launcher._start(new_launch(order["pane"], incarnation_id=order["incarnation"]))
    else:
        launcher._stop(order["incarnation"], 0.05)
    sys.settrace(None)
    return lines.count


def fork(order) -> str:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, str(obey(order)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        counted = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {0: counted, -signal.SIGKILL: "killed"}.get(status, f"failed with {status}")


if __name__ == "__main__":
    for order in map(json.loads, sys.stdin):
        print(fork(order), flush=True)
