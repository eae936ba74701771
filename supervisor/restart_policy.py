"""How often an address may crash before it is left alone, and how soon it lives again before that.  Pure."""

from __future__ import annotations

from typing import Final

from attrs import frozen

__all__ = ["CrashHistory"]

PAUSE_SECONDS: Final = 0.2
"""Before the second restart in a row; each one after that waits twice as long."""
PAUSE_SECONDS_MAX: Final = 30.0
DOUBLINGS_MAX: Final = 16
"""More of them change nothing under that bound."""


@frozen
class CrashHistory:
    """The recent crashes of one address, as monotonic seconds, oldest first."""

    crashes: tuple[float, ...] = ()
    quarantined: bool = False

    def crashed(self, now: float, crashes_max: int, window_seconds: float) -> CrashHistory:
        """One more crash; more than `crashes_max` within the window quarantines the address until it is revived."""
        recent = (*(at for at in self.crashes if now - at < window_seconds), now)
        return CrashHistory(recent, quarantined=self.quarantined or len(recent) > crashes_max)

    def pause_seconds(self, crashes_max: int, window_seconds: float) -> float:
        """How long to wait before the next life: not at all after one crash, then longer and longer.

        What failed for a moment is given that moment.  All pauses before a quarantine fit into a quarter of the window,
        so what crashes at once every time is still quarantined.
        """
        if len(self.crashes) < 2:
            return 0.0
        longer = PAUSE_SECONDS * 2.0 ** min(len(self.crashes) - 2, DOUBLINGS_MAX)
        return min(longer, PAUSE_SECONDS_MAX, window_seconds / (4 * max(crashes_max, 1)))
