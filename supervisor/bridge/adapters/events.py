"""Takes hook events apart.  Pure; what a harness hands over is not trusted.

ValueError means: no event of this harness.  The message shows a field's name and never its value, which can be long.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

__all__ = ["calls_of", "is_unproved", "kind_of", "nested_batch", "optional", "required", "unproved_batch"]

_FIELD_MAX: Final = 4096
_UNPROVED: Final = "unproved-"


def kind_of(event: Mapping[str, object]) -> str:
    """Return the event's name.  Raises ValueError if it has none."""
    return required(event, "hook_event_name")


def required(event: Mapping[str, object], field: str) -> str:
    """Return a text that must be there.  Raises ValueError otherwise."""
    value = optional(event, field)
    if not value:
        raise ValueError(f"a hook event without {field!r}")
    return value


def optional(event: Mapping[str, object], field: str) -> str:
    """Return a text, empty where there is none.  Raises ValueError for what is no text, or too long to be a field."""
    value = event.get(field)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _FIELD_MAX:
        raise ValueError(f"the {field!r} of a hook event is no text, or longer than {_FIELD_MAX}")
    return value


def calls_of(event: Mapping[str, object]) -> frozenset[str]:
    """Return the tool calls of a batch that ended.  Raises ValueError unless each is named."""
    calls = event.get("tool_calls")
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError("a batch without 'tool_calls'")
    return frozenset(required(call, "tool_use_id") for call in calls)


def unproved_batch(*said: str) -> str:
    """Name a batch of one call whose real one cannot be proved; the same words give the same name."""
    return f"{_UNPROVED}{_digest(said)}"


def is_unproved(batch_id: str) -> bool:
    """Whether this is a name of `unproved_batch`."""
    return batch_id.startswith(_UNPROVED)


def nested_batch(*said: str) -> str:
    """Name a batch of one call of a nested agent, which has no turn and says nothing about its caller's."""
    return f"nested-{_digest(said)}"


def _digest(said: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]
