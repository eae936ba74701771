"""How known harnesses are started and resumed: one row each, as seen by running them (docs/launchers.md).

Pure.  A first input is part of the command line, never typed.  One argument may have 128 KiB on Linux; a longer payload
fails the start, visibly, and is not cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from attrs import field, frozen

from fencepost.supervisor import Launch
from fencepost.supervisor.bridge.startup_tag import tagged_input

__all__ = [
    "HARNESSES",
    "HarnessCommand",
    "Session",
    "check_options",
    "check_prompt",
    "command_of",
    "environment_of",
    "harness_of",
    "stdin_of",
]


ARGUMENT_BYTES_MAX: Final = 128 * 1024 - 1
"""What Linux allows for one argument, and for one variable with its name, with the NUL behind it."""


@frozen
class Session:
    """A conversation of the harness: one to go on with, or a new one that is given this id."""

    session_id: str
    is_new: bool = False


@frozen
class Said:
    """What a command line is made of beside the program and the user's own options."""

    session: Session | None
    settings: str
    prompt: str | None


class Takes(StrEnum):
    """What an option takes of the arguments behind it."""

    NOTHING = "nothing"
    ONE = "one"
    MAYBE_ONE = "maybe one"
    """The next, unless that is an option."""
    ALL = "all"
    """Each, up to the next option."""
    UNKNOWN = "unknown"


@frozen
class HarnessCommand:
    """One harness: its argv for (program with its options, what is said), in a terminal and without one."""

    program: str
    interactive: Callable[[str, tuple[str, ...], Said], tuple[str, ...]]
    headless: Callable[[str, tuple[str, ...], Said], tuple[str, ...]]
    environment: Callable[[str], Mapping[str, str]] = lambda _settings: {}
    """What its environment needs to have, so that it finds its settings."""
    headless_input: bool = False
    """Whether it takes its first input from its standard input, when it has no terminal, and not as an argument."""
    names_sessions: bool = False
    """Whether a new conversation can be given its id."""
    ours: frozenset[str] = frozenset()
    """Options that a start adds itself or that would undo one, so that a user may not give them."""
    options: Mapping[str, Takes] = field(factory=dict[str, Takes])
    """What is known of its other options: behind one that takes nothing stands a prompt."""
    undoing: re.Pattern[str] | None = None
    """What undoes a start wherever it stands among the user's options, in the values of some too."""


def _claude(program: str, options: tuple[str, ...], said: Said) -> tuple[str, ...]:
    prompt = () if said.prompt is None else (said.prompt,)
    return (program, *prompt, *_claude_session(said.session), "--settings", said.settings, *options)


def _claude_headless(program: str, options: tuple[str, ...], said: Said) -> tuple[str, ...]:
    return (program, "-p", *_claude(program, options, said)[1:])


def _claude_session(session: Session | None) -> tuple[str, ...]:
    if session is None:
        return ()
    return ("--session-id" if session.is_new else "--resume", session.session_id)


_TRUSTED: Final = ("--dangerously-bypass-hook-trust", "--disable", "plugins")
"""Without the first Codex runs no hook, and says nothing.  With it, it runs every hook it finds: the home holds none
but ours (`hook_settings`), and plugins, which may bring some, are off."""

_OWN: Final = "--no-daemon"
"""In a terminal Codex may hand its work to a server of the user's; then its hooks would not be the pane's processes."""


def _codex(program: str, options: tuple[str, ...], said: Said) -> tuple[str, ...]:
    return (program, *_TRUSTED, _OWN, *_codex_index(said), *options, *_codex_end(said))


def _codex_headless(program: str, options: tuple[str, ...], said: Said) -> tuple[str, ...]:
    return (program, "exec", *_TRUSTED, "--skip-git-repo-check", *_codex_index(said), *options, *_codex_end(said))


def _codex_index(said: Said) -> tuple[str, ...]:
    """Codex notes in an index where a conversation lies, by a path through this incarnation's home.

    In an index that outlives the home, as a user may have configured it, it would not be found again.
    """
    return ("-c", f"sqlite_home={json.dumps(said.settings, ensure_ascii=False)}")


def _codex_end(said: Said) -> tuple[str, ...]:
    """A prompt may be one word, and that a subcommand's: behind `--` it is none."""
    resume = () if said.session is None else ("resume", said.session.session_id)
    return (*resume, *(() if said.prompt is None else ("--", said.prompt)))


def _opencode(program: str, options: tuple[str, ...], said: Said) -> tuple[str, ...]:
    """Its full interface silently ignores a prompt that is given together with a session; the minimal one takes it."""
    prompt = () if said.prompt is None else ("--prompt", said.prompt)
    return (program, "--mini", *options, *_opencode_session(said.session), *prompt)


def _opencode_headless(program: str, options: tuple[str, ...], said: Said) -> tuple[str, ...]:
    """A prompt among its arguments would reach the model between quotation marks."""
    return (program, "run", *options, *_opencode_session(said.session))


