"""What runs in each pane, kept over restarts of the bridge: the program, where, and which conversation it has.

A pane's process is replaced by the runtime at moments of its own, also right after the bridge was started again; then
nobody is there to say what to start.  So it is written down before the first start, in two steps:

    intend      what is to be started stands beside the entry, which goes on telling of the process that is there
    launched    the runtime has committed the launch, so its predecessor is gone: the intention becomes the entry
    call_off    it has not, and will not: the entry stays

Between the two only the runtime knows whether it was launched; a bridge that died there leaves both, and the next one
asks the store (`settle`).

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

__all__ = ["Channel", "Intended", "PaneBook", "PaneSpec", "Restart", "Terminal"]

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
    first input that was not given yet: the next start that need not tell what moved says it.  `session_id` is the
    harness's conversation, once it is known; `version` is the one the program had when its proofs were last judged.
    `wanted`: it is to have a process, since it was started and neither ended by the operator nor left as it was when it
    ended by itself.
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


def _count(_instance: object, attribute: Attribute[Any], value: object) -> None:
    if type(value) is not int or value < 0:
        raise ValueError(f"{attribute.name} counts from 0, not {value!r:.100}")


@frozen(kw_only=True)
class Intended:
    """A start that was asked for, and of which it is not known yet that it was launched.

    `spec` is what the pane has from its launch on; `session_id` is the conversation that it is to be launched with, and
    `epoch` the number of the last launch before it.  A successor that the runtime itself happens to launch in between,
    with the same harness and conversation, counts as this launch: from then on it runs what `spec` says.
    """

    spec: PaneSpec
    session_id: str | None = field(default=None, validator=_optional_id)
    epoch: int = field(validator=_count)

    def is_launched_by(self, harness: str, session_id: str | None, epoch: int) -> bool:
        """Whether this is the launch, by what the runtime keeps of it."""
        return epoch > self.epoch and (harness, session_id) == (self.spec.harness, self.session_id)


class PaneBook:
    """The specs, in a file or only in memory.  Its methods may be called from any thread.

    What changes it blocks for a small file, and is called with `durably` on a loop that serves; the others never wait.

    Raises OSError if the file cannot be read and ValueError if it is damaged: what runs in a pane is not guessed.  A
    change that cannot be written raises OSError and has not happened, here as little as in the file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = Lock()
        self._specs: dict[str, PaneSpec] = {}
        self._intended: dict[str, Intended] = {}
        if path is not None and path.exists():
            self._specs, self._intended = _read(path)

    def __iter__(self) -> Iterator[str]:
        """The panes something was started in."""
        return iter(tuple(self._specs))

    def get(self, pane_id: str) -> PaneSpec | None:
        """What runs in the pane, or ran in it last."""
        return self._specs.get(pane_id)

    def next(self, pane_id: str) -> PaneSpec | None:
        """What is about to run in the pane; else what runs in it, or ran in it last."""
        intended = self._intended.get(pane_id)
        return self._specs.get(pane_id) if intended is None else intended.spec

    def wants(self, pane_id: str) -> bool:
        """Whether the pane is to have a process (`PaneSpec.wanted`)."""
        spec = self._specs.get(pane_id)
        return spec is not None and spec.wanted

    def was_ended(self, pane_id: str) -> bool:
        """Whether the pane is to stay without a process, whatever the runtime had decided before."""
        spec = self._specs.get(pane_id)
        return spec is not None and not spec.wanted

    def specs(self) -> tuple[PaneSpec, ...]:
        """All of them."""
        return tuple(self._specs.values())

    def put(self, pane_id: str, spec: PaneSpec) -> None:
        """Write down what runs in the pane from now on; nothing else is intended there any more.  Durable on return."""
        _id("pane_id", pane_id)
        with self._lock:
            self._keep({**self._specs, pane_id: spec}, _without(self._intended, pane_id))

    # -- a start, from its wish to its launch --

    def intended(self, pane_id: str) -> Intended | None:
        """What is about to be started in the pane, if anything is."""
        return self._intended.get(pane_id)

    def intend(self, pane_id: str, spec: PaneSpec, epoch: int) -> None:
        """Write down what is about to be started, after the pane's launch number `epoch` (0: none was).

        Durable on return.  What runs in the pane is told as before, until it is `launched`.
        """
        new = Intended(spec=spec, session_id=spec.session_id, epoch=epoch)
        _id("pane_id", pane_id)
        with self._lock:
            self._keep(self._specs, {**self._intended, pane_id: new})

    def launched(self, pane_id: str, harness: str, session_id: str | None, epoch: int) -> bool:
        """The runtime has launched this in the pane.  Whether that is what was intended; it is what runs there then.

        Durable on return.
        """
        with self._lock:  # a hook may be telling of another conversation, which the entry must keep
            intended = self._intended.get(pane_id)
            if intended is None or not intended.is_launched_by(harness, session_id, epoch):
                return False
            self._keep({**self._specs, pane_id: intended.spec}, _without(self._intended, pane_id))
            return True

    def call_off(self, pane_id: str) -> bool:
        """What was intended is not launched; False if nothing is intended, or it was launched.  Durable on return."""
        with self._lock:
            if pane_id not in self._intended:
                return False
            self._keep(self._specs, _without(self._intended, pane_id))
            return True

    def settle(self, latest: Mapping[str, tuple[str, str | None, int]]) -> None:
        """Finish or call off what an earlier life of the bridge had intended.  Durable on return.

        `latest` is the last launch of each pane in the store: its harness, its conversation and its number.
        """
        for pane_id in tuple(self._intended):
            if pane_id not in latest or not self.launched(pane_id, *latest[pane_id]):
                self.call_off(pane_id)

    def forget(self, pane_id: str) -> bool:
        """Keep nothing of the pane any more, its environment least of all; False if nothing was.  Durable on return."""
        with self._lock:
            is_known = pane_id in self._specs or pane_id in self._intended
            if is_known:
                specs = {other: spec for other, spec in self._specs.items() if other != pane_id}
                self._keep(specs, _without(self._intended, pane_id))
            return is_known

    # -- what becomes known of it --

    def wanted(self, pane_id: str) -> None:
        """The pane may be given a process again, by the runtime too.  Durable on return."""
        self._change(pane_id, lambda spec: evolve(spec, wanted=True))

    def unwanted(self, pane_id: str) -> None:
        """The pane stays without a process until somebody starts it, and nothing is intended.  Durable on return."""
        with self._lock:
            spec, is_intended = self._specs.get(pane_id), pane_id in self._intended
            left = {} if spec is None else {pane_id: evolve(spec, wanted=False)}
            if is_intended or (spec is not None and spec.wanted):
                self._keep({**self._specs, **left}, _without(self._intended, pane_id))

    def learn_session(self, pane_id: str, session_id: str, *, instead_of: str | None) -> None:
        """A hook told which conversation the pane's process has, instead of the one it had.  Durable on return.

        Nothing is changed if another one was written down meanwhile: that is another process's.  What is about to be
        started in the same conversation goes on with this one.
        """

        def change(spec: PaneSpec) -> PaneSpec:
            return evolve(spec, session_id=session_id) if spec.session_id == instead_of else spec

        with self._lock:
            old, next_ = self._specs.get(pane_id), self._intended.get(pane_id)
            if old is None or (new := change(old)) == old:
                return
            intended = {} if next_ is None else {pane_id: evolve(next_, spec=change(next_.spec))}
            self._keep({**self._specs, pane_id: new}, {**self._intended, **intended})

    def take_back_prompt(self, pane_id: str, prompt: str | None, before: str | None) -> None:
        """A start failed that was to say `prompt` first: what was to be said before is.  Durable on return.

        Nothing is changed if it was taken: then it counts as given.
        """
        if prompt is not None:
            self._change(pane_id, lambda spec: evolve(spec, prompt=before) if spec.prompt == prompt else spec)

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
            self._keep({**self._specs, pane_id: new}, self._intended)

    def _keep(self, specs: dict[str, PaneSpec], intended: dict[str, Intended]) -> None:
        """Write first, believe then: what is not on the disk would be another program after a restart."""
        if self._path is not None:
            whole = {"version": json.dumps(_VERSION), "panes": _object(_texts_of(specs))}
            if intended:
                whole["intended"] = _object(_texts_of(intended))
            replace_private(self._path, _object(whole))
        self._specs, self._intended = specs, intended


