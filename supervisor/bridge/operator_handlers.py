"""The operator's routes: how everything stands, and what only he may have done.

An operator is told why something failed, in the runtime's own words; whatever in them is not printable is escaped.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

import trio
from attrs import asdict

from fencepost.supervisor import (
    BaseTransition,
    DeliveryReport,
    Outbound,
    RuntimeStatus,
    StoreFault,
    TransitionKind,
)
from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.escaped import escaped
from fencepost.supervisor.bridge.failures import told
from fencepost.supervisor.bridge.operator_api import ACTIONS, Action, read_fields
from fencepost.supervisor.bridge.seats import Seats
from fencepost.supervisor.overview import Fleet, fleet
from fencepost.supervisor.pane_history import PaneHistory, pane_history

if TYPE_CHECKING:
    from fencepost.supervisor.bridge.handlers import Answered, Bridge, Call

__all__ = ["OPERATOR_HANDLERS", "PANES_MAX", "failed", "in_words"]

log: Final = logging.getLogger("fencepost.bridge")

PANES_MAX: Final = 1_000
"""How many panes one status tells of."""
_WORDS_MAX: Final = 1_000

T = TypeVar("T")

_TOLD_IN_WORDS: Final = {400, 409, 503}


# -- looking -----------------------------------------------------------------------------------------------------------


async def operator_status(call: Call) -> Answered:
    """`GET operator/status`: the runtime, and every pane in a line; also when the store has failed."""
    call.identity.confirm()
    runtime = await call.bridge.supervisor.status()

    def look() -> Fleet:
        with call.bridge.supervisor.reader() as reader:
            return fleet(reader, runtime.quarantined, panes_max=PANES_MAX)

    try:
        found = await trio.to_thread.run_sync(look)
    except StoreFault as error:
        return 200, _status(runtime, None, (_plain(str(error)),))
    return 200, _status(runtime, found, found.damage)


def _status(runtime: RuntimeStatus, found: Fleet | None, damage: tuple[str, ...]) -> dict[str, object]:
    return {
        "version": wire.VERSION,
        "runtime": asdict(runtime),
        "panes": None if found is None else [asdict(line) for line in found.panes],
        "panes_left_out": 0 if found is None else found.left_out,
        "damage": list(damage),
    }


async def operator_pane(call: Call) -> Answered:
    """`GET operator/panes/{pane}`: what ran in a pane, and what was and is owed to it."""
    call.identity.confirm()
    runtime, pane_id = await call.bridge.supervisor.status(), call.parameters["pane"]

    def look() -> PaneHistory:
        with call.bridge.supervisor.reader() as reader:
            return pane_history(reader, pane_id, runtime.quarantined)

    try:
        found = await trio.to_thread.run_sync(look)
    except StoreFault as error:  # of this reading alone: the runtime tells of its own
        return failed(503, error)
    if not found.is_known:
        return 404, _error("nothing is stored of this pane")
    return 200, {"version": wire.VERSION, **asdict(found)}


# -- what a program does -----------------------------------------------------------------------------------------------


async def detect(call: Call) -> Answered:
    """`POST operator/panes/{pane}/transitions`: a base moved."""
    supervisor, pane, members = call.bridge.supervisor, call.pane, wire.versioned(call.members)
    kind = members.get("kind")
    if not isinstance(kind, str) or kind not in {one.value for one in TransitionKind}:
        raise wire.Malformed(f"kind must be {' or '.join(one.value for one in TransitionKind)}")
    from_base, to_base = wire.id_of(members, "from_base"), wire.id_of(members, "to_base")
    operations = wire.id_of(members, "classification_op"), wire.id_of(members, "trigger_op")
    ambiguous = wire.optional_text(members, "ambiguous")
    may_be_new = _may_be_new(members)

    async def carry_out() -> dict[str, object] | Answered:
        if not (may_be_new or await _is_known(call.bridge, pane.pane_id)):
            return _no_such_pane(pane.pane_id)
        said = await pane.detect(BaseTransition(TransitionKind(kind), from_base, to_base, *operations, ambiguous))
        view = await supervisor.intent(said.intent_id).view()
        return {
            "version": wire.VERSION,
            "intent_id": said.intent_id,
            "seq": said.seq,
            "state": None if view is None else view.state.value,
            "coalesced": said.coalesced,
        }

    return _answered(await in_words(call, carry_out))


async def deliver(call: Call) -> Answered:
    """`POST operator/panes/{pane}/deliveries`: send a message; answers once it is known how far it got."""
    pane, members = call.pane, wire.versioned(call.members)
    text, via = wire.reply_text(members), wire.id_of(members, "via")
    delivery_id = wire.optional_text(members, "delivery_id") or str(uuid4())
    may_be_new = _may_be_new(members)

    async def carry_out() -> dict[str, object] | Answered:
        if not (may_be_new or await _is_known(call.bridge, pane.pane_id)):
            return _no_such_pane(pane.pane_id)
        said = await call.unless_gone(lambda: pane.deliver(Outbound(text, via, delivery_id)))
        if said is None:
            raise TypeError("the pane did not answer")
        return _report(said)

    return _answered(await in_words(call, carry_out))


def _may_be_new(members: wire.Members) -> bool:
    new = members.get("new", False)
    if not isinstance(new, bool):
        raise wire.Malformed("new must be true or false")
    return new


def _no_such_pane(pane_id: str) -> Answered:
    words = f"nothing is known of pane {pane_id}: nothing was ever started in it, and nothing is stored of it"
    return 404, _error(f"{_plain(words)}; say that it is new (--new) if it is")


async def _is_known(bridge: Bridge, pane_id: str) -> bool:
    """Whether there is such a pane: a mistyped name would be told that all went well, and the pane that was meant not.

    A pane that cannot be read of counts as one: what fails is told by what is asked of it.
    """
    started = bridge.processes is not None and bridge.processes.book.get(pane_id) is not None
    is_member = isinstance(bridge.seats, Seats) and pane_id in bridge.seats.panes
    if started or is_member or pane_id == bridge.head_pane:
        return True

    def look() -> bool:
        with bridge.supervisor.reader() as reader:
            return pane_history(reader, pane_id, latest=1).is_known

    try:
        return await trio.to_thread.run_sync(look)
    except StoreFault:
        return True


def _report(said: DeliveryReport) -> dict[str, object]:
    members = {name: value for name, value in asdict(said).items() if value is not None or name == "delivery_id"}
    return {"version": wire.VERSION, **members}


# -- what a human decides ----------------------------------------------------------------------------------------------


def _action(action: Action) -> Callable[[Call], Awaitable[Answered]]:
    """The handler of one of `ACTIONS`: its fields are the body's members."""

    async def handle(call: Call) -> Answered:
        fields = read_fields(action, wire.versioned(call.members))
        pane_id = call.parameters.get("pane", "")

        async def carry_out() -> dict[str, object]:
            return wire.answer(await call.bridge.decide(action, pane_id, fields))

        return _answered(await in_words(call, carry_out))

    return handle


