"""The real Claude Code under the real `fencepost serve`: what the model was sent, what ran, and what was written down.

Nothing is told to the harness but through the bridge: its first input by its command line, everything else by its
hooks.  What is asserted comes from the store, from the operator's listener, and from what the model received.
"""

from __future__ import annotations

import json
import os
import shlex
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
from e2e.claude_home import CLAUDE, ClaudeHome, claude_home, needs_claude
from e2e.messages_api import Block, Received, Turn, text, tool_use, touch
from e2e.served_bridge import Reconciliations, ServedBridge, payload_of, served_bridge
from hook_programs import PROGRAM
from launch_world import marked, running

from fencepost.supervisor import Options
from fencepost.supervisor.bridge import hook
from fencepost.supervisor.bridge.startup_tag import startup_of
from fencepost.supervisor.invariants import check_blocking

pytestmark = needs_claude

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

    def tmux(self, *words: str) -> str:
        """What a person does who looks at the pane."""
        *program, _, _, target = self.process()["attach"]
        done = subprocess.run([*program, *words, "-t", target], capture_output=True, text=True, check=True)
        return done.stdout

    def shows(self, *words: str, no: str = "nothing of the kind") -> None:
        """Wait until these, and not the other, are on the pane's screen."""

        def screen() -> bool:
            shown = self.tmux("capture-pane", "-p")
            return all(word in shown for word in words) and no not in shown

        self.bridge.eventually(screen, lambda: f"{words} without {no!r} on {self.tmux('capture-pane', '-p')}")

    def types(self, *keys: str) -> None:
        *program, _, _, target = self.process()["attach"]
        subprocess.run([*program, "send-keys", "-t", target, *keys], check=True)

    def kill(self) -> int:
        """Kill the harness, and nobody else."""
        pid = self.process()["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def hooks(self, incarnation: str) -> list[int]:
        """The hook programs of this incarnation that run now, without the shells that started them."""
        program = [word.encode() for word in PROGRAM]
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
def world(terminal: str = "none") -> Iterator[World]:
    server = f"fencepost-test-{uuid.uuid4().hex[:12]}"
    with claude_home() as home, served_bridge(home.folder, "--tmux-server", server) as (bridge, reconciliations):
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


@EVERYWHERE
@pytest.mark.parametrize("calls", [reads("a", "b", "c"), touches("a", "b", "c")], ids=["side-by-side", "in-turn"])
def test_a_batch_is_told_in_place_of_running_and_the_next_turn_acknowledges(terminal: str, calls: list[Block]) -> None:
    with world(terminal) as made:
        asks, listens = Turn.held(*calls), Turn.held(*touches("d"))
        made.api.play("go on", asks, listens)
        incarnation = made.run()
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        told = made.api.asked("go on", 1)
        assert told.results == dict.fromkeys("abc", payload_of("main-2"))
        made.bridge.heard("intent.batch_completed")
        assert made.bridge.states() == ["delivered"]
        listens.go.set()
        assert made.api.asked("go on", 2).results["d"] != payload_of("main-2")
        (intent,) = made.bridge.intents()
        assert (intent["state"], intent["payload"]) == ("acknowledged", payload_of("main-2"))
        assert made.lives() == LIFE
        assert made.ran() == ["d"]
        assert made.incarnations() == [incarnation]
        assert made.bridge.dead_letters() == []
        assert len(made.reconciliations.attempts) == 1


def test_a_payload_as_long_as_any_may_be_reaches_the_model_as_it_was_saved() -> None:
    line = payload_of("main-2")
    longest = (line * (Options().payload_bytes_max // len(line) + 1))[: Options().payload_bytes_max].decode(
        "utf-8", "ignore"
    )
    with world() as made:
        made.reconciliations.payload_of = lambda _: longest.encode()
        asks = Turn.held(*touches("a", "b", "c"))
        made.api.play("go on", asks, touches("d"))
        incarnation = made.run()
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        assert made.api.asked("go on", 1).results == dict.fromkeys("abc", longest.encode())
        made.api.asked("go on", 2)
        assert (made.ran(), made.lives(), made.incarnations()) == (["d"], LIFE, [incarnation])


def blocked(made: World, **members: Any) -> bool:
    """Whether a batch beside a pending intent is told in place of running."""
    asks = Turn.held(*touches("a", "b"))
    made.api.play("go on", asks, touches("d"))
    made.run(**members)
    made.api.asked("go on", 0)
    made.bridge.detect(PANE, "main-1", "main-2")
    asks.go.set()
    told = made.api.asked("go on", 1).results
    made.api.asked("go on", 2)
    return (told, made.ran(), made.lives()) == (dict.fromkeys("ab", payload_of("main-2")), ["d"], LIFE)


PLACES = ("home/.claude/settings.json", "ws/.claude/settings.json", "ws/.claude/settings.local.json")
WITHOUT_HOOKS = ("CLAUDE_CODE_SAFE_MODE", "CLAUDE_CODE_SIMPLE")
ALLOWS = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}
SAYS_YES = {"hooks": [{"type": "command", "command": f"echo {shlex.quote(json.dumps(ALLOWS))}"}]}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "settings",
    [
        {"disableAllHooks": True},
        {"hooks": {"PreToolUse": [SAYS_YES]}},
        {"permissions": {"allow": ["Bash"]}},
        {"env": dict.fromkeys(WITHOUT_HOOKS, "1")},
    ],
    ids=["no hooks", "a hook that allows", "allowed", "variables"],
)
def test_settings_of_a_user_or_a_project_let_nothing_pass(place: str, settings: dict[str, Any]) -> None:
    with world() as made:
        file = made.home.folder / place
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(settings), encoding="utf-8")
        assert blocked(made, options=["--dangerously-skip-permissions"])


