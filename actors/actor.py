"""The loop every actor runs: take, fence, decide, commit, apply, act, answer.

Theory of operation
===================

An actor is one *activation* of an address: a trio task with a bounded inbox, which alone holds the state that was
loaded from the store when it started.  It takes one envelope at a time, so between two messages its memory equals
what is stored, and a decision can be made without looking anywhere else.

* Commit, then apply.  The pure decision names what to write; the mutation line makes it durable; only then does the
  actor's memory change, and only then is anybody answered.
* An activation that dies knows nothing any more.  Its caller gets `ActorCrashed`, what waits in its inbox too, and
  the next activation starts from the store.  Nobody guesses whether a commit happened.
* `MutationRefused`, `InvalidTransition`, `LaunchBlocked` and `Fenced` are answers to the caller, not deaths.
* What takes longer than one message (a reconciler at work, a waiting caller's budget) runs in a child task of the
  activation, talks to actors by messages only, and dies with the activation.
* When nothing is left to do the actor *finishes* or is put to sleep; its task, inbox and state are gone, and the next
  message starts a new activation.

Chaos points (`kind.transition/boundary`) are passed only when a `Chaos` was given; otherwise `reached` is a no-op.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Final, Protocol, TypeVar, TypeVarTuple, Unpack

import trio

from fencepost.actors.calls import Call
from fencepost.actors.delivery_messages import Dispatcher, Mechanism
from fencepost.actors.messages import Launcher, Reconciler, Transcript
from fencepost.actors.pane_state import Limits
from fencepost.actors.tool_messages import Hooks, Tool
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import Fenced, InvalidTransition, LaunchBlocked, MutationRefused
from fencepost.mailbox.inbox import Inbox
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Event
from fencepost.mailbox.ports import ActorKilled, Clock, IdSource, Kill, RuntimeKilled

__all__ = ["Actor", "System"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ANSWERS: Final = (MutationRefused, InvalidTransition, LaunchBlocked, Fenced)
"""Errors that tell the caller something about its call and leave the activation alive."""


class System(Protocol):
    """What an activation may ask of the runtime that started it."""

    line: MutationLine
    clock: Clock
    ids: IdSource
    limits: Limits
    inbox_max: int
    reconciler: Reconciler | None
    launcher: Launcher | None
    transcript: Transcript | None
    tools: Mapping[str, Tool]
    delivery_debts: set[str]
    """Panes that an earlier life left with a delivery under way."""
    mechanisms: Mapping[str, Mechanism]
    dispatcher: Dispatcher | None
    hooks: Hooks
    result_bytes_max: int
    tool_grace_seconds: float
    nursery: trio.Nursery
    executing: Counter[str]
    """How often each call's tool runs in this process, also for activations that are over; by invocation id."""
    lingering: dict[str, str]
    """Batches ended from outside whose tools have a grace to end, each with its pane's id."""

    @property
    def chaotic(self) -> bool:
        """Whether chaos points are to be passed at all."""
        ...

    def passed(self, point: str) -> Kill | None:
        """Pass a chaos point; a `Kill.RUNTIME` has already killed the runtime when this returns."""
        ...

    async def ask(self, address: str, message: Call) -> object:
        """Send a message to an actor, starting it if need be, and wait for its answer."""
        ...

    def wake(self, address: str) -> bool:
        """Make sure an actor is awake, without a message; whether it was asleep: then it is yet to read its rows."""
        ...

    def in_quarantine(self, address: str) -> bool:
        """Whether the address crashed too often and was not revived since."""
        ...

    async def until_revived(self, address: str) -> None:
        """Return once the address is not in quarantine (any more)."""
        ...

    def tell_live(self, event: Event, /) -> None:
        """Show followers an event that is not stored."""
        ...

    async def callback(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, grace: float = 0) -> T:
        """Run one of the bridge's own functions on the bridge's loop; `grace`: seconds it may take to be cancelled."""
        ...

    async def call_from_host(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """The way back: called by the bridge's code inside a callback, runs on the runtime's loop."""
        ...


class Actor(ABC):
    """One activation of one address."""

    KIND: ClassVar[str]

    def __init__(self, address: str, activation: int, system: System) -> None:
        self.address = address
        self.activation = activation
        self.system = system
        self.inbox: Inbox[Envelope] = Inbox(system.inbox_max, name=address)
        self.scope = trio.CancelScope()
        self.current: Envelope | None = None
        self.fatal: BaseException | None = None
        self.busy_at = system.clock.monotonic()
        self._chaotic = system.chaotic
        self._children: set[trio.CancelScope] = set()
        self._daemons: set[trio.CancelScope] = set()
        self._fenced: set[trio.CancelScope] = set()
        self.ended = False
        self.unwound = trio.Event()
        """Set once this activation and its child tasks have ended; a bridge's cancelled code may take its time."""

    # -- what a kind of actor provides --

    @abstractmethod
    async def load(self) -> None:
        """Read this address's state from the store."""

    @abstractmethod
    async def handle(self, envelope: Envelope) -> None:
        """Serve one message to the end, or park it for later."""

    @property
    @abstractmethod
    def owes(self) -> bool:
        """Whether it must stay awake although its inbox is empty."""

    @property
    def finished(self) -> bool:
        """Whether nothing can ever happen here again, so that the task may end."""
        return False

    @property
    def unwinding_seconds(self) -> float:
        """How long the next activation waits for what is left of this one."""
        return math.inf

    def leftovers(self) -> list[Envelope]:
        """Envelopes parked in this activation, handed out when it dies."""
        return []

    # -- the loop --

    async def run(self) -> None:
        """Serve until finished or killed."""
        await self.load()
        while not (self.finished and len(self.inbox) == 0):
            envelope = await self.inbox.get()
            self.current = envelope
            try:
                await self._serve(envelope)
            finally:
                self.busy_at = self.system.clock.monotonic()
            self.current = None

    async def _serve(self, envelope: Envelope) -> None:
        if self._chaotic:
            self.reached(envelope.message.CALL, "received")
        try:
            await self.handle(envelope)
        except ANSWERS as error:
            envelope.reply.fail(error)

    def answer(self, envelope: Envelope, value: object) -> None:
        """Answer a caller; everything the answer claims is durable by now."""
        envelope.reply.answer(value)
        if self._chaotic:
            self.reached(envelope.message.CALL, "answered")

    def reached(self, transition: str, boundary: str) -> None:
        """Pass a chaos point; die here if it is armed."""
        if not self._chaotic:
            return
        point = f"{self.KIND}.{transition}/{boundary}"
        match self.system.passed(point):
            case Kill.ACTOR:
                raise ActorKilled(point)
            case Kill.RUNTIME:
                raise RuntimeKilled(point)
            case None:
                return

    # -- children and death --

    def spawn(
        self,
        fn: Callable[[Unpack[Ts]], Awaitable[None]],
        *args: *Ts,
        daemon: bool = False,
        fenced: bool = False,
    ) -> trio.CancelScope:
        """Run `fn` beside the loop; it ends with the activation.  Returns the scope that ends it sooner.

        A daemon is no reason to stay awake.  The next activation does not wait for the end of a fenced one: all it can
        still do is say something to this activation, which nobody hears.
        """
        scope = trio.CancelScope()
        running = self._daemons if daemon else self._children
        running.add(scope)
        if fenced:
            self._fenced.add(scope)
        if self.ended:
            # A child that was just being woken when the activation ended: what it starts ends too, or it might wait for
            # the next activation, which waits for it.
            scope.cancel()
        self.system.nursery.start_soon(self._child, scope, running, fn, args)
        return scope

    async def _child(
        self,
        scope: trio.CancelScope,
        running: set[trio.CancelScope],
        fn: Callable[..., Awaitable[None]],
        args: tuple[object, ...],
    ) -> None:
        try:
            with scope:
                await fn(*args)
        except Exception as error:  # noqa: BLE001 - a child's failure is its activation's
            self.crash(error)
        finally:
            running.discard(scope)
            self._fenced.discard(scope)
            self._note_unwound()

    @property
    def working(self) -> bool:
        """Whether a child task is running that keeps the actor awake."""
        return bool(self._children)

    def abandon(self, scope: trio.CancelScope) -> None:
        """Cancel a child task and count on it no longer: it takes no notice, and whatever it still does is fenced."""
        scope.cancel()
        self._children.discard(scope)
        self._daemons.discard(scope)
        self._note_unwound()

    def crash(self, error: BaseException) -> None:
        """End this activation because of `error`; the supervisor sees it as a death."""
        if self.fatal is None:
            self.fatal = error
        self.scope.cancel()

    def end_children(self) -> None:
        """Cancel every child task, at the end of the activation."""
        self.ended = True
        for scope in [*self._children, *self._daemons]:
            scope.cancel()
        self._children -= self._fenced
        self._daemons -= self._fenced
        self._note_unwound()

    def _note_unwound(self) -> None:
        if self.ended and not self._children and not self._daemons:
            self.unwound.set()
