"""The durable records of tool batches (tool-durability note).

One row a call, so that a batch of n calls costs O(n) bytes; and what a call has only for a while (its arguments, what
its tool remembers, an outcome that waits for its place) is a row of its own, so that the call's row stays small.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from attrs import field, frozen

from fencepost.mailbox.record import Record, Versioned

__all__ = [
    "ArgumentsRecord",
    "BatchMode",
    "BatchRecord",
    "CallRecord",
    "CallStatus",
    "Checkpoint",
    "CheckpointRecord",
    "EntryRecord",
    "MemoRecord",
    "OutcomeRecord",
    "Replay",
    "UsageRecord",
]


class CallStatus(StrEnum):
    """The four states of a tool call (tool-durability note, "Tool-call state")."""

    PLANNED = "planned"
    EFFECT_PENDING = "effect_pending"
    OUTCOME_READY = "outcome_ready"
    COMPLETED = "completed"


class Replay(StrEnum):
    """Whether a tool that was interrupted may simply be run again."""

    NEVER = "never"
    SAFE = "safe"


class BatchMode(StrEnum):
    """Whether the calls of a batch run at once or one after the other."""

    PARALLEL = "parallel"
    SEQUENTIAL = "sequential"


class Checkpoint(StrEnum):
    """What a finished batch asks of its operation (contract T-4)."""

    MAY_FINISH = "may_finish"
    NEED_ASSISTANT = "need_assistant"
    ABORTED = "aborted"
    ENDED = "ended"


@frozen(kw_only=True, slots=False)
class BatchRecord(Versioned):
    """The tool calls of one assistant entry; open until its last result is placed or it is ended from outside."""

    TABLE: ClassVar[str] = "batches"
    KEY: ClassVar[tuple[str, ...]] = ("address",)
    FIXED: ClassVar[tuple[str, ...]] = (
        "pane_id",
        "seq",
        "operation_id",
        "turn_id",
        "turn_ordinal",
        "assistant_entry_id",
        "incarnation_id",
        "mode",
        "fingerprint",
        "calls_count",
        "first_entry_seq",
        "started_at",
    )
    SETTLED: ClassVar[tuple[str, ...]] = ("cancel_requested_at", "cancel_reason")
    SEAL: ClassVar[str | None] = "closed_at"

    address: str
    pane_id: str
    revision: int = 1
    seq: int
    """Counts the batches of the pane, from 1."""
    operation_id: str
    turn_id: str
    turn_ordinal: int
    assistant_entry_id: str
    incarnation_id: str
    mode: BatchMode
    """As it runs: a batch with a sequential tool in it is sequential."""
    fingerprint: str
    """SHA-256 of what was asked for, by which the same request is known again."""
    calls_count: int
    first_entry_seq: int
    """The place of its first result among the pane's entries; result i is placed at this plus i."""
    started_at: int
    cancel_requested_at: int | None = None
    cancel_reason: str | None = None
    checkpoint: Checkpoint | None = None
    """None while the batch is open."""
    closed_at: int | None = None

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        if self.revision < 1 or self.seq < 1 or self.calls_count < 1 or self.first_entry_seq < 1:
            return "revision, seq, calls and entries count from 1"
        if (self.checkpoint is None) != (self.closed_at is None):
            return "checkpoint and closed_at come together"
        if (self.cancel_requested_at is None) != (self.cancel_reason is None):
            return "a cancellation has a time and a reason"
        if self.cancel_requested_at is None and self.checkpoint is Checkpoint.ABORTED:
            return "aborted, never cancelled"
        if self.cancel_requested_at is not None and self.checkpoint in {
            Checkpoint.MAY_FINISH,
            Checkpoint.NEED_ASSISTANT,
        }:
            return "cancelled and not aborted"
        return None

    @property
    def open(self) -> bool:
        """Whether results are still to come."""
        return self.checkpoint is None


