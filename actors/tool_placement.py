"""Placing outcomes in source order: the ready prefix becomes entries, in one transaction, one placement at a time.

A placement that delivers a payload or completes the batch goes through the pane, which adds what that means for its
intents and commits the whole (design section 8).  The pane, or an intent it must ask, may be in quarantine; then the
outcomes stay where they are, durable and ready, nothing runs again, and the placement is tried anew once somebody
has revived it.  Meanwhile the batch can still be cancelled or ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import trio

from fencepost.actors.tool_calls import PlaceResults
from fencepost.actors.tool_writes import place
from fencepost.mailbox.errors import ActorCrashed, ActorQuarantined
from fencepost.mailbox.records import CallStatus, EntryRecord

if TYPE_CHECKING:
    from fencepost.actors.tool_batch_actor import ToolBatchActor
    from fencepost.mailbox.mutation import Mutation

__all__ = ["Placement"]


class Placement:
    """Places what is ready, for one activation."""

    def __init__(
        self,
        actor: ToolBatchActor,
        *,
        on_placed: Callable[[], None],
        on_closed: Callable[[Sequence[EntryRecord]], Awaitable[None]],
    ) -> None:
        """`on_placed` is called after each placement that leaves the batch open.

        `on_closed` is called after the last one, with the entries that it placed.
        """
        self._actor = actor
        self._rows = actor.rows
        self._on_placed = on_placed
        self._on_closed = on_closed
        self._working = False
        self._recovered: frozenset[int] = frozenset()
        self.writing = trio.Lock()
        """Held while the batch's row, or anything it forbids, is written: placing, cancelling and ending it."""

    def loaded(self) -> None:
        """The rows were read: what had begun by then is an earlier life's."""
        begun = {CallStatus.EFFECT_PENDING, CallStatus.OUTCOME_READY}
        self._recovered = frozenset(call.source_index for call in self._rows.now.calls if call.status in begun)

    def look(self) -> None:
        """Place what is ready, unless that is being done: whoever places looks again when it is done."""
        if not self._working and self._rows.open and self._rows.now.ready:
            self._working = True
            self._actor.spawn(self._work)

    async def _work(self) -> None:
        while self._rows.open and self._rows.now.ready:
            try:
                async with self.writing:
                    await self._place_prefix()
            except ActorQuarantined as quarantined:
                await self._actor.held_up_by(quarantined)
        self._working = False

    async def _place_prefix(self) -> None:
        state = self._rows.now
        if not state.open:
            return
        prefix = state.ready
        await self._rows.fetch_outcomes(prefix)
        mutation = place(state, self._rows.outcomes, self._actor.system.clock.now_ns(), recovered=self._recovered)
        if mutation is None:
            return
        completes = state.placed + len(prefix) == len(state.calls)
        delivers = next((call.intent_id for call in prefix if call.intent_id is not None), None)
        self._actor.reached("place", "decided")
        if not completes and delivers is None:
            await self._actor.system.line.commit(mutation)
        elif not await self._place_through_pane(mutation, delivers, completes=completes):
            return
        self._rows.apply(mutation.puts)
        for call in prefix:
            self._rows.outcomes.pop(call.invocation_id, None)
        self._actor.reached("place", "applied")
        if self._rows.open:
            self._on_placed()
        else:
            await self._on_closed([record for record in mutation.puts if isinstance(record, EntryRecord)])

    async def _place_through_pane(self, mutation: Mutation, delivers: str | None, *, completes: bool) -> bool:
        """Hand the placement to the pane; False if it died on the way and the store had to be asked."""
        batch = self._rows.now.batch
        message = PlaceResults(
            part=mutation,
            incarnation_id=batch.incarnation_id,
            turn_id=batch.turn_id,
            batch_id=self._rows.boundary_batch_id,
            delivers=delivers,
            completes=completes,
        )
        try:
            await self._actor.system.ask(self._rows.pane, message)
        except ActorCrashed:
            await self._rows.read_again()
            if self._rows.open:
                self._on_placed()  # it may be
            else:
                await self._on_closed(())
            return False
        return True
