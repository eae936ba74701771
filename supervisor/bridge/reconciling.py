"""Reconcilers of the reference bridge: a program of the user's, or a notice and nothing more.

The program
===========

One process an attempt, in the pane's folder, one JSON object a line each way:

    bridge ─▶ {"version": 1, "attempt": {"intent_id", "pane_id", "kind", "from_base", "to_base", "classification_op",
                                         "triggers", "resumed", "planned_op", "starting_op"}}
    program ─▶ {"plan": {"planned_op", "starting_op"}}            before it changes a file
    bridge ─▶ {"planned": true}                                   now that is durable, and it may
    program ─▶ {"reconciled": {"result_op", "workspace_commit", "payload",
                               "anchor": {"change_id", "commit_id", "op_id"}, "covers"?, "discovered"?}}
             | {"needs_recovery": {"reason", "bundle_path"?, "bundle_fingerprint"?, "details"?}}
             | {"diverged": {"reason", "details"?}}               and then it exits with 0

Whatever else it does (another line, another status, silence until the timeout) is no answer: the attempt failed, the
runtime tries again with `resumed` set, and after `Options.crashes_max` it leaves the intent to a human.

An attempt may outlive its bridge, which a machine's death does not even announce.  So it carries a mark in its
environment, and before another attempt at the same intent begins, whatever carries that mark is provably gone.  Two
attempts never change the same files at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import trio
from attrs import frozen

from fencepost.supervisor import (
    Anchor,
    AttemptView,
    BaseTransition,
    Diverged,
    NeedsRecovery,
    Reconciled,
)
from fencepost.supervisor.bridge.launchers.held import bridge_environment
from fencepost.supervisor.bridge.processes import INCARNATION_VARIABLE, stop_processes

__all__ = ["CommandReconciler", "NoAnswer", "Notice"]

T = TypeVar("T")

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A payload has 1 MiB at most, and JSON can spell a character of one byte with six."""
NO_FOLDER: Final = (
    "the bridge does not know in which folder this pane works, so nothing moves its files: start a program in it "
    "again, which is refused but tells the folder, then resolve"
)
_PART_BYTES: Final = 65_536
_STDERR_BYTES_MAX: Final = 4096
_GRACE_SECONDS: Final = 2.0
_LAST_WORDS_SECONDS: Final = 1.0


class NoAnswer(Exception):  # noqa: N818 - what it is
    """The program did not answer as it must; the message says how, with what it wrote to stderr."""


@frozen
class Notice:
    """Changes no file: somebody else moves the pane's files, and the agent is told that and what it must not trust.

    The result is what the transition names as its target.  For a bridge whose panes work on files that are moved
    before `detect` is called; so hooks take an intent for a barrier from then on (`hook`).
    """

    async def reconcile(self, attempt: AttemptView) -> Reconciled:
        """See `Reconciler.reconcile`."""
        intent = attempt.intent
        payload = (
            f"The files you work on have changed underneath you: their base moved from {intent.from_base} to "
            f"{intent.to_base}.\nWhat you read before may be out of date, and this tool did not run. Read again what "
            "you depend on, then decide anew what to do.\n"
        )
        anchor = Anchor(change_id=intent.to_base, commit_id=intent.to_base, op_id=intent.classification_op)
        return Reconciled(intent.classification_op, intent.to_base, payload.encode(), anchor)


@frozen
class CommandReconciler:
    """Runs a program for each attempt; see the module.  Runs on trio, needs Linux.

    `cwd_of` answers the folder of a pane, or None where it is not known: then the program is not run, since it would
    change the files of another place, and a person must look.  `timeout_seconds` is for a whole attempt.
    """

    argv: tuple[str, ...]
    cwd_of: Callable[[str], str | None]
    timeout_seconds: float = 600.0

    async def reconcile(self, attempt: AttemptView) -> Reconciled | NeedsRecovery | Diverged:
        """See `Reconciler.reconcile`.  Raises `NoAnswer`, OSError, `StillRunning`."""
        cwd = self.cwd_of(attempt.intent.pane_id)
        if cwd is None:
            return NeedsRecovery(NO_FOLDER)
        mark = f"reconcile:{attempt.intent.intent_id}"
        await _gone(mark)
        try:
            with trio.fail_after(self.timeout_seconds):
                return await self._run(attempt, mark, cwd)
        except trio.TooSlowError:
            raise NoAnswer(f"{self.argv[0]!r} took longer than {self.timeout_seconds:g} seconds") from None
        finally:
            with trio.CancelScope(shield=True):
                await _gone(mark)

    async def _run(self, attempt: AttemptView, mark: str, cwd: str) -> Reconciled | NeedsRecovery | Diverged:
        process = await trio.lowlevel.open_process(
            list(self.argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env={**bridge_environment(), "FENCEPOST_PANE": attempt.intent.pane_id, INCARNATION_VARIABLE: mark},
            start_new_session=True,
        )
        assert process.stdin is not None
        assert isinstance(process.stdout, trio.lowlevel.FdStream)
        assert process.stderr is not None
        said = bytearray()
        answer: Reconciled | NeedsRecovery | Diverged | None = None
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_the_end, process.stderr, said)
            try:
                talk = _Talk(attempt, process.stdin, process.stdout)
                answer = await talk.until_answered()
                await talk.until_ended(process)
            except Exception as error:  # noqa: BLE001 - raised outside the nursery, which would wrap it in a group
                failure = error
            finally:
                await _killed(process)
            if failure is not None:  # its last words are in the pipe; what it left running may hold that open
                nursery.cancel_scope.deadline = trio.current_time() + _LAST_WORDS_SECONDS
            else:
                nursery.cancel_scope.cancel()
        if failure is not None or answer is None:
            # Escaped: what it wrote may be in either.
            ended, last = str(failure).encode("unicode_escape").decode(), bytes(said).decode(errors="replace")
            raise NoAnswer(f"{self.argv[0]!r}: {ended}; on stderr: {last!a}") from failure
        return answer


