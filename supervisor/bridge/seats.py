"""Which panes are members of the fleet, and what proves that a request comes from one.

A member has a link token, made at its admission and told once, and usually a process, named by whoever launched it.
The token is good for the restricted fleet listener, the process for the local one; both end with the membership.

What is kept on the disk is the token's hash, so that a member outlives a restart of the bridge and its token cannot be
read from the file.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Final, Protocol

import trio
from attrs import define, field

from fencepost.supervisor import InvalidIdentifier
from fencepost.supervisor.bridge.escaped import error_told
from fencepost.supervisor.bridge.peers import PROC, Process, lineage, process
from fencepost.supervisor.bridge.private_files import read_private, replace_private

__all__ = ["Member", "NotThere", "SeatRegistry", "Seats"]

_VERSION: Final = 1
_NONE: Final[Mapping[str, Process]] = MappingProxyType({})


class NotThere(LookupError):  # noqa: N818 - as the errors of the mailbox
    """There is no such member, or no such process."""


@define(eq=False)
class Member:
    """One admission of one pane; a pane that is admitted again is another member."""

    pane_id: str
    link_sha256: str = field(repr=False)
    process: Process | None = None
    gone: trio.Event = field(factory=trio.Event, init=False, repr=False)
    """Set when the membership ends, so that nobody waits on its behalf."""


class SeatRegistry(Protocol):
    """What the listeners ask; `Seats` is one, and a launcher that keeps its own books may be another."""

    def by_link(self, token: str) -> Member | None:
        """The member that has this link token now."""
        ...

    def by_process(self, peer: Process) -> Member | None:
        """The member in whose pane this process lives now."""
        ...


class Seats:
    """The members, in a file of one's own or only in memory; `by_link`, `by_process` and `panes` never wait.

    `admit`, `occupy` and `dismiss` block for a small file, and may be called from any thread; on a loop that serves
    they are called with `durably`.

    Raises OSError if the file cannot be read and ValueError if it is damaged: who is a member is not guessed.  A change
    that cannot be written raises OSError and has not happened, here as little as in the file.
    """

    def __init__(self, path: Path | None = None, *, proc: Path = PROC) -> None:
        self._path = path
        self._proc = proc
        self._lock = Lock()
        self._members: dict[str, Member] = {}
        if path is not None and path.exists():
            self._members = _read(path)

    # -- for launchers --

    def admit(self, pane_id: str) -> str:
        """Make the pane a member and return its link token; an earlier membership of it ends.  Durable on return.

        Call it before the pane's process starts, since that is handed the token; then name it with `occupy`.
        """
        if not (1 <= len(pane_id) <= 256 and pane_id.isascii() and pane_id.isprintable()):
            raise InvalidIdentifier("pane_id", pane_id)
        token = secrets.token_urlsafe(32)
        with self._lock:
            ended = self._change(pane_id, Member(pane_id, _hash(token)))
        _tell(ended)
        return token

    def occupy(self, pane_id: str, pid: int) -> None:
        """Say that this process, with all its children, is what lives in the pane now.  Durable on return.

        Raises `NotThere` for a pane that is no member, and for a process that cannot be seen.
        """
        with self._lock:
            member, found = self._members.get(pane_id), process(pid, self._proc)
            if member is None or found is None:
                raise NotThere("no such member" if member is None else "no such process")
            self._write(self._members, {pane_id: found})
            member.process = found

    def dismiss(self, pane_id: str) -> bool:
        """End the pane's membership, and whatever waits on its behalf; False if it had none.  Durable on return."""
        with self._lock:
            if pane_id not in self._members:
                return False
            ended = self._change(pane_id, None)
        _tell(ended)
        return True

    def _change(self, pane_id: str, member: Member | None) -> Member | None:
        """Change the pane's member, and answer whose membership has ended by that.

        Write first, believe then: whoever was dismissed in memory alone would be a member again after a restart.
        """
        members = {other: kept for other, kept in self._members.items() if other != pane_id}
        if member is not None:
            members[pane_id] = member
        self._write(members)
        old, self._members = self._members.get(pane_id), members
        return old

    @property
    def panes(self) -> tuple[str, ...]:
        """The panes that are members now."""
        return tuple(self._members)

    # -- for listeners --

    def by_link(self, token: str) -> Member | None:
        """See `SeatRegistry`."""
        wanted = _hash(token)
        found = [one for one in self._members.values() if hmac.compare_digest(one.link_sha256, wanted)]
        return found[0] if found else None

    def by_process(self, peer: Process) -> Member | None:
        """See `SeatRegistry`; the nearest pane above the process is its own, where panes are nested."""
        panes = {one.process: one for one in self._members.values() if one.process is not None}
        return next((panes[one] for one in lineage(peer, self._proc) if one in panes), None)

    # -- the file --

    def _write(self, members: Mapping[str, Member], processes: Mapping[str, Process] = _NONE) -> None:
        """Write these members, with these processes instead of their own."""
        if self._path is None:
            return
        seats = [
            {
                "pane_id": one.pane_id,
                "link_sha256": one.link_sha256,
                "process": _numbers(processes.get(one.pane_id, one.process)),
            }
            for one in members.values()
        ]
        replace_private(self._path, json.dumps({"version": _VERSION, "seats": seats}))


def _tell(ended: Member | None) -> None:
    """Have nobody wait on behalf of a member that is none any more."""
    if ended is None:
        return
    try:
        trio.from_thread.run_sync(ended.gone.set)
    except RuntimeError:  # this is no thread of trio's: it is the loop's own, or there is none
        ended.gone.set()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path) -> dict[str, Member]:
    try:
        whole = json.loads(read_private(path))
        if whole["version"] != _VERSION:
            raise ValueError(f"version {whole['version']!r}")
        members = [
            Member(str(one["pane_id"]), str(one["link_sha256"]), _process(one["process"])) for one in whole["seats"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error_told(error)}; move it away, and admit the panes again") from error
    return {one.pane_id: one for one in members}


def _numbers(found: Process | None) -> list[int] | None:
    return None if found is None else [found.pid, found.started]


def _process(value: list[int] | None) -> Process | None:
    if value is None:
        return None
    pid, started = value
    return Process(int(pid), int(started))
