"""A program that has OpenCode's name, version and command line, and does what a test's driver tells it.

It connects to the socket named by OPENCODE_CONTROL and says how it was started.  `program_world.Driver` is the other
end.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
from pathlib import Path

VERSION = "1.18.34"


def serve(argv: list[str]) -> None:
    options = dict(itertools.pairwise(argv))
    headless = argv[:1] == ["run"]
    about = {
        "argv": argv,
        "pid": os.getpid(),
        "session": options.get("--session"),
        "said": sys.stdin.read() if headless else options.get("--prompt"),
        "environ": {name: value for name, value in os.environ.items() if name.startswith(("FENCEPOST_", "OPENCODE_"))},
    }
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["OPENCODE_CONTROL"])
    with connection, connection.makefile("rw") as lines:
        print(json.dumps(about), file=lines, flush=True)
        for line in lines:
            sys.exit(json.loads(line)["exit"])


def install(folder: Path) -> Path:
    """Make a program `opencode` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "opencode"
    tests = Path(__file__).resolve().parents[1]
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"if sys.argv[1:] == ['--version']:\n    print({VERSION!r})\n    sys.exit()\n"
        f"sys.path.insert(0, {str(tests)!r})\n"
        "from bridge.opencode_program import serve\n"
        "serve(sys.argv[1:])\n"
    )
    program.chmod(0o755)
    return program
