from __future__ import annotations

import pytest
import trio
import trio.testing

from fencepost.mailbox.address import Address
from fencepost.mailbox.envelope import Envelope, ReplySlot
from fencepost.mailbox.errors import MailboxClosed, MailboxFull
from fencepost.mailbox.inbox import Inbox


async def test_first_in_first_out():
    inbox = Inbox(3)
    for item in "ab":
        inbox.put_nowait(item)
    await inbox.put("c")
    assert len(inbox) == 3
    with pytest.raises(MailboxFull):
        inbox.put_nowait("d")
    assert [await inbox.get() for _ in range(3)] == ["a", "b", "c"]
    assert len(inbox) == 0


async def test_a_waiting_getter_is_handed_the_item():
    inbox, got = Inbox(1), []

    async def take():
        got.extend([await inbox.get(), await inbox.get()])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        inbox.put_nowait(1)
        inbox.put_nowait(2)  # the first is already in its hands
        with pytest.raises(MailboxFull):
            inbox.put_nowait(3)
    assert got == [1, 2]


async def test_putters_wait_their_turn_and_nobody_overtakes_them():
    inbox, done = Inbox(1), []

    async def put(item):
        await inbox.put(item)
        done.append(item)

    async with trio.open_nursery() as nursery:
        inbox.put_nowait(0)
        for item in range(1, 5):
            nursery.start_soon(put, item)
            await trio.testing.wait_all_tasks_blocked()
        assert done == []
        assert await inbox.get() == 0
        with pytest.raises(MailboxFull):
            inbox.put_nowait("pushy")
        await trio.testing.wait_all_tasks_blocked()
        assert done == [1]
        assert [await inbox.get() for _ in range(4)] == [1, 2, 3, 4]
    assert sorted(done) == [1, 2, 3, 4]  # in which order they run on is trio's business


async def test_a_cancelled_putter_has_not_put_and_a_cancelled_getter_has_taken_nothing():
    inbox = Inbox(1)
    inbox.put_nowait(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.put, 1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await inbox.get() == 0
    assert len(inbox) == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.get)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    inbox.put_nowait(2)
    with trio.move_on_after(0) as scope:
        await inbox.get()
    assert scope.cancelled_caught
    assert await inbox.get() == 2


async def test_closing_returns_the_leftovers_and_fails_all_who_wait():
    inbox, failed = Inbox(2), []

    async def fail(wait, *arguments):
        with pytest.raises(MailboxClosed):
            await wait(*arguments)
        failed.append(arguments)

    async with trio.open_nursery() as nursery:
        inbox.put_nowait(0)
        inbox.put_nowait(1)
        for item in (2, 3):
            nursery.start_soon(fail, inbox.put, item)
            await trio.testing.wait_all_tasks_blocked()
        assert inbox.close() == [0, 1]
    assert len(failed) == 2
    assert inbox.closed
    assert inbox.close() == []
    with pytest.raises(MailboxClosed):
        inbox.put_nowait(4)
    with pytest.raises(MailboxClosed):
        await inbox.put(4)
    with pytest.raises(MailboxClosed):
        await inbox.get()


async def test_closing_wakes_the_getter():
    inbox = Inbox()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def take():
            with pytest.raises(MailboxClosed):
                await inbox.get()

        await trio.testing.wait_all_tasks_blocked()
        assert inbox.close() == []


async def test_an_item_handed_over_before_the_close_is_not_lost():
    inbox, got = Inbox(), []

    async def take():
        got.append(await inbox.get())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        inbox.put_nowait("a")
        inbox.put_nowait("b")
        assert inbox.close() == ["b"]
    assert got == ["a"]


async def test_only_one_may_wait_at_the_other_end():
    inbox = Inbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.get)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await inbox.get()
        inbox.put_nowait(1)
    with pytest.raises(ValueError):
        Inbox(0)


async def test_a_slot_is_answered_once():
    slot = ReplySlot()
    assert not slot.settled
    assert slot.answer(1)
    assert slot.settled
    assert not slot.answer(2)
    assert not slot.fail(ValueError())
    assert await slot.wait() == 1
    failed = ReplySlot()
    assert failed.fail(KeyError("x"))
    assert not failed.answer(1)
    with pytest.raises(KeyError):
        await failed.wait()


async def test_the_waiting_caller_gets_the_answer():
    slot, got = ReplySlot(), []

    async def wait():
        got.append(await slot.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await slot.wait()
        assert slot.answer("yes")
    assert got == ["yes"]
    assert not slot.abandoned


async def test_a_cancelled_caller_abandons_its_slot():
    slot = ReplySlot()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slot.wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not slot.abandoned
        nursery.cancel_scope.cancel()
    assert slot.abandoned
    assert slot.answer(1)  # heard by nobody, and still the one answer
    assert not slot.answer(2)


def test_an_envelope_adds_nothing_to_its_message():
    message = object()
    envelope = Envelope(Address.pane("p"), message, ReplySlot())
    assert envelope.message is message
    assert (envelope.sender_incarnation_id, envelope.call) == (None, "")
    with pytest.raises(AttributeError):
        envelope.call = "x"
