"""What a pane's Codex is started with: a home of its incarnation's that is the user's, and hooks that nobody undoes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from launch_world import new_launch

from fencepost.supervisor.bridge.adapters.codex import CodexAdapter
from fencepost.supervisor.bridge.codex_home import OtherHooks
from fencepost.supervisor.bridge.hook_settings import HookCommand
from fencepost.supervisor.bridge.panes import PaneBook, PaneSpec, Terminal
from fencepost.supervisor.bridge.starting import Starting

TRUSTED = ["--dangerously-bypass-hook-trust", "--disable", "plugins"]


class Place:
    """A user, his project, and a program that has Codex's name and version and does nothing."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.project = folder / "project"
        self.program = folder / "codex"
        for made in (self.home / ".codex", self.project):
            made.mkdir(parents=True)
        self.program.write_text("#!/bin/sh\necho codex-cli 0.171.0\n")
        self.program.chmod(0o700)
        (self.home / ".codex" / "config.toml").write_text('model = "the-users"\n')
        self.book = PaneBook()
        capabilities = CodexAdapter().capabilities
        self.starting = Starting(
            self.book,
            folder / "incarnations",
            HookCommand(),
            capabilities=lambda _harness, version: capabilities(version),
            link_of={"pane": "link"}.get,
            fleet_url=lambda: "http://fleet",
        )

    def command(self, *, session_id=None, **environment: str):
        """The command that would start it, and the home that it names."""
        spec = PaneSpec(
            argv=(str(self.program), "--model", "m"),
            cwd=str(self.project),
            environment={"HOME": str(self.home), **environment},
            harness="codex",
            terminal=Terminal.NONE,
            prompt="go",
            session_id=session_id,
        )
        self.book.put("pane", spec)
        command = self.starting.command_for(new_launch(harness="codex"))
        return command, Path(command.environment["CODEX_HOME"])


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(("session_id", "resume"), [(None, []), ("s-1", ["resume", "s-1"])])
def test_it_runs_in_a_home_of_its_own_with_our_hooks_and_the_users_things(place, session_id, resume) -> None:
    command, home = place.command(session_id=session_id)
    index = ["-c", f'sqlite_home="{home}"']
    first = [str(place.program), "exec", *TRUSTED, "--skip-git-repo-check", *index, "--model", "m"]
    assert list(command.argv) == [*first, *resume, "--", "go"]
    config = tomllib.loads((home / "config.toml").read_text())
    assert (config["model"], set(config["hooks"])) == ("the-users", {"UserPromptSubmit", "PreToolUse", "Stop"})
    assert home.parent == place.folder / "incarnations"
    assert (home / "sessions").resolve() == place.home / ".codex" / "sessions"
    assert (command.cwd, command.environment["FENCEPOST_LINK"]) == (str(place.project), "link")


def test_each_start_has_another_home_and_the_same_conversations(place) -> None:
    (_, first), (_, second) = place.command(), place.command()
    assert first != second
    assert (first / "sessions").resolve() == (second / "sessions").resolve()


@pytest.mark.parametrize("where", ["elsewhere", "{folder}/project/elsewhere"])
def test_the_panes_own_environment_says_whose_home_it_is(place, where: str) -> None:
    users = place.project / "elsewhere"
    users.mkdir()
    (users / "config.toml").write_text('model = "the-panes"\n')
    _, home = place.command(CODEX_HOME=where.format(folder=place.folder))
    assert tomllib.loads((home / "config.toml").read_text())["model"] == "the-panes"
    assert (home / "auth.json").readlink() == users / "auth.json"


@pytest.mark.parametrize("folder", ["home/.codex", "project/.codex"])
def test_other_hooks_are_refused_before_the_prompt_is_taken(place, folder: str) -> None:
    (place.folder / folder).mkdir(exist_ok=True)
    (place.folder / folder / "hooks.json").write_text("{}")
    with pytest.raises(OtherHooks):
        place.command()
    assert place.book.take_prompt("pane") == "go"


def test_what_speaks_of_another_pane_is_not_passed_on(place):
    command, _ = place.command(FENCEPOST_LINK="anothers", FENCEPOST_STARTUP="anothers", TMUX="/s,1,0", OTHER="kept")
    assert command.environment["FENCEPOST_LINK"] == "link"
    assert command.environment["OTHER"] == "kept"
    assert not {"FENCEPOST_STARTUP", "TMUX"} & set(command.environment)
