"""The operator's client: to whom it speaks, and what it makes of every answer there can be."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencepost.supervisor.bridge import client
from fencepost.supervisor.bridge.client import (
    BridgeStopping,
    ClientError,
    NoAnswer,
    NobodyServes,
    NotNow,
    Operator,
    RequestRejected,
    TokenRefused,
)

TOKEN = "t" * 43


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bridge"
    folder.mkdir(mode=0o700)
    return folder


@contextmanager
def bridge(folder: Path, answer: bytes | None, host: str = "127.0.0.1") -> Iterator[list[bytes]]:
    """Something that listens as a bridge does, and gives everybody this answer; None: it never answers.

    Yields the requests that came in.
    """
    heard: list[bytes] = []
    listening, local = socket.create_server((host, 0)), socket.socket(socket.AF_UNIX)
    local.bind(str(folder / "local.sock"))
    local.listen()
    write(folder, f"http://{host}:{listening.getsockname()[1]}")
    over = threading.Event()

    def serve() -> None:
        while True:
            try:
                stream, _ = listening.accept()
            except OSError:
                return
            with stream:
                heard.append(_whole(stream))
                if answer is None:
                    over.wait(30)
                else:
                    stream.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield heard
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        local.close()
        thread.join()


def _whole(stream: socket.socket) -> bytes:
    """One request; its head and its body may come apart."""
    said = stream.recv(65_536)
    while said.startswith(b"POST") and not said.endswith(b"}"):
        said += stream.recv(65_536)
    return said


def write(folder: Path, operator: object) -> None:
    for name, text in (("endpoints.json", json.dumps({"version": 1, "operator": operator})), ("operator.token", TOKEN)):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(text)


def http(status: int, body: bytes, *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers])
    return f"{head}\r\n\r\n".encode() + body


def test_a_request_says_who_asks_and_what(folder: Path) -> None:
    with bridge(folder, http(200, b'{"version": 1, "answer": "applied"}')) as heard:
        said = Operator(folder).act("settle", "a/b ?", {"delivery_id": "d", "approval": "ädä"})
    assert said == {"version": 1, "answer": "applied"}
    head, _, body = heard[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /operator/panes/a%2Fb%20%3F/settle HTTP/1.1\r\n")
    assert f"Authorization: Bearer {TOKEN}".encode() in head
    assert json.loads(body) == {"version": 1, "delivery_id": "d", "approval": "ädä"}


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (http(401, b'{"error": "a bearer token is required"}'), TokenRefused, "operator.token"),
        (http(503, b'{"error": "the bridge is stopping"}'), BridgeStopping, "the bridge is stopping; "),
        (http(503, b'{"error": "pane:7 is stopping and quarantined"}'), NotNow, "pane:7"),
        (http(409, b'{"error": "no Reconciler"}'), RequestRejected, "no Reconciler"),
        (http(404, b'{"error": "not found"}'), RequestRejected, "not found"),
        (http(400, b'{"error": 7}'), RequestRejected, "7"),
        (http(500, b'{"error": "the bridge failed"}'), NoAnswer, "the bridge failed"),
        (http(302, b"{}", "Location: http://127.0.0.1:1/"), NoAnswer, "302"),
        (http(200, b"[]"), NoAnswer, "not JSON"),
        (http(200, b"\xff"), NoAnswer, "not JSON"),
        (http(200, b"[" * 100_000), NoAnswer, "not JSON"),
        (http(200, b"{}").replace(b"Content-Length: 2", b"Content-Length: 200"), NoAnswer, "ended the connection"),
        (b"", NoAnswer, "ended the connection"),
        (b"SSH-2.0\r\n", NoAnswer, "ended the connection"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000 + b"\r\n", NoAnswer, "ended the connection"),
        (http(200, b'{"x": "' + b"y" * 2_000 + b'"}'), NoAnswer, "more than 1000 bytes"),
    ],
)
def test_what_comes_back(
    folder: Path, answer: bytes, error: type[ClientError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "1000 bytes" in words:
        monkeypatch.setattr(client, "ANSWER_BYTES_MAX", 1_000)
    with bridge(folder, answer) as heard, pytest.raises(ClientError) as raised:
        Operator(folder).status()
    assert (type(raised.value), words in str(raised.value)) == (error, True)
    assert len(heard) == 1  # nothing is asked twice, and no redirection is followed


def test_who_was_to_look_at_the_status_is_not_sent_to_look_at_the_status(folder: Path) -> None:
    with bridge(folder, http(200, b"[]")):
        with pytest.raises(NoAnswer, match=r"it was only asked how things stand, which changes nothing$"):
            Operator(folder).status()
        with pytest.raises(NoAnswer, match=r"it is not known whether it was done: look at the status$"):
            Operator(folder).act("rearm", "7", {"intent_id": "i"})


def test_a_bridge_that_never_answers_is_not_waited_for_any_longer(folder: Path) -> None:
    with bridge(folder, None), pytest.raises(NoAnswer, match="not answered in time"):
        Operator(folder, seconds=0.1).status()


# -- nobody there ------------------------------------------------------------------------------------------------------


def test_where_no_bridge_ever_served(tmp_path: Path, folder: Path) -> None:
    for place in (tmp_path / "none", folder):
        with pytest.raises(NobodyServes, match="fencepost serve"):
            Operator(place).status()
        assert not (tmp_path / "none").exists()
    assert list(folder.iterdir()) == []  # it makes nothing


def test_what_a_killed_bridge_left_behind_is_told_nothing(folder: Path) -> None:
    """Its port may be another program's by now: that one must not be handed the token."""
    with bridge(folder, http(200, b"{}")) as heard:
        (folder / "local.sock").unlink()
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(folder / "local.sock"))
        left.close()  # the name stays, and nobody listens
        with pytest.raises(NobodyServes, match="fencepost serve"):
            Operator(folder).status()
    assert heard == []


