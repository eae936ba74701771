"""What a Claude Code transcript proves about one tool call.  Pure.

Theory of operation
===================

A `PreToolUse` hook names a tool call and no more; but by then the transcript holds the assistant message that made it,
a line for each content block, all with the same `message.id` (docs/harnesses.md).  So

    turn     that `message.id`
    ordinal  the byte at which the message's first line begins: a transcript only grows, so a later message has a larger
             one, a restarted bridge finds the same one, and finding it needs the file's end alone, not all of it
    batch    the `tool_use` blocks of that message, named after the message

A nested agent keeps a transcript of its own and shares the prompt of its caller, so a nested call is never taken for a
later turn of the main chain: lines of a side chain prove nothing but that a call is nested.

Everything read here was written by the harness and is not trusted.  Each function is total: what is malformed is not
there, and what is not there or not unique is no turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from attrs import frozen

from fencepost.supervisor.bridge.pieces import has_too_many_pieces

__all__ = [
    "Entry",
    "NoTurn",
    "Place",
    "begins_here",
    "completed",
    "entry_of",
    "place_of",
    "prompt_texts",
    "read_entries",
    "whole_lines",
]

_NOTHING: Mapping[str, object] = {}


class NoTurn(Enum):
    """Why a call has no turn."""

    MISSING = "no message of the main chain has this call"
    AMBIGUOUS = "several messages have this call"
    NESTED = "a nested agent made this call"


@frozen
class Place:
    """The message that made a call: its id, where it begins, and all its calls."""

    message_id: str
    offset: int
    calls: frozenset[str]

    @property
    def batch_id(self) -> str:
        """The one name all calls of the message have for their batch, however much of it each has seen yet."""
        return f"{self.message_id}-tools"


@frozen
class Entry:
    """What matters of one line; `message_id` is empty on a user's."""

    offset: int
    sidechain: bool
    message_id: str = ""
    calls: tuple[str, ...] = ()
    prompt_id: str = ""
    text: str | None = None


def read_entries(window: bytes, start: int = 0) -> list[Entry]:
    """Return the entries of the whole lines in `window`, which begins at byte `start` of the file.

    The window of a file's end begins within a line, and a writer may be in the middle of the last: both are left out.
    """
    found = (_entry(line, start + begin) for begin, line in whole_lines(window, cut=start > 0))
    return [entry for entry in found if entry is not None]


def whole_lines(window: bytes, *, cut: bool) -> Iterator[tuple[int, bytes]]:
    """Yield each whole line and where in `window` it begins; `cut`: the window may begin within one."""
    begin = window.find(b"\n") + 1 if cut else 0
    if cut and not begin:
        return
    while (end := window.find(b"\n", begin)) >= 0:
        yield begin, window[begin:end]
        begin = end + 1


def place_of(entries: Sequence[Entry], call: str) -> Place | NoTurn:
    """Return the one message of the main chain that made `call`, or why there is none."""
    homes = {entry.message_id for entry in entries if not entry.sidechain and call in entry.calls}
    if len(homes) > 1:
        return NoTurn.AMBIGUOUS
    if not homes:
        nested = any(entry.sidechain and call in entry.calls for entry in entries)
        return NoTurn.NESTED if nested else NoTurn.MISSING
    (message_id,) = homes
    lines = [entry for entry in entries if not entry.sidechain and entry.message_id == message_id]
    return Place(message_id, lines[0].offset, frozenset(call for entry in lines for call in entry.calls))


def begins_here(entries: Sequence[Entry], place: Place) -> bool:
    """Whether an entry stands before `place`, so that no line of its message was cut off with the window's begin."""
    return bool(entries) and entries[0].offset < place.offset


def completed(entries: Sequence[Entry], calls: Iterable[str]) -> Place | None:
    """Return the message whose calls are exactly `calls`; a part of them is no completed batch."""
    ended = frozenset(calls)
    for call in ended:
        place = place_of(entries, call)
        return place if isinstance(place, Place) and place.calls == ended else None
    return None


def prompt_texts(entries: Sequence[Entry], prompt_id: str) -> list[str]:
    """Return the texts the user gave under `prompt_id` in the main chain; tool results are none."""
    return [
        entry.text
        for entry in entries
        if prompt_id and entry.prompt_id == prompt_id and not entry.sidechain and entry.text is not None
    ]


# -- one line ----------------------------------------------------------------------------------------------------


def _entry(line: bytes, offset: int) -> Entry | None:
    if b'"assistant"' not in line and b'"promptId"' not in line:
        return None  # attachments and bookkeeping are most of a transcript's bytes
    if has_too_many_pieces(line):
        return None
    try:
        return entry_of(_mapping(json.loads(line)), offset)
    except (ValueError, RecursionError):
        return None


def entry_of(said: Mapping[str, object], offset: int) -> Entry | None:
    """Return what matters of a line that was parsed, or None if nothing of it does."""
    message = _mapping(said.get("message"))
    sidechain = said.get("isSidechain") is not False  # only what says that it is of the main chain may prove a turn
    match said.get("type"), message.get("role"):
        case "assistant", "assistant":
            message_id = _text(message.get("id"))
            return Entry(offset, sidechain, message_id, calls=_calls(message.get("content"))) if message_id else None
        case "user", "user":
            prompt_id, text = _text(said.get("promptId")), _prompt(message.get("content"))
            return Entry(offset, sidechain, prompt_id=prompt_id, text=text) if prompt_id else None
        case _:
            return None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else _NOTHING


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _blocks(content: object) -> list[Mapping[str, object]]:
    return [_mapping(block) for block in content] if isinstance(content, list) else []


def _calls(content: object) -> tuple[str, ...]:
    uses = (block for block in _blocks(content) if block.get("type") == "tool_use")
    return tuple(call for use in uses if (call := _text(use.get("id"))))


def _prompt(content: object) -> str | None:
    if isinstance(content, str):
        return content
    texts = [_text(block.get("text")) for block in _blocks(content) if block.get("type") == "text"]
    return "\n".join(texts) if texts else None
