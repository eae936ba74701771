"""What the harnesses say of their own options is what a start takes for one (`commands`)."""

from __future__ import annotations

import re
import subprocess

import pytest
from e2e.claude_home import CLAUDE, needs_claude
from e2e.codex_place import CODEX, needs_codex

from fencepost.supervisor.bridge.launchers.commands import HARNESSES, Takes

OPTION = re.compile(r"^ {2,6}(-\w), (--[\w-]+)|^ {2,6}(--[\w-]+)(?:, (--[\w-]+))?", re.MULTILINE)
VALUE = {"": Takes.NOTHING, "<": Takes.ONE, "[": Takes.MAYBE_ONE}


def helped(program: str, *words: str) -> dict[str, Takes]:
    """The options of a help, by what they take."""
    said = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    found: dict[str, Takes] = {}
    for match in OPTION.finditer(said):
        value = re.match(r" ([<\[])[^>\]]*[>\]](\.\.\.)?|", said[match.end() :])
        assert value is not None
        several = "..." in value[0]
        takes = Takes.ALL if several else VALUE[value[1] or ""]
        found |= {name: takes for name in match.groups() if name is not None}
    return {name: takes for name, takes in found.items() if name not in {"-h", "--help", "-v", "-V", "--version"}}


@pytest.mark.parametrize(
    ("harness", "program", "words"),
    [
        pytest.param("claude-code", CLAUDE, [], marks=needs_claude),
        pytest.param("codex", CODEX, [], marks=needs_codex),
        pytest.param("codex", CODEX, ["exec"], marks=needs_codex),
    ],
)
def test_each_option_takes_what_its_harness_says(harness: str, program: str, words: list[str]) -> None:
    row = HARNESSES[harness]
    said = helped(program, *words)
    assert len(said) > 20
    known = {name: row.options.get(name) for name in said if name not in row.ours}
    assert known == {name: takes for name, takes in said.items() if name in known}
