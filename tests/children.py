"""Child processes that are killed, and what they had said by then."""

from __future__ import annotations

import itertools
import subprocess
import time

SIGKILLED = -9


def told_until_killed(process: subprocess.Popen[str], lines: int, moment: float = 0) -> list[str]:
    """Kill `process` some seconds after it said so many lines; return every whole line it had said when it died.

    A last line that was cut short is left out: nobody was told.  `Popen.communicate` would not do after a line was
    read from `process.stdout`: it reads past what that has buffered, and some line would lose its beginning.
    """
    told = list(itertools.islice(process.stdout, lines))
    time.sleep(moment)
    process.kill()
    told += process.stdout.readlines()
    complaints = process.stderr.read() if process.stderr is not None else ""
    assert (process.wait(), len(told) >= lines) == (SIGKILLED, True), complaints
    return [line for line in told if line.endswith("\n")]
