"""The real Claude Code, offline, with the generated settings: what the model is sent is what was saved.

FENCEPOST_CLAUDE names the binary of a proved version; it is nobody's to hand on, so without it these are skipped.
"""

from __future__ import annotations

import os

import pytest
import trio
from bridges import Workspace, moved, payload_of
from claude_session import tool_use
from hook_bridge import Bridge
from hook_programs import place
from messages_api import messages_api

from fencepost.supervisor import BlockPayload, IntentState, ModelTurn, ToolBoundary, open_supervisor
from fencepost.supervisor.bridge.adapters.claude import PROVED_VERSIONS, ClaudeCodeAdapter
from fencepost.supervisor.bridge.hook_settings import HookCommand, write_claude_settings
from fencepost.supervisor.bridge.startup_tag import tagged_input

CLAUDE = os.environ.get("FENCEPOST_CLAUDE", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CLAUDE, reason="FENCEPOST_CLAUDE names no Claude Code binary"),
]


class Real:
    """One pane, and real processes in it, one after the other."""

    def __init__(self, here, pane, api) -> None:
        self.here = here
        self.pane = pane
        self.api = api
        self.home = here.folder / "home"
        self.workspace = here.folder / "ws"
        self.home.mkdir(exist_ok=True)
        self.workspace.mkdir(exist_ok=True)
        self.adapter = ClaudeCodeAdapter(here.spool, [self.home / ".claude" / "projects"])
        self.launch = None

    async def start(self, session_id) -> None:
        (version,) = PROVED_VERSIONS
        self.launch = await self.pane.launch("claude-code", session_id, self.adapter.capabilities(version))
        self.here.environment["FENCEPOST_INCARNATION"] = self.launch.incarnation_id

    async def say(self, prompt, *options) -> str:
        settings = write_claude_settings(self.here.folder / "settings", self.launch.incarnation_id, HookCommand(60))
        offline = {
            "ANTHROPIC_BASE_URL": self.api.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "HOME": str(self.home),
            "IS_SANDBOX": "1",
            "PATH": os.environ["PATH"],
        }
        command = [CLAUDE, "-p", prompt, "--settings", str(settings), "--allowedTools", "Bash", "Agent", *options]
        with trio.fail_after(120):
            done = await trio.run_process(
                command, env={**self.here.environment, **offline}, cwd=self.workspace, stdin=b"", capture_stdout=True
            )
        return done.stdout.decode().strip()

    async def dies_while_told(self) -> None:
        """The files moved for a call of the process, which is gone before it reads that; another is to be started."""
        await self.pane.detect(moved("main-1", "main-2"))
        boundary = ToolBoundary(self.launch.incarnation_id, ModelTurn("its last", 2**40), "its last calls")
        assert isinstance(await self.pane.pre_tool_use(boundary), BlockPayload)
        await self.start("s")

    async def states(self):
        return [intent.state for intent in await self.pane.intents()]


def touches(call, name):
    return {**tool_use(call), "input": {"command": f"touch {name}"}}


async def test_the_model_reads_the_saved_bytes_and_its_next_turn_acknowledges_them() -> None:
    turns = ([touches("a", "x"), touches("b", "y")], [touches("c", "z")])
    with place() as here, messages_api(*turns) as api:
        async with (
            open_supervisor(here.environment["FENCEPOST_STORE"], reconciler=Workspace()) as supervisor,
            trio.open_nursery() as nursery,
        ):
            real = Real(here, supervisor.pane("pane/1"), api)
            bridge = Bridge(here, real.pane, real.adapter)
            await nursery.start(bridge.serve)
            await real.start("s")
            await real.pane.detect(moved("main-1", "main-2"))
            assert await real.say("go") == "done"
            assert {api.results()[call].encode() for call in "ab"} == {payload_of("main-2")}
            assert sorted(path.name for path in real.workspace.iterdir()) == ["z"]
            assert await real.states() == [IntentState.ACKNOWLEDGED]
            assert await supervisor.dead_letters() == []
            nursery.cancel_scope.cancel()


async def test_a_replacement_is_told_by_its_first_prompt() -> None:
    with place() as here, messages_api([touches("a", "x")], [touches("b", "y")]) as api:
        async with (
            open_supervisor(here.environment["FENCEPOST_STORE"], reconciler=Workspace()) as supervisor,
            trio.open_nursery() as nursery,
        ):
            real = Real(here, supervisor.pane("pane/1"), api)
            bridge = Bridge(here, real.pane, real.adapter)
            await nursery.start(bridge.serve)
            await real.start("s")
            assert await real.say("go", "--session-id", "6b1d3f3e-4f6f-4a53-9a8d-0c7c3a8c7a11") == "done"
            await real.dies_while_told()
            tagged = tagged_input(real.launch.startup)
            api.turns = [[touches("c", "z")]]
            await real.say(tagged, "--resume", "6b1d3f3e-4f6f-4a53-9a8d-0c7c3a8c7a11")
            assert await real.states() == [IntentState.ACKNOWLEDGED]
            assert sorted(path.name for path in real.workspace.iterdir()) == ["x", "y", "z"]
            nursery.cancel_scope.cancel()


async def test_without_the_bridge_a_call_passes_and_a_barrier_holds() -> None:
    with place() as here, messages_api([touches("a", "x")], [touches("b", "y")]) as api:
        async with open_supervisor(here.environment["FENCEPOST_STORE"], reconciler=Workspace()) as supervisor:
            real = Real(here, supervisor.pane("pane/1"), api)
            await real.start("s")
        await real.say("go")
        assert sorted(path.name for path in real.workspace.iterdir()) == ["x", "y"]
        assert [line["event"].get("tool_use_id") for line in here.spooled()] == ["a", None, "b", None]

        async with open_supervisor(here.environment["FENCEPOST_STORE"], reconciler=Workspace()) as supervisor:
            real.pane = supervisor.pane("pane/1")
            await real.dies_while_told()
        api.turns = [[touches("c", "z")]]
        await real.say("go")
        assert api.results()["c"].encode() == payload_of("main-2")
        assert sorted(path.name for path in real.workspace.iterdir()) == ["x", "y"]
