"""Deliberate mistakes, to see that the checker sees them.

Each is a context manager that patches one table or function of the shipped modules while it lasts; nothing is copied,
so what is checked is the shipped code with exactly one thing wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeAlias
from unittest import mock

from attrs import evolve

from fencepost.actors import (
    boundary,
    incarnation_state,
    intent_state,
    intent_verdicts,
    pane_reports,
    pane_resolution,
    pane_state,
)
from fencepost.actors.boundary import Boundary
from fencepost.actors.decision import Decision
from fencepost.actors.incarnation_state import LaunchRequest
from fencepost.actors.intent_events import AcceptHandshake, Acknowledge, BindRestart, IntentEvent, Resolve
from fencepost.actors.intent_state import Code
from fencepost.actors.intent_verdicts import Relation, Verdict
from fencepost.actors.messages import Allow, Answer, BlockPayload
from fencepost.actors.pane_state import Limits, Mint, PaneState
from fencepost.mailbox.records import AdmissionDecision, IncarnationRecord, IntentRecord, IntentState, Record
from model_check.outlets import TerminalInput

__all__ = ["FAULTS", "deliberate"]

Decide: TypeAlias = Callable[[PaneState, Boundary], Decision]

FAULTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {}
"""Every deliberate mistake, by the name `--fault` knows it by."""


def deliberate(name: str) -> AbstractContextManager[None]:
    """The fault of this name, for as long as the context lasts."""
    return FAULTS[name]()


def _fault(make: Callable[[], Generator[None]]) -> Callable[[], Generator[None]]:
    FAULTS[make.__name__.removeprefix("_").replace("_", "-")] = contextmanager(make)
    return make


def _verdict(code: Code, relation: Relation, verdict: Verdict) -> AbstractContextManager[object]:
    """Section 4 with one cell changed."""
    row = {**intent_verdicts.VERDICTS[code], relation: verdict}
    return mock.patch.object(intent_verdicts, "VERDICTS", {**intent_verdicts.VERDICTS, code: row})


def _possible(*rows: tuple[Code, type[IntentEvent], Code]) -> AbstractContextManager[object]:
    """The transition table with some rows more."""
    more = {(code, event): frozenset({after}) for code, event, after in rows}
    return mock.patch.object(intent_state, "TABLE", {**intent_state.TABLE, **more})


def _deciding(decide: Callable[[Decide, PaneState, Boundary], Decision]) -> AbstractContextManager[object]:
    """Tool calls decided by `decide`, which is handed the shipped decision."""
    real = boundary.decide_boundary
    return mock.patch.object(boundary, "decide_boundary", lambda state, asked: decide(real, state, asked))


def _launching(change: Callable[[Decision], Decision]) -> AbstractContextManager[object]:
    """Launches decided as shipped, and then changed."""
    real = incarnation_state.decide_launch
    return mock.patch.object(incarnation_state, "decide_launch", lambda *asked: change(real(*asked)))


def _resolving(attended: Callable[[PaneState], bool]) -> AbstractContextManager[object]:
    """Resolutions decided as shipped, with another idea of when a process has to be minded."""
    real = pane_resolution.decide_resolve

    def decide(state: PaneState, intent_id: str, resolution: str, by: str, now: int) -> Decision:
        decision = real(state, intent_id, resolution, by, now)
        changed = [
            (intent, evolve(event, attended=attended(state)) if isinstance(event, Resolve) else event)
            for intent, event in decision.intent_events
        ]
        return evolve(decision, intent_events=tuple(changed))

    return mock.patch.object(pane_resolution, "decide_resolve", decide)


# -- acknowledging too early -----------------------------------------------------------------------------------------


@_fault
def _acknowledge_without_completion() -> Generator[None]:
    """A later turn is taken for proof, though the blocked batch was never reported complete."""
    with (
        _verdict(Code.L_OPEN, Relation.LATER_TURN, Verdict.ACKNOWLEDGE),
        _possible((Code.L_OPEN, Acknowledge, Code.ACKNOWLEDGED)),
    ):
        yield


@_fault
def _acknowledge_in_the_same_turn() -> Generator[None]:
    """A new batch of the same turn is taken for a later turn."""
    with _verdict(Code.L_COMPLETE, Relation.SAME_TURN, Verdict.ACKNOWLEDGE):
        yield


@_fault
def _acknowledge_by_a_sibling() -> Generator[None]:
    """A sibling of the blocked call is taken for a later turn."""
    with _verdict(Code.L_COMPLETE, Relation.SAME_BATCH, Verdict.ACKNOWLEDGE):
        yield


@_fault
def _forget_the_offer_mark() -> Generator[None]:
    """A completed batch counts as delivered although no call of it was ever given the payload."""

    def judge_call(intent: IntentRecord, relation: Relation) -> Verdict:
        return intent_verdicts.VERDICTS[intent_state.code_of(intent)][relation]

    with mock.patch.object(boundary, "judge_call", judge_call):
        yield


@_fault
def _acknowledge_on_the_handshake_alone() -> Generator[None]:
    """The replacement's ready report acknowledges, before the model had a turn."""
    real = intent_state.transition

    def transition(intent: IntentRecord, event: IntentEvent, now: int) -> IntentRecord:
        after = real(intent, event, now)
        return real(after, Acknowledge(), now) if isinstance(event, AcceptHandshake) else after

    with mock.patch.object(intent_state, "transition", transition):
        yield


