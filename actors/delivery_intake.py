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
    Heard,
    Message,
    blocked_report,
    pending_report,
    report_of,
    unreadable_report,
    words,
)
from fencepost.actors.delivery_waiting import Pending
from fencepost.mailbox.delivery_records import DeliveryRecord
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import CorruptRecord, InvalidTransition, UnmappedMechanism
from fencepost.mailbox.ladder import Stop
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
        try:
            report = await self._report_instead(outbound)
        except CorruptRecord as damage:
            detail = f"nothing was sent, because a record of this mechanism or pane cannot be read: {damage}"
            report = unreadable_report(outbound.delivery_id, outbound.via, detail)
        row = desk.row
        if report is not None:
            desk.actor.answer(envelope, report)
        elif row is None:
            await self._begin(envelope, self._message_of(outbound), mechanism)
        elif desk.native.can_inspect(row):
            desk.native.look_again(row, envelope)
        else:
            desk.actor.answer(envelope, blocked_report(row, asked_id=outbound.delivery_id))

    async def _report_instead(self, outbound: Outbound) -> DeliveryReport | None:
        """The report of a call that begins nothing, or None; a fence that might still be lifted is none yet."""
        known = await self._known(outbound)
        row, pending = self._desk.row, self._desk.pending
        if known is not None and known.delivery_id != (row and row.delivery_id):
            return report_of(known, asked=outbound.text)
        if pending is not None:
            return blocked_report(pending.message, asked_id=outbound.delivery_id)
        if row is not None and row.outcome is None:
            # A chat turn that goes on, and was said to be pending, is so once more.
            goes_on = known is not None and row.delivery_id in self._desk.waiting.lapsed
            return pending_report(row) if goes_on else blocked_report(row, asked_id=outbound.delivery_id)
        if not outbound.text.strip():
            return _rejected(outbound, "the text is blank")
        return None

    async def _known(self, outbound: Outbound) -> DeliveryRecord | None:
        """The row of the id that is asked for; on the way, look whether all that fences can be read."""
        unresolved = Query(DeliveryRecord, {"mechanism": outbound.via, "resolved_at": None})
        mine = Query(DeliveryRecord, {"pane_id": self._desk.pane_id, "resolved_at": None})
        same = Query(DeliveryRecord, {"delivery_id": outbound.delivery_id})
        _, fencing, rows = await self._desk.system.line.load(unresolved, mine, same)
        self._desk.row = next(iter(fencing), None)
        if rows and rows[0].pane_id != self._desk.pane_id:
            raise another_panes(rows[0].delivery_id)
        return rows[0] if rows else None

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


def _rejected(outbound: Outbound, detail: str) -> DeliveryReport:
    """The report of a message that is turned down before anything is written (DA-15)."""
    return DeliveryReport(
        delivery_id=outbound.delivery_id,
        stage=None,
        stop=Stop.REJECTED,
        mechanism=outbound.via,
        outcome="rejected",
        detail=detail,
    )
