"""The durable records of incarnations: the processes a pane had, and which of their tool batches were let pass."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from attrs import frozen

from fencepost.mailbox.record import Record, Versioned, given

__all__ = ["AdmissionDecision", "AdmissionRecord", "IncarnationRecord"]


class AdmissionDecision(StrEnum):
    """The first, and only, decision of a tool batch [D12]."""

    PASS = "pass"
    BLOCK = "block"


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

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        if (self.decision is AdmissionDecision.BLOCK) != (self.intent_id is not None):
            return "block names intent"
        if (self.turn_id == "") != (self.turn_ordinal is None):
            return "a turn is an id and an ordinal"
        return None
