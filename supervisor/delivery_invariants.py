"""The audit of deliveries: the invariants of protocol-delivery.md section 10, as far as rows and events can tell.

Number 200 + n is that section's invariant n; the others are the client's, or nothing a store can show:

    202  a pane has at most one pending original, and at most one unresolved delivery
    203  a message is run at most once, and only after it was accepted
    204  an acceptance has its tombstone, with the same evidence
    205  what was accepted still reads as what was accepted
    207  a delivery is dispatched once, its stage only rises, and what is uncertain only becomes a stage

and 0 stands, as everywhere, for rows that cannot be read or do not fit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from fencepost.mailbox.claim import fingerprint_of
from fencepost.mailbox.stores.store import StoreReader
from fencepost.mailbox.strict_json import json_value

__all__ = ["TABLES", "delivery_laws"]

Row: TypeAlias = Mapping[str, Any]
Finding: TypeAlias = tuple[int, str, Row, str]
"""A number, the table, the row that shows it, and what is wrong."""

TABLES: Final = (
    "deliveries",
    "inbound_fences",
    "tombstones",
    "conversations",
    "acceptances",
    "runs",
    "settlements",
)

_EVIDENCE: Final = ("delivery_id", "pane_id", "binding", "fingerprint")
_STAGES: Final = ("stored", "delivered", "consumed", "responded")


def delivery_laws(reader: StoreReader) -> Iterator[Finding]:
    """Yield every broken law of the delivery tables."""
    yield from _outbound_laws(reader)
    yield from _inbound_laws(reader)
    yield from _story_laws(reader)


def _outbound_laws(reader: StoreReader) -> Iterator[Finding]:
    unresolved: Counter[object] = Counter()
    settled = {row["delivery_id"] for row in reader.raw("settlements")}
    for row in reader.raw("deliveries"):
        uncertain = row["stop"] == "uncertain"
        if row["resolved_at"] is None:
            unresolved[row["pane_id"]] += 1
            if unresolved[row["pane_id"]] > 1:
                yield 202, "deliveries", row, f"is unresolved, and another one to pane {row['pane_id']!r} is too"
        open_ended = row["outcome"] is None or uncertain
        if open_ended and row["resolved_at"] is not None and row["delivery_id"] not in settled:
            yield 207, "deliveries", row, "is uncertain, fences nothing, and nobody has settled it"
        if not open_ended and row["resolved_at"] is None:
            yield 207, "deliveries", row, f"is {row['stage'] or row['stop']} and still fences its pane"
        if row["dispatched_at"] is None and row["stage"] is not None:
            yield 207, "deliveries", row, f"is {row['stage']} and was never dispatched"
        if _fingerprint(row) != row["fingerprint"]:
            yield 205, "deliveries", row, "its text does not have its fingerprint"


def _inbound_laws(reader: StoreReader) -> Iterator[Finding]:
    tombstones = {row["delivery_id"]: row for row in reader.raw("tombstones")}
    fenced: Counter[object] = Counter()
    for fence in reader.raw("inbound_fences"):
        fenced[fence["pane_id"]] += 1
        if fenced[fence["pane_id"]] > 1:
            yield 202, "inbound_fences", fence, "another original of this pane is pending"
        tombstone = tombstones.get(fence["delivery_id"])
        if tombstone is not None and not _same(fence, tombstone):
            yield 202, "inbound_fences", fence, "fences other evidence than the tombstone of its id has"
    for acceptance in reader.raw("acceptances"):
        tombstone = tombstones.get(acceptance["delivery_id"])
        if tombstone is None or not _same(acceptance, tombstone):
            yield 204, "acceptances", acceptance, "has no tombstone with the same evidence"
        if _fingerprint(acceptance) != acceptance["fingerprint"]:
            yield 205, "acceptances", acceptance, "its text does not have its fingerprint"
    yield from _run_laws(reader, tombstones)


def _run_laws(reader: StoreReader, tombstones: Mapping[object, Row]) -> Iterator[Finding]:
    runs: Counter[object] = Counter()
    for run in reader.raw("runs"):
        runs[run["delivery_id"]] += 1
        if runs[run["delivery_id"]] > 1:
            yield 203, "runs", run, f"delivery {run['delivery_id']!r} has another run"
        tombstone = tombstones.get(run["delivery_id"])
        if tombstone is None or tombstone["pane_id"] != run["pane_id"]:
            yield 203, "runs", run, "is of a message its pane never attempted"


def _same(one: Row, other: Row) -> bool:
    return all(one[name] == other[name] for name in _EVIDENCE)


def _fingerprint(row: Row) -> str | None:
    return fingerprint_of(row["text"]) if isinstance(row["text"], str) else None


def _story_laws(reader: StoreReader) -> Iterator[Finding]:
    """What the events tell: each delivery in its order; those that were trimmed away tell nothing."""
    dispatched: Counter[object] = Counter()
    accepted: Counter[object] = Counter()
    reached: dict[object, str] = {}
    for row in sorted(reader.raw("events"), key=lambda row: row["seq"] if type(row["seq"]) is int else 0):
        if not str(row["kind"]).startswith("delivery."):
            continue
        data = _data(row)
        delivery_id = data.get("delivery_id")
        match row["kind"]:
            case "delivery.dispatched":
                dispatched[delivery_id] += 1
                if dispatched[delivery_id] > 1:
                    yield 207, "events", row, f"dispatches {delivery_id!r} again"
            case "delivery.accepted":
                accepted[delivery_id] += 1
                if accepted[delivery_id] > 1:
                    yield 203, "events", row, f"accepts {delivery_id!r} again"
            case "delivery.reported":
                now = str(data.get("stage") or data.get("stop"))
                before = reached.get(delivery_id)
                if before is not None and not _may_follow(before, now):
                    yield 207, "events", row, f"takes {delivery_id!r} from {before} to {now}"
                reached[delivery_id] = now
            case _:
                pass


def _may_follow(before: str, now: str) -> bool:
    """Whether a report may replace an earlier one; written out once more on purpose."""
    if before in _STAGES and now in _STAGES:
        return _STAGES.index(now) > _STAGES.index(before)
    return before == "uncertain" and now in _STAGES


def _data(row: Row) -> dict[str, Any]:
    try:
        data = json_value(row["data"])
    except (ValueError, TypeError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
