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
`transition` raises.  `judge_call` is section 4: what a tool call gets while a soft proof is open.  The functions
named `judge_*` decide whether a harness's report becomes an event, changes nothing, or is refused.

Nothing here knows of the store, time or randomness: `now` and fresh ids arrive in the events.  The mutation that
carries a new row is guarded by the row's revision, so a decision made on an older row cannot be committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from attrs import field, fields, frozen

from fencepost.actors.messages import (
    Anchor,
    Answer,
    Applied,
    IntentView,
    ModelTurn,
    Reason,
    Reconciled,
    Refused,
    Unchanged,
)
from fencepost.mailbox import ladder
from fencepost.mailbox.errors import InvalidTransition
from fencepost.mailbox.ladder import Reach
from fencepost.mailbox.mutation import NewEvent
from fencepost.mailbox.records import DeliveryMode, IntentRecord, IntentState, ProjectionRecord, Record, TransitionKind

__all__ = [
    "TABLE",
    "VERDICTS",
    "Code",
    "IntentEvent",
    "Relation",
    "Step",
    "Verdict",
    "code_of",
    "judge_batch_completed",
    "judge_call",
    "judge_handshake",
    "judge_mark_delivered",
    "judge_prepare",
    "reach_of",
    "relation_of",
    "starts_attempt",
    "step",
    "transition",
    "view_of",
]


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


# -- events ----------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Coalesce:
    """A compatible later transition, while nothing is bound yet (section 2)."""

    kind: TransitionKind
    to_base: str
    classification_op: str


@frozen(kw_only=True)
class Supersede:
    """An earlier intent's actual result already covers this one (section 2)."""

    by_intent_id: str


@frozen(kw_only=True)
class BindSoft:
    """The first admitted call of a batch fixes the block and begins the reconciliation, in one commit [D5]."""

    incarnation_id: str
    turn: ModelTurn
    batch_id: str


@frozen(kw_only=True)
class BeginUnattended:
    """Reconcile while no process is alive (section 5)."""


@frozen(kw_only=True)
class Plan:
    """Which exact operation is about to run, and from where; committed before it runs."""

    planned_op: str
    starting_op: str


@frozen(kw_only=True)
class Prepare:
    """The verified result and the byte-stable payload; `live` says whether the bound caller can still be served."""

    result: Reconciled
    live: bool


@frozen(kw_only=True)
class RequireRecovery:
    """The workspace is not in a provable state; nothing may be handed out until a human has looked."""

    reason: str
    bundle_path: str | None = None
    bundle_fingerprint: str | None = None
    details: str | None = None


@frozen(kw_only=True)
class DivergeTopology:
    """There is no provable target; only a recorded human resolution leads out."""

    reason: str
    details: str | None = None


@frozen(kw_only=True)
class Resolve:
    """A human's recorded choice; `attended` when a process lives that was never bound to this intent.

    Such a process may have a batch under way that was let pass, so files must not change under it now: the intent
    goes back to detected and binds at that process's next boundary.  Otherwise it goes straight on reconciling.
    """

    resolution: str
    by: str
    attended: bool


@frozen(kw_only=True)
class Offer:
    """The saved bytes are about to be handed to a call of the bound, still open batch [D2]."""


@frozen(kw_only=True)
class Rebind:
    """A completed batch saw no payload: offer it to the batch of this call instead, once (section 4)."""

    turn: ModelTurn
    batch_id: str


@frozen(kw_only=True)
class MarkDelivered:
    """The hook wrote the payload to the harness (note, MarkDelivered 1, 2 and 4; the marker is the pane's part)."""


@frozen(kw_only=True)
class CompleteBatch:
    """The exact blocked batch completed; that is recorded and acknowledges nothing."""


@frozen(kw_only=True)
class Acknowledge:
    """A provably later turn, or the exact echo of the startup delivery: the agent has it (section 6)."""


@frozen(kw_only=True)
class AcknowledgeRecovered:
    """MarkDelivered was lost; the completed batch, the offer mark and the later turn prove the delivery (section 6)."""


@frozen(kw_only=True)
class BindRestart:
    """A replacement incarnation with a fresh one-use startup delivery id (section 7.2)."""

    incarnation_id: str
    startup_delivery_id: str


@frozen(kw_only=True)
class AcceptHandshake:
    """The replacement accepted the tagged payload: delivered, not acknowledged (section 7.3)."""


@frozen(kw_only=True)
class Exhaust:
    """The last permitted startup attempt was given up; only a human leads on (section 7.5)."""

    approval: str


@frozen(kw_only=True)
class Rearm:
    """A human grants a new epoch of startup attempts."""


@frozen(kw_only=True)
class Discard:
    """A human gives the delivery up; nothing is claimed."""

    approval: str = field(repr=False)


