"""How a message gets somewhere and is kept: addresses, records, the delivery ladder, the mutation line, the stores.

Names resolve on first use.  To export one, add it to `_EXPORTS` and to the imports below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.mailbox._lazy import lazy_exports

_EXPORTS: Final[dict[str, tuple[str, ...]]] = {
    "fencepost.mailbox": ("ladder",),
    "fencepost.mailbox.claim_record": ("fingerprint_of",),
    "fencepost.mailbox.claimed_sender": ("ClaimedSender", "Response", "SendReport", "Transport"),
    "fencepost.mailbox.errors": (
        "ActorCrashed",
        "ActorQuarantined",
        "CapabilityExpired",
        "CorruptRecord",
        "DuplicateStep",
        "Fenced",
        "FencepostError",
        "InvalidIdentifier",
        "InvalidStoreUrl",
        "InvalidTransition",
        "LaunchBlocked",
        "MailboxClosed",
        "MailboxFull",
        "MutationRefused",
        "OperationEnded",
        "PayloadTooLarge",
        "SchemaTooNew",
        "StoreFault",
        "StoreOwned",
        "UnmappedMechanism",
    ),
    "fencepost.mailbox.ladder": ("Fallback", "Following", "Reach", "Retry", "Stage", "Stop"),
    "fencepost.mailbox.mutation": ("DeadLetter", "Event"),
    "fencepost.mailbox.ports": ("Clock", "IdSource"),
    "fencepost.mailbox.records": (
        "BatchMode",
        "CallStatus",
        "Checkpoint",
        "DeliveryMode",
        "IntentState",
        "Replay",
        "TransitionKind",
    ),
}

if TYPE_CHECKING:
    from fencepost.mailbox import ladder as ladder
    from fencepost.mailbox.claim_record import fingerprint_of as fingerprint_of
    from fencepost.mailbox.claimed_sender import (
        ClaimedSender as ClaimedSender,
        Response as Response,
        SendReport as SendReport,
        Transport as Transport,
    )
    from fencepost.mailbox.errors import (
        ActorCrashed as ActorCrashed,
        ActorQuarantined as ActorQuarantined,
        CapabilityExpired as CapabilityExpired,
        CorruptRecord as CorruptRecord,
        DuplicateStep as DuplicateStep,
        Fenced as Fenced,
        FencepostError as FencepostError,
        InvalidIdentifier as InvalidIdentifier,
        InvalidStoreUrl as InvalidStoreUrl,
        InvalidTransition as InvalidTransition,
        LaunchBlocked as LaunchBlocked,
        MailboxClosed as MailboxClosed,
        MailboxFull as MailboxFull,
        MutationRefused as MutationRefused,
        OperationEnded as OperationEnded,
        PayloadTooLarge as PayloadTooLarge,
        SchemaTooNew as SchemaTooNew,
        StoreFault as StoreFault,
        StoreOwned as StoreOwned,
        UnmappedMechanism as UnmappedMechanism,
    )
    from fencepost.mailbox.ladder import (
        Fallback as Fallback,
        Following as Following,
        Reach as Reach,
        Retry as Retry,
        Stage as Stage,
        Stop as Stop,
    )
    from fencepost.mailbox.mutation import DeadLetter as DeadLetter, Event as Event
    from fencepost.mailbox.ports import Clock as Clock, IdSource as IdSource
    from fencepost.mailbox.records import (
        BatchMode as BatchMode,
        CallStatus as CallStatus,
        Checkpoint as Checkpoint,
        DeliveryMode as DeliveryMode,
        IntentState as IntentState,
        Replay as Replay,
        TransitionKind as TransitionKind,
    )
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _EXPORTS)
