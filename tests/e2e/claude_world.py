"""One pane of the real `fencepost serve` with the real Claude Code in it, and the model behind that.

Nothing is told to the harness but through the bridge: its first input by its command line, everything else by its
hooks.  What tests assert comes from the store, from the operator's listener, and from what the model received.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from e2e.claude_home import CLAUDE, ClaudeHome, claude_home
from e2e.messages_api import Block, Received, tool_use, touch
from e2e.served_bridge import Reconciliations, ServedBridge, served_bridge
from launch_world import marked

from fencepost.supervisor.bridge.hook_settings import HookCommand
from fencepost.supervisor.bridge.startup_tag import startup_of
from fencepost.supervisor.invariants import check_blocking

PANE = "pane-1"
STARTUP = "<fencepost-startup"
LIFE = ["detected", "reconciling", "materialized", "delivered", "batch_completed", "acknowledged"]


def reads(*calls: str) -> list[Block]:
    """Calls that the harness runs side by side, because they change nothing."""
    return [tool_use(call, command=f"cat {call}.txt") for call in calls]


def touches(*calls: str) -> list[Block]:
    """Calls that the harness runs one after the other, and that leave a file if they run."""
    return [touch(call, f"{call}.ran") for call in calls]


class World:
    """One pane of a served bridge with the real harness in it, and the model behind that."""

    def __init__(self, home: ClaudeHome, bridge: ServedBridge, reconciliations: Reconciliations, terminal: str) -> None:
        self.home = home
        self.api = home.api
        self.bridge = bridge
        self.reconciliations = reconciliations
        self.terminal = terminal
        for call in "abc":
            (home.workspace / f"{call}.txt").write_text(f"what {call} reads", encoding="utf-8")

    def run(self, *, program: str = CLAUDE, options: Sequence[str] = (), **members: Any) -> str:
        """Start the harness in the pane; its incarnation."""
        argv = [program, *options, "--allowedTools", "Bash", "Agent"]
        about = {"cwd": str(self.home.workspace), "environment": self.home.environment, "prompt": "go on"}
        said = {"argv": argv, **about, "terminal": self.terminal, **members}
        return self.bridge.operate("PUT", f"panes/{PANE}/process", **said)["incarnation_id"]

    def run_again(self) -> str:
        """Start again what ran in the pane."""
        return self.bridge.operate("PUT", f"panes/{PANE}/process")["incarnation_id"]

    def process(self) -> dict[str, Any]:
        return self.bridge.operate("GET", f"panes/{PANE}/process")

    def tmux(self, command: str, *words: str) -> str:
        """What a person does who looks at the pane."""
        attach = self.process()["attach"]
        program, target = attach[: attach.index("has-session")], attach[-1]
        done = subprocess.run([*program, command, "-t", target, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def shows(self, wanted: str, no: str = "nothing of the kind") -> None:
        """Wait until the one, and not the other, is on the pane's screen."""

        def screen() -> bool:
            shown = self.tmux("capture-pane", "-p")
            return wanted in shown and no not in shown

        self.bridge.eventually(screen, lambda: f"{wanted} without {no} on {self.tmux('capture-pane', '-p')}")

    def types(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def submits(self, text: str) -> None:
        """Type a prompt and hand it in."""
        self.types(text)
        self.shows(text)
        self.types("Enter")

    def kill(self) -> int:
        """Kill the harness, and nobody else."""
        pid = self.process()["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def hooks(self, incarnation: str) -> list[int]:
        """The hook programs of this incarnation that run now, without the shells that started them."""
        command = HookCommand()
        program = [word.encode() for word in (command.interpreter, "-I", "-S", command.program)]
        return [pid for pid in marked(incarnation) if words_of(pid)[: len(program)] == program]

    def ran(self) -> list[str]:
        """The calls that ran, of those that leave a file."""
        return [name.removesuffix(".ran") for name in self.home.files() if name.endswith(".ran")]

    def lives(self) -> list[str]:
        """How the intents got on, in order."""
        kinds = [one.kind for one in self.bridge.events()]
        return [kind.removeprefix("intent.") for kind in kinds if kind.startswith("intent.")]

    def incarnations(self) -> list[str]:
        return [str(one.data["incarnation_id"]) for one in self.bridge.events("incarnation.launched")]


def words_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def session_of(received: Received) -> str:
    return json.loads(received.body["metadata"]["user_id"])["session_id"]


def told_first(received: Received) -> list[bytes]:
    """The payloads of the startup inputs in what the model received."""
    tags = map(startup_of, received.prompts)
    return [tag.payload for tag in tags if tag is not None]


TYPES = {"send-keys", "send-prefix", "paste-buffer", "set-buffer", "load-buffer"}
"""The commands of tmux by which something can be typed into a pane."""


@contextmanager
def overheard_tmux(folder: Path) -> Iterator[Callable[[], set[str]]]:
    """Let whoever is started meanwhile find a tmux that writes down what it is asked; hands out the words of that."""
    log, program = folder / "tmux.log", folder / "bin" / "tmux"
    log.touch()
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {shutil.which("tmux")} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    with patch.dict(os.environ, PATH=f"{program.parent}:{os.environ['PATH']}"):
        yield lambda: set(log.read_text(encoding="utf-8").split())


@contextmanager
def world(terminal: str = "none", *options: str) -> Iterator[World]:
    server = f"fencepost-test-{uuid.uuid4().hex[:12]}"
    options = ("--tmux-server", server, *options)
    with claude_home() as home, served_bridge(home.folder, *options) as (bridge, reconciliations):
        made = World(home, bridge, reconciliations, terminal)
        with overheard_tmux(home.folder) as asked_of_tmux:
            bridge.start()
        try:
            yield made
            assert check_blocking(bridge.store) == []
            asked = asked_of_tmux()
            assert not asked & TYPES
            assert ("respawn-pane" in asked) == (terminal == "tmux")
        finally:
            bridge.kill()
            for incarnation in made.incarnations():
                for pid in marked(incarnation):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["tmux", "-L", server, "kill-server"], capture_output=True, check=False)


NEEDS_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
EVERYWHERE = pytest.mark.parametrize("terminal", ["none", pytest.param("tmux", marks=NEEDS_TMUX)])
