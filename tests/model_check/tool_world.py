"""The tool core, in every interleaving of one batch of three: crashes, cancellations, ends from outside and the
retirement of its incarnation anywhere.

As with the intents, nothing in here knows a rule: the steps are the shipped mutations of `tool_writes`, applied to rows
under the stores' own laws (`laws.FOREIGN_KEYS`), and after each of them the tool note's invariants are computed by
hand.  Calls differ in what their tools declare; a restart may find each declaration changed or its tool gone.

Times and revisions matter to no rule but by equality, so they are forgotten after each step, which makes the space
finite.  What runs is not in the rows: it is the set `running`, and a crash empties it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from attrs import evolve

from fencepost.actors.messages import ModelTurn
from fencepost.actors.tool_messages import PlannedCall
from fencepost.actors.tool_plan import plan, request_of
from fencepost.actors.tool_results import Outcome, Progress, aborted, checkpoint_record, error_outcome, interrupted
from fencepost.actors.tool_state import BatchState, Orphan, judge_orphan, to_work_on
from fencepost.actors.tool_writes import admit, cancel, clear_and_replay, finalize, place, settle, stage_synthetic
from fencepost.mailbox.mutation import Live, Mutation
from fencepost.mailbox.records import (
    ArgumentsRecord,
    BatchMode,
    BatchRecord,
    CallRecord,
    CallStatus,
    Checkpoint,
    CheckpointRecord,
    EntryRecord,
    IncarnationRecord,
    MemoRecord,
    OutcomeRecord,
    Record,
    Replay,
    Versioned,
)
from fencepost.mailbox.stores.laws import FOREIGN_KEYS

__all__ = ["Broken", "Found", "State", "explore"]

P, E, R, C = CallStatus.PLANNED, CallStatus.EFFECT_PENDING, CallStatus.OUTCOME_READY, CallStatus.COMPLETED
DECLARED = (Replay.SAFE, Replay.NEVER, Replay.SAFE)
TOOL_ROWS = (BatchRecord, CallRecord, ArgumentsRecord, MemoRecord, CheckpointRecord, OutcomeRecord, EntryRecord)
LIVE = IncarnationRecord(incarnation_id="inc", pane_id="pane", epoch=1, harness="h", launched_at=1)
PROGRESS = Progress([{"type": "text", "text": "half"}])


class Broken(Exception):  # noqa: N818 - what a search finds
    """A law does not hold, or the store refused what the core wanted."""


class State(NamedTuple):
    """The rows, the source positions whose tools run, and whether the incarnation they run for is live."""

    rows: frozenset[Record]
    running: frozenset[int]
    live: bool = True


class Found(NamedTuple):
    """What an exploration saw."""

    states: int
    transitions: int
    ends: int


# -- the durable half --------------------------------------------------------------------------------------------


def rows_of(state: State, kind: type[Record]) -> list[Record]:
    return [row for row in state.rows if isinstance(row, kind)]


def view(state: State) -> BatchState:
    (batch,) = rows_of(state, BatchRecord)
    calls = sorted(rows_of(state, CallRecord), key=lambda call: call.source_index)
    return BatchState.of(batch, calls)


def applied(state: State, mutation: Mutation) -> frozenset[Record]:
    """The rows after a mutation, under the stores' laws and in their order: deletes, then puts."""
    for guard in mutation.guards:
        _require(guard == Live(LIVE.incarnation_id) and state.live, f"{guard!r} does not hold")
    rows = {(type(row), row.key): row for row in state.rows}
    for delete in mutation.deletes:
        old = rows.pop((delete.record_type, delete.key), None)
        if old is not None:
            _require(not list(_children(rows, old)), f"{old!r} is still named")
    for record in mutation.puts:
        if isinstance(record, TOOL_ROWS):
            _put(rows, record)
    return frozenset(_forgotten(row) for row in rows.values())


def _put(rows: dict, record: Record) -> None:
    place_of = (type(record), record.key)
    fresh = not isinstance(record, Versioned) or record.revision == 1
    _require((place_of in rows) is not fresh, f"{record!r} cannot be put there")
    for foreign in FOREIGN_KEYS:
        name = getattr(record, foreign.field, None) if foreign.child is type(record) else None
        if name is not None and foreign.parent in TOOL_ROWS:
            parent = rows.get((foreign.parent, (name,)))
            _require(parent is not None and foreign.holds(record, parent), f"{record!r} has no such parent")
    rows[place_of] = record
    for foreign, child in _children(rows, record):
        _require(foreign.holds(child, record), f"{child!r} is left behind")


def _children(rows: dict, parent: Record) -> Iterator[tuple]:
    for foreign in FOREIGN_KEYS:
        if foreign.parent is type(parent):
            for row in rows.values():
                if type(row) is foreign.child and getattr(row, foreign.field) == parent.key[0]:
                    yield foreign, row


