"""How the program speaks: escaped, as lines of tab-separated fields, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import click

from fencepost.supervisor.bridge.escaped import escaped

__all__ = ["JSON", "Failed", "lines", "moment", "on_terminal", "say", "say_json", "shown"]

JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, in ASCII.")


class Failed(click.ClickException):
    """It could not be done, for want of what it needs: exit status 2, and the message, escaped, on stderr."""

    exit_code = 2

    def __init__(self, message: object) -> None:
        super().__init__(shown(message))


def shown(value: object) -> str:
    """Return `value` as text with which no terminal can be made to do anything."""
    return "-" if value is None else escaped(str(value))


def moment(nanoseconds: object) -> str:
    """Return a stored time (64 bits of nanoseconds, so of the years 1677 to 2262) as ISO 8601 in UTC."""
    if not isinstance(nanoseconds, int):
        return shown(nanoseconds)
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def say(line: str) -> None:
    """Print a line; what the output's encoding lacks is escaped."""
    encoding = sys.stdout.encoding or "ascii"
    click.echo(line.encode(encoding, "backslashreplace").decode(encoding))


def say_json(value: object) -> None:
    """Print one JSON value on one line; in ASCII, so that nothing in it can speak to a terminal."""
    say(json.dumps(value))


def on_terminal() -> bool:
    """Whether a person is likely to read what is printed."""
    return sys.stdout.isatty()


def lines(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Show rows as lines of tab-separated fields, under a line of their names."""
    say("\t".join(heads))
    for row in rows:
        say("\t".join(map(shown, row)))
