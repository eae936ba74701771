"""`fencepost demo`: the runtime under real kills."""

from __future__ import annotations

import click

from fencepost.supervisor.cli.group import INTERRUPTED
from fencepost.supervisor.cli.output import JSON

__all__ = ["demo"]


@click.command(
    epilog="""\b
Examples:
  fencepost demo
  fencepost demo --keep
  fencepost demo --json | jq '.claims[] | select(.ok | not)'
""",
)
@click.option("--keep", is_flag=True, help="Keep the store and the workspaces, and say where they are.")
@JSON
def demo(keep: bool, as_json: bool) -> None:
    """Show fencepost surviving the deaths of a harness, of its leftovers, and of its own bridge.

    Runs a bridge, three panes with a harness process each and their hook processes, kills them, and checks every claim
    against what was seen.  It takes about ten seconds and leaves nothing behind.  Exit status 1 if a claim does not
    hold, 130 if interrupted.  --json prints one object at the end: failed, and the claims.
    """
    from fencepost.supervisor.demo.play import run

    try:
        status = run(keep=keep, as_json=as_json)
    except KeyboardInterrupt:
        click.echo("\nInterrupted; every process of the demo has been ended.", err=True)
        status = INTERRUPTED
    click.get_current_context().exit(status)
