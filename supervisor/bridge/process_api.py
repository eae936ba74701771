"""The operator's routes for a pane's process: `GET`, `PUT` and `DELETE operator/panes/{pane}/process`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from fencepost.supervisor import CorruptRecord, InvalidIdentifier, Launch, LaunchBlocked
from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.escaped import escaped
from fencepost.supervisor.bridge.failures import NotFound
from fencepost.supervisor.bridge.handlers import Answered, Call, Handler
from fencepost.supervisor.bridge.launchers import DamagedNote, LaunchError, TmuxError
from fencepost.supervisor.bridge.launchers.commands import HARNESSES, harness_of
from fencepost.supervisor.bridge.opencode_claims import report_of
from fencepost.supervisor.bridge.operator_handlers import failed, in_words
from fencepost.supervisor.bridge.pane_processes import Occupied, Owes, PaneProcesses
from fencepost.supervisor.bridge.panes import Channel, PaneSpec, Restart, Terminal
from fencepost.supervisor.bridge.processes import StillRunning

__all__ = ["HANDLERS"]

log: Final = logging.getLogger("fencepost.bridge")

_NOT_STARTED: Final = (Occupied, LaunchError, StillRunning, DamagedNote, CorruptRecord, OSError, ValueError)
"""Why a process cannot be started, whoever asks for it; of what else goes wrong the status is `failures`' matter."""


async def run_process(call: Call) -> Answered:
    """`PUT operator/panes/{pane}/process`: start what the body says, or what ran there if it has no argv."""
    processes, pane_id = _processes(call), call.parameters["pane"]
    members = wire.versioned(call.members)
    spec, replace = _spec(members), members.get("replace", False)
    if not isinstance(replace, bool):
        raise wire.Malformed("replace must be true or false")
    prompt = wire.optional_text(members, "prompt")

    async def start() -> Launch | Answered:
        try:
            if spec is not None:
                return await processes.run(pane_id, spec, replace=replace)
            return await processes.again(pane_id, prompt, replace=replace)
        except LaunchBlocked as blocked:
            return failed(409, blocked, intent_id=blocked.intent_id, state=blocked.state)
        except LookupError as error:
            raise NotFound(str(error)) from None
        except _NOT_STARTED as error:
            return failed(409, error)

    launch = await in_words(call, start)
    if not isinstance(launch, Launch):
        return launch
    attach = await _attach(processes, pane_id)
    return 200, {
        **await _reported(processes, pane_id, launch.harness, lives=True),
        "version": wire.VERSION,
        "pane": pane_id,
        "incarnation_id": launch.incarnation_id,
        "epoch": launch.epoch,
        "startup_delivery_id": None if launch.startup is None else launch.startup.startup_delivery_id,
        "prompt_kept": _keeps_prompt(processes, pane_id),
        "attach": attach,
    }


async def look_at_process(call: Call) -> Answered:
    """`GET operator/panes/{pane}/process`: what runs in the pane, and how a person looks at it."""
    processes, pane_id = _processes(call), call.parameters["pane"]
    spec = processes.book.get(pane_id)
    if spec is None:
        raise NotFound("nothing was started in this pane yet: name a program")
    living = (await processes.launcher.processes()).get(pane_id)
    attach = await _attach(processes, pane_id)
    return 200, {
        **await _reported(processes, pane_id, spec.harness, lives=living is not None),
        "version": wire.VERSION,
        "pane": pane_id,
        "argv": list(spec.argv),
        "cwd": spec.cwd,
        "harness": spec.harness,
        "terminal": spec.terminal,
        "restart": spec.restart,
        "channel": spec.channel,
        "session_id": spec.session_id,
        "prompt_kept": spec.prompt is not None,
        "pid": None if living is None else living.pid,
        "incarnation_id": None if living is None else living.incarnation_id,
        "attach": attach,
    }


