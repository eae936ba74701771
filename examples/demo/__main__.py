"""The demo: a bridge, three panes, and what happens to them, with real processes and real kills."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import click
import trio
from report import Report
from stage import StoryError, open_stage
from story import tell

SECONDS = 25.0
END = "every process has left"
PLACE_MAX = 60
"""A unix socket's path has about a hundred bytes; some systems' temporary folders leave too few of them."""


@click.command()
@click.option("--keep", is_flag=True, help="Keep the store and the workspaces, and say where they are.")
def main(*, keep: bool) -> None:
    """Show fencepost surviving the deaths of a harness, of its leftovers, and of its own bridge.

    Every claim is checked against what was seen; the exit code is 1 if one does not hold.
    """
    report = Report()
    with folder(keep=keep) as root:
        ended = END
        try:
            trio.run(play, root, report)
        except* trio.TooSlowError:
            ended = f"it took more than {SECONDS:.0f} s"
        except* KeyboardInterrupt:
            ended = "interrupted"
        except* StoryError as group:
            ended = "; ".join(str(error) for error in group.exceptions)
        except* Exception as group:
            ended = repr(group.exceptions[0])
            raise
        finally:
            report.check("the demo came to its end", ended, ok=ended == END)
            report.table()
    sys.exit(int(report.failed))


async def play(root: Path, report: Report) -> None:
    """Tell the whole story in a folder."""
    async with open_stage(root, report, seconds=SECONDS) as stage:
        await tell(stage)


@contextlib.contextmanager
def folder(*, keep: bool) -> Generator[Path]:
    """A folder for the time of the demo, or longer."""
    usual = tempfile.gettempdir()
    place = usual if len(usual) <= PLACE_MAX else "/tmp"
    root = Path(tempfile.mkdtemp(prefix="fencepost-demo-", dir=place))
    try:
        yield root
    finally:
        if keep:
            click.echo(f"kept {root}; look at its store with: fencepost check sqlite:///{root / 'bridge.db'}")
        else:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
