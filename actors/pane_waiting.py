"""Callers that wait behind a reconciliation, each with a budget.

A parked call keeps its reply slot while its actor goes on.  It is decided again when what it waits for may have
changed (`recheck`), when its budget is spent, and when the reconciler raised; the last two leave it no patience, so
that deciding it answers it.  The budget runs from the first time a call is parked.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator

import trio
from attrs import define

from fencepost.actors.actor import Actor
from fencepost.actors.calls import GiveUpWaiting, PreToolUse
from fencepost.mailbox.envelope import Envelope

__all__ = ["Waiting"]


@define(eq=False)
class _Parked:
    """A caller that waits behind the reconciliation of `intent_id`."""

    envelope: Envelope
    intent_id: str
    gives_up_at: float
    """On trio's clock; infinity for one that waits for as long as it takes."""
    patient: bool = True


class Waiting:
    """The parked callers of one activation.

    `decide` decides one of them again, given whether it may still wait; it answers it or leaves it parked.
    """

    __slots__ = ("_actor", "_alarm", "_decide", "_parked", "_tickets", "recheck")

    def __init__(self, actor: Actor, decide: Callable[[Envelope, bool], Awaitable[None]]) -> None:
        self._actor = actor
        self._decide = decide
        self._parked: dict[int, _Parked] = {}
        self._tickets = 0
        self._alarm: trio.CancelScope | None = None
        """Ends with the first budget of those that are parked."""
        self.recheck = False
        """Set when something that parked callers wait for has changed."""

    def __len__(self) -> int:
        """How many are parked."""
        return len(self._parked)

    def __iter__(self) -> Iterator[Envelope]:
        """Those who are parked, first come first."""
        return (parked.envelope for parked in self._parked.values())

    def park(self, envelope: Envelope, intent_id: str, wait_seconds: float) -> None:
        """Keep a caller that was not parked yet for later."""
        self._tickets += 1
        gives_up_at = trio.current_time() + wait_seconds
        self._parked[self._tickets] = _Parked(envelope, intent_id, gives_up_at)
        if self._alarm is not None:
            self._alarm.deadline = min(self._alarm.deadline, gives_up_at)
        elif math.isfinite(gives_up_at):
            self._alarm = trio.CancelScope(deadline=gives_up_at)
            self._actor.spawn(self._watch_budgets, self._alarm, daemon=True)

    async def _watch_budgets(self, alarm: trio.CancelScope) -> None:
        """Tell the actor whose budget is spent: one task for all who are parked, and for those parked meanwhile."""
        while True:
            with alarm:
                await trio.sleep_forever()
            patient = {ticket: parked.gives_up_at for ticket, parked in self._parked.items() if parked.patient}
            for ticket, gives_up_at in patient.items():
                if gives_up_at <= trio.current_time():
                    await self._actor.system.ask(self._actor.address, GiveUpWaiting(ticket))
            first = min((parked.gives_up_at for parked in self._parked.values() if parked.patient), default=math.inf)
            if not math.isfinite(first):
                self._alarm = None
                return
            self._alarm = alarm = trio.CancelScope(deadline=first)

    async def give_up(self, ticket: int) -> None:
        """Decide a caller whose budget is spent, if it still waits."""
        parked = self._parked.get(ticket)
        if parked is not None:
            parked.patient = False
            await self._decide_again(ticket, parked)

    def lose_patience(self, intent_id: str) -> None:
        """Nobody is to wait any longer for the reconciliation of this intent."""
        for parked in self._parked.values():
            if parked.intent_id == intent_id:
                parked.patient = False
        self.recheck = True

    async def settle(self, bound_batch: str | None) -> None:
        """Decide all who are parked again, first come first served.

        Those of the batch the head is bound to come first: what a later batch gets may bind the head to that one
        instead.
        """
        self.recheck = False

        def of_another_batch(entry: tuple[int, _Parked]) -> bool:
            message = entry[1].envelope.message
            return not isinstance(message, PreToolUse) or message.boundary.batch_id != bound_batch

        for ticket, parked in sorted(self._parked.items(), key=of_another_batch):
            await self._decide_again(ticket, parked)

    async def _decide_again(self, ticket: int, parked: _Parked) -> None:
        reply = parked.envelope.reply
        if not reply.abandoned:
            await self._decide(parked.envelope, parked.patient)
        if reply.settled or reply.abandoned:
            self._parked.pop(ticket, None)
