"""Rows drawn over time: an intent's journey, a batch's completion against its order, a pane's processes.  Pure.

What a row no longer holds (an acknowledged intent keeps no proof) is taken from the events, as far as they are kept.
Places on a line are percent of its width, so that the pages need no script and no style of their own to draw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen

from fencepost.mailbox.records import (
    BatchRecord,
    CallRecord,
    DeliveryMode,
    EntryRecord,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    OutcomeRecord,
)
from fencepost.supervisor import Event

__all__ = ["Bar", "BatchChart", "CallBar", "Step", "batch_chart", "process_bars", "steps"]


@frozen
class Step:
    """One step of an intent's journey."""

    name: str
    at: int | None
    state: str
    """`done`, `now`, `ahead`, `blocked`; `skipped` where it was not needed or nobody wrote it down."""
    proof: str
    """What it rests on, or what it would."""


_PROVED: Final = ("intent.reconciling", "intent.batch_completed")
"""The events of the steps whose times are parts of a proof, which a resolved intent does not keep."""


def steps(intent: IntentRecord, events: Iterable[Event]) -> list[Step]:
    """The journey of an intent: what is behind it, where it stands, what is ahead."""
    told: dict[str, int] = {}
    for event in events:
        if event.kind in _PROVED and event.data.get("intent_id") == intent.intent_id:
            told.setdefault(event.kind, event.at)
    times = _times(intent, told)
    reached = [name for name, at in times.items() if at is not None]
    last = reached[-1] if reached else "detected"
    order = list(times)
    found = [
        Step(
            _NAMES[name],
            at,
            _state(intent, name, at, last, is_behind=order.index(name) < order.index(last)),
            _proof(intent, name),
        )
        for name, at in times.items()
        if not _is_foreign(intent, name, at)
    ]
    place = next((place for place, step in enumerate(found, 1) if step.state == "now"), len(found))
    return found[:place] + _ends(intent) + found[place:]


_NAMES: Final = {
    "detected": "Detected",
    "reconciling": "Reconciling",
    "planned": "Planned",
    "materialized": "Materialized",
    "offered": "Offered",
    "delivered": "Delivered",
    "completed": "Batch completed",
    "handshake": "First input accepted",
    "acknowledged": "Acknowledged",
}


def _times(intent: IntentRecord, told: Mapping[str, int]) -> dict[str, int | None]:
    """When each step was reached, in the order of the steps.  A plan has no time of its own."""
    reconciling, completed = (told.get(kind) for kind in _PROVED)
    return {
        "detected": intent.detected_at,
        "reconciling": intent.bound_at or reconciling,
        "planned": None,
        "materialized": intent.prepared_at,
        "offered": intent.payload_offered_at,
        "delivered": intent.delivered_at,
        "completed": intent.batch_completed_at or completed,
        "handshake": intent.handshake_at,
        "acknowledged": intent.acknowledged_at,
    }


def _is_foreign(intent: IntentRecord, name: str, at: int | None) -> bool:
    """Whether a step belongs to the other way of delivery, or to none that is known any more."""
    if at is not None:
        return False
    restart = intent.mode is DeliveryMode.RESTART_STARTUP
    if intent.state is IntentState.SUPERSEDED:
        return name != "detected"
    if intent.resolved:
        return name in {"offered", "completed", "handshake", "planned"}
    return (name in {"offered", "completed"} and restart) or (name == "handshake" and not restart)


def _state(intent: IntentRecord, name: str, at: int | None, last: str, *, is_behind: bool) -> str:
    if name == "planned" and intent.planned_op is not None:
        return "done"
    if at is None:
        return "skipped" if is_behind else "ahead"
    return "now" if name == last and not intent.resolved else "done"


def _proof(intent: IntentRecord, name: str) -> str:
    bound = f"turn {intent.turn_id}, batch {intent.batch_id}" if intent.batch_id is not None else None
    restart = intent.mode is DeliveryMode.RESTART_STARTUP
    match name:
        case "detected":
            return f"The base moved from {intent.from_base} to {intent.to_base}."
        case "reconciling":
            return f"Bound to {bound}: its calls are held." if bound else "The workspace is brought onto the target."
        case "planned":
            if intent.planned_op is None:
                return "The exact operation is written down before it runs."
            return f"Operation {intent.planned_op}, from {intent.starting_op}."
        case "materialized":
            if intent.result_op is None:
                return "Result and payload are saved in one commit."
            return f"Result {intent.result_op}, commit {intent.workspace_commit}; the payload is saved."
        case "offered":
            return "A call of the bound batch is handed the payload while that batch is open."
        case "delivered":
            if restart:
                return "The replacement says that it took the payload as its first input."
            return "The hook says that it wrote the payload."
        case "completed":
            return "The end of the batch that the payload went into: consumption, and no acknowledgement."
        case "handshake":
            return f"The replacement names exactly its startup id, {intent.startup_delivery_id}."
        case _:
            if intent.discarded:
                return "A human gave it up; no delivery is claimed."
            if restart:
                return "The first tool call of the replacement, which repeats the startup id."
            return "A call of a provably later turn, or a replacement's that repeats its startup id."


