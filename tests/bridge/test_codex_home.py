"""The generated CODEX_HOME: what of the user's own it takes over, and which hooks keep it from being made."""

from __future__ import annotations

import os
import tomllib

import pytest

from fencepost.supervisor.bridge.codex_home import CONFIG_BYTES_MAX, OtherHooks, users_codex_home
from fencepost.supervisor.bridge.hook_settings import HookCommand, codex_config, remove_settings, write_codex_home

HOOKS = '[[hooks.PreToolUse]]\n[[hooks.PreToolUse.hooks]]\ntype = "command"\ncommand = "true"\n'
PROVIDER = 'model_provider = "x"\n[model_providers.x]\nname = "x"\nbase_url = "http://127.0.0.1:1/v1"\n'


class There:
    """A user's home of Codex, a project, and the folder that homes are generated in."""

    def __init__(self, folder) -> None:
        self.users = folder / "users"
        self.project = folder / "above" / "project"
        self.users.mkdir()
        self.project.mkdir(parents=True)
        self.folder = folder / "incarnations"

    def write(self, incarnation_id="one"):
        return write_codex_home(self.folder, incarnation_id, HookCommand(), self.users, self.project)

    def refused(self, match) -> None:
        with pytest.raises(OtherHooks, match=match):
            self.write()
        assert not list(self.folder.glob("*/config.toml"))


@pytest.fixture
def there(tmp_path) -> There:
    return There(tmp_path)


def test_the_users_configuration_is_kept_and_our_hooks_follow(there) -> None:
    (there.users / "config.toml").write_text(PROVIDER)
    config = tomllib.loads((there.write() / "config.toml").read_text())
    assert config["model_providers"]["x"]["base_url"] == "http://127.0.0.1:1/v1"
    assert set(config["hooks"]) == {"PreToolUse", "UserPromptSubmit", "Stop"}


def test_conversations_and_logins_are_the_users_in_every_incarnation(there) -> None:
    (there.users / "auth.json").write_text("{}")
    first, second = there.write("one"), there.write("two")
    assert first != second
    (first / "sessions" / "rollout").write_text("said")
    (first / "auth.json").write_text("renewed")
    (first / ".credentials.json").write_text("new")
    assert (second / "sessions" / "rollout").read_text() == "said"
    assert (there.users / "auth.json").read_text() == (second / "auth.json").read_text() == "renewed"
    assert (there.users / ".credentials.json").read_text() == "new"
    assert (first / "thread-writer-locks").resolve() == (second / "thread-writer-locks").resolve()


def test_a_user_without_a_home_gets_one(there) -> None:
    there.users.rmdir()
    home = there.write()
    assert (home / "sessions").resolve() == there.users / "sessions"
    assert (there.users / "sessions").stat().st_mode & 0o777 == 0o700
    assert not (home / "auth.json").exists()


def test_instructions_are_linked_where_there_are_any(there) -> None:
    (there.users / "AGENTS.md").write_text("be brief")
    (there.users / "rules").mkdir()
    home = there.write()
    assert (home / "AGENTS.md").read_text() == "be brief"
    assert (home / "rules").resolve() == there.users / "rules"
    assert not os.path.lexists(home / "prompts")


def test_written_again_it_follows_the_user_and_keeps_what_codex_put_there(there) -> None:
    home = there.write()
    (home / "auth.json").unlink()
    (home / "auth.json").write_text("logged in here")
    (home / "sessions").unlink()
    (home / "sessions").symlink_to("/nowhere")
    assert there.write() == home
    assert (home / "auth.json").read_text() == "logged in here"
    assert (home / "sessions").resolve() == there.users / "sessions"


