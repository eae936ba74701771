"""Who and what a pane's outbound deliveries wait for, in one activation; nothing of it is durable."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import trio
from attrs import define, field, frozen

from fencepost.actors.delivery_calls import Deadline
from fencepost.actors.delivery_messages import Mechanism
from fencepost.actors.delivery_state import Message
from fencepost.mailbox.envelope import Envelope

__all__ = ["Pending", "Waiting"]


@frozen
class Pending:
    """A delivery that has not left yet: it is queued for a poll, or its harness is being looked at."""

    message: Message
    mechanism: Mechanism


@define(eq=False)
class Waiting:
    """Callers, pollers, alarms and dispatches under way; iterating gives everybody who waits for an answer."""

    callers: dict[str, list[Envelope]] = field(factory=dict)
    """By delivery id, those who called `deliver`."""
    looking: dict[str, list[Envelope]] = field(factory=dict)
    """By the unresolved original's id, later calls that had its session looked at; their own texts are not sent."""
    pollers: dict[str, Envelope] = field(factory=dict)
    """By the number of the poll, in order of arrival."""
    alarms: dict[tuple[Deadline, str], trio.CancelScope] = field(factory=dict)
    sending: dict[str, trio.CancelScope] = field(factory=dict)
    """By delivery id, dispatches the bridge's code has not come back from."""
    inspecting: dict[str, trio.CancelScope] = field(factory=dict)
    """By delivery id, looks at a harness that have not come back."""
    lapsed: set[str] = field(factory=set)
    """Chat turns that go on although their callers were told that they are pending."""

    @property
    def owed(self) -> bool:
        """Whether an answer is owed; a poller that went away is owed none, a message whose caller did is still sent."""
        polled = any(not envelope.reply.abandoned for envelope in self.pollers.values())
        return bool(self.callers) or bool(self.looking) or polled

    def __iter__(self) -> Iterator[Envelope]:
        yield from itertools.chain.from_iterable([*self.callers.values(), *self.looking.values()])
        yield from self.pollers.values()
