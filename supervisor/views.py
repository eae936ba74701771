"""Intents and tool batches as a bridge sees them, read through the mutation line and so behind every earlier write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fencepost.actors.intent_state import view_of
from fencepost.actors.messages import IntentView
from fencepost.actors.tool_messages import CallView, ResultEntry
from fencepost.actors.tool_results import entry_view
from fencepost.actors.tool_state import call_view
from fencepost.mailbox.errors import InvalidIdentifier, InvalidTransition
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.query import NOT_NULL, Query
from fencepost.mailbox.records import (
    BatchRecord,
    CallRecord,
    EntryRecord,
    IncarnationRecord,
    IntentRecord,
    TriggerRecord,
)

__all__ = ["batch_records", "call_views", "intent_views", "result_entries"]


async def intent_views(line: MutationLine, where: Mapping[str, str]) -> list[IntentView]:
    """The intents that match `where`, oldest first, with their triggers and startup attempts."""
    (intents,) = await line.load(Query(IntentRecord, where, order_by=("seq",)))
    if not intents:
        return []
    pane = {"pane_id": intents[0].pane_id}
    (rows,), (starts,) = (
        await line.load(Query(TriggerRecord, pane, order_by=("position",))),
        await line.load(Query(IncarnationRecord, {**pane, "startup_intent_id": NOT_NULL})),
    )
    triggers: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        triggers[row.intent_id].append(row.operation_id)
    return [view_of(intent, tuple(triggers[intent.intent_id]), _attempts(intent, starts)) for intent in intents]


def _attempts(intent: IntentRecord, starts: list[IncarnationRecord]) -> int:
    """Counted from the incarnation rows of the intent's current epoch (section 7.5)."""
    return sum((start.startup_intent_id, start.startup_epoch) == (intent.intent_id, intent.epoch) for start in starts)


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
    """The results placed in a pane behind the entry `after`, in order."""
    (rows,) = await line.load(Query(EntryRecord, {"pane_id": pane_id}, order_by=("seq",)))
    if after is None:
        return [entry_view(row) for row in rows]
    for index, row in enumerate(rows):
        if row.entry_id == after:
            return [entry_view(later) for later in rows[index + 1 :]]
    raise InvalidIdentifier("after", after, f"must be an entry of pane {pane_id}")
