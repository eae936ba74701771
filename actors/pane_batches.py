"""A pane's part in its tool batches (design section 8): they start here, and what they place is told to the intents.

A batch is an actor of its own (`tool_batch_actor`).  The pane starts it, because at most one is open and it belongs to
the live incarnation; commits what it places, because a placed payload is a delivery and the last placed result
completes a batch; and cancels it when its incarnation is gone (contract T-5).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fencepost.actors.calls import Call, ToolsEnded
from fencepost.actors.messages import ToolBoundary
from fencepost.actors.pane_reports import decide_placement
from fencepost.actors.tool_calls import AwaitTools, CancelBatch, PlaceResults, StartBatch, TakeUpBatch
from fencepost.actors.tool_plan import judge_repeated, plan
from fencepost.actors.tool_state import boundary_batch_id
from fencepost.mailbox.address import Address
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import ActorCrashed, ActorQuarantined, CorruptRecord
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import BatchMode, BatchRecord

if TYPE_CHECKING:
    from fencepost.actors.pane_actor import PaneActor

__all__ = ["PaneBatches"]


class PaneBatches:
    """What one activation of a pane does about its batches."""

    __slots__ = ("_pane", "_watching")

    def __init__(self, pane: PaneActor) -> None:
        self._pane = pane
        self._watching = False

    async def start(self, envelope: Envelope, message: StartBatch) -> None:
        """Serve `StartBatch`: plan the batch, or find the same one there already, and see that it is awake."""
        request, pane, system = message.request, self._pane, self._pane.system
        address = str(Address.batch(pane.pane_id, request.operation_id, request.turn.id))
        of_pane = {"pane_id": pane.pane_id}
        same, opened, newest = await system.line.load(
            Query(BatchRecord, {"address": address}),
            Query(BatchRecord, {**of_pane, "checkpoint": None}),
            Query(BatchRecord, of_pane, order_by=("seq",), descending=True, limit=1),
        )
        if same:
            judge_repeated(same[0], request)
        else:
            tools = [system.tools.get(call.name) for call in request.calls]
            in_turn = any(tool is not None and tool.mode is BatchMode.SEQUENTIAL for tool in tools)
            mutation = plan(
                pane.pane_id,
                request,
                live=pane.state.live,
                open_batch=opened[0] if opened else None,
                latest=newest[0] if newest else None,
                mode=BatchMode.SEQUENTIAL if in_turn else request.mode,
                now=system.clock.now_ns(),
                mint=pane.mint,
            )
            pane.reached("start_batch", "decided")
            await system.line.commit(mutation)
            pane.reached("start_batch", "applied")
        self._wake(address)
        pane.answer(envelope, None)

    async def place(self, envelope: Envelope, message: PlaceResults) -> None:
        """Serve `PlaceResults`: commit them with what they mean for an intent: a delivery, an end, or nothing."""
        pane = self._pane
        decision = decide_placement(
            pane.state,
            await pane.memory.speaker(message.incarnation_id),
            None if message.delivers is None else await pane.memory.intent(message.delivers),
            incarnation_id=message.incarnation_id,
            turn_id=message.turn_id,
            batch_id=message.batch_id,
            completes=message.completes,
            now=pane.system.clock.now_ns(),
        )
        await pane.commit("place_results", decision, before=message.part)
        pane.answer(envelope, None)

    async def take_up(self) -> None:
        """See that the open batch goes on, or ends with its incarnation; whoever should have may have died before."""
        for batch in await self._opened():
            if self._pane.state.is_live(batch.incarnation_id):
                with suppress(ActorQuarantined):  # it goes on when it is revived
                    self._wake(batch.address)
            else:
                self._cancel(batch.address)

    # -- tools that must end before files change --

    async def running(self, call: ToolBoundary | None = None) -> list[str]:
        """The batches whose tools may still run, but for the one that `call` is of.

        One that is open may have tools running, or run them again when it is revived; one that was ended from outside
        has them for as long as they are given to end.  A call's own batch has none: it was not admitted yet.
        """
        pane = self._pane
        opened = [batch.address for batch in await self._opened() if call is None or not _is_of(call, batch)]
        return opened + [address for address, of in pane.system.lingering.items() if of == pane.pane_id]

    def watch(self) -> None:
        """Have the pane told (`ToolsEnded`) when no tools run any more."""
        if not self._watching:
            self._watching = True
            self._pane.spawn(self._watch)

    async def _watch(self) -> None:
        pane = self._pane
        for address in await self.running():
            if not await self._ended(address):
                self._watching = False
                await pane.system.ask(pane.address, ToolsEnded(held_up=address))
                return
        self._watching = False
        await pane.system.ask(pane.address, ToolsEnded())

    async def _ended(self, address: str) -> bool:
        """Wait for the end of a batch's tools, over any number of its deaths; say so where somebody must help it.

        False if its rows cannot be read, which no waiting changes.
        """
        pane = self._pane
        while True:
            try:
                await pane.system.ask(address, AwaitTools())
            except ActorCrashed:
                continue
            except CorruptRecord:
                return False
            except ActorQuarantined as quarantined:
                await pane.system.ask(pane.address, ToolsEnded(held_up=quarantined.address))
                await pane.system.until_revived(quarantined.address)
            else:
                return True

    async def _opened(self) -> list[BatchRecord]:
        pane = self._pane
        (opened,) = await pane.system.line.load(Query(BatchRecord, {"pane_id": pane.pane_id, "checkpoint": None}))
        return opened

    def _wake(self, address: str) -> None:
        """Have a batch go on; one that is awake may have looked for its rows before they were there."""
        if not self._pane.system.wake(address):
            self._pane.spawn(self._tell, address, TakeUpBatch())

    def _cancel(self, address: str) -> None:
        self._pane.spawn(self._tell, address, CancelBatch("its incarnation was retired"))

    async def _tell(self, address: str, message: Call) -> None:
        with suppress(ActorCrashed, ActorQuarantined, CorruptRecord):  # its next activation sees for itself
            await self._pane.system.ask(address, message)


def _is_of(call: ToolBoundary, batch: BatchRecord) -> bool:
    turn_id = None if call.turn is None else call.turn.id
    batch_id = boundary_batch_id(batch.operation_id, batch.turn_id)
    return (call.incarnation_id, turn_id, call.batch_id) == (batch.incarnation_id, batch.turn_id, batch_id)
