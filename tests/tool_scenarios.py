"""Tools that note what they do, and the lives a batch can have, each as a scenario chaos can interrupt anywhere.

What really happened outside is kept in a `World`, which outlives every runtime: how often each effect began and how
often it came to its end.  `finish` comes back as a new bridge with the same tools and brings everything to its end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import trio
import trio.lowlevel
from attrs import define, field
from bridges import Harness, Workspace, moved, payload_of

from fencepost.mailbox.query import Query
from fencepost.mailbox.records import CallRecord
from fencepost.mailbox.stores.store import open_reader
from fencepost.supervisor import (
    BatchMode,
    Block,
    Chaos,
    FencepostError,
    Hooks,
    LaunchBlocked,
    ModelTurn,
    OperationEnded,
    PlannedCall,
    Replay,
    Tool,
    ToolResult,
    check,
    open_supervisor,
)

TURN = ModelTurn("turn-1", 1)
TURNS_MAX = 1_000
"""Turns of the loop that a scenario waits for what a death may have prevented; counted, because a slow machine must
pass the same points as a quick one."""


@define(eq=False)
class World:
    """What the tools of one store did to the world."""

    begun: Counter[str] = field(factory=Counter)
    ended: Counter[str] = field(factory=Counter)
    steps: Counter[str] = field(factory=Counter)
    invocations: dict[str, set[str]] = field(factory=lambda: defaultdict(set))
    arguments: dict[str, list[object]] = field(factory=lambda: defaultdict(list))
    gates: dict[str, trio.Event] = field(factory=dict)
    running: dict[str, trio.Event] = field(factory=lambda: defaultdict(trio.Event))

    def hold(self, *names: str) -> None:
        """From now on the calls of these names wait for `let_go`."""
        for name in names:
            self.gates[name] = trio.Event()

    def let_go(self, *names: str) -> None:
        for name in names or list(self.gates):
            self.gates.pop(name).set()

    async def runs(self, *names: str) -> None:
        """Wait until the calls of these names are in the middle of their effects, or will never be."""
        for _ in range(TURNS_MAX):
            if all(self.running[name].is_set() for name in names):
                return
            await trio.lowlevel.checkpoint()

    def reborn(self) -> None:
        """Another process: nothing waits or runs any more."""
        self.gates.clear()
        self.running.clear()

    async def work(self, arguments, invocation, *, progress=True) -> ToolResult:
        name = arguments["name"]
        self.begun[name] += 1
        self.invocations[name].add(invocation.invocation_id)
        self.arguments[name].append(arguments)
        if progress:
            invocation.update(ToolResult(f"{name} shown"))
            invocation.update(ToolResult(f"{name} saved", {"half": True}), checkpoint=True)
        self.running[name].set()
        if name in self.gates:
            await self.gates[name].wait()
        self.ended[name] += 1
        return ToolResult(f"{name} done", usage={"tokens": 1})

    async def plain(self, arguments, invocation) -> ToolResult:
        return await self.work(arguments, invocation)

    async def quiet(self, arguments, invocation) -> ToolResult:
        return await self.work(arguments, invocation, progress=False)

    async def memoized(self, arguments, invocation) -> ToolResult:
        name = arguments["name"]
        for step in ("a", "b"):
            await invocation.step(step, lambda step=step: self._step(f"{name}/{step}"))
        await invocation.set_memo("own", [name])
        assert await invocation.get_memo("own") == [name]
        return await self.work(arguments, invocation)

    def _step(self, name: str) -> int:
        self.steps[name] += 1
        return 7

    async def failing(self, arguments, invocation) -> ToolResult:
        await self.work(arguments, invocation)
        raise RuntimeError(f"{arguments['name']} failed")

    def tools(self) -> list[Tool]:
        return [
            Tool("never", self.plain),
            Tool("safe", self.plain, replay=Replay.SAFE),
            Tool("quiet", self.quiet),
            Tool("quiet_safe", self.quiet, replay=Replay.SAFE),
            Tool("memoized", self.memoized, replay=Replay.SAFE),
            Tool("failing", self.failing),
            Tool("in_turn", self.plain, mode=BatchMode.SEQUENTIAL),
        ]


def call(name: str, tool: str = "never", **more) -> PlannedCall:
    return PlannedCall(f"call-{name}", tool, {"name": name}, **more)


@asynccontextmanager
async def opened(url: str, world: World, chaos: Chaos | None = None, **more):
    """A runtime with the world's tools, and its pane."""
    more = {"reconciler": Workspace(), "tools": world.tools(), **more}
    async with open_supervisor(url, chaos=chaos, **more) as supervisor:
        yield supervisor, supervisor.pane("pane")


