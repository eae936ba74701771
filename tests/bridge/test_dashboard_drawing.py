"""What is drawn and said of rows, without a store: words, an intent's journey, a batch, the lives of processes."""

from __future__ import annotations

import pytest
from mailbox_samples import NOON, PREPARED, RESTART, SOFT, incarnation, intent, life_of_an_intent

from fencepost.mailbox.delivery_records import RunRecord
from fencepost.mailbox.records import BatchRecord, CallRecord, DeliveryRecord, IntentRecord, OutcomeRecord
from fencepost.supervisor import BatchMode, CallStatus, Checkpoint, Event, IntentState, Reason, Stage, Stop, ladder
from fencepost.supervisor.bridge.dashboard import words
from fencepost.supervisor.bridge.dashboard.journey import CALLS_MAX, batch_chart, process_bars, steps

DELIVERY_ID = "00000000-0000-4000-8000-000000000001"

# -- words -------------------------------------------------------------------------------------------------------------


def test_every_state_call_checkpoint_and_reason_has_its_words():
    assert set(words.STATES) == {state.value for state in IntentState}
    assert set(words.CALLS) == set(CallStatus)
    assert set(words.CHECKPOINTS) == set(Checkpoint)
    inside = {Reason.PAYLOAD_UNBOUND, Reason.PAYLOAD_NOT_TEXT, Reason.PAYLOAD_TOO_LARGE}  # of no call that is refused
    assert set(words.FENCES) >= set(Reason) - inside


def delivery(outcome, native, stage, stop, **more) -> DeliveryRecord:
    known = {
        "delivery_id": DELIVERY_ID,
        "pane_id": "pane-1",
        "mechanism": "fleet_seat",
        "text": "hello",
        "fingerprint": "0" * 64,
        "created_at": NOON,
        "dispatched_at": NOON,
        "outcome": outcome,
        "native": native,
        "stage": stage,
        "stop": stop,
        "resolved_at": None if outcome is None or stop is Stop.UNCERTAIN else NOON,
    }
    return DeliveryRecord(**(known | more))


@pytest.mark.parametrize("row", [row for row in ladder.MAPPING if row.reach.stage or row.reach.stop], ids=str)
def test_a_delivery_is_never_said_to_have_got_further_than_it_did(row):
    native = row.native if isinstance(row.native, str) else None
    told = words.outbound_told(delivery(row.outcome, native, row.reach.stage, row.reach.stop))
    assert told.rung == (0 if row.reach.stage is None else list(Stage).index(row.reach.stage) + 1)
    assert (told.kind == "unknown") is (row.reach.stop is Stop.UNCERTAIN)
    if row.reach.stage is Stage.DELIVERED:
        assert "not yet consumed" in told.sentence
    if row.reach.stage is Stage.CONSUMED:
        assert "whether the model has read it is not known" in told.sentence


def test_what_is_under_way_or_abandoned_proves_nothing():
    under_way = words.outbound_told(delivery(None, None, None, None))
    assert (under_way.rung, under_way.kind) == (0, "moving")
    abandoned = delivery("unconfirmed", None, None, Stop.UNCERTAIN, abandoned_at=NOON, resolved_at=NOON)
    assert words.outbound_told(abandoned).label == "settled, outcome unknown"


def inbound(**known):
    nothing = {"fenced": False, "accepted": False, "run": None, "settled": False}
    return words.inbound_told(**(nothing | known))


def turn(outcome: str | None = None, native: str | None = None) -> RunRecord:
    ids = {"run_id": DELIVERY_ID, "delivery_id": DELIVERY_ID, "pane_id": "pane-1"}
    ended_at = None if outcome is None else NOON
    return RunRecord(**ids, published_at=NOON, outcome=outcome, native=native, ended_at=ended_at)


def test_an_inbound_message_is_told_step_by_step():
    assert inbound().label == "forgotten"
    assert (inbound(fenced=True).label, inbound(fenced=True).kind) == ("acceptance not finished", "unknown")
    assert inbound(accepted=True).label == "accepted"
    assert inbound(accepted=True, run=turn()).label == "turn under way"
    assert inbound(accepted=True, run=turn("settled")).label == "turn ended"
    assert inbound(fenced=True, settled=True).label == "settled, outcome unknown"


CHANNEL_TURNS = [row for row in ladder.MAPPING if row.mechanism == "channel_turn" and row.outcome != "pending"]


