"""The record of a pending claim: what it says, and its bytes.

A claim is one JSON object, and nothing else passes for one: bytes that no bridge can have written are `CorruptClaim`.

Standard library only.  Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, Self, TypeGuard

from fencepost.mailbox.delivery_ids import is_delivery_id, is_digest
from fencepost.mailbox.errors import InvalidIdentifier
from fencepost.mailbox.text import storable_text, told

__all__ = [
    "CLAIM_BYTES_MAX",
    "TEXT_BYTES_MAX",
    "Claim",
    "CorruptClaim",
    "check_scope",
    "decode_claim",
    "encode_abandoned",
    "encode_claim",
    "fingerprint_of",
    "fits",
    "is_sendable",
    "object_in",
    "scope_hash",
]

TEXT_BYTES_MAX: Final = 1_048_576
"""Bytes of UTF-8 that a message may have (contract D-32)."""
CLAIM_BYTES_MAX: Final = 12 * TEXT_BYTES_MAX + 4_096
"""Bytes that a claim may have: JSON can spell a character of two bytes with six, and one of four with twelve."""

_VERSION: Final = 1
_PANE_ID: Final = re.compile(r"[ -~]{1,256}")  # `address.check_id` holds the same, but loads attrs


def fingerprint_of(text: str) -> str:
    """SHA-256, in hex, of a message with its line ends unified and its outer blanks trimmed (contract DA-13).

    A lone surrogate, which has no bytes, counts as U+FFFD.
    """
    trimmed = storable_text(text).replace("\r\n", "\n").replace("\r", "\n").strip()
    return hashlib.sha256(trimmed.encode()).hexdigest()


def fits(text: str) -> bool:
    """Whether a text has no more bytes than a message may have."""
    return len(text) <= TEXT_BYTES_MAX and len(storable_text(text).encode()) <= TEXT_BYTES_MAX


def is_sendable(text: str) -> bool:
    """Whether a text may be sent: it fits, and it is not blank (contract D-32, DA-15)."""
    return fits(text) and bool(text.strip())


def check_scope(scope: tuple[str, str]) -> tuple[str, str]:
    """Return a (socket path, pane id) that can be one; raises `InvalidIdentifier` (contract G-14) or TypeError."""
    if not isinstance(scope, tuple) or len(scope) != 2:
        raise TypeError(f"a scope is a tuple of socket path and pane id, not {scope!r}")
    socket_path, pane_id = scope
    if not isinstance(socket_path, str) or not socket_path:
        raise InvalidIdentifier("socket path", socket_path, "must be text that is not empty")
    if not isinstance(pane_id, str) or not _PANE_ID.fullmatch(pane_id):
        raise InvalidIdentifier("pane_id", pane_id)
    return scope


def scope_hash(scope: tuple[str, str]) -> str:
    """The name that the claim of a (socket path, pane id) has: the same for every bridge, restart and port."""
    return hashlib.sha256(json.dumps(scope).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Claim:
    """The one message of a scope that may be under way."""

    delivery_id: str
    binding: str
    fingerprint: str
    text: str

    @classmethod
    def of(cls, delivery_id: str, binding: str, text: str) -> Self:
        """The claim of a message that is sendable."""
        text = storable_text(text)
        return cls(delivery_id, binding, fingerprint_of(text), text)


class CorruptClaim(ValueError):  # noqa: N818 - as `CorruptRecord`
    """Bytes that no bridge can have written as a claim; the message says what is wrong with them."""


def encode_claim(claim: Claim) -> bytes:
    """Return the claim as one JSON object in UTF-8, its text legible (contract D-29)."""
    return _encode(_members(claim))


def encode_abandoned(claim: Claim, approval: str) -> bytes:
    """Return what is kept of a claim that its owner gave up: all of it, and the owner's word (contract D-19)."""
    return _encode({**_members(claim), "approval": storable_text(approval)})


def _members(claim: Claim) -> dict[str, object]:
    return {
        "version": _VERSION,
        "delivery_id": claim.delivery_id,
        "binding": claim.binding,
        "fingerprint": claim.fingerprint,
        "text": claim.text,
    }


def _encode(members: Mapping[str, object]) -> bytes:
    return json.dumps(members, ensure_ascii=False).encode()


def decode_claim(data: bytes) -> Claim:
    """Return the claim that these bytes are; raises `CorruptClaim` for everything a bridge would not have written."""
    if len(data) > CLAIM_BYTES_MAX:
        raise CorruptClaim(f"is longer than any claim, over {CLAIM_BYTES_MAX} bytes")
    if not (data.startswith(b"{") and data.endswith(b"}")):
        raise CorruptClaim("is not one JSON object from its first byte to its last")
    try:
        members = object_in(data)
    except ValueError as error:
        raise CorruptClaim(f"is not a JSON object: {told(error):.200}") from error
    expected = {"version", "delivery_id", "binding", "fingerprint", "text"}
    if members.keys() != expected:
        raise CorruptClaim(f"has other members: {', '.join(sorted(members.keys() ^ expected))!r:.300}")
    if type(members["version"]) is not int or members["version"] != _VERSION:
        raise CorruptClaim(f"has version {members['version']!r:.100}, this program knows {_VERSION}")
    delivery_id = _matched(members, "delivery_id", is_delivery_id)
    binding = _matched(members, "binding", is_digest)
    fingerprint = _matched(members, "fingerprint", is_digest)
    text = members["text"]
    if not isinstance(text, str) or not is_sendable(text) or storable_text(text) != text:
        raise CorruptClaim("has a text that nobody would have sent")
    if fingerprint_of(text) != fingerprint:
        raise CorruptClaim("has a fingerprint that does not belong to its text")
    return Claim(delivery_id, binding, fingerprint, text)


def _matched(members: Mapping[str, object], name: str, is_one: Callable[[object], TypeGuard[str]]) -> str:
    value = members[name]
    if not is_one(value):
        raise CorruptClaim(f"has the {name} {value!r:.100}")
    return value


def object_in(data: bytes) -> dict[str, object]:
    """Return the JSON object that `data` is.  Raises ValueError if it is none, or names a member twice."""
    try:
        value: object = json.loads(
            data.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is something else")  # noqa: TRY004 - damage, not misuse
    return value


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("it names a member twice")
    return members


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"JSON has no {word}")