def test_a_bridge_whose_port_is_closed(folder: Path) -> None:
    with bridge(folder, http(200, b"{}")):
        pass
    local = socket.socket(socket.AF_UNIX)
    (folder / "local.sock").unlink()
    local.bind(str(folder / "local.sock"))
    local.listen()
    with local, pytest.raises(NobodyServes, match="refused"):
        Operator(folder).status()


@pytest.mark.parametrize(
    "operator",
    [
        "http://192.0.2.1:80",
        "http://localhost:80",
        "https://127.0.0.1:80",
        "http://127.0.0.1",
        "http://127.0.0.1:0",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:80@192.0.2.1:80",
        "http://[::ffff:192.0.2.1]:80",
        "",
        None,
        7,
        ["http://127.0.0.1:80"],
    ],
)
def test_the_token_goes_to_a_loopback_address_only(folder: Path, operator: object) -> None:
    with bridge(folder, http(200, b"{}")) as heard:
        write(folder, operator)
        with pytest.raises(ClientError, match=r"endpoints\.json"):
            Operator(folder).status()
    assert heard == []


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"x"', "{}", '{"version": 1}'])
def test_endpoints_that_are_none(folder: Path, text: str) -> None:
    write(folder, "http://127.0.0.1:1")
    (folder / "endpoints.json").write_text(text)
    with pytest.raises(ClientError, match=r"endpoints\.json"):
        Operator(folder).status()


@pytest.mark.parametrize("name", [".", "endpoints.json", "operator.token"])
@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_what_is_not_private_is_not_used(folder: Path, name: str, mode: int) -> None:
    with bridge(folder, http(200, b"{}")) as heard:
        (folder / name).chmod(mode | (0o111 if name == "." else 0))
        with pytest.raises(ClientError, match="chmod"):
            Operator(folder).status()
        folder.chmod(0o700)
    assert heard == []


def test_a_link_in_place_of_the_token_is_not_followed(folder: Path, tmp_path: Path) -> None:
    with bridge(folder, http(200, b"{}")) as heard:
        (folder / "operator.token").rename(tmp_path / "elsewhere")
        (folder / "operator.token").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ClientError, match="cannot be used"):
            Operator(folder).status()
    assert heard == []
