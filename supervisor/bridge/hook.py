"""`fencepost-hook`: the program a harness runs for each hook event.  Standard library only, and one file.

    python -I -S hook.py --harness claude-code --event PreToolUse --deadline 15

Theory of operation
===================

A harness fails open: a hook that exits with an error, or too late, lets the tool call run.  So this program prints a
decision before its own deadline, whatever happens, and exits with 0.

    stdin ─▶ event ─▶ ask the bridge (a thread) ─▶ an answer: print it, flush, report a payload as delivered
                              │
                              └ none in time ─▶ the fallback ─▶ print a denial, or nothing
    a second thread waits for the deadline, prints a denial if nobody has spoken yet, and ends the process

*The fallback.*  Where the bridge does not answer, the store still says whether a barrier is up, and it is read, and
only read.  An unresolved intent is one: its files may have moved.  The call is denied, with the saved text if there is
one for this process.  So is every call if the process was replaced, or if the store cannot be read.  With no barrier
the call passes, and the bridge must learn of that before it decides about another call of that batch.

*Detected.*  An intent that is bound to nothing yet is a barrier too, unless the bridge has said that it moves the files
itself, and only once an intent is bound (`MOVED_WHEN_BOUND`).  It says so in a file and not in the environment of a
process, which may outlive that bridge and meet one under which files move before anybody is told.  Where nothing is
said they may have.

*The spool* is how it learns: one file a pane in a private folder, a line of JSON for each event nobody took, synced.
Its lock makes the fallback and the bridge's decisions exclude each other:

    here:    lock ── write the pass, sync ── read the barrier ── unlock ── let pass
                                                    └ there is one: take the pass back ── unlock ── deny
    bridge:  lock ── take in what passed ── decide, committed ── unlock

Whoever comes second sees what the first did: the bridge admits the batch that passed, or this program sees the barrier.
The pass is written before the barrier is read, because a program that is killed in between lets its call run.

Everything read from the socket or the store is bounded; nothing of it is printed but a decision.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported: every millisecond of the start is waited for by a model
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, NoReturn

__all__ = ["Event", "denial", "main", "open_spool", "spool_of", "try_lock"]

EVENT_BYTES_MAX = 32 * 1024 * 1024
ANSWER_BYTES_MAX = 16 * 1024 * 1024
BODY_BYTES_MAX = 256 * 1024
"""A longer event is sent without its bulk: what tools were given and gave back."""
SPOOL_LINE_MAX = 64 * 1024
DEADLINE_SECONDS = 15.0
WRITING_SECONDS = 20.0
"""How long after the deadline a slow reader is waited for; the harness waits ten seconds longer."""
MARGIN_SECONDS = 0.5
"""What the end of this process itself may take."""
CONNECT_AGAIN_SECONDS = 0.005
USAGE = """Usage: fencepost-hook --harness NAME --event NAME --deadline SECONDS < EVENT

Ask the bridge about one hook event of a harness, and print its decision.  `fencepost hook-settings` writes the settings
with which a harness runs it, in an environment with FENCEPOST_PANE, FENCEPOST_INCARNATION and FENCEPOST_SOCKET.  Where
no bridge answers, the store decides.  Exit status: 0, whatever happens.
"""
FALLBACK_SECONDS = 2.0
"""What of the deadline is kept for the fallback, at most a third of it."""

APPLICATION_ID = 0x46_4E_43_50
SCHEMA_VERSION = 1
SQLITE_SCHEME = "sqlite:///"

NO_ANSWER = "The supervisor gives no answer, so this tool did not run. Try again shortly."
NOT_ADMITTED = "The supervisor does not accept this process's hook, so this tool did not run. Stop; a person must look."
UNREADABLE = "The supervisor cannot make out this call, so it did not run. Where it is long or deeply nested, say less."
REPLACED = "This process has been replaced. Stop; nothing you do is recorded."
BARRIER = "The files are being brought up to date. Do not act on them; try again shortly."
NO_BARRIER_KNOWN = "The supervisor is away and whether files moved cannot be read here, so this tool did not run."

KEPT_OF_EVENT = (
    "hook_event_name", "session_id", "transcript_path", "prompt_id", "turn_id", "tool_use_id", "agent_id",
)  # fmt: skip
"""What an adapter needs to tell a call's turn and batch."""

