"""The built-in `bash` tool: one command, its output bounded, shown as it comes and saved now and then.

A snapshot is the last 2,000 lines or 50 KiB of the output, whichever is less; what does not fit is in a file that the
details name.  Live updates come at most every 100 ms.  A checkpoint is asked for at most every 2 s, and only if the
snapshot differs from the last one asked for; a change that found the two seconds not yet over is saved when they are,
so output that is followed by silence is not lost.  Output volume never speeds any of this up.

The command leads a process group of its own, and cancellation kills all of it.  The work is done on the runtime's own
loop, so it is the same under trio and asyncio.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

import trio
from attrs import define, field, frozen

from fencepost.actors.invocation import Invocation
from fencepost.actors.tool_messages import Tool, ToolResult

__all__ = ["BYTES_MAX", "CHECKPOINT_SECONDS", "LINES_MAX", "UPDATE_SECONDS", "bash_tool"]

UPDATE_SECONDS: Final = 0.1
CHECKPOINT_SECONDS: Final = 2.0
LINES_MAX: Final = 2_000
BYTES_MAX: Final = 50 * 1024
TERMINATE_SECONDS: Final = 0.5
"""How long a cancelled command may clean up before it is killed."""
DRAIN_SECONDS: Final = 0.1
"""How long output is still taken after the command's end, while something it left behind holds the pipe."""


def bash_tool(cwd: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None) -> Tool:
    """Return the tool `bash`: runs `command` in `cwd` with `env` (None: the bridge's own).

    Arguments: `command` (text), `timeout_seconds` (positive number or None).  The result is the output, standard error
    included; a status other than 0 and a timeout are errors that say so.  Details: `truncated`, `lines` and `bytes` of
    the whole output, `overflow_path`.
    """
    shell = _Shell(None if cwd is None else os.fspath(cwd), None if env is None else dict(env))
    return Tool("bash", shell.execute, validate=_validate)


def _validate(arguments: object) -> object:
    if not isinstance(arguments, dict) or not isinstance(arguments.get("command"), str):
        raise ValueError("bash needs the argument command, a text")  # noqa: TRY004 - the model reads it
    if "\0" in arguments["command"]:
        raise ValueError("command must not contain NUL")
    seconds = arguments.get("timeout_seconds")
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (number and seconds > 0):
        raise ValueError(f"timeout_seconds must be a positive number or null, not {seconds!r}")
    if unknown := sorted(arguments.keys() - {"command", "timeout_seconds"}):
        raise ValueError(f"bash has no argument {', '.join(unknown)}")
    return arguments


