"""Which scalars every store can keep as they are.  Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["INTEGER_MAX", "INTEGER_MIN", "Unstorable", "require_storable"]

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1


class Unstorable(ValueError):  # noqa: N818
    """A value that no store can keep as it is, such as an int over 64 bits or a lone surrogate."""


def require_storable(value: object) -> None:
    """Raise `Unstorable` or UnicodeEncodeError if no store can keep `value` (a str, int, bool, bytes or None)."""
    if isinstance(value, str):
        if not value.isascii():
            value.encode()
    elif isinstance(value, int):
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise Unstorable(f"{value} needs more than 64 bits")
    elif value is not None and not isinstance(value, bytes):
        raise Unstorable(f"a {type(value).__name__} cannot be stored")
