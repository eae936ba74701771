"""Deaths that must not spread, and wishes that must not die with whoever had them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
import trio.lowlevel
import trio.testing
from bridges import Harness, Processes, Workspace, moved, payload_of
from frozen_time import TrioClock

from fencepost.actors.calls import SyncStatusQuery
from fencepost.actors.pane_state import RETIRED_FOR, STOP_FAILED
from fencepost.mailbox.envelope import Envelope, ReplySlot
from fencepost.mailbox.stores.store import open_reader
from fencepost.supervisor import (
    ActorCrashed,
    ActorQuarantined,
    BlockPayload,
    Capabilities,
    Chaos,
    LaunchBlocked,
    Options,
    Reason,
    SyncStatus,
    check,
    open_supervisor,
)
from fencepost.supervisor.overview import PaneLine, Standing, fleet
from fencepost.supervisor.restart_policy import CrashHistory


class UnshowableError(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("not even this")


async def quarantined(supervisor) -> None:
    async for event in supervisor.events():
        if event.kind == "actor.quarantined":
            return


async def test_a_quarantined_intent_leaves_its_pane_alive(url):
    workspace = Workspace(*[RuntimeError("on fire")] * 3)
    async with open_supervisor(url, reconciler=workspace, options=Options(crashes_max=2)) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        await quarantined(supervisor)
        with pytest.raises(ActorQuarantined):
            await harness.completed(1, "b1")
        await supervisor.kill("pane:pane")
        assert await pane.sync_status() is SyncStatus.PENDING
        assert (await harness.call(1, "b1", wait=0)).reason is Reason.RECONCILING
        assert (await supervisor.status()).quarantined == (f"intent:{intent.intent_id}",)
        await supervisor.revive(f"intent:{intent.intent_id}")
        assert await harness.call(1, "b1") == BlockPayload(intent.intent_id, payload_of("B"))


class Outage(Workspace):
    """A Reconciler whose network is down for so many seconds of trio's clock."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.until = trio.current_time() + seconds

    async def reconcile(self, attempt):
        if trio.current_time() < self.until:
            self.outcomes.append(OSError("the network is down"))
        return await super().reconcile(attempt)


async def test_what_fails_for_a_moment_is_given_that_moment(autojump_clock):
    async with open_supervisor("memory://", reconciler=Outage(1.0)) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        batch = [await harness.call(1, "b1", wait=60) for _ in range(6)]
        assert batch[-1] == BlockPayload(intent.intent_id, payload_of("B"))
        assert (await supervisor.status()).quarantined == ()


async def test_what_fails_every_time_is_quarantined_within_a_quarter_of_the_window(autojump_clock):
    workspace = Outage(float("inf"))
    async with open_supervisor("memory://", reconciler=workspace, clock=TrioClock()) as supervisor:
        harness = await Harness.start(supervisor.pane("pane"))
        await harness.pane.detect(moved("A", "B"))
        began = trio.current_time()
        await harness.call(1, "b1", wait=0)
        await quarantined(supervisor)
        assert len(workspace.attempts) == Options().crashes_max + 1
        assert trio.current_time() - began <= Options().crash_window_seconds / 4


@pytest.mark.parametrize("crashes_max", [0, 1, 5, 10_000])
@pytest.mark.parametrize("window_seconds", [0, 1, 60, 86_400, float("inf")])
def test_pauses_grow_and_leave_room_in_the_window(crashes_max, window_seconds):
    history, pauses = CrashHistory(), []
    for at in range(min(crashes_max, 50)):
        history = history.crashed(at / 1e6, crashes_max, window_seconds or 1)
        pauses.append(history.pause_seconds(crashes_max, window_seconds))
    assert pauses == sorted(pauses)
    assert sum(pauses) <= window_seconds / 4
    assert pauses[:1] in ([], [0.0])
    assert all(pause <= 30 for pause in pauses)


async def test_a_killed_actor_is_back_at_once_however_often(autojump_clock):
    async with open_supervisor("memory://", options=Options(crashes_max=5)) as supervisor:
        await supervisor.pane("pane").sync_status()
        began = trio.current_time()
        for _ in range(6):
            await supervisor.kill("pane:pane")
        assert (await supervisor.status()).quarantined == ("pane:pane",)
        assert trio.current_time() == began


