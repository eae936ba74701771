"""`fencepost channel`: the program that a harness starts in a pane, see docs/channel.md."""

from __future__ import annotations

import click

__all__ = ["channel"]


@click.command(
    epilog="""\b
Example, as a harness starts it:
  fencepost channel --tools-only
"""
)
@click.option("--tools-only", is_flag=True, help="Offer the tools, and leave the pane's messages to somebody else.")
def channel(*, tools_only: bool) -> None:
    """Be an MCP server that pushes a pane's messages into its harness, over standard input and output.

    A harness starts it, in an environment that a bridge made; `fencepost-channel` is the same and starts faster.  Exit
    status: 0 when its input ended; 1 if the harness does not take what is written to it; 2 if the environment does not
    say which pane this is, or where its bridge is.
    """
    from fencepost.supervisor.bridge import channel as program

    program.main([program.TOOLS_ONLY] if tools_only else [])
