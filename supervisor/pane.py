"""The handle of a pane: everything a bridge asks about one.

A handle is an address with methods; see `supervisor`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from fencepost.actors import calls, delivery_calls
from fencepost.actors.delivery_messages import (
    Binding,
    DeliveryReport,
    InboundPost,
    MailboxEvent,
    NativeSession,
    Outbound,
    Receipt,
)
from fencepost.actors.incarnation_state import LaunchRequest
from fencepost.actors.messages import (
    Answer,
    BaseTransition,
    Capabilities,
    Decision,
    DetectedIntent,
    IntentView,
    Launch,
    ModelTurn,
    SyncStatus,
    ToolBoundary,
)
from fencepost.actors.tool_calls import SnapshotBatch, StartBatch
from fencepost.actors.tool_messages import LaneSnapshot, PlannedCall, ResultEntry
from fencepost.actors.tool_plan import request_of
from fencepost.mailbox.address import check_id
from fencepost.mailbox.claim import TEXT_BYTES_MAX
from fencepost.mailbox.delivery_ids import check_delivery_id, check_digest
from fencepost.mailbox.errors import ActorCrashed, PayloadTooLarge
from fencepost.mailbox.records import BatchMode
from fencepost.mailbox.text import storable_text
from fencepost.supervisor.arguments import free_text, require, seconds
from fencepost.supervisor.tool_batch import ToolBatch
from fencepost.supervisor.views import (
    batch_records,
    intent_views,
    passed_without_turn,
    result_entries,
    unresolved_intent_views,
)

if TYPE_CHECKING:
    from fencepost.supervisor.runtime import Runtime

__all__ = ["Pane"]

_ANY_HARNESS: Final = Capabilities()


class Pane:
    """One pane of the terminal: its processes, its intents, its tool batches and its deliveries."""

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

        A harness that cannot take soft batches waits for a pending payload: for the end of the tools that its last
        process had running here, at most `Options.tool_grace_seconds`, and for the reconciliation.

        Raises `LaunchBlocked` where protocol-intent.md section 8 forbids a process; what forbids it before the old
        process is retired changes nothing, and the live incarnation stays live.  What comes up later does not bring it
        back: the Launcher cannot stop the old process, or the pane became conflicted while it was being stopped or
        while the payload was made that the new one needs first.  With a Launcher the runtime then goes on by itself
        once a person has resolved that.
        """
        check_id("harness", harness)
        if session_id is not None:
            check_id("session_id", session_id)
        require("capabilities", capabilities, Capabilities)
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
        return cast("Answer", await self._ask(calls.LaunchFailed(incarnation_id, free_text("reason", reason))))

    async def retire(self, incarnation_id: str, reason: str) -> Answer:
        """End an incarnation; from the commit on, everything it still sends is fenced.  Never relaunches."""
        check_id("incarnation_id", incarnation_id)
        return cast("Answer", await self._ask(calls.RetireIncarnation(incarnation_id, free_text("reason", reason))))

    # -- intents --

    async def detect(self, transition: BaseTransition) -> DetectedIntent:
        """A base moved.  The intent that carries it is durable on return (section 2, contract I-2).

        Raises `InvalidTransition` if the runtime has no Reconciler.
        """
        require("transition", transition, BaseTransition)
        return cast("DetectedIntent", await self._ask(calls.Detect(transition)))

    async def pre_tool_use(self, boundary: ToolBoundary, wait_seconds: float | None = None) -> Decision:
        """May this tool call run?  The first decision of its batch is durable on return (sections 3 and 4).

        Waits at most `wait_seconds` (default `Options.sibling_wait_seconds`) for a reconciliation, and before it for
        the end of an open tool batch of the pane, then blocks generically; 0 decides now.  Cancelling the caller
        decides nothing and undoes nothing.
        """
        require("boundary", boundary, ToolBoundary)
        if wait_seconds is None:
            wait_seconds = self._runtime.options.sibling_wait_seconds
        return cast("Decision", await self._ask(calls.PreToolUse(boundary, seconds("wait_seconds", wait_seconds))))

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
        message = calls.ResolveIntent(intent_id, free_text("resolution", resolution), free_text("by", by))
        return cast("Answer", await self._ask(message))

    async def rearm(self, intent_id: str) -> Answer:
        """Grant an exhausted intent a new epoch of startup attempts (section 7.5)."""
        return cast("Answer", await self._ask(calls.RearmIntent(check_id("intent_id", intent_id))))

    async def discard(self, intent_id: str, approval: str) -> Answer:
        """Give an exhausted delivery up; `approval` is the one-shot token `IntentView.approval` shows (I-14)."""
        return cast("Answer", await self._ask(calls.DiscardIntent(check_id("intent_id", intent_id), str(approval))))

    async def intents(self) -> list[IntentView]:
        """All intents of this pane, oldest first, as stored behind every earlier call, each with its payload."""
        return await self._runtime.call(intent_views, self._runtime.line, self.pane_id)

    async def unresolved_intents(self) -> list[IntentView]:
        """The intents of this pane that are not over, oldest first; otherwise as `intents`.

        It costs no more the longer the pane's history is, so it is the one to ask on every call of a hook.
        """
        return await self._runtime.call(unresolved_intent_views, self._runtime.line, self.pane_id)

    async def passed_without_turn(self, incarnation_id: str) -> list[str]:
        """The ids of the batches that this incarnation was let pass without a turn, stored behind every earlier call.

        For an adapter: one of them may still run, and be of the same model message as a call whose turn is proved.
        """
        check_id("incarnation_id", incarnation_id)
        return await self._runtime.call(passed_without_turn, self._runtime.line, self.pane_id, incarnation_id)

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

    # -- deliveries to the pane --

    async def deliver(self, outbound: Outbound) -> DeliveryReport:
        """Send a message and answer how far it got; the report is durable on return (protocol-delivery.md section 3).

        Waits as long as its mechanism does.  A call with an id that has a report is answered from the original; while
        an earlier delivery to this pane is unresolved, nothing is sent and the report is that one's, UNCERTAIN.
        Cancelling the caller only stops its waiting; see `cancel_delivery`.

        Raises `UnmappedMechanism` for a `via` this runtime was not given, `InvalidIdentifier` for an id that is no
        canonical UUID, `PayloadTooLarge` for a text over 1 MiB, `InvalidTransition` for another pane's id.
        """
        require("outbound", outbound, Outbound)
        if outbound.delivery_id is not None:
            check_delivery_id(outbound.delivery_id)
        size = len(storable_text(outbound.text).encode())
        if size > TEXT_BYTES_MAX:
            raise PayloadTooLarge(size, TEXT_BYTES_MAX)
        return cast("DeliveryReport", await self._ask(delivery_calls.Deliver(outbound)))

    async def reconcile(self, delivery_id: str, evidence: NativeSession) -> DeliveryReport:
        """Judge what a native transcript shows; only a new, complete entry in the original session proves anything.

        Raises `InvalidTransition` if this pane has no delivery of that id.
        """
        require("evidence", evidence, NativeSession)
        message = delivery_calls.ReconcileDelivery(check_delivery_id(delivery_id), evidence)
        return cast("DeliveryReport", await self._ask(message))

    async def poll_events(self, wait_seconds: float = 0) -> list[MailboxEvent]:
        """Take the pane's next mailbox event, waiting at most so long for one; a taken event is never handed out again.

        That it was taken is durable on return.  Polling acknowledges nothing.
        """
        message = delivery_calls.PollEvents(seconds("wait_seconds", wait_seconds))
        return cast("list[MailboxEvent]", await self._ask(message))

    async def acknowledge_event(self, event_id: str, native: str | None = None, delay: str | None = None) -> Answer:
        """Exactly this event was written through; `native` says how the harness took it (queued, started, steered).

        Good at any time, also after a restart.  Refused, with a dead letter, for an event nobody took here.
        """
        native = None if native is None else free_text("native", native)
        delay = None if delay is None else free_text("delay", delay)
        message = delivery_calls.AcknowledgeEvent(check_delivery_id(event_id), native, delay)
        return cast("Answer", await self._ask(message))

    async def reply_event(self, event_id: str, text: str) -> Answer:
        """The seat answers an event, which proves that it had it.  Refused once its window is over (D-17)."""
        message = delivery_calls.ReplyEvent(check_delivery_id(event_id), free_text("text", text))
        return cast("Answer", await self._ask(message))

    async def cancel_delivery(self, delivery_id: str) -> Answer:
        """Take a message back that has not left; one that has left becomes UNCERTAIN (D-18)."""
        return cast("Answer", await self._ask(delivery_calls.CancelDelivery(check_delivery_id(delivery_id))))

    async def settle(self, delivery_id: str, approval: str) -> Answer:
        """Declare an uncertain delivery abandoned, in either direction, and free what it fences (D-19).

        Its outcome stays unknown and its id is never sent or accepted again.  `approval` says who decided that.
        """
        if not free_text("approval", approval).strip():
            raise ValueError(f"approval must say who decided, not {approval!r}")
        message = delivery_calls.SettleDelivery(check_delivery_id(delivery_id), free_text("approval", approval))
        return cast("Answer", await self._ask(message))

    # -- messages from the pane --

    async def binding(self) -> Binding:
        """Which native session speaks for the pane now (D-16)."""
        return cast("Binding", await self._ask(delivery_calls.BindingQuery()))

    async def accept(self, post: InboundPost) -> Receipt:
        """Accept a message of the pane; STORED means durable, and that its turn was started (section 6.1).

        Never waits for the turn's end.  What is malformed is answered with a REJECTED receipt.
        """
        require("post", post, InboundPost)
        return cast("Receipt", await self._ask(delivery_calls.AcceptPost(post)))

    async def receipt(self, delivery_id: str, binding: str, fingerprint: str) -> Receipt:
        """Was exactly this accepted?  Never sends, accepts or dispatches anything (section 6.2)."""
        message = delivery_calls.ReceiptQuery(
            check_delivery_id(delivery_id), check_digest("binding", binding), check_digest("fingerprint", fingerprint)
        )
        return cast("Receipt", await self._ask(message))

    async def reset_conversation(self) -> Answer:
        """Begin a new conversation: its acceptances are forgotten, the tombstones of their ids never (section 8)."""
        return cast("Answer", await self._ask(delivery_calls.ResetConversation()))
