"""Panes, tool calls and asks, measured through the public calls."""

from __future__ import annotations

import time

import trio
from lives import IDS_PER_LIFE, RARELY, TRANSITIONS_PER_LIFE, Liver, Reconciler, ids_made, launched, new_id

from fencepost.actors.messages import Allow, ModelTurn, ToolBoundary
from fencepost.supervisor.runtime import open_supervisor
from fencepost.supervisor.supervisor import Pane


def one_pane(url: str, lives: int) -> list[float]:
    """Seconds of each transition of one pane that lives through one intent after the other."""
    samples: list[float] = []

    fresh = ids_made((lives + 1) * IDS_PER_LIFE)

    async def run() -> None:
        async with open_supervisor(url, reconciler=Reconciler(fresh), options=RARELY) as supervisor:
            warm = await launched(supervisor.pane(new_id()), fresh=fresh)
            await warm.live()
            liver = await launched(supervisor.pane(new_id()), fresh=fresh, samples=samples)
            for _ in range(lives):
                await liver.live()

    trio.run(run)
    return samples


def many_panes(url: str, panes: int, lives: int) -> float:
    """Transitions a second of so many panes that live at the same time."""
    rate = 0.0
    fresh = ids_made(panes * lives * IDS_PER_LIFE)

    async def all_of(liver: Liver) -> None:
        for _ in range(lives):
            await liver.live()

    async def run() -> None:
        nonlocal rate
        livers: list[Liver] = []

        async def launch(pane: Pane) -> None:
            livers.append(await launched(pane, fresh=fresh))

        async with open_supervisor(url, reconciler=Reconciler(fresh), options=RARELY) as supervisor:
            async with trio.open_nursery() as nursery:
                for _ in range(panes):
                    nursery.start_soon(launch, supervisor.pane(new_id()))
            started = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for liver in livers:
                    nursery.start_soon(all_of, liver)
            rate = panes * lives * TRANSITIONS_PER_LIFE / (time.perf_counter() - started)

    trio.run(run)
    return rate


def boundaries(url: str, times: int) -> tuple[list[float], list[float]]:
    """Seconds of each passing tool call: of a batch that was admitted, and of a new one."""
    admitted: list[float] = []
    new: list[float] = []

    async def timed(samples: list[float], pane: Pane, boundary: ToolBoundary) -> None:
        started = time.perf_counter()
        answer = await pane.pre_tool_use(boundary)
        samples.append(time.perf_counter() - started)
        assert isinstance(answer, Allow), answer

    async def run() -> None:
        async with open_supervisor(url, reconciler=Reconciler(new_id), options=RARELY) as supervisor:
            pane = supervisor.pane(new_id())
            incarnation_id = (await pane.launch("bench")).incarnation_id
            for ordinal in range(1, times + 1):
                boundary = ToolBoundary(incarnation_id, ModelTurn(new_id(), ordinal), new_id())
                await timed(new, pane, boundary)
                for _ in range(4):
                    await timed(admitted, pane, boundary)

    trio.run(run)
    return admitted, new


def asks(times: int) -> list[float]:
    """Seconds of each ask of an actor that writes nothing."""
    samples: list[float] = []

    async def run() -> None:
        async with open_supervisor("memory://", options=RARELY) as supervisor:
            pane = supervisor.pane(new_id())
            await pane.sync_status()
            for _ in range(times):
                started = time.perf_counter()
                await pane.sync_status()
                samples.append(time.perf_counter() - started)

    trio.run(run)
    return samples
