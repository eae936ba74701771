"""Harnesses as child processes of the bridge, without a terminal."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fencepost.supervisor import Launch
from fencepost.supervisor.bridge.launchers.held import HELD_START, Command, HeldLauncher, bridge_environment

__all__ = ["ChildProcessLauncher"]

_GATE: Final = 3
_DEFAULT_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


class ChildProcessLauncher(HeldLauncher):
    """Starts each harness as a child in a session of its own; see `HeldLauncher` for what it promises.

    The harness reads `Command.stdin`, else nothing.  What it prints is appended to `output_for(launch)`, a path, or
    thrown away.  It outlives the bridge: the next one finds it by its note.
    """

    def __init__(
        self,
        command_for: Callable[[Launch], Command],
        state_dir: str | os.PathLike[str],
        *,
        grace_seconds: float = 5.0,
        socket_path: str | None = None,
        store_url: str | None = None,
        before_it_runs: Callable[[Launch, int], object] = lambda _launch, _pid: None,
        output_for: Callable[[Launch], str | os.PathLike[str]] = lambda _: os.devnull,
    ) -> None:
        super().__init__(
            command_for,
            state_dir,
            grace_seconds=grace_seconds,
            socket_path=socket_path,
            store_url=store_url,
            before_it_runs=before_it_runs,
        )
        self._output_for = output_for

    @contextmanager
    def _spawned(
        self,
        launch: Launch,
        marks: Mapping[str, str],
        command: Command,  # noqa: ARG002 - it comes through the gate
    ) -> Generator[tuple[int, socket.socket]]:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                pid = self._spawn(theirs.fileno(), marks, Path(self._output_for(launch)))
            self._children[launch.incarnation_id] = pid
            yield pid, ours

    def _spawn(self, gate: int, marks: Mapping[str, str], output: Path) -> int:
        # Not subprocess.Popen: the child is meant to outlive its handle, and a handle that is dropped complains.
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", str(HELD_START), str(_GATE)],
            {**bridge_environment(), **marks},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, gate, _GATE),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )
