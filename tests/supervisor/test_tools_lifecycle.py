"""A batch from start to end: states and restore, order, placement, what every step writes and tells."""

from __future__ import annotations

import sqlite3

import pytest
import trio
from attrs import evolve
from tool_scenarios import World, call, opened, rows, started, statuses, texts, until

from fencepost.actors.pane_batches import PaneBatches
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.records import (
    ArgumentsRecord,
    BatchRecord,
    CallRecord,
    CheckpointRecord,
    IncarnationRecord,
    OutcomeRecord,
)
from fencepost.mailbox.stores.store import open_reader
from fencepost.supervisor import (
    ActorCrashed,
    BatchMode,
    Chaos,
    Checkpoint,
    CorruptRecord,
    Hooks,
    InvalidTransition,
    ModelTurn,
    Options,
    PlannedCall,
    Replay,
    Running,
    Settled,
    Tool,
    ToolResult,
    Unchanged,
    check,
    open_supervisor,
)

TOOL_TABLES = ("call_arguments", "memos", "checkpoints", "outcomes")


@pytest.fixture
def asked(monkeypatch):
    """Every query the line was asked, as the record type and what was wanted of it."""
    found = []
    load = MutationLine.load

    async def noting(self, *queries):
        found.extend((query.record_type, dict(query.where)) for query in queries)
        return await load(self, *queries)

    monkeypatch.setattr(MutationLine, "load", noting)
    return found


# -- the whole life --


async def test_a_batch_runs_and_its_results_are_placed_in_source_order(url):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        batch = await started(pane, call("A"), call("B", "safe"), call("C", "memoized"))
        outcome = await batch.wait()
        assert outcome.checkpoint is Checkpoint.NEED_ASSISTANT
        assert texts(outcome.entries) == ["A done", "B done", "C done"]
        assert outcome.entries == await pane.entries()
        assert [entry.parent_entry_id for entry in outcome.entries] == [
            "assistant",
            *(entry.entry_id for entry in outcome.entries[:2]),
        ]
        views = await batch.calls()
        assert [view.invocation_id for view in views] == [entry.entry_id for entry in outcome.entries]
        assert [view.replay for view in views] == [Replay.NEVER, Replay.SAFE, Replay.SAFE]
        assert (await supervisor.status()).open_batches == 0
        assert await pane.batches() == [batch]
        assert await pane.batch("op", "turn-1") == batch
        assert await (await pane.batch("op", "turn-1")).wait() == outcome
    assert [row["usage"] for row in rows(url, "usage")] == ['{"tokens":1}'] * 3
    assert await check(url) == []


async def test_entries_are_told_after_an_entry_and_over_batches(url):
    async with opened(url, World()) as (_, pane):
        first = await started(pane, call("A"), call("B"))
        await first.wait()
        second = await pane.start_batch("op", ModelTurn("turn-2", 2), "assistant-2", [call("C"), call("D")])
        await second.wait()
        entries = await pane.entries()
        assert texts(entries) == ["A done", "B done", "C done", "D done"]
        assert texts(await pane.entries(after=entries[1].entry_id)) == ["C done", "D done"]
        assert await pane.entries(after=entries[3].entry_id) == []
        with pytest.raises(ValueError, match="entry of pane"):
            await pane.entries(after="nothing")


async def test_starting_again_answers_the_same_batch_and_refuses_another(url):
    world = World()
    world.hold("A")
    async with opened(url, world) as (_, pane):
        with pytest.raises(InvalidTransition, match="live incarnation"):
            await started(pane, call("A"), launch=False)
        batch = await started(pane, call("A"))
        assert await started(pane, call("A"), launch=False) == batch
        with pytest.raises(InvalidTransition, match="other calls"):
            await started(pane, call("B"), launch=False)
        with pytest.raises(InvalidTransition, match="still runs"):
            await started(pane, call("A"), launch=False, turn=ModelTurn("turn-2", 2))
        with pytest.raises(ValueError, match="at least one"):
            await started(pane, launch=False)
        with pytest.raises(InvalidTransition, match="there is no"):
            await pane.batch("op", "unknown").wait()
        world.let_go()
        await batch.wait()
        assert await started(pane, call("A"), launch=False) == batch
        assert world.begun["A"] == 1


