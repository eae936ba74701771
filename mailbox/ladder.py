"""The delivery ladder: how far something got, in words every mechanism shares.

    STORED < DELIVERED < CONSUMED < RESPONDED          stages, reached once and never taken back
    UNAVAILABLE, UNCERTAIN, EXPIRED, REJECTED          the stops beside the ladder

A mechanism keeps its own words; `report` adds the stage beside them, and this module is the only place that maps
(protocol-delivery.md sections 1 and 2).  The mapping is data, `MAPPING`, one row an outcome.  A mechanism without a
row raises `UnmappedMechanism`, so it cannot be offered; `is_mapped` asks beforehand.

`may_follow` says what a report allows, `advance` what may replace it, `decode` what an earlier message said.

Standard library only, so that a client process can use it without loading a runtime.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Literal, TypeVar

from fencepost.mailbox.errors import CorruptRecord, InvalidTransition, UnmappedMechanism

__all__ = [
    "ANYTHING_ELSE",
    "MAPPING",
    "MECHANISMS",
    "Fallback",
    "Following",
    "Mapped",
    "Reach",
    "Retry",
    "Stage",
    "Stop",
    "advance",
    "decode",
    "is_mapped",
    "may_follow",
    "report",
]


class Stage(StrEnum):
    """How far a delivery got; each stage includes the ones before it."""

    STORED = "stored"
    DELIVERED = "delivered"
    CONSUMED = "consumed"
    RESPONDED = "responded"

    # A str compares by its letters; a stage by how far it is.

    def __lt__(self, other: object) -> bool:
        return _ORDER[self] < _ORDER[other] if isinstance(other, Stage) else NotImplemented

    def __le__(self, other: object) -> bool:
        return _ORDER[self] <= _ORDER[other] if isinstance(other, Stage) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return _ORDER[self] > _ORDER[other] if isinstance(other, Stage) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return _ORDER[self] >= _ORDER[other] if isinstance(other, Stage) else NotImplemented


_ORDER: Final = {stage: place for place, stage in enumerate(Stage)}


class Stop(StrEnum):
    """Where a delivery ended beside the ladder."""

    UNAVAILABLE = "unavailable"
    UNCERTAIN = "uncertain"
    EXPIRED = "expired"
    REJECTED = "rejected"


@dataclass(frozen=True)
class Reach:
    """How far, or where it stopped; both None means the mechanism says nothing of a delivery.

    Raises TypeError for words instead of members, ValueError for a stage and a stop at once (section 1.3, rule 1).
    """

    stage: Stage | None = None
    stop: Stop | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.stage, Stage | None) or not isinstance(self.stop, Stop | None):
            raise TypeError(f"a stage and a stop are members of Stage and Stop, not {self.stage!r} and {self.stop!r}")
        if self.stage is not None and self.stop is not None:
            raise ValueError(f"a delivery has a stage or a stop, not {self.stage} and {self.stop}")

    def __str__(self) -> str:
        return str(self.stage or self.stop or "no stage")


# -- the mapping (section 2) -------------------------------------------------------------------------------------


class _Else(Enum):
    ANYTHING_ELSE = "anything else"


ANYTHING_ELSE: Final = _Else.ANYTHING_ELSE
"""In a row of the mapping: every native word that no other row of that outcome names, and none."""


@dataclass(frozen=True)
class Mapped:
    """One row of the mapping: a mechanism's outcome and native word, and how far on the ladder that is."""

    mechanism: str
    outcome: str
    native: str | Literal[_Else.ANYTHING_ELSE] | None
    reach: Reach


_NOTHING: Final = Reach()
_STORED: Final = Reach(Stage.STORED)
_DELIVERED: Final = Reach(Stage.DELIVERED)
_CONSUMED: Final = Reach(Stage.CONSUMED)
_RESPONDED: Final = Reach(Stage.RESPONDED)
_UNAVAILABLE: Final = Reach(stop=Stop.UNAVAILABLE)
_UNCERTAIN: Final = Reach(stop=Stop.UNCERTAIN)
_EXPIRED: Final = Reach(stop=Stop.EXPIRED)
_REJECTED: Final = Reach(stop=Stop.REJECTED)

