"""One pane's process: does what it is told a line at a time, and answers with the seconds that each took.

    python -I -S hook_pane.py

    {"do": "ask", "socket": PATH, "request": TEXT, "times": N}       over one open connection, one after the other
    {"do": "call", "address": [HOST, PORT], "request": TEXT, "times": N}   over a new TCP connection each
    {"do": "run", "command": [ARG, …], "environment": {…}, "event": TEXT, "times": N}
                                        a process each, from before its start to the end of what it prints
    {"do": "flood", "with": "requests", "socket": PATH, "request": TEXT, "connections": N}
    {"do": "flood", "with": "connects", "address": PATH or [HOST, PORT], "connections": N}
    {"do": "calm"}                      a flood goes on until then, whatever it is answered

Standard library only, and started like the hook program itself, so that 64 of it are small.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from typing import Any, Final

CALL_SECONDS: Final = 2.0


def ask(path: str, request: bytes, times: int) -> list[float]:
    """Seconds of each exchange.  One that is not counted goes before: it is the connection's."""
    samples = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        for _ in range(times + 1):
            started = time.perf_counter()
            connection.sendall(request)
            answer = exchanged(connection)
            samples.append(time.perf_counter() - started)
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise SystemExit(f"answered {answer[:300]!r}")
    return samples[1:]


def call(address: tuple[str, int], request: bytes, times: int) -> list[float]:
    """Seconds of each exchange, with the connecting; one that has no answer in `CALL_SECONDS` counts as so long."""
    samples = []
    for _ in range(times):
        started = time.perf_counter()
        with contextlib.suppress(OSError, SystemExit), socket.create_connection(address, CALL_SECONDS) as connection:
            connection.sendall(request)
            if exchanged(connection).startswith(b"HTTP/1.1 200 "):
                samples.append(time.perf_counter() - started)
                continue
        samples.append(CALL_SECONDS)
    return samples


def exchanged(connection: socket.socket) -> bytes:
    """One whole answer."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += received(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += received(connection)
    return head


def received(connection: socket.socket) -> bytes:
    part = connection.recv(65_536)
    if not part:
        raise SystemExit("the server hung up")
    return part


def run(command: list[str], environment: dict[str, str], event: bytes, times: int) -> list[float]:
    """Seconds of each process.  What it prints must be nothing: the call is let run."""
    samples = []
    for _ in range(times):
        to_read, its_stdout = os.pipe()
        its_stdin, to_write = os.pipe()
        redirected = [(os.POSIX_SPAWN_DUP2, its_stdin, 0), (os.POSIX_SPAWN_DUP2, its_stdout, 1)]
        started = time.perf_counter()
        pid = os.posix_spawn(command[0], command, environment, file_actions=redirected)
        os.close(its_stdin)
        os.close(its_stdout)
        os.write(to_write, event)
        os.close(to_write)
        printed = os.read(to_read, 65_536)  # ends with the process, or with what it prints
        samples.append(time.perf_counter() - started)
        os.close(to_read)
        _, status = os.waitpid(pid, 0)
        if printed or status:
            raise SystemExit(f"it printed {printed[:300]!r} and ended with {status}")
    return samples


class Flood:
    """Processes of this pane that ask, or connect, without an end."""

    def __init__(self) -> None:
        self._pids: list[int] = []

    def begin(self, told: dict[str, Any]) -> None:
        for _ in range(told["connections"]):
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(BaseException):
                    self._for_ever(told)
                os._exit(1)
            self._pids.append(pid)

    def end(self) -> None:
        while self._pids:
            pid = self._pids.pop()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    @staticmethod
    def _for_ever(told: dict[str, Any]) -> None:
        while True:
            with contextlib.suppress(OSError, SystemExit):
                if told["with"] == "connects":
                    connect(told["address"]).close()
                    continue
                with connect(told["socket"]) as connection:
                    while True:
                        connection.sendall(told["request"].encode())
                        exchanged(connection)


def connect(address: str | list[Any]) -> socket.socket:
    if isinstance(address, list):
        return socket.create_connection((address[0], address[1]), CALL_SECONDS)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return connection


def done(told: dict[str, Any], flood: Flood) -> list[float]:
    match told["do"]:
        case "ask":
            return ask(told["socket"], told["request"].encode(), told["times"])
        case "call":
            return call((told["address"][0], told["address"][1]), told["request"].encode(), told["times"])
        case "run":
            return run(told["command"], told["environment"], told["event"].encode(), told["times"])
        case "flood":
            flood.begin(told)
        case "calm":
            flood.end()
        case _:
            raise SystemExit(f"told to do {told['do']!r}")
    return []


def main() -> None:
    flood = Flood()
    try:
        for line in sys.stdin:
            print(json.dumps(done(json.loads(line), flood)), flush=True)
    finally:
        flood.end()


if __name__ == "__main__":
    main()
