"""What a channel pump does next: protocol-delivery.md section 4 as a table.  Pure.

    POLL ──a page──▶ WRITE ──complete──▶ ACKNOWLEDGE ──it says so──▶ the next of the page, or POLL
     ▲│                └──anything else──▶ STOPPED ◀──anything else──┘
     │└─refused──▶ REFRESH (behind a pause where it was refused right before)
     └──failed───▶ PAUSE

A pump knows two things that its step does not say: what is left of the page, and which events it has begun to write.
It notes an event as begun when it decides to write it, not once that is done: however the write ends, there is no
second one in this life of the pump, and an event that is handed out again is only acknowledged again.  That is safe
because a write that was not complete has stopped the pump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from attrs import evolve, frozen

from fencepost.actors.delivery_messages import MailboxEvent

__all__ = ["TABLE", "CameOf", "PumpState", "PumpStep", "after"]


class PumpStep(Enum):
    """What a pump does now."""

    POLL = "poll"
    REFRESH = "refresh the link"
    PAUSE = "wait, then poll"
    PAUSE_TO_REFRESH = "wait, then refresh the link"
    WRITE = "write the notification"
    ACKNOWLEDGE = "acknowledge exactly this event"
    STOPPED = "nothing, for good"


class CameOf(Enum):
    """What came of a step; of a write, DONE is its completion, and of an acknowledgement that the service said so."""

    DONE = "done"
    REFUSED = "the connection was refused"
    FAILED = "anything else, a cancellation too"


TABLE: Final[Mapping[tuple[PumpStep, CameOf], PumpStep | None]] = {
    (PumpStep.POLL, CameOf.DONE): None,
    (PumpStep.POLL, CameOf.REFUSED): PumpStep.REFRESH,
    (PumpStep.POLL, CameOf.FAILED): PumpStep.PAUSE,
    (PumpStep.REFRESH, CameOf.DONE): PumpStep.POLL,
    (PumpStep.REFRESH, CameOf.REFUSED): PumpStep.PAUSE,
    (PumpStep.REFRESH, CameOf.FAILED): PumpStep.PAUSE,
    (PumpStep.PAUSE, CameOf.DONE): PumpStep.POLL,
    (PumpStep.PAUSE_TO_REFRESH, CameOf.DONE): PumpStep.REFRESH,
    (PumpStep.WRITE, CameOf.DONE): PumpStep.ACKNOWLEDGE,
    (PumpStep.WRITE, CameOf.REFUSED): PumpStep.STOPPED,
    (PumpStep.WRITE, CameOf.FAILED): PumpStep.STOPPED,
    (PumpStep.ACKNOWLEDGE, CameOf.DONE): None,
    (PumpStep.ACKNOWLEDGE, CameOf.REFUSED): PumpStep.STOPPED,
    (PumpStep.ACKNOWLEDGE, CameOf.FAILED): PumpStep.STOPPED,
}
"""The step that follows; None is the next event of the page, and a poll where there is none."""


@frozen(kw_only=True)
class PumpState:
    """One life of a pump.  `page` begins with the event that is written or acknowledged, or at which it stopped."""

    step: PumpStep = PumpStep.POLL
    page: tuple[MailboxEvent, ...] = ()
    begun: frozenset[str] = frozenset()
    """The ids of the events that it has begun to write."""
    refreshed: bool = False
    """Whether the link was refreshed since the last page."""

    @property
    def event(self) -> MailboxEvent:
        """The event that is being carried, or at which the pump stopped."""
        return self.page[0]


def after(state: PumpState, came_of: CameOf, page: Sequence[MailboxEvent] = ()) -> PumpState:
    """The pump after its step came to this; `page` is what a poll that is done brought.

    Raises KeyError for what a step cannot come to: a stopped pump does nothing, and a pause does not fail.
    """
    step = TABLE[state.step, came_of]
    if step is None:
        return _next_of(state, tuple(page) if state.step is PumpStep.POLL else state.page[1:])
    if step is PumpStep.REFRESH and state.step is PumpStep.POLL and state.refreshed:
        step = PumpStep.PAUSE_TO_REFRESH
    return evolve(state, step=step, refreshed=state.refreshed or step is PumpStep.REFRESH)


def _next_of(state: PumpState, page: tuple[MailboxEvent, ...]) -> PumpState:
    """Take up the first event of what is left of a page, or poll."""
    if not page:
        return evolve(state, step=PumpStep.POLL, page=(), refreshed=False)
    event_id = page[0].event_id
    step = PumpStep.ACKNOWLEDGE if event_id in state.begun else PumpStep.WRITE
    return evolve(state, step=step, page=page, begun=state.begun | {event_id}, refreshed=False)
