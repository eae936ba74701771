"""Outbound deliveries: what may be sent, and what each thing that is heard proves.  Pure.

Theory of operation
===================

One row a delivery (`DeliveryRecord`), and one unresolved row a pane at most: the row is the fence.

    nothing ──dispatch──▶ in flight ──heard──▶ a stage, or a final stop      the pane is free
                              │
                           silence
                              ▼
                          uncertain ──exact id, evidence──▶ a stage          the pane is free
                              └──────settle──▶ uncertain, abandoned          the pane is free

* The row is committed before the message can leave.  What never left is written down too, when its end is final for
  its id: whoever repeats the id is answered from the row, and nothing is sent.
* Nothing but the exact id, or a new complete entry in the original native session, leads out of *uncertain*.  Time,
  a restart, a poll, another channel and a denial do not appear among the arguments of anything here.
* A stage only rises (`ladder.advance`).

Source: protocol-delivery.md sections 1 to 4; contract DA-1 to DA-3, DA-10 to DA-14, D-17 to D-19.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from attrs import frozen

from fencepost.actors.delivery_messages import DeliveryReport, MechanismOutcome, NativeSession, Outbound, text_of
from fencepost.mailbox.claim import ABANDONED, fingerprint_of
from fencepost.mailbox.delivery_records import DeliveryRecord
from fencepost.mailbox.errors import CorruptRecord, InvalidTransition, UnmappedMechanism
from fencepost.mailbox.ladder import Reach, Stage, Stop, advance, report
from fencepost.mailbox.mutation import NewEvent
from fencepost.mailbox.strict_json import json_text, json_value
from fencepost.mailbox.text import storable_text

__all__ = [
    "Begin",
    "Fenced",
    "Heard",
    "Journal",
    "Message",
    "abandon",
    "blocked_report",
    "dispatch",
    "dispatched_event",
    "hear",
    "judge_call",
    "never_sent",
    "pending_report",
    "proves",
    "report_of",
    "reported_event",
    "unreadable_report",
    "words",
]

FENCED: Final = "an earlier delivery to this pane is unresolved; nothing was sent"
UNRESOLVED: Final = "this delivery is unresolved; it was not sent again"


class Heard(Enum):
    """What the runtime itself observes of a delivery."""

    ACKNOWLEDGED = "its exact id was acknowledged"
    REPLIED = "it was replied to"
    SILENCE = "it left, and nothing came back in time"
    NOBODY = "there was nobody to hand it to"
    WITHDRAWN = "it was cancelled before it left"
    PROVED = "a new entry in the original session is it"


_WORDS: Final[dict[tuple[str, Heard], tuple[str, str | None]]] = {
    ("head_seat", Heard.ACKNOWLEDGED): ("delivered", None),
    ("head_seat", Heard.REPLIED): ("replied", None),
    ("head_seat", Heard.SILENCE): ("unconfirmed", None),
    ("head_seat", Heard.NOBODY): ("unbound", None),
    ("head_seat", Heard.WITHDRAWN): ("aborted", None),
    ("fleet_seat", Heard.ACKNOWLEDGED): ("delivered", None),
    ("fleet_seat", Heard.REPLIED): ("delivered", "reply"),
    ("fleet_seat", Heard.SILENCE): ("unconfirmed", None),
    ("fleet_seat", Heard.NOBODY): ("undelivered", None),
    ("fleet_seat", Heard.WITHDRAWN): ("undelivered", None),
    ("harness_seat", Heard.SILENCE): ("unconfirmed", None),
    ("harness_seat", Heard.NOBODY): ("offline", None),
    ("harness_seat", Heard.WITHDRAWN): ("released", None),
    ("harness_seat", Heard.PROVED): ("accepted", "started"),
    ("channel_turn", Heard.SILENCE): ("failed", "unconfirmed"),
    ("hire", Heard.SILENCE): ("failed", "delivery_unconfirmed"),
    ("hire", Heard.NOBODY): ("failed", "unbound"),
    ("opencode", Heard.SILENCE): ("uncertain", None),
    ("opencode", Heard.NOBODY): ("unbound", None),
    ("opencode", Heard.WITHDRAWN): ("unbound", None),
    ("opencode", Heard.PROVED): ("delivered", None),
}
"""Each mechanism's own words for what the runtime observes (section 2)."""


def words(mechanism: str, heard: Heard, detail: str | None = None) -> MechanismOutcome:
    """What a mechanism calls this; `UnmappedMechanism` where it cannot happen to it."""
    try:
        outcome, native = _WORDS[mechanism, heard]
    except KeyError:
        raise UnmappedMechanism(mechanism, heard.value) from None
    return MechanismOutcome(outcome, native, None, detail)


