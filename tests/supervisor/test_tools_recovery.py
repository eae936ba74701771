# ruff: noqa: ASYNC110 - what another task or process did is read from outside
"""What a crash leaves of a batch: replay, interruption, memos, steps, progress, and late capabilities."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.lowlevel
import trio.testing
from tool_scenarios import World, call, opened, rows, started, statuses, texts, until

from fencepost.actors.tool_steps import StepQueue
from fencepost.mailbox.line import MutationLine
from fencepost.supervisor import (
    Applied,
    CapabilityExpired,
    Chaos,
    Checkpoint,
    DuplicateStep,
    Hooks,
    InvalidIdentifier,
    OperationEnded,
    Options,
    PlannedCall,
    Replay,
    StoreFault,
    Tool,
    ToolResult,
    Unchanged,
    check,
    open_supervisor,
)

MARKER = (
    "[Tool execution was interrupted. The preceding output is the latest durable progress snapshot; newer live output"
    " may be missing, and the external outcome is unknown.]"
)


async def interrupted_in(url: str, world: World, *calls: PlannedCall, **more) -> None:
    """Start a batch, let every call get to its gate, and leave: a controlled crash."""
    names = [planned.tool_call_id.removeprefix("call-") for planned in calls]
    world.hold(*names)
    async with opened(url, world, **more) as (_, pane):
        batch = await started(pane, *calls)
        for name in names:
            await world.running[name].wait()
        await until(batch, *["effect_pending"] * len(calls))
    world.reborn()


# -- replay and interruption --


async def test_safe_replay_uses_the_persisted_arguments_and_the_same_invocation_id(url):
    world = World()

    def validate(arguments):
        return {**arguments, "filled": world.begun["A"]}

    tools = [Tool("safe", world.plain, replay=Replay.SAFE, validate=validate)]
    await interrupted_in(url, world, call("A", "safe"), tools=tools)
    async with opened(url, world, tools=tools) as (supervisor, pane):
        (entry,) = (await pane.batch("op", "turn-1").wait()).entries
        assert texts([entry]) == ["A done"]
        kinds = [(event.kind, event.data.get("recovery")) async for event in supervisor.events(follow=False)]
    assert world.invocations["A"] == {entry.entry_id}
    assert world.arguments["A"] == [{"name": "A", "filled": 0}] * 2, "not validated again"
    assert [pair for pair in kinds if pair[0] in {"tool_start", "tool_end"}] == [
        ("tool_start", False), ("tool_start", True), ("tool_end", True),
    ]  # fmt: skip
    assert await check(url) == []


async def test_safe_replay_preserves_step_memos_and_clears_old_partial_output(url):
    world = World()
    await interrupted_in(url, world, call("A", "memoized"))
    assert len(rows(url, "memos")) == 3
    assert len(rows(url, "checkpoints")) == 1
    world.hold("A")
    seen = []

    async def memoized(arguments, invocation):
        seen.append([row["invocation_id"] for row in rows(url, "checkpoints")])
        return await world.memoized(arguments, invocation)

    async with opened(url, world, tools=[Tool("memoized", memoized, replay=Replay.SAFE)]) as (_, pane):
        batch = pane.batch("op", "turn-1")
        await world.running["A"].wait()
        assert seen == [[]], "the old progress is gone before the replay emits its own"
        world.let_go()
        assert texts((await batch.wait()).entries) == ["A done"]
    assert dict(world.steps) == {"A/a": 1, "A/b": 1}


@pytest.mark.parametrize(
    ("stored", "declared"),
    [(Replay.SAFE, Replay.NEVER), (Replay.NEVER, Replay.SAFE), (Replay.NEVER, Replay.NEVER), (Replay.SAFE, None)],
)
async def test_a_downgrade_in_either_declaration_or_a_missing_tool_interrupts(url, stored, declared):
    world = World()
    await interrupted_in(url, world, call("A", "tool"), tools=[Tool("tool", world.plain, replay=stored)])
    tools = [] if declared is None else [Tool("tool", world.plain, replay=declared)]
    async with opened(url, world, tools=tools) as (_, pane):
        outcome = await pane.batch("op", "turn-1").wait()
    (entry,) = outcome.entries
    assert texts([entry]) == [f"A saved{MARKER}"]
    assert (entry.is_error, entry.terminate, entry.details) == (True, False, {"half": True})
    assert outcome.checkpoint is Checkpoint.NEED_ASSISTANT
    assert world.begun["A"] == 1


async def test_unsafe_recovery_without_and_with_a_checkpoint(url):
    world = World()
    await interrupted_in(url, world, call("A", "quiet"), call("B", "never"))
    called = []
    hooks = Hooks(lambda *_: called.append("before"), lambda *_: called.append("after"))
    async with opened(url, world, hooks=hooks) as (supervisor, pane):
        without, with_progress = (await pane.batch("op", "turn-1").wait()).entries
        ends = [event async for event in supervisor.events(follow=False) if event.kind == "tool_end"]
    assert "preceding output" not in texts([without])[0]
    assert "external outcome is unknown" in texts([without])[0]
    assert texts([with_progress]) == [f"B saved{MARKER}"]
    assert called == [], "a synthetic result runs no hook"
    assert all(event.data["recovery"] for event in ends)


async def test_an_empty_checkpoint_is_no_preceding_output(url):
    world = World()
    ready = trio.Event()

    async def tool(_arguments, invocation):
        invocation.update(ToolResult("", usage={"n": 1}, added_tool_names=("x",), terminate=True), checkpoint=True)
        ready.set()
        await trio.sleep_forever()

    async with opened(url, world, tools=[Tool("tool", tool)]) as (_, pane):
        await started(pane, call("A", "tool"))
        await ready.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
    async with opened(url, world) as (_, pane):
        (entry,) = (await pane.batch("op", "turn-1").wait()).entries
    assert "preceding" not in texts([entry])[0]
    assert (entry.usage, entry.added_tool_names, entry.terminate) == ({"n": 1}, (), False)


async def test_cancellation_never_replays_a_restored_call(url):
    world, chaos = World(), Chaos()
    chaos.kill_at("batch.cancel/committed", what="runtime")
    world.hold("A")
    async with opened(url, world, chaos) as (_, pane):
        batch = await started(pane, call("A", "safe"), call("B", "safe"), mode="sequential")
        await world.running["A"].wait()
        with pytest.raises(StoreFault):
            await batch.cancel()
    world.reborn()
    async with opened(url, world) as (_, pane):
        outcome = await pane.batch("op", "turn-1").wait()
    assert outcome.checkpoint is Checkpoint.ABORTED
    assert texts(outcome.entries) == [f"A saved{MARKER}", "[Tool execution was aborted before it started.]"]
    assert dict(world.begun) == {"A": 1}


async def test_a_cancel_between_clearing_the_old_progress_and_the_replay_keeps_what_it_showed(url, monkeypatch):
    world = World()
    await interrupted_in(url, world, call("A", "safe"))
    commit, cancelled = StepQueue._commit, []

    async def cancelling(self, mutation, steps):
        await commit(self, mutation, [])
        if self._transition == "replay":
            cancelled.append(await self._actor.request_cancel("just now"))
        for step in steps:
            if step.then is not None:
                step.then()

    monkeypatch.setattr(StepQueue, "_commit", cancelling)
    async with opened(url, world) as (_, pane):
        outcome = await pane.batch("op", "turn-1").wait()
    assert cancelled == [True]
    assert texts(outcome.entries) == [f"A saved{MARKER}"]
    assert world.begun["A"] == 1


async def test_close_is_a_controlled_crash_and_writes_no_outcome(url):
    world = World()
    await interrupted_in(url, world, call("A", "never"), call("B", "memoized"))
    assert {row["status"] for row in rows(url, "calls")} == {"effect_pending"}
    assert rows(url, "outcomes") == []
    assert len(rows(url, "checkpoints")) == 2
    assert await check(url) == []


async def test_a_batch_survives_the_deaths_of_its_actor(url):
    world = World()
    world.hold("A")
    async with opened(url, world) as (supervisor, pane):
        batch = await started(pane, call("A", "safe"), call("B", "quiet"))
        async with trio.open_nursery() as nursery:
            outcomes = []

            @nursery.start_soon
            async def _wait() -> None:
                outcomes.append(await batch.wait())

            await until(batch, "effect_pending", "outcome_ready")
            await world.running["A"].wait()
            await supervisor.kill(batch.address)
            with trio.fail_after(5):
                while world.begun["A"] < 2:
                    await trio.sleep(0.005)
            world.let_go()
        assert texts(outcomes[0].entries) == ["A done", "B done"]
    assert world.begun["B"] == 1


# -- memos and steps --


async def run_one(url: str, execute, *, replay=Replay.NEVER, **more):
    async with open_supervisor(url, tools=[Tool("tool", execute, replay=replay)], **more) as supervisor:
        batch = await started(supervisor.pane("pane"), call("A", "tool"))
        with trio.fail_after(10):
            return (await batch.wait()).entries[0]


async def test_memos_are_set_got_deleted_and_copied(url):
    async def tool(_arguments, invocation):
        value = {"list": [1]}
        await invocation.set_memo("a.b/c", value)
        value["list"].append(2)
        got = await invocation.get_memo("a.b/c")
        got["list"].append(3)
        assert await invocation.get_memo("a.b/c") == {"list": [1]}
        await invocation.set_memo("a.b/c", (1, 2))
        assert await invocation.get_memo("a.b/c") == [1, 2]
        await invocation.set_memo("a.b/c", None)
        assert await invocation.get_memo("a.b/c") is None
        await invocation.set_memo("never there", None)
        for bad in ("", "a:b", "x" * 257, 7):
            with pytest.raises(InvalidIdentifier):
                await invocation.get_memo(bad)
            with pytest.raises(InvalidIdentifier):
                await invocation.set_memo(bad, 1)
        with pytest.raises(ValueError):
            await invocation.set_memo("x", object())
        assert (invocation.operation_id, invocation.turn_id) == ("op", "turn-1")
        return ToolResult("fine")

    assert texts([await run_one(url, tool)]) == ["fine"]


async def test_a_step_records_its_value_where_a_memo_of_that_name_is(url):
    """By the note `step` asks `getMemo("step/" + name)` first, so whoever sets that memo has set the step's value."""
    ran = []

    def build() -> int:
        ran.append("build")
        return 7

    async def tool(_arguments, invocation):
        await invocation.set_memo("steps", 1)
        await invocation.set_memo("step/given", "by hand")
        assert await invocation.step("given", lambda: ran.append("given")) == "by hand"
        assert await invocation.step("build", build) == 7
        assert await invocation.get_memo("step/build") == 7
        assert {row["name"] for row in rows(url, "memos")} == {"step/build", "step/given", "steps"}
        return ToolResult("fine")

    assert texts([await run_one(url, tool)]) == ["fine"]
    assert ran == ["build"]


