"""The intent's table, written out a second time: which event leads from where to where, and what it writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from actors.worlds import BASE, EVENT_TYPES, LATER, NOW, PAYLOAD, RESULT, SHAPES, changed, row
from click.testing import CliRunner

from fencepost.actors.intent_events import (
    AcceptHandshake,
    Acknowledge,
    AcknowledgeRecovered,
    BeginUnattended,
    BindRestart,
    BindSoft,
    Coalesce,
    CompleteBatch,
    Discard,
    DivergeTopology,
    Exhaust,
    IntentEvent,
    MarkDelivered,
    Offer,
    Plan,
    Prepare,
    Rearm,
    Rebind,
    RequireRecovery,
    Resolve,
    Supersede,
)
from fencepost.actors.intent_news import news_of
from fencepost.actors.intent_state import TABLE, Code, code_of, starts_attempt, step, transition
from fencepost.actors.intent_verdicts import VERDICTS, Relation, judge_handshake, judge_prepare
from fencepost.actors.intent_view import reach_of, view_of
from fencepost.actors.messages import Anchor, Applied, ModelTurn, Reason, Reconciled, Refused, Unchanged
from fencepost.mailbox.errors import CorruptRecord, InvalidTransition
from fencepost.mailbox.ladder import Stage, Stop
from fencepost.mailbox.records import DeliveryMode, IntentState, ProjectionRecord, TransitionKind

ROOT = Path(__file__).resolve().parents[2]

# -- the table, a second time --------------------------------------------------------------------------------------

ALLOWED: dict[tuple[str, str], set[str]] = {
    ("D", "Coalesce"): {"D"},
    ("D", "Supersede"): {"S"},
    ("D", "DivergeTopology"): {"TD"},
    ("D", "BindSoft"): {"C/o"},
    ("D", "BeginUnattended"): {"C/x"},
    ("C/o", "Plan"): {"C/o"},
    ("C/c", "Plan"): {"C/c"},
    ("C/x", "Plan"): {"C/x"},
    ("C/o", "Prepare"): {"M/o", "M/n"},
    ("C/c", "Prepare"): {"M/c", "M/n"},
    ("C/x", "Prepare"): {"M/n"},
    ("C/o", "RequireRecovery"): {"RR"},
    ("C/c", "RequireRecovery"): {"RR"},
    ("C/x", "RequireRecovery"): {"RR"},
    ("C/o", "DivergeTopology"): {"TD"},
    ("C/c", "DivergeTopology"): {"TD"},
    ("C/x", "DivergeTopology"): {"TD"},
    ("RR", "Resolve"): {"C/o", "C/c", "C/x", "D"},
    ("TD", "Resolve"): {"C/o", "C/c", "C/x", "D"},
    ("C/o", "CompleteBatch"): {"C/c"},
    ("M/o", "CompleteBatch"): {"M/c"},
    ("L/o", "CompleteBatch"): {"L/c"},
    ("RR", "CompleteBatch"): {"RR"},
    ("TD", "CompleteBatch"): {"TD"},
    ("M/o", "Offer"): {"M/o"},
    ("L/o", "Offer"): {"L/o"},
    ("M/c", "Rebind"): {"M/o"},
    ("M/o", "MarkDelivered"): {"L/o"},
    ("M/c", "MarkDelivered"): {"L/c"},
    ("L/c", "Acknowledge"): {"A"},
    ("L/h", "Acknowledge"): {"A"},
    ("M/c", "AcknowledgeRecovered"): {"A"},
    ("M/o", "BindRestart"): {"M/r"},
    ("M/c", "BindRestart"): {"M/r"},
    ("M/n", "BindRestart"): {"M/r"},
    ("M/r", "BindRestart"): {"M/r"},
    ("L/o", "BindRestart"): {"L/r"},
    ("L/c", "BindRestart"): {"L/r"},
    ("L/r", "BindRestart"): {"L/r"},
    ("L/h", "BindRestart"): {"L/r"},
    ("M/r", "AcceptHandshake"): {"L/h"},
    ("L/r", "AcceptHandshake"): {"L/h"},
    ("M/r", "Exhaust"): {"X"},
    ("L/r", "Exhaust"): {"X"},
    ("L/h", "Exhaust"): {"X"},
    ("X", "Rearm"): {"M/r", "L/r", "L/h"},
    ("X", "Discard"): {"A"},
}

EVENTS: dict[type, IntentEvent] = {
    type(event): event
    for event in (
        Coalesce(kind=TransitionKind.PARENT_ADVANCE, to_base="base-2", classification_op="op-c2"),
        Supersede(by_intent_id="intent-0"),
        BindSoft(incarnation_id="inc-1", turn=LATER, batch_id="batch-2"),
        BeginUnattended(),
        Plan(planned_op="op-p", starting_op="op-s"),
        Prepare(result=RESULT, live=True),
        RequireRecovery(reason="hidden edits", bundle_path="/b", bundle_fingerprint="f", details='{"a":1}'),
        DivergeTopology(reason="no target", details="text"),
        Resolve(resolution="take theirs", by="ann", attended=False),
        Offer(),
        Rebind(turn=LATER, batch_id="batch-2"),
        MarkDelivered(),
        CompleteBatch(),
        Acknowledge(),
        AcknowledgeRecovered(),
        BindRestart(incarnation_id="inc-3", startup_delivery_id="startup-3"),
        AcceptHandshake(),
        Exhaust(approval="approval-2"),
        Rearm(),
        Discard(approval="approval-1"),
    )
}

NO_SOFT: dict[str, Any] = {
    "mode": None,
    "incarnation_id": None,
    "turn_id": None,
    "turn_ordinal": None,
    "batch_id": None,
    "bound_at": None,
}
NO_COMPLETION: dict[str, Any] = {"batch_completed_at": None}
NO_OFFER: dict[str, Any] = {"payload_offered_at": None}
NO_RESTART: dict[str, Any] = {"mode": None, "incarnation_id": None, "startup_delivery_id": None}
UNEXHAUSTED: dict[str, Any] = {"exhausted_at": None, "approval": None}
PREPARE: dict[str, Any] = {
    "state": IntentState.MATERIALIZED,
    "result_op": "op-r",
    "workspace_commit": "commit-r",
    "payload": PAYLOAD,
    "anchor_change_id": "change-a",
    "anchor_commit_id": "commit-a",
    "anchor_op_id": "op-a",
    "prepared_at": NOW,
}
RECOVER: dict[str, Any] = {
    "state": IntentState.RECOVERY_REQUIRED,
    "reason": "hidden edits",
    "bundle_path": "/b",
    "bundle_fingerprint": "f",
    "recovery_details": '{"a":1}',
}
DIVERGE: dict[str, Any] = {
    "state": IntentState.TOPOLOGY_DIVERGED,
    "reason": "no target",
    "recovery_details": "text",
}
RESOLVE: dict[str, Any] = {"state": IntentState.RECONCILING, "resolution": "take theirs", "resolved_by": "ann"}
RESTARTED: dict[str, Any] = {
    "mode": DeliveryMode.RESTART_STARTUP,
    "incarnation_id": "inc-3",
    "startup_delivery_id": "startup-3",
}
TUPLE_GONE: dict[str, Any] = {"turn_id": None, "turn_ordinal": None, "batch_id": None, "bound_at": None}
REBOUND: dict[str, Any] = {"turn_id": "turn-2", "turn_ordinal": 2, "batch_id": "batch-2", "bound_at": NOW}
ACKNOWLEDGED: dict[str, Any] = {"state": IntentState.ACKNOWLEDGED, "acknowledged_at": NOW}
DISCARDED: dict[str, Any] = {
    **ACKNOWLEDGED,
    "discarded": True,
    "resolution": "discarded",
    **UNEXHAUSTED,
    **NO_RESTART,
}

# What exactly changes, for every shape a row can have: the code it leads to, and each field with its new value.
CHANGES: dict[tuple[str, type], tuple[str, dict[str, Any]]] = {
    ("D", Coalesce): (
        "D",
        {"kind": TransitionKind.PARENT_ADVANCE, "to_base": "base-2", "classification_op": "op-c2"},
    ),
    ("D", Supersede): ("S", {"state": IntentState.SUPERSEDED, "reason": "covered by intent intent-0"}),
    ("D", DivergeTopology): ("TD", DIVERGE),
    ("D", BindSoft): (
        "C/o",
        {
            "state": IntentState.RECONCILING,
            "mode": DeliveryMode.SOFT_BATCH,
            "incarnation_id": "inc-1",
            "turn_id": "turn-2",
            "turn_ordinal": 2,
            "batch_id": "batch-2",
            "bound_at": NOW,
        },
    ),
    ("D", BeginUnattended): ("C/x", {"state": IntentState.RECONCILING}),
    **{(c, Plan): (c, {"planned_op": "op-p", "starting_op": "op-s"}) for c in ("C/o", "C/c", "C/x")},
    ("C/o", Prepare): ("M/o", PREPARE),
    ("C/c", Prepare): ("M/c", PREPARE),
    ("C/x", Prepare): ("M/n", PREPARE),
    **{(c, RequireRecovery): ("RR", RECOVER) for c in ("C/o", "C/c", "C/x")},
    **{(c, DivergeTopology): ("TD", DIVERGE) for c in ("C/o", "C/c", "C/x")},
    ("RR", Resolve): ("C/x", RESOLVE),
    ("RR, batch open", Resolve): ("C/o", RESOLVE),
    ("RR, batch complete", Resolve): ("C/c", RESOLVE),
    ("TD", Resolve): ("C/x", RESOLVE),
    ("TD, batch open", Resolve): ("C/o", RESOLVE),
    ("TD, batch complete", Resolve): ("C/c", RESOLVE),
    ("C/o", CompleteBatch): ("C/c", {"batch_completed_at": NOW}),
    ("M/o", CompleteBatch): ("M/c", {"batch_completed_at": NOW}),
    ("M/o offered", CompleteBatch): ("M/c", {"batch_completed_at": NOW}),
    ("L/o", CompleteBatch): ("L/c", {"batch_completed_at": NOW, "consumed_at": NOW}),
    ("L/o offered", CompleteBatch): ("L/c", {"batch_completed_at": NOW, "consumed_at": NOW}),
    ("RR, batch open", CompleteBatch): ("RR", {"batch_completed_at": NOW}),
    ("RR, batch complete", CompleteBatch): ("RR", {}),
    ("TD, batch open", CompleteBatch): ("TD", {"batch_completed_at": NOW}),
    ("TD, batch complete", CompleteBatch): ("TD", {}),
    ("M/o", Offer): ("M/o", {"payload_offered_at": NOW}),
    ("M/o offered", Offer): ("M/o", {}),
    ("L/o", Offer): ("L/o", {"payload_offered_at": NOW}),
    ("L/o offered", Offer): ("L/o", {}),
    ("M/c", Rebind): (
        "M/o",
        {**REBOUND, "batch_completed_at": None, "payload_offered_at": NOW, "soft_redeliveries": 1},
    ),
    ("M/c offered", Rebind): (
        "M/o",
        {**REBOUND, "batch_completed_at": None, "payload_offered_at": NOW, "soft_redeliveries": 1},
    ),
    ("M/o", MarkDelivered): ("L/o", {"state": IntentState.DELIVERED, "delivered_at": NOW}),
    ("M/o offered", MarkDelivered): ("L/o", {"state": IntentState.DELIVERED, "delivered_at": NOW}),
    ("M/c", MarkDelivered): ("L/c", {"state": IntentState.DELIVERED, "delivered_at": NOW, "consumed_at": NOW}),
    ("M/c offered", MarkDelivered): (
        "L/c",
        {"state": IntentState.DELIVERED, "delivered_at": NOW, "consumed_at": NOW},
    ),
    ("L/c", Acknowledge): ("A", {**ACKNOWLEDGED, **NO_SOFT, **NO_COMPLETION, **NO_OFFER}),
    ("L/h", Acknowledge): ("A", {**ACKNOWLEDGED, **NO_RESTART, "handshake_at": None}),
    ("M/c", AcknowledgeRecovered): (
        "A",
        {**ACKNOWLEDGED, "delivered_at": 400, "consumed_at": 400, **NO_SOFT, **NO_COMPLETION},
    ),
    ("M/c offered", AcknowledgeRecovered): (
        "A",
        {**ACKNOWLEDGED, "delivered_at": 400, "consumed_at": 400, **NO_SOFT, **NO_COMPLETION, **NO_OFFER},
    ),
    ("M/o", BindRestart): ("M/r", {**RESTARTED, **TUPLE_GONE}),
    ("M/o offered", BindRestart): ("M/r", {**RESTARTED, **TUPLE_GONE, **NO_OFFER}),
    ("M/c", BindRestart): ("M/r", {**RESTARTED, **TUPLE_GONE, **NO_COMPLETION}),
    ("M/c offered", BindRestart): ("M/r", {**RESTARTED, **TUPLE_GONE, **NO_COMPLETION, **NO_OFFER}),
    ("M/n", BindRestart): ("M/r", RESTARTED),
    ("M/r", BindRestart): ("M/r", {"incarnation_id": "inc-3", "startup_delivery_id": "startup-3"}),
    ("L/o", BindRestart): ("L/r", {**RESTARTED, **TUPLE_GONE}),
    ("L/o offered", BindRestart): ("L/r", {**RESTARTED, **TUPLE_GONE, **NO_OFFER}),
    ("L/c", BindRestart): ("L/r", {**RESTARTED, **TUPLE_GONE, **NO_COMPLETION, **NO_OFFER}),
    ("L/r", BindRestart): ("L/r", {"incarnation_id": "inc-3", "startup_delivery_id": "startup-3"}),
    ("L/h", BindRestart): (
        "L/r",
        {"incarnation_id": "inc-3", "startup_delivery_id": "startup-3", "handshake_at": None},
    ),
    ("M/r", AcceptHandshake): (
        "L/h",
        {"state": IntentState.DELIVERED, "delivered_at": NOW, "consumed_at": NOW, "handshake_at": NOW},
    ),
    ("L/r", AcceptHandshake): ("L/h", {"consumed_at": NOW, "handshake_at": NOW}),
    **{(c, Exhaust): ("X", {"exhausted_at": NOW, "approval": "approval-2"}) for c in ("M/r", "L/r", "L/h")},
    **{(f"X of {c}", Rearm): (c, {**UNEXHAUSTED, "epoch": 1}) for c in ("M/r", "L/r", "L/h")},
    ("X of M/r", Discard): ("A", DISCARDED),
    ("X of L/r", Discard): ("A", DISCARDED),
    ("X of L/h", Discard): ("A", {**DISCARDED, "handshake_at": None}),
}

PAIRS = [(shape, event) for shape in SHAPES for event in EVENT_TYPES]
IMPOSSIBLE = [(shape, event) for shape, event in PAIRS if (str(SHAPES[shape][0]), event.__name__) not in ALLOWED]
UNBOUND_COMPLETION = [("RR", CompleteBatch), ("TD", CompleteBatch)]
"""The code allows it, these shapes of it have no batch that could complete."""


def named(pair: object) -> str | None:
    return pair.__name__ if isinstance(pair, type) else None


def test_the_written_out_tables_cover_every_code_and_every_event():
    assert {code for code, _ in SHAPES.values()} == set(Code)
    assert set(EVENTS) == set(EVENT_TYPES)
    assert len(EVENT_TYPES) == 20
    written = {(str(SHAPES[shape][0]), event.__name__) for shape, event in CHANGES}
    assert written == set(ALLOWED)
    assert set(PAIRS) == set(IMPOSSIBLE) | set(CHANGES) | set(UNBOUND_COMPLETION)


def test_the_code_has_exactly_the_transitions_of_the_protocol():
    assert {(str(code), event.__name__): {*map(str, after)} for (code, event), after in TABLE.items()} == ALLOWED


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_code_of_its_shape(shape):
    assert code_of(row(shape)) is SHAPES[shape][0]


@pytest.mark.parametrize(
    ("shape", "code"),
    [
        ("C/o", Code.C_UNATTENDED),
        ("C/c", Code.C_UNATTENDED),
        ("M/o", Code.M_OPEN),
        ("L/c", Code.L_COMPLETE),
        ("D", Code.D),
    ],
)
def test_only_a_reconciling_row_shows_that_its_process_is_gone(shape, code):
    assert code_of(row(shape), live=False) is code


@pytest.mark.parametrize(("shape", "event"), IMPOSSIBLE, ids=named)
def test_what_is_not_in_the_table_is_refused_and_writes_nothing(shape, event):
    before = row(shape)
    with pytest.raises(InvalidTransition) as refused:
        step(before, EVENTS[event], NOW)
    assert (refused.value.state, refused.value.event) == (before.state, event.__name__)
    assert refused.value.address == "intent:intent-1"
    assert before == row(shape)


@pytest.mark.parametrize(("shape", "event"), UNBOUND_COMPLETION, ids=named)
def test_a_conflicted_row_without_a_batch_cannot_complete_one(shape, event):
    with pytest.raises((InvalidTransition, CorruptRecord)):
        transition(row(shape), EVENTS[event], NOW)


@pytest.mark.parametrize(("shape", "event"), CHANGES, ids=named)
def test_an_event_writes_exactly_its_fields_and_one_revision(shape, event):
    before = row(shape)
    code, expected = CHANGES[shape, event]
    after = transition(before, EVENTS[event], NOW)
    differing = changed(before, after)
    if event is Prepare:
        assert len(str(differing.pop("payload_sha256"))) == 64
    assert differing == expected
    assert after.revision == before.revision + 1
    assert code_of(after) == code
    assert code_of(after) in TABLE[SHAPES[shape][0], event]
    assert before == row(shape)


@pytest.mark.parametrize("event", EVENT_TYPES, ids=named)
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_moves_a_terminal_row(shape, event):
    if SHAPES[shape][0] in {Code.ACKNOWLEDGED, Code.SUPERSEDED}:
        with pytest.raises(InvalidTransition):
            transition(row(shape), EVENTS[event], NOW)


# -- single rows, where one column is the point ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "gone"),
    [("C/o", [*NO_SOFT]), ("C/c", [*NO_SOFT, "batch_completed_at"]), ("C/x", [])],
)
def test_preparing_for_nobody_clears_the_leftover_tuple(shape, gone):
    before = row(shape)
    after = transition(before, Prepare(result=RESULT, live=False), NOW)
    differing = changed(before, after)
    del differing["payload_sha256"]
    assert differing == {**PREPARE, **dict.fromkeys(gone)}
    assert code_of(after) is Code.M_UNATTENDED


def test_the_saved_hash_is_that_of_the_saved_bytes():
    after = transition(row("C/o"), Prepare(result=Reconciled("o", "c", b"abc", Anchor("a", "b", "c")), live=True), NOW)
    assert after.payload == b"abc"
    assert after.payload_sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_an_empty_payload_is_a_payload():
    after = transition(row("C/o"), Prepare(result=Reconciled("o", "c", b"", Anchor("a", "b", "c")), live=True), NOW)
    assert (after.state, after.payload) == (IntentState.MATERIALIZED, b"")


@pytest.mark.parametrize("state", ["RR", "TD"])
def test_a_head_that_was_never_bound_waits_for_the_next_boundary_of_a_living_process(state):
    attended = Resolve(resolution="r", by="b", attended=True)
    assert code_of(transition(row(state), attended, NOW)) is Code.D
    assert code_of(transition(row(f"{state}, batch open"), attended, NOW)) is Code.C_OPEN
    assert code_of(transition(row(f"{state}, batch complete"), attended, NOW)) is Code.C_COMPLETE


@pytest.mark.parametrize(
    ("shape", "event", "field", "first"),
    [
        ("M/o offered", Offer, "payload_offered_at", 350),
        ("L/r", AcceptHandshake, "delivered_at", 380),
        ("RR, batch complete", CompleteBatch, "batch_completed_at", 400),
    ],
)
def test_the_first_time_keeps(shape, event, field, first):
    assert getattr(transition(row(shape), EVENTS[event], NOW), field) == first


def test_a_stage_once_reached_survives_a_new_attempt():
    again = transition(row("L/h"), EVENTS[BindRestart], NOW)
    assert (again.delivered_at, again.consumed_at) == (380, 700)
    assert transition(again, AcceptHandshake(), NOW + 1).consumed_at == 700
    assert reach_of(again).stage is Stage.CONSUMED


@pytest.mark.parametrize(
    ("shape", "event", "delivered"),
    [("L/c", Acknowledge, 380), ("M/c offered", AcknowledgeRecovered, 400), ("L/h", Acknowledge, 380)],
)
def test_a_clock_set_back_does_not_acknowledge_before_the_delivery(shape, event, delivered):
    after = transition(row(shape), EVENTS[event], 1)
    assert (after.delivered_at, after.acknowledged_at) == (delivered, delivered)


def test_a_recovered_delivery_happened_when_the_batch_completed():
    after = transition(row("M/c offered"), AcknowledgeRecovered(), NOW)
    assert (after.delivered_at, after.acknowledged_at) == (400, NOW)


def test_a_discard_claims_no_delivery():
    after = transition(row("X of M/r"), EVENTS[Discard], NOW)
    assert (after.delivered_at, after.discarded) == (None, True)
    assert reach_of(after).stop is Stop.UNCERTAIN


def test_rearming_counts_redeliveries_afresh():
    after = transition(row("X of M/r", soft_redeliveries=1, epoch=4), Rearm(), NOW)
    assert (after.soft_redeliveries, after.epoch) == (0, 5)


# -- what a transition writes besides its row ------------------------------------------------------------------------

NEWS = {
    Coalesce: "intent.coalesced",
    Supersede: "intent.superseded",
    BindSoft: "intent.reconciling",
    BeginUnattended: "intent.reconciling",
    Plan: None,
    Prepare: "intent.materialized",
    RequireRecovery: "intent.recovery_required",
    DivergeTopology: "intent.topology_diverged",
    Resolve: "intent.reconciling",
    Offer: None,
    Rebind: None,
    MarkDelivered: "intent.delivered",
    CompleteBatch: "intent.batch_completed",
    Acknowledge: "intent.acknowledged",
    AcknowledgeRecovered: "intent.acknowledged",
    BindRestart: None,
    AcceptHandshake: "intent.delivered",
    Exhaust: "intent.exhausted",
    Rearm: "intent.rearmed",
    Discard: "intent.discarded",
}
CONTRACT_KINDS = {
    "intent.detected",
    "intent.coalesced",
    "intent.reconciling",
    "intent.materialized",
    "intent.delivered",
    "intent.batch_completed",
    "intent.acknowledged",
    "intent.recovery_required",
    "intent.topology_diverged",
    "intent.superseded",
    "intent.exhausted",
    "intent.rearmed",
    "intent.discarded",
}


@pytest.mark.parametrize(("shape", "event"), CHANGES, ids=named)
def test_followers_hear_of_it_in_the_contracts_words(shape, event):
    taken = step(row(shape), EVENTS[event], NOW)
    kinds = [news.kind for news in taken.events]
    repeated = (shape, event) == ("L/r", AcceptHandshake)  # delivered by an earlier attempt: no second delivery
    assert kinds == ([] if NEWS[event] is None or repeated else [NEWS[event]])
    assert set(kinds) <= CONTRACT_KINDS
    for news in taken.events:
        assert (news.address, news.at) == ("intent:intent-1", NOW)
        assert news.data["state"] == taken.after.state
        assert None not in news.data.values()


def test_an_intent_that_waits_again_is_news_as_a_detected_one():
    event = Resolve(resolution="r", by="b", attended=True)
    assert [news.kind for news in news_of(event, transition(row("TD"), event, NOW), NOW)] == ["intent.detected"]


def test_a_recovered_acknowledgement_says_so():
    (plain,) = step(row("L/c"), Acknowledge(), NOW).events
    (recovered,) = step(row("M/c offered"), AcknowledgeRecovered(), NOW).events
    assert "recovered" not in plain.data
    assert recovered.data["recovered"] is True


@pytest.mark.parametrize(("shape", "event"), CHANGES, ids=named)
def test_the_first_delivery_alone_owes_a_projection(shape, event):
    before = row(shape)
    owed = [record for record in step(before, EVENTS[event], NOW).puts if isinstance(record, ProjectionRecord)]
    first = event in {MarkDelivered, AcknowledgeRecovered} or (shape, event) == ("M/r", AcceptHandshake)
    assert [record.intent_id for record in owed] == (["intent-1"] if first else [])


@pytest.mark.parametrize(("shape", "event"), CHANGES, ids=named)
def test_an_attempt_begins_with_a_bind_an_unattended_start_or_a_resolution(shape, event):
    after = transition(row(shape), EVENTS[event], NOW)
    assert starts_attempt(EVENTS[event], after) is (event in {BindSoft, BeginUnattended, Resolve})


def test_no_attempt_begins_where_the_intent_waits_for_a_boundary():
    event = Resolve(resolution="r", by="b", attended=True)
    assert not starts_attempt(event, transition(row("TD"), event, NOW))


# -- judges that need no pane ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "answer"),
    [
        ({}, Unchanged),
        ({"payload": PAYLOAD + b"!"}, Refused),
        ({"result_op": "op-x"}, Refused),
        ({"workspace_commit": "commit-x"}, Refused),
    ],
)
@pytest.mark.parametrize("shape", ["M/o", "M/n", "L/c", "L/h", "A"])
def test_a_second_result_must_be_the_saved_one(shape, other, answer):
    fields = {"result_op": "op-r", "workspace_commit": "commit-r", "payload": PAYLOAD, "anchor": Anchor("a", "b", "c")}
    found = judge_prepare(row(shape), Reconciled(**{**fields, **other}))
    assert isinstance(found, answer)
    if isinstance(found, Refused):
        assert found.reason is Reason.PAYLOAD_DRIFT


@pytest.mark.parametrize(
    ("shape", "reported", "minted", "answer"),
    [
        ("M/r", "startup-2", "startup-2", Applied()),
        ("L/r", "startup-2", "startup-2", Applied()),
        ("L/h", "startup-2", "startup-2", Unchanged()),
        ("M/r", "startup-9", "startup-2", Reason.WRONG_STARTUP_ID),
        ("L/h", "startup-9", "startup-2", Reason.WRONG_STARTUP_ID),
        ("A", "startup-2", "startup-2", Reason.CONSUMED_STARTUP_ID),
        ("A", "startup-9", "startup-2", Reason.WRONG_STARTUP_ID),
    ],
)
def test_a_handshake_names_the_id_minted_for_this_process_once(shape, reported, minted, answer):
    found = judge_handshake(row(shape), reported, minted)
    assert (found.reason if isinstance(found, Refused) else found) == answer


# -- the row as a bridge sees it -------------------------------------------------------------------------------------

REACH = {
    "D": (None, None),
    "C/o": (None, None),
    "C/c": (None, None),
    "C/x": (None, None),
    "M/o": (Stage.STORED, None),
    "M/o offered": (Stage.STORED, None),
    "M/c": (Stage.STORED, None),
    "M/c offered": (Stage.STORED, None),
    "M/n": (Stage.STORED, None),
    "M/r": (Stage.STORED, None),
    "L/o": (Stage.DELIVERED, None),
    "L/o offered": (Stage.DELIVERED, None),
    "L/c": (Stage.CONSUMED, None),
    "L/r": (Stage.DELIVERED, None),
    "L/h": (Stage.CONSUMED, None),
    "X of M/r": (None, Stop.UNCERTAIN),
    "X of L/r": (None, Stop.UNCERTAIN),
    "X of L/h": (None, Stop.UNCERTAIN),
    "RR": (None, None),
    "RR, batch open": (None, None),
    "RR, batch complete": (None, None),
    "TD": (None, None),
    "TD, batch open": (None, None),
    "TD, batch complete": (None, None),
    "A": (Stage.RESPONDED, None),
    "A discarded": (None, Stop.UNCERTAIN),
    "S": (None, None),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_view_shows_the_row_and_its_place_on_the_ladder(shape):
    record = row(shape)
    view = view_of(record, ("op-1", "op-2"), 2)
    assert (view.stage, view.stop) == REACH[shape]
    assert (view.triggers, view.startup_attempts) == (("op-1", "op-2"), 2)
    assert (view.anchor is None) == (record.payload is None)
    assert (view.turn is None) == (record.batch_id is None)
    assert view.state is record.state
    assert view.approval == record.approval


def test_a_views_turn_and_anchor_are_whole():
    view = view_of(row("L/c"), (), 0)
    assert view.turn == ModelTurn("turn-1", 1)
    assert view.anchor == Anchor("change-a", "commit-a", "op-a")


# -- the tables in README --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme_tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def skeleton(tables: ModuleType, *left_out: str) -> str:
    names = [name for name in tables.TABLES if name not in left_out]
    return "# head\n" + "".join(f"<!-- table:{name} -->\nold\n<!-- /table -->\n{name} ends\n" for name in names)


def test_readme_shows_the_codes_tables(tables):
    found = CliRunner().invoke(tables.main, ["--check", str(ROOT / "README.md")])
    assert found.exit_code == 0, found.output


def test_writing_makes_a_text_current_and_leaves_the_rest_alone(tables, tmp_path):
    page = tmp_path / "README.md"
    page.write_text(skeleton(tables), encoding="utf-8")
    runner = CliRunner()
    assert runner.invoke(tables.main, ["--check", str(page)]).exit_code == 1
    assert page.read_text(encoding="utf-8") == skeleton(tables)
    assert runner.invoke(tables.main, ["--write", str(page)]).exit_code == 0
    assert runner.invoke(tables.main, ["--check", str(page)]).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert all(f"{name} ends\n" in text for name in tables.TABLES)
    page.write_text(text.replace("`M/c` → `L/c`", "`M/c` → `L/o`"), encoding="utf-8")
    assert runner.invoke(tables.main, ["--check", str(page)]).exit_code == 1


@pytest.mark.parametrize("name", ["intent-codes", "intent-transitions", "soft-proof-verdicts"])
def test_a_table_without_its_markers_is_an_error(tables, tmp_path, name):
    page = tmp_path / "README.md"
    page.write_text(skeleton(tables, name), encoding="utf-8")
    found = CliRunner().invoke(tables.main, ["--check", str(page)])
    assert found.exit_code == 1
    assert name in found.output


def test_every_code_event_and_verdict_is_shown(tables):
    codes, transitions, verdicts = (render() for render in tables.TABLES.values())
    assert all(f"| `{code}` |" in codes for code in Code)
    assert all(f"| `{event.__name__}` |" in transitions for event in EVENT_TYPES)
    assert all(str(VERDICTS[code][relation]) in verdicts for code in VERDICTS for relation in Relation)


def test_every_event_says_what_it_means(tables):
    assert all(tables.first_sentence(event) for event in EVENT_TYPES)


def test_the_rows_under_test_differ_from_what_the_events_write():
    assert NOW not in BASE.values()
