"""Who owns which state: the actors, their pure protocols, and the messages they answer.

Names resolve on first use.  To export one, add it to `_EXPORTS` and to the imports below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.mailbox._lazy import lazy_exports

_EXPORTS: Final[dict[str, tuple[str, ...]]] = {
    "fencepost.actors.intent_actor": ("Attempt",),
    "fencepost.actors.invocation": ("Invocation",),
    "fencepost.actors.messages": (
        "Allow",
        "Anchor",
        "Answer",
        "Applied",
        "AttemptView",
        "BaseTransition",
        "BlockGeneric",
        "BlockPayload",
        "BlockRestart",
        "Capabilities",
        "Decision",
        "DetectedIntent",
        "Diverged",
        "IncarnationView",
        "IntentView",
        "Launch",
        "Launcher",
        "ModelTurn",
        "NeedsRecovery",
        "Reason",
        "Reconciled",
        "Reconciler",
        "Refused",
        "StartupDelivery",
        "SyncStatus",
        "ToolBoundary",
        "Transcript",
        "Unchanged",
    ),
    "fencepost.actors.tool_messages": (
        "BatchOutcome",
        "Block",
        "CallView",
        "Hooks",
        "LaneSnapshot",
        "PlannedCall",
        "Replace",
        "ResultEntry",
        "Running",
        "Settled",
        "Tool",
        "ToolResult",
    ),
    "fencepost.actors.tools.bash": ("bash_tool",),
}

if TYPE_CHECKING:
    from fencepost.actors.intent_actor import Attempt as Attempt
    from fencepost.actors.invocation import Invocation as Invocation
    from fencepost.actors.messages import (
        Allow as Allow,
        Anchor as Anchor,
        Answer as Answer,
        Applied as Applied,
        AttemptView as AttemptView,
        BaseTransition as BaseTransition,
        BlockGeneric as BlockGeneric,
        BlockPayload as BlockPayload,
        BlockRestart as BlockRestart,
        Capabilities as Capabilities,
        Decision as Decision,
        DetectedIntent as DetectedIntent,
        Diverged as Diverged,
        IncarnationView as IncarnationView,
        IntentView as IntentView,
        Launch as Launch,
        Launcher as Launcher,
        ModelTurn as ModelTurn,
        NeedsRecovery as NeedsRecovery,
        Reason as Reason,
        Reconciled as Reconciled,
        Reconciler as Reconciler,
        Refused as Refused,
        StartupDelivery as StartupDelivery,
        SyncStatus as SyncStatus,
        ToolBoundary as ToolBoundary,
        Transcript as Transcript,
        Unchanged as Unchanged,
    )
    from fencepost.actors.tool_messages import (
        BatchOutcome as BatchOutcome,
        Block as Block,
        CallView as CallView,
        Hooks as Hooks,
        LaneSnapshot as LaneSnapshot,
        PlannedCall as PlannedCall,
        Replace as Replace,
        ResultEntry as ResultEntry,
        Running as Running,
        Settled as Settled,
        Tool as Tool,
        ToolResult as ToolResult,
    )
    from fencepost.actors.tools.bash import bash_tool as bash_tool
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _EXPORTS)
