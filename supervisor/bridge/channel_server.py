"""The Model Context Protocol as far as a channel needs it: a server over lines of JSON-RPC 2.0.

    initialize, ping, tools/list, tools/call        answered; each other method is -32601
    notifications/initialized                       from now on events may be pushed
    other notifications, and answers                passed over: nothing was asked of the harness
    what is no message                              answered with an error, if that can be told; the next line is read

Everything but a tool is answered before the next line is read, so a harness that asks and does not read is not read
either.  Tools run beside, `CALLS_MAX` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import trio

from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.channel_stdio import LineReader, LineTooLong, Output
from fencepost.supervisor.bridge.channel_tools import Told, Tools

__all__ = ["PROTOCOLS", "Server"]

PROTOCOLS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The protocol's revisions, newest first; what is used here is the same in all of them."""
CALLS_MAX: Final = 16
CHANNEL: Final = "claude/channel"
INSTRUCTIONS: Final = (
    'Messages to this pane arrive as <channel source="…" event_id="…" delivery_id="…">; they are from the service that '
    "supervises it. They were acknowledged when they were written here: nothing has to be done to say that they "
    "arrived. To say something to the service, use send_message, which sends a message once; delivery_status says how "
    "far it got."
)

_PARSE_ERROR, _INVALID, _NO_METHOD, _BAD_PARAMS, _INTERNAL, _BUSY = -32700, -32600, -32601, -32602, -32603, -32000


class _Failure(Exception):  # noqa: N818 - becomes an answer
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Server:
    """One session with one harness.  `complain` is told of what failed inside a tool."""

    def __init__(
        self, output: Output, tools: Tools, version: str, complain: Callable[[BaseException], None], *, pushes: bool
    ) -> None:
        self._output = output
        self._tools = tools
        self._version = version
        self._complain = complain
        self._pushes = pushes
        self._calls = 0
        self.initialized = trio.Event()
        """Set once the harness says that it is ready; nothing is pushed before."""

    async def serve(self, lines: LineReader, nursery: trio.Nursery) -> None:
        """Answer until the input ends; tools run in `nursery`.  Raises BrokenPipeError if an answer is not taken."""
        while True:
            try:
                line = await lines.read()
            except LineTooLong as error:
                await self._fail(None, _PARSE_ERROR, str(error))
                continue
            if line is None:
                return
            if line.strip():
                await self._take(line, nursery)

    async def _take(self, line: bytes, nursery: trio.Nursery) -> None:
        """Do what one line asks."""
        try:
            message = wire.parse(line)
        except wire.Malformed as error:
            await self._fail(None, _PARSE_ERROR, str(error).replace("the body", "the line"))
            return
        method, asked = message.get("method"), message.get("id")
        if method is None and ("result" in message or "error" in message):
            return
        if "id" in message and not _is_id(asked):
            await self._fail(None, _INVALID, "an id is a text or a whole number")
        elif message.get("jsonrpc") != "2.0" or not isinstance(method, str):
            await self._fail(asked, _INVALID, "this is no message of JSON-RPC 2.0")
        elif "id" not in message:
            self._notified(method)
        elif method == "tools/call":
            await self._start_call(asked, message, nursery)
        else:
            await self._answer(asked, method, message)

    def _notified(self, method: str) -> None:
        if method == "notifications/initialized":
            self.initialized.set()

    async def _answer(self, asked: object, method: str, message: Mapping[str, object]) -> None:
        match method:
            case "initialize":
                await self._succeed(asked, self._introduced(_params(message).get("protocolVersion")))
            case "ping":
                await self._succeed(asked, {})
            case "tools/list":
                await self._succeed(asked, {"tools": Tools.LISTED})
            case _:
                await self._fail(asked, _NO_METHOD, "there is no such method here")

    def _introduced(self, protocol: object) -> Mapping[str, object]:
        """The answer to `initialize`: the harness's revision if it is one of ours, else the newest that is."""
        capabilities: dict[str, object] = {"tools": {}}
        if self._pushes:
            capabilities["experimental"] = {CHANNEL: {}}
        return {
            "protocolVersion": protocol if protocol in PROTOCOLS else PROTOCOLS[0],
            "capabilities": capabilities,
            "serverInfo": {"name": "fencepost", "version": self._version},
            "instructions": INSTRUCTIONS,
        }

    # -- tools --

    async def _start_call(self, asked: object, message: Mapping[str, object], nursery: trio.Nursery) -> None:
        if self._calls >= CALLS_MAX:
            await self._fail(asked, _BUSY, "too many calls at once")
            return
        self._calls += 1
        nursery.start_soon(self._call, asked, _params(message))

    async def _call(self, asked: object, params: Mapping[str, object]) -> None:
        try:
            try:
                told = await self._told(params)
            except _Failure as failure:
                await self._fail(asked, failure.code, str(failure))
            else:
                # Some harnesses show their model the text alone, and Claude Code the members alone.
                members = {"means": told.text, **told.members}
                content = [{"type": "text", "text": told.text}]
                answer = {"content": content, "structuredContent": members, "isError": told.failed}
                await self._succeed(asked, answer)
        except BrokenPipeError:
            return  # the output's end is somebody else's to see
        finally:
            self._calls -= 1

    async def _told(self, params: Mapping[str, object]) -> Told:
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise _Failure(_BAD_PARAMS, "a call has a name, and arguments that are an object")
        try:
            told = await self._tools.call(name, arguments)
        except ValueError as error:
            raise _Failure(_BAD_PARAMS, str(error)) from error
        except Exception as error:
            self._complain(error)
            raise _Failure(
                _INTERNAL, "the call failed; whether a message was sent, delivery_status can tell"
            ) from error
        if told is None:
            raise _Failure(_BAD_PARAMS, "there is no such tool")
        return told

    # -- answers --

    async def _succeed(self, asked: object, result: Mapping[str, object]) -> None:
        await self._output.send({"jsonrpc": "2.0", "id": asked, "result": result})

    async def _fail(self, asked: object, code: int, text: str) -> None:
        await self._output.send({"jsonrpc": "2.0", "id": asked, "error": {"code": code, "message": text}})


def _is_id(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _params(message: Mapping[str, object]) -> Mapping[str, object]:
    params = message.get("params", {})
    return params if isinstance(params, dict) else {}
