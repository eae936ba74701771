"""The audit between rows: what must hold of a pane's intents, incarnations, and what names them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final

from fencepost.mailbox.stores.store import StoreReader
from fencepost.supervisor.row_invariants import row_violations
from fencepost.supervisor.violations import TYPES, Row, Stored, Violation, later, sha256_of, violation

__all__ = ["pane_violations"]

_ACTIVE_STATES: Final = {"reconciling", "materialized", "delivered", "recovery_required"}
_RESOLVED_STATES: Final = {"acknowledged", "superseded"}

_PARENTS: Final = (
    ("intents", "incarnation_id", "incarnations"),
    ("triggers", "intent_id", "intents"),
    ("incarnations", "delivered_intent_id", "intents"),
    ("incarnations", "startup_intent_id", "intents"),
    ("admissions", "incarnation_id", "incarnations"),
    ("admissions", "intent_id", "intents"),
    ("projections", "intent_id", "intents"),
    ("transcript", "intent_id", "intents"),
)
"""Which column of which table names a row of which other one; of the same pane, where both say a pane."""


def pane_violations(reader: StoreReader, stored: Stored) -> Iterator[Violation]:
    """Yield every broken law between the rows of the protocol's tables, and of the rows that only name others."""
    for intent in stored.intents.values():
        yield from _reference_violations("intents", intent, stored)
    for incarnation in stored.incarnations.values():
        yield from _reference_violations("incarnations", incarnation, stored)
    yield from _order_violations(stored)
    yield from _marker_violations(stored)
    yield from _startup_violations(stored)
    yield from _trigger_violations(reader, stored)
    yield from _admission_violations(reader, stored)
    yield from _projection_violations(reader, stored)


def _reference_violations(table: str, row: Row, stored: Stored) -> Iterator[Violation]:
    for child, name, parent_table in _PARENTS:
        if child != table or row[name] is None:
            continue
        number = 7 if name == "delivered_intent_id" else 0
        parent = stored.parent(parent_table, row[name])
        if parent is None:
            yield violation(number, table, row, f"{name} names {row[name]!r}, and {parent_table} has no such row")
        elif "pane_id" in row and parent["pane_id"] != row["pane_id"]:
            yield violation(
                number, table, row, f"is of pane {row['pane_id']!r}; {name} names one of pane {parent['pane_id']!r}"
            )


def _repeated(rows: Iterable[Row], name: str) -> Iterator[Row]:
    """Yield the rows whose value of `name` another row had before; absent values are no values."""
    seen: set[object] = set()
    for row in rows:
        if row[name] is None:
            continue
        if row[name] in seen:
            yield row
        seen.add(row[name])


def _in_order(rows: Iterable[Row], name: str) -> list[Row]:
    return sorted((row for row in rows if type(row[name]) is int), key=itemgetter(name))


def _order_violations(stored: Stored) -> Iterator[Violation]:
    for pane_id, rows in stored.intents_of.items():
        for row in _repeated(rows, "seq"):
            yield violation(4, "intents", row, f"seq {row['seq']!r} is used more than once in pane {pane_id!r}")
        yield from _queue_violations(_in_order(rows, "seq"), stored.live_of(pane_id))
    for pane_id, rows in stored.incarnations_of.items():
        for row in _repeated(rows, "epoch"):
            yield violation(0, "incarnations", row, f"epoch {row['epoch']!r} is used more than once in {pane_id!r}")
        live = stored.live_of(pane_id)
        for row in live[1:]:
            yield violation(12, "incarnations", row, f"is live, and so is {live[0]['incarnation_id']!r}")
        launches = _in_order(rows, "epoch")
        for row in live:
            if launches and row["epoch"] != launches[-1]["epoch"]:
                later = launches[-1]["incarnation_id"]
                yield violation(12, "incarnations", row, f"is live, though {later!r} is later")


def _queue_violations(rows: list[Row], live: list[Row]) -> Iterator[Violation]:
    """One pane's intents, oldest first: who may be active, who waits, and which process may live meanwhile."""
    active = [row for row in rows if row["state"] in _ACTIVE_STATES]
    for row in active[1:]:
        yield violation(4, "intents", row, f"is {row['state']}, and {active[0]['intent_id']!r} is active too")
    head: Row | None = None
    for row in rows:
        if head is not None and (row["state"] in _ACTIVE_STATES or row["state"] == "acknowledged"):
            earlier = f"{head['intent_id']!r}, which is {head['state']}"
            yield violation(4, "intents", row, f"is {row['state']} before the end of {earlier}")
        if head is None and row["state"] not in _RESOLVED_STATES:
            head = row
    if head is None:
        return
    for process in live:
        if head["exhausted_at"] is not None:
            yield violation(0, "incarnations", process, f"is live, though intent {head['intent_id']!r} is exhausted")
        elif head["state"] in _ACTIVE_STATES and process["incarnation_id"] != head["incarnation_id"]:
            unbound = f"{head['state']} intent {head['intent_id']!r} is not bound to it"
            yield violation(0, "incarnations", process, f"is live, though {unbound}")


