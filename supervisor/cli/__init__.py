"""The `fencepost` program: looks into a store, asks a bridge that serves, and serves one.

A module here holds a few commands each, which `main` gathers; what they share is in `output` and `reading`.  What reads
a store writes nothing and may run beside the runtime that owns it; what asks a bridge goes through its operator's
listener.

Stored text is not trusted: ids, reasons and event data were written by harnesses and bridges, so whatever a terminal
might obey is shown escaped.  A payload is shown as its length and hash, never as itself.

Exit status: 0; 1 if `check` found violations, or a bridge refused what it was asked; 2 for wrong usage, for a store
that cannot be read, for output that is not taken, and where no bridge serves; 130 and 141 as `group` has them.  That of
`serve` is told by its help.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

import click

from fencepost.mailbox.stores.store import SCHEMES
from fencepost.supervisor.cli import (
    channel_command,
    dashboard_command,
    demo_command,
    events_command,
    hook_command,
    operator_commands,
    run_command,
    serve_command,
    status_command,
    store_commands,
)
from fencepost.supervisor.cli.group import Commands
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
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"""\b
Store URLs: {", ".join(scheme for scheme in SCHEMES if not scheme.startswith("memory"))}.  After three slashes
a path is relative, after four it is absolute.  Without one it is bridge.db in the bridge's folder.

\b
Examples:
  fencepost serve &
  fencepost status
  fencepost events --follow
  fencepost settle 7 DELIVERY --approval "ada: the pane was closed by hand"
  fencepost intents sqlite:///bridge.db --pane 7
  fencepost check sqlite:////var/lib/bridge/bridge.db --json
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
    """Look into a fencepost store, ask a bridge that serves, or serve one.

    status, intents, events, dead-letters and check only read, and may run beside the runtime that owns the store.
    settle, resolve, rearm, discard, revive, detect and deliver ask the bridge that serves from a folder.

    Exit status: 0; 1 if check found violations or a bridge refused; 2 for wrong usage, for a store that cannot be read,
    and where no bridge serves; 130 if interrupted; 141 if nobody reads what is printed.
    """


COMMANDS: Final[tuple[click.Command, ...]] = (
    status_command.status,
    store_commands.intents,
    events_command.events,
    store_commands.dead_letters,
    store_commands.check,
    *operator_commands.COMMANDS,
    serve_command.serve,
    run_command.run,
    run_command.stop,
    dashboard_command.dashboard,
    hook_command.hook_settings,
    channel_command.channel,
    demo_command.demo,
)
"""In the order in which the help shows them."""

for _command in COMMANDS:
    main.add_command(_command)