async def end_process(call: Call) -> Answered:
    """`DELETE operator/panes/{pane}/process`: retire, then stop; nothing is started in its place."""
    processes, pane_id = _processes(call), call.parameters["pane"]
    wish = wire.query(call.query, "forget").get("forget", "false")
    if wish not in {"true", "false"}:
        raise wire.Malformed("forget must be true or false")
    forget = wish == "true"

    async def end() -> bool | Answered:
        try:
            return await processes.end(pane_id, forget=forget)
        except (StillRunning, DamagedNote, OSError, Owes) as error:
            return failed(409, error)

    ended = await in_words(call, end)
    if not isinstance(ended, bool):
        return ended
    return 200, {"version": wire.VERSION, "pane": pane_id, "ended": ended, "forgotten": forget}


def _keeps_prompt(processes: PaneProcesses, pane_id: str) -> bool:
    """Whether a first prompt was not said yet, and is kept for the next start."""
    spec = processes.book.get(pane_id)
    return spec is not None and spec.prompt is not None


async def _reported(processes: PaneProcesses, pane_id: str, harness: str, *, lives: bool) -> dict[str, object]:
    """What an OpenCode pane is reported to be, and the claim for which `ready` is refused; both null for others.

    A row that cannot be read may be such a claim: it is none that can be named.
    """
    try:
        claim = await processes.claim(pane_id, harness)
    except CorruptRecord as damage:
        log.warning("pane %r: %s", pane_id, ascii(str(damage)))
        return {"report": "uncertain", "claim": None}
    told = None if claim is None else {"delivery_id": claim.delivery_id, "session_id": claim.session_id}
    return {"report": report_of(harness, lives=lives, claim=claim), "claim": told}


async def _attach(processes: PaneProcesses, pane_id: str) -> list[str] | None:
    """How a person looks at the pane; None also where tmux cannot tell, which says nothing about the process."""
    try:
        attach = await processes.launcher.attach_to(pane_id)
    except TmuxError as error:
        log.warning("pane %r: %s", pane_id, ascii(str(error)))
        return None
    return None if attach is None else list(attach)


def _processes(call: Call) -> PaneProcesses:
    if call.bridge.processes is None:
        raise NotFound("this bridge starts no processes")
    return call.bridge.processes


def _spec(members: wire.Members) -> PaneSpec | None:
    """What is to be started; None: what the pane had.  Raises `Malformed`, told to the operator with what is wrong."""
    argv = members.get("argv")
    if argv is None:
        return None
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise wire.Malformed("argv must be a list of texts, the program first")
    harness = wire.optional_text(members, "harness") or harness_of(argv[0])
    if harness is None:
        names = ", ".join(HARNESSES)
        raise wire.Malformed(
            f"its name does not tell which harness {escaped(argv[0][:200])} is: name it as harness (--harness): {names}"
        )
    cwd, environment = wire.optional_text(members, "cwd"), members.get("environment", {})
    if cwd is None or not isinstance(environment, Mapping):
        raise wire.Malformed("cwd is required, and environment is an object of texts")
    if not all(isinstance(value, str) for value in environment.values()):
        raise wire.Malformed("environment is an object of texts")
    try:
        return PaneSpec(
            argv=tuple(argv),
            cwd=cwd,
            environment=dict(environment),
            harness=harness,
            terminal=Terminal(wire.optional_text(members, "terminal") or Terminal.TMUX),
            restart=Restart(wire.optional_text(members, "restart") or Restart.OWED),
            channel=Channel(wire.optional_text(members, "channel") or Channel.NONE),
            prompt=wire.optional_text(members, "prompt"),
            session_id=wire.optional_text(members, "session_id"),
        )
    except InvalidIdentifier as error:
        raise wire.Malformed(f"{error.field} must be printable ASCII of 1 to 256 characters") from None
    except ValueError as error:
        raise wire.Malformed(str(error)) from None


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler for handler in (run_process, look_at_process, end_process)
}
