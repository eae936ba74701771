"""Clients of a bridge in other processes: the transport of a claimed sender, the source of a pump, and the program.

python http_clients.py STATE ENDPOINTS PANE TOKEN     sends each line of its input, and tells each report
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from fencepost.mailbox import ClaimedSender, Response

PATIENCE_SECONDS = 20


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req, fp, code, msg, headers, newurl):
        return None


class UrllibTransport:
    """A claimed sender's transport to the fleet listener that `endpoints.json` names."""

    def __init__(self, endpoints: Path, pane: str, token: str) -> None:
        self._endpoints = endpoints
        self._pane = pane
        self._token = token
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
        self.posts = 0
        self.refresh()

    def refresh(self):
        self.base = json.loads(self._endpoints.read_text())["fleet"]

    def read_binding(self):
        return self._ask("GET", "messages")

    def post(self, delivery_id, binding, text):
        self.posts += 1
        members = {"version": 1, "delivery_id": delivery_id, "binding": binding, "text": text}
        return self._ask("POST", "messages", json.dumps(members).encode())

    def read_receipt(self, delivery_id, binding, fingerprint):
        return self._ask("GET", f"messages/{delivery_id}?binding={binding}&fingerprint={fingerprint}")

    def _ask(self, method, path, body=None):
        url = f"{self.base}/seats/{self._pane}/{path}"
        request = urllib.request.Request(
            url, body, {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}, method=method
        )
        try:
            with self._opener.open(request, timeout=PATIENCE_SECONDS) as answer:
                return Response(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, error.read())
        except urllib.error.URLError as error:
            raise error.reason if isinstance(error.reason, OSError) else OSError(str(error)) from error


class Program:
    """`fencepost serve` in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        program = [sys.executable, "-W", "error", "-m", "fencepost.supervisor.cli", "serve", "--folder", str(folder)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.folder = folder
        self.process = subprocess.Popen(
            [*program, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd="/",  # never the checkout, where mailbox/ would shadow a module of the standard library
        )
        self.where: dict[str, str] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def started(self) -> Program:
        """Wait until it listens; `where` is then what it said."""
        for _ in range(3):
            name, _, value = self.process.stdout.readline().strip().partition(" ")
            if not value:
                raise AssertionError(self.process.communicate())
            self.where[name] = value
        return self

    def ended(self) -> tuple[int, str]:
        """Its exit status, and what it said on stderr."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def operate(self, method: str, path: str, members=None) -> dict:
        """One request of the operator."""
        token = (self.folder / "operator.token").read_text().strip()
        body = None if members is None else json.dumps(members).encode()
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self.where['operator']}/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.loads(answer.read())


def main(state, endpoints, pane, token):
    transport = UrllibTransport(Path(endpoints), pane, token)
    sender = ClaimedSender(state, ("/run/bridge.sock", pane), transport)
    for line in sys.stdin:
        report = sender.send(line.rstrip("\n"))
        print(json.dumps({**dataclasses.asdict(report), "posts": transport.posts}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
