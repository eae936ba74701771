"""What only a human can decide about an intent: resolve, rearm, discard (contract I-13, I-14).  Pure.

Each takes `resolved`, the intent with the given id where it is one of the pane's that is over: the pane's state holds
only the unresolved ones, and a word about one that is over gets its own answer.
"""

from __future__ import annotations

from fencepost.actors.decision import Decision, Replace
from fencepost.actors.intent_events import Discard, Rearm, Resolve
from fencepost.actors.messages import Applied, Reason, Refused, Unchanged
from fencepost.actors.pane_state import CONFLICTED_STATES, PaneState, refusal
from fencepost.mailbox.records import IntentRecord, IntentState

__all__ = ["decide_discard", "decide_rearm", "decide_resolve"]


def decide_resolve(
    state: PaneState, intent_id: str, resolution: str, by: str, now: int, resolved: IntentRecord | None = None
) -> Decision:
    """Leave recovery_required or topology_diverged, with the choice recorded."""
    intent = state.find(intent_id) or resolved
    if intent is None:
        refused = Refused(Reason.UNKNOWN_INTENT, f"pane {state.pane_id} has no intent {intent_id!r}")
        return refusal(state, "resolve", None, refused, now)
    if intent.state not in CONFLICTED_STATES:
        return Decision(answer=Unchanged())
    if intent is not state.head:
        head = state.head
        assert head is not None
        refused = Refused(Reason.RECONCILING, f"intent {head.intent_id} comes first and is {head.state}")
        return refusal(state, "resolve", None, refused, now)
    # A retired process may still be there, with tools running that were let pass.  Only an intent that got beyond
    # detection is known to have been begun with no such tools about; a diverged one may have been found so.
    lingering = state.latest is not None and intent.state is IntentState.TOPOLOGY_DIVERGED
    event = Resolve(resolution=resolution, by=by, attended=state.live is not None or lingering)
    # A successor that was wished for while only a human could lead on has nothing else left to wait for.
    wished = state.latest is not None and state.latest.relaunch
    return Decision(answer=Applied(), intent_events=((intent, event),), effects=(Replace(),) if wished else ())


# -- the two ways out of exhaustion (section 7.5) ----------------------------------------------------------------


def decide_rearm(state: PaneState, intent_id: str, now: int, resolved: IntentRecord | None = None) -> Decision:
    """Grant a new epoch of startup attempts; the wish for the first of them is stored, as in `give_up`."""
    intent = state.find(intent_id) or resolved
    if intent is None or intent.exhausted_at is None:
        return _not_exhausted(state, "rearm", intent, intent_id, now)
    latest = state.latest
    wishes = (latest.next(relaunch=True),) if latest is not None and not latest.live and not latest.relaunch else ()
    return Decision(answer=Applied(), puts=wishes, intent_events=((intent, Rearm()),), effects=(Replace(),))


def decide_discard(
    state: PaneState, intent_id: str, approval: str, now: int, resolved: IntentRecord | None = None
) -> Decision:
    """Give the delivery up on the strength of the one-shot approval; nothing is claimed."""
    intent = state.find(intent_id) or resolved
    if intent is None or intent.exhausted_at is None:
        return _not_exhausted(state, "discard", intent, intent_id, now)
    if approval != intent.approval:
        refused = Refused(Reason.PROOF_MISMATCH, f"approval {approval[:80]!r} is not the one shown for {intent_id}")
        return refusal(state, "discard", None, refused, now)
    return Decision(answer=Applied(), intent_events=((intent, Discard(approval=approval)),))


def _not_exhausted(state: PaneState, call: str, intent: IntentRecord | None, intent_id: str, now: int) -> Decision:
    if intent is None:
        refused = Refused(Reason.UNKNOWN_INTENT, f"pane {state.pane_id} has no intent {intent_id!r}")
    else:
        refused = Refused(Reason.NOT_EXHAUSTED, f"intent {intent_id} is {intent.state} and not exhausted")
    return refusal(state, call, None, refused, now)
