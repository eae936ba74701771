"""Deliberate mistakes, to see that the checker sees them.

Each is a context manager that patches one table or function of the shipped modules while it lasts; nothing is copied,
so what is checked is the shipped code with exactly one thing wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest import mock

from attrs import evolve

from fencepost.actors import boundary, incarnation_state, intent_state, pane_state
from fencepost.actors.decision import Decision
from fencepost.actors.intent_state import (
    AcceptHandshake,
    Acknowledge,
    BindRestart,
    Code,
    IntentEvent,
    Relation,
    Resolve,
    Verdict,
)
from fencepost.actors.messages import Allow, Answer, ToolBoundary
from fencepost.actors.pane_state import Limits, Mint, PaneState
from fencepost.mailbox.records import (
    AdmissionDecision,
    DeliveryMode,
    IncarnationRecord,
    IntentRecord,
    IntentState,
)

__all__ = ["FAULTS", "deliberate"]

FAULTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {}


def deliberate(name: str) -> AbstractContextManager[None]:
    """The fault of this name, for as long as the context lasts."""
    return FAULTS[name]()


def _fault(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    FAULTS[make.__name__.removeprefix("_").replace("_", "-")] = contextmanager(make)
    return make


def _verdict(code: Code, relation: Relation, verdict: Verdict) -> Any:
    """Section 4 with one cell changed."""
    row = {**intent_state.VERDICTS[code], relation: verdict}
    return mock.patch.object(intent_state, "VERDICTS", {**intent_state.VERDICTS, code: row})


def _possible(*rows: tuple[Code, type[IntentEvent], Code]) -> Any:
    """The transition table with some rows more."""
    more = {(code, event): frozenset({after}) for code, event, after in rows}
    return mock.patch.object(intent_state, "TABLE", {**intent_state.TABLE, **more})


# -- acknowledging too early -----------------------------------------------------------------------------------------


@_fault
def _acknowledge_without_completion() -> Iterator[None]:
    """A later turn is taken for proof, though the blocked batch was never reported complete."""
    with (
        _verdict(Code.L_OPEN, Relation.LATER_TURN, Verdict.ACKNOWLEDGE),
        _possible((Code.L_OPEN, Acknowledge, Code.ACKNOWLEDGED)),
    ):
        yield


@_fault
def _acknowledge_in_the_same_turn() -> Iterator[None]:
    """A new batch of the same turn is taken for a later turn."""
    with _verdict(Code.L_COMPLETE, Relation.SAME_TURN, Verdict.ACKNOWLEDGE):
        yield


@_fault
def _acknowledge_by_a_sibling() -> Iterator[None]:
    """A sibling of the blocked call is taken for a later turn."""
    with _verdict(Code.L_COMPLETE, Relation.SAME_BATCH, Verdict.ACKNOWLEDGE):
        yield


@_fault
def _forget_the_offer_mark() -> Iterator[None]:
    """A completed batch counts as delivered although no call of it was ever given the payload."""

    def judge_call(intent: IntentRecord, relation: Relation) -> Verdict:
        return intent_state.VERDICTS[intent_state.code_of(intent)][relation]

    with mock.patch.object(boundary, "judge_call", judge_call):
        yield


@_fault
def _acknowledge_on_the_handshake_alone() -> Iterator[None]:
    """The replacement's ready report acknowledges, before the model had a turn."""
    real = intent_state._changes

    def changes(intent: IntentRecord, event: IntentEvent, now: int) -> Mapping[str, object]:
        if not isinstance(event, AcceptHandshake):
            return real(intent, event, now)
        delivered = real(intent, event, now)
        return {**delivered, **real(intent, Acknowledge(), now)}

    with mock.patch.object(intent_state, "_changes", changes):
        yield


