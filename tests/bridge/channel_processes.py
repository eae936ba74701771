"""Channel programs in processes of their own, a harness that talks to one, and a proxy between it and the bridge."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import termios
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from fencepost.supervisor.bridge.channel import mcp_config

PATIENCE_SECONDS = 60


class Channel:
    """One channel process, with its harness's end of both pipes."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.notifications: list[dict[str, Any]] = []
        self._held = b""
        self._ids = 0

    # -- what comes out --

    async def message(self) -> dict[str, Any]:
        """The next line, which must be a message."""
        with trio.fail_after(PATIENCE_SECONDS):
            while b"\n" not in self._held:
                self._held += await self.some() or self._ended()
        line, _, self._held = self._held.partition(b"\n")
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    async def some(self, size: int = 65_536) -> bytes:
        return await self.process.stdout.receive_some(size)

    def _ended(self) -> bytes:
        raise AssertionError("it ended")

    async def notification(self) -> dict[str, Any]:
        """The next event's parameters."""
        if not self.notifications:
            message = await self.message()
            assert message["method"] == "notifications/claude/channel", message
            self.notifications.append(message["params"])
        return self.notifications.pop(0)

    def waiting_bytes(self) -> int:
        """How much is in its pipe, unread."""
        counted = bytearray(4)
        fcntl.ioctl(self.process.stdout.fileno(), termios.FIONREAD, counted)
        return int.from_bytes(counted, "little")

    # -- what goes in --

    async def write(self, data: bytes) -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            await self.process.stdin.send_all(data)

    async def ask(self, method: str, **params: object) -> dict[str, Any]:
        """Its whole answer; events that come before it are kept."""
        self._ids += 1
        asked = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        await self.write(json.dumps(asked).encode() + b"\n")
        while True:
            message = await self.message()
            if message.get("id") == self._ids:
                return message
            self.notifications.append(message["params"])

    async def call(self, tool: str, **arguments: object) -> dict[str, Any]:
        return (await self.ask("tools/call", name=tool, arguments=arguments))["result"]

    async def stage(self, tool: str, **arguments: object) -> object:
        """What a tool says of a message, in one word."""
        said = (await self.call(tool, **arguments))["structuredContent"]
        return said["stage"] if tool == "send_message" else said["message"] and said["message"]["stage"]

    async def events(self) -> str:
        """What it says of the events that come to the pane."""
        return (await self.call("delivery_status"))["structuredContent"]["events"]["state"]

    async def greet(self) -> Channel:
        """The handshake; events may come from now on."""
        client = {"name": "a harness", "version": "1"}
        said = await self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        assert said["result"]["capabilities"] == {"tools": {}, "experimental": {"claude/channel": {}}}
        await self.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return self

    # -- how it ends --

    async def ended(self) -> tuple[int, bytes, str]:
        """Close its input; its status, what is left of its output, and its complaints."""
        await self.process.stdin.aclose()
        return await self.gone()

    async def gone(self) -> tuple[int, bytes, str]:
        """Wait for its end."""
        rest, errors = bytearray(), bytearray()
        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_drain, self.process.stdout, rest)
                nursery.start_soon(_drain, self.process.stderr, errors)
                await self.process.wait()
        return self.process.returncode, self._held + bytes(rest), errors.decode()


async def _drain(stream: trio.abc.ReceiveStream, into: bytearray) -> None:
    try:
        async for part in stream:
            into += part
    except trio.ClosedResourceError:
        return  # the test has closed it


@asynccontextmanager
async def channel(environment: Mapping[str, str], *, pushes: bool = True, cwd: Path = Path("/")):
    """The program that the generated configuration names, started as a harness would; killed at the end."""
    server: Any = mcp_config(pushes=pushes)["mcpServers"]
    command = [server["fencepost"]["command"], *server["fencepost"]["args"]]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FENCEPOST"))}
    pipe = subprocess.PIPE
    options: Any = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "cwd": cwd}
    process = await trio.lowlevel.open_process(command, env={**plain, **environment}, **options)
    try:
        yield Channel(process)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                await stream.aclose()


class Proxy:
    """Stands between channels and the bridge's local socket, and does as told with each acknowledgement or post."""

    def __init__(self, path: Path, bridge: str) -> None:
        self.path = path
        self.bridge = bridge
        self.asked: list[str] = []
        """The request lines, as they came."""
        self.arrived: Callable[[str], None] = self.asked.append
        self.lose_request: Callable[[str], bool] = lambda _: False
        """Requests that never arrive."""
        self.lose_answer: Callable[[str], bool] = lambda _: False
        """Requests that arrive, and whose answer does not."""
        self.hold: Callable[[str], bool] = lambda _: False
        """Requests that are kept, without an answer, until their sender is gone."""

    def count(self, part: str) -> int:
        return sum(part in line for line in self.asked)

    async def serve(self, task_status=trio.TASK_STATUS_IGNORED) -> None:
        with trio.socket.socket(trio.socket.AF_UNIX) as listening:
            await listening.bind(str(self.path))
            listening.listen()
            task_status.started()
            await trio.serve_listeners(self._carry, [trio.SocketListener(listening)])

    async def _carry(self, stream: trio.SocketStream) -> None:
        async with stream:
            request = b""
            while not _is_whole(request):
                part = await stream.receive_some()
                if not part:
                    return
                request += part
            line = request.partition(b"\r\n")[0].decode()
            self.arrived(line)
            if self.lose_request(line):
                return
            if self.hold(line):
                await _until_left(stream)
                return
            await self._forward(stream, request, lost=self.lose_answer(line))

    async def _forward(self, stream: trio.SocketStream, request: bytes, *, lost: bool) -> None:
        async with await trio.open_unix_socket(self.bridge) as further, trio.open_nursery() as nursery:
            nursery.start_soon(_leave_together, stream, nursery.cancel_scope)
            await further.send_all(request)
            async for part in further:
                if not lost:
                    await stream.send_all(part)
            nursery.cancel_scope.cancel()


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return bool(end) and len(body) >= sum(map(int, lengths))


async def _until_left(stream: trio.SocketStream) -> None:
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        return


async def _leave_together(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    await _until_left(stream)
    scope.cancel()


@asynccontextmanager
async def proxied(there, where):
    """A proxy before the local socket; what it asks for is asked by this process, which is the pane."""
    proxy = Proxy(Path(where.local).with_name("proxy.sock"), where.local)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        yield proxy
        nursery.cancel_scope.cancel()


def is_ack(line: str) -> bool:
    return "/ack " in line
