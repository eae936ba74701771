"""The bridge's launcher: a pane's process in tmux or without a terminal, and its membership of the fleet.

    start     admit the pane (a fresh link token) ─▶ start, held at its gate ─▶ name the process ─▶ open the gate
    stop      the process is provably gone ─▶ the membership ends

So no hook of a process can come before the local listener knows the process, and none of a process that is gone is
served.  Both kinds of processes share one folder of notes, so any of them can be stopped without knowing its kind.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from fencepost.supervisor import IncarnationView, Launch
from fencepost.supervisor.bridge.hook_settings import remove_settings
from fencepost.supervisor.bridge.launchers import ChildProcessLauncher, Command, TmuxLauncher
from fencepost.supervisor.bridge.launchers.held import HeldLauncher
from fencepost.supervisor.bridge.panes import PaneBook, Terminal
from fencepost.supervisor.bridge.processes import ProcessNote
from fencepost.supervisor.bridge.seats import Seats

__all__ = ["PaneLauncher", "output_path"]

log: Final = logging.getLogger("fencepost.bridge")


@define(eq=False)
class PaneLauncher:
    """A `Launcher` for every pane of one bridge; runs on trio.

    `folder` is kept over restarts: `launcher/` for the notes, `output/` for what processes without a terminal print.
    """

    command_for: Callable[[Launch], Command]
    book: PaneBook
    seats: Seats
    links: dict[str, str] = field(repr=False)
    """The link tokens of this life's starts, by pane."""
    folder: Path
    socket_path: str
    store_url: str
    tmux_server: str = "fencepost"
    grace_seconds: float = 5.0
    _listeners: tuple[Callable[[str, str], None], ...] = field(default=(), init=False)
    _started: list[tuple[str, str]] = field(factory=list[tuple[str, str]], init=False)
    _child: ChildProcessLauncher = field(init=False)
    _tmux: TmuxLauncher = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the two launchers over one folder."""
        for name in ("launcher", "output"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        self._child = ChildProcessLauncher(
            self.command_for,
            self.folder / "launcher",
            grace_seconds=self.grace_seconds,
            socket_path=self.socket_path,
            store_url=self.store_url,
            before_it_runs=self._occupy,
            output_for=lambda launch: output_path(self.folder, launch.pane_id),
        )
        self._tmux = TmuxLauncher(
            self.command_for,
            self.folder / "launcher",
            server=self.tmux_server,
            session=self.tmux_server,
            grace_seconds=self.grace_seconds,
            socket_path=self.socket_path,
            store_url=self.store_url,
            before_it_runs=self._occupy,
        )

    def listen(self, *listeners: Callable[[str, str], None]) -> None:
        """Tell these, from trio, the pane and the incarnation of each process that this life starts, or has started.

        An opening runtime starts what it owes at once, before anybody can listen.
        """
        self._listeners = listeners
        for started in listeners:
            for pane_id, incarnation_id in self._started:
                started(pane_id, incarnation_id)

    # -- the Launcher --

    async def start(self, launch: Launch) -> None:
        """See `HeldLauncher.start`; the pane is a member while its process runs."""
        self.links[launch.pane_id] = self.seats.admit(launch.pane_id)
        try:
            await self._launcher_of(launch.pane_id).start(launch)
        except BaseException:
            self._dismiss(launch.pane_id)
            raise
        if not self._listeners:
            self._started.append((launch.pane_id, launch.incarnation_id))
        for started in self._listeners:
            started(launch.pane_id, launch.incarnation_id)

    async def stop(self, incarnation: IncarnationView) -> None:
        """See `HeldLauncher.stop`; when it returns, its settings are gone and the pane is no member any more."""
        await self._child.stop(incarnation)
        try:
            await trio.to_thread.run_sync(remove_settings, self.folder / "incarnations", incarnation.incarnation_id)
        except OSError as error:  # the process is gone, which is what counts
            log.warning("settings of incarnation %r could not be removed: %s", incarnation.incarnation_id, error)
        self._dismiss(incarnation.pane_id)

    def _launcher_of(self, pane_id: str) -> HeldLauncher:
        spec = self.book.get(pane_id)
        return self._child if spec is not None and spec.terminal is Terminal.NONE else self._tmux

    def _dismiss(self, pane_id: str) -> None:
        self.links.pop(pane_id, None)
        self.seats.dismiss(pane_id)

    def _occupy(self, launch: Launch, pid: int) -> None:
        """In a worker thread, while the process waits at its gate."""
        trio.from_thread.run_sync(self.seats.occupy, launch.pane_id, pid)

    # -- for whoever watches --

    async def processes(self) -> dict[str, ProcessNote]:
        """The live process of each pane, also of those an earlier bridge started.  Raises `DamagedNote`."""
        return await trio.to_thread.run_sync(self._child.processes)

    async def wait(self, incarnation_id: str) -> None:
        """Return when the incarnation's process is gone, whoever ended it; at once if there is none."""
        await self._child.wait(incarnation_id)

    async def attach_to(self, pane_id: str) -> tuple[str, ...] | None:
        """The command by which a person looks at the pane; None if it has no terminal.  Raises `TmuxError`."""
        if self._launcher_of(pane_id) is self._child:
            return None
        return await trio.to_thread.run_sync(self._tmux.attach_to, pane_id)


def output_path(folder: Path, pane_id: str) -> Path:
    """Where a process without a terminal prints to; a pane's id may hold slashes and dots."""
    return folder / "output" / f"{hashlib.sha256(pane_id.encode()).hexdigest()[:32]}.log"
