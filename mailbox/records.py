"""The durable records of panes, intents and tool batches, and the list of all there are.

`record` says what a record is, `delivery_records` has those of deliveries.  The laws of an intent's rows are those of
protocol-intent.md section 10.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import ClassVar, Final

from attrs import field, frozen

from fencepost.mailbox.delivery_records import (
    AcceptanceRecord,
    ConversationRecord,
    DeliveryRecord,
    FenceRecord,
    RunRecord,
    SettlementRecord,
    TombstoneRecord,
)
from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.record import Record, Versioned, given

__all__ = [
    "RECORD_TYPES",
    "AcceptanceRecord",
    "AdmissionDecision",
    "AdmissionRecord",
    "ArgumentsRecord",
    "BatchMode",
    "BatchRecord",
    "CallRecord",
    "CallStatus",
    "Checkpoint",
    "CheckpointRecord",
    "ConversationRecord",
    "DeliveryMode",
    "DeliveryRecord",
    "EntryRecord",
    "FenceRecord",
    "IncarnationRecord",
    "IntentRecord",
    "IntentState",
    "MemoRecord",
    "OutcomeRecord",
    "ProjectionRecord",
    "Record",
    "Replay",
    "RunRecord",
    "SettlementRecord",
    "TombstoneRecord",
    "TranscriptRecord",
    "TransitionKind",
    "TriggerRecord",
    "UsageRecord",
    "Versioned",
]


class IntentState(StrEnum):
    """The eight states of an intent (protocol-intent.md section 1.4)."""

    DETECTED = "detected"
    RECONCILING = "reconciling"
    MATERIALIZED = "materialized"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    RECOVERY_REQUIRED = "recovery_required"
    TOPOLOGY_DIVERGED = "topology_diverged"
    SUPERSEDED = "superseded"


class DeliveryMode(StrEnum):
    """The two ways a payload may reach an agent, each with its own proof (cascade-outbox note, "Delivery proofs")."""

    SOFT_BATCH = "soft_batch"
    RESTART_STARTUP = "restart_startup"


class TransitionKind(StrEnum):
    """Why the base moved."""

    NATIVE_REWRITE = "native_rewrite"
    PARENT_ADVANCE = "parent_advance"


class AdmissionDecision(StrEnum):
    """The first, and only, decision of a tool batch [D12]."""

    PASS = "pass"
    BLOCK = "block"


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


PREPARED_STATES: Final = frozenset({IntentState.MATERIALIZED, IntentState.DELIVERED, IntentState.ACKNOWLEDGED})
UNBOUND_STATES: Final = frozenset({IntentState.DETECTED, IntentState.ACKNOWLEDGED, IntentState.SUPERSEDED})
RESOLVED_STATES: Final = frozenset({IntentState.ACKNOWLEDGED, IntentState.SUPERSEDED})
UNRESOLVED_STATES: Final = frozenset(IntentState) - RESOLVED_STATES
ACTIVE_STATES: Final = frozenset(
    {
        IntentState.RECONCILING,
        IntentState.MATERIALIZED,
        IntentState.DELIVERED,
        IntentState.RECOVERY_REQUIRED,
    }
)
"""At most one intent of a pane is in one of these (section 10, invariant 4)."""


@frozen(kw_only=True, slots=False)
class IntentRecord(Versioned):
    """One ordered reconciliation of one pane; it owns the whole protocol (protocol-intent.md section 1.1)."""

    TABLE: ClassVar[str] = "intents"
    KEY: ClassVar[tuple[str, ...]] = ("intent_id",)
    FIXED: ClassVar[tuple[str, ...]] = ("pane_id", "seq", "from_base", "detected_at")
    SETTLED: ClassVar[tuple[str, ...]] = (
        "result_op",
        "workspace_commit",
        "payload",
        "payload_sha256",
        "anchor_change_id",
        "anchor_commit_id",
        "anchor_op_id",
        "prepared_at",
        "delivered_at",
    )
    SEAL: ClassVar[str | None] = "acknowledged_at"

    intent_id: str
    pane_id: str
    revision: int = 1
    seq: int
    kind: TransitionKind
    from_base: str
    to_base: str
    classification_op: str
    detected_at: int
    state: IntentState = IntentState.DETECTED
    reason: str | None = None
    """Why it is recovery_required, topology_diverged, or was retired on the way; free text of the reconciler."""
    bundle_path: str | None = None
    bundle_fingerprint: str | None = None
    recovery_details: str | None = None
    """JSON text of `NeedsRecovery.details` or `Diverged.details`."""
    resolution: str | None = None
    resolved_by: str | None = None
    discarded: bool = False
    planned_op: str | None = None
    starting_op: str | None = None
    result_op: str | None = None
    workspace_commit: str | None = None
    payload: bytes | None = field(default=None, repr=lambda value: "None" if value is None else f"<{len(value)} bytes>")
    payload_sha256: str | None = None
    anchor_change_id: str | None = None
    anchor_commit_id: str | None = None
    anchor_op_id: str | None = None
    prepared_at: int | None = None
    delivered_at: int | None = None
    consumed_at: int | None = None
    """When a completed batch or an accepted handshake first showed that the harness took it; a stage never falls."""
    acknowledged_at: int | None = None
    mode: DeliveryMode | None = None
    incarnation_id: str | None = None
    """The bound incarnation: of the soft tuple, or the replacement of a restart."""
    turn_id: str | None = None
    turn_ordinal: int | None = None
    batch_id: str | None = None
    bound_at: int | None = None
    batch_completed_at: int | None = None
    payload_offered_at: int | None = None
    startup_delivery_id: str | None = None
    handshake_at: int | None = None
    soft_redeliveries: int = 0
    epoch: int = 0
    """The delivery epoch; startup attempts are counted within it, `rearm` begins the next one."""
    exhausted_at: int | None = None
    approval: str | None = None
    """The one-shot token `discard` must show; present exactly while exhausted."""

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        state, mode = self.state, self.mode
        soft, restart = mode is DeliveryMode.SOFT_BATCH, mode is DeliveryMode.RESTART_STARTUP
        if self.revision < 1 or self.seq < 1:
            return "revision and seq count from 1"
        prepared = given(
            self.result_op,
            self.workspace_commit,
            self.payload,
            self.payload_sha256,
            self.anchor_change_id,
            self.anchor_commit_id,
            self.anchor_op_id,
            self.prepared_at,
        )
        if prepared not in {0, 8}:
            return "result, payload, anchor and prepared_at come together"
        if (state in PREPARED_STATES) != (self.payload is not None):
            return f"payload and state {state} disagree"
        if state is IntentState.DELIVERED and self.delivered_at is None:
            return "delivered without a time"
        if (state is IntentState.ACKNOWLEDGED) != (self.acknowledged_at is not None):
            return "acknowledged_at"
        if state is IntentState.ACKNOWLEDGED and self.delivered_at is None and not self.discarded:
            return "acknowledged, never delivered and not discarded"
        if (
            self.delivered_at is not None
            and self.acknowledged_at is not None
            and self.delivered_at > self.acknowledged_at
        ):
            return "delivered after it was acknowledged"
        if self.consumed_at is not None and self.delivered_at is None:
            return "consumed, never delivered"
        if given(self.turn_id, self.turn_ordinal, self.batch_id, self.bound_at) not in {0, 4}:
            return "the soft tuple is all or nothing"
        if soft != (self.batch_id is not None):
            return "soft_batch without its tuple"
        if restart != (self.startup_delivery_id is not None):
            return "restart_startup without its startup delivery"
        if (mode is None) != (self.incarnation_id is None):
            return "mode and bound incarnation disagree"
        if state in UNBOUND_STATES and mode is not None:
            return f"{state} carries a proof"
        if state is IntentState.DELIVERED and mode is None:
            return "delivered without a proof"
        if not soft and (self.batch_completed_at is not None or self.payload_offered_at is not None):
            return "batch completion or offer without a soft tuple"
        if restart and state not in PREPARED_STATES:
            return "a restart binds only a prepared payload"
        if self.handshake_at is not None and not restart:
            return "handshake without a restart"
        if self.handshake_at is not None and state is not IntentState.DELIVERED:
            return "an accepted handshake is a delivery"
        if (self.exhausted_at is None) != (self.approval is None):
            return "exhausted without its approval token"
        if self.exhausted_at is not None and not restart:
            return "only a restart can be exhausted"
        if (self.planned_op is None) != (self.starting_op is None):
            return "a plan names both operations"
        return None

    def require_intact(self) -> IntentRecord:
        """This row, if its payload still is what its hash says; asked wherever a row comes from the store.

        Raises `CorruptRecord`: bytes that have changed must never be handed out.
        """
        payload = self.payload
        if payload is not None and hashlib.sha256(payload).hexdigest() != self.payload_sha256:
            raise CorruptRecord(f"{self.TABLE}{self.key!r}", "payload and payload_sha256 disagree")
        return self

    @property
    def resolved(self) -> bool:
        """Whether nothing more will ever happen to this intent (acknowledged or superseded)."""
        return self.state in RESOLVED_STATES


@frozen(kw_only=True)
class TriggerRecord(Record):
    """An operation that triggered an intent; unique in its pane, so a repeated detection is recognised."""

    TABLE: ClassVar[str] = "triggers"
    KEY: ClassVar[tuple[str, ...]] = ("pane_id", "operation_id")

    pane_id: str
    operation_id: str
    intent_id: str
    position: int
    """Its place among the intent's triggers, from 0."""
    at: int


