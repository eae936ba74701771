"""The commands that ask a bridge, against a real `fencepost serve`: what they do, refuse, ask for and show."""

from __future__ import annotations

import json
import os
import pty
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio
from bridge.http_clients import Program, UrllibTransport
from click.testing import CliRunner, Result
from supervisor.stories import Pane, loosened, tell_all, world

from fencepost.mailbox.claim import fingerprint_of
from fencepost.mailbox.delivery_records import DeliveryRecord, FenceRecord
from fencepost.mailbox.ladder import Stop
from fencepost.mailbox.mutation import Mutation
from fencepost.supervisor import NeedsRecovery, Options, cli
from fencepost.supervisor.bridge.operator_api import ACTIONS

EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202egpj.exe\u2028\ttab"
UUIDS = [f"00000000-0000-4000-8000-{number:012}" for number in range(10)]
DIGEST = "a" * 64


def uncertain(number: int, pane_id: str) -> DeliveryRecord:
    return DeliveryRecord(
        delivery_id=UUIDS[number],
        pane_id=pane_id,
        mechanism="fleet_seat",
        text="secret",
        fingerprint=fingerprint_of("secret"),
        created_at=1,
        dispatched_at=1,
        outcome="unconfirmed",
        stop=Stop.UNCERTAIN,
        detail=EVIL,
    )


async def history(path: Path) -> None:
    """A store with everything that only a person leads on from."""
    async with world(f"sqlite:///{path}") as there:
        await tell_all(there)
        for name in ("to rearm", "to discard", "to ask"):
            pane = Pane(there, name)
            await pane.detect("op-1")
            await pane.unattended()
            await pane.prepare()
            for _ in range(2):
                await pane.launch()
                await pane.fail()
        pane = Pane(there, "evil")
        await pane.launch()
        await pane.detect("op-1")
        await pane.call(1, "batch-1")
        await pane.complete(1, "batch-1")
        await pane.finish(NeedsRecovery(EVIL))
        fence = FenceRecord(pane_id="posts", delivery_id=UUIDS[2], binding=DIGEST, fingerprint=DIGEST, at=2)
        puts = (uncertain(1, "waiting"), uncertain(3, "soft"), fence)
        await there.line.commit(Mutation(label="test.deliveries", puts=puts))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("cli") / "bridge"
    folder.mkdir(mode=0o700)
    trio.run(history, folder / "bridge.db")
    with Program(folder) as program:
        yield program.started()


@pytest.fixture
def run(served: Program) -> Callable[..., Result]:
    def run(*arguments: str, **more) -> Result:
        whole = [*arguments, "--folder", str(served.folder)]
        result = CliRunner().invoke(cli.main, whole, prog_name="fencepost", **more)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        for line in result.output.splitlines():
            assert line.replace("\t", "").isprintable()
        return result

    return run


def status_of(run: Callable[..., Result], pane: str) -> dict:
    told = json.loads(run("status", "--json").stdout)
    return {line["pane_id"]: line for line in told["panes"]}[pane]


# -- what a person decides ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pane", "number"), [("waiting", 1), ("posts", 2)])
def test_settle(run, pane: str, number: int) -> None:
    assert status_of(run, pane)["deliveries"][0]["delivery_id"] == UUIDS[number]
    settle = ("settle", pane, UUIDS[number], "--approval", f"ada {EVIL}", "--yes")
    done = run(*settle)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "done\n", "")
    assert UUIDS[number] not in run("status", "--json").stdout
    again = run(*settle)
    assert (again.exit_code, again.stdout) == (
        0,
        f"unchanged: delivery {UUIDS[number]} is not uncertain, or was settled before\n",
    )
    assert json.loads(run(*settle, "--json").stdout) == {"version": 1, "answer": "unchanged"}


def test_resolve(run) -> None:
    assert "a person must resolve the workspace" in status_of(run, "broken")["owed"]["why"]
    intent = status_of(run, "broken")["owed"]["intent_id"]
    done = run("resolve", "broken", intent, "--resolution", "ours", "--by", "ada", "--yes")
    assert (done.exit_code, done.stdout) == (0, "done\n")
    assert status_of(run, "broken")["owed"]["needs_a_person"] is False  # it goes on, as far as this bridge reconciles
    (row,) = map(json.loads, run("intents", "--pane", "broken", "--json").stdout.splitlines())
    assert (row["resolution"], row["resolved_by"]) == ("ours", "ada")
    again = run("resolve", "broken", intent, "--resolution", "theirs", "--by", "eve", "--yes")
    assert (again.exit_code, again.stdout.startswith("unchanged: intent ")) == (0, True)
    assert again.stdout.endswith(", and a choice is recorded already: ours\n")