# -- rows ----------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Message:
    """What is to be delivered; the text is one every store can hold."""

    delivery_id: str
    pane_id: str
    mechanism: str
    text: str


def dispatch(message: Message, now: int, session: NativeSession | None = None) -> DeliveryRecord:
    """The row to commit before `message` may leave; for a native send, with what was in the session before."""
    entries = None if session is None else session.entries
    before = None if entries is None else [storable_text(entry.entry_id) for entry in entries]
    return DeliveryRecord(
        delivery_id=message.delivery_id,
        pane_id=message.pane_id,
        mechanism=message.mechanism,
        text=message.text,
        fingerprint=fingerprint_of(message.text),
        created_at=now,
        dispatched_at=now,
        session_id=None if session is None else storable_text(session.session_id),
        agent=None if session is None else storable_text(session.agent),
        entries_before=None if before is None else json_text(before, "the entries seen before"),
    )


def never_sent(message: Message, outcome: MechanismOutcome, now: int) -> DeliveryRecord:
    """The row of a message that never left, which is final for its id (DA-11)."""
    reach = report(message.mechanism, outcome.outcome, outcome.native)
    return DeliveryRecord(
        delivery_id=message.delivery_id,
        pane_id=message.pane_id,
        mechanism=message.mechanism,
        text=message.text,
        fingerprint=fingerprint_of(message.text),
        created_at=now,
        dispatched_at=None,
        outcome=outcome.outcome,
        native=outcome.native,
        detail=outcome.detail,
        stop=reach.stop,
        resolved_at=now,
    )


def hear(
    row: DeliveryRecord, outcome: MechanismOutcome, now: int, *, reply: str | None = None
) -> DeliveryRecord | None:
    """The row after its mechanism said `outcome`, or None where that changes nothing.

    A word without a place on the ladder proves nothing: it is silence, with the word in the detail.  What is abandoned
    stays so, and a stage that was reached is not taken back.
    """
    if row.abandoned_at is not None:
        return None
    outcome, reach = _placed(row.mechanism, outcome)
    try:
        reach = reach if row.outcome is None else advance(Reach(row.stage, row.stop), reach)
    except InvalidTransition:
        return None
    if row.outcome is not None and (row.stage, row.stop) == (reach.stage, reach.stop):
        return None
    return row.next(
        outcome=outcome.outcome,
        native=outcome.native,
        delay=outcome.delay,
        detail=outcome.detail,
        stage=reach.stage,
        stop=reach.stop,
        reply=reply,
        resolved_at=(row.resolved_at or now) if reach.stop is not Stop.UNCERTAIN else None,
    )


def _placed(mechanism: str, said: MechanismOutcome) -> tuple[MechanismOutcome, Reach]:
    """What was said as text a store can hold, and its place on the ladder."""
    outcome = MechanismOutcome(*(None if part is None else text_of(part) for part in _parts(said)))  # type: ignore[arg-type]
    try:
        reach = report(mechanism, outcome.outcome, outcome.native)
    except UnmappedMechanism:
        reach = Reach()
    if reach == Reach():  # no word of this mechanism, or one that says nothing of a delivery
        word = outcome.outcome if outcome.native is None else f"{outcome.outcome} ({outcome.native})"
        outcome = words(mechanism, Heard.SILENCE, f"{mechanism} said {word!r}, which proves nothing")
        reach = report(mechanism, outcome.outcome, outcome.native)
    return outcome, reach


def _parts(said: MechanismOutcome) -> tuple[object, ...]:
    return (said.outcome, said.native, said.delay, said.detail)


def abandon(row: DeliveryRecord, now: int) -> DeliveryRecord | None:
    """The row after an operator settled it, or None if it is not uncertain or settled already (D-19)."""
    if not row.uncertain or row.resolved_at is not None:
        return None
    return row.next(detail=ABANDONED, resolved_at=now, abandoned_at=now)


def proves(row: DeliveryRecord, seen: NativeSession) -> bool:
    """Whether `seen` holds the delivery: a new, complete operator entry in the original session and pane (section 3).

    An older entry, a fragment, another session, pane or agent, an unreadable transcript, one that was unreadable when
    the message left, and a row whose own text is damaged prove nothing.
    """
    session = (seen.pane_id, storable_text(seen.session_id), storable_text(seen.agent))
    if (row.pane_id, row.session_id, row.agent) != session:
        return False
    if row.entries_before is None or seen.entries is None or fingerprint_of(row.text) != row.fingerprint:
        return False
    try:
        before = json_value(row.entries_before)
    except ValueError:
        return False
    return isinstance(before, list) and any(
        entry.role == "operator"
        and entry.complete
        and storable_text(entry.entry_id) not in before
        and fingerprint_of(entry.text) == row.fingerprint
        for entry in seen.entries
    )


