"""The command line: which world, which deliberate faults, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import click

from fencepost.actors.intent_state import TABLE
from fencepost.mailbox.records import BatchMode
from model_check import delivery_world, pump_world
from model_check.delivery_faults import DELIVERY_FAULTS, caught_delivery, explored
from model_check.faults import FAULTS, deliberate
from model_check.outlets import Broken as BrokenDelivery
from model_check.search import Found, explore
from model_check.story import told
from model_check.tool_world import Broken, explore as explore_tools
from model_check.world import Bounds, World

__all__ = ["BOUNDS", "WORLDS", "caught", "main"]

BOUNDS: Final = {
    "tiny": Bounds(faults=1, startup_attempts=1, soft_only=True, second_intent=False),
    "small": Bounds(faults=1, startup_attempts=1, soft_only=True),
    "full": Bounds(faults=None),
}


CORES: Final = ("tools", "deliveries", "intents")
WORLDS: Final = (*pump_world.WORLDS, *delivery_world.WORLDS)
"""The worlds of deliveries: messages to a pane, and messages from one."""


@click.command()
@click.option(
    "--core",
    "cores",
    type=click.Choice(CORES),
    multiple=True,
    default=CORES,
    help="Which core to check; may be given several times  [default: all].",
)
@click.option(
    "--bounds",
    type=click.Choice(list(BOUNDS)),
    help="How large a world  [default: full; with --all-faults the smallest that shows it].",
)
@click.option("--faults", type=click.IntRange(min=0), help="At most so many faults a run, instead of the bounds' own.")
@click.option(
    "--strays", is_flag=True, help="Also serve a repeated request whose hook has ended before its batch is reported."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    envvar="FENCEPOST_MODEL_CHECK_SECONDS",
    show_envvar=True,
    help="End the check of intents after about so long, and say what was left out; not with --all-faults.",
)
@click.option(
    "--fault", type=click.Choice([*FAULTS, *DELIVERY_FAULTS]), metavar="NAME", help="With this deliberate fault."
)
@click.option("--all-faults", is_flag=True, help="With each deliberate fault in turn; each must be caught.")
@click.option("--list-faults", is_flag=True, help="List the deliberate faults.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def main(
    *,
    cores: tuple[str, ...],
    bounds: str | None,
    faults: int | None,
    strays: bool,
    seconds: float | None,
    fault: str | None,
    all_faults: bool,
    list_faults: bool,
    quiet: bool,
) -> None:
    """Check the shipped protocols of intents, tools and deliveries against their laws, in every interleaving.

    Exits with 1 if a law is broken, or if a deliberate fault is not caught.
    """
    if list_faults:
        for name in (*FAULTS, *DELIVERY_FAULTS):
            click.echo(name)
        return
    if fault is not None and all_faults:
        raise click.UsageError("--fault and --all-faults exclude each other")
    if fault in DELIVERY_FAULTS:
        with DELIVERY_FAULTS[fault].deliberate():
            sys.exit(_check_deliveries())
    names = (bounds,) if bounds else ("tiny", "small") if all_faults else ("full",)
    sizes = [BOUNDS[name]._replace(strays=strays) for name in names]
    if faults is not None:
        sizes = [size._replace(faults=faults) for size in sizes]
    for name, size in zip(names, sizes, strict=True):
        click.echo(f"{name}: {_listed(size)}")
    if all_faults:
        sys.exit(0 if _catch_all(sizes, quiet=quiet) & _catch_all_of_deliveries() else 1)
    if fault is not None:
        with deliberate(fault):
            sys.exit(_check(sizes[0], seconds, quiet=quiet))
    # The small worlds first: they are always searched whole.
    checks = {
        "tools": _check_tools,
        "deliveries": _check_deliveries,
        "intents": lambda: _check(sizes[0], seconds, quiet=quiet),
    }
    sys.exit(next((failed for core in CORES if core in cores and (failed := checks[core]())), 0))


def caught(name: str, sizes: Sequence[Bounds], report: Callable[[str], None] = lambda _text: None) -> Found:
    """What is found with this deliberate fault, in the first of these worlds that shows it."""
    found = None
    for size in sizes:
        with deliberate(name):
            found = explore(World(size), report)
        if found.counterexample is not None:
            break
    assert found is not None
    return found


def _check_deliveries() -> int:
    """Check the delivery core: bridges, pumps and one pane, a lossy wire, damage, restarts anywhere."""
    for world in WORLDS:
        try:
            found = explored(world)
        except BrokenDelivery as broken:
            click.echo(f"{world}: {broken}")
            return 1
        click.echo(f"{world}: {found.states:,} states, {found.transitions:,} transitions, no law is broken")
    return 0


def _check_tools() -> int:
    """Check the tool core: a batch of three, in both modes."""
    for mode in BatchMode:
        try:
            found = explore_tools(mode)
        except Broken as broken:
            click.echo(f"a {mode} batch of three: {broken}")
            return 1
        click.echo(
            f"a {mode} batch of three: {found.states:,} states, {found.transitions:,} transitions, no law is broken"
        )
    return 0


def _listed(size: Bounds) -> str:
    return ", ".join(f"{name}={'any number' if value is None else value}" for name, value in size._asdict().items())


def _reporter(*, quiet: bool) -> Callable[[str], None]:
    return (lambda _text: None) if quiet else lambda text: click.echo(f"  … {text}", err=True)


def _check(size: Bounds, seconds: float | None, *, quiet: bool) -> int:
    world = World(size)
    found = explore(world, _reporter(quiet=quiet), seconds)
    click.echo(
        f"{found.states:,} states, {found.transitions:,} transitions, {found.good_ends:,} good ends, "
        f"up to {found.faults} faults{', everything there is' if found.complete else ''}, {found.seconds:.1f} s"
    )
    untaken = sorted(f"{code} {event.__name__}" for code, event in TABLE.keys() - world.ledger.taken)
    click.echo(
        f"{len(TABLE) - len(untaken)} of {len(TABLE)} rows of the transition table taken"
        + (f"; not taken: {', '.join(untaken)}" if untaken else "")
    )
    if found.counterexample is None:
        if found.in_time:
            click.echo("every law holds, and from every state a good end can be reached without a further fault")
            return 0
        click.echo(
            f"NOT EXHAUSTIVE: the time of {seconds:g} s was up while states of {found.faults} faults were visited; "
            "until then every law held, and what needs fewer faults has no dead end"
        )
        return 0
    for line in told(world, found.counterexample):
        click.echo(line)
    return 1


def _catch_all(sizes: Sequence[Bounds], *, quiet: bool) -> bool:
    missed = []
    for name in FAULTS:
        found = caught(name, sizes, _reporter(quiet=quiet))
        if found.counterexample is None:
            missed.append(name)
            click.echo(f"{name}: NOT CAUGHT in {found.states:,} states")
        else:
            steps = len(found.counterexample.path) - (found.counterexample.last is None)
            click.echo(f"{name}: caught, {steps} steps, {found.seconds:.1f} s: {found.counterexample.broken}")
    click.echo(f"{len(FAULTS) - len(missed)} of {len(FAULTS)} deliberate faults caught")
    return not missed


def _catch_all_of_deliveries() -> bool:
    missed = []
    for name, fault in DELIVERY_FAULTS.items():
        broken = caught_delivery(fault)
        if broken is None or not str(broken).startswith(f"{fault.law}: "):
            missed.append(name)
            click.echo(f"{name}: NOT CAUGHT by law {fault.law} of deliveries")
        else:
            click.echo(f"{name}: caught: {broken}")
    click.echo(f"{len(DELIVERY_FAULTS) - len(missed)} of {len(DELIVERY_FAULTS)} deliberate faults in deliveries caught")
    return not missed
