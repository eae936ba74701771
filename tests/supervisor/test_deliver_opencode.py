"""OpenCode through its control: two receipts, one claim, and what proves the second (section 3's last paragraph)."""

from __future__ import annotations

import pytest
from delivery_scenarios import World, opened, uid

from fencepost.supervisor import (
    Applied,
    MechanismOutcome,
    OpenCodeControl,
    Outbound,
    Stage,
    Stop,
    TranscriptEntry,
    check,
)

A, B = uid(1), uid(2)
TEXT = "run the tests"


def opencode(url: str, world: World, **more):
    return opened(url, world, mechanisms=[*world.mechanisms(), OpenCodeControl(world, answer_seconds=0.2)], **more)


def said(report) -> tuple:
    return report.mechanism, report.outcome, report.stage or report.stop


@pytest.mark.parametrize(
    ("word", "reach"),
    [
        pytest.param("ready", Stop.UNCERTAIN, id="2.5-7 says nothing of a delivery"),
        pytest.param("pending", Stage.STORED, id="2.5-8 pending"),
        pytest.param("busy", Stage.STORED, id="2.5-8 busy"),
        pytest.param("delivered", Stage.CONSUMED, id="2.5-9"),
        pytest.param("uncertain", Stop.UNCERTAIN, id="2.5-10"),
        pytest.param("unbound", Stop.UNAVAILABLE, id="2.5-11"),
    ],
)
async def test_2_5_each_word_of_its_bridge(url, word, reach):
    world = World(arrives=False, says=MechanismOutcome(word))
    async with opencode(url, world) as (_, pane):
        report = await pane.deliver(Outbound(TEXT, "opencode", A))
        assert said(report)[2] is reach
        assert said(await pane.deliver(Outbound(TEXT, "opencode", A))) == said(report)
    assert world.sends == {A: 1}
    assert await check(url) == []


@pytest.mark.parametrize("word", ["pending", "busy"])
async def test_the_bridges_receipt_is_raised_by_the_harnesss_own_and_by_nothing_else(url, word):
    world = World(arrives=False, says=MechanismOutcome(word))
    async with opencode(url, world) as (_, pane):
        await pane.deliver(Outbound(TEXT, "opencode", A))
        for seen in (world.seen(), world.seen(session_id="another"), world.seen(entries=None)):
            assert said(await pane.reconcile(A, seen))[2] is Stage.STORED
    async with opencode(url, world) as (_, pane):  # another launcher, the same claim
        world.wrote(TEXT)
        assert said(await pane.reconcile(A, world.seen(session_id="another")))[2] is Stage.STORED
        assert said(await pane.reconcile(A, world.seen())) == ("opencode", "delivered", Stage.CONSUMED)
    assert world.sends == {A: 1}
    assert await check(url) == []


async def test_a_silence_claims_the_pane_over_lives_and_processes_until_the_original_is_found(url):
    world = World(arrives=False, says=None)
    async with opencode(url, world) as (_, pane):
        assert said(await pane.deliver(Outbound(TEXT, "opencode", A))) == ("opencode", "uncertain", Stop.UNCERTAIN)
    async with opencode(url, world) as (_, pane):
        await pane.launch("opencode", "another-session")
        for via in ("opencode", "fleet_seat", "channel_turn"):
            blocked = await pane.deliver(Outbound("another", via, B))
            assert (blocked.delivery_id, blocked.stop) == (A, Stop.UNCERTAIN)
        fragment = TranscriptEntry("new", "operator", TEXT, complete=False)
        assert (await pane.reconcile(A, world.seen(entries=(fragment,)))).stop is Stop.UNCERTAIN
        world.wrote(TEXT)
        assert said(await pane.reconcile(A, world.seen())) == ("opencode", "delivered", Stage.CONSUMED)
        world.says = MechanismOutcome("delivered")
        assert (await pane.deliver(Outbound("another", "opencode", B))).stage is Stage.CONSUMED
    assert world.sends == {A: 1, B: 1}
    assert await check(url) == []


async def test_nobody_to_look_at_and_a_cancel_before_it_left_are_unbound(url):
    class Away(World):
        async def inspect(self, pane_id):
            await self._held()

    world = Away()
    async with opencode(url, world) as (_, pane):
        assert said(await pane.deliver(Outbound(TEXT, "opencode", A))) == ("opencode", "unbound", Stop.UNAVAILABLE)
        assert await pane.cancel_delivery(A) != Applied()
    assert world.sends == {}
