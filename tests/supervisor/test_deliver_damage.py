"""Damaged evidence answers UNCERTAIN, the store opens, other panes go on: contract DA-1, DA-7, protocol 3 and 6.2."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
import trio
from delivery_scenarios import World, opened, rows, stored_events, taken, uid, unresolved

from fencepost.mailbox.claim import fingerprint_of
from fencepost.supervisor import (
    Chaos,
    CorruptRecord,
    FencepostError,
    InboundPost,
    Outbound,
    Stage,
    Stop,
    TranscriptEntry,
)

A, B, C, D = uid(1), uid(2), uid(3), uid(4)
TEXT = "from the pane"
PRINT = fingerprint_of(TEXT)
GARBAGE = "'garbage'"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def url(path) -> str:
    return f"sqlite:///{path}"


def damage(path, sql: str) -> None:
    """Change rows by hand, as no protocol would."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA ignore_check_constraints = 1")
        db.execute("PRAGMA foreign_keys = 0")
        assert db.execute(sql).rowcount >= 1
        db.commit()


# -- outbound: DA-1 ----------------------------------------------------------------------------------------------


INVALID = {
    "a stop that is no word": "stop = 'lost'",
    "a stage that is no word": "stage = 'lost', stop = NULL",
    "a stage and a stop": "stage = 'delivered'",
    "neither": "stop = NULL",
    "reached, and unresolved": "stop = NULL, stage = 'delivered'",
    "reports in flight": "outcome = NULL",
    "never left, and uncertain": "dispatched_at = NULL",
    "a reply to what is uncertain": "reply = 'yes'",
    "half a session": "agent = 'claude-code'",
    "a fingerprint that is none": f"fingerprint = {GARBAGE}",
    "a text that is no UTF-8": "text = CAST(X'FF41' AS TEXT)",
    "a report of another pane": "pane_id = 'gone', stop = NULL",
}


@pytest.mark.parametrize("change", INVALID.values(), ids=INVALID)
async def test_3_13_and_da_1_an_invalid_record_blocks_its_mechanism_for_every_pane(url, path, change):
    world = World()
    async with opened(url, world) as (_, pane):
        await unresolved(pane, world, Outbound(TEXT, "head_seat", A))
    damage(path, f"UPDATE deliveries SET {change}")
    before = rows(url, "deliveries")
    async with opened(url, world, times={"grace": 0.0}) as (supervisor, pane):
        other = supervisor.pane("other")
        for asked in (pane, other):
            report = await asked.deliver(Outbound("another", "head_seat", B))
            assert (report.stop, report.mechanism) == (Stop.UNCERTAIN, "head_seat")
            assert await asked.poll_events(0) == []
        assert (await other.deliver(Outbound("another", "channel_turn", C))).stage is Stage.RESPONDED
        if "pane_id" not in change:  # else nothing says any longer that it was this pane's
            assert (await pane.deliver(Outbound("another", "channel_turn", D))).stop is Stop.UNCERTAIN
            assert (await pane.reconcile(A, world.seen())).stop is Stop.UNCERTAIN
            for call in (pane.acknowledge_event(A), pane.settle(A, "me"), pane.cancel_delivery(A)):
                with pytest.raises(CorruptRecord):
                    await call
        assert (await pane.deliver(Outbound("another", "head_seat", A))).stop is Stop.UNCERTAIN
        assert "actor.crashed" not in {kind for kind, _ in await stored_events(supervisor)}
    assert [row for row in rows(url, "deliveries") if row["delivery_id"] != C] == before, "never repaired in passing"
    assert world.sends == {A: 1, C: 1}


async def test_3_13_and_da_1_a_mechanism_nobody_knows_blocks_its_pane(url, path):
    world = World()
    async with opened(url, world) as (_, pane):
        await unresolved(pane, world, Outbound(TEXT, "head_seat", A))
    damage(path, "UPDATE deliveries SET mechanism = 'pigeon'")
    async with opened(url, world) as (supervisor, pane):
        assert (await pane.deliver(Outbound("another", "channel_turn", B))).stop is Stop.UNCERTAIN
        assert (await supervisor.pane("other").deliver(Outbound("another", "channel_turn", C))).stage
        assert "actor.crashed" not in {kind for kind, _ in await stored_events(supervisor)}
    assert world.sends == {A: 1, C: 1}


