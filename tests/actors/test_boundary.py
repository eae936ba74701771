"""The PreToolUse decision: its order of steps, and what a call gets against every open proof, written out again."""

from __future__ import annotations

from typing import Any

import pytest
from actors.worlds import (
    LATER,
    LIMITS,
    NOW,
    PANE,
    PAYLOAD,
    SHAPES,
    SOFT_SHAPES,
    TURN,
    admission,
    behind,
    changed,
    committed,
    decide,
    incarnation,
    intent_after,
    only,
    pane,
    retired,
    row,
    written,
)
from attrs import evolve

from fencepost.actors.boundary import generic
from fencepost.actors.decision import Decision, Replace, RetiredIncarnation
from fencepost.actors.intent_events import BindSoft, Exhaust, Offer, Rebind
from fencepost.actors.intent_state import Code, code_of
from fencepost.actors.intent_verdicts import Relation, relation_of
from fencepost.actors.messages import Allow, BlockGeneric, BlockPayload, BlockRestart, ModelTurn, Reason
from fencepost.actors.pane_state import Limits, PaneState
from fencepost.mailbox.records import AdmissionDecision, AdmissionRecord, IncarnationRecord, IntentState

PASS, BLOCK = AdmissionDecision.PASS, AdmissionDecision.BLOCK


def told(state: PaneState, decision: Decision) -> str:
    """A decision in the words of section 4, from everything it answers and writes."""
    events = [type(event).__name__ for _, event in decision.intent_events]
    match decision:
        case Decision(again=True, answer=None):
            answer = "next"
        case Decision(park=str(), answer=None):
            answer = "wait"
        case Decision(answer=Allow()):
            answer = "allow"
        case Decision(answer=BlockPayload(intent_id, payload)):
            assert (intent_id, payload) == ("intent-1", PAYLOAD)
            answer = "payload"
        case Decision(answer=BlockGeneric(reason) as block):
            assert PAYLOAD.decode() not in block.message
            answer = f"generic {reason.value}"
        case Decision(answer=BlockRestart(reason) as block):
            assert PAYLOAD.decode() not in block.message
            answer = f"restart {reason.value}"
        case _:
            raise AssertionError(decision)
    is_restart = answer.startswith("restart")
    assert (Replace() in decision.effects) == (is_restart and "Exhaust" not in events)
    fenced = [record for record in decision.puts if isinstance(record, IncarnationRecord) and not record.live]
    assert bool(fenced) == is_restart
    assert decision.effects.count(RetiredIncarnation()) == len(fenced)
    if is_restart:
        assert state.live is not None
        assert fenced[0].incarnation_id == state.live.incarnation_id
    return " ".join([answer, *(f"+{event}" for event in events)])


# -- section 4 -------------------------------------------------------------------------------------------------------

NOT_COMPLETE = "restart batch_not_complete"
UNORDERED = "restart turn_order_unknown"
CONFLICTED = "generic conflicted"
RECONCILING = "generic reconciling"
SPENT = "restart redeliveries_spent"

CALLS: dict[str, tuple[ModelTurn | None, str]] = {
    "same batch": (TURN, "batch-1"),
    "other batch, same turn": (TURN, "batch-2"),
    "later turn": (LATER, "batch-2"),
    "no turn": (None, "batch-2"),
    "no turn, the bound batch's id": (None, "batch-1"),
    "same id, other ordinal": (ModelTurn("turn-1", 2), "batch-2"),
    "same id, other ordinal, the bound batch's id": (ModelTurn("turn-1", 2), "batch-1"),
    "other id, same ordinal": (ModelTurn("turn-2", 1), "batch-2"),
    "other id, same ordinal, the bound batch's id": (ModelTurn("turn-2", 1), "batch-1"),
    "earlier turn": (ModelTurn("turn-0", 0), "batch-2"),
    "the bound batch's id under a later turn": (LATER, "batch-1"),
}
UNKNOWN = [*CALLS][3:]

