"""The delivery ladder: how far something got, in words every mechanism shares.

    STORED < DELIVERED < CONSUMED < RESPONDED          stages, reached once and never taken back
    UNAVAILABLE, UNCERTAIN, EXPIRED, REJECTED          the stops beside the ladder

A mechanism keeps its own words; `report` adds the stage beside them, and this module is the only place that maps
(protocol-delivery.md sections 1 and 2).  A mechanism without a mapping raises `UnmappedMechanism`, so it cannot be
offered.  Only the mechanism `"intent"` is mapped here so far: an intent is a delivery too (design section 7).

Standard library only, so that a client process can use it without loading a runtime.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fencepost.mailbox.errors import UnmappedMechanism

__all__ = ["Reach", "Stage", "Stop", "report"]


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
    """How far, or where it stopped; both None means the mechanism says nothing of a delivery."""

    stage: Stage | None = None
    stop: Stop | None = None


_MAPPED: Final[dict[tuple[str, str, str | None], Reach]] = {
    ("intent", "detected", None): Reach(),
    ("intent", "reconciling", None): Reach(),
    ("intent", "materialized", None): Reach(Stage.STORED),
    ("intent", "delivered", None): Reach(Stage.DELIVERED),
    ("intent", "delivered", "batch_completed"): Reach(Stage.CONSUMED),
    ("intent", "delivered", "handshake_accepted"): Reach(Stage.CONSUMED),
    ("intent", "acknowledged", None): Reach(Stage.RESPONDED),
    ("intent", "exhausted", None): Reach(stop=Stop.UNCERTAIN),
}


def report(mechanism: str, outcome: str, native: str | None = None) -> Reach:
    """Map a mechanism's own words onto the ladder; raise `UnmappedMechanism` for words it does not have."""
    try:
        return _MAPPED[mechanism, outcome, native]
    except KeyError:
        word = outcome if native is None else f"{outcome} ({native})"
        raise UnmappedMechanism(mechanism, word) from None
