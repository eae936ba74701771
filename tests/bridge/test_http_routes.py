"""Both tables of protocol-delivery.md section 9: which route is where, and what is checked in which order."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from pathlib import Path

import pytest
import trio
import trio.testing
from bridge.http_world import HEAD, OPERATOR_TOKEN, OURS, THEIRS, bearer, world
from source_imports import imports_of, modules

from fencepost.supervisor import InboundPost, Outbound, Stage
from fencepost.supervisor.bridge.limits import Limits
from fencepost.supervisor.bridge.openapi import ALWAYS, REQUESTS, RESPONSES, document
from fencepost.supervisor.bridge.peers import Process, process
from fencepost.supervisor.bridge.routes import ROUTES, Listener, match

UUID = "00000000-0000-4000-8000-000000000001"
DIGEST = "a" * 64
RECEIPT = f"/seats/{OURS}/messages/{UUID}?binding={DIGEST}&fingerprint={DIGEST}"
OPERATOR, FLEET, LOCAL = Listener

# The protocol's row, method, path, and the status an entitled caller gets on each listener; the body is an empty object
# of version 1.
TABLE = [
    ("9.1-1", "GET", f"/seats/{OURS}/events?wait=0", 200, 200, 200),
    ("9.1-2", "POST", f"/seats/{OURS}/events/{UUID}/ack", 404, 404, 404),  # the route is there, the event is not
    ("9.1-2", "GET", f"/seats/{OURS}/events/{UUID}/ack", None, None, None),
    ("9.1-3", "POST", f"/seats/{OURS}/hook", 400, 400, 400),
    ("9.1-4", "GET", f"/seats/{OURS}/messages", 200, 200, 200),
    ("9.1-5", "POST", f"/seats/{OURS}/messages", 400, 400, 400),
    ("9.1-6", "GET", RECEIPT, 200, 200, 200),
    ("9.1-6", "POST", RECEIPT, None, None, None),
    ("9.1-6", "GET", RECEIPT.replace(UUID, "not-a-uuid"), 400, None, None),
    ("9.1-7", "POST", "/tools", None, 200, 200),
    ("9.1-8", "GET", "/head/events?wait=0", 200, None, None),
    ("9.1-8", "POST", f"/head/events/{UUID}/ack", 404, None, None),
    ("9.1-8", "POST", f"/head/events/{UUID}/reply", 400, None, None),
    ("9.1-9", "PUT", "/operator/seats/new", 200, None, None),
    ("9.1-9", "DELETE", "/operator/seats/new", 200, None, None),
    ("9.1-9", "GET", "/openapi.json", 200, None, None),
    ("9.1-9", "GET", "/operator/status", 200, None, None),
    ("9.1-9", "GET", f"/operator/panes/{OURS}", 404, None, None),  # the route is there, nothing is stored of the pane
    ("9.1-9", "POST", f"/operator/panes/{OURS}/transitions", 400, None, None),
    ("9.1-9", "POST", f"/operator/panes/{OURS}/deliveries", 400, None, None),
    ("9.1-9", "POST", f"/operator/panes/{OURS}/settle", 400, None, None),
    ("9.1-9", "POST", f"/operator/panes/{OURS}/resolve", 400, None, None),
    ("9.1-9", "POST", f"/operator/panes/{OURS}/rearm", 400, None, None),
    ("9.1-9", "POST", f"/operator/panes/{OURS}/discard", 400, None, None),
    ("9.1-9", "POST", "/operator/revive", 400, None, None),
    (
        "9.1-9",
        "PUT",
        f"/operator/panes/{OURS}/process",
        404,
        None,
        None,
    ),  # the routes are there, this bridge starts nothing
    ("9.1-9", "GET", f"/operator/panes/{OURS}/process", 404, None, None),
    ("9.1-9", "DELETE", f"/operator/panes/{OURS}/process", 404, None, None),
    ("9.1-9", "GET", f"/operator/panes/{OURS}/settle", None, None, None),
    ("9.1-9", "POST", f"/operator/panes/{OURS}", None, None, None),
    ("9.1-9", "GET", "/metrics", 404, None, None),  # the route is there, and this bridge keeps none
    ("9.1-9", "POST", "/operator/dashboard-ticket", 200, None, None),
    ("9.1-9", "GET", "/", None, None, None),
    ("9.1-9", "GET", "/status", None, None, None),
    ("9.1-9", "HEAD", f"/seats/{OURS}/events?wait=0", None, None, None),
    ("9.1-9", "OPTIONS", f"/seats/{OURS}/messages", None, None, None),
]
CELLS = [(*row[1:3], listener, status) for row in TABLE for listener, status in zip(Listener, row[3:], strict=True)]
NAMES = [
    f"{row} {method} {path.partition('?')[0]} {listener.name}"
    for row, method, path, *_ in TABLE
    for listener in Listener
]


def is_routed(method, path, listener) -> bool:
    return match(listener, method, path.partition("?")[0].encode()) is not None


@pytest.mark.parametrize(("method", "path", "listener", "status"), CELLS, ids=NAMES)
async def test_9_1_and_12_o9_every_row_on_every_listener(method, path, listener, status):
    async with world() as there, there.entitled(listener) as client:
        answer = await client.request(method, path, json={"version": 1})
        assert answer.status_code == (404 if status is None else status)
        assert is_routed(method, path, listener) == (status is not None)


def test_9_1_every_route_is_in_the_table():
    tried = [match(listener, method, path.partition("?")[0].encode()) for method, path, listener, _ in CELLS]
    assert {found.route.name for found in tried if found} == {route.name for route in ROUTES}


# -- the order of the checks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", Listener)
@pytest.mark.parametrize("path", ["/", "/seats", f"/seats/{OURS}", f"/seats/{OURS}/events/{UUID}", "/seats//events"])
async def test_9_2_1_and_12_o9_shape_and_method_come_before_identity(listener, path):
    async with world() as there, there.client(listener) as nobody:
        assert (await nobody.get(path)).status_code == 404
        assert (await nobody.patch(f"/seats/{OURS}/hook")).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", f"Basic {OPERATOR_TOKEN}")],
        [("authorization", f"Bearer {OPERATOR_TOKEN}x")],
        [("authorization", f"Bearer {OPERATOR_TOKEN[:-1]}")],
        [("authorization", f"Bearer {OPERATOR_TOKEN}"), ("authorization", f"Bearer {OPERATOR_TOKEN}")],
        [("authorization", "Bearer \xff\xfe".encode("latin-1"))],
        [("x-authorization", f"Bearer {OPERATOR_TOKEN}")],
        [("cookie", f"authorization=Bearer {OPERATOR_TOKEN}")],
    ],
)
@pytest.mark.parametrize("listener", [OPERATOR, FLEET])
async def test_9_2_2_without_a_token_it_is_401_on_every_route(listener, headers):
    async with world() as there, there.client(listener, headers=headers) as nobody:
        for method, path, where, status in CELLS:
            if where is listener and status is not None:
                answer = await nobody.request(method, path, json={"version": 1})
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("listener", Listener)
async def test_6_1_1_and_6_2_10_what_is_turned_away_at_the_door_gets_no_receipt(listener):
    """However well the message is made: a receipt would say that somebody entitled had asked."""
    async with world() as there, there.client(listener) as nobody, there.entitled(listener) as somebody:
        pane = there.supervisor.pane(OURS)
        await pane.launch("plain", "session-1")
        binding = (await pane.binding()).binding
        message = {"version": 1, "delivery_id": UUID, "binding": binding, "text": "hello"}
        answers = [
            (await somebody.post(f"/seats/{OURS}/message", json=message), 404),
            (await somebody.put(f"/seats/{OURS}/messages", json=message), 404),
            (await nobody.post(f"/seats/{OURS}/messages", json=message), 403 if listener is LOCAL else 401),
            (await nobody.get(RECEIPT), 403 if listener is LOCAL else 401),
        ]
        if listener is not OPERATOR:
            answers.append((await somebody.post(f"/seats/{THEIRS}/messages", json=message), 403))
            answers.append((await somebody.get(RECEIPT.replace(OURS, THEIRS)), 403))
            there.seats.dismiss(OURS)
            answers.append((await somebody.get(RECEIPT), 403 if listener is LOCAL else 401))
        for answer, status in answers:
            assert (answer.status_code, set(answer.json())) == (status, {"version", "error"})
        assert there.dispatched.turns == []
        assert (await pane.accept(InboundPost(UUID, binding, "other"))).stage is Stage.STORED, "so it left no trace"


async def test_9_2_2_each_token_is_good_on_its_own_listener_only():
    async with world() as there:
        async with there.client(FLEET, headers=bearer(OPERATOR_TOKEN)) as operator:
            assert (await operator.get(f"/seats/{OURS}/messages")).status_code == 401
        async with there.client(OPERATOR, headers=bearer(there.links[OURS])) as pane:
            assert (await pane.get(f"/seats/{OURS}/messages")).status_code == 401


@pytest.mark.parametrize("peer", [None, Process(1, 0), Process(2**30, 5)])
async def test_9_2_2_and_9_2_5_no_credential_makes_an_identity_on_the_local_listener(peer):
    async with world() as there:
        for token in (OPERATOR_TOKEN, there.links[OURS], there.links[THEIRS]):
            async with there.client(LOCAL, peer=peer, headers=bearer(token)) as stranger:
                assert (await stranger.get(f"/seats/{OURS}/messages")).status_code == 403


@pytest.mark.parametrize("listener", [FLEET, LOCAL])
async def test_9_2_3_another_panes_path_is_403_whatever_the_rest(listener):
    async with world() as there, there.entitled(listener) as client:
        for method, path, where, status in CELLS:
            if where is listener and status is not None and OURS in path:
                answer = await client.request(method, path.replace(OURS, THEIRS), content=b"{")
                assert (answer.status_code, answer.json()["error"]) == (403, "another pane's")


async def test_9_2_5_a_stolen_token_on_the_local_listener_does_not_reach_its_pane():
    async with world() as there:
        headers = bearer(there.links[THEIRS])
        async with there.client(LOCAL, peer=process(os.getpid()), headers=headers) as thief:
            assert (await thief.get(f"/seats/{THEIRS}/messages")).status_code == 403
            assert (await thief.get(f"/seats/{OURS}/messages")).status_code == 200


@pytest.mark.parametrize("listener", [FLEET, LOCAL])
@pytest.mark.parametrize("how", ["dismissed", "admitted again"])
async def test_9_2_4_and_11_8_membership_that_ends_between_admission_and_handler_is_403_without_effect(listener, how):
    """The body is what comes in between: it is read after the admission."""
    async with world() as there, there.entitled(listener) as client:
        pane = there.supervisor.pane(OURS)
        await pane.launch("plain", "session-1")
        binding = (await pane.binding()).binding

        async def body():
            yield f'{{"version":1,"delivery_id":"{UUID}","binding":"{binding}",'.encode()
            if how == "dismissed":
                there.seats.dismiss(OURS)
            else:
                there.seats.admit(OURS)
            yield b'"text":"late"}'

        answer = await client.post(f"/seats/{OURS}/messages", content=body())
        assert answer.status_code == 403
        digest = hashlib.sha256(b"late").hexdigest()
        assert (await pane.receipt(UUID, binding, digest)).stage is None
        assert there.dispatched.turns == []
        assert (await pane.accept(InboundPost(UUID, binding, "late"))).stage is Stage.STORED  # so it left no trace


@pytest.mark.parametrize("listener", [FLEET, LOCAL])
async def test_9_2_4_and_12_o9_membership_that_ends_under_a_poll_ends_the_poll(listener):
    async with world() as there, there.entitled(listener) as client:
        answers = []

        async def poll():
            answers.append(await client.get(f"/seats/{OURS}/events?wait=30", timeout=60))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                await until_polled(there)
                there.seats.dismiss(OURS)
        assert answers[0].status_code == 403


async def until_polled(there):
    """Wait until a poll is under way in the pane."""
    while there.bridge.stopping._under_way == set():
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked(0.02)


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/seats/pane-1%2Fmessages",
        "/seats%2Fpane-1/messages",
        "/seats/pane-2/../pane-1/messages",
        "/seats/./pane-1/messages",
        "//seats/pane-1/messages",
        "/seats/pane-1/messages/",
        "/seats/pane-1/messages//",
        "/SEATS/pane-1/messages",
        "/%73eats/pane-1/messages",
        "/seats/pane-1/%6Dessages",
        "/seats/pane-1%00/messages",
        "/seats/pane-1%0A/messages",
        "/seats/%ff/messages",
        "/seats/%/messages",
        "/seats/%zz/messages",
        "/seats/%25",
        f"/seats/{'x' * 257}/messages",
        "/seats//messages",
        "http://bridge/seats/pane-1/messages",
        "*",
        "",
    ],
)
@pytest.mark.parametrize("listener", Listener)
def test_tricks_with_paths_have_no_row(path, listener):
    found = match(listener, "GET", path.encode())
    assert found is None or found.parameters["pane"] != OURS  # `..` is an id like any other, and not ours


@pytest.mark.parametrize(
    ("spelled", "meant"), [("a%2Fb", "a/b"), ("a%20b", "a b"), ("%2e%2e", ".."), ("a%252Fb", "a%2Fb")]
)
def test_an_id_is_decoded_once(spelled, meant):
    found = match(OPERATOR, "GET", f"/seats/{spelled}/messages".encode())
    assert found.parameters == {"pane": meant}


# -- parameters --------------------------------------------------------------------------------------------------------

BAD_QUERIES = [
    "",
    f"?binding={DIGEST}",
    f"?fingerprint={DIGEST}",
    f"?binding={DIGEST[1:]}&fingerprint={DIGEST}",
    f"?binding={DIGEST.upper()}&fingerprint={DIGEST}",
    f"?binding={DIGEST}&fingerprint={DIGEST}&binding={DIGEST}",
    f"?binding={DIGEST}&fingerprint={DIGEST}%0a",
    f"?binding={DIGEST}&fingerprint={'%ff' * 64}",
    "?" + "&".join(f"x{number}=1" for number in range(100)),
]


@pytest.mark.parametrize("query", BAD_QUERIES)
@pytest.mark.parametrize("listener", Listener)
async def test_9_2_7_a_receipt_is_asked_for_by_two_digests(query, listener):
    async with world() as there, there.entitled(listener) as client:
        assert (await client.get(f"/seats/{OURS}/messages/{UUID}{query}")).status_code == 400


@pytest.mark.parametrize("wait", ["-1", "nan", "inf", "1e3", "x", "", "0x1", "١", "1&wait=2", "9999999"])
async def test_a_wait_is_plain_seconds(wait):
    async with world() as there, there.entitled(FLEET) as client:
        assert (await client.get(f"/seats/{OURS}/events?wait={wait}")).status_code == 400


async def test_9_1_1_a_wait_is_capped():
    async with world(limits=Limits(poll_seconds_max=0.01)) as there, there.entitled(FLEET) as client:
        with trio.fail_after(20):
            answer = await client.get(f"/seats/{OURS}/events?wait=3600&unknown=1")
        assert answer.json() == {"version": 1, "events": []}


async def test_9_2_8_and_9_3_2_an_event_of_another_pane_is_unknown():
    async with world() as there, there.entitled(FLEET, THEIRS) as them, there.entitled(FLEET) as us:
        outbound = Outbound("theirs", "fleet_seat", UUID)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.supervisor.pane(THEIRS).deliver, outbound)
            page = (await them.get(f"/seats/{THEIRS}/events?wait=10")).json()["events"]
            assert [event["event_id"] for event in page] == [UUID]
            answer = await us.post(f"/seats/{OURS}/events/{UUID}/ack")
            assert (answer.status_code, "theirs" in answer.text) == (404, False)
            answer = await them.post(f"/seats/{THEIRS}/events/{UUID}/ack")
            assert answer.json() == {"version": 1, "acknowledged": True, "stage": "delivered"}
            answer = await them.post(f"/seats/{THEIRS}/events/{UUID}/ack", json={"version": 1, "native": None})
            assert answer.status_code == 200  # again, and nothing changes


async def test_an_acknowledgement_may_say_how_the_harness_took_it():
    async with world() as there, there.entitled(LOCAL) as client:
        reports = []

        async def deliver():
            reports.append(await there.supervisor.pane(OURS).deliver(Outbound("hello", "fleet_seat", UUID)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            await client.get(f"/seats/{OURS}/events?wait=10")
            how = {"version": 1, "native": "queued", "delay": "a turn is running", "extra": [1]}
            assert (await client.post(f"/seats/{OURS}/events/{UUID}/ack", json=how)).status_code == 200
        assert (reports[0].stage, reports[0].native, reports[0].delay) == (
            Stage.CONSUMED,
            "queued",
            "a turn is running",
        )


async def test_the_head_polls_acknowledges_and_replies():
    async with world() as there, there.entitled(OPERATOR) as client:
        reports = []

        async def deliver():
            reports.append(await there.supervisor.pane(HEAD).deliver(Outbound("a question", "head_seat", UUID)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            (event,) = (await client.get("/head/events?wait=10")).json()["events"]
            assert (event["text"], event["pane_id"], event["mechanism"]) == ("a question", HEAD, "head_seat")
            assert (await client.post(f"/head/events/{UUID}/ack")).status_code == 200
            reply = await client.post(f"/head/events/{UUID}/reply", json={"version": 1, "text": "an answer"})
            assert reply.json() == {"version": 1, "answer": "applied"}
        assert reports[0].stage is Stage.RESPONDED


# -- members -----------------------------------------------------------------------------------------------------------


async def test_the_operator_admits_and_dismisses():
    async with world() as there, there.entitled(OPERATOR) as operator:
        link = (await operator.put("/operator/seats/new", json={"version": 1})).json()["link"]
        async with there.client(FLEET, headers=bearer(link)) as pane:
            assert (await pane.get("/seats/new/messages")).status_code == 200
            named = await operator.put("/operator/seats/new", json={"version": 1, "pid": os.getpid()})
            assert named.json() == {"version": 1, "pane": "new", "pid": os.getpid()}
            assert (await pane.get("/seats/new/messages")).status_code == 200
            gone = (await operator.delete("/operator/seats/new")).json()
            assert gone == {"version": 1, "pane": "new", "dismissed": True}
            assert (await pane.get("/seats/new/messages")).status_code == 401
        assert (await operator.delete("/operator/seats/new")).json()["dismissed"] is False
        for path, pid in (("new", os.getpid()), (OURS, 2**31 - 1)):
            answer = await operator.put(f"/operator/seats/{path}", json={"version": 1, "pid": pid})
            assert answer.status_code == 404
        for pid in (0, 1, -1, True, "7", 1.5, 2**40):
            answer = await operator.put(f"/operator/seats/{OURS}", json={"version": 1, "pid": pid})
            assert answer.status_code == 400


# -- the document ------------------------------------------------------------------------------------------------------


def test_the_document_matches_the_routes():
    paths = document(Limits())["paths"]
    told = {
        (method.upper(), path[1:], tuple(operation["x-listeners"]))
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    assert told == {(route.method, route.path, tuple(sorted(route.listeners))) for route in ROUTES}
    assert set(RESPONSES) == {route.name for route in ROUTES}
    assert set(REQUESTS) == {route.name for route in ROUTES if route.method in {"POST", "PUT"}}
    for route in ROUTES:
        operation = paths[f"/{route.path}"][route.method.lower()]
        assert set(operation["responses"]) == {str(status) for status in {*ALWAYS, *route.statuses}}
        in_path = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
        assert in_path == [piece[1:-1] for piece in route.path.split("/") if piece.startswith("{")]


async def test_the_document_is_what_the_operator_gets_and_tells_each_answer_of_the_table():
    async with world() as there, there.entitled(OPERATOR) as operator:
        whole = (await operator.get("/openapi.json")).json()
        assert whole == document(there.bridge.limits)
        for (method, path, _, _), listener in itertools.product(CELLS[::3], Listener):
            found = match(listener, method, path.partition("?")[0].encode())
            if found is None:
                continue
            async with there.entitled(listener) as client:
                answer = await client.request(method, path, json={"version": 1})
            told = whole["paths"][f"/{found.route.path}"][method.lower()]["responses"][str(answer.status_code)]
            required = told["content"]["application/json"]["schema"].get("required", [])
            assert set(required) <= answer.json().keys()


def test_the_table_in_the_documents_is_the_codes():
    text = (Path(__file__).resolve().parents[2] / "docs" / "bridge.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z]+) `([^`]+)` \| (yes|no) \| (yes|no) \| (yes|no) \|$", text, re.MULTILINE)
    told = [(method, path, [word == "yes" for word in words]) for method, path, *words in rows]
    routes = [(route.method, route.path, [listener in route.listeners for listener in Listener]) for route in ROUTES]
    assert told == routes


def test_the_bounds_in_the_documents_are_the_codes():
    text = (Path(__file__).resolve().parents[2] / "docs" / "bridge.md").read_text(encoding="utf-8")
    limits = Limits()
    for told in (
        f"capped at {limits.poll_seconds_max:g}",
        f"longer than {limits.body_seconds:g} seconds, or has more than {limits.body_bytes_max // 2**20} MiB",
        f"more than {limits.pane_connections_max} connections",
        f"head within {limits.head_seconds:g} seconds",
        f"within {limits.send_seconds:g}. Connections that have not said who they are number {limits.strangers_max} at",
    ):
        assert told in " ".join(text.split())


def test_the_bridge_is_built_on_public_names_alone():
    # and on the two modules that list what is stored, which no contract names; the dashboard reads the rows themselves
    allowed = re.compile(r"fencepost\.supervisor(\.overview|\.pane_history|\.bridge(\.\w+)*)?")
    rows = re.compile(r"fencepost\.(mailbox\.(delivery_records|errors|query|records|stores\.store)|supervisor\.words)")
    for name, path in modules().items():
        if name.startswith("fencepost.supervisor.bridge"):
            for item in imports_of(name, path):
                if item.module.startswith("fencepost") and not item.candidate:
                    reads = name.startswith("fencepost.supervisor.bridge.dashboard.") and rows.fullmatch(item.module)
                    assert reads or allowed.fullmatch(item.module), f"{name} imports {item.module}"