@frozen(kw_only=True, slots=False)
class CallRecord(Versioned):
    """One tool call; its invocation id is the id its result entry will have."""

    TABLE: ClassVar[str] = "calls"
    KEY: ClassVar[tuple[str, ...]] = ("invocation_id",)
    FIXED: ClassVar[tuple[str, ...]] = ("pane_id", "batch", "source_index", "tool_call_id", "name", "refusal")
    SETTLED: ClassVar[tuple[str, ...]] = ("replay", "intent_id")
    SEAL: ClassVar[str | None] = "placed_at"

    invocation_id: str
    pane_id: str
    revision: int = 1
    batch: str
    """Its batch's address."""
    source_index: int
    tool_call_id: str
    name: str
    refusal: str | None = None
    """A text that is this call's result instead of anything a tool does."""
    status: CallStatus = CallStatus.PLANNED
    replay: Replay | None = None
    """As declared when the effect was admitted; None for a call whose effect never was."""
    intent_id: str | None = None
    """The intent whose saved payload is this call's result."""
    terminate: bool = False
    placed_at: int | None = None

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        if self.revision < 1 or self.source_index < 0:
            return "revision counts from 1, source_index from 0"
        if self.status is CallStatus.PLANNED and self.replay is not None:
            return "planned with an admitted effect"
        if self.status is CallStatus.EFFECT_PENDING and self.replay is None:
            return "effect_pending without its replay"
        settled = self.status in {CallStatus.OUTCOME_READY, CallStatus.COMPLETED}
        if self.terminate and not settled:
            return "terminates without an outcome"
        if self.intent_id is not None and (not settled or self.replay is not None):
            return "a payload is the result of a call that never ran"
        if (self.status is CallStatus.COMPLETED) != (self.placed_at is not None):
            return "completed is placed"
        return None


@frozen(kw_only=True, slots=False)
class ArgumentsRecord(Versioned):
    """The arguments of a call as JSON text: the source's while it is planned, then the effective ones."""

    TABLE: ClassVar[str] = "call_arguments"
    KEY: ClassVar[tuple[str, ...]] = ("invocation_id",)

    invocation_id: str
    revision: int = 1
    arguments: str = field(repr=False)


@frozen(kw_only=True)
class MemoRecord(Record):
    """What a running tool asked to be remembered over its own replay; gone with the call's effect_pending."""

    TABLE: ClassVar[str] = "memos"
    KEY: ClassVar[tuple[str, ...]] = ("invocation_id", "name")

    invocation_id: str
    name: str
    status: CallStatus = CallStatus.EFFECT_PENDING
    """Always this: together with `invocation_id` it refers to the call, so that it can exist in no other state."""
    value: str = field(repr=False)
    at: int

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        return None if self.status is CallStatus.EFFECT_PENDING else "a memo outlived its call's effect"


@frozen(kw_only=True)
class CheckpointRecord(Record):
    """The latest durable progress of a running tool, whole; it never proves that anything completed."""

    TABLE: ClassVar[str] = "checkpoints"
    KEY: ClassVar[tuple[str, ...]] = ("invocation_id",)

    invocation_id: str
    status: CallStatus = CallStatus.EFFECT_PENDING
    """Always this; see `MemoRecord.status`."""
    content: str = field(repr=False)
    details: str | None = field(repr=False)
    usage: str | None
    at: int

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        return None if self.status is CallStatus.EFFECT_PENDING else "progress outlived its call's effect"


@frozen(kw_only=True)
class OutcomeRecord(Record):
    """The complete result of a call that is outcome_ready, until its entry is placed.  Its fields are JSON texts."""

    TABLE: ClassVar[str] = "outcomes"
    KEY: ClassVar[tuple[str, ...]] = ("invocation_id",)

    invocation_id: str
    status: CallStatus = CallStatus.OUTCOME_READY
    """Always this; see `MemoRecord.status`."""
    content: str = field(repr=False)
    details: str | None = field(repr=False)
    is_error: bool
    usage: str | None
    added_tool_names: str
    at: int

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        return None if self.status is CallStatus.OUTCOME_READY else "a staged outcome outlived its placement"


@frozen(kw_only=True)
class EntryRecord(Record):
    """One result in the pane's transcript, placed for ever."""

    TABLE: ClassVar[str] = "entries"
    KEY: ClassVar[tuple[str, ...]] = ("entry_id",)

    entry_id: str
    """The invocation id of its call."""
    pane_id: str
    seq: int
    """Its place among the pane's entries."""
    parent_entry_id: str
    operation_id: str
    turn_id: str
    source_index: int
    tool_call_id: str
    tool_name: str
    content: str = field(repr=False)
    details: str | None = field(repr=False)
    is_error: bool
    usage: str | None
    added_tool_names: str
    terminate: bool
    at: int
    """When its outcome was staged."""

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        return None if self.seq >= 1 and self.source_index >= 0 else "seq counts from 1, source_index from 0"


@frozen(kw_only=True)
class UsageRecord(Record):
    """What a tool reported to have used; written once, with its entry."""

    TABLE: ClassVar[str] = "usage"
    KEY: ClassVar[tuple[str, ...]] = ("entry_id",)

    entry_id: str
    pane_id: str
    usage: str
    at: int
