"""May a planned call run?  The pane's word, then the call's own.

* Clearing a call is a tool boundary of its pane (design section 8, contract T-5).  The calls that come to be cleared
  together are of one turn and batch, so the pane is asked once for all of them.  It is waited for as long as a
  reconciliation takes; a pane or an intent in quarantine is waited for until somebody revives it.
* Then each call is judged by itself: a refusal it was planned with, a tool that is not there, the tool's validator,
  the bridge's `before_tool`.  Without a validator and a hook that takes no time and no task.
* Nothing is written here but the pane's own admission.  The verdict is a step of its call: its effect is admitted, or
  its synthetic result is staged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import trio
from attrs import frozen

from fencepost.actors.calls import PreToolUse
from fencepost.actors.messages import (
    Allow,
    BlockGeneric,
    BlockPayload,
    BlockRestart,
    ModelTurn,
    Reason,
    ToolBoundary,
)
from fencepost.actors.tool_messages import Block, Replace
from fencepost.actors.tool_results import (
    Outcome,
    aborted,
    error_outcome,
    failure_of,
    missing_tool,
    not_executed,
)
from fencepost.actors.tool_state import call_view
from fencepost.actors.tool_steps import Step
from fencepost.actors.tool_writes import admit, stage_synthetic
from fencepost.mailbox.errors import ActorCrashed, ActorQuarantined, CorruptRecord, OperationEnded
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import ArgumentsRecord, CallRecord, IntentRecord, IntentState
from fencepost.mailbox.strict_json import json_text, json_value

if TYPE_CHECKING:
    from fencepost.actors.tool_batch_actor import ToolBatchActor
    from fencepost.actors.tool_errands import Errand
    from fencepost.actors.tool_messages import Tool
    from fencepost.mailbox.mutation import Mutation

__all__ = ["Clearance"]


@frozen(kw_only=True)
class _Blocked:
    """The call never runs; this is its result."""

    outcome: Outcome
    intent_id: str | None = None
    retired: bool = False
    """Its incarnation is no more: the whole batch is to be cancelled."""


_ABORTED: Final = _Blocked(outcome=aborted(None, 0, started=False))


class Clearance:
    """Clears the planned calls of one activation."""

    def __init__(self, actor: ToolBatchActor) -> None:
        self._actor = actor
        self._system = actor.system
        self._rows = actor.rows
        self._asking: trio.CancelScope | None = None

    def stop(self) -> None:
        """Ask the pane no longer; the batch was cancelled or ended.  What hooks do is the errands' to stop."""
        if self._asking is not None:
            self._asking.cancel()

    async def clear(self, calls: Sequence[CallRecord]) -> None:
        """Have each of these planned calls admitted or blocked."""
        try:
            sources = await self._rows.arguments_of(calls)
        except OperationEnded:
            return
        blocked: _Blocked | None = _ABORTED
        if not self._rows.now.cancelled:
            with trio.CancelScope() as self._asking:
                blocked = await self._ask_pane(calls[0])
            self._asking = None
        if blocked is not None and blocked.retired:
            await self._actor.request_cancel("its incarnation was retired")
        if self._rows.open:
            for call in calls:
                self._judge(call, sources[call.invocation_id], blocked)

    # -- the pane's word --

    async def _ask_pane(self, call: CallRecord) -> _Blocked | None:
        """Have the pane decide; None clears the calls as far as it is concerned."""
        batch = self._rows.now.batch
        boundary = ToolBoundary(
            batch.incarnation_id,
            ModelTurn(batch.turn_id, batch.turn_ordinal),
            self._rows.boundary_batch_id,
            call.tool_call_id,
            self._actor.echo,
        )
        while True:
            try:
                decision = await self._system.ask(self._rows.pane, PreToolUse(boundary, float("inf")))
            except ActorCrashed:
                continue  # the pane's next activation knows what was decided
            except ActorQuarantined as quarantined:
                await self._actor.held_up_by(quarantined)
                continue
            match decision:
                case Allow():
                    return None
                case BlockPayload():
                    return _Blocked(outcome=error_outcome(decision.payload.decode()), intent_id=decision.intent_id)
                case BlockGeneric(reason=Reason.RECONCILING) if await self._still_reconciling():
                    continue
                case BlockGeneric() | BlockRestart():
                    retired = isinstance(decision, BlockRestart) or decision.reason is Reason.RETIRED_INCARNATION
                    return _Blocked(outcome=error_outcome(decision.message), retired=retired)
                case other:
                    raise CorruptRecord(self._rows.pane, f"a tool call was answered with {other!r}")

    async def _still_reconciling(self) -> bool:
        """Whether an attempt failed that will be resumed: then the calls go on waiting for it."""
        batch = self._rows.now.batch
        where = {
            "pane_id": batch.pane_id,
            "state": IntentState.RECONCILING.value,
            "incarnation_id": batch.incarnation_id,
            "batch_id": self._rows.boundary_batch_id,
        }
        (rows,) = await self._system.line.load(Query(IntentRecord, where))
        return bool(rows)

    # -- the call's own --

    def _judge(self, call: CallRecord, source: ArgumentsRecord, blocked: _Blocked | None) -> None:
        """Decide what needs nobody's code, and send for whose code is needed."""
        tool = self._system.tools.get(call.name)
        if blocked is not None:
            self._block(call, source, blocked)
        elif self._rows.now.cancelled:
            self._block(call, source, _ABORTED)
        elif call.refusal is not None:
            self._block(call, source, _Blocked(outcome=not_executed(call.refusal, self._system.result_bytes_max)))
        elif tool is None:
            self._block(call, source, _Blocked(outcome=missing_tool(call.name)))
        elif tool.validate is None and self._system.hooks.before_tool is None:
            self._admit(call, source, tool, source.arguments)
        else:
            then = partial(self._heard, call, source, tool)
            self._actor.errands.run(then, self._consult, call, tool, source.arguments)

    async def _consult(self, call: CallRecord, tool: Tool, arguments: str) -> str | _Blocked:
        """Ask the validator and the hook; answers the arguments to run with."""
        arguments = await self._validated(tool, arguments)
        hook = cast("Callable[..., Awaitable[object]] | None", self._system.hooks.before_tool)
        if hook is None:
            return arguments
        grace = self._system.tool_grace_seconds
        answer = await self._system.callback(
            hook, call_view(call), json_value(arguments), call.invocation_id, grace=grace
        )
        match answer:
            case None:
                return arguments
            case Replace():
                return await self._validated(tool, json_text(answer.arguments, "the replaced arguments"))
            case Block(text=str(), terminate=bool()):
                bytes_max = self._system.result_bytes_max
                return _Blocked(outcome=not_executed(answer.text, bytes_max, terminate=answer.terminate))
            case _:
                raise TypeError(f"before_tool must answer None, Replace or Block, not {answer!r}")

    async def _validated(self, tool: Tool, arguments: str) -> str:
        if tool.validate is None:
            return arguments
        validate = cast("Callable[..., Awaitable[object]]", tool.validate)
        answer = await self._system.callback(validate, json_value(arguments), grace=self._system.tool_grace_seconds)
        return json_text(answer, "the validated arguments")

    def _heard(self, call: CallRecord, source: ArgumentsRecord, tool: Tool, errand: Errand) -> None:
        """The call's validator and hook have spoken, raised, or were stopped before they had."""
        if not self._rows.open:
            return
        if errand.error is not None:
            outcome = failure_of(errand.error, self._system.result_bytes_max)
            self._block(call, source, _Blocked(outcome=outcome))
        elif isinstance(errand.value, _Blocked):
            self._block(call, source, errand.value)
        elif isinstance(errand.value, str) and not self._rows.now.cancelled:
            self._admit(call, source, tool, errand.value)
        else:
            self._block(call, source, _ABORTED)

    def _admit(self, call: CallRecord, source: ArgumentsRecord, tool: Tool, arguments: str) -> None:
        incarnation_id, now = self._rows.now.batch.incarnation_id, self._system.clock.now_ns()
        mutation = admit(call, tool.replay, source, arguments, now, incarnation_id=incarnation_id)
        then = partial(self._actor.executions.start, call.source_index, tool, arguments)
        self._actor.admissions.put(Step(mutation, then, again=partial(self._not_admitted, call, source, mutation)))

    async def _not_admitted(self, call: CallRecord, source: ArgumentsRecord, mutation: Mutation) -> Mutation | None:
        """The store refused the effect.  If the call's incarnation was retired meanwhile, the effect is to be none."""
        if not await self._actor.outlives_incarnation():
            return mutation
        self._block(call, source, _ABORTED)
        return None

    def _block(self, call: CallRecord, source: ArgumentsRecord, blocked: _Blocked) -> None:
        now = self._system.clock.now_ns()
        mutation = stage_synthetic(call, blocked.outcome, source.arguments, now, intent_id=blocked.intent_id)
        self._actor.stagings.put(Step(mutation))
