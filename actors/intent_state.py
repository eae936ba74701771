"""The intent protocol: one row, seventeen codes, and what each event does to them.  Pure.

Theory of operation
===================

A base moved under an agent's feet.  The intent is the durable promise that the agent hears of it, exactly as saved,
before it acts on files it was not told about (cascade-outbox note).  The row owns the whole protocol; a code is a
state together with the shape of its proof (protocol-intent.md section 1.4):

    D                           detected, bound to nothing
    C/o  C/c  C/x               reconciling: soft batch open, batch already complete, no live caller to serve
    M/o  M/c  M/n               payload prepared: soft batch open, complete, prepared while no process was running
    L/o  L/c                    delivered into a soft batch: open, complete
    M/r  L/r  L/h               bound to a replacement process: never delivered, delivered before, handshake accepted
    X                           any of the last three, given up for a human
    RR   TD                     blocked: recovery required, topology diverged
    A    S                      acknowledged, superseded: nothing happens any more

`TABLE` names every (code, event) that exists and the code it leads to; a pair that is absent does not exist and
`transition` raises.  `step` is a transition with all that is written beside the row.  The events are in
`intent_events`; what a call or a report of a harness amounts to, given the row, is judged in `intent_verdicts`.

Nothing here knows of the store, time or randomness: `now` and fresh ids arrive in the events.  The mutation that
carries a new row is guarded by the row's revision, so a decision made on an older row cannot be committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, assert_never

from attrs import frozen

from fencepost.actors.intent_events import (
    AcceptHandshake,
    Acknowledge,
    AcknowledgeRecovered,
    BeginUnattended,
    BindRestart,
    BindSoft,
    Coalesce,
    CompleteBatch,
    Discard,
    DivergeTopology,
    Exhaust,
    IntentEvent,
    MarkDelivered,
    Offer,
    Plan,
    Prepare,
    Rearm,
    Rebind,
    RequireRecovery,
    Resolve,
    Supersede,
)
from fencepost.actors.messages import ModelTurn
from fencepost.mailbox.errors import InvalidTransition
from fencepost.mailbox.mutation import NewEvent
from fencepost.mailbox.records import DeliveryMode, IntentRecord, IntentState, ProjectionRecord, Record

__all__ = ["TABLE", "Code", "Step", "code_of", "starts_attempt", "step", "steps", "transition"]


# -- codes -----------------------------------------------------------------------------------------------------


class Code(StrEnum):
    """A state together with the shape of its proof (section 1.4)."""

    D = "D"
    C_OPEN = "C/o"
    C_COMPLETE = "C/c"
    C_UNATTENDED = "C/x"
    M_OPEN = "M/o"
    M_COMPLETE = "M/c"
    M_UNATTENDED = "M/n"
    L_OPEN = "L/o"
    L_COMPLETE = "L/c"
    M_RESTART = "M/r"
    L_RESTART = "L/r"
    L_HANDSHAKE = "L/h"
    EXHAUSTED = "X"
    RECOVERY_REQUIRED = "RR"
    TOPOLOGY_DIVERGED = "TD"
    ACKNOWLEDGED = "A"
    SUPERSEDED = "S"


_LETTER: Final[Mapping[IntentState, str]] = {
    IntentState.RECONCILING: "C",
    IntentState.MATERIALIZED: "M",
    IntentState.DELIVERED: "L",
}

_PLAIN: Final[Mapping[IntentState, Code]] = {
    IntentState.DETECTED: Code.D,
    IntentState.RECOVERY_REQUIRED: Code.RECOVERY_REQUIRED,
    IntentState.TOPOLOGY_DIVERGED: Code.TOPOLOGY_DIVERGED,
    IntentState.ACKNOWLEDGED: Code.ACKNOWLEDGED,
    IntentState.SUPERSEDED: Code.SUPERSEDED,
}


def code_of(intent: IntentRecord, *, live: bool = True) -> Code:
    """The code of a row.  `live` says whether its bound incarnation is; a retired one turns C/o and C/c into C/x."""
    if intent.exhausted_at is not None:
        return Code.EXHAUSTED
    plain = _PLAIN.get(intent.state)
    if plain is not None:
        return plain
    if intent.state is IntentState.RECONCILING and not live:
        return Code.C_UNATTENDED
    return Code(f"{_LETTER[intent.state]}/{_proof_letter(intent)}")


def _proof_letter(intent: IntentRecord) -> str:
    if intent.mode is DeliveryMode.RESTART_STARTUP:
        return "h" if intent.handshake_at is not None else "r"
    if intent.mode is DeliveryMode.SOFT_BATCH:
        return "c" if intent.batch_completed_at is not None else "o"
    return "x" if intent.state is IntentState.RECONCILING else "n"


# -- the table -------------------------------------------------------------------------------------------------

_SOFT_C: Final = (Code.C_OPEN, Code.C_COMPLETE)
_ANY_C: Final = (*_SOFT_C, Code.C_UNATTENDED)
_RESTART: Final = (Code.M_RESTART, Code.L_RESTART, Code.L_HANDSHAKE)
_REBINDABLE: Final = {
    Code.M_OPEN: Code.M_RESTART,
    Code.M_COMPLETE: Code.M_RESTART,
    Code.M_UNATTENDED: Code.M_RESTART,
    Code.M_RESTART: Code.M_RESTART,
    Code.L_OPEN: Code.L_RESTART,
    Code.L_COMPLETE: Code.L_RESTART,
    Code.L_RESTART: Code.L_RESTART,
    Code.L_HANDSHAKE: Code.L_RESTART,
}
"""From where a replacement may be bound, and what that makes of it (section 7.2)."""

TABLE: Final[Mapping[tuple[Code, type[IntentEvent]], frozenset[Code]]] = {
    (Code.D, Coalesce): frozenset({Code.D}),
    (Code.D, Supersede): frozenset({Code.SUPERSEDED}),
    (Code.D, DivergeTopology): frozenset({Code.TOPOLOGY_DIVERGED}),
    (Code.D, BindSoft): frozenset({Code.C_OPEN}),
    (Code.D, BeginUnattended): frozenset({Code.C_UNATTENDED}),
    **{(code, Plan): frozenset({code}) for code in _ANY_C},
    (Code.C_OPEN, Prepare): frozenset({Code.M_OPEN, Code.M_UNATTENDED}),
    (Code.C_COMPLETE, Prepare): frozenset({Code.M_COMPLETE, Code.M_UNATTENDED}),
    (Code.C_UNATTENDED, Prepare): frozenset({Code.M_UNATTENDED}),
    **{(code, RequireRecovery): frozenset({Code.RECOVERY_REQUIRED}) for code in _ANY_C},
    **{(code, DivergeTopology): frozenset({Code.TOPOLOGY_DIVERGED}) for code in _ANY_C},
    **{(code, Resolve): frozenset({*_ANY_C, Code.D}) for code in (Code.RECOVERY_REQUIRED, Code.TOPOLOGY_DIVERGED)},
    (Code.C_OPEN, CompleteBatch): frozenset({Code.C_COMPLETE}),
    (Code.M_OPEN, CompleteBatch): frozenset({Code.M_COMPLETE}),
    (Code.L_OPEN, CompleteBatch): frozenset({Code.L_COMPLETE}),
    (Code.RECOVERY_REQUIRED, CompleteBatch): frozenset({Code.RECOVERY_REQUIRED}),
    (Code.TOPOLOGY_DIVERGED, CompleteBatch): frozenset({Code.TOPOLOGY_DIVERGED}),
    (Code.M_OPEN, Offer): frozenset({Code.M_OPEN}),
    (Code.L_OPEN, Offer): frozenset({Code.L_OPEN}),
    (Code.M_COMPLETE, Rebind): frozenset({Code.M_OPEN}),
    (Code.M_OPEN, MarkDelivered): frozenset({Code.L_OPEN}),
    (Code.M_COMPLETE, MarkDelivered): frozenset({Code.L_COMPLETE}),
    (Code.L_COMPLETE, Acknowledge): frozenset({Code.ACKNOWLEDGED}),
    (Code.L_HANDSHAKE, Acknowledge): frozenset({Code.ACKNOWLEDGED}),
    (Code.M_COMPLETE, AcknowledgeRecovered): frozenset({Code.ACKNOWLEDGED}),
    **{(before, BindRestart): frozenset({after}) for before, after in _REBINDABLE.items()},
    (Code.M_RESTART, AcceptHandshake): frozenset({Code.L_HANDSHAKE}),
    (Code.L_RESTART, AcceptHandshake): frozenset({Code.L_HANDSHAKE}),
    **{(code, Exhaust): frozenset({Code.EXHAUSTED}) for code in _RESTART},
    (Code.EXHAUSTED, Rearm): frozenset(_RESTART),
    (Code.EXHAUSTED, Discard): frozenset({Code.ACKNOWLEDGED}),
}
"""Every transition there is: from which code, by which event, to which codes.  Whatever is absent does not exist."""


def transition(intent: IntentRecord, event: IntentEvent, now: int) -> IntentRecord:
    """The row after `event`, or `InvalidTransition` where the table has no such row.  `now` is in nanoseconds."""
    code = code_of(intent)
    if (code, type(event)) not in TABLE:
        name = type(event).__name__
        raise InvalidTransition(
            f"intent {intent.intent_id} is {intent.state} ({code}); {name} is not possible there",
            state=intent.state,
            event=name,
            address=f"intent:{intent.intent_id}",
        )
    return intent.next(**_changes(intent, event, now))


_NO_SOFT_PROOF: Final[Mapping[str, None]] = {
    "turn_id": None,
    "turn_ordinal": None,
    "batch_id": None,
    "bound_at": None,
    "batch_completed_at": None,
    "payload_offered_at": None,
}
_NO_PROOF: Final[Mapping[str, None]] = {
    **_NO_SOFT_PROOF,
    "mode": None,
    "incarnation_id": None,
    "startup_delivery_id": None,
    "handshake_at": None,
}


def _changes(intent: IntentRecord, event: IntentEvent, now: int) -> Mapping[str, object]:
    """Which fields `event` sets.  One flat match, so that each row of section 5 to 7 can be read in one place."""
    match event:
        case Coalesce():
            return {"kind": event.kind, "to_base": event.to_base, "classification_op": event.classification_op}
        case Supersede():
            return {"state": IntentState.SUPERSEDED, "reason": f"covered by intent {event.by_intent_id}"}
        case BindSoft():
            return {"state": IntentState.RECONCILING, **_soft(event.incarnation_id, event.turn, event.batch_id, now)}
        case BeginUnattended():
            return {"state": IntentState.RECONCILING}
        case Plan():
            return {"planned_op": event.planned_op, "starting_op": event.starting_op}
        case Prepare():
            return _prepared(event, now)
        case RequireRecovery():
            return {
                "state": IntentState.RECOVERY_REQUIRED,
                "reason": event.reason,
                "bundle_path": event.bundle_path,
                "bundle_fingerprint": event.bundle_fingerprint,
                "recovery_details": event.details,
            }
        case DivergeTopology():
            return {
                "state": IntentState.TOPOLOGY_DIVERGED,
                "reason": event.reason,
                "recovery_details": event.details,
            }
        case Resolve():
            state = IntentState.DETECTED if event.attended and intent.mode is None else IntentState.RECONCILING
            return {"state": state, "resolution": event.resolution, "resolved_by": event.by}
        case Offer():
            return {"payload_offered_at": _first(intent.payload_offered_at, now)}
        case Rebind():
            return {
                **_soft(str(intent.incarnation_id), event.turn, event.batch_id, now),
                "batch_completed_at": None,
                "payload_offered_at": now,
                "soft_redeliveries": intent.soft_redeliveries + 1,
            }
        case MarkDelivered():
            consumed = now if intent.batch_completed_at is not None else None
            return {
                "state": IntentState.DELIVERED,
                "delivered_at": _first(intent.delivered_at, now),
                "consumed_at": intent.consumed_at if consumed is None else _first(intent.consumed_at, consumed),
            }
        case CompleteBatch():
            consumed = _first(intent.consumed_at, now) if intent.delivered_at is not None else None
            return {"batch_completed_at": _first(intent.batch_completed_at, now), "consumed_at": consumed}
        case Acknowledge():
            return {**_acknowledged(intent.delivered_at, now), **_NO_PROOF}
        case AcknowledgeRecovered():
            # Delivered when the batch completed: that is when the harness had shown the model what it was given.
            completed = intent.batch_completed_at
            return {
                **_acknowledged(completed, now),
                "delivered_at": completed,
                "consumed_at": completed,
                **_NO_PROOF,
            }
        case BindRestart():
            return {
                **_NO_PROOF,
                "mode": DeliveryMode.RESTART_STARTUP,
                "incarnation_id": event.incarnation_id,
                "startup_delivery_id": event.startup_delivery_id,
            }
        case AcceptHandshake():
            return {
                "state": IntentState.DELIVERED,
                "delivered_at": _first(intent.delivered_at, now),
                "consumed_at": _first(intent.consumed_at, now),
                "handshake_at": now,
            }
        case Exhaust():
            return {"exhausted_at": now, "approval": event.approval}
        case Rearm():
            return {"exhausted_at": None, "approval": None, "epoch": intent.epoch + 1, "soft_redeliveries": 0}
        case Discard():
            return {
                **_acknowledged(intent.delivered_at, now),
                "discarded": True,
                "resolution": "discarded",
                "exhausted_at": None,
                "approval": None,
                **_NO_PROOF,
            }
        case _:
            assert_never(event)


def _first(earlier: int | None, now: int) -> int:
    """Times are written once: the first one keeps (section 10, invariant 9)."""
    return now if earlier is None else earlier


def _acknowledged(delivered_at: int | None, now: int) -> Mapping[str, object]:
    """Never earlier than the delivery, even where the clock was set back between the two (invariant 10)."""
    return {"state": IntentState.ACKNOWLEDGED, "acknowledged_at": max(now, delivered_at or now)}


def _soft(incarnation_id: str, turn: ModelTurn, batch_id: str, now: int) -> Mapping[str, object]:
    return {
        "mode": DeliveryMode.SOFT_BATCH,
        "incarnation_id": incarnation_id,
        "turn_id": turn.id,
        "turn_ordinal": turn.ordinal,
        "batch_id": batch_id,
        "bound_at": now,
    }


def _prepared(event: Prepare, now: int) -> Mapping[str, object]:
    """Result, payload, anchor, time and state in one write; a leftover tuple of a retired process is cleared."""
    result = event.result
    return {
        "state": IntentState.MATERIALIZED,
        "result_op": result.result_op,
        "workspace_commit": result.workspace_commit,
        "payload": result.payload,
        "payload_sha256": hashlib.sha256(result.payload).hexdigest(),
        "anchor_change_id": result.anchor.change_id,
        "anchor_commit_id": result.anchor.commit_id,
        "anchor_op_id": result.anchor.op_id,
        "prepared_at": now,
        **({} if event.live else _NO_PROOF),
    }


# -- what follows from a transition ------------------------------------------------------------------------------

_NEWS: Final[Mapping[type[IntentEvent], str]] = {
    Coalesce: "intent.coalesced",
    Supersede: "intent.superseded",
    BindSoft: "intent.reconciling",
    BeginUnattended: "intent.reconciling",
    Prepare: "intent.materialized",
    RequireRecovery: "intent.recovery_required",
    DivergeTopology: "intent.topology_diverged",
    Resolve: "intent.reconciling",
    MarkDelivered: "intent.delivered",
    CompleteBatch: "intent.batch_completed",
    Acknowledge: "intent.acknowledged",
    AcknowledgeRecovered: "intent.acknowledged",
    AcceptHandshake: "intent.delivered",
    Exhaust: "intent.exhausted",
    Rearm: "intent.rearmed",
    Discard: "intent.discarded",
}
"""What followers are told (contract G-6); an offer, a rebind and a bind of a replacement are no news of their own."""


def news_of(event: IntentEvent, after: IntentRecord, now: int) -> tuple[NewEvent, ...]:
    """The event followers see once `after` is durable."""
    kind = _NEWS.get(type(event))
    if kind is None:
        return ()
    if after.state is IntentState.DETECTED and isinstance(event, Resolve):
        kind = "intent.detected"
    data: dict[str, object] = {
        "intent_id": after.intent_id,
        "pane_id": after.pane_id,
        "intent_seq": after.seq,
        "state": after.state.value,
    }
    for name in ("incarnation_id", "batch_id", "payload_sha256"):
        value = getattr(after, name)
        if value is not None:
            data[name] = value
    match event:
        case RequireRecovery() | DivergeTopology() | Supersede():
            data["reason"] = after.reason
        case Coalesce():
            data["to_base"] = after.to_base
        case AcknowledgeRecovered():
            data["recovered"] = True
        case _:
            pass
    return (NewEvent(kind=kind, address=f"intent:{after.intent_id}", at=now, data=data),)


def owed_projection(before: IntentRecord, after: IntentRecord, now: int) -> tuple[ProjectionRecord, ...]:
    """The first delivery owes one transcript projection; it is made outside every protocol transaction (I-17)."""
    if before.delivered_at is not None or after.delivered_at is None:
        return ()
    return (ProjectionRecord(intent_id=after.intent_id, pane_id=after.pane_id, at=now),)


@frozen(kw_only=True)
class Step:
    """One transition of one intent: the new row, and everything the intent writes with it."""

    after: IntentRecord
    puts: tuple[Record, ...]
    events: tuple[NewEvent, ...]


def step(before: IntentRecord, event: IntentEvent, now: int) -> Step:
    """The transition with all it writes; `InvalidTransition` where the table has none."""
    after = transition(before, event, now)
    delivered_again = isinstance(event, AcceptHandshake) and before.delivered_at is not None
    return Step(
        after=after,
        puts=(after, *owed_projection(before, after, now)),
        events=() if delivered_again else news_of(event, after, now),
    )


def steps(before: IntentRecord, events: Sequence[IntentEvent], now: int) -> Step:
    """Several transitions of one mutation, in order, as one; there is at least one."""
    first, *rest = events
    taken = step(before, first, now)
    for event in rest:
        further = step(taken.after, event, now)
        taken = Step(after=further.after, puts=taken.puts + further.puts, events=taken.events + further.events)
    return taken


def starts_attempt(event: IntentEvent, after: IntentRecord) -> bool:
    """Whether a reconciliation begins with this transition."""
    return isinstance(event, BindSoft | BeginUnattended | Resolve) and after.state is IntentState.RECONCILING
