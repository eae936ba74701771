"""What a hook costs the call that waits for it: as a process, and over a connection that is open.

The bridge, its panes and their hooks are processes as in earnest: the bridge's own listener proves each pane by its
process, the real adapter finds the call in a transcript of real size, and the pane admits it.  Each figure has its
floor beside it, in turns, in the same processes:

    a hook process         the same interpreter, with the same options, that reads its input and prints nothing
    a question of a hook   a constant answer on the same stack: hypercorn, h11 and trio (hook_server.py)

All panes ask at the same time, each one call after the other; the batch is admitted, so the pane writes nothing.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
from attrs import frozen
from figures import Aim, Run, percentile
from lives import new_id

from fencepost.supervisor.bridge.hook_settings import HookCommand

HERE: Final = Path(__file__).resolve().parent
FLAGS: Final = ["-I", "-S"]
IDLE: Final = "import os\nwhile os.read(0, 65536): pass"
PATIENT: Final = HookCommand(deadline_seconds=600)
"""64 interpreters at once may take longer than a hook is given; then its own denial would be measured."""
TRANSCRIPT_BYTES: Final = 1024 * 1024
"""A session of some hours; the adapter looks at the last quarter."""
ASKED: Final = Aim(1_000, 2_300, "µs", at_most=True)


def measure_hooks(run: Run) -> None:
    """Measure (k) and (l)."""
    for panes in (1, 64):
        with bridge(run, panes) as there:
            run.report.heading(f"(k) hook processes, {_panes(panes)}, from the start to the decision")
            processes(run, there, f"hook_process{panes}")
            run.report.heading(f"(l) questions of hooks over open connections, {_panes(panes)}")
            questions(run, there, f"hook_asked{panes}")


def _panes(panes: int) -> str:
    return "1 pane" if panes == 1 else f"{panes} panes at once"


def processes(run: Run, there: Bridge, key: str) -> None:
    """(k) The hook program, as the generated settings start it, beside a process that does nothing."""
    times = run.sizes.hook_processes if there.panes == 1 else run.sizes.hook_processes_many
    idle = there.told(lambda pane: _process(pane, [sys.executable, *FLAGS, "-c", IDLE], times))
    ours = there.told(lambda pane: _process(pane, shlex.split(PATIENT.line("claude-code", "PreToolUse")), times))
    side_by_side(run, there, key, "a process that does nothing", "a hook process", idle, ours)


def questions(run: Run, there: Bridge, key: str) -> None:
    """(l) The bridge beside a constant answer."""
    times = run.sizes.hook_questions if there.panes == 1 else run.sizes.hook_questions_many
    constant = there.told(lambda pane: asked(pane, there.folder / "constant.sock", times))
    ours = there.told(lambda pane: asked(pane, there.folder / "local.sock", times))
    p50, floors = side_by_side(run, there, key, "a constant answer on the same stack", "a question", constant, ours)
    if there.panes == 1:
        run.report.aim(key, p50, ASKED, floors)


def side_by_side(
    run: Run, there: Bridge, key: str, floor: str, subject: str, floor_lines: Sequence[str], lines: Sequence[str]
) -> tuple[float, list[float]]:
    """Both in turns; returns the subject's median in microseconds, and the floor's medians of each round."""
    floors: list[float] = []
    subjects: list[float] = []
    medians, ratios = [], []
    there.done(floor_lines)  # a warm-up, as is the next
    there.done(lines)
    for _ in run.rounds(f"{subject}, {_panes(there.panes)}"):
        one, other = there.done(floor_lines), there.done(lines)
        medians.append(median(one))
        ratios.append(median(other) / medians[-1])
        floors += one
        subjects += other
    report = run.report
    report.times(f"floor: {floor}", f"{key}_floor", floors)
    report.times(subject, key, subjects, median(ratios))
    added = (median(subjects) - median(floors)) * 1e6
    report.line("", f"{added:,.1f} µs", "more than the floor")
    report.keep(**{f"{key}_over_floor": median(ratios), f"{key}_added_us": added})
    report.steadiness(f"{key}_floor", medians)
    return percentile(subjects, 0.5) * 1e6, medians


# -- the processes -----------------------------------------------------------------------------------------------------


@frozen
class Pane:
    """One pane: its process, and what its hooks say and are told."""

    pane_id: str
    process: subprocess.Popen[str]
    event: dict[str, object]
    environment: dict[str, str]
    link: str
    """Its token for the fleet listener."""


@frozen
class Bridge:
    """A bridge that serves, and its panes."""

    folder: Path
    fleet: str
    """The URL of the fleet listener."""
    members: tuple[Pane, ...]

    @property
    def panes(self) -> int:
        return len(self.members)

    def told(self, line: Any) -> list[str]:
        """A line for each pane."""
        return [json.dumps(line(pane)) + "\n" for pane in self.members]

    def done(self, lines: Iterable[str]) -> list[float]:
        """Have the first panes do a line each at the same time; the seconds of all of them."""
        busy = list(zip(self.members, lines, strict=False))
        for pane, line in busy:
            assert pane.process.stdin is not None
            pane.process.stdin.write(line)
            pane.process.stdin.flush()
        return [sample for pane, _ in busy for sample in json.loads(_line_of(pane.process))]


def _process(pane: Pane, command: list[str], times: int) -> dict[str, object]:
    said = {"command": command, "environment": pane.environment}
    return {"do": "run", **said, "event": json.dumps(pane.event), "times": times}


def asked(pane: Pane, socket: Path, times: int) -> dict[str, object]:
    """What a pane's process is told, so that it asks about its call so many times."""
    return {"do": "ask", "socket": str(socket), "request": request_of(pane, pane.event), "times": times}


