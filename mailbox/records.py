"""The durable records, all of them: one list, and one place to import any of them from.

`record` says what a record is.  The classes stand with their subject: `intent_records`, `incarnation_records`,
`tool_records`, `delivery_records`.
"""

from __future__ import annotations

from typing import Final

from fencepost.mailbox.delivery_records import (
    AcceptanceRecord,
    ConversationRecord,
    DeliveryRecord,
    FenceRecord,
    RunRecord,
    SettlementRecord,
    TombstoneRecord,
)
from fencepost.mailbox.incarnation_records import AdmissionDecision, AdmissionRecord, IncarnationRecord
from fencepost.mailbox.intent_records import (
    ACTIVE_STATES,
    RESOLVED_STATES,
    UNRESOLVED_STATES,
    DeliveryMode,
    IntentRecord,
    IntentState,
    ProjectionRecord,
    TranscriptRecord,
    TransitionKind,
    TriggerRecord,
)
from fencepost.mailbox.record import Record, Versioned
from fencepost.mailbox.tool_records import (
    ArgumentsRecord,
    BatchMode,
    BatchRecord,
    CallRecord,
    CallStatus,
    Checkpoint,
    CheckpointRecord,
    EntryRecord,
    MemoRecord,
    OutcomeRecord,
    Replay,
    UsageRecord,
)

__all__ = [
    "ACTIVE_STATES",
    "RECORD_TYPES",
    "RESOLVED_STATES",
    "UNRESOLVED_STATES",
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
