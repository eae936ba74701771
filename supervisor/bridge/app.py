"""One listener as an ASGI application: who may ask what, in which order that is checked, and how each failure is told.

Theory of operation
===================

    route ──▶ identity ──▶ pane ──▶ quota ──▶ turn ──▶ body ──▶ identity again ──▶ effect ──▶ answer
     404      401, 403     403      429             408, 413, 400     403

Each step costs what its predecessor has earned: nobody who is unknown has a body read, and no body is parsed for a pane
that may not ask.  An identity lives in the call and nowhere else.

What a request can cause is bounded in time and size, and every bound is the caller's own: his connections, his bodies,
his waiting.  Of what he has under way, one request is at work at a time (`turns`).  Two things hypercorn leaves to the
application are done here.  A body that is refused unread is drained while the answer leaves, since its parts would
otherwise fill the request's queue and the answer wait for itself for ever; and sending has a deadline, since a client
may never read.

The log gets names of routes and statuses, and a caller's words only with everything escaped that is not plain ASCII.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

import trio
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from fencepost.supervisor import Supervisor
from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.adapters import Adapter
from fencepost.supervisor.bridge.adapters.answers import denial
from fencepost.supervisor.bridge.auth import Denied, Identity, identify
from fencepost.supervisor.bridge.dashboard.browser import Visitor, identify_browser
from fencepost.supervisor.bridge.dashboard.live import Stream
from fencepost.supervisor.bridge.dashboard.pages import Visit, serve_page
from fencepost.supervisor.bridge.dashboard.routes import PAGES
from fencepost.supervisor.bridge.escaped import error_told
from fencepost.supervisor.bridge.failures import EndedEarly, told
from fencepost.supervisor.bridge.handler_table import HANDLERS
from fencepost.supervisor.bridge.handlers import Answered, Bridge, Call, Gone, ToolEndpoint
from fencepost.supervisor.bridge.hook import refusal
from fencepost.supervisor.bridge.limits import Limits, Stopping
from fencepost.supervisor.bridge.peers import Process
from fencepost.supervisor.bridge.routes import ROUTES, Listener, Match, match
from fencepost.supervisor.bridge.seats import SeatRegistry
from fencepost.supervisor.bridge.telemetry.logs import about
from fencepost.supervisor.bridge.telemetry.observer import Observer, Request as Seen
from fencepost.supervisor.bridge.turns import Turns

__all__ = ["CONNECTION", "ConnectionState", "ListenerApp", "create_app"]

Asgi: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

CONNECTION: Final = "fencepost.connection"
"""Where in a scope's state the server puts what it knows of the connection."""

OPERATOR: Final = "the operator"
STRANGER: Final = "a browser without a session"

_PARSED_ASIDE: Final = 65_536
"""Bytes from which on a body is parsed in a thread, so that the others need not wait for it."""
_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class ConnectionState(Protocol):
    """What a server knows of the connection that a request came over."""

    @property
    def peer(self) -> Process | None:
        """The process that connected, where the kernel tells."""
        ...

    @property
    def written(self) -> int:
        """Bytes that were written to it so far; a server says of none that it was not."""
        ...

    def claim(self, owner: str) -> bool:
        """The connection is this owner's from now on; False if he has too many."""
        ...


def create_app(
    supervisor: Supervisor,
    listener: Listener,
    *,
    seats: SeatRegistry,
    adapters: Mapping[str, Adapter] | None = None,
    operator_token: str | None = None,
    head_pane: str | None = None,
    tools: ToolEndpoint | None = None,
    limits: Limits | None = None,
    stopping: Stopping | None = None,
    telemetry: Observer | None = None,
) -> Asgi:
    """One listener over an open supervisor, as an ASGI application for trio.

    `adapters` are looked up by the harness name of a hook; without an `operator_token` nobody is the operator; without
    a `head_pane` there is no head seat.  A local listener needs a server that says who connected (`serve` does).
    """
    bridge = Bridge(
        supervisor,
        seats,
        adapters or {},
        operator_token,
        head_pane,
        tools,
        limits=limits or Limits(),
        stopping=stopping or Stopping(),
        telemetry=telemetry or Observer(),
    )
    return ListenerApp(bridge, listener)


