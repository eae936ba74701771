"""What the program reads, and where it looks for it unless it is told."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from fencepost.mailbox.address import ID_LENGTH_MAX, check_id
from fencepost.mailbox.errors import FencepostError, InvalidIdentifier
from fencepost.mailbox.mutation import DeadLetter, Event
from fencepost.mailbox.stores.store import StoreReader, open_reader
from fencepost.supervisor.bridge.client import store_kept_by
from fencepost.supervisor.bridge.folder import default_folder
from fencepost.supervisor.cli.output import Failed, shown

__all__ = [
    "FOLDER",
    "HARNESSES",
    "PAGE",
    "URL",
    "Seconds",
    "default_folder",
    "in_folder",
    "needing_extra",
    "pages",
    "pane_id",
    "readable",
    "reading",
    "store_named",
]

T = TypeVar("T", Event, DeadLetter)

PAGE: Final = 1_000
"""How many events or dead letters are held at once."""

HARNESSES: Final = ("claude-code", "codex", "opencode")
"""The harnesses that a bridge has an adapter for."""


FOLDER: Final = click.option(
    "--folder", type=click.Path(path_type=Path), help="The bridge's folder [$XDG_STATE_HOME/fencepost]."
)
URL: Final = click.argument("url", metavar="[URL]", required=False)


class Seconds(click.FloatRange):
    """A time between two bounds, both allowed; `nan` is neither below one nor above the other, and is refused here."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """The number."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{number} is no time; it must be in the range {self._describe_range()}.", param, ctx)
        return number


def pane_id(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """The callback of what names a pane."""
    if text is None:
        return None
    try:
        return check_id("pane", text)
    except InvalidIdentifier:
        words = f"{shown(repr(text))[:100]}: it must be printable ASCII of 1 to {ID_LENGTH_MAX} characters"
        raise click.BadParameter(words) from None


def in_folder(folder: Path | None) -> str:
    """What a command that is told of must have after it, to speak to the same bridge: nothing, or ` --folder F`."""
    return "" if folder is None else f" --folder {shown(shlex.quote(str(folder)))}"


def store_named(url: str | None, folder: Path | None) -> str:
    """The store that a command is to read: the one named, or that of the bridge's folder."""
    if url is not None:
        if folder is not None:
            raise click.UsageError("name a store or a folder, not both")
        return url
    folder = (folder or default_folder()).absolute()
    if (store := store_kept_by(folder)) is not None:
        return store
    path = folder / "bridge.db"
    if not path.exists():
        raise Failed(f"there is no {path}: no bridge has served from {folder}; name its --folder, or a store's URL")
    return f"sqlite:///{path}"


_HOW_TO_INSTALL: Final = "install the extra `bridge`, from a checkout with: pip install '.[bridge]'"


@contextmanager
def needing_extra() -> Generator[None]:
    """Import within what needs the extra `bridge`; where it is not installed, exit status 2 with what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("fencepost"):
            raise
        raise Failed(f"there is no {error.name}: {_HOW_TO_INSTALL}") from error


@contextmanager
def readable() -> Generator[None]:
    """What goes wrong with a store becomes exit status 2."""
    try:
        yield
    except (FencepostError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise Failed(error) from error


@contextmanager
def reading(url: str) -> Generator[StoreReader]:
    """Open a reader and hold one moment of the store; what goes wrong becomes exit status 2."""
    with readable(), open_reader(url) as reader, reader.snapshot():
        yield reader


def pages(read: Callable[[int, int | None], list[T]], after: int, limit: int | None) -> Iterator[T]:
    """Yield what `read` answers, page by page."""
    left = limit
    while page := read(after, PAGE if left is None else min(PAGE, left)):
        yield from page
        after = page[-1].seq or after
        if left is not None:
            left -= len(page)
            if left == 0:
                return