SPOOLED_EVENTS = ("PreToolUse", "PostToolBatch")

RESOLVED = ("acknowledged", "superseded")
"""The states of an intent that is no barrier, whoever moves the files; `adapters.gate` asks the same."""
MOVED_WHEN_BOUND = "moved-when-bound"
"""The file in the spool's folder by which the bridge says that files move only for a bound intent."""

BRIDGE_REFUSED = range(400, 500)
WHO_ASKS_REFUSED = (401, 403, 404)
WHAT_IS_ASKED_REFUSED = (400, 413)


class NoAnswer(Exception):  # noqa: N818 - what it is
    """The bridge gave no answer that can be used."""


class Refused(Exception):  # noqa: N818 - what it is
    """The bridge is there and decides nothing; `told` is what a model is told of that."""

    def __init__(self, why: str, told: str) -> None:
        super().__init__(why)
        self.told = told


def refusal(status: int) -> str:
    """Return what a model is told of a refusal: a person must look only where it is the process that is refused."""
    if status in WHO_ASKS_REFUSED:
        return NOT_ADMITTED
    return UNREADABLE if status in WHAT_IS_ASKED_REFUSED else NO_ANSWER


def denial(reason: str) -> bytes:
    """Return what keeps a call from running; see `adapters.answers`, which this file must not import."""
    import json

    said = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    return json.dumps({"hookSpecificOutput": said}).encode()


FIXED_DENIAL = (
    b'{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny", '
    b'"permissionDecisionReason": "' + NO_ANSWER.encode() + b'"}}'
)


# -- the one who speaks --------------------------------------------------------------------------------------------


