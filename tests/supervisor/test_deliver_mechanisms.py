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


@pytest.mark.parametrize("via", SEATS)
async def test_2_1_and_2_2_delivered_is_the_exact_acknowledgement(url, via):
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
async def test_2_2_delivered_with_native_detail_is_consumed(url, native):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, fleet(), nursery)
        await pane.acknowledge_event(A, native, "a goal holds it back")
        assert said(await report()) == ("fleet_seat", "delivered", native, Stage.CONSUMED)
        assert (await report()).delay == "a goal holds it back"


async def test_2_2_a_native_word_nobody_knows_leaves_it_delivered(url):
    # The exact id was acknowledged, which is what `delivered` means, whatever else the bridge says of it.
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, fleet(), nursery)
        assert await pane.acknowledge_event(A, "digested") == Applied()
        assert said(await report()) == ("fleet_seat", "delivered", None, Stage.DELIVERED)
        assert "digested" in (await report()).detail


async def test_2_1_a_head_seat_claims_no_more_than_delivered(url):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, head(), nursery)
        await pane.acknowledge_event(A, "started")
        assert said(await report()) == ("head_seat", "delivered", None, Stage.DELIVERED)


async def test_2_1_replied(autojump_clock):
    world = World()
    async with opened("memory://", world, times={"reply": 10.0}) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, head(), nursery)
        await pane.acknowledge_event(A)
        await trio.sleep(9)
        assert not report.done.is_set(), "the window for a reply is open"
        assert await pane.reply_event(A, "understood") == Applied()
        assert said(await report()) == ("head_seat", "replied", None, Stage.RESPONDED)


async def test_2_1_a_reply_window_that_lapses_is_delivered(autojump_clock):
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


async def test_2_1_the_window_is_open_although_nobody_waits_for_the_report(autojump_clock):
    world = World()
    async with opened("memory://", world, times={"reply": 10.0}) as (_, pane):
        await unresolved(pane, world, head())
        assert await pane.acknowledge_event(A) == Applied()
        assert await pane.reply_event(A, "understood") == Applied()
        assert (await pane.deliver(head())).stage is Stage.RESPONDED


@pytest.mark.parametrize("via", SEATS)
async def test_2_1_and_2_2_a_reply_needs_no_acknowledgement(url, via):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        report = await taken(pane, world, Outbound("hello", via, A), nursery)
        assert await pane.reply_event(A, "understood") == Applied()
        assert (await report()).stage is Stage.RESPONDED
        assert await pane.reply_event(A, "once more") == Unchanged()
        assert rows(url, "deliveries")[0]["reply"] == "understood"
    assert await check(url) == []


async def test_2_2_a_correlated_reply_is_responded_at_any_time(url):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        await taken(pane, world, fleet(), nursery)
        await pane.acknowledge_event(A, "queued")
        assert await pane.reply_event(A, "done") == Applied()
        assert said(await pane.deliver(fleet())) == ("fleet_seat", "delivered", "reply", Stage.RESPONDED)


@pytest.mark.parametrize("via", SEATS)
async def test_2_1_and_2_2_unconfirmed_at_the_deadline(autojump_clock, via):
    world = World()
    async with opened("memory://", world, times={"acknowledge": 30.0}) as (supervisor, pane):
        async with trio.open_nursery() as nursery:
            report = await taken(pane, world, Outbound("hello", via, A), nursery)
            await trio.sleep(29)
            assert not report.done.is_set()
            await trio.sleep(2)
            assert said(await report()) == (via, "unconfirmed", None, Stop.UNCERTAIN)
        assert (await supervisor.status()).uncertain_deliveries == 1
        # 4, unresolved: the exact id still acknowledges it.
        assert await pane.acknowledge_event(A) == Applied()
        assert said(await pane.deliver(Outbound("hello", via, A))) == (via, "delivered", None, Stage.DELIVERED)
        # 4, acknowledged: acknowledging again changes nothing.
        assert await pane.acknowledge_event(A) == Unchanged()
        assert (await supervisor.status()).uncertain_deliveries == 0
    assert world.sends == {A: 1}


@pytest.mark.parametrize("via", SEATS)
async def test_2_1_unconfirmed_when_cancelled_after_it_was_taken(url, via):
    world = World()
    async with opened(url, world) as (_, pane):
        report = await unresolved(pane, world, Outbound("hello", via, A))
        assert said(report) == (via, "unconfirmed", None, Stop.UNCERTAIN)
        assert await pane.cancel_delivery(A) == Unchanged()


