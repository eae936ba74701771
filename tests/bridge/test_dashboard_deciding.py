"""What a human decides on a page: what he is told before, and what comes of it."""

from __future__ import annotations

import pytest
from bridge.dashboard_pages import busy_dashboard, seen, text_of
from bridge.dashboard_world import UNCERTAIN

from fencepost.supervisor.bridge.operator_api import ACTIONS, TEXT_CHARACTERS_MAX


@pytest.fixture
async def busy(tmp_path):
    async with busy_dashboard(tmp_path / "bridge.db") as both:
        yield both


@pytest.mark.parametrize("name", ACTIONS)
async def test_a_confirmation_says_what_it_claims_and_what_not_and_does_nothing(busy, name):
    there, browser = busy
    before = await there.supervisor.status()
    said = await seen(browser, f"/dashboard/actions/{name}?pane=docs")
    for words in (ACTIONS[name].summary, ACTIONS[name].claims, ACTIONS[name].does_not_claim):
        assert " ".join(words.split()) in said
    for field in ACTIONS[name].fields:
        assert f"{field.label} {field.help}" in said
    assert await there.supervisor.status() == before


async def test_a_delivery_is_settled(busy):
    there, browser = busy
    answer = await there.decide(browser, "settle", pane="worker-1", delivery_id=UNCERTAIN, approval="ada: it is gone")
    assert "Settle a delivery: applied It is done, and durable." in text_of(answer.text)
    said = await seen(browser, f"/dashboard/panes/worker-1/deliveries/{UNCERTAIN}")
    assert "Abandoned by a person; whether it arrived stays unknown." in said
    answer = await there.decide(browser, "settle", pane="worker-1", delivery_id=UNCERTAIN, approval="again")
    assert "applied" not in text_of(answer.text)


async def test_an_intent_is_rearmed_and_discarded(busy):
    there, browser = busy
    (intent,) = await there.supervisor.pane("docs").intents()
    said = (await browser.get(f"/dashboard/actions/discard?pane=docs&intent_id={intent.intent_id}")).text
    assert f'value="{intent.approval}"' in said
    answer = await there.decide(browser, "discard", pane="docs", intent_id=intent.intent_id, approval="not this one")
    assert "Discard an intent: refused" in text_of(answer.text)
    assert (await there.supervisor.pane("docs").intents())[0].exhausted_at is not None
    answer = await there.decide(browser, "discard", pane="docs", intent_id=intent.intent_id, approval=intent.approval)
    assert "Discard an intent: applied" in text_of(answer.text)
    assert "docs in sync" in await seen(browser, "/dashboard")
    assert "discarded" in await seen(browser, "/dashboard/panes/docs")
    answer = await there.decide(browser, "rearm", pane="docs", intent_id=intent.intent_id)
    assert "refused" in text_of(answer.text)


async def test_an_intent_is_resolved(busy):
    there, browser = busy
    (intent,) = await there.supervisor.pane("reviewer").intents()
    form = {"pane": "reviewer", "intent_id": intent.intent_id, "resolution": "took ours", "by": "ada"}
    answer = await there.decide(browser, "resolve", **form)
    assert "Resolve an intent: applied" in text_of(answer.text)
    (intent,) = await there.supervisor.pane("reviewer").intents()
    assert (intent.resolution, intent.resolved_by) == ("took ours", "ada")


@pytest.mark.parametrize(
    "form",
    [
        {"pane": "worker-1", "delivery_id": UNCERTAIN, "approval": "x", "confirmed": "no"},
        {"pane": "worker-1", "delivery_id": UNCERTAIN, "approval": "  "},
        {"pane": "worker-1", "delivery_id": UNCERTAIN, "approval": "x" * (TEXT_CHARACTERS_MAX + 1)},
        {"pane": "worker-1", "delivery_id": "no uuid", "approval": "x"},
        {"pane": "", "delivery_id": UNCERTAIN, "approval": "x"},
        {"pane": "worker-1\n", "delivery_id": "\x00", "approval": "x"},
        {"delivery_id": UNCERTAIN},
    ],
)
async def test_a_form_that_is_not_complete_asks_again_and_does_nothing(busy, form):
    there, browser = busy
    before = await there.supervisor.status()
    answer = await there.decide(browser, "settle", **form)
    assert (answer.status_code, "Not done." in answer.text) == (400, True)
    assert await there.supervisor.status() == before