class Voice:
    """Stdout: whoever speaks first is the only one."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.gates_a_tool = True
        self.passing: tuple[int, int] | None = None
        """The spool and its length before this call was written there, as long as it may still be denied."""
        self._unspoken = _thread.allocate_lock()
        self._written = _thread.allocate_lock()
        self._written.acquire()

    def say(self, data: bytes, *, takes_back: bool = False) -> bool:
        """Write all of `data`, unless something was said before; on return the harness has it.

        `takes_back`: it denies a call whose pass may be written down, and takes that back.
        """
        if not self._unspoken.acquire(blocking=False):
            return False
        try:
            if takes_back:
                self.take_back()
            while data:
                try:
                    data = data[os.write(1, data) :]
                except BlockingIOError:
                    _wait_until_writable()
        finally:
            self._written.release()
        return True

    def watch(self) -> NoReturn:
        """Wait for the deadline, deny if nobody has spoken, and end the process.

        A harness that reads slowly gets to the end of what is being said to it: half a decision is none.  For one that
        never reads there is an end, whoever speaks.
        """
        time.sleep(max(0.0, self.deadline - time.monotonic()))
        try:
            try:
                _thread.start_new_thread(self._deny, ())
            except RuntimeError:  # no thread is left, so this one takes the risk
                self._deny()
            self._written.acquire(timeout=WRITING_SECONDS)
        finally:
            os._exit(0)

    def _deny(self) -> None:
        try:
            self.say(FIXED_DENIAL if self.gates_a_tool else b"", takes_back=True)
        except OSError as error:
            complain(error)

    def take_back(self) -> None:
        """The call does not pass: its batch would count as admitted, and a sibling would run."""
        passing = self.passing  # once: the other thread may say in between that nothing passes
        if passing is not None:
            try:
                os.ftruncate(*passing)
            except OSError as error:
                complain(error)

    def left(self, kept_back: float = 0.0) -> float:
        """Seconds until the deadline, less what is kept back."""
        return max(0.0, self.deadline - kept_back - time.monotonic())


def _wait_until_writable() -> None:
    """Wait until stdout takes more: whoever made the pipe may have made it one that nobody waits for."""
    import select

    select.select([], [1], [])


# -- what is asked ---------------------------------------------------------------------------------------------------


class Event:
    """One hook event of this process, and where it comes from."""

    def __init__(self, said: Mapping[str, Any], environment: Mapping[str, str], harness: str) -> None:
        self.said = said
        self.harness = harness
        self.pane = environment.get("FENCEPOST_PANE", "")
        self.incarnation = environment.get("FENCEPOST_INCARNATION", "")
        self.socket = environment.get("FENCEPOST_SOCKET", "")
        self.store = environment.get("FENCEPOST_STORE", "")
        beside = os.path.join(os.path.dirname(self.socket), "hook-spool") if self.socket else ""  # noqa: PTH118, PTH120
        self.spool = environment.get("FENCEPOST_SPOOL") or beside

    @property
    def name(self) -> str:
        """The kind of event, as the harness calls it."""
        name = self.said.get("hook_event_name")
        return name if isinstance(name, str) else ""

    def request(self, wait_seconds: float) -> bytes:
        """The body that asks the bridge about this event."""
        import json

        asked = {"version": 1, "incarnation_id": self.incarnation, "harness": self.harness}
        body = json.dumps({**asked, "event": self.said, "wait_seconds": wait_seconds})
        if len(body) > BODY_BYTES_MAX:
            body = json.dumps({**asked, "event": self.light(), "wait_seconds": wait_seconds})
        return body.encode()

    def light(self) -> dict[str, object]:
        """The event without its bulk."""
        bulk = {"tool_input", "tool_response", "last_assistant_message"}
        kept = {key: value for key, value in self.said.items() if key not in bulk}
        if "tool_calls" in kept:
            kept["tool_calls"] = self._calls()
        return kept

    def spooled(self) -> bytes:
        """The line that tells the bridge later.  Raises ValueError if it would be too long."""
        import json

        event = {key: self.said[key] for key in KEPT_OF_EVENT if key in self.said}
        if "tool_calls" in self.said:
            event["tool_calls"] = self._calls()
        line = json.dumps(
            {
                "version": 1,
                "incarnation_id": self.incarnation,
                "harness": self.harness,
                "at": time.time_ns(),
                "event": event,
            }
        )
        if len(line) > SPOOL_LINE_MAX:
            raise ValueError(f"an event of {len(line)} bytes is too long to be kept")
        return line.encode() + b"\n"

    def _calls(self) -> list[dict[str, object]]:
        calls = self.said["tool_calls"]
        if not isinstance(calls, list):
            return []
        return [{"tool_use_id": call.get("tool_use_id")} if isinstance(call, dict) else {} for call in calls]


def post(event: Event, body: bytes, seconds: float) -> dict[str, Any]:
    """Post `body` to the bridge and return its answer.

    Raises `Refused` for a refusal, `NoAnswer` for whatever else is no answer.
    """
    import json

    try:
        head, _, data = exchange(event.socket, request_of(event.pane, body), max(seconds, 0.05)).partition(b"\r\n\r\n")
        status = status_of(head, len(data))
        if status in BRIDGE_REFUSED:
            raise Refused(str(status), refusal(status))
        if status != 200:
            raise NoAnswer(f"status {status}")
        answer = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise NoAnswer(str(error)) from error
    if not isinstance(answer, dict) or answer.get("version") != 1:
        raise NoAnswer("it is not of version 1 of the wire")
    return answer


def request_of(pane: str, body: bytes) -> bytes:
    """The request, in HTTP/1.0: its answer comes in one piece and ends with the connection.

    By hand, because importing http.client takes longer than all the rest of this program.
    """
    path = "".join(chr(byte) if chr(byte) in UNRESERVED else f"%{byte:02X}" for byte in os.fsencode(pane))
    head = f"POST /seats/{path}/hook HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"


def exchange(path: str, request: bytes, seconds: float) -> bytes:
    """Send `request` over the unix socket at `path` and return all that comes back.  Raises OSError, ValueError."""
    import _socket  # the plain one: the wrapper around it takes as long to import as json does

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    give_up_at = time.monotonic() + seconds
    try:
        connection.settimeout(seconds)
        while True:
            try:
                connection.connect(path)
                break
            except BlockingIOError:  # others connect faster than they are let in; a timeout does not cover that
                if time.monotonic() >= give_up_at:
                    raise
                time.sleep(CONNECT_AGAIN_SECONDS)
        connection.sendall(request)
        parts: list[bytes] = []
        size = 0
        while part := connection.recv(1 << 18):
            parts.append(part)
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                raise ValueError("the answer is too long")
        return b"".join(parts)
    finally:
        connection.close()


def status_of(head: bytes, length: int) -> int:
    """Return an answer's status.  Raises ValueError if this is no head, or not of a body of that length."""
    first, *fields = head.split(b"\r\n")
    protocol, status = first.split(b" ", 2)[:2]
    if protocol not in {b"HTTP/1.0", b"HTTP/1.1"} or len(status) != 3:
        raise ValueError("it is no HTTP")
    said = [field.partition(b":")[2] for field in fields if field.lower().startswith(b"content-length:")]
    if len(said) != 1 or int(said[0]) != length:
        raise ValueError("the answer was cut off")  # the end of the connection alone would not show that
    return int(status)