IntentEvent: TypeAlias = (
    Coalesce
    | Supersede
    | BindSoft
    | BeginUnattended
    | Plan
    | Prepare
    | RequireRecovery
    | DivergeTopology
    | Resolve
    | Offer
    | Rebind
    | MarkDelivered
    | CompleteBatch
    | Acknowledge
    | AcknowledgeRecovered
    | BindRestart
    | AcceptHandshake
    | Exhaust
    | Rearm
    | Discard
)


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


def starts_attempt(event: IntentEvent, after: IntentRecord) -> bool:
    """Whether a reconciliation begins with this transition."""
    return isinstance(event, BindSoft | BeginUnattended | Resolve) and after.state is IntentState.RECONCILING


# -- section 4: a tool call against an open soft proof -----------------------------------------------------------


class Relation(StrEnum):
    """How a call stands to the bound turn and batch (section 1.6)."""

    SAME_BATCH = "same batch"
    SAME_TURN = "other batch, same turn"
    LATER_TURN = "other batch, provably later turn"
    UNKNOWN = "turn order unknown"


def relation_of(intent: IntentRecord, turn: ModelTurn | None, batch_id: str) -> Relation:
    """Compare a call of the bound incarnation with the bound tuple.

    Later must be provable: another id with a greater ordinal.  The same id with another ordinal, the same ordinal
    with another id, an earlier ordinal, and the bound batch id under another turn are all unknown [D1].
    """
    if turn is None or intent.turn_ordinal is None:
        return Relation.UNKNOWN
    same_batch = batch_id == intent.batch_id
    if turn.id == intent.turn_id:
        if turn.ordinal != intent.turn_ordinal:
            return Relation.UNKNOWN
        return Relation.SAME_BATCH if same_batch else Relation.SAME_TURN
    if turn.ordinal > intent.turn_ordinal and not same_batch:
        return Relation.LATER_TURN
    return Relation.UNKNOWN


class Verdict(StrEnum):
    """What a call gets while a soft proof is open."""

    WAIT = "wait, then payload or generic"
    PAYLOAD = "payload"
    REBIND = "payload after rebind"
    ACKNOWLEDGE = "acknowledge, then the next intent"
    ACKNOWLEDGE_RECOVERED = "recovered acknowledge if offered, else payload after rebind"
    GENERIC_RECONCILING = "generic, reconciling"
    GENERIC_CONFLICTED = "generic, conflicted"
    RESTART_NOT_COMPLETE = "restart, batch not complete"
    RESTART_UNORDERED = "restart, turn order unknown"


def _row(same_batch: Verdict, same_turn: Verdict, later_turn: Verdict, unknown: Verdict) -> Mapping[Relation, Verdict]:
    return {
        Relation.SAME_BATCH: same_batch,
        Relation.SAME_TURN: same_turn,
        Relation.LATER_TURN: later_turn,
        Relation.UNKNOWN: unknown,
    }


_INCOMPLETE: Final = Verdict.RESTART_NOT_COMPLETE
_UNORDERED: Final = Verdict.RESTART_UNORDERED
_CONFLICTED: Final = _row(*[Verdict.GENERIC_CONFLICTED] * 4)

VERDICTS: Final[Mapping[Code, Mapping[Relation, Verdict]]] = {
    Code.C_OPEN: _row(Verdict.WAIT, _INCOMPLETE, _INCOMPLETE, _UNORDERED),
    Code.C_COMPLETE: _row(Verdict.WAIT, Verdict.GENERIC_RECONCILING, Verdict.WAIT, _UNORDERED),
    Code.M_OPEN: _row(Verdict.PAYLOAD, _INCOMPLETE, _INCOMPLETE, _UNORDERED),
    Code.M_COMPLETE: _row(Verdict.PAYLOAD, Verdict.REBIND, Verdict.ACKNOWLEDGE_RECOVERED, _UNORDERED),
    Code.L_OPEN: _row(Verdict.PAYLOAD, _INCOMPLETE, _INCOMPLETE, _UNORDERED),
    Code.L_COMPLETE: _row(Verdict.PAYLOAD, Verdict.PAYLOAD, Verdict.ACKNOWLEDGE, _UNORDERED),
    Code.RECOVERY_REQUIRED: _CONFLICTED,
    Code.TOPOLOGY_DIVERGED: _CONFLICTED,
}
"""Section 4 as data: (code) x (relation of the call).  Only codes with an open soft proof have a row."""


def judge_call(intent: IntentRecord, relation: Relation) -> Verdict:
    """Section 4 for a call of the bound, live incarnation; the offer mark decides the recoverable case [D2]."""
    verdict = VERDICTS[code_of(intent)][relation]
    if verdict is Verdict.ACKNOWLEDGE_RECOVERED and intent.payload_offered_at is None:
        return Verdict.REBIND
    return verdict


# -- reports of a harness: applied, unchanged, or refused --------------------------------------------------------


def _same_tuple(intent: IntentRecord, incarnation_id: str, turn_id: str, batch_id: str) -> bool:
    return (intent.incarnation_id, intent.turn_id, intent.batch_id) == (incarnation_id, turn_id, batch_id)


