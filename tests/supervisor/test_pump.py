"""The channel pump, row by row of its table in protocol-delivery.md section 4."""

from __future__ import annotations

import asyncio

import pytest
import trio
import trio.testing

from fencepost.supervisor import (
    ChannelPump,
    FleetSeatMailbox,
    MailboxEvent,
    Outbound,
    PumpStopped,
    Stage,
    Stop,
    open_supervisor,
)
from fencepost.supervisor.pump_state import TABLE, CameOf, PumpState, PumpStep, after


def event(number: int) -> MailboxEvent:
    event_id = f"00000000-0000-4000-8000-{number:012}"
    return MailboxEvent(event_id, event_id, "pane", "fleet_seat", f"text {number}")


class Wire:
    """A service and a harness in one: it is told what to answer, and keeps what happened in order."""

    def __init__(self, *polls, writes=(), acknowledgements=()):
        self.polls = list(polls)
        self.writes = dict(writes)
        self.acknowledgements = dict(acknowledgements)
        self.happened: list[str] = []
        self.drained = trio.Event()

    async def poll(self, wait_seconds):
        self.happened.append("poll")
        if not self.polls:
            self.drained.set()
            await trio.sleep_forever()
        answer = self.polls.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def acknowledge(self, event_id):
        number = int(event_id[-12:])
        self.happened.append(f"acknowledge {number}")
        answer = self.acknowledgements.get(number, True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def refresh(self):
        self.happened.append("refresh")

    async def write(self, what):
        number = int(what.event_id[-12:])
        self.happened.append(f"write {number}")
        await trio.lowlevel.checkpoint()
        if number in self.writes:
            raise self.writes[number]
        self.happened.append(f"written {number}")


async def pumped(wire: Wire, **options) -> None:
    """Run until the wire has nothing more."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ChannelPump(wire, wire, **options).run)
        await wire.drained.wait()
        nursery.cancel_scope.cancel()


async def test_4_2_4_and_4_2_7_a_page_is_taken_strictly_one_after_the_other():
    wire = Wire([event(1), event(2)], [event(3)])
    await pumped(wire)
    one_by_one = [[f"write {n}", f"written {n}", f"acknowledge {n}"] for n in (1, 2, 3)]
    assert wire.happened == ["poll", *one_by_one[0], *one_by_one[1], "poll", *one_by_one[2], "poll"]


async def test_4_2_1_a_refused_connection_refreshes_the_link_and_polls_again():
    wire = Wire(ConnectionRefusedError(), [event(1)])
    await pumped(wire)
    assert wire.happened == ["poll", "refresh", "poll", "write 1", "written 1", "acknowledge 1", "poll"]


async def test_4_2_1_a_link_that_stays_refused_is_polled_with_a_pause(autojump_clock):
    wire = Wire(*[ConnectionRefusedError()] * 5)
    started = trio.current_time()
    await pumped(wire, retry_seconds=10)
    assert wire.happened == [*["poll", "refresh"] * 5, "poll"]
    assert trio.current_time() - started == 40


@pytest.mark.parametrize("failure", [
    pytest.param(LookupError("seat not known yet"), id="4.2-2 seat not known yet"),
    pytest.param(TimeoutError("slow"), id="4.2-3 slow"),
    pytest.param(ValueError("garbage"), id="4.2-3 garbage"),
])  # fmt: skip
async def test_another_failure_before_an_event_waits_and_polls_again(autojump_clock, failure):
    wire = Wire(failure, failure, [event(1)])
    started = trio.current_time()
    await pumped(wire, retry_seconds=10)
    assert wire.happened == ["poll", "poll", "poll", "write 1", "written 1", "acknowledge 1", "poll"]
    assert trio.current_time() - started == 20


async def test_4_2_5_a_failed_write_stops_the_pump_for_good():
    broken = BrokenPipeError("the harness is gone")
    wire = Wire([event(1), event(2), event(3)], [event(4)], writes={2: broken})
    pump = ChannelPump(wire, wire)
    stopped = await pump.run()
    assert stopped == PumpStopped(event(2).event_id, broken)
    assert wire.happened == ["poll", "write 1", "written 1", "acknowledge 1", "write 2"]
    assert await pump.run() is stopped
    assert wire.happened[-1] == "write 2"


@pytest.mark.parametrize("answer", [False, None, "true", TimeoutError("lost"), ConnectionResetError(), OSError("500")],
                         ids=lambda answer: f"4.2-8 12-D6 {answer!r}")  # fmt: skip
async def test_a_lost_or_denied_acknowledgement_stops_the_pump_without_replay(answer):
    wire = Wire([event(1), event(2)], [event(1)], acknowledgements={1: answer})
    pump = ChannelPump(wire, wire)
    stopped = await pump.run()
    assert stopped.event_id == event(1).event_id
    assert isinstance(stopped.cause, OSError)
    assert wire.happened == ["poll", "write 1", "written 1", "acknowledge 1"]
    assert await pump.run() is stopped


async def test_4_2_6_and_10_11_nothing_is_acknowledged_before_the_write_is_complete():
    class Slow(Wire):
        async def write(self, what):
            self.happened.append("write")
            await complete.wait()
            self.happened.append("written")

    complete, wire = trio.Event(), Slow([event(1), event(2)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ChannelPump(wire, wire).run)
        await trio.testing.wait_all_tasks_blocked()
        assert wire.happened == ["poll", "write"]
        complete.set()
        await wire.drained.wait()
        nursery.cancel_scope.cancel()
    assert wire.happened == [
        "poll",
        *["write", "written", "acknowledge 1"],
        *["write", "written", "acknowledge 2"],
        "poll",
    ]


async def test_10_11_an_event_that_is_handed_out_twice_is_written_once():
    wire = Wire([event(1)], [event(1)])
    await pumped(wire)
    assert wire.happened == ["poll", "write 1", "written 1", "acknowledge 1", "poll", "acknowledge 1", "poll"]


async def test_cancelled_in_the_middle_of_a_write_it_is_stopped_for_good():
    class Slow(Wire):
        async def write(self, what):
            self.happened.append("write")
            self.drained.set()
            await trio.sleep_forever()

    wire = Slow([event(1)])
    pump = ChannelPump(wire, wire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        await wire.drained.wait()
        nursery.cancel_scope.cancel()
    stopped = await pump.run()
    assert stopped.event_id == event(1).event_id
    assert isinstance(stopped.cause, trio.Cancelled)
    assert wire.happened == ["poll", "write"]


def test_under_asyncio_it_pauses_too():
    class Flaky:
        polled = 0

        async def poll(self, wait_seconds):
            self.polled += 1
            if self.polled < 3:
                raise TimeoutError
            return [event(1)]

        async def acknowledge(self, event_id):
            return False

        async def refresh(self):
            raise AssertionError("nothing was refused")

        async def write(self, what):
            await asyncio.sleep(0)

    flaky = Flaky()
    stopped = asyncio.run(ChannelPump(flaky, flaky, retry_seconds=0).run())
    assert (stopped.event_id, flaky.polled) == (event(1).event_id, 3)


class InProcess:
    """A pane's own mailbox as a source."""

    def __init__(self, pane):
        self.pane = pane

    async def poll(self, wait_seconds):
        return await self.pane.poll_events(wait_seconds)

    async def acknowledge(self, event_id):
        return not hasattr(await self.pane.acknowledge_event(event_id), "reason")

    async def refresh(self):
        raise AssertionError("nothing was refused")


class Terminal:
    def __init__(self, failing=()):
        self.failing = set(failing)
        self.lines = []

    async def write(self, what):
        if what.text in self.failing:
            raise BrokenPipeError(what.text)
        self.lines.append(what.text)


async def test_what_the_pump_wrote_is_delivered_and_what_it_could_not_is_uncertain(autojump_clock):
    async with open_supervisor("memory://", mechanisms=[FleetSeatMailbox()]) as supervisor:
        pane = supervisor.pane("pane")
        terminal = Terminal(failing=["second"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ChannelPump(InProcess(pane), terminal).run)
            first = await pane.deliver(Outbound("first", "fleet_seat"))
            second = await pane.deliver(Outbound("second", "fleet_seat"))
            third = await pane.deliver(Outbound("third", "fleet_seat"))
        assert (first.stage, first.stop) == (Stage.DELIVERED, None)
        assert (second.stage, second.stop) == (None, Stop.UNCERTAIN)
        assert (third.delivery_id, third.stop) == (second.delivery_id, Stop.UNCERTAIN)
        assert terminal.lines == ["first"]


class Deaf(InProcess):
    """Its acknowledgements are lost on the way."""

    async def acknowledge(self, event_id):
        raise TimeoutError(event_id)


async def test_4_2_9_a_new_pump_neither_replays_nor_resolves_the_old_event(url):
    mechanisms, terminal = [FleetSeatMailbox(acknowledge_seconds=0.1)], Terminal()
    async with open_supervisor(url, mechanisms=mechanisms) as supervisor, trio.open_nursery() as nursery:
        pane = supervisor.pane("pane")
        nursery.start_soon(ChannelPump(Deaf(pane), terminal).run)
        old = await pane.deliver(Outbound("old", "fleet_seat"))
        assert old.stop is Stop.UNCERTAIN
    async with open_supervisor(url, mechanisms=[FleetSeatMailbox()]) as supervisor, trio.open_nursery() as nursery:
        pane = supervisor.pane("pane")
        polled = trio.Semaphore(0)

        class Counting(InProcess):
            async def poll(self, wait_seconds):
                polled.release()
                return await super().poll(wait_seconds)

        nursery.start_soon(ChannelPump(Counting(pane), terminal, wait_seconds=0.01).run)
        for _ in range(3):
            await polled.acquire()
        assert terminal.lines == ["old"], "written once, in the old pump's life"
        assert (await pane.deliver(Outbound("old", "fleet_seat", old.delivery_id))).stop is Stop.UNCERTAIN
        assert (await pane.deliver(Outbound("new", "fleet_seat"))).delivery_id == old.delivery_id
        assert (await supervisor.status()).uncertain_deliveries == 1
        nursery.cancel_scope.cancel()
    assert terminal.lines == ["old"]


class Polled(InProcess):
    """Tells when it is polled: an event that was carried before that is done with."""

    def __init__(self, pane):
        super().__init__(pane)
        self.polls = asyncio.Semaphore(0)

    async def poll(self, wait_seconds):
        self.polls.release()
        return await super().poll(wait_seconds)


def test_under_asyncio_a_pump_that_was_cancelled_between_two_events_goes_on_with_the_next():
    async def main() -> None:
        async with open_supervisor("memory://", mechanisms=[FleetSeatMailbox(acknowledge_seconds=0.5)]) as supervisor:
            pane, terminal = supervisor.pane("pane"), Terminal(failing=["third"])
            source = Polled(pane)
            pump = ChannelPump(source, terminal, wait_seconds=5)
            for text in ("first", "second"):
                running = asyncio.create_task(pump.run())
                await source.polls.acquire()
                assert (await pane.deliver(Outbound(text, "fleet_seat"))).stage is Stage.DELIVERED
                await source.polls.acquire()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            running = asyncio.create_task(pump.run())
            third = await pane.deliver(Outbound("third", "fleet_seat"))
            assert third.stop is Stop.UNCERTAIN
            stopped = await asyncio.wait_for(running, 10)
            assert (stopped.event_id, type(stopped.cause)) == (third.delivery_id, BrokenPipeError)
            assert (await supervisor.status()).uncertain_deliveries == 1
            assert terminal.lines == ["first", "second"]

    asyncio.run(main())


def test_whatever_a_step_can_come_to_has_a_row():
    pauses = {PumpStep.PAUSE, PumpStep.PAUSE_TO_REFRESH}
    assert TABLE.keys() == {
        (step, came_of)
        for step in PumpStep
        for came_of in CameOf
        if step is not PumpStep.STOPPED and (came_of is CameOf.DONE or step not in pauses)
    }
    with pytest.raises(KeyError):
        after(PumpState(step=PumpStep.STOPPED), CameOf.DONE)
