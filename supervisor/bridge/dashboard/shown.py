"""A payload, text or result as a page tells it: its length and hash, and itself only where somebody asks.  Pure."""

from __future__ import annotations

import hashlib
from typing import Final

from attrs import frozen

from fencepost.supervisor.bridge.escaped import escaped

__all__ = ["SHOWN_MAX", "Shown", "shown"]

SHOWN_MAX: Final = 16_384
"""How many characters are shown."""


@frozen
class Shown:
    """What is known of some bytes, and their beginning."""

    length: int
    """In bytes."""
    sha256: str
    text: str
    """At most `SHOWN_MAX` characters; whatever is no printable text is spelled out."""
    is_cut: bool


def shown(content: bytes | str) -> Shown:
    """Bytes, or a text in UTF-8."""
    whole = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    text = whole[: SHOWN_MAX * 4].decode("utf-8", "backslashreplace")
    printable = escaped(text[:SHOWN_MAX], keep="\n\t")
    is_cut = len(printable) > SHOWN_MAX or len(text) > SHOWN_MAX or len(whole) > SHOWN_MAX * 4
    return Shown(len(whole), hashlib.sha256(whole).hexdigest(), printable[:SHOWN_MAX], is_cut)
