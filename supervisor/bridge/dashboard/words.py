"""States, stages and reasons as a person says them, and what an intent waits for.  Pure.

A word here says what is proven and no more: what reached a pane was not consumed, what was consumed was not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from fencepost.mailbox.delivery_records import DeliveryRecord, RunRecord
from fencepost.mailbox.records import IncarnationRecord, IntentRecord
from fencepost.supervisor import CallStatus, Checkpoint, Reason, Stage, Stop, ladder
from fencepost.supervisor.words import ABANDONED, STOPS, needs_a_person, reach_in_words, why_it_waits

__all__ = [
    "CALLS",
    "CHECKPOINTS",
    "FENCES",
    "MODES",
    "STATES",
    "Told",
    "Waiting",
    "inbound_told",
    "needs_a_person",
    "outbound_told",
    "sentence",
    "state_of",
    "waits_for",
]


@frozen
class Waiting:
    """What somebody waits for."""

    text: str
    human: bool = False
    """Nothing moves until a human decides."""
    actions: tuple[str, ...] = ()
    """What he may decide."""


@frozen
class Told:
    """How far a delivery got: in two or three words, and in a sentence."""

    label: str
    sentence: str
    rung: int = 0
    """How many of the ladder's four stages are proven."""
    kind: str = "moving"
    """`moving`, `done`, `stopped` or `unknown`."""


def sentence(words: str) -> str:
    """Words that the command line shows in a column, as a sentence of a page."""
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith(('.', '!', '?')) else '.'}"


STATES: Final[Mapping[str, str]] = {
    "detected": "detected",
    "reconciling": "reconciling",
    "materialized": "materialized",
    "delivered": "delivered",
    "acknowledged": "acknowledged",
    "recovery_required": "needs recovery",
    "topology_diverged": "diverged",
    "superseded": "superseded",
}
MODES: Final[Mapping[str, str]] = {
    "soft_batch": "in a tool batch of the running process",
    "restart_startup": "as the first input of a replacement process",
}
CALLS: Final[Mapping[CallStatus, str]] = {
    CallStatus.PLANNED: "planned",
    CallStatus.EFFECT_PENDING: "running, or interrupted while it ran",
    CallStatus.OUTCOME_READY: "has its result, which waits for its place",
    CallStatus.COMPLETED: "placed",
}
CHECKPOINTS: Final[Mapping[Checkpoint, str]] = {
    Checkpoint.MAY_FINISH: "closed; the operation may finish",
    Checkpoint.NEED_ASSISTANT: "closed; the model is asked next",
    Checkpoint.ABORTED: "cancelled; every call has its result",
    Checkpoint.ENDED: "ended from outside",
}
FENCES: Final[Mapping[str, str]] = {
    Reason.RETIRED_INCARNATION: "It came from a process that had been retired.",
    Reason.UNKNOWN_INCARNATION: "It named an incarnation that never was.",
    Reason.OTHER_PANE: "It named an incarnation, an intent or a delivery of another pane.",
    Reason.PROOF_MISMATCH: "Its turn and batch are not the ones that the intent is bound to.",
    Reason.NOT_PREPARED: "There was no payload yet.",
    Reason.OTHER_MODE: "The intent is delivered in the other way.",
    Reason.PAYLOAD_DRIFT: "Its bytes are not the saved ones.",
    Reason.WRONG_STARTUP_ID: "It did not repeat the startup id that the process was given.",
    Reason.CONSUMED_STARTUP_ID: "Its startup id had been used before.",
    Reason.UNPROVED_STARTUP: "The replacement never said that it took its first input.",
    Reason.BATCH_NOT_COMPLETE: "The batch that the payload went into was still open.",
    Reason.TURN_ORDER_UNKNOWN: "Nothing proves that its turn came later.",
    Reason.RECONCILING: "The workspace was being reconciled.",
    Reason.CONFLICTED: "The pane waits for a human.",
    Reason.EXHAUSTED: "All attempts to start a replacement were spent.",
    Reason.UNKNOWN_INTENT: "There is no such intent.",
    Reason.ADMISSION_LOST: "A call of its batch may have run without being asked about.",
    Reason.REDELIVERIES_SPENT: "The payload had been offered to as many batches as it may be.",
    Reason.NOT_EXHAUSTED: "The intent is not exhausted, or the approval is not the one it shows.",
    Reason.UNKNOWN_DELIVERY: "Nothing of that id is open here.",
    Reason.REPLY_TOO_LATE: "The time for a reply was over.",
}
"""By a dead letter's reason, what fenced the call."""


