"""The real Claude Code and the real `fencepost serve`, one of which dies, or both."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess

import pytest
from e2e.claude_home import needs_claude
from e2e.claude_world import (
    EVERYWHERE,
    LIFE,
    NEEDS_TMUX,
    PANE,
    STARTUP,
    World,
    reads,
    session_of,
    told_first,
    touches,
    world,
)
from e2e.messages_api import Turn, tool_use
from e2e.served_bridge import payload_of
from hook_programs import PROGRAM
from launch_world import running

from fencepost.supervisor.bridge import hook

pytestmark = needs_claude


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


def told_and_answered_in_prose(made: World) -> str:
    """A process that was told at its start, because the one before it was killed, and that called nothing; which."""
    asks = Turn.held(*touches("a"))
    made.api.play("go on", asks, Turn.held())
    made.api.play(STARTUP)
    made.run()
    made.api.asked("go on", 0)
    made.bridge.detect(PANE, "main-1", "main-2")
    asks.go.set()
    made.api.asked("go on", 1)
    made.bridge.heard("intent.batch_completed")
    made.kill()
    assert told_first(made.api.asked(STARTUP, 0)) == [payload_of("main-2")]
    made.shows(f"{STARTUP} is done", no="esc to interrupt")
    assert made.bridge.states() == ["delivered"]
    return made.incarnations()[-1]


@NEEDS_TMUX
@pytest.mark.parametrize("returns", [False, True], ids=["same-bridge", "another-bridge"])
def test_an_agent_that_answers_what_it_was_told_in_prose_goes_on_with_the_next_prompt(returns: bool) -> None:
    with world("tmux") as made:
        told = told_and_answered_in_prose(made)
        pid = made.process()["pid"]
        if returns:
            made.bridge.kill()
            made.bridge.start()
        made.api.play("the next thing", touches("b"), touches("c"))
        made.submits("the next thing")
        made.api.asked("the next thing", 2)
        assert made.ran() == ["b", "c"]
        assert made.bridge.states() == ["acknowledged"]
        assert made.lives() == LIFE
        assert (made.incarnations()[1:], made.process()["pid"]) == ([told], pid)
        assert made.api.times_asked(STARTUP) == 1
        assert made.bridge.dead_letters() == []


@NEEDS_TMUX
def test_a_conversation_that_is_cleared_behind_the_answer_is_told_anew() -> None:
    with world("tmux") as made:
        told = told_and_answered_in_prose(made)
        made.submits("/clear")
        made.shows("Claude Code", no=STARTUP)
        made.api.play("another task", touches("b"))
        made.api.play(STARTUP, touches("c"))
        made.submits("another task")
        made.api.asked(STARTUP, 1)
        made.bridge.heard("intent.acknowledged")
        assert made.ran() == ["c"]
        assert made.incarnations()[-1] != told


@NEEDS_TMUX
def test_a_conversation_that_is_rewound_to_before_it_was_told_is_told_anew() -> None:
    """In the same process and the same transcript, where what it had answered still stands."""
    with world("tmux") as made:
        told = told_and_answered_in_prose(made)
        made.submits("/rewind")
        made.shows("❯ (current)")
        made.types("Up")
        made.shows("(current)", no="❯ (current)")
        made.types("Enter")
        made.shows("Restore conversation")
        made.types("Enter")
        made.shows(STARTUP, no=f"{STARTUP} is done")
        made.api.play("another task", touches("b"))
        made.api.play(STARTUP, touches("c"))
        made.types(*["C-u", "BSpace"] * 6)  # what was taken back is put where one types
        made.shows("go on", no=STARTUP)
        made.submits("another task")
        assert STARTUP not in "".join(made.api.asked("another task", 0).prompts)
        made.api.asked(STARTUP, 1)
        made.bridge.heard("intent.acknowledged")
        assert made.ran() == ["c"]
        assert made.incarnations()[-1] != told


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
