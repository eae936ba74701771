"""The mutation line itself: order, groups, faults, cancellation, closing, dying."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest
import trio
import trio.testing
from mailbox_samples import GatedStore, Points, event, intent, open_line, putting, trigger

from fencepost.mailbox.errors import MailboxClosed, MutationRefused, StoreFault, StoreOwned
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.ports import RuntimeKilled
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import IntentRecord
from fencepost.mailbox.stores.store import Load, open_store


@pytest.fixture
def gated(url):
    return GatedStore(open_store(url))


def detection(number, **fields):
    return putting(intent(number, pane_id=f"pane-{number}", **fields), events=[event(n=number)])


async def test_what_arrives_while_the_store_is_busy_goes_into_one_batch(gated):
    events, order = [], []

    async def commit(line, number):
        (given,) = await line.commit(detection(number))
        order.append((number, given.seq))

    async with open_line(gated, events) as line, trio.open_nursery() as nursery:
        nursery.start_soon(commit, line, 1)
        await gated.until_taken()
        for number in range(2, 12):
            nursery.start_soon(commit, line, number)
            await trio.testing.wait_all_tasks_blocked()
        assert line.depth == 11
        assert order == events == []
        gated.let_pass()
        await trio.testing.wait_all_tasks_blocked()
    assert [len(batch) for batch in gated.batches] == [1, 10]
    assert sorted(order) == [(number, number) for number in range(1, 12)]
    assert [item.data["n"] for item in events] == [*range(1, 12)]
    assert line.depth == 0


async def test_a_batch_has_a_bound(gated):
    async with open_line(gated, batch_max=4) as line, trio.open_nursery() as nursery:
        nursery.start_soon(line.commit, detection(1))
        await gated.until_taken()
        for number in range(2, 12):
            nursery.start_soon(line.commit, detection(number))
        await trio.testing.wait_all_tasks_blocked()
        gated.let_pass()
    assert [len(batch) for batch in gated.batches] == [1, 4, 4, 2]


async def test_followers_are_told_before_the_callers_and_once_a_batch(gated):
    told = []
    line = MutationLine(gated, on_committed=lambda events: told.append([item.seq for item in events]))
    await line.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.commit, detection(1))
        await gated.until_taken()

        async def commit_and_look(number):
            (given,) = await line.commit(detection(number))
            assert given.seq in told[-1]

        for number in (2, 3):
            nursery.start_soon(commit_and_look, number)
        await trio.testing.wait_all_tasks_blocked()
        gated.let_pass()
    assert told == [[1], [2, 3]]
    await line.aclose()


@pytest.mark.parametrize("dirty", [False, True], ids=["refused at once", "refused after a write"])
async def test_a_refused_mutation_fails_alone_in_its_batch(gated, dirty):
    outcomes = {}

    async def commit(line, number):
        records = [intent(number, pane_id=f"pane-{number}")]
        if number % 3 == 0:
            records.insert(1 if dirty else 0, trigger(intent_id="nobody"))
        try:
            outcomes[number] = [item.seq for item in await line.commit(putting(*records, events=[event()] * number))]
        except MutationRefused as error:
            outcomes[number] = error.table

    async with open_line(gated) as line:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, line, 1)
            await gated.until_taken()
            for number in range(2, 8):
                nursery.start_soon(commit, line, number)
                await trio.testing.wait_all_tasks_blocked()
            gated.let_pass()
        assert len(gated.batches) == 2
        assert outcomes == {
            1: [1],
            2: [2, 3],
            3: "triggers",
            4: [4, 5, 6, 7],
            5: [8, 9, 10, 11, 12],
            6: "triggers",
            7: [*range(13, 20)],
        }
        (found,) = await line.load(Query(IntentRecord))
        assert [record.seq for record in found] == [1, 2, 4, 5, 7]
        assert [item.seq for item in await line.load_events()] == [*range(1, 20)]


async def test_loads_see_all_writes_before_them_and_none_after(gated):
    seen = []

    async def load(line):
        ((found,), events) = await line.load(Query(IntentRecord)), await line.load_events()
        seen.append([record.seq for record in found])
        assert len(events) >= len(found)

    async with open_line(gated) as line, trio.open_nursery() as nursery:
        nursery.start_soon(line.commit, detection(1))
        await gated.until_taken()
        for number in range(2, 6):
            nursery.start_soon(line.commit, detection(number))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(load, line)
            await trio.testing.wait_all_tasks_blocked()
        gated.let_pass()
    assert sorted(seen) == [[*range(1, number + 1)] for number in range(2, 6)]


async def test_a_cancelled_caller_stops_waiting_and_the_commit_stands(gated):
    async with open_line(gated) as line:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(line.commit, detection(1))
                await gated.until_taken()
                nursery.start_soon(line.commit, detection(2))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught  # though the gate is still shut
        with trio.move_on_after(0):
            await line.commit(detection(3))  # never begun: the caller was cancelled before it asked
        gated.let_pass()
        (found,) = await line.load(Query(IntentRecord))
        assert [record.seq for record in found] == [1, 2]


async def test_a_fault_fails_its_batch_whole_and_sticks(gated):
    broken = OSError("the disk is gone")

    def break_second(jobs):
        if len(gated.batches) == 2:
            raise broken

    gated.before = break_second
    gated.let_pass()
    async with open_line(gated) as line:
        await line.commit(detection(1))
        assert line.fault is None
        faults = []
        for call in (
            partial(line.commit, detection(2)),
            partial(line.load, Query(IntentRecord)),
            line.load_events,
            line.load_dead_letters,
        ):
            with pytest.raises(StoreFault) as fault:
                await call()
            assert fault.value.__cause__ is broken
            faults.append(fault.value)
        assert len(set(map(id, faults))) == 4
        assert line.fault is not None
        assert line.fault.__cause__ is broken
        assert line.depth == 0
    async with open_line(gated.url) as line:
        (found,) = await line.load(Query(IntentRecord))
        assert [record.seq for record in found] == [1]


async def test_all_who_wait_meet_the_fault(gated):
    gated.before = lambda jobs: (_ for _ in ()).throw(OSError("gone")) if len(gated.batches) == 2 else None
    faults = []

    async def commit(line, number):
        try:
            await line.commit(detection(number))
        except StoreFault as fault:
            faults.append(fault)

    async with open_line(gated, batch_max=3) as line:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, line, 1)
            await gated.until_taken()
            for number in range(2, 9):
                nursery.start_soon(commit, line, number)
            await trio.testing.wait_all_tasks_blocked()
            gated.let_pass()
        assert len(faults) == len({id(fault) for fault in faults}) == 7
        assert len(gated.batches) == 2  # the store was not asked again
    async with open_line(gated.url) as line:
        assert len(await line.load_events()) == 1


async def test_a_follower_that_raises_is_a_fault_after_the_callers_were_answered(url):
    cause = ZeroDivisionError()

    def raising(_events):
        raise cause

    line = MutationLine(open_store(url), on_committed=raising)
    await line.start()
    await line.commit(detection(1))
    with pytest.raises(StoreFault) as fault:
        await line.commit(detection(2))
    assert fault.value.__cause__ is cause
    await line.aclose()


class Collapse(BaseException):
    """What no store foresees."""


@pytest.mark.parametrize("options", [{}, {"crash_points": Points()}], ids=["waiting", "blocking"])
async def test_a_thread_that_breaks_in_the_middle_of_a_batch_answers_it_and_those_behind_it(gated, options):
    told = []

    async def commit(line, number):
        with pytest.raises(StoreFault, match="the line broke: all of it"):
            await line.commit(detection(number))
        told.append(number)

    def collapse(_jobs):
        raise Collapse("all of it")

    gated.before = collapse
    async with open_line(gated, **options) as line:
        if options:
            gated.let_pass()
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit, line, 1)
                if not options:
                    await gated.until_taken()
                nursery.start_soon(commit, line, 2)
                await trio.testing.wait_all_tasks_blocked()
                gated.let_pass()
        assert sorted(told) == [1, 2]
        with pytest.raises(StoreFault):
            await line.load(Query(IntentRecord))


@pytest.mark.parametrize("broken", [True, False], ids=["raises", "returns"])
async def test_a_store_that_stops_serving_is_a_fault(url, broken):
    store = GatedStore(open_store(url))

    async def serve(_work):
        if broken:
            raise OSError("the disk is gone")

    store.serve = serve
    async with open_line(store) as line:
        with trio.fail_after(5), pytest.raises(StoreFault, match="the line broke"):
            await line.commit(detection(1))
        assert line.fault is not None


async def test_who_queues_after_the_threads_last_look_is_answered(url, monkeypatch):
    store = GatedStore(open_store(url))
    looked, go = threading.Event(), threading.Event()

    async def serve(_work):
        raise OSError("the disk is gone")

    store.serve = serve
    line = MutationLine(store, on_committed=lambda _: None)
    look = line._answer_rest

    def look_and_wait():
        look()
        looked.set()
        go.wait()

    monkeypatch.setattr(line, "_answer_rest", look_and_wait)
    await line.start()
    await trio.to_thread.run_sync(looked.wait)
    monkeypatch.setattr(line, "_require_open", lambda: None)  # it had asked just before the fault
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:

            async def late():
                with pytest.raises(StoreFault, match="the disk is gone"):
                    await line.commit(detection(1))

            nursery.start_soon(late)
            await trio.testing.wait_all_tasks_blocked()
            go.set()
    await line.aclose()


async def test_closing_finishes_what_is_queued(gated):
    outcomes = []

    async def commit(line, number):
        outcomes.append(await line.commit(detection(number)))

    async with open_line(gated) as line, trio.open_nursery() as nursery:
        for number in range(1, 6):
            nursery.start_soon(commit, line, number)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(line.aclose)
        nursery.start_soon(line.aclose)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(MailboxClosed):
            await line.commit(detection(6))
        gated.let_pass()
    assert len(outcomes) == 5
    await line.aclose()
    with pytest.raises(MailboxClosed):
        await line.load(Query(IntentRecord))
    async with open_line(gated.url) as line:
        assert len(await line.load_events()) == 5


async def test_a_line_never_started_closes_and_refuses(url):
    for end in (MutationLine.aclose, None):
        line = MutationLine(open_store(url), on_committed=print)
        if end is not None:
            await line.aclose()
        else:
            line.kill(RuntimeKilled("early"))
            await line.aclose()
        with pytest.raises((MailboxClosed, StoreFault)):
            await line.commit(detection(1))


async def test_a_cancelled_close_still_ends_the_thread(gated):
    line = MutationLine(gated, on_committed=lambda _: None)
    await line.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.commit, detection(1))
        await gated.until_taken()
        with trio.move_on_after(0) as scope:
            await line.aclose()
        assert scope.cancelled_caught
        gated.let_pass()
    await line.aclose()


def test_a_run_that_ends_without_closing_leaves_no_thread(url):
    async def careless():
        line = MutationLine(open_store(url), on_committed=lambda _: None)
        await line.start()
        await line.commit(detection(1))
        return line._thread

    trio.run(careless).join(timeout=10)

    async def look():
        async with open_line(url) as line:
            assert len(await line.load_events()) == 1

    trio.run(look)


async def test_killing_fails_everybody_at_once_and_keeps_nothing_that_was_not_committed(gated):
    cause = RuntimeKilled("pane.decide/decided")
    events, faults = [], []

    async def commit(line, number):
        try:
            await line.commit(detection(number))
        except StoreFault as fault:
            faults.append(fault.__cause__)

    async with open_line(gated, events) as line:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, line, 1)
            await gated.until_taken()
            for number in (2, 3):
                nursery.start_soon(commit, line, number)
            await trio.testing.wait_all_tasks_blocked()
            gated.refuse = lambda why: (gated.store.refuse(why), gated.let_pass())
            line.kill(cause)  # returns once the running batch has noticed
        assert faults == [cause] * 3
        assert events == []
        line.kill(cause)
        async with open_line(gated.url) as second:
            assert await second.load(Query(IntentRecord)) == [[]]
    assert line.depth == 0


async def test_a_store_that_cannot_be_opened_says_why_and_is_let_go(url):
    async with open_line(url):
        line = MutationLine(open_store(url), on_committed=print)
        with pytest.raises(StoreOwned):
            await line.start()
        await line.aclose()
        with pytest.raises(RuntimeError):
            await line.start()


async def test_a_cancelled_start_closes_the_store(url):
    line = MutationLine(open_store(url), on_committed=print)
    with trio.CancelScope() as scope:
        scope.cancel()
        await line.start()
    assert scope.cancelled_caught
    await line.aclose()
    async with open_line(url):
        pass


async def test_crash_points_of_one_mutation_are_never_interleaved_with_anothers(url):
    points = Points()
    async with open_line(url, crash_points=points) as line, trio.open_nursery() as nursery:
        for number in range(1, 9):
            nursery.start_soon(line.commit, putting(intent(number), label=f"intent.{number}"))
    boundaries = ["enqueued", "begun", "written", "committed"]
    labels = [point.split("/")[0] for point in points.passed_points[::4]]
    assert points.passed_points == [f"{label}/{boundary}" for label in labels for boundary in boundaries]


def test_neither_the_event_loop_policy_nor_trio_asyncio_is_touched(tmp_path):
    program = f"""
import asyncio, sys, trio
policy = asyncio.get_event_loop_policy()
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.stores.store import open_store
async def main():
    line = MutationLine(open_store("sqlite:///{tmp_path}/x.db"), on_committed=print)
    await line.start()
    await line.aclose()
trio.run(main)
assert asyncio.get_event_loop_policy() is policy
assert "trio_asyncio" not in sys.modules
async def hosted():
    return 42
assert asyncio.run(hosted()) == 42
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def test_works_in_a_guest_run_on_asyncio(url):
    async def inside():
        async with open_line(url) as line:
            return await line.commit(detection(1))

    async def host():
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        trio.lowlevel.start_guest_run(
            inside, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done.set_result
        )
        return (await done).unwrap()

    (given,) = asyncio.run(host())
    assert given.seq == 1


async def test_jobs_are_what_was_asked(gated):
    gated.let_pass()
    async with open_line(gated) as line:
        await line.commit(Mutation(label="a.b"))
        await line.load()
    assert gated.batches == [[Mutation(label="a.b")], [Load(())]]
