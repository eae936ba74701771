"""The hook of a harness: a short process that asks the bridge before a tool call.  Standard library only.

    hook.py CALL               silence and exit code RUN let the tool run, else the model reads what it printed
    hook.py CALL straggling    hangs until it is let go, so that it can outlive its harness

Every message is one line of JSON over a unix socket.  Imports are few, as every tool call waits for them.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import threading
import time
from typing import Any

ROOT = os.environ["DEMO_ROOT"]
LIFELINE = int(os.environ["DEMO_LIFELINE"])
PATIENCE_SECONDS = 20.0

RUN, TOLD, HELD_BACK = 0, 10, 11
"""How a hook exits: the tool may run; the model reads the payload; the model reads some other refusal."""


class Line:
    """A unix socket that carries one JSON object a line."""

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(f"{ROOT}/{name}.sock")
        self._reader = self._socket.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the other side went away")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


def ask_bridge(call: str, **fields: object) -> dict[str, Any]:
    """Ask until somebody answers: a bridge may die under a question, and the next one takes it again."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            line = Line("bridge")
            try:
                line.send({"call": call, **fields})
                return line.receive()
            finally:
                line.close()
        except (ConnectionError, FileNotFoundError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def ask(call: dict[str, Any]) -> int:
    """Ask whether a tool may run; no answer is no permission."""
    startup_id = call.pop("startup")
    try:
        decision = ask_bridge("pre_tool_use", startup=startup_id, **call)
    except OSError as error:
        print(f"The bridge gives no answer ({error}); the tool must not run.")
        return HELD_BACK
    if decision["decision"] == "allow":
        return RUN
    if decision["decision"] != "payload":
        print(decision["message"])
        return HELD_BACK
    sys.stdout.buffer.write(base64.b64decode(decision["payload"]))
    sys.stdout.flush()
    ask_bridge("mark_delivered", intent=decision["intent"], **call)
    return TOLD


def straggle(call: dict[str, Any]) -> int:
    """Hang until let go, then go on as if nothing had happened: ask for the tool, and report a delivery."""
    story = Line("story")
    story.send({"hello": "straggler", "name": call["pane"], "pid": os.getpid()})
    story.receive()
    intent_id = call.pop("intent")
    decision = ask_bridge("pre_tool_use", startup=None, **call)
    story.send({"decision": decision, "mark": ask_bridge("mark_delivered", intent=intent_id, **call)})
    return TOLD


def end_with_the_story() -> None:
    """Whatever happens, no process outlives the demo: its end of this socket closes, and we go."""
    socket.socket(fileno=LIFELINE).recv(1)
    os._exit(3)


def main(call: str, *straggling: str) -> int:
    threading.Thread(target=end_with_the_story, daemon=True).start()
    return (straggle if straggling else ask)(json.loads(call))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
