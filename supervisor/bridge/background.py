"""A bridge in the background, for whoever needs one and does not want to think of it: `fencepost run`.

Whether a bridge serves from a folder is told by the lock it holds on it, not by files a dead one may have left.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fencepost.supervisor.bridge.launchers.held import bridge_environment
from fencepost.supervisor.bridge.private_files import open_private, private_folder

__all__ = ["BridgeNotStarted", "ensure_served", "is_served"]

START_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05
_TAIL_BYTES: Final = 2_000
_PROGRAM: Final = "from fencepost.supervisor.cli import main; main(prog_name='fencepost')"


class BridgeNotStarted(Exception):  # noqa: N818 - what happened
    """No bridge could be started; the message says why, in its own words where it had some."""


def is_served(folder: Path) -> bool:
    """Whether a bridge serves from this folder now, or is about to.  Raises OSError for one that cannot be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def ensure_served(folder: Path, options: Sequence[str] = ()) -> bool:
    """See that a bridge serves from `folder`; True if it was started here.  Blocks until it says where it listens.

    The bridge outlives its starter; what it says goes to `bridge.log` in the folder.  Waits for one that is about to
    end.  Raises `BridgeNotStarted`, and OSError for a folder that cannot be used.
    """
    folder = folder.absolute()
    if _another_listens(folder):
        return False
    private_folder(folder)
    endpoints, log = folder / "endpoints.json", folder / "bridge.log"
    before = _seen(endpoints)
    with open(log, "ab", opener=open_private) as said:
        begun = said.tell()
        bridge = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-P", "-c", _PROGRAM, "serve", "--folder", str(folder), *options],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=folder,
            env=bridge_environment(),  # a pane's mark would have it end with the agent that happened to start it
            start_new_session=True,
        )
    try:
        _wait_for(endpoints, before, bridge)
    except BridgeNotStarted as failed:
        if bridge.returncode is not None and _another_listens(folder):  # somebody else was faster
            return False
        raise BridgeNotStarted(f"{failed}: {_tail(log, begun)}") from None
    bridge.returncode = 0  # it is meant to outlive this handle, which would complain when it is dropped
    return True


def _another_listens(folder: Path) -> bool:
    """Whether a bridge serves already; waits until it says where, or has ended."""
    deadline = time.monotonic() + START_SECONDS
    while is_served(folder):
        if _seen(folder / "endpoints.json") is not None:
            return True
        if time.monotonic() > deadline:
            raise BridgeNotStarted(f"the bridge that has {folder} does not listen after {START_SECONDS:g} seconds")
        time.sleep(_LOOK_SECONDS)
    return False


def _wait_for(endpoints: Path, before: tuple[int, int] | None, bridge: subprocess.Popen[bytes]) -> None:
    """Return once the bridge has written where it listens, anew if it was written `before`."""
    deadline = time.monotonic() + START_SECONDS
    while (now := _seen(endpoints)) is None or now == before:
        if bridge.poll() is not None:
            raise BridgeNotStarted(f"the bridge ended with status {bridge.returncode}")
        if time.monotonic() > deadline:
            raise BridgeNotStarted(f"the bridge does not listen after {START_SECONDS:g} seconds")
        time.sleep(_LOOK_SECONDS)


def _seen(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _tail(path: Path, begun: int) -> str:
    said = path.read_bytes()[begun:][-_TAIL_BYTES:]
    return said.decode(errors="replace").strip() or "it said nothing"