def test_a_choice_that_an_intent_does_not_need_is_not_recorded_and_said_so(run) -> None:
    intent = status_of(run, "soft")["owed"]["intent_id"]
    for more in ((), ("--json",)):
        told = run("resolve", "soft", intent, "--resolution", "ours", "--by", "ada", "--yes", *more)
        assert (told.exit_code, bool(told.stdout)) == (1, bool(more))
        assert told.stderr.startswith(f"Error: unchanged: intent {intent} is ")
        assert told.stderr.endswith(" and needs nobody; no choice was recorded\n")


def test_rearm(run) -> None:
    intent = status_of(run, "to rearm")["owed"]["intent_id"]
    assert run("rearm", "to rearm", intent, "--yes").stdout == "done\n"
    assert status_of(run, "to rearm")["owed"]["exhausted"] is False
    refused = run("rearm", "to rearm", intent, "--yes")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == f"Error: refused: not_exhausted: intent {intent} is materialized and not exhausted\n"
    told = run("rearm", "to rearm", intent, "--yes", "--json")
    assert (told.exit_code, json.loads(told.stdout)["reason"]) == (1, "not_exhausted")


def test_discard(run) -> None:
    intent = status_of(run, "to discard")["owed"]["intent_id"]
    guessed = run("discard", "to discard", intent, "--approval", EVIL, "--yes")
    assert (guessed.exit_code, "refused: proof_mismatch: approval" in guessed.stderr) == (1, True)
    (row,) = map(json.loads, run("intents", "--pane", "to discard", "--json").stdout.splitlines())
    assert run("discard", "to discard", intent, "--approval", row["approval"], "--yes").stdout == "done\n"
    assert status_of(run, "to discard")["standing"] == "in_sync"


def test_revive(run) -> None:
    sound = run("revive", "pane:soft", "--yes")
    assert (sound.exit_code, sound.stdout) == (0, "unchanged: no actor pane:soft is quarantined\n")
    malformed = run("revive", f"nonsense {EVIL}", "--yes")
    assert (malformed.exit_code, "address must be KIND:KEY" in malformed.stderr) == (2, True)


def test_what_crashes_again_and_again_is_quarantined_told_and_revived(tmp_path: Path) -> None:
    folder = tmp_path / "bridge"
    folder.mkdir(mode=0o700)
    trio.run(history, tmp_path / "sound.db")
    with closing(sqlite3.connect(loosened(tmp_path / "sound.db", folder / "bridge.db"))) as connection, connection:
        connection.execute("UPDATE incarnations SET epoch = -1 WHERE pane_id = 'soft'")

    def ask(*arguments: str) -> Result:
        return CliRunner().invoke(cli.main, [*arguments, "--folder", str(folder)])

    with Program(folder) as program:
        program.started()
        for _ in range(Options().crashes_max + 1):
            crashed = ask("rearm", "soft", "none", "--yes")
            assert (crashed.exit_code, "epoch" in crashed.stderr) == (2, True)
        quarantined = ask("rearm", "soft", "none", "--yes")
        assert quarantined.exit_code == 2
        assert quarantined.stderr == "Error: pane:soft is quarantined after repeated crashes; revive it to try again\n"
        told = json.loads(ask("status", "--json").stdout)
        assert told["bridge"]["quarantined"] == ["pane:soft"]
        assert "pane:soft is quarantined" in ask("status").stdout
        assert ask("revive", "pane:soft", "--yes").stdout == "done\n"
        assert json.loads(ask("status", "--json").stdout)["bridge"]["quarantined"] == []
        with closing(sqlite3.connect(folder / "bridge.db")) as connection, connection:
            connection.execute("UPDATE incarnations SET epoch = 1 WHERE pane_id = 'soft'")
        assert "unknown_intent" in ask("rearm", "soft", "none", "--yes").stderr  # it is back


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("settle", "soft", UUIDS[9], "--approval", "ada"), "unknown_delivery"),
        (("resolve", "soft", "none", "--resolution", "ours", "--by", "ada"), "unknown_intent"),
        (("rearm", "soft", "none"), "unknown_intent"),
        (("discard", "soft", "none", "--approval", "x"), "unknown_intent"),
    ],
)
def test_what_is_not_there_is_refused_in_words(run, arguments, reason: str) -> None:
    refused = run(*arguments, "--yes")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"Error: refused: {reason}: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("settle", "soft", "not-a-uuid", "--approval", "ada", "--yes"),
        ("settle", "soft", UUIDS[3], "--approval", " ", "--yes"),
        ("settle", "soft", UUIDS[3], "--yes"),
        ("settle", "soft", "--approval", "ada", "--yes"),
        ("settle", f"soft{EVIL}", UUIDS[3], "--approval", "ada", "--yes"),
        ("resolve", "soft", "i", "--resolution", "x", "--yes"),
        ("rearm", "soft", "x" * 300, "--yes"),
        ("revive", "--yes"),
    ],
)
def test_wrong_usage_is_2_and_does_nothing(run, arguments) -> None:
    before = status_of(run, "soft")
    assert run(*arguments).exit_code == 2
    assert status_of(run, "soft") == before


