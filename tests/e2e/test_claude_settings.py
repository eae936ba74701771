"""Nothing that a user or a project has set lets a call of the real Claude Code pass a barrier."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from e2e.claude_home import needs_claude
from e2e.claude_world import EVERYWHERE, LIFE, PANE, World, touches, world
from e2e.messages_api import Turn
from e2e.served_bridge import payload_of

pytestmark = needs_claude


def blocked(made: World, **members: Any) -> bool:
    """Whether a batch beside a pending intent is told in place of running."""
    asks = Turn.held(*touches("a", "b"))
    made.api.play("go on", asks, touches("d"))
    made.run(**members)
    made.api.asked("go on", 0)
    made.bridge.detect(PANE, "main-1", "main-2")
    asks.go.set()
    told = made.api.asked("go on", 1).results
    made.api.asked("go on", 2)
    return (told, made.ran(), made.lives()) == (dict.fromkeys("ab", payload_of("main-2")), ["d"], LIFE)


PLACES = ("home/.claude/settings.json", "ws/.claude/settings.json", "ws/.claude/settings.local.json")
WITHOUT_HOOKS = ("CLAUDE_CODE_SAFE_MODE", "CLAUDE_CODE_SIMPLE")
ALLOWS = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}
SAYS_YES = {"hooks": [{"type": "command", "command": f"echo {shlex.quote(json.dumps(ALLOWS))}"}]}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "settings",
    [
        {"disableAllHooks": True},
        {"hooks": {"PreToolUse": [SAYS_YES]}},
        {"permissions": {"allow": ["Bash"]}},
        {"env": dict.fromkeys(WITHOUT_HOOKS, "1")},
    ],
    ids=["no hooks", "a hook that allows", "allowed", "variables"],
)
def test_settings_of_a_user_or_a_project_let_nothing_pass(place: str, settings: dict[str, Any]) -> None:
    with world() as made:
        file = made.home.folder / place
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(settings), encoding="utf-8")
        assert blocked(made, options=["--dangerously-skip-permissions"])


@EVERYWHERE
@pytest.mark.parametrize("variable", WITHOUT_HOOKS)
def test_no_variable_turns_the_hooks_off(terminal: str, variable: str) -> None:
    with world(terminal) as made:
        project = made.home.workspace / ".claude" / "settings.json"
        project.parent.mkdir()
        project.write_text(json.dumps({"env": {variable: "1"}}), encoding="utf-8")
        assert blocked(made, environment={**made.home.environment, variable: "1"})
