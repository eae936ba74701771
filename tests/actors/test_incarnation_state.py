"""Launch, handshake, failure and retirement (sections 7 and 8), every row of them written out again."""

from __future__ import annotations

import pytest
from actors.worlds import (
    LIMITS,
    NOW,
    PANE,
    PAYLOAD,
    PAYLOAD_SHA256,
    SHAPES,
    changed,
    committed,
    incarnation,
    intent_after,
    mint,
    pane,
    replacement,
    retired,
    row,
    written,
)
from attrs import evolve

from fencepost.actors.decision import Decision, Replace, RetiredIncarnation
from fencepost.actors.incarnation_state import (
    LaunchRequest,
    begin_unattended,
    check_launch,
    decide_handshake,
    decide_launch,
    decide_launch_failed,
    decide_retire,
    needs_payload_first,
    unproved,
    withdraw,
)
from fencepost.actors.intent_events import Exhaust
from fencepost.actors.messages import Applied, Capabilities, Launch, Reason, Refused, StartupDelivery, Unchanged
from fencepost.actors.pane_resolution import decide_discard, decide_rearm
from fencepost.actors.pane_state import Limits, PaneState
from fencepost.mailbox.errors import LaunchBlocked
from fencepost.mailbox.records import DeliveryMode, IncarnationRecord, IntentState

REQUEST = LaunchRequest(
    harness="codex", session_id="session-2", capabilities=Capabilities(soft_batches=True, turn_order=False)
)
UNRESOLVED = [shape for shape in SHAPES if not row(shape).resolved]
LAST = LIMITS.startup_attempts_max


def launch(state: PaneState, limits: Limits = LIMITS) -> Decision:
    return decide_launch(state, REQUEST, limits, NOW, mint())


def incarnations(decision: Decision) -> list[IncarnationRecord]:
    return [put for put in written(decision) if isinstance(put, IncarnationRecord)]


def refused(decision: Decision) -> Reason:
    """The reason of a refusal that leaves a dead letter and nothing else."""
    assert isinstance(decision.answer, Refused)
    (letter,) = decision.dead_letters
    assert (letter.reason, letter.at, letter.address) == (decision.answer.reason, NOW, "pane:pane-1")
    assert (decision.puts, decision.intent_events, decision.events, decision.effects) == ((), (), (), ())
    return decision.answer.reason


# -- section 8: what the head allows ---------------------------------------------------------------------------------

PLAIN, BOUND, BLOCKED = "plainly", "bound", "not at all"
LAUNCH_RULE = {
    "D": PLAIN,
    "C/o": BLOCKED,
    "C/c": BLOCKED,
    "C/x": BLOCKED,
    "M/o": BOUND,
    "M/o offered": BOUND,
    "M/c": BOUND,
    "M/c offered": BOUND,
    "M/n": BOUND,
    "L/o": BOUND,
    "L/o offered": BOUND,
    "L/c": BOUND,
    "M/r": BOUND,
    "L/r": BOUND,
    "L/h": BOUND,
    "X of M/r": BLOCKED,
    "X of L/r": BLOCKED,
    "X of L/h": BLOCKED,
    "RR": BLOCKED,
    "RR, batch open": BLOCKED,
    "RR, batch complete": BLOCKED,
    "TD": BLOCKED,
    "TD, batch open": BLOCKED,
    "TD, batch complete": BLOCKED,
}


def test_the_launch_rule_is_written_out_for_every_unresolved_shape():
    assert set(LAUNCH_RULE) == set(UNRESOLVED)


@pytest.mark.parametrize("shape", [shape for shape, rule in LAUNCH_RULE.items() if rule == BLOCKED])
def test_a_launch_is_blocked_by_what_has_no_payload_or_is_a_persons_to_decide(shape):
    state = pane(row(shape))
    for attempt in (lambda: launch(state), lambda: check_launch(state, LIMITS)):
        with pytest.raises(LaunchBlocked) as blocked:
            attempt()
        assert (blocked.value.intent_id, blocked.value.state) == ("intent-1", row(shape).state)


