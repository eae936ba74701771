"""One pane in full, read from a store beside its runtime or without one: what ran in it, and what was owed to it.

No text of a message and no payload is in it, only their lengths and hashes.  Of each kind the latest are told, oldest
first; a kind of which a row is damaged is left empty, and the damage told.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeVar

from attrs import evolve, frozen

from fencepost.actors.intent_view import reach_of
from fencepost.mailbox.delivery_records import AcceptanceRecord, DeliveryRecord, RunRecord
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import (
    BatchMode,
    BatchRecord,
    Checkpoint,
    DeliveryMode,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    Record,
    TransitionKind,
)
from fencepost.mailbox.stores.store import StoreReader
from fencepost.supervisor.overview import (
    NOBODY_KNOWS,
    IncarnationLine,
    Look,
    PaneLine,
    Standing,
    calls_placed,
    members_from,
    pane_line,
)
from fencepost.supervisor.words import delivery_in_words, why_it_waits

__all__ = ["LATEST", "BatchEntry", "DeliveryEntry", "IncarnationEntry", "IntentEntry", "PaneHistory", "pane_history"]

R = TypeVar("R", bound=Record)

LATEST: Final = 50
"""How many of each kind are told."""


@frozen(kw_only=True)
class IncarnationEntry(IncarnationLine):
    """One process; times in nanoseconds UTC, here and below."""

    startup_intent_id: str | None
    """The intent whose payload it was started with."""
    startup_epoch: int | None
    startup_attempt: int | None


@frozen(kw_only=True)
class IntentEntry:
    """One intent, with the time of each step that it has taken."""

    intent_id: str
    seq: int
    kind: TransitionKind
    from_base: str
    to_base: str
    state: IntentState
    why: str | None
    """What it waits for; None if it is over."""
    reached: str | None
    """Its stage or stop on the delivery ladder."""
    mode: DeliveryMode | None
    incarnation_id: str | None
    turn_id: str | None
    batch_id: str | None
    startup_delivery_id: str | None
    payload_bytes: int | None
    payload_sha256: str | None
    detected_at: int
    prepared_at: int | None
    bound_at: int | None
    payload_offered_at: int | None
    delivered_at: int | None
    batch_completed_at: int | None
    handshake_at: int | None
    consumed_at: int | None
    acknowledged_at: int | None
    exhausted_at: int | None
    approval: str | None
    """The one-shot token that a discard must show; there while it is exhausted."""
    reason: str | None
    resolution: str | None
    resolved_by: str | None
    discarded: bool
    epoch: int
    soft_redeliveries: int


@frozen(kw_only=True)
class BatchEntry:
    """One tool batch."""

    address: str
    operation_id: str
    turn_id: str
    incarnation_id: str
    mode: BatchMode
    calls: int
    placed: int
    checkpoint: Checkpoint | None
    """None while it is open."""
    cancel_reason: str | None
    started_at: int
    closed_at: int | None


@frozen(kw_only=True)
class DeliveryEntry:
    """One message to the pane, or one of the pane's that was accepted (`inbound`)."""

    delivery_id: str
    inbound: bool
    mechanism: str | None
    outcome: str | None
    native: str | None
    stage: str | None
    stop: str | None
    words: str
    text_bytes: int
    fingerprint: str
    created_at: int
    ended_at: int | None
    """When it was resolved, or when the turn that it led to ended."""


@frozen(kw_only=True)
class PaneHistory:
    """One pane."""

    pane: PaneLine
    incarnations: tuple[IncarnationEntry, ...]
    intents: tuple[IntentEntry, ...]
    batches: tuple[BatchEntry, ...]
    deliveries: tuple[DeliveryEntry, ...]
    """Those to the pane, then those from it."""

    @property
    def is_known(self) -> bool:
        """Whether anything is stored of such a pane."""
        told = (self.incarnations, self.intents, self.batches, self.deliveries, self.pane.deliveries, self.pane.damage)
        return any(told)


