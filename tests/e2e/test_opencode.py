"""The real OpenCode under the real `fencepost serve`: what the model was sent, what ran, and what was written down.

OpenCode is told by a restart only: the calls beside a pending intent are blocked, the process is replaced, and the
saved text is the first input of its successor, in the same session.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from e2e.messages_api import Received, Turn, text, tool_use
from e2e.opencode_place import OpenCodePlace, bash, needs_opencode, opencode_place
from e2e.served_bridge import Reconciliations, ServedBridge, payload_of, served_bridge

from fencepost.supervisor.bridge.startup_tag import startup_of
from fencepost.supervisor.invariants import check_blocking

pytestmark = needs_opencode

PANE = "pane-1"
PARALLEL = [bash("a", "touch x"), bash("b", "touch y")]
WHERE = ["none", pytest.param("tmux", marks=pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux"))]
TOLD = "moved to main-2"
PATIENCE_SECONDS = 60.0


class World:
    """One pane of a served bridge with the real OpenCode in it, and the model behind that."""

    def __init__(self, there: OpenCodePlace, bridge: ServedBridge, reconciliations: Reconciliations, terminal: str):
        self.there = there
        self.api = there.api
        self.bridge = bridge
        self.reconciliations = reconciliations
        self.terminal = terminal
        self.server = ""

    def run(self, prompt: str = "go", **members: Any) -> str:
        about = {"cwd": str(self.there.project), "environment": self.there.environment(), "terminal": self.terminal}
        said = {"argv": ["opencode"], "prompt": prompt, **about, **members}
        return self.bridge.operate("PUT", f"panes/{PANE}/process", **said)["incarnation_id"]

    def process(self) -> dict[str, Any]:
        return self.bridge.operate("GET", f"panes/{PANE}/process")

    def kill(self) -> None:
        os.kill(self.process()["pid"], signal.SIGKILL)

    def detect(self, from_base: str = "main-1", to_base: str = "main-2") -> str:
        return self.bridge.detect(PANE, from_base, to_base)

    def told(self, received: Received) -> bytes:
        tag = startup_of(received.prompts[-1])
        assert tag is not None, received.prompts
        return tag.payload

    def types(self, said: str) -> None:
        """A person at the terminal says something."""
        tmux = ["tmux", "-L", self.server, "send-keys", "-t", self.server]
        subprocess.run([*tmux, "-l", said], check=True, timeout=PATIENCE_SECONDS)
        looked = ["tmux", "-L", self.server, "capture-pane", "-p", "-t", self.server]
        self.bridge.eventually(
            lambda: said in subprocess.run(looked, capture_output=True, text=True, check=True).stdout
        )
        subprocess.run([*tmux, "Enter"], check=True, timeout=PATIENCE_SECONDS)

    def screen(self) -> str:
        looked = ["tmux", "-L", self.server, "capture-pane", "-p", "-t", self.server]
        return subprocess.run(looked, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS).stdout

    def incarnations(self) -> list[str]:
        return [event.data["incarnation_id"] for event in self.bridge.events("incarnation.launched")]

    def sound(self) -> None:
        assert check_blocking(self.bridge.store) == []


@contextmanager
def world(terminal: str = "none") -> Iterator[World]:
    server = f"fpo-{uuid.uuid4().hex[:12]}"
    options = ("--tmux-server", server, "--stop-grace", "1", "--hook-deadline", "30")
    with opencode_place() as there, served_bridge(there.folder, *options) as (bridge, reconciliations):
        made = World(there, bridge, reconciliations, terminal)
        made.server = server
        try:
            bridge.start()
            yield made
            made.sound()
        finally:
            bridge.kill()  # or it would start again what is ended now
            there.end_processes()
            subprocess.run(["tmux", "-L", server, "kill-server"], capture_output=True, check=False)


@pytest.mark.parametrize("terminal", WHERE)
def test_calls_beside_an_intent_are_blocked_and_the_successor_is_told_in_the_same_session(terminal: str) -> None:
    with world(terminal) as there:
        first = Turn.held(*PARALLEL)
        there.api.play("go now", [bash("before", "touch before")], first)
        there.api.play(TOLD, [bash("c", "touch z")])
        there.run("go now")
        there.api.asked("go now", 1)
        session = there.bridge.eventually(lambda: there.process()["session_id"])
        there.detect()
        first.go.set()
        told = there.api.asked(TOLD, 0)
        assert there.told(told) == payload_of("main-2")
        assert "go now" in told.prompts[0]
        there.bridge.heard("intent.acknowledged")
        there.api.asked(TOLD, 1)
        assert there.there.files() == ["before", "z"]
        assert there.process()["session_id"] == session
        assert len(there.incarnations()) == 2


def test_a_told_process_that_is_killed_is_replaced_and_told_again_and_acknowledges_once() -> None:
    with world() as there:
        first, told = Turn.held(*PARALLEL), Turn.held(bash("c", "touch z"))
        there.api.play("go now", first)
        there.api.play(TOLD, told)
        there.run("go now")
        there.api.asked("go now", 0)
        there.detect()
        first.go.set()
        there.api.asked(TOLD, 0)
        second = there.process()
        there.kill()
        again = there.api.wait_for(lambda requests: _second(requests, TOLD))
        assert there.told(again) == payload_of("main-2")
        told.go.set()
        there.bridge.heard("intent.acknowledged")
        there.api.asked(TOLD, 1)
        assert there.there.files() == ["z"]
        launched = there.incarnations()
        assert len(launched) == 3
        assert launched[1] == second["incarnation_id"]
        assert len(there.bridge.events("intent.acknowledged")) == 1


def _second(requests: Sequence[Received], marker: str) -> Received | None:
    """The first request of the second process that was told."""
    same = [one for one in requests if (one.marker, one.turn) == (marker, 0)]
    tags = {one.prompts[-1]: one for one in same}  # each process has a startup delivery id of its own
    return list(tags.values())[1] if len(tags) > 1 else None


def test_while_no_bridge_runs_calls_pass_and_what_they_were_is_taken_in_by_the_next() -> None:
    with world() as there:
        first, second = Turn.held(*PARALLEL), Turn.held(bash("c", "touch late"))
        there.api.play("go now", first, second)
        there.api.play(TOLD, [bash("d", "touch z")])
        there.run("go now")
        there.api.asked("go now", 0)
        there.bridge.kill()
        first.go.set()
        there.api.asked("go now", 1)
        assert there.there.files() == ["x", "y"]
        there.bridge.start()
        there.detect()
        second.go.set()
        there.bridge.heard("intent.acknowledged")
        there.api.asked(TOLD, 1)
        assert there.there.files() == ["x", "y", "z"]


def test_a_nested_agents_call_beside_an_intent_is_blocked_and_the_process_replaced() -> None:
    with world() as there:
        nested = Turn.held(*PARALLEL)
        task = tool_use("n", "task", description="part", prompt="do a part", subagent_type="general")
        there.api.play("go now", [task])
        there.api.play("do a part", nested)
        there.api.play(TOLD, [bash("c", "touch z")])
        there.run("go now")
        there.api.asked("do a part", 0)
        there.detect()
        nested.go.set()
        assert there.told(there.api.asked(TOLD, 0)) == payload_of("main-2")
        there.bridge.heard("intent.acknowledged")
        there.api.asked(TOLD, 1)
        assert there.there.files() == ["z"]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux")
def test_an_answer_in_prose_is_proved_by_the_next_prompts_call_in_the_same_process() -> None:
    with world("tmux") as there:
        first = Turn.held(*PARALLEL)
        there.api.play("go now", first)
        there.api.play(TOLD, [text("I see that it moved.")])
        there.api.play("go on then", [bash("c", "touch z")])
        there.run("go now")
        there.api.asked("go now", 0)
        there.detect()
        first.go.set()
        there.api.asked(TOLD, 0)
        there.bridge.heard("intent.delivered")
        there.bridge.eventually(lambda: "I see that it moved." in there.screen())
        assert there.bridge.events("intent.acknowledged") == []
        there.types("go on then")
        there.bridge.heard("intent.acknowledged")
        there.api.asked("go on then", 1)
        assert there.there.files() == ["z"]
        assert len(there.incarnations()) == 2
