"""Calls that wait behind one reconciliation, each on a budget of its own; one task of the pane watches all budgets."""

from __future__ import annotations

import trio
from bridges import Harness, Workspace, moved, payload_of
from frozen_time import TrioClock

from fencepost.supervisor import BlockGeneric, BlockPayload, Decision, open_supervisor


class Waiters:
    """Calls of one batch; remembers what each was told, and when."""

    def __init__(self, harness: Harness, nursery: trio.Nursery) -> None:
        self._harness = harness
        self._nursery = nursery
        self.told: dict[float, tuple[float, Decision]] = {}

    def wait(self, budget: float) -> None:
        self._nursery.start_soon(self._wait, budget)

    async def _wait(self, budget: float) -> None:
        began = trio.current_time()
        decision = await self._harness.call(1, "b1", wait=budget)
        self.told[budget] = (trio.current_time() - began, decision)


async def test_each_call_gives_up_when_its_own_budget_is_spent_whatever_the_order(autojump_clock):
    async with open_supervisor("memory://", reconciler=Workspace(gate=trio.Event())) as supervisor:
        harness = await Harness.start(supervisor.pane("pane"))
        await harness.pane.detect(moved("A", "B"))
        async with trio.open_nursery() as nursery:
            waiters = Waiters(harness, nursery)
            waiters.wait(20.0)
            await trio.sleep(1)
            waiters.wait(3.0)  # parked later, gives up sooner
            await trio.sleep(10)
            waiters.wait(5.0)  # parked after the watch had rung once
            waiters.wait(6.0)
        assert waiters.told.keys() == {20.0, 3.0, 5.0, 6.0}
        assert all(waited == budget for budget, (waited, _) in waiters.told.items())
        assert all(isinstance(decision, BlockGeneric) for _, decision in waiters.told.values())


async def test_a_budget_of_a_call_that_was_served_ends_nobody_elses_wait(autojump_clock):
    gate = trio.Event()
    workspace = Workspace(gate=gate)
    async with open_supervisor("memory://", reconciler=workspace) as supervisor:
        harness = await Harness.start(supervisor.pane("pane"))
        await harness.pane.detect(moved("A", "B"))
        async with trio.open_nursery() as nursery:
            waiters = Waiters(harness, nursery)
            waiters.wait(3.0)
            waiters.wait(float("inf"))
            await trio.sleep(100)
            gate.set()
        assert isinstance(waiters.told[3.0][1], BlockGeneric)
        waited, decision = waiters.told[float("inf")]
        assert isinstance(decision, BlockPayload)
        assert (waited, decision.payload) == (100, payload_of("B"))


async def test_an_unspent_budget_keeps_nobody_awake(autojump_clock):
    async with open_supervisor("memory://", reconciler=Workspace(), clock=TrioClock()) as supervisor:
        harness = await Harness.start(supervisor.pane("pane"))
        await harness.pane.detect(moved("A", "B"))
        assert isinstance(await harness.call(1, "b1", wait=1e6), BlockPayload)
        await trio.sleep(120)
        assert (await supervisor.status()).awake == 0