@EVERYWHERE
@pytest.mark.parametrize("variable", WITHOUT_HOOKS)
def test_no_variable_turns_the_hooks_off(terminal: str, variable: str) -> None:
    with world(terminal) as made:
        project = made.home.workspace / ".claude" / "settings.json"
        project.parent.mkdir()
        project.write_text(json.dumps({"env": {variable: "1"}}), encoding="utf-8")
        assert blocked(made, environment={**made.home.environment, variable: "1"})


def told_first(received: Received) -> list[bytes]:
    """The payloads of the startup inputs in what the model received."""
    tags = map(startup_of, received.prompts)
    return [tag.payload for tag in tags if tag is not None]


@EVERYWHERE
def test_a_killed_harness_goes_on_in_its_conversation_and_is_told_first(terminal: str) -> None:
    with world(terminal) as made:
        asks = Turn.held(*touches("a", "b", "c"))
        made.api.play("go on", asks, Turn.held())
        made.api.play(STARTUP, touches("d"))
        first = made.run()
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        told = made.api.asked("go on", 1)
        made.bridge.heard("intent.batch_completed")
        made.kill()
        resumed = made.api.asked(STARTUP, 0)
        assert session_of(resumed) == session_of(told)
        assert told_first(resumed) == [payload_of("main-2")]
        assert "go on" in "".join(resumed.prompts), "the conversation goes on"
        made.api.asked(STARTUP, 1)
        made.bridge.heard("intent.acknowledged")
        assert made.bridge.states() == ["acknowledged"]
        assert made.lives() == LIFE, "it was delivered once"
        assert made.ran() == ["d"]
        old, new = made.incarnations()
        assert old == first
        assert [one.data["incarnation_id"] for one in made.bridge.events("incarnation.ready")] == [new]
        assert len(made.reconciliations.attempts) == 1
        assert made.api.times_asked("go on") == 2, "what was asked before the kill is not asked again"


def late_call(made: World, call: str) -> dict[str, str]:
    """What the harness would have told the hook of a call of its first prompt."""
    (transcript,) = made.home.transcripts.glob("*/*.jsonl")
    event = {"hook_event_name": "PreToolUse", "tool_use_id": call, "prompt_id": "of its last prompt"}
    return {**event, "session_id": transcript.stem, "transcript_path": str(transcript)}


