"""What hooks tell of a process's conversation: who is believed, and what it costs others to write it down."""

from __future__ import annotations

import threading
from itertools import count

import pytest
import trio
import trio.testing

from fencepost.supervisor.bridge import panes
from fencepost.supervisor.bridge.pane_processes import PaneProcesses
from fencepost.supervisor.bridge.panes import PaneBook, PaneSpec, Terminal


@pytest.fixture
def there(tmp_path):
    book = PaneBook(tmp_path / "panes.json")
    for pane_id in ("left", "right"):
        book.put(pane_id, spec("first"))
    made = PaneProcesses(None, None, book, {})
    made.started("left", "i-left")
    made.started("right", "i-right")
    return made


def spec(session_id) -> PaneSpec:
    return PaneSpec(
        argv=("claude",),
        cwd="/ws",
        environment={},
        harness="claude-code",
        terminal=Terminal.NONE,
        session_id=session_id,
    )


def prompt(session_id, **more):
    return {"hook_event_name": "UserPromptSubmit", "session_id": session_id, **more}


async def test_the_living_processs_own_prompt_is_believed_and_kept(there, tmp_path):
    await there.heard("left", "i-left", prompt("second"))
    assert PaneBook(tmp_path / "panes.json").get("left").session_id == "second"


@pytest.mark.parametrize(
    ("pane_id", "incarnation_id", "event"),
    [
        ("left", "i-right", prompt("second")),
        ("nowhere", "i-left", prompt("second")),
        ("left", "i-left", prompt("second", agent_id="nested")),
        ("left", "i-left", {**prompt("second"), "hook_event_name": "PreToolUse"}),
        ("left", "i-left", prompt("\x1b[2J")),
        ("left", "i-left", prompt("x" * 257)),
        ("left", "i-left", prompt(7)),
    ],
)
async def test_nobody_else_is(there, pane_id, incarnation_id, event):
    await there.heard(pane_id, incarnation_id, event)
    assert [one.session_id for one in there.book.specs()] == ["first", "first"]


async def test_writing_it_down_stops_nobody_and_one_pane_writes_once_at_a_time(there, monkeypatch):
    released, begun, writes = threading.Event(), trio.Event(), []
    in_runtime, write, numbers = trio.lowlevel.current_trio_token(), panes.replace_private, count(1)

    def slow(path, text):
        writes.append(next(numbers))
        in_runtime.run_sync_soon(begun.set)
        released.wait(60)
        write(path, text)

    monkeypatch.setattr(panes, "replace_private", slow)
    async with trio.open_nursery() as nursery:
        for number in range(60):  # more than trio has threads for
            nursery.start_soon(there.heard, "left", "i-left", prompt(f"s{number}"))
        try:
            with trio.fail_after(20):
                await begun.wait()
                await trio.testing.wait_all_tasks_blocked()  # and what is not waiting goes on
                assert await trio.to_thread.run_sync(lambda: 1) == 1
            assert writes == [1]
        finally:
            released.set()
    assert len(writes) == 60


async def test_a_successors_conversation_is_not_written_over(there, monkeypatch):
    learned = there.book.learn_session

    def late(*arguments, **more):
        there.book.put("left", spec("the successor's"))  # after the hook was believed
        learned(*arguments, **more)

    monkeypatch.setattr(there.book, "learn_session", late)
    await there.heard("left", "i-left", prompt("second"))
    assert there.book.get("left").session_id == "the successor's"
