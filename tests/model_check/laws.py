"""The laws: what must hold of every store and of every transaction, whoever asked for it.

They are protocol-intent.md section 10, by number, written against the rows alone and independently of the validators
in `mailbox.records` (which a deliberate fault may have disarmed).  What rows cannot show, such as what the model has
really seen, is asserted by `world`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from fencepost.actors.intent_events import Discard, IntentEvent
from fencepost.actors.pane_state import Limits
from fencepost.mailbox.records import (
    DeliveryMode,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    Record,
    TriggerRecord,
)

__all__ = ["Broken", "Change", "Snapshot", "check"]

_S = IntentState
_PREPARED: Final = {_S.MATERIALIZED, _S.DELIVERED, _S.ACKNOWLEDGED}
_ACTIVE: Final = {_S.RECONCILING, _S.MATERIALIZED, _S.DELIVERED, _S.RECOVERY_REQUIRED}
_SOFT: Final = ("turn_id", "turn_ordinal", "batch_id", "bound_at")
_RESULT: Final = (
    "result_op",
    "workspace_commit",
    "payload",
    "payload_sha256",
    "anchor_change_id",
    "anchor_commit_id",
    "anchor_op_id",
    "prepared_at",
)


class Broken(Exception):  # noqa: N818 - it is a finding, not an error of the checker
    """A law was broken; the text says which and how."""


class Snapshot(NamedTuple):
    """All intents, oldest first, and the incarnations that a transaction can touch."""

    intents: tuple[IntentRecord, ...]
    incarnations: tuple[IncarnationRecord, ...]

    def after(self, written: list[Record]) -> Snapshot:
        """With these rows stored."""
        intents = {row.intent_id: row for row in self.intents}
        incarnations = {row.incarnation_id: row for row in self.incarnations}
        for record in written:
            if isinstance(record, IntentRecord):
                intents[record.intent_id] = record
            elif isinstance(record, IncarnationRecord):
                incarnations[record.incarnation_id] = record
        return Snapshot(tuple(intents.values()), tuple(incarnations.values()))


class Change(NamedTuple):
    """One transaction, as the laws look at it."""

    before: Snapshot
    after: Snapshot
    written: list[Record]
    events: tuple[IntentEvent, ...]
    limits: Limits

    def kept(self) -> Iterator[tuple[IntentRecord, IntentRecord]]:
        """Each intent that was there before, with what it is now."""
        return zip(self.before.intents, self.after.intents, strict=False)


def check(change: Change) -> None:
    """Raise `Broken` with every law that this transaction breaks."""
    found = [f"law {name}: {text}" for name, law in _LAWS.items() for text in law(change)]
    if found:
        raise Broken("; ".join(found))


def _set(row: Record, *names: str) -> list[bool]:
    return [getattr(row, name) is not None for name in names]


def _prepared(change: Change) -> Iterator[str]:
    for row in change.after.intents:
        given = _set(row, *_RESULT)
        if row.state in _PREPARED and not all(given):
            yield f"intent {row.seq} is {row.state} without result, payload, anchor or time"
        if row.state not in _PREPARED and any(given):
            yield f"intent {row.seq} is {row.state} and has a result"


def _timed(change: Change) -> Iterator[str]:
    for row in change.after.intents:
        if row.state is _S.DELIVERED and row.delivered_at is None:
            yield f"intent {row.seq} is delivered, nobody knows when"
        if row.state is _S.ACKNOWLEDGED and row.acknowledged_at is None:
            yield f"intent {row.seq} is acknowledged, nobody knows when"
        if row.state is _S.ACKNOWLEDGED and row.delivered_at is None and not row.discarded:
            yield f"intent {row.seq} is acknowledged, never delivered, and no human discarded it"


def _constant(change: Change) -> Iterator[str]:
    for old, new in change.kept():
        if old.payload is not None:
            for name in (*_RESULT, "from_base", "to_base", "kind", "classification_op"):
                if getattr(old, name) != getattr(new, name):
                    yield f"{name} of intent {old.seq} changed after it was prepared"
    prepared = {row.intent_id for row in change.before.intents if row.payload is not None}
    for record in change.written:
        if isinstance(record, TriggerRecord) and record.intent_id in prepared:
            yield f"a trigger was added to {record.intent_id} after it was prepared"


def _ordered(change: Change) -> Iterator[str]:
    rows = change.after.intents
    if [row.seq for row in rows] != list(range(1, len(rows) + 1)):
        yield f"sequence numbers are {[row.seq for row in rows]}"
    if sum(row.state in _ACTIVE for row in rows) > 1:
        yield "two intents are active"
    waiting = False
    for row in rows:
        if waiting and row.state not in {_S.DETECTED, _S.TOPOLOGY_DIVERGED, _S.SUPERSEDED}:
            yield f"intent {row.seq} is {row.state} before its turn"
        waiting = waiting or not row.resolved


def _one_proof(change: Change) -> Iterator[str]:
    for row in change.after.intents:
        soft, restart = _set(row, *_SOFT), row.startup_delivery_id is not None
        bound = row.incarnation_id is not None
        if any(soft) != all(soft):
            yield f"half of intent {row.seq}'s soft tuple is there"
        if all(soft) != (row.mode is DeliveryMode.SOFT_BATCH) or restart != (row.mode is DeliveryMode.RESTART_STARTUP):
            yield f"intent {row.seq} is in mode {row.mode} with another proof"
        if bound != (row.mode is not None):
            yield f"intent {row.seq} is in mode {row.mode} and bound to {row.incarnation_id}"
        if not all(soft) and any(_set(row, "batch_completed_at", "payload_offered_at")):
            yield f"intent {row.seq} has a completed or offered batch without a batch"


def _no_leftovers(change: Change) -> Iterator[str]:
    for row in change.after.intents:
        if row.state in {_S.DETECTED, _S.ACKNOWLEDGED, _S.SUPERSEDED}:
            proof = (*_SOFT, "incarnation_id", "startup_delivery_id", "handshake_at", "mode", "exhausted_at")
            if any(_set(row, *proof)):
                yield f"intent {row.seq} is {row.state} and carries a proof"


def _marked(change: Change) -> Iterator[str]:
    intents = {row.intent_id: row for row in change.after.intents}
    for row in change.after.incarnations:
        if row.delivered_intent_id is None:
            continue
        named = intents.get(row.delivered_intent_id)
        if not row.live:
            yield f"{row.incarnation_id} is retired and still marked"
        if named is None or named.state is not _S.DELIVERED or named.incarnation_id != row.incarnation_id:
            yield f"{row.incarnation_id} is marked with an intent that is not delivered to it"
    live = {row.incarnation_id: row for row in change.after.incarnations if row.live}
    for intent in intents.values():
        proved = intent.mode is DeliveryMode.SOFT_BATCH or intent.handshake_at is not None
        bound = live.get(str(intent.incarnation_id))
        if intent.state is _S.DELIVERED and proved and bound and bound.delivered_intent_id != intent.intent_id:
            yield f"intent {intent.seq} is delivered to {bound.incarnation_id}, which has no marker"


def _used_once(change: Change) -> Iterator[str]:
    known = {row.incarnation_id for row in change.before.incarnations}
    for row in change.after.incarnations:
        fresh = row.incarnation_id == "process-3"
        if row.incarnation_id not in known and not fresh:
            yield f"incarnation id {row.incarnation_id} was used before"
        if fresh and row.startup_delivery_id not in {None, "startup-3"}:
            yield f"startup delivery id {row.startup_delivery_id} was used before"


def _kept_times(change: Change) -> Iterator[str]:
    for old, new in change.kept():
        if old.delivered_at is not None and new.delivered_at != old.delivered_at:
            yield f"delivered_at of intent {old.seq} moved"
        if old.consumed_at is not None and new.consumed_at != old.consumed_at:
            yield f"consumed_at of intent {old.seq} moved"
        same = old.mode is not None and (old.mode, old.batch_id) == (new.mode, new.batch_id)
        if same and old.batch_completed_at is not None and new.batch_completed_at != old.batch_completed_at:
            yield f"batch_completed_at of intent {old.seq} moved"
        if same and old.payload_offered_at is not None and new.payload_offered_at != old.payload_offered_at:
            yield f"payload_offered_at of intent {old.seq} moved"


def _proved(change: Change) -> Iterator[str]:
    """Law 10, and section 6: from what, and only from what, an intent is acknowledged."""
    for old, new in change.kept():
        if new.state is not _S.ACKNOWLEDGED or old.resolved:
            continue
        if new.delivered_at is not None and new.acknowledged_at is not None and new.delivered_at > new.acknowledged_at:
            yield f"intent {new.seq} was delivered after it was acknowledged"
        if any(isinstance(event, Discard) for event in change.events):
            if old.exhausted_at is None:
                yield f"intent {new.seq} was discarded and is not exhausted"
            continue
        if old.batch_completed_at is None and old.handshake_at is None:
            yield f"intent {new.seq} was acknowledged without a completed batch or an accepted handshake"
        if old.state is not _S.DELIVERED:
            if old.payload_offered_at is None:
                yield f"intent {new.seq} was acknowledged; its payload was never offered to the open batch"
            if new.delivered_at != old.batch_completed_at:
                yield f"intent {new.seq} was recovered with another time than its batch's"


def _final(change: Change) -> Iterator[str]:
    for old, new in change.kept():
        if old.resolved and old != new:
            yield f"intent {old.seq} is {old.state} and was written"


def _one_alive(change: Change) -> Iterator[str]:
    live = [row.incarnation_id for row in change.after.incarnations if row.live]
    if len(live) > 1:
        yield f"{' and '.join(live)} are alive at once"


def _attended(change: Change) -> Iterator[str]:
    """No process may live beside an intent that only a replacement can be told, or that nobody may be told."""
    live = [row.incarnation_id for row in change.after.incarnations if row.live]
    for row in change.after.intents:
        lonely = row.mode is None and row.state in {_S.RECONCILING, _S.MATERIALIZED, _S.RECOVERY_REQUIRED}
        if live and (lonely or row.exhausted_at is not None):
            yield f"{live[0]} lives beside intent {row.seq}, which has no proof it could be served by"
        if live and row.mode is not None and row.incarnation_id != live[0]:
            yield f"{live[0]} lives beside intent {row.seq}, which is bound to {row.incarnation_id}"


def _bounded(change: Change) -> Iterator[str]:
    for row in change.after.incarnations:
        if row.startup_attempt is not None and row.startup_attempt > change.limits.startup_attempts_max:
            yield f"{row.incarnation_id} is startup attempt {row.startup_attempt}, beyond the last permitted one"
    for intent in change.after.intents:
        if intent.soft_redeliveries > change.limits.soft_redeliveries_max:
            yield f"intent {intent.seq} was redelivered softly {intent.soft_redeliveries} times"


def _fenced(change: Change) -> Iterator[str]:
    live = {row.incarnation_id for row in change.before.incarnations if row.live}
    for old, new in change.kept():
        bound = new.incarnation_id is not None and new.incarnation_id in {
            row.incarnation_id for row in change.before.incarnations
        }
        rebound = (old.batch_id, old.mode) != (new.batch_id, new.mode)
        if bound and rebound and new.incarnation_id not in live:
            yield f"intent {new.seq} was bound to {new.incarnation_id}, which is retired"


_LAWS: Final[dict[str, Callable[[Change], Iterator[str]]]] = {
    "1 (a result is whole)": _prepared,
    "2 (times)": _timed,
    "3 (nothing changes once prepared)": _constant,
    "4 (one at a time, in order)": _ordered,
    "5 (one whole proof)": _one_proof,
    "6 (no leftover proof)": _no_leftovers,
    "7 (markers)": _marked,
    "8 (ids are used once)": _used_once,
    "9 (the first time keeps)": _kept_times,
    "10 (acknowledged on proof)": _proved,
    "11 (resolved is final)": _final,
    "12 (one process)": _one_alive,
    "of the launch rule": _attended,
    "of the bounds": _bounded,
    "of the fence": _fenced,
}
"""Law 13 (one materialization an attempt) is about files and stands in `world`."""
