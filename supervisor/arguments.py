"""What a bridge hands to a handle, judged before it travels: the value itself is in every error."""

from __future__ import annotations

import math
from typing import Final

from fencepost.mailbox.text import storable_text

__all__ = ["count", "free_text", "require", "seconds"]

_FOREVER_SECONDS: Final = 1e12
"""What is longer than thirty thousand years is for ever; a clock cannot count it."""


def require(field: str, value: object, kind: type) -> None:
    """Raise TypeError unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{field} must be a {kind.__name__}, not {value!r}")


def count(field: str, value: int) -> int:
    """A sequence number to start after."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be an int, not {value!r}")
    if not 0 <= value < 2**63:
        raise ValueError(f"{field} must be 0 or more and fit 64 bits, not {value!r}")
    return value


def seconds(field: str, value: float) -> float:
    """A budget: 0 or more, infinity for as long as it takes."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{field} must be 0 or more, not {value!r}")
    return float(value) if value < _FOREVER_SECONDS else math.inf


def free_text(field: str, value: str) -> str:
    """Free text that a host hands in; whatever it is, it is kept as text that every store can hold."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a str, not {value!r}")
    return storable_text(value)