def pane_history(
    reader: StoreReader, pane_id: str, quarantined: Collection[str] = (), *, latest: int = LATEST
) -> PaneHistory:
    """Look at one pane, which need not exist; blocks.  `quarantined` as for `fleet`.  Raises `StoreFault`."""
    with reader.snapshot():
        look, pane = Look(reader), {"pane_id": pane_id}

        def last(kind: type[R], order: str) -> list[R]:
            return look.select(Query(kind, pane, order_by=(order,), descending=True, limit=latest))[::-1]

        line = pane_line(reader, pane_id, quarantined)
        incarnations = last(IncarnationRecord, "epoch")
        newest, is_told = incarnations[-1] if incarnations else None, not look.damage
        head = None if line.owed is None else line.owed.intent_id
        intents = tuple(_intent(row, newest, head, is_told=is_told) for row in last(IntentRecord, "seq"))
        batches = tuple(_batch(reader, row) for row in last(BatchRecord, "seq"))
        sent = tuple(map(_sent, last(DeliveryRecord, "created_at")))
        accepted = tuple(_accepted(look, row) for row in last(AcceptanceRecord, "at"))
    damage = tuple(dict.fromkeys((*line.damage, *look.damage)))
    return PaneHistory(
        pane=evolve(line, damage=damage, standing=Standing.FAULTED if damage else line.standing),
        incarnations=tuple(map(_incarnation, incarnations)),
        intents=intents,
        batches=batches,
        deliveries=sent + accepted,
    )


def _incarnation(row: IncarnationRecord) -> IncarnationEntry:
    return IncarnationEntry(**members_from(row, IncarnationEntry))


def _intent(row: IntentRecord, latest: IncarnationRecord | None, head: str | None, *, is_told: bool) -> IntentEntry:
    why = why_it_waits(row, latest, head)
    reach = reach_of(row)
    word = reach.stage or reach.stop
    return IntentEntry(
        why=why if is_told or why is None else NOBODY_KNOWS,
        reached=None if word is None else word.value,
        payload_bytes=None if row.payload is None else len(row.payload),
        **members_from(row, IntentEntry, besides={"why", "reached", "payload_bytes"}),
    )


def _batch(reader: StoreReader, row: BatchRecord) -> BatchEntry:
    return BatchEntry(
        address=row.address,
        operation_id=row.operation_id,
        turn_id=row.turn_id,
        incarnation_id=row.incarnation_id,
        mode=row.mode,
        calls=row.calls_count,
        placed=calls_placed(reader, row),
        checkpoint=row.checkpoint,
        cancel_reason=row.cancel_reason,
        started_at=row.started_at,
        closed_at=row.closed_at,
    )


def _sent(row: DeliveryRecord) -> DeliveryEntry:
    return DeliveryEntry(
        delivery_id=row.delivery_id,
        inbound=False,
        mechanism=row.mechanism,
        outcome=row.outcome,
        native=row.native,
        stage=None if row.stage is None else row.stage.value,
        stop=None if row.stop is None else row.stop.value,
        words=delivery_in_words(row),
        text_bytes=len(row.text.encode()),
        fingerprint=row.fingerprint,
        created_at=row.created_at,
        ended_at=row.resolved_at,
    )


def _accepted(look: Look, row: AcceptanceRecord) -> DeliveryEntry:
    run = look.first(Query(RunRecord, {"delivery_id": row.delivery_id}, limit=1))
    if run is None or run.ended_at is None:
        words = "stored; its turn has not ended"
    else:
        words = f"stored; its turn ended: {run.outcome}{f' ({run.native})' if run.native else ''}"
    return DeliveryEntry(
        delivery_id=row.delivery_id,
        inbound=True,
        mechanism=None,
        outcome=None if run is None else run.outcome,
        native=None if run is None else run.native,
        stage="stored",
        stop=None,
        words=words,
        text_bytes=len(row.text.encode()),
        fingerprint=row.fingerprint,
        created_at=row.at,
        ended_at=None if run is None else run.ended_at,
    )
