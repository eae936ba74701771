"""Deliveries through a harness's own control: look at the session first, send to exactly that one, prove it later.

What the session was, and what its transcript held, is in the row before anything is sent.  A dispatch nothing came back
from can then be proved by a new entry in that same session, and by nothing else (protocol-delivery.md section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fencepost.actors.delivery_calls import Deadline, Deliver, Inspected
from fencepost.actors.delivery_messages import (
    DeliveryReport,
    HarnessSeatControl,
    Mechanism,
    NativeSession,
    Outbound,
    text_of,
)
from fencepost.actors.delivery_state import Heard, blocked_report, proves, report_of, words
from fencepost.mailbox.claim import fingerprint_of
from fencepost.mailbox.delivery_records import DeliveryRecord
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.ladder import Stop
from fencepost.mailbox.text import told

if TYPE_CHECKING:
    from fencepost.actors.delivery_desk import DeliveryDesk

__all__ = ["NativeSends"]


class NativeSends:
    """The native sends of one desk."""

    def __init__(self, desk: DeliveryDesk) -> None:
        self._desk = desk

    def can_inspect(self, row: DeliveryRecord) -> bool:
        """Whether the session this delivery went to might be looked at."""
        return row.session_id is not None and isinstance(self._desk.mechanisms.get(row.mechanism), HarnessSeatControl)

    def look_again(self, row: DeliveryRecord, envelope: Envelope) -> None:
        """Have an unresolved original's session looked at on behalf of a later call."""
        self._desk.waiting.looking.setdefault(row.delivery_id, []).append(envelope)
        if row.delivery_id not in self._desk.waiting.inspecting:
            self.inspect(row.delivery_id, self._desk.mechanisms[row.mechanism])

    def inspect(self, delivery_id: str, mechanism: Mechanism) -> None:
        """Have the pane's harness looked at; `inspected` goes on."""
        assert isinstance(mechanism, HarnessSeatControl)
        look = self._desk.actor.spawn(self._await_inspection, delivery_id, mechanism, fenced=True)
        self._desk.waiting.inspecting[delivery_id] = look
        self._desk.arm(Deadline.INSPECTION, delivery_id, mechanism.answer_seconds)

    async def _await_inspection(self, delivery_id: str, mechanism: HarnessSeatControl) -> None:
        """Child task: look at the pane's harness."""
        seen: object = None
        try:
            seen = await self._desk.system.callback(mechanism.control.inspect, self._desk.pane_id)
            fault = "no session runs there" if seen is None else f"inspect answered {text_of(seen)}"
        except Exception as error:  # noqa: BLE001 - a harness that cannot be looked at is not there
            fault = told(error)
        session = seen if isinstance(seen, NativeSession) and seen.pane_id == self._desk.pane_id else None
        await self._desk.system.ask(
            self._desk.actor.address, Inspected(self._desk.actor.activation, delivery_id, session, fault)
        )

    async def inspected(self, envelope: Envelope, message: Inspected) -> None:
        """The look came back, unless it was given up."""
        if message.activation == self._desk.actor.activation:
            look = self._desk.waiting.inspecting.pop(message.delivery_id, None)
            self._desk.disarm(Deadline.INSPECTION, message.delivery_id)
            if look is not None:
                await self._seen(message.delivery_id, message.session, message.fault)
        self._desk.actor.answer(envelope, None)

    async def not_seen(self, delivery_id: str) -> None:
        """The look did not come back in time; it may still run, and is not heard any more."""
        look = self._desk.waiting.inspecting.pop(delivery_id, None)
        if look is not None:
            self._desk.actor.abandon(look)
            await self._seen(delivery_id, None, "the harness could not be looked at in time")

    async def _seen(self, delivery_id: str, session: NativeSession | None, fault: str) -> None:
        """Send the pending delivery, or judge what the look shows of an earlier one."""
        if self._desk.pending is not None and self._desk.pending.message.delivery_id == delivery_id:
            await self._send_natively(session, fault)
        else:
            await self._judge_evidence(delivery_id, session)

    async def _send_natively(self, session: NativeSession | None, fault: str) -> None:
        """The harness was looked at: send to exactly the session that was seen, or say that there was none."""
        assert self._desk.pending is not None
        mechanism = self._desk.pending.mechanism
        assert isinstance(mechanism, HarnessSeatControl)
        if session is None:
            await self._desk.end_unsent("offline", words(mechanism.name, Heard.NOBODY, fault))
            return
        row = await self._desk.dispatch(session)
        if row is None:
            return
        send = mechanism.control.send
        self._desk.start_sending(
            row,
            lambda: self._desk.system.callback(send, session, row.delivery_id, row.text),
            mechanism.answer_seconds,
        )

    async def _judge_evidence(self, delivery_id: str, seen: NativeSession | None) -> None:
        """A new call looks whether the unresolved original arrived; its own text is not sent, whatever the answer."""
        row = self._desk.row
        if row is not None and row.delivery_id == delivery_id and seen is not None and proves(row, seen):
            await self._desk.hear("prove", row, words(row.mechanism, Heard.PROVED))
        for envelope in self._desk.waiting.looking.get(delivery_id, [])[:]:
            original = await self._desk.find(delivery_id)
            assert original is not None  # it was unresolved when they came, and rows are not deleted
            self._desk.actor.answer(envelope, _after_evidence(original, cast("Deliver", envelope.message).outbound))
        self._desk.waiting.looking.pop(delivery_id, None)


def _after_evidence(original: DeliveryRecord, outbound: Outbound) -> DeliveryReport:
    """The report of a call that came while `original` was unresolved and had it looked for."""
    if original.uncertain:
        return blocked_report(original, asked_id=outbound.delivery_id)
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
