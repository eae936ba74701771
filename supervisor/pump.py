"""The channel pump: events from a service, one after the other, into a harness that is written to.

Protocol-delivery.md section 4.  The pump polls its source, writes each event to its sink, waits until the write is
complete, and only then acknowledges exactly that id.  What was written is delivered; nobody says that a model saw it.

    poll fails        nothing was handed over: wait, or refresh the link where it was refused, and poll again
    write fails       stop: no acknowledgement, nothing further of the page, no further poll
    acknowledgement   lost, refused or denied: stop, without a second write

A stopped pump stays stopped, because it cannot tell what the other side has; a new one (a new process, say) polls
afresh and replays nothing.  The same under trio and asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import sniffio
import trio
from attrs import frozen

from fencepost.actors.delivery_messages import MailboxEvent

__all__ = ["ChannelPump", "NotificationSink", "PumpSource", "PumpStopped"]


class PumpSource(Protocol):
    """Where events come from: a pane's mailbox, in process or over a wire."""

    async def poll(self, wait_seconds: float) -> Sequence[MailboxEvent]:
        """Return the next events, waiting at most so long.  ConnectionRefusedError asks for a `refresh`."""
        ...

    async def acknowledge(self, event_id: str) -> bool:
        """Say that exactly this event was written; True only if the service said that it is acknowledged."""
        ...

    async def refresh(self) -> None:
        """Find the service again: it may have another port now."""
        ...


class NotificationSink(Protocol):
    """What a harness reads from."""

    async def write(self, event: MailboxEvent) -> None:
        """Write one event; returns once the write is complete, raises if it is not."""
        ...


@frozen
class PumpStopped:
    """Why a pump stopped: at which event, and what happened to it.  That event is uncertain to the service."""

    event_id: str
    cause: BaseException


class ChannelPump:
    """One pump life.  `wait_seconds` is how long a poll may wait, `retry_seconds` the pause after one that failed."""

    def __init__(
        self, source: PumpSource, sink: NotificationSink, *, wait_seconds: float = 25.0, retry_seconds: float = 1.0
    ) -> None:
        self._source = source
        self._sink = sink
        self._wait_seconds = wait_seconds
        self._retry_seconds = retry_seconds
        self._written: set[str] = set()
        self._stopped: PumpStopped | None = None
        self._refreshed = False
        """Whether the last thing that was done was to refresh the link."""

    async def run(self) -> PumpStopped:
        """Carry events until one cannot be carried, and return which and why; run again, it returns that at once.

        Cancelled between two events it may be run again; cancelled within one it is stopped for good.
        """
        while self._stopped is None:
            for event in await self._poll():
                if not await self._carry(event):
                    break
        return self._stopped

    async def _poll(self) -> Sequence[MailboxEvent]:
        """The next page; nothing, after a pause, where the poll failed before anything was handed over."""
        try:
            page = await self._source.poll(self._wait_seconds)
        except ConnectionRefusedError:
            await self._refresh()
            return ()
        except Exception:  # noqa: BLE001 - whatever a poll dies of, it handed nothing over
            await _pause(self._retry_seconds)
            return ()
        self._refreshed = False
        return page

    async def _refresh(self) -> None:
        """Find the service again and poll at once; a link that is refused again right after that is given a pause."""
        if self._refreshed:
            await _pause(self._retry_seconds)
        self._refreshed = True
        try:
            await self._source.refresh()
        except Exception:  # noqa: BLE001 - it is not there yet
            await _pause(self._retry_seconds)

    async def _carry(self, event: MailboxEvent) -> bool:
        """Write one event and acknowledge it; whatever goes wrong on the way stops the pump for good."""
        try:
            if event.event_id not in self._written:
                self._written.add(event.event_id)  # before the write: there is no second one, however it ends
                await self._sink.write(event)
            if await self._source.acknowledge(event.event_id) is not True:
                raise ConnectionError(f"the service did not say that {event.event_id} is acknowledged")
        except Exception as cause:  # noqa: BLE001 - the event may or may not have got through
            self._stopped = PumpStopped(event.event_id, cause)
            return False
        except BaseException as cause:
            self._stopped = PumpStopped(event.event_id, cause)
            raise
        return True


async def _pause(seconds: float) -> None:
    if sniffio.current_async_library() == "asyncio":
        await asyncio.sleep(seconds)
    else:
        await trio.sleep(seconds)
