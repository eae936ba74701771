"""A record that exists is valid: each law refuses the row that breaks it, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from actors.worlds import (
    COMPLETE,
    EXHAUSTED,
    HANDSHAKE,
    OFFERED,
    PREPARED,
    RESTART,
    SHAPES,
    SOFT,
    admission,
    incarnation,
    replacement,
    retired,
    row,
)
from attrs import evolve, fields_dict
from attrs.exceptions import FrozenInstanceError

from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.records import (
    ACTIVE_STATES,
    RECORD_TYPES,
    RESOLVED_STATES,
    UNRESOLVED_STATES,
    AdmissionDecision,
    ArgumentsRecord,
    BatchRecord,
    CallRecord,
    ConversationRecord,
    DeliveryMode,
    DeliveryRecord,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    ProjectionRecord,
    Record,
    RunRecord,
    TranscriptRecord,
    TriggerRecord,
)

STATE = IntentState


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_the_protocol_can_be_stored(shape):
    assert row(shape).resolved is (shape in {"A", "A discarded", "S"})


BAD_INTENTS: list[tuple[str, dict[str, Any]]] = [
    ("D", {"revision": 0}),
    ("D", {"seq": 0}),
    # invariant 1: result, payload, anchor and time together, exactly from materialized on
    *(("M/n", {name: None}) for name in PREPARED),
    *(("A", {name: None}) for name in PREPARED),
    *(("D", {name: value}) for name, value in PREPARED.items()),
    *((shape, PREPARED) for shape in ("D", "C/o", "C/x", "RR", "TD", "S")),
    ("M/n", {"state": STATE.DETECTED}),
    # invariant 2: times of delivery and acknowledgement
    ("L/o", {"delivered_at": None}),
    ("L/r", {"delivered_at": None}),
    ("A", {"acknowledged_at": None}),
    ("A", {"delivered_at": None, "consumed_at": None}),
    ("L/c", {"acknowledged_at": 500}),
    ("D", {"acknowledged_at": 500}),
    ("M/n", {"consumed_at": 500}),
    # invariant 5: proofs are whole, and of one mode
    *(("M/o", {name: None}) for name in SOFT),
    *(("C/o", {name: None}) for name in SOFT),
    *(("M/r", {name: None}) for name in RESTART),
    ("M/n", {"turn_id": "turn-1"}),
    ("M/n", {"incarnation_id": "inc-1"}),
    ("M/n", {"startup_delivery_id": "startup-1"}),
    ("M/o", {"startup_delivery_id": "startup-1"}),
    ("M/o", {"mode": DeliveryMode.RESTART_STARTUP}),
    ("M/r", {"mode": DeliveryMode.SOFT_BATCH}),
    ("M/r", {"batch_id": "batch-1"}),
    ("M/n", COMPLETE),
    ("M/n", OFFERED),
    ("M/r", COMPLETE),
    ("L/h", OFFERED),
    ("M/o", {"handshake_at": 700}),
    ("M/r", {"handshake_at": 700}),
    ("L/o", {"handshake_at": 700}),
    ("L/o", dict.fromkeys(SOFT)),
    ("L/r", dict.fromkeys(RESTART)),
    # invariant 6: nothing bound before and after
    *((shape, SOFT) for shape in ("D", "A", "S")),
    *((shape, RESTART) for shape in ("D", "A", "S", "C/x", "RR", "TD")),
    # invariant 10
    ("A", {"delivered_at": 501}),
    # exhaustion
    ("M/r", {"exhausted_at": 900}),
    ("M/r", {"approval": "approval-1"}),
    ("X of M/r", {"approval": None}),
    ("X of M/r", {"exhausted_at": None}),
    *((shape, EXHAUSTED) for shape in ("D", "C/o", "M/o", "M/n", "L/c", "RR", "TD", "A")),
    # plans
    ("C/o", {"planned_op": "op-p"}),
    ("C/o", {"starting_op": "op-s"}),
]


@pytest.mark.parametrize(("shape", "changes"), BAD_INTENTS)
def test_an_intent_that_breaks_a_law_cannot_exist(shape, changes):
    with pytest.raises(CorruptRecord) as refused:
        row(shape, **changes)
    assert refused.value.where == "intents('intent-1',)"
    if "revision" not in changes:
        with pytest.raises(CorruptRecord):
            row(shape).next(**changes)


STARTUP = ("startup_intent_id", "startup_delivery_id", "startup_payload_sha256", "startup_epoch", "startup_attempt")


@pytest.mark.parametrize(
    "changes",
    [
        {"revision": 0},
        {"epoch": 0},
        *({name: None} for name in STARTUP),
        {"retired_at": 9},
        {"retire_reason": "gone"},
        {"relaunch": True},
        {"retired_at": 9, "retire_reason": "gone", "delivered_intent_id": "intent-1"},
    ],
)
def test_an_incarnation_that_breaks_a_law_cannot_exist(changes):
    with pytest.raises(CorruptRecord) as refused:
        evolve(replacement(row("M/r")), **changes)
    assert refused.value.where == "incarnations('inc-2',)"


@pytest.mark.parametrize("name", STARTUP)
def test_a_plain_incarnation_has_no_part_of_a_startup(name):
    with pytest.raises(CorruptRecord):
        incarnation(**{name: getattr(replacement(row("M/r")), name)})


def test_live_is_what_is_not_retired():
    assert incarnation().live
    assert not retired(incarnation()).live
    assert evolve(retired(incarnation()), relaunch=True).relaunch


@pytest.mark.parametrize(
    ("decision", "intent_id"), [(AdmissionDecision.PASS, "intent-1"), (AdmissionDecision.BLOCK, None)]
)
def test_a_block_names_its_intent_and_a_pass_names_none(decision, intent_id):
    with pytest.raises(CorruptRecord):
        admission(decision, intent_id=intent_id)


@pytest.mark.parametrize("changes", [{"turn_id": ""}, {"turn_ordinal": None}])
def test_an_admissions_turn_is_an_id_and_an_ordinal_or_neither(changes):
    with pytest.raises(CorruptRecord):
        evolve(admission(AdmissionDecision.PASS), **changes)
    assert admission(AdmissionDecision.PASS, turn=None).key == ("inc-1", "", "batch-1")


def test_the_next_row_has_one_revision_more_and_its_laws_checked():
    before = row("D")
    after = before.next(to_base="base-9")
    assert (after.revision, after.to_base, before.to_base) == (8, "base-9", "base-1")
    assert incarnation().next(session_id="other").revision == 2
    with pytest.raises(CorruptRecord):
        incarnation().next(retired_at=3)


def test_records_are_frozen():
    with pytest.raises(FrozenInstanceError):
        row("D").state = STATE.ACKNOWLEDGED  # type: ignore[misc]


@pytest.mark.parametrize("record_type", RECORD_TYPES)
def test_a_record_types_key_and_fixed_fields_are_its_own(record_type: type[Record]):
    known = fields_dict(record_type)
    assert record_type.KEY
    assert {*record_type.KEY, *record_type.FIXED} <= set(known)
    assert not set(record_type.KEY) & set(record_type.FIXED)
    assert ("revision" in known) is record_type.VERSIONED
    assert record_type.VERSIONED is (
        record_type
        in {
            ArgumentsRecord,
            BatchRecord,
            CallRecord,
            ConversationRecord,
            DeliveryRecord,
            IncarnationRecord,
            IntentRecord,
            RunRecord,
        }
    )


def test_tables_are_told_apart():
    assert len({record_type.TABLE for record_type in RECORD_TYPES}) == len(RECORD_TYPES)


def test_keys_are_the_values_of_the_key_fields():
    assert row("D").key == ("intent-1",)
    trigger = TriggerRecord(pane_id="p", operation_id="o", intent_id="i", position=0, at=1)
    assert trigger.key == ("p", "o")
    assert TranscriptRecord(dedup_key="cascade:i", intent_id="i", payload=b"", at=1).key == ("cascade:i",)
    assert ProjectionRecord(intent_id="i", pane_id="p", at=1).key == ("i",)
    assert isinstance(incarnation(), IncarnationRecord)
    assert incarnation().key == ("inc-1",)


def test_a_payload_is_not_shown_where_a_row_is():
    assert "base moved" not in repr(row("L/c"))
    assert "base moved" not in repr(TranscriptRecord(dedup_key="d", intent_id="i", payload=b"the base moved", at=1))


def test_the_states_are_the_protocols():
    assert " ".join(IntentState) == (
        "detected reconciling materialized delivered acknowledged recovery_required topology_diverged superseded"
    )
    assert {STATE.ACKNOWLEDGED, STATE.SUPERSEDED} == RESOLVED_STATES
    assert set(IntentState) == RESOLVED_STATES | UNRESOLVED_STATES
    assert {STATE.RECONCILING, STATE.MATERIALIZED, STATE.DELIVERED, STATE.RECOVERY_REQUIRED} == ACTIVE_STATES
    assert {mode.value for mode in DeliveryMode} == {"soft_batch", "restart_startup"}


def test_the_handshake_of_the_worlds_is_stored_with_its_delivery():
    assert row("L/r", **HANDSHAKE) == row("L/h")
