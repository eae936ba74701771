"""The commands that read a store, beside an open runtime or without one; none of them writes anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
from attrs import asdict

from fencepost.mailbox.mutation import DeadLetter
from fencepost.supervisor.cli.output import JSON, lines, moment, say, say_json, shown
from fencepost.supervisor.cli.reading import FOLDER, URL, pages, readable, reading, store_named
from fencepost.supervisor.invariants import check_blocking

__all__ = ["AFTER", "check", "dead_letters", "intents"]

AFTER: Final = click.option(
    "--after", type=click.IntRange(0, 2**63 - 1), default=0, metavar="N", help="Only those with a number over N."
)


@click.command(
    epilog="""\b
Examples:
  fencepost check
  fencepost check sqlite:///bridge.db
  fencepost check sqlite:///bridge.db --json | jq .count
"""
)
@URL
@FOLDER
@JSON
def check(url: str | None, folder: Path | None, as_json: bool) -> None:
    """Check every invariant.

    Prints the violations, one a line: the invariant's number (0 is the store itself), the table, the row's key and
    what is wrong; then how many there are.  Exit status 0 if there are none, 1 if there are some.  --json prints one
    object: count and violations.
    """
    with readable():
        violations = check_blocking(store_named(url, folder))
    if as_json:
        say_json({"count": len(violations), "violations": [asdict(one) for one in violations]})
    else:
        for one in violations:
            say(f"{one.number}\t{shown(one.table)}\t{shown(one.key)}\t{shown(one.message)}")
        say("no violations" if not violations else f"violations: {len(violations)}")
    if violations:
        click.get_current_context().exit(1)


# -- intents -----------------------------------------------------------------------------------------------------------

_INTENT_COLUMNS: Final = ("pane_id", "seq", "intent_id", "state", "mode", "incarnation_id", "from_base", "to_base")


@click.command(
    epilog="""\b
Examples:
  fencepost intents
  fencepost intents sqlite:///bridge.db --pane 7
  fencepost intents --json | jq 'select(.approval != null) | {pane_id, intent_id, approval}'
"""
)
@URL
@FOLDER
@click.option("--pane", metavar="ID", help="Only the intents of this pane.")
@JSON
def intents(url: str | None, folder: Path | None, pane: str | None, as_json: bool) -> None:
    """List intents, pane by pane, oldest first.

    Shows rows as they are stored, also those that cannot have been written by fencepost; `fencepost check` tells what
    is wrong with them.  An exhausted one shows the approval that `fencepost discard` takes.  --json prints an object a
    line, with every column; of the payload, its size.
    """
    with reading(store_named(url, folder)) as reader:
        rows = [_plain(row) for row in reader.raw("intents") if pane is None or row["pane_id"] == pane]
    rows.sort(key=_place)
    if as_json:
        for row in rows:
            say_json(row)
        return
    heads = ("pane", "seq", "intent", "state", "mode", "incarnation", "from", "to", "payload", "remark")
    lines(heads, ((*(row[name] for name in _INTENT_COLUMNS), _payload(row), _remark(row)) for row in rows))


def _place(row: Mapping[str, object]) -> tuple[str, int, str]:
    seq = row["seq"]
    return str(row["pane_id"]), seq if isinstance(seq, int) else 0, str(row["intent_id"])


def _plain(row: Mapping[str, object]) -> dict[str, object]:
    """A row as JSON can have it, with the payload's size instead of the payload."""
    payload = row["payload"]
    size = len(payload) if isinstance(payload, bytes | str) else None
    plain = {name: repr(value) if isinstance(value, bytes) else value for name, value in row.items()}
    return {**plain, "payload": None if payload is None else {"bytes": size}}


def _payload(row: Mapping[str, object]) -> str | None:
    size = row["payload"]
    if not isinstance(size, dict):
        return None
    return f"{'?' if size['bytes'] is None else size['bytes']} bytes, sha256 {row['payload_sha256']}"


def _remark(row: Mapping[str, object]) -> str | None:
    """Return why it is where it is, as far as the row says."""
    parts = [
        None if row["exhausted_at"] is None else f"exhausted; approval: {row['approval']}",
        "discarded" if row["discarded"] == 1 else None,
        None if row["reason"] is None else f"reason: {row['reason']}",
        None if row["resolution"] is None else f"resolution: {row['resolution']}",
    ]
    return "; ".join(part for part in parts if part is not None) or None


# -- dead letters ------------------------------------------------------------------------------------------------------


@click.command(
    "dead-letters",
    epilog="""\b
Examples:
  fencepost dead-letters
  fencepost dead-letters sqlite:///bridge.db --after 3
  fencepost dead-letters --json | jq -r .reason | sort | uniq -c
""",
)
@URL
@FOLDER
@AFTER
@JSON
def dead_letters(url: str | None, folder: Path | None, after: int, as_json: bool) -> None:
    """List refused and fenced calls, oldest first.

    Each says which call it was, of which incarnation, and why it was refused.  --json prints an object a line.
    """
    with reading(store_named(url, folder)) as reader:
        found = pages(reader.dead_letters, after, None)
        if as_json:
            for one in found:
                say_json(asdict(one))
            return
        lines(("seq", "at", "address", "call", "incarnation", "reason", "detail"), map(_letter, found))


def _letter(one: DeadLetter) -> tuple[object, ...]:
    return (one.seq, moment(one.at), one.address, one.call, one.incarnation_id, one.reason, one.detail)
