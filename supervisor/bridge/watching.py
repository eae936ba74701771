"""Notices that a pane's process has ended by itself, and does what the pane wants done then.

    the process is gone ─▶ launch_failed (its incarnation is retired, what it was still told is owed again)
                              │
                           end (what it had started and left running, which would go on in files its agent knew)
                              │
              the runtime replaces a startup attempt by itself, as often as it may
                              │ else, by the pane's `restart`
              owed: an intent is owed to the agent ─▶ launch        always ─▶ launch, after a pause
                    (once it is reconciled, if that is under way)
              neither, or never ─▶ the pane stays without a process

What ended while no bridge ran is noticed when one starts, and so is what a bridge that ended itself had not come to:
a pane is wanted until it is decided that it stays without a process (`PaneSpec.wanted`).  A process that the runtime
itself is replacing is retired before it is stopped, so its end means nothing here.

The runtime's own replacement ends what is left first, too: each launch stops its predecessor.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Protocol, TypeVar

import trio
from attrs import define, field

from fencepost.supervisor import (
    ActorCrashed,
    Applied,
    CorruptRecord,
    DeliveryMode,
    Event,
    FencepostError,
    IntentState,
    LaunchBlocked,
    MailboxClosed,
    StoreFault,
    Supervisor,
)
from fencepost.supervisor.bridge.escaped import error_told
from fencepost.supervisor.bridge.panes import PaneBook, Restart
from fencepost.supervisor.bridge.telemetry.following import near_the_end, tell_events

__all__ = ["Launching", "Watcher"]

T = TypeVar("T")

log: Final = logging.getLogger("fencepost.bridge")

_OWED: Final = frozenset(
    {IntentState.DETECTED, IntentState.RECONCILING, IntentState.MATERIALIZED, IntentState.DELIVERED}
)
_PAUSE_SECONDS: Final = 1.0
_PAUSE_SECONDS_MAX: Final = 60.0
_OWED_TRIES_MAX: Final = 6
"""With the pauses between them that is half a minute: what fails longer fails for another reason than the moment."""
_SETTLED_SECONDS: Final = 60.0
"""A process that lived as long starts its pane's pauses over."""


class Launching(Protocol):
    """What is watched: who is told of starts, and waits for ends; `PaneLauncher` is one."""

    async def wait(self, incarnation_id: str) -> None:
        """Return when the incarnation's process is gone."""
        ...

    async def end(self, pane_id: str, incarnation_id: str) -> None:
        """End the incarnation's process, if it lives, and what it has started, if that does."""
        ...


