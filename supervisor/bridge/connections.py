"""The connections of one listener: who holds how many, each with its bounds, served by hypercorn's trio worker.

A connection belongs to nobody until a request over it has proven an identity, or until the kernel has told that a
member's process made it; from then on it counts against its owner.  Those that belong to nobody are few, and the newest
are served: whoever connects and says nothing is put out by the next one, so that no number of silent connections keeps
a pane from asking.

HTTP/1.1 only.  An upgrade to a websocket or to HTTP/2 is not taken up; the request is served as what it is.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from typing import Any, Final, cast

import h11
import trio
from attrs import define, field
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from hypercorn.utils import parse_socket_addr

from fencepost.supervisor.bridge.app import CONNECTION, Asgi
from fencepost.supervisor.bridge.escaped import error_told
from fencepost.supervisor.bridge.limits import Limits
from fencepost.supervisor.bridge.peers import Process, peer_of
from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.seats import SeatRegistry

__all__ = ["Connections"]

log: Final = logging.getLogger("fencepost.bridge")


@define(eq=False)
class _Connection:
    """One of them, as the application sees it."""

    stream: trio.SocketStream
    peer: Process | None
    connections: Connections
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    is_silent: bool = True
    """Nothing has come over it yet."""
    owner: str | None = None
    written: int = 0

    def claim(self, owner: str) -> bool:
        """See `app.ConnectionState`; behind a proxy it may be one owner's after the other's."""
        return self.connections.claimed(self, owner)


class Connections:
    """All connections of one listener."""

    def __init__(self, listener: Listener, app: Asgi, limits: Limits, seats: SeatRegistry) -> None:
        self._listener = listener
        self._seats = seats
        self._limits = limits
        self._app = ASGIWrapper(cast("Any", app))  # two spellings of one ASGI
        self._config = _config(limits)
        self._context = WorkerContext(None)
        self._strangers: dict[_Connection, None] = {}  # oldest first
        self._owned: Counter[str] = Counter()
        self._open: set[_Connection] = set()
        self._idle = trio.Event()
        self._idle.set()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end.  Whatever goes wrong in it ends with it."""
        # At once, while whoever connected is still there: a process that is gone proves nothing.
        peer = peer_of(stream.socket) if self._listener is Listener.LOCAL else None
        if len(self._open) >= self._limits.connections_max:
            await trio.aclose_forcefully(stream)
            return
        connection = _Connection(stream, peer, self)
        member = None if peer is None else self._seats.by_process(peer)
        self._enter(connection, stranger=member is None)
        try:
            if member is not None and not connection.claim(member.pane_id):
                return
            with connection.scope:
                if not await self._speaks(connection):
                    return
                state = LifespanState({CONNECTION: connection})
                bounded: Any = _BoundedStream(connection, self._limits.send_seconds)
                await _Http11(self._app, self._config, self._context, state, bounded)
        except Exception as error:  # noqa: BLE001 - one connection's trouble is no other's
            log.warning("%s: a connection failed: %s", self._listener, error_told(error))
        finally:
            self._leave(connection)
            await trio.aclose_forcefully(stream)

    async def _speaks(self, connection: _Connection) -> bool:
        """Whether anything comes over it in time.  Only then is it given what serving it takes, which is much more."""
        with trio.move_on_after(self._limits.head_seconds):
            await trio.lowlevel.wait_readable(connection.stream.socket)
            connection.is_silent = False
            return bool(await connection.stream.socket.recv(1, socket.MSG_PEEK))
        return False

    def claimed(self, connection: _Connection, owner: str) -> bool:
        """Count the connection against its owner; False if he has too many."""
        if connection.owner == owner:
            return True
        if self._owned[owner] >= self._limits.pane_connections_max:
            return False
        self._disown(connection)
        connection.owner = owner
        self._owned[owner] += 1
        return True

    def _enter(self, connection: _Connection, *, stranger: bool) -> None:
        if not self._open:
            self._idle = trio.Event()
        self._open.add(connection)
        if not stranger:
            return
        if len(self._strangers) >= self._limits.strangers_max:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.scope.cancel()
        self._strangers[connection] = None

    def _disown(self, connection: _Connection) -> None:
        self._strangers.pop(connection, None)
        if connection.owner is not None:
            self._owned[connection.owner] -= 1
            self._owned += Counter()  # forgets those who have none
        connection.owner = None

    def _leave(self, connection: _Connection) -> None:
        self._disown(connection)
        self._open.discard(connection)
        if not self._open:
            self._idle.set()

    async def drain(self) -> None:
        """End each connection once nothing is under way on it, and return when all have ended."""
        await self._context.terminated.set()
        for connection in self._open:
            if connection.is_silent:
                connection.scope.cancel()
        await self._idle.wait()

    async def abort(self) -> None:
        """End all that are left, also one whose client does not read what is sent to it."""
        for connection in list(self._open):
            await trio.aclose_forcefully(connection.stream)


def _config(limits: Limits) -> Config:
    config = Config()
    config.keep_alive_timeout = limits.head_seconds
    config.h11_max_incomplete_size = limits.head_bytes_max
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = None  # the application logs, escaped
    return config


class _BoundedStream:
    """A socket stream whose sending has a deadline: hypercorn sends shielded, and a client may never read."""

    def __init__(self, connection: _Connection, send_seconds: float) -> None:
        self._connection = connection
        self._stream = stream = connection.stream
        self._send_seconds = send_seconds
        self.socket = stream.socket
        self.receive_some = stream.receive_some
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose

    async def send_all(self, data: bytes) -> None:
        with trio.move_on_after(self._send_seconds):
            await self._stream.send_all(data)
            self._connection.written += len(data)
            return
        await trio.aclose_forcefully(self._stream)
        raise trio.BrokenResourceError("the client does not read")


class _Protocol(H11Protocol):
    """HTTP/1.1 as hypercorn speaks it, without its ways out of it."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Not taken up: HTTP/2 has streams and windows, and so ways to wait, that nothing here bounds."""

    async def _create_stream(self, request: h11.Request) -> None:
        headers = [(name, value) for name, value in request.headers if name != b"upgrade"]
        plain = h11.Request(
            method=request.method, target=request.target, headers=headers, http_version=request.http_version
        )
        await super()._create_stream(plain)

    async def _send_error_response(self, status_code: int) -> None:
        """Whatever a client sends is the client's doing: an unknown Transfer-Encoding would be 501."""
        await super()._send_error_response(status_code if status_code < 500 else 400)


class _Http11(TCPServer):
    """One connection; as its base, with the one protocol above."""

    _has_ended = False

    async def protocol_send(self, event: Event) -> None:
        """As the base does, but what has ended is not idle any more."""
        if not (self._has_ended and isinstance(event, Updated)):
            await super().protocol_send(event)

    async def run(self) -> None:
        stream: Any = self.stream  # which the base takes for one of TLS
        ends = stream.socket
        try:
            async with TaskGroup() as task_group:
                self._task_group = task_group
                protocol: Any = _Protocol(  # which the base wraps, to leave it for HTTP/2
                    self.app,
                    self.config,
                    self.context,
                    task_group,
                    ConnectionState(self.state),
                    False,
                    parse_socket_addr(ends.family, ends.getpeername()),
                    parse_socket_addr(ends.family, ends.getsockname()),
                    self.protocol_send,
                )
                self.protocol = protocol
                await self.protocol.initiate()
                await self.idle_task.restart(task_group, self._idle_timeout)
                await self._read_data()
                self._has_ended = True
                await self.idle_task.stop()  # or the connection would count until its keep-alive is over
        except OSError:
            return
        finally:
            await self._close()