MAPPING: Final[tuple[Mapped, ...]] = (
    # The bridge of the head seat polls; `delivered` is its acknowledgement of that exact event.
    Mapped("head_seat", "delivered", None, _DELIVERED),
    Mapped("head_seat", "replied", None, _RESPONDED),
    Mapped("head_seat", "unconfirmed", None, _UNCERTAIN),
    Mapped("head_seat", "unbound", None, _UNAVAILABLE),
    Mapped("head_seat", "aborted", None, _EXPIRED),
    # A plain mailbox acknowledgement is delivered; consumed needs the harness's own word (section 1.3, rule 6).
    Mapped("fleet_seat", "delivered", None, _DELIVERED),
    Mapped("fleet_seat", "delivered", "queued", _CONSUMED),
    Mapped("fleet_seat", "delivered", "started", _CONSUMED),
    Mapped("fleet_seat", "delivered", "steered", _CONSUMED),
    Mapped("fleet_seat", "delivered", "reply", _RESPONDED),
    Mapped("fleet_seat", "unconfirmed", None, _UNCERTAIN),
    Mapped("fleet_seat", "undelivered", None, _UNAVAILABLE),
    Mapped("fleet_seat", "offline", None, _UNAVAILABLE),
    # Queued is consumed even when a running turn holds it back; it says nothing about the model.
    Mapped("harness_seat", "accepted", "queued", _CONSUMED),
    Mapped("harness_seat", "accepted", "started", _CONSUMED),
    Mapped("harness_seat", "accepted", "steered", _CONSUMED),
    Mapped("harness_seat", "released", None, _UNAVAILABLE),
    Mapped("harness_seat", "offline", None, _UNAVAILABLE),
    Mapped("harness_seat", "unconfirmed", None, _UNCERTAIN),
    # Silence and absorption are chosen; only a refusal is rejected; what is not known to have ended is uncertain.
    Mapped("channel_turn", "pending", None, _STORED),
    Mapped("channel_turn", "settled", None, _RESPONDED),
    Mapped("channel_turn", "silent", None, _RESPONDED),
    Mapped("channel_turn", "absorbed", None, _RESPONDED),
    Mapped("channel_turn", "waiting_user", None, _CONSUMED),
    Mapped("channel_turn", "failed", "policy_refused", _REJECTED),
    Mapped("channel_turn", "failed", "validation_refused", _REJECTED),
    Mapped("channel_turn", "failed", "permission_denied", _REJECTED),
    Mapped("channel_turn", "failed", "tools_not_allowed", _REJECTED),
    Mapped("channel_turn", "failed", "interrupted", _EXPIRED),
    Mapped("channel_turn", "failed", "stalled", _EXPIRED),
    Mapped("channel_turn", "failed", ANYTHING_ELSE, _UNCERTAIN),
    # A hire without a brief delivers nothing, so it has no stage at all.
    Mapped("hire", "spawned", "brief", _CONSUMED),
    Mapped("hire", "spawned", None, _NOTHING),
    Mapped("hire", "failed", "start_unconfirmed", _UNCERTAIN),
    Mapped("hire", "failed", "delivery_unconfirmed", _UNCERTAIN),
    Mapped("hire", "failed", "unknown_directory", _REJECTED),
    Mapped("hire", "failed", "at_capacity", _REJECTED),
    Mapped("hire", "failed", "trust_required", _REJECTED),
    Mapped("hire", "failed", ANYTHING_ELSE, _UNAVAILABLE),
    Mapped("opencode", "ready", None, _NOTHING),
    Mapped("opencode", "pending", None, _STORED),
    Mapped("opencode", "busy", None, _STORED),
    Mapped("opencode", "delivered", None, _CONSUMED),
    Mapped("opencode", "uncertain", None, _UNCERTAIN),
    Mapped("opencode", "unbound", None, _UNAVAILABLE),
    # An intent is a delivery too (design section 7).
    Mapped("intent", "detected", None, _NOTHING),
    Mapped("intent", "reconciling", None, _NOTHING),
    Mapped("intent", "materialized", None, _STORED),
    Mapped("intent", "delivered", None, _DELIVERED),
    Mapped("intent", "delivered", "batch_completed", _CONSUMED),
    Mapped("intent", "delivered", "handshake_accepted", _CONSUMED),
    Mapped("intent", "acknowledged", None, _RESPONDED),
    Mapped("intent", "exhausted", None, _UNCERTAIN),
)
"""Every mechanism's words, in the order of section 2; a mechanism's rows stand together."""

MECHANISMS: Final = tuple(dict.fromkeys(row.mechanism for row in MAPPING))
"""Every mechanism that has a mapping."""

_REACHES: Final = {(row.mechanism, row.outcome, row.native): row.reach for row in MAPPING}


def is_mapped(mechanism: str) -> bool:
    """Whether a mechanism of that name may be offered (section 1.3, rule 3)."""
    return mechanism in MECHANISMS