@pytest.mark.parametrize("change", ["text = 'another text'", f"fingerprint = '{'0' * 64}'"])
async def test_da_1_evidence_that_does_not_match_blocks_its_pane_only(url, path, change):
    world = World(says=RuntimeError("the line went dead"), arrives=False)
    async with opened(url, world) as (_, pane):
        await pane.deliver(Outbound(TEXT, "harness_seat", A))
    damage(path, f"UPDATE deliveries SET {change}")
    async with opened(url, world) as (supervisor, pane):
        for text in (TEXT, "another text"):
            shown = world.seen(entries=(TranscriptEntry("new", "operator", text),))
            assert (await pane.reconcile(A, shown)).stop is Stop.UNCERTAIN
        assert (await pane.deliver(Outbound("another", "channel_turn", B))).delivery_id == A
        other = supervisor.pane("other")
        world.says = None
        async with trio.open_nursery() as nursery:
            report = await taken(other, world, Outbound("another", "head_seat", C), nursery)
            await other.acknowledge_event(C)
            assert (await report()).stage is Stage.DELIVERED
    assert world.sends == {A: 1, C: 1}


@pytest.mark.parametrize("before", ["'nonsense'", "'{}'", "'[1'", "NULL"])
async def test_3_11_a_list_of_earlier_entries_that_cannot_be_read_proves_nothing(url, path, before):
    world = World(says=RuntimeError("the line went dead"))
    async with opened(url, world) as (_, pane):
        await pane.deliver(Outbound(TEXT, "harness_seat", A))
    damage(path, f"UPDATE deliveries SET entries_before = {before}")
    async with opened(url, world) as (_, pane):
        assert (await pane.reconcile(A, world.seen())).stop is Stop.UNCERTAIN
        assert (await pane.deliver(Outbound(TEXT, "harness_seat", A))).stop is Stop.UNCERTAIN
    assert world.sends == {A: 1}


async def test_a_delivery_that_was_in_flight_and_is_damaged_keeps_nobody_from_opening(url, path):
    world = World(gate=trio.Event())
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        nursery.start_soon(_hang, pane)
        await world.reached.wait()
        await supervisor.aclose()
    damage(path, "UPDATE deliveries SET detail = 'in flight, and told of'")
    world.gate.set()
    async with opened(url, world) as (supervisor, pane):
        assert (await pane.deliver(Outbound(TEXT, "channel_turn", A))).stop is Stop.UNCERTAIN
        assert (await supervisor.pane("other").deliver(Outbound(TEXT, "channel_turn", B))).stop is Stop.UNCERTAIN
    assert world.sends == {A: 1}


async def _hang(pane) -> None:
    with pytest.raises(FencepostError):
        await pane.deliver(Outbound(TEXT, "channel_turn", A))


# -- inbound: the rows of 6.2 about damage -----------------------------------------------------------------------


ACCEPTED = {
    "6.2-5 under another pane": "UPDATE acceptances SET pane_id = 'other'",
    "6.2-5 under another binding": f"UPDATE acceptances SET binding = '{'0' * 64}'",
    "6.2-5 under another fingerprint": f"UPDATE acceptances SET fingerprint = '{'0' * 64}'",
    "6.2-6 its text hashes no more": "UPDATE acceptances SET text = 'another text'",
    "6.2-9 its text is no UTF-8": "UPDATE acceptances SET text = CAST(X'FF41' AS TEXT)",
    "6.2-9 its binding is none": f"UPDATE acceptances SET binding = {GARBAGE}",
    "6.2-8 the acceptance is gone": "DELETE FROM acceptances",
    "6.2-4 the tombstone has other evidence": f"UPDATE tombstones SET fingerprint = '{'0' * 64}'",
    "6.2-4 the tombstone is another pane's": "UPDATE tombstones SET pane_id = 'other'",
    "6.2-9 the tombstone cannot be read": f"UPDATE tombstones SET binding = {GARBAGE}",
    "6.2-9 the tombstone is gone": "DELETE FROM tombstones",
}


@pytest.mark.parametrize("sql", ACCEPTED.values(), ids=ACCEPTED)
async def test_6_1_7_and_10_12_damaged_evidence_is_uncertain_and_hurts_no_other_id(url, path, sql):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        await pane.launch("claude-code", "session-1")
        binding = (await pane.binding()).binding
        await pane.accept(InboundPost(A, binding, TEXT))
        async for event in supervisor.events():
            if event.kind == "delivery.ended":
                break
    damage(path, sql)
    async with opened(url, world) as (supervisor, pane):
        for receipt in (await pane.receipt(A, binding, PRINT), await pane.accept(InboundPost(A, binding, TEXT))):
            assert (receipt.received, receipt.stop) == (False, Stop.UNCERTAIN)
            assert (receipt.delivery_id, receipt.binding, receipt.fingerprint) == (A, binding, PRINT)
        assert (await pane.accept(InboundPost(B, binding, TEXT))).received
        assert "actor.crashed" not in {kind for kind, _ in await stored_events(supervisor)}
    assert world.work == {A: 1, B: 1}


