"""Tool batches on a log of JSON lines: it grows with the checkpoints a tool asks for, and shrinks at the end."""

from __future__ import annotations

import json

import pytest
import trio
from tool_scenarios import World, call, opened, started

from fencepost.actors.tools import bash_tool
from fencepost.supervisor import PlannedCall, Tool, ToolResult

KIB = 1024


@pytest.fixture
def log(tmp_path):
    return tmp_path / "store.jsonl"


async def test_the_log_grows_with_the_checkpoints_and_a_finished_batch_gives_them_back(log):
    asked, gate = trio.Event(), trio.Event()

    async def work(_arguments, invocation):
        for number in range(20):
            invocation.update(ToolResult(f"{number} " + "live" * 12 * KIB))
            invocation.update(ToolResult(f"{number} " + "x" * 50 * KIB), checkpoint=True)
        asked.set()
        await gate.wait()
        return ToolResult("done")

    async with opened(f"jsonl:///{log}", World(), tools=[Tool("work", work)]) as (_, pane):
        batch = await started(pane, call("A", "work"))
        await asked.wait()
        while sum(b'"checkpoints"' in line for line in log.read_bytes().splitlines()) < 20:  # noqa: ASYNC110 - read from outside
            await trio.sleep(0.005)
        grown = log.stat().st_size
        assert 20 * 50 * KIB < grown < 22 * 50 * KIB, "each checkpoint once, and nothing of what was only live"
        gate.set()
        await batch.wait()
        assert log.stat().st_size < 50 * KIB, "the superseded and the deleted ones are gone"
        assert (await pane.entries())[0].content == [{"type": "text", "text": "done"}]


async def test_the_log_grows_with_bashs_checkpoints_and_not_with_its_output(log):
    command = "for i in $(seq 40); do head -c 500000 /dev/urandom | base64 -w 70; done"
    async with opened(f"jsonl:///{log}", World(), tools=[bash_tool()]) as (_, pane):
        batch = await started(pane, PlannedCall("call-A", "bash", {"command": command}))
        outcome = await batch.wait()
        assert outcome.entries[0].details["bytes"] > 20_000_000
        told = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert len(told) > 5
    # At most one snapshot of 50 KiB every two seconds, and the result.
    assert log.stat().st_size < 1_000_000
