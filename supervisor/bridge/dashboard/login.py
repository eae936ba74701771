"""Asking the bridge that serves from a folder for a link that opens its dashboard."""

from __future__ import annotations

from fencepost.supervisor.bridge.client import NoAnswer, Operator

__all__ = ["login_link"]


def login_link(operator: Operator) -> tuple[str, int]:
    """A link that opens the dashboard in a browser of this machine, once, and for how many seconds it waits for that.

    Blocks.  Raises `client.ClientError` where no bridge serves from the operator's folder, the folder is not private,
    or the answer is no ticket.
    """
    answer = operator.request("POST", "operator/dashboard-ticket", {})
    path, seconds = answer.get("path"), answer.get("seconds")
    if not isinstance(path, str) or not path.startswith("dashboard/login?ticket=") or not isinstance(seconds, int):
        raise NoAnswer("the bridge answered with something that is no ticket")
    return operator.url(path), seconds
