"""Who lives, who is dead, and who says so; and every public name of fencepost in one place.

    from fencepost.supervisor import open_supervisor

Names resolve on first use.  This package exports what the two below it export, and its own: to export one more, add it
to `_EXPORTS` and to the imports below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.mailbox._lazy import lazy_exports

_EXPORTS: Final[dict[str, tuple[str, ...]]] = {
    "fencepost.supervisor.chaos": ("Chaos", "SweepResult"),
    "fencepost.supervisor.hosts": ("CallbackStopped",),
    "fencepost.supervisor.invariants": ("Violation", "check"),
    "fencepost.supervisor.options": ("Options",),
    "fencepost.supervisor.pump": ("ChannelPump", "NotificationSink", "PumpSource", "PumpStopped"),
    "fencepost.supervisor.runtime": ("open_supervisor",),
    "fencepost.supervisor.status": ("RuntimeStatus",),
    "fencepost.supervisor.pane": ("Pane",),
    "fencepost.supervisor.supervisor": ("IntentHandle", "Supervisor"),
    "fencepost.supervisor.tool_batch": ("ToolBatch",),
}

if TYPE_CHECKING:
    from fencepost.actors import *
    from fencepost.mailbox import *
    from fencepost.supervisor.chaos import Chaos as Chaos, SweepResult as SweepResult
    from fencepost.supervisor.hosts import CallbackStopped as CallbackStopped
    from fencepost.supervisor.invariants import Violation as Violation, check as check
    from fencepost.supervisor.options import Options as Options
    from fencepost.supervisor.pane import Pane as Pane
    from fencepost.supervisor.pump import (
        ChannelPump as ChannelPump,
        NotificationSink as NotificationSink,
        PumpSource as PumpSource,
        PumpStopped as PumpStopped,
    )
    from fencepost.supervisor.runtime import open_supervisor as open_supervisor
    from fencepost.supervisor.status import RuntimeStatus as RuntimeStatus
    from fencepost.supervisor.supervisor import IntentHandle as IntentHandle, Supervisor as Supervisor
    from fencepost.supervisor.tool_batch import ToolBatch as ToolBatch
else:
    from fencepost.actors import __all__ as _actors
    from fencepost.mailbox import __all__ as _mailbox

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__, {"fencepost.actors": tuple(_actors), "fencepost.mailbox": tuple(_mailbox), **_EXPORTS}
    )
