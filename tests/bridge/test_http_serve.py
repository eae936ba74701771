"""The listeners on real sockets: peers, slow and silent clients, bounds, and the end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
from functools import partial

import pytest
import trio
import trio.testing
from attrs import evolve
from bridge.http_world import OPERATOR_TOKEN, OURS, THEIRS, served, until, world

from fencepost.supervisor import Outbound, Pane, Stage, Stop
from fencepost.supervisor.bridge.adapters import Delivered, HookAnswer
from fencepost.supervisor.bridge.limits import Limits
from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.serve import Addresses, CannotListen, serve

UUID = "00000000-0000-4000-8000-000000000001"


async def connect(where, listener="local"):
    """A raw connection to one listener."""
    if listener == "local":
        return await trio.open_unix_socket(where.local)
    host, _, port = getattr(where, listener).removeprefix("http://").rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


def head(method, path, *headers, length=None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: bridge", *headers]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


async def read(stream) -> tuple[int, bytes]:
    """One answer: its status and its body; (0, b"") if the connection ended instead."""
    data = b""
    while b"\r\n\r\n" not in data:
        try:
            more = await stream.receive_some()
        except trio.BrokenResourceError:
            more = b""
        if not more:
            return 0, data
        data += more
    top, _, body = data.partition(b"\r\n\r\n")
    lines = top.lower().split(b"\r\n")
    length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
    parts = [body]
    while sum(map(len, parts)) < length:
        parts.append(await stream.receive_some())
        assert parts[-1], "the answer ended early"
    body = b"".join(parts)
    return int(top.split(b" ")[1]), body


async def ask(where, method, path, *headers, listener="local", body=b"") -> tuple[int, dict]:
    """One request over a connection of its own."""
    async with await connect(where, listener) as stream:
        await stream.send_all(head(method, path, *headers, length=len(body)) + body)
        status, answer = await read(stream)
        return status, json.loads(answer)


async def ended(stream) -> bool:
    """Whether the other side closes the connection."""
    with contextlib.suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass
    return True


# -- who connects ------------------------------------------------------------------------------------------------------

CHILD = """
import http.client, socket, sys
path, *panes = sys.stdin.readline().split()
connection = http.client.HTTPConnection("bridge")
for pane in panes:
    if connection.sock is None:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(path)
    connection.request("GET", f"/seats/{pane}/messages")
    answer = connection.getresponse()
    answer.read()
    print(answer.status, flush=True)
"""


class Child:
    """A process that asks over the unix socket once it is told what."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    async def ask(self, *arguments) -> list[str]:
        """The statuses that it got."""
        out = await trio.to_thread.run_sync(self.process.communicate, " ".join(arguments) + "\n")
        return out[0].split()


async def test_9_2_2_and_9_2_3_a_real_process_is_served_its_own_pane_and_no_other(tmp_path):
    async with world() as there, served(there, tmp_path) as where:
        with Child() as ours, Child() as theirs, Child() as nobodys:
            await ask_as_processes(there, where, ours, theirs, nobodys)


async def ask_as_processes(there, where, ours, theirs, nobodys):
    there.seats.dismiss(OURS)  # this test's process is above them all
    for pane, child in ((OURS, ours), (THEIRS, theirs)):
        there.seats.admit(pane)
        there.seats.occupy(pane, child.process.pid)
    with trio.fail_after(30):
        assert await ours.ask(where.local, OURS, THEIRS, OURS) == ["200", "403", "200"]
        assert await theirs.ask(where.local, OURS) == ["403"]
        assert await nobodys.ask(where.local, OURS) == ["403"]


async def test_the_socket_is_private(tmp_path):
    async with world() as there, served(there, tmp_path) as where:
        found, folder = [await trio.Path(path).stat() for path in (where.local, tmp_path / "run")]
        assert stat.S_ISSOCK(found.st_mode)
        assert (found.st_mode & 0o777, folder.st_mode & 0o777) == (0o600, 0o700)
    assert not (tmp_path / "run" / "local.sock").exists()


async def test_each_listener_knows_its_own_callers(tmp_path):
    async with world() as there, served(there, tmp_path) as where:
        path = f"/seats/{OURS}/messages"
        operator = f"Authorization: Bearer {OPERATOR_TOKEN}"
        link = f"Authorization: Bearer {there.links[OURS]}"
        assert (await ask(where, "GET", path, operator, listener="operator"))[0] == 200
        assert (await ask(where, "GET", path, link, listener="fleet"))[0] == 200
        assert (await ask(where, "GET", path))[0] == 200
        assert (await ask(where, "GET", path, link, listener="operator"))[0] == 401
        assert (await ask(where, "GET", path, operator, listener="fleet"))[0] == 401
        assert (await ask(where, "GET", f"/seats/{THEIRS}/messages", operator))[0] == 403


