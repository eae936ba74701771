"""The vocabulary of panes and intents: what a bridge says, what it is answered, what it can look at.

Every class here is frozen and validated on construction, so an object that exists is well formed; ids from a harness
are untrusted and raise `InvalidIdentifier`.  Names and fields are the contract's (Incarnations and intents).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from enum import StrEnum
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from attrs import Attribute, field, frozen
from attrs.validators import deep_iterable, instance_of, optional

from fencepost.mailbox.address import check_id
from fencepost.mailbox.errors import InvalidIdentifier, InvalidTransition
from fencepost.mailbox.ladder import Stage, Stop
from fencepost.mailbox.records import DeliveryMode, IntentState, TransitionKind

__all__ = [
    "Allow",
    "Anchor",
    "Answer",
    "Applied",
    "AttemptView",
    "BaseTransition",
    "BlockGeneric",
    "BlockPayload",
    "BlockRestart",
    "Capabilities",
    "Decision",
    "DetectedIntent",
    "Diverged",
    "IncarnationView",
    "IntentView",
    "Launch",
    "Launcher",
    "ModelTurn",
    "NeedsRecovery",
    "Outcome",
    "Reason",
    "Reconciled",
    "Reconciler",
    "Refused",
    "StartupDelivery",
    "SyncStatus",
    "ToolBoundary",
    "Transcript",
    "Unchanged",
]


def _id(_instance: object, attribute: Attribute[str], value: str) -> None:
    check_id(attribute.name, value)


def _optional_id(_instance: object, attribute: Attribute[str | None], value: str | None) -> None:
    if value is not None:
        check_id(attribute.name, value)


def _ids(value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise TypeError(f"ids come as a tuple of str, not as the str {value!r}")
    return tuple(value)


def _ordinal(_instance: object, attribute: Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise InvalidIdentifier(attribute.name, value, "must be an integer of 64 bits")


# -- answers ---------------------------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why a call was refused or blocked."""

    RETIRED_INCARNATION = "retired_incarnation"
    UNKNOWN_INCARNATION = "unknown_incarnation"
    OTHER_PANE = "other_pane"
    PROOF_MISMATCH = "proof_mismatch"
    NOT_PREPARED = "not_prepared"
    OTHER_MODE = "other_mode"
    PAYLOAD_DRIFT = "payload_drift"
    WRONG_STARTUP_ID = "wrong_startup_id"
    CONSUMED_STARTUP_ID = "consumed_startup_id"
    UNPROVED_STARTUP = "unproved_startup"
    BATCH_NOT_COMPLETE = "batch_not_complete"
    TURN_ORDER_UNKNOWN = "turn_order_unknown"
    RECONCILING = "reconciling"
    CONFLICTED = "conflicted"
    EXHAUSTED = "exhausted"
    UNKNOWN_INTENT = "unknown_intent"
    ADMISSION_LOST = "admission_lost"
    REDELIVERIES_SPENT = "redeliveries_spent"
    PAYLOAD_UNBOUND = "payload_unbound"
    PAYLOAD_NOT_TEXT = "payload_not_text"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    NOT_EXHAUSTED = "not_exhausted"
    UNKNOWN_DELIVERY = "unknown_delivery"
    REPLY_TOO_LATE = "reply_too_late"


@frozen
class Applied:
    """The call changed durable state, and that is committed."""


@frozen
class Unchanged:
    """The call was understood and nothing had to change; what it asked for already stands, or does not concern us."""


@frozen
class Refused:
    """The protocol refused the call: nothing changed but one more dead letter."""

    reason: Reason
    detail: str = ""


Answer: TypeAlias = Applied | Unchanged | Refused


@frozen
class Allow:
    """The tool may run."""


@frozen
class BlockPayload:
    """The tool must not run; the caller prints exactly these saved bytes."""

    intent_id: str
    payload: bytes


@frozen
class BlockGeneric:
    """The tool must not run; `message` is fixed recovery text and never the payload."""

    reason: Reason
    message: str


@frozen
class BlockRestart:
    """As `BlockGeneric`; the incarnation is retired and must be replaced."""

    reason: Reason
    message: str


Decision: TypeAlias = Allow | BlockPayload | BlockGeneric | BlockRestart


class SyncStatus(StrEnum):
    """A pane's status, always derived from what is stored of it (protocol-intent.md section 1.3)."""

    IN_SYNC = "in_sync"
    PENDING = "pending"
    CONFLICTED = "conflicted"


# -- incarnations ----------------------------------------------------------------------------------------------


@frozen
class Capabilities:
    """What a harness can prove (I-3).  Either one false: payloads reach it only through a restart."""

    soft_batches: bool = field(default=True, validator=instance_of(bool))
    turn_order: bool = field(default=True, validator=instance_of(bool))


@frozen
class StartupDelivery:
    """The tagged payload a replacement process must be given as its first input; the id is good once."""

    startup_delivery_id: str
    intent_id: str
    payload: bytes
    payload_sha256: str


