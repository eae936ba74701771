"""The runtime's events and dead letters as records: told once, from where the store ends, and nobody waits."""

from __future__ import annotations

import ast
import logging
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import frozen
from bridge.http_world import OURS, until
from bridge.telemetry_world import logged, observed
from bridges import Workspace, moved, payload_of
from hypothesis import given, strategies as st

from fencepost.supervisor import (
    Chaos,
    CorruptRecord,
    DeadLetter,
    Diverged,
    Event,
    MailboxClosed,
    Outbound,
    Reason,
    StoreFault,
    open_supervisor,
)
from fencepost.supervisor.bridge.telemetry import following
from fencepost.supervisor.bridge.telemetry.following import Follower
from fencepost.supervisor.bridge.telemetry.kinds import (
    KINDS,
    REASONS,
    dead_letter_fields,
    event_fields,
    kind_label,
    level_of,
    reason_label,
)
from fencepost.supervisor.bridge.telemetry.telemetry import Telemetry

ROOT = Path(__file__).resolve().parents[2]
EVIL = "\x1b]0;owned\x07\r\nforged"
UUID = "00000000-0000-4000-8000-000000000001"


def event_of(kind, address="pane:p", seq=1, **data):
    return Event(seq=seq, at=1, kind=kind, address=address, data=data)


# -- kinds -------------------------------------------------------------------------------------------------------------


