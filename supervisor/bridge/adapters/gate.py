"""The gate all tool calls of a pane go through: first what passed unseen, then the decision, under one lock.

The order is the point (see `hook.py`): a hook that found nobody here may have let a call pass, and a decision made
before that is known could move files under it.  The lock is held until the decision is durable and no longer, so the
first question does not wait for a reconciliation; the second one does, and needs no lock.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import trio
from attrs import evolve

from fencepost.supervisor import BlockGeneric, BlockRestart, Decision, IntentState, Pane, Reason, ToolBoundary
from fencepost.supervisor.bridge.adapters.spool import Spool, Spooled, SpoolHeld, Unseen

__all__ = ["Gate"]

_LOGGER: Final = logging.getLogger(__name__)

_NO_BARRIER: Final = frozenset({IntentState.DETECTED, IntentState.ACKNOWLEDGED, IntentState.SUPERSEDED})
"""As the hook program reads the store (`hook._BARRIERS`)."""

_NOBODY: Final = frozenset({Reason.UNKNOWN_INCARNATION, Reason.OTHER_PANE, Reason.RETIRED_INCARNATION})
"""Why a hook of a process that does not live in the pane is blocked."""

_HELD: Final = BlockGeneric(
    Reason.RECONCILING, "What ran while the supervisor was away is still being written down. Try again shortly."
)


class Gate:
    """Decides tool calls.  Without a `folder` nothing can pass unseen: hooks that keep no spool deny instead."""

    def __init__(self, folder: Path | None) -> None:
        self._spool = None if folder is None else Spool(folder)
        self._taken: defaultdict[str, dict[int, Unseen]] = defaultdict(dict)
        """What each pane was told of its spool, by its place in it: a caller may leave before all of it is told, and
        the next one goes on from there."""

    async def forget(self, pane_id: str) -> None:
        """See `Forgets`."""
        self._taken.pop(pane_id, None)
        if self._spool is not None:
            await self._spool.forget(pane_id)

    async def pre_tool_use(
        self,
        pane: Pane,
        boundary: ToolBoundary,
        wait_seconds: float,
        retell: Callable[[Pane, Unseen], Awaitable[bool]],
    ) -> Decision:
        """Ask the pane about `boundary`, after `retell` told it of each unseen event; False from it means: not clear.

        An event that cannot be told makes every batch not yet admitted a "maybe" (contract I-4), until a restart.  A
        call that met a barrier is not told: see `_was_denied`.
        Raises what the pane raises, and OSError for a spool that is not private.
        """
        if self._spool is None:
            return await pane.pre_tool_use(boundary, wait_seconds)
        end = trio.current_time() + wait_seconds
        try:
            async with self._spool.held(pane.pane_id) as spooled:
                decision = await self._decide(pane, boundary, spooled, retell)
        except SpoolHeld:
            _LOGGER.warning(
                "pane %r: a process holds its spool; a call of batch %r is blocked", pane.pane_id, boundary.batch_id
            )
            return _HELD
        left = end - trio.current_time()
        if isinstance(decision, BlockGeneric) and decision.reason is Reason.RECONCILING and left > 0:
            return await pane.pre_tool_use(boundary, left)
        return decision

    async def _decide(
        self,
        pane: Pane,
        boundary: ToolBoundary,
        spooled: Spooled,
        retell: Callable[[Pane, Unseen], Awaitable[bool]],
    ) -> Decision:
        taken, lost = self._taken[pane.pane_id], set[str]()
        for place, unseen in enumerate(spooled.unseen):
            if taken.get(place) == unseen or await _was_denied(pane, unseen):
                continue
            if await retell(pane, unseen):
                taken[place] = unseen
            else:
                lost.add(unseen.incarnation_id)
        unclear = spooled.unclear or boundary.incarnation_id in lost
        if unclear:
            boundary = evolve(boundary, passed_unseen="maybe")
        decision = await pane.pre_tool_use(boundary, wait_seconds=0)
        # What is lost of another process is forgotten only with a process that lives: then the other one does not.
        is_nobody = isinstance(decision, BlockGeneric) and decision.reason in _NOBODY
        if isinstance(decision, BlockRestart) or not (unclear or (lost and is_nobody)):
            spooled.clear()
            del self._taken[pane.pane_id]
        return decision


async def _was_denied(pane: Pane, unseen: Unseen) -> bool:
    """Whether this is a call that its hook denied because of a barrier, which still stands: it did not pass.

    Asked about it, the pane would take its answer for one that an agent is given.  Nobody reads this one: a payload in
    it would count as offered, and an agent that was never told would be taken for one that was.
    """
    if unseen.event.get("hook_event_name") != "PreToolUse":
        return False
    return any(
        one.state not in _NO_BARRIER and one.incarnation_id == unseen.incarnation_id for one in await pane.intents()
    )
