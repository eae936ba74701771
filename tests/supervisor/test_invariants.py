"""Every law of the audit is broken once, by hand, and found under its number; a sound history has no violation."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path

import pytest
import trio
from supervisor.stories import Pane, loosened, tell_all, world

from fencepost.mailbox.errors import CorruptRecord, InvalidStoreUrl, SchemaTooNew, StoreFault
from fencepost.mailbox.mutation import Event, Mutation, NewEvent
from fencepost.mailbox.records import IntentState
from fencepost.mailbox.stores import memory
from fencepost.mailbox.stores.store import RAW_TABLES, open_reader
from fencepost.supervisor.invariants import Violation, _violations, check, check_blocking

Found = tuple[int, str, str]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which everything has happened once."""
    path = tmp_path_factory.mktemp("history") / "store.db"

    async def main() -> None:
        async with world(f"sqlite:///{path}") as there:
            await tell_all(there)

    trio.run(main)
    return path


@pytest.fixture(scope="module")
def loose_history(history: Path) -> Path:
    return loosened(history, history.with_name("loose.db"))


@pytest.fixture
def loose(loose_history: Path, tmp_path: Path) -> Path:
    """The same history in a file that takes any row."""
    return Path(shutil.copy(loose_history, tmp_path / "loose.db"))


