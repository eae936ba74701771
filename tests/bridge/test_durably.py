"""What is written down with a sync leaves the loop to the others, and is written whole, in order."""

from __future__ import annotations

import os
import threading
import traceback

import pytest
import trio
import trio.testing
from bridge.program_world import World, world

from fencepost.supervisor.bridge.auth import Identity
from fencepost.supervisor.bridge.durably import durably
from fencepost.supervisor.bridge.handlers import Call, admit, dismiss
from fencepost.supervisor.bridge.seats import Seats


@pytest.fixture
async def place():
    async with world() as made:
        yield made


async def seat(life, handler, **members: object) -> None:
    operator, body = Identity(None, lambda: True), {"version": 1, **members}
    asked = Call(life.bridge, operator, {"pane": "other"}, b"", body, trio.sleep_forever, lambda _: None)
    status, _ = await handler(asked)
    assert status == 200


async def test_a_bridge_that_starts_and_ends_processes_syncs_nothing_on_its_loop(place: World, monkeypatch):
    loop, sync, seen = threading.get_ident(), os.fsync, []

    def watched(descriptor: int) -> None:
        seen.append("".join(traceback.format_stack()) if threading.get_ident() == loop else "")
        sync(descriptor)

    async with place.bridge() as life:
        monkeypatch.setattr(os, "fsync", watched)
        await seat(life, admit)
        await seat(life, admit, pid=os.getpid())
        await seat(life, dismiss)
        await life.processes.run("left", place.spec(prompt="go"))
        (await place.next_run()).tell(exit=0)
        await life.kind("incarnation.retired")
        await life.processes.end("left")
    async with place.bridge():
        pass
    assert len(seen) > 20
    assert set(seen) == {""}


async def test_the_loop_goes_on_while_something_is_written():
    begun, go_on, order = trio.Event(), threading.Event(), []

    def write(name: str) -> str:
        trio.from_thread.run_sync(begun.set)
        assert go_on.wait(30)
        order.append(name)
        return name

    async def written(name: str) -> None:
        assert await durably(write, name) == name

    async with trio.open_nursery() as nursery:
        nursery.start_soon(written, "first")
        await begun.wait()
        for name in ("second", "third"):
            nursery.start_soon(written, name)
            await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    assert order == ["first", "second", "third"]


async def test_what_was_asked_for_is_written_also_for_one_who_is_cancelled():
    written = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await durably(written.append, "whole")
        await trio.lowlevel.checkpoint()
    assert (written, scope.cancelled_caught) == (["whole"], True)


async def test_whoever_waits_for_a_member_hears_of_its_end_from_a_worker_thread(tmp_path):
    seats = Seats(tmp_path / "seats.json")
    for end in (seats.admit, seats.dismiss):
        member = seats.by_link(seats.admit("pane"))
        assert member is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.gone.wait)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(10):
                await durably(end, "pane")
        assert member.gone.is_set()
