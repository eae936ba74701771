"""OpenCode's server as the native end of `OpenCodeControl`, against one that answers as the real one was seen to."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from delivery_scenarios import uid
from hypothesis import given, strategies as st

from fencepost.supervisor import OpenCodeControl, Outbound, Stage, Stop, TranscriptEntry, check, open_supervisor
from fencepost.supervisor.bridge.opencode_server import (
    OpenCodeServer,
    ServerPlace,
    entries_of,
    message_id_of,
    outcome_of_post,
)

A, B = uid(1), uid(2)
TEXT = 'run "the" tests\n  ü '
SESSION = "ses_1"
PASSWORD = "p" * 20


def message(message_id: str, *parts: object, role: str = "user") -> dict:
    return {"info": {"id": message_id, "role": role}, "parts": list(parts)}


def words(text: object, **more) -> dict:
    return {"type": "text", "text": text, **more}


class Server:
    """What is in the session, and how the server behaves; `posts` are the message ids that were posted."""

    def __init__(self) -> None:
        self.url = ""
        self.history: list = [message("msg_old", words(TEXT))]
        self.posts: list[str] = []
        self.keeps = True
        self.answers = True
        self.status = 204
        self.busy = False
        self.sessions = {SESSION}

    def place(self, _pane_id: str, session_id: str = SESSION) -> ServerPlace:
        return ServerPlace(self.url, PASSWORD, session_id)


@contextmanager
def served() -> Iterator[Server]:
    there = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
            """Say nothing."""

        def do_GET(self) -> None:
            if self.path == "/session/status":
                self.answer(200, {SESSION: {"type": "busy" if there.busy else "idle"}})
            elif self.path.split("/")[2] in there.sessions:
                self.answer(200, there.history)
            else:
                self.answer(404, {"name": "NotFoundError"})

        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not self.is_entitled():
                self.answer(401, None)
                return
            there.posts.append(said["messageID"])
            if there.keeps and there.status == 204:
                there.history.append(message(said["messageID"], *said["parts"]))
            if there.answers:
                self.answer(there.status, None)

        def is_entitled(self) -> bool:
            entitled = base64.b64encode(f"opencode:{PASSWORD}".encode()).decode()
            return self.headers["authorization"] == f"Basic {entitled}"

        def answer(self, status: int, body: object) -> None:
            status, body = (status, body) if self.is_entitled() else (401, None)
            content = b"" if body is None else json.dumps(body).encode()
            with suppress(ConnectionError):
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    there.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield there
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def delivered(there: Server, store: str, *, seconds: float = 5.0, delivery_id: str = A, place_of=None):
    control = OpenCodeServer(place_of or there.place, request_seconds=5.0)
    mechanism = OpenCodeControl(control, answer_seconds=seconds)
    async with open_supervisor(store, mechanisms=[mechanism]) as supervisor:
        return await supervisor.pane("left").deliver(Outbound(TEXT, "opencode", delivery_id))


@pytest.fixture
def store(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 's.db'}"


@pytest.mark.parametrize("busy", [False, True])
async def test_what_the_history_shows_under_the_deliverys_own_id_is_consumed(store: str, busy: bool) -> None:
    with served() as there:
        there.busy = busy
        report = await delivered(there, store)
        assert (report.outcome, report.stage) == ("delivered", Stage.CONSUMED)
        assert (report.delay is not None) == busy
        assert there.posts == [message_id_of(A)]
        assert there.history[-1]["parts"] == [words(TEXT)]


async def test_a_lost_answer_is_resolved_by_the_native_history_and_nothing_is_posted_twice(store: str) -> None:
    with served() as there:
        there.answers = False
        report = await delivered(there, store)
        assert (report.outcome, report.stop) == ("uncertain", Stop.UNCERTAIN)
        there.answers = True
        again = await delivered(there, store)  # another life, and another call of the same: the history tells
        assert (again.delivery_id, again.stage) == (A, Stage.CONSUMED)
        assert there.posts == [message_id_of(A)]
    assert await check(store) == []


@pytest.mark.parametrize("damage", ["nothing new", "another session", "no history", "torn", "twice in one"])
async def test_nothing_else_in_a_history_resolves_it(store: str, damage: str) -> None:
    with served() as there:
        there.answers, there.keeps = False, False
        await delivered(there, store)
        match damage:
            case "another session":
                there.history.append(message("msg_new", words(TEXT)))
                there.sessions.add("ses_2")
            case "no history":
                there.history.append(7)
            case "torn":
                there.history.append(message("msg_new", words(TEXT[:-4])))
            case "twice in one":
                there.history.append(message("msg_new", words(TEXT), words(TEXT)))
            case _:
                pass
        session = "ses_2" if damage == "another session" else SESSION
        report = await delivered(there, store, delivery_id=B, place_of=lambda pane_id: there.place(pane_id, session))
        assert (report.delivery_id, report.stop) == (A, Stop.UNCERTAIN)
        assert there.posts == [message_id_of(A)]


async def test_a_message_that_never_shows_up_is_uncertain(store: str) -> None:
    with served() as there:
        there.keeps = False
        assert (await delivered(there, store, seconds=0.5)).stop is Stop.UNCERTAIN


@pytest.mark.parametrize(
    ("status", "reach"),
    [(400, Stop.UNAVAILABLE), (404, Stop.UNAVAILABLE), (500, Stop.UNCERTAIN), (200, Stop.UNCERTAIN)],
)
async def test_a_refusal_left_nothing_and_any_other_answer_says_nothing(store: str, status: int, reach: Stop) -> None:
    with served() as there:
        there.status = status
        assert (await delivered(there, store)).stop is reach


@pytest.mark.parametrize("why", ["no place", "no server", "no session"])
async def test_where_nobody_answers_nothing_is_sent(store: str, why: str) -> None:
    with served() as there:
        place = {
            "no place": None,
            "no server": ServerPlace("http://127.0.0.1:1", PASSWORD, SESSION),
            "no session": there.place("left", "ses_nobodys"),
        }[why]
        report = await delivered(there, store, place_of=lambda _pane: place)
        assert (report.outcome, report.stop, there.posts) == ("unbound", Stop.UNAVAILABLE, [])


async def test_a_pane_that_has_another_session_by_now_is_not_written_to(store: str) -> None:
    with served() as there:
        there.sessions.add("ses_2")
        sessions = iter([SESSION, "ses_2"])
        report = await delivered(there, store, place_of=lambda pane_id: there.place(pane_id, next(sessions)))
        assert (report.outcome, there.posts) == ("unbound", [])


async def test_a_wrong_password_reads_no_history_and_sends_nothing(store: str) -> None:
    with served() as there:
        place = ServerPlace(there.url, "wrong", SESSION)
        report = await delivered(there, store, place_of=lambda _pane: place)
        assert report.stop is Stop.UNAVAILABLE
        assert there.history == [message("msg_old", words(TEXT))]


@pytest.mark.parametrize(
    ("url", "bad"),
    [("http://127.0.0.1:1", False), ("http://[::1]:1", False), ("https://127.0.0.1:1", True), ("http://x:1", True)],
)
def test_only_a_server_on_loopback_is_given_the_password(url: str, bad: bool) -> None:
    if bad:
        with pytest.raises(ValueError, match="url must be"):
            ServerPlace(url, PASSWORD, SESSION)
    else:
        assert PASSWORD not in repr(ServerPlace(url, PASSWORD, SESSION))


def test_what_the_user_said_is_the_operators_and_what_opencode_added_is_left_out() -> None:
    history = [
        message("msg_1", words("a"), words("added", synthetic=True), {"type": "file"}),
        message("msg_2", {"type": "step-start"}, words("b"), role="assistant"),
        message("msg_3"),
    ]
    assert entries_of(json.dumps(history).encode()) == (
        TranscriptEntry("msg_1", "operator", "a"),
        TranscriptEntry("msg_2", "agent", "b"),
        TranscriptEntry("msg_3", "operator", ""),
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(["info", "parts", "id", "text"]), some),
    max_leaves=12,
)


@given(JSON)
def test_no_answer_of_a_server_does_more_than_be_unreadable(history: object) -> None:
    found = entries_of(json.dumps(history).encode())
    assert found is None or len(found) == len(history)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b'[{"info": {"id": 1}}]', b"[[]]"])
def test_what_is_no_history_is_none(content: bytes) -> None:
    assert entries_of(content) is None


@given(st.uuids(), st.integers(100, 599))
def test_one_delivery_has_one_message_id_and_each_status_one_word(delivery_id: uuid.UUID, status: int) -> None:
    assert message_id_of(str(delivery_id)) == f"msg_{delivery_id.hex}"
    words = {204: "delivered", 400: "unbound", 401: "unbound", 404: "unbound"}
    assert outcome_of_post(status, busy=False).outcome == words.get(status, "uncertain")
