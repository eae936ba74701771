"""Who is awake: activation on demand, sleep, death, restart and quarantine.

Theory of operation
===================

An address is a name, an activation is a life.  `ask` finds the address's actor or starts one; the actor reads its
state from the store and serves.  Three things end an activation:

* it *finishes* or falls *asleep*: nothing is owed, nobody waits; the next message starts another one;
* it *dies*: an exception nobody planned for, or a kill.  Its caller, its parked callers and its inbox get
  `ActorCrashed`, the crash is an event, and the next activation starts at once from the store.  More than
  `crashes_max` deaths within `crash_window_seconds` quarantine the address instead, until `revive`;
* the *runtime* ends, by closing or by a fault: everybody gets `MailboxClosed` or `StoreFault`.

Activations are numbered; whatever an earlier number still says is fenced by the actor.  All of this runs in one trio
task tree and needs no locks: a step without an await is atomic.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import trio

from fencepost.actors.actor import Actor
from fencepost.actors.calls import Call, Join
from fencepost.actors.delivery_messages import Dispatcher, Mechanism
from fencepost.actors.intent_actor import IntentActor
from fencepost.actors.messages import Launcher, Reconciler, Transcript
from fencepost.actors.pane_actor import PaneActor
from fencepost.actors.tool_batch_actor import ToolBatchActor
from fencepost.actors.tool_messages import Hooks, Tool
from fencepost.mailbox.address import Address
from fencepost.mailbox.envelope import Envelope, ReplySlot
from fencepost.mailbox.errors import (
    ActorCrashed,
    ActorQuarantined,
    CorruptRecord,
    FencepostError,
    MailboxClosed,
    MutationRefused,
    StoreFault,
)
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Event, Mutation, NewEvent
from fencepost.mailbox.ports import ActorKilled, Clock, CrashPoints, IdSource, Kill, RuntimeKilled
from fencepost.mailbox.records import IntentRecord
from fencepost.mailbox.text import told
from fencepost.supervisor.hosts import Host
from fencepost.supervisor.options import Options
from fencepost.supervisor.restart_policy import CrashHistory

__all__ = ["Registry"]

SWEEPS_PER_IDLE: Final = 4
"""How often within `idle_seconds` the sleepers are looked for; an actor sleeps at most a quarter too late."""


class Registry:
    """The actors of one runtime; the `System` its actors see."""

    def __init__(
        self,
        *,
        line: MutationLine,
        host: Host,
        clock: Clock,
        ids: IdSource,
        options: Options,
        nursery: trio.Nursery,
        reconciler: Reconciler | None,
        launcher: Launcher | None,
        transcript: Transcript | None,
        tools: Mapping[str, Tool],
        hooks: Hooks,
        mechanisms: Mapping[str, Mechanism],
        dispatcher: Dispatcher | None,
        tell_live: Callable[[Event], None],
        crash_points: CrashPoints | None,
        on_fault: Callable[[], None],
    ) -> None:
        self.line = line
        self.clock = clock
        self.ids = ids
        self.limits = options.limits
        self.inbox_max = options.inbox_max
        self.nursery = nursery
        self.reconciler = reconciler
        self.launcher = launcher
        self.transcript = transcript
        self.tools = tools
        self.hooks = hooks
        self.mechanisms = mechanisms
        self.dispatcher = dispatcher
        self.tell_live = tell_live
        self.result_bytes_max = options.result_bytes_max
        self.tool_grace_seconds = options.tool_grace_seconds
        self.callback = host.callback
        self.call_from_host = host.call
        self.executing: Counter[str] = Counter()
        self.lingering: dict[str, str] = {}
        """Batches ended from outside whose tools have a grace to end, each with its pane's id."""
        self.delivery_debts: set[str] = set()
        """Panes that an earlier life left with a delivery under way."""
        self._options = options
        self._crash_points = crash_points
        self._awake: dict[str, Actor] = {}
        self._activations = itertools.count(1)  # one count for all addresses: nothing is kept of one that sleeps
        self._unwinding: dict[str, Actor] = {}
        """Ended activations whose child tasks have not: the next one waits, or two reconcilers might be at work."""
        self._histories: dict[str, CrashHistory] = {}
        self._revivals: dict[str, trio.Event] = {}
        """What those wait for who cannot go on without a quarantined address."""
        self._anybody = trio.Event()
        self._closed = False
        self._faulted = False
        self._over: dict[Actor, trio.Event] = {}
        """Who waits for the end of a killed activation."""
        self._on_fault = on_fault
        line.on_fault = self.fault

    # -- what actors ask for --

    @property
    def chaotic(self) -> bool:
        """Whether chaos points are to be passed at all."""
        return self._crash_points is not None

    def passed(self, point: str) -> Kill | None:
        """Pass a chaos point; a `Kill.RUNTIME` has killed the runtime when this returns."""
        if self._crash_points is None:
            return None
        kill = self._crash_points.passed(point)
        if kill is Kill.RUNTIME:
            self.line.kill(RuntimeKilled(point))
            self.fault()
        return kill

    async def ask(self, address: str, message: Call) -> object:
        """Send a message to an actor, starting it if need be, and wait for its answer.

        Raises what the actor answers with, `ActorCrashed`, `ActorQuarantined`, `MailboxClosed` or `StoreFault`.
        """
        actor = self._awake.get(address)
        if actor is None or self.line.fault is not None:
            actor = self._start(address, message.seen if isinstance(message, Join) else None)
        reply: ReplySlot[object] = ReplySlot()
        try:
            await actor.inbox.put(Envelope(address, message, reply))
        except MailboxClosed:
            raise self._obituary(actor) from None
        return await reply.wait()

    def wake(self, address: str) -> bool:
        """Make sure an actor is awake, without a message; whether it was asleep: then it is yet to read its rows."""
        asleep = address not in self._awake
        if asleep:
            self._start(address)
        return asleep

    def in_quarantine(self, address: str) -> bool:
        """Whether the address crashed too often and was not revived since."""
        history = self._histories.get(address)
        return history is not None and history.quarantined

    async def until_revived(self, address: str) -> None:
        """Return once the address is not in quarantine (any more)."""
        while self.in_quarantine(address):
            await self._revivals.setdefault(address, trio.Event()).wait()

    # -- activations --

    def _require_open(self) -> None:
        fault = self.line.fault
        if fault is not None:
            error = StoreFault(str(fault))
            raise error from fault.__cause__
        if self._closed:
            raise MailboxClosed("the runtime is closed")

    def _start(self, address: str, seen: IntentRecord | None = None) -> Actor:
        self._require_open()
        if self.in_quarantine(address):
            raise ActorQuarantined(address)
        activation = next(self._activations)
        actor = self._make(address, activation, seen)
        self._awake[address] = actor
        self.nursery.start_soon(self._live, actor)
        self._anybody.set()
        return actor

    def _make(self, address: str, activation: int, seen: IntentRecord | None) -> Actor:
        kind = Address.parse(address).kind
        if kind == PaneActor.KIND:
            return PaneActor(address, activation, self)
        if kind == ToolBatchActor.KIND:
            return ToolBatchActor(address, activation, self)
        if kind == IntentActor.KIND:
            return IntentActor(address, activation, self, seen)
        raise MailboxClosed(f"no actor answers at {address}")

    async def _live(self, actor: Actor) -> None:
        """One activation from its start to its end, whatever that is, and whatever follows from it."""
        try:
            error = await self._run_to_its_end(actor)
            if error is None:
                self._leave(actor, MailboxClosed("the runtime is closed"))
            else:
                await self._bury(actor, error)
        finally:
            over = self._over.pop(actor, None)
            if over is not None:
                over.set()

    async def _run_to_its_end(self, actor: Actor) -> BaseException | None:
        """Run an activation, behind what is left of the one before it; what it died of, or None."""
        try:
            with actor.scope:
                predecessor = self._unwinding.get(actor.address)
                if predecessor is not None:
                    with trio.move_on_after(predecessor.unwinding_seconds):
                        await predecessor.unwound.wait()
                    self._unwinding.pop(actor.address, None)
                await actor.run()
        except Exception as raised:  # noqa: BLE001 - an actor's death is the supervisor's business, never trio's
            return actor.fatal or raised
        except trio.Cancelled:
            self._leave(actor, MailboxClosed("the runtime is closed"))
            raise
        return actor.fatal

    def _leave(self, actor: Actor, error: BaseException) -> None:
        """This activation is over: end its tasks and answer everybody who waits for it."""
        if self._awake.get(actor.address) is actor:
            del self._awake[actor.address]
        actor.end_children()
        if not actor.unwound.is_set():
            self._unwinding[actor.address] = actor
        envelopes = [actor.current, *actor.leftovers(), *actor.inbox.close()]
        for envelope in envelopes:
            if envelope is not None and not envelope.reply.settled:
                envelope.reply.fail(_own(error))

    async def _bury(self, actor: Actor, error: BaseException) -> None:
        """Tell everybody who waited, tell the followers, and start the next life."""
        lost = error if isinstance(error, StoreFault) else ActorCrashed(actor.address, actor.activation, told(error))
        self._leave(actor, lost)
        if isinstance(error, RuntimeKilled) or self.line.fault is not None:
            self.fault()
            return
        if self._closed:
            return
        history = self._histories.get(actor.address, CrashHistory()).crashed(
            self.clock.monotonic(), self._options.crashes_max, self._options.crash_window_seconds
        )
        self._histories[actor.address] = history
        await self._tell_crash(actor, error, quarantined=history.quarantined)
        # A record that cannot be read will not get better by reading it again: the next call tries.
        if not history.quarantined and not isinstance(error, CorruptRecord) and not self._closed:
            self._restart(actor.address)

    def _restart(self, address: str) -> None:
        try:
            self.wake(address)
        except FencepostError:
            return  # the runtime ended meanwhile; whoever asks is told

    async def _tell_crash(self, actor: Actor, error: BaseException, *, quarantined: bool) -> None:
        events = [
            NewEvent(
                kind="actor.crashed",
                address=actor.address,
                at=self.clock.now_ns(),
                data={"activation": actor.activation, "cause": told(error)},
            )
        ]
        if quarantined:
            events.append(NewEvent(kind="actor.quarantined", address=actor.address, at=self.clock.now_ns(), data={}))
        await self._tell(f"supervisor.{'quarantined' if quarantined else 'crashed'}", events)

    async def _tell(self, label: str, events: Iterable[NewEvent]) -> None:
        """Commit events of the supervisor's own; if even that fails the line's fault says so to everybody."""
        try:
            await self.line.commit(Mutation(label=label, events=tuple(events)))
        except (StoreFault, MailboxClosed, MutationRefused, ActorKilled):
            return

    def _obituary(self, actor: Actor) -> BaseException:
        """What to tell a caller whose message found its actor gone."""
        fault = self.line.fault
        if fault is not None:
            return StoreFault(str(fault))
        if self._closed:
            return MailboxClosed("the runtime is closed")
        return ActorCrashed(actor.address, actor.activation)

    # -- sleep --

    async def put_sleepers_to_bed(self) -> None:
        """Run for ever: end activations that owe nothing and were idle for `idle_seconds`."""
        pause = max(self._options.idle_seconds / SWEEPS_PER_IDLE, 0.01)
        while True:
            await self._anybody.wait()
            await trio.sleep(pause)
            before = self.clock.monotonic() - self._options.idle_seconds
            for actor in list(self._awake.values()):
                if actor.busy_at <= before and actor.inbox.idle and not actor.owes:
                    del self._awake[actor.address]
                    actor.scope.cancel()
            self._forget_old_crashes()
            if not self._awake:
                self._anybody = trio.Event()

    def _forget_old_crashes(self) -> None:
        """Keep no history of an address whose last crash no longer counts."""
        since = self.clock.monotonic() - self._options.crash_window_seconds
        for address, history in list(self._histories.items()):
            if not history.quarantined and history.crashes[-1] < since:
                del self._histories[address]

    # -- chaos, revival, the end --

    @property
    def awake(self) -> list[str]:
        """The addresses that are awake."""
        return list(self._awake)

    @property
    def quarantined(self) -> list[str]:
        """The addresses that crashed too often."""
        return [address for address, history in self._histories.items() if history.quarantined]

    async def kill(self, address: str) -> None:
        """Kill an activation, as chaos would, and wait until it is over; a sleeping address is left alone."""
        self._require_open()
        actor = self._awake.get(address)
        if actor is not None:
            over = self._over.setdefault(actor, trio.Event())
            actor.crash(ActorKilled(f"kill({address!r})"))
            await over.wait()

    async def revive(self, address: str) -> bool:
        """Lift a quarantine; answers whether there was one."""
        self._require_open()
        if not self.in_quarantine(address):
            return False
        del self._histories[address]
        revived = self._revivals.pop(address, None)
        if revived is not None:
            revived.set()
        event = NewEvent(kind="actor.revived", address=address, at=self.clock.now_ns(), data={})
        await self.line.commit(Mutation(label="supervisor.revived", events=(event,)))
        self.wake(address)
        return True

    def fault(self) -> None:
        """The store is gone: end every activation; their callers get the fault."""
        fault = self.line.fault
        if self._faulted or fault is None:
            return
        self._faulted = True
        self._on_fault()
        for actor in list(self._awake.values()):
            actor.crash(fault)

    def close(self) -> None:
        """Start nothing more and end every activation; what is in the line will still be committed."""
        self._closed = True
        for actor in list(self._awake.values()):
            actor.scope.cancel()


def _own(error: BaseException) -> BaseException:
    """A fresh copy for each caller, so that tracebacks do not pile up on a shared one."""
    match error:
        case CorruptRecord():
            return error
        case StoreFault():
            own: BaseException = StoreFault(str(error))
            own.__cause__ = error.__cause__
            return own
        case ActorCrashed():
            cause = str(error).partition(" died: ")[2]
            return ActorCrashed(error.address, error.activation, cause)
        case MailboxClosed():
            return MailboxClosed(str(error))
        case _:
            return error
