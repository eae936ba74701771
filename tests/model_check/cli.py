"""The command line: which world, which deliberate faults, and what came of it."""

from __future__ import annotations

import sys
from typing import Final

import click

from model_check.faults import FAULTS, deliberate
from model_check.search import Found, explore
from model_check.story import told
from model_check.tool_world import Broken, explore as explore_tools
from model_check.world import Bounds, World

from fencepost.mailbox.records import BatchMode

__all__ = ["BOUNDS", "main"]

BOUNDS: Final = {
    "small": Bounds(faults=1, startup_attempts=1, soft_only=True),
    "full": Bounds(faults=None),
}


@click.command()
@click.option(
    "--bounds", type=click.Choice(list(BOUNDS)), help="How large a world  [default: full; small with --all-faults]."
)
@click.option("--faults", type=click.IntRange(min=0), help="At most so many faults a run, instead of the bounds' own.")
@click.option(
    "--strays", is_flag=True, help="Also serve a repeated request whose hook has ended before its batch is reported."
)
@click.option("--fault", type=click.Choice(list(FAULTS)), metavar="NAME", help="With this deliberate fault.")
@click.option("--all-faults", is_flag=True, help="With each deliberate fault in turn; each must be caught.")
@click.option("--list-faults", is_flag=True, help="List the deliberate faults.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def main(
    *, bounds: str | None, faults: int | None, strays: bool, fault: str | None, all_faults: bool, list_faults: bool, quiet: bool
) -> None:
    """Check the shipped intent protocol against its laws, in every interleaving of a small world.

    Exits with 1 if a law is broken, or if a deliberate fault is not caught.
    """
    if list_faults:
        for name in FAULTS:
            click.echo(name)
        return
    size = BOUNDS[bounds or ("small" if all_faults else "full")]._replace(strays=strays)
    if faults is not None:
        size = size._replace(faults=faults)
    if fault is not None and all_faults:
        raise click.UsageError("--fault and --all-faults exclude each other")
    click.echo(f"bounds: {_listed(size)}")
    if all_faults:
        sys.exit(0 if _catch_all(size, quiet=quiet) else 1)
    if fault is not None:
        with deliberate(fault):
            sys.exit(_check(size, quiet=quiet))
    sys.exit(_check(size, quiet=quiet) or _check_tools())


def _check_tools() -> int:
    """Check the tool core as well: a batch of three, in both modes."""
    for mode in BatchMode:
        try:
            found = explore_tools(mode)
        except Broken as broken:
            click.echo(f"a {mode} batch of three: {broken}")
            return 1
        click.echo(f"a {mode} batch of three: {found.states:,} states, {found.transitions:,} transitions, every law holds")
    return 0


def _listed(size: Bounds) -> str:
    return ", ".join(f"{name}={'any number' if value is None else value}" for name, value in size._asdict().items())


def _explored(world: World, *, quiet: bool) -> Found:
    return explore(world, (lambda _text: None) if quiet else lambda text: click.echo(f"  … {text}", err=True))


def _check(size: Bounds, *, quiet: bool) -> int:
    world = World(size)
    found = _explored(world, quiet=quiet)
    click.echo(
        f"{found.states:,} states, {found.transitions:,} transitions, {found.good_ends:,} good ends, "
        f"up to {found.faults} faults{', everything there is' if found.complete else ''}, {found.seconds:.1f} s"
    )
    if found.counterexample is None:
        click.echo("every law holds, and from every state a good end can be reached without a further fault")
        return 0
    for line in told(world, found.counterexample):
        click.echo(line)
    return 1


def _catch_all(size: Bounds, *, quiet: bool) -> bool:
    missed = []
    for name in FAULTS:
        with deliberate(name):
            found = _explored(World(size), quiet=quiet)
        if found.counterexample is None:
            missed.append(name)
            click.echo(f"{name}: NOT CAUGHT in {found.states:,} states")
        else:
            steps = len(found.counterexample.path) - (found.counterexample.last is None)
            click.echo(f"{name}: caught, {steps} steps, {found.seconds:.1f} s: {found.counterexample.broken}")
    click.echo(f"{len(FAULTS) - len(missed)} of {len(FAULTS)} deliberate faults caught")
    return not missed
