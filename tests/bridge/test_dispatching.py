"""A pane's message goes to the head seat: how each end of that is told as the end of its turn."""

from __future__ import annotations

import uuid

import pytest
import trio
import trio.testing

from fencepost.mailbox.claim import TEXT_BYTES_MAX
from fencepost.supervisor import (
    ActorCrashed,
    HeadSeatOutbox,
    InboundPost,
    Outbound,
    Pane,
    Stage,
    Stop,
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
        for pane_id in ("left", "right", "third", "head"):
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


async def test_however_much_a_pane_sends_another_waits_for_one_message_of_it(there, autojump_clock):
    sent = ["left 1", "left 2", "left 3", "right 1", "third 1", "third 2", "right 2"]
    for text in sent:
        await there.post(text, text.partition(" ")[0])
    heard = []
    for _ in sent:
        event = await there.take()
        heard += [text for text in sent if text in event.text]
        await there.head.acknowledge_event(event.event_id)
        await there.head.reply_event(event.event_id, "good")
    assert heard == ["left 1", "right 1", "left 2", "third 1", "right 2", "left 3", "third 2"]


async def test_one_message_too_many_is_not_accepted_and_may_be_sent_later(there, autojump_clock):
    posted = [await there.post(f"message {number}") for number in range(HeadDispatcher("head").turns_max)]
    pane = there.supervisor.pane("left")
    late = InboundPost(str(uuid.uuid4()), (await pane.binding()).binding, "one more")
    receipt = await pane.accept(late)
    assert (receipt.received, receipt.stop) == (False, Stop.UNAVAILABLE)
    assert "16 messages of this pane wait" in receipt.detail
    await there.post("of another pane", "right")
    event = await there.take()
    await there.head.acknowledge_event(event.event_id)
    await there.head.reply_event(event.event_id, "good")
    await there.end_of(posted[0])
    assert (await pane.accept(late)).received  # nothing had been written: the same id is as good as new
    assert (await pane.accept(late)).received  # and what was accepted is never refused
    assert (await pane.accept(InboundPost(str(uuid.uuid4()), late.binding, "again too many"))).stop is Stop.UNAVAILABLE


async def test_messages_that_are_called_off_while_they_wait_keep_nobody_waiting():
    for _ in range(20):  # trio takes what can go on in any order, and each must do
        dispatcher, order, done = HeadDispatcher("head"), [], trio.Event()

        async def one(pane_id: str, scope: trio.CancelScope, dispatcher=dispatcher, order=order, done=done) -> None:
            with scope:
                async with dispatcher._before_the_head(pane_id):
                    order.append(pane_id)
                    await done.wait()

        scopes = {pane_id: trio.CancelScope() for pane_id in "abcd"}
        async with trio.open_nursery() as nursery:
            for pane_id, scope in scopes.items():
                nursery.start_soon(one, pane_id, scope)
                await trio.testing.wait_all_tasks_blocked()
            scopes["c"].cancel()
            await trio.testing.wait_all_tasks_blocked()
            scopes["b"].cancel()  # in the moment in which it is called
            done.set()
        assert order == ["a", "d"]
        assert (dispatcher._at_work, dispatcher._waiting) == (None, {})


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
