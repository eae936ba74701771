"""The channel pump: events from a service, one after the other, into a harness that is written to.

Protocol-delivery.md section 4.  The pump polls its source, writes each event to its sink, waits until the write is
complete, and only then acknowledges exactly that id.  What was written is delivered; nobody says that a model saw it.

    poll fails        nothing was handed over: wait, or refresh the link where it was refused, and poll again
    write fails       stop: no acknowledgement, nothing further of the page, no further poll
    acknowledgement   lost, refused or denied: stop, without a second write

`pump_state` says which step follows which; this shell carries the steps out.

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
from fencepost.supervisor.pump_state import CameOf, PumpState, PumpStep, after

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
        self._state = PumpState()
        self._stopped: PumpStopped | None = None

    async def run(self) -> PumpStopped:
        """Carry events until one cannot be carried, and return which and why; run again, it returns that at once.

        Cancelled between two events it may be run again; cancelled within one it is stopped for good.
        """
        while self._stopped is None:
            match self._state.step:
                case PumpStep.POLL:
                    await self._poll()
                case PumpStep.REFRESH:
                    await self._refresh()
                case PumpStep.WRITE | PumpStep.ACKNOWLEDGE:
                    await self._carry()
                case _:
                    await _pause(self._retry_seconds)
                    self._state = after(self._state, CameOf.DONE)
        return self._stopped

    async def _poll(self) -> None:
        try:
            page = await self._source.poll(self._wait_seconds)
        except ConnectionRefusedError:
            self._state = after(self._state, CameOf.REFUSED)
        except Exception:  # noqa: BLE001 - whatever a poll dies of, it handed nothing over
            self._state = after(self._state, CameOf.FAILED)
        else:
            self._state = after(self._state, CameOf.DONE, page)

    async def _refresh(self) -> None:
        try:
            await self._source.refresh()
        except Exception:  # noqa: BLE001 - it is not there yet
            self._state = after(self._state, CameOf.FAILED)
        else:
            self._state = after(self._state, CameOf.DONE)

    async def _carry(self) -> None:
        """Write the event, or acknowledge it; whatever goes wrong with that stops the pump for good."""
        event = self._state.event
        try:
            if self._state.step is PumpStep.WRITE:
                await self._sink.write(event)
            elif await self._source.acknowledge(event.event_id) is not True:
                raise ConnectionError(f"the service did not say that {event.event_id} is acknowledged")
        except BaseException as cause:
            self._state = after(self._state, CameOf.FAILED)
            self._stopped = PumpStopped(event.event_id, cause)
            if not isinstance(cause, Exception):
                raise
        else:
            self._state = after(self._state, CameOf.DONE)


async def _pause(seconds: float) -> None:
    if sniffio.current_async_library() == "asyncio":
        await asyncio.sleep(seconds)
    else:
        await trio.sleep(seconds)
