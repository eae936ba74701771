"""The adapter of Codex, which can be told only by a restart (docs/harnesses.md).

Its hooks show neither the end of a batch nor the order of turns, and it wraps the reason of a denial in words of its
own.  A nested agent's hooks name its caller's session, have a `turn_id` of their own and carry `agent_id`.
"""

from __future__ import annotations

from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.adapters.turn_echo import TurnEchoAdapter

__all__ = ["CodexAdapter"]


class CodexAdapter(TurnEchoAdapter):
    """See `TurnEchoAdapter`."""

    def __init__(self, gate: Gate | None = None) -> None:
        super().__init__("codex", gate)
