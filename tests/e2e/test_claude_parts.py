"""The real Claude Code beside a bridge that is put together here, from its public parts.

What `test_claude` shows of the whole program rests on what is shown here of the parts: the generated settings, the hook
program, the local listener, the adapter, and the two launchers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import pytest
import trio
from bridges import Workspace, moved, payload_of
from e2e.claude_home import CLAUDE, ClaudeHome, claude_home, needs_claude
from e2e.messages_api import Turn, touch
from hook_programs import Place

from fencepost.supervisor import IntentState, Launch, Pane, check, open_supervisor
from fencepost.supervisor.bridge.adapters.claude import PROVED_VERSIONS, ClaudeCodeAdapter
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.hook_settings import HookCommand, write_claude_settings
from fencepost.supervisor.bridge.launchers import ChildProcessLauncher, Command, TmuxLauncher, command_of
from fencepost.supervisor.bridge.peers import Process, lineage
from fencepost.supervisor.bridge.seats import Member
from fencepost.supervisor.bridge.serve import Addresses, serve

T = TypeVar("T")
pytestmark = needs_claude
(VERSION,) = PROVED_VERSIONS
TMUX = pytest.param("tmux", marks=pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux program"))


class Launched:
    """A registry of seats that believes the launcher's notes."""

    def __init__(self, launcher) -> None:
        self._launcher = launcher
        self._members: dict[Process, Member] = {}

    def by_link(self, _token: str) -> None:
        return None

    def by_process(self, peer: Process) -> Member | None:
        panes = {Process(note.pid, note.start_time): pane for pane, note in self._launcher.processes().items()}
        found = next((one for one in lineage(peer) if one in panes), None)
        return None if found is None else self._members.setdefault(found, Member(panes[found], ""))


class Parts:
    """One pane of a bridge in this process, and real processes in it, one after the other."""

    def __init__(self, home: ClaudeHome, kind: str) -> None:
        self.home = home
        self.place = Place(home.folder)
        self.headless = kind == "child"
        self.prompt = "go on"
        self.session = str(uuid.uuid4())
        self.server = f"fencepost-test-{uuid.uuid4().hex[:12]}"
        self.adapter = ClaudeCodeAdapter(Gate(self.place.spool), [home.transcripts])
        self.store = self.place.environment["FENCEPOST_STORE"]
        more = {"socket_path": str(self.place.socket), "store_url": self.store}
        if kind == "tmux":
            self.launcher = TmuxLauncher(self.command_for, home.folder / "launcher", server=self.server, **more)
        else:
            self.launcher = ChildProcessLauncher(self.command_for, home.folder / "launcher", **more)
        self.pane: Pane

    def command_for(self, launch: Launch) -> Command:
        settings = write_claude_settings(self.home.folder / "settings", launch.incarnation_id, HookCommand(60))
        first = launch.session_id is None
        _, *argv = command_of(launch, str(settings), prompt=self.prompt, headless=self.headless)
        said = [CLAUDE, *argv, *(("--session-id", self.session) if first else ()), "--allowedTools", "Bash", "Agent"]
        return Command(tuple(said), self.home.environment, str(self.home.workspace))

    async def launch(self, session_id: str | None = None) -> Launch:
        return await self.pane.launch("claude-code", session_id, self.adapter.capabilities(VERSION))

    async def killed(self, launch: Launch) -> None:
        """Kill the process, and say that it is gone."""
        os.kill(self.launcher.processes()[self.pane.pane_id].pid, signal.SIGKILL)
        await self.launcher.wait(launch.incarnation_id)
        await self.pane.retire(launch.incarnation_id, "killed")

    async def ask(self, ask: Callable[..., T], *arguments: object) -> T:
        """Wait for the model to be asked, while the bridge goes on here."""
        return await trio.to_thread.run_sync(partial(ask, *arguments), abandon_on_cancel=True)

    async def states(self) -> list[IntentState]:
        return [intent.state for intent in await self.pane.intents()]

    def end(self) -> None:
        for note in self.launcher.processes().values():
            os.killpg(note.pid, signal.SIGKILL)
        subprocess.run(["tmux", "-L", self.server, "kill-server"], capture_output=True, check=False)


@asynccontextmanager
async def parts(kind: str, reconciler=None):
    with claude_home() as home:
        made = Parts(home, kind)
        try:
            with trio.fail_after(120):
                async with (
                    open_supervisor(
                        made.store, reconciler=reconciler or Workspace(), launcher=made.launcher
                    ) as supervisor,
                    trio.open_nursery() as nursery,
                ):
                    made.pane = supervisor.pane("pane/1")
                    bridge = Bridge(supervisor, Launched(made.launcher), {"claude-code": made.adapter})
                    addresses = Addresses(("127.0.0.1", 0), ("127.0.0.1", 0), made.place.socket)
                    listening = trio.Event()
                    nursery.start_soon(partial(serve, bridge, addresses, started=lambda _: listening.set()))
                    await listening.wait()
                    yield made
                    nursery.cancel_scope.cancel()
            assert await check(made.store) == []
        finally:
            made.end()


BATCH = [touch("a", "one"), touch("b", "two"), touch("c", "three")]


@pytest.mark.parametrize("kind", ["child", TMUX])
async def test_the_model_reads_the_saved_bytes_and_its_next_turn_acknowledges_them(kind: str) -> None:
    async with parts(kind) as made:
        made.home.api.play("go on", BATCH, [touch("d", "four")])
        await made.pane.detect(moved("main-1", "main-2"))
        await made.launch()
        told = await made.ask(made.home.api.asked, "go on", 1)
        assert told.results == dict.fromkeys("abc", payload_of("main-2"))
        await made.ask(made.home.api.asked, "go on", 2)
        assert made.home.files() == ["four"]
        assert await made.states() == [IntentState.ACKNOWLEDGED]


@pytest.mark.parametrize("kind", ["child", TMUX])
async def test_a_replacement_is_told_by_its_first_input(kind: str) -> None:
    async with parts(kind) as made:
        end = Turn.held()
        made.home.api.play("go on", BATCH, end)
        made.home.api.play("fencepost-startup", [touch("d", "four")])
        await made.pane.detect(moved("main-1", "main-2"))
        launch = await made.launch()
        await made.ask(made.home.api.asked, "go on", 1)
        await made.killed(launch)
        replaced = await made.launch(made.session)
        first = await made.ask(made.home.api.asked, "fencepost-startup", 0)
        assert payload_of("main-2").decode() in first.prompts[-1]
        assert replaced.startup.startup_delivery_id in first.prompts[-1]
        await made.ask(made.home.api.asked, "fencepost-startup", 1)
        assert made.home.files() == ["four"]
        assert await made.states() == [IntentState.ACKNOWLEDGED]