async def test_one_connection_serves_several_requests(tmp_path):
    async with world() as there, served(there, tmp_path) as where, await connect(where) as stream:
        for _ in range(3):
            await stream.send_all(head("GET", f"/seats/{OURS}/messages"))
            assert (await read(stream))[0] == 200
        assert there.bridge.stopping._under_way == set()


# -- what is not HTTP, and what is not taken up ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /\x1b[2J HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_request_is_turned_down_and_costs_nobody_anything(sent, tmp_path):
    async with world() as there, served(there, tmp_path) as where:
        async with await connect(where) as stream:
            await stream.send_all(sent)
            await stream.send_eof()
            with trio.fail_after(20):
                status, _ = await read(stream)
        assert status in {0, 400, 404, 431}
        assert (await ask(where, "GET", f"/seats/{OURS}/messages"))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13"),
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"),
    ],
)
async def test_no_upgrade_is_taken_up(headers, tmp_path):
    async with world() as there, served(there, tmp_path) as where, await connect(where) as stream:
        await stream.send_all(head("GET", f"/seats/{OURS}/messages", *headers))
        assert (await read(stream))[0] == 200


async def test_two_requests_in_one_are_two_requests(tmp_path):
    """A body is what its length says: what follows is judged by itself."""
    async with world() as there, served(there, tmp_path) as where, await connect(where) as stream:
        smuggled = head("GET", f"/seats/{THEIRS}/messages")
        await stream.send_all(head("POST", f"/seats/{OURS}/hook", length=2) + b"{}" + smuggled)
        assert (await read(stream))[0] == 400
        assert (await read(stream))[0] == 403


# -- slow and greedy clients -------------------------------------------------------------------------------------------


async def test_a_body_that_is_refused_unread_does_not_hold_its_connection(tmp_path):
    limits = Limits(body_bytes_max=1_000)
    async with world(limits=limits) as there, served(there, tmp_path) as where, await connect(where) as stream:
        await stream.send_all(head("POST", f"/seats/{OURS}/hook", "Transfer-Encoding: chunked"))
        with contextlib.suppress(trio.BrokenResourceError):
            for _ in range(100):
                await stream.send_all(b"64\r\n" + b"x" * 100 + b"\r\n")
        with trio.fail_after(20):
            assert (await read(stream))[0] in {413, 0}  # 0: the reset overtook the answer
            await ended(stream)
            await until(lambda: not there.bridge.stopping._under_way)


async def test_an_unknown_callers_body_is_never_read(tmp_path):
    async with world() as there, served(there, tmp_path) as where, await connect(where, "fleet") as stream:
        await stream.send_all(head("POST", f"/seats/{OURS}/hook", length=1_000_000))
        with trio.fail_after(20):
            assert (await read(stream))[0] == 401
            assert await ended(stream)


@pytest.mark.parametrize("listener", ["operator", "fleet", "local"])
@pytest.mark.parametrize("sent", [b"", b"GET /seats/pane-1", b"GET / HTTP/1.1\r\nX: y\r\n"])
async def test_a_head_that_does_not_come_ends_its_connection(sent, listener, tmp_path):
    limits = Limits(head_seconds=0.1)
    async with (
        world(limits=limits) as there,
        served(there, tmp_path) as where,
        await connect(where, listener) as stream,
    ):
        await stream.send_all(sent)
        with trio.fail_after(20):
            assert await ended(stream)


async def test_a_body_that_does_not_come_is_408(tmp_path):
    limits = Limits(body_seconds=0.1)
    async with world(limits=limits) as there, served(there, tmp_path) as where, await connect(where) as stream:
        await stream.send_all(head("POST", f"/seats/{OURS}/hook", length=10) + b"{")
        with trio.fail_after(20):
            assert (await read(stream))[0] == 408
            assert await ended(stream)


