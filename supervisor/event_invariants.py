"""The audit of what the events tell, against each other and against the rows.

What only events can tell is judged from those that are kept; the oldest are trimmed away, and no law here takes a
trimmed event for one that never was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

from attrs import frozen

from fencepost.mailbox.stores.store import StoreReader
from fencepost.mailbox.strict_json import json_value
from fencepost.supervisor.violations import Row, Stored, Violation, violation

__all__ = ["event_violations"]

_ENDS: Final = {"intent.acknowledged", "intent.superseded", "intent.discarded"}

_FOLLOWERS: Final[Mapping[str, frozenset[str]]] = {
    "detected": frozenset({"detected", "reconciling", "topology_diverged", "superseded"}),
    "reconciling": frozenset({"reconciling", "materialized", "recovery_required", "topology_diverged"}),
    "recovery_required": frozenset({"recovery_required", "reconciling", "detected"}),
    "topology_diverged": frozenset({"topology_diverged", "reconciling", "detected"}),
    "materialized": frozenset({"materialized", "delivered"}),
    "delivered": frozenset({"delivered", "acknowledged"}),
}
"""Which states may follow which; a recovery and a discard also lead from materialized to acknowledged."""


@frozen
class _Told:
    """An event of an intent or an incarnation."""

    seq: int
    at: object
    kind: str
    data: Mapping[str, Any]


def event_violations(reader: StoreReader, stored: Stored) -> Iterator[Violation]:
    """Yield every broken law about the events that are kept."""
    told: list[_Told] = []
    seqs: list[int] = []
    stored_events: Iterable[Row] = reader.raw("events")
    for row in stored_events:
        if type(row["seq"]) is not int or row["seq"] < 1:
            yield violation(0, "events", row, "has no number")
            continue
        seqs.append(row["seq"])
        data, kind = _event_data(row), str(row["kind"])
        if data is None:
            yield violation(0, "events", row, "cannot be read: it is not a kind, an address, a time and a JSON object")
        elif kind.startswith(("intent.", "incarnation.")):
            told.append(_Told(row["seq"], row["at"], kind, data))
    yield from _number_violations(seqs, [row["last_event_seq"] for row in reader.raw("trimmed")])
    told.sort(key=attrgetter("seq"))
    of_intent: dict[str | None, list[_Told]] = defaultdict(list)
    for event in told:
        if event.kind.startswith("intent."):
            of_intent[_text(event.data.get("intent_id"))].append(event)
    yield from _order_violations(told)
    yield from _process_violations(told, stored)
    for intent_id, events in of_intent.items():
        intent = stored.intents.get(intent_id)
        if intent is None:
            yield Violation(0, "events", str(events[0].seq), f"tells of intent {intent_id!r}, which has no row")
            continue
        for number, message in _story_laws(intent, events):
            yield violation(number, "intents", intent, message)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _event_data(row: Row) -> Mapping[str, Any] | None:
    try:
        data = json_value(row["data"])
    except (ValueError, TypeError, RecursionError):
        return None
    typed = type(row["at"]) is int and isinstance(row["kind"], str) and isinstance(row["address"], str)
    return data if typed and isinstance(data, dict) else None


def _number_violations(seqs: list[int], trimmed: list[object]) -> Iterator[Violation]:
    """Events are numbered without a gap, from 1 or from where the trimmed ones end."""
    if len(trimmed) != 1 or type(trimmed[0]) is not int or trimmed[0] < 0:
        yield Violation(0, "trimmed", "1", f"must be one row with the last number trimmed away, not {trimmed!r}")
        return
    before: int = trimmed[0]
    for one, next_one in pairwise([before, *sorted(seqs)]):
        if next_one != one + 1:
            yield Violation(0, "events", str(next_one), f"follows {one}" if next_one > one else f"stands behind {one}")


def _order_violations(told: Iterable[_Told]) -> Iterator[Violation]:
    """Intents of a pane are detected in the order of their seq."""
    last: dict[str, int] = {}
    for event in told:
        pane_id, seq = event.data.get("pane_id"), event.data.get("intent_seq")
        if "trigger_op" not in event.data or type(seq) is not int or not isinstance(pane_id, str):
            continue  # a later event of an intent that was there
        if seq <= last.get(pane_id, 0):
            yield Violation(4, "events", str(event.seq), f"opens seq {seq} of pane {pane_id!r} after {last[pane_id]}")
        last[pane_id] = max(seq, last.get(pane_id, 0))


def _process_violations(told: Iterable[_Told], stored: Stored) -> Iterator[Violation]:
    """A process is launched only when the one before it was retired, and a retired one stays retired."""
    running: dict[str, str] = {}
    for event in told:
        pane_id, incarnation_id = event.data.get("pane_id"), event.data.get("incarnation_id")
        if not isinstance(pane_id, str) or not isinstance(incarnation_id, str):
            continue
        if event.kind == "incarnation.launched":
            if pane_id in running:
                yield Violation(
                    12, "events", str(event.seq), f"launches {incarnation_id!r} while {running[pane_id]!r} was live"
                )
            running[pane_id] = incarnation_id
        elif event.kind == "incarnation.retired":
            if running.get(pane_id) == incarnation_id:
                del running[pane_id]
            row = stored.incarnations.get(incarnation_id)
            if row is not None and row["retired_at"] is None:
                yield violation(12, "incarnations", row, f"is live, though event {event.seq} retired it")


def _story_laws(intent: Row, events: list[_Told]) -> Iterator[tuple[int, str]]:
    """What is wrong between an intent and its events, oldest first; the first ones may be missing, never the last."""
    before: _Told | None = None
    ended: _Told | None = None
    prepared: _Told | None = None
    completed: _Told | None = None
    for event in events:
        if ended is not None:
            yield 11, f"event {event.seq} ({event.kind}) came after event {ended.seq} ({ended.kind})"
        if prepared is not None and event.kind == "intent.materialized":
            yield 13, f"event {event.seq} materializes it again, after event {prepared.seq}"
        if prepared is not None and event.kind == "intent.coalesced":
            yield 3, f"event {event.seq} moves its target, prepared since event {prepared.seq}"
        shown = event.data.get("payload_sha256")
        if shown is not None and shown != intent["payload_sha256"]:
            yield 3, f"event {event.seq} shows payload {shown}, the row has {intent['payload_sha256']}"
        if event.kind == "intent.batch_completed":
            if completed is not None and _batch(completed) == _batch(event):
                yield 9, f"event {event.seq} completes the batch that event {completed.seq} had completed"
            completed = event
        if event.kind == "intent.acknowledged" and event.data.get("recovered") is True:
            yield from _recovered_laws(intent, event, completed)
        if before is not None and ended is None and not _may_follow(before, event):
            yield (
                0,
                f"event {event.seq} left it {event.data.get('state')}, event {before.seq} {before.data.get('state')}",
            )
        before = event
        ended = event if event.kind in _ENDS else ended
        prepared = event if event.kind == "intent.materialized" else prepared
    yield from _last_words(intent, events[-1], completed, ended)
    yield from _base_laws(intent, events)
    if "trigger_op" in events[0].data:  # it is its first event, so they are all here
        yield from _first_delivery_laws(intent, events)


def _may_follow(one: _Told, other: _Told) -> bool:
    state, next_state = _text(one.data.get("state")), _text(other.data.get("state"))
    if state is None or next_state is None or next_state in _FOLLOWERS.get(state, ()):
        return True
    proved = other.data.get("recovered") is True or other.kind == "intent.discarded"
    return (state, next_state) == ("materialized", "acknowledged") and proved


def _batch(event: _Told) -> tuple[object, object]:
    return event.data.get("incarnation_id"), event.data.get("batch_id")


def _recovered_laws(intent: Row, event: _Told, completed: _Told | None) -> Iterator[tuple[int, str]]:
    if completed is not None and intent["delivered_at"] != completed.at:
        told = f"event {event.seq} recovered the delivery of a batch that completed at {completed.at}"
        yield 10, f"{told}, and delivered_at is {intent['delivered_at']}"


def _last_words(intent: Row, last: _Told, completed: _Told | None, ended: _Told | None) -> Iterator[tuple[int, str]]:
    """The row must be as the last event left it."""
    state = last.data.get("state")
    if state is not None and state != intent["state"]:
        yield 0 if ended is None else 11, f"is {intent['state']}, and event {last.seq} left it {state}"
    if completed is not None and intent["batch_completed_at"] not in {None, completed.at}:
        shown = intent["batch_completed_at"]
        yield 9, f"batch_completed_at is {shown}, and event {completed.seq} completed it at {completed.at}"


def _base_laws(intent: Row, events: list[_Told]) -> Iterator[tuple[int, str]]:
    """The bases are those it was opened with and last coalesced to."""
    targets = [event for event in events if event.data.get("to_base") is not None]
    if targets and targets[-1].data["to_base"] != intent["to_base"]:
        yield 3, f"to_base is {intent['to_base']}, and event {targets[-1].seq} left {targets[-1].data['to_base']}"
    from_base = events[0].data.get("from_base")
    if from_base is not None and from_base != intent["from_base"]:
        yield 3, f"from_base is {intent['from_base']}, and event {events[0].seq} opened it at {from_base}"


def _first_delivery_laws(intent: Row, events: list[_Told]) -> Iterator[tuple[int, str]]:
    deliveries = [event for event in events if event.kind == "intent.delivered"]
    recovered = any(event.data.get("recovered") is True for event in events)
    if intent["delivered_at"] is not None and not deliveries and not recovered:
        yield 0, f"was delivered at {intent['delivered_at']}, and no event says so"
    if deliveries and intent["delivered_at"] != deliveries[0].at:
        first = deliveries[0]
        yield 9, f"delivered_at is {intent['delivered_at']}, and event {first.seq} delivered it first, at {first.at}"