@frozen
class Launch:
    """A new incarnation, committed; the process may be started now (I-10).  `epoch` counts the pane's launches."""

    pane_id: str
    incarnation_id: str
    epoch: int
    harness: str
    session_id: str | None
    startup: StartupDelivery | None


@frozen
class IncarnationView:
    """One incarnation, as a Launcher sees it.  Times are int nanoseconds UTC; `epoch` counts the pane's launches."""

    incarnation_id: str
    pane_id: str
    epoch: int
    harness: str
    session_id: str | None
    launched_at: int
    retired_at: int | None


class Launcher(Protocol):
    """The bridge's hands on the harness processes (I-11)."""

    def stop(self, incarnation: IncarnationView) -> Awaitable[None]:
        """Return when that process is provably gone.  Called again after a crash; must not mind a process long gone.

        Raising leaves the pane conflicted: nothing is started while the old process may live.
        """
        ...

    def start(self, launch: Launch) -> Awaitable[None]:
        """Start the process, with `launch.startup` as its tagged first input where there is one.

        Raising counts as `launch_failed`.
        """
        ...


# -- intents ---------------------------------------------------------------------------------------------------


@frozen
class ModelTurn:
    """One model turn: an opaque id and an ordinal that strictly increases within one incarnation [D1]."""

    id: str = field(validator=_id)
    ordinal: int = field(validator=_ordinal)


@frozen
class BaseTransition:
    """A base moved from one exact revision to another (I-2).  Ids are 1 to 256 printable ASCII characters."""

    kind: TransitionKind = field(converter=TransitionKind)
    """Why it moved: `native_rewrite` or `parent_advance`, also as a str."""
    from_base: str = field(validator=_id)
    """The revision that the pane's workspace stands on, or will once the intents before this one are done."""
    to_base: str = field(validator=_id)
    """The revision that it is to stand on; another than `from_base`."""
    classification_op: str = field(validator=_id)
    """The operation whose view of the repository the move was judged by."""
    trigger_op: str = field(validator=_id)
    """The operation that moved the base; seen before in this pane, it answers the same intent and writes nothing."""
    ambiguous: str | None = field(default=None, validator=optional(instance_of(str)))
    """Why there is no provable target, in free text; None where there is one.  The intent is then diverged."""

    def __attrs_post_init__(self) -> None:
        """A transition that moves nothing is misuse."""
        if self.from_base == self.to_base:
            raise InvalidTransition(
                f"a base transition must move: from_base and to_base are both {self.to_base!r}", event="detect"
            )


@frozen
class DetectedIntent:
    """Which intent carries a transition now; `coalesced` when an open one took it in."""

    intent_id: str
    seq: int
    coalesced: bool


@frozen
class ToolBoundary:
    """A harness is about to run a tool call (I-4)."""

    incarnation_id: str = field(validator=_id)
    """The process that asks; a retired or unknown one is blocked."""
    turn: ModelTurn | None
    """The model turn of the call; None where the adapter cannot prove one, which blocks while an intent is pending."""
    batch_id: str = field(validator=_id)
    """The batch of calls that it is one of; what its first call is answered holds for all of them."""
    tool_call_id: str | None = field(default=None, validator=_optional_id)
    """The harness's own id of the call.  Nothing is decided by it."""
    startup_delivery_id: str | None = field(default=None, validator=optional(instance_of(str)))
    """The echo of a replacement: the id of `Launch.startup`, exactly as it was given, with its first call at least."""
    passed_unseen: Literal["yes", "maybe"] | None = None
    """Whether the adapter let an earlier call of this batch pass by itself, while nobody answered it.

    "yes": the batch is admitted, because half of it has run.  "maybe": it is not known, and the process must restart.
    None: it did not.
    """

    def __attrs_post_init__(self) -> None:
        """`passed_unseen` knows three values, and a turn is a `ModelTurn`."""
        if self.passed_unseen not in {None, "yes", "maybe"}:
            raise InvalidTransition(
                f"passed_unseen must be 'yes', 'maybe' or None, not {self.passed_unseen!r}", event="pre_tool_use"
            )
        if not (self.turn is None or isinstance(self.turn, ModelTurn)):
            raise InvalidTransition(f"turn must be a ModelTurn or None, not {self.turn!r}", event="pre_tool_use")


@frozen
class Anchor:
    """Where in the transcript's history the result belongs; complete or not there at all [O]."""

    change_id: str = field(validator=_id)
    commit_id: str = field(validator=_id)
    op_id: str = field(validator=_id)


def _transitions(found: Iterable[BaseTransition]) -> tuple[BaseTransition, ...]:
    return tuple(found)