async def test_a_client_that_does_not_read_is_let_go(tmp_path):
    """An answer that is larger than every buffer on its way."""
    async with world(limits=Limits(send_seconds=0.2)) as there, served(there, tmp_path) as where:

        async def talk(*_):
            return {"version": 1, "text": "x" * 20_000_000}

        object.__setattr__(there.bridge, "tools", talk)
        async with await connect(where) as stream:
            await stream.send_all(head("POST", "/tools", length=13) + b'{"version":1}')
            await stream.receive_some(1)  # it has begun to answer
            await until(lambda: not there.bridge.stopping._under_way)
            assert (await ask(where, "GET", f"/seats/{OURS}/messages"))[0] == 200


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_payload_that_a_harnesss_own_hook_did_not_get_whole_is_not_delivered(leaves, tmp_path, monkeypatch):
    reported = []

    async def on_hook(*_):
        return HookAnswer(b"x" * 2_000_000, 0, Delivered("i", "i", "t", "b"))

    async def mark_delivered(*ids):
        reported.append(ids)

    async with world(limits=Limits(send_seconds=1, head_seconds=2)) as there, served(there, tmp_path) as where:
        monkeypatch.setattr(there.adapter, "on_hook", on_hook)
        monkeypatch.setattr(Pane, "mark_delivered", mark_delivered)
        path = f"/seats/{OURS}/hook?harness=plain&incarnation=i"
        async with await connect(where) as stream:
            await stream.send_all(head("POST", path, length=2) + b"{}")
            await stream.receive_some(1)  # it has begun to answer
            with contextlib.suppress(trio.BrokenResourceError), trio.fail_after(20):
                while not leaves:  # until the bridge has given it up
                    await stream.send_all(b" ")
                    await trio.sleep(0.01)
        assert (await ask(where, "GET", f"/seats/{OURS}/messages"))[0] == 200
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert reported == []
        async with await connect(where) as stream:
            await stream.send_all(head("POST", path, length=2) + b"{}")
            assert (await read(stream))[0] == 200
            await until(lambda: len(reported) == 1)


async def test_silent_connections_keep_nobody_out(tmp_path):
    limits = Limits(strangers_max=3, head_seconds=60)
    async with world(limits=limits) as there, served(there, tmp_path) as where:
        link = f"Authorization: Bearer {there.links[OURS]}"
        async with contextlib.AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(await connect(where, "fleet")) for _ in range(10)]
            with trio.fail_after(20):
                answer = await ask(where, "GET", f"/seats/{OURS}/messages", link, listener="fleet")
                assert answer[0] == 200
                assert await ended(silent[0])  # the oldest was put out


async def test_one_panes_connections_are_bounded_and_cost_no_other(tmp_path):
    limits = Limits(pane_connections_max=3, head_seconds=60)
    async with world(limits=limits) as there, served(there, tmp_path) as where:
        ours, theirs = (f"Authorization: Bearer {there.links[pane]}" for pane in (OURS, THEIRS))
        async with contextlib.AsyncExitStack() as stack:
            for number in range(5):
                stream = await stack.enter_async_context(await connect(where, "fleet"))
                await stream.send_all(head("GET", f"/seats/{OURS}/messages", ours))
                assert (await read(stream))[0] == (200 if number < 3 else 429)
            answer = await ask(where, "GET", f"/seats/{THEIRS}/messages", theirs, listener="fleet")
            assert answer[0] == 200
        statuses = [429]
        with trio.fail_after(20):
            while statuses[-1] == 429:  # until the server has seen that the others are closed
                statuses.append((await ask(where, "GET", f"/seats/{OURS}/messages", ours, listener="fleet"))[0])
        assert statuses[-1] == 200


async def test_all_connections_are_bounded(tmp_path):
    limits = Limits(connections_max=2, head_seconds=60)
    async with world(limits=limits) as there, served(there, tmp_path) as where, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            stream = await stack.enter_async_context(await connect(where))
            await stream.send_all(head("GET", f"/seats/{OURS}/messages"))
            assert (await read(stream))[0] == 200
        third = await stack.enter_async_context(await connect(where))
        with trio.fail_after(20):
            assert await ended(third)


async def test_9_2_6_an_identity_lasts_for_one_request(tmp_path):
    async with world() as there, served(there, tmp_path) as where:
        async with await connect(where) as stream:
            for status in (200, 200, 403):  # one connection of one process
                if status == 403:
                    there.seats.dismiss(OURS)
                await stream.send_all(head("GET", f"/seats/{OURS}/messages"))
                assert (await read(stream))[0] == status
        there.seats.admit(OURS)
        there.seats.occupy(OURS, os.getpid())
        assert (await ask(where, "GET", f"/seats/{OURS}/messages"))[0] == 200


async def test_9_2_6_a_connection_is_whose_it_is_now(tmp_path):
    limits = Limits(pane_connections_max=1, head_seconds=60)
    async with world(limits=limits) as there, served(there, tmp_path) as where, contextlib.AsyncExitStack() as stack:
        links = {pane: f"Authorization: Bearer {there.links[pane]}" for pane in (OURS, THEIRS)}
        first, second = [await stack.enter_async_context(await connect(where, "fleet")) for _ in range(2)]
        for stream, pane, status in (
            (first, OURS, 200),
            (first, THEIRS, 200),
            (second, OURS, 200),
            (first, OURS, 429),
        ):
            await stream.send_all(head("GET", f"/seats/{pane}/messages", links[pane]))
            assert (await read(stream))[0] == status


