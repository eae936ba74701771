"""Stores with a history: what panes go through, decided by the pure core and written through a mutation line."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from fencepost.actors.boundary import Boundary, decide_boundary
from fencepost.actors.decision import Decision
from fencepost.actors.incarnation_state import (
    LaunchRequest,
    begin_unattended,
    decide_handshake,
    decide_launch,
    decide_launch_failed,
    decide_retire,
)
from fencepost.actors.intent_events import Plan
from fencepost.actors.intent_state import step
from fencepost.actors.messages import (
    Allow,
    Anchor,
    BaseTransition,
    BlockPayload,
    Capabilities,
    ModelTurn,
    NeedsRecovery,
    Outcome,
    Reconciled,
    ToolBoundary,
)
from fencepost.actors.pane_detection import decide_detect
from fencepost.actors.pane_outcome import decide_outcome
from fencepost.actors.pane_reports import decide_batch_completed, decide_mark_delivered
from fencepost.actors.pane_resolution import decide_discard, decide_rearm, decide_resolve
from fencepost.actors.pane_state import Limits, PaneState
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.records import (
    AdmissionRecord,
    IncarnationRecord,
    IntentRecord,
    Record,
    TranscriptRecord,
    TransitionKind,
)
from fencepost.mailbox.stores.store import open_store

LIMITS = Limits(startup_attempts_max=2)


class World:
    """A line, a clock that ticks with every decision, and ids that count within their kind."""

    def __init__(self, line: MutationLine) -> None:
        self.line = line
        self.now = 1_000
        self.counts: Counter[str] = Counter()

    def mint(self, kind: str) -> str:
        self.counts[kind] += 1
        return f"{kind}-{self.counts[kind]}"


class Pane:
    """One pane; every method is one decision, committed and applied."""

    def __init__(self, world: World, pane_id: str) -> None:
        self.world = world
        self.state = PaneState(pane_id=pane_id)
        self.incarnations: dict[str, IncarnationRecord] = {}
        self.intents: dict[str, IntentRecord] = {}
        self.admissions: dict[tuple[object, ...], AdmissionRecord] = {}
        self.transitions = 0

    async def carry_out(self, decision: Decision) -> Any:
        puts: list[Record] = list(decision.puts)
        events = list(decision.events)
        for intent, event in decision.intent_events:
            taken = step(intent, event, self.world.now)
            puts.extend(taken.puts)
            events.extend(taken.events)
        if puts or events or decision.dead_letters:
            await self.world.line.commit(
                Mutation(label="test.story", puts=tuple(puts), events=tuple(events), dead_letters=decision.dead_letters)
            )
        for record in puts:
            if isinstance(record, IncarnationRecord):
                self.incarnations[record.incarnation_id] = record
            elif isinstance(record, IntentRecord):
                self.intents[record.intent_id] = record
            elif isinstance(record, AdmissionRecord):
                self.admissions[record.key] = record
        self.state = self.state.after(puts)
        self.world.now += 1
        return decision.answer

    @property
    def live_id(self) -> str:
        assert self.state.live is not None
        return self.state.live.incarnation_id

    async def launch(self) -> Any:
        request = LaunchRequest(harness="claude", session_id="session-1", capabilities=Capabilities())
        return await self.carry_out(decide_launch(self.state, request, LIMITS, self.world.now, self.world.mint))

    async def detect(self, trigger_op: str, *, coalesce: bool = False, ambiguous: str | None = None) -> Any:
        self.transitions += 1
        tail = self.state.intents[-1] if self.state.intents else None
        start = tail.to_base if coalesce and tail is not None else f"from-{self.transitions}"
        transition = BaseTransition(
            TransitionKind.PARENT_ADVANCE, start, f"to-{self.transitions}", "op-class", trigger_op, ambiguous
        )
        return await self.carry_out(decide_detect(self.state, transition, self.world.now, self.world.mint))

    async def call(self, turn: int, batch_id: str, startup_delivery_id: str | None = None) -> Any:
        while True:
            known = self.admissions.get((self.live_id, f"turn-{turn}", batch_id))
            boundary = Boundary(
                call=ToolBoundary(
                    self.live_id, ModelTurn(f"turn-{turn}", turn), batch_id, startup_delivery_id=startup_delivery_id
                ),
                speaker=self.state.live,
                admission=known,
                blocked_by=None if known is None or known.intent_id is None else self.intents[known.intent_id],
                limits=LIMITS,
                now=self.world.now,
                mint=self.world.mint,
            )
            decision = decide_boundary(self.state, boundary)
            answer = await self.carry_out(decision)
            if not decision.again:
                return answer

    async def plan(self) -> None:
        assert self.state.head is not None
        event = Plan(planned_op="op-planned", starting_op="op-start")
        await self.carry_out(Decision(intent_events=((self.state.head, event),)))

    async def finish(self, outcome: Outcome) -> Any:
        assert self.state.head is not None
        return await self.carry_out(
            decide_outcome(self.state, self.state.head, outcome, frozenset(), LIMITS, self.world.now, self.world.mint)
        )

    async def prepare(self, **details: Any) -> Any:
        assert self.state.head is not None
        payload = f"{self.state.head.intent_id}: read again\n".encode()
        return await self.finish(Reconciled("op-r", "commit-r", payload, Anchor("change", "commit", "op"), **details))

    async def mark(self) -> Any:
        head = self.state.head
        assert head is not None
        return await self.carry_out(
            decide_mark_delivered(
                self.state,
                self.state.live,
                head,
                intent_id=head.intent_id,
                incarnation_id=self.live_id,
                turn_id=str(head.turn_id),
                batch_id=str(head.batch_id),
                now=self.world.now,
            )
        )

    async def complete(self, turn: int, batch_id: str) -> Any:
        return await self.carry_out(
            decide_batch_completed(
                self.state,
                self.state.live,
                incarnation_id=self.live_id,
                turn_id=f"turn-{turn}",
                batch_id=batch_id,
                now=self.world.now,
            )
        )

    async def retire(self, incarnation_id: str | None = None) -> Any:
        incarnation_id = incarnation_id or self.live_id
        speaker = self.incarnations.get(incarnation_id)
        return await self.carry_out(
            decide_retire(
                self.state, speaker, incarnation_id, "gone", self.world.now, limits=LIMITS, mint=self.world.mint
            )
        )

    async def fail(self) -> Any:
        return await self.carry_out(
            decide_launch_failed(
                self.state, self.state.live, self.live_id, "no", self.world.now, limits=LIMITS, mint=self.world.mint
            )
        )

    async def unattended(self) -> Any:
        return await self.carry_out(begin_unattended(self.state, self.world.now))

    async def ready(self) -> Any:
        live, head = self.state.live, self.state.head
        assert live is not None
        return await self.carry_out(
            decide_handshake(
                self.state,
                live,
                head,
                incarnation_id=live.incarnation_id,
                startup_delivery_id=str(live.startup_delivery_id),
                payload_sha256=str(live.startup_payload_sha256),
                now=self.world.now,
            )
        )

    async def rearm(self) -> Any:
        assert self.state.head is not None
        return await self.carry_out(decide_rearm(self.state, self.state.head.intent_id, self.world.now))

    async def discard(self) -> Any:
        head = self.state.head
        assert head is not None
        return await self.carry_out(decide_discard(self.state, head.intent_id, str(head.approval), self.world.now))

    async def resolve(self) -> Any:
        assert self.state.head is not None
        intent_id = self.state.head.intent_id
        return await self.carry_out(decide_resolve(self.state, intent_id, "looked", "anna", self.world.now))


@asynccontextmanager
async def world(url: str, **options: Any) -> AsyncIterator[World]:
    """A world whose line is open."""
    line = MutationLine(open_store(url), on_committed=lambda _events: None, **options)
    await line.start()
    try:
        yield World(line)
    finally:
        await line.aclose()


async def tell_all(world: World) -> None:
    """Live through everything once.  The panes stay in the states that their names say."""
    await _delivered_softly(world)
    await _delivered_by_restart(world)
    await _exhausted(Pane(world, "exhausted"))
    discarded = Pane(world, "discarded")
    await _exhausted(discarded)
    await discarded.discard()
    await _conflicted(world)
    waiting = Pane(world, "waiting")
    await waiting.launch()
    await waiting.detect("op-w")


async def _delivered_softly(world: World) -> None:
    pane = Pane(world, "soft")
    await pane.launch()
    assert isinstance(await pane.call(1, "batch-0"), Allow)
    await pane.detect("op-1")
    await pane.detect("op-2", coalesce=True)
    await pane.call(2, "batch-1")
    await pane.plan()
    await pane.prepare()
    assert isinstance(await pane.call(2, "batch-1"), BlockPayload)
    await pane.mark()
    await pane.complete(2, "batch-1")
    assert isinstance(await pane.call(3, "batch-2"), Allow)
    row = TranscriptRecord(
        dedup_key="cascade:intent-1", intent_id="intent-1", payload=b"intent-1: read again\n", at=world.now
    )
    await world.line.commit(Mutation(label="test.project", puts=(row,)))
    # The second covers the third, discovers the fourth, and its MarkDelivered is lost.
    await pane.detect("op-3")
    await pane.detect("op-4")
    await pane.call(4, "batch-3")
    found = BaseTransition(TransitionKind.NATIVE_REWRITE, "from-x", "to-x", "op-class", "op-5")
    await pane.prepare(covers=("intent-3",), discovered=(found,))
    await pane.call(4, "batch-3")
    await pane.complete(4, "batch-3")
    # The fourth's first batch completes before there is a payload; the second is shown it.
    await pane.call(5, "batch-4")
    assert pane.intents["intent-2"].delivered_at == pane.intents["intent-2"].consumed_at
    await pane.complete(5, "batch-4")
    await pane.prepare()
    assert isinstance(await pane.call(6, "batch-5"), BlockPayload)
    await pane.mark()
    assert isinstance((await pane.retire("incarnation-of-nobody")).reason, str)


async def _delivered_by_restart(world: World) -> None:
    pane = Pane(world, "restarted")
    await pane.launch()
    await pane.detect("op-1")
    await pane.retire()
    await pane.unattended()
    await pane.prepare()
    await pane.launch()
    await pane.fail()
    await pane.launch()
    await pane.fail()
    await pane.rearm()
    await pane.launch()
    await pane.ready()
    await pane.retire()
    launch = await pane.launch()
    await pane.ready()
    assert launch.startup is not None
    assert isinstance(await pane.call(1, "batch-1", launch.startup.startup_delivery_id), Allow)
    await pane.detect("op-2")
    await pane.call(2, "batch-2")
    await pane.prepare()
    await pane.retire()
    await pane.launch()


async def _exhausted(pane: Pane) -> None:
    await pane.detect("op-1")
    await pane.unattended()
    await pane.prepare()
    for _ in range(2):
        await pane.launch()
        await pane.fail()


async def _conflicted(world: World) -> None:
    pane = Pane(world, "broken")
    await pane.launch()
    await pane.detect("op-1")
    await pane.call(1, "batch-1")
    await pane.complete(1, "batch-1")
    await pane.finish(NeedsRecovery("dirty", details={"files": ["a"]}))
    await pane.resolve()
    await pane.finish(NeedsRecovery("still dirty"))
    pane = Pane(world, "apart")
    await pane.detect("op-1", ambiguous="two parents")
    await pane.detect("op-2")
    await pane.resolve()
    await pane.finish(NeedsRecovery("no workspace"))
    await pane.resolve()


def loosened(path: Path, target: Path) -> Path:
    """A copy of the store without a single constraint, in which anything can be written."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        for (table,) in copy.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            copy.execute(f"CREATE TABLE loose AS SELECT * FROM {table}")
            copy.execute(f"DROP TABLE {table}")
            copy.execute(f"ALTER TABLE loose RENAME TO {table}")
    return target
