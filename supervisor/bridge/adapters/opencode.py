"""The adapter of OpenCode, which is told by a restart (docs/harnesses.md).

Its plugin (`opencode_plugin`) makes the events: `turn_id` is the id of the user's message that a call follows from, and
`tool_use_id` is the assistant's message with the call's id behind it.  A nested agent's session is its `agent_id`.

A turn, its order and the end of a batch could be proved of one conversation.  But several can go on in one process, and
what becomes of them between two turns was not tried; so no version is said to prove any of it.
"""

from __future__ import annotations

from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.adapters.turn_echo import TurnEchoAdapter

__all__ = ["OpenCodeAdapter"]


class OpenCodeAdapter(TurnEchoAdapter):
    """See `TurnEchoAdapter`."""

    def __init__(self, gate: Gate | None = None) -> None:
        super().__init__("opencode", gate)
