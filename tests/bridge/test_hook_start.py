"""The hook program started from its compiled form decides as it does from its source, whatever became of that form."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from fencepost.supervisor.bridge import hook, hook_start

FILES = [Path(hook_start.__file__), Path(hook.__file__)]


@pytest.fixture
def program(tmp_path):
    """A copy of both files, and where the compiled form of the second will be."""
    folder = tmp_path / "installed"
    folder.mkdir()
    for file in FILES:
        shutil.copy(file, folder)
    return folder / "hook_start.py", Path(cache_from_source(str(folder / "hook.py")))


def run(program: Path, cwd: Path, *, event: bytes = b'{"hook_event_name": "PreToolUse", "tool_use_id": "a"}'):
    command = [sys.executable, "-I", "-S", str(program), "--event", "PreToolUse", "--deadline", "3"]
    return subprocess.run(command, input=event, cwd=cwd, env={}, capture_output=True, timeout=60, check=False)


def test_it_decides_as_the_program_it_starts(program, tmp_path):
    started, kept = program
    for _ in range(2):  # as source, and as what was kept of it
        ran, whole = run(started, tmp_path), run(FILES[1], tmp_path)
        assert (ran.returncode, ran.stdout) == (whole.returncode, whole.stdout)
        assert b'"permissionDecision": "deny"' in ran.stdout
        assert kept.exists()


@pytest.mark.parametrize("damage", [b"", b"\0" * 16, bytes(100), None, "cut", "noise"])
def test_a_damaged_compiled_form_lets_no_call_run(program, tmp_path, damage):
    started, kept = program
    run(started, tmp_path)
    whole = kept.read_bytes()
    if damage == "cut":
        damage = whole[: len(whole) // 2]
    elif damage == "noise":
        damage = whole[:16] + b"\xff" * 100  # the header of one that is good
    kept.unlink() if damage is None else kept.write_bytes(damage)
    ran = run(started, tmp_path)
    assert (ran.returncode, ran.stderr.count(b"Traceback")) == (0, 0)
    assert b'"permissionDecision": "deny"' in ran.stdout


def test_it_runs_what_it_finds_beside_it_and_nothing_of_the_folder_it_works_in(program, tmp_path):
    started, _ = program
    for name in ("hook", "json", "_frozen_importlib_external"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(0)\n")
    assert b'"permissionDecision": "deny"' in run(started, tmp_path).stdout


def test_a_changed_program_is_compiled_anew(program, tmp_path):
    started, _ = program
    assert b"CHANGED" not in run(started, tmp_path).stdout
    changed = started.with_name("hook.py")
    changed.write_text(changed.read_text().replace('"The supervisor', '"CHANGED: the supervisor'))
    assert b"CHANGED" in run(started, tmp_path).stdout