# (same batch, other batch of the same turn, later turn, every unknown order)
TABLE: dict[str, tuple[str, str, str, str]] = {
    "C/o": ("wait", NOT_COMPLETE, NOT_COMPLETE, UNORDERED),
    "C/c": ("wait", RECONCILING, "wait", UNORDERED),
    "M/o": ("payload +Offer", NOT_COMPLETE, NOT_COMPLETE, UNORDERED),
    "M/o offered": ("payload", NOT_COMPLETE, NOT_COMPLETE, UNORDERED),
    "M/c": ("payload", "payload +Rebind", "payload +Rebind", UNORDERED),
    "M/c offered": ("payload", "payload +Rebind", "next +AcknowledgeRecovered", UNORDERED),
    "L/o": ("payload +Offer", NOT_COMPLETE, NOT_COMPLETE, UNORDERED),
    "L/o offered": ("payload", NOT_COMPLETE, NOT_COMPLETE, UNORDERED),
    "L/c": ("payload", "payload", "next +Acknowledge", UNORDERED),
    "RR, batch open": (CONFLICTED, CONFLICTED, CONFLICTED, CONFLICTED),
    "RR, batch complete": (CONFLICTED, CONFLICTED, CONFLICTED, CONFLICTED),
    "TD, batch open": (CONFLICTED, CONFLICTED, CONFLICTED, CONFLICTED),
    "TD, batch complete": (CONFLICTED, CONFLICTED, CONFLICTED, CONFLICTED),
}
ROWS = [(shape, call, TABLE[shape][min(column, 3)]) for shape in TABLE for column, call in enumerate(CALLS)]


def test_the_written_out_table_has_every_open_soft_proof():
    assert set(TABLE) == set(SOFT_SHAPES)


@pytest.mark.parametrize(("shape", "call", "expected"), ROWS)
def test_a_call_against_an_open_soft_proof(shape, call, expected):
    turn, batch_id = CALLS[call]
    state = pane(row(shape))
    assert told(state, decide(state, turn=turn, batch_id=batch_id, patient=True)) == expected


@pytest.mark.parametrize(("shape", "call", "expected"), ROWS)
def test_without_patience_waiting_is_a_generic_block_and_nothing_else_changes(shape, call, expected):
    turn, batch_id = CALLS[call]
    state = pane(row(shape))
    expected = RECONCILING if expected == "wait" else expected
    assert told(state, decide(state, turn=turn, batch_id=batch_id, patient=False)) == expected


@pytest.mark.parametrize("known", ["pass", "block", "yes", "maybe"])
@pytest.mark.parametrize(("shape", "call", "expected"), ROWS)
def test_an_open_proof_is_asked_before_any_admission(shape, call, expected, known):
    turn, batch_id = CALLS[call]
    state = pane(row(shape))
    details: dict[str, Any] = {"passed_unseen": known}
    if known in {"pass", "block"}:
        decision = PASS if known == "pass" else BLOCK
        details = {"admission": admission(decision, batch_id, turn, "intent-1" if known == "block" else None)}
    decided = decide(state, turn=turn, batch_id=batch_id, patient=True, **details)
    assert told(state, decided) == expected
    if "admission" in details:
        assert not [put for put in decided.puts if isinstance(put, AdmissionRecord)]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shape", SOFT_SHAPES)
def test_a_live_incarnation_that_is_not_the_bound_one_is_restarted(shape, call):
    turn, batch_id = CALLS[call]
    stranger = incarnation("inc-9", 2)
    state = evolve(pane(row(shape)), latest=stranger)
    decided = decide(state, turn=turn, batch_id=batch_id, patient=True)
    assert told(state, decided) == "restart payload_unbound"
    assert decided.intent_events == ()


@pytest.mark.parametrize(
    ("call", "relation"),
    [
        ("same batch", Relation.SAME_BATCH),
        ("other batch, same turn", Relation.SAME_TURN),
        ("later turn", Relation.LATER_TURN),
        *((call, Relation.UNKNOWN) for call in UNKNOWN),
    ],
)
def test_only_another_id_with_a_greater_ordinal_is_later(call, relation):
    assert relation_of(row("M/o"), *CALLS[call]) is relation


@pytest.mark.parametrize(("shape", "call", "expected"), ROWS)
def test_the_first_block_of_a_batch_is_stored_with_the_decision(shape, call, expected):
    turn, batch_id = CALLS[call]
    decided = decide(pane(row(shape)), turn=turn, batch_id=batch_id, patient=True)
    stored = [put for put in decided.puts if isinstance(put, AdmissionRecord)]
    if expected.startswith(("restart", "next")):
        assert stored == []
    else:
        (block,) = stored
        assert (block.decision, block.intent_id, block.batch_id, block.pane_id) == (BLOCK, "intent-1", batch_id, PANE)
        assert (block.turn_id, block.turn_ordinal) == (("", None) if turn is None else (turn.id, turn.ordinal))
        assert (block.incarnation_id, block.at) == ("inc-1", NOW)


