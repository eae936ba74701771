"""Harnesses in the panes of a tmux server of the bridge's own.

The server has its own socket (`tmux -L`) and no configuration, so nobody's tmux is touched and nobody's settings change
what happens here.  A window belongs to one fencepost pane, found by the user option `@fencepost-pane`, also by the next
bridge; it stays when its process ends (`remain-on-exit`), and the next process is started in it (`respawn-pane -k`).

Nothing is typed into a pane (protocol-delivery.md, invariant 10): the first input is part of the command line.  That
does not go through tmux, whose messages are small, but through the gate (`held_start`).  The harness is not told of
the server (TMUX is not in its environment), so that an agent's own `tmux kill-server` ends nobody else's pane.

That a process is gone is proved as for a child process; tmux is not asked, so a stop succeeds without it.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from fencepost.supervisor import Launch
from fencepost.supervisor.bridge.launchers.held import (
    HELD_START,
    START_SECONDS,
    Command,
    HeldLauncher,
    LaunchError,
    bridge_environment,
)
from fencepost.supervisor.bridge.private_files import private_folder

__all__ = ["TmuxError", "TmuxLauncher"]

PANE_OPTION: Final = "@fencepost-pane"
_ANSWER_SECONDS: Final = 10.0
_NOBODY: Final = re.compile(
    "no server running|error connecting to|server exited|lost server|no sessions|no current target|can't find session"
)
_SOMEBODY: Final = "duplicate session"
_TRIES_MAX: Final = 5
"""How often a session may have come or gone between two looks."""


class TmuxError(LaunchError):
    """tmux is not installed, does not answer, or refused a command; the message has its own words."""


class TmuxLauncher(HeldLauncher):
    """Starts each harness in its own tmux window; see `HeldLauncher` for what it promises.

    `server` names the private server's socket (`tmux -L`), `session` the session its windows are in; a name is
    letters, digits, "-" and "_".  `tmux` is the program.  The harness's standard input is the terminal, so
    `Command.stdin` is refused.
    """

    kept_variables = ("TERM",)

    def __init__(
        self,
        command_for: Callable[[Launch], Command],
        state_dir: str | os.PathLike[str],
        *,
        server: str = "fencepost",
        session: str = "fencepost",
        grace_seconds: float = 5.0,
        socket_path: str | None = None,
        store_url: str | None = None,
        before_it_runs: Callable[[Launch, int], object] = lambda _launch, _pid: None,
        tmux: str = "tmux",
    ) -> None:
        super().__init__(
            command_for,
            state_dir,
            grace_seconds=grace_seconds,
            socket_path=socket_path,
            store_url=store_url,
            before_it_runs=before_it_runs,
        )
        for name in (server, session):
            if not re.fullmatch(r"\w[\w-]{0,63}", name, re.ASCII):
                raise ValueError(f"a tmux name is up to 64 letters, digits, '-' and '_', not {name!r}")
        self._session = session
        self._tmux = (tmux, "-L", server, "-f", os.devnull)
        self._gates = private_folder(self._state_dir / "gates")
        self._making = threading.Lock()
        """Panes are made one after another: the first of them makes the server and the session."""

    def attach_to(self, pane_id: str) -> tuple[str, ...] | None:
        """The command by which a person looks at one pane; None where it has no window.  Blocks; raises `TmuxError`.

        Each run of it is a session of its own over the same windows, for as long as its terminal is attached.  A
        session has one current window, so in a shared one a look at another pane would move everybody's keys there.
        """
        target = self.panes().get(pane_id)
        if target is None:
            return None
        there = ("has-session", "-t", target)  # else a window that is gone would leave the person at somebody else's
        own = ("new-session", "-t", f"={self._session}", ";", "set-option", "destroy-unattached", "on")
        return (*self._tmux, *there, ";", *own, ";", "select-window", "-t", target)

    def shown_in(self, pane_id: str) -> str:
        """What the pane's terminal shows, with the lines that its end has moved out of sight; empty without a window.

        Blocks; raises `TmuxError`.
        """
        target = self.panes().get(pane_id)
        return "" if target is None else self._run("capture-pane", "-p", "-S", "-20", "-t", target)

    def panes(self) -> dict[str, str]:
        """Return tmux's own pane ids (`%3`) by fencepost pane; empty without a server.  Blocks.

        Raises `TmuxError` where there is no tmux, or none that answers.
        """
        try:
            listed = self._run("list-panes", "-a", "-F", f"#{{pane_id}} #{{{PANE_OPTION}}}")
        except TmuxError as error:
            if _NOBODY.search(str(error)):
                return {}
            raise
        pairs = (line.split(" ", 1) for line in listed.splitlines())
        return {pane_id: target for target, pane_id in pairs if pane_id}

    def forget(self, pane_id: str) -> None:
        """Take the pane's window away, and with it all that was shown there.  Blocks; raises `TmuxError`.

        Whatever still runs in it is hung up, so end it before.
        """
        target = self.panes().get(pane_id)
        if target is not None:
            self._run("kill-window", "-t", target)

    # -- the steps, blocking --

    @contextmanager
    def _spawned(
        self, launch: Launch, marks: Mapping[str, str], command: Command
    ) -> Generator[tuple[int, socket.socket]]:
        if command.stdin is not None:
            raise LaunchError("a process in a terminal reads from it, so Command.stdin cannot be given")
        with self._making:
            target = self.panes().get(launch.pane_id) or self._new_pane(launch.pane_id)
        with _listening(self._gates) as (path, listener):
            environment = [word for name, value in marks.items() for word in ("-e", f"{name}={value}")]
            waiting = (sys.executable, "-I", "-S", str(HELD_START), str(path))
            self._run("respawn-pane", "-k", "-t", target, *environment, "--", *waiting)
            pid = int(self._run("display-message", "-p", "-t", target, "#{pane_pid}"))
            with self._admitted(listener, pid) as gate:
                yield pid, gate

    def _new_pane(self, pane_id: str) -> str:
        """Make a window for a pane; what is in it has ended already, and the window stays."""
        window = re.sub(r"[^\w.-]", "_", pane_id, flags=re.ASCII)[:40]  # for people; tmux would expand other names
        target = self._new_window("-d", "-P", "-F", "#{pane_id}", "-n", window, "--", "true").strip()
        self._run("set-option", "-p", "-t", target, "remain-on-exit", "on")
        self._run("set-option", "-p", "-t", target, "--", PANE_OPTION, pane_id)
        return target

    def _new_window(self, *made: str) -> str:
        """Make a window of the session, or the session with it; another process may make or end that meanwhile."""
        keep = ("start-server", ";", "set-option", "-g", "exit-empty", "off", ";")
        stay = ("set-option", "-g", "remain-on-exit", "on", ";")
        sized = ("new-session", "-s", self._session, "-x", "200", "-y", "50")
        for tried in count(1):
            try:
                return self._run("new-window", "-t", f"={self._session}:", *made)
            except TmuxError as error:
                if not _NOBODY.search(str(error)):
                    raise
            try:
                return self._run(*keep, *stay, *sized, *made, separators=True)
            except TmuxError as error:
                if _SOMEBODY not in str(error) or tried == _TRIES_MAX:
                    raise
        raise AssertionError("unreachable")

    def _admitted(self, listener: socket.socket, pid: int) -> socket.socket:
        """Wait for exactly this process at the gate; whoever else knocks is turned away."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                gate, _ = listener.accept()
            except TimeoutError as error:
                raise LaunchError(f"the process did not come up in its pane within {START_SECONDS:g} s") from error
            if _peer(gate) == pid:
                return gate
            gate.close()

    def _run(self, *arguments: str, separators: bool = False) -> str:
        words = arguments if separators else tuple(map(_literal, arguments))
        try:
            done = subprocess.run(  # noqa: S603 - no shell, and every argument is literal
                [*self._tmux, *words],
                env=bridge_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_ANSWER_SECONDS,
                check=False,
            )
        except FileNotFoundError as error:
            raise TmuxError(
                f"there is no program {self._tmux[0]!r} in this bridge's PATH: install tmux, or start the bridge anew "
                "from a shell that has it"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise TmuxError(f"tmux did not answer {arguments[0]!r} within {_ANSWER_SECONDS:g} s") from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise TmuxError(f"tmux refused {arguments[0]!r}: {said:.500}")
        return done.stdout.decode(errors="replace")


@contextmanager
def _listening(folder: Path) -> Generator[tuple[Path, socket.socket]]:
    """Listen on a unix socket in a folder whose path may be longer than a socket's can be."""
    for left in folder.iterdir():  # by a bridge that died in the middle
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > 10 * START_SECONDS:
                left.unlink()
    path = folder / secrets.token_hex(8)
    descriptor = os.open(folder, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
            listener.listen()
            yield path, listener
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _literal(argument: str) -> str:
    """Return an argument so that tmux takes it as it is: one that ends in ";" would end the command."""
    return argument.removesuffix(";") + "\\;" if argument.endswith(";") else argument


def _peer(connection: socket.socket) -> int:
    """Return the pid of the other end, as the kernel has it."""
    size = struct.calcsize("3i")
    (pid, _user, _group) = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(pid)