@pytest.mark.parametrize("column", ["binding", "fingerprint", "delivery_id"])
async def test_6_3_8_and_6_2_9_an_unreadable_fence_answers_uncertain_to_everything(url, path, column):
    world, chaos = World(), Chaos()
    chaos.kill_at("pane.clear_fence/decided", what="runtime")
    async with opened(url, world, chaos) as (_, pane):
        await pane.launch("claude-code", "session-1")
        binding = (await pane.binding()).binding
        with pytest.raises(FencepostError):
            await pane.accept(InboundPost(A, binding, TEXT))
    damage(path, f"UPDATE inbound_fences SET {column} = {GARBAGE}")
    worked = dict(world.work)
    for _ in range(2):
        async with opened(url, world) as (supervisor, pane):
            for delivery_id in (A, B):
                assert (await pane.accept(InboundPost(delivery_id, binding, TEXT))).stop is Stop.UNCERTAIN
                assert (await pane.receipt(delivery_id, binding, PRINT)).stop is Stop.UNCERTAIN
            with pytest.raises(CorruptRecord):
                await pane.settle(A, "me")
            # What can be read is taken up all the same: the turn that ended with the runtime.
            told = await stored_events(supervisor, "delivery.accepted", "delivery.failed")
            assert [kind for kind, data in told if data["delivery_id"] == A] == ["delivery.accepted", "delivery.failed"]
            other = supervisor.pane("other")
            await other.launch("claude-code", "session-2")
            posted = await other.accept(InboundPost(C, (await other.binding()).binding, TEXT))
            assert posted.received
    assert world.work == {**worked, C: 1}


async def test_6_2_3_a_fence_with_other_evidence_than_its_acceptance_stays(url, path):
    world, chaos = World(), Chaos()
    chaos.kill_at("pane.clear_fence/decided", what="runtime")
    async with opened(url, world, chaos) as (_, pane):
        await pane.launch("claude-code", "session-1")
        binding = (await pane.binding()).binding
        with pytest.raises(FencepostError):
            await pane.accept(InboundPost(A, binding, TEXT))
    damage(path, f"UPDATE inbound_fences SET fingerprint = '{'0' * 64}'")
    async with opened(url, world) as (_, pane):
        assert (await pane.receipt(A, binding, PRINT)).stop is Stop.UNCERTAIN
        assert (await pane.accept(InboundPost(B, binding, TEXT))).stop is Stop.UNCERTAIN
        assert len(rows(url, "inbound_fences")) == 1


@pytest.mark.parametrize("sql", [
    f"UPDATE acceptances SET fingerprint = {GARBAGE}",
    "DELETE FROM acceptances",
    "DELETE FROM tombstones",
])  # fmt: skip
async def test_7_s4_with_a_damaged_acceptance_publishes_nothing_and_opens(url, path, sql):
    world, chaos = World(), Chaos()
    chaos.kill_at("pane.accept/applied", what="runtime")
    async with opened(url, world, chaos) as (_, pane):
        await pane.launch("claude-code", "session-1")
        binding = (await pane.binding()).binding
        with pytest.raises(FencepostError):
            await pane.accept(InboundPost(A, binding, TEXT))
    damage(path, sql)
    async with opened(url, world) as (supervisor, pane):
        assert (await pane.receipt(A, binding, PRINT)).stop is Stop.UNCERTAIN
        assert (await pane.accept(InboundPost(A, binding, TEXT))).stop is Stop.UNCERTAIN
        assert (await pane.accept(InboundPost(B, binding, TEXT))).stop is Stop.UNCERTAIN, "the fence stands"
        assert "actor.crashed" not in {kind for kind, _ in await stored_events(supervisor)}
    assert world.work == {}


async def test_a_damaged_run_keeps_nobody_from_opening_and_nothing_from_working(url, path):
    world = World(gate=trio.Event())
    async with opened(url, world) as (_, pane):
        await pane.launch("claude-code", "session-1")
        binding = (await pane.binding()).binding
        await pane.accept(InboundPost(A, binding, TEXT))
        await world.reached.wait()
    damage(path, "UPDATE runs SET native = 'half an end'")
    world.gate.set()
    async with opened(url, world) as (supervisor, pane):
        assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED
        assert (await pane.accept(InboundPost(B, binding, TEXT))).received
        assert "actor.crashed" not in {kind for kind, _ in await stored_events(supervisor)}
    assert world.work == {A: 1, B: 1}
