"""`fencepost run` and `fencepost stop`: an agent in a pane, under a bridge, from one line."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from fencepost.supervisor.bridge.client import Members
from fencepost.supervisor.bridge.panes import Channel, Restart, Terminal
from fencepost.supervisor.cli.operator_commands import asking, operator_of
from fencepost.supervisor.cli.output import JSON, Failed, on_terminal, say, say_json, shown
from fencepost.supervisor.cli.reading import FOLDER, HARNESSES, default_folder, in_folder, needing_extra, pane_id

__all__ = ["run", "stop"]

_START_SECONDS: Final = 120.0
"""What the start of a process may take: an old one is stopped first, and a reconciliation may come before it."""


def _environment() -> dict[str, str]:
    """This shell's environment without what speaks of a pane it may itself be in."""
    of_a_pane = {name for name in os.environ if name.startswith("FENCEPOST_")} | {"TMUX", "TMUX_PANE", "TERM"}
    return {name: value for name, value in os.environ.items() if name not in of_a_pane}


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  fencepost run --pane left -- claude --model opus
  fencepost run --pane left --prompt "Fix the failing test" -- claude
  fencepost run --pane left                     look at it again, or start again what ran there
  fencepost run --pane ci --no-terminal --prompt "Run the tests" -- claude
  fencepost run --pane right --detach -- codex
""",
)
@click.option("--pane", required=True, metavar="NAME", callback=pane_id, help="The pane; the name is yours to choose.")
@FOLDER
@click.option("--prompt", metavar="TEXT", help="The first input; it is given once.")
@click.option("--harness", type=click.Choice(HARNESSES), help="What the program is, if its name does not tell.")
@click.option("--session", metavar="ID", help="The conversation to go on with.")
@click.option("--cwd", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Where it runs [here].")
@click.option("--terminal/--no-terminal", default=True, help="In a tmux pane, or headless with its output in a file.")
@click.option("--detach", is_flag=True, help="Do not look at the pane, only start it.")
@click.option("--replace", is_flag=True, help="End the process that lives in the pane first.")
@click.option(
    "--restart",
    type=click.Choice([one.value for one in Restart]),
    default=Restart.OWED.value,
    help="Start again when it ends by itself: if an intent is owed to its agent (default), always, or never.",
)
@click.option(
    "--channel",
    type=click.Choice([one.value for one in Channel]),
    default=Channel.NONE.value,
    help="Give Claude Code the tools to send messages, or push messages to it as well (docs/channel.md).",
)
@click.option("--serve/--no-serve", default=True, help="Start a bridge in the background if none serves the folder.")
@JSON
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def run(
    *,
    pane: str,
    folder: Path | None,
    prompt: str | None,
    harness: str | None,
    session: str | None,
    cwd: Path | None,
    terminal: bool,
    detach: bool,
    replace: bool,
    restart: str,
    channel: str,
    serve: bool,
    as_json: bool,
    program: tuple[str, ...],
) -> None:
    """Start an agent's harness in a pane, under the bridge, and look at it.

    PROGRAM with its options is started now, and again whenever the bridge must replace it, in this folder and with
    this shell's environment (which is kept in the bridge's private folder).  Without one, this looks at what lives in
    the pane, or starts again what ran there.  Leave tmux with its own key (C-b d); the agent goes on.

    Exit status: 0; 1 if it cannot be started, and why; 2 for wrong usage, where no bridge can be had, and where tmux
    is missing to look at it; 130 if interrupted.  Once tmux shows the pane, it is tmux's.  With --json it prints what
    the bridge answered, and does not look at the pane.
    """
    where = (folder or default_folder()).absolute()
    if serve:
        _ensure_served(where)
    members: dict[str, object] = {"replace": replace}
    if prompt is not None:
        members["prompt"] = prompt
    if program:
        members |= {
            "argv": list(program),
            "cwd": str((cwd or Path.cwd()).absolute()),
            "environment": _environment(),
            "terminal": Terminal.TMUX if terminal else Terminal.NONE,
            "restart": restart,
            "channel": channel,
            **{name: value for name, value in (("harness", harness), ("session_id", session)) if value is not None},
        }
    started = _started(folder, pane, members, look_first=not program and not replace and prompt is None)
    if as_json:
        say_json(started)
        return
    _tell(where, pane, started)
    attach = started.get("attach")
    if attach and not detach and on_terminal():
        _look(attach)


@click.command(
    epilog="""\b
