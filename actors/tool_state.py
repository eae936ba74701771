"""The tool-call protocol: one row a call, four states, and what each step of a batch writes.  Pure.

Theory of operation
===================

The calls of one assistant entry finish in any order; their results enter the transcript in the order the assistant
wrote them.  So the two orders are kept apart (tool-durability note):

    planned ──AdmitEffect──▶ effect_pending ──SettleEffect──▶ outcome_ready ──Place──▶ completed
       │                        │       ▲                            ▲
       │                        └───────┘ ReplayEffect               │
       └───────────────────────StageSynthetic────────────────────────┘

* An effect starts only behind a committed `effect_pending`.  From there a crash leaves an *orphan*: nobody knows how
  far its effect got.  `judge_orphan` says what becomes of it: run again, with the same id and arguments, where both
  the stored and the current declaration are safe and nobody has cancelled; otherwise an error result that says so.
* `outcome_ready` is the point of no return.  The complete result is durable, the call never runs again, and what
  belonged to its running (memos, progress) is deleted in the same transaction; the store refuses it otherwise.
* Placement takes the contiguous ready prefix behind the completed one, in one transaction, and nothing else extends
  the completed prefix.  The last placement closes the batch and says what its operation does next.
* Cancellation is one field of the batch's row.  Once it is committed no orphan is replayed and no planned call is
  run; outcomes that are ready stay as they are; when all are placed the batch is aborted.
* Ending a batch from outside removes all it owned but the entries already placed.

`TABLE` names every (status, event) there is; a pair that is absent does not exist and `transition` raises.  The
functions below it make the mutation of each step.  Nothing here knows of the store, time or randomness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import Final, TypeAlias, assert_never

from attrs import evolve, field, frozen

from fencepost.actors.messages import ModelTurn
from fencepost.actors.tool_messages import CallView, PlannedCall
from fencepost.actors.tool_results import Outcome, outcome_record, result_data
from fencepost.mailbox.address import ID_LENGTH_MAX, Address
from fencepost.mailbox.errors import CorruptRecord, InvalidTransition, OperationEnded
from fencepost.mailbox.mutation import Delete, Mutation, NewEvent, Unchanged
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
    Record,
    Replay,
    UsageRecord,
)
from fencepost.mailbox.strict_json import JsonValue, json_copy, json_value, text_of_copy
from fencepost.mailbox.text import storable_text

__all__ = [
    "TABLE",
    "AdmitEffect",
    "BatchRequest",
    "BatchState",
    "CallEvent",
    "CallRequest",
    "Orphan",
    "Place",
    "ReplayEffect",
    "SettleEffect",
    "StageSynthetic",
    "admit",
    "boundary_batch_id",
    "call_view",
    "cancel",
    "checkpoint_of",
    "clear_and_replay",
    "finalize",
    "judge_orphan",
    "judge_repeated",
    "place",
    "plan",
    "request_of",
    "settle",
    "stage_synthetic",
    "to_work_on",
    "together",
    "transition",
]


# -- events and the table ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class AdmitEffect:
    """The call is cleared and its effect may start; `replay` is the tool's declaration at this moment."""

    replay: Replay


@frozen(kw_only=True)
class StageSynthetic:
    """The call never runs: refused, invalid, blocked or cancelled; `intent_id` names whose payload its result is."""

    terminate: bool = False
    intent_id: str | None = None


@frozen(kw_only=True)
class ReplayEffect:
    """An orphan is about to be run again; the new revision fences whatever its old execution still writes."""


@frozen(kw_only=True)
class SettleEffect:
    """The effect has an outcome, its own or the truth about an interruption."""

    terminate: bool = False


@frozen(kw_only=True)
class Place:
    """The result's entry is inserted."""

    at: int


CallEvent: TypeAlias = AdmitEffect | StageSynthetic | ReplayEffect | SettleEffect | Place

TABLE: Final[Mapping[tuple[CallStatus, type[CallEvent]], CallStatus]] = {
    (CallStatus.PLANNED, AdmitEffect): CallStatus.EFFECT_PENDING,
    (CallStatus.PLANNED, StageSynthetic): CallStatus.OUTCOME_READY,
    (CallStatus.EFFECT_PENDING, ReplayEffect): CallStatus.EFFECT_PENDING,
    (CallStatus.EFFECT_PENDING, SettleEffect): CallStatus.OUTCOME_READY,
    (CallStatus.OUTCOME_READY, Place): CallStatus.COMPLETED,
}
"""Every transition of a call there is.  Whatever is absent does not exist."""


def transition(call: CallRecord, event: CallEvent) -> CallRecord:
    """The row after `event`, or `InvalidTransition` where the table has no such row."""
    after = TABLE.get((call.status, type(event)))
    if after is None:
        name = type(event).__name__
        raise InvalidTransition(
            f"call {call.invocation_id} is {call.status}; {name} is not possible there",
            state=call.status,
            event=name,
            address=call.batch,
        )
    match event:
        case AdmitEffect():
            return call.next(status=after, replay=event.replay)
        case StageSynthetic():
            return call.next(status=after, terminate=event.terminate, intent_id=event.intent_id)
        case ReplayEffect():
            return call.next(status=after)
        case SettleEffect():
            return call.next(status=after, terminate=event.terminate)
        case Place():
            return call.next(status=after, placed_at=event.at)
        case _:
            assert_never(event)


