"""Text of harnesses, agents and peers, with nothing in it that a terminal or a page might obey."""

from __future__ import annotations

__all__ = ["escaped"]


def escaped(text: str, *, keep: str = "") -> str:
    """The text with each character that is not printable spelled out, as `repr` does, but for those in `keep`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
