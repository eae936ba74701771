"""A Claude Code session as its hooks and its transcript show it: the shapes version 2.1.197 writes, lines and all."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any


class ClaudeSession:
    """Writes a transcript as it grows, and makes the hook events that go with it."""

    def __init__(self, folder: Path, session_id: str | None = None) -> None:
        self.session_id = session_id or str(uuid.uuid4())
        self.projects = folder / "projects"
        self.path = self.projects / "-ws" / f"{self.session_id}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.prompt_id = ""
        self.messages = 0
        self.last: str | None = None  # the line that the next one goes on from
        if self.path.exists():
            written = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
            self.last = next((line["uuid"] for line in reversed([*written]) if not line.get("isSidechain", True)), None)

    # -- the transcript --

    def write(self, *lines: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    def line(self, kind: str, message: dict[str, Any], **more: Any) -> dict[str, Any]:
        """One line, which goes on from the one made before it, as those of a nested agent do not."""
        common = {"parentUuid": self.last, "isSidechain": False, "type": kind, "message": message}
        made = {**common, "uuid": str(uuid.uuid4()), "sessionId": self.session_id, "version": "2.1.197", "cwd": "/ws"}
        if not more.get("isSidechain"):
            self.last = made["uuid"]
        return {**made, **more}

    def assistant(self, message_id: str, *blocks: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        """One line a block, all with the same message id."""
        about = {"id": message_id, "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use"}
        return [self.line("assistant", {**about, "content": [block]}, **more) for block in blocks]

    def prompt(self, text: str, *, written: bool = True) -> dict[str, Any]:
        """The user's input: its hook runs before its line is there."""
        self.prompt_id = str(uuid.uuid4())
        if written:
            message = {"role": "user", "content": text}
            self.write(self.line("user", message, promptId=self.prompt_id, promptSource="sdk"))
        return self.event("UserPromptSubmit", prompt=text)

    def answer(self, text: str, **more: Any) -> None:
        """The model says this and calls nothing: its turn ends."""
        self.messages += 1
        about = {"id": f"msg_{self.messages}", "type": "message", "role": "assistant", "stop_reason": "end_turn"}
        said = {**about, "model": "m", "content": [{"type": "text", "text": text}], **more}
        self.write(self.line("assistant", said))

    def turn(self, *calls: str, message_id: str | None = None) -> list[dict[str, Any]]:
        """The model asks for tools: the whole message is in the transcript when the first of its hooks runs."""
        self.messages += 1
        uses = [tool_use(call) for call in calls]
        self.write(*self.assistant(message_id or f"msg_{self.messages}", {"type": "text", "text": "now"}, *uses))
        return [self.call(call) for call in calls]

    def results(self, *calls: str) -> None:
        for call in calls:
            content = [{"type": "tool_result", "tool_use_id": call, "content": "0", "is_error": False}]
            self.write(self.line("user", {"role": "user", "content": content}, promptId=self.prompt_id))

    # -- the hooks --

    def event(self, name: str, **more: Any) -> dict[str, Any]:
        where = {"session_id": self.session_id, "transcript_path": str(self.path), "cwd": "/ws"}
        return {**where, "prompt_id": self.prompt_id, "hook_event_name": name, **more}

    def call(self, call: str, **more: Any) -> dict[str, Any]:
        tool = {"tool_name": "Bash", "tool_input": {"command": "echo 1"}, "permission_mode": "default"}
        return self.event("PreToolUse", tool_use_id=call, **tool, **more)

    def ended(self, *calls: str, **more: Any) -> dict[str, Any]:
        named = [{"tool_name": "Bash", "tool_input": {}, "tool_use_id": call, "tool_response": "0"} for call in calls]
        return self.event("PostToolBatch", tool_calls=named, **more)


def tool_use(call: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "echo 1"}}
