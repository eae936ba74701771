"""The vocabulary of deliveries: what a bridge hands in, what it is told, and the ends it plugs in.  Pure.

Names and fields are the contract's (Deliveries, D-4 to D-8, D-16, D-24, D-25, D-31).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from attrs import Attribute, field, frozen
from attrs.validators import deep_iterable, instance_of, optional

from fencepost.mailbox.errors import UnmappedMechanism
from fencepost.mailbox.ladder import Stage, Stop, is_mapped
from fencepost.mailbox.text import storable_text

__all__ = [
    "AcceptedTurn",
    "Binding",
    "ChannelMessage",
    "ChannelTurn",
    "DeliveryReport",
    "Dispatcher",
    "FleetSeatMailbox",
    "HarnessSeatControl",
    "HeadSeatOutbox",
    "InboundPost",
    "MailboxEvent",
    "Mechanism",
    "MechanismOutcome",
    "NativeControl",
    "NativeSession",
    "OpenCodeControl",
    "Outbound",
    "Receipt",
    "SendingMechanism",
    "TranscriptEntry",
    "TurnEnd",
    "can_carry",
    "mechanisms_by_name",
    "text_of",
]

OWN_MECHANISM = "intent"
"""How this runtime's own intents report; nobody else can offer it."""


# -- outbound ----------------------------------------------------------------------------------------------------


@frozen
class Outbound:
    """A message for a pane, to be sent `via` one registered mechanism.  Without an id the runtime mints one."""

    text: str = field(validator=instance_of(str), repr=False)
    via: str = field(validator=instance_of(str))
    delivery_id: str | None = field(default=None, validator=optional(instance_of(str)))


@frozen(kw_only=True)
class DeliveryReport:
    """How far a delivery got: exactly one stage or stop, with the mechanism's own words beside it (section 1.3).

    Where nothing was sent because an earlier delivery is unresolved, it is that one's id and mechanism.  The id is None
    only where the call had none and nothing was written: a blank text, or damage that hides what is unresolved.
    """

    delivery_id: str | None
    stage: Stage | None
    stop: Stop | None
    mechanism: str
    outcome: str
    native: str | None = None
    delay: str | None = None
    detail: str | None = None


@frozen
class MailboxEvent:
    """An event handed to whoever polls for a pane; handed out once, and acknowledged by exactly this id."""

    event_id: str
    delivery_id: str
    pane_id: str
    mechanism: str
    text: str = field(repr=False)


@frozen
class MechanismOutcome:
    """What a mechanism says of a dispatch, in its own words; `delay` names a known reason to wait."""

    outcome: str
    native: str | None = None
    delay: str | None = None
    detail: str | None = None


@frozen
class TranscriptEntry:
    """One entry of a native transcript.  Only complete ones of the role `operator` prove anything."""

    entry_id: str = field(validator=instance_of(str))
    role: str = field(validator=instance_of(str))
    text: str = field(validator=instance_of(str), repr=False)
    complete: bool = True


@frozen
class NativeSession:
    """What an inspection of a pane's harness saw; `entries` None means that its transcript could not be read."""

    session_id: str = field(validator=instance_of(str))
    pane_id: str = field(validator=instance_of(str))
    agent: str = field(validator=instance_of(str))
    entries: tuple[TranscriptEntry, ...] | None = field(
        validator=optional(deep_iterable(instance_of(TranscriptEntry), instance_of(tuple | list)))
    )


@frozen
class ChannelMessage:
    """What a chat turn is run with."""

    delivery_id: str
    pane_id: str
    text: str = field(repr=False)


@frozen
class TurnEnd:
    """How a turn ended, in the words of a channel turn (section 2.4)."""

    outcome: str
    native: str | None = None
    text: str | None = field(default=None, repr=False)


# -- mechanisms: the ends a bridge plugs in ------------------------------------------------------------------------


class Mechanism(Protocol):
    """A way to a pane; its name must have a mapping on the ladder.

    One that is none of the classes below and no `SendingMechanism` delivers nothing: the report is UNAVAILABLE.
    """

    @property
    def name(self) -> str:
        """The name `Outbound.via` and the ladder know it by."""
        ...


class SendingMechanism(Mechanism, Protocol):
    """A mechanism of one's own: the record of the delivery is durable before `send` is called.

    Its exception, its silence and a word without a mapping all mean that nobody knows how far the message got.
    """

    async def send(self, message: ChannelMessage) -> MechanismOutcome:
        """Send it, once; answer in the mechanism's own words."""
        ...


class NativeControl(Protocol):
    """A harness that can be looked at and given a turn."""

    async def inspect(self, pane_id: str) -> NativeSession | None:
        """Return the session that runs in the pane now, or None."""
        ...

    async def send(self, session: NativeSession, delivery_id: str, text: str) -> MechanismOutcome:
        """Hand the text to exactly this session; answer `accepted` with queued, started or steered, or `released`."""
        ...