def request_of(pane: Pane, event: Mapping[str, object], link: str | None = None) -> str:
    """The request of a hook with this event; with a `link`, as the fleet listener takes it."""
    about = {"version": 1, "incarnation_id": pane.environment["FENCEPOST_INCARNATION"], "harness": "claude-code"}
    body = json.dumps({**about, "event": event, "wait_seconds": 12.0})
    lines = [f"POST /seats/{pane.pane_id}/hook HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    if link is not None:
        lines.append(f"Authorization: Bearer {link}")
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body])


@contextmanager
def bridge(run: Run, panes: int) -> Generator[Bridge]:
    """A bridge with so many panes, each with its process; all of them end with the block."""
    with ExitStack() as stack:
        # The store is where all are measured; the sockets are in a path that is short enough for one.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fencepost-bench-")))
        processes = {f"pane-{number}": _started(stack, [*FLAGS, str(HERE / "hook_pane.py")]) for number in range(panes)}
        listed = folder / "panes.json"
        listed.write_text(json.dumps({pane_id: process.pid for pane_id, process in processes.items()}))
        server = _started(stack, [str(HERE / "hook_server.py"), str(folder), str(listed), run.url()])
        said = json.loads(_line_of(server))
        members = [
            _pane(folder, pane_id, process, occupant)
            for (pane_id, process), occupant in zip(processes.items(), said["panes"].values(), strict=True)
        ]
        yield Bridge(folder, said["fleet"], tuple(members))


def _pane(folder: Path, pane_id: str, process: subprocess.Popen[str], occupant: Mapping[str, str]) -> Pane:
    environment = _environment(folder, pane_id, occupant["incarnation_id"])
    return Pane(pane_id, process, _event(folder, pane_id), environment, occupant["link"])


def _started(stack: ExitStack, arguments: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = stack.enter_context(subprocess.Popen([sys.executable, *arguments], stdin=pipe, stdout=pipe, text=True))
    stack.callback(process.kill)
    return process


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise click.ClickException(f"{process.args!r} ended with {process.wait()}")
    return line


def _environment(folder: Path, pane_id: str, incarnation_id: str) -> dict[str, str]:
    return {
        "FENCEPOST_PANE": pane_id,
        "FENCEPOST_INCARNATION": incarnation_id,
        "FENCEPOST_SOCKET": str(folder / "local.sock"),
    }


def _event(folder: Path, pane_id: str) -> dict[str, object]:
    """A call whose message is the last of a transcript of some size, as Claude Code writes both."""
    path = folder / "projects" / "-ws" / f"{pane_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        number = 0
        while file.tell() < TRANSCRIPT_BYTES:
            number += 1
            for line in _turn(f"{pane_id}-{number}"):
                file.write(json.dumps(line) + "\n")
    about = {"session_id": pane_id, "transcript_path": str(path), "cwd": "/ws", "prompt_id": f"{pane_id}-prompt"}
    call = {"tool_name": "Bash", "tool_input": {"command": "make test"}, "tool_use_id": f"{pane_id}-{number}-1"}
    return {**about, "hook_event_name": "PreToolUse", "permission_mode": "default", **call}


def _turn(name: str) -> list[dict[str, object]]:
    """A message of the model with two calls, a line a block, and what they gave back: some kilobytes each."""
    prompt = f"{name.rpartition('-')[0]}-prompt"
    text = {"type": "text", "text": "I will look at the tests and at what they need. " * 8}
    calls = [
        {"type": "tool_use", "id": f"{name}-{call}", "name": "Bash", "input": {"command": "make test " * 20}}
        for call in (1, 2)
    ]
    results = [
        {"type": "tool_result", "tool_use_id": f"{name}-{call}", "content": "all is well\n" * 300, "is_error": False}
        for call in (1, 2)
    ]
    about = {"id": f"msg-{name}", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use"}
    said = [_line("assistant", {**about, "content": [block]}) for block in (text, *calls)]
    given = [_line("user", {"role": "user", "content": [one]}, promptId=prompt) for one in results]
    return [*given, *said]


def _line(kind: str, message: dict[str, object], **more: object) -> dict[str, object]:
    common = {"parentUuid": None, "isSidechain": False, "type": kind, "message": message, "uuid": new_id()}
    return {**common, "sessionId": "s", "version": "2.1.197", "cwd": "/ws", "timestamp": time.time(), **more}