async def test_ids_with_slashes_are_different_batches(url):
    async with opened(url, World()) as (_, pane):
        await pane.launch("h")
        for number, (operation, turn) in enumerate([("a/b", "c"), ("a", "b/c"), ("o" * 256, "t" * 256)]):
            batch = await pane.start_batch(
                operation, ModelTurn(turn, number), "assistant", [call(f"X{number}", "quiet")]
            )
            assert texts((await batch.wait()).entries) == [f"X{number} done"]
        assert [batch.operation_id for batch in await pane.batches()] == ["a/b", "a", "o" * 256]


async def test_a_batch_of_many_calls_writes_in_proportion(url):
    world = World()
    async with opened(url, world) as (_, pane):
        calls = [call(f"n{number}", "quiet") for number in range(300)]
        outcome = await (await started(pane, *calls)).wait()
        assert texts(outcome.entries) == [f"n{number} done" for number in range(300)]
    assert await check(url) == []


# -- state and restore --


async def test_every_projection_restores_without_auxiliary_reads(url, asked):
    world = World()
    world.hold("A", "C")
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A"), call("B"), call("C"))
        await until(batch, "effect_pending", "outcome_ready", "effect_pending")
    asked.clear()
    async with opened(url, World()) as (_, pane):
        outcome = await pane.batch("op", "turn-1").wait()
    own = [kind for kind, _ in asked if kind in {BatchRecord, CallRecord, IncarnationRecord}]
    first = [kind for kind, where in asked if kind is not BatchRecord or where != {"checkpoint": None}]
    assert first[first.index(BatchRecord) : first.index(BatchRecord) + 2] == [BatchRecord, CallRecord]
    assert own
    assert [entry.is_error for entry in outcome.entries] == [True, False, True]


