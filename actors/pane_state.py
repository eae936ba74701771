"""A pane: its incarnations and the order of its intents, and who may speak for it.  Pure.

Theory of operation
===================

Every call about a pane is decided by one actor, one call at a time: that is the thread's lock of the notes
(protocol-intent.md section 3).  `PaneState` is all that such a decision may look at:

* `latest`, the incarnation with the highest epoch; the live one, if any is live, is always the latest;
* `intents`, the unresolved intents, oldest first.  The rows belong to the intents' own actors; every event that
  touches one goes through the pane, so what stands here is what is stored.  The first of them, the *head*, is the
  only one that may be bound: at most one intent of a pane is active, and a later one stays detected until the
  earlier is acknowledged or superseded (section 10, invariant 4);
* `seq_last`, from which the next intent's sequence number follows, and `tail_triggers`, how many triggers the newest
  intent has.  Once a tail is superseded the count is unknown (None) until the store is asked.

Decisions live in `boundary` (a tool call), `incarnation_state` (launch to retirement), `pane_detection`,
`pane_reports` (what a harness reports), `pane_outcome` (how a reconciliation ended) and `pane_resolution` (a human's
word).  None of them reads a clock or mints an id by itself.  Here is what they share: the state, and the fence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol, TypeAlias

from attrs import evolve, frozen

from fencepost.actors.decision import Decision
from fencepost.actors.messages import Reason, Refused, SyncStatus
from fencepost.mailbox.mutation import NewDeadLetter
from fencepost.mailbox.records import IncarnationRecord, IntentRecord, IntentState, Record, TriggerRecord

__all__ = [
    "CONFLICTED_STATES",
    "RETIRED_FOR",
    "STOP_FAILED",
    "Ended",
    "Limits",
    "Mint",
    "PaneState",
    "conflicted",
    "dead_letter",
    "fenced",
    "judge_speaker",
    "refusal",
    "stop_failure",
    "sync_status",
]

Mint: TypeAlias = Callable[[str], str]
"""Makes a fresh id of a kind; handed in, so that a decision can be replayed."""

CONFLICTED_STATES: Final = frozenset({IntentState.RECOVERY_REQUIRED, IntentState.TOPOLOGY_DIVERGED})
"""Blocked until a human resolves it; every rule treats the two alike (contract I-6)."""

STOP_FAILED: Final = "stop failed: "
"""How the retire reason of a process begins that could not be stopped; nobody else's reason does (`incarnation_state`).
It stands there, in front of the reason itself, because every store of this version has that place and no other."""
RETIRED_FOR: Final = "; it was retired because of: "
"""What stands between the two."""


@frozen(kw_only=True)
class Limits:
    """The bounds a pane's decisions obey (contract G-3)."""

    startup_attempts_max: int = 3
    soft_redeliveries_max: int = 1
    payload_bytes_max: int = 1_048_576


@frozen(kw_only=True)
class PaneState:
    """Everything a pane decides by; see the module's theory of operation."""

    pane_id: str
    latest: IncarnationRecord | None = None
    intents: tuple[IntentRecord, ...] = ()
    seq_last: int = 0
    tail_triggers: int | None = 0
    """How many triggers the newest unresolved intent has; None when the store must be asked."""

    @property
    def address(self) -> str:
        """This pane's address, as events and dead letters carry it."""
        return f"pane:{self.pane_id}"

    @property
    def live(self) -> IncarnationRecord | None:
        """The live incarnation, if there is one."""
        return self.latest if self.latest is not None and self.latest.live else None

    @property
    def head(self) -> IntentRecord | None:
        """The oldest unresolved intent: the only one that may be bound."""
        return self.intents[0] if self.intents else None

    def find(self, intent_id: str) -> IntentRecord | None:
        """The unresolved intent with this id."""
        return next((intent for intent in self.intents if intent.intent_id == intent_id), None)

    def is_live(self, incarnation_id: str | None) -> bool:
        """Whether this is the id of the live incarnation."""
        return self.live is not None and self.live.incarnation_id == incarnation_id

    @property
    def startup_attempts(self) -> int:
        """How many startup attempts the head's current epoch has used (section 7.5).

        Between the bind of an intent and its end no other launch is possible, so the latest incarnation, whose row
        names its attempt, tells.
        """
        latest, head = self.latest, self.head
        if latest is None or head is None:
            return 0
        if (latest.startup_intent_id, latest.startup_epoch) != (head.intent_id, head.epoch):
            return 0
        return latest.startup_attempt or 0

    def sync_status(self) -> SyncStatus:
        """Always a query over what is stored (section 1.3)."""
        return sync_status(self.latest, self.intents)

    def after(self, records: Iterable[Record]) -> PaneState:
        """This state with committed rows applied; resolved intents leave it."""
        state = self
        for record in records:
            match record:
                case IncarnationRecord():
                    if state.latest is None or record.epoch >= state.latest.epoch:
                        state = evolve(state, latest=record)
                case IntentRecord():
                    state = state.with_intent(record)
                case TriggerRecord() if state.intents and state.intents[-1].intent_id == record.intent_id:
                    state = evolve(state, tail_triggers=record.position + 1)
                case _:
                    pass
        return state

    def with_intent(self, intent: IntentRecord) -> PaneState:
        """This state with one intent's committed row; a resolved one leaves it."""
        if intent.seq > self.seq_last:
            rest = () if intent.resolved else (intent,)
            return evolve(self, intents=self.intents + rest, seq_last=intent.seq, tail_triggers=0)
        kept = tuple(
            intent if known.intent_id == intent.intent_id else known
            for known in self.intents
            if known.intent_id != intent.intent_id or not intent.resolved
        )
        same_tail = bool(kept) and kept[-1].intent_id == self.intents[-1].intent_id
        return evolve(self, intents=kept, tail_triggers=self.tail_triggers if same_tail or not kept else None)


