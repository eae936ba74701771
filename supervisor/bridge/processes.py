"""Which processes belong to an incarnation, and the proof that none of them is left.

Theory of operation
===================

A harness starts children, and those leave: into a session of their own, to init when their parent dies, with another
environment.  A parent's handle of one child proves nothing about them, and a bridge that was restarted has no handle.
So everything is read from /proc, and four marks say that a process belongs to an incarnation:

    leader       its pid and start time are those of the note that was written before it ran
    member       its session or process group is the leader's
    marked       its environment carries FENCEPOST_INCARNATION with this id
    descendant   its parent belongs

The harness is started as a *subreaper* (`held_start`), so while it lives, whatever it started stays its descendant.
Who was once found to belong is known by pid and start time and stays found, whatever it does to its marks.  What a stop
has found is written down before it sends a signal: the leader may be the first to go, and the bridge the next, and then
nothing else would tell whose child a child was.

A pid alone is never trusted.  Start times are compared within one boot; signals go through a pidfd that was opened
before the comparison.  A session's number is free for others once the leader and all members are gone, so when the
leader is gone before anybody looked and no member is marked, a member is a *doubt*: it is neither killed nor passed
over, and the stop says so and fails.

A stop asks (SIGTERM, and SIGCONT for who is stopped), waits the grace, then kills whatever a look finds, until two
looks in a row find nothing: one look is not an instant, and a process can fork behind it.  A zombie is gone; one whose
other threads still run is not.

It assumes that the bridge and its predecessors see the same processes: one machine, one pid namespace.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "INCARNATION_VARIABLE",
    "Family",
    "Identity",
    "ProcessNote",
    "ProcessStat",
    "StillRunning",
    "boot_id",
    "family",
    "identity_of",
    "is_alive",
    "parse_stat",
    "stop_processes",
]

INCARNATION_VARIABLE: Final = "FENCEPOST_INCARNATION"
KILL_SECONDS: Final = 5.0
"""How long what was killed may take to go; a process in an uninterruptible wait of the kernel may take longer."""
_LOOK_SECONDS: Final = 0.01
_PROC: Final = Path("/proc")


class StillRunning(Exception):  # noqa: N818 - says what is the case
    """Processes of an incarnation are left, or cannot be told from others; nothing may be started in its place."""


@frozen
class Identity:
    """One process, as long as the machine runs: pids are used again, with another start time (clock ticks)."""

    pid: int
    start_time: int


@frozen
class ProcessNote:
    """What is durable of a started process before it runs: enough for any later bridge to find it."""

    pane_id: str
    incarnation_id: str
    pid: int
    start_time: int
    boot_id: str
    family: tuple[Identity, ...] = ()
    """Who else was found to belong, once a stop has begun."""
    cwd: str | None = None
    """The folder it was started in, if its command named one."""
    environment: Mapping[str, str] = field(factory=dict[str, str], hash=False, repr=False)
    """What was noted of its environment (`HeldLauncher.noted_variables`)."""

    @property
    def leader(self) -> Identity:
        """The process that was started; its pid is also the number of its session and its process group."""
        return Identity(self.pid, self.start_time)


@frozen
class ProcessStat:
    """What /proc/PID/stat says of one process, and whether it carries the mark (None: its environment is not ours)."""

    identity: Identity
    parent: int
    pgid: int
    session: int
    state: str
    threads: int
    marked: bool | None = False

    @property
    def alive(self) -> bool:
        """Whether any of its threads can still run: a leader that ended shows as a zombie while others go on."""
        return self.state not in "ZXx" or self.threads > 1


@frozen
class Family:
    """Who belongs to an incarnation at one look."""

    alive: tuple[ProcessStat, ...] = ()
    doubts: tuple[ProcessStat, ...] = ()
    leader_seen: bool = False
    known: frozenset[Identity] = field(default=frozenset[Identity]())


def family(
    table: Mapping[int, ProcessStat], note: ProcessNote | None, known: Iterable[Identity], *, leader_seen: bool
) -> Family:
    """Say who in `table` belongs, by the four marks (see the module); pure.

    `known` are those found before.  `leader_seen`: an earlier look of this stop saw the leader, so that its number
    is still its own.
    """
    found = {pid for pid, stat in table.items() if stat.marked}
    found |= {identity.pid for identity in (*known, *(note.family if note else ())) if _is(table, identity)}
    doubtful: set[int] = set()
    if note is not None:
        if _is(table, note.leader):
            leader_seen = True
            found.add(note.pid)
        members = {pid for pid, stat in table.items() if note.pid in (stat.session, stat.pgid)}
        if leader_seen or members & found:  # one member that is ours for sure holds the number for all
            found |= members
        elif note.pid not in table:  # else the number is a stranger's, and was ours no more when he came
            doubtful = members - found
    found |= _descendants(table, found)
    return Family(
        alive=tuple(table[pid] for pid in sorted(found) if table[pid].alive),
        doubts=tuple(table[pid] for pid in sorted(doubtful - found) if table[pid].alive),
        leader_seen=leader_seen,
        known=frozenset(table[pid].identity for pid in found),
    )


def _is(table: Mapping[int, ProcessStat], identity: Identity) -> bool:
    return identity.pid in table and table[identity.pid].identity == identity


def _descendants(table: Mapping[int, ProcessStat], roots: set[int]) -> set[int]:
    children: dict[int, list[ProcessStat]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        parent = table[queue.pop()].identity
        for child in children.get(parent.pid, ()):
            # The table is not of one instant: a child older than its parent had another parent of that number.
            if child.identity.pid not in found and child.identity.start_time >= parent.start_time:
                found.add(child.identity.pid)
                queue.append(child.identity.pid)
    return found


def parse_stat(text: bytes) -> ProcessStat:
    """Read /proc/PID/stat; the name in it is the process's own and may hold anything, parentheses and line ends too."""
    before, _, after = text.rpartition(b")")
    words = after.split()
    return ProcessStat(
        identity=Identity(int(before.split(b" ", 1)[0]), int(words[19])),
        state=words[0].decode("ascii"),
        parent=int(words[1]),
        pgid=int(words[2]),
        session=int(words[3]),
        threads=int(words[17]),
    )


