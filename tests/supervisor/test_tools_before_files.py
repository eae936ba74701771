"""No file changes while a tool of ours may still run: who waits for a batch's tools, how long, and who does not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import define, field
from bridges import Harness, Processes, Workspace, moved, payload_of
from tool_scenarios import call, started, statuses, texts

from fencepost.actors.messages import Allow, BlockGeneric, BlockPayload, BlockRestart
from fencepost.actors.tool_clearance import Clearance
from fencepost.supervisor import (
    ActorCrashed,
    ActorQuarantined,
    Applied,
    Capabilities,
    Chaos,
    IntentState,
    LaunchBlocked,
    ModelTurn,
    Options,
    Reason,
    Tool,
    ToolResult,
    Unchanged,
    check,
    open_supervisor,
)

RESTARTED = Capabilities(soft_batches=False)
HASTY = Options(tool_grace_seconds=0.05)
FRAGILE = Options(crashes_max=0)
"""One death is a quarantine."""


@define(eq=False)
class Files:
    """Tools that write, and go on writing after they were told to stop, beside the reconciler of the same files."""

    told_to_stop: trio.Event = field(factory=trio.Event)
    may_end: trio.Event = field(factory=trio.Event)
    may_return: trio.Event = field(factory=trio.Event)
    begun: trio.Event = field(factory=trio.Event)
    log: list[str] = field(factory=list)

    async def write(self, _arguments, _invocation) -> ToolResult:
        self.log.append("tool begins")
        self.begun.set()
        try:
            await self.may_return.wait()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                self.told_to_stop.set()
                await self.may_end.wait()
                self.log.append("tool has ended")
            raise
        self.log.append("tool returns")
        return ToolResult("written")

    @property
    def tools(self) -> list[Tool]:
        return [Tool("write", self.write)]

    @property
    def workspace(self) -> Workspace:
        files = self

        class Noting(Workspace):
            async def reconcile(self, attempt):
                files.log.append("files change")
                return await super().reconcile(attempt)

        return Noting()


@asynccontextmanager
async def opened(url: str, files: Files, **more):
    async with open_supervisor(url, **{"reconciler": files.workspace, "tools": files.tools, **more}) as supervisor:
        try:
            yield supervisor
        finally:
            files.may_end.set()


async def at_work(pane, files: Files, **capabilities):
    """A process, and its batch in the middle of its tool, when a base has just moved."""
    harness = await Harness.start(pane, **capabilities)
    batch = await started(pane, call("A", "write"), launch=False)
    await files.begun.wait()
    await pane.detect(moved("A", "B"))
    return harness, batch


async def state_of(pane) -> IntentState:
    (intent,) = await pane.intents()
    return intent.state


class Soon:
    """A call under way; `value` is what it answered or raised."""

    def __init__(self, nursery: trio.Nursery, fn: Callable, *args) -> None:
        self.over = trio.Event()
        self.value: object = None
        nursery.start_soon(self._run, fn, args)

    async def _run(self, fn, args) -> None:
        try:
            self.value = await fn(*args)
        except (LaunchBlocked, ActorCrashed, ActorQuarantined) as error:
            self.value = error
        self.over.set()

    async def result(self):
        with trio.fail_after(5):
            await self.over.wait()
        return self.value


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked(0.02)


# -- a process is replaced --


async def test_a_launch_waits_for_the_tools_of_the_last_process_before_files_change(url):
    files = Files()
    async with opened(url, files) as supervisor, trio.open_nursery() as nursery:
        pane = supervisor.pane("pane")
        old, batch = await at_work(pane, files, soft_batches=False)
        launch = Soon(nursery, pane.launch, "claude-code", None, RESTARTED)
        await files.told_to_stop.wait()
        await settled()
        assert files.log == ["tool begins"]
        assert await state_of(pane) is IntentState.DETECTED
        assert await pane.retire(old.incarnation_id, "over") == Unchanged(), "it is fenced already"
        files.may_end.set()
        startup = (await launch.result()).startup
        assert startup.payload == payload_of("B")
        assert files.log == ["tool begins", "tool has ended", "files change"]
        assert (await batch.wait()).checkpoint.value == "aborted"
    assert await check(url) == []


async def test_a_launcher_starts_nothing_and_nothing_changes_before_the_tools_have_ended(url):
    files, processes = Files(), Processes()
    async with opened(url, files, launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        harness, _ = await at_work(pane, files, soft_batches=False)
        assert isinstance(await harness.call(2, "batch-2"), BlockRestart)
        await files.told_to_stop.wait()
        await settled()
        assert (files.log, len(processes.launches)) == (["tool begins"], 1)
        files.may_end.set()
        with trio.fail_after(5):
            successor = await processes.launched(2)
        assert successor.startup is not None
        assert files.log == ["tool begins", "tool has ended", "files change"]
    assert await check(url) == []


async def test_a_tool_that_ignores_its_end_is_waited_for_no_longer_than_its_grace(url):
    files = Files()
    async with opened(url, files, options=HASTY) as supervisor:
        pane = supervisor.pane("pane")
        await at_work(pane, files, soft_batches=False)
        with trio.fail_after(5):
            launch = await pane.launch("claude-code", capabilities=RESTARTED)
        assert launch.startup.payload == payload_of("B")
        assert files.log == ["tool begins", "files change"], "what it still does to the world nobody can keep it from"
        files.may_end.set()
    assert await check(url) == []


@pytest.mark.parametrize("with_launcher", [False, True])
async def test_a_pane_that_dies_while_tools_end_waits_for_them_again(url, with_launcher):
    files, processes = Files(), Processes()
    async with (
        opened(url, files, launcher=processes if with_launcher else None) as supervisor,
        trio.open_nursery() as nursery,
    ):
        pane = supervisor.pane("pane")
        await at_work(pane, files, soft_batches=False)
        launch = Soon(nursery, pane.launch, "claude-code", None, RESTARTED)
        await files.told_to_stop.wait()
        await settled()
        await supervisor.kill("pane:pane")
        assert isinstance(await launch.result(), ActorCrashed)
        again = None if with_launcher else Soon(nursery, pane.launch, "claude-code", None, RESTARTED)
        await settled()
        assert files.log == ["tool begins"]
        files.may_end.set()
        with trio.fail_after(5):
            successor = await (processes.launched(2) if again is None else again.result())
        assert successor.startup.payload == payload_of("B")
        assert files.log == ["tool begins", "tool has ended", "files change"]
    assert await check(url) == []


async def test_a_launch_that_waits_gives_way_to_a_process_that_was_launched_meanwhile(url):
    files = Files()
    async with opened(url, files) as supervisor, trio.open_nursery() as nursery:
        pane = supervisor.pane("pane")
        await at_work(pane, files, soft_batches=False)
        launch = Soon(nursery, pane.launch, "claude-code", None, RESTARTED)
        await files.told_to_stop.wait()
        other = await Harness.start(pane)
        files.may_end.set()
        blocked = await launch.result()
        assert isinstance(blocked, LaunchBlocked)
        assert "another process was launched meanwhile" in str(blocked)
        assert "files change" not in files.log, "the other process is not told yet"
        assert await other.call(1, "batch-1") == BlockPayload((await pane.intents())[0].intent_id, payload_of("B"))
    assert await check(url) == []


# -- a living process --


@pytest.mark.parametrize("wait", [0, 30])
async def test_a_new_process_waits_for_the_tools_of_the_one_before_it(url, wait):
    files = Files()
    async with opened(url, files) as supervisor, trio.open_nursery() as nursery:
        pane = supervisor.pane("pane")
        await at_work(pane, files)
        harness = await Harness.start(pane)
        asking = Soon(nursery, lambda: harness.call(1, "batch-1", wait=wait))
        await settled()
        if wait == 0:
            assert isinstance(await asking.result(), BlockGeneric)
        assert (files.log, await state_of(pane)) == (["tool begins"], IntentState.DETECTED)
        files.may_end.set()
        decision = await asking.result()
        if wait == 0:
            assert decision.reason is Reason.RECONCILING
            await settled()
            decision = await harness.call(1, "batch-1", wait=30)
        assert decision.payload == payload_of("B")
        assert files.log == ["tool begins", "tool has ended", "files change"]
    assert await check(url) == []


async def test_a_harness_call_waits_for_the_tool_batch_that_its_own_process_has_open(url):
    files = Files()
    async with opened(url, files) as supervisor, trio.open_nursery() as nursery:
        pane = supervisor.pane("pane")
        harness, batch = await at_work(pane, files)
        assert (await harness.call(2, "batch-2", wait=0)).reason is Reason.RECONCILING
        asking = Soon(nursery, lambda: harness.call(2, "batch-2", wait=30))
        await settled()
        assert (files.log, await statuses(batch)) == (["tool begins"], ["effect_pending"])
        files.may_return.set()
        assert (await asking.result()).payload == payload_of("B")
        assert texts((await batch.wait()).entries) == ["written"], "nobody has cancelled it"
        assert files.log == ["tool begins", "tool returns", "files change"]
        view = (await pane.intents())[0]
        assert (view.batch_id, view.turn) == ("batch-2", ModelTurn("turn-2", 2))
    assert await check(url) == []


async def test_a_batch_that_has_yet_to_be_cleared_binds_the_intent_though_another_call_waits_for_its_end(
    url, monkeypatch
):
    files, asked, ask = Files(), trio.Event(), Clearance._ask_pane

    async def late(self, call):
        await asked.wait()
        return await ask(self, call)

    monkeypatch.setattr(Clearance, "_ask_pane", late)
    async with opened(url, files) as supervisor, trio.open_nursery() as nursery:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        batch = await started(pane, call("A", "write"), call("B", "write"), launch=False)
        asking = Soon(nursery, lambda: harness.call(2, "batch-2", wait=30))
        await settled()
        assert (files.log, asking.over.is_set()) == ([], False)
        asked.set()
        with trio.fail_after(5):
            outcome = await batch.wait()
        assert [text.encode() for text in texts(outcome.entries)] == [payload_of("B")] * 2
        assert not isinstance(await asking.result(), Allow)
        assert files.log == ["files change"]
    assert await check(url) == []


async def test_the_tools_of_a_batch_that_was_ended_from_outside_are_waited_for_as_well(url):
    files = Files()
    async with opened(url, files) as supervisor, trio.open_nursery() as nursery:
        pane = supervisor.pane("pane")
        harness, batch = await at_work(pane, files)
        assert await batch.finalize_externally() == Applied()
        await files.told_to_stop.wait()
        asking = Soon(nursery, lambda: harness.call(2, "batch-2", wait=30))
        await settled()
        assert files.log == ["tool begins"]
        files.may_end.set()
        assert (await asking.result()).payload == payload_of("B")
        assert files.log == ["tool begins", "tool has ended", "files change"]
        assert supervisor._runtime._registry.lingering == {}
    assert await check(url) == []


@pytest.mark.parametrize("point", ["batch.finalize/committed", "batch.finalize/applied"])
async def test_a_batch_that_died_while_it_was_ended_from_outside_holds_nobody_up(url, point):
    files, chaos = Files(), Chaos()
    files.may_end.set()
    chaos.kill_at(point)
    async with opened(url, files, chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness, batch = await at_work(pane, files)
        with pytest.raises(ActorCrashed):
            await batch.finalize_externally()
        with trio.fail_after(5):
            assert (await harness.call(2, "batch-2", wait=30)).payload == payload_of("B")
        assert files.log == ["tool begins", "tool has ended", "files change"]
    assert await check(url) == []


# -- a batch that cannot end --


async def test_a_batch_in_quarantine_blocks_the_launch_and_nothing_changes_before_somebody_revives_it(url):
    files = Files()
    files.may_end.set()
    async with opened(url, files, options=FRAGILE) as supervisor:
        pane = supervisor.pane("pane")
        old, batch = await at_work(pane, files, soft_batches=False)
        await supervisor.kill(batch.address)
        with pytest.raises(LaunchBlocked, match="batch:pane/op/turn-1 must end first, and it is in quarantine"):
            await pane.launch("claude-code", capabilities=RESTARTED)
        assert await pane.retire(old.incarnation_id, "over") == Applied(), "nothing had changed"
        assert "files change" not in files.log
        await supervisor.revive(batch.address)
        with trio.fail_after(5):
            launch = await pane.launch("claude-code", capabilities=RESTARTED)
        assert launch.startup.payload == payload_of("B")
    assert await check(url) == []


async def test_who_waits_for_tools_is_told_when_their_batch_is_quarantined(url):
    files = Files()
    async with opened(url, files, options=FRAGILE) as supervisor, trio.open_nursery() as nursery:
        pane = supervisor.pane("pane")
        _, batch = await at_work(pane, files, soft_batches=False)
        launch = Soon(nursery, pane.launch, "claude-code", None, RESTARTED)
        await files.told_to_stop.wait()
        await settled()
        await supervisor.kill(batch.address)
        blocked = await launch.result()
        assert isinstance(blocked, LaunchBlocked)
        assert "it waits for the end of its last process's tools, which are held up" in str(blocked)
        files.may_end.set()
        await supervisor.revive(batch.address)
        with trio.fail_after(5):
            again = await pane.launch("claude-code", capabilities=RESTARTED)
        assert again.startup.payload == payload_of("B")
    assert await check(url) == []


async def test_a_relaunch_that_a_quarantined_batch_held_up_goes_on_by_itself_when_it_is_revived(url):
    files, processes = Files(), Processes()
    files.may_end.set()
    async with opened(url, files, launcher=processes, options=FRAGILE) as supervisor:
        pane = supervisor.pane("pane")
        harness, batch = await at_work(pane, files, soft_batches=False)
        await supervisor.kill(batch.address)
        assert isinstance(await harness.call(2, "batch-2"), BlockRestart)
        await settled()
        assert ("files change" in files.log, len(processes.launches)) == (False, 1)
        assert (await supervisor.status()).quarantined == (batch.address,), "its pane is well"
        await supervisor.revive(batch.address)
        with trio.fail_after(5):
            assert (await processes.launched(2)).startup.payload == payload_of("B")
    assert await check(url) == []


async def test_every_call_behind_a_quarantined_batch_is_blocked_at_once_and_not_only_the_first(url):
    files = Files()
    files.may_end.set()
    async with opened(url, files, options=FRAGILE) as supervisor:
        pane = supervisor.pane("pane")
        harness, batch = await at_work(pane, files)
        await supervisor.kill(batch.address)
        for number in (2, 3, 4):
            with trio.fail_after(5):
                decision = await harness.call(number, f"batch-{number}", wait=600)
            assert isinstance(decision, BlockGeneric)
        await supervisor.revive(batch.address)
    assert await check(url) == []
