"""The real Codex under the real `fencepost serve`: what the model was sent, what ran, and what was written down.

Codex is told by a restart only: the calls beside a pending intent are blocked, the process is replaced, and the saved
text is the first input of its successor, in the same conversation.  What is asserted comes from the store, from the
operator's listener, and from what the model received.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.codex_place import CodexPlace, codex_place, needs_codex
from e2e.responses_api import Held, Item, Turn, calls, says, shell
from e2e.served_bridge import Reconciliations, ServedBridge, payload_of, served_bridge
from launch_world import running

from fencepost.supervisor.bridge import hook
from fencepost.supervisor.bridge.hook_settings import remove_settings
from fencepost.supervisor.bridge.startup_tag import startup_of
from fencepost.supervisor.invariants import check_blocking

pytestmark = needs_codex

PANE = "pane-1"
BYPASS = "--dangerously-bypass-hook-trust"
PARALLEL = [shell("a", "touch x"), shell("b", "touch y")]
WHERE = ["none", pytest.param("tmux", marks=pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux"))]
PATIENCE_SECONDS = 60.0


class World:
    """One pane of a served bridge with the real Codex in it, and the model behind that."""

    def __init__(self, there: CodexPlace, bridge: ServedBridge, reconciliations: Reconciliations, terminal: str):
        self.there = there
        self.api = there.api
        self.bridge = bridge
        self.reconciliations = reconciliations
        self.terminal = terminal
        self.server = ""

    def types(self, text: str) -> None:
        """A person at the terminal says something."""
        tmux = ["tmux", "-L", self.server, "send-keys", "-t", self.server]
        subprocess.run([*tmux, "-l", text], check=True, timeout=PATIENCE_SECONDS)
        self.bridge.eventually(lambda: text in self.screen())
        subprocess.run([*tmux, "Enter"], check=True, timeout=PATIENCE_SECONDS)

    def screen(self) -> str:
        looked = ["tmux", "-L", self.server, "capture-pane", "-p", "-t", self.server]
        return subprocess.run(looked, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS).stdout

    def run(self, prompt: str = "go", *options: str, **members: Any) -> str:
        """Start Codex in the pane; its incarnation."""
        about = {"cwd": str(self.there.project), "environment": self.there.environment(), "terminal": self.terminal}
        argv = ["codex", *options]
        return self.bridge.operate("PUT", f"panes/{PANE}/process", argv=argv, prompt=prompt, **about, **members)[
            "incarnation_id"
        ]

    def process(self) -> dict[str, Any]:
        return self.bridge.operate("GET", f"panes/{PANE}/process")

    def argv(self) -> list[str]:
        """The command line of the process that lives in the pane, by the kernel's word."""
        words = Path(f"/proc/{self.process()['pid']}/cmdline").read_bytes().split(b"\0")[:-1]
        return [word.decode() for word in words]

    def kill(self) -> None:
        """Kill Codex, and nobody else."""
        os.kill(self.process()["pid"], signal.SIGKILL)

    def detect(self, from_base: str = "main-1", to_base: str = "main-2") -> str:
        return self.bridge.detect(PANE, from_base, to_base)

    def acknowledged(self, times: int = 1) -> None:
        self.bridge.heard("intent.acknowledged", times)

    def told(self, request: int = -1) -> bytes:
        """The payload in the last of what a request has in the user's name: the process's first input."""
        tag = startup_of(self.api.prompts(request)[-1])
        assert tag is not None, self.api.prompts(request)
        return tag.payload

    def incarnations(self) -> list[str]:
        return [event.data["incarnation_id"] for event in self.bridge.events("incarnation.launched")]

    def sound(self) -> None:
        """Whatever happened, the store is what it says it is."""
        assert check_blocking(self.bridge.store) == []


STARTUP = "<fencepost-startup"


@contextmanager
def world(turns: list[Turn], told: list[list[Turn]], terminal: str = "none") -> Iterator[World]:
    """A served bridge; `turns` are what the model says at first, `told` what it says to each process that is told."""
    server = f"fpx-{uuid.uuid4().hex[:12]}"
    options = ("--tmux-server", server, "--stop-grace", "1", "--hook-deadline", "30")
    with codex_place(*turns) as there, served_bridge(there.folder, *options) as (bridge, reconciliations):
        made = World(there, bridge, reconciliations, terminal)
        made.server = server
        made.api.apart[STARTUP] = told
        try:
            bridge.start()
            yield made
            made.sound()
        finally:
            end_processes(made)
            subprocess.run(["tmux", "-L", server, "kill-server"], capture_output=True, check=False)


