"""A death between any two steps of an acceptance: protocol-delivery.md section 7, contract DA-6, DA-8 to DA-10."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
from delivery_scenarios import World, opened, rows, stored_events, uid

from fencepost.mailbox.claim import fingerprint_of
from fencepost.supervisor import (
    ActorCrashed,
    Chaos,
    FencepostError,
    InboundPost,
    Options,
    Stage,
    Stop,
    StoreFault,
    TurnEnd,
    check,
    open_supervisor,
)

_RUNS = itertools.count()
A, B = uid(1), uid(2)
TEXT = "from the pane"
PRINT = fingerprint_of(TEXT)
INBOUND = ("delivery.accepted", "delivery.failed", "delivery.ended")

STEPS = {
    # what it dies after: (points, what is durable, post again, events, runs of the model)
    "s1 parse": (["accept/received"], [], "accepted", [], 1),
    "s1 the decision to write the fence": (["fence/decided", "fence/begun", "fence/written"], [], "accepted", [], 1),
    "s2 fence": (["fence/committed", "fence/applied", "tombstone/written"], ["fence"], "uncertain", [], 0),
    "s3 tombstone": (
        ["tombstone/committed", "tombstone/applied", "accept/decided", "accept/written"],
        ["fence", "tombstone"],
        "uncertain",
        [],
        0,
    ),
    "s4 acceptance": (
        ["accept/committed", "accept/applied", "publish/decided", "publish/written"],
        ["fence", "tombstone", "acceptance"],
        "stored",
        ["delivery.accepted", "delivery.failed"],
        0,
    ),
    "s5 publication": (
        ["publish/committed", "publish/applied"],
        ["fence", "tombstone", "acceptance", "run"],
        "stored",
        ["delivery.accepted", "delivery.failed"],
        0,
    ),
}
TABLES = {"fence": "inbound_fences", "tombstone": "tombstones", "acceptance": "acceptances", "run": "runs"}
DEATHS = [
    pytest.param(step, point, what, id=f"7-{step} {point} {what}")
    for step, (points, *_) in STEPS.items()
    for point in points
    for what in ("actor", "runtime")
    # The commit of an actor that dies at a point on the line stands (G-10), so these are later rows for it.
    if what == "runtime" or not point.endswith(("/begun", "/written"))
]


async def bound(pane, session="session-1") -> str:
    await pane.launch("claude-code", session)
    return (await pane.binding()).binding


@pytest.mark.parametrize(("step", "point", "what"), DEATHS)
async def test_7_s1_to_s5_by_a_death_at_each_point(step, point, what):
    url, world, chaos = f"memory://deaths-{next(_RUNS)}", World(), Chaos()
    _, durable, _, _, runs = STEPS[step]
    chaos.kill_at(f"pane.{point}", what=what)
    async with opened(url, world, chaos) as (supervisor, pane):
        binding = await bound(pane)
        post = InboundPost(A, binding, TEXT)
        with pytest.raises(ActorCrashed if what == "actor" else StoreFault):
            await pane.accept(post)
        if what == "actor":
            await _judge(supervisor, pane, world, post, step)
    assert chaos.unhit() == []
    if what == "runtime":
        assert [name for name, table in TABLES.items() if rows(url, table)] == durable
    for _ in range(2):  # running recovery twice adds nothing
        async with opened(url, world) as (supervisor, pane):
            await _judge(supervisor, pane, world, post, step)
    assert world.work == ({A: 1} if runs else {})
    assert await check(url) == []


async def _judge(supervisor, pane, world: World, post: InboundPost, step: str) -> None:
    """What is told of the id after the death, by events, a lookup and a repetition."""
    _, _, again, events, runs = STEPS[step]
    first_life = not any(world.work.values())
    if not runs:
        await pane.binding()
        told = await stored_events(supervisor, *INBOUND)
        assert [kind for kind, _ in told] == events
        assert [data["stage"] for _, data in told] == ["stored"] * len(events)
        assert [data.get("reason") for _, data in told][1:] == ["service_restarted"] * len(events[1:])
        assert {data["delivery_id"] for _, data in told} <= {A}
        assert len({data["run_id"] for _, data in told}) <= 1
    lookup = await pane.receipt(A, post.binding, PRINT)
    if again == "accepted" and first_life:
        assert lookup.stop is Stop.UNCERTAIN
    receipt = await pane.accept(post)
    assert (receipt.stop or receipt.stage) == (Stop.UNCERTAIN if again == "uncertain" else Stage.STORED)
    another = await pane.accept(InboundPost(A, post.binding, "another text"))
    assert another.stop is Stop.UNCERTAIN
    if again == "uncertain":
        assert lookup.stop is Stop.UNCERTAIN
        assert (await pane.accept(InboundPost(B, post.binding, TEXT))).stop is Stop.UNCERTAIN
    elif again == "stored":
        assert lookup.stage is Stage.STORED


# -- s6 to s8 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("death", ["actor", "runtime", "close"])
async def test_7_s6_dispatch_under_way_fails_once_and_is_not_repeated(url, death):
    world, chaos = World(gate=trio.Event()), Chaos()
    async with opened(url, world, chaos) as (supervisor, pane):
        binding = await bound(pane)
        assert (await pane.accept(InboundPost(A, binding, TEXT))).received
        await world.reached.wait()
        if death == "actor":
            await supervisor.kill("pane:pane")
            await _restarted(supervisor, pane, binding)
        elif death == "runtime":
            chaos.kill_at("pane.binding/received", nth=2, what="runtime")
            with pytest.raises(StoreFault):
                await pane.binding()
        else:
            assert [kind for kind, _ in await stored_events(supervisor, *INBOUND)] == ["delivery.accepted"], "DA-9"
    if death == "close":
        assert rows(url, "runs")[0]["ended_at"] is None, "nothing is published at close"
    world.gate.set()
    for _ in range(2):
        async with opened(url, world) as (supervisor, pane):
            await _restarted(supervisor, pane, binding)
    assert world.work == {A: 1}
    assert await check(url) == []


async def _restarted(supervisor, pane, binding: str) -> None:
    assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED
    assert (await pane.accept(InboundPost(A, binding, TEXT))).stage is Stage.STORED
    told = await stored_events(supervisor, *INBOUND)
    assert [kind for kind, _ in told] == ["delivery.accepted", "delivery.failed"]
    assert told[1][1]["reason"] == "service_restarted"
    assert told[0][1]["run_id"] == told[1][1]["run_id"]


@pytest.mark.parametrize("point", ["clear_fence/decided", "clear_fence/written"])
@pytest.mark.parametrize("ends", [True, False], ids=["7-s7 ended", "7-s6 under way"])
async def test_7_s7_before_clearing_the_fence(url, point, ends):
    """The fence of the second original is left behind; whether its turn had ended is what the world says."""
    world, chaos = World(gate=None if ends else trio.Event()), Chaos()
    async with opened(url, world, chaos) as (_, pane):
        binding = await bound(pane)
        chaos.kill_at(f"pane.{point}", what="runtime")
        with pytest.raises(StoreFault):
            await pane.accept(InboundPost(A, binding, TEXT))
    assert [name for name, table in TABLES.items() if rows(url, table)] == list(TABLES)
    worked = dict(world.work)
    async with opened(url, world) as (_, pane):
        assert (await pane.accept(InboundPost(B, binding, TEXT))).stop is Stop.UNCERTAIN
        assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED
        assert rows(url, "inbound_fences") == []
    assert world.work == worked
    assert await check(url) == []


@pytest.mark.parametrize("death", ["accept/answered actor", "end_run/applied runtime", "close"])
async def test_7_s8_after_everything_nothing_happens(url, death):
    world, chaos = World(), Chaos()
    async with opened(url, world, chaos) as (supervisor, pane):
        binding = await bound(pane)
        if death != "close":
            point, _, what = death.partition(" ")
            chaos.kill_at(f"pane.{point}", what=what)
        with pytest.raises(FencepostError) if death.startswith("end_run") else _nothing():
            await pane.accept(InboundPost(A, binding, TEXT))
            with trio.fail_after(10):
                async for event in supervisor.events():
                    if event.kind in INBOUND[1:]:
                        break
    before = [dict(row) for row in rows(url, "runs")]
    assert rows(url, "inbound_fences") == []
    async with opened(url, world) as (supervisor, pane):
        assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED
        assert (await pane.accept(InboundPost(A, binding, TEXT))).stage is Stage.STORED
        told = await stored_events(supervisor, *INBOUND)
        assert len(told) == 2
        if death != "accept/answered actor":
            assert told[1][0] == "delivery.ended", "DA-10: a turn that ended before the death is not failed"
    assert rows(url, "runs") == before
    assert world.work == {A: 1}


class _nothing:  # noqa: N801 - reads as the `raises` beside it
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_) -> None:
        return None


async def test_7_s4_is_published_once_although_other_events_came_and_history_is_trimmed(url):
    world, chaos = World(), Chaos()
    few = Options(events_kept_max=3)
    chaos.kill_at("pane.accept/applied", what="runtime")
    async with opened(url, world, chaos, options=few) as (_, pane):
        binding = await bound(pane)
        with pytest.raises(StoreFault):
            await pane.accept(InboundPost(A, binding, TEXT))
    async with open_supervisor(url, options=few) as supervisor:  # also a bridge without a dispatcher owes that
        await supervisor.pane("pane").binding()
        told = await stored_events(supervisor, *INBOUND)
        assert [kind for kind, _ in told] == ["delivery.accepted", "delivery.failed"]
        for _ in range(4):
            await supervisor.pane("other").launch("claude-code")
        assert await stored_events(supervisor, *INBOUND) == [], "trimmed"
    async with opened(url, world, options=few) as (supervisor, pane):
        assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED
        assert await stored_events(supervisor, *INBOUND) == [], "and not published again"
    assert world.work == {}


async def test_da_8_a_turn_that_ends_after_its_activation_died_changes_nothing(url):
    class Stubborn(World):
        async def dispatch(self, turn) -> Any:
            with trio.CancelScope(shield=True):
                return await super().dispatch(turn)

    world = Stubborn(gate=trio.Event())
    async with opened(url, world) as (supervisor, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        await world.reached.wait()
        await supervisor.kill("pane:pane")
        world.gate.set()
        await _restarted(supervisor, pane, binding)
    assert world.work == {A: 1}


@pytest.mark.parametrize("outcome", [TurnEnd("settled"), TurnEnd("failed", "stalled")], ids=["settled", "failed"])
async def test_da_10_an_ended_turn_is_not_failed_by_a_restart(url, outcome):
    world = World(answers=outcome)
    async with opened(url, world) as (supervisor, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        async for event in supervisor.events():
            if event.kind in INBOUND[1:]:
                break
        before = await stored_events(supervisor, *INBOUND)
    async with opened(url, world) as (supervisor, pane):
        assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED
        assert await stored_events(supervisor, *INBOUND) == before
