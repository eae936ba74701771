"""Every route's handler, gathered from the modules that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.supervisor.bridge import handlers, process_api
from fencepost.supervisor.bridge.dashboard import tickets
from fencepost.supervisor.bridge.handlers import Handler
from fencepost.supervisor.bridge.operator_handlers import OPERATOR_HANDLERS

__all__ = ["HANDLERS"]

HANDLERS: Final[Mapping[str, Handler]] = {
    **handlers.HANDLERS,
    **OPERATOR_HANDLERS,
    **process_api.HANDLERS,
    **tickets.HANDLERS,
}
"""By the name of the route."""
