"""How a failure is told: one table for every route.  What came in is never repeated.

The operator's own routes have the same statuses and tell the error's own words (`operator_handlers.in_words`).  A
message is answered with a receipt that says that nobody knows, where this table says 503 (`handlers.message`).
"""

from __future__ import annotations

from typing import Final

from fencepost.supervisor import (
    ActorCrashed,
    ActorQuarantined,
    FencepostError,
    MailboxClosed,
    MailboxFull,
    StoreFault,
)
from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.auth import Denied

__all__ = ["NOT_NOW", "EndedEarly", "NotFound", "told"]

NOT_NOW: Final = (StoreFault, MailboxClosed, MailboxFull, ActorCrashed, ActorQuarantined)
"""The service cannot answer now, and whether what was asked of it comes about nobody knows."""


class NotFound(LookupError):  # noqa: N818 - the answer 404
    """There is nothing of that name here."""


class EndedEarly(Exception):  # noqa: N818 - the answer, not an error of ours
    """The request is over before its route was asked: `status` and `detail` say why."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def told(error: Exception) -> tuple[int, str]:
    """The status and the fixed words for what went wrong."""
    match error:
        case Denied() | EndedEarly():
            return error.status, error.detail
        case NotFound():
            return 404, str(error)
        case wire.Malformed():
            return 400, str(error)
        case _ if isinstance(error, NOT_NOW):
            return 503, "the service cannot answer now"
        case UnicodeDecodeError():
            return 500, "the bridge failed"
        case ValueError():  # InvalidIdentifier and PayloadTooLarge are some
            return 400, "the request is malformed"
        case FencepostError():
            return 409, "the protocol has no such step"
        case _:
            return 500, "the bridge failed"
