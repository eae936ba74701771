"""What a call or a report of a harness amounts to, given the intent's row.  Pure.

`VERDICTS` is section 4 of protocol-intent.md: what a tool call gets while a soft proof is open, by the row's code and
by how the call stands to the bound turn and batch.  The other `judge_*` functions say whether a report becomes an event
(`Applied`), changes nothing (`Unchanged`), or is refused.  None of them changes a row: that is `intent_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from fencepost.actors.intent_state import Code, code_of
from fencepost.actors.messages import Answer, Applied, ModelTurn, Reason, Reconciled, Refused, Unchanged
from fencepost.mailbox.records import DeliveryMode, IntentRecord, IntentState

__all__ = [
    "VERDICTS",
    "Relation",
    "Verdict",
    "judge_batch_completed",
    "judge_call",
    "judge_handshake",
    "judge_mark_delivered",
    "judge_prepare",
    "relation_of",
]


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
