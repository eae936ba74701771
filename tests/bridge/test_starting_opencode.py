"""What a pane's OpenCode is started with: a plugin of its incarnation's beside the user's, and what runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bridge import opencode_program
from launch_world import new_launch

from fencepost.supervisor import Capabilities
from fencepost.supervisor.bridge import hook
from fencepost.supervisor.bridge.hook_settings import HookCommand
from fencepost.supervisor.bridge.opencode_plugin import content_with_plugins_of
from fencepost.supervisor.bridge.panes import PaneBook, PaneSpec, Terminal
from fencepost.supervisor.bridge.starting import Starting

OURS = '{"plugin": ["file:///ours.js"]}'


class Place:
    """A project, and a program that has OpenCode's version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = opencode_program.install(folder / "bin")
        self.book = PaneBook()
        self.starting = Starting(
            self.book,
            folder / "incarnations",
            HookCommand(7),
            lambda *_: Capabilities(soft_batches=False, turn_order=False),
            lambda _: None,
            lambda: None,
        )

    def command(self, *, terminal=Terminal.NONE, session_id=None, **environment: str):
        """The command that would start it, and what its variable configures."""
        spec = PaneSpec(
            argv=(str(self.program), "--model", "m"),
            cwd=str(self.folder),
            environment={"HOME": str(self.folder), "OPENCODE_PURE": "1", **environment},
            harness="opencode",
            terminal=terminal,
            prompt='say "ü"',
            session_id=session_id,
        )
        self.book.put("pane", spec)
        command = self.starting.command_for(new_launch(harness="opencode"))
        return command, json.loads(command.environment["OPENCODE_CONFIG_CONTENT"])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_without_a_terminal_it_reads_its_prompt_and_runs_our_plugin(place: Place) -> None:
    command, content = place.command(session_id="ses_1")
    assert command.argv == (str(place.program), "run", "--model", "m", "--session", "ses_1")
    assert command.stdin == 'say "ü"'.encode()
    (plugin,) = content["plugin"]
    source = Path(plugin.removeprefix("file://")).read_text(encoding="utf-8")
    settings = json.loads(source.splitlines()[0].removeprefix("const SETTINGS = "))
    program, *options = settings["commands"]["PreToolUse"]
    assert program == sys.executable
    assert options[-6:] == ["--harness", "opencode", "--event", "PreToolUse", "--deadline", "7"]
    assert set(settings["commands"]) == {"UserPromptSubmit", "PreToolUse", "Stop", "Forgotten"}
    assert (settings["timeout_seconds"], settings["denial"]) == (HookCommand(7).timeout_seconds, hook.NO_ANSWER)
    assert (command.environment["OPENCODE_PURE"], command.environment["OPENCODE_DISABLE_AUTOUPDATE"]) == ("0", "1")


def test_in_a_terminal_its_prompt_is_an_argument(place: Place) -> None:
    command, _ = place.command(terminal=Terminal.TMUX, session_id="ses_1")
    assert command.argv[1:] == ("--mini", "--model", "m", "--session", "ses_1", "--prompt", 'say "ü"')
    assert command.stdin is None


def test_each_incarnation_has_a_plugin_of_its_own(place: Place) -> None:
    (_, first), (_, second) = place.command(), place.command()
    assert first != second


def test_what_the_user_configures_in_the_same_variable_is_kept(place: Place) -> None:
    users = json.dumps({"model": "m/n", "plugin": ["theirs"]})
    _, content = place.command(OPENCODE_CONFIG_CONTENT=users)
    assert content["model"] == "m/n"
    assert content["plugin"][0] == "theirs"
    assert content["plugin"][1].endswith("/fencepost.js")


@pytest.mark.parametrize("users", ["// a comment\n{}", "[]", "3", '{"plugin": "x"}', "[" * 100_000])
def test_what_nothing_can_be_added_to_is_refused_and_the_prompt_is_kept(place: Place, users: str) -> None:
    with pytest.raises(ValueError, match="OPENCODE_CONFIG_CONTENT holds no JSON object"):
        place.command(OPENCODE_CONFIG_CONTENT=users)
    assert place.book.take_prompt("pane") == 'say "ü"'


@pytest.mark.parametrize("users", [None, "", " \n"])
def test_nothing_is_as_good_as_none(users: str | None) -> None:
    assert content_with_plugins_of(OURS, users) == OURS
