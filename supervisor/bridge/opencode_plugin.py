"""The plugin that makes OpenCode run our hooks, and the configuration that names it.

OpenCode has no hooks that are commands; what can keep a call from running is a plugin in its own process.  So ours does
nothing but run the hook program that every harness runs, and throws what it says (`opencode_plugin.js`).  It is named
in `OPENCODE_CONFIG_CONTENT`, which is added to what the user and the project configure, so that all of that is kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from fencepost.supervisor.bridge import hook

__all__ = ["CONTENT_VARIABLE", "OPENCODE_EVENTS", "content_with_plugins_of", "plugin_source"]

CONTENT_VARIABLE: Final = "OPENCODE_CONFIG_CONTENT"
OPENCODE_EVENTS: Final = ("UserPromptSubmit", "PreToolUse", "Stop", "Forgotten")
_BODY: Final = Path(__file__).with_suffix(".js")


def plugin_source(commands: dict[str, list[str]], timeout_seconds: int) -> str:
    """Return the plugin; `commands` is the argv of the hook program for each of `OPENCODE_EVENTS`."""
    settings = {"commands": commands, "timeout_seconds": timeout_seconds, "denial": hook.NO_ANSWER}
    return f"const SETTINGS = {json.dumps(settings)}\n\n{_BODY.read_text(encoding='utf-8')}"


def content_with_plugins_of(ours: str, users: str | None) -> str:
    """Return the user's own configuration in that variable, if there is one, with our plugins beside his.

    Raises ValueError where what he has is no JSON object, to which nothing can be added.
    """
    if users is None or not users.strip():
        return ours
    content = _object(users)
    plugins = None if content is None else content.get("plugin", [])
    if content is None or not isinstance(plugins, list):
        raise ValueError(
            f"{CONTENT_VARIABLE} holds no JSON object to which a plugin could be added; put it into a file, and name "
            "that in OPENCODE_CONFIG"
        )
    return json.dumps({**content, "plugin": [*plugins, *json.loads(ours)["plugin"]]})


def _object(text: str) -> dict[str, object] | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
