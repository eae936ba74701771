"""Runs the hook program as harnesses do: a process with an event on stdin, an environment, and a deadline."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attrs import frozen

from fencepost.supervisor.bridge import hook

PROGRAM = [sys.executable, "-I", "-S", hook.__file__]
SLOW_MACHINE = 20.0
"""How much longer than it should a process may take before a test calls it late."""


@frozen
class Ran:
    """What became of one hook process."""

    stdout: bytes
    stderr: str
    seconds: float

    @property
    def reason(self) -> str:
        """Why the call was denied; the test fails if it was not."""
        said = json.loads(self.stdout)["hookSpecificOutput"]
        assert (said["hookEventName"], said["permissionDecision"]) == ("PreToolUse", "deny")
        return said["permissionDecisionReason"]


class Place:
    """A folder for a socket (whose path must be short), a spool and a store, and the environment that names them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "local.sock"
        self.spool = folder / "hook-spool"
        self.environment = {
            "FENCEPOST_PANE": "pane/1",
            "FENCEPOST_INCARNATION": "incarnation-1",
            "FENCEPOST_SOCKET": str(self.socket),
            "FENCEPOST_STORE": f"sqlite:///{folder / 'bridge.db'}",
        }

    def start(
        self, event: str = "PreToolUse", *, deadline: float = 3, harness: str = "claude-code", **environment: str
    ):
        options = ["--harness", harness, "--event", event, "--deadline", str(deadline)]
        return started([*PROGRAM, *options], {**self.environment, **environment})

    def run(self, said: dict[str, Any] | bytes, event: str = "PreToolUse", *, deadline: float = 3, **more: str) -> Ran:
        """Run a hook to its end; it always exits with 0, and never later than its deadline."""
        process = self.start(event, deadline=deadline, **more)
        return finish(process, said, deadline)

    def spooled(self) -> list[Any]:
        return [json.loads(line) for file in self.spool.glob("*") for line in file.read_bytes().splitlines()]


def started(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


def finish(process, said, deadline) -> Ran:
    begun = time.monotonic()
    data = said if isinstance(said, bytes) else json.dumps(said).encode()
    try:
        stdout, stderr = process.communicate(data, timeout=deadline + SLOW_MACHINE)
    finally:
        process.kill()
    assert process.returncode == 0
    return Ran(stdout, stderr.decode("ascii"), time.monotonic() - begun)


def call(call_id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"hook_event_name": "PreToolUse", "tool_use_id": call_id, "prompt_id": "p1", **more}


@contextmanager
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="fp-"))
    try:
        yield Place(folder)
    finally:
        shutil.rmtree(folder)


@contextmanager
def served(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[list[bytes]]:
    """A listener that does `answer` with every connection; hands out what was asked, head and body."""
    asked: list[bytes] = []
    ended = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0.05)

        def serve_one(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                connection.settimeout(SLOW_MACHINE)
                asked.append(request_of(connection))
                answer(connection)

        def serve() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    connection, _ = listener.accept()
                    threads.append(threading.Thread(target=serve_one, args=[connection]))
                    threads[-1].start()

        threads = [threading.Thread(target=serve)]
        threads[0].start()
        try:
            yield asked
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def request_of(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += received(connection)
    return head + b"\r\n\r\n" + body


def received(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise ConnectionResetError("the hook has gone")
    return data


def response(body: Any, status: str = "200 OK", *headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def asked_of(request: bytes) -> tuple[str, Any]:
    head, _, body = request.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), json.loads(body)