def end_processes(there: World) -> None:
    """End what a failed test may have left in the pane."""
    for status in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOME={there.there.home}\0".encode() in status.read_bytes() and int(status.parent.name) != os.getpid():
                os.kill(int(status.parent.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


def asked(turn: Held) -> None:
    assert turn.asked.wait(PATIENCE_SECONDS), "the model was not asked"


@pytest.mark.parametrize("terminal", WHERE)
def test_two_parallel_calls_are_blocked_and_the_successor_is_told_what_was_saved(terminal: str) -> None:
    before, after = Held(PARALLEL), Held([shell("c", "touch z")])
    with world([before], [[after]], terminal=terminal) as there:
        old = there.run("go")
        asked(before)
        assert BYPASS in there.argv()
        session = there.bridge.eventually(lambda: there.process()["session_id"])
        there.detect()
        before.go.set()
        asked(after)
        assert there.there.files() == []
        assert there.told() == payload_of("main-2")
        assert "go" in there.api.prompts()  # the same conversation
        argv = there.argv()
        assert (BYPASS in argv, argv[argv.index("resume") + 1]) == (True, session)
        (intent,) = there.bridge.intents()
        assert (intent["state"], intent["payload"]) == ("delivered", payload_of("main-2"))
        assert there.incarnations() == [old, intent["incarnation_id"]]
        after.go.set()
        there.acknowledged()
        there.bridge.eventually(lambda: there.there.files() == ["z"])
        assert there.process()["session_id"] == session


@pytest.mark.parametrize("terminal", WHERE)
def test_a_killed_codex_is_resumed_and_told_what_it_is_owed(terminal: str) -> None:
    before, after = Held(PARALLEL), Held([shell("c", "touch z")])
    with world([before], [[after]], terminal=terminal) as there:
        old = there.run("go")
        asked(before)
        session = there.bridge.eventually(lambda: there.process()["session_id"])
        there.detect()
        there.kill()
        asked(after)
        assert there.told() == payload_of("main-2")
        assert [text for text in there.api.prompts() if not text.startswith("<")] == ["go"]
        after.go.set()
        there.acknowledged()
        there.bridge.eventually(lambda: there.there.files() == ["z"])
        assert there.process()["session_id"] == session
        assert (len(there.incarnations()), there.incarnations()[0]) == (2, old)


def test_a_conversation_outlives_the_home_it_began_in_whatever_index_the_user_has() -> None:
    before, after = Held(PARALLEL), Held([shell("c", "touch z")])
    with world([before], [[after]]) as there:
        there.there.configure(f'sqlite_home = "{there.there.users}/index"')
        there.reconciliations.held = True
        old = there.run("go")
        asked(before)
        there.bridge.eventually(lambda: there.process()["session_id"])
        there.detect()
        there.kill()
        attempt = there.reconciliations.attempt(0)
        remove_settings(there.bridge.folder / "incarnations", old)
        attempt.go()
        asked(after)
        assert there.told() == payload_of("main-2")
        assert [text for text in there.api.prompts() if not text.startswith("<")] == ["go"]


def test_a_process_that_is_killed_before_it_is_told_has_a_successor_that_is() -> None:
    before, lost, after = Held(PARALLEL), Held(), Held([shell("c", "touch z")])
    with world([before], [[lost], [after]]) as there:
        there.run("go")
        asked(before)
        there.detect()
        before.go.set()
        asked(lost)
        assert there.bridge.states() == ["delivered"]
        there.kill()
        asked(after)
        assert there.told() == payload_of("main-2")
        after.go.set()
        there.acknowledged()
        there.bridge.eventually(lambda: there.there.files() == ["z"])
        assert len(there.incarnations()) == 3


@pytest.mark.parametrize("terminal", WHERE)
def test_everything_dies_at_once_and_the_next_bridge_tells_what_is_owed(terminal: str) -> None:
    before, after = Held(PARALLEL), Held([shell("c", "touch z")])
    with world([before], [[after]], terminal=terminal) as there:
        there.run("go")
        asked(before)
        session, pid = there.bridge.eventually(lambda: there.process()["session_id"]), there.process()["pid"]
        there.detect()
        there.bridge.kill()
        os.kill(pid, signal.SIGKILL)
        there.bridge.start()
        asked(after)
        assert there.told() == payload_of("main-2")
        after.go.set()
        there.acknowledged()
        there.bridge.eventually(lambda: there.there.files() == ["z"])
        assert there.process()["session_id"] == session


@pytest.mark.parametrize("terminal", WHERE)
def test_nothing_that_a_tool_left_running_is_there_when_files_move(terminal: str) -> None:
    running_on = [
        calls("w", "exec_command", cmd="echo $$ > writer; exec cat", tty=True, yield_time_ms=250),
        shell("s", "setsid sh -c 'echo $$ > stray; exec sleep 1000' > /dev/null 2>&1 & sleep 0.2"),
    ]
    before, after = Held(PARALLEL), Held()
    with world([running_on, before], [[after]], terminal=terminal) as there:
        there.reconciliations.held = True
        there.run("go")
        asked(before)
        pids = [int((there.there.project / name).read_text()) for name in ("writer", "stray")]
        assert [running(pid) for pid in pids] == [True, True]  # it has no hook, so nobody blocked it
        there.detect()
        before.go.set()
        attempt = there.reconciliations.attempt(0)
        assert [running(pid) for pid in pids] == [False, False]
        attempt.go()
        asked(after)
        assert there.told() == payload_of("main-2")


@pytest.mark.parametrize("terminal", WHERE)
def test_what_passes_while_the_bridge_is_dead_is_taken_in_and_nothing_is_lost(terminal: str) -> None:
    before, between, after = Held(PARALLEL), Held([shell("c", "touch z")]), Held([shell("d", "touch w")])
    with world([before, between], [[after]], terminal=terminal) as there:
        there.run("go")
        asked(before)
        session = there.bridge.eventually(lambda: there.process()["session_id"])
        there.detect()
        there.bridge.kill()
        before.go.set()
        asked(between)
        assert there.there.files() == ["x", "y"]  # nothing had moved yet, so they might run
        assert there.bridge.states() == ["detected"]
        there.bridge.start()
        between.go.set()
        asked(after)
        assert there.there.files() == ["x", "y"]
        assert there.told() == payload_of("main-2")
        after.go.set()
        there.acknowledged()
        there.bridge.eventually(lambda: there.there.files() == ["w", "x", "y"])
        assert there.process()["session_id"] == session


def test_a_bridge_killed_while_files_move_goes_on_where_it_was() -> None:
    before, after = Held(PARALLEL), Held([shell("c", "touch z")])
    with world([before], [[after]]) as there:
        there.reconciliations.held = True
        there.run("go")
        asked(before)
        there.detect()
        before.go.set()
        there.reconciliations.attempt(0)
        assert there.process()["pid"] is None  # files move only once nobody works on them
        there.bridge.kill()
        there.bridge.start()
        there.reconciliations.attempt(1).go()
        asked(after)
        assert (there.there.files(), there.told()) == ([], payload_of("main-2"))
        after.go.set()
        there.acknowledged()
        there.bridge.eventually(lambda: there.there.files() == ["z"])


def test_a_bridge_killed_between_the_first_input_and_its_echo_tells_once_more() -> None:
    before, unproved, after = Held(PARALLEL), Held([shell("c", "touch z")]), Held([shell("d", "touch w")])
    with world([before], [[unproved], [after]]) as there:
        there.run("go")
        asked(before)
        there.detect()
        before.go.set()
        asked(unproved)
        there.bridge.kill()
        there.bridge.start()
        unproved.go.set()
        asked(after)
        assert there.told() == payload_of("main-2")
        assert there.there.files() == []
        after.go.set()
        there.acknowledged()
        there.bridge.eventually(lambda: there.there.files() == ["w"])
        assert len(there.incarnations()) == 3


def test_one_conversation_goes_through_one_intent_after_another() -> None:
    before, between, after = Held(PARALLEL), Held([shell("c", "touch z")]), Held([shell("e", "touch v")])
    middle = Held([shell("d", "touch w")])
    with world([before], [[between, middle], [after]]) as there:
        there.run("go")
        asked(before)
        session = there.bridge.eventually(lambda: there.process()["session_id"])
        there.detect("main-1", "main-2")
        before.go.set()
        asked(between)
        between.go.set()
        asked(middle)
        there.detect("main-2", "main-3")
        middle.go.set()
        asked(after)
        assert there.told() == payload_of("main-3")
        after.go.set()
        there.acknowledged(2)
        there.bridge.eventually(lambda: there.there.files() == ["v", "z"])
        assert there.process()["session_id"] == session


def test_a_late_hook_of_the_dead_process_is_fenced_with_a_dead_letter() -> None:
    late: list[Item] = []
    before, after = Held(PARALLEL), Held(late)
    with world([before], [[after]]) as there:
        old = there.run("go")
        asked(before)
        there.detect()
        before.go.set()
        asked(after)
        event = json.dumps({"hook_event_name": "PreToolUse", "turn_id": "t", "tool_use_id": "late"})
        program = shlex.join([sys.executable, "-I", "-S", hook.__file__, "--harness", "codex", "--event", "PreToolUse"])
        late.append(shell("c", f"echo {shlex.quote(event)} | FENCEPOST_INCARNATION={old} {program} > said"))
        already = len(there.bridge.dead_letters())
        after.go.set()
        there.acknowledged()
        there.bridge.eventually(lambda: len(there.bridge.dead_letters()) > already)
        letter = there.bridge.dead_letters()[-1]
        assert (letter.reason, letter.incarnation_id, letter.call) == ("retired_incarnation", old, "pre_tool_use")
        said = there.there.project / "said"
        there.bridge.eventually(lambda: said.exists() and said.read_text())
        reason = json.loads(said.read_text())["hookSpecificOutput"]["permissionDecisionReason"]
        assert reason.startswith("This process has been replaced")


@pytest.mark.parametrize("place", ["user", "project"])
def test_a_home_or_a_project_with_other_hooks_is_refused_and_nothing_is_started(place: str) -> None:
    with world([[shell("a", "touch x")]], []) as there:
        folder = there.there.users if place == "user" else there.there.project / ".codex"
        folder.mkdir(exist_ok=True)
        (folder / "hooks.json").write_text('{"hooks": {}}')
        with pytest.raises(AssertionError, match=r"409 .*hooks\.json declares hooks"):
            there.run("go")
        assert (there.process()["pid"], there.api.heads) == (None, [])
        (folder / "hooks.json").unlink()
        there.run("go")
        there.bridge.eventually(lambda: there.there.files() == ["x"])


@pytest.mark.parametrize("terminal", WHERE)
@pytest.mark.parametrize("prompt", ["review", "résumé\nwith --options"])
def test_a_prompt_is_a_prompt_whatever_it_says(terminal: str, prompt: str) -> None:
    said = Held()
    with world([said], [], terminal=terminal) as there:
        there.run(prompt)
        asked(said)
        assert there.api.prompts()[-1] == prompt


def test_an_option_of_the_users_is_kept_and_one_that_ends_supervision_is_refused() -> None:
    said, after = Held(PARALLEL), Held()
    with world([said], [[after]]) as there:
        for undone in (["--disable", "hooks"], ["-c", "features.hooks=false"], ["--ephemeral"]):
            with pytest.raises(AssertionError, match=r"409 .*leave it out"):
                there.run("go", *undone)
        there.run("go", "--model", "another-model")
        asked(said)
        there.detect()
        said.go.set()
        asked(after)
        assert {request["model"] for request in there.api.requests} == {"another-model"}


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux")
def test_a_pane_that_died_idle_is_started_again_in_its_conversation() -> None:
    with world([[shell("a", "touch x")]], [], terminal="tmux") as there:
        there.run("go")
        there.bridge.eventually(lambda: there.there.files() == ["x"])
        session = there.process()["session_id"]
        there.kill()
        there.bridge.heard("incarnation.retired")
        assert there.process()["pid"] is None
        there.bridge.operate("PUT", f"panes/{PANE}/process")
        argv = there.argv()
        assert argv[argv.index("resume") :] == ["resume", session]


def test_one_line_starts_it_with_the_users_own_environment() -> None:
    before, after = Held(PARALLEL), Held([shell("c", "touch z")])
    with world([before], [[after]]) as there:
        program = Path(sysconfig.get_path("scripts")) / "fencepost"
        words = ["run", "--folder", str(there.bridge.folder), "--no-serve", "--pane", PANE, "--no-terminal", "--json"]
        said = subprocess.run(
            [program, *words, "--prompt", "go", "--", "codex", "--model", "another-model"],
            env=there.there.environment(),
            cwd=there.there.project,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert said.returncode == 0, said.stderr
        asked(before)
        assert json.loads(said.stdout)["incarnation_id"] == there.process()["incarnation_id"]
        there.detect()
        before.go.set()
        asked(after)
        assert (there.told(), there.api.requests[-1]["model"]) == (payload_of("main-2"), "another-model")
        after.go.set()
        there.acknowledged()
        there.bridge.eventually(lambda: there.there.files() == ["z"])


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux")
def test_an_agent_that_only_answers_what_it_is_told_proves_it_with_its_next_call() -> None:
    before = Held(PARALLEL)
    with world([before], [[[says("I have taken note.")]]], terminal="tmux") as there:
        there.api.apart["go on"] = [[[shell("c", "touch z")]]]
        there.run("go")
        asked(before)
        there.detect()
        before.go.set()
        there.bridge.eventually(lambda: "I have taken note." in there.screen())
        assert there.bridge.states() == ["delivered"]
        there.types("and now go on")
        there.acknowledged()
        there.bridge.eventually(lambda: there.there.files() == ["z"])
        assert len(there.incarnations()) == 2


def test_an_agent_that_is_told_and_calls_no_tool_is_told_again_and_then_a_person_decides() -> None:
    before = Held(PARALLEL)
    with world([before], []) as there:
        there.run("go")
        asked(before)
        there.detect()
        before.go.set()
        there.bridge.heard("intent.exhausted")
        (intent,) = there.bridge.intents()
        assert (intent["state"], intent["payload"]) == ("delivered", payload_of("main-2"))
        assert len(there.incarnations()) == 4
        assert there.there.files() == []