@pytest.mark.parametrize("via", SEATS)
async def test_2_1_unconfirmed_while_an_earlier_event_is_unresolved(url, via):
    world = World()
    async with opened(url, world) as (_, pane):
        await unresolved(pane, world, Outbound("hello", via, A))
        blocked = await pane.deliver(Outbound("another", via, B))
        assert (said(blocked), blocked.delivery_id) == ((via, "unconfirmed", None, Stop.UNCERTAIN), A)
        assert await pane.poll_events(0) == []
    assert world.sends == {A: 1}


@pytest.mark.parametrize(("via", "word"), [("head_seat", "unbound"), ("fleet_seat", "undelivered")])
async def test_2_1_unbound_and_2_2_undelivered_when_the_grace_is_over(autojump_clock, via, word):
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
])  # fmt: skip
async def test_2_1_aborted_when_cancelled_before_it_was_taken(url, via, word, stop):
    world = World()
    async with opened(url, world, times={"grace": math.inf}) as (_, pane), trio.open_nursery() as nursery:
        report = beside(nursery, pane.deliver, Outbound("hello", via, A))
        while isinstance(await pane.cancel_delivery(A), Refused):
            await trio.lowlevel.checkpoint()
        assert said(await report()) == (via, word, None, stop)
        assert await pane.poll_events(0) == []
        assert said(await pane.deliver(Outbound("hello", via, A))) == (via, word, None, stop), "final for its id"


async def test_2_1_the_head_seats_fallback_runs_where_nothing_was_taken(autojump_clock):
    world = World()
    async with opened("memory://", world, times={"grace": 5.0, "fallback": world.run}) as (_, pane):
        assert said(await pane.deliver(head())) == ("channel_turn", "settled", None, Stage.RESPONDED)
        assert world.sends == {A: 1}


async def test_da_18_the_fallback_never_runs_once_the_event_was_taken(autojump_clock):
    world = World()
    times = {"grace": 5.0, "acknowledge": 5.0, "fallback": world.run}
    async with opened("memory://", world, times=times) as (_, pane):
        async with trio.open_nursery() as nursery:
            report = await taken(pane, world, head(), nursery)
            assert (await report()).stop is Stop.UNCERTAIN
        assert (await pane.deliver(head(B))).delivery_id == A
        await trio.sleep(60)
    assert world.sends == {A: 1}


async def test_da_2_one_event_at_a_time_and_each_is_taken_once(url):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        polls = [beside(nursery, pane.poll_events, 0.2) for _ in range(2)]
        report = beside(nursery, pane.deliver, fleet())
        answers: list[Any] = [await poll() for poll in polls]
        (event,) = itertools.chain(*answers)
        assert (event.event_id, event.delivery_id, event.pane_id, event.mechanism, event.text) == (
            A, A, "pane", "fleet_seat", "hello",
        )  # fmt: skip
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
    (MechanismOutcome("accepted", "queued", "a goal holds it back"), ("accepted", "queued", Stage.CONSUMED)),
    (MechanismOutcome("accepted", "started"), ("accepted", "started", Stage.CONSUMED)),
    (MechanismOutcome("accepted", "steered"), ("accepted", "steered", Stage.CONSUMED)),
    (MechanismOutcome("released"), ("released", None, Stop.UNAVAILABLE)),
    (MechanismOutcome("offline"), ("offline", None, Stop.UNAVAILABLE)),
    (MechanismOutcome("unconfirmed"), ("unconfirmed", None, Stop.UNCERTAIN)),
    # D-5: an exception, an unmapped word, or no outcome at all after the dispatch
    (RuntimeError("the line went dead"), ("unconfirmed", None, Stop.UNCERTAIN)),
    (MechanismOutcome("swallowed"), ("unconfirmed", None, Stop.UNCERTAIN)),
    (MechanismOutcome("accepted"), ("unconfirmed", None, Stop.UNCERTAIN)),
    (MechanismOutcome("accepted", "eaten"), ("unconfirmed", None, Stop.UNCERTAIN)),
    ("nonsense", ("unconfirmed", None, Stop.UNCERTAIN)),
    (MechanismOutcome(None), ("unconfirmed", None, Stop.UNCERTAIN)),
    (MechanismOutcome("bad \ud800 word"), ("unconfirmed", None, Stop.UNCERTAIN)),
]


@pytest.mark.parametrize(
    ("says", "expected"), NATIVE_ROWS, ids=lambda value: repr(value)[:60].encode("ascii", "replace").decode()
)
async def test_2_3_each_word_of_a_harness_control(says, expected):
    world = World(says=says)
    async with opened("memory://", world) as (_, pane):
        report = await pane.deliver(Outbound("hello", "harness_seat", A))
        assert said(report)[1:] == expected
        assert report.delay == getattr(says, "delay", None)
    assert world.sends == {A: 1}


async def test_2_3_silence_is_unconfirmed(autojump_clock):
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
async def test_2_3_offline_where_there_is_no_session_to_send_to(autojump_clock, looked_at):
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


