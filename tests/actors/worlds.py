"""Worlds to decide in: an intent row of every code, a pane around it, and a stand-in for the store.

The rows are written out field by field, not made by the transitions they are there to test.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

from attrs import evolve, fields_dict

from fencepost.actors.boundary import Boundary, decide_boundary
from fencepost.actors.decision import Decision
from fencepost.actors.intent_events import IntentEvent
from fencepost.actors.intent_state import Code, step
from fencepost.actors.messages import Anchor, BaseTransition, ModelTurn, Reconciled, ToolBoundary
from fencepost.actors.pane_state import Limits, PaneState
from fencepost.mailbox.records import (
    AdmissionDecision,
    AdmissionRecord,
    DeliveryMode,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    Record,
    TransitionKind,
)

PANE: Final = "pane-1"
NOW: Final = 5_000
PAYLOAD: Final = "the base moved – read again\n".encode()
PAYLOAD_SHA256: Final = "0123456789abcdef" * 4
"""Stands for the hash of the payload; a row does not compute it."""

TURN: Final = ModelTurn("turn-1", 1)
LATER: Final = ModelTurn("turn-2", 2)
RESULT: Final = Reconciled("op-r", "commit-r", PAYLOAD, Anchor("change-a", "commit-a", "op-a"))

BASE: Final[dict[str, Any]] = {
    "intent_id": "intent-1",
    "pane_id": PANE,
    "revision": 7,
    "seq": 1,
    "kind": TransitionKind.NATIVE_REWRITE,
    "from_base": "base-0",
    "to_base": "base-1",
    "classification_op": "op-c",
    "detected_at": 100,
}
SOFT: Final[dict[str, Any]] = {
    "mode": DeliveryMode.SOFT_BATCH,
    "incarnation_id": "inc-1",
    "turn_id": "turn-1",
    "turn_ordinal": 1,
    "batch_id": "batch-1",
    "bound_at": 200,
}
COMPLETE: Final[dict[str, Any]] = {"batch_completed_at": 400}
OFFERED: Final[dict[str, Any]] = {"payload_offered_at": 350}
PREPARED: Final[dict[str, Any]] = {
    "result_op": "op-r",
    "workspace_commit": "commit-r",
    "payload": PAYLOAD,
    "payload_sha256": PAYLOAD_SHA256,
    "anchor_change_id": "change-a",
    "anchor_commit_id": "commit-a",
    "anchor_op_id": "op-a",
    "prepared_at": 300,
}
RESTART: Final[dict[str, Any]] = {
    "mode": DeliveryMode.RESTART_STARTUP,
    "incarnation_id": "inc-2",
    "startup_delivery_id": "startup-2",
}
MATERIALIZED: Final[dict[str, Any]] = {"state": IntentState.MATERIALIZED, **PREPARED}
DELIVERED: Final[dict[str, Any]] = {"state": IntentState.DELIVERED, **PREPARED, "delivered_at": 380}
RECOVERY: Final[dict[str, Any]] = {"state": IntentState.RECOVERY_REQUIRED, "reason": "dirty"}
DIVERGED: Final[dict[str, Any]] = {"state": IntentState.TOPOLOGY_DIVERGED, "reason": "two parents"}
EXHAUSTED: Final[dict[str, Any]] = {"exhausted_at": 900, "approval": "approval-1"}
HANDSHAKE: Final[dict[str, Any]] = {"handshake_at": 700, "consumed_at": 700}

SHAPES: Final[dict[str, tuple[Code, dict[str, Any]]]] = {
    "D": (Code.D, {}),
    "C/o": (Code.C_OPEN, {"state": IntentState.RECONCILING, **SOFT}),
    "C/c": (Code.C_COMPLETE, {"state": IntentState.RECONCILING, **SOFT, **COMPLETE}),
    "C/x": (Code.C_UNATTENDED, {"state": IntentState.RECONCILING}),
    "M/o": (Code.M_OPEN, {**MATERIALIZED, **SOFT}),
    "M/o offered": (Code.M_OPEN, {**MATERIALIZED, **SOFT, **OFFERED}),
    "M/c": (Code.M_COMPLETE, {**MATERIALIZED, **SOFT, **COMPLETE}),
    "M/c offered": (Code.M_COMPLETE, {**MATERIALIZED, **SOFT, **COMPLETE, **OFFERED}),
    "M/n": (Code.M_UNATTENDED, MATERIALIZED),
    "L/o": (Code.L_OPEN, {**DELIVERED, **SOFT}),
    "L/o offered": (Code.L_OPEN, {**DELIVERED, **SOFT, **OFFERED}),
    "L/c": (Code.L_COMPLETE, {**DELIVERED, **SOFT, **COMPLETE, **OFFERED, "consumed_at": 400}),
    "M/r": (Code.M_RESTART, {**MATERIALIZED, **RESTART}),
    "L/r": (Code.L_RESTART, {**DELIVERED, **RESTART}),
    "L/h": (Code.L_HANDSHAKE, {**DELIVERED, **RESTART, **HANDSHAKE}),
    "X of M/r": (Code.EXHAUSTED, {**MATERIALIZED, **RESTART, **EXHAUSTED}),
    "X of L/r": (Code.EXHAUSTED, {**DELIVERED, **RESTART, **EXHAUSTED}),
    "X of L/h": (Code.EXHAUSTED, {**DELIVERED, **RESTART, **HANDSHAKE, **EXHAUSTED}),
    "RR": (Code.RECOVERY_REQUIRED, RECOVERY),
    "RR, batch open": (Code.RECOVERY_REQUIRED, {**RECOVERY, **SOFT}),
    "RR, batch complete": (Code.RECOVERY_REQUIRED, {**RECOVERY, **SOFT, **COMPLETE}),
    "TD": (Code.TOPOLOGY_DIVERGED, DIVERGED),
    "TD, batch open": (Code.TOPOLOGY_DIVERGED, {**DIVERGED, **SOFT}),
    "TD, batch complete": (Code.TOPOLOGY_DIVERGED, {**DIVERGED, **SOFT, **COMPLETE}),
    "A": (
        Code.ACKNOWLEDGED,
        {
            "state": IntentState.ACKNOWLEDGED,
            **PREPARED,
            "delivered_at": 380,
            "consumed_at": 400,
            "acknowledged_at": 500,
        },
    ),
    "A discarded": (
        Code.ACKNOWLEDGED,
        {"state": IntentState.ACKNOWLEDGED, **PREPARED, "acknowledged_at": 500, "discarded": True},
    ),
    "S": (Code.SUPERSEDED, {"state": IntentState.SUPERSEDED, "reason": "covered"}),
}
"""Every code, in every shape that its row may have."""

SOFT_SHAPES: Final = tuple(name for name, (_, shape) in SHAPES.items() if "batch_id" in shape)
RESTART_SHAPES: Final = ("M/r", "L/r", "L/h")
EVENT_TYPES: Final[tuple[type[IntentEvent], ...]] = get_args(IntentEvent)


def row(shape: str, **changes: Any) -> IntentRecord:
    """An intent of that shape."""
    return IntentRecord(**{**BASE, **SHAPES[shape][1], **changes})


def changed(before: Record, after: Record) -> dict[str, object]:
    """The fields in which two rows differ, with their new values; the revision aside."""
    return {
        name: getattr(after, name)
        for name in fields_dict(type(before))
        if name != "revision" and getattr(before, name) != getattr(after, name)
    }


def incarnation(incarnation_id: str = "inc-1", epoch: int = 1, **changes: Any) -> IncarnationRecord:
    """A live one of the usual pane, plain unless told otherwise."""
    usual: dict[str, Any] = {"pane_id": PANE, "harness": "claude", "session_id": "session-1", "launched_at": 50}
    return IncarnationRecord(**{**usual, "incarnation_id": incarnation_id, "epoch": epoch, **changes})


def retired(record: IncarnationRecord) -> IncarnationRecord:
    """The same, retired by its host."""
    return evolve(record, retired_at=950, retire_reason="gone", delivered_intent_id=None)


def replacement(intent: IntentRecord, attempt: int = 1, **changes: Any) -> IncarnationRecord:
    """The incarnation a restart of `intent` is bound to."""
    startup: dict[str, Any] = {
        "startup_intent_id": intent.intent_id,
        "startup_delivery_id": intent.startup_delivery_id or "startup-2",
        "startup_payload_sha256": intent.payload_sha256,
        "startup_epoch": intent.epoch,
        "startup_attempt": attempt,
        "delivered_intent_id": intent.intent_id if intent.handshake_at is not None else None,
    }
    return incarnation("inc-2", 2, **{**startup, **changes})


def pane(head: IntentRecord | None, *later: IntentRecord, attempt: int = 1, **capabilities: bool) -> PaneState:
    """A pane with that head, and the incarnation that such a head implies."""
    plain = {IntentState.DETECTED, IntentState.TOPOLOGY_DIVERGED, IntentState.ACKNOWLEDGED, IntentState.SUPERSEDED}
    if head is None or (head.state in plain and head.mode is None):
        latest = incarnation(**capabilities)
    elif head.exhausted_at is not None:
        latest = retired(replacement(head, attempt))
    elif head.mode is DeliveryMode.RESTART_STARTUP:
        latest = replacement(head, attempt, **capabilities)
    elif head.mode is DeliveryMode.SOFT_BATCH:
        marker = head.intent_id if head.state is IntentState.DELIVERED else None
        latest = incarnation(delivered_intent_id=marker, **capabilities)
    else:
        latest = retired(incarnation(**capabilities))
    unresolved = () if head is None or head.resolved else (head,)
    seq_last = max((known.seq for known in (*unresolved, *later)), default=0 if head is None else head.seq)
    return PaneState(pane_id=PANE, latest=latest, intents=(*unresolved, *later), seq_last=seq_last, tail_triggers=1)


def behind(head: IntentRecord, seq: int = 2, **changes: Any) -> IntentRecord:
    """A detected intent further back in the queue."""
    usual = {
        "intent_id": f"intent-{seq}",
        "seq": seq,
        "revision": 1,
        "from_base": head.to_base,
        "to_base": f"base-{seq}",
    }
    return IntentRecord(**{**BASE, **usual, **changes})


def moved(from_base: str, to_base: str, trigger_op: str = "op-t", **changes: Any) -> BaseTransition:
    """A base transition."""
    usual: dict[str, Any] = {"kind": TransitionKind.PARENT_ADVANCE, "classification_op": "op-c2"}
    return BaseTransition(**{**usual, "from_base": from_base, "to_base": to_base, "trigger_op": trigger_op, **changes})


def mint() -> Callable[[str], str]:
    """Mints ids that tell their kind and number."""
    counter = itertools.count(1)
    return lambda kind: f"{kind}:{next(counter)}"


def admission(
    decision: AdmissionDecision, batch_id: str = "batch-1", turn: ModelTurn | None = TURN, intent_id: str | None = None
) -> AdmissionRecord:
    """The stored first decision of a batch of `inc-1`."""
    return AdmissionRecord(
        incarnation_id="inc-1",
        turn_id="" if turn is None else turn.id,
        batch_id=batch_id,
        pane_id=PANE,
        turn_ordinal=None if turn is None else turn.ordinal,
        decision=decision,
        intent_id=intent_id,
        at=150,
    )


UNSET: Final = incarnation("unset", 99)


def decide(
    state: PaneState,
    *,
    turn: ModelTurn | None = TURN,
    batch_id: str = "batch-1",
    speaker: IncarnationRecord | None = UNSET,
    **details: Any,
) -> Decision:
    """Decide a tool call of the live incarnation, or of `speaker`; further keywords reach the call or the boundary."""
    of_call = {name: details.pop(name) for name in ("startup_delivery_id", "passed_unseen") if name in details}
    who = state.live if speaker is UNSET else speaker
    call = ToolBoundary("nobody" if who is None else who.incarnation_id, turn, batch_id, **of_call)
    return decide_boundary(state, Boundary(**{"call": call, "speaker": who, "now": NOW, "mint": mint(), **details}))


def written(decision: Decision, now: int = NOW) -> list[Record]:
    """All rows a decision's one mutation puts: the pane's part, then each intent's, in order."""
    rows = list(decision.puts)
    for before, event in decision.intent_events:
        rows.extend(step(before, event, now).puts)
    return rows


def committed(state: PaneState, decision: Decision, now: int = NOW) -> PaneState:
    """The pane after the commit."""
    return state.after(written(decision, now))


def only(rows: Iterable[Record], kind: type[Record]) -> Any:
    """The one row of that kind."""
    (found,) = [record for record in rows if isinstance(record, kind)]
    return found


def intent_after(decision: Decision, intent_id: str = "intent-1") -> IntentRecord:
    """What the decision makes of that intent."""
    (found,) = [
        record for record in written(decision) if isinstance(record, IntentRecord) and record.intent_id == intent_id
    ]
    return found


LIMITS: Final = Limits()
