"""The durable notes of started processes: one small file each, written before the process may run.

A note is whole or absent (`private_files`).  One that cannot be
read is damage and never taken for none, because a process might be behind it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from attrs import asdict

from fencepost.supervisor.bridge.private_files import (
    Unsafe,
    open_private,
    private_folder,
    read_private,
    replace_private,
    sync_folder,
)
from fencepost.supervisor.bridge.processes import Identity, ProcessNote

__all__ = ["DamagedNote", "Notes"]

log: Final = logging.getLogger("fencepost.bridge")

_VERSION: Final = 1
_SUFFIX: Final = ".json"
_TYPES: Final = {
    "pane_id": str,
    "incarnation_id": str,
    "pid": int,
    "start_time": int,
    "boot_id": str,
}


class DamagedNote(Exception):  # noqa: N818 - as `CorruptRecord`
    """A note that no launcher can have written; its pane stays conflicted until somebody looks and removes it."""


class Notes:
    """The notes in one private folder.  All methods block; OSErrors of the disk pass through."""

    def __init__(self, folder: Path) -> None:
        self._folder = private_folder(folder)
        self._writing = Lock()
        self._complained = set[Path]()

    def write(self, note: ProcessNote) -> None:
        """Write a note; durable on return."""
        with self._writing:
            replace_private(self._path(note.incarnation_id), json.dumps({"version": _VERSION, **asdict(note)}))

    def read(self, incarnation_id: str) -> ProcessNote | None:
        """Return the note of an incarnation, None if there is none.  Raises `DamagedNote`."""
        path = self._path(incarnation_id)
        try:
            note = _decode(path)
        except FileNotFoundError:
            return None
        if note.incarnation_id != incarnation_id:
            raise DamagedNote(f"{path} is the note of another incarnation: {note.incarnation_id!r}")
        return note

    def write_input(self, incarnation_id: str, data: bytes) -> Path:
        """Leave what a process will read as its standard input; it removes the file when it has opened it."""
        path = self._path(incarnation_id).with_suffix(".stdin")
        with open(path, "wb", opener=open_private) as file:
            file.write(data)
        return path

    def remove(self, incarnation_id: str) -> None:
        """Forget an incarnation whose processes are gone; fine if there is no note.  Durable on return."""
        path = self._path(incarnation_id)
        path.with_suffix(".stdin").unlink(missing_ok=True)
        path.with_name(f"{path.name}.part").unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            path.unlink()
            sync_folder(self._folder)

    def all(self) -> list[ProcessNote]:
        """Return every note that can be read; the others are logged, once each."""
        found: list[ProcessNote] = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                found.append(_decode(path))
            except FileNotFoundError:
                continue  # removed since
            except DamagedNote as damage:
                if path not in self._complained:
                    self._complained.add(path)
                    log.warning("%s; nothing is started in its pane until it is gone", ascii(str(damage)))
        return found

    def _path(self, incarnation_id: str) -> Path:
        # An id may hold whatever is printable, a slash too.
        return self._folder / (hashlib.sha256(incarnation_id.encode()).hexdigest() + _SUFFIX)


def _decode(path: Path) -> ProcessNote:
    try:
        members = json.loads(read_private(path))
    except Unsafe as error:
        raise DamagedNote(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise DamagedNote(f"{path} is not JSON: {error}") from error
    if not isinstance(members, dict) or members.get("version") != _VERSION:
        raise DamagedNote(f"{path} is no note of version {_VERSION}")
    if any(type(members.get(name)) is not kind for name, kind in _TYPES.items()):
        raise DamagedNote(f"{path} lacks a member, or one is of another type")
    return ProcessNote(
        **{name: members[name] for name in _TYPES},
        family=tuple(_identities(path, members)),
        cwd=_cwd(path, members.get("cwd")),
        environment=_environment(path, members.get("environment", {})),
    )


def _cwd(path: Path, found: object) -> str | None:
    """An older note has none."""
    if found is None or (isinstance(found, str) and found.startswith("/") and "\0" not in found):
        return found
    raise DamagedNote(f"{path} has a folder that is none: {found!r:.100}")


def _environment(path: Path, found: object) -> dict[str, str]:
    if isinstance(found, dict) and all(isinstance(word, str) for pair in found.items() for word in pair):
        return found
    raise DamagedNote(f"{path} has an environment that is none")


def _identities(path: Path, members: Mapping[str, object]) -> Iterator[Identity]:
    found = members.get("family")
    if not isinstance(found, list):
        raise DamagedNote(f"{path} lacks its family")
    for each in found:
        match each:
            case {"pid": int() as pid, "start_time": int() as start_time}:
                yield Identity(pid, start_time)
            case _:
                raise DamagedNote(f"{path} has a relative that is none: {each!r:.100}")
