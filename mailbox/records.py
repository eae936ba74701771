"""The durable records, one frozen class a table; an object that exists is valid.

Field names are column names and field types are column types: `str` TEXT, `int` INTEGER, `bool` INTEGER 0 or 1,
`bytes` BLOB, an enum its TEXT value.  Timestamps are int nanoseconds UTC.

Two kinds of record:

* *versioned* ones (`VERSIONED`) are updated in place and carry `revision`, 1 when inserted and one more with every
  write.  Writing revision N+1 is itself the guard that the stored row still has revision N.
* the others are inserted once and never updated; inserting a key that exists is refused.

What must never be stored (protocol-intent.md section 10) is refused here on construction and again by the store's
own CHECKs, unique indexes and foreign keys.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

from attrs import evolve, field, frozen

from fencepost.mailbox.errors import CorruptRecord

__all__ = [
    "RECORD_TYPES",
    "AdmissionDecision",
    "AdmissionRecord",
    "DeliveryMode",
    "IncarnationRecord",
    "IntentRecord",
    "IntentState",
    "ProjectionRecord",
    "Record",
    "TranscriptRecord",
    "TransitionKind",
    "TriggerRecord",
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


class Record:
    """Base of every durable record.

    `TABLE` is its table and `KEY` the names of its key's fields.  Of the other fields no update may change those in
    `FIXED`, nor those in `SETTLED` once they are set; and once the `SEAL` is set, no update is allowed at all.
    """

    __slots__ = ()

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    FIXED: ClassVar[tuple[str, ...]] = ()
    SETTLED: ClassVar[tuple[str, ...]] = ()
    SEAL: ClassVar[str | None] = None
    VERSIONED: ClassVar[bool] = False

    @property
    def key(self) -> tuple[object, ...]:
        """The values of the key's fields, in order."""
        return tuple(getattr(self, name) for name in self.KEY)


def _require(record: Record, condition: bool, law: str) -> None:
    if not condition:
        raise CorruptRecord(f"{record.TABLE}{record.key!r}", law)


def _all_or_none(*values: object) -> bool:
    given = [value is not None for value in values]
    return all(given) or not any(given)


