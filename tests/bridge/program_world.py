"""A whole bridge in the test's own process, with a program that behaves as Claude Code does in its panes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self, TypeVar

import trio
from attrs import frozen
from bridge.claude_program import install

from fencepost.supervisor import BaseTransition, Event, Pane, Supervisor
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.pane_processes import PaneProcesses
from fencepost.supervisor.bridge.panes import PaneSpec, Terminal
from fencepost.supervisor.bridge.private_files import private_folder
from fencepost.supervisor.bridge.program import Harnesses, open_bridge
from fencepost.supervisor.bridge.seats import Seats
from fencepost.supervisor.bridge.serve import Addresses, Endpoints, serve

PATIENCE_SECONDS = 60


class Driver:
    """Waits for runs of the program, and tells them what to do."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(PATIENCE_SECONDS)
        self.runs: list[Run] = []

    def next(self) -> Run:
        """The next run, once it has said its first prompt, if it was given one."""
        connection, _ = self.listener.accept()
        connection.settimeout(PATIENCE_SECONDS)
        self.runs.append(Run(connection))
        return self.runs[-1]

    def close(self) -> None:
        self.listener.close()
        for run in self.runs:
            run.lines.close()
            run.connection.close()


class Run:
    """The driver's end of one run."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lines = connection.makefile("rw")
        self.about = self._read()
        self.left: list[int] = []

    def _read(self) -> dict:
        line = self.lines.readline()
        assert line, "the program ended"
        return json.loads(line)

    async def ask(self, **members: object) -> dict:
        """In a thread: what the program does is answered by a bridge in this process."""
        self.tell(**members)
        return await trio.to_thread.run_sync(self._read)

    def tell(self, **members: object) -> None:
        print(json.dumps(members), file=self.lines, flush=True)

    async def leave(self, *argv: str, own_session: bool = True) -> int:
        """Have it start a program in the background; its pid."""
        self.left.append((await self.ask(leave=argv, own_session=own_session))["left"])
        return self.left[-1]

    async def batch(self, *calls: str) -> list[str | None]:
        """For each call of one model turn, why it was denied, or None: it ran."""
        return (await self.ask(batch=calls))["denied"]


class World:
    """Folders, the driver of the programs, and the bridge, which may be opened again and again."""

    driver: Driver

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bridge"
        self.home = folder / "home"
        self.program = folder / "bin" / "claude"
        self.tmux_server = f"fencepost-{folder.name}"

    @classmethod
    def new(cls, folder: Path) -> Self:
        """One of the test's own; another process may have a bridge there as well (`World`)."""
        private_folder(folder / "bridge")
        (folder / "home").mkdir()
        install(folder / "bin")
        made = cls(folder)
        made.driver = Driver(folder / "control")
        return made

    @property
    def environment(self) -> dict[str, str]:
        control = str(self.folder.parent / "control")
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "CLAUDE_CONTROL": control}

    def spec(self, **more) -> PaneSpec:
        settled = {"harness": "claude-code", "cwd": str(self.home), "environment": self.environment}
        return PaneSpec(argv=(str(self.program), "--model", "m"), **{**settled, "terminal": Terminal.NONE, **more})

    async def next_run(self) -> Run:
        return await trio.to_thread.run_sync(self.driver.next)

    @asynccontextmanager
    async def bridge(self, **harnesses) -> AsyncGenerator[Life]:
        """One life of the bridge, served and watched."""
        where: list[Endpoints] = []
        settings = Harnesses(**{"tmux_server": self.tmux_server, "stop_seconds": 1, "settle_seconds": 0, **harnesses})
        async with (
            open_bridge(
                self.folder,
                f"sqlite:///{self.folder / 'bridge.db'}",
                seats=Seats(self.folder / "seats.json"),
                operator_token="t" * 40,
                head_pane="head",
                harnesses=settings,
                fleet_url=lambda: where[0].fleet if where else None,
            ) as opened,
            trio.open_nursery() as nursery,
        ):
            listening = trio.Event()

            def started(endpoints: Endpoints) -> None:
                where.append(endpoints)
                listening.set()

            local = ("127.0.0.1", 0)
            addresses = Addresses(local, local, self.folder / "local.sock")

            async def served() -> None:
                await serve(opened.bridge, addresses, grace_seconds=1, started=started)

            nursery.start_soon(served)
            await listening.wait()
            nursery.start_soon(opened.watch)
            with trio.fail_after(PATIENCE_SECONDS):
                yield Life(opened.bridge, where[0])
            opened.bridge.stopping.asked.set()
            nursery.cancel_scope.cancel()


@frozen
class Life:
    """An open bridge, for tests."""

    bridge: Bridge
    endpoints: Endpoints

    @property
    def supervisor(self) -> Supervisor:
        return self.bridge.supervisor

    @property
    def pane(self) -> Pane:
        return self.supervisor.pane("left")

    @property
    def processes(self) -> PaneProcesses:
        assert self.bridge.processes is not None
        return self.bridge.processes

    async def until(self, wanted: Callable[[Event], bool], after: int = 0) -> Event:
        """The first event that is wanted, stored or still to come."""
        async for event in self.supervisor.events(after):
            if wanted(event):
                return event
        raise AssertionError("the events ended")

    async def kind(self, kind: str, after: int = 0) -> Event:
        return await self.until(lambda event: event.kind == kind, after)


W = TypeVar("W", bound=World)


def moved(number: int = 1) -> BaseTransition:
    return BaseTransition("parent_advance", f"main-{number}", f"main-{number + 1}", f"op-{number}", f"push-{number}")


@asynccontextmanager
async def world(kind: type[W] = World) -> AsyncGenerator[W]:
    folder = Path(tempfile.mkdtemp(prefix="fp-"))  # short: a socket's path may have some hundred bytes only
    made = kind.new(folder)
    try:
        yield made
    finally:
        made.driver.close()
        await trio.run_process(["tmux", "-L", made.tmux_server, "kill-server"], check=False, capture_stderr=True)
        shutil.rmtree(folder, ignore_errors=True)
