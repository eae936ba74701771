"""What all pages share: where the store is, who is logged in, and how a template becomes an answer.

Templates escape everything; what a page adds to that is here: times, sizes and ids as they are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote

import trio
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from fencepost.mailbox.stores.store import StoreReader
from fencepost.supervisor import Supervisor
from fencepost.supervisor.bridge.dashboard import words
from fencepost.supervisor.bridge.dashboard.sessions import Sessions
from fencepost.supervisor.overview import Standing

__all__ = ["Dashboard", "Streams"]

T = TypeVar("T")

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # `no-referrer` would make browsers send `Origin: null` with a form.
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
}
_STANDINGS: Final = tuple(reversed(Standing))
"""Those first that need somebody."""
_READERS_MAX: Final = 2
STREAMS_MAX: Final = 16
"""How many streams are open at once, over all sessions; each is a connection, and a page works without one."""


class Streams:
    """How many streams are open."""

    def __init__(self) -> None:
        self.open = 0

    @property
    def full(self) -> bool:
        """Whether there are as many as there may be."""
        return self.open >= STREAMS_MAX

    @contextmanager
    def one(self) -> Generator[None]:
        """Count one for as long as this is entered."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


class Dashboard:
    """The dashboard of one bridge.

    `store_url` is for the sizes of its files, which are not told without it; `now` tells nanoseconds of the day.
    """

    def __init__(
        self, store_url: str | None = None, *, sessions: Sessions | None = None, now: Callable[[], int] = time.time_ns
    ) -> None:
        self.store_url = store_url
        self.sessions = sessions or Sessions()
        self.streams = Streams()
        self.now = now
        self._readers = trio.CapacityLimiter(_READERS_MAX)
        self._templates = Environment(
            loader=PackageLoader("fencepost.supervisor.bridge.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(moment=self._moment, ago=self._ago, size=_size, piece=_piece, brief=_brief)

    async def look(self, supervisor: Supervisor, see: Callable[[StoreReader], T]) -> T:
        """Let `see` look at one moment of the store, in a thread.  Raises `StoreFault` and what it raises."""

        def look() -> T:
            with supervisor.reader() as reader, reader.snapshot():
                return see(reader)

        return await trio.to_thread.run_sync(look, limiter=self._readers)

    def page(self, template: str, status: int = 200, **context: Any) -> HTMLResponse:  # noqa: ANN401 - a template's
        """A page made from a template, with the headers that keep it to itself."""
        given = {"refresh": None, "live": False, "session": None, "at": self.now(), "words": words}
        shown = self._templates.get_template(template).render({**given, "standings": _STANDINGS, **context})
        return HTMLResponse(shown.encode("utf-8", "replace"), status, _HEADERS)

    def failure(self, status: int, detail: str) -> HTMLResponse:
        """The page of a request that failed; `detail` are words of ours."""
        return self.page("failure.html", status, code=status, detail=detail)

    # -- times ---------------------------------------------------------------------------------------------------------

    def _moment(self, at: object) -> Markup:
        """A time as this machine shows it, with the date unless that is today; in full where it is pointed at."""
        then = _local(at)
        if then is None:
            return Markup('<span class="none">no time</span>')
        today = _local(self.now())
        short = f"{then:%H:%M:%S}" if today is not None and then.date() == today.date() else f"{then:%d %b %Y %H:%M}"
        stamp = then.astimezone(UTC).isoformat(timespec="milliseconds")
        return Markup('<time datetime="{}" title="{}">{}</time>').format(stamp, stamp, short)

    def _ago(self, at: object) -> str:
        """How long ago, roughly."""
        if not isinstance(at, int):
            return ""
        seconds = max(0, self.now() - at) // 1_000_000_000
        for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
            if seconds >= length:
                return f"{seconds // length} {unit} ago"
        return "just now" if seconds < 5 else f"{seconds} s ago"


def _local(at: object) -> datetime | None:
    if not isinstance(at, int):
        return None
    try:
        return datetime.fromtimestamp(at / 1e9, UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return None


def _size(count: object) -> str:
    if not isinstance(count, int):
        return "?"
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 1024**2 else f"{count / 1024**2:.1f} MiB"


def _piece(text: object) -> str:
    """An id as one piece of a path."""
    return quote(str(text), safe="")


def _brief(text: object, longest: int = 18) -> str:
    """The beginning of an id or a text; the whole of it belongs beside it, where it can be pointed at."""
    shown = str(text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
