"""How much a client may ask of the bridge, and how the bridge ends."""

from __future__ import annotations

import math
from typing import Any

import trio
from attrs import Attribute, define, field, frozen

from fencepost.supervisor import CorruptRecord, StoreFault

__all__ = ["Limits", "Stopping"]


def _positive(_instance: object, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{attribute.name} must be more than 0, not {value!r}")


def _limit(default: float) -> Any:  # noqa: ANN401 - as attrs types a field
    return field(default=default, validator=_positive)


@frozen(kw_only=True)
class Limits:
    """The bounds of one bridge; times in seconds, sizes in bytes."""

    poll_seconds_max: float = _limit(30.0)
    """How long a poll may wait, whatever it asks for."""
    hook_seconds_max: float = _limit(60.0)
    """How long a hook may wait for a reconciliation, whatever it asks for."""
    body_bytes_max: int = _limit(8 * 1024 * 1024)
    """A message's text has 1 MiB at most, and JSON can spell a character of one byte with six."""
    pane_bytes_max: int = _limit(32 * 1024 * 1024)
    """All bodies of one pane, or of the operator, that are held at once."""
    body_seconds: float = _limit(10.0)
    """How long a body may take to arrive."""
    head_seconds: float = _limit(5.0)
    """How long a connection may go without a whole request head."""
    head_bytes_max: int = _limit(16 * 1024)
    """A request line and its headers."""
    send_seconds: float = _limit(10.0)
    """How long an answer may take to be read."""
    pane_connections_max: int = _limit(64)
    """Connections, and requests under way, that come from one pane, or from the operator."""
    turn_seconds: float = _limit(0.01)
    """How long one request of a pane, or of the operator, keeps the next one of the same from beginning (`turns`)."""
    strangers_max: int = _limit(32)
    """Connections of a listener that have not said yet who they are; one more ends the oldest of them."""
    connections_max: int = _limit(1024)
    """All connections of a listener."""


@define(eq=False)
class Stopping:
    """How the bridge ends: first it is asked, then what is still under way is cut."""

    asked: trio.Event = field(factory=trio.Event)
    """Set: polls answer at once, and no connection is taken."""
    fault: StoreFault | None = None
    """The store failed, which is why the bridge stops."""
    was_cut: bool = False
    """Whether somebody did not get the answer he was owed."""
    _under_way: set[trio.CancelScope] = field(factory=set, init=False)
    _is_over: bool = field(default=False, init=False)

    def heard(self, error: BaseException) -> None:
        """Something failed; a store that did stays failed, so the bridge ends and its next life reads what is there.

        A record that is damaged blocks its own pane and nobody else.
        """
        if isinstance(error, StoreFault) and not isinstance(error, CorruptRecord) and self.fault is None:
            self.fault = error
            self.asked.set()

    def begin(self) -> trio.CancelScope:
        """The scope of one request."""
        scope = trio.CancelScope()
        self._under_way.add(scope)
        if self._is_over:
            scope.cancel()
        return scope

    def end(self, scope: trio.CancelScope) -> None:
        """The request has ended, so nothing of it is left to cut."""
        self._under_way.discard(scope)

    def cut(self) -> None:
        """End whatever is under way; each caller is told that the bridge stops."""
        self._is_over = True
        self.was_cut = self.was_cut or bool(self._under_way)
        for scope in self._under_way:
            scope.cancel()
