"""A damaged row blocks its own pane, which says so; the runtime opens and the other panes go on (design section 10)."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
import trio
import trio.testing
from bridges import Harness, Processes, Workspace, moved

from fencepost.supervisor import (
    Allow,
    CorruptRecord,
    Event,
    ModelTurn,
    Options,
    PlannedCall,
    Reason,
    Replay,
    Supervisor,
    SyncStatus,
    Tool,
    ToolResult,
    open_supervisor,
)

TURN = ModelTurn("turn-1", 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def damage(path, sql: str) -> None:
    """Change rows by hand, as no protocol would."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA ignore_check_constraints = 1")
        db.execute("PRAGMA foreign_keys = 0")
        assert db.execute(sql).rowcount == 1
        db.commit()


async def never_done(arguments, invocation) -> ToolResult:
    await trio.sleep_forever()
    raise AssertionError


class Held(Processes):
    """A Launcher whose `stop` never answers."""

    async def stop(self, incarnation) -> None:
        await trio.sleep_forever()


@asynccontextmanager
async def opened(path, **more) -> AsyncIterator[Supervisor]:
    tools = [Tool("never_done", never_done, replay=Replay.SAFE)]
    options = Options(close_seconds=0.2)
    workspace = Workspace(gate=trio.Event())
    async with open_supervisor(
        f"sqlite:///{path}", reconciler=workspace, tools=tools, options=options, **more
    ) as supervisor:
        yield supervisor


async def left_in_the_middle(path) -> None:
    """Two panes that reconcile, two with an open batch of tools, and two in the middle of being replaced."""
    async with opened(path) as supervisor:
        for name in ("moving", "moving too"):
            pane = supervisor.pane(name)
            harness = await Harness.start(pane)
            await pane.detect(moved("A", "B"))
            await harness.call(1, "b1", wait=0)
        for name in ("working", "working too"):
            pane = supervisor.pane(name)
            await pane.launch("claude-code")
            _ = await pane.start_batch("op", TURN, "entry", [PlannedCall("call-1", "never_done", {})])
    async with opened(path, launcher=Held()) as supervisor, trio.open_nursery() as nursery:
        for name in ("changing", "changing too"):
            pane = supervisor.pane(name)
            await pane.launch("claude-code")
            nursery.start_soon(pane.launch, "claude-code")
        retired = 0
        async for event in supervisor.events():
            retired += event.kind == "incarnation.retired"
            if retired == 2:
                break
        nursery.cancel_scope.cancel()


async def crashed(supervisor) -> Event:
    async for event in supervisor.events():
        if event.kind == "actor.crashed":
            return event
    raise AssertionError


DAMAGE = {
    "a reconciling intent": ("moving", "UPDATE intents SET planned_op = 'x' WHERE pane_id = 'moving'"),
    "text that is no text": ("moving", "UPDATE intents SET reason = CAST(x'ff' AS TEXT) WHERE pane_id = 'moving'"),
    "an open batch": ("working", "UPDATE batches SET cancel_reason = 'x' WHERE pane_id = 'working'"),
    "a batch's incarnation": ("working", "UPDATE incarnations SET retired_at = 1 WHERE pane_id = 'working'"),
    "a wish for a successor": ("changing", "UPDATE incarnations SET retire_reason = NULL WHERE pane_id = 'changing'"),
}


