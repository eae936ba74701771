"""The `fencepost` program: looks into a store, beside an open runtime or without one, and serves the bridge.

A module here holds a few commands each, which `main` gathers; what they share is in `output` and `reading`.

Stored text is not trusted: ids, reasons and event data were written by harnesses and bridges, so whatever a terminal
might obey is shown escaped.  A payload is shown as its length and hash, never as itself.

Exit status: 0; 1 if `check` found violations; 2 for wrong usage and for a store that cannot be read.  That of `serve`
is told by its help.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

import click

from fencepost.mailbox.stores.store import SCHEMES
from fencepost.supervisor.cli import run_command, serve_command, store_commands
from fencepost.supervisor.cli.output import say

__all__ = ["main"]


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    try:
        say(f"fencepost {version('fencepost')}")
    except PackageNotFoundError:
        say("fencepost, not installed")
    context.exit()


@click.group(
    name="fencepost",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"""\b
Store URLs: {", ".join(scheme for scheme in SCHEMES if not scheme.startswith("memory"))}.  After three slashes
a path is relative, after four it is absolute.

\b
Examples:
  fencepost check sqlite:///bridge.db
  fencepost check sqlite:////var/lib/bridge/bridge.db --json
  fencepost intents sqlite:///bridge.db --pane 7
  fencepost events sqlite:///bridge.db --after 1200 --limit 50
""",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Look into a fencepost store, or serve a bridge.

    Every command but serve only reads, and may run beside the runtime that owns the store.  Exit status: 0; 1 if
    check found violations; 2 for wrong usage and for a store that cannot be read.
    """


_COMMANDS: Final[tuple[click.Command, ...]] = (
    store_commands.check,
    store_commands.status,
    store_commands.intents,
    store_commands.dead_letters,
    store_commands.events,
    serve_command.serve,
    run_command.run,
)

for _command in _COMMANDS:
    main.add_command(_command)
