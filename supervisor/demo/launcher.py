"""The Launcher: real processes, one an incarnation, killed and started on the supervisor's word.

How a process is known to be gone, also by a bridge that did not start it: it holds a lock on a file of its own from
before it exists until it ends, and the kernel lets the lock go with the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from fencepost.supervisor import IncarnationView, Launch

HARNESS = Path(__file__).with_name("harness.py")


class Processes:
    """Starts, stops and watches the harnesses of a demo; `died(pane_id)` is called for one that nobody stopped."""

    def __init__(
        self, root: Path, lifeline: int, nursery: trio.Nursery, died: Callable[[str], Awaitable[None]]
    ) -> None:
        self._folder = root / "processes"
        self._root = root
        self._lifeline = lifeline
        self._nursery = nursery
        self._died = died
        self._children: dict[Path, subprocess.Popen[bytes]] = {}
        self._stopped: set[Path] = set()
        self._folder.mkdir(exist_ok=True)

    async def stop(self, incarnation: IncarnationView) -> None:
        """SIGKILL, then wait until the process is gone; fine with one long gone."""
        path = self._folder / f"{incarnation.pane_id}.{incarnation.incarnation_id}"
        self._stopped.add(path)
        if path.exists():
            await trio.to_thread.run_sync(self._kill, path)
            path.unlink()

    async def start(self, launch: Launch) -> None:
        """Start the harness; its first input on stdin is the tagged payload, where there is one."""
        path = await trio.to_thread.run_sync(self._spawn, launch)
        self._nursery.start_soon(self._watch, path)

    def watch_survivors(self) -> None:
        """Go on watching the harnesses that an earlier bridge started."""
        for path in self._folder.iterdir():
            self._nursery.start_soon(self._watch, path)

    def _spawn(self, launch: Launch) -> Path:
        path = self._folder / f"{launch.pane_id}.{launch.incarnation_id}"
        startup_id, payload = None, b""
        if launch.startup is not None:
            startup_id, payload = launch.startup.startup_delivery_id, launch.startup.payload
        environment = {"DEMO_ROOT": str(self._root), "DEMO_LIFELINE": str(self._lifeline)}
        environment |= {"DEMO_PANE": launch.pane_id, "DEMO_INCARNATION": launch.incarnation_id}
        with path.open("w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the child inherits the lock and keeps it until it ends
            child = subprocess.Popen(
                [sys.executable, "-E", "-s", "-P", HARNESS],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(self._lifeline, lock.fileno()),
                cwd=self._root / "panes" / launch.pane_id,
                env=os.environ | environment,
            )
            lock.write(str(child.pid))
        self._children[path] = child
        tag = json.dumps({"startup_delivery_id": startup_id, "bytes": len(payload)})
        assert child.stdin is not None
        with child.stdin:
            child.stdin.write(tag.encode() + b"\n" + payload)
        return path

    def _kill(self, path: Path) -> None:
        with path.open("r+", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                process_id = lock.read()  # it lives, so the number is still its own
                if process_id:  # else its bridge died while starting it, and it ends for want of a first input
                    os.kill(int(process_id), signal.SIGKILL)
                fcntl.flock(lock, fcntl.LOCK_EX)

    async def _watch(self, path: Path) -> None:
        """Wait until a process ends; unless it was stopped, say so."""
        await trio.to_thread.run_sync(self._wait, path, abandon_on_cancel=True)
        if path not in self._stopped:
            await self._died(path.name.partition(".")[0])

    def _wait(self, path: Path) -> None:
        try:
            with path.open("r+", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
        except FileNotFoundError:
            return  # stopped before we came to watch it
        child = self._children.pop(path, None)
        if child is not None:
            child.wait()
