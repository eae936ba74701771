# ruff: noqa: ASYNC110 - what another task or process did is read from outside
"""Tools of a bridge on asyncio: the same calls, run on the bridge's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from fencepost.actors.tools import bash_tool
from fencepost.supervisor import (
    Applied,
    CapabilityExpired,
    Checkpoint,
    Hooks,
    ModelTurn,
    Options,
    PlannedCall,
    Replay,
    Tool,
    ToolResult,
    asyncio_host,
    check,
    open_supervisor,
)

TURN = ModelTurn("turn-1", 1)


def run(main) -> None:
    asyncio.run(asyncio.wait_for(main(), 30))


async def started(supervisor, *calls: PlannedCall):
    pane = supervisor.pane("pane")
    await pane.launch("claude-code")
    return await pane.start_batch("op", TURN, "assistant", calls)


def test_updates_memos_steps_and_hooks_on_asyncio(url):
    async def main() -> None:
        home, seen = asyncio.get_running_loop(), []

        def here(what: str) -> None:
            assert asyncio.get_running_loop() is home
            assert threading.current_thread() is threading.main_thread()
            seen.append(what)

        async def tool(arguments, invocation):
            here("tool")
            invocation.update(ToolResult("half"), checkpoint=True)
            await asyncio.sleep(0.01)
            await invocation.set_memo("m", [1])
            assert await invocation.get_memo("m") == [1]
            assert await invocation.step("s", lambda: asyncio.sleep(0, "value")) == "value"
            with pytest.raises(ValueError):
                invocation.update(ToolResult(object()))
            invocation.update(ToolResult("last"), checkpoint=True)
            return ToolResult("done")

        async def before_tool(_call, _arguments, _invocation_id):
            here("before")

        def after_tool(_call, _result, _invocation_id):
            here("after")

        hooks = Hooks(before_tool, after_tool)
        async with open_supervisor(url, tools=[Tool("tool", tool)], hooks=hooks) as supervisor:
            kinds = []

            async def follow() -> None:
                async for event in supervisor.events():
                    kinds.append(event.kind)
                    if event.kind == "turn_end":
                        return

            following = asyncio.create_task(follow())
            batch = await started(supervisor, PlannedCall("c", "tool", {}))
            outcome = await batch.wait()
            await following
            assert outcome.entries[0].content == [{"type": "text", "text": "done"}]
        assert seen == ["before", "tool", "after"]
        assert kinds.count("tool_update") == 2
        assert kinds.index("tool_start") < kinds.index("tool_update") < kinds.index("tool_end")
        assert await check(url) == []

    run(main)


def test_cancelling_and_abandoning_on_asyncio(url):
    async def main() -> None:
        late, running, release = [], asyncio.Event(), asyncio.Event()

        async def polite(_arguments, _invocation):
            await asyncio.sleep(60)

        async def stubborn(_arguments, invocation):
            running.set()
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            try:
                await invocation.set_memo("late", 1)
            except CapabilityExpired:
                late.append(1)
            return ToolResult("too late")

        tools = [Tool("polite", polite), Tool("stubborn", stubborn)]
        options = Options(tool_grace_seconds=0.1)
        async with open_supervisor(url, tools=tools, options=options) as supervisor:
            batch = await started(supervisor, PlannedCall("a", "polite"), PlannedCall("b", "stubborn"))
            await running.wait()
            assert await batch.cancel() == Applied()
            outcome = await batch.wait()
            assert outcome.checkpoint is Checkpoint.ABORTED
            assert all("unknown" in entry.content[-1]["text"] for entry in outcome.entries)
            release.set()
            await asyncio.sleep(0.05)
            assert (await supervisor.status()).fault is None
        assert late in ([], [1])
        assert await check(url) == []

    run(main)


@pytest.mark.parametrize("ends_by", ["result", "error"])
def test_what_a_cancelled_tool_still_comes_to_within_its_grace_is_kept_on_asyncio(url, ends_by, monkeypatch):
    monkeypatch.setattr(asyncio_host, "CALLBACK_GRACE", 0.01)  # the grace of a tool is another, and longer

    async def main() -> None:
        running, cleaned = asyncio.Event(), asyncio.Event()

        async def tidy(_arguments, _invocation):
            running.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await cleaned.wait()
                if ends_by == "error":
                    raise ValueError("tidied up") from None
            return ToolResult("tidied up")

        options = Options(tool_grace_seconds=30)
        async with open_supervisor(url, tools=[Tool("tidy", tidy)], options=options) as supervisor:
            batch = await started(supervisor, PlannedCall("a", "tidy"))
            await running.wait()
            assert await batch.cancel() == Applied()
            await asyncio.sleep(0.1)  # ten times what an ordinary callback has
            cleaned.set()
            (entry,) = (await batch.wait()).entries
            assert (entry.content[0]["text"], entry.is_error) == ("tidied up", ends_by == "error")

    run(main)


def test_a_replay_beside_an_execution_that_will_not_end_is_told_on_asyncio(url, monkeypatch):
    monkeypatch.setattr(asyncio_host, "CALLBACK_GRACE", 0.01)

    async def main() -> None:
        runs, running, release = [], asyncio.Event(), asyncio.Event()

        async def stubborn(_arguments, _invocation):
            runs.append(1)
            if len(runs) == 1:
                running.set()
                while not release.is_set():
                    with contextlib.suppress(asyncio.CancelledError):
                        await release.wait()
            return ToolResult("done")

        options = Options(tool_grace_seconds=0.05)
        tools = [Tool("stubborn", stubborn, replay=Replay.SAFE)]
        async with open_supervisor(url, tools=tools, options=options) as supervisor:
            batch = await started(supervisor, PlannedCall("a", "stubborn"))
            await running.wait()
            await supervisor.kill(batch.address)
            await batch.wait()
            kinds = [event.kind async for event in supervisor.events(follow=False)]
            release.set()
            assert (len(runs), kinds.count("tool_replay.overlaps")) == (2, 1)

    run(main)


def test_a_cancelled_tool_that_takes_its_time_does_not_hold_the_closing_up_on_asyncio(url):
    async def main() -> None:
        running, release = asyncio.Event(), asyncio.Event()

        async def stubborn(_arguments, _invocation):
            running.set()
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()

        options = Options(tool_grace_seconds=60, close_seconds=60)
        async with asyncio.timeout(20):
            async with open_supervisor(url, tools=[Tool("stubborn", stubborn)], options=options) as supervisor:
                batch = await started(supervisor, PlannedCall("a", "stubborn"))
                await running.wait()
                await batch.cancel()
            release.set()

    run(main)


def test_a_safe_tool_is_replayed_on_asyncio(url):
    async def main() -> None:
        runs, hang = [], True

        async def tool(_arguments, invocation):
            runs.append(invocation.invocation_id)
            if hang:
                await asyncio.sleep(60)
            return ToolResult("done")

        tools = [Tool("tool", tool, replay=Replay.SAFE)]
        async with open_supervisor(url, tools=tools) as supervisor:
            await started(supervisor, PlannedCall("c", "tool"))
            while not runs:
                await asyncio.sleep(0.01)
        hang = False
        async with open_supervisor(url, tools=tools) as supervisor:
            outcome = await supervisor.pane("pane").batch("op", "turn-1").wait()
        assert not outcome.entries[0].is_error
        assert len(runs) == 2
        assert len(set(runs)) == 1

    run(main)


def test_bash_on_asyncio():
    async def main() -> None:
        async with open_supervisor("memory://", tools=[bash_tool()]) as supervisor:
            batch = await started(supervisor, PlannedCall("c", "bash", {"command": "echo hello; exit 2"}))
            (entry,) = (await batch.wait()).entries
            assert entry.content[0]["text"] == "hello\n[Exit status 2]"

    run(main)


def test_bash_is_killed_on_asyncio(tmp_path):
    async def main() -> None:
        mark = tmp_path / "mark"
        command = f"touch {tmp_path}/begun; sleep 3; touch {mark}"
        async with open_supervisor("memory://", tools=[bash_tool()]) as supervisor:
            batch = await started(supervisor, PlannedCall("c", "bash", {"command": command}))
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.02)
            await batch.cancel()
            assert (await batch.wait()).checkpoint is Checkpoint.ABORTED
            await asyncio.sleep(3.2)
        assert not mark.exists()

    run(main)