def test_a_caller_is_parked_behind_the_reconciling_intent():
    assert decide(pane(row("C/o")), patient=True).park == "intent-1"


# -- section 4: offers and rebinds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["M/o", "L/o"])
def test_the_first_bytes_for_the_open_batch_are_recorded_as_offered(shape):
    decided = decide(pane(row(shape)))
    assert [event for _, event in decided.intent_events] == [Offer()]
    assert changed(row(shape), intent_after(decided)) == {"payload_offered_at": NOW}


@pytest.mark.parametrize("shape", ["M/c", "L/c"])
def test_bytes_handed_out_after_completion_are_no_offer(shape):
    state = pane(row(shape, payload_offered_at=None))
    assert told(state, decide(state)) == "payload"


@pytest.mark.parametrize("call", ["other batch, same turn", "later turn"])
def test_a_rebind_moves_the_whole_tuple_to_the_arriving_batch(call):
    turn, batch_id = CALLS[call]
    assert turn is not None
    before = row("M/c")
    decided = decide(pane(before), turn=turn, batch_id=batch_id)
    assert [event for _, event in decided.intent_events] == [Rebind(turn=turn, batch_id=batch_id)]
    after = intent_after(decided)
    assert (after.incarnation_id, after.turn_id, after.turn_ordinal, after.batch_id, after.bound_at) == (
        "inc-1",
        turn.id,
        turn.ordinal,
        batch_id,
        NOW,
    )
    assert (after.batch_completed_at, after.payload_offered_at, after.soft_redeliveries) == (None, NOW, 1)
    assert code_of(after) is Code.M_OPEN


@pytest.mark.parametrize(
    ("redelivered", "bound", "expected"),
    [
        (0, 1, "payload +Rebind"),
        (1, 1, SPENT),
        (2, 1, SPENT),
        (0, 0, SPENT),
        (1, 2, "payload +Rebind"),
    ],
)
@pytest.mark.parametrize("call", ["other batch, same turn", "later turn"])
def test_redeliveries_are_bounded(call, redelivered, bound, expected):
    turn, batch_id = CALLS[call]
    state = pane(row("M/c", soft_redeliveries=redelivered))
    decided = decide(state, turn=turn, batch_id=batch_id, limits=Limits(soft_redeliveries_max=bound))
    assert told(state, decided) == expected


def test_a_spent_bound_does_not_stand_in_the_way_of_an_acknowledgement():
    state = pane(row("M/c offered", soft_redeliveries=1))
    assert told(state, decide(state, turn=LATER, batch_id="batch-2")) == "next +AcknowledgeRecovered"


# -- section 6: acknowledgement, and what the same call gets then ----------------------------------------------------


def test_an_acknowledgement_clears_the_marker_in_the_same_transaction():
    state = pane(row("L/c"))
    decided = decide(state, turn=LATER, batch_id="batch-2")
    speaker = only(written(decided), IncarnationRecord)
    assert (speaker.delivered_intent_id, speaker.live) == (None, True)
    after = intent_after(decided)
    assert (after.state, after.acknowledged_at, after.mode) == (IntentState.ACKNOWLEDGED, NOW, None)
    assert decided.answer is None


def test_a_recovered_acknowledgement_has_no_marker_to_clear():
    decided = decide(pane(row("M/c offered")), turn=LATER, batch_id="batch-2")
    after = intent_after(decided)
    assert (after.state, after.delivered_at, after.acknowledged_at) == (IntentState.ACKNOWLEDGED, 400, NOW)
    assert not [put for put in written(decided) if isinstance(put, IncarnationRecord)]


@pytest.mark.parametrize("shape", ["L/c", "M/c offered"])
def test_the_acknowledging_call_is_decided_by_the_next_intent(shape):
    head = row(shape)
    state = pane(head, behind(head))
    state = committed(state, decide(state, turn=LATER, batch_id="batch-2"))
    assert [intent.intent_id for intent in state.intents] == ["intent-2"]
    decided = decide(state, turn=LATER, batch_id="batch-2", patient=True)
    assert told(state, decided) == "wait +BindSoft"
    after = intent_after(decided, "intent-2")
    assert (after.state, after.batch_id, after.turn_id) == (IntentState.RECONCILING, "batch-2", "turn-2")


