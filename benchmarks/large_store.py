"""A store of many panes: how long it takes to open, and what its panes weigh in memory."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import trio
from lives import RARELY, new_id

from fencepost.actors.messages import Reconciled
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.records import IncarnationRecord, IntentRecord, IntentState, TransitionKind, TriggerRecord
from fencepost.mailbox.stores.store import open_store
from fencepost.supervisor.options import Options
from fencepost.supervisor.runtime import open_supervisor


def make_large_store(url: str, panes: int, unresolved: int) -> list[str]:
    """Make a store of `panes` launched panes; the first `unresolved` of them have an intent that is reconciling.

    That is the state that asks most of whoever opens the store.  Returns the panes' ids.
    """
    pane_ids = [new_id() for _ in range(panes)]

    async def run() -> None:
        line = MutationLine(open_store(url), on_committed=lambda _events: None)
        await line.start()
        async with trio.open_nursery() as nursery:
            for number, pane_id in enumerate(pane_ids):
                nursery.start_soon(line.commit, _stored_pane(pane_id, reconciling=number < unresolved))
        await line.aclose()

    trio.run(run)
    return pane_ids


def _stored_pane(pane_id: str, *, reconciling: bool) -> Mutation:
    at = time.time_ns()
    incarnation = IncarnationRecord(
        incarnation_id=new_id(), pane_id=pane_id, epoch=1, harness="bench", session_id=new_id(), launched_at=at
    )
    if not reconciling:
        return Mutation(label="bench.pane", puts=(incarnation,))
    intent = IntentRecord(
        intent_id=new_id(),
        pane_id=pane_id,
        seq=1,
        kind=TransitionKind.PARENT_ADVANCE,
        from_base=new_id(),
        to_base=new_id(),
        classification_op=new_id(),
        detected_at=at,
        state=IntentState.RECONCILING,
    )
    trigger = TriggerRecord(pane_id=pane_id, operation_id=new_id(), intent_id=intent.intent_id, position=0, at=at)
    return Mutation(label="bench.pane", puts=(incarnation, intent, trigger))


def open_large_store(url: str, unresolved: int) -> tuple[float, float]:
    """Seconds until a large store is open, and until every interrupted reconciliation of it was taken up again."""
    opened = resumed = 0.0

    async def run() -> None:
        nonlocal opened, resumed
        waiting = unresolved
        everybody = trio.Event()

        class Waiting:
            async def reconcile(self, attempt: object) -> Reconciled:  # noqa: ARG002 - the port's name
                nonlocal waiting
                waiting -= 1
                if waiting == 0:
                    everybody.set()
                await trio.sleep_forever()
                raise AssertionError

        gc.collect()
        started = time.perf_counter()
        async with open_supervisor(url, reconciler=Waiting()):
            opened = time.perf_counter() - started
            await everybody.wait()
            resumed = time.perf_counter() - started

    trio.run(run)
    return opened, resumed


def bytes_per_pane(url: str, pane_ids: Sequence[str]) -> tuple[float, float]:
    """Bytes that each addressed pane holds once it is asleep, and while it is awake."""
    asleep = awake = 0.0
    warm, pane_ids = pane_ids[:100], pane_ids[100:]

    async def ask_all(supervisor: Any, panes: Sequence[str]) -> None:
        for pane_id in panes:
            await supervisor.pane(pane_id).sync_status()

    async def until_asleep(supervisor: Any) -> None:
        while (await supervisor.status()).awake:  # noqa: ASYNC110 - nobody is told who fell asleep
            await trio.sleep(0.05)

    async def run_asleep() -> None:
        nonlocal asleep
        async with open_supervisor(url, options=Options(idle_seconds=0.2)) as supervisor:
            await ask_all(supervisor, warm)
            await until_asleep(supervisor)
            before = _traced()
            await ask_all(supervisor, pane_ids)
            await until_asleep(supervisor)
            asleep = (_traced() - before) / len(pane_ids)

    async def run_awake() -> None:
        nonlocal awake
        async with open_supervisor(url, options=RARELY) as supervisor:
            await ask_all(supervisor, warm)
            before = _traced()
            await ask_all(supervisor, pane_ids)
            awake = (_traced() - before) / len(pane_ids)

    tracemalloc.start()
    try:
        trio.run(run_asleep)
        trio.run(run_awake)
    finally:
        tracemalloc.stop()
    return asleep, awake


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
