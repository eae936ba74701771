"""Followers of the runtime's events: stored ones first, then live, without a gap.

A follower always reads from the store, behind a cursor of its own; the hub only says that there is more.  So a slow
follower costs no memory, nobody ever waits for one, and the step from stored to live cannot lose anything.

Events that are live only (`seq` None) are in no store.  Each follower has a bounded buffer for them; in a follower
that is too slow the newest push the oldest out.  They come after the stored events that were committed before them
and before those that were committed after.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final

import trio
from attrs import evolve

from fencepost.mailbox.errors import MailboxClosed, StoreFault
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Event

__all__ = ["EventHub"]

PAGE: Final = 500
LIVE_KEPT_MAX: Final = 1_000


class EventHub:
    """Told of every committed batch by the line; followers wait here for more."""

    def __init__(self) -> None:
        self._more = trio.Event()
        self._closed = False
        self._last_seq = 0
        self._followers: weakref.WeakSet[Follower] = weakref.WeakSet()

    def committed(self, events: Sequence[Event]) -> None:
        """A batch with events is durable."""
        self._last_seq = events[-1].seq or self._last_seq
        self._notify()

    def tell_live(self, event: Event) -> None:
        """Show an event that is not stored to whoever follows right now."""
        for follower in list(self._followers):
            follower.show(self._last_seq, event)
        self._notify()

    def faulted(self) -> None:
        """The store failed; followers find out by asking it."""
        self._notify()

    def close(self) -> None:
        """Nothing more will come; waiting followers get `MailboxClosed`."""
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        self._more.set()
        self._more = trio.Event()

    def follow(self, line: MutationLine, after: int, *, follow: bool) -> Follower:
        """Every stored event with `seq` greater than `after`, then, if `follow`, what comes."""
        follower = Follower(self, line, after, follow=follow)
        if follow:
            self._followers.add(follower)
        return follower

    async def wait_for_more(self, more: trio.Event) -> None:
        """Sleep until a batch was committed after `more` was taken from `news`."""
        if self._closed:
            raise MailboxClosed("the runtime is closed; no more events will come")
        await more.wait()

    @property
    def news(self) -> trio.Event:
        """What the next committed batch will set; take it before looking for events, then wait for it."""
        return self._more


class Follower:
    """One follower's iterator; dropping it needs no closing, so a plain `break` out of its loop is fine."""

    def __init__(self, hub: EventHub, line: MutationLine, after: int, *, follow: bool) -> None:
        self._hub = hub
        self._line = line
        self._cursor = after
        self._follow = follow
        self._page: deque[Event] = deque()
        self._live: deque[tuple[int, Event]] = deque(maxlen=LIVE_KEPT_MAX)
        """Each with the seq of the last event that was committed before it."""
        self._fault: StoreFault | None = None
        self._ended = False

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> Event:
        event = None
        while event is None:
            if self._live and self._live[0][0] <= self._cursor:
                event = self._live.popleft()[1]
            elif self._page:
                event = self._page.popleft()
            else:
                await self._turn_page()
        self._cursor = self._cursor if event.seq is None else event.seq
        return evolve(event, data=dict(event.data))  # the reader's own: a memory store keeps the original

    def show(self, after: int, event: Event) -> None:
        """Take an event that is not stored; `after` is the seq of the last one that is."""
        if not self._ended:
            self._live.append((after, event))

    async def aclose(self) -> None:
        """End the iteration."""
        self._ended = True
        self._page.clear()
        self._live.clear()

    async def _turn_page(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._ended:
            raise StopAsyncIteration
        more = self._hub.news
        live = len(self._live)
        try:
            self._page.extend(await self._line.load_events(self._cursor, PAGE))
        except StoreFault as fault:
            if self._line.fault is None:
                raise  # one record that cannot be read, not the runtime's end
            # The fault cannot be stored any more, so it is told without a seq; then it is raised.
            self._fault = fault
            told = {"fault": str(fault)}
            self._page.append(Event(seq=None, at=time.time_ns(), kind="runtime.faulted", address="runtime:", data=told))
            return
        if not self._page and not self._follow:
            self._ended = True
        elif not self._page and live:
            self._cursor = max(self._cursor, self._live[0][0])  # what it came after is trimmed away or below our start
        elif not self._page:
            await self._hub.wait_for_more(more)
