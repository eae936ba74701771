"""What a batch does while somebody it needs is in quarantine, and with code of the bridge that will not end."""

from __future__ import annotations

import sqlite3

import pytest
import trio
from bridges import Harness, moved, payload_of
from tool_scenarios import World, call, opened, rows, started, statuses, texts, until

from fencepost.actors.tool_placement import Placement
from fencepost.mailbox.errors import MutationRefused
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.records import CheckpointRecord
from fencepost.mailbox.stores.sqlite_writer import Writer
from fencepost.supervisor import (
    ActorQuarantined,
    Applied,
    BatchMode,
    CapabilityExpired,
    Chaos,
    Checkpoint,
    Hooks,
    IntentState,
    OperationEnded,
    Options,
    Replay,
    StoreFault,
    Tool,
    ToolResult,
    check,
    open_supervisor,
)

FRAGILE = Options(crashes_max=0)
"""One death is a quarantine."""
HASTY = Options(tool_grace_seconds=0.05)
NOT_STARTED = "[Tool execution was aborted before it started.]"


async def strike(supervisor, address: str) -> None:
    """Have an address quarantined."""
    supervisor._runtime._registry.wake(address)
    await supervisor.kill(address)
    assert address in (await supervisor.status()).quarantined


async def refused_to_wait(batch) -> str:
    """Wait for the batch, and return whose quarantine that was told to come of."""
    with trio.fail_after(5), pytest.raises(ActorQuarantined) as quarantined:
        await batch.wait()
    return quarantined.value.address


# -- quarantine --


async def test_a_batch_outlives_the_quarantine_of_its_pane_and_places_when_it_is_revived(url):
    world = World()
    world.hold("A")
    async with opened(url, world, options=FRAGILE) as (supervisor, pane):
        batch = await started(pane, call("A"), call("B"))
        await until(batch, "effect_pending", "outcome_ready")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused_to_wait, batch)
            await trio.testing.wait_all_tasks_blocked()
            await strike(supervisor, "pane:pane")
            world.let_go()
        assert await statuses(batch) == ["outcome_ready", "outcome_ready"], "the outcomes are durable and wait"
        assert await refused_to_wait(batch) == "pane:pane", "also whoever asks later is told"
        assert (await supervisor.status()).quarantined == ("pane:pane",), "the batch itself is well"
        await supervisor.revive("pane:pane")
        with trio.fail_after(5):
            outcome = await batch.wait()
        assert texts(outcome.entries) == ["A done", "B done"]
        assert dict(world.begun) == {"A": 1, "B": 1}
    assert await check(url) == []


async def test_a_batch_that_is_held_up_can_be_cancelled_or_ended(url):
    world = World()
    world.hold("A")
    async with opened(url, world, options=FRAGILE) as (supervisor, pane):
        batch = await started(pane, call("A"))
        await world.running["A"].wait()
        await strike(supervisor, "pane:pane")
        world.let_go()
        assert await refused_to_wait(batch) == "pane:pane"
        assert await batch.cancel() == Applied()
        assert await refused_to_wait(batch) == "pane:pane", "an aborted batch must tell its pane as well"
        assert await batch.finalize_externally() == Applied()
        with pytest.raises(OperationEnded):
            await batch.wait()
        await supervisor.revive("pane:pane")
        other = await pane.start_batch("op-2", pane_turn(2), "assistant", [call("B")])
        assert texts((await other.wait()).entries) == ["B done"]
    assert await check(url) == []


async def test_a_held_up_batch_is_placed_by_the_next_runtime(url):
    world = World()
    world.hold("A")
    async with opened(url, world, options=FRAGILE) as (supervisor, pane):
        batch = await started(pane, call("A"))
        await world.running["A"].wait()
        await strike(supervisor, "pane:pane")
        world.let_go()
        await refused_to_wait(batch)
    world.reborn()
    async with opened(url, world) as (_, pane):
        assert texts((await pane.batch("op", "turn-1").wait()).entries) == ["A done"]
    assert world.begun["A"] == 1


@pytest.mark.parametrize("mode", [BatchMode.PARALLEL, BatchMode.SEQUENTIAL])
async def test_a_payload_is_placed_when_its_quarantined_intent_is_revived(url, monkeypatch, mode):
    place, struck = Placement._place_through_pane, []

    async def late(self, mutation, delivers, *, completes):
        if not struck:
            struck.append(delivers)
            await strike(supervisor, f"intent:{delivers}")
        return await place(self, mutation, delivers, completes=completes)

    monkeypatch.setattr(Placement, "_place_through_pane", late)
    world = World()
    async with opened(url, world, options=FRAGILE) as (supervisor, pane):
        await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        address = f"intent:{intent.intent_id}"
        batch = await started(pane, call("A"), call("B"), launch=False, mode=mode)
        assert await refused_to_wait(batch) == address
        assert (await supervisor.status()).quarantined == (address,)
        assert (await statuses(batch))[0] == "outcome_ready"
        await supervisor.revive(address)
        with trio.fail_after(5):
            outcome = await batch.wait()
        assert [text.encode() for text in texts(outcome.entries)] == [payload_of("B")] * 2
        assert dict(world.begun) == {}
        view = await supervisor.intent(intent.intent_id).view()
        assert (view.state, view.batch_completed_at is not None) == (IntentState.DELIVERED, True)
    assert await check(url) == []


