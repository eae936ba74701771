"""A program that behaves as Claude Code does towards its hooks, its transcript and its command line, at a test's word.

It connects to the socket named by CLAUDE_CONTROL, says how it was started, and does what it is told, a JSON line each
way.  `program_world.Driver` is the other end.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from claude_session import ClaudeSession

VERSION = "2.1.197"


class Claude:
    """One run of the program."""

    def __init__(self, argv: list[str]) -> None:
        self.headless = argv[:1] == ["-p"]
        argv = argv[1:] if self.headless else argv
        self.said = argv.pop(0) if argv and not argv[0].startswith("-") else None
        options = dict(zip(argv[::2], argv[1::2], strict=False))
        self.resumed = options.get("--resume")
        self.settings = json.loads(Path(options["--settings"]).read_text())
        self.session = ClaudeSession(Path.home() / ".claude", self.resumed or options.get("--session-id"))
        if self.resumed is not None and not self.session.path.exists():
            sys.exit(f"No conversation found with session ID: {self.resumed}")
        if self.session.path.exists() and self.resumed is None:
            sys.exit(f"Session ID {self.session.session_id} is already in use.")
        if self.session.path.exists():  # message ids are unique in a conversation, whoever goes on with it
            self.session.messages = self.session.path.read_text().count('"role": "assistant"')

    def hook(self, event: dict) -> str:
        (matcher,) = self.settings["hooks"][event["hook_event_name"]]
        (command,) = matcher["hooks"]
        line, said = ["sh", "-c", command["command"]], json.dumps(event).encode()
        return subprocess.run(line, input=said, stdout=subprocess.PIPE, check=True).stdout.decode()

    def prompt(self, text: str) -> None:
        event = self.session.prompt(text, written=False)
        self.hook(event)
        self.session.write(
            self.session.line("user", {"role": "user", "content": text}, promptId=self.session.prompt_id)
        )

    def batch(self, calls: list[str]) -> list[str | None]:
        """One model turn with these calls; for each, why it was denied, or None: it ran."""
        events = self.session.turn(*calls)
        with ThreadPoolExecutor(len(calls)) as hooks:
            said = list(hooks.map(self.hook, events))
        self.session.results(*calls)
        self.hook(self.session.ended(*calls))
        return [None if not one else json.loads(one)["hookSpecificOutput"]["permissionDecisionReason"] for one in said]

    def serve(self) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ["CLAUDE_CONTROL"])
        with connection, connection.makefile("rw") as lines:

            def say(**members: object) -> None:
                print(json.dumps(members), file=lines, flush=True)

            fencepost = {name: value for name, value in os.environ.items() if name.startswith("FENCEPOST_")}
            about = {
                "argv": sys.argv[1:],
                "pid": os.getpid(),
                "session": self.session.session_id,
                "cwd": str(Path.cwd()),
            }
            print("claude is here", flush=True)
            if self.said is not None:
                self.prompt(self.said)
            say(**about, said=self.said, resumed=self.resumed is not None, headless=self.headless, environ=fencepost)
            for line in lines:
                match json.loads(line):
                    case {"batch": calls}:
                        say(denied=self.batch(calls))
                    case {"answer": text}:
                        self.session.answer(text)
                        say(answered=True)
                    case {"prompt": text}:
                        self.prompt(text)
                        say(prompted=True)
                    case {"hook": event, "incarnation": incarnation_id}:
                        os.environ["FENCEPOST_INCARNATION"] = incarnation_id
                        say(said=self.hook(event))
                    case {"leave": argv, "own_session": own}:  # a tool in the background
                        say(left=subprocess.Popen(argv, start_new_session=own).pid)
                    case {"exit": status}:
                        sys.exit(status)
                    case other:
                        raise ValueError(other)


def install(folder: Path, version: str = VERSION) -> Path:
    """Make a program `claude` in `folder`, which is to come first in PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "claude"
    tests = Path(__file__).resolve().parents[1]
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"if sys.argv[1:] == ['--version']:\n    print('{version} (Claude Code)')\n    sys.exit()\n"
        f"sys.path.insert(0, {str(tests)!r})\n"
        "from bridge.claude_program import Claude\n"
        "Claude(sys.argv[1:]).serve()\n"
    )
    program.chmod(0o755)
    return program
