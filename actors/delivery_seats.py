"""Deliveries to a seat that polls: an event is queued, taken once, acknowledged by its exact id, perhaps replied to.

Protocol-delivery.md section 4.  Being handed out is crossing the boundary: the row is committed before a poll is
answered with the event, and an event whose answer was lost on the way is uncertain, never handed out again.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from fencepost.actors.delivery_calls import AcknowledgeEvent, Deadline, PollEvents, ReplyEvent
from fencepost.actors.delivery_messages import FleetSeatMailbox, HeadSeatOutbox, MailboxEvent, MechanismOutcome
from fencepost.actors.delivery_state import Heard, words
from fencepost.actors.messages import Answer, Applied, Reason, Unchanged
from fencepost.mailbox.delivery_records import DeliveryRecord
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import UnmappedMechanism
from fencepost.mailbox.ladder import report
from fencepost.mailbox.text import storable_text

if TYPE_CHECKING:
    from fencepost.actors.delivery_desk import DeliveryDesk

__all__ = ["Seats"]


class Seats:
    """The mailbox events of one desk."""

    def __init__(self, desk: DeliveryDesk) -> None:
        self._desk = desk
        self._polls = itertools.count(1)
        self._reply_open: set[str] = set()
        """Acknowledged events of a head seat whose reply window is open."""

    async def poll(self, envelope: Envelope, message: PollEvents) -> None:
        """Answer a poll with the queued event, or park it."""
        wait_seconds = message.wait_seconds
        number = str(next(self._polls))
        self._desk.waiting.pollers[number] = envelope
        self._forget_gone_pollers()
        await self.hand_out()
        if number in self._desk.waiting.pollers:
            if wait_seconds <= 0:
                del self._desk.waiting.pollers[number]
                self._desk.actor.answer(envelope, [])
            else:
                self._desk.arm(Deadline.POLL, number, wait_seconds)

    async def hand_out(self) -> None:
        """Give the queued event to the poll that has waited longest and is still there."""
        pending = self._desk.pending
        if pending is None or not isinstance(pending.mechanism, HeadSeatOutbox | FleetSeatMailbox):
            return
        self._forget_gone_pollers()
        number = next(iter(self._desk.waiting.pollers), None)
        if number is None:
            return
        envelope = self._desk.waiting.pollers[number]  # parked until it is answered: a death on the way is told to it
        row = await self._desk.dispatch()
        if row is None:
            return  # whoever polls goes on waiting
        self._desk.arm(Deadline.ACKNOWLEDGEMENT, row.delivery_id, pending.mechanism.acknowledge_seconds)
        del self._desk.waiting.pollers[number]
        self._desk.disarm(Deadline.POLL, number)
        event = MailboxEvent(row.delivery_id, row.delivery_id, row.pane_id, row.mechanism, row.text)
        self._desk.actor.answer(envelope, [event])

    def _forget_gone_pollers(self) -> None:
        for number, envelope in list(self._desk.waiting.pollers.items()):
            if envelope.reply.abandoned:
                del self._desk.waiting.pollers[number]
                self._desk.disarm(Deadline.POLL, number)

    async def acknowledge(self, envelope: Envelope, message: AcknowledgeEvent) -> None:
        """The exact id, at whatever time: it was delivered, or consumed where the seat says how."""
        row = await self._event(message.event_id)
        if row is None:
            await self._refuse_unknown(envelope, message.event_id)
            return
        outcome = _acknowledged(row.mechanism, message.native, message.delay)
        self._desk.disarm(Deadline.ACKNOWLEDGEMENT, row.delivery_id)
        window = self._reply_seconds(row)
        applied = await self._desk.hear("acknowledge", row, outcome, answer=window <= 0)
        if applied and window > 0:
            self._reply_open.add(row.delivery_id)
            self._desk.arm(Deadline.REPLY, row.delivery_id, window)
        self._answer_event(envelope, applied=applied)

    async def reply(self, envelope: Envelope, message: ReplyEvent) -> None:
        """A reply proves that the seat had the event; a head seat's is waited for only within its window."""
        row = await self._event(message.event_id)
        if row is None:
            await self._refuse_unknown(envelope, message.event_id)
            return
        acknowledged = row.resolved_at is not None and row.reply is None
        if acknowledged and row.mechanism == "head_seat" and row.delivery_id not in self._reply_open:
            await self._desk.refuse(envelope, Reason.REPLY_TOO_LATE, "the window for a reply is over")
            return
        self._desk.disarm(Deadline.ACKNOWLEDGEMENT, row.delivery_id)
        self._desk.disarm(Deadline.REPLY, row.delivery_id)
        self._reply_open.discard(row.delivery_id)
        said = words(row.mechanism, Heard.REPLIED)
        applied = await self._desk.hear("reply", row, said, reply=storable_text(message.text))
        self._answer_event(envelope, applied=applied)

    def _reply_seconds(self, row: DeliveryRecord) -> float:
        """How long a reply to this event is still taken, and waited for by its callers, once it is acknowledged."""
        mechanism = self._desk.mechanisms.get(row.mechanism)
        return mechanism.reply_seconds if isinstance(mechanism, HeadSeatOutbox) else 0

    async def _event(self, event_id: str) -> DeliveryRecord | None:
        """The row of an event that was handed out to a poll of this pane."""
        row = await self._desk.find(event_id)
        polled = row is not None and row.dispatched_at is not None and row.mechanism in {"head_seat", "fleet_seat"}
        return row if polled else None

    async def _refuse_unknown(self, envelope: Envelope, event_id: str) -> None:
        await self._desk.refuse(envelope, Reason.UNKNOWN_DELIVERY, f"no event {event_id} was handed out here")

    def _answer_event(self, envelope: Envelope, *, applied: bool) -> None:
        answer: Answer = Applied() if applied else Unchanged()
        self._desk.actor.answer(envelope, answer)

    async def nobody_polled(self, event_id: str) -> None:
        """The grace is over and the event was never taken: nothing left, and only now may the seat's fallback run."""
        if self._desk.pending is None or self._desk.pending.message.delivery_id != event_id:
            return
        mechanism = self._desk.pending.mechanism
        if isinstance(mechanism, HeadSeatOutbox) and mechanism.fallback is not None:
            await self._desk.send(mechanism.fallback, math.inf, "channel_turn")
            return
        said = words(self._desk.pending.message.mechanism, Heard.NOBODY, "nobody polled for it")
        await self._desk.end_unsent("unbound", said)

    async def close_window(self, event_id: str) -> None:
        """No reply came in time: the event stays delivered, and its callers are told so."""
        self._reply_open.discard(event_id)
        await self._desk.answer_callers(event_id)


def _acknowledged(mechanism: str, native: str | None, delay: str | None) -> MechanismOutcome:
    """What an acknowledgement of the exact id says: delivered, whatever else the seat calls it."""
    outcome = words(mechanism, Heard.ACKNOWLEDGED).outcome
    if native == words(mechanism, Heard.REPLIED).native:
        native = None  # a reply is what `reply_event` brings, with its text
    try:
        report(mechanism, outcome, native)
    except UnmappedMechanism:
        return MechanismOutcome(outcome, None, delay, f"the seat said {native!r}")
    return MechanismOutcome(outcome, native, delay)