@pytest.mark.parametrize("shape", ["L/c", "M/c offered"])
def test_with_nothing_behind_it_the_acknowledging_call_is_allowed(shape):
    state = pane(row(shape))
    state = committed(state, decide(state, turn=LATER, batch_id="batch-2"))
    assert state.intents == ()
    assert told(state, decide(state, turn=LATER, batch_id="batch-2")) == "allow"


# -- tools of another batch that may still run -----------------------------------------------------------------------


@pytest.mark.parametrize(("patient", "expected"), [(True, "wait"), (False, RECONCILING)])
def test_nothing_is_bound_while_tools_of_another_batch_may_run(patient, expected):
    state = pane(row("D"))
    decided = decide(state, patient=patient, tools_running=True)
    assert told(state, decided) == expected
    assert only(written(decided), AdmissionRecord).decision is BLOCK, "it is not let pass later either"
    stored = only(written(decided), AdmissionRecord)
    after = committed(state, decided)
    assert told(after, decide(after, admission=stored, patient=True)) == "wait +BindSoft", "when they have ended"
    assert told(after, decide(after, admission=stored, patient=True, tools_running=True)) == "wait"


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ({"admission": admission(PASS)}, "allow"),
        ({"passed_unseen": "yes"}, "allow"),
        ({"turn": None}, UNORDERED),
    ],
)
def test_tools_of_another_batch_hold_up_nothing_but_a_bind(details, expected):
    state = pane(row("D"))
    assert told(state, decide(state, tools_running=True, patient=True, **details)) == expected


# -- section 3, step by step -----------------------------------------------------------------------------------------

STRANGERS: dict[str, tuple[IncarnationRecord | None, Reason]] = {
    "unknown": (None, Reason.UNKNOWN_INCARNATION),
    "of another pane": (incarnation("inc-9", 1, pane_id="pane-2"), Reason.OTHER_PANE),
    "retired": (retired(incarnation("inc-0", 1)), Reason.RETIRED_INCARNATION),
    "retired, of another pane": (retired(incarnation("inc-9", 1, pane_id="pane-2")), Reason.OTHER_PANE),
}


@pytest.mark.parametrize("known", [None, PASS])
@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_step_1_a_stranger_is_blocked_and_leaves_only_a_dead_letter(shape, who, known):
    speaker, reason = STRANGERS[who]
    stored = None if known is None else admission(known)
    decided = decide(pane(row(shape)), speaker=speaker, admission=stored, startup_delivery_id="startup-2")
    assert decided.answer == generic(reason)
    (letter,) = decided.dead_letters
    assert (letter.call, letter.reason, letter.address, letter.at) == ("pre_tool_use", reason, "pane:pane-1", NOW)
    assert (decided.puts, decided.intent_events, decided.events, decided.effects) == ((), (), (), ())
    assert (decided.park, decided.again) == (None, False)


# Section 7.4: (echo, what the first boundary of the replacement gets)
FIRST_BOUNDARY: dict[tuple[str, str | None], str] = {
    ("L/h", "startup-2"): "next +Acknowledge",
    ("L/h", None): "restart wrong_startup_id",
    ("L/h", "startup-9"): "restart wrong_startup_id",
    ("M/r", "startup-2"): "restart unproved_startup",
    ("L/r", "startup-2"): "restart unproved_startup",
    ("M/r", None): "restart wrong_startup_id",
    ("L/r", None): "restart wrong_startup_id",
    ("M/r", "startup-9"): "restart wrong_startup_id",
    ("L/r", "startup-9"): "restart wrong_startup_id",
}


@pytest.mark.parametrize("known", [None, PASS, BLOCK])
@pytest.mark.parametrize("turn", [TURN, None])
@pytest.mark.parametrize(("shape", "echo"), FIRST_BOUNDARY)
def test_step_2_only_the_exact_echo_of_an_accepted_startup_acknowledges(shape, echo, turn, known):
    state = pane(row(shape))
    stored = None if known is None else admission(known, turn=turn, intent_id="intent-1" if known is BLOCK else None)
    decided = decide(state, turn=turn, batch_id="batch-7", startup_delivery_id=echo, admission=stored, patient=True)
    assert told(state, decided) == FIRST_BOUNDARY[shape, echo]


