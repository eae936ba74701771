"""`fencepost serve`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import click

from fencepost.supervisor.cli.output import JSON, say, say_json, shown
from fencepost.supervisor.cli.reading import Seconds, default_folder, needing_extra, pane_id

__all__ = ["serve"]


def _address(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter("it must be ADDRESS:PORT, and the port may be 0 for any")
    return host.removeprefix("[").removesuffix("]"), int(port)


@click.command(
    epilog="""\b
Examples:
  fencepost serve
  fencepost serve --folder /srv/fencepost --operator 127.0.0.1:7410 --fleet 127.0.0.1:7411
  fencepost serve --head lead --reconcile "rebase-pane --onto-latest"
"""
)
@click.option("--folder", type=click.Path(path_type=Path), help="Its private folder [$XDG_STATE_HOME/fencepost].")
@click.option("--store", metavar="URL", help="The store [bridge.db in the folder].")
@click.option("--operator", metavar="ADDRESS:PORT", default="127.0.0.1:0", callback=_address, help="Loopback only.")
@click.option("--fleet", metavar="ADDRESS:PORT", default="127.0.0.1:0", callback=_address, help="For link tokens.")
@click.option("--head", metavar="PANE", callback=pane_id, help="The pane whose mailbox is the head seat's.")
@click.option("--reconcile", metavar="COMMAND", help="The program that moves a pane's files [none: a notice only].")
@click.option("--reconcile-timeout", metavar="SECONDS", type=Seconds(1, 86_400), default=600.0, help="For one attempt.")
@click.option(
    "--tmux-server",
    metavar="NAME",
    help="The private tmux server of its panes [the folder's own; `fencepost run --json` has its name in `attach`].",
)
@click.option(
    "--hook-deadline", metavar="SECONDS", type=click.IntRange(1, 600), default=15, help="By when a hook has decided."
)
@click.option("--stop-grace", metavar="SECONDS", type=Seconds(0, 60), default=5.0, help="Between SIGTERM and SIGKILL.")
@click.option(
    "--head-reply",
    metavar="SECONDS",
    type=Seconds(0, 86_400),
    default=120.0,
    help="How long the head's reply to a pane's message is waited for.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Of the log, on stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is logged.",
)
@click.option("--grace", metavar="SECONDS", type=Seconds(0, 3_600), default=5.0, help="For requests, at the end.")
@JSON
def serve(
    folder: Path | None,
    store: str | None,
    operator: tuple[str, int],
    fleet: tuple[str, int],
    head: str | None,
    reconcile: str | None,
    reconcile_timeout: float,
    tmux_server: str | None,
    hook_deadline: int,
    stop_grace: float,
    head_reply: float,
    log_format: Literal["text", "json"],
    log_level: str,
    grace: float,
    as_json: bool,
) -> None:
    """Serve the reference bridge until SIGTERM or SIGINT.

    Prints where its three listeners are (with --json as one object), also to be found in endpoints.json in its folder.
    Exit status: 0 when everybody was answered; 1 when requests were cut (a second signal cuts at once) or the store
    failed; 2 when it could not start.  Needs the extra `bridge`.
    """
    with needing_extra():
        from fencepost.supervisor.bridge import command
        from fencepost.supervisor.bridge.program import Harnesses
    settings = command.Settings(
        folder=folder or default_folder(),
        store=store,
        operator=operator,
        fleet=fleet,
        head_pane=head,
        grace_seconds=grace,
        log_format=log_format,
        log_level=getattr(logging, log_level.upper()),
        harnesses=Harnesses(
            reconcile=reconcile,
            reconcile_seconds=reconcile_timeout,
            tmux_server=tmux_server,
            hook_deadline_seconds=hook_deadline,
            stop_seconds=stop_grace,
            head_reply_seconds=head_reply,
        ),
    )

    def told(where: str) -> None:
        if as_json:
            say_json({"version": 1, **dict(line.split(" ", 1) for line in where.splitlines())})
        else:
            say(where)

    status = command.run(settings, told, lambda text: click.echo(f"Error: {shown(text)}", err=True))
    click.get_current_context().exit(status)
