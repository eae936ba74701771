"""A reconciling program: does what its argument says, with the protocol of `reconciling`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ANCHOR = {"change_id": "change", "commit_id": "commit", "op_id": "op"}


def say(**members: object) -> None:
    print(json.dumps(members), flush=True)


def reconciled(**more: object) -> None:
    settled = {"result_op": "op-2", "workspace_commit": "commit-2", "payload": "Read again: ünïcode\n"}
    say(reconciled={**settled, "anchor": ANCHOR, **more})


def main(how: str, *more: str) -> int:
    attempt = json.loads(sys.stdin.readline())["attempt"]
    match how:
        case "plan":
            say(plan={"planned_op": "op-2", "starting_op": "op-1"})
            assert json.loads(sys.stdin.readline()) == {"planned": True}
            Path(more[0]).write_text(json.dumps({"attempt": attempt, "cwd": str(Path.cwd())}))
            reconciled()
        case "plain":
            reconciled()
        case "recovery":
            say(needs_recovery={"reason": "two heads", "details": {"heads": ["a", "b"]}})
        case "diverged":
            say(diverged={"reason": "no target"})
        case "line":
            print(more[0], flush=True)
        case "status":
            reconciled()
            return 3
        case "silent":
            print("it hurts", file=sys.stderr)
        case "more":
            reconciled()
            print(more[0], flush=True)
        case "deaf":
            os.close(0)
            say(plan={"planned_op": "op-2", "starting_op": "op-1"})
            time.sleep(600)
        case "binary":
            sys.stdout.buffer.write(bytes(range(256)) + b"\n")
        case "floods":
            sys.stderr.write("x" * 10_000_000 + "the end")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        case "lingers":  # what it leaves behind has its stdout and stderr, and writes on
            reconciled()
            child = subprocess.Popen([sys.executable, "-c", "while True: print(flush=True)"], start_new_session=True)
            Path(more[0]).write_text(str(child.pid))
        case "waits":
            reconciled()
            time.sleep(600)
        case "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            Path(more[0]).write_text(f"{os.getpid()} {child.pid}")
            time.sleep(600)
        case _:
            raise ValueError(how)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
