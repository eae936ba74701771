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

101 to 114 are the invariants 1 to 14 of the tool-durability note (`tool_invariants`), and 0 is the store itself, for
what neither numbers: a row that cannot be read, a key that is there twice, a reference to a row that is not there or
belongs to another pane, an epoch used twice, startup attempts that do not count from 1, a live process that the launch
rule (section 8) forbids, a batch that is bound and was never admitted, an owed projection of what was never delivered,
a gap between events, events that tell another story than the rows.

What only events can tell is judged from those that are kept; the oldest are trimmed away, and no law here takes a
trimmed event for one that never was.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeAlias

import orjson
import sniffio
import trio
from attrs import field, frozen

from fencepost.mailbox.codec import codec_of
from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.records import RECORD_TYPES, Record
from fencepost.mailbox.stores.store import StoreReader, open_reader
from fencepost.supervisor.tool_invariants import TABLES, tool_laws

__all__ = ["Violation", "check", "check_blocking"]

Row: TypeAlias = Mapping[str, Any]
"""A row as it is stored.  A bad one holds anything anywhere, so no value is used before its type was looked at."""


@frozen
class Violation:
    """One broken law: its number, the table and the readable key of the row that shows it, and what is wrong."""

    number: int
    table: str
    key: str
    message: str


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


# -- vocabulary: the protocol's words, written out once more on purpose -------------------------------------------

_PREPARED: Final = (
    "result_op",
    "workspace_commit",
    "payload",
    "payload_sha256",
    "anchor_change_id",
    "anchor_commit_id",
    "anchor_op_id",
    "prepared_at",
)
_SOFT: Final = ("turn_id", "turn_ordinal", "batch_id", "bound_at")
_SOFT_PROGRESS: Final = ("batch_completed_at", "payload_offered_at")
_PROOF: Final = ("mode", "incarnation_id", *_SOFT, *_SOFT_PROGRESS, "startup_delivery_id", "handshake_at")
_STARTUP: Final = (
    "startup_intent_id",
    "startup_delivery_id",
    "startup_payload_sha256",
    "startup_epoch",
    "startup_attempt",
)
_NOT_PREPARED_STATES: Final = {
    "detected",
    "reconciling",
    "recovery_required",
    "topology_diverged",
    "superseded",
}
_PREPARED_STATES: Final = {"materialized", "delivered", "acknowledged"}
_PROOFLESS_STATES: Final = {"detected", "acknowledged", "superseded"}
_ACTIVE_STATES: Final = {"reconciling", "materialized", "delivered", "recovery_required"}
_RESOLVED_STATES: Final = {"acknowledged", "superseded"}
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


# -- a row by itself ----------------------------------------------------------------------------------------------


def _missing(row: Row, names: Iterable[str]) -> list[str]:
    return [name for name in names if row[name] is None]


def _present(row: Row, names: Iterable[str]) -> list[str]:
    return [name for name in names if row[name] is not None]


def _later(one: object, other: object) -> bool:
    """Whether both are times and the first is the later one."""
    return type(one) is int and type(other) is int and one > other


def _sha256(payload: object) -> str | None:
    return hashlib.sha256(payload).hexdigest() if isinstance(payload, bytes) else None


