"""The durable records of intents: the intents themselves, what triggered them, and their projections to a transcript.

The laws of an intent's row are those of protocol-intent.md section 10.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import ClassVar, Final

from attrs import field, frozen

from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.record import Record, Versioned, given

__all__ = [
    "ACTIVE_STATES",
    "PREPARED_STATES",
    "RESOLVED_STATES",
    "UNBOUND_STATES",
    "UNRESOLVED_STATES",
    "DeliveryMode",
    "IntentRecord",
    "IntentState",
    "ProjectionRecord",
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
"""At most one intent of a pane is in one of these (protocol-intent.md section 10, invariant 4)."""


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
        if self.revision < 1 or self.seq < 1:
            return "revision and seq count from 1"
        return (
            self._broken_law_of_payload()
            or self._broken_law_of_times()
            or self._broken_law_of_proof()
            or self._broken_law_of_restart()
            or self._broken_law_of_plan()
        )

    def _broken_law_of_payload(self) -> str | None:
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
        if (self.state in PREPARED_STATES) != (self.payload is not None):
            return f"payload and state {self.state} disagree"
        return None

    def _broken_law_of_times(self) -> str | None:
        state, delivered_at, acknowledged_at = self.state, self.delivered_at, self.acknowledged_at
        if state is IntentState.DELIVERED and delivered_at is None:
            return "delivered without a time"
        if (state is IntentState.ACKNOWLEDGED) != (acknowledged_at is not None):
            return "acknowledged_at"
        if state is IntentState.ACKNOWLEDGED and delivered_at is None and not self.discarded:
            return "acknowledged, never delivered and not discarded"
        if delivered_at is not None and acknowledged_at is not None and delivered_at > acknowledged_at:
            return "delivered after it was acknowledged"
        if self.consumed_at is not None and delivered_at is None:
            return "consumed, never delivered"
        return None

    def _broken_law_of_proof(self) -> str | None:
        state, mode = self.state, self.mode
        soft = mode is DeliveryMode.SOFT_BATCH
        if given(self.turn_id, self.turn_ordinal, self.batch_id, self.bound_at) not in {0, 4}:
            return "the soft tuple is all or nothing"
        if soft != (self.batch_id is not None):
            return "soft_batch without its tuple"
        if (mode is DeliveryMode.RESTART_STARTUP) != (self.startup_delivery_id is not None):
            return "restart_startup without its startup delivery"
        if (mode is None) != (self.incarnation_id is None):
            return "mode and bound incarnation disagree"
        if state in UNBOUND_STATES and mode is not None:
            return f"{state} carries a proof"
        if state is IntentState.DELIVERED and mode is None:
            return "delivered without a proof"
        if not soft and (self.batch_completed_at is not None or self.payload_offered_at is not None):
            return "batch completion or offer without a soft tuple"
        return None

    def _broken_law_of_restart(self) -> str | None:
        restart = self.mode is DeliveryMode.RESTART_STARTUP
        if restart and self.state not in PREPARED_STATES:
            return "a restart binds only a prepared payload"
        if self.handshake_at is not None and not restart:
            return "handshake without a restart"
        if self.handshake_at is not None and self.state is not IntentState.DELIVERED:
            return "an accepted handshake is a delivery"
        if (self.exhausted_at is None) != (self.approval is None):
            return "exhausted without its approval token"
        if self.exhausted_at is not None and not restart:
            return "only a restart can be exhausted"
        return None

    def _broken_law_of_plan(self) -> str | None:
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
