"""What a reopened store is owed: found by query, handed to the actors that owe it.

Recovery has no execution path of its own.  It only wakes addresses; each actor then reads its state and does what
that state asks for, exactly as it would after a crash of its own (protocol-intent.md section 9, contract I-16):

    an intent that is reconciling                       its pane, which has the attempt resumed
    a startup attempt nobody has vouched for            its pane, which gives it up (with a Launcher)
    an incarnation the runtime wanted replaced          its pane, which goes on replacing it (with a Launcher)
    a delivery whose transcript projection is owed      its intent, which makes it
    a tool batch whose results are not all placed       the batch, which goes on with it
    a delivery that was under way                       its pane, which says that nobody knows how far it got
    an accepted message whose turn has no end           its pane, which says that it failed and does not repeat it

A damaged row keeps nobody from opening (design section 10), so nothing is decoded here: rows are found by what the
query matches, and whoever is woken for a damaged one meets the damage, is blocked by it and says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from fencepost.mailbox.errors import InvalidIdentifier, MailboxClosed
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import (
    BatchRecord,
    DeliveryMode,
    DeliveryRecord,
    FenceRecord,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    ProjectionRecord,
    Record,
    RunRecord,
)
from fencepost.supervisor.registry import Registry

__all__ = ["recover"]

DELIVERIES_UNDER_WAY: Final[tuple[Query[Record], ...]] = (
    Query(DeliveryRecord, {"resolved_at": None, "outcome": None}),
    Query(FenceRecord),
    Query(RunRecord, {"ended_at": None}),
)
"""What tells of a delivery, out or in, that has no end."""

LAUNCHES_UNDER_WAY: Final[tuple[Query[Record], ...]] = (
    Query(IntentRecord, {"mode": DeliveryMode.RESTART_STARTUP.value, "handshake_at": None, "exhausted_at": None}),
    Query(IncarnationRecord, {"relaunch": True}),
)
"""What tells of a replacement that was begun and not vouched for."""

RECONCILING: Final = Query(IntentRecord, {"state": IntentState.RECONCILING.value})


async def recover(registry: Registry, line: MutationLine) -> None:
    """Wake everybody who owes something; returns once they are awake, not once they are done."""
    registry.delivery_debts = await _panes(line, DELIVERIES_UNDER_WAY)
    panes = set(registry.delivery_debts)
    if registry.reconciler is not None:
        panes |= await _panes(line, (RECONCILING,))
    if registry.launcher is not None:
        panes |= await _panes(line, LAUNCHES_UNDER_WAY)
    projections, batches = await line.load_fields(
        (Query(ProjectionRecord), "intent_id"), (Query(BatchRecord, {"checkpoint": None}), "address")
    )
    _wake(registry, (f"pane:{pane_id}" for pane_id in sorted(panes)))
    _wake(registry, (f"intent:{intent_id}" for intent_id in _texts(projections)))
    _wake(registry, _texts(batches))


async def _panes(line: MutationLine, queries: Iterable[Query[Record]]) -> set[str]:
    """The panes of all rows that match."""
    found = await line.load_fields(*((query, "pane_id") for query in queries))
    return {pane_id for values in found for pane_id in _texts(values)}


def _texts(values: Iterable[object]) -> list[str]:
    """Return, in a fixed order, those that can be somebody's name."""
    return sorted(value for value in values if isinstance(value, str))


def _wake(registry: Registry, addresses: Iterable[str]) -> None:
    for address in addresses:
        with suppress(InvalidIdentifier, MailboxClosed):  # damage to the name itself: no call can name it either
            registry.wake(address)
