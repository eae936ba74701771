"""The real `opencode serve` as the native end of `OpenCodeControl`: what its history shows, and a lost receipt."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from delivery_scenarios import uid
from e2e.messages_api import Turn, text
from e2e.opencode_place import PASSWORD, needs_opencode, opencode_place, server

from fencepost.supervisor import OpenCodeControl, Outbound, Stage, Stop, check, open_supervisor
from fencepost.supervisor.bridge.opencode_server import OpenCodeServer, ServerPlace, message_id_of

pytestmark = needs_opencode

A, B = uid(1), uid(2)


@contextmanager
def lossy(url: str) -> Iterator[str]:
    """What hands every request on to the server at `url`, and loses the answer to each POST."""
    to = urlsplit(url)

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
            """Say nothing."""

        def do_GET(self) -> None:
            status, content = self.handed_on(None)
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.handed_on(self.rfile.read(int(self.headers["content-length"])))

        def handed_on(self, body: bytes | None) -> tuple[int, bytes]:
            connection = http.client.HTTPConnection(to.hostname, to.port, timeout=60)
            names = ("authorization", "content-type")
            connection.request(self.command, self.path, body, {name: self.headers[name] for name in names})
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            return answer.status, content

    loses = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=loses.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{loses.server_port}"
    finally:
        loses.shutdown()
        thread.join()
        loses.server_close()


async def deliver(store: str, place: ServerPlace, said: str, delivery_id: str):
    mechanism = OpenCodeControl(OpenCodeServer(lambda _pane: place, request_seconds=30), answer_seconds=60)
    async with open_supervisor(store, mechanisms=[mechanism]) as supervisor:
        return await supervisor.pane("left").deliver(Outbound(said, "opencode", delivery_id))


@pytest.fixture
def store(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 's.db'}"


async def test_a_message_is_consumed_under_its_own_id_also_while_a_turn_runs(store: str) -> None:
    with opencode_place() as there:
        held = Turn.held(text("well"))
        there.api.play("go now", held)
        there.api.play("go on")
        with server(there) as (url, ask):
            session = ask("POST", "/session", {})[1]["id"]
            place = ServerPlace(url, PASSWORD, session)
            first = await deliver(store, place, 'go now "ü"\n', A)
            assert (first.outcome, first.stage, first.delay) == ("delivered", Stage.CONSUMED, None)
            there.api.asked("go now", 0)
            second = await deliver(store, place, "go on", B)
            assert (second.stage, second.delay) == (Stage.CONSUMED, "a turn of the session is running")
            held.go.set()
            assert there.api.asked("go on", 0).prompts == ['go now "ü"\n', "go on"]
            history = ask("GET", f"/session/{session}/message")[1]
            said = [one["info"]["id"] for one in history if one["info"]["role"] == "user"]
            assert said == [message_id_of(A), message_id_of(B)]
    assert await check(store) == []


async def test_a_lost_receipt_is_resolved_by_the_history_of_the_session_alone_after_its_server_was_killed(store: str):
    with opencode_place() as there:
        there.api.play("go now")
        there.api.play("go on")
        with server(there) as (url, ask), lossy(url) as losing:
            session = ask("POST", "/session", {})[1]["id"]
            other = ask("POST", "/session", {})[1]["id"]
            lost = await deliver(store, ServerPlace(losing, PASSWORD, session), "go now", A)
            assert (lost.outcome, lost.stop) == ("uncertain", Stop.UNCERTAIN)
            there.api.asked("go now", 0)
        with server(there) as (url, _):
            blocked = await deliver(store, ServerPlace(url, PASSWORD, other), "go on", B)
            assert (blocked.delivery_id, blocked.stop) == (A, Stop.UNCERTAIN)
            unsent = await deliver(store, ServerPlace(url, PASSWORD, session), "go on", B)
            assert (unsent.delivery_id, unsent.outcome, unsent.stop) == (B, "unsent", Stop.UNAVAILABLE)
            original = await deliver(store, ServerPlace(url, PASSWORD, session), "go now", A)
            assert (original.outcome, original.stage) == ("delivered", Stage.CONSUMED)
            assert (await deliver(store, ServerPlace(url, PASSWORD, session), "go on", B)).stage is Stage.CONSUMED
            assert there.api.asked("go on", 0).prompts == ["go now", "go on"]
    assert await check(store) == []
