"""Text that every store can hold.  Pure."""

from __future__ import annotations

__all__ = ["storable_text"]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def storable_text(text: str) -> str:
    """The text with each lone surrogate, which UTF-8 has no bytes for, as U+FFFD (design section 10)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join(_REPLACEMENT if "\ud800" <= character <= "\udfff" else character for character in text)
    return text
