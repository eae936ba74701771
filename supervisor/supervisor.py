"""The handles a bridge holds: `Supervisor`, `Pane`, `IntentHandle`, `ToolBatch`.

A handle is an address with methods; it costs nothing, can be made at any time, and stays good over any number of
crashes of the actor behind it.  Every method may raise `MailboxClosed` (the runtime is closing), `StoreFault` (the
store failed, for good), `ActorCrashed` (ask again; the store knows how far it got) and `ActorQuarantined`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Generator, Iterable
from typing import TYPE_CHECKING, Final, TypeVar, cast

from fencepost.actors import calls
from fencepost.actors.incarnation_state import LaunchRequest
from fencepost.actors.messages import (
    Answer,
    Applied,
    BaseTransition,
    Capabilities,
    Decision,
    DetectedIntent,
    IntentView,
    Launch,
    ModelTurn,
    SyncStatus,
    ToolBoundary,
    Unchanged,
)
from fencepost.actors.tool_calls import CancelBatch, FinalizeBatch, SnapshotBatch, StartBatch, WaitForBatch
from fencepost.actors.tool_messages import BatchOutcome, CallView, LaneSnapshot, PlannedCall, ResultEntry
from fencepost.actors.tool_plan import request_of
from fencepost.mailbox.address import Address, check_id
from fencepost.mailbox.errors import ActorCrashed
from fencepost.mailbox.mutation import DeadLetter, Event
from fencepost.mailbox.records import BatchMode
from fencepost.mailbox.text import storable_text
from fencepost.supervisor.status import RuntimeStatus
from fencepost.supervisor.views import batch_records, call_views, intent_view, intent_views, result_entries

if TYPE_CHECKING:
    from fencepost.supervisor.runtime import Runtime

__all__ = ["IntentHandle", "Pane", "Supervisor", "ToolBatch"]

T = TypeVar("T")


_FOREVER_SECONDS: Final = 1e12
"""What is longer than thirty thousand years is for ever; a clock cannot count it."""

_ANY_HARNESS: Final = Capabilities()


class Pane:
    """One pane of the terminal: its processes and its intents."""

    def __init__(self, runtime: Runtime, pane_id: str) -> None:
        self.pane_id = check_id("pane_id", pane_id)
        self._runtime = runtime
        self._address = f"pane:{pane_id}"

    def __repr__(self) -> str:
        return f"<Pane {self.pane_id!r}>"

    async def _ask(self, message: calls.Call) -> object:
        return await self._runtime.ask(self._address, message)

    # -- incarnations --

    async def launch(
        self, harness: str, session_id: str | None = None, capabilities: Capabilities = _ANY_HARNESS
    ) -> Launch:
        """Make a new incarnation; the live one is retired.  Durable on return (contract I-10).

        Without a Launcher this is the host's word that the old process is gone, and the host starts the new one
        with `launch.startup.payload` as its tagged first input where there is one.  With a Launcher the old process
        is stopped first and this returns once the new one was started; whatever its `start` raises is raised here.

        Raises `LaunchBlocked`, and then nothing has changed, where protocol-intent.md section 8 forbids a process.
        """
        check_id("harness", harness)
        if session_id is not None:
            check_id("session_id", session_id)
        _require("capabilities", capabilities, Capabilities)
        request = LaunchRequest(harness=harness, session_id=session_id, capabilities=capabilities)
        return cast("Launch", await self._ask(calls.LaunchHarness(request)))

    async def startup_ready(self, incarnation_id: str, startup_delivery_id: str, payload_sha256: str) -> Answer:
        """The replacement accepted exactly this tagged input: Delivered, not acknowledged (section 7.3).

        A refusal changes nothing; the attempt is then best given up with `launch_failed`.
        """
        check_id("incarnation_id", incarnation_id)
        message = calls.StartupReady(incarnation_id, str(startup_delivery_id), str(payload_sha256))
        return cast("Answer", await self._ask(message))

    async def launch_failed(self, incarnation_id: str, reason: str) -> Answer:
        """The process did not come up, or died: its attempt is given up, the last permitted one exhausts."""
        check_id("incarnation_id", incarnation_id)
        return cast("Answer", await self._ask(calls.LaunchFailed(incarnation_id, _text("reason", reason))))

    async def retire(self, incarnation_id: str, reason: str) -> Answer:
        """End an incarnation; from the commit on, everything it still sends is fenced.  Never relaunches."""
        check_id("incarnation_id", incarnation_id)
        return cast("Answer", await self._ask(calls.RetireIncarnation(incarnation_id, _text("reason", reason))))

    # -- intents --

    async def detect(self, transition: BaseTransition) -> DetectedIntent:
        """A base moved.  The intent that carries it is durable on return (section 2, contract I-2).

        Raises `InvalidTransition` if the runtime has no Reconciler.
        """
        _require("transition", transition, BaseTransition)
        return cast("DetectedIntent", await self._ask(calls.Detect(transition)))

    async def pre_tool_use(self, boundary: ToolBoundary, wait_seconds: float | None = None) -> Decision:
        """May this tool call run?  The first decision of its batch is durable on return (sections 3 and 4).

        Waits at most `wait_seconds` (default `Options.sibling_wait_seconds`) for a reconciliation, then blocks
        generically; 0 decides now.  Cancelling the caller decides nothing and undoes nothing.
        """
        _require("boundary", boundary, ToolBoundary)
        if wait_seconds is None:
            wait_seconds = self._runtime.options.sibling_wait_seconds
        return cast("Decision", await self._ask(calls.PreToolUse(boundary, _seconds("wait_seconds", wait_seconds))))

    async def mark_delivered(self, intent_id: str, incarnation_id: str, turn_id: str, batch_id: str) -> Answer:
        """The hook wrote the payload to the harness.  Idempotent; the first time is kept (section 5, I-7)."""
        message = calls.ReportDelivered(
            check_id("intent_id", intent_id),
            check_id("incarnation_id", incarnation_id),
            check_id("turn_id", turn_id),
            check_id("batch_id", batch_id),
        )
        return cast("Answer", await self._ask(message))

    async def post_tool_batch(self, incarnation_id: str, turn_id: str, batch_id: str) -> Answer:
        """A tool batch completed.  Recorded for the exact blocked batch; acknowledges nothing (section 5, I-8)."""
        message = calls.PostToolBatch(
            check_id("incarnation_id", incarnation_id), check_id("turn_id", turn_id), check_id("batch_id", batch_id)
        )
        return cast("Answer", await self._ask(message))

    async def resolve(self, intent_id: str, resolution: str, by: str) -> Answer:
        """Record a human's choice for an intent that needs recovery or diverged, and go on with it (I-13).

        It goes straight back to reconciling with `attempt.resumed` set.  One case differs: a diverged intent that
        was never bound, while a process lives, goes back to detected and binds at that process's next tool call,
        because files must not change under a batch that was let pass.
        """
        check_id("intent_id", intent_id)
        message = calls.ResolveIntent(intent_id, _text("resolution", resolution), _text("by", by))
        return cast("Answer", await self._ask(message))

    async def rearm(self, intent_id: str) -> Answer:
        """Grant an exhausted intent a new epoch of startup attempts (section 7.5)."""
        return cast("Answer", await self._ask(calls.RearmIntent(check_id("intent_id", intent_id))))

    async def discard(self, intent_id: str, approval: str) -> Answer:
        """Give an exhausted delivery up; `approval` is the one-shot token `IntentView.approval` shows (I-14)."""
        return cast("Answer", await self._ask(calls.DiscardIntent(check_id("intent_id", intent_id), str(approval))))

    async def intents(self) -> list[IntentView]:
        """All intents of this pane, oldest first, as stored behind every earlier call."""
        return await self._runtime.call(intent_views, self._runtime.line, self.pane_id)

    # -- tools --

    async def start_batch(
        self,
        operation_id: str,
        turn: ModelTurn,
        assistant_entry_id: str,
        calls: Iterable[PlannedCall],
        mode: BatchMode = BatchMode.PARALLEL,
    ) -> ToolBatch:
        """Start the tool calls of one assistant entry; they are durable on return, and carried to their end.

        The same ids and calls again answer the same batch.  Raises `InvalidTransition` for other calls under the same
        ids, beside another open batch of the pane and without a live incarnation; `OperationEnded` if that batch was
        finalized from outside; ValueError for no calls and for arguments JSON does not have.
        """
        check_id("operation_id", operation_id)
        check_id("assistant_entry_id", assistant_entry_id)
        if not isinstance(turn, ModelTurn):
            raise TypeError(f"turn must be a ModelTurn, not {turn!r}")
        request = request_of(operation_id, turn, assistant_entry_id, calls, mode)
        await self._ask(StartBatch(request))
        return self.batch(operation_id, turn.id)

    def batch(self, operation_id: str, turn_id: str) -> ToolBatch:
        """The handle of a batch; it may be awaited, and the batch need not exist yet."""
        return ToolBatch(self._runtime, self.pane_id, operation_id, turn_id)

    async def batches(self) -> list[ToolBatch]:
        """All batches of this pane, oldest first."""
        found = await self._runtime.call(batch_records, self._runtime.line, self.pane_id)
        return [self.batch(batch.operation_id, batch.turn_id) for batch in found]

    async def snapshot(self) -> LaneSnapshot:
        """What runs in this pane right now, with its latest progress, and what has settled and waits for its place.

        Live progress while the runtime runs, the latest durable checkpoint after a reopen.
        """
        found = await self._runtime.call(batch_records, self._runtime.line, self.pane_id, True)
        while found:
            try:
                return cast("LaneSnapshot", await self._runtime.ask(found[0].address, SnapshotBatch()))
            except ActorCrashed:
                continue  # it only asks, and the next activation knows
        return LaneSnapshot([])

    async def entries(self, after: str | None = None) -> list[ResultEntry]:
        """The results placed in this pane, in order; `after` an entry id, only those behind it.

        Raises `InvalidIdentifier` for an `after` that is no entry of this pane.
        """
        return await self._runtime.call(result_entries, self._runtime.line, self.pane_id, after)

    async def sync_status(self) -> SyncStatus:
        """How the pane stands; always a query over its intents (section 1.3)."""
        return cast("SyncStatus", await self._ask(calls.SyncStatusQuery()))


class ToolBatch:
    """One tool batch, wherever it stands.  Awaiting the handle answers the handle."""

    def __init__(self, runtime: Runtime, pane_id: str, operation_id: str, turn_id: str) -> None:
        self.pane_id = pane_id
        self.operation_id = check_id("operation_id", operation_id)
        self.turn_id = check_id("turn_id", turn_id)
        self.address = str(Address.batch(pane_id, operation_id, turn_id))
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"<ToolBatch {self.address!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolBatch):
            return NotImplemented
        return self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __await__(self) -> Generator[None, None, ToolBatch]:
        yield from ()
        return self

    async def wait(self) -> BatchOutcome:
        """Wait until every result is placed; over any number of deaths of the batch's actor.

        Raises `OperationEnded` if the batch was finalized from outside, `InvalidTransition` if there is no such batch,
        and `ActorQuarantined` while it cannot go on because that address (its pane's, or an intent's) is in quarantine.
        Nothing of the batch is lost then; it goes on by itself once the address is revived.
        """
        while True:
            try:
                return cast("BatchOutcome", await self._runtime.ask(self.address, WaitForBatch()))
            except ActorCrashed:
                continue  # it only asks, and the next activation knows

    async def cancel(self) -> Answer:
        """Cancel what has no outcome yet.  The request is durable on return; `wait` tells when it has been done.

        Running tools are cancelled, and abandoned after `Options.tool_grace_seconds`; a restored batch goes on being
        cancelled and replays nothing.  `Unchanged` where nothing is left to cancel.
        """
        return cast("Answer", await self._runtime.ask(self.address, CancelBatch()))

    async def finalize_externally(self) -> Answer:
        """End the batch and remove all it owns but the entries already placed; durable on return.

        Running tools are cancelled, and whatever they still write is refused.  No batch completion is recorded.
        `Unchanged` on a finished batch.
        """
        return cast("Answer", await self._runtime.ask(self.address, FinalizeBatch()))

    async def calls(self) -> list[CallView]:
        """The calls in source order, as stored behind every earlier write."""
        return await self._runtime.call(call_views, self._runtime.line, self.address)


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
        when the runtime closes, `StoreFault` after a live `runtime.faulted` event when the store fails.
        """
        return self._runtime.events(_count("after", after), follow=follow)

    async def dead_letters(self, after: int = 0) -> list[DeadLetter]:
        """Refused and fenced calls with `seq` above `after`, oldest first (G-7)."""
        return await self._runtime.call(self._runtime.line.load_dead_letters, _count("after", after))

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


def _require(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{field} must be a {kind.__name__}, not {value!r}")


def _count(field: str, value: int) -> int:
    """A sequence number to start after."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be an int, not {value!r}")
    if not 0 <= value < 2**63:
        raise ValueError(f"{field} must be 0 or more and fit 64 bits, not {value!r}")
    return value


def _seconds(field: str, value: float) -> float:
    """A budget: 0 or more, infinity for as long as it takes."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{field} must be 0 or more, not {value!r}")
    return float(value) if value < _FOREVER_SECONDS else math.inf


def _text(field: str, value: str) -> str:
    """Free text that a host hands in; whatever it is, it is kept as text that every store can hold."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a str, not {value!r}")
    return storable_text(value)
