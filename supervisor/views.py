"""Intents as a bridge sees them, read through the mutation line and so behind every earlier write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fencepost.actors.intent_state import view_of
from fencepost.actors.messages import IntentView
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.query import NOT_NULL, Query
from fencepost.mailbox.records import IncarnationRecord, IntentRecord, TriggerRecord

__all__ = ["intent_views"]


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
