"""Asking the bridge that serves from a folder for a link that opens its dashboard, and handing it to a browser."""

from __future__ import annotations

from html import escape
from pathlib import Path

from fencepost.supervisor.bridge.client import NoAnswer, Operator
from fencepost.supervisor.bridge.private_files import replace_private

__all__ = ["login_link", "login_page"]

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>fencepost</title>
<p><a href="{link}">Open the dashboard</a></p>
</html>
"""


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


def login_page(folder: Path, link: str) -> str:
    """The URL of a page, a file of this user's alone in the bridge's folder, that leads a browser to the link.

    A browser is told what to open as an argument, and every user of the machine can read another's arguments; whoever
    is quicker than the browser would use up the link.  The next link replaces the page.  Raises OSError.
    """
    path = folder.absolute() / "dashboard.html"
    replace_private(path, _PAGE.format(link=escape(link)), shared=True)
    return path.as_uri()
