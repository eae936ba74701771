"""The Codex adapter against a real runtime: no soft delivery at any version, a restart, and the echo of a turn id."""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager

import pytest
import trio
from bridges import Workspace, moved, payload_of
from hypothesis import given, strategies as st

from fencepost.supervisor import Capabilities, IntentState, Reason, open_supervisor
from fencepost.supervisor.bridge.adapters import HookAnswer, turn_echo
from fencepost.supervisor.bridge.adapters.codex import CodexAdapter
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.hook import open_spool
from fencepost.supervisor.bridge.startup_tag import tagged_input

ALLOWED = HookAnswer()


class Life:
    """One process in one pane."""

    def __init__(self, folder, supervisor) -> None:
        self.folder = folder
        self.supervisor = supervisor
        self.pane = supervisor.pane("pane-1")
        self.adapter = CodexAdapter(Gate(folder / "spool"))
        self.launch = None

    async def start(self, version="0.171.0") -> None:
        self.launch = await self.pane.launch("codex", "session", self.adapter.capabilities(version))

    async def call(self, call_id, turn_id="t1", **more) -> HookAnswer:
        return await self.hook("PreToolUse", turn_id=turn_id, tool_use_id=call_id, **more)

    async def prompt(self, text, turn_id="t1") -> HookAnswer:
        return await self.hook("UserPromptSubmit", turn_id=turn_id, prompt=text)

    async def hook(self, name, **more) -> HookAnswer:
        event = {"hook_event_name": name, "session_id": "session", "transcript_path": "/x"} | more
        return await self.adapter.on_hook(self.pane, self.launch.incarnation_id, event, 2.0)

    async def intent(self):
        return (await self.pane.intents())[-1]


@asynccontextmanager
async def life(folder):
    async with open_supervisor("memory://", reconciler=Workspace()) as supervisor:
        alive = Life(folder, supervisor)
        await alive.start()
        yield alive


def spool(folder, content) -> None:
    descriptor = open_spool(str(folder / "spool"), "pane-1")
    os.write(descriptor, content)
    os.close(descriptor)


def reason_in(answer: HookAnswer) -> str:
    return json.loads(answer.stdout)["hookSpecificOutput"]["permissionDecisionReason"]


@pytest.mark.parametrize("version", [None, "0.171.0", "9.9.9"])
def test_no_version_can_be_told_softly(version) -> None:
    assert CodexAdapter().capabilities(version) == Capabilities(soft_batches=False, turn_order=False)


async def test_with_nothing_pending_calls_run(tmp_path) -> None:
    async with life(tmp_path) as alive:
        assert [await alive.call(call) for call in "aba"] == [ALLOWED] * 3


