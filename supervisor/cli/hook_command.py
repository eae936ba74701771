"""`fencepost hook-settings`: what a harness must be told so that it runs our hooks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import click

from fencepost.supervisor.cli.output import JSON, Failed, say, say_json
from fencepost.supervisor.cli.reading import FOLDER, default_folder

__all__ = ["hook_settings"]

_HARNESSES: Final = ("claude-code", "codex")


@click.command(
    "hook-settings",
    epilog="""\b
Examples:
  fencepost hook-settings claude-code > settings.json && claude --settings settings.json
  CODEX_HOME=$(fencepost hook-settings codex --incarnation I1) codex --disable plugins \\
    --dangerously-bypass-hook-trust
""",
)
@click.argument("harness", type=click.Choice(_HARNESSES))
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

    For claude-code a settings.json, for codex a config.toml.  With --incarnation nothing of that is printed: the files
    are written below `incarnations` in the bridge's folder, each incarnation's apart, and the path for `--settings`, or
    for CODEX_HOME, is printed.  The harness also needs FENCEPOST_PANE, FENCEPOST_INCARNATION and FENCEPOST_SOCKET in
    its environment; a bridge that launches it sets all of this up by itself.  --json prints one object: harness,
    deadline_seconds, timeout_seconds (the harness's own, after which a hook counts as failed), and settings or path.
    """
    from fencepost.supervisor.bridge import hook_settings as made
    from fencepost.supervisor.bridge.codex_home import users_codex_home

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
            if harness == "claude-code":
                path = made.write_claude_settings(within, incarnation, command)
            else:
                users = Path.cwd() / users_codex_home(os.environ)
                path = made.write_codex_home(within, incarnation, command, users, Path.cwd())
        except (OSError, ValueError) as error:
            raise Failed(error) from error
        say_json({**told, "path": str(path)}) if as_json else say(str(path))
    elif as_json:
        settings: object = made.claude_settings(command) if harness == "claude-code" else made.codex_config(command)
        say_json({**told, "settings": settings})
    elif harness == "claude-code":
        say(json.dumps(made.claude_settings(command), indent=2))
    else:
        say(made.codex_config(command).rstrip("\n"))
