"""The way to the bridge: what counts as no answer, as nobody being there, and as a page of events."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field
from bridge.http_world import OURS

from fencepost.supervisor import MailboxEvent
from fencepost.supervisor.bridge.channel_link import (
    ANSWER_BYTES_MAX,
    ANSWER_SECONDS,
    Fleet,
    Link,
    Local,
    MailboxSource,
)

EVENT_ID = "0b1f6c1e-8f0a-4c53-9d3e-5a4c2f6f7d10"


@define
class Scripted:
    """A place whose listener does as the script says with its end of the connection."""

    script: Any
    nursery: trio.Nursery
    asked: list[bytes] = field(factory=list)

    async def connect(self):
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream):
        try:
            self.asked.append(await stream.receive_some())
            await self.script(stream)
            await stream.aclose()
        except trio.BrokenResourceError:
            return

    def credentials(self):
        return ""


def http(body, status="200 OK", length=None) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    length = len(data) if length is None else length
    return f"HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n".encode() + data


async def asked(script, ask):
    """Ask over a link whose bridge follows the script."""
    came = []
    async with trio.open_nursery() as nursery:
        try:
            came.append(await ask(Link(OURS, Scripted(script, nursery))))
        except Exception as error:  # noqa: BLE001 - raised below
            came.append(error)
        nursery.cancel_scope.cancel()
    if isinstance(came[0], Exception):
        raise came[0]  # here, where no nursery puts it into a group
    return came[0]


def says(data):
    async def script(stream):
        await stream.send_all(data)

    return script


async def test_a_request_names_the_pane_in_one_spelling():
    async with trio.open_nursery() as nursery:
        place = Scripted(says(http({})), nursery)
        answer = await Link("a/b c%", place).ask("POST", "messages", b"{}")
    assert (answer.status, answer.body) == (200, b"{}")
    head = place.asked[0].split(b"\r\n")
    assert head[0] == b"POST /seats/a%2Fb%20c%25/messages HTTP/1.0"
    assert b"Content-Length: 2" in head


async def test_an_answer_that_trickles_in_is_given_up_at_the_deadline(autojump_clock):
    async def script(stream):
        for _ in range(1_000):
            await stream.send_all(b"H")
            await trio.sleep(1)

    started = trio.current_time()
    with pytest.raises(TimeoutError):
        await asked(script, lambda link: link.ask("GET", "messages"))
    assert trio.current_time() - started == ANSWER_SECONDS


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        http({}, length=3),
        http({}, length=1),
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 2000 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"SSH-2.0-x\r\n",
        b"x" * (ANSWER_BYTES_MAX + 1),
    ],
)
async def test_what_is_no_whole_answer_is_none(data):
    with pytest.raises(ConnectionError) as raised:
        await asked(says(data), lambda link: link.ask("GET", "messages"))
    assert not isinstance(raised.value, ConnectionRefusedError)  # it may have arrived


async def test_nobody_there_is_a_refused_connection(tmp_path):
    for place in (Local(str(tmp_path / "local.sock")), Fleet(f"http://127.0.0.1:{closed_port()}", "t")):
        with pytest.raises(ConnectionRefusedError):
            await Link(OURS, place).ask("GET", "messages")


def closed_port() -> int:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


async def test_a_socket_nobody_listens_on_is_a_refused_connection(tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "local.sock"))
    with pytest.raises(ConnectionRefusedError):
        await Link(OURS, Local(str(tmp_path / "local.sock"))).ask("GET", "messages")


async def test_behind_others_who_connect_faster_than_they_are_let_in_it_waits_its_turn(tmp_path, autojump_clock):
    import socket

    path = str(tmp_path / "local.sock")
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as other:
        listening.bind(path)
        listening.listen(0)
        other.connect(path)
        with pytest.raises(TimeoutError):
            await Link(OURS, Local(path)).ask("GET", "messages", seconds=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_let_in, listening, other)
            with trio.fail_after(1):
                stream = await Local(path).connect()
            await stream.aclose()


async def _let_in(listening, other):
    await trio.sleep(0.5)
    with listening.accept()[0]:
        other.close()


async def test_an_address_that_fails_otherwise_is_not_taken_for_a_refusal(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="directory") as raised:
        await Link(OURS, Local(str(tmp_path / "file" / "local.sock"))).ask("GET", "messages")
    assert not isinstance(raised.value, ConnectionRefusedError)


# -- where the bridge is -----------------------------------------------------------------------------------------------


def endpoints(tmp_path, mode=0o600, **members):
    path = tmp_path / "endpoints.json"
    path.write_text(json.dumps({"version": 1, "fleet": "http://127.0.0.1:2", "local": "/new.sock", **members}))
    path.chmod(mode)
    return path


def test_a_refreshed_link_is_where_the_file_says(tmp_path):
    path = endpoints(tmp_path)
    link = Link(OURS, Local("/old.sock"), path)
    link.refresh()
    assert link.place == Local("/new.sock")
    link = Link(OURS, Fleet("http://127.0.0.1:1", "t"), path)
    link.refresh()
    assert link.place == Fleet("http://127.0.0.1:2", "t")
    link = Link(OURS, Local("/old.sock"))
    link.refresh()
    assert link.place == Local("/old.sock")


@pytest.mark.parametrize("members", [{"version": 2}, {"local": 7}, {"local": ""}])
def test_a_file_that_says_nothing_usable_changes_nothing(tmp_path, members):
    link = Link(OURS, Local("/old.sock"), endpoints(tmp_path, **members))
    with pytest.raises(ValueError):
        link.refresh()
    assert link.place == Local("/old.sock")


def test_a_file_that_others_can_write_is_not_believed(tmp_path):
    link = Link(OURS, Fleet("http://127.0.0.1:1", "t"), endpoints(tmp_path, 0o622))
    with pytest.raises(PermissionError):
        link.refresh()
    (tmp_path / "link.json").symlink_to(endpoints(tmp_path))
    with pytest.raises(OSError, match="link"):
        Link(OURS, Local("/old.sock"), tmp_path / "link.json").refresh()
    assert link.place.url == "http://127.0.0.1:1"


def test_a_token_is_told_to_nobody_who_prints_it():
    assert "secret" not in repr(Link(OURS, Fleet("http://127.0.0.1:1", "secret")).place)


# -- the mailbox -------------------------------------------------------------------------------------------------------

EVENT = {"event_id": EVENT_ID, "delivery_id": EVENT_ID, "pane_id": OURS, "mechanism": "fleet_seat", "text": "t"}


async def test_a_page_is_its_events():
    page = http({"version": 1, "events": [{**EVENT, "more": 1}]})
    events = await asked(says(page), lambda link: MailboxSource(link).poll(25))
    assert events == [MailboxEvent(EVENT_ID, EVENT_ID, OURS, "fleet_seat", "t")]


@pytest.mark.parametrize(
    "page",
    [
        {},
        {"version": 2, "events": []},
        {"version": 1, "events": None},
        {"version": 1, "events": [None]},
        {"version": 1, "events": [{**EVENT, "pane_id": "pane-2"}]},
        {"version": 1, "events": [{**EVENT, "text": None}]},
        {"version": 1, "events": [{**EVENT, "event_id": "../../head"}]},
        {"version": 1, "events": [EVENT, {}]},
    ],
)
async def test_a_page_with_what_is_no_event_of_this_pane_is_none(page):
    with pytest.raises(ValueError):
        await asked(says(http(page)), lambda link: MailboxSource(link).poll(25))


@pytest.mark.parametrize("status", ["401 No", "403 No", "404 No", "429 No", "503 No", "204 No"])
async def test_a_poll_that_is_not_answered_with_200_is_none(status):
    with pytest.raises(LookupError):
        await asked(says(http({"version": 1, "events": [EVENT]}, status)), lambda link: MailboxSource(link).poll(25))


@pytest.mark.parametrize(
    ("status", "body", "acknowledged"),
    [
        ("200 OK", {"version": 1, "acknowledged": True, "stage": "delivered"}, True),
        ("200 OK", {"version": 1, "acknowledged": False}, False),
        ("200 OK", {"version": 1, "acknowledged": "true"}, False),
        ("200 OK", {"version": 1}, False),
        ("302 Found", {"version": 1, "acknowledged": True}, False),
        ("404 Not Found", {"version": 1, "acknowledged": True}, False),
        ("503 No", {"version": 1, "acknowledged": True}, False),
    ],
)
async def test_an_acknowledgement_is_one_only_if_it_says_so(status, body, acknowledged):
    said = await asked(says(http(body, status)), lambda link: MailboxSource(link).acknowledge(EVENT_ID))
    assert said is acknowledged


async def test_an_acknowledgement_under_way_is_not_cut_short():
    at_it, answer = trio.Event(), trio.Event()

    async def script(stream):
        at_it.set()
        await answer.wait()
        await stream.send_all(http({"version": 1, "acknowledged": True}))

    said = []

    async with trio.open_nursery() as serving, trio.open_nursery() as nursery:
        source = MailboxSource(Link(OURS, Scripted(script, serving)))

        async def acknowledge():
            said.append(await source.acknowledge(EVENT_ID))

        nursery.start_soon(acknowledge)
        await at_it.wait()
        nursery.cancel_scope.cancel()
        answer.set()
    assert said == [True]
