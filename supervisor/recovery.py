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
"""

from __future__ import annotations

from contextlib import suppress

from fencepost.mailbox.errors import CorruptRecord
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
    RunRecord,
)
from fencepost.supervisor.registry import Registry

__all__ = ["recover"]


async def recover(registry: Registry, line: MutationLine) -> None:
    """Wake everybody who owes something; returns once they are awake, not once they are done."""
    panes: set[str] = set()
    if registry.reconciler is not None:
        (reconciling,) = await line.load(Query(IntentRecord, {"state": IntentState.RECONCILING.value}))
        panes.update(intent.pane_id for intent in reconciling)
    if registry.launcher is not None:
        panes.update(await _launches_under_way(line))
    (owed,) = await line.load(Query(ProjectionRecord))
    (batches,) = await line.load(Query(BatchRecord, {"checkpoint": None}))
    registry.delivery_debts = await _deliveries_under_way(line)
    panes.update(registry.delivery_debts)
    for pane_id in sorted(panes):
        registry.wake(f"pane:{pane_id}")
    for projection in owed:
        registry.wake(f"intent:{projection.intent_id}")
    for batch in batches:
        registry.wake(batch.address)


async def _deliveries_under_way(line: MutationLine) -> set[str]:
    """Panes with a delivery, out or in, that has no end.

    A damaged row keeps nobody from opening; whoever uses it is told (design section 10).
    """
    panes: set[str] = set()
    with suppress(CorruptRecord):
        (deliveries,) = await line.load(Query(DeliveryRecord, {"resolved_at": None, "outcome": None}))
        panes.update(delivery.pane_id for delivery in deliveries)
    with suppress(CorruptRecord):
        (fences,) = await line.load(Query(FenceRecord))
        panes.update(fence.pane_id for fence in fences)
    with suppress(CorruptRecord):
        (runs,) = await line.load(Query(RunRecord, {"ended_at": None}))
        panes.update(run.pane_id for run in runs)
    return panes


async def _launches_under_way(line: MutationLine) -> set[str]:
    """Panes whose replacement was begun and not vouched for."""
    bound, wished = await line.load(
        Query(
            IntentRecord,
            {"mode": DeliveryMode.RESTART_STARTUP.value, "handshake_at": None, "exhausted_at": None},
        ),
        Query(IncarnationRecord, {"relaunch": True}),
    )
    return {record.pane_id for record in [*bound, *wished] if isinstance(record, IntentRecord | IncarnationRecord)}
