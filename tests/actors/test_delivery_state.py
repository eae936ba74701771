"""The pure decisions about outbound deliveries: every mechanism against everything that can be heard of it."""

from __future__ import annotations

import itertools

import pytest
from attrs import evolve
from hypothesis import given, strategies as st

from fencepost.actors.delivery_messages import MechanismOutcome, NativeSession, Outbound, TranscriptEntry
from fencepost.actors.delivery_state import (
    Begin,
    Fenced,
    Heard,
    Journal,
    Message,
    abandon,
    blocked_report,
    dispatch,
    hear,
    judge_call,
    never_sent,
    pending_report,
    proves,
    report_of,
    unreadable_report,
    words,
)
from fencepost.mailbox.errors import CorruptRecord, UnmappedMechanism
from fencepost.mailbox.ladder import MAPPING, MECHANISMS, Reach, Stage, Stop, report

SENDING = tuple(name for name in MECHANISMS if name != "intent")
ORDER = list(Stage)


def message(mechanism="head_seat", text="hello") -> Message:
    return Message(delivery_id="00000000-0000-0000-0000-000000000001", pane_id="pane", mechanism=mechanism, text=text)


def session(*entries: TranscriptEntry, **changed) -> NativeSession:
    return NativeSession(**{"session_id": "s", "pane_id": "pane", "agent": "a", "entries": entries, **changed})


@pytest.mark.parametrize("mechanism", SENDING)
def test_every_mechanism_that_can_be_offered_has_a_word_for_silence(mechanism):
    said = words(mechanism, Heard.SILENCE)
    assert report(mechanism, said.outcome, said.native) == Reach(stop=Stop.UNCERTAIN)


REACHED = {
    Heard.ACKNOWLEDGED: Reach(Stage.DELIVERED),
    Heard.REPLIED: Reach(Stage.RESPONDED),
    Heard.NOBODY: Reach(stop=Stop.UNAVAILABLE),
    Heard.PROVED: Reach(Stage.CONSUMED),
}


@pytest.mark.parametrize(("mechanism", "heard"), list(itertools.product(MECHANISMS, Heard)))
def test_what_is_heard_is_told_in_words_of_the_mechanism(mechanism, heard):
    try:
        said = words(mechanism, heard)
    except UnmappedMechanism:
        assert mechanism not in {"head_seat", "fleet_seat"} or heard is Heard.PROVED
        return
    reach = report(mechanism, said.outcome, said.native)
    if heard in REACHED:
        assert reach == REACHED[heard]
    elif heard is Heard.WITHDRAWN:
        assert reach.stop in {Stop.EXPIRED, Stop.UNAVAILABLE}


OUTCOMES = st.one_of(
    st.sampled_from(MAPPING).map(
        lambda row: MechanismOutcome(row.outcome, row.native if isinstance(row.native, str) else None)
    ),
    st.builds(MechanismOutcome, st.text(max_size=9), st.none() | st.text(max_size=9)),
)


@given(st.sampled_from(SENDING), st.lists(OUTCOMES, max_size=6))
def test_10_7_whatever_is_heard_a_stage_never_goes_down_and_a_stop_is_left_for_a_proved_stage_only(mechanism, heard):
    row = dispatch(message(mechanism), 1)
    now = 1
    for said in heard:
        now += 1
        after = hear(row, said, now)
        if after is None:
            continue
        if row.stage is not None and row.stage is not Stage.STORED:
            assert after.stage is not None
            assert ORDER.index(after.stage) > ORDER.index(row.stage)
        if row.stop is not None:
            assert row.stop is Stop.UNCERTAIN
            assert after.stage is not None
        assert after.revision == row.revision + 1
        assert (after.resolved_at is None) == (after.stop is Stop.UNCERTAIN)
        reach = report(mechanism, after.outcome, after.native)
        assert reach == Reach(after.stage, after.stop), "the words and the reach agree"
        row = after


@pytest.mark.parametrize("mechanism", SENDING)
def test_what_is_abandoned_hears_nothing_more(mechanism):
    row = hear(dispatch(message(mechanism), 1), words(mechanism, Heard.SILENCE), 2)
    settled = abandon(row, 3)
    assert (settled.stop, settled.resolved_at, settled.abandoned_at) == (Stop.UNCERTAIN, 3, 3)
    assert settled.detail == "abandoned, outcome unknown"
    assert abandon(settled, 4) is None
    for heard in Heard:
        try:
            assert hear(settled, words(mechanism, heard), 4) is None
        except UnmappedMechanism:
            continue


def test_only_what_is_uncertain_can_be_abandoned():
    flying = dispatch(message(), 1)
    assert abandon(flying, 2) is None
    assert abandon(hear(flying, words("head_seat", Heard.ACKNOWLEDGED), 2), 3) is None
    assert abandon(never_sent(message(), words("head_seat", Heard.NOBODY), 2), 3) is None


def test_a_first_resolution_keeps_its_time():
    row = hear(dispatch(message("fleet_seat"), 1), words("fleet_seat", Heard.ACKNOWLEDGED), 2)
    higher = hear(row, MechanismOutcome("delivered", "queued"), 9)
    assert (higher.stage, higher.resolved_at) == (Stage.CONSUMED, 2)


@pytest.mark.parametrize("heard", [Heard.ACKNOWLEDGED, Heard.SILENCE, Heard.REPLIED])
def test_what_never_left_cannot_have_reached_anybody(heard):
    with pytest.raises(CorruptRecord):
        never_sent(message(), words("head_seat", heard), 2)


