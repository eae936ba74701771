"""What becomes of a message that a pane's agent sent: it goes to the head seat, and the head's reply ends its turn.

A turn ends in the words of a channel turn (contract D-8):

    the head replied                                      settled; the reply is in the event that tells of it
    it reached the head's channel, no reply in the time   failed, no_reply        (uncertain: it may be at it)
    nobody polled for the head, or it was called off      failed, interrupted     (expired)
    an earlier message to the head is unresolved          failed, interrupted     (expired: this one was not sent)
    the head's acknowledgement did not come               failed, unconfirmed     (uncertain)
    the head wrote to itself                              failed, policy_refused  (rejected)
    with its wrapping it is too large                     failed, validation_refused (rejected)

The head has one message at a time before it.  Whose is next goes round the panes that have one waiting, so that a pane
waits for one message of each other, however many that has sent.  And each may have `turns_max` of them waiting: one
more is refused before it is accepted, as unavailable, so its sender knows that it was not taken and may be sent later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from fencepost.supervisor import (
    AcceptedTurn,
    DeliveryReport,
    Outbound,
    PayloadTooLarge,
    Stage,
    Stop,
    Supervisor,
    TurnEnd,
)

__all__ = ["HeadDispatcher"]


@define(eq=False)
class HeadDispatcher:
    """A `Dispatcher` that hands each message to the pane `head_pane` through the mechanism head_seat.

    `supervisor` is set once the runtime is open; it dispatches nothing before that.  `turns_max`: how many messages of
    one pane may wait for the end of their turn, the one before the head among them.
    """

    head_pane: str
    supervisor: Supervisor | None = None
    turns_max: int = 16
    _at_work: str | None = field(default=None, init=False)
    """The pane whose message is before the head."""
    _waiting: dict[str, deque[trio.Event]] = field(factory=dict[str, deque[trio.Event]], init=False)
    """By pane, in the order in which they are next; a pane with nothing waiting is not among them."""

    async def __call__(self, turn: AcceptedTurn) -> TurnEnd:
        """Run one turn to its end; see the module."""
        if turn.pane_id == self.head_pane:
            return TurnEnd("failed", "policy_refused")
        assert self.supervisor is not None
        async with self._before_the_head(turn.pane_id):
            outbound = Outbound(text=turn.wrapped_text, via="head_seat", delivery_id=turn.run_id)
            try:
                report = await self.supervisor.pane(self.head_pane).deliver(outbound)
            except PayloadTooLarge:  # known before anything is sent; any other error leaves the turn uncertain
                return TurnEnd("failed", "validation_refused")
        return _end_of(turn, report)

    @asynccontextmanager
    async def _before_the_head(self, pane_id: str) -> AsyncGenerator[None]:
        """Wait until it is this message's turn, and have it to the end of the block."""
        if self._at_work is None:
            self._at_work = pane_id
        else:
            await self._wait(pane_id)
        try:
            yield
        finally:
            self._let_the_next()

    async def _wait(self, pane_id: str) -> None:
        mine = trio.Event()
        self._waiting.setdefault(pane_id, deque()).append(mine)
        try:
            await mine.wait()
        except BaseException:
            if mine.is_set():
                self._let_the_next()  # it was called in the moment it left
            else:
                self._left(pane_id, mine)
            raise

    def _left(self, pane_id: str, one: trio.Event) -> None:
        queue = self._waiting[pane_id]
        queue.remove(one)
        if not queue:
            del self._waiting[pane_id]

    def _let_the_next(self) -> None:
        """Call the oldest message of the pane that is next, and put that pane behind the others."""
        served, self._at_work = self._at_work, None
        if self._waiting:
            self._at_work = pane_id = next((one for one in self._waiting if one != served), served)
            assert pane_id is not None
            queue = self._waiting.pop(pane_id)
            queue.popleft().set()
            if queue:
                self._waiting[pane_id] = queue


def _end_of(turn: AcceptedTurn, report: DeliveryReport) -> TurnEnd:
    if report.delivery_id != turn.run_id:
        return TurnEnd("failed", "interrupted")
    match report.stage, report.stop:
        case Stage.RESPONDED, _:
            return TurnEnd("settled")
        case None, Stop.UNAVAILABLE | Stop.EXPIRED:
            return TurnEnd("failed", "interrupted")
        case None, Stop.REJECTED:
            return TurnEnd("failed", "validation_refused")
        case None, Stop.UNCERTAIN:
            return TurnEnd("failed", "unconfirmed")
        case _:
            return TurnEnd("failed", "no_reply")
