"""The vocabulary of tool batches: what a tool's author writes, what a bridge asks for and looks at.  Pure.

Names and fields are the contract's (Tools).  Content is a text or a sequence of blocks; what is handed out again is
always a list of blocks:

    {"type": "text", "text": …}        {"type": "image", "mime_type": …, "data": base64}
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from attrs import Attribute, field, frozen
from attrs.validators import instance_of

from fencepost.mailbox.address import check_id
from fencepost.mailbox.records import BatchMode, CallStatus, Checkpoint, Replay

__all__ = [
    "BatchOutcome",
    "Block",
    "CallView",
    "Content",
    "Hooks",
    "LaneSnapshot",
    "PlannedCall",
    "Replace",
    "ResultEntry",
    "Running",
    "Settled",
    "Tool",
    "ToolResult",
    "tools_by_name",
]

Content: TypeAlias = "str | Sequence[Mapping[str, object]]"


def _id(_instance: object, attribute: Attribute[Any], value: object) -> None:
    check_id(attribute.name, value)


def _is_coroutine_function(function: object) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _execute(_instance: object, _attribute: Attribute[Any], value: object) -> None:
    if not _is_coroutine_function(value):
        raise TypeError(f"execute must be an async function, not {value!r}")


def _optional_callable(_instance: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{attribute.name} must be a function or None, not {value!r}")


# -- what a tool's author writes ---------------------------------------------------------------------------------


@frozen
class ToolResult:
    """What a tool call came to, or, in an update, its whole progress so far.

    Not judged here: a result that cannot be stored becomes an error result of its call, an update that cannot be
    stored raises ValueError in the tool.
    """

    content: Content
    details: object = None
    is_error: bool = False
    usage: object = None
    added_tool_names: Sequence[str] = ()
    terminate: bool = False


@frozen
class Tool:
    """A tool a model may call.

    `execute(arguments, invocation)` is an async function.  One sequential tool makes its whole batch sequential.
    `validate(arguments)` answers the arguments to use, or raises: then the call's result is that error.

    `replay=Replay.SAFE` promises that a call which was interrupted may be run again, with the same arguments and the
    same invocation id: effects happen at least once, and only what `invocation.step` recorded is not repeated.  When
    the process died, nothing of the earlier execution is left.  When only the batch's actor died, its executions are
    cancelled; one that ignores that for longer than `Options.tool_grace_seconds` may *still be running* while its
    replay begins (the event `tool_replay.overlaps` says so).  What it writes through its invocation is fenced; what
    it does to the world is not.  A safe tool either ends when it is cancelled or can stand beside itself.

    A tool or a validator that has not ended when its batch was cancelled and the grace is over is waited for no longer:
    the call has its result, and that says what is known.  What such code still does to the world, to files that are
    being reconciled for instance, nobody can keep it from.
    """

    name: str = field(validator=_id)
    execute: Callable[..., Awaitable[ToolResult]] = field(validator=_execute)
    replay: Replay = field(default=Replay.NEVER, converter=Replay)
    mode: BatchMode = field(default=BatchMode.PARALLEL, converter=BatchMode)
    validate: Callable[..., object] | None = field(default=None, validator=_optional_callable)


def tools_by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    """Return the tools under their names.  Raises ValueError where two have the same, TypeError for no `Tool`."""
    found: dict[str, Tool] = {}
    for tool in tools:
        if not isinstance(tool, Tool):
            raise TypeError(f"tools must be Tool objects, not {tool!r}")
        if tool.name in found:
            raise ValueError(f"two tools are named {tool.name!r}")
        found[tool.name] = tool
    return found


# -- hooks -------------------------------------------------------------------------------------------------------


@frozen
class Replace:
    """Answer of `before_tool`: run the call with these arguments instead."""

    arguments: object


@frozen
class Block:
    """Answer of `before_tool`: do not run the call; this text is its error result."""

    text: str
    terminate: bool = False


@frozen
class Hooks:
    """A bridge's say around every effect (contract T-6); both run on the bridge's loop, outside any transaction.

    `before_tool(call, arguments, invocation_id)` answers None, `Replace` or `Block`; raising blocks with the error's
    text.  `after_tool(call, result, invocation_id)` answers None or the `ToolResult` to use instead; raising keeps the
    result.  `call` is a `CallView`.  When the batch is cancelled both are; one that has not ended when
    `Options.tool_grace_seconds` are over is given up: a call that was not cleared by then never runs, a result that
    was not looked at is kept, and the event `after_tool.failed` says so.
    """

    before_tool: Callable[..., object] | None = field(default=None, validator=_optional_callable)
    after_tool: Callable[..., object] | None = field(default=None, validator=_optional_callable)


# -- what a bridge asks for --------------------------------------------------------------------------------------


@frozen
class PlannedCall:
    """One call of an assistant entry.  `refusal`: a text staged instead of running (a truncated call, say)."""

    tool_call_id: str = field(validator=_id)
    name: str = field(validator=instance_of(str))
    arguments: object = field(factory=dict)
    refusal: str | None = field(default=None)


# -- what a bridge looks at --------------------------------------------------------------------------------------


@frozen
class ResultEntry:
    """One result in the transcript, as it was placed (contract T-8)."""

    entry_id: str
    parent_entry_id: str
    operation_id: str
    turn_id: str
    source_index: int
    tool_call_id: str
    tool_name: str
    content: list[dict[str, object]]
    details: object
    is_error: bool
    usage: object
    added_tool_names: tuple[str, ...]
    terminate: bool
    at: int


@frozen
class CallView:
    """One call as it stands (contract T-10); `replay` is what was declared when its effect was admitted, if it was."""

    source_index: int
    invocation_id: str
    tool_call_id: str
    name: str
    status: CallStatus
    replay: Replay | None


@frozen
class BatchOutcome:
    """How a batch ended: every result in source order, and what the operation does next."""

    entries: list[ResultEntry]
    checkpoint: Checkpoint


@frozen
class Running:
    """A call whose effect was admitted and has no outcome yet; `result` is its latest progress, if there is any."""

    status: ClassVar[str] = "running"

    invocation_id: str
    tool_call_id: str
    name: str
    result: ToolResult | None = None


@frozen
class Settled:
    """A call whose complete result is durable and waits for those before it to be placed."""

    status: ClassVar[str] = "settled"

    invocation_id: str
    tool_call_id: str
    name: str
    result: ToolResult
    is_error: bool


@frozen
class LaneSnapshot:
    """What runs in a pane right now; planned and placed calls are not in it (contract T-12)."""

    running_tools: list[Running | Settled]
