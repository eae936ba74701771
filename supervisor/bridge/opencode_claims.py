"""OpenCode's claim, on the launcher's side: which session may be started while a delivery to a pane is unresolved.

A message that left for an OpenCode session and was not heard of again is that pane's claim: the unresolved row of the
mechanism `opencode`, which outlives the process, the launcher and the bridge.  The native history of that very session
alone can prove it.  So while it is there, no other session is begun or gone on with in the pane, as it would look like
the one that was written to, and the report *ready* is refused.

    who starts       the session named       a claim on session S
    ───────────────────────────────────────────────────────────────
    a person         S                       S is resumed
    a person         another, or none        refused
    the bridge       any, or none            S is resumed: nobody is there to be asked
    anybody          any                     refused where the claim knows no session that could be resumed

A claim is a fence and no journal: nothing here sends, repeats or resolves anything.  `session_to_start` and `report_of`
are pure.

Source: protocol-delivery.md section 3, the paragraph on OpenCode; contract DA-20.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from fencepost.supervisor import Supervisor
from fencepost.supervisor.bridge.escaped import escaped
from fencepost.supervisor.bridge.launchers import LaunchError
from fencepost.supervisor.overview import unresolved_delivery

__all__ = ["HARNESS", "ClaimOpen", "OpenClaim", "open_claim", "report_of", "session_to_start"]

HARNESS: Final = "opencode"
MECHANISM: Final = "opencode"
_ID_MAX: Final = 256


@frozen
class OpenClaim:
    """An unresolved delivery to an OpenCode session; `session_id` as the native control told it, so untrusted."""

    pane_id: str
    delivery_id: str
    session_id: str | None


class ClaimOpen(LaunchError):  # noqa: N818 - what it is
    """A start is refused for an open claim; nothing was begun.  Attribute: `claim`."""

    def __init__(self, claim: OpenClaim, what_may_be_done: str) -> None:
        super().__init__(
            f"pane {claim.pane_id!r} waits for the delivery {claim.delivery_id} to the OpenCode session "
            f"{_shown(claim.session_id)}, which is unresolved: {what_may_be_done}"
        )
        self.claim = claim


def session_to_start(harness: str, session_id: str | None, claim: OpenClaim | None, *, by_a_person: bool) -> str | None:
    """The session that a start goes on with, where `session_id` is the one that it names; None: a new one.

    `by_a_person`: somebody asked for this start, and can be refused.  Raises `ClaimOpen`.
    """
    if harness != HARNESS or claim is None:
        return session_id
    if not _can_be_resumed(claim.session_id):
        raise ClaimOpen(claim, f"no command line can resume that session; {_SETTLE}")
    if by_a_person and session_id != claim.session_id:
        named = "a new session" if session_id is None else f"session {_shown(session_id)}"
        raise ClaimOpen(claim, f"{named} is not started here; resume that one, or {_SETTLE}")
    return claim.session_id


_SETTLE: Final = "settle the delivery if nobody will ever know (fencepost settle)"


def report_of(harness: str, *, lives: bool, claim: OpenClaim | None) -> str | None:
    """What is reported of a pane in OpenCode's words (section 2.5): `ready` only where no claim is open.

    `lives`: a process runs there.  None for any other harness.
    """
    if harness != HARNESS:
        return None
    if claim is not None:
        return "uncertain"
    return "ready" if lives else "unbound"


def open_claim(supervisor: Supervisor, pane_id: str) -> OpenClaim | None:
    """The claim that is open in the pane.  Blocks for one query.

    Raises `CorruptRecord` where a row of the pane cannot be read, which may be one, and `StoreFault`.
    """
    with supervisor.reader() as reader:
        found = unresolved_delivery(reader, pane_id, MECHANISM)
    return None if found is None else OpenClaim(pane_id, found.delivery_id, found.session_id)


def _can_be_resumed(session_id: str | None) -> bool:
    return (
        session_id is not None
        and 1 <= len(session_id) <= _ID_MAX
        and session_id.isascii()
        and session_id.isprintable()
        and not session_id.startswith("-")
    )


def _shown(session_id: str | None) -> str:
    return "that it has not named" if session_id is None else f'"{escaped(session_id[:_ID_MAX])}"'