@pytest.mark.parametrize("row", CHANNEL_TURNS, ids=str)
def test_a_message_of_a_pane_is_never_said_to_have_got_further_than_its_turn_did(row):
    native = row.native if isinstance(row.native, str | None) else "no_reply"
    told = inbound(accepted=True, run=turn(row.outcome, native))
    assert told.rung == (1 if row.reach.stage is None else list(Stage).index(row.reach.stage) + 1)
    kinds = {None: "done", Stop.UNCERTAIN: "unknown", Stop.EXPIRED: "stopped", Stop.REJECTED: "stopped"}
    assert told.kind == kinds[row.reach.stop]
    assert (native or row.outcome) in told.sentence


@pytest.mark.parametrize(
    ("row", "actions"),
    [
        (intent(), ()),
        (intent(state=IntentState.RECOVERY_REQUIRED, reason="two files"), ("resolve",)),
        (intent(state=IntentState.TOPOLOGY_DIVERGED, reason="two files"), ("resolve",)),
        (
            intent(state=IntentState.MATERIALIZED, exhausted_at=NOON, approval="x", **PREPARED, **RESTART),
            ("rearm", "discard"),
        ),
    ],
)
def test_what_a_human_may_decide_fits_what_it_waits_for(row, actions):
    waiting = words.waits_for(row, None)
    assert (waiting.actions, waiting.human) == (actions, bool(actions))
    assert waiting.text[0].isupper()
    assert waiting.text.endswith(".")


# -- a journey ---------------------------------------------------------------------------------------------------------


def told(row: IntentRecord, *events: Event) -> dict[str, str]:
    return {step.name: step.state for step in steps(row, events)}


def test_a_soft_delivery_goes_step_by_step():
    ahead = dict.fromkeys(
        ["Reconciling", "Planned", "Materialized", "Offered", "Delivered", "Batch completed", "Acknowledged"], "ahead"
    )
    rows = [row for put in life_of_an_intent() for row in put if isinstance(row, IntentRecord)]
    detected, bound, prepared, delivered, completed, done = rows
    assert told(detected) == {"Detected": "now", **ahead}
    assert told(bound) == {"Detected": "done", **ahead, "Reconciling": "now"}
    assert told(prepared)["Planned"] == "skipped"
    assert told(bound.next(planned_op="a", starting_op="b"))["Planned"] == "done"
    assert (told(prepared)["Materialized"], told(prepared)["Delivered"]) == ("now", "ahead")
    assert told(prepared.next(payload_offered_at=NOON))["Offered"] == "now"
    assert (told(delivered)["Offered"], told(delivered)["Delivered"]) == ("skipped", "now")
    assert (told(completed)["Batch completed"], told(completed)["Acknowledged"]) == ("now", "ahead")
    assert "now" not in told(done).values()
    assert told(done)["Acknowledged"] == "done"


def test_what_an_acknowledged_intent_no_longer_holds_is_taken_from_its_own_events():
    *_, done = [row for put in life_of_an_intent() for row in put if isinstance(row, IntentRecord)]
    events = [
        Event(seq=1, at=7, kind="intent.reconciling", address="intent:intent-1", data={"intent_id": "intent-1"}),
        Event(seq=2, at=8, kind="intent.batch_completed", address="intent:intent-2", data={"intent_id": "intent-2"}),
        Event(seq=3, at=9, kind="intent.batch_completed", address="intent:intent-1", data={"intent_id": "intent-1"}),
        Event(seq=4, at=10, kind="intent.batch_completed", address="intent:intent-1", data={"intent_id": "intent-1"}),
    ]
    times = {step.name: step.at for step in steps(done, events)}
    assert (times["Reconciling"], times["Batch completed"]) == (7, 9)
    assert "Batch completed" not in told(done)


def test_a_replacement_has_its_own_steps_and_an_end_of_its_own():
    row = intent(state=IntentState.MATERIALIZED, **PREPARED, **RESTART)
    assert "First input accepted" in told(row)
    assert not {"Offered", "Batch completed"} & set(told(row))
    exhausted = row.next(exhausted_at=NOON + 9, approval="x")
    names = list(told(exhausted))
    assert names.index("Exhausted") == names.index("Materialized") + 1
    assert told(exhausted)["Exhausted"] == "blocked"


