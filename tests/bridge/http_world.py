"""A bridge with two panes, asked through its applications without sockets or through real ones."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import trio
from attrs import define, field

from fencepost.supervisor import (
    AcceptedTurn,
    Capabilities,
    FleetSeatMailbox,
    HeadSeatOutbox,
    ModelTurn,
    ToolBoundary,
    TurnEnd,
    open_supervisor,
)
from fencepost.supervisor.bridge.adapters import Delivered, HookAnswer
from fencepost.supervisor.bridge.app import CONNECTION, ListenerApp
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.limits import Limits
from fencepost.supervisor.bridge.peers import Process, process
from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.seats import Seats
from fencepost.supervisor.bridge.serve import Addresses, serve

OPERATOR_TOKEN = "o" * 43
OURS, THEIRS, HEAD = "pane-1", "pane-2", "head-pane"


class Adapter:
    """A harness whose hook says its turn and batch outright."""

    harness = "plain"

    def __init__(self) -> None:
        self.waits: list[float] = []

    def capabilities(self, version):
        return Capabilities()

    async def on_hook(self, pane, incarnation_id, event, wait_seconds):
        self.waits.append(wait_seconds)
        if "turn" not in event:
            raise ValueError("no hook of this harness")
        boundary = ToolBoundary(incarnation_id, ModelTurn(f"turn-{event['turn']}", event["turn"]), event["batch"])
        decision = await pane.pre_tool_use(boundary, wait_seconds)
        payload = getattr(decision, "payload", None)
        if payload is None:
            return HookAnswer(type(decision).__name__.encode())
        told = Delivered(decision.intent_id, incarnation_id, f"turn-{event['turn']}", event["batch"])
        return HookAnswer(payload, 0, told)


async def echo_tool(pane, request):
    return {"version": 1, "pane": pane.pane_id, "asked": request.get("ask")}


@define
class Dispatched:
    """The turns that accepted messages led to."""

    turns: list[AcceptedTurn] = field(factory=list)

    async def __call__(self, turn):
        self.turns.append(turn)
        return TurnEnd("settled")


@define
class _Peer:
    """What a server would say of the connection."""

    peer: Process | None
    written: int = 0

    def claim(self, owner):
        return True


@define
class World:
    """One bridge; `OURS` is this process's pane, `THEIRS` somebody else's."""

    bridge: Bridge
    supervisor: object
    seats: Seats
    dispatched: Dispatched
    adapter: Adapter
    links: dict[str, str]

    def client(self, listener: Listener, *, peer: Process | None = None, headers=None, **more) -> httpx.AsyncClient:
        """A client of one listener; on the local one it is the process `peer`."""
        transport = httpx.ASGITransport(self.app(listener, peer))
        return httpx.AsyncClient(transport=transport, base_url="http://bridge", headers=headers or {}, **more)

    def app(self, listener: Listener, peer: Process | None = None):
        """The application of one listener, as if that process had connected."""
        app = ListenerApp(self.bridge, listener)

        async def connected(scope, receive, send):
            seen = _Peer(peer)

            async def written(message):
                await send(message)
                seen.written += len(message.get("body", b""))

            await app({**scope, "state": {CONNECTION: seen}}, receive, written)

        return connected

    def entitled(self, listener: Listener, pane: str = OURS) -> httpx.AsyncClient:
        """A client that may ask for that pane."""
        if listener is Listener.LOCAL:
            assert pane == OURS
            return self.client(listener, peer=process(os.getpid()))
        token = OPERATOR_TOKEN if listener is Listener.OPERATOR else self.links[pane]
        return self.client(listener, headers=bearer(token))


async def until(condition) -> None:
    """Wait for what comes about in another task, thread or process."""
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await trio.sleep(0.005)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def world(store="memory://", seats_path=None, limits=None, mechanisms=None, **more):
    """A bridge over a fresh store; further arguments are the supervisor's."""
    dispatched, adapter = Dispatched(), Adapter()
    mechanisms = [FleetSeatMailbox(), HeadSeatOutbox(reply_seconds=5)] if mechanisms is None else mechanisms
    more.setdefault("dispatcher", dispatched)
    async with open_supervisor(store, mechanisms=mechanisms, **more) as supervisor:
        again = seats_path is not None and seats_path.exists()
        seats = Seats(seats_path)
        links = {} if again else {pane: seats.admit(pane) for pane in (OURS, THEIRS)}
        seats.occupy(OURS, os.getpid())
        bridge = Bridge(supervisor, seats, {"plain": adapter}, OPERATOR_TOKEN, HEAD, echo_tool, limits or Limits())
        yield World(bridge, supervisor, seats, dispatched, adapter, links)


@asynccontextmanager
async def served(there: World, folder: Path, grace_seconds=5.0):
    """The world's bridge on real sockets; yields where."""
    addresses = Addresses(("127.0.0.1", 0), ("127.0.0.1", 0), folder / "run" / "local.sock")
    where: list = []
    listening = trio.Event()

    def started(endpoints):
        where.append(endpoints)
        listening.set()

    async def run():
        await serve(there.bridge, addresses, grace_seconds=grace_seconds, started=started)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(20):
            await listening.wait()
        yield where[0]
        there.bridge.stopping.asked.set()
