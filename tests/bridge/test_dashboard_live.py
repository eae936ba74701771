"""The stream that says that something changed: what it says, to how many, and how it ends."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing

import httpx
import pytest
import trio
import trio.testing
from attrs import define, field
from bridge.dashboard_world import HOST, dashboard_world
from bridge.http_world import OPERATOR_TOKEN, bearer, until
from bridges import moved

from fencepost.mailbox.errors import CorruptEvent
from fencepost.supervisor import Event
from fencepost.supervisor.bridge.dashboard import live
from fencepost.supervisor.bridge.dashboard.board import STREAMS_MAX
from fencepost.supervisor.bridge.dashboard.browser import cookie_name
from fencepost.supervisor.bridge.dashboard.details import last_seq
from fencepost.supervisor.bridge.limits import Limits
from fencepost.supervisor.bridge.serve import Addresses, serve


@pytest.fixture
async def there(tmp_path):
    async with dashboard_world(tmp_path / "bridge.db") as found:
        yield found


@define(eq=False)
class Reader:
    """A browser at one stream, without a socket between."""

    status: int = 0
    said: list[str] = field(factory=list)
    gate: trio.Event | None = None
    """Nothing more is taken until it is set."""
    left: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if self.gate is not None:
            await self.gate.wait()
        self.said += [line for line in message["body"].decode().splitlines() if line.startswith(("event:", ":"))]
        if not message.get("more_body", False):
            self.ended.set()

    @property
    def changes(self) -> int:
        return self.said.count("event: changed")


@asynccontextmanager
async def reading(there, **more):
    """A reader whose stream has begun."""
    reader = Reader(**more)
    async with there.browser() as browser, trio.open_nursery() as nursery:
        cookie = browser.cookies[cookie_name(HOST)]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/dashboard/events",
            "raw_path": b"/dashboard/events",
            "query_string": b"",
            "headers": [(b"host", HOST.encode()), (b"cookie", f"{cookie_name(HOST)}={cookie}".encode())],
        }
        nursery.start_soon(there.app(), scope, reader.receive, reader.send)
        await until(lambda: reader.status)
        yield reader
        reader.left.set()


async def _change(there, count=1):
    for _ in range(count):
        await there.supervisor.pane("lead").launch("claude-code")


async def test_a_change_is_told_and_nothing_of_it(there):
    async with reading(there) as reader:
        await until(lambda: reader.said == ["event: hello"])
        await _change(there)
        await until(lambda: reader.said == ["event: hello", "event: changed"])
        await _change(there)
        await until(lambda: reader.changes == 2)


async def test_what_happens_while_a_change_is_told_is_told_too(there, monkeypatch):
    """The last look is before the telling, so nothing falls between the two."""
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.01)
    async with reading(there) as reader:
        await until(lambda: reader.said)
        gate = reader.gate = trio.Event()
        await _change(there)
        await until(lambda: there.bridge.dashboard._readers.borrowed_tokens == 0)
        await trio.testing.wait_all_tasks_blocked(0.1)
        await _change(there, 50)
        reader.gate = None
        gate.set()
        await until(lambda: reader.changes == 2)  # and the fifty were one
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert reader.changes == 2


async def test_an_event_that_cannot_be_read_is_a_change_and_not_the_end(there, monkeypatch):
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.01)
    with closing(sqlite3.connect(there.path, isolation_level=None)) as connection:
        connection.execute(
            "CREATE TRIGGER harm AFTER INSERT ON events WHEN NEW.address = 'pane:harmed'"
            " BEGIN UPDATE events SET data = '{' WHERE seq = NEW.seq; END"
        )
    async with reading(there) as reader:
        await until(lambda: reader.said)
        await there.supervisor.pane("harmed").launch("claude-code")
        await until(lambda: reader.changes == 1)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert not reader.ended.is_set()
        await _change(there)
        await until(lambda: reader.changes == 2)


async def test_progress_that_is_not_stored_is_a_change(there):
    async with reading(there) as reader:
        await until(lambda: reader.said)
        event = Event(seq=None, at=1, kind="tool_update", address="batch:x/y/z", data={})
        await trio.testing.wait_all_tasks_blocked(0.1)
        there.supervisor._runtime._hub.tell_live(event)
        await until(lambda: reader.changes == 1)


async def test_a_quiet_stream_shows_that_it_lives(there, monkeypatch):
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.01)
    async with reading(there) as reader:
        await until(lambda: reader.said.count(": alive") >= 3)
        assert reader.changes == 0


async def test_it_ends_with_its_session(there, monkeypatch):
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.01)
    async with reading(there) as reader:
        await until(lambda: reader.said)
        there.bridge.dashboard.sessions.end(there.session)
        await until(reader.ended.is_set)
        assert there.bridge.dashboard.streams.open == 0


async def test_it_ends_when_its_reader_leaves(there):
    async with reading(there) as reader:
        await until(lambda: reader.said)
        assert there.bridge.dashboard.streams.open == 1
        reader.left.set()
        await until(lambda: there.bridge.dashboard.streams.open == 0)


async def test_it_ends_when_the_bridge_stops(there):
    async with reading(there) as reader:
        await until(lambda: reader.said)
        there.bridge.stopping.asked.set()
        await until(reader.ended.is_set)
    assert not there.bridge.stopping.was_cut


async def test_it_tells_that_the_store_failed_and_ends(there):
    async with reading(there) as reader:
        await until(lambda: reader.said)
        there.supervisor._runtime._store.refuse(OSError("the disk is full"))
        with pytest.raises(Exception, match="disk"):
            await there.supervisor.pane("lead").detect(moved("a", "b"))
        await until(reader.ended.is_set)
        assert reader.changes >= 1


async def test_a_store_that_cannot_be_read_beside_the_runtime_ends_a_stream_and_no_bridge(there):
    async with reading(there) as reader:
        await until(lambda: reader.said)
        there.path.rename(there.path.with_name("gone.db"))
        await _change(there)
        await until(reader.ended.is_set)
        assert not there.bridge.stopping.asked.is_set()


async def test_streams_are_few(there):
    board = there.bridge.dashboard
    with board.streams.one():
        board.streams.open += STREAMS_MAX - 1
        async with there.browser() as browser:
            assert (await browser.get("/dashboard/events")).status_code == 429
        board.streams.open -= STREAMS_MAX - 1
    assert board.streams.open == 0


# -- on sockets --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def on_sockets(there, tmp_path, grace_seconds=5.0):
    """Serve, and yield where, with a cookie that is good there."""
    addresses = Addresses(("127.0.0.1", 0), ("127.0.0.1", 0), tmp_path / "run" / "local.sock")
    where, listening = [], trio.Event()

    def started(endpoints):
        where.append(endpoints.operator)
        listening.set()

    async def run():
        await serve(there.bridge, addresses, grace_seconds=grace_seconds, started=started)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await listening.wait()
        async with httpx.AsyncClient(base_url=where[0], headers=bearer(OPERATOR_TOKEN)) as operator:
            path = (await operator.post("/operator/dashboard-ticket", json={"version": 1})).json()["path"]
        async with httpx.AsyncClient(base_url=where[0]) as browser:
            assert (await browser.get(f"/{path}")).status_code == 200
            yield browser, where[0]
        there.bridge.stopping.asked.set()


@asynccontextmanager
async def listening(browser, where):
    """A connection with an open stream, and its head."""
    host, port = where.removeprefix("http://").split(":")
    cookie = next(iter(browser.cookies.jar))
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        head = f"GET /dashboard/events HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie.name}={cookie.value}\r\n\r\n"
        await stream.send_all(head.encode())
        yield stream


async def hears(stream, *words) -> str:
    """Read until all the words were said."""
    said = ""
    with trio.fail_after(20):
        while not all(word in said for word in words):
            part = await stream.receive_some()
            assert part, said
            said += part.decode()
    return said


async def test_a_stream_outlives_the_time_an_answer_may_take(there, tmp_path):
    object.__setattr__(there.bridge, "limits", Limits(send_seconds=0.2))
    async with on_sockets(there, tmp_path) as (browser, where), listening(browser, where) as stream:
        head = (await hears(stream, "hello")).lower()
        assert head.startswith("http/1.1 200")
        assert "content-type: text/event-stream" in head
        assert "cache-control: no-store" in head
        await trio.sleep(0.5)
        await _change(there)
        await hears(stream, "changed")


async def test_the_bridge_stops_within_its_grace_beside_an_open_stream(there, tmp_path):
    async with on_sockets(there, tmp_path, grace_seconds=30) as (browser, where), listening(browser, where) as stream:
        await hears(stream, "hello")
        there.bridge.stopping.asked.set()
        with trio.fail_after(20):
            while await stream.receive_some():
                pass
    assert not there.bridge.stopping.was_cut


async def test_a_reader_that_reads_nothing_is_put_out_and_holds_nothing(there, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.0001)
    monkeypatch.setattr(live, "_ALIVE", b": alive" + b"." * 200_000 + b"\n\n")
    object.__setattr__(there.bridge, "limits", Limits(send_seconds=0.2))
    async with on_sockets(there, tmp_path) as (browser, where), listening(browser, where):
        await until(lambda: there.bridge.dashboard.streams.open == 1)
        await until(lambda: there.bridge.dashboard.streams.open == 0)


# -- the highest seq ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [*range(20), 63, 64, 65, 1000, 4095, 4096])
@pytest.mark.parametrize("trimmed", [0, 1, 5, 60])
def test_the_highest_seq_is_found_in_few_looks(count, trimmed):
    stored = range(min(trimmed, max(count - 1, 0)) + 1, count + 1)
    looks = 0

    def read(after, limit):
        nonlocal looks
        looks += 1
        return [seq for seq in stored if seq > after][:limit]

    assert last_seq(read) == count
    assert looks <= 2 * count.bit_length() + 2


def test_the_highest_seq_may_be_that_of_a_damaged_event():
    def read(after, _limit):
        if after < 7:
            raise CorruptEvent("store.db", after + 1, "data is not JSON")
        return []

    assert last_seq(read) == 7
