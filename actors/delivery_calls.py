"""The messages around deliveries; see `calls`.  Pure."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from attrs import field, frozen

from fencepost.actors.calls import Call
from fencepost.actors.delivery_messages import InboundPost, MechanismOutcome, NativeSession, Outbound, TurnEnd

__all__ = [
    "AcceptPost",
    "AcknowledgeEvent",
    "BindingQuery",
    "CancelDelivery",
    "Deadline",
    "Deliver",
    "DeliveryCall",
    "Inspected",
    "PollEvents",
    "ReceiptQuery",
    "ReconcileDelivery",
    "ReplyEvent",
    "ResetConversation",
    "RunEnded",
    "SendEnded",
    "SettleDelivery",
    "TimeIsUp",
]


class DeliveryCall(Call):
    """Base of every message in here; all of them are for a pane."""

    __slots__ = ()


# -- from a bridge to a pane: outbound -----------------------------------------------------------------------------


@frozen
class Deliver(DeliveryCall):
    """Send a message; the caller waits until it is known how far it got, or that nobody knows."""

    CALL: ClassVar[str] = "deliver"
    outbound: Outbound


@frozen
class ReconcileDelivery(DeliveryCall):
    """Somebody saw a native transcript, which may prove a delivery."""

    CALL: ClassVar[str] = "reconcile"
    delivery_id: str
    evidence: NativeSession


@frozen
class PollEvents(DeliveryCall):
    """A seat asks for its next event and waits at most so long for one."""

    CALL: ClassVar[str] = "poll_events"
    wait_seconds: float


@frozen
class AcknowledgeEvent(DeliveryCall):
    """A seat has written exactly this event through."""

    CALL: ClassVar[str] = "acknowledge_event"
    event_id: str
    native: str | None
    delay: str | None


@frozen
class ReplyEvent(DeliveryCall):
    """A seat answers an event."""

    CALL: ClassVar[str] = "reply_event"
    event_id: str
    text: str = field(repr=False)


@frozen
class CancelDelivery(DeliveryCall):
    """An operator takes a message back, or stops waiting for it."""

    CALL: ClassVar[str] = "cancel_delivery"
    delivery_id: str


@frozen
class SettleDelivery(DeliveryCall):
    """An operator declares a delivery abandoned, outbound or inbound."""

    CALL: ClassVar[str] = "settle"
    delivery_id: str
    approval: str


# -- from a bridge to a pane: inbound ------------------------------------------------------------------------------


@frozen
class BindingQuery(DeliveryCall):
    """Which session speaks for the pane now."""

    CALL: ClassVar[str] = "binding"


@frozen
class AcceptPost(DeliveryCall):
    """A message comes in."""

    CALL: ClassVar[str] = "accept"
    post: InboundPost


@frozen
class ReceiptQuery(DeliveryCall):
    """A sender asks whether exactly this was accepted."""

    CALL: ClassVar[str] = "receipt"
    delivery_id: str
    binding: str
    fingerprint: str


@frozen
class ResetConversation(DeliveryCall):
    """Begin a new conversation; the acceptances of the old one are forgotten, its tombstones are not."""

    CALL: ClassVar[str] = "reset_conversation"


# -- from a pane's own tasks to the pane ---------------------------------------------------------------------------


class Deadline(Enum):
    """What was waited for."""

    GRACE = "somebody to poll"
    ACKNOWLEDGEMENT = "its acknowledgement"
    ANSWER = "an answer"
    REPLY = "a reply"
    POLL = "an event"
    INSPECTION = "a look at the harness"


@frozen
class TimeIsUp(DeliveryCall):
    """A deadline passed.  `subject` is a delivery id, or the number of a poll."""

    CALL: ClassVar[str] = "time_is_up"
    activation: int
    deadline: Deadline
    subject: str


@frozen
class Inspected(DeliveryCall):
    """The harness was looked at; where `session` is None, `fault` says why."""

    CALL: ClassVar[str] = "inspected"
    activation: int
    delivery_id: str
    session: NativeSession | None
    fault: str


@frozen
class SendEnded(DeliveryCall):
    """A dispatch came back."""

    CALL: ClassVar[str] = "send_ended"
    activation: int
    delivery_id: str
    outcome: MechanismOutcome


@frozen
class RunEnded(DeliveryCall):
    """The turn of an accepted message came to its end."""

    CALL: ClassVar[str] = "run_ended"
    activation: int
    run_id: str
    end: TurnEnd
