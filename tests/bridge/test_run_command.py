"""`fencepost run` as people use it: programs of their own, a bridge in the background, and nothing but the shell."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from bridge.claude_program import install
from bridge.program_world import Driver
from launch_world import eventually

from fencepost.supervisor.bridge.launching import tmux_server_of

MAIN = "from fencepost.supervisor.cli import main; main(prog_name='fencepost')"


class Shell:
    """A user's shell: a home, a program `claude`, and `fencepost`."""

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder / "bridge"
        self.home.mkdir()
        self.driver = Driver(folder / "control")
        install(folder / "bin")
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "CLAUDE_CONTROL": str(folder / "control"),
            "TMUX_TMPDIR": str(folder),
            "TERM": "xterm",
            "LANG": "C.UTF-8",
        }

    def argv(self, *arguments: str) -> list[str]:
        command, *rest = arguments
        return [sys.executable, "-P", "-W", "error", "-c", MAIN, command, "--folder", str(self.folder), *rest]

    def fencepost(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*arguments),
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def json(self, *arguments: str) -> dict:
        done = self.fencepost(*arguments)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def bridge_pid(self) -> int:
        (found, *_) = re.findall(rb"\d+", (self.folder / "bridge.db.lock").read_bytes())
        return int(found)

    def end(self) -> None:
        self.driver.close()
        for pane_id in ("left", "right"):
            with suppress(OSError, subprocess.SubprocessError):
                self.fencepost("stop", "--pane", pane_id)
        with suppress(OSError):
            os.kill(self.bridge_pid(), signal.SIGTERM)
        subprocess.run(["tmux", "-L", tmux_server_of(self.folder), "kill-server"], env=self.environment, check=False)


@contextmanager
def shell() -> Iterator[Shell]:
    folder = Path(tempfile.mkdtemp(prefix="fp-"))
    made = Shell(folder)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


def batch(run, *calls: str) -> list[str | None]:
    run.tell(batch=calls)
    return run._read()["denied"]


def test_a_newcomers_way_from_one_line_to_an_acknowledged_intent_over_a_killed_bridge():
    with shell() as there:
        started = there.json("run", "--pane", "left", "--no-terminal", "--prompt", "go", "--json", "--", "claude")
        run = there.driver.next()
        assert run.about["said"] == "go"
        assert run.about["cwd"] == str(there.home)
        assert run.about["environ"]["FENCEPOST_INCARNATION"] == started["incarnation_id"]
        assert batch(run, "a1") == [None]
        moved = ("--kind", "parent_advance", "--from", "main-1", "--to", "main-2")
        there.json("detect", "left", *moved, "--classification-op", "op-1", "--trigger-op", "push-1", "--json")
        first = there.bridge_pid()
        os.kill(first, signal.SIGKILL)
        again = there.json("run", "--pane", "left", "--json")  # starts a bridge, and finds the process it left
        assert (again["incarnation_id"], again["pid"]) == (started["incarnation_id"], run.about["pid"])
        assert there.bridge_pid() != first
        denied = batch(run, "b1", "b2", "b3")
        assert len(set(denied)) == 1
        assert "main-2" in str(denied[0])
        assert batch(run, "c1") == [None]
        (line,) = there.json("status", "--json")["panes"]
        assert (line["pane_id"], line["standing"]) == ("left", "in_sync")
        refused = there.fencepost("run", "--pane", "left", "--no-terminal", "--prompt", "go", "--", "claude")
        assert (refused.returncode, "lives in pane left" in refused.stderr) == (1, True)
        shown = there.fencepost("run", "--pane", "left").stdout
        output = Path(shown.strip().splitlines()[-1].removeprefix("What it prints is in "))
        assert output.read_text() == "claude is here\n"
        assert there.json("stop", "--pane", "left", "--json")["ended"] is True
        eventually(lambda: not Path(f"/proc/{run.about['pid']}").exists())


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_on_a_terminal_it_shows_the_pane():
    with shell() as there:
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(there.home)
            argv = there.argv("run", "--pane", "left", "--", "claude", "--model", "m")
            os.execvpe(argv[0], argv, there.environment)
        run = there.driver.next()
        assert (run.about["said"], run.about["headless"]) == (None, False)
        seen = b""
        while b"claude is here" not in seen:
            seen += os.read(terminal, 65_536)
        with suppress(OSError):  # Linux: an error, where the other end is closed
            while True:
                if select.select([terminal], [], [], 0.2)[0]:
                    os.read(terminal, 65_536)
                else:  # it takes no key while it still asks its terminal what that is
                    os.write(terminal, b"\x02d")  # C-b d: tmux lets go
        assert os.waitpid(pid, 0)[1] == 0
        os.close(terminal)
        assert batch(run, "a1") == [None]
        assert there.json("stop", "--pane", "left", "--json")["ended"] is True


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (("--pane", "left"), 2, "nothing was started"),
        (("--pane", "left", "--", "bash"), 2, "name it as harness (--harness): claude-code, codex"),
        (("--pane", "left", "--", "claude", "do this"), 1, "--prompt"),
        (("--pane", "left", "--", "claude", "--settings", "x"), 1, "given at each start by fencepost itself"),
        (("--pane", "left", "--no-terminal", "--", "claude"), 1, "needs a first prompt"),
        (("--pane", "left", "--harness", "claude-code", "--", "/nowhere"), 1, "the program '/nowhere' is not found"),
        (("--pane", "l\x1b", "--", "claude"), 2, "printable ASCII"),
        (("--", "claude"), 2, "Missing option '--pane'"),
    ],
)
def test_what_cannot_be_started_is_told_why(arguments, status, why, served):
    done = served.fencepost("run", *arguments)
    assert (done.returncode, why in done.stderr) == (status, True), done
    assert "\x1b" not in done.stderr


@pytest.fixture(scope="module")
def served():
    with shell() as there:
        there.fencepost("run", "--pane", "left")
        yield there


def test_without_a_bridge_and_without_starting_one_it_says_so():
    with shell() as there:
        done = there.fencepost("run", "--no-serve", "--pane", "left", "--", "claude")
        assert (done.returncode, "start `fencepost serve` there" in done.stderr) == (2, True)


def test_a_bridge_that_cannot_start_is_told_in_its_own_words():
    with shell() as there:
        there.folder.mkdir(mode=0o755)
        there.folder.chmod(0o755)
        done = there.fencepost("run", "--pane", "left", "--", "claude")
        assert (done.returncode, "mode 0700" in done.stderr) == (2, True)
