"""Accepting, row by row: protocol-delivery.md sections 6.1, 6.2, 6.3, 8 and 11, contract DA-4 to DA-6, DA-15, DA-16."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from delivery_scenarios import World, beside, opened, rows, stored_events, uid

from fencepost.mailbox.claim import fingerprint_of
from fencepost.supervisor import (
    ActorCrashed,
    Applied,
    Chaos,
    FencepostError,
    InboundPost,
    Options,
    Outbound,
    Receipt,
    Stage,
    Stop,
    TurnEnd,
    Unchanged,
    check,
    open_supervisor,
)

A, B, C = uid(1), uid(2), uid(3)
TEXT = "from the pane"
PRINT = fingerprint_of(TEXT)
ELSEWHERE = "0" * 64


async def bound(pane, session="session-1") -> str:
    """Launch, and answer the binding."""
    await pane.launch("claude-code", session)
    return (await pane.binding()).binding


async def ended(supervisor, count=1) -> list[tuple[str, dict]]:
    """The events of inbound turns, once so many have ended."""
    found = []
    with trio.fail_after(10):
        async for event in supervisor.events():
            if event.kind in {"delivery.accepted", "delivery.failed", "delivery.ended"}:
                found.append((event.kind, dict(event.data)))
            if sum(kind != "delivery.accepted" for kind, _ in found) == count:
                break
    return found


async def fenced(url: str, world: World, boundary: str = "pane.fence/applied", post=None) -> str:
    """Leave a pending original behind: the runtime dies at this point of its acceptance.  Answers the binding."""
    chaos = Chaos()
    chaos.kill_at(boundary, what="runtime")
    async with opened(url, world, chaos) as (_, pane):
        binding = (await pane.binding()).binding or await bound(pane)
        with pytest.raises(FencepostError):
            await pane.accept(post or InboundPost(A, binding, TEXT))
    assert chaos.unhit() == []
    return binding


# -- the good path -----------------------------------------------------------------------------------------------


async def test_6_1_8_and_12_o5_the_writes_in_their_order_and_the_answer(url):
    class Looking(World):
        async def dispatch(self, turn):
            self.seen_rows = {name: len(rows(url, name)) for name in ("tombstones", "acceptances", "runs")}
            return await super().dispatch(turn)

    world, chaos = Looking(gate=trio.Event()), Chaos()
    async with opened(url, world, chaos) as (supervisor, pane):
        binding = await bound(pane)
        receipt = await pane.accept(InboundPost(A, binding, TEXT))
        assert receipt == Receipt(
            received=True, stage=Stage.STORED, stop=None, delivery_id=A, binding=binding, fingerprint=PRINT
        )
        await world.reached.wait()
        assert world.seen_rows == {"tombstones": 1, "acceptances": 1, "runs": 1}
        assert rows(url, "inbound_fences") == [], "cleared although the turn goes on (D-24)"
        world.gate.set()
        (accepted, end) = await ended(supervisor)
        run_id = accepted[1]["run_id"]
        assert accepted == ("delivery.accepted", {"delivery_id": A, "run_id": run_id, "stage": "stored"})
        assert end[0] == "delivery.ended"
        assert (end[1]["delivery_id"], end[1]["run_id"], end[1]["stage"]) == (A, run_id, "responded")
    (turn,) = world.turns
    assert (turn.delivery_id, turn.pane_id, turn.text, turn.run_id) == (A, "pane", TEXT, run_id)
    assert TEXT in turn.wrapped_text
    assert turn.wrapped_text != TEXT
    commits = [point.split("/")[0] for point in chaos.trace if point.endswith("/committed")]
    steps = ["pane.fence", "pane.tombstone", "pane.accept", "pane.publish", "pane.clear_fence"]
    assert [step for step in commits if step in steps] == steps
    assert await check(url) == []


ENDS = [
    (TurnEnd("settled"), "delivery.ended", "responded"),
    (TurnEnd("silent"), "delivery.ended", "responded"),
    (TurnEnd("absorbed"), "delivery.ended", "responded"),
    (TurnEnd("waiting_user"), "delivery.ended", "consumed"),
    (TurnEnd("failed", "policy_refused"), "delivery.failed", "stored"),
    (TurnEnd("failed", "stalled"), "delivery.failed", "stored"),
    (TurnEnd("failed", "who knows"), "delivery.failed", "stored"),
    (TurnEnd("pending"), "delivery.failed", "stored"),
    (TurnEnd("exploded"), "delivery.failed", "stored"),
    (RuntimeError("no model"), "delivery.failed", "stored"),
    (None, "delivery.failed", "stored"),
    (TurnEnd("settled", text="\ud800"), "delivery.ended", "responded"),
]


@pytest.mark.parametrize(("answers", "kind", "stage"), ENDS, ids=lambda value: ascii(value)[:60])
async def test_1_3_6_turn_events_carry_the_last_stage_however_the_run_ended(answers, kind, stage):
    world = World(answers=answers)
    async with opened("memory://", world) as (supervisor, pane):
        binding = await bound(pane)
        assert (await pane.accept(InboundPost(A, binding, TEXT))).received
        (_, end) = await ended(supervisor)
        assert (end[0], end[1]["stage"]) == (kind, stage)
        assert "reason" not in end[1]
        assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED, "however it ended"


# -- 6.1 checks, in order ----------------------------------------------------------------------------------------


def nothing_written(url: str) -> bool:
    return not any(rows(url, table) for table in ("inbound_fences", "tombstones", "acceptances", "runs"))


@pytest.mark.parametrize(("delivery_id", "binding", "text"), [
    (None, "b" * 64, TEXT),
    (A, None, TEXT),
    (None, None, TEXT),
    ("not-a-uuid", "b" * 64, TEXT),
    (A.upper() if A.upper() != A else A.replace("0", "A"), "b" * 64, TEXT),
    ("{" + A + "}", "b" * 64, TEXT),
    (A + "\n", "b" * 64, TEXT),
    (A.replace("-", ""), "b" * 64, TEXT),
    (A, "B" * 64, TEXT),
    (A, "b" * 63, TEXT),
    (A, "b" * 64 + "\n", TEXT),
    (A, "ü" * 64, TEXT),
    (17, "b" * 64, TEXT),
    (A, b"b" * 64, TEXT),
    (A, "b" * 64, None),
    (A, "b" * 64, b"bytes"),
    (A, "b" * 64, ""),
    (A, "b" * 64, " \r\n\t "),
])  # fmt: skip
async def test_6_1_3_and_d_31_what_is_malformed_is_rejected_before_anything(delivery_id, binding, text):
    url = "memory://malformed"
    world = World()
    async with opened(url, world) as (_, pane):
        if isinstance(binding, str) and binding == "b" * 64:
            binding = await bound(pane)
        receipt = await pane.accept(InboundPost(delivery_id, binding, text))
        assert (receipt.received, receipt.stage, receipt.stop) == (False, None, Stop.REJECTED)
        assert receipt.detail
        if delivery_id is None or binding is None:
            assert "delivery id required" in receipt.detail
        await pane.retire((await pane.launch("claude-code", "session-1")).incarnation_id, "done")
    assert nothing_written(url)
    assert world.work == {}


async def test_6_1_3_comes_before_the_look_at_the_pane(url):
    async with opened(url, World()) as (supervisor, pane):
        receipt = await pane.accept(InboundPost(None, None, TEXT))
        assert (receipt.stop, receipt.delivery_id, receipt.binding) == (Stop.REJECTED, None, None)
        assert await supervisor.dead_letters() == [], "a refused post leaves its receipt only (DA-21)"


async def test_6_1_4_and_8_without_a_trace_and_a_session_it_is_unavailable(url):
    world = World()
    async with opened(url, world) as (_, pane):
        receipt = await pane.accept(InboundPost(A, ELSEWHERE, TEXT))
        assert (receipt.received, receipt.stop) == (False, Stop.UNAVAILABLE)
        assert (receipt.delivery_id, receipt.binding, receipt.fingerprint) == (A, ELSEWHERE, PRINT)
        launch = await pane.launch("claude-code", "session-1")
        binding = (await pane.binding()).binding
        await pane.retire(launch.incarnation_id, "done")
        assert (await pane.accept(InboundPost(A, binding, TEXT))).stop is Stop.UNAVAILABLE
    assert nothing_written(url)
    assert world.work == {}


@pytest.mark.parametrize("posted", [A, B], ids=["its trace", "a fence on the pane"])
async def test_6_1_4_without_a_session_and_with_a_trace_it_is_uncertain(url, posted):
    world = World()
    binding = await fenced(url, world)
    async with opened(url, world) as (_, pane):
        await pane.retire((await pane.launch("claude-code", "session-1")).incarnation_id, "done")
        assert (await pane.accept(InboundPost(posted, binding, TEXT))).stop is Stop.UNCERTAIN
        assert (await pane.accept(InboundPost(posted, binding, " "))).stop is Stop.REJECTED


@pytest.mark.parametrize("trace", ["tombstone", "acceptance"])
async def test_6_1_4_without_a_session_and_with_an_attempted_id_it_is_uncertain(url, trace):
    world = World()
    async with opened(url, world) as (_, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        if trace == "tombstone":
            await pane.reset_conversation()
        await pane.retire((await pane.launch("claude-code", "session-1")).incarnation_id, "done")
        assert (await pane.accept(InboundPost(A, binding, TEXT))).stop is Stop.UNCERTAIN
        assert (await pane.accept(InboundPost(B, binding, TEXT))).stop is Stop.UNAVAILABLE
    assert world.work == {A: 1}


async def test_6_1_5_and_12_o6_another_binding_is_uncertain_and_writes_nothing(url):
    world = World()
    async with opened(url, world) as (_, pane):
        await bound(pane)
        for binding in (ELSEWHERE, (await pane.binding()).binding[::-1]):
            receipt = await pane.accept(InboundPost(A, binding, TEXT))
            assert (receipt.received, receipt.stop, receipt.binding) == (False, Stop.UNCERTAIN, binding)
    assert nothing_written(url)
    assert world.work == {}


async def test_6_1_6_an_accepted_post_is_stored_again_and_again(url):
    world = World()
    async with opened(url, world) as (_, pane):
        binding = await bound(pane)
        first = await pane.accept(InboundPost(A, binding, TEXT))
        for text in (TEXT, f"  {TEXT}\r\n"):
            assert await pane.accept(InboundPost(A, binding, text)) == first
        # The session goes on in another process: the binding is the same (D-16).
        assert await bound(pane) == binding
        assert await pane.accept(InboundPost(A, binding, TEXT)) == first
    async with opened(url, world) as (_, pane):
        assert await pane.accept(InboundPost(A, binding, TEXT)) == first
    assert world.work == {A: 1}


async def test_6_1_7_an_accepted_id_with_other_evidence_is_uncertain(url):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        assert (await pane.accept(InboundPost(A, binding, "another text"))).stop is Stop.UNCERTAIN
        other = supervisor.pane("other")
        await bound(other)
        receipt = await other.accept(InboundPost(A, (await other.binding()).binding, TEXT))
        assert receipt.stop is Stop.UNCERTAIN
        second = await bound(pane, "session-2")
        receipt = await pane.accept(InboundPost(A, second, TEXT))
        assert (receipt.stop, receipt.binding) == (Stop.UNCERTAIN, second), "the evidence asked for is echoed"
        # None of it left anything behind.
        assert (await pane.accept(InboundPost(B, second, TEXT))).received
        assert (await other.accept(InboundPost(C, (await other.binding()).binding, TEXT))).received
    assert world.work == {A: 1, B: 1, C: 1}


async def test_6_1_7_the_same_id_without_its_acceptance_is_never_accepted(url):
    world = World()
    binding = await fenced(url, world)
    async with opened(url, world) as (_, pane):
        for _ in range(2):
            assert (await pane.accept(InboundPost(A, binding, TEXT))).stop is Stop.UNCERTAIN
    assert world.work == {}
    assert await check(url) == []


async def test_without_a_dispatcher_nothing_is_accepted(url):
    async with open_supervisor(url) as supervisor:
        pane = supervisor.pane("pane")
        receipt = await pane.accept(InboundPost(A, await bound(pane), TEXT))
        assert (receipt.received, receipt.stop) == (False, Stop.UNAVAILABLE)
    assert nothing_written(url)


async def test_11_7_the_same_id_twice_at_once_is_one_run(url):
    world = World(gate=trio.Event())
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        binding = await bound(pane)
        calls = [beside(nursery, pane.accept, InboundPost(A, binding, TEXT)) for _ in range(5)]
        receipts = [await call() for call in calls]
        assert {receipt.stop for receipt in receipts} <= {None, Stop.UNCERTAIN}
        assert any(receipt.received for receipt in receipts)
        world.gate.set()
    assert world.work == {A: 1}


class Sequenced(Chaos):
    """A Chaos under which a test acts once, at a point that a request passes in the handler."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self.point = point
        self.act = lambda: None

    def passed(self, point):
        if point == self.point:
            act, self.act = self.act, lambda: None
            act()
        return super().passed(point)


