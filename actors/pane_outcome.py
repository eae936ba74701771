"""How a reconciliation ended: a payload, or a block that says why (protocol-intent.md section 5).  Pure.

The result is written with everything that follows from it, in one transaction: the later intents it covers are
superseded, and the moves of the base it discovered are opened as intents behind all there are (contract I-12).
"""

from __future__ import annotations

from typing import assert_never

import orjson
from attrs import evolve

from fencepost.actors.decision import Decision
from fencepost.actors.intent_events import DivergeTopology, IntentEvent, Prepare, RequireRecovery, Supersede
from fencepost.actors.intent_verdicts import judge_prepare
from fencepost.actors.messages import Applied, Diverged, NeedsRecovery, Outcome, Reason, Reconciled, Refused, Unchanged
from fencepost.actors.pane_detection import opened
from fencepost.actors.pane_state import Limits, Mint, PaneState, refusal
from fencepost.mailbox.records import IntentRecord, IntentState
from fencepost.mailbox.text import shown, storable_text

__all__ = ["decide_outcome"]


def decide_outcome(
    state: PaneState,
    intent: IntentRecord,
    outcome: Outcome,
    known_triggers: frozenset[str],
    limits: Limits,
    now: int,
    mint: Mint,
) -> Decision:
    """Prepare the payload, or block truthfully.  A result that is already prepared changes nothing [D8].

    `known_triggers` are those of `outcome.discovered` the pane has seen before.
    """
    if intent.state is not IntentState.RECONCILING:
        if isinstance(outcome, Reconciled):
            answer = judge_prepare(intent, outcome)
            if isinstance(answer, Refused):
                return refusal(state, "prepare", intent.incarnation_id, answer, now)
        return Decision(answer=Unchanged())
    match outcome:
        case Reconciled():
            unfit = _unfit(outcome.payload, limits)
            if unfit is not None:
                return Decision(answer=Applied(), intent_events=((intent, RequireRecovery(reason=unfit)),))
            return _prepared(state, intent, outcome, known_triggers, now, mint)
        case NeedsRecovery():
            blocked: IntentEvent = RequireRecovery(
                reason=storable_text(outcome.reason),
                bundle_path=_storable(outcome.bundle_path),
                bundle_fingerprint=_storable(outcome.bundle_fingerprint),
                details=_details(outcome.details),
            )
        case Diverged():
            blocked = DivergeTopology(reason=storable_text(outcome.reason), details=_details(outcome.details))
        case _:
            assert_never(outcome)
    return Decision(answer=Applied(), intent_events=((intent, blocked),))


def _storable(text: str | None) -> str | None:
    return None if text is None else storable_text(text)


def _unfit(payload: bytes, limits: Limits) -> Reason | None:
    """Why no channel could carry these bytes unchanged, if so (I-15)."""
    if len(payload) > limits.payload_bytes_max:
        return Reason.PAYLOAD_TOO_LARGE
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return Reason.PAYLOAD_NOT_TEXT
    return None


def _details(details: object) -> str | None:
    """What a reconciler says beside its reason, as text; whatever it is, it must not cost the outcome."""
    if details is None:
        return None
    if isinstance(details, str):
        return storable_text(details)
    try:
        return orjson.dumps(details, default=shown, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):
        return shown(details)


def _prepared(
    state: PaneState,
    intent: IntentRecord,
    result: Reconciled,
    known_triggers: frozenset[str],
    now: int,
    mint: Mint,
) -> Decision:
    """Result, payload and state in one transaction, with the intents it covers and the ones it discovered."""
    covered = [
        other
        for other in state.intents
        if other.intent_id in result.covers and other.state is IntentState.DETECTED and other.seq > intent.seq
    ]
    superseding = Decision(intent_events=tuple((other, Supersede(by_intent_id=intent.intent_id)) for other in covered))
    decision = superseding.plus(
        Decision(
            answer=Applied(),
            intent_events=((intent, Prepare(result=result, live=state.is_live(intent.incarnation_id))),),
        )
    )
    # Discovered intents are opened behind everything there is; they never coalesce, their order is the result's, and
    # their rows are put in that order, so that whoever applies them sees each seq after the one before it.
    gone = {other.intent_id for other in covered}
    later = evolve(state, intents=tuple(known for known in state.intents if known.intent_id not in gone))
    seen = set(known_triggers)
    found = Decision()
    for transition in result.discovered:
        if transition.trigger_op in seen:
            continue
        seen.add(transition.trigger_op)
        further = opened(later, transition, now, mint)
        later = later.after(further.puts)
        found = found.plus(further)
    return found.plus(decision)