@_fault
def _acknowledge_without_the_echo() -> Iterator[None]:
    """The first call of a replacement acknowledges, whatever startup delivery it echoes."""
    real = boundary._first_boundary

    def first_boundary(state: PaneState, asked: Any, speaker: IncarnationRecord, head: IntentRecord) -> Decision:
        call: ToolBoundary = evolve(asked.call, startup_delivery_id=head.startup_delivery_id)
        return real(state, evolve(asked, call=call), speaker, head)

    with mock.patch.object(boundary, "_first_boundary", first_boundary):
        yield


@_fault
def _acknowledge_without_the_handshake() -> Iterator[None]:
    """The right echo acknowledges though the startup delivery was never accepted."""

    def first_boundary(_state: PaneState, asked: Any, speaker: IncarnationRecord, head: IntentRecord) -> Decision:
        if asked.call.startup_delivery_id != head.startup_delivery_id or head.delivered_at is None:
            return real(_state, asked, speaker, head)
        return boundary._acknowledged(speaker, head, Acknowledge())

    real = boundary._first_boundary
    with (
        mock.patch.object(boundary, "_first_boundary", first_boundary),
        _possible((Code.L_RESTART, Acknowledge, Code.ACKNOWLEDGED)),
    ):
        yield


# -- proofs that prove something else --------------------------------------------------------------------------------


@_fault
def _drop_the_fence() -> Iterator[None]:
    """What a retired incarnation says counts."""
    with (
        mock.patch.object(boundary, "judge_speaker", lambda _pane, _speaker: None),
        mock.patch.object(pane_state, "judge_speaker", lambda _pane, _speaker: None),
    ):
        yield


@_fault
def _mark_delivered_from_another_batch() -> Iterator[None]:
    """A mark_delivered counts whatever batch it names."""
    real = intent_state.judge_mark_delivered

    def judge(intent: IntentRecord, _incarnation_id: str, _turn_id: str, _batch_id: str) -> Answer:
        return real(intent, str(intent.incarnation_id), str(intent.turn_id), str(intent.batch_id))

    with mock.patch.object(pane_state, "judge_mark_delivered", judge):
        yield


@_fault
def _complete_the_nearest_batch() -> Iterator[None]:
    """A completion report counts whatever batch it names."""
    real = intent_state.judge_batch_completed

    def judge(intent: IntentRecord | None, *named: str) -> Answer:
        if intent is None or intent.batch_id is None:
            return real(intent, *named)
        return real(intent, str(intent.incarnation_id), str(intent.turn_id), intent.batch_id)

    with mock.patch.object(pane_state, "judge_batch_completed", judge):
        yield


@_fault
def _carry_the_completion_into_a_restart() -> Iterator[None]:
    """A bind to a replacement keeps the soft batch's proof beside its own."""
    real = intent_state._changes

    def changes(intent: IntentRecord, event: IntentEvent, now: int) -> Mapping[str, object]:
        changed = dict(real(intent, event, now))
        if isinstance(event, BindRestart):
            for name in ("turn_id", "turn_ordinal", "batch_id", "bound_at", "batch_completed_at"):
                changed.pop(name)
        return changed

    with mock.patch.object(intent_state, "_changes", changes):
        yield


@_fault
def _keep_the_marker_of_the_retired() -> Iterator[None]:
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
def _allow_siblings_while_reconciling() -> Iterator[None]:
    """A call that finds the files being reconciled is let pass."""
    real = boundary._wait

    def wait(asked: Any, head: IntentRecord) -> Decision:
        if head.state is IntentState.RECONCILING:
            return Decision(answer=Allow())
        return real(asked, head)

    with mock.patch.object(boundary, "_wait", wait):
        yield


@_fault
def _allow_what_was_blocked() -> Iterator[None]:
    """Once nothing is pending, even the rest of a blocked batch may run."""
    with mock.patch.object(boundary, "_first_decision", lambda _asked: Decision(answer=Allow())):
        yield


