"""What the store says of panes, read beside the runtime, as values for the pages.

Every function takes a reader that holds one moment.  A row that cannot be read is a value too: `Section.damage` says
what is wrong with it, and the rest of the page stands.  Histories are cut at the newest; `more` says how many are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from attrs import field, frozen

from fencepost.mailbox.delivery_records import (
    AcceptanceRecord,
    DeliveryRecord,
    FenceRecord,
    RunRecord,
    SettlementRecord,
    TombstoneRecord,
)
from fencepost.mailbox.query import NOT_NULL, Query
from fencepost.mailbox.records import BatchRecord, IncarnationRecord, IntentRecord, Record
from fencepost.mailbox.stores.store import StoreReader
from fencepost.supervisor import CorruptRecord
from fencepost.supervisor.bridge.dashboard.words import (
    Told,
    inbound_told,
    outbound_told,
    sentence,
    state_of,
    waits_for,
)
from fencepost.supervisor.overview import CONFLICTED, PaneLine, Standing, fleet_within, pane_line

__all__ = [
    "FleetView",
    "Inbound",
    "Outbound",
    "PaneView",
    "Section",
    "Task",
    "fleet",
    "inbound_of",
    "intact",
    "pane",
    "section",
]

R = TypeVar("R", bound=Record)
T = TypeVar("T")

ROWS_MAX: Final = 50
"""How many rows of one history a page shows."""
PANES_MAX: Final = 500
"""How many panes the fleet's page shows: those first that need somebody."""
TASKS_MAX: Final = 100
_ACCEPTING_NS: Final = 60 * 1_000_000_000


@frozen
class Section(Generic[T]):
    """Some rows of one kind, or why they cannot be read."""

    rows: tuple[T, ...] = ()
    more: int = 0
    """How many older ones are not among them."""
    damage: str | None = None


def section(reader: StoreReader, query: Query[R]) -> Section[R]:
    """The rows of a query, and how many its limit left out."""
    try:
        rows = tuple(reader.select(query))
        more = 0 if query.limit is None or len(rows) < query.limit else reader.count(query) - len(rows)
    except CorruptRecord as error:
        return Section(damage=str(error))
    return Section(rows, more)


def intact(intents: Section[IntentRecord]) -> Section[IntentRecord]:
    """The section, damaged if the bytes of one of its payloads are not what their hash says."""
    for intent in intents.rows:
        try:
            intent.require_intact()
        except CorruptRecord as error:
            return Section(intents.rows, intents.more, str(error))
    return intents


# -- the fleet ---------------------------------------------------------------------------------------------------------


@frozen
class Task:
    """Something that only a human decides, or looks into."""

    pane_id: str
    what: str
    why: str
    actions: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class FleetView:
    """All panes, those first that need somebody."""

    panes: tuple[PaneLine, ...]
    left_out: int
    """How many panes are not told, because there are too many."""
    standings: Counter[Standing]
    """How many of all panes stand how."""
    tasks: tuple[Task, ...]
    more_tasks: int
    damage: tuple[str, ...]
    """Damage that could not be told with a pane."""


def fleet(reader: StoreReader, members: Iterable[str], quarantined: Collection[str], now: int) -> FleetView:
    """Every pane that is a member or has anything stored; `quarantined` are addresses."""
    found = fleet_within(reader, quarantined)
    known = {line.pane_id for line in found.panes}
    fresh = [pane_line(reader, one, quarantined) for one in members if one not in known]
    order = list(Standing)
    lines = sorted((*found.panes, *fresh), key=lambda line: (-order.index(line.standing), line.pane_id))
    tasks = [task for line in lines for task in _tasks(reader, line, now)]
    return FleetView(
        panes=tuple(lines[:PANES_MAX]),
        left_out=max(0, len(lines) - PANES_MAX),
        standings=Counter(line.standing for line in lines),
        tasks=tuple(tasks[:TASKS_MAX]),
        more_tasks=max(0, len(tasks) - TASKS_MAX),
        damage=found.damage,
    )


def _tasks(reader: StoreReader, line: PaneLine, now: int) -> Iterator[Task]:
    """What of a pane waits for a human."""
    for text in line.damage:
        yield Task(line.pane_id, "A row cannot be read", text)
    for address in line.quarantined:
        why = "It crashed too often, and is left alone until somebody revives it."
        yield Task(line.pane_id, f"{address} is quarantined", why, ("revive",), {"address": address})
    if line.standing in {Standing.CONFLICTED, Standing.FAULTED}:
        own = {"pane_id": line.pane_id}
        blocked = section(reader, Query(IntentRecord, {**own, "state": CONFLICTED}, ("seq",), limit=ROWS_MAX)).rows
        exhausted = section(reader, Query(IntentRecord, {**own, "exhausted_at": NOT_NULL}, limit=1)).rows
        for intent in (*blocked, *exhausted):
            waiting, fields = waits_for(intent, None), {"intent_id": intent.intent_id}
            what = f"Intent #{intent.seq} {state_of(intent)}"
            yield Task(line.pane_id, what, waiting.text, waiting.actions, fields)
    for one in line.deliveries:
        # What comes in is fenced while it is being accepted, which takes no time worth telling unless it ended.
        if one.uncertain and not (one.inbound and now - one.since < _ACCEPTING_NS):
            what = "Message of the pane" if one.inbound else f"Message by {one.mechanism}"
            yield Task(line.pane_id, what, sentence(one.words), ("settle",), {"delivery_id": one.delivery_id})


