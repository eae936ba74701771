"""Starting a batch: what `start_batch` was asked for, judged, and the rows that start it.  Pure.

A request is known again by its fingerprint, so asking twice for the same batch answers the same batch (contract T-1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from itertools import chain

from attrs import field, frozen

from fencepost.actors.messages import ModelTurn
from fencepost.actors.tool_messages import PlannedCall
from fencepost.mailbox.address import Address
from fencepost.mailbox.errors import InvalidTransition, OperationEnded
from fencepost.mailbox.mutation import Mutation, Unchanged
from fencepost.mailbox.records import (
    ArgumentsRecord,
    BatchMode,
    BatchRecord,
    CallRecord,
    Checkpoint,
    IncarnationRecord,
    Record,
)
from fencepost.mailbox.strict_json import JsonValue, json_copy, text_of_copy
from fencepost.mailbox.text import storable_text

__all__ = ["BatchRequest", "CallRequest", "judge_repeated", "plan", "request_of"]


@frozen(kw_only=True)
class CallRequest:
    """One planned call, storable; `arguments` is JSON text."""

    tool_call_id: str
    name: str
    arguments: str = field(repr=False)
    refusal: str | None


@frozen(kw_only=True)
class BatchRequest:
    """What `start_batch` was asked for."""

    operation_id: str
    turn: ModelTurn
    assistant_entry_id: str
    calls: tuple[CallRequest, ...]
    mode: BatchMode

    @property
    def fingerprint(self) -> str:
        """By which the same request is known again."""
        asked: JsonValue = [
            self.assistant_entry_id,
            self.turn.ordinal,
            self.mode.value,
            [[call.tool_call_id, call.name, call.arguments, call.refusal] for call in self.calls],
        ]
        return hashlib.sha256(text_of_copy(asked).encode()).hexdigest()


def request_of(
    operation_id: str, turn: ModelTurn, assistant_entry_id: str, calls: Iterable[PlannedCall], mode: BatchMode
) -> BatchRequest:
    """The request, judged.  Raises ValueError for no calls and for arguments that JSON does not have."""
    requests = tuple(_call_request(index, call) for index, call in enumerate(calls))
    if not requests:
        raise ValueError("a batch has at least one call")
    return BatchRequest(
        operation_id=operation_id,
        turn=turn,
        assistant_entry_id=assistant_entry_id,
        calls=requests,
        mode=BatchMode(mode),
    )


def _call_request(index: int, call: object) -> CallRequest:
    if not isinstance(call, PlannedCall):
        raise TypeError(f"calls[{index}] must be a PlannedCall, not {call!r}")
    return CallRequest(
        tool_call_id=call.tool_call_id,
        name=storable_text(call.name),
        arguments=text_of_copy(json_copy(call.arguments, f"calls[{index}].arguments")),
        refusal=None if call.refusal is None else storable_text(str(call.refusal)),
    )


def judge_repeated(existing: BatchRecord, request: BatchRequest) -> None:
    """Raise unless `existing` is the batch that this very request started."""
    if existing.checkpoint is Checkpoint.ENDED:
        raise OperationEnded(f"{existing.address} was finalized from outside")
    if existing.fingerprint != request.fingerprint:
        raise InvalidTransition(
            f"{existing.address} was started with other calls",
            state="started",
            event="start_batch",
            address=existing.address,
        )


def plan(
    pane_id: str,
    request: BatchRequest,
    *,
    live: IncarnationRecord | None,
    open_batch: BatchRecord | None,
    latest: BatchRecord | None,
    mode: BatchMode,
    now: int,
    mint: Callable[[str], str],
) -> Mutation:
    """Start a batch: its row and, for each call, one row and its arguments.

    `latest` is the pane's newest batch.  Raises `InvalidTransition` without a live incarnation and beside an open
    batch.
    """
    address = str(Address.batch(pane_id, request.operation_id, request.turn.id))
    if open_batch is not None:
        raise InvalidTransition(
            f"pane {pane_id} still runs {open_batch.address}", state="open", event="start_batch", address=address
        )
    if live is None:
        raise InvalidTransition(
            f"pane {pane_id} has no live incarnation to run tools for", event="start_batch", address=address
        )
    batch = BatchRecord(
        address=address,
        pane_id=pane_id,
        seq=1 if latest is None else latest.seq + 1,
        operation_id=request.operation_id,
        turn_id=request.turn.id,
        turn_ordinal=request.turn.ordinal,
        assistant_entry_id=request.assistant_entry_id,
        incarnation_id=live.incarnation_id,
        mode=mode,
        fingerprint=request.fingerprint,
        calls_count=len(request.calls),
        first_entry_seq=1 if latest is None else latest.first_entry_seq + latest.calls_count,
        started_at=now,
    )
    calls = [_call_rows(batch, index, call, mint("invocation")) for index, call in enumerate(request.calls)]
    return Mutation(label="pane.start_batch", guards=(Unchanged(live),), puts=(batch, *chain.from_iterable(calls)))


def _call_rows(batch: BatchRecord, index: int, call: CallRequest, invocation_id: str) -> tuple[Record, Record]:
    planned = CallRecord(
        invocation_id=invocation_id,
        pane_id=batch.pane_id,
        batch=batch.address,
        source_index=index,
        tool_call_id=call.tool_call_id,
        name=call.name,
        refusal=call.refusal,
    )
    return planned, ArgumentsRecord(invocation_id=invocation_id, arguments=call.arguments)
