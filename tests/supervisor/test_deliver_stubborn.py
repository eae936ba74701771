"""Ends that never let go of a call, that cannot send at all, or that go away: none of them holds its pane up."""

from __future__ import annotations

import math

import pytest
import trio
from delivery_scenarios import World, beside, opened, rows, stored_events, uid

from fencepost.supervisor import (
    ActorCrashed,
    ChannelTurn,
    HarnessSeatControl,
    HeadSeatOutbox,
    InboundPost,
    InvalidTransition,
    MechanismOutcome,
    Options,
    Outbound,
    Stage,
    Stop,
    TurnEnd,
    UnmappedMechanism,
    check,
    open_supervisor,
)

A, B = uid(1), uid(2)
TEXT = "the build is green"


class Stubborn(World):
    """Ends that ignore their cancellation until they are let go, at the latest when a test leaves `with` it."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = trio.Event()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.let_go.set()

    async def _held(self) -> None:
        self.reached.set()
        with trio.CancelScope(shield=True):
            await self.let_go.wait()


async def test_a_turn_that_ignores_its_actors_death_keeps_the_next_activation_from_nothing(url):
    world = Stubborn()
    async with opened(url, world) as (supervisor, pane):
        with world:
            await pane.launch("claude-code", "session-1")
            binding = (await pane.binding()).binding
            assert (await pane.accept(InboundPost(A, binding, TEXT))).received
            await world.reached.wait()
            with trio.fail_after(10):
                await supervisor.kill("pane:pane")
                assert (await pane.accept(InboundPost(B, binding, TEXT))).received
            world.let_go.set()
            await trio.testing.wait_all_tasks_blocked()
            ended = [data for _, data in await stored_events(supervisor, "delivery.ended", "delivery.failed")]
            assert [(end["delivery_id"], end.get("reason")) for end in ended] == [(A, "service_restarted"), (B, None)]
    assert world.work == {A: 1, B: 1}
    assert await check(url) == []


@pytest.mark.parametrize("via", ["channel_turn", "harness_seat"])
async def test_a_dispatch_that_ignores_its_actors_death_is_uncertain_at_once(url, via):
    world = Stubborn()
    async with opened(url, world) as (supervisor, pane), trio.open_nursery() as nursery:
        with world:
            report = beside(nursery, pane.deliver, Outbound(TEXT, via, A))
            await world.reached.wait()
            with trio.fail_after(10):
                await supervisor.kill("pane:pane")
                with pytest.raises(ActorCrashed):
                    await report()
                world.session = None
                assert (await pane.deliver(Outbound(TEXT, via, A))).stop is Stop.UNCERTAIN
            world.let_go.set()
            await trio.testing.wait_all_tasks_blocked()
            assert (await pane.deliver(Outbound(TEXT, via, A))).stop is Stop.UNCERTAIN, "it was not heard any more"
    assert world.sends == {A: 1}


QUICK = Options(idle_seconds=0.02)


async def until_awake(supervisor, count: int) -> None:
    """Return once so many actors are awake; fail if it stays otherwise."""
    with trio.fail_after(10):
        while True:
            if (await supervisor.status()).awake == count:
                return
            await trio.sleep(0.01)


async def test_a_look_that_ignores_its_deadline_is_given_up():
    world = Stubborn()

    async def inspect(_: str) -> None:
        await world._held()

    world.inspect = inspect  # type: ignore[method-assign]
    async with opened("memory://", world, times={"answer": 0.05}, options=QUICK) as (supervisor, pane):
        with world, trio.fail_after(10):
            report = await pane.deliver(Outbound(TEXT, "harness_seat", A))
            assert (report.stop, report.detail) == (Stop.UNAVAILABLE, "the harness could not be looked at in time")
            await until_awake(supervisor, 0)
    assert not world.sends


async def test_a_send_that_ignores_its_deadline_keeps_the_pane_from_nothing_once_it_is_settled():
    world = Stubborn()
    async with opened("memory://", world, times={"answer": 0.05}, options=QUICK) as (supervisor, pane):
        with world, trio.fail_after(10):
            assert (await pane.deliver(Outbound(TEXT, "harness_seat", A))).stop is Stop.UNCERTAIN
            await pane.settle(A, "Ada")
            assert (await pane.deliver(Outbound(TEXT, "harness_seat", B))).stop is Stop.UNCERTAIN
            await until_awake(supervisor, 0)
    assert world.sends == {A: 1, B: 1}


async def test_pollers_who_went_away_are_no_reason_to_stay_awake():
    async with opened("memory://", World(), options=QUICK) as (supervisor, pane):
        for _ in range(3):
            with trio.move_on_after(0.01):
                await pane.poll_events(math.inf)
        await until_awake(supervisor, 0)


async def test_a_message_whose_caller_went_away_stays_queued_and_keeps_its_pane_awake():
    world = World()
    async with opened("memory://", world, times={"grace": math.inf}, options=QUICK) as (supervisor, pane):
        with trio.move_on_after(0.01):
            await pane.deliver(Outbound(TEXT, "head_seat", A))
        await supervisor.pane("other").binding()
        await until_awake(supervisor, 1)
        assert world.took(await pane.poll_events()) == [A]


async def test_a_turn_that_may_take_for_ever_is_never_said_to_be_pending(url):
    world = Stubborn()
    async with opened(url, world, times={"wait": math.inf}) as (_, pane), trio.open_nursery() as nursery:
        with world:
            report = beside(nursery, pane.deliver, Outbound(TEXT, "channel_turn", A))
            await world.reached.wait()
            assert (await pane.deliver(Outbound(TEXT, "channel_turn", A))).stop is Stop.UNCERTAIN
            world.let_go.set()
            assert (await report()).stage is Stage.RESPONDED


# -- one id, two panes -------------------------------------------------------------------------------------------


TURN_ENDS = {"delivery.ended", "delivery.failed"}


async def first_two(events, kinds):
    found = 0
    async for event in events:
        if event.kind in kinds:
            yield event
            found += 1
            if found == 2:
                return


class Both:
    """A harness whose looks come back together, so that both panes find the id free and then use it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._looks = 0
        self._together = trio.Event()

    async def inspect(self, pane_id: str):
        self._looks += 1
        if self._looks == 2:
            self._together.set()
        await self._together.wait()
        return self._world.seen(pane_id)

    async def send(self, session, delivery_id: str, text: str) -> MechanismOutcome:
        return await self._world.send(session, delivery_id, text)


