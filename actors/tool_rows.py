"""The rows of one batch, as its activation knows them; and what is read of them when it is needed.

Memory follows the store: `apply` is called with rows that are committed, and `read_again` where nobody here knows
whether a commit happened.  Loading a batch reads its own row and its calls' rows and nothing else (tool-durability
note, "Restore and consumption-time reads"); arguments, memos, progress and staged outcomes are read by whoever is
about to consume them, for all the calls at hand with one query.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from fencepost.actors.tool_results import Progress, progress_of_record
from fencepost.actors.tool_state import BatchState, boundary_batch_id
from fencepost.mailbox.errors import CorruptRecord, InvalidTransition, OperationEnded
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import (
    ArgumentsRecord,
    BatchRecord,
    CallRecord,
    CheckpointRecord,
    MemoRecord,
    OutcomeRecord,
    Record,
)

if TYPE_CHECKING:
    from fencepost.mailbox.line import MutationLine

__all__ = ["BatchRows"]


class BatchRows:
    """What one activation of `batch:…` knows of its rows."""

    def __init__(self, address: str, line: MutationLine) -> None:
        self._address = address
        self._line = line
        self._state: BatchState | None = None
        self.outcomes: dict[str, OutcomeRecord] = {}
        """Staged results, by invocation id, from their staging or reading to their placement."""

    # -- what is known --

    @property
    def exist(self) -> bool:
        """Whether there is such a batch."""
        return self._state is not None

    @property
    def open(self) -> bool:
        """Whether there is such a batch and its results are still to come."""
        return self._state is not None and self._state.open

    @property
    def now(self) -> BatchState:
        """The batch's state.  Raises `InvalidTransition` where there is no such batch."""
        if self._state is None:
            raise InvalidTransition(f"there is no {self._address}", state="absent", address=self._address)
        return self._state

    @property
    def pane(self) -> str:
        """The address of the batch's pane."""
        return f"pane:{self.now.batch.pane_id}"

    @property
    def boundary_batch_id(self) -> str:
        """The batch id under which its calls come to the pane's boundary."""
        return boundary_batch_id(self.now.batch.operation_id, self.now.batch.turn_id)

    def apply(self, records: Iterable[Record]) -> None:
        """Take over rows that are committed."""
        records = tuple(records)
        self._state = self.now.after(records)
        for record in records:
            if type(record) is OutcomeRecord:
                self.outcomes[record.invocation_id] = record

    # -- reading --

    async def read(self) -> None:
        """Read the batch from the store; afterwards it may still not exist."""
        batch, calls = await self._read()
        if batch is not None:
            self._state = BatchState.of(batch, calls)

    async def read_again(self) -> None:
        """Nobody here knows whether a commit happened: take over whatever rows are newer than ours."""
        batch, calls = await self._read()
        if batch is None:
            raise CorruptRecord(self._address, "has lost its row")
        self._state = self.now.after([batch, *calls])

    async def _read(self) -> tuple[BatchRecord | None, list[CallRecord]]:
        batches: Query[BatchRecord] = Query(BatchRecord, {"address": self._address})
        calls: Query[CallRecord] = Query(CallRecord, {"batch": self._address}, order_by=("source_index",))
        found = await self._line.load(cast("Query[Record]", batches), cast("Query[Record]", calls))
        return cast("BatchRecord | None", next(iter(found[0]), None)), cast("list[CallRecord]", found[1])

    async def arguments_of(self, calls: Sequence[CallRecord]) -> Mapping[str, ArgumentsRecord]:
        """Read the arguments of these calls, by invocation id.

        Raises `CorruptRecord` where some are missing, and `OperationEnded` if that is because the batch was ended.
        """
        ids = tuple(call.invocation_id for call in calls)
        (rows,) = await self._line.load(Query(ArgumentsRecord, {"invocation_id": ids}))
        found = {row.invocation_id: row for row in rows}
        missing = next((one for one in ids if one not in found), None)
        if missing is not None:
            if not self.open:
                raise OperationEnded(f"{self._address} was finalized from outside")
            raise CorruptRecord(f"{self._address}: call_arguments({missing!r},)", "is missing")
        return found

    async def leavings_of(self, calls: Sequence[CallRecord]) -> tuple[Mapping[str, Progress], Mapping[str, set[str]]]:
        """Read what executions of these calls have saved: their latest progress, and the names of their memos."""
        ids = tuple(call.invocation_id for call in calls)
        checkpoints: Query[CheckpointRecord] = Query(CheckpointRecord, {"invocation_id": ids})
        memos: Query[MemoRecord] = Query(MemoRecord, {"invocation_id": ids})
        found = await self._line.load(cast("Query[Record]", checkpoints), cast("Query[Record]", memos))
        names: defaultdict[str, set[str]] = defaultdict(set)
        for memo in cast("list[MemoRecord]", found[1]):
            names[memo.invocation_id].add(memo.name)
        saved = cast("list[CheckpointRecord]", found[0])
        return {row.invocation_id: progress_of_record(row) for row in saved}, names

    async def saved_progress(self, call: CallRecord) -> Progress | None:
        """Read one call's durable progress."""
        (rows,) = await self._line.load(Query(CheckpointRecord, {"invocation_id": call.invocation_id}))
        return progress_of_record(rows[0]) if rows else None

    async def memo_names(self, call: CallRecord) -> set[str]:
        """Read the names of one call's memos."""
        (rows,) = await self._line.load(Query(MemoRecord, {"invocation_id": call.invocation_id}))
        return {memo.name for memo in rows}

    async def fetch_outcomes(self, calls: Sequence[CallRecord]) -> None:
        """Have these calls' staged results at hand: those that an earlier life staged are read."""
        missing = tuple(call.invocation_id for call in calls if call.invocation_id not in self.outcomes)
        if missing:
            (rows,) = await self._line.load(Query(OutcomeRecord, {"invocation_id": missing}))
            self.outcomes.update((row.invocation_id, row) for row in rows)