@pytest.mark.parametrize(("pane_id", "sql"), DAMAGE.values(), ids=DAMAGE)
async def test_one_damaged_row_blocks_its_own_pane_and_keeps_nobody_from_opening(path, pane_id, sql):
    await left_in_the_middle(path)
    damage(path, sql)
    processes = Processes()
    async with opened(path, launcher=processes) as supervisor:
        with trio.fail_after(5):
            event = await crashed(supervisor)
            await processes.launched(1 if pane_id == "changing" else 2)
        assert event.address in {f"pane:{pane_id}", f"batch:{pane_id}/op/turn-1"}
        assert "CorruptRecord" in str(event.data["cause"])
        with pytest.raises(CorruptRecord):
            await supervisor.pane(pane_id).launch("claude-code")
        assert await supervisor.pane("moving too").sync_status() is SyncStatus.PENDING
        (running,) = (await supervisor.pane("working too").snapshot()).running_tools
        assert running.tool_call_id == "call-1"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE intents SET planned_op = 'x' WHERE pane_id = 'theirs'",
        "UPDATE incarnations SET relaunch = 1 WHERE pane_id = 'theirs'",
    ],
)
async def test_what_names_another_panes_damaged_row_costs_this_pane_no_life(path, sql):
    async with opened(path) as supervisor:
        ours, theirs = supervisor.pane("ours"), supervisor.pane("theirs")
        harness, other = await Harness.start(ours), await Harness.start(theirs)
        intent = await theirs.detect(moved("A", "B"))
        damage(path, sql)
        for _ in range(Options().crashes_max + 2):
            unknown = await ours.mark_delivered(intent.intent_id, harness.incarnation_id, "turn-1", "b1")
            assert unknown.reason is Reason.UNKNOWN_INTENT
            for call in (ours.retire(other.incarnation_id, "no"), ours.startup_ready(other.incarnation_id, "x", "y")):
                if "incarnations" in sql:
                    with pytest.raises(CorruptRecord, match="a live incarnation asks to be replaced"):
                        await call
                else:
                    assert (await call).reason is Reason.OTHER_PANE
        assert await harness.call(1, "b1") == Allow()
        assert "actor.crashed" not in [event.kind async for event in supervisor.events(follow=False)]


async def test_damage_to_a_name_wakes_nobody_and_keeps_nobody_from_opening(path):
    await left_in_the_middle(path)
    damage(path, "UPDATE intents SET pane_id = 'ü' WHERE pane_id = 'moving'")
    damage(path, "UPDATE batches SET address = 'batch:half' WHERE pane_id = 'working'")
    async with opened(path) as supervisor:
        assert await supervisor.pane("moving too").sync_status() is SyncStatus.PENDING
        (running,) = (await supervisor.pane("working too").snapshot()).running_tools
        assert running.tool_call_id == "call-1"


@pytest.mark.parametrize("address", ["session:x", "nonsense", "batch:half"])
async def test_a_batch_whose_address_is_damaged_keeps_nobody_from_opening(path, address):
    url = f"sqlite:///{path}"
    async with open_supervisor(url, tools=[Tool("slow", never_done)], options=Options(close_seconds=0.1)) as supervisor:
        await supervisor.pane("left").launch("claude-code")
        batch = await supervisor.pane("left").start_batch("op", TURN, "entry", [PlannedCall("one", "slow", {})])
        assert batch.address.startswith("batch:left/")
    damage(path, f"UPDATE batches SET address = '{address}'")
    async with open_supervisor(url, tools=[Tool("slow", never_done)]) as supervisor:
        assert await supervisor.pane("right").sync_status() is SyncStatus.IN_SYNC


async def test_a_pane_outlives_the_damage_of_its_batch(path):
    url = f"sqlite:///{path}"
    async with open_supervisor(url, tools=[Tool("slow", never_done)], options=Options(close_seconds=0.1)) as supervisor:
        incarnation_id = (await supervisor.pane("left").launch("claude-code")).incarnation_id
        batch = await supervisor.pane("left").start_batch("op", TURN, "entry", [PlannedCall("one", "slow", {})])
        assert [call.status for call in await batch.calls()] != []
    damage(path, "UPDATE calls SET status = 'nonsense'")
    async with open_supervisor(url, tools=[Tool("slow", never_done)]) as supervisor:
        await supervisor.pane("left").retire(incarnation_id, "the test")  # which cancels its batch
        await trio.testing.wait_all_tasks_blocked()
        assert await supervisor.pane("left").sync_status() is SyncStatus.IN_SYNC
        crashed = [event async for event in supervisor.events(follow=False) if event.kind == "actor.crashed"]
        assert [event.address for event in crashed if event.address == "pane:left"] == []
