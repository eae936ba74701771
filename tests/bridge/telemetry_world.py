"""A bridge that is observed, and ways to read what it told."""

from __future__ import annotations

import io
import json
import logging
from contextlib import asynccontextmanager, contextmanager

import trio
from attrs import define, evolve
from bridge.http_world import OURS, World, until, world
from bridges import moved
from prometheus_client.parser import text_string_to_metric_families

from fencepost.supervisor import Capabilities, ModelTurn, ToolBoundary
from fencepost.supervisor.bridge.adapters import HookAnswer
from fencepost.supervisor.bridge.adapters.answers import answer_of
from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.telemetry.logs import logging_to
from fencepost.supervisor.bridge.telemetry.telemetry import Telemetry


class Deciding:
    """A harness whose hook says its turn and batch outright, answered as a real harness's is."""

    harness = "plain"

    def __init__(self, *, verbatim=True) -> None:
        self.verbatim = verbatim

    async def on_hook(self, pane, incarnation_id, event, wait_seconds):
        if event.get("kind") == "prompt":
            return HookAnswer()
        turn = event.get("turn")
        model_turn = None if turn is None else ModelTurn(f"turn-{turn}", turn)
        boundary = ToolBoundary(incarnation_id, model_turn, event["batch"], event.get("call"))
        decision = await pane.pre_tool_use(boundary, wait_seconds)
        return answer_of(decision, boundary, verbatim=self.verbatim)


@define
class Observed:
    """The world, its telemetry, and the requests to make."""

    there: World
    telemetry: Telemetry

    async def hook(self, incarnation_id, pane=OURS, wait_seconds=10, harness="plain", **event):
        """One hook of the pane's process, over the operator's listener; its answer."""
        body = {"version": 1, "incarnation_id": incarnation_id, "harness": harness, "event": event}
        async with self.there.entitled(Listener.OPERATOR) as client:
            return await client.post(f"/seats/{pane}/hook", json=body | {"wait_seconds": wait_seconds})

    async def samples(self) -> dict[tuple, float]:
        """What `GET metrics` answers: every sample, by its name and its labels in the order of their names."""
        async with self.there.entitled(Listener.OPERATOR) as client:
            return samples_in((await client.get("/metrics")).text)

    async def replacement(self):
        """Move the base under a process that can prove nothing: its launch, and that of the one that replaces it."""
        pane = self.there.supervisor.pane(OURS)
        nothing = Capabilities(soft_batches=False, turn_order=False)
        first = await pane.launch("plain", capabilities=nothing)
        await self.followed()  # so it is known before its hook says that it lives
        await self.hook(first.incarnation_id, batch="allowed")
        await pane.detect(moved("a", "b"))
        await self.hook(first.incarnation_id, batch="blocked")
        return first, await pane.launch("plain", capabilities=nothing)

    async def followed(self) -> None:
        """Wait until the follower has told every event that is stored."""
        last = [event.seq async for event in self.there.supervisor.events(follow=False)][-1]
        await until(lambda: self.telemetry._follower._event_seq >= last)


@asynccontextmanager
async def observed(*, follow=True, telemetry=None, adapter=None, **more):
    """A world whose listeners and runtime are observed; further arguments are the world's."""
    telemetry = telemetry or Telemetry()
    async with world(**more) as there, trio.open_nursery() as nursery:
        there.bridge = evolve(there.bridge, telemetry=telemetry, adapters={"plain": adapter or Deciding()})
        if follow:
            await nursery.start(telemetry.follow, there.supervisor)
        yield Observed(there, telemetry)
        nursery.cancel_scope.cancel()


def samples_in(text: str) -> dict[tuple, float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def logged(style="json", level=logging.DEBUG, **more):
    """What is logged within; its records are there afterwards."""
    stream = io.StringIO()
    records: list = []
    with logging_to(stream, style, level, **more):
        yield records
    lines = stream.getvalue().splitlines()
    records += [json.loads(line) for line in lines] if style == "json" else lines
