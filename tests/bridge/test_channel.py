"""The channel program in real processes: what it promises of events, whatever dies or is lost on the way."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import AsyncExitStack

import pytest
import trio
import trio.lowlevel
from attrs import evolve
from bridge.channel_processes import Proxy, channel, is_ack, proxied
from bridge.http_clients import Program
from bridge.http_world import OURS, served, until, world

from fencepost.supervisor import FleetSeatMailbox, Outbound, Stage, Stop, check
from fencepost.supervisor.bridge.limits import Stopping

PIPE_BYTES = 65_536
BIG = "\N{SNOWMAN}" * 100_000  # 600 000 bytes as JSON spells it, nine pipes full


NOWHERE = {"FENCEPOST_PANE": OURS, "FENCEPOST_SOCKET": "/nowhere/local.sock"}


def local(where) -> dict[str, str]:
    """What a launcher tells the harness in our pane."""
    return {"FENCEPOST_PANE": OURS, "FENCEPOST_SOCKET": str(getattr(where, "local", where))}


def patient(*arguments):
    """A bridge that waits for a slow machine, and gives nothing up by itself."""
    return world(*arguments, mechanisms=[FleetSeatMailbox(grace_seconds=60, acknowledge_seconds=float("inf"))])


def outbound(text) -> Outbound:
    return Outbound(text, "fleet_seat")


class Delivering:
    """A delivery under way; `report` is its report, once it has one."""

    def __init__(self, nursery, pane, text) -> None:
        self.report = None
        self.delivery_id = str(uuid.uuid4())
        self._done = trio.Event()
        nursery.start_soon(self._deliver, pane, text)

    async def _deliver(self, pane, text) -> None:
        self.report = await pane.deliver(Outbound(text, "fleet_seat", self.delivery_id))
        self._done.set()

    async def reported(self):
        with trio.fail_after(60):
            await self._done.wait()
        return self.report.stage or self.report.stop


async def test_events_are_pushed_one_by_one_and_each_is_delivered(tmp_path):
    async with patient() as there, served(there, tmp_path) as where, channel(local(where)) as ours:
        pane = there.supervisor.pane(OURS)
        await ours.greet()
        for text in ("first", "line one\nline two \N{SNOWMAN} </channel>", "third"):
            report = await pane.deliver(outbound(text))
            assert report.stage is Stage.DELIVERED
            pushed = await ours.notification()
            assert pushed["content"] == text
            assert pushed["meta"].keys() == {"event_id", "delivery_id", "mechanism"}
            assert (pushed["meta"]["delivery_id"], pushed["meta"]["mechanism"]) == (report.delivery_id, "fleet_seat")
        assert await ours.ended() == (0, b"", "")


async def test_nothing_is_taken_before_the_harness_is_ready(tmp_path):
    async with (
        patient() as there,
        served(there, tmp_path) as where,
        proxied(there, where) as proxy,
        channel(local(proxy.path)) as ours,
        trio.open_nursery() as nursery,
    ):
        delivering = Delivering(nursery, there.supervisor.pane(OURS), "hello")
        assert (await ours.ask("ping"))["result"] == {}
        assert await ours.events() == "not carried yet"
        assert proxy.asked == []
        await ours.greet()
        assert await delivering.reported() is Stage.DELIVERED
        assert await ours.events() == "carried"


async def test_with_tools_only_the_mailbox_is_somebody_elses(tmp_path):
    async with (
        patient() as there,
        served(there, tmp_path) as where,
        proxied(there, where) as proxy,
        channel(local(proxy.path), pushes=False) as ours,
    ):
        said = await ours.ask("initialize", protocolVersion="2024-11-05")
        assert said["result"]["capabilities"] == {"tools": {}}
        await ours.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        assert await ours.events() == "not carried here"
        assert (await ours.ended())[0] == 0
        assert proxy.asked == []


async def test_over_the_fleets_listener_with_a_link_token(tmp_path):
    async with patient() as there, served(there, tmp_path) as where:
        fleet = {
            "FENCEPOST_PANE": OURS,
            "FENCEPOST_FLEET": where.fleet,
            "FENCEPOST_LINK": there.links[OURS],
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        pane = there.supervisor.pane(OURS)
        await pane.launch("plain", "session-1")
        async with channel(fleet) as ours:
            await ours.greet()
            assert (await pane.deliver(outbound("hello"))).stage is Stage.DELIVERED
            assert (await ours.notification())["content"] == "hello"
            assert await ours.stage("send_message", text="hello yourself") == "stored"


# -- what is not written through is not acknowledged -------------------------------------------------------------------


async def test_a_notification_larger_than_the_pipe_is_acknowledged_once_it_is_through(tmp_path):
    async with (
        patient() as there,
        served(there, tmp_path) as where,
        proxied(there, where) as proxy,
        channel(local(proxy.path)) as ours,
        trio.open_nursery() as nursery,
    ):
        await ours.greet()
        delivering = Delivering(nursery, there.supervisor.pane(OURS), BIG)
        await until(lambda: ours.waiting_bytes() == PIPE_BYTES)  # it can write no further, and nobody reads
        read, read_at_ack = 0, []

        def arrived(line):
            proxy.asked.append(line)
            if is_ack(line):
                read_at_ack.append(read)

        proxy.arrived = arrived
        assert proxy.count("/ack ") == 0
        whole = bytearray()
        while not whole.endswith(b"\n"):
            whole += await ours.some(4_096)
            read = len(whole)
        assert await delivering.reported() is Stage.DELIVERED
        assert len(read_at_ack) == 1
        assert read_at_ack[0] >= len(whole) - PIPE_BYTES


async def test_a_reader_that_closes_its_end_in_the_middle_gets_no_acknowledgement(tmp_path):
    async with (
        patient() as there,
        served(there, tmp_path) as where,
        proxied(there, where) as proxy,
        channel(local(proxy.path)) as ours,
        trio.open_nursery() as nursery,
    ):
        pane = there.supervisor.pane(OURS)
        await ours.greet()
        delivering = Delivering(nursery, pane, BIG)
        await until(lambda: ours.waiting_bytes() == PIPE_BYTES)
        await ours.some(1_000)
        await ours.process.stdout.aclose()
        status, _, errors = await ours.gone()
        assert status == 1
        assert "BrokenPipeError" in errors
        assert (proxy.count("/events?"), proxy.count("/ack ")) == (1, 0)
        assert await pane.poll_events(0) == []  # it was taken, and is not handed out again
        await pane.cancel_delivery(delivering.delivery_id)
        assert await delivering.reported() is Stop.UNCERTAIN


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_lost_acknowledgement_stops_the_pump_for_good_and_not_the_tools(tmp_path, arrives):
    async with (
        patient() as there,
        served(there, tmp_path) as where,
        proxied(there, where) as proxy,
        channel(local(proxy.path)) as ours,
        trio.open_nursery() as nursery,
    ):
        pane = there.supervisor.pane(OURS)
        await pane.launch("plain", "session-1")
        lose(proxy, "/ack ", arrives=arrives)
        await ours.greet()
        delivering = Delivering(nursery, pane, "hello")
        pushed = await ours.notification()
        await until(lambda: proxy.count("/ack ") == 1)
        await stopped(ours)
        if not arrives:
            assert await pane.poll_events(0) == []
            await pane.acknowledge_event(pushed["meta"]["event_id"])  # late, but exactly it
        assert await delivering.reported() is Stage.DELIVERED
        assert await ours.stage("send_message", text="are you there?") == "stored"
        status, rest, errors = await ours.ended()
        assert (status, rest) == (0, b"")
        assert pushed["meta"]["event_id"] in errors
        assert (proxy.count("/events?"), proxy.count("/ack ")) == (1, 1)


def lose(proxy: Proxy, part: str, *, arrives: bool) -> None:
    if arrives:
        proxy.lose_answer = lambda line: part in line
    else:
        proxy.lose_request = lambda line: part in line


async def stopped(ours) -> None:
    with trio.fail_after(60):
        while await ours.events() != "stopped for good":
            await trio.lowlevel.checkpoint()


async def test_killed_between_write_and_acknowledgement(tmp_path):
    """The event is nobody's to hand out again; it is uncertain, until somebody has exactly it acknowledged."""
    store = f"sqlite:///{tmp_path}/bridge.db"
    async with (
        patient(store) as there,
        served(there, tmp_path) as where,
        proxied(there, where) as proxy,
        trio.open_nursery() as nursery,
    ):
        pane = there.supervisor.pane(OURS)
        proxy.hold = is_ack
        async with channel(local(proxy.path)) as first:
            await first.greet()
            delivering = Delivering(nursery, pane, "hello")
            pushed = await first.notification()
            await until(lambda: proxy.count("/ack ") == 1)
            first.process.kill()
            assert (await first.gone())[0] == -signal.SIGKILL
        await pane.cancel_delivery(delivering.delivery_id)
        assert await delivering.reported() is Stop.UNCERTAIN
        proxy.asked.clear()
        async with channel(local(proxy.path)) as second:
            await second.greet()
            await until(lambda: proxy.count("/events?") == 1)
            report = await pane.deliver(outbound("another"))  # an original is unresolved, so nothing is sent
            assert (report.stop, report.delivery_id) == (Stop.UNCERTAIN, pushed["meta"]["delivery_id"])
            proxy.hold = lambda _: False
            await pane.acknowledge_event(pushed["meta"]["event_id"])
            assert (await pane.deliver(outbound("another"))).stage is Stage.DELIVERED
            assert (await second.notification())["content"] == "another"
            assert await second.ended() == (0, b"", "")
    assert await check(store) == []


