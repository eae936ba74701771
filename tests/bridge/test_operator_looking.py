"""What the operator's routes tell of an empty store, a busy one, a damaged one and one that has failed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from bridge.http_world import OURS, world
from bridge.operated import EVIL, PANE, fits, operated, uncertain
from bridges import Harness, Workspace, moved
from supervisor.stories import loosened

from fencepost.supervisor import FleetSeatMailbox, StoreFault
from fencepost.supervisor.bridge.openapi_operator import OPERATOR_RESPONSES


async def test_an_empty_store_is_told():
    async with operated() as there:
        status = await there.ask("/operator/status")
        assert fits(status, OPERATOR_RESPONSES["operator_status"])
        assert (status["panes"], status["damage"], status["runtime"]["fault"]) == ([], [], None)
        assert (await there.ask(PANE, status=404))["error"] == "nothing is stored of this pane"


@pytest.mark.parametrize("store", ["memory", "sqlite", "jsonl"])
async def test_a_busy_store_is_told_in_the_shape_of_the_document(store, tmp_path):
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/s.db", "jsonl": f"jsonl:///{tmp_path}/s"}[store]
    mechanisms = [FleetSeatMailbox(acknowledge_seconds=0.01)]
    async with operated(store=url, reconciler=Workspace(), mechanisms=mechanisms) as there:
        pane = there.supervisor.pane(OURS)
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        await uncertain(there)
        status = await there.ask("/operator/status")
        assert fits(status, OPERATOR_RESPONSES["operator_status"])
        (line,) = status["panes"]
        assert (line["pane_id"], line["standing"], line["unresolved"]) == (OURS, "pending", 1)
        assert line["owed"]["why"] == "handed to the hook of batch b1: waits to hear that it was written"
        history = await there.ask(PANE)
        assert fits(history, OPERATOR_RESPONSES["operator_pane"])
        assert history["pane"] == line
        assert [one["incarnation_id"] for one in history["incarnations"]] == [harness.incarnation_id]
        assert history["intents"][0]["payload_bytes"] > 0
        assert "files moved" not in json.dumps(history)


async def test_damage_is_told_and_takes_no_answer_down(tmp_path):
    sound = tmp_path / "sound.db"
    async with world(store=f"sqlite:///{sound}", reconciler=Workspace()) as there:
        await there.supervisor.pane(OURS).detect(moved("A", "B"))
        await there.supervisor.pane("other").detect(moved("A", "B"))
    path = Path(tmp_path / "loose.db")
    loosened(sound, path)
    async with operated(store=f"sqlite:///{path}") as there:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE intents SET kind = ? WHERE pane_id = ?", (EVIL, OURS))
        ours, other = sorted((await there.ask("/operator/status"))["panes"], key=lambda line: line["pane_id"] != OURS)
        assert (ours["standing"], other["standing"], bool(ours["damage"])) == ("faulted", "pending", True)
        history = await there.ask(PANE)
        assert (history["intents"], history["pane"]["standing"]) == ([], "faulted")


async def test_a_store_that_cannot_be_read_leaves_the_runtime_to_be_told(monkeypatch):
    async with operated() as there:

        def fail(_):
            raise StoreFault(f"gone {EVIL}")

        monkeypatch.setattr(type(there.supervisor), "reader", fail)
        status = await there.ask("/operator/status")
        assert fits(status, OPERATOR_RESPONSES["operator_status"])
        assert (status["panes"], status["damage"][0][:18]) == (None, "gone \\x1b]0;owned\\")
        assert (await there.ask(PANE, status=503))["error"].isprintable()
        assert not there.bridge.stopping.asked.is_set()  # who looks stops nobody
