"""A child process is started so that it knows who it is, and stopped until nothing of it is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import trio
from attrs import evolve
from launch_world import PARTS, end, eventually, harness, marked, new_launch, running, told, view_of

from fencepost.supervisor import StartupDelivery
from fencepost.supervisor.bridge import processes
from fencepost.supervisor.bridge.launchers import ChildProcessLauncher, Command, DamagedNote, LaunchError
from fencepost.supervisor.bridge.processes import Identity, ProcessNote, StillRunning, boot_id, identity_of

SAYS_ALL = """
import json, os, sys
path = sys.argv[1]
facts = {"env": dict(os.environ), "argv": sys.argv[2:], "cwd": os.getcwd(), "stdin": sys.stdin.read(),
         "pid": os.getpid(), "sid": os.getsid(0), "pgid": os.getpgid(0), "fds": sorted(os.listdir("/proc/self/fd")),
         "ignored": [line.split()[1] for line in open("/proc/self/status") if line.startswith("SigIgn")]}
json.dump(facts, open(path + ".new", "w"))
os.replace(path + ".new", path)
print("printed")
import time; time.sleep(1000)
"""


@pytest.fixture
def launcher(tmp_path):
    def make(mode: str, **more) -> ChildProcessLauncher:
        return ChildProcessLauncher(harness(tmp_path, mode), tmp_path / "state", **{"grace_seconds": 0.1, **more})

    return make


def says_all(path: Path, *argv: str, **more) -> Command:
    return Command((sys.executable, "-I", "-S", "-c", SAYS_ALL, str(path), *argv), **more)


async def test_the_process_knows_who_it_is(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FENCEPOST_STARTUP", "of the pane that this bridge itself runs in")
    monkeypatch.setenv("TMUX", "of that pane too")
    monkeypatch.setenv("TMUX_PANE", "of that pane too")
    monkeypatch.delenv("TMUX_TMPDIR", raising=False)
    facts = tmp_path / "facts"
    launcher = ChildProcessLauncher(
        lambda _: says_all(facts, "two words", environment={"MORE": "ü"}, cwd=str(tmp_path), stdin=b"first\ninput"),
        tmp_path / "state",
        socket_path="/run/bridge.sock",
        store_url="sqlite:///bridge.db",
        output_for=lambda launch: tmp_path / f"{launch.pane_id}.log",
    )
    launch = new_launch()
    await launcher.start(launch)
    eventually(facts.exists)
    found = json.loads(facts.read_text(encoding="utf-8"))
    fencepost = {name: value for name, value in found["env"].items() if name.startswith(("FENCEPOST_", "TMUX"))}
    assert fencepost == {
        "FENCEPOST_PANE": "pane",
        "FENCEPOST_INCARNATION": launch.incarnation_id,
        "FENCEPOST_SOCKET": "/run/bridge.sock",
        "FENCEPOST_STORE": "sqlite:///bridge.db",
    }
    assert (found["argv"], found["cwd"], found["stdin"]) == (["two words"], str(tmp_path), "first\ninput")
    assert found["env"]["MORE"] == "ü"
    assert found["pid"] == found["sid"] == found["pgid"] == launcher.processes()["pane"].pid
    assert found["fds"] == ["0", "1", "2", "3"], "the last is the folder that is being listed"
    assert int(found["ignored"][0], 16) & (1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1) == 0
    await launcher.stop(view_of(launch))
    assert (tmp_path / "pane.log").read_text(encoding="ascii") in {"printed\n", ""}
    assert list((tmp_path / "state" / "processes").iterdir()) == []


async def test_a_startup_is_told_by_its_id(tmp_path) -> None:
    startup = StartupDelivery("6f1c2a52-0d5f-4a0e-9df4-1f3b8f4a9b10", "intent", b"payload", "0" * 64)
    launcher = ChildProcessLauncher(lambda _: says_all(tmp_path / "facts"), tmp_path / "state")
    launch = new_launch(startup=startup)
    await launcher.start(launch)
    eventually((tmp_path / "facts").exists)
    facts = json.loads((tmp_path / "facts").read_text(encoding="utf-8"))
    assert facts["env"]["FENCEPOST_STARTUP"] == startup.startup_delivery_id
    await launcher.stop(view_of(launch))


@pytest.mark.parametrize(
    ("mode", "by"),
    [(mode, "this bridge") for mode in PARTS] + [(mode, "the next bridge") for mode in ("daemon", "left_daemon")],
)
async def test_a_stop_leaves_nothing(launcher, tmp_path, mode: str, by: str) -> None:
    launch = new_launch()
    first = launcher(mode)
    await first.start(launch)
    pids = told(tmp_path, launch, mode)
    if mode.startswith("left"):
        eventually(lambda: not running(pids["leader"]))
    await (first if by == "this bridge" else launcher(mode)).stop(view_of(launch))
    assert {part: running(pid) for part, pid in pids.items()} == dict.fromkeys(pids, False)
    assert marked(launch.incarnation_id) == set()
    assert first.processes() == {}
    assert list((tmp_path / "state" / "processes").iterdir()) == []


async def test_a_stop_without_any_note_finds_what_carries_the_mark(launcher, tmp_path) -> None:
    launch = new_launch()
    await launcher("daemon").start(launch)
    pids = told(tmp_path, launch, "daemon")
    stranger = ChildProcessLauncher(harness(tmp_path, "daemon"), tmp_path / "another state", grace_seconds=0.2)
    await stranger.stop(view_of(launch))
    assert not any(map(running, pids.values()))


async def test_who_may_be_a_stranger_is_neither_killed_nor_passed_over(launcher, tmp_path) -> None:
    launch = new_launch()
    await launcher("left_unmarked").start(launch)
    pids = told(tmp_path, launch, "left_unmarked")
    await trio.to_thread.run_sync(os.waitpid, pids["leader"], 0)  # its number is free from here on
    for _ in range(2):
        with pytest.raises(StillRunning, match=f"may be its.* {pids['member']} "):
            await launcher("left_unmarked").stop(view_of(launch))
    assert running(pids["member"])
    end(pids["member"])
    await launcher("left_unmarked").stop(view_of(launch))


async def test_one_incarnations_stop_is_nothing_to_another(launcher, tmp_path) -> None:
    one, other = new_launch("one"), new_launch("other")
    both = launcher("stray")
    await both.start(one)
    await both.start(other)
    pids = [told(tmp_path, launch, "stray") for launch in (one, other)]
    await both.stop(view_of(one))
    assert [list(map(running, each.values())) for each in pids] == [[False, False], [True, True]]
    assert set(both.processes()) == {"other"}
    await both.stop(view_of(other))


async def test_who_obeys_has_the_whole_grace_and_needs_none_of_it(launcher, tmp_path) -> None:
    patient = launcher("obeys", grace_seconds=600)
    launch = new_launch()
    await patient.start(launch)
    told(tmp_path, launch, "obeys")
    with trio.fail_after(30):
        await patient.stop(view_of(launch))


async def test_a_process_long_gone_is_fine(launcher) -> None:
    launch = new_launch()
    await launcher("obeys").stop(view_of(launch))
    await launcher("ends").start(launch)
    await launcher("ends").wait(launch.incarnation_id)
    await launcher("ends").stop(view_of(launch))
    await launcher("ends").stop(view_of(launch))
    await launcher("ends").wait(launch.incarnation_id)


# -- forged notes ------------------------------------------------------------------------------------------------


@pytest.fixture
def innocent():
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("forge", "killed"),
    [
        (lambda note: note, True),
        (lambda note: {**note, "start_time": note["start_time"] + 1}, False),
        (lambda note: {**note, "boot_id": "another boot"}, False),
    ],
    ids=["right", "pid used again", "another boot"],
)
async def test_a_pid_alone_is_never_trusted(launcher, innocent, forge, killed: bool) -> None:
    identity = identity_of(innocent.pid)
    assert identity is not None
    launch, made = new_launch(), launcher("obeys")
    right = {
        "pane_id": "pane",
        "incarnation_id": launch.incarnation_id,
        "pid": identity.pid,
        "start_time": identity.start_time,
        "boot_id": boot_id(),
    }
    made._notes.write(ProcessNote(**forge(right)))
    assert bool(made.processes()) == killed
    await made.stop(view_of(launch))
    assert (innocent.poll() is not None or not running(innocent.pid)) == killed


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"version": 2}', "\xff", "a longer text that is no note"])
async def test_a_damaged_note_is_never_taken_for_none(launcher, tmp_path, damage: str) -> None:
    launch, made = new_launch(), launcher("obeys")
    await made.start(launch)
    pids = told(tmp_path, launch, "obeys")
    (path,) = (tmp_path / "state" / "processes").iterdir()
    whole = path.read_bytes()
    path.write_text(damage, encoding="latin-1")
    with pytest.raises(DamagedNote, match=path.name):
        await made.stop(view_of(launch))
    with pytest.raises(DamagedNote, match=path.name):
        made.note_of(launch.incarnation_id)
    assert made.processes() == {}  # of the others it tells
    assert running(pids["leader"])
    path.write_bytes(whole)
    await made.stop(view_of(launch))


async def test_a_note_that_others_may_have_written_is_damage(launcher) -> None:
    launch, made = new_launch(), launcher("obeys")
    made._notes.write(ProcessNote("pane", launch.incarnation_id, 1, 1, "boot"))
    made._notes._path(launch.incarnation_id).chmod(0o622)
    with pytest.raises(DamagedNote, match="chmod 600"):
        await made.stop(view_of(launch))


async def test_a_process_of_an_earlier_boot_is_gone_whoever_has_its_number(launcher) -> None:
    launch, made = new_launch(), launcher("obeys")
    stranger = identity_of(os.getpid())
    made._notes.write(ProcessNote("pane", launch.incarnation_id, stranger.pid, stranger.start_time, "old"))
    await made.wait(launch.incarnation_id)
    await made.stop(view_of(launch))


async def test_anothers_note_and_a_note_of_other_types_are_damage(launcher) -> None:
    launch, other, made = new_launch(), new_launch(), launcher("obeys")
    made._notes.write(ProcessNote("pane", other.incarnation_id, 1, 1, "boot"))
    made._notes._path(other.incarnation_id).rename(made._notes._path(launch.incarnation_id))
    with pytest.raises(DamagedNote, match="another incarnation"):
        await made.stop(view_of(launch))
    made._notes.write(ProcessNote("pane", launch.incarnation_id, True, 1, "boot"))
    with pytest.raises(DamagedNote, match="another type"):
        await made.stop(view_of(launch))
    path = made._notes._path(launch.incarnation_id)
    for family in (None, 1, [1], [{"pid": 1}], [{"pid": "1", "start_time": 2}]):
        made._notes.write(ProcessNote("pane", launch.incarnation_id, 1, 1, "boot"))
        path.write_text(json.dumps({**json.loads(path.read_text()), "family": family}), encoding="ascii")
        with pytest.raises(DamagedNote, match=r"family|relative"):
            await made.stop(view_of(launch))
    for member in ({"cwd": 1}, {"cwd": "home"}, {"environment": []}, {"environment": {"HOME": 1}}):
        made._notes.write(ProcessNote("pane", launch.incarnation_id, 1, 1, "boot"))
        path.write_text(json.dumps({**json.loads(path.read_text()), **member}), encoding="ascii")
        with pytest.raises(DamagedNote, match=r"folder|environment"):
            await made.stop(view_of(launch))


async def test_a_note_tells_where_the_process_works_and_one_of_an_earlier_version_is_read_without(launcher) -> None:
    launch, made = new_launch(), launcher("obeys")
    command_for = made._command_for
    made._command_for = lambda launch: evolve(command_for(launch), cwd="/")
    await made.start(launch)
    note = made.note_of(launch.incarnation_id)
    assert note.cwd == "/"
    assert note.environment == {name: os.environ[name] for name in made.noted_variables if name in os.environ}
    path = made._notes._path(launch.incarnation_id)
    members = json.loads(path.read_text())
    kept = {name: value for name, value in members.items() if name not in {"cwd", "environment"}}
    path.write_text(json.dumps({**kept, "pgid": note.pid}))
    older = made.note_of(launch.incarnation_id)
    assert (older.leader, older.cwd, older.environment) == (note.leader, None, {})
    await made.stop(view_of(launch))


async def test_a_bridge_does_not_end_itself(launcher) -> None:
    launch, made = new_launch(), launcher("obeys")
    mine = identity_of(os.getpid())
    assert mine is not None
    made._notes.write(ProcessNote("pane", launch.incarnation_id, mine.pid, mine.start_time, boot_id()))
    with pytest.raises(StillRunning, match="this process"):
        await made.stop(view_of(launch))


# -- what cannot be started or stopped ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Command(("no-such-program",)), "No such file"),
        (Command(("/",)), "Permission denied"),
        (Command((sys.executable,), cwd="/no/such/folder"), "No such file"),
        (Command((sys.executable, "x" * 200_000)), "too long"),
        (Command((sys.executable, "a\0b")), "null byte"),
    ],
)
async def test_what_cannot_be_started_leaves_nothing(tmp_path, command: Command, error: str) -> None:
    launcher = ChildProcessLauncher(lambda _: command, tmp_path)
    launch = new_launch()
    with pytest.raises(LaunchError, match=error):
        await launcher.start(launch)
    assert marked(launch.incarnation_id) == set()
    assert list((tmp_path / "processes").iterdir()) == []


@pytest.mark.parametrize("program", ["no-such-program", sys.executable])
async def test_a_start_that_fails_tells_the_program_and_not_what_its_agent_is_told(tmp_path, program: str) -> None:
    command = Command(
        (program, "the payload"), {"KEY": "the secret"}, cwd="/" if "no" in program else "/none", stdin=b"the prompt"
    )
    with pytest.raises(LaunchError, match=program) as caught:
        await ChildProcessLauncher(lambda _: command, tmp_path).start(new_launch())
    assert "No such file" in str(caught.value)
    for said in (repr(caught.value), repr(command)):
        assert not any(word in said for word in ("payload", "secret", "prompt"))


async def test_a_note_that_cannot_be_written_starts_nothing(launcher, tmp_path, monkeypatch) -> None:
    made, launch = launcher("obeys"), new_launch()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patching, pytest.raises(OSError, match="No space"):
        patching.setattr(os, "fsync", full)
        await made.start(launch)
    assert marked(launch.incarnation_id) == set()
    assert list((tmp_path / launch.incarnation_id).iterdir()) == [], "the harness itself never ran"


async def test_what_does_not_die_is_named(launcher, tmp_path, monkeypatch) -> None:
    launch, made = new_launch(), launcher("obeys", grace_seconds=0)
    await made.start(launch)
    leader = told(tmp_path, launch, "obeys")["leader"]
    with monkeypatch.context() as patching, pytest.raises(StillRunning, match=f"after SIGKILL: {leader} "):
        patching.setattr(processes, "_send", lambda *_: None)
        patching.setattr(processes, "KILL_SECONDS", 0.1)
        await made.stop(view_of(launch))
    assert set(made.processes()) == {"pane"}, "its note is kept"
    await made.stop(view_of(launch))


def test_a_signal_reaches_exactly_the_process_meant(innocent, monkeypatch) -> None:
    identity = identity_of(innocent.pid)
    assert identity is not None
    processes._send(Identity(identity.pid, identity.start_time + 1), signal.SIGKILL)
    assert innocent.poll() is None
    monkeypatch.delattr(os, "pidfd_open")  # an older kernel
    processes._send(Identity(identity.pid, identity.start_time + 1), signal.SIGKILL)
    assert innocent.poll() is None
    processes._send(identity, signal.SIGKILL)
    assert innocent.wait() == -signal.SIGKILL
    processes._send(identity, signal.SIGKILL)


# -- cancellation, and the other loop ----------------------------------------------------------------------------


async def test_a_cancelled_stop_ends_at_once_and_leaves_no_thread(launcher, tmp_path) -> None:
    launch, made = new_launch(), launcher("ignores", grace_seconds=600)
    await made.start(launch)
    leader = told(tmp_path, launch, "ignores")["leader"]
    hunts = threading.Event()
    ended = threading.Event()
    stop = made._stop

    def observed(*args) -> None:
        hunts.set()
        try:
            stop(*args)
        finally:
            ended.set()

    made._stop = observed
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.stop, view_of(launch))
        await trio.to_thread.run_sync(hunts.wait)
        nursery.cancel_scope.cancel()
    assert await trio.to_thread.run_sync(ended.wait, 30)
    assert running(leader)
    await launcher("ignores").stop(view_of(launch))


def test_on_asyncio_the_same(launcher, tmp_path) -> None:
    async def main() -> None:
        launch, made = new_launch(), launcher("stray")
        command_for, begun, may_go_on = made._command_for, threading.Event(), threading.Event()

        def slowly(launch):
            begun.set()
            may_go_on.wait()
            return command_for(launch)

        made._command_for = slowly
        starting = asyncio.ensure_future(made.start(launch))
        await asyncio.to_thread(begun.wait)
        starting.cancel()
        asyncio.get_running_loop().call_soon(may_go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert set(made.processes()) == {"pane"}, "a start is brought to its end"
        pids = await asyncio.to_thread(told, tmp_path, launch, "stray")
        waiting = asyncio.ensure_future(made.wait(launch.incarnation_id))
        await made.stop(view_of(launch))
        await asyncio.wait_for(waiting, 30)
        assert not any(map(running, pids.values()))

        stubborn, held = new_launch(), launcher("ignores", grace_seconds=600)
        await held.start(stubborn)
        await asyncio.to_thread(told, tmp_path, stubborn, "ignores")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(held.stop(view_of(stubborn)), 0.05)
        await launcher("ignores").stop(view_of(stubborn))

    asyncio.run(main())


@pytest.mark.parametrize("pidfd", [True, False])
async def test_an_end_that_nobody_asked_for_is_noticed(launcher, tmp_path, monkeypatch, pidfd: bool) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    launch, made = new_launch(), launcher("obeys")
    await made.start(launch)
    leader = told(tmp_path, launch, "obeys")["leader"]
    with trio.move_on_after(0.05) as scope:
        await made.wait(launch.incarnation_id)
    assert scope.cancelled_caught
    os.kill(leader, signal.SIGKILL)
    with trio.fail_after(30):
        await made.wait(launch.incarnation_id)
    assert made.processes() == {}
    await made.stop(view_of(launch))


async def test_a_stop_of_many_in_a_busy_machine_is_bounded(launcher, tmp_path) -> None:
    made, launches = launcher("stray"), [new_launch(f"pane-{n}") for n in range(5)]
    async with trio.open_nursery() as nursery:
        for launch in launches:
            nursery.start_soon(made.start, launch)
    pids = [pid for launch in launches for pid in told(tmp_path, launch, "stray").values()]
    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        for launch in launches:
            nursery.start_soon(made.stop, view_of(launch))
    assert time.monotonic() - began < 0.2 + processes.KILL_SECONDS + 5
    assert not any(map(running, pids))