async def test_nobody_waits_for_what_only_a_revival_can_bring(autojump_clock):
    workspace = Outage(float("inf"))
    options = Options(crashes_max=0)
    async with open_supervisor("memory://", reconciler=workspace, options=options) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        began = trio.current_time()
        for _ in range(3):
            assert (await harness.call(1, "b1", wait=3_600)).reason is Reason.RECONCILING
        assert trio.current_time() - began < 1
        workspace.until = 0
        await supervisor.revive(f"intent:{intent.intent_id}")
        assert await harness.call(1, "b1", wait=3_600) == BlockPayload(intent.intent_id, payload_of("B"))


async def test_a_replacement_waits_for_the_revival_of_its_intent_and_costs_the_pane_no_life(url):
    processes = Processes()
    options = Options(crashes_max=0)
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes, options=options) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        assert isinstance(await harness.call(1, "b1"), BlockPayload)
        address = f"intent:{intent.intent_id}"
        await supervisor.kill(address)
        with pytest.raises(ActorQuarantined):
            await pane.launch("claude-code")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (await supervisor.status()).quarantined == (address,)
        assert len(processes.launches) == 1
        await supervisor.revive(address)
        with trio.fail_after(5):
            launch = await processes.launched(2)
        assert launch.startup.payload == payload_of("B")
    assert await check(url) == []


async def test_an_exception_that_cannot_show_itself_is_a_crash_like_any_other(url):
    async with open_supervisor(url, reconciler=Workspace(UnshowableError())) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        assert (await harness.call(1, "b1")).reason is Reason.RECONCILING
        assert isinstance(await harness.call(1, "b1"), BlockPayload)


async def test_an_actor_on_its_way_to_a_message_is_not_put_to_bed(url):
    async with open_supervisor(url, options=Options(idle_seconds=0)) as supervisor:
        pane = supervisor.pane("pane")

        async def ask_again_and_again() -> None:
            for _ in range(150):
                assert await pane.sync_status() is SyncStatus.IN_SYNC
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask_again_and_again)


async def test_the_wish_of_a_rearm_outlives_the_intents_death(url):
    chaos, processes = Chaos(), Processes()
    options = Options(startup_attempts_max=1)
    async with open_supervisor(
        url, reconciler=Workspace(), launcher=processes, chaos=chaos, options=options
    ) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        processes.start_failures = [OSError("no such program")]
        await harness.call(2, "b2")
        async for event in supervisor.events():
            if event.kind == "intent.exhausted":
                break
        chaos.kill_at("intent.rearm/applied")
        with pytest.raises(ActorCrashed):
            await pane.rearm(intent.intent_id)
        assert (await processes.launched(3)).startup.payload == payload_of("B")


async def test_a_process_that_would_not_stop_is_told_and_stopped_by_no_mere_question(url):
    processes = Processes()
    options = Options(idle_seconds=0)
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes, options=options) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        processes.stop_failures = [PermissionError("not ours")] * 9
        await harness.call(2, "b2")
        while await pane.sync_status() is not SyncStatus.CONFLICTED:
            await trio.testing.wait_all_tasks_blocked(0.001)
        left = len(processes.stop_failures)
        await trio.sleep(0.05)
        assert await pane.sync_status() is SyncStatus.CONFLICTED
        assert len(processes.stop_failures) == left, "a query stops nothing"


async def stop_failures(supervisor) -> list[Mapping[str, object]]:
    return [event.data async for event in supervisor.events(follow=False) if event.kind == "incarnation.stop_failed"]


def seen_beside(url: str) -> PaneLine:
    with open_reader(url) as reader:
        (line,) = fleet(reader).panes
    return line


async def test_a_stop_that_failed_is_told_wherever_a_pane_is_looked_at_and_outlives_the_runtime(url):
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        processes.stop_failures = [PermissionError("not ours"), PermissionError("still not ours")]
        for said in ("not ours", "still not ours"):
            with pytest.raises(LaunchBlocked, match=r"^no process may start: the old process of") as blocked:
                await pane.launch("codex")
            assert (blocked.value.intent_id, blocked.value.state) == ("", "conflicted")
            assert await pane.sync_status() is SyncStatus.CONFLICTED
            told = (await stop_failures(supervisor))[-1]
            assert (told["incarnation_id"], told["reason"]) == (harness.incarnation_id, f"PermissionError({said!r})")
        await pane.detect(moved("A", "B"))
    line = seen_beside(url)
    assert line.standing is Standing.CONFLICTED
    assert line.process.stop_failure == "PermissionError('still not ours')"
    assert line.process.retire_reason.endswith("because of: replaced")
    assert line.owed.needs_a_person
    assert "could not be stopped, and nothing is started beside it: PermissionError('still not ours')" in line.owed.why
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        assert await pane.sync_status() is SyncStatus.CONFLICTED
        await pane.launch("codex")
        assert await pane.sync_status() is SyncStatus.PENDING
    assert seen_beside(url).standing is Standing.PENDING
    assert await check(url) == []


