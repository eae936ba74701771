"""The file of a SQLite store: what is in a new one, whether one is ours, and how to look without touching it.

What is not a store of ours is found out on a read-only connection and stays untouched.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import quote

from fencepost.mailbox.codec import DEAD_LETTER_COLUMNS, EVENT_COLUMNS, codec_of
from fencepost.mailbox.errors import CorruptRecord, SchemaTooNew, StoreFault
from fencepost.mailbox.records import RECORD_TYPES
from fencepost.mailbox.stores.store import SCHEMA_VERSION

__all__ = [
    "APPLICATION_ID",
    "BUSY_SECONDS",
    "connect_read_only",
    "opening_fault",
    "require_ours",
    "require_ours_or_empty",
    "schema_text",
]

APPLICATION_ID: Final = 0x46_4E_43_50  # "FNCP": tells our files from another program's
BUSY_SECONDS: Final = 5.0
"""How long another program's lock (somebody's sqlite3 shell, say) is waited for before it counts as a fault."""
_COLUMNS: Final[Mapping[str, frozenset[str]]] = {
    **{kind.TABLE: frozenset(codec_of(kind).columns) for kind in RECORD_TYPES},
    "events": frozenset(EVENT_COLUMNS),
    "dead_letters": frozenset(DEAD_LETTER_COLUMNS),
    "trimmed": frozenset({"only", "last_event_seq"}),
}
"""What every table of a store has; whoever opens one, to write or to read, may rely on it."""


def schema_text() -> str:
    """Return the schema's SQL."""
    return resources.files("fencepost.mailbox.stores").joinpath("schema", "sqlite.sql").read_text(encoding="utf-8")


def opening_fault(path: Path, error: sqlite3.Error) -> StoreFault:
    """Return what to raise for an error met while opening: damage is told from trouble."""
    if error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return CorruptRecord(str(path), str(error))
    return StoreFault(f"{path}: {error}")


def connect_read_only(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """Return a connection that can change nothing.

    SQLite reads a store beside its writer through two files next to it, and makes them if need be.  Where it must not
    (the store is all ours, `alone`) or cannot (a folder we may not write), and no such file holds anything, the main
    file is all there is and is read without them.
    """
    uri = f"file://{quote(str(path.absolute()))}?mode=ro"  # else a path that begins with two slashes names a host
    finished = not Path(f"{path}-wal").exists() and not Path(f"{path}-journal").exists()
    if alone and finished:
        uri += "&immutable=1"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if alone or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN or not finished:
            raise
        return connect_read_only(path, alone=True)
    except BaseException:
        connection.close()
        raise
    return connection


def require_ours_or_empty(path: Path) -> None:
    """Raise if the file at `path` is something that must not be written to; an absent or empty one is fine."""
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        return
    if not path.is_file():
        raise StoreFault(f"{path} is not a file")
    try:
        with closing(connect_read_only(path, alone=True)) as connection:
            require_ours(connection, path)
    except sqlite3.Error as error:
        raise opening_fault(path, error) from error


def require_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `SchemaTooNew` or `CorruptRecord` unless this is a store of ours or has nothing in it yet."""
    _require_whole(connection, path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(str(path), version, SCHEMA_VERSION)
    if application != APPLICATION_ID and (tables or version or application):
        raise CorruptRecord(str(path), "is a SQLite database of another program")
    if version:
        for table, columns in _COLUMNS.items():
            found = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            if not found:
                raise CorruptRecord(f"{path}: {table}", "is not there")
            if found != columns:
                told = ", ".join(map(ascii, sorted(found)))
                raise CorruptRecord(f"{path}: {table}", f"has columns {told}, not {', '.join(sorted(columns))}")


def _require_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `CorruptRecord` if the file's end is missing; SQLite would take what is missing for zeroes."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    log = Path(f"{path}-wal")
    if log.exists() and log.stat().st_size:
        return  # what the main file has not got yet may be in there
    size = path.stat().st_size
    if size < pages * page_bytes or (size and not pages):
        raise CorruptRecord(str(path), f"is cut off: {size} bytes of {pages} pages of {page_bytes} bytes")
