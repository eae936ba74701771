"""The audit of tool batches: a true store has nothing to report, and each broken law is found under its number."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
from supervisor.stories import loosened
from tool_scenarios import World, call, opened, started, until

from fencepost.mailbox.records import CallStatus
from fencepost.mailbox.stores.sqlite_file import schema_text
from fencepost.mailbox.stores.store import RAW_TABLES, open_reader
from fencepost.supervisor.invariants import _violations, check_blocking
from fencepost.supervisor.tool_invariants import TABLES


async def make(path: Path) -> None:
    """A pane with a finished batch and an open one: completed, pending with memos and progress, ready, planned."""
    from fencepost.supervisor import Hooks, ModelTurn

    world = World()
    world.hold("B", "hook")

    async def before_tool(view, _arguments, _invocation_id):
        if view.tool_call_id == "call-D":
            await world.gates["hook"].wait()

    async with opened(f"sqlite:///{path}", world, hooks=Hooks(before_tool)) as (_, pane):
        await (await started(pane, call("X"), call("Y"))).wait()
        calls = [call("A"), call("B", "memoized"), call("C"), call("D")]
        batch = await pane.start_batch("op", ModelTurn("turn-2", 2), "assistant-2", calls)
        await world.running["B"].wait()
        await until(batch, "completed", "effect_pending", "outcome_ready", "planned")


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tools") / "store.db"
    trio.run(make, path)
    return path


@pytest.fixture
def loose(history, tmp_path) -> Path:
    return loosened(history, tmp_path / "loose.db")


def damage(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def found(path: Path) -> set[tuple[int, str]]:
    return {(violation.number, violation.table) for violation in check_blocking(f"sqlite:///{path}")}


def of(name: str) -> str:
    return f"(SELECT invocation_id FROM calls WHERE tool_call_id = 'call-{name}')"


def test_a_true_store_has_nothing_to_report(history, loose):
    assert check_blocking(f"sqlite:///{history}") == []
    assert check_blocking(f"sqlite:///{loose}") == []


@pytest.mark.parametrize(
    ("number", "table", "statement"),
    [
        (101, "entries", "UPDATE entries SET tool_call_id = 'other' WHERE tool_call_id = 'call-X'"),
        (101, "entries", "UPDATE entries SET entry_id = 'other' WHERE tool_call_id = 'call-Y'"),
        (
            102,
            "events",
            "INSERT INTO events SELECT (SELECT max(seq) FROM events) + 1, at, kind, address, data"  # noqa: ISC004
            " FROM events WHERE kind = 'tool_start' AND data LIKE '%call-X%'",
        ),
        (103, "calls", "DELETE FROM outcomes"),
        (103, "outcomes", f"UPDATE outcomes SET invocation_id = {of('D')}"),
        (104, "calls", "UPDATE calls SET status = 'completed', placed_at = 1 WHERE tool_call_id = 'call-C'"),
        (105, "calls", "DELETE FROM entries WHERE tool_call_id = 'call-A'"),
        (105, "entries", "UPDATE entries SET parent_entry_id = 'x' WHERE tool_call_id = 'call-Y'"),
        (105, "entries", "UPDATE entries SET seq = seq + 10 WHERE tool_call_id = 'call-Y'"),
        (105, "calls", "UPDATE batches SET checkpoint = 'need_assistant', closed_at = 1 WHERE seq = 2"),
        (106, "calls", "UPDATE batches SET mode = 'sequential' WHERE seq = 2"),
        (107, "memos", f"UPDATE memos SET invocation_id = {of('D')}"),
        (108, "checkpoints", f"UPDATE checkpoints SET invocation_id = {of('D')}"),
        (
            109,
            "events",
            "UPDATE events SET data = replace(data, '\"recovery\":false', '\"recovery\":true')"  # noqa: ISC004
            " WHERE kind = 'tool_end' AND data LIKE '%call-X%'",
        ),
        (110, "memos", f"UPDATE memos SET invocation_id = {of('C')}"),
        (110, "checkpoints", f"UPDATE checkpoints SET invocation_id = {of('A')}"),
        (111, "outcomes", f"UPDATE outcomes SET invocation_id = {of('A')}"),
        (112, "memos", "UPDATE memos SET invocation_id = 'nobody'"),
        (112, "checkpoints", "UPDATE checkpoints SET invocation_id = 'nobody'"),
        (113, "memos", "UPDATE memos SET value = 'no json'"),
        (114, "call_arguments", f"INSERT INTO call_arguments VALUES ({of('X')}, 1, '1')"),
        (0, "calls", f"DELETE FROM call_arguments WHERE invocation_id = {of('D')}"),
        (0, "batches", "UPDATE batches SET checkpoint = NULL, closed_at = NULL"),
        (0, "batches", "UPDATE batches SET incarnation_id = 'nobody' WHERE seq = 1"),
        (0, "batches", "UPDATE batches SET calls_count = 9 WHERE seq = 1"),
        (
            0,
            "entries",
            "DELETE FROM usage WHERE entry_id IN (SELECT entry_id FROM entries WHERE tool_call_id = 'call-X')",
        ),
        (0, "calls", "UPDATE calls SET status = 'odd' WHERE tool_call_id = 'call-D'"),
    ],
)
def test_a_broken_law_is_found_under_its_number(loose, number, table, statement):
    damage(loose, statement)
    assert (number, table) in found(loose)


def event_behind(kind: str, address: str, **data: str) -> str:
    fields = ", ".join(f"'{name}', {value}" for name, value in data.items())
    told = f"(SELECT max(seq) FROM events) + 1, 1, '{kind}', '{address}', json_object({fields})"
    return f"INSERT INTO events (seq, at, kind, address, data) SELECT {told}"


@pytest.mark.parametrize("row", ["kept", "gone"])
def test_an_effect_that_starts_behind_the_end_of_its_incarnation_is_found(loose, row):
    address = "batch:pane/op/turn-2"
    start = event_behind("tool_start", address, invocation_id=of("B"), recovery="json('true')")
    incarnation_id = "(SELECT incarnation_id FROM incarnations)"
    retirement = event_behind("incarnation.retired", "pane:pane", pane_id="'pane'", incarnation_id=incarnation_id)
    damage(loose, start)
    assert (115, "events") not in found(loose)
    damage(loose, retirement)
    assert (115, "events") not in found(loose), "it had started before"
    damage(loose, start, *(["DELETE FROM calls WHERE tool_call_id = 'call-B'"] if row == "gone" else []))
    assert (115, "events") in found(loose)


@pytest.mark.parametrize("row", ["kept", "gone"])
def test_a_result_that_was_made_behind_the_end_of_its_incarnation_is_no_effect(loose, row):
    address, call_id = "batch:pane/op/turn-2", of("D")
    incarnation_id = "(SELECT incarnation_id FROM incarnations)"
    damage(
        loose,
        event_behind("incarnation.retired", "pane:pane", pane_id="'pane'", incarnation_id=incarnation_id),
        event_behind("tool_start", address, invocation_id=call_id, recovery="json('false')"),
        event_behind("tool_end", address, invocation_id=call_id, recovery="json('false')"),
        *(["DELETE FROM calls WHERE tool_call_id = 'call-D'"] if row == "gone" else []),
    )
    assert (115, "events") not in found(loose)


@pytest.mark.parametrize(
    ("pane_id", "ended", "bad"),
    [("pane", False, True), ("pane", True, False), ("other", False, False)],
)
def test_a_reconciliation_that_begins_beside_an_effect_is_found(loose, pane_id, ended, bad):
    if ended:
        damage(loose, event_behind("tool_end", "batch:pane/op/turn-2", invocation_id=of("B"), recovery="json('false')"))
    damage(loose, event_behind("intent.reconciling", "intent:i", pane_id=f"'{pane_id}'"))
    assert ((116, "events") in found(loose)) is bad


def test_a_replay_whose_start_was_trimmed_away_is_no_broken_law(loose):
    ends = "kind = 'tool_end' AND data LIKE '%call-X%'"
    damage(
        loose,
        f"UPDATE events SET data = replace(data, '\"recovery\":false', '\"recovery\":true') WHERE {ends}",
        f"UPDATE trimmed SET last_event_seq = (SELECT seq FROM events WHERE {ends}) - 1",
        "DELETE FROM events WHERE seq <= (SELECT last_event_seq FROM trimmed)",
    )
    assert (109, "events") not in found(loose)


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
    for table in TABLES:
        assert altered.rows[table], f"the history has no {table}"
        for column in altered.rows[table][0]:
            altered.altered = (table, column, value)
            list(_violations(altered))


# -- what the schema itself refuses --


@pytest.mark.parametrize("status", CallStatus)
@pytest.mark.parametrize("table", ["memos", "checkpoints", "outcomes"])
def test_no_row_can_exist_beside_another_status_than_its_own(history, tmp_path, table, status):
    path = tmp_path / "store.db"
    path.write_bytes(history.read_bytes())
    rows = {
        "memos": "(invocation_id, name, status, value, at) VALUES ({id}, 'zombie', '{status}', '1', 1)",
        "checkpoints": "(invocation_id, status, content, at) VALUES ({id}, '{status}', '[]', 1)",
        "outcomes": "(invocation_id, status, content, is_error, added_tool_names, at)"
        " VALUES ({id}, '{status}', '[]', 0, '[]', 1)",
    }
    name = {"planned": "D", "effect_pending": "B", "outcome_ready": "C", "completed": "A"}[status]
    own = "outcome_ready" if table == "outcomes" else "effect_pending"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"DELETE FROM {table}")
        for told in CallStatus:
            statement = f"INSERT INTO {table} {rows[table].format(id=of(name), status=told)}"
            if told == status == own:
                connection.execute(statement)
                connection.execute(f"DELETE FROM {table}")
                continue
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(statement)


def test_a_call_cannot_leave_its_memos_progress_or_outcome_behind(history, tmp_path):
    path = tmp_path / "store.db"
    path.write_bytes(history.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        for statement in (
            "UPDATE calls SET status = 'outcome_ready' WHERE tool_call_id = 'call-B'",
            "UPDATE calls SET status = 'completed', placed_at = 1 WHERE tool_call_id = 'call-C'",
            "DELETE FROM calls WHERE tool_call_id = 'call-B'",
            "DELETE FROM calls WHERE tool_call_id = 'call-D'",
        ):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(statement)


def test_the_words_of_the_schema_are_the_enums():
    import re

    from fencepost.mailbox.records import BatchMode, Checkpoint, Replay

    for constraint, enum in {
        "call_status_is_known": CallStatus,
        "call_replay_is_known": Replay,
        "batch_mode_is_known": BatchMode,
        "batch_checkpoint_is_known": Checkpoint,
    }.items():
        body = re.search(rf"{constraint} CHECK \((.*?)\),\n    CONSTRAINT", schema_text(), re.DOTALL)
        assert body is not None, constraint
        assert set(re.findall(r"'(\w+)'", body[1])) == set(enum)
