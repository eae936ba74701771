"""What a runtime takes up when its store is opened again: protocol-intent.md section 9, contract I-16."""

from __future__ import annotations

import pytest
import trio
from bridges import Harness, Processes, Workspace, moved, payload_of

from fencepost.supervisor import (
    Allow,
    Applied,
    BlockPayload,
    Chaos,
    IntentState,
    LaunchBlocked,
    Options,
    StoreFault,
    check,
    open_supervisor,
)


class Planned(Workspace):
    """Plans before it mutates; what it saw of an earlier plan is kept."""

    def __init__(self, **more) -> None:
        super().__init__(**more)
        self.plans: list[str | None] = []

    async def reconcile(self, attempt):
        self.plans.append(attempt.planned_op)
        await attempt.plan("rebase-1", "start-1")
        return await super().reconcile(attempt)


async def test_a_reconciling_intent_is_resumed_with_its_plan(url):
    never = trio.Event()
    first = Planned(gate=never)
    async with open_supervisor(url, reconciler=first, options=Options(close_seconds=0.2)) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1", wait=0)
        await first.started.wait()
    second = Planned()
    async with open_supervisor(url, reconciler=second) as supervisor:
        harness.pane = supervisor.pane("pane")
        assert await harness.call(1, "b1") == BlockPayload(intent.intent_id, payload_of("B"))
    assert (first.plans, second.plans) == ([None], ["rebase-1"])
    assert second.attempts == [(intent.intent_id, True)]
    assert await check(url) == []


async def test_soft_incarnations_and_accepted_startups_stay_live(url):
    async with open_supervisor(url, reconciler=Workspace(), launcher=Processes()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
    async with open_supervisor(url, reconciler=Workspace(), launcher=Processes()) as supervisor:
        harness.pane = pane = supervisor.pane("pane")
        assert await harness.call(1, "b1") == BlockPayload(intent.intent_id, payload_of("B"))
        replacement = Harness(pane, await pane.launch("claude-code"))
        assert await replacement.ready() == Applied()
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        replacement.pane = supervisor.pane("pane")
        assert await replacement.call(1, "c1", echo=replacement.echo) == Allow()
        assert processes.log == []
    assert await check(url) == []


async def test_with_a_launcher_an_unproved_startup_is_stopped_and_replaced(url):
    async with open_supervisor(url, reconciler=Workspace(), launcher=Processes()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        unproved = await pane.launch("claude-code")
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        launch = await processes.launched(1)
        assert processes.log == [("stop", unproved.incarnation_id), ("start", launch.incarnation_id)]
        assert launch.startup.startup_delivery_id != unproved.startup.startup_delivery_id
        assert launch.startup.payload == unproved.startup.payload
        late = Harness(supervisor.pane("pane"), unproved)
        assert (await late.ready()).reason == "retired_incarnation"
    assert await check(url) == []


async def test_without_a_launcher_an_unproved_startup_stays_until_the_next_launch(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        unproved = await pane.launch("claude-code")
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        assert await Harness(supervisor.pane("pane"), unproved).ready() == Applied()


async def test_an_exhausted_intent_gets_no_attempt_from_a_reopen(url):
    options = Options(startup_attempts_max=1)
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes, options=options) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        launch = await pane.launch("claude-code")
        await pane.launch_failed(launch.incarnation_id, "died")
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes, options=options) as supervisor:
        with pytest.raises(LaunchBlocked):
            await supervisor.pane("pane").launch("claude-code")
        await trio.testing.wait_all_tasks_blocked()
        assert processes.log == []
        view = await supervisor.intent(intent.intent_id).view()
        assert (view.state, view.startup_attempts) == (IntentState.MATERIALIZED, 1)


async def test_a_replacement_begun_before_the_death_is_finished_after_it(url):
    """Died between the fence and the stop of the old process: the wish is durable."""
    chaos = Chaos()
    harness = None
    with pytest.raises(StoreFault):
        async with open_supervisor(url, reconciler=Workspace(), launcher=Processes(), chaos=chaos) as supervisor:
            pane = supervisor.pane("pane")
            harness = await Harness.start(pane)
            await pane.detect(moved("A", "B"))
            await harness.call(1, "b1")
            passings = chaos.trace.count("pane.pre_tool_use/committed")
            chaos.kill_at("pane.pre_tool_use/committed", nth=passings + 1, what="runtime")
            await harness.call(2, "b2")
    assert chaos.unhit() == []
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes) as supervisor:
        launch = await processes.launched(1)
        assert processes.log == [("stop", harness.incarnation_id), ("start", launch.incarnation_id)]
        assert launch.startup.payload == payload_of("B")
    assert await check(url) == []


async def test_an_owed_transcript_projection_is_made_after_a_death(url):
    class Broken:
        async def project(self, dedup_key: str, intent_id: str, payload: bytes) -> None:
            raise RuntimeError("transcript unavailable")

    class Kept:
        def __init__(self) -> None:
            self.rows: list[tuple[str, str, bytes]] = []

        async def project(self, dedup_key: str, intent_id: str, payload: bytes) -> None:
            self.rows.append((dedup_key, intent_id, payload))

    async with open_supervisor(url, reconciler=Workspace(), transcript=Broken()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        assert await harness.delivered(intent.intent_id, 1, "b1") == Applied()
        async for event in supervisor.events():
            if event.kind == "transcript.failed":
                break
        await harness.completed(1, "b1")
        assert await harness.call(2, "b2") == Allow(), "a failed projection changes nothing else"
    kept = Kept()
    async with open_supervisor(url, reconciler=Workspace(), transcript=kept) as supervisor:
        await supervisor.status()
        while not kept.rows:
            await trio.testing.wait_all_tasks_blocked()
    assert kept.rows == [(f"cascade:{intent.intent_id}", intent.intent_id, payload_of("B"))]
    again = Kept()
    async with open_supervisor(url, reconciler=Workspace(), transcript=again) as supervisor:
        await supervisor.status()
        await trio.testing.wait_all_tasks_blocked()
    assert again.rows == []


async def test_a_passed_batch_outlives_a_reopen_whatever_its_harness_can_prove(url):
    for number, capabilities in enumerate([{"soft_batches": False}, {"turn_order": False}, {}]):
        async with open_supervisor(url, reconciler=Workspace()) as supervisor:
            pane = supervisor.pane(f"pane-{number}")
            harness = await Harness.start(pane, **capabilities)
            assert await harness.call(None, "b1") == Allow()
            await pane.detect(moved("A", "B"))
        async with open_supervisor(url, reconciler=Workspace()) as supervisor:
            harness.pane = supervisor.pane(f"pane-{number}")
            assert await harness.call(None, "b1") == Allow()
            assert await harness.call(None, "b1", passed_unseen="maybe") == Allow()


async def test_a_blocked_batch_outlives_its_intent_and_a_reopen(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        await harness.delivered(intent.intent_id, 1, "b1")
        await harness.completed(1, "b1")
        assert await harness.call(2, "b2") == Allow()
    for later in (None, moved("B", "C")):
        async with open_supervisor(url, reconciler=Workspace()) as supervisor:
            harness.pane = pane = supervisor.pane("pane")
            if later is not None:
                await pane.detect(later)
            straggler = await harness.call(1, "b1")
            assert straggler == BlockPayload(intent.intent_id, payload_of("B")), "planned before it was told"
