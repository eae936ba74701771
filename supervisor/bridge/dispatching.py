"""What becomes of a message that a pane's agent sent: it goes to the head seat, and the head's reply ends its turn.

A turn ends in the words of a channel turn (contract D-8):

    the head replied                                      settled; the reply is in the event that tells of it
    it reached the head's channel, no reply in the time   failed, no_reply        (uncertain: it may be at it)
    nobody polled for the head, or it was called off      failed, interrupted     (expired)
    an earlier message to the head is unresolved          failed, interrupted     (expired: this one was not sent)
    the head's acknowledgement did not come               failed, unconfirmed     (uncertain)
    the head wrote to itself                              failed, policy_refused  (rejected)
    with its wrapping it is too large                     failed, validation_refused (rejected)

The head has one message at a time before it, so turns take their turn.
"""

from __future__ import annotations

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

    `supervisor` is set once the runtime is open; it dispatches nothing before that.
    """

    head_pane: str
    supervisor: Supervisor | None = None
    _one_at_a_time: trio.Lock = field(factory=trio.Lock, init=False)

    async def __call__(self, turn: AcceptedTurn) -> TurnEnd:
        """Run one turn to its end; see the module."""
        if turn.pane_id == self.head_pane:
            return TurnEnd("failed", "policy_refused")
        assert self.supervisor is not None
        async with self._one_at_a_time:
            outbound = Outbound(text=turn.wrapped_text, via="head_seat", delivery_id=turn.run_id)
            try:
                report = await self.supervisor.pane(self.head_pane).deliver(outbound)
            except PayloadTooLarge:  # known before anything is sent; any other error leaves the turn uncertain
                return TurnEnd("failed", "validation_refused")
        return _end_of(turn, report)


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