async def test_base_restore_audits_neither_prefix_nor_mode(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    world = World()
    world.hold("A", "B")
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A"), call("B"))
        await until(batch, "effect_pending", "effect_pending")
    with sqlite3.connect(tmp_path / "store.db") as damaged:
        damaged.execute("UPDATE batches SET mode = 'sequential'")  # two effects at once cannot have been sequential
    async with opened(url, World()) as (_, pane):
        outcome = await pane.batch("op", "turn-1").wait()
    assert [entry.is_error for entry in outcome.entries] == [True, True]


async def test_consumption_reads_exactly_what_it_needs(url, asked):
    world = World()
    world.hold("A", "C")
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A", "safe"), call("B"), call("C"))
        await until(batch, "effect_pending", "outcome_ready", "effect_pending")
        ids = [view.invocation_id for view in await batch.calls()]
    asked.clear()
    async with opened(url, World()) as (_, pane):
        await pane.batch("op", "turn-1").wait()
    by_kind = {kind: [where for found, where in asked if found is kind] for kind, _ in asked}
    assert by_kind[ArgumentsRecord] == [{"invocation_id": (ids[0],)}], "only what is replayed needs its arguments"
    assert by_kind[CheckpointRecord] == [{"invocation_id": (ids[2],)}, {"invocation_id": (ids[0],)}]
    wanted = [name for where in by_kind[OutcomeRecord] for name in where["invocation_id"]]
    assert wanted == [ids[1]], "the one staged result of the earlier life"


@pytest.mark.parametrize("table", ["call_arguments", "outcomes"])
async def test_a_missing_row_fails_where_it_is_consumed_and_not_at_restore(tmp_path, table):
    url = f"sqlite:///{tmp_path}/store.db"
    world = World()
    world.hold("A")
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A", "safe"), call("B"))
        await until(batch, "effect_pending", "outcome_ready")
    with sqlite3.connect(tmp_path / "store.db") as damaged:
        damaged.execute(f"DELETE FROM {table}")
    async with opened(url, World()) as (supervisor, pane):
        batch = pane.batch("op", "turn-1")
        assert (await supervisor.status()).fault is None
        with trio.fail_after(5), pytest.raises(CorruptRecord, match="missing"):
            await batch.wait()
        assert len(await batch.calls()) == 2, "looking is not consuming"


async def test_memos_and_progress_are_gone_once_the_outcome_is_staged(url):
    world = World()
    world.hold("A")
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A", "memoized"), call("B", "memoized"))
        await until(batch, "effect_pending", "outcome_ready")
        await world.running["A"].wait()
        ids = [view.invocation_id for view in await batch.calls()]
        for table in ("memos", "checkpoints"):
            assert {row["invocation_id"] for row in rows(url, table)} == {ids[0]}
        assert {row["invocation_id"] for row in rows(url, "outcomes")} == {ids[1]}
        world.let_go()
        await batch.wait()
    assert [rows(url, table) for table in TOOL_TABLES] == [[]] * 4


async def test_the_terminal_transaction_removes_everything_the_batch_owned(url):
    world = World()
    async with opened(url, world) as (_, pane):
        await (await started(pane, call("A", "memoized"), call("B", "absent"), call("C", refusal="no"))).wait()
    assert [rows(url, table) for table in TOOL_TABLES] == [[]] * 4
    assert {row["status"] for row in rows(url, "calls")} == {"completed"}


async def test_a_snapshot_hydrates_only_the_exact_checkpoint(url, asked):
    world = World()
    world.hold("A", "B")
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A"), call("B"))
        await until(batch, "effect_pending", "effect_pending")
        asked.clear()
        await pane.snapshot()
        assert {kind for kind, _ in asked} == {BatchRecord}, "live progress needs no read at all"


# -- parallel ordering --


async def test_b_and_c_stage_while_a_is_pending_and_nothing_is_placed(url):
    world = World()
    world.hold("A")
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A"), call("B"), call("C"))
        await until(batch, "effect_pending", "outcome_ready", "outcome_ready")
        assert await pane.entries() == []
        world.let_go()
        assert texts((await batch.wait()).entries) == ["A done", "B done", "C done"]


async def test_what_was_staged_never_replays_and_all_are_placed_in_one_transaction(url):
    world = World()
    world.hold("A")
    async with opened(url, world) as (supervisor, pane):
        batch = await started(pane, call("A"), call("B", "safe"), call("C", "safe"))
        await until(batch, "effect_pending", "outcome_ready", "outcome_ready")
        last = [event.seq async for event in supervisor.events(follow=False)][-1]
    async with opened(url, world) as (supervisor, pane):
        outcome = await pane.batch("op", "turn-1").wait()
        told = [event async for event in supervisor.events(after=last, follow=False)]
    assert texts(outcome.entries)[1:] == ["B done", "C done"]
    assert (world.begun["B"], world.begun["C"]) == (1, 1)
    kinds = [event.kind for event in told]
    messages = ["message_start", "message_end"] * 3
    assert kinds == ["tool_end", *messages, "entry_added", *["entry_added", "usage"] * 2, "turn_end"]
    assert len({event.at for event in told if event.kind == "entry_added"}) == 1


async def test_a_mixed_batch_goes_on_from_every_state(url):
    world = World()
    world.hold("D", "hook")

    async def before_tool(view, _arguments, _invocation_id):
        if view.tool_call_id == "call-C" and "hook" in world.gates:
            await world.gates["hook"].wait()

    async with opened(url, world, hooks=Hooks(before_tool)) as (_, pane):
        batch = await started(pane, call("A"), call("B"), call("C"), call("D"), call("E"))
        await until(batch, "completed", "completed", "planned", "effect_pending", "outcome_ready")
        assert texts(await pane.entries()) == ["A done", "B done"]
    world.reborn()
    async with opened(url, world) as (_, pane):
        outcome = await pane.batch("op", "turn-1").wait()
    assert texts(outcome.entries)[2] == "C done"
    assert "interrupted" in texts(outcome.entries)[3]
    assert texts(outcome.entries)[4] == "E done"
    assert {name: world.begun[name] for name in "ABCDE"} == dict.fromkeys("ABCDE", 1)
    assert await check(url) == []


async def test_immediate_synthetic_outcomes_stage_out_of_order(url):
    world = World()
    world.hold("A")
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A"), call("B", refusal="cut off"), call("C", "absent"))
        await until(batch, "effect_pending", "outcome_ready", "outcome_ready")
        world.let_go()
        outcome = await batch.wait()
    assert texts(outcome.entries)[1:] == ["cut off", "There is no tool named 'absent'."]
    assert [entry.is_error for entry in outcome.entries] == [False, True, True]
    assert [entry.usage for entry in outcome.entries] == [{"tokens": 1}, None, None]


async def test_a_batch_whose_results_all_terminate_may_finish(url):
    async def last(_arguments, _invocation) -> ToolResult:
        return ToolResult("bye", terminate=True)

    async with open_supervisor(url, tools=[Tool("last", last)]) as supervisor:
        pane = supervisor.pane("pane")
        outcome = await (await started(pane, call("A", "last"), call("B", "last"))).wait()
        assert outcome.checkpoint is Checkpoint.MAY_FINISH
        assert all(entry.terminate for entry in outcome.entries)
        other = await pane.start_batch("op", ModelTurn("turn-2", 2), "x", [call("C", "last"), call("D", "absent")])
        assert (await other.wait()).checkpoint is Checkpoint.NEED_ASSISTANT


@pytest.mark.parametrize("how", ["mode", "tool"])
async def test_a_sequential_batch_has_one_call_under_way(url, how):
    world = World()
    world.hold("A")
    tool = "in_turn" if how == "tool" else "quiet"
    mode = BatchMode.PARALLEL if how == "tool" else BatchMode.SEQUENTIAL
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A"), call("B", tool), call("C", "quiet"), mode=mode)
        await world.running["A"].wait()
        await trio.testing.wait_all_tasks_blocked()
        assert await statuses(batch) == ["effect_pending", "planned", "planned"]
        world.hold("B")
        world.let_go("A")
        await world.running["B"].wait()
        assert await statuses(batch) == ["completed", "effect_pending", "planned"]
        world.let_go()
        assert texts((await batch.wait()).entries) == ["A done", "B done", "C done"]


# -- what a tool may hand over --


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("odd")


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (None, "no ToolResult"),
        ("text", "no ToolResult"),
        pytest.param(ToolResult(object()), "cannot be stored", id="an object"),
        (ToolResult([{"type": "video"}]), "neither a text block"),
        (ToolResult([{"type": "image", "mime_type": "image/png", "data": "%%%"}]), "base64"),
        (ToolResult("x", details={"a": float("nan")}), "no such number"),
        (ToolResult("x", details={1: 2}), "keys are strings"),
        (ToolResult("x", usage={"a": {1, 2}}), "set"),
        (ToolResult("x", added_tool_names=[1]), "added_tool_names"),
        pytest.param(ToolResult("x", details=Odd()), "Odd", id="odd"),
    ],
    ids=str,
)
async def test_a_result_that_cannot_be_stored_is_an_error_result_staged_once(result, word):
    runs = []

    async def tool(_arguments, _invocation):
        runs.append(1)
        return result

    async with open_supervisor("memory://", tools=[Tool("tool", tool)]) as supervisor:
        batch = await started(supervisor.pane("pane"), call("A", "tool"))
        (entry,) = (await batch.wait()).entries
        assert entry.is_error
        assert word in texts([entry])[0]
        assert len(runs) == 1
        assert (await supervisor.status()).fault is None