def _opencode_session(session: Session | None) -> tuple[str, ...]:
    return () if session is None else ("--session", session.session_id)


def _opencode_environment(settings: str) -> Mapping[str, str]:
    """Our plugin beside the user's; `OPENCODE_PURE` in the user's environment would turn all of them off."""
    return {"OPENCODE_CONFIG_CONTENT": json.dumps({"plugin": [Path(settings).as_uri()]}), "OPENCODE_PURE": "0"}


def _options(**names: str) -> Mapping[str, Takes]:
    """A table of options, by what they take (the name of a member of `Takes`): words of its names."""
    return MappingProxyType({name: Takes[takes] for takes, words in names.items() for name in words.split()})


_CLAUDE_OPTIONS: Final = _options(
    NOTHING="""--allow-dangerously-skip-permissions --ax-screen-reader --brief --chrome --dangerously-skip-permissions
        --disable-slash-commands --exclude-dynamic-system-prompt-sections --ide --include-hook-events
        --include-partial-messages --mcp-debug --no-chrome --replay-user-messages --strict-mcp-config --verbose""",
    ONE="""--advisor --agent --agents --append-system-prompt --append-system-prompt-file --debug-file --effort
        --fallback-model --input-format --json-schema --max-budget-usd --max-thinking-tokens --max-turns --model -n
        --name --output-format --permission-mode --permission-prompt-tool --plugin-dir --plugin-url
        --remote-control-session-name-prefix --setting-sources --system-prompt --system-prompt-file --thinking""",
    MAYBE_ONE="-d --debug --prompt-suggestions --remote-control",
    ALL="""--add-dir --allowed-tools --allowedTools --betas --channels --dangerously-load-development-channels
        --disallowed-tools --disallowedTools --file --mcp-config --tools""",
)
"""As `claude --help` of 2.1.197 has them, and some that it does not show."""
_CODEX_OPTIONS: Final = _options(
    NOTHING="""--approve-for-me --dangerously-bypass-approvals-and-sandbox --ignore-rules --json --no-alt-screen --oss
        --search --strict-config --trust""",
    ONE="""-a --add-dir --ask-for-approval -c --color --config --cyber-access-program --disable --enable
        --local-provider -m --model -o --output-last-message --output-schema --remote-auth-token-env -s --sandbox
        --thread-source""",
)
"""As `codex --help` and `codex exec --help` of 0.171.0 have them."""
_OPENCODE_OPTIONS: Final = _options(
    NOTHING="--auto --mdns --no-replay --print-logs --share --thinking",
    ONE="""--agent --format --hostname --log-level --mdns-domain -m --model -p --password --port --replay-limit --title
        -u --username --variant""",
    ALL="--cors",
)
"""As `opencode --help` and `opencode run --help` of 1.18.34 have them."""


HARNESSES: Final[Mapping[str, HarnessCommand]] = MappingProxyType(
    {
        "claude-code": HarnessCommand(
            "claude",
            _claude,
            _claude_headless,
            names_sessions=True,
            ours=frozenset(
                {
                    *("-p", "--print", "-c", "--continue", "-r", "--resume", "--session-id", "--fork-session"),
                    *("--settings", "--bare", "--safe-mode", "--no-session-persistence"),  # the middle two: no hooks
                    *("--bg", "--background", "--tmux", "-w", "--worktree"),  # the pane's process would be another
                    "--from-pr",
                }
            ),
            options=_CLAUDE_OPTIONS,
        ),
        "codex": HarnessCommand(
            "codex",
            _codex,
            _codex_headless,
            environment=lambda settings: {"CODEX_HOME": settings},
            ours=frozenset(
                {
                    *(_TRUSTED[0], _OWN, "--skip-git-repo-check", "-C", "--cd", "--worktree", "--remote", "--last"),
                    *("--ephemeral", "--ignore-user-config", "-p", "--profile"),
                    *("-i", "--image"),  # it takes what a start puts behind it, and is of a prompt, not of each start
                }
            ),
            options=_CODEX_OPTIONS,
            undoing=re.compile(r"""(?:^|[\s.,={"'])(?:hooks|codex_hooks|plugins|sqlite_home)(?:$|[\s.,=}"'])"""),
        ),
        "opencode": HarnessCommand(
            "opencode",
            _opencode,
            _opencode_headless,
            environment=_opencode_environment,
            headless_input=True,
            ours=frozenset(
                {
                    *("-c", "--continue", "-s", "--session", "--fork", "--prompt", "--mini"),
                    *("-i", "--interactive", "--command", "-f", "--file"),  # would be said again at each start
                    *("--attach", "--dir"),  # the calls would run elsewhere
                }
            ),
            options=_OPENCODE_OPTIONS,
            undoing=re.compile(r"^--?(?:no-)?pure(?:$|[.=])"),  # it is how OpenCode leaves all plugins out
        ),
    }
)
"""By the harness name that launches carry."""


