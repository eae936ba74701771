"""How known harnesses are started and resumed: one row each, as seen by running them (docs/launchers.md).

Pure.  A first input is part of the command line, never typed.  One argument may have 128 KiB on Linux; a longer payload
fails the start, visibly, and is not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from attrs import frozen

from fencepost.supervisor import Launch
from fencepost.supervisor.bridge.startup_tag import tagged_input

__all__ = ["HARNESSES", "HarnessCommand", "command_of", "environment_of"]


@frozen
class HarnessCommand:
    """One harness: its argv for (session or None, settings path, prompt or None), in a terminal and without one."""

    interactive: Callable[[str | None, str, str | None], tuple[str, ...]]
    headless: Callable[[str | None, str, str], tuple[str, ...]]
    settings_variable: str | None = None
    """The variable that names its settings, where no argument does."""


def _optional(*words: str | None) -> tuple[str, ...]:
    """The words, or nothing if one of them is absent."""
    present = tuple(word for word in words if word is not None)
    return present if len(present) == len(words) else ()


def _claude(session: str | None, settings: str, prompt: str | None) -> tuple[str, ...]:
    return ("claude", *_optional(prompt), *_optional("--resume", session), "--settings", settings)


def _claude_headless(session: str | None, settings: str, prompt: str) -> tuple[str, ...]:
    return ("claude", "-p", prompt, *_optional("--resume", session), "--settings", settings)


def _codex(session: str | None, _settings: str, prompt: str | None) -> tuple[str, ...]:
    return ("codex", *_optional("resume", session), *_optional(prompt))


def _codex_headless(session: str | None, _settings: str, prompt: str) -> tuple[str, ...]:
    if session is None:
        return ("codex", "exec", "--skip-git-repo-check", prompt)
    return ("codex", "exec", "resume", "--skip-git-repo-check", session, prompt)


HARNESSES: Final[Mapping[str, HarnessCommand]] = MappingProxyType(
    {
        "claude-code": HarnessCommand(_claude, _claude_headless),
        "codex": HarnessCommand(_codex, _codex_headless, settings_variable="CODEX_HOME"),
    }
)
"""By the harness name that launches carry."""


def command_of(
    launch: Launch,
    settings_path: str,
    *,
    prompt: str | None = None,
    session_id: str | None = None,
    headless: bool = False,
) -> tuple[str, ...]:
    """Return the argv that starts the harness of `launch`.

    A startup payload, tagged, is its first input and goes before `prompt`, which is then left out.  `session_id` is the
    conversation to resume where the bridge knows a later one than `launch.session_id`.

    Raises ValueError for an unknown harness, for a session id that would be read as an option, for a first input with a
    NUL, which no command line can carry, and for a headless start with nothing to say.
    """
    harness = HARNESSES.get(launch.harness)
    if harness is None:
        raise ValueError(f"no command is known for harness {launch.harness!r}; known are {', '.join(HARNESSES)}")
    session = session_id or launch.session_id
    if session is not None and session.startswith("-"):
        raise ValueError(f"a session id that begins with '-' would be read as an option: {session!r}")
    if launch.startup is not None:
        prompt = tagged_input(launch.startup)
    if prompt is not None and (prompt.startswith("-") or "\0" in prompt):
        raise ValueError("a first input may neither begin with '-' nor hold a NUL: no command line can carry it")
    if not headless:
        return harness.interactive(session, settings_path, prompt)
    if prompt is None:
        raise ValueError("a headless harness needs a first input, a prompt or a startup payload")
    return harness.headless(session, settings_path, prompt)


def environment_of(launch: Launch, settings_path: str) -> dict[str, str]:
    """Return what the harness of `launch` needs in its environment to find its settings."""
    harness = HARNESSES.get(launch.harness)
    if harness is None or harness.settings_variable is None:
        return {}
    return {harness.settings_variable: settings_path}
