"""Text of harnesses, agents and peers, with nothing in it that a terminal or a page might obey."""

from __future__ import annotations

from typing import Final

__all__ = ["error_told", "escaped"]

_ERROR_MAX: Final = 300


def error_told(error: BaseException) -> str:
    """An exception in one line of ASCII for a log, cut to 300 characters.

    One that says which text could not be encoded shows that text in its `repr`; here it says where in it, and no more.
    """
    told = f"{type(error).__name__}({str(error)!r})" if isinstance(error, UnicodeError) else repr(error)
    return escaped(told).encode("ascii", "backslashreplace").decode()[:_ERROR_MAX]


def escaped(text: str, *, keep: str = "") -> str:
    """The text with each character that is not printable spelled out, as `repr` does, but for those in `keep`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
