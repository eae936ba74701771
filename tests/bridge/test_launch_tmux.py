"""The same promises in a real tmux, on a server of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from launch_world import PARTS, eventually, harness, marked, new_launch, running, told, view_of

from fencepost.supervisor.bridge.launchers import Command, LaunchError, TmuxError, TmuxLauncher

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux program on this machine")


@pytest.fixture
def server():
    name = f"fencepost-test-{uuid.uuid4().hex[:12]}"
    yield name
    subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def launcher(tmp_path, server):
    def make(mode: str, **more) -> TmuxLauncher:
        options = {"server": server, "grace_seconds": 0.1, **more}
        return TmuxLauncher(harness(tmp_path, mode), tmp_path / "state", **options)

    return make


def tmux(server: str, *arguments: str) -> str:
    done = subprocess.run(["tmux", "-L", server, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


FACTS = """
import json, os, sys
path = sys.argv[1]
facts = {"env": dict(os.environ), "argv": sys.argv[2:], "cwd": os.getcwd(), "tty": os.isatty(0) and os.isatty(1)}
json.dump(facts, open(path + ".new", "w"))
os.replace(path + ".new", path)
import time; time.sleep(1000)
"""


async def test_the_process_lives_in_its_pane_and_knows_who_it_is(tmp_path, server, monkeypatch) -> None:
    monkeypatch.setenv("TMUX", "/of/another/server,1,0")
    monkeypatch.setenv("TERM", "of the bridge")
    path = tmp_path / "facts"
    first_input = "x" * 100_000 + "; 'quoted' $(not run) #{not expanded} \n\x1b[2J;"
    argv = (sys.executable, "-I", "-S", "-c", FACTS, str(path), first_input)
    launcher = TmuxLauncher(
        lambda _: Command(argv, cwd=str(tmp_path)), tmp_path / "state", server=server, socket_path="/run/bridge.sock"
    )
    launch = new_launch()
    await launcher.start(launch)
    eventually(path.exists)
    facts = json.loads(path.read_text(encoding="utf-8"))
    assert facts["argv"] == [first_input]
    assert (facts["tty"], facts["cwd"]) == (True, str(tmp_path))
    named = {name: facts["env"][name] for name in ("FENCEPOST_PANE", "FENCEPOST_INCARNATION", "FENCEPOST_SOCKET")}
    assert list(named.values()) == ["pane", launch.incarnation_id, "/run/bridge.sock"]
    assert not {"TMUX", "TMUX_PANE", "FENCEPOST_STARTUP"} & facts["env"].keys()
    assert facts["env"]["TERM"].startswith(("screen", "tmux"))

    (target,) = launcher.panes().values()
    pid = launcher.processes()["pane"].pid
    assert tmux(server, "display-message", "-p", "-t", target, "#{pane_pid}") == f"{pid}\n"
    assert tmux(server, "show-options", "-p", "-v", "-t", target, "@fencepost-pane") == "pane\n"
    await launcher.stop(view_of(launch))
    eventually(lambda: tmux(server, "display-message", "-p", "-t", target, "#{pane_dead}") == "1\n")


@pytest.mark.parametrize("mode", ["ignores", "forgetful_daemon", "left_session"])
async def test_a_stop_leaves_nothing(launcher, tmp_path, mode: str) -> None:
    launch = new_launch()
    await launcher(mode).start(launch)
    pids = told(tmp_path, launch, mode)
    assert set(pids) == set(PARTS[mode])
    await launcher(mode).stop(view_of(launch))  # the next bridge
    assert not any(map(running, pids.values()))
    assert marked(launch.incarnation_id) == set()


async def test_the_next_bridge_finds_its_panes_and_uses_them_again(launcher, tmp_path) -> None:
    one, other = new_launch("one"), new_launch("other")
    for launch in (one, other):
        await launcher("obeys").start(launch)
    panes = launcher("obeys").panes()
    assert set(panes) == {"one", "other"} == set(launcher("obeys").processes())
    await launcher("obeys").stop(view_of(one))
    replacement = new_launch("one")
    await launcher("obeys").start(replacement)
    assert launcher("obeys").panes() == panes
    leader = told(tmp_path, replacement, "obeys")["leader"]
    assert running(told(tmp_path, other, "obeys")["leader"])
    assert launcher("obeys").processes()["one"].pid == leader
    for launch in (replacement, other):
        await launcher("obeys").stop(view_of(launch))


HOSTILE = [
    "a;b;",
    ";",
    "-k",
    "#(touch PWNED)",
    "#{pane_id}",
    "%0",
    "two  words ",
    "\\;",
    "$HOME'\"",
    "x" * 256,
    "=fencepost:0",
]


async def test_a_panes_name_is_only_a_name(launcher, tmp_path, server) -> None:
    names = [name.replace("PWNED", str(tmp_path / "pwned")) for name in HOSTILE]
    launches = [new_launch(name) for name in names]
    made = launcher("obeys")
    for launch in launches:
        await made.start(launch)
    assert set(made.panes()) == set(made.processes()) == set(names)
    assert len(tmux(server, "list-panes", "-a").splitlines()) == len(names)
    assert not (tmp_path / "pwned").exists()
    async with trio.open_nursery() as nursery:
        for launch in launches:
            nursery.start_soon(made.stop, view_of(launch))


async def test_a_server_that_is_gone_hinders_no_stop_and_no_start(launcher, tmp_path, server) -> None:
    launch, made = new_launch(), launcher("ignores")
    await made.start(launch)
    leader = told(tmp_path, launch, "ignores")["leader"]
    os.kill(int(tmux(server, "display-message", "-p", "#{pid}")), signal.SIGKILL)
    eventually(lambda: subprocess.run(["tmux", "-L", server, "ls"], capture_output=True, check=False).returncode)
    await made.stop(view_of(launch))
    assert not running(leader)
    assert made.panes() == {}
    again = new_launch()
    await made.start(again)
    assert set(made.panes()) == {"pane"}
    await made.stop(view_of(again))


@pytest.mark.parametrize("launchers", [1, 3], ids=["one bridge", "three of one user"])
async def test_panes_that_are_started_at_once_on_a_server_that_is_not_there_yet_all_start(launcher, launchers) -> None:
    made = [launcher("obeys") for _ in range(launchers)]
    launches = {new_launch(f"pane-{number}"): made[number % launchers] for number in range(6)}
    async with trio.open_nursery() as nursery:
        for launch, its in launches.items():
            nursery.start_soon(its.start, launch)
    assert sorted(made[0].panes()) == sorted(made[0].processes()) == sorted(one.pane_id for one in launches)
    async with trio.open_nursery() as nursery:
        for launch, its in launches.items():
            nursery.start_soon(its.stop, view_of(launch))


async def test_a_window_that_was_closed_is_made_again(launcher, server) -> None:
    first, second, made = new_launch(), new_launch(), launcher("obeys")
    await made.start(first)
    tmux(server, "kill-pane", "-t", made.panes()["pane"])
    await made.wait(first.incarnation_id)
    await made.stop(view_of(first))
    await made.start(second)
    assert set(made.processes()) == {"pane"}
    await made.stop(view_of(second))


async def test_without_tmux_a_start_says_so_and_a_stop_needs_none(launcher, tmp_path) -> None:
    launch = new_launch()
    await launcher("obeys").start(launch)
    leader = told(tmp_path, launch, "obeys")["leader"]
    without = launcher("obeys", tmux="no-such-tmux")
    with pytest.raises(TmuxError, match="no program 'no-such-tmux'"):
        await without.start(new_launch())
    with pytest.raises(TmuxError, match="no program 'no-such-tmux'"):
        without.panes()
    await without.stop(view_of(launch))
    assert not running(leader)


async def test_a_tmux_that_does_not_answer_is_told(launcher, tmp_path, monkeypatch) -> None:
    silent = tmp_path / "silent-tmux"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n", encoding="ascii")
    silent.chmod(0o755)
    monkeypatch.setattr("fencepost.supervisor.bridge.launchers.tmux._ANSWER_SECONDS", 0.05)
    with pytest.raises(TmuxError, match="did not answer"):
        await launcher("obeys", tmux=str(silent)).start(new_launch())


async def test_what_cannot_be_started_leaves_nothing(tmp_path, server) -> None:
    for command, error in ((Command(("no-such-program",)), "No such file"), (Command(("x",), stdin=b""), "terminal")):
        launcher = TmuxLauncher(lambda _, command=command: command, tmp_path / "state", server=server)
        launch = new_launch()
        with pytest.raises(LaunchError, match=error):
            await launcher.start(launch)
        assert marked(launch.incarnation_id) == set()
        assert launcher.processes() == {}
    assert list((tmp_path / "state" / "gates").iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", "a b", "-x", "a:b", "ü", "x" * 65])
def test_names_that_tmux_would_read_otherwise_are_refused(tmp_path, name: str) -> None:
    for more in ({"server": name}, {"session": name}):
        with pytest.raises(ValueError, match="tmux name"):
            TmuxLauncher(lambda _: Command(("x",)), tmp_path, **more)


@contextmanager
def looking(made: TmuxLauncher, pane_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """A person's look at a pane, through a terminal of its own."""
    ours, its = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    command = made.attach_to(pane_id)
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True) as look:
        try:
            yield look
        finally:
            look.terminate()
            os.close(its)
            os.close(ours)


