"""The tool core: every status under every event, with the allowed set written a second time; orphans, placement."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from attrs import evolve

from fencepost.actors.messages import ModelTurn
from fencepost.actors.tool_messages import PlannedCall
from fencepost.actors.tool_plan import judge_repeated, plan, request_of
from fencepost.actors.tool_results import Outcome, error_outcome
from fencepost.actors.tool_state import (
    TABLE,
    AdmitEffect,
    BatchState,
    CallEvent,
    Orphan,
    Place,
    ReplayEffect,
    SettleEffect,
    StageSynthetic,
    boundary_batch_id,
    checkpoint_of,
    judge_orphan,
    to_work_on,
    transition,
)
from fencepost.actors.tool_writes import admit, cancel, clear_and_replay, finalize, place, settle, stage_synthetic
from fencepost.mailbox.errors import CorruptRecord, InvalidTransition, OperationEnded
from fencepost.mailbox.mutation import Delete, Live
from fencepost.mailbox.records import (
    ArgumentsRecord,
    BatchMode,
    BatchRecord,
    CallRecord,
    CallStatus,
    Checkpoint,
    CheckpointRecord,
    EntryRecord,
    IncarnationRecord,
    MemoRecord,
    OutcomeRecord,
    Replay,
    UsageRecord,
)

NOON = 1_700_000_000_000_000_000
P, E, R, C = CallStatus.PLANNED, CallStatus.EFFECT_PENDING, CallStatus.OUTCOME_READY, CallStatus.COMPLETED
LIVE = IncarnationRecord(incarnation_id="inc", pane_id="pane", epoch=1, harness="h", launched_at=NOON)
DONE = Outcome(content=[{"type": "text", "text": "done"}])

ALLOWED = {
    (P, AdmitEffect, E),
    (P, StageSynthetic, R),
    (E, ReplayEffect, E),
    (E, SettleEffect, R),
    (R, Place, C),
}
EVENTS = {
    AdmitEffect: AdmitEffect(replay=Replay.SAFE),
    StageSynthetic: StageSynthetic(),
    ReplayEffect: ReplayEffect(),
    SettleEffect: SettleEffect(terminate=True),
    Place: Place(at=NOON),
}


def call_record(status: CallStatus, index: int = 0, *, terminate: bool = False, ran: bool = True) -> CallRecord:
    return CallRecord(
        invocation_id=f"inv-{index}",
        pane_id="pane",
        batch="batch:pane/op/turn",
        source_index=index,
        tool_call_id=f"call-{index}",
        name="tool",
        status=status,
        replay=Replay.SAFE if status is not P and ran else None,
        terminate=terminate,
        placed_at=NOON if status is C else None,
    )


def batch_record(count: int, mode: BatchMode = BatchMode.PARALLEL) -> BatchRecord:
    return BatchRecord(
        address="batch:pane/op/turn",
        pane_id="pane",
        seq=1,
        operation_id="op",
        turn_id="turn",
        turn_ordinal=1,
        assistant_entry_id="assistant",
        incarnation_id="inc",
        mode=mode,
        fingerprint="f",
        calls_count=count,
        first_entry_seq=5,
        started_at=NOON,
    )


def state_of(*statuses: CallStatus, mode: BatchMode = BatchMode.PARALLEL, terminate: bool = False) -> BatchState:
    settled = {R, C}
    calls = [
        call_record(status, index, terminate=terminate and status in settled) for index, status in enumerate(statuses)
    ]
    return BatchState.of(batch_record(len(calls), mode), calls)


def staged(state: BatchState, **more) -> dict[str, OutcomeRecord]:
    row = {"content": '[{"type":"text","text":"x"}]', "details": None, "is_error": False, "usage": None}
    return {
        call.invocation_id: OutcomeRecord(
            invocation_id=call.invocation_id, added_tool_names="[]", at=NOON, **{**row, **more}
        )
        for call in state.calls
        if call.status is R
    }


# -- the table --


def test_every_event_of_the_union_is_tried():
    assert set(EVENTS) == set(get_args(CallEvent))


@pytest.mark.parametrize(("status", "event"), list(product(CallStatus, EVENTS)), ids=str)
def test_every_status_under_every_event(status, event):
    call = call_record(status)
    allowed = {after for before, kind, after in ALLOWED if (before, kind) == (status, event)}
    assert TABLE.get((status, event)) == next(iter(allowed), None)
    if not allowed:
        with pytest.raises(InvalidTransition) as refused:
            transition(call, EVENTS[event])
        assert (refused.value.state, refused.value.event) == (status, event.__name__)
        return
    after = transition(call, EVENTS[event])
    assert {after.status} == allowed
    assert after.revision == call.revision + 1
    assert after.invocation_id == call.invocation_id, "stable for ever (invariant 1)"


def test_what_is_ready_or_completed_never_executes_again():
    effects = {AdmitEffect, ReplayEffect}
    assert not [pair for pair in TABLE if pair[0] in {R, C} and pair[1] in effects]


@pytest.mark.parametrize(
    ("stored", "declared", "cancelled", "expected"),
    [
        (Replay.SAFE, Replay.SAFE, False, Orphan.REPLAY),
        (Replay.SAFE, Replay.SAFE, True, Orphan.INTERRUPT),
        (Replay.SAFE, Replay.NEVER, False, Orphan.INTERRUPT),
        (Replay.NEVER, Replay.SAFE, False, Orphan.INTERRUPT),
        (Replay.NEVER, Replay.NEVER, False, Orphan.INTERRUPT),
        (Replay.SAFE, None, False, Orphan.INTERRUPT),
        (Replay.NEVER, None, True, Orphan.INTERRUPT),
    ],
)
def test_an_orphan_is_replayed_only_if_it_is_safe_twice_and_nobody_cancelled(stored, declared, cancelled, expected):
    assert judge_orphan(stored, declared, cancelled=cancelled) is expected


# -- who works on what --


@pytest.mark.parametrize(
    ("statuses", "mode", "expected"),
    [
        ((P, P, P), BatchMode.PARALLEL, (0, 1, 2)),
        ((P, P, P), BatchMode.SEQUENTIAL, (0,)),
        ((C, R, P, E, R), BatchMode.PARALLEL, (2, 3)),
        ((C, R, P), BatchMode.SEQUENTIAL, ()),
        ((C, E, P), BatchMode.SEQUENTIAL, (1,)),
        ((C, C), BatchMode.SEQUENTIAL, ()),
    ],
    ids=str,
)
def test_which_calls_may_be_worked_on(statuses, mode, expected):
    assert to_work_on(state_of(*statuses, mode=mode)) == expected


# -- steps --


def test_a_call_is_admitted_with_its_effective_arguments():
    source = ArgumentsRecord(invocation_id="inv-0", arguments='{"a":1}')
    same = admit(call_record(P), Replay.NEVER, source, '{"a":1}', NOON, incarnation_id="inc-1")
    assert [type(record) for record in same.puts] == [CallRecord]
    other = admit(call_record(P), Replay.NEVER, source, '{"a":2}', NOON, incarnation_id="inc-1")
    assert other.puts[1].arguments == '{"a":2}'
    assert same.guards == other.guards == (Live("inc-1"),)
    (start,) = other.events
    assert (start.kind, start.data["arguments"], start.data["recovery"]) == ("tool_start", {"a": 2}, False)


def test_a_replay_clears_the_old_progress_and_keeps_the_memos():
    mutation = clear_and_replay(call_record(E), "{}", NOON, incarnation_id="inc-1")
    assert mutation.guards == (Live("inc-1"),)
    assert mutation.deletes == (Delete(CheckpointRecord, ("inv-0",)),)
    assert [(event.kind, event.data["recovery"]) for event in mutation.events] == [("tool_start", True)]


def test_an_outcome_goes_with_its_memos_and_progress_in_one_mutation():
    mutation = settle(call_record(E), DONE, NOON, memos=["a", "step/b"], recovery=False)
    assert set(mutation.deletes) == {
        Delete(MemoRecord, ("inv-0", "a")),
        Delete(MemoRecord, ("inv-0", "step/b")),
        Delete(CheckpointRecord, ("inv-0",)),
    }
    assert [type(record) for record in mutation.puts] == [CallRecord, OutcomeRecord]
    assert [event.kind for event in mutation.events] == ["tool_end"]


def test_a_synthetic_result_starts_and_ends_in_its_staging():
    mutation = stage_synthetic(call_record(P), error_outcome("no", terminate=True), '{"x":1}', NOON, intent_id="i")
    assert [event.kind for event in mutation.events] == ["tool_start", "tool_end"]
    assert mutation.events[0].data["arguments"] == {"x": 1}
    assert (mutation.puts[0].terminate, mutation.puts[0].intent_id) == (True, "i")


# -- placement --


@pytest.mark.parametrize("statuses", list(product(CallStatus, repeat=3)), ids=lambda s: "".join(x[0] for x in s))
def test_placement_takes_the_contiguous_ready_prefix_and_nothing_else(statuses):
    state = state_of(*statuses)
    first = next((index for index, status in enumerate(statuses) if status is not C), 3)
    end = next((index for index in range(first, 3) if statuses[index] is not R), 3)
    mutation = place(state, staged(state), NOON)
    if first == end:
        assert mutation is None
        return
    placed = [record for record in mutation.puts if isinstance(record, EntryRecord)]
    assert [entry.source_index for entry in placed] == list(range(first, end))
    assert [entry.seq for entry in placed] == [5 + index for index in range(first, end)]
    parents = ["assistant", "inv-0", "inv-1"][first:end]
    assert [entry.parent_entry_id for entry in placed] == parents
    assert {delete.key[0] for delete in mutation.deletes if delete.record_type is OutcomeRecord} == {
        entry.entry_id for entry in placed
    }
    closes = end == 3
    assert any(isinstance(record, BatchRecord) for record in mutation.puts) is closes
    assert (mutation.events[-1].kind == "turn_end") is closes
    assert sum(delete.record_type is ArgumentsRecord for delete in mutation.deletes) == (3 if closes else 0)
    kinds = [event.kind for event in mutation.events if event.kind != "turn_end"]
    assert kinds == ["message_start", "message_end"] * len(placed) + ["entry_added"] * len(placed)


def test_usage_is_recorded_with_its_entry():
    state = state_of(R)
    mutation = place(state, staged(state, usage='{"tokens":3}'), NOON)
    (usage,) = [record for record in mutation.puts if isinstance(record, UsageRecord)]
    assert (usage.entry_id, usage.usage) == ("inv-0", '{"tokens":3}')
    assert [event.kind for event in mutation.events][-3:] == ["entry_added", "usage", "turn_end"]


def test_a_ready_call_without_its_outcome_is_corrupt():
    with pytest.raises(CorruptRecord, match="inv-0"):
        place(state_of(R), {}, NOON)


@pytest.mark.parametrize(
    ("terminate", "cancelled", "expected"),
    [
        (True, False, Checkpoint.MAY_FINISH),
        (False, False, Checkpoint.NEED_ASSISTANT),
        (True, True, Checkpoint.ABORTED),
        (False, True, Checkpoint.ABORTED),
    ],
)
def test_what_the_operation_does_next(terminate, cancelled, expected):
    state = state_of(R, R, terminate=terminate)
    if cancelled:
        state = state.after(cancel(state, "why", NOON).puts)
    assert checkpoint_of(state) is expected
    mutation = place(state, staged(state), NOON)
    (batch,) = [record for record in mutation.puts if isinstance(record, BatchRecord)]
    assert batch.checkpoint is expected
    assert not state.after(mutation.puts).open


def test_one_result_that_does_not_terminate_needs_the_assistant():
    calls = [call_record(R, 0, terminate=True), call_record(R, 1)]
    assert checkpoint_of(BatchState.of(batch_record(2), calls)) is Checkpoint.NEED_ASSISTANT


# -- the end from outside --


def test_the_end_from_outside_removes_all_but_the_placed_entries():
    state = state_of(C, R, E, P)
    memo = MemoRecord(invocation_id="inv-2", name="m", value="1", at=NOON)
    mutation = finalize(state, [memo], NOON)
    gone = {(delete.record_type, *delete.key) for delete in mutation.deletes}
    assert (MemoRecord, "inv-2", "m") in gone
    assert {key for kind, key, *_ in gone if kind is CallRecord} == {"inv-1", "inv-2", "inv-3"}
    assert {key for kind, key, *_ in gone if kind is ArgumentsRecord} == {"inv-0", "inv-1", "inv-2", "inv-3"}
    (batch,) = mutation.puts
    assert batch.checkpoint is Checkpoint.ENDED


# -- starting --


def request(*names: str, mode=BatchMode.PARALLEL, assistant="assistant", arguments=None):
    calls = [PlannedCall(f"c-{name}", name, arguments or {}) for name in names]
    return request_of("op", ModelTurn("turn", 1), assistant, calls, mode)


def start(asked=None, **more):
    ids = iter(range(100))
    known = {"live": LIVE, "open_batch": None, "latest": None, "mode": BatchMode.PARALLEL}
    return plan(
        "pane", asked or request("a", "b"), now=NOON, mint=lambda kind: f"{kind}-{next(ids)}", **{**known, **more}
    )


def test_a_batch_is_planned_with_a_row_a_call():
    batch, *rows = start().puts
    assert (batch.seq, batch.first_entry_seq, batch.incarnation_id) == (1, 1, "inc")
    assert [type(row) for row in rows] == [CallRecord, ArgumentsRecord] * 2
    assert {row.status for row in rows if isinstance(row, CallRecord)} == {P}


def test_entries_of_the_next_batch_come_behind_those_of_the_last():
    batch, *_ = start(latest=batch_record(3)).puts
    assert (batch.seq, batch.first_entry_seq) == (2, 8)


def test_a_batch_needs_a_live_incarnation_and_the_pane_to_itself():
    with pytest.raises(InvalidTransition, match="no live incarnation"):
        start(live=None)
    with pytest.raises(InvalidTransition, match="still runs"):
        start(open_batch=batch_record(1))


def test_no_calls_and_unstorable_arguments_are_value_errors():
    with pytest.raises(ValueError, match="at least one"):
        request()
    for bad in ({1: 2}, {"x": float("nan")}, {"x": object()}):
        with pytest.raises(ValueError, match="arguments"):
            request("a", arguments=bad)


def test_the_same_request_is_known_again():
    existing = start().puts[0]
    judge_repeated(existing, request("a", "b"))
    for other in (
        request("a"),
        request("b", "a"),
        request("a", "b", assistant="x"),
        request("a", "b", arguments={"x": 1}),
    ):
        with pytest.raises(InvalidTransition, match="other calls"):
            judge_repeated(existing, other)
    with pytest.raises(OperationEnded):
        judge_repeated(evolve(existing, checkpoint=Checkpoint.ENDED, closed_at=NOON), request("a", "b"))


def test_a_boundary_batch_id_is_always_an_id():
    assert boundary_batch_id("op", "turn") == "op/turn"
    long = boundary_batch_id("o" * 256, "t" * 256)
    assert len(long) <= 256
    assert long != boundary_batch_id("o" * 256, "u" * 256)


def test_a_row_older_than_the_one_known_changes_nothing():
    state = state_of(P, P)
    newer = state.after([transition(state.calls[0], AdmitEffect(replay=Replay.SAFE))])
    assert newer.after([state.calls[0]]) == newer
