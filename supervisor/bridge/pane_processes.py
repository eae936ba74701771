"""What an operator does with a pane's process (start, end, look), and what the process's hooks tell of it."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio
from attrs import define, evolve, field

from fencepost.supervisor import Answer, Applied, FencepostError, IncarnationView, Launch, LaunchBlocked, Supervisor
from fencepost.supervisor.bridge.adapters import Adapter
from fencepost.supervisor.bridge.launchers import DamagedNote, LaunchError
from fencepost.supervisor.bridge.launchers.commands import HARNESSES, check_options, check_prompt
from fencepost.supervisor.bridge.launching import PaneLauncher
from fencepost.supervisor.bridge.opencode_claims import HARNESS as CLAIMING, OpenClaim, open_claim, session_to_start
from fencepost.supervisor.bridge.panes import Channel, PaneBook, PaneSpec, Restart, Terminal
from fencepost.supervisor.bridge.processes import StillRunning
from fencepost.supervisor.bridge.starting import version_of

__all__ = ["Occupied", "PaneProcesses"]

log: Final = logging.getLogger("fencepost.bridge")


_ENDED: Final = "ended by the operator"


class Occupied(Exception):  # noqa: N818 - what it is
    """A process lives in the pane; the message says which."""


@define(eq=False)
class PaneProcesses:
    """The processes of one bridge's panes; runs on trio.

    What an operator and the watcher want of a pane is done one after another, each with what the one before left.
    """

    supervisor: Supervisor
    launcher: PaneLauncher
    book: PaneBook
    adapters: Mapping[str, Adapter]
    settle_seconds: float = 0.0
    """How long a program in a terminal must live for its start to count as one."""
    _current: dict[str, str] = field(factory=dict[str, str], init=False)
    """The incarnation whose process each pane has, or had last, as far as this life knows."""
    _leaving: set[str] = field(factory=set[str], init=False)
    """Panes that are about to be given another program, so that the present one is not believed any more."""
    _locks: dict[str, trio.Lock] = field(factory=dict[str, trio.Lock], init=False)
    _learning: defaultdict[str, trio.Lock] = field(factory=lambda: defaultdict(trio.Lock), init=False)

    def started(self, pane_id: str, incarnation_id: str) -> None:
        """The process of this incarnation is the pane's from now on."""
        self._current[pane_id] = incarnation_id
        self._leaving.discard(pane_id)

    async def run(self, pane_id: str, spec: PaneSpec, *, replace: bool = False) -> Launch:
        """Start what `spec` says in the pane; from now on it is what runs there.  Durable on return, and started.

        A harness that lets a conversation be named gets a new one, unless `spec` names one.

        Raises `Occupied` where a process lives in the pane and may not be replaced; ValueError for a harness nobody
        adapts, for options that a start adds itself, for a prompt that cannot be given, and for a start without a
        terminal that has nothing to say; `LaunchError` if it could not be started, among them `ClaimOpen` for another
        session than an unresolved delivery went to; OSError, `DamagedNote`, `CorruptRecord`, and `LaunchBlocked` where
        the pane may have no process.
        """
        self._check(spec)
        async with self._lock(pane_id):
            await self._check_free(pane_id, replace=replace)
            spec = await self._claimed(pane_id, spec, by_a_person=True)
            if spec.session_id is None and HARNESSES[spec.harness].names_sessions:
                spec = evolve(spec, session_id=str(uuid.uuid4()))
            version = await _version(spec)  # what cannot even tell its version changes nothing
            self._leaving.add(pane_id)
            try:
                return await self._settled(spec, await self._start(pane_id, spec, version))
            except LaunchBlocked:
                if self.book.get(pane_id) is None:
                    # It was not known where the pane works; the operator has said it, and what may be started there
                    # once something may be.
                    self.book.put(pane_id, evolve(spec, version=version, wanted=True, prompt=None))
                raise
            except Exception:
                await self._not_started(pane_id)
                raise
            finally:
                self._leaving.discard(pane_id)

    def _check(self, spec: PaneSpec) -> None:
        if spec.harness not in HARNESSES or spec.harness not in self.adapters:
            raise ValueError(f"no adapter for harness {spec.harness!r:.100}; there are: {', '.join(self.adapters)}")
        check_options(spec.harness, spec.argv[1:])
        check_prompt(spec.prompt)
        if spec.session_id is not None and spec.session_id.startswith("-"):
            raise ValueError("a session id that begins with '-' would be read as an option")
        if spec.channel is not Channel.NONE and spec.harness != "claude-code":
            raise ValueError(f"the channel can be loaded into claude-code only, not into {spec.harness}")
        if spec.terminal is Terminal.NONE and spec.prompt is None:
            raise ValueError("a harness without a terminal needs a first prompt")
        if spec.terminal is Terminal.NONE and spec.restart is Restart.ALWAYS:
            raise ValueError("a harness without a terminal has nothing to say when it is started again for ever")

    async def again(self, pane_id: str, prompt: str | None = None, *, replace: bool = False) -> Launch:
        """Start again what ran in the pane, in the conversation it had.  Raises as `run`, LookupError for nothing."""
        check_prompt(prompt)
        async with self._lock(pane_id):
            await self._check_free(pane_id, replace=replace)
            old = self.book.get(pane_id)
            if old is None:
                raise LookupError(f"nothing was started in pane {pane_id!r} yet: name a program")
            spec = old if prompt is None else evolve(old, prompt=prompt)
            spec = await self._claimed(pane_id, spec, by_a_person=True)
            try:
                return await self._settled(spec, await self._start(pane_id, spec, await _version(spec)))
            except LaunchBlocked:
                raise
            except Exception:
                self.book.take_back_prompt(pane_id, prompt, old.prompt)
                await self._not_started(pane_id)
                raise

    async def _settled(self, spec: PaneSpec, launch: Launch) -> Launch:
        """The launch, unless its program ends at once, as one does that does not understand its options."""
        if spec.terminal is Terminal.TMUX:
            with trio.move_on_after(self.settle_seconds):
                await self.launcher.wait(launch.incarnation_id)
                words = await self.launcher.last_words(launch.pane_id)
                raise LaunchError(f"{spec.argv[0]!r:.200} ended at once" + (f", and says: {words}" if words else ""))
        return launch

    async def _not_started(self, pane_id: str) -> None:
        """The operator is told that nothing came of it, so nothing may, later; what lives, or starts now, goes on."""
        living = await self.launcher.processes()
        if pane_id not in living and self.launcher.current(pane_id) in {None, self._current.get(pane_id)}:
            self.book.unwanted(pane_id)

    async def start_again(self, pane_id: str, ended: str | None) -> Launch | None:
        """Start what the book says in a pane whose process has ended, that of the incarnation `ended`.

        None, and nothing is started, where an operator was there meanwhile: the pane was ended, or has another process.
        """
        async with self._lock(pane_id):
            spec = self.book.get(pane_id)
            if spec is None or not spec.wanted or self._current.get(pane_id) != ended:
                return None
            if self.launcher.current(pane_id) not in {None, ended}:
                return None  # the runtime itself is starting a successor now
            spec = await self._claimed(pane_id, spec, by_a_person=False)
            return await self._start(pane_id, spec, await _version(spec))

    async def leave(self, pane_id: str, ended: str | None) -> None:
        """Have a pane stay without a process, whose last was that of the incarnation `ended`.  Durable on return.

        Nothing is changed where an operator was there meanwhile and the pane has another process.
        """
        async with self._lock(pane_id):
            if self._current.get(pane_id) == ended:
                self.book.unwanted(pane_id)

    async def decline(self, pane_id: str, incarnation_id: str) -> None:
        """Retire what the runtime launched in a pane that was ended before, so that nothing follows it either."""
        log.info("pane %r was ended: incarnation %r is not started", pane_id, incarnation_id)
        await self.supervisor.pane(pane_id).retire(incarnation_id, _ENDED)

    async def rearmed(self, pane_id: str, rearm: Callable[[], Awaitable[Answer]]) -> Answer:
        """Rearm an intent of the pane, which may then be given processes again, also if it was ended.

        Raises what `rearm` does.
        """
        async with self._lock(pane_id):
            ended, answer = self.book.was_ended(pane_id), None
            self.book.wanted(pane_id)  # first: the runtime may start the next attempt at once
            try:
                answer = await rearm()
                return answer
            finally:
                if ended and not isinstance(answer, Applied):
                    self.book.unwanted(pane_id)

    async def _claimed(self, pane_id: str, spec: PaneSpec, *, by_a_person: bool) -> PaneSpec:
        """What may be started there, with the session of an open claim.  Raises `ClaimOpen`."""
        claim = await self.claim(pane_id, spec.harness)
        session_id = session_to_start(spec.harness, spec.session_id, claim, by_a_person=by_a_person)
        return evolve(spec, session_id=session_id)

    async def claim(self, pane_id: str, harness: str) -> OpenClaim | None:
        """The delivery to an OpenCode session that is unresolved in the pane; None for any other harness.

        Raises `CorruptRecord`, `StoreFault`.
        """
        if harness != CLAIMING:
            return None
        return await trio.to_thread.run_sync(open_claim, self.supervisor, pane_id)

    async def _check_free(self, pane_id: str, *, replace: bool) -> None:
        incarnation_id = self._current.get(pane_id)
        if incarnation_id is not None:
            await self.launcher.note_of(incarnation_id)  # damage is told before anything is retired
        living = (await self.launcher.processes()).get(pane_id)
        if living is not None and not replace:
            raise Occupied(f"process {living.pid} lives in pane {pane_id}")

    async def _start(self, pane_id: str, spec: PaneSpec, version: str) -> Launch:
        """Launch what `spec` says, with the proofs of this version; what was there is what the book tells till then."""
        self.book.intend(pane_id, evolve(spec, version=version, wanted=True), self.launcher.epoch(pane_id))
        try:
            return await self._launch(pane_id, spec, version)
        except Exception:
            self.book.call_off(pane_id)  # unless it was launched, and could not be started
            raise

    async def _launch(self, pane_id: str, spec: PaneSpec, version: str) -> Launch:
        capabilities = self.adapters[spec.harness].capabilities(version)
        if spec.terminal is Terminal.NONE and spec.prompt is None:
            # It has nothing to say but what moved, which must be known first: so it is not to be told in a soft batch.
            capabilities = evolve(capabilities, soft_batches=False)
        return await self.supervisor.pane(pane_id).launch(spec.harness, spec.session_id, capabilities)

    async def end(self, pane_id: str) -> bool:
        """Retire the pane's incarnation, then end its process for certain; False if it had none.

        Nothing is started in its place, neither now nor by a later life of the bridge, nor is what the runtime had
        decided to start in it.  What was owed to its agent stays owed.  Raises `StillRunning`, `DamagedNote`, OSError.
        """
        async with self._lock(pane_id):
            self.book.unwanted(pane_id)  # from here on the launcher declines what the runtime may have decided on
            ended = False
            while (incarnation_id := await self._present(pane_id)) is not None:
                living = (await self.launcher.processes()).get(pane_id)
                answer = await self.supervisor.pane(pane_id).retire(incarnation_id, _ENDED)
                await self.launcher.stop(IncarnationView(incarnation_id, pane_id, 0, "", None, 0, None))
                ended |= living is not None or isinstance(answer, Applied)
                if self._current.get(pane_id) == incarnation_id:
                    del self._current[pane_id]
            return ended

    async def end_again(self, pane_id: str) -> None:
        """See `end`, which an earlier life had begun; what stands in the way is logged, and told to who asks again."""
        try:
            await self.end(pane_id)
        except (FencepostError, StillRunning, DamagedNote, OSError) as error:
            log.warning("pane %r was to be ended: %s", pane_id, ascii(str(error)))

    async def _present(self, pane_id: str) -> str | None:
        """The incarnation that has, or had last, a process in the pane, also one whose note was lost."""
        starting = self.launcher.current(pane_id)
        living = (await self.launcher.processes()).get(pane_id)
        return starting or (None if living is None else living.incarnation_id) or self._current.get(pane_id)

    def _lock(self, pane_id: str) -> trio.Lock:
        return self._locks.setdefault(pane_id, trio.Lock())

    async def heard(self, pane_id: str, incarnation_id: str, event: Mapping[str, object]) -> None:
        """A hook of the pane spoke: learn which conversation its process has now.  Durable on return.

        Only a main chain's prompt of the process that lives there is believed; a conversation is changed by a prompt.
        """
        session_id = _conversation_in(event)
        if session_id is None:
            return
        # One write of a pane at a time, in a thread: a hook can name as many conversations as it likes.
        async with self._learning[pane_id]:
            spec = self.book.get(pane_id)
            if spec is None or spec.session_id == session_id or not self._is_believed(pane_id, incarnation_id):
                return
            learn = partial(self.book.learn_session, pane_id, session_id, instead_of=spec.session_id)
            try:
                await trio.to_thread.run_sync(learn)
            except OSError:  # the prompt was judged, and its answer counts more
                log.exception("pane %r: its conversation could not be written down", pane_id)

    def _is_believed(self, pane_id: str, incarnation_id: str) -> bool:
        return self._current.get(pane_id) == incarnation_id and pane_id not in self._leaving


def _conversation_in(event: Mapping[str, object]) -> str | None:
    """The conversation that a main chain's prompt names, if a start could be given it."""
    session_id = event.get("session_id")
    if (
        event.get("hook_event_name") == "UserPromptSubmit"
        and not event.get("agent_id")
        and isinstance(session_id, str)
        and 1 <= len(session_id) <= 256
        and session_id.isascii()
        and session_id.isprintable()
        and not session_id.startswith("-")
    ):
        return session_id
    return None


async def _version(spec: PaneSpec) -> str:
    return await trio.to_thread.run_sync(version_of, spec)
