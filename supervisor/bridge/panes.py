"""What runs in each pane, kept over restarts of the bridge: the program, where, and which conversation it has.

A pane's process is replaced by the runtime at moments of its own, also right after the bridge was started again; then
nobody is there to say what to start.  So it is written down before the first start.

The file is private to the user: an environment may hold keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any, Final

from attrs import Attribute, asdict, evolve, field, frozen
from attrs.validators import instance_of, optional

from fencepost.supervisor import InvalidIdentifier
from fencepost.supervisor.bridge.escaped import error_told
from fencepost.supervisor.bridge.launchers.commands import ARGUMENT_BYTES_MAX
from fencepost.supervisor.bridge.private_files import read_private, replace_private

__all__ = ["Channel", "PaneBook", "PaneSpec", "Restart", "Terminal"]

_VERSION: Final = 1
ARGUMENTS_MAX: Final = 1024
TEXT_BYTES_MAX: Final = 1024 * 1024
"""Of all arguments together, and of the whole environment."""


class Terminal(StrEnum):
    """Where a pane's process runs."""

    TMUX = "tmux"
    NONE = "none"
    """Without a terminal; what it prints goes to a file."""


class Channel(StrEnum):
    """Whether the pane's agent has the channel program (docs/channel.md)."""

    NONE = "none"
    TOOLS = "tools"
    """It can send messages, and ask how far they got."""
    EVENTS = "events"
    """Messages to it are pushed into its harness as well."""


class Restart(StrEnum):
    """What becomes of a pane whose process ended by itself."""

    OWED = "owed"
    """It is started again if an intent is owed to its agent, who would otherwise not learn what moved."""
    ALWAYS = "always"
    NEVER = "never"


def _id(name: str, value: object) -> str:
    """The value, as an id.  Raises `InvalidIdentifier`, a ValueError."""
    if isinstance(value, str) and 1 <= len(value) <= 256 and value.isascii() and value.isprintable():
        return value
    raise InvalidIdentifier(name, value)


def _tuple(words: Iterable[str]) -> tuple[str, ...]:
    if isinstance(words, str):
        raise TypeError("a text is no list of words")
    return tuple(words)


