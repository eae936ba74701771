"""Unresolved receipts, row by row: protocol-delivery.md section 3, contract DA-3, DA-11 to DA-14, D-7, D-19."""

from __future__ import annotations

import math

import pytest
import trio
from delivery_scenarios import World, beside, opened, rows, stored_events, taken, uid, unresolved

from fencepost.supervisor import (
    Applied,
    Chaos,
    FencepostError,
    InvalidTransition,
    MechanismOutcome,
    Options,
    Outbound,
    Stage,
    Stop,
    TranscriptEntry,
    TurnEnd,
    Unchanged,
    check,
    open_supervisor,
)

A, B, C = uid(1), uid(2), uid(3)
SEATS = ("head_seat", "fleet_seat")
EVERYWHERE = ("head_seat", "fleet_seat", "harness_seat", "channel_turn")


def every(row: str, vias=EVERYWHERE):
    """Each mechanism, with the table's row in its name."""
    return [pytest.param(via, id=f"{row} {via}") for via in vias]


TEXT = "hello harness"


async def uncertain_by(pane, world: World, via: str, delivery_id: str = A, text: str = TEXT):
    """Have a delivery by this mechanism end uncertain."""
    if via in SEATS:
        return await unresolved(pane, world, Outbound(text, via, delivery_id))
    before = world.says, world.ends
    world.says, world.ends = RuntimeError("the line went dead"), TurnEnd("failed", "who knows")
    report = await pane.deliver(Outbound(text, via, delivery_id))
    world.says, world.ends = before
    return report


# -- clear and in flight -----------------------------------------------------------------------------------------


async def test_3_1_clear_deliver_the_record_is_written_before_the_boundary_is_crossed(url):
    class Looking(World):
        async def send(self, session, delivery_id, text):
            (row,) = rows(url, "deliveries")
            assert (row["delivery_id"], row["outcome"], row["resolved_at"]) == (A, None, None)
            assert (row["session_id"], row["agent"]) == ("session-1", "claude-code")
            assert row["entries_before"] == '["entry-1"]'
            return await super().send(session, delivery_id, text)

        async def run(self, message):
            found = [row for row in rows(url, "deliveries") if row["delivery_id"] == B]
            assert [row["resolved_at"] for row in found] == [None]
            return await super().run(message)

    world = Looking()
    world.wrote("earlier")
    async with opened(url, world) as (_, pane):
        assert (await pane.deliver(Outbound(TEXT, "harness_seat", A))).stage is Stage.CONSUMED
        assert (await pane.deliver(Outbound(TEXT, "channel_turn", B))).stage is Stage.RESPONDED


@pytest.mark.parametrize("via", every("3-1"))
@pytest.mark.parametrize("boundary", ["decided", "enqueued", "begun", "written"])
async def test_clear_deliver_nothing_is_sent_when_the_write_failed(via, boundary):
    url, chaos, world = f"memory://unwritten-{via}-{boundary}", Chaos(), World()
    chaos.kill_at(f"pane.dispatch/{boundary}", what="runtime")
    async with opened(url, world, chaos) as (_, pane), trio.open_nursery() as nursery:
        report = beside(nursery, pane.deliver, Outbound(TEXT, via, A))
        if via in SEATS:
            with pytest.raises(FencepostError):
                await pane.poll_events(5)
        with pytest.raises(FencepostError):
            await report()
    assert chaos.unhit() == []
    assert world.sends == {}
    assert rows(url, "deliveries") == []


@pytest.mark.parametrize("via", ["head_seat", "fleet_seat", "harness_seat"])
async def test_3_2_clear_without_a_channel_is_unavailable_and_stays_clear(url, via):
    world = World(session=None)
    async with opened(url, world, times={"grace": 0.0}) as (supervisor, pane):
        assert (await pane.deliver(Outbound(TEXT, via, A))).stop is Stop.UNAVAILABLE
        # What is kept is the id's final report (DA-11), and no record of a dispatch: nothing fences the pane.
        assert [row["dispatched_at"] for row in rows(url, "deliveries")] == [None]
        assert "delivery.dispatched" not in [kind for kind, _ in await stored_events(supervisor)]
        assert (await pane.deliver(Outbound("another", "channel_turn", B))).stage is Stage.RESPONDED
    assert world.sends == {B: 1}


