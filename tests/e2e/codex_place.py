"""Where a real Codex runs in a test: a user's home of its own, a project, a model that is a stand-in, and no network.

FENCEPOST_CODEX names the binary (`make test-codex` gets it); it is nobody's to hand on, so without it these are
skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.responses_api import ResponsesApi, Turn, responses_api

CODEX = os.environ.get("FENCEPOST_CODEX", "")
VERSION = "0.171.0"

needs_codex = [
    pytest.mark.slow,
    pytest.mark.skipif(not CODEX, reason="FENCEPOST_CODEX names no Codex binary: `make test-codex` gets one"),
]

RUN_SECONDS = 120.0
"""How long one run of Codex may take on a busy machine before the test fails."""


class CodexPlace:
    """One user and one project; `api` is the model everybody here talks to.  The folder's path is short: sockets."""

    def __init__(self, folder: Path, api: ResponsesApi) -> None:
        self.folder = folder
        self.api = api
        self.home = folder / "home"
        self.users = self.home / ".codex"
        self.project = folder / "ws"
        self.bin = folder / "bin"
        self.hook_does = "nothing"
        for made in (self.home, self.users, self.project, self.bin):
            made.mkdir(mode=0o700)
        (self.bin / "codex").symlink_to(CODEX)
        self.configure()

    def configure(self, more: str = "", provider: str = 'env_key = "STAND_IN_KEY"') -> None:
        """The user's config.toml.  A person is asked nothing: the project is trusted, and nothing needs approval."""
        (self.users / "config.toml").write_text(
            'model = "stand-in-model"\nmodel_provider = "stand-in"\napproval_policy = "never"\n'
            f'sandbox_mode = "danger-full-access"\n{more}\n'
            f'[model_providers.stand-in]\nname = "stand-in"\nbase_url = "{self.api.url}"\nwire_api = "responses"\n'
            f'{provider}\n\n[projects."{self.project}"]\ntrust_level = "trusted"\n',
            encoding="utf-8",
        )

    def environment(self, **more: str) -> dict[str, str]:
        """The user's whole environment."""
        path = f"{self.bin}:{os.environ['PATH']}"
        return {"HOME": str(self.home), "PATH": path, "STAND_IN_KEY": "key", "TERM": "xterm-256color", **more}

    def start(self, home: Path, *arguments: str) -> subprocess.Popen[str]:
        """Start Codex in a CODEX_HOME, and leave it running."""
        return subprocess.Popen(
            [CODEX, *arguments],
            env=self.environment(
                CODEX_HOME=str(home), HOOK_LOG=str(self.folder / "hooks.jsonl"), HOOK_DOES=self.hook_does
            ),
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, home: Path, *arguments: str) -> tuple[int, str]:
        """Run Codex to its end: its exit status, and what it said."""
        process = self.start(home, *arguments)
        try:
            said, _ = process.communicate(timeout=RUN_SECONDS)
        finally:
            process.kill()
        return process.returncode, said

    def hooks(self) -> list[dict[str, Any]]:
        """What `codex_hook_log` was told, in order."""
        path = self.folder / "hooks.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def files(self) -> list[str]:
        """What the tools left behind in the project."""
        return sorted(path.name for path in self.project.iterdir() if not path.name.startswith("."))


@contextmanager
def codex_place(*turns: Turn) -> Iterator[CodexPlace]:
    folder = Path(tempfile.mkdtemp(prefix="fpx-"))
    try:
        with responses_api(*turns) as api:
            yield CodexPlace(folder, api)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