@_fault
def _acknowledge_without_the_echo() -> Generator[None]:
    """The first call of a replacement acknowledges, whatever startup delivery it echoes."""

    def decide(real: Decide, state: PaneState, asked: Boundary) -> Decision:
        if state.head is not None and state.head.startup_delivery_id is not None:
            asked = evolve(asked, call=evolve(asked.call, startup_delivery_id=state.head.startup_delivery_id))
        return real(state, asked)

    with _deciding(decide):
        yield


@_fault
def _acknowledge_without_the_handshake() -> Generator[None]:
    """The right echo acknowledges a payload delivered before, though this startup was never accepted."""

    def decide(real: Decide, state: PaneState, asked: Boundary) -> Decision:
        head = state.head
        if (
            head is not None
            and intent_state.code_of(head) is Code.L_RESTART
            and state.is_live(asked.call.incarnation_id)
            and asked.call.startup_delivery_id == head.startup_delivery_id
        ):
            return Decision(intent_events=((head, Acknowledge()),), again=True)
        return real(state, asked)

    with _deciding(decide), _possible((Code.L_RESTART, Acknowledge, Code.ACKNOWLEDGED)):
        yield


# -- a way to the model that is none ---------------------------------------------------------------------------------


@_fault
def _type_the_payload() -> Generator[None]:
    """A call that is given the payload has it typed into the pane as well."""

    def decide(real: Decide, state: PaneState, asked: Boundary) -> Decision:
        decision = real(state, asked)
        if not isinstance(decision.answer, BlockPayload):
            return decision
        typed: Any = TerminalInput("so that the model surely reads it")
        return evolve(decision, effects=(*decision.effects, typed))

    with _deciding(decide):
        yield


# -- proofs that prove something else --------------------------------------------------------------------------------


@_fault
def _drop_the_fence() -> Generator[None]:
    """What a retired incarnation says counts."""
    with (
        mock.patch.object(boundary, "judge_speaker", return_value=None),
        mock.patch.object(pane_state, "judge_speaker", return_value=None),
    ):
        yield


@_fault
def _mark_delivered_from_another_batch() -> Generator[None]:
    """A mark_delivered counts whatever batch it names."""
    real = intent_verdicts.judge_mark_delivered

    def judge(intent: IntentRecord, _incarnation_id: str, _turn_id: str, _batch_id: str) -> Answer:
        return real(intent, str(intent.incarnation_id), str(intent.turn_id), str(intent.batch_id))

    with mock.patch.object(pane_reports, "judge_mark_delivered", judge):
        yield


@_fault
def _complete_the_nearest_batch() -> Generator[None]:
    """A completion report counts whatever batch it names."""
    real = intent_verdicts.judge_batch_completed

    def judge(intent: IntentRecord | None, *named: str) -> Answer:
        if intent is None or intent.batch_id is None:
            return real(intent, *named)
        return real(intent, str(intent.incarnation_id), str(intent.turn_id), intent.batch_id)

    with mock.patch.object(pane_reports, "judge_batch_completed", judge):
        yield


@_fault
def _carry_the_completion_into_a_restart() -> Generator[None]:
    """A bind to a replacement keeps the soft batch's proof beside its own."""
    real = intent_state.transition

    def transition(intent: IntentRecord, event: IntentEvent, now: int) -> IntentRecord:
        after = real(intent, event, now)
        if not isinstance(event, BindRestart):
            return after
        names = ("turn_id", "turn_ordinal", "batch_id", "bound_at", "batch_completed_at")
        return evolve(after, **{name: getattr(intent, name) for name in names})

    with mock.patch.object(intent_state, "transition", transition):
        yield


@_fault
def _keep_the_marker_of_the_retired() -> Generator[None]:
    """A retirement leaves the marker where it is."""
    real = IncarnationRecord.next

    def following(self: IncarnationRecord, **changes: Any) -> IncarnationRecord:
        if "retired_at" in changes:
            changes.pop("delivered_intent_id")
        return real(self, **changes)

    with mock.patch.object(IncarnationRecord, "next", following):
        yield


# -- tools that run, and files that change, when they must not -------------------------------------------------------


@_fault
def _allow_siblings_while_reconciling() -> Generator[None]:
    """A call that finds the files being reconciled is let pass."""

    def decide(real: Decide, state: PaneState, asked: Boundary) -> Decision:
        decision = real(state, asked)
        reconciling = state.head is not None and state.head.state is IntentState.RECONCILING
        return Decision(answer=Allow()) if reconciling and decision.park is not None else decision

    with _deciding(decide):
        yield


