"""The stream that says that something changed: `text/event-stream`, one line a change, and nothing of the change.

The page fetches itself again when it is told, so nothing queues up here for one who reads slowly: while one line is
being written, whatever happens is one more change, told once.  A stream ends when its session does, and when the bridge
is asked to stop; the page then says that it is not live.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost.mailbox.errors import CorruptEvent
from fencepost.supervisor import FencepostError, Supervisor
from fencepost.supervisor.bridge.auth import Denied, Identity
from fencepost.supervisor.bridge.dashboard.board import Dashboard
from fencepost.supervisor.bridge.dashboard.details import last_seq
from fencepost.supervisor.bridge.limits import Stopping

__all__ = ["Stream"]

HEARTBEAT_SECONDS: Final = 10.0
"""How often a stream without news shows that it lives, and looks whether its session does."""
PAUSE_SECONDS: Final = 0.5
"""How long the changes behind one that was told are gathered."""

_HELLO: Final = b"retry: 2000\nevent: hello\ndata: 1\n\n"
_CHANGED: Final = b"event: changed\ndata: 1\n\n"
_ALIVE: Final = b": alive\n\n"


class Stream(Response):
    """An answer that goes on until its reader leaves, its session ends or the bridge stops.

    Its sending has no deadline as a whole; each part of it has.
    """

    media_type = "text/event-stream"

    def __init__(self, board: Dashboard, supervisor: Supervisor, identity: Identity, stopping: Stopping) -> None:
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._board = board
        self._supervisor = supervisor
        self._identity = identity
        self._stopping = stopping

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send until one of the ends."""

        async def tell(part: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": more})

        with self._board.streams.one():
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_with_the_bridge, nursery.cancel_scope)
                await self._tell_changes(tell)
                nursery.cancel_scope.cancel()
            # What the server makes of this end is that its reader has left, which must not cut the end itself short.
            with trio.CancelScope(shield=True):
                await tell(b"", more=False)

    async def _end_with_the_bridge(self, stream: trio.CancelScope) -> None:
        await self._stopping.asked.wait()
        stream.cancel()

    async def _tell_changes(self, tell: Callable[[bytes], Awaitable[None]]) -> None:
        """Where the events stand is read before a change is told, so that what happens meanwhile is the next one."""
        try:
            seq = await self._last_seq()
            await tell(_HELLO)  # the page was made before this, and looks again
            while self._lasts():
                if not await self._something_after(seq):
                    await tell(_ALIVE)
                    continue
                await trio.sleep(PAUSE_SECONDS)
                seq = await self._last_seq()
                await tell(_CHANGED)
        except FencepostError:
            await tell(_CHANGED)  # the page finds out what it is

    async def _something_after(self, seq: int) -> bool:
        """Wait for an event; False if none came for a while.  Raises what the runtime's own reading raises."""
        follower = self._supervisor.events(seq)
        try:
            with trio.move_on_after(HEARTBEAT_SECONDS):
                event = await anext(follower)
                if event.kind == "runtime.faulted":
                    await anext(follower)  # raises the fault
                return True
        except CorruptEvent:
            return True
        except FencepostError as error:
            self._stopping.heard(error)
            raise
        return False

    async def _last_seq(self) -> int:
        return await self._board.look(self._supervisor, lambda reader: last_seq(reader.events))

    def _lasts(self) -> bool:
        try:
            self._identity.confirm()
        except Denied:
            return False
        return True