# -- calls ---------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Journal:
    """What is durable about the id of a call and about its pane, read in one moment."""

    known: DeliveryRecord | None = None
    """The row of that id."""
    fencing: DeliveryRecord | None = None
    """The pane's unresolved row."""


@frozen
class Begin:
    """Nothing stands in the way: write the row, and then send."""


@frozen
class Fenced:
    """An original of the pane is uncertain.  Where its session can be looked at that may resolve it; else `report`."""

    original: DeliveryRecord
    report: DeliveryReport


def judge_call(
    outbound: Outbound, journal: Journal | CorruptRecord, pending: Message | None = None, *, goes_on: bool = False
) -> Begin | Fenced | DeliveryReport:
    """Say what becomes of a call: only `Begin` lets anything leave (section 3).

    `pending` is a message of the pane that has not left yet; `goes_on` says that the unresolved one is a chat turn
    whose callers were told that it is pending.  A journal that cannot be read is handed in as its damage.
    """
    if isinstance(journal, CorruptRecord):
        detail = f"nothing was sent, because a record of this mechanism or pane cannot be read: {journal}"
        return unreadable_report(outbound.delivery_id, outbound.via, detail)
    known, fencing, asked_id = journal.known, journal.fencing, outbound.delivery_id
    if known is not None and (fencing is None or known.delivery_id != fencing.delivery_id):
        return report_of(known, asked=outbound.text)
    if pending is not None:
        return blocked_report(pending, asked_id=asked_id)
    if fencing is not None and fencing.outcome is None:
        return pending_report(fencing) if goes_on and known is not None else blocked_report(fencing, asked_id=asked_id)
    if not outbound.text.strip():
        return _rejected(outbound, "the text is blank")
    return Begin() if fencing is None else Fenced(fencing, blocked_report(fencing, asked_id=asked_id))


# -- reports -------------------------------------------------------------------------------------------------------


def report_of(row: DeliveryRecord, *, asked: str | None = None) -> DeliveryReport:
    """The report of a delivery; `asked` is the text it was asked for with, whose drift is named (DA-12)."""
    if row.outcome is None:
        return blocked_report(row, asked_id=row.delivery_id)
    detail = row.detail
    if asked is not None and fingerprint_of(asked) != row.fingerprint:
        drift = "answered from the original; the text of this call differs and was not sent"
        detail = drift if detail is None else f"{detail}; {drift}"
    return DeliveryReport(
        delivery_id=row.delivery_id,
        stage=row.stage,
        stop=row.stop,
        mechanism=row.mechanism,
        outcome=row.outcome,
        native=row.native,
        delay=row.delay,
        detail=detail,
    )


def pending_report(row: DeliveryRecord) -> DeliveryReport:
    """The report of a chat turn that goes on while its caller stops waiting."""
    return DeliveryReport(
        delivery_id=row.delivery_id, stage=Stage.STORED, stop=None, mechanism=row.mechanism, outcome="pending"
    )


def blocked_report(original: DeliveryRecord | Message, *, asked_id: str | None = None) -> DeliveryReport:
    """The report of a call that sent nothing because of `original`, with the original's id (section 3, DA-3)."""
    detail = UNRESOLVED if asked_id == original.delivery_id else FENCED
    return unreadable_report(original.delivery_id, original.mechanism, detail)


def unreadable_report(delivery_id: str | None, mechanism: str, detail: str) -> DeliveryReport:
    """The report where nothing says how far a delivery got; None where it is not known which one that is."""
    said = words(mechanism, Heard.SILENCE)
    return DeliveryReport(
        delivery_id=delivery_id,
        stage=None,
        stop=Stop.UNCERTAIN,
        mechanism=mechanism,
        outcome=said.outcome,
        native=said.native,
        detail=detail,
    )


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


# -- events --------------------------------------------------------------------------------------------------------


def dispatched_event(row: DeliveryRecord, now: int) -> NewEvent:
    """The message is about to leave."""
    data = {"delivery_id": row.delivery_id, "mechanism": row.mechanism}
    return NewEvent(kind="delivery.dispatched", address=f"pane:{row.pane_id}", at=now, data=data)


def reported_event(row: DeliveryRecord, now: int) -> NewEvent:
    """It is known how far it got, or that nobody knows."""
    data = {
        "delivery_id": row.delivery_id,
        "mechanism": row.mechanism,
        "outcome": row.outcome,
        "native": row.native,
        "delay": row.delay,
        "detail": row.detail,
        "stage": row.stage,
        "stop": row.stop,
        "reply": row.reply,
    }
    said = {name: value for name, value in data.items() if value is not None}
    return NewEvent(kind="delivery.reported", address=f"pane:{row.pane_id}", at=now, data=said)