async def started(pane, *calls: PlannedCall, mode=BatchMode.PARALLEL, turn=TURN, launch=True):
    if launch:
        await pane.launch("claude-code")
    return await pane.start_batch("op", turn, "assistant", calls, mode)


def texts(entries) -> list[str]:
    return ["".join(block["text"] for block in entry.content) for entry in entries]


def rows(url: str, table: str) -> list[dict[str, object]]:
    with open_reader(url) as reader:
        return list(reader.raw(table))


async def statuses(batch) -> list[str]:
    return [view.status.value for view in await batch.calls()]


async def until(batch, *expected: str) -> None:
    with trio.fail_after(5):
        while await statuses(batch) != list(expected):  # noqa: ASYNC110 - nothing to wait on: it is read from outside
            await trio.sleep(0.005)


# -- scenarios ---------------------------------------------------------------------------------------------------

Scenario = Callable[[str, Chaos, World], Awaitable[None]]


async def parallel(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        batch = await started(pane, call("A", "never"), call("B", "safe"), call("C", "quiet"))
        await batch.wait()


async def out_of_order(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        world.hold("A")
        batch = await started(pane, call("A", "safe"), call("B", "never"), call("C", "quiet"))
        await world.runs("A")
        for _ in range(TURNS_MAX):
            if (await statuses(batch))[1:] == ["outcome_ready"] * 2:
                break
            await trio.lowlevel.checkpoint()
        if "A" in world.gates:
            world.let_go("A")
        await batch.wait()


async def sequential(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        batch = await started(pane, call("A", "never"), call("B", "quiet_safe"), mode=BatchMode.SEQUENTIAL)
        await batch.wait()


async def memoized(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        batch = await started(pane, call("A", "memoized"), call("B", "quiet"))
        await batch.wait()


async def mixed(url: str, chaos: Chaos, world: World) -> None:
    def before_tool(view, arguments, _invocation_id):
        return Block("not today", terminate=True) if arguments.get("name") == "D" else None

    hooks = Hooks(before_tool, lambda _view, result, _id: ToolResult("after", result.details))
    async with opened(url, world, chaos, hooks=hooks) as (_, pane):
        calls = [
            call("A", "failing"),
            call("B", "absent"),
            call("C", refusal="truncated"),
            call("D", "safe"),
            call("E"),
        ]
        batch = await started(pane, *calls)
        await batch.wait()


async def cancelled(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        world.hold("A", "B")
        batch = await started(pane, call("A", "safe"), call("B", "never"), call("C", "quiet"))
        await world.runs("A", "B")
        await batch.cancel()
        await batch.wait()


async def finalized(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        world.hold("A")
        batch = await started(pane, call("A", "memoized"), call("B", "quiet"))
        await world.runs("A")
        await batch.finalize_externally()


async def joint(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        batch = await started(pane, call("A", "never"), call("B", "quiet"), launch=False)
        await batch.wait()
        later = await pane.start_batch("op", ModelTurn("turn-2", 2), "assistant-2", [call("C", "quiet")])
        await later.wait()


async def joint_in_turn(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        batch = await started(pane, call("A", "in_turn"), call("B", "quiet"), launch=False)
        await batch.wait()


async def retired(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        world.hold("A")
        launch = await pane.launch("claude-code")
        batch = await started(pane, call("A", "never"), call("B", "quiet"), launch=False)
        await world.runs("A")
        await pane.retire(launch.incarnation_id, "over")
        await batch.wait()


async def replaced(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        world.hold("A")
        await Harness.start(pane, soft_batches=False)
        await started(pane, call("A", "never"), call("B", "quiet"), launch=False)
        await world.runs("A")
        await pane.detect(moved("A", "B"))
        await Harness.start(pane, soft_batches=False)


SCENARIOS: list[Scenario] = [
    parallel,
    out_of_order,
    sequential,
    memoized,
    mixed,
    cancelled,
    finalized,
    joint,
    joint_in_turn,
    retired,
    replaced,
]


# -- a death, and what must be true after it ---------------------------------------------------------------------


async def finish(url: str, world: World) -> None:
    """Come back as a new bridge with the same tools; every batch must come to its end by itself."""
    world.reborn()
    async with opened(url, world) as (supervisor, pane):
        with trio.fail_after(20):
            for batch in await pane.batches():
                await _ended(batch)
        assert (await supervisor.status()).open_batches == 0
        assert (await pane.snapshot()).running_tools == []
        await _judge(pane, world)


async def _ended(batch) -> None:
    try:
        await batch.wait()
    except OperationEnded:
        return  # it was finalized from outside before the death


async def _judge(pane, world: World) -> None:
    """Every result is where it belongs, and no effect ran more often than its tool allows."""
    by_name: dict[str, str] = {}
    for batch in await pane.batches():
        for view in await batch.calls():
            by_name[view.tool_call_id.removeprefix("call-")] = view.name
    entries = await pane.entries()
    parents = {entry.turn_id: "assistant" if entry.turn_id == "turn-1" else "assistant-2" for entry in entries}
    for entry in entries:
        assert entry.parent_entry_id == parents[entry.turn_id]
        parents[entry.turn_id] = entry.entry_id
    for name, tool in by_name.items():
        if tool in {"never", "quiet", "failing", "in_turn"}:
            assert world.begun[name] <= 1, (name, world.begun)
        assert len(world.invocations[name]) <= 1, "an invocation id is stable over replays"


async def die_once(scenario: Scenario, url: str, point: str, nth: int, what: str) -> list[str]:
    """One death, the audit after it, the end of the work and one more audit; what went wrong, in words."""
    world, chaos, wrong = World(), Chaos(), []
    chaos.kill_at(point, nth, what)
    try:
        with trio.fail_after(20):
            await scenario(url, chaos, world)
    except Exception as error:  # noqa: BLE001
        leaves = [error]
        while isinstance(leaves[0], BaseExceptionGroup):
            leaves = list(leaves[0].exceptions)
        wrong += [f"while dying: {leaf!r}" for leaf in leaves if not isinstance(leaf, FencepostError | LaunchBlocked)]
    if chaos.unhit():
        wrong.append("the point was not reached")
    wrong += [f"after the death: {violation}" for violation in await check(url)]
    ended = Counter(world.ended)
    before = await _settled_in(url)
    try:
        await finish(url, world)
    except Exception as error:  # noqa: BLE001
        wrong.append(f"while finishing: {error!r}")
    for name in before:
        if world.ended[name] != ended[name]:
            wrong.append(f"{name} ran again after its outcome was durable")
    wrong += [f"after the end: {violation}" for violation in await check(url)]
    return wrong


async def _settled_in(url: str) -> set[str]:
    """The calls whose outcome is durable in a store that nobody has open."""

    def read() -> set[str]:
        with open_reader(url) as reader:
            rows = reader.select(Query(CallRecord, {"status": ("outcome_ready", "completed")}))
        return {row.tool_call_id.removeprefix("call-") for row in rows}

    return await trio.to_thread.run_sync(read)


__all__ = [
    "SCENARIOS", "TURN", "World", "call", "die_once", "finish", "opened", "payload_of", "rows", "started", "statuses",
    "texts", "until",
]  # fmt: skip