class _Json(JSONResponse):
    """JSON in ASCII, which has a spelling for whatever a text may hold, halves of a surrogate pair included."""

    def render(self, content: object) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class ListenerApp:
    """The application of one listener; see `create_app`."""

    def __init__(self, bridge: Bridge, listener: Listener) -> None:
        self._bridge = bridge
        self._listener = listener
        self._under_way: Counter[str] = Counter()
        self._held: Counter[str] = Counter()  # bytes of bodies
        self._turns = Turns(bridge.limits.turn_seconds)
        self._parsing: defaultdict[str, trio.CapacityLimiter] = defaultdict(lambda: trio.CapacityLimiter(1))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            raise NotImplementedError(f"this application serves HTTP, not {scope['type']!a}")
        stopping, request = self._bridge.stopping, _Request(scope, receive, self._bridge.limits)
        seen, cut = self._bridge.telemetry.began(self._listener), stopping.begin()
        response: Response | None = None
        found = match(self._listener, request.method, request.raw_path, (*ROUTES, *PAGES))
        try:
            with cut:
                response = await self._respond(request, found, seen)
            if cut.cancelled_caught:
                stopping_answer = _failed(found, request, 503, "the bridge is stopping")
                response = stopping_answer if request.if_cut is None else _response(request.if_cut)
        except Gone:
            return
        finally:
            stopping.end(cut)
            self._bridge.telemetry.ended(seen, None if response is None else response.status_code)
        if response is not None:
            await request.send(response, send)

    async def _respond(self, request: _Request, found: Match | None, seen: Seen) -> Response:
        if found is None:
            return _failure(404, "not found")
        seen.route, seen.method = found.route.name, found.route.method
        try:
            answered = await self._serve(request, found, seen)
        except Gone:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's alone
            self._bridge.stopping.heard(error)
            seen.error = error_told(error)
            if found.route.browser:
                return _response(self._bridge.dashboard.failure(*told(error)))
            return _failed(found, request, *told(error))
        return _response(answered)

    async def _serve(self, request: _Request, found: Match, seen: Seen) -> Answered:
        connection, identity = request.connection, self._identify(request, found)
        if identity.pane_id is not None and found.parameters.get("pane", identity.pane_id) != identity.pane_id:
            raise Denied(403, "another pane's")
        is_stranger = isinstance(identity, Visitor) and identity.session is None
        owner = STRANGER if is_stranger else identity.pane_id or OPERATOR
        seen.ids = _ids(identity, found)
        if connection is not None and not is_stranger and not connection.claim(owner):
            raise EndedEarly(429, "too many connections")
        if self._under_way[owner] >= self._bridge.limits.pane_connections_max:
            raise EndedEarly(429, "too many requests at once")
        self._under_way[owner] += 1
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if self._held[owner] + size > self._bridge.limits.pane_bytes_max:
                raise EndedEarly(429, "too many bytes at once")
            held += size
            self._held[owner] += size

        try:
            async with self._turns.take(owner):
                with about(**seen.ids):
                    return await self._handle(request, found, identity, hold)
        finally:
            self._under_way[owner] -= 1
            self._held[owner] -= held
            self._under_way += Counter()  # forgets whom nothing is under way of
            self._held += Counter()

    def _identify(self, request: _Request, found: Match) -> Identity:
        if found.route.browser:
            return identify_browser(found.route, request.headers, request.server, self._bridge.dashboard.sessions)
        peer = None if request.connection is None else request.connection.peer
        seats, operator = self._bridge.seats, self._bridge.operator_token
        return identify(self._listener, request.headers, peer, seats=seats, operator=operator)

    async def _handle(
        self, request: _Request, found: Match, identity: Identity, hold: Callable[[int], None]
    ) -> Answered:
        name, members = found.route.name, dict[str, object]()
        if isinstance(identity, Visitor):
            form = await request.body(hold) if found.route.method == "POST" else b""
            board = self._bridge.dashboard
            visit = Visit(self._bridge, board, identity, found.parameters, request.query, form)
            return await serve_page(name, visit)
        if found.route.method in {"POST", "PUT"}:
            body = await request.body(hold)
            try:
                if body or name not in _BODY_IS_OPTIONAL:
                    members = await self._parsed(body, identity.pane_id or OPERATOR)
            except wire.Malformed as error:
                if name == "message":
                    return 400, wire.rejected({}, str(error))
                raise
        call = Call(self._bridge, identity, found.parameters, request.query, members, request.left, request.promise)
        return await HANDLERS[name](call)

    async def _parsed(self, body: bytes, owner: str) -> dict[str, object]:
        """The members of a body.  Long ones of one owner are parsed one by one: threads take turns with all others."""
        if len(body) < _PARSED_ASIDE:
            return wire.parse(body)
        return await trio.to_thread.run_sync(wire.parse, body, limiter=self._parsing[owner])


