"""Tool batches, their recovery and their checkpoints, measured through the public calls.

A store with unresolved calls is made as a death makes it: `Chaos` kills the whole runtime when all of the effects have
begun and none of them has come to its end.  Each round then opens a copy of those files, so that the
death is the same one every time.
"""

from __future__ import annotations

import gc
import itertools
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio
from lives import RARELY, new_id

from fencepost.actors.invocation import Invocation
from fencepost.actors.messages import ModelTurn
from fencepost.actors.tool_messages import PlannedCall, Tool, ToolResult
from fencepost.mailbox.errors import StoreFault
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import CallRecord, CallStatus
from fencepost.mailbox.stores.store import open_reader
from fencepost.supervisor.chaos import Chaos
from fencepost.supervisor.runtime import open_supervisor
from fencepost.supervisor.supervisor import Pane, Supervisor

CHECKPOINT_BYTES: Final = 50 * 1024


def new_calls(count: int) -> list[PlannedCall]:
    """Return calls of the tool like no others."""
    return [PlannedCall(new_id(), "tool", {"argument": new_id()}) for _ in range(count)]


async def no_op(_arguments: object, _invocation: Invocation) -> ToolResult:
    """Do nothing; what a real tool does is not the runtime's cost."""
    return ToolResult("done")


async def timed_batch(pane: Pane, calls: list[PlannedCall], ordinal: int) -> float:
    """Seconds from `start_batch` until every result is placed."""
    operation_id, turn = new_id(), ModelTurn(new_id(), ordinal)
    started = time.perf_counter()
    batch = await pane.start_batch(operation_id, turn, new_id(), calls)
    outcome = await batch.wait()
    seconds = time.perf_counter() - started
    assert [entry.is_error for entry in outcome.entries] == [False] * len(calls), outcome
    return seconds


def no_op_batches(url: str, calls: int, times: int) -> list[float]:
    """Seconds of each batch of so many no-op calls, behind one that is not counted."""
    samples: list[float] = []

    async def run() -> None:
        async with open_supervisor(url, tools=[Tool("tool", no_op)], options=RARELY) as supervisor:
            pane = supervisor.pane(new_id())
            await pane.launch("bench")
            await timed_batch(pane, new_calls(min(calls, 8)), 1)
            samples.extend([await timed_batch(pane, new_calls(calls), ordinal) for ordinal in range(2, times + 2)])

    trio.run(run)
    return samples


# -- recovery ------------------------------------------------------------------------------------------------------


def leave_unresolved(path: Path, panes: int, calls: int) -> list[str]:
    """Make a store whose runtime was killed with so many effects begun in each of so many panes; return their ids."""
    pane_ids = [new_id() for _ in range(panes)]
    chaos = Chaos()
    begun, all_begun = itertools.count(1), trio.Event()

    async def never_over(_arguments: object, _invocation: Invocation) -> ToolResult:
        if next(begun) == panes * calls:
            all_begun.set()
        await trio.sleep_forever()
        raise AssertionError

    async def work(pane: Pane) -> None:
        with suppress(StoreFault):
            await pane.launch("bench")
            batch = await pane.start_batch("operation", ModelTurn("turn", 1), new_id(), new_calls(calls))
            await batch.wait()

    async def run() -> None:
        tools = [Tool("tool", never_over)]
        url = f"sqlite:///{path}"
        async with (
            open_supervisor(url, tools=tools, chaos=chaos, options=RARELY) as supervisor,
            trio.open_nursery() as nursery,
        ):
            for pane_id in pane_ids:
                nursery.start_soon(work, supervisor.pane(pane_id))
            await all_begun.wait()
            chaos.kill_at("pane.sync_status/received", what="runtime")
            with suppress(StoreFault):
                await supervisor.pane(pane_ids[0]).sync_status()

    with suppress(StoreFault):
        trio.run(run)
    assert not chaos.unhit(), "the runtime outlived its death"
    with open_reader(f"sqlite:///{path}") as reader:
        pending = reader.select(Query(CallRecord, {"status": CallStatus.EFFECT_PENDING.value}))
    assert len(pending) == panes * calls, f"only {len(pending)} calls are unresolved"
    return pane_ids


def copied(path: Path) -> Path:
    """Return another store of the same content, with the log that the death left behind."""
    other = path.with_name(f"{new_id()}.db")
    for ending in ("", "-wal"):
        source = path.with_name(path.name + ending)
        if source.exists():
            shutil.copyfile(source, other.with_name(other.name + ending))
    return other


def recover(path: Path, pane_ids: Sequence[str], calls: int) -> float:
    """Seconds from `open_supervisor` until every call has its outcome and every batch is closed."""
    recovered = 0.0

    async def until_over(supervisor: Supervisor, pane_id: str) -> None:
        batch = supervisor.pane(pane_id).batch("operation", "turn")
        outcome = await batch.wait()
        assert [entry.is_error for entry in outcome.entries] == [True] * calls, outcome

    async def run() -> None:
        nonlocal recovered
        gc.collect()
        started = time.perf_counter()
        async with open_supervisor(f"sqlite:///{path}", tools=[Tool("tool", no_op)], options=RARELY) as supervisor:
            async with trio.open_nursery() as nursery:
                for pane_id in pane_ids:
                    nursery.start_soon(until_over, supervisor, pane_id)
            recovered = time.perf_counter() - started

    trio.run(run)
    return recovered


# -- checkpoints ---------------------------------------------------------------------------------------------------


def new_bodies(count: int) -> list[str]:
    """Return so many texts of 50 KiB, each like no other."""
    return [secrets.token_hex(CHECKPOINT_BYTES // 2) for _ in range(count)]


def checkpoints(url: str, bodies: Sequence[str]) -> float:
    """Checkpoints a second of one call that asks for one after the other, until its result is placed.

    A request acknowledges nothing; what waits for all of them, in their order, is the settlement of the call.  So the
    time ends behind it, and has the commits of the outcome and of its placement in it as well.
    """
    started = rate = 0.0

    async def saving(arguments: dict[str, int], invocation: Invocation) -> ToolResult:
        nonlocal started
        started = time.perf_counter()
        for body in bodies[: arguments["count"]]:
            invocation.update(ToolResult(body), checkpoint=True)
            await trio.lowlevel.checkpoint()
        return ToolResult("done")

    async def run() -> None:
        nonlocal rate
        async with open_supervisor(url, tools=[Tool("saving", saving)], options=RARELY) as supervisor:
            pane = supervisor.pane(new_id())
            await pane.launch("bench")
            for ordinal, count in enumerate((3, len(bodies)), 1):
                call = PlannedCall(new_id(), "saving", {"count": count})
                batch = await pane.start_batch(new_id(), ModelTurn(new_id(), ordinal), new_id(), [call])
                await batch.wait()
                rate = count / (time.perf_counter() - started)

    trio.run(run)
    return rate
