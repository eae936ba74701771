"""What the runtime costs over what it could cost at best, measured side by side on one disk.

Theory of operation
===================

A figure means nothing without its floor, and a floor nothing if it was measured on another disk or at another time.
So every figure here is a ratio of two things measured in turns, several rounds of each, and the median of the rounds
is what counts:

    a transition of one pane           one commit of one small row by `sqlite3` alone (WAL, synchronous=FULL)
    transitions of many panes at once  the same rows written by `sqlite3` alone, in one thread, 64 mutations a commit
    an `ask` that writes nothing       a bare round trip over two trio memory channels
    a tool call                        one commit of one small row
    a checkpoint                       one commit that replaces a row of the same size
    a hook process                     a process that does nothing
    a question of a hook               a constant answer on the same HTTP stack
    a question beside a flood          the same question while nobody floods

An aim is met or missed; a question mark says that the floor moved so far between rounds that the disk had other work.

"The same rows" are recorded, not imitated (tape.py).  lives.py and tool_batches.py hold what is measured through the
public calls, floors.py what it is held against, intent_figures.py and tool_figures.py the rounds and the report.
Hooks are measured between processes (hooks.py; hook_server.py and hook_pane.py are the processes), and beside another
pane's floods (floods.py).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, cast

import click
from figures import Run
from floods import measure_floods
from hooks import measure_hooks
from intent_figures import measure_intents
from sizes import QUICK, Sizes
from tool_figures import measure_tools

BUILD: Final = Path(__file__).resolve().parent.parent / "build"


def measured(folder: Path, sizes: Sizes) -> dict[str, float]:
    """Measure everything, with the stores in `folder`; return every figure under its name."""
    click.echo(f"measuring in {folder}", err=True)
    run = Run(folder, sizes)
    measure_intents(run)
    measure_tools(run)
    measure_hooks(run)
    measure_floods(run)
    return run.report.figures


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="A smoke run of seconds; its figures mean little.")
@click.option(
    "--dir",
    "parent",
    type=click.Path(file_okay=False, path_type=Path),
    default=BUILD,
    show_default="build",
    help="Where to make the folder for the stores; its disk is what is measured.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=BUILD / "bench.json",
    show_default="build/bench.json",
    help="Where the figures go as JSON.",
)
def main(quick: bool, parent: Path, output: Path) -> None:
    """Measure the runtime beside the floor of what it could cost, on one disk in one run.

    Prints each figure, and its ratio to the floor, to stdout; progress goes to stderr.
    """
    parent.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        figures = measured(folder, QUICK if quick else Sizes())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    click.echo(f"\nwritten to {output}", err=True)


if __name__ == "__main__":
    sys.exit(cast("Any", main)())
