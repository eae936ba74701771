"""Sample records and lines for the tests of the store."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Event, Mutation, NewDeadLetter, NewEvent
from fencepost.mailbox.ports import Kill
from fencepost.mailbox.records import (
    DeliveryMode,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    Record,
    TransitionKind,
    TriggerRecord,
)
from fencepost.mailbox.stores.store import Answer, Job, Probe, Run, Store, open_store

NOON = 1_700_000_000_000_000_000
PREPARED = {
    "result_op": "op-r",
    "workspace_commit": "commit-w",
    "payload": b"rebased \xf0\x9f\x8c\x8a\x00",
    "payload_sha256": "0" * 64,
    "anchor_change_id": "change-a",
    "anchor_commit_id": "commit-a",
    "anchor_op_id": "op-a",
    "prepared_at": NOON + 2,
}
SOFT = {
    "mode": DeliveryMode.SOFT_BATCH,
    "incarnation_id": "inc-1",
    "turn_id": "turn-1",
    "turn_ordinal": 1,
    "batch_id": "batch-1",
    "bound_at": NOON + 1,
}
RESTART = {"mode": DeliveryMode.RESTART_STARTUP, "incarnation_id": "inc-1", "startup_delivery_id": "startup-1"}
UNBOUND = dict.fromkeys(["mode", "incarnation_id", "turn_id", "turn_ordinal", "batch_id", "bound_at"])
STARTUP = {
    "startup_intent_id": "intent-1",
    "startup_delivery_id": "startup-1",
    "startup_payload_sha256": "0" * 64,
    "startup_epoch": 0,
    "startup_attempt": 1,
}


def intent(number: int = 1, **fields: object) -> IntentRecord:
    known: dict[str, object] = {
        "intent_id": f"intent-{number}",
        "pane_id": "pane-1",
        "seq": number,
        "kind": TransitionKind.PARENT_ADVANCE,
        "from_base": "base-a",
        "to_base": "base-b",
        "classification_op": "op-c",
        "detected_at": NOON,
    }
    return IntentRecord(**(known | fields))


def incarnation(number: int = 1, **fields: object) -> IncarnationRecord:
    known: dict[str, object] = {
        "incarnation_id": f"inc-{number}",
        "pane_id": "pane-1",
        "epoch": number,
        "harness": "claude",
        "launched_at": NOON,
    }
    return IncarnationRecord(**(known | fields))


def trigger(number: int = 1, **fields: object) -> TriggerRecord:
    known: dict[str, object] = {
        "pane_id": "pane-1",
        "operation_id": f"op-{number}",
        "intent_id": "intent-1",
        "position": number,
        "at": NOON,
    }
    return TriggerRecord(**(known | fields))


def event(kind: str = "intent.detected", **data: object) -> NewEvent:
    return NewEvent(kind=kind, address="intent:intent-1", at=NOON, data=data)


def dead_letter(detail: str = "too late") -> NewDeadLetter:
    return NewDeadLetter(
        at=NOON, address="pane:pane-1", call="mark_delivered", incarnation_id=None, reason="other_pane", detail=detail
    )


def putting(*records: Record, label: str = "intent.write", events: Sequence[NewEvent] = ()) -> Mutation:
    return Mutation(label=label, puts=records, events=tuple(events))


def life_of_an_intent() -> list[tuple[Record, ...]]:
    """What one softly delivered intent writes, mutation by mutation."""
    detected = intent()
    bound = detected.next(state=IntentState.RECONCILING, **SOFT)
    prepared = bound.next(state=IntentState.MATERIALIZED, **PREPARED)
    delivered = prepared.next(state=IntentState.DELIVERED, delivered_at=NOON + 3)
    completed = delivered.next(batch_completed_at=NOON + 4, consumed_at=NOON + 4)
    done = completed.next(state=IntentState.ACKNOWLEDGED, acknowledged_at=NOON + 5, batch_completed_at=None, **UNBOUND)
    live = incarnation()
    marked = live.next(delivered_intent_id="intent-1")
    return [
        (live,),
        (detected, trigger()),
        (bound,),
        (prepared,),
        (delivered, marked),
        (completed,),
        (marked.next(delivered_intent_id=None), done),
    ]


class Points:
    """Crash points that note what was passed and kill at one of them."""

    def __init__(self, at: str | None = None, what: Kill = Kill.ACTOR) -> None:
        self.passed_points: list[str] = []
        self._at = at
        self._what = what

    def passed(self, point: str) -> Kill | None:
        self.passed_points.append(point)
        return self._what if point == self._at else None


class GatedStore:
    """A store that lets a test hold a batch, look at it and break it; everything else is the store it wraps."""

    def __init__(self, store: Store) -> None:
        self.quick = False  # its gate is worth waiting for, whatever is behind it
        self.store = store
        self.url = store.url
        self.gate = threading.Event()
        self.taken = threading.Semaphore(0)
        self.batches: list[list[Job]] = []
        self.before: Callable[[Sequence[Job]], None] = lambda _jobs: None
        self.open = store.open
        self.close = store.close
        self.refuse = store.refuse
        self.reader = store.reader

    async def serve(self, work: Callable[[Run], None]) -> None:
        def gated(run: Run) -> None:
            def run_gated(jobs: Sequence[Job], probe: Probe | None) -> list[Answer]:
                self.batches.append(list(jobs))
                self.taken.release()
                self.gate.wait()
                self.before(jobs)
                return run(jobs, probe)

            work(run_gated)

        await self.store.serve(gated)

    async def until_taken(self) -> None:
        """Wait until the store's thread has taken the next batch."""
        await trio.to_thread.run_sync(self.taken.acquire)

    def let_pass(self) -> None:
        self.gate.set()


@asynccontextmanager
async def open_line(
    store: str | Store, events: list[Event] | None = None, **options: object
) -> AsyncIterator[MutationLine]:
    line = MutationLine(
        open_store(store) if isinstance(store, str) else store,
        on_committed=([] if events is None else events).extend,
        **options,
    )
    await line.start()
    try:
        yield line
    finally:
        if isinstance(store, GatedStore):
            store.let_pass()
        with trio.CancelScope(shield=True):
            await line.aclose()
