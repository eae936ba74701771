"""A payload through a replacement process: retire, mint, bind, launch, handshake, echo."""

from __future__ import annotations

import hashlib

import pytest
import trio
from bridges import Harness, Processes, Workspace, moved, payload_of

from fencepost.supervisor import (
    Allow,
    Applied,
    BlockGeneric,
    BlockPayload,
    BlockRestart,
    Capabilities,
    DeliveryMode,
    IntentState,
    LaunchBlocked,
    NeedsRecovery,
    Options,
    Reason,
    Refused,
    Stop,
    SyncStatus,
    Unchanged,
    check,
    open_supervisor,
)


async def materialized(pane, harness):
    """An intent whose payload was handed to a batch that never completes."""
    intent = await pane.detect(moved("A", "B"))
    assert isinstance(await harness.call(1, "b1"), BlockPayload)
    return intent


async def test_a_replacement_gets_the_same_bytes_and_acknowledges_by_its_echo(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await materialized(pane, harness)
        await harness.delivered(intent.intent_id, 1, "b1")
        delivered_at = (await supervisor.intent(intent.intent_id).view()).delivered_at
        assert await harness.pane.retire(harness.incarnation_id, "killed") == Applied()

        replacement = Harness(pane, await pane.launch("claude-code"))
        startup = replacement.launch.startup
        assert (startup.intent_id, startup.payload) == (intent.intent_id, payload_of("B"))
        assert startup.payload_sha256 == hashlib.sha256(payload_of("B")).hexdigest()
        assert replacement.launch.epoch == 2
        assert await replacement.ready() == Applied()
        assert await replacement.ready() == Unchanged()
        view = await supervisor.intent(intent.intent_id).view()
        assert (view.state, view.mode) == (IntentState.DELIVERED, DeliveryMode.RESTART_STARTUP)
        assert view.delivered_at == delivered_at
        assert view.startup_attempts == 1
        assert await replacement.call(1, "c1", echo=replacement.echo) == Allow()
        assert (await supervisor.intent(intent.intent_id).view()).state is IntentState.ACKNOWLEDGED
        # Concurrent siblings of that first turn carry the consumed id too; the batch's decision is fixed.
        assert await replacement.call(1, "c1", echo=replacement.echo) == Allow()
        assert (await replacement.ready()).reason is Reason.CONSUMED_STARTUP_ID
    assert await check(url) == []


async def test_siblings_of_the_acknowledging_call_get_the_next_intents_block(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await materialized(pane, harness)
        second = await pane.detect(moved("B", "C"))
        replacement = Harness(pane, await pane.launch("claude-code"))
        await replacement.ready()
        expected = BlockPayload(second.intent_id, payload_of("C"))
        for _ in range(2):
            assert await replacement.call(1, "c1", echo=replacement.echo) == expected


@pytest.mark.parametrize("echo", [None, "somebody-elses"])
async def test_a_wrong_echo_retires_the_attempt_without_acknowledgement(url, echo):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        intent = await materialized(pane, await Harness.start(pane))
        replacement = Harness(pane, await pane.launch("claude-code"))
        await replacement.ready()
        decision = await replacement.call(1, "c1", echo=echo)
        assert isinstance(decision, BlockRestart)
        assert decision.reason is Reason.WRONG_STARTUP_ID
        assert (await supervisor.intent(intent.intent_id).view()).state is IntentState.DELIVERED
        zombie = await replacement.call(1, "c1", echo=replacement.echo)
        assert isinstance(zombie, BlockGeneric), "the right id of a retired incarnation acknowledges nothing"
    assert await check(url) == []


async def test_an_echo_without_a_handshake_proves_nothing(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        await materialized(pane, await Harness.start(pane))
        replacement = Harness(pane, await pane.launch("claude-code"))
        decision = await replacement.call(1, "c1", echo=replacement.echo)
        assert isinstance(decision, BlockRestart)
        assert decision.reason is Reason.UNPROVED_STARTUP


async def test_the_handshake_names_the_exact_id_and_hash(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        plain = await Harness.start(pane)
        assert (await pane.startup_ready(plain.incarnation_id, "x", "y")).reason is Reason.OTHER_MODE
        await materialized(pane, plain)
        replacement = Harness(pane, await pane.launch("claude-code"))
        good = replacement.launch.startup
        for startup_id, digest, reason in [
            ("wrong", good.payload_sha256, Reason.WRONG_STARTUP_ID),
            (good.startup_delivery_id, "0" * 64, Reason.PAYLOAD_DRIFT),
        ]:
            before = await pane.intents()
            answer = await pane.startup_ready(replacement.incarnation_id, startup_id, digest)
            assert isinstance(answer, Refused)
            assert answer.reason is reason
            assert await pane.intents() == before
        assert (await pane.startup_ready("nobody", "x", "y")).reason is Reason.UNKNOWN_INCARNATION
        assert (await pane.startup_ready(plain.incarnation_id, "x", "y")).reason is Reason.RETIRED_INCARNATION
        other = supervisor.pane("other")
        assert (await other.startup_ready(replacement.incarnation_id, "x", "y")).reason is Reason.OTHER_PANE
        assert await replacement.ready() == Applied()
        assert (await replacement.completed(1, "b1")).reason is Reason.OTHER_MODE


async def test_attempts_are_bounded_then_exhausted_then_a_human_leads_on(url):
    options = Options(startup_attempts_max=2)
    async with open_supervisor(url, reconciler=Workspace(), options=options) as supervisor:
        pane = supervisor.pane("pane")
        intent = await materialized(pane, await Harness.start(pane))
        ids = set()
        for attempt in (1, 2):
            launch = await pane.launch("claude-code")
            ids.add(launch.startup.startup_delivery_id)
            assert (await supervisor.intent(intent.intent_id).view()).startup_attempts == attempt
            assert await pane.launch_failed(launch.incarnation_id, "did not come up") == Applied()
            assert await pane.launch_failed(launch.incarnation_id, "did not come up") == Unchanged()
        assert len(ids) == 2
        view = await supervisor.intent(intent.intent_id).view()
        assert view.exhausted_at is not None
        assert view.stop is Stop.UNCERTAIN
        assert await pane.sync_status() is SyncStatus.CONFLICTED
        with pytest.raises(LaunchBlocked) as blocked:
            await pane.launch("claude-code")
        assert blocked.value.intent_id == intent.intent_id
    async with open_supervisor(url, reconciler=Workspace(), options=options) as supervisor:
        pane = supervisor.pane("pane")
        with pytest.raises(LaunchBlocked):
            await pane.launch("claude-code")
        assert await pane.rearm(intent.intent_id) == Applied()
        assert (await pane.rearm(intent.intent_id)).reason is Reason.NOT_EXHAUSTED
        for _ in range(2):
            launch = await pane.launch("claude-code")
            await pane.launch_failed(launch.incarnation_id, "again")
        view = await supervisor.intent(intent.intent_id).view()
        assert view.epoch == 1
        assert isinstance(await pane.discard(intent.intent_id, "guessed"), Refused)
        assert await pane.discard(intent.intent_id, view.approval) == Applied()
        view = await supervisor.intent(intent.intent_id).view()
        assert (view.state, view.delivered_at, view.stop) == (IntentState.ACKNOWLEDGED, None, Stop.UNCERTAIN)
        assert (await pane.launch("claude-code")).startup is None
    assert await check(url) == []


async def test_a_launch_waits_for_the_payload_and_for_a_human(url):
    gate = trio.Event()
    workspace = Workspace(NeedsRecovery("dirty"), gate=gate)
    async with open_supervisor(url, reconciler=workspace) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1", wait=0)
        for state in (IntentState.RECONCILING, IntentState.RECOVERY_REQUIRED):
            with pytest.raises(LaunchBlocked) as blocked:
                await pane.launch("claude-code")
            assert blocked.value.state is state
            assert (await harness.call(1, "b1", wait=0)).reason is not Reason.RETIRED_INCARNATION
            gate.set()
            await harness.call(1, "b1")


async def test_a_harness_without_soft_batches_is_served_at_its_next_start(url):
    workspace = Workspace()
    async with open_supervisor(url, reconciler=workspace) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane, soft_batches=False)
        assert await harness.call(1, "b1") == Allow()
        intent = await pane.detect(moved("A", "B"))
        assert await harness.call(1, "b1") == Allow()
        assert isinstance(await harness.call(1, "b2"), BlockRestart)
        assert workspace.attempts == [], "without a Launcher nobody has said that the old process is gone"
        launch = await pane.launch("codex", capabilities=Capabilities(soft_batches=False))
        assert (launch.startup.intent_id, launch.startup.payload) == (intent.intent_id, payload_of("B"))
        replacement = Harness(pane, launch)
        await replacement.ready()
        assert await replacement.call(None, "c1", echo=replacement.echo) == Allow()
    assert await check(url) == []


async def test_with_a_launcher_the_supervisor_replaces_a_fenced_process_by_itself(url):
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await materialized(pane, harness)
        assert isinstance(await harness.call(2, "b2"), BlockRestart)
        launch = await processes.launched(2)
        assert processes.log == [
            ("start", harness.incarnation_id),
            ("stop", harness.incarnation_id),
            ("start", launch.incarnation_id),
        ]
        replacement = Harness(pane, launch)
        assert await replacement.ready() == Applied()
        assert await replacement.call(1, "c1", echo=replacement.echo) == Allow()
        assert (await supervisor.intent(intent.intent_id).view()).state is IntentState.ACKNOWLEDGED
    assert await check(url) == []


async def test_with_a_launcher_a_failed_start_is_tried_again_until_exhausted(url):
    processes = Processes()
    options = Options(startup_attempts_max=2)
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes, options=options) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await materialized(pane, harness)
        processes.start_failures = [OSError("no such program"), OSError("still none")]
        await harness.call(2, "b2")
        async for event in supervisor.events():
            if event.kind == "intent.exhausted":
                break
        assert len(processes.launches) == 3
        processes.start_failures.clear()
        assert await pane.rearm(intent.intent_id) == Applied()
        replacement = Harness(pane, await processes.launched(4))
        await replacement.ready()
        assert await replacement.call(1, "c1", echo=replacement.echo) == Allow()
    assert await check(url) == []


class Slow(Processes):
    """A Launcher that waits in `stop` and in `start` until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = trio.Event()
        self.stopping, self.starting = trio.Event(), trio.Event()

    async def stop(self, incarnation) -> None:
        self.stopping.set()
        await self.go.wait()
        await super().stop(incarnation)

    async def start(self, launch) -> None:
        self.starting.set()
        await self.go.wait()
        await super().start(launch)


async def blocked_launch(pane) -> LaunchBlocked:
    with trio.fail_after(5), pytest.raises(LaunchBlocked) as blocked:
        await pane.launch("codex")
    return blocked.value


async def test_a_launch_that_is_blocked_before_the_old_process_is_retired_changes_nothing(url):
    processes = Slow()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pane.launch, "claude-code")
            await processes.starting.wait()
            nursery.start_soon(blocked_launch, pane)  # waits until the first one is through
            await trio.testing.wait_all_tasks_blocked()
            intent = await pane.detect(moved("A", "B", ambiguous="two parents"))
            processes.go.set()
        assert (await blocked_launch(pane)).intent_id == intent.intent_id
        assert [what for what, _ in processes.log] == ["start"], "the live process was neither retired nor stopped"
    assert await check(url) == []


async def test_a_conflict_that_arises_while_the_old_process_is_stopped_does_not_bring_it_back(url):
    processes = Slow()
    processes.go.set()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        processes.go = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(blocked_launch, pane)
            await processes.stopping.wait()
            intent = await pane.detect(moved("A", "B", ambiguous="two parents"))
            processes.go.set()
        assert (await harness.call(1, "b1")).reason is Reason.RETIRED_INCARNATION
        assert await pane.resolve(intent.intent_id, "the second one", by="ada") == Applied()
        with trio.fail_after(5):
            assert (await processes.launched(2)).startup.payload == payload_of("B")
    assert await check(url) == []


async def test_a_process_that_cannot_be_stopped_starts_nothing_and_conflicts_the_pane(url):
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await materialized(pane, harness)
        processes.stop_failures = [PermissionError("not ours")]
        await harness.call(2, "b2")
        await trio.testing.wait_all_tasks_blocked()
        while await pane.sync_status() is not SyncStatus.CONFLICTED:
            await trio.testing.wait_all_tasks_blocked()
        assert len(processes.launches) == 1
        assert (await pane.launch("claude-code")).startup.payload == payload_of("B")
        assert await pane.sync_status() is SyncStatus.PENDING


async def test_with_a_launcher_a_host_launch_awaits_start_and_raises_what_it_raises(url):
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        processes.start_failures = [OSError("no such program")]
        with pytest.raises(OSError, match="no such program"):
            await pane.launch("claude-code")
        launch = await pane.launch("claude-code")
        assert launch.epoch == 2
        assert [launch.incarnation_id for launch in processes.launches][-1] == launch.incarnation_id


async def test_a_harness_without_turn_order_is_reconciled_with_no_process_alive(url):
    processes = Processes()
    workspace = Workspace()
    async with open_supervisor(url, reconciler=workspace, launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane, turn_order=False)
        intent = await pane.detect(moved("A", "B"))
        decision = await harness.call(1, "b1")
        assert isinstance(decision, BlockRestart)
        assert decision.reason is Reason.TURN_ORDER_UNKNOWN
        launch = await processes.launched(2)
        assert workspace.attempts == [(intent.intent_id, False)]
        assert launch.startup.payload == payload_of("B")
        kinds = [event.kind async for event in supervisor.events(follow=False)]
        assert (
            kinds.index("incarnation.retired") < kinds.index("intent.reconciling") < kinds.index("intent.materialized")
        )


async def test_the_hosts_own_retire_relaunches_nothing(url):
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await materialized(pane, harness)
        await pane.retire(harness.incarnation_id, "the user closed the pane")
        await trio.testing.wait_all_tasks_blocked()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        await supervisor.status()
        await trio.testing.wait_all_tasks_blocked()
        assert len(processes.launches) == 1
