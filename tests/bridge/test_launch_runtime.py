"""A whole runtime with real processes: blocked, replaced, told by the first input, and heard."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import aclosing
from pathlib import Path

import pytest
import trio
from bridges import Harness, Workspace, moved, payload_of
from launch_world import eventually, marked, running

from fencepost.supervisor import (
    Allow,
    Applied,
    BlockRestart,
    Capabilities,
    IntentState,
    Launch,
    Refused,
    SyncStatus,
    check,
    open_supervisor,
)
from fencepost.supervisor.bridge.launchers import ChildProcessLauncher, Command, TmuxLauncher, command_of
from fencepost.supervisor.bridge.startup_tag import startup_of

FACTS = """
import json, os, sys, time
path = os.path.join(sys.argv[1], os.environ["FENCEPOST_INCARNATION"])
facts = {"argv": sys.argv[2:], "pid": os.getpid(), "startup": os.environ.get("FENCEPOST_STARTUP")}
json.dump(facts, open(path + ".new", "w"))
os.replace(path + ".new", path)
time.sleep(1000)
"""


class World:
    """A launcher whose harness tells how it was started."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.refuse = 0
        self.server = f"fencepost-test-{uuid.uuid4().hex[:12]}"
        more = {"state_dir": folder / "state", "grace_seconds": 0.2}
        if kind == "tmux":
            self.launcher = TmuxLauncher(self.command_for, server=self.server, **more)
        else:
            self.launcher = ChildProcessLauncher(self.command_for, **more)

    def command_for(self, launch: Launch) -> Command:
        if self.refuse:
            self.refuse -= 1
            return Command(("no-such-program",))
        said = command_of(launch, "settings", prompt="go")[1:]
        return Command((sys.executable, "-I", "-S", "-c", FACTS, str(self.folder), *said))

    def facts(self, incarnation_id: str) -> dict:
        path = self.folder / incarnation_id
        eventually(path.exists)
        return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def world(tmp_path, request):
    kind = getattr(request, "param", "child")
    made = World(tmp_path, kind)
    yield made
    for note in made.launcher.processes().values():
        os.killpg(note.pid, signal.SIGKILL)
    if kind == "tmux":
        subprocess.run(["tmux", "-L", made.server, "kill-server"], capture_output=True, check=False)


