"""Every page over a store without anything in it, and over one with everything."""

from __future__ import annotations

import html
import re

import pytest
from bridge.dashboard_pages import BATCH, busy_dashboard, crawl, seen, text_of
from bridge.dashboard_world import POSTED, QUEUED, REACHED, TEXT, dashboard_world

from fencepost.supervisor import SyncStatus
from fencepost.supervisor.bridge.dashboard import views
from fencepost.supervisor.bridge.dashboard.shown import SHOWN_MAX, shown


@pytest.fixture
async def busy(tmp_path):
    async with busy_dashboard(tmp_path / "bridge.db") as both:
        yield both


# -- empty -------------------------------------------------------------------------------------------------------------


async def test_an_empty_store(tmp_path):
    async with dashboard_world(tmp_path / "bridge.db") as there, there.browser() as browser:
        pages = await crawl(browser)
        assert set(pages) == {"/dashboard", "/dashboard/dead-letters", "/dashboard/health"}
        assert "No panes yet." in pages["/dashboard"]
        assert "No call was refused or fenced." in pages["/dashboard/dead-letters"]
        assert "The store works." in pages["/dashboard/health"]
        for path in ("panes/x", "panes/x/intents/y", "panes/x/batches/y", f"panes/x/deliveries/{POSTED}", "actions/x"):
            answer = await browser.get(f"/dashboard/{path}")
            assert (answer.status_code, "Not here" in answer.text) == (404, True)


# -- busy --------------------------------------------------------------------------------------------------------------


async def test_every_page_that_is_linked_is_there(busy):
    _, browser = busy
    pages = await crawl(browser)
    kinds = {
        re.sub(r"(panes|intents|batches|deliveries|actions)/[^/?]+", r"\1/*", path.partition("?")[0]) for path in pages
    }
    assert kinds == {
        "/dashboard",
        "/dashboard/dead-letters",
        "/dashboard/health",
        "/dashboard/panes/*",
        "/dashboard/panes/*/intents/*",
        "/dashboard/panes/*/batches/*",
        "/dashboard/panes/*/deliveries/*",
        "/dashboard/actions/*",
    }


async def test_the_fleet_says_how_each_pane_stands_as_the_panes_do(busy):
    there, browser = busy
    said = await seen(browser, "/dashboard")
    words = {SyncStatus.IN_SYNC: "in sync", SyncStatus.PENDING: "pending", SyncStatus.CONFLICTED: "conflicted"}
    for pane_id in ("lead", "worker-1", "worker-2", "reviewer", "docs", "spare"):
        status = await there.supervisor.pane(pane_id).sync_status()
        assert f"{pane_id} {words[status]} " in said
    assert "6 panes: 2 conflicted, 1 pending, 3 in sync." in said
    assert "docs Intent #1 exhausted" in said
    assert "reviewer Intent #1 needs recovery A person must resolve the workspace: two files were edited" in said
    assert "worker-1 Message by opencode" in said
    assert "Written to the harness: waits for batch batch-7 to complete." in said
    assert "batch, 2 of 5 placed" in said


async def test_a_large_fleet_is_cut_and_those_that_need_somebody_come_first(busy, monkeypatch):
    _, browser = busy
    monkeypatch.setattr(views, "PANES_MAX", 2)
    monkeypatch.setattr(views, "TASKS_MAX", 1)
    said = await seen(browser, "/dashboard")
    assert "6 panes: 2 conflicted, 1 pending, 3 in sync." in said
    assert re.findall(r"(\S+) (?:conflicted|pending|in sync) ", said.partition("Panes Pane")[2]) == ["docs", "reviewer"]
    assert "4 more panes not shown" in said
    assert "docs Intent #1 exhausted" in said
    assert "2 more not shown." in said


async def test_a_pane_tells_its_processes_intents_and_messages(busy):
    _, browser = busy
    said = await seen(browser, "/dashboard/panes/lead")
    assert "claude-code runs, epoch 3" in said
    assert said.count("replaced") >= 2
    assert "Reached the pane, not yet consumed." in said
    assert "Accepted, and its turn ended: settled." in said
    said = await seen(browser, "/dashboard/panes/docs")
    assert "start 3 with a payload" in said
    assert "it did not come up within 30 s" in said