def _ids(identity: Identity, found: Match) -> dict[str, str]:
    """What a request is about, as its records show it: the proven pane, and the delivery that its path names."""
    path = found.parameters
    ids = {"pane_id": identity.pane_id or path.get("pane"), "delivery_id": path.get("event") or path.get("message")}
    return {name: value for name, value in ids.items() if value is not None}


_BODY_IS_OPTIONAL: Final = {"acknowledge", "head_acknowledge"}


class _Request:
    """One request as it comes in: its head is here, its body is read within bounds."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self.method: str = scope["method"]
        self.raw_path: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
        self.query: bytes = scope["query_string"]
        self.headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self.server: tuple[str, int | None] = scope.get("server") or ("", None)
        self.connection: ConnectionState | None = scope.get("state", {}).get(CONNECTION)
        self._is_read = False
        self.if_cut: Answered | None = None

    def promise(self, answered: Answered) -> None:
        """From now on this is the answer if the request is cut off."""
        self.if_cut = answered

    async def body(self, hold: Callable[[int], None]) -> bytes:
        """The whole body, each part counted by `hold`.  Ends the request with 413 or 408 if it is too large or slow."""
        self._check_announced()
        parts, size = list[bytes](), 0
        with trio.move_on_after(self._limits.body_seconds):
            while True:
                message = await self._next()
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > self._limits.body_bytes_max:
                    raise EndedEarly(413, "the body is too large")
                hold(len(part))
                parts.append(part)
                if not message.get("more_body", False):
                    self._is_read = True
                    return b"".join(parts)
        raise EndedEarly(408, "the body took too long")

    def _check_announced(self) -> None:
        for name, value in self.headers:
            if name != b"content-length":
                continue
            if not value.isdigit():
                raise EndedEarly(400, "the request is malformed")
            if len(value) > 15 or int(value) > self._limits.body_bytes_max:
                raise EndedEarly(413, "the body is too large")

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Gone
        return message

    async def left(self) -> None:
        """Return when the client has left; only for a request whose body was read, or that has none."""
        try:
            while True:
                await self._next()
        except Gone:
            return

    async def _until_left(self, scope: trio.CancelScope) -> None:
        await self.left()
        scope.cancel()

    async def send(self, response: Response, send: Send) -> None:
        """Send the answer within its time, and drain meanwhile what still comes in.

        A stream has no end of its own: it ends when its reader leaves, and each of its parts is sent within that time.
        """
        scope: dict[str, Any] = {"type": "http"}
        if isinstance(response, Stream):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_left, nursery.cancel_scope)
                await response(scope, self._receive, send)
                nursery.cancel_scope.cancel()
            return
        before = 0 if self.connection is None else self.connection.written
        report, response.background = response.background, None
        with trio.move_on_after(self._limits.send_seconds):
            if self._is_read:  # then nothing comes in that would have to be drained
                await response(scope, self._receive, send)
                if report is not None and self._got(len(response.body), before):
                    await report()
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.left)
                await response(scope, self._receive, send)
                nursery.cancel_scope.cancel()

    def _got(self, size: int, before: int) -> bool:
        """Whether an answer of that size went out whole: the server drops what can not be sent, and says nothing."""
        return self.connection is None or self.connection.written - before >= size


def _response(answered: Answered) -> Response:
    if isinstance(answered, Response):
        answered.headers.update(_HEADERS)
        return answered
    status, members = answered
    return _Json(members, status, _HEADERS)


def _failed(found: Match | None, request: _Request, status: int, detail: str) -> Response:
    """The answer of a route that failed.  A harness's own hook takes any status but 200 for leave to run the call.

    What an agent puts into a call may be too long or too deep, and its programs may use all of its pane's connections
    up, so no such failure may be told to a harness by its status.  Who is nobody is told so: nothing is decided there.
    """
    is_harness = found is not None and found.route.name == "hook" and b"harness" in request.query
    if not is_harness or status in {401, 403}:
        return _failure(status, detail)
    headers = {**_HEADERS, "connection": "close"}
    return Response(denial(refusal(status)), 200, headers, "application/json")


def _failure(status: int, detail: str) -> JSONResponse:
    headers = dict(_HEADERS)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in {401, 403, 408, 413, 429, 503}:
        headers["connection"] = "close"
    return _Json({"version": wire.VERSION, "error": detail}, status, headers)
