"""The commands that read a store, beside an open runtime or without one; none of them writes anything."""

from __future__ import annotations

import json
from typing import Any, Final

import click
from attrs import asdict

from fencepost.mailbox.query import NOT_NULL, Query
from fencepost.mailbox.records import UNRESOLVED_STATES, IncarnationRecord, IntentRecord, IntentState
from fencepost.supervisor.cli.output import lines, moment, say, shown, table
from fencepost.supervisor.cli.reading import pages, readable, reading
from fencepost.supervisor.invariants import check_blocking

__all__ = ["check", "dead_letters", "events", "intents", "status"]

_URL: Final = click.argument("url", metavar="URL")
_AFTER: Final = click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only those with a number over N."
)


@click.command(
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
    with readable():
        violations = check_blocking(url)
    if as_json:
        say(json.dumps({"count": len(violations), "violations": [asdict(one) for one in violations]}))
    else:
        for one in violations:
            say(f"{one.number}\t{shown(one.table)}\t{shown(one.key)}\t{shown(one.message)}")
        say("no violations" if not violations else f"violations: {len(violations)}")
    if violations:
        click.get_current_context().exit(1)


@click.command()
@_URL
def status(url: str) -> None:
    """Count what the store holds.

    Panes, live incarnations, unresolved intents by state, exhausted ones among them, and dead letters.
    """
    with reading(url) as reader:
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
    table(("what", "count"), rows)


_INTENT_COLUMNS: Final = ("pane_id", "seq", "intent_id", "state", "mode", "incarnation_id", "from_base", "to_base")


@click.command()
@_URL
@click.option("--pane", metavar="ID", help="Only the intents of this pane.")
def intents(url: str, pane: str | None) -> None:
    """List intents, pane by pane, oldest first.

    Shows rows as they are stored, also those that cannot have been written by fencepost; `fencepost check` tells what
    is wrong with them.
    """
    with reading(url) as reader:
        rows = [
            (*(row[name] for name in _INTENT_COLUMNS), _payload(row["payload"], row["payload_sha256"]), _remark(row))
            for row in reader.raw("intents")
            if pane is None or row["pane_id"] == pane
        ]
    rows.sort(key=lambda row: (str(row[0]), row[1] if isinstance(row[1], int) else 0, str(row[2])))
    lines(("pane", "seq", "intent", "state", "mode", "incarnation", "from", "to", "payload", "remark"), rows)


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


@click.command("dead-letters")
@_URL
@_AFTER
def dead_letters(url: str, after: int) -> None:
    """List refused and fenced calls, oldest first."""
    with reading(url) as reader:
        rows = (
            (one.seq, moment(one.at), one.address, one.call, one.incarnation_id, one.reason, one.detail)
            for one in pages(reader.dead_letters, after, None)
        )
        lines(("seq", "at", "address", "call", "incarnation", "reason", "detail"), rows)


@click.command()
@_URL
@_AFTER
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N.")
def events(url: str, after: int, limit: int | None) -> None:
    """List the stored events, oldest first.

    The oldest ones may have been trimmed away.
    """
    with reading(url) as reader:
        rows = (
            (one.seq, moment(one.at), one.kind, one.address, json.dumps(dict(one.data)))
            for one in pages(reader.events, after, limit)
        )
        lines(("seq", "at", "kind", "address", "data"), rows)
