"""Every error fencepost raises, drawn as one tree.

    FencepostError
    ├── InvalidTransition        the caller asked for something the protocol's tables do not contain
    ├── InvalidIdentifier        (also ValueError) an id that is not 1 to 256 printable ASCII characters
    ├── InvalidStoreUrl          (also ValueError) a store URL of no known scheme or form
    ├── PayloadTooLarge          (also ValueError) more bytes than the bound allows
    ├── LaunchBlocked            an unresolved intent forbids starting a process
    ├── Fenced                   the speaker is retired, unknown or of an older activation
    │   └── OperationEnded       the operation was finalized from outside
    ├── CapabilityExpired        a tool kept its invocation after its outcome was settled
    ├── DuplicateStep            a step name was used twice in one execution
    ├── UnmappedMechanism        a delivery mechanism, or a word of one, has no place on the ladder
    ├── MailboxFull              a bounded inbox has no room and the caller would not wait
    ├── MailboxClosed            the runtime is closing or closed
    ├── ActorCrashed             the activation that held the call died; the store tells how far it got
    ├── ActorQuarantined         the address crashed too often; `supervisor.revive(address)` lets it try again
    ├── MutationRefused          a guard or a constraint of the store refused one mutation; nothing of it is visible
    └── StoreFault               the store failed; sticky, every later call meets the first cause
        ├── StoreOwned           another process owns the store
        ├── SchemaTooNew         a newer fencepost wrote the store
        └── CorruptRecord        a stored record cannot have been written by this protocol

A refusal of the protocol is not an error: it is the value `Refused(reason, detail)`.  Errors are for faults and for
misuse.  What a program needs in order to react is an attribute; the message shows the offending value.
"""

from __future__ import annotations

__all__ = [
    "ActorCrashed",
    "ActorQuarantined",
    "CapabilityExpired",
    "CorruptEvent",
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
]


class FencepostError(Exception):
    """Base of every error this library raises on purpose.  Keeps its attributes through pickling and copying."""

    def __reduce__(self) -> tuple[object, ...]:
        """The class, the message and the attributes: each class has an `__init__` of its own."""
        return (_rebuilt, (type(self), self.args, self.__dict__))