# -- the shell: /proc and signals --------------------------------------------------------------------------------


def boot_id() -> str:
    """Return the id of this boot of the machine.  Raises OSError where there is no Linux /proc."""
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identity_of(pid: int) -> Identity | None:
    """Return who has this pid now; None if nobody has."""
    stat = _stat_of(pid)
    return None if stat is None else stat.identity


def is_alive(note: ProcessNote) -> bool:
    """Whether the process of a note, its leader, still runs; says nothing about what that has started."""
    stat = _stat_of(note.pid)
    return stat is not None and stat.identity == note.leader and stat.alive and note.boot_id == boot_id()


def stop_processes(
    incarnation_id: str,
    note: ProcessNote | None,
    *,
    grace_seconds: float,
    remember: Callable[[frozenset[Identity]], object],
    called_off: threading.Event | None = None,
) -> tuple[Identity, ...]:
    """Return once nothing of the incarnation runs; blocks for at most the grace and `KILL_SECONDS`.

    The answer is who of it was alive when it was called.

    Without a note, or with one of an earlier boot, the environment's mark is what finds them.  A caller that is the
    leader's parent collects it only afterwards: even dead it keeps its number its own.  `remember` is called with all
    that were found, before any of them is signalled, and is to make them durable in the note's `family`.

    Raises `StillRunning`, naming what is left, also where a process can be ours and need not be, and whatever
    `remember` raises.  Setting `called_off` ends the waiting with `StillRunning`.
    """
    if note is not None and note.boot_id != boot_id():
        note = None  # nothing outlives the machine
    hunt = _Hunt(incarnation_id, note, remember, called_off or threading.Event())
    found = tuple(stat.identity for stat in hunt.seen.alive)
    hunt.signal_all(signal.SIGTERM, signal.SIGCONT)
    hunt.until_empty(grace_seconds)
    if not hunt.until_empty(KILL_SECONDS, kill=True):
        left = ", ".join(_told(stat) for stat in hunt.seen.alive)
        raise StillRunning(f"incarnation {incarnation_id!r} still runs after SIGKILL: {left}")
    if hunt.seen.doubts:
        doubts = ", ".join(_told(stat) for stat in hunt.seen.doubts)
        raise StillRunning(
            f"the leader of incarnation {incarnation_id!r} is gone, and these in its session {hunt.session} may be its "
            f"children or strangers: {doubts}; end them, or see that they end"
        )
    return found


