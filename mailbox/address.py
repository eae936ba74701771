"""Addresses: which actor a message is for, as one readable string.

    pane:<pane_id>
    session:<session_id>          resolved to the pane whose incarnation carries that harness session
    intent:<intent_id>
    batch:<pane_id>/<operation_id>/<turn_id>

A slash within one of a batch's ids is written %2F, and a percent sign %25, so that no two batches share an address.

Ids come from bridges and harnesses and are untrusted: `check_id` is the one place that judges them (contract G-14).
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from fencepost.mailbox.errors import InvalidIdentifier

__all__ = ["ID_LENGTH_MAX", "Address", "check_id"]

ID_LENGTH_MAX: Final = 256

_KINDS: Final = ("pane", "session", "intent", "batch")


def check_id(field: str, value: object) -> str:
    """Return `value` if it is printable ASCII of 1 to 256 characters, else raise `InvalidIdentifier` naming `field`."""
    if isinstance(value, str) and 1 <= len(value) <= ID_LENGTH_MAX and value.isascii() and value.isprintable():
        return value
    raise InvalidIdentifier(field, value)


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


@frozen
class Address:
    """One actor's name: its `kind` and the `key` that is unique in that kind.  Hashable, so it is a registry key."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.key}"

    @classmethod
    def pane(cls, pane_id: str) -> Address:
        """The address of a pane's actor."""
        return cls("pane", pane_id)

    @classmethod
    def intent(cls, intent_id: str) -> Address:
        """The address of an intent's actor."""
        return cls("intent", intent_id)

    @classmethod
    def batch(cls, pane_id: str, operation_id: str, turn_id: str) -> Address:
        """The address of a tool batch's actor (contract T-17)."""
        return cls("batch", "/".join(_escaped(part) for part in (pane_id, operation_id, turn_id)))

    @property
    def batch_parts(self) -> tuple[str, str, str]:
        """The pane, operation and turn ids of a batch's address."""
        pane_id, operation_id, turn_id = (part.replace("%2F", "/").replace("%25", "%") for part in self.key.split("/"))
        return pane_id, operation_id, turn_id

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address back; raise `InvalidIdentifier` for anything that is not one."""
        kind, colon, key = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not colon or kind not in _KINDS or not key:
            raise InvalidIdentifier("address", text, f"must be KIND:KEY with KIND one of {', '.join(_KINDS)}")
        if kind != "batch":
            check_id("address", key)
        elif key.count("/") != 2 or not all(key.split("/")):
            raise InvalidIdentifier("address", text, "must be batch:PANE/OPERATION/TURN")
        return cls(kind, key)