def _ends(intent: IntentRecord) -> list[Step]:
    """Where it stands beside the way."""
    reason = intent.reason or "no reason was given"
    if intent.exhausted_at is not None:
        text = f"Every permitted start of epoch {intent.epoch} failed."
        return [Step("Exhausted", intent.exhausted_at, "blocked", text)]
    match intent.state:
        case IntentState.RECOVERY_REQUIRED:
            return [Step("Needs recovery", None, "blocked", reason)]
        case IntentState.TOPOLOGY_DIVERGED:
            return [Step("Diverged", None, "blocked", reason)]
        case IntentState.SUPERSEDED:
            return [Step("Superseded", None, "done", intent.reason or "An earlier intent's result covers it.")]
        case _:
            return []


# -- tool batches ------------------------------------------------------------------------------------------------------

CALLS_MAX: Final = 60
"""How many calls are drawn."""


@frozen(kw_only=True)
class CallBar:
    """One call over time; places in percent, None where it has not come so far."""

    call: CallRecord
    started: float
    completed: float | None
    placed: float | None
    completed_at: int | None
    rank: int | None
    """Its place in the order of completion, from 1."""

    @property
    def ends(self) -> float:
        """Where its bar ends: at its completion, or at the right edge while it runs."""
        return 100.0 if self.completed is None else self.completed

    @property
    def waits(self) -> float:
        """Where its waiting for its place ends."""
        return 100.0 if self.placed is None else self.placed


@frozen
class BatchChart:
    """A batch, its calls in source order, and in the order in which they completed."""

    rows: tuple[CallBar, ...]
    completed: tuple[CallBar, ...]
    more: int
    begins_at: int
    ends_at: int

    @property
    def out_of_order(self) -> int:
        """How many calls completed before one that stands before them."""
        ranks = [row.rank for row in self.rows]
        return sum(
            mine is not None and any(other is None or other > mine for other in ranks[:place])
            for place, mine in enumerate(ranks)
        )


def batch_chart(
    batch: BatchRecord,
    calls: Sequence[CallRecord],
    entries: Iterable[EntryRecord],
    outcomes: Iterable[OutcomeRecord],
    events: Iterable[Event],
    now: int,
) -> BatchChart:
    """Draw a batch up to its end, or up to `now`.  A call's start is its event's, or the batch's where that is gone."""
    started = {str(one.data.get("invocation_id")): one.at for one in events if one.kind == "tool_start"}
    done = {one.invocation_id: one.at for one in outcomes} | {one.entry_id: one.at for one in entries}
    order = sorted(
        (done[one.invocation_id], one.source_index, one.invocation_id) for one in calls if one.invocation_id in done
    )
    ranks = {invocation_id: place for place, (_, _, invocation_id) in enumerate(order, 1)}
    begins, ends = batch.started_at, max(batch.closed_at or now, batch.started_at + 1)

    def place(at: int | None) -> float | None:
        return None if at is None else round(min(max((at - begins) / (ends - begins), 0), 1) * 100, 2)

    rows = tuple(
        CallBar(
            call=call,
            started=place(started.get(call.invocation_id, batch.started_at)) or 0.0,
            completed=place(done.get(call.invocation_id)),
            placed=place(call.placed_at),
            completed_at=done.get(call.invocation_id),
            rank=ranks.get(call.invocation_id),
        )
        for call in calls[:CALLS_MAX]
    )
    completed = sorted((row for row in rows if row.rank is not None), key=lambda row: row.rank or 0)
    return BatchChart(rows, tuple(completed), max(0, len(calls) - CALLS_MAX), begins, ends)


# -- processes ---------------------------------------------------------------------------------------------------------


@frozen
class Bar:
    """One incarnation over the time that is shown, in percent."""

    incarnation: IncarnationRecord
    start: float
    width: float


def process_bars(incarnations: Sequence[IncarnationRecord], now: int) -> list[Bar]:
    """The lives of a pane's processes on one line of time, the newest first as they come."""
    if not incarnations:
        return []
    begins = min(one.launched_at for one in incarnations)
    span = max(max(one.retired_at or now for one in incarnations) - begins, 1)

    def percent(at: int) -> float:
        return round(min(max((at - begins) / span, 0), 1) * 100, 2)

    bars: list[Bar] = []
    for one in incarnations:
        start = min(percent(one.launched_at), 99.0)
        width = max(percent(one.retired_at or now) - start, 1.0)  # the shortest life is still seen
        bars.append(Bar(one, start, min(width, 100 - start)))
    return bars
