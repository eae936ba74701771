"""Reconciling by a program of the user's: what it is told, what it may answer, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import sys
import uuid
from functools import partial
from pathlib import Path

import pytest
import trio
from bridges import moved
from launch_world import eventually, running

from fencepost.supervisor import (
    BlockPayload,
    IntentState,
    InvalidTransition,
    ModelTurn,
    Options,
    ToolBoundary,
    open_supervisor,
)
from fencepost.supervisor.bridge.reconciling import NO_FOLDER, CommandReconciler, NoAnswer, Notice

PROGRAM = Path(__file__).with_name("reconciling_program.py")


def command(*how: str, cwd: str | None = "/", timeout_seconds: float = 60) -> CommandReconciler:
    return CommandReconciler((sys.executable, str(PROGRAM), *how), lambda _pane_id: cwd, timeout_seconds)


class Attempt:
    """One attempt as a reconciler sees it, without a runtime."""

    resumed = False
    planned_op = None
    starting_op = None

    class intent:  # noqa: N801 - an attribute
        intent_id, pane_id, kind = f"intent-{uuid.uuid4()}", "left", "parent_advance"  # no other run's is ended
        from_base, to_base, classification_op, triggers = "main-1", "main-2", "op-1", ("push-1",)

    async def plan(self, *ids: str) -> None:
        self.planned = ids


async def settled(reconciler) -> list:
    """An intent detected and its batch drained: how far a runtime with this reconciler gets."""
    async with open_supervisor("memory://", reconciler=reconciler, options=Options(crashes_max=1)) as supervisor:
        pane = supervisor.pane("left")
        agent = (await pane.launch("claude-code")).incarnation_id
        await pane.detect(moved("main-1", "main-2"))
        said = await pane.pre_tool_use(ToolBoundary(agent, ModelTurn("t1", 1), "b1"), wait_seconds=30)
        return [said, (await pane.intents())[0]]


async def test_it_plans_before_it_acts_and_its_payload_is_what_the_model_gets(tmp_path):
    told = tmp_path / "told"
    said, intent = await settled(command("plan", str(told), cwd=str(tmp_path)))
    assert said == BlockPayload(intent.intent_id, "Read again: ünïcode\n".encode())
    assert (intent.planned_op, intent.result_op, intent.workspace_commit) == ("op-2", "op-2", "commit-2")
    heard = json.loads(told.read_text())
    assert heard["cwd"] == str(tmp_path)
    assert heard["attempt"] == {
        "intent_id": intent.intent_id,
        "pane_id": "left",
        "kind": "parent_advance",
        "from_base": "main-1",
        "to_base": "main-2",
        "classification_op": intent.classification_op,
        "triggers": list(intent.triggers),
        "resumed": False,
        "planned_op": None,
        "starting_op": None,
    }


@pytest.mark.parametrize(
    ("how", "state", "reason"),
    [
        ("recovery", IntentState.RECOVERY_REQUIRED, "two heads"),
        ("diverged", IntentState.TOPOLOGY_DIVERGED, "no target"),
    ],
)
async def test_it_may_say_that_a_human_must_look(how, state, reason):
    said, intent = await settled(command(how))
    assert (intent.state, intent.reason) == (state, reason)
    assert not isinstance(said, BlockPayload)


@pytest.mark.parametrize(
    "how",
    [
        ("line", "the payload"),
        ("line", '["the payload"]'),
        ("line", '{"reconciled": "the payload"}'),
        ("line", '{"reconciled": {"payload": "the payload"}}'),
        ("more", "the payload"),
    ],
)
async def test_what_it_may_have_said_to_the_agent_is_told_to_nobody_else(how):
    with pytest.raises(NoAnswer) as caught:
        await command(*how).reconcile(Attempt())
    assert "the payload" not in str(caught.value)


async def test_where_no_folder_is_known_nothing_is_run_and_a_human_must_look(tmp_path):
    told = tmp_path / "told"
    said, intent = await settled(command("plan", str(told), cwd=None))
    assert (intent.state, intent.reason) == (IntentState.RECOVERY_REQUIRED, NO_FOLDER)
    assert not isinstance(said, BlockPayload)
    assert not told.exists()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (("silent",), "ended without an answer.*it hurts"),
        (("status",), "ended with status 3"),
        (("line", "no json \x1b[31m"), "no JSON"),
        (("line", "[]"), "no such line"),
        (("line", '{"reconciled": {"payload": "x"}}'), "malformed"),
        (("line", '{"reconciled": {"result_op": "a", "workspace_commit": "b", "payload": 1, "anchor": {}}}'), "malf"),
        (("line", '{"needs_recovery": {}}'), "malformed"),
        (("line", '{"plan": {"planned_op": 1}}'), "no such line"),
        (("line", "[" * 100_000), "no JSON"),
        (("more", '{"diverged": {"reason": "or so"}}'), "more after its answer"),
        (("more", "x" * 100_000), "more after its answer"),
        (("deaf",), "does not read what it is told"),
        (("binary",), "no JSON"),
        (("floods",), "ended without an answer.*the end"),
    ],
)
async def test_what_is_no_answer_is_none(how, why):
    with pytest.raises(NoAnswer, match=why) as caught:
        await command(*how).reconcile(Attempt())
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "more",
    [{"covers": "main-1"}, {"covers": [1]}, {"discovered": {"kind": "x"}}, {"payload": ""}, {"payload": "\ud800"}],
)
async def test_members_of_another_kind_are_not_made_to_fit(more):
    where = {"change_id": "c", "commit_id": "c", "op_id": "o"}
    answer = {"result_op": "a", "workspace_commit": "b", "payload": "read", "anchor": where, **more}
    with pytest.raises(NoAnswer, match="malformed"):
        await command("line", json.dumps({"reconciled": answer})).reconcile(Attempt())


async def test_a_blank_line_behind_the_answer_says_nothing():
    assert (await command("more", "").reconcile(Attempt())).result_op == "op-2"


async def test_a_plan_that_is_refused_is_told_in_the_runtimes_words():
    class Planned(Attempt):
        async def plan(self, *_ids: str) -> None:
            raise InvalidTransition("it already plans another operation")

    with pytest.raises(NoAnswer, match="already plans another") as caught:
        await command("plan", "/nowhere").reconcile(Planned())
    assert isinstance(caught.value.__cause__, InvalidTransition)


async def test_what_it_leaves_running_does_not_hold_its_answer_up_and_is_ended(tmp_path):
    told = tmp_path / "pids"
    answer = await command("lingers", str(told)).reconcile(Attempt())
    assert answer.result_op == "op-2"
    assert not any(running(pid) for pid in pids_in(told))


async def test_an_answer_counts_once_the_program_has_ended():
    with pytest.raises(NoAnswer, match="longer than 2 seconds"):
        await command("waits", timeout_seconds=2).reconcile(Attempt())


async def test_a_program_that_is_not_there_is_told():
    with pytest.raises(FileNotFoundError):
        await CommandReconciler(("/nowhere/at/all",), lambda _: "/").reconcile(Attempt())


async def until_told(path: Path) -> list[int]:
    await trio.to_thread.run_sync(eventually, lambda: path.exists() and path.read_text())
    return pids_in(path)


def pids_in(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()]


async def test_a_timeout_ends_it_with_all_it_started(tmp_path):
    told = tmp_path / "pids"
    with pytest.raises(NoAnswer, match="longer than 2 seconds"):
        await command("hang", str(told), timeout_seconds=2).reconcile(Attempt())
    assert not any(running(pid) for pid in pids_in(told))


async def test_what_an_earlier_life_left_running_is_gone_before_the_next_attempt(tmp_path):
    told = tmp_path / "pids"
    left = await trio.lowlevel.open_process(
        [sys.executable, str(PROGRAM), "hang", str(told)],
        stdin=-1,
        env={**os.environ, "FENCEPOST_INCARNATION": f"reconcile:{Attempt.intent.intent_id}"},
        start_new_session=True,
    )
    await left.stdin.send_all(b'{"attempt": {}}\n')
    with trio.fail_after(30):
        pids = await until_told(told)
    assert all(running(pid) for pid in pids)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.wait)
        answer = await command("plain").reconcile(Attempt())
    assert answer.payload == "Read again: ünïcode\n".encode()
    assert not any(running(pid) for pid in pids)


async def test_a_cancelled_attempt_leaves_nothing(tmp_path):
    told = tmp_path / "pids"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(command("hang", str(told)).reconcile, Attempt()))
        with trio.fail_after(30):
            pids = await until_told(told)
        nursery.cancel_scope.cancel()
    assert not any(running(pid) for pid in pids)


async def test_a_notice_says_what_moved_and_touches_nothing():
    said, intent = await settled(Notice())
    assert b"main-1" in said.payload
    assert b"main-2" in said.payload
    assert intent.workspace_commit == "main-2"
