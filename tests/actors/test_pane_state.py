"""Detection, delivery reports, results and a human's word (sections 2, 5 and 10), and random walks over all of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from actors.worlds import (
    LATER,
    LIMITS,
    NOW,
    PANE,
    PAYLOAD,
    RESULT,
    SHAPES,
    TURN,
    behind,
    changed,
    committed,
    incarnation,
    intent_after,
    mint,
    moved,
    only,
    pane,
    replacement,
    retired,
    row,
    written,
)
from attrs import evolve
from hypothesis import note, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencepost.actors.boundary import Boundary, decide_boundary
from fencepost.actors.decision import Decision
from fencepost.actors.incarnation_state import (
    LaunchRequest,
    begin_unattended,
    decide_handshake,
    decide_launch,
    decide_launch_failed,
    decide_retire,
    needs_payload_first,
)
from fencepost.actors.intent_events import (
    Acknowledge,
    AcknowledgeRecovered,
    Coalesce,
    CompleteBatch,
    DivergeTopology,
    MarkDelivered,
    RequireRecovery,
    Supersede,
)
from fencepost.actors.intent_state import step
from fencepost.actors.messages import (
    Allow,
    Anchor,
    Applied,
    BlockPayload,
    Capabilities,
    DetectedIntent,
    Diverged,
    ModelTurn,
    NeedsRecovery,
    Outcome,
    Reason,
    Reconciled,
    Refused,
    SyncStatus,
    ToolBoundary,
    Unchanged,
)
from fencepost.actors.pane_detection import decide_detect
from fencepost.actors.pane_outcome import decide_outcome
from fencepost.actors.pane_reports import decide_batch_completed, decide_mark_delivered
from fencepost.actors.pane_resolution import decide_discard, decide_rearm, decide_resolve
from fencepost.actors.pane_state import Limits, PaneState, judge_speaker
from fencepost.mailbox.errors import LaunchBlocked
from fencepost.mailbox.records import (
    AdmissionDecision,
    AdmissionRecord,
    DeliveryMode,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    Record,
    TransitionKind,
    TriggerRecord,
)

UNRESOLVED = [shape for shape in SHAPES if not row(shape).resolved]


def refused(decision: Decision) -> Reason:
    """The reason of a refusal that leaves a dead letter and nothing else."""
    assert isinstance(decision.answer, Refused)
    (letter,) = decision.dead_letters
    assert (letter.reason, letter.at, letter.address) == (decision.answer.reason, NOW, "pane:pane-1")
    assert (decision.puts, decision.intent_events, decision.events, decision.effects) == ((), (), (), ())
    return decision.answer.reason


# -- section 2: detect, coalesce, supersede --------------------------------------------------------------------------


def test_the_first_transition_opens_an_intent():
    decision = decide_detect(PaneState(pane_id=PANE), moved("base-0", "base-1"), NOW, mint())
    assert decision.answer == DetectedIntent("intent:1", 1, coalesced=False)
    intent, trigger = decision.puts
    assert isinstance(intent, IntentRecord)
    assert (intent.seq, intent.revision, intent.state, intent.mode) == (1, 1, IntentState.DETECTED, None)
    assert (intent.from_base, intent.to_base, intent.classification_op) == ("base-0", "base-1", "op-c2")
    assert (intent.kind, intent.detected_at) == (TransitionKind.PARENT_ADVANCE, NOW)
    assert trigger == TriggerRecord(pane_id=PANE, operation_id="op-t", intent_id="intent:1", position=0, at=NOW)
    assert [event.kind for event in decision.events] == ["intent.detected"]


def test_a_later_transition_coalesces_into_a_detected_tail_that_it_continues():
    state = pane(row("D"))
    decision = decide_detect(state, moved("base-1", "base-2"), NOW, mint())
    assert decision.answer == DetectedIntent("intent-1", 1, coalesced=True)
    assert [type(event) for _, event in decision.intent_events] == [Coalesce]
    assert changed(row("D"), intent_after(decision)) == {
        "kind": TransitionKind.PARENT_ADVANCE,
        "to_base": "base-2",
        "classification_op": "op-c2",
    }
    (trigger,) = decision.puts
    assert trigger == TriggerRecord(pane_id=PANE, operation_id="op-t", intent_id="intent-1", position=1, at=NOW)


@pytest.mark.parametrize("shape", [shape for shape in UNRESOLVED if shape != "D"])
def test_what_is_under_way_is_never_retargeted(shape):
    state = pane(row(shape))
    decision = decide_detect(state, moved("base-1", "base-2"), NOW, mint())
    assert decision.answer == DetectedIntent("intent:1", 2, coalesced=False)
    assert decision.intent_events == ()
    after = committed(state, decision)
    assert after.head == row(shape)
    assert (after.intents[1].seq, after.intents[1].state, after.seq_last) == (2, IntentState.DETECTED, 2)


def test_a_transition_from_elsewhere_opens_a_new_intent():
    decision = decide_detect(pane(row("D")), moved("base-9", "base-2"), NOW, mint())
    assert decision.answer == DetectedIntent("intent:1", 2, coalesced=False)


def test_only_the_newest_intent_takes_transitions_in():
    head = row("D")
    state = pane(head, behind(head, from_base="base-5", to_base="base-6"))
    decision = decide_detect(state, moved("base-1", "base-2"), NOW, mint())
    assert decision.answer == DetectedIntent("intent:1", 3, coalesced=False)
    decision = decide_detect(state, moved("base-6", "base-7"), NOW, mint())
    assert decision.answer == DetectedIntent("intent-2", 2, coalesced=True)


def test_a_seq_is_not_used_again_after_its_intent_is_resolved():
    state = PaneState(pane_id=PANE, seq_last=4)
    assert decide_detect(state, moved("a", "b"), NOW, mint()).answer == DetectedIntent("intent:1", 5, coalesced=False)


def test_triggers_are_numbered_in_order():
    state, ids = PaneState(pane_id=PANE), mint()
    positions = []
    for base in range(4):
        decision = decide_detect(state, moved(f"base-{base}", f"base-{base + 1}", f"op-{base}"), NOW, ids)
        positions.append(only(decision.puts, TriggerRecord).position)
        state = committed(state, decision)
    assert positions == [0, 1, 2, 3]
    assert len(state.intents) == 1


def test_an_ambiguous_transition_is_a_conflict_and_guesses_no_target():
    decision = decide_detect(PaneState(pane_id=PANE), moved("base-0", "base-1", ambiguous="two parents"), NOW, mint())
    intent = only(decision.puts, IntentRecord)
    assert (intent.state, intent.reason) == (IntentState.TOPOLOGY_DIVERGED, "two parents")
    assert [event.kind for event in decision.events] == ["intent.topology_diverged"]
    assert committed(PaneState(pane_id=PANE), decision).sync_status() is SyncStatus.CONFLICTED


def test_an_ambiguous_continuation_makes_the_open_intent_a_conflict_and_keeps_its_target():
    decision = decide_detect(pane(row("D")), moved("base-1", "base-2", ambiguous="two parents"), NOW, mint())
    assert [event for _, event in decision.intent_events] == [DivergeTopology(reason="two parents")]
    assert intent_after(decision).to_base == "base-1"
    assert only(written(decision), TriggerRecord).intent_id == "intent-1"


# -- section 1.3: the derived status ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_status_is_a_query_over_the_intents(shape):
    record = row(shape)
    expected = SyncStatus.PENDING
    if record.resolved:
        expected = SyncStatus.IN_SYNC
    elif shape.startswith(("RR", "TD", "X")):
        expected = SyncStatus.CONFLICTED
    assert pane(record).sync_status() is expected


def test_one_conflict_anywhere_is_a_conflict():
    head = row("L/c")
    assert pane(head, behind(head, state=IntentState.TOPOLOGY_DIVERGED)).sync_status() is SyncStatus.CONFLICTED
    assert pane(head, behind(head)).sync_status() is SyncStatus.PENDING


# -- section 5: mark_delivered, in the contract's order (I-7) --------------------------------------------------------


def mark(
    state: PaneState, intent: IntentRecord | None, speaker: IncarnationRecord | None = None, **given: str
) -> Decision:
    return decide_mark_delivered(
        state,
        speaker,
        intent,
        **{"intent_id": "intent-1", "incarnation_id": "inc-1", "turn_id": "turn-1", "batch_id": "batch-1", **given},
        now=NOW,
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("M/o", {"state": IntentState.DELIVERED, "delivered_at": NOW}),
        ("M/o offered", {"state": IntentState.DELIVERED, "delivered_at": NOW}),
        ("M/c", {"state": IntentState.DELIVERED, "delivered_at": NOW, "consumed_at": NOW}),
        ("M/c offered", {"state": IntentState.DELIVERED, "delivered_at": NOW, "consumed_at": NOW}),
    ],
)
def test_the_report_sets_state_first_time_and_marker_and_keeps_the_proof(shape, expected):
    state = pane(row(shape))
    decision = mark(state, row(shape), state.live)
    assert decision.answer == Applied()
    assert [event for _, event in decision.intent_events] == [MarkDelivered()]
    assert changed(row(shape), intent_after(decision)) == expected
    assert only(written(decision), IncarnationRecord).delivered_intent_id == "intent-1"


@pytest.mark.parametrize("shape", ["L/o", "L/o offered", "L/c", "A", "A discarded"])
def test_a_report_repeated_changes_nothing(shape):
    state = pane(row(shape))
    assert mark(state, row(shape), state.live) == Decision(answer=Unchanged())


# Each check with every later one failing too: (speaker, intent, ids that do not match) -> the answer.
BAD_TUPLES = [{"turn_id": "turn-9"}, {"batch_id": "batch-9"}]
STALE = retired(incarnation())
ELSEWHERE = incarnation(pane_id="pane-2")


@pytest.mark.parametrize("bad", [{}, *BAD_TUPLES])
@pytest.mark.parametrize(
    ("speaker", "intent", "answer"),
    [
        (None, None, Reason.UNKNOWN_INCARNATION),
        (None, row("A"), Reason.UNKNOWN_INCARNATION),
        (ELSEWHERE, None, Reason.OTHER_PANE),
        (retired(ELSEWHERE), row("A"), Reason.OTHER_PANE),
        (STALE, None, Reason.RETIRED_INCARNATION),
        (STALE, row("A"), Reason.RETIRED_INCARNATION),
        (STALE, row("L/c"), Reason.RETIRED_INCARNATION),
        (incarnation(), None, Reason.UNKNOWN_INTENT),
        (incarnation(), row("M/o", pane_id="pane-2"), Reason.UNKNOWN_INTENT),
        (incarnation(), row("A", pane_id="pane-2"), Reason.UNKNOWN_INTENT),
        (incarnation(), row("A"), "unchanged"),
        (incarnation(), row("M/r"), Reason.OTHER_MODE),
        (incarnation(), row("L/r"), Reason.OTHER_MODE),
        (incarnation(), row("L/h"), Reason.OTHER_MODE),
        (incarnation(), row("X of M/r"), Reason.OTHER_MODE),
        (incarnation(), row("D"), Reason.NOT_PREPARED),
        (incarnation(), row("C/o"), Reason.NOT_PREPARED),
        (incarnation(), row("C/c"), Reason.NOT_PREPARED),
        (incarnation(), row("C/x"), Reason.NOT_PREPARED),
        (incarnation(), row("RR, batch open"), Reason.NOT_PREPARED),
        (incarnation(), row("TD, batch complete"), Reason.NOT_PREPARED),
        (incarnation(), row("S"), Reason.NOT_PREPARED),
        (incarnation(), row("M/n"), Reason.PROOF_MISMATCH),
    ],
)
def test_a_reports_checks_come_in_the_contracts_order(speaker, intent, answer, bad):
    decision = mark(pane(row("M/o")), intent, speaker, **bad)
    if answer == "unchanged":
        assert decision == Decision(answer=Unchanged())
    else:
        assert refused(decision) is answer


@pytest.mark.parametrize("bad", [*BAD_TUPLES, {"turn_id": "turn-9", "batch_id": "batch-9"}])
@pytest.mark.parametrize("shape", ["M/o", "M/c offered", "L/o", "L/c"])
def test_a_report_of_another_tuple_is_refused(shape, bad):
    state = pane(row(shape))
    assert refused(mark(state, row(shape), state.live, **bad)) is Reason.PROOF_MISMATCH


def test_a_live_incarnation_that_is_not_the_bound_one_reports_nothing():
    other = incarnation("inc-9", 2)
    state = evolve(pane(row("M/o")), latest=other)
    assert refused(mark(state, row("M/o"), other, incarnation_id="inc-9")) is Reason.PROOF_MISMATCH


# -- section 5: batch completion (I-8) -------------------------------------------------------------------------------


def complete(state: PaneState, speaker: IncarnationRecord | None, **given: str) -> Decision:
    usual = {"incarnation_id": "inc-1", "turn_id": "turn-1", "batch_id": "batch-1"}
    return decide_batch_completed(state, speaker, **{**usual, **given}, now=NOW)


@pytest.mark.parametrize("shape", ["C/o", "M/o", "M/o offered", "L/o", "RR, batch open", "TD, batch open"])
def test_the_exact_batchs_completion_is_recorded_and_acknowledges_nothing(shape):
    state = pane(row(shape))
    decision = complete(state, state.live)
    assert decision.answer == Applied()
    assert [event for _, event in decision.intent_events] == [CompleteBatch()]
    after = intent_after(decision)
    assert (after.batch_completed_at, after.state, after.acknowledged_at) == (NOW, row(shape).state, None)


@pytest.mark.parametrize("shape", ["C/c", "M/c", "M/c offered", "L/c", "RR, batch complete", "TD, batch complete"])
def test_a_completion_repeated_keeps_the_first_time(shape):
    state = pane(row(shape))
    assert complete(state, state.live) == Decision(answer=Unchanged())


@pytest.mark.parametrize(
    "given", [{"batch_id": "batch-9"}, {"turn_id": "turn-2"}, {"turn_id": "turn-2", "batch_id": "batch-9"}]
)
@pytest.mark.parametrize("shape", ["D", "C/o", "M/o", "M/c", "L/o", "L/c", "TD", "RR, batch open", None])
def test_the_completion_of_any_other_batch_is_ignored(shape, given):
    state = pane(None if shape is None else row(shape))
    assert complete(state, state.live, **given) == Decision(answer=Unchanged())


def test_the_completion_of_a_passed_batch_changes_nothing():
    for head in (None, row("D"), row("TD")):
        state = pane(head)
        assert complete(state, state.live) == Decision(answer=Unchanged())


@pytest.mark.parametrize("shape", ["M/r", "L/r", "L/h"])
def test_startup_input_has_no_batch_to_complete(shape):
    state = pane(row(shape))
    assert refused(complete(state, state.live, incarnation_id="inc-2")) is Reason.OTHER_MODE


@pytest.mark.parametrize(
    ("speaker", "reason"),
    [
        (None, Reason.UNKNOWN_INCARNATION),
        (STALE, Reason.RETIRED_INCARNATION),
        (ELSEWHERE, Reason.OTHER_PANE),
    ],
)
@pytest.mark.parametrize("shape", ["C/o", "M/o", "L/o", "M/r"])
def test_a_fenced_process_completes_nothing(shape, speaker, reason):
    assert refused(complete(pane(row(shape)), speaker)) is reason


@pytest.mark.parametrize(
    ("speaker", "reason"),
    [
        (incarnation(), None),
        (None, Reason.UNKNOWN_INCARNATION),
        (ELSEWHERE, Reason.OTHER_PANE),
        (retired(ELSEWHERE), Reason.OTHER_PANE),
        (STALE, Reason.RETIRED_INCARNATION),
    ],
)
def test_the_fence_names_its_reason(speaker, reason):
    assert judge_speaker(PANE, speaker) is reason


# -- section 5: how a reconciliation ends ----------------------------------------------------------------------------


def end(state: PaneState, outcome: Outcome, known: frozenset[str] = frozenset(), limits: Limits = LIMITS) -> Decision:
    assert state.head is not None
    return decide_outcome(state, state.head, outcome, known, limits, NOW, mint())


def result(payload: bytes = PAYLOAD, **more: Any) -> Reconciled:
    return Reconciled("op-r", "commit-r", payload, Anchor("change-a", "commit-a", "op-a"), **more)


@pytest.mark.parametrize(("shape", "mode"), [("C/o", "soft_batch"), ("C/c", "soft_batch"), ("C/x", None)])
def test_a_result_is_prepared_in_one_write(shape, mode):
    decision = end(pane(row(shape)), RESULT)
    assert decision.answer == Applied()
    after = intent_after(decision)
    assert (after.state, after.payload, after.prepared_at) == (IntentState.MATERIALIZED, PAYLOAD, NOW)
    assert after.mode == mode
    assert after.batch_completed_at == row(shape).batch_completed_at


@pytest.mark.parametrize("shape", ["C/o", "C/c"])
@pytest.mark.parametrize("latest", [retired(incarnation()), incarnation("inc-9", 2)])
def test_a_result_for_a_process_that_is_gone_keeps_no_soft_proof(shape, latest):
    state = evolve(pane(row(shape)), latest=latest)
    after = intent_after(end(state, RESULT))
    assert (after.state, after.mode, after.batch_id, after.incarnation_id) == (
        IntentState.MATERIALIZED,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("shape", ["C/o", "C/c", "C/x"])
def test_a_truthful_failure_blocks_and_hands_nothing_out(shape):
    needs = NeedsRecovery("dirty", bundle_path="/b", bundle_fingerprint="f", details={"files": ["a"]})
    after = intent_after(end(pane(row(shape)), needs))
    assert (after.state, after.reason, after.payload) == (IntentState.RECOVERY_REQUIRED, "dirty", None)
    assert (after.bundle_path, after.bundle_fingerprint, after.recovery_details) == ("/b", "f", '{"files":["a"]}')
    assert after.mode == row(shape).mode
    after = intent_after(end(pane(row(shape)), Diverged("ambiguous", details="words")))
    assert (after.state, after.reason, after.recovery_details) == (IntentState.TOPOLOGY_DIVERGED, "ambiguous", "words")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff\xfe", Reason.PAYLOAD_NOT_TEXT),
        ("é".encode("latin-1"), Reason.PAYLOAD_NOT_TEXT),
        (b"\xed\xa0\x80", Reason.PAYLOAD_NOT_TEXT),
        (b"123456789", Reason.PAYLOAD_TOO_LARGE),
        (b"\xff" * 9, Reason.PAYLOAD_TOO_LARGE),
    ],
)
def test_a_payload_no_channel_can_carry_is_not_prepared(payload, reason):
    decision = end(pane(row("C/o")), result(payload), limits=Limits(payload_bytes_max=8))
    assert [event for _, event in decision.intent_events] == [RequireRecovery(reason=reason)]


@pytest.mark.parametrize("payload", [b"", b"12345678", "\ufffd\r\n".encode(), "–".encode()])
def test_a_payload_is_kept_byte_for_byte(payload):
    after = intent_after(end(pane(row("C/o")), result(payload), limits=Limits(payload_bytes_max=8)))
    assert (after.state, after.payload) == (IntentState.MATERIALIZED, payload)


@pytest.mark.parametrize("shape", ["M/o", "M/n", "L/c", "L/h", "X of M/r"])
def test_a_second_result_is_unchanged_or_refused_and_never_written(shape):
    assert end(pane(row(shape)), RESULT) == Decision(answer=Unchanged())
    assert refused(end(pane(row(shape)), result(b"other"))) is Reason.PAYLOAD_DRIFT


@pytest.mark.parametrize("outcome", [RESULT, NeedsRecovery("late"), Diverged("late")])
@pytest.mark.parametrize("shape", ["D", "RR", "TD", "M/o", "L/c", "L/h"])
def test_an_outcome_out_of_place_changes_nothing(shape, outcome):
    assert not end(pane(row(shape)), outcome).writes


def queue() -> PaneState:
    head = row("C/o")
    later = [behind(head, seq, from_base=f"base-{seq - 1}", to_base=f"base-{seq}") for seq in (2, 3, 4)]
    later[2] = evolve(later[2], state=IntentState.TOPOLOGY_DIVERGED, reason="ambiguous")
    return pane(head, *later)


def test_a_result_supersedes_the_detected_intents_it_covers():
    state = queue()
    decision = end(state, result(covers=("intent-2", "intent-4", "intent-1", "intent-99")))
    assert [(intent.intent_id, type(event).__name__) for intent, event in decision.intent_events] == [
        ("intent-2", "Supersede"),
        ("intent-1", "Prepare"),
    ]
    assert decision.intent_events[0][1] == Supersede(by_intent_id="intent-1")
    after = committed(state, decision)
    assert [intent.intent_id for intent in after.intents] == ["intent-1", "intent-3", "intent-4"]


def test_a_result_opens_what_it_discovered_in_its_order():
    state = queue()
    discovered = (
        moved("base-4", "base-5", "op-5"),
        moved("base-5", "base-6", "op-6"),
        moved("base-6", "base-7", "op-known"),
        moved("base-6", "base-7", "op-5"),
        moved("base-6", "base-8", "op-8", ambiguous="two parents"),
    )
    decision = end(state, result(covers=("intent-3",), discovered=discovered), frozenset({"op-known"}))
    opened = [put for put in decision.puts if isinstance(put, IntentRecord)]
    assert [(intent.seq, intent.to_base, intent.state) for intent in opened] == [
        (5, "base-5", IntentState.DETECTED),
        (6, "base-6", IntentState.DETECTED),
        (7, "base-8", IntentState.TOPOLOGY_DIVERGED),
    ]
    triggers = [put for put in decision.puts if isinstance(put, TriggerRecord)]
    assert [(trigger.operation_id, trigger.position) for trigger in triggers] == [("op-5", 0), ("op-6", 0), ("op-8", 0)]
    assert decision.answer == Applied()
    after = committed(state, decision)
    assert [intent.seq for intent in after.intents] == [1, 2, 4, 5, 6, 7]
    assert after.seq_last == 7
    assert after.head is not None
    assert after.head.state is IntentState.MATERIALIZED


# -- a human's word (I-13) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "state"),
    [
        ("RR", IntentState.RECONCILING),
        ("RR, batch open", IntentState.RECONCILING),
        ("TD, batch complete", IntentState.RECONCILING),
        ("TD", IntentState.DETECTED),
    ],
)
def test_a_resolution_is_recorded_and_leads_on(shape, state):
    decision = decide_resolve(pane(row(shape)), "intent-1", "keep ours", "ann", NOW)
    assert decision.answer == Applied()
    after = intent_after(decision)
    assert (after.state, after.resolution, after.resolved_by) == (state, "keep ours", "ann")


def test_with_nobody_alive_a_diverged_head_is_reconciled_at_once():
    state = evolve(pane(row("TD")), latest=None)
    assert intent_after(decide_resolve(state, "intent-1", "r", "b", NOW)).state is IntentState.RECONCILING


@pytest.mark.parametrize("shape", [shape for shape in UNRESOLVED if not shape.startswith(("RR", "TD"))])
def test_there_is_nothing_to_resolve_in_what_is_not_blocked(shape):
    assert decide_resolve(pane(row(shape)), "intent-1", "r", "b", NOW) == Decision(answer=Unchanged())


def test_only_the_head_is_resolved():
    state = queue()
    assert refused(decide_resolve(state, "intent-4", "r", "b", NOW)) is Reason.RECONCILING
    assert refused(decide_resolve(state, "intent-9", "r", "b", NOW)) is Reason.UNKNOWN_INTENT


# -- the pane as its rows make it ------------------------------------------------------------------------------------


def test_an_older_incarnation_does_not_take_the_place_of_the_latest():
    state = pane(row("M/r"))
    assert state.after([retired(incarnation())]).latest == state.latest
    assert state.after([retired(replacement(row("M/r")))]).live is None


def test_a_resolved_intent_leaves_the_pane_and_its_seq_stays():
    state = pane(row("L/c"), behind(row("L/c")))
    after = state.after([row("A")])
    assert ([intent.seq for intent in after.intents], after.seq_last) == ([2], 2)
    assert pane(row("L/c")).after([row("A")]).seq_last == 1


# -- random walks: whatever is called in whatever order, section 10 holds --------------------------------------------

STATE = IntentState
ACTIVE = {STATE.RECONCILING, STATE.MATERIALIZED, STATE.DELIVERED, STATE.RECOVERY_REQUIRED}
RESOLVED = {STATE.ACKNOWLEDGED, STATE.SUPERSEDED}
PREPARED = ("result_op", "workspace_commit", "payload", "payload_sha256", "prepared_at")
ANCHOR = ("anchor_change_id", "anchor_commit_id", "anchor_op_id")
TUPLE = ("turn_id", "turn_ordinal", "batch_id", "bound_at")
KINDS = {
    "incarnation.launched",
    "incarnation.ready",
    "incarnation.retired",
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


def broken_laws(intents: list[IntentRecord], incarnations: list[IncarnationRecord]) -> list[str]:
    """Section 10, as far as the rows of one pane can tell, each law by its number.  Trusts no law of the records."""
    broken: list[str] = []

    def law(number: int, holds: object, of: object) -> None:
        if not holds:
            broken.append(f"invariant {number}: {of}")

    by_id = {intent.intent_id: intent for intent in intents}
    live = [incarnation for incarnation in incarnations if incarnation.retired_at is None]
    for intent in intents:
        prepared = [getattr(intent, name) is not None for name in (*PREPARED, *ANCHOR)]
        tuple_set = [getattr(intent, name) is not None for name in TUPLE]
        soft, restart = intent.mode is DeliveryMode.SOFT_BATCH, intent.mode is DeliveryMode.RESTART_STARTUP
        late = intent.state in {STATE.MATERIALIZED, STATE.DELIVERED, STATE.ACKNOWLEDGED}
        law(1, all(prepared) if late else not any(prepared), intent)
        law(2, intent.state is not STATE.DELIVERED or intent.delivered_at is not None, intent)
        if intent.state is STATE.ACKNOWLEDGED:
            law(2, intent.acknowledged_at is not None and (intent.discarded or intent.delivered_at is not None), intent)
            law(10, intent.delivered_at is None or intent.delivered_at <= (intent.acknowledged_at or 0), intent)
        law(5, all(tuple_set) if soft else not any(tuple_set), intent)
        law(5, soft or (intent.batch_completed_at is None and intent.payload_offered_at is None), intent)
        law(5, restart == (intent.startup_delivery_id is not None), intent)
        law(5, restart or intent.handshake_at is None, intent)
        law(5, (intent.incarnation_id is not None) == (intent.mode is not None), intent)
        law(5, intent.state is not STATE.DELIVERED or intent.mode is not None, intent)
        law(6, intent.state not in {STATE.DETECTED, *RESOLVED} or intent.mode is None, intent)
        if restart:
            bound = [one for one in incarnations if one.startup_delivery_id == intent.startup_delivery_id]
            law(8, [one.incarnation_id for one in bound] == [intent.incarnation_id], intent)
        law(7, sum(one.delivered_intent_id == intent.intent_id for one in live) <= 1, intent)
    law(4, len({intent.seq for intent in intents}) == len(intents), "seq")
    law(4, sum(intent.state in ACTIVE for intent in intents) <= 1, "active")
    unresolved = sorted((intent for intent in intents if intent.state not in RESOLVED), key=lambda intent: intent.seq)
    for intent in unresolved[1:]:
        law(4, intent.state in {STATE.DETECTED, STATE.TOPOLOGY_DIVERGED} and intent.mode is None, intent)
    for one in incarnations:
        marker = one.delivered_intent_id
        law(7, one.retired_at is None or marker is None, one)
        if marker is not None:
            marked = by_id.get(marker)
            law(7, marked is not None and marked.state is STATE.DELIVERED, one)
            law(7, marked is not None and marked.incarnation_id == one.incarnation_id, one)
            law(7, marked is not None and marked.pane_id == one.pane_id, one)
    startups = [one.startup_delivery_id for one in incarnations if one.startup_delivery_id is not None]
    law(8, len(set(startups)) == len(startups), startups)
    law(12, len(live) <= 1, live)
    return broken


def broken_succession(old: IntentRecord, new: IntentRecord) -> list[str]:
    """The laws of section 10 between a row and its next revision."""
    broken: list[str] = []

    def law(number: int, holds: object) -> None:
        if not holds:
            broken.append(f"invariant {number}: {old} -> {new}")

    law(11, old.state not in RESOLVED)
    law(4, (old.seq, old.pane_id, old.from_base) == (new.seq, new.pane_id, new.from_base))
    if old.prepared_at is not None:
        law(3, all(getattr(old, name) == getattr(new, name) for name in (*PREPARED, *ANCHOR, "to_base", "kind")))
    law(9, old.delivered_at is None or old.delivered_at == new.delivered_at)
    law(9, old.batch_completed_at is None or new.batch_completed_at in {None, old.batch_completed_at})
    law(
        9,
        old.payload_offered_at is None or new.payload_offered_at in {None, old.payload_offered_at} or rebound(old, new),
    )
    law(9, old.consumed_at is None or old.consumed_at == new.consumed_at)
    recovered = old.state is STATE.MATERIALIZED and new.state is STATE.ACKNOWLEDGED and not new.discarded
    law(10, not recovered or new.delivered_at == old.batch_completed_at is not None)
    law(10, not recovered or old.payload_offered_at is not None)
    law(13, new.prepared_at == old.prepared_at or old.state is STATE.RECONCILING)
    return broken


def rebound(old: IntentRecord, new: IntentRecord) -> bool:
    return (old.turn_id, old.batch_id) != (new.turn_id, new.batch_id)


def test_the_checker_notices_each_broken_law():
    inc_2 = replacement(row("L/h"))
    marked = incarnation(delivered_intent_id="intent-1")
    good = ([row("L/h")], [retired(incarnation()), inc_2])
    assert broken_laws(*good) == []

    def spoiled(record: Any, **changes: Any) -> Any:
        copy = evolve(record)
        for name, value in changes.items():
            object.__setattr__(copy, name, value)
        return copy

    cases: list[tuple[int, list[IntentRecord], list[IncarnationRecord]]] = [
        (1, [spoiled(row("M/n"), payload=None)], []),
        (1, [spoiled(row("D"), payload=b"early")], []),
        (1, [spoiled(row("A"), anchor_op_id=None)], []),
        (2, [spoiled(row("L/c"), delivered_at=None)], [incarnation()]),
        (2, [spoiled(row("A"), delivered_at=None)], []),
        (4, [row("M/n"), row("D", intent_id="intent-2")], []),
        (4, [row("M/n"), row("C/x", intent_id="intent-2", seq=2)], []),
        (4, [row("D"), row("RR", intent_id="intent-2", seq=2)], []),
        (5, [spoiled(row("M/o"), bound_at=None)], [incarnation()]),
        (5, [spoiled(row("M/o"), mode=None)], [incarnation()]),
        (5, [spoiled(row("M/n"), batch_completed_at=4)], []),
        (6, [spoiled(row("A"), mode=DeliveryMode.SOFT_BATCH)], []),
        (7, [row("M/o")], [marked]),
        (7, [row("L/h")], [marked, spoiled(inc_2, delivered_intent_id=None)]),
        (7, [row("L/c")], [spoiled(marked, retired_at=9)]),
        (8, [row("L/h")], [retired(incarnation(startup_delivery_id="startup-2", **STARTUP)), inc_2]),
        (10, [spoiled(row("A"), delivered_at=501)], []),
        (12, [], [incarnation(), incarnation("inc-2", 2)]),
    ]
    for number, intents, incarnations in cases:
        assert any(found.startswith(f"invariant {number}:") for found in broken_laws(intents, incarnations)), number


STARTUP = {"startup_intent_id": "intent-1", "startup_payload_sha256": "0", "startup_epoch": 0, "startup_attempt": 1}


WHO = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 9])
MOSTLY = st.sampled_from([True, True, True, False])


class PaneWalk(RuleBasedStateMachine):
    """A pane, and a store that holds nothing but rows.  Ids and turns are drawn so that calls often fit."""

    def __init__(self) -> None:
        super().__init__()
        self.state = PaneState(pane_id=PANE)
        self.limits = Limits(startup_attempts_max=2, soft_redeliveries_max=1, payload_bytes_max=64)
        self.rows: dict[tuple[type[Record], tuple[object, ...]], Any] = {}
        self.payloads: dict[str, bytes] = {}
        self.now = 1_000
        self.base = 0
        self.mint: Callable[[str], str] = mint()
        self.operations = itertools.count(1)
        self.turn = 1

    # -- the store --

    def of(self, kind: type[Record]) -> list[Any]:
        return [record for (found, _), record in self.rows.items() if found is kind]

    def commit(self, decision: Decision) -> None:
        rows = list(decision.puts)
        kinds = [event.kind for event in decision.events]
        for before, event in decision.intent_events:
            assert before == self.rows[IntentRecord, before.key], "decided on a row that is not the stored one"
            taken = step(before, event, self.now)
            rows.extend(taken.puts)
            kinds += [news.kind for news in taken.events]
            if isinstance(event, Acknowledge | AcknowledgeRecovered):
                assert before.state is STATE.DELIVERED or isinstance(event, AcknowledgeRecovered)
        assert set(kinds) <= KINDS
        for record in rows:
            place = (type(record), record.key)
            old = self.rows.get(place)
            if record.VERSIONED:
                assert getattr(record, "revision") == (1 if old is None else old.revision + 1), record  # noqa: B009
            else:
                assert old is None, f"inserted twice: {record}"
            if old is not None and isinstance(record, IntentRecord):
                assert broken_succession(old, record) == []
            if isinstance(record, IntentRecord) and record.payload is not None:
                assert self.payloads.setdefault(record.intent_id, record.payload) == record.payload
            if old is None and isinstance(record, IntentRecord):
                assert record.seq == 1 + max((known.seq for known in self.of(IntentRecord)), default=0)
            self.rows[place] = record
        self.state = self.state.after(rows)

    # -- what a bridge may do --

    def someone(self, who: int) -> IncarnationRecord | None:
        """Most often the latest incarnation; sometimes an older one, or nobody."""
        known = sorted(self.of(IncarnationRecord), key=lambda one: -one.epoch)
        return known[who] if who < len(known) else None

    @initialize(soft=MOSTLY)
    def start(self, soft: bool) -> None:
        self.launch(soft, soft)

    @rule(follows=st.booleans(), ambiguous=st.sampled_from([*[None] * 7, "two parents"]))
    def detect(self, follows: bool, ambiguous: str | None) -> None:
        origin = self.state.intents[-1].to_base if follows and self.state.intents else f"other-{next(self.operations)}"
        self.base += 1
        transition = moved(origin, f"base-{self.base}", f"op-{next(self.operations)}", ambiguous=ambiguous)
        self.commit(decide_detect(self.state, transition, self.now, self.mint))

    @rule(soft=MOSTLY, ordered=MOSTLY)
    def launch(self, soft: bool, ordered: bool) -> None:
        capabilities = Capabilities(soft_batches=soft, turn_order=ordered)
        if needs_payload_first(self.state, capabilities):
            self.commit(begin_unattended(self.state, self.now))
            return
        try:
            decision = decide_launch(
                self.state,
                LaunchRequest(harness="claude", session_id=None, capabilities=capabilities),
                self.limits,
                self.now,
                self.mint,
            )
        except LaunchBlocked:
            note("blocked")
            return
        self.commit(decision)
        assert self.state.live is not None

    @rule(
        who=WHO,
        relation=st.sampled_from(["same batch", "same turn", "later", "later", "earlier", "forged", "no turn"]),
        batch=st.integers(1, 2),
        echo=MOSTLY,
        patient=st.booleans(),
        unseen=st.sampled_from([*[None] * 7, "yes", "maybe"]),
    )
    def call_a_tool(self, who: int, relation: str, batch: int, echo: bool, patient: bool, unseen: Any) -> None:
        speaker, head = self.someone(who), self.state.head
        bound = head.turn_ordinal if head is not None and head.turn_ordinal is not None else self.turn
        ordinal = {"later": bound + 1, "earlier": bound - 1}.get(relation, bound)
        self.turn = max(self.turn, ordinal)
        turn = None if relation == "no turn" else ModelTurn(f"turn-{ordinal}", ordinal + (relation == "forged"))
        same = head is not None and head.batch_id is not None and relation == "same batch"
        call = ToolBoundary(
            "nobody" if speaker is None else speaker.incarnation_id,
            turn,
            str(head.batch_id) if same and head is not None else f"batch-{ordinal}-{batch}",
            startup_delivery_id=head.startup_delivery_id if head is not None and echo else None,
            passed_unseen=unseen,
        )
        key = (AdmissionRecord, (call.incarnation_id, "" if turn is None else turn.id, call.batch_id))
        for _ in range(20):
            admission = self.rows.get(key)
            blocked_by = None if admission is None else self.rows.get((IntentRecord, (admission.intent_id,)))
            decision = decide_boundary(
                self.state,
                Boundary(
                    call=call,
                    speaker=self.someone(who),
                    admission=admission,
                    blocked_by=blocked_by,
                    patient=patient,
                    limits=self.limits,
                    now=self.now,
                    mint=self.mint,
                ),
            )
            head = self.state.head
            if decision.again:
                self.check_evidence(head, turn, call)
            if isinstance(decision.answer, Allow):
                assert head is None or head.mode is None, "allowed while a proof is open"
                assert admission is None or admission.decision is AdmissionDecision.PASS
                assert speaker is not None
                assert speaker.live
            if isinstance(decision.answer, BlockPayload):
                assert decision.answer.payload == self.payloads[decision.answer.intent_id]
            self.commit(decision)
            if not decision.again:
                return
        raise AssertionError("a call was decided again and again")

    @staticmethod
    def check_evidence(head: IntentRecord | None, turn: ModelTurn | None, call: ToolBoundary) -> None:
        """Section 6: every one of these must hold."""
        assert head is not None
        assert head.incarnation_id == call.incarnation_id
        if head.mode is DeliveryMode.RESTART_STARTUP:
            assert head.handshake_at is not None
            assert head.startup_delivery_id == call.startup_delivery_id
        else:
            assert head.batch_completed_at is not None
            assert head.turn_ordinal is not None
            assert turn is not None
            assert turn.ordinal > head.turn_ordinal
            assert turn.id != head.turn_id
            assert call.batch_id != head.batch_id
            assert head.state is STATE.DELIVERED or head.payload_offered_at is not None

    @rule(who=WHO, exact=MOSTLY)
    def report_delivered(self, who: int, exact: bool) -> None:
        speaker, head = self.someone(who), self.state.head
        intent = head if head is not None and exact else (self.of(IntentRecord) or [None])[0]
        turn_id, batch_id = (head.turn_id, head.batch_id) if head is not None and exact else ("turn-1", "batch-1-1")
        self.commit(
            decide_mark_delivered(
                self.state,
                speaker,
                intent,
                intent_id="nothing" if intent is None else intent.intent_id,
                incarnation_id="nobody" if speaker is None else speaker.incarnation_id,
                turn_id=turn_id or "turn-1",
                batch_id=batch_id or "batch-1-1",
                now=self.now,
            )
        )

    @rule(who=WHO, exact=MOSTLY)
    def complete_batch(self, who: int, exact: bool) -> None:
        speaker, head = self.someone(who), self.state.head
        turn_id, batch_id = (head.turn_id, head.batch_id) if head is not None and exact else ("turn-1", "batch-1-1")
        self.commit(
            decide_batch_completed(
                self.state,
                speaker,
                incarnation_id="nobody" if speaker is None else speaker.incarnation_id,
                turn_id=turn_id or "turn-1",
                batch_id=batch_id or "batch-1-1",
                now=self.now,
            )
        )

    @rule(
        how=st.sampled_from([*["done"] * 5, "covering", "discovering", "recovery", "diverged", "not text"]),
        late=st.booleans(),
    )
    def end_reconciliation(self, how: str, late: bool) -> None:
        head = self.state.head
        if head is None or (head.state is not STATE.RECONCILING and not late):
            return
        outcome: Outcome = result(f"payload {next(self.operations)}".encode())
        if how == "covering":
            outcome = evolve(outcome, covers=tuple(intent.intent_id for intent in self.state.intents))
        elif how == "discovering":
            found = tuple(moved(f"d-{n}", f"e-{n}", f"op-{next(self.operations)}") for n in range(3))
            outcome = evolve(outcome, discovered=found)
        elif how == "recovery":
            outcome = NeedsRecovery("dirty")
        elif how == "diverged":
            outcome = Diverged("ambiguous")
        elif how == "not text":
            outcome = result(b"\xff")
        self.commit(decide_outcome(self.state, head, outcome, frozenset(), self.limits, self.now, self.mint))

    @rule(who=WHO, failed=st.booleans())
    def end_incarnation(self, who: int, failed: bool) -> None:
        speaker = self.someone(who)
        name = "nobody" if speaker is None else speaker.incarnation_id
        decide = decide_launch_failed if failed else decide_retire
        self.commit(decide(self.state, speaker, name, "gone", self.now, limits=self.limits, mint=self.mint))

    @rule(who=WHO, honest=MOSTLY)
    def shake_hands(self, who: int, honest: bool) -> None:
        speaker = self.someone(who)
        intent = None if speaker is None else self.rows.get((IntentRecord, (speaker.startup_intent_id,)))
        minted = None if speaker is None else speaker.startup_delivery_id
        digest = None if speaker is None else speaker.startup_payload_sha256
        self.commit(
            decide_handshake(
                self.state,
                speaker,
                intent,
                incarnation_id="nobody" if speaker is None else speaker.incarnation_id,
                startup_delivery_id=(minted or "none") if honest else "wrong",
                payload_sha256=digest or "",
                now=self.now,
            )
        )

    @rule(discard=st.booleans(), known=MOSTLY)
    def lead_out_of_exhaustion(self, discard: bool, known: bool) -> None:
        head = self.state.head
        intent_id = head.intent_id if head is not None and known else "nothing"
        if discard:
            approval = "wrong" if head is None or head.approval is None or not known else head.approval
            self.commit(decide_discard(self.state, intent_id, approval, self.now))
        else:
            self.commit(decide_rearm(self.state, intent_id, self.now))

    @rule(newest=st.booleans())
    def resolve(self, newest: bool) -> None:
        if self.state.intents:
            intent = self.state.intents[-1 if newest else 0]
            self.commit(decide_resolve(self.state, intent.intent_id, "as it is", "ann", self.now))

    @rule(batch=st.integers(1, 2))
    def go_on(self, batch: int) -> None:
        """Whatever comes next when all goes well, so that walks get far."""
        head = self.state.head
        if head is None:
            self.detect(True, None)
        elif head.exhausted_at is not None:
            self.lead_out_of_exhaustion(False, True)
        elif head.state in {STATE.RECOVERY_REQUIRED, STATE.TOPOLOGY_DIVERGED}:
            self.resolve(False)
        elif head.state is STATE.RECONCILING:
            self.end_reconciliation("done", False)
        elif self.state.live is None:
            self.launch(True, True)
        elif head.mode is DeliveryMode.RESTART_STARTUP and head.handshake_at is None:
            self.shake_hands(0, True)
        elif head.mode is DeliveryMode.SOFT_BATCH and head.batch_completed_at is None:
            if head.payload_offered_at is None:
                self.call_a_tool(0, "same batch", batch, False, True, None)
            elif batch == 1 and head.state is STATE.MATERIALIZED:
                self.report_delivered(0, True)
            else:
                self.complete_batch(0, True)
        else:
            self.call_a_tool(0, "later", batch, True, True, None)

    @rule(seconds=st.sampled_from([1, 10, -20]))
    def let_time_pass(self, seconds: int) -> None:
        self.now = max(1, self.now + seconds)

    # -- what always holds --

    @invariant()
    def section_10_holds(self) -> None:
        assert broken_laws(self.of(IntentRecord), self.of(IncarnationRecord)) == []

    @invariant()
    def the_pane_knows_what_the_store_holds(self) -> None:
        incarnations = sorted(self.of(IncarnationRecord), key=lambda one: one.epoch)
        intents = sorted(self.of(IntentRecord), key=lambda intent: intent.seq)
        assert self.state.latest == (incarnations[-1] if incarnations else None)
        assert list(self.state.intents) == [intent for intent in intents if intent.state not in RESOLVED]
        assert self.state.seq_last == (intents[-1].seq if intents else 0)
        assert [one.epoch for one in incarnations] == [*range(1, len(incarnations) + 1)]

    @invariant()
    def attempts_are_counted_from_the_rows_and_bounded(self) -> None:
        head = self.state.head
        if head is not None:
            rows = [
                one
                for one in self.of(IncarnationRecord)
                if (one.startup_intent_id, one.startup_epoch) == (head.intent_id, head.epoch)
            ]
            assert self.state.startup_attempts == len(rows) <= self.limits.startup_attempts_max

    @invariant()
    def nobody_is_stuck(self) -> None:
        """Whatever stands, somebody can lead on: a call, a launch, a reconciliation's end, or a person."""
        head = self.state.head
        if head is None or self.state.live is not None or head.exhausted_at is not None:
            return
        if head.state in {STATE.MATERIALIZED, STATE.DELIVERED, STATE.DETECTED}:
            decide_launch(
                self.state,
                LaunchRequest(harness="x", session_id=None, capabilities=Capabilities()),
                self.limits,
                self.now,
                mint(),
            )


TestPaneWalk = PaneWalk.TestCase


def test_the_turns_of_the_worlds_are_ordered():
    assert LATER.ordinal > TURN.ordinal
