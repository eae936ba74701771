"""Text that every store can hold.  Pure."""

from __future__ import annotations

__all__ = ["storable_text", "told"]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


TOLD_MAX = 2_000
"""Characters of a foreign error that are kept."""


def told(error: BaseException) -> str:
    """What somebody else's exception says of itself, as text that can be stored, whatever its `repr` does.

    One that says which text could not be encoded shows that text in its `repr`; here it says where in it, and no more.
    """
    try:
        said = f"{type(error).__name__}({str(error)!r})" if isinstance(error, UnicodeError) else repr(error)
        return storable_text(said)[:TOLD_MAX]
    except Exception:  # noqa: BLE001 - a bridge's class may do anything here
        return f"<{type(error).__name__} that cannot show itself>"


def storable_text(text: str) -> str:
    """The text with each lone surrogate, which UTF-8 has no bytes for, as U+FFFD (design section 10)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join(_REPLACEMENT if "\ud800" <= character <= "\udfff" else character for character in text)
    return text
