"""The script `fencepost`: what its commands import takes a moment, and Ctrl-C within it is no error to trace back."""

from __future__ import annotations

import sys

__all__ = ["main"]

_INTERRUPTED = 130  # `cli.group.INTERRUPTED`, which is not imported yet


def main() -> None:
    """Run the program, and leave with its exit status."""
    try:
        from fencepost.supervisor import cli
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    cli.main(prog_name="fencepost")
