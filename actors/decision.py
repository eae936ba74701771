"""What a pure decision hands to its actor: what to write, what to answer, what to do once that is durable.

A pane decides; the intents it touches own their rows.  So a pane's `Decision` carries its own part of the mutation
and, for each intent, the event that happens to it; the intents add their rows, the whole is committed as one
mutation, and only then everybody applies, acts and answers (design section 3).
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import field, frozen

from fencepost.actors.intent_events import IntentEvent
from fencepost.mailbox.mutation import NewDeadLetter, NewEvent
from fencepost.mailbox.records import IntentRecord, Record

__all__ = ["Decision", "Effect", "Replace", "RetiredIncarnation"]


# -- effects: carried out after the commit ---------------------------------------------------------------------


@frozen
class RetiredIncarnation:
    """The live incarnation was fenced: whoever waits on its behalf must be answered, and its tool batch ends."""


@frozen
class Replace:
    """The runtime wants a replacement process; with a Launcher it stops the old one and starts the new one."""


Effect: TypeAlias = RetiredIncarnation | Replace


# -- decisions -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Decision:
    """One step of a pane.

    `answer` goes to the caller once everything is durable; None with `park` or `again` set means not yet.
    `park` names the intent whose reconciliation the caller waits behind.
    `again` says that the same call is to be decided once more on the new state (an acknowledgement is not an answer:
    the next ordered intent decides the call that acknowledged the last one).
    """

    answer: object = None
    puts: tuple[Record, ...] = ()
    intent_events: tuple[tuple[IntentRecord, IntentEvent], ...] = ()
    """Each intent as the pane last saw it, and what happens to it; in the order of their commit."""
    events: tuple[NewEvent, ...] = ()
    dead_letters: tuple[NewDeadLetter, ...] = ()
    effects: tuple[Effect, ...] = field(default=())
    park: str | None = None
    again: bool = False

    @property
    def writes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.puts or self.intent_events or self.events or self.dead_letters)

    def plus(self, other: Decision) -> Decision:
        """Both steps as one commit: this one's writes first, `other`'s answer."""
        return Decision(
            answer=other.answer,
            puts=self.puts + other.puts,
            intent_events=self.intent_events + other.intent_events,
            events=self.events + other.events,
            dead_letters=self.dead_letters + other.dead_letters,
            effects=self.effects + other.effects,
            park=other.park,
            again=other.again,
        )