def test_every_event_has_a_level():
    """operations.md has all kinds, and a test of its own."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text.partition("\n## Events\n")[2].partition("\n### ")[0]
    told = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)}
    assert told == set(KINDS)


def test_every_reason_of_a_dead_letter_is_known():
    """Those that are written out; the others are a `Reason`."""
    written = set()
    for path in (ROOT / "actors").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "NewDeadLetter":
                (reason,) = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
                written.add(reason.value if isinstance(reason, ast.Constant) else "")
    assert "" in written
    assert written - {""} | {reason.value for reason in Reason} == REASONS


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (event_of("intent.materialized"), logging.INFO),
        (event_of("tool_start"), logging.DEBUG),
        (event_of("intent.recovery_required"), logging.WARNING),
        (event_of("intent.topology_diverged"), logging.WARNING),
        (event_of("intent.exhausted"), logging.ERROR),
        (event_of("actor.crashed"), logging.ERROR),
        (event_of("runtime.faulted"), logging.CRITICAL),
        (event_of("delivery.reported", stage="delivered"), logging.INFO),
        (event_of("delivery.reported", stop="uncertain"), logging.WARNING),
        (event_of("of.another.make"), logging.INFO),
    ],
)
def test_what_somebody_should_look_at_is_a_warning(event, level):
    assert level_of(event) == level


def test_what_belongs_to_the_agents_is_not_told():
    private = dict.fromkeys(("arguments", "result", "text", "reply", "payload", "usage", "approval"), "secret")
    fields = event_fields(event_of("tool_end", "batch:p%2F1/op/turn%25", tool_call_id="call", **private))
    assert "secret" not in str(fields)
    ids = {name: fields[name] for name in ("pane_id", "operation_id", "turn_id", "tool_call_id")}
    assert ids == {"pane_id": "p/1", "operation_id": "op", "turn_id": "turn%", "tool_call_id": "call"}


@given(
    st.text(max_size=2_000),
    st.text(max_size=2_000),
    st.dictionaries(
        st.sampled_from(["pane_id", "reason", "state", "epoch", "x"]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=2_000) | st.lists(st.integers()),
    ),
)
def test_any_event_and_any_dead_letter_becomes_bounded_scalars(kind, address, data):
    event = Event(seq=None, at=0, kind=kind, address=address, data=data)
    letter = DeadLetter(seq=1, at=0, address=address, call=kind, incarnation_id=None, reason=kind, detail=address)
    for value in [*event_fields(event).values(), *dead_letter_fields(letter).values()]:
        assert value is None or isinstance(value, int | float | bool) or len(value) <= 300
    assert kind_label(kind) in {*KINDS, "other"}
    assert reason_label(kind) in {*REASONS, "other"}


# -- a story as its records --------------------------------------------------------------------------------------------


async def test_an_intents_story_is_told_with_its_ids():
    with logged() as told:
        async with observed(reconciler=Workspace()) as here:
            pane = here.there.supervisor.pane(OURS)
            agent = (await pane.launch("plain")).incarnation_id
            intent = (await pane.detect(moved("a", "b"))).intent_id
            answer = (await here.hook(agent, turn=1, batch="batch-1", call="call-1")).json()
            assert answer["stdout"]
            assert answer["delivered"]["intent_id"] == intent
            await here.followed()
    events = [record for record in told if record["logger"] == "fencepost.events"]
    assert [record["message"] for record in events] == [record["kind"] for record in events]
    assert [record["kind"] for record in events] == [
        "incarnation.launched",
        "intent.detected",
        "intent.reconciling",
        "intent.materialized",
    ]
    assert {record["pane_id"] for record in events} == {OURS}
    assert [record.get("intent_id") for record in events] == [None, intent, intent, intent]
    assert events[0]["incarnation_id"] == agent
    assert (events[2]["incarnation_id"], events[2]["batch_id"]) == (agent, "batch-1")
    (decision,) = [record for record in told if record["logger"] == "fencepost.hooks"]
    ids = {"pane_id": OURS, "incarnation_id": agent, "intent_id": intent, "batch_id": "batch-1", "turn_id": "turn-1"}
    assert {name: decision[name] for name in ids} == ids
    assert (decision["decision"], decision["level"], decision["tool_call_id"]) == ("block_payload", "info", "call-1")
    assert payload_of("b").decode() not in str(told)


async def test_a_refused_call_is_told_once_and_earlier_ones_are_not(tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"
    async with open_supervisor(store) as supervisor:
        await supervisor.pane(OURS).retire("nobody", "no reason")
    with logged() as told:
        async with observed(store=store, telemetry=Telemetry(dead_letter_seconds=0.005)) as here:
            assert here.telemetry._follower._letter_seq == 1
            await here.there.supervisor.pane(OURS).mark_delivered("intent-x", "ghost", "turn", "batch")
            await until(lambda: here.telemetry._follower._letter_seq == 2)
            await here.telemetry._follower.look_for_dead_letters()
    (letter,) = [record for record in told if record["logger"] == "fencepost.dead_letters"]
    shown = {name: letter[name] for name in ("seq", "level", "pane_id", "incarnation_id", "call", "reason")}
    assert shown == {
        "seq": 2,
        "level": "warning",
        "pane_id": OURS,
        "incarnation_id": "ghost",
        "call": "mark_delivered",
        "reason": "unknown_incarnation",
    }


async def test_a_message_that_was_sent_is_told_without_its_text():
    with logged() as told:
        async with observed() as here:
            pane = here.there.supervisor.pane(OURS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pane.deliver, Outbound("the text", "fleet_seat", UUID))
                (event,) = await pane.poll_events(20)
                await pane.acknowledge_event(event.event_id)
            await here.followed()
    sent = [record for record in told if record["logger"] == "fencepost.events"]
    assert [(record["kind"], record["delivery_id"], record["pane_id"]) for record in sent] == [
        ("delivery.dispatched", UUID, OURS),
        ("delivery.reported", UUID, OURS),
    ]
    assert "the text" not in str(told)


# -- following ---------------------------------------------------------------------------------------------------------


async def test_it_begins_where_the_store_ends_and_leaves_nothing_out():
    async with observed(follow=False, reconciler=Workspace()) as here:
        supervisor, told = here.there.supervisor, []
        for number in range(20):
            await supervisor.pane(f"before-{number}").launch("plain")
        stored = [event.seq async for event in supervisor.events(follow=False)]
        follower = Follower(supervisor, told.append, lambda _: None)
        async with trio.open_nursery() as nursery:
            await nursery.start(follower.run, 60)
            for number in range(20):
                await supervisor.pane(f"after-{number}").launch("plain")
            await until(lambda: len(told) == 20)
            nursery.cancel_scope.cancel()
        assert [event.seq for event in told] == list(range(stored[-1] + 1, stored[-1] + 21))
        assert {event.data["pane_id"].partition("-")[0] for event in told} == {"after"}


async def test_the_states_of_unresolved_intents_are_known_from_the_start(tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"
    async with open_supervisor(store, reconciler=Workspace()) as supervisor:
        await supervisor.pane("p").detect(moved("a", "b"))
        await supervisor.pane("q").detect(moved("a", "b", ambiguous="two heads"))
    async with observed(store=store, reconciler=Workspace(Diverged("no"))) as here:
        follower = here.telemetry._follower
        await until(lambda: follower.intents == {"detected": 1, "topology_diverged": 1})
        pane = here.there.supervisor.pane("p")
        agent = (await pane.launch("plain")).incarnation_id
        await here.hook(agent, "p", turn=1, batch="b")
        await here.followed()
        assert follower.intents == {"topology_diverged": 2}


@frozen
class Stored:
    """A supervisor with these events in its store; counts how often it is read."""

    seqs: range
    reads: list

    def events(self, after=0, follow=True):
        self.reads.append(after)
        return Above(iter([seq for seq in self.seqs if seq > after]))


@frozen
class Above:
    """An iterator that needs no closing, as the supervisor's."""

    seqs: Iterator[int]

    def __aiter__(self):
        return self

    async def __anext__(self):
        for seq in self.seqs:
            return event_of("intent.detected", seq=seq)
        raise StopAsyncIteration


