"""The hook program without a bridge: what the store tells it, what it writes down, and how a bridge takes that in."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import sqlite3
import threading
from contextlib import asynccontextmanager, closing

import pytest
import trio
import trio.testing
from bridges import Workspace, moved, payload_of
from claude_session import ClaudeSession
from hook_programs import call, finish, place

from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.records import AdmissionRecord
from fencepost.supervisor import (
    ActorCrashed,
    Allow,
    Capabilities,
    IntentState,
    MailboxClosed,
    ModelTurn,
    NeedsRecovery,
    Options,
    Reason,
    ToolBoundary,
    open_supervisor,
)
from fencepost.supervisor.bridge import hook
from fencepost.supervisor.bridge.adapters import HookAnswer, spool as spool_module
from fencepost.supervisor.bridge.adapters.claude import ClaudeCodeAdapter
from fencepost.supervisor.bridge.adapters.codex import CodexAdapter
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.adapters.spool import parse_spool, tell_hooks
from fencepost.supervisor.bridge.startup_tag import tagged_input

PANE = "pane/1"
ALLOWED = HookAnswer()


@pytest.fixture
def here():
    with place() as found:
        yield found


@asynccontextmanager
async def opened(here, workspace=None):
    async with open_supervisor(here.environment["FENCEPOST_STORE"], reconciler=workspace or Workspace()) as supervisor:
        yield supervisor.pane(PANE)


async def launched(here, pane, **capabilities):
    launch = await pane.launch("claude-code", capabilities=Capabilities(**capabilities))
    here.environment["FENCEPOST_INCARNATION"] = launch.incarnation_id
    return launch


async def asked(here, pane, turn: int):
    boundary = ToolBoundary(here.environment["FENCEPOST_INCARNATION"], ModelTurn(f"t{turn}", turn), f"b{turn}")
    return await pane.pre_tool_use(boundary, wait_seconds=5)


# -- what the store tells, for each state an intent can be in ---------------------------------------------------------


async def _nothing(here, pane) -> None:
    await launched(here, pane)


async def _detected(here, pane) -> None:
    await launched(here, pane)
    await pane.detect(moved("main-1", "main-2"))


async def _detected_hard(here, pane) -> None:
    await launched(here, pane, soft_batches=False)
    await pane.detect(moved("main-1", "main-2"))


async def _materialized(here, pane) -> None:
    await _detected(here, pane)
    await asked(here, pane, 1)


async def _delivered(here, pane) -> None:
    await _materialized(here, pane)
    (intent,) = await pane.intents()
    await pane.mark_delivered(intent.intent_id, intent.incarnation_id, "t1", "b1")


async def _completed(here, pane) -> None:
    await _delivered(here, pane)
    await pane.post_tool_batch(here.environment["FENCEPOST_INCARNATION"], "t1", "b1")


async def _acknowledged(here, pane) -> None:
    await _completed(here, pane)
    assert await asked(here, pane, 2) == Allow()


async def _second_detected(here, pane) -> None:
    await _acknowledged(here, pane)
    await pane.detect(moved("main-2", "main-3"))


async def _startup(here, pane) -> None:
    await _materialized(here, pane)
    await launched(here, pane)


async def _accepted(here, pane) -> None:
    await _materialized(here, pane)
    startup = (await launched(here, pane)).startup
    await pane.startup_ready(
        here.environment["FENCEPOST_INCARNATION"], startup.startup_delivery_id, startup.payload_sha256
    )


async def _replaced(here, pane) -> None:
    await launched(here, pane)
    await pane.launch("claude-code")


async def _retired(here, pane) -> None:
    await _materialized(here, pane)
    await pane.retire(here.environment["FENCEPOST_INCARNATION"], "gone")


async def _unknown(here, pane) -> None:
    await launched(here, pane)
    here.environment["FENCEPOST_INCARNATION"] = "never-launched"


async def _other_pane(here, pane) -> None:
    await launched(here, pane)
    here.environment["FENCEPOST_PANE"] = "pane/2"


async def _diverged(here, pane) -> None:
    await launched(here, pane)
    await pane.detect(moved("main-1", "main-2", ambiguous="two parents"))


TOLD = payload_of("main-2").decode()
STATES = {
    _nothing: None,
    _detected: hook.BARRIER,
    _detected_hard: hook.BARRIER,
    _materialized: TOLD,
    _delivered: TOLD,
    _completed: TOLD,
    _acknowledged: None,
    _second_detected: hook.BARRIER,
    _startup: TOLD,
    _accepted: TOLD,
    _replaced: hook.REPLACED,
    _retired: hook.REPLACED,
    _unknown: hook.REPLACED,
    _other_pane: hook.REPLACED,
    _diverged: hook.BARRIER,
}


@pytest.mark.parametrize("open_still", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("bring_about", "reason"), STATES.items(), ids=[state.__name__ for state in STATES])
async def test_a_barrier_holds_without_the_bridge_and_only_a_barrier(here, bring_about, reason, open_still) -> None:
    async with opened(here) as pane:
        await bring_about(here, pane)
        ran = await trio.to_thread.run_sync(here.run, call()) if open_still else None
    ran = ran or here.run(call())
    assert (None if ran.stdout == b"" else ran.reason) == reason


MOVES_ITSELF = {_detected, _detected_hard, _second_detected}


@pytest.mark.parametrize("bring_about", STATES, ids=[state.__name__ for state in STATES])
async def test_where_the_bridge_moves_files_itself_what_is_bound_to_nothing_is_no_barrier(here, bring_about) -> None:
    tell_hooks(here.spool, moved_when_bound=True, is_clear=True)
    async with opened(here) as pane:
        await bring_about(here, pane)
    ran = here.run(call())
    assert (None if ran.stdout == b"" else ran.reason) == (None if bring_about in MOVES_ITSELF else STATES[bring_about])


async def test_what_was_said_of_an_earlier_bridge_holds_for_its_processes_no_longer(here) -> None:
    tell_hooks(here.spool, moved_when_bound=True, is_clear=True)
    async with opened(here) as pane:
        await _detected(here, pane)
    tell_hooks(here.spool, moved_when_bound=False, is_clear=False)
    assert here.run(call()).reason == hook.BARRIER
    tell_hooks(here.spool, moved_when_bound=True, is_clear=False)  # those files have moved already
    assert here.run(call()).reason == hook.BARRIER
    tell_hooks(here.spool, moved_when_bound=True, is_clear=True)
    tell_hooks(here.spool, moved_when_bound=True, is_clear=False)
    assert here.run(call()).stdout == b""


async def test_a_reconciliation_is_a_barrier_also_after_the_bridge_died_in_it(here) -> None:
    workspace = Workspace(gate=trio.Event())
    async with opened(here, workspace) as pane:
        await _detected(here, pane)
        boundary = ToolBoundary(here.environment["FENCEPOST_INCARNATION"], ModelTurn("t1", 1), "b1")
        await pane.pre_tool_use(boundary, wait_seconds=0)
        await workspace.started.wait()
    assert here.run(call()).reason == hook.BARRIER


async def test_a_conflict_is_a_barrier(here) -> None:
    async with opened(here, Workspace(NeedsRecovery("dirty"))) as pane:
        await _materialized(here, pane)
    assert here.run(call()).reason == hook.BARRIER


async def test_a_barrier_of_another_pane_is_none(here) -> None:
    async with opened(here) as pane:
        await _materialized(here, pane)
    async with open_supervisor(here.environment["FENCEPOST_STORE"], reconciler=Workspace()) as supervisor:
        await launched(here, supervisor.pane("pane/2"))
    assert here.run(call(), FENCEPOST_PANE="pane/2").stdout == b""


async def test_the_store_is_only_read(here) -> None:
    async with opened(here) as pane:
        await _materialized(here, pane)
    path = here.folder / "bridge.db"
    before = path.read_bytes()
    here.run(call())
    assert path.read_bytes() == before
    path.chmod(0o400)
    here.folder.chmod(0o500)
    try:
        assert here.run(call(), FENCEPOST_SPOOL=str(here.folder / "hook-spool")).reason == TOLD
    finally:
        here.folder.chmod(0o700)


def _another_program(path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE incarnations (a)")


def _newer(path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no database" * 1000),
        _newer,
        _another_program,
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["gone", "empty", "damaged", "newer", "another program's", "a folder"],
)
async def test_a_store_that_cannot_be_read_lets_nothing_run(here, spoil) -> None:
    async with opened(here) as pane:
        await launched(here, pane)
    spoil(here.folder / "bridge.db")
    assert here.run(call()).reason == hook.NO_BARRIER_KNOWN


@pytest.mark.parametrize(
    "url", ["", "memory://x", "jsonl:////tmp/x", "sqlite:///relative.db", "postgresql://h/db", "x"]
)
def test_a_store_of_another_kind_lets_nothing_run(here, url) -> None:
    ran = here.run(call(), FENCEPOST_STORE=url)
    assert ran.reason == hook.NO_BARRIER_KNOWN
    assert "not the URL of a SQLite store" in ran.stderr


# -- what is written down ---------------------------------------------------------------------------------------------


async def test_what_passed_is_written_down_privately_one_line_each(here) -> None:
    async with opened(here) as pane:
        await launched(here, pane)
    here.run(call("a", transcript_path="/t.jsonl", tool_input={"secret": "x"}))
    here.run({"hook_event_name": "PostToolBatch", "tool_calls": [{"tool_use_id": "a", "x": 1}, 7]}, "PostToolBatch")
    here.run({"hook_event_name": "UserPromptSubmit", "prompt": "secret"}, "UserPromptSubmit")
    first, second = here.spooled()
    assert first["event"] == call("a", transcript_path="/t.jsonl")
    assert (first["version"], first["harness"]) == (1, "claude-code")
    assert first["incarnation_id"] == here.environment["FENCEPOST_INCARNATION"]
    assert second["event"] == {"hook_event_name": "PostToolBatch", "tool_calls": [{"tool_use_id": "a"}, {}]}
    (file,) = here.spool.iterdir()
    assert (file.stat().st_mode & 0o777, here.spool.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("bring_about", [_detected, _materialized, _retired])
async def test_what_is_denied_is_not_written_down_as_passed(here, bring_about) -> None:
    async with opened(here) as pane:
        await launched(here, pane)
        here.run(call("a"))
        await bring_about(here, pane)
    here.run(call("b"))
    assert [line["event"] for line in here.spooled()] == [call("a")]


async def test_what_is_denied_because_nothing_can_be_read_is_not_written_down_as_passed(here) -> None:
    assert here.run(call()).reason == hook.NO_BARRIER_KNOWN
    assert here.spooled() == []


def test_what_is_denied_because_the_deadline_has_come_is_not_written_down_as_passed(here) -> None:
    os.mkfifo(here.folder / "bridge.db")  # whoever opens it to read waits for a writer
    assert here.run(call(), deadline=1).reason == hook.NO_ANSWER
    assert here.spooled() == []


async def test_no_sibling_runs_of_a_call_that_was_denied_before_any_batch_was_bound(here) -> None:
    session = ClaudeSession(here.folder)
    async with opened(here) as pane:
        await _detected(here, pane)
    first, second = session.turn("a", "b")
    assert here.run(first).reason == hook.BARRIER
    async with opened(here) as pane:
        incarnation = here.environment["FENCEPOST_INCARNATION"]
        answer = await adapter_of(here, session).on_hook(pane, incarnation, second, 5)
    assert TOLD in json.loads(answer.stdout)["hookSpecificOutput"]["permissionDecisionReason"]


async def test_a_torn_line_spoils_only_itself(here) -> None:
    async with opened(here) as pane:
        await launched(here, pane)
    here.run(call("a"))
    (file,) = here.spool.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    here.run(call("b"))
    unseen, unclear = parse_spool(file.read_bytes())
    assert [one.event["tool_use_id"] for one in unseen] == ["b"]
    assert unclear


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: folder.chmod(0o755),
        lambda folder: (folder.rename(folder.with_name("x")), folder.symlink_to(folder.with_name("x"))),
        lambda folder: (folder.rmdir(), folder.write_text("")),
        lambda folder: (folder / spool_name()).symlink_to("/tmp/elsewhere"),
        lambda folder: os.mkfifo(folder / spool_name()),
        lambda folder: ((folder / spool_name()).write_text(""), (folder / spool_name()).chmod(0o644)),
    ],
    ids=["open folder", "linked folder", "no folder", "linked file", "pipe", "open file"],
)
async def test_what_cannot_be_written_down_does_not_pass(here, spoil) -> None:
    async with opened(here) as pane:
        await launched(here, pane)
    here.spool.mkdir(mode=0o700)
    spoil(here.spool)
    assert here.run(call()).reason == hook.NO_BARRIER_KNOWN


def spool_name() -> str:
    with place() as other:
        os.close(hook.open_spool(str(other.spool), PANE))
        return next(other.spool.iterdir()).name


async def test_an_event_too_long_to_be_written_down_does_not_pass(here) -> None:
    async with opened(here) as pane:
        await launched(here, pane)
    assert here.run(call("x" * 100_000)).reason == hook.NO_BARRIER_KNOWN


async def test_a_lock_that_is_never_given_back_denies_before_the_deadline(here) -> None:
    async with opened(here) as pane:
        await launched(here, pane)
    descriptor = hook.open_spool(str(here.spool), PANE)
    try:
        assert hook.try_lock(descriptor)
        assert here.run(call(), deadline=2).reason == hook.NO_BARRIER_KNOWN
    finally:
        os.close(descriptor)


async def test_a_barrier_that_rises_while_the_hook_waits_for_the_lock_is_seen(here) -> None:
    async with opened(here) as pane:
        await _detected(here, pane)
        descriptor = hook.open_spool(str(here.spool), PANE)
        assert hook.try_lock(descriptor)  # as the bridge has it while it decides
        process = here.start(deadline=20)
        await asked(here, pane, 1)
        os.close(descriptor)
        ran = await trio.to_thread.run_sync(finish, process, call(), 20)
    assert ran.reason == TOLD


# -- how a bridge takes it in -----------------------------------------------------------------------------------------


def adapter_of(here, session) -> ClaudeCodeAdapter:
    return ClaudeCodeAdapter(Gate(here.spool), transcripts=[session.projects])


async def test_a_batch_that_passed_unseen_goes_on_and_the_next_is_told(here) -> None:
    session = ClaudeSession(here.folder)
    async with opened(here) as pane:
        await launched(here, pane)
    first, second = session.turn("a", "b")
    assert here.run(first).stdout == b""
    async with opened(here) as pane:
        adapter, incarnation = adapter_of(here, session), here.environment["FENCEPOST_INCARNATION"]
        await pane.detect(moved("main-1", "main-2"))
        assert await adapter.on_hook(pane, incarnation, second, 5) == ALLOWED
        assert here.spooled() == []
        (later,) = session.turn("c")
        answer = await adapter.on_hook(pane, incarnation, later, 5)
    assert TOLD in json.loads(answer.stdout)["hookSpecificOutput"]["permissionDecisionReason"]


async def test_a_batch_that_passed_unseen_is_known_before_another_is_decided(here) -> None:
    session = ClaudeSession(here.folder)
    async with opened(here) as pane:
        await launched(here, pane)
    here.run(session.turn("a", "b")[0])
    async with opened(here) as pane:
        adapter, incarnation = adapter_of(here, session), here.environment["FENCEPOST_INCARNATION"]
        (later,) = session.turn("c")
        assert await adapter.on_hook(pane, incarnation, later, 5) == ALLOWED
        await pane.detect(moved("main-1", "main-2"))
        assert await adapter.on_hook(pane, incarnation, session.call("b"), 5) == ALLOWED  # admitted, durably


async def test_a_completion_nobody_took_is_taken_in_and_the_next_turn_acknowledges(here) -> None:
    session = ClaudeSession(here.folder)
    async with opened(here) as pane:
        await _detected(here, pane)
        (event,) = session.turn("a")
        incarnation = here.environment["FENCEPOST_INCARNATION"]
        answer = await adapter_of(here, session).on_hook(pane, incarnation, event, 5)
        told = answer.delivered
        await pane.mark_delivered(told.intent_id, incarnation, told.turn_id, told.batch_id)
    here.run(session.ended("a"), "PostToolBatch")
    async with opened(here) as pane:
        (event,) = session.turn("b")
        assert await adapter_of(here, session).on_hook(pane, incarnation, event, 5) == ALLOWED
        assert (await pane.intents())[0].acknowledged_at is not None


def leave_line(here, event) -> None:
    """As a hook leaves it whose deadline comes between its writing and its reading: it has denied the call."""
    descriptor = hook.open_spool(str(here.spool), PANE)
    os.write(descriptor, hook.Event(event, here.environment, "claude-code").spooled())
    os.close(descriptor)


async def test_a_call_that_was_denied_while_files_moved_was_told_nothing_and_the_next_turn_is(here) -> None:
    session = ClaudeSession(here.folder)
    (first,) = session.turn("a")
    async with opened(here, Workspace(gate=trio.Event())) as pane:  # gone before it is done
        await _detected(here, pane)
        incarnation = here.environment["FENCEPOST_INCARNATION"]
        answer = await adapter_of(here, session).on_hook(pane, incarnation, first, 0)
        assert answer.delivered is None
    assert here.run(first).reason == hook.BARRIER
    leave_line(here, first)
    here.run(session.ended("a"), "PostToolBatch")
    async with opened(here) as pane:
        while (await pane.intents())[0].state is not IntentState.MATERIALIZED:
            await trio.lowlevel.checkpoint()
        (later,) = session.turn("b")
        answer = await adapter_of(here, session).on_hook(pane, incarnation, later, 5)
        assert TOLD in json.loads(answer.stdout)["hookSpecificOutput"]["permissionDecisionReason"]
        assert answer.delivered is not None
        assert (await pane.intents())[0].acknowledged_at is None
    assert here.spooled() == []


async def test_a_replacement_whose_first_call_nobody_took_is_not_replaced_again(here) -> None:
    session = ClaudeSession(here.folder)
    async with opened(here) as pane:
        await _materialized(here, pane)
        startup = (await launched(here, pane)).startup
        incarnation = here.environment["FENCEPOST_INCARNATION"]
        await adapter_of(here, session).on_hook(pane, incarnation, session.prompt(tagged_input(startup)), 5)
    assert here.run(session.turn("a")[0]).reason == TOLD
    async with opened(here) as pane:
        (later,) = session.turn("b")
        assert await adapter_of(here, session).on_hook(pane, incarnation, later, 5) == ALLOWED
        assert (await pane.intents())[0].acknowledged_at is not None


@pytest.mark.parametrize(
    "line",
    [b'{"version":1,"incarnation_id":"x","ev', b"garbage\n", b'{"version":2}\n', b"[" * 100_000 + b"\n", b"\xff\n"],
    ids=["torn", "garbage", "version", "deep", "bytes"],
)
async def test_what_cannot_be_read_may_have_been_any_call_and_restarts_once(here, line) -> None:
    session = ClaudeSession(here.folder)
    async with opened(here) as pane:
        await launched(here, pane)
        os.close(hook.open_spool(str(here.spool), PANE))
        next(here.spool.iterdir()).write_bytes(line)
        (event,) = session.turn("a")
        adapter = adapter_of(here, session)
        answer = await adapter.on_hook(pane, here.environment["FENCEPOST_INCARNATION"], event, 5)
        assert b"not known whether a call" in answer.stdout
        await launched(here, pane)
        assert await adapter.on_hook(pane, here.environment["FENCEPOST_INCARNATION"], event, 5) == ALLOWED


async def test_a_pass_of_a_call_nobody_finds_is_a_maybe(here) -> None:
    session = ClaudeSession(here.folder)
    async with opened(here) as pane:
        await launched(here, pane)
    here.run(session.call("never written"))
    async with opened(here) as pane:
        (event,) = session.turn("a")
        adapter, incarnation = adapter_of(here, session), here.environment["FENCEPOST_INCARNATION"]
        answer = await adapter.on_hook(pane, incarnation, event, 5)
    assert b"not known whether a call" in answer.stdout


async def test_a_hook_of_nobody_does_not_forget_what_is_lost_of_the_process_that_lives(here) -> None:
    session = ClaudeSession(here.folder)
    async with opened(here) as pane:
        dead = (await launched(here, pane)).incarnation_id
        await launched(here, pane)
    here.run({"hook_event_name": "PreToolUse", "prompt_id": "p", "transcript_path": str(session.path)})  # of no call
    async with opened(here) as pane:
        (event,) = session.turn("a")
        adapter, incarnation = adapter_of(here, session), here.environment["FENCEPOST_INCARNATION"]
        for nobody in (dead, "nobody"):
            assert (await adapter.on_hook(pane, nobody, event, 5)).stdout
        assert len(here.spooled()) == 1
        answer = await adapter.on_hook(pane, incarnation, event, 5)
        assert b"not known whether a call" in answer.stdout
        assert here.spooled() == []


async def test_who_leaves_while_a_long_spool_is_taken_in_leaves_the_rest_of_it_to_the_next(here) -> None:
    async with opened(here) as pane:
        await launched(here, pane)
    for number in range(3):
        here.run(call(f"toolu_{number}"))
    told = []

    async def retell(_pane, unseen) -> bool:
        if len(told) == 2 and not leaving.cancel_called:
            leaving.cancel()  # the hook's deadline is over
        await trio.lowlevel.checkpoint()
        told.append(unseen.event["tool_use_id"])
        return True

    async with opened(here) as pane:
        gate = Gate(here.spool)
        gate.retell_by("claude-code", retell)
        boundary = ToolBoundary(here.environment["FENCEPOST_INCARNATION"], ModelTurn("t1", 1), "b1")
        with trio.CancelScope() as leaving:
            await gate.pre_tool_use(pane, boundary, 0)
        assert leaving.cancelled_caught
        assert isinstance(await gate.pre_tool_use(pane, boundary, 0), Allow)
        assert told == ["toolu_0", "toolu_1", "toolu_2"]
        assert here.spooled() == []
        here.run(call("toolu_3"), FENCEPOST_SOCKET=str(here.folder / "nobody.sock"), FENCEPOST_SPOOL=str(here.spool))
        await gate.pre_tool_use(pane, boundary, 0)
        assert told[3:] == ["toolu_3"]


async def test_a_pass_of_a_dead_process_is_a_dead_letter_and_holds_nobody_up(here) -> None:
    session = ClaudeSession(here.folder)
    async with opened(here) as pane:
        await launched(here, pane)
    here.run(session.turn("a")[0])
    async with open_supervisor(here.environment["FENCEPOST_STORE"]) as supervisor:
        pane = supervisor.pane(PANE)
        await launched(here, pane)
        (event,) = session.turn("b")
        adapter, incarnation = adapter_of(here, session), here.environment["FENCEPOST_INCARNATION"]
        assert await adapter.on_hook(pane, incarnation, event, 5) == ALLOWED
        letters = [letter.reason for letter in await supervisor.dead_letters()]
    assert letters == [Reason.RETIRED_INCARNATION]
    assert here.spooled() == []


async def test_a_spool_that_somebody_holds_blocks_its_own_pane_alone(here, monkeypatch) -> None:
    monkeypatch.setattr(spool_module, "PATIENCE_SECONDS", 0.01)
    session = ClaudeSession(here.folder)
    async with open_supervisor("memory://") as supervisor:
        descriptor = hook.open_spool(str(here.spool), PANE)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            adapter = adapter_of(here, session)
            (event,) = session.turn("a")
            answers = {}
            for pane_id in (PANE, "pane/2"):
                pane = supervisor.pane(pane_id)
                incarnation = (await pane.launch("claude-code")).incarnation_id
                answers[pane_id] = await adapter.on_hook(pane, incarnation, event, 5)
        finally:
            os.close(descriptor)
    assert b"Try again shortly" in answers[PANE].stdout
    assert answers["pane/2"] == ALLOWED


async def test_what_passed_unseen_is_told_by_the_rule_of_its_own_harness_whoever_asks_first(here) -> None:
    session = ClaudeSession(here.folder)
    first, second = session.turn("a", "b")
    async with opened(here) as pane:
        old = (await pane.launch("codex")).incarnation_id
        await launched(here, pane)
        assert here.run(first).stdout == b""
        gate, incarnation = Gate(here.spool), here.environment["FENCEPOST_INCARNATION"]
        claude, codex = ClaudeCodeAdapter(gate, [session.projects]), CodexAdapter(gate)
        late = {"hook_event_name": "PreToolUse", "turn_id": "t", "tool_use_id": "x"}
        assert b"replaced" in (await codex.on_hook(pane, old, late, 5)).stdout
        await pane.detect(moved("main-1", "main-2"))
        assert await claude.on_hook(pane, incarnation, second, 5) == ALLOWED  # the first one still runs


async def test_what_passed_unseen_of_a_harness_that_nobody_tells_may_have_been_any_call(here) -> None:
    session = ClaudeSession(here.folder)
    async with opened(here) as pane:
        await launched(here, pane)
        here.run(session.turn("a")[0], harness="nosuch")
        (event,) = session.turn("b")
        answer = await adapter_of(here, session).on_hook(pane, here.environment["FENCEPOST_INCARNATION"], event, 5)
        assert b"not known whether a call" in answer.stdout


# -- a decision and its lock ------------------------------------------------------------------------------------------


class SlowStore:
    """Holds the commit of a decision back until it is told to go on."""

    def __init__(self, monkeypatch) -> None:
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        run_batch = MutationLine._run_batch

        def slow(line, run, entries):
            mutations = (one.job for one in entries if isinstance(one.job, Mutation))
            if any(isinstance(put, AdmissionRecord) for mutation in mutations for put in mutation.puts):
                self.has_begun.set()
                assert self.may_go_on.wait(60)
            return run_batch(line, run, entries)

        monkeypatch.setattr(MutationLine, "_run_batch", slow)

    async def began(self) -> None:
        await trio.to_thread.run_sync(self.has_begun.wait, abandon_on_cancel=True)


def is_free(here) -> bool:
    descriptor = hook.open_spool(str(here.spool), PANE)
    try:
        return hook.try_lock(descriptor)
    finally:
        os.close(descriptor)


async def test_a_hook_whose_question_was_cut_off_does_not_decide_before_the_bridge_has(here, monkeypatch) -> None:
    store = SlowStore(monkeypatch)
    tell_hooks(here.spool, moved_when_bound=True, is_clear=True)
    async with opened(here) as pane:
        await _detected(here, pane)
        gate, incarnation = Gate(here.spool), here.environment["FENCEPOST_INCARNATION"]
        try:
            async with trio.open_nursery() as nursery:
                first = ToolBoundary(incarnation, ModelTurn("t1", 1), "b1")
                nursery.start_soon(gate.pre_tool_use, pane, first, 5)
                await store.began()
                nursery.cancel_scope.cancel()  # the bridge was asked to stop a second time
            assert not is_free(here)
            process = here.start(deadline=20)
        finally:
            store.may_go_on.set()
        ran = await trio.to_thread.run_sync(finish, process, call(), 20)
        assert ran.reason in {hook.BARRIER, TOLD}
        assert (await pane.intents())[0].batch_id == "b1"
        assert is_free(here)


async def test_a_decision_that_a_closed_runtime_may_still_commit_keeps_its_lock(here, monkeypatch) -> None:
    store, options = SlowStore(monkeypatch), Options(close_seconds=0.2)

    async def ask(gate, pane, boundary) -> None:
        with pytest.raises(MailboxClosed):
            await gate.pre_tool_use(pane, boundary, 5)

    async def life(gate) -> None:
        async with (
            trio.open_nursery() as nursery,
            open_supervisor(here.environment["FENCEPOST_STORE"], reconciler=Workspace(), options=options) as supervisor,
        ):
            pane = supervisor.pane(PANE)
            await _detected(here, pane)
            first = ToolBoundary(here.environment["FENCEPOST_INCARNATION"], ModelTurn("t1", 1), "b1")
            nursery.start_soon(ask, gate, pane, first)
            await store.began()

    gates = [Gate(here.spool)]
    try:
        await life(gates[0])
        assert not is_free(here)
    finally:
        store.may_go_on.set()
    gates.clear()
    gc.collect()
    assert is_free(here)


async def test_a_question_that_nobody_waits_for_any_more_is_not_asked(here) -> None:
    async with opened(here) as pane:
        await launched(here, pane)
        here.run(call("a"))
        await pane.detect(moved("main-1", "main-2"))
        gate, incarnation = Gate(here.spool), here.environment["FENCEPOST_INCARNATION"]
        may_go_on = trio.Event()
        async with trio.open_nursery() as nursery:

            async def retell(_pane, _unseen) -> bool:
                nursery.cancel_scope.cancel()
                await may_go_on.wait()
                return True

            gate.retell_by("claude-code", retell)
            boundary = ToolBoundary(incarnation, ModelTurn("t1", 1), "b1")
            nursery.start_soon(gate.pre_tool_use, pane, boundary, 5)
        assert not is_free(here)
        may_go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert is_free(here)
        assert (await pane.intents())[0].batch_id is None


async def test_a_decision_that_fails_gives_its_lock_back(here, monkeypatch) -> None:
    async with opened(here) as pane:
        await launched(here, pane)

        async def fails(*_arguments, **_more):
            raise ActorCrashed(f"pane:{PANE}", 1)

        boundary = ToolBoundary(here.environment["FENCEPOST_INCARNATION"], ModelTurn("t1", 1), "b1")
        gate = Gate(here.spool)
        with monkeypatch.context() as patched, pytest.raises(ActorCrashed):
            patched.setattr(pane, "pre_tool_use", fails)
            await gate.pre_tool_use(pane, boundary, 5)
        assert is_free(here)
        assert await gate.pre_tool_use(pane, boundary, 5) == Allow()
