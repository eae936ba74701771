"""URLs of fresh stores, of each kind there is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

KINDS = ("memory", "sqlite", "jsonl")

_RUNS = itertools.count()


def urls(folder: Path, kind: str) -> Callable[[str], str]:
    """A function from a name to the URL of a store nobody has had before; a memory store is found again by it."""
    run = next(_RUNS)
    if kind == "memory":
        return lambda name: f"memory://run-{run}-{name}"
    return lambda name: f"{kind}:///{folder}/{run}-{name}.{kind}"


def lock_of(url: str) -> Path:
    """The lock file of a store that has one."""
    return Path(url.partition(":///")[2] + ".lock")
