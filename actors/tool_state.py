"""The tool-call protocol: one row a call, four states, and what may follow what.  Pure.

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

`TABLE` names every (status, event) there is; a pair that is absent does not exist and `transition` raises.  The rows
that start a batch are made in `tool_plan`, the mutation of each step in `tool_writes`.  Nothing in the three knows of
the store, time or randomness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from attrs import frozen

from fencepost.actors.tool_messages import CallView
from fencepost.mailbox.address import ID_LENGTH_MAX
from fencepost.mailbox.errors import InvalidTransition
from fencepost.mailbox.records import BatchMode, BatchRecord, CallRecord, CallStatus, Checkpoint, Record, Replay

__all__ = [
    "TABLE",
    "AdmitEffect",
    "BatchState",
    "CallEvent",
    "Orphan",
    "Place",
    "ReplayEffect",
    "SettleEffect",
    "StageSynthetic",
    "boundary_batch_id",
    "call_view",
    "checkpoint_of",
    "judge_orphan",
    "to_work_on",
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
