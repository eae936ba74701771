"""The vocabulary of a bridge: what exists is well formed, and untrusted ids are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from attrs import fields
from attrs.exceptions import FrozenInstanceError
from hypothesis import given, strategies as st

from fencepost.actors import messages
from fencepost.actors.messages import (
    Allow,
    Anchor,
    Answer,
    BaseTransition,
    BlockGeneric,
    BlockPayload,
    BlockRestart,
    Capabilities,
    Decision,
    DetectedIntent,
    Diverged,
    IncarnationView,
    IntentView,
    Launch,
    ModelTurn,
    NeedsRecovery,
    Outcome,
    Reason,
    Reconciled,
    Refused,
    StartupDelivery,
    SyncStatus,
    ToolBoundary,
)
from fencepost.mailbox.address import check_id
from fencepost.mailbox.errors import FencepostError, InvalidIdentifier, InvalidTransition
from fencepost.mailbox.records import TransitionKind

ANCHOR = Anchor("change", "commit", "op")
TRANSITION: dict[str, Any] = {
    "kind": TransitionKind.NATIVE_REWRITE,
    "from_base": "a",
    "to_base": "b",
    "classification_op": "c",
    "trigger_op": "t",
}

ID_FIELDS: dict[tuple[str, str], Callable[[Any], object]] = {
    ("ModelTurn", "id"): lambda value: ModelTurn(value, 1),
    ("ToolBoundary", "incarnation_id"): lambda value: ToolBoundary(value, None, "b"),
    ("ToolBoundary", "batch_id"): lambda value: ToolBoundary("i", None, value),
    ("ToolBoundary", "tool_call_id"): lambda value: ToolBoundary("i", None, "b", value),
    **{
        ("BaseTransition", name): lambda value, name=name: BaseTransition(**{**TRANSITION, name: value})
        for name in ("from_base", "to_base", "classification_op", "trigger_op")
    },
    **{
        ("Anchor", name): lambda value, name=name: Anchor(
            **{"change_id": "a", "commit_id": "b", "op_id": "c", name: value}
        )
        for name in ("change_id", "commit_id", "op_id")
    },
    ("Reconciled", "result_op"): lambda value: Reconciled(value, "c", b"", ANCHOR),
    ("Reconciled", "workspace_commit"): lambda value: Reconciled("o", value, b"", ANCHOR),
}
BAD_IDS = ["", "x" * 257, "é", "tab\t", "line\n", "\x00", "\x7f", "\ud800", "x\u200b", 7, b"bytes", ("a",)]


@pytest.mark.parametrize("bad", [*BAD_IDS, None], ids=repr)
@pytest.mark.parametrize(("owner", "field"), ID_FIELDS)
def test_a_bad_id_is_refused_by_field_and_value(owner, field, bad):
    if bad is None and field == "tool_call_id":
        return
    with pytest.raises(InvalidIdentifier) as refused:
        ID_FIELDS[owner, field](bad)
    assert refused.value.field == field
    assert refused.value.value == bad


@pytest.mark.parametrize("good", ["x", "x" * 256, " ", "~", "a/b:c d", "!\"#$%&'()*+,-./"])
@pytest.mark.parametrize(("owner", "field"), ID_FIELDS)
def test_printable_ascii_up_to_256_characters_is_an_id(owner, field, good):
    made = ID_FIELDS[owner, field](good)
    assert getattr(made, field) == good


@given(st.text(max_size=300))
def test_an_id_is_1_to_256_characters_from_space_to_tilde(text):
    fine = 1 <= len(text) <= 256 and all(" " <= character <= "~" for character in text)
    if fine:
        assert check_id("field", text) == text
    else:
        with pytest.raises(InvalidIdentifier) as refused:
            check_id("field", text)
        assert (refused.value.field, refused.value.value) == ("field", text)


def test_a_transition_that_moves_nothing_is_misuse():
    with pytest.raises(InvalidTransition) as refused:
        BaseTransition(**{**TRANSITION, "to_base": "a"})
    assert refused.value.event == "detect"
    assert "'a'" in str(refused.value)


def test_a_transitions_kind_may_be_its_word():
    assert BaseTransition(**{**TRANSITION, "kind": "parent_advance"}).kind is TransitionKind.PARENT_ADVANCE
    with pytest.raises(ValueError, match="sideways"):
        BaseTransition(**{**TRANSITION, "kind": "sideways"})


@pytest.mark.parametrize("unseen", ["yes", "maybe", None])
def test_a_batch_may_have_passed_unseen(unseen):
    assert ToolBoundary("i", None, "b", passed_unseen=unseen).passed_unseen == unseen


@pytest.mark.parametrize("unseen", ["no", "", True, 1])
def test_a_batch_passed_unseen_in_two_ways_only(unseen):
    with pytest.raises(InvalidTransition) as refused:
        ToolBoundary("i", None, "b", passed_unseen=unseen)
    assert refused.value.event == "pre_tool_use"


@pytest.mark.parametrize("turn", ["turn-1", 1, ("turn-1", 1)])
def test_a_turn_is_a_model_turn_or_none(turn):
    with pytest.raises(InvalidTransition):
        ToolBoundary("i", turn, "b")


@pytest.mark.parametrize("ordinal", ["1", 1.0, None])
def test_an_ordinal_is_an_integer(ordinal):
    with pytest.raises((TypeError, FencepostError)):
        ModelTurn("turn-1", ordinal)


@pytest.mark.parametrize("payload", ["text", bytearray(b"x"), None])
def test_a_payload_is_bytes(payload):
    with pytest.raises(TypeError):
        Reconciled("o", "c", payload, ANCHOR)


def test_an_anchor_is_whole():
    with pytest.raises(TypeError):
        Reconciled("o", "c", b"", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("flag", ["soft_batches", "turn_order"])
def test_a_capability_is_a_plain_yes_or_no(flag):
    with pytest.raises(TypeError):
        Capabilities(**{flag: "yes"})
    assert Capabilities() == Capabilities(soft_batches=True, turn_order=True)


def test_lists_given_become_tuples():
    found = BaseTransition(**TRANSITION)
    made = Reconciled("o", "c", b"", ANCHOR, covers=["x"], discovered=[found])
    assert (made.covers, made.discovered) == (("x",), (found,))


FIELDS: dict[type, str] = {
    Refused: "reason detail",
    BlockPayload: "intent_id payload",
    BlockGeneric: "reason message",
    BlockRestart: "reason message",
    Allow: "",
    StartupDelivery: "startup_delivery_id intent_id payload payload_sha256",
    Launch: "pane_id incarnation_id epoch harness session_id startup",
    IncarnationView: "incarnation_id pane_id epoch harness session_id launched_at retired_at",
    ModelTurn: "id ordinal",
    BaseTransition: "kind from_base to_base classification_op trigger_op ambiguous",
    DetectedIntent: "intent_id seq coalesced",
    ToolBoundary: "incarnation_id turn batch_id tool_call_id startup_delivery_id passed_unseen",
    Anchor: "change_id commit_id op_id",
    Reconciled: "result_op workspace_commit payload anchor covers discovered",
    NeedsRecovery: "reason bundle_path bundle_fingerprint details",
    Diverged: "reason details",
    Capabilities: "soft_batches turn_order",
}
VIEW = (
    "intent_id pane_id seq kind from_base to_base classification_op triggers state mode result_op workspace_commit "
    "planned_op payload payload_sha256 anchor prepared_at delivered_at acknowledged_at incarnation_id turn batch_id "
    "bound_at batch_completed_at payload_offered_at startup_delivery_id handshake_at startup_attempts "
    "soft_redeliveries epoch exhausted_at reason stage stop"
)


@pytest.mark.parametrize("message", FIELDS, ids=lambda message: message.__name__)
def test_a_message_has_the_contracts_fields_in_its_order(message):
    assert [attribute.name for attribute in fields(message)] == FIELDS[message].split()


@pytest.mark.parametrize(("made", "field"), [(ANCHOR, "op_id"), (Refused(Reason.OTHER_PANE), "reason"), (Allow(), "x")])
def test_messages_are_frozen(made, field):
    with pytest.raises(FrozenInstanceError):
        setattr(made, field, "other")


def test_a_view_has_the_contracts_fields():
    assert {attribute.name for attribute in fields(IntentView)} >= set(VIEW.split())


REASONS = (
    "RETIRED_INCARNATION UNKNOWN_INCARNATION OTHER_PANE PROOF_MISMATCH NOT_PREPARED OTHER_MODE PAYLOAD_DRIFT "
    "WRONG_STARTUP_ID CONSUMED_STARTUP_ID UNPROVED_STARTUP BATCH_NOT_COMPLETE TURN_ORDER_UNKNOWN RECONCILING "
    "CONFLICTED EXHAUSTED UNKNOWN_INTENT ADMISSION_LOST REDELIVERIES_SPENT PAYLOAD_UNBOUND PAYLOAD_NOT_TEXT "
    "PAYLOAD_TOO_LARGE NOT_EXHAUSTED UNKNOWN_DELIVERY REPLY_TOO_LATE"
)


def test_the_contracts_words_are_there():
    assert " ".join(Reason.__members__) == REASONS
    assert {status.value for status in SyncStatus} == {"in_sync", "pending", "conflicted"}
    assert {kind.__name__ for kind in get_args(Answer)} == {"Applied", "Unchanged", "Refused"}
    assert {kind.__name__ for kind in get_args(Decision)} == {"Allow", "BlockPayload", "BlockGeneric", "BlockRestart"}
    assert {kind.__name__ for kind in get_args(Outcome)} == {"Reconciled", "NeedsRecovery", "Diverged"}


def test_everything_named_exists():
    assert all(hasattr(messages, name) for name in messages.__all__)
