"""The fleet at a glance, read from a store beside its runtime or without one: one line a pane, and the totals.

Everything is a query over what is stored.  A row that no fencepost can have written blocks its own pane in the runtime,
and is told here with that pane and hides no other.  What only a runtime knows (who is quarantined) is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from attrs import AttrsInstance, fields, frozen

from fencepost.actors.pane_state import CONFLICTED_STATES
from fencepost.mailbox.address import Address
from fencepost.mailbox.delivery_records import DeliveryRecord, FenceRecord
from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.query import NOT_NULL, Query
from fencepost.mailbox.records import (
    UNRESOLVED_STATES,
    BatchRecord,
    CallRecord,
    CallStatus,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    Record,
)
from fencepost.mailbox.stores.store import StoreReader, open_reader
from fencepost.supervisor.status import StoreCounts, counted
from fencepost.supervisor.words import delivery_in_words, needs_a_person, why_it_waits

__all__ = [
    "CONFLICTED",
    "NOBODY_KNOWS",
    "UNRESOLVED",
    "BatchLine",
    "DeliveryLine",
    "Fleet",
    "IncarnationLine",
    "IntentLine",
    "Kept",
    "Look",
    "PaneLine",
    "Standing",
    "UnresolvedDelivery",
    "calls_placed",
    "fleet",
    "fleet_within",
    "incarnations_kept",
    "members_from",
    "pane_line",
    "unresolved_delivery",
]

R = TypeVar("R", bound=Record)

CONFLICTED: Final = tuple(sorted(state.value for state in CONFLICTED_STATES))
"""The states in which an intent waits for a person, as a query takes them."""
UNRESOLVED: Final = tuple(sorted(state.value for state in UNRESOLVED_STATES))
"""Those of an intent that is not over."""
NOBODY_KNOWS: Final = "what it waits for cannot be told: the row of the pane's process is damaged"


class Standing(StrEnum):
    """How a pane stands: as `SyncStatus`, or that it cannot be told or cannot go on."""

    IN_SYNC = "in_sync"
    PENDING = "pending"
    CONFLICTED = "conflicted"
    FAULTED = "faulted"
    """A row of it is damaged, or an actor of it is quarantined."""


@frozen(kw_only=True)
class IncarnationLine:
    """The latest process of a pane; times in nanoseconds UTC."""

    incarnation_id: str
    epoch: int
    harness: str
    session_id: str | None
    launched_at: int
    retired_at: int | None
    retire_reason: str | None

    @property
    def live(self) -> bool:
        """Whether it has not been retired."""
        return self.retired_at is None


@frozen(kw_only=True)
class IntentLine:
    """The intent that is owed to a pane first."""

    intent_id: str
    state: IntentState
    exhausted: bool
    needs_a_person: bool
    why: str
    detected_at: int


@frozen(kw_only=True)
class BatchLine:
    """The open tool batch of a pane; the calls that are placed, and how many there are."""

    address: str
    operation_id: str
    turn_id: str
    calls: int
    placed: int
    cancelling: bool
    started_at: int


@frozen(kw_only=True)
class DeliveryLine:
    """What fences a pane's deliveries: the unresolved message to it, or the pending one from it."""

    delivery_id: str
    inbound: bool
    mechanism: str | None
    uncertain: bool
    words: str
    since: int


@frozen(kw_only=True)
class PaneLine:
    """One pane."""

    pane_id: str
    standing: Standing
    process: IncarnationLine | None
    """The latest incarnation, live or retired; None if there was none."""
    unresolved: int
    """How many intents are not over."""
    owed: IntentLine | None
    batch: BatchLine | None
    deliveries: tuple[DeliveryLine, ...]
    quarantined: tuple[str, ...]
    damage: tuple[str, ...]


@frozen(kw_only=True)
class Fleet:
    """All panes at one moment, in the order of their ids."""

    panes: tuple[PaneLine, ...]
    left_out: int
    """How many panes are not told, because there are too many."""
    totals: StoreCounts
    damage: tuple[str, ...] = ()
    """Damage that could not be told with a pane."""


def fleet(reader: StoreReader, quarantined: Collection[str] = (), *, panes_max: int | None = None) -> Fleet:
    """Look at every pane that ever had a process, an intent or an unresolved delivery; blocks.

    `quarantined` are addresses as `RuntimeStatus.quarantined` has them.  Raises `StoreFault`.
    """
    with reader.snapshot():
        return fleet_within(reader, quarantined, panes_max=panes_max)


