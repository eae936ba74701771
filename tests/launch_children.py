"""Harnesses that behave badly: `launch_children.py FOLDER MODE`.

Each process of one tells its pid in a file of FOLDER, named for its part, once it is what it is to be.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
import time
from pathlib import Path

FOLDER, MODE = Path(sys.argv[1]), sys.argv[2]
SLEEP = "import sys, os, time; os.replace(sys.argv[1], sys.argv[2]); time.sleep(1000)"
"""A new program with nothing of the old one's environment; it is in place once the file has its name."""


def new_file(part: str) -> Path:
    path = FOLDER / f"{part}.new"
    path.write_text(str(os.getpid()), encoding="ascii")
    return path


def tell(part: str) -> None:
    new_file(part).rename(FOLDER / part)


def sleep(part: str) -> None:
    tell(part)
    time.sleep(1000)


def forget(part: str) -> None:
    """Go on with an empty environment, and say so from there."""
    paths = map(str, (new_file(part), FOLDER / part))
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", SLEEP, *paths], {})


def child(do, *args) -> int:
    pid = os.fork()
    if pid == 0:
        do(*args)
        os._exit(0)
    return pid


def daemon(do, part: str) -> None:
    """A double fork with a session of its own; nobody is left between it and init, or who collects its orphans."""

    def between() -> None:
        os.setsid()
        child(do, part)

    os.waitpid(child(between), 0)


def ignore(do, part: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    do(part)


def other_group() -> None:
    os.setpgid(0, 0)
    forget("other_group")


def own_session() -> None:
    os.setsid()
    ignore(sleep, "stray")


def last_thread() -> None:
    """End the first thread alone: the process shows as a zombie, and runs on."""

    def runs_on() -> None:
        while state() != "Z":
            time.sleep(0.001)
        sleep("leader")

    def state() -> str:
        return Path(f"/proc/{os.getpid()}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]

    threading.Thread(target=runs_on).start()
    exit_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
    ctypes.CDLL(None).syscall(exit_thread, 0)


def stop_myself() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("leader")
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)


match MODE:
    case "obeys":
        sleep("leader")
    case "ignores":
        ignore(sleep, "leader")
    case "ends":
        tell("leader")
    case "stray":
        child(own_session)
        sleep("leader")
    case "daemon":
        daemon(sleep, "daemon")
        ignore(sleep, "leader")
    case "forgetful_daemon":
        daemon(forget, "daemon")
        sleep("leader")
    case "other_group":
        child(other_group)
        sleep("leader")
    case "zombie":
        zombie = child(tell, "zombie")
        os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
        sleep("leader")
    case "stopped":
        stop_myself()
    case "last_thread":
        last_thread()
    case "left_daemon":  # the leader is gone, what it started is not, and still says whose it is
        daemon(sleep, "daemon")
        child(forget, "member")
        tell("leader")
    case "left_session":  # the same without the member, which a terminal would take along when it hangs up
        daemon(sleep, "daemon")
        tell("leader")
    case "left_unmarked":  # the leader is gone, and nothing that is left says whose it is, but for its session
        child(forget, "member")
        tell("leader")
    case _:
        raise ValueError(MODE)
