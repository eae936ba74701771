"""The demo from its beginning to its exit status: a folder for its time, the story, and what was seen."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import click
import trio

from fencepost.supervisor.demo.report import Report
from fencepost.supervisor.demo.stage import StoryError, open_stage
from fencepost.supervisor.demo.story import tell

__all__ = ["run"]

SECONDS = 25.0
END = "every process has left"
PLACE_MAX = 60
"""A unix socket's path has about a hundred bytes; some systems' temporary folders leave too few of them."""


def run(*, keep: bool, as_json: bool) -> int:
    """Play it and tell what was seen; the answer is 1 if one claim does not hold, else 0.

    Raises KeyboardInterrupt, with no claim judged, once all that it started has ended.
    """
    report = Report(as_json=as_json)
    with folder(keep=keep, as_json=as_json) as root:
        ended, interrupted = END, False
        try:
            trio.run(play, root, report)
        except* trio.TooSlowError:
            ended = f"it took more than {SECONDS:.0f} s"
        except* KeyboardInterrupt:
            interrupted = True
        except* StoryError as group:
            ended = "; ".join(str(error) for error in group.exceptions)
        except* Exception as group:
            ended = repr(group.exceptions[0])
            raise
        finally:
            if not interrupted:
                report.check("the demo came to its end", ended, ok=ended == END)
                report.table()
        if interrupted:
            raise KeyboardInterrupt
    return int(report.failed)


async def play(root: Path, report: Report) -> None:
    """Tell the whole story in a folder."""
    async with open_stage(root, report, seconds=SECONDS) as stage:
        await tell(stage)


@contextlib.contextmanager
def folder(*, keep: bool, as_json: bool) -> Generator[Path]:
    """A folder for the time of the demo, or longer."""
    usual = tempfile.gettempdir()
    place = usual if len(usual) <= PLACE_MAX else "/tmp"
    root = Path(tempfile.mkdtemp(prefix="fencepost-demo-", dir=place))
    try:
        yield root
    finally:
        if keep:
            told = f"kept {root}; look at its store with: fencepost check sqlite:///{root / 'bridge.db'}"
            click.echo(told, err=as_json)
        else:
            shutil.rmtree(root)