def _forgotten(row: Record) -> Record:
    """The row without what only tells one time or one write from another."""
    return evolve(row, revision=1) if isinstance(row, Versioned) else row


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise Broken(why)


# -- steps -------------------------------------------------------------------------------------------------------


def steps(state: State) -> Iterator[tuple[str, State]]:
    """Every step that is possible in a state, and where it leads."""
    batch = view(state)
    if not batch.open:
        return
    for index in to_work_on(batch):
        call = batch.calls[index]
        if call.status is P:
            yield from _planned_steps(state, batch, call)
        elif index in state.running:
            yield from _running_steps(state, batch, call)
        else:
            yield from _orphan_steps(state, batch, call)
    outcomes = {row.invocation_id: row for row in rows_of(state, OutcomeRecord)}
    placing = place(batch, outcomes, 1)
    if placing is not None:
        yield "place", state._replace(rows=applied(state, placing))
    if not batch.cancelled:
        yield "cancel", state._replace(rows=applied(state, cancel(batch, "why", 1)))
    ended = applied(state, finalize(batch, rows_of(state, MemoRecord), 1))
    yield "finalize", state._replace(rows=ended, running=frozenset())
    if state.running:
        yield "crash", state._replace(running=frozenset())
    if state.live:
        yield "retire", state._replace(live=False)


def _planned_steps(state: State, batch: BatchState, call: CallRecord) -> Iterator[tuple[str, State]]:
    name = f"of call {call.source_index}"
    if batch.cancelled:
        mutation = stage_synthetic(call, aborted(None, 100, started=False), "{}", 1)
        yield f"abort {name}", state._replace(rows=applied(state, mutation))
        return
    (source,) = [row for row in rows_of(state, ArgumentsRecord) if row.invocation_id == call.invocation_id]
    mutation = admit(call, DECLARED[call.source_index], source, "{}", 1, incarnation_id=LIVE.incarnation_id)
    yield from _begun(state, f"admit {name}", call, mutation)
    for terminate in (False, True):
        mutation = stage_synthetic(call, error_outcome("no", terminate=terminate), "{}", 1)
        yield f"block {name}", state._replace(rows=applied(state, mutation))


def _begun(state: State, name: str, call: CallRecord, mutation: Mutation) -> Iterator[tuple[str, State]]:
    """An effect begins, unless the store refuses it; then its batch is cancelled, and that is a step of its own."""
    try:
        rows = applied(state, mutation)
    except Broken:
        _require(not state.live, f"the store refused to {name}")
        return
    _require(state.live, "15: an effect began behind the retirement of its incarnation")
    yield name, state._replace(rows=rows, running=state.running | {call.source_index})


def _left(state: State, call: CallRecord) -> tuple[list[str], bool]:
    memos = [row.name for row in rows_of(state, MemoRecord) if row.invocation_id == call.invocation_id]
    return memos, any(row.invocation_id == call.invocation_id for row in rows_of(state, CheckpointRecord))


def _running_steps(state: State, batch: BatchState, call: CallRecord) -> Iterator[tuple[str, State]]:
    index, (memos, saved) = call.source_index, _left(state, call)
    if not memos:
        memo = MemoRecord(invocation_id=call.invocation_id, name="step/a", value="1", at=1)
        mutation = Mutation(label="batch.memo", puts=(memo, checkpoint_record(call.invocation_id, PROGRESS, 1)))
        yield f"remember and save in call {index}", state._replace(rows=applied(state, mutation))
    outcomes = [Outcome(content=[{"type": "text", "text": "done"}])]
    outcomes.append(aborted(PROGRESS, 100, started=True) if batch.cancelled else evolve(outcomes[0], terminate=True))
    for outcome in outcomes:
        mutation = settle(call, outcome, 1, memos=memos, recovery=False, progress=saved)
        yield f"settle call {index}", state._replace(rows=applied(state, mutation), running=state.running - {index})


def _orphan_steps(state: State, batch: BatchState, call: CallRecord) -> Iterator[tuple[str, State]]:
    index, (memos, saved) = call.source_index, _left(state, call)
    for declared in (*Replay, None):
        fate = judge_orphan(call.replay, declared, cancelled=batch.cancelled)
        if fate is Orphan.REPLAY:
            safe = call.replay is declared is Replay.SAFE
            _require(safe and not batch.cancelled, "2: replayed against its declaration")
            mutation = clear_and_replay(call, "{}", 1, incarnation_id=LIVE.incarnation_id)
            yield from _begun(state, f"replay call {index}", call, mutation)
            continue
        outcome = interrupted(PROGRESS if saved else None, 100)
        text = "".join(str(block["text"]) for block in outcome.content)
        _require(outcome.is_error and "external outcome is unknown" in text, "9: an interruption that does not say so")
        _require(("preceding" in text) is saved, "9: preceding output where there is none, or the other way round")
        mutation = settle(call, outcome, 1, memos=memos, recovery=True)
        yield f"interrupt call {index}", state._replace(rows=applied(state, mutation))


