"""`fencepost dashboard`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from fencepost.supervisor.bridge.dashboard.login import login_link, login_page
from fencepost.supervisor.cli.operator_commands import asking, operator_of
from fencepost.supervisor.cli.output import JSON, Failed, say, say_json
from fencepost.supervisor.cli.reading import FOLDER

__all__ = ["dashboard"]


@click.command(
    epilog="""\b
Examples:
  fencepost dashboard --open
  fencepost dashboard --folder /srv/fencepost
"""
)
@FOLDER
@click.option("--open", "open_it", is_flag=True, help="Open it in the user's browser.")
@JSON
def dashboard(folder: Path | None, open_it: bool, as_json: bool) -> None:
    """Print a link that opens the bridge's dashboard.

    The link works once, within a minute, in a browser of this machine, and lets whoever opens it do what only a human
    decides: it is worth as much as the operator's token for as long as its session lasts.  --json prints one object:
    version, link, and the seconds for which the link waits.  Exit status: 0; 2 where no bridge serves, or for --open
    there is no browser.
    """
    with asking():
        operator = operator_of(folder)
        link, seconds = login_link(operator)
    if as_json:
        say_json({"version": 1, "link": link, "seconds": seconds})
    else:
        say(link)
    if open_it:
        _open(operator.folder, link)


def _open(folder: Path, link: str) -> None:
    try:
        opened = webbrowser.open(login_page(folder, link))
    except OSError as error:
        raise Failed(f"the page that leads there cannot be written: {error}; open the link by hand") from error
    if not opened:
        raise Failed("there is no browser to open it in; open the link by hand")
