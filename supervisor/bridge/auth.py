"""Who is asking: a request's identity, proven for this request alone (protocol-delivery.md section 9, second table).

    operator listener   the operator's bearer token; it speaks for every pane and for the head
    fleet listener      a pane's link token; it speaks for that pane
    local listener      the process that connected, which lives in a pane; it speaks for that pane.  A token proves
                        nothing here, not even the operator's

An identity can be asked whether it still holds, and the handler does so right before it acts: a membership may end
between the admission of a request and its effect.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from attrs import field, frozen

from fencepost.supervisor.bridge.peers import Process
from fencepost.supervisor.bridge.private_files import Unsafe, create_private, read_private
from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.seats import Member, SeatRegistry

__all__ = [
    "Denied",
    "Identity",
    "identify",
    "operator_token",
    "read_operator_token",
]

Headers = Iterable[tuple[bytes, bytes]]


class Denied(Exception):  # noqa: N818 - the answer, not an error of ours
    """Nobody, or the wrong one, is asking; `status` is 401 or 403."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@frozen
class Identity:
    """Who asks; `member` is None for the operator."""

    member: Member | None
    _holds: Callable[[], bool] = field(repr=False)

    @property
    def pane_id(self) -> str | None:
        """The one pane it speaks for, or None: any."""
        return None if self.member is None else self.member.pane_id

    def confirm(self) -> None:
        """Prove it again.  Raises `Denied`."""
        if not self._holds():
            raise Denied(403, "the membership has ended")


def identify(
    listener: Listener, headers: Headers, peer: Process | None, *, seats: SeatRegistry, operator: str | None
) -> Identity:
    """The identity of a request.  Raises `Denied`: 401 where no good token is shown, 403 where no pane is proven."""
    if listener is Listener.LOCAL:
        return _living_in_a_pane(peer, seats)
    token = _bearer(headers)
    if listener is Listener.OPERATOR:
        if operator is None or not hmac.compare_digest(token.encode(), operator.encode()):
            raise Denied(401, "a bearer token is required")
        return Identity(None, lambda: True)
    member = seats.by_link(token)
    if member is None:
        raise Denied(401, "a link token is required")
    return Identity(member, lambda: seats.by_link(token) is member)


def _living_in_a_pane(peer: Process | None, seats: SeatRegistry) -> Identity:
    member = None if peer is None else seats.by_process(peer)
    if peer is None or member is None:
        raise Denied(403, "the connecting process lives in no pane of this fleet")
    return Identity(member, lambda: seats.by_process(peer) is member)


def _bearer(headers: Headers) -> str:
    """The one bearer token that is presented; two headers are none."""
    found = [value for name, value in headers if name.lower() == b"authorization"]
    scheme, _, token = found[0].decode("latin-1").partition(" ") if len(found) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.isascii():
        raise Denied(401, "a bearer token is required")
    return token.strip(" ")


# -- the operator's token ----------------------------------------------------------------------------------------------


def operator_token(path: Path) -> str:
    """The operator's token: read from its file, or made with it the first time.  Raises `Unsafe` or OSError."""
    if not os.path.lexists(path):
        create_private(path, f"{secrets.token_urlsafe(32)}\n".encode())
    return read_operator_token(path)


def read_operator_token(path: Path) -> str:
    """The token that its file holds.  Raises `Unsafe`, or OSError where there is none."""
    token = read_private(path, 1024).strip().decode("ascii", "replace")
    if len(token) < 32 or not token.isascii() or not token.isprintable():
        raise Unsafe(f"{path} holds no token; delete it, and a new one is made")
    return token
