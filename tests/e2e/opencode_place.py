"""Where a real OpenCode runs in a test: a user's home, a project, a model that is a stand-in, and no network.

FENCEPOST_OPENCODE names the binary (`make test-opencode` gets it); it is nobody's to hand on, so without it these are
skipped.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from e2e.messages_api import Block, MessagesApi, messages_api, tool_use

OPENCODE = os.environ.get("FENCEPOST_OPENCODE", "")
VERSION = "1.18.34"

needs_opencode = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not OPENCODE, reason="FENCEPOST_OPENCODE names no OpenCode binary: `make test-opencode` gets one"
    ),
]

RUN_SECONDS = 120.0
"""How long one run of OpenCode may take on a busy machine before the test fails."""


def bash(call_id: str, command: str) -> Block:
    """A call of OpenCode's shell."""
    return tool_use(call_id, "bash", command=command, description="what it does")


class OpenCodePlace:
    """One user and one project; `api` is the model everybody here talks to.  The folder's path is short: sockets."""

    def __init__(self, folder: Path, api: MessagesApi) -> None:
        self.folder = folder
        self.api = api
        self.home = folder / "home"
        self.project = folder / "ws"
        self.bin = folder / "bin"
        self.configuration = self.home / ".config" / "opencode" / "opencode.json"
        for made in (self.project, self.bin, self.configuration.parent):
            made.mkdir(mode=0o700, parents=True)
        (self.bin / "opencode").symlink_to(OPENCODE)
        provider = {
            "npm": "@ai-sdk/anthropic",
            "options": {"baseURL": f"{api.url}/v1", "apiKey": "key"},
            "models": {"in": {"name": "In", "tool_call": True, "limit": {"context": 200_000, "output": 8_000}}},
        }
        settled = {"model": "stand/in", "small_model": "stand/in", "share": "disabled", "permission": "allow"}
        self.configuration.write_text(json.dumps({**settled, "provider": {"stand": provider}}), encoding="utf-8")

    def environment(self, **more: str) -> dict[str, str]:
        """The user's whole environment."""
        quiet = dict.fromkeys(("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD"), "1")
        path = f"{self.bin}:{os.environ['PATH']}"
        return {"HOME": str(self.home), "PATH": path, "TERM": "xterm-256color", **quiet, **more}

    def plugin(self, *sources: str) -> dict[str, str]:
        """The variable that names these as plugins of one process."""
        paths = [self.folder / f"plugin-{number}.js" for number in range(len(sources))]
        for path, source in zip(paths, sources, strict=True):
            path.write_text(source, encoding="utf-8")
        return {"OPENCODE_CONFIG_CONTENT": json.dumps({"plugin": [path.as_uri() for path in paths]})}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start OpenCode and leave it running; what is written to its standard input is its prompt."""
        return subprocess.Popen(
            [OPENCODE, *arguments],
            env=self.environment(**environment),
            cwd=self.project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, prompt: str = "", **environment: str) -> tuple[int, str]:
        """Run OpenCode to its end: its exit status, and what it said."""
        process = self.start(*arguments, **environment)
        try:
            said, _ = process.communicate(prompt, timeout=RUN_SECONDS)
        finally:
            process.kill()
        return process.returncode, said

    def heard(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What `opencode_log.js` was told, in order."""
        path = self.folder / "log.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if kind in {None, one["kind"]}]

    def files(self) -> list[str]:
        """What the tools left behind in the project."""
        return sorted(path.name for path in self.project.iterdir() if not path.name.startswith("."))

    def end_processes(self) -> None:
        """End what a test has left of OpenCode and its tools."""
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"HOME={self.home}\0".encode() in environ.read_bytes() and int(environ.parent.name) != os.getpid():
                    os.kill(int(environ.parent.name), signal.SIGKILL)


@contextmanager
def opencode_place() -> Iterator[OpenCodePlace]:
    folder = Path(tempfile.mkdtemp(prefix="fpo-"))
    try:
        with messages_api() as api:
            there = OpenCodePlace(folder, api)
            try:
                yield there
            finally:
                there.end_processes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


PASSWORD = "pw"


@contextmanager
def server(there: OpenCodePlace, **environment: str) -> Iterator[tuple[str, Any]]:
    """`opencode serve`: its URL, and what asks it (method, path, body) for status and answer."""
    process = there.start("serve", "--port", "0", OPENCODE_SERVER_PASSWORD=PASSWORD, **environment)
    assert process.stdout is not None
    url = next(line.split()[-1] for line in process.stdout if "http://" in line)
    entitled = base64.b64encode(f"opencode:{PASSWORD}".encode()).decode()

    def ask(method: str, path: str, body: object = None, *, token: str = entitled) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "authorization": f"Basic {token}"}
        request = urllib.request.Request(f"{url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content = answer.read()
                return answer.status, json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    try:
        yield url, ask
    finally:
        process.kill()
        process.communicate()
