"""What is at the other end of deliveries, and the lives a delivery can have, each one chaos can interrupt anywhere.

What really left, and what a model was really made to work on, is kept in a `World`, which outlives every runtime, with
everything a caller was told.  `judge` comes back as a new bridge and holds the store and the world against each other.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from fencepost.mailbox.claim import fingerprint_of
from fencepost.mailbox.stores.store import open_reader
from fencepost.supervisor import (
    ActorCrashed,
    ChannelTurn,
    Chaos,
    DeliveryReport,
    FencepostError,
    FleetSeatMailbox,
    HarnessSeatControl,
    HeadSeatOutbox,
    InboundPost,
    MechanismOutcome,
    NativeSession,
    Outbound,
    Receipt,
    Stage,
    Stop,
    TranscriptEntry,
    TurnEnd,
    check,
    open_supervisor,
)

PATIENCE = 0.05
"""Seconds a scenario waits for what a death may have prevented."""


def uid(number: int) -> str:
    """A delivery id, the same in every run."""
    return str(uuid.UUID(int=number))


@define(eq=False)
class World:
    """The harness, the chat room and the model behind one store, as a `NativeControl`, a runner and a dispatcher.

    `says` is what the control answers: an outcome, an exception it raises, or None for silence.  `arrives` says
    whether what is sent shows up in the transcript; `ends` is how a chat turn ends, `answers` how an inbound one does.
    A `gate` holds every dispatch until it is set.
    """

    sends: Counter[str] = field(factory=Counter)
    work: Counter[str] = field(factory=Counter)
    told: list[DeliveryReport | Receipt] = field(factory=list)
    forgotten: set[str] = field(factory=set)
    says: object = MechanismOutcome("accepted", "started")
    ends: object = TurnEnd("settled", text="well")
    answers: object = TurnEnd("settled")
    arrives: bool = True
    session: str | None = "session-1"
    agent: str = "claude-code"
    readable: bool = True
    entries: list[TranscriptEntry] = field(factory=list)
    gate: trio.Event | None = None
    reached: trio.Event = field(factory=trio.Event)
    turns: list = field(factory=list)
    _numbers: itertools.count = field(factory=lambda: itertools.count(1))

    def wrote(self, text: str, role: str = "operator", **more) -> TranscriptEntry:
        """Another entry of the transcript."""
        entry = TranscriptEntry(f"entry-{next(self._numbers)}", role, text, **more)
        self.entries.append(entry)
        return entry

    def seen(self, pane_id: str = "pane", **changed) -> NativeSession:
        """What an inspection shows now, or would with `changed`."""
        shown = {
            "session_id": self.session or "none",
            "pane_id": pane_id,
            "agent": self.agent,
            "entries": tuple(self.entries) if self.readable else None,
        }
        return NativeSession(**{**shown, **changed})

    async def inspect(self, pane_id: str) -> NativeSession | None:
        return None if self.session is None else self.seen(pane_id)

    async def _held(self) -> None:
        self.reached.set()
        if self.gate is not None:
            await self.gate.wait()

    async def send(self, session: NativeSession, delivery_id: str, text: str) -> MechanismOutcome:
        self.sends[delivery_id] += 1
        if self.arrives:
            self.wrote(text)
        await self._held()
        if isinstance(self.says, Exception):
            raise self.says
        if self.says is None:
            await trio.sleep_forever()
        return self.says

    async def run(self, message) -> TurnEnd:
        self.sends[message.delivery_id] += 1
        await self._held()
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends

    async def dispatch(self, turn) -> TurnEnd:
        self.work[turn.delivery_id] += 1
        self.turns.append(turn)
        await self._held()
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers

    def took(self, events) -> list[str]:
        """A seat was handed these events."""
        for event in events:
            assert event.event_id == event.delivery_id
            self.sends[event.event_id] += 1
        return [event.event_id for event in events]

    def mechanisms(self, *, grace=5.0, acknowledge=30.0, reply=0.0, answer=30.0, wait=600.0, fallback=None) -> list:
        return [
            HeadSeatOutbox(
                grace_seconds=grace, acknowledge_seconds=acknowledge, reply_seconds=reply, fallback=fallback
            ),
            FleetSeatMailbox(grace_seconds=grace, acknowledge_seconds=acknowledge),
            HarnessSeatControl(self, answer_seconds=answer),
            ChannelTurn(self.run, wait_seconds=wait),
        ]


@asynccontextmanager
async def opened(url: str, world: World, chaos: Chaos | None = None, *, times=None, **more):
    """A runtime with everything at the world's ends, and its pane; `times` are `World.mechanisms`'s."""
    more = {"mechanisms": world.mechanisms(**(times or {})), "dispatcher": world.dispatch, **more}
    async with open_supervisor(url, chaos=chaos, **more) as supervisor:
        yield supervisor, supervisor.pane("pane")


def rows(url: str, table: str) -> list[dict[str, object]]:
    """The rows of a store that is not open, or of one in memory."""
    with open_reader(url) as reader:
        return list(reader.raw(table))


async def stored_events(supervisor, *kinds: str) -> list[tuple[str, dict[str, object]]]:
    found = [(event.kind, dict(event.data)) async for event in supervisor.events(follow=False)]
    return [(kind, data) for kind, data in found if kind in kinds or not kinds]


class Later:
    """The answer of a call that runs beside the test."""

    def __init__(self) -> None:
        self.value: object = None
        self.error: Exception | None = None
        self.done = trio.Event()

    async def __call__(self) -> object:
        with trio.fail_after(10):
            await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.value


def beside(nursery: trio.Nursery, fn, *args) -> Later:
    """Call `fn` beside the test; await what this returns for the answer."""
    later = Later()

    async def run() -> None:
        try:
            later.value = await fn(*args)
        except FencepostError as error:
            later.error = error
        finally:
            later.done.set()

    nursery.start_soon(run)
    return later


async def taken(pane, world: World, outbound: Outbound, nursery: trio.Nursery) -> Later:
    """Deliver to a seat and have the event taken; the delivery goes on beside the test."""
    report = beside(nursery, pane.deliver, outbound)
    with trio.fail_after(10):
        assert world.took(await pane.poll_events(5)) == [outbound.delivery_id]
    return report


async def unresolved(pane, world: World, outbound: Outbound) -> DeliveryReport:
    """Have a delivery to a seat end uncertain: it is taken, and then nobody waits any longer."""
    async with trio.open_nursery() as nursery:
        report = await taken(pane, world, outbound, nursery)
        await pane.cancel_delivery(outbound.delivery_id)
        return await report()


# -- scenarios ---------------------------------------------------------------------------------------------------

Scenario = Callable[[str, Chaos, World], Awaitable[None]]

FIRST, SECOND = uid(1), uid(2)


async def insist(world: World, fn, *args):
    """Call, and once more if the actor died: what a bridge may do, because no repetition sends twice."""
    try:
        answer = await fn(*args)
    except ActorCrashed:
        answer = await fn(*args)
    if isinstance(answer, DeliveryReport | Receipt):
        world.told.append(answer)
    return answer


async def _by_seat(pane, world: World, via: str, at_seat) -> None:
    """Deliver to a seat that polls at once and does `at_seat(event_id)` with what it is handed."""

    async def seat() -> None:
        for event_id in world.took(await insist(world, pane.poll_events, PATIENCE)):
            await at_seat(event_id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(seat)
        await insist(world, pane.deliver, Outbound("hello seat", via, FIRST))


_QUICK = {"grace": PATIENCE}


async def head_acknowledged(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos, times=_QUICK) as (_, pane):
        await _by_seat(pane, world, "head_seat", lambda event_id: insist(world, pane.acknowledge_event, event_id))


async def head_replied(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos, times={**_QUICK, "reply": 5.0}) as (_, pane):

        async def at_seat(event_id: str) -> None:
            await insist(world, pane.acknowledge_event, event_id)
            await insist(world, pane.reply_event, event_id, "understood")

        await _by_seat(pane, world, "head_seat", at_seat)


async def head_acknowledged_late(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos, times=_QUICK) as (_, pane):
        await _by_seat(pane, world, "head_seat", lambda event_id: insist(world, pane.cancel_delivery, event_id))
        await insist(world, pane.deliver, Outbound("something else", "channel_turn", SECOND))
        await insist(world, pane.acknowledge_event, FIRST)
        await insist(world, pane.deliver, Outbound("something else", "channel_turn", SECOND))


async def fleet_consumed(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos, times=_QUICK) as (_, pane):
        await _by_seat(
            pane,
            world,
            "fleet_seat",
            lambda event_id: insist(world, pane.acknowledge_event, event_id, "queued", "turn"),
        )


async def native_consumed(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.deliver, Outbound("hello harness", "harness_seat", FIRST))


async def native_proved(url: str, chaos: Chaos, world: World) -> None:
    world.says = RuntimeError("the line went dead")
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.deliver, Outbound("hello harness", "harness_seat", FIRST))
        world.says = MechanismOutcome("accepted", "started")
        await insist(world, pane.reconcile, FIRST, world.seen(entries=()))
        await insist(world, pane.deliver, Outbound("another text", "harness_seat", SECOND))


async def channel_settled(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.deliver, Outbound("hello room", "channel_turn", FIRST))


async def channel_failed(url: str, chaos: Chaos, world: World) -> None:
    world.ends = TurnEnd("failed", "policy_refused")
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.deliver, Outbound("hello room", "channel_turn", FIRST))
        world.ends = TurnEnd("failed", "nobody knows")
        await insist(world, pane.deliver, Outbound("hello again", "channel_turn", SECOND))


async def outbound_settled(url: str, chaos: Chaos, world: World) -> None:
    world.ends = RuntimeError("the room is gone")
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.deliver, Outbound("hello room", "channel_turn", FIRST))
        await insist(world, pane.settle, FIRST, "the operator")
        world.ends = TurnEnd("silent")
        await insist(world, pane.deliver, Outbound("hello again", "channel_turn", SECOND))


async def cancelled(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane), trio.open_nursery() as nursery:
        outbound = Outbound("hello seat", "head_seat", FIRST)
        nursery.start_soon(insist, world, pane.deliver, outbound)
        with trio.move_on_after(PATIENCE):
            while not await _queued(pane):
                pass
        await insist(world, pane.cancel_delivery, FIRST)
        nursery.cancel_scope.cancel()


async def _queued(pane) -> bool:
    """Whether a delivery is under way; asking for another, of blank text, sends nothing whatever the answer."""
    report = await pane.deliver(Outbound(" ", "head_seat"))
    return report.stop is not Stop.REJECTED


async def accepted(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.launch, "claude-code", "session-1")
        await _post(pane, world, FIRST, "from the pane")
        binding = (await insist(world, pane.binding)).binding
        await insist(world, pane.receipt, FIRST, binding, fingerprint_of("from the pane"))


async def _post(pane, world: World, delivery_id: str, text: str) -> None:
    """Post, and wait until the turn it led to has ended, if it led to one."""
    binding = (await insist(world, pane.binding)).binding
    receipt = await insist(world, pane.accept, InboundPost(delivery_id, binding, text))
    if receipt.received:
        assert world.work[delivery_id] <= 1


async def accepted_and_reset(url: str, chaos: Chaos, world: World) -> None:
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.launch, "claude-code", "session-1")
        await _post(pane, world, FIRST, "from the pane")
        world.forgotten.add(FIRST)
        await insist(world, pane.reset_conversation)
        await _post(pane, world, FIRST, "from the pane")


async def inbound_settled(url: str, chaos: Chaos, world: World) -> None:
    """The first original is left behind by a death of its own, between its fence and its tombstone."""
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.launch, "claude-code", "session-1")
    dying = Chaos()
    dying.kill_at("pane.fence/applied", what="runtime")
    try:
        async with opened(url, world, dying) as (_, pane):
            await pane.accept(InboundPost(FIRST, (await pane.binding()).binding, "from the pane"))
    except FencepostError:
        pass
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.settle, FIRST, "the operator")
        await _post(pane, world, FIRST, "from the pane")
        await _post(pane, world, SECOND, "a second one")


async def taken_up(url: str, chaos: Chaos, world: World) -> None:
    """A life finds what the one before it left under way: an event that was taken, and a turn that ran."""
    world.gate = trio.Event()
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        await pane.launch("claude-code", "session-1")
        await pane.accept(InboundPost(SECOND, (await pane.binding()).binding, "a second one"))
        await world.reached.wait()
        await taken(pane, world, Outbound("hello seat", "fleet_seat", FIRST), nursery)
        await supervisor.aclose()
    world.gate = None
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.deliver, Outbound("hello seat", "fleet_seat", FIRST))
        await insist(world, pane.acknowledge_event, FIRST)
        await _post(pane, world, SECOND, "a second one")


async def native_taken_up(url: str, chaos: Chaos, world: World) -> None:
    """As `taken_up`, of a message that a harness was being handed; its transcript tells."""
    world.gate = trio.Event()
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        beside(nursery, pane.deliver, Outbound("hello harness", "harness_seat", FIRST))
        await world.reached.wait()
        await supervisor.aclose()
    world.gate = None
    async with opened(url, world, chaos) as (_, pane):
        await insist(world, pane.reconcile, FIRST, world.seen(entries=()))
        await insist(world, pane.reconcile, FIRST, world.seen())
        await insist(world, pane.deliver, Outbound("hello harness", "harness_seat", FIRST))


SCENARIOS: list[Scenario] = [
    head_acknowledged,
    head_replied,
    head_acknowledged_late,
    fleet_consumed,
    native_consumed,
    native_proved,
    channel_settled,
    channel_failed,
    outbound_settled,
    cancelled,
    accepted,
    accepted_and_reset,
    inbound_settled,
    taken_up,
    native_taken_up,
]


# -- a death, and what must be true after it ---------------------------------------------------------------------

TEXTS = {
    "head_seat": "hello seat",
    "fleet_seat": "hello seat",
    "harness_seat": "hello harness",
    "channel_turn": "hello room",
}
NEVER_LEFT = {Stop.UNAVAILABLE, Stop.EXPIRED, Stop.REJECTED}


async def judge(url: str, world: World) -> list[str]:
    """Reopen as a new bridge and ask about everything once more; what is wrong, in words."""
    wrong: list[str] = []
    before = {str(row["delivery_id"]): row for row in rows(url, "deliveries")}
    attempted = {str(row["delivery_id"]) for table in ("inbound_fences", "tombstones") for row in rows(url, table)}
    sent, worked = Counter(world.sends), Counter(world.work)
    world.says, world.ends, world.gate = MechanismOutcome("accepted", "started"), TurnEnd("settled"), None
    async with opened(url, world, times={"grace": 0.0}) as (supervisor, pane):
        restarted = [data["delivery_id"] for _, data in await stored_events(supervisor, "delivery.failed")]
        wrong += [f"{one} failed twice" for one, count in Counter(restarted).items() if count > 1]
        for delivery_id, row in before.items():
            wrong += await _judge_outbound(pane, world, delivery_id, row)
            if sent[delivery_id] and not row["dispatched_at"]:
                wrong.append(f"{delivery_id} was sent, and its row says that it never left")
        wrong += [f"{one} was sent and has no row" for one in sent if one not in before]
        wrong += await _judge_inbound(pane, world, attempted)
    wrong += [f"{one} was sent again after the death" for one in before if world.sends[one] != sent[one]]
    wrong += [f"{one} was worked on again after the death" for one in attempted if world.work[one] != worked[one]]
    wrong += [f"{one} was sent {count} times" for one, count in world.sends.items() if count > 1]
    wrong += [f"{one} was worked on {count} times" for one, count in world.work.items() if count > 1]
    wrong += _judge_receipts(url, world)
    return wrong


async def _judge_outbound(pane, world: World, delivery_id: str, row) -> list[str]:
    """Ask for the same id once more, by the same mechanism."""
    wrong = []
    report = await pane.deliver(Outbound(TEXTS[row["mechanism"]], row["mechanism"], delivery_id))
    if row["dispatched_at"] and row["outcome"] is None and (report.stage, report.stop) == (None, Stop.UNAVAILABLE):
        wrong.append(f"{delivery_id} was in flight and is now said never to have left")
    for told in (one for one in world.told if isinstance(one, DeliveryReport) and one.delivery_id == delivery_id):
        if told.stop is Stop.UNCERTAIN and row["dispatched_at"] and report.stop in NEVER_LEFT:
            wrong.append(f"{delivery_id} was uncertain and became {report.stop} by a restart")
        if told.stage is not None and (report.stage is None or report.stage < told.stage):
            wrong.append(f"{delivery_id} was {told.stage} and became {report.stage or report.stop}")
    return wrong


async def _judge_inbound(pane, world: World, attempted: set[str]) -> list[str]:
    """Post every attempted id once more: nothing that left a trace may start work now."""
    wrong = []
    binding = (await pane.binding()).binding
    for delivery_id in sorted(attempted):
        worked = world.work[delivery_id]
        text = "from the pane" if delivery_id == FIRST else "a second one"
        receipt = await pane.accept(InboundPost(delivery_id, binding, text))
        was_stored = any(
            isinstance(told, Receipt) and told.received for told in world.told if told.delivery_id == delivery_id
        )
        if was_stored and not receipt.received and delivery_id not in world.forgotten:
            wrong.append(f"{delivery_id} was stored and is {receipt.stop} now: {receipt.detail}")
        if world.work[delivery_id] != worked:
            wrong.append(f"{delivery_id} was worked on by a repetition")
        if receipt.received:
            world.told.append(receipt)
    return wrong


def _judge_receipts(url: str, world: World) -> list[str]:
    """Every STORED receipt is backed by a readable acceptance with exactly its evidence."""
    accepted_ids = {
        (row["delivery_id"], row["binding"], row["fingerprint"])
        for row in rows(url, "acceptances")
        if fingerprint_of(str(row["text"])) == row["fingerprint"]
    }
    return [
        f"a receipt says STORED of {told.delivery_id}, and there is no acceptance"
        for told in world.told
        if isinstance(told, Receipt)
        and told.stage is Stage.STORED
        and told.delivery_id not in world.forgotten
        and (told.delivery_id, told.binding, told.fingerprint) not in accepted_ids
    ]


async def die_once(scenario: Scenario, url: str, point: str, nth: int, what: str) -> list[str]:
    """One death, the audit after it, a judgement and one more audit; what went wrong, in words."""
    world, chaos, wrong = World(), Chaos(), []
    chaos.kill_at(point, nth, what)
    try:
        with trio.fail_after(20):
            await scenario(url, chaos, world)
    except Exception as error:  # noqa: BLE001
        leaves = [error]
        while isinstance(leaves[0], BaseExceptionGroup):
            leaves = list(leaves[0].exceptions)
        wrong += [f"while dying: {leaf!r}" for leaf in leaves if not isinstance(leaf, FencepostError)]
    if chaos.unhit():
        wrong.append("the point was not reached")
    wrong += [f"after the death: {violation}" for violation in await check(url)]
    try:
        with trio.fail_after(20):
            wrong += await judge(url, world)
    except Exception as error:  # noqa: BLE001
        wrong.append(f"while judging: {error!r}")
    wrong += [f"after the end: {violation}" for violation in await check(url)]
    return wrong
