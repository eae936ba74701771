"""A bridge and its operator, in the test's own process; and whether what he is told has the shape of the document."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager

import httpx
import trio
from attrs import frozen
from bridge.http_world import OURS, World, world

from fencepost.supervisor import Outbound
from fencepost.supervisor.bridge.routes import Listener

OPERATOR = Listener.OPERATOR
UUID = "00000000-0000-4000-8000-000000000001"
EVIL = "\x1b]0;owned\x07\u202e\n\ttab"
PANE = f"/operator/panes/{OURS}"


def fits(value, schema) -> bool:
    """Whether a value has the shape that the document tells; of JSON Schema, what the document uses."""
    if "oneOf" in schema:
        return sum(fits(value, one) for one in schema["oneOf"]) == 1
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    names = {dict: "object", list: "array", str: "string", int: "integer", bool: "boolean", type(None): "null"}
    if names[type(value)] not in kinds:
        return False
    if isinstance(value, dict):
        members = schema.get("properties", {})
        return set(schema.get("required", [])) <= value.keys() <= members.keys() and all(
            fits(value[name], members[name]) for name in value
        )
    if isinstance(value, list):
        return all(fits(one, schema["items"]) for one in value)
    return not isinstance(value, str) or "pattern" not in schema or re.search(schema["pattern"], value) is not None


@frozen
class Operated:
    """A bridge, and its operator."""

    world: World
    client: httpx.AsyncClient

    @property
    def supervisor(self):
        return self.world.supervisor

    @property
    def bridge(self):
        return self.world.bridge

    async def ask(self, path, members=None, status=200):
        answer = await (self.client.get(path) if members is None else self.client.post(path, json=members))
        assert answer.status_code == status, answer.text
        return answer.json()


@asynccontextmanager
async def operated(**more):
    async with world(**more) as there, there.entitled(OPERATOR) as client:
        yield Operated(there, client)


async def uncertain(there) -> None:
    """A delivery that was taken and that nobody acknowledged."""
    pane = there.supervisor.pane(OURS)
    reports = []

    async def deliver():
        reports.append(await pane.deliver(Outbound("a secret", "fleet_seat", UUID)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        await pane.poll_events(20)
    assert reports[0].stop == "uncertain"
