"""A batch as a reconnecting client sees it: what runs, and what has settled and waits to be placed (contract T-12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.actors.tool_messages import LaneSnapshot, Running, Settled
from fencepost.actors.tool_results import result_of_outcome, result_of_progress
from fencepost.mailbox.records import CallRecord, CallStatus

if TYPE_CHECKING:
    from fencepost.actors.tool_execution import Executions
    from fencepost.actors.tool_rows import BatchRows

__all__ = ["lane_snapshot"]


async def lane_snapshot(rows: BatchRows, executions: Executions) -> LaneSnapshot:
    """Look at every call behind the completed prefix; planned and placed ones are not shown."""
    shown: list[Running | Settled] = []
    if rows.now.open:
        for call in rows.now.calls[rows.now.placed :]:
            row = await _row_of(call, rows, executions)
            if row is not None:
                shown.append(row)
    return LaneSnapshot(shown)


async def _row_of(call: CallRecord, rows: BatchRows, executions: Executions) -> Running | Settled | None:
    name = (call.invocation_id, call.tool_call_id, call.name)
    if call.status is CallStatus.EFFECT_PENDING:
        execution = executions.running.get(call.source_index)
        if execution is None:
            progress = await rows.saved_progress(call)
        else:
            progress = execution.progress if execution.reported else None
        return Running(*name, None if progress is None else result_of_progress(progress))
    if call.status is CallStatus.OUTCOME_READY:
        await rows.fetch_outcomes((call,))
        outcome = rows.outcomes.get(call.invocation_id)
        if outcome is None:
            return None  # placed while we looked
        return Settled(*name, result_of_outcome(outcome, terminate=call.terminate), outcome.is_error)
    return None