def test_a_late_hook_of_a_dead_process_is_fenced() -> None:
    with world() as made:
        asks = Turn.held(*touches("a"))
        made.api.play("go on", asks, Turn.held())
        first = made.run()
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        made.api.asked("go on", 1)
        made.bridge.heard("intent.batch_completed")
        event = made.home.folder / "late.json"
        event.write_text(json.dumps(late_call(made, "a")), encoding="utf-8")
        late = [*PROGRAM, "--harness", "claude-code", "--event", "PreToolUse"]
        in_the_pane = f"FENCEPOST_INCARNATION={first} {shlex.join(late)} < {event}"
        made.api.play(STARTUP, [tool_use("b", command=in_the_pane)], touches("c"))
        made.kill()
        said = json.loads(made.api.asked(STARTUP, 1).results["b"])
        assert said["hookSpecificOutput"]["permissionDecision"] == "deny"
        assert payload_of("main-2").decode() not in str(said)
        (letter,) = made.bridge.dead_letters()
        assert (letter.incarnation_id, letter.reason) == (first, "retired_incarnation")

        # One that lives in no pane is not even heard.
        environment = {
            "FENCEPOST_PANE": PANE,
            "FENCEPOST_INCARNATION": first,
            "FENCEPOST_SOCKET": str(made.bridge.folder / "local.sock"),
            "FENCEPOST_STORE": made.bridge.store,
        }
        outside = subprocess.run(late, input=event.read_bytes(), env=environment, capture_output=True, check=True)
        decision = json.loads(outside.stdout)["hookSpecificOutput"]
        assert (decision["permissionDecision"], decision["permissionDecisionReason"]) == ("deny", hook.NOT_ADMITTED)
        made.api.asked(STARTUP, 2)
        assert made.ran() == ["c"]
        assert made.lives() == LIFE


def test_an_orphaned_hook_that_goes_on_when_its_process_is_dead_is_fenced() -> None:
    with world() as made:
        made.reconciliations.held = True
        asks = Turn.held(*reads("a", "b", "c"))
        made.api.play("go on", asks)
        incarnation = made.run(restart="never")
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        attempt = made.reconciliations.attempt(0)
        hooks = made.bridge.eventually(lambda: [] if len(found := made.hooks(incarnation)) < 3 else found)
        for pid in hooks:
            os.kill(pid, signal.SIGSTOP)
        made.kill()
        made.bridge.heard("incarnation.retired", incarnation_id=incarnation)
        attempt.go()
        made.bridge.heard("intent.materialized")
        for pid in hooks:
            os.kill(pid, signal.SIGCONT)
        made.bridge.eventually(lambda: not any(map(running, hooks)))
        letters = [one for one in made.bridge.dead_letters() if one.incarnation_id == incarnation]
        assert {letter.reason for letter in letters} == {"retired_incarnation"}
        assert made.bridge.states() == ["materialized"]

        made.api.play(STARTUP, touches("d"))
        made.run_again()
        assert told_first(made.api.asked(STARTUP, 0)) == [payload_of("main-2")]
        made.api.asked(STARTUP, 1)
        assert made.bridge.states() == ["acknowledged"]
        assert made.ran() == ["d"]


def test_an_orphaned_hook_that_asks_when_its_process_is_dead_is_refused_at_the_door() -> None:
    with world() as made:
        asks = Turn.held(*reads("a", "b", "c"))
        made.api.play("go on", asks)
        incarnation = made.run(restart="never")
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        pid = made.process()["pid"]
        made.bridge.program.process.send_signal(signal.SIGSTOP)  # the hooks' questions are taken in only afterwards
        asks.go.set()
        hooks = made.bridge.eventually(lambda: [] if len(found := made.hooks(incarnation)) < 3 else found)
        os.kill(pid, signal.SIGKILL)
        made.bridge.eventually(lambda: not running(pid))
        made.bridge.program.process.send_signal(signal.SIGCONT)
        made.bridge.heard("incarnation.retired", incarnation_id=incarnation)
        made.bridge.eventually(lambda: not any(map(running, hooks)))
        assert made.lives() == ["detected"], "none of them bound it"
        assert made.reconciliations.attempts == []


def test_a_conversation_that_was_cut_off_at_its_start_is_begun_again_and_told() -> None:
    with world() as made:
        asks = Turn.held(*touches("a"))
        made.api.play("go on", asks, Turn.held())
        made.api.play(STARTUP, touches("d"))
        incarnation = made.run(restart="never")
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        told = made.api.asked("go on", 1)
        made.kill()
        made.bridge.heard("incarnation.retired", incarnation_id=incarnation)
        (transcript,) = made.home.transcripts.glob("*/*.jsonl")
        lines = transcript.read_bytes().splitlines(keepends=True)
        begun = next(place for place, line in enumerate(lines) if json.loads(line)["type"] == "user")
        transcript.write_bytes(b"".join(lines[:begun]))  # what a kill some milliseconds after the start leaves
        made.run_again()
        first = made.api.asked(STARTUP, 0)
        assert told_first(first) == [payload_of("main-2")]
        assert session_of(first) != session_of(told)
        made.api.asked(STARTUP, 1)
        assert made.bridge.states() == ["acknowledged"]
        made.bridge.eventually(lambda: made.process()["session_id"] == session_of(first))