def _marker_violations(stored: Stored) -> Iterator[Violation]:
    live = [row for row in stored.incarnations.values() if row["retired_at"] is None]
    for row in _repeated(live, "delivered_intent_id"):
        yield violation(7, "incarnations", row, f"marks intent {row['delivered_intent_id']!r}, and another does too")
    for row in stored.incarnations.values():
        intent = stored.intents.get(row["delivered_intent_id"]) if row["delivered_intent_id"] is not None else None
        if intent is None:
            continue
        if intent["state"] != "delivered":
            yield violation(7, "incarnations", row, f"marks {intent['state']} intent {intent['intent_id']!r}")
        elif intent["incarnation_id"] != row["incarnation_id"]:
            yield violation(
                7, "incarnations", row, f"marks intent {intent['intent_id']!r}, bound to {intent['incarnation_id']!r}"
            )
        elif intent["mode"] == "restart_startup" and intent["handshake_at"] is None:
            yield violation(7, "incarnations", row, f"marks intent {intent['intent_id']!r} before its handshake")
    for intent in stored.intents.values():
        bound = stored.incarnations.get(intent["incarnation_id"])
        if (
            intent["state"] == "delivered"
            and (intent["mode"] == "soft_batch" or intent["handshake_at"] is not None)
            and bound is not None
            and bound["retired_at"] is None
            and bound["delivered_intent_id"] != intent["intent_id"]
        ):
            unmarked = f"{bound['incarnation_id']!r}, which is live and does not mark it"
            yield violation(7, "intents", intent, f"is delivered to {unmarked}")


def _startup_violations(stored: Stored) -> Iterator[Violation]:
    for row in _repeated(stored.incarnations.values(), "startup_delivery_id"):
        yield violation(8, "incarnations", row, f"startup delivery {row['startup_delivery_id']!r} was used before")
    attempts: dict[tuple[object, object], list[Row]] = defaultdict(list)
    for row in stored.incarnations.values():
        intent = stored.intents.get(row["startup_intent_id"]) if row["startup_intent_id"] is not None else None
        if intent is None:
            continue
        attempts[row["startup_intent_id"], row["startup_epoch"]].append(row)
        if row["startup_payload_sha256"] != intent["payload_sha256"]:
            saved = f"intent {intent['intent_id']!r} has {intent['payload_sha256']}"
            yield violation(3, "incarnations", row, f"has payload {row['startup_payload_sha256']}, {saved}")
        if later(row["startup_epoch"], intent["epoch"]):
            ahead = f"{row['startup_epoch']}, intent {intent['intent_id']!r} is only at {intent['epoch']}"
            yield violation(0, "incarnations", row, f"is of delivery epoch {ahead}")
    for started in attempts.values():
        for expected, row in enumerate(_in_order(started, "epoch"), start=1):
            if row["startup_attempt"] != expected:
                counted = f"attempt {expected} of its delivery epoch, not {row['startup_attempt']!r}"
                yield violation(0, "incarnations", row, f"is {counted}")
    for intent in stored.intents.values():
        bound = stored.incarnations.get(intent["incarnation_id"])
        if intent["mode"] != "restart_startup" or bound is None:
            continue
        shown = (intent["startup_delivery_id"], intent["intent_id"])
        if shown != (bound["startup_delivery_id"], bound["startup_intent_id"]):
            minted = f"{bound['startup_delivery_id']!r} of intent {bound['startup_intent_id']!r}"
            shows = f"shows startup delivery {intent['startup_delivery_id']!r}"
            yield violation(8, "intents", intent, f"{shows}, its incarnation has {minted}")


def _trigger_violations(reader: StoreReader, stored: Stored) -> Iterator[Violation]:
    keys: Counter[tuple[object, object]] = Counter()
    positions: dict[object, list[object]] = defaultdict(list)
    for row in reader.raw("triggers"):
        yield from row_violations("triggers", row)
        yield from _reference_violations("triggers", row, stored)
        positions[row["intent_id"]].append(row["position"])
        key = (row["pane_id"], row["operation_id"])
        keys[key] += 1
        if keys[key] > 1:
            yield violation(0, "triggers", row, "is there more than once")
    for intent_id, intent in stored.intents.items():
        found = positions.get(intent_id, [])
        if not found:
            yield violation(3, "intents", intent, "has no trigger")
        elif set(found) != set(range(len(found))):
            shown = ", ".join(sorted(map(repr, found)))
            yield violation(3, "intents", intent, f"has triggers at {shown}, not from 0 on without a gap")


def _admission_violations(reader: StoreReader, stored: Stored) -> Iterator[Violation]:
    bound = {
        (row["incarnation_id"], row["turn_id"], row["batch_id"]): row
        for row in stored.intents.values()
        if row["mode"] == "soft_batch"
        and (incarnation := stored.incarnations.get(row["incarnation_id"])) is not None
        and incarnation["retired_at"] is None
    }
    keys: set[tuple[object, ...]] = set()
    for row in reader.raw("admissions"):
        yield from row_violations("admissions", row)
        yield from _reference_violations("admissions", row, stored)
        key = (row["incarnation_id"], row["turn_id"], row["batch_id"])
        if key in keys:
            yield violation(0, "admissions", row, "is there more than once")
        keys.add(key)
    for key, intent in bound.items():
        if key not in keys:
            yield violation(0, "intents", intent, f"is bound to batch {intent['batch_id']!r}, never admitted")


def _projection_violations(reader: StoreReader, stored: Stored) -> Iterator[Violation]:
    for table in ("projections", "transcript"):
        keys: set[object] = set()
        for row in reader.raw(table):
            yield from row_violations(table, row)
            yield from _reference_violations(table, row, stored)
            key = row[TYPES[table].KEY[0]]
            if key in keys:
                yield violation(0, table, row, "is there more than once")
            keys.add(key)
            intent = stored.intents.get(row["intent_id"])
            if intent is None:
                continue
            if intent["delivered_at"] is None:
                yield violation(0, table, row, f"projects intent {row['intent_id']!r}, which was never delivered")
            if table == "transcript" and sha256_of(row["payload"]) != intent["payload_sha256"]:
                yield violation(3, table, row, f"is not the payload of intent {row['intent_id']!r}")
