# ruff: noqa: ASYNC110, ASYNC240 - what processes do is read from outside
"""The built-in bash tool: bounded output, shown every 100 ms, saved every 2 s and once more at the end of it."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from tool_scenarios import rows, started, texts

from fencepost.actors.tools import bash_tool
from fencepost.actors.tools.bash import BYTES_MAX, CHECKPOINT_SECONDS, LINES_MAX, UPDATE_SECONDS, _Capture, _Reporter
from fencepost.supervisor import Checkpoint, PlannedCall, ToolResult, open_supervisor


async def run(command: str, url: str = "memory://", tool=None, **more):
    async with open_supervisor(url, tools=[tool or bash_tool()]) as supervisor:
        pane = supervisor.pane("pane")
        batch = await started(pane, PlannedCall("c", "bash", {"command": command, **more}))
        with trio.fail_after(20):
            (entry,) = (await batch.wait()).entries
    return entry


async def test_a_command_and_its_output(tmp_path):
    entry = await run(
        "echo out; echo err >&2; pwd; echo $WORD", tool=bash_tool(tmp_path, {"WORD": "hi", "PATH": os.environ["PATH"]})
    )
    assert texts([entry]) == [f"out\nerr\n{tmp_path}\nhi\n"]
    assert entry.details == {"truncated": False, "lines": 4, "bytes": len(texts([entry])[0]), "overflow_path": None}
    assert not entry.is_error


@pytest.mark.parametrize(
    ("command", "more", "words"),
    [
        ("echo no; exit 3", {}, "no\n[Exit status 3]"),
        ("kill -9 $$", {}, "[Killed by signal 9]"),
        ("echo a; sleep 30", {"timeout_seconds": 0.3}, "a\n[Timed out after 0.3 seconds and was killed]"),
    ],
)
async def test_what_went_wrong_is_in_the_text(command, more, words):
    entry = await run(command, **more)
    assert (entry.is_error, texts([entry])) == (True, [words])


@pytest.mark.parametrize(
    "arguments",
    [{}, {"command": 1}, {"command": "x", "timeout_seconds": 0}, {"command": "x", "y": 1}, {"command": "\0"}, []],
)
async def test_arguments_it_does_not_have_are_an_error_result(arguments):
    async with open_supervisor("memory://", tools=[bash_tool()]) as supervisor:
        batch = await started(supervisor.pane("pane"), PlannedCall("c", "bash", arguments))
        assert (await batch.wait()).entries[0].is_error


async def test_too_much_output_is_bounded_and_whole_in_a_file():
    entry = await run("seq 1 200000")
    path = Path(entry.details["overflow_path"])
    try:
        whole = path.read_text()
        assert whole == "".join(f"{number}\n" for number in range(1, 200_001))
    finally:
        path.unlink()
    text = texts([entry])[0]
    assert entry.details["truncated"]
    assert (entry.details["lines"], entry.details["bytes"]) == (200_000, len(whole))
    assert "200000\n[Only the end is shown" in text
    assert text.count("\n") <= LINES_MAX + 1
    assert len(text.encode()) <= BYTES_MAX + 200


def test_a_snapshot_is_bounded_by_lines_and_by_bytes():
    lines = _Capture()
    lines.add(b"x\n" * (LINES_MAX + 5))
    assert lines.text.count("\n") == LINES_MAX
    long = _Capture()
    for _ in range(20):
        long.add("é".encode() * BYTES_MAX)
    assert len(long.text.encode()) <= BYTES_MAX
    assert set(long.text) == {"é"}
    for capture in (lines, long):
        capture.close()
        Path(capture._file.name).unlink()


def test_a_carriage_return_ends_no_line():
    capture = _Capture()
    capture.add(b"0%\r100%\n" * LINES_MAX)
    assert (capture.truncated, capture.text) == (False, "0%\r100%\n" * LINES_MAX)
    capture.add(b"0%\r")
    assert capture.truncated
    assert capture.text == "0%\r100%\n" * (LINES_MAX - 1) + "0%\r"
    capture.close()
    Path(capture._file.name).unlink()


@pytest.mark.parametrize(("byte", "shown"), [(0xFF, BYTES_MAX), (0x80, BYTES_MAX - 3)])
def test_output_that_is_no_text_is_shown_as_far_as_it_can_be(byte, shown):
    capture = _Capture()
    capture.add(bytes([byte]) * (BYTES_MAX + 1))
    assert capture.text == "\N{REPLACEMENT CHARACTER}" * shown
    capture.close()
    Path(capture._file.name).unlink()


@pytest.mark.parametrize("when", ["made", "written"])
async def test_without_room_for_the_whole_output_the_end_of_it_is_still_the_result(monkeypatch, tmp_path, when):
    def no_room(*_args, **_more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full(io.BufferedWriter):
        write = no_room

        @property
        def name(self) -> str:
            return str(tmp_path / "full")

    def made(**_more):
        return Full(io.FileIO(tmp_path / "full", "w"))

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", no_room if when == "made" else made)
    entry = await run("seq 1 200000; exit 3")
    assert texts([entry])[0].endswith(
        "200000\n[Only the end is shown; the whole output could not be kept: No space left on device]\n[Exit status 3]"
    )
    assert (entry.details["truncated"], entry.details["overflow_path"]) == (True, None)
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_command_is_killed_with_everything_it_started(tmp_path):
    pids = tmp_path / "pids"
    command = f"trap '' TERM; echo $$ > {pids}; bash -c 'trap \"\" TERM; echo $$ >> {pids}; sleep 60' & wait; sleep 60"
    async with open_supervisor("memory://", tools=[bash_tool()]) as supervisor:
        batch = await started(supervisor.pane("pane"), PlannedCall("c", "bash", {"command": command}))
        with trio.fail_after(10):
            while not pids.exists() or len(pids.read_text().split()) < 2:
                await trio.sleep(0.02)
            await batch.cancel()
            outcome = await batch.wait()
    assert outcome.checkpoint is Checkpoint.ABORTED
    for pid in map(int, pids.read_text().split()):
        assert await gone(pid)


async def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if stat == "Z":
            return True  # killed; whoever adopted it has not looked yet
        await trio.sleep(0.02)
    return False


async def test_something_left_behind_does_not_hold_the_result_up():
    with trio.fail_after(5):
        entry = await run("sleep 20 & echo done")
    assert texts([entry]) == ["done\n"]


# -- cadence, on a clock of its own --


class Listening:
    """An invocation that notes when it was told what."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str, bool]] = []

    def update(self, partial: ToolResult, checkpoint: bool = False) -> None:
        self.told.append((round(trio.current_time(), 3), partial.content, checkpoint))