class Orphan(StrEnum):
    """What becomes of a call whose effect began in an earlier life."""

    REPLAY = "replay"
    INTERRUPT = "interrupt"


def judge_orphan(stored: Replay | None, declared: Replay | None, *, cancelled: bool) -> Orphan:
    """Replay only what is safe by both declarations, the stored and the current one (None: no such tool any more)."""
    if not cancelled and stored is Replay.SAFE and declared is Replay.SAFE:
        return Orphan.REPLAY
    return Orphan.INTERRUPT


# -- a batch as its actor knows it -------------------------------------------------------------------------------


@frozen(kw_only=True)
class BatchState:
    """The rows of one batch; `placed` counts the completed prefix."""

    batch: BatchRecord
    calls: tuple[CallRecord, ...]
    placed: int = 0

    @classmethod
    def of(cls, batch: BatchRecord, calls: Sequence[CallRecord]) -> BatchState:
        """The state that these rows, in source order, are; trusted as they stand."""
        return cls(batch=batch, calls=tuple(calls), placed=_completed_prefix(calls, 0))

    @property
    def cancelled(self) -> bool:
        """Whether a cancellation is durable."""
        return self.batch.cancel_requested_at is not None

    @property
    def open(self) -> bool:
        """Whether results are still to come."""
        return self.batch.open

    @property
    def ready(self) -> tuple[CallRecord, ...]:
        """The contiguous ready prefix behind the completed one."""
        end = self.placed
        while end < len(self.calls) and self.calls[end].status is CallStatus.OUTCOME_READY:
            end += 1
        return self.calls[self.placed : end]

    def after(self, records: Iterable[Record]) -> BatchState:
        """This state with committed rows applied; a row older than the one known changes nothing."""
        batch, calls = self.batch, list(self.calls)
        for record in records:
            match record:
                case BatchRecord() if record.revision > batch.revision:
                    batch = record
                case CallRecord() if record.revision > calls[record.source_index].revision:
                    calls[record.source_index] = record
                case _:
                    pass
        return BatchState(batch=batch, calls=tuple(calls), placed=_completed_prefix(calls, self.placed))


def _completed_prefix(calls: Sequence[CallRecord], known: int) -> int:
    """How many calls are completed from the first on; at least `known` are."""
    placed = known
    while placed < len(calls) and calls[placed].status is CallStatus.COMPLETED:
        placed += 1
    return placed


def to_work_on(state: BatchState) -> tuple[int, ...]:
    """The source positions that may be worked on now: all open ones, or in a sequential batch only the first."""
    if not state.open:
        return ()
    last = len(state.calls) if state.batch.mode is BatchMode.PARALLEL else min(state.placed + 1, len(state.calls))
    unsettled = {CallStatus.PLANNED, CallStatus.EFFECT_PENDING}
    return tuple(index for index in range(state.placed, last) if state.calls[index].status in unsettled)


def checkpoint_of(state: BatchState) -> Checkpoint:
    """What the operation does once every result is placed (contract T-4)."""
    if state.cancelled:
        return Checkpoint.ABORTED
    return Checkpoint.MAY_FINISH if all(call.terminate for call in state.calls) else Checkpoint.NEED_ASSISTANT


def call_view(call: CallRecord) -> CallView:
    """The call as a bridge sees it."""
    return CallView(call.source_index, call.invocation_id, call.tool_call_id, call.name, call.status, call.replay)


def boundary_batch_id(operation_id: str, turn_id: str) -> str:
    """The batch id under which the batch's calls come to their pane's boundary (contract T-5).

    Two long ids together may be longer than an id can be; the batch then goes by their hash.
    """
    batch_id = f"{operation_id}/{turn_id}"
    if len(batch_id) <= ID_LENGTH_MAX:
        return batch_id
    return f"sha256/{hashlib.sha256(batch_id.encode()).hexdigest()}"


# -- starting a batch --------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class CallRequest:
    """One planned call, storable; `arguments` is JSON text."""

    tool_call_id: str
    name: str
    arguments: str = field(repr=False)
    refusal: str | None


@frozen(kw_only=True)
class BatchRequest:
    """What `start_batch` was asked for."""

    operation_id: str
    turn: ModelTurn
    assistant_entry_id: str
    calls: tuple[CallRequest, ...]
    mode: BatchMode

    @property
    def fingerprint(self) -> str:
        """By which the same request is known again."""
        asked: JsonValue = [
            self.assistant_entry_id,
            self.turn.ordinal,
            self.mode.value,
            [[call.tool_call_id, call.name, call.arguments, call.refusal] for call in self.calls],
        ]
        return hashlib.sha256(text_of_copy(asked).encode()).hexdigest()


