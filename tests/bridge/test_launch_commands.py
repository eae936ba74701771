"""How harnesses are started: one row each, and what no command line can carry."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from launch_world import new_launch

from fencepost.supervisor import StartupDelivery
from fencepost.supervisor.bridge.launchers import command_of, environment_of
from fencepost.supervisor.bridge.launchers.commands import Session, check_options, harness_of, stdin_of
from fencepost.supervisor.bridge.startup_tag import startup_of, tagged_input

TRUSTED = ("--dangerously-bypass-hook-trust", "--disable", "plugins")
INDEX = ("-c", 'sqlite_home="S"')
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
        ("codex", None, None, False, ["codex", *TRUSTED, "--no-daemon", *INDEX]),
        ("codex", None, "go", False, ["codex", *TRUSTED, "--no-daemon", *INDEX, "--", "go"]),
        ("codex", "s-1", "go", False, ["codex", *TRUSTED, "--no-daemon", *INDEX, "resume", "s-1", "--", "go"]),
        ("codex", "s-1", None, False, ["codex", *TRUSTED, "--no-daemon", *INDEX, "resume", "s-1"]),
        ("codex", None, "review", True, ["codex", "exec", *TRUSTED, "--skip-git-repo-check", *INDEX, "--", "review"]),
        (
            "codex",
            "s-1",
            "go",
            True,
            ["codex", "exec", *TRUSTED, "--skip-git-repo-check", *INDEX, "resume", "s-1", "--", "go"],
        ),
        ("opencode", None, None, False, ["opencode", "--mini"]),
        ("opencode", None, "go", False, ["opencode", "--mini", "--prompt", "go"]),
        ("opencode", "s-1", "go", False, ["opencode", "--mini", "--session", "s-1", "--prompt", "go"]),
        ("opencode", "s-1", None, False, ["opencode", "--mini", "--session", "s-1"]),
        ("opencode", None, "go", True, ["opencode", "run"]),
        ("opencode", "s-1", "go", True, ["opencode", "run", "--session", "s-1"]),
    ],
)
def test_the_table(harness: str, session, prompt, headless: bool, argv: list[str]) -> None:
    launch = new_launch(harness=harness, session_id=session)
    assert command_of(launch, "S", prompt=prompt, headless=headless) == tuple(argv)


@pytest.mark.parametrize("harness", ["claude-code", "codex", "opencode"])
@pytest.mark.parametrize("headless", [False, True])
def test_a_startup_is_the_first_input_whatever_else_was_to_be_said(harness: str, headless: bool) -> None:
    made = startup("--not an option, ünïcode\nand a second line".encode())
    launch = new_launch(harness=harness, startup=made)
    argv = command_of(launch, "S", prompt="go", headless=headless)
    stdin = stdin_of(launch, prompt="go", headless=headless)
    assert (stdin is not None) == (harness == "opencode" and headless)
    assert "go" not in argv
    (said,) = [word for word in (*argv, (stdin or b"").decode()) if "fencepost-startup" in word]
    assert said == tagged_input(made)
    found = startup_of(said)
    assert found is not None
    assert (found.startup_delivery_id, found.payload, found.payload_sha256) == (ID, made.payload, made.payload_sha256)


def test_a_later_session_goes_before_the_launchs() -> None:
    argv = command_of(new_launch(session_id="old"), "S", session=Session("new"))
    assert argv == ("claude", "--resume", "new", "--settings", "S")


def test_a_new_conversation_is_given_its_id() -> None:
    argv = command_of(new_launch(session_id="old"), "S", session=Session("new", is_new=True))
    assert argv == ("claude", "--session-id", "new", "--settings", "S")


@pytest.mark.parametrize(
    ("harness", "headless", "argv"),
    [
        ("claude-code", False, ["/opt/x", "go", "--resume", "s", "--settings", "S", "--model", "m"]),
        ("claude-code", True, ["/opt/x", "-p", "go", "--resume", "s", "--settings", "S", "--model", "m"]),
        ("codex", False, ["/opt/x", *TRUSTED, "--no-daemon", *INDEX, "--model", "m", "resume", "s", "--", "go"]),
        (
            "codex",
            True,
            ["/opt/x", "exec", *TRUSTED, "--skip-git-repo-check", *INDEX, "--model", "m", "resume", "s", "--", "go"],
        ),
    ],
)
def test_a_program_of_ones_own_keeps_its_options(harness: str, headless: bool, argv: list[str]) -> None:
    launch = new_launch(harness=harness, session_id="s")
    assert command_of(launch, "S", program=["/opt/x", "--model", "m"], prompt="go", headless=headless) == tuple(argv)


@pytest.mark.parametrize("option", ["--settings", "--settings=x", "-p", "--resume", "-c", "--session-id=1", "do this"])
def test_what_a_start_adds_and_a_prompt_are_no_options_of_a_user(option: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(option))):
        check_options("claude-code", [option])


PROMPT = "Fix the failing test"


@pytest.mark.parametrize(
    ("harness", "options"),
    [
        ("claude-code", [PROMPT, "--verbose"]),
        ("claude-code", ["--verbose", PROMPT]),
        ("claude-code", ["--model", "opus", PROMPT]),
        ("claude-code", ["--model=opus", PROMPT]),
        ("claude-code", ["--debug", "api", PROMPT]),
        ("claude-code", ["-n", "--verbose", PROMPT]),  # which is its name then
        ("claude-code", ["--allowedTools", "Bash", "Edit", "--verbose", PROMPT]),
        ("claude-code", ["--verbose", "--", PROMPT]),
        ("claude-code", ["--allowedTools", "Bash", "--", PROMPT]),
        ("claude-code", ["--new-option", PROMPT]),
        ("claude-code", ["--new-option=x", PROMPT]),
        ("codex", ["-m", "o3", PROMPT]),
        ("codex", ["-mo3", PROMPT]),
        ("codex", ["--search", PROMPT]),
        ("codex", ["-m", "o3", "exec", PROMPT]),
        ("codex", ["--search", "-"]),
        ("codex", ["-z", PROMPT]),
    ],
)
def test_a_prompt_is_found_wherever_it_stands(harness: str, options: list[str]) -> None:
    with pytest.raises(ValueError, match=r"is given with --prompt|give a first prompt with --prompt"):
        check_options(harness, options)


def test_where_it_is_not_known_what_an_option_takes_the_user_is_told_how_to_say_it() -> None:
    with pytest.raises(ValueError, match=r"whether '--new-option' takes a value, .*'x' may be .*\(--new-option=…\)"):
        check_options("claude-code", ["--new-option", "x"])
    check_options("claude-code", ["--new-option=x", "--newer", "-Zx"])


@pytest.mark.parametrize(("harness", "options"), [("codex", ["--search", "-m"]), ("claude-code", ["--model"])])
def test_an_option_without_its_value_would_take_what_a_start_adds(harness: str, options: list[str]) -> None:
    with pytest.raises(ValueError, match="lacks its value"):
        check_options(harness, options)


@pytest.mark.parametrize(
    "option", ["--safe-mode", "--bare", "--bg", "--background", "--tmux=classic", "-w", "-pc", "-rx"]
)
def test_nobody_turns_the_hooks_of_claude_code_off_or_runs_it_elsewhere(option: str) -> None:
    with pytest.raises(ValueError, match="leave it out"):
        check_options("claude-code", ["--model", "m", option])


@pytest.mark.parametrize(
    "options",
    [
        ["--cd=/elsewhere"],
        ["--ephemeral"],
        ["-i", "picture.png"],
        ["--image=picture.png"],
        [TRUSTED[0]],
        ["--enable", "plugins"],
        ["-c", "features.plugins=true"],
        ["--model", "m", "--remote", "ws://x"],
        ["--disable", "hooks"],
        ["--disable=codex_hooks"],
        ["-c", "features.hooks=false"],
        ["-c", "sqlite_home='/elsewhere'"],
        ["-c", 'features."hooks" = false'],
        ["-cfeatures={x=1,hooks=false}"],
        ["-c", 'hooks.PreToolUse=[{hooks=[{type="command", command="true"}]}]'],
    ],
)
def test_nobody_turns_the_hooks_of_codex_off_or_runs_it_elsewhere(options: list[str]) -> None:
    with pytest.raises(ValueError, match="leave it out"):
        check_options("codex", options)


@pytest.mark.parametrize(
    "option",
    [
        *("--pure", "--pure=false", "--pure.x=1", "--no-pure", "--attach=http://x", "--dir", "--command", "--file=x"),
        *("--session=x", "-sx", "-c", "--prompt", "--fork", "-i", "run"),
    ],
)
def test_nobody_leaves_the_plugins_of_opencode_out_or_runs_it_elsewhere(option: str) -> None:
    options = [option] if option == "run" else ["--model", "m", option]
    with pytest.raises(ValueError, match=r"leave it out|is no option"):
        check_options("opencode", options)


def test_other_options_are_a_users_own() -> None:
    check_options("opencode", ["--model", "pure/m", "--agent", "plan", "--auto"])
    check_options("claude-code", ["--model", "opus", "-d", "--resumes-nothing", "--allowedTools", "Bash"])
    check_options(
        "claude-code",
        [*("--tools", "Bash", "Edit", "--append-system-prompt", "Be brief. --verbose", "--debug", "api,hooks")],
    )
    check_options("claude-code", ["--add-dir", "/a", "/b", "--permission-mode", "plan", "--prompt-suggestions", "-d"])
    check_options("codex", [])
    check_options("codex", ["-s", "read-only", "-a", "never", "--search", "-o", "/tmp/last", "--color=never"])
    check_options(
        "codex", ["-c", 'model_reasoning_effort="high"', "--add-dir", "/srv/webhooks", "--add-dir", "/a/hooks"]
    )


@pytest.mark.parametrize(
    ("program", "harness"),
    [("claude", "claude-code"), ("/usr/bin/codex", "codex"), ("bash", None), ("claude/x", None)],
)
def test_a_harness_is_known_by_its_programs_name(program: str, harness: str | None) -> None:
    assert harness_of(program) == harness


def test_what_reads_its_first_input_is_given_the_prompt_as_it_is() -> None:
    launch = new_launch(harness="opencode")
    assert stdin_of(launch, prompt='say "ü"\n', headless=True) == 'say "ü"\n'.encode()
    assert stdin_of(launch, prompt="go") is None
    assert stdin_of(new_launch(), prompt="go", headless=True) is None
    with pytest.raises(ValueError, match="NUL"):
        stdin_of(launch, prompt="a\0b", headless=True)


def test_opencode_is_told_of_a_plugin_beside_the_users_and_not_to_leave_plugins_out() -> None:
    made = environment_of(new_launch(harness="opencode"), "/a b/plugin.js")
    assert json.loads(made.pop("OPENCODE_CONFIG_CONTENT")) == {"plugin": ["file:///a%20b/plugin.js"]}
    assert made == {"OPENCODE_PURE": "0"}


def test_only_codex_is_told_of_its_settings_by_a_variable_of_its_own() -> None:
    assert environment_of(new_launch(harness="codex"), "S") == {"CODEX_HOME": "S"}
    assert environment_of(new_launch(), "S") == {}
    assert environment_of(new_launch(harness="of somebody's own"), "S") == {}


@pytest.mark.parametrize("session", ["-c", "--dangerously-skip-permissions"])
@pytest.mark.parametrize("harness", ["claude-code", "codex", "opencode"])
def test_a_session_id_is_no_option(harness: str, session: str) -> None:
    for more in ({"session": Session(session)}, {}):
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
    with pytest.raises(ValueError, match="known are claude-code, codex, opencode"):
        command_of(new_launch(harness="pi"), "S")
