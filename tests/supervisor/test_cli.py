"""The program: what it prints, its exit status, and that stored text cannot speak to a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result
from supervisor.stories import Pane, loosened, tell_all, world

from fencepost.mailbox.mutation import Mutation, NewDeadLetter, NewEvent
from fencepost.supervisor import cli
from fencepost.supervisor.cli import output, reading
from fencepost.supervisor.demo.report import Report

EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202egpj.exe\u2028\ttab"
PAYLOAD_SHA256 = "b903a4bbed9eb9029746499c42f54b810199380d825e70b40c8e401e1585b1b0"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('cli')}/store.db"

    async def main() -> None:
        async with world(url) as there:
            await tell_all(there)

    trio.run(main)
    return url


@pytest.fixture
def bad_url(url: str, tmp_path: Path) -> str:
    path = loosened(Path(url.removeprefix("sqlite:///")), tmp_path / "bad.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE intents SET acknowledged_at = 5 WHERE intent_id = 'intent-12'")
        connection.execute("UPDATE intents SET kind = ? WHERE intent_id = 'intent-11'", (EVIL,))
    return f"sqlite:///{path}"


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli.main, arguments, prog_name="fencepost")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def table_of(result: Result) -> list[dict[str, str]]:
    assert result.exit_code == 0, result.output
    heads, *rows = (line.split("\t") for line in result.stdout.splitlines())
    return [dict(zip(heads, row, strict=True)) for row in rows]


# -- check --------------------------------------------------------------------------------------------------------


def test_check_of_a_sound_store(url: str) -> None:
    result = run("check", url)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "no violations\n", "")


def test_check_lists_violations_and_counts_them(bad_url: str) -> None:
    result = run("check", bad_url)
    assert result.exit_code == 1
    first, second, count = result.stdout.splitlines()
    assert first.startswith("0\tintents\tintent-11\tcannot be read: ")
    assert second == "2\tintents\tintent-12\tis detected and has acknowledged_at"
    assert count == "violations: 2"


def test_check_for_machines(url: str, bad_url: str) -> None:
    sound = run("check", url, "--json")
    assert (sound.exit_code, json.loads(sound.stdout)) == (0, {"count": 0, "violations": []})
    result = run("check", "--json", bad_url)
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["count"] == 2
    assert told["violations"][1] == {
        "number": 2,
        "table": "intents",
        "key": "intent-12",
        "message": "is detected and has acknowledged_at",
    }


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        ("DROP TABLE dead_letters", "dead_letters: is not there"),
        (
            "ALTER TABLE events RENAME COLUMN kind TO kindx",
            "events: has columns 'address', 'at', 'data', 'kindx', 'seq'",
        ),
    ],
)
def test_a_store_of_another_shape_is_nothing_that_can_be_checked(url: str, tmp_path: Path, harm: str, why: str) -> None:
    path = tmp_path / "shaped.db"
    shutil.copy(url.removeprefix("sqlite:///"), path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(harm)
    result = run("check", f"sqlite:///{path}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {path}: {why}")


# -- looking ------------------------------------------------------------------------------------------------------


def test_intents(url: str) -> None:
    rows = table_of(run("intents", url))
    assert len(rows) == 12
    assert [row["pane"] for row in rows] == sorted(row["pane"] for row in rows)
    soft = table_of(run("intents", url, "--pane", "soft"))
    assert [row["intent"] for row in soft] == ["intent-1", "intent-2", "intent-3", "intent-4"]
    assert soft[0]["payload"] == f"21 bytes, sha256 {PAYLOAD_SHA256}"
    assert soft[2]["payload"] == "-"
    assert soft[2]["remark"] == "reason: covered by intent intent-2"
    assert (soft[3]["state"], soft[3]["mode"], soft[3]["incarnation"]) == ("delivered", "soft_batch", "incarnation-1")
    assert table_of(run("intents", url, "--pane", "nobody")) == []
    told = [json.loads(line) for line in run("intents", url, "--json").stdout.splitlines()]
    assert [(one["pane_id"], one["intent_id"]) for one in told] == [(row["pane"], row["intent"]) for row in rows]
    assert {one["intent_id"]: one["payload"] for one in told}["intent-1"] == {"bytes": 21}


def test_an_exhausted_intent_shows_what_a_discard_must_show(url: str) -> None:
    (row,) = table_of(run("intents", url, "--pane", "exhausted"))
    (told,) = map(json.loads, run("intents", url, "--pane", "exhausted", "--json").stdout.splitlines())
    assert row["remark"] == f"exhausted; approval: {told['approval']}"


def test_intents_that_cannot_be_read_are_shown_all_the_same(bad_url: str) -> None:
    assert len(table_of(run("intents", bad_url))) == 12


def test_payload_bytes_are_never_shown(url: str) -> None:
    for command in ("intents", "events", "dead-letters", "status", "check"):
        assert "read again" not in run(command, url).output


def test_events(url: str) -> None:
    rows = table_of(run("events", url))
    assert [int(row["seq"]) for row in rows] == list(range(1, 75))
    assert rows[0]["at"] == "1970-01-01T00:00:00.000001000Z"
    assert json.loads(rows[0]["data"])["incarnation_id"] == "incarnation-1"
    told = [json.loads(line) for line in run("events", url, "--json").stdout.splitlines()]
    assert [one["seq"] for one in told] == list(range(1, 75))
    assert told[0].keys() == {"seq", "at", "kind", "address", "data"}
    assert told[0]["data"]["incarnation_id"] == "incarnation-1"
    some = table_of(run("events", url, "--after", "70", "--limit", "3"))
    assert [int(row["seq"]) for row in some] == [71, 72, 73]
    assert table_of(run("events", url, "--after", "74")) == []


@pytest.mark.parametrize("page", [1, 2, 3, 74, 75])
def test_events_come_page_by_page(url: str, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PAGE", page)
    assert len(table_of(run("events", url))) == 74
    assert [int(row["seq"]) for row in table_of(run("events", url, "--limit", "5"))] == [1, 2, 3, 4, 5]


def test_dead_letters(url: str) -> None:
    (row,) = table_of(run("dead-letters", url))
    assert (row["call"], row["incarnation"], row["reason"]) == (
        "retire",
        "incarnation-of-nobody",
        "unknown_incarnation",
    )
    assert table_of(run("dead-letters", url, "--after", "1")) == []
    told = json.loads(run("dead-letters", url, "--json").stdout)
    assert (told["seq"], told["reason"]) == (1, "unknown_incarnation")


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807Z"),
        (-(2**63), "1677-09-21T00:12:43.145224192Z"),
        ("noon", "noon"),
        (None, "-"),
    ],
)
def test_times(stored: object, shown: str) -> None:
    assert output.moment(stored) == shown


# -- untrusted text -----------------------------------------------------------------------------------------------


async def test_stored_text_is_escaped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/evil.db"
    async with world(url) as there:
        pane = Pane(there, "pane")
        await pane.detect("op-1", ambiguous=EVIL)
        letter = NewDeadLetter(at=1, address=EVIL, call="retire", incarnation_id=EVIL, reason="odd", detail=EVIL)
        event = NewEvent(kind=EVIL, address=EVIL, at=1, data={"reason": EVIL, EVIL: "bell \x07"})
        await there.line.commit(Mutation(label="test.evil", events=(event,), dead_letters=(letter,)))
    for command in ("intents", "events", "dead-letters", "status"):
        machines = run(command, url, "--json").stdout
        assert machines.isascii()
        assert machines.replace("\n", "").isprintable()
        result = run(command, url)
        for line in result.stdout.splitlines():
            assert line.replace("\t", "").isprintable()
        assert "\\x1b]0;owned\\x07" in result.stdout or "\\u001b]0;owned\\u0007" in result.stdout
        if command != "status":
            assert len(table_of(result)) == (2 if command == "events" else 1)


def test_a_violation_and_a_message_are_escaped(bad_url: str) -> None:
    result = run("check", bad_url)
    assert result.stdout.replace("\n", "").replace("\t", "").isprintable()
    assert run("check", f"sqlite:///{EVIL}").stderr.strip().isprintable()


# -- the store of a folder -------------------------------------------------------------------------------------------


def test_without_a_store_it_is_that_of_the_folder(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "state" / "fencepost"
    folder.mkdir(parents=True, mode=0o700)
    for command in ("check", "status", "intents", "events", "dead-letters"):
        missing = run(command, "--folder", str(folder))
        assert (missing.exit_code, missing.stdout) == (2, "")
        assert "no bridge has served from" in missing.stderr
    shutil.copy(url.removeprefix("sqlite:///"), folder / "bridge.db")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for command in ("check", "status", "intents", "events", "dead-letters"):
        named = run(command, "--folder", str(folder)).stdout
        assert named == run(command).stdout
        if command != "status":
            assert named == run(command, url).stdout


def test_the_store_that_a_bridge_names_is_read_and_not_the_one_in_its_folder(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "bridge"
    folder.mkdir(mode=0o700)
    endpoints = folder / "endpoints.json"
    endpoints.write_text(json.dumps({"version": 1, "store": url}))
    endpoints.chmod(0o600)
    (folder / "bridge.db").write_text("not a store")
    for command in ("check", "intents", "events", "dead-letters"):
        assert run(command, "--folder", str(folder)).stdout == run(command, url).stdout
    assert json.loads(run("status", "--folder", str(folder), "--json").stdout)["store"] == url
    for told in ("{}", "[]", "{", '{"store": 7}'):  # what an older bridge, or nobody, has written
        endpoints.write_text(told)
        assert run("check", "--folder", str(folder)).exit_code == 2
    endpoints.write_text(json.dumps({"store": url}))
    endpoints.chmod(0o644)  # anybody may have
    assert run("check", "--folder", str(folder)).exit_code == 2


# -- exit status 2 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "status", "intents", "events", "dead-letters"])
def test_a_store_that_cannot_be_read(command: str, tmp_path: Path) -> None:
    missing = run(command, f"sqlite:///{tmp_path}/none.db")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert missing.stderr == f"Error: {tmp_path}/none.db does not exist\n"
    (tmp_path / "text.db").write_text("this is not a database\n" * 200)
    assert run(command, f"sqlite:///{tmp_path}/text.db").exit_code == 2
    for scheme in ("sqlite", "jsonl"):
        folder = run(command, f"{scheme}:///{tmp_path}")
        assert (folder.exit_code, folder.stderr) == (2, f"Error: {tmp_path} is a folder\n")
    unknown = run(command, "nonsense")
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "'nonsense' names no store" in unknown.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.db"]


@pytest.mark.parametrize("scheme", ["sqlite", "jsonl"])
def test_what_is_no_store_is_told_as_what_it_is(scheme: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name, what in (("fifo", "is not a file"), ("loop", "is a link that leads to no file")):
        found = run("check", f"{scheme}:///{tmp_path}/{name}")
        assert (found.exit_code, found.stderr) == (2, f"Error: {tmp_path}/{name} {what}\n")
    assert run("check", f"{scheme}:////dev/null").stderr == "Error: /dev/null is not a file\n"


def test_a_path_may_begin_with_two_slashes(url: str) -> None:
    assert run("check", url.replace("sqlite:////", "sqlite://///")).stdout == "no violations\n"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_demo_that_is_interrupted_has_judged_nothing(monkeypatch: pytest.MonkeyPatch, *, as_json: bool) -> None:
    async def play(_root: Path, report: Report) -> None:
        report.check("nothing holds yet", "nothing", ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("fencepost.supervisor.demo.play.play", play)
    stopped = run("demo", *(["--json"] if as_json else []))
    assert (stopped.exit_code, "FAILED" in stopped.output) == (130, False)
    assert "Interrupted" in stopped.stderr
    assert not (as_json and stopped.stdout)


@pytest.mark.parametrize("more", [(), ("--follow", "--limit", "72")])
def test_a_damaged_event_is_told_and_the_others_are_listed(url: str, tmp_path: Path, more: tuple[str, ...]) -> None:
    path = loosened(Path(url.removeprefix("sqlite:///")), tmp_path / "bad.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE events SET data = '{' WHERE seq IN (1, 3)")
    result = run("events", f"sqlite:///{path}", "--json", *more)
    assert result.exit_code == 2
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [2, *range(4, 75)]
    first, third, count = result.stderr.splitlines()
    assert first.startswith(f"Event 1 is left out: {path}: events(1,): data is not JSON")
    assert third.startswith(f"Event 3 is left out: {path}: events(3,): data is not JSON")
    assert count == "Error: events that cannot be read: 2"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "a", "b"),
        ("check", "sqlite:///a", "--folder", "b"),
        ("nothing",),
        ("events", "x", "--after", "-1"),
        ("events", "x", "--limit", "0"),
        ("events", "x", "--limit", "many"),
        ("status", "x", "--what"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


# -- help and version ---------------------------------------------------------------------------------------------


def test_help() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for word in ("check", "status", "intents", "dead-letters", "events", "Examples:", "sqlite:///bridge.db"):
        assert word in result.stdout
    assert "..." not in result.stdout.partition("Commands:")[2]  # a sentence that is cut off helps nobody


@pytest.mark.parametrize("command", cli.main.commands)
def test_every_command_helps_with_an_example(command: str) -> None:
    result = run(command, "--help")
    assert (result.exit_code, f"  fencepost {command}" in result.stdout.partition("Example")[2]) == (0, True)


@pytest.mark.parametrize("command", [name for name in cli.main.commands if name != "channel"])
def test_every_command_speaks_json(command: str) -> None:
    assert any("--json" in parameter.opts for parameter in cli.main.commands[command].params)


def test_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "version", lambda _name: "1.2.3")
    assert run("--version").stdout == "fencepost 1.2.3\n"

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cli, "version", missing)
    assert run("--version").stdout == "fencepost, not installed\n"


# -- the real thing -----------------------------------------------------------------------------------------------


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from fencepost.supervisor.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


async def test_as_a_program_beside_an_open_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    async with world(url) as there:
        await tell_all(there)
        sound = await trio.to_thread.run_sync(program, "check", url)
        assert (sound.returncode, sound.stdout, sound.stderr) == (0, "no violations\n", "")
        await Pane(there, "later").launch()
        events = await trio.to_thread.run_sync(program, "events", url, "--after", "74")
        assert events.stdout.splitlines()[1].split("\t")[2] == "incarnation.launched"
    missing = await trio.to_thread.run_sync(program, "check", f"{url}.none")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "does not exist" in missing.stderr