HANDLER = {
    "fence": "pane.fence/committed",
    "tombstone": "pane.tombstone/committed",
    "acceptance": "pane.accept/committed",
    "publication": "pane.publish/committed",
}


@pytest.mark.parametrize("point", HANDLER.values(), ids=HANDLER)
async def test_11_5_a_lookup_that_meets_its_original_in_the_handler(url, point):
    """It never sees half an acceptance: it is answered once the original is, and then from what is durable."""
    world, chaos = World(), Sequenced(point)
    async with opened(url, world, chaos) as (_, pane), trio.open_nursery() as nursery:
        binding, asked = await bound(pane), []
        token = trio.lowlevel.current_trio_token()

        def ask() -> None:
            token.run_sync_soon(lambda: asked.append(beside(nursery, pane.receipt, A, binding, PRINT)))

        chaos.act = ask
        posted = await pane.accept(InboundPost(A, binding, TEXT))
        assert posted.received
        await trio.testing.wait_all_tasks_blocked()
        (receipt,) = asked
        assert await receipt() == posted
    assert world.work == {A: 1}


@pytest.mark.parametrize("dies", [False, True], ids=["it is finished", "it dies"])
@pytest.mark.parametrize("point", HANDLER.values(), ids=HANDLER)
async def test_11_6_another_id_that_meets_an_original_in_the_handler(url, point, dies):
    """It is judged after the original: free if that is finished, uncertain if it was left pending."""
    world, chaos = World(), Sequenced(point)
    if dies:
        chaos.kill_at(point, what="actor")
    async with opened(url, world, chaos) as (_, pane), trio.open_nursery() as nursery:
        binding, asked = await bound(pane), []
        token = trio.lowlevel.current_trio_token()

        def ask() -> None:
            token.run_sync_soon(lambda: asked.append(beside(nursery, pane.accept, InboundPost(B, binding, "another"))))

        chaos.act = ask
        if dies:
            with pytest.raises(ActorCrashed):
                await pane.accept(InboundPost(A, binding, TEXT))
        else:
            assert (await pane.accept(InboundPost(A, binding, TEXT))).received
        await trio.testing.wait_all_tasks_blocked()
        (other,) = asked
        receipt = await other()
        assert (receipt.received, receipt.stop) == ((False, Stop.UNCERTAIN) if dies else (True, None))
        assert len(rows(url, "inbound_fences")) == dies
    assert world.work.get(B, 0) == (not dies)