@pytest.mark.parametrize("via", SEATS)
async def test_3_3_in_flight_the_exact_acknowledgement_clears_it(url, via):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, Outbound(TEXT, via, A), nursery)
        (row,) = rows(url, "deliveries")
        assert (row["dispatched_at"] is not None, row["resolved_at"]) == (True, None)
        assert await pane.acknowledge_event(A, "started") == Applied()
        assert (await report()).stage is (Stage.CONSUMED if via == "fleet_seat" else Stage.DELIVERED)
        assert rows(url, "deliveries")[0]["resolved_at"] is not None
        assert (await pane.deliver(Outbound("another", "channel_turn", B))).stage is Stage.RESPONDED
    assert world.sends == {A: 1, B: 1}


@pytest.mark.parametrize(("via", "stop"), [("harness_seat", Stop.UNAVAILABLE), ("channel_turn", Stop.REJECTED)])
async def test_3_4_in_flight_refused_before_dispatch_is_clear(url, via, stop):
    world = World(says=MechanismOutcome("released"), ends=TurnEnd("failed", "policy_refused"))
    async with opened(url, world) as (_, pane):
        assert (await pane.deliver(Outbound(TEXT, via, A))).stop is stop
        assert rows(url, "deliveries")[0]["resolved_at"] is not None
        world.says, world.ends = MechanismOutcome("accepted", "queued"), TurnEnd("settled")
        assert (await pane.deliver(Outbound("another", via, B))).stage in {Stage.CONSUMED, Stage.RESPONDED}
    assert world.sends == {A: 1, B: 1}


@pytest.mark.parametrize("via", ["head_seat", "fleet_seat", "harness_seat"])
async def test_3_5_in_flight_past_its_deadline_it_is_unresolved(autojump_clock, via):
    url, world = f"memory://lapsed-{via}", World(says=None, arrives=False)
    times = {"acknowledge": 5.0, "answer": 5.0}
    async with opened(url, world, times=times) as (_, pane), trio.open_nursery() as nursery:
        if via in SEATS:
            report = await (await taken(pane, world, Outbound(TEXT, via, A), nursery))()
        else:
            report = await pane.deliver(Outbound(TEXT, via, A))
        assert (report.delivery_id, report.stop) == (A, Stop.UNCERTAIN)
        (row,) = rows(url, "deliveries")
        assert (row["dispatched_at"] is not None, row["stop"], row["resolved_at"]) == (True, "uncertain", None)
        assert (await pane.deliver(Outbound("another", "channel_turn", B))).delivery_id == A
    assert world.sends == {A: 1}


@pytest.mark.parametrize("via", ["harness_seat", "channel_turn"])
async def test_3_5_in_flight_an_exception_leaves_it_unresolved(url, via):
    failed = RuntimeError("the line went dead")
    world = World(says=failed, ends=failed, arrives=False)
    async with opened(url, world) as (_, pane):
        report = await pane.deliver(Outbound(TEXT, via, A))
        assert (report.delivery_id, report.stop) == (A, Stop.UNCERTAIN)
        (row,) = rows(url, "deliveries")
        assert (row["dispatched_at"] is not None, row["stop"], row["resolved_at"]) == (True, "uncertain", None)
        assert (await pane.deliver(Outbound("another", via, B))).delivery_id == A
    assert world.sends == {A: 1}


# -- unresolved --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", EVERYWHERE)
@pytest.mark.parametrize("via", EVERYWHERE)
async def test_3_6_and_12_d5_unresolved_fences_the_whole_recipient_by_every_mechanism(via, again):
    world = World(arrives=False)
    async with opened("memory://", world, times={"grace": 0.0}) as (supervisor, pane):
        assert (await uncertain_by_with_grace(pane, world, via)).stop is Stop.UNCERTAIN
        for outbound in (
            Outbound(TEXT, again, A),
            Outbound(TEXT, again, B),
            Outbound("another", again, B),
            Outbound("another", again),
        ):
            report = await pane.deliver(outbound)
            assert (report.delivery_id, report.mechanism, report.stop) == (A, via, Stop.UNCERTAIN)
        assert await pane.poll_events(0) == []
        # DA-14: the blocked ids left nothing.
        other = supervisor.pane("other")
        assert (await other.deliver(Outbound("another", "channel_turn", B))).stage is Stage.RESPONDED
    assert world.sends == {A: 1, B: 1}


