"""The files of a pending claim: one record a scope, made once and whole, removed only by whoever it belongs to.

    STATE_DIR/inbound-receipts/            private to the user
        HASH.json                          the claim
        HASH.lock                          there while a claim is made or removed, and never taken away from its owner
        HASH.part                          a record being written; what a crash leaves of it means nothing
        HASH.DELIVERY_ID.abandoned         a claim that its owner gave up

Making one: take the lock, write and sync the part, link it to the claim's name, sync the folder.  The link is what
claims: it fails if anything is there, and what it makes visible is complete and on the disk.  Removing one: take the
lock, read the claim again, and unlink it only if it is still the same delivery's.  A process that dies in between
leaves the lock, and then nobody knows how far it got; so a lock blocks whatever its age, until a person removes it.

Nothing here follows a symbolic link: the folder is opened without following one, and every other path is a name in
that open folder.  What cannot be read is never taken for absent.  Only local file systems are meant.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fencepost.mailbox.claim import Blocked, Locked, Removed, Unwritable
from fencepost.mailbox.claim_record import (
    CLAIM_BYTES_MAX,
    Claim,
    CorruptClaim,
    decode_claim,
    encode_abandoned,
    encode_claim,
    scope_hash,
)

__all__ = ["ClaimFiles"]

FOLDER: Final = "inbound-receipts"
LOCK_WAIT_SECONDS: Final = 0.5
"""How long a removal waits for the lock: its owner is most likely about to let go.  A new claim does not wait."""
_LOCK_POLL_SECONDS: Final = 0.005
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO in its place must not hold us up
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ClaimFiles:
    """The claim of one scope in `state_dir`.  Has no state of its own, so threads may share it."""

    def __init__(self, state_dir: str | os.PathLike[str], scope: tuple[str, str]) -> None:
        name = scope_hash(scope)
        self._path = Path(os.fspath(state_dir)).absolute() / FOLDER
        self._name = name
        self._claim = f"{name}.json"
        self._lock = f"{name}.lock"
        self._part = f"{name}.part"

    @property
    def claim_path(self) -> Path:
        """Where the claim is."""
        return self._path / self._claim

    @property
    def lock_path(self) -> Path:
        """Where the lock is."""
        return self._path / self._lock

    def look(self) -> Claim | None:
        """Return the claim, or None if there is none.  Raises `Blocked`."""
        with self._folder() as folder:
            return None if folder is None else self._read(folder)

    def create(self, claim: Claim) -> Claim:
        """Make the claim and return it; or return the one that was there first.  Durable on return.

        Raises `Locked`, `Blocked`, or `Unwritable` if there is no claim now.
        """
        try:
            _make_folder(self._path)
        except OSError as error:
            raise Unwritable(str(error)) from error
        with self._folder() as folder:
            if folder is None:
                raise Unwritable(f"{self._path} was removed")
            with self._locked(folder):
                first = self._read(folder)
                if first is not None:
                    return first
                self._claim_it(folder, encode_claim(claim))
                return claim

    def remove(self, delivery_id: str) -> Removed:
        """Remove the claim if it is that delivery's.  Raises `Locked`, and `Blocked` if it cannot be removed."""
        with self._folder() as folder:
            if folder is None:
                return Removed.NOT_THERE
            with self._locked(folder, LOCK_WAIT_SECONDS):
                found = self._read(folder)
                mine = found is not None and found.delivery_id == delivery_id
                if mine:
                    self._unlink_claim(folder)
                if self._was_abandoned(folder, delivery_id):
                    return Removed.ABANDONED
                return Removed.REMOVED if mine else Removed.NOT_THERE

    def abandon(self, delivery_id: str, approval: str) -> Claim | None:
        """Record that the owner gave that delivery's claim up, and remove it; return it, or None if it is not there.

        The record is durable before the claim goes.  Raises `Locked`, `Unwritable` if nothing was recorded, `Blocked`.
        """
        with self._folder() as folder:
            if folder is None:
                return None
            with self._locked(folder, LOCK_WAIT_SECONDS):
                claim = self._read(folder)
                if claim is None or claim.delivery_id != delivery_id:
                    return None
                if not self._was_abandoned(folder, delivery_id):
                    try:
                        self._write_part(folder, encode_abandoned(claim, approval))
                        os.rename(self._part, self._abandoned(delivery_id), src_dir_fd=folder, dst_dir_fd=folder)
                        os.fsync(folder)
                    except OSError as error:
                        raise Unwritable(str(error)) from error
                self._unlink_claim(folder)
                return claim

    def was_abandoned(self, delivery_id: str) -> bool:
        """Whether the owner gave that delivery up in this scope.  Raises `Blocked`."""
        with self._folder() as folder:
            return folder is not None and self._was_abandoned(folder, delivery_id)

    # -- in the open folder ----------------------------------------------------------------------------------------

    @contextmanager
    def _folder(self) -> Generator[int | None]:
        """Open the folder; None if there is none.  Raises `Blocked` for one that cannot be trusted."""
        try:
            folder = os.open(self._path, _OPEN_FOLDER)
        except FileNotFoundError:
            folder = None
        except OSError as error:
            raise Blocked(str(error)) from error
        if folder is None:
            yield None
            return
        try:
            _require_private(folder, self._path)
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self, folder: int, wait_seconds: float = 0.0) -> Generator[None]:
        """Hold the lock.  Raises `Locked` if it does not go away, `Unwritable` if it cannot be made."""
        deadline = time.monotonic() + wait_seconds
        while (lock := self._take_lock(folder)) is None:
            if time.monotonic() >= deadline:
                raise Locked(str(self.lock_path))
            time.sleep(_LOCK_POLL_SECONDS)
        try:
            with contextlib.suppress(OSError):  # for the person who finds it left behind; it holds without
                os.write(lock, f"process {os.getpid()}\n".encode())
            yield
        finally:
            with contextlib.suppress(OSError):  # then it stays, and blocks
                os.unlink(self._lock, dir_fd=folder)
            os.close(lock)

    def _take_lock(self, folder: int) -> int | None:
        try:
            return os.open(self._lock, _NEW, 0o600, dir_fd=folder)
        except FileExistsError:
            return None
        except OSError as error:
            raise Unwritable(str(error)) from error

    def _read(self, folder: int) -> Claim | None:
        try:
            file = os.open(self._claim, _READ, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Blocked(str(error)) from error
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise Blocked(f"{self.claim_path} is not a file")
            with open(file, "rb", closefd=False) as stream:
                return decode_claim(stream.read(CLAIM_BYTES_MAX + 1))
        except (OSError, CorruptClaim) as error:
            raise Blocked(f"{self.claim_path} {error}") from error
        finally:
            os.close(file)

    def _claim_it(self, folder: int, data: bytes) -> None:
        """Make the claim.  Nothing was sent yet, so what cannot be made durable is taken back."""
        try:
            self._write_part(folder, data)
            self._link_part(folder)
        except OSError as error:
            raise Unwritable(str(error)) from error
        finally:
            self._unlink_part(folder)
        try:
            os.fsync(folder)
        except OSError as error:
            self._unlink_claim(folder)
            raise Unwritable(str(error)) from error

    def _link_part(self, folder: int) -> None:
        try:
            os.link(self._part, self._claim, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError as error:
            raise Blocked(f"{self.claim_path} was made by something that did not take the lock") from error

    def _write_part(self, folder: int, data: bytes) -> None:
        self._unlink_part(folder)
        with open(os.open(self._part, _NEW, 0o600, dir_fd=folder), "wb") as stream:  # noqa: PTH123 - a descriptor
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())

    def _unlink_part(self, folder: int) -> None:
        with contextlib.suppress(OSError):  # if it stays, the next one to write it says so
            os.unlink(self._part, dir_fd=folder)

    def _unlink_claim(self, folder: int) -> None:
        try:
            os.unlink(self._claim, dir_fd=folder)
        except OSError as error:
            raise Blocked(f"{self.claim_path} cannot be removed: {error}") from error
        with contextlib.suppress(OSError):  # if it comes back after a power cut, it is asked about once more
            os.fsync(folder)

    def _abandoned(self, delivery_id: str) -> str:
        return f"{self._name}.{delivery_id}.abandoned"

    def _was_abandoned(self, folder: int, delivery_id: str) -> bool:
        """Whether the record is there; its name says all, so damage to it takes nothing back."""
        try:
            os.stat(self._abandoned(delivery_id), dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Blocked(str(error)) from error
        return True


def _make_folder(path: Path) -> None:
    """Make a folder, private, and each missing one above it; its name is durable on return."""
    try:
        path.mkdir(mode=0o700)
    except FileNotFoundError:
        _make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        pass  # perhaps made by a bridge that has not synced it yet
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _require_private(folder: int, path: Path) -> None:
    """Raise `Blocked` unless the folder is ours; take everybody else's access to it away."""
    found = os.fstat(folder)
    if found.st_uid != os.geteuid():
        raise Blocked(f"{path} belongs to another user")
    if found.st_mode & 0o077:
        try:
            os.fchmod(folder, 0o700)
        except OSError as error:
            raise Blocked(f"{path} cannot be made private: {error}") from error
