"""The audit of deliveries: a true store has nothing to report, and each broken law is found under its number."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
from supervisor.stories import loosened

from fencepost.mailbox.ladder import Stage, Stop
from fencepost.mailbox.stores.sqlite_file import schema_text
from fencepost.mailbox.stores.store import RAW_TABLES, open_reader
from fencepost.supervisor import (
    ChannelTurn,
    HeadSeatOutbox,
    InboundPost,
    Outbound,
    TurnEnd,
    open_supervisor,
)
from fencepost.supervisor.delivery_invariants import TABLES
from fencepost.supervisor.invariants import _violations, check_blocking


def numbered(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


async def make(path: Path) -> None:
    """Deliveries that responded, are unresolved and were settled; messages that were accepted and that are pending."""
    turns = iter([TurnEnd("settled"), TurnEnd("failed", "odd")])

    async def runner(_message):
        return next(turns)

    async def dispatcher(_turn):
        return TurnEnd("settled")

    ways = [ChannelTurn(runner), HeadSeatOutbox(grace_seconds=5, acknowledge_seconds=0)]
    async with open_supervisor(f"sqlite:///{path}", mechanisms=ways, dispatcher=dispatcher) as supervisor:
        one, two = supervisor.pane("one"), supervisor.pane("two")
        await one.deliver(Outbound("responded", "channel_turn", numbered(1)))
        await two.deliver(Outbound("settled", "channel_turn", numbered(2)))
        await two.settle(numbered(2), "the operator")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.poll_events, 5)
            await one.deliver(Outbound("unresolved", "head_seat", numbered(3)))
        for number, pane in ((11, one), (12, two)):
            await pane.launch("claude-code", f"session-{number}")
            binding = (await pane.binding()).binding
            await pane.accept(InboundPost(numbered(number), binding, f"text {number}"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # As a service leaves it that died between tombstone and acceptance.
        evidence = f"'one', '{numbered(13)}', '{'b' * 64}', '{'f' * 64}', 1"
        connection.execute(f"INSERT INTO inbound_fences VALUES ({evidence})")
        connection.execute(
            "INSERT INTO tombstones SELECT delivery_id, pane_id, binding, fingerprint, at FROM inbound_fences"
        )


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("deliveries") / "store.db"
    trio.run(make, path)
    return path


@pytest.fixture
def loose(history, tmp_path) -> Path:
    return loosened(history, tmp_path / "loose.db")


def damage(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute(statement).rowcount > 0, "the statement met no row"


def found(path: Path) -> set[tuple[int, str]]:
    return {(violation.number, violation.table) for violation in check_blocking(f"sqlite:///{path}")}


def test_a_true_store_has_nothing_to_report(history, loose):
    assert check_blocking(f"sqlite:///{history}") == []
    assert check_blocking(f"sqlite:///{loose}") == []


def again(kind: str, number: int, old: str = "", new: str = "") -> str:
    """The statement that tells an event once more, perhaps differently."""
    return (
        "INSERT INTO events SELECT (SELECT max(seq) FROM events) + 1, at, kind, address, "
        f"replace(data, '{old}', '{new}') FROM events WHERE kind = '{kind}' AND data LIKE '%{numbered(number)}%'"
    )


@pytest.mark.parametrize(
    ("number", "table", "statement"),
    [
        (202, "deliveries", "UPDATE deliveries SET resolved_at = NULL, pane_id = 'one'"),
        (202, "inbound_fences", "INSERT INTO inbound_fences SELECT * FROM inbound_fences"),
        (202, "inbound_fences", "UPDATE inbound_fences SET binding = fingerprint"),
        (203, "runs", "INSERT INTO runs SELECT 'again', revision, delivery_id, pane_id, 1, NULL, NULL, NULL FROM runs"),
        (203, "runs", "UPDATE runs SET pane_id = 'other'"),
        (203, "events", again("delivery.accepted", 11)),
        (204, "acceptances", f"DELETE FROM tombstones WHERE delivery_id = '{numbered(11)}'"),
        (204, "acceptances", "UPDATE tombstones SET fingerprint = binding"),
        (205, "acceptances", "UPDATE acceptances SET text = 'another'"),
        (205, "deliveries", "UPDATE deliveries SET text = 'another'"),
        (207, "deliveries", f"UPDATE deliveries SET resolved_at = 1 WHERE delivery_id = '{numbered(3)}'"),
        (207, "deliveries", f"UPDATE deliveries SET resolved_at = NULL WHERE delivery_id = '{numbered(1)}'"),
        (207, "deliveries", f"UPDATE deliveries SET dispatched_at = NULL WHERE delivery_id = '{numbered(1)}'"),
        (207, "deliveries", "DELETE FROM settlements"),
        (207, "events", again("delivery.dispatched", 3)),
        (207, "events", again("delivery.reported", 3, '"uncertain"', '"unavailable"')),
        (207, "events", again("delivery.reported", 3, '"uncertain"', '"expired"')),
        (207, "events", again("delivery.reported", 1, '"responded"', '"consumed"')),
        (0, "deliveries", "UPDATE deliveries SET stage = 'odd' WHERE stage IS NOT NULL"),
        (0, "acceptances", "UPDATE acceptances SET at = 'noon'"),
        (0, "runs", "UPDATE runs SET ended_at = NULL"),
    ],
)
def test_a_broken_law_is_found_under_its_number(loose, number, table, statement):
    damage(loose, statement)
    assert (number, table) in found(loose)


class Altered:
    """A reader of which one column holds one odd value everywhere."""

    def __init__(self, rows):
        self.rows = rows
        self.altered = ("", "", None)

    def raw(self, table):
        name, column, value = self.altered
        for row in self.rows[table]:
            yield {**row, column: value} if table == name else dict(row)


@pytest.mark.parametrize("value", [None, "", 7, -1.5, b"\xff"])
def test_any_value_in_any_column_is_judged_and_never_raises(history, value):
    with open_reader(f"sqlite:///{history}") as reader:
        altered = Altered({table: list(reader.raw(table)) for table in RAW_TABLES})
    assert list(_violations(altered)) == []
    for table in (*TABLES, "events"):
        assert altered.rows[table], f"the history has no {table}"
        for column in altered.rows[table][0]:
            altered.altered = (table, column, value)
            list(_violations(altered))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE deliveries SET resolved_at = NULL",
        "UPDATE deliveries SET stage = 'odd' WHERE stage IS NOT NULL",
        "UPDATE deliveries SET stop = 'expired' WHERE stage IS NOT NULL",
        "UPDATE deliveries SET stage = NULL WHERE stage IS NOT NULL",
        "UPDATE deliveries SET dispatched_at = NULL",
        "UPDATE deliveries SET abandoned_at = 1 WHERE stage IS NOT NULL",
        "UPDATE deliveries SET reply = 'r' WHERE stage IS NULL",
        "UPDATE deliveries SET session_id = 's'",
        "UPDATE deliveries SET entries_before = '[]'",
        "UPDATE deliveries SET native = 'n', outcome = NULL WHERE resolved_at IS NULL",
        "INSERT INTO inbound_fences SELECT * FROM inbound_fences",
        "INSERT INTO acceptances SELECT 'x', pane_id, 'c', binding, fingerprint, text, '', 'r', 1 FROM acceptances",
        "UPDATE acceptances SET pane_id = 'other'",
        "DELETE FROM tombstones",
        "UPDATE runs SET ended_at = NULL",
        "INSERT INTO runs SELECT 'again', 1, delivery_id, pane_id, 1, NULL, NULL, NULL FROM runs",
        "UPDATE conversations SET revision = 0",
    ],
)
def test_what_the_schema_itself_refuses(history, tmp_path, statement):
    path = tmp_path / "store.db"
    path.write_bytes(history.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)


def test_the_words_of_the_schema_are_the_ladders():
    import re

    for constraint, words in {"delivery_stage_is_known": Stage, "delivery_stop_is_known": Stop}.items():
        body = re.search(rf"{constraint} CHECK \((.*?)\),\n    CONSTRAINT", schema_text(), re.DOTALL)
        assert body is not None, constraint
        assert set(re.findall(r"'(\w+)'", body[1])) == set(words)