# -- other bridges, other channels -------------------------------------------------------------------------------------


async def test_a_restarted_bridge_is_found_again(tmp_path):
    store, seats = f"sqlite:///{tmp_path}/bridge.db", tmp_path / "seats.json"
    ours = None
    async with AsyncExitStack() as outlasting:
        for text in ("before", "after"):
            async with patient(store, seats) as there, served(there, tmp_path) as where:
                where.write(tmp_path / "run" / "endpoints.json")
                if ours is None:
                    ours = await outlasting.enter_async_context(channel(local(where)))
                    await ours.greet()
                assert (await there.supervisor.pane(OURS).deliver(outbound(text))).stage is Stage.DELIVERED
                assert (await ours.notification())["content"] == text
        assert await ours.ended() == (0, b"", "")


async def test_a_bridge_on_another_port_is_found_by_its_endpoints(tmp_path):
    endpoints = tmp_path / "endpoints.json"
    async with patient() as there:
        fleet = {"FENCEPOST_PANE": OURS, "FENCEPOST_LINK": there.links[OURS], "FENCEPOST_ENDPOINTS": str(endpoints)}
        async with served(there, tmp_path) as where:
            first = where.fleet
        there.bridge = evolve(there.bridge, stopping=Stopping())
        async with served(there, tmp_path) as where:
            where.write(endpoints)
            assert where.fleet != first
            async with channel({**fleet, "FENCEPOST_FLEET": first, "HOME": str(tmp_path)}) as ours:
                await ours.greet()
                assert (await there.supervisor.pane(OURS).deliver(outbound("hello"))).stage is Stage.DELIVERED