# -- evidence ----------------------------------------------------------------------------------------------------


def sent(*before: TranscriptEntry, **changed):
    return hear(
        dispatch(message("harness_seat"), 1, session(*before, **changed)), words("harness_seat", Heard.SILENCE), 2
    )


OLD = TranscriptEntry("old", "operator", "hello")
NEW = TranscriptEntry("new", "operator", "hello")


def test_a_new_complete_entry_in_the_original_session_proves_it():
    assert proves(sent(OLD), session(OLD, NEW))
    assert proves(sent(), session(TranscriptEntry("x", "assistant", "well"), evolve(NEW, text=" hello\r\n")))


@pytest.mark.parametrize("shown", [
    session(OLD),
    session(OLD, evolve(NEW, complete=False)),
    session(OLD, evolve(NEW, role="assistant")),
    session(OLD, evolve(NEW, role="Operator")),
    session(OLD, evolve(NEW, text="hello there")),
    session(OLD, NEW, session_id="t"),
    session(OLD, NEW, pane_id="other"),
    session(OLD, NEW, agent="b"),
    session(entries=None),
    session(),
], ids=["older", "fragment", "role", "case", "text", "session", "pane", "agent", "unreadable", "none"])  # fmt: skip
def test_everything_else_proves_nothing(shown):
    assert not proves(sent(OLD), shown)


@pytest.mark.parametrize("row", [
    sent(entries=None),
    evolve(sent(OLD), entries_before="nonsense"),
    evolve(sent(OLD), entries_before="{}"),
    evolve(sent(OLD), text="another text"),
    evolve(sent(OLD), session_id=None, agent=None, entries_before=None),
], ids=["unreadable before", "no JSON", "no list", "damaged text", "no session"])  # fmt: skip
def test_a_row_that_cannot_tell_new_from_old_is_never_proved(row):
    assert not proves(row, session(OLD, NEW))


def test_ids_that_no_store_can_hold_are_compared_as_they_are_kept():
    odd = TranscriptEntry("old \ud800", "operator", "hello")
    assert not proves(sent(odd), session(odd))


# -- reports -----------------------------------------------------------------------------------------------------


def test_1_3_1_and_1_3_4_reports_name_the_original_and_have_exactly_one_stage_or_stop():
    flying = dispatch(message("channel_turn"), 1)
    ended = hear(flying, MechanismOutcome("settled", None, None, "well"), 2)
    told = [
        report_of(flying),
        report_of(ended),
        report_of(ended, asked="another"),
        pending_report(flying),
        blocked_report(flying),
        blocked_report(message("channel_turn")),
        unreadable_report(None, "channel_turn", "damaged"),
    ]
    for one in told:
        assert (one.stage is None) != (one.stop is None)
        reach = report(one.mechanism, one.outcome, one.native)
        assert reach == Reach(one.stage, one.stop)
    assert {one.delivery_id for one in told[:-1]} == {flying.delivery_id}
    assert report_of(ended, asked="hello").detail == "well"
    assert report_of(ended, asked="another").detail.startswith("well; ")


# -- what becomes of a call --------------------------------------------------------------------------------------------

FLYING = dispatch(message(), 1)
UNCERTAIN = hear(FLYING, words("head_seat", Heard.SILENCE), 2)
DELIVERED = hear(FLYING, words("head_seat", Heard.ACKNOWLEDGED), 2)
AGAIN = Outbound("hello", "head_seat", FLYING.delivery_id)
OTHER = Outbound("another", "head_seat", "00000000-0000-0000-0000-000000000002")


def test_10_12_a_journal_that_cannot_be_read_begins_nothing():
    for outbound in (AGAIN, OTHER):
        report = judge_call(outbound, CorruptRecord("deliveries", "is garbage"))
        assert report == unreadable_report(outbound.delivery_id, "head_seat", report.detail)
        assert report.stop is Stop.UNCERTAIN
        assert "garbage" in str(report.detail)


@pytest.mark.parametrize(("fencing", "known", "outbound"), [
    pytest.param(FLYING, None, OTHER, id="another text while one is in flight"),
    pytest.param(FLYING, FLYING, AGAIN, id="the same while it is in flight"),
    pytest.param(UNCERTAIN, None, OTHER, id="another text while one is uncertain"),
    pytest.param(UNCERTAIN, UNCERTAIN, AGAIN, id="the same while it is uncertain"),
])  # fmt: skip
def test_while_an_original_is_unresolved_nothing_begins_and_its_own_id_is_told(fencing, known, outbound):
    verdict = judge_call(outbound, Journal(known=known, fencing=fencing))
    report = verdict.report if isinstance(verdict, Fenced) else verdict
    assert isinstance(verdict, Fenced) == (fencing is UNCERTAIN)
    assert report == blocked_report(FLYING, asked_id=outbound.delivery_id)


def test_a_call_begins_only_where_nothing_is_known_pending_or_unresolved_and_there_is_a_text():
    assert judge_call(OTHER, Journal()) == Begin()
    assert judge_call(OTHER, Journal(), message()) == blocked_report(message(), asked_id=OTHER.delivery_id)
    assert judge_call(AGAIN, Journal(known=DELIVERED)) == report_of(DELIVERED, asked="hello")
    assert judge_call(evolve(OTHER, text=" "), Journal()).stop is Stop.REJECTED
    turn = dispatch(message("channel_turn"), 1)
    assert judge_call(AGAIN, Journal(known=turn, fencing=turn), goes_on=True) == pending_report(turn)