@pytest.mark.parametrize(("shape", "echo"), [key for key, found in FIRST_BOUNDARY.items() if "restart" in found])
def test_a_wrong_first_boundary_on_the_last_attempt_exhausts_in_the_same_transaction(shape, echo):
    state = pane(row(shape), attempt=LIMITS.startup_attempts_max)
    decided = decide(state, batch_id="batch-7", startup_delivery_id=echo)
    assert told(state, decided) == f"{FIRST_BOUNDARY[shape, echo]} +Exhaust"
    assert isinstance(decided.intent_events[0][1], Exhaust)
    after = intent_after(decided)
    assert (after.exhausted_at, after.state) == (NOW, row(shape).state)
    before = decide(pane(row(shape)), batch_id="batch-7", startup_delivery_id=echo)
    assert "restarts" in before.answer.message
    assert decided.answer.message == generic(Reason.EXHAUSTED).message, "nobody is told of a restart that does not come"


def test_the_startup_acknowledgement_clears_marker_and_proof_and_goes_on_with_the_same_call():
    head = row("L/h")
    state = pane(head, behind(head))
    decided = decide(state, batch_id="batch-7", startup_delivery_id="startup-2")
    assert only(written(decided), IncarnationRecord).delivered_intent_id is None
    after = intent_after(decided)
    assert (after.state, after.mode, after.startup_delivery_id, after.handshake_at) == (
        IntentState.ACKNOWLEDGED,
        None,
        None,
        None,
    )
    state = committed(state, decided)
    again = decide(state, batch_id="batch-7", startup_delivery_id="startup-2", patient=True)
    assert told(state, again) == "wait +BindSoft"


def test_a_consumed_startup_id_acknowledges_no_other_intent():
    state = pane(row("L/h"))
    state = committed(state, decide(state, batch_id="batch-7", startup_delivery_id="startup-2"))
    assert told(state, decide(state, batch_id="batch-7", startup_delivery_id="startup-2")) == "allow"
    other = row("L/c", intent_id="intent-2", seq=2, incarnation_id="inc-2")
    state = evolve(state, intents=(other,), seq_last=2)
    again = decide(state, batch_id="batch-1", startup_delivery_id="startup-2")
    assert again.intent_events == ()
    assert isinstance(again.answer, BlockPayload)


def test_step_4_a_passed_batch_goes_on_though_an_intent_became_ready():
    for state in (pane(None), pane(row("D")), pane(row("TD")), pane(row("D"), behind(row("D")))):
        decided = decide(state, admission=admission(PASS))
        assert told(state, decided) == "allow"
        assert not decided.writes


@pytest.mark.parametrize("unseen", ["yes", "maybe", None])
def test_step_4_a_known_batch_needs_no_word_of_the_adapter(unseen):
    state = pane(row("D"))
    assert told(state, decide(state, admission=admission(PASS), passed_unseen=unseen)) == "allow"
    blocked = decide(state, admission=admission(BLOCK, intent_id="intent-1"), passed_unseen=unseen)
    assert told(state, blocked) == "generic reconciling +BindSoft"


@pytest.mark.parametrize("head", [None, "D", "TD"])
def test_step_5_a_batch_that_passed_unseen_is_a_pass(head):
    state = pane(None if head is None else row(head))
    decided = decide(state, passed_unseen="yes")
    assert told(state, decided) == "allow"
    stored = only(decided.puts, AdmissionRecord)
    assert (stored.decision, stored.intent_id) == (PASS, None)


@pytest.mark.parametrize("head", [None, "D", "TD"])
def test_step_5_a_batch_that_may_have_passed_is_restarted_and_no_file_is_touched(head):
    state = pane(None if head is None else row(head))
    decided = decide(state, passed_unseen="maybe")
    assert told(state, decided) == "restart admission_lost"


def test_step_6_behind_a_conflicted_head_nothing_moves():
    head = row("TD")
    state = pane(head, behind(head))
    decided = decide(state, patient=True)
    assert told(state, decided) == "generic conflicted"
    stored = only(decided.puts, AdmissionRecord)
    assert (stored.decision, stored.intent_id) == (BLOCK, "intent-1")


@pytest.mark.parametrize("shape", ["RR", "X of M/r", "X of L/r", "X of L/h", "TD"])
def test_step_6_comes_before_turns_and_capabilities(shape):
    state = evolve(pane(row(shape)), latest=incarnation("inc-9", 9, soft_batches=False))
    assert told(state, decide(state, turn=None, patient=True)) == "generic conflicted"


