"""One JSON object a line over a unix socket, for the two sides of the demo that run on trio."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import trio

__all__ = ["Lines", "connect", "listen"]


class Lines:
    """A stream as a sequence of messages."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def send(self, message: Mapping[str, object]) -> None:
        """Send one message."""
        await self._stream.send_all(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None once the other side is gone."""
        while b"\n" not in self._buffer:
            try:
                chunk = await self._stream.receive_some()
            except trio.BrokenResourceError:
                return None
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """Every message until the other side is gone."""
        while (message := await self.receive()) is not None:
            yield message

    async def aclose(self) -> None:
        """Hang up."""
        await self._stream.aclose()


async def listen(path: Path) -> trio.SocketListener:
    """Listen at a path, in place of whoever listened there before."""
    await trio.Path(path).unlink(missing_ok=True)
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(path))
    listening.listen()
    return trio.SocketListener(listening)


async def connect(path: Path) -> Lines:
    """Connect to whoever listens at a path."""
    connecting = trio.socket.socket(trio.socket.AF_UNIX)
    await connecting.connect(str(path))
    return Lines(trio.SocketStream(connecting))
