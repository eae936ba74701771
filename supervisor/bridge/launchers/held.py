"""What both launchers share: a start that no crash can leak, and a stop that proves its end (contract I-11).

Theory of operation
===================

    bridge                                          the process
    ------                                          -----------
    spawn  ─────────────────────────────────────▶  held_start: in a session of its own, marked, waits at the gate
    write the note (pid, start time, boot), synced
    open the gate: argv, environment  ──────────▶  becomes the harness; the gate closes with the exec
    return

Dead before the gate was opened: the gate is closed by the kernel, and the process ends without having run anything.
Dead later: the note is durable.  Either way the next bridge's `stop` also finds the process by the mark in its
environment, note or not.

Stopping needs neither the handle nor the program that started the process; `processes` is the proof.  Whom a stop finds
is added to the note before anybody is signalled, and the note is removed only when all are gone.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen

from fencepost.supervisor import IncarnationView, Launch
from fencepost.supervisor.bridge.launchers.host_loop import to_its_end, until_called_off, until_readable
from fencepost.supervisor.bridge.launchers.notes import Notes
from fencepost.supervisor.bridge.processes import (
    INCARNATION_VARIABLE,
    Identity,
    ProcessNote,
    boot_id,
    identity_of,
    is_alive,
    stop_processes,
)

__all__ = ["HELD_START", "START_SECONDS", "Command", "HeldLauncher", "LaunchError", "bridge_environment", "of_no_pane"]

log: Final = logging.getLogger("fencepost.bridge")

HELD_START: Final = Path(__file__).with_name("held_start.py")
START_SECONDS: Final = 20.0
"""How long a start may take before it counts as failed; what was begun is then killed."""
_WATCH_SECONDS: Final = 0.2


class LaunchError(Exception):
    """A process could not be started; nothing of it is left."""


@frozen
class Command:
    """How a harness is started: its argv, what is added to the environment, and where it runs.

    `bare`: the environment is `environment` alone and not the bridge's own with that added.
    `stdin`: bytes the process reads as its standard input, for a harness that takes its first input there.  A child
    process reads from an empty input without it; a process in a terminal reads from the terminal.
    """

    argv: tuple[str, ...] = field(converter=tuple[str, ...], repr=False)
    environment: Mapping[str, str] = field(factory=dict[str, str], repr=False)
    cwd: str | None = None
    stdin: bytes | None = field(default=None, repr=False)
    bare: bool = False


class HeldLauncher(ABC):
    """A `Launcher` over real processes; see the module.

    `command_for` is called in a worker thread and may write files; what it raises counts as a failed start.
    `state_dir` is private to the launchers of one bridge, kept over restarts.  `grace_seconds`: between SIGTERM and
    SIGKILL.  `socket_path` and `store_url` are handed to the harness's hooks in its environment.  `before_it_runs` is
    called with the launch and the pid, in a worker thread, when the process is written down and has not run anything of
    the harness; what it raises counts as a failed start.

    Needs Linux (/proc); raises OSError without it.
    """

    kept_variables: tuple[str, ...] = ()
    """Variables that the place where the process runs decides, not the bridge."""
    noted_variables = ("HOME", "CLAUDE_CONFIG_DIR")
    """Variables that are kept in the note: they tell where a harness keeps what proves its turns."""

    def __init__(
        self,
        command_for: Callable[[Launch], Command],
        state_dir: str | os.PathLike[str],
        *,
        grace_seconds: float = 5.0,
        socket_path: str | None = None,
        store_url: str | None = None,
        before_it_runs: Callable[[Launch, int], object] = lambda _launch, _pid: None,
    ) -> None:
        boot_id()  # without /proc nothing here could be proved, so it fails now and not at the first stop
        self._command_for = command_for
        self._grace_seconds = grace_seconds
        self._socket_path = socket_path
        self._store_url = store_url
        self._before_it_runs = before_it_runs
        self._state_dir = Path(state_dir).absolute()
        self._notes = Notes(self._state_dir / "processes")
        self._children: dict[str, int] = {}

    # -- the Launcher --

    async def stop(self, incarnation: IncarnationView) -> None:
        """Return when every process of the incarnation is provably gone; fine with one long gone.

        Takes `grace_seconds` and some seconds more at most.  Raises `StillRunning`, or `DamagedNote` where the note
        cannot be read; the pane is then conflicted.
        """
        await until_called_off(partial(self._stop, incarnation.incarnation_id, self._grace_seconds))

    async def start(self, launch: Launch) -> None:
        """Start the process; its note is durable on return, and it has become the harness's program.

        Raises `LaunchError`, or what `command_for` or the disk raised; nothing of it is left then.  A start that is
        cancelled is first brought to its end, for at most `START_SECONDS`.
        """
        await to_its_end(partial(self._start, launch))

    # -- for whoever watches --

    def processes(self) -> dict[str, ProcessNote]:
        """Return the started processes by pane, also those an earlier bridge started; each leader is alive.

        Blocks for a few small files.  A damaged note is passed over: it tells no pane, and `stop` fails on it.
        """
        return {note.pane_id: note for note in self._notes.all() if is_alive(note)}

    def ended(self) -> list[ProcessNote]:
        """Return the started processes that have ended and were not stopped since: what they started may live on.

        Blocks for a few small files; a damaged note is passed over.
        """
        return [note for note in self._notes.all() if not is_alive(note)]

    def note_of(self, incarnation_id: str) -> ProcessNote | None:
        """Return what is known of an incarnation's process, None for nothing.  Blocks; raises `DamagedNote`."""
        return self._notes.read(incarnation_id)

    async def wait(self, incarnation_id: str) -> None:
        """Return when the process that was started is gone, whoever ended it; at once if there is none."""
        note = await to_its_end(partial(self.note_of, incarnation_id))
        if note is None or note.boot_id != boot_id():  # nothing outlives the machine; its number may be a stranger's
            return
        try:
            descriptor = os.pidfd_open(note.pid)
        except ProcessLookupError:
            return
        except (AttributeError, OSError):  # the kernel, or Python's build, has none
            await until_called_off(partial(_poll, note))
            return
        try:
            if identity_of(note.pid) == note.leader:
                await until_readable(descriptor)
        finally:
            os.close(descriptor)

    # -- the steps, blocking --

    def _stop(self, incarnation_id: str, grace_seconds: float, called_off: threading.Event | None = None) -> None:
        note = self._notes.read(incarnation_id)
        remember = partial(self._remember, note)
        found = stop_processes(
            incarnation_id, note, grace_seconds=grace_seconds, remember=remember, called_off=called_off
        )
        if note is not None and found and note.leader not in found:
            left = ", ".join(str(one.pid) for one in found)
            log.info("pane %r: what incarnation %r had left running is ended: %s", note.pane_id, incarnation_id, left)
        self._reap(incarnation_id)
        self._notes.remove(incarnation_id)

    def _remember(self, note: ProcessNote | None, found: frozenset[Identity]) -> None:
        if note is not None:  # without one there is nothing but the mark, and that stays
            self._notes.write(evolve(note, family=tuple(sorted(found, key=attrgetter("pid")))))

    def _start(self, launch: Launch) -> None:
        command = self._command_for(launch)
        try:
            with self._spawned(launch, self._marks(launch), command) as (pid, gate):
                self._note(launch, pid, command)
                self._before_it_runs(launch, pid)
                gate.settimeout(START_SECONDS)
                _open(gate, self._order(launch, command), command.argv[0])
        except BaseException:
            self._stop(launch.incarnation_id, 0)
            raise

    @abstractmethod
    def _spawned(
        self, launch: Launch, marks: Mapping[str, str], command: Command
    ) -> AbstractContextManager[tuple[int, socket.socket]]:
        """Spawn `held_start` as the leader of a session, with `marks` in its environment: its pid and its gate."""

    def _reap(self, incarnation_id: str) -> None:
        """Collect a child of our own that ended; what an earlier bridge started has another parent."""
        pid = self._children.get(incarnation_id)
        if pid is not None:
            with suppress(ChildProcessError):  # somebody else collected it
                os.waitpid(pid, os.WNOHANG)
            del self._children[incarnation_id]

    def _note(self, launch: Launch, pid: int, command: Command) -> None:
        identity = identity_of(pid)
        if identity is None:
            raise LaunchError("the process ended before it was written down")
        given = _environment_of(command)
        self._notes.write(
            ProcessNote(
                pane_id=launch.pane_id,
                incarnation_id=launch.incarnation_id,
                pid=pid,
                start_time=identity.start_time,
                boot_id=boot_id(),
                cwd=command.cwd if command.cwd is None else str(Path(command.cwd).absolute()),
                environment={name: value for name, value in given.items() if name in self.noted_variables},
            )
        )

    def _order(self, launch: Launch, command: Command) -> dict[str, object]:
        stdin = None
        if command.stdin is not None:
            stdin = str(self._notes.write_input(launch.incarnation_id, command.stdin))
        return {
            "argv": command.argv,
            "env": {**_environment_of(command), **self._marks(launch)},
            "keep": self.kept_variables,
            "cwd": command.cwd,
            "stdin": stdin,
        }

    def _marks(self, launch: Launch) -> dict[str, str]:
        marks = {"FENCEPOST_PANE": launch.pane_id, INCARNATION_VARIABLE: launch.incarnation_id}
        if self._socket_path is not None:
            marks["FENCEPOST_SOCKET"] = self._socket_path
        if self._store_url is not None:
            marks["FENCEPOST_STORE"] = self._store_url
        if launch.startup is not None:
            marks["FENCEPOST_STARTUP"] = launch.startup.startup_delivery_id
        return marks


