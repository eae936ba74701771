"""Hostile requests of every kind on every listener: never a 5xx, never a word of another pane's, and nothing in the log
that a terminal would obey."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import tempfile
from pathlib import Path
from urllib.parse import unquote

import pytest
import trio
from bridge.http_world import OPERATOR_TOKEN, OURS, THEIRS, served, world
from hypothesis import given, settings, strategies as st

from fencepost.supervisor import InboundPost, check
from fencepost.supervisor.bridge.limits import Limits
from fencepost.supervisor.bridge.peers import process
from fencepost.supervisor.bridge.routes import ROUTES, Listener

SECRET = "the other pane's own words"
UUID = "00000000-0000-4000-8000-000000000001"
DIGEST = "a" * 64
ODD = st.sampled_from(["..", ".", "%2e%2e", "%2F", "%00", "%", "%ff", "\\", "*", " ", OURS, THEIRS, UUID, "x" * 300])

pieces = st.one_of(
    st.sampled_from([piece for route in ROUTES for piece in route.pieces if not piece.startswith("{")]),
    ODD,
    st.binary(max_size=12).map(lambda raw: "".join(f"%{byte:02x}" for byte in raw)),
)
any_path = st.lists(pieces, max_size=6).map(lambda parts: "/" + "/".join(parts))


@st.composite
def routed_path(draw):
    """A path that has a row, with ids that are right, wrong or strange."""
    route = draw(st.sampled_from(ROUTES))
    ids = st.sampled_from([OURS, OURS, OURS, UUID, UUID, THEIRS]) | ODD
    return "/" + "/".join(draw(ids) if piece.startswith("{") else piece for piece in route.pieces)


queries = st.sampled_from(
    [
        *("", "?", "?wait=0", "?wait=0.01", "?wait=-1", f"?binding={DIGEST}&fingerprint={DIGEST}", "?binding=%ff"),
        *("?&&=&", "?harness=plain&incarnation=i", "?harness=%1b&incarnation=&wait=x"),
    ]
) | st.binary(max_size=20).map(lambda raw: "?wait=" + "".join(f"%{byte:02x}" for byte in raw))
words = st.text() | st.text(st.sampled_from("\ud800\udfff\x1b\r\n\0é"), max_size=3)  # halves of surrogate pairs too
leaves = st.none() | st.booleans() | st.integers() | words | st.sampled_from([UUID, DIGEST, OURS, THEIRS, "plain"])
flat = leaves | st.lists(leaves, max_size=3) | st.dictionaries(st.text(), leaves, max_size=3)
values = leaves | st.lists(flat, max_size=3) | st.dictionaries(st.text(), flat, max_size=3)
ids_of_delivery = st.dictionaries(st.sampled_from(["intent_id", "incarnation_id", "turn_id", "batch_id"]), leaves)
members = st.fixed_dictionaries(
    {"version": st.just(1) | values},
    optional={
        "incarnation_id": leaves,
        "harness": st.just("plain") | values,
        "event": st.fixed_dictionaries({"turn": st.integers(-1, 2**70) | values, "batch": values}) | values,
        "wait_seconds": st.floats(0, 0.01) | values,
        "delivered": ids_of_delivery | values,
        "delivery_id": st.just(UUID) | values,
        "binding": st.just(DIGEST) | values,
        "text": words | values,
        "native": values,
        "delay": values,
        "pid": values,
        "argv": st.lists(words, max_size=3) | values,
        "cwd": words,
        "environment": st.dictionaries(words, words, max_size=2) | values,
        "kind": st.just("parent_advance") | values,
        **dict.fromkeys(("from_base", "to_base", "classification_op", "trigger_op", "ambiguous"), words | values),
        **dict.fromkeys(("via", "approval", "intent_id", "resolution", "by", "address"), words | values),
    },
)
bodies = st.one_of(members.map(lambda value: json.dumps(value).encode()), st.binary(max_size=64), st.just(b""))
printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
headers = st.dictionaries(
    st.sampled_from(["authorization", "content-type", "content-encoding", "x-forwarded-for", "host", "cookie"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=30).map(str.strip)
    | st.sampled_from(["Bearer " + "o" * 43, "Basic x", "gzip"]),
    max_size=2,
)
methods = (
    st.sampled_from(["GET", "POST", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "get"]) | printable
)
requests = st.tuples(
    st.sampled_from(Listener),
    st.sampled_from(["entitled", "entitled", "nobody"]),
    methods,
    st.one_of(any_path, routed_path(), routed_path()),
    queries,
    headers,
    bodies,
)


NUMBERS = itertools.count()


class Log(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())


async def ask(app, method, target, headers_, body) -> tuple[int, str]:
    """One request, with nothing between the test and the application that would mend it."""
    raw_path, _, query = target.encode("ascii").partition(b"?")
    scope = {"type": "http", "method": method, "raw_path": raw_path, "query_string": query, "headers": headers_}
    scope["path"] = unquote(raw_path.decode())
    sent = []
    parts = [{"type": "http.request", "body": body[:5], "more_body": True}, {"type": "http.request", "body": body[5:]}]

    async def receive():
        if parts:
            return parts.pop(0)
        return await trio.sleep_forever()

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode()


async def ask_all(asked, log) -> None:
    limits = Limits(poll_seconds_max=0.01, hook_seconds_max=0.01, body_bytes_max=4_096)
    store = f"memory://fuzz-{next(NUMBERS)}"
    async with world(store, limits=limits) as there:
        other = there.supervisor.pane(THEIRS)
        await other.launch("plain", "session-2")
        binding = (await other.binding()).binding
        await other.accept(InboundPost(UUID, binding, SECRET))
        await there.supervisor.pane(OURS).launch("plain", "session-1")
        private = {SECRET, binding, *there.links.values()}
        for listener, who, method, path, query, more, body in asked:
            peer = process(os.getpid()) if who == "entitled" else None
            given_headers = [(name.encode(), value.encode("latin-1")) for name, value in more.items()]
            if who == "entitled" and listener is not Listener.LOCAL:
                token = OPERATOR_TOKEN if listener is Listener.OPERATOR else there.links[OURS]
                given_headers = [(b"authorization", f"Bearer {token}".encode())]
            status, text = await ask(there.app(listener, peer), method, path + query, given_headers, body)
            told = f"{listener} {who} {method} {path} {query} {more} {body!r}: {status} {text}"
            assert status < 500, told
            assert json.loads(text), told
            if listener is not Listener.OPERATOR:
                assert not any(word in text for word in private), told
            if who == "nobody" and "o" * 43 not in more.get("authorization", ""):
                assert status in {401, 403, 404}, told
    assert all(line.isascii() and line.isprintable() for line in log.lines)
    assert await check(store) == []


def drive(asked) -> None:
    log = Log()
    logger = logging.getLogger("fencepost.bridge")
    level = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    try:
        trio.run(ask_all, asked, log)
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)


@settings(max_examples=25)
@given(st.lists(requests, min_size=5, max_size=20))
def test_no_request_breaks_the_bridge_or_tells_of_another_pane(asked):
    drive(asked)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(requests, min_size=20, max_size=60))
def test_no_request_breaks_the_bridge_or_tells_of_another_pane_at_length(asked):
    drive(asked)


# -- bytes on real sockets ---------------------------------------------------------------------------------------------

GOOD = f"POST /seats/{OURS}/hook HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n".encode() + b'{"version":1}'
cuts = st.tuples(st.integers(0, len(GOOD)), st.integers(0, len(GOOD)), st.binary(max_size=8)).map(
    lambda cut: GOOD[: cut[0]] + cut[2] + GOOD[cut[1] :]
)
streams = st.lists(cuts | st.just(GOOD) | st.binary(max_size=50), min_size=1, max_size=3).map(b"".join)


async def send_all(everything, folder) -> None:
    limits = Limits(head_seconds=0.05, body_seconds=0.05, send_seconds=1)
    async with world(limits=limits) as there, served(there, folder) as where:
        for sent in everything:
            async with await trio.open_unix_socket(where.local) as stream:
                heard = b""
                with trio.fail_after(20), contextlib.suppress(trio.BrokenResourceError):
                    await stream.send_all(sent)
                    while more := await stream.receive_some():
                        heard += more
                statuses = [int(status) for status in re.findall(rb"HTTP/1.1 (\d{3})", heard)]
                assert all(status < 500 for status in statuses), (sent, heard)
        async with await trio.open_unix_socket(where.local) as stream:
            await stream.send_all(GOOD)
            # 408 where this machine was busier than the bridge is patient here.
            assert (await stream.receive_some()).startswith((b"HTTP/1.1 400", b"HTTP/1.1 408"))


@settings(max_examples=4)
@given(st.lists(streams, min_size=5, max_size=10))
def test_no_bytes_break_a_listener(everything):
    with tempfile.TemporaryDirectory() as folder:
        trio.run(send_all, everything, Path(folder))


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(streams, min_size=10, max_size=30))
def test_no_bytes_break_a_listener_at_length(everything):
    with tempfile.TemporaryDirectory() as folder:
        trio.run(send_all, everything, Path(folder))