@frozen(kw_only=True, slots=False)
class IncarnationRecord(Versioned):
    """One process of one harness; new for every start, even if the conversation id is reused [S]."""

    TABLE: ClassVar[str] = "incarnations"
    KEY: ClassVar[tuple[str, ...]] = ("incarnation_id",)
    FIXED: ClassVar[tuple[str, ...]] = (
        "pane_id",
        "epoch",
        "harness",
        "launched_at",
        "startup_intent_id",
        "startup_delivery_id",
        "startup_payload_sha256",
        "startup_epoch",
        "startup_attempt",
    )
    SETTLED: ClassVar[tuple[str, ...]] = ("retired_at",)

    incarnation_id: str
    pane_id: str
    revision: int = 1
    epoch: int
    """Counts the launches of the pane, from 1."""
    harness: str
    session_id: str | None = None
    soft_batches: bool = True
    turn_order: bool = True
    launched_at: int
    retired_at: int | None = None
    retire_reason: str | None = None
    relaunch: bool = False
    """Retired by the runtime in order to be replaced: with a Launcher, a reopen goes on with the replacement."""
    delivered_intent_id: str | None = None
    """The marker (protocol-intent.md section 1.1): the delivered intent whose acknowledgement is this process's."""
    startup_intent_id: str | None = None
    startup_delivery_id: str | None = None
    startup_payload_sha256: str | None = None
    startup_epoch: int | None = None
    startup_attempt: int | None = None
    """Which attempt of that intent's epoch this is, from 1 (section 7.5)."""

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        startup = given(
            self.startup_intent_id,
            self.startup_delivery_id,
            self.startup_payload_sha256,
            self.startup_epoch,
            self.startup_attempt,
        )
        if self.revision < 1 or self.epoch < 1:
            return "revision and epoch count from 1"
        if startup not in {0, 5}:
            return "a startup delivery is all or nothing"
        if self.retired_at is not None and self.delivered_intent_id is not None:
            return "a retired incarnation is marked"
        if self.retired_at is None and self.relaunch:
            return "a live incarnation asks to be replaced"
        if (self.retired_at is None) != (self.retire_reason is None):
            return "retired without a reason"
        return None

    @property
    def live(self) -> bool:
        """Whether this incarnation has not been retired."""
        return self.retired_at is None


