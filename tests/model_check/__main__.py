"""`python tests/model_check`: put the folder above on the path, whichever way this was started."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from model_check.cli import main  # noqa: E402

main(prog_name="model_check")
