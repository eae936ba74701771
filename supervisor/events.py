"""Followers of the runtime's events: stored ones first, then live, without a gap.

A follower always reads from the store, behind a cursor of its own; the hub only says that there is more.  So a slow
follower costs no memory, nobody ever waits for one, and the step from stored to live cannot lose anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import trio

from fencepost.mailbox.errors import MailboxClosed, StoreFault
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Event

__all__ = ["EventHub"]

PAGE: Final = 500


class EventHub:
    """Told of every committed batch by the line; followers wait here for more."""

    def __init__(self) -> None:
        self._more = trio.Event()
        self._closed = False

    def committed(self, _events: Sequence[Event]) -> None:
        """A batch with events is durable."""
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

    async def follow(self, line: MutationLine, after: int, *, follow: bool) -> AsyncIterator[Event]:
        """Yield every stored event with `seq` greater than `after`, then, if `follow`, what comes."""
        cursor = after
        while True:
            more = self._more
            try:
                page = await line.load_events(cursor, PAGE)
            except StoreFault as fault:
                # It cannot be stored any more, so it has no seq; the fault itself follows.
                yield Event(seq=None, at=0, kind="runtime.faulted", address="runtime:", data={"fault": str(fault)})
                raise
            for event in page:
                yield event
                cursor = event.seq if event.seq is not None else cursor
            if page:
                continue
            if not follow:
                return
            if self._closed:
                raise MailboxClosed("the runtime is closed; no more events will come")
            await more.wait()