async def test_a_call_beside_a_pending_intent_is_blocked_and_starts_the_restart(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        first, second = await alive.call("a"), await alive.call("b")
        assert reason_in(first).startswith("An update is pending that reaches you only at the start")
        assert reason_in(second).startswith("This process has been replaced")
        assert first.delivered is None


async def test_the_replacement_is_told_at_its_start_and_the_turn_id_is_the_echo(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        await alive.call("a")
        await alive.start()  # the host's word that the process is gone: the files move, and the payload is bound
        assert alive.launch.startup.payload == payload_of("main-2")
        await alive.prompt(tagged_input(alive.launch.startup), "t7")
        assert (await alive.intent()).state is IntentState.DELIVERED
        assert await alive.call("b", "t7") == ALLOWED
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED


@pytest.mark.parametrize("turn_id", ["t8", "", None])
async def test_another_turn_is_no_echo(tmp_path, turn_id) -> None:
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        await alive.call("a")
        await alive.start()  # the host's word that the process is gone: the files move, and the payload is bound
        await alive.prompt(tagged_input(alive.launch.startup), "t7")
        answer = await alive.call("b", turn_id)
        assert reason_in(answer).startswith("This process did not prove")
        assert (await alive.intent()).state is IntentState.DELIVERED


async def test_an_agent_that_answered_what_it_was_told_proves_it_with_any_later_call_of_that_session(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        await alive.call("a")
        await alive.start()
        await alive.prompt(tagged_input(alive.launch.startup), "t7")
        assert await alive.hook("Stop", turn_id="t7") == ALLOWED
        assert (await alive.intent()).state is IntentState.DELIVERED  # an answer alone is no boundary
        await alive.prompt("go on", "t8")
        assert await alive.call("b", "t8") == ALLOWED
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED


@pytest.mark.parametrize(
    ("stop", "call"),
    [
        ({"turn_id": "t6"}, {}),  # another turn was answered
        ({"turn_id": "t7", "agent_id": "nested"}, {}),
        ({"turn_id": "t7", "session_id": ""}, {"session_id": ""}),
        ({"turn_id": "t7"}, {"session_id": "another"}),
        ({"turn_id": "t7"}, {"agent_id": "nested"}),
    ],
)
async def test_no_other_answer_and_no_other_sessions_call_proves_it(tmp_path, stop, call) -> None:
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        await alive.call("a")
        await alive.start()
        await alive.prompt(tagged_input(alive.launch.startup), "t7")
        await alive.hook("Stop", **stop)
        assert reason_in(await alive.call("b", "t8", **call)).startswith("This process did not prove")


async def test_a_successor_inherits_nobodys_proof(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        await alive.call("a")
        await alive.start()
        await alive.prompt(tagged_input(alive.launch.startup), "t7")
        await alive.hook("Stop", turn_id="t7")
        await alive.start()  # in the same session
        assert reason_in(await alive.call("b", "t8")).startswith("This process did not prove")


async def test_what_a_nested_agent_was_told_and_calls_is_no_echo(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        await alive.call("a")
        await alive.start()
        said = tagged_input(alive.launch.startup)
        await alive.hook("UserPromptSubmit", turn_id="t8", prompt=said, agent_id="nested")
        assert (await alive.intent()).state is IntentState.MATERIALIZED  # nobody has the files' news yet
        await alive.prompt(said, "t7")
        assert reason_in(await alive.call("b", "t7", agent_id="nested")).startswith("This process did not prove")


async def test_what_another_pane_says_crowds_no_echo_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(turn_echo, "_REMEMBERED_MAX", 1)
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        await alive.call("z")
        await alive.start()
        told = tagged_input(alive.launch.startup)
        await alive.prompt(told)
        said = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "turn_id": "t2", "prompt": told}
        await alive.adapter.on_hook(alive.supervisor.pane("pane-2"), "process", said, 0)
        assert await alive.call("a") == ALLOWED
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED


async def test_what_passed_unseen_is_taken_in(tmp_path) -> None:
    async with life(tmp_path) as alive:
        event = {"hook_event_name": "PreToolUse", "turn_id": "t1", "tool_use_id": "a"}
        said = {"version": 1, "incarnation_id": alive.launch.incarnation_id, "harness": "codex", "event": event}
        spool(tmp_path, json.dumps(said).encode() + b"\n")
        await alive.pane.detect(moved("main-1", "main-2"))
        assert await alive.call("a") == ALLOWED  # it ran already
        assert reason_in(await alive.call("b")).endswith("This one restarts.")


async def test_an_unclear_spool_restarts(tmp_path) -> None:
    async with life(tmp_path) as alive:
        spool(tmp_path, b'{"version": 1, "incarnation_id": "x", "harness": "codex", "event": {}}\n{"torn')
        assert reason_in(await alive.call("a")).startswith("It is not known whether a call")
        letters = await alive.supervisor.dead_letters()
        assert [letter.reason for letter in letters if letter.reason is not Reason.UNKNOWN_INCARNATION] == []


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.lists(st.integers(), max_size=2)
FIELDS = ("hook_event_name", "tool_use_id", "turn_id", "prompt", "session_id", "agent_id")
KINDS = ("PreToolUse", "UserPromptSubmit", "Stop")


@given(st.sampled_from(KINDS), st.lists(st.tuples(st.sampled_from(FIELDS), VALUES), max_size=3))
def test_a_hostile_event_is_answered_or_is_no_event(tmp_path_factory, kind, spoiled) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    event = {"hook_event_name": kind, "tool_use_id": "a", "turn_id": "t", **dict(spoiled)}

    async def one() -> None:
        async with life(folder) as alive:
            try:
                answer = await alive.adapter.on_hook(alive.pane, alive.launch.incarnation_id, event, 0)
            except ValueError:
                answer = ALLOWED
            assert answer == ALLOWED

    trio.run(one)
