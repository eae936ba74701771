"""Deliberate mistakes in deliveries, to see that laws 10 to 12 see them.

`tests/actors/test_delivery_model.py` has those that laws 1 to 9 see.

As in `faults`, each patches one table or function of the shipped modules while it lasts, or the shell that the worlds
are; nothing is copied.  Each names the law that must catch it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias
from unittest import mock

from attrs import evolve

from fencepost.actors import delivery_state
from fencepost.actors.delivery_messages import InboundPost, Outbound
from fencepost.actors.delivery_state import Journal, Message
from fencepost.actors.inbound_state import Answered, Asked, Traces, Verdict, stored
from fencepost.mailbox import claim, ladder
from fencepost.mailbox.claim import ClaimState, Finding, Judged, Rule, Step
from fencepost.mailbox.delivery_records import AcceptanceRecord, DeliveryRecord, FenceRecord, RunRecord
from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.ladder import Reach, Stage, Stop
from fencepost.supervisor import pump_state
from fencepost.supervisor.pump_state import CameOf, PumpState, PumpStep
from model_check import delivery_world, pump_world
from model_check.breadth import Found
from model_check.outlets import Broken, TerminalInput

__all__ = ["DELIVERY_FAULTS", "QUICK", "DeliveryFault", "caught_delivery", "explored"]

FOREIGN: Final = pump_world.FOREIGN
FLEET: Final = pump_world.World(pumps=1, unreadable_max=1, doubled_max=0)
HEAD: Final = pump_world.World("head_seat", pumps=1, doubled_max=0)
BRIDGE: Final = delivery_world.World((("one",),), unreadable_max=2)

QUICK: Final = (FOREIGN, FLEET, HEAD, BRIDGE)
"""Small worlds, each of which shows some of them."""

AnyWorld: TypeAlias = pump_world.World | delivery_world.World


class DeliveryFault(NamedTuple):
    """A mistake, for as long as its context lasts, the number of the law that it breaks, and a world that shows it."""

    deliberate: Callable[[], AbstractContextManager[None]]
    law: int
    world: AnyWorld


DELIVERY_FAULTS: Final[dict[str, DeliveryFault]] = {}
"""Every deliberate mistake in deliveries, by the name `--fault` knows it by."""


def caught_delivery(fault: DeliveryFault) -> Broken | None:
    """The law that is seen to be broken in this mistake's world; None if none is."""
    with fault.deliberate():
        try:
            explored(fault.world)
        except Broken as broken:
            return broken
    return None


def explored(world: AnyWorld) -> Found:
    """Search a world of either kind; raises `Broken`."""
    return pump_world.explore(world) if isinstance(world, pump_world.World) else delivery_world.explore(world)


def _breaks(law: int, world: AnyWorld) -> Callable[[Callable[[], Generator[None]]], Callable[[], Generator[None]]]:
    def registered(make: Callable[[], Generator[None]]) -> Callable[[], Generator[None]]:
        name = make.__name__.removeprefix("_").replace("_", "-")
        DELIVERY_FAULTS[name] = DeliveryFault(contextmanager(make), law, world)
        return make

    return registered


def _typing(why: str) -> Any:
    """What no table and no verdict can hold; a mistake puts it there all the same."""
    return TerminalInput(why)


def _pumping(step: PumpStep, came_of: CameOf, following: PumpStep) -> AbstractContextManager[object]:
    """The pump's table with one cell changed."""
    return mock.patch.object(pump_state, "TABLE", {**pump_state.TABLE, (step, came_of): following})


def _claiming(finding: Finding, **changes: object) -> AbstractContextManager[object]:
    """The claim's table with one row changed."""
    rule = replace(claim.RULES[finding], **changes)  # type: ignore[arg-type]
    return mock.patch.object(claim, "RULES", {**claim.RULES, finding: rule})


# -- 10: no terminal input anywhere ----------------------------------------------------------------------------------


@_breaks(10, FOREIGN)
def _type_what_the_pump_could_not_write() -> Generator[None]:
    """A failed write is made good through the terminal."""
    with _pumping(PumpStep.WRITE, CameOf.FAILED, _typing("the write failed")):
        yield


