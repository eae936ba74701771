"""The clients that people have, against a real server: claimed senders, across its restarts, and the channel pump."""

from __future__ import annotations

from functools import partial

import httpx
import pytest
import trio
from attrs import evolve
from bridge.http_clients import UrllibTransport
from bridge.http_world import OURS, THEIRS, bearer, served, world

from fencepost.mailbox import ClaimedSender
from fencepost.supervisor import (
    ChannelPump,
    MailboxEvent,
    Outbound,
    Stage,
    Stop,
    TurnEnd,
    check,
)
from fencepost.supervisor.bridge.limits import Stopping

SCOPE = ("/run/terminal.sock", OURS)


class Sender:
    """A claimed sender in this process, its blocking calls in threads."""

    def __init__(self, tmp_path, token, pane=OURS):
        self.transport = UrllibTransport(tmp_path / "endpoints.json", pane, token)
        self.sender = ClaimedSender(tmp_path / "state", ("/run/terminal.sock", pane), self.transport)

    async def send(self, text):
        return await trio.to_thread.run_sync(self.sender.send, text)


async def test_a_message_is_sent_once_and_stored(tmp_path):
    async with world() as there, served(there, tmp_path) as where:
        where.write(tmp_path / "endpoints.json")
        sender = Sender(tmp_path, there.links[OURS])
        assert (await sender.send("nobody is there")).stop is Stop.UNAVAILABLE
        await there.supervisor.pane(OURS).launch("plain", "session-1")
        for text in ("one", "two", "two", "\ud800 ü\r\n"):
            assert (await sender.send(text)).stage is Stage.STORED
        assert sender.transport.posts == 4
        assert [turn.text for turn in there.dispatched.turns] == ["one", "two", "two", "\ufffd ü\r\n"]
        assert (await sender.send(" ")).stop is Stop.REJECTED
        assert (await sender.send("x" * 1_048_577)).stop is Stop.REJECTED


@pytest.mark.parametrize(("pane", "token"), [(OURS, "wrong"), (OURS, THEIRS), (THEIRS, OURS)])
async def test_who_is_nobody_is_told_so_before_anything_is_claimed(pane, token, tmp_path):
    async with world() as there, served(there, tmp_path) as where:
        where.write(tmp_path / "endpoints.json")
        sender = Sender(tmp_path, there.links.get(token, token), pane)
        assert (await sender.send("hello")).stop is Stop.REJECTED
        assert (sender.transport.posts, sender.sender.claim_path.exists()) == (0, False)


async def test_a_service_that_dies_under_a_post_and_comes_back_elsewhere(tmp_path):
    """The acceptance was durable and its answer lost: the next life, on another port, tells it of the same id."""
    store = f"sqlite:///{tmp_path}/bridge.db"
    seats, endpoints = tmp_path / "seats.json", tmp_path / "endpoints.json"
    accepted, reports = trio.Event(), []

    async def started(turn):
        accepted.set()
        return TurnEnd("settled")

    async with world(store, seats, dispatcher=started) as there:
        token = there.links[OURS]
        pane = there.supervisor.pane(OURS)
        await pane.launch("plain", "session-1")
        async with served(there, tmp_path, grace_seconds=0.05) as where:
            where.write(endpoints)
            sender = Sender(tmp_path, token)
            hold_answers(there)
            async with trio.open_nursery() as nursery:

                async def send():
                    reports.append(await sender.send("the original"))

                nursery.start_soon(send)
                with trio.fail_after(20):
                    await accepted.wait()
                there.bridge.stopping.asked.set()
    assert (reports[0].stage, reports[0].stop) == (None, Stop.UNCERTAIN)
    assert sender.sender.claim_path.exists()
    assert (await sender.send("another")).delivery_id == reports[0].delivery_id  # nobody is there to ask
    async with world(store, seats) as there:
        first = sender.transport.base
        async with served(there, tmp_path) as where:
            where.write(endpoints)
            report = await sender.send("another")
            assert where.fleet != first
            assert sender.transport.base == where.fleet
        assert (report.stop, report.detail is not None) == (Stop.UNAVAILABLE, True)
        assert sender.transport.posts == 1
        assert there.dispatched.turns == []
    assert await check(store) == []


