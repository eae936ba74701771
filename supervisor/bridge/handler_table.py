"""Every route's handler, gathered from the modules that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.supervisor.bridge import handlers, process_api
from fencepost.supervisor.bridge.handlers import Handler

__all__ = ["HANDLERS"]

HANDLERS: Final[Mapping[str, Handler]] = {**handlers.HANDLERS, **process_api.HANDLERS}
"""By the name of the route."""