def check_options(harness: str, options: Sequence[str]) -> None:
    """Raise ValueError, naming it, for an option that a start adds itself, and for what is, or may be, a prompt.

    What a user gives is given at each start again: a prompt among it would have the agent do its work twice.
    """
    row = _known(harness)
    for option in options:
        if row.undoing is not None and row.undoing.search(option):
            raise ValueError(f"{option!r:.100} sets what is fencepost's to set; leave it out")
        name = option.partition("=")[0]
        if name in row.ours or name[:2] in row.ours:  # the latter: a short option with more of them, or with its value
            raise ValueError(
                f"{option!r:.100} is given at each start by fencepost itself, or undoes what is; leave it out"
            )
    _check_for_prompts(row, options)


def _check_for_prompts(row: HarnessCommand, options: Sequence[str]) -> None:
    option, takes = "", Takes.NOTHING
    for word in options:
        if takes is Takes.ONE:
            takes = Takes.NOTHING
        elif word.startswith("-") and word not in {"-", "--"}:
            has_value = "=" in word if word.startswith("--") else len(word) > len("-x")
            option, takes = word, Takes.NOTHING if has_value else row.options.get(word, Takes.UNKNOWN)
        elif word == "--" or takes is Takes.NOTHING:
            raise ValueError(
                f"{word!r:.100} is no option; a first prompt is given with --prompt, since arguments are given again "
                "at each start"
            )
        elif takes is Takes.UNKNOWN:
            joined = f"{option}=…" if option.startswith("--") else f"{option}…"
            raise ValueError(
                f"it is not known whether {option!r:.100} takes a value, so {word!r:.100} may be a prompt: join a "
                f"value to it ({joined:.100}), and give a first prompt with --prompt"
            )
        elif takes is Takes.MAYBE_ONE:
            takes = Takes.NOTHING
    if takes is Takes.ONE:
        raise ValueError(f"{option!r:.100} lacks its value")


def check_prompt(prompt: str | None) -> None:
    """Raise ValueError for a first input that no command line can carry."""
    if prompt is None:
        return
    if prompt.startswith("-") or "\0" in prompt:
        raise ValueError("a first input may neither begin with '-' nor hold a NUL: no command line can carry it")
    try:
        size = len(prompt.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise ValueError("a first input may hold no lone surrogate: no command line can carry it") from None
    if size > ARGUMENT_BYTES_MAX:
        raise ValueError(f"a first input may have {ARGUMENT_BYTES_MAX} bytes: no command line can carry more")


def command_of(
    launch: Launch,
    settings_path: str,
    *,
    program: Sequence[str] = (),
    prompt: str | None = None,
    session: Session | None = None,
    headless: bool = False,
) -> tuple[str, ...]:
    """Return the argv that starts the harness of `launch`.

    `program` is the program with options of the user's own; none: the harness's by its usual name.  A startup payload,
    tagged, is the first input and goes before `prompt`, which is then left out.  `session` is the conversation, where
    the bridge knows more than `launch.session_id`, which is gone on with otherwise.

    Raises ValueError for an unknown harness, for a session id that would be read as an option, for a first input that
    no command line can carry, and for a headless start with nothing to say.
    """
    harness = _known(launch.harness)
    if session is None and launch.session_id is not None:
        session = Session(launch.session_id)
    if session is not None and session.session_id.startswith("-"):
        raise ValueError(f"a session id that begins with '-' would be read as an option: {session.session_id!r}")
    prompt = _first_input(launch, prompt)
    if headless and prompt is None:
        raise ValueError("a headless harness needs a first input, a prompt or a startup payload")
    first, *options = program or (harness.program,)
    make = harness.headless if headless else harness.interactive
    return make(first, tuple(options), Said(session, settings_path, prompt))


def stdin_of(launch: Launch, *, prompt: str | None = None, headless: bool = False) -> bytes | None:
    """What the harness of `launch` reads from its standard input: its first input, where it is given there; else None.

    Raises as `command_of`.
    """
    if not (headless and _known(launch.harness).headless_input):
        return None
    said = _first_input(launch, prompt)
    return None if said is None else said.encode("utf-8", "surrogateescape")


def _first_input(launch: Launch, prompt: str | None) -> str | None:
    """A startup payload, tagged, before any prompt.  Raises ValueError for one that cannot be given."""
    said = prompt if launch.startup is None else tagged_input(launch.startup)
    check_prompt(said)
    return said


def harness_of(program: str) -> str | None:
    """The harness that a program of this name is, or None."""
    name = program.rpartition("/")[2]
    return next((harness for harness, row in HARNESSES.items() if row.program == name), None)


def _known(harness: str) -> HarnessCommand:
    row = HARNESSES.get(harness)
    if row is None:
        raise ValueError(f"no command is known for harness {harness!r:.100}; known are {', '.join(HARNESSES)}")
    return row


def environment_of(launch: Launch, settings_path: str) -> dict[str, str]:
    """Return what the harness of `launch` needs in its environment to find its settings."""
    harness = HARNESSES.get(launch.harness)
    return {} if harness is None else dict(harness.environment(settings_path))