def test_a_relative_or_linked_home_means_the_same_files(there, monkeypatch) -> None:
    (there.users.parent / "linked").symlink_to("users")
    monkeypatch.chdir(there.users.parent)
    there.users = type(there.users)("linked")
    home = there.write()
    assert (home / "sessions").readlink() == there.users.resolve() / "sessions"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (HOOKS, "config.toml declares hooks"),
        ('[hooks.state."k"]\ntrusted_hash = "sha256:0"\n', "config.toml declares hooks"),
        ("[features]\nhooks = false\n", "turns hooks off"),
        ("[features]\ncodex_hooks = false\n", "turns hooks off"),
        ('[features]\nhooks = "no"\n', "turns hooks off"),
        ("[profiles.p.features]\nhooks = false\n", "turns hooks off"),
        ("[[profiles.p.hooks.PreToolUse]]\n", "config.toml declares hooks"),
    ],
)
def test_a_configuration_with_hooks_or_without_any_is_refused_wherever_it_stands(there, content, match) -> None:
    with pytest.raises(OtherHooks, match=match.replace("config.toml", "the base configuration")):
        codex_config(HookCommand(), content)
    for home in (there.users, there.project / ".codex"):
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(content)
        there.refused(match)
        (home / "config.toml").write_text("[features]\nhooks = true\n" if home == there.users else "")
    assert there.write().exists()


@pytest.mark.parametrize("place", ["users", "project", "generated"])
def test_a_hooks_file_is_refused_wherever_it_stands(there, place) -> None:
    made = there.write()
    (made / "config.toml").unlink()
    folder = {"users": there.users, "project": there.project / ".codex", "generated": made}[place]
    folder.mkdir(exist_ok=True)
    (folder / "hooks.json").symlink_to("/nowhere")  # that it is there is enough
    there.refused("hooks.json declares hooks")


def test_a_project_reaches_up_to_its_marker_and_no_further(there) -> None:
    above = there.project.parent
    (above / ".codex").mkdir()
    (above / ".codex" / "hooks.json").write_text("{}")
    assert there.write().exists()  # no marker: the folder itself is the project
    (above / ".git").write_text("gitdir: elsewhere")
    with pytest.raises(OtherHooks, match="above"):
        there.write()
    (there.project / ".git").mkdir()
    assert there.write().exists()
    (there.users / "config.toml").write_text('project_root_markers = ["root"]\n')
    (above / "root").touch()
    with pytest.raises(OtherHooks, match="above"):
        there.write()


def test_a_project_is_where_its_folder_is_and_not_where_a_link_to_it_is(there) -> None:
    above = there.project.parent
    (above / ".git").mkdir()
    (above / ".codex").mkdir()
    (above / ".codex" / "hooks.json").write_text("{}")
    link = above.parent / "elsewhere"
    link.symlink_to(there.project)
    there.project = link
    there.refused("above")


@pytest.mark.parametrize("content", [b"= 1", b"\xff", b"#" * (CONFIG_BYTES_MAX + 1), b"a=" + b"[" * 100_000])
def test_a_configuration_that_cannot_be_read_is_refused(there, content) -> None:
    for home in (there.project / ".codex", there.users):
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_bytes(content)
        with pytest.raises(ValueError, match=r"config\.toml"):
            there.write()
        (home / "config.toml").unlink()


def test_a_pipe_in_the_place_of_a_configuration_holds_nobody_up(there) -> None:
    (there.project / ".codex").mkdir()
    os.mkfifo(there.project / ".codex" / "config.toml")
    with pytest.raises(ValueError, match="is no file"):
        there.write()


def test_whose_home_it_is_is_told_by_the_environment(tmp_path) -> None:
    assert users_codex_home({"HOME": "/h"}) == type(tmp_path)("/h/.codex")
    assert users_codex_home({"HOME": "/h", "CODEX_HOME": "/c"}) == type(tmp_path)("/c")
    assert users_codex_home({"HOME": "/h", "CODEX_HOME": ""}) == type(tmp_path)("/h/.codex")
    with pytest.raises(ValueError, match="neither"):
        users_codex_home({})


def test_what_is_removed_with_a_home_is_no_conversation(there) -> None:
    home, other = there.write(), there.write("two")
    (home / "sessions" / "rollout").write_text("said")
    (home / "logs_2.sqlite").touch()
    remove_settings(there.folder, "one")
    assert (home.exists(), other.exists()) == (False, True)
    assert (there.users / "sessions" / "rollout").read_text() == "said"
    remove_settings(there.folder, "one")