async def test_memos_of_two_calls_do_not_meet(url):
    async def tool(arguments, invocation):
        await invocation.set_memo("x", arguments["name"])
        await trio.sleep(0.01)
        return ToolResult(await invocation.get_memo("x"))

    async with open_supervisor(url, tools=[Tool("tool", tool)]) as supervisor:
        batch = await started(supervisor.pane("pane"), call("A", "tool"), call("B", "tool"))
        assert texts((await batch.wait()).entries) == ["A", "B"]


@pytest.mark.parametrize(("boundary", "runs"), [("enqueued", 2), ("written", 2), ("committed", 1)])
@pytest.mark.parametrize("what", ["actor", "runtime"])
async def test_a_crash_around_a_memos_commit_reruns_its_effect_only_before_it(url, boundary, runs, what):
    world, chaos = World(), Chaos()
    chaos.kill_at(f"batch.memo/{boundary}", what=what)
    if what == "actor":
        runs = 1  # the commit of a mutation that is in the line stands, whoever dies meanwhile
    async with opened(url, world, chaos) as (_, pane):
        try:
            batch = await started(pane, call("A", "memoized"))
            await batch.wait()
        except StoreFault:
            assert what == "runtime"
    assert chaos.unhit() == []
    async with opened(url, world) as (_, pane):
        assert texts((await pane.batch("op", "turn-1").wait()).entries) == ["A done"]
    assert world.steps["A/a"] == runs
    assert world.steps["A/b"] == 1