def _seconds(_instance: object, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{attribute.name} must be 0 or more, not {value!r}")


def _optional_callable(_instance: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{attribute.name} must be callable, not {value!r}")


def _seconds_field(default: float) -> float:
    return field(default=default, validator=_seconds, kw_only=True)


Runner: TypeAlias = Callable[[ChannelMessage], Awaitable[TurnEnd]]


@frozen
class HeadSeatOutbox:
    """A seat that polls: it takes an event, acknowledges that id, and may reply to it (section 2.1).

    `grace_seconds` is how long an event waits for a poll, `acknowledge_seconds` how long a taken one for its
    acknowledgement, `reply_seconds` how long after that for a reply.  `fallback` runs the turn here instead where the
    event was never taken, and only there.
    """

    name: str = field(default="head_seat", init=False)
    grace_seconds: float = _seconds_field(5.0)
    acknowledge_seconds: float = _seconds_field(30.0)
    reply_seconds: float = _seconds_field(0.0)
    fallback: Runner | None = field(default=None, validator=_optional_callable, kw_only=True)


@frozen
class FleetSeatMailbox:
    """A worker's bridge that polls; its acknowledgement may say how the harness took the event (section 2.2)."""

    name: str = field(default="fleet_seat", init=False)
    grace_seconds: float = _seconds_field(5.0)
    acknowledge_seconds: float = _seconds_field(30.0)


@frozen
class HarnessSeatControl:
    """A harness driven through its own control channel (section 2.3).

    The session, and what its transcript held before, are durable before anything is sent: only a new entry in the same
    session can prove later that a silent dispatch arrived.
    """

    control: NativeControl
    name: str = field(default="harness_seat", init=False)
    answer_seconds: float = _seconds_field(30.0)


@frozen
class OpenCodeControl(HarnessSeatControl):
    """OpenCode driven through its control, in the words of its own bridge (section 2.5).

    That bridge writes an event down before the harness takes it, so there are two receipts: `pending` and `busy` are
    stored, and a new entry in the original session raises them to consumed as it resolves a silence.
    """

    name: str = field(default="opencode", init=False)


@frozen
class ChannelTurn:
    """A chat turn run by the bridge's `runner` (section 2.4); after `wait_seconds` the report is `pending`."""

    runner: Runner = field(validator=_optional_callable)
    name: str = field(default="channel_turn", init=False)
    wait_seconds: float = _seconds_field(600.0)


def can_carry(mechanism: Mechanism) -> bool:
    """Whether anything can leave by it: a class above, or one's own that can send."""
    built_in = isinstance(mechanism, HeadSeatOutbox | FleetSeatMailbox | HarnessSeatControl | ChannelTurn)
    return built_in or callable(getattr(mechanism, "send", None))


def text_of(value: object) -> str:
    """A word that a bridge's code answered with, as text every store can hold, whatever it is."""
    try:
        return storable_text(str(value))
    except Exception:  # noqa: BLE001 - a bridge's class may do anything here
        return f"<{type(value).__name__} that cannot show itself>"


def mechanisms_by_name(mechanisms: Sequence[Mechanism]) -> dict[str, Mechanism]:
    """The mechanisms a runtime offers.

    Raises `UnmappedMechanism` for one the ladder has no mapping for, ValueError for two of one name and for the name
    of this runtime's own intents.
    """
    offered: dict[str, Mechanism] = {}
    for mechanism in mechanisms:
        name = getattr(mechanism, "name", None)
        if not isinstance(name, str) or not is_mapped(name):
            raise UnmappedMechanism(str(name))
        if name == OWN_MECHANISM:
            raise ValueError(f"the mechanism {name!r} is the runtime's own")
        if name in offered:
            raise ValueError(f"two mechanisms are called {name!r}")
        offered[name] = mechanism
    return offered


# -- inbound -------------------------------------------------------------------------------------------------------


@frozen
class Binding:
    """Which native session speaks for a pane now, as 64 hex digits; None, with a reason, where none does."""

    binding: str | None
    detail: str | None = None


@frozen
class InboundPost:
    """A message a pane sends in.  It may hold anything; what is malformed is answered, not raised (D-31)."""

    delivery_id: str | None
    binding: str | None
    text: str = field(repr=False)


@frozen(kw_only=True)
class Receipt:
    """The answer to a post or a lookup, with the id, binding and fingerprint that were asked for.

    `received` is true exactly when the stage is STORED (DA-16).
    """

    received: bool
    stage: Stage | None
    stop: Stop | None
    delivery_id: str | None
    binding: str | None
    fingerprint: str | None
    detail: str | None = None


@frozen
class AcceptedTurn:
    """An accepted message, handed to the bridge's dispatcher once; `wrapped_text` is what a model may be shown."""

    run_id: str
    delivery_id: str
    pane_id: str
    conversation_id: str
    text: str = field(repr=False)
    wrapped_text: str = field(repr=False)


Dispatcher: TypeAlias = Callable[[AcceptedTurn], Awaitable[TurnEnd]]
"""Runs the turn of an accepted message (D-24).

One that has an attribute `turns_max` is given so many turns of one pane at a time: one message more is refused as
unavailable, before anything of it is written, until a turn of the pane has ended.
"""
