"""How harnesses are started: one row each, and what no command line can carry."""

from __future__ import annotations

import hashlib

import pytest
from launch_world import new_launch

from fencepost.supervisor import StartupDelivery
from fencepost.supervisor.bridge.launchers import command_of, environment_of
from fencepost.supervisor.bridge.startup_tag import startup_of, tagged_input

ID = "6f1c2a52-0d5f-4a0e-9df4-1f3b8f4a9b10"


def startup(payload: bytes) -> StartupDelivery:
    return StartupDelivery(ID, "intent", payload, hashlib.sha256(payload).hexdigest())


@pytest.mark.parametrize(
    ("harness", "session", "prompt", "headless", "argv"),
    [
        ("claude-code", None, None, False, ["claude", "--settings", "S"]),
        ("claude-code", None, "go", False, ["claude", "go", "--settings", "S"]),
        ("claude-code", "s-1", "go", False, ["claude", "go", "--resume", "s-1", "--settings", "S"]),
        ("claude-code", "s-1", None, False, ["claude", "--resume", "s-1", "--settings", "S"]),
        ("claude-code", None, "go", True, ["claude", "-p", "go", "--settings", "S"]),
        ("claude-code", "s-1", "go", True, ["claude", "-p", "go", "--resume", "s-1", "--settings", "S"]),
        ("codex", None, None, False, ["codex"]),
        ("codex", None, "go", False, ["codex", "go"]),
        ("codex", "s-1", "go", False, ["codex", "resume", "s-1", "go"]),
        ("codex", "s-1", None, False, ["codex", "resume", "s-1"]),
        ("codex", None, "go", True, ["codex", "exec", "--skip-git-repo-check", "go"]),
        ("codex", "s-1", "go", True, ["codex", "exec", "resume", "--skip-git-repo-check", "s-1", "go"]),
    ],
)
def test_the_table(harness: str, session, prompt, headless: bool, argv: list[str]) -> None:
    launch = new_launch(harness=harness, session_id=session)
    assert command_of(launch, "S", prompt=prompt, headless=headless) == tuple(argv)


@pytest.mark.parametrize("harness", ["claude-code", "codex"])
@pytest.mark.parametrize("headless", [False, True])
def test_a_startup_is_the_first_input_whatever_else_was_to_be_said(harness: str, headless: bool) -> None:
    made = startup("--not an option, ünïcode\nand a second line".encode())
    argv = command_of(new_launch(harness=harness, startup=made), "S", prompt="go", headless=headless)
    assert "go" not in argv
    (said,) = [word for word in argv if "fencepost-startup" in word]
    assert said == tagged_input(made)
    found = startup_of(said)
    assert found is not None
    assert (found.startup_delivery_id, found.payload, found.payload_sha256) == (ID, made.payload, made.payload_sha256)


def test_a_later_session_goes_before_the_launchs() -> None:
    argv = command_of(new_launch(session_id="old"), "S", session_id="new")
    assert argv == ("claude", "--resume", "new", "--settings", "S")


def test_only_codex_is_told_of_its_settings_by_a_variable() -> None:
    assert environment_of(new_launch(harness="codex"), "S") == {"CODEX_HOME": "S"}
    assert environment_of(new_launch(), "S") == {}
    assert environment_of(new_launch(harness="of somebody's own"), "S") == {}


@pytest.mark.parametrize("session", ["-c", "--dangerously-skip-permissions"])
@pytest.mark.parametrize("harness", ["claude-code", "codex"])
def test_a_session_id_is_no_option(harness: str, session: str) -> None:
    for more in ({"session_id": session}, {}):
        launch = new_launch(harness=harness, session_id=None if more else session)
        with pytest.raises(ValueError, match="read as an option"):
            command_of(launch, "S", prompt="go", **more)


@pytest.mark.parametrize("prompt", ["-p", "a\0b"])
def test_what_no_command_line_can_carry_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match="first input"):
        command_of(new_launch(), "S", prompt=prompt)


def test_a_payload_with_a_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        command_of(new_launch(startup=startup(b"a\0b")), "S")


def test_a_headless_harness_needs_something_to_do() -> None:
    with pytest.raises(ValueError, match="needs a first input"):
        command_of(new_launch(), "S", headless=True)


def test_an_unknown_harness_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="known are claude-code, codex"):
        command_of(new_launch(harness="opencode"), "S")
