"""Where a bridge keeps its things unless it is told: the user's state directory, by the XDG rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["default_folder"]


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder `fencepost` in the state directory of whoever has this environment; absolute, and not made here.

    A relative `XDG_STATE_HOME` counts as none.  Raises RuntimeError where nothing says which home is the user's.
    """
    state = environment.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "fencepost"
