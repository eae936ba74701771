"""The bridge's three listeners on real sockets, from their binding to their bounded end.

How it ends, once `Stopping.asked` is set (by a signal, or because the store failed):

    at once            no connection is taken; polls answer, with an empty page; idle connections are closed
    `grace_seconds`    what is under way goes on and is answered
    then               what is still under way is cut and told so (503); a second later the connections are closed
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import trio
from attrs import frozen

from fencepost.supervisor.bridge.app import ListenerApp
from fencepost.supervisor.bridge.connections import Connections
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.private_files import private_folder, replace_private
from fencepost.supervisor.bridge.routes import Listener

__all__ = ["Addresses", "CannotListen", "Endpoints", "serve"]

_BACKLOG: Final = 4096
"""Connections that the kernel holds until they are taken, if it holds as many; one too many tries again in a second."""
_LAST_WORDS_SECONDS: Final = 1.0


class CannotListen(OSError):  # noqa: N818 - as the errors of the mailbox
    """A listener cannot be opened; the message says which, and why."""


@frozen
class Addresses:
    """Where to listen: two TCP addresses, whose port may be 0 (any), and the path of a socket in a private folder."""

    operator: tuple[str, int]
    fleet: tuple[str, int]
    local: Path


@frozen
class Endpoints:
    """Where it listens now."""

    operator: str
    fleet: str
    local: str

    def write(self, path: Path, store: str | None = None) -> None:
        """Leave them where clients look after a restart, as one JSON object; `store`: the URL of what is served."""
        members = {"version": 1, "operator": self.operator, "fleet": self.fleet, "local": self.local}
        replace_private(path, json.dumps(members if store is None else {**members, "store": store}))


async def serve(
    bridge: Bridge,
    addresses: Addresses,
    *,
    grace_seconds: float = 5.0,
    started: Callable[[Endpoints], None] = lambda _: None,
) -> None:
    """Serve until `bridge.stopping.asked` is set, and then end within about `grace_seconds`.

    `started` is told where, once every listener takes connections.  `bridge.stopping.was_cut` says afterwards whether
    somebody went without the answer he was owed.  Raises `CannotListen`, and then nothing was served; ValueError for
    an operator address that is not loopback.
    """
    with contextlib.ExitStack() as stack:
        sockets = {
            Listener.OPERATOR: stack.enter_context(_tcp(Listener.OPERATOR, *_loopback(addresses.operator))),
            Listener.FLEET: stack.enter_context(_tcp(Listener.FLEET, *addresses.fleet)),
            Listener.LOCAL: stack.enter_context(_unix(addresses.local)),
        }
        endpoints = Endpoints(_url(sockets[Listener.OPERATOR]), _url(sockets[Listener.FLEET]), str(addresses.local))
        stack.callback(_remove_socket, addresses.local, os.lstat(addresses.local))
        await _serve(bridge, sockets, grace_seconds, lambda: started(endpoints))


async def _serve(
    bridge: Bridge,
    sockets: dict[Listener, socket.socket],
    grace_seconds: float,
    started: Callable[[], None],
) -> None:
    groups = {one: Connections(one, ListenerApp(bridge, one), bridge.limits, bridge.seats) for one in sockets}
    async with trio.open_nursery() as open_connections:
        async with trio.open_nursery() as accepting:
            for listener, one in sockets.items():
                accepting.start_soon(_accept, one, groups[listener], open_connections)
            started()
            await bridge.stopping.asked.wait()
            accepting.cancel_scope.cancel()
        with trio.move_on_after(grace_seconds) as grace:
            await _drain(groups.values())
        if grace.cancelled_caught:
            bridge.stopping.cut()
            with trio.move_on_after(_LAST_WORDS_SECONDS):
                await _drain(groups.values())
        open_connections.cancel_scope.cancel()
        for group in groups.values():
            await group.abort()


async def _accept(listening: socket.socket, group: Connections, open_connections: trio.Nursery) -> None:
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    await trio.serve_listeners(group.serve, [listener], handler_nursery=open_connections)


async def _drain(groups: Iterable[Connections]) -> None:
    async with trio.open_nursery() as nursery:
        for group in groups:
            nursery.start_soon(group.drain)


# -- sockets -----------------------------------------------------------------------------------------------------------


def _loopback(address: tuple[str, int]) -> tuple[str, int]:
    """The operator's token can do anything, so it never crosses a network in clear."""
    host, port = address
    try:
        if ipaddress.ip_address(host).is_loopback:
            return host, port
    except ValueError:
        pass
    raise ValueError(f"the operator listener must be on a loopback address, not {host!a}")


def _tcp(listener: Listener, host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
    except (ValueError, OSError) as error:
        raise CannotListen(f"{listener} listener: {host!a} is no address to listen on: {error}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        raise CannotListen(f"{listener} listener on {host}:{port}: {error}") from error
    listening.setblocking(False)
    return listening


def _unix(path: Path) -> socket.socket:
    """A socket nobody else can reach, in place of one that an earlier life left behind."""
    private_folder(path.parent)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise CannotListen(f"local listener: {path} is there, and is no socket")
            path.unlink()  # the store is owned, so its last owner is dead
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        if isinstance(error, CannotListen):
            raise
        raise CannotListen(f"local listener on {path}: {error}") from error
    listening.setblocking(False)
    return listening


def _remove_socket(path: Path, ours: os.stat_result) -> None:
    """Take our socket's name away, unless somebody has put another there."""
    with contextlib.suppress(OSError):
        if os.path.samestat(path.lstat(), ours):
            path.unlink()


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