def damage(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("PRAGMA synchronous = OFF")
        for statement in statements:
            connection.execute(statement)


def found(violations: Sequence[Violation]) -> set[Found]:
    return {(violation.number, violation.table, violation.key) for violation in violations}


def audit(path: Path) -> list[Violation]:
    return check_blocking(f"sqlite:///{path}")


class Altered:
    """A reader of copied rows, in which one column of one table has another value."""

    def __init__(self, rows: dict[str, list[dict[str, object]]]) -> None:
        self.rows = rows
        self.altered: tuple[str, str, object] = ("", "", None)

    def raw(self, table: str) -> Iterator[dict[str, object]]:
        altered, column, value = self.altered
        for row in self.rows[table]:
            yield {**row, column: value} if table == altered else dict(row)


# -- a sound store ------------------------------------------------------------------------------------------------


def test_a_history_of_everything_breaks_no_law(history: Path) -> None:
    assert audit(history) == []


def test_nor_does_it_in_a_copy_without_constraints(loose: Path) -> None:
    assert audit(loose) == []


async def test_nor_in_memory() -> None:
    async with world("memory://sound") as there:
        await tell_all(there)
        assert await check("memory://sound") == []
    assert await check("memory://sound") == []


async def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    async with world(f"sqlite:///{tmp_path}/store.db"):
        pass
    assert await check(f"sqlite:///{tmp_path}/store.db") == []


def test_trimmed_events_are_not_missed(history: Path) -> None:
    with open_reader(f"sqlite:///{history}") as reader:
        stored = Altered({table: list(reader.raw(table)) for table in RAW_TABLES})
    for last in range(1, len(stored.rows["events"]) + 1):
        del stored.rows["events"][0]
        stored.rows["trimmed"][0]["last_event_seq"] = last
        assert list(_violations(stored)) == []  # type: ignore[arg-type]
    stored.rows["trimmed"][0]["last_event_seq"] = 0
    assert list(_violations(stored)) == []  # type: ignore[arg-type]


async def test_a_line_that_trims_leaves_a_sound_store() -> None:
    async with world("memory://trimming", events_kept_max=10) as there:
        await tell_all(there)
    assert await check("memory://trimming") == []


async def test_every_moment_of_a_history_is_sound() -> None:
    """The audit after every single commit, beside the open line."""
    async with world("memory://moments") as there:
        commit = there.line.commit

        async def commit_and_check(mutation: Mutation) -> tuple[Event, ...]:
            events = await commit(mutation)
            assert check_blocking("memory://moments") == [], mutation.label
            return events

        there.line.commit = commit_and_check  # type: ignore[method-assign]
        await tell_all(there)


# -- laws of one row, of several, and of the events ---------------------------------------------------------------

SHA = "0" * 64


def event(seq: int, kind: str, **data: object) -> str:
    """The statement that writes one more event."""
    text = json.dumps({"intent_seq": 1, **data}).replace("'", "''")
    return f"INSERT INTO events VALUES ({seq}, 9999, '{kind}', 'somebody', '{text}')"


def on(table: str, key: str, changes: str) -> str:
    column = {"intents": "intent_id", "incarnations": "incarnation_id", "transcript": "dedup_key"}[table]
    return f"UPDATE {table} SET {changes} WHERE {column} = '{key}'"


def intent(number: int, changes: str) -> str:
    return on("intents", f"intent-{number}", changes)


def incarnation(number: int, changes: str) -> str:
    return on("incarnations", f"incarnation-{number}", changes)


def copy_of(table: str, column: str, key: str, **changes: str) -> list[str]:
    """The statements that insert a copy of a row with other values in some columns."""
    sets = ", ".join(f"{name} = {value}" for name, value in changes.items())
    return [
        f"CREATE TEMP TABLE one AS SELECT * FROM {table} WHERE {column} = '{key}'",
        f"UPDATE one SET {sets}" if sets else "SELECT 1",
        f"INSERT INTO {table} SELECT * FROM one",
        "DROP TABLE one",
    ]


def of_intents(number: int, *intents: int) -> set[Found]:
    return {(number, "intents", f"intent-{one}") for one in intents}


def of_incarnations(number: int, *incarnations: int) -> set[Found]:
    return {(number, "incarnations", f"incarnation-{one}") for one in incarnations}


NO_PROOF = (
    "mode = NULL, incarnation_id = NULL, turn_id = NULL, turn_ordinal = NULL, batch_id = NULL, bound_at = NULL, "
    "batch_completed_at = NULL, payload_offered_at = NULL, startup_delivery_id = NULL, handshake_at = NULL"
)
SOFT = "turn_id = 'turn-9', turn_ordinal = 9, batch_id = 'batch-9', bound_at = 9"

BROKEN: dict[str, tuple[list[str], set[Found]]] = {
    # 1
    "prepared without a result": ([intent(6, "result_op = NULL")], of_intents(1, 6)),
    "prepared without an anchor": ([intent(4, "anchor_commit_id = NULL")], of_intents(1, 4)),
    "acknowledged without prepared_at": ([intent(1, "prepared_at = NULL")], of_intents(1, 1)),
    "detected with a result": ([intent(12, "workspace_commit = 'commit'")], of_intents(1, 12)),
    "superseded with a payload": (
        [intent(3, f"payload = x'00', payload_sha256 = '{hashlib.sha256(bytes(1)).hexdigest()}'")],
        of_intents(1, 3),
    ),
    # 2
    "delivered without a time": (
        [intent(4, "delivered_at = NULL")],
        of_intents(2, 4) | of_intents(9, 4) | {(0, "projections", "intent-4")},
    ),
    "acknowledged without a time": ([intent(1, "acknowledged_at = NULL")], of_intents(2, 1)),
    "detected with acknowledged_at": ([intent(12, "acknowledged_at = 5")], of_intents(2, 12)),
    "acknowledged, never delivered": ([intent(8, "discarded = 0")], of_intents(2, 8)),
    # 3
    "a payload that changed": ([intent(1, "payload = x'00'")], of_intents(3, 1)),
    "a hash that changed": (
        [intent(6, f"payload_sha256 = '{SHA}'")],
        of_intents(3, 6) | of_incarnations(3, 7),
    ),
    "a to_base that moved": ([intent(1, "to_base = 'elsewhere'")], of_intents(3, 1)),
    "a from_base that moved": ([intent(4, "from_base = 'elsewhere'")], of_intents(3, 4)),
    "a coalescing into what was prepared": (
        [event(75, "intent.coalesced", intent_id="intent-6", to_base="to-2", state="materialized")],
        of_intents(3, 6),
    ),
    "a startup with other bytes": ([incarnation(5, f"startup_payload_sha256 = '{SHA}'")], of_incarnations(3, 5)),
    "a transcript of other bytes": (
        [on("transcript", "cascade:intent-1", "payload = x'00'")],
        {(3, "transcript", "cascade:intent-1")},
    ),
    "an intent without a trigger": (["DELETE FROM triggers WHERE intent_id = 'intent-7'"], of_intents(3, 7)),
    "a trigger that was dropped": (
        ["DELETE FROM triggers WHERE intent_id = 'intent-1' AND position = 0"],
        of_intents(3, 1),
    ),
    "two triggers in one place": (["UPDATE triggers SET position = 0 WHERE position = 1"], of_intents(3, 1)),
    # 4
    "a seq used twice": ([intent(3, "seq = 2")], of_intents(4, 3)),
    "a seq below 1": ([intent(12, "seq = 0")], of_intents(4, 12)),
    "two active intents": (
        [intent(11, "state = 'reconciling'")],
        of_intents(4, 11) | of_intents(0, 11),
    ),
    "an end before its turn": (
        [intent(11, "state = 'acknowledged', acknowledged_at = 5, delivered_at = 4")],
        of_intents(1, 11) | of_intents(4, 11) | of_intents(0, 11),
    ),
    "detected out of order": (
        [event(75, "intent.detected", intent_id="intent-12", pane_id="soft", trigger_op="op", state="detected")],
        {(4, "events", "75")},
    ),
    # 5
    "half a soft tuple": ([intent(9, "turn_ordinal = NULL")], of_intents(5, 9)),
    "a soft batch without a tuple": (
        [intent(9, "turn_id = NULL, turn_ordinal = NULL, batch_id = NULL, bound_at = NULL")],
        of_intents(5, 9) | of_intents(0, 9),
    ),
    "a tuple in restart mode": ([intent(6, SOFT)], of_intents(5, 6)),
    "an offer without a tuple": ([intent(6, "payload_offered_at = 5")], of_intents(5, 6)),
    "a restart without its id": ([intent(6, "startup_delivery_id = NULL")], of_intents(5, 6) | of_intents(8, 6)),
    "a restart id in a soft batch": ([intent(4, "startup_delivery_id = 'startup_delivery-1'")], of_intents(5, 4)),
    "a mode without its incarnation": (
        [intent(6, "incarnation_id = NULL")],
        of_intents(5, 6) | of_incarnations(0, 7),
    ),
    "a handshake in a soft batch": ([intent(4, "handshake_at = 5")], of_intents(5, 4)),
    "a handshake that delivered nothing": ([intent(6, "handshake_at = 5")], of_intents(5, 6)),
    "a restart without a payload": (
        [
            "UPDATE incarnations SET startup_payload_sha256 = NULL WHERE incarnation_id = 'incarnation-9'",
            intent(9, f"{NO_PROOF}"),
            intent(9, "mode = 'restart_startup', incarnation_id = 'incarnation-12', startup_delivery_id = 'startup'"),
        ],
        of_intents(5, 9) | of_intents(8, 9) | of_incarnations(3, 9) | of_incarnations(8, 9),
    ),
    "delivered without a proof": (
        [intent(4, NO_PROOF)],
        of_intents(5, 4) | of_incarnations(7, 1) | of_incarnations(0, 1),
    ),
    # 6
    "detected and bound": (
        [intent(12, f"mode = 'soft_batch', incarnation_id = 'incarnation-13', {SOFT}")],
        of_intents(6, 12) | of_intents(0, 12),
    ),
    "acknowledged and still bound": (
        [
            intent(
                5,
                "mode = 'restart_startup', incarnation_id = 'incarnation-6', "
                "startup_delivery_id = 'startup_delivery-4'",
            )
        ],
        of_intents(6, 5),
    ),
    "superseded with a completion": ([intent(3, "batch_completed_at = 5")], of_intents(5, 3) | of_intents(6, 3)),
    # 7
    "a retired incarnation with a marker": (
        [incarnation(6, "delivered_intent_id = 'intent-6'")],
        of_incarnations(7, 6),
    ),
    "a marker of what is not delivered": ([incarnation(7, "delivered_intent_id = 'intent-6'")], of_incarnations(7, 7)),
    "a marker of what is bound elsewhere": (
        [intent(4, "incarnation_id = 'incarnation-7'")],
        of_incarnations(7, 1) | of_intents(7, 4) | of_incarnations(0, 1) | of_intents(0, 4),
    ),
    "a marker in another pane": (
        [incarnation(13, "delivered_intent_id = 'intent-4'"), incarnation(1, "delivered_intent_id = NULL")],
        of_incarnations(7, 13) | of_intents(7, 4),
    ),
    "a marker of nothing": (
        [incarnation(13, "delivered_intent_id = 'nobody'")],
        of_incarnations(7, 13),
    ),
    "two markers of one intent": (
        [incarnation(13, "delivered_intent_id = 'intent-4'")],
        of_incarnations(7, 13),
    ),
    "delivered and not marked": ([incarnation(1, "delivered_intent_id = NULL")], of_intents(7, 4)),
    "a marker before the handshake": (
        [
            intent(6, "state = 'delivered', delivered_at = 5"),
            incarnation(7, "delivered_intent_id = 'intent-6'"),
        ],
        of_incarnations(7, 7) | of_intents(0, 6),
    ),
    # 8
    "a startup delivery id used twice": (
        [
            incarnation(9, "startup_delivery_id = 'startup_delivery-1'"),
            intent(7, "startup_delivery_id = 'startup_delivery-1'"),
        ],
        of_incarnations(8, 9),
    ),
    "an intent that shows another id": ([intent(6, "startup_delivery_id = 'another'")], of_intents(8, 6)),
    "half a startup": ([incarnation(3, "startup_attempt = NULL")], of_incarnations(8, 3) | of_incarnations(0, 3)),
    # 9
    "a delivery time that moved": ([intent(1, "delivered_at = 1009")], of_intents(9, 1)),
    "a completion time that moved": ([intent(9, "batch_completed_at = 1066")], of_intents(9, 9)),
    "a batch completed twice": (
        [
            event(
                75,
                "intent.batch_completed",
                intent_id="intent-9",
                state="recovery_required",
                incarnation_id="incarnation-12",
                batch_id="batch-1",
            )
        ],
        of_intents(9, 9),
    ),
    # 10
    "delivered after it was acknowledged": (
        [intent(5, "acknowledged_at = 1035")],
        of_intents(10, 5),
    ),
    "a recovery at another time": ([intent(2, "delivered_at = 1016")], of_intents(10, 2)),
    # 11
    "an event after the acknowledgement": (
        [event(75, "intent.batch_completed", intent_id="intent-1", state="acknowledged")],
        of_intents(11, 1),
    ),
    "an event after the discard": ([event(75, "intent.rearmed", intent_id="intent-8")], of_intents(11, 8)),
    "an event after it was superseded": ([event(75, "intent.coalesced", intent_id="intent-3")], of_intents(11, 3)),
    "a row that came back": (
        [intent(3, "state = 'detected'")],
        of_intents(11, 3) | of_intents(4, 4),
    ),
    # 12
    "two live incarnations": (
        [incarnation(3, "retired_at = NULL, retire_reason = NULL")],
        of_incarnations(12, 3, 7) | of_incarnations(0, 3),
    ),
    "a live one that is not the latest": (
        [
            incarnation(3, "retired_at = NULL, retire_reason = NULL"),
            incarnation(7, "retired_at = 5, retire_reason = 'gone'"),
        ],
        of_incarnations(12, 3) | of_incarnations(0, 3),
    ),
    "a launch beside a live one": (
        [event(75, "incarnation.launched", pane_id="soft", incarnation_id="incarnation-99")],
        {(12, "events", "75")},
    ),
    "a retired one that lives": (
        [
            incarnation(6, "retired_at = NULL, retire_reason = NULL"),
            incarnation(7, "epoch = 1, retired_at = 4, retire_reason = 'x'"),
        ],
        of_incarnations(12, 6) | of_incarnations(0, 6, 7),
    ),
    # 13
    "materialized twice": (
        [event(75, "intent.materialized", intent_id="intent-6", state="materialized")],
        of_intents(13, 6),
    ),
    # 0: rows
    "a state nobody knows": ([intent(12, "state = 'lost'")], of_intents(0, 12)),
    "a kind nobody knows": ([intent(12, "kind = 'odd'")], of_intents(0, 12)),
    "a number that is text": ([intent(12, "detected_at = 'noon'")], of_intents(0, 12)),
    "text that is none": ([intent(12, "reason = CAST(x'ff' AS TEXT)")], of_intents(0, 12)),
    "bytes for text": ([incarnation(13, "harness = x'ff00'")], of_incarnations(0, 13)),
    "nothing where something must be": ([incarnation(13, "harness = NULL")], of_incarnations(0, 13)),
    "half a plan": ([intent(1, "starting_op = NULL")], of_intents(0, 1)),
    "exhausted without an approval": ([intent(7, "approval = NULL")], of_intents(0, 7)),
    "exhausted in no mode": ([intent(10, "exhausted_at = 5, approval = 'yes'")], of_intents(0, 10)),
    "consumed, never delivered": ([intent(6, "consumed_at = 5")], of_intents(0, 6)),
    "retired without a reason": ([incarnation(2, "retire_reason = NULL")], of_incarnations(0, 2)),
    "live and to be replaced": ([incarnation(1, "relaunch = 1")], of_incarnations(0, 1)),
    "an intent that is there twice": (copy_of("intents", "intent_id", "intent-12"), of_intents(0, 12)),
    "an incarnation that is there twice": (
        copy_of("incarnations", "incarnation_id", "incarnation-13"),
        of_incarnations(0, 13),
    ),
    "an admission that is there twice": (
        copy_of("admissions", "batch_id", "batch-5"),
        {(0, "admissions", "incarnation-1, turn-6, batch-5")},
    ),
    "a trigger that is there twice": (
        copy_of("triggers", "operation_id", "op-w"),
        {(0, "triggers", "waiting, op-w"), (3, "intents", "intent-12")},
    ),
    "a projection that is there twice": (
        copy_of("projections", "intent_id", "intent-4"),
        {(0, "projections", "intent-4")},
    ),
    "an epoch used twice": ([incarnation(2, "epoch = 2")], of_incarnations(0, 3)),
    "attempts that skip one": ([incarnation(4, "startup_attempt = 3")], of_incarnations(0, 4)),
    "an attempt of an epoch to come": ([incarnation(7, "startup_epoch = 2")], of_incarnations(0, 7)),
    # 0: references
    "bound to nobody": (
        [intent(4, "incarnation_id = 'nobody'")],
        of_intents(0, 4) | of_incarnations(7, 1) | of_incarnations(0, 1),
    ),
    "started for nothing": ([incarnation(3, "startup_intent_id = 'nothing'")], of_incarnations(0, 3, 4)),
    "started for another pane": (
        [incarnation(8, "pane_id = 'waiting', epoch = 2")],
        of_incarnations(0, 8) | {(12, "incarnations", "incarnation-13")},
    ),
    "a trigger of nothing": (
        ["INSERT INTO triggers VALUES ('soft', 'op-x', 'nothing', 0, 5)"],
        {(0, "triggers", "soft, op-x")},
    ),
    "a trigger in another pane": (
        ["UPDATE triggers SET pane_id = 'soft' WHERE operation_id = 'op-w'"],
        {(0, "triggers", "soft, op-w")},
    ),
    "an admission of nobody": (
        ["INSERT INTO admissions VALUES ('nobody', 't', 'b', 'soft', 1, 'pass', NULL, 5)"],
        {(0, "admissions", "nobody, t, b")},
    ),
    "an admission in another pane": (
        ["UPDATE admissions SET pane_id = 'waiting' WHERE batch_id = 'batch-0'"],
        {(0, "admissions", "incarnation-1, turn-1, batch-0")},
    ),
    "a block by another pane's intent": (
        ["UPDATE admissions SET intent_id = 'intent-12' WHERE batch_id = 'batch-3'"],
        {(0, "admissions", "incarnation-1, turn-4, batch-3")},
    ),
    "a pass that names an intent": (
        ["UPDATE admissions SET intent_id = 'intent-1' WHERE batch_id = 'batch-0'"],
        {(0, "admissions", "incarnation-1, turn-1, batch-0")},
    ),
    "a block that names none": (
        ["UPDATE admissions SET intent_id = NULL WHERE batch_id = 'batch-3'"],
        {(0, "admissions", "incarnation-1, turn-4, batch-3")},
    ),
    "half a turn": (
        ["UPDATE admissions SET turn_ordinal = NULL WHERE batch_id = 'batch-0'"],
        {(0, "admissions", "incarnation-1, turn-1, batch-0")},
    ),
    "bound to a batch that was never admitted": (
        ["DELETE FROM admissions WHERE batch_id = 'batch-5'"],
        of_intents(0, 4),
    ),
    "a projection of nothing": (
        ["INSERT INTO projections VALUES ('nothing', 'soft', 5)"],
        {(0, "projections", "nothing")},
    ),
    "a projection of what was never delivered": (
        ["INSERT INTO projections VALUES ('intent-12', 'waiting', 5)"],
        {(0, "projections", "intent-12")},
    ),
    # 0: the launch rule
    "a process beside what is exhausted": (
        [incarnation(9, "retired_at = NULL, retire_reason = NULL")],
        of_incarnations(0, 9) | of_incarnations(12, 9),
    ),
    "a process beside what it is not bound to": (
        copy_of("incarnations", "incarnation_id", "incarnation-13", incarnation_id="'stray'", pane_id="'apart'"),
        {(0, "incarnations", "stray")},
    ),
    # 0: events
    "a gap between events": (["DELETE FROM events WHERE seq = 39"], {(0, "events", "40")}),
    "events from nowhere": (["UPDATE trimmed SET last_event_seq = 3"], {(0, "events", "1")}),
    "a number given twice": (
        ["INSERT INTO events SELECT * FROM events WHERE seq = 73"],
        {(0, "events", "73"), (12, "events", "73")},
    ),
    "no number": (["UPDATE events SET seq = 'x' WHERE seq = 74"], {(0, "events", "x")}),
    "no memory of what was trimmed": (["DELETE FROM trimmed"], {(0, "trimmed", "1")}),
    "an event that is not JSON": (["UPDATE events SET data = '{' WHERE seq = 74"], {(0, "events", "74")}),
    "an event that is no object": (["UPDATE events SET data = '[]' WHERE seq = 74"], {(0, "events", "74")}),
    "an event without a kind": (["UPDATE events SET kind = NULL WHERE seq = 74"], {(0, "events", "74")}),
    "an event of nobody": ([event(75, "intent.detected", intent_id="nobody")], {(0, "events", "75")}),
    "an event of no intent": ([event(75, "intent.detected", intent_id=["x"])], {(0, "events", "75")}),
    "an event that tells another state": (
        [event(75, "intent.recovery_required", intent_id="intent-10", state="recovery_required")],
        of_intents(0, 10),
    ),
    "a step back": (
        [event(75, "intent.reconciling", intent_id="intent-4", state="reconciling")],
        of_intents(0, 4),
    ),
    "an acknowledgement that skips the delivery": (
        [
            event(75, "intent.acknowledged", intent_id="intent-6", state="acknowledged"),
        ],
        of_intents(0, 6) | of_intents(11, 6),
    ),
    "a delivery nobody told of": ([intent(6, "delivered_at = 5")], of_intents(0, 6)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_law_is_found_under_its_number(name: str, loose: Path) -> None:
    statements, expected = BROKEN[name]
    damage(loose, *statements)
    violations = audit(loose)
    assert found(violations) == expected, violations


def test_every_number_is_broken_by_a_case() -> None:
    assert {number for _, expected in BROKEN.values() for number, _, _ in expected} == set(range(14))


def test_all_at_once_is_reported_and_nothing_raises(loose: Path) -> None:
    statements = [one for several, _ in BROKEN.values() for one in several if one.startswith("UPDATE ")]
    statements = [one for one in statements if not one.startswith("UPDATE one ")]
    damage(loose, *statements)
    assert {violation.number for violation in audit(loose)} >= {0, 1, 2, 3, 4, 5, 7, 8}


@pytest.mark.parametrize("value", [None, "", 7, -1.5, b"\xff"])
def test_any_value_in_any_column_is_judged_and_never_raises(history: Path, value: object) -> None:
    with open_reader(f"sqlite:///{history}") as reader:
        altered = Altered({table: list(reader.raw(table)) for table in RAW_TABLES})
    assert list(_violations(altered)) == []  # type: ignore[arg-type]
    for table, rows in altered.rows.items():
        for column in rows[0] if rows else ():
            altered.altered = (table, column, value)
            sorted(_violations(altered), key=attrgetter("number", "table", "key", "message"))  # type: ignore[arg-type]


def test_a_violation_says_what_is_wrong(loose: Path) -> None:
    damage(loose, intent(12, "workspace_commit = 'c'"), intent(6, "startup_delivery_id = 'another'"))
    assert audit(loose) == [
        Violation(1, "intents", "intent-12", "is detected and has workspace_commit"),
        Violation(
            8,
            "intents",
            "intent-6",
            "shows startup delivery 'another', its incarnation has 'startup_delivery-5' of intent 'intent-6'",
        ),
    ]


def test_a_row_that_cannot_be_read_says_why(loose: Path) -> None:
    damage(loose, intent(12, "kind = 'odd'"))
    assert audit(loose) == [
        Violation(0, "intents", "intent-12", "cannot be read: 'odd' is not a value of its field"),
    ]


def test_what_the_real_schema_lets_through_with_its_checks_off_is_found(history: Path, tmp_path: Path) -> None:
    """Foreign keys are off unless asked for, and whoever may write the file may ignore its CHECKs."""
    path = tmp_path / "store.db"
    path.write_bytes(history.read_bytes())
    damage(
        path,
        "UPDATE intents SET mode = NULL WHERE intent_id = 'intent-9'",
        "UPDATE triggers SET intent_id = 'nobody' WHERE operation_id = 'op-w'",
        "DROP INDEX incarnations_one_live_a_pane",
        "UPDATE incarnations SET retired_at = NULL, retire_reason = NULL WHERE incarnation_id = 'incarnation-3'",
    )
    assert {violation.number for violation in audit(path)} == {0, 3, 5, 12}


async def test_memory_rows_are_judged_too() -> None:
    async with world("memory://bad") as there:
        pane = Pane(there, "pane")
        await pane.launch()
        await pane.detect("op-1")
        (row,) = memory._NAMED["bad"].rows.tables[type(pane.state.intents[0])].rows.values()
        object.__setattr__(row, "state", IntentState.MATERIALIZED)
        assert found(await check("memory://bad")) == {
            (0, "incarnations", "incarnation-1"),
            (0, "intents", "intent-1"),
            (1, "intents", "intent-1"),
        }


# -- where it runs ------------------------------------------------------------------------------------------------


def test_it_runs_under_asyncio(history: Path, loose: Path) -> None:
    assert asyncio.run(check(f"sqlite:///{history}")) == []
    damage(loose, intent(12, "acknowledged_at = 5"))
    assert found(asyncio.run(check(f"sqlite:///{loose}"))) == of_intents(2, 12)


async def test_it_reads_in_another_thread(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[threading.Thread] = []

    def look(_url: str) -> list[Violation]:
        seen.append(threading.current_thread())
        return []

    monkeypatch.setattr("fencepost.supervisor.invariants.check_blocking", look)
    assert await check(f"sqlite:///{history}") == []
    assert seen != [threading.current_thread()]


async def test_it_writes_nothing_and_needs_no_ownership(history: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(history, tmp_path / "store.db"))
    url = f"sqlite:///{path}"
    async with world(url) as there:
        before = await trio.Path(path).read_bytes()
        assert await check(url) == []
        assert await trio.Path(path).read_bytes() == before
        event = NewEvent(kind="runtime.faulted", address="runtime:", at=1)
        await there.line.commit(Mutation(label="test.event", events=(event,)))
        assert await check(url) == []


async def test_a_busy_line_is_seen_at_one_moment(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    async with world(url) as there, trio.open_nursery() as nursery:
        nursery.start_soon(tell_all, there)
        for _ in range(20):
            assert await check(url) == []


@pytest.mark.parametrize("url", ["sqlite:///{}/none.db", "memory://never-opened", "memory://"])
async def test_a_store_that_is_not_there(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreFault, match=r"does not exist|no name"):
        await check(url.format(tmp_path))
    assert list(await trio.Path(tmp_path).iterdir()) == []


async def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, and long enough to be looked at\n" * 100)
    with pytest.raises(CorruptRecord):
        await check(f"sqlite:///{tmp_path}/text.db")
    damage(tmp_path / "other.db", "CREATE TABLE other (a)")
    with pytest.raises(CorruptRecord, match="another program"):
        await check(f"sqlite:///{tmp_path}/other.db")


async def test_a_store_of_a_newer_program(loose: Path) -> None:
    damage(loose, "PRAGMA user_version = 99")
    with pytest.raises(SchemaTooNew):
        await check(f"sqlite:///{loose}")


async def test_a_url_that_names_no_store() -> None:
    with pytest.raises(InvalidStoreUrl):
        await check("postgres://somewhere")


# -- what a reader hands to auditors ------------------------------------------------------------------------------


async def test_panes_and_dead_letters_are_counted_alike_by_both_stores(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/store.db", "memory://counted"):
        async with world(url) as there:
            with open_reader(url) as reader:
                assert (reader.pane_count(), reader.dead_letter_count()) == (0, 0)
                await tell_all(there)
                await Pane(there, "only launched").launch()
                await Pane(there, "only detected").detect("op-1")
                assert (reader.pane_count(), reader.dead_letter_count()) == (9, 1)
                named = ["apart", "broken", "discarded", "exhausted", "only detected", "only launched", "restarted"]
                assert reader.pane_ids() == [*named, "soft", "waiting"]


async def test_raw_rows_are_the_same_in_both_stores(tmp_path: Path) -> None:
    answers = []
    for url in (f"sqlite:///{tmp_path}/store.db", "memory://raw"):
        async with world(url) as there:
            await tell_all(there)
        with open_reader(url) as reader, reader.snapshot():
            answers.append({table: sorted(reader.raw(table), key=repr) for table in RAW_TABLES})
    in_file, in_memory = answers
    for table in RAW_TABLES:
        by_text = [sorted(map(repr, (sorted(row.items()) for row in rows[table]))) for rows in (in_file, in_memory)]
        assert by_text[0] == by_text[1]


def test_a_pane_whose_id_is_no_text_is_not_named(loose: Path) -> None:
    with open_reader(f"sqlite:///{loose}") as reader:
        named = reader.pane_ids()
    damage(loose, intent(12, "pane_id = CAST(x'ff' AS TEXT)"), intent(11, "pane_id = x'37'"))
    with open_reader(f"sqlite:///{loose}") as reader:
        assert reader.pane_ids() == named
        assert reader.pane_count() == len(named) + 2


def test_raw_rows_may_hold_anything(loose: Path) -> None:
    damage(loose, intent(12, "reason = CAST(x'ff' AS TEXT), detected_at = 'noon'"))
    with open_reader(f"sqlite:///{loose}") as reader:
        (row,) = (row for row in reader.raw("intents") if row["intent_id"] == "intent-12")
        assert (row["reason"], row["detected_at"], row["payload"]) == (b"\xff", "noon", None)
        assert reader.dead_letters()[0].call == "retire"
        with pytest.raises(ValueError, match="sqlite_schema"):
            reader.raw("sqlite_schema")
