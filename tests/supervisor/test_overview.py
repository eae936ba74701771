"""The fleet at a glance: one line a pane, whatever state it is in, and no damage of one hides another."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
from supervisor.stories import LIMITS, Pane, loosened, tell_all, world

from fencepost.mailbox.delivery_records import DeliveryRecord, FenceRecord
from fencepost.mailbox.ladder import Stop
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.records import IntentState
from fencepost.mailbox.stores.store import open_reader
from fencepost.supervisor.overview import NOBODY_KNOWS, Fleet, PaneLine, Standing, fleet
from fencepost.supervisor.pane_history import pane_history

DIGEST = "a" * 64
UUIDS = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(4)]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("overview") / "store.db"

    async def main() -> None:
        async with world(f"sqlite:///{path}") as there:
            await tell_all(there)

    trio.run(main)
    return path


@pytest.fixture
def loose(history: Path, tmp_path: Path) -> Path:
    return loosened(history, tmp_path / "loose.db")


def look(path: Path, *quarantined: str, **more: int) -> Fleet:
    with open_reader(f"sqlite:///{path}") as reader:
        return fleet(reader, quarantined, **more)


def lines(found: Fleet) -> dict[str, PaneLine]:
    return {line.pane_id: line for line in found.panes}


def test_every_pane_is_told_with_what_it_owes(history: Path) -> None:
    found = look(history)
    told = lines(found)
    assert list(told) == ["apart", "broken", "discarded", "exhausted", "restarted", "soft", "waiting"]
    assert {name: line.standing for name, line in told.items()} == {
        "apart": Standing.PENDING,
        "broken": Standing.CONFLICTED,
        "discarded": Standing.IN_SYNC,
        "exhausted": Standing.CONFLICTED,
        "restarted": Standing.PENDING,
        "soft": Standing.PENDING,
        "waiting": Standing.PENDING,
    }
    assert (found.totals.panes, found.totals.unresolved_intents, found.left_out, found.damage) == (7, 7, 0, ())
    assert told["discarded"].owed is None
    assert told["discarded"].process is not None
    assert not told["discarded"].process.live
    assert told["waiting"].owed is not None
    assert told["waiting"].owed.why == "waits for the next batch of tool calls, which it will block"
    assert told["broken"].owed is not None
    assert told["broken"].owed.why == "a person must resolve the workspace: still dirty"
    assert told["exhausted"].owed is not None
    assert told["exhausted"].owed.exhausted
    assert told["exhausted"].owed.needs_a_person
    assert told["soft"].owed is not None
    assert told["soft"].owed.state is IntentState.DELIVERED
    assert told["soft"].owed.why == "written to the harness: waits for batch batch-5 to complete"
    assert told["soft"].process is not None
    assert (told["soft"].process.live, told["soft"].process.harness, told["soft"].process.epoch) == (True, "claude", 1)


def test_only_so_many_panes_are_told(history: Path) -> None:
    found = look(history, panes_max=3)
    assert [line.pane_id for line in found.panes] == ["apart", "broken", "discarded"]
    assert found.left_out == 4


def test_who_is_quarantined_is_told_with_the_pane_that_needs_it(history: Path) -> None:
    soft = lines(look(history))["soft"]
    assert soft.owed is not None
    told = lines(look(history, "pane:waiting", f"intent:{soft.owed.intent_id}", "batch:apart/o/t", "intent:none"))
    assert {name: line.quarantined for name, line in told.items() if line.quarantined} == {
        "apart": ("batch:apart/o/t",),
        "soft": (f"intent:{soft.owed.intent_id}",),
        "waiting": ("pane:waiting",),
    }
    assert {name for name, line in told.items() if line.standing is Standing.FAULTED} == {"apart", "soft", "waiting"}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE intents SET kind = 'odd' WHERE pane_id = 'soft'",
        "UPDATE intents SET payload = x'00' WHERE pane_id = 'soft' AND state = 'delivered'",
        "UPDATE incarnations SET epoch = -1 WHERE pane_id = 'soft'",
        "UPDATE incarnations SET harness = CAST(x'ff' AS TEXT) WHERE pane_id = 'soft'",
    ],
)
def test_a_damaged_row_is_told_with_its_pane_and_hides_no_other(loose: Path, damage: str) -> None:
    with closing(sqlite3.connect(loose)) as connection, connection:
        assert connection.execute(damage).rowcount
    told = lines(look(loose))
    assert {name for name, line in told.items() if line.damage} == {"soft"}
    assert told["soft"].standing is Standing.FAULTED
    if "incarnations" in damage:  # then it is not known whether a process lives
        assert told["soft"].owed is not None
        assert told["soft"].owed.why == NOBODY_KNOWS
    assert told["broken"].standing is Standing.CONFLICTED
    assert len(told) == 7


async def test_what_fences_a_pane_is_told_in_words(history: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(history, tmp_path / "store.db"))
    common = {"mechanism": "fleet_seat", "text": "secret", "fingerprint": DIGEST, "created_at": 1, "dispatched_at": 1}
    puts = (
        DeliveryRecord(delivery_id=UUIDS[0], pane_id="only written to", **common),
        DeliveryRecord(
            delivery_id=UUIDS[1], pane_id="waiting", outcome="unconfirmed", stop=Stop.UNCERTAIN, detail="late", **common
        ),
        FenceRecord(pane_id="waiting", delivery_id=UUIDS[2], binding=DIGEST, fingerprint=DIGEST, at=2),
    )
    async with world(f"sqlite:///{path}") as there:
        await there.line.commit(Mutation(label="test.deliveries", puts=puts))
    found = look(path)
    told = lines(found)
    (way,) = told["only written to"].deliveries
    assert (way.delivery_id, way.uncertain, way.inbound) == (UUIDS[0], False, False)
    assert way.words == "on its way: it may have left, and nothing has come back yet"
    out, pending = told["waiting"].deliveries
    assert (out.uncertain, out.words) == (True, "uncertain: it may have arrived, and nobody knows (late)")
    assert (pending.delivery_id, pending.inbound) == (UUIDS[2], True)
    assert found.totals.uncertain_deliveries == 2  # this one, and the exhausted intent
    assert "secret" not in repr(found)


async def test_a_damaged_delivery_is_told_though_its_pane_is_not_known(history: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(history, tmp_path / "store.db"))
    row = DeliveryRecord(
        delivery_id=UUIDS[0],
        pane_id="only written to",
        mechanism="fleet_seat",
        text="text",
        fingerprint=DIGEST,
        created_at=1,
        dispatched_at=1,
    )
    async with world(f"sqlite:///{path}") as there:
        await there.line.commit(Mutation(label="test.deliveries", puts=(row,)))
    path = loosened(path, tmp_path / "loose.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE deliveries SET fingerprint = 'short'")
    found = look(path)
    assert "deliveries" in found.damage[0]
    assert lines(found)["discarded"].standing is Standing.IN_SYNC


async def test_a_pane_in_full_tells_the_latest_of_each_kind_oldest_first(history: Path, loose: Path) -> None:
    with open_reader(f"sqlite:///{history}") as reader:
        whole, latest = pane_history(reader, "restarted"), pane_history(reader, "restarted", latest=2)
        nobody = pane_history(reader, "nobody")
    assert [one.epoch for one in whole.incarnations] == [1, 2, 3, 4, 5, 6]
    assert [one.epoch for one in latest.incarnations] == [5, 6]
    assert [one.startup_attempt for one in whole.incarnations] == [None, 1, 2, 1, 2, 1]
    done, owed = whole.intents
    assert (done.state, done.reached, done.why, done.epoch) == (IntentState.ACKNOWLEDGED, "responded", None, 1)
    assert (owed.reached, owed.payload_bytes, owed.approval) == ("stored", 21, None)
    assert "read again" not in repr(whole)
    assert (whole.is_known, nobody.is_known) == (True, False)
    with closing(sqlite3.connect(loose)) as connection, connection:
        connection.execute("UPDATE intents SET seq = -1 WHERE intent_id = 'intent-5'")
    with open_reader(f"sqlite:///{loose}") as reader:
        damaged = pane_history(reader, "restarted")
    assert (damaged.intents, damaged.pane.standing, len(damaged.pane.damage)) == ((), Standing.FAULTED, 1)
    assert len(damaged.incarnations) == 6


# -- in words ----------------------------------------------------------------------------------------------------------


async def test_why_an_intent_waits_step_by_step_of_a_soft_delivery() -> None:
    url = "memory://why-soft"
    async with world(url) as there:
        pane = Pane(there, "p")
        await pane.launch()
        await pane.detect("op-1")
        assert why(url) == "waits for the next batch of tool calls, which it will block"
        await pane.call(1, "b1")
        assert why(url) == "the workspace is being reconciled; tool calls are blocked meanwhile"
        await pane.prepare()
        assert why(url) == "its payload is saved: waits for the blocked calls of batch b1 to fetch it"
        await pane.call(1, "b1")
        assert why(url) == "handed to the hook of batch b1: waits to hear that it was written"
        await pane.mark()
        assert why(url) == "written to the harness: waits for batch b1 to complete"
        await pane.complete(1, "b1")
        assert (
            why(url) == "its batch has completed: waits for a tool call of a later turn, which proves that it was read"
        )
        await pane.call(2, "b2")
        assert why(url) is None
        await pane.detect("op-2")
        await pane.call(3, "b3")
        await pane.complete(3, "b3")
        await pane.prepare()
        assert why(url) == "its batch completed without the payload: waits for the next tool call, which gets it"
        await pane.retire()
        assert why(url) == "its process is gone: waits for a replacement that is started with the payload"


async def test_why_an_intent_waits_step_by_step_of_a_restart() -> None:
    url = "memory://why-restart"
    async with world(url) as there:
        pane = Pane(there, "p")
        await pane.detect("op-1")
        assert why(url) == "waits to be reconciled; no process was launched"
        await pane.unattended()
        await pane.prepare()
        assert why(url) == "its payload is saved: waits for a process that is started with it"
        await pane.launch()
        assert why(url) == "a replacement was started: waits for it to accept the payload as its first input"
        await pane.ready()
        assert why(url) == "accepted by the replacement: waits for its first tool call, which proves that it was read"
        await pane.retire()
        assert why(url) == "its payload is saved: waits for a process that is started with it"
        for _ in range(LIMITS.startup_attempts_max - 1):
            await pane.launch()
            await pane.fail()
        assert why(url) == "every permitted start with its payload failed: a person must rearm or discard it"


async def test_why_an_intent_waits_for_a_person() -> None:
    url = "memory://why-person"
    async with world(url) as there:
        pane = Pane(there, "p")
        await pane.detect("op-1", ambiguous="two parents")
        await pane.detect("op-2")
        assert why(url) == "a person must say where the base is: two parents"
        with open_reader(url) as reader:
            history = pane_history(reader, "p")
        assert [one.why for one in history.intents][1] == "waits for intent intent-1, which comes first"


def why(url: str) -> str | None:
    """Why the only pane of a store waits."""
    with open_reader(url) as reader:
        (line,) = fleet(reader).panes
    return None if line.owed is None else line.owed.why