async def test_everything_a_result_may_hold_is_kept(url):
    big = 2**200
    result = ToolResult(
        [{"type": "text", "text": "ü\ud800"}, {"type": "image", "mime_type": "image/png", "data": "aGk="}],
        details={"big": big, "tuple": (1, 2.5, None, True), "deep": [[["x"]]]},
        is_error=True,
        usage={"tokens": big},
        added_tool_names=("one", "two"),
        terminate=True,
    )

    async def tool(arguments, _invocation):
        assert arguments == {"n": big}
        return result

    async with open_supervisor(url, tools=[Tool("tool", tool)]) as supervisor:
        pane = supervisor.pane("pane")
        batch = await started(pane, PlannedCall("c", "tool", {"n": big}))
        (entry,) = (await batch.wait()).entries
        assert entry.content[0] == {"type": "text", "text": "ü\N{REPLACEMENT CHARACTER}"}
        assert entry.content[1]["data"] == "aGk="
        assert entry.details == {"big": big, "tuple": [1, 2.5, None, True], "deep": [[["x"]]]}
        assert (entry.is_error, entry.terminate, entry.added_tool_names) == (True, True, ("one", "two"))
        assert entry.usage == {"tokens": big}
        ends = [event async for event in supervisor.events(follow=False) if event.kind == "tool_end"]
        result = ends[0].data["result"]
        assert isinstance(result, dict)
        assert result["details"]["big"] == big
    assert await check(url) == []


