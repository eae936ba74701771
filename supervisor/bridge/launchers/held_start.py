"""The program that becomes a harness: it starts, is written down, and only then executes what it is told.

    python -I -S held_start.py FD | SOCKET_PATH

It waits at a gate, one connected socket, for a JSON object with `argv`, `env`, `keep`, `cwd` and `stdin`, and becomes
that program: same pid, same session, same start time.  If the gate closes first, whoever started it has died before the
note was durable; it ends and has run nothing.  The gate closes with the exec; what is said through it before that is
why there was none.

A program of its own with the standard library alone, so that it is there in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from typing import Any, Final

NOTHING_RAN: Final = 127
_PR_SET_CHILD_SUBREAPER: Final = 36


def main(gate: str) -> int:
    """Wait at the gate and become the program; returns an exit code only if that cannot be."""
    with _connected(gate) as connection:
        _close_the_rest(connection.fileno())
        with connection.makefile("rb") as lines:
            order = lines.readline()
        if not order.endswith(b"\n"):
            return NOTHING_RAN
        try:
            _become(json.loads(order))
        except (OSError, ValueError) as error:
            connection.sendall(str(error).encode(errors="replace"))
    return NOTHING_RAN


def _connected(gate: str) -> socket.socket:
    if gate.isdigit():
        os.set_inheritable(int(gate), False)
        return socket.socket(fileno=int(gate))
    connection = socket.socket(socket.AF_UNIX)
    folder = os.open(os.path.dirname(gate), os.O_PATH)  # noqa: PTH120 - pathlib takes longer to import than this runs
    try:  # a socket's path may have some hundred bytes only, a folder's more
        connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(gate)}")  # noqa: PTH119
    finally:
        os.close(folder)
    return connection


def _close_the_rest(kept: int) -> None:
    """What this process inherited by accident is none of the harness's business."""
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _become(order: dict[str, Any]) -> None:
    # Orphans of the harness become its children and not init's, so that they can be told from strangers.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    if order["stdin"] is not None:
        descriptor = os.open(order["stdin"], os.O_RDONLY)
        os.dup2(descriptor, 0)
        os.close(descriptor)
        os.unlink(order["stdin"])  # noqa: PTH108
    if order["cwd"] is not None:
        os.chdir(order["cwd"])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an exec keeps that
        signal.signal(number, signal.SIG_DFL)
    kept = {name: os.environ[name] for name in order["keep"] if name in os.environ}
    argv = order["argv"]
    os.execvpe(argv[0], argv, {**order["env"], **kept})  # noqa: S606 - there is no shell, on purpose


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
