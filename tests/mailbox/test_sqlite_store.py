"""What only the SQLite store can get wrong: its file, its schema, its lock, its faults and real deaths."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.testing
from children import told_until_killed
from mailbox_samples import (
    NOON,
    PREPARED,
    RESTART,
    SOFT,
    STARTUP,
    GatedStore,
    event,
    incarnation,
    intent,
    open_line,
    putting,
)

from fencepost.mailbox.codec import codec_of
from fencepost.mailbox.errors import CorruptEvent, CorruptRecord, MutationRefused, SchemaTooNew, StoreFault, StoreOwned
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import (
    RECORD_TYPES,
    AdmissionDecision,
    AdmissionRecord,
    DeliveryMode,
    IntentRecord,
    IntentState,
    TransitionKind,
)
from fencepost.mailbox.stores.sql import KEPT_BY_KEY, select_sql, table_sql
from fencepost.mailbox.stores.sqlite import SqliteStore
from fencepost.mailbox.stores.sqlite_file import schema_text
from fencepost.mailbox.stores.store import RAW_TABLES, open_reader, past_damage

# ---------------------------------------------------------------------------------------------------------- the schema


@pytest.fixture
def database():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript(schema_text())
        yield connection


def row_of(record):
    return dict(zip(codec_of(type(record)).columns, codec_of(type(record)).encode(record), strict=True))


def insert(database, table, row):
    marks = ", ".join("?" * len(row))
    database.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()])


def prepare(database):
    insert(database, "incarnations", row_of(incarnation()))


def test_which_tables_are_kept_by_their_key_is_known(database):
    rows = database.execute("SELECT name FROM pragma_table_list WHERE schema = 'main' AND wr")
    assert {name for (name,) in rows} == KEPT_BY_KEY


def test_the_schema_has_the_records_columns_with_their_types(database):
    names = {str: "TEXT", int: "INTEGER", bytes: "BLOB"}
    for record_type in RECORD_TYPES:
        stored = {row[1]: (row[2], not row[3]) for row in database.execute(f"PRAGMA table_info({record_type.TABLE})")}
        wanted = {}
        for item in codec_of(record_type)._fields:
            (kind,) = item.stored_types - {type(None)}
            wanted[item.name] = (names[kind], item.optional)
        assert stored == wanted
        key = [
            row[1]
            for row in sorted(database.execute(f"PRAGMA table_info({record_type.TABLE})"), key=lambda row: row[5])
            if row[5]
        ]
        assert key == list(record_type.KEY)
        ((sql,),) = database.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (record_type.TABLE,))
        assert "STRICT" in sql


def test_every_check_has_a_name():
    assert len(re.findall(r"\bCHECK\b", re.sub("--.*", "", schema_text()))) == len(
        re.findall(r"CONSTRAINT \w+\s+CHECK", schema_text())
    )


@pytest.mark.parametrize(
    ("constraint", "enum"),
    [
        ("intent_kind_is_known", TransitionKind),
        ("intent_state_is_known", IntentState),
        ("intent_mode_is_known", DeliveryMode),
        ("admission_decision_is_known", AdmissionDecision),
    ],
)
def test_vocabularies_are_the_enums(constraint, enum):
    body = schema_text().split(f"CONSTRAINT {constraint} CHECK (")[1].split("CONSTRAINT")[0]
    assert set(re.findall(r"'(\w+)'", body)) == set(enum)


def test_every_state_has_a_row_that_is_taken(database):
    for number, state in enumerate(IntentState, 1):
        pane = {"pane_id": f"pane-{number}"}
        prepared = PREPARED if state in {"materialized", "delivered", "acknowledged"} else {}
        extra = {
            "delivered": {"delivered_at": NOON, **SOFT, "incarnation_id": f"inc-{number}"},
            "acknowledged": {"delivered_at": NOON, "acknowledged_at": NOON},
        }
        insert(database, "incarnations", row_of(incarnation(number, **pane)))
        insert(database, "intents", row_of(intent(number, state=state, **pane, **prepared, **extra.get(state, {}))))


SOFT_ROW = {**SOFT, "mode": "soft_batch"}
RESTART_ROW = {**RESTART, "mode": "restart_startup"}
UNPROVED = {"state": "delivered", "delivered_at": NOON, **PREPARED}
DELIVERED = {**UNPROVED, **SOFT_ROW}
RESTARTED = {**UNPROVED, **RESTART_ROW}
BAD_INTENTS = [
    ("intent_counts_from_1", {"revision": 0}),
    ("intent_counts_from_1", {"seq": 0}),
    ("intent_kind_is_known", {"kind": "other"}),
    ("intent_state_is_known", {"state": "DETECTED"}),
    ("intent_mode_is_known", {**SOFT_ROW, "state": "reconciling", "mode": "other"}),
    ("intent_discarded_is_boolean", {"discarded": 2}),
    *(
        ("intent_prepared_is_all_or_none", {"state": "materialized", **PREPARED, name: None})
        for name in PREPARED
        if name != "payload"
    ),
    ("intent_prepared_is_all_or_none", {"prepared_at": NOON}),
    *(("intent_payload_fits_state", {"state": state}) for state in ("materialized", "delivered", "acknowledged")),
    *(
        ("intent_payload_fits_state", {"state": state, **PREPARED})
        for state in ("detected", "reconciling", "recovery_required", "topology_diverged", "superseded")
    ),
    ("intent_delivered_has_time", {**DELIVERED, "delivered_at": None}),
    ("intent_acknowledged_has_time", {"state": "acknowledged", "delivered_at": NOON, **PREPARED}),
    ("intent_acknowledged_has_time", {**DELIVERED, "acknowledged_at": NOON}),
    ("intent_acknowledged_was_delivered", {"state": "acknowledged", "acknowledged_at": NOON, **PREPARED}),
    (
        "intent_delivered_before_acknowledged",
        {"state": "acknowledged", "acknowledged_at": NOON, "delivered_at": NOON + 1, **PREPARED},
    ),
    ("intent_consumed_was_delivered", {"consumed_at": NOON}),
    *(
        ("intent_soft_tuple_is_all_or_none", {"state": "reconciling", **SOFT_ROW, name: None})
        for name in ("turn_id", "turn_ordinal", "bound_at")
    ),
    ("intent_soft_batch_has_its_tuple", {"state": "reconciling", "mode": "soft_batch", "incarnation_id": "inc-1"}),
    ("intent_soft_batch_has_its_tuple", {"state": "reconciling", **SOFT_ROW, "mode": None, "incarnation_id": None}),
    ("intent_restart_has_its_startup", {**RESTARTED, "startup_delivery_id": None}),
    ("intent_delivered_has_a_proof", UNPROVED),
    ("intent_restart_has_its_startup", {**DELIVERED, "startup_delivery_id": "startup-1"}),
    ("intent_mode_has_its_incarnation", {"state": "reconciling", "incarnation_id": "inc-1"}),
    ("intent_mode_has_its_incarnation", {"state": "reconciling", **SOFT_ROW, "incarnation_id": None}),
    *(("intent_unbound_state_has_no_proof", {"state": state, **SOFT_ROW}) for state in ("detected", "superseded")),
    (
        "intent_unbound_state_has_no_proof",
        {"state": "acknowledged", "acknowledged_at": NOON, "discarded": 1, **PREPARED, **SOFT_ROW},
    ),
    ("intent_completion_is_soft", {"batch_completed_at": NOON}),
    ("intent_completion_is_soft", {**RESTARTED, "payload_offered_at": NOON}),
    *(
        ("intent_restart_is_prepared", {"state": state, **RESTART_ROW})
        for state in ("reconciling", "recovery_required", "topology_diverged")
    ),
    ("intent_handshake_is_of_a_restart", {**DELIVERED, "handshake_at": NOON}),
    ("intent_handshake_is_a_delivery", {"state": "materialized", **PREPARED, **RESTART_ROW, "handshake_at": NOON}),
    ("intent_exhausted_has_its_approval", {**RESTARTED, "exhausted_at": NOON}),
    ("intent_exhausted_has_its_approval", {"approval": "token"}),
    ("intent_exhausted_is_a_restart", {**DELIVERED, "exhausted_at": NOON, "approval": "token"}),
    ("intent_plan_names_both_operations", {"planned_op": "op"}),
    ("intent_plan_names_both_operations", {"starting_op": "op"}),
]


@pytest.mark.parametrize(("constraint", "change"), BAD_INTENTS, ids=lambda value: str(value)[:60])
def test_an_intent_is_refused_by(database, constraint, change):
    prepare(database)
    with pytest.raises(sqlite3.IntegrityError, match=f"CHECK constraint failed: {constraint}"):
        insert(database, "intents", row_of(intent()) | change)
    fields = row_of(intent()) | change
    with pytest.raises((CorruptRecord, ValueError)):  # and by the record itself
        codec_of(IntentRecord).decode([fields[name] for name in codec_of(IntentRecord).columns], "a row")


def test_every_check_of_intents_is_broken_above(database):
    body = schema_text().split("CREATE TABLE intents")[1].split("STRICT")[0]
    assert set(re.findall(r"CONSTRAINT (\w+)\s+CHECK", body)) == {name for name, _ in BAD_INTENTS}


STARTUP_ROW = dict(STARTUP)
BAD_INCARNATIONS = [
    ("incarnation_counts_from_1", {"revision": 0}),
    ("incarnation_counts_from_1", {"epoch": 0}),
    ("incarnation_flags_are_boolean", {"soft_batches": 2}),
    ("incarnation_flags_are_boolean", {"turn_order": -1}),
    ("incarnation_flags_are_boolean", {"relaunch": 7, "retired_at": NOON, "retire_reason": "x"}),
    *(("incarnation_startup_is_all_or_none", {**STARTUP_ROW, name: None}) for name in STARTUP_ROW),
    (
        "incarnation_retired_has_no_marker",
        {"retired_at": NOON, "retire_reason": "x", "delivered_intent_id": "intent-1"},
    ),
    ("incarnation_live_is_not_replaced", {"relaunch": 1}),
    ("incarnation_retired_has_its_reason", {"retired_at": NOON}),
    ("incarnation_retired_has_its_reason", {"retire_reason": "x"}),
]


@pytest.mark.parametrize(("constraint", "change"), BAD_INCARNATIONS, ids=lambda value: str(value)[:60])
def test_an_incarnation_is_refused_by(database, constraint, change):
    insert(database, "intents", row_of(intent()))
    with pytest.raises(sqlite3.IntegrityError, match=f"CHECK constraint failed: {constraint}"):
        insert(database, "incarnations", row_of(incarnation()) | change)


BAD_ADMISSIONS = [
    ("admission_decision_is_known", {"decision": "perhaps"}),
    ("admission_block_names_its_intent", {"decision": "block"}),
    ("admission_block_names_its_intent", {"intent_id": "intent-1"}),
    ("admission_turn_has_its_ordinal", {"turn_ordinal": 1}),
    ("admission_turn_has_its_ordinal", {"turn_id": "turn-1"}),
]


@pytest.mark.parametrize(("constraint", "change"), BAD_ADMISSIONS, ids=lambda value: str(value)[:60])
def test_an_admission_is_refused_by(database, constraint, change):
    prepare(database)
    insert(database, "intents", row_of(intent()))
    admission = AdmissionRecord(
        incarnation_id="inc-1",
        turn_id="",
        batch_id="batch-1",
        pane_id="pane-1",
        turn_ordinal=None,
        decision=AdmissionDecision.PASS,
        intent_id=None,
        at=NOON,
    )
    with pytest.raises(sqlite3.IntegrityError, match=f"CHECK constraint failed: {constraint}"):
        insert(database, "admissions", row_of(admission) | change)


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (Query(IntentRecord, {"intent_id": "x"}), "sqlite_autoindex_intents_1"),
        (Query(IntentRecord, {"pane_id": "x"}, ("seq",)), "intents_pane_seq"),
        (Query(IntentRecord, {"state": tuple(IntentState)[:6]}), "intents_by_state"),
        (Query(IntentRecord, {"pane_id": "x", "state": tuple(IntentState)[:6]}), "intents_"),
        (Query(RECORD_TYPES[2], {"pane_id": "x"}, ("epoch",), descending=True, limit=1), "incarnations_pane_epoch"),
        (Query(RECORD_TYPES[2], {"pane_id": "x", "retired_at": None}), "incarnations_one_live_a_pane"),
        (Query(RECORD_TYPES[2], {"session_id": "x"}), "incarnations_session"),
        (Query(RECORD_TYPES[2], {"relaunch": True}), "incarnations_relaunch"),
        (Query(RECORD_TYPES[2], {"startup_intent_id": "x", "startup_epoch": 0}), "incarnations_startup_intent"),
        (Query(RECORD_TYPES[1], {"intent_id": "x"}, ("position",)), "triggers_of_intent"),
    ],
    ids=str,
)
def test_the_usual_questions_use_an_index(database, query, index):
    plan = [row[3] for row in database.execute("EXPLAIN QUERY PLAN " + select_sql(query)[0], select_sql(query)[1])]
    assert any(step.startswith("SEARCH") and index in step for step in plan) or any(
        step.startswith("SCAN") and index in step for step in plan
    ), plan
    if query.descending or query.order_by == ("seq",):
        assert not any("TEMP B-TREE" in step for step in plan), plan


def test_any_number_of_wanted_values_stays_under_the_default_bound_of_sqlite(database):
    database.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)
    for number in range(1, 4):
        insert(database, "intents", row_of(intent(number, pane_id=f"pane-{number}")))
    for name, wanted in (("intent_id", "intent-{}"), ("pane_id", "pane-{}")):
        query = Query(IntentRecord, {name: tuple(wanted.format(number) for number in range(2, 40_000))})
        sql, parameters = select_sql(query)
        assert len(database.execute(sql, parameters).fetchall()) == 2
        (plan,) = database.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchmany(1)
        assert "SEARCH intents" in plan[3], "an index is still used"


def test_usual_updates_neither_build_tables_nor_keep_a_journal(database):
    """Either would cost more than the update: a table built for an IN, a journal kept because of a foreign key."""
    for sql, parameters in list(table_sql(IntentRecord).updates(intent().next(to_base="x")))[:2]:
        operations = [row[1] for row in database.execute("EXPLAIN " + sql, parameters)]
        assert "OpenEphemeral" not in operations
        assert "FkCounter" not in operations
        (plan,) = database.execute("EXPLAIN QUERY PLAN " + sql, parameters)
        assert "sqlite_autoindex_intents_1 (intent_id=?)" in plan[3]


# ------------------------------------------------------------------------------------------------------------ the file


async def test_the_connection_is_set_to_lose_nothing(gated):
    asked = {}

    def ask(_jobs):
        for pragma in ("journal_mode", "synchronous", "foreign_keys"):
            (asked[pragma],) = gated.store._writer._execute(f"PRAGMA {pragma}").fetchone()

    gated.before = ask
    async with open_line(gated) as line:
        await line.load()
    assert asked == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


async def test_closing_leaves_one_file_and_the_lock(sqlite_path, sqlite_url):
    async with open_line(sqlite_url) as line:
        await line.commit(putting(intent()))
    assert sorted(path.name for path in sqlite_path.parent.iterdir()) == ["store.db", "store.db.lock"]


async def test_relative_urls_and_odd_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///relative.db", "sqlite:///odd name?#%41&mode=ro.db", f"sqlite:///{tmp_path}/absolute.db"):
        async with open_line(url) as line:
            await line.commit(putting(intent()))
        with open_reader(url) as reader:
            assert reader.count(Query(IntentRecord)) == 1
    assert (tmp_path / "odd name?#%41&mode=ro.db").exists()


async def test_one_runtime_owns_a_file(sqlite_path, sqlite_url):
    async with open_line(sqlite_url):
        for other in (sqlite_url, f"sqlite:///{sqlite_path.parent}/./store.db"):
            with pytest.raises(StoreOwned, match=f"process {os.getpid()}, since 2"):
                async with open_line(other):
                    pass
        program = f"""
import trio
from fencepost.mailbox.errors import StoreOwned
from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.stores.store import open_store
async def main():
    try:
        await MutationLine(open_store({sqlite_url!r}), on_committed=print).start()
    except StoreOwned as owned:
        print(owned.holder)
trio.run(main)
"""
        told = await trio.run_process([sys.executable, "-c", program], capture_stdout=True)
        assert told.stdout.decode().startswith(f"process {os.getpid()}, since ")


async def test_a_lock_file_left_behind_is_no_obstacle(sqlite_path, sqlite_url):
    lock = sqlite_path.with_name("store.db.lock")
    lock.write_text("process 1, since for ever\n" * 9)
    async with open_line(sqlite_url):
        assert lock.read_text().startswith(f"process {os.getpid()}, since")
        assert lock.read_text().count("\n") == 1


async def refused(url, error, match):
    async def try_to_open():
        async with open_line(url):
            raise AssertionError("it was opened")

    with pytest.raises(error, match=match):
        await try_to_open()
    with pytest.raises(error, match=match):
        open_reader(url)


async def full_store(url):
    async with open_line(url) as line:
        for number in range(1, 200):
            await line.commit(putting(intent(number, pane_id=f"p{number}", reason="x" * 500), events=[event()]))


async def test_a_newer_schema_is_left_alone(sqlite_path, sqlite_url):
    await full_store(sqlite_url)
    with closing(sqlite3.connect(sqlite_path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = sqlite_path.read_bytes()
    await refused(sqlite_url, SchemaTooNew, "schema version 99, this program knows up to 1")
    assert sqlite_path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"not a database at all", b"x" * 4096, b"SQLite format 3\x00" + b"\xff" * 5000, b"\x00" * 512],
    ids=["short", "long", "only the header", "zeroes"],
)
async def test_garbage_is_left_alone(sqlite_path, sqlite_url, content):
    sqlite_path.write_bytes(content)
    await refused(sqlite_url, StoreFault, "store.db")
    assert sqlite_path.read_bytes() == content
    assert not sqlite_path.with_name("store.db-wal").exists()


@pytest.mark.parametrize("size", [1, 99, 100, 511, 512, 4095, 4096, 8192, 20_000, -4096, -1])
async def test_a_truncated_store_is_left_alone(sqlite_path, sqlite_url, size):
    await full_store(sqlite_url)
    content = sqlite_path.read_bytes()[:size]
    sqlite_path.write_bytes(content)
    await refused(sqlite_url, CorruptRecord, "store.db")
    assert sqlite_path.read_bytes() == content


async def test_another_programs_database_is_left_alone(sqlite_path, sqlite_url):
    with closing(sqlite3.connect(sqlite_path)) as connection:
        connection.execute("CREATE TABLE bookmarks (x)")
    before = sqlite_path.read_bytes()
    await refused(sqlite_url, CorruptRecord, "another program")
    assert sqlite_path.read_bytes() == before


@pytest.mark.parametrize("table", RAW_TABLES)
async def test_a_store_without_one_of_its_tables_is_corrupt(sqlite_path, sqlite_url, table):
    async with open_line(sqlite_url):
        pass
    with closing(sqlite3.connect(sqlite_path)) as connection:
        connection.execute(f"DROP TABLE {table}")
    await refused(sqlite_url, CorruptRecord, f"{table}: is not there")


@pytest.mark.parametrize("table", RAW_TABLES)
async def test_a_store_with_other_columns_is_corrupt(sqlite_path, sqlite_url, table):
    async with open_line(sqlite_url):
        pass
    with closing(sqlite3.connect(sqlite_path)) as connection:
        column = connection.execute(f"PRAGMA table_info({table})").fetchone()[1]
        connection.execute(f'ALTER TABLE {table} RENAME COLUMN {column} TO "{column}\nx"')
    await refused(sqlite_url, CorruptRecord, rf"{table}: has columns .*'{column}\\nx'.*, not .*\b{column}\b")


async def test_an_empty_file_becomes_a_store(sqlite_path, sqlite_url):
    sqlite_path.touch()
    with pytest.raises(StoreFault):
        open_reader(sqlite_url)
    async with open_line(sqlite_url) as line:
        await line.commit(putting(intent()))


@pytest.mark.parametrize("where", ["a folder", "a missing folder"])
async def test_what_is_no_place_for_a_file(tmp_path, where):
    path = tmp_path if where == "a folder" else tmp_path / "missing" / "store.db"
    before = sorted(tmp_path.rglob("*"))
    await refused(f"sqlite:///{path}", StoreFault, re.escape(str(path)))
    assert sorted(tmp_path.rglob("*")) == before


async def test_a_damaged_record_is_told_to_who_reads_it_and_to_nobody_else(sqlite_path, sqlite_url):
    async with open_line(sqlite_url) as line:
        await line.commit(putting(intent(), intent(2, pane_id="pane-2"), events=[event()]))
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE intents SET state = 'delivered' WHERE seq = 2")
        connection.execute("INSERT INTO events VALUES (2, 1, 'x', 'y', '[]'), (3, 1, 'x', 'y', '{')")
    async with open_line(sqlite_url) as line:
        for ask in (
            lambda: line.load(Query(IntentRecord, {"pane_id": "pane-2"})),
            lambda: line.load(Query(IntentRecord)),
            lambda: line.load_events(1, 1),
            lambda: line.load_events(2),
        ):
            with pytest.raises(CorruptRecord) as corrupt:
                await ask()
            assert str(sqlite_path) in corrupt.value.where
            assert re.search(r"intents\('intent-2',\)|events\([23],\)", corrupt.value.where)
        assert line.fault is None
        assert await line.load(Query(IntentRecord, {"pane_id": "pane-1"})) == [[intent()]]
        with open_reader(sqlite_url) as reader, pytest.raises(CorruptRecord, match="payload and state"):
            reader.select(Query(IntentRecord))


async def test_events_are_read_up_to_a_damaged_one_and_on_behind_it(sqlite_path, sqlite_url):
    async with open_line(sqlite_url) as line:
        await line.commit(putting(events=[event() for _ in range(6)]))
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as connection:
        connection.execute("UPDATE events SET data = '{' WHERE seq IN (3, 4)")
        connection.execute("UPDATE events SET address = CAST(X'FF41' AS TEXT) WHERE seq = 6")
    async with open_line(sqlite_url) as line:
        assert [one.seq for one in await line.load_events()] == [1, 2]
        assert [one.seq for one in await line.load_events(4)] == [5]
        with pytest.raises(CorruptEvent, match=r"events\(3,\): data is not JSON") as damaged:
            await line.load_events(2)
        assert damaged.value.seq == damaged.value.event_seq == 3
    skipped: list[int] = []
    with open_reader(sqlite_url) as reader:
        read = past_damage(reader.events, lambda one: skipped.append(one.seq))
        assert [one.seq for one in read(2, 5)] == [5]
        assert read(5, 5) == []
    assert skipped == [3, 4, 6]


async def test_text_that_is_no_text_is_told_to_who_reads_it_and_to_nobody_else(sqlite_path, sqlite_url):
    async with open_line(sqlite_url) as line:
        await line.commit(putting(intent(), intent(2, pane_id="pane-2"), events=[event()]))
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as connection:
        connection.execute("UPDATE intents SET to_base = CAST(X'FF41' AS TEXT) WHERE seq = 2")
        connection.execute("INSERT INTO events VALUES (2, 1, CAST(X'FF41' AS TEXT), 'y', '{}')")
        connection.execute("INSERT INTO dead_letters VALUES (1, 1, 'a', 'c', NULL, 'r', CAST(X'FF41' AS TEXT))")
    async with open_line(sqlite_url) as line:
        for ask in (lambda: line.load(Query(IntentRecord)), lambda: line.load_events(1), line.load_dead_letters):
            with pytest.raises(CorruptRecord, match=r"to_base holds a value of type bytes|text that is not UTF-8"):
                await ask()
        assert line.fault is None
        assert await line.load(Query(IntentRecord, {"pane_id": "pane-1"})) == [[intent()]]
        await line.commit(putting(intent(3, pane_id="pane-3")))
    with open_reader(sqlite_url) as reader:
        for look in (lambda: reader.select(Query(IntentRecord)), lambda: reader.events(1), reader.dead_letters):
            with pytest.raises(CorruptRecord):
                look()


async def test_a_damaged_word_or_type_is_told(sqlite_path, sqlite_url):
    async with open_line(sqlite_url) as line:
        await line.commit(putting(intent()))
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE intents SET state = 'asleep'")
    async with open_line(sqlite_url) as line:
        with pytest.raises(CorruptRecord, match=r"intents\('intent-1',\): 'asleep' is not a value"):
            await line.load(Query(IntentRecord))


def test_decoding_checks_types():
    codec = codec_of(IntentRecord)
    row = list(codec.encode(intent()))
    assert codec.decode(row, "here") == intent()
    for name, value in (("seq", "1"), ("seq", None), ("reason", b"x"), ("discarded", 2), ("discarded", 1.0)):
        bad = [value if column == name else stored for column, stored in zip(codec.columns, row, strict=True)]
        with pytest.raises(CorruptRecord, match=r"here: intents\('intent-1',\)"):
            codec.decode(bad, "here")
    with pytest.raises(CorruptRecord, match="columns"):
        codec.decode(row[:-1], "here")


# -------------------------------------------------------------------------------------------------------------- faults


@pytest.fixture
def gated(sqlite_path):
    """The store, with a door through which a test reaches its thread."""
    store = GatedStore(SqliteStore(sqlite_path))
    store.let_pass()
    return store


async def test_a_full_disk_fails_the_batch_whole_and_sticks(sqlite_url, gated):
    def fill(_jobs):
        (pages,) = gated.store._writer._execute("PRAGMA page_count").fetchone()
        gated.store._writer._execute(f"PRAGMA max_page_count = {pages + 3}")

    faults = []

    async def commit(line, number, size):
        try:
            await line.commit(putting(intent(number, pane_id=f"p{number}", reason="x" * size), events=[event()]))
        except StoreFault as fault:
            faults.append(fault)

    async with open_line(gated) as line:
        await commit(line, 1, 1)
        gated.gate.clear()
        gated.before = fill
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.load)
            await gated.until_taken()
            await gated.until_taken()
            for number, size in ((2, 1), (3, 50_000), (4, 1)):
                nursery.start_soon(commit, line, number, size)
            await trio.testing.wait_all_tasks_blocked()
            gated.let_pass()
        assert len(faults) == 3
        with pytest.raises(StoreFault, match="full") as fault:
            await line.commit(putting(intent(5, pane_id="p5")))
        assert isinstance(fault.value.__cause__, sqlite3.OperationalError)
    async with open_line(sqlite_url) as line:
        assert len((await line.load(Query(IntentRecord)))[0]) == len(await line.load_events()) == 1
        (given,) = await line.commit(putting(events=[event()]))
        assert given.seq == 2


async def test_another_programs_lock_is_a_fault_in_the_end(sqlite_path):
    store = SqliteStore(sqlite_path, busy_seconds=0.01)
    async with open_line(store) as line:
        await line.commit(putting(intent()))
        with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreFault, match="locked"):
                await line.commit(putting(intent(2)))
        with pytest.raises(StoreFault, match="locked"):
            await line.commit(putting(intent(2)))


async def test_a_value_too_big_for_sqlite_is_refused_alone(gated):
    gated.before = lambda _: gated.store._writer._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    async with open_line(gated) as line:
        with pytest.raises(MutationRefused, match="too big"):
            await line.commit(putting(intent(reason="x" * 200_000)))
        await line.commit(putting(intent()))


# ------------------------------------------------------------------------------------------------------ real deaths

CHILD = """
import os, sys, trio
sys.path.insert(0, {tests!r})
from mailbox_samples import *
async def main():
    async with open_line({url!r}) as line:
        first = len(await line.load_events()) + 1
        async def many(worker):
            number = first + worker
            while True:
                (given,) = await line.commit(putting(
                    intent(number, pane_id=f"p{{number}}"),
                    trigger(number, pane_id=f"p{{number}}", intent_id=f"intent-{{number}}"),
                    events=[event(n=number)]))
                os.write(1, f"{{given.seq}} {{number}}\\n".encode())
                number += 1000
        async with trio.open_nursery() as nursery:
            for worker in range(8):
                nursery.start_soon(many, worker)
trio.run(main)
"""


def test_whatever_was_acknowledged_survives_a_killed_process(sqlite_path, sqlite_url):
    acknowledged = {}
    for life in range(4):
        child = CHILD.format(tests=str(Path(__file__).parent.parent), url=sqlite_url)
        child = child.replace("first + worker", f"{life * 1_000_000 + 1} + worker")
        with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True) as process:
            told = told_until_killed(process, 60 + 37 * life)
        for line in told:
            seq, number = map(int, line.split())
            acknowledged[seq] = number
        if life == 1:
            assert sqlite_path.with_name("store.db-wal").exists()
        with open_reader(sqlite_url) as reader:  # beside a leftover log, before anybody recovered it
            events = reader.events()
        assert [item.seq for item in events] == [*range(1, len(events) + 1)]
        assert acknowledged.items() <= {item.seq: item.data["n"] for item in events}.items()

    async def look():
        async with open_line(sqlite_url) as line:
            intents, triggers = await line.load(Query(IntentRecord), Query(RECORD_TYPES[1]))
            numbers = {item.data["n"] for item in await line.load_events()}
            assert {record.seq for record in intents} == numbers == {record.position for record in triggers}

    trio.run(look)


async def test_a_leftover_log_is_read_by_the_next_owner(tmp_path, sqlite_path, sqlite_url):
    async with open_line(sqlite_url) as line:
        await line.commit(putting(intent()))
        copied = tmp_path / "copy"
        copied.mkdir()
        for name in ("store.db", "store.db-wal"):  # what a dead machine leaves on its disk
            shutil.copy(sqlite_path.with_name(name), copied / name)
    async with open_line(f"sqlite:///{copied}/store.db") as line:
        assert await line.load(Query(IntentRecord)) == [[intent()]]


async def test_a_torn_log_loses_only_what_was_never_acknowledged(tmp_path, sqlite_path, sqlite_url):
    async with open_line(sqlite_url) as line:
        sizes = []
        for number in range(1, 6):
            await line.commit(putting(intent(number, pane_id=f"p{number}"), events=[event()]))
            sizes.append(sqlite_path.with_name("store.db-wal").stat().st_size)
        main = sqlite_path.read_bytes()
        log = sqlite_path.with_name("store.db-wal").read_bytes()
    for trial, kept in zip(count(), [sizes[2], sizes[2] + 100, sizes[3] - 1], strict=False):
        folder = tmp_path / f"torn-{trial}"
        folder.mkdir()
        (folder / "store.db").write_bytes(main)
        (folder / "store.db-wal").write_bytes(log[:kept])
        async with open_line(f"sqlite:///{folder}/store.db") as line:
            (found,) = await line.load(Query(IntentRecord))
            assert [record.seq for record in found] == [1, 2, 3]
            (given,) = await line.commit(putting(intent(9), events=[event()]))
            assert given.seq == 4


def test_a_reader_needs_no_right_to_write(tmp_path, sqlite_path, sqlite_url):
    trio.run(full_store, sqlite_url)
    if os.geteuid() == 0:
        with open_reader(sqlite_url) as reader:
            assert reader.count(Query(IntentRecord)) == 199
        return
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with open_reader(sqlite_url) as reader:
            assert reader.count(Query(IntentRecord)) == 199
    finally:
        tmp_path.chmod(stat.S_IRWXU)