@pytest.mark.parametrize("name", ACTIONS)
def test_without_a_terminal_it_must_be_agreed_to_beforehand(run, name: str) -> None:
    action = ACTIONS[name]
    values = {"delivery_id": UUIDS[3], "intent_id": "i", "address": "pane:soft"}
    arguments = [] if name == "revive" else ["soft"]
    for field in action.fields:
        arguments += [values[field.name]] if field.name in values else [f"--{field.name}", "x"]
    before = status_of(run, "soft")
    unasked = run(name, *arguments, input="y\n")
    assert (unasked.exit_code, "add --yes" in unasked.stderr) == (2, True)
    assert status_of(run, "soft") == before
    helped = " ".join(run(name, "--help").stdout.split())
    for sentence in (action.summary, action.claims, action.does_not_claim):
        assert " ".join(sentence.split()) in helped


@pytest.mark.parametrize(("answer", "status"), [("n", 2), ("", 2), ("y", 0)])
def test_on_a_terminal_it_says_what_is_claimed_and_asks(served: Program, run, answer: str, status: int) -> None:
    intent = status_of(run, "to ask")["owed"]["intent_id"]
    program = [sys.executable, "-m", "fencepost.supervisor.cli", "rearm", "to ask", intent]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*program, "--folder", str(served.folder)], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, cwd="/"
    ) as process:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        shown = b""
        while chunk := _more(ours):
            shown += chunk
        assert process.wait(30) == status
    os.close(ours)
    words = " ".join(shown.decode().split())
    for sentence in (ACTIONS["rearm"].claims, ACTIONS["rearm"].does_not_claim, "pane: to ask", f"intent id: {intent}"):
        assert " ".join(sentence.split()) in words
    assert ("nothing was done" in words) == (status != 0)
    assert max(map(len, shown.decode().splitlines())) <= 80  # between words: they are all found above
    assert status_of(run, "to ask")["owed"]["exhausted"] == (status != 0)


def _more(ours: int) -> bytes:
    try:
        return os.read(ours, 65_536)
    except OSError:  # Linux's word for: the other end is closed
        return b""


# -- what a program hands in -------------------------------------------------------------------------------------------


