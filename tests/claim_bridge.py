"""A bridge process for the tests of pending claims, and the service that such processes share.

    python claim_bridge.py '{"state": FOLDER, "service": FOLDER, …}'

It takes commands as lines of JSON, `{"send": TEXT}` or `{"settle": ID}`, and answers each with its report.  With
`"hold": true` a POST says `{"posted": ID}` and goes on when the next line comes.  With `"die_at": N` the process kills
itself at the Nth thing it does to the disk or asks of the service; with `"trace": true` it tells at its end what those
were.  `"lose"` names the requests whose answer never comes; `"deaf": true` is a service that takes no message.
Without an argument each line is `[CONFIG, COMMAND, …]`, lived in a process of its own, and answered with its exit code.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from claim_service import SCOPE, binding_body, receipt_body

from fencepost.mailbox import ClaimedSender, Response
from fencepost.mailbox.claim_record import decode_claim, fingerprint_of

CALLS = ("open", "mkdir", "write", "fsync", "link", "rename", "unlink")


class FileService:
    """A service in a folder, and the transport to it.  Each id is accepted once; every POST is written down."""

    def __init__(self, folder, claim_path=None, *, lose=(), deaf=False, hold=None, point=lambda _name: None):
        self.folder = Path(folder)
        self.claim_path = claim_path
        self._lose = lose
        self._deaf = deaf
        self._hold = hold
        self._point = point

    def read_binding(self):
        self._point("binding")
        return self._answer("binding", Response(200, binding_body()))

    def post(self, delivery_id, binding, text):
        self._point("post")
        claim = decode_claim(self.claim_path.read_bytes())
        with (self.folder / "posts").open("a") as posts:
            posts.write(json.dumps([delivery_id, text, claim.delivery_id == delivery_id]) + "\n")
        if self._hold is not None:
            self._hold(delivery_id)
        if not self._deaf:
            (self.folder / delivery_id).write_text(binding + fingerprint_of(text))
        self._point("posted")
        return self._answer("post", self._receipt(delivery_id, binding, fingerprint_of(text)))

    def read_receipt(self, delivery_id, binding, fingerprint):
        self._point("receipt")
        return self._answer("receipt", self._receipt(delivery_id, binding, fingerprint))

    def refresh(self):
        self._point("refresh")

    def _receipt(self, delivery_id, binding, fingerprint):
        known = (self.folder / delivery_id).exists() and (
            self.folder / delivery_id
        ).read_text() == binding + fingerprint
        return Response(200, receipt_body("stored" if known else "uncertain", delivery_id, binding, fingerprint))

    def _answer(self, request, response):
        if request in self._lose:
            raise TimeoutError(f"the answer to {request} was lost")
        return response

    @property
    def posts(self):
        """Every POST so far: id, text, and whether the claim was that id's at the time."""
        path = self.folder / "posts"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


class Points:
    """Everything a bridge does that a crash may come between, in order; it dies before the one it is told to."""

    def __init__(self, die_at=None):
        self.passed = []
        self._die_at = die_at

    def __call__(self, name):
        if len(self.passed) == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed.append(name)

    def watch(self, module):
        """Make each of the system calls a point."""
        for name in CALLS:
            setattr(module, name, self._watched(name, getattr(module, name)))

    def _watched(self, name, real):
        def call(first, *others, **options):
            self(name if isinstance(first, int) else f"{name} {Path(first).suffix}".strip())
            return real(first, *others, **options)

        return call


def live(config, commands, tell):
    """Be a bridge until the commands end."""
    points = Points(config.get("die_at"))

    def hold(delivery_id):
        tell({"posted": delivery_id})
        next(commands)

    service = FileService(
        config["service"],
        lose=config.get("lose", ()),
        deaf=config.get("deaf", False),
        hold=hold if config.get("hold") else None,
    )
    sender = ClaimedSender(config["state"], SCOPE, service)
    service.claim_path = sender.claim_path
    if "die_at" in config or config.get("trace"):
        service._point = points
        points.watch(os)
    for command in commands:
        report = sender.send(command["send"]) if "send" in command else sender.settle(command["settle"], "the owner")
        tell(dataclasses.asdict(report))
    if config.get("trace"):
        tell(points.passed)


def main():
    lines = map(json.loads, iter(sys.stdin.readline, ""))

    def tell(something):
        print(json.dumps(something), flush=True)

    if len(sys.argv) > 1:
        live(json.loads(sys.argv[1]), lines, tell)
        return
    for config, *commands in lines:  # each in a process of its own, that has loaded everything already
        child = os.fork()
        if not child:
            live(config, iter(commands), tell)
            os._exit(0)
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def in_folder(folder, config):
    """The config of a bridge whose files, and whose service's, are in that folder."""
    Path(folder, "service").mkdir(parents=True, exist_ok=True)
    return {"state": f"{folder}/state", "service": f"{folder}/service", **config}


class Bridge:
    """Such a process, from outside."""

    def __init__(self, folder=None, **config):
        """Without a folder it is many: each line is a config and its commands, and is answered with an exit code."""
        arguments = [] if folder is None else [json.dumps(in_folder(folder, config))]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.kill()

    def tell(self, command=""):
        """Send a line; a command, or what lets a held POST go on."""
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """The next line it says; None if it is dead."""
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, command):
        self.tell(command)
        return self.hear()

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def run(self, *commands):
        """Everything it says to these commands until it ends, and how it ended."""
        said, _ = self.process.communicate("".join(json.dumps(command) + "\n" for command in commands))
        return [json.loads(line) for line in said.splitlines()], self.process.returncode


if __name__ == "__main__":
    main()