def looks(server: str) -> dict[int, str]:
    """The pane at which each client's keys arrive, by its process."""
    lines = tmux(server, "list-clients", "-F", "#{client_pid} #{@fencepost-pane}").splitlines()
    return {int(pid): pane_id for pid, _, pane_id in (line.partition(" ") for line in lines)}


async def test_a_look_at_a_pane_moves_nobody_else_and_leaves_nothing(launcher, server) -> None:
    made, launches = launcher("obeys"), [new_launch("one"), new_launch("other")]
    for launch in launches:
        await made.start(launch)
    panes = made.panes()
    with looking(made, "one") as first:
        eventually(lambda: looks(server) == {first.pid: "one"})
        with looking(made, "other") as second, looking(made, "one") as third:
            eventually(lambda: looks(server) == {first.pid: "one", second.pid: "other", third.pid: "one"})
            assert made.panes() == panes
        eventually(lambda: looks(server) == {first.pid: "one"})
    eventually(lambda: tmux(server, "list-sessions", "-F", "#{session_name}") == "fencepost\n")
    assert made.panes() == panes
    assert set(made.processes()) == {"one", "other"}
    for launch in launches:
        await made.stop(view_of(launch))


async def test_a_look_at_a_pane_that_is_gone_shows_no_other(launcher, server) -> None:
    made, launches = launcher("obeys"), [new_launch("gone"), new_launch("other")]
    for launch in launches:
        await made.start(launch)
        await made.stop(view_of(launch))
    program, *words = made.attach_to("gone")
    made.forget("gone")
    assert made.attach_to("gone") is None
    done = await trio.run_process(
        [program, *words], capture_stderr=True, check=False
    )  # stops before it needs a terminal
    assert (done.returncode, b"can't find pane" in done.stderr) == (1, True)
    assert tmux(server, "list-sessions", "-F", "#{session_name}") == "fencepost\n"
