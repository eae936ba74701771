"""What can happen to an intent: one small frozen class an event.  Pure.

Which of them is possible when is `intent_state.TABLE`, and what each does to the row is in `intent_changes`; the
sections named here are those of protocol-intent.md.  The first sentence of each is what README says of it.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import field, frozen

from fencepost.actors.messages import ModelTurn, Reconciled
from fencepost.mailbox.records import TransitionKind

__all__ = [
    "AcceptHandshake",
    "Acknowledge",
    "AcknowledgeRecovered",
    "BeginUnattended",
    "BindRestart",
    "BindSoft",
    "Coalesce",
    "CompleteBatch",
    "DeliveringEvent",
    "Discard",
    "DivergeTopology",
    "Exhaust",
    "IntentEvent",
    "MarkDelivered",
    "Offer",
    "Plan",
    "Prepare",
    "Rearm",
    "Rebind",
    "ReconcilingEvent",
    "RequireRecovery",
    "Resolve",
    "RestartEvent",
    "Supersede",
]


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


ReconcilingEvent: TypeAlias = (
    Coalesce | Supersede | BindSoft | BeginUnattended | Plan | Prepare | RequireRecovery | DivergeTopology | Resolve
)
"""From the detection to the payload, or to a state that has none."""
DeliveringEvent: TypeAlias = Offer | Rebind | MarkDelivered | CompleteBatch | Acknowledge | AcknowledgeRecovered
"""The payload on its way into a batch of the live process, and every acknowledgement."""
RestartEvent: TypeAlias = BindRestart | AcceptHandshake | Exhaust | Rearm | Discard
"""The payload on its way into a replacement process."""

IntentEvent: TypeAlias = ReconcilingEvent | DeliveringEvent | RestartEvent
