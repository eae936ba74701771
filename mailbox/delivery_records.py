"""The durable records of deliveries (protocol-delivery.md sections 3 and 6).

Outbound, one row a delivery is the fence of its recipient and, once resolved, the receipt from which every repetition
is answered.  Inbound, four things are written one after the other: the pane's fence, the tombstone of the id, the
acceptance, and the run that was published for it.

That a text still hashes to its fingerprint is no law of a row here: where it does not, the row can be read and its
evidence counts for nothing (contract DA-1), which is for the protocol to say.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import field, frozen

from fencepost.mailbox.delivery_ids import is_delivery_id, is_digest
from fencepost.mailbox.ladder import Stage, Stop, is_mapped
from fencepost.mailbox.record import Record, Versioned, given

__all__ = [
    "AcceptanceRecord",
    "ConversationRecord",
    "DeliveryRecord",
    "FenceRecord",
    "RunRecord",
    "SettlementRecord",
    "TombstoneRecord",
]

NOTHING_LEFT: frozenset[Stop | None] = frozenset({Stop.UNAVAILABLE, Stop.EXPIRED, Stop.REJECTED})
"""How a delivery can end that was never dispatched."""


@frozen(kw_only=True, slots=False)
class DeliveryRecord(Versioned):
    """A message to a pane: written before it leaves, kept as the receipt of its id.

    While `resolved_at` is None it fences its pane: nothing else is sent there by any mechanism.  `outcome` is None
    while it is in flight; an activation that finds it so does not know how far it got, and says so.
    """

    TABLE: ClassVar[str] = "deliveries"
    KEY: ClassVar[tuple[str, ...]] = ("delivery_id",)
    FIXED: ClassVar[tuple[str, ...]] = (
        "pane_id",
        "mechanism",
        "text",
        "fingerprint",
        "created_at",
        "dispatched_at",
        "session_id",
        "agent",
        "entries_before",
    )
    SETTLED: ClassVar[tuple[str, ...]] = ("resolved_at", "abandoned_at", "reply")

    delivery_id: str
    pane_id: str
    revision: int = 1
    mechanism: str
    text: str = field(repr=False)
    fingerprint: str
    created_at: int
    dispatched_at: int | None
    """When it was about to leave; None for one that never did."""
    session_id: str | None = None
    """The native session it was sent to, where the mechanism has one."""
    agent: str | None = None
    entries_before: str | None = field(default=None, repr=False)
    """The ids of the operator's transcript entries seen before the dispatch, a JSON list; None: unreadable then."""
    outcome: str | None = None
    """The mechanism's own word."""
    native: str | None = None
    delay: str | None = None
    detail: str | None = None
    stage: Stage | None = None
    stop: Stop | None = None
    reply: str | None = field(default=None, repr=False)
    resolved_at: int | None = None
    abandoned_at: int | None = None
    """When somebody took it upon himself not to wait for certainty; the outcome stays unknown."""

    @property
    def uncertain(self) -> bool:
        """Whether nobody knows how far it got."""
        return self.stop is Stop.UNCERTAIN

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        if not is_mapped(self.mechanism):
            return "a mechanism has its place on the ladder"
        if not is_digest(self.fingerprint):
            return "a fingerprint has 64 hex digits"
        if self.outcome is None:
            if given(self.native, self.delay, self.detail, self.stage, self.stop):
                return "what is in flight reports nothing"
        elif given(self.stage, self.stop) != 1:
            return "a report is one stage or one stop"
        unresolved = (self.outcome is None or self.uncertain) and self.abandoned_at is None
        if unresolved != (self.resolved_at is None):
            return "uncertain, and nothing else, is unresolved"
        if self.abandoned_at is not None and not self.uncertain:
            return "what is abandoned stays uncertain"
        if self.dispatched_at is None and self.stop not in NOTHING_LEFT:
            return "what never left reached nobody"
        if self.reply is not None and self.stage is not Stage.RESPONDED:
            return "a reply is a response"
        if (self.session_id is None) != (self.agent is None):
            return "a native session has its agent"
        if self.entries_before is not None and self.session_id is None:
            return "transcript entries are of a session"
        return None


class _Evidence(Record):
    """Base of what is written of an inbound original: whatever it is, it names exactly one."""

    __slots__ = ()

    delivery_id: str
    binding: str
    fingerprint: str

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        if not is_delivery_id(self.delivery_id):
            return "a delivery id is a canonical lower-case UUID"
        return None if is_digest(self.binding) and is_digest(self.fingerprint) else "evidence has 64 hex digits"


@frozen(kw_only=True)
class FenceRecord(_Evidence):
    """The one pending original of a pane: until it is accepted or settled, no other is (section 6.3)."""

    TABLE: ClassVar[str] = "inbound_fences"
    KEY: ClassVar[tuple[str, ...]] = ("pane_id",)

    pane_id: str
    delivery_id: str
    binding: str
    fingerprint: str
    at: int


@frozen(kw_only=True)
class TombstoneRecord(_Evidence):
    """This id was attempted.  Never removed: whatever else is forgotten, it is not dispatched again."""

    TABLE: ClassVar[str] = "tombstones"
    KEY: ClassVar[tuple[str, ...]] = ("delivery_id",)

    delivery_id: str
    pane_id: str
    binding: str
    fingerprint: str
    at: int


@frozen(kw_only=True, slots=False)
class ConversationRecord(Versioned):
    """The conversation a pane's accepted messages belong to now; a reset begins another one."""

    TABLE: ClassVar[str] = "conversations"
    KEY: ClassVar[tuple[str, ...]] = ("pane_id",)

    pane_id: str
    revision: int = 1
    conversation_id: str
    at: int


@frozen(kw_only=True)
class AcceptanceRecord(_Evidence):
    """A message was accepted: the one fact that *stored* means.  Never changed; removed only by an explicit reset."""

    TABLE: ClassVar[str] = "acceptances"
    KEY: ClassVar[tuple[str, ...]] = ("delivery_id",)

    delivery_id: str
    pane_id: str
    conversation_id: str
    binding: str
    fingerprint: str
    text: str = field(repr=False)
    wrapped_text: str = field(repr=False)
    """The text as the model is shown it: marked as what an agent said, which nobody vouches for."""
    run_id: str
    at: int


@frozen(kw_only=True, slots=False)
class RunRecord(Versioned):
    """The turn an acceptance led to: written with the publication of its event, at most one an id."""

    TABLE: ClassVar[str] = "runs"
    KEY: ClassVar[tuple[str, ...]] = ("run_id",)
    FIXED: ClassVar[tuple[str, ...]] = ("delivery_id", "pane_id", "published_at")
    SEAL: ClassVar[str | None] = "ended_at"

    run_id: str
    revision: int = 1
    delivery_id: str
    pane_id: str
    published_at: int
    outcome: str | None = None
    """How the turn ended, in the words of a channel turn."""
    native: str | None = None
    ended_at: int | None = None

    def broken_law(self) -> str | None:
        """See `Record.broken_law`."""
        if (self.outcome is None) != (self.ended_at is None):
            return "an ended turn has its outcome"
        return "a turn under way has no native word" if self.outcome is None and self.native is not None else None


@frozen(kw_only=True)
class SettlementRecord(Record):
    """Somebody declared a delivery abandoned, outcome unknown, and freed what it fenced (section 12, D4)."""

    TABLE: ClassVar[str] = "settlements"
    KEY: ClassVar[tuple[str, ...]] = ("delivery_id",)

    delivery_id: str
    pane_id: str
    approval: str
    at: int