def state_of(intent: IntentRecord) -> str:
    """Its state, or what has come of it beside its states."""
    if intent.discarded:
        return "discarded"
    return "exhausted" if intent.exhausted_at is not None else STATES[intent.state]


def waits_for(intent: IntentRecord, latest: IncarnationRecord | None, head_id: str | None = None) -> Waiting:
    """What has to happen next for an unresolved intent; the arguments are those of `why_it_waits`."""
    why = sentence(why_it_waits(intent, latest, head_id) or "")
    if intent.exhausted_at is not None:
        return Waiting(why, True, ("rearm", "discard"))
    return Waiting(why, True, ("resolve",)) if needs_a_person(intent) else Waiting(why)


# -- deliveries --------------------------------------------------------------------------------------------------------

_UNREAD: Final = "; whether the model has read it is not known."
_NATIVE: Final[Mapping[str, str]] = {
    "queued": f"The harness queued it behind what runs{_UNREAD}",
    "started": f"The harness started a turn with it{_UNREAD}",
    "steered": f"The harness put it into the turn that runs{_UNREAD}",
}
"""By the mechanism's own word, how a message was consumed."""
_LABELS: Final[Mapping[Stage | Stop, str]] = {
    Stage.STORED: "written down",
    Stage.DELIVERED: "reached the pane",
    Stage.CONSUMED: "consumed",
    Stage.RESPONDED: "answered",
    Stop.UNAVAILABLE: "not sent",
    Stop.UNCERTAIN: "outcome unknown",
    Stop.EXPIRED: "expired",
    Stop.REJECTED: "turned down",
}
_ABANDONED: Final = Told("settled, outcome unknown", sentence(ABANDONED), 0, "stopped")
_FENCED: Final = "Nothing else is sent here until that is known or settled."


def outbound_told(row: DeliveryRecord) -> Told:
    """How far a message to a pane got."""
    if row.abandoned_at is not None:
        return _ABANDONED
    said = sentence(reach_in_words(row))
    if row.outcome is None:
        return Told("under way", said)
    if row.stop is Stop.UNCERTAIN:
        return Told(_LABELS[row.stop], f"{said} {_FENCED}", 0, "unknown")
    if row.stop is not None:
        return Told(_LABELS[row.stop], said, 0, "stopped")
    stage = row.stage or Stage.STORED
    if stage is Stage.CONSUMED and row.native is not None:
        said = _NATIVE.get(row.native, said)
    return Told(_LABELS[stage], said, list(Stage).index(stage) + 1, "moving" if stage is Stage.STORED else "done")


def inbound_told(*, fenced: bool, accepted: bool, run: RunRecord | None, settled: bool) -> Told:
    """How far a message of a pane got; `run` is its turn, once that is published."""
    if settled:
        return _ABANDONED
    if run is not None and run.outcome is not None:
        return _turn_told(run, run.outcome)
    if run is not None:
        return Told("turn under way", "Accepted and published; its turn has not ended.", 1)
    if accepted:
        return Told("accepted", "Accepted; its turn is still to be published.", 1)
    if fenced:
        return Told(
            "acceptance not finished",
            "It came in and was not accepted yet. No other message of this pane is taken until it is, or is settled.",
            0,
            "unknown",
        )
    return Told(
        "forgotten", "It was attempted, and forgotten with its conversation. It is never run again.", 0, "stopped"
    )


def _turn_told(run: RunRecord, outcome: str) -> Told:
    """How a turn ended.  A stop proves nothing beyond the receipt, which is that of a message written down."""
    said = f"Accepted, and its turn ended: {outcome}{f' ({run.native})' if run.native else ''}."
    reach = ladder.report("channel_turn", outcome, run.native)
    if reach.stop is not None:
        kind = "unknown" if reach.stop is Stop.UNCERTAIN else "stopped"
        return Told(_LABELS[reach.stop], f"{said} {sentence(STOPS[reach.stop])}", 1, kind)
    stage = reach.stage or Stage.STORED
    return Told("turn ended", said, list(Stage).index(stage) + 1, "done")
