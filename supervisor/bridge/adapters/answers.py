"""What a harness reads from its hook, for each decision.  Pure.

Both harnesses take the same words: nothing at all lets a call run, and a denial carries its reason as JSON text.
"""

from __future__ import annotations

import json

from fencepost.supervisor import Allow, BlockPayload, Decision, ToolBoundary
from fencepost.supervisor.bridge.adapters import Decided, Delivered, HookAnswer

__all__ = ["answer_of", "denial"]


def denial(reason: str) -> bytes:
    """Return what keeps a call from running and gives the model `reason` in its place.

    In ASCII, so that no encoding on the way can change a character; the harness's JSON parser makes the text again.
    """
    said = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    return json.dumps({"hookSpecificOutput": said}).encode()


def answer_of(decision: Decision, boundary: ToolBoundary, *, verbatim: bool) -> HookAnswer:
    """Return what the hook of `boundary` prints.

    A payload is reported as delivered only where the harness hands a reason on as it is (`verbatim`) and the call's
    turn is proved; without a report the pane goes on to a restart.
    """
    decided = Decided(boundary, decision)
    if isinstance(decision, Allow):
        return HookAnswer(decided=decided)
    if not isinstance(decision, BlockPayload):
        return HookAnswer(denial(decision.message), decided=decided)
    delivered = None
    if verbatim and boundary.turn is not None:
        delivered = Delivered(decision.intent_id, boundary.incarnation_id, boundary.turn.id, boundary.batch_id)
    return HookAnswer(denial(decision.payload.decode()), delivered=delivered, decided=decided)
