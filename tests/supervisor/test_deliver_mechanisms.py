"""What each mechanism reports, row by row: protocol-delivery.md sections 1.4, 2 and 4, contract D-4 to D-18."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import trio
from delivery_scenarios import World, beside, opened, rows, stored_events, taken, uid, unresolved

from fencepost.mailbox import ladder
from fencepost.supervisor import (
    Applied,
    InvalidTransition,
    MechanismOutcome,
    Outbound,
    Reason,
    Refused,
    Stage,
    Stop,
    TurnEnd,
    Unchanged,
    UnmappedMechanism,
    check,
    open_supervisor,
)

A, B = uid(1), uid(2)
SEATS = ("head_seat", "fleet_seat")


def said(report) -> tuple:
    return report.mechanism, report.outcome, report.native, report.stage or report.stop


def head(delivery_id=A, text="hello") -> Outbound:
    return Outbound(text, "head_seat", delivery_id)


def fleet(delivery_id=A, text="hello") -> Outbound:
    return Outbound(text, "fleet_seat", delivery_id)


# -- 2.1 head seat, 2.2 fleet seat, and the states of an event (4) ---------------------------------------------------


@pytest.mark.parametrize("via", SEATS, ids=["2.1-1 head_seat", "2.2-1 fleet_seat"])
async def test_4_1_3_delivered_is_the_exact_acknowledgement(url, via):
    world = World()
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, Outbound("hello", via, A), nursery)
        assert rows(url, "deliveries")[0]["outcome"] is None, "taken, and nothing heard of it yet"
        assert await pane.acknowledge_event(A) == Applied()
        assert said(await report()) == (via, "delivered", None, Stage.DELIVERED)
        assert (await report()).delivery_id == A
        kinds = [kind for kind, _ in await stored_events(supervisor)]
        assert kinds == ["delivery.dispatched", "delivery.reported"]
    assert await check(url) == []


@pytest.mark.parametrize("native", ["queued", "started", "steered"])
async def test_2_2_2_delivered_with_native_detail_is_consumed(url, native):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, fleet(), nursery)
        await pane.acknowledge_event(A, native, "a goal holds it back")
        assert said(await report()) == ("fleet_seat", "delivered", native, Stage.CONSUMED)
        assert (await report()).delay == "a goal holds it back"


async def test_1_3_5_consumed_is_shown_as_consumed_and_as_nothing_more(url):
    world = World()
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        before = await pane.snapshot()
        report = await taken(pane, world, fleet(), nursery)
        await pane.acknowledge_event(A, "started")
        assert ((await report()).stage, (await report()).detail) == (Stage.CONSUMED, None)
        told = await stored_events(supervisor)
        assert [(kind, data.get("stage")) for kind, data in told] == [
            ("delivery.dispatched", None),
            ("delivery.reported", "consumed"),
        ]
        assert rows(url, "deliveries")[0]["reply"] is None
        assert await pane.snapshot() == before, "nothing runs, and nothing ended"
        status = await supervisor.status()
        assert (status.open_batches, status.uncertain_deliveries) == (0, 0)


async def test_1_3_2_the_mechanisms_own_words_stay_beside_the_stage(url):
    world = World()
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, fleet(), nursery)
        await pane.acknowledge_event(A, "queued", "a goal holds it back")
        told = await report()
        (reported,) = [data for kind, data in await stored_events(supervisor) if kind == "delivery.reported"]
    expected = {"outcome": "delivered", "native": "queued", "delay": "a goal holds it back", "stage": "consumed"}
    assert {name: getattr(told, name) for name in expected} == expected
    assert {name: reported[name] for name in expected} == expected


async def test_2_2_1_a_native_word_nobody_knows_leaves_it_delivered(url):
    # The exact id was acknowledged, which is what `delivered` means, whatever else the bridge says of it.
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, fleet(), nursery)
        assert await pane.acknowledge_event(A, "digested") == Applied()
        assert said(await report()) == ("fleet_seat", "delivered", None, Stage.DELIVERED)
        assert "digested" in (await report()).detail


async def test_2_1_1_a_head_seat_claims_no_more_than_delivered(url):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, head(), nursery)
        await pane.acknowledge_event(A, "started")
        assert said(await report()) == ("head_seat", "delivered", None, Stage.DELIVERED)


async def test_2_1_2_replied(autojump_clock):
    world = World()
    async with opened("memory://", world, times={"reply": 10.0}) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, head(), nursery)
        await pane.acknowledge_event(A)
        await trio.sleep(9)
        assert not report.done.is_set(), "the window for a reply is open"
        assert await pane.reply_event(A, "understood") == Applied()
        assert said(await report()) == ("head_seat", "replied", None, Stage.RESPONDED)


async def test_2_1_1_and_12_o2_a_reply_window_that_lapses_is_delivered(autojump_clock):
    world = World()
    async with opened("memory://", world, times={"reply": 10.0}) as (supervisor, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, head(), nursery)
        await pane.acknowledge_event(A)
        await trio.sleep(11)
        assert said(await report()) == ("head_seat", "delivered", None, Stage.DELIVERED)
        assert (await pane.reply_event(A, "late")).reason is Reason.REPLY_TOO_LATE
        (letter,) = await supervisor.dead_letters()
        assert (letter.reason, letter.call) == ("reply_too_late", "reply_event")
        assert said(await pane.deliver(head())) == ("head_seat", "delivered", None, Stage.DELIVERED)


async def test_2_1_2_the_window_is_open_although_nobody_waits_for_the_report(autojump_clock):
    world = World()
    async with opened("memory://", world, times={"reply": 10.0}) as (_, pane):
        await unresolved(pane, world, head())
        assert await pane.acknowledge_event(A) == Applied()
        assert await pane.reply_event(A, "understood") == Applied()
        assert (await pane.deliver(head())).stage is Stage.RESPONDED


@pytest.mark.parametrize("via", SEATS, ids=["2.1-2 head_seat", "2.2-3 fleet_seat"])
async def test_2_1_and_2_2_a_reply_needs_no_acknowledgement(url, via):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, Outbound("hello", via, A), nursery)
        assert await pane.reply_event(A, "understood") == Applied()
        assert (await report()).stage is Stage.RESPONDED
        assert await pane.reply_event(A, "once more") == Unchanged()
        assert rows(url, "deliveries")[0]["reply"] == "understood"
    assert await check(url) == []


async def test_2_2_3_a_correlated_reply_is_responded_at_any_time(url):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        await taken(pane, world, fleet(), nursery)
        await pane.acknowledge_event(A, "queued")
        assert await pane.reply_event(A, "done") == Applied()
        assert said(await pane.deliver(fleet())) == ("fleet_seat", "delivered", "reply", Stage.RESPONDED)


@pytest.mark.parametrize("via", SEATS, ids=["2.1-3 head_seat", "2.2-4 fleet_seat"])
async def test_4_1_4_and_12_o2_unconfirmed_at_the_deadline(autojump_clock, via):
    world = World()
    async with opened("memory://", world, times={"acknowledge": 30.0}) as (supervisor, pane):
        async with trio.open_nursery() as nursery:
            report = await taken(pane, world, Outbound("hello", via, A), nursery)
            await trio.sleep(29)
            assert not report.done.is_set()
            await trio.sleep(2)
            assert said(await report()) == (via, "unconfirmed", None, Stop.UNCERTAIN)
        assert (await supervisor.status()).uncertain_deliveries == 1
    assert world.sends == {A: 1}


@pytest.mark.parametrize("via", SEATS)
async def test_4_1_5_unresolved_the_exact_acknowledgement_is_delivered(url, via):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        await unresolved(pane, world, Outbound("hello", via, A))
        assert await pane.acknowledge_event(A) == Applied()
        assert said(await pane.deliver(Outbound("hello", via, A))) == (via, "delivered", None, Stage.DELIVERED)
        assert (await supervisor.status()).uncertain_deliveries == 0
    assert world.sends == {A: 1}
    assert await check(url) == []


@pytest.mark.parametrize("via", SEATS)
async def test_4_1_6_acknowledged_again_it_is_delivered_and_nothing_changes(url, via):
    world = World()
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, Outbound("hello", via, A), nursery)
        await pane.acknowledge_event(A)
        first, before, told = await report(), rows(url, "deliveries"), await stored_events(supervisor)
        for _ in range(2):
            assert await pane.acknowledge_event(A) == Unchanged()
        assert await pane.deliver(Outbound("hello", via, A)) == first
        assert (rows(url, "deliveries"), await stored_events(supervisor)) == (before, told)


@pytest.mark.parametrize("via", SEATS, ids=["2.1-3 head_seat", "2.2-4 fleet_seat"])
async def test_2_1_and_2_2_unconfirmed_when_cancelled_after_it_was_taken(url, via):
    world = World()
    async with opened(url, world) as (_, pane):
        report = await unresolved(pane, world, Outbound("hello", via, A))
        assert said(report) == (via, "unconfirmed", None, Stop.UNCERTAIN)
        assert await pane.cancel_delivery(A) == Unchanged()


@pytest.mark.parametrize("via", SEATS, ids=["2.1-3 head_seat", "2.2-4 fleet_seat"])
async def test_2_1_and_2_2_unconfirmed_while_an_earlier_event_is_unresolved(url, via):
    world = World()
    async with opened(url, world) as (_, pane):
        await unresolved(pane, world, Outbound("hello", via, A))
        blocked = await pane.deliver(Outbound("another", via, B))
        assert (said(blocked), blocked.delivery_id) == ((via, "unconfirmed", None, Stop.UNCERTAIN), A)
        assert await pane.poll_events(0) == []
    assert world.sends == {A: 1}


@pytest.mark.parametrize("late", [-0.001, 0.0, 0.001], ids=["before it", "at its moment", "after it"])
@pytest.mark.parametrize("via", SEATS)
async def test_11_9_an_acknowledgement_races_the_deadline(autojump_clock, via, late):
    world, outbound = World(), Outbound("hello", via, A)
    async with opened("memory://", world, times={"acknowledge": 5.0}) as (supervisor, pane):
        async with trio.open_nursery() as nursery:
            report = await taken(pane, world, outbound, nursery)
            await trio.sleep(5.0 + late)
            assert await pane.acknowledge_event(A) == Applied(), "it wins if it comes at all"
            told = await report()
        assert (told.stage, told.stop) in {(Stage.DELIVERED, None), (None, Stop.UNCERTAIN)}
        if late:
            assert (told.stage is Stage.DELIVERED) == (late < 0)
        assert (await pane.deliver(outbound)).stage is Stage.DELIVERED
        reached = [
            data.get("stage", data.get("stop")) for _, data in await stored_events(supervisor, "delivery.reported")
        ]
        assert reached == (["delivered"] if told.stage else ["uncertain", "delivered"])
    assert world.sends == {A: 1}


@pytest.mark.parametrize(
    ("via", "word"),
    [("head_seat", "unbound"), ("fleet_seat", "undelivered")],
    ids=["2.1-4 head_seat", "2.2-5 fleet_seat"],
)
async def test_4_1_2_and_12_o2_unbound_or_undelivered_when_the_grace_is_over(autojump_clock, via, word):
    world = World()
    async with opened("memory://", world, times={"grace": 5.0}) as (_, pane):
        started = trio.current_time()
        report = await pane.deliver(Outbound("hello", via, A))
        assert (trio.current_time() - started) == pytest.approx(5.0, abs=0.5)
        assert said(report) == (via, word, None, Stop.UNAVAILABLE)
        assert await pane.poll_events(0) == [], "gone: it is not handed out afterwards"
        assert (await pane.acknowledge_event(A)).reason is Reason.UNKNOWN_DELIVERY
        assert await pane.cancel_delivery(A) == Unchanged()


@pytest.mark.parametrize(("via", "word", "stop"), [
    ("head_seat", "aborted", Stop.EXPIRED),
    ("fleet_seat", "undelivered", Stop.UNAVAILABLE),
], ids=["2.1-5 head_seat", "2.2-5 fleet_seat"])  # fmt: skip
async def test_2_1_and_2_2_aborted_when_cancelled_before_it_was_taken(url, via, word, stop):
    world = World()
    async with opened(url, world, times={"grace": math.inf}) as (_, pane), trio.open_nursery() as nursery:
        report = beside(nursery, pane.deliver, Outbound("hello", via, A))
        while isinstance(await pane.cancel_delivery(A), Refused):
            await trio.lowlevel.checkpoint()
        assert said(await report()) == (via, word, None, stop)
        assert await pane.poll_events(0) == []
        assert said(await pane.deliver(Outbound("hello", via, A))) == (via, word, None, stop), "final for its id"


async def test_1_4_2_the_head_seats_fallback_runs_where_nothing_was_taken(autojump_clock):
    world = World()
    async with opened("memory://", world, times={"grace": 5.0, "fallback": world.run}) as (_, pane):
        assert said(await pane.deliver(head())) == ("channel_turn", "settled", None, Stage.RESPONDED)
        assert world.sends == {A: 1}


async def test_1_4_3_and_da_18_the_fallback_never_runs_once_the_event_was_taken(autojump_clock):
    world = World()
    times = {"grace": 5.0, "acknowledge": 5.0, "fallback": world.run}
    async with opened("memory://", world, times=times) as (_, pane):
        async with trio.open_nursery() as nursery:
            report = await taken(pane, world, head(), nursery)
            assert (await report()).stop is Stop.UNCERTAIN
        assert (await pane.deliver(head(B))).delivery_id == A
        await trio.sleep(60)
    assert world.sends == {A: 1}


async def test_4_1_1_and_da_2_one_event_at_a_time_and_each_is_taken_once(url):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        polls = [beside(nursery, pane.poll_events, 0.2) for _ in range(2)]
        report = beside(nursery, pane.deliver, fleet())
        answers: list[Any] = [await poll() for poll in polls]
        (event,) = itertools.chain(*answers)
        assert (event.event_id, event.delivery_id, event.pane_id, event.mechanism, event.text) == (
            A, A, "pane", "fleet_seat", "hello",
        )  # fmt: skip
        (row,) = rows(url, "deliveries")
        assert (row["dispatched_at"] is not None, row["outcome"], row["resolved_at"]) == (True, None, None), "taken"
        assert await pane.poll_events(0) == []
        await pane.acknowledge_event(A)
        assert (await report()).stage is Stage.DELIVERED


async def test_a_poll_whose_caller_went_away_takes_no_event(url):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        with trio.CancelScope() as gone:
            gone.cancel()
            await pane.poll_events(math.inf)
        with trio.move_on_after(0.05):
            await pane.poll_events(math.inf)
        report = await taken(pane, world, head(), nursery)
        await pane.acknowledge_event(A)
        assert (await report()).stage is Stage.DELIVERED


async def test_cancelling_the_caller_only_stops_its_waiting(url):
    world = World()
    async with opened(url, world, times={"grace": math.inf}) as (_, pane):
        with trio.move_on_after(0.1):
            await pane.deliver(head())
        assert world.took(await pane.poll_events(5)) == [A]
        assert await pane.acknowledge_event(A) == Applied()
        assert (await pane.deliver(head())).stage is Stage.DELIVERED


@pytest.mark.parametrize("call", ["acknowledge_event", "reply_event", "cancel_delivery", "settle"])
async def test_d_17_to_d_19_an_unknown_id_is_refused_with_a_dead_letter(url, call):
    async with opened(url, World()) as (supervisor, pane):
        arguments = (A,) if call in {"acknowledge_event", "cancel_delivery"} else (A, "text")
        refused = await getattr(pane, call)(*arguments)
        assert (type(refused), refused.reason) == (Refused, Reason.UNKNOWN_DELIVERY)
        assert [letter.reason for letter in await supervisor.dead_letters()] == ["unknown_delivery"]


async def test_another_panes_event_is_unknown_here(url):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        await unresolved(pane, world, head())
        other = supervisor.pane("other")
        assert (await other.acknowledge_event(A)).reason is Reason.UNKNOWN_DELIVERY
        assert (await other.settle(A, "me")).reason is Reason.UNKNOWN_DELIVERY
        with pytest.raises(InvalidTransition):
            await other.deliver(head())
        with pytest.raises(InvalidTransition):
            await other.reconcile(A, world.seen("other"))
        assert (await pane.deliver(head())).stop is Stop.UNCERTAIN


async def test_what_was_no_event_cannot_be_acknowledged(url):
    world = World(ends=TurnEnd("failed", "who knows"))
    async with opened(url, world) as (_, pane):
        await pane.deliver(Outbound("hello", "channel_turn", A))
        assert (await pane.acknowledge_event(A)).reason is Reason.UNKNOWN_DELIVERY
        assert (await pane.reply_event(A, "yes")).reason is Reason.UNKNOWN_DELIVERY


# -- 2.3 harness control ----------------------------------------------------------------------------------------


NATIVE_ROWS = [
    (
        "2.3-1 queued",
        MechanismOutcome("accepted", "queued", "a goal holds it back"),
        ("accepted", "queued", Stage.CONSUMED),
    ),
    ("2.3-1 started", MechanismOutcome("accepted", "started"), ("accepted", "started", Stage.CONSUMED)),
    ("2.3-1 steered", MechanismOutcome("accepted", "steered"), ("accepted", "steered", Stage.CONSUMED)),
    ("2.3-2 released", MechanismOutcome("released"), ("released", None, Stop.UNAVAILABLE)),
    ("2.3-3 offline", MechanismOutcome("offline"), ("offline", None, Stop.UNAVAILABLE)),
    ("2.3-4 unconfirmed", MechanismOutcome("unconfirmed"), ("unconfirmed", None, Stop.UNCERTAIN)),
    # D-5: an exception, an unmapped word, or no outcome at all after the dispatch
    ("2.3-4 an exception", RuntimeError("the line went dead"), ("unconfirmed", None, Stop.UNCERTAIN)),
    ("2.3-4 an unmapped word", MechanismOutcome("swallowed"), ("unconfirmed", None, Stop.UNCERTAIN)),
    ("2.3-4 no native word", MechanismOutcome("accepted"), ("unconfirmed", None, Stop.UNCERTAIN)),
    ("2.3-4 an unmapped native word", MechanismOutcome("accepted", "eaten"), ("unconfirmed", None, Stop.UNCERTAIN)),
    ("2.3-4 no outcome", "nonsense", ("unconfirmed", None, Stop.UNCERTAIN)),
    ("2.3-4 no word", MechanismOutcome(None), ("unconfirmed", None, Stop.UNCERTAIN)),
    ("2.3-4 a word that is no text", MechanismOutcome("bad \ud800 word"), ("unconfirmed", None, Stop.UNCERTAIN)),
]


@pytest.mark.parametrize(("says", "expected"), [pytest.param(*row, id=name) for name, *row in NATIVE_ROWS])
async def test_2_3_each_word_of_a_harness_control(says, expected):
    world = World(says=says)
    async with opened("memory://", world) as (_, pane):
        report = await pane.deliver(Outbound("hello", "harness_seat", A))
        assert said(report)[1:] == expected
        assert report.delay == getattr(says, "delay", None)
    assert world.sends == {A: 1}


async def test_2_3_4_silence_is_unconfirmed(autojump_clock):
    class Silent(World):
        ended = False

        async def send(self, session, delivery_id, text):
            try:
                return await super().send(session, delivery_id, text)
            finally:
                self.ended = True

    world = Silent(says=None)
    async with opened("memory://", world, times={"answer": 30.0}) as (_, pane):
        report = await pane.deliver(Outbound("hello", "harness_seat", A))
        assert said(report) == ("harness_seat", "unconfirmed", None, Stop.UNCERTAIN)
        await pane.binding()
        assert world.ended, "nobody listens to it any longer"


@pytest.mark.parametrize("looked_at", ["no session", "raises", "nonsense", "another pane's", "silent"])
async def test_2_3_3_offline_where_there_is_no_session_to_send_to(autojump_clock, looked_at):
    class Blind(World):
        async def inspect(self, pane_id) -> Any:
            match looked_at:
                case "raises":
                    raise OSError("no such socket")
                case "nonsense":
                    return "a session"
                case "another pane's":
                    return self.seen("other")
                case "silent":
                    await trio.sleep_forever()
                case _:
                    pass
            return None

    world = Blind()
    async with opened("memory://", world) as (_, pane):
        report = await pane.deliver(Outbound("hello", "harness_seat", A))
        assert said(report) == ("harness_seat", "offline", None, Stop.UNAVAILABLE)
    assert world.sends == {}


async def test_2_3_2_cancelled_while_the_harness_is_looked_at_is_released(url):
    class Slow(World):
        async def inspect(self, pane_id):
            await self._held()
            return self.seen(pane_id)

    world = Slow(gate=trio.Event())
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = beside(nursery, pane.deliver, Outbound("hello", "harness_seat", A))
        await world.reached.wait()
        assert await pane.cancel_delivery(A) == Applied()
        assert said(await report()) == ("harness_seat", "released", None, Stop.UNAVAILABLE)
        world.gate.set()
        await pane.binding()
    assert world.sends == {}


async def test_2_3_1_an_answer_after_a_cancel_still_proves_it(url):
    world = World(gate=trio.Event())
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        report = beside(nursery, pane.deliver, Outbound("hello", "harness_seat", A))
        await world.reached.wait()
        await pane.cancel_delivery(A)
        assert (await report()).stop is Stop.UNCERTAIN
        world.gate.set()
        async for event in supervisor.events():
            if event.data.get("stage") == "consumed":
                break
        assert said(await pane.deliver(Outbound("hello", "harness_seat", A)))[1:] == (
            "accepted", "started", Stage.CONSUMED,
        )  # fmt: skip


# -- 2.4 channel turns ------------------------------------------------------------------------------------------


TURN_ROWS = [
    ("2.4-1 pending", TurnEnd("pending"), Stage.STORED),
    ("2.4-2 settled", TurnEnd("settled", text="well"), Stage.RESPONDED),
    ("2.4-2 silent", TurnEnd("silent"), Stage.RESPONDED),
    ("2.4-2 absorbed", TurnEnd("absorbed"), Stage.RESPONDED),
    ("2.4-3 waiting_user", TurnEnd("waiting_user"), Stage.CONSUMED),
    ("2.4-4 policy", TurnEnd("failed", "policy_refused"), Stop.REJECTED),
    ("2.4-4 validation", TurnEnd("failed", "validation_refused"), Stop.REJECTED),
    ("2.4-4 permission", TurnEnd("failed", "permission_denied"), Stop.REJECTED),
    ("2.4-4 tool not allowed", TurnEnd("failed", "tools_not_allowed"), Stop.REJECTED),
    ("2.4-5 interrupted", TurnEnd("failed", "interrupted"), Stop.EXPIRED),
    ("2.4-5 stalled", TurnEnd("failed", "stalled"), Stop.EXPIRED),
    ("2.4-6 12-D1 a kind nobody knows", TurnEnd("failed", "who knows"), Stop.UNCERTAIN),
    ("2.4-6 12-D1 no kind", TurnEnd("failed"), Stop.UNCERTAIN),
    ("2.4-6 an unmapped word", TurnEnd("exploded"), Stop.UNCERTAIN),
    ("2.4-6 an exception", RuntimeError("the room is gone"), Stop.UNCERTAIN),
    ("2.4-6 no end", None, Stop.UNCERTAIN),
]


@pytest.mark.parametrize(("ends", "reach"), [pytest.param(*row, id=name) for name, *row in TURN_ROWS])
async def test_2_4_each_end_of_a_channel_turn(ends, reach):
    world = World(ends=ends)
    async with opened("memory://", world) as (_, pane):
        report = await pane.deliver(Outbound("hello", "channel_turn", A))
        assert (report.stage or report.stop) == reach
        if isinstance(ends, TurnEnd) and ends.outcome != "exploded":
            assert (report.outcome, report.native) == (ends.outcome, ends.native)
        found = ladder.report(report.mechanism, report.outcome, report.native)
        assert (found.stage, found.stop) == (report.stage, report.stop), "the words and the reach agree (1.3)"
    assert world.sends == {A: 1}


async def test_2_4_1_and_d_6_past_its_wait_the_report_is_pending(autojump_clock):
    world = World(gate=trio.Event())
    async with opened("memory://", world, times={"wait": 10.0}) as (supervisor, pane):
        room = Outbound("hello", "channel_turn", A)
        report = await pane.deliver(room)
        assert said(report) == ("channel_turn", "pending", None, Stage.STORED)
        assert said(await pane.deliver(room)) == said(report), "the original receipt, and no second turn (1.4)"
        assert (await pane.deliver(Outbound("another", "channel_turn", B))).stop is Stop.UNCERTAIN
        assert (await supervisor.status()).uncertain_deliveries == 0
        world.gate.set()
        async for event in supervisor.events():
            if event.kind == "delivery.reported":
                break
        assert said(await pane.deliver(room)) == ("channel_turn", "settled", None, Stage.RESPONDED)
    assert world.sends == {A: 1}


# -- 2.5 and mechanisms of one's own -----------------------------------------------------------------------------


class Own:
    def __init__(self, name: str, *outcomes) -> None:
        self.name = name
        self.outcomes = list(outcomes)
        self.sent: list[str] = []

    async def send(self, message):
        self.sent.append(message.delivery_id)
        return self.outcomes.pop(0)


OWN_ROWS = [
    ("2.2-6", "fleet_seat", MechanismOutcome("offline"), Stop.UNAVAILABLE),
    ("2.5-2", "hire", MechanismOutcome("spawned", "brief"), Stage.CONSUMED),
    ("2.5-4", "hire", MechanismOutcome("failed", "start_unconfirmed"), Stop.UNCERTAIN),
    ("2.5-4", "hire", MechanismOutcome("failed", "delivery_unconfirmed"), Stop.UNCERTAIN),
    ("2.5-5", "hire", MechanismOutcome("failed", "unknown_directory"), Stop.REJECTED),
    ("2.5-5", "hire", MechanismOutcome("failed", "at_capacity"), Stop.REJECTED),
    ("2.5-5", "hire", MechanismOutcome("failed", "trust_required"), Stop.REJECTED),
    ("2.5-6", "hire", MechanismOutcome("failed", "anything else"), Stop.UNAVAILABLE),
    # No stage at all: of a delivery that left it proves nothing.
    ("2.5-3", "hire", MechanismOutcome("spawned"), Stop.UNCERTAIN),
    ("2.5-7", "opencode", MechanismOutcome("ready"), Stop.UNCERTAIN),
    ("2.5-8", "opencode", MechanismOutcome("pending"), Stage.STORED),
    ("2.5-8", "opencode", MechanismOutcome("busy"), Stage.STORED),
    ("2.5-9", "opencode", MechanismOutcome("delivered"), Stage.CONSUMED),
    ("2.5-10", "opencode", MechanismOutcome("uncertain"), Stop.UNCERTAIN),
    ("2.5-11", "opencode", MechanismOutcome("unbound"), Stop.UNAVAILABLE),
]


@pytest.mark.parametrize(
    ("name", "outcome", "reach"),
    [
        pytest.param(name, outcome, reach, id=f"{row} {name} {outcome.outcome} {outcome.native or ''}".rstrip())
        for row, name, outcome, reach in OWN_ROWS
    ],
)
async def test_2_each_word_of_a_mechanism_of_ones_own(name, outcome, reach):
    own = Own(name, outcome)
    async with open_supervisor("memory://", mechanisms=[own]) as supervisor:
        pane = supervisor.pane("pane")
        report = await pane.deliver(Outbound("hello", name, A))
        assert (report.mechanism, report.stage or report.stop) == (name, reach)
        again = await pane.deliver(Outbound("hello", name, A))
        assert (again.stage, again.stop) == (report.stage, report.stop)
    assert own.sent == [A]


@pytest.mark.parametrize("name", [pytest.param("swarm", id="2.5-1 swarm"), "discord", "", None, 3])
async def test_1_3_3_and_d_10_a_mechanism_without_a_mapping_is_not_offered(url, name):
    with pytest.raises(UnmappedMechanism):
        async with open_supervisor(url, mechanisms=[Own(name)]):
            pass


async def test_d_10_an_unregistered_via_is_the_callers_mistake_and_nobody_elses(url):
    world = World()
    async with (
        opened(url, world, mechanisms=world.mechanisms()[:2]) as (supervisor, pane),
        trio.open_nursery() as nursery,
    ):
        report = await taken(pane, world, head(), nursery)
        for via in ("harness_seat", "swarm"):
            with pytest.raises(UnmappedMechanism) as raised:
                await pane.deliver(Outbound("hello", via, B))
            assert raised.value.mechanism == via
        assert not report.done.is_set()
        await pane.acknowledge_event(A)
        assert (await report()).stage is Stage.DELIVERED
        kinds = {kind for kind, _ in await stored_events(supervisor)}
        assert "actor.crashed" not in kinds


# -- 1.4: what may follow a report -------------------------------------------------------------------------------


REPEATED = [
    ("1.4-1", "stored", TurnEnd("pending")),
    ("1.4-1", "consumed", TurnEnd("waiting_user")),
    ("1.4-1", "responded", TurnEnd("settled")),
    ("1.4-3", "uncertain", TurnEnd("failed")),
    ("1.4-4", "expired", TurnEnd("failed", "stalled")),
    ("1.4-5", "rejected", TurnEnd("failed", "policy_refused")),
]


@pytest.mark.parametrize(
    ("reach", "ends"), [pytest.param(reach, ends, id=f"{row} {reach}") for row, reach, ends in REPEATED]
)
async def test_1_4_the_same_id_again_is_answered_from_the_original(reach, ends):
    world = World(ends=ends)
    room = Outbound("hello", "channel_turn", A)
    async with opened("memory://", world) as (_, pane):
        first = await pane.deliver(room)
        assert (first.stage or first.stop) == reach
        world.ends = TurnEnd("settled")
        again = await pane.deliver(room)
        assert (again.delivery_id, again.stage, again.stop) == (A, first.stage, first.stop)
        drifted = await pane.deliver(Outbound("another text", "channel_turn", A))
        assert (drifted.delivery_id, drifted.stage, drifted.stop) == (A, first.stage, first.stop)
        if reach != "uncertain":
            assert "differs" in (drifted.detail or ""), "DA-12: the drift is named"
            assert "differs" not in (again.detail or "")
            # A new id is a new request, by any mechanism.
            assert (await pane.deliver(Outbound("hello", "channel_turn", B))).stage is Stage.RESPONDED
        else:
            assert (await pane.deliver(Outbound("hello", "channel_turn", B))).delivery_id == A
    assert world.sends[A] == 1


async def test_1_4_2_unavailable_is_final_for_its_id_and_a_new_request_is_a_new_id(url):
    world = World(session=None)
    async with opened(url, world) as (_, pane):
        native = Outbound("hello", "harness_seat", A)
        assert (await pane.deliver(native)).stop is Stop.UNAVAILABLE
        world.session = "session-1"
        assert (await pane.deliver(native)).stop is Stop.UNAVAILABLE, "DA-11"
        assert world.sends == {}
        fresh = await pane.deliver(Outbound("hello", "harness_seat"))
        assert (fresh.stage, fresh.delivery_id != A) == (Stage.CONSUMED, True)
