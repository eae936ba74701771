"""Errands: the bridge's code, run for a batch's calls, each in a task that can be given up.

Theory of operation
===================

A tool, a validator and a hook are the bridge's functions.  They run outside any transaction, take as long as they
take, and may take no notice of being cancelled.  Nobody may wait for such code for ever, so each run is an errand of
its own, with three ways to end:

* it returns or raises: `then` is called, once, in the errand's task;
* it was told to stop and has not ended when the grace is over (contract T-3): it is *given up*.  `then` is called for
  it all the same, and what its code still does is nobody's business: its task goes on beside the actor, and its
  invocation, if it has one, has expired;
* its activation or the runtime ends: nobody is told anything, as after any other death.

`then` is a plain function, so a batch of a thousand tools costs a thousand tasks and not twice as many.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVarTuple, Unpack

import trio
from attrs import define

if TYPE_CHECKING:
    from fencepost.actors.actor import Actor

__all__ = ["Errand", "Errands"]

Ts = TypeVarTuple("Ts")


@define(eq=False)
class Errand:
    """One run of the bridge's code, and what it came to."""

    then: Callable[[Errand], None]
    scope: trio.CancelScope | None = None
    value: object = None
    error: Exception | None = None
    begun: bool = False
    """Whether any of its code has run."""
    returned: bool = False
    stopped: bool = False
    """It was told to stop."""
    given_up: bool = False
    """It took no notice of that."""
    over: bool = False


class Errands:
    """The errands of one activation."""

    def __init__(self, actor: Actor, on_idle: Callable[[], None]) -> None:
        """`on_idle` is called whenever the last one has ended or was given up."""
        self._actor = actor
        self._on_idle = on_idle
        self._running: dict[Errand, None] = {}
        """An ordered set: what is stopped is stopped in the order in which it began, the same each time."""

    @property
    def busy(self) -> bool:
        """Whether any has neither ended nor been given up."""
        return bool(self._running)

    def run(self, then: Callable[[Errand], None], fn: Callable[[Unpack[Ts]], Awaitable[object]], *args: *Ts) -> None:
        """Run `fn(*args)` in the background, then `then(errand)`."""
        errand = Errand(then)
        self._running[errand] = None
        errand.scope = self._actor.spawn(self._run, errand, fn, args, daemon=True)

    async def _run(self, errand: Errand, fn: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        try:
            if not errand.stopped:
                errand.begun = True
                errand.value = await fn(*args)
                errand.returned = True
        except Exception as error:  # noqa: BLE001 - whatever the bridge's code raises is what it came to
            errand.error = error
        finally:
            self._end(errand)

    def _end(self, errand: Errand) -> None:
        if errand.over:
            return
        errand.over = True
        self._running.pop(errand, None)
        came_to_something = errand.returned or errand.error is not None or errand.stopped
        if came_to_something and not self._actor.ended:
            errand.then(errand)
        if not self._running:
            self._on_idle()

    def stop(self) -> None:
        """Cancel what runs; give up what still does when the grace is over."""
        stopped = [errand for errand in self._running if not errand.stopped]
        for errand in stopped:
            errand.stopped = True
            if errand.scope is not None:
                errand.scope.cancel()
        if stopped:
            self._actor.spawn(self._give_up, stopped, daemon=True)

    async def _give_up(self, stopped: list[Errand]) -> None:
        await trio.sleep(self._actor.system.tool_grace_seconds)
        for errand in stopped:
            if not errand.over and errand.scope is not None:
                errand.given_up = True
                self._actor.abandon(errand.scope)
                self._end(errand)