async def _gone(mark: str) -> None:
    """Return when nothing of an attempt runs any more, be it of an earlier life of the bridge."""
    stop = partial(stop_processes, mark, None, grace_seconds=_GRACE_SECONDS, remember=lambda _found: None)
    await trio.to_thread.run_sync(stop)


async def _killed(process: trio.Process) -> None:
    """Return when the program has ended, with its process group if it had to be made to; also when cancelled."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()


async def _keep_the_end(stream: trio.abc.ReceiveStream, kept: bytearray) -> None:
    with suppress(trio.BrokenResourceError):
        async for part in stream:
            kept += part
            del kept[:-_STDERR_BYTES_MAX]


class _Talk:
    """The lines of one attempt."""

    def __init__(self, attempt: AttemptView, stdin: trio.abc.SendStream, stdout: trio.lowlevel.FdStream) -> None:
        self._attempt = attempt
        self._stdin = stdin
        self._stdout = stdout
        self._read = bytearray()

    async def until_answered(self) -> Reconciled | NeedsRecovery | Diverged:
        await self._say({"version": 1, "attempt": _told(self._attempt)})
        while True:
            match await self._line():
                case {"plan": {"planned_op": str(planned), "starting_op": str(starting)}}:
                    await self._attempt.plan(planned, starting)
                    await self._say({"planned": True})
                case {"reconciled": dict(members)}:
                    return _checked(_reconciled, members)
                case {"needs_recovery": dict(members)}:
                    return _checked(NeedsRecovery, members)
                case {"diverged": dict(members)}:
                    return _checked(Diverged, members)
                case other:
                    raise NoAnswer(f"no such line is known: {_shape(other)}")

    async def until_ended(self, process: trio.Process) -> None:
        """Return when the program has ended as it must.  One that says more after its answer has given none."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_the_rest)
            status = await process.wait()
            nursery.cancel_scope.cancel()
        # What it wrote last may not have been read yet.  What it left running may go on writing, so there is no end.
        with suppress(BlockingIOError):
            self._read += os.read(self._stdout.fileno(), _PART_BYTES)
        if status != 0:
            raise NoAnswer(f"it answered, and then ended with status {status}")
        if self._read.strip():
            raise NoAnswer(f"it wrote more after its answer: {len(self._read)} bytes at least")

    async def _hear_the_rest(self) -> None:
        with suppress(trio.BrokenResourceError):
            async for part in self._stdout:
                if len(self._read) <= _PART_BYTES:
                    self._read += part

    async def _say(self, members: Mapping[str, object]) -> None:
        try:
            await self._stdin.send_all(json.dumps(members).encode() + b"\n")
        except trio.BrokenResourceError:
            raise NoAnswer("it does not read what it is told") from None

    async def _line(self) -> object:
        while (end := self._read.find(b"\n")) < 0:
            if len(self._read) > LINE_BYTES_MAX:
                raise NoAnswer(f"it wrote a line of more than {LINE_BYTES_MAX} bytes")
            part = await self._stdout.receive_some(_PART_BYTES)
            if not part:
                raise NoAnswer("it ended without an answer")
            self._read += part
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise NoAnswer(f"it wrote a line of {len(line)} bytes that is no JSON: {error!s:.200}") from None


def _shape(line: object) -> str:
    """What a line is like, without what it says: a payload may be in it."""
    if not isinstance(line, dict):
        return f"it is a {type(line).__name__}, and no object"
    within = {name: type(value).__name__ for name, value in line.items()}
    return f"its members are {within!a:.200}"


_TOLD: Final = ("intent_id", "pane_id", "kind", "from_base", "to_base", "classification_op", "triggers")


def _told(attempt: AttemptView) -> dict[str, object]:
    members = {name: getattr(attempt.intent, name) for name in _TOLD}
    return {
        **members,
        "resumed": attempt.resumed,
        "planned_op": attempt.planned_op,
        "starting_op": attempt.starting_op,
    }


def _checked(make: Callable[..., T], members: Mapping[str, object]) -> T:
    try:
        return make(**members)
    except (TypeError, ValueError) as error:  # InvalidIdentifier is one
        raise NoAnswer(f"its answer is malformed: {error!s:.300}") from None


def _reconciled(
    result_op: str,
    workspace_commit: str,
    payload: str,
    anchor: Mapping[str, str],
    covers: Sequence[str] = (),
    discovered: Sequence[Mapping[str, Any]] = (),
) -> Reconciled:
    if not isinstance(payload, str) or not payload:
        raise TypeError("payload must be text, and some: it is what the agent is told")
    if isinstance(covers, str):
        raise TypeError("covers must be a list")  # and a text is a sequence, of its letters
    moved = tuple(BaseTransition(**one) for one in discovered)
    where = Anchor(**anchor)
    return Reconciled(result_op, workspace_commit, payload.encode(), where, covers=tuple(covers), discovered=moved)