def _optional_id(_instance: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None:
        _id(attribute.name, value)


def _words(_instance: object, attribute: Attribute[Any], value: tuple[str, ...]) -> None:
    if not value or not value[0] or len(value) > ARGUMENTS_MAX:
        raise ValueError(f"{attribute.name} must be a program and at most {ARGUMENTS_MAX - 1} arguments")
    _texts(attribute.name, value)


def _variables(_instance: object, attribute: Attribute[Any], value: Mapping[str, str]) -> None:
    for name in value:
        if not name or "=" in name:
            raise ValueError(f"{attribute.name}: {name!r:.100} is no name of a variable")
    _texts(attribute.name, tuple(name + "=" + text for name, text in value.items()))


def _texts(name: str, texts: tuple[str, ...]) -> None:
    if any("\0" in text for text in texts):
        raise ValueError(f"{name} must hold no NUL: nothing that is started can be given one")
    sizes = [len(text.encode("utf-8", "surrogateescape")) for text in texts]
    if max(sizes, default=0) > ARGUMENT_BYTES_MAX:
        raise ValueError(
            f"{name} has one of {max(sizes)} bytes, and nothing can be started with more than {ARGUMENT_BYTES_MAX}"
        )
    if sum(sizes) > TEXT_BYTES_MAX:
        raise ValueError(f"{name} has {sum(sizes)} bytes, and at most {TEXT_BYTES_MAX} are kept")


def _absolute(_instance: object, attribute: Attribute[Any], value: str) -> None:
    if not value.startswith("/") or "\0" in value:
        raise ValueError(f"{attribute.name} must be an absolute path, not {value!r:.200}")


@frozen(kw_only=True)
class PaneSpec:
    """What is started in a pane; `argv` is the program with the user's own options, without what a start adds.

    `environment` is the process's whole environment but for what the bridge adds (docs/launchers.md).  `prompt` is a
    first input that was not given yet.  `session_id` is the harness's conversation, once it is known; `version` is the
    one the program had when its proofs were last judged.  `wanted`: it is to have a process, since it was started and
    neither ended by the operator nor left as it was when it ended by itself.
    """

    argv: tuple[str, ...] = field(converter=_tuple, validator=_words)
    cwd: str = field(validator=_absolute)
    environment: Mapping[str, str] = field(validator=_variables, repr=False)
    harness: str = field(validator=lambda _instance, attribute, value: _id(attribute.name, value))
    terminal: Terminal = field(default=Terminal.TMUX, converter=Terminal)
    restart: Restart = field(default=Restart.OWED, converter=Restart)
    channel: Channel = field(default=Channel.NONE, converter=Channel)
    prompt: str | None = field(default=None, repr=False, validator=optional(instance_of(str)))
    session_id: str | None = field(default=None, validator=_optional_id)
    version: str | None = field(default=None, validator=optional(instance_of(str)))
    wanted: bool = field(default=False, validator=instance_of(bool))


class PaneBook:
    """The specs, in a file or only in memory.  Its methods may be called from any thread and block for a small file.

    Raises OSError if the file cannot be read and ValueError if it is damaged: what runs in a pane is not guessed.  A
    change that cannot be written raises OSError and has not happened, here as little as in the file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = Lock()
        self._specs: dict[str, PaneSpec] = {}
        if path is not None and path.exists():
            self._specs = _read(path)

    def __iter__(self) -> Iterator[str]:
        """The panes something was started in."""
        return iter(tuple(self._specs))

    def get(self, pane_id: str) -> PaneSpec | None:
        """What runs in the pane, or ran in it last."""
        return self._specs.get(pane_id)

    def wants(self, pane_id: str) -> bool:
        """Whether the pane is to have a process (`PaneSpec.wanted`)."""
        spec = self._specs.get(pane_id)
        return spec is not None and spec.wanted

    def has_prompt(self, pane_id: str) -> bool:
        """Whether the pane's next start has something to say."""
        spec = self._specs.get(pane_id)
        return spec is not None and spec.prompt is not None

    def specs(self) -> tuple[PaneSpec, ...]:
        """All of them."""
        return tuple(self._specs.values())

    def put(self, pane_id: str, spec: PaneSpec) -> None:
        """Write down what is started in the pane from now on.  Durable on return."""
        self.replace(_id("pane_id", pane_id), spec)

    def replace(self, pane_id: str, spec: PaneSpec | None) -> None:
        """Put back what was written down before; None: nothing was.  Durable on return."""
        with self._lock:
            others = {other: kept for other, kept in self._specs.items() if other != pane_id}
            self._keep(others if spec is None else {**others, pane_id: spec})

    def judged(self, pane_id: str, version: str) -> None:
        """The pane is about to be started, with what this version of the program proves.  Durable on return."""
        self._change(pane_id, lambda spec: evolve(spec, version=version, wanted=True))

    def unjudged(self, pane_id: str, before: PaneSpec) -> None:
        """It was not launched after all: what was there `before` is what its proofs are of.  Durable on return."""
        self._change(pane_id, lambda spec: evolve(spec, version=before.version, wanted=before.wanted))

    def unwanted(self, pane_id: str) -> None:
        """The pane stays without a process until somebody starts it.  Durable on return."""
        self._change(pane_id, lambda spec: evolve(spec, wanted=False))

    def learn_session(self, pane_id: str, session_id: str, *, instead_of: str | None) -> None:
        """A hook told which conversation the pane's process has, instead of the one it had.  Durable on return.

        Nothing is changed if another one was written down meanwhile: that is another process's.
        """

        def change(spec: PaneSpec) -> PaneSpec:
            return evolve(spec, session_id=session_id) if spec.session_id == instead_of else spec

        self._change(pane_id, change)

    def give_prompt(self, pane_id: str, prompt: str | None) -> None:
        """The next start says this first; None: nothing.  Durable on return."""
        self._change(pane_id, lambda spec: evolve(spec, prompt=prompt))

    def take_prompt(self, pane_id: str) -> str | None:
        """The prompt that is still to be given, for the last time: from now on it counts as given.  Durable on return.

        It is taken before the process starts.  A start that fails then loses it, visibly; a prompt given twice would
        have the agent do its work twice.
        """
        spec = self._specs.get(pane_id)
        if spec is None or spec.prompt is None:
            return None
        self._change(pane_id, lambda spec: evolve(spec, prompt=None))
        return spec.prompt

    def _change(self, pane_id: str, change: Callable[[PaneSpec], PaneSpec]) -> None:
        with self._lock:
            old = self._specs.get(pane_id)
            if old is None or (new := change(old)) == old:
                return
            self._keep({**self._specs, pane_id: new})

    def _keep(self, specs: dict[str, PaneSpec]) -> None:
        """Write first, believe then: what is not on the disk would be another program after a restart."""
        if self._path is not None:
            panes = {pane_id: asdict(spec) for pane_id, spec in specs.items()}
            replace_private(self._path, json.dumps({"version": _VERSION, "panes": panes}))
        self._specs = specs


def _read(path: Path) -> dict[str, PaneSpec]:
    try:
        whole = json.loads(read_private(path))
        if whole["version"] != _VERSION:
            raise ValueError(f"version {whole['version']!r}")
        return {_id("pane_id", pane_id): PaneSpec(**spec) for pane_id, spec in whole["panes"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error_told(error)}; move it away, and start the panes again") from error
