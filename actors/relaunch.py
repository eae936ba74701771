"""Replacing a pane's process through the bridge's Launcher (contract I-11).

Stopping a process takes as long as it takes, so this runs in child tasks of the pane's actor and speaks to it by
messages.  The order is fixed, each step committed before the next:

    retire      fence the live incarnation, with the wish for a successor
    stop        the Launcher says that the process is provably gone; if it cannot, that is written down, the pane is
                conflicted, and nothing is started until something asks for its successor again: a launch, `resolve`,
                `rearm`, the revival of what held it up, or the pane's next life
    reconcile   if there is a pending intent without a payload; no process is alive to be surprised, and none of its
                tool batches that run here is open any more
    bind        a fresh incarnation, with a fresh one-use startup delivery id where there is a payload
    start       the Launcher starts the process; an error counts as a failed launch

The wish (`IncarnationRecord.relaunch`) is durable until its successor is bound, so whoever comes after a death before
that goes on from the top; a Launcher must not mind being told to stop a process that is long gone.  After a death
between bind and start, a bound successor is an unproved startup and is given up; a plain one is simply live, and only
the host can tell that its process was never started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from fencepost.actors.calls import LaunchFailed, LaunchHarness, PreparePayload, StopFailed, Withdraw
from fencepost.actors.incarnation_state import LaunchRequest, needs_payload_first
from fencepost.actors.messages import Capabilities, IncarnationView, Launch, Launcher
from fencepost.mailbox.envelope import Envelope
from fencepost.mailbox.errors import ActorQuarantined, LaunchBlocked
from fencepost.mailbox.records import IncarnationRecord
from fencepost.mailbox.text import told

if TYPE_CHECKING:
    from fencepost.actors.pane_actor import PaneActor

__all__ = ["Relauncher"]


class _StartFailed(Exception):  # noqa: N818 - never leaves this module
    """The Launcher could not start the process; the failed launch has been recorded.  `__cause__` is its error."""


class Relauncher:
    """What one activation of a pane does with the Launcher; one replacement at a time."""

    def __init__(self, pane: PaneActor, launcher: Launcher) -> None:
        self._pane = pane
        self._launcher = launcher
        self._one_at_a_time = trio.Lock()
        self._replacing = False
        self.held: list[Envelope] = []
        """Host launches under way."""

    # -- a launch the host asked for --

    def launch_for_host(self, envelope: Envelope, request: LaunchRequest) -> None:
        """Launch in the background; the envelope is answered once the process was started."""
        self.held.append(envelope)
        self._pane.spawn(self._launch_for_host, envelope, request)

    async def _launch_for_host(self, envelope: Envelope, request: LaunchRequest) -> None:
        try:
            async with self._one_at_a_time:
                unattended = needs_payload_first(self._pane.state, request.capabilities)
                envelope.reply.answer(await self._launch(request, unattended=unattended))
        except _StartFailed as failed:
            envelope.reply.fail(failed.__cause__ or failed)
        except LaunchBlocked as blocked:
            envelope.reply.fail(blocked)
        except ActorQuarantined as left_alone:
            envelope.reply.fail(left_alone)
            self.resume()  # the old process is fenced: its successor starts when the intent has been revived
        # Anything else is the activation's death: the next one finds an unproved startup and gives it up.
        self.held.remove(envelope)

    # -- a successor the runtime wishes for --

    @property
    def _wished_for(self) -> bool:
        latest = self._pane.state.latest
        return latest is not None and not latest.live and latest.relaunch

    def resume(self) -> None:
        """Start the wished-for successor, if there is such a wish and nobody is at it."""
        if self._wished_for and not self._replacing:
            self._replacing = True
            self._pane.spawn(self._replace)

    async def _replace(self) -> None:
        """Start successors, with the harness and session of the predecessor, until one starts or none may."""
        try:
            while self._wished_for:
                try:
                    await self._try_once()
                except ActorQuarantined as left_alone:
                    await self._pane.system.until_revived(left_alone.address)
        except LaunchBlocked:
            return  # a human, or the end of a reconciliation, leads on
        finally:
            self._replacing = False

    async def _try_once(self) -> None:
        async with self._one_at_a_time:
            if self._wished_for:
                await self._launch_successor()

    async def _launch_successor(self) -> None:
        latest = self._pane.state.latest
        assert latest is not None
        capabilities = Capabilities(soft_batches=latest.soft_batches, turn_order=latest.turn_order)
        request = LaunchRequest(harness=latest.harness, session_id=latest.session_id, capabilities=capabilities)
        try:
            await self._launch(request, unattended=True)
        except _StartFailed:
            return  # given up as a failed launch: a bound one wished for the next attempt or exhausted the intent

    # -- the steps --

    async def _launch(self, request: LaunchRequest, *, unattended: bool) -> Launch:
        """Retire, stop, reconcile, bind, start; see the module."""
        pane = self._pane
        old = pane.state.latest
        if pane.state.live is not None:
            await pane.system.ask(pane.address, Withdraw())
        if old is not None:
            await self._stop(old)
        if unattended:
            await pane.system.ask(pane.address, PreparePayload())
        launch = await pane.system.ask(pane.address, LaunchHarness(request, started_by_runtime=True))
        assert isinstance(launch, Launch)
        try:
            await pane.system.callback(self._launcher.start, launch)
        except Exception as error:
            reason = f"start failed: {told(error)}"
            await pane.system.ask(pane.address, LaunchFailed(launch.incarnation_id, reason))
            raise _StartFailed(reason) from error
        return launch

    async def _stop(self, old: IncarnationRecord) -> None:
        """Wait until the old process is provably gone; if that cannot be had, nothing may be started."""
        latest = self._pane.state.latest
        view = IncarnationView(
            incarnation_id=old.incarnation_id,
            pane_id=old.pane_id,
            epoch=old.epoch,
            harness=old.harness,
            session_id=old.session_id,
            launched_at=old.launched_at,
            retired_at=old.retired_at if latest is None else latest.retired_at,
        )
        try:
            await self._pane.system.callback(self._launcher.stop, view)
        except Exception as error:
            failed = StopFailed(old.incarnation_id, told(error))
            await self._pane.system.ask(self._pane.address, failed)
            head = self._pane.state.head
            why = f"the old process of incarnation {old.incarnation_id} could not be stopped: {told(error)}"
            intent_id, state = ("", "conflicted") if head is None else (head.intent_id, head.state)
            raise LaunchBlocked(intent_id, state, why) from error