def fleet_within(reader: StoreReader, quarantined: Collection[str] = (), *, panes_max: int | None = None) -> Fleet:
    """Look within a snapshot of the caller's; as `fleet` otherwise."""
    look = Look(reader)
    fencing: list[DeliveryRecord | FenceRecord] = [*look.select(Query(DeliveryRecord, {"resolved_at": None}))]
    fencing += look.select(Query(FenceRecord))
    names = sorted({*reader.pane_ids(), *(row.pane_id for row in fencing)})
    told = names if panes_max is None else names[:panes_max]
    lines = tuple(pane_line(reader, name, quarantined) for name in told)
    known = {damage for line in lines for damage in line.damage}
    return Fleet(
        panes=lines,
        left_out=len(names) - len(told),
        totals=counted(reader),
        damage=tuple(one for one in look.damage if one not in known),
    )


def pane_line(reader: StoreReader, pane_id: str, quarantined: Collection[str] = ()) -> PaneLine:
    """Look at one pane, which need not exist; call it within a snapshot.  Raises `StoreFault`."""
    look, pane = Look(reader), {"pane_id": pane_id}
    latest = look.first(Query(IncarnationRecord, pane, order_by=("epoch",), descending=True, limit=1))
    is_told = not look.damage
    unresolved = {**pane, "state": UNRESOLVED}
    head = look.first(Query(IntentRecord, unresolved, order_by=("seq",), limit=1), IntentRecord.require_intact)
    count = reader.count(Query(IntentRecord, unresolved))
    conflicted = reader.count(Query(IntentRecord, {**pane, "state": CONFLICTED})) + reader.count(
        Query(IntentRecord, {**pane, "exhausted_at": NOT_NULL})
    )
    batch = look.first(Query(BatchRecord, {**pane, "checkpoint": None}, limit=1))
    deliveries = tuple(_deliveries(look, pane_id))
    left_alone = tuple(sorted(address for address in quarantined if _is_of(address, pane_id, head)))
    return PaneLine(
        pane_id=pane_id,
        standing=_standing(count, conflicted, faulted=bool(left_alone or look.damage)),
        process=None if latest is None else IncarnationLine(**members_from(latest, IncarnationLine)),
        unresolved=count,
        owed=None if head is None else _owed(head, latest, is_told=is_told),
        batch=None if batch is None else _batch(reader, batch),
        deliveries=deliveries,
        quarantined=left_alone,
        damage=tuple(look.damage),
    )