@pytest.mark.parametrize("head", [None, "D", "A", "A discarded", "S"])
@pytest.mark.parametrize("alive", [True, False])
def test_a_launch_without_a_payload_is_plain_and_retires_the_one_before(head, alive):
    state = pane(None if head is None else row(head))
    state = state if alive else evolve(state, latest=retired(incarnation()))
    check_launch(state, LIMITS)
    decision = launch(state)
    assert decision.answer == Launch(PANE, "incarnation:1", 2, "codex", "session-2", None)
    assert decision.intent_events == ()
    *before, new = incarnations(decision)
    assert (new.epoch, new.revision, new.harness, new.session_id) == (2, 1, "codex", "session-2")
    assert (new.soft_batches, new.turn_order, new.launched_at) == (True, False, NOW)
    assert (new.startup_intent_id, new.startup_delivery_id, new.startup_attempt) == (None, None, None)
    assert [(old.incarnation_id, old.retired_at, old.relaunch) for old in before] == (
        [("inc-1", NOW, False)] if alive else []
    )
    kinds = [event.kind for event in decision.events]
    assert kinds == [*(["incarnation.retired"] if alive else []), "incarnation.launched"]


def test_the_first_launch_of_a_pane_has_epoch_1():
    assert launch(PaneState(pane_id=PANE)).answer == Launch(PANE, "incarnation:1", 1, "codex", "session-2", None)


@pytest.mark.parametrize("shape", [shape for shape, rule in LAUNCH_RULE.items() if rule == BOUND])
def test_a_bind_is_one_transaction_with_a_fresh_id_and_the_saved_bytes(shape):
    before = row(shape)
    state = pane(before)
    assert state.latest is not None
    attempt = 2 if before.mode is DeliveryMode.RESTART_STARTUP else 1
    decision = launch(state)
    startup = StartupDelivery("startup_delivery:2", "intent-1", PAYLOAD, PAYLOAD_SHA256)
    assert decision.answer == Launch(PANE, "incarnation:1", state.latest.epoch + 1, "codex", "session-2", startup)
    *gone, new = incarnations(decision)
    assert (new.startup_intent_id, new.startup_delivery_id) == ("intent-1", "startup_delivery:2")
    assert (new.startup_payload_sha256, new.startup_epoch, new.startup_attempt) == (PAYLOAD_SHA256, 0, attempt)
    assert (new.delivered_intent_id, new.live) == (None, True)
    assert [old.incarnation_id for old in gone] == ([state.latest.incarnation_id] if state.latest.live else [])
    assert all(not old.live and old.delivered_intent_id is None for old in gone)
    after = intent_after(decision)
    assert (after.mode, after.incarnation_id) == (DeliveryMode.RESTART_STARTUP, "incarnation:1")
    assert (after.startup_delivery_id, after.handshake_at) == ("startup_delivery:2", None)
    assert (after.turn_id, after.turn_ordinal, after.batch_id, after.bound_at) == (None, None, None, None)
    assert (after.batch_completed_at, after.payload_offered_at) == (None, None)
    for kept in ("state", "payload", "result_op", "prepared_at", "delivered_at", "acknowledged_at", "epoch"):
        assert getattr(after, kept) == getattr(before, kept)


def test_no_bind_uses_an_id_twice():
    state, ids = pane(row("M/n")), mint()
    seen = []
    for _ in range(LAST):
        decision = decide_launch(state, REQUEST, LIMITS, NOW, ids)
        new = incarnations(decision)[-1]
        seen += [new.incarnation_id, new.startup_delivery_id]
        state = committed(state, decision)
        state = committed(
            state,
            decide_retire(
                state, state.latest, new.incarnation_id, "gone", NOW, limits=Limits(startup_attempts_max=9), mint=ids
            ),
        )
    assert len(set(seen)) == len(seen)


# -- section 7.5: attempts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["M/r", "L/r", "L/h"])
def test_beside_the_live_last_attempt_nothing_is_launched(shape):
    state = pane(row(shape), attempt=LAST)
    with pytest.raises(LaunchBlocked, match="last permitted"):
        launch(state)
    assert launch(pane(row(shape), attempt=LAST - 1)).intent_events


def test_attempts_are_counted_within_the_intents_epoch():
    head = row("M/r")
    assert pane(head, attempt=3).startup_attempts == 3
    assert evolve(pane(head, attempt=3), intents=(row("M/r", epoch=1),)).startup_attempts == 0
    assert evolve(pane(head, attempt=3), intents=(row("M/r", intent_id="intent-9"),)).startup_attempts == 0
    assert pane(row("M/o")).startup_attempts == 0
    assert PaneState(pane_id=PANE).startup_attempts == 0


