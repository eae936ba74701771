"""What `fencepost serve --reconcile` runs in these tests: it does what the test says, when the test says so.

python reconcile_program.py SOCKET

It tells the attempt to the socket, plans, waits there for the word, writes the new base beside the agent's files, and
answers with the payload that came with the word.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path


def say(members) -> None:
    print(json.dumps(members), flush=True)


def main(path: str) -> None:
    attempt = json.loads(sys.stdin.readline())["attempt"]
    with socket.socket(socket.AF_UNIX) as desk:
        desk.connect(path)
        lines = desk.makefile("rw", encoding="utf-8")
        planned = attempt["planned_op"] or f"op-{attempt['to_base']}"
        say({"plan": {"planned_op": planned, "starting_op": attempt["starting_op"] or "op-start"}})
        assert json.loads(sys.stdin.readline()) == {"planned": True}
        print(json.dumps(attempt), file=lines, flush=True)
        word = json.loads(lines.readline())
    Path(word["base"]).write_text(attempt["to_base"], encoding="utf-8")
    anchor = {"change_id": "change", "commit_id": f"commit-{attempt['to_base']}", "op_id": planned}
    result = {"result_op": planned, "workspace_commit": f"commit-{attempt['to_base']}", "anchor": anchor}
    say({"reconciled": {**result, "payload": word["payload"]}})


if __name__ == "__main__":
    main(sys.argv[1])