async def test_a_result_over_its_bound_is_cut_and_says_so():
    async def long(_arguments, _invocation):
        return ToolResult("é" * 5_000)

    async def detailed(_arguments, _invocation):
        return ToolResult("short", details="x" * 5_000)

    tools = [Tool("long", long), Tool("detailed", detailed)]
    async with open_supervisor("memory://", tools=tools, options=Options(result_bytes_max=1_000)) as supervisor:
        batch = await started(supervisor.pane("pane"), call("A", "long"), call("B", "detailed"))
        cut, error = (await batch.wait()).entries
        text = texts([cut])[0]
        assert text.startswith("é" * 400)
        assert "10000 bytes, 1000 are allowed" in text
        assert len(text.encode()) <= 1_000
        assert not cut.is_error
        assert (error.is_error, error.details) == (True, None)
        assert "short" in texts([error])[0]


async def test_a_tool_that_raises_leaves_an_error_result(url):
    async with opened(url, World()) as (_, pane):
        (entry,) = (await (await started(pane, call("A", "failing"))).wait()).entries
        assert (entry.is_error, texts([entry])) == (True, ["A failed"])


def test_what_is_declared_wrongly_is_refused_at_once():
    async def execute(_arguments, _invocation):
        return ToolResult("x")

    with pytest.raises(TypeError):
        Tool("x", lambda _arguments, _invocation: None)
    with pytest.raises(ValueError):
        Tool("", execute)
    with pytest.raises(ValueError, match="two tools"):
        open_supervisor("memory://", tools=[Tool("x", execute), Tool("x", execute)])
    with pytest.raises(ValueError):
        Tool("x", execute, replay="sometimes")
    assert evolve(Tool("x", execute), name="y").name == "y"


async def test_validated_arguments_are_the_ones_that_run_and_are_stored(url):
    seen = []

    async def execute(arguments, _invocation):
        seen.append(arguments)
        return ToolResult("ok")

    def validate(arguments):
        if "bad" in arguments:
            raise ValueError("no bad ones")
        return {**arguments, "filled": True}

    async with open_supervisor(url, tools=[Tool("tool", execute, validate=validate)]) as supervisor:
        pane = supervisor.pane("pane")
        calls = [PlannedCall("a", "tool", {"x": 1}), PlannedCall("b", "tool", {"bad": 1})]
        good, bad = (await (await started(pane, *calls)).wait()).entries
        assert seen == [{"x": 1, "filled": True}]
        assert (bad.is_error, texts([bad])) == (True, ["no bad ones"])
        assert not good.is_error
        starts = [event.data async for event in supervisor.events(follow=False) if event.kind == "tool_start"]
        assert {start["tool_call_id"]: start["arguments"] for start in starts} == {
            "a": {"x": 1, "filled": True},
            "b": {"bad": 1},
        }


# -- hooks, events and their order --


async def test_the_exact_order_of_execution(url):
    log = []

    async def execute(_arguments, invocation):
        log.append("effect")
        invocation.update(ToolResult("half"), checkpoint=True)
        return ToolResult("whole", usage={"n": 1})

    hooks = Hooks(
        lambda view, _arguments, _id: log.append(f"before_tool {view.status.value}"),
        lambda view, _result, _id: log.append(f"after_tool {view.status.value}"),
    )
    async with open_supervisor(url, tools=[Tool("tool", execute)], hooks=hooks) as supervisor:
        pane = supervisor.pane("pane")
        seen = trio.Event()

        async def follow() -> None:
            async for event in supervisor.events():
                log.append(event.kind)
                if event.kind == "turn_end":
                    seen.set()
                    return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await (await started(pane, call("A", "tool"))).wait()
            await seen.wait()
    assert [kind for kind in log if "incarnation" not in kind and "_tool" not in kind and kind != "effect"] == [
        "tool_start", "tool_update", "tool_end", "message_start", "message_end", "entry_added", "usage", "turn_end",
    ]  # fmt: skip
    assert [kind for kind in log if "_tool" in kind or kind == "effect"] == [
        "before_tool planned", "effect", "after_tool effect_pending",
    ]  # fmt: skip