async def test_a_members_silent_connections_are_its_own_from_the_start(tmp_path):
    limits = Limits(pane_connections_max=3, strangers_max=1, head_seconds=60)
    async with world(limits=limits) as there, served(there, tmp_path) as where, contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(await connect(where)) for _ in range(4)]
        with trio.fail_after(20):
            assert await ended(streams[3])
        await streams[0].send_all(head("GET", f"/seats/{OURS}/messages"))
        assert (await read(streams[0]))[0] == 200  # no other's connection put it out


# -- long polls --------------------------------------------------------------------------------------------------------


async def test_a_poll_whose_client_left_takes_no_event(tmp_path):
    async with world() as there, served(there, tmp_path) as where:
        async with await connect(where) as stream:
            await stream.send_all(head("GET", f"/seats/{OURS}/events?wait=30"))
            await under_way(there)
        await until(lambda: not there.bridge.stopping._under_way)
        reports = []

        async def deliver():
            reports.append(await there.supervisor.pane(OURS).deliver(Outbound("hello", "fleet_seat", UUID)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            status, page = await ask(where, "GET", f"/seats/{OURS}/events?wait=10")
            assert (status, [event["text"] for event in page["events"]]) == (200, ["hello"])
            await ask(where, "POST", f"/seats/{OURS}/events/{UUID}/ack")
        assert reports[0].stage is Stage.DELIVERED


async def under_way(there, count=1):
    """Wait until so many requests are under way."""
    await until(lambda: len(there.bridge.stopping._under_way) >= count)


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_polls_answer_at_the_end_and_nobody_connects_any_more(tmp_path):
    async with world() as there:
        answers = []
        async with served(there, tmp_path) as where, trio.open_nursery() as nursery:

            async def poll():
                answers.append(await ask(where, "GET", f"/seats/{OURS}/events?wait=30"))

            nursery.start_soon(poll)
            async with await connect(where) as idle, await connect(where, "operator"):
                await under_way(there)
                there.bridge.stopping.asked.set()
                with trio.fail_after(20):
                    assert await ended(idle)
        assert answers == [(200, {"version": 1, "events": []})]
        assert there.bridge.stopping.was_cut is False
        for listener in ("operator", "fleet", "local"):
            with pytest.raises(OSError):
                await connect(where, listener)


@pytest.mark.parametrize("listener", ["fleet", "local"])
async def test_a_connection_that_said_nothing_does_not_stretch_the_end(listener, tmp_path):
    limits = Limits(head_seconds=60)
    async with world(limits=limits) as there, contextlib.AsyncExitStack() as stack:
        with trio.fail_after(20):
            async with served(there, tmp_path, grace_seconds=60) as where:
                silent = await stack.enter_async_context(await connect(where, listener))
                assert (await ask(where, "GET", "/nowhere", listener=listener))[0] == 404  # so the other was taken too
            assert await ended(silent)
        assert not there.bridge.stopping.was_cut


async def test_what_is_under_way_is_answered_within_the_grace(tmp_path):
    async with world() as there:
        gate, answers = trio.Event(), []

        async def slow(pane, request):
            await gate.wait()
            return {"version": 1, "said": "in time"}

        there.bridge = evolve(there.bridge, tools=slow)
        async with served(there, tmp_path, grace_seconds=20) as where, trio.open_nursery() as nursery:

            async def call():
                answers.append(await ask(where, "POST", "/tools", body=b'{"version":1}'))

            nursery.start_soon(call)
            await under_way(there)
            there.bridge.stopping.asked.set()
            await trio.testing.wait_all_tasks_blocked(0.05)
            gate.set()
        assert answers == [(200, {"version": 1, "said": "in time"})]
        assert there.bridge.stopping.was_cut is False


async def test_what_outlives_the_grace_is_cut_and_told_so(tmp_path):
    async with world() as there:
        answers = []

        async def never(pane, request):
            await trio.sleep_forever()

        there.bridge = evolve(there.bridge, tools=never)
        async with served(there, tmp_path, grace_seconds=0.1) as where, trio.open_nursery() as nursery:

            async def call():
                answers.append(await ask(where, "POST", "/tools", body=b'{"version":1}'))

            nursery.start_soon(call)
            await under_way(there)
            there.bridge.stopping.asked.set()
        assert answers == [(503, {"version": 1, "error": "the bridge is stopping"})]
        assert there.bridge.stopping.was_cut is True


@pytest.mark.parametrize("what", ["accept", "receipt"])
async def test_a_message_that_is_cut_off_is_answered_with_a_receipt_that_nobody_knows(tmp_path, monkeypatch, what):
    async def never(*_):
        await trio.sleep_forever()

    monkeypatch.setattr(Pane, what, never)
    digest = hashlib.sha256(b"text").hexdigest()
    message = {"version": 1, "delivery_id": UUID, "binding": digest, "text": "text"}
    async with world() as there:
        answers = []
        async with served(there, tmp_path, grace_seconds=0.1) as where, trio.open_nursery() as nursery:

            async def call():
                path = f"/seats/{OURS}/messages"
                if what == "accept":
                    answers.append(await ask(where, "POST", path, body=json.dumps(message).encode()))
                else:
                    answers.append(await ask(where, "GET", f"{path}/{UUID}?binding={digest}&fingerprint={digest}"))

            nursery.start_soon(call)
            await under_way(there)
            there.bridge.stopping.asked.set()
        ((status, told),) = answers
        assert (status, told["stage"], told["received"]) == (200, "uncertain", False)
        assert (told["delivery_id"], told["binding"], told["fingerprint"]) == (UUID, digest, digest)
        assert there.bridge.stopping.was_cut is True


async def test_a_client_that_never_reads_does_not_stretch_the_end(tmp_path):
    async with world() as there:

        async def talk(*_):
            return {"version": 1, "text": "x" * 20_000_000}

        there.bridge = evolve(there.bridge, tools=talk, limits=Limits(send_seconds=3_600))
        started = trio.current_time()
        async with served(there, tmp_path, grace_seconds=0.1) as where, await connect(where) as stream:
            await stream.send_all(head("POST", "/tools", length=13) + b'{"version":1}')
            await stream.receive_some(1)
            there.bridge.stopping.asked.set()
            await ended(stream)
        assert trio.current_time() - started < 60


# -- binding -----------------------------------------------------------------------------------------------------------


async def test_a_socket_left_by_an_earlier_life_is_replaced_and_a_file_is_not(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "run" / "local.sock"))
    async with world() as there, served(there, tmp_path) as where:
        assert (await ask(where, "GET", f"/seats/{OURS}/messages"))[0] == 200
    (tmp_path / "run" / "local.sock").write_text("mine")
    async with world() as there:
        addresses = Addresses(("127.0.0.1", 0), ("127.0.0.1", 0), tmp_path / "run" / "local.sock")
        with pytest.raises(CannotListen, match="no socket"):
            await serve(there.bridge, addresses)
    assert (tmp_path / "run" / "local.sock").read_text() == "mine"


async def test_where_it_cannot_listen_it_says_which_and_why(tmp_path):
    at = partial(Addresses, local=tmp_path / "run" / "local.sock")
    free = ("127.0.0.1", 0)
    async with world() as there:
        with socket.create_server(free) as taken:
            for name in ("operator", "fleet"):
                with pytest.raises(CannotListen, match=f"{name} listener"):
                    await serve(there.bridge, at(**{"operator": free, "fleet": free, name: taken.getsockname()}))
        with pytest.raises(CannotListen, match="fleet listener"):
            await serve(there.bridge, at(free, ("example.invalid", 0)))
        with pytest.raises(CannotListen, match="local listener"):
            await serve(there.bridge, Addresses(free, free, tmp_path / "run" / ("x" * 200)))
        for host in ("0.0.0.0", "10.0.0.1", "localhost", "::"):
            with pytest.raises(ValueError, match="loopback"):
                await serve(there.bridge, at((host, 0), free))
    assert list((tmp_path / "run").iterdir()) == []


async def test_a_delivery_that_nobody_acknowledges_over_the_wire_is_uncertain(tmp_path, autojump_clock):
    async with world() as there, there.entitled(Listener.LOCAL) as client:
        async with trio.open_nursery() as nursery:
            reports = []

            async def deliver():
                reports.append(await there.supervisor.pane(OURS).deliver(Outbound("hello", "fleet_seat", UUID)))

            nursery.start_soon(deliver)
            page = (await client.get(f"/seats/{OURS}/events?wait=3", timeout=None)).json()
            assert len(page["events"]) == 1
        assert reports[0].stop is Stop.UNCERTAIN
        assert (await client.get(f"/seats/{OURS}/events?wait=1", timeout=None)).json()["events"] == []
