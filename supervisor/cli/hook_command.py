"""`fencepost hook-settings`: what a harness must be told so that it runs our hooks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fencepost.supervisor.cli.output import JSON, Failed, say, say_json
from fencepost.supervisor.cli.reading import FOLDER, HARNESSES, default_folder

if TYPE_CHECKING:
    from fencepost.supervisor.bridge.hook_settings import HookCommand

__all__ = ["hook_settings"]


@click.command(
    "hook-settings",
    epilog="""\b
Examples:
  fencepost hook-settings claude-code > settings.json && claude --settings settings.json
  CODEX_HOME=$(fencepost hook-settings codex --incarnation I1) codex --disable plugins \\
    --dangerously-bypass-hook-trust
  OPENCODE_CONFIG_CONTENT="{\"plugin\": [\"file://$(fencepost hook-settings opencode --incarnation I1)\"]}" opencode
""",
)
@click.argument("harness", type=click.Choice(HARNESSES))
@click.option("--incarnation", metavar="ID", help="Write the private files of this incarnation, and print where.")
@click.option(
    "--deadline",
    metavar="SECONDS",
    type=click.IntRange(1, 600),
    default=15,
    show_default=True,
    help="By when a hook decides.",
)
@FOLDER
@JSON
def hook_settings(harness: str, incarnation: str | None, deadline: int, folder: Path | None, as_json: bool) -> None:
    """Print the settings with which a harness runs the hooks of fencepost.

    For claude-code a settings.json, for codex a config.toml, for opencode a plugin.  With --incarnation nothing of that
    is printed: the files are written below `incarnations` in the bridge's folder, each incarnation's apart, and the
    path for `--settings`, for CODEX_HOME, or of the plugin, is printed.  The harness also needs FENCEPOST_PANE,
    FENCEPOST_INCARNATION and FENCEPOST_SOCKET in its environment; a bridge that launches it sets all of this up by
    itself.  --json prints one object: harness, deadline_seconds, timeout_seconds (the harness's own, after which a hook
    counts as failed), and settings or path.
    """
    from fencepost.supervisor.bridge import hook_settings as made

    command = made.HookCommand(deadline)
    told: dict[str, object] = {
        "version": 1,
        "harness": harness,
        "deadline_seconds": deadline,
        "timeout_seconds": command.timeout_seconds,
    }
    if incarnation is not None:
        within = (folder or default_folder()).absolute() / "incarnations"
        try:
            path = _written(within, incarnation, harness, command)
        except (OSError, ValueError) as error:
            raise Failed(error) from error
        say_json({**told, "path": str(path)}) if as_json else say(str(path))
    elif as_json:
        settings: object = made.claude_settings(command) if harness == "claude-code" else _printed(harness, command)
        say_json({**told, "settings": settings})
    else:
        say(_printed(harness, command).rstrip("\n"))


def _printed(harness: str, command: HookCommand) -> str:
    from fencepost.supervisor.bridge import hook_settings as made

    if harness == "claude-code":
        return json.dumps(made.claude_settings(command), indent=2)
    return made.codex_config(command) if harness == "codex" else made.opencode_plugin(command)


def _written(folder: Path, incarnation_id: str, harness: str, command: HookCommand) -> Path:
    from fencepost.supervisor.bridge import hook_settings as made
    from fencepost.supervisor.bridge.codex_home import users_codex_home

    match harness:
        case "claude-code":
            return made.write_claude_settings(folder, incarnation_id, command)
        case "codex":
            users = Path.cwd() / users_codex_home(os.environ)
            return made.write_codex_home(folder, incarnation_id, command, users, Path.cwd())
        case _:
            return made.write_opencode_plugin(folder, incarnation_id, command)
