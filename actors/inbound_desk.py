"""The part of a pane's actor that accepts: posts, receipts, the turns they lead to, reset and settlement.

The protocol is `inbound_state`; this shell reads the traces, commits step by step, dispatches and answers.

A post is served from its judgement to its answer without another message of the pane in between, so two posts of one
id cannot cross.  The turn itself is a child task of this activation and ends with it: the next one finds its run
without an end and says so (`service_restarted`); it never starts it again.  A turn that ignores its cancellation runs
on, and nobody waits for it or hears its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve

from fencepost.actors.actor import Actor
from fencepost.actors.delivery_calls import AcceptPost, ReceiptQuery, RunEnded
from fencepost.actors.delivery_messages import AcceptedTurn, Binding, Dispatcher, Receipt, TurnEnd
from fencepost.actors.inbound_state import (
    SERVICE_RESTARTED,
    Accept,
    Answered,
    Asked,
    Traces,
    accepted_event,
    binding_of,
    ended_events,
    judge_lookup,
    judge_post,
    known_end,
    malformed,
    no_dispatcher,
    stored,
    too_many,
    turn_of,
    uncertain,
    unpublished,
    unreadable,
    wrapped,
)
from fencepost.actors.messages import Answer, Applied, Unchanged
from fencepost.mailbox.claim import TEXT_BYTES_MAX
from fencepost.mailbox.delivery_records import (
    AcceptanceRecord,
    ConversationRecord,
    FenceRecord,
    RunRecord,
    SettlementRecord,
    TombstoneRecord,
)
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import CorruptRecord, MutationRefused
from fencepost.mailbox.mutation import Delete, Mutation, NewEvent
from fencepost.mailbox.query import Query, first, only
from fencepost.mailbox.records import IncarnationRecord, Record
from fencepost.mailbox.text import told

__all__ = ["InboundDesk"]


class InboundDesk:
    """The inbound messages of one pane, for one activation of its actor."""

    def __init__(
        self,
        actor: Actor,
        pane_id: str,
        dispatcher: Dispatcher | None,
        live: Callable[[], IncarnationRecord | None],
    ) -> None:
        self._actor = actor
        self._system = actor.system
        self._pane_id = pane_id
        self._dispatcher = dispatcher
        self._live = live
        self._running: dict[str, RunRecord] = {}

    # -- life --

    async def take_up(self, fence: FenceRecord | None, unended: Sequence[RunRecord]) -> None:
        """Say that every turn an earlier life accepted and did not end has failed; start none again (s4 to s6)."""
        now = self._system.clock.now_ns()
        ended = [run.next(outcome="failed", native=SERVICE_RESTARTED, ended_at=now) for run in unended]
        events = [event for run in ended for event in ended_events(run, now)]
        unpublished = None if fence is None else await self._unpublished(fence)
        if unpublished is not None:
            run = _published(unpublished, now)
            ended.append(evolve(run, outcome="failed", native=SERVICE_RESTARTED, ended_at=now))
            events += [accepted_event(run, now), *ended_events(ended[-1], now)]
        if ended:
            await self._commit("recover_inbound", puts=ended, events=events)

    async def _unpublished(self, fence: FenceRecord) -> AcceptanceRecord | None:
        """The acceptance of the pending original, if it has no run yet."""
        traces = await self._look(fence.delivery_id)
        try:
            (runs,) = await self._load(Query(RunRecord, {"delivery_id": fence.delivery_id}))
        except CorruptRecord as damage:
            return unpublished(fence, damage, ())
        return unpublished(fence, traces, only(RunRecord, runs))

    # -- looking --

    async def binding(self, envelope: Envelope) -> None:
        """Tell which native session speaks for the pane now."""
        binding = binding_of(self._live())
        self._actor.answer(envelope, Binding(binding, None if binding else "no harness session is live in this pane"))

    async def _load(self, *queries: Query[Record]) -> list[list[Record]]:
        return await self._system.line.load(*queries)

    async def _traces(self, delivery_id: str) -> Traces:
        """Everything durable about an id and this pane; raises `CorruptRecord` if any of it cannot be read."""
        key = {"delivery_id": delivery_id}
        fences, elsewhere, tombstones, acceptances, settlements = await self._load(
            Query(FenceRecord, {"pane_id": self._pane_id}),
            Query(FenceRecord, key),
            Query(TombstoneRecord, key),
            Query(AcceptanceRecord, key),
            Query(SettlementRecord, {**key, "pane_id": self._pane_id}),
        )
        return Traces(
            binding=binding_of(self._live()),
            fence=first(FenceRecord, fences),
            fenced_elsewhere=any(fence.pane_id != self._pane_id for fence in only(FenceRecord, elsewhere)),
            tombstone=first(TombstoneRecord, tombstones),
            acceptance=first(AcceptanceRecord, acceptances),
            settlement=first(SettlementRecord, settlements),
        )

    async def _look(self, delivery_id: str) -> Traces | CorruptRecord:
        """The traces, or what keeps them from being read."""
        try:
            return await self._traces(delivery_id)
        except CorruptRecord as damage:
            return damage

    async def receipt(self, envelope: Envelope, message: ReceiptQuery) -> None:
        """Answer a lookup; it sends, accepts and dispatches nothing."""
        asked = Asked(
            delivery_id=message.delivery_id,
            pane_id=self._pane_id,
            binding=message.binding,
            fingerprint=message.fingerprint,
        )
        await self._answer(envelope, judge_lookup(asked, await self._look(message.delivery_id)))

    async def _answer(self, envelope: Envelope, verdict: Answered) -> None:
        if verdict.clears:
            await self._clear_fence()
        self._actor.answer(envelope, verdict.receipt)

    async def _clear_fence(self) -> None:
        await self._commit("clear_fence", deletes=(Delete(FenceRecord, (self._pane_id,)),))

    # -- accepting --

    async def accept(self, envelope: Envelope, message: AcceptPost) -> None:
        """Judge a post, and accept it if it is a new original."""
        post = message.post
        refused = malformed(post, TEXT_BYTES_MAX)
        if refused is not None:
            self._actor.answer(envelope, refused)
            return
        assert post.delivery_id is not None
        verdict = judge_post(self._pane_id, post, await self._look(post.delivery_id))
        if isinstance(verdict, Accept):
            verdict = Answered(await self._accept_new(verdict.asked, verdict.text))
        await self._answer(envelope, verdict)

    async def _accept_new(self, asked: Asked, text: str) -> Receipt:
        """The four writes, each durable before the next; then the turn, then the fence is free again."""
        if self._dispatcher is None:
            return no_dispatcher(asked)
        turns_max = getattr(self._dispatcher, "turns_max", None)
        if turns_max is not None and len(self._running) >= turns_max:
            return too_many(asked, len(self._running))
        try:
            await self._write_fence(asked)
            await self._write_tombstone(asked)
        except MutationRefused as refused:
            if refused.table == TombstoneRecord.TABLE:
                await self._clear_fence()  # another pane has this id: nothing of ours is, or ever will be, under way
            return uncertain(asked, f"this id was attempted elsewhere at the same time: {refused}")
        try:
            acceptance = await self._write_acceptance(asked, text)
            run = await self._publish(acceptance)
        except MutationRefused as refused:
            return uncertain(asked, f"somebody else wrote at the same time: {refused}")
        except CorruptRecord as damage:
            return unreadable(asked, damage)
        self._running[run.run_id] = run
        self._actor.spawn(self._run, turn_of(acceptance), self._dispatcher, fenced=True)
        await self._clear_fence()
        return stored(asked)

    async def _write_fence(self, asked: Asked) -> None:
        fence = FenceRecord(
            pane_id=self._pane_id,
            delivery_id=asked.delivery_id,
            binding=asked.binding,
            fingerprint=asked.fingerprint,
            at=self._system.clock.now_ns(),
        )
        await self._commit("fence", puts=(fence,))

    async def _write_tombstone(self, asked: Asked) -> None:
        await self._commit("tombstone", puts=(self._tombstone(asked),))

    def _tombstone(self, of: Asked | FenceRecord) -> TombstoneRecord:
        return TombstoneRecord(
            delivery_id=of.delivery_id,
            pane_id=self._pane_id,
            binding=of.binding,
            fingerprint=of.fingerprint,
            at=self._system.clock.now_ns(),
        )

    async def _write_acceptance(self, asked: Asked, text: str) -> AcceptanceRecord:
        """The *stored* boundary; the pane's first message begins its conversation."""
        now = self._system.clock.now_ns()
        conversation = await self._conversation()
        puts: tuple[Record, ...] = ()
        if conversation is None:
            conversation = ConversationRecord(
                pane_id=self._pane_id, conversation_id=self._system.ids.new_id("conversation"), at=now
            )
            puts = (conversation,)
        acceptance = AcceptanceRecord(
            delivery_id=asked.delivery_id,
            pane_id=self._pane_id,
            conversation_id=conversation.conversation_id,
            binding=asked.binding,
            fingerprint=asked.fingerprint,
            text=text,
            wrapped_text=wrapped(asked, text),
            run_id=self._system.ids.new_id("run"),
            at=now,
        )
        await self._commit("accept", puts=(*puts, acceptance))
        return acceptance

    async def _conversation(self) -> ConversationRecord | None:
        (rows,) = await self._load(Query(ConversationRecord, {"pane_id": self._pane_id}))
        return first(ConversationRecord, rows)

    async def _publish(self, acceptance: AcceptanceRecord) -> RunRecord:
        now = self._system.clock.now_ns()
        run = _published(acceptance, now)
        await self._commit("publish", puts=(run,), events=(accepted_event(run, now),))
        return run

    # -- the turn --

    async def _run(self, turn: AcceptedTurn, dispatcher: Dispatcher) -> None:
        """Child task: run the turn, once, and report its end."""
        try:
            end = known_end(await self._system.callback(dispatcher, turn))
        except Exception as error:  # noqa: BLE001 - whatever the bridge's code raises ends the turn, not the pane
            end = TurnEnd("failed", told(error))
        await self._system.ask(self._actor.address, RunEnded(self._actor.activation, turn.run_id, end))

    async def run_ended(self, envelope: Envelope, message: RunEnded) -> None:
        """A turn came to its end: write that down and tell the followers."""
        run = self._running.pop(message.run_id, None) if message.activation == self._actor.activation else None
        if run is not None:
            now = self._system.clock.now_ns()
            ended = run.next(outcome=message.end.outcome, native=message.end.native, ended_at=now)
            await self._commit("end_run", puts=(ended,), events=ended_events(ended, now))
        self._actor.answer(envelope, None)

    # -- an operator's word --

    async def reset(self, envelope: Envelope) -> None:
        """Forget the conversation's acceptances; their tombstones, and the turns that run, stay (section 8)."""
        where = {"pane_id": self._pane_id}
        acceptances, fences = await self._load(Query(AcceptanceRecord, where), Query(FenceRecord, where))
        conversation = await self._conversation()
        if conversation is None:
            self._actor.answer(envelope, Unchanged())
            return
        now = self._system.clock.now_ns()
        forgotten = {acceptance.delivery_id for acceptance in only(AcceptanceRecord, acceptances)}
        deletes = [Delete(AcceptanceRecord, (delivery_id,)) for delivery_id in sorted(forgotten)]
        # The fence of what was accepted has done its work; any other keeps the pane closed.
        if any(fence.delivery_id in forgotten for fence in only(FenceRecord, fences)):
            deletes.append(Delete(FenceRecord, (self._pane_id,)))
        after = conversation.next(conversation_id=self._system.ids.new_id("conversation"), at=now)
        event = NewEvent(
            kind="delivery.conversation_reset",
            address=self._actor.address,
            at=now,
            data={"conversation_id": after.conversation_id, "forgotten": len(forgotten)},
        )
        await self._commit("reset_conversation", puts=(after,), deletes=tuple(deletes), events=(event,))
        self._actor.answer(envelope, Applied())

    async def settle(self, delivery_id: str, approval: str) -> Answer | None:
        """Free the pane from a pending original nobody can resolve; None if the id left no trace here (DA-5)."""
        traces = await self._traces(delivery_id)
        accepted_here = traces.acceptance is not None and traces.acceptance.pane_id == self._pane_id
        fence = traces.fence
        if accepted_here or fence is None or fence.delivery_id != delivery_id:
            return None if traces.none_of_the_id else Unchanged()
        now = self._system.clock.now_ns()
        settlement = SettlementRecord(delivery_id=delivery_id, pane_id=self._pane_id, approval=approval, at=now)
        puts: list[Record] = [] if traces.tombstone is not None else [self._tombstone(fence)]
        # One of the same id that went out, or was another pane's, may have been settled before; that record is kept.
        (earlier,) = await self._load(Query(SettlementRecord, {"delivery_id": delivery_id}))
        if not earlier:
            puts.append(settlement)
        event = NewEvent(
            kind="delivery.settled",
            address=self._actor.address,
            at=now,
            data={"delivery_id": delivery_id, "approval": approval},
        )
        deletes = (Delete(FenceRecord, (self._pane_id,)),)
        await self._commit("settle", puts=puts, deletes=deletes, events=(event,))
        return Applied()

    # -- writing --

    async def _commit(
        self,
        transition: str,
        *,
        puts: Sequence[Record] = (),
        deletes: Sequence[Delete] = (),
        events: Sequence[NewEvent] = (),
    ) -> None:
        mutation = Mutation(label=f"pane.{transition}", puts=tuple(puts), deletes=tuple(deletes), events=tuple(events))
        self._actor.reached(transition, "decided")
        await self._system.line.commit(mutation)
        self._actor.reached(transition, "applied")


def _published(acceptance: AcceptanceRecord, now: int) -> RunRecord:
    """The run that the publication of an acceptance writes."""
    return RunRecord(
        run_id=acceptance.run_id,
        delivery_id=acceptance.delivery_id,
        pane_id=acceptance.pane_id,
        published_at=now,
    )
