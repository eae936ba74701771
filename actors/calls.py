"""The messages panes and intents send and get: one small frozen class each.  Pure.

`CALL` is the transition's name in chaos points, dead letters and errors (`pane.pre_tool_use/committed`).  What a
bridge calls on a `Pane` becomes one of these; the rest are what actors tell each other.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import field, frozen

from fencepost.actors.incarnation_state import LaunchRequest
from fencepost.actors.intent_events import IntentEvent
from fencepost.actors.messages import BaseTransition, Outcome, ToolBoundary
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.records import IntentRecord

__all__ = [
    "AttemptFailed",
    "Call",
    "Detect",
    "DiscardIntent",
    "EnsureAttempt",
    "GiveUpWaiting",
    "Join",
    "LaunchFailed",
    "LaunchHarness",
    "Link",
    "OutcomeReported",
    "PlanAttempt",
    "PostToolBatch",
    "PreToolUse",
    "PreparePayload",
    "RearmIntent",
    "ReportDelivered",
    "ResolveIntent",
    "RetireIncarnation",
    "StartupReady",
    "SyncStatusQuery",
    "ToolsEnded",
    "Withdraw",
]


class Call:
    """Base of every message."""

    __slots__ = ()

    CALL: ClassVar[str]


# -- from a bridge to a pane -------------------------------------------------------------------------------------


@frozen
class Detect(Call):
    """A base moved."""

    CALL: ClassVar[str] = "detect"
    transition: BaseTransition


@frozen
class PreToolUse(Call):
    """A tool call is at its boundary; the caller waits at most `wait_seconds` for a reconciliation."""

    CALL: ClassVar[str] = "pre_tool_use"
    boundary: ToolBoundary
    wait_seconds: float


@frozen
class ReportDelivered(Call):
    """The hook wrote the payload out."""

    CALL: ClassVar[str] = "mark_delivered"
    intent_id: str
    incarnation_id: str
    turn_id: str
    batch_id: str


@frozen
class PostToolBatch(Call):
    """A tool batch completed."""

    CALL: ClassVar[str] = "post_tool_batch"
    incarnation_id: str
    turn_id: str
    batch_id: str


@frozen
class LaunchHarness(Call):
    """A process is to be started.  `started_by_runtime` when the pane's own launching task asks."""

    CALL: ClassVar[str] = "launch"
    request: LaunchRequest
    started_by_runtime: bool = False


@frozen
class StartupReady(Call):
    """The replacement accepted its tagged input."""

    CALL: ClassVar[str] = "startup_ready"
    incarnation_id: str
    startup_delivery_id: str
    payload_sha256: str


@frozen
class LaunchFailed(Call):
    """The process did not come up, or died."""

    CALL: ClassVar[str] = "launch_failed"
    incarnation_id: str
    reason: str


@frozen
class RetireIncarnation(Call):
    """The host ends an incarnation."""

    CALL: ClassVar[str] = "retire"
    incarnation_id: str
    reason: str


@frozen
class RearmIntent(Call):
    """A human grants new startup attempts."""

    CALL: ClassVar[str] = "rearm"
    intent_id: str


@frozen
class DiscardIntent(Call):
    """A human gives a delivery up."""

    CALL: ClassVar[str] = "discard"
    intent_id: str
    approval: str = field(repr=False)


@frozen
class ResolveIntent(Call):
    """A human resolves a blocked intent."""

    CALL: ClassVar[str] = "resolve"
    intent_id: str
    resolution: str
    by: str


@frozen
class SyncStatusQuery(Call):
    """How the pane stands."""

    CALL: ClassVar[str] = "sync_status"


# -- from a pane's own tasks to the pane -------------------------------------------------------------------------


@frozen
class Withdraw(Call):
    """Fence the live incarnation, as its replacement is about to be started."""

    CALL: ClassVar[str] = "withdraw"


@frozen
class PreparePayload(Call):
    """Answer once the head has a payload or nothing is pending, reconciling it unattended if need be."""

    CALL: ClassVar[str] = "prepare_payload"


@frozen
class GiveUpWaiting(Call):
    """The budget of a waiting call is spent."""

    CALL: ClassVar[str] = "give_up_waiting"
    ticket: int


@frozen
class ToolsEnded(Call):
    """No tool of a batch is waited for any more; or, `held_up`, none can be before somebody revives that address."""

    CALL: ClassVar[str] = "tools_ended"
    held_up: str | None = None


# -- between a pane and its intents ------------------------------------------------------------------------------


@frozen(kw_only=True)
class Link:
    """What happens to one intent in a joint mutation (`joining`).

    `seen` is the row as the pane knows it; `events` happen to it in order.  `attempt` is the token of the attempt that
    reported the outcome these events come of; that of an outdated one is fenced.
    """

    seen: IntentRecord
    events: tuple[IntentEvent, ...]
    attempt: tuple[int, int] | None = None


@frozen
class Join(Call):
    """Pane to intent: the first link is yours; add your rows to `part` and commit, or hand it on to the next.

    The answer is every record the joint mutation put.
    """

    CALL: ClassVar[str] = "join"
    links: tuple[Link, ...]
    part: Mutation
    now: int

    @property
    def seen(self) -> IntentRecord:
        """The asked intent's row, as the pane knows it."""
        return self.links[0].seen


@frozen
class EnsureAttempt(Call):
    """Pane to intent: if you are reconciling and nobody works on it, resume."""

    CALL: ClassVar[str] = "ensure_attempt"


@frozen
class PlanAttempt(Call):
    """Attempt to intent: commit which operation is about to run."""

    CALL: ClassVar[str] = "plan"
    planned_op: str
    starting_op: str
    activation: tuple[int, int]


@frozen
class OutcomeReported(Call):
    """Intent to pane: the reconciliation ended."""

    CALL: ClassVar[str] = "reconciled"
    intent_id: str
    activation: tuple[int, int]
    """The intent's activation and the number of the attempt within it."""
    outcome: Outcome


@frozen
class AttemptFailed(Call):
    """Intent to pane: the reconciler raised; nobody waits for this attempt any more."""

    CALL: ClassVar[str] = "attempt_failed"
    intent_id: str