async def uncertain_by_with_grace(pane, world, via):
    """As `uncertain_by`, with a poll that is there first, as the mailbox has no grace."""
    if via not in SEATS:
        return await uncertain_by(pane, world, via)
    async with trio.open_nursery() as nursery:
        poll = beside(nursery, pane.poll_events, math.inf)
        await trio.testing.wait_all_tasks_blocked()
        report = beside(nursery, pane.deliver, Outbound(TEXT, via, A))
        assert world.took(await poll()) == [A]
        await pane.cancel_delivery(A)
        return await report()


@pytest.mark.parametrize("via", SEATS)
async def test_3_7_unresolved_acknowledging_another_id_is_not_found(url, via):
    world = World()
    async with opened(url, world) as (_, pane):
        await uncertain_by(pane, world, via)
        assert (await pane.acknowledge_event(B)).reason == "unknown_delivery"
        assert (await pane.deliver(Outbound("another", via, B))).delivery_id == A


@pytest.mark.parametrize("via", every("3-8 3-9", SEATS))
async def test_unresolved_the_exact_id_clears_it_also_after_a_restart(url, via):
    world = World()
    async with opened(url, world) as (_, pane):
        await uncertain_by(pane, world, via)
    async with opened(url, world) as (supervisor, pane):
        assert await pane.poll_events(0) == [], "a fresh poll is handed nothing, and proves nothing"
        assert (await pane.deliver(Outbound("another", via, B))).stop is Stop.UNCERTAIN
        assert (await supervisor.status()).uncertain_deliveries == 1
        assert await pane.acknowledge_event(A) == Applied()
        assert (await pane.deliver(Outbound(TEXT, via, A))).stage is Stage.DELIVERED, "kept as delivered history"
        assert rows(url, "deliveries")[0]["resolved_at"] is not None
        assert (await supervisor.status()).uncertain_deliveries == 0
        async with trio.open_nursery() as nursery:
            report = await taken(pane, world, Outbound("another", via, B), nursery)
            await pane.acknowledge_event(B)
            assert (await report()).stage is Stage.DELIVERED
    assert world.sends == {A: 1, B: 1}
    assert await check(url) == []


@pytest.mark.parametrize("via", every("3-9 3-12"))
async def test_unresolved_lasts_over_time_restarts_polls_and_an_unbound_channel(autojump_clock, via):
    world, url = World(arrives=False), f"memory://lasting-{via}"
    for life in range(3):
        async with opened(url, world, options=Options(idle_seconds=500)) as (_, pane):
            if life == 0:
                assert (await uncertain_by(pane, world, via)).stop is Stop.UNCERTAIN
            await trio.sleep(2_000)
            world.session = None if life else world.session  # the harness is gone: that licenses nothing
            assert await pane.poll_events(1) == []
            for outbound in (Outbound(TEXT, via, A), Outbound("another", "head_seat", B)):
                report = await pane.deliver(outbound)
                assert (report.delivery_id, report.stop) == (A, Stop.UNCERTAIN)
    assert world.sends == {A: 1}


@pytest.mark.parametrize("via", SEATS)
async def test_8_polling_again_acknowledges_nothing(url, via):
    """Not within a life, and not across a restart (DA-19)."""
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, Outbound(TEXT, via, A), nursery)
        for _ in range(2):
            assert await pane.poll_events(0) == []
        assert not report.done.is_set()
        assert rows(url, "deliveries")[0]["resolved_at"] is None
        await pane.cancel_delivery(A)
        assert (await report()).stop is Stop.UNCERTAIN
    async with opened(url, world) as (_, pane):
        assert await pane.poll_events(0) == []
        assert (await pane.deliver(Outbound(TEXT, via, A))).stop is Stop.UNCERTAIN
    assert world.sends == {A: 1}


async def test_3_12_unresolved_unbound_now_is_no_fallback(autojump_clock):
    world, url = World(), "memory://unbound-now"
    async with opened(url, world, times={"fallback": world.run}) as (_, pane):
        await uncertain_by(pane, world, "head_seat")
        for _ in range(2):
            assert (await pane.deliver(Outbound(TEXT, "head_seat", A))).stop is Stop.UNCERTAIN
            await trio.sleep(100)
    # Another bridge, which has no seat at all any more.
    async with open_supervisor(url, mechanisms=world.mechanisms()[3:]) as supervisor:
        report = await supervisor.pane("pane").deliver(Outbound(TEXT, "channel_turn", A))
        assert (report.delivery_id, report.mechanism, report.stop) == (A, "head_seat", Stop.UNCERTAIN)
    assert world.sends == {A: 1}


