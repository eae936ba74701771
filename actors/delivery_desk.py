"""The part of a pane's actor that sends: mailboxes that are polled, native controls, chat turns.

The protocol is `delivery_state`; this shell looks rows up, commits, hands out, waits and answers.  The desk does what
its parts share: `intake` takes the calls, `seats` serves the mailboxes that are polled, `native` the controls of
harnesses, and `operator` hears what a person says of a delivery.

* One original at a time: `row` is the pane's unresolved delivery, `pending` one that has not left yet (it is queued
  for a poll, or its harness is being looked at).  While there is either, another `deliver` sends nothing.
* A row is committed before its message can leave: before a poll is answered with it, before a control or a runner is
  called.  What was in flight when an activation ended is uncertain to the next one, which writes that down first.
* Nothing here keeps the actor from its next message.  Whoever waits is parked, and whatever takes time (a look at the
  harness, a dispatch, a deadline) is a child task that comes back as a message with this activation's number.  That
  number is all the fence they need, so the next activation does not wait for one that ignores its cancellation.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from fencepost.actors.actor import Actor
from fencepost.actors.delivery_calls import (
    Deadline,
    SendEnded,
    TimeIsUp,
)
from fencepost.actors.delivery_intake import Intake, another_panes
from fencepost.actors.delivery_messages import (
    ChannelMessage,
    Mechanism,
    MechanismOutcome,
    NativeSession,
    TurnEnd,
    text_of,
)
from fencepost.actors.delivery_native import NativeSends
from fencepost.actors.delivery_operator import OperatorWords
from fencepost.actors.delivery_seats import Seats
from fencepost.actors.delivery_state import (
    Heard,
    Message,
    dispatch as new_row,
    dispatched_event,
    hear as after_hearing,
    never_sent,
    pending_report,
    report_of,
    reported_event,
    words,
)
from fencepost.actors.delivery_waiting import Pending, Waiting
from fencepost.actors.messages import Reason, Refused
from fencepost.mailbox.delivery_records import DeliveryRecord
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import MutationRefused
from fencepost.mailbox.mutation import Mutation, NewDeadLetter, NewEvent
from fencepost.mailbox.query import Query
from fencepost.mailbox.text import told

__all__ = ["DeliveryDesk"]

INTERRUPTED: Final = "the runtime, or its actor, ended while it was under way"


class DeliveryDesk:
    """The outbound deliveries of one pane, for one activation of its actor."""

    def __init__(self, actor: Actor, pane_id: str, mechanisms: Mapping[str, Mechanism]) -> None:
        self.actor = actor
        self.system = actor.system
        self.pane_id = pane_id
        self.mechanisms = mechanisms
        self.row: DeliveryRecord | None = None
        self.pending: Pending | None = None
        self.waiting = Waiting()
        self.intake = Intake(self)
        self.native = NativeSends(self)
        self.seats = Seats(self)
        self.operator = OperatorWords(self)

    # -- life --

    async def take_up(self, row: DeliveryRecord | None) -> None:
        """Go on from the pane's unresolved row; what was in flight in an earlier life is uncertain in this one."""
        self.row = row
        if row is not None and row.outcome is None:
            await self.hear("recover_delivery", row, words(row.mechanism, Heard.SILENCE, INTERRUPTED))

    @property
    def owes(self) -> bool:
        """Whether somebody waits here."""
        return self.waiting.owed

    def leftovers(self) -> list[Envelope]:
        """Everybody who waits in this activation."""
        return [*self.waiting]

    # -- sending --

    async def send(
        self,
        run: Callable[[ChannelMessage], Awaitable[MechanismOutcome | TurnEnd]],
        wait_seconds: float,
        mechanism: str | None = None,
    ) -> None:
        """Commit the row of the pending delivery, then call the bridge's own function with it."""
        row = await self.dispatch(mechanism=mechanism)
        if row is None:
            return
        message = ChannelMessage(row.delivery_id, row.pane_id, row.text)
        self.start_sending(row, lambda: self.system.callback(run, message), wait_seconds)

    async def dispatch(
        self, session: NativeSession | None = None, mechanism: str | None = None
    ) -> DeliveryRecord | None:
        """Commit the row of the pending delivery: from here on it may have left.  None: its id was taken meanwhile."""
        assert self.pending is not None
        message = self.pending.message
        if mechanism is not None:
            message = Message(
                delivery_id=message.delivery_id, pane_id=message.pane_id, mechanism=mechanism, text=message.text
            )
        now = self.system.clock.now_ns()
        row = new_row(message, now, session)
        if not await self._commit_first("dispatch", row, dispatched_event(row, now)):
            return None
        self.row = row
        return row

    def start_sending(
        self, row: DeliveryRecord, call: Callable[[], Awaitable[MechanismOutcome | TurnEnd]], seconds: float
    ) -> None:
        """Call the bridge beside the actor's loop; the row is durable, so whatever becomes of it can be told."""
        self.waiting.sending[row.delivery_id] = self.actor.spawn(self._await_sending, row, call, fenced=True)
        self.arm(Deadline.ANSWER, row.delivery_id, seconds)

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
        await self.system.ask(self.actor.address, SendEnded(self.actor.activation, row.delivery_id, outcome))

    async def send_ended(self, envelope: Envelope, message: SendEnded) -> None:
        """A dispatch came back: hear what it said."""
        if message.activation == self.actor.activation:
            self.waiting.sending.pop(message.delivery_id, None)
            self.waiting.lapsed.discard(message.delivery_id)
            self.disarm(Deadline.ANSWER, message.delivery_id)
            await self._hear_of("end_dispatch", message.delivery_id, message.outcome)
        self.actor.answer(envelope, None)

    # -- deadlines --

    def arm(self, deadline: Deadline, subject: str, seconds: float) -> None:
        """Have the actor told when so many seconds have passed; infinity is never."""
        if seconds < math.inf:
            self.waiting.alarms[deadline, subject] = self.actor.spawn(self._remind, deadline, subject, seconds)

    def disarm(self, deadline: Deadline, subject: str) -> None:
        """The deadline was met."""
        alarm = self.waiting.alarms.pop((deadline, subject), None)
        if alarm is not None:
            alarm.cancel()

    async def _remind(self, deadline: Deadline, subject: str, seconds: float) -> None:
        """Child task: tell the actor when the time is up."""
        await trio.sleep(seconds)
        await self.system.ask(self.actor.address, TimeIsUp(self.actor.activation, deadline, subject))

    async def time_is_up(self, envelope: Envelope, message: TimeIsUp) -> None:
        """A deadline passed, unless it was met or this is another activation's."""
        mine = message.activation == self.actor.activation
        if mine and self.waiting.alarms.pop((message.deadline, message.subject), None) is not None:
            await self._pass_deadline(message.deadline, message.subject)
        self.actor.answer(envelope, None)

    async def _pass_deadline(self, deadline: Deadline, subject: str) -> None:
        match deadline:
            case Deadline.POLL:
                self.actor.answer(self.waiting.pollers.pop(subject), [])
            case Deadline.GRACE:
                await self.seats.nobody_polled(subject)
            case Deadline.REPLY:
                await self.seats.close_window(subject)
            case Deadline.ACKNOWLEDGEMENT:
                await self._silence(subject, f"no acknowledgement: waited for {deadline.value} in vain")
            case Deadline.ANSWER:
                await self._no_answer(subject)
            case Deadline.INSPECTION:
                await self.native.not_seen(subject)

    async def _no_answer(self, delivery_id: str) -> None:
        """A chat turn goes on without its caller; a native control that stays silent leaves its dispatch uncertain."""
        row = self.row
        if row is None or row.delivery_id != delivery_id:
            return
        if row.mechanism == "channel_turn":
            self.waiting.lapsed.add(delivery_id)
            for envelope in self.waiting.callers.pop(delivery_id, []):
                self.actor.answer(envelope, pending_report(row))
            return
        await self._silence(delivery_id, "the control did not answer in time")
        scope = self.waiting.sending.pop(delivery_id, None)
        if scope is not None:
            self.actor.abandon(scope)

    async def _silence(self, delivery_id: str, detail: str) -> None:
        if self.row is not None and self.row.delivery_id == delivery_id:
            said = words(self.row.mechanism, Heard.SILENCE, detail)
            await self.hear("expire", self.row, said)

    # -- writing and answering --

    async def end_unsent(self, transition: str, said: MechanismOutcome) -> None:
        """The pending delivery never left; that is final for its id."""
        assert self.pending is not None
        message = self.pending.message
        now = self.system.clock.now_ns()
        row = never_sent(message, said, now)
        if await self._commit_first(transition, row, reported_event(row, now)):
            self.answer_all(message.delivery_id, row)

    async def _hear_of(self, transition: str, delivery_id: str, said: MechanismOutcome) -> None:
        row = await self.find(delivery_id)
        if row is not None:
            await self.hear(transition, row, said)

    async def hear(
        self,
        transition: str,
        row: DeliveryRecord,
        said: MechanismOutcome,
        *,
        reply: str | None = None,
        answer: bool = True,
    ) -> bool:
        """Write down what was heard of a delivery, then tell its callers; whether it changed anything."""
        now = self.system.clock.now_ns()
        after = after_hearing(row, said, now, reply=reply)
        if after is None:
            return False
        await self._commit(transition, after, reported_event(after, now))
        if self.row is not None and self.row.delivery_id == after.delivery_id:
            self.row = after if after.resolved_at is None else None
        if answer:
            self.answer_all(after.delivery_id, after)
        return True

    async def _commit_first(self, transition: str, row: DeliveryRecord, event: NewEvent) -> bool:
        """Commit the first row of the pending delivery; whether there was room for it.

        If another pane used its id meanwhile, the delivery is dropped, and its callers are told what they would have
        been told a moment later.  It is their trouble: whoever polled, or looked, or let the time pass, goes on.
        """
        assert self.pending is not None
        self.pending = None
        self.disarm(Deadline.GRACE, row.delivery_id)
        try:
            await self._commit(transition, row, event)
        except MutationRefused:
            for envelope in self.waiting.callers.pop(row.delivery_id, []):
                envelope.reply.fail(another_panes(row.delivery_id))
            return False
        return True

    async def _commit(self, transition: str, row: DeliveryRecord, event: NewEvent) -> None:
        self.actor.reached(transition, "decided")
        await self.system.line.commit(Mutation(label=f"pane.{transition}", puts=(row,), events=(event,)))
        self.actor.reached(transition, "applied")

    async def find(self, delivery_id: str) -> DeliveryRecord | None:
        """A delivery to this pane: the unresolved one from memory, any other from the store."""
        if self.row is not None and self.row.delivery_id == delivery_id:
            return self.row
        (rows,) = await self.system.line.load(
            Query(DeliveryRecord, {"delivery_id": delivery_id, "pane_id": self.pane_id})
        )
        return rows[0] if rows else None

    def wait_for(self, delivery_id: str, envelope: Envelope) -> None:
        """Answer this caller with the report of that delivery."""
        self.waiting.callers.setdefault(delivery_id, []).append(envelope)

    async def answer_callers(self, delivery_id: str) -> None:
        """Answer whoever waits for that delivery with its report."""
        row = await self.find(delivery_id)
        if row is not None:
            self.answer_all(delivery_id, row)

    def answer_all(self, delivery_id: str, row: DeliveryRecord) -> None:
        """Answer whoever waits for that delivery with the report of `row`."""
        for envelope in self.waiting.callers.pop(delivery_id, []):
            self.actor.answer(envelope, report_of(row))

    async def refuse(self, envelope: Envelope, reason: Reason, detail: str) -> None:
        """Refuse a call; the refusal is kept as a dead letter (DA-21)."""
        call = envelope.message.CALL
        letter = NewDeadLetter(
            at=self.system.clock.now_ns(),
            address=self.actor.address,
            call=call,
            incarnation_id=None,
            reason=reason.value,
            detail=detail,
        )
        await self.system.line.commit(Mutation(label=f"pane.{call}", dead_letters=(letter,)))
        self.actor.answer(envelope, Refused(reason, detail))


def _outcome_of(mechanism: str, said: object) -> MechanismOutcome:
    """What a bridge's own function answered, as an outcome; anything else is silence with that in its detail."""
    match said:
        case MechanismOutcome():
            return said
        case TurnEnd(outcome, native, text):
            return MechanismOutcome(outcome, native, None, text)
        case _:
            return words(mechanism, Heard.SILENCE, f"it answered {text_of(said)}")
