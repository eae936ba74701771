"""What an operator does with a pane's process (start, end, look), and what the process's hooks tell of it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping
from functools import partial

import trio
from attrs import define, evolve, field

from fencepost.supervisor import IncarnationView, Launch, LaunchBlocked, Supervisor
from fencepost.supervisor.bridge.adapters import Adapter
from fencepost.supervisor.bridge.launchers.commands import HARNESSES, check_options
from fencepost.supervisor.bridge.launching import PaneLauncher
from fencepost.supervisor.bridge.panes import Channel, PaneBook, PaneSpec, Terminal
from fencepost.supervisor.bridge.starting import version_of

__all__ = ["Occupied", "PaneProcesses"]


class Occupied(Exception):  # noqa: N818 - what it is
    """A process lives in the pane; the message says which."""


@define(eq=False)
class PaneProcesses:
    """The processes of one bridge's panes; runs on trio."""

    supervisor: Supervisor
    launcher: PaneLauncher
    book: PaneBook
    adapters: Mapping[str, Adapter]
    _current: dict[str, str] = field(factory=dict[str, str], init=False)
    """The incarnation whose process each pane has, as far as this life knows."""
    _learning: defaultdict[str, trio.Lock] = field(factory=lambda: defaultdict(trio.Lock), init=False)

    def started(self, pane_id: str, incarnation_id: str) -> None:
        """The process of this incarnation is the pane's from now on."""
        self._current[pane_id] = incarnation_id

    async def run(self, pane_id: str, spec: PaneSpec, *, replace: bool = False) -> Launch:
        """Start what `spec` says in the pane; from now on it is what runs there.  Durable on return, and started.

        A harness that lets a conversation be named gets a new one, unless `spec` names one.

        Raises `Occupied` where a process lives in the pane and may not be replaced; ValueError for a harness nobody
        adapts, for options that a start adds itself, and for a start without a terminal that has nothing to say;
        `LaunchError` if it could not be started, OSError, and `LaunchBlocked` where the pane may have no process.
        """
        self._check(spec)
        await self._check_free(pane_id, replace=replace)
        if spec.session_id is None and HARNESSES[spec.harness].names_sessions:
            spec = evolve(spec, session_id=str(uuid.uuid4()))
        version = await _version(spec)  # what cannot even tell its version is not kept
        old = self.book.get(pane_id)
        self.book.put(pane_id, evolve(spec, version=version))
        try:
            return await self._launch(pane_id, spec, version)
        except LaunchBlocked:
            self.book.replace(pane_id, old)  # the runtime changed nothing: what was there is what is to be started
            raise

    def _check(self, spec: PaneSpec) -> None:
        if spec.harness not in HARNESSES or spec.harness not in self.adapters:
            raise ValueError(f"no adapter for harness {spec.harness!r:.100}; there are: {', '.join(self.adapters)}")
        check_options(spec.harness, spec.argv[1:])
        if spec.channel is not Channel.NONE and spec.harness != "claude-code":
            raise ValueError(f"the channel can be loaded into claude-code only, not into {spec.harness}")
        if spec.terminal is Terminal.NONE and spec.prompt is None:
            raise ValueError("a harness without a terminal needs a first prompt")

    async def again(self, pane_id: str, prompt: str | None = None, *, replace: bool = False) -> Launch:
        """Start again what ran in the pane, in the conversation it had.  Raises as `run`, LookupError for nothing."""
        await self._check_free(pane_id, replace=replace)
        if prompt is not None:
            self.book.give_prompt(pane_id, prompt)
        return await self.launch(pane_id)

    async def _check_free(self, pane_id: str, *, replace: bool) -> None:
        living = (await self.launcher.processes()).get(pane_id)
        if living is not None and not replace:
            raise Occupied(f"process {living.pid} lives in pane {pane_id}")

    async def launch(self, pane_id: str) -> Launch:
        """Start what the book says, whatever lives in the pane.  Raises as `again`."""
        spec = self.book.get(pane_id)
        if spec is None:
            raise LookupError(f"nothing was started in pane {pane_id!r} yet")
        version = await _version(spec)
        self.book.judged(pane_id, version)
        return await self._launch(pane_id, spec, version)

    async def _launch(self, pane_id: str, spec: PaneSpec, version: str) -> Launch:
        capabilities = self.adapters[spec.harness].capabilities(version)
        return await self.supervisor.pane(pane_id).launch(spec.harness, spec.session_id, capabilities)

    async def end(self, pane_id: str) -> bool:
        """Retire the pane's incarnation, then end its process for certain; False if it had none.

        Nothing is started in its place.  What was owed to its agent stays owed.  Raises `StillRunning`.
        """
        living = (await self.launcher.processes()).get(pane_id)
        incarnation_id = self._current.get(pane_id) if living is None else living.incarnation_id
        if incarnation_id is None:
            return False
        await self.supervisor.pane(pane_id).retire(incarnation_id, "ended by the operator")
        await self.launcher.stop(IncarnationView(incarnation_id, pane_id, 0, "", None, 0, None))
        return living is not None

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
            if spec is not None and spec.session_id != session_id and self._current.get(pane_id) == incarnation_id:
                learn = partial(self.book.learn_session, pane_id, session_id, instead_of=spec.session_id)
                await trio.to_thread.run_sync(learn)


def _conversation_in(event: Mapping[str, object]) -> str | None:
    session_id = event.get("session_id")
    if (
        event.get("hook_event_name") == "UserPromptSubmit"
        and not event.get("agent_id")
        and isinstance(session_id, str)
        and 1 <= len(session_id) <= 256
        and session_id.isascii()
        and session_id.isprintable()
    ):
        return session_id
    return None


async def _version(spec: PaneSpec) -> str:
    return await trio.to_thread.run_sync(version_of, spec)
