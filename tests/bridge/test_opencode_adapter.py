"""The OpenCode adapter against a real runtime: a restart, the echo of a prompt's id, and what takes an answer back."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
import trio
from bridges import Workspace, moved, payload_of
from hypothesis import given, strategies as st

from fencepost.supervisor import Capabilities, IntentState, open_supervisor
from fencepost.supervisor.bridge.adapters import HookAnswer
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.adapters.opencode import OpenCodeAdapter
from fencepost.supervisor.bridge.startup_tag import tagged_input

ALLOWED = HookAnswer()
PROMPT, NEXT, CALL = "msg_prompt", "msg_next", "msg_said/toolu_1"


class Life:
    """One process in one pane, which says what its plugin says."""

    def __init__(self, folder, supervisor) -> None:
        self.pane = supervisor.pane("pane-1")
        self.adapter = OpenCodeAdapter(Gate(folder / "spool"))
        self.incarnation_id = ""
        self.startup = None

    async def start(self) -> None:
        launch = await self.pane.launch("opencode", "ses_1", self.adapter.capabilities("1.18.34"))
        self.incarnation_id, self.startup = launch.incarnation_id, launch.startup

    async def told(self) -> None:
        """Its predecessor was blocked, and it has been given the payload as its first prompt."""
        await self.pane.detect(moved("main-1", "main-2"))
        await self.call()
        await self.start()
        assert self.startup.payload == payload_of("main-2")
        await self.hook("UserPromptSubmit", turn_id=PROMPT, prompt=tagged_input(self.startup))
        assert await self.state() is IntentState.DELIVERED

    async def call(self, turn_id=PROMPT, call=CALL, **more) -> HookAnswer:
        return await self.hook("PreToolUse", turn_id=turn_id, tool_use_id=call, **more)

    async def hook(self, name, **more) -> HookAnswer:
        event = {"hook_event_name": name, "session_id": "ses_1", **more}
        return await self.adapter.on_hook(self.pane, self.incarnation_id, event, 2.0)

    async def state(self) -> IntentState:
        return (await self.pane.intents())[-1].state


@asynccontextmanager
async def life(folder):
    async with open_supervisor("memory://", reconciler=Workspace()) as supervisor:
        alive = Life(folder, supervisor)
        await alive.start()
        yield alive


def reason_in(answer: HookAnswer) -> str:
    return json.loads(answer.stdout)["hookSpecificOutput"]["permissionDecisionReason"]


@pytest.mark.parametrize("version", [None, "1.18.34", "9.9.9"])
def test_no_version_can_be_told_softly(version) -> None:
    assert OpenCodeAdapter().capabilities(version) == Capabilities(soft_batches=False, turn_order=False)


async def test_calls_run_until_something_is_pending_and_then_the_process_is_replaced(tmp_path) -> None:
    async with life(tmp_path) as alive:
        assert await alive.call() == ALLOWED
        await alive.pane.detect(moved("main-1", "main-2"))
        assert await alive.call() == ALLOWED  # the same call of the same message, asked about again
        answer = await alive.call(call="msg_other/toolu_1")
        assert reason_in(answer).startswith("An update is pending that reaches you only at the start")
        assert answer.delivered is None


async def test_a_call_that_follows_from_the_told_prompt_proves_that_it_was_told(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.told()
        assert await alive.call() == ALLOWED
        assert await alive.state() is IntentState.ACKNOWLEDGED


async def test_so_does_a_later_call_of_the_session_in_which_it_was_answered(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.told()
        await alive.hook("Stop", turn_id=PROMPT)
        assert await alive.call(NEXT) == ALLOWED
        assert await alive.state() is IntentState.ACKNOWLEDGED


@pytest.mark.parametrize(
    ("between", "call"),
    [
        ([("Stop", {"turn_id": PROMPT}), ("Forgotten", {})], {}),
        ([], {}),
        ([("Stop", {"turn_id": NEXT})], {}),
        ([("Stop", {"turn_id": PROMPT, "agent_id": "ses_2"})], {}),
        ([("Stop", {"turn_id": PROMPT})], {"session_id": "ses_2"}),
        ([("Stop", {"turn_id": PROMPT})], {"agent_id": "ses_2"}),
    ],
    ids=["taken back", "not answered", "another was", "a nested agent did", "another session", "a nested call"],
)
async def test_nothing_else_proves_it(tmp_path, between, call) -> None:
    async with life(tmp_path) as alive:
        await alive.told()
        for name, more in between:
            assert await alive.hook(name, **more) == ALLOWED
        assert reason_in(await alive.call(NEXT, **call)).startswith("This process did not prove")
        assert await alive.state() is not IntentState.ACKNOWLEDGED


async def test_what_is_taken_back_in_another_session_takes_nothing_back_in_this_one(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.told()
        await alive.hook("Stop", turn_id=PROMPT)
        await alive.hook("Forgotten", session_id="ses_2")
        assert await alive.call(NEXT) == ALLOWED


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.lists(st.integers(), max_size=2)
FIELDS = ("hook_event_name", "tool_use_id", "turn_id", "prompt", "session_id", "agent_id")
KINDS = ("PreToolUse", "UserPromptSubmit", "Stop", "Forgotten")


@given(st.sampled_from(KINDS), st.lists(st.tuples(st.sampled_from(FIELDS), VALUES), max_size=3))
def test_a_hostile_event_is_answered_or_is_no_event(tmp_path_factory, kind, spoiled) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    event = {"hook_event_name": kind, "tool_use_id": "a", "turn_id": "t", **dict(spoiled)}

    async def one() -> None:
        async with life(folder) as alive:
            try:
                answer = await alive.adapter.on_hook(alive.pane, alive.incarnation_id, event, 0)
            except ValueError:
                answer = ALLOWED
            assert answer == ALLOWED

    trio.run(one)
