"""The audit of tool batches: the tool note's fourteen invariants, as far as stored rows and events can tell.

Number 100 + n is the note's invariant n:

    101  an entry's id is its call's invocation id, and the two tell of the same call
    102  a call that has ended is never started again
    103  a ready call has its staged outcome, and nothing else has one
    104  the completed calls of a batch are a prefix in source order
    105  only placement extends it: a completed call has its entry, a closed batch has them all, in one chain
    106  a sequential batch has at most one call under way behind that prefix
    107  a memo belongs to a call that is effect_pending
    108  so does saved progress, which proves nothing else
    109  a result that recovery wrote says that the external outcome is unknown
    110  a staged outcome has left no memo and no progress behind
    111  a placed result has left no staged outcome behind
    112  nothing is written for a call that there is not
    113  a memo's value can be read
    114  a closed batch has left no arguments behind
    115  no effect starts behind the retirement of the incarnation its batch runs for
    116  no reconciliation begins while an effect of the pane is under way

where 115 and 116 are no invariants of the note but what the batches and their panes owe each other, and 0 stands, as
everywhere, for rows that cannot be read or do not fit together.  Like the rest of the audit it trusts neither the
store's constraints nor the records' own laws.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

from attrs import field, frozen

from fencepost.mailbox.stores.store import StoreReader
from fencepost.mailbox.strict_json import json_value

__all__ = ["TABLES", "tool_laws"]

Row: TypeAlias = Mapping[str, Any]
Finding: TypeAlias = tuple[int, str, Row, str]
"""A number, the table, the row that shows it, and what is wrong."""

TABLES: Final = ("batches", "calls", "call_arguments", "memos", "checkpoints", "outcomes", "entries", "usage")

_LONG: Final = frozenset({"arguments", "content", "details", "value"})
_SETTLED: Final = frozenset({"outcome_ready", "completed"})


@frozen
class _Stored:
    """The rows by key, without their long values."""

    batches: dict[object, Row] = field(factory=dict)
    calls: dict[object, Row] = field(factory=dict)
    of_batch: dict[object, list[Row]] = field(factory=lambda: defaultdict(list))
    outcomes: dict[object, Row] = field(factory=dict)
    entries: dict[object, Row] = field(factory=dict)
    usage: dict[object, Row] = field(factory=dict)


def tool_laws(reader: StoreReader, incarnations: Mapping[object, Row]) -> Iterator[Finding]:
    """Yield every broken law of the tool tables."""
    stored = _Stored()
    yield from _read(reader, stored)
    yield from _batch_laws(stored, incarnations)
    for address, batch in stored.batches.items():
        calls = sorted(stored.of_batch.get(address, ()), key=lambda row: _number(row["source_index"]))
        yield from _call_laws(batch, calls, stored)
    for call in stored.calls.values():
        if call["batch"] not in stored.batches:
            yield 0, "calls", call, f"is of batch {call['batch']!r}, which has no row"
    yield from _entry_laws(stored)
    yield from _effect_laws(reader, stored)
    yield from _story_laws(reader, stored)


def _number(value: object) -> int:
    return value if type(value) is int else -1


def _read(reader: StoreReader, stored: _Stored) -> Iterator[Finding]:
    keyed = {
        "batches": ("address", stored.batches),
        "calls": ("invocation_id", stored.calls),
        "outcomes": ("invocation_id", stored.outcomes),
        "entries": ("entry_id", stored.entries),
        "usage": ("entry_id", stored.usage),
    }
    for table, (name, rows) in keyed.items():
        for row in reader.raw(table):
            if row[name] in rows:
                yield 0, table, row, "is there more than once"
                continue
            rows[row[name]] = kept = {column: value for column, value in row.items() if column not in _LONG}
            if table == "calls":
                stored.of_batch[row["batch"]].append(kept)


def _batch_laws(stored: _Stored, incarnations: Mapping[object, Row]) -> Iterator[Finding]:
    opened: Counter[object] = Counter()
    seqs: set[tuple[object, object]] = set()
    for batch in stored.batches.values():
        incarnation = incarnations.get(batch["incarnation_id"])
        if incarnation is None or incarnation["pane_id"] != batch["pane_id"]:
            yield 0, "batches", batch, f"runs for {batch['incarnation_id']!r}, which is no incarnation of its pane"
        opened[batch["pane_id"]] += batch["checkpoint"] is None
        if batch["checkpoint"] is None and opened[batch["pane_id"]] > 1:
            yield 0, "batches", batch, f"is open, and another batch of pane {batch['pane_id']!r} is too"
        if (batch["pane_id"], batch["seq"]) in seqs:
            yield 0, "batches", batch, f"has seq {batch['seq']!r}, and another batch of its pane has it too"
        seqs.add((batch["pane_id"], batch["seq"]))


def _call_laws(batch: Row, calls: list[Row], stored: _Stored) -> Iterator[Finding]:
    """What is wrong between a batch and its calls, which are in source order."""
    ended = batch["checkpoint"] == "ended"
    places = [call["source_index"] for call in calls]
    if not ended and places != list(range(_number(batch["calls_count"]))):
        yield 0, "batches", batch, f"has calls at {places}, and was started with {batch['calls_count']!r}"
    prefix = 0
    while prefix < len(calls) and calls[prefix]["status"] == "completed":
        prefix += 1
    for call in calls[prefix:]:
        if call["status"] == "completed":
            yield 104, "calls", call, f"is completed, and the call at {places[prefix]} before it is not"
        if batch["checkpoint"] is not None:
            yield 105, "calls", call, f"is {call['status']}, though its batch is closed ({batch['checkpoint']})"
    under_way = [call for call in calls[prefix:] if call["status"] not in {"planned", "completed"}]
    if batch["mode"] == "sequential":
        for call in under_way[1:]:
            yield 106, "calls", call, f"is {call['status']}, and so is the call at {under_way[0]['source_index']}"
    parent = batch["assistant_entry_id"]
    for call in calls[:prefix]:
        entry = stored.entries.get(call["invocation_id"])
        if entry is None:
            yield 105, "calls", call, "is completed without its entry"
            continue
        if entry["parent_entry_id"] != parent:
            yield 105, "entries", entry, f"follows {entry['parent_entry_id']!r}, not {parent!r}"
        parent = entry["entry_id"]
        shown = (entry["pane_id"], entry["operation_id"], entry["turn_id"], entry["source_index"])
        told = (entry["tool_call_id"], entry["tool_name"], entry["terminate"])
        if shown != (batch["pane_id"], batch["operation_id"], batch["turn_id"], call["source_index"]) or told != (
            call["tool_call_id"],
            call["name"],
            call["terminate"],
        ):
            yield 101, "entries", entry, "does not tell of the call whose invocation id it has"
        if entry["seq"] != _number(batch["first_entry_seq"]) + _number(call["source_index"]):
            yield 105, "entries", entry, f"is at {entry['seq']!r}, which is not its source position's place"


def _entry_laws(stored: _Stored) -> Iterator[Finding]:
    for entry in stored.entries.values():
        call = stored.calls.get(entry["entry_id"])
        if call is None:
            yield 101, "entries", entry, "has the id of no call"
        elif call["status"] != "completed":
            yield 105, "entries", entry, f"is placed, and its call is {call['status']}"
        if (entry["usage"] is None) != (entry["entry_id"] not in stored.usage):
            yield 0, "entries", entry, "and its usage are not both there or both absent"
    for usage in stored.usage.values():
        if usage["entry_id"] not in stored.entries:
            yield 0, "usage", usage, "is of no entry"


def _effect_laws(reader: StoreReader, stored: _Stored) -> Iterator[Finding]:
    """What hangs on a call's status: memos, progress, outcomes, arguments."""
    for table, number in (("memos", 107), ("checkpoints", 108)):
        for row in reader.raw(table):
            call = stored.calls.get(row["invocation_id"])
            if call is None:
                yield 112, table, row, "is of a call that there is not"
            elif call["status"] in _SETTLED:
                yield 110, table, row, f"is still there, and its call is {call['status']}"
            elif call["status"] != "effect_pending":
                yield number, table, row, f"is there, and its call is {call['status']}"
            if table == "memos" and not _is_json(row["value"]):
                yield 113, table, row, "has a value that is not JSON"
    for outcome in stored.outcomes.values():
        call = stored.calls.get(outcome["invocation_id"])
        if call is None:
            yield 112, "outcomes", outcome, "is of a call that there is not"
        elif call["status"] == "completed":
            yield 111, "outcomes", outcome, "is still staged, and its call is placed"
        elif call["status"] != "outcome_ready":
            yield 103, "outcomes", outcome, f"is staged, and its call is {call['status']}"
    for call in stored.calls.values():
        if call["status"] == "outcome_ready" and call["invocation_id"] not in stored.outcomes:
            yield 103, "calls", call, "is ready without its outcome"
    yield from _argument_laws(reader, stored)