# -- laws --------------------------------------------------------------------------------------------------------


def judge(before: State, step: str, after: State) -> None:
    """The note's invariants, by number, over one step."""
    old, new = view(before), view(after)
    by_id = {call.invocation_id: call for call in new.calls}
    ranks = {P: 0, E: 1, R: 2, C: 3}
    for call in old.calls:
        later = by_id.get(call.invocation_id)
        _require(later is not None or not new.open, f"1: call {call.source_index} lost its invocation id")
        if later is not None:
            _require(ranks[later.status] >= ranks[call.status], f"2: call {call.source_index} went back")
            _require(later.status is not C or call.status is C or step == "place", "5: completed without a placement")
    for index in after.running:
        _require(new.calls[index].status is E, f"2: call {index} runs and is {new.calls[index].status}")
    _judge_rows(new, after, by_id)


def _judge_rows(batch: BatchState, state: State, by_id: dict[str, CallRecord]) -> None:
    places = [call.status for call in batch.calls]
    ready = {name for name, call in by_id.items() if call.status is R}
    done = {name for name, call in by_id.items() if call.status is C}
    _require({row.invocation_id for row in rows_of(state, OutcomeRecord)} == ready, "3: ready calls and their outcomes")
    _require({row.entry_id for row in rows_of(state, EntryRecord)} == done, "11: completed calls and their entries")
    prefix = next((index for index, status in enumerate(places) if status is not C), len(places))
    _require(C not in places[prefix:], "4: completed calls are a prefix")
    if batch.batch.mode is BatchMode.SEQUENTIAL:
        _require(sum(status is not P for status in places[prefix:]) <= 1, "6: one call under way")
    for kind, number in ((MemoRecord, 7), (CheckpointRecord, 8)):
        for row in rows_of(state, kind):
            call = by_id.get(row.invocation_id)
            _require(call is not None, "12: written for a call that there is not")
            _require(
                call.status is E, f"{10 if call.status in {R, C} else number}: {kind.__name__} of a {call.status} call"
            )
    for call in batch.calls:
        if call.status is not E:
            _refused(state, call)
    if not batch.open:
        for kind in (ArgumentsRecord, MemoRecord, CheckpointRecord, OutcomeRecord):
            _require(not rows_of(state, kind), f"14: a closed batch has left {kind.__name__}s")
        _require(set(places) <= {C}, "14: a closed batch has unplaced calls")
        ended = batch.batch.checkpoint is Checkpoint.ENDED
        _require(ended or len(places) == len(DECLARED), "14: a finished batch has lost a call")


def _refused(state: State, call: CallRecord) -> None:
    """12 and 13: a late capability cannot write, whatever it believes."""
    late = (
        MemoRecord(invocation_id=call.invocation_id, name="late", value="1", at=1),
        checkpoint_record(call.invocation_id, PROGRESS, 1),
    )
    for record in late:
        try:
            applied(state, Mutation(label="batch.memo", puts=(record,)))
        except Broken:
            continue
        raise Broken(f"12: a late capability of a {call.status} call wrote a {type(record).__name__}")


# -- the search --------------------------------------------------------------------------------------------------


def first(mode: BatchMode) -> State:
    """A batch of three, just started."""
    ids = iter("ABC")
    calls = [PlannedCall(f"call-{index}", "tool", {}) for index in range(len(DECLARED))]
    request = request_of("op", ModelTurn("turn", 1), "assistant", calls, mode)
    mutation = plan(
        "pane", request, live=LIVE, open_batch=None, latest=None, mode=mode, now=1, mint=lambda _kind: next(ids)
    )
    return State(frozenset(mutation.puts), frozenset())


def explore(mode: BatchMode) -> Found:
    """Visit every state there is, breadth first; raise `Broken`, with the way there, at the first law that fails.

    Also: no dead end.  A state that is open has a step that is no fault.
    """
    start = first(mode)
    came: dict[State, tuple[State, str] | None] = {start: None}
    waiting, transitions, ends = deque([start]), 0, 0
    while waiting:
        state = waiting.popleft()
        good = 0
        try:
            for name, after in steps(state):
                transitions += 1
                good += name not in {"crash", "finalize", "cancel", "retire"}
                if after not in came:
                    judge(state, name, after)
                    came[after] = (state, name)
                    waiting.append(after)
            closed = not view(state).open
            ends += closed
            _require(bool(good) or closed, "a dead end")
        except Broken as broken:
            raise Broken(f"{broken}; after {', '.join(_way(came, state)) or 'nothing'}") from broken
    return Found(len(came), transitions, ends)


def _way(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    way: list[str] = []
    while (step := came[state]) is not None:
        state, name = step
        way.append(name)
    return way[::-1]
