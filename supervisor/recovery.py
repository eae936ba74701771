"""What a reopened store is owed: found by query, handed to the actors that owe it.

Recovery has no execution path of its own.  It only wakes addresses; each actor then reads its state and does what
that state asks for, exactly as it would after a crash of its own (protocol-intent.md section 9, contract I-16):

    an intent that is reconciling                       its pane, which has the attempt resumed
    a startup attempt nobody has vouched for            its pane, which gives it up (with a Launcher)
    an incarnation the runtime wanted replaced          its pane, which goes on replacing it (with a Launcher)
    a delivery whose transcript projection is owed      its intent, which makes it
    a tool batch whose results are not all placed       the batch, which goes on with it
"""

from __future__ import annotations

from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import (
    BatchRecord,
    DeliveryMode,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    ProjectionRecord,
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
    for pane_id in sorted(panes):
        registry.wake(f"pane:{pane_id}")
    for projection in owed:
        registry.wake(f"intent:{projection.intent_id}")
    for batch in batches:
        registry.wake(batch.address)


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
