"""The border between the runtime's trio and the host's loop, on both hosts.

Tests of the asyncio host are plain functions that call `asyncio.run`, and run twice: with the poller, and in stock
guest mode with its worker thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import signal
import sys
import threading
import time
from contextlib import asynccontextmanager

import pytest
import sniffio
import trio
import trio.testing

from fencepost.mailbox.errors import MailboxClosed
from fencepost.supervisor import asyncio_host, guest_poller, guest_run
from fencepost.supervisor.asyncio_host import AsyncioHost
from fencepost.supervisor.hosts import CallbackStopped, Service, TrioHost, acquire_host, open_host
from fencepost.supervisor.trio_workers import retire

NEVER = 3600.0  # a bound that a passing test never meets
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture(params=["poller", "stock"])
def mode(request, monkeypatch):
    monkeypatch.setattr(guest_run, "USE_POLLER", request.param == "poller")
    return request.param


@pytest.fixture(autouse=True)
def nothing_left():
    threads = set(threading.enumerate())
    handler = signal.getsignal(signal.SIGINT)
    policy = asyncio.get_event_loop_policy() if sys.version_info < (3, 14) else None
    hooks = sys.get_asyncgen_hooks()
    yield
    assert getattr(guest_run._thread, "guest", None) is None
    assert not trio.lowlevel.in_trio_run()
    assert signal.getsignal(signal.SIGINT) is handler
    assert sys.get_asyncgen_hooks() == hooks
    if policy is not None:
        assert asyncio.get_event_loop_policy() is policy
    assert set(threading.enumerate()) <= threads


async def echo(value):
    await trio.lowlevel.checkpoint()
    return value


async def fail(error):
    await trio.lowlevel.checkpoint()
    raise error


class Runtime:
    """A service as the runtime will be: opens a nursery, starts, ends when it is told to."""

    def __init__(self):
        self.closing = trio.Event()
        self.crash: BaseException | None = None
        self.poke = trio.Event()
        self.log: list[str] = []

    async def run(self, started):
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._actor)
                started("value")
                await self.closing.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.log.append("ended")

    async def _actor(self):
        await self.poke.wait()
        if self.crash is not None:
            raise self.crash

    async def close(self):
        self.closing.set()

    async def do_crash(self, error):
        self.crash = error
        self.poke.set()


@asynccontextmanager
async def runtime_open():
    """The shape `open_supervisor` has."""
    runtime = Runtime()
    async with open_host() as host:
        service = await host.start_service(runtime.run)
        try:
            yield host, runtime, service
        finally:
            await host.stop_service(service, runtime.close, NEVER)


async def stubborn(release, log):
    """Trio code that ignores cancellation until it is released."""
    with trio.CancelScope(shield=True):
        await release.wait()
    log.append("finished")


# ------------------------------------------------------------------------------------------------ calls, asyncio host


def test_a_call_answers_the_value_or_raises_the_very_exception(mode):
    error = KeyError("x")

    async def main():
        async with open_host() as host:
            assert isinstance(host, AsyncioHost)
            assert not host.direct
            assert await host.call(echo, 7) == 7
            with pytest.raises(KeyError) as caught:
                await host.call(fail, error)
            assert caught.value is error
            with pytest.raises(ExceptionGroup):
                await host.call(fail, ExceptionGroup("several", [ValueError(), TypeError()]))
            with pytest.raises(TypeError):
                await host.call(lambda: 3)

    asyncio.run(main())


def test_each_side_is_told_its_own_library_and_sees_the_callers_context(mode):
    seen = []

    async def host_side():
        seen.append((sniffio.current_async_library(), variable.get(), asyncio.get_running_loop()))
        await asyncio.sleep(0)
        seen.append(sniffio.current_async_library())

    async def trio_side(host):
        seen.append((sniffio.current_async_library(), variable.get()))
        await host.callback(host_side)
        seen.append(sniffio.current_async_library())

    async def main():
        async with open_host() as host:
            variable.set("mine")
            await host.call(trio_side, host)
            assert sniffio.current_async_library() == "asyncio"
            assert seen == [
                ("trio", "mine"),
                ("asyncio", "mine", asyncio.get_running_loop()),
                "asyncio",
                "trio",
            ]

    asyncio.run(main())


def test_cancelling_the_waiting_task_cancels_the_trio_side(mode):
    log = []

    async def main():
        reached, cancelled = asyncio.Event(), asyncio.Event()

        async def wait():
            reached.set()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                log.append("cancelled")
                cancelled.set()
                raise

        async with open_host() as host:
            task = asyncio.create_task(host.call(wait))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await cancelled.wait()
            assert log == ["cancelled"]

            # Before the trio side ran at all.
            task = asyncio.create_task(host.call(wait))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await host.call(echo, 1) == 1
            assert not host._run.calls

    asyncio.run(main())


def test_a_cancelled_caller_stops_waiting_while_the_trio_side_finishes(mode, caplog):
    log = []

    async def main():
        reached = asyncio.Event()
        release = trio.Event()

        async def commit():
            reached.set()
            await stubborn(release, log)
            raise ValueError("nobody hears this")

        async with open_host() as host:
            task = asyncio.create_task(host.call(commit))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert log == []
            await host.call(echo, 1)
            trio_event_set(release, host)
            while host._run.calls:
                await host.call(echo, 1)
                await asyncio.sleep(0)
            assert log == ["finished"]

    asyncio.run(main())
    gc.collect()
    assert caplog.records == []


def trio_event_set(event, host):
    host._run.nudge()
    event.set()


def test_the_hosts_tasks_go_on_while_the_runtime_works(mode):
    async def main():
        ticks = 0
        enough = asyncio.Event()

        async def ticker():
            nonlocal ticks
            while True:
                ticks += 1
                if ticks == 50:
                    enough.set()
                await asyncio.sleep(0)

        async def until_enough():
            while not enough.is_set():
                await trio.lowlevel.checkpoint()
            return "both"

        async with open_host() as host:
            task = asyncio.create_task(ticker())
            assert await host.call(until_enough) == "both"
            task.cancel()

    asyncio.run(main())


def test_many_calls_at_once_and_trios_own_clock_threads_and_sockets(mode):
    async def over_a_socket():
        ours, theirs = trio.socket.socketpair()
        with ours, theirs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ours.send, b"hello")
                return await theirs.recv(5)

    async def from_a_thread():
        event = trio.Event()
        token = trio.lowlevel.current_trio_token()
        thread = threading.Thread(target=token.run_sync_soon, args=(event.set,))
        thread.start()
        await event.wait()
        thread.join()

    async def deadlines():
        began = trio.current_time()
        with trio.move_on_after(NEVER), trio.move_on_after(0.03) as inner:
            await trio.sleep_forever()
        assert inner.cancelled_caught
        await trio.sleep(0.01)
        return trio.current_time() - began

    async def main():
        async with open_host() as host:
            assert await asyncio.gather(*(host.call(echo, n) for n in range(500))) == list(range(500))
            assert await host.call(over_a_socket) == b"hello"
            for _ in range(20):
                await host.call(from_a_thread)
            assert await host.call(deadlines) >= 0.04
            await asyncio.sleep(0.02)  # parked, with nothing to do
            assert await host.call(echo, 1) == 1
            await host.call(trio.testing.wait_all_tasks_blocked)

    asyncio.run(main())


def test_worker_threads_that_the_runtime_used_are_gone_too(mode):
    async def main():
        async with open_host() as host:
            idents = await host.call(host.to_thread, threading.get_ident)
            assert idents != threading.get_ident()

    asyncio.run(main())


def test_other_trio_runs_keep_their_workers():
    async def both():
        await trio.to_thread.run_sync(int)

    async def main():
        async with open_host() as host:
            await host.call(echo, 1)

    trio.run(both)  # leaves an idle worker
    from trio._core._thread_cache import THREAD_CACHE

    idle = set(THREAD_CACHE._idle_workers)
    assert idle
    asyncio.run(main())
    assert set(THREAD_CACHE._idle_workers) == idle
    retire({worker._thread for worker in idle})
    assert not THREAD_CACHE._idle_workers


def test_a_thread_cache_that_looks_different_is_left_alone(monkeypatch):
    class Cache:
        _idle_workers = {object(): None}  # noqa: RUF012

    for cache in (object(), Cache()):
        monkeypatch.setattr("trio._core._thread_cache.THREAD_CACHE", cache)
        retire({threading.current_thread()})
    assert len(Cache._idle_workers) == 1


def test_the_poller_needs_no_thread_and_is_left_out_where_trio_looks_different(monkeypatch):
    async def main(threads):
        before = set(threading.enumerate())
        async with open_host() as host:
            for _ in range(5):
                await host.call(trio.sleep, 0.001)
            assert len(set(threading.enumerate()) - before) == threads

    asyncio.run(main(0))
    monkeypatch.setattr(guest_poller.os, "dup", lambda _: (_ for _ in ()).throw(AttributeError("gone")))
    asyncio.run(main(1))


# -------------------------------------------------------------------------------------------- callbacks, asyncio host


def test_a_callback_answers_raises_and_need_not_be_a_coroutine_function(mode):
    error = KeyError("x")

    async def answers(value):
        await asyncio.sleep(0)
        return value

    async def raises():
        await asyncio.sleep(0)
        raise error

    def plain(value):
        return value

    def plain_raises():
        raise error

    async def trio_side(host):
        assert await host.callback(answers, 5) == 5
        assert await host.callback(plain, 6) == 6
        for broken in (raises, plain_raises):
            with pytest.raises(KeyError) as caught:
                await host.callback(broken)
            assert caught.value is error
        return "done"

    async def main():
        async with open_host() as host:
            assert await host.call(trio_side, host) == "done"

    asyncio.run(main())


def test_a_callback_that_asyncio_cancels_is_an_ordinary_error_on_the_trio_side(mode):
    async def cancels_itself():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async def raises_it():
        raise asyncio.CancelledError

    async def trio_side(host):
        for callback in (cancels_itself, raises_it):
            with pytest.raises(CallbackStopped):
                await host.callback(callback)

    async def main():
        async with open_host() as host:
            await host.call(trio_side, host)

    asyncio.run(main())


def test_a_callback_may_call_the_runtime(mode):
    async def inner(host):
        return await host.call(echo, "deep")

    async def trio_side(host):
        return await host.callback(inner, host)

    async def main():
        async with open_host() as host:
            assert await host.call(trio_side, host) == "deep"

    asyncio.run(main())


def test_cancelling_the_trio_side_cancels_the_callback(mode):
    log = []

    async def waits(reached):
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cancelled")

    async def trio_side(host):
        reached = asyncio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.callback, waits, reached)
            await host.callback(reached.wait)
            nursery.cancel_scope.cancel()
        assert log == ["cancelled"]
        with trio.CancelScope() as scope:  # before it began
            scope.cancel()
            await host.callback(waits, reached)
        return scope.cancelled_caught

    async def main():
        async with open_host() as host:
            assert await host.call(trio_side, host)
        assert log == ["cancelled"]

    asyncio.run(main())


def test_a_callback_that_ignores_cancellation_is_abandoned(mode, monkeypatch, caplog):
    monkeypatch.setattr(asyncio_host, "CALLBACK_GRACE", 0.02)
    log = []

    async def main():
        reached, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def ignores():
            reached.set()
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    log.append("ignored")
            ended.set()
            raise ValueError("too late for anybody")

        async def trio_side(host):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.callback, ignores)
                await host.callback(reached.wait)
                nursery.cancel_scope.cancel()
            log.append("gone on")

        async with open_host() as host:
            await host.call(trio_side, host)
            assert log == ["ignored", "gone on"]
            release.set()
            await ended.wait()
        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    assert caplog.records == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has no eager tasks here")
def test_an_eager_task_factory_changes_nothing(mode):
    async def who():
        return sniffio.current_async_library()

    async def trio_side(host):
        return await host.callback(who)

    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        async with open_host() as host:
            assert await host.call(trio_side, host) == "asyncio"

    asyncio.run(main())


# -------------------------------------------------------------------------------------------- life of the guest run


def test_two_runtimes_share_a_guest_run(mode):
    async def main():
        async with runtime_open() as (first, _, _):
            async with runtime_open() as (second, _, _):
                assert first._run is second._run
                assert await second.call(echo, 2) == 2
            assert await first.call(echo, 1) == 1
            with pytest.raises(MailboxClosed):
                await second.call(echo, 2)
            await second.release()  # again: nothing
            assert await first.call(echo, 1) == 1
        with pytest.raises(MailboxClosed):
            await first.call(echo, 1)

    asyncio.run(main())


def test_one_may_open_while_the_last_one_closes(mode):
    async def main():
        first = await acquire_host()
        closing = asyncio.create_task(first.release())
        await asyncio.sleep(0)
        async with open_host() as second:
            assert second._run is not first._run
            assert await second.call(echo, 1) == 1
        await closing

    asyncio.run(main())


def test_loops_one_after_another_with_and_without_a_runtime(mode):
    async def main(n):
        async with runtime_open() as (host, _, _):
            return await host.call(echo, n)

    async def plain():
        await asyncio.sleep(0)
        return "plain"

    for n in range(5):
        assert asyncio.run(plain()) == "plain"
        assert asyncio.run(main(n)) == n
    loop = asyncio.new_event_loop()
    assert [loop.run_until_complete(main(n)) for n in range(3)] == [0, 1, 2]
    loop.close()
    assert asyncio.run(plain()) == "plain"
    assert trio.run(echo, 3) == 3


def test_several_threads_with_a_loop_each(mode):
    barrier = threading.Barrier(4)
    answers = []

    async def main(n):
        async with runtime_open() as (host, _, _):
            barrier.wait()
            for _ in range(50):
                answers.append(await host.call(echo, n))  # noqa: PERF401
            barrier.wait()

    threads = [threading.Thread(target=lambda n=n: asyncio.run(main(n))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(list(range(4)) * 50)


def test_no_signal_handler_and_no_wakeup_descriptor_are_installed(mode):
    handler = signal.getsignal(signal.SIGINT)
    assert handler is signal.default_int_handler
    loop = asyncio.new_event_loop()

    async def main():
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup)
        async with open_host() as host:
            await host.call(echo, 1)
            assert signal.getsignal(signal.SIGINT) is handler
            assert signal.set_wakeup_fd(wakeup) == wakeup

    loop.run_until_complete(main())
    loop.close()


def test_a_closed_loop_with_an_open_runtime_is_cleaned_up_by_the_next(mode):
    runtime = Runtime()

    async def forget():
        host = await acquire_host()
        service = await host.start_service(runtime.run)
        await host.call(echo, 1)
        return host, service

    async def main():
        hooks = sys.get_asyncgen_hooks()
        host = await acquire_host()
        try:
            return await host.call(echo, "new")
        finally:
            await host.release()
            assert sys.get_asyncgen_hooks() == hooks

    host, service = asyncio.run(forget())
    assert not service.ended
    with pytest.warns(ResourceWarning, match="closed while a runtime was open"):
        assert asyncio.run(main()) == "new"
    assert service.ended
    assert runtime.log == ["ended"]

    async def late():
        with pytest.raises(RuntimeError, match="event loop"):
            await host.call(echo, 1)

    asyncio.run(late())


def test_a_runtime_on_a_loop_that_only_rests_refuses_another_loop(mode):
    resting, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    host = resting.run_until_complete(acquire_host())
    with pytest.raises(RuntimeError, match="another event loop"):
        other.run_until_complete(acquire_host())
    resting.run_until_complete(host.release())
    other.run_until_complete(other.run_until_complete(acquire_host()).release())
    resting.close()
    other.close()


def test_a_crash_of_trio_itself_ends_every_wait(mode, caplog):
    async def main():
        async with open_host() as host:
            waiting = asyncio.create_task(host.call(trio.sleep_forever))
            await host.call(echo, 1)
            trio.lowlevel.current_trio_token().run_sync_soon(lambda: 1 / 0)
            with pytest.raises(MailboxClosed):
                await waiting
            await asyncio.wait([host._run.ended])
            with pytest.raises(MailboxClosed):
                await host.call(echo, 1)
        async with open_host() as host:
            assert await host.call(echo, 1) == 1

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert [record.message for record in caplog.records] == ["the runtime's trio crashed"]


def test_ctrl_c_that_hits_trios_own_code_is_not_lost(mode, caplog):
    async def main():
        async with open_host() as host:
            await host.call(echo, 1)
            trio.lowlevel.current_trio_token().run_sync_soon(guest_run._interrupt)
            await asyncio.Event().wait()

    with caplog.at_level(logging.ERROR), pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert [record.message for record in caplog.records] == ["the runtime's trio crashed"]


def test_somebody_elses_trio_run_in_the_thread_is_told(mode):
    async def main():
        loop = asyncio.get_running_loop()
        stop, done = trio.Event(), loop.create_future()
        trio.lowlevel.start_guest_run(
            stop.wait,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=done.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )
        with pytest.raises(RuntimeError, match="another trio run"):
            await acquire_host()
        stop.set()
        (await done).unwrap()

    asyncio.run(main())
    from trio._core._thread_cache import THREAD_CACHE

    retire({worker._thread for worker in THREAD_CACHE._idle_workers})


def test_outside_of_any_loop_there_is_no_host():
    with pytest.raises(sniffio.AsyncLibraryNotFoundError):
        acquire_host().send(None)


# ------------------------------------------------------------------------------------------------- services, both hosts


def on_both(test):
    """Run an async test on trio, on asyncio with the poller, and on asyncio in stock guest mode."""

    @pytest.mark.parametrize("library", ["trio", "poller", "stock"])
    def run(library, monkeypatch):
        if library == "trio":
            trio.run(test)
        else:
            monkeypatch.setattr(guest_run, "USE_POLLER", library == "poller")
            asyncio.run(test())

    run.__name__ = test.__name__
    return run


@on_both
async def test_a_service_starts_runs_and_ends():
    async with runtime_open() as (host, runtime, service):
        assert isinstance(service, Service)
        assert service.value == "value"
        assert not service.ended
        assert await host.call(echo, 3) == 3
    assert service.ended
    assert service.failure is None
    assert runtime.log == ["ended"]


@on_both
async def test_a_service_that_cannot_start_raises_at_the_start():
    async def broken(started):
        raise LookupError("no store")

    async def silent(started):
        await echo(1)

    async with open_host() as host:
        with pytest.raises(LookupError):
            await host.start_service(broken)
        with pytest.raises(RuntimeError, match="returned before it had started"):
            await host.start_service(silent)


@on_both
async def test_a_failure_of_the_runtime_does_not_touch_the_hosts_block():
    async with runtime_open() as (host, runtime, service):
        await host.call(runtime.do_crash, ValueError("bug"))
        await host.call(service._end.wait)
        assert await host.call(echo, "still here") == "still here"
    assert isinstance(service.failure, ExceptionGroup)
    assert service.failure.subgroup(ValueError) is not None


@on_both
async def test_a_close_that_fails_still_ends_the_service():
    runtime = Runtime()
    async with open_host() as host:
        service = await host.start_service(runtime.run)
        await host.stop_service(service, lambda: fail(OSError("disk")), NEVER)
        assert service.ended
        assert isinstance(service.failure, OSError)


@on_both
async def test_a_service_that_does_not_end_when_asked_is_cancelled():
    runtime = Runtime()
    async with open_host() as host:
        service = await host.start_service(runtime.run)
        await host.stop_service(service, trio.sleep_forever, 0.01, NEVER)
        assert service.ended
        assert service.failure is None
        assert runtime.log == ["ended"]


@on_both
async def test_a_service_and_a_close_that_ignore_everything_are_abandoned():
    release, log = trio.Event(), []

    async def run(started):
        started(None)
        await stubborn(release, log)

    async with open_host() as host:
        began = time.monotonic()
        service = await host.start_service(run)
        await host.stop_service(service, lambda: stubborn(release, log), 0.01, 0.01)
        assert time.monotonic() - began < 1.0
        assert not service.ended

        async def let_go():
            release.set()

        await host.call(let_go)
        await host.call(service._end.wait)
        assert log == ["finished", "finished"]


@on_both
async def test_context_variables_reach_the_service():
    seen = []

    async def run(started):
        seen.append(variable.get())
        started(None)

    variable.set("opener's")
    async with open_host() as host:
        await host.start_service(run)
    assert seen == ["opener's"]


# -------------------------------------------------------------------------------------- cancellation at every stage


def test_cancelled_while_starting_asyncio(mode):
    log = []

    async def main():
        reached = asyncio.Event()

        async def slow(started):
            reached.set()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    for _ in range(20):
                        await echo(1)
                log.append("cleaned up")

        async def opener():
            async with open_host() as host:
                await host.start_service(slow)

        async with open_host():  # keeps the guest run alive: it is not its end that the opener waits for
            task = asyncio.create_task(opener())
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert log == ["cleaned up"]

    asyncio.run(main())


async def test_cancelled_while_starting_trio():
    log = []
    reached = trio.Event()

    async def slow(started):
        reached.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                for _ in range(20):
                    await echo(1)
            log.append("cleaned up")

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery, open_host() as host:
            nursery.start_soon(host.start_service, slow)
            await reached.wait()
            scope.cancel()
    assert log == ["cleaned up"]


def test_cancelled_in_the_block_and_again_and_again_on_the_way_out_asyncio(mode):
    log = []

    async def main():
        inside, closing = asyncio.Event(), asyncio.Event()
        release = trio.Event()

        async def run(started):
            started(None)
            await release.wait()
            log.append("ended")

        async def close():
            closing.set()
            await release.wait()

        async def opener():
            async with open_host() as host:
                hosts.append(host)
                service = await host.start_service(run)
                try:
                    inside.set()
                    await asyncio.Event().wait()
                finally:
                    await host.stop_service(service, close, NEVER)

        hosts = []
        task = asyncio.create_task(opener())
        await inside.wait()
        task.cancel()
        await closing.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        trio_event_set(release, hosts[0])
        while not task.done():  # cancel in every round until the end, the release of the guest run included
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled()
        assert log == ["ended"]
        assert hosts[0]._run.over

    asyncio.run(main())


async def test_cancelled_in_the_block_and_on_the_way_out_trio():
    log = []

    async def run(started):
        started(None)
        await asked.wait()
        await echo(1)
        log.append("ended")

    async def close():
        asked.set()

    asked = trio.Event()
    with trio.CancelScope() as scope:
        async with open_host() as host:
            service = await host.start_service(run)
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                await host.stop_service(service, close, NEVER)
    assert scope.cancelled_caught
    assert log == ["ended"]


def test_asyncio_runs_cancel_all_leaves_an_open_runtime_in_order(mode):
    log = []

    async def background(ready):
        async with runtime_open() as (host, _, _):
            ready.set()
            try:
                await host.call(trio.sleep_forever)
            finally:
                log.append("left")

    async def main():
        ready = asyncio.Event()
        main.task = asyncio.create_task(background(ready))
        await ready.wait()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert log == ["left"]
    assert main.task.cancelled()


def test_ctrl_c_in_the_host_leaves_in_order(mode):
    log = []

    async def main():
        async with runtime_open() as (host, runtime, _):
            try:
                signal.raise_signal(signal.SIGINT)
                await host.call(trio.sleep_forever)
            finally:
                log.append(runtime)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert log[0].log == ["ended"]


def test_ctrl_c_that_hits_an_actor_reaches_the_asyncio_host(mode):
    async def main():
        async with runtime_open() as (host, runtime, _):
            await host.call(runtime.do_crash, KeyboardInterrupt())
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


def test_ctrl_c_that_hits_an_actor_reaches_the_trio_host():
    left = []

    async def main():
        async with runtime_open() as (host, runtime, service):
            await host.call(runtime.do_crash, KeyboardInterrupt())
            try:
                await trio.sleep_forever()
            finally:
                left.append(service)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert left[0].ended


def test_a_call_that_never_ends_does_not_hold_up_the_release(mode):
    async def main():
        release, log = trio.Event(), []
        async with open_host() as host:
            task = asyncio.create_task(host.call(trio.sleep_forever))
            await host.call(echo, 1)
        with pytest.raises(MailboxClosed):
            await task
        del release, log

    asyncio.run(main())


def test_trio_code_behind_a_shield_bounds_the_release_and_the_next_open(mode, monkeypatch, caplog):
    monkeypatch.setattr(guest_run, "RELEASE_SECONDS", 0.02)

    async def main():
        release, log = trio.Event(), []
        host = await acquire_host()
        task = asyncio.create_task(host.call(stubborn, release, log))
        await host.call(echo, 1)
        await host.release()
        assert not host._run.over
        with pytest.raises(RuntimeError, match="does not end"):
            await acquire_host()
        trio_event_set(release, host)
        await task
        await asyncio.wait([host._run.ended])

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "ignores cancellation" in caplog.text


# ------------------------------------------------------------------------------------------------------------ iterators


class Numbers:
    """A trio iterator whose every step waits for a permit."""

    def __init__(self):
        self.permits = trio.Semaphore(0)
        self.next = 0
        self.cancelled = 0
        self.closed = 0

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            await self.permits.acquire()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        self.next += 1
        if self.next > 3:
            raise StopAsyncIteration
        return self.next

    async def aclose(self):
        self.closed += 1

    async def permit(self, count=1):
        for _ in range(count):
            self.permits.release()


async def count_to(limit):
    try:
        for n in range(limit):
            yield n
            await trio.lowlevel.checkpoint()
    finally:
        await trio.lowlevel.cancel_shielded_checkpoint()
        closed.append(limit)


closed: list[int] = []


@on_both
async def test_iterating_to_the_end_and_closing_early():
    closed.clear()
    async with open_host() as host:
        assert [n async for n in host.iterate(count_to(4))] == [0, 1, 2, 3]
        iterator = host.iterate(count_to(5))
        assert await anext(iterator) == 0
        await iterator.aclose()
        await iterator.aclose()
        assert closed == [4, 5]
        numbers = Numbers()
        await host.call(numbers.permit, 4)
        assert [n async for n in host.iterate(numbers)] == [1, 2, 3]


@on_both
async def test_errors_pass_through_an_iterator():
    async def broken():
        yield 1
        raise KeyError("x")

    async with open_host() as host:
        iterator = host.iterate(broken())
        assert await anext(iterator) == 1
        with pytest.raises(KeyError):
            await anext(iterator)
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)


def test_a_cancelled_anext_loses_no_item(mode):
    async def main():
        numbers = Numbers()
        async with open_host() as host:
            iterator = host.iterate(numbers)
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(iterator), 0.01)
            await host.call(numbers.permit, 2)
            assert [await anext(iterator), await anext(iterator)] == [1, 2]
            assert numbers.cancelled == 0

            waiting = asyncio.create_task(anext(iterator))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task waits"):
                await anext(iterator)
            await iterator.aclose()
            with pytest.raises(StopAsyncIteration):
                await waiting
            with pytest.raises(StopAsyncIteration):
                await anext(iterator)
            assert (numbers.cancelled, numbers.closed) == (1, 1)

    asyncio.run(main())


def test_an_iterator_that_is_dropped_leaves_no_step_waiting(mode):
    async def main():
        numbers = Numbers()
        async with open_host() as host:
            iterator = host.iterate(numbers)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(iterator), 0.01)
            del iterator
            gc.collect()
            while not numbers.cancelled:
                await host.call(echo, 1)
            assert numbers.cancelled == 1
            assert not host._run.calls

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------------------ trio host


async def test_on_trio_everything_is_a_plain_await():
    task = trio.lowlevel.current_task()

    async def here(value):
        assert trio.lowlevel.current_task() is task
        return value

    async with open_host() as host:
        assert isinstance(host, TrioHost)
        assert host.direct
        assert await host.call(here, 1) == 1
        assert await host.callback(here, 2) == 2
        assert await host.callback(lambda: 3) == 3
        with pytest.raises(KeyError):
            await host.callback(fail, KeyError())
        with trio.CancelScope() as scope:
            scope.cancel()
            await host.call(trio.sleep_forever)
        assert scope.cancelled_caught


def test_a_main_that_returns_without_closing_ends_the_service_on_trio():
    services = []

    async def main():
        host = await acquire_host()
        services.append(await host.start_service(Runtime().run))

    trio.run(main)
    assert services[0].ended