@EVERYWHERE
def test_a_bridge_that_is_killed_while_hooks_wait_loses_nothing(terminal: str) -> None:
    with world(terminal) as made:
        made.reconciliations.held = True
        asks, goes_on = Turn.held(*reads("a", "b", "c")), Turn.held(*touches("d"))
        made.api.play("go on", asks, goes_on, touches("e"))
        incarnation = made.run()
        made.api.asked("go on", 0)
        intent = made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        attempt = made.reconciliations.attempt(0)
        made.bridge.eventually(lambda: len(made.hooks(incarnation)) == 3)
        made.bridge.kill()
        told = made.api.asked("go on", 1)
        assert told.results == dict.fromkeys("abc", hook.BARRIER.encode())

        made.reconciliations.held = False
        made.bridge.start()
        assert attempt.gone(), "two attempts never run at once"
        made.bridge.heard("intent.materialized")
        goes_on.go.set()
        assert made.api.asked("go on", 2).results["d"] == payload_of("main-2")
        made.api.asked("go on", 3)
        assert made.bridge.states() == ["acknowledged"]
        assert made.ran() == ["e"]
        assert made.incarnations() == [incarnation], "the harness outlived the bridge"
        assert [one.told["resumed"] for one in made.reconciliations.attempts] == [False, True]
        delivered = made.bridge.events("intent.delivered")
        assert [one.data["intent_id"] for one in delivered] == [intent]


@EVERYWHERE
def test_a_bridge_that_is_killed_once_it_has_spoken_is_spoken_for_by_its_store(terminal: str) -> None:
    with world(terminal) as made:
        asks, goes_on = Turn.held(*touches("a", "b", "c")), Turn.held(*touches("d"))
        made.api.play("go on", asks, goes_on)
        incarnation = made.run()
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        made.bridge.heard("intent.delivered")  # the other two are still to be decided, or are being
        made.bridge.kill()
        assert made.api.asked("go on", 1).results == dict.fromkeys("abc", payload_of("main-2"))
        made.bridge.start()
        goes_on.go.set()
        made.api.asked("go on", 2)
        assert made.lives() == LIFE
        assert (made.ran(), made.incarnations()) == (["d"], [incarnation])


@EVERYWHERE
def test_a_bridge_that_is_killed_during_a_replacement_is_followed_by_one_that_goes_on(terminal: str) -> None:
    with world(terminal) as made:
        asks = Turn.held(*touches("a"))
        made.api.play("go on", asks, Turn.held())
        made.api.play(STARTUP, touches("d"))
        made.run()
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        made.api.asked("go on", 1)
        made.bridge.heard("intent.batch_completed")
        made.kill()
        made.bridge.heard("incarnation.launched", times=2)  # and now its process starts, or has, or has spoken
        made.bridge.kill()
        made.bridge.start()
        made.bridge.heard("intent.acknowledged")
        assert made.bridge.states() == ["acknowledged"]
        made.bridge.eventually(lambda: made.ran() == ["d"])
        assert len({session_of(one) for one in made.api.requests}) == 1


def test_calls_pass_while_the_bridge_is_away_and_a_barrier_holds() -> None:
    with world() as made:
        passes, returns, listens = Turn.held(*touches("a", "b")), Turn.held(*touches("c")), Turn.held(*touches("d"))
        made.api.play("go on", passes, returns, listens)
        incarnation = made.run()
        made.api.asked("go on", 0)
        made.bridge.kill()
        passes.go.set()
        made.api.asked("go on", 1)
        assert made.ran() == ["a", "b"], "nothing is known to be in their way"

        made.bridge.start()
        made.bridge.detect(PANE, "main-1", "main-2")
        returns.go.set()
        assert made.api.asked("go on", 2).results["c"] == payload_of("main-2")
        made.bridge.heard("intent.batch_completed")
        made.bridge.kill()
        listens.go.set()
        assert made.api.asked("go on", 3).results["d"] == payload_of("main-2"), "the saved bytes, from the store"
        assert made.ran() == ["a", "b"]
        assert made.incarnations() == [incarnation]
        made.bridge.start()


