"""The runtime's options, with the contract's defaults (G-3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import Attribute, field, frozen

from fencepost.actors.pane_state import Limits

__all__ = ["Options"]


def _at_least(minimum: float) -> Callable[[object, Attribute[Any], Any], None]:
    def check(_options: object, attribute: Attribute[Any], value: Any) -> None:  # noqa: ANN401 - judged here
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= minimum:
            raise ValueError(f"Options.{attribute.name} must be at least {minimum}, not {value!r}")

    return check


@frozen(kw_only=True)
class Options:
    """Bounds of one runtime.  `_seconds` are seconds, `_bytes_max` bytes, the other numbers counts."""

    startup_attempts_max: int = field(default=3, validator=_at_least(1))
    """Startup attempts of one intent and epoch; giving up the last exhausts the intent."""
    soft_redeliveries_max: int = field(default=1, validator=_at_least(0))
    """How often a batch that completed without the payload may be followed by another soft offer."""
    sibling_wait_seconds: float = field(default=5.0, validator=_at_least(0))
    """How long `pre_tool_use` waits for a reconciliation where the call does not say."""
    close_seconds: float = field(default=5.0, validator=_at_least(0))
    """How long closing may take."""
    crashes_max: int = field(default=5, validator=_at_least(0))
    """Crashes of one address within the window; one more quarantines it."""
    crash_window_seconds: float = field(default=60.0, validator=_at_least(0))
    """That window; the pauses before restarts fit into a quarter of it."""
    inbox_max: int = field(default=1024, validator=_at_least(1))
    """Messages waiting for one actor; more callers wait outside."""
    payload_bytes_max: int = field(default=1_048_576, validator=_at_least(0))
    """Bytes of a payload; a longer one makes its intent need recovery."""
    result_bytes_max: int = field(default=1_048_576, validator=_at_least(0))
    """Bytes of a tool's result, of its content and of its details each."""
    tool_grace_seconds: float = field(default=5.0, validator=_at_least(0))
    """How long a cancelled tool may take to end before it is abandoned."""
    idle_seconds: float = field(default=30.0, validator=_at_least(0))
    """After which an actor that owes nothing goes to sleep."""
    events_kept_max: int = field(default=100_000, validator=_at_least(1))
    """Stored events; the oldest are trimmed away."""

    @property
    def limits(self) -> Limits:
        """The bounds the pure decisions obey."""
        return Limits(
            startup_attempts_max=self.startup_attempts_max,
            soft_redeliveries_max=self.soft_redeliveries_max,
            payload_bytes_max=self.payload_bytes_max,
        )