async def test_2_3_cancelled_while_the_harness_is_looked_at_is_released(url):
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


async def test_2_3_an_answer_after_a_cancel_still_proves_it(url):
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
    (TurnEnd("pending"), Stage.STORED),
    (TurnEnd("settled", text="well"), Stage.RESPONDED),
    (TurnEnd("silent"), Stage.RESPONDED),
    (TurnEnd("absorbed"), Stage.RESPONDED),
    (TurnEnd("waiting_user"), Stage.CONSUMED),
    (TurnEnd("failed", "policy_refused"), Stop.REJECTED),
    (TurnEnd("failed", "validation_refused"), Stop.REJECTED),
    (TurnEnd("failed", "permission_denied"), Stop.REJECTED),
    (TurnEnd("failed", "tools_not_allowed"), Stop.REJECTED),
    (TurnEnd("failed", "interrupted"), Stop.EXPIRED),
    (TurnEnd("failed", "stalled"), Stop.EXPIRED),
    (TurnEnd("failed", "who knows"), Stop.UNCERTAIN),
    (TurnEnd("failed"), Stop.UNCERTAIN),
    (TurnEnd("exploded"), Stop.UNCERTAIN),
    (RuntimeError("the room is gone"), Stop.UNCERTAIN),
    (None, Stop.UNCERTAIN),
]


@pytest.mark.parametrize(("ends", "reach"), TURN_ROWS, ids=lambda value: repr(value)[:60])
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


async def test_2_4_and_d_6_past_its_wait_the_report_is_pending(autojump_clock):
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
    ("hire", MechanismOutcome("spawned", "brief"), Stage.CONSUMED),
    ("hire", MechanismOutcome("failed", "start_unconfirmed"), Stop.UNCERTAIN),
    ("hire", MechanismOutcome("failed", "delivery_unconfirmed"), Stop.UNCERTAIN),
    ("hire", MechanismOutcome("failed", "unknown_directory"), Stop.REJECTED),
    ("hire", MechanismOutcome("failed", "at_capacity"), Stop.REJECTED),
    ("hire", MechanismOutcome("failed", "trust_required"), Stop.REJECTED),
    ("hire", MechanismOutcome("failed", "anything else"), Stop.UNAVAILABLE),
    # No stage at all: of a delivery that left it proves nothing.
    ("hire", MechanismOutcome("spawned"), Stop.UNCERTAIN),
    ("opencode", MechanismOutcome("ready"), Stop.UNCERTAIN),
    ("opencode", MechanismOutcome("pending"), Stage.STORED),
    ("opencode", MechanismOutcome("busy"), Stage.STORED),
    ("opencode", MechanismOutcome("delivered"), Stage.CONSUMED),
    ("opencode", MechanismOutcome("uncertain"), Stop.UNCERTAIN),
    ("opencode", MechanismOutcome("unbound"), Stop.UNAVAILABLE),
]


@pytest.mark.parametrize(("name", "outcome", "reach"), OWN_ROWS, ids=repr)
async def test_2_5_each_word_of_a_hire_and_of_opencode(name, outcome, reach):
    own = Own(name, outcome)
    async with open_supervisor("memory://", mechanisms=[own]) as supervisor:
        pane = supervisor.pane("pane")
        report = await pane.deliver(Outbound("hello", name, A))
        assert (report.mechanism, report.stage or report.stop) == (name, reach)
        again = await pane.deliver(Outbound("hello", name, A))
        assert (again.stage, again.stop) == (report.stage, report.stop)
    assert own.sent == [A]


@pytest.mark.parametrize("name", ["swarm", "discord", "", None, 3])
async def test_d_10_a_mechanism_without_a_mapping_is_not_offered(url, name):
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
    ("stored", TurnEnd("pending")),
    ("consumed", TurnEnd("waiting_user")),
    ("responded", TurnEnd("settled")),
    ("uncertain", TurnEnd("failed")),
    ("expired", TurnEnd("failed", "stalled")),
    ("rejected", TurnEnd("failed", "policy_refused")),
]


@pytest.mark.parametrize(("reach", "ends"), REPEATED, ids=[row[0] for row in REPEATED])
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


async def test_1_4_unavailable_is_final_for_its_id_and_a_new_request_is_a_new_id(url):
    world = World(session=None)
    async with opened(url, world) as (_, pane):
        native = Outbound("hello", "harness_seat", A)
        assert (await pane.deliver(native)).stop is Stop.UNAVAILABLE
        world.session = "session-1"
        assert (await pane.deliver(native)).stop is Stop.UNAVAILABLE, "DA-11"
        assert world.sends == {}
        fresh = await pane.deliver(Outbound("hello", "harness_seat"))
        assert (fresh.stage, fresh.delivery_id != A) == (Stage.CONSUMED, True)
