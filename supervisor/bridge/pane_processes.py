"""What an operator does with a pane's process (start, end, look), and what the process's hooks tell of it.

A launch may have to wait until the pane's files are moved, for minutes.  It is called off by an end, and by a start
that takes precedence:

    called off   who asked for it is told so at once, and the pane is free for the next
    the runtime  goes on with it: what it launches then finds its pane ended, and is declined (`PaneLauncher`)
    a new start  waits for that, so that it cannot be taken for the one that was called off
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio
from attrs import define, evolve, field
from outcome import Error, Outcome, Value

from fencepost.supervisor import (
    Answer,
    Applied,
    FencepostError,
    IncarnationView,
    Launch,
    LaunchBlocked,
    MailboxClosed,
    Supervisor,
)
from fencepost.supervisor.bridge.adapters import Adapter, Forgets
from fencepost.supervisor.bridge.durably import durably
from fencepost.supervisor.bridge.launchers import DamagedNote, LaunchError
from fencepost.supervisor.bridge.launchers.commands import HARNESSES, check_options, check_prompt
from fencepost.supervisor.bridge.launching import PaneLauncher
from fencepost.supervisor.bridge.opencode_claims import HARNESS as CLAIMING, OpenClaim, open_claim, session_to_start
from fencepost.supervisor.bridge.panes import Channel, PaneBook, PaneSpec, Restart, Terminal
from fencepost.supervisor.bridge.processes import StillRunning
from fencepost.supervisor.bridge.starting import version_of
from fencepost.supervisor.overview import pane_line

__all__ = ["Occupied", "Owes", "PaneProcesses"]

log: Final = logging.getLogger("fencepost.bridge")


_ENDED: Final = "ended by the operator"


class Occupied(Exception):  # noqa: N818 - what it is
    """A process lives in the pane; the message says which."""


class Owes(Exception):  # noqa: N818 - what it does
    """A pane is not let go of, since something of it is not over; the message says what."""


class _CalledOff(LaunchError):  # noqa: N818 - what happened
    """A launch was called off before it came to a process."""


@define(eq=False)
class _Launching:
    """A launch that the runtime was asked for, and carries to its end whoever waits for it."""

    by_hand: bool
    before: str | None
    """The incarnation that had a process of this life's when it was asked for."""
    outcome: Outcome[Launch] | None = None
    over: trio.Event = field(factory=trio.Event, init=False)
    waiting: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """Whoever waits for it now."""


