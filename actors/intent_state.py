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
`intent_events`, what each sets in the row in `intent_changes`, what followers hear of it in `intent_news`; what a call
or a report of a harness amounts to, given the row, is judged in `intent_verdicts`.

Nothing here knows of the store, time or randomness: `now` and fresh ids arrive in the events.  The mutation that
carries a new row is guarded by the row's revision, so a decision made on an older row cannot be committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from attrs import frozen

from fencepost.actors.intent_changes import changes
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
from fencepost.actors.intent_news import news_of
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
    return intent.next(**changes(intent, event, now))


# -- what follows from a transition ------------------------------------------------------------------------------


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