@_breaks(10, FOREIGN)
def _type_what_is_not_acknowledged() -> Generator[None]:
    """So is a lost acknowledgement."""
    with _pumping(PumpStep.ACKNOWLEDGE, CameOf.FAILED, _typing("nobody heard of it")):
        yield


@_breaks(10, FLEET)
def _type_behind_what_is_uncertain() -> Generator[None]:
    """A call that finds an uncertain original has its own text typed."""
    real = delivery_state.judge_call

    def judge_call(*asked: Any, **more: Any) -> object:
        verdict = real(*asked, **more)
        return _typing("the pane is fenced") if isinstance(verdict, delivery_state.Fenced) else verdict

    with mock.patch.object(delivery_state, "judge_call", judge_call):
        yield


@_breaks(10, BRIDGE)
def _type_what_the_service_does_not_tell_of() -> Generator[None]:
    """A bridge whose claim stays has its text typed."""
    with _claiming(Finding.RECEIPT_OPEN, step=_typing("the original is unresolved")):
        yield


@_breaks(10, HEAD)
def _offer_the_terminal_as_a_mechanism() -> Generator[None]:
    """A head seat that nobody polls falls back on a mechanism that is called another name and types."""
    real = delivery_state.dispatch

    def dispatch(message: Message, *more: Any) -> DeliveryRecord:
        row = real(message, *more)
        return evolve(row, mechanism="terminal") if row.mechanism == "channel_turn" else row

    with (
        mock.patch.object(ladder, "MECHANISMS", (*ladder.MECHANISMS, "terminal")),
        mock.patch.object(delivery_state, "dispatch", dispatch),
    ):
        yield


@_breaks(10, FLEET)
def _type_where_nobody_polls() -> Generator[None]:
    """The shell, and no decision, types what nobody has polled for."""
    real = pump_world.unsent

    def unsent(state: pump_world.State, message: Message, heard: delivery_state.Heard) -> pump_world.State:
        return real(state, message, heard)._replace(typed=frozenset({message.text}))

    with mock.patch.object(pump_world, "unsent", unsent):
        yield


# -- 11: one write an event and pump life, no acknowledgement without it ---------------------------------------------


@_breaks(11, FOREIGN)
def _write_again_what_was_not_acknowledged() -> Generator[None]:
    """A lost acknowledgement has the notification written once more."""
    with _pumping(PumpStep.ACKNOWLEDGE, CameOf.FAILED, PumpStep.WRITE):
        yield


@_breaks(11, FOREIGN)
def _write_again_what_was_not_written() -> Generator[None]:
    """So has a failed write."""
    with _pumping(PumpStep.WRITE, CameOf.FAILED, PumpStep.WRITE):
        yield


@_breaks(11, FOREIGN)
def _acknowledge_what_was_not_written() -> Generator[None]:
    """A failed write is acknowledged."""
    with _pumping(PumpStep.WRITE, CameOf.FAILED, PumpStep.ACKNOWLEDGE):
        yield


@_breaks(11, FOREIGN)
def _acknowledge_before_the_write() -> Generator[None]:
    """An event is acknowledged as soon as it is taken up."""
    real = pump_state.after

    def after(*asked: Any) -> PumpState:
        state = real(*asked)
        return evolve(state, step=PumpStep.ACKNOWLEDGE) if state.step is PumpStep.WRITE else state

    with mock.patch.object(pump_state, "after", after):
        yield


@_breaks(11, FOREIGN)
def _forget_what_was_written() -> Generator[None]:
    """An event that is handed out again is written again."""
    real = pump_state.after

    def after(state: PumpState, *asked: Any) -> PumpState:
        return real(evolve(state, begun=frozenset()), *asked)

    with mock.patch.object(pump_state, "after", after):
        yield


@_breaks(11, FLEET)
def _hand_out_again_what_was_taken() -> Generator[None]:
    """The mailbox answers a poll with what was taken and not acknowledged, so a pump writes it in another life."""
    real = pump_world.service_steps

    def service_steps(state: pump_world.State, world: pump_world.World) -> pump_world.Steps:
        yield from real(state, world)
        row = state.service.row
        if row is not None:
            event = pump_world.event_of(row.delivery_id)
            for number in state.service.polls - {pump_world.NOBODY}:
                yield f"{row.text!r} is handed out again", pump_world.polled(state, number, (event,))

    with mock.patch.object(pump_world, "service_steps", service_steps):
        yield