@pytest.mark.parametrize("via", EVERYWHERE)
@pytest.mark.parametrize("ids", [(A, B), (A, A), (None, None)], ids=["two ids", "one id", "no ids"])
async def test_3_14_two_callers_at_once_dispatch_once(url, via, ids):
    world = World(gate=trio.Event())
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        calls = [beside(nursery, pane.deliver, Outbound(TEXT, via, one)) for one in ids]
        if via in SEATS:
            (sent,) = world.took(await pane.poll_events(5))
            assert await pane.poll_events(0) == []
            await pane.acknowledge_event(sent)
        else:
            await world.reached.wait()
        world.gate.set()
        reports = [await call() for call in calls]
        assert Stop.UNCERTAIN in {report.stop for report in reports}
        assert len({report.delivery_id for report in reports}) == 1
        assert len([report for report in reports if report.stage is not None]) == 1
    assert sum(world.sends.values()) == 1
    assert len(rows(url, "deliveries")) == 1


async def test_one_id_used_by_two_panes_at_once_goes_to_one_and_keeps_no_event(url):
    """Both deliveries are only queued when the id is free; the second to be taken is refused, not lost on a poll."""
    world = World()
    async with opened(url, world, times={"grace": math.inf}) as (supervisor, pane), trio.open_nursery() as nursery:
        other = supervisor.pane("other")
        mine = beside(nursery, pane.deliver, Outbound(TEXT, "head_seat", A))
        theirs = beside(nursery, other.deliver, Outbound(TEXT, "head_seat", A))
        for queued in (pane, other):
            while (await queued.deliver(Outbound(" ", "head_seat"))).stop is Stop.REJECTED:
                await trio.lowlevel.checkpoint()
        assert world.took(await pane.poll_events(5)) == [A]
        poll = beside(nursery, other.poll_events, 5)
        with pytest.raises(FencepostError):
            await theirs()
        report = beside(nursery, other.deliver, Outbound("another", "head_seat", B))
        assert world.took(await poll()) == [B], "the poll went on waiting, and got the next event"
        await other.acknowledge_event(B)
        await pane.acknowledge_event(A)
        assert ((await report()).stage, (await mine()).stage) == (Stage.DELIVERED, Stage.DELIVERED)


# -- native reconciliation ---------------------------------------------------------------------------------------


async def silent(pane, world: World):
    report = await uncertain_by(pane, world, "harness_seat")
    assert report.stop is Stop.UNCERTAIN
    return report


@pytest.mark.parametrize("text", [TEXT, f"  {TEXT}\r\n", f"\n{TEXT}\t"])
async def test_3_10_native_a_new_complete_operator_entry_in_the_original_session_proves_it(url, text):
    world = World(arrives=False)
    world.wrote(TEXT)
    async with opened(url, world) as (_, pane):
        await silent(pane, world)
        world.wrote(text)
        proved = await pane.reconcile(A, world.seen())
        assert (proved.stage, proved.outcome, proved.native) == (Stage.CONSUMED, "accepted", "started")
        assert await pane.reconcile(A, world.seen(entries=())) == proved, "what was reached is not taken back"
        assert (await pane.deliver(Outbound("another", "harness_seat", B))).stage is Stage.CONSUMED
    assert world.sends == {A: 1, B: 1}
    assert await check(url) == []


def entry(**changed) -> TranscriptEntry:
    return TranscriptEntry(**{"entry_id": "new", "role": "operator", "text": TEXT, **changed})


NO_PROOF = {
    "3-10 an older entry": {"entries": (TranscriptEntry("entry-1", "operator", TEXT),)},
    "3-10 a fragment": {"entries": (entry(complete=False),)},
    "3-10 part of the text": {"entries": (entry(text=TEXT[:-1]),)},
    "3-10 more than the text": {"entries": (entry(text=TEXT + " and more"),)},
    "3-10 another case": {"entries": (entry(text=TEXT.upper()),)},
    "3-10 the assistant's words": {"entries": (entry(role="assistant"),)},
    "3-10 a tool's words": {"entries": (entry(role="tool"),)},
    "3-11 another session": {"entries": (entry(),), "session_id": "session-2"},
    "3-11 another pane": {"entries": (entry(),), "pane_id": "other"},
    "3-11 another agent": {"entries": (entry(),), "agent": "codex"},
    "3-11 unreadable now": {"entries": None},
    "3-10 nothing new": {"entries": ()},
}


