"""What a generated CODEX_HOME takes over from the user's own, and which hooks keep it from being made.

A pane's Codex runs in a home of its incarnation's own, because its hooks stand there.  What makes it the user's Codex
is brought along:

    config.toml                    copied, with our hooks behind it (`hook_settings.codex_config`)
    sessions, auth.json,           links to the user's own, also where there is nothing yet, so that a conversation is
    .credentials.json              found by the next incarnation, and a login or a renewed token is the user's
    thread-writer-locks            the same: Codex's own guard against two writers of one conversation
    AGENTS.md, prompts, rules, …   links, where they exist

A renewed token is the reason why a login is not copied: renewing ends the one it came from, so of two copies one is
soon worth nothing.  Codex 0.171.0 was seen to write through the link, and to resume a conversation behind it.

Codex is started with `--dangerously-bypass-hook-trust`, which makes it run every hook it finds, so nothing here may
bring another one: a hook of the user's or of the project's that nobody reviewed would run as if it had been.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

__all__ = [
    "OtherHooks",
    "configuration",
    "link_users_files",
    "refuse_hooks",
    "refuse_hooks_file",
    "refuse_hooks_of_project",
    "users_codex_home",
]

FOLDERS: Final = ("sessions", "thread-writer-locks")
ALWAYS: Final = ("auth.json", ".credentials.json")
IF_THERE: Final = ("AGENTS.md", "AGENTS.override.md", "agents", "prompts", "rules", "skills")
CONFIG_BYTES_MAX: Final = 1024 * 1024

_SWITCHES: Final = ("hooks", "codex_hooks")
"""The feature's names, as 0.171.0 takes them."""


_WHY: Final = (
    "and Codex would run them unreviewed beside ours; give the pane a CODEX_HOME, or the project a .codex, without any"
)


class OtherHooks(ValueError):  # noqa: N818 - as the errors of the mailbox
    """A configuration brings hooks of its own, or turns hooks off; nothing is started in it."""


def users_codex_home(environment: Mapping[str, str]) -> Path:
    """Return the home that Codex would use with this environment; a relative one is so to where Codex runs.

    Raises ValueError where the environment names none.
    """
    home, users = environment.get("CODEX_HOME"), environment.get("HOME")
    if not home and not users:
        raise ValueError("neither CODEX_HOME nor HOME says where the user's Codex keeps its files")
    return Path(home) if home else Path(str(users)) / ".codex"


def configuration(home: Path) -> str:
    """Return the text of the home's config.toml, empty where there is none.

    Raises `OtherHooks` if the home brings hooks, ValueError for a file that is no TOML, none of a reasonable size or
    none at all, OSError.
    """
    refuse_hooks_file(home)
    text = _read(home / "config.toml")
    refuse_hooks(_parsed(text, home / "config.toml"), str(home / "config.toml"))
    return text


def refuse_hooks_file(home: Path) -> None:
    """Raise `OtherHooks` if there is a hooks.json, whatever is in it."""
    if os.path.lexists(home / "hooks.json"):
        raise OtherHooks(f"{home / 'hooks.json'} declares hooks, {_WHY}")


def refuse_hooks(config: Mapping[str, Any], name: str) -> None:
    """Raise `OtherHooks` if a configuration declares hooks or switches the feature off, in a profile too."""
    profiles = config.get("profiles")
    for table in (config, *(profiles.values() if isinstance(profiles, dict) else ())):
        if not isinstance(table, dict):
            continue
        if "hooks" in table:
            raise OtherHooks(f"{name} declares hooks, {_WHY}")
        features = table.get("features")
        if isinstance(features, dict) and any(features.get(switch, True) is not True for switch in _SWITCHES):
            raise OtherHooks(f"{name} turns hooks off, and without them nothing supervises the pane")


def refuse_hooks_of_project(cwd: Path, base: str = "") -> None:
    """Raise `OtherHooks` if the project of `cwd` brings hooks; see `configuration` for what else.

    Codex runs them if the user trusts the project, which he may come to do while it runs.  It reads `.codex` in every
    folder from `cwd` up to the nearest with a marker, as the configuration `base` names them, else in `cwd` alone; so
    it was seen to do at 0.171.0.
    """
    cwd = cwd.resolve()  # a process knows its folder by no other name
    named = tomllib.loads(base).get("project_root_markers")
    markers = [name for name in named if isinstance(name, str)] if isinstance(named, list) else [".git"]
    folders: list[Path] = []
    for folder in (cwd, *cwd.parents):
        folders.append(folder)
        if any(os.path.lexists(folder / marker) for marker in markers):
            break
    else:
        folders = [cwd]
    for folder in folders:
        configuration(folder / ".codex")


def link_users_files(home: Path, users: Path) -> None:
    """Link what the generated `home` shares with the user's, which is made where there is none.  Raises OSError.

    Something that is there already and is no link stays: Codex put it there.
    """
    users.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in FOLDERS:
        (users / name).mkdir(mode=0o700, exist_ok=True)
    for name, target in _links(users):
        link = home / name
        if link.is_symlink():
            link.unlink()
        with suppress(FileExistsError):
            link.symlink_to(target)


def _links(users: Path) -> Iterator[tuple[str, Path]]:
    """Absolute, and free of links themselves, so that another process in another folder means the same files."""
    users = users.resolve()
    for name in (*FOLDERS, *ALWAYS):
        yield name, users / name
    for name in IF_THERE:
        if (users / name).exists():
            yield name, users / name


def _read(path: Path) -> str:
    """Read a file that may be anything: a project's is written by whoever writes the project."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is no file")
        content = file.read(CONFIG_BYTES_MAX + 1)
    if len(content) > CONFIG_BYTES_MAX:
        raise ValueError(f"{path} has more than {CONFIG_BYTES_MAX} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8: {error.reason}") from error


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from error
