"""Tools and hooks that mean no good, or know no better: each spoils its own call and nothing else."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import trio
import trio.testing
from tool_scenarios import World as Tools, call, opened, started, texts

from fencepost.mailbox.envelope import Envelope
from fencepost.supervisor import (
    Block,
    Checkpoint,
    Hooks,
    Options,
    PlannedCall,
    Replay,
    Tool,
    ToolResult,
    check,
    open_supervisor,
)


class Foreign(BaseException):
    """Of a library that thinks no `except Exception` may hold it up."""


async def _raise(error: BaseException) -> ToolResult:
    raise error


async def _raise_in_a_nursery(error: BaseException) -> ToolResult:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_raise, error)
    return ToolResult("not reached")


BODIES = {
    "its own BaseException": (lambda: _raise(Foreign("no")), "the callback ended by Foreign"),
    "the interpreter's exit": (lambda: _raise(SystemExit(3)), "the callback ended by SystemExit"),
    "a generator's": (lambda: _raise(GeneratorExit()), "the callback ended by GeneratorExit"),
    "one in a group": (lambda: _raise_in_a_nursery(Foreign("no")), "the callback ended by BaseExceptionGroup"),
    "an error in a group": (lambda: _raise_in_a_nursery(ValueError("the cause")), "the cause"),
}


@pytest.mark.parametrize("body", BODIES)
async def test_whatever_a_tool_raises_is_its_calls_result_and_the_runtime_lives_on(url, body):
    raises, words = BODIES[body]
    runs = []

    async def hostile(_arguments, _invocation) -> ToolResult:
        runs.append(1)
        return await raises()

    async def good(_arguments, _invocation) -> ToolResult:
        return ToolResult("done")

    tools = [Tool("hostile", hostile, replay=Replay.SAFE), Tool("good", good)]
    async with open_supervisor(url, tools=tools) as supervisor:
        batch = await started(supervisor.pane("pane"), PlannedCall("a", "hostile"), PlannedCall("b", "good"))
        with trio.fail_after(5):
            first, second = (await batch.wait()).entries
        assert first.is_error
        assert words in texts([first])[0]
        assert texts([second]) == ["done"]
        assert not [event async for event in supervisor.events(follow=False) if event.kind == "actor.crashed"]
    assert runs == [1]
    assert await check(url) == []


async def test_an_error_beside_a_cancellation_is_what_the_tool_came_to(url):
    running = trio.Event()

    async def cleans_up_badly() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("cannot clean up")

    async def tool(_arguments, _invocation) -> ToolResult:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cleans_up_badly)
            nursery.start_soon(trio.sleep_forever)
            running.set()
        return ToolResult("not reached")

    async with open_supervisor(url, tools=[Tool("tool", tool)]) as supervisor:
        batch = await started(supervisor.pane("pane"), PlannedCall("c", "tool"))
        await running.wait()
        await batch.cancel()
        with trio.fail_after(5):
            outcome = await batch.wait()
        assert outcome.checkpoint is Checkpoint.ABORTED
        assert "cannot clean up" in texts(outcome.entries)[0]
        assert not [event async for event in supervisor.events(follow=False) if event.kind == "actor.crashed"]


@pytest.mark.parametrize("where", ["details", "usage", "content", "update", "memo"])
async def test_an_integer_that_python_would_not_read_back_is_unstorable_everywhere(url, where):
    runs, long = [], 10**5_000

    async def tool(_arguments, invocation) -> ToolResult:
        runs.append(1)
        if where == "memo":
            await invocation.set_memo("long", long)
        if where == "update":
            invocation.update(ToolResult("shown", long), checkpoint=True)
        content = [{"type": "text", "text": "x", "more": long if where == "content" else 0}]
        return ToolResult(content, long if where == "details" else 0, usage=long if where == "usage" else 0)

    async with open_supervisor(url, tools=[Tool("tool", tool, replay=Replay.SAFE)]) as supervisor:
        batch = await started(supervisor.pane("pane"), PlannedCall("c", "tool"))
        with trio.fail_after(5):
            (entry,) = (await batch.wait()).entries
    assert entry.is_error
    assert "bits" in texts([entry])[0]
    assert runs == [1]


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, -(10**4_299), 10**4_299])
async def test_integers_of_every_other_size_are_kept_and_audited(url, number):
    kept = [number]

    async def tool(_arguments, invocation) -> ToolResult:
        await invocation.set_memo("kept", kept)
        return ToolResult("done", await invocation.get_memo("kept"))

    async with open_supervisor(url, tools=[Tool("tool", tool)]) as supervisor:
        batch = await started(supervisor.pane("pane"), PlannedCall("c", "tool", {"n": kept}))
        await batch.wait()
    assert await check(url) == []
    async with open_supervisor(url) as supervisor:
        (entry,) = await supervisor.pane("pane").entries()
        told: dict[str, Any] = {event.kind: event.data async for event in supervisor.events(follow=False)}
    assert entry.details == told["tool_start"]["arguments"]["n"] == told["tool_end"]["result"]["details"] == kept
    assert isinstance(told["tool_end"]["result"]["details"][0], int)


@pytest.mark.parametrize("answer", [Block("no", terminate=None), Block("no", terminate=1), Block(7), 7, object])
async def test_an_answer_that_a_hook_cannot_give_blocks_the_call_once(url, answer):
    asked, tools = [], Tools()

    def before_tool(_call, _arguments, _invocation_id):
        asked.append(1)
        return answer

    async with opened(url, tools, hooks=Hooks(before_tool)) as (_, pane):
        batch = await started(pane, call("A"))
        with trio.fail_after(5):
            (entry,) = (await batch.wait()).entries
    assert entry.is_error
    assert "before_tool must answer" in texts([entry])[0]
    assert (asked, tools.begun["A"]) == ([1], 0)


async def test_an_update_of_a_thread_that_comes_too_late_is_ignored():
    """`update` belongs to the bridge's loop; a thread that breaks that rule must not break the runtime with it."""
    looked_at, settled, left = threading.Event(), threading.Event(), threading.Event()

    class Slow(dict[str, object]):
        def items(self):
            looked_at.set()
            assert settled.wait(5)
            return super().items()

    def late(invocation) -> None:
        invocation.update(ToolResult("late", Slow(a=1)), checkpoint=True)
        left.set()

    async def tool(_arguments, invocation) -> ToolResult:
        threading.Thread(target=late, args=(invocation,)).start()
        assert await trio.to_thread.run_sync(looked_at.wait, 5)
        return ToolResult("done")

    async with open_supervisor("memory://", tools=[Tool("tool", tool)]) as supervisor:
        batch = await started(supervisor.pane("pane"), PlannedCall("c", "tool"))
        assert texts((await batch.wait()).entries) == ["done"]
        settled.set()
        assert await trio.to_thread.run_sync(left.wait, 5)
        await trio.testing.wait_all_tasks_blocked()
        assert (await supervisor.status()).fault is None
        updates = [event async for event in supervisor.events(follow=False) if event.kind == "tool_update"]
        assert updates == []


def envelopes() -> int:
    """How many there are in this process; what earlier tests left behind is none of this one's."""
    gc.collect()
    return sum(isinstance(found, Envelope) for found in gc.get_objects())


async def test_those_who_stopped_waiting_leave_nothing_behind():
    tools = Tools()
    tools.hold("A")
    async with opened("memory://", tools, options=Options(idle_seconds=60)) as (_, pane):
        batch = await started(pane, call("A"))
        await tools.runs("A")
        before = envelopes()
        for _ in range(50):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(batch.wait)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
        assert envelopes() <= before + 2
        tools.let_go()
        await batch.wait()