class Look:
    """Reads, and keeps what is damaged apart."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self.damage: list[str] = []

    def select(self, query: Query[R]) -> list[R]:
        """The rows, or none where one of them is damaged."""
        try:
            return self._reader.select(query)
        except CorruptRecord as error:
            self.damage.append(str(error))
            return []

    def first(self, query: Query[R], proved: Callable[[R], object] = lambda _: None) -> R | None:
        """The first row; what `proved` raises of it is damage as well."""
        found = self.select(query)
        if not found:
            return None
        try:
            proved(found[0])
        except CorruptRecord as error:
            self.damage.append(str(error))
        return found[0]


def _standing(unresolved: int, conflicted: int, *, faulted: bool) -> Standing:
    if faulted:
        return Standing.FAULTED
    if conflicted:
        return Standing.CONFLICTED
    return Standing.PENDING if unresolved else Standing.IN_SYNC


def _is_of(address: str, pane_id: str, head: IntentRecord | None) -> bool:
    """Whether an actor is one that this pane needs."""
    kind, _, key = address.partition(":")
    if kind == "batch":
        return Address.parse(address).batch_parts[0] == pane_id
    return key == pane_id if kind == "pane" else kind == "intent" and head is not None and key == head.intent_id


def members_from(row: Record, kind: type[AttrsInstance], *, besides: Collection[str] = ()) -> dict[str, Any]:
    """The members of a `kind` that a row has under the same names, so all but those named in `besides`."""
    return {one.name: getattr(row, one.name) for one in fields(kind) if one.name not in besides}


def calls_placed(reader: StoreReader, batch: BatchRecord) -> int:
    """How many calls of a batch have their result in its place."""
    return reader.count(Query(CallRecord, {"batch": batch.address, "status": CallStatus.COMPLETED.value}))


def _owed(head: IntentRecord, latest: IncarnationRecord | None, *, is_told: bool) -> IntentLine:
    """What is owed first; where the row of the process is damaged (`is_told` is False), nobody can say why it waits."""
    why = why_it_waits(head, latest, head.intent_id) if is_told else NOBODY_KNOWS
    return IntentLine(
        intent_id=head.intent_id,
        state=head.state,
        exhausted=head.exhausted_at is not None,
        needs_a_person=needs_a_person(head),
        why=why or "",
        detected_at=head.detected_at,
    )


def _batch(reader: StoreReader, batch: BatchRecord) -> BatchLine:
    return BatchLine(
        address=batch.address,
        operation_id=batch.operation_id,
        turn_id=batch.turn_id,
        calls=batch.calls_count,
        placed=calls_placed(reader, batch),
        cancelling=batch.cancel_requested_at is not None,
        started_at=batch.started_at,
    )


@frozen(kw_only=True)
class UnresolvedDelivery:
    """A message that left for a pane and was not heard of again; `session_id` is the native one it went to, if any."""

    delivery_id: str
    mechanism: str
    session_id: str | None


def unresolved_delivery(reader: StoreReader, pane_id: str, mechanism: str) -> UnresolvedDelivery | None:
    """The delivery by that mechanism which fences the pane; blocks for one query.

    Raises `CorruptRecord` where a row of these cannot be read, which may be one, and `StoreFault`.
    """
    found = reader.select(Query(DeliveryRecord, {"pane_id": pane_id, "mechanism": mechanism, "resolved_at": None}))
    if not found:
        return None
    return UnresolvedDelivery(delivery_id=found[0].delivery_id, mechanism=mechanism, session_id=found[0].session_id)


def _deliveries(look: Look, pane_id: str) -> list[DeliveryLine]:
    found = [
        DeliveryLine(
            delivery_id=row.delivery_id,
            inbound=False,
            mechanism=row.mechanism,
            uncertain=row.uncertain,
            words=delivery_in_words(row),
            since=row.created_at,
        )
        for row in look.select(Query(DeliveryRecord, {"pane_id": pane_id, "resolved_at": None}))
    ]
    for fence in look.select(Query(FenceRecord, {"pane_id": pane_id})):
        words = "posted by the pane, and not accepted yet: nothing else of it is accepted meanwhile"
        found.append(
            DeliveryLine(
                delivery_id=fence.delivery_id,
                inbound=True,
                mechanism=None,
                uncertain=True,
                words=words,
                since=fence.at,
            )
        )
    return found


@frozen
class Kept:
    """The panes that have an incarnation, or are about to."""

    live: Mapping[str, str]
    """The live incarnation of each."""
    replaced: frozenset[str]
    """Where the runtime itself is about to start a successor."""
    retired: frozenset[str]
    """The incarnations that are over."""
    latest: Mapping[str, tuple[str, str | None, int]]
    """The last launch of each pane: its harness, its session id, its epoch."""


def incarnations_kept(store_url: str) -> Kept:
    """Which panes have a live incarnation, and which will be given one by the runtime.  Blocks.

    A damaged row is told like any other: it is its pane's matter.  None of a memory store, which has no second reader.
    Raises `StoreFault`.
    """
    if store_url.startswith("memory:"):
        return Kept({}, frozenset(), frozenset(), {})
    with open_reader(store_url) as reader, reader.snapshot():
        rows = list(reader.raw("incarnations"))
    live = {str(row["pane_id"]): str(row["incarnation_id"]) for row in rows if row["retired_at"] is None}
    replaced = frozenset(str(row["pane_id"]) for row in rows if row["relaunch"])
    retired = frozenset(str(row["incarnation_id"]) for row in rows if row["retired_at"] is not None)
    return Kept(live, replaced, retired, _latest(rows))


def _latest(rows: Iterable[Mapping[str, object]]) -> dict[str, tuple[str, str | None, int]]:
    latest: dict[str, tuple[str, str | None, int]] = {}
    for row in rows:
        pane_id, session_id, epoch = str(row["pane_id"]), row["session_id"], row["epoch"]
        if isinstance(epoch, int) and (pane_id not in latest or epoch > latest[pane_id][2]):
            latest[pane_id] = str(row["harness"]), None if session_id is None else str(session_id), epoch
    return latest
