"""A hook that writes down what it is told, a line of JSON in the file HOOK_LOG names, and for a call does HOOK_DOES."""

import json
import os
import signal
import sys
import time

DENIAL = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "ünïcode\nand more"}

line = sys.stdin.buffer.read().replace(b"\n", b" ") + b"\n"
descriptor = os.open(os.environ["HOOK_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(descriptor, line)
os.close(descriptor)
match os.environ["HOOK_DOES"] if b'"PreToolUse"' in line else "nothing":
    case "deny":
        print(json.dumps({"hookSpecificOutput": DENIAL}))
    case "deny by status":
        sys.exit("why")
    case "deny by status 2":
        print("why", file=sys.stderr)
        sys.exit(2)
    case "half an answer":
        print(json.dumps({"hookSpecificOutput": DENIAL})[:-20])
    case "die":
        os.kill(os.getpid(), signal.SIGKILL)
    case "hang":
        time.sleep(600)
    case _:
        pass