@_fault
def _lose_a_pass() -> Iterator[None]:
    """A batch that was let pass is forgotten; its next call binds it, while the first one runs."""
    real = boundary.decide_boundary

    def decide(state: PaneState, asked: Any) -> Decision:
        if asked.admission is not None and asked.admission.decision is AdmissionDecision.PASS:
            asked = evolve(asked, admission=None)
        return real(state, asked)

    with mock.patch.object(boundary, "decide_boundary", decide):
        yield


@_fault
def _bind_a_batch_blocked_before() -> Iterator[None]:
    """A late call of a batch blocked by an intent now resolved binds the next intent, under a batch that passed."""
    real = boundary._no_proof

    def no_proof(state: PaneState, asked: Any, speaker: IncarnationRecord, head: IntentRecord | None) -> Decision:
        admission = asked.admission
        if head is not None and admission is not None and admission.decision is AdmissionDecision.BLOCK:
            asked = evolve(asked, admission=evolve(admission, intent_id=head.intent_id))
        return real(state, asked, speaker, head)

    with mock.patch.object(boundary, "_no_proof", no_proof):
        yield


@_fault
def _resolve_under_a_running_batch() -> Iterator[None]:
    """A human's resolution goes straight on reconciling, though a process may have a batch under way."""
    real = Resolve

    def resolve(**fields: Any) -> Resolve:
        return real(**{**fields, "attended": False})

    with mock.patch.object(pane_state, "Resolve", resolve):
        yield


# -- processes -------------------------------------------------------------------------------------------------------


@_fault
def _reuse_a_startup_id() -> Iterator[None]:
    """A second attempt is given the startup delivery id of the first."""
    real = incarnation_state._startup_fields

    def startup_fields(state: PaneState, head: IntentRecord | None, mint: Mint) -> dict[str, str | int]:
        fields = real(state, head, mint)
        if head is not None and head.startup_delivery_id is not None:
            fields["startup_delivery_id"] = head.startup_delivery_id
        return fields

    with mock.patch.object(incarnation_state, "_startup_fields", startup_fields):
        yield


@_fault
def _launch_beside_the_living() -> Iterator[None]:
    """A launch does not retire the incarnation that lives."""
    with mock.patch.object(incarnation_state, "_succeeded", lambda _state, _now: Decision()):
        yield


@_fault
def _launch_plainly_with_a_payload() -> Iterator[None]:
    """A process starts without its startup delivery although one is due."""
    with mock.patch.object(incarnation_state, "_startup_fields", lambda _state, _head, _mint: {}):
        yield


@_fault
def _launch_while_reconciling() -> Iterator[None]:
    """A process starts while the payload does not exist yet."""
    forbidden = {
        state: reason
        for state, reason in incarnation_state._LAUNCH_FORBIDDEN.items()
        if state is not IntentState.RECONCILING
    }
    with mock.patch.object(incarnation_state, "_LAUNCH_FORBIDDEN", forbidden):
        yield


@_fault
def _never_exhaust() -> Iterator[None]:
    """The last permitted attempt is given up without a mark: nothing may be launched and no human may step in."""
    real = incarnation_state.give_up

    def give_up(
        state: PaneState, reason: str, limits: Limits, now: int, mint: Mint, *, replace: bool
    ) -> Decision:
        return real(state, reason, evolve(limits, startup_attempts_max=99), now, mint, replace=replace)

    with (
        mock.patch.object(incarnation_state, "give_up", give_up),
        mock.patch.object(boundary, "give_up", give_up),
    ):
        yield


@_fault
def _deliver_twice() -> Iterator[None]:
    """A repeated delivery moves the time of the first."""
    real = intent_state._changes

    def changes(intent: IntentRecord, event: IntentEvent, now: int) -> Mapping[str, object]:
        changed = dict(real(intent, event, now))
        if isinstance(event, AcceptHandshake) and intent.mode is DeliveryMode.RESTART_STARTUP:
            changed["delivered_at"] = now
        return changed

    with mock.patch.object(intent_state, "_changes", changes):
        yield