class _Capture:
    """The output so far: its end in memory, all of it in a file once it is too much."""

    def __init__(self) -> None:
        self.bytes = 0
        self._line_ends = 0
        self._tail = bytearray()
        self._file: BinaryIO | None = None
        self._lost: str | None = None
        """Why the file could not be kept; then there is none any more."""

    @property
    def lines(self) -> int:
        """How many lines there are, an unfinished last one included."""
        unfinished = self.bytes > 0 and not self._tail.endswith(b"\n")
        return self._line_ends + unfinished

    @property
    def truncated(self) -> bool:
        """Whether the snapshot is less than the whole."""
        return self.bytes > BYTES_MAX or self.lines > LINES_MAX

    def add(self, data: bytes) -> None:
        """Take more output."""
        self.bytes += len(data)
        self._line_ends += data.count(b"\n")
        self._tail += data
        if self._file is not None:
            with self._losable():
                self._file.write(data)
        elif self.truncated and self._lost is None:
            with self._losable():
                self._file = cast("BinaryIO", tempfile.NamedTemporaryFile(prefix="fencepost-bash-", delete=False))  # noqa: SIM115
                self._file.write(self._tail)
        if len(self._tail) > 4 * BYTES_MAX:
            del self._tail[: len(self._tail) - BYTES_MAX]

    @property
    def text(self) -> str:
        """The bounded snapshot."""
        tail = bytes(self._tail[-BYTES_MAX:])
        if self.bytes > BYTES_MAX:
            tail = tail[_cut_character(tail) :]
        lines = tail.split(b"\n")
        return b"\n".join(lines[-LINES_MAX - (not lines[-1]) :]).decode(errors="replace")

    def flush(self) -> None:
        """Let the file hold everything taken so far."""
        if self._file is not None:
            with self._losable():
                self._file.flush()

    def close(self) -> None:
        """Close the file; it stays."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    @contextmanager
    def _losable(self) -> Generator[None]:
        """A full disk costs the file and not the command: its end is still in memory, and the result says so."""
        try:
            yield
        except OSError as error:
            self._lost = error.strerror or str(error)
            self.close()
            lost, self._file = self._file, None
            if lost is not None:
                with suppress(OSError):
                    Path(lost.name).unlink()

    def result(self, note: str = "", *, is_error: bool = False) -> ToolResult:
        """The snapshot as a result, with what is to be said about it below."""
        self.flush()
        text, path = self.text, None if self._file is None else self._file.name
        if self.truncated:
            where = f"could not be kept: {self._lost}" if path is None else f"is in {path}"
            note = f"[Only the end is shown; the whole output {where}]" + (f"\n{note}" if note else "")
        if note:
            text += note if not text or text.endswith("\n") else f"\n{note}"
        details = {"truncated": self.truncated, "lines": self.lines, "bytes": self.bytes, "overflow_path": path}
        return ToolResult(text, details, is_error)


def _cut_character(tail: bytes) -> int:
    """Return how many bytes at the start are the rest of a UTF-8 character that was cut; it has at most three."""
    return next((index for index in range(3) if not 0x80 <= tail[index] < 0xC0), 3)


@define(eq=False)
class _Reporter:
    """Decides when a snapshot is shown, and when it is to be saved as well."""

    invocation: Invocation
    capture: _Capture
    changed: trio.Event = field(factory=trio.Event)
    _saved: tuple[int, str] = (0, "")
    _saved_at: float = field(factory=trio.current_time)

    def notice(self) -> None:
        """There is new output."""
        self.changed.set()

    async def run(self) -> None:
        """Report until cancelled."""
        self.invocation.update(self.capture.result())
        while True:
            await self._until_due()
            self._report()
            await trio.sleep(UPDATE_SECONDS)

    async def _until_due(self) -> None:
        """Wait for new output, or until a change that was only shown may be saved."""
        due = self._saved_at + CHECKPOINT_SECONDS if self._unsaved else math.inf
        with trio.move_on_at(due):
            await self.changed.wait()

    @property
    def _unsaved(self) -> bool:
        return self._saved[0] != self.capture.bytes and self._saved != (self.capture.bytes, self.capture.text)

    def _report(self) -> None:
        self.changed = trio.Event()
        now = trio.current_time()
        save = self._unsaved and now >= self._saved_at + CHECKPOINT_SECONDS
        if save:
            self._saved, self._saved_at = (self.capture.bytes, self.capture.text), now
        self.invocation.update(self.capture.result(), checkpoint=save)


@frozen
class _Shell:
    cwd: str | None
    env: dict[str, str] | None

    async def execute(self, arguments: Mapping[str, object], invocation: Invocation) -> ToolResult:
        """Run one command; see `bash_tool`."""
        seconds = arguments.get("timeout_seconds")
        timeout = math.inf if seconds is None else float(cast("float", seconds))
        return await invocation.run_inside(self._run, str(arguments["command"]), timeout, invocation)

    async def _run(self, command: str, timeout: float, invocation: Invocation) -> ToolResult:  # noqa: ASYNC109
        shell = shutil.which("bash") or "/bin/sh"
        process = await trio.lowlevel.open_process(
            [shell, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=self.cwd,
            env=self.env,
        )
        capture = _Capture()
        try:
            with trio.move_on_after(timeout) as limit:
                await _follow(process, capture, _Reporter(invocation, capture))
            if limit.cancelled_caught:
                await _kill_group(process)
                return capture.result(f"[Timed out after {timeout:g} seconds and was killed]", is_error=True)
            return capture.result(_verdict(process.returncode), is_error=process.returncode != 0)
        finally:
            if process.returncode is None:
                with trio.CancelScope(shield=True):
                    await _kill_group(process)
            capture.close()


async def _follow(process: trio.Process, capture: _Capture, reporter: _Reporter) -> None:
    """Take all output until the command ends, and report it."""
    assert process.stdout is not None  # it was asked for
    stdout = process.stdout

    async def read() -> None:
        async for data in stdout:
            capture.add(bytes(data))
            reporter.notice()
        finished.set()

    finished = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reporter.run)
        nursery.start_soon(read)
        await process.wait()
        with trio.move_on_after(DRAIN_SECONDS):
            await finished.wait()
        nursery.cancel_scope.cancel()
    await stdout.aclose()


async def _kill_group(process: trio.Process) -> None:
    """End the command and whatever it started, politely first."""
    _signal_group(process, signal.SIGTERM)
    with trio.move_on_after(TERMINATE_SECONDS):
        await process.wait()
    _signal_group(process, signal.SIGKILL)
    await process.wait()


def _signal_group(process: trio.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _verdict(status: int | None) -> str:
    if status is None or status == 0:
        return ""
    return f"[Killed by signal {-status}]" if status < 0 else f"[Exit status {status}]"
