# ruff: noqa: ASYNC240 - what another task or process did is read from outside
"""A child process killed with SIGKILL at each commit of a batch of three; whoever reopens the store goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from store_urls import urls
from tool_scenarios import World, opened, rows, texts

from fencepost.supervisor import check

CHILD = """
import os, signal, sys
import trio
from fencepost.mailbox import line
from fencepost.supervisor import ModelTurn, PlannedCall, Replay, Tool, ToolResult, open_supervisor

url, log, nth, after = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "after"
commit, count = line.MutationLine.commit, 0

async def dying(self, mutation):
    global count
    count += 1
    if count == nth and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    done = await commit(self, mutation)
    if count >= nth and after:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

async def work(arguments, invocation):
    with open(log, "a") as file:
        file.write(arguments["name"] + "\\n")
    invocation.update(ToolResult(arguments["name"] + " saved"), checkpoint=True)
    await invocation.step("only", lambda: 1)
    return ToolResult(arguments["name"] + " done")

async def main():
    tools = [Tool("never", work), Tool("safe", work, replay=Replay.SAFE)]
    async with open_supervisor(url, tools=tools) as supervisor:
        pane = supervisor.pane("pane")
        await pane.launch("h")
        line.MutationLine.commit = dying
        tools_of = zip("ABC", ("never", "safe", "never"))
        calls = [PlannedCall("call-" + name, tool, {"name": name}) for name, tool in tools_of]
        batch = await pane.start_batch("op", ModelTurn("turn-1", 1), "assistant", calls)
        await batch.wait()
    print(count)

trio.run(main)
"""


def run_child(url: str, log: Path, nth: int, when: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", CHILD, url, str(log), str(nth), when]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        ("sqlite", "after"),
        pytest.param("sqlite", "before", marks=pytest.mark.slow),
        pytest.param("jsonl", "after", marks=pytest.mark.slow),
        pytest.param("jsonl", "before", marks=pytest.mark.slow),
    ],
)
async def test_a_child_killed_at_each_commit_of_a_batch_of_three(tmp_path, kind, when):
    url_of = urls(tmp_path, kind)
    learned = await trio.to_thread.run_sync(run_child, url_of("learn"), tmp_path / "learn", 0, "before")
    assert learned.returncode == 0, learned.stderr
    commits = int(learned.stdout)
    assert commits >= 10
    for nth in range(1, commits + 1):
        url, log = url_of(str(nth)), tmp_path / f"log-{nth}"
        died = await trio.to_thread.run_sync(run_child, url, log, nth, when)
        assert died.returncode in {-signal.SIGKILL, 0}, died.stderr
        await judge(url, log, nth)


async def judge(url: str, log: Path, nth: int) -> None:
    """Reopen as the same bridge would, and compare with what really happened."""
    assert await check(url) == [], nth
    ready = {row["tool_call_id"] for row in rows(url, "calls") if row["status"] in {"outcome_ready", "completed"}}
    ran = log.read_text().split() if log.exists() else []
    world = World()
    async with opened(url, world) as (_, pane):
        for batch in await pane.batches():
            with trio.fail_after(10):
                outcome = await batch.wait()
            assert [entry.source_index for entry in outcome.entries] == [0, 1, 2]
            for name, text in zip("ABC", texts(outcome.entries), strict=True):
                assert text == f"{name} done" or "external outcome is unknown" in text
                again = world.begun[name]
                assert not (again and f"call-{name}" in ready), "what was durable never runs again"
                if name != "B":
                    assert ran.count(name) + again <= 1, "a never tool runs at most once"
        if not await pane.batches():
            assert ran == []
    assert await check(url) == [], nth