@_breaks(11, FLEET)
def _call_the_taken_delivered() -> Generator[None]:
    """A poll that took an event counts as its acknowledgement."""
    real = delivery_state.dispatch

    def dispatch(message: Message, now: int) -> DeliveryRecord:
        row = real(message, now)
        return row.next(outcome="delivered", stage=Stage.DELIVERED, resolved_at=now)

    with mock.patch.object(delivery_state, "dispatch", dispatch):
        yield


# -- 12: unreadable evidence blocks ----------------------------------------------------------------------------------


@_breaks(12, BRIDGE)
def _take_an_unreadable_claim_for_none() -> Generator[None]:
    """A bridge that cannot read what is in its scope claims it."""
    rule = Rule(ClaimState.NONE, Step.CLAIM, Reach(), ClaimState.HELD)
    with mock.patch.object(claim, "RULES", {**claim.RULES, Finding.CORRUPT: rule}):
        yield


@_breaks(12, BRIDGE)
def _call_an_unreadable_claim_unavailable() -> Generator[None]:
    """It tells that nothing was sent, as if that were known."""
    with _claiming(Finding.CORRUPT, reach=Reach(stop=Stop.UNAVAILABLE)):
        yield


@_breaks(12, BRIDGE)
def _tell_beside_a_claim_that_stands() -> Generator[None]:
    """An answer is told although the claim it was about cannot be read, and so not removed."""

    def judge_removal(judged: Judged, _came_of_it: object) -> Judged:
        return judged

    with mock.patch.object(delivery_world, "judge_removal", judge_removal):
        yield


@_breaks(12, BRIDGE)
def _take_unreadable_traces_for_none() -> Generator[None]:
    """A post is accepted where the fence, or what is known of its id, cannot be read."""
    real = delivery_world.judge_accept

    def judge_post(pane_id: str, post: InboundPost, traces: Traces | CorruptRecord) -> Verdict:
        return real(pane_id, post, Traces(binding=post.binding) if isinstance(traces, CorruptRecord) else traces)

    with mock.patch.object(delivery_world, "judge_accept", judge_post):
        yield


@_breaks(12, BRIDGE)
def _believe_an_unreadable_acceptance() -> Generator[None]:
    """A lookup that cannot read the acceptance says that it is there."""
    real = delivery_world.judge_lookup

    def judge_lookup(asked: Asked, traces: Traces | CorruptRecord) -> Answered:
        return Answered(stored(asked)) if isinstance(traces, CorruptRecord) else real(asked, traces)

    with mock.patch.object(delivery_world, "judge_lookup", judge_lookup):
        yield


@_breaks(12, BRIDGE)
def _publish_what_cannot_be_read() -> Generator[None]:
    """A restart publishes the pending original though its evidence cannot be read."""
    real = delivery_world.unpublished

    def unpublished(fence: FenceRecord, traces: Traces | CorruptRecord, runs: list[RunRecord]) -> object:
        if not isinstance(traces, CorruptRecord):
            return real(fence, traces, runs)
        evidence = {name: getattr(fence, name) for name in ("delivery_id", "pane_id", "binding", "fingerprint")}
        return AcceptanceRecord(**evidence, conversation_id="c", text="", wrapped_text="", run_id="r", at=1)

    with mock.patch.object(delivery_world, "unpublished", unpublished):
        yield


@_breaks(12, FLEET)
def _take_an_unreadable_journal_for_empty() -> Generator[None]:
    """A delivery is sent though what is unresolved cannot be read."""
    real = delivery_state.judge_call

    def judge_call(outbound: Outbound, journal: Journal | CorruptRecord, *more: Any) -> object:
        return real(outbound, Journal() if isinstance(journal, CorruptRecord) else journal, *more)

    with mock.patch.object(delivery_state, "judge_call", judge_call):
        yield


@_breaks(12, FLEET)
def _call_an_unreadable_journal_unavailable() -> Generator[None]:
    """It is not sent, and its caller is told that it was not, as if the record of it had been read."""
    real = delivery_state.unreadable_report

    def unreadable_report(*asked: Any) -> object:
        return evolve(real(*asked), stop=Stop.UNAVAILABLE)

    with mock.patch.object(delivery_state, "unreadable_report", unreadable_report):
        yield
