"""The whole bridge: real processes and hooks, a program that behaves as Claude Code does (`claude_program`)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
import trio
from attrs import evolve
from bridge.claude_program import install
from bridge.program_world import World, moved, world

from fencepost.supervisor import DeliveryMode, IntentState, LaunchBlocked, SyncStatus
from fencepost.supervisor.bridge.hook import BARRIER
from fencepost.supervisor.bridge.launchers import LaunchError
from fencepost.supervisor.bridge.launching import NOTES, tmux_server_of
from fencepost.supervisor.bridge.pane_processes import Occupied
from fencepost.supervisor.bridge.panes import Channel, PaneBook, Restart, Terminal
from fencepost.supervisor.bridge.places import Places
from fencepost.supervisor.bridge.program import Harnesses, reconciler_of
from fencepost.supervisor.bridge.startup_tag import PAYLOAD_BYTES_MAX

RECONCILING = Path(__file__).with_name("reconciling_program.py")
NEEDS_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
WHERE = [Terminal.NONE, pytest.param(Terminal.TMUX, marks=NEEDS_TMUX)]


ANSWER = {
    "result_op": "op-2",
    "workspace_commit": "c",
    "anchor": {"change_id": "c", "commit_id": "c", "op_id": "o"},
}
"""A reconciliation's, but for its payload."""


@pytest.fixture
async def place():
    async with world() as made:
        yield made


async def states(life) -> list[IntentState]:
    return [one.state for one in await life.pane.intents()]


@pytest.mark.parametrize("terminal", WHERE)
async def test_an_intent_blocks_a_whole_batch_and_is_acknowledged_by_the_next_turn(place: World, terminal):
    async with place.bridge() as life:
        launch = await life.processes.run("left", place.spec(prompt="go", terminal=terminal))
        run = await place.next_run()
        assert run.about["said"] == "go"
        assert not run.about["resumed"]
        assert run.about["environ"]["FENCEPOST_INCARNATION"] == launch.incarnation_id
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
        denied = await run.batch("b1", "b2", "b3")
        (intent,) = await life.pane.intents()
        assert denied == [intent.payload.decode()] * 3
        assert (intent.state, intent.batch_completed_at is None) == (IntentState.DELIVERED, False)
        assert await run.batch("c1") == [None]
        assert await states(life) == [IntentState.ACKNOWLEDGED]
        assert await life.pane.sync_status() is SyncStatus.IN_SYNC
        assert await life.processes.end("left")


@pytest.mark.parametrize("terminal", WHERE)
async def test_a_process_that_dies_after_a_delivery_is_told_again_by_its_successor(place: World, terminal):
    async with place.bridge() as life:
        first = await life.processes.run("left", place.spec(prompt="go", terminal=terminal))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
        assert None not in await run.batch("b1")
        os.kill(run.about["pid"], signal.SIGKILL)
        again = await place.next_run()
        (intent,) = await life.pane.intents()
        assert again.about["resumed"]
        assert again.about["session"] == run.about["session"]
        assert intent.payload.decode() in again.about["said"]
        assert again.about["said"] != "go"
        assert again.about["environ"]["FENCEPOST_STARTUP"] == intent.startup_delivery_id
        assert await again.batch("c1") == [None]
        assert await states(life) == [IntentState.ACKNOWLEDGED]
        assert first.incarnation_id != again.about["environ"]["FENCEPOST_INCARNATION"]
        # A late hook of the one that died, by a process that lives in the pane now.
        late = await again.ask(hook=late_call(again), incarnation=first.incarnation_id)
        assert "deny" in late["said"]
        assert [one.incarnation_id for one in await life.supervisor.dead_letters()] == [first.incarnation_id]
        await life.processes.end("left")


@pytest.mark.parametrize("returns", [False, True], ids=["same bridge", "another bridge"])
async def test_an_agent_that_answers_its_startup_in_prose_goes_on_with_its_next_prompt(place: World, returns: bool):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
        assert None not in await run.batch("b1")
        os.kill(run.about["pid"], signal.SIGKILL)
        again = await place.next_run()
        await again.ask(answer="I have read it.")
        if not returns:
            await goes_on(life, again)
    if returns:
        async with place.bridge() as life:
            await goes_on(life, again)