def test_a_bound_lowered_below_what_was_used_leaves_no_dead_end():
    head = row("M/r")
    state = evolve(pane(head), latest=retired(replacement(head, 2)))
    limits = Limits(startup_attempts_max=1)
    state = committed(state, launch(state, limits))
    with pytest.raises(LaunchBlocked):
        check_launch(state, limits)
    assert state.latest is not None
    gone = decide_retire(state, state.latest, state.latest.incarnation_id, "gone", NOW, limits=limits, mint=mint())
    assert intent_after(gone).exhausted_at == NOW


@pytest.mark.parametrize("decide", [decide_retire, decide_launch_failed])
@pytest.mark.parametrize("shape", ["M/r", "L/r", "L/h"])
def test_giving_up_the_last_attempt_exhausts_in_the_same_transaction(shape, decide):
    state = pane(row(shape), attempt=LAST)
    decision = decide(state, state.latest, "inc-2", "gone", NOW, limits=LIMITS, mint=mint())
    assert decision.answer == Applied()
    assert [event for _, event in decision.intent_events] == [Exhaust(approval="approval:1")]
    (gone,) = incarnations(decision)
    assert (gone.retired_at, gone.relaunch, gone.delivered_intent_id) == (NOW, False, None)
    assert Replace() not in decision.effects
    after = committed(state, decision)
    with pytest.raises(LaunchBlocked):
        launch(after)
    assert after.head is not None
    assert changed(row(shape), after.head) == {"exhausted_at": NOW, "approval": "approval:1"}


@pytest.mark.parametrize(("decide", "replaced"), [(decide_retire, False), (decide_launch_failed, True)])
@pytest.mark.parametrize("shape", ["M/r", "L/r", "L/h"])
def test_giving_up_an_earlier_attempt_leaves_the_intent_as_it_is(shape, decide, replaced):
    state = pane(row(shape), attempt=LAST - 1)
    decision = decide(state, state.latest, "inc-2", "gone", NOW, limits=LIMITS, mint=mint())
    assert decision.answer == Applied()
    assert decision.intent_events == ()
    (gone,) = incarnations(decision)
    assert (gone.retired_at, gone.retire_reason, gone.relaunch) == (NOW, "gone", replaced)
    assert (Replace() in decision.effects) is replaced
    assert committed(state, decision).head == row(shape)


@pytest.mark.parametrize("shape", ["X of M/r", "X of L/r", "X of L/h"])
def test_rearming_grants_a_whole_new_epoch_and_wishes_for_its_first_attempt(shape):
    state = pane(row(shape), attempt=LAST)
    decision = decide_rearm(state, "intent-1", NOW)
    assert decision.answer == Applied()
    assert decision.effects == (Replace(),)
    (latest,) = incarnations(decision)
    assert (latest.incarnation_id, latest.relaunch, latest.live) == ("inc-2", True, False)
    state = committed(state, decision)
    assert state.startup_attempts == 0
    bound = launch(state)
    wish_withdrawn, new = incarnations(bound)
    assert (wish_withdrawn.incarnation_id, wish_withdrawn.relaunch) == ("inc-2", False)
    assert (new.startup_epoch, new.startup_attempt) == (1, 1)


@pytest.mark.parametrize("shape", ["X of M/r", "X of L/r", "X of L/h"])
def test_a_discard_needs_the_approval_shown(shape):
    state = pane(row(shape))
    assert refused(decide_discard(state, "intent-1", "approval-0", NOW)) is Reason.PROOF_MISMATCH
    assert refused(decide_discard(state, "intent-1", "", NOW)) is Reason.PROOF_MISMATCH
    decision = decide_discard(state, "intent-1", "approval-1", NOW)
    assert decision.answer == Applied()
    after = intent_after(decision)
    assert (after.state, after.discarded, after.mode) == (IntentState.ACKNOWLEDGED, True, None)
    assert after.delivered_at == row(shape).delivered_at
    done = committed(state, decision)
    assert refused(decide_discard(done, "intent-1", "approval-1", NOW)) is Reason.UNKNOWN_INTENT