def _texts_of(kept: Mapping[str, PaneSpec] | Mapping[str, Intended]) -> dict[str, str]:
    """Each pane's JSON, one at a time: no other thread runs while one text is made, and environments are large."""
    return {pane_id: json.dumps(asdict(one)) for pane_id, one in kept.items()}


def _object(texts: Mapping[str, str]) -> str:
    """A JSON object of members that are JSON already."""
    return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in texts.items()) + "}"


def _without(intended: Mapping[str, Intended], pane_id: str) -> dict[str, Intended]:
    return {other: kept for other, kept in intended.items() if other != pane_id}


def _intended(members: Mapping[str, Any]) -> Intended:
    whole: dict[str, Any] = {**members, "spec": PaneSpec(**members["spec"])}
    return Intended(**whole)


def _read(path: Path) -> tuple[dict[str, PaneSpec], dict[str, Intended]]:
    try:
        whole = json.loads(read_private(path))
        if whole["version"] != _VERSION:
            raise ValueError(f"version {whole['version']!r}")
        intended = {_id("pane_id", pane_id): _intended(one) for pane_id, one in whole.get("intended", {}).items()}
        return {_id("pane_id", pane_id): PaneSpec(**spec) for pane_id, spec in whole["panes"].items()}, intended
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error_told(error)}; move it away, and start the panes again") from error