async def reported(output: list[tuple[float, bytes]], seconds: float) -> list[tuple[float, str, bool]]:
    listening, capture = Listening(), _Capture()
    started_at = trio.current_time()
    reporter = _Reporter(listening, capture)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reporter.run)
        for at, data in output:
            await trio.sleep_until(started_at + at)
            capture.add(data)
            reporter.notice()
        await trio.sleep_until(started_at + seconds)
        nursery.cancel_scope.cancel()
    return [(round(at - started_at, 3), text, checkpoint) for at, text, checkpoint in listening.told]


async def test_live_every_100_ms_and_saved_every_2_seconds(autojump_clock):
    told = await reported([(number * 0.01, b"x") for number in range(1, 501)], 6.5)
    times = [at for at, _, _ in told]
    assert times[0] == 0
    assert told[0] == (0, "", False), "the empty one is live only"
    assert all(later - earlier >= UPDATE_SECONDS - 0.001 for earlier, later in pairwise(times[1:]))
    assert 40 <= len(told) <= 67
    saved = [(at, text) for at, text, checkpoint in told if checkpoint]
    assert [round(at) for at, _ in saved] == [2, 4, 6]
    assert all(later - earlier >= CHECKPOINT_SECONDS for (earlier, _), (later, _) in pairwise(saved))
    assert len({text for _, text in saved}) == len(saved)


async def test_output_printed_once_and_followed_by_silence_is_saved(autojump_clock):
    told = await reported([(0.5, b"once")], 60)
    assert [(at, text) for at, text, checkpoint in told if checkpoint] == [(2.0, "once")]
    later = await reported([(2.5, b"a"), (2.6, b"b")], 60)
    saved = [(at, text) for at, text, checkpoint in later if checkpoint]
    assert saved == [(2.5, "a"), (4.5, "ab")]


async def test_output_volume_never_speeds_checkpoints_up(autojump_clock):
    loud = await reported([(number * 0.005, b"y" * 100) for number in range(1, 1001)], 5.9)
    assert sum(checkpoint for _, _, checkpoint in loud) == 2


async def test_nothing_new_is_nothing_to_save(autojump_clock):
    assert await reported([], 30) == [(0, "", False)]


async def test_output_followed_by_silence_survives_a_crash(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_supervisor(url, tools=[bash_tool()]) as supervisor:
        await started(supervisor.pane("pane"), PlannedCall("c", "bash", {"command": "echo once; sleep 60"}))
        with trio.fail_after(10):
            while not rows(url, "checkpoints"):
                await trio.sleep(0.05)
    async with open_supervisor(url, tools=[bash_tool()]) as supervisor:
        (entry,) = (await supervisor.pane("pane").batch("op", "turn-1").wait()).entries
    assert texts([entry])[0].startswith("once\n[Tool execution was interrupted. The preceding output")
