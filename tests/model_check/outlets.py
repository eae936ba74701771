"""The ways a text can come to a pane, with the one way that must never be taken among them.

Law 10 says that there is no terminal input anywhere.  The shipped core has no word for it: what the core emits are the
steps of a pump and of a claim, verdicts, reports, and rows that name a mechanism.  So the worlds have the word.  Their
shells carry out whatever the core emits: `TerminalInput` types, a row leaves through the end of its mechanism, one
whose mechanism has no end in the world is typed (where else could it go), and a word that is none of the core's is a
broken law by itself.  Then it is judged, in every state, that nothing was typed.  A core that learned to type is so
told from one that did not; that the modules could not reach a terminal if they wanted to is no matter of states, and
`test_layers` has it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["MECHANISMS", "Broken", "TerminalInput", "require_nothing_typed"]

MECHANISMS: Final = frozenset({"head_seat", "fleet_seat", "harness_seat", "channel_turn", "hire", "opencode"})
"""Every way to a pane that protocol-delivery.md section 2 has, written out once more."""


class Broken(Exception):  # noqa: N818 - what a search finds
    """A law does not hold."""


class TerminalInput(NamedTuple):
    """Put a text into the pane as if somebody had typed it."""

    why: str


def require_nothing_typed(typed: frozenset[str], mechanisms: frozenset[str] = frozenset()) -> None:
    """10: nothing was typed, and what left did so through a mechanism of the protocol.  Raises `Broken`."""
    if typed:
        raise Broken(f"10: {', '.join(map(repr, sorted(typed)))} was typed into the pane")
    if not mechanisms <= MECHANISMS:
        raise Broken(f"10: something left through {', '.join(sorted(mechanisms - MECHANISMS))}")