async def test_several_completed_steps_followed_by_an_interrupted_one(url):
    ran, hang = [], [True]

    async def tool(_arguments, invocation):
        for name in "abc":

            async def effect(name=name):
                ran.append(name)
                if name == "c" and hang:
                    at_c.set()
                    await trio.sleep_forever()
                return name.upper()

            assert await invocation.step(name, effect) == name.upper()
        return ToolResult("all")

    at_c = trio.Event()
    tools = [Tool("tool", tool, replay=Replay.SAFE)]
    async with open_supervisor(url, tools=tools) as supervisor:
        await started(supervisor.pane("pane"), call("A", "tool"))
        await at_c.wait()
    hang.clear()
    async with open_supervisor(url, tools=tools) as supervisor:
        await supervisor.pane("pane").batch("op", "turn-1").wait()
    assert ran == ["a", "b", "c", "c"]


async def test_steps_record_none_refuse_a_name_twice_and_forget_errors(url):
    async def tool(_arguments, invocation):
        assert await invocation.step("none", lambda: None) is None
        with pytest.raises(DuplicateStep):
            await invocation.step("none", lambda: 1)
        with pytest.raises(ZeroDivisionError):
            await invocation.step("bad", lambda: 1 / 0)
        with pytest.raises(DuplicateStep):
            await invocation.step("bad", lambda: 1)
        with pytest.raises(ValueError, match="step 'odd'"):
            await invocation.step("odd", object)
        with pytest.raises(InvalidIdentifier):
            await invocation.step("", lambda: 1)
        assert await invocation.get_memo("step/bad") is None
        assert [row["name"] for row in rows(url, "memos")] == ["step/none"]
        return ToolResult("fine")

    assert texts([await run_one(url, tool)]) == ["fine"]