def test_a_version_that_was_not_proved_is_told_by_a_restart() -> None:
    with world() as made:
        program = made.home.folder / "claude"
        program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "2.1.198 (Claude Code)" || exec {CLAUDE} "$@"\n')
        program.chmod(0o755)
        asks = Turn.held(*touches("a", "b", "c"))
        made.api.play("go on", asks, Turn.held())
        made.api.play(STARTUP, touches("d"))
        first = made.run(program=str(program))
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        assert told_first(made.api.asked(STARTUP, 0)) == [payload_of("main-2")]
        made.api.asked(STARTUP, 1)
        (intent,) = made.bridge.intents()
        assert intent["state"] == "acknowledged"
        assert made.lives() == [one for one in LIFE if one != "batch_completed"]
        assert made.ran() == ["d"]
        assert marked(first) == set()


@NEEDS_TMUX
def test_a_conversation_that_a_person_clears_before_it_acknowledged_is_told_anew() -> None:
    with world("tmux") as made:
        asks = Turn.held(*touches("a"))
        made.api.play("go on", asks, Turn.held())
        made.api.play("another task", [text("x" * 30_000), *touches("b")])  # far behind the place of the first
        made.api.play(STARTUP, touches("c"))
        made.run()
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        made.api.asked("go on", 1)
        made.bridge.heard("intent.batch_completed")
        made.types("Escape")
        made.shows("go on", no="esc to interrupt")
        made.types("C-u")
        made.types("/clear")
        made.shows("/clear")
        made.types("Enter")
        made.shows("Claude Code", no="go on")
        made.types("another task")
        made.shows("another task")
        made.types("Enter")
        cleared = made.api.asked("another task", 0)
        resumed = made.api.asked(STARTUP, 0)
        assert told_first(resumed) == [payload_of("main-2")]
        assert session_of(resumed) == session_of(cleared)
        made.api.asked(STARTUP, 1)
        made.bridge.heard("intent.acknowledged")
        assert made.ran() == ["c"]


def agent(call: str, prompt: str) -> Block:
    return tool_use(call, "Agent", description="a part of it", prompt=prompt, subagent_type="general-purpose")


def test_a_nested_agents_calls_are_no_turns_of_its_caller() -> None:
    with world() as made:
        inside, after = Turn.held(*touches("x")), Turn.held(*touches("a", "b"))
        made.api.play("go on", [agent("n", "nested task")], after, [agent("m", "nested again")], touches("d"))
        made.api.play("nested task", inside, touches("y"))
        made.api.play("nested again", touches("z"))
        incarnation = made.run()
        made.api.asked("nested task", 0)
        inside.go.set()
        made.api.asked("go on", 1)
        assert made.ran() == ["x", "y"], "with nothing pending they run"
        made.bridge.detect(PANE, "main-1", "main-2")
        after.go.set()
        assert made.api.asked("go on", 2).results.items() >= dict.fromkeys("ab", payload_of("main-2")).items()
        made.api.asked("nested again", 0)
        made.bridge.heard("intent.acknowledged")
        made.api.asked("go on", 4)
        assert made.ran() == ["d", "x", "y", "z"]
        assert made.lives() == LIFE, "acknowledged by the caller's next turn, and told as a batch"
        assert made.incarnations() == [incarnation]


def test_a_nested_call_beside_a_pending_intent_acknowledges_nothing_and_does_not_run() -> None:
    with world() as made:
        inside = Turn.held(*touches("x"))
        made.api.play("go on", [agent("n", "nested task")])
        made.api.play("nested task", inside, Turn.held())
        made.api.play(STARTUP, [agent("m", "nested again")], touches("d"))
        made.api.play("nested again", touches("y"))
        made.run()
        made.api.asked("nested task", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        inside.go.set()
        assert told_first(made.api.asked(STARTUP, 0)) == [payload_of("main-2")]
        made.api.asked("nested again", 0)
        assert made.bridge.states() == ["acknowledged"], "the call of the agent itself is the caller's first turn"
        made.api.asked(STARTUP, 2)
        assert made.ran() == ["d", "y"]
