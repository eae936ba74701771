"""The program's group of commands: what holds for all of them, however they fail.

output is not taken (a full disk)    `Error:` and exit status 2, never the 1 that says "violations"
nobody reads on (`| head`)           141, as a shell tells of a program that SIGPIPE ended
interrupted from the keyboard        130
standard output is closed            as a full disk: 2, if there is anything to print
another standard stream is closed    as if it were /dev/null
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, Any, Final

import click

from fencepost.supervisor.cli.output import Failed

__all__ = ["INTERRUPTED", "NOBODY_READS", "Commands"]

INTERRUPTED: Final = 130
"""The exit status of a program that was interrupted from the keyboard."""
NOBODY_READS: Final = 141
"""The exit status of a program whose output nobody reads any more."""


class Commands(click.Group):
    """Shows its commands in the order in which they were added, and gives each failure its exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Their names."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Their first sentences, whole: click would cut them off to fit a line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=200)) for name, one in self.commands.items()])

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:  # noqa: ANN401 - click's signature
        """Read the arguments; `--help` and `--version` print here."""
        with _with_status():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        with _with_status():
            return super().invoke(ctx)

    def main(self, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401 - as above
        """Run the program, and leave with its exit status."""
        _open_what_is_closed()
        try:
            return super().main(*arguments, **more)
        except OSError as error:  # not even the complaint was taken
            sys.exit(NOBODY_READS if isinstance(error, BrokenPipeError) else Failed.exit_code)
        finally:
            _let_go(sys.stdout)
            _let_go(sys.stderr)


@contextmanager
def _with_status() -> Generator[None]:
    """Turn what click would leave to a traceback, or to exit status 1, into an exit of its own."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(NOBODY_READS) from None
    except OSError as error:
        raise Failed(error) from error
    except (KeyboardInterrupt, click.Abort):
        raise click.exceptions.Exit(INTERRUPTED) from None


def _open_what_is_closed() -> None:
    """Python has None for a standard stream that is closed, and the next file that is opened would get its number.

    What takes the place of standard output cannot be written to, so that what is lost is told.
    """
    for name, mode, access in (("stdin", "r", os.O_RDWR), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_RDWR)):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, access)
            setattr(sys, name, open(nowhere, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - until the end


def _let_go(stream: IO[str]) -> None:
    """What could not be written is dropped: the interpreter would try again at its end, and fail with a status 120."""
    try:
        stream.flush()
    except ValueError:  # a command has closed it
        return
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