@_fault
def _allow_what_was_blocked() -> Generator[None]:
    """Once nothing is pending, even the rest of a blocked batch may run."""

    def decide(real: Decide, state: PaneState, asked: Boundary) -> Decision:
        return real(state, asked) if state.head is not None or asked.admission is None else Decision(answer=Allow())

    with _deciding(decide):
        yield


@_fault
def _lose_a_pass() -> Generator[None]:
    """A batch that was let pass is forgotten; its next call binds it, while the first one runs."""

    def decide(real: Decide, state: PaneState, asked: Boundary) -> Decision:
        if asked.admission is not None and asked.admission.decision is AdmissionDecision.PASS:
            asked = evolve(asked, admission=None)
        return real(state, asked)

    with _deciding(decide):
        yield


@_fault
def _bind_a_batch_blocked_before() -> Generator[None]:
    """A late call of a batch blocked by an intent now resolved binds the next intent, under a batch that passed."""

    def decide(real: Decide, state: PaneState, asked: Boundary) -> Decision:
        head, admission = state.head, asked.admission
        if head is not None and admission is not None and admission.decision is AdmissionDecision.BLOCK:
            asked = evolve(asked, admission=evolve(admission, intent_id=head.intent_id))
        return real(state, asked)

    with _deciding(decide):
        yield


@_fault
def _resolve_under_a_running_batch() -> Generator[None]:
    """A human's resolution goes straight on reconciling, though a process may have a batch under way."""
    with _resolving(lambda _state: False):
        yield


@_fault
def _resolve_under_a_lingering_process() -> Generator[None]:
    """The same, but only once that process is retired; it may still be there."""
    with _resolving(lambda state: state.live is not None):
        yield


# -- processes -------------------------------------------------------------------------------------------------------


@_fault
def _reuse_a_startup_id() -> Generator[None]:
    """A second attempt is given the startup delivery id of the first."""
    real = incarnation_state.decide_launch

    def decide(state: PaneState, request: LaunchRequest, limits: Limits, now: int, mint: Mint) -> Decision:
        def stale(kind: str) -> str:
            used = state.head.startup_delivery_id if state.head is not None else None
            return used if kind == "startup_delivery" and used is not None else mint(kind)

        return real(state, request, limits, now, stale)

    with mock.patch.object(incarnation_state, "decide_launch", decide):
        yield


@_fault
def _launch_beside_the_living() -> Generator[None]:
    """A launch does not retire the incarnation that lives."""
    with _launching(lambda decision: evolve(decision, puts=decision.puts[-1:])):
        yield


@_fault
def _launch_plainly_with_a_payload() -> Generator[None]:
    """A process starts without its startup delivery although one is due."""

    def plain(record: Record) -> Record:
        if not isinstance(record, IncarnationRecord):
            return record
        return evolve(
            record,
            startup_intent_id=None,
            startup_delivery_id=None,
            startup_payload_sha256=None,
            startup_epoch=None,
            startup_attempt=None,
        )

    with _launching(lambda decision: evolve(decision, puts=tuple(map(plain, decision.puts)), intent_events=())):
        yield


@_fault
def _launch_while_reconciling() -> Generator[None]:
    """A process starts while the payload does not exist yet."""
    real = incarnation_state.check_launch

    def check_launch(state: PaneState, limits: Limits) -> None:
        if state.head is None or state.head.state is not IntentState.RECONCILING:
            real(state, limits)

    with mock.patch.object(incarnation_state, "check_launch", check_launch):
        yield


@_fault
def _never_exhaust() -> Generator[None]:
    """The last permitted attempt is given up without a mark, and another one follows."""
    real = incarnation_state.give_up

    def give_up(state: PaneState, reason: str, limits: Limits, now: int, mint: Mint, *, replace: bool) -> Decision:
        return real(state, reason, evolve(limits, startup_attempts_max=99), now, mint, replace=replace)

    with (
        mock.patch.object(incarnation_state, "give_up", give_up),
        mock.patch.object(boundary, "give_up", give_up),
    ):
        yield


@_fault
def _never_redeliver() -> Generator[None]:
    """A completed batch that was shown no payload stays the bound one: a later turn is told, and never counts."""
    with _verdict(Code.M_COMPLETE, Relation.LATER_TURN, Verdict.PAYLOAD):
        yield


@_fault
def _deliver_twice() -> Generator[None]:
    """A repeated delivery moves the time of the first."""
    real = intent_state.transition

    def transition(intent: IntentRecord, event: IntentEvent, now: int) -> IntentRecord:
        after = real(intent, event, now)
        return evolve(after, delivered_at=now) if isinstance(event, AcceptHandshake) else after

    with mock.patch.object(intent_state, "transition", transition):
        yield
