"""Where batches and intents meet: clearance, payloads as results, placement as delivery and completion, retirement."""

from __future__ import annotations

import hashlib

import pytest
import trio
import trio.testing
from bridges import Harness, Workspace, moved, payload_of, reconciled
from tool_scenarios import World, call, opened, rows, started, statuses, texts, until

from fencepost.actors.calls import PreToolUse
from fencepost.actors.pane_batches import PaneBatches
from fencepost.actors.tool_placement import Placement
from fencepost.mailbox.line import MutationLine
from fencepost.supervisor import (
    ActorCrashed,
    Allow,
    Applied,
    Chaos,
    Checkpoint,
    Diverged,
    Hooks,
    IntentState,
    ModelTurn,
    NeedsRecovery,
    Options,
    Stage,
    SyncStatus,
    Tool,
    check,
)
from fencepost.supervisor.registry import Registry


def turn(number: int) -> ModelTurn:
    return ModelTurn(f"turn-{number}", number)


async def view_of(supervisor, intent):
    return await supervisor.intent(intent.intent_id).view()


async def test_a_blocked_batch_gets_exactly_the_saved_payload_and_that_is_its_delivery(url):
    world, hooked = World(), []
    hooks = Hooks(lambda *_: hooked.append(1), lambda *_: hooked.append(2))
    async with opened(url, world, hooks=hooks) as (supervisor, pane):
        await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        batch = await started(pane, call("A"), call("B", "absent"), call("C", refusal="cut"), launch=False)
        outcome = await batch.wait()
        assert [text.encode() for text in texts(outcome.entries)] == [payload_of("B")] * 3
        assert all(entry.is_error for entry in outcome.entries)
        assert (dict(world.begun), hooked) == ({}, [])
        view = await view_of(supervisor, intent)
        assert view.state is IntentState.DELIVERED
        assert view.stage is Stage.CONSUMED
        assert (view.turn, view.batch_id) == (turn(1), "op/turn-1")
        assert view.batch_completed_at is not None

        later = await pane.start_batch("op", turn(2), "assistant-2", [call("D", "quiet")])
        assert texts((await later.wait()).entries) == ["D done"]
        assert (await view_of(supervisor, intent)).state is IntentState.ACKNOWLEDGED
        assert await pane.sync_status() is SyncStatus.IN_SYNC
        kinds = [event.kind async for event in supervisor.events(follow=False)]
    delivered = kinds.index("intent.delivered")
    assert kinds.index("entry_added") < delivered < kinds.index("intent.batch_completed")
    assert await check(url) == []


async def test_placing_delivers_with_the_first_result_and_completes_with_the_last(url):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        batch = await started(pane, call("A", "in_turn"), call("B"), launch=False)
        await batch.wait()
        told = [event async for event in supervisor.events(follow=False)]
    kinds = [
        event.kind for event in told if event.kind in {"entry_added", "intent.delivered", "intent.batch_completed"}
    ]
    assert kinds == ["entry_added", "intent.delivered", "entry_added", "intent.batch_completed"]
    times = {event.kind: event.at for event in told}
    assert times["intent.delivered"] < times["intent.batch_completed"]
    assert intent is not None


async def test_calls_wait_for_a_reconciliation_without_a_budget(url):
    gate = trio.Event()
    world, workspace = World(), Workspace(gate=gate)
    async with opened(url, world, reconciler=workspace, options=Options(sibling_wait_seconds=0)) as (_, pane):
        await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        batch = await started(pane, call("A"), call("B"), launch=False)
        await workspace.started.wait()
        await trio.sleep(0.05)
        assert await statuses(batch) == ["planned", "planned"]
        gate.set()
        assert [text.encode() for text in texts((await batch.wait()).entries)] == [payload_of("B")] * 2


async def test_an_attempt_that_failed_is_waited_for_until_it_is_resumed(url):
    world, workspace = World(), Workspace(RuntimeError("disk on fire"))
    async with opened(url, world, reconciler=workspace) as (_, pane):
        await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        batch = await started(pane, call("A"), call("B"), launch=False)
        with trio.fail_after(5):
            outcome = await batch.wait()
        assert [text.encode() for text in texts(outcome.entries)] == [payload_of("B")] * 2
    assert len(workspace.attempts) == 2


async def test_a_conflict_gives_every_call_the_generic_text(url):
    for number, outcome in enumerate([NeedsRecovery("dirty"), Diverged("two ways")]):
        world = World()
        async with opened(f"{url}-{number}", world, reconciler=Workspace(outcome)) as (supervisor, pane):
            await Harness.start(pane)
            intent = await pane.detect(moved("A", "B"))
            entries = (await (await started(pane, call("A"), call("B"), launch=False)).wait()).entries
            assert len(set(texts(entries))) == 1
            assert "a person must resolve" in texts(entries)[0]
            assert all(entry.is_error for entry in entries)
            assert (await view_of(supervisor, intent)).batch_completed_at is not None
            assert dict(world.begun) == {}


