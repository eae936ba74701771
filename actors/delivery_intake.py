"""Taking a `deliver` call: it is answered from what is known, or begins a delivery of its own.

* One original at a time: while the desk has an unresolved row, or a delivery that has not left yet, a further call
  sends nothing and is told what is in its way.
* A record that cannot be read blocks its whole mechanism: it might be about any pane (contract DA-1).  So every
  delivery first reads all unresolved rows of its mechanism.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from fencepost.actors.delivery_calls import Deadline, Deliver
from fencepost.actors.delivery_messages import (
    ChannelTurn,
    DeliveryReport,
    FleetSeatMailbox,
    HarnessSeatControl,
    HeadSeatOutbox,
    Mechanism,
    Outbound,
    SendingMechanism,
    can_carry,
)
from fencepost.actors.delivery_state import (
    Begin,
    Fenced,
    Heard,
    Journal,
    Message,
    judge_call,
    words,
)
from fencepost.actors.delivery_waiting import Pending
from fencepost.mailbox.delivery_records import DeliveryRecord
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import CorruptRecord, InvalidTransition, UnmappedMechanism
from fencepost.mailbox.query import Query
from fencepost.mailbox.text import storable_text

if TYPE_CHECKING:
    from fencepost.actors.delivery_desk import DeliveryDesk

__all__ = ["Intake", "another_panes"]


class Intake:
    """The calls of `deliver` of one pane, for one activation of its actor."""

    def __init__(self, desk: DeliveryDesk) -> None:
        self._desk = desk

    async def deliver(self, envelope: Envelope, message: Deliver) -> None:
        """Send a message, or say why nothing is sent; the caller is answered once it is known how far it got."""
        outbound, desk = message.outbound, self._desk
        mechanism = desk.mechanisms.get(outbound.via)
        if mechanism is None:
            raise UnmappedMechanism.not_given(outbound.via)
        journal = await self._look(outbound)
        row, pending = desk.row, None if desk.pending is None else desk.pending.message
        # Whether the unresolved delivery is a chat turn that goes on, and was said to be pending.
        goes_on = row is not None and row.delivery_id in desk.waiting.lapsed
        match judge_call(outbound, journal, pending, goes_on=goes_on):
            case Begin():
                await self._begin(envelope, self._message_of(outbound), mechanism)
            case Fenced(original) if desk.native.can_inspect(original):
                desk.native.look_again(original, envelope)
            case Fenced(report=report) | (DeliveryReport() as report):
                desk.actor.answer(envelope, report)

    async def _look(self, outbound: Outbound) -> Journal | CorruptRecord:
        """The row of the id that is asked for and the one that fences, or what keeps them from being read."""
        desk = self._desk
        unresolved = Query(DeliveryRecord, {"mechanism": outbound.via, "resolved_at": None})
        mine = Query(DeliveryRecord, {"pane_id": desk.pane_id, "resolved_at": None})
        same = Query(DeliveryRecord, {"delivery_id": outbound.delivery_id})
        try:
            _, fencing, rows = await desk.system.line.load(unresolved, mine, same)
        except CorruptRecord as damage:
            return damage
        desk.row = next(iter(fencing), None)
        if rows and rows[0].pane_id != desk.pane_id:
            raise another_panes(rows[0].delivery_id)
        return Journal(known=next(iter(rows), None), fencing=desk.row)

    def _message_of(self, outbound: Outbound) -> Message:
        desk = self._desk
        delivery_id = outbound.delivery_id or desk.system.ids.new_id("delivery")
        text = storable_text(outbound.text)
        return Message(delivery_id=delivery_id, pane_id=desk.pane_id, mechanism=outbound.via, text=text)

    async def _begin(self, envelope: Envelope, message: Message, mechanism: Mechanism) -> None:
        desk = self._desk
        # Looked up first: a mechanism without a word for this must leave nothing behind.
        unable = None if can_carry(mechanism) else words(message.mechanism, Heard.NOBODY, "nothing there can send it")
        desk.wait_for(message.delivery_id, envelope)
        desk.pending = Pending(message, mechanism)
        match mechanism:
            case _ if unable is not None:
                await desk.end_unsent("unbound", unable)
            case HeadSeatOutbox() | FleetSeatMailbox():
                desk.arm(Deadline.GRACE, message.delivery_id, mechanism.grace_seconds)
                await desk.seats.hand_out()
            case HarnessSeatControl():
                desk.native.inspect(message.delivery_id, mechanism)
            case ChannelTurn():
                await desk.send(mechanism.runner, mechanism.wait_seconds)
            case _:
                await desk.send(cast("SendingMechanism", mechanism).send, math.inf)


def another_panes(delivery_id: str) -> InvalidTransition:
    """What a call gets whose id another pane has used."""
    return InvalidTransition(f"{delivery_id} is the id of a delivery to another pane")
