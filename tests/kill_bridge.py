"""A bridge in a process of its own, made to be killed: it says every fact it was told, one JSON line an answer.

live URL                       intent after intent, softly and by restart, for ever
plan URL                       one reconciliation that plans and then never ends
die URL SCENARIO POINT NTH     a scenario; the process kills itself at the point's nth passing
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import intent_scenarios
import trio
from bridges import Harness, Workspace, moved, payload_of, reconciled

from fencepost.supervisor import Allow, Applied, BlockPayload, BlockRestart, open_supervisor


def say(fact: str, **more) -> None:
    print(json.dumps({"fact": fact, **more}), flush=True)


class Teller:
    """A harness that says what it is told."""

    def __init__(self, pane, harness: Harness) -> None:
        self.pane = pane
        self.harness = harness
        startup = harness.launch.startup
        started = None if startup is None else startup.startup_delivery_id
        say("launched", incarnation=harness.incarnation_id, epoch=harness.launch.epoch, startup=started)
        if startup is not None:
            self.payload(startup.intent_id, startup.payload)

    @classmethod
    async def start(cls, pane) -> Teller:
        return cls(pane, await Harness.start(pane))

    @staticmethod
    def payload(intent_id: str, payload: bytes) -> None:
        say("payload", intent=intent_id, sha=hashlib.sha256(payload).hexdigest())

    async def allowed(self, turn: int, *, echo: str | None = None, acknowledges: str | None = None) -> None:
        assert await self.harness.call(turn, f"b{turn}", echo=echo) == Allow()
        if acknowledges is not None:
            say("acknowledged", intent=acknowledges)
        say("allowed", incarnation=self.harness.incarnation_id, turn=turn, batch=f"b{turn}")

    async def detect(self, number: int) -> str:
        intent = await self.pane.detect(moved(f"A{number}", f"B{number}"))
        say("detected", intent=intent.intent_id)
        return intent.intent_id

    async def blocked(self, turn: int, intent_id: str) -> None:
        decision = await self.harness.call(turn, f"b{turn}")
        assert isinstance(decision, BlockPayload)
        assert decision.intent_id == intent_id
        self.payload(intent_id, decision.payload)

    async def delivered(self, turn: int, intent_id: str) -> None:
        assert await self.harness.delivered(intent_id, turn, f"b{turn}") == Applied()
        say("delivered", intent=intent_id)
        assert await self.harness.completed(turn, f"b{turn}") == Applied()
        say("completed", intent=intent_id)


class Changing(Workspace):
    """Tells something else each time it is asked, so that bytes told twice were saved."""

    async def reconcile(self, attempt):
        await attempt.plan(f"plan-{attempt.intent.intent_id}", "start")
        to_base = attempt.intent.to_base
        return reconciled(to_base, payload_of(to_base) + os.urandom(4).hex().encode())


async def live(url: str) -> None:
    """One intent after the other: the odd ones end softly, the even ones by a restart."""
    async with open_supervisor(url, reconciler=Changing()) as supervisor:
        pane = supervisor.pane("pane")
        unheard_of = 2 * len(await pane.intents()) + 1
        teller = await Teller.start(pane)
        turns = itertools.count(1)
        for number in itertools.count(unheard_of, 2):
            await teller.allowed(next(turns))
            soft = await teller.detect(number)
            turn = next(turns)
            await teller.blocked(turn, soft)
            await teller.delivered(turn, soft)
            await teller.allowed(next(turns), acknowledges=soft)
            hard = await teller.detect(number + 1)
            await teller.blocked(next(turns), hard)
            turn = next(turns)
            assert isinstance(await teller.harness.call(turn, f"b{turn}"), BlockRestart)
            teller = await Teller.start(pane)
            assert await teller.harness.ready() == Applied()
            say("delivered", intent=hard)
            turns = itertools.count(1)
            await teller.allowed(next(turns), echo=teller.harness.echo, acknowledges=hard)


class Planning(Workspace):
    async def reconcile(self, attempt):
        await attempt.plan("rebase-7", "start-7")
        say("planned", intent=attempt.intent.intent_id, operation="rebase-7")
        await trio.sleep_forever()


async def plan(url: str) -> None:
    async with open_supervisor(url, reconciler=Planning()) as supervisor:
        pane = supervisor.pane("pane")
        teller = await Teller.start(pane)
        await teller.detect(1)
        await teller.harness.call(1, "b1", wait=1_000)


class DiesAt:
    """Crash points that kill the whole process, as the kernel does."""

    def __init__(self, point: str, nth: int) -> None:
        self._point = point
        self._nth = nth
        self._passed: Counter[str] = Counter()

    def passed(self, point: str) -> None:
        self._passed[point] += 1
        if point == self._point and self._passed[point] == self._nth:
            os.kill(os.getpid(), signal.SIGKILL)


async def die(url: str, scenario: str, point: str, nth: str) -> None:
    await getattr(intent_scenarios, scenario)(url, DiesAt(point, int(nth)))
    say("survived")


MODES: dict[str, Callable[..., Awaitable[None]]] = {"live": live, "plan": plan, "die": die}


def run(facts: Connection, complaints: str, mode: str, *args: str) -> None:
    """Be a bridge in this forked process: its facts go into the pipe, what it complains of into the file."""
    os.dup2(facts.fileno(), 1)
    os.dup2(os.open(complaints, os.O_WRONLY | os.O_CREAT), 2)
    trio.run(MODES[mode], *args)