@given(first=st.integers(1, 500), count=st.integers(0, 500), kept=st.integers(2, 50))
async def test_the_end_of_the_store_is_found_with_few_reads(first, count, kept):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "SEED_MAX", kept)
        stored = Stored(range(first, first + count), [])
        after = await following.near_the_end(stored)
    above = [seq for seq in stored.seqs if seq > after]
    assert len(above) <= kept
    assert len(above) >= min(count, 1)
    assert len(stored.reads) <= 3 + 2 * (count // kept + 1).bit_length() + kept.bit_length()


async def test_a_damaged_event_costs_itself_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "SEED_MAX", 4)
    path = tmp_path / "store.db"
    async with open_supervisor(f"sqlite:///{path}") as supervisor:
        for number in range(10):
            await supervisor.pane(f"before-{number}").launch("plain")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE events SET data = '{' WHERE seq IN (1, 3, 5, 9, 10)")
        connection.execute(
            "CREATE TRIGGER harm AFTER INSERT ON events WHEN NEW.address = 'pane:harmed'"
            " BEGIN UPDATE events SET data = '{' WHERE seq = NEW.seq; END"
        )
    told = []
    with logged() as records:
        async with open_supervisor(f"sqlite:///{path}") as supervisor, trio.open_nursery() as nursery:
            follower = Follower(supervisor, told.append, lambda _: None)
            await nursery.start(follower.run, 60)
            for pane_id in ("p", "harmed", "q"):
                await supervisor.pane(pane_id).launch("plain")
            await until(lambda: len(told) == 2)
            assert follower.following
            nursery.cancel_scope.cancel()
    assert [event.address for event in told] == ["pane:p", "pane:q"]
    damaged = [record["message"] for record in records if "cannot be read" in record["message"]]
    assert [message.split(",")[0] for message in damaged] == [f"event {seq} is skipped" for seq in (9, 10, 12)]


@pytest.mark.parametrize("error", [MailboxClosed("closed"), StoreFault("disk full"), CorruptRecord("events 3", "bad")])
@pytest.mark.parametrize("when", ["at the start", "later"])
async def test_a_runtime_that_ends_ends_the_follower_and_nothing_else(error, when):
    class Ending:
        async def status(self):
            if when == "at the start":
                raise error
            return type("Status", (), {"dead_letters": 0})

        async def events(self, after=0, follow=True):
            if follow:
                yield event_of("runtime.faulted", "runtime:")
                raise error

        async def dead_letters(self, after):
            return []

    told = []
    with logged() as records:
        follower = Follower(Ending(), told.append, lambda _: None)
        async with trio.open_nursery() as nursery:
            await nursery.start(follower.run, 60)
    assert [event.kind for event in told] == (["runtime.faulted"] if when == "later" else [])
    assert not follower.following
    assert len(records) == (0 if isinstance(error, MailboxClosed) else 1)


async def test_the_store_failing_is_told():
    chaos = Chaos()
    with logged() as told:
        async with observed(chaos=chaos) as here:
            chaos.kill_at("pane.launch/committed", what="runtime")
            with pytest.raises(StoreFault):
                await here.there.supervisor.pane(OURS).launch("plain")
            await until(lambda: not here.telemetry._follower.following)
    (fault,) = [record for record in told if record.get("kind") == "runtime.faulted"]
    assert (fault["level"], fault["logger"]) == ("critical", "fencepost.events")


async def test_the_runtimes_closing_ends_it_quietly():
    with logged(level=logging.INFO) as told:
        async with trio.open_nursery() as nursery, open_supervisor("memory://") as supervisor:
            telemetry = Telemetry(dead_letter_seconds=0.005)
            await nursery.start(telemetry.follow, supervisor)
    assert told == []


async def test_a_part_that_fails_costs_neither_the_others_nor_the_follower(monkeypatch):
    telemetry = Telemetry()
    monkeypatch.setattr(telemetry._metrics, "event", partial(int, "not a number"))
    with logged() as told:
        async with observed(telemetry=telemetry) as here:
            for pane in "pqr":
                await here.there.supervisor.pane(pane).launch("plain")
            await here.followed()
    assert [record["pane_id"] for record in told if record.get("kind") == "incarnation.launched"] == ["p", "q", "r"]
    (failure,) = [record for record in told if record["level"] == "error"]
    assert "incomplete" in failure["message"]


async def test_hostile_words_in_events_forge_no_line():
    with logged("text") as told:
        async with observed() as here:
            pane = here.there.supervisor.pane(OURS)
            agent = (await pane.launch("plain")).incarnation_id
            await pane.retire(agent, EVIL)
            await here.followed()
    (line,) = [line for line in told if "incarnation.retired" in line]
    assert all(one.isascii() and one.isprintable() for one in told)
    assert 'reason="\\u001b]0;owned\\u0007\\r\\nforged"' in line