async def test_a_memo_write_racing_the_staging_is_deleted_by_it_or_rejected(url):
    late: list[object] = []

    async def tool(_arguments, invocation):
        async def write(number: int) -> None:
            try:
                await invocation.set_memo(f"m{number}", number)
            except CapabilityExpired as error:
                late.append(error)

        for number in range(20):
            nursery.start_soon(write, number)
        await trio.lowlevel.checkpoint()
        return ToolResult("done")

    async with trio.open_nursery() as nursery, open_supervisor(url, tools=[Tool("tool", tool)]) as supervisor:
        await (await started(supervisor.pane("pane"), call("A", "tool"))).wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await supervisor.status()).fault is None
    assert rows(url, "memos") == []
    assert await check(url) == []


@pytest.mark.parametrize("end", ["expiry", "cancel", "finalize"])
async def test_a_late_capability_can_write_nothing(url, end):
    kept = []

    async def tool(_arguments, invocation):
        kept.append(invocation)
        running.set()
        if end != "expiry":
            await trio.sleep_forever()
        return ToolResult("done")

    running = trio.Event()
    async with open_supervisor(url, tools=[Tool("tool", tool)]) as supervisor:
        batch = await started(supervisor.pane("pane"), call("A", "tool"))
        await running.wait()
        if end == "cancel":
            await batch.cancel()
        if end == "finalize":
            assert await batch.finalize_externally() == Applied()
            with pytest.raises(OperationEnded):
                await batch.wait()
        else:
            await batch.wait()
        (invocation,) = kept
        for late in (
            lambda: invocation.set_memo("x", 1),
            lambda: invocation.get_memo("x"),
            lambda: invocation.step("x", int),
        ):
            with pytest.raises(CapabilityExpired) as expired:
                await late()
            assert isinstance(expired.value, OperationEnded) is (end == "finalize")
        invocation.update(ToolResult("late"), checkpoint=True)
        invocation.update(object(), checkpoint=True)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await supervisor.status()).fault is None
    assert rows(url, "memos") == rows(url, "checkpoints") == []
    assert await check(url) == []


async def test_the_store_refuses_a_capability_of_an_older_activation(url):
    kept, go = [], trio.Event()

    async def tool(_arguments, invocation):
        kept.append(invocation)
        if len(kept) == 1:
            await trio.sleep_forever()
        await go.wait()
        return ToolResult("done")

    async with open_supervisor(url, tools=[Tool("tool", tool, replay=Replay.SAFE)]) as supervisor:
        batch = await started(supervisor.pane("pane"), call("A", "tool"))
        with trio.fail_after(5):
            while not kept:
                await trio.lowlevel.checkpoint()
            await supervisor.kill(batch.address)
            while len(kept) < 2:
                await trio.sleep(0.005)
        old, new = kept
        assert old.invocation_id == new.invocation_id
        with pytest.raises(CapabilityExpired):
            await old.set_memo("x", "old")
        old._expired = None  # a zombie that does not even know it is one
        with pytest.raises(CapabilityExpired):
            await old.set_memo("x", "old")
        with pytest.raises(CapabilityExpired):
            await old.get_memo("x")
        await new.set_memo("x", "new")
        assert await new.get_memo("x") == "new"
        go.set()
        await batch.wait()


# -- progress --


