"""What the runtime costs over what it could cost at best, measured side by side on one disk.

Theory of operation
===================

A figure means nothing without its floor, and a floor nothing if it was measured on another disk or at another time.
So every figure here is a ratio of two things measured in turns, several rounds of each, and the median of the rounds
is what counts:

    a transition of one pane           one commit of one small row by `sqlite3` alone (WAL, synchronous=FULL)
    transitions of many panes at once  the same rows written by `sqlite3` alone, in one thread, 64 mutations a commit
    an `ask` that writes nothing       a bare round trip over two trio memory channels

"The same rows" are recorded, not imitated: a runtime lives through a few intents while every statement that changed a
row is taped; the tape is then replayed for as many panes as the subject has, each pane, intent and operation with ids
and payloads of its own, so that no two runs write the same bytes.

One intent's life, which everything here is made of, is ten transitions, and so ten mutations:

    detect → (tool call) bind → plan → prepare → offer → mark delivered → [project] → batch complete
           → (tool call of the next turn) acknowledge → admit

A call that makes several transitions counts as so many, each with its share of the call's time.  The projection into
the transcript is the runtime's own, made beside the calls; it lies in front of the batch's completion, which therefore
counts as two.
"""

from __future__ import annotations

import gc
import itertools
import json
import re
import secrets
import shutil
import sqlite3
import sys
import tempfile
import time
import tracemalloc
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, Self, cast
from unittest import mock

import click
import trio
from attrs import field, frozen

from fencepost.actors.messages import (
    Allow,
    Anchor,
    BaseTransition,
    BlockPayload,
    ModelTurn,
    Reconciled,
    ToolBoundary,
)
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.records import IncarnationRecord, IntentRecord, IntentState, TransitionKind, TriggerRecord
from fencepost.mailbox.stores.sqlite import schema_text
from fencepost.mailbox.stores.store import open_store
from fencepost.supervisor.chaos import Chaos
from fencepost.supervisor.options import Options
from fencepost.supervisor.runtime import open_supervisor
from fencepost.supervisor.supervisor import Pane

BUILD: Final = Path(__file__).resolve().parent.parent / "build"
TRANSITIONS_PER_LIFE: Final = 10
IDS_PER_LIFE: Final = 16
MUTATIONS_PER_COMMIT: Final = 64
SPREAD_MAX: Final = 1.5
PAYLOAD_BYTES: Final = 512
RARELY: Final = Options(idle_seconds=3600.0)
"""Nobody falls asleep while it is measured."""


# -- sizes -------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Sizes:
    """How much of everything one run measures."""

    rounds: int = 7
    raw_commits: int = 200
    lives_one: int = 20
    """Lives of the single pane in each round."""
    lives_many: int = 4
    lives_most: int = 2
    boundaries: int = 200
    """Tool calls in each round."""
    asks: int = 2_000
    stored_panes: int = 10_000
    unresolved: int = 1_000
    memory_panes: int = 10_000


QUICK: Final = Sizes(
    rounds=1,
    raw_commits=40,
    lives_one=3,
    lives_many=1,
    lives_most=1,
    boundaries=40,
    asks=200,
    stored_panes=1_000,
    unresolved=100,
    memory_panes=500,
)


# -- one intent's life -------------------------------------------------------------------------------------------


def new_id() -> str:
    """Return a fresh id."""
    return str(uuid.uuid4())


def ids_made(count: int) -> Callable[[], str]:
    """Return what hands out so many fresh ids; making them is no cost of the runtime's."""
    return iter([new_id() for _ in range(count)]).__next__


