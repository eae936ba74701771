"""A pane's message goes to the head seat: how each end of that is told as the end of its turn."""

from __future__ import annotations

import uuid

import pytest
import trio

from fencepost.mailbox.claim import TEXT_BYTES_MAX
from fencepost.supervisor import (
    ActorCrashed,
    HeadSeatOutbox,
    InboundPost,
    Outbound,
    Pane,
    Stage,
    open_supervisor,
)
from fencepost.supervisor.bridge.dispatching import HeadDispatcher


class World:
    def __init__(self, supervisor) -> None:
        self.supervisor = supervisor
        self.head = supervisor.pane("head")

    async def post(self, text: str, pane_id: str = "left") -> str:
        pane = self.supervisor.pane(pane_id)
        post = InboundPost(str(uuid.uuid4()), (await pane.binding()).binding, text)
        receipt = await pane.accept(post)
        assert receipt.stage is Stage.STORED
        return post.delivery_id

    async def end_of(self, delivery_id: str) -> dict:
        async for event in self.supervisor.events():
            if event.kind in {"delivery.ended", "delivery.failed"} and event.data["delivery_id"] == delivery_id:
                return dict(event.data)
        raise AssertionError("the events ended")

    async def take(self):
        (event,) = await self.head.poll_events(60)
        return event


@pytest.fixture
async def there():
    dispatcher = HeadDispatcher("head")
    head = HeadSeatOutbox(grace_seconds=1, acknowledge_seconds=10, reply_seconds=60)
    async with open_supervisor("memory://", mechanisms=[head], dispatcher=dispatcher) as supervisor:
        dispatcher.supervisor = supervisor
        for pane_id in ("left", "right", "head"):
            await supervisor.pane(pane_id).launch("claude-code", f"session-{pane_id}")
        yield World(supervisor)


async def test_a_reply_of_the_head_settles_the_turn_and_the_next_waits_its_turn(there, autojump_clock):
    async with trio.open_nursery() as nursery:
        first = await there.post("first")
        one = await there.take()
        second = await there.post("second", "right")
        await trio.testing.wait_all_tasks_blocked()
        assert await there.head.poll_events() == []
        assert "first" in one.text
        assert one.text != "first"  # wrapped: an agent's words are no instruction
        await there.head.acknowledge_event(one.event_id)
        await there.head.reply_event(one.event_id, "good")
        end = await there.end_of(first)
        assert (end["stage"], end["outcome"]) == ("responded", "settled")
        two = await there.take()
        assert "second" in two.text
        await there.head.acknowledge_event(two.event_id)
        end = await there.end_of(second)  # no reply within the window: it may be at it
        assert (end["stop"], end["native"]) == ("uncertain", "no_reply")
        nursery.cancel_scope.cancel()


async def test_nobody_at_the_head_is_told_as_such_and_harms_no_later_message(there, autojump_clock):
    end = await there.end_of(await there.post("anybody?"))
    assert (end["stop"], end["native"]) == ("expired", "interrupted")
    later = await there.post("now?")
    await there.head.acknowledge_event((await there.take()).event_id)
    assert (await there.end_of(later))["native"] == "no_reply"


async def test_an_acknowledgement_that_does_not_come_is_uncertain_and_holds_the_next_back(there, autojump_clock):
    first = await there.post("first")
    await there.take()
    assert (await there.end_of(first))["stop"] == "uncertain"
    end = await there.end_of(await there.post("second"))
    assert (end["stop"], end["native"]) == ("expired", "interrupted")
    assert await there.head.poll_events() == []


async def test_the_head_does_not_write_to_itself(there, autojump_clock):
    end = await there.end_of(await there.post("me", "head"))
    assert (end["stop"], end["native"]) == ("rejected", "policy_refused")


async def test_what_its_wrapping_makes_too_large_was_not_sent_and_is_told_so(there, autojump_clock):
    end = await there.end_of(await there.post("x" * TEXT_BYTES_MAX))
    assert (end["stop"], end["native"]) == ("rejected", "validation_refused")
    later = await there.post("shorter")
    await there.head.acknowledge_event((await there.take()).event_id)
    assert (await there.end_of(later))["native"] == "no_reply"


async def test_an_error_of_the_heads_pane_leaves_the_turn_uncertain_and_the_next_goes_on(
    there, autojump_clock, monkeypatch
):
    async def crash(_pane: Pane, _outbound: Outbound) -> None:
        raise ActorCrashed("pane:head", 1)

    with monkeypatch.context() as patched:
        patched.setattr(Pane, "deliver", crash)
        assert (await there.end_of(await there.post("first")))["stop"] == "uncertain"
    later = await there.post("second")
    await there.head.acknowledge_event((await there.take()).event_id)
    assert (await there.end_of(later))["native"] == "no_reply"


async def test_a_restart_with_turns_in_the_queue_sends_none_again(tmp_path):
    store, sent = f"sqlite:///{tmp_path / 'bridge.db'}", []
    for life in range(2):
        dispatcher = HeadDispatcher("head")
        head = HeadSeatOutbox(grace_seconds=600, acknowledge_seconds=600, reply_seconds=600)
        async with open_supervisor(store, mechanisms=[head], dispatcher=dispatcher) as supervisor:
            dispatcher.supervisor = supervisor
            there = World(supervisor)
            if life == 0:
                for pane_id in ("left", "right", "head"):
                    await supervisor.pane(pane_id).launch("claude-code", f"session-{pane_id}")
                sent = [await there.post("first"), await there.post("second", "right")]
                assert "first" in (await there.take()).text
            else:
                for delivery_id in sent:
                    assert (await there.end_of(delivery_id))["reason"] == "service_restarted"
                assert await there.head.poll_events() == []
