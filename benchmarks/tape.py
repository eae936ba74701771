"""The rows that a life writes, recorded once and replayed with ids of their own.

A runtime lives through a few intents while every statement that changed a row is taped; the tape is then replayed for
as many panes as the subject has, each pane, intent and operation with ids and payloads of its own, so that no two runs
write the same bytes.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self
from unittest import mock

import trio
from attrs import frozen
from lives import RARELY, TRANSITIONS_PER_LIFE, Reconciler, launched

from fencepost.supervisor.chaos import Chaos
from fencepost.supervisor.runtime import open_supervisor

MARK: Final = "fe9cefe9"
MARKED: Final = re.compile(MARK + r"-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""An id that was made while the tape ran; each replay puts one of its own in its place."""


def marked_id(_kind: str = "") -> str:
    """Return a fresh id that can be told apart on the tape."""
    return MARK + str(uuid.uuid4())[8:]


class MarkedIds:
    """An IdSource of marked ids."""

    def new_id(self, kind: str) -> str:
        return marked_id(kind)


@frozen
class Statement:
    """One row written: the text, its parameters, and whether it came in an executemany."""

    sql: str
    parameters: tuple[Any, ...]
    many: bool

    def renamed(self, names: dict[str, str], event_seqs: Iterator[int]) -> Statement:
        """The same row of another pane."""
        parameters = tuple(_renamed(value, names) for value in self.parameters)
        if self.many and "INTO events" in self.sql:
            parameters = (next(event_seqs), *parameters[1:])
        return Statement(self.sql, parameters, self.many)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    def other(match: re.Match[str]) -> str:
        return names.get(match[0]) or names.setdefault(match[0], str(uuid.uuid4()))

    if isinstance(value, str):
        return MARKED.sub(other, value) if MARK in value else value
    if isinstance(value, bytes):
        return MARKED.sub(other, value.decode()).encode()
    return value


def taping(tape: list[list[Statement]]) -> type[sqlite3.Connection]:
    """Return a connection class that adds to `tape` a list for each transaction, of what changed a row in it."""

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = (), /) -> Self:
            super().execute(sql, parameters)
            if sql.startswith("BEGIN"):
                tape.append([])
            elif sql.startswith(("INSERT", "UPDATE", "DELETE")) and self.rowcount > 0:
                tape[-1].append(Statement(sql, tuple(parameters), many=False))
            return self

        def executemany(self, sql: str, rows: Iterable[Any], /) -> Self:
            listed = [tuple(row) for row in rows]
            tape[-1].extend(Statement(sql, row, many=True) for row in listed)
            super().executemany(sql, listed)
            return self

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    return Connection


@frozen
class Tape:
    """The mutations of one pane: its launch, and those of each of its lives."""

    launch: list[Statement]
    lives: list[list[Statement]]

    def for_panes(self, panes: int) -> tuple[list[list[Statement]], list[list[Statement]]]:
        """The launches and the lives of so many panes, all of them at once, with ids of their own."""
        names: list[dict[str, str]] = [{} for _ in range(panes)]
        seqs = itertools.count(1)

        def again(mutation: list[Statement]) -> list[list[Statement]]:
            return [[statement.renamed(named, seqs) for statement in mutation] for named in names]

        return again(self.launch), [one for mutation in self.lives for one in again(mutation)]


def record_tape(folder: Path, lives: int) -> Tape:
    """Live through some intents with every mutation in a transaction of its own, and tape what is written."""
    tape: list[list[Statement]] = []

    async def run() -> None:
        url = f"sqlite:///{folder / 'tape.db'}"
        # With crash points no two mutations share a transaction, and nobody depends on who was faster.
        async with open_supervisor(
            url, reconciler=Reconciler(marked_id), ids=MarkedIds(), chaos=Chaos(), options=RARELY
        ) as supervisor:
            liver = await launched(supervisor.pane(marked_id()), fresh=marked_id)
            for _ in range(lives):
                await liver.live()

    with mock.patch.object(sqlite3, "connect", _with_factory(sqlite3.connect, taping(tape))):
        trio.run(run)
    launch, *rest = [mutation for mutation in tape if mutation]
    assert len(rest) == lives * TRANSITIONS_PER_LIFE, f"a life is {len(rest) / lives} mutations"
    return Tape(launch, rest)


def _with_factory(connect: Callable[..., Any], factory: type[sqlite3.Connection]) -> Callable[..., Any]:
    return lambda *arguments, **more: connect(*arguments, **more, factory=factory)