@frozen(kw_only=True)
class AdmissionRecord(Record):
    """The first decision of one tool batch, fixed for ever [D12]; nothing deletes it, also after its incarnation."""

    TABLE: ClassVar[str] = "admissions"
    KEY: ClassVar[tuple[str, ...]] = ("incarnation_id", "turn_id", "batch_id")

    incarnation_id: str
    turn_id: str
    """The model turn's id, or empty where the adapter named none."""
    batch_id: str
    pane_id: str
    turn_ordinal: int | None
    decision: AdmissionDecision
    intent_id: str | None
    """The intent that blocked the batch; None for a pass."""
    at: int

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        if (self.decision is AdmissionDecision.BLOCK) != (self.intent_id is not None):
            return "block names intent"
        if (self.turn_id == "") != (self.turn_ordinal is None):
            return "a turn is an id and an ordinal"
        return None


@frozen(kw_only=True)
class TranscriptRecord(Record):
    """The built-in transcript projection: one row a dedup key, outside every protocol transaction (I-17)."""

    TABLE: ClassVar[str] = "transcript"
    KEY: ClassVar[tuple[str, ...]] = ("dedup_key",)

    dedup_key: str
    intent_id: str
    payload: bytes = field(repr=lambda value: f"<{len(value)} bytes>")
    at: int


@frozen(kw_only=True)
class ProjectionRecord(Record):
    """A transcript projection that is owed: written with the delivery, deleted once the projection has been made."""

    TABLE: ClassVar[str] = "projections"
    KEY: ClassVar[tuple[str, ...]] = ("intent_id",)

    intent_id: str
    pane_id: str
    at: int


# -- tool batches (tool-durability note); one row a call, so that a batch of n calls costs O(n) bytes ---------------


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


RECORD_TYPES: Final[tuple[type[Record], ...]] = (
    IntentRecord,
    TriggerRecord,
    IncarnationRecord,
    AdmissionRecord,
    ProjectionRecord,
    TranscriptRecord,
    BatchRecord,
    CallRecord,
    ArgumentsRecord,
    MemoRecord,
    CheckpointRecord,
    OutcomeRecord,
    EntryRecord,
    UsageRecord,
    DeliveryRecord,
    FenceRecord,
    TombstoneRecord,
    ConversationRecord,
    AcceptanceRecord,
    RunRecord,
    SettlementRecord,
)
"""Every record class, in an order in which foreign keys point backwards or at nullable columns."""
