"""What only a human can decide, each with what it claims and what it does not: settle, resolve, rearm, discard, revive.

The table is for whoever asks a human: a confirmation page, a command line.  It tells every argument, and its sentences
are the ones that he agrees to.  Nothing here decides anything; the pane and the supervisor do, and they may refuse.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from attrs import field, frozen

from fencepost.supervisor import Answer, Supervisor
from fencepost.supervisor.bridge.wire import Malformed

__all__ = ["ACTIONS", "TEXT_CHARACTERS_MAX", "Action", "Field", "Run", "read_fields"]

TEXT_CHARACTERS_MAX: Final = 4_096
"""Characters of a field; whoever decides something says so in a few sentences."""

Run: TypeAlias = Callable[[Supervisor, str, Mapping[str, str]], Awaitable[Answer]]
"""Takes the supervisor, a pane id and the fields by name; raises what the runtime raises for them."""


@frozen
class Field:
    """One argument of an action; its value is text."""

    name: str
    """As the JSON body has it."""
    label: str
    """For a form."""
    help: str
    """One sentence: what belongs there."""


@frozen
class Action:
    """One thing a human may decide."""

    name: str
    title: str
    summary: str
    """One sentence: what is done, in the imperative."""
    claims: str
    """What he who confirms it states, and what is so afterwards."""
    does_not_claim: str
    """What it might be taken for, and is not."""
    fields: tuple[Field, ...]
    run: Run = field(repr=False, kw_only=True)
    """Do it.  What it answers is durable; `Refused` changes nothing but one more dead letter.

    Raises `InvalidIdentifier` or ValueError for a field that is malformed, and what every handle may raise.
    """
    starts: bool = field(default=False, kw_only=True)
    """Whether a pane that was ended may be given a process by it."""


async def _settle(supervisor: Supervisor, pane_id: str, fields: Mapping[str, str]) -> Answer:
    return await supervisor.pane(pane_id).settle(fields["delivery_id"], fields["approval"])


async def _resolve(supervisor: Supervisor, pane_id: str, fields: Mapping[str, str]) -> Answer:
    return await supervisor.pane(pane_id).resolve(fields["intent_id"], fields["resolution"], fields["by"])


async def _rearm(supervisor: Supervisor, pane_id: str, fields: Mapping[str, str]) -> Answer:
    return await supervisor.pane(pane_id).rearm(fields["intent_id"])


async def _discard(supervisor: Supervisor, pane_id: str, fields: Mapping[str, str]) -> Answer:
    return await supervisor.pane(pane_id).discard(fields["intent_id"], fields["approval"])


async def _revive(supervisor: Supervisor, _pane_id: str, fields: Mapping[str, str]) -> Answer:
    return await supervisor.revive(fields["address"])


_INTENT: Final = Field("intent_id", "Intent", "The id of the intent.")

_ACTIONS: Final = (
    Action(
        name="settle",
        title="Settle a delivery",
        summary="Give an uncertain delivery up, in either direction, and free what it fences.",
        claims=(
            "Nobody will find out any more what became of this delivery, and somebody decided to go on without knowing."
            "  It is recorded as abandoned, with who decided so.  Its id is never sent or accepted again, and what"
            " it fenced is free."
        ),
        does_not_claim=(
            "It does not say that the message arrived, nor that it did not: its outcome stays unknown, and later"
            ' reports of it stay uncertain ("abandoned, outcome unknown").  Nothing is sent again and nothing is taken'
            " back, so a message sent anew may be read twice.  The claim that a client keeps of a message of its own is"
            " settled there, not here."
        ),
        fields=(
            Field("delivery_id", "Delivery", "The id of the uncertain delivery, a lower-case UUID."),
            Field("approval", "Approval", "Who decided it, and why; recorded as it stands."),
        ),
        run=_settle,
    ),
    Action(
        name="resolve",
        title="Resolve an intent",
        summary="Record a human's choice for an intent that needs recovery or diverged, and go on with it.",
        claims=(
            "Somebody looked at why the workspace could not be brought onto its base, and chose how to go on.  The"
            " choice and who made it are recorded, and reconciling goes on as an attempt that is resumed: it probes"
            " before it changes anything.  A diverged intent that was never bound waits for the next tool call of a"
            " process that lives or may still live."
        ),
        does_not_claim=(
            "It does not repair the workspace or change any file by itself, and it does not say that the result is"
            " right: the reconciler does the work, and may find that it needs recovery again.  Nothing is delivered and"
            " nothing is acknowledged by it."
        ),
        fields=(
            _INTENT,
            Field("resolution", "Resolution", "What was chosen; the reconciler is told."),
            Field("by", "Decided by", "Who chose it."),
        ),
        run=_resolve,
    ),
    Action(
        name="rearm",
        title="Rearm an intent",
        summary="Grant an exhausted intent a new epoch of attempts to start a process with its payload.",
        claims=(
            "What made the attempts fail is believed to be gone, so the pane may start processes again, each with the"
            " saved payload as its first input.  The exhausted mark is removed and the attempts are counted anew; the"
            " pane may be given its next process at once."
        ),
        does_not_claim=(
            "It does not say that the payload was delivered, and proves nothing about the attempts that failed: one of"
            " them may have shown the payload, so it may be seen twice.  The payload stays the same bytes, and the new"
            " attempts may be exhausted too."
        ),
        fields=(_INTENT,),
        run=_rearm,
        starts=True,
    ),
    Action(
        name="discard",
        title="Discard an intent",
        summary="Give an exhausted delivery of an intent up, with the one-shot approval that the intent shows.",
        claims=(
            "The agent need not be told of this change of base by the bridge any more.  The intent is closed for good,"
            " as discarded, and the approval is used up; the pane goes on with its next intent, or may start a process"
            " plainly if there is none."
        ),
        does_not_claim=(
            "It does not say that the agent knows of the change: no delivery is claimed, and nothing is sent to it."
            "  The files of the workspace stay on the new base, so the agent may go on with a picture of them that is"
            " out of date.  It cannot be taken back."
        ),
        fields=(_INTENT, Field("approval", "Approval", "The one-shot token that the exhausted intent shows.")),
        run=_discard,
    ),
    Action(
        name="revive",
        title="Revive an actor",
        summary="Let an actor that was quarantined after repeated crashes try again.",
        claims=(
            "What made the actor crash is believed to be gone.  Its crashes are forgotten, and it is started again from"
            " what the store holds."
        ),
        does_not_claim=(
            "It does not repair anything: no stored row is changed, and an actor whose cause still stands crashes again"
            " and is quarantined again.  Calls that failed meanwhile are not repeated."
        ),
        fields=(Field("address", "Address", "The address of the quarantined actor, as the status names it."),),
        run=_revive,
    ),
)

ACTIONS: Final[Mapping[str, Action]] = MappingProxyType({action.name: action for action in _ACTIONS})
"""By name, in the order in which they are best shown.  `revive` has no pane: what it is given for one is not read."""


def read_fields(action: Action, given: Mapping[str, object]) -> dict[str, str]:
    """The action's fields out of a JSON body or a form, all of them; others are ignored.

    Raises `Malformed`, whose text names the field and repeats nothing.  What is no text, blank or too long is refused
    here; the form of an id is judged by the runtime.
    """
    return {one.name: _text(given.get(one.name), one.name) for one in action.fields}


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Malformed(f"{name} is required: text that is not blank")
    if len(value) > TEXT_CHARACTERS_MAX:
        raise Malformed(f"{name} must have {TEXT_CHARACTERS_MAX} characters at most")
    return value
