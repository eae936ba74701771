"""Which request may come in where: protocol-delivery.md section 9, first table, and the shapes of its paths.  Pure.

A path is judged as it was sent, piece by piece, and a piece is decoded once: an encoded slash is part of an id and
never a border, a literal piece has one spelling, and nothing is folded (no `..`, no double slash, no letter case).
What has no row here is answered with 404 before anybody asks who is calling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final
from urllib.parse import unquote_to_bytes

from attrs import frozen

__all__ = ["ROUTES", "UUID", "Listener", "Match", "Route", "match"]


class Listener(StrEnum):
    """Where a request came in, which decides who can be asking."""

    OPERATOR = "operator"
    """Loopback TCP; the operator's bearer token."""
    FLEET = "fleet"
    """TCP; the link token of one pane."""
    LOCAL = "local"
    """A unix socket; the connecting process is proven to live in its pane."""


UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PRINTABLE: Final = re.compile(rb"[ -~]{1,256}")
_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")

_EVERYWHERE: Final = frozenset(Listener)
_RESTRICTED: Final = frozenset({Listener.FLEET, Listener.LOCAL})
_OPERATOR: Final = frozenset({Listener.OPERATOR})


@frozen
class Route:
    """One row: `{pane}` is a pane id, `{event}` and `{message}` are UUIDs, which a restricted listener insists on."""

    name: str
    method: str
    path: str
    listeners: frozenset[Listener]
    summary: str
    statuses: tuple[int, ...]
    """What it may answer beside what every route may (401, 403, 404, 429, 500, 503)."""
    browser: bool = False
    """A page of the dashboard: a browser's session proves the operator, and failures are told as pages."""

    @property
    def pieces(self) -> tuple[str, ...]:
        """The path between its slashes."""
        return tuple(self.path.split("/"))


@frozen
class Match:
    """A route, and what its path named."""

    route: Route
    parameters: Mapping[str, str]


