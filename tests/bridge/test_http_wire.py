"""The bridge's JSON, and what each route makes of it: hooks, messages, tools, and every fault told exactly."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from functools import partial

import pytest
import trio
import trio.testing
from bridge.http_world import OURS, THEIRS, world
from bridges import Workspace, moved, payload_of
from hypothesis import given, settings, strategies as st

from fencepost.mailbox.claim import fingerprint_of
from fencepost.supervisor import (
    ActorCrashed,
    ActorQuarantined,
    CorruptRecord,
    IntentState,
    InvalidTransition,
    MailboxClosed,
    MailboxFull,
    Outbound,
    StoreFault,
)
from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.adapters.answers import denial
from fencepost.supervisor.bridge.hook import NO_ANSWER, NOT_ADMITTED, UNREADABLE
from fencepost.supervisor.bridge.limits import Limits
from fencepost.supervisor.bridge.routes import Listener

UUID = "00000000-0000-4000-8000-000000000001"
OTHER = "00000000-0000-4000-8000-000000000002"
EVIL = "\x1b]0;owned\x07\r\n\u202e\ud800"

# -- parsing -----------------------------------------------------------------------------------------------------------

BROKEN = [
    (b"", "is not JSON"),
    (b"{", "is not JSON"),
    (b"\xff{}", "is not UTF-8"),
    (b'\xef\xbb\xbf{"a":1}', "is not JSON"),
    ('{"a":1}'.encode("utf-16"), "is not UTF-8"),
    (b"[]", "is not a JSON object"),
    (b"null", "is not a JSON object"),
    (b'"text"', "is not a JSON object"),
    (b'{"a":1} {"a":1}', "is not JSON"),
    (b'{"a":1,"a":1}', "stands twice"),
    (b'{"a":[{"b":1,"b":2}]}', "stands twice"),
    (b'{"a":1,"\\u0061":2}', "stands twice"),
    (b'{"a":NaN}', "no such number"),
    (b'{"a":-Infinity}', "no such number"),
    (b'{"a":1e999}', "no such number"),
    (b'{"a":' + b"9" * 5_000 + b"}", "is not JSON"),
    (b'{"a":' + b"[" * 250 + b"]" * 250 + b"}", "nested too deeply"),
    (b'{"a":' + b"[" * 100_000, "nested too deeply"),
    (b'{"a":' * 100_000, "nested too deeply"),
    (b'{"a":[' + b"[]," * 200_000 + b"[]]}", "too many values"),
    (b'{"a":["' + rb'\\",[],"\",' * 200_000 + b'"]}', "too many values"),
    (b"{" + b'"a":"b",' * 200_001 + b'"a":1}', "too many values"),
    (b'{"a":[' + b'"' * 3_000_000 + b"," * 300_000, "too many values"),
]


@pytest.mark.parametrize(("body", "why"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_object_of_ours_is_malformed(body, why):
    with pytest.raises(wire.Malformed, match=why):
        wire.parse(body)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
FLAT = SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(st.text(), SCALARS, max_size=4)
DOCUMENTS = FLAT | st.lists(FLAT, max_size=4) | st.dictionaries(st.text(), FLAT, max_size=4)


@pytest.mark.parametrize("text", ["[{,", '"', '\\"', "\\", '\\",['])
def test_a_text_may_have_whatever_marks_values_elsewhere(text):
    members = {"a": text * 300_000, "b\\": [text, 1], text: None}
    assert wire.parse(json.dumps(members).encode()) == members


@settings(max_examples=30)
@given(st.dictionaries(st.text(), DOCUMENTS))
def test_every_object_is_parsed_as_it_is(members):
    assert wire.parse(json.dumps(members).encode()) == members


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_parse_or_be_malformed(body):
    with contextlib.suppress(wire.Malformed):
        assert isinstance(wire.parse(body), dict)


@given(st.text())
def test_the_fingerprint_is_the_one_that_clients_take(text):
    assert wire.fingerprint_of(text) == fingerprint_of(text)


@pytest.mark.parametrize("text", ["\ud800", "a\r\nb\rc", " x \x1c", "\udfff\ud800 \n"])
def test_the_fingerprint_of_odd_texts_too(text):
    assert wire.fingerprint_of(text) == fingerprint_of(text)


@pytest.mark.parametrize("version", [None, 0, 2, "1", True, 1.0, [1]])
@pytest.mark.parametrize("path", [f"/seats/{OURS}/hook", f"/seats/{OURS}/messages", "/tools"])
async def test_another_version_is_refused(version, path):
    whole = {"incarnation_id": "i", "harness": "plain", "event": {}, "delivery_id": UUID, "binding": "b" * 64}
    async with world() as there, there.entitled(Listener.FLEET) as client:
        answer = await client.post(path, json={**whole, "text": "t", "version": version})
        assert answer.status_code == 400
        assert "version must be 1" in answer.text


# -- hooks -------------------------------------------------------------------------------------------------------------


def hook(incarnation_id, event, **more):
    return {"version": 1, "incarnation_id": incarnation_id, "harness": "plain", "event": event} | more


async def test_a_payload_goes_to_the_hook_and_is_reported_and_acknowledged():
    async with world(reconciler=Workspace()) as there, there.entitled(Listener.LOCAL) as client:
        pane = there.supervisor.pane(OURS)
        agent = (await pane.launch("plain")).incarnation_id
        intent_id = (await pane.detect(moved("a", "b"))).intent_id
        path = f"/seats/{OURS}/hook"
        event = {"turn": 1, "batch": "batch-1", "unknown": [None]}
        said = (await client.post(path, json=hook(agent, event, wait_seconds=10, extra=1))).json()
        delivered = {
            "intent_id": intent_id,
            "incarnation_id": agent,
            "turn_id": "turn-1",
            "batch_id": "batch-1",
        }
        assert said == {"version": 1, "stdout": payload_of("b").decode(), "exit_code": 0, "delivered": delivered}
        report = {"version": 1, "delivered": delivered}
        assert (await client.post(path, json=report)).json() == {"version": 1, "answer": "applied"}
        assert (await client.post(path, json=report)).json() == {"version": 1, "answer": "unchanged"}
        wrong = {"version": 1, "delivered": {**delivered, "turn_id": "turn-2"}}
        said = (await client.post(path, json=wrong)).json()
        assert (said["answer"], said["reason"]) == ("refused", "proof_mismatch")
        await pane.post_tool_batch(agent, "turn-1", "batch-1")
        said = (await client.post(path, json=hook(agent, {"turn": 2, "batch": "batch-2"}))).json()
        assert said == {"version": 1, "stdout": "Allow", "exit_code": 0, "delivered": None}
        assert (await there.supervisor.intent(intent_id).view()).state is IntentState.ACKNOWLEDGED


async def test_an_incarnation_of_another_pane_decides_nothing_there():
    async with world() as there, there.entitled(Listener.FLEET) as client:
        theirs = (await there.supervisor.pane(THEIRS).launch("plain")).incarnation_id
        await there.supervisor.pane(OURS).launch("plain")
        said = await client.post(f"/seats/{OURS}/hook", json=hook(theirs, {"turn": 1, "batch": "b"}))
        assert said.json()["stdout"] == "BlockGeneric"
        intent = {"intent_id": "i", "incarnation_id": theirs, "turn_id": "t", "batch_id": "b"}
        said = (await client.post(f"/seats/{OURS}/hook", json={"version": 1, "delivered": intent})).json()
        assert said["answer"] == "refused"


async def test_a_harnesss_own_http_hook_is_answered_in_its_words_and_delivers_with_the_answer():
    async with world(reconciler=Workspace()) as there, there.entitled(Listener.FLEET) as client:
        pane = there.supervisor.pane(OURS)
        agent = (await pane.launch("plain")).incarnation_id
        intent_id = (await pane.detect(moved("a", "b"))).intent_id
        path = f"/seats/{OURS}/hook?harness=plain&incarnation={agent}&wait=10"
        said = await client.post(path, json={"turn": 1, "batch": "batch-1"})
        assert (said.status_code, said.content) == (200, payload_of("b"))
        assert (await there.supervisor.intent(intent_id).view()).state is IntentState.DELIVERED
        assert there.adapter.waits == [10.0]
        await pane.post_tool_batch(agent, "turn-1", "batch-1")
        assert (await client.post(path, json={"turn": 2, "batch": "batch-2"})).content == b"Allow"
        assert (await there.supervisor.intent(intent_id).view()).state is IntentState.ACKNOWLEDGED


@pytest.mark.parametrize(
    "event", [{"hook_event_name": "PreToolUse"}, {"hook_event_name": "Stop"}, {"turn": 1, "batch": ""}]
)
async def test_a_harnesss_own_http_hook_that_cannot_be_decided_keeps_the_call_from_running(event):
    async with world() as there, there.entitled(Listener.FLEET) as client:
        said = await client.post(f"/seats/{OURS}/hook?harness=plain&incarnation=i", json=event)
        assert said.status_code == 200
        denied = json.loads(said.content).get("hookSpecificOutput", {}).get("permissionDecision") == "deny"
        assert denied == ("PreToolUse" in event.values())


async def test_a_hook_of_a_harness_that_nobody_adapts_is_a_persons_matter():
    async with world() as there, there.entitled(Listener.FLEET) as client:
        event = {"hook_event_name": "PreToolUse"}
        asked = {"version": 1, "incarnation_id": "i", "harness": "nosuch", "event": event, "wait_seconds": 1}
        assert (await client.post(f"/seats/{OURS}/hook", json=asked)).status_code == 404
        said = await client.post(f"/seats/{OURS}/hook?harness=nosuch&incarnation=i", json=event)
        assert (said.status_code, said.content) == (200, denial(NOT_ADMITTED))


DEEP = b'{"hook_event_name":"PreToolUse","tool_input":' + b'{"a":' * 300 + b"1" + b"}" * 301


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", DEEP),
        ("", b'{"hook_event_name":"PreToolUse","tool_input":{"a":1,"a":2}}'),
        ("", b'{"hook_event_name":"PreToolUse","tool_input":{"a":1e999}}'),
        ("", b'{"tool_input":"' + b"x" * 2_000 + b'"}'),
        ("&wait=soon", b"{}"),
        ("&harness=plain", b"{}"),
    ],
    ids=["deep", "twice", "infinite", "long", "wait", "harness twice"],
)
async def test_nothing_in_a_call_lets_it_run_past_a_harnesss_own_hook(query, body):
    async with world(limits=Limits(body_bytes_max=2_000)) as there, there.entitled(Listener.FLEET) as client:
        path = f"/seats/{OURS}/hook?harness=plain&incarnation=i{query}"
        said = await client.post(path, content=body)
        assert (said.status_code, said.content) == (200, denial(UNREADABLE))
        theirs = await client.post(path.replace(OURS, THEIRS), content=body)
        assert theirs.status_code == 403


async def test_a_pane_whose_requests_are_used_up_has_its_calls_denied_by_a_harnesss_own_hook():
    limits = Limits(pane_connections_max=2)
    async with world(limits=limits) as there, there.entitled(Listener.FLEET) as client, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(client.get, f"/seats/{OURS}/events?wait=30")
        while len(there.bridge.stopping._under_way) < 2:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked(0.02)
        said = await client.post(f"/seats/{OURS}/hook?harness=plain&incarnation=i", json={})
        assert (said.status_code, said.content) == (200, denial(NO_ANSWER))
        there.bridge.stopping.asked.set()


WELL_FORMED = {"intent_id": "i", "incarnation_id": "i", "turn_id": "t", "batch_id": "b"}


@pytest.mark.parametrize(
    "change",
    [
        {"event": None},
        {"event": "text"},
        {"event": [1]},
        {"event": {"no": "turn"}},
        {"event": {"turn": "one", "batch": "b"}},
        {"event": {"turn": 1, "batch": EVIL}},
        {"event": {"turn": 1, "batch": "x" * 257}},
        {"harness": EVIL},
        {"harness": 5},
        {"incarnation_id": None},
        {"incarnation_id": EVIL},
        {"incarnation_id": ["i"]},
        {"wait_seconds": -1},
        {"wait_seconds": "5"},
        {"wait_seconds": True},
        {"wait_seconds": 1e300},
        {"delivered": WELL_FORMED},
        {"event": None, "delivered": "yes"},
        {"event": None, "delivered": {**WELL_FORMED, "turn_id": EVIL}},
        {"event": None, "delivered": {name: WELL_FORMED[name] for name in ("intent_id", "turn_id", "batch_id")}},
    ],
)
async def test_a_malformed_hook_is_400_and_nothing_of_it_is_repeated(change, caplog):
    caplog.set_level(logging.DEBUG, "fencepost.bridge")
    async with world() as there, there.entitled(Listener.LOCAL) as client:
        body = json.dumps({**hook("i", {"turn": 1, "batch": "b"}), **change})
        answer = await client.post(f"/seats/{OURS}/hook", content=body.encode())
        assert (answer.status_code, set(answer.json())) == (400, {"version", "error"})
        assert answer.text.isascii()
    assert all(record.getMessage().isascii() and record.getMessage().isprintable() for record in caplog.records)


async def test_a_hooks_wait_is_capped():
    async with world(limits=Limits(hook_seconds_max=2)) as there, there.entitled(Listener.LOCAL) as client:
        for wait in (0.5, 1, 999_999):
            await client.post(f"/seats/{OURS}/hook", json=hook("i", {"turn": 1, "batch": "b"}, wait_seconds=wait))
        assert there.adapter.waits == [0.5, 1.0, 2]


# -- messages ----------------------------------------------------------------------------------------------------------


async def bound(there) -> str:
    await there.supervisor.pane(OURS).launch("plain", "session-1")
    return (await there.supervisor.pane(OURS).binding()).binding


def post(binding, text="hello", delivery_id=UUID, **more):
    return {"version": 1, "delivery_id": delivery_id, "binding": binding, "text": text} | more


@pytest.mark.parametrize("listener", Listener)
async def test_9_3_1_and_9_3_3_a_message_is_stored_and_its_receipt_read_again(listener):
    async with world() as there, there.entitled(listener) as client:
        binding = await bound(there)
        assert (await client.get(f"/seats/{OURS}/messages")).json() == {"version": 1, "binding": binding}
        stored = {
            "version": 1,
            "received": True,
            "stage": "stored",
            "delivery_id": UUID,
            "binding": binding,
            "fingerprint": fingerprint_of("hello"),
        }
        path = f"/seats/{OURS}/messages"
        for _ in range(2):
            answer = await client.post(path, json=post(binding))
            assert (answer.status_code, answer.json()) == (200, stored)
        query = f"binding={binding}&fingerprint={fingerprint_of('hello')}"
        assert (await client.get(f"{path}/{UUID}?{query}")).json() == stored
        assert [turn.text for turn in there.dispatched.turns] == ["hello"]


async def test_9_3_4_a_receipt_repeats_what_was_asked_and_never_another_original():
    async with world() as there, there.entitled(Listener.FLEET) as client:
        binding, path = await bound(there), f"/seats/{OURS}/messages"
        await client.post(path, json=post(binding))
        other = (await client.post(path, json=post(binding, "other text"))).json()
        assert (other["stage"], other["received"]) == ("uncertain", False)
        assert (other["delivery_id"], other["fingerprint"]) == (UUID, fingerprint_of("other text"))
        asked = (await client.get(f"{path}/{OTHER}?binding={'c' * 64}&fingerprint={'d' * 64}")).json()
        assert [asked[name] for name in ("stage", "delivery_id", "binding", "fingerprint")] == [
            "uncertain",
            OTHER,
            "c" * 64,
            "d" * 64,
        ]


async def test_9_3_5_an_exact_refusal_travels_with_success():
    async with world() as there, there.entitled(Listener.FLEET) as client:
        path = f"/seats/{OURS}/messages"
        no_session = await client.post(path, json=post("b" * 64))
        assert (no_session.status_code, no_session.json()["stage"]) == (200, "unavailable")
        binding = await bound(there)
        for text in (" \r\n\t", "x" * 1_048_577):
            answer = await client.post(path, json=post(binding, text))
            assert (answer.status_code, answer.json()["stage"]) == (200, "rejected")
            assert answer.json()["fingerprint"] == fingerprint_of(text)
        answer = await client.post(path, json=post(binding, "\x00" * 1_048_576))
        assert (answer.status_code, answer.json()["stage"]) == (200, "stored")


MALFORMED = [
    {"delivery_id": None},
    {"binding": None},
    {"delivery_id": UUID.upper().replace("0", "A")},
    {"delivery_id": UUID + "\n"},
    {"delivery_id": 7},
    {"binding": "B" * 64},
    {"binding": "b" * 63},
    {"text": None},
    {"text": {}},
]


@pytest.mark.parametrize("change", MALFORMED)
async def test_6_1_3_a_malformed_message_is_400_with_a_receipt(change):
    async with world() as there, there.entitled(Listener.FLEET) as client:
        answer = await client.post(f"/seats/{OURS}/messages", json={**post(await bound(there)), **change})
        assert (answer.status_code, answer.json()["received"], answer.json()["stage"]) == (400, False, "rejected")
        assert {"delivery_id", "binding", "fingerprint", "detail"} <= answer.json().keys()
        assert there.dispatched.turns == []


@pytest.mark.parametrize("session", [False, True], ids=["no session", "a session"])
async def test_8_old_client_post_is_rejected_before_any_look_at_the_pane(session):
    async with world() as there, there.entitled(Listener.FLEET) as client:
        binding = await bound(there) if session else "b" * 64
        for lacking in ({}, {"version": 1}, {"version": 1, "delivery_id": UUID}, {"version": 1, "binding": binding}):
            answer = await client.post(f"/seats/{OURS}/messages", json={"text": "hello", **lacking})
            assert (answer.status_code, answer.json()["received"], answer.json()["stage"]) == (400, False, "rejected")
            assert answer.json()["detail"].startswith("delivery id required")
        assert there.dispatched.turns == []


@pytest.mark.parametrize("listener", [Listener.FLEET, Listener.LOCAL])
async def test_8_old_client_reads_are_still_served(listener):
    """It knows of no binding to give and of no stage; polls, the binding and a receipt need neither."""
    async with world() as there, there.entitled(listener) as client, trio.open_nursery() as nursery:
        binding = await bound(there)
        assert (await client.post(f"/seats/{OURS}/messages", json={"text": "hello"})).status_code == 400
        nursery.start_soon(there.supervisor.pane(OURS).deliver, Outbound("hello", "fleet_seat", OTHER))
        (event,) = (await client.get(f"/seats/{OURS}/events?wait=10")).json()["events"]
        assert (event["event_id"], event["text"]) == (OTHER, "hello")
        assert (await client.get(f"/seats/{OURS}/messages")).json()["binding"] == binding
        query = f"binding={binding}&fingerprint={fingerprint_of('hello')}"
        status = await client.get(f"/seats/{OURS}/messages/{UUID}?{query}")
        assert (status.status_code, status.json()["stage"]) == (200, "uncertain")
        assert (await client.post(f"/seats/{OURS}/events/{OTHER}/ack")).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b'{"text":"a","text":"b"}'], ids=repr)
@pytest.mark.parametrize("listener", Listener)
async def test_6_1_2_a_body_that_does_not_parse_is_rejected(listener, body):
    async with world() as there, there.entitled(listener) as client:
        await bound(there)
        answer = await client.post(f"/seats/{OURS}/messages", content=body)
        assert (answer.status_code, answer.json()["received"], answer.json()["stage"]) == (400, False, "rejected")
        assert there.dispatched.turns == []


# -- faults ------------------------------------------------------------------------------------------------------------

FAULTS = [
    (StoreFault("disk full"), 503, True),
    (CorruptRecord("intents", "damaged"), 503, False),
    (MailboxClosed("closed"), 503, False),
    (MailboxFull("full"), 503, False),
    (ActorCrashed("pane:pane-1", 1), 503, False),
    (ActorQuarantined("pane:pane-1"), 503, False),
    (InvalidTransition("no row"), 409, False),
    (ValueError("no such turn"), 400, False),
    (RuntimeError(EVIL), 500, False),
]


@pytest.mark.parametrize(("error", "status", "ends"), FAULTS, ids=lambda value: type(value).__name__)
async def test_each_fault_has_its_answer_and_only_a_failed_store_ends_the_bridge(error, status, ends, caplog):
    caplog.set_level(logging.DEBUG, "fencepost.bridge")

    async def fail(*_):
        raise error

    async with world() as there, there.entitled(Listener.LOCAL) as client:
        there.adapter.on_hook = fail
        answer = await client.post(f"/seats/{OURS}/hook", json=hook("i", {}))
        assert (answer.status_code, str(error) in answer.text) == (status, False)
        assert there.bridge.stopping.asked.is_set() == ends
    assert all(record.getMessage().isascii() and record.getMessage().isprintable() for record in caplog.records)


@pytest.mark.parametrize(
    "error", [error for error, status, _ in FAULTS if status == 503], ids=lambda e: type(e).__name__
)
async def test_6_1_8_a_message_that_meets_a_fault_is_uncertain(error, monkeypatch):
    async def fail(*_):
        raise error

    async with world() as there, there.entitled(Listener.FLEET) as client:
        monkeypatch.setattr("fencepost.supervisor.pane.Pane.accept", fail)
        monkeypatch.setattr("fencepost.supervisor.pane.Pane.receipt", fail)
        binding, print_ = "b" * 64, fingerprint_of("hello")
        path = f"/seats/{OURS}/messages"
        for answer in (
            await client.post(path, json=post(binding)),
            await client.get(f"{path}/{UUID}?binding={binding}&fingerprint={print_}"),
        ):
            told = answer.json()
            assert (answer.status_code, told["stage"], told["received"]) == (200, "uncertain", False)
            assert (told["delivery_id"], told["binding"], told["fingerprint"]) == (UUID, binding, print_)


async def test_an_adapter_that_prints_no_text_is_our_fault_and_changes_no_payload():
    async def garbage(*_):
        from fencepost.supervisor.bridge.adapters import HookAnswer

        return HookAnswer(b"\xff\xfe")

    async with world() as there, there.entitled(Listener.LOCAL) as client:
        there.adapter.on_hook = garbage
        assert (await client.post(f"/seats/{OURS}/hook", json=hook("i", {}))).status_code == 500


# -- bounds ------------------------------------------------------------------------------------------------------------


async def test_a_body_is_bounded_however_it_is_announced():
    async with world(limits=Limits(body_bytes_max=1_000)) as there, there.entitled(Listener.LOCAL) as client:

        async def parts():
            for _ in range(11):
                yield b"x" * 100

        path = f"/seats/{OURS}/hook"
        assert (await client.post(path, content=b"x" * 1_001)).status_code == 413
        assert (await client.post(path, content=parts())).status_code == 413
        assert (await client.post(path, content=b"", headers={"content-length": "9" * 30})).status_code == 413
        assert (await client.post(path, content=b"", headers={"content-length": "-1"})).status_code == 400
        assert (await client.post(path, content=b"x" * 1_000)).status_code == 400  # it is read, and is no JSON


async def test_all_bodies_of_a_pane_are_bounded_and_cost_no_other():
    limits = Limits(pane_bytes_max=1_000)
    async with world(limits=limits) as there, there.entitled(Listener.FLEET) as client:
        gate, begun = trio.Event(), trio.Event()

        async def held():
            yield b"x" * 900
            begun.set()
            await gate.wait()

        path, theirs = f"/seats/{OURS}/hook", {"authorization": f"Bearer {there.links[THEIRS]}"}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.post, path, content=held()))
            await begun.wait()
            assert (await client.post(path, content=b"x" * 101)).status_code == 429
            assert (await client.post(path, content=b"x" * 100)).status_code == 400
            answer = await client.post(f"/seats/{THEIRS}/hook", content=b"x" * 1_000, headers=theirs)
            assert answer.status_code == 400
            gate.set()
        assert (await client.post(path, content=b"x" * 1_000)).status_code == 400


async def test_one_panes_long_bodies_are_parsed_one_by_one_and_hold_up_no_other(monkeypatch):
    parse, begun, released, parsing = wire.parse, trio.Event(), threading.Event(), []
    in_runtime = trio.lowlevel.current_trio_token()

    def slow(body):
        if not body.startswith(b"slow"):
            return parse(body)
        parsing.append(len(body))
        in_runtime.run_sync_soon(begun.set)
        released.wait(60)
        return parse(body)

    monkeypatch.setattr(wire, "parse", slow)
    async with world() as there, there.entitled(Listener.FLEET) as client, trio.open_nursery() as nursery:
        for _ in range(60):  # more than trio has threads for
            nursery.start_soon(partial(client.post, f"/seats/{OURS}/hook", content=b"slow" * 20_000, timeout=None))
        await begun.wait()
        try:
            with trio.fail_after(20):
                theirs = {"authorization": f"Bearer {there.links[THEIRS]}"}
                answer = await client.post(f"/seats/{THEIRS}/hook", content=b"x" * 70_000, headers=theirs)
            assert (answer.status_code, len(parsing)) == (400, 1)
        finally:
            released.set()


async def test_a_slow_body_times_out(autojump_clock):
    async with world(limits=Limits(body_seconds=3)) as there, there.entitled(Listener.LOCAL) as client:

        async def drip():
            while True:
                await trio.sleep(1)
                yield b" "

        started = trio.current_time()
        answer = await client.post(f"/seats/{OURS}/hook", content=drip(), timeout=None)
        assert (answer.status_code, trio.current_time() - started) == (408, 3)


async def test_one_panes_requests_are_bounded_and_cost_no_other():
    limits = Limits(pane_connections_max=2)
    async with world(limits=limits) as there, there.entitled(Listener.FLEET) as us:
        app = us  # both panes ask the same listener
        headers = {"authorization": f"Bearer {there.links[THEIRS]}"}
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(us.get, f"/seats/{OURS}/events?wait=30")
            while len(there.bridge.stopping._under_way) < 2:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert (await us.get(f"/seats/{OURS}/messages")).status_code == 429
            assert (await app.get(f"/seats/{THEIRS}/messages", headers=headers)).status_code == 200
            there.bridge.stopping.asked.set()
        assert (await us.get(f"/seats/{OURS}/messages")).status_code == 200


# -- tools -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", [Listener.FLEET, Listener.LOCAL])
async def test_the_tool_endpoint_is_asked_for_the_proven_pane(listener):
    async with world() as there, there.entitled(listener) as client:
        answer = await client.post("/tools", json={"version": 1, "ask": "x", "pane": THEIRS})
        assert answer.json() == {"version": 1, "pane": OURS, "asked": "x"}


@pytest.mark.parametrize("name", ["delivery_id", "binding", "text"])
async def test_half_a_surrogate_pair_is_answered_like_any_text(name):
    async with world() as there, there.entitled(Listener.FLEET) as client:
        body = json.dumps({**post(await bound(there)), name: "a\ud800"}).encode()
        answer = await client.post(f"/seats/{OURS}/messages", content=body)
        assert (answer.status_code, answer.json()["stage"]) == (
            (200, "stored") if name == "text" else (400, "rejected")
        )