def _argument_laws(reader: StoreReader, stored: _Stored) -> Iterator[Finding]:
    found: set[object] = set()
    for row in reader.raw("call_arguments"):
        found.add(row["invocation_id"])
        call = stored.calls.get(row["invocation_id"])
        batch = None if call is None else stored.batches.get(call["batch"])
        if call is None:
            yield 112, "call_arguments", row, "are of a call that there is not"
        elif batch is not None and batch["checkpoint"] is not None:
            yield 114, "call_arguments", row, f"are still there, and {call['batch']} is closed"
        if not _is_json(row["arguments"]):
            yield 0, "call_arguments", row, "are not JSON"
    for call in stored.calls.values():
        if call["status"] in {"planned", "effect_pending"} and call["invocation_id"] not in found:
            yield 0, "calls", call, f"is {call['status']} without its arguments"


def _is_json(text: object) -> bool:
    try:
        json_value(cast("str", text))  # whatever is stored there
    except (ValueError, TypeError, RecursionError):
        return False
    return True


# -- what the events tell ----------------------------------------------------------------------------------------


_Told: TypeAlias = tuple[Row, Mapping[str, Any]]
"""An event and its data."""

_OF_A_CALL: Final = frozenset({"tool_start", "tool_end"})
_TELLING: Final = _OF_A_CALL | {"turn_end", "intent.reconciling", "incarnation.retired"}