def in_time(work: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Do `work` in a thread and wait at most so long, because a sender can be slow in more ways than a timeout sees."""
    done = _thread.allocate_lock()
    done.acquire()
    outcome: list[dict[str, Any] | Exception] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:  # noqa: BLE001 - told to the one who waits
            outcome.append(error)
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    if not done.acquire(timeout=seconds) or not outcome:
        raise NoAnswer(f"none within {seconds:.1f} seconds")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


# -- the fallback ------------------------------------------------------------------------------------------------------


def spool_of(folder: str, pane: str) -> str:
    """Where the spool of `pane` is; a pane's id may hold slashes and dots."""
    import hashlib

    return f"{folder}/{hashlib.sha256(pane.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.jsonl"


def open_spool(folder: str, pane: str) -> int:
    """Open the spool of `pane` for reading and appending; the folder is made if need be, in one that is there.

    Raises OSError if folder or file is not private to this user.
    """
    import contextlib
    import stat

    if not folder.startswith("/"):
        raise PermissionError(f"{folder!r} is in whatever folder this process is in")
    if not os.path.isdir(folder):  # noqa: PTH112
        with contextlib.suppress(FileExistsError):  # a sibling may be faster
            os.mkdir(folder, 0o700)  # noqa: PTH102 - beside the socket, whose own folder the bridge made
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder!r} is not a private folder of this user")
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(spool_of(folder, pane), flags, 0o600)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise PermissionError(f"the spool of {pane!r} is not a private file of this user")
    return descriptor


def try_lock(descriptor: int) -> bool:
    """Take the spool's lock if it is free; closing the descriptor gives it back."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def fall_back(event: Event, voice: Voice) -> bytes:
    """Decide without the bridge; see the module's picture.  What goes wrong here denies."""
    if event.name not in SPOOLED_EVENTS:
        return b""  # the transcript tells the rest again
    try:
        descriptor = open_spool(event.spool, event.pane)
        try:
            while not try_lock(descriptor):
                if not voice.left(MARGIN_SECONDS):
                    raise TimeoutError("the spool is held")
                time.sleep(0.005)
            if not voice.gates_a_tool:
                _append(descriptor, event.spooled(), event.spool)
                return b""
            reason: str | None = NO_BARRIER_KNOWN
            voice.passing = descriptor, os.fstat(descriptor).st_size
            try:
                _append(descriptor, event.spooled(), event.spool)
                reason = barrier(event)
            finally:
                if reason is not None:
                    voice.take_back()
        finally:
            voice.passing = None
            os.close(descriptor)
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody knows that the call may run
        complain(error)
        return denial(NO_BARRIER_KNOWN) if voice.gates_a_tool else b""
    return b"" if reason is None else denial(reason)


