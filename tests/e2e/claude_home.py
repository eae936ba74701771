"""Where a real Claude Code runs in a test: a home in which it asks nobody anything, a folder, and no network.

FENCEPOST_CLAUDE names the binary (`make test-claude` gets it); it is nobody's to hand on, so without it these are
skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.messages_api import MessagesApi, messages_api

CLAUDE = os.environ.get("FENCEPOST_CLAUDE", "")

needs_claude = [
    pytest.mark.slow,
    pytest.mark.skipif(not CLAUDE, reason="FENCEPOST_CLAUDE names no Claude Code binary: `make test-claude` gets one"),
]

_KEY = "none"


class ClaudeHome:
    """One home and one workspace; `api` is the model everybody in it talks to.

    The folder's path is short, because sockets are in it.
    """

    def __init__(self, folder: Path, api: MessagesApi) -> None:
        self.folder = folder
        self.api = api
        self.home = folder / "home"
        self.workspace = folder / "ws"
        self.home.mkdir()
        self.workspace.mkdir()
        # What a person answers at a first start: about its look, the folder, and the key.
        answered = {
            "hasCompletedOnboarding": True,
            "projects": {str(self.workspace): {"hasTrustDialogAccepted": True}},
            "customApiKeyResponses": {"approved": [_KEY], "rejected": []},
        }
        (self.home / ".claude.json").write_text(json.dumps(answered), encoding="utf-8")

    @property
    def transcripts(self) -> Path:
        return self.home / ".claude" / "projects"

    @property
    def environment(self) -> dict[str, str]:
        """What it needs to run offline."""
        return {
            "ANTHROPIC_API_KEY": _KEY,
            "ANTHROPIC_BASE_URL": self.api.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "HOME": str(self.home),
            "IS_SANDBOX": "1",
            "PATH": os.environ["PATH"],
        }

    def files(self) -> list[str]:
        """What the tools that ran have left."""
        return sorted(path.name for path in self.workspace.iterdir())


@contextmanager
def claude_home() -> Iterator[ClaudeHome]:
    folder = Path(tempfile.mkdtemp(prefix="fp-"))
    try:
        with messages_api() as api:
            yield ClaudeHome(folder, api)
    finally:
        shutil.rmtree(folder)