@pytest.mark.parametrize("shown", NO_PROOF.values(), ids=NO_PROOF)
async def test_3_native_what_proves_nothing(shown):
    world = World(arrives=False)
    world.wrote(TEXT)
    async with opened("memory://", world) as (_, pane):
        await silent(pane, world)
        report = await pane.reconcile(A, world.seen(**shown))
        assert (report.delivery_id, report.stop) == (A, Stop.UNCERTAIN)
        assert (await pane.deliver(Outbound("another", "channel_turn", B))).delivery_id == A
        # The true entry still proves it afterwards.
        assert (await pane.reconcile(A, world.seen(entries=(entry(),)))).stage is Stage.CONSUMED
    assert world.sends == {A: 1}


async def test_3_11_native_unreadable_before_can_never_be_proved(url):
    world = World(arrives=False, readable=False)
    async with opened(url, world) as (_, pane):
        await silent(pane, world)
        world.readable = True
        world.wrote(TEXT)
        assert (await pane.reconcile(A, world.seen())).stop is Stop.UNCERTAIN
        assert (await pane.deliver(Outbound(TEXT, "harness_seat", A))).stop is Stop.UNCERTAIN
        assert await pane.settle(A, "the operator") == Applied()
        assert (await pane.deliver(Outbound("another", "harness_seat", B))).stage is Stage.CONSUMED


@pytest.mark.parametrize("reopen", [False, True], ids=["3-10 same life", "3-10 reopened"])
async def test_native_a_later_call_looks_for_the_original_and_its_own_text_is_not_sent(url, reopen):
    world = World(arrives=False)
    async with opened(url, world) as (_, pane):
        await silent(pane, world)
        if not reopen:
            await _look(pane, world)
    if reopen:
        async with opened(url, world) as (_, pane):
            await _look(pane, world)
    assert world.sends == {A: 1}
    assert await check(url) == []


async def _look(pane, world: World) -> None:
    for outbound in (Outbound(TEXT, "harness_seat", A), Outbound("another", "harness_seat", B)):
        assert (await pane.deliver(outbound)).delivery_id == A, "not there yet"
    world.wrote(TEXT)
    unsent = await pane.deliver(Outbound("another", "harness_seat", B))
    assert (unsent.delivery_id, unsent.stop) == (B, Stop.UNAVAILABLE)
    assert A in unsent.detail
    original = await pane.deliver(Outbound(TEXT, "harness_seat", A))
    assert (original.delivery_id, original.stage) == (A, Stage.CONSUMED)


async def test_3_10_native_a_later_call_with_the_same_text_is_the_original(url):
    world = World(arrives=False)
    async with opened(url, world) as (_, pane):
        await silent(pane, world)
        world.wrote(TEXT)
        report = await pane.deliver(Outbound(f" {TEXT}\r\n", "harness_seat", B))
        assert (report.delivery_id, report.stage) == (A, Stage.CONSUMED)
    assert world.sends == {A: 1}


async def test_native_evidence_counts_only_for_the_mechanism_that_sent(url):
    world = World()
    async with opened(url, world) as (_, pane):
        for number, via in enumerate(("head_seat", "fleet_seat", "channel_turn")):
            await uncertain_by(pane, world, via, uid(10 + number))
            assert (await pane.reconcile(uid(10 + number), world.seen(entries=(entry(),)))).stop is Stop.UNCERTAIN
            await pane.settle(uid(10 + number), "the operator")


async def test_native_reconciling_an_unknown_id_is_misuse(url):
    async with opened(url, World()) as (_, pane):
        with pytest.raises(InvalidTransition):
            await pane.reconcile(A, World().seen())


# -- settling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("via", every("12-D4"))
async def test_d_19_settling_frees_the_pane_and_claims_nothing(url, via):
    world = World(arrives=False)
    async with opened(url, world) as (supervisor, pane):
        await uncertain_by(pane, world, via)
        assert await pane.settle(A, "the operator") == Applied()
        assert await pane.settle(A, "the operator") == Unchanged()
        assert (await supervisor.status()).uncertain_deliveries == 0
        assert ("delivery.settled", {"delivery_id": A, "approval": "the operator"}) in await stored_events(supervisor)
    async with opened(url, world) as (_, pane):
        for _ in range(2):
            report = await pane.deliver(Outbound(TEXT, via, A))
            assert (report.stop, report.detail) == (Stop.UNCERTAIN, "abandoned, outcome unknown")
            assert (await pane.reconcile(A, world.seen(entries=(entry(),)))).stop is Stop.UNCERTAIN
            if via in SEATS:
                assert await pane.acknowledge_event(A) == Unchanged(), "too late: somebody decided"
        assert (await pane.deliver(Outbound("another", "channel_turn", B))).stage is Stage.RESPONDED
    assert world.sends == {A: 1, B: 1}
    assert await check(url) == []


