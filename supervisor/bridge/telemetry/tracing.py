"""Spans and numbers for OpenTelemetry, where its API is installed; otherwise nothing is here, and it costs nothing.

Nothing global is set up: the providers are the program's, or those it set for the process, and until it sets one the
API does nothing with what it is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from fencepost.supervisor.bridge.telemetry.spans import Tracing

__all__ = ["tracing"]


def tracing(tracers: TracerProvider | None = None, meters: MeterProvider | None = None) -> Tracing | None:
    """What tells OpenTelemetry, or None without its API; a provider that is None is the process's."""
    try:
        from fencepost.supervisor.bridge.telemetry.spans import Tracing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "opentelemetry":
            raise
        return None
    return Tracing(tracers, meters)
