"""The delivery ladder: each row of the protocol's sections 1 and 2, written out again and compared with the code."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from fencepost.mailbox.errors import CorruptRecord, FencepostError, InvalidTransition, UnmappedMechanism
from fencepost.mailbox.ladder import (
    ANYTHING_ELSE,
    MAPPING,
    MECHANISMS,
    Fallback,
    Following,
    Reach,
    Retry,
    Stage,
    Stop,
    advance,
    decode,
    is_mapped,
    may_follow,
    report,
)

NOTHING = Reach()
EVERY_REACH = [NOTHING, *map(Reach, Stage), *(Reach(stop=stop) for stop in Stop)]
REACH = {str(reach): reach for reach in EVERY_REACH}

# Section 2, a line a row: its number there (of the intents: the contract's), mechanism, outcome, native word (- for
# none), stage or stop (- for no stage at all).
SECTION_2 = """
2.1-1  head_seat     delivered     -                     delivered
2.1-2  head_seat     replied       -                     responded
2.1-3  head_seat     unconfirmed   -                     uncertain
2.1-4  head_seat     unbound       -                     unavailable
2.1-5  head_seat     aborted       -                     expired
2.2-1  fleet_seat    delivered     -                     delivered
2.2-2  fleet_seat    delivered     queued                consumed
2.2-2  fleet_seat    delivered     started               consumed
2.2-2  fleet_seat    delivered     steered               consumed
2.2-3  fleet_seat    delivered     reply                 responded
2.2-4  fleet_seat    unconfirmed   -                     uncertain
2.2-5  fleet_seat    undelivered   -                     unavailable
2.2-6  fleet_seat    offline       -                     unavailable
2.3-1  harness_seat  accepted      queued                consumed
2.3-1  harness_seat  accepted      started               consumed
2.3-1  harness_seat  accepted      steered               consumed
2.3-2  harness_seat  released      -                     unavailable
2.3-3  harness_seat  offline       -                     unavailable
2.3-4  harness_seat  unconfirmed   -                     uncertain
2.4-1  channel_turn  pending       -                     stored
2.4-2  channel_turn  settled       -                     responded
2.4-2  channel_turn  silent        -                     responded
2.4-2  channel_turn  absorbed      -                     responded
2.4-3  channel_turn  waiting_user  -                     consumed
2.4-4  channel_turn  failed        policy_refused        rejected
2.4-4  channel_turn  failed        validation_refused    rejected
2.4-4  channel_turn  failed        permission_denied     rejected
2.4-4  channel_turn  failed        tools_not_allowed     rejected
2.4-5  channel_turn  failed        interrupted           expired
2.4-5  channel_turn  failed        stalled               expired
2.4-6  channel_turn  failed        *                     uncertain
2.5-2  hire          spawned       brief                 consumed
2.5-3  hire          spawned       -                     -
2.5-4  hire          failed        start_unconfirmed     uncertain
2.5-4  hire          failed        delivery_unconfirmed  uncertain
2.5-5  hire          failed        unknown_directory     rejected
2.5-5  hire          failed        at_capacity           rejected
2.5-5  hire          failed        trust_required        rejected
2.5-6  hire          failed        *                     unavailable
2.5-7  opencode      ready         -                     -
2.5-8  opencode      pending       -                     stored
2.5-8  opencode      busy          -                     stored
2.5-9  opencode      delivered     -                     consumed
2.5-10 opencode      uncertain     -                     uncertain
2.5-11 opencode      unbound       -                     unavailable
D-2    intent        detected      -                     -
D-2    intent        reconciling   -                     -
D-2    intent        materialized  -                     stored
D-2    intent        delivered     -                     delivered
D-2    intent        delivered     batch_completed       consumed
D-2    intent        delivered     handshake_accepted    consumed
D-2    intent        acknowledged  -                     responded
D-2    intent        exhausted     -                     uncertain
"""
NATIVE = {"-": None, "*": ANYTHING_ELSE}
ROWS = [
    (mechanism, outcome, NATIVE.get(native, native), REACH.get(reach, NOTHING))
    for _, mechanism, outcome, native, reach in (line.split() for line in SECTION_2.strip().splitlines())
]
NUMBERED = zip(ROWS, (" ".join(line.split()[:4]) for line in SECTION_2.strip().splitlines()), strict=True)
EXACT = [pytest.param(*row, id=name) for row, name in NUMBERED if row[2] is not ANYTHING_ELSE]


def test_12_o1_the_mapping_is_section_2_row_for_row():
    assert [(row.mechanism, row.outcome, row.native, row.reach) for row in MAPPING] == ROWS


def test_no_words_have_two_places():
    assert len({row[:3] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("mechanism", "outcome", "native", "reach"), EXACT)
def test_2_each_row(mechanism, outcome, native, reach):
    assert report(mechanism, outcome, native) == reach


@pytest.mark.parametrize("code", [None, "", "timeout", "queued", "POLICY_REFUSED", "interrupted "])
def test_2_4_6_and_12_d1_a_failed_turn_of_unknown_kind_is_uncertain(code):
    assert report("channel_turn", "failed", code) == Reach(stop=Stop.UNCERTAIN)


@pytest.mark.parametrize("code", [None, "", "no_such_harness", "brief"])
def test_2_5_6_a_hire_that_failed_otherwise_is_unavailable(code):
    assert report("hire", "failed", code) == Reach(stop=Stop.UNAVAILABLE)


@pytest.mark.parametrize(
    ("mechanism", "outcome", "native"),
    [
        pytest.param("swarm", "delivered", None, id="2.5-1 swarm"),  # retired, and may not come back under that name
        ("pigeon", "delivered", None),
        ("", "", None),
        ("Intent", "delivered", None),
        ("intent", "superseded", None),
        ("intent", "recovery_required", None),
        ("intent", "", None),
        ("intent", "delivered", "shown"),
        ("intent", "materialized", "batch_completed"),
        ("head_seat", "undelivered", None),
        ("head_seat", "delivered", "queued"),
        ("fleet_seat", "replied", None),
        ("fleet_seat", "delivered", "read"),
        ("harness_seat", "accepted", None),
        ("harness_seat", "delivered", "queued"),
        ("channel_turn", "pending", "stalled"),
        ("hire", "spawned", "start_unconfirmed"),
        ("opencode", "delivered", "queued"),
    ],
)
def test_words_without_a_place_are_refused_by_name(mechanism, outcome, native):
    with pytest.raises(UnmappedMechanism) as refused:
        report(mechanism, outcome, native)
    assert refused.value.mechanism == mechanism
    assert refused.value.outcome is not None
    assert refused.value.outcome.startswith(outcome)
    assert isinstance(refused.value, FencepostError)


@given(st.sampled_from([*MECHANISMS, "pigeon"]), st.text(), st.none() | st.text())
def test_no_other_words_have_a_place(mechanism, outcome, native):
    known = {row[:2] if row[2] is ANYTHING_ELSE else row[:3] for row in ROWS}
    if (mechanism, outcome) in known or (mechanism, outcome, native) in known:
        return
    with pytest.raises(UnmappedMechanism):
        report(mechanism, outcome, native)


def test_1_3_3_a_mechanism_with_a_mapping_is_told_from_one_without():
    assert MECHANISMS == ("head_seat", "fleet_seat", "harness_seat", "channel_turn", "hire", "opencode", "intent")
    assert all(map(is_mapped, MECHANISMS))
    assert not any(map(is_mapped, ("swarm", "pigeon", "", "HEAD_SEAT")))


# -- stages and stops --------------------------------------------------------------------------------------------


STAGES = ["stored", "delivered", "consumed", "responded"]
STOPS = ["unavailable", "uncertain", "expired", "rejected"]


def test_1_1_and_1_2_stages_and_stops_are_the_protocols():
    assert [stage.value for stage in Stage] == STAGES
    assert [stop.value for stop in Stop] == STOPS


@pytest.mark.parametrize("number", range(4), ids=lambda number: f"1.1-{number + 1} {STAGES[number]}")
def test_1_1_a_stage_is_reached_once_and_never_taken_back(number):
    stage = Reach(Stage(STAGES[number]))
    assert advance(stage, stage) == stage
    for lower in STAGES[:number]:
        assert advance(Reach(Stage(lower)), stage) == stage
        with pytest.raises(InvalidTransition):
            advance(stage, Reach(Stage(lower)))


@pytest.mark.parametrize("number", range(4), ids=lambda number: f"1.2-{number + 1} {STOPS[number]}")
def test_1_2_only_uncertain_is_left_and_only_for_a_stage(number):
    stop = Reach(stop=Stop(STOPS[number]))
    for proved in map(Reach, Stage):
        if stop.stop is Stop.UNCERTAIN:
            assert advance(stop, proved) == proved
        else:
            with pytest.raises(InvalidTransition):
                advance(stop, proved)
    for other in Stop:
        if other is not stop.stop:
            with pytest.raises(InvalidTransition):
                advance(stop, Reach(stop=other))


def test_nothing_reached_is_neither_a_stage_nor_a_stop():
    assert (Reach().stage, Reach().stop) == (None, None)


def test_stages_compare_by_how_far_they_are():
    assert list(Stage) == sorted(Stage)
    assert Stage.STORED < Stage.DELIVERED < Stage.CONSUMED < Stage.RESPONDED
    assert Stage.RESPONDED >= Stage.CONSUMED > Stage.STORED
    assert max(Stage.CONSUMED, Stage.DELIVERED) is Stage.CONSUMED


def test_1_3_1_a_report_has_one_stage_or_stop():
    with pytest.raises(ValueError, match="stored and uncertain"):
        Reach(Stage.STORED, Stop.UNCERTAIN)


@pytest.mark.parametrize("words", [{"stage": "stored"}, {"stop": "uncertain"}, {"stage": Stop.EXPIRED}, {"stop": 1}])
def test_a_report_is_made_of_members(words):
    with pytest.raises(TypeError, match="members"):
        Reach(**words)


# -- section 1.4 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "last", "retry", "fallback"),
    [
        ("1.4-1", "stored", Retry.ORIGINAL_RECEIPT, Fallback.NO),
        ("1.4-1", "delivered", Retry.ORIGINAL_RECEIPT, Fallback.NO),
        ("1.4-1", "consumed", Retry.ORIGINAL_RECEIPT, Fallback.NO),
        ("1.4-1", "responded", Retry.ORIGINAL_RECEIPT, Fallback.NO),
        ("1.4-2", "unavailable", Retry.NEW_REQUEST, Fallback.BEFORE_DISPATCH),
        ("1.4-3", "uncertain", Retry.AFTER_RECONCILE, Fallback.NO),
        ("1.4-4", "expired", Retry.NEW_ID, Fallback.NO),
        ("1.4-5", "rejected", Retry.NO, Fallback.NO),
        ("D-12", "no stage", Retry.AFTER_RECONCILE, Fallback.NO),
    ],
)
def test_1_4_what_may_follow(row, last, retry, fallback):
    assert may_follow(REACH[last]) == Following(automatic_retry=False, explicit_retry=retry, fallback=fallback)


# -- section 1.3, rule 7 -----------------------------------------------------------------------------------------

# What may replace each report; a report also replaces itself.
UPWARD = {
    "no stage": set(REACH),
    "stored": {"delivered", "consumed", "responded", "unavailable", "uncertain", "expired", "rejected"},
    "delivered": {"consumed", "responded"},
    "consumed": {"responded"},
    "responded": set(),
    "unavailable": set(),
    "uncertain": {"stored", "delivered", "consumed", "responded"},
    "expired": set(),
    "rejected": set(),
}


@pytest.mark.parametrize(("current", "proved"), list(itertools.product(REACH, REACH)))
def test_1_3_7_what_may_replace_a_report(current, proved):
    if proved == "no stage":
        assert advance(REACH[current], NOTHING) == REACH[current]
    elif proved == current or proved in UPWARD[current]:
        assert advance(REACH[current], REACH[proved]) == REACH[proved]
    else:
        with pytest.raises(InvalidTransition) as refused:
            advance(REACH[current], REACH[proved])
        assert (refused.value.state, refused.value.event) == (current, proved)


@given(st.lists(st.sampled_from(EVERY_REACH)))
def test_1_3_7_no_history_takes_a_stage_back(reports):
    current, highest = NOTHING, None
    for proved in reports:
        try:
            current = advance(current, proved)
        except InvalidTransition:
            continue
        if current.stage is not None:
            assert highest is None or current.stage >= highest
            highest = current.stage
        elif highest is not None:
            assert highest is Stage.STORED


# -- old messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reach", EVERY_REACH, ids=str)
def test_what_is_written_is_read_again(reach):
    assert decode({"stage": reach.stage, "stop": reach.stop, "outcome": "as before"}) == reach
    words = {"stage": reach.stage and reach.stage.value, "stop": reach.stop and reach.stop.value}
    assert decode({field: word for field, word in words.items() if word is not None}) == reach


@pytest.mark.parametrize("record", [{}, {"outcome": "delivered"}, {"stage": None}, {"deliveryStage": "stored"}])
def test_1_3_4_and_8_without_a_stage_a_message_is_unknown_and_not_guessed(record):
    assert decode(record) == Reach()


@pytest.mark.parametrize(
    "record",
    [
        {"stage": "read"},
        {"stage": ""},
        {"stage": "STORED"},
        {"stage": "uncertain"},
        {"stop": "stored"},
        {"stop": "failed"},
        {"stage": 1},
        {"stage": ["stored"]},
        {"stop": False},
        {"stop": {}},
        {"stage": "stored", "stop": "uncertain"},
    ],
)
def test_damage_is_told(record):
    with pytest.raises(CorruptRecord, match=r"stage|stop") as told:
        decode(record)
    assert any(str(word) in str(told.value) for word in record.values())


@given(st.dictionaries(st.sampled_from(["stage", "stop"]), st.none() | st.integers() | st.text() | st.binary()))
def test_any_message_is_read_or_told(record):
    try:
        reach = decode(record)
    except CorruptRecord:
        return
    assert (reach.stage, reach.stop) == (record.get("stage"), record.get("stop"))
