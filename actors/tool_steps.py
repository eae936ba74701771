"""Steps of calls on their way into the store; those that are ready at the same instant share a mutation.

Theory of operation
===================

Every call of a batch takes the same steps: its effect is admitted, or replayed, and its outcome staged.  For one call
their order is fixed, each begins only when the one before it is durable.  Between calls there is none.  So each kind
of step has a queue, and one task commits all that is in it as one mutation; what comes meanwhile is the next one.  A
batch of n calls that end together costs as many mutations as one call does.

A step remains its call's own.  A mutation is refused as a whole, so if one of several is, each is committed again by
itself, and the refusal is that one's.  A step that is refused by itself may have another try, made from what the
store holds by then, or another step in its place; if the batch was ended from outside, nobody wants it any more;
otherwise the refusal ends this activation, whose next one reads the rows anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from attrs import field, frozen

from fencepost.actors.tool_writes import together
from fencepost.mailbox.errors import MutationRefused

if TYPE_CHECKING:
    from fencepost.actors.actor import Actor
    from fencepost.actors.tool_rows import BatchRows
    from fencepost.mailbox.mutation import Mutation

__all__ = ["Step", "StepQueue"]


@frozen
class Step:
    """One step of one call: what it writes, and what follows once that is durable and applied."""

    mutation: Mutation
    then: Callable[[], None] | None = None
    again: Callable[[], Awaitable[Mutation | None]] | None = field(default=None, kw_only=True)
    """Makes the mutation of another try, if the store refuses the first; None if it put another step in this place."""


class StepQueue:
    """The steps of one kind, of all calls of one activation."""

    def __init__(self, transition: str, actor: Actor, rows: BatchRows, on_applied: Callable[[], None]) -> None:
        """`on_applied` is called after each mutation, behind what follows from its steps."""
        self._transition = transition
        self._actor = actor
        self._rows = rows
        self._on_applied = on_applied
        self._waiting: list[Step] = []
        self._working = False

    def put(self, step: Step) -> None:
        """Have `step` committed as soon as can be."""
        self._waiting.append(step)
        if not self._working:
            self._working = True
            self._actor.spawn(self._work)

    async def _work(self) -> None:
        while self._waiting:
            steps, self._waiting = self._waiting, []
            try:
                await self._commit(together([step.mutation for step in steps]), steps)
            except MutationRefused:
                for step in steps:
                    await self._commit_alone(step)
        self._working = False

    async def _commit_alone(self, step: Step) -> None:
        mutation: Mutation | None = step.mutation
        again = step.again
        while mutation is not None and self._rows.open:
            try:
                await self._commit(mutation, (step,))
            except MutationRefused:
                if again is None and self._rows.open:
                    raise
            else:
                return
            if again is not None:
                mutation, again = await again(), None

    async def _commit(self, mutation: Mutation, steps: list[Step] | tuple[Step]) -> None:
        self._actor.reached(self._transition, "decided")
        await self._actor.system.line.commit(mutation)
        self._rows.apply(mutation.puts)
        self._actor.reached(self._transition, "applied")
        for step in steps:
            if step.then is not None:
                step.then()
        self._on_applied()
