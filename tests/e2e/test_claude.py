"""The real Claude Code under the real `fencepost serve`: what the model was sent, what ran, what was written down."""

from __future__ import annotations

import pytest
from e2e.claude_home import CLAUDE, needs_claude
from e2e.claude_world import EVERYWHERE, LIFE, NEEDS_TMUX, PANE, STARTUP, reads, session_of, told_first, touches, world
from e2e.messages_api import Block, Turn, text, tool_use
from e2e.served_bridge import payload_of
from launch_world import marked

from fencepost.supervisor.bridge.startup_tag import PAYLOAD_BYTES_MAX

pytestmark = needs_claude


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
    longest = (line * (PAYLOAD_BYTES_MAX // len(line) + 1))[:PAYLOAD_BYTES_MAX].decode("utf-8", "ignore")
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


def test_a_reconciliation_that_outlasts_the_hooks_is_told_to_the_next_turn() -> None:
    with world("none", "--hook-deadline", "3") as made:
        made.reconciliations.held = True
        asks, goes_on = Turn.held(*reads("a", "b", "c")), Turn.held(*touches("d"))
        made.api.play("go on", asks, goes_on, touches("e"))
        incarnation = made.run()
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        told = made.api.asked("go on", 1).results
        assert {text.decode().split(".")[0] for text in told.values()} == {"The files are being brought up to date"}
        made.bridge.heard("intent.batch_completed")
        made.reconciliations.attempt(0).go()
        made.bridge.heard("intent.materialized")
        goes_on.go.set()
        assert made.api.asked("go on", 2).results["d"] == payload_of("main-2")
        made.api.asked("go on", 3)
        assert made.bridge.states() == ["acknowledged"]
        assert (made.ran(), made.incarnations()) == (["e"], [incarnation])


def test_two_intents_are_told_in_their_order_one_a_turn() -> None:
    with world() as made:
        asks, asks_again = Turn.held(*touches("a", "b")), Turn.held(*touches("c", "d"))
        made.api.play("go on", asks, asks_again, touches("e"))
        incarnation = made.run()
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        made.api.asked("go on", 1)
        made.bridge.detect(PANE, "main-2", "main-3")
        asks_again.go.set()
        results = made.api.asked("go on", 2).results
        made.api.asked("go on", 3)
        second = dict.fromkeys("cd", payload_of("main-3"))
        assert results == dict.fromkeys("ab", payload_of("main-2")) | second
        assert made.bridge.states() == ["acknowledged", "acknowledged"]
        assert (made.ran(), made.incarnations()) == (["e"], [incarnation])


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


@NEEDS_TMUX
def test_a_batch_that_a_person_breaks_off_while_files_move_is_told_by_a_restart() -> None:
    with world("tmux") as made:
        made.reconciliations.held = True
        asks = Turn.held(*reads("a", "b", "c"))
        made.api.play("go on", asks)
        made.api.play("another thing", touches("d"))
        made.api.play(STARTUP, touches("e"))
        incarnation = made.run()
        made.api.asked("go on", 0)
        made.bridge.detect(PANE, "main-1", "main-2")
        asks.go.set()
        attempt = made.reconciliations.attempt(0)
        made.bridge.eventually(lambda: len(made.hooks(incarnation)) == 3)
        made.types("Escape")
        made.bridge.eventually(lambda: not made.hooks(incarnation))
        attempt.go()
        made.bridge.heard("intent.materialized")
        made.types("C-u")
        made.types("another thing")
        made.shows("another thing")
        made.types("Enter")
        assert told_first(made.api.asked(STARTUP, 0)) == [payload_of("main-2")]
        made.api.asked(STARTUP, 1)
        made.bridge.heard("intent.acknowledged")
        assert made.ran() == ["e"]


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
