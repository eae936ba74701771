"""The generated settings, and hooks started as a harness starts them: by the line in its settings."""

from __future__ import annotations

import json
import shlex
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import trio
from bridges import Workspace, moved, payload_of
from claude_session import ClaudeSession
from hook_bridge import Bridge
from hook_programs import place

from fencepost.supervisor import Applied, IntentState, Unchanged, open_supervisor
from fencepost.supervisor.bridge import hook
from fencepost.supervisor.bridge.adapters.claude import ClaudeCodeAdapter
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.hook_settings import (
    HookCommand,
    claude_settings,
    codex_config,
    write_claude_settings,
    write_codex_home,
)


@pytest.fixture
def here():
    with place() as found:
        yield found


def line_of(settings: Any, event: str) -> str:
    (group,) = settings["hooks"][event]
    (one,) = group["hooks"]
    return one["command"]


def test_each_kind_of_hook_has_its_line_and_outlasts_its_own_deadline() -> None:
    command = HookCommand(deadline_seconds=20, interpreter="/usr/bin/python 3", program="/a b/hook.py")
    settings: Any = claude_settings(command)
    assert set(settings["hooks"]) == {"UserPromptSubmit", "PreToolUse", "PostToolBatch"}
    for event in settings["hooks"]:
        (group,) = settings["hooks"][event]
        assert "matcher" not in group
        assert group["hooks"][0]["timeout"] > 20
        asked = ["--harness", "claude-code", "--event", event, "--deadline", "20"]
        assert shlex.split(line_of(settings, event)) == ["/usr/bin/python 3", "-I", "-S", "/a b/hook.py", *asked]
    assert settings["disableAllHooks"] is False


@pytest.mark.parametrize(
    "wrong", [{"deadline_seconds": 0}, {"deadline_seconds": 601}, {"program": "a\nb"}, {"program": ""}]
)
def test_a_command_that_cannot_be_written_down_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match="must be"):
        HookCommand(**wrong)


def test_codex_gets_its_base_and_our_hooks_and_no_others() -> None:
    command = HookCommand(program='/a "b" \\c/hook.py')
    config = tomllib.loads(codex_config(command, 'model = "m"\n[model_providers.x]\nname = "x"'))
    assert config["model_providers"] == {"x": {"name": "x"}}
    assert set(config["hooks"]) == {"UserPromptSubmit", "PreToolUse", "Stop"}
    line = line_of(config, "PreToolUse")
    assert shlex.split(line)[3:7] == ['/a "b" \\c/hook.py', "--harness", "codex", "--event"]
    with pytest.raises(ValueError, match="declares hooks"):
        codex_config(command, "[[hooks.PreToolUse]]\n")
    with pytest.raises(tomllib.TOMLDecodeError):
        codex_config(command, "= 1")


def test_each_incarnation_has_private_settings_of_its_own(tmp_path) -> None:
    command = HookCommand()
    first = write_claude_settings(tmp_path / "s", "../../etc/passwd", command)
    second = write_claude_settings(tmp_path / "s", "two", command)
    home = write_codex_home(tmp_path / "s", "two", command)
    assert first.parent != second.parent
    assert {first.parent.parent, second.parent.parent, home.parent} == {tmp_path / "s"}
    assert write_claude_settings(tmp_path / "s", "two", command) == second
    assert json.loads(second.read_text()) == claude_settings(command)
    assert tomllib.loads((home / "config.toml").read_text())["hooks"]
    for file in (first, second, home / "config.toml"):
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert sorted(path.name for path in second.parent.iterdir()) == ["config.toml", "settings.json"]


def test_a_folder_that_others_may_enter_is_not_written_to(tmp_path) -> None:
    command = HookCommand()
    written = write_claude_settings(tmp_path / "s", "one", command)
    written.parent.chmod(0o755)
    with pytest.raises(PermissionError, match="mode 0700"):
        write_claude_settings(tmp_path / "s", "one", command)


async def test_the_lines_in_the_settings_carry_a_payload_to_the_model_and_back(here, tmp_path) -> None:
    session = ClaudeSession(here.folder)
    settings = json.loads(write_claude_settings(tmp_path / "s", "i", HookCommand(60)).read_text())
    environment = here.environment

    async def run_hook(event) -> bytes:
        done = await trio.run_process(
            line_of(settings, event["hook_event_name"]),
            shell=True,
            env=environment,
            stdin=json.dumps(event).encode(),
            capture_stdout=True,
        )
        return done.stdout

    async with (
        open_supervisor(environment["FENCEPOST_STORE"], reconciler=Workspace()) as supervisor,
        trio.open_nursery() as nursery,
    ):
        pane = supervisor.pane("pane/1")
        environment["FENCEPOST_INCARNATION"] = (await pane.launch("claude-code")).incarnation_id
        bridge = Bridge(here, pane, ClaudeCodeAdapter(Gate(here.spool), [session.projects]))
        await nursery.start(bridge.serve)
        await pane.detect(moved("main-1", "main-2"))

        printed = []

        async def collect(event) -> None:
            printed.append(await run_hook(event))

        async with trio.open_nursery() as hooks:
            for event in session.turn("a", "b", "c"):
                hooks.start_soon(collect, event)
        assert len(set(printed)) == 1
        reason = json.loads(printed[0])["hookSpecificOutput"]["permissionDecisionReason"]
        assert reason.encode() == payload_of("main-2")
        assert sorted(type(mark).__name__ for mark in bridge.marked) == [
            Applied.__name__, Unchanged.__name__, Unchanged.__name__,
        ]  # fmt: skip

        assert await run_hook(session.ended("a", "b", "c")) == b""
        assert await run_hook(session.turn("d")[0]) == b""
        assert (await pane.intents())[0].state is IntentState.ACKNOWLEDGED
        nursery.cancel_scope.cancel()


def test_the_console_script_is_the_same_program() -> None:
    script = Path(sysconfig.get_path("scripts")) / "fencepost-hook"
    done = subprocess.run([script, "--event", "PreToolUse"], env={}, input=b"{}", capture_output=True, check=True)
    assert done.stdout == hook.FIXED_DENIAL


@pytest.mark.parametrize("name", ["fencepost-hook", "fencepost-channel"])
def test_the_console_scripts_help(name) -> None:
    script = Path(sysconfig.get_path("scripts")) / name
    for asked in ("-h", "--help"):
        done = subprocess.run([script, asked], capture_output=True, text=True, check=False, env={}, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"Usage: {name} ")
