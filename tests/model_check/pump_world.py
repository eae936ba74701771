"""The way to a pane: a service's mailbox, the pumps that poll it, and what they write to; every interleaving.

The shipped pure functions decide everything: `delivery_state` what becomes of a call and of a row, `pump_state` what a
pump does next.  Around them anything may happen: a write fails, a poll's answer or an acknowledgement is lost, late or
doubled, a deadline passes, pumps and the service die at any step and live again, and the record of a delivery cannot be
read any more, until a person has mended it or for ever.

Two pumps poll one pane, for two deliveries, whose callers ask again whenever they like.  A record becomes unreadable
where it lies, not in the memory of a service that has read it before; it is mended with no service running, as
docs/deliveries.md says.  Another world has one pump and a service of another make, that hands out pages of several
events and the same ones again, whatever it was told: what a pump owes it owes to any service.

Judged here are laws 10, 11 and 12, and what laws 2 and 7 and section 1.4 say of messages to a pane.  Law 11 is one
write an event and pump life; where the service is ours it is one over all lives, since nothing is handed out twice, and
what counts as delivered was written whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from fencepost.actors import delivery_state
from fencepost.actors.delivery_messages import DeliveryReport, MailboxEvent, MechanismOutcome, Outbound
from fencepost.actors.delivery_state import Begin, Fenced, Heard, Journal, Message
from fencepost.mailbox.delivery_records import DeliveryRecord
from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.ladder import Stage, Stop
from fencepost.supervisor import pump_state
from fencepost.supervisor.pump_state import CameOf, PumpState, PumpStep
from model_check.breadth import Found, search
from model_check.outlets import Broken, TerminalInput, require_nothing_typed

__all__ = ["FOREIGN", "WORLDS", "Found", "State", "World", "explore", "steps"]

PANE: Final = "pane"
IDS: Final = tuple(f"00000000-0000-4000-8000-{number:012}" for number in range(2))
TEXTS: Final = dict(zip(IDS, ("one", "other"), strict=True))
NOBODY: Final = -1
"""Who waits for the answer to what a pump asked in an earlier life."""


class World(NamedTuple):
    """The mechanism that is polled, how many pumps poll, and how many records may be unreadable at once.

    A head seat has a fallback: what nobody polls for runs as a turn of the service.
    """

    mechanism: str = "fleet_seat"
    pumps: int = 2
    unreadable_max: int = 0
    doubled_max: int = 1
    foreign: bool = False

    def __str__(self) -> str:
        """What a person calls it."""
        if self.foreign:
            return "a pump and a service of another make"
        pumps = "a pump" if self.pumps == 1 else f"{self.pumps} pumps"
        damage = f", records unreadable ({self.unreadable_max} at once)" if self.unreadable_max else ""
        return f"{pumps} of a {self.mechanism.replace('_', ' ')}{damage}"


FOREIGN: Final = World(pumps=1, foreign=True)
WORLDS: Final = (
    FOREIGN,
    World(pumps=1, unreadable_max=2),
    World("head_seat", pumps=1, unreadable_max=1, doubled_max=0),
    World(doubled_max=0),
)


class Life(NamedTuple):
    """One life of a pump, and what a witness has seen of it."""

    core: PumpState = PumpState()
    asked: bool = False
    """Whether its step is under way: a poll that waits, bytes that flow, an acknowledgement that is awaited."""
    writes: frozenset[str] = frozenset()
    """The events whose write began in this life."""
    complete: frozenset[str] = frozenset()
    """The events whose write was completed in this life."""


_STOPPED: Final = Life(PumpState(step=PumpStep.STOPPED))
"""A pump that has stopped does nothing more in its life, so what it did before is forgotten."""


class Service(NamedTuple):
    """What the service has written down; and while it is up, what it remembers and who polls."""

    up: bool = True
    rows: frozenset[DeliveryRecord] = frozenset()
    unreadable: frozenset[str] = frozenset()
    row: DeliveryRecord | None = None
    pending: Message | None = None
    polls: frozenset[int] = frozenset()

    def stored(self, delivery_id: str) -> DeliveryRecord | None:
        """The row of that id, whether it can be read or not."""
        return next((row for row in self.rows if row.delivery_id == delivery_id), None)


class State(NamedTuple):
    """Everything there is."""

    service: Service
    pumps: tuple[Life, ...]
    acks: frozenset[tuple[int, str]] = frozenset()
    """Acknowledgements on their way: which pump waits for the answer, and the event."""
    doubled: int = 0
    written: frozenset[str] = frozenset()
    """The events whose write began in any life."""
    through: frozenset[str] = frozenset()
    """The events whose write was completed in any life."""
    turns: frozenset[str] = frozenset()
    """The deliveries whose turn the service ran itself."""
    typed: frozenset[str] = frozenset()


Steps = Iterator[tuple[str, State]]


# -- callers -----------------------------------------------------------------------------------------------------


def caller_steps(state: State, world: World) -> Steps:
    """Anybody asks for any of the deliveries, at any time, and again."""
    if not state.service.up or world.foreign:
        return
    for delivery_id in IDS:
        yield f"{TEXTS[delivery_id]!r} is to be delivered", _called(state, world, delivery_id)


def _called(state: State, world: World, delivery_id: str) -> State:
    service = state.service
    outbound = Outbound(TEXTS[delivery_id], world.mechanism, delivery_id)
    verdict: object = delivery_state.judge_call(outbound, _journal(service, delivery_id), service.pending)
    match verdict:
        case Begin():
            message = Message(delivery_id=delivery_id, pane_id=PANE, mechanism=world.mechanism, text=outbound.text)
            after = state._replace(service=service._replace(pending=message))
        case Fenced(report=report) | (DeliveryReport() as report):
            _require_truth(state, delivery_id, report)
            after = state
        case TerminalInput():
            after = state._replace(typed=state.typed | {outbound.text})
        case _:
            raise Broken(f"10: a call came to {verdict!r}, which is none of the core's words")
    _require_blocked(service, delivery_id, verdict)
    return after


def _journal(service: Service, delivery_id: str) -> Journal | CorruptRecord:
    """What a look at the rows of this id, of this mechanism and of this pane comes to."""
    looked_at = [row for row in service.rows if row.resolved_at is None or row.delivery_id == delivery_id]
    for row in looked_at:
        if row.delivery_id in service.unreadable:
            return CorruptRecord(row.delivery_id, "cannot be read")
    fencing = next((row for row in looked_at if row.resolved_at is None), None)
    return Journal(known=service.stored(delivery_id), fencing=fencing)


# -- the service -------------------------------------------------------------------------------------------------


def service_steps(state: State, world: World) -> Steps:
    """What the mailbox does next, that it may die, and that its records may become unreadable and be mended."""
    service = state.service
    if world.foreign:
        yield from _foreign_steps(state)
        return
    yield from _damages(state, world)
    if not service.up:
        yield "the service starts", state._replace(service=_started(service))
        return
    yield (
        "the service dies",
        state._replace(service=service._replace(up=False, row=None, pending=None, polls=frozenset())),
    )
    if service.pending is not None:
        yield "the caller takes it back", unsent(state, service.pending, Heard.WITHDRAWN)
        yield "nobody polled for it", _nobody_polled(state, service.pending)
        for number in service.polls:
            yield from _handed_out(state, service.pending, number)
    for number in service.polls - {NOBODY}:
        yield f"the poll of pump {number} ends empty", polled(state, number, ())
    if service.row is not None and service.row.outcome is None:
        yield "the deadline passes", _heard(state, service.row, Heard.SILENCE)
        if service.row.mechanism == "channel_turn":
            yield "the turn ends", _heard(state, service.row, MechanismOutcome("settled"))


def _started(service: Service) -> Service:
    """What was in flight when the service died is uncertain; what cannot be read is not taken up."""
    row = next(
        (row for row in service.rows if row.resolved_at is None and row.delivery_id not in service.unreadable), None
    )
    started = service._replace(up=True, row=row)
    return started if row is None or row.outcome is not None else _hearing(started, row, _words(row, Heard.SILENCE))


def _words(row: DeliveryRecord, heard: Heard) -> MechanismOutcome:
    return delivery_state.words(row.mechanism, heard)


def _heard(state: State, row: DeliveryRecord, heard: Heard | MechanismOutcome) -> State:
    said = heard if isinstance(heard, MechanismOutcome) else _words(row, heard)
    return state._replace(service=_hearing(state.service, row, said))


def _hearing(service: Service, row: DeliveryRecord, said: MechanismOutcome) -> Service:
    """Write down what was heard; a row that is written anew can be read again."""
    after = delivery_state.hear(row, said, 1)
    return service if after is None else _written(service, after)


def _written(service: Service, row: DeliveryRecord) -> Service:
    rows = frozenset(other for other in service.rows if other.delivery_id != row.delivery_id) | {row}
    mine = service.row is None or service.row.delivery_id == row.delivery_id
    remembered = service.row if not mine else row if row.resolved_at is None else None
    return service._replace(rows=rows, row=remembered, unreadable=service.unreadable - {row.delivery_id})


def unsent(state: State, message: Message, heard: Heard) -> State:
    row = delivery_state.never_sent(message, delivery_state.words(message.mechanism, heard), 1)
    return state._replace(service=_written(state.service._replace(pending=None), row))


def _nobody_polled(state: State, message: Message) -> State:
    """The grace is over: it never left.  A head seat falls back on a turn, and only now."""
    if message.mechanism != "head_seat":
        return unsent(state, message, Heard.NOBODY)
    turn = Message(delivery_id=message.delivery_id, pane_id=PANE, mechanism="channel_turn", text=message.text)
    return _dispatched(state, turn)


def _dispatched(state: State, message: Message) -> State:
    """The row is written first; then the text leaves, through the end that its mechanism has here."""
    service = state.service
    if any(row.resolved_at is None and row.delivery_id in service.unreadable for row in service.rows):
        raise Broken(f"12: {message.text!r} leaves while a record that fences cannot be read")
    row = delivery_state.dispatch(message, 1)
    state = state._replace(service=_written(service._replace(pending=None), row))
    return _ENDS.get(row.mechanism, _typed)(state, row)


def _typed(state: State, row: DeliveryRecord) -> State:
    return state._replace(typed=state.typed | {row.text})


def _turned(state: State, row: DeliveryRecord) -> State:
    return state._replace(turns=state.turns | {row.delivery_id})


_ENDS: Final[dict[str, Callable[[State, DeliveryRecord], State]]] = {
    "fleet_seat": lambda state, _row: state,  # it waits in the answer to the poll
    "head_seat": lambda state, _row: state,
    "channel_turn": _turned,
}


def _handed_out(state: State, message: Message, number: int) -> Steps:
    after = _dispatched(state, message)
    after = after._replace(service=after.service._replace(polls=after.service.polls - {number}))
    yield f"{message.text!r} is handed out, and lost on the way to pump {number}", after
    if number != NOBODY:
        yield f"{message.text!r} reaches pump {number}", polled(after, number, (event_of(message.delivery_id),))


def event_of(delivery_id: str) -> MailboxEvent:
    return MailboxEvent(delivery_id, delivery_id, PANE, "seat", TEXTS[delivery_id])


def polled(state: State, number: int, page: tuple[MailboxEvent, ...]) -> State:
    state = state._replace(service=state.service._replace(polls=state.service.polls - {number}))
    return _came(state, number, CameOf.DONE, page)


def _damages(state: State, world: World) -> Steps:
    service = state.service
    if len(service.unreadable) < world.unreadable_max:
        for row in service.rows:
            if row.delivery_id not in service.unreadable:
                name = f"the record of {row.text!r} becomes unreadable"
                yield name, state._replace(service=service._replace(unreadable=service.unreadable | {row.delivery_id}))
    if not service.up:
        for delivery_id in service.unreadable:
            mended = service._replace(unreadable=service.unreadable - {delivery_id})
            yield f"a person mends the record of {TEXTS[delivery_id]!r}", state._replace(service=mended)


PAGES: Final = ((0,), (0, 1), (1, 0), (0, 0), (1, 0, 1))


def _foreign_steps(state: State) -> Steps:
    """A service of another make: it may hand out anything at any time, and be away."""
    service = state.service
    yield "the service comes or goes", state._replace(service=service._replace(up=not service.up, polls=frozenset()))
    for number in service.polls:
        emptied = state._replace(service=service._replace(polls=service.polls - {number}))
        yield "a page is lost on its way", emptied
        if number != NOBODY:
            yield "an empty page arrives", polled(state, number, ())
            for page in PAGES:
                yield f"the page {page} arrives", polled(state, number, tuple(event_of(IDS[one]) for one in page))


# -- the pumps ---------------------------------------------------------------------------------------------------


def pump_steps(state: State, _world: World) -> Steps:
    """What each pump does next, what may come of it, and that it may die."""
    for number, life in enumerate(state.pumps):
        if life != Life():
            yield from _deaths(state, number)
        match life.core.step:
            case PumpStep.STOPPED:
                pass
            case PumpStep.POLL | PumpStep.WRITE | PumpStep.ACKNOWLEDGE:
                yield from (_UNDER_WAY if life.asked else _BEGUN)[life.core.step](state, number)
            case PumpStep.REFRESH:
                yield f"pump {number} finds the service", _came(state, number, CameOf.DONE)
                yield f"pump {number} does not find the service", _came(state, number, CameOf.FAILED)
            case PumpStep.PAUSE | PumpStep.PAUSE_TO_REFRESH:
                yield f"pump {number} has waited", _came(state, number, CameOf.DONE)
            case TerminalInput():
                yield f"pump {number} types", state._replace(typed=state.typed | {life.core.event.text})
            case step:
                raise Broken(f"10: a pump is to do {step!r}, which is none of the core's words")


def _came(state: State, number: int, came_of: CameOf, page: tuple[MailboxEvent, ...] = ()) -> State:
    life = state.pumps[number]
    core = pump_state.after(life.core, came_of, page)
    return _with_pump(
        state, number, _STOPPED if core.step is PumpStep.STOPPED else life._replace(core=core, asked=False)
    )


def _with_pump(state: State, number: int, life: Life) -> State:
    return state._replace(pumps=tuple(life if place == number else other for place, other in enumerate(state.pumps)))


def _asking(state: State, number: int) -> State:
    return _with_pump(state, number, state.pumps[number]._replace(asked=True))


def _deaths(state: State, number: int) -> Steps:
    """What it asked is still asked, or not any more; nobody waits for the answer."""
    acks = frozenset((NOBODY if asker == number else asker, event_id) for asker, event_id in state.acks)
    dead = _with_pump(state, number, Life())._replace(acks=acks)
    gone = dead.service._replace(polls=dead.service.polls - {number})
    yield f"pump {number} dies, and another life of it begins", dead._replace(service=gone)
    if number in dead.service.polls:
        stale = gone._replace(polls=gone.polls | {NOBODY})
        yield f"pump {number} dies, and its poll is not known to be gone", dead._replace(service=stale)


def _polling(state: State, number: int) -> Steps:
    if not state.service.up:
        yield f"pump {number} is refused", _came(state, number, CameOf.REFUSED)
    else:
        parked = state.service._replace(polls=state.service.polls | {number})
        yield f"pump {number} polls", _asking(state._replace(service=parked), number)


def _poll_given_up(state: State, number: int) -> Steps:
    after = _came(state, number, CameOf.FAILED)
    rest = state.service.polls - {number}
    yield f"pump {number} gives its poll up", after._replace(service=after.service._replace(polls=rest))
    if number in state.service.polls:
        stale = after.service._replace(polls=rest | {NOBODY})
        yield f"pump {number} gives its poll up, which is not known to be gone", after._replace(service=stale)


def _writing(state: State, number: int) -> Steps:
    life, event_id = state.pumps[number], state.pumps[number].core.event.event_id
    if event_id in life.writes:
        raise Broken(f"11: a second write of {TEXTS[event_id]!r} in one life of pump {number}")
    writing = _with_pump(state, number, life._replace(asked=True, writes=life.writes | {event_id}))
    yield f"pump {number} begins to write {TEXTS[event_id]!r}", writing


def _write_ended(state: State, number: int) -> Steps:
    life, event_id = state.pumps[number], state.pumps[number].core.event.event_id
    done = _with_pump(state, number, life._replace(complete=life.complete | {event_id}))
    yield f"the write of pump {number} is complete", _came(done, number, CameOf.DONE)
    yield f"the write of pump {number} fails", _came(state, number, CameOf.FAILED)


def _acknowledging(state: State, number: int) -> Steps:
    life, event_id = state.pumps[number], state.pumps[number].core.event.event_id
    if event_id not in life.complete:
        raise Broken(f"11: pump {number} acknowledges {TEXTS[event_id]!r}, whose write it has not completed")
    if not state.service.up:
        yield f"the acknowledgement of pump {number} is refused", _came(state, number, CameOf.REFUSED)
    sent = _asking(state._replace(acks=state.acks | {(number, event_id)}), number)
    yield f"pump {number} acknowledges {TEXTS[event_id]!r}", sent


def _acknowledgement_given_up(state: State, number: int) -> Steps:
    acks = frozenset((NOBODY if asker == number else asker, event_id) for asker, event_id in state.acks)
    yield f"pump {number} hears nothing", _came(state, number, CameOf.FAILED)._replace(acks=acks)


_BEGUN: Final = {PumpStep.POLL: _polling, PumpStep.WRITE: _writing, PumpStep.ACKNOWLEDGE: _acknowledging}
_UNDER_WAY: Final = {
    PumpStep.POLL: _poll_given_up,
    PumpStep.WRITE: _write_ended,
    PumpStep.ACKNOWLEDGE: _acknowledgement_given_up,
}


# -- the wire ----------------------------------------------------------------------------------------------------


def wire_steps(state: State, world: World) -> Steps:
    """An acknowledgement is lost, arrives, or arrives and comes again; so is its answer."""
    for ack in state.acks:
        rest = state._replace(acks=state.acks - {ack})
        yield "an acknowledgement is lost", rest
        if not state.service.up:
            continue
        yield from _arrived(rest, ack, world)
        if state.doubled < world.doubled_max:
            for name, after in _arrived(rest, ack, world):
                again = after._replace(acks=after.acks | {(NOBODY, ack[1])}, doubled=state.doubled + 1)
                yield f"{name}; it comes again", again


def _arrived(state: State, ack: tuple[int, str], world: World) -> Steps:
    number, event_id = ack
    told = f"an acknowledgement of {TEXTS[event_id]!r} arrives"
    if world.foreign:
        after, answers = state, (True, False)
    else:
        after, known = _acknowledged(state, event_id)
        answers = (known,)
    yield f"{told}, and its answer is lost", after
    if number != NOBODY:
        for answer in answers:
            name = f"{told}, and pump {number} is told {'that it did' if answer else 'something else'}"
            yield name, _came(after, number, CameOf.DONE if answer else CameOf.FAILED)


def _acknowledged(state: State, event_id: str) -> tuple[State, bool]:
    """The exact id, at whatever time; from memory, or from a record that can be read (`delivery_seats`)."""
    service = state.service
    row = service.row if service.row is not None and service.row.delivery_id == event_id else service.stored(event_id)
    if row is not service.row and event_id in service.unreadable:
        return state, False
    if row is None or row.dispatched_at is None or row.mechanism not in {"head_seat", "fleet_seat"}:
        return state, False
    return _heard(state, row, Heard.ACKNOWLEDGED), True


# -- laws --------------------------------------------------------------------------------------------------------


def _require_truth(state: State, delivery_id: str, report: DeliveryReport) -> None:
    """11: a caller is told that it was delivered only where a write was completed."""
    if report.stage is Stage.DELIVERED and (report.delivery_id or delivery_id) not in state.through:
        raise Broken(f"11: {TEXTS[delivery_id]!r} is told as delivered, and no write of it was completed")


def _require_blocked(service: Service, delivery_id: str, verdict: object) -> None:
    """12: while a record of the id, or one that fences, cannot be read, nothing begins and the report is uncertain."""
    fencing = {row.delivery_id for row in service.rows if row.resolved_at is None} | {delivery_id}
    if not fencing & service.unreadable:
        return
    if not isinstance(verdict, DeliveryReport):
        raise Broken(f"12: {TEXTS[delivery_id]!r} comes to {verdict!r} while a record cannot be read")
    if verdict.stop is not Stop.UNCERTAIN:
        raise Broken(f"12: {TEXTS[delivery_id]!r} is told as {verdict.stage or verdict.stop}; a record cannot be read")


def judge(before: State, after: State, world: World) -> None:
    """Section 10, by number, in one state and over the step that led to it."""
    rows = after.service.rows
    require_nothing_typed(after.typed, frozenset(row.mechanism for row in rows))
    if world.foreign:
        return
    if sum(row.resolved_at is None for row in rows) > 1:
        raise Broken("2: two deliveries to the pane are unresolved")
    for row in rows:
        if row.stage is Stage.DELIVERED and row.delivery_id not in after.through:
            raise Broken(f"11: {row.text!r} counts as delivered, and no write of it was completed")
        if row.dispatched_at is None and row.delivery_id in after.written | after.turns:
            raise Broken(f"7: {row.text!r} counts as never sent, and was")
        old = before.service.stored(row.delivery_id)
        if old is not None and old != row:
            _judge_row(before, old, row)
    if after.written & after.turns:
        raise Broken("1.4: what was handed out ran as a turn too")


def _judge_row(before: State, old: DeliveryRecord, new: DeliveryRecord) -> None:
    if old.stop is Stop.UNCERTAIN and new.stage is None:
        raise Broken(f"7: {old.text!r} was uncertain and is {new.stop}")
    remembered = before.service.row is not None and before.service.row.delivery_id == old.delivery_id
    if old.delivery_id in before.service.unreadable and not remembered:
        raise Broken(f"12: the record of {old.text!r} was written over, unread")


# -- the search --------------------------------------------------------------------------------------------------


def first(world: World) -> State:
    """Nobody has called or polled."""
    return State(Service(), (Life(),) * world.pumps)


def steps(state: State, world: World) -> Steps:
    """Every step that is possible in a state, and where it leads."""
    for step in (caller_steps, service_steps, pump_steps, wire_steps):
        for name, after in step(state, world):
            yield name, state if after == state else _witnessed(state, after, world)


def _witnessed(before: State, after: State, world: World) -> State:
    """What a witness of the pane adds to its list; a second write in another life is seen here."""
    if world.foreign:
        return after
    for old, new in zip(before.pumps, after.pumps, strict=True):
        for event_id in new.writes - old.writes:
            if event_id in after.written:
                raise Broken(f"11: a second write of {TEXTS[event_id]!r}, in another life")
            after = after._replace(written=after.written | {event_id})
        after = after._replace(through=after.through | new.complete)
    return after


def finished(state: State, world: World) -> bool:
    """Whether every delivery has its final report."""
    rows = state.service.rows
    return not world.foreign and len(rows) == len(IDS) and all(row.resolved_at is not None for row in rows)


def explore(world: World) -> Found:
    """Visit every state there is; raise `Broken`, with the way there, at the first law that fails."""
    return search(
        first(world),
        partial(steps, world=world),
        partial(judge, world=world),
        partial(finished, world=world),
    )
