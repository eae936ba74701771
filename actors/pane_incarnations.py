"""A pane's incarnations, from launch to retirement: the shell around `incarnation_state`.

Without a Launcher a launch is the host's word that the old process is gone, and one commit.  With one, replacing a
process takes as long as stopping one does; that runs in a child task, which speaks to the pane by messages
(`relaunch`).  A launch that needs the head's payload first is parked like a tool call, until the tools of the last
process have ended, so that the reconciliation may begin, and then until that has ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from fencepost.actors.calls import LaunchFailed, LaunchHarness, RetireIncarnation, StartupReady, StopFailed
from fencepost.actors.decision import Decision
from fencepost.actors.incarnation_state import (
    LaunchRequest,
    begin_unattended,
    check_launch,
    decide_handshake,
    decide_launch,
    decide_launch_failed,
    decide_retire,
    decide_stop_failed,
    give_up,
    needs_payload_first,
    unproved,
    withdraw,
)
from fencepost.actors.pane_state import stop_failure
from fencepost.actors.relaunch import Relauncher
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import LaunchBlocked
from fencepost.mailbox.records import IntentRecord, IntentState

if TYPE_CHECKING:
    from fencepost.actors.pane_actor import PaneActor

__all__ = ["PaneIncarnations"]


class PaneIncarnations:
    """What one activation of a pane does about its processes."""

    __slots__ = ("_pane", "_relauncher")

    def __init__(self, pane: PaneActor) -> None:
        self._pane = pane
        launcher = pane.system.launcher
        self._relauncher = None if launcher is None else Relauncher(pane, launcher)

    @property
    def _now(self) -> int:
        return self._pane.system.clock.now_ns()

    # -- life --

    async def recover(self) -> None:
        """With a Launcher, a startup nobody can vouch for is given up, and a wished-for successor is started (I-16)."""
        pane = self._pane
        if self._relauncher is None:
            return
        if unproved(pane.state):
            reason = "unproved when the pane was recovered"
            given_up = give_up(pane.state, reason, pane.system.limits, self._now, pane.mint, replace=True)
            await pane.commit("recover", given_up)
        else:
            self._relauncher.resume()

    def resume_relaunching(self) -> None:
        """Go on with a replacement that had to wait, or that an earlier activation had begun."""
        if self._relauncher is not None:
            self._relauncher.resume()

    @property
    def owes(self) -> bool:
        """With a Launcher, an unproved startup keeps a pane awake, and so does a process that would not stop.

        Whoever wakes goes on with its replacement, and a mere question must not try to stop it again.
        """
        state = self._pane.state
        return self._relauncher is not None and (stop_failure(state.latest) is not None or unproved(state))

    @property
    def held(self) -> list[Envelope]:
        """Host launches under way."""
        return [] if self._relauncher is None else self._relauncher.held

    # -- launches --

    async def launch(self, envelope: Envelope, message: LaunchHarness) -> None:
        """Serve `LaunchHarness`."""
        pane = self._pane
        check_launch(pane.state, pane.system.limits)
        if self._relauncher is not None and not message.started_by_runtime:
            self._relauncher.launch_for_host(envelope, message.request)
        elif needs_payload_first(pane.state, message.request.capabilities):
            await self._begin_unattended("launch")
            assert pane.state.head is not None
            pane.waiting.park(envelope, pane.state.head.intent_id, math.inf)
        else:
            await self._launch_now(envelope, message.request)

    async def withdraw(self, envelope: Envelope) -> None:
        """Serve `Withdraw`."""
        pane = self._pane
        check_launch(pane.state, pane.system.limits)
        await pane.decide(envelope, withdraw(pane.state, self._now))

    async def stop_failed(self, envelope: Envelope, message: StopFailed) -> None:
        """Serve `StopFailed`."""
        pane = self._pane
        await pane.decide(envelope, decide_stop_failed(pane.state, message.incarnation_id, message.why, self._now))

    async def prepare_payload(self, envelope: Envelope) -> None:
        """Serve `PreparePayload`."""
        pane = self._pane
        head = pane.state.head
        if head is not None and head.state is IntentState.DETECTED:
            await self._begin_unattended("prepare_payload")
        head = pane.state.head
        reconciling = head is not None and head.state is IntentState.RECONCILING and not pane.left_alone
        if head is not None and (reconciling or head.state is IntentState.DETECTED):
            pane.waiting.park(envelope, head.intent_id, math.inf)
            return
        check_launch(pane.state, pane.system.limits)
        pane.answer(envelope, None)

    async def decide_parked(self, envelope: Envelope, *, patient: bool) -> None:
        """Decide again a launch, or the launching task, that waits for the head's payload."""
        pane = self._pane
        head = pane.state.head
        if head is not None and head.state is IntentState.DETECTED:
            await self._go_on_waiting(envelope, head, patient=patient)
            return
        if head is not None and head.state is IntentState.RECONCILING and patient:
            return
        check_launch(pane.state, pane.system.limits)
        if isinstance(envelope.message, LaunchHarness):
            await self._launch_now(envelope, envelope.message.request)
        else:
            pane.answer(envelope, None)

    async def _go_on_waiting(self, envelope: Envelope, head: IntentRecord, *, patient: bool) -> None:
        """Decide again a launch that waits for tools to end, before the head may be reconciled."""
        if self._pane.state.live is not None:
            raise LaunchBlocked(head.intent_id, head.state, "another process was launched meanwhile")
        if not patient:
            why = "it waits for the end of its last process's tools, which are held up"
            raise LaunchBlocked(head.intent_id, head.state, why)
        await self._begin_unattended(envelope.message.CALL)

    async def _begin_unattended(self, transition: str) -> None:
        """Begin reconciling the head with no process alive; who waits for that must not wait for ever.

        While tools of ours may still run, files must not change: then the live process is retired, which ends them,
        and who waits is decided again once they have.
        """
        pane = self._pane
        head = pane.state.head
        if head is not None and pane.system.reconciler is None:
            why = "it must be reconciled first, and this runtime has no Reconciler"
            raise LaunchBlocked(head.intent_id, head.state, why)
        running = await pane.batches.running()
        held_up = next(filter(pane.system.in_quarantine, running), None)
        if not running:
            await pane.commit(transition, begin_unattended(pane.state, self._now))
            return
        pane.batches.watch()
        if head is not None and held_up is not None:
            raise LaunchBlocked(head.intent_id, head.state, f"{held_up} must end first, and it is in quarantine")
        await pane.commit(transition, withdraw(pane.state, self._now))

    async def _launch_now(self, envelope: Envelope, request: LaunchRequest) -> None:
        pane = self._pane
        await pane.decide(envelope, decide_launch(pane.state, request, pane.system.limits, self._now, pane.mint))

    # -- what becomes of a launched process --

    async def startup_ready(self, envelope: Envelope, message: StartupReady) -> None:
        """Serve `StartupReady`."""
        pane = self._pane
        speaker = await pane.memory.speaker(message.incarnation_id)
        intent = None
        if speaker is not None and speaker.startup_intent_id is not None:
            intent = await pane.memory.intent(speaker.startup_intent_id)
        decision = decide_handshake(
            pane.state,
            speaker,
            intent,
            incarnation_id=message.incarnation_id,
            startup_delivery_id=message.startup_delivery_id,
            payload_sha256=message.payload_sha256,
            now=self._now,
        )
        await pane.decide(envelope, decision)

    async def launch_failed(self, envelope: Envelope, message: LaunchFailed) -> None:
        """Serve `LaunchFailed`."""
        await self._ended(envelope, decide_launch_failed, message.incarnation_id, message.reason)

    async def retire(self, envelope: Envelope, message: RetireIncarnation) -> None:
        """Serve `RetireIncarnation`."""
        await self._ended(envelope, decide_retire, message.incarnation_id, message.reason)

    async def _ended(
        self, envelope: Envelope, decide: Callable[..., Decision], incarnation_id: str, reason: str
    ) -> None:
        pane = self._pane
        decision = decide(
            pane.state,
            await pane.memory.speaker(incarnation_id),
            incarnation_id,
            reason,
            self._now,
            limits=pane.system.limits,
            mint=pane.mint,
        )
        await pane.decide(envelope, decision)