def test_step_7_the_first_call_binds_its_batch_durably_and_waits():
    state = pane(row("D"))
    decided = decide(state, turn=LATER, batch_id="batch-2", patient=True)
    assert told(state, decided) == "wait +BindSoft"
    assert decided.park == "intent-1"
    assert [event for _, event in decided.intent_events] == [
        BindSoft(incarnation_id="inc-1", turn=LATER, batch_id="batch-2")
    ]
    stored = only(decided.puts, AdmissionRecord)
    assert (stored.decision, stored.intent_id, stored.turn_id) == (BLOCK, "intent-1", "turn-2")
    after = committed(state, decided).head
    assert after is not None
    assert code_of(after) is Code.C_OPEN


def test_step_7_binds_without_patience_too():
    state = pane(row("D"))
    assert told(state, decide(state, patient=False)) == "generic reconciling +BindSoft"


def test_step_7_siblings_find_the_bound_batch_whoever_won():
    state = committed(pane(row("D")), decide(pane(row("D")), patient=True))
    sibling = decide(state, patient=True, admission=admission(BLOCK, intent_id="intent-1"))
    assert told(state, sibling) == "wait"
    assert not sibling.writes


@pytest.mark.parametrize(
    ("turn", "capabilities", "reason"),
    [
        (None, {}, Reason.TURN_ORDER_UNKNOWN),
        (TURN, {"turn_order": False}, Reason.TURN_ORDER_UNKNOWN),
        (TURN, {"soft_batches": False}, Reason.PAYLOAD_UNBOUND),
        (None, {"soft_batches": False, "turn_order": False}, Reason.PAYLOAD_UNBOUND),
    ],
)
def test_step_7_what_cannot_be_proved_softly_goes_through_a_restart(turn, capabilities, reason):
    state = pane(row("D"), **capabilities)
    decided = decide(state, turn=turn, patient=True)
    assert told(state, decided) == f"restart {reason.value}"
    assert committed(state, decided).head == row("D")


@pytest.mark.parametrize("shape", ["M/n", "C/x"])
def test_step_7_a_payload_no_live_process_is_bound_to_never_goes_out_softly(shape):
    state = evolve(pane(row(shape)), latest=incarnation())
    decided = decide(state, patient=True)
    assert told(state, decided) == "restart payload_unbound"


@pytest.mark.parametrize("turn", [TURN, None])
def test_step_8_with_nothing_pending_the_batch_is_admitted_durably(turn):
    state = pane(None)
    decided = decide(state, turn=turn)
    assert told(state, decided) == "allow"
    stored = only(decided.puts, AdmissionRecord)
    assert (stored.decision, stored.intent_id, stored.turn_id) == (PASS, None, "" if turn is None else "turn-1")


def test_a_harness_that_proves_nothing_is_allowed_while_nothing_is_pending():
    state = pane(None, soft_batches=False, turn_order=False)
    assert told(state, decide(state, turn=None)) == "allow"


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize(("blocked_by", "expected"), [("A", "payload"), ("S", RECONCILING), (None, RECONCILING)])
def test_a_batch_of_which_one_call_was_blocked_is_never_allowed_later(blocked_by, expected, waiting):
    """Nor is it bound to the next intent: a later batch may be running already."""
    state = pane(row("D", intent_id="intent-2", seq=2) if waiting else None)
    decided = decide(
        state,
        admission=admission(BLOCK, intent_id="intent-1"),
        blocked_by=None if blocked_by is None else row(blocked_by),
        patient=True,
    )
    assert told(state, decided) == expected
    assert not decided.writes


def test_a_restart_fences_first_and_tells_followers():
    state = pane(row("C/o"))
    decided = decide(state, batch_id="batch-2")
    (gone,) = [put for put in decided.puts if isinstance(put, IncarnationRecord)]
    assert (gone.retired_at, gone.retire_reason, gone.relaunch) == (NOW, "batch_not_complete", True)
    assert [news.kind for news in decided.events] == ["incarnation.retired"]
    after = committed(state, decided)
    assert after.live is None
    assert after.head == row("C/o")


def test_a_restart_of_a_delivered_one_clears_the_marker_and_keeps_the_delivery():
    state = pane(row("L/o"))
    decided = decide(state, batch_id="batch-2")
    assert only(decided.puts, IncarnationRecord).delivered_intent_id is None
    assert committed(state, decided).head == row("L/o")
