"""Tickets and sessions: how a browser, which has no bearer token, becomes the operator of the dashboard.

    bearer token ──mint──▶ ticket ──spend, once, within a minute──▶ session ──▶ cookie, form token

Both are random, kept in memory as their hashes, bounded in number and in time; a bridge that ends forgets them all.
A session proves nothing outside the dashboard's own routes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

from attrs import define, field

__all__ = ["SESSION_SECONDS", "TICKET_SECONDS", "Session", "Sessions"]

TICKET_SECONDS: Final = 60
"""How long a ticket waits for being spent."""
SESSION_SECONDS: Final = 12 * 3600
"""How long a session lasts, used or not."""
_TICKETS_MAX: Final = 8
_SESSIONS_MAX: Final = 16


@define(eq=False)
class Session:
    """One browser that is logged in."""

    form_token: str = field(repr=False)
    """What a form must carry: other sites can make a browser send its cookie, but cannot know this."""
    ends_at: float

    def owns_form(self, token: str) -> bool:
        """Whether a form with this token was made for this session."""
        return hmac.compare_digest(self.form_token.encode(), token.encode("utf-8", "surrogateescape"))


class Sessions:
    """All of one bridge; `now` tells seconds that only go forward."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._tickets: dict[str, float] = {}  # hash of a ticket, when it ends; oldest first
        self._sessions: dict[str, Session] = {}  # by the hash of the cookie; oldest first

    def mint(self) -> str:
        """Make a ticket; one more than there may be ends the oldest."""
        self._forget()
        while len(self._tickets) >= _TICKETS_MAX:
            del self._tickets[next(iter(self._tickets))]
        ticket = secrets.token_urlsafe(32)
        self._tickets[_hash(ticket)] = self._now() + TICKET_SECONDS
        return ticket

    def spend(self, ticket: str) -> str | None:
        """Open a session and return its cookie; None for a ticket that is unknown, was spent or is too old."""
        self._forget()
        if self._tickets.pop(_hash(ticket), None) is None:
            return None
        while len(self._sessions) >= _SESSIONS_MAX:
            self._end(next(iter(self._sessions)))
        cookie = secrets.token_urlsafe(32)
        self._sessions[_hash(cookie)] = Session(secrets.token_urlsafe(32), self._now() + SESSION_SECONDS)
        return cookie

    def of(self, cookie: str) -> Session | None:
        """The session that this cookie opens, if it still lasts."""
        self._forget()
        return self._sessions.get(_hash(cookie))

    def holds(self, session: Session) -> bool:
        """Whether it still lasts."""
        self._forget()
        return session in self._sessions.values()

    def end(self, session: Session) -> None:
        """Log this browser out."""
        for key, one in list(self._sessions.items()):
            if one is session:
                self._end(key)

    def _end(self, key: str) -> None:
        del self._sessions[key]

    def _forget(self) -> None:
        """Drop what is too old: everything lasts equally long, so the oldest stand first."""
        now = self._now()
        while self._tickets and next(iter(self._tickets.values())) <= now:
            del self._tickets[next(iter(self._tickets))]
        while self._sessions and next(iter(self._sessions.values())).ends_at <= now:
            self._end(next(iter(self._sessions)))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