def _intent_laws(row: Row) -> Iterator[tuple[int, str]]:
    """What is wrong with this intent row, whatever the others say."""
    state, mode = row["state"], row["mode"]
    if state in _PREPARED_STATES and (missing := _missing(row, _PREPARED)):
        yield 1, f"is {state} without {', '.join(missing)}"
    if state in _NOT_PREPARED_STATES and (present := _present(row, _PREPARED)):
        yield 1, f"is {state} and has {', '.join(present)}"
    if state == "delivered" and row["delivered_at"] is None:
        yield 2, "is delivered without delivered_at"
    if state == "acknowledged" and row["acknowledged_at"] is None:
        yield 2, "is acknowledged without acknowledged_at"
    if state != "acknowledged" and row["acknowledged_at"] is not None:
        yield 2, f"is {state} and has acknowledged_at"
    if state == "acknowledged" and row["delivered_at"] is None and row["discarded"] != 1:
        yield 2, "is acknowledged, was never delivered and was not discarded"
    if row["payload"] is not None and row["payload_sha256"] != _sha256(row["payload"]):
        yield 3, f"payload_sha256 is {row['payload_sha256']}, the payload's hash is {_sha256(row['payload'])}"
    if type(row["seq"]) is not int or row["seq"] < 1:
        yield 4, f"seq is {row['seq']!r}"
    yield from _proof_laws(row, mode)
    if state in _PROOFLESS_STATES and (bound := _present(row, _PROOF)):
        yield 6, f"is {state} and has {', '.join(bound)}"
    if _later(row["delivered_at"], row["acknowledged_at"]):
        yield 10, f"was delivered at {row['delivered_at']}, after it was acknowledged at {row['acknowledged_at']}"
    if row["consumed_at"] is not None and row["delivered_at"] is None:
        yield 0, "was consumed and never delivered"
    if (row["exhausted_at"] is None) != (row["approval"] is None):
        yield 0, "exhausted_at and approval do not come together"
    if row["exhausted_at"] is not None and mode != "restart_startup":
        yield 0, f"is exhausted in mode {mode}"
    if (row["planned_op"] is None) != (row["starting_op"] is None):
        yield 0, "planned_op and starting_op do not come together"


def _proof_laws(row: Row, mode: object) -> Iterator[tuple[int, str]]:
    soft, soft_missing = _present(row, _SOFT), _missing(row, _SOFT)
    if soft and soft_missing:
        yield 5, f"has {', '.join(soft)} without {', '.join(soft_missing)}"
    if mode == "soft_batch" and not soft:
        yield 5, "is in mode soft_batch without a tuple"
    if mode != "soft_batch" and soft:
        yield 5, f"has {', '.join(soft)} in mode {mode}"
    if mode != "soft_batch" and (progress := _present(row, _SOFT_PROGRESS)):
        yield 5, f"has {', '.join(progress)} in mode {mode}"
    if (mode == "restart_startup") != (row["startup_delivery_id"] is not None):
        yield 5, f"startup_delivery_id is {row['startup_delivery_id']} in mode {mode}"
    if (mode is None) != (row["incarnation_id"] is None):
        yield 5, f"incarnation_id is {row['incarnation_id']} in mode {mode}"
    if row["handshake_at"] is not None and mode != "restart_startup":
        yield 5, f"has handshake_at in mode {mode}"
    if mode == "restart_startup" and row["state"] in _NOT_PREPARED_STATES:
        yield 5, f"is {row['state']} in mode restart_startup, which only a payload can be"
    if row["state"] == "delivered" and mode is None:
        yield 5, "is delivered without a proof"
    if row["state"] != "delivered" and row["handshake_at"] is not None:
        yield 5, f"is {row['state']} and its handshake was accepted"


def _incarnation_laws(row: Row) -> Iterator[tuple[int, str]]:
    if row["retired_at"] is not None and row["delivered_intent_id"] is not None:
        yield 7, f"is retired and marks intent {row['delivered_intent_id']}"
    if (present := _present(row, _STARTUP)) and (missing := _missing(row, _STARTUP)):
        yield 8, f"has {', '.join(present)} without {', '.join(missing)}"
    if (row["retired_at"] is None) != (row["retire_reason"] is None):
        yield 0, "retired_at and retire_reason do not come together"
    if row["retired_at"] is None and row["relaunch"] != 0:
        yield 0, "is live and to be replaced"


def _admission_laws(row: Row) -> Iterator[tuple[int, str]]:
    if (row["decision"] == "block") != (row["intent_id"] is not None):
        yield 0, f"is a {row['decision']} and names intent {row['intent_id']}"
    if (row["turn_id"] == "") != (row["turn_ordinal"] is None):
        yield 0, "has half a turn"


_LAWS: Final = {"intents": _intent_laws, "incarnations": _incarnation_laws, "admissions": _admission_laws}


# -- reading ------------------------------------------------------------------------------------------------------


@frozen
class _Stored:
    """What the laws between rows need: intents and incarnations by key, without the payloads."""

    intents: dict[object, Row] = field(factory=dict)
    incarnations: dict[object, Row] = field(factory=dict)
    intents_of: dict[object, list[Row]] = field(factory=lambda: defaultdict(list))
    incarnations_of: dict[object, list[Row]] = field(factory=lambda: defaultdict(list))

    def parent(self, table: str, key: object) -> Row | None:
        return (self.intents if table == "intents" else self.incarnations).get(key)

    def live_of(self, pane_id: object) -> list[Row]:
        return [row for row in self.incarnations_of.get(pane_id, ()) if row["retired_at"] is None]


