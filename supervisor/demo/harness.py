"""A coding-agent harness in small: the process of an agent in a pane.  It needs the hook beside it, and no more.

It takes its first input on stdin: one line of JSON that may carry a startup delivery id, then the payload's bytes.
Then it does what its model says (the demo plays the model), and before each tool call it runs a hook process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fencepost.supervisor.demo.hook import LIFELINE, RUN, TOLD, Line, ask_bridge, end_with_the_story

HOOK = Path(__file__).with_name("hook.py")


class Harness:
    """One incarnation of an agent, in its pane's workspace, which is the current folder."""

    def __init__(self, first_input: dict[str, Any], payload: bytes) -> None:
        self.incarnation = os.environ["DEMO_INCARNATION"]
        self.pane = os.environ["DEMO_PANE"]
        self.startup_id = first_input["startup_delivery_id"]
        self.payload = payload

    def live(self) -> None:
        """Accept the first input, then run what the model asks for, until it goes away."""
        hello: dict[str, Any] = {"hello": "harness", "name": self.pane, "pid": os.getpid()}
        hello |= {"incarnation": self.incarnation, "startup_delivery_id": self.startup_id}
        if self.startup_id is not None:
            sha256 = hashlib.sha256(self.payload).hexdigest()
            handshake = ask_bridge(
                "startup_ready", pane=self.pane, incarnation=self.incarnation, startup=self.startup_id, sha256=sha256
            )
            hello |= {"handshake": handshake["answer"], "sha256": sha256, "text": self.payload.decode()}
        model = Line("story")
        model.send(hello)
        with contextlib.suppress(ConnectionError):
            while True:
                request = model.receive()
                model.send(getattr(self, request["do"])(request))

    def calls(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run tool calls of one batch, all at the same time; the first turn echoes what it was started with."""
        with ThreadPoolExecutor(len(request["calls"])) as pool:
            results = list(pool.map(lambda call: self._call(request, call), request["calls"]))
        return {"results": results}

    def end_turn(self, request: dict[str, Any]) -> dict[str, Any]:
        """The model has every result of the batch."""
        self.startup_id = None
        return ask_bridge("post_tool_batch", **self._spoken(request))

    def straggler(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a hook that hangs, and do not wait for it."""
        call = {**self._spoken(request), "intent": request["intent"]}
        child = self._start(call, "straggling")
        return {"pid": child.pid}

    def _spoken(self, request: dict[str, Any]) -> dict[str, Any]:
        return {
            "pane": self.pane,
            "incarnation": self.incarnation,
            "turn": request["turn"],
            "batch": f"{request['turn']['id']}-tools",
        }

    def _start(self, call: dict[str, Any], *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-E", "-s", "-S", str(HOOK), json.dumps(call), *arguments]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=(LIFELINE,))

    def _call(self, request: dict[str, Any], call: dict[str, str]) -> dict[str, Any]:
        child = self._start({**self._spoken(request), "startup": self.startup_id})
        printed, _ = child.communicate()
        result: dict[str, Any] = {
            "hook": {RUN: "allow", TOLD: "payload"}.get(child.returncode, "held back"),
            "sha256": hashlib.sha256(printed).hexdigest(),
            "text": printed.decode(),
            "ran_on": None,
        }
        if child.returncode == RUN:
            result |= {"ran_on": use_tool(**call)}
        return result


def use_tool(tool: str, file: str, line: str = "") -> str:
    """Read a file, or add a line to it; answers which base the file was on when the tool touched it."""
    if tool == "append":
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    first, _, _ = Path(file).read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("base: ")


def main() -> None:
    threading.Thread(target=end_with_the_story, daemon=True).start()
    first_input = json.loads(sys.stdin.buffer.readline())
    Harness(first_input, sys.stdin.buffer.read(first_input["bytes"])).live()


if __name__ == "__main__":
    main()
