"""The handles a bridge holds: `Supervisor` and `IntentHandle` here, `Pane` and `ToolBatch` in modules of their own.

A handle is an address with methods; it costs nothing, can be made at any time, and stays good over any number of
crashes of the actor behind it.  Every method may raise `MailboxClosed` (the runtime is closing), `StoreFault` (the
store failed, for good), `ActorCrashed` (ask again; the store knows how far it got) and `ActorQuarantined`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from fencepost.actors.messages import Answer, Applied, IntentView, Unchanged
from fencepost.mailbox.address import Address, check_id
from fencepost.mailbox.mutation import DeadLetter, Event
from fencepost.mailbox.stores.store import StoreReader
from fencepost.supervisor.arguments import count
from fencepost.supervisor.pane import Pane
from fencepost.supervisor.status import RuntimeStatus
from fencepost.supervisor.views import dead_letters, intent_view

if TYPE_CHECKING:
    from fencepost.supervisor.runtime import Runtime

__all__ = ["IntentHandle", "Supervisor"]


class IntentHandle:
    """One intent, wherever it lives."""

    def __init__(self, runtime: Runtime, intent_id: str) -> None:
        self.intent_id = check_id("intent_id", intent_id)
        self._runtime = runtime

    async def view(self) -> IntentView | None:
        """The intent as stored behind every earlier call, or None if there is none with this id."""
        return await self._runtime.call(intent_view, self._runtime.line, self.intent_id)


class Supervisor:
    """An open runtime; what `async with open_supervisor(…) as supervisor` gives."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def pane(self, pane_id: str) -> Pane:
        """The handle of a pane; the pane need not exist yet.  Raises `InvalidIdentifier`."""
        return Pane(self._runtime, pane_id)

    def intent(self, intent_id: str) -> IntentHandle:
        """The handle of an intent.  Raises `InvalidIdentifier`."""
        return IntentHandle(self._runtime, intent_id)

    async def pane_for_session(self, session_id: str) -> Pane | None:
        """The pane that runs this harness session, or ran it last; None if none ever did."""
        check_id("session_id", session_id)
        pane_id = await self._runtime.call(self._runtime.pane_of_session, session_id)
        return None if pane_id is None else Pane(self._runtime, pane_id)

    def events(self, after: int = 0, follow: bool = True) -> AsyncIterator[Event]:
        """Every durable event with `seq` above `after`, oldest first, then live ones without a gap (G-6).

        `follow=False` ends after the last stored one.  Nobody ever waits for a follower.  Raises `MailboxClosed`
        when the runtime closes, `StoreFault` after a live `runtime.faulted` event when the store fails,
        and `CorruptRecord` at an event that cannot be read: follow on after its `event_seq`.
        """
        return self._runtime.events(count("after", after), follow=follow)

    async def dead_letters(self, after: int = 0) -> list[DeadLetter]:
        """Refused and fenced calls with `seq` above `after`, oldest first (G-7)."""
        return await self._runtime.call(dead_letters, self._runtime.line, count("after", after))

    def reader(self) -> StoreReader:
        """The reading side of the open store, for lists and screens: it sees what is durable and disturbs nothing.

        A plain call; what it returns blocks, so use it in a thread, and close it.  Raises `StoreFault`.
        """
        return self._runtime.reader()

    async def status(self) -> RuntimeStatus:
        """The runtime at this moment; answers also when the store has failed, naming the fault."""
        return await self._runtime.call(self._runtime.status)

    async def kill(self, address: str) -> None:
        """Kill an actor, as chaos would; a sleeping one is left alone.  Its calls raise `ActorCrashed`."""
        Address.parse(address)
        await self._runtime.call(self._runtime.kill, address)

    async def revive(self, address: str) -> Answer:
        """Let a quarantined actor try again; `Unchanged` if it is not quarantined."""
        Address.parse(address)
        revived = await self._runtime.call(self._runtime.revive, address)
        return Applied() if revived else Unchanged()

    async def aclose(self) -> None:
        """Close the runtime within `Options.close_seconds`; waiting and later calls get `MailboxClosed`."""
        await self._runtime.aclose()