async def test_calls_are_cleared_when_the_quarantined_intent_is_revived(url):
    world = World()
    async with opened(url, world, options=FRAGILE) as (supervisor, pane):
        await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        address = f"intent:{intent.intent_id}"
        await strike(supervisor, address)
        batch = await started(pane, call("A"), call("B"), launch=False)
        assert await refused_to_wait(batch) == address
        assert await statuses(batch) == ["planned", "planned"]
        await supervisor.revive(address)
        with trio.fail_after(5):
            outcome = await batch.wait()
        assert [text.encode() for text in texts(outcome.entries)] == [payload_of("B")] * 2
    assert await check(url) == []


async def test_calls_that_wait_for_a_revival_can_be_cancelled(url):
    world = World()
    async with opened(url, world, options=FRAGILE) as (supervisor, pane):
        await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await strike(supervisor, f"intent:{intent.intent_id}")
        batch = await started(pane, call("A"), launch=False)
        await refused_to_wait(batch)
        assert await batch.cancel() == Applied()
        with trio.fail_after(5):
            outcome = await batch.wait()
        assert (outcome.checkpoint, texts(outcome.entries)) == (Checkpoint.ABORTED, [NOT_STARTED])
        assert dict(world.begun) == {}


def pane_turn(number: int):
    from fencepost.supervisor import ModelTurn

    return ModelTurn(f"turn-{number}", number)


# -- code that ignores its cancellation --


class Stubborn:
    """A function of the bridge that goes on until it is let go, whatever it is told."""

    def __init__(self, answer=None) -> None:
        self.answer = answer
        self.running = trio.Event()
        self.let_go = trio.Event()
        self.ended = trio.Event()

    async def __call__(self, *_: object):
        self.running.set()
        with trio.CancelScope(shield=True):
            await self.let_go.wait()
        self.ended.set()
        return self.answer


async def settled_although(supervisor, batch, stubborn: Stubborn):
    """Cancel the batch while the stubborn code runs; its outcome comes after the grace and stays what it is."""
    await stubborn.running.wait()
    assert await batch.cancel() == Applied()
    with trio.fail_after(5):
        outcome = await batch.wait()
    stubborn.let_go.set()
    await stubborn.ended.wait()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert await batch.wait() == outcome
    assert (await supervisor.status()).fault is None
    return outcome


@pytest.mark.parametrize("which", ["validate", "before_tool"])
async def test_a_hook_before_the_effect_that_ignores_cancellation_is_given_up_and_its_call_never_runs(url, which):
    world, stubborn = World(), Stubborn({"name": "A"} if which == "validate" else None)
    tool = Tool("never", world.plain, validate=stubborn if which == "validate" else None)
    hooks = Hooks(before_tool=stubborn if which == "before_tool" else None)
    async with opened(url, world, tools=[tool], hooks=hooks, options=HASTY) as (supervisor, pane):
        batch = await started(pane, call("A"))
        outcome = await settled_although(supervisor, batch, stubborn)
    assert (texts(outcome.entries), outcome.checkpoint) == ([NOT_STARTED], Checkpoint.ABORTED)
    assert dict(world.begun) == {}
    assert await check(url) == []


async def test_a_hook_after_the_effect_that_ignores_cancellation_is_given_up_and_the_result_kept(url):
    world, stubborn = World(), Stubborn(ToolResult("replaced"))
    hooks = Hooks(after_tool=stubborn)
    async with opened(url, world, hooks=hooks, options=HASTY) as (supervisor, pane):
        batch = await started(pane, call("A"))
        outcome = await settled_although(supervisor, batch, stubborn)
        told = [event async for event in supervisor.events(follow=False)]
    assert texts(outcome.entries) == ["A done"], "the effect has happened"
    (failed,) = [event for event in told if event.kind == "after_tool.failed"]
    assert "ignored its cancellation" in str(failed.data["error"])
    assert rows(url, "checkpoints") == []
    assert await check(url) == []


