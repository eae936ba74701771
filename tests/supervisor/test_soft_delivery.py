"""An intent through a live harness: bound to a batch, delivered into it, acknowledged by a later turn."""

from __future__ import annotations

import pytest
import trio
from bridges import Harness, Workspace, moved, payload_of, reconciled

from fencepost.mailbox.stores.store import open_reader
from fencepost.supervisor import (
    Allow,
    Applied,
    BlockGeneric,
    BlockPayload,
    BlockRestart,
    IntentState,
    NeedsRecovery,
    Options,
    Reason,
    Refused,
    Stage,
    SyncStatus,
    Unchanged,
    check,
    open_supervisor,
)


async def test_an_intent_travels_from_detection_to_acknowledgement(url):
    workspace = Workspace()
    async with open_supervisor(url, reconciler=workspace) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        assert await harness.call(1, "b1") == Allow()
        intent = await pane.detect(moved("A", "B"))
        assert await pane.sync_status() is SyncStatus.PENDING

        decisions = await harness.batch(2, "b2", calls=4)
        assert decisions == [BlockPayload(intent.intent_id, payload_of("B"))] * 4
        assert workspace.attempts == [(intent.intent_id, False)]

        assert await harness.delivered(intent.intent_id, 2, "b2") == Applied()
        first = await supervisor.intent(intent.intent_id).view()
        assert await harness.delivered(intent.intent_id, 2, "b2") == Unchanged()
        assert await supervisor.intent(intent.intent_id).view() == first
        assert first.stage is Stage.DELIVERED

        assert await harness.completed(2, "b2") == Applied()
        assert await harness.completed(2, "b2") == Unchanged()
        assert (await supervisor.intent(intent.intent_id).view()).state is IntentState.DELIVERED
        assert await harness.call(3, "b3") == Allow()

        view = await supervisor.intent(intent.intent_id).view()
        assert view.state is IntentState.ACKNOWLEDGED
        assert view.stage is Stage.RESPONDED
        assert view.delivered_at == first.delivered_at
        assert (view.mode, view.turn, view.batch_id, view.incarnation_id) == (None, None, None, None)
        assert await pane.sync_status() is SyncStatus.IN_SYNC
        assert await harness.delivered(intent.intent_id, 2, "b2") == Unchanged()
    assert await check(url) == []


