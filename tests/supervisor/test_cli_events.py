"""`fencepost events --follow`: beside a live runtime, to its limit, to an interruption, over what is trimmed away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from supervisor.stories import Pane, world

from fencepost.mailbox.mutation import Mutation, NewEvent
from fencepost.supervisor import cli
from fencepost.supervisor.cli import events_command


def events(number: int) -> Mutation:
    told = tuple(NewEvent(kind="test.tick", address="pane:p", at=one, data={}) for one in range(number))
    return Mutation(label="test.ticks", events=told)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def follow(*arguments: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "fencepost.supervisor.cli", "events", "--follow", *arguments]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")


async def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with trio.fail_after(30):
        return await trio.to_thread.run_sync(process.stdout.readline)


@pytest.mark.parametrize("scheme", ["sqlite", "jsonl"])
async def test_it_tells_what_is_stored_and_then_what_comes_until_it_is_interrupted(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:///{tmp_path}/store"
    async with world(url) as there:
        await Pane(there, "first").launch()
        with follow(url, "--json") as process:
            first = json.loads(await line_of(process))
            assert (first["seq"], first["kind"]) == (1, "incarnation.launched")
            before = names(tmp_path)
            await Pane(there, "second").launch()
            second = json.loads(await line_of(process))
            assert (second["seq"], second["data"]["pane_id"]) == (2, "second")
            assert names(tmp_path) == before
            process.send_signal(signal.SIGINT)
            assert await trio.to_thread.run_sync(process.wait) == 130
            assert process.stderr is not None
            assert process.stderr.read() == ""
        assert len(await there.line.commit(events(1))) == 1  # nobody was disturbed


async def test_it_ends_at_its_limit_and_when_its_reader_leaves(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    async with world(url) as there:
        await there.line.commit(events(2))
        with follow(url, "--limit", "3") as process:
            heads = (await line_of(process)).rstrip("\n").split("\t")
            rows = [dict(zip(heads, (await line_of(process)).split("\t"), strict=True)) for _ in range(2)]
            assert [row["seq"] for row in rows] == ["1", "2"]
            await there.line.commit(events(2))
            assert (await line_of(process)).startswith("3\t")
            assert await line_of(process) == ""
            assert await trio.to_thread.run_sync(process.wait) == 0
        with follow(url) as process:
            assert (await line_of(process)).startswith("seq\t")
            assert process.stdout is not None
            process.stdout.close()
            await there.line.commit(events(1))
            with trio.fail_after(30):
                assert await trio.to_thread.run_sync(process.wait) == 141
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()


async def test_what_was_trimmed_away_meanwhile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    looks = 0

    def pause(_seconds: float) -> None:
        """Between the first look and the second, more happens than is kept."""
        nonlocal looks
        looks += 1
        assert looks == 1
        trio.from_thread.run(there.line.commit, events(50))

    monkeypatch.setattr(events_command, "_pause", pause)
    async with world(url, events_kept_max=10) as there:
        await there.line.commit(events(2))

        def run() -> list[str]:
            result = CliRunner().invoke(cli.main, ["events", url, "--follow", "--limit", "5", "--json"])
            assert result.exit_code == 0
            assert result.stderr == "Events 3 to 42 have been trimmed away.\n"
            return result.stdout.splitlines()

        told = await trio.to_thread.run_sync(run)
    assert [json.loads(line)["seq"] for line in told] == [1, 2, 43, 44, 45]


def test_a_store_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.main, ["events", f"sqlite:///{tmp_path}/none.db", "--follow"])
    assert (result.exit_code, result.stdout) == (2, "")
