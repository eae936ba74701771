"""`POST operator/dashboard-ticket`: what only the bearer of the operator's token may ask for; see `sessions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.dashboard.sessions import TICKET_SECONDS
from fencepost.supervisor.bridge.handlers import Answered, Call, Handler

__all__ = ["HANDLERS"]


async def dashboard_ticket(call: Call) -> Answered:
    """A new ticket, as the path that spends it on this listener, and how many seconds it waits for that."""
    wire.versioned(call.members)
    call.identity.confirm()
    path = f"dashboard/login?ticket={call.bridge.dashboard.sessions.mint()}"
    return 200, {"version": wire.VERSION, "path": path, "seconds": TICKET_SECONDS}


HANDLERS: Final[Mapping[str, Handler]] = {"dashboard_ticket": dashboard_ticket}