async def test_no_effect_starts_before_its_intent_is_durable_however_many_are_admitted_together(url):
    seen = []

    async def execute(_arguments, invocation):
        with open_reader(url) as reader:
            stored = {row["invocation_id"]: row["status"] for row in reader.raw("calls")}
            told = {event.data["invocation_id"] for event in reader.events() if event.kind == "tool_start"}
        seen.append((stored[invocation.invocation_id], invocation.invocation_id in told))
        return ToolResult("done")

    async with open_supervisor(url, tools=[Tool("tool", execute)]) as supervisor:
        calls = [call(f"n{number}", "tool") for number in range(20)]
        await (await started(supervisor.pane("pane"), *calls)).wait()
    assert seen == [("effect_pending", True)] * 20


async def test_a_fresh_synthetic_result_starts_and_ends_in_its_staging(url):
    async with opened(url, World()) as (supervisor, pane):
        await (await started(pane, call("A", "absent"))).wait()
        told = [event async for event in supervisor.events(follow=False)]
    assert [event.kind for event in told[1:]] == [
        "tool_start", "tool_end", "message_start", "message_end", "entry_added", "turn_end",
    ]  # fmt: skip
    for event in told[1:]:
        assert {"invocation_id", "tool_call_id", "source_index", "recovery"} <= event.data.keys()


async def test_a_listener_that_calls_back_into_its_pane_neither_deadlocks_nor_corrupts(url):
    world = World()
    async with opened(url, world) as (supervisor, pane):

        async def nosy(*_: object) -> None:
            await pane.snapshot()
            await pane.entries()
            await pane.sync_status()
            for batch in await pane.batches():
                await batch.calls()
                await started(pane, call("A"), call("B"), launch=False)

        supervisor._runtime._registry.hooks = Hooks(nosy, nosy)

        async def listen() -> None:
            async for event in supervisor.events():
                await nosy()
                if event.kind == "turn_end":
                    return

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                batch = await started(pane, call("A"), call("B"))
                await batch.wait()
        assert texts(await pane.entries()) == ["A done", "B done"]
    assert await check(url) == []


async def test_after_tool_may_replace_a_result_and_its_failure_is_an_event(url):
    def after_tool(view, result, _invocation_id):
        if view.name == "failing":
            raise RuntimeError("hook broke")
        return ToolResult(f"seen {result.content[0]['text']}", terminate=True)

    async with opened(url, World(), hooks=Hooks(after_tool=after_tool)) as (supervisor, pane):
        outcome = await (await started(pane, call("A"), call("B", "failing"))).wait()
        assert texts(outcome.entries) == ["seen A done", "B failed"]
        kinds = [event.kind async for event in supervisor.events(follow=False)]
        assert kinds.count("after_tool.failed") == 1


async def test_two_handles_on_one_store_cannot_both_run_a_batch(tmp_path):
    from fencepost.supervisor import StoreOwned

    url = f"sqlite:///{tmp_path}/store.db"
    world = World()
    world.hold("A")
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A", "safe"))
        await world.running["A"].wait()
        with pytest.raises(StoreOwned):
            async with opened(url, world):
                pass
        world.let_go()
        await batch.wait()
    assert world.begun["A"] == 1


async def test_cancel_and_finalize_of_a_finished_batch_change_nothing(url):
    async with opened(url, World()) as (_, pane):
        batch = await started(pane, call("A"))
        await batch.wait()
        assert await batch.cancel() == Unchanged()
        assert await batch.finalize_externally() == Unchanged()
        assert await batch.wait() is not None


