"""One intent's life, from which every figure about intents is made.

It is ten transitions, and so ten mutations:

    detect → (tool call) bind → plan → prepare → offer → mark delivered → [project] → batch complete
           → (tool call of the next turn) acknowledge → admit

A call that makes several transitions counts as so many, each with its share of the call's time.  The projection into
the transcript is the runtime's own, made beside the calls; it lies in front of the batch's completion, which therefore
counts as two.
"""

from __future__ import annotations

import itertools
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from attrs import field, frozen

from fencepost.actors.messages import (
    Allow,
    Anchor,
    BaseTransition,
    BlockPayload,
    ModelTurn,
    Reconciled,
    ToolBoundary,
)
from fencepost.mailbox.records import TransitionKind
from fencepost.supervisor.options import Options
from fencepost.supervisor.supervisor import Pane

TRANSITIONS_PER_LIFE: Final = 10
IDS_PER_LIFE: Final = 16
PAYLOAD_BYTES: Final = 512
RARELY: Final = Options(idle_seconds=3600.0)
"""Nobody falls asleep while it is measured."""


def new_id() -> str:
    """Return a fresh id."""
    return str(uuid.uuid4())


def ids_made(count: int) -> Callable[[], str]:
    """Return what hands out so many fresh ids; making them is no cost of the runtime's."""
    return iter([new_id() for _ in range(count)]).__next__


def new_payload(fresh: Callable[[], str]) -> bytes:
    """Return a payload like no other."""
    head = f"The base moved ({fresh()}). Read these files again: "
    return (head + secrets.token_hex(PAYLOAD_BYTES // 2))[:PAYLOAD_BYTES].encode()


@frozen
class Reconciler:
    """Answers at once; what a real one does to files is not the runtime's cost."""

    fresh: Callable[[], str]

    async def reconcile(self, attempt: Any) -> Reconciled:
        fresh = self.fresh
        await attempt.plan(fresh(), fresh())
        return Reconciled(fresh(), fresh(), new_payload(fresh), Anchor(fresh(), fresh(), fresh()))


@frozen
class Liver:
    """Lives through one pane's intents, one after the other."""

    pane: Pane
    incarnation_id: str
    fresh: Callable[[], str]
    samples: list[float] | None = None
    """Seconds of each transition, in order, if they are wanted."""
    turns: Iterator[int] = field(factory=lambda: itertools.count(1))

    async def live(self) -> None:
        """One intent from its detection to its acknowledgement, and the admission of the batch that proved it."""
        fresh, pane, incarnation_id = self.fresh, self.pane, self.incarnation_id
        turn = ModelTurn(fresh(), next(self.turns))
        later = ModelTurn(fresh(), next(self.turns))
        blocked, passed = fresh(), fresh()
        moved = BaseTransition(TransitionKind.PARENT_ADVANCE, fresh(), fresh(), fresh(), fresh())
        detected = await self._timed(1, pane.detect, moved)
        got = await self._timed(4, pane.pre_tool_use, ToolBoundary(incarnation_id, turn, blocked))
        assert isinstance(got, BlockPayload), got
        await self._timed(1, pane.mark_delivered, detected.intent_id, incarnation_id, turn.id, blocked)
        await self._timed(2, pane.post_tool_batch, incarnation_id, turn.id, blocked)
        got = await self._timed(2, pane.pre_tool_use, ToolBoundary(incarnation_id, later, passed))
        assert isinstance(got, Allow), got

    async def _timed(self, transitions: int, call: Callable[..., Any], *arguments: object) -> Any:
        started = time.perf_counter()
        answer = await call(*arguments)
        if self.samples is not None:
            share = (time.perf_counter() - started) / transitions
            self.samples.extend([share] * transitions)
        return answer


async def launched(pane: Pane, **more: Any) -> Liver:
    """Return somebody to live through the intents of a freshly launched `pane`."""
    return Liver(pane, (await pane.launch("bench")).incarnation_id, **more)
