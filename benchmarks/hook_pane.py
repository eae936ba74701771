"""One pane's process: does what it is told a line at a time, and answers with the seconds that each took.

    python -I -S hook_pane.py

    {"do": "ask", "socket": PATH, "request": TEXT, "times": N}       over one open connection, one after the other
    {"do": "run", "command": [ARG, …], "environment": {…}, "event": TEXT, "times": N}
                                        a process each, from before its start to the end of what it prints

Standard library only, and started like the hook program itself, so that 64 of it are small.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time


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


def main() -> None:
    for line in sys.stdin:
        told = json.loads(line)
        if told["do"] == "ask":
            samples = ask(told["socket"], told["request"].encode(), told["times"])
        else:
            samples = run(told["command"], told["environment"], told["event"].encode(), told["times"])
        print(json.dumps(samples), flush=True)


if __name__ == "__main__":
    main()
