"""The whole runtime inside an asyncio program: same import, same calls."""

from __future__ import annotations

import asyncio
import threading

import pytest
from bridges import moved, payload_of, reconciled

from fencepost.supervisor import (
    Allow,
    Applied,
    BlockPayload,
    IntentState,
    MailboxClosed,
    ModelTurn,
    Options,
    Reason,
    ToolBoundary,
    check,
    open_supervisor,
)


class AsyncioWorkspace:
    """A Reconciler that can only live on asyncio's loop."""

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []

    async def reconcile(self, attempt):
        self.loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        await attempt.plan("planned", "starting")
        return reconciled(attempt.intent.to_base)


class AsyncioProcesses:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.launches: asyncio.Queue = asyncio.Queue()

    async def stop(self, incarnation) -> None:
        await asyncio.sleep(0)
        self.log.append(f"stop {incarnation.epoch}")

    async def start(self, launch) -> None:
        await asyncio.sleep(0)
        self.log.append(f"start {launch.epoch}")
        await self.launches.put(launch)


def boundary(launch, turn: int, batch: str, **more) -> ToolBoundary:
    return ToolBoundary(launch.incarnation_id, ModelTurn(f"turn-{turn}", turn), batch, **more)


def test_an_intent_travels_through_an_asyncio_bridge(url):
    async def bridge() -> None:
        workspace = AsyncioWorkspace()
        async with open_supervisor(url, reconciler=workspace) as supervisor:
            pane = supervisor.pane("pane")
            launch = await pane.launch("claude-code", session_id="session-1")
            assert (await supervisor.pane_for_session("session-1")).pane_id == "pane"
            assert await supervisor.pane_for_session("nobody") is None
            intent = await pane.detect(moved("A", "B"))
            answers = await asyncio.gather(*(pane.pre_tool_use(boundary(launch, 1, "b1")) for _ in range(4)))
            assert answers == [BlockPayload(intent.intent_id, payload_of("B"))] * 4
            assert workspace.loops == [asyncio.get_running_loop()]
            assert await pane.mark_delivered(intent.intent_id, launch.incarnation_id, "turn-1", "b1") == Applied()
            assert await pane.post_tool_batch(launch.incarnation_id, "turn-1", "b1") == Applied()
            assert await pane.pre_tool_use(boundary(launch, 2, "b2")) == Allow()
            assert (await supervisor.intent(intent.intent_id).view()).state is IntentState.ACKNOWLEDGED
            kinds = [event.kind async for event in supervisor.events(follow=False)]
            assert kinds[-1] == "intent.acknowledged"
            assert (await supervisor.status()).panes == 1
        assert await check(url) == []

    asyncio.run(bridge())


def test_a_launcher_on_asyncio_replaces_a_fenced_process(url):
    async def bridge() -> None:
        processes = AsyncioProcesses()
        async with open_supervisor(url, reconciler=AsyncioWorkspace(), launcher=processes) as supervisor:
            pane = supervisor.pane("pane")
            first = await pane.launch("claude-code")
            await processes.launches.get()
            await pane.detect(moved("A", "B"))
            await pane.pre_tool_use(boundary(first, 1, "b1"))
            decision = await pane.pre_tool_use(boundary(first, 2, "b2"))
            assert decision.reason is Reason.BATCH_NOT_COMPLETE
            launch = await processes.launches.get()
            assert processes.log == ["start 1", "stop 1", "start 2"]
            startup = launch.startup
            ready = await pane.startup_ready(launch.incarnation_id, startup.startup_delivery_id, startup.payload_sha256)
            assert ready == Applied()
            echo = startup.startup_delivery_id
            assert await pane.pre_tool_use(boundary(launch, 1, "c1", startup_delivery_id=echo)) == Allow()

    asyncio.run(bridge())


def test_the_hosts_own_tasks_keep_running_and_nothing_is_left_behind(url):
    before = set(threading.enumerate())

    async def bridge() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        async with open_supervisor(url, reconciler=AsyncioWorkspace()) as supervisor:
            seen = ticks
            await supervisor.pane("pane").launch("claude-code")
            assert ticks > seen
        ticker.cancel()

    policy = asyncio.get_event_loop_policy()
    for _ in range(2):
        asyncio.run(bridge())
    assert asyncio.get_event_loop_policy() is policy
    assert set(threading.enumerate()) == before


def test_cancelling_the_host_closes_the_runtime_and_gives_the_store_back(url):
    before = set(threading.enumerate())

    async def bridge(opened: asyncio.Event) -> None:
        async with open_supervisor(url, reconciler=AsyncioWorkspace()) as supervisor:
            await supervisor.pane("pane").launch("claude-code")
            opened.set()
            await asyncio.Event().wait()

    async def main() -> None:
        opened = asyncio.Event()
        task = asyncio.create_task(bridge(opened))
        await opened.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with open_supervisor(url) as supervisor:
            assert (await supervisor.status()).panes == 1

    asyncio.run(main())
    assert set(threading.enumerate()) == before


def test_a_callback_that_ignores_its_end_does_not_keep_the_runtime_open(url):
    class Stubborn:
        async def reconcile(self, attempt):
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if leaving:
                        raise

    leaving: list[bool] = []

    async def bridge() -> None:
        options = Options(close_seconds=0.2)
        async with open_supervisor(url, reconciler=Stubborn(), options=options) as supervisor:
            pane = supervisor.pane("pane")
            launch = await pane.launch("claude-code")
            await pane.detect(moved("A", "B"))
            waiting = asyncio.create_task(pane.pre_tool_use(boundary(launch, 1, "b1")))
            await asyncio.sleep(0.01)
            assert not waiting.done()
        with pytest.raises(MailboxClosed):
            await waiting
        with pytest.raises(MailboxClosed):
            await pane.sync_status()
        leaving.append(True)

    asyncio.run(bridge())


def test_several_runtimes_share_one_program(tmp_path):
    async def bridge() -> None:
        async with (
            open_supervisor(f"sqlite:///{tmp_path}/one.db") as one,
            open_supervisor(f"sqlite:///{tmp_path}/two.db") as two,
        ):
            await asyncio.gather(one.pane("p").launch("claude-code"), two.pane("p").launch("codex"))
            assert (await one.status()).panes == (await two.status()).panes == 1

    asyncio.run(bridge())
