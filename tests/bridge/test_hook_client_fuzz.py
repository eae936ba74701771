"""The hook program under any input: it decides, in words its harness knows, whatever it was handed."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hook_programs import PROGRAM
from hypothesis import HealthCheck, given, settings, strategies as st

NAMES = st.sampled_from(
    ["hook_event_name", "session_id", "tool_use_id", "prompt_id", "transcript_path", "agent_id", "x"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("PreToolUse")
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
EVENTS = st.dictionaries(NAMES, VALUES, max_size=5).map(lambda event: json.dumps(event).encode())
INPUTS = st.one_of(
    EVENTS,
    EVENTS.map(lambda event: event[:-1]),
    EVENTS.map(lambda event: event * 2),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=200),
    st.sampled_from([b"", b"\0", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe{}", b'"' + b"x" * 300_000]),
)
VARIABLES = st.dictionaries(
    st.sampled_from(["FENCEPOST_PANE", "FENCEPOST_INCARNATION", "FENCEPOST_SOCKET", "FENCEPOST_STORE"]),
    st.sampled_from(["", "p", "/nowhere/local.sock", "sqlite:////nowhere/bridge.db", "jsonl:///x", "%00", "é\x1b[31m"]),
)
KINDS = st.sampled_from(["PreToolUse", "UserPromptSubmit", "PostToolBatch", "Stop", "", "\x1b"])


def decide(kind: str, harness: str, said: bytes, variables: dict[str, str]) -> None:
    """No bridge answers and no store can be read, so a tool call is denied and nothing else is said."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PATH": os.environ["PATH"], "HOME": folder, **variables}
        ran = subprocess.run(
            [*PROGRAM, "--harness", harness, "--event", kind, "--deadline", "2"],
            input=said,
            env=environment,
            cwd=folder,
            capture_output=True,
            timeout=60,
            check=False,
        )
        left = sorted(path.name for path in Path(folder).rglob("*"))
    assert (ran.returncode, b"Traceback" in ran.stderr, left) == (0, False, []), ran
    if ran.stdout:
        decision = json.loads(ran.stdout)["hookSpecificOutput"]
        assert (decision["hookEventName"], decision["permissionDecision"]) == ("PreToolUse", "deny")
    if kind == "PreToolUse":
        assert ran.stdout


FUZZED = given(KINDS, st.sampled_from(["claude-code", "codex", "", "x\x1b"]), INPUTS, VARIABLES)
UNHURRIED = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=30, **UNHURRIED)
@FUZZED
def test_whatever_it_is_handed_it_decides(kind, harness, said, variables):
    decide(kind, harness, said, variables)


@pytest.mark.slow
@settings(max_examples=600, **UNHURRIED)
@FUZZED
def test_whatever_it_is_handed_it_decides_for_long(kind, harness, said, variables):
    decide(kind, harness, said, variables)