async def test_a_replay_beside_an_execution_that_will_not_end_is_told_and_the_old_one_fenced(url):
    runs, late = [], []
    running, ignoring, over = trio.Event(), trio.Event(), trio.Event()

    async def tool(_arguments, invocation):
        runs.append(invocation.invocation_id)
        if len(runs) > 1:
            return ToolResult("replayed")
        running.set()
        with trio.CancelScope(shield=True):
            await ignoring.wait()
        with pytest.raises(CapabilityExpired) as expired:
            await invocation.set_memo("late", 1)
        late.append(expired.value)
        over.set()
        return ToolResult("too late")

    tools = [Tool("tool", tool, replay=Replay.SAFE)]
    async with open_supervisor(url, tools=tools, options=HASTY) as supervisor:
        batch = await started(supervisor.pane("pane"), call("A", "tool"))
        await running.wait()
        await supervisor.kill(batch.address)
        with trio.fail_after(5):
            outcome = await batch.wait()
        assert texts(outcome.entries) == ["replayed"]
        assert len(runs) == 2
        assert len(set(runs)) == 1
        told = [event async for event in supervisor.events(follow=False) if event.kind.startswith("tool_")]
        assert [event.kind for event in told] == ["tool_start", "tool_replay.overlaps", "tool_start", "tool_end"]
        ignoring.set()
        await over.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert await batch.wait() == outcome
        assert len(late) == 1
    assert await check(url) == []


async def test_a_replay_behind_an_execution_that_ended_tells_of_no_overlap(url):
    world = World()
    world.hold("A")
    async with opened(url, world) as (supervisor, pane):
        batch = await started(pane, call("A", "safe"))
        await world.running["A"].wait()
        await supervisor.kill(batch.address)
        world.let_go()
        await batch.wait()
        kinds = [event.kind async for event in supervisor.events(follow=False)]
    assert world.begun["A"] == 2
    assert "tool_replay.overlaps" not in kinds


# -- what calls share and what they do not --


async def test_calls_that_are_ready_together_share_their_mutations(url):
    chaos = Chaos()
    async with opened(url, World(), chaos) as (_, pane):
        await (await started(pane, *(call(f"n{number}", "quiet") for number in range(50)))).wait()
    for step in ("admit", "stage", "place"):
        assert chaos.trace.count(f"batch.{step}/decided") == 1


async def test_a_refusal_is_that_calls_own(url, monkeypatch):
    """A memo that the activation does not know of forbids one call's staging: the others' are not held up by it."""
    world = World()
    world.hold("A", "B", "C")
    commit, refused = MutationLine.commit, []

    async def noting(self, mutation):
        try:
            return await commit(self, mutation)
        except MutationRefused:
            refused.append(len(mutation.puts))
            raise

    monkeypatch.setattr(MutationLine, "commit", noting)

    async def forgetful(arguments, invocation):
        await invocation.set_memo("forgotten", 1)
        invocation.memo_names.clear()
        return await world.quiet(arguments, invocation)

    tools = [*world.tools(), Tool("forgetful", forgetful)]
    async with opened(url, world, tools=tools) as (supervisor, pane):
        batch = await started(pane, call("A", "quiet"), call("B", "forgetful"), call("C", "quiet"))
        for name in "ABC":
            await world.running[name].wait()
        world.let_go()
        with trio.fail_after(5):
            outcome = await batch.wait()
        assert texts(outcome.entries) == ["A done", "B done", "C done"]
        assert sorted(refused) == [2, 6], "all three together, then the one by itself"
        crashed = [event async for event in supervisor.events(follow=False) if event.kind == "actor.crashed"]
        assert crashed == []
    assert rows(url, "memos") == []
    assert await check(url) == []


# -- a store that fails --


async def test_a_checkpoint_that_cannot_be_written_faults_the_runtime_and_stays_told(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/store.db"
    put, saved = Writer._put, []

    def failing(self, record):
        if isinstance(record, CheckpointRecord):
            raise sqlite3.OperationalError("disk I/O error")
        put(self, record)

    async def tool(_arguments, invocation):
        invocation.update(ToolResult("half"), checkpoint=True)
        saved.append(invocation)
        await trio.sleep_forever()

    with monkeypatch.context() as broken:
        broken.setattr(Writer, "_put", failing)
        async with open_supervisor(url, tools=[Tool("tool", tool)]) as supervisor:
            batch = await started(supervisor.pane("pane"), call("A", "tool"))
            with trio.fail_after(5), pytest.raises(StoreFault, match="disk I/O error"):
                await batch.wait()
            for late in (batch.wait, batch.cancel, batch.calls):
                with pytest.raises(StoreFault, match="disk I/O error"):
                    await late()
            assert "disk I/O error" in str((await supervisor.status()).fault)
    assert rows(url, "checkpoints") == []
    async with opened(url, World()) as (_, pane):
        outcome = await pane.batch("op", "turn-1").wait()
    assert "external outcome is unknown" in texts(outcome.entries)[0]
    assert await check(url) == []