class _Hunt:
    """One stop: what was seen so far, and the looks that bring it up to date."""

    def __init__(
        self,
        incarnation_id: str,
        note: ProcessNote | None,
        remember: Callable[[frozenset[Identity]], object],
        called_off: threading.Event,
    ) -> None:
        self._mark = f"{INCARNATION_VARIABLE}={incarnation_id}".encode()
        self._note = note
        self._remember = remember
        self._remembered = set[Identity]() if note is None else {note.leader, *note.family}
        self._called_off = called_off
        self.session = None if note is None else note.pid
        self.seen = Family()
        self.look()

    def look(self) -> bool:
        """Bring `seen` up to date; whether anything is alive."""
        seen = self.seen
        self.seen = family(_table(self._mark), self._note, seen.known, leader_seen=seen.leader_seen)
        if any(stat.identity.pid == os.getpid() for stat in self.seen.alive):
            raise StillRunning(f"this process ({os.getpid()}) belongs to the incarnation that it was to stop")
        if self.seen.known - self._remembered:
            self._remembered |= self.seen.known
            self._remember(frozenset(self._remembered))
        return bool(self.seen.alive)

    def until_empty(self, seconds: float, *, kill: bool = False) -> bool:
        """Look until two looks in a row found nothing, or the time is over; whether it was the former."""
        deadline = time.monotonic() + seconds
        empty = 0
        while True:
            empty = 0 if self.look() else empty + 1
            if empty == 2:
                return True
            if time.monotonic() >= deadline:
                return False
            if kill:
                self.signal_all(signal.SIGKILL)
            if self._called_off.wait(_LOOK_SECONDS):
                raise StillRunning("the stop was called off")

    def signal_all(self, *signals: signal.Signals) -> None:
        """Send the signals to all that are alive."""
        for stat in self.seen.alive:
            for number in signals:
                _send(stat.identity, number)


def _table(mark: bytes) -> dict[int, ProcessStat]:
    """Read the whole process table, in one pass."""
    pids = sorted(int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit())
    stats = (_stat_of(pid, mark) for pid in pids)
    return {stat.identity.pid: stat for stat in stats if stat is not None}


def _stat_of(pid: int, mark: bytes | None = None) -> ProcessStat | None:
    try:
        stat = parse_stat((_PROC / str(pid) / "stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return None
    if mark is None:
        return stat
    return ProcessStat(
        stat.identity, stat.parent, stat.pgid, stat.session, stat.state, stat.threads, _is_marked(stat, mark)
    )


def _is_marked(stat: ProcessStat, mark: bytes) -> bool | None:
    folder = _PROC / str(stat.identity.pid)
    try:
        environment = (folder / "environ").read_bytes()
        if not environment and stat.alive and stat.threads > 1:  # an ended leader shows none; its threads still do
            for task in (folder / "task").iterdir():
                environment += (task / "environ").read_bytes()
    except PermissionError:
        return None  # another user's, or one that hides itself; its session or its parents may tell
    except (FileNotFoundError, ProcessLookupError):
        return False
    return mark in environment.split(b"\0")


def _send(identity: Identity, number: signal.Signals) -> None:
    """Send a signal to exactly this process, or to nobody; one we may not signal is found alive by the next look."""
    with suppress(ProcessLookupError, PermissionError), _pinned(identity.pid) as descriptor:
        if identity_of(identity.pid) != identity:
            return
        if descriptor is None:
            os.kill(identity.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)


@contextmanager
def _pinned(pid: int) -> Generator[int | None]:
    """Hold a pidfd, which goes on meaning the same process; None where the kernel has none."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _told(stat: ProcessStat) -> str:
    return f"{stat.identity.pid} (state {stat.state}, session {stat.session}, start {stat.identity.start_time})"
