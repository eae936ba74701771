"""What a pane's actor does about deliveries: the two desks, and what they share.

Deliveries are decided by the pane's actor, one message at a time, like everything else about the pane; they only have
their files to themselves.  They cost a pane nothing until they are used: in a runtime that has neither a mechanism nor
a dispatcher their rows are not even read, unless an earlier one left some unfinished.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fencepost.actors.actor import Actor
from fencepost.actors.delivery_calls import (
    AcceptPost,
    AcknowledgeEvent,
    BindingQuery,
    CancelDelivery,
    Deliver,
    Inspected,
    PollEvents,
    ReceiptQuery,
    ReconcileDelivery,
    ReplyEvent,
    ResetConversation,
    RunEnded,
    SendEnded,
    SettleDelivery,
    TimeIsUp,
)
from fencepost.actors.delivery_desk import DeliveryDesk
from fencepost.actors.inbound_desk import InboundDesk
from fencepost.actors.messages import Applied, Reason, Unchanged
from fencepost.mailbox.delivery_records import DeliveryRecord, FenceRecord, RunRecord
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import CorruptRecord, InvalidTransition, UnmappedMechanism
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import IncarnationRecord, Record

__all__ = ["PaneDeliveries"]

R = TypeVar("R", bound=Record)


class PaneDeliveries:
    """The deliveries of one pane, out and in, for one activation of its actor."""

    def __init__(self, actor: Actor, pane_id: str, live: Callable[[], IncarnationRecord | None]) -> None:
        self._actor = actor
        self._pane_id = pane_id
        self._live = live
        self._desks: tuple[DeliveryDesk, InboundDesk] | None = None

    @property
    def owes(self) -> bool:
        """Whether somebody waits for a delivery."""
        return self._desks is not None and self._desks[0].owes

    def leftovers(self) -> list[Envelope]:
        """Who waits for a delivery in this activation."""
        return [] if self._desks is None else self._desks[0].leftovers()

    async def load(self) -> None:
        """Take up what an earlier life left; no row is read where nothing of it can be there."""
        system = self._actor.system
        if system.mechanisms or system.dispatcher is not None or self._pane_id in system.delivery_debts:
            await self._opened()

    async def serve(self, envelope: Envelope) -> None:
        """Serve one call; an unreadable record or an unknown mechanism is its caller's trouble and not the pane's."""
        outbound, inbound = await self._opened()
        try:
            await self._dispatch(envelope, outbound, inbound)
        except (CorruptRecord, UnmappedMechanism) as error:
            envelope.reply.fail(error)

    async def _dispatch(self, envelope: Envelope, outbound: DeliveryDesk, inbound: InboundDesk) -> None:
        match envelope.message:
            case Deliver() as message:
                await outbound.intake.deliver(envelope, message)
            case PollEvents() as message:
                await outbound.seats.poll(envelope, message)
            case AcknowledgeEvent() as message:
                await outbound.seats.acknowledge(envelope, message)
            case ReplyEvent() as message:
                await outbound.seats.reply(envelope, message)
            case ReconcileDelivery() as message:
                await outbound.operator.reconcile(envelope, message)
            case CancelDelivery() as message:
                await outbound.operator.cancel(envelope, message)
            case SettleDelivery() as message:
                await self._settle(envelope, message, outbound, inbound)
            case TimeIsUp() as message:
                await outbound.time_is_up(envelope, message)
            case Inspected() as message:
                await outbound.native.inspected(envelope, message)
            case SendEnded() as message:
                await outbound.send_ended(envelope, message)
            case AcceptPost() as message:
                await inbound.accept(envelope, message)
            case ReceiptQuery() as message:
                await inbound.receipt(envelope, message)
            case BindingQuery():
                await inbound.binding(envelope)
            case ResetConversation():
                await inbound.reset(envelope)
            case RunEnded() as message:
                await inbound.run_ended(envelope, message)
            case other:
                raise InvalidTransition(f"a pane has no answer to {other!r}", address=self._actor.address)

    async def _opened(self) -> tuple[DeliveryDesk, InboundDesk]:
        """The desks; made on first use, with what was under way when the last activation ended taken up.

        Damage shows again where it matters.
        """
        if self._desks is not None:
            return self._desks
        system, pane = self._actor.system, {"pane_id": self._pane_id}
        outbound = DeliveryDesk(self._actor, self._pane_id, system.mechanisms)
        inbound = InboundDesk(self._actor, self._pane_id, system.dispatcher, self._live)
        self._desks = outbound, inbound
        rows = await self._readable(Query(DeliveryRecord, {**pane, "resolved_at": None}))
        await outbound.take_up(next(iter(rows), None))
        fences = await self._readable(Query(FenceRecord, pane))
        runs = await self._readable(Query(RunRecord, {**pane, "ended_at": None}))
        await inbound.take_up(next(iter(fences), None), runs)
        return self._desks

    async def _readable(self, query: Query[R]) -> list[R]:
        """The rows, or none where they cannot be read: what is damaged keeps the rest from nothing."""
        try:
            (rows,) = await self._actor.system.line.load(query)
        except CorruptRecord:
            return []
        return rows

    async def _settle(
        self, envelope: Envelope, message: SettleDelivery, outbound: DeliveryDesk, inbound: InboundDesk
    ) -> None:
        """An operator's word about an id, in whichever direction it went, or in both (D-19)."""
        answers = [
            await outbound.operator.settle(message.delivery_id, message.approval),
            await inbound.settle(message.delivery_id, message.approval),
        ]
        known = [answer for answer in answers if answer is not None]
        if known:
            self._actor.answer(envelope, Applied() if Applied() in known else Unchanged())
            return
        detail = f"there is no delivery {message.delivery_id} to or from this pane"
        await outbound.refuse(envelope, Reason.UNKNOWN_DELIVERY, detail)
