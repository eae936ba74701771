"""The end of an activation: nothing of it goes on, so that the next one need not wait for ever."""

from __future__ import annotations

from types import SimpleNamespace

import trio
import trio.testing

from fencepost.actors.actor import Actor
from fencepost.mailbox.ports import SystemClock


class Idle(Actor):
    KIND = "pane"

    async def load(self):
        raise AssertionError("nobody runs it")

    async def handle(self, envelope):
        raise AssertionError("nobody asks it")

    @property
    def owes(self):
        return False


async def test_what_a_child_starts_after_the_end_ends_too():
    async with trio.open_nursery() as nursery:
        system = SimpleNamespace(inbox_max=1, clock=SystemClock(), chaotic=False, nursery=nursery)
        actor = Idle("pane:p", 1, system)

        async def parent():
            try:
                await trio.sleep_forever()
            finally:
                actor.spawn(trio.sleep_forever)

        actor.spawn(parent)
        await trio.testing.wait_all_tasks_blocked()
        actor.end_children()
        with trio.fail_after(5):
            await actor.unwound.wait()
