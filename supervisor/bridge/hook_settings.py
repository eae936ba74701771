"""The settings that make a harness run our hooks, one file an incarnation.

Each incarnation gets a file of its own, so that a process that was replaced never reads the settings of the next one.
The file names the hook program by its path, and the interpreter without its site packages: that starts fastest, and
nothing the agent installs can come between.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from attrs import Attribute, field, frozen

from fencepost.supervisor.bridge import hook, hook_start
from fencepost.supervisor.bridge.codex_home import (
    configuration,
    link_users_files,
    refuse_hooks,
    refuse_hooks_file,
    refuse_hooks_of_project,
)
from fencepost.supervisor.bridge.opencode_plugin import OPENCODE_EVENTS, plugin_source
from fencepost.supervisor.bridge.private_files import private_folder, replace_private

__all__ = [
    "HookCommand",
    "claude_settings",
    "codex_config",
    "opencode_plugin",
    "remove_settings",
    "write_claude_settings",
    "write_codex_home",
    "write_opencode_plugin",
]

CLAUDE_EVENTS: Final = ("UserPromptSubmit", "PreToolUse", "PostToolBatch")
CODEX_EVENTS: Final = ("UserPromptSubmit", "PreToolUse", "Stop")
WITHOUT_HOOKS: Final = ("CLAUDE_CODE_SAFE_MODE", "CLAUDE_CODE_SIMPLE")
"""Variables of Claude Code that silently turn all hooks off, from its environment or a project's own settings."""
TIMEOUT_MARGIN_SECONDS: Final = int(hook.WRITING_SECONDS) + 10
"""How much later than the hook program's own deadline the harness gives it up; then the call would run."""


def _plain(_instance: object, attribute: Attribute[str], value: str) -> None:
    if not value or not value.isprintable():
        raise ValueError(f"{attribute.name} must be printable text, not {value!r}")


@frozen
class HookCommand:
    """How the hook program is started, and by when it decides.  Raises ValueError for what no shell line can hold."""

    deadline_seconds: int = field(default=15)
    interpreter: str = field(default=sys.executable, validator=_plain)
    program: str = field(default=str(Path(hook_start.__file__).resolve()), validator=_plain)

    def __attrs_post_init__(self) -> None:
        """The hook program takes no less than a second and no more than ten minutes."""
        if not 1 <= self.deadline_seconds <= 600:
            raise ValueError(f"deadline_seconds must be from 1 to 600, not {self.deadline_seconds!r}")

    @property
    def timeout_seconds(self) -> int:
        """The harness's own timeout for it."""
        return self.deadline_seconds + TIMEOUT_MARGIN_SECONDS

    def argv(self, harness: str, event: str) -> list[str]:
        """The command for one kind of event."""
        options = ["--harness", harness, "--event", event, "--deadline", str(self.deadline_seconds)]
        return [self.interpreter, "-I", "-S", self.program, *options]

    def line(self, harness: str, event: str) -> str:
        """The same as the shell's command line."""
        return shlex.join(self.argv(harness, event))


def claude_settings(command: HookCommand) -> dict[str, object]:
    """Return what `claude --settings FILE` is given (hooks as in docs/harnesses.md).

    No matcher: every tool.  Background tasks are off, because a nested agent that goes on after its caller's batch has
    ended would act on files that only its caller was told about.
    """

    def hooks(event: str) -> list[object]:
        line = command.line("claude-code", event)
        return [{"hooks": [{"type": "command", "command": line, "timeout": command.timeout_seconds}]}]

    return {
        "hooks": {event: hooks(event) for event in CLAUDE_EVENTS},
        "disableAllHooks": False,  # a project's own settings cannot turn ours off
        "env": {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1", **dict.fromkeys(WITHOUT_HOOKS, "0")},
    }


def codex_config(command: HookCommand, base: str = "") -> str:
    """Return a config.toml for a CODEX_HOME of one incarnation: `base`, then our hooks.

    Codex runs a hook only if it is trusted, and how trust is recorded is not proved for any version; so such a process
    is started with `--dangerously-bypass-hook-trust`, in a home that holds no hooks but these.  Raises `OtherHooks`
    for a `base` that declares hooks itself or turns them off, and ValueError for one that is no TOML.
    """
    import tomllib

    refuse_hooks(tomllib.loads(base), "the base configuration")
    parts = [base.rstrip("\n") + "\n"] if base.strip() else []
    for event in CODEX_EVENTS:
        line = json.dumps(command.line("codex", event), ensure_ascii=False)  # printable, so a TOML string as well
        parts.append(
            f"[[hooks.{event}]]\n\n[[hooks.{event}.hooks]]\n"
            f'type = "command"\ncommand = {line}\ntimeout = {command.timeout_seconds}\n'
        )
    return "\n".join(parts)


def write_claude_settings(folder: Path, incarnation_id: str, command: HookCommand) -> Path:
    """Write the settings of one incarnation below `folder` and return the file; it is durable on return.

    Private to this user.  Written again, it is the same file.  Raises OSError.
    """
    path = private_folder(folder / _name(incarnation_id)) / "settings.json"
    replace_private(path, f"{json.dumps(claude_settings(command), indent=1)}\n", shared=True)
    return path


def write_claude_channel(folder: Path, incarnation_id: str, config: Mapping[str, object]) -> Path:
    """Write what `claude --mcp-config FILE` is given, beside the settings of the incarnation; as they otherwise."""
    path = private_folder(folder / _name(incarnation_id)) / "mcp.json"
    replace_private(path, json.dumps(config), shared=True)
    return path


def write_codex_home(
    folder: Path, incarnation_id: str, command: HookCommand, users: Path | None = None, project: Path | None = None
) -> Path:
    """Write the CODEX_HOME of one incarnation below `folder` and return it; as `write_claude_settings` otherwise.

    `users` is the user's own home, whose configuration it begins with and whose conversations and login it shares
    (`codex_home`); without it the home stands alone.  `project` is where Codex will run.

    Raises `OtherHooks` if one of them, or the home itself, brings hooks; ValueError for a configuration that cannot be
    read as one.
    """
    base = "" if users is None else configuration(users)
    if project is not None:
        refuse_hooks_of_project(project, base)
    home = private_folder(folder / _name(incarnation_id))
    refuse_hooks_file(home)  # of an earlier try; its config.toml is replaced
    if users is not None:
        link_users_files(home, users)
    replace_private(home / "config.toml", codex_config(command, base), shared=True)
    return home


def opencode_plugin(command: HookCommand) -> str:
    """Return the plugin of OpenCode's that runs the hook program (`opencode_plugin`)."""
    return plugin_source({event: command.argv("opencode", event) for event in OPENCODE_EVENTS}, command.timeout_seconds)


def write_opencode_plugin(folder: Path, incarnation_id: str, command: HookCommand) -> Path:
    """Write the plugin of one incarnation below `folder` and return the file; as `write_claude_settings` otherwise."""
    path = private_folder(folder / _name(incarnation_id)) / "fencepost.js"
    replace_private(path, opencode_plugin(command), shared=True)
    return path


def remove_settings(folder: Path, incarnation_id: str) -> None:
    """Remove what was written for an incarnation whose process is gone, and what a harness left beside it.

    What it links to stays: conversations and logins are the user's.  Fine with nothing there.  Raises OSError.
    """
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / _name(incarnation_id))


def _name(incarnation_id: str) -> str:
    """Return a folder's name for an id, which may hold slashes and dots."""
    return sha256(incarnation_id.encode()).hexdigest()[:32]