def test_deliver(served: Program, run) -> None:
    link = served.operate("PUT", "operator/seats/seat", {"version": 1})["link"]
    program = [sys.executable, "-m", "fencepost.supervisor.cli", "deliver", "seat", "--json", "--id", UUIDS[5]]
    with subprocess.Popen(
        [*program, "--folder", str(served.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    ) as process:
        assert process.stdin is not None
        process.stdin.write("from a pipe")
        process.stdin.close()
        transport = UrllibTransport(served.folder / "endpoints.json", "seat", link)
        polled = json.loads(transport._ask("GET", "events?wait=20").body)
        (event,) = polled["events"]
        assert (event["event_id"], event["text"]) == (UUIDS[5], "from a pipe")
        transport._ask("POST", f"events/{UUIDS[5]}/ack", b'{"version": 1}')
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["stage"] == "delivered"
        assert process.wait(30) == 0
    again = run("deliver", "seat", "--text", "from a pipe", "--id", UUIDS[5])
    assert (again.exit_code, again.stdout.split(";")[0].strip()) == (
        0,
        f"{UUIDS[5]} delivered: reached the pane, not yet consumed",
    )


def test_deliver_to_a_pane_that_is_fenced(run) -> None:
    told = run("deliver", "soft", "--text", "more")
    assert told.exit_code == 1
    assert told.stderr.startswith(
        f"This text was not sent: an earlier message to the pane, {UUIDS[3]}, is not resolved"
    )
    assert told.stdout.startswith(f"{UUIDS[3]} uncertain: uncertain: it may have arrived, and nobody knows")
    unknown = run("deliver", "soft", "--text", "more", "--via", "pigeon")
    assert (unknown.exit_code, "'pigeon'" in unknown.stderr, "--id" in unknown.stderr) == (1, True, False)
    assert run("deliver", "soft", "--text", "x", "--id", "no").exit_code == 2


def test_detect_says_what_the_bridge_says(run) -> None:
    moved = ("detect", "new", "--new", "--from", "A", "--classification-op", "c", "--trigger-op", "t")
    assert run(*moved).exit_code == 2
    assert run(*moved, "--to", "B", "--kind", "nonsense").exit_code == 2
    told = run(*moved, "--to", "B", "--json")
    if told.exit_code == 0:
        assert json.loads(told.stdout)["coalesced"] is False
    else:
        assert (told.exit_code, "econciler" in told.stderr) == (1, True)


def test_a_pane_that_nobody_knows_is_taken_for_a_typo(run) -> None:
    moved = ("detect", "nosuch", "--from", "A", "--to", "B", "--classification-op", "c", "--trigger-op", "t")
    for asked in (moved, ("deliver", "nosuch", "--text", "x")):
        refused = run(*asked)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "nothing is known of pane nosuch" in refused.stderr
        assert "--new" in refused.stderr
    assert run("intents", "--pane", "nosuch").stdout.count("\n") == 1
    assert (run(*moved, "--new").exit_code, run(*moved).exit_code) == (0, 0)  # from now on it is known


def test_a_lost_answer_can_be_asked_for(run) -> None:
    lost = run("deliver", "seat", "--text", "slow", "--id", UUIDS[6], "--wait", "0.2", "--new")
    assert (lost.exit_code, lost.stdout) == (2, "")
    assert "not answered in time; it is not known how far the message got" in lost.stderr
    assert f", --new and --id {UUIDS[6]}: it is sent once" in lost.stderr


# -- beside a live bridge ----------------------------------------------------------------------------------------------


def test_the_reading_commands_work_beside_it(served: Program, run) -> None:
    assert run("check").stdout == "no violations\n"
    for command in ("intents", "events", "dead-letters", "status"):
        assert run(command).exit_code == 0
    told = json.loads(run("status", "--json").stdout)
    assert (told["bridge"]["serving"], told["bridge"]["quarantined"], told["bridge"]["fault"]) == (True, [], None)
    assert told["totals"]["quarantined_actors"] == 0
    evil = status_of(run, "evil")
    assert EVIL in evil["owed"]["why"]
    assert EVIL not in run("status").stdout
    assert "\\x1b]0;owned\\x07" in run("status").stdout


def test_the_reading_commands_find_a_store_outside_the_folder(tmp_path: Path) -> None:
    trio.run(history, tmp_path / "other.db")
    with Program(tmp_path / "bridge", "--store", f"sqlite:///{tmp_path}/other.db") as program:
        program.started()
        asked = ["status", "--folder", str(program.folder), "--json"]
        told = json.loads(CliRunner().invoke(cli.main, asked).stdout)
        events = CliRunner().invoke(cli.main, ["events", "--folder", str(program.folder)])
    assert (told["store"], told["bridge"]["serving"]) == (f"sqlite:///{tmp_path}/other.db", True)
    assert "waiting" in {line["pane_id"] for line in told["panes"]}
    assert (events.exit_code, "intent.exhausted" in events.stdout) == (0, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("settle", "soft", UUIDS[3], "--approval", "ada", "--yes"),
        ("rearm", "soft", "i", "--yes"),
        ("revive", "pane:soft", "--yes"),
        ("deliver", "soft", "--text", "x"),
        ("detect", "p", "--from", "A", "--to", "B", "--classification-op", "c", "--trigger-op", "t"),
    ],
)
def test_where_no_bridge_serves_it_is_2(arguments, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.main, [*arguments, "--folder", str(tmp_path / "none")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nobody serves from" in result.stderr
    assert not (tmp_path / "none").exists()


# -- the settings of hooks ---------------------------------------------------------------------------------------------


def test_hook_settings_are_printed(tmp_path: Path) -> None:
    def ask(*arguments: str) -> str:
        result = CliRunner().invoke(cli.main, ["hook-settings", *arguments, "--folder", str(tmp_path)])
        assert result.exit_code == 0, result.output
        return result.stdout

    claude = json.loads(ask("claude-code", "--deadline", "20"))
    assert "--deadline 20" in claude["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    told = json.loads(ask("claude-code", "--deadline", "20", "--json"))
    assert (told["settings"], told["deadline_seconds"]) == (claude, 20)
    codex = ask("codex")
    assert "[[hooks.PreToolUse]]" in codex
    assert json.loads(ask("codex", "--json"))["settings"].strip() == codex.strip()
    opencode = ask("opencode")
    assert '"--harness", "opencode", "--event", "PreToolUse"' in opencode
    assert json.loads(ask("opencode", "--json"))["settings"].strip() == opencode.strip()
    assert list(tmp_path.iterdir()) == []
    written = Path(ask("claude-code", "--incarnation", "../x").strip())
    assert written.is_relative_to(tmp_path / "incarnations")
    assert json.loads(written.read_text()) == json.loads(ask("claude-code"))
    home = json.loads(ask("codex", "--incarnation", "i", "--json"))["path"]
    assert (Path(home) / "config.toml").read_text().strip() == codex.strip()
    plugin = Path(ask("opencode", "--incarnation", "i").strip())
    assert (plugin.suffix, plugin.read_text().strip()) == (".js", opencode.strip())