# -- one pane ----------------------------------------------------------------------------------------------------------


@frozen
class Outbound:
    """A message to the pane."""

    row: DeliveryRecord
    told: Told


@frozen(kw_only=True)
class Inbound:
    """A message of the pane."""

    delivery_id: str
    fingerprint: str
    at: int
    told: Told
    acceptance: AcceptanceRecord | None
    run: RunRecord | None
    settlement: SettlementRecord | None


@frozen(kw_only=True)
class PaneView:
    """One pane, with the newest of its histories."""

    line: PaneLine
    standing: Standing
    """Faulted also where a row of its past cannot be read."""
    known: bool
    """Whether the store has anything of it."""
    incarnations: Section[IncarnationRecord]
    intents: Section[IntentRecord]
    batches: Section[BatchRecord]
    outbound: Section[Outbound]
    inbound: Section[Inbound]
    tasks: tuple[Task, ...]


def pane(reader: StoreReader, pane_id: str, quarantined: Collection[str], now: int) -> PaneView:
    """Everything the page of a pane shows but its events."""
    own, line = {"pane_id": pane_id}, pane_line(reader, pane_id, quarantined)
    incarnations = section(reader, _newest(IncarnationRecord, own, "epoch"))
    intents = intact(section(reader, _newest(IntentRecord, own, "seq")))
    batches = section(reader, _newest(BatchRecord, own, "seq"))
    sent = section(reader, _newest(DeliveryRecord, own, "created_at"))
    inbound = inbound_of(reader, pane_id)
    sections: tuple[Section[Any], ...] = (incarnations, intents, batches, sent, inbound)
    return PaneView(
        line=line,
        standing=Standing.FAULTED if any(one.damage for one in sections) else line.standing,
        known=any(one.rows or one.damage for one in sections),
        incarnations=incarnations,
        intents=intents,
        batches=batches,
        outbound=Section(tuple(Outbound(row, outbound_told(row)) for row in sent.rows), sent.more, sent.damage),
        inbound=inbound,
        # What is damaged is told where it would stand.
        tasks=tuple(one for one in _tasks(reader, line, now) if one.actions),
    )


def _newest(kind: type[R], where: Mapping[str, object], by: str) -> Query[R]:
    return Query(kind, where, (by,), descending=True, limit=ROWS_MAX)


def inbound_of(reader: StoreReader, pane_id: str, delivery_id: str | None = None) -> Section[Inbound]:
    """The messages of a pane, or that one of them: whatever was attempted has its tombstone."""
    own: dict[str, object] = (
        {"pane_id": pane_id} if delivery_id is None else {"pane_id": pane_id, "delivery_id": delivery_id}
    )
    attempts = section(reader, _newest(TombstoneRecord, own, "at"))
    try:
        ids = tuple(one.delivery_id for one in attempts.rows)
        accepted = _by_id(reader, AcceptanceRecord, ids)
        runs = _by_id(reader, RunRecord, ids)
        settled = _by_id(reader, SettlementRecord, ids)
        fences = reader.select(Query(FenceRecord, own))
    except CorruptRecord as error:
        return Section(damage=str(error))
    rows: list[TombstoneRecord | FenceRecord] = [*attempts.rows]
    rows += [one for one in fences if one.delivery_id not in ids]
    found = tuple(
        _inbound(row, {one.delivery_id for one in fences}, accepted, runs, settled)
        for row in sorted(rows, key=lambda row: -row.at)
    )
    return Section(found, attempts.more, attempts.damage)


def _by_id(reader: StoreReader, kind: type[R], ids: tuple[str, ...]) -> dict[str, R]:
    found = reader.select(Query(kind, {"delivery_id": ids})) if ids else []
    return {str(getattr(row, "delivery_id", "")): row for row in found}


def _inbound(
    row: TombstoneRecord | FenceRecord,
    fenced: Collection[str],
    accepted: Mapping[str, AcceptanceRecord],
    runs: Mapping[str, RunRecord],
    settled: Mapping[str, SettlementRecord],
) -> Inbound:
    run, acceptance = runs.get(row.delivery_id), accepted.get(row.delivery_id)
    told = inbound_told(
        fenced=row.delivery_id in fenced,
        accepted=acceptance is not None,
        run=run,
        settled=row.delivery_id in settled,
    )
    return Inbound(
        delivery_id=row.delivery_id,
        fingerprint=row.fingerprint,
        at=row.at,
        told=told,
        acceptance=acceptance,
        run=run,
        settlement=settled.get(row.delivery_id),
    )