def _append(descriptor: int, line: bytes, folder: str) -> None:
    """Append `line`, durably, behind a torn one if there is one."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line
    while line:
        line = line[os.write(descriptor, line) :]
    os.fsync(descriptor)
    above = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(above)  # the file may be new
    finally:
        os.close(above)


def barrier(event: Event) -> str | None:
    """Return what a call of this process must be told in place of running, or None if nothing is in its way.

    Raises an error if that cannot be told: a store of another kind than SQLite, one that is not there, one that is not
    ours, a newer one.
    """
    connection = _connect(event.store)
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if (application, version) != (APPLICATION_ID, SCHEMA_VERSION):
            raise ValueError(f"store {application:#x} of version {version} is none that is known here")
        connection.execute("BEGIN")
        process = connection.execute(
            "SELECT retired_at FROM incarnations WHERE incarnation_id = ? AND pane_id = ?",
            (event.incarnation, event.pane),
        ).fetchone()
        if process is None or process[0] is not None:
            return REPLACED
        barriers = connection.execute(_UNRESOLVED, (event.pane, *RESOLVED, _harmless(event.spool))).fetchall()
        return _told(barriers, event.incarnation)
    finally:
        connection.close()


_UNRESOLVED = (
    "SELECT incarnation_id, CASE WHEN state = 'materialized' OR state = 'delivered' THEN payload END FROM intents"
    " WHERE pane_id = ? AND state NOT IN (?, ?, ?) ORDER BY seq"
)


def _harmless(spool: str) -> str:
    """Return the unresolved state that is no barrier, or nothing: the bridge binds behind what passed, then moves."""
    return "detected" if os.path.exists(f"{spool}/{MOVED_WHEN_BOUND}") else ""  # noqa: PTH110


def _told(barriers: list[tuple[str | None, bytes | None]], incarnation: str) -> str | None:
    if not barriers:
        return None
    bound, payload = barriers[0]
    return payload.decode() if payload is not None and bound == incarnation else BARRIER


def _connect(url: str) -> Any:  # noqa: ANN401 - sqlite3 is imported only here
    """Open the store so that nothing can be changed, beside its writer or after its end (see `stores.sqlite`)."""
    import sqlite3
    from urllib.parse import quote

    path = url.removeprefix(SQLITE_SCHEME)
    if not url.startswith(SQLITE_SCHEME) or not path.startswith("/"):
        raise ValueError(f"{url!r} is not the URL of a SQLite store with an absolute path")
    uri = f"file:{quote(path)}?mode=ro"
    for more in ("", "&immutable=1"):
        connection = sqlite3.connect(uri + more, uri=True, timeout=1.0, isolation_level=None)
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            finished = not os.path.exists(f"{path}-wal")  # noqa: PTH110
            if more or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN or not finished:
                raise
        else:
            return connection
    raise AssertionError("the second try returns or raises")


# -- the program -------------------------------------------------------------------------------------------------------


def decide(event: Event, voice: Voice) -> tuple[bytes, dict[str, Any] | None]:
    """Return what is printed, and the delivery to report once it is."""
    kept = MARGIN_SECONDS + min(FALLBACK_SECONDS, voice.left() / 3)
    try:
        if not (event.pane and event.incarnation and event.socket):
            who = "FENCEPOST_PANE, FENCEPOST_INCARNATION and FENCEPOST_SOCKET say whose hook this is"
            raise Refused(who, NOT_ADMITTED)
        seconds = voice.left(kept)
        body = event.request(wait_seconds=round(seconds * 0.8, 3))
        answer = in_time(lambda: post(event, body, seconds), seconds)
        stdout, delivered = answer.get("stdout"), answer.get("delivered")
        if not isinstance(stdout, str) or not (delivered is None or isinstance(delivered, dict)):
            raise NoAnswer("it says nothing to print")
        return stdout.encode(), delivered
    except Refused as error:
        complain(error)
        if voice.gates_a_tool:
            return denial(error.told), None
        return (fall_back(event, voice) if error.told == NO_ANSWER else b""), None  # it is only written down
    except (NoAnswer, ValueError, RecursionError) as error:
        complain(error)
        return fall_back(event, voice), None


def report(event: Event, delivered: dict[str, Any], voice: Voice) -> None:
    """Tell the bridge that the payload was printed; twice if need be, because it means the same.

    If both are lost, the completed batch and the next turn prove the delivery (protocol-intent.md section 6).
    """
    import json

    for _ in range(2):
        try:
            in_time(
                lambda: post(event, json.dumps({"version": 1, "delivered": delivered}).encode(), 2.0),
                min(2.0, voice.left(MARGIN_SECONDS)),
            )
        except (Refused, NoAnswer) as error:
            complain(error)
        else:
            return


def complain(error: BaseException) -> None:
    """Say on stderr what went wrong, in one escaped line; harnesses show it where their own log is."""
    text = f"fencepost-hook: {type(error).__name__}: {str(error)[:500]!r}\n"
    try:
        os.write(2, text.encode("ascii", "backslashreplace"))
    except OSError:
        return  # there is nobody to tell


def read_event(expected: str) -> dict[str, Any]:
    """Read the event from stdin.  One that cannot be read is known by its kind alone."""
    import json

    parts: list[bytes] = []
    size = 0
    while size <= EVENT_BYTES_MAX and (part := os.read(0, 1 << 20)):
        parts.append(part)
        size += len(part)
    said = json.loads(b"".join(parts)) if size <= EVENT_BYTES_MAX else None
    if not isinstance(said, dict):
        raise ValueError("no event of a harness: not an object of JSON, or too long")  # noqa: TRY004 - or too long
    if expected and said.get("hook_event_name") != expected:
        raise ValueError(f"an event {str(said.get('hook_event_name'))[:64]!r} where {expected!r} was expected")
    return said


def options(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the options as pairs; a strange one is left to its default, because nothing may end this program."""
    for place, option in enumerate(arguments[:-1]):
        if option.startswith("--"):
            yield option, arguments[place + 1]