@pytest.mark.parametrize(
    ("state", "name"), [(IntentState.RECOVERY_REQUIRED, "Needs recovery"), (IntentState.TOPOLOGY_DIVERGED, "Diverged")]
)
def test_a_block_stands_where_the_journey_does(state, name):
    row = intent(state=state, reason="two files", **SOFT)
    blocked = next(step for step in steps(row, ()) if step.state == "blocked")
    assert (blocked.name, blocked.proof) == (name, "two files")
    assert list(told(row))[1:3] == ["Reconciling", name]


def test_a_superseded_intent_has_two_steps():
    assert told(intent(state=IntentState.SUPERSEDED)) == {"Detected": "done", "Superseded": "done"}


# -- a batch -----------------------------------------------------------------------------------------------------------


def batch(count: int, **more) -> BatchRecord:
    known = {
        "address": "batch:pane-1/op/turn",
        "pane_id": "pane-1",
        "seq": 1,
        "operation_id": "op",
        "turn_id": "turn",
        "turn_ordinal": 1,
        "assistant_entry_id": "entry",
        "incarnation_id": "inc-1",
        "mode": BatchMode.PARALLEL,
        "fingerprint": "0" * 64,
        "calls_count": count,
        "first_entry_seq": 1,
        "started_at": 1000,
    }
    return BatchRecord(**(known | more))


def call(index: int) -> CallRecord:
    return CallRecord(
        invocation_id=f"call-{index}",
        pane_id="pane-1",
        batch="batch:pane-1/op/turn",
        source_index=index,
        tool_call_id=f"tool-{index}",
        name="read",
    )


def outcome(index: int, at: int) -> OutcomeRecord:
    return OutcomeRecord(
        invocation_id=f"call-{index}",
        content="[]",
        details=None,
        is_error=False,
        usage=None,
        added_tool_names="[]",
        at=at,
    )


def chart(ends: list[int | None], **more):
    calls = [call(index) for index in range(len(ends))]
    outcomes = [outcome(index, at) for index, at in enumerate(ends) if at is not None]
    return batch_chart(batch(len(ends)), calls, (), outcomes, more.get("events", ()), more.get("now", 2000))


def test_the_order_of_completion_is_drawn_against_that_of_the_source():
    drawn = chart([1600, 1200, None, 1400])
    assert [row.rank for row in drawn.rows] == [3, 1, None, 2]
    assert [row.call.source_index for row in drawn.completed] == [1, 3, 0]
    assert [row.completed for row in drawn.rows] == [60.0, 20.0, None, 40.0]
    assert [row.ends for row in drawn.rows] == [60.0, 20.0, 100.0, 40.0]
    assert drawn.out_of_order == 2


@pytest.mark.parametrize(
    ("ends", "count"), [([1, 2, 3], 0), ([3, 2, 1], 2), ([None, 1], 1), ([1, None], 0), ([None], 0)]
)
def test_who_completed_before_an_earlier_one_is_counted(ends, count):
    assert chart(ends).out_of_order == count


def test_equal_times_are_in_source_order():
    assert [row.rank for row in chart([1500, 1500, 1500]).rows] == [1, 2, 3]


def test_places_stay_on_the_line_whatever_the_clocks_said():
    started = Event(seq=1, at=1500, kind="tool_start", address="x", data={"invocation_id": "call-1"})
    drawn = chart([-5, 99_999_999], events=[started])
    assert [(row.started, row.completed) for row in drawn.rows] == [(0.0, 0.0), (50.0, 100.0)]
    assert chart([None], now=0).rows[0].ends == 100.0


def test_a_long_batch_is_cut_and_says_so():
    drawn = chart([None] * (CALLS_MAX + 7))
    assert (len(drawn.rows), drawn.more) == (CALLS_MAX, 7)


# -- processes ---------------------------------------------------------------------------------------------------------


def test_the_lives_of_processes_share_one_line():
    first = incarnation(1, launched_at=0, retired_at=50, retire_reason="replaced")
    second = incarnation(2, launched_at=50, retired_at=50, retire_reason="replaced")
    third = incarnation(3, launched_at=50)
    bars = process_bars([third, second, first], now=100)
    assert [(bar.start, bar.width) for bar in bars] == [(50.0, 50.0), (50.0, 1.0), (0.0, 50.0)]
    assert process_bars([], now=100) == []
    for now in (-5, 0, 10**18):
        assert all(bar.start >= 0 and bar.start + bar.width <= 100 for bar in process_bars([third, second, first], now))
