"""The runtime's events and dead letters, followed from where the store ends when the process starts.

What is stored by then belongs to earlier lives, and is not told again; only the states of unresolved intents are taken
from it, as far back as `SEED_MAX` events.  Nobody waits for a follower, and its end is nobody's end but its own: when
the runtime closes it ends, and when it fails it says so and ends.  An event that cannot be read is skipped, and said.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

import trio

from fencepost.supervisor import CorruptRecord, DeadLetter, Event, MailboxClosed
from fencepost.supervisor.bridge.escaped import error_told
from fencepost.supervisor.overview import UNRESOLVED

if TYPE_CHECKING:
    from fencepost.supervisor import Supervisor

__all__ = ["SEED_MAX", "Follower", "near_the_end", "tell_events"]

log: Final = logging.getLogger(__name__)

SEED_MAX: Final = 5_000
"""Stored events that are read at the start."""


class Follower:
    """Tells `on_event` and `on_dead_letter` of what is new, and keeps the states of unresolved intents."""

    def __init__(
        self,
        supervisor: Supervisor,
        on_event: Callable[[Event], None],
        on_dead_letter: Callable[[DeadLetter], None],
    ) -> None:
        self._supervisor = supervisor
        self._on_event = on_event
        self._on_dead_letter = on_dead_letter
        self._states: dict[str, str] = {}
        self._event_seq = 0
        self._letter_seq = 0
        self.following = False
        """Whether it does, now."""

    @property
    def intents(self) -> Mapping[str, int]:
        """Unresolved intents by state, of those whose state was told."""
        return Counter(self._states.values())

    async def run(
        self, dead_letter_seconds: float, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Follow until the runtime closes or fails; started once it stands where the store ends.

        No event says that a call was refused, so dead letters are looked for every `dead_letter_seconds`.
        """
        if not await self._unless_it_ends(self._start):
            task_status.started()
            return
        self.following = True
        async with trio.open_nursery() as nursery:
            task_status.started()
            nursery.start_soon(self._watch_dead_letters, dead_letter_seconds)
            await self._unless_it_ends(self._follow)
            self.following = False
            nursery.cancel_scope.cancel()

    async def look_for_dead_letters(self) -> None:
        """Tell those that are new."""
        for letter in await self._supervisor.dead_letters(self._letter_seq):
            self._letter_seq = letter.seq
            self._on_dead_letter(letter)
            await trio.lowlevel.checkpoint()

    async def _start(self) -> None:
        status = await self._supervisor.status()
        self._letter_seq = status.dead_letters  # they are numbered without a gap, and none is ever trimmed away
        after = await near_the_end(self._supervisor)
        self._event_seq = await tell_events(self._supervisor, after, self._remember, _skipped, follow=False)

    async def _follow(self) -> None:
        await tell_events(self._supervisor, self._event_seq, self._tell, _skipped)

    def _tell(self, event: Event) -> None:
        self._event_seq = event.seq or self._event_seq
        self._remember(event)
        self._on_event(event)

    async def _watch_dead_letters(self, every_seconds: float) -> None:
        while await self._unless_it_ends(self.look_for_dead_letters):  # noqa: ASYNC110 - nothing tells of one
            await trio.sleep(every_seconds)

    def _remember(self, event: Event) -> None:
        intent_id, state = event.data.get("intent_id"), event.data.get("state")
        if not event.kind.startswith("intent.") or not isinstance(intent_id, str) or not isinstance(state, str):
            return
        if state in UNRESOLVED:
            self._states[intent_id] = state
        else:
            self._states.pop(intent_id, None)

    async def _unless_it_ends(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether there may be more to do."""
        try:
            await work()
        except MailboxClosed:
            return False
        except Exception as error:  # noqa: BLE001 - a store that failed, a record that cannot be read: the others go on
            log.error("the runtime is not followed any more: %s", error_told(error))  # noqa: TRY400 - one line
            return False
        return True


def _skipped(seq: int, damaged: CorruptRecord) -> None:
    log.error("event %d is skipped, it cannot be read: %s", seq, error_told(damaged))


async def tell_events(
    supervisor: Supervisor,
    after: int,
    tell: Callable[[Event], None],
    skip: Callable[[int, CorruptRecord], None],
    *,
    follow: bool = True,
) -> int:
    """Tell `tell` each event above `after`, and `skip` the number of each that cannot be read; the last one's number.

    `follow` as for `Supervisor.events`, and what that raises.
    """
    while True:
        try:
            async for event in supervisor.events(after, follow=follow):
                after = event.seq or after
                tell(event)
                await trio.lowlevel.checkpoint()  # a page of them must not hold up the requests
        except CorruptRecord as damaged:
            if damaged.event_seq is None:
                raise
            after = damaged.event_seq
            skip(after, damaged)
        else:
            return after


async def near_the_end(supervisor: Supervisor) -> int:
    """A number that at most `SEED_MAX` stored events are above, found with few reads; the numbers have no gap.

    An event that cannot be read is one of them like any other.
    """
    low = await _first_above(supervisor, 0)
    if low is None:
        return 0
    step = SEED_MAX
    while (found := await _first_above(supervisor, low + step)) is not None:
        low, step = found, 2 * step
    high = low + step
    while high - low > SEED_MAX // 2:
        middle = (low + high) // 2
        found = await _first_above(supervisor, middle)
        low, high = (low, middle) if found is None else (found, high)
    return max(0, high - SEED_MAX)


async def _first_above(supervisor: Supervisor, seq: int) -> int | None:
    events: AsyncIterator[Event] = supervisor.events(seq, follow=False)
    try:
        async for event in events:
            return event.seq
    except CorruptRecord as damaged:
        if damaged.event_seq is None:
            raise
        return damaged.event_seq
    return None