@define(eq=False)
class Watcher:
    """Watches every process that was started, one task each, until it is cancelled."""

    supervisor: Supervisor
    launcher: Launching
    book: PaneBook
    start_again: Callable[[str, str | None], Awaitable[object]]
    """Starts in a pane what its book says, unless the pane was ended, or given another process than this one's."""
    leave: Callable[[str, str | None], Awaitable[object]]
    """Has a pane stay without a process, unless it was given another one than this one's."""
    _nursery: trio.Nursery | None = field(default=None, init=False)
    _early: list[tuple[str, str]] = field(factory=list[tuple[str, str]], init=False)
    _pauses: dict[str, float] = field(factory=dict[str, float], init=False)
    _watched: set[str] = field(factory=set[str], init=False)

    def watch(self, pane_id: str, incarnation_id: str) -> None:
        """Watch the process of an incarnation from now on; one that is gone already is noticed as well."""
        if self._nursery is None:
            self._early.append((pane_id, incarnation_id))
        else:
            self._nursery.start_soon(self._watch, pane_id, incarnation_id)

    async def run(self, left: Iterable[str] = ()) -> None:
        """Watch what `watch` was told of, now and later.

        `left`: wanted panes without a process, which an earlier life has left so.
        """
        async with trio.open_nursery() as self._nursery:
            for pane_id, incarnation_id in set(self._early):
                self.watch(pane_id, incarnation_id)
            for pane_id in left:
                self._nursery.start_soon(self._guarded, pane_id, partial(self._go_on, pane_id, None))
            await trio.sleep_forever()

    async def end_the_fenced(self) -> None:
        """End each process whose incarnation is retired, until the runtime closes.

        Where a successor follows, the runtime does so itself.  After the last permitted attempt none does, and what is
        left is a process whose every call is refused, in a pane that looks as if somebody worked there.
        """
        async with trio.open_nursery() as nursery:

            def tell(event: Event) -> None:
                pane_id, incarnation_id = event.data.get("pane_id"), event.data.get("incarnation_id")
                if event.kind == "incarnation.retired" and incarnation_id in self._watched:
                    nursery.start_soon(self.launcher.end, str(pane_id), str(incarnation_id))

            try:
                await tell_events(self.supervisor, await near_the_end(self.supervisor), tell, _unread)
            except MailboxClosed as closed:
                log.info("retired incarnations are not followed any more: %s", ascii(str(closed)))
            except FencepostError as error:  # its store failed; who asks next hears of it and ends the bridge
                log.error("retired incarnations are not followed any more: %s", error_told(error))  # noqa: TRY400

    async def _watch(self, pane_id: str, incarnation_id: str) -> None:
        begun = trio.current_time()
        self._watched.add(incarnation_id)
        try:
            await self.launcher.wait(incarnation_id)
        except Exception:
            log.exception("pane %r: the process of incarnation %r cannot be watched", pane_id, incarnation_id)
            return
        finally:
            self._watched.discard(incarnation_id)
        if trio.current_time() - begun >= _SETTLED_SECONDS:
            self._pauses.pop(pane_id, None)
        await self._guarded(pane_id, partial(self._ended, pane_id, incarnation_id))

    async def _guarded(self, pane_id: str, work: Callable[[], Awaitable[None]]) -> None:
        """One pane's trouble is not the others'."""
        try:
            await work()
        except LaunchBlocked as blocked:
            log.info("pane %r is not started again: %s", pane_id, ascii(str(blocked)))
        except StoreFault:
            log.exception("the store failed")  # whoever asks next hears of it and ends the bridge
        except Exception:
            log.exception("pane %r: its process ended, and it could not be started again", pane_id)

    async def _ended(self, pane_id: str, incarnation_id: str) -> None:
        pane = self.supervisor.pane(pane_id)
        try:
            replaced = await self._replaces_itself(pane_id, incarnation_id)
            answer = await _asked(lambda: pane.launch_failed(incarnation_id, "the process ended"))
        finally:  # also where the pane cannot be asked: the agent is gone, and nobody tells what it left what moved
            await self.launcher.end(pane_id, incarnation_id)
        if not isinstance(answer, Applied):
            return  # the runtime ended it, or the host
        log.info("pane %r: the process of incarnation %r ended", pane_id, incarnation_id)
        if not replaced:
            await self._go_on(pane_id, incarnation_id)

    async def _go_on(self, pane_id: str, ended: str | None) -> None:
        """Do what the pane wants done, now that the process of the incarnation `ended`, or an earlier life's, is gone.

        Durable on return: it was started again, or is not wanted any more.
        """
        spec = self.book.get(pane_id)
        if spec is None:
            return
        if not await self._wants_another(pane_id, spec.restart):
            await self.leave(pane_id, ended)
            return
        failed = 0
        while True:
            await trio.sleep(self._pause(pane_id))
            try:
                await _asked(lambda: self.start_again(pane_id, ended))
            except LaunchBlocked as blocked:
                if blocked.state is not IntentState.RECONCILING:
                    raise  # a person leads on, and not time
            except FencepostError:
                raise
            except Exception:
                failed += 1
                if spec.restart is not Restart.ALWAYS and failed >= _OWED_TRIES_MAX:
                    raise  # it stays wanted, so the next life of the bridge tries again
                log.exception("pane %r could not be started; it is tried again", pane_id)
            else:
                return

    async def _replaces_itself(self, pane_id: str, incarnation_id: str) -> bool:
        """Whether the runtime starts the successor: that of an attempt at a startup delivery."""
        return any(
            one.incarnation_id == incarnation_id and one.mode is DeliveryMode.RESTART_STARTUP and one.state in _OWED
            for one in await self.supervisor.pane(pane_id).unresolved_intents()
        )

    async def _wants_another(self, pane_id: str, restart: Restart) -> bool:
        match restart:
            case Restart.NEVER:
                return False
            case Restart.ALWAYS:
                return True
            case Restart.OWED:
                return any(one.state in _OWED for one in await self.supervisor.pane(pane_id).unresolved_intents())

    def _pause(self, pane_id: str) -> float:
        """None before the first start again, and then twice the last up to a minute."""
        pause = self._pauses.get(pane_id, 0.0)
        self._pauses[pane_id] = min(max(2 * pause, _PAUSE_SECONDS), _PAUSE_SECONDS_MAX)
        return pause


def _unread(seq: int, _damaged: CorruptRecord) -> None:
    log.error("event %d cannot be read; if it retired an incarnation, its process is not ended for that", seq)


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    """What the pane answers.  An activation that died over the question is asked no more; its successor is.

    The runtime quarantines an actor that goes on dying, so this ends.
    """
    while True:
        try:
            return await ask()
        except ActorCrashed as crash:
            log.warning("asked again: %s", ascii(str(crash)))
