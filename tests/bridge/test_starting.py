"""Which conversation a start goes on with, or begins."""

from __future__ import annotations

import json
import uuid

import pytest
from launch_world import new_launch

from fencepost.supervisor import Capabilities
from fencepost.supervisor.bridge.hook_settings import HookCommand
from fencepost.supervisor.bridge.panes import PaneBook, PaneSpec
from fencepost.supervisor.bridge.starting import Starting

SESSION = "6b1d3f3e-4f6f-4a53-9a8d-0c7c3a8c7a11"
MODES = b'{"type":"mode","mode":"normal"}\n{"type":"permission-mode","permissionMode":"default"}\n'


@pytest.fixture
def started(tmp_path):
    program = tmp_path / "claude"
    program.write_text("#!/bin/sh\necho 2.1.197\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "settings").mkdir(mode=0o700)
    book = PaneBook()
    spec = PaneSpec(
        argv=(str(program),),
        cwd=str(tmp_path),
        environment={"HOME": str(tmp_path)},
        harness="claude-code",
        session_id=SESSION,
    )
    book.put("pane", spec)

    def start(transcript: bytes | None) -> tuple[str, str]:
        """The option that names the conversation, and what it names."""
        if transcript is not None:
            path = tmp_path / ".claude" / "projects" / "-ws" / f"{SESSION}.jsonl"
            path.parent.mkdir(parents=True)
            path.write_bytes(transcript)
        made = Starting(
            book, tmp_path / "settings", HookCommand(), lambda *_: Capabilities(), lambda _: None, lambda: None
        )
        _, option, session_id, *_ = made.command_for(new_launch(session_id=SESSION)).argv
        return option, session_id

    return start


def test_a_conversation_nothing_is_known_of_begins_under_its_id(started) -> None:
    assert started(None) == ("--session-id", SESSION)


@pytest.mark.parametrize("kind", ["user", "assistant"])
def test_one_in_which_something_was_said_goes_on(started, kind) -> None:
    said = json.dumps({"type": kind, "message": {}}).encode()
    assert started(MODES + said + b'\n{"type":"us') == ("--resume", SESSION)


def test_a_long_one_goes_on_unread(started) -> None:
    assert started(b'{"type":"file-history-snapshot"}\n' * 20_000) == ("--resume", SESSION)


@pytest.mark.parametrize(
    "transcript",
    [b"", MODES, MODES + b'{"type":"user","mess', b"\xff\n[1]\n" + b"[" * 9_000],
    ids=["empty", "modes", "torn", "garbage"],
)
def test_one_that_was_cut_off_before_anything_was_said_begins_under_another_id(started, transcript) -> None:
    option, session_id = started(transcript)
    assert option == "--session-id"
    assert session_id != SESSION
    assert str(uuid.UUID(session_id)) == session_id
