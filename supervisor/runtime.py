"""`open_supervisor`: one runtime, from its opening to its end, inside a trio or an asyncio program.

Theory of operation
===================

    host program ──call──▶ Runtime ──▶ Registry ──▶ actors ──▶ MutationLine ──▶ store
                 ◀─callback─ Reconciler, Launcher, Transcript (on the host's own loop)

A runtime is a background service of its host (`hosts.py`): it opens the line, wakes what the store is owed, and lives
until it is told to stop.  Nothing that happens in it can cancel the host's block.  Closing is: take no more calls,
answer everybody who waits, let the line finish what is queued, give the store back; bounded by `close_seconds`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TypeVar, TypeVarTuple, Unpack

import trio

from fencepost.actors.calls import Call
from fencepost.actors.delivery_messages import Dispatcher, Mechanism, mechanisms_by_name
from fencepost.actors.messages import Launcher, Reconciler, Transcript
from fencepost.actors.tool_messages import Hooks, Tool, tools_by_name
from fencepost.mailbox.errors import FencepostError, MailboxClosed, StoreFault
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.mutation import Event
from fencepost.mailbox.ports import Clock, IdSource, RuntimeKilled, SystemClock, UuidSource
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import IncarnationRecord
from fencepost.mailbox.stores.store import StoreReader, open_store
from fencepost.supervisor.chaos import Chaos, steady_scheduling
from fencepost.supervisor.events import EventHub
from fencepost.supervisor.hosts import STOP_MARGIN, Host, Service, acquire_host
from fencepost.supervisor.options import Options
from fencepost.supervisor.recovery import recover
from fencepost.supervisor.registry import Registry
from fencepost.supervisor.status import RuntimeStatus, StoreCounts, count_store
from fencepost.supervisor.supervisor import Supervisor

__all__ = ["Runtime", "open_supervisor"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def open_supervisor(
    store_url: str,
    *,
    reconciler: Reconciler | None = None,
    launcher: Launcher | None = None,
    transcript: Transcript | None = None,
    tools: Sequence[Tool] = (),
    hooks: Hooks | None = None,
    mechanisms: Sequence[Mechanism] = (),
    dispatcher: Dispatcher | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    chaos: Chaos | None = None,
    options: Options | None = None,
) -> OpenSupervisor:
    """Open a runtime over a store; enter what this returns with `async with … as supervisor`.

    The same under trio and asyncio.  On entering, what an earlier life left undone is taken up (contract I-16).
    Entering raises `StoreOwned`, `SchemaTooNew`, `CorruptRecord` or another `StoreFault`; an unknown kind of
    `store_url` raises at once, and so do two tools of one name (ValueError).  On entering, two mechanisms of one name
    raise ValueError, and one that has no place on the ladder `UnmappedMechanism`.  Leaving closes the runtime within
    `options.close_seconds`.
    """
    runtime = Runtime(
        store_url,
        reconciler=reconciler,
        launcher=launcher,
        transcript=transcript,
        tools=tools_by_name(tools),
        hooks=hooks or Hooks(),
        mechanisms=tuple(mechanisms),
        dispatcher=dispatcher,
        clock=clock or SystemClock(),
        ids=ids or UuidSource(),
        chaos=chaos,
        options=options or Options(),
    )
    return OpenSupervisor(runtime)


class OpenSupervisor:
    """The async context manager `open_supervisor` returns; it can be entered once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __aenter__(self) -> Supervisor:
        return await self._runtime.open()

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._runtime.aclose()