Example:
  fencepost stop --pane left
"""
)
@click.option("--pane", required=True, metavar="NAME", callback=pane_id, help="The pane.")
@click.option("--forget", is_flag=True, help="Keep nothing of the pane then, unless something of it is not over.")
@FOLDER
@JSON
def stop(*, pane: str, forget: bool, folder: Path | None, as_json: bool) -> None:
    """End the process that lives in a pane, with all it started, and start none in its place.

    What is owed to its agent stays owed; `fencepost run` starts it again, in the conversation it had.  Exit status: 0,
    also if nothing lives there; 1 if it does not end, and the pane is then conflicted; 2 where no bridge serves.

    With --forget the bridge lets go of what it keeps for the pane: what ran there, with its environment, what it
    printed and what its hooks noted.  Where an intent, a tool batch or a delivery of it is not over, it is ended only,
    and the status is 1.  Its history stays in the store.
    """
    path = _process_of(pane) + ("?forget=true" if forget else "")
    with asking():
        said = operator_of(folder).request("DELETE", path, seconds=_START_SECONDS)
    if as_json:
        say_json(said)
    else:
        forgotten = ", and nothing is kept of it" if forget else ""
        say(f"pane {shown(pane)}: {'ended' if said['ended'] else 'nothing lived there'}{forgotten}")


def _process_of(pane: str) -> str:
    return f"operator/panes/{quote(pane, safe='')}/process"


def _ensure_served(folder: Path) -> None:
    with needing_extra():  # the background bridge could only say so in its log
        from fencepost.supervisor.bridge import app as _needed
        from fencepost.supervisor.bridge.background import BridgeNotStarted, ensure_served
    del _needed
    try:
        if ensure_served(folder):
            click.echo(f"a bridge serves from {shown(folder)} now", err=True)
    except (BridgeNotStarted, OSError) as error:
        raise Failed(error) from error
    except KeyboardInterrupt:
        told = f"a bridge may serve from {shown(folder)} all the same; no agent was started"
        click.echo(f"\nInterrupted; {told}.", err=True)
        raise


def _started(folder: Path | None, pane: str, members: Mapping[str, object], *, look_first: bool) -> Members:
    operator, path = operator_of(folder), _process_of(pane)
    with asking():
        if look_first:
            found = operator.request("GET", path)
            if found["pid"] is not None:
                return found
        try:
            return operator.request("PUT", path, members, seconds=_START_SECONDS)
        except KeyboardInterrupt:
            click.echo(
                f"\nInterrupted; the agent may be started in pane {shown(pane)} all the same.  "
                f"`fencepost status{in_folder(folder)}` tells, "
                f"`fencepost stop --pane {shown(shlex.quote(pane))}{in_folder(folder)}` ends it.",
                err=True,
            )
            raise


def _tell(folder: Path, pane: str, started: Members) -> None:
    from fencepost.supervisor.bridge.launching import output_path

    say(f"pane {shown(pane)}: incarnation {shown(started.get('incarnation_id'))}")
    if started.get("startup_delivery_id") is not None:
        say("It is told first what moved while it was away.")
    if started.get("prompt_kept") is True:
        say("A prompt was not said: it is kept, and said at the next start that has nothing else to tell first.")
    claim = started.get("claim")
    if claim is not None:
        say(f"It is not ready for messages: the delivery {shown(claim['delivery_id'])} to it is unresolved.")
    if started.get("attach") is None:
        say(f"What it prints is in {shown(output_path(folder, pane))}")


def _look(attach: Sequence[str]) -> None:
    """Become tmux, at that pane.  A tmux that this shell is in does not hinder it: the bridge's server is another."""
    environment = {name: value for name, value in os.environ.items() if name not in {"TMUX", "TMUX_PANE"}}
    try:
        os.execvpe(attach[0], list(attach), environment)  # noqa: S606 - tmux, with the bridge's own arguments
    except FileNotFoundError as error:
        raise Failed(f"there is no {attach[0]} in PATH: install tmux to look at the pane; its agent goes on") from error