def judge_mark_delivered(intent: IntentRecord, incarnation_id: str, turn_id: str, batch_id: str) -> Answer:
    """Section 5, MarkDelivered, for a live incarnation of the intent's pane; in the contract's order (I-7)."""
    if intent.state is IntentState.ACKNOWLEDGED:
        return Unchanged()
    if intent.mode is DeliveryMode.RESTART_STARTUP:
        return Refused(Reason.OTHER_MODE, f"intent {intent.intent_id} is delivered by a restart")
    if intent.state not in {IntentState.MATERIALIZED, IntentState.DELIVERED}:
        return Refused(Reason.NOT_PREPARED, f"intent {intent.intent_id} is {intent.state}")
    if not _same_tuple(intent, incarnation_id, turn_id, batch_id):
        return Refused(
            Reason.PROOF_MISMATCH,
            f"intent {intent.intent_id} is bound to incarnation {intent.incarnation_id}, turn {intent.turn_id}, "
            f"batch {intent.batch_id}; reported were {incarnation_id}, {turn_id}, {batch_id}",
        )
    return Applied() if intent.state is IntentState.MATERIALIZED else Unchanged()


def judge_batch_completed(intent: IntentRecord | None, incarnation_id: str, turn_id: str, batch_id: str) -> Answer:
    """Section 5, batch completion, for a live incarnation and the pane's active intent, if any (I-8)."""
    if intent is None:
        return Unchanged()
    if intent.mode is DeliveryMode.RESTART_STARTUP:
        return Refused(Reason.OTHER_MODE, f"intent {intent.intent_id} is delivered by a restart; it has no batch")
    if intent.mode is None or not _same_tuple(intent, incarnation_id, turn_id, batch_id):
        return Unchanged()
    return Applied() if intent.batch_completed_at is None else Unchanged()


def judge_handshake(intent: IntentRecord, startup_delivery_id: str, minted_id: str) -> Answer:
    """Section 7.3 after identity and hash have been checked: `minted_id` is the live incarnation's own."""
    if startup_delivery_id != minted_id:
        return Refused(
            Reason.WRONG_STARTUP_ID,
            f"expected the startup delivery id minted for this incarnation, not {startup_delivery_id[:80]!r}",
        )
    if intent.resolved or intent.startup_delivery_id != minted_id:
        return Refused(Reason.CONSUMED_STARTUP_ID, f"startup delivery {minted_id} is already consumed")
    return Applied() if intent.handshake_at is None else Unchanged()


def judge_prepare(intent: IntentRecord, result: Reconciled) -> Answer:
    """A repeated result of a reconciliation: the very same is fine, any other would be payload drift [D8]."""
    if intent.payload is None:
        return Applied()
    same = (intent.payload, intent.result_op, intent.workspace_commit) == (
        result.payload,
        result.result_op,
        result.workspace_commit,
    )
    return Unchanged() if same else Refused(Reason.PAYLOAD_DRIFT, f"intent {intent.intent_id} is already prepared")


# -- looking at a row --------------------------------------------------------------------------------------------


def reach_of(intent: IntentRecord) -> Reach:
    """How far the intent got on the delivery ladder (design section 7, contract DA-17)."""
    if intent.exhausted_at is not None or intent.discarded:
        # A discard settles nothing about the delivery: its outcome stays unknown.
        return ladder.report("intent", "exhausted")
    if intent.state is IntentState.DELIVERED and intent.consumed_at is not None:
        native = "handshake_accepted" if intent.mode is DeliveryMode.RESTART_STARTUP else "batch_completed"
        return ladder.report("intent", "delivered", native)
    if intent.state in {IntentState.MATERIALIZED, IntentState.DELIVERED, IntentState.ACKNOWLEDGED}:
        return ladder.report("intent", intent.state.value)
    return Reach()


def view_of(intent: IntentRecord, triggers: tuple[str, ...], startup_attempts: int) -> IntentView:
    """The row as a bridge sees it (I-1); `startup_attempts` are those of its current epoch."""
    reach = reach_of(intent)
    anchor = None
    if intent.anchor_change_id is not None and intent.anchor_commit_id is not None and intent.anchor_op_id is not None:
        anchor = Anchor(intent.anchor_change_id, intent.anchor_commit_id, intent.anchor_op_id)
    turn = None
    if intent.turn_id is not None and intent.turn_ordinal is not None:
        turn = ModelTurn(intent.turn_id, intent.turn_ordinal)
    return IntentView(
        triggers=triggers,
        anchor=anchor,
        turn=turn,
        startup_attempts=startup_attempts,
        stage=reach.stage,
        stop=reach.stop,
        **{name: getattr(intent, name) for name in _SHARED_FIELDS},
    )


_SHARED_FIELDS: Final = tuple(
    attribute.name
    for attribute in fields(IntentView)
    if attribute.name not in {"triggers", "anchor", "turn", "startup_attempts", "stage", "stop"}
)
