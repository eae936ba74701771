"""The examples run as their readers run them: as programs, from a folder of their own."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from fencepost.supervisor import check

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DEMO_SECONDS = 60  # it ends itself sooner


def run(
    example: str, *arguments: str, cwd: Path, seconds: float = 30, **environment: str
) -> subprocess.CompletedProcess:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environment, timeout=seconds, capture_output=True, text=True, check=False
    )


def run_demo(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """The demo as `make demo` runs it."""
    return run(str(ROOT / "supervisor" / "demo"), *arguments, cwd=cwd, seconds=DEMO_SECONDS, **environment)


@pytest.mark.parametrize("example", ["bridge_trio.py", "bridge_asyncio.py"])
def test_a_bridge_tells_its_story_and_a_second_run_finds_it_told(example: str, tmp_path: Path) -> None:
    first = run(example, cwd=tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    *told, later, latest, end = first.stdout.splitlines()
    assert len(told) == 2
    assert len(set(told)) == 1
    assert told[0].startswith("turn-1: BlockPayload(")
    assert "Read again before you write." in told[0]
    assert (later, latest) == ("turn-2: Allow()", "turn-2: Allow()")
    assert end == "main-2: acknowledged, in_sync"

    second = run(example, cwd=tmp_path)
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout.splitlines() == [*["turn-1: Allow()"] * 2, *["turn-2: Allow()"] * 2, end]


@pytest.mark.parametrize("example", ["bridge_trio.py", "bridge_asyncio.py"])
def test_a_bridge_has_thirty_lines(example: str) -> None:
    tree = ast.parse((EXAMPLES / example).read_text(encoding="utf-8"))
    tree.body.pop(0)  # its docstring
    assert len(ast.unparse(tree).replace("\n\n", "\n").splitlines()) <= 32


def test_the_two_bridges_differ_only_in_their_event_loop() -> None:
    def lines(example: str) -> list[str]:
        return (EXAMPLES / example).read_text(encoding="utf-8").splitlines()

    pairs = zip(lines("bridge_trio.py"), lines("bridge_asyncio.py"), strict=True)
    differing = [pair for pair in pairs if pair[0] != pair[1]]
    assert all("trio" in ours or "start_soon" in ours for ours, _ in differing), differing


RELEASED = ["test: done", "build: done", "publish: done"]


def test_a_tool_killed_while_it_works_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "tool.py")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert [first.stdout.readline() for _ in range(2)] == ["test …\n", "build …\n"]
        first.kill()  # the first step is recorded, or the second would not have begun
    assert first.returncode in {-signal.SIGKILL, 0}  # 0: it was done before the signal came

    second = run("tool.py", cwd=tmp_path)
    assert (second.returncode, second.stderr) == (0, "")
    again, told = second.stdout.splitlines()[:-3], second.stdout.splitlines()[-3:]
    assert told == RELEASED
    assert again in [["build …", "publish …"], ["publish …"], []], "what was recorded is not done again"

    third = run("tool.py", cwd=tmp_path)
    assert (third.returncode, third.stderr) == (0, "")
    assert third.stdout.splitlines() == RELEASED, "a finished call never runs again"
    assert trio.run(check, f"sqlite:///{tmp_path / 'tools.db'}") == []


def test_a_tool_has_ten_lines() -> None:
    text = (EXAMPLES / "tool.py").read_text(encoding="utf-8")
    (tool,) = [node for node in ast.parse(text).body if getattr(node, "name", None) == "release"]
    declared = [line for line in text.splitlines() if "fp.Tool(" in line]
    assert len(ast.unparse(tool).splitlines()) + len(declared) <= 10


SENDING = "sending: The build is green."
RESPONDED = "settled: responded; the same message again: original_receipt"
UNCERTAIN = "failed: uncertain; the same message again: after_reconcile"


def test_a_message_is_sent_once_and_every_later_run_is_told_what_became_of_it(tmp_path: Path) -> None:
    for printed in ([SENDING, RESPONDED], [RESPONDED], [RESPONDED]):
        ran = run("delivery.py", cwd=tmp_path)
        assert (ran.returncode, ran.stderr, ran.stdout.splitlines()) == (0, "", printed)
    assert trio.run(check, f"sqlite:///{tmp_path / 'messages.db'}") == []


def test_a_message_killed_while_it_is_sent_is_uncertain_and_never_sent_again(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "delivery.py")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == f"{SENDING}\n"
        first.kill()
    told = UNCERTAIN if first.returncode else RESPONDED  # 0: it was done before the signal came
    for _ in range(2):
        ran = run("delivery.py", cwd=tmp_path)
        assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", f"{told}\n")
    assert trio.run(check, f"sqlite:///{tmp_path / 'messages.db'}") == []


def test_a_message_has_ten_lines() -> None:
    tree = ast.parse((EXAMPLES / "delivery.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.AsyncFunctionDef)]
    assert sum(len(ast.unparse(function).splitlines()) for function in functions) <= 10


def test_the_chaos_test_finds_every_death_survived(tmp_path: Path) -> None:
    ran = run("chaos_test.py", cwd=tmp_path, seconds=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    death, sweep = ran.stdout.splitlines()
    assert "killed" in death
    assert int(sweep.partition(" ")[0]) > 100


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary folder whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="fp-") as folder:
        yield Path(folder)


def rows_of(printed: str) -> list[tuple[str, str]]:
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith(("ok | ", "FAILED | "))]
    return [(step, outcome) for outcome, step, _ in rows]


CLAIMS = [
    "a: four hook processes printed the same bytes, the saved ones",
    "a: marked delivered by the hooks, not yet complete",
    "a: the batch completes, which acknowledges nothing",
    "a: a later turn acknowledges, and its tools run on what the agent was told",
    "b: SIGKILL; the launcher starts a replacement once the old process is gone",
    "b: and carries the same bytes the dead one's hooks printed",
    "b: the handshake proves delivery, and acknowledges nothing",
    "b: the replacement's first turn echoes the id: acknowledged, and its tools run",
    "c: a hook that outlived its harness asks for its tool: fenced",
    "c: both are in the dead letters",
    "d: a new bridge resumes the attempt and probes the files first",
    "d: every file is finished exactly once",
    "d: the harnesses survived: same processes, same incarnations, no relaunch",
    "e: no tool ran on files its agent was not told about",
    "e: check(store) finds every invariant held",
    "the demo came to its end",
]


def test_the_demo_holds_every_claim_and_leaves_nothing_behind(short_folder: Path) -> None:
    ran = run_demo(cwd=short_folder, TMPDIR=str(short_folder))
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout[-4000:]
    rows = dict(rows_of(ran.stdout))
    assert set(rows.values()) == {"ok"}
    assert set(CLAIMS) <= rows.keys()
    assert not list(short_folder.iterdir())


@pytest.mark.slow
def test_the_demo_keeps_its_store_when_asked(short_folder: Path) -> None:
    ran = run_demo("--keep", cwd=short_folder, TMPDIR=str(short_folder))
    assert ran.returncode == 0, ran.stdout[-4000:]
    (kept,) = short_folder.iterdir()
    url = f"sqlite:///{kept / 'bridge.db'}"
    assert ran.stdout.rstrip().endswith(url)
    assert trio.run(check, url) == []


@pytest.mark.slow
def test_the_demo_speaks_json(short_folder: Path) -> None:
    ran = run_demo("--json", cwd=short_folder, TMPDIR=str(short_folder))
    assert ran.returncode == 0, ran.stdout[-4000:]
    told = json.loads(ran.stdout)
    assert told["failed"] is False
    assert {claim["step"] for claim in told["claims"] if claim["ok"]} >= set(CLAIMS)


def test_the_demo_explains_itself(tmp_path: Path) -> None:
    ran = run_demo("--help", cwd=tmp_path)
    assert ran.returncode == 0
    assert "--keep" in ran.stdout
