"""The lives an intent can have, each as a scenario chaos can interrupt anywhere.

A scenario speaks as a bridge would: what a death raises from a call is not asked twice, it simply leaves.  `finish`
then comes back as a new bridge over the same store and brings everything to its good end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from bridges import Harness, Processes, Workspace, moved, reconciled

from fencepost.supervisor import (
    Allow,
    BlockPayload,
    Chaos,
    Launch,
    LaunchBlocked,
    ModelTurn,
    NeedsRecovery,
    Options,
    SyncStatus,
    ToolBoundary,
    open_supervisor,
)

Scenario = Callable[[str, Chaos], Awaitable[None]]


async def soft_delivery(url: str, chaos: Chaos) -> None:
    async with open_supervisor(url, reconciler=Workspace(), chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await harness.call(1, "b1")
        intent = await pane.detect(moved("A", "B"))
        await harness.call(2, "b2")
        await harness.call(2, "b2")
        await harness.delivered(intent.intent_id, 2, "b2")
        await harness.completed(2, "b2")
        await harness.call(3, "b3")


async def lost_mark_delivered(url: str, chaos: Chaos) -> None:
    async with open_supervisor(url, reconciler=Workspace(), chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        await harness.completed(1, "b1")
        await harness.call(2, "b2")


async def generic_only_batch(url: str, chaos: Chaos) -> None:
    gate = trio.Event()
    async with open_supervisor(url, reconciler=Workspace(gate=gate), chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1", wait=0)
        await harness.completed(1, "b1")
        gate.set()
        await harness.call(2, "b2")
        await harness.completed(2, "b2")
        await harness.call(3, "b3")


async def restart_delivery(url: str, chaos: Chaos) -> None:
    async with open_supervisor(url, reconciler=Workspace(), chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        await harness.call(2, "b2")
        replacement = Harness(pane, await pane.launch("claude-code"))
        await replacement.ready()
        await replacement.call(1, "c1", echo=replacement.echo)


async def failed_handshake_and_retry(url: str, chaos: Chaos) -> None:
    async with open_supervisor(url, reconciler=Workspace(), chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        failing = await pane.launch("claude-code")
        await pane.startup_ready(failing.incarnation_id, failing.startup.startup_delivery_id, "0" * 64)
        await pane.launch_failed(failing.incarnation_id, "wrong hash")
        replacement = Harness(pane, await pane.launch("claude-code"))
        await replacement.ready()
        await replacement.call(1, "c1", echo=replacement.echo)


async def wrong_echo(url: str, chaos: Chaos) -> None:
    async with open_supervisor(url, reconciler=Workspace(), chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        wrong = Harness(pane, await pane.launch("claude-code"))
        await wrong.ready()
        await wrong.call(1, "c1", echo="not-the-one")
        replacement = Harness(pane, await pane.launch("claude-code"))
        await replacement.ready()
        await replacement.call(1, "c1", echo=replacement.echo)


async def two_intents_in_a_row(url: str, chaos: Chaos) -> None:
    async with open_supervisor(url, reconciler=Workspace(), chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        first = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        second = await pane.detect(moved("B", "C"))
        await pane.detect(moved("C", "D"))
        await harness.delivered(first.intent_id, 1, "b1")
        await harness.completed(1, "b1")
        await harness.call(2, "b2")
        await harness.delivered(second.intent_id, 2, "b2")
        await harness.completed(2, "b2")
        await harness.call(3, "b3")


async def covered_and_discovered(url: str, chaos: Chaos) -> None:
    gate = trio.Event()
    workspace = Workspace(gate=gate)
    async with open_supervisor(url, reconciler=workspace, chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1", wait=0)
        covered = await pane.detect(moved("X", "C"))
        workspace.outcomes.append(reconciled("B", covers=(covered.intent_id,), discovered=(moved("B", "D"),)))
        gate.set()
        await harness.call(1, "b1")


async def recovery_and_resolution(url: str, chaos: Chaos) -> None:
    async with open_supervisor(url, reconciler=Workspace(NeedsRecovery("dirty")), chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        await pane.resolve(intent.intent_id, "go on", by="ada")
        await harness.call(1, "b1")


async def exhaustion_rearm_and_discard(url: str, chaos: Chaos) -> None:
    options = Options(startup_attempts_max=1)
    async with open_supervisor(url, reconciler=Workspace(), chaos=chaos, options=options) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        for _ in range(2):
            launch = await pane.launch("claude-code")
            await pane.launch_failed(launch.incarnation_id, "no luck")
            await pane.rearm(intent.intent_id)
        launch = await pane.launch("claude-code")
        await pane.launch_failed(launch.incarnation_id, "no luck")
        view = await supervisor.intent(intent.intent_id).view()
        await pane.discard(intent.intent_id, str(view.approval))


async def replaced_by_a_launcher(url: str, chaos: Chaos) -> None:
    processes = Processes()
    async with open_supervisor(url, reconciler=Workspace(), launcher=processes, chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane, turn_order=False)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        events = supervisor.events()
        while (await anext(events)).data.get("epoch") != 2:
            pass  # ends with the runtime's fault, should it die before the replacement is bound
        with trio.move_on_after(0.5):
            replacement = Harness(pane, await processes.launched(2))
            await replacement.ready()
            await replacement.call(1, "c1", echo=replacement.echo)


SCENARIOS: list[Scenario] = [
    soft_delivery,
    lost_mark_delivered,
    generic_only_batch,
    restart_delivery,
    failed_handshake_and_retry,
    wrong_echo,
    two_intents_in_a_row,
    covered_and_discovered,
    recovery_and_resolution,
    exhaustion_rearm_and_discard,
    replaced_by_a_launcher,
]


async def finish(url: str) -> None:
    """Come back as a new bridge and bring every intent of the pane to its end, whatever state it was left in."""
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        await _settle(supervisor, pane)
        for round_number in range(10):
            if await pane.sync_status() is SyncStatus.IN_SYNC:
                return
            await _step(supervisor, pane, round_number)
        raise AssertionError(f"no good end was reached: {await pane.intents()}")


async def _settle(supervisor, pane) -> None:
    """Wait until whatever was reconciling when the bridge died has been resumed to its end."""
    events = supervisor.events()
    while any(view.state == "reconciling" for view in await pane.intents()):
        await anext(events)


async def _step(supervisor, pane, round_number: int) -> None:
    """Do what a bridge does next: a human's word, or a replacement process that is told and echoes."""
    for view in await pane.intents():
        if view.exhausted_at is not None:
            await pane.rearm(view.intent_id)
        elif view.state in {"recovery_required", "topology_diverged"}:
            await pane.resolve(view.intent_id, "go on", by="finish")
            await _settle(supervisor, pane)
    try:
        launch = await pane.launch("claude-code")
    except LaunchBlocked:
        await _settle(supervisor, pane)
        live = [event async for event in supervisor.events(follow=False) if event.kind == "incarnation.launched"][-1]
        await pane.retire(str(live.data["incarnation_id"]), "blocks its successor")
        return
    await _work(pane, launch)


async def _work(pane, launch: Launch) -> None:
    """A well-behaved harness: accept the startup input, echo it, then take what comes batch by batch."""
    harness = Harness(pane, launch)
    if launch.startup is not None:
        await harness.ready()
    for turn in range(1, 6):
        echo = None if launch.startup is None else harness.echo
        at = ModelTurn(f"turn-{turn}", turn)
        batch = f"batch-{turn}"
        decision = await pane.pre_tool_use(ToolBoundary(launch.incarnation_id, at, batch, startup_delivery_id=echo))
        if decision == Allow():
            return
        assert isinstance(decision, BlockPayload), decision
        await harness.delivered(decision.intent_id, turn, batch)
        await harness.completed(turn, batch)