async def test_snapshots_show_running_and_settled_rows(url):
    world = World()
    world.hold("A", "C")
    async with opened(url, world) as (_, pane):
        calls = [
            evolve(call(name, tool), tool_call_id="same")
            for name, tool in (("A", "never"), ("B", "never"), ("C", "quiet"))
        ]
        batch = await started(pane, *calls)
        await until(batch, "effect_pending", "outcome_ready", "effect_pending")
        ids = [view.invocation_id for view in await batch.calls()]
        shown = (await pane.snapshot()).running_tools
        assert [row.invocation_id for row in shown] == ids, "a tool-call id may repeat in one batch"
        assert [type(row) for row in shown] == [Running, Settled, Running]
        assert shown[0].result.content[0]["text"] == "A saved"
        assert shown[1].result.content[0]["text"] == "B done"
        assert shown[2].result is None
        world.let_go("A")
        await until(batch, "completed", "completed", "effect_pending")
        assert [row.invocation_id for row in (await pane.snapshot()).running_tools] == [ids[2]]
        world.let_go()
        await batch.wait()
        assert (await pane.snapshot()).running_tools == []


async def test_what_a_snapshot_shows_is_the_readers_own(url):
    world = World()
    world.hold("A")
    async with opened(url, world) as (_, pane):
        batch = await started(pane, call("A"), call("B"))
        await until(batch, "effect_pending", "outcome_ready")
        await world.running["A"].wait()
        running, settled = (await pane.snapshot()).running_tools
        for row in (running, settled):
            row.result.content[0]["text"] = "scribbled"
            row.result.content.clear()
        running.result.details["half"] = "scribbled"
        again, settled_again = (await pane.snapshot()).running_tools
        assert again.result.content == [{"type": "text", "text": "A saved"}]
        assert again.result.details == {"half": True}
        assert settled_again.result.content == [{"type": "text", "text": "B done"}]
    async with opened(url, World()) as (_, pane):
        assert texts((await pane.batch("op", "turn-1").wait()).entries)[0].startswith("A saved")


# -- asked about before its start --


@pytest.mark.parametrize("ask", ["wait", "cancel", "finalize_externally"])
async def test_a_batch_that_was_asked_about_before_it_starts_runs_by_itself(url, ask):
    async with opened(url, World()) as (supervisor, pane):
        early = pane.batch("op", "turn-1")
        with pytest.raises(InvalidTransition, match="there is no batch:pane/op/turn-1"):
            await getattr(early, ask)()
        assert await started(pane, call("A"), call("B")) == early
        await until(early, "completed", "completed")  # nobody waits for it
        with trio.fail_after(5):
            assert texts((await early.wait()).entries) == ["A done", "B done"]
        later = await pane.start_batch("op", ModelTurn("turn-2", 2), "assistant", [call("C")])
        assert texts((await later.wait()).entries) == ["C done"], "and its pane is free"
        assert (await supervisor.status()).open_batches == 0
    assert await check(url) == []


async def test_who_asks_right_behind_the_start_is_not_told_that_there_is_no_batch(url, monkeypatch):
    """Also where the batch's activation looked before, and has not been told yet that there is something to see."""
    monkeypatch.setattr(PaneBatches, "_wake", lambda _self, _address: None)
    async with opened(url, World()) as (_, pane):
        with pytest.raises(InvalidTransition):
            await pane.batch("op", "turn-1").cancel()
        batch = await started(pane, call("A"))
        with trio.fail_after(5):
            assert texts((await batch.wait()).entries) == ["A done"]


@pytest.mark.parametrize("point", ["pane.start_batch/committed", "pane.start_batch/applied"])
async def test_a_batch_whose_pane_died_behind_its_start_runs_by_itself(url, point):
    chaos = Chaos()
    chaos.kill_at(point)
    async with opened(url, World(), chaos) as (_, pane):
        with pytest.raises(ActorCrashed):
            await started(pane, call("A"))
        assert chaos.unhit() == []
        await until(pane.batch("op", "turn-1"), "completed")  # nobody asks for it
    assert await check(url) == []


async def test_a_pane_takes_up_a_batch_that_was_asked_about_before_its_start_and_lost_its_pane_then(url):
    chaos = Chaos()
    chaos.kill_at("pane.start_batch/committed")
    async with opened(url, World(), chaos) as (_, pane):
        with pytest.raises(InvalidTransition):
            await pane.batch("op", "turn-1").wait()
        with pytest.raises(ActorCrashed):
            await started(pane, call("A"))
        await until(pane.batch("op", "turn-1"), "completed")
    assert await check(url) == []
