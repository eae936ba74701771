"""What an agent had been asked and had answered when it made a tool call, as its transcript proves it.  Pure.

Theory of operation
===================

An agent may answer what it is told at its start in prose.  Its first call then follows from a later prompt, under
another prompt id, and the prompt id alone would be no echo.  But each line of a transcript names the one before it, its
parent, and the lines above a message up to where there is no parent are the conversation that message was made in:

    tagged prompt <- "I see" <- next prompt <- attachment <- the message that makes the call

So the call has the echo if the tagged prompt is above it, and a message of the model's between them.  A conversation
that was cleared, compacted or rewound to before the tag has no such line above it: that agent is told again.  (The hook
of a turn's end would not show a rewind, and would be lost with the bridge that heard it.)  What is broken off before
the model said anything is told again as well.

Everything read here was written by the harness and is not trusted, as in `claude_turns`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from attrs import frozen

from fencepost.supervisor.bridge.adapters.claude_turns import Entry, entry_of, whole_lines
from fencepost.supervisor.bridge.pieces import has_too_many_pieces

__all__ = ["answered_above"]

_NOT_THE_MODEL = "<synthetic>"
"""What Claude Code writes as the model of a message that it made up itself, about an error say."""


@frozen
class _Link:
    """One line of the chain; `entry` is None where it is neither a prompt nor a message."""

    parent: str
    entry: Entry | None
    by_the_model: bool


def answered_above(window: bytes, call: str, *, cut: bool = False) -> list[Entry]:
    """Return the prompts of the conversation that made `call` which the model has said something since, latest first.

    `cut`: the window may begin within a line.  A call of several messages, or of a nested agent, has none.
    """
    links = _links(window, cut=cut)
    homes = {link.entry.message_id: link for link in links.values() if link.entry and _made(link.entry, call)}
    if len(homes) != 1:
        return []
    ((message_id, here),) = homes.items()
    prompts: list[Entry] = []
    answered, seen = False, set[str]()
    while here.parent not in seen and (above := links.get(here.parent)) is not None:
        seen.add(here.parent)
        here, entry = above, above.entry
        if entry is None:
            continue
        if entry.sidechain:
            break
        answered = answered or (here.by_the_model and entry.message_id != message_id)
        if answered and entry.text is not None:
            prompts.append(entry)
    return prompts


def _made(entry: Entry, call: str) -> bool:
    return not entry.sidechain and call in entry.calls


def _links(window: bytes, *, cut: bool) -> dict[str, _Link]:
    """The lines by their ids; one whose id is another's as well is none, because nobody can tell which is meant."""
    links: dict[str, _Link] = {}
    twice = set[str]()
    for begin, line in whole_lines(window, cut=cut):
        said = _parsed(line)
        name, parent = said.get("uuid"), said.get("parentUuid")
        if not isinstance(name, str):
            continue
        if name in links:
            twice.add(name)
        message = said.get("message")
        model = message.get("model") if isinstance(message, dict) else None
        entry = entry_of(said, begin)
        by_the_model = entry is not None and bool(entry.message_id) and model != _NOT_THE_MODEL
        links[name] = _Link(parent if isinstance(parent, str) else "", entry, by_the_model)
    return {name: link for name, link in links.items() if name not in twice}


def _parsed(line: bytes) -> Mapping[str, object]:
    if b'"parentUuid"' not in line or has_too_many_pieces(line):
        return {}
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
