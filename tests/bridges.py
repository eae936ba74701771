"""Stand-ins for what a bridge brings along, and short words for what its harnesses do."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import trio

from fencepost.supervisor import (
    Anchor,
    BaseTransition,
    Capabilities,
    Decision,
    Diverged,
    IncarnationView,
    Launch,
    ModelTurn,
    NeedsRecovery,
    Pane,
    Reconciled,
    ToolBoundary,
    TransitionKind,
)

Outcome = Reconciled | NeedsRecovery | Diverged


class Workspace:
    """A Reconciler over a pretended workspace; counts what was really mutated.

    `outcomes` are handed out one an attempt, exceptions are raised; afterwards it reconciles truthfully.  A `gate`
    holds every attempt until it is set; `started` is set when an attempt begins.
    """

    def __init__(self, *outcomes: Outcome | Exception, gate: trio.Event | None = None) -> None:
        self.outcomes = list(outcomes)
        self.gate = gate
        self.started = trio.Event()
        self.attempts: list[tuple[str, bool]] = []
        self.mutated: dict[str, int] = {}

    async def reconcile(self, attempt) -> Outcome:
        self.attempts.append((attempt.intent.intent_id, attempt.resumed))
        self.started.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.outcomes:
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        return self.result(attempt.intent.intent_id, attempt.intent.to_base)

    def result(self, intent_id: str, to_base: str) -> Reconciled:
        # A probe finds an earlier attempt's work: the files of one intent are rewritten once.
        self.mutated.setdefault(intent_id, 1)
        return reconciled(to_base)


def payload_of(to_base: str) -> bytes:
    return f"The files moved to {to_base}: ünïcode, and\na second line.".encode()


def reconciled(to_base: str, payload: bytes | None = None, **more) -> Reconciled:
    return Reconciled(
        result_op=f"op-{to_base}",
        workspace_commit=f"commit-{to_base}",
        payload=payload_of(to_base) if payload is None else payload,
        anchor=Anchor(f"change-{to_base}", f"commit-{to_base}", f"op-{to_base}"),
        **more,
    )


class Processes:
    """A Launcher over pretended processes; `started` and `stopped` tell the order of things.

    `on_start` runs inside `start`; failures are raised by the next `start` or `stop`.
    """

    def __init__(self, on_start: Callable[[Launch], Awaitable[None]] | None = None) -> None:
        self.on_start = on_start
        self.log: list[tuple[str, str]] = []
        self.launches: list[Launch] = []
        self.start_failures: list[Exception] = []
        self.stop_failures: list[Exception] = []
        self.changed = trio.Event()

    async def stop(self, incarnation: IncarnationView) -> None:
        if self.stop_failures:
            raise self.stop_failures.pop(0)
        self._note("stop", incarnation.incarnation_id)

    async def start(self, launch: Launch) -> None:
        self._note("start", launch.incarnation_id)
        self.launches.append(launch)
        if self.start_failures:
            raise self.start_failures.pop(0)
        if self.on_start is not None:
            await self.on_start(launch)
        self.changed.set()
        self.changed = trio.Event()

    def _note(self, what: str, incarnation_id: str) -> None:
        self.log.append((what, incarnation_id))

    async def launched(self, count: int) -> Launch:
        """Wait for the `count`th start to have come to its end."""
        while len(self.launches) < count:
            await self.changed.wait()
        return self.launches[count - 1]


def moved(from_base: str, to_base: str, **more) -> BaseTransition:
    return BaseTransition(
        TransitionKind.PARENT_ADVANCE,
        from_base,
        to_base,
        classification_op=f"view-{to_base}",
        trigger_op=f"trigger-{to_base}",
        **more,
    )


class Harness:
    """One incarnation of a harness, as its hooks speak."""

    def __init__(self, pane: Pane, launch: Launch) -> None:
        self.pane = pane
        self.launch = launch
        self.incarnation_id = launch.incarnation_id

    @classmethod
    async def start(cls, pane: Pane, **capabilities) -> Harness:
        return cls(pane, await pane.launch("claude-code", capabilities=Capabilities(**capabilities)))

    async def call(self, turn: int | None, batch: str, *, echo: str | None = None, wait=None, **more) -> Decision:
        at = None if turn is None else ModelTurn(f"turn-{turn}", turn)
        boundary = ToolBoundary(self.incarnation_id, at, batch, startup_delivery_id=echo, **more)
        return await self.pane.pre_tool_use(boundary, wait_seconds=wait)

    async def batch(self, turn: int, batch: str, calls: int) -> list[Decision]:
        """All calls of a batch at once, as a harness sends them."""
        decisions: list[Decision] = []

        async def one() -> None:
            decisions.append(await self.call(turn, batch))

        async with trio.open_nursery() as nursery:
            for _ in range(calls):
                nursery.start_soon(one)
        return decisions

    async def delivered(self, intent_id: str, turn: int, batch: str):
        return await self.pane.mark_delivered(intent_id, self.incarnation_id, f"turn-{turn}", batch)

    async def completed(self, turn: int, batch: str):
        return await self.pane.post_tool_batch(self.incarnation_id, f"turn-{turn}", batch)

    async def ready(self):
        startup = self.launch.startup
        assert startup is not None
        digest = hashlib.sha256(startup.payload).hexdigest()
        return await self.pane.startup_ready(self.incarnation_id, startup.startup_delivery_id, digest)

    @property
    def echo(self) -> str:
        assert self.launch.startup is not None
        return self.launch.startup.startup_delivery_id