@define(eq=False)
class PaneProcesses:
    """The processes of one bridge's panes; runs on trio.

    What an operator and the watcher want of a pane is done one after another, each with what the one before left.
    Nothing is launched until `carry` runs.
    """

    supervisor: Supervisor
    launcher: PaneLauncher
    book: PaneBook
    adapters: Mapping[str, Adapter]
    settle_seconds: float = 0.0
    """How long a program in a terminal must live for its start to count as one."""
    others: Sequence[Forgets] = ()
    """Who else, beside the adapters, keeps something of a pane."""
    _current: dict[str, str] = field(factory=dict[str, str], init=False)
    """The incarnation whose process each pane has, or had last, as far as this life knows."""
    _leaving: set[str] = field(factory=set[str], init=False)
    """Panes that are about to be given another program, so that the present one is not believed any more."""
    _locks: dict[str, trio.Lock] = field(factory=dict[str, trio.Lock], init=False)
    _launches: dict[str, _Launching] = field(factory=dict[str, _Launching], init=False)
    """The launch that each pane was last asked for, until it is over."""
    _ends: Counter[str] = field(factory=Counter[str], init=False)
    """How many ends of a pane wait for what is done in it: it is not to begin anything any more."""
    _ended: Counter[str] = field(factory=Counter[str], init=False)
    """How many ends of a pane have begun."""
    _carrying: trio.Event = field(factory=trio.Event, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)
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
        version = await self._version_by_hand(pane_id, spec)  # what cannot even tell it changes nothing
        self._take_precedence(pane_id, replace=replace)
        async with self._lock(pane_id):
            await self._after_the_last(pane_id)
            await self._check_free(pane_id, replace=replace)
            spec = await self._claimed(pane_id, spec, by_a_person=True)
            if spec.session_id is None and HARNESSES[spec.harness].names_sessions:
                spec = evolve(spec, session_id=str(uuid.uuid4()))
            self._leaving.add(pane_id)
            try:
                return await self._settled(spec, await self._start(pane_id, spec, version))
            except LaunchBlocked:
                if self.book.get(pane_id) is None:
                    # It was not known where the pane works; the operator has said it, and what may be started there
                    # once something may be.
                    known = evolve(spec, version=version, wanted=True, prompt=None)
                    await durably(self.book.put, pane_id, known)
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
        version = await self._version_by_hand(pane_id, self._known(pane_id))
        self._take_precedence(pane_id, replace=replace)
        async with self._lock(pane_id):
            await self._after_the_last(pane_id)
            await self._check_free(pane_id, replace=replace)
            old = self._known(pane_id)
            spec = old if prompt is None else evolve(old, prompt=prompt)
            spec = await self._claimed(pane_id, spec, by_a_person=True)
            try:
                return await self._settled(spec, await self._start(pane_id, spec, version))
            except LaunchBlocked:
                raise
            except Exception:
                await durably(self.book.take_back_prompt, pane_id, prompt, old.prompt)
                await self._not_started(pane_id)
                raise

    async def _version_by_hand(self, pane_id: str, spec: PaneSpec) -> str:
        """What the program of a start by hand says; it may take its time, and the pane may be ended meanwhile."""
        begun = self._ended[pane_id]
        version = await _version(spec)
        if self._ended[pane_id] != begun:
            raise _called_off(pane_id)
        return version

    def _known(self, pane_id: str) -> PaneSpec:
        spec = self.book.get(pane_id)
        if spec is None:
            raise LookupError(f"nothing was started in pane {pane_id!r} yet: name a program")
        return spec

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

        def is_empty() -> bool:
            return pane_id not in living and self.launcher.current(pane_id) in {None, self._current.get(pane_id)}

        if is_empty():
            await durably(self.book.unwanted, pane_id)
            if not is_empty():
                await durably(self.book.wanted, pane_id)

    async def start_again(self, pane_id: str, ended: str | None) -> Launch | None:
        """Start what the book says in a pane whose process has ended, that of the incarnation `ended`.

        None, and nothing is started, where an operator was there meanwhile: the pane was ended, or has another process.
        """
        async with self._lock(pane_id):
            try:
                await self._after_the_last(pane_id, by_hand=False)
                spec = self.book.get(pane_id)
                if spec is None or not spec.wanted or self._current.get(pane_id) != ended:
                    return None
                if self.launcher.current(pane_id) not in {None, ended}:
                    return None  # the runtime itself is starting a successor now
                spec = await self._claimed(pane_id, spec, by_a_person=False)
                return await self._start(pane_id, spec, await _version(spec), by_hand=False)
            except _CalledOff:
                await self._not_started(pane_id)
                return None

    async def leave(self, pane_id: str, ended: str | None) -> None:
        """Have a pane stay without a process, whose last was that of the incarnation `ended`.  Durable on return.

        Nothing is changed where an operator was there meanwhile and the pane has another process.
        """
        async with self._lock(pane_id):
            if self._current.get(pane_id) == ended:
                await durably(self.book.unwanted, pane_id)
                if self._current.get(pane_id) != ended:  # the runtime had a successor started meanwhile
                    await durably(self.book.wanted, pane_id)

    async def decline(self, pane_id: str, incarnation_id: str) -> None:
        """Retire what the runtime launched in a pane that was ended before, so that nothing follows it either."""
        log.info("pane %r was ended: incarnation %r is not started", pane_id, incarnation_id)
        await self.supervisor.pane(pane_id).retire(incarnation_id, _ENDED)

    async def rearmed(self, pane_id: str, rearm: Callable[[], Awaitable[Answer]]) -> Answer:
        """Rearm an intent of the pane, which may then be given processes again, also if it was ended.

        Raises what `rearm` does.
        """
        if not self.book.was_ended(pane_id):
            return await rearm()  # at once: the pane's lock is held by a start that waits for its files
        async with self._lock(pane_id):
            ended, answer = self.book.was_ended(pane_id), None  # again: somebody may have started it meanwhile
            await durably(self.book.wanted, pane_id)  # first: the runtime may start the next attempt at once
            try:
                answer = await rearm()
                return answer
            finally:
                if ended and not isinstance(answer, Applied):
                    await durably(self.book.unwanted, pane_id)

    async def carry(self) -> None:
        """Carry launches to their ends, until this is cancelled; none begins before."""
        async with trio.open_nursery() as self._nursery:
            self._carrying.set()
            await trio.sleep_forever()

    # -- what is called off --

    def _take_precedence(self, pane_id: str, *, replace: bool) -> None:
        """Call a launch off that has not come to a process, before a start by hand."""
        launching = self._launches.get(pane_id)
        if launching is None or (launching.by_hand and not replace):
            return
        if self.launcher.current(pane_id) in {None, launching.before}:
            launching.waiting.cancel()

    @asynccontextmanager
    async def _alone_for_an_end(self, pane_id: str) -> AsyncGenerator[None]:
        """The pane's turn, before which nothing begins that was wanted earlier and nothing waits for its files."""
        self._ended[pane_id] += 1
        self._ends[pane_id] += 1
        try:
            if (launching := self._launches.get(pane_id)) is not None:
                launching.waiting.cancel()
            await self._lock(pane_id).acquire()
        finally:
            self._ends[pane_id] -= 1
        try:
            yield
        finally:
            self._lock(pane_id).release()

    async def _over(self, pane_id: str, launching: _Launching) -> None:
        """Return once a launch is over.  Raises `_CalledOff`."""
        if self._ends[pane_id]:
            launching.waiting.cancel()
        with launching.waiting:
            await launching.over.wait()
        if not launching.over.is_set():
            raise _called_off(pane_id)

    async def _after_the_last(self, pane_id: str, *, by_hand: bool = True) -> None:
        """Return once it is known what came of a launch that was called off, or left by who wanted it."""
        earlier = self._launches.get(pane_id)
        if earlier is not None:
            earlier.by_hand, earlier.waiting = by_hand, trio.CancelScope()
            await self._over(pane_id, earlier)

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

    async def _start(self, pane_id: str, spec: PaneSpec, version: str, *, by_hand: bool = True) -> Launch:
        """Launch what `spec` says, with the proofs of this version; what was there is what the book tells till then."""
        if self._ends[pane_id]:
            raise _called_off(pane_id)
        intended = evolve(spec, version=version, wanted=True)
        await durably(self.book.intend, pane_id, intended, self.launcher.epoch(pane_id))
        try:
            return await self._carried(pane_id, partial(self._launch, pane_id, spec, version), by_hand=by_hand)
        except Exception:
            await durably(self.book.call_off, pane_id)  # unless it was launched, and could not be started
            raise

    async def _launch(self, pane_id: str, spec: PaneSpec, version: str) -> Launch:
        capabilities = self.adapters[spec.harness].capabilities(version)
        if spec.terminal is Terminal.NONE and spec.prompt is None:
            # It has nothing to say but what moved, which must be known first: so it is not to be told in a soft batch.
            capabilities = evolve(capabilities, soft_batches=False)
        return await self.supervisor.pane(pane_id).launch(spec.harness, spec.session_id, capabilities)

    async def _carried(self, pane_id: str, launch: Callable[[], Awaitable[Launch]], *, by_hand: bool) -> Launch:
        """What the launch comes to, unless it is called off; it goes on then, and the pane's next waits for it."""
        await self._carrying.wait()
        launching = self._launches[pane_id] = _Launching(by_hand, self.launcher.current(pane_id))
        assert self._nursery is not None
        self._nursery.start_soon(self._carry, pane_id, launching, launch)
        await self._over(pane_id, launching)
        if launching.outcome is None:
            raise MailboxClosed("the bridge is about to end")
        return launching.outcome.unwrap()

    async def _carry(self, pane_id: str, launching: _Launching, launch: Callable[[], Awaitable[Launch]]) -> None:
        try:
            launching.outcome = Value(await launch())
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            launching.outcome = Error(error)
        finally:
            launching.over.set()
            del self._launches[pane_id]

    async def end(self, pane_id: str, *, forget: bool = False) -> bool:
        """Retire the pane's incarnation, then end its process for certain; False if it had none.

        A start that waits for the pane's files is called off, and so is one that waits for its turn.
        Nothing is started in its place, neither now nor by a later life of the bridge, nor is what the runtime had
        decided to start in it.  What was owed to its agent stays owed.  With `forget` the bridge then keeps nothing of
        the pane any more: what ran there with its environment, what it printed, what its hooks noted.  What the store
        has of it, its history, stays.

        Raises `StillRunning`, `DamagedNote`, OSError, and with `forget`, once the pane is ended, `Owes` where something
        is not over, and `StoreFault`.
        """
        async with self._alone_for_an_end(pane_id):
            # From here on the launcher declines what the runtime may have decided on.
            await durably(self.book.unwanted, pane_id)
            ended = False
            while (incarnation_id := await self._present(pane_id)) is not None:
                living = (await self.launcher.processes()).get(pane_id)
                answer = await self.supervisor.pane(pane_id).retire(incarnation_id, _ENDED)
                await self.launcher.stop(IncarnationView(incarnation_id, pane_id, 0, "", None, 0, None))
                ended |= living is not None or isinstance(answer, Applied)
                if self._current.get(pane_id) == incarnation_id:
                    del self._current[pane_id]
            if forget:
                await self._forget(pane_id)
            return ended

    async def _forget(self, pane_id: str) -> None:
        owed = "a start that was called off is not over" if pane_id in self._launches else None
        owed = owed or await trio.to_thread.run_sync(self._owed, pane_id)
        if owed is not None:
            raise Owes(f"pane {pane_id!r} is ended, and not forgotten: {owed}")
        await durably(self.book.forget, pane_id)
        await self.launcher.forget(pane_id)
        for keeper in (*self.others, *self.adapters.values()):
            if isinstance(keeper, Forgets):
                await keeper.forget(pane_id)

    def _owed(self, pane_id: str) -> str | None:
        """What of the pane is not over, by the store; blocks."""
        with self.supervisor.reader() as reader, reader.snapshot():
            line = pane_line(reader, pane_id)
        if line.damage:
            return f"its records are damaged ({line.damage[0]})"
        if line.owed is not None:
            return f"its intent {line.owed.intent_id} is {line.owed.state}"
        if line.batch is not None:
            return f"its tool batch {line.batch.operation_id}/{line.batch.turn_id} is open"
        if line.deliveries:
            return f"its delivery {line.deliveries[0].delivery_id} is unresolved"
        return None

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


def _called_off(pane_id: str) -> _CalledOff:
    return _CalledOff(f"pane {pane_id!r} was ended, or started anew, while this start waited: it is not started")


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