def _rebuilt(
    error_type: type[FencepostError], args: tuple[object, ...], attributes: dict[str, object]
) -> FencepostError:
    error = error_type.__new__(error_type, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class InvalidTransition(FencepostError):  # noqa: N818 - names are the contract's
    """The event has no row in the protocol's table for this state; nothing was written.

    Attributes: `state` and `event` (str, the table's own words), `address` (str) of the actor that refused.
    """

    def __init__(self, message: str, *, state: str = "", event: str = "", address: str = "") -> None:
        super().__init__(message)
        self.state = state
        self.event = event
        self.address = address


class InvalidIdentifier(FencepostError, ValueError):  # noqa: N818
    """An id is not printable ASCII of 1 to 256 characters, or not of its kind's stricter form.

    Attributes: `field` (str), the parameter's name; `value`, what was given.
    """

    def __init__(self, field: str, value: object, rule: str = "must be 1 to 256 printable ASCII characters") -> None:
        shown = repr(value)
        shown = shown if len(shown) <= 300 else f"{shown[:300]}… ({len(shown)} characters)"
        super().__init__(f"{field} {rule}, not {shown}")
        self.field = field
        self.value = value


class InvalidStoreUrl(FencepostError, ValueError):  # noqa: N818
    """A store URL has no known scheme, or not its scheme's form.  Attribute: `url` (str)."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{url!r} names no store: {why}")
        self.url = url


class PayloadTooLarge(FencepostError, ValueError):  # noqa: N818
    """More bytes than the bound.  Attributes: `size` and `limit`, both in bytes."""

    def __init__(self, size: int, limit: int, what: str = "payload") -> None:
        super().__init__(f"{what} has {size} bytes, {limit} are allowed")
        self.size = size
        self.limit = limit


class LaunchBlocked(FencepostError):  # noqa: N818
    """A process may not start while the pane stands as it does (protocol-intent section 8); nothing was started.

    Nothing else has changed either, unless the old process had been retired before this came up (`Pane.launch`).

    Attributes: `intent_id` (str) and `state` (`IntentState`); where no intent is in the way but a process that cannot
    be stopped, "" and "conflicted".
    """

    def __init__(self, intent_id: str, state: str, why: str) -> None:
        of = f"intent {intent_id} is {state}: " if intent_id else ""
        super().__init__(f"no process may start: {of}{why}")
        self.intent_id = intent_id
        self.state = state


class Fenced(FencepostError):  # noqa: N818
    """A retired incarnation, or an older activation of an actor, tried to act; nothing was written but a dead letter.

    Attribute: `incarnation_id` (str, or None where the speaker is an activation).
    """

    def __init__(self, message: str, *, incarnation_id: str | None = None) -> None:
        super().__init__(message)
        self.incarnation_id = incarnation_id


class OperationEnded(Fenced):
    """The operation was finalized from outside; its tools may write nothing more."""


class CapabilityExpired(FencepostError):  # noqa: N818
    """A tool used its invocation after its outcome was settled; nothing was written."""


class DuplicateStep(FencepostError):  # noqa: N818
    """A step name was used twice in one execution of a tool."""


class UnmappedMechanism(FencepostError):  # noqa: N818
    """The ladder does not know this mechanism, or this word of it.  Attributes: `mechanism`, `outcome`."""

    def __init__(self, mechanism: str, outcome: str | None = None) -> None:
        word = "" if outcome is None else f" with outcome {outcome!r}"
        super().__init__(f"mechanism {mechanism!r}{word} has no place on the delivery ladder")
        self.mechanism = mechanism
        self.outcome = outcome

    @classmethod
    def not_given(cls, mechanism: str) -> UnmappedMechanism:
        """The error for a mechanism that may have its place on the ladder and was not given to this runtime."""
        error = cls(mechanism)
        error.args = (f"mechanism {mechanism!r} was not given to this runtime",)
        return error


class MailboxFull(FencepostError):  # noqa: N818
    """The actor's bounded inbox has no room."""


class MailboxClosed(FencepostError):  # noqa: N818
    """The runtime is closing or closed; what was durable stays durable."""


class ActorCrashed(FencepostError):  # noqa: N818
    """The activation that held the call died.  The caller does not know how far it got: ask again, the store knows.

    Attributes: `address` (str), `activation` (int).
    """

    def __init__(self, address: str, activation: int, cause: str = "") -> None:
        super().__init__(f"{address} (activation {activation}) died{': ' + cause if cause else ''}")
        self.address = address
        self.activation = activation


class ActorQuarantined(FencepostError):  # noqa: N818
    """The address crashed too often in too short a time and is not started again until `revive`.

    Attribute: `address` (str).
    """

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is quarantined after repeated crashes; revive it to try again")
        self.address = address


class MutationRefused(FencepostError):  # noqa: N818
    """A guard or a constraint refused this one mutation; nothing of it is visible, the line goes on.

    Attributes: `label` (the mutation's), `table` and `key` of the row that stood in the way, `why`.
    """

    def __init__(self, label: str, table: str, key: tuple[object, ...], why: str) -> None:
        super().__init__(f"{label}: {table}{key!r} {why}")
        self.label = label
        self.table = table
        self.key = key
        self.why = why


class StoreFault(FencepostError):  # noqa: N818
    """The store failed.  It stays failed for this runtime; `__cause__` is the first cause."""


class StoreOwned(StoreFault):
    """Another runtime owns the store.  Attribute: `holder` (str), who, as far as can be told."""

    def __init__(self, where: str, holder: str) -> None:
        super().__init__(f"{where} is owned by {holder}")
        self.holder = holder


class SchemaTooNew(StoreFault):
    """The store's schema is newer than this program knows; it was not touched.  Attributes: `found`, `known`."""

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(f"{where} has schema version {found}, this program knows up to {known}")
        self.found = found
        self.known = known


class CorruptRecord(StoreFault):
    """Stored data that this protocol cannot have written; reported where it is used and never repaired in passing.

    Attributes: `where` (str: file, table and key), `line` (int, or None where the store has no lines), `event_seq`
    (int: the number of the event that cannot be read, so that a follower can go on after it; None for anything else).
    """

    def __init__(self, where: str, why: str, line: int | None = None, event_seq: int | None = None) -> None:
        super().__init__(f"{where}{'' if line is None else f', line {line}'}: {why}")
        self.where = where
        self.line = line
        self.event_seq = event_seq


class CorruptEvent(CorruptRecord):
    """A stored event that cannot be read; its `seq` is the `event_seq`."""

    def __init__(self, where: str, seq: int, why: str) -> None:
        super().__init__(f"{where}: events({seq},)", why, event_seq=seq)
        self.seq = seq