async def goes_on(life, run) -> None:
    """The next prompt's call runs, and in the same process."""
    await run.ask(prompt="the next thing")
    assert await states(life) == [IntentState.DELIVERED]
    assert await run.batch("c1") == [None]
    assert await states(life) == [IntentState.ACKNOWLEDGED]
    assert await run.batch("d1") == [None]
    launched = [one async for one in life.supervisor.events(follow=False) if one.kind == "incarnation.launched"]
    assert len(launched) == 2
    assert await life.processes.end("left")


def late_call(run) -> dict:
    where = {"session_id": run.about["session"], "transcript_path": "/nowhere", "cwd": "/ws", "prompt_id": "p"}
    return {**where, "hook_event_name": "PreToolUse", "tool_use_id": "late", "tool_name": "Bash", "tool_input": {}}


async def test_nothing_runs_on_files_that_moved_before_the_bridge_was_told_and_left(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
    assert await run.batch("b1", "b2") == [BARRIER] * 2
    async with place.bridge() as life:
        (intent,) = await life.pane.intents()
        assert (intent.state, intent.batch_id) == (IntentState.DETECTED, None)
        denied = await run.batch("c1", "c2")
        assert denied == [(await life.pane.intents())[0].payload.decode()] * 2
        assert await run.batch("d1") == [None]
        assert await states(life) == [IntentState.ACKNOWLEDGED]
        await life.processes.end("left")


async def test_what_runs_while_the_bridge_is_away_goes_on_where_the_bridge_moves_the_files_itself(place: World):
    async with place.bridge(reconcile="true") as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        await life.pane.detect(moved())
    assert await run.batch("a1", "a2") == [None] * 2  # they move for a batch that is bound, and none is
    async with place.bridge():  # from now on they move before anybody is told
        pass
    assert await run.batch("b1") == [BARRIER]
    async with place.bridge(reconcile="true") as life:  # and this intent's have
        await life.processes.run("right", place.spec(prompt="go"))
    assert await run.batch("c1") == [BARRIER]
    async with place.bridge() as life:
        for pane in ("left", "right"):
            await life.processes.end(pane)


async def test_a_bridge_that_comes_back_goes_on_with_what_runs(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
    async with place.bridge() as life:
        denied = await run.batch("b1", "b2")
        (intent,) = await life.pane.intents()
        assert denied == [intent.payload.decode()] * 2
        assert await run.batch("c1") == [None]
        assert await states(life) == [IntentState.ACKNOWLEDGED]
        os.kill(run.about["pid"], signal.SIGKILL)
        await life.kind("incarnation.retired")
        assert await life.processes.end("left") is False


async def test_a_process_that_died_while_no_bridge_ran_is_noticed_by_the_next(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        await run.batch("a1")
        await life.pane.detect(moved())
        assert None not in await run.batch("b1")
    os.kill(run.about["pid"], signal.SIGKILL)
    async with place.bridge() as life:
        again = await place.next_run()
        assert again.about["resumed"]
        assert await again.batch("c1") == [None]
        assert await states(life) == [IntentState.ACKNOWLEDGED]
        await life.processes.end("left")


@pytest.mark.parametrize("restart", [Restart.OWED, Restart.NEVER])
async def test_a_process_nothing_is_owed_to_is_not_started_again(place: World, restart):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go", restart=restart))
        run = await place.next_run()
        run.tell(exit=0)
        await life.kind("incarnation.retired")
        # Started again by hand, in the conversation it had.  Its first prompt was given once.
        with pytest.raises(ValueError, match="first input"):
            await life.processes.again("left")
        await life.processes.again("left", "go on")
        again = await place.next_run()
        assert (again.about["resumed"], again.about["session"]) == (True, run.about["session"])
        assert again.about["said"] == "go on"
        await life.processes.end("left")


async def test_files_are_moved_in_the_folder_of_the_process_that_is_about_to_start(place: World):
    install(place.program.parent, "9.9.9")  # it is told by its start only, so they are moved before
    line = json.dumps({"reconciled": {**ANSWER, "payload": "they moved"}})
    script, where = place.home / "moves", place.home / "where"
    script.write_text(f"read attempt; pwd >> {where}\necho '{line}'\n")
    async with place.bridge(reconcile=f"sh {script}") as life:
        await life.pane.detect(moved())
        await life.processes.run("left", place.spec(prompt="go"))
        assert "they moved" in (await place.next_run()).about["said"]
        assert where.read_text().split() == [str(place.home)]
        await life.processes.end("left")


@NEEDS_TMUX
async def test_a_process_that_is_always_wanted_is_started_again(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go", restart=Restart.ALWAYS, terminal=Terminal.TMUX))
        run = await place.next_run()
        run.tell(exit=3)
        again = await place.next_run()
        assert (again.about["said"], again.about["session"]) == (None, run.about["session"])
        with pytest.raises(Occupied, match="lives in pane left"):
            await life.processes.run("left", place.spec(prompt="go"))
        other = evolve(place.spec(prompt="other"), terminal=Terminal.TMUX)
        await life.processes.run("left", other, replace=True)
        new = await place.next_run()
        assert new.about["said"] == "other"
        assert new.about["session"] != run.about["session"]
        assert await life.processes.end("left")


async def test_a_version_nobody_proved_is_told_by_a_restart_only(place: World):
    install(place.program.parent, "9.9.9")
    async with place.bridge() as life:
        first = await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
        run.tell(batch=["b1"])  # it is ended before it could tell more of that
        again = await place.next_run()
        (intent,) = await life.pane.intents()
        assert intent.payload.decode() in again.about["said"]
        assert (again.about["session"], again.about["resumed"]) == (run.about["session"], True)
        assert intent.mode is DeliveryMode.RESTART_STARTUP
        assert await again.batch("c1") == [None]
        assert await states(life) == [IntentState.ACKNOWLEDGED]
        assert first.incarnation_id != intent.incarnation_id
        await life.processes.end("left")


async def test_a_program_that_became_another_version_is_not_started_with_the_proofs_of_the_old(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        await run.batch("a1")
        await life.pane.detect(moved())
        await run.batch("b1")
        install(place.program.parent, "9.9.9")
        await life.processes.end("left")
        # An operator's start judges it anew.
        launch = await life.processes.again("left")
        again = await place.next_run()
        assert launch.startup.payload.decode() in again.about["said"]
        install(place.program.parent)
        os.kill(again.about["pid"], signal.SIGKILL)  # before its first tool call: the runtime starts the successor
        failed = await life.until(lambda event: "9.9.9 when pane" in str(event.data.get("reason")))
        assert failed.kind == "incarnation.retired"
        await life.kind("intent.exhausted")


@pytest.mark.parametrize(("more", "state"), [(0, IntentState.ACKNOWLEDGED), (1, IntentState.RECOVERY_REQUIRED)])
async def test_a_payload_that_no_restart_could_carry_is_a_persons_matter_at_once(place: World, more, state):
    install(place.program.parent, "9.9.9")
    line = json.dumps({"reconciled": {**ANSWER, "payload": "x" * (PAYLOAD_BYTES_MAX + more)}})
    script = place.home / "answer"
    script.write_text(line + "\n")
    async with place.bridge(reconcile=f"cat {script}") as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        await run.batch("a1")
        await life.pane.detect(moved())
        run.tell(batch=["b1"])
        if more == 0:
            again = await place.next_run()
            assert "x" * PAYLOAD_BYTES_MAX in again.about["said"]
            assert await again.batch("c1") == [None]
        else:
            await life.kind("intent.recovery_required")
        assert await states(life) == [state]
        await life.processes.end("left")


@pytest.mark.parametrize(
    ("channel", "pushes"),
    [(Channel.TOOLS, []), (Channel.EVENTS, ["--dangerously-load-development-channels", "server:fencepost"])],
)
async def test_an_agent_is_given_the_channel_it_was_started_with(place: World, channel, pushes):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go", channel=channel))
        argv = (await place.next_run()).about["argv"]
        at = argv.index("--mcp-config")
        assert argv[at - len(pushes) : at] == pushes
        (server,) = json.loads(await trio.Path(argv[at + 1]).read_text())["mcpServers"].values()
        assert ("--tools-only" in server["args"]) == (not pushes)
        assert argv[at + 2 :] == ["--model", "m"]
        with pytest.raises(ValueError, match="claude-code only"):
            await life.processes.run("right", evolve(place.spec(channel=channel), harness="codex", argv=("codex",)))
        await life.processes.end("left")


@NEEDS_TMUX
async def test_a_bridge_in_another_folder_leaves_a_pane_of_the_same_name_alone(place: World, monkeypatch):
    monkeypatch.setenv("TMUX_TMPDIR", str(place.folder.parent))
    async with world() as other, place.bridge(tmux_server=None) as life, other.bridge(tmux_server=None) as second:
        runs, looks = [], list[tuple[str, ...]]()
        for there, its in ((place, life), (other, second)):
            await its.processes.run("left", there.spec(prompt="go", terminal=Terminal.TMUX))
            runs.append(await there.next_run())
            look = await its.processes.launcher.attach_to("left")
            assert look is not None
            looks.append(look)
        try:
            assert [await run.batch("a1") for run in runs] == [[None], [None]]
            assert [look[2] for look in looks] == [tmux_server_of(one.folder) for one in (place, other)]
            assert looks[0][2] != looks[1][2]
            assert [await its.processes.end("left") for its in (life, second)] == [True, True]
        finally:
            for look in looks:
                await trio.run_process([*look[:3], "kill-server"], check=False, capture_stderr=True)


@NEEDS_TMUX
async def test_a_program_that_ends_at_once_was_not_started_and_its_last_words_are_told(place: World):
    wrong = place.program.with_name("wrong")
    wrong.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 2.1.197 && exit\necho unknown option; exit 1\n')
    wrong.chmod(0o755)
    async with place.bridge(settle_seconds=30) as life:
        spec = evolve(place.spec(terminal=Terminal.TMUX), argv=(str(wrong), "--bogus"))
        with pytest.raises(LaunchError, match=r"wrong' ended at once, and says: unknown option"):
            await life.processes.run("left", spec)
        assert not life.processes.book.wants("left")
        assert await life.processes.end("left") is False


async def test_a_process_that_is_fenced_for_good_is_ended(place: World):
    async with place.bridge() as life:
        first = await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        await life.pane.retire(first.incarnation_id, "by the test")
        with trio.fail_after(30):
            await life.processes.launcher.wait(first.incarnation_id)
        assert (await life.processes.launcher.processes()) == {}
        assert run.lines.readline() == ""


async def nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


async def test_what_was_fenced_when_its_bridge_died_is_ended_by_the_next(place: World, monkeypatch):
    async with place.bridge() as life:
        first = await life.processes.run("left", place.spec(prompt="go"))
        await place.next_run()
        monkeypatch.setattr(type(life.processes.launcher), "end", nothing)
        await life.pane.retire(first.incarnation_id, "by the test")
        monkeypatch.undo()
    async with place.bridge() as life:
        assert (await life.processes.launcher.processes()) == {}


def test_a_reconciling_program_that_is_not_there_is_told_at_the_start():
    with pytest.raises(ValueError, match="no program 'nosuch'"):
        reconciler_of(Harnesses(reconcile="nosuch --x"), Places(PaneBook(), {}))


# -- the book is lost --------------------------------------------------------------------------------------------------


def moves_files(place: World) -> tuple[str, Path]:
    """A reconciling program, and the file in which it says where it ran."""
    told = place.home.parent / "told"
    return shlex.join([sys.executable, str(RECONCILING), "plan", str(told)]), told


async def test_a_process_goes_on_in_its_folder_although_the_book_of_panes_was_lost(place: World):
    command, told = moves_files(place)
    async with place.bridge(reconcile=command) as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
    (place.folder / "panes.json").unlink()
    async with place.bridge(reconcile=command) as life:
        await life.pane.detect(moved())
        denied = await run.batch("b1")
        (intent,) = await life.pane.intents()
        assert (denied, intent.mode) == ([intent.payload.decode()], DeliveryMode.SOFT_BATCH)
        assert json.loads(told.read_text())["cwd"] == str(place.home)
        assert await run.batch("c1") == [None]
        assert await states(life) == [IntentState.ACKNOWLEDGED]
        await life.processes.end("left")


async def test_files_of_a_pane_whose_folder_nobody_knows_are_not_moved_until_it_is_told(place: World):
    command, told = moves_files(place)
    async with place.bridge(reconcile=command) as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
    (place.folder / "panes.json").unlink()
    (note,) = (place.folder / NOTES).glob("*.json")
    members = json.loads(note.read_text())
    note.write_text(json.dumps({**members, "cwd": None}))  # as a bridge of an earlier version wrote it
    async with place.bridge(reconcile=command) as life:
        intent_id = (await life.pane.detect(moved())).intent_id
        assert "moved" not in str(await run.batch("b1"))
        assert await states(life) == [IntentState.RECOVERY_REQUIRED]
        assert not told.exists()
        with pytest.raises(LaunchBlocked):
            await life.processes.run("left", place.spec(prompt="from the start"), replace=True)
        await life.pane.resolve(intent_id, "its folder is told", "a person")
        assert await run.batch("c1") == ["Read again: ünïcode\n"]
        assert json.loads(told.read_text())["cwd"] == str(place.home)
        await life.processes.end("left")