async def test_beside_a_bridge_that_is_a_program_and_ends_and_comes_again(tmp_path):
    """`fencepost serve`: its own folder, its socket taken away at its end, and the members in its file."""
    folder, said = tmp_path / "bridge", []
    async with channel({**NOWHERE, "FENCEPOST_SOCKET": str(folder / "local.sock")}) as ours:
        await ours.greet()
        for life in range(2):
            with Program(folder) as bridge:
                await trio.to_thread.run_sync(bridge.started)
                if life == 0:
                    bridge.operate("PUT", f"operator/seats/{OURS}", {"version": 1})
                    bridge.operate("PUT", f"operator/seats/{OURS}", {"version": 1, "pid": os.getpid()})
                said.append(await ours.call("send_message", text="hello"))
                bridge.process.terminate()
                assert (await trio.to_thread.run_sync(bridge.ended))[0] == 0
            said.append(await ours.call("send_message", text="hello"))
        assert await ours.ended() == (0, b"", "")
    details = [one["structuredContent"]["detail"].partition(";")[0] for one in said]
    assert details == ["the service knows no binding of this pane", "the service cannot be reached"] * 2


async def test_two_channels_of_one_pane_share_its_events(tmp_path):
    async with (
        patient() as there,
        served(there, tmp_path) as where,
        channel(local(where)) as one,
        channel(local(where)) as other,
    ):
        pane = there.supervisor.pane(OURS)
        for ours in (one, other):
            await ours.greet()
        texts = [f"text {number}" for number in range(8)]
        reports = [await pane.deliver(outbound(text)) for text in texts]
        assert {report.stage for report in reports} == {Stage.DELIVERED}
        pushed = [await drained(ours) for ours in (one, other)]
        assert sorted(pushed[0] + pushed[1]) == texts