async def test_the_call_that_acknowledges_one_intent_is_decided_by_the_next(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        first = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        second = await pane.detect(moved("B", "C"))
        assert not second.coalesced
        assert await harness.call(1, "b1") == BlockPayload(first.intent_id, payload_of("B"))
        await harness.delivered(first.intent_id, 1, "b1")
        await harness.completed(1, "b1")

        assert await harness.call(2, "b2") == BlockPayload(second.intent_id, payload_of("C"))
        states = [view.state for view in await pane.intents()]
        assert states == [IntentState.ACKNOWLEDGED, IntentState.MATERIALIZED]


async def test_a_passed_batch_stays_passed_and_the_intent_waits_for_a_later_one(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        assert await harness.call(1, "b1") == Allow()
        await pane.detect(moved("A", "B"))
        assert await harness.call(1, "b1") == Allow()
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        again = Harness(supervisor.pane("pane"), harness.launch)
        assert await again.call(1, "b1") == Allow(), "a restart of the bridge loses no admission [D12]"
        assert isinstance(await again.call(2, "b2"), BlockPayload)


async def test_siblings_wait_inside_their_budget_then_stay_blocked(url):
    gate = trio.Event()
    async with open_supervisor(url, reconciler=Workspace(gate=gate)) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        assert (await harness.call(1, "b1", wait=0)).reason is Reason.RECONCILING
        assert (await harness.call(1, "b1", wait=0.01)).reason is Reason.RECONCILING
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _sibling() -> None:
                assert await harness.call(1, "b1") == BlockPayload(intent.intent_id, payload_of("B"))

            await trio.testing.wait_all_tasks_blocked()
            gate.set()


async def test_a_lost_mark_delivered_is_recovered_from_batch_offer_and_later_turn(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        assert isinstance(await harness.call(1, "b1"), BlockPayload)
        await harness.completed(1, "b1")
        completed = (await supervisor.intent(intent.intent_id).view()).batch_completed_at
        assert await harness.call(2, "b2") == Allow()
        view = await supervisor.intent(intent.intent_id).view()
        assert view.state is IntentState.ACKNOWLEDGED
        assert view.delivered_at == completed
    assert await check(url) == []


async def test_a_batch_that_saw_only_generic_blocks_is_redelivered_once_then_restarted(url):
    gate = trio.Event()
    workspace = Workspace(gate=gate)
    async with open_supervisor(url, reconciler=workspace) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        assert isinstance(await harness.call(1, "b1", wait=0), BlockGeneric)
        await harness.completed(1, "b1")
        gate.set()
        # The later turn alone proves nothing: the payload was never offered to the completed batch.
        assert await harness.call(2, "b2") == BlockPayload(intent.intent_id, payload_of("B"))
        view = await supervisor.intent(intent.intent_id).view()
        assert (view.state, view.batch_id, view.soft_redeliveries) == (IntentState.MATERIALIZED, "b2", 1)
        assert view.batch_completed_at is None
        assert view.payload_offered_at is not None
        await harness.completed(2, "b2")
        assert await harness.call(3, "b3") == Allow()


async def test_an_incomplete_batch_is_never_inferred_to_be_complete(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        await harness.delivered(intent.intent_id, 1, "b1")
        decision = await harness.call(2, "b2")
        assert isinstance(decision, BlockRestart)
        assert decision.reason is Reason.BATCH_NOT_COMPLETE
        zombie = await harness.call(2, "b2")
        assert isinstance(zombie, BlockGeneric)
        assert zombie.reason is Reason.RETIRED_INCARNATION
        assert (await harness.completed(1, "b1")) == Refused(
            Reason.RETIRED_INCARNATION, f"incarnation '{harness.incarnation_id}' is retired"
        )
        letters = await supervisor.dead_letters()
        assert [(letter.call, letter.reason) for letter in letters] == [
            ("pre_tool_use", "retired_incarnation"),
            ("post_tool_batch", "retired_incarnation"),
        ]
        relaunched = Harness(pane, await pane.launch("claude-code"))
        assert relaunched.launch.startup.payload == payload_of("B")
    assert await check(url) == []


async def test_a_reconciler_that_raises_lets_nobody_through_and_is_resumed(url):
    workspace = Workspace(RuntimeError("disk on fire"))
    async with open_supervisor(url, reconciler=workspace) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        assert (await harness.call(1, "b1")).reason is Reason.RECONCILING
        assert await harness.call(1, "b1") == BlockPayload(intent.intent_id, payload_of("B"))
        assert workspace.attempts == [(intent.intent_id, False), (intent.intent_id, True)]


async def test_a_reconciler_that_always_raises_is_quarantined_and_can_be_revived(url):
    workspace = Workspace(*[RuntimeError("still on fire")] * 3)
    options = Options(crashes_max=2)
    async with open_supervisor(url, reconciler=workspace, options=options) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        assert (await harness.call(1, "b1")).reason is Reason.RECONCILING
        async for event in supervisor.events():
            if event.kind == "actor.quarantined":
                break
        address = f"intent:{intent.intent_id}"
        assert (await supervisor.status()).quarantined == (address,)
        assert len(workspace.attempts) == 3
        assert (await harness.call(1, "b1", wait=0)).reason is Reason.RECONCILING
        assert await supervisor.revive(address) == Applied()
        assert await supervisor.revive(address) == Unchanged()
        assert await harness.call(1, "b1") == BlockPayload(intent.intent_id, payload_of("B"))


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize("kind", ["text", "a value in a mapping", "the whole"])
async def test_nothing_that_a_reconciler_says_costs_its_outcome(url, kind):
    bad = "half \ud800 of a pair"
    details = {"text": {bad: bad}, "a value in a mapping": {"who": Unshowable()}, "the whole": Unshowable()}[kind]
    workspace = Workspace(NeedsRecovery(bad, bundle_path=bad, bundle_fingerprint=bad, details=details))
    async with open_supervisor(url, reconciler=workspace) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        assert (await harness.call(1, "b1")).reason is Reason.CONFLICTED
        assert len(workspace.attempts) == 1
        view = await supervisor.intent(intent.intent_id).view()
        assert (view.state, view.reason) == (IntentState.RECOVERY_REQUIRED, "half \ufffd of a pair")
    with open_reader(url) as reader:
        (row,) = reader.raw("intents")
    assert (row["bundle_path"], row["bundle_fingerprint"]) == (view.reason, view.reason)
    assert await check(url) == []


async def test_recovery_required_blocks_everything_until_a_human_resolves_it(url):
    workspace = Workspace(NeedsRecovery("dirty files", bundle_path="/bundle", bundle_fingerprint="f00"))
    async with open_supervisor(url, reconciler=workspace) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        assert (await harness.call(1, "b1")).reason is Reason.CONFLICTED
        assert (await harness.call(1, "b1")).reason is Reason.CONFLICTED
        assert await pane.sync_status() is SyncStatus.CONFLICTED
        view = await supervisor.intent(intent.intent_id).view()
        assert (view.state, view.reason) == (IntentState.RECOVERY_REQUIRED, "dirty files")
        assert await pane.resolve(intent.intent_id, "stash and go on", by="ada") == Applied()
        assert await harness.call(1, "b1") == BlockPayload(intent.intent_id, payload_of("B"))
        assert workspace.attempts[-1] == (intent.intent_id, True)


async def test_a_payload_no_channel_can_carry_needs_recovery(url):
    for number, (payload, reason) in enumerate([(b"\xff", "payload_not_text"), (b"x" * 11, "payload_too_large")]):
        workspace = Workspace(reconciled("B", payload))
        async with open_supervisor(url, reconciler=workspace, options=Options(payload_bytes_max=10)) as supervisor:
            pane = supervisor.pane(f"pane-{number}")
            harness = await Harness.start(pane)
            intent = await pane.detect(moved("A", "B"))
            assert (await harness.call(1, "b1")).reason is Reason.CONFLICTED
            view = await supervisor.intent(intent.intent_id).view()
            assert (view.state, view.reason, view.payload) == (IntentState.RECOVERY_REQUIRED, reason, None)


async def test_what_a_result_covers_and_discovers_is_written_with_it(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        first = await pane.detect(moved("A", "B"))
        gate = trio.Event()
        supervisor._runtime._reconciler = None  # the registry holds its own
        workspace = supervisor._runtime._registry.reconciler
        workspace.gate = gate
        async with trio.open_nursery() as nursery:
            nursery.start_soon(harness.call, 1, "b1")
            await workspace.started.wait()
            second = await pane.detect(moved("X", "C"))
            workspace.outcomes.append(
                reconciled("B", covers=(second.intent_id, "nonsense"), discovered=(moved("B", "D"), moved("A", "B")))
            )
            gate.set()
        views = await pane.intents()
        assert [(view.to_base, view.state) for view in views] == [
            ("B", IntentState.MATERIALIZED),
            ("C", IntentState.SUPERSEDED),
            ("D", IntentState.DETECTED),
        ]
        assert views[0].intent_id == first.intent_id
    assert await check(url) == []


async def test_after_the_newest_intent_is_superseded_the_one_before_it_still_coalesces(url):
    gate = trio.Event()
    workspace = Workspace(gate=gate)
    async with open_supervisor(url, reconciler=workspace) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1", wait=0)
        second = await pane.detect(moved("X", "C"))
        third = await pane.detect(moved("Y", "D"))
        assert (await pane.detect(moved("D", "E"))).coalesced
        workspace.outcomes.append(reconciled("B", covers=(third.intent_id,)))
        gate.set()
        await harness.call(1, "b1")
        again = await pane.detect(moved("C", "F"))
        assert (again.intent_id, again.coalesced) == (second.intent_id, True)
        assert (await supervisor.intent(second.intent_id).view()).triggers == ("trigger-C", "trigger-F")
    assert await check(url) == []


async def test_a_restart_before_the_first_payload_still_delivers_into_its_batch(url):
    gate = trio.Event()
    async with open_supervisor(url, reconciler=Workspace(gate=gate)) as supervisor:
        harness = await Harness.start(supervisor.pane("pane"))
        intent = await harness.pane.detect(moved("A", "B"))
        with trio.move_on_after(0.05):
            await harness.call(1, "b1", tool_call_id="call-1")
        gate.set()
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        harness.pane = supervisor.pane("pane")
        assert isinstance(await harness.call(1, "b1", tool_call_id="call-1"), BlockPayload)
        assert isinstance(await harness.call(1, "b1", tool_call_id="call-2"), BlockPayload)
        await harness.delivered(intent.intent_id, 1, "b1")
        await harness.completed(1, "b1")
        assert await harness.call(2, "b2") == Allow()
        assert (await supervisor.intent(intent.intent_id).view()).soft_redeliveries == 0


async def test_a_reconciler_that_exits_ends_its_own_attempt_only(url):
    class Exiting(Workspace):
        async def reconcile(self, attempt):
            if not attempt.resumed:
                raise SystemExit(3)
            return await super().reconcile(attempt)

    async with open_supervisor(url, reconciler=Exiting()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        assert isinstance(await harness.call(1, "b1"), BlockGeneric)
        assert isinstance(await harness.call(1, "b1"), BlockPayload)


async def test_turns_are_compared_only_while_a_proof_is_open(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        for turn, batch in [(5, "b5"), (3, "b3"), (5, "b5-again")]:
            assert await harness.call(turn, batch) == Allow()
        await pane.detect(moved("A", "B"))
        assert isinstance(await harness.call(5, "b5-third"), BlockPayload), "a new batch binds, whatever its turn"