@pytest.mark.parametrize("shape", [shape for shape in UNRESOLVED if not shape.startswith("X")])
def test_what_is_not_exhausted_is_neither_rearmed_nor_discarded(shape):
    state = pane(row(shape))
    assert refused(decide_rearm(state, "intent-1", NOW)) is Reason.NOT_EXHAUSTED
    assert refused(decide_discard(state, "intent-1", "approval-1", NOW)) is Reason.NOT_EXHAUSTED
    assert refused(decide_rearm(state, "intent-9", NOW)) is Reason.UNKNOWN_INTENT
    assert refused(decide_discard(state, "intent-9", "approval-1", NOW)) is Reason.UNKNOWN_INTENT


# -- section 7.1: retirement -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [shape for shape in UNRESOLVED if pane(row(shape)).live is not None])
def test_retiring_changes_the_incarnation_and_not_the_intent(shape):
    state = pane(row(shape))
    assert state.live is not None
    decision = decide_retire(
        state, state.live, state.live.incarnation_id, "the host says so", NOW, limits=LIMITS, mint=mint()
    )
    assert decision.answer == Applied()
    (gone,) = incarnations(decision)
    expected = {"retired_at": NOW, "retire_reason": "the host says so"}
    if state.live.delivered_intent_id is not None:
        expected["delivered_intent_id"] = None
    assert changed(state.live, gone) == expected
    assert decision.effects == (RetiredIncarnation(),)
    assert [(event.kind, event.data["reason"]) for event in decision.events] == [
        ("incarnation.retired", "the host says so")
    ]
    assert committed(state, decision).intents == state.intents


@pytest.mark.parametrize("decide", [decide_retire, decide_launch_failed])
def test_ending_what_has_ended_changes_nothing(decide):
    state = pane(row("M/n"))
    decision = decide(state, state.latest, "inc-1", "again", NOW, limits=LIMITS, mint=mint())
    assert decision == Decision(answer=Unchanged())
    older = decide(pane(None), retired(incarnation("inc-0")), "inc-0", "again", NOW, limits=LIMITS, mint=mint())
    assert older == Decision(answer=Unchanged())


@pytest.mark.parametrize("decide", [decide_retire, decide_launch_failed])
@pytest.mark.parametrize(
    ("speaker", "reason"),
    [(None, Reason.UNKNOWN_INCARNATION), (incarnation("inc-9", pane_id="pane-2"), Reason.OTHER_PANE)],
)
def test_nobody_ends_an_incarnation_of_another_pane(decide, speaker, reason):
    decision = decide(pane(None), speaker, "inc-9", "gone", NOW, limits=LIMITS, mint=mint())
    assert refused(decision) is reason


def test_a_failed_launch_of_a_plain_incarnation_is_a_retirement():
    state = pane(row("D"))
    decision = decide_launch_failed(state, state.live, "inc-1", "no binary", NOW, limits=LIMITS, mint=mint())
    assert decision.answer == Applied()
    assert Replace() not in decision.effects
    assert incarnations(decision)[0].relaunch is False


def test_withdrawing_fences_the_live_one_and_stores_the_wish_for_its_successor():
    state = pane(row("D"))
    decision = withdraw(state, NOW)
    (gone,) = incarnations(decision)
    assert (gone.retired_at, gone.relaunch) == (NOW, True)
    assert decision.intent_events == ()


# -- section 7.3: the handshake --------------------------------------------------------------------------------------


def handshake(state: PaneState, speaker: IncarnationRecord | None, shape: str | None, **given: str) -> Decision:
    return decide_handshake(
        state,
        speaker,
        None if shape is None else row(shape),
        **{
            "incarnation_id": "inc-2" if speaker is None else speaker.incarnation_id,
            "startup_delivery_id": "startup-2",
            "payload_sha256": PAYLOAD_SHA256,
            **given,
        },
        now=NOW,
    )


@pytest.mark.parametrize(("shape", "delivered"), [("M/r", NOW), ("L/r", 380)])
def test_the_exact_handshake_delivers_and_marks_and_acknowledges_nothing(shape, delivered):
    state = pane(row(shape))
    decision = handshake(state, state.live, shape)
    assert decision.answer == Applied()
    (speaker,) = incarnations(decision)
    assert speaker.delivered_intent_id == "intent-1"
    after = intent_after(decision)
    assert (after.state, after.delivered_at, after.handshake_at) == (IntentState.DELIVERED, delivered, NOW)
    assert after.acknowledged_at is None
    assert [event.kind for event in decision.events] == ["incarnation.ready"]


