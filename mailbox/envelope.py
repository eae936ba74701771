"""What travels to an actor: a message, who it is for, and the slot its answer goes into.

The message stays plain data.  The slot is filled exactly once, with a value or an error; whoever comes second (a late
activation, a crash after the answer) is told so and changes nothing.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import trio
from attrs import frozen
from outcome import Error, Outcome, Value

__all__ = ["Envelope", "ReplySlot"]

T = TypeVar("T")


class ReplySlot(Generic[T]):
    """Where one call's answer goes.  One task waits for it; anybody in the same trio run fills it."""

    __slots__ = ("_abandoned", "_outcome", "_waiter")

    def __init__(self) -> None:
        self._outcome: Outcome[T] | None = None
        self._waiter: trio.lowlevel.Task | None = None
        self._abandoned = False

    def answer(self, value: T) -> bool:
        """Answer with `value`; return whether this was the first answer (a later one is ignored)."""
        return self._settle(Value(value))

    def fail(self, error: BaseException) -> bool:
        """Have the caller raise `error`; return whether this was the first answer (a later one is ignored)."""
        return self._settle(Error(error))

    def _settle(self, outcome: Outcome[T]) -> bool:
        if self._outcome is not None:
            return False
        self._outcome = outcome
        if self._waiter is not None:
            trio.lowlevel.reschedule(self._waiter, outcome)
            self._waiter = None
        return True

    @property
    def settled(self) -> bool:
        """Whether it was answered."""
        return self._outcome is not None

    @property
    def abandoned(self) -> bool:
        """Whether the caller was cancelled while it waited: nobody will see the answer."""
        return self._abandoned

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> T:
        """Return the answer's value, or raise its error.  Only one task may wait, once.

        Cancelling stops the waiting only: what was asked for goes on, and the answer is lost.
        """
        if self._outcome is not None:
            await trio.lowlevel.checkpoint_if_cancelled()
            return self._outcome.unwrap()
        if self._waiter is not None:
            raise trio.BusyResourceError("another task already waits for this answer")
        self._waiter = trio.lowlevel.current_task()
        return cast("T", await trio.lowlevel.wait_task_rescheduled(self._abandon))

    def _abandon(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        self._abandoned = True
        return trio.lowlevel.Abort.SUCCEEDED


@frozen
class Envelope:
    """A message on its way to the actor at `to`.

    `sender_incarnation_id` is who claims to speak, for the fence; `call` is the public call's name, for dead letters.
    """

    to: str
    message: Any
    reply: ReplySlot[Any]
    sender_incarnation_id: str | None = None
    call: str = ""
