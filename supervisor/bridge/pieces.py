"""How many values a piece of JSON has, told before it is parsed.

The parser is C and lets nobody else run before it is done.  A long text takes it some milliseconds, as many bytes of
empty lists more than a second, in which no pane is answered.  So what has too many values is not parsed at all.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PIECES_MAX", "has_too_many_pieces"]

PIECES_MAX: Final = 200_000
"""Lists, objects and commas outside of texts.  No body of less than 200 KB, and no text of any length, has more."""


def has_too_many_pieces(data: bytes) -> bool:
    """Whether there are more than `PIECES_MAX`, as far as `data` is JSON; the parser gets no further than that."""
    if _pieces(data) <= PIECES_MAX:
        return False  # not even if its texts are counted
    bare = data.replace(rb"\\", b"").replace(rb"\"", b"")  # now each quote begins or ends a text
    if bare.count(b'"') > 4 * PIECES_MAX:  # there is a comma between two values, and a name to a value at most
        return True
    return _pieces(b"".join(bare.split(b'"')[::2])) > PIECES_MAX


def _pieces(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{") + data.count(b",")