def _violations(reader: StoreReader) -> Iterator[Violation]:
    stored = _Stored()
    yield from _read(reader, "intents", stored.intents, stored.intents_of)
    yield from _read(reader, "incarnations", stored.incarnations, stored.incarnations_of)
    for intent in stored.intents.values():
        yield from _reference_violations("intents", intent, stored)
    for incarnation in stored.incarnations.values():
        yield from _reference_violations("incarnations", incarnation, stored)
    yield from _pane_violations(stored)
    yield from _marker_violations(stored)
    yield from _startup_violations(stored)
    yield from _trigger_violations(reader, stored)
    yield from _admission_violations(reader, stored)
    yield from _projection_violations(reader, stored)
    yield from _event_violations(reader, stored)
    for table in TABLES:
        for row in reader.raw(table):
            yield from _row_violations(table, row)
    for broken in tool_laws(reader, stored.incarnations):
        yield _violation(*broken)


def _read(
    reader: StoreReader, table: str, by_key: dict[object, Row], by_pane: dict[object, list[Row]]
) -> Iterator[Violation]:
    """Judge the rows one by one and keep them, without their long values."""
    for row in reader.raw(table):
        yield from _row_violations(table, row)
        key = row[_TYPES[table].KEY[0]]
        if key in by_key:
            yield _violation(0, table, row, "is there more than once")
            continue
        by_key[key] = {name: value for name, value in row.items() if name not in {"payload", "recovery_details"}}
        by_pane[row["pane_id"]].append(by_key[key])


_TYPES: Final[Mapping[str, type[Record]]] = {kind.TABLE: kind for kind in RECORD_TYPES}


def _key(table: str, row: Row) -> str:
    names = _TYPES[table].KEY if table in _TYPES else ("seq",)
    return ", ".join(value if isinstance(value, str) else repr(value) for value in (row[name] for name in names))


def _violation(number: int, table: str, row: Row, message: str) -> Violation:
    return Violation(number, table, _key(table, row), message)


def _row_violations(table: str, row: Row) -> Iterator[Violation]:
    """What is wrong with the row alone; that it cannot be read is news only where no law already says why."""
    explained = False
    for number, message in _LAWS.get(table, lambda _row: ())(row):
        explained = True
        yield _violation(number, table, row, message)
    if explained:
        return
    codec = codec_of(_TYPES[table])
    try:
        codec.decode([row[name] for name in codec.columns], table)
    except CorruptRecord as error:
        yield _violation(0, table, row, f"cannot be read: {str(error).removeprefix(f'{error.where}: ')}")


def _reference_violations(table: str, row: Row, stored: _Stored) -> Iterator[Violation]:
    for child, name, parent_table in _PARENTS:
        if child != table or row[name] is None:
            continue
        number = 7 if name == "delivered_intent_id" else 0
        parent = stored.parent(parent_table, row[name])
        if parent is None:
            yield _violation(number, table, row, f"{name} names {row[name]!r}, and {parent_table} has no such row")
        elif "pane_id" in row and parent["pane_id"] != row["pane_id"]:
            yield _violation(
                number, table, row, f"is of pane {row['pane_id']!r}; {name} names one of pane {parent['pane_id']!r}"
            )


# -- between rows -------------------------------------------------------------------------------------------------


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


def _pane_violations(stored: _Stored) -> Iterator[Violation]:
    for pane_id, rows in stored.intents_of.items():
        for row in _repeated(rows, "seq"):
            yield _violation(4, "intents", row, f"seq {row['seq']!r} is used more than once in pane {pane_id!r}")
        yield from _queue_violations(_in_order(rows, "seq"), stored.live_of(pane_id))
    for pane_id, rows in stored.incarnations_of.items():
        for row in _repeated(rows, "epoch"):
            yield _violation(0, "incarnations", row, f"epoch {row['epoch']!r} is used more than once in {pane_id!r}")
        live = stored.live_of(pane_id)
        for row in live[1:]:
            yield _violation(12, "incarnations", row, f"is live, and so is {live[0]['incarnation_id']!r}")
        launches = _in_order(rows, "epoch")
        for row in live:
            if launches and row["epoch"] != launches[-1]["epoch"]:
                later = launches[-1]["incarnation_id"]
                yield _violation(12, "incarnations", row, f"is live, though {later!r} is later")


