"""The `fencepost` program: looks into a store, beside an open runtime or without one, and serves the bridge.

Every command but `serve` writes nothing.

Stored text is not trusted: ids, reasons and event data were written by harnesses and bridges, so whatever a terminal
might obey is shown escaped.  A payload is shown as its length and hash, never as itself.

Exit status: 0; 1 if `check` found violations; 2 for wrong usage and for a store that cannot be read.  That of `serve`
is told by its help.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from attrs import asdict

from fencepost.mailbox.errors import FencepostError
from fencepost.mailbox.mutation import DeadLetter, Event
from fencepost.mailbox.query import NOT_NULL, Query
from fencepost.mailbox.records import UNRESOLVED_STATES, IncarnationRecord, IntentRecord, IntentState
from fencepost.mailbox.stores.store import SCHEMES, StoreReader, open_reader
from fencepost.supervisor.invariants import check_blocking

__all__ = ["main"]

T = TypeVar("T", Event, DeadLetter)

PAGE: Final = 1_000
"""How many events or dead letters are held at once."""


class _Unreadable(click.ClickException):
    """The store cannot be read."""

    exit_code = 2


@contextmanager
def _readable() -> Generator[None]:
    try:
        yield
    except (FencepostError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise _Unreadable(_shown(error)) from error


@contextmanager
def _reading(url: str) -> Generator[StoreReader]:
    """Open a reader and hold one moment of the store; what goes wrong becomes exit status 2."""
    with _readable(), open_reader(url) as reader, reader.snapshot():
        yield reader


# -- showing ------------------------------------------------------------------------------------------------------


def _shown(value: object) -> str:
    """Return `value` as text with which no terminal can be made to do anything."""
    text = "-" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _moment(nanoseconds: object) -> str:
    """Return a stored time (64 bits of nanoseconds, so of the years 1677 to 2262) as ISO 8601 in UTC."""
    if not isinstance(nanoseconds, int):
        return _shown(nanoseconds)
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def _say(line: str) -> None:
    encoding = sys.stdout.encoding or "ascii"
    click.echo(line.encode(encoding, "backslashreplace").decode(encoding))


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _lines(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Show rows as lines of tab-separated fields, under a line of their names."""
    _say("\t".join(heads))
    for row in rows:
        _say("\t".join(map(_shown, row)))


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Show rows as a table on a terminal, as `_lines` elsewhere."""
    if not _on_terminal():
        _lines(heads, rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    Console().print(table)


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    try:
        _say(f"fencepost {version('fencepost')}")
    except PackageNotFoundError:
        _say("fencepost, not installed")
    context.exit()


# -- commands -----------------------------------------------------------------------------------------------------

_URL: Final = click.argument("url", metavar="URL")
_AFTER: Final = click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only those with a number over N."
)


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


@main.command(
    epilog="""\b
Examples:
  fencepost check sqlite:///bridge.db
  fencepost check sqlite:///bridge.db --json | jq .count
