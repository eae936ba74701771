"""The pages of the dashboard, as rows beside `routes.ROUTES`: all on the operator listener, all for a browser."""

from __future__ import annotations

from typing import Final

from fencepost.supervisor.bridge.routes import Listener, Route

__all__ = ["OPEN_PAGES", "PAGES"]

_OPERATOR: Final = frozenset({Listener.OPERATOR})


def _page(name: str, method: str, path: str, summary: str) -> Route:
    return Route(name, method, path, _OPERATOR, summary, (200, 400), browser=True)


PAGES: Final = (
    _page("login", "GET", "dashboard/login", "Spend a ticket on a session."),
    _page("static", "GET", "dashboard/static/{file}", "The style and the script."),
    _page("fleet", "GET", "dashboard", "All panes at a glance."),
    _page("pane", "GET", "dashboard/panes/{pane}", "One pane."),
    _page("intent", "GET", "dashboard/panes/{pane}/intents/{intent}", "An intent's journey."),
    _page("batch", "GET", "dashboard/panes/{pane}/batches/{batch}", "A tool batch."),
    _page("delivery", "GET", "dashboard/panes/{pane}/deliveries/{delivery}", "A message, to the pane or from it."),
    _page("letters", "GET", "dashboard/dead-letters", "Refused and fenced calls."),
    _page("health", "GET", "dashboard/health", "The store and the runtime."),
    _page("events", "GET", "dashboard/events", "A stream that says when something changed."),
    _page("confirm", "GET", "dashboard/actions/{action}", "What an action claims, before it is done."),
    _page("act", "POST", "dashboard/actions/{action}", "Do it."),
    _page("logout", "POST", "dashboard/logout", "End the session."),
)
OPEN_PAGES: Final = frozenset({"login", "static"})
"""Those that need no session: they tell nothing of the store."""