def _queue_violations(rows: list[Row], live: list[Row]) -> Iterator[Violation]:
    """One pane's intents, oldest first: who may be active, who waits, and which process may live meanwhile."""
    active = [row for row in rows if row["state"] in _ACTIVE_STATES]
    for row in active[1:]:
        yield _violation(4, "intents", row, f"is {row['state']}, and {active[0]['intent_id']!r} is active too")
    head: Row | None = None
    for row in rows:
        if head is not None and (row["state"] in _ACTIVE_STATES or row["state"] == "acknowledged"):
            earlier = f"{head['intent_id']!r}, which is {head['state']}"
            yield _violation(4, "intents", row, f"is {row['state']} before the end of {earlier}")
        if head is None and row["state"] not in _RESOLVED_STATES:
            head = row
    if head is None:
        return
    for process in live:
        if head["exhausted_at"] is not None:
            yield _violation(0, "incarnations", process, f"is live, though intent {head['intent_id']!r} is exhausted")
        elif head["state"] in _ACTIVE_STATES and process["incarnation_id"] != head["incarnation_id"]:
            unbound = f"{head['state']} intent {head['intent_id']!r} is not bound to it"
            yield _violation(0, "incarnations", process, f"is live, though {unbound}")


def _marker_violations(stored: _Stored) -> Iterator[Violation]:
    live = [row for row in stored.incarnations.values() if row["retired_at"] is None]
    for row in _repeated(live, "delivered_intent_id"):
        yield _violation(7, "incarnations", row, f"marks intent {row['delivered_intent_id']!r}, and another does too")
    for row in stored.incarnations.values():
        intent = stored.intents.get(row["delivered_intent_id"]) if row["delivered_intent_id"] is not None else None
        if intent is None:
            continue
        if intent["state"] != "delivered":
            yield _violation(7, "incarnations", row, f"marks {intent['state']} intent {intent['intent_id']!r}")
        elif intent["incarnation_id"] != row["incarnation_id"]:
            yield _violation(
                7, "incarnations", row, f"marks intent {intent['intent_id']!r}, bound to {intent['incarnation_id']!r}"
            )
        elif intent["mode"] == "restart_startup" and intent["handshake_at"] is None:
            yield _violation(7, "incarnations", row, f"marks intent {intent['intent_id']!r} before its handshake")
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
            yield _violation(7, "intents", intent, f"is delivered to {unmarked}")


def _startup_violations(stored: _Stored) -> Iterator[Violation]:
    for row in _repeated(stored.incarnations.values(), "startup_delivery_id"):
        yield _violation(8, "incarnations", row, f"startup delivery {row['startup_delivery_id']!r} was used before")
    attempts: dict[tuple[object, object], list[Row]] = defaultdict(list)
    for row in stored.incarnations.values():
        intent = stored.intents.get(row["startup_intent_id"]) if row["startup_intent_id"] is not None else None
        if intent is None:
            continue
        attempts[row["startup_intent_id"], row["startup_epoch"]].append(row)
        if row["startup_payload_sha256"] != intent["payload_sha256"]:
            saved = f"intent {intent['intent_id']!r} has {intent['payload_sha256']}"
            yield _violation(3, "incarnations", row, f"has payload {row['startup_payload_sha256']}, {saved}")
        if _later(row["startup_epoch"], intent["epoch"]):
            ahead = f"{row['startup_epoch']}, intent {intent['intent_id']!r} is only at {intent['epoch']}"
            yield _violation(0, "incarnations", row, f"is of delivery epoch {ahead}")
    for started in attempts.values():
        for expected, row in enumerate(_in_order(started, "epoch"), start=1):
            if row["startup_attempt"] != expected:
                counted = f"attempt {expected} of its delivery epoch, not {row['startup_attempt']!r}"
                yield _violation(0, "incarnations", row, f"is {counted}")
    for intent in stored.intents.values():
        bound = stored.incarnations.get(intent["incarnation_id"])
        if intent["mode"] != "restart_startup" or bound is None:
            continue
        shown = (intent["startup_delivery_id"], intent["intent_id"])
        if shown != (bound["startup_delivery_id"], bound["startup_intent_id"]):
            minted = f"{bound['startup_delivery_id']!r} of intent {bound['startup_intent_id']!r}"
            shows = f"shows startup delivery {intent['startup_delivery_id']!r}"
            yield _violation(8, "intents", intent, f"{shows}, its incarnation has {minted}")


