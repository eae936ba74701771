"""The part of a pane's actor that sends: mailboxes that are polled, native controls, chat turns.

The protocol is `delivery_state`; this shell looks rows up, commits, hands out, waits and answers.

* One original at a time: `_row` is the pane's unresolved delivery, `_pending` one that has not left yet (it is queued
  for a poll, or its harness is being looked at).  While there is either, another `deliver` sends nothing.
* A row is committed before its message can leave: before a poll is answered with it, before a control or a runner is
  called.  What was in flight when an activation ended is uncertain to the next one, which writes that down first.
* Nothing here keeps the actor from its next message.  Whoever waits is parked, and whatever takes time (a look at the
  harness, a dispatch, a deadline) is a child task that comes back as a message with this activation's number.
* A record that cannot be read blocks its whole mechanism: it might be about any pane (contract DA-1).  So every
  delivery first reads all unresolved rows of its mechanism.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias, cast

import trio
from attrs import define, field, frozen

from fencepost.actors.actor import Actor
from fencepost.actors.calls import Call
from fencepost.actors.delivery_calls import (
    AcknowledgeEvent,
    CancelDelivery,
    Deadline,
    Deliver,
    Inspected,
    PollEvents,
    ReconcileDelivery,
    ReplyEvent,
    SendEnded,
    TimeIsUp,
)
from fencepost.actors.delivery_messages import (
    ChannelMessage,
    ChannelTurn,
    DeliveryReport,
    FleetSeatMailbox,
    HarnessSeatControl,
    HeadSeatOutbox,
    MailboxEvent,
    Mechanism,
    MechanismOutcome,
    NativeSession,
    Outbound,
    SendingMechanism,
    TurnEnd,
)
from fencepost.actors.delivery_state import (
    Heard,
    Message,
    abandon,
    blocked_report,
    dispatch,
    dispatched_event,
    hear,
    never_sent,
    pending_report,
    proves,
    report_of,
    reported_event,
    words,
)
from fencepost.actors.messages import Answer, Applied, Reason, Refused, Unchanged
from fencepost.mailbox.claim import fingerprint_of
from fencepost.mailbox.delivery_records import DeliveryRecord, SettlementRecord
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import CorruptRecord, InvalidTransition, MutationRefused, UnmappedMechanism
from fencepost.mailbox.ladder import Stop
from fencepost.mailbox.mutation import Mutation, NewDeadLetter, NewEvent
from fencepost.mailbox.query import Query
from fencepost.mailbox.text import storable_text, told

__all__ = ["DeliveryDesk"]

Mailbox: TypeAlias = HeadSeatOutbox | FleetSeatMailbox

INTERRUPTED: Final = "the runtime, or its actor, ended while it was under way"


@frozen
class _Pending:
    """A delivery that has not left yet."""

    message: Message
    mechanism: Mechanism


@define(eq=False)
class _Waiting:
    """Who waits for what, in this activation."""

    callers: dict[str, list[Envelope]] = field(factory=dict)
    """By delivery id, those who called `deliver`."""
    pollers: dict[str, Envelope] = field(factory=dict)
    alarms: dict[tuple[Deadline, str], trio.CancelScope] = field(factory=dict)
    sending: dict[str, trio.CancelScope] = field(factory=dict)


class DeliveryDesk:
    """The outbound deliveries of one pane, for one activation of its actor."""

    def __init__(self, actor: Actor, pane_id: str, mechanisms: Mapping[str, Mechanism]) -> None:
        self._actor = actor
        self._system = actor.system
        self._pane_id = pane_id
        self._mechanisms = mechanisms
        self._row: DeliveryRecord | None = None
        self._pending: _Pending | None = None
        self._waiting = _Waiting()
        self._polls = itertools.count(1)
        self._reply_open: set[str] = set()
        """Acknowledged events of a head seat whose reply window is open."""
        self.serving: dict[type[Call], Callable[[Envelope], Awaitable[None]]] = {
            Deliver: self._deliver,
            ReconcileDelivery: self._reconcile,
            PollEvents: self._poll,
            AcknowledgeEvent: self._acknowledge,
            ReplyEvent: self._reply,
            CancelDelivery: self._cancel,
            TimeIsUp: self._time_is_up,
            Inspected: self._inspected,
            SendEnded: self._send_ended,
        }

    # -- life --

    async def take_up(self, row: DeliveryRecord | None) -> None:
        """Go on from the pane's unresolved row; what was in flight in an earlier life is uncertain in this one."""
        self._row = row
        if row is not None and row.outcome is None:
            await self._hear("recover_delivery", row, words(row.mechanism, Heard.SILENCE, INTERRUPTED))

    @property
    def owes(self) -> bool:
        """Whether somebody waits here."""
        return bool(self._waiting.callers or self._waiting.pollers)

    def leftovers(self) -> list[Envelope]:
        """Everybody who waits in this activation."""
        callers = itertools.chain.from_iterable(self._waiting.callers.values())
        return [*callers, *self._waiting.pollers.values()]

    # -- sending --

    async def _deliver(self, envelope: Envelope) -> None:
        outbound = cast("Deliver", envelope.message).outbound
        mechanism = self._mechanisms.get(outbound.via)
        if mechanism is None:
            raise UnmappedMechanism(outbound.via, "was not registered with this runtime")
        try:
            report = await self._report_instead(outbound)
        except CorruptRecord as damage:
            said = words(outbound.via, Heard.SILENCE)
            report = DeliveryReport(
                delivery_id=outbound.delivery_id,
                stage=None,
                stop=Stop.UNCERTAIN,
                mechanism=outbound.via,
                outcome=said.outcome,
                native=said.native,
                detail=f"nothing was sent, because a record of this mechanism cannot be read: {damage}",
            )
        if report is None and self._row is not None and self._can_inspect(self._row):
            self._wait_for(self._row.delivery_id, envelope)
            self._inspect(self._row.delivery_id, self._mechanisms[self._row.mechanism])
        elif report is None and self._row is not None:
            self._actor.answer(envelope, blocked_report(self._row))
        elif report is not None:
            self._actor.answer(envelope, report)
        else:
            await self._begin(envelope, self._message_of(outbound), mechanism)

    async def _report_instead(self, outbound: Outbound) -> DeliveryReport | None:
        """The report of a call that begins nothing, or None; a fence that might still be lifted is none yet."""
        known = await self._known(outbound)
        if known is not None and known.delivery_id != (self._row and self._row.delivery_id):
            return report_of(known, asked=outbound.text)
        if self._pending is not None:
            return blocked_report(self._pending.message)
        if self._row is not None and self._row.outcome is None:
            return blocked_report(self._row)
        if not outbound.text.strip():
            return _rejected(outbound, "the text is blank")
        return None

    async def _known(self, outbound: Outbound) -> DeliveryRecord | None:
        """The row of the id that is asked for; on the way, look whether all that fences can be read."""
        unresolved = Query(DeliveryRecord, {"mechanism": outbound.via, "resolved_at": None})
        mine = Query(DeliveryRecord, {"pane_id": self._pane_id, "resolved_at": None})
        same = Query(DeliveryRecord, {"delivery_id": outbound.delivery_id})
        _, fencing, rows = await self._system.line.load(unresolved, mine, same)
        self._row = next(iter(fencing), None)
        if rows and rows[0].pane_id != self._pane_id:
            raise InvalidTransition(f"{outbound.delivery_id} is the id of a delivery to another pane")
        return rows[0] if rows else None

    def _message_of(self, outbound: Outbound) -> Message:
        delivery_id = outbound.delivery_id or self._system.ids.new_id("delivery")
        return Message(
            delivery_id=delivery_id, pane_id=self._pane_id, mechanism=outbound.via, text=storable_text(outbound.text)
        )

    async def _begin(self, envelope: Envelope, message: Message, mechanism: Mechanism) -> None:
        self._wait_for(message.delivery_id, envelope)
        self._pending = _Pending(message, mechanism)
        match mechanism:
            case HeadSeatOutbox() | FleetSeatMailbox():
                self._arm(Deadline.GRACE, message.delivery_id, mechanism.grace_seconds)
                await self._hand_out()
            case HarnessSeatControl():
                self._inspect(message.delivery_id, mechanism)
            case ChannelTurn():
                await self._send(mechanism.runner, mechanism.wait_seconds)
            case _:
                await self._send(cast("SendingMechanism", mechanism).send, math.inf)

    async def _send(
        self,
        run: Callable[[ChannelMessage], Awaitable[MechanismOutcome | TurnEnd]],
        wait_seconds: float,
        mechanism: str | None = None,
    ) -> None:
        """Commit the row of the pending delivery, then call the bridge's own function with it."""
        row = await self._dispatch(mechanism=mechanism)
        message = ChannelMessage(row.delivery_id, row.pane_id, row.text)
        self._start_sending(row, lambda: self._system.callback(run, message), wait_seconds)

    async def _dispatch(self, session: NativeSession | None = None, mechanism: str | None = None) -> DeliveryRecord:
        """Commit the row of the pending delivery: from here on it may have left."""
        assert self._pending is not None
        message = self._pending.message
        if mechanism is not None:
            message = Message(
                delivery_id=message.delivery_id, pane_id=message.pane_id, mechanism=mechanism, text=message.text
            )
        now = self._system.clock.now_ns()
        row = dispatch(message, now, session)
        await self._commit_first("dispatch", row, dispatched_event(row, now))
        self._row = row
        return row

    def _start_sending(
        self, row: DeliveryRecord, call: Callable[[], Awaitable[MechanismOutcome | TurnEnd]], seconds: float
    ) -> None:
        self._waiting.sending[row.delivery_id] = self._actor.spawn(self._await_sending, row, call)
        self._arm(Deadline.ANSWER, row.delivery_id, seconds)

    async def _await_sending(
        self, row: DeliveryRecord, call: Callable[[], Awaitable[MechanismOutcome | TurnEnd]]
    ) -> None:
        """Child task: call what sends, and report what it said."""
        try:
            said = await call()
        except Exception as error:  # noqa: BLE001 - whatever it raised, nobody knows how far the message got
            outcome = words(row.mechanism, Heard.SILENCE, told(error))
        else:
            outcome = _outcome_of(row.mechanism, said)
        await self._system.ask(self._actor.address, SendEnded(self._actor.activation, row.delivery_id, outcome))

    async def _send_ended(self, envelope: Envelope) -> None:
        message = cast("SendEnded", envelope.message)
        if message.activation == self._actor.activation:
            self._waiting.sending.pop(message.delivery_id, None)
            self._disarm(Deadline.ANSWER, message.delivery_id)
            await self._hear_of("end_dispatch", message.delivery_id, message.outcome)
        self._actor.answer(envelope, None)

    # -- a native session: looked at before the dispatch, and to prove an earlier one --

    def _can_inspect(self, row: DeliveryRecord) -> bool:
        return row.session_id is not None and isinstance(self._mechanisms.get(row.mechanism), HarnessSeatControl)

    def _inspect(self, delivery_id: str, mechanism: Mechanism) -> None:
        assert isinstance(mechanism, HarnessSeatControl)
        self._actor.spawn(self._await_inspection, delivery_id, mechanism)

    async def _await_inspection(self, delivery_id: str, mechanism: HarnessSeatControl) -> None:
        """Child task: look at the pane's harness."""
        seen: object = None
        fault = f"the harness could not be looked at within {mechanism.answer_seconds} s"
        try:
            with trio.move_on_after(mechanism.answer_seconds):
                seen = await self._system.callback(mechanism.control.inspect, self._pane_id)
                fault = "no session runs there" if seen is None else f"inspect answered {seen!r}"
        except Exception as error:  # noqa: BLE001 - a harness that cannot be looked at is not there
            fault = told(error)
        session = seen if isinstance(seen, NativeSession) and seen.pane_id == self._pane_id else None
        await self._system.ask(self._actor.address, Inspected(self._actor.activation, delivery_id, session, fault))

    async def _inspected(self, envelope: Envelope) -> None:
        message = cast("Inspected", envelope.message)
        if message.activation == self._actor.activation:
            if self._pending is not None and self._pending.message.delivery_id == message.delivery_id:
                await self._send_natively(message.session, message.fault)
            else:
                await self._judge_evidence(message.delivery_id, message.session)
        self._actor.answer(envelope, None)

    async def _send_natively(self, session: NativeSession | None, fault: str) -> None:
        """The harness was looked at: send to exactly the session that was seen, or say that there was none."""
        assert self._pending is not None
        mechanism = self._pending.mechanism
        assert isinstance(mechanism, HarnessSeatControl)
        if session is None:
            await self._end_unsent("offline", words("harness_seat", Heard.NOBODY, fault))
            return
        row = await self._dispatch(session)
        send = mechanism.control.send
        self._start_sending(
            row,
            lambda: self._system.callback(send, session, row.delivery_id, row.text),
            mechanism.answer_seconds,
        )

    async def _judge_evidence(self, delivery_id: str, seen: NativeSession | None) -> None:
        """A new call looks whether the unresolved original arrived; its own text is not sent, whatever the answer."""
        row = self._row
        if row is not None and row.delivery_id == delivery_id and seen is not None and proves(row, seen):
            await self._hear("prove", row, words(row.mechanism, Heard.PROVED), answer=False)
        original = await self._find(delivery_id)
        assert original is not None  # its callers wait because it is there
        for envelope in self._waiting.callers.pop(delivery_id, []):
            self._actor.answer(envelope, _after_evidence(original, cast("Deliver", envelope.message).outbound))

    # -- mailboxes: an event is taken, acknowledged, perhaps replied to --

    async def _poll(self, envelope: Envelope) -> None:
        wait_seconds = cast("PollEvents", envelope.message).wait_seconds
        number = str(next(self._polls))
        self._waiting.pollers[number] = envelope
        await self._hand_out()
        if number in self._waiting.pollers:
            if wait_seconds <= 0:
                del self._waiting.pollers[number]
                self._actor.answer(envelope, [])
            else:
                self._arm(Deadline.POLL, number, wait_seconds)

    async def _hand_out(self) -> None:
        """Give the queued event to the poll that has waited longest and is still there."""
        pending = self._pending
        if pending is None or not isinstance(pending.mechanism, HeadSeatOutbox | FleetSeatMailbox):
            return
        self._forget_gone_pollers()
        number = next(iter(self._waiting.pollers), None)
        if number is None:
            return
        envelope = self._waiting.pollers[number]  # stays parked until it is answered: a death on the way is its own
        row = await self._dispatch()
        self._disarm(Deadline.GRACE, row.delivery_id)
        self._arm(Deadline.ACKNOWLEDGEMENT, row.delivery_id, pending.mechanism.acknowledge_seconds)
        del self._waiting.pollers[number]
        self._disarm(Deadline.POLL, number)
        event = MailboxEvent(row.delivery_id, row.delivery_id, row.pane_id, row.mechanism, row.text)
        self._actor.answer(envelope, [event])

    def _forget_gone_pollers(self) -> None:
        for number, envelope in list(self._waiting.pollers.items()):
            if envelope.reply.abandoned:
                del self._waiting.pollers[number]
                self._disarm(Deadline.POLL, number)

    async def _acknowledge(self, envelope: Envelope) -> None:
        message = cast("AcknowledgeEvent", envelope.message)
        row = await self._event(message.event_id)
        if row is None:
            await self.refuse(envelope, Reason.UNKNOWN_DELIVERY, f"no event {message.event_id} was handed out here")
            return
        said = words(row.mechanism, Heard.ACKNOWLEDGED)
        outcome = MechanismOutcome(said.outcome, message.native or said.native, message.delay)
        if row.mechanism == "head_seat" and message.native is not None:
            outcome = MechanismOutcome(said.outcome, None, message.delay, f"the seat said {message.native!r}")
        self._disarm(Deadline.ACKNOWLEDGEMENT, row.delivery_id)
        window = self._reply_seconds(row)
        applied = await self._hear("acknowledge", row, outcome, answer=window <= 0)
        if applied and window > 0:
            self._reply_open.add(row.delivery_id)
            self._arm(Deadline.REPLY, row.delivery_id, window)
        self._answer_event(envelope, applied=applied)

    async def _reply(self, envelope: Envelope) -> None:
        message = cast("ReplyEvent", envelope.message)
        row = await self._event(message.event_id)
        if row is None:
            await self.refuse(envelope, Reason.UNKNOWN_DELIVERY, f"no event {message.event_id} was handed out here")
            return
        acknowledged = row.resolved_at is not None
        if acknowledged and row.mechanism == "head_seat" and row.reply is None and not self._is_reply_open(row):
            await self.refuse(envelope, Reason.REPLY_TOO_LATE, "the window for a reply is over")
            return
        self._disarm(Deadline.ACKNOWLEDGEMENT, row.delivery_id)
        self._disarm(Deadline.REPLY, row.delivery_id)
        self._reply_open.discard(row.delivery_id)
        said = words(row.mechanism, Heard.REPLIED)
        applied = await self._hear("reply", row, said, reply=storable_text(message.text))
        self._answer_event(envelope, applied=applied)

    def _is_reply_open(self, row: DeliveryRecord) -> bool:
        return row.delivery_id in self._reply_open

    def _reply_seconds(self, row: DeliveryRecord) -> float:
        """How long the callers of this event still wait for a reply once it is acknowledged."""
        mechanism = self._mechanisms.get(row.mechanism)
        waited_for = row.delivery_id in self._waiting.callers
        return mechanism.reply_seconds if isinstance(mechanism, HeadSeatOutbox) and waited_for else 0

    async def _event(self, event_id: str) -> DeliveryRecord | None:
        """The row of an event that was handed out to a poll of this pane."""
        row = await self._find(event_id)
        polled = row is not None and row.dispatched_at is not None and row.mechanism in {"head_seat", "fleet_seat"}
        return row if polled else None

    def _answer_event(self, envelope: Envelope, *, applied: bool) -> None:
        answer: Answer = Applied() if applied else Unchanged()
        self._actor.answer(envelope, answer)

    # -- deadlines --

    def _arm(self, deadline: Deadline, subject: str, seconds: float) -> None:
        if seconds < math.inf:
            self._waiting.alarms[deadline, subject] = self._actor.spawn(self._remind, deadline, subject, seconds)

    def _disarm(self, deadline: Deadline, subject: str) -> None:
        alarm = self._waiting.alarms.pop((deadline, subject), None)
        if alarm is not None:
            alarm.cancel()

    async def _remind(self, deadline: Deadline, subject: str, seconds: float) -> None:
        """Child task: tell the actor when the time is up."""
        await trio.sleep(seconds)
        await self._system.ask(self._actor.address, TimeIsUp(self._actor.activation, deadline, subject))

    async def _time_is_up(self, envelope: Envelope) -> None:
        message = cast("TimeIsUp", envelope.message)
        mine = message.activation == self._actor.activation
        if mine and self._waiting.alarms.pop((message.deadline, message.subject), None) is not None:
            await self._pass_deadline(message.deadline, message.subject)
        self._actor.answer(envelope, None)

    async def _pass_deadline(self, deadline: Deadline, subject: str) -> None:
        match deadline:
            case Deadline.POLL:
                self._actor.answer(self._waiting.pollers.pop(subject), [])
            case Deadline.GRACE:
                await self._nobody_polled()
            case Deadline.REPLY:
                self._reply_open.discard(subject)
                await self._answer_callers(subject)
            case Deadline.ACKNOWLEDGEMENT:
                await self._silence(subject, f"no acknowledgement: waited for {deadline.value} in vain")
            case Deadline.ANSWER:
                await self._no_answer(subject)

    async def _nobody_polled(self) -> None:
        """The grace is over and the event was never taken: nothing left, and only now may the seat's fallback run."""
        if self._pending is None:
            return
        mechanism = self._pending.mechanism
        if isinstance(mechanism, HeadSeatOutbox) and mechanism.fallback is not None:
            await self._send(mechanism.fallback, math.inf, "channel_turn")
            return
        said = words(self._pending.message.mechanism, Heard.NOBODY, "nobody polled for it")
        await self._end_unsent("unbound", said)

    async def _no_answer(self, delivery_id: str) -> None:
        """A chat turn goes on without its caller; a native control that stays silent leaves its dispatch uncertain."""
        row = self._row
        if row is None or row.delivery_id != delivery_id:
            return
        if row.mechanism == "channel_turn":
            for envelope in self._waiting.callers.pop(delivery_id, []):
                self._actor.answer(envelope, pending_report(row))
            return
        await self._silence(delivery_id, "the control did not answer in time")
        scope = self._waiting.sending.get(delivery_id)
        if scope is not None:
            scope.cancel()

    async def _silence(self, delivery_id: str, detail: str) -> None:
        if self._row is not None and self._row.delivery_id == delivery_id:
            said = words(self._row.mechanism, Heard.SILENCE, detail)
            await self._hear("expire", self._row, said)

    # -- an operator's word --

    async def _reconcile(self, envelope: Envelope) -> None:
        message = cast("ReconcileDelivery", envelope.message)
        row = await self._find(message.delivery_id)
        if row is None:
            raise InvalidTransition(f"there is no delivery {message.delivery_id} to this pane")
        if row.uncertain and row.abandoned_at is None and proves(row, message.evidence):
            await self._hear("prove", row, words(row.mechanism, Heard.PROVED))
            row = await self._find(message.delivery_id) or row
        self._actor.answer(envelope, report_of(row))

    async def _cancel(self, envelope: Envelope) -> None:
        delivery_id = cast("CancelDelivery", envelope.message).delivery_id
        if self._pending is not None and self._pending.message.delivery_id == delivery_id:
            said = words(self._pending.message.mechanism, Heard.WITHDRAWN, "cancelled before it left")
            await self._end_unsent("withdraw", said)
            self._actor.answer(envelope, Applied())
            return
        row = await self._find(delivery_id)
        if row is None:
            await self.refuse(envelope, Reason.UNKNOWN_DELIVERY, f"there is no delivery {delivery_id} to this pane")
        elif row.outcome is None:
            said = words(row.mechanism, Heard.SILENCE, "cancelled after it had left")
            await self._hear("cancel", row, said)
            self._actor.answer(envelope, Applied())
        else:
            self._actor.answer(envelope, Unchanged())

    async def settle(self, delivery_id: str, approval: str) -> Answer | None:
        """Abandon an uncertain delivery; None if the id is none of this pane's outbound ones."""
        row = await self._find(delivery_id)
        if row is None:
            return None
        now = self._system.clock.now_ns()
        settled = abandon(row, now)
        if settled is None:
            return Unchanged()
        settlement = SettlementRecord(delivery_id=delivery_id, pane_id=self._pane_id, approval=approval, at=now)
        event = NewEvent(
            kind="delivery.settled",
            address=self._actor.address,
            at=now,
            data={"delivery_id": delivery_id, "approval": approval},
        )
        self._actor.reached("settle", "decided")
        await self._system.line.commit(Mutation(label="pane.settle", puts=(settled, settlement), events=(event,)))
        self._row = None
        self._actor.reached("settle", "applied")
        return Applied()

    # -- writing and answering --

    async def _end_unsent(self, transition: str, said: MechanismOutcome) -> None:
        """The pending delivery never left; that is final for its id."""
        assert self._pending is not None
        message = self._pending.message
        now = self._system.clock.now_ns()
        row = never_sent(message, said, now)
        self._disarm(Deadline.GRACE, message.delivery_id)
        await self._commit_first(transition, row, reported_event(row, now))
        self._answer_all(message.delivery_id, row)

    async def _hear_of(self, transition: str, delivery_id: str, said: MechanismOutcome) -> None:
        row = await self._find(delivery_id)
        if row is not None:
            await self._hear(transition, row, said)

    async def _hear(
        self,
        transition: str,
        row: DeliveryRecord,
        said: MechanismOutcome,
        *,
        reply: str | None = None,
        answer: bool = True,
    ) -> bool:
        """Write down what was heard of a delivery, then tell its callers; whether it changed anything."""
        now = self._system.clock.now_ns()
        after = hear(row, said, now, reply=reply)
        if after is None:
            return False
        await self._commit(transition, after, reported_event(after, now))
        if self._row is not None and self._row.delivery_id == after.delivery_id:
            self._row = after if after.resolved_at is None else None
        if answer:
            self._answer_all(after.delivery_id, after)
        return True

    async def _commit_first(self, transition: str, row: DeliveryRecord, event: NewEvent) -> None:
        """Commit the first row of the pending delivery; refused, as when its id was used elsewhere, it is dropped."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        try:
            await self._commit(transition, row, event)
        except MutationRefused as refused:
            for envelope in self._waiting.callers.pop(pending.message.delivery_id, []):
                envelope.reply.fail(refused)
            raise

    async def _commit(self, transition: str, row: DeliveryRecord, event: NewEvent) -> None:
        self._actor.reached(transition, "decided")
        await self._system.line.commit(Mutation(label=f"pane.{transition}", puts=(row,), events=(event,)))
        self._actor.reached(transition, "applied")

    async def _find(self, delivery_id: str) -> DeliveryRecord | None:
        """A delivery to this pane: the unresolved one from memory, any other from the store."""
        if self._row is not None and self._row.delivery_id == delivery_id:
            return self._row
        (rows,) = await self._system.line.load(
            Query(DeliveryRecord, {"delivery_id": delivery_id, "pane_id": self._pane_id})
        )
        return rows[0] if rows else None

    def _wait_for(self, delivery_id: str, envelope: Envelope) -> None:
        self._waiting.callers.setdefault(delivery_id, []).append(envelope)

    async def _answer_callers(self, delivery_id: str) -> None:
        row = await self._find(delivery_id)
        if row is not None:
            self._answer_all(delivery_id, row)

    def _answer_all(self, delivery_id: str, row: DeliveryRecord) -> None:
        for envelope in self._waiting.callers.pop(delivery_id, []):
            self._actor.answer(envelope, report_of(row))

    async def refuse(self, envelope: Envelope, reason: Reason, detail: str) -> None:
        """Refuse a call; the refusal is kept as a dead letter (DA-21)."""
        call = envelope.message.CALL
        letter = NewDeadLetter(
            at=self._system.clock.now_ns(),
            address=self._actor.address,
            call=call,
            incarnation_id=None,
            reason=reason.value,
            detail=detail,
        )
        await self._system.line.commit(Mutation(label=f"pane.{call}", dead_letters=(letter,)))
        self._actor.answer(envelope, Refused(reason, detail))


def _rejected(outbound: Outbound, detail: str) -> DeliveryReport:
    """The report of a message that is turned down before anything is written (DA-15)."""
    return DeliveryReport(
        delivery_id=outbound.delivery_id,
        stage=None,
        stop=Stop.REJECTED,
        mechanism=outbound.via,
        outcome="rejected",
        detail=detail,
    )


def _outcome_of(mechanism: str, said: object) -> MechanismOutcome:
    """What a bridge's own function answered, as an outcome; anything else is silence with that in its detail."""
    match said:
        case MechanismOutcome():
            return said
        case TurnEnd(outcome, native, text):
            return MechanismOutcome(outcome, native, None, text)
        case _:
            return words(mechanism, Heard.SILENCE, f"it answered {said!r}")


def _after_evidence(original: DeliveryRecord, outbound: Outbound) -> DeliveryReport:
    """The report of a call that came while `original` was unresolved and had it looked for."""
    if original.uncertain:
        return blocked_report(original)
    if fingerprint_of(outbound.text) == original.fingerprint:
        return report_of(original)
    return DeliveryReport(
        delivery_id=outbound.delivery_id,
        stage=None,
        stop=Stop.UNAVAILABLE,
        mechanism=outbound.via,
        outcome="unsent",
        detail=f"the earlier delivery {original.delivery_id} is resolved; this text was not sent",
    )