def hold_answers(there):
    """Let every answer to a post get lost: the pane has accepted, and the client never hears of it."""
    supervisor = there.bridge.supervisor

    class Holding:
        def __getattr__(self, name):
            return getattr(supervisor, name)

        def pane(self, pane_id):
            pane = supervisor.pane(pane_id)
            accept = pane.accept

            async def and_hold(post):
                await accept(post)
                await trio.sleep_forever()

            pane.accept = and_hold
            return pane

    object.__setattr__(there.bridge, "supervisor", Holding())


async def test_a_restart_between_two_messages_is_nothing_to_a_sender(tmp_path):
    store = f"sqlite:///{tmp_path}/bridge.db"
    seats, endpoints = tmp_path / "seats.json", tmp_path / "endpoints.json"
    sender, bases = None, []
    for text in ("before", "after"):
        async with world(store, seats) as there, served(there, tmp_path) as where:
            where.write(endpoints)
            if sender is None:
                await there.supervisor.pane(OURS).launch("plain", "session-1")
                sender = Sender(tmp_path, there.links[OURS])
            bases.append(where.fleet)
            assert (await sender.send(text)).stage is Stage.STORED
    assert len(set(bases)) == 2


# -- the channel pump --------------------------------------------------------------------------------------------------


class HttpSource:
    """A pump's source over the fleet listener."""

    def __init__(self, base, token):
        self.client = httpx.AsyncClient(base_url=base, headers=bearer(token), timeout=60, trust_env=False)
        self.base = base

    async def poll(self, wait_seconds):
        try:
            answer = await self.client.get(f"{self.base}/seats/{OURS}/events?wait={wait_seconds}")
        except httpx.ConnectError as error:
            raise ConnectionRefusedError from error
        answer.raise_for_status()
        return [MailboxEvent(**event) for event in answer.json()["events"]]

    async def acknowledge(self, event_id):
        answer = await self.client.post(f"{self.base}/seats/{OURS}/events/{event_id}/ack")
        return answer.is_success and answer.json()["acknowledged"]

    async def refresh(self):
        self.base = self.elsewhere


class Sink:
    def __init__(self, failing=()):
        self.failing = failing
        self.texts = []

    async def write(self, event):
        if event.text in self.failing:
            raise BrokenPipeError(event.text)
        self.texts.append(event.text)


async def test_what_a_pump_writes_over_http_is_delivered_and_what_it_cannot_is_uncertain(tmp_path):
    async with world() as there, served(there, tmp_path) as where:
        pane, sink, reports = there.supervisor.pane(OURS), Sink(failing=["third"]), []
        source = HttpSource(where.fleet, there.links[OURS])
        pump = ChannelPump(source, sink, wait_seconds=5)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery, source.client:
                stopped = await nursery.start(run_to_its_end, pump)
                reports += [await pane.deliver(Outbound(text, "fleet_seat")) for text in ("first", "second")]
                async with trio.open_nursery() as third:
                    third.start_soon(pane.deliver, Outbound("third", "fleet_seat"))
                    await stopped.wait()
                    third.cancel_scope.cancel()
                nursery.cancel_scope.cancel()
        end = await pump.run()
        assert [(report.stage, report.stop) for report in reports] == [(Stage.DELIVERED, None)] * 2
        assert (sink.texts, end.cause.args) == (["first", "second"], ("third",))
        assert await pane.poll_events(0) == []  # it was taken, and is not handed out again


async def run_to_its_end(pump, task_status):
    stopped = trio.Event()
    task_status.started(stopped)
    await pump.run()
    stopped.set()


async def test_a_pump_follows_the_bridge_to_another_port(tmp_path):
    async with world() as there:
        pane, sink = there.supervisor.pane(OURS), Sink()
        async with served(there, tmp_path) as where:
            source = HttpSource(where.fleet, there.links[OURS])
        there.bridge = evolve(there.bridge, stopping=Stopping())
        async with served(there, tmp_path) as where, trio.open_nursery() as nursery, source.client:
            source.elsewhere = where.fleet
            nursery.start_soon(partial(ChannelPump(source, sink, wait_seconds=5, retry_seconds=0.01).run))
            with trio.fail_after(60):
                report = await pane.deliver(Outbound("hello", "fleet_seat"))
            nursery.cancel_scope.cancel()
        assert (report.stage, sink.texts) == (Stage.DELIVERED, ["hello"])
