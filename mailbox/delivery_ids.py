"""The two forms of id a delivery has: a canonical UUID, and 64 hex digits (contract G-14).  Standard library only."""

from __future__ import annotations

import re
from typing import Final, TypeGuard

from fencepost.mailbox.errors import InvalidIdentifier

__all__ = ["check_delivery_id", "check_digest", "is_delivery_id", "is_digest"]

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def is_delivery_id(value: object) -> TypeGuard[str]:
    """Whether `value` is a canonical lower-case UUID."""
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def is_digest(value: object) -> TypeGuard[str]:
    """Whether `value` is 64 lower-case hex digits, as bindings and fingerprints are."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def check_delivery_id(value: object) -> str:
    """Return `value` if it is a canonical lower-case UUID, else raise `InvalidIdentifier`."""
    if is_delivery_id(value):
        return value
    raise InvalidIdentifier("delivery_id", value, "must be a canonical lower-case UUID")


def check_digest(field: str, value: object) -> str:
    """Return `value` if it is 64 lower-case hex digits, else raise `InvalidIdentifier` naming `field`."""
    if is_digest(value):
        return value
    raise InvalidIdentifier(field, value, "must be 64 lower-case hex digits")
