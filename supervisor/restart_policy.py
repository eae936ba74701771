"""How often an address may crash before it is left alone.  Pure."""

from __future__ import annotations

from attrs import frozen

__all__ = ["CrashHistory"]


@frozen
class CrashHistory:
    """The recent crashes of one address, as monotonic seconds, oldest first."""

    crashes: tuple[float, ...] = ()
    quarantined: bool = False

    def crashed(self, now: float, crashes_max: int, window_seconds: float) -> CrashHistory:
        """One more crash; more than `crashes_max` within the window quarantines the address until it is revived."""
        recent = (*(at for at in self.crashes if now - at < window_seconds), now)
        return CrashHistory(recent, quarantined=self.quarantined or len(recent) > crashes_max)