def _environment_of(command: Command) -> dict[str, str]:
    return {**({} if command.bare else bridge_environment()), **command.environment}


def bridge_environment() -> dict[str, str]:
    """Return this process's environment without what speaks of a pane: a bridge may itself run in one."""
    return of_no_pane(os.environ)


def of_no_pane(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what speaks of a pane, be it of fencepost or of tmux."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("FENCEPOST_") and name not in {"TMUX", "TMUX_PANE"}
    }


def _open(gate: socket.socket, order: dict[str, object], program: str) -> None:
    """Let the process go on; return once it has become the program.

    Why it could not is told with the program's name alone: among its arguments is what its agent is told.
    """
    try:
        gate.sendall(json.dumps(order).encode() + b"\n")
        why = b"".join(iter(partial(gate.recv, 4096), b""))
    except TimeoutError as error:
        raise LaunchError(f"the process did not start within {START_SECONDS:g} seconds") from error
    except ConnectionError as error:
        raise LaunchError(f"the process ended before it could start: {error}") from error
    if why:
        raise LaunchError(f"{program!r:.200} could not be started: {why.decode(errors='replace')}")


def _poll(note: ProcessNote, called_off: threading.Event) -> None:
    """Watch a process where the kernel has no pidfd."""
    while is_alive(note) and not called_off.wait(_WATCH_SECONDS):
        pass