def test_a_handshake_repeated_changes_nothing():
    state = pane(row("L/h"))
    assert handshake(state, state.live, "L/h") == Decision(answer=Unchanged())


@pytest.mark.parametrize(
    ("shape", "given", "reason"),
    [
        ("M/r", {"payload_sha256": "0" * 64}, Reason.PAYLOAD_DRIFT),
        ("L/r", {"payload_sha256": "0" * 64}, Reason.PAYLOAD_DRIFT),
        ("L/h", {"payload_sha256": "0" * 64}, Reason.PAYLOAD_DRIFT),
        ("M/r", {"startup_delivery_id": "startup-9"}, Reason.WRONG_STARTUP_ID),
        ("L/r", {"startup_delivery_id": ""}, Reason.WRONG_STARTUP_ID),
        ("L/h", {"startup_delivery_id": "startup-9"}, Reason.WRONG_STARTUP_ID),
        ("M/r", {"startup_delivery_id": "startup-9", "payload_sha256": "0" * 64}, Reason.WRONG_STARTUP_ID),
        ("A", {}, Reason.CONSUMED_STARTUP_ID),
        ("A", {"payload_sha256": "0" * 64}, Reason.CONSUMED_STARTUP_ID),
    ],
)
def test_a_refused_handshake_changes_nothing(shape, given, reason):
    speaker = replacement(row("M/r"))
    assert refused(handshake(evolve(pane(row(shape)), latest=speaker), speaker, shape, **given)) is reason


@pytest.mark.parametrize("shape", ["M/r", "L/r", "L/h"])
@pytest.mark.parametrize(
    ("speaker", "reason"),
    [
        (None, Reason.UNKNOWN_INCARNATION),
        (retired(replacement(row("M/r"))), Reason.RETIRED_INCARNATION),
        (incarnation("inc-9", pane_id="pane-2"), Reason.OTHER_PANE),
    ],
)
def test_a_stale_attempt_cannot_shake_hands(shape, speaker, reason):
    assert refused(handshake(pane(row(shape)), speaker, shape)) is reason


@pytest.mark.parametrize("shape", ["D", "C/o", "M/o", "L/c", None])
def test_a_plain_incarnation_has_no_handshake(shape):
    state = pane(None if shape is None else row(shape))
    assert refused(handshake(state, state.live, None)) is Reason.OTHER_MODE


@pytest.mark.parametrize("shape", SHAPES)
def test_only_a_live_attempt_without_its_handshake_is_unproved(shape):
    assert unproved(pane(row(shape))) is (shape in {"M/r", "L/r"})
    head = row(shape)
    if shape in {"M/r", "L/r"}:
        assert not unproved(evolve(pane(head), latest=retired(replacement(head))))


# -- payload first (contract I-3) ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("soft", "ordered", "first"), [(True, True, False), (False, True, True), (True, False, True), (False, False, True)]
)
def test_a_harness_without_soft_batches_waits_for_the_payload_of_a_detected_head(soft, ordered, first):
    capabilities = Capabilities(soft_batches=soft, turn_order=ordered)
    assert needs_payload_first(pane(row("D")), capabilities) is first
    assert not needs_payload_first(pane(None), capabilities)
    assert not needs_payload_first(pane(row("M/n")), capabilities)


def test_an_unattended_start_fences_whatever_lives_in_the_same_transaction():
    state = pane(row("D"))
    decision = begin_unattended(state, NOW)
    assert decision.answer == Applied()
    (gone,) = incarnations(decision)
    assert (gone.retired_at, gone.relaunch) == (NOW, True)
    after = committed(state, decision)
    assert after.live is None
    assert after.head is not None
    assert (after.head.state, after.head.mode) == (IntentState.RECONCILING, None)


@pytest.mark.parametrize("shape", [shape for shape in UNRESOLVED if shape != "D"])
def test_an_unattended_start_is_for_a_detected_head_only(shape):
    assert begin_unattended(pane(row(shape)), NOW) == Decision(answer=Unchanged())


def test_an_unattended_start_needs_a_head():
    assert begin_unattended(pane(None), NOW) == Decision(answer=Unchanged())