async def test_a_batch_admitted_before_the_detection_runs_to_its_end(url):
    world = World()
    world.hold("A")
    async with opened(url, world) as (supervisor, pane):
        await Harness.start(pane)
        batch = await started(pane, call("A", "in_turn"), call("B"), launch=False)
        await world.running["A"].wait()
        intent = await pane.detect(moved("A", "B"))
        world.let_go()
        assert texts((await batch.wait()).entries) == ["A done", "B done"]
        assert (await view_of(supervisor, intent)).state is IntentState.DETECTED
        later = await pane.start_batch("op", turn(2), "assistant-2", [call("C")])
        assert [text.encode() for text in texts((await later.wait()).entries)] == [payload_of("B")]


async def test_a_staged_payload_is_placed_and_delivered_after_a_crash(url):
    from fencepost.supervisor import Chaos, StoreFault

    chaos, world = Chaos(), World()
    chaos.kill_at("batch.place/decided", what="runtime")
    async with opened(url, world, chaos) as (_, pane):
        try:
            await Harness.start(pane)
            await pane.detect(moved("A", "B"))
            batch = await started(pane, call("A"), launch=False)
            await batch.wait()
        except StoreFault:
            pass
    assert [row["status"] for row in rows(url, "calls")] == ["outcome_ready"]
    async with opened(url, world) as (supervisor, pane):
        outcome = await pane.batch("op", "turn-1").wait()
        assert [text.encode() for text in texts(outcome.entries)] == [payload_of("B")]
        (view,) = await pane.intents()
        assert (view.state, view.batch_completed_at is not None) == (IntentState.DELIVERED, True)
        assert (await supervisor.status()).open_batches == 0
    assert await check(url) == []


async def test_retiring_the_incarnation_cancels_its_batch(url):
    world = World()
    world.hold("A")
    async with opened(url, world) as (supervisor, pane):
        launch = await pane.launch("claude-code")
        batch = await started(pane, call("A"), call("B"), launch=False)
        await world.running["A"].wait()
        assert await pane.retire(launch.incarnation_id, "over") == Applied()
        outcome = await batch.wait()
        assert outcome.checkpoint is Checkpoint.ABORTED
        assert outcome.entries[0].is_error
        await pane.launch("claude-code")
        other = await pane.start_batch("op", turn(2), "x", [call("C")])
        assert texts((await other.wait()).entries) == ["C done"]
        assert (await supervisor.status()).quarantined == ()


async def test_a_batch_whose_incarnation_was_retired_while_nobody_looked_is_cancelled_on_open(url):
    from fencepost.supervisor import Chaos, StoreFault

    chaos, world = Chaos(), World()
    chaos.kill_at("pane.retire/committed", what="runtime")
    world.hold("A")
    async with opened(url, world, chaos) as (_, pane):
        launch = await pane.launch("claude-code")
        await started(pane, call("A", "safe"), launch=False)
        await world.running["A"].wait()
        with pytest.raises(StoreFault):
            await pane.retire(launch.incarnation_id, "over")
    world.reborn()
    async with opened(url, world) as (_, pane):
        outcome = await pane.batch("op", "turn-1").wait()
    assert outcome.checkpoint is Checkpoint.ABORTED
    assert "interrupted" in texts(outcome.entries)[0]
    assert world.begun["A"] == 1


async def test_a_block_that_restarts_the_process_ends_the_batch_truthfully(url):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "elsewhere")  # another batch of the harness is bound, and never completes
        batch = await started(pane, call("A"), call("B"), launch=False, turn=turn(2))
        outcome = await batch.wait()
        assert outcome.checkpoint is Checkpoint.ABORTED
        assert all(entry.is_error for entry in outcome.entries)
        assert dict(world.begun) == {}
        assert (await supervisor.status()).open_batches == 0
    assert await check(url) == []


async def test_a_replacements_first_batch_shows_its_startup_delivery(url):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        replacement = await pane.launch("claude-code")
        digest = hashlib.sha256(replacement.startup.payload).hexdigest()
        startup = replacement.startup.startup_delivery_id
        assert await pane.startup_ready(replacement.incarnation_id, startup, digest) == Applied()
        batch = await started(pane, call("A"), launch=False)
        assert texts((await batch.wait()).entries) == ["A done"]
        assert (await view_of(supervisor, intent)).state is IntentState.ACKNOWLEDGED


async def test_a_long_batch_id_is_bound_and_delivered_as_any_other(url):
    world = World()
    async with opened(url, world, reconciler=Workspace(reconciled("B"))) as (supervisor, pane):
        await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        batch = await pane.start_batch("o" * 256, ModelTurn("t" * 256, 1), "assistant", [call("A")])
        await batch.wait()
        view = await view_of(supervisor, intent)
        assert (view.state, view.batch_completed_at is not None) == (IntentState.DELIVERED, True)
        harness_call = await pane.pre_tool_use(boundary(view, turn(2)))
        assert harness_call == Allow()


