"""What everything could cost at best: `sqlite3` and trio alone, without a runtime."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import trio
from lives import new_id
from tape import Statement, Tape

from fencepost.mailbox.stores.sqlite_file import schema_text

MUTATIONS_PER_COMMIT: Final = 64


@contextmanager
def raw_store(path: Path) -> Generator[sqlite3.Connection]:
    """A new store of our schema, without a runtime."""
    with closing(sqlite3.connect(path, isolation_level=None, cached_statements=512)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript(f"BEGIN; {schema_text()}; COMMIT")
        yield connection


def raw_single_commits(folder: Path, commits: int) -> list[float]:
    """Seconds of each commit of one small row."""
    samples = []
    with closing(sqlite3.connect(folder / "single.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS rows (id TEXT PRIMARY KEY, at INTEGER, payload TEXT)")
        for _ in range(commits):
            row = (new_id(), time.time_ns(), secrets.token_hex(64))
            started = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO rows VALUES (?, ?, ?)", row)
            connection.execute("COMMIT")
            samples.append(time.perf_counter() - started)
    return samples


def raw_replacements(folder: Path, bodies: Sequence[str]) -> list[float]:
    """Seconds of each commit that replaces one row's text by the next of `bodies`."""
    samples = []
    with closing(sqlite3.connect(folder / "replaced.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS rows (id TEXT PRIMARY KEY, body TEXT)")
        for body in bodies:
            started = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("REPLACE INTO rows VALUES ('call', ?)", (body,))
            connection.execute("COMMIT")
            samples.append(time.perf_counter() - started)
    return samples


def raw_same_rows(folder: Path, tape: Tape, panes: int, per_commit: int = MUTATIONS_PER_COMMIT) -> list[float]:
    """Seconds of each commit of the rows that so many panes write, `per_commit` mutations in each."""
    launches, lives = tape.for_panes(panes)
    samples = []
    with raw_store(folder / f"same-{new_id()}.db") as connection:
        _write(connection, launches)
        for begin in range(0, len(lives), per_commit):
            chunk = lives[begin : begin + per_commit]
            started = time.perf_counter()
            _write(connection, chunk)
            samples.append(time.perf_counter() - started)
    return samples


def _write(connection: sqlite3.Connection, mutations: Sequence[list[Statement]]) -> None:
    """One transaction; what the store inserts together (events) is inserted together here."""
    together: dict[str, list[tuple[Any, ...]]] = {}
    execute = connection.cursor().execute
    execute("BEGIN IMMEDIATE")
    for mutation in mutations:
        for statement in mutation:
            if statement.many:
                together.setdefault(statement.sql, []).append(statement.parameters)
            else:
                execute(statement.sql, statement.parameters)
    for sql, rows in together.items():
        connection.executemany(sql, rows)
    execute("COMMIT")


def channel_round_trips(times: int) -> list[float]:
    """Seconds of each round trip from one task to another and back, over trio's memory channels."""
    samples: list[float] = []

    async def echo(receive: trio.MemoryReceiveChannel[object], send: trio.MemorySendChannel[object]) -> None:
        async with receive, send:
            async for value in receive:
                await send.send(value)

    async def run() -> None:
        there, there_receive = trio.open_memory_channel[object](1)
        back_send, back = trio.open_memory_channel[object](1)
        async with trio.open_nursery() as nursery, there, back:
            nursery.start_soon(echo, there_receive, back_send)
            for _ in range(times):
                started = time.perf_counter()
                await there.send(None)
                await back.receive()
                samples.append(time.perf_counter() - started)
            nursery.cancel_scope.cancel()

    trio.run(run)
    return samples
