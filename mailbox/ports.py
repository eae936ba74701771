"""What the runtime must be handed: the time, fresh ids and, under test, the points at which to die."""

from __future__ import annotations

import time
import uuid
from enum import StrEnum
from typing import Protocol

__all__ = [
    "ActorKilled",
    "Clock",
    "CrashPoints",
    "IdSource",
    "Kill",
    "RuntimeKilled",
    "SystemClock",
    "UuidSource",
]


class Clock(Protocol):
    """Where the runtime reads time.  Wall time is only written down; deadlines are monotonic (design section 10)."""

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...


class IdSource(Protocol):
    """Where the runtime gets ids that were never used before."""

    def new_id(self, kind: str) -> str:
        """Return a new id, by rule a canonical lower-case UUID.

        `kind` (such as `"intent"`) is for sources that want to tell ids apart.
        """
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, UTC, from the system clock."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Seconds from the system's monotonic clock."""
        return time.monotonic()


class UuidSource:
    """Random UUIDs, canonical and lower-case."""

    def new_id(self, kind: str) -> str:  # noqa: ARG002 - the port's signature
        """Return a random UUID, whatever the kind."""
        return str(uuid.uuid4())


class Kill(StrEnum):
    """What dies at a crash point."""

    ACTOR = "actor"
    RUNTIME = "runtime"


class CrashPoints(Protocol):
    """Who decides, under test, where something dies."""

    def passed(self, point: str) -> Kill | None:
        """Note that `point` (`kind.transition/boundary`) was reached and answer what dies there, or None.

        Called from whichever thread reaches the point, so it must be thread-safe.
        """
        ...


class ActorKilled(Exception):  # noqa: N818 - not an error of the program's: a test asked for it
    """An actor died at a crash point.  Attribute: `point` (str)."""

    def __init__(self, point: str) -> None:
        super().__init__(f"an actor was killed at {point}")
        self.point = point


class RuntimeKilled(Exception):  # noqa: N818
    """The runtime died at a crash point, as if its process had.  Attribute: `point` (str)."""

    def __init__(self, point: str) -> None:
        super().__init__(f"the runtime was killed at {point}")
        self.point = point
