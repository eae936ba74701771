"""`fencepost status`: the fleet at a glance, for a person, for a pipe and for a program."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result
from supervisor.stories import loosened, tell_all, world

from fencepost.mailbox.delivery_records import DeliveryRecord
from fencepost.mailbox.ladder import Stop
from fencepost.mailbox.mutation import Mutation
from fencepost.supervisor import cli
from fencepost.supervisor.cli import status_command

EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202egpj.exe\u2028\ttab"
UUID = "00000000-0000-4000-8000-000000000001"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("status") / "store.db"
    delivery = DeliveryRecord(
        delivery_id=UUID,
        pane_id="waiting",
        mechanism="fleet_seat",
        text="secret",
        fingerprint="a" * 64,
        created_at=1,
        dispatched_at=1,
        outcome="unconfirmed",
        stop=Stop.UNCERTAIN,
        detail=f"late {EVIL}",
    )

    async def main() -> None:
        async with world(f"sqlite:///{path}") as there:
            await tell_all(there)
            await there.line.commit(Mutation(label="test.delivery", puts=(delivery,)))

    trio.run(main)
    return path


def run(*arguments: str, **more: str) -> Result:
    result = CliRunner().invoke(cli.main, arguments, prog_name="fencepost", env=more)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def tables_of(text: str) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The panes and the totals of what a pipe gets."""
    first, _, second = text.partition("\n\n")
    heads, *rows = (line.split("\t") for line in first.splitlines())
    panes = {row[0]: dict(zip(heads, row, strict=True)) for row in rows}
    head, *counts = second.splitlines()
    assert head == "what\tcount"
    return panes, dict(line.split("\t") for line in counts)


def test_a_pipe_gets_a_line_a_pane_and_then_the_totals(history: Path) -> None:
    result = run("status", f"sqlite:///{history}")
    assert result.exit_code == 0
    panes, totals = tables_of(result.stdout)
    assert list(panes) == ["apart", "broken", "discarded", "exhausted", "restarted", "soft", "waiting"]
    soft = panes["soft"]
    assert (soft["standing"], soft["process"], soft["harness"]) == ("pending", "#1 live", "claude")
    assert soft["owed"] == "intent-4 delivered"
    assert soft["waits for"] == "written to the harness: waits for batch batch-5 to complete"
    assert panes["apart"]["owed"].endswith(" and 1 more")
    assert panes["discarded"]["owed"] == panes["discarded"]["waits for"] == "-"
    assert panes["waiting"]["deliveries"].startswith(f"message to it {UUID}: uncertain: it may have arrived")
    assert totals == {
        "panes": "7",
        "live incarnations": "4",
        "unresolved intents": "7",
        "unresolved intents, detected": "2",
        "unresolved intents, reconciling": "1",
        "unresolved intents, materialized": "2",
        "unresolved intents, delivered": "1",
        "unresolved intents, recovery_required": "1",
        "unresolved intents, topology_diverged": "0",
        "exhausted intents": "1",
        "open batches": "0",
        "uncertain deliveries": "2",
        "dead letters": "1",
    }


def test_a_program_gets_one_object(history: Path) -> None:
    told = json.loads(run("status", f"sqlite:///{history}", "--json").stdout)
    assert told.keys() == {"version", "store", "bridge", "panes", "totals", "damage"}
    assert (told["version"], told["bridge"], told["damage"]) == (1, None, [])
    broken = {line["pane_id"]: line for line in told["panes"]}["broken"]
    assert (broken["standing"], broken["owed"]["needs_a_person"]) == ("conflicted", True)
    assert told["totals"]["unresolved_intents_recovery_required"] == 1
    assert "secret" not in json.dumps(told)


@pytest.mark.parametrize("columns", ["60", "100", "200"])
def test_a_person_gets_a_table_and_sentences(history: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setattr(status_command, "on_terminal", lambda: True)
    result = run("status", f"sqlite:///{history}", COLUMNS=columns, NO_COLOR="1")
    assert result.exit_code == 0
    assert "\t" not in result.stdout
    table, _, summary = result.stdout.partition("\n\n")
    assert table.splitlines()[0].split() == ["pane", "standing", "process", "what", "it", "waits", "for"]
    assert max(map(len, table.splitlines())) <= int(columns)
    told = " ".join(table.split())
    assert "broken conflicted claude #1 live" in told
    assert all(line.isprintable() for line in result.stdout.splitlines())
    assert max(map(len, map(str.rstrip, summary.splitlines()))) <= int(columns)
    summary = " ".join(summary.split())  # its lines end between words
    assert "7 panes, 4 with a live process." in summary
    assert "1 recovery required" in summary


def test_colour_is_no_more_than_an_addition(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_command, "on_terminal", lambda: True)
    plain = run("status", f"sqlite:///{history}", COLUMNS="120", NO_COLOR="1").stdout
    for standing in ("in sync", "pending", "conflicted"):
        assert standing in plain


def test_damage_is_told_where_it_is(history: Path, tmp_path: Path) -> None:
    path = loosened(history, tmp_path / "bad.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE intents SET kind = ? WHERE pane_id = 'soft'", (EVIL,))
        connection.execute("UPDATE deliveries SET fingerprint = 'short'")
    result = run("status", f"sqlite:///{path}")
    assert result.exit_code == 0
    panes, totals = tables_of(result.stdout)
    assert panes["soft"]["standing"] == "faulted"
    assert "intents" in panes["soft"]["trouble"]
    assert panes["waiting"]["standing"] == "faulted"
    assert panes["broken"]["standing"] == "conflicted"
    assert "damage" not in totals  # it is told with its pane
    for line in result.stdout.splitlines():
        assert line.replace("\t", "").isprintable()


def test_an_empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(f"sqlite:///{tmp_path}/store.db"):
            pass

    trio.run(main)
    panes, totals = tables_of(run("status", f"sqlite:///{tmp_path}/store.db").stdout)
    assert (panes, totals["panes"]) == ({}, "0")
    monkeypatch.setattr(status_command, "on_terminal", lambda: True)
    assert run("status", f"sqlite:///{tmp_path}/store.db").stdout.startswith("0 panes, 0 with a live process.")


def test_of_a_folder_it_says_that_no_bridge_serves(history: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bridge"
    folder.mkdir(mode=0o700)
    shutil.copy(history, folder / "bridge.db")
    told = json.loads(run("status", "--folder", str(folder), "--json").stdout)
    assert (told["bridge"]["serving"], told["bridge"]["error"]) == (False, None)
    _, totals = tables_of(run("status", "--folder", str(folder)).stdout)
    assert totals["bridge"] == "none serves"
    both = json.loads(run("status", f"sqlite:///{history}", "--folder", str(folder), "--json").stdout)
    assert (both["store"], both["bridge"]["serving"]) == (f"sqlite:///{history}", False)
    folder.chmod(0o755)
    told = json.loads(run("status", "--folder", str(folder), "--json").stdout)
    assert "chmod 700" in told["bridge"]["error"]
    _, totals = tables_of(run("status", "--folder", str(folder)).stdout)
    assert "chmod 700" in totals["bridge"]