"""
)
@_URL
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: count and violations.")
def check(url: str, as_json: bool) -> None:
    """Check every invariant.

    Prints the violations, one a line: the invariant's number (0 is the store itself), the table, the row's key and
    what is wrong; then how many there are.  Exit status 0 if there are none, 1 if there are some.
    """
    with _readable():
        violations = check_blocking(url)
    if as_json:
        _say(json.dumps({"count": len(violations), "violations": [asdict(one) for one in violations]}))
    else:
        for one in violations:
            _say(f"{one.number}\t{_shown(one.table)}\t{_shown(one.key)}\t{_shown(one.message)}")
        _say("no violations" if not violations else f"violations: {len(violations)}")
    if violations:
        click.get_current_context().exit(1)


@main.command()
@_URL
def status(url: str) -> None:
    """Count what the store holds.

    Panes, live incarnations, unresolved intents by state, exhausted ones among them, and dead letters.
    """
    with _reading(url) as reader:
        states = [state for state in IntentState if state in UNRESOLVED_STATES]
        counts = {state: reader.count(Query(IntentRecord, {"state": state.value})) for state in states}
        rows: list[tuple[str, int]] = [
            ("panes", reader.pane_count()),
            ("live incarnations", reader.count(Query(IncarnationRecord, {"retired_at": None}))),
            ("unresolved intents", sum(counts.values())),
            *((f"unresolved intents, {state.value}", count) for state, count in counts.items()),
            ("exhausted intents", reader.count(Query(IntentRecord, {"exhausted_at": NOT_NULL}))),
            ("dead letters", reader.dead_letter_count()),
        ]
    _table(("what", "count"), rows)


_INTENT_COLUMNS: Final = ("pane_id", "seq", "intent_id", "state", "mode", "incarnation_id", "from_base", "to_base")


@main.command()
@_URL
@click.option("--pane", metavar="ID", help="Only the intents of this pane.")
def intents(url: str, pane: str | None) -> None:
    """List intents, pane by pane, oldest first.

    Shows rows as they are stored, also those that cannot have been written by fencepost; `fencepost check` tells what
    is wrong with them.
    """
    with _reading(url) as reader:
        rows = [
            (*(row[name] for name in _INTENT_COLUMNS), _payload(row["payload"], row["payload_sha256"]), _remark(row))
            for row in reader.raw("intents")
            if pane is None or row["pane_id"] == pane
        ]
    rows.sort(key=lambda row: (str(row[0]), row[1] if isinstance(row[1], int) else 0, str(row[2])))
    _lines(("pane", "seq", "intent", "state", "mode", "incarnation", "from", "to", "payload", "remark"), rows)


def _payload(payload: object, sha256: object) -> str | None:
    if payload is None:
        return None
    size = len(payload) if isinstance(payload, bytes | str) else "?"
    return f"{size} bytes, sha256 {sha256}"


def _remark(row: dict[str, Any]) -> str | None:
    """Return why it is where it is, as far as the row says."""
    parts = [
        None if row["exhausted_at"] is None else "exhausted",
        "discarded" if row["discarded"] == 1 else None,
        None if row["reason"] is None else f"reason: {row['reason']}",
        None if row["resolution"] is None else f"resolution: {row['resolution']}",
    ]
    return "; ".join(part for part in parts if part is not None) or None


@main.command("dead-letters")
@_URL
@_AFTER
def dead_letters(url: str, after: int) -> None:
    """List refused and fenced calls, oldest first."""
    with _reading(url) as reader:
        rows = (
            (one.seq, _moment(one.at), one.address, one.call, one.incarnation_id, one.reason, one.detail)
            for one in _pages(reader.dead_letters, after, None)
        )
        _lines(("seq", "at", "address", "call", "incarnation", "reason", "detail"), rows)


@main.command()
@_URL
@_AFTER
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N.")
def events(url: str, after: int, limit: int | None) -> None:
    """List the stored events, oldest first.

    The oldest ones may have been trimmed away.
    """
    with _reading(url) as reader:
        rows = (
            (one.seq, _moment(one.at), one.kind, one.address, json.dumps(dict(one.data)))
            for one in _pages(reader.events, after, limit)
        )
        _lines(("seq", "at", "kind", "address", "data"), rows)


def _pages(read: Callable[[int, int | None], list[T]], after: int, limit: int | None) -> Iterator[T]:
    """Yield what `read` answers, page by page."""
    left = limit
    while page := read(after, PAGE if left is None else min(PAGE, left)):
        yield from page
        after = page[-1].seq or after
        if left is not None:
            left -= len(page)
            if left == 0:
                return


# -- serving ------------------------------------------------------------------------------------------------------


def _default_folder() -> Path:
    """Where a bridge keeps its things: the user's state directory, by the XDG rules."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "fencepost"


def _address(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter("it must be ADDRESS:PORT, and the port may be 0 for any")
    return host.removeprefix("[").removesuffix("]"), int(port)


@main.command(
    epilog="""\b
Examples:
  fencepost serve
  fencepost serve --folder /srv/fencepost --operator 127.0.0.1:7410 --fleet 127.0.0.1:7411
"""
)
@click.option("--folder", type=click.Path(path_type=Path), help="Its private folder [$XDG_STATE_HOME/fencepost].")
@click.option("--store", metavar="URL", help="The store [bridge.db in the folder].")
@click.option("--operator", metavar="ADDRESS:PORT", default="127.0.0.1:0", callback=_address, help="Loopback only.")
@click.option("--fleet", metavar="ADDRESS:PORT", default="127.0.0.1:0", callback=_address, help="For link tokens.")
@click.option("--head", metavar="PANE", help="The pane whose mailbox is the head seat's.")
@click.option(
    "--grace", metavar="SECONDS", type=click.FloatRange(0, 3_600), default=5.0, help="For requests, at the end."
)
def serve(
    folder: Path | None,
    store: str | None,
    operator: tuple[str, int],
    fleet: tuple[str, int],
    head: str | None,
    grace: float,
) -> None:
    """Serve the reference bridge until SIGTERM or SIGINT.

    Prints where its three listeners are, also to be found in endpoints.json in its folder.  Exit status: 0 when
    everybody was answered; 1 when requests were cut (a second signal cuts at once) or the store failed; 2 when it
    could not start.  Needs the extra `bridge`.
    """
    try:
        from fencepost.supervisor.bridge import command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("fencepost"):
            raise
        raise _Unreadable(f"there is no {error.name}: install fencepost[bridge]") from error
    settings = command.Settings(
        folder=folder or _default_folder(),
        store=store,
        operator=operator,
        fleet=fleet,
        head_pane=head,
        grace_seconds=grace,
    )
    status = command.run(settings, _say, lambda text: click.echo(f"Error: {_shown(text)}", err=True))
    click.get_current_context().exit(status)


if __name__ == "__main__":
    main(prog_name="fencepost")