async def test_ordinary_updates_stay_live_and_checkpoints_are_saved_whole(url):
    async def tool(_arguments, invocation):
        invocation.update(ToolResult("live"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert rows(url, "checkpoints") == []
        details = {"n": [1]}
        invocation.update(ToolResult("saved", details), checkpoint=True)
        details["n"].append(2)
        invocation.update(ToolResult("newer"))
        await until_saved()
        (row,) = rows(url, "checkpoints")
        assert (row["content"], row["details"]) == ('[{"type":"text","text":"saved"}]', '{"n":[1]}')
        for bad in (ToolResult(object()), ToolResult("x", details=float("inf")), "text", None):
            with pytest.raises(ValueError):
                invocation.update(bad, checkpoint=True)
        return ToolResult("fine")

    async def until_saved() -> None:
        with trio.fail_after(5):
            while not rows(url, "checkpoints"):
                await trio.sleep(0.005)

    assert texts([await run_one(url, tool)]) == ["fine"]


async def test_every_selected_checkpoint_is_one_write_and_all_precede_the_outcome(url):
    chaos = Chaos()

    async def tool(_arguments, invocation):
        for number in range(5):
            invocation.update(ToolResult(f"{number}"), checkpoint=True)
        return ToolResult("done")

    await run_one(url, tool, chaos=chaos)
    writes = [point for point in chaos.trace if point in {"batch.checkpoint/committed", "batch.stage/enqueued"}]
    assert writes == ["batch.checkpoint/committed"] * 5 + ["batch.stage/enqueued"]
    assert rows(url, "checkpoints") == []


async def test_followers_see_live_updates_between_start_and_end_and_never_hold_anybody_up(url):
    async def tool(_arguments, invocation):
        for number in range(3_000):
            invocation.update(ToolResult(f"{number}"))
        return ToolResult("done")

    told = []
    async with open_supervisor(url, tools=[Tool("tool", tool)]) as supervisor:
        slow = supervisor.events()
        batch = await started(supervisor.pane("pane"), call("A", "tool"))
        await batch.wait()
        async for event in slow:
            told.append(event)
            if event.kind == "turn_end":
                break
        stored = [event async for event in supervisor.events(follow=False)]
    kinds = [event.kind for event in told]
    assert kinds.index("tool_start") < kinds.index("tool_update") < kinds.index("tool_end")
    updates = [event for event in told if event.kind == "tool_update"]
    assert {event.seq for event in updates} == {None}
    assert 1 <= len(updates) <= 1_000, "a slow follower keeps the newest"
    last = updates[-1].data["result"]
    assert isinstance(last, dict)
    assert last["content"] == [{"type": "text", "text": "2999"}]
    assert [event for event in told if event.seq is not None] == stored


# -- cancelling and ending --


async def test_cancelling_every_state(url):
    world = World()
    world.hold("A", "hook")

    async def before_tool(view, _arguments, _invocation_id):
        if view.tool_call_id == "call-B":
            await world.gates["hook"].wait()

    async with opened(url, world, hooks=Hooks(before_tool)) as (supervisor, pane):
        batch = await started(pane, call("A"), call("B"), call("C"))
        await until(batch, "effect_pending", "planned", "outcome_ready")
        assert await batch.cancel() == Applied()
        assert await batch.cancel() == Unchanged()
        outcome = await batch.wait()
        told = [event async for event in supervisor.events(follow=False)]
    assert outcome.checkpoint is Checkpoint.ABORTED
    aborted, never, done = texts(outcome.entries)
    assert aborted.startswith("A saved[Tool execution was aborted.")
    assert never == "[Tool execution was aborted before it started.]"
    assert done == "C done"
    assert [entry.is_error for entry in outcome.entries] == [True, True, False]
    assert {event.kind for event in told} >= {"tool_start", "tool_end", "entry_added", "turn_end"}
    assert world.begun["B"] == 0


async def test_a_cancelled_tool_may_still_end_with_its_own_result(url):
    after = []

    async def tool(_arguments, _invocation):
        running.set()
        with suppress(trio.Cancelled):
            await trio.sleep_forever()
        return ToolResult("tidied up", terminate=True)

    running = trio.Event()
    hooks = Hooks(after_tool=lambda *_: after.append(1))
    async with open_supervisor(url, tools=[Tool("tool", tool)], hooks=hooks) as supervisor:
        batch = await started(supervisor.pane("pane"), call("A", "tool"))
        await running.wait()
        await batch.cancel()
        outcome = await batch.wait()
    assert texts(outcome.entries) == ["tidied up"]
    assert (outcome.entries[0].terminate, outcome.checkpoint, after) == (False, Checkpoint.ABORTED, [])


async def test_a_tool_that_ignores_cancellation_is_abandoned_and_fenced(url):
    late = []

    async def tool(_arguments, invocation):
        running.set()
        with trio.CancelScope(shield=True):
            await ignoring.wait()
        try:
            await invocation.set_memo("late", 1)
        except CapabilityExpired as error:
            late.append(error)
        over.set()
        return ToolResult("too late")

    running, ignoring, over = trio.Event(), trio.Event(), trio.Event()
    options = Options(tool_grace_seconds=0.05)
    async with open_supervisor(url, tools=[Tool("tool", tool)], options=options) as supervisor:
        batch = await started(supervisor.pane("pane"), call("A", "tool"), call("B", "absent"))
        await running.wait()
        await batch.cancel()
        with trio.fail_after(2):
            outcome = await batch.wait()
            assert "external outcome is unknown" in texts(outcome.entries)[0]
            assert await batch.wait() == outcome, "the next activation does not wait for what was abandoned"
        ignoring.set()
        await over.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(late) == 1
        assert await batch.wait() == outcome
        assert (await supervisor.status()).fault is None
    assert await check(url) == []


async def test_a_tool_that_ignores_its_actors_death_holds_the_next_activation_up_for_the_grace_only(url):
    async def tool(_arguments, _invocation):
        running.set()
        with trio.CancelScope(shield=True):
            await ignoring.wait()
        return ToolResult("too late")

    running, ignoring = trio.Event(), trio.Event()
    options = Options(tool_grace_seconds=0.05)
    async with open_supervisor(url, tools=[Tool("tool", tool)], options=options) as supervisor:
        batch = await started(supervisor.pane("pane"), call("A", "tool"))
        await running.wait()
        with trio.fail_after(2):
            await supervisor.kill(batch.address)
            outcome = await batch.wait()
        assert "external outcome is unknown" in texts(outcome.entries)[0]
        ignoring.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert await batch.wait() == outcome
        assert (await supervisor.status()).fault is None
    assert await check(url) == []


async def test_external_finalization_leaves_nothing_and_no_late_task_recreates_it(url):
    world = World()
    world.hold("A", "B")
    async with opened(url, world) as (supervisor, pane):
        batch = await started(pane, call("Z"), call("A", "memoized"), call("B"), call("C"))
        await until(batch, "completed", "effect_pending", "effect_pending", "outcome_ready")
        await world.running["A"].wait()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _wait() -> None:
                with pytest.raises(OperationEnded):
                    await batch.wait()

            await trio.testing.wait_all_tasks_blocked()
            assert await batch.finalize_externally() == Applied()
        assert await batch.finalize_externally() == Unchanged()
        with pytest.raises(OperationEnded):
            await started(pane, call("Z"), launch=False)
        assert await statuses(batch) == ["completed"]
        assert texts(await pane.entries()) == ["Z done"]
        assert (await pane.snapshot()).running_tools == []
        assert (await supervisor.status()).open_batches == 0
        world.let_go()
        other = await pane.start_batch("op-2", batch_turn(2), "assistant", [call("X")])
        await other.wait()
    for table in ("call_arguments", "memos", "checkpoints", "outcomes"):
        assert rows(url, table) == []
    assert await check(url) == []


async def test_no_tool_begins_behind_the_end_of_its_batch(url, monkeypatch):
    world, admitted, heard = World(), trio.Event(), trio.Event()
    commit = MutationLine.commit

    async def heard_late(self, mutation):
        answer = await commit(self, mutation)
        if mutation.label == "batch.admit":
            admitted.set()
            await heard.wait()
        return answer

    monkeypatch.setattr(MutationLine, "commit", heard_late)
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A"), call("B", "safe"))
        await admitted.wait()
        assert await batch.finalize_externally() == Applied()
        heard.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (dict(world.begun), await statuses(batch)) == ({}, [])
    assert await check(url) == []


async def test_the_end_from_outside_removes_what_a_crash_left(url):
    world = World()
    await interrupted_in(url, world, call("A", "memoized"), call("B", "memoized"))
    assert len(rows(url, "memos")) == 6
    assert len(rows(url, "checkpoints")) == 2
    world.hold("A", "B")
    async with opened(url, world) as (_, pane):
        await world.running["A"].wait()
        await world.running["B"].wait()
        assert await pane.batch("op", "turn-1").finalize_externally() == Applied()
    for table in ("call_arguments", "memos", "checkpoints", "outcomes", "calls"):
        assert rows(url, table) == []
    assert await check(url) == []


def batch_turn(number: int):
    from fencepost.supervisor import ModelTurn

    return ModelTurn(f"turn-{number}", number)