@frozen(kw_only=True)
class IntentRecord(Record):
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
    VERSIONED: ClassVar[bool] = True

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

    def __attrs_post_init__(self) -> None:
        """Refuse what protocol-intent.md section 10 says must never be stored, as far as one row can tell."""
        state, mode = self.state, self.mode
        soft = (self.turn_id, self.turn_ordinal, self.batch_id, self.bound_at)
        prepared = (
            self.result_op,
            self.workspace_commit,
            self.payload,
            self.payload_sha256,
            self.anchor_change_id,
            self.anchor_commit_id,
            self.anchor_op_id,
            self.prepared_at,
        )
        _require(self, self.revision >= 1 and self.seq >= 1, "revision and seq count from 1")
        _require(self, _all_or_none(*prepared), "result, payload, anchor and prepared_at come together")
        _require(self, (state in PREPARED_STATES) == (self.payload is not None), f"payload and state {state} disagree")
        _require(self, state is not IntentState.DELIVERED or self.delivered_at is not None, "delivered without a time")
        _require(self, (state is IntentState.ACKNOWLEDGED) == (self.acknowledged_at is not None), "acknowledged_at")
        _require(
            self,
            state is not IntentState.ACKNOWLEDGED or self.delivered_at is not None or self.discarded,
            "acknowledged, never delivered and not discarded",
        )
        _require(
            self,
            self.delivered_at is None or self.acknowledged_at is None or self.delivered_at <= self.acknowledged_at,
            "delivered after it was acknowledged",
        )
        _require(self, self.consumed_at is None or self.delivered_at is not None, "consumed, never delivered")
        _require(self, _all_or_none(*soft), "the soft tuple is all or nothing")
        _require(self, (mode is DeliveryMode.SOFT_BATCH) == (self.batch_id is not None), "soft_batch without its tuple")
        _require(
            self,
            (mode is DeliveryMode.RESTART_STARTUP) == (self.startup_delivery_id is not None),
            "restart_startup without its startup delivery",
        )
        _require(self, (mode is None) == (self.incarnation_id is None), "mode and bound incarnation disagree")
        _require(self, state not in UNBOUND_STATES or mode is None, f"{state} carries a proof")
        _require(self, state is not IntentState.DELIVERED or mode is not None, "delivered without a proof")
        _require(
            self,
            mode is DeliveryMode.SOFT_BATCH or (self.batch_completed_at is None and self.payload_offered_at is None),
            "batch completion or offer without a soft tuple",
        )
        _require(
            self,
            mode is not DeliveryMode.RESTART_STARTUP or state in PREPARED_STATES,
            "a restart binds only a prepared payload",
        )
        _require(self, self.handshake_at is None or mode is DeliveryMode.RESTART_STARTUP, "handshake without a restart")
        _require(
            self, self.handshake_at is None or state is IntentState.DELIVERED, "an accepted handshake is a delivery"
        )
        _require(self, (self.exhausted_at is None) == (self.approval is None), "exhausted without its approval token")
        _require(
            self,
            self.exhausted_at is None or mode is DeliveryMode.RESTART_STARTUP,
            "only a restart can be exhausted",
        )
        _require(self, (self.planned_op is None) == (self.starting_op is None), "a plan names both operations")

    @property
    def resolved(self) -> bool:
        """Whether nothing more will ever happen to this intent (acknowledged or superseded)."""
        return self.state in RESOLVED_STATES

    def next(self, **changes: object) -> IntentRecord:
        """The row after one more write: `changes` applied, revision one higher, laws checked."""
        return evolve(self, revision=self.revision + 1, **changes)  # type: ignore[arg-type]


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


@frozen(kw_only=True)
class IncarnationRecord(Record):
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
    VERSIONED: ClassVar[bool] = True

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

    def __attrs_post_init__(self) -> None:
        """Refuse what section 10 says must never be stored, as far as one row can tell."""
        startup = (
            self.startup_intent_id,
            self.startup_delivery_id,
            self.startup_payload_sha256,
            self.startup_epoch,
            self.startup_attempt,
        )
        _require(self, self.revision >= 1 and self.epoch >= 1, "revision and epoch count from 1")
        _require(self, _all_or_none(*startup), "a startup delivery is all or nothing")
        _require(self, self.retired_at is None or self.delivered_intent_id is None, "a retired incarnation is marked")
        _require(self, self.retired_at is not None or not self.relaunch, "a live incarnation asks to be replaced")
        _require(self, (self.retired_at is None) == (self.retire_reason is None), "retired without a reason")

    @property
    def live(self) -> bool:
        """Whether this incarnation has not been retired."""
        return self.retired_at is None

    def next(self, **changes: object) -> IncarnationRecord:
        """The row after one more write: `changes` applied, revision one higher, laws checked."""
        return evolve(self, revision=self.revision + 1, **changes)  # type: ignore[arg-type]


@frozen(kw_only=True)
class AdmissionRecord(Record):
    """The first decision of one tool batch, fixed for ever [D12]; kept for as long as its incarnation may speak."""

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

    def __attrs_post_init__(self) -> None:
        """A block names its intent, a pass names none."""
        _require(self, (self.decision is AdmissionDecision.BLOCK) == (self.intent_id is not None), "block names intent")
        _require(self, (self.turn_id == "") == (self.turn_ordinal is None), "a turn is an id and an ordinal")


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


RECORD_TYPES: Final[tuple[type[Record], ...]] = (
    IntentRecord,
    TriggerRecord,
    IncarnationRecord,
    AdmissionRecord,
    ProjectionRecord,
    TranscriptRecord,
)
"""Every record class, in an order in which foreign keys point backwards or at nullable columns."""