@pytest.mark.parametrize("how", ["looked at", "nobody polled", "fallback"])
async def test_an_id_that_another_pane_used_meanwhile_is_its_callers_trouble_only(autojump_clock, how):
    """The second pane's turn runs on, its poll waits on, and its next delivery goes out."""
    world, running, url = World(), trio.Event(), f"memory://one-id-two-panes-{how}"
    fallback = world.run if how == "fallback" else None
    mechanisms = [HarnessSeatControl(Both(world)), HeadSeatOutbox(fallback=fallback), ChannelTurn(world.run)]
    via = "harness_seat" if how == "looked at" else "head_seat"

    async def dispatch(_: object) -> TurnEnd:
        await running.wait()
        return TurnEnd("settled")

    async with (
        open_supervisor(url, mechanisms=mechanisms, dispatcher=dispatch) as supervisor,
        trio.open_nursery() as nursery,
    ):
        panes = [supervisor.pane("p"), supervisor.pane("q")]
        for number, pane in enumerate(panes):
            await pane.launch("claude-code", f"session-{pane.pane_id}")
            post = InboundPost(uid(10 + number), (await pane.binding()).binding, TEXT)
            assert (await pane.accept(post)).received
        told = []
        for call in [beside(nursery, pane.deliver, Outbound(TEXT, via, A)) for pane in panes]:
            try:
                told.append(await call())
            except InvalidTransition:
                told.append(None)
        assert told.count(None) == 1
        loser = panes[told.index(None)]
        assert (await loser.deliver(Outbound(TEXT, "channel_turn", B))).stage is Stage.RESPONDED
        running.set()
        ends = [event.kind async for event in first_two(supervisor.events(), TURN_ENDS)]
        assert ends == ["delivery.ended", "delivery.ended"]
        assert not await stored_events(supervisor, "actor.crashed")
    assert all(count == 1 for count in world.sends.values())
    assert len(rows(url, "deliveries")) == 2
    assert await check(url) == []


# -- mechanisms that have only a name ----------------------------------------------------------------------------


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize("name", ["head_seat", "fleet_seat", "harness_seat", "hire", "opencode"])
async def test_a_mechanism_that_cannot_send_is_unavailable(url, name):
    async with open_supervisor(url, mechanisms=[Named(name)]) as supervisor:
        pane = supervisor.pane("pane")
        report = await pane.deliver(Outbound(TEXT, name, A))
        assert (report.stop, report.detail) == (Stop.UNAVAILABLE, "nothing there can send it")
        assert await pane.deliver(Outbound(TEXT, name, A)) == report
    assert await check(url) == []


async def test_a_mechanism_that_cannot_send_and_has_no_word_for_that_leaves_nothing_behind(url):
    async with open_supervisor(url, mechanisms=[Named("channel_turn"), Named("hire")]) as supervisor:
        pane = supervisor.pane("pane")
        with pytest.raises(UnmappedMechanism):
            await pane.deliver(Outbound(TEXT, "channel_turn", A))
        assert (await pane.deliver(Outbound(TEXT, "hire", A))).stop is Stop.UNAVAILABLE
