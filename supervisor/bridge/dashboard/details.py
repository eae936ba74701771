"""What the store says of one intent, one batch, one message, of what was refused, and of itself; see `views`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from attrs import frozen

from fencepost.mailbox.delivery_records import DeliveryRecord
from fencepost.mailbox.errors import CorruptEvent
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import (
    RECORD_TYPES,
    BatchRecord,
    CallRecord,
    EntryRecord,
    IncarnationRecord,
    IntentRecord,
    OutcomeRecord,
    TriggerRecord,
)
from fencepost.mailbox.stores.store import StoreReader, past_damage
from fencepost.supervisor import CorruptRecord, DeadLetter, Event
from fencepost.supervisor.bridge.dashboard.journey import BatchChart, Step, batch_chart, steps
from fencepost.supervisor.bridge.dashboard.views import Inbound, Outbound, Section, inbound_of, intact, section
from fencepost.supervisor.bridge.dashboard.words import Waiting, outbound_told, waits_for
from fencepost.supervisor.overview import UNRESOLVED

__all__ = [
    "BatchView",
    "Health",
    "IntentPage",
    "Letter",
    "batch",
    "delivery",
    "events_of",
    "health",
    "intent",
    "last_seq",
    "letters",
]

T = TypeVar("T", Event, DeadLetter)

EVENTS_LOOKED_AT: Final = 2_000
"""How far back a page looks for the events of one thing."""
EVENTS_MAX: Final = 40
LETTERS_MAX: Final = 100


def last_seq(read: Callable[[int, int | None], Sequence[object]]) -> int:
    """The highest seq there is, found in as many looks as it has bits: the seqs have no gaps above what was trimmed."""

    def reaches(seq: int) -> bool:
        try:
            return bool(read(seq - 1, 1))
        except CorruptEvent:
            return True

    beyond = 1
    while reaches(beyond):
        beyond *= 2
    found = beyond // 2  # there is one of this seq or over it, unless there is none at all; none of `beyond` or over
    while beyond - found > 1:
        middle = (found + beyond) // 2
        if reaches(middle):
            found = middle
        else:
            beyond = middle
    return found


def _newest_first(read: Callable[[int, int | None], list[T]], how_many: int) -> Section[T]:
    damage: list[str] = []
    read_on = past_damage(read, lambda one: damage.append(str(one)))
    rows: list[T] = []
    try:
        after = max(0, last_seq(read) - how_many)
        while page := read_on(after, how_many):
            rows += page
            after = page[-1].seq or after
    except CorruptRecord as error:
        return Section(damage=str(error))
    return Section(tuple(reversed(rows)), damage=damage[-1] if damage else None)


def events_of(reader: StoreReader, pane_id: str) -> Section[Event]:
    """The newest events of a pane and of what belongs to it, newest first."""
    found = _newest_first(reader.events, EVENTS_LOOKED_AT)
    batches = {one.address for one in section(reader, Query(BatchRecord, {"pane_id": pane_id})).rows}
    own = [
        one
        for one in found.rows
        if one.address == f"pane:{pane_id}" or one.data.get("pane_id") == pane_id or one.address in batches
    ]
    return Section(tuple(own[:EVENTS_MAX]), 0, found.damage)


# -- one intent --------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class IntentPage:
    """An intent and its way."""

    intent: IntentRecord | None
    damage: str | None
    waiting: Waiting | None = None
    steps: tuple[Step, ...] = ()
    triggers: tuple[TriggerRecord, ...] = ()
    attempts: tuple[IncarnationRecord, ...] = ()
    """Every process that was started with its payload, the newest first."""


def intent(reader: StoreReader, pane_id: str, intent_id: str) -> IntentPage:
    """One intent of a pane; None in it if there is none, or if it cannot be read."""
    found = intact(section(reader, Query(IntentRecord, {"pane_id": pane_id, "intent_id": intent_id})))
    if not found.rows:
        return IntentPage(intent=None, damage=found.damage)
    row = found.rows[0]
    latest = section(reader, Query(IncarnationRecord, {"pane_id": pane_id}, ("epoch",), descending=True, limit=1))
    bound = section(reader, Query(IncarnationRecord, {"startup_intent_id": intent_id}, ("epoch",), descending=True))
    before = section(reader, Query(IntentRecord, {"pane_id": pane_id, "state": UNRESOLVED}, ("seq",), limit=1))
    head_id = next((one.intent_id for one in before.rows), None)
    told = _newest_first(reader.events, EVENTS_LOOKED_AT)
    return IntentPage(
        intent=row,
        damage=found.damage or latest.damage or bound.damage,
        waiting=None if row.resolved or latest.damage else waits_for(row, next(iter(latest.rows), None), head_id),
        steps=tuple(steps(row, reversed(told.rows))),
        triggers=section(reader, Query(TriggerRecord, {"intent_id": intent_id}, ("position",))).rows,
        attempts=bound.rows,
    )


# -- one batch ---------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class BatchView:
    """A batch and its calls."""

    batch: BatchRecord | None
    damage: str | None
    chart: BatchChart | None = None
    results: Mapping[str, EntryRecord | OutcomeRecord]
    """By invocation id."""


def batch(reader: StoreReader, pane_id: str, address: str, now: int) -> BatchView:
    """One batch of a pane."""
    found = section(reader, Query(BatchRecord, {"pane_id": pane_id, "address": address}))
    if not found.rows:
        return BatchView(batch=None, damage=found.damage, results={})
    row = found.rows[0]
    calls = section(reader, Query(CallRecord, {"batch": address}, ("source_index",)))
    placed = section(
        reader, Query(EntryRecord, {"pane_id": pane_id, "operation_id": row.operation_id, "turn_id": row.turn_id})
    )
    ids = tuple(one.invocation_id for one in calls.rows)
    staged = section(reader, Query(OutcomeRecord, {"invocation_id": ids}))
    events = [one for one in _newest_first(reader.events, EVENTS_LOOKED_AT).rows if one.address == address]
    return BatchView(
        batch=row,
        damage=calls.damage or placed.damage or staged.damage,
        chart=batch_chart(row, calls.rows, placed.rows, staged.rows, events, now),
        results={**{one.invocation_id: one for one in staged.rows}, **{one.entry_id: one for one in placed.rows}},
    )


# -- one message -------------------------------------------------------------------------------------------------------


def delivery(reader: StoreReader, pane_id: str, delivery_id: str) -> Section[Outbound] | Section[Inbound]:
    """One message to the pane, or else from it."""
    sent = section(reader, Query(DeliveryRecord, {"pane_id": pane_id, "delivery_id": delivery_id}))
    if sent.rows or sent.damage:
        return Section(tuple(Outbound(row, outbound_told(row)) for row in sent.rows), 0, sent.damage)
    return inbound_of(reader, pane_id, delivery_id)


# -- what was refused --------------------------------------------------------------------------------------------------


@frozen
class Letter:
    """A call that was refused, and who is known to have made it."""

    letter: DeadLetter
    speaker: IncarnationRecord | None


def letters(reader: StoreReader) -> tuple[Section[Letter], int]:
    """The newest dead letters, newest first, and how many there are."""
    found = _newest_first(reader.dead_letters, LETTERS_MAX)
    ids = tuple({one.incarnation_id for one in found.rows if one.incarnation_id is not None})
    known = section(reader, Query(IncarnationRecord, {"incarnation_id": ids})).rows if ids else ()
    speakers = {one.incarnation_id: one for one in known}
    rows = tuple(Letter(one, speakers.get(one.incarnation_id or "")) for one in found.rows)
    return Section(rows, 0, found.damage), reader.dead_letter_count()


# -- the store itself --------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Health:
    """What the store holds."""

    files: tuple[tuple[str, int], ...]
    """Its files, with their sizes in bytes."""
    tables: tuple[tuple[str, int], ...]
    events_kept: int
    events_ever: int
    dead_letters: int
    damage: str | None
    """What of the newest events cannot be read."""


def health(reader: StoreReader, store_url: str | None) -> Health:
    """Count everything.  Whether each row is as it must be is a longer question, which `fencepost check` answers."""
    newest = _newest_first(reader.events, 1)
    ever = newest.rows[0].seq or 0 if newest.rows else 0
    trimmed = [row.get("last_event_seq") for row in reader.raw("trimmed")]
    gone = next((one for one in trimmed if isinstance(one, int)), 0)
    return Health(
        files=_files(store_url),
        tables=tuple((kind.TABLE, reader.count(Query(kind))) for kind in RECORD_TYPES),
        events_kept=max(0, ever - gone),
        events_ever=max(ever, gone),
        dead_letters=reader.dead_letter_count(),
        damage=newest.damage,
    )


def _files(store_url: str | None) -> tuple[tuple[str, int], ...]:
    """The files of a store that is one, as they are on the disk now."""
    scheme, _, rest = (store_url or "").partition(":///")
    if scheme not in {"sqlite", "jsonl"}:
        return ()
    path = Path(rest)
    return tuple(
        (one.name, one.stat().st_size)
        for one in (path, *(path.with_name(f"{path.name}{more}") for more in ("-wal", "-shm")))
        if one.is_file()
    )