TMUX = pytest.param("tmux", marks=pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux program"))


async def replaced(supervisor, *old: str) -> str:
    """Wait for the launch of a successor to all of these."""
    async with aclosing(supervisor.events()) as events:
        async for event in events:
            if event.kind == "incarnation.launched" and event.data["incarnation_id"] not in old:
                return str(event.data["incarnation_id"])
    raise AssertionError


async def accepted_and_echoed(pane, incarnation_id: str, world: World, to_base: str) -> None:
    """What an adapter does with the first input of a replacement."""
    facts = await trio.to_thread.run_sync(world.facts, incarnation_id)
    (said,) = [word for word in facts["argv"] if "fencepost-startup" in word]
    tag = startup_of(said)
    assert tag is not None
    assert (tag.payload, tag.startup_delivery_id) == (payload_of(to_base), facts["startup"])
    assert await pane.startup_ready(incarnation_id, tag.startup_delivery_id, tag.payload_sha256) == Applied()
    launch = Launch(pane.pane_id, incarnation_id, 2, "claude-code", None, None)
    assert await Harness(pane, launch).call(1, "b1", echo=tag.startup_delivery_id) == Allow()


@pytest.mark.parametrize("world", ["child", TMUX], indirect=True)
async def test_blocked_replaced_told_and_acknowledged(world: World, tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/bridge.db"
    with trio.fail_after(60):
        async with open_supervisor(url, reconciler=Workspace(), launcher=world.launcher) as supervisor:
            pane = supervisor.pane("pane")
            old = await Harness.start(pane, soft_batches=False)
            first = await trio.to_thread.run_sync(world.facts, old.incarnation_id)
            assert first["argv"] == ["go", "--settings", "settings"]
            await pane.detect(moved("A", "B"))
            assert isinstance(await old.call(1, "b1"), BlockRestart)
            new = await replaced(supervisor, old.incarnation_id)
            await accepted_and_echoed(pane, new, world, "B")
            assert not running(first["pid"])
            assert marked(old.incarnation_id) == set()
            assert isinstance(await old.completed(1, "b1"), Refused)
            (intent,) = await pane.intents()
            assert (intent.state, await pane.sync_status()) == (IntentState.ACKNOWLEDGED, SyncStatus.IN_SYNC)
            assert set(world.launcher.processes()) == {"pane"}
        assert await check(url) == []


async def test_a_start_that_fails_is_tried_again_until_one_comes_up(world: World, tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/bridge.db"
    with trio.fail_after(60):
        async with open_supervisor(url, reconciler=Workspace(), launcher=world.launcher) as supervisor:
            pane = supervisor.pane("pane")
            old = await Harness.start(pane, soft_batches=False)
            await pane.detect(moved("A", "B"))
            world.refuse = 1
            assert isinstance(await old.call(1, "b1"), BlockRestart)
            failed = await replaced(supervisor, old.incarnation_id)
            new = await replaced(supervisor, old.incarnation_id, failed)
            await accepted_and_echoed(pane, new, world, "B")
            assert marked(failed) == set()
        assert await check(url) == []


async def test_a_process_that_cannot_be_stopped_leaves_its_pane_conflicted(world: World, tmp_path) -> None:
    with trio.fail_after(60):
        async with open_supervisor("memory://", reconciler=Workspace(), launcher=world.launcher) as supervisor:
            pane = supervisor.pane("pane")
            old = await Harness.start(pane, soft_batches=False)
            pid = (await trio.to_thread.run_sync(world.facts, old.incarnation_id))["pid"]
            (note,) = (tmp_path / "state" / "processes").iterdir()
            whole = note.read_bytes()
            note.write_bytes(b"damaged")
            await pane.detect(moved("A", "B"))
            assert isinstance(await old.call(1, "b1"), BlockRestart)
            while await pane.sync_status() != SyncStatus.CONFLICTED:
                await trio.lowlevel.checkpoint()
            assert running(pid)
            note.write_bytes(whole)
            launch = await pane.launch("claude-code", capabilities=Capabilities(soft_batches=False))
            assert not running(pid)
            await accepted_and_echoed(pane, launch.incarnation_id, world, "B")


async def test_a_bridge_that_went_away_is_followed_by_one_that_goes_on(world: World, tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/bridge.db"
    with trio.fail_after(60):
        async with open_supervisor(url, reconciler=Workspace(), launcher=world.launcher) as supervisor:
            pane = supervisor.pane("pane")
            old = await Harness.start(pane, soft_batches=False)
            await pane.detect(moved("A", "B"))
            assert isinstance(await old.call(1, "b1"), BlockRestart)
            lost = await replaced(supervisor, old.incarnation_id)
            await trio.to_thread.run_sync(world.facts, lost)
        assert marked(lost), "harnesses outlive their bridge"
        async with open_supervisor(url, reconciler=Workspace(), launcher=world.launcher) as supervisor:
            pane = supervisor.pane("pane")
            new = await replaced(supervisor, old.incarnation_id, lost)
            await accepted_and_echoed(pane, new, world, "B")
            assert marked(lost) == set(), "an attempt nobody vouches for is stopped before the next"
        assert await check(url) == []


def test_on_asyncio_the_callbacks_run_on_the_hosts_loop(world: World) -> None:
    async def main() -> None:
        async with open_supervisor("memory://", reconciler=Workspace(), launcher=world.launcher) as supervisor:
            pane = supervisor.pane("pane")
            first = await pane.launch("claude-code")
            pid = (await asyncio.to_thread(world.facts, first.incarnation_id))["pid"]
            second = await pane.launch("claude-code")
            assert not running(pid)
            assert world.launcher.processes()["pane"].incarnation_id == second.incarnation_id

    asyncio.run(main())
