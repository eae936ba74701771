"""What one activation of a pane remembers, and how it looks up what it does not.

The state stands in memory whole (`pane_state`).  Two things are remembered in part, because a pane sees ever more of
them: the first decisions of its latest batches, and the retired incarnations that spoke last.  A batch that is not
remembered is treated as a new one; if the store knows better it refuses the insert, and `recalled` then reads what it
knows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeVar

from attrs import evolve

from fencepost.actors.messages import ToolBoundary
from fencepost.actors.pane_state import PaneState
from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.query import Query, only
from fencepost.mailbox.records import (
    UNRESOLVED_STATES,
    AdmissionRecord,
    IncarnationRecord,
    IntentRecord,
    Record,
    TriggerRecord,
)

__all__ = ["DamageElsewhere", "PaneMemory"]

ADMISSIONS_KEPT: Final = 256
"""How many batches a pane remembers without asking the store; more than any harness has under way."""

STRANGERS_KEPT: Final = 64
"""How many retired incarnations a pane remembers, so that a chatty zombie costs no read each time."""

R = TypeVar("R", bound=Record)


class DamageElsewhere(Exception):  # noqa: N818 - becomes its cause's answer one frame up
    """A call named a row of another pane, which cannot be read; `__cause__` is the `CorruptRecord` that says so.

    It is told to the caller.  It blocks that other pane and not this one (design section 10).
    """


class PaneMemory:
    """The memory of one activation of one pane; `state` equals what is stored."""

    __slots__ = ("_admissions", "_line", "_strangers", "pane_id", "state")

    def __init__(self, pane_id: str, line: MutationLine) -> None:
        self.pane_id = pane_id
        self.state = PaneState(pane_id=pane_id)
        self._line = line
        self._admissions: OrderedDict[tuple[object, ...], AdmissionRecord] = OrderedDict()
        self._strangers: OrderedDict[str, IncarnationRecord] = OrderedDict()

    # -- the state --

    async def load(self) -> None:
        """Read the pane from the store, and forget whatever was known before."""
        self._admissions.clear()
        pane = {"pane_id": self.pane_id}
        unresolved = tuple(state.value for state in UNRESOLVED_STATES)
        incarnations, intents, newest = await self._line.load(
            Query(IncarnationRecord, pane, order_by=("epoch",), descending=True, limit=1),
            Query(IntentRecord, {**pane, "state": unresolved}, order_by=("seq",)),
            Query(IntentRecord, pane, order_by=("seq",), descending=True, limit=1),
        )
        state = PaneState(pane_id=self.pane_id).after(only(IncarnationRecord, incarnations))
        state = state.after(intent.require_intact() for intent in only(IntentRecord, intents))
        for last in only(IntentRecord, newest):
            state = evolve(state, seq_last=last.seq)
        self.state = await self._with_tail_triggers(state)

    async def apply(self, records: Sequence[Record]) -> None:
        """Take in what has just been committed."""
        self.state = self.state.after(records)
        if self.state.tail_triggers is None:
            self.state = await self._with_tail_triggers(self.state)
        for record in records:
            if isinstance(record, AdmissionRecord):
                self._remember(record)

    async def _with_tail_triggers(self, state: PaneState) -> PaneState:
        """The state with the newest intent's triggers counted."""
        if not state.intents:
            return state
        (triggers,) = await self._line.load(Query(TriggerRecord, {"intent_id": state.intents[-1].intent_id}))
        return evolve(state, tail_triggers=len(triggers))

    # -- who speaks, and of what --

    async def find(self, record_type: type[R], **where: str) -> R | None:
        """The stored record that `where` names, or None."""
        (found,) = await self._line.load(Query(record_type, where))
        return found[0] if found else None

    async def speaker(self, incarnation_id: str) -> IncarnationRecord | None:
        """The incarnation a call names: the latest one from memory, any other, also another pane's, from the store.

        Raises `DamageElsewhere`.
        """
        latest = self.state.latest
        if latest is not None and latest.incarnation_id == incarnation_id:
            return latest
        if incarnation_id in self._strangers:
            return self._strangers[incarnation_id]
        found = await self.find(IncarnationRecord, incarnation_id=incarnation_id, pane_id=self.pane_id)
        if found is None:
            return await self._of_another_pane(incarnation_id)
        if not found.live:
            self._strangers[incarnation_id] = found
            if len(self._strangers) > STRANGERS_KEPT:
                self._strangers.popitem(last=False)
        return found

    async def _of_another_pane(self, incarnation_id: str) -> IncarnationRecord | None:
        try:
            return await self.find(IncarnationRecord, incarnation_id=incarnation_id)
        except CorruptRecord as damage:
            raise DamageElsewhere from damage

    async def intent(self, intent_id: str) -> IntentRecord | None:
        """An intent of this pane: an unresolved one from memory, any other from the store."""
        known = self.state.find(intent_id)
        if known is not None:
            return known
        found = await self.find(IntentRecord, intent_id=intent_id, pane_id=self.pane_id)
        return None if found is None else found.require_intact()

    async def resolved(self, intent_id: str) -> IntentRecord | None:
        """The intent, if it is one that is over."""
        intent = await self.intent(intent_id)
        return intent if intent is not None and intent.resolved else None

    # -- the first decisions of batches --

    def admission(self, call: ToolBoundary) -> AdmissionRecord | None:
        """The first decision of the call's batch, as far as it is remembered."""
        return self._admissions.get(_batch_key(call))

    async def recalled(self, call: ToolBoundary) -> bool:
        """Whether the store knows a first decision of this batch that was forgotten; then it is known again."""
        incarnation_id, turn_id, batch_id = key = _batch_key(call)
        if key in self._admissions:
            return False
        found = await self.find(AdmissionRecord, incarnation_id=incarnation_id, turn_id=turn_id, batch_id=batch_id)
        if found is not None:
            self._remember(found)
        return found is not None

    def forget_admissions(self) -> None:
        """The incarnation whose batches they are is gone."""
        self._admissions.clear()

    def _remember(self, admission: AdmissionRecord) -> None:
        self._admissions[admission.key] = admission
        if len(self._admissions) > ADMISSIONS_KEPT:
            self._admissions.popitem(last=False)


def _batch_key(call: ToolBoundary) -> tuple[str, str, str]:
    return (call.incarnation_id, "" if call.turn is None else call.turn.id, call.batch_id)