@frozen
class Reconciled:
    """The workspace now holds the result, and this is what the agent must be told (I-12)."""

    result_op: str = field(validator=_id)
    workspace_commit: str = field(validator=_id)
    payload: bytes = field(validator=instance_of(bytes))
    anchor: Anchor = field(validator=instance_of(Anchor))
    covers: tuple[str, ...] = field(default=(), converter=_ids, validator=deep_iterable(instance_of(str)))
    discovered: tuple[BaseTransition, ...] = field(
        default=(), converter=_transitions, validator=deep_iterable(instance_of(BaseTransition))
    )


@frozen
class NeedsRecovery:
    """The workspace cannot be brought to a known state without help; nothing may be handed out."""

    reason: str = field(validator=instance_of(str))
    bundle_path: str | None = field(default=None, validator=optional(instance_of(str)))
    bundle_fingerprint: str | None = field(default=None, validator=optional(instance_of(str)))
    details: Mapping[str, object] | str | None = None


@frozen
class Diverged:
    """The topology is ambiguous: there is no provable target."""

    reason: str = field(validator=instance_of(str))
    details: Mapping[str, object] | str | None = None


Outcome: TypeAlias = Reconciled | NeedsRecovery | Diverged


@frozen(kw_only=True)
class IntentView:
    """One intent as it stands in the store (I-1).  Times are int nanoseconds UTC, None for what has not happened."""

    intent_id: str
    pane_id: str
    seq: int
    """Its place among the pane's intents, from 1: they are delivered in this order."""
    kind: TransitionKind
    from_base: str
    to_base: str
    """Where the newest transition that it took in ends."""
    classification_op: str
    triggers: tuple[str, ...]
    """The operations that triggered it, in the order in which they came."""
    state: IntentState
    mode: DeliveryMode | None
    """How its payload travels, once it is bound."""
    result_op: str | None
    workspace_commit: str | None
    planned_op: str | None
    """What `attempt.plan` named last."""
    payload: bytes | None
    """What the agent is told, from the moment it is prepared; it never changes."""
    payload_sha256: str | None
    """Its hash, 64 lower-case hex digits."""
    anchor: Anchor | None
    prepared_at: int | None
    delivered_at: int | None
    """The first delivery; a redelivery does not move it."""
    acknowledged_at: int | None
    incarnation_id: str | None
    """The process that it is bound to: that of the blocked batch, or the replacement."""
    turn: ModelTurn | None
    """With `batch_id` and `bound_at`, what a soft delivery is bound to."""
    batch_id: str | None
    bound_at: int | None
    batch_completed_at: int | None
    payload_offered_at: int | None
    """When its payload first left as the answer of a tool call of the open bound batch."""
    startup_delivery_id: str | None
    """What the replacement must echo, of a delivery by restart."""
    handshake_at: int | None
    """When the replacement said that it took the payload."""
    startup_attempts: int
    """How many replacements were bound in this epoch."""
    soft_redeliveries: int
    """How often it was bound to a later batch, because one had completed without the payload."""
    epoch: int
    """Counts the times it was rearmed, from 0."""
    exhausted_at: int | None
    """When the last permitted startup attempt was given up; then only `rearm` and `discard` lead on."""
    reason: str | None
    """Why it needs recovery, diverged or was given up, in free text."""
    stage: Stage | None
    """How far it got on the ladder; None before it has a payload."""
    stop: Stop | None
    approval: str | None = None
    """While exhausted, the one-shot token that `discard` takes."""
    resolution: str | None = None
    """What the last `resolve` said, and in `resolved_by` who said it."""
    resolved_by: str | None = None


class AttemptView(Protocol):
    """One attempt at reconciling an intent, as the Reconciler sees it."""

    @property
    def intent(self) -> IntentView:
        """The intent, as it stood when the attempt began."""
        ...

    @property
    def resumed(self) -> bool:
        """True when an earlier attempt may have changed files: probe before anything is mutated."""
        ...

    @property
    def planned_op(self) -> str | None:
        """The operation a plan names, of this attempt or an earlier one."""
        ...

    @property
    def starting_op(self) -> str | None:
        """The operation the plan starts from."""
        ...

    def plan(self, planned_op: str, starting_op: str) -> Awaitable[None]:
        """Commit which operation is about to run, before it runs; durable on return.

        The same ids again are fine; others raise `InvalidTransition`; an attempt that is no longer the current one
        gets `Fenced`.
        """
        ...


@runtime_checkable
class Reconciler(Protocol):
    """The bridge's way to bring a workspace onto the intent's target (I-12)."""

    def reconcile(self, attempt: AttemptView) -> Awaitable[Outcome]:
        """Do the work, or say truthfully why not.  Raising means: not known; the next attempt has `resumed` set."""
        ...


class Transcript(Protocol):
    """Where delivered payloads are projected to; idempotent by `dedup_key`, called at least once (I-17)."""

    def project(self, dedup_key: str, intent_id: str, payload: bytes) -> Awaitable[None]:
        """Write the payload into the transcript, once per `dedup_key`, however often it is called."""
        ...
