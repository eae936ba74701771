"""One owner's requests take turns: one is at work at a time, and none that waits keeps the others from beginning."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from bridge.http_world import OURS, THEIRS, world
from hypothesis import given, settings, strategies as st

from fencepost.supervisor import Capabilities
from fencepost.supervisor.bridge.adapters import HookAnswer
from fencepost.supervisor.bridge.limits import Limits
from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.turns import Turns

TURN_SECONDS = 0.01


class Requests:
    """What is under way, as the test lets it go on and end."""

    def __init__(self) -> None:
        self.turns = Turns(TURN_SECONDS)
        self.begun: list[str] = []
        self.ends: dict[str, trio.Event] = {}

    async def serve(self, owner: str, name: str) -> None:
        self.ends[name] = trio.Event()
        async with self.turns.take(owner):
            self.begun.append(name)
            await self.ends[name].wait()


async def test_the_next_begins_when_the_one_before_it_has_ended(mock_clock):
    requests = Requests()
    async with trio.open_nursery() as nursery:
        for name in ("first", "second", "third"):
            nursery.start_soon(requests.serve, "left", name)
            await trio.testing.wait_all_tasks_blocked()
        assert requests.begun == ["first"]
        for ended, begun in (("first", "second"), ("second", "third")):
            requests.ends[ended].set()
            await trio.testing.wait_all_tasks_blocked()
            assert requests.begun[-1] == begun
        requests.ends["third"].set()


async def test_one_that_waits_keeps_the_next_for_one_turn_and_no_longer(mock_clock):
    requests = Requests()
    async with trio.open_nursery() as nursery:
        for name in ("poll", "hook", "another"):
            nursery.start_soon(requests.serve, "left", name)
            await trio.testing.wait_all_tasks_blocked()
        for begun in (["poll", "hook"], ["poll", "hook", "another"]):
            mock_clock.jump(TURN_SECONDS)
            await trio.testing.wait_all_tasks_blocked()
            assert requests.begun == begun
        for event in requests.ends.values():
            event.set()


async def test_an_end_that_comes_late_takes_nobodys_turn(mock_clock):
    requests = Requests()
    async with trio.open_nursery() as nursery:
        for name in ("poll", "hook", "another"):
            nursery.start_soon(requests.serve, "left", name)
            await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(TURN_SECONDS)
        await trio.testing.wait_all_tasks_blocked()
        requests.ends["poll"].set()  # it has had its turn; the hook is at work
        await trio.testing.wait_all_tasks_blocked()
        assert requests.begun == ["poll", "hook"]
        requests.ends["hook"].set()
        requests.ends["another"].set()


async def test_owners_do_not_wait_for_each_other(mock_clock):
    requests = Requests()
    async with trio.open_nursery() as nursery:
        for owner in ("left", "right"):
            nursery.start_soon(requests.serve, owner, f"of {owner}")
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(requests.begun) == ["of left", "of right"]
        for event in requests.ends.values():
            event.set()


@pytest.mark.parametrize("waits", [True, False])
async def test_one_that_is_cut_passes_its_turn_on(waits, mock_clock):
    requests = Requests()
    async with trio.open_nursery() as nursery:
        cut = trio.CancelScope()

        async def cuttable(name: str) -> None:
            with cut:
                await requests.serve("left", name)

        first, second = (requests.serve, cuttable) if waits else (cuttable, requests.serve)
        for serve, name in ((first, "first"), (second, "second")):
            nursery.start_soon(*((serve, "left", name) if serve == requests.serve else (serve, name)))
            await trio.testing.wait_all_tasks_blocked()
        cut.cancel()
        await trio.testing.wait_all_tasks_blocked()
        if waits:
            requests.ends["first"].set()
        nursery.start_soon(requests.serve, "left", "third")
        await trio.testing.wait_all_tasks_blocked()
        assert requests.begun == (["first", "third"] if waits else ["first", "second"])
        for event in requests.ends.values():
            event.set()


@settings(max_examples=30)
@given(lasting=st.lists(st.sampled_from([0, TURN_SECONDS / 2, TURN_SECONDS, 30.0]), min_size=1, max_size=20))
def test_whatever_they_do_each_begins_within_a_turn_of_each_before_it_and_nothing_is_kept_of_it(lasting):
    begun = dict[int, float]()
    turns = Turns(TURN_SECONDS)

    async def request(number: int, seconds: float) -> None:
        async with turns.take("left"):
            begun[number] = trio.current_time()
            await trio.sleep(seconds)

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            for number, seconds in enumerate(lasting):
                nursery.start_soon(request, number, seconds)

    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(all_of_them, clock=clock)
    assert len(begun) == len(lasting)
    assert max(begun.values()) <= clock.current_time()
    assert max(begun.values()) - min(begun.values()) <= TURN_SECONDS * len(lasting) + 1e-9
    assert turns._queues == {}


class Held:
    """A harness whose hooks wait until the test lets them go on."""

    harness = "plain"

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go_on = trio.Event()

    def capabilities(self, version):
        return Capabilities()

    async def on_hook(self, pane, incarnation_id, event, wait_seconds):
        self.begun.append(event["name"])
        await self.go_on.wait()
        return HookAnswer(b"")


async def test_a_panes_hooks_take_turns_and_another_panes_do_not_wait_for_them():
    async with world(limits=Limits(turn_seconds=3600)) as there, trio.open_nursery() as nursery:
        held = there.bridge.adapters["plain"] = Held()
        answers = list[int]()

        async def hook(client, pane: str, name: str) -> None:
            body = {
                "version": 1,
                "incarnation_id": "one",
                "harness": "plain",
                "event": {"name": name},
                "wait_seconds": 1,
            }
            answers.append((await client.post(f"/seats/{pane}/hook", json=body)).status_code)

        async with there.entitled(Listener.FLEET) as ours, there.entitled(Listener.FLEET, THEIRS) as theirs:
            for client, pane, name in ((ours, OURS, "first"), (ours, OURS, "second"), (theirs, THEIRS, "theirs")):
                nursery.start_soon(hook, client, pane, name)
                await trio.testing.wait_all_tasks_blocked()
            held.go_on.set()
            with trio.fail_after(20):
                while len(answers) < 3:
                    await trio.testing.wait_all_tasks_blocked()
        assert held.begun == ["first", "theirs", "second"]
        assert answers == [200, 200, 200]