class Runtime:
    """The parts of one open runtime, and the way in for its handles."""

    line: MutationLine
    _host: Host
    _registry: Registry

    def __init__(
        self,
        store_url: str,
        *,
        reconciler: Reconciler | None,
        launcher: Launcher | None,
        transcript: Transcript | None,
        tools: Mapping[str, Tool],
        hooks: Hooks,
        mechanisms: tuple[Mechanism, ...],
        dispatcher: Dispatcher | None,
        clock: Clock,
        ids: IdSource,
        chaos: Chaos | None,
        options: Options,
    ) -> None:
        self.options = options
        self._store = open_store(store_url)
        self._reconciler = reconciler
        self._launcher = launcher
        self._transcript = transcript
        self._tools = tools
        self._hooks = hooks
        self._mechanisms = mechanisms
        self._dispatcher = dispatcher
        self._clock = clock
        self._ids = ids
        self._chaos = chaos
        self._hub = EventHub()
        self._service: Service[Supervisor] | None = None
        self._stop: trio.Event | None = None
        self._closed = False

    # -- life --

    async def open(self) -> Supervisor:
        """Start the service and answer once the store is open and its debts are known."""
        if self._service is not None or self._closed:
            raise MailboxClosed("this runtime was opened before; call open_supervisor again")
        self._offered = mechanisms_by_name(self._mechanisms)
        self._host = await acquire_host()
        try:
            self._service = await self._host.start_service(self._run)
        except BaseException:
            await self._host.release()
            raise
        return Supervisor(self)

    async def _run(self, started: Callable[[Supervisor], None]) -> None:
        """The service: everything the runtime is, for as long as it is."""
        with nullcontext() if self._chaos is None else steady_scheduling():
            await self._run_steadily(started)

    async def _run_steadily(self, started: Callable[[Supervisor], None]) -> None:
        self._stop = trio.Event()
        self.line = MutationLine(
            self._store,
            on_committed=self._hub.committed,
            crash_points=self._chaos,
            events_kept_max=self.options.events_kept_max,
        )
        await self.line.start()
        failure: FencepostError | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._registry = self._new_registry(nursery)
                nursery.start_soon(self._registry.put_sleepers_to_bed)
                try:
                    await recover(self._registry, self.line)
                    started(Supervisor(self))
                    await self._stop.wait()
                except FencepostError as error:
                    failure = error  # raised outside the nursery, which would wrap it in a group
                finally:
                    self._registry.close()
                    nursery.cancel_scope.cancel()
        finally:
            self._hub.close()
            with trio.CancelScope(shield=True), trio.move_on_after(self.options.close_seconds):
                await self.line.aclose()
        if failure is not None:
            raise failure

    def _new_registry(self, nursery: trio.Nursery) -> Registry:
        return Registry(
            line=self.line,
            host=self._host,
            clock=self._clock,
            ids=self._ids,
            options=self.options,
            nursery=nursery,
            reconciler=self._reconciler,
            launcher=self._launcher,
            transcript=self._transcript,
            tools=self._tools,
            hooks=self._hooks,
            mechanisms=self._offered,
            dispatcher=self._dispatcher,
            tell_live=self._hub.tell_live,
            crash_points=self._chaos,
            on_fault=self._hub.faulted,
        )

    async def aclose(self) -> None:
        """Close, bounded; who comes second waits for the same end."""
        first, self._closed = not self._closed, True
        if self._service is None or self._service.ended:
            if first and self._service is not None:
                await self._host.release()
            return
        try:
            # A fifth of the bound is kept for what does not end when asked: it is cancelled, then abandoned.
            margin = min(STOP_MARGIN, self.options.close_seconds / 5)
            await self._host.stop_service(self._service, self._ask_to_stop, self.options.close_seconds - margin, margin)
        finally:
            if first:
                await self._host.release()

    async def _ask_to_stop(self) -> None:
        if self._stop is not None:
            self._stop.set()

    # -- the way in --

    async def ask(self, address: str, message: Call) -> object:
        """Send a message to an actor from the host's side."""
        if self._closed:
            raise MailboxClosed("the runtime is closed")
        if self._host.direct:
            return await self._registry.ask(address, message)
        return await self._host.call(self._registry.ask, address, message)

    async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Run a trio function of the runtime from the host's side."""
        if self._closed:
            raise MailboxClosed("the runtime is closed")
        return await self._host.call(fn, *args)

    def events(self, after: int, *, follow: bool) -> AsyncIterator[Event]:
        """Follow the events from the host's side."""
        return self._host.iterate(self._hub.follow(self.line, after, follow=follow))

    # -- what the supervisor's handle asks for; trio side --

    async def pane_of_session(self, session_id: str) -> str | None:
        """The pane that runs this harness session, or ran it last, in the line's order: a clock may be set back."""
        of_session = {"session_id": session_id}
        live, ever = await self.line.load_fields(
            (Query(IncarnationRecord, {**of_session, "retired_at": None}), "pane_id"),
            (Query(IncarnationRecord, of_session), "pane_id"),
        )
        found = live or ever
        return str(found[-1]) if found else None

    async def status(self) -> RuntimeStatus:
        """Counts from the store, read beside the line, and the runtime's own."""
        fault = self.line.fault
        if fault is not None and isinstance(fault.__cause__, RuntimeKilled):
            raise StoreFault(str(fault)) from fault.__cause__
        counts = self._count() if self._store.quick else await self._host.to_thread(self._count)
        return RuntimeStatus(
            panes=counts.panes,
            awake=len(self._registry.awake),
            unresolved_intents=counts.unresolved_intents,
            open_batches=counts.open_batches,
            uncertain_deliveries=counts.uncertain_deliveries,
            dead_letters=counts.dead_letters,
            quarantined=tuple(self._registry.quarantined),
            fault=None if fault is None else str(fault),
            line_depth=self.line.depth,
        )

    def reader(self) -> StoreReader:
        """Open the store's reading side; for any thread."""
        return self._store.reader()

    def _count(self) -> StoreCounts:
        with self._store.reader() as reader:
            return count_store(reader)

    async def kill(self, address: str) -> None:
        """Kill an awake actor."""
        await self._registry.kill(address)

    async def revive(self, address: str) -> bool:
        """Lift a quarantine."""
        return await self._registry.revive(address)