async def test_the_next_opening_tries_to_stop_it_again_and_goes_on_if_it_can(url):
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane, soft_batches=False)
        await pane.detect(moved("A", "B"))
        processes.stop_failures = [PermissionError("not ours")]
        assert (await harness.call(1, "b1")).reason is Reason.PAYLOAD_UNBOUND
        while not await stop_failures(supervisor):
            await trio.testing.wait_all_tasks_blocked(0.001)
    assert seen_beside(url).standing is Standing.CONFLICTED
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        launch = await processes.launched(1)
        assert launch.startup.payload == payload_of("B")
        assert await supervisor.pane("pane").sync_status() is SyncStatus.PENDING
    assert [what for what, _ in processes.log] == ["stop", "start"]
    assert await check(url) == []


async def test_a_reason_of_the_hosts_own_is_no_failed_stop(url):
    async with open_supervisor(url, launcher=Processes()) as supervisor:
        pane = supervisor.pane("pane")
        launch = await pane.launch("codex")
        await pane.retire(launch.incarnation_id, f"{STOP_FAILED}I say so{RETIRED_FOR}fun")
        assert await pane.sync_status() is SyncStatus.IN_SYNC
    assert seen_beside(url).standing is Standing.IN_SYNC


async def test_nobody_waits_for_a_reconciliation_that_a_runtime_cannot_do(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        await supervisor.pane("pane").detect(moved("A", "B"))
    async with open_supervisor(url) as supervisor:
        pane = supervisor.pane("pane")
        with pytest.raises(LaunchBlocked, match="Reconciler"):
            await pane.launch("codex", capabilities=Capabilities(soft_batches=False))
        (view,) = await pane.intents()
        assert view.state == "detected"


async def test_who_closes_second_waits_for_the_same_end(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_supervisor(url) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.aclose)
        await supervisor.aclose()
        async with open_supervisor(url):
            pass


async def test_the_session_belongs_to_the_pane_that_runs_it(url):
    async with open_supervisor(url) as supervisor:
        first = await supervisor.pane("one").launch("claude-code", session_id="s")
        await supervisor.pane("two").launch("claude-code", session_id="s")
        await supervisor.pane("two").launch("claude-code", session_id="other")
        assert (await supervisor.pane_for_session("s")).pane_id == "one"
        await supervisor.pane("one").retire(first.incarnation_id, "done")
        assert (await supervisor.pane_for_session("s")).pane_id == "two"


async def test_an_activation_that_fell_asleep_over_a_message_does_not_speak_of_the_runtimes_end():
    async with open_supervisor("memory://") as supervisor:
        await supervisor.pane("pane").sync_status()
        actor, replies = supervisor._runtime._registry._awake["pane:pane"], [ReplySlot() for _ in range(9)]
        for reply in replies:
            actor.inbox.put_nowait(Envelope(actor.address, SyncStatusQuery(), reply))
        actor.scope.cancel()
        with trio.fail_after(5), pytest.raises(ActorCrashed):
            await replies[-1].wait()
        assert await supervisor.pane("pane").sync_status() is SyncStatus.IN_SYNC


class SetBack:
    """A clock that runs backwards."""

    def __init__(self) -> None:
        self._now_ns = 10**18

    def now_ns(self) -> int:
        self._now_ns -= 1
        return self._now_ns

    def monotonic(self) -> float:
        return trio.current_time()


async def test_who_ran_a_session_last_is_told_by_the_lines_order_and_by_no_clock(url):
    clock = SetBack()
    async with open_supervisor(url, clock=clock) as supervisor:
        launches = [await supervisor.pane(name).launch("codex", session_id="s") for name in ("b", "c", "a")]
        assert (await supervisor.pane_for_session("s")).pane_id == "a"
        for launch in reversed(launches):
            await supervisor.pane(launch.pane_id).retire(launch.incarnation_id, "done")
        assert (await supervisor.pane_for_session("s")).pane_id == "a"
    async with open_supervisor(url, clock=clock) as supervisor:
        assert (await supervisor.pane_for_session("s")).pane_id == "a"
        await supervisor.pane("b").launch("codex", session_id="s")
        assert (await supervisor.pane_for_session("s")).pane_id == "b"