def sync_status(latest: IncarnationRecord | None, unresolved: Collection[IntentRecord]) -> SyncStatus:
    """How a pane stands, from its latest incarnation and its unresolved intents (section 1.3, contract I-11)."""
    if stop_failure(latest) is not None or any(map(conflicted, unresolved)):
        return SyncStatus.CONFLICTED
    return SyncStatus.PENDING if unresolved else SyncStatus.IN_SYNC


def conflicted(intent: IntentRecord) -> bool:
    """Whether only a human leads on from here; nothing behind such an intent moves (section 1.3)."""
    return intent.state in CONFLICTED_STATES or intent.exhausted_at is not None


class Ended(Protocol):
    """What may have ended."""

    @property
    def retire_reason(self) -> str | None:
        """Why it was retired, if it was."""
        ...


def stop_failure(latest: Ended | None) -> str | None:
    """Why a pane's last process could not be stopped, if so; nothing starts until asked for again (I-11)."""
    reason = "" if latest is None else latest.retire_reason or ""
    if not reason.startswith(STOP_FAILED):
        return None
    return reason.removeprefix(STOP_FAILED).rpartition(RETIRED_FOR)[0]


# -- who speaks, and refusals ------------------------------------------------------------------------------------


def judge_speaker(pane_id: str, speaker: IncarnationRecord | None) -> Reason | None:
    """The fence: why this incarnation may not speak for this pane, or None if it may (section 3, step 1)."""
    if speaker is None:
        return Reason.UNKNOWN_INCARNATION
    if speaker.pane_id != pane_id:
        return Reason.OTHER_PANE
    return None if speaker.live else Reason.RETIRED_INCARNATION


def refusal(state: PaneState, call: str, incarnation_id: str | None, refused: Refused, now: int) -> Decision:
    """Answer a refusal; its only trace is a dead letter."""
    return Decision(answer=refused, dead_letters=(dead_letter(state, call, incarnation_id, refused, now),))


def dead_letter(state: PaneState, call: str, incarnation_id: str | None, refused: Refused, now: int) -> NewDeadLetter:
    """What is kept of a refused or fenced call."""
    return NewDeadLetter(
        at=now,
        address=state.address,
        call=call,
        incarnation_id=incarnation_id,
        reason=refused.reason,
        detail=refused.detail,
    )


def fenced(
    state: PaneState, call: str, incarnation_id: str, speaker: IncarnationRecord | None, now: int
) -> Decision | None:
    """The refusal of a call whose speaker is fenced, or None if it may speak."""
    reason = judge_speaker(state.pane_id, speaker)
    if reason is None:
        return None
    return refusal(
        state, call, incarnation_id, Refused(reason, f"incarnation {incarnation_id!r} is {_FENCED[reason]}"), now
    )


_FENCED: Final = {
    Reason.UNKNOWN_INCARNATION: "unknown here",
    Reason.OTHER_PANE: "of another pane",
    Reason.RETIRED_INCARNATION: "retired",
}