ROUTES: Final = (
    Route(
        "poll",
        "GET",
        "seats/{pane}/events",
        _EVERYWHERE,
        "Take the pane's next event; waits at most `wait`.",
        (200, 400),
    ),
    Route(
        "acknowledge",
        "POST",
        "seats/{pane}/events/{event}/ack",
        _EVERYWHERE,
        "Exactly this event was written through.",
        (200, 400, 408, 413),
    ),
    Route(
        "hook",
        "POST",
        "seats/{pane}/hook",
        _EVERYWHERE,
        "Decide one hook event, or report what a hook delivered.",
        (200, 400, 408, 409, 413),
    ),
    Route("binding", "GET", "seats/{pane}/messages", _EVERYWHERE, "Which native session speaks for the pane.", (200,)),
    Route(
        "message",
        "POST",
        "seats/{pane}/messages",
        _EVERYWHERE,
        "Accept a message of the pane.",
        (200, 400, 408, 413),
    ),
    Route(
        "receipt",
        "GET",
        "seats/{pane}/messages/{message}",
        _EVERYWHERE,
        "Was exactly this message accepted?  Sends nothing.",
        (200, 400),
    ),
    Route(
        "tools",
        "POST",
        "tools",
        _RESTRICTED,
        "The fleet's tool endpoint, for the pane that is proven; 404 where the bridge offers none.",
        (200, 400, 408, 413),
    ),
    Route("head_poll", "GET", "head/events", _OPERATOR, "Take the head seat's next event.", (200, 400)),
    Route(
        "head_acknowledge",
        "POST",
        "head/events/{event}/ack",
        _OPERATOR,
        "Exactly this event was written through.",
        (200, 400, 408, 413),
    ),
    Route(
        "head_reply",
        "POST",
        "head/events/{event}/reply",
        _OPERATOR,
        "The head seat answers an event.",
        (200, 400, 408, 413),
    ),
    Route(
        "admit",
        "PUT",
        "operator/seats/{pane}",
        _OPERATOR,
        "Make the pane a member, or say which process is in it now; a new member's link token is told once.",
        (200, 400, 408, 413),
    ),
    Route(
        "dismiss",
        "DELETE",
        "operator/seats/{pane}",
        _OPERATOR,
        "End the pane's membership; nothing of it is served any more.",
        (200,),
    ),
    Route("openapi", "GET", "openapi.json", _OPERATOR, "This document.", (200,)),
    Route("operator_status", "GET", "operator/status", _OPERATOR, "The runtime, and every pane in a line.", (200,)),
    Route(
        "operator_pane",
        "GET",
        "operator/panes/{pane}",
        _OPERATOR,
        "One pane: its incarnations, intents, batches and deliveries; 404 where nothing is stored of it.",
        (200, 400, 409),
    ),
    Route(
        "detect",
        "POST",
        "operator/panes/{pane}/transitions",
        _OPERATOR,
        "A base moved; answers which intent carries that.",
        (200, 400, 408, 409, 413),
    ),
    Route(
        "deliver",
        "POST",
        "operator/panes/{pane}/deliveries",
        _OPERATOR,
        "Send the pane a message; answers once it is known how far it got.",
        (200, 400, 408, 409, 413),
    ),
    Route(
        "settle",
        "POST",
        "operator/panes/{pane}/settle",
        _OPERATOR,
        "Give an uncertain delivery up, and free what it fences.",
        (200, 400, 408, 409, 413),
    ),
    Route(
        "resolve",
        "POST",
        "operator/panes/{pane}/resolve",
        _OPERATOR,
        "Record a human's choice for an intent that needs one, and go on with it.",
        (200, 400, 408, 409, 413),
    ),
    Route(
        "rearm",
        "POST",
        "operator/panes/{pane}/rearm",
        _OPERATOR,
        "Grant an exhausted intent a new epoch of startup attempts.",
        (200, 400, 408, 409, 413),
    ),
    Route(
        "discard",
        "POST",
        "operator/panes/{pane}/discard",
        _OPERATOR,
        "Give an exhausted delivery of an intent up.",
        (200, 400, 408, 409, 413),
    ),
    Route(
        "revive",
        "POST",
        "operator/revive",
        _OPERATOR,
        "Let a quarantined actor try again.",
        (200, 400, 408, 409, 413),
    ),
    Route(
        "run_process",
        "PUT",
        "operator/panes/{pane}/process",
        _OPERATOR,
        "Start a harness in the pane, or what ran there.",
        (200, 400, 408, 409, 413),
    ),
    Route("look_at_process", "GET", "operator/panes/{pane}/process", _OPERATOR, "What runs in the pane.", (200,)),
    Route(
        "end_process",
        "DELETE",
        "operator/panes/{pane}/process",
        _OPERATOR,
        "Retire the pane's incarnation and end its process; forget the pane, if so asked.",
        (200, 400, 409),
    ),
    Route("metrics", "GET", "metrics", _OPERATOR, "The bridge's numbers, as Prometheus reads them.", (200,)),
    Route(
        "dashboard_ticket",
        "POST",
        "operator/dashboard-ticket",
        _OPERATOR,
        "Make a ticket that opens the dashboard in a browser, once and within a minute.",
        (200, 400, 408, 413),
    ),
)


def match(listener: Listener, method: str, raw_path: bytes, routes: Iterable[Route] = ROUTES) -> Match | None:
    """The row for a request on this listener, or None: then it is 404, whoever asks."""
    if not raw_path.startswith(b"/"):
        return None
    pieces = raw_path[1:].split(b"/")
    for route in routes:
        if route.method != method or listener not in route.listeners or len(route.pieces) != len(pieces):
            continue
        parameters = _parameters(route.pieces, pieces, strict=listener is not Listener.OPERATOR)
        if parameters is not None:
            return Match(route, parameters)
    return None


def _parameters(pattern: tuple[str, ...], pieces: list[bytes], *, strict: bool) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for wanted, piece in zip(pattern, pieces, strict=True):
        if not wanted.startswith("{"):
            if piece != wanted.encode():
                return None
            continue
        value = None if _BROKEN_ESCAPE.search(piece) else unquote_to_bytes(piece)
        if value is None or _PRINTABLE.fullmatch(value) is None:
            return None
        name, text = wanted[1:-1], value.decode("ascii")
        if name != "pane" and strict and UUID.fullmatch(text) is None:
            return None
        found[name] = text
    return found