async def test_11_7_the_same_id_at_two_panes_at_once_is_one_run_and_locks_nobody_out(url):
    world = World()
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        other = supervisor.pane("other")
        bindings = {each: await bound(each) for each in (pane, other)}
        calls = {
            each: beside(nursery, each.accept, InboundPost(A, binding, TEXT)) for each, binding in bindings.items()
        }
        receipts = {each: await call() for each, call in calls.items()}
        assert sorted(receipt.received for receipt in receipts.values()) in ([False, True], [False, False])
        for each, receipt in receipts.items():
            assert receipt.received or receipt.stop is Stop.UNCERTAIN
            assert (await each.accept(InboundPost(B if each is pane else C, bindings[each], TEXT))).received
    assert world.work[A] <= 1


async def test_11_6_two_ids_at_once_are_two_runs_one_after_the_other(url):
    world = World()
    async with opened(url, world) as (_, pane), trio.open_nursery() as nursery:
        binding = await bound(pane)
        calls = [beside(nursery, pane.accept, InboundPost(uid(n), binding, TEXT)) for n in range(1, 6)]
        assert [(await call()).received for call in calls] == [True] * 5
    assert world.work == {uid(n): 1 for n in range(1, 6)}


async def test_a_caller_that_goes_away_leaves_the_acceptance_whole(url):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        binding = await bound(pane)
        with trio.move_on_after(0):
            await pane.accept(InboundPost(A, binding, TEXT))
        receipt = await pane.accept(InboundPost(A, binding, TEXT))
        assert receipt.received
        await ended(supervisor)
    assert world.work == {A: 1}


