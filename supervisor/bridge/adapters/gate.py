"""The gate all tool calls of a pane go through: first what passed unseen, then the decision, under one lock.

The order is the point (see `hook.py`): a hook that found nobody here may have let a call pass, and a decision made
before that is known could move files under it.  The lock is held until the decision is durable and no longer, so the
first question does not wait for a reconciliation; the second one does, and needs no lock.

A pane may have run another harness before, whose lines are still there.  So a bridge has one gate for all its adapters,
and each line is told by the rule of the harness that wrote it (`retell_by`).

Whoever asks may be cut off at any moment, and what he asked is committed all the same.  His hook decides by the store
then, and must not read it before.  So the decision is made by a task of its own, and the lock is that task's.
"""

from __future__ import annotations

import contextvars
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

import trio
from attrs import define, evolve
from outcome import Error, Outcome, acapture

from fencepost.supervisor import (
    BlockGeneric,
    BlockRestart,
    Decision,
    FencepostError,
    MailboxClosed,
    Pane,
    Reason,
    ToolBoundary,
)
from fencepost.supervisor.bridge.adapters.spool import Spool, Spooled, SpoolHeld, Unseen

__all__ = ["Gate", "Retell"]

Retell: TypeAlias = Callable[[Pane, Unseen], Awaitable[bool]]
"""Tells the pane about one unseen event; False: it is not clear what passed.  Raises what the pane raises."""

_LOGGER: Final = logging.getLogger(__name__)

_NOBODY: Final = frozenset({Reason.UNKNOWN_INCARNATION, Reason.OTHER_PANE, Reason.RETIRED_INCARNATION})
"""Why a hook of a process that does not live in the pane is blocked."""

_HELD: Final = BlockGeneric(
    Reason.RECONCILING, "What ran while the supervisor was away is still being written down. Try again shortly."
)


@define(eq=False)
class _Question:
    """One call at the gate, and the locked spool that it is decided under."""

    pane: Pane
    boundary: ToolBoundary
    spooled: Spooled
    is_waited_for: bool = True


class Gate:
    """Decides tool calls; one for all adapters of a bridge.

    `folder` is what hooks note in what they let pass while the bridge was away: `hook-spool` beside the local
    listener's socket.  Without one nothing can pass unseen: hooks that keep no spool deny instead.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._spool = None if folder is None else Spool(folder)
        self._retell: dict[str, Retell] = {}
        self._taken: defaultdict[str, dict[int, Unseen]] = defaultdict(dict)
        """What each pane was told of its spool, by its place in it: a caller may leave before all of it is told, and
        the next one goes on from there."""

    def retell_by(self, harness: str, retell: Retell) -> None:
        """From now on what hooks of `harness` did unseen is told by `retell`."""
        self._retell[harness] = retell

    async def forget(self, pane_id: str) -> None:
        """See `Forgets`."""
        self._taken.pop(pane_id, None)
        if self._spool is not None:
            await self._spool.forget(pane_id)

    async def pre_tool_use(self, pane: Pane, boundary: ToolBoundary, wait_seconds: float) -> Decision:
        """Ask the pane about `boundary`, after it was told of each unseen event.

        An event that cannot be told, also because nobody knows its harness, makes every batch not yet admitted a
        "maybe" (contract I-4), until a restart.  A call that met a barrier is not told: see `_was_denied`.
        Raises what the pane raises, and OSError for a spool that is not private.
        """
        if self._spool is None:
            return await pane.pre_tool_use(boundary, wait_seconds)
        end = trio.current_time() + wait_seconds
        try:
            spooled = await self._spool.take(pane.pane_id)
        except SpoolHeld:
            _LOGGER.warning(
                "pane %r: a process holds its spool; a call of batch %r is blocked", pane.pane_id, boundary.batch_id
            )
            return _HELD
        decision = await self._decided(_Question(pane, boundary, spooled))
        left = end - trio.current_time()
        if isinstance(decision, BlockGeneric) and decision.reason is Reason.RECONCILING and left > 0:
            return await pane.pre_tool_use(boundary, left)
        return decision

    async def _decided(self, question: _Question) -> Decision:
        """What a task of its own decides.  Cancelling the caller leaves it to that."""
        found: list[Outcome[Decision]] = []
        ended = trio.Event()

        async def decide() -> None:
            outcome = await acapture(self._decide_locked, question)
            if isinstance(outcome, Error) and not question.is_waited_for:
                _LOGGER.warning("pane %r: nobody waits for this: %s", question.pane.pane_id, ascii(outcome.error)[:300])
            found.append(outcome)
            ended.set()

        trio.lowlevel.spawn_system_task(decide, context=contextvars.copy_context())
        try:
            await ended.wait()
        except trio.Cancelled:
            question.is_waited_for = False
            raise
        return found[0].unwrap()

    async def _decide_locked(self, question: _Question) -> Decision:
        """Decide, and let go of the spool when what was asked of the store has become of it what will."""
        has_landed = False
        try:
            decision = await self._decide(question)
            has_landed = True
        except Exception:
            has_landed = await _has_landed(question.pane)
            raise
        finally:
            question.spooled.release(unlock=has_landed)
        return decision

    async def _decide(self, question: _Question) -> Decision:
        pane, boundary, spooled = question.pane, question.boundary, question.spooled
        taken, lost = self._taken[pane.pane_id], set[str]()
        for place, unseen in enumerate(spooled.unseen):
            if not question.is_waited_for:
                return _HELD
            if taken.get(place) == unseen or await _was_denied(pane, unseen):
                continue
            retell = self._retell.get(unseen.harness)
            if retell is not None and await retell(pane, unseen):
                taken[place] = unseen
            else:
                lost.add(unseen.incarnation_id)
        unclear = spooled.unclear or boundary.incarnation_id in lost
        if unclear:
            boundary = evolve(boundary, passed_unseen="maybe")
        if not question.is_waited_for:  # nobody would hear of it, and it might bind an intent to a batch that is over
            return _HELD
        decision = await pane.pre_tool_use(boundary, wait_seconds=0)
        # What is lost of another process is forgotten only with a process that lives: then the other one does not.
        is_nobody = isinstance(decision, BlockGeneric) and decision.reason in _NOBODY
        if isinstance(decision, BlockRestart) or not (unclear or (lost and is_nobody)):
            spooled.clear()
            self._taken.pop(pane.pane_id, None)  # it may have been forgotten meanwhile
        return decision


async def _has_landed(pane: Pane) -> bool:
    """Whether nothing that was asked of the store can still become durable: what is read now is read behind it.

    A runtime that is closed answers nobody, and its store may still be finishing what it was given.
    """
    try:
        await pane.unresolved_intents()
    except MailboxClosed:
        return False
    except FencepostError:
        return True
    return True


async def _was_denied(pane: Pane, unseen: Unseen) -> bool:
    """Whether this is a call that its hook denied because of a barrier, which still stands: it did not pass.

    A hook takes the line of such a call back; one that was ended on the way has left it.  An intent that is bound to
    this process was bound under the lock, behind all that had passed.  Of one that is only detected that is not so.

    Asked about it, the pane would take its answer for one that an agent is given.  Nobody reads this one: a payload in
    it would count as offered, and an agent that was never told would be taken for one that was.
    """
    if unseen.event.get("hook_event_name") != "PreToolUse":
        return False
    return any(one.incarnation_id == unseen.incarnation_id for one in await pane.unresolved_intents())