def _story_laws(reader: StoreReader, stored: _Stored) -> Iterator[Finding]:
    """What is wrong in the story of the calls, from the events that are kept."""
    kept = sorted((row for row in reader.raw("events") if type(row["seq"]) is int), key=lambda row: _number(row["seq"]))
    whole = bool(kept) and kept[0]["seq"] == 1
    told = list(_told_in(kept))
    stories: dict[object, list[_Told]] = defaultdict(list)
    retired: dict[object, Row] = {}
    for row, data in told:
        if row["kind"] == "incarnation.retired":
            retired.setdefault(_hashable(data.get("incarnation_id")), row)
        elif row["kind"] in _OF_A_CALL:
            stories[_hashable(data.get("invocation_id"))].append((row, data))
    for invocation_id, story in stories.items():
        yield from _call_story(story, whole=whole)
        yield from _late_effects(story, stored.calls.get(invocation_id), retired, stored)
    yield from _surprised_effects(told, stored)


def _told_in(kept: Iterable[Row]) -> Iterator[_Told]:
    for row in kept:
        if row["kind"] in _TELLING and _is_json(row["data"]):
            data = json_value(cast("str", row["data"]))
            if isinstance(data, dict):
                yield row, data


def _hashable(value: object) -> object:
    return value if isinstance(value, str) else repr(value)


def _late_effects(
    story: list[_Told], call: Row | None, retired: Mapping[object, Row], stored: _Stored
) -> Iterator[Finding]:
    """Effects that started when their incarnation was no more."""
    ends = {row["seq"] for row, _ in story if row["kind"] == "tool_end"}
    for row, _ in story:
        batch = stored.batches.get(row["address"])
        gone = None if batch is None else retired.get(batch["incarnation_id"])
        if row["kind"] != "tool_start" or gone is None or row["seq"] < gone["seq"]:
            continue
        # A result that the runtime made itself starts and ends in one commit and has no effect.  A call tells whether
        # it had one, and of a call that is no more, because its batch was ended from outside, the events have to.
        if row["seq"] + 1 not in ends if call is None else call["replay"] is not None:
            yield 115, "events", row, f"starts an effect, and event {gone['seq']} had retired its incarnation"


def _surprised_effects(told: list[_Told], stored: _Stored) -> Iterator[Finding]:
    """Effects under way when an intent of their pane began to be reconciled; `told` is in order."""
    under_way: dict[object, dict[object, Row]] = defaultdict(dict)
    for row, data in told:
        of_batch = under_way[row["address"]]
        match row["kind"]:
            case "tool_start":
                of_batch[_hashable(data.get("invocation_id"))] = row
            case "tool_end":
                of_batch.pop(_hashable(data.get("invocation_id")), None)
            case "turn_end":
                of_batch.clear()
            case "intent.reconciling":
                for address, effects in under_way.items():
                    batch = stored.batches.get(address)
                    if effects and batch is not None and batch["pane_id"] == data.get("pane_id"):
                        started = next(iter(effects.values()))["seq"]
                        yield (
                            116,
                            "events",
                            row,
                            f"lets files change while the effect that event {started} began goes on",
                        )
            case _:
                pass


def _call_story(story: list[_Told], *, whole: bool) -> Iterator[Finding]:
    ended: Row | None = None
    started = replayed = False
    for row, data in story:
        if ended is not None:
            yield 102, "events", row, f"{row['kind']} of a call that event {ended['seq']} had ended"
        if row["kind"] == "tool_start":
            started = True
            replayed = replayed or data.get("recovery") is True
            continue
        ended = row
        if whole and not started:
            yield 102, "events", row, "ends a call that no event started"
        # Where no start is kept, the one of a replay may have been trimmed away.
        unexplained = data.get("recovery") is True and not replayed and (started or whole)
        if unexplained and "external outcome is unknown" not in str(row["data"]):
            yield 109, "events", row, "is a result of recovery and does not say that the outcome is unknown"
