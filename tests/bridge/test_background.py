"""A bridge in the background, and what the one before it left: a lock that is let go, and words of a dead one."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from launch_world import eventually, new_launch, view_of

from fencepost.supervisor.bridge import background, command
from fencepost.supervisor.bridge.background import BridgeNotStarted, ensure_served, is_served
from fencepost.supervisor.bridge.launchers import ChildProcessLauncher, Command
from fencepost.supervisor.bridge.private_files import replace_private


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="fp-"))  # short: a socket's path may have some hundred bytes only
    yield made
    with suppress(OSError):
        (pid,) = map(int, re.findall(rb"\d+", (made / "bridge.db.lock").read_bytes())[:1])
        if pid != os.getpid():  # some ran in this very process
            os.kill(pid, signal.SIGTERM)
    eventually(lambda: not is_served(made))
    shutil.rmtree(made)


def test_one_that_is_about_to_end_is_waited_for_and_replaced(folder, monkeypatch):
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    sleep, left = time.sleep, [held]

    def look_again(seconds: float) -> None:
        while left:
            os.close(left.pop())
        sleep(seconds)

    monkeypatch.setattr(background.time, "sleep", look_again)
    assert ensure_served(folder) is True
    assert is_served(folder)
    assert ensure_served(folder) is False


@pytest.mark.slow
async def test_one_that_an_agent_started_in_its_pane_does_not_end_with_that_agent(folder, tmp_path):
    runs = "import pathlib, sys; from fencepost.supervisor.bridge import background as b; "
    runs += "b.ensure_served(pathlib.Path(sys.argv[1]))"
    program = Command((sys.executable, "-c", runs, str(folder)), dict(os.environ))
    agent = ChildProcessLauncher(lambda _: program, tmp_path)
    launch = new_launch()
    await agent.start(launch)
    await agent.wait(launch.incarnation_id)
    assert is_served(folder)
    await agent.stop(view_of(launch))
    assert is_served(folder)


def test_one_that_does_not_say_where_it_listens_is_not_waited_for_for_ever(folder, monkeypatch):
    monkeypatch.setattr(background, "START_SECONDS", 0.1)
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(BridgeNotStarted, match="does not listen"):
        ensure_served(folder)
    os.close(held)


def failed(folder: Path) -> tuple[int, str]:
    complaints: list[str] = []
    return command.run(command.Settings(folder=folder), complaints.append, complaints.append), complaints[-1]


def test_where_a_dead_one_listened_is_forgotten_before_anything_else(folder):
    (folder / "endpoints.json").write_text("{}")
    replace_private(folder / "seats.json", "[" * 100_000)
    status, why = failed(folder)
    assert (status, "seats.json is damaged" in why) == (command.NOT_STARTED, True)
    assert not (folder / "endpoints.json").exists()


def test_one_that_cannot_say_where_it_listens_does_not_serve(folder):
    (folder / "endpoints.json.part").mkdir()
    status, why = failed(folder)
    assert (status, "endpoints.json.part" in why) == (command.NOT_STARTED, True)
    assert not is_served(folder)