def boundary(view, at):
    from fencepost.supervisor import ToolBoundary

    return ToolBoundary(view.incarnation_id, at, "next")


@pytest.mark.parametrize("others", [0, 2], ids=["alone", "with others"])
async def test_no_effect_begins_behind_the_retirement_of_its_incarnation(url, monkeypatch, others):
    judged, go = trio.Event(), trio.Event()

    async def slow(arguments):
        judged.set()
        await go.wait()
        return arguments

    world = World()
    tools = [*world.tools(), Tool("slow", world.quiet, validate=slow)]
    monkeypatch.setattr(PaneBatches, "_cancel", lambda *_: None)  # the word of the retirement is on its way
    async with opened(url, world, tools=tools) as (_, pane):
        launch = await pane.launch("claude-code")
        names = [f"A{number}" for number in range(others + 1)]
        batch = await started(pane, *(call(name, "slow") for name in names), launch=False)
        await judged.wait()
        assert await pane.retire(launch.incarnation_id, "over") == Applied()
        go.set()
        with trio.fail_after(5):
            outcome = await batch.wait()
        assert outcome.checkpoint is Checkpoint.ABORTED
        assert texts(outcome.entries) == ["[Tool execution was aborted before it started.]"] * len(names)
        assert dict(world.begun) == {}
    assert await check(url) == []


async def test_no_effect_is_replayed_behind_the_retirement_of_its_incarnation(url, monkeypatch):
    world = World()
    world.hold("A")
    async with opened(url, world) as (_, pane):
        launch = await pane.launch("claude-code")
        await started(pane, call("A", "safe"), launch=False)
        await world.running["A"].wait()
    world.reborn()
    replaying, go, commit = trio.Event(), trio.Event(), MutationLine.commit

    async def slow(self, mutation):
        if mutation.label == "batch.replay":
            replaying.set()
            await go.wait()
        return await commit(self, mutation)

    monkeypatch.setattr(MutationLine, "commit", slow)
    async with opened(url, world) as (_, pane):
        await replaying.wait()
        assert await pane.retire(launch.incarnation_id, "over") == Applied()
        go.set()
        with trio.fail_after(5):
            outcome = await pane.batch("op", "turn-1").wait()
        assert outcome.checkpoint is Checkpoint.ABORTED
        assert "external outcome is unknown" in texts(outcome.entries)[0]
        assert world.begun["A"] == 1
    assert await check(url) == []


async def test_a_batch_is_cancelled_though_the_pane_did_not_see_the_commit_that_retired_its_incarnation(
    url, monkeypatch
):
    chaos, world = Chaos(), World()
    chaos.kill_at("intent.bind_restart/applied")
    monkeypatch.setattr(Placement, "look", lambda _self: None)  # the batch stays open with its result
    async with opened(url, world, chaos) as (supervisor, pane):
        await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        batch = await started(pane, call("A"), launch=False)
        await until(batch, "outcome_ready")
        with pytest.raises(ActorCrashed):
            await pane.launch("claude-code")
        assert chaos.unhit() == []
        assert (await view_of(supervisor, intent)).startup_delivery_id is not None, "the commit stands"
        with trio.fail_after(5):
            while rows(url, "batches")[0]["cancel_requested_at"] is None:  # noqa: ASYNC110 - read from outside
                await trio.sleep(0.005)


async def test_a_batch_that_was_ended_while_it_waited_for_its_pane_is_bound_to_no_intent(url, monkeypatch):
    world, gates = World(), {"pane.start_batch": trio.Event(), "pane.detect": trio.Event()}
    commit = MutationLine.commit

    async def slow(self, mutation):
        if mutation.label in gates:
            await gates[mutation.label].wait()
        return await commit(self, mutation)

    asked, ask = trio.Event(), Registry.ask

    async def noting(self, address, message):
        if isinstance(message, PreToolUse):
            asked.set()
        return await ask(self, address, message)

    monkeypatch.setattr(MutationLine, "commit", slow)
    monkeypatch.setattr(Registry, "ask", noting)
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        await Harness.start(pane)
        nursery.start_soon(pane.start_batch, "op", turn(1), "assistant", [call("A")])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(pane.detect, moved("A", "B"))
        await trio.testing.wait_all_tasks_blocked()
        gates["pane.start_batch"].set()  # the pane goes on to the detection, and its batch asks behind that
        ended = pane.batch("op", "turn-1")
        await asked.wait()
        ended = pane.batch("op", "turn-1")
        assert await ended.finalize_externally() == Applied()
        gates["pane.detect"].set()
        assert await pane.sync_status() is SyncStatus.PENDING  # it has looked at everything that had come before
        (intent,) = await pane.intents()
        assert (intent.state, intent.batch_id) == (IntentState.DETECTED, None)

        later = await pane.start_batch("op", turn(2), "assistant-2", [call("B")])
        assert [text.encode() for text in texts((await later.wait()).entries)] == [payload_of("B")]
        assert (await supervisor.intent(intent.intent_id).view()).batch_id == "op/turn-2"
