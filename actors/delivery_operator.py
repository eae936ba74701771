"""What an operator says of an outbound delivery: a transcript shows it, it is taken back, or it is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.actors.delivery_calls import CancelDelivery, ReconcileDelivery
from fencepost.actors.delivery_state import Heard, abandon, proves, report_of, unreadable_report, words
from fencepost.actors.messages import Answer, Applied, Reason, Unchanged
from fencepost.mailbox.delivery_records import DeliveryRecord, SettlementRecord
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import CorruptRecord, InvalidTransition
from fencepost.mailbox.ladder import Stage
from fencepost.mailbox.mutation import Mutation, NewEvent
from fencepost.mailbox.query import Query

if TYPE_CHECKING:
    from fencepost.actors.delivery_desk import DeliveryDesk

__all__ = ["OperatorWords"]

NATIVE: Final = "harness_seat"
"""The mechanism whose deliveries a transcript can prove."""


class OperatorWords:
    """The operator's side of one desk."""

    def __init__(self, desk: DeliveryDesk) -> None:
        self._desk = desk

    async def reconcile(self, envelope: Envelope, message: ReconcileDelivery) -> None:
        """Judge a transcript that somebody saw; a record that cannot be read stays uncertain (DA-7)."""
        try:
            row = await self._desk.find(message.delivery_id)
        except CorruptRecord as damage:
            detail = f"its record cannot be read: {damage}"
            self._desk.actor.answer(envelope, unreadable_report(message.delivery_id, NATIVE, detail))
            return
        if row is None:
            raise InvalidTransition(f"there is no delivery {message.delivery_id} to this pane")
        if _wants_proof(row) and proves(row, message.evidence):
            await self._desk.hear("prove", row, words(row.mechanism, Heard.PROVED))
            row = await self._desk.find(message.delivery_id) or row
        self._desk.actor.answer(envelope, report_of(row))

    async def cancel(self, envelope: Envelope, message: CancelDelivery) -> None:
        """Take back what has not left; what has left is uncertain from now on (D-18)."""
        delivery_id = message.delivery_id
        if self._desk.pending is not None and self._desk.pending.message.delivery_id == delivery_id:
            said = words(self._desk.pending.message.mechanism, Heard.WITHDRAWN, "cancelled before it left")
            await self._desk.end_unsent("withdraw_delivery", said)
            self._desk.actor.answer(envelope, Applied())
            return
        row = await self._desk.find(delivery_id)
        if row is None:
            await self._desk.refuse(
                envelope, Reason.UNKNOWN_DELIVERY, f"there is no delivery {delivery_id} to this pane"
            )
        elif row.outcome is None:
            said = words(row.mechanism, Heard.SILENCE, "cancelled after it had left")
            await self._desk.hear("cancel", row, said)
            self._desk.actor.answer(envelope, Applied())
        else:
            self._desk.actor.answer(envelope, Unchanged())

    async def settle(self, delivery_id: str, approval: str) -> Answer | None:
        """Abandon an uncertain delivery; None if the id is none of this pane's outbound ones."""
        row = await self._desk.find(delivery_id)
        if row is None:
            return None
        now = self._desk.system.clock.now_ns()
        settled = abandon(row, now)
        if settled is None:
            return Unchanged()
        # One that came in with the same id may have been settled before; who decided first is kept.
        (earlier,) = await self._desk.system.line.load(Query(SettlementRecord, {"delivery_id": delivery_id}))
        settlement = SettlementRecord(delivery_id=delivery_id, pane_id=self._desk.pane_id, approval=approval, at=now)
        event = NewEvent(
            kind="delivery.settled",
            address=self._desk.actor.address,
            at=now,
            data={"delivery_id": delivery_id, "approval": approval},
        )
        self._desk.actor.reached("settle", "decided")
        await self._desk.system.line.commit(
            Mutation(label="pane.settle", puts=(settled,) if earlier else (settled, settlement), events=(event,))
        )
        self._desk.row = None
        self._desk.actor.reached("settle", "applied")
        return Applied()


def _wants_proof(row: DeliveryRecord) -> bool:
    """Whether an entry of the session would say more than is known: nothing came back, or a bridge's receipt alone."""
    return row.abandoned_at is None and (row.uncertain or (row.session_id is not None and row.stage is Stage.STORED))
