"""The audit: what must hold in every store at every moment, checked from the stored rows and events alone.

    violations = await check("sqlite:///bridge.db")

It reads one moment of the store through a connection of its own, beside an open runtime or without one, and writes
nothing.  It trusts neither the store's constraints nor the records' own laws: every law below is computed here, by
hand, from undecoded rows, so that it also judges the code that is meant to keep them.

A violation's number is the invariant of protocol-intent.md section 10 that is broken:

     1  a prepared intent has its result, payload, anchor and time; any other has none of them
     2  a delivered intent says when; an acknowledged one says when, and was delivered unless a human discarded it
     3  what was prepared never changes: bytes and hash, bases, triggers, and every copy of the bytes
     4  seq is unique and increasing in its pane; one intent is active at a time, and the later ones wait
     5  a soft tuple is whole or absent, a restart pair too, and the mode says which one there is
     6  what is detected, acknowledged or superseded is bound to nothing
     7  a marker stands exactly on the live incarnation that was given the delivered intent it names
     8  a startup delivery id is on one incarnation, ever, and the intent bound to that one shows the same id
     9  first times keep
    10  delivered no later than acknowledged; a recovered delivery happened when its batch completed
    11  after its end nothing happens to an intent any more
    12  at most one incarnation of a pane is live, and it is the latest
    13  an intent is materialized once

101 to 114 are the invariants 1 to 14 of the tool-durability note and 115 and 116 what batches and panes owe each other
(`tool_invariants`), 202 to 207 are those of protocol-delivery.md section 10 (`delivery_invariants`), and 0 is the store
itself, for what neither numbers: a row that cannot be read, a key that is there twice, a reference to a row that is not
there or belongs to another pane, an epoch used twice, startup attempts that do not count from 1, a live process that
the launch rule (section 8) forbids, a batch that is bound and was never admitted, an owed projection of what was never
delivered, a gap between events, events that tell another story than the rows.

The laws of one row are in `row_invariants`, those between rows in `pane_invariants`, those about events in
`event_invariants`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from operator import attrgetter

import sniffio
import trio

from fencepost.mailbox.stores.store import StoreReader, open_reader
from fencepost.supervisor.delivery_invariants import TABLES as DELIVERY_TABLES, delivery_laws
from fencepost.supervisor.event_invariants import event_violations
from fencepost.supervisor.pane_invariants import pane_violations
from fencepost.supervisor.row_invariants import row_violations
from fencepost.supervisor.tool_invariants import TABLES as TOOL_TABLES, tool_laws
from fencepost.supervisor.violations import TYPES, Row, Stored, Violation, violation

__all__ = ["Violation", "check", "check_blocking"]


async def check(store_url: str) -> list[Violation]:
    """Return everything that is wrong in the store, in order of number, table and key; an empty list if all is well.

    Runs under trio and under asyncio, in a thread, so the loop goes on; a cancelled caller does not wait for the thread
    to notice.  Raises `InvalidStoreUrl`, and what keeps the store from being read at all: `StoreFault` (it does not
    exist, or the disk failed), `SchemaTooNew`, `CorruptRecord` (it is no store of ours, or its file is damaged).
    """
    if sniffio.current_async_library() == "trio":
        return await trio.to_thread.run_sync(check_blocking, store_url, abandon_on_cancel=True)
    return await asyncio.to_thread(check_blocking, store_url)


def check_blocking(store_url: str) -> list[Violation]:
    """Do what `check` does, in this thread."""
    with open_reader(store_url) as reader, reader.snapshot():
        return sorted(set(_violations(reader)), key=attrgetter("number", "table", "key", "message"))


def _violations(reader: StoreReader) -> Iterator[Violation]:
    stored = Stored()
    yield from _read(reader, "intents", stored.intents, stored.intents_of)
    yield from _read(reader, "incarnations", stored.incarnations, stored.incarnations_of)
    yield from pane_violations(reader, stored)
    yield from event_violations(reader, stored)
    for table in (*TOOL_TABLES, *DELIVERY_TABLES):
        for row in reader.raw(table):
            yield from row_violations(table, row)
    for broken in (*tool_laws(reader, stored.incarnations), *delivery_laws(reader)):
        yield violation(*broken)


def _read(
    reader: StoreReader, table: str, by_key: dict[object, Row], by_pane: dict[object, list[Row]]
) -> Iterator[Violation]:
    """Judge the rows one by one and keep them, without their long values."""
    for row in reader.raw(table):
        yield from row_violations(table, row)
        key = row[TYPES[table].KEY[0]]
        if key in by_key:
            yield violation(0, table, row, "is there more than once")
            continue
        by_key[key] = {name: value for name, value in row.items() if name not in {"payload", "recovery_details"}}
        by_pane[row["pane_id"]].append(by_key[key])
