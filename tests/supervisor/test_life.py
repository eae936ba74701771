"""Activation on demand, sleep, backpressure and budgets, on a clock that jumps (memory store only)."""

from __future__ import annotations

import trio
from bridges import Harness, Workspace, moved
from frozen_time import TrioClock

from fencepost.supervisor import Allow, Options, Reason, SyncStatus, open_supervisor

SECOND = 1.0


async def test_idle_actors_fall_asleep_and_wake_with_everything_they_knew(autojump_clock):
    async with open_supervisor("memory://", reconciler=Workspace(), clock=TrioClock()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        assert await harness.call(1, "b1") == Allow()
        assert (await supervisor.status()).awake == 1
        await trio.sleep(40 * SECOND)
        assert (await supervisor.status()).awake == 0
        await pane.detect(moved("A", "B"))
        assert await harness.call(1, "b1") == Allow(), "admitted before it slept"
        assert await pane.sync_status() is SyncStatus.PENDING


async def test_an_actor_that_owes_something_stays_awake(autojump_clock):
    gate = trio.Event()
    async with open_supervisor("memory://", reconciler=Workspace(gate=gate), clock=TrioClock()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                harness.call,
                1,
                "b1",
            )
            await trio.sleep(100 * SECOND)
            assert f"intent:{intent.intent_id}" in supervisor._runtime._registry.awake
            gate.set()


async def test_a_waiting_call_is_blocked_when_exactly_its_budget_is_spent(autojump_clock):
    async with open_supervisor("memory://", reconciler=Workspace(gate=trio.Event())) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        for wait, budget in [(None, Options().sibling_wait_seconds), (17.0, 17.0), (0, 0.0)]:
            began = trio.current_time()
            assert (await harness.call(1, "b1", wait=wait)).reason is Reason.RECONCILING
            assert trio.current_time() - began == budget


async def test_a_full_inbox_makes_its_callers_wait_and_loses_none():
    async with open_supervisor("memory://", options=Options(inbox_max=1)) as supervisor:
        pane = supervisor.pane("pane")
        answers = []

        async def ask() -> None:
            answers.append(await pane.sync_status())

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask)
        assert answers == [SyncStatus.IN_SYNC] * 50


async def test_a_cancelled_caller_stops_waiting_and_what_it_asked_for_stands(url):
    async with open_supervisor(url, reconciler=Workspace(gate=trio.Event())) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        with trio.move_on_after(0.02):
            await harness.call(1, "b1", wait=1000)
        (view,) = await pane.intents()
        assert (view.state, view.batch_id) == ("reconciling", "b1")
        assert (await harness.call(1, "b1", wait=0)).reason is Reason.RECONCILING
