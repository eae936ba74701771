"""The tests' own eyes: what a killed child said is read whole."""

from __future__ import annotations

import subprocess
import sys

from children import told_until_killed

CHATTERBOX = """
import itertools
for number in itertools.count():
    print(number, "x" * (number % 97), flush=True)
"""


def test_lines_that_were_read_ahead_are_not_lost():
    with subprocess.Popen([sys.executable, "-c", CHATTERBOX], stdout=subprocess.PIPE, text=True) as process:
        told = told_until_killed(process, 10, 0.05)
    assert len(told) > 10
    assert told == [f"{number} {'x' * (number % 97)}\n" for number in range(len(told))]
