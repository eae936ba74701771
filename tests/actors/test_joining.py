"""How a pane's decision is divided among the intents it touches."""

from __future__ import annotations

import pytest
from actors.worlds import RESULT, behind, row

from fencepost.actors.calls import Link, OutcomeReported
from fencepost.actors.intent_events import CompleteBatch, MarkDelivered, Prepare, Supersede
from fencepost.actors.joining import chained

FIRST = row("C/o")
SECOND = behind(FIRST, 2)
THIRD = behind(FIRST, 3)
TOKEN = (3, 1)
REPORTED = OutcomeReported(FIRST.intent_id, TOKEN, RESULT)
PREPARE, COMPLETE, MARK = Prepare(result=RESULT, live=True), CompleteBatch(), MarkDelivered()
SUPERSEDE = Supersede(by_intent_id=FIRST.intent_id)


def test_an_intent_has_one_link_with_all_its_events_in_order():
    links = chained([(FIRST, MARK), (SECOND, SUPERSEDE), (FIRST, COMPLETE)])
    assert links == (
        Link(seen=FIRST, events=(MARK, COMPLETE)),
        Link(seen=SECOND, events=(SUPERSEDE,)),
    )


@pytest.mark.parametrize("place", range(3))
def test_the_token_is_on_the_link_of_the_reported_intent_wherever_that_stands(place):
    events = [(SECOND, SUPERSEDE), (THIRD, SUPERSEDE)]
    events.insert(place, (FIRST, PREPARE))
    links = chained(events, REPORTED)
    assert [link.seen for link in links] == [intent for intent, _ in events]
    assert [link.attempt for link in links] == [TOKEN if intent is FIRST else None for intent, _ in events]


def test_a_report_that_happens_to_no_intent_of_the_chain_is_no_chain():
    with pytest.raises(AssertionError):
        chained([(SECOND, SUPERSEDE)], REPORTED)


def test_nothing_reported_nothing_to_compare():
    assert [link.attempt for link in chained([(FIRST, PREPARE), (SECOND, SUPERSEDE)])] == [None, None]