async def test_da_5_settling_what_is_not_uncertain_changes_nothing(url):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        await pane.deliver(Outbound(TEXT, "channel_turn", A))
        assert await pane.settle(A, "the operator") == Unchanged()
        report = await taken(pane, world, Outbound(TEXT, "head_seat", B), nursery)
        assert await pane.settle(B, "the operator") == Unchanged(), "in flight"
        await pane.acknowledge_event(B)
        assert (await report()).stage is Stage.DELIVERED
        assert (await pane.settle(C, "the operator")).reason == "unknown_delivery"
    assert rows(url, "settlements") == []


# -- restart -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("death", ["close", "runtime", "actor"])
@pytest.mark.parametrize("via", every("3-5"))
async def test_what_was_in_flight_at_a_death_is_uncertain_and_never_sent_again(url, via, death):
    world, chaos = World(gate=trio.Event(), arrives=False), Chaos()
    async with opened(url, world, chaos) as (supervisor, pane), trio.open_nursery() as nursery:
        report = beside(nursery, pane.deliver, Outbound(TEXT, via, A))
        if via in SEATS:
            assert world.took(await pane.poll_events(5)) == [A]
        else:
            await world.reached.wait()
        match death:
            case "close":
                await supervisor.aclose()
            case "actor":
                await supervisor.kill("pane:pane")
            case _:
                chaos.kill_at("pane.deliver/received", nth=2, what="runtime")
                with pytest.raises(FencepostError):
                    await pane.deliver(Outbound(" ", via))
        with pytest.raises(FencepostError):
            await report()
        if death == "actor":
            await _uncertain_for_ever(supervisor, pane, world, via)
    async with opened(url, world) as (supervisor, pane):
        await _uncertain_for_ever(supervisor, pane, world, via)
    assert world.sends == {A: 1}
    assert await check(url) == []


async def _uncertain_for_ever(supervisor, pane, world: World, via: str) -> None:
    report = await pane.deliver(Outbound(TEXT, via, A))
    assert (report.delivery_id, report.mechanism, report.stop) == (A, via, Stop.UNCERTAIN)
    assert await pane.poll_events(0) == []
    assert (await pane.deliver(Outbound("another", "channel_turn", B))).delivery_id == A
    assert (await supervisor.status()).uncertain_deliveries == 1
    told = [data for kind, data in await stored_events(supervisor) if kind == "delivery.reported"]
    assert [(data["delivery_id"], data["stop"]) for data in told] == [(A, "uncertain")], "said once"


@pytest.mark.parametrize("via", SEATS)
async def test_what_was_only_queued_at_a_death_left_nothing(url, via):
    world = World()
    async with opened(url, world, times={"grace": math.inf}) as (supervisor, pane), trio.open_nursery() as nursery:
        report = beside(nursery, pane.deliver, Outbound(TEXT, via, A))
        while (await pane.deliver(Outbound(" ", via))).stop is Stop.REJECTED:
            await trio.lowlevel.checkpoint()
        await supervisor.aclose()
        with pytest.raises(FencepostError):
            await report()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, Outbound(TEXT, via, A), nursery)
        await pane.acknowledge_event(A)
        assert (await report()).stage is Stage.DELIVERED
    assert world.sends == {A: 1}


async def test_a_new_life_without_any_mechanism_says_uncertain_once_deliveries_are_spoken_of(url):
    world = World(gate=trio.Event())
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        beside(nursery, pane.deliver, Outbound(TEXT, "channel_turn", A))
        await world.reached.wait()
        await supervisor.aclose()
    async with open_supervisor(url) as supervisor:
        await supervisor.pane("pane").binding()
        assert (await supervisor.status()).uncertain_deliveries == 1


async def test_an_acknowledgement_is_no_reply(url):
    world = World()
    async with opened(url, world) as (_, pane):
        await unresolved(pane, world, Outbound("ask", "fleet_seat", A))
        assert await pane.acknowledge_event(A, "reply") == Applied()
        assert (await pane.deliver(Outbound("ask", "fleet_seat", A))).stage is Stage.DELIVERED
        assert await pane.reply_event(A, "yes") == Applied()
        report = await pane.deliver(Outbound("ask", "fleet_seat", A))
        assert (report.stage, report.native) == (Stage.RESPONDED, "reply")