def _trigger_violations(reader: StoreReader, stored: _Stored) -> Iterator[Violation]:
    keys: Counter[tuple[object, object]] = Counter()
    positions: dict[object, list[object]] = defaultdict(list)
    for row in reader.raw("triggers"):
        yield from _row_violations("triggers", row)
        yield from _reference_violations("triggers", row, stored)
        positions[row["intent_id"]].append(row["position"])
        key = (row["pane_id"], row["operation_id"])
        keys[key] += 1
        if keys[key] > 1:
            yield _violation(0, "triggers", row, "is there more than once")
    for intent_id, intent in stored.intents.items():
        found = positions.get(intent_id, [])
        if not found:
            yield _violation(3, "intents", intent, "has no trigger")
        elif set(found) != set(range(len(found))):
            shown = ", ".join(sorted(map(repr, found)))
            yield _violation(3, "intents", intent, f"has triggers at {shown}, not from 0 on without a gap")


def _admission_violations(reader: StoreReader, stored: _Stored) -> Iterator[Violation]:
    bound = {
        (row["incarnation_id"], row["turn_id"], row["batch_id"]): row
        for row in stored.intents.values()
        if row["mode"] == "soft_batch"
        and (incarnation := stored.incarnations.get(row["incarnation_id"])) is not None
        and incarnation["retired_at"] is None
    }
    keys: set[tuple[object, ...]] = set()
    for row in reader.raw("admissions"):
        yield from _row_violations("admissions", row)
        yield from _reference_violations("admissions", row, stored)
        key = (row["incarnation_id"], row["turn_id"], row["batch_id"])
        if key in keys:
            yield _violation(0, "admissions", row, "is there more than once")
        keys.add(key)
    for key, intent in bound.items():
        if key not in keys:
            yield _violation(0, "intents", intent, f"is bound to batch {intent['batch_id']!r}, never admitted")


def _projection_violations(reader: StoreReader, stored: _Stored) -> Iterator[Violation]:
    for table in ("projections", "transcript"):
        keys: set[object] = set()
        for row in reader.raw(table):
            yield from _row_violations(table, row)
            yield from _reference_violations(table, row, stored)
            key = row[_TYPES[table].KEY[0]]
            if key in keys:
                yield _violation(0, table, row, "is there more than once")
            keys.add(key)
            intent = stored.intents.get(row["intent_id"])
            if intent is None:
                continue
            if intent["delivered_at"] is None:
                yield _violation(0, table, row, f"projects intent {row['intent_id']!r}, which was never delivered")
            if table == "transcript" and _sha256(row["payload"]) != intent["payload_sha256"]:
                yield _violation(3, table, row, f"is not the payload of intent {row['intent_id']!r}")


# -- what the events tell -----------------------------------------------------------------------------------------


@frozen
class _Told:
    """An event of an intent or an incarnation."""

    seq: int
    at: object
    kind: str
    data: Mapping[str, Any]


def _event_violations(reader: StoreReader, stored: _Stored) -> Iterator[Violation]:
    told: list[_Told] = []
    seqs: list[int] = []
    stored_events: Iterable[Row] = reader.raw("events")
    for row in stored_events:
        if type(row["seq"]) is not int or row["seq"] < 1:
            yield _violation(0, "events", row, "has no number")
            continue
        seqs.append(row["seq"])
        data, kind = _event_data(row), str(row["kind"])
        if data is None:
            yield _violation(0, "events", row, "cannot be read: it is not a kind, an address, a time and a JSON object")
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
            yield _violation(number, "intents", intent, message)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _event_data(row: Row) -> Mapping[str, Any] | None:
    try:
        data = orjson.loads(row["data"])
    except (orjson.JSONDecodeError, TypeError):
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


def _process_violations(told: Iterable[_Told], stored: _Stored) -> Iterator[Violation]:
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
                yield _violation(12, "incarnations", row, f"is live, though event {event.seq} retired it")


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
