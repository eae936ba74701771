"""What a runtime looks like from outside, read beside it: nothing here waits for the mutation line."""

from __future__ import annotations

from attrs import frozen

from fencepost.mailbox.ladder import Stop
from fencepost.mailbox.query import NOT_NULL, Query
from fencepost.mailbox.records import UNRESOLVED_STATES, BatchRecord, DeliveryRecord, IntentRecord
from fencepost.mailbox.stores.store import StoreReader

__all__ = ["RuntimeStatus", "StoreCounts", "count_store", "counted"]


@frozen(kw_only=True)
class RuntimeStatus:
    """A runtime at one moment (contract G-12)."""

    panes: int
    awake: int
    """Actors that hold a task and memory right now."""
    unresolved_intents: int
    open_batches: int
    uncertain_deliveries: int
    """Deliveries nobody knows the outcome of and nobody has settled; of intents, the exhausted ones."""
    dead_letters: int
    quarantined: tuple[str, ...]
    """Addresses that crashed too often; `supervisor.revive(address)` lets one try again."""
    fault: str | None
    line_depth: int
    """Calls of the mutation line that have no answer yet."""


@frozen(kw_only=True)
class StoreCounts:
    """The part of the status that is in the store."""

    panes: int
    unresolved_intents: int
    open_batches: int
    uncertain_deliveries: int
    dead_letters: int


def count_store(reader: StoreReader) -> StoreCounts:
    """Count what the status shows, all from one moment."""
    with reader.snapshot():
        return counted(reader)


def counted(reader: StoreReader) -> StoreCounts:
    """Count it within a snapshot of the caller's."""
    unresolved = tuple(state.value for state in UNRESOLVED_STATES)
    return StoreCounts(
        panes=reader.pane_count(),
        unresolved_intents=reader.count(Query(IntentRecord, {"state": unresolved})),
        open_batches=reader.count(Query(BatchRecord, {"checkpoint": None})),
        uncertain_deliveries=(
            reader.count(Query(IntentRecord, {"exhausted_at": NOT_NULL}))
            + reader.count(Query(DeliveryRecord, {"resolved_at": None, "stop": Stop.UNCERTAIN.value}))
        ),
        dead_letters=reader.dead_letter_count(),
    )