def main() -> NoReturn:
    """Answer one hook event; see the module.  The exit status is always 0."""
    started = time.monotonic()
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        sys.exit()
    given = dict(options(sys.argv[1:]))
    try:
        seconds = min(max(float(given.get("--deadline", DEADLINE_SECONDS)), 1.0), 600.0)
    except ValueError:
        seconds = DEADLINE_SECONDS
    expected = given.get("--event", "")
    voice = Voice(started + seconds)
    voice.gates_a_tool = expected in {"", "PreToolUse"}
    try:
        _thread.start_new_thread(voice.watch, ())
        answer_one(voice, expected, given.get("--harness", "claude-code"))
    except BaseException as error:  # noqa: BLE001 - an error must not let a tool run
        complain(error)
        voice.say(FIXED_DENIAL if voice.gates_a_tool else b"")
    finally:
        os._exit(0)


def answer_one(voice: Voice, expected: str, harness: str) -> None:
    """Read, decide, print, report."""
    event = Event(read_event(expected), os.environ, harness)
    if not expected:
        voice.gates_a_tool = event.name in {"", "PreToolUse"}
    stdout, delivered = decide(event, voice)
    if voice.say(stdout) and delivered is not None:
        report(event, delivered, voice)


if __name__ == "__main__":
    main()