def request_of(
    operation_id: str, turn: ModelTurn, assistant_entry_id: str, calls: Iterable[PlannedCall], mode: BatchMode
) -> BatchRequest:
    """The request, judged.  Raises ValueError for no calls and for arguments that JSON does not have."""
    requests = tuple(_call_request(index, call) for index, call in enumerate(calls))
    if not requests:
        raise ValueError("a batch has at least one call")
    return BatchRequest(
        operation_id=operation_id,
        turn=turn,
        assistant_entry_id=assistant_entry_id,
        calls=requests,
        mode=BatchMode(mode),
    )


def _call_request(index: int, call: object) -> CallRequest:
    if not isinstance(call, PlannedCall):
        raise TypeError(f"calls[{index}] must be a PlannedCall, not {call!r}")
    return CallRequest(
        tool_call_id=call.tool_call_id,
        name=storable_text(call.name),
        arguments=text_of_copy(json_copy(call.arguments, f"calls[{index}].arguments")),
        refusal=None if call.refusal is None else storable_text(str(call.refusal)),
    )


def judge_repeated(existing: BatchRecord, request: BatchRequest) -> None:
    """Raise unless `existing` is the batch that this very request started."""
    if existing.checkpoint is Checkpoint.ENDED:
        raise OperationEnded(f"{existing.address} was finalized from outside")
    if existing.fingerprint != request.fingerprint:
        raise InvalidTransition(
            f"{existing.address} was started with other calls",
            state="started",
            event="start_batch",
            address=existing.address,
        )


def plan(
    pane_id: str,
    request: BatchRequest,
    *,
    live: IncarnationRecord | None,
    open_batch: BatchRecord | None,
    latest: BatchRecord | None,
    mode: BatchMode,
    now: int,
    mint: Callable[[str], str],
) -> Mutation:
    """Start a batch: its row and, for each call, one row and its arguments.

    `latest` is the pane's newest batch.  Raises `InvalidTransition` without a live incarnation and beside an open
    batch.
    """
    address = str(Address.batch(pane_id, request.operation_id, request.turn.id))
    if open_batch is not None:
        raise InvalidTransition(
            f"pane {pane_id} still runs {open_batch.address}", state="open", event="start_batch", address=address
        )
    if live is None:
        raise InvalidTransition(
            f"pane {pane_id} has no live incarnation to run tools for", event="start_batch", address=address
        )
    batch = BatchRecord(
        address=address,
        pane_id=pane_id,
        seq=1 if latest is None else latest.seq + 1,
        operation_id=request.operation_id,
        turn_id=request.turn.id,
        turn_ordinal=request.turn.ordinal,
        assistant_entry_id=request.assistant_entry_id,
        incarnation_id=live.incarnation_id,
        mode=mode,
        fingerprint=request.fingerprint,
        calls_count=len(request.calls),
        first_entry_seq=1 if latest is None else latest.first_entry_seq + latest.calls_count,
        started_at=now,
    )
    puts: list[Record] = [batch]
    for index, call in enumerate(request.calls):
        invocation_id = mint("invocation")
        puts.append(
            CallRecord(
                invocation_id=invocation_id,
                pane_id=pane_id,
                batch=address,
                source_index=index,
                tool_call_id=call.tool_call_id,
                name=call.name,
                refusal=call.refusal,
            )
        )
        puts.append(ArgumentsRecord(invocation_id=invocation_id, arguments=call.arguments))
    return Mutation(label="pane.start_batch", guards=(Unchanged(live),), puts=tuple(puts))


# -- the steps of a call -----------------------------------------------------------------------------------------


def _event(kind: str, call: CallRecord, now: int, *, recovery: bool, **data: object) -> NewEvent:
    named: dict[str, object] = {
        "invocation_id": call.invocation_id,
        "tool_call_id": call.tool_call_id,
        "source_index": call.source_index,
        "recovery": recovery,
        "tool_name": call.name,
        **data,
    }
    return NewEvent(kind=kind, address=call.batch, at=now, data=named)


def admit(call: CallRecord, replay: Replay, source: ArgumentsRecord, effective: str, now: int) -> Mutation:
    """Clear a planned call: its effective arguments and the intent of its effect, in one transaction."""
    puts: tuple[Record, ...] = (transition(call, AdmitEffect(replay=replay)),)
    if effective != source.arguments:
        puts = (*puts, source.next(arguments=effective))
    start = _event("tool_start", call, now, recovery=False, arguments=json_value(effective))
    return Mutation(label="batch.admit", puts=puts, events=(start,))


def clear_and_replay(
    call: CallRecord, arguments: str, now: int, *, progress: bool = True, beside: bool = False
) -> Mutation:
    """Prepare an orphan's replay: its old progress goes, its memos stay.

    `progress` says whether it may have any, `beside` whether an earlier execution of it is known to run still.
    """
    events = [_event("tool_replay.overlaps", call, now, recovery=True)] if beside else []
    events.append(_event("tool_start", call, now, recovery=True, arguments=json_value(arguments)))
    return Mutation(
        label="batch.replay",
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


def together(steps: Sequence[Mutation]) -> Mutation:
    """Several calls' steps of one kind as one mutation; each call's writes stay in their order."""
    if len(steps) == 1:
        return steps[0]
    return Mutation(
        label=steps[0].label,
        guards=tuple(chain.from_iterable(step.guards for step in steps)),
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