async def test_an_intent_tells_its_journey(busy):
    there, browser = busy
    (acknowledged,) = await there.supervisor.pane("lead").intents()
    said = await seen(browser, f"/dashboard/panes/lead/intents/{acknowledged.intent_id}")
    steps = ["Detected", "Reconciling", "Materialized", "Delivered", "Batch completed", "Acknowledged"]
    assert re.findall(r"(Detected|Reconciling|Materialized|Delivered|Batch completed|Acknowledged) 09:", said) == steps
    assert "What comes next" not in said
    pending, behind = await there.supervisor.pane("worker-1").intents()
    said = await seen(browser, f"/dashboard/panes/worker-1/intents/{pending.intent_id}")
    assert "Bound to turn turn-7, batch batch-7" in said
    assert "Batch completed not yet" in said
    said = await seen(browser, f"/dashboard/panes/worker-1/intents/{behind.intent_id}")
    assert f"What comes next Waits for intent {pending.intent_id}, which comes first." in said


async def test_a_batch_shows_the_order_of_completion(busy):
    _, browser = busy
    page = (await browser.get(f"/dashboard/panes/worker-2/batches/{BATCH}")).text
    assert "2 completed before one that stands earlier" in text_of(page)
    slopes = re.findall(r'<line class="(\w+)" x1="4%" y1="(\d+)" x2="58%" y2="(\d+)"', page)
    assert slopes == [("cross", "15", "75"), ("cross", "45", "15"), ("cross", "135", "45")]
    assert page.count('class="run open"') == 2 + 1  # two that run, and the legend


async def test_dead_letters_tell_who_was_fenced_and_why(busy):
    _, browser = busy
    said = await seen(browser, "/dashboard/dead-letters")
    assert "mark_delivered to pane:lead It came from a process that had been retired." in said
    assert "claude-code, epoch 1 of lead retired" in said


@pytest.mark.parametrize(
    ("path", "name", "secret"),
    [
        (f"panes/lead/deliveries/{QUEUED}", "text", TEXT),
        (f"panes/lead/deliveries/{REACHED}", "text", "The build is green."),
        (f"panes/lead/deliveries/{POSTED}", "text", "I am done with the parser."),
        (f"panes/worker-2/batches/{BATCH}", "1", "lexer is done"),
    ],
)
async def test_a_text_is_shown_only_where_it_is_asked_for(busy, path, name, secret):
    _, browser = busy
    assert secret not in await seen(browser, f"/dashboard/{path}")
    assert secret not in await seen(browser, f"/dashboard/{path}?show=other")
    assert secret in await seen(browser, f"/dashboard/{path}?show={name}")


async def test_no_page_shows_a_payload_unasked(busy):
    there, browser = busy
    payloads = [
        one.payload for pane in ("lead", "worker-1", "docs") for one in await there.supervisor.pane(pane).intents()
    ]
    secrets = [*(one.decode() for one in payloads if one), TEXT, "is done", "I am done"]
    for path, page in (await crawl(browser)).items():
        assert not [one for one in secrets if one in html.unescape(page)], path
    (intent,) = await there.supervisor.pane("lead").intents()
    said = (await browser.get(f"/dashboard/panes/lead/intents/{intent.intent_id}?show=payload")).text
    assert intent.payload.decode() in html.unescape(said)


def test_what_is_shown_is_cut_and_spelled_out():
    cut = shown("ü" * (SHOWN_MAX + 1))
    assert (cut.length, len(cut.text), cut.is_cut) == (2 * (SHOWN_MAX + 1), SHOWN_MAX, True)
    assert not shown("x" * SHOWN_MAX).is_cut
    assert shown(b"\xff\x00\x1b[31m\r\n\xe2\x80\xae!\t").text == "\\xff\\x00\\x1b[31m\\r\n\\u202e!\t"
    assert shown("\ud800").text == "\\xed\\xa0\\x80"
