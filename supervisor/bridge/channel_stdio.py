"""A harness's end of the pipe: lines of JSON in, lines of JSON out, and when exactly a line is out.

A line out is written whole before the next one begins, and `Output.send` returns once its last byte is in the pipe:
that is the completion a pump acknowledges at.  What fails, or is cut short, is the end of the output: half a line may
be there, and nothing that follows it could be read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Final

import trio

from fencepost.supervisor import MailboxEvent

__all__ = ["ChannelSink", "LineReader", "LineTooLong", "Output", "take_standard_streams"]

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A message has a text of at most 1 MiB, and JSON can spell a character of one byte with six."""
_CHUNK: Final = 65_536


def take_standard_streams() -> tuple[trio.lowlevel.FdStream, trio.lowlevel.FdStream]:
    """Standard input and output, for this module alone: whatever else prints goes to standard error."""
    taken = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        os.dup2(2, 1)
    except OSError:  # there is no standard error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    return trio.lowlevel.FdStream(taken[0]), trio.lowlevel.FdStream(taken[1])


class LineTooLong(ValueError):  # noqa: N818 - what it is
    """A line had more than `LINE_BYTES_MAX` bytes; it was passed over."""


class LineReader:
    """The lines that come in; at most one of them is held, and of one that is too long nothing."""

    def __init__(self, stream: trio.abc.ReceiveStream, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._stream = stream
        self._max = line_bytes_max
        self._held = bytearray()
        self._searched = 0
        self._passing_over = False

    async def read(self) -> bytes | None:
        """The next line, without its end; None once the input has ended, with a line that has no end or without.

        Raises `LineTooLong` behind one that was; the next call goes on with the next line.
        """
        while True:
            end = self._held.find(b"\n", self._searched)
            if end >= 0:
                return self._line(end)
            if len(self._held) > self._max:
                self._passing_over = True
                self._held.clear()
            self._searched = len(self._held)
            try:
                part = await self._stream.receive_some(_CHUNK)
            except trio.BrokenResourceError:
                return None
            if not part:
                return None
            self._held += part

    def _line(self, end: int) -> bytes:
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        self._searched = 0
        if self._passing_over or len(line) > self._max:
            self._passing_over = False
            raise LineTooLong(f"a line has at most {self._max} bytes")
        return line


class Output:
    """The lines that go out, one after the other."""

    def __init__(self, stream: trio.abc.SendStream) -> None:
        self._stream = stream
        self._turn = trio.Lock()
        self.broken = trio.Event()
        """Set: nothing more can be told."""

    async def send(self, message: Mapping[str, object]) -> None:
        """Write one message; returns once all of it is in the pipe, however slowly it is read at the other end.

        Raises BrokenPipeError if it is not, now or since an earlier message; then some of it may be there.
        """
        line = json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
        async with self._turn:
            if self.broken.is_set():
                raise BrokenPipeError("the harness takes nothing any more")
            try:
                await self._stream.send_all(line)
            except trio.BrokenResourceError as error:
                self.broken.set()
                raise BrokenPipeError(f"the harness did not take it: {error.__cause__}") from error
            except BaseException:
                self.broken.set()
                raise


class ChannelSink:
    """A pump's sink: each event is one channel notification."""

    def __init__(self, output: Output) -> None:
        self._output = output

    async def write(self, event: MailboxEvent) -> None:
        """See `NotificationSink`.  The names in `meta` become attributes, and only identifiers do."""
        meta = {"event_id": event.event_id, "delivery_id": event.delivery_id, "mechanism": event.mechanism}
        params = {"content": event.text, "meta": meta}
        await self._output.send({"jsonrpc": "2.0", "method": "notifications/claude/channel", "params": params})