# -- 6.2 lookups -------------------------------------------------------------------------------------------------


async def test_6_2_1_an_exact_acceptance_without_a_fence_is_stored(url):
    world = World()
    async with opened(url, world) as (_, pane):
        binding = await bound(pane)
        receipt = await pane.accept(InboundPost(A, binding, TEXT))
        assert rows(url, "inbound_fences") == []
        assert await pane.receipt(A, binding, PRINT) == receipt
    async with opened(url, world) as (_, pane):
        assert await pane.receipt(A, binding, PRINT) == receipt
    assert world.work == {A: 1}


async def test_6_2_2_an_exact_acceptance_with_its_own_fence_is_stored_and_clears_it(url):
    world = World()
    binding = await fenced(url, world, "pane.clear_fence/decided")
    assert len(rows(url, "inbound_fences")) == 1
    async with opened(url, world) as (_, pane):
        assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED
        assert rows(url, "inbound_fences") == []
        assert (await pane.accept(InboundPost(B, binding, TEXT))).received


async def test_6_2_3_and_da_4_an_exact_acceptance_while_another_id_is_pending(url):
    world = World()
    async with opened(url, world) as (_, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
    await fenced(url, world, post=InboundPost(B, binding, TEXT))
    async with opened(url, world) as (_, pane):
        assert (await pane.receipt(A, binding, PRINT)).stop is Stop.UNCERTAIN
        assert (await pane.accept(InboundPost(A, binding, TEXT))).stage is Stage.STORED
        assert (await pane.receipt(B, binding, PRINT)).stop is Stop.UNCERTAIN
        assert rows(url, "inbound_fences")[0]["delivery_id"] == B, "nothing was written"
    assert world.work == {A: 1}


WRONG = {
    "6.2-8 unknown": {"delivery_id": B},
    "6.2-10 another binding": {"binding": ELSEWHERE},
    "6.2-5 another fingerprint": {"fingerprint": fingerprint_of("another text")},
}


@pytest.mark.parametrize("changed", WRONG.values(), ids=WRONG)
async def test_6_2_without_exactly_this_evidence_it_is_uncertain(changed):
    world = World()
    async with opened("memory://", world) as (_, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        asked = {"delivery_id": A, "binding": binding, "fingerprint": PRINT, **changed}
        receipt = await pane.receipt(**asked)
        assert (receipt.received, receipt.stop) == (False, Stop.UNCERTAIN)
        assert (receipt.delivery_id, receipt.binding, receipt.fingerprint) == tuple(asked.values())


async def test_6_2_5_under_another_pane_it_is_uncertain(url):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        other = supervisor.pane("other")
        theirs = await bound(other)
        for asserted in (binding, theirs):
            assert (await other.receipt(A, asserted, PRINT)).stop is Stop.UNCERTAIN


async def test_6_2_8_in_flight_it_is_uncertain_until_the_acceptance_is_durable(url):
    world = World()
    binding = await fenced(url, world, "pane.tombstone/applied")
    async with opened(url, world) as (_, pane):
        assert (await pane.receipt(A, binding, PRINT)).stop is Stop.UNCERTAIN
    assert world.work == {}


@pytest.mark.parametrize("gone", ["retired", "another session"])
async def test_6_2_10_with_the_session_gone_it_is_uncertain(url, gone):
    world = World()
    async with opened(url, world) as (_, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        launch = await pane.launch("claude-code", "session-2")
        if gone == "retired":
            await pane.retire(launch.incarnation_id, "done")
        assert (await pane.receipt(A, binding, PRINT)).stop is Stop.UNCERTAIN
        await pane.launch("claude-code", "session-1")
        assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED, "the session is back"


# -- 6.3 fence states --------------------------------------------------------------------------------------------


OTHERS = {
    "another id": InboundPost(B, "b" * 64, TEXT),
    "another text": InboundPost(A, "b" * 64, "another text"),
    "another id and text": InboundPost(B, "b" * 64, "another text"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_6_3_2_and_10_2_pending_turns_everything_else_away_and_it_leaves_no_tombstone(url, other):
    world = World()
    binding = await fenced(url, world)
    before, chaos = rows(url, "inbound_fences"), Chaos()
    async with opened(url, world, chaos) as (supervisor, pane):
        receipt = await pane.accept(InboundPost(other.delivery_id, binding, other.text))
        assert receipt.stop is Stop.UNCERTAIN
        assert not [point for point in chaos.trace if point.endswith("/decided")], (
            "nothing was even tried to be written"
        )
        assert rows(url, "inbound_fences") == before
        assert rows(url, "tombstones") == []
        # The scope is the pane: another one goes on.
        elsewhere = supervisor.pane("other")
        assert (await elsewhere.accept(InboundPost(C, await bound(elsewhere), TEXT))).received
        # Turned away, B may be sent once the pane is free (DA-14 in the other direction).
        await pane.settle(A, "the operator")
        assert (await pane.accept(InboundPost(B, binding, TEXT))).received
    assert world.work == {B: 1, C: 1}


async def test_6_3_1_free_a_new_original_is_pending(url):
    world = World()
    async with opened(url, world) as (_, pane):
        binding = await bound(pane)
        assert rows(url, "inbound_fences") == []
    assert await fenced(url, world) == binding
    (fence,) = rows(url, "inbound_fences")
    evidence = fence["pane_id"], fence["delivery_id"], fence["binding"], fence["fingerprint"]
    assert evidence == ("pane", A, binding, PRINT)


async def test_6_3_3_pending_and_the_same_post_again_it_stays_pending(url):
    world = World()
    binding = await fenced(url, world)
    before = rows(url, "inbound_fences")
    async with opened(url, world) as (_, pane):
        assert (await pane.accept(InboundPost(A, binding, TEXT))).stop is Stop.UNCERTAIN
        assert rows(url, "inbound_fences") == before
    assert world.work == {}


async def test_6_3_5_and_6_3_6_pending_survives_restarts_and_bridges(url):
    world = World()
    binding = await fenced(url, world)
    for session in ("session-1", "session-2", "session-1"):
        async with opened(url, world) as (_, pane):
            fresh = await bound(pane, session)
            assert (await pane.accept(InboundPost(B, fresh, TEXT))).stop is Stop.UNCERTAIN
            assert (await pane.accept(InboundPost(A, binding, TEXT))).stop is Stop.UNCERTAIN
    assert world.work == {}


@pytest.mark.parametrize("by", ["accept", "receipt"], ids=["6.3-3 accept", "receipt"])
async def test_6_3_4_pending_with_its_acceptance_is_freed_by_either_call(url, by):
    world = World()
    binding = await fenced(url, world, "pane.publish/applied")
    async with opened(url, world) as (_, pane):
        assert (await pane.accept(InboundPost(B, binding, TEXT))).stop is Stop.UNCERTAIN
        if by == "accept":
            assert (await pane.accept(InboundPost(A, binding, TEXT))).stage is Stage.STORED
        else:
            assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED
        assert (await pane.accept(InboundPost(B, binding, TEXT))).received
    assert world.work == {B: 1}


async def test_6_3_7_free_and_a_tombstone_without_an_acceptance(url):
    world, chaos = World(), Chaos()
    async with opened(url, world, chaos) as (_, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        await pane.reset_conversation()
        assert (await pane.accept(InboundPost(A, binding, TEXT))).stop is Stop.UNCERTAIN
        assert rows(url, "inbound_fences") == []
        assert chaos.trace.count("pane.fence/decided") == 1, "not even for a moment: another's post would meet it"
    assert world.work == {A: 1}


# -- 8 reset, trimmed history, and settling ----------------------------------------------------------------------


async def test_8_a_reset_takes_the_proof_and_leaves_the_tombstones(url):
    world = World()
    async with opened(url, world) as (supervisor, pane):
        binding = await bound(pane)
        assert await pane.reset_conversation() == Unchanged(), "there is none yet"
        await pane.accept(InboundPost(A, binding, TEXT))
        other = supervisor.pane("other")
        theirs = await bound(other)
        await other.accept(InboundPost(C, theirs, TEXT))
        assert await pane.reset_conversation() == Applied()
        await pane.accept(InboundPost(B, binding, TEXT))
        assert (await other.receipt(C, theirs, PRINT)).stage is Stage.STORED, "its conversation is another one"
        await ended(supervisor, 3)
    conversations = {turn.delivery_id: turn.conversation_id for turn in world.turns}
    assert len(set(conversations.values())) == 3
    async with opened(url, world) as (_, pane):
        assert (await pane.receipt(A, binding, PRINT)).stop is Stop.UNCERTAIN
        assert (await pane.accept(InboundPost(A, binding, TEXT))).stop is Stop.UNCERTAIN
        assert (await pane.receipt(B, binding, PRINT)).stage is Stage.STORED
    assert world.work == {A: 1, B: 1, C: 1}
    assert {row["delivery_id"] for row in rows(url, "tombstones")} == {A, B, C}
    assert await check(url) == []


async def test_6_2_8_when_a_reset_took_the_proof_it_is_uncertain(url):
    world = World()
    async with opened(url, world) as (_, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        await pane.reset_conversation()
        assert (await pane.receipt(A, binding, PRINT)).stop is Stop.UNCERTAIN
        assert [row["delivery_id"] for row in rows(url, "tombstones")] == [A]


async def test_6_2_7_and_12_o7_an_id_has_one_acceptance_over_all_conversations(url):
    """A second one cannot be written: neither the pane's next conversation nor another pane's takes the id."""
    world = World()
    async with opened(url, world) as (supervisor, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        other = supervisor.pane("other")
        theirs = await bound(other)
        for taker, asserted in ((other, theirs), (pane, binding)):
            await pane.reset_conversation()
            await taker.accept(InboundPost(C, asserted, TEXT))
            assert (await taker.accept(InboundPost(A, asserted, TEXT))).stop is Stop.UNCERTAIN
            assert (await taker.receipt(A, asserted, PRINT)).stop is Stop.UNCERTAIN
    assert A not in [row["delivery_id"] for row in rows(url, "acceptances")]
    assert world.work[A] == 1
    assert await check(url) == []


async def test_8_a_reset_while_the_turn_runs_does_not_lose_its_end(url):
    world = World(gate=trio.Event())
    async with opened(url, world) as (supervisor, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        await pane.reset_conversation()
        world.gate.set()
        assert [kind for kind, _ in await ended(supervisor)] == ["delivery.accepted", "delivery.ended"]


async def test_8_a_reset_keeps_what_is_pending(url):
    world = World()
    async with opened(url, world) as (_, pane):
        await pane.accept(InboundPost(C, await bound(pane), TEXT))
    binding = await fenced(url, world)
    async with opened(url, world) as (_, pane):
        assert await pane.reset_conversation() == Applied()
        assert (await pane.accept(InboundPost(B, binding, TEXT))).stop is Stop.UNCERTAIN


async def test_8_trimmed_history_and_12_o8_takes_no_proof_and_publishes_nothing_again(url):
    world, few = World(), Options(events_kept_max=2)
    async with opened(url, world, options=few) as (supervisor, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(A, binding, TEXT))
        for _ in range(4):
            await pane.launch("claude-code", "session-1")
        await pane.receipt(A, binding, PRINT)
        assert await stored_events(supervisor, "delivery.accepted") == []
    for _ in range(2):
        async with opened(url, world, options=few) as (supervisor, pane):
            assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED
            assert await stored_events(supervisor, "delivery.accepted", "delivery.failed") == []
    assert world.work == {A: 1}


@pytest.mark.parametrize("boundary", ["pane.fence/applied", "pane.tombstone/applied"])
async def test_d_19_and_da_5_settling_a_fence_frees_the_pane_and_the_id_is_never_dispatched(url, boundary):
    world = World()
    binding = await fenced(url, world, boundary)
    async with opened(url, world) as (supervisor, pane):
        assert await pane.settle(A, "the operator") == Applied()
        assert await pane.settle(A, "the operator") == Unchanged()
        assert ("delivery.settled", {"delivery_id": A, "approval": "the operator"}) in await stored_events(supervisor)
    async with opened(url, world) as (_, pane):
        for receipt in (
            await pane.accept(InboundPost(A, binding, TEXT)),
            await pane.receipt(A, binding, PRINT),
        ):
            assert (receipt.stop, receipt.detail) == (Stop.UNCERTAIN, "abandoned, outcome unknown")
        assert (await pane.accept(InboundPost(B, binding, TEXT))).received
    assert world.work == {B: 1}
    assert {row["delivery_id"] for row in rows(url, "tombstones")} == {A, B}
    assert await check(url) == []


async def test_da_5_settling_an_accepted_or_unknown_id_changes_nothing(url):
    world = World()
    binding = await fenced(url, world, "pane.publish/applied")
    async with opened(url, world) as (_, pane):
        assert await pane.settle(A, "the operator") == Unchanged()
        assert (await pane.settle(B, "the operator")).reason == "unknown_delivery"
        assert (await pane.receipt(A, binding, PRINT)).stage is Stage.STORED
        await pane.reset_conversation()
        assert await pane.settle(A, "the operator") == Unchanged(), "nothing is pending"
        assert (await pane.receipt(A, binding, PRINT)).detail != "abandoned, outcome unknown"
    assert rows(url, "settlements") == []


@pytest.mark.parametrize("first", ["out", "in"])
async def test_one_id_in_both_directions_is_settled_in_both(url, first):
    """Nothing keeps a bridge from using an id twice; neither direction may lock the other."""
    world = World(ends=TurnEnd("failed", "who knows"))
    binding = await fenced(url, world)
    async with opened(url, world) as (_, pane):
        if first == "in":
            assert await pane.settle(A, "the operator") == Applied()
        assert (await pane.deliver(Outbound(TEXT, "channel_turn", A))).stop is Stop.UNCERTAIN
        assert await pane.settle(A, "the operator") == Applied()
        assert await pane.settle(A, "the operator") == Unchanged()
        world.ends = TurnEnd("settled")
        assert (await pane.deliver(Outbound(TEXT, "channel_turn", B))).stage is Stage.RESPONDED
        assert (await pane.accept(InboundPost(A, binding, TEXT))).stop is Stop.UNCERTAIN
        assert (await pane.accept(InboundPost(B, binding, TEXT))).received
    assert (world.sends, world.work) == ({A: 1, B: 1}, {B: 1})


async def test_what_was_accepted_stays_stored_although_the_same_id_was_abandoned_going_out(url):
    world = World(ends=TurnEnd("failed", "who knows"))
    async with opened(url, world) as (_, pane):
        binding = await bound(pane)
        receipt = await pane.accept(InboundPost(A, binding, TEXT))
        await pane.deliver(Outbound(TEXT, "channel_turn", A))
        assert await pane.settle(A, "the operator") == Applied()
        assert await pane.receipt(A, binding, PRINT) == receipt


@pytest.mark.parametrize("pending", [False, True], ids=["free", "an original is pending"])
async def test_10_6_no_read_sends_accepts_or_starts_anything(url, pending):
    world = World(ends=TurnEnd("failed", "who knows"))
    async with opened(url, world) as (_, pane):
        binding = await bound(pane)
        await pane.accept(InboundPost(C, binding, TEXT))
        await pane.deliver(Outbound(TEXT, "channel_turn", B))
    if pending:
        await fenced(url, world)
    tables = ("deliveries", "inbound_fences", "tombstones", "acceptances", "runs")
    sent, worked, before = dict(world.sends), dict(world.work), [rows(url, table) for table in tables]
    async with opened(url, world) as (supervisor, pane):
        for delivery_id in (A, B, C):
            await pane.receipt(delivery_id, binding, PRINT)
            await pane.receipt(delivery_id, binding, fingerprint_of("another text"))
        assert await pane.poll_events(0) == []
        await pane.binding()
        await pane.snapshot()
        await supervisor.status()
        await supervisor.dead_letters()
        await stored_events(supervisor)
        assert [rows(url, table) for table in tables] == before
    assert (dict(world.sends), dict(world.work)) == (sent, worked)


# -- bindings ----------------------------------------------------------------------------------------------------


async def test_d_16_the_binding_names_pane_harness_and_session(url):
    async with opened(url, World()) as (supervisor, pane):
        none = await pane.binding()
        assert (none.binding, bool(none.detail)) == (None, True)
        first = await bound(pane)
        assert (len(first), set(first) <= set("0123456789abcdef")) == (64, True)
        assert await bound(pane) == first
        assert await bound(pane, "session-2") != first
        assert await bound(supervisor.pane("other")) != first
        await pane.launch("codex", "session-1")
        assert (await pane.binding()).binding != first
        unnamed = []
        for _ in range(2):
            await pane.launch("claude-code")
            unnamed.append((await pane.binding()).binding)
        assert unnamed[0] != unnamed[1], "without a session nobody can say that this goes on"
        await pane.launch("claude-code", "session-1")
    async with opened(url, World()) as (_, pane):
        assert (await pane.binding()).binding == first, "opening a store leaves a live incarnation live"
