"""The bridge's launcher: a pane's process in tmux or without a terminal, and its membership of the fleet.

    start     what was intended is what runs (`PaneBook.launched`) ─▶ admit the pane (a fresh link token)
              ─▶ start, held at its gate ─▶ name the process ─▶ open the gate
    stop      the process is provably gone ─▶ the membership ends

So no hook of a process can come before the local listener knows the process, and none of a process that is gone is
served.  Both kinds of processes share one folder of notes, so any of them can be stopped without knowing its kind.

An opening runtime starts what it owes at once.  Those starts wait until the listeners are there (`open`): a process is
told once, in its environment, where they are.  And its stops wait until the book is settled: a launch comes after a
stop, so till then the store tells what an earlier life had launched.

What the runtime had decided to start in a pane that was ended meanwhile is declined: its incarnation is retired, which
takes the wish for another back, and no process is started for it.  The book keeps that it was ended, so it is declined
by whichever life of the bridge comes to start it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Container, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from fencepost.supervisor import IncarnationView, Launch
from fencepost.supervisor.bridge.durably import durably
from fencepost.supervisor.bridge.hook_settings import remove_settings
from fencepost.supervisor.bridge.launchers import (
    ChildProcessLauncher,
    Command,
    DamagedNote,
    LaunchError,
    TmuxError,
    TmuxLauncher,
)
from fencepost.supervisor.bridge.launchers.held import HeldLauncher
from fencepost.supervisor.bridge.panes import PaneBook, Terminal
from fencepost.supervisor.bridge.peers import Process
from fencepost.supervisor.bridge.private_files import private_folder
from fencepost.supervisor.bridge.processes import ProcessNote, StillRunning
from fencepost.supervisor.bridge.seats import NotThere, Seats

__all__ = ["PaneLauncher", "output_path", "tmux_server_of"]

log: Final = logging.getLogger("fencepost.bridge")

NOTES: Final = Path("launcher", "processes")
"""Below the bridge's folder, the notes of its processes."""
_LAST_WORDS_MAX: Final = 500


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
    tmux_server: str | None = None
    """None: the folder's own (`tmux_server_of`)."""
    grace_seconds: float = 5.0
    _listeners: tuple[Callable[[str, str], None], ...] = field(default=(), init=False)
    _decline: Callable[[str, str], Awaitable[object]] | None = field(default=None, init=False)
    _opened: trio.Event = field(factory=trio.Event, init=False)
    _settled: trio.Event | None = field(default=None, init=False)
    """Set once the book is settled; None: it is."""
    _epochs: dict[str, int] = field(factory=dict[str, int], init=False)
    """The last launch of each pane, as far as this life knows."""
    _current: dict[str, str] = field(factory=dict[str, str], init=False)
    """The incarnation whose process this life has started in a pane, or is starting."""
    _locks: dict[str, trio.Lock] = field(factory=dict[str, trio.Lock], init=False)
    _child: ChildProcessLauncher = field(init=False)
    _tmux: TmuxLauncher = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the two launchers over one folder."""
        for name in (NOTES.parent, "output"):
            private_folder(self.folder / name)
        self._child = ChildProcessLauncher(
            self.command_for,
            self.folder / NOTES.parent,
            grace_seconds=self.grace_seconds,
            socket_path=self.socket_path,
            store_url=self.store_url,
            before_it_runs=self._occupy,
            output_for=lambda launch: output_path(self.folder, launch.pane_id),
        )
        server = self.tmux_server or tmux_server_of(self.folder)
        self._tmux = TmuxLauncher(
            self.command_for,
            self.folder / NOTES.parent,
            server=server,
            session=server,
            grace_seconds=self.grace_seconds,
            socket_path=self.socket_path,
            store_url=self.store_url,
            before_it_runs=self._occupy,
        )

    def listen(self, *listeners: Callable[[str, str], None], decline: Callable[[str, str], Awaitable[object]]) -> None:
        """Tell these, from trio, the pane and the incarnation of each process that this life starts.

        `decline` retires an incarnation whose pane was ended, before it was started.
        """
        self._listeners, self._decline = listeners, decline

    def hold(self) -> None:
        """Stop nothing until the book is settled (`settle`)."""
        self._settled = trio.Event()

    async def settle(self, latest: Mapping[str, tuple[str, str | None, int]]) -> None:
        """Settle the book by what the store has launched last in each pane (`PaneBook.settle`), then stop and start.

        Raises OSError.
        """
        await durably(self.book.settle, latest)
        self._epochs.update({pane_id: epoch for pane_id, (_harness, _session_id, epoch) in latest.items()})
        if self._settled is not None:
            self._settled.set()

    def open(self) -> None:
        """The listeners are there: processes may be started."""
        self._opened.set()

    # -- the Launcher --

    async def start(self, launch: Launch) -> None:
        """See `HeldLauncher.start`; the pane is a member while its process runs.  Waits for `open`.

        `current` is this incarnation as soon as the start has begun.  Raises `LaunchError` also for a pane that was
        ended, or of which nothing is known; the incarnation is retired then.
        """
        await self._opened.wait()
        pane_id = launch.pane_id
        async with self._lock(pane_id):
            self._epochs[pane_id] = max(launch.epoch, self._epochs.get(pane_id, 0))
            await durably(self.book.launched, pane_id, launch.harness, launch.session_id, launch.epoch)
            # Nobody knows what to start where there is no entry; trying would only use the attempts up.
            if self.book.get(pane_id) is None or self.book.was_ended(pane_id):
                if self._decline is not None:
                    await self._decline(pane_id, launch.incarnation_id)
                raise LaunchError(f"pane {pane_id!r} was ended, or what ran in it is not known: start it by hand")
            self._current[pane_id] = launch.incarnation_id
            try:
                self.links[pane_id] = await durably(self.seats.admit, pane_id)
                await self._launcher_of(pane_id).start(launch)
            except BaseException:
                await self._dismiss(pane_id)
                raise
            for started in self._listeners:
                started(pane_id, launch.incarnation_id)

    async def stop(self, incarnation: IncarnationView) -> None:
        """See `HeldLauncher.stop`; when it returns, no process of the incarnation makes the pane a member any more.

        Waits for a start in the same pane, which may be this incarnation's.
        """
        if self._settled is not None:
            await self._settled.wait()
        async with self._lock(incarnation.pane_id):
            await self._child.stop(incarnation)
            await self._remove_settings(incarnation.incarnation_id)
            # Another's membership is not ended by a stop that comes late.
            if self._current.get(incarnation.pane_id, incarnation.incarnation_id) == incarnation.incarnation_id:
                await self._dismiss(incarnation.pane_id)

    async def _remove_settings(self, incarnation_id: str) -> None:
        try:
            await trio.to_thread.run_sync(remove_settings, self.folder / "incarnations", incarnation_id)
        except OSError as error:  # the process is gone, which is what counts
            log.warning("settings of incarnation %r could not be removed: %s", incarnation_id, ascii(str(error)))

    def _launcher_of(self, pane_id: str) -> HeldLauncher:
        spec = self.book.get(pane_id)
        return self._child if spec is not None and spec.terminal is Terminal.NONE else self._tmux

    def _lock(self, pane_id: str) -> trio.Lock:
        return self._locks.setdefault(pane_id, trio.Lock())

    async def _dismiss(self, pane_id: str) -> None:
        self._current.pop(pane_id, None)
        self.links.pop(pane_id, None)
        await durably(self.seats.dismiss, pane_id)

    def _occupy(self, launch: Launch, pid: int) -> None:
        """In a worker thread, while the process waits at its gate."""
        try:
            self.seats.occupy(launch.pane_id, pid)
        except NotThere as error:
            raise LaunchError(f"process {pid} of pane {launch.pane_id!r} cannot be made its member: {error}") from error

    async def forget(self, pane_id: str) -> None:
        """Keep nothing of what the pane's processes printed or showed; none lives.  Raises OSError, `TmuxError`."""
        await trio.to_thread.run_sync(partial(output_path(self.folder, pane_id).unlink, missing_ok=True))
        await trio.to_thread.run_sync(self._tmux.forget, pane_id)

    # -- for whoever watches --

    def current(self, pane_id: str) -> str | None:
        """The incarnation whose process this life has started in the pane, or is starting now."""
        return self._current.get(pane_id)

    def epoch(self, pane_id: str) -> int:
        """The number of the pane's last launch, as far as this life knows; 0 for none."""
        return self._epochs.get(pane_id, 0)

    async def processes(self) -> dict[str, ProcessNote]:
        """The live process of each pane, also of those an earlier bridge started.

        One whose note is damaged is not among them; it cannot be stopped either, so nothing is started beside it.
        """
        return await trio.to_thread.run_sync(self._child.processes)

    async def note_of(self, incarnation_id: str) -> ProcessNote | None:
        """See `HeldLauncher.note_of`."""
        return await trio.to_thread.run_sync(self._child.note_of, incarnation_id)

    async def take_over(self, live: Mapping[str, str], retired: Container[str]) -> dict[str, ProcessNote]:
        """Answer `processes`, after an earlier life of the bridge that may have lost what it had written.

        `live` are the incarnations that the store holds live, by pane, `retired` those that are over.  A process of one
        that is over is ended, and so is one without a note: nobody could watch it.  So is what a process that has ended
        by itself left running.  One that is no member, since what is kept of the fleet was lost, is a member again: its
        link token is gone, but the local listener knows it, and answers its hooks.
        """
        async with trio.open_nursery() as nursery:
            for pane_id, incarnation_id in live.items():
                try:
                    noted = await self.note_of(incarnation_id) is not None
                except DamagedNote as error:  # its pane's matter, told again by whoever starts there
                    log.warning("pane %r: %s", pane_id, ascii(str(error)))
                    continue
                if not noted:
                    nursery.start_soon(self.end, pane_id, incarnation_id)
            over = [note for note in (await self.processes()).values() if note.incarnation_id in retired]
            for note in (*over, *await trio.to_thread.run_sync(self._child.ended)):
                nursery.start_soon(self.end, note.pane_id, note.incarnation_id)
        living = await self.processes()
        for note in living.values():
            member = self.seats.by_process(Process(note.pid, note.start_time))
            if member is None or member.pane_id != note.pane_id:
                await durably(self.seats.admit, note.pane_id)
                await durably(self.seats.occupy, note.pane_id, note.pid)
        return living

    async def end(self, pane_id: str, incarnation_id: str) -> None:
        """See `stop`; what stands in the way is logged, and told again by whoever starts something there.

        A process that is gone already may have left others: they are ended as well.
        """
        try:
            await self.stop(IncarnationView(incarnation_id, pane_id, 0, "", None, 0, None))
        except (DamagedNote, StillRunning, OSError) as error:
            log.warning("pane %r: %s", pane_id, ascii(str(error)))

    async def last_words(self, pane_id: str) -> str:
        """The last lines that the pane's terminal shows; empty where it has none, or cannot be asked."""
        try:
            shown = await trio.to_thread.run_sync(self._tmux.shown_in, pane_id)
        except TmuxError:
            return ""
        return " / ".join(line.strip() for line in shown.splitlines() if line.strip())[-_LAST_WORDS_MAX:]

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


def tmux_server_of(folder: Path) -> str:
    """The name of the folder's own tmux server: a window is found by its pane alone, and other bridges have such panes.

    However the folder is reached, it is the same.  Blocks.
    """
    return f"fencepost-{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:10]}"