def new_payload(fresh: Callable[[], str]) -> bytes:
    """Return a payload like no other."""
    head = f"The base moved ({fresh()}). Read these files again: "
    return (head + secrets.token_hex(PAYLOAD_BYTES // 2))[:PAYLOAD_BYTES].encode()


@frozen
class Reconciler:
    """Answers at once; what a real one does to files is not the runtime's cost."""

    fresh: Callable[[], str]

    async def reconcile(self, attempt: Any) -> Reconciled:
        fresh = self.fresh
        await attempt.plan(fresh(), fresh())
        return Reconciled(fresh(), fresh(), new_payload(fresh), Anchor(fresh(), fresh(), fresh()))


@frozen
class Liver:
    """Lives through one pane's intents, one after the other."""

    pane: Pane
    incarnation_id: str
    fresh: Callable[[], str]
    samples: list[float] | None = None
    """Seconds of each transition, in order, if they are wanted."""
    turns: Iterator[int] = field(factory=lambda: itertools.count(1))

    async def live(self) -> None:
        """One intent from its detection to its acknowledgement, and the admission of the batch that proved it."""
        fresh, pane, incarnation_id = self.fresh, self.pane, self.incarnation_id
        turn = ModelTurn(fresh(), next(self.turns))
        later = ModelTurn(fresh(), next(self.turns))
        blocked, passed = fresh(), fresh()
        moved = BaseTransition(TransitionKind.PARENT_ADVANCE, fresh(), fresh(), fresh(), fresh())
        detected = await self._timed(1, pane.detect, moved)
        got = await self._timed(4, pane.pre_tool_use, ToolBoundary(incarnation_id, turn, blocked))
        assert isinstance(got, BlockPayload), got
        await self._timed(1, pane.mark_delivered, detected.intent_id, incarnation_id, turn.id, blocked)
        await self._timed(2, pane.post_tool_batch, incarnation_id, turn.id, blocked)
        got = await self._timed(2, pane.pre_tool_use, ToolBoundary(incarnation_id, later, passed))
        assert isinstance(got, Allow), got

    async def _timed(self, transitions: int, call: Callable[..., Any], *arguments: object) -> Any:
        started = time.perf_counter()
        answer = await call(*arguments)
        if self.samples is not None:
            share = (time.perf_counter() - started) / transitions
            self.samples.extend([share] * transitions)
        return answer


async def launched(pane: Pane, **more: Any) -> Liver:
    """Return somebody to live through the intents of a freshly launched `pane`."""
    return Liver(pane, (await pane.launch("bench")).incarnation_id, **more)


# -- the tape: which rows a life writes ---------------------------------------------------------------------------

MARK: Final = "fe9cefe9"
MARKED: Final = re.compile(MARK + r"-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""An id that was made while the tape ran; each replay puts one of its own in its place."""


def marked_id(_kind: str = "") -> str:
    """Return a fresh id that can be told apart on the tape."""
    return MARK + str(uuid.uuid4())[8:]


class MarkedIds:
    """An IdSource of marked ids."""

    def new_id(self, kind: str) -> str:
        return marked_id(kind)


@frozen
class Statement:
    """One row written: the text, its parameters, and whether it came in an executemany."""

    sql: str
    parameters: tuple[Any, ...]
    many: bool

    def renamed(self, names: dict[str, str], event_seqs: Iterator[int]) -> Statement:
        """The same row of another pane."""
        parameters = tuple(_renamed(value, names) for value in self.parameters)
        if self.many and "INTO events" in self.sql:
            parameters = (next(event_seqs), *parameters[1:])
        return Statement(self.sql, parameters, self.many)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    def other(match: re.Match[str]) -> str:
        return names.get(match[0]) or names.setdefault(match[0], str(uuid.uuid4()))

    if isinstance(value, str):
        return MARKED.sub(other, value) if MARK in value else value
    if isinstance(value, bytes):
        return MARKED.sub(other, value.decode()).encode()
    return value


def taping(tape: list[list[Statement]]) -> type[sqlite3.Connection]:
    """Return a connection class that adds to `tape` a list for each transaction, of what changed a row in it."""

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = (), /) -> Self:
            super().execute(sql, parameters)
            if sql.startswith("BEGIN"):
                tape.append([])
            elif sql.startswith(("INSERT", "UPDATE", "DELETE")) and self.rowcount > 0:
                tape[-1].append(Statement(sql, tuple(parameters), many=False))
            return self

        def executemany(self, sql: str, rows: Iterable[Any], /) -> Self:
            listed = [tuple(row) for row in rows]
            tape[-1].extend(Statement(sql, row, many=True) for row in listed)
            super().executemany(sql, listed)
            return self

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    return Connection


@frozen
class Tape:
    """The mutations of one pane: its launch, and those of each of its lives."""

    launch: list[Statement]
    lives: list[list[Statement]]

    def for_panes(self, panes: int) -> tuple[list[list[Statement]], list[list[Statement]]]:
        """The launches and the lives of so many panes, all of them at once, with ids of their own."""
        names: list[dict[str, str]] = [{} for _ in range(panes)]
        seqs = itertools.count(1)

        def again(mutation: list[Statement]) -> list[list[Statement]]:
            return [[statement.renamed(named, seqs) for statement in mutation] for named in names]

        return again(self.launch), [one for mutation in self.lives for one in again(mutation)]


def record_tape(folder: Path, lives: int) -> Tape:
    """Live through some intents with every mutation in a transaction of its own, and tape what is written."""
    tape: list[list[Statement]] = []

    async def run() -> None:
        url = f"sqlite:///{folder / 'tape.db'}"
        # With crash points no two mutations share a transaction, and nobody depends on who was faster.
        async with open_supervisor(
            url, reconciler=Reconciler(marked_id), ids=MarkedIds(), chaos=Chaos(), options=RARELY
        ) as supervisor:
            liver = await launched(supervisor.pane(marked_id()), fresh=marked_id)
            for _ in range(lives):
                await liver.live()

    with mock.patch.object(sqlite3, "connect", _with_factory(sqlite3.connect, taping(tape))):
        trio.run(run)
    launch, *rest = [mutation for mutation in tape if mutation]
    assert len(rest) == lives * TRANSITIONS_PER_LIFE, f"a life is {len(rest) / lives} mutations"
    return Tape(launch, rest)


def _with_factory(connect: Callable[..., Any], factory: type[sqlite3.Connection]) -> Callable[..., Any]:
    return lambda *arguments, **more: connect(*arguments, **more, factory=factory)


# -- the floor ---------------------------------------------------------------------------------------------------


@contextmanager
def raw_store(path: Path) -> Generator[sqlite3.Connection]:
    """A new store of our schema, without a runtime."""
    with closing(sqlite3.connect(path, isolation_level=None, cached_statements=512)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript(f"BEGIN; {schema_text()}; COMMIT")
        yield connection


def raw_single_commits(folder: Path, commits: int) -> list[float]:
    """Seconds of each commit of one small row."""
    samples = []
    with closing(sqlite3.connect(folder / "single.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS rows (id TEXT PRIMARY KEY, at INTEGER, payload TEXT)")
        for _ in range(commits):
            row = (new_id(), time.time_ns(), secrets.token_hex(64))
            started = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO rows VALUES (?, ?, ?)", row)
            connection.execute("COMMIT")
            samples.append(time.perf_counter() - started)
    return samples


def raw_same_rows(folder: Path, tape: Tape, panes: int, per_commit: int = MUTATIONS_PER_COMMIT) -> list[float]:
    """Seconds of each commit of the rows that so many panes write, `per_commit` mutations in each."""
    launches, lives = tape.for_panes(panes)
    samples = []
    with raw_store(folder / f"same-{new_id()}.db") as connection:
        _write(connection, launches)
        for begin in range(0, len(lives), per_commit):
            chunk = lives[begin : begin + per_commit]
            started = time.perf_counter()
            _write(connection, chunk)
            samples.append(time.perf_counter() - started)
    return samples


def _write(connection: sqlite3.Connection, mutations: Sequence[list[Statement]]) -> None:
    """One transaction; what the store inserts together (events) is inserted together here."""
    together: dict[str, list[tuple[Any, ...]]] = {}
    execute = connection.cursor().execute
    execute("BEGIN IMMEDIATE")
    for mutation in mutations:
        for statement in mutation:
            if statement.many:
                together.setdefault(statement.sql, []).append(statement.parameters)
            else:
                execute(statement.sql, statement.parameters)
    for sql, rows in together.items():
        connection.executemany(sql, rows)
    execute("COMMIT")


def channel_round_trips(times: int) -> list[float]:
    """Seconds of each round trip from one task to another and back, over trio's memory channels."""
    samples: list[float] = []

    async def echo(receive: trio.MemoryReceiveChannel[object], send: trio.MemorySendChannel[object]) -> None:
        async with receive, send:
            async for value in receive:
                await send.send(value)

    async def run() -> None:
        there, there_receive = trio.open_memory_channel[object](1)
        back_send, back = trio.open_memory_channel[object](1)
        async with trio.open_nursery() as nursery, there, back:
            nursery.start_soon(echo, there_receive, back_send)
            for _ in range(times):
                started = time.perf_counter()
                await there.send(None)
                await back.receive()
                samples.append(time.perf_counter() - started)
            nursery.cancel_scope.cancel()

    trio.run(run)
    return samples


# -- the subjects ------------------------------------------------------------------------------------------------


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


# -- a large store ------------------------------------------------------------------------------------------------


def make_large_store(url: str, panes: int, unresolved: int) -> list[str]:
    """Make a store of `panes` launched panes; the first `unresolved` of them have an intent that is reconciling.

    That is the state that asks most of whoever opens the store.  Returns the panes' ids.
    """
    pane_ids = [new_id() for _ in range(panes)]

    async def run() -> None:
        line = MutationLine(open_store(url), on_committed=lambda _events: None)
        await line.start()
        async with trio.open_nursery() as nursery:
            for number, pane_id in enumerate(pane_ids):
                nursery.start_soon(line.commit, _stored_pane(pane_id, reconciling=number < unresolved))
        await line.aclose()

    trio.run(run)
    return pane_ids


def _stored_pane(pane_id: str, *, reconciling: bool) -> Mutation:
    at = time.time_ns()
    incarnation = IncarnationRecord(
        incarnation_id=new_id(), pane_id=pane_id, epoch=1, harness="bench", session_id=new_id(), launched_at=at
    )
    if not reconciling:
        return Mutation(label="bench.pane", puts=(incarnation,))
    intent = IntentRecord(
        intent_id=new_id(),
        pane_id=pane_id,
        seq=1,
        kind=TransitionKind.PARENT_ADVANCE,
        from_base=new_id(),
        to_base=new_id(),
        classification_op=new_id(),
        detected_at=at,
        state=IntentState.RECONCILING,
    )
    trigger = TriggerRecord(pane_id=pane_id, operation_id=new_id(), intent_id=intent.intent_id, position=0, at=at)
    return Mutation(label="bench.pane", puts=(incarnation, intent, trigger))


def open_large_store(url: str, unresolved: int) -> tuple[float, float]:
    """Seconds until a large store is open, and until every interrupted reconciliation of it was taken up again."""
    opened = resumed = 0.0

    async def run() -> None:
        nonlocal opened, resumed
        waiting = unresolved
        everybody = trio.Event()

        class Waiting:
            async def reconcile(self, attempt: object) -> Reconciled:  # noqa: ARG002 - the port's name
                nonlocal waiting
                waiting -= 1
                if waiting == 0:
                    everybody.set()
                await trio.sleep_forever()
                raise AssertionError

        gc.collect()
        started = time.perf_counter()
        async with open_supervisor(url, reconciler=Waiting()):
            opened = time.perf_counter() - started
            await everybody.wait()
            resumed = time.perf_counter() - started

    trio.run(run)
    return opened, resumed


def bytes_per_pane(url: str, pane_ids: Sequence[str]) -> tuple[float, float]:
    """Bytes that each addressed pane holds once it is asleep, and while it is awake."""
    asleep = awake = 0.0
    warm, pane_ids = pane_ids[:100], pane_ids[100:]

    async def ask_all(supervisor: Any, panes: Sequence[str]) -> None:
        for pane_id in panes:
            await supervisor.pane(pane_id).sync_status()

    async def until_asleep(supervisor: Any) -> None:
        while (await supervisor.status()).awake:  # noqa: ASYNC110 - nobody is told who fell asleep
            await trio.sleep(0.05)

    async def run_asleep() -> None:
        nonlocal asleep
        async with open_supervisor(url, options=Options(idle_seconds=0.2)) as supervisor:
            await ask_all(supervisor, warm)
            await until_asleep(supervisor)
            before = _traced()
            await ask_all(supervisor, pane_ids)
            await until_asleep(supervisor)
            asleep = (_traced() - before) / len(pane_ids)

    async def run_awake() -> None:
        nonlocal awake
        async with open_supervisor(url, options=RARELY) as supervisor:
            await ask_all(supervisor, warm)
            before = _traced()
            await ask_all(supervisor, pane_ids)
            awake = (_traced() - before) / len(pane_ids)

    tracemalloc.start()
    try:
        trio.run(run_asleep)
        trio.run(run_awake)
    finally:
        tracemalloc.stop()
    return asleep, awake


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


# -- figures -------------------------------------------------------------------------------------------------------


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the value that `share` of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class Report:
    """Prints figures as they come and keeps them for the file."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    def heading(self, text: str) -> None:
        click.echo(f"\n{text}")

    def line(self, name: str, value: str, note: str = "") -> None:
        click.echo(f"  {name:<44} {value:>14}  {note}".rstrip())

    def keep(self, **figures: float) -> None:
        self.figures.update({name: round(value, 6) for name, value in figures.items()})

    def times(self, name: str, key: str, samples: Sequence[float], ratio: float | None = None) -> None:
        """A latency in microseconds, as median and 99th percentile, and over its floor."""
        p50, p99 = percentile(samples, 0.5) * 1e6, percentile(samples, 0.99) * 1e6
        self.keep(**{f"{key}_p50_us": p50, f"{key}_p99_us": p99})
        self.line(name, f"{p50:,.1f} µs", f"p99 {p99:,.1f} µs" + ("" if ratio is None else f"   {ratio:.2f} × floor"))

    def steadiness(self, key: str, floors: Sequence[float]) -> None:
        """How far the floor moved between rounds: on a disk that others use, a ratio to it says little."""
        spread = max(floors) / min(floors)
        self.keep(**{f"{key}_spread": spread})
        if spread > SPREAD_MAX:
            self.line("", "unsteady", f"the floor moved by {spread:.1f} × between rounds; measure on an idle machine")

    def rate(self, name: str, key: str, rate: float, ratio: float | None = None) -> None:
        """A rate of transitions, and as a fraction of its floor's."""
        self.keep(**{f"{key}_per_second": rate})
        self.line(name, f"{rate:,.0f} /s", "" if ratio is None else f"{ratio:.2f} of the floor")


class Bench:
    """All measurements, over one folder."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self.report = Report()

    def _url(self) -> str:
        return f"sqlite:///{self._folder / f'{new_id()}.db'}"

    def _rounds(self, what: str) -> Iterator[int]:
        for number in range(1, self._sizes.rounds + 1):
            click.echo(f"{what}: round {number} of {self._sizes.rounds}", err=True)
            gc.collect()
            yield number

    def run(self) -> dict[str, float]:
        click.echo(f"measuring in {self._folder}", err=True)
        tape = record_tape(self._folder, lives=max(self._sizes.lives_many, self._sizes.lives_most))
        self.single(tape)
        self.many("panes64", tape, 64, self._sizes.lives_many)
        self.many("panes512", tape, 512, self._sizes.lives_most)
        self.boundaries()
        self.ask()
        self.large_store()
        return self.report.figures

    def single(self, tape: Tape) -> None:
        """(a) One pane, one transition at a time."""
        raw: list[float] = []
        same: list[float] = []
        subject: list[float] = []
        medians, ratios = [], []
        for _ in self._rounds("one pane"):
            floor = raw_single_commits(self._folder, self._sizes.raw_commits)
            same += raw_same_rows(self._folder, tape, 4, per_commit=1)
            got = one_pane(self._url(), self._sizes.lives_one)
            medians.append(median(floor))
            ratios.append(median(got) / medians[-1])
            raw += floor
            subject += got
        report = self.report
        report.heading("(a) one pane, whole lives of intents, one transition at a time")
        report.times("floor: raw sqlite3, one row, one commit", "raw_commit", raw)
        report.times("the same rows, raw, one mutation a commit", "raw_same_rows_single", same)
        report.times("a transition", "single", subject, median(ratios))
        report.steadiness("raw_commit", medians)
        report.keep(
            single_p50_over_raw=median(ratios),
            single_p99_over_raw=percentile(subject, 0.99) / percentile(raw, 0.99),
            single_p50_over_same_rows=median(subject) / median(same),
        )

    def many(self, key: str, tape: Tape, panes: int, lives: int) -> None:
        """(b), (c) Many panes at once."""
        floors, rates, ratios = [], [], []
        part = Tape(tape.launch, tape.lives[: lives * TRANSITIONS_PER_LIFE])
        for _ in self._rounds(f"{panes} panes"):
            floor = panes * len(part.lives) / sum(raw_same_rows(self._folder, part, panes))
            rate = many_panes(self._url(), panes, lives)
            floors.append(floor)
            rates.append(rate)
            ratios.append(rate / floor)
        report = self.report
        report.heading(f"({'b' if panes == 64 else 'c'}) {panes} panes at once")
        report.rate("floor: the same rows, raw, 64 a commit", f"{key}_same_rows", median(floors))
        report.rate("transitions", key, median(rates), median(ratios))
        report.keep(**{f"{key}_over_same_rows": median(ratios)})

    def boundaries(self) -> None:
        """(d) Tool calls that pass."""
        admitted: list[float] = []
        new: list[float] = []
        raw: list[float] = []
        medians, ratios = [], []
        for _ in self._rounds("passing tool calls"):
            floor = raw_single_commits(self._folder, self._sizes.raw_commits)
            again, first = boundaries(self._url(), self._sizes.boundaries)
            medians.append(median(floor))
            ratios.append(median(first) / medians[-1])
            admitted += again
            new += first
            raw += floor
        report = self.report
        report.heading("(d) pre_tool_use that passes")
        report.times("on a batch already admitted (no commit)", "admitted", admitted)
        report.times("floor: raw sqlite3, one row, one commit", "boundary_raw_commit", raw)
        report.times("on a new batch", "new_batch", new, median(ratios))
        report.steadiness("boundary_raw_commit", medians)
        report.keep(new_batch_p50_over_raw=median(ratios))

    def ask(self) -> None:
        """(g) An ask that writes nothing."""
        floors: list[float] = []
        subject: list[float] = []
        ratios = []
        for _ in self._rounds("asks"):
            floor = channel_round_trips(self._sizes.asks)
            got = asks(self._sizes.asks)
            ratios.append(median(got) / median(floor))
            floors += floor
            subject += got
        report = self.report
        report.heading("(g) an ask of an actor that writes nothing")
        report.times("floor: a round trip over trio channels", "channel", floors)
        report.times("pane.sync_status()", "ask", subject, median(ratios))
        report.keep(ask_over_channel=median(ratios))

    def large_store(self) -> None:
        """(e), (f) A large store: the time to open it, and what its panes weigh."""
        panes, unresolved = self._sizes.stored_panes, self._sizes.unresolved
        report = self.report
        click.echo(f"a store of {panes} panes", err=True)
        url = self._url()
        pane_ids = make_large_store(url, panes, unresolved)
        times = [open_large_store(url, unresolved) for _ in self._rounds("opening it")]
        opened, resumed = (median(column) for column in zip(*times, strict=True))
        report.heading(f"(e) a store of {panes:,} panes, {unresolved:,} of them with an unresolved intent")
        report.line("open", f"{opened:.3f} s")
        report.line("every reconciliation taken up again", f"{resumed:.3f} s")
        report.keep(open_10k_seconds=opened, open_10k_resumed_seconds=resumed, open_panes=panes)

        addressed = pane_ids[-self._sizes.memory_panes :]
        click.echo(f"memory of {len(addressed)} panes", err=True)
        asleep, awake = bytes_per_pane(url, addressed)
        report.heading(f"(f) memory of {len(addressed):,} addressed panes")
        report.line("asleep", f"{asleep:,.0f} B", "each")
        report.line("awake", f"{awake:,.0f} B", "each")
        report.keep(bytes_per_sleeping_pane=asleep, bytes_per_awake_pane=awake)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="A smoke run of seconds; its figures mean little.")
@click.option(
    "--dir",
    "parent",
    type=click.Path(file_okay=False, path_type=Path),
    default=BUILD,
    show_default="build",
    help="Where to make the folder for the stores; its disk is what is measured.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=BUILD / "bench.json",
    show_default="build/bench.json",
    help="Where the figures go as JSON.",
)
def main(quick: bool, parent: Path, output: Path) -> None:
    """Measure the runtime beside the floor of what it could cost, on one disk in one run.

    Prints each figure, and its ratio to the floor, to stdout; progress goes to stderr.
    """
    parent.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        figures = Bench(folder, QUICK if quick else Sizes()).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    click.echo(f"\nwritten to {output}", err=True)


if __name__ == "__main__":
    sys.exit(cast("Any", main)())