def report(mechanism: str, outcome: str, native: str | None = None) -> Reach:
    """Map a mechanism's own words onto the ladder (contract D-11).

    `native` is the mechanism's finer word where the mapping keys on one.  Raises `UnmappedMechanism` for a mechanism,
    an outcome or a native word that has no row.
    """
    reach = _REACHES.get((mechanism, outcome, native)) or _REACHES.get((mechanism, outcome, ANYTHING_ELSE))
    if reach is None:
        raise UnmappedMechanism(mechanism, outcome if native is None else f"{outcome} ({native})")
    return reach


# -- what may follow a report (section 1.4) ----------------------------------------------------------------------


class Retry(StrEnum):
    """What an explicit retry of the same message may be."""

    NO = "no"  # a changed request is a new one
    ORIGINAL_RECEIPT = "original_receipt"  # answered from the original's receipt; nothing is dispatched again
    NEW_REQUEST = "new_request"
    AFTER_RECONCILE = "after_reconcile"  # not before it is known what became of the original
    NEW_ID = "new_id"


class Fallback(StrEnum):
    """Whether another channel may be tried."""

    NO = "no"
    BEFORE_DISPATCH = "before_dispatch"  # the mechanism's own, and only when nothing was ever sent


@dataclass(frozen=True)
class Following:
    """What may follow a report."""

    automatic_retry: bool
    explicit_retry: Retry
    fallback: Fallback


_FOLLOWING: Final[Mapping[Stage | Stop | None, Following]] = {
    **dict.fromkeys(Stage, Following(False, Retry.ORIGINAL_RECEIPT, Fallback.NO)),
    Stop.UNAVAILABLE: Following(False, Retry.NEW_REQUEST, Fallback.BEFORE_DISPATCH),
    Stop.UNCERTAIN: Following(False, Retry.AFTER_RECONCILE, Fallback.NO),
    Stop.EXPIRED: Following(False, Retry.NEW_ID, Fallback.NO),
    Stop.REJECTED: Following(False, Retry.NO, Fallback.NO),
    # A stage that is not known may be any, so it allows what the least of them allows.
    None: Following(False, Retry.AFTER_RECONCILE, Fallback.NO),
}


def may_follow(reach: Reach) -> Following:
    """What a program may do after this report (section 1.4, contract D-12).  Never an automatic retry."""
    return _FOLLOWING[reach.stage or reach.stop]


# -- what may replace a report (section 1.3, rule 7) -------------------------------------------------------------


def advance(current: Reach, proved: Reach) -> Reach:
    """Return what a delivery's report becomes once `proved` is known (contract D-13).

    A stage only moves up.  What is only stored is still owed and may yet stop; from delivered on nothing is taken
    back.  Uncertain gives way to a stage that evidence proves, never to another stop.  Unavailable, expired and
    rejected are final.  To know nothing of a delivery replaces nothing.

    Raises `InvalidTransition` for every other move.
    """
    if proved in {current, _NOTHING}:
        return current
    match current:
        case Reach(stage=None, stop=None):
            return proved
        case Reach(stage=Stage() as reached):
            allowed = reached is Stage.STORED if proved.stage is None else reached < proved.stage
        case _:
            allowed = current.stop is Stop.UNCERTAIN and proved.stage is not None
    if allowed:
        return proved
    raise InvalidTransition(f"what is {current} does not become {proved}", state=str(current), event=str(proved))


# -- what an earlier message said --------------------------------------------------------------------------------

_Word = TypeVar("_Word", Stage, Stop)


def decode(record: Mapping[str, object]) -> Reach:
    """Return the `stage` or `stop` that a message carries (section 1.3 rule 4, section 8, contract D-14).

    A message of before the ladder has neither: `Reach()`, unknown and not guessed.  Raises `CorruptRecord` for a word
    that is none of the ladder's, for something that is no word, and for both at once.
    """
    stage, stop = _word(record, "stage", Stage), _word(record, "stop", Stop)
    if stage is not None and stop is not None:
        raise CorruptRecord("delivery report", f"has the stage {stage} and the stop {stop}; one of them is wrong")
    return Reach(stage, stop)


def _word(record: Mapping[str, object], field: str, words: type[_Word]) -> _Word | None:
    found = record.get(field)
    if found is None:
        return None
    if not isinstance(found, str) or found not in {word.value for word in words}:
        raise CorruptRecord("delivery report", f"has the {field} {found!r:.300}, not one of {', '.join(words)}")
    return words(found)
