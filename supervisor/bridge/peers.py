"""Who is at the other end of a unix socket, and from which process it comes.

The kernel tells who connected (SO_PEERCRED), at the moment of the connect; /proc tells who that process's parents are.
A process id alone proves nothing, since it is used again: a process is its id *and* its start.

What counts is ancestry, and beside it the session: a process that was orphaned has init for a parent, but it cannot
join a session that it was not born in.  It could join a process group, so groups prove nothing.

Linux only.  Where there is no /proc or no SO_PEERCRED, nobody is proven and everybody is refused.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from attrs import frozen

__all__ = ["PROC", "Process", "Stat", "lineage", "peer_of", "process", "stat_of"]

PROC: Final = Path("/proc")
_GENERATIONS_MAX: Final = 256
_CREDENTIALS: Final = struct.Struct("3i")
_STAT_BYTES_MAX: Final = 4096
"""A stat has some fifty numbers and a name of at most 64 bytes; the kernel hands it out in one piece."""


@frozen
class Process:
    """One process, of all those that have had and will have its id."""

    pid: int
    started: int
    """In clock ticks since the boot."""


@frozen
class Stat:
    """What /proc says of a process now."""

    process: Process
    parent: int
    session: int


class _Socket(Protocol):
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def stat_of(pid: int, proc: Path = PROC) -> Stat | None:
    """What /proc says of this process id, or None: it is gone, or there is no /proc."""
    try:
        # By hand: each question of a hook reads some of these, and a file object costs more than all the rest.
        descriptor = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _STAT_BYTES_MAX)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    # The second field is the program's name in brackets, and the program chooses it: brackets, blanks and all.
    fields = text.rpartition(b")")[2].split()
    try:
        return Stat(Process(pid, int(fields[19])), parent=int(fields[1]), session=int(fields[3]))
    except (IndexError, ValueError):
        return None


def process(pid: int, proc: Path = PROC) -> Process | None:
    """The process that has this id now."""
    stat = stat_of(pid, proc)
    return None if stat is None else stat.process


def peer_of(connection: _Socket, proc: Path = PROC) -> Process | None:
    """The process that connected, if it is this user's and still there; call it as soon as it has connected."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    try:
        pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    except (OSError, struct.error):
        return None
    return process(pid, proc) if uid == os.getuid() and pid > 0 else None


def lineage(peer: Process, proc: Path = PROC) -> Iterator[Process]:
    """The process, its parents, nearest first, and last the leader of its session; nothing if it is gone.

    A parent that started after its child is somebody else, who got the id of one that died in between.
    """
    own = current = stat_of(peer.pid, proc)
    if own is None or current is None or own.process != peer:
        return
    for _ in range(_GENERATIONS_MAX):
        yield current.process
        above = stat_of(current.parent, proc) if current.parent > 1 else None
        if above is None or above.process.started > current.process.started:
            break
        current = above
    leader = stat_of(own.session, proc)
    if leader is not None and leader.process.started <= own.process.started:
        yield leader.process
