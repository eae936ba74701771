"""Adapters: one harness each, between its hooks' words and the pane's.

A hook client reads what its harness hands it, sends it here as it came, and prints what it is told to print.  The
adapter knows what the harness can prove, what a tool call's turn and batch are, and how a decision must look so that
the harness understands it; the protocol itself it leaves to the pane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from attrs import field, frozen

if TYPE_CHECKING:
    from fencepost.supervisor import Capabilities, Decision, Pane, ToolBoundary

__all__ = ["Adapter", "Decided", "Delivered", "Forgets", "HookAnswer"]


@frozen
class Delivered:
    """What the hook client must report once it has flushed its output: `Pane.mark_delivered`'s arguments."""

    intent_id: str
    incarnation_id: str
    turn_id: str
    batch_id: str


@frozen
class Decided:
    """What the pane decided, and about which call; for whoever watches."""

    boundary: ToolBoundary
    decision: Decision


@frozen
class HookAnswer:
    """What a hook client does: print these bytes, leave with this code, then report the delivery, if there is one."""

    stdout: bytes = b""
    exit_code: int = 0
    delivered: Delivered | None = None
    decided: Decided | None = field(default=None, eq=False, repr=False)
    """None where the event was no question; the client is not told."""


class Adapter(Protocol):
    """One harness, at the versions it was proved on."""

    @property
    def harness(self) -> str:
        """The harness name that launches carry."""
        ...

    def capabilities(self, version: str | None) -> Capabilities:
        """What this version of the harness can prove; an unknown one can prove nothing."""
        ...

    async def on_hook(
        self, pane: Pane, incarnation_id: str, event: Mapping[str, object], wait_seconds: float
    ) -> HookAnswer:
        """Decide one hook event of the process `incarnation_id` in `pane`, within `wait_seconds`.

        `event` is untrusted JSON as the harness handed it to its hook.  Raises ValueError for one that is none of the
        harness's, and whatever the pane raises.
        """
        ...


@runtime_checkable
class Forgets(Protocol):
    """What an adapter that keeps anything of a pane between two hooks is, too."""

    async def forget(self, pane_id: str) -> None:
        """Keep nothing of the pane any more, in memory and on the disk: it has no process, and nothing is owed to it.

        Raises OSError.
        """
        ...
