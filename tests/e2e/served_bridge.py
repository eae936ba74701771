"""The real `fencepost serve`, driven and looked at from outside: its operator API, its store, its reconciliations."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from attrs import define, field
from bridge.http_clients import Program
from e2e.messages_api import PATIENCE_SECONDS

from fencepost.mailbox.mutation import DeadLetter, Event
from fencepost.mailbox.stores.store import open_reader

T = TypeVar("T")

RECONCILE = Path(__file__).with_name("reconcile_program.py")
LOOK_SECONDS = 0.01


def payload_of(to_base: str) -> bytes:
    return f'The files moved to {to_base}: ünïcode, "quotes", \t\N{SNOWMAN}\U0001f6a7\n\n  and a last line  \n'.encode()


@define(eq=False)
class Attempt:
    """One run of the reconciliation program, which waits for the word."""

    told: dict[str, Any]
    word: dict[str, str]
    connection: socket.socket = field(repr=False)

    def go(self) -> None:
        self.connection.sendall(json.dumps(self.word).encode() + b"\n")
        self.connection.close()

    def gone(self) -> bool:
        """Wait for the program to have gone without the word."""
        self.connection.settimeout(PATIENCE_SECONDS)
        return self.connection.recv(1) == b""


class Reconciliations:
    """Where the reconciliation programs of a bridge wait; a held one waits for `Attempt.go`."""

    def __init__(self, folder: Path) -> None:
        self.held = False
        self.payload_of = payload_of
        self.base = folder / "base"
        self.attempts: list[Attempt] = []
        self._changed = threading.Condition()
        self._path = folder / "desk.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-I", "-S", str(RECONCILE), str(self._path)]

    def attempt(self, number: int) -> Attempt:
        """Wait for that attempt, counted from 0."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.attempts) > number, PATIENCE_SECONDS), "nobody reconciles"
            return self.attempts[number]

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with suppress(ValueError, OSError):  # a program that was killed before it said anything
                told = json.loads(connection.makefile(encoding="utf-8").readline())
                word = {"base": str(self.base), "payload": self.payload_of(told["to_base"]).decode()}
                attempt = Attempt(told, word, connection)
                with self._changed:
                    self.attempts.append(attempt)
                    self._changed.notify_all()
                if not self.held:
                    attempt.go()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for attempt in self.attempts:
            attempt.connection.close()


class ServedBridge:
    """One folder of a bridge, and its lives, one after the other."""

    def __init__(self, folder: Path, reconciliations: Reconciliations, *options: str) -> None:
        self.folder = folder / "bridge"
        self.store = f"sqlite:///{self.folder / 'bridge.db'}"
        self._options = ["--reconcile", shlex.join(reconciliations.command), *options]
        self.program: Program

    def start(self) -> None:
        self.program = Program(self.folder, *self._options).started()

    def kill(self) -> None:
        """As a machine that fails: nothing is said, and nothing more is written."""
        self.program.process.kill()
        self.program.process.communicate()

    # -- the operator --

    def operate(self, method: str, path: str, **members: Any) -> dict[str, Any]:
        body = None if method in {"GET", "DELETE"} else {"version": 1, **members}
        try:
            return self.program.operate(method, f"operator/{path}", body)
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def detect(self, pane: str, from_base: str, to_base: str) -> str:
        members = {"kind": "parent_advance", "from_base": from_base, "to_base": to_base}
        ops = {"classification_op": f"view-{to_base}", "trigger_op": f"trigger-{to_base}"}
        return self.operate("POST", f"panes/{pane}/transitions", **members, **ops)["intent_id"]

    # -- the store, read beside its owner --

    def events(self, *kinds: str) -> list[Event]:
        """Every event, or those of these kinds, oldest first."""
        with open_reader(self.store) as reader, reader.snapshot():
            found = reader.events(0, None)
        return [one for one in found if not kinds or one.kind in kinds]

    def heard(self, kind: str, times: int = 1, **data: Any) -> Event:
        """Wait for the event, for that many of it; the last is returned."""

        def found() -> Event | None:
            same = [one for one in self.events(kind) if data.items() <= dict(one.data).items()]
            return same[times - 1] if len(same) >= times else None

        return self.eventually(found, lambda: f"{times} {kind} {data} in {[one.kind for one in self.events()]}")

    def eventually(self, found: Callable[[], T | None], wanted: Callable[[], str] = lambda: "it") -> T:
        """Look until there is something to see: other processes can only be looked at."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (result := found()):
            assert time.monotonic() < deadline, f"{wanted()} never came about"
            time.sleep(LOOK_SECONDS)
        return result

    def intents(self) -> list[dict[str, Any]]:
        with open_reader(self.store) as reader, reader.snapshot():
            return sorted(reader.raw("intents"), key=lambda row: row["seq"])

    def states(self) -> list[str]:
        return [row["state"] for row in self.intents()]

    def dead_letters(self) -> Sequence[DeadLetter]:
        with open_reader(self.store) as reader, reader.snapshot():
            return reader.dead_letters(0, None)


@contextmanager
def served_bridge(folder: Path, *options: str) -> Iterator[tuple[ServedBridge, Reconciliations]]:
    """A bridge that was not started yet; whatever life it is in at the end is ended."""
    reconciliations = Reconciliations(folder)
    bridge = ServedBridge(folder, reconciliations, *options)
    try:
        yield bridge, reconciliations
    finally:
        if hasattr(bridge, "program"):
            bridge.kill()
        reconciliations.close()
