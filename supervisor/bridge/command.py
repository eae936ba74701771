"""`fencepost serve`: one process with an embedded store and three listeners, from its start to its exit status.

Its folder is private to the user and holds everything that it keeps:

    bridge.db        the store, unless another is named
    panes.json       what runs in each pane, with its environment
    incarnations/    the settings that each process was given
    launcher/        the notes of the processes
    output/          what processes without a terminal printed
    hook-spool/      what hooks let pass while no bridge was there
    operator.token   the operator's bearer token, made at the first start
    seats.json       the members of the fleet
    endpoints.json   where it listens now, and its store's URL; written at each start, taken away at a graceful end
    local.sock       the local listener, at the same path in every life
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio
from attrs import Factory, define, frozen

from fencepost.supervisor import FencepostError
from fencepost.supervisor.bridge.auth import operator_token
from fencepost.supervisor.bridge.limits import Stopping
from fencepost.supervisor.bridge.private_files import Unsafe, private_folder
from fencepost.supervisor.bridge.program import Harnesses, OpenBridge, absolute_store, open_bridge
from fencepost.supervisor.bridge.seats import Seats
from fencepost.supervisor.bridge.serve import Addresses, Endpoints, serve
from fencepost.supervisor.bridge.telemetry.logs import LogFormat, logging_to
from fencepost.supervisor.bridge.telemetry.telemetry import Telemetry

__all__ = ["ANSWERED", "CUT", "NOT_STARTED", "Settings", "run"]

log: Final = logging.getLogger("fencepost.bridge")

_LOCK_LOOKS: Final = 10
_LOCK_LOOK_SECONDS: Final = 0.02

ANSWERED: Final = 0
"""Stopped because it was asked to, and everybody was answered."""
CUT: Final = 1
"""Stopped with requests cut, by a second signal, or because the store failed."""
NOT_STARTED: Final = 2
"""It could not start; nothing was served."""


@frozen(kw_only=True)
class Settings:
    """What the command line says; addresses as (host, port), times in seconds."""

    folder: Path
    store: str | None = None
    operator: tuple[str, int] = ("127.0.0.1", 0)
    fleet: tuple[str, int] = ("127.0.0.1", 0)
    head_pane: str | None = None
    grace_seconds: float = 5.0
    log_format: LogFormat = "text"
    log_level: int = logging.INFO
    harnesses: Harnesses = Factory(Harnesses)


def run(settings: Settings, say: Callable[[str], None], complain: Callable[[str], None]) -> int:
    """Serve until a signal comes, and return the exit status.  `say` is told where it listens, `complain` what failed.

    SIGTERM and SIGINT end it gracefully; a second one cuts what is still under way.
    """
    life = _Life(settings, say)
    try:
        with logging_to(sys.stderr, settings.log_format, settings.log_level) as lines:
            trio.run(life.live, Telemetry(lines))
    except (FencepostError, OSError, ValueError) as error:
        complain(str(error))
        return NOT_STARTED if life.where is None else CUT
    if life.stopping.fault is not None:
        words = str(life.stopping.fault)
        complain(words if words.startswith("the store failed") else f"the store failed: {words}")
    return CUT if life.stopping.was_cut or life.stopping.fault is not None else ANSWERED


@define
class _Life:
    """One life of the bridge."""

    settings: Settings
    say: Callable[[str], None]
    stopping: Stopping = Factory(Stopping)
    where: Endpoints | None = None
    """Where it listens, once it does."""

    async def live(self, telemetry: Telemetry) -> None:
        """Open everything, serve, and close it again, in this order's reverse."""
        folder = private_folder(self.settings.folder.absolute())
        with _owned(folder):
            (folder / "endpoints.json").unlink(missing_ok=True)  # a killed life's: somebody else may listen there now
            token, seats = operator_token(folder / "operator.token"), Seats(folder / "seats.json")
            store = absolute_store(self.settings.store or f"sqlite:///{folder / 'bridge.db'}")
            async with open_bridge(
                folder,
                store,
                seats=seats,
                operator_token=token,
                head_pane=self.settings.head_pane,
                harnesses=self.settings.harnesses,
                stopping=self.stopping,
                telemetry=telemetry,
                fleet_url=lambda: None if self.where is None else self.where.fleet,
            ) as opened:
                await self._serve(opened, folder, store)

    async def _serve(self, opened: OpenBridge, folder: Path, store: str) -> None:
        addresses = Addresses(self.settings.operator, self.settings.fleet, folder / "local.sock")
        endpoints = folder / "endpoints.json"
        failure: Exception | None = None

        def started(where: Endpoints) -> None:
            nonlocal failure
            try:
                where.write(endpoints, store)
            except OSError as error:  # nobody would find it
                failure = error
                self.stopping.asked.set()
                return
            self.where = where
            nursery.start_soon(opened.watch)  # a process it starts is told where the listeners are
            try:
                self.say(f"operator {where.operator}\nfleet {where.fleet}\nlocal {where.local}")
            except OSError as error:  # whoever started it does not listen any more, or the disk of bridge.log is full
                log.warning("it could not be said where the listeners are: %s", error)

        async with trio.open_nursery() as nursery:
            await nursery.start(_obey_signals, self.stopping)
            await nursery.start(opened.bridge.telemetry.follow, opened.bridge.supervisor)
            try:
                await serve(opened.bridge, addresses, grace_seconds=self.settings.grace_seconds, started=started)
            except (OSError, ValueError) as error:
                failure = error  # raised outside the nursery, which would wrap it in a group
            finally:
                endpoints.unlink(missing_ok=True)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


@contextmanager
def _owned(folder: Path) -> Generator[None]:
    """Hold the folder against a second bridge, whatever store that has.  Raises `Unsafe`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _locked(descriptor):
            raise Unsafe(f"another bridge serves from {folder}")
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Take the lock; who only looks whether somebody has it holds it for a moment, so one look is not enough."""
    for _ in range(_LOCK_LOOKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_LOOK_SECONDS)
        else:
            return True
    return False


async def _obey_signals(stopping: Stopping, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """The first signal asks, the second cuts."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("%s", signal.Signals(number).name)
            if stopping.asked.is_set():
                stopping.cut()
            stopping.asked.set()
