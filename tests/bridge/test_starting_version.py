"""How a program is asked for its version: one that floods, lingers, hangs or says nothing of the kind."""

from __future__ import annotations

import os

import pytest
from launch_world import eventually, running

from fencepost.supervisor.bridge import starting
from fencepost.supervisor.bridge.launchers import LaunchError
from fencepost.supervisor.bridge.panes import PaneSpec
from fencepost.supervisor.bridge.starting import version_of


@pytest.fixture
def says(tmp_path):
    def version(script: str, **environment: str) -> str:
        program = tmp_path / "claude"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        kept = {"PATH": os.environ["PATH"], "PLACE": str(tmp_path), **environment}
        return version_of(PaneSpec(argv=(str(program),), cwd="/", environment=kept, harness="claude-code"))

    return version


def test_the_first_number_counts(says):
    assert says("echo 2.1.197 \\(Claude Code\\)") == "2.1.197"
    assert says("echo 1.2.3-beta.4; yes | head -c 1000000; echo x >&2") == "1.2.3-beta.4"
    assert says("exec 2>&-; printf 1.2.3; exec >&-; sleep 0.1") == "1.2.3"


@pytest.mark.parametrize("script", ["exit 1", "echo 1.2.3; exit 3", "echo one", "exec >&-", "kill -9 $$"])
def test_what_tells_none_is_told(says, script):
    with pytest.raises(LaunchError, match="asked with --version it said"):
        says(script)


def test_what_it_said_is_told_in_one_line(says):
    def told(script):
        with pytest.raises(LaunchError) as raised:
            says(script)
        return str(raised.value).partition(" it said ")[2]

    assert told("true") == "nothing, and ended with status 0"
    assert told("echo; printf 'true (GNU \\033[2J)\\nCopyright\\n'; exit 1") == (
        '"true (GNU \\x1b[2J)", and ended with status 1'
    )
    assert told("printf %0200d 0").startswith(f'"{"0" * 120}…", and ')


@pytest.mark.parametrize(
    ("program", "cwd", "why"),
    [
        ("/nowhere/claude", "/", "the program '/nowhere/claude' is not found$"),
        ("no-claude", "/", "the program 'no-claude' is not found in the PATH of the shell that starts it$"),
        ("sh", "/nowhere", "there is no folder '/nowhere' to start it in"),
    ],
)
def test_what_is_not_there_is_told(program, cwd, why):
    with pytest.raises(LaunchError, match=why):
        version_of(PaneSpec(argv=(program,), cwd=cwd, environment={"PATH": "/bin"}, harness="claude-code"))


def test_a_script_whose_interpreter_is_not_there_is_found(tmp_path):
    script = tmp_path / "claude"
    script.write_text("#!/nowhere/sh\n")
    script.chmod(0o755)
    with pytest.raises(LaunchError, match="could not be asked for its version"):
        version_of(PaneSpec(argv=(str(script),), cwd="/", environment={}, harness="claude-code"))


def test_what_it_leaves_running_is_not_waited_for(says, tmp_path):
    assert says("sleep 600 & echo $! >$PLACE/pid; echo 1.2.3") == "1.2.3"
    os.kill(int((tmp_path / "pid").read_text()), 9)


@pytest.mark.parametrize(
    "script", ["exec sleep 600", "exec yes", "trap '' TERM; sleep 600 & echo $! >$PLACE/pid; wait"]
)
def test_one_that_does_not_end_is_ended(says, tmp_path, monkeypatch, script):
    monkeypatch.setattr(starting, "_VERSION_SECONDS", 0.5)
    with pytest.raises(LaunchError, match=r"not ended after 0\.5 seconds"):
        says(script)
    if (tmp_path / "pid").exists():
        pid = int((tmp_path / "pid").read_text())
        eventually(lambda: not running(pid))


def test_it_is_not_asked_in_anothers_name(says):
    assert says("echo 1.2.3$FENCEPOST_LINK", FENCEPOST_LINK=".4") == "1.2.3"
