"""The messages around tool batches; see `calls`.  Pure."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from fencepost.actors.calls import Call
from fencepost.actors.tool_plan import BatchRequest
from fencepost.mailbox.mutation import Mutation

__all__ = [
    "AwaitTools",
    "CancelBatch",
    "FinalizeBatch",
    "PlaceResults",
    "SnapshotBatch",
    "StartBatch",
    "TakeUpBatch",
    "WaitForBatch",
]


# -- to a pane ---------------------------------------------------------------------------------------------------


@frozen
class StartBatch(Call):
    """Start the tool calls of one assistant entry."""

    CALL: ClassVar[str] = "start_batch"
    request: BatchRequest


@frozen(kw_only=True)
class PlaceResults(Call):
    """Batch to pane: here is a placement; commit it with what it means for the pane's intents (design section 8).

    `delivers` is the intent whose payload is among the results, `completes` says that the last result is.
    """

    CALL: ClassVar[str] = "place_results"
    part: Mutation
    incarnation_id: str
    turn_id: str
    batch_id: str
    delivers: str | None
    completes: bool


# -- to a batch --------------------------------------------------------------------------------------------------


@frozen
class TakeUpBatch(Call):
    """Pane to batch: your rows are there; read them, if you looked before they were."""

    CALL: ClassVar[str] = "take_up"


@frozen
class AwaitTools(Call):
    """Pane to batch: answer once you are closed, and every tool of yours has ended or was given up."""

    CALL: ClassVar[str] = "await_tools"


@frozen
class WaitForBatch(Call):
    """Answer the batch's outcome once it is closed."""

    CALL: ClassVar[str] = "wait"


@frozen
class CancelBatch(Call):
    """Cancel what has no outcome yet."""

    CALL: ClassVar[str] = "cancel"
    reason: str = "cancelled"


@frozen
class FinalizeBatch(Call):
    """End the batch from outside."""

    CALL: ClassVar[str] = "finalize"


@frozen
class SnapshotBatch(Call):
    """Answer what runs and what has settled."""

    CALL: ClassVar[str] = "snapshot"
