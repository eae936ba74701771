"""Intents and tool batches as a bridge sees them, read through the mutation line and so behind every earlier write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fencepost.actors.intent_view import view_of
from fencepost.actors.messages import IntentView
from fencepost.actors.tool_messages import CallView, ResultEntry
from fencepost.actors.tool_results import entry_view
from fencepost.actors.tool_state import call_view
from fencepost.mailbox.errors import InvalidIdentifier, InvalidTransition
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.query import NOT_NULL, Above, Query, only
from fencepost.mailbox.records import (
    AdmissionDecision,
    AdmissionRecord,
    BatchRecord,
    CallRecord,
    EntryRecord,
    IncarnationRecord,
    IntentRecord,
    Record,
    TriggerRecord,
)

__all__ = ["batch_records", "call_views", "intent_view", "intent_views", "passed_without_turn", "result_entries"]


async def intent_views(line: MutationLine, pane_id: str) -> list[IntentView]:
    """The intents of a pane, oldest first, with their triggers and startup attempts."""
    pane = {"pane_id": pane_id}
    return _views(
        await line.load(
            Query(IntentRecord, pane, order_by=("seq",)),
            Query(TriggerRecord, pane, order_by=("position",)),
            Query(IncarnationRecord, {**pane, "startup_intent_id": NOT_NULL}),
        )
    )


async def intent_view(line: MutationLine, intent_id: str) -> IntentView | None:
    """One intent, or None if there is none with this id."""
    found = _views(
        await line.load(
            Query(IntentRecord, {"intent_id": intent_id}),
            Query(TriggerRecord, {"intent_id": intent_id}, order_by=("position",)),
            Query(IncarnationRecord, {"startup_intent_id": intent_id}),
        )
    )
    return found[0] if found else None


def _views(loaded: Sequence[Sequence[Record]]) -> list[IntentView]:
    """Views of the intents, made from them, all their triggers in order, and all incarnations bound to them."""
    intents, rows, bound = loaded
    starts = only(IncarnationRecord, bound)
    triggers: dict[str, list[str]] = defaultdict(list)
    for row in only(TriggerRecord, rows):
        triggers[row.intent_id].append(row.operation_id)
    return [
        view_of(intent, tuple(triggers[intent.intent_id]), _attempts(intent, starts))
        for intent in only(IntentRecord, intents)
    ]


def _attempts(intent: IntentRecord, starts: list[IncarnationRecord]) -> int:
    """Counted from the incarnation rows of the intent's current epoch (section 7.5)."""
    return sum((start.startup_intent_id, start.startup_epoch) == (intent.intent_id, intent.epoch) for start in starts)


async def passed_without_turn(line: MutationLine, pane_id: str, incarnation_id: str) -> list[str]:
    """The ids of the batches that this incarnation of the pane was let pass without a turn."""
    where = {"incarnation_id": incarnation_id, "turn_id": "", "pane_id": pane_id, "decision": AdmissionDecision.PASS}
    (found,) = await line.load(Query(AdmissionRecord, where))
    return [row.batch_id for row in found]


async def batch_records(line: MutationLine, pane_id: str, only_open: bool = False) -> list[BatchRecord]:
    """The batches of a pane, oldest first."""
    where: dict[str, object] = {"pane_id": pane_id, "checkpoint": None} if only_open else {"pane_id": pane_id}
    (found,) = await line.load(Query(BatchRecord, where, order_by=("seq",)))
    return found


async def call_views(line: MutationLine, address: str) -> list[CallView]:
    """The calls of a batch in source order; of one that was ended from outside, those whose results were placed."""
    (calls,) = await line.load(Query(CallRecord, {"batch": address}, order_by=("source_index",)))
    if not calls:
        (batches,) = await line.load(Query(BatchRecord, {"address": address}))
        if not batches:
            raise InvalidTransition(f"there is no {address}", state="absent", address=address)
    return [call_view(call) for call in calls]


async def result_entries(line: MutationLine, pane_id: str, after: str | None) -> list[ResultEntry]:
    """The results placed in a pane behind the entry `after`, in order.

    Raises `InvalidIdentifier` if the pane has no such entry.
    """
    where: dict[str, object] = {"pane_id": pane_id}
    if after is not None:
        (named,) = await line.load(Query(EntryRecord, {"entry_id": after, "pane_id": pane_id}))
        if not named:
            raise InvalidIdentifier("after", after, f"must be an entry of pane {pane_id}")
        where["seq"] = Above(named[0].seq)
    (rows,) = await line.load(Query(EntryRecord, where, order_by=("seq",)))
    return [entry_view(row) for row in rows]
