"""The real Claude Code, offline, with the generated configuration: it starts the channel, and its model uses the tools.

What it does with events that are pushed cannot be seen offline: it takes them only from a session that its own service
lets use channels (docs/channel.md).  FENCEPOST_CLAUDE names the binary; without it this is skipped.
"""

from __future__ import annotations

import json
import os

import pytest
import trio
from bridge.http_world import OURS, served, world
from e2e.messages_api import messages_api, tool_use

from fencepost.supervisor.bridge.channel import claude_options, mcp_config

CLAUDE = os.environ.get("FENCEPOST_CLAUDE", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CLAUDE, reason="FENCEPOST_CLAUDE names no Claude Code binary"),
]


def uses(call, tool, **arguments):
    return [tool_use(call, f"mcp__fencepost__{tool}", **arguments)]


async def run_claude(folder, api, where, *options) -> str:
    """One prompt in a home of its own; what it wrote to its log."""
    home, log = folder / "home", folder / "claude.log"
    home.mkdir()
    environment = {
        "ANTHROPIC_BASE_URL": api.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "HOME": str(home),
        "IS_SANDBOX": "1",
        "PATH": os.environ["PATH"],
        "FENCEPOST_PANE": OURS,
        "FENCEPOST_SOCKET": where.local,
    }
    allowed = ["mcp__fencepost__send_message", "mcp__fencepost__delivery_status"]
    command = [CLAUDE, "-p", "talk", "--debug-file", str(log), *options, "--allowedTools", *allowed]
    with trio.fail_after(120):
        await trio.run_process(command, env=environment, cwd=folder, stdin=b"", capture_stdout=True)
    return log.read_text()


@pytest.mark.parametrize("pushes", [True, False])
async def test_a_model_sends_a_message_and_asks_for_it(tmp_path, pushes):
    turns = (uses("a", "send_message", text="hello \N{SNOWMAN}"), uses("b", "delivery_status"))
    async with world() as there, served(there, tmp_path) as where:
        await there.supervisor.pane(OURS).launch("plain", "session-1")
        config = tmp_path / "mcp.json"
        config.write_text(json.dumps(mcp_config(pushes=pushes)))
        with messages_api() as api:
            api.play("talk", *turns)
            log = await run_claude(tmp_path, api, where, *claude_options(config, pushes=pushes), "--strict-mcp-config")
            results = api.asked("talk", 2).results
        assert [turn.text for turn in there.dispatched.turns] == ["hello \N{SNOWMAN}"]
        assert results["a"].startswith(b'{"means":"Stored: the service has it')
        asked = json.loads(results["b"])
        assert (asked["message"], asked["events"]["state"]) == (None, "carried" if pushes else "not carried here")
        assert 'MCP server "fencepost": MCP server process exited cleanly' in log
