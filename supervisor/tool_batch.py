"""The handle of a tool batch."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, cast

from fencepost.actors.messages import Answer
from fencepost.actors.tool_calls import CancelBatch, FinalizeBatch, WaitForBatch
from fencepost.actors.tool_messages import BatchOutcome, CallView
from fencepost.mailbox.address import Address, check_id
from fencepost.mailbox.errors import ActorCrashed
from fencepost.supervisor.views import call_views

if TYPE_CHECKING:
    from fencepost.supervisor.runtime import Runtime

__all__ = ["ToolBatch"]


class ToolBatch:
    """One tool batch, wherever it stands.  Awaiting the handle answers the handle."""

    def __init__(self, runtime: Runtime, pane_id: str, operation_id: str, turn_id: str) -> None:
        self.pane_id = pane_id
        self.operation_id = check_id("operation_id", operation_id)
        self.turn_id = check_id("turn_id", turn_id)
        self.address = str(Address.batch(pane_id, operation_id, turn_id))
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"<ToolBatch {self.address!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolBatch):
            return NotImplemented
        return self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __await__(self) -> Generator[None, None, ToolBatch]:
        yield from ()
        return self

    async def wait(self) -> BatchOutcome:
        """Wait until every result is placed; over any number of deaths of the batch's actor.

        Raises `OperationEnded` if the batch was finalized from outside, `InvalidTransition` if there is no such batch,
        and `ActorQuarantined` while it cannot go on because that address (its pane's, or an intent's) is in quarantine.
        Nothing of the batch is lost then; it goes on by itself once the address is revived.
        """
        while True:
            try:
                return cast("BatchOutcome", await self._runtime.ask(self.address, WaitForBatch()))
            except ActorCrashed:
                continue  # it only asks, and the next activation knows

    async def cancel(self) -> Answer:
        """Cancel what has no outcome yet.  The request is durable on return; `wait` tells when it has been done.

        Running tools are cancelled, and abandoned after `Options.tool_grace_seconds`; a restored batch goes on being
        cancelled and replays nothing.  `Unchanged` where nothing is left to cancel.
        """
        return cast("Answer", await self._runtime.ask(self.address, CancelBatch()))

    async def finalize_externally(self) -> Answer:
        """End the batch and remove all it owns but the entries already placed; durable on return.

        Running tools are cancelled, and whatever they still write is refused.  No batch completion is recorded.
        `Unchanged` on a finished batch.
        """
        return cast("Answer", await self._runtime.ask(self.address, FinalizeBatch()))

    async def calls(self) -> list[CallView]:
        """The calls in source order, as stored behind every earlier write."""
        return await self._runtime.call(call_views, self._runtime.line, self.address)
