"""What each step of a batch writes, as one mutation: of its calls, of placement, of its cancellation and end.  Pure.

`tool_state` says which steps there are and what follows which; here is what they leave in the store and tell in
events.  Every mutation is whole by itself: whatever a step ends, it deletes, and the store refuses it otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from attrs import evolve

from fencepost.actors.tool_results import Outcome, outcome_record, result_data
from fencepost.actors.tool_state import (
    AdmitEffect,
    BatchState,
    Place,
    ReplayEffect,
    SettleEffect,
    StageSynthetic,
    checkpoint_of,
    transition,
)
from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.mutation import Delete, Live, Mutation, NewEvent
from fencepost.mailbox.records import (
    ArgumentsRecord,
    BatchRecord,
    CallRecord,
    CallStatus,
    Checkpoint,
    CheckpointRecord,
    EntryRecord,
    MemoRecord,
    OutcomeRecord,
    Record,
    Replay,
    UsageRecord,
)
from fencepost.mailbox.strict_json import json_value
from fencepost.mailbox.text import storable_text

__all__ = [
    "admit",
    "cancel",
    "clear_and_replay",
    "finalize",
    "hook_failed",
    "names_of",
    "place",
    "settle",
    "stage_synthetic",
    "together",
]


# -- the steps of a call -----------------------------------------------------------------------------------------


def names_of(call: CallRecord, *, recovery: bool) -> dict[str, object]:
    """By what an event names its call (contract T-9)."""
    return {
        "invocation_id": call.invocation_id,
        "tool_call_id": call.tool_call_id,
        "source_index": call.source_index,
        "recovery": recovery,
        "tool_name": call.name,
    }


def _event(kind: str, call: CallRecord, now: int, *, recovery: bool, **data: object) -> NewEvent:
    return NewEvent(kind=kind, address=call.batch, at=now, data={**names_of(call, recovery=recovery), **data})


def admit(
    call: CallRecord, replay: Replay, source: ArgumentsRecord, effective: str, now: int, *, incarnation_id: str
) -> Mutation:
    """Clear a planned call: its effective arguments and the intent of its effect, in one transaction.

    Refused once the incarnation the batch runs for was retired: from then on files may change (contract T-5).
    """
    puts: tuple[Record, ...] = (transition(call, AdmitEffect(replay=replay)),)
    if effective != source.arguments:
        puts = (*puts, source.next(arguments=effective))
    start = _event("tool_start", call, now, recovery=False, arguments=json_value(effective))
    return Mutation(label="batch.admit", guards=(Live(incarnation_id),), puts=puts, events=(start,))


def clear_and_replay(
    call: CallRecord, arguments: str, now: int, *, incarnation_id: str, progress: bool = True, beside: bool = False
) -> Mutation:
    """Prepare an orphan's replay: its old progress goes, its memos stay; refused as an admission is.

    `progress` says whether it may have any, `beside` whether an earlier execution of it is known to run still.
    """
    events = [_event("tool_replay.overlaps", call, now, recovery=True)] if beside else []
    events.append(_event("tool_start", call, now, recovery=True, arguments=json_value(arguments)))
    return Mutation(
        label="batch.replay",
        guards=(Live(incarnation_id),),
        deletes=(Delete(CheckpointRecord, (call.invocation_id,)),) if progress else (),
        puts=(transition(call, ReplayEffect()),),
        events=tuple(events),
    )


def stage_synthetic(
    call: CallRecord, outcome: Outcome, arguments: str, now: int, *, intent_id: str | None = None
) -> Mutation:
    """Stage the result of a planned call that never runs; it starts and ends in the same commit."""
    after = transition(call, StageSynthetic(terminate=outcome.terminate, intent_id=intent_id))
    events = (
        _event("tool_start", call, now, recovery=False, arguments=json_value(arguments)),
        _event("tool_end", call, now, recovery=False, result=result_data(outcome)),
    )
    return Mutation(label="batch.stage", puts=(after, outcome_record(call.invocation_id, outcome, now)), events=events)


def settle(
    call: CallRecord, outcome: Outcome, now: int, *, memos: Iterable[str], recovery: bool, progress: bool = True
) -> Mutation:
    """Stage the outcome of an effect; what belonged to its running goes in the same transaction.

    `memos` are the names of those there may be, `progress` whether there may be a durable snapshot.
    """
    after = transition(call, SettleEffect(terminate=outcome.terminate))
    deletes = [Delete(MemoRecord, (call.invocation_id, name)) for name in memos]
    if progress:
        deletes.append(Delete(CheckpointRecord, (call.invocation_id,)))
    return Mutation(
        label="batch.stage",
        deletes=tuple(deletes),
        puts=(after, outcome_record(call.invocation_id, outcome, now)),
        events=(_event("tool_end", call, now, recovery=recovery, result=result_data(outcome)),),
    )


def hook_failed(call: CallRecord, error: str, now: int) -> Mutation:
    """Tell that `after_tool` did not look at a result, which is kept as it is."""
    event = _event("after_tool.failed", call, now, recovery=False, error=error)
    return Mutation(label="batch.hook_failed", events=(event,))


def together(steps: Sequence[Mutation]) -> Mutation:
    """Several calls' steps of one kind as one mutation; each call's writes stay in their order."""
    if len(steps) == 1:
        return steps[0]
    return Mutation(
        label=steps[0].label,
        guards=tuple(dict.fromkeys(chain.from_iterable(step.guards for step in steps))),
        deletes=tuple(chain.from_iterable(step.deletes for step in steps)),
        puts=tuple(chain.from_iterable(step.puts for step in steps)),
        events=tuple(chain.from_iterable(step.events for step in steps)),
    )


# -- placement ---------------------------------------------------------------------------------------------------


def place(
    state: BatchState, outcomes: Mapping[str, OutcomeRecord], now: int, *, recovered: Collection[int] = ()
) -> Mutation | None:
    """Place the ready prefix, and close the batch with its last call; None while nothing is ready.

    `outcomes` holds the staged result of every call of the prefix.  `recovered` are the positions that an earlier
    life left behind.
    """
    prefix = state.ready
    if not prefix:
        return None
    puts: list[Record] = []
    before: list[NewEvent] = []
    behind: list[NewEvent] = []
    parent = state.calls[state.placed - 1].invocation_id if state.placed else state.batch.assistant_entry_id
    for call in prefix:
        outcome = outcomes.get(call.invocation_id)
        if outcome is None:
            raise CorruptRecord(f"{call.batch}: outcomes({call.invocation_id!r},)", "is missing, and its call is ready")
        recovery = call.source_index in recovered
        entry = _entry(state.batch, call, outcome, parent)
        puts += [transition(call, Place(at=now)), entry]
        before += [
            _event(kind, call, now, recovery=recovery, entry_id=entry.entry_id)
            for kind in ("message_start", "message_end")
        ]
        behind.append(
            _event("entry_added", call, now, recovery=recovery, entry_id=entry.entry_id, parent_entry_id=parent)
        )
        if outcome.usage is not None:
            puts.append(UsageRecord(entry_id=entry.entry_id, pane_id=call.pane_id, usage=outcome.usage, at=now))
            behind.append(_event("usage", call, now, recovery=recovery, usage=json_value(outcome.usage)))
        parent = entry.entry_id
    placed = Mutation(
        label="batch.place",
        deletes=tuple(Delete(OutcomeRecord, (call.invocation_id,)) for call in prefix),
        puts=tuple(puts),
        events=(*before, *behind),
    )
    return _closed(state, placed, now) if state.placed + len(prefix) == len(state.calls) else placed


def _entry(batch: BatchRecord, call: CallRecord, outcome: OutcomeRecord, parent: str) -> EntryRecord:
    return EntryRecord(
        entry_id=call.invocation_id,
        pane_id=call.pane_id,
        seq=batch.first_entry_seq + call.source_index,
        parent_entry_id=parent,
        operation_id=batch.operation_id,
        turn_id=batch.turn_id,
        source_index=call.source_index,
        tool_call_id=call.tool_call_id,
        tool_name=call.name,
        content=outcome.content,
        details=outcome.details,
        is_error=outcome.is_error,
        usage=outcome.usage,
        added_tool_names=outcome.added_tool_names,
        terminate=call.terminate,
        at=outcome.at,
    )


def _closed(state: BatchState, placed: Mutation, now: int) -> Mutation:
    """The last placement also removes every argument, closes the batch and ends its turn."""
    checkpoint = checkpoint_of(state)
    closed = state.batch.next(checkpoint=checkpoint, closed_at=now)
    arguments = tuple(Delete(ArgumentsRecord, (call.invocation_id,)) for call in state.calls)
    return evolve(
        placed,
        deletes=placed.deletes + arguments,
        puts=(*placed.puts, closed),
        events=(*placed.events, _turn_end(state, checkpoint, now)),
    )


def _turn_end(state: BatchState, checkpoint: Checkpoint, now: int) -> NewEvent:
    batch = state.batch
    more = {"operation_id": batch.operation_id, "turn_id": batch.turn_id, "checkpoint": checkpoint.value}
    return _event("turn_end", state.calls[-1], now, recovery=False, **more)


# -- cancellation and the end from outside -----------------------------------------------------------------------


def cancel(state: BatchState, reason: str, now: int) -> Mutation:
    """Make a cancellation durable; what it means for each call follows from its state."""
    requested = state.batch.next(cancel_requested_at=now, cancel_reason=storable_text(reason))
    return Mutation(label="batch.cancel", puts=(requested,))


def finalize(state: BatchState, memos: Iterable[MemoRecord], now: int) -> Mutation:
    """End the batch from outside: everything it owns goes but the entries already placed.

    `memos` are all there are of its calls; should another one be written first, the store refuses this.
    """
    ended = state.batch.next(checkpoint=Checkpoint.ENDED, closed_at=now)
    deletes = [Delete(MemoRecord, memo.key) for memo in memos]
    for call in state.calls:
        key = (call.invocation_id,)
        deletes.append(Delete(ArgumentsRecord, key))
        if call.status is not CallStatus.COMPLETED:
            deletes += [Delete(kind, key) for kind in (CheckpointRecord, OutcomeRecord, CallRecord)]
    return Mutation(
        label="batch.finalize",
        deletes=tuple(deletes),
        puts=(ended,),
        events=(_turn_end(state, Checkpoint.ENDED, now),),
    )
