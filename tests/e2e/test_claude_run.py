"""The real Claude Code from one line of a shell: `fencepost run` and `fencepost detect`, and only its home prepared."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from e2e.claude_home import CLAUDE, ClaudeHome, claude_home, needs_claude
from e2e.messages_api import Turn, touch
from launch_world import eventually, marked, running

from fencepost.supervisor.bridge.launching import tmux_server_of

pytestmark = needs_claude

MAIN = "from fencepost.supervisor.cli import main; main(prog_name='fencepost')"


class Shell:
    """A person's shell in the workspace."""

    def __init__(self, home: ClaudeHome) -> None:
        self.home = home
        self.folder = home.folder / "bridge"
        self.environment = {**home.environment, "TMUX_TMPDIR": str(home.folder), "TERM": "xterm", "LANG": "C.UTF-8"}

    def fencepost(self, command: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        words = [sys.executable, "-P", "-W", "error", "-c", MAIN, command, "--folder", str(self.folder), *arguments]
        where = self.home.workspace
        return subprocess.run(words, env=self.environment, cwd=where, capture_output=True, timeout=120, check=False)

    def json(self, command: str, *arguments: str) -> Any:
        done = self.fencepost(command, "--json", *arguments)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def bridge_pid(self) -> int:
        found = re.search(rb"\d+", (self.folder / "bridge.db.lock").read_bytes())
        assert found is not None
        return int(found[0])

    def end(self) -> None:
        self.fencepost("stop", "--pane", "left")
        with suppress(OSError):
            pid = self.bridge_pid()
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: not running(pid))
        kill = ["tmux", "-L", tmux_server_of(self.folder), "kill-server"]
        subprocess.run(kill, env=self.environment, capture_output=True, check=False)


@contextmanager
def shell() -> Iterator[Shell]:
    with claude_home() as home:
        made = Shell(home)
        try:
            yield made
        finally:
            made.end()


@pytest.mark.parametrize(
    "terminal",
    [
        "--no-terminal",
        pytest.param("--detach", marks=pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")),
    ],
)
def test_from_one_line_to_an_acknowledged_intent_over_a_killed_bridge(terminal: str) -> None:
    with shell() as there:
        api = there.home.api
        asks = Turn.held(touch("a", "a.ran"), touch("b", "b.ran"), touch("c", "c.ran"))
        goes_on = Turn.held(touch("d", "d.ran"))
        api.play("go on", asks, goes_on)
        said = ("--pane", "left", terminal, "--prompt", "go on", "--", CLAUDE, "--allowedTools", "Bash")
        started = there.json("run", *said)
        api.asked("go on", 0)
        moved = ("--kind", "parent_advance", "--from", "main-1", "--to", "main-2")
        there.json("detect", "left", *moved, "--classification-op", "op-1", "--trigger-op", "push-1")
        asks.go.set()
        told = set(api.asked("go on", 1).results.values())
        assert len(told) == 1
        assert b"their base moved from main-1 to main-2" in told.pop()

        os.kill(there.bridge_pid(), signal.SIGKILL)
        again = there.json("run", "--pane", "left")
        assert again["incarnation_id"] == started["incarnation_id"]
        goes_on.go.set()
        api.asked("go on", 2)
        assert there.home.files() == ["d.ran"]
        intent = there.json("intents")  # one object a line, and there is one
        assert intent["state"] == "acknowledged"
        assert there.fencepost("check").returncode == 0
        assert there.fencepost("stop", "--pane", "left").returncode == 0
        assert marked(started["incarnation_id"]) == set()
