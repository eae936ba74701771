"""One mutation made of several actors' parts (design section 3).

What a pane decides may happen to intents too, whose rows only their own actors write.  So the pane's part travels along
a chain of `Link`s, one an intent: each actor checks and adds its own part and hands the whole on, the last commits it.
The answer, everything that was put, comes back the same way, and each applies its part when it passes.

* An intent is in a chain once, with all that happens to it.  Were it asked a second time, it would wait for itself.
* Nothing is committed before the end of the chain, so whoever refuses, wherever it stands, refuses for all.  That is
  how the report of an outdated attempt at reconciling is fenced: the link of the intent it speaks of carries the
  attempt's token, and its actor compares.
* If an actor dies on the way, only the store knows whether the commit happened; the pane then reads itself anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.actors.actor import System
from fencepost.actors.calls import Join, Link, OutcomeReported
from fencepost.actors.intent_events import IntentEvent
from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.records import IntentRecord, Record

__all__ = ["chained", "join"]


def chained(
    intent_events: Iterable[tuple[IntentRecord, IntentEvent]], reported: OutcomeReported | None = None
) -> tuple[Link, ...]:
    """A link for each intent, in the order they come first, each with its events in order.

    `reported` is the outcome these events come of; the link of its intent carries the token of its attempt.
    """
    seen: dict[str, IntentRecord] = {}
    events: dict[str, tuple[IntentEvent, ...]] = {}
    for intent, event in intent_events:
        seen.setdefault(intent.intent_id, intent)
        events[intent.intent_id] = (*events.get(intent.intent_id, ()), event)
    # A token that no link carries would be compared by nobody.
    assert reported is None or reported.intent_id in seen
    return tuple(
        Link(
            seen=intent,
            events=events[intent_id],
            attempt=reported.activation if reported is not None and reported.intent_id == intent_id else None,
        )
        for intent_id, intent in seen.items()
    )


async def join(system: System, links: tuple[Link, ...], part: Mutation, now: int) -> tuple[Record, ...]:
    """Have the actors of `links` add their parts to `part` and commit it; everything put is durable on return.

    Raises what any of them refuses with, `ActorCrashed` if one died (it may be committed then), `ActorQuarantined` if
    one was never asked (it is not).
    """
    address = f"intent:{links[0].seen.intent_id}"
    answer = await system.ask(address, Join(links, part, now))
    if not isinstance(answer, tuple):
        raise CorruptRecord(address, f"a join was answered with {answer!r}")
    return answer