# -- words -------------------------------------------------------------------------------------------------------------


async def in_words(call: Call, work: Callable[[], Awaitable[T]]) -> T | Answered:
    """What `work` answers, or why it could not: the status as `failures` has it, in the error's own words."""
    call.identity.confirm()
    try:
        return await work()
    except Exception as error:
        status, _ = told(error)
        if status not in _TOLD_IN_WORDS:
            raise
        call.bridge.stopping.heard(error)
        return failed(status, error)


def failed(status: int, error: Exception, **more: object) -> Answered:
    """The answer that tells an operator why it failed, in the error's own words, with `more` members.

    The log names the error's kind only: its words may repeat what the operator gave, such as a prompt.
    """
    log.info("operator: %d (%s)", status, type(error).__name__)
    return status, {**_error(_plain(str(error))), **more}


def _answered(said: Mapping[str, object] | Answered) -> Answered:
    return (200, said) if isinstance(said, Mapping) else said


def _error(words: str) -> dict[str, object]:
    return {"version": wire.VERSION, "error": words}


def _plain(text: str) -> str:
    """Printable and not long, whatever a runtime's words may repeat."""
    return escaped(text if len(text) <= _WORDS_MAX else f"{text[:_WORDS_MAX]}…")


OPERATOR_HANDLERS: Final[Mapping[str, Callable[[Call], Awaitable[Answered]]]] = {
    "operator_status": operator_status,
    "operator_pane": operator_pane,
    "detect": detect,
    "deliver": deliver,
    **{name: _action(action) for name, action in ACTIONS.items()},
}
"""By route."""
