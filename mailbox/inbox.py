"""One actor's bounded first-in-first-out inbox.

Many tasks put, one task gets.  An item goes straight into the hands of a getter that is asleep; otherwise it waits in
a deque.  When that is full `put` sleeps until it is its turn, in order of arrival: whoever makes room lets in the
putter that has waited longest, so a putter that came later can never overtake one.

A call that need not sleep does not yield to other tasks (it still notices a cancellation): an actor's turn ends when
it waits for something, and what one can find in an inbox without yielding is bounded.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar, cast

import trio
from outcome import Error, Value

from fencepost.mailbox.errors import MailboxClosed, MailboxFull

__all__ = ["INBOX_MAX", "Inbox"]

T = TypeVar("T")

INBOX_MAX: Final = 1024


class Inbox(Generic[T]):
    """At most `items_max` items wait here; `name` is shown by errors."""

    __slots__ = ("_closed", "_getter", "_items", "_items_max", "_name", "_putters")

    def __init__(self, items_max: int = INBOX_MAX, *, name: str = "inbox") -> None:
        if items_max < 1:
            raise ValueError(f"items_max must be at least 1, not {items_max}")
        self._items_max = items_max
        self._name = name
        self._items: deque[T] = deque()
        self._getter: trio.lowlevel.Task | None = None
        self._putters: OrderedDict[trio.lowlevel.Task, T] = OrderedDict()  # only ever filled while the deque is full
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def idle(self) -> bool:
        """Whether its consumer waits for an item and none is on its way."""
        return self._getter is not None and not self._items

    @property
    def closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._closed

    def put_nowait(self, item: T) -> None:
        """Hand `item` over or queue it.  Raises `MailboxFull` if there is no room, `MailboxClosed` after `close`."""
        if self._closed:
            raise MailboxClosed(f"{self._name} is closed")
        getter = self._getter
        if getter is not None:
            self._getter = None
            trio.lowlevel.reschedule(getter, Value(item))
        elif len(self._items) < self._items_max:
            self._items.append(item)
        else:
            raise MailboxFull(f"{self._name} has no room for more than {self._items_max} messages")

    async def put(self, item: T) -> None:
        """Hand `item` over or queue it, waiting for room; cancelled, it was not put.

        Raises `MailboxClosed` if the inbox is closed, also while waiting.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._getter is not None or len(self._items) < self._items_max or self._closed:
            self.put_nowait(item)
        else:
            await self._wait_for_room(item)

    @trio.lowlevel.enable_ki_protection
    async def _wait_for_room(self, item: T) -> None:
        task = trio.lowlevel.current_task()
        self._putters[task] = item

        def leave(_: object) -> trio.lowlevel.Abort:
            del self._putters[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)

    async def get(self) -> T:
        """Take the oldest item, waiting for one.  Raises `MailboxClosed` once the inbox is closed.

        A second task that gets while one is waiting raises trio.BusyResourceError.
        """
        if self._items or self._closed:
            await trio.lowlevel.checkpoint_if_cancelled()
        if self._items:
            item = self._items.popleft()
            if self._putters:
                putter, waiting = self._putters.popitem(last=False)
                self._items.append(waiting)
                trio.lowlevel.reschedule(putter)
            return item
        if self._closed:
            raise MailboxClosed(f"{self._name} is closed")
        return cast("T", await self._wait_for_item())

    @trio.lowlevel.enable_ki_protection
    async def _wait_for_item(self) -> object:
        if self._getter is not None:
            raise trio.BusyResourceError(f"another task is already waiting at {self._name}")
        self._getter = trio.lowlevel.current_task()

        def leave(_: object) -> trio.lowlevel.Abort:
            self._getter = None
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(leave)

    def close(self) -> list[T]:
        """Take nothing more, fail everybody who waits with `MailboxClosed`, and return the items nobody took.

        The items of putters that were still waiting are not among them: their `put` failed.  Closing again returns
        nothing.
        """
        self._closed = True
        leftovers = list(self._items)
        self._items.clear()
        waiting = [*self._putters]
        if self._getter is not None:
            waiting.append(self._getter)
        self._putters.clear()
        self._getter = None
        for task in waiting:
            trio.lowlevel.reschedule(task, Error(MailboxClosed(f"{self._name} was closed")))
        return leftovers
