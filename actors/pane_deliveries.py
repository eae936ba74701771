"""What a pane's actor does about deliveries: the two desks, and what they share.

Deliveries are decided by the pane's actor, one message at a time, like everything else about the pane; they only have
their files to themselves.  They cost a pane nothing until they are used: in a runtime that has neither a mechanism nor
a dispatcher their rows are not even read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from fencepost.actors.actor import Actor, System
from fencepost.actors.calls import Call
from fencepost.actors.delivery_calls import SettleDelivery
from fencepost.actors.delivery_desk import DeliveryDesk
from fencepost.actors.inbound_desk import InboundDesk
from fencepost.actors.messages import Applied, Reason, Unchanged
from fencepost.mailbox.delivery_records import DeliveryRecord, FenceRecord, RunRecord
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import CorruptRecord, UnmappedMechanism
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import IncarnationRecord, Record

__all__ = ["PaneDeliveries"]

R = TypeVar("R", bound=Record)


class PaneDeliveries:
    """The deliveries of one pane, out and in, for one activation of its actor."""

    def __init__(
        self,
        actor: Actor,
        pane_id: str,
        system: System,
        live: Callable[[], IncarnationRecord | None],
    ) -> None:
        self._actor = actor
        self._pane_id = pane_id
        self._out = DeliveryDesk(actor, pane_id, system.mechanisms)
        self._in = InboundDesk(actor, pane_id, system.dispatcher, live)
        self._loaded = False
        self._eager = bool(system.mechanisms) or system.dispatcher is not None
        handlers = {**self._out.serving, **self._in.serving, SettleDelivery: self._settle}
        self._handlers: dict[type[Call], Callable[[Envelope], Awaitable[None]]] = handlers

    @property
    def owes(self) -> bool:
        """Whether somebody waits for a delivery."""
        return self._out.owes

    def leftovers(self) -> list[Envelope]:
        """Who waits for a delivery in this activation."""
        return self._out.leftovers()

    async def load(self) -> None:
        """Take up what an earlier life left, where this runtime could have left it."""
        if self._eager:
            await self._take_up()

    async def serve(self, envelope: Envelope) -> None:
        """Serve one call; an unreadable record or an unknown mechanism is its caller's trouble and not the pane's."""
        await self._take_up()
        try:
            await self._handlers[type(envelope.message)](envelope)
        except (CorruptRecord, UnmappedMechanism) as error:
            envelope.reply.fail(error)

    async def _take_up(self) -> None:
        """Once an activation: what was under way when the last one ended.  Damage shows again where it matters."""
        if self._loaded:
            return
        self._loaded = True
        pane = {"pane_id": self._pane_id}
        rows = await self._readable(Query(DeliveryRecord, {**pane, "resolved_at": None}))
        await self._out.take_up(next(iter(rows), None))
        fences = await self._readable(Query(FenceRecord, pane))
        runs = await self._readable(Query(RunRecord, {**pane, "ended_at": None}))
        await self._in.take_up(next(iter(fences), None), runs)

    async def _readable(self, query: Query[R]) -> list[R]:
        """The rows, or none where they cannot be read: what is damaged keeps the rest from nothing."""
        try:
            (rows,) = await self._actor.system.line.load(query)
        except CorruptRecord:
            return []
        return rows

    async def _settle(self, envelope: Envelope) -> None:
        """An operator's word about an id, in whichever direction it went, or in both (D-19)."""
        message = cast("SettleDelivery", envelope.message)
        answers = [
            await self._out.settle(message.delivery_id, message.approval),
            await self._in.settle(message.delivery_id, message.approval),
        ]
        known = [answer for answer in answers if answer is not None]
        if known:
            self._actor.answer(envelope, Applied() if Applied() in known else Unchanged())
            return
        detail = f"there is no delivery {message.delivery_id} to or from this pane"
        await self._out.refuse(envelope, Reason.UNKNOWN_DELIVERY, detail)