async def drained(ours) -> list[str]:
    """What was pushed, in order; an answer comes behind all that was written before it was asked for."""
    await ours.ask("ping")
    return [params["content"] for params in ours.notifications]


async def test_a_channel_that_lives_in_another_pane_is_told_so_and_goes_on_asking(tmp_path):
    async with patient() as there, served(there, tmp_path) as where:
        environment = {**local(where), "FENCEPOST_PANE": "pane-2"}
        async with channel(environment) as ours:
            await ours.greet()
            assert await ours.stage("send_message", text="hello") == "rejected"
            assert await ours.ended() == (0, b"", "")


async def test_it_imports_nothing_from_where_the_harness_works(tmp_path):
    for name in ("trio", "json", "mailbox", "fencepost"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)\n")
    environment = {**NOWHERE, "PYTHONPATH": str(tmp_path)}
    async with channel(environment, cwd=tmp_path) as ours:
        await ours.greet()
        assert await ours.ended() == (0, b"", "")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"FENCEPOST_PANE": OURS},
        {"FENCEPOST_PANE": "", "FENCEPOST_SOCKET": "/local.sock"},
        {"FENCEPOST_PANE": OURS, "FENCEPOST_SOCKET": "local.sock"},
        {"FENCEPOST_PANE": OURS, "FENCEPOST_FLEET": "http://127.0.0.1:1"},
        {"FENCEPOST_PANE": OURS, "FENCEPOST_FLEET": "https://127.0.0.1:1", "FENCEPOST_LINK": "t"},
        {"FENCEPOST_PANE": OURS, "FENCEPOST_FLEET": "http://u:p@127.0.0.1:1", "FENCEPOST_LINK": "t"},
        {"FENCEPOST_PANE": OURS, "FENCEPOST_FLEET": "http://127.0.0.1:1/x", "FENCEPOST_LINK": "t"},
        {"FENCEPOST_PANE": OURS, "FENCEPOST_FLEET": "http://127.0.0.1:1", "FENCEPOST_LINK": "t\r\nX: y"},
    ],
)
async def test_without_a_pane_or_a_bridge_it_says_so_and_does_not_start(environment):
    async with channel(environment) as ours:
        status, out, errors = await ours.gone()
        assert (status, out) == (2, b"")
        assert errors.startswith("fencepost-channel: ")
        assert "ValueError" not in errors
        assert "'FENCEPOST" not in errors
        assert os.linesep not in errors.rstrip("\n")
