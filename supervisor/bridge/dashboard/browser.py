"""Who is asking, when it is a browser.

A browser sends its cookie wherever it is sent itself, by whatever page, so a cookie alone proves little:

    Host       the listener's own address, or somebody's name points here (DNS rebinding)
    cookie     a session that lasts
    Origin     on a POST, this very listener; a page of somebody else's can send a form here
    form token on a POST, the session's own; see `deciding`

The cookie's name has the listener's port in it: a browser keeps cookies by host alone, and two bridges share theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import frozen

from fencepost.supervisor.bridge.auth import Denied, Identity
from fencepost.supervisor.bridge.dashboard.routes import OPEN_PAGES
from fencepost.supervisor.bridge.dashboard.sessions import Session, Sessions
from fencepost.supervisor.bridge.routes import Route

__all__ = ["Visitor", "cookie_name", "identify_browser"]

_COOKIES_MAX: Final = 4096


@frozen
class Visitor(Identity):
    """A browser; one without a session sees the open pages only."""

    session: Session | None = None
    address: str = ""
    """Where it asks: the listener's own `host:port`."""


def identify_browser(
    route: Route, headers: Iterable[tuple[bytes, bytes]], server: tuple[str, int | None], sessions: Sessions
) -> Visitor:
    """The browser behind a request.  Raises `Denied`: 403 for a wrong Host or Origin, 401 where no session lasts.

    `server` is where the listener took the connection, as ASGI tells it.
    """
    found, address = list(headers), _address(server)
    if _one(found, b"host") != address:
        raise Denied(403, "the Host header names another server")
    if route.method == "POST" and not _from_here(found, address):
        raise Denied(403, "the form was sent by another site")
    if route.name in OPEN_PAGES:
        return Visitor(None, lambda: True, None, address)
    session = _session(found, cookie_name(address), sessions)
    if session is None:
        raise Denied(401, "there is no session")
    return Visitor(None, lambda: sessions.holds(session), session, address)


def cookie_name(address: str) -> str:
    """The name of the session's cookie on the listener at `host:port`."""
    return f"fencepost-dashboard-{address.rpartition(':')[2]}"


def _address(server: tuple[str, int | None]) -> str:
    host, port = server
    shown = f"[{host}]" if ":" in host else host
    return shown if port in {None, 80} else f"{shown}:{port}"


def _one(headers: list[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The one header of that name; two are none."""
    values = [value for key, value in headers if key.lower() == name]
    return values[0].decode("latin-1") if len(values) == 1 else None


def _from_here(headers: list[tuple[bytes, bytes]], address: str) -> bool:
    """Whether a browser says that a page of this listener sent this; a browser that says nothing says no."""
    return _one(headers, b"origin") == f"http://{address}" and _one(headers, b"sec-fetch-site") in {None, "same-origin"}


def _session(headers: list[tuple[bytes, bytes]], name: str, sessions: Sessions) -> Session | None:
    sent = _one(headers, b"cookie") or ""
    for part in sent[:_COOKIES_MAX].split(";"):
        key, _, value = part.strip().partition("=")
        if key == name and (session := sessions.of(value)) is not None:
            return session
    return None
