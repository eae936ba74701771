"""`fencepost events`: what happened, and what happens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from fencepost.mailbox.errors import CorruptEvent
from fencepost.mailbox.mutation import Event
from fencepost.mailbox.stores.store import StoreReader, open_reader, past_damage
from fencepost.supervisor.cli.output import JSON, Failed, moment, say, say_json, shown
from fencepost.supervisor.cli.reading import FOLDER, PAGE, URL, pages, readable, reading, store_named
from fencepost.supervisor.cli.store_commands import AFTER

__all__ = ["events"]

LOOK_SECONDS: Final = 0.25
"""How often a store is looked at that is followed."""

_pause: Callable[[float], None] = time.sleep


@click.command(
    epilog="""\b
Examples:
  fencepost events sqlite:///bridge.db --after 1200 --limit 50
  fencepost events --follow
  fencepost events --follow --json | jq 'select(.kind | startswith("intent."))'
"""
)
@URL
@FOLDER
@AFTER
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens, until Ctrl-C or --limit.")
@JSON
def events(url: str | None, folder: Path | None, after: int, limit: int | None, follow: bool, as_json: bool) -> None:
    """List the stored events, oldest first.

    The oldest ones may have been trimmed away.  --follow goes on to look for new ones, four times a second, without
    being noticed by the runtime; it ends with exit status 130 on Ctrl-C, and 0 at --limit.  What is told live only
    (`tool_update`, `runtime.faulted`) is in no store.  One that cannot be read is left
    out and told on stderr; the others are listed, and the exit status is 2.  --json prints an object a line.
    """
    store, tell = store_named(url, folder), _tell_json if as_json else _tell
    damaged: list[CorruptEvent] = []

    def skip(one: CorruptEvent) -> None:
        damaged.append(one)
        click.echo(f"Event {one.seq} is left out: {shown(one)}", err=True)

    if follow:
        with readable(), open_reader(store) as reader:
            tell(_followed(reader, after, limit, skip))
    else:
        with reading(store) as reader:
            tell(pages(past_damage(reader.events, skip), after, limit))
    if damaged:
        raise Failed(f"events that cannot be read: {len(damaged)}")


def _tell(found: Iterable[Event]) -> None:
    say("seq\tat\tkind\taddress\tdata")
    for one in found:
        say("\t".join(map(shown, (one.seq, moment(one.at), one.kind, one.address, json.dumps(dict(one.data))))))


def _tell_json(found: Iterable[Event]) -> None:
    for one in found:
        say_json({"seq": one.seq, "at": one.at, "kind": one.kind, "address": one.address, "data": dict(one.data)})


def _followed(
    reader: StoreReader, after: int, limit: int | None, skip: Callable[[CorruptEvent], None]
) -> Iterator[Event]:
    """Yield what is stored, and then what comes; each look is at a moment of its own, so the store may be trimmed."""
    left = limit
    while left is None or left > 0:
        found: list[Event] = []
        damaged: CorruptEvent | None = None
        try:
            found = reader.events(after, PAGE if left is None else min(PAGE, left))
        except CorruptEvent as error:
            damaged = error
        first = found[0].seq if found else damaged and damaged.seq
        if first and after and first != after + 1:
            click.echo(f"Events {after + 1} to {first - 1} have been trimmed away.", err=True)
        if damaged is not None:
            skip(damaged)
            after = damaged.seq
            continue
        yield from found
        if found:
            after = found[-1].seq or after
            left = None if left is None else left - len(found)
        else:
            _pause(LOOK_SECONDS)
