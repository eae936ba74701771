"""Every page over a store in every state, with texts of whoever; and what a human decides on one."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from bridge.dashboard_world import (
    BROKEN,
    POSTED,
    QUEUED,
    REACHED,
    TEXT,
    UNCERTAIN,
    damage,
    dashboard_world,
    make_broken,
    make_busy,
)
from bridges import Harness, moved

from fencepost.supervisor import MechanismOutcome, ModelTurn, Outbound, PlannedCall, SyncStatus
from fencepost.supervisor.bridge.dashboard import views
from fencepost.supervisor.bridge.dashboard.shown import SHOWN_MAX, shown
from fencepost.supervisor.bridge.operator_api import ACTIONS, TEXT_CHARACTERS_MAX

BATCH = "batch%3Aworker-2%2Foperation-1%2Fturn-12"


class _Links(HTMLParser):
    """A page's links, and whether its elements are closed in order."""

    VOID = frozenset({"meta", "link", "input", "br", "circle", "path", "rect", "line"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.links += [found["href"]] if "href" in found else []
        self.ids += [found["id"]] if "id" in found else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def text_of(page: str) -> str:
    """What a reader sees of it, roughly, on one line."""
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", page.partition('<main id="main" class="wide">')[2]).split()))


async def crawl(browser) -> dict[str, str]:
    """Every page that can be reached, by its path."""
    seen: dict[str, str] = {}
    ahead = ["/dashboard"]
    while ahead:
        path = ahead.pop()
        if path in seen or path.startswith(("/dashboard/static", "#", "?")):
            continue
        answer = await browser.get(path)
        assert answer.status_code == 200, path
        seen[path] = answer.text
        ahead += _Links(answer.text).links
    return seen


async def seen(browser, path: str) -> str:
    answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    _Links(answer.text)
    return text_of(answer.text)


@pytest.fixture
async def busy(tmp_path):
    async with dashboard_world(tmp_path / "bridge.db") as there:
        await make_busy(there)
        async with there.browser() as browser:
            yield there, browser


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


# -- broken ------------------------------------------------------------------------------------------------------------

DAMAGE = {
    "a payload that has changed": (
        "worker-1",
        "UPDATE intents SET payload = x'00' WHERE pane_id='worker-1' AND payload IS NOT NULL",
    ),
    "an intent of no state": ("worker-1", "UPDATE intents SET delivered_at = NULL WHERE state='delivered'"),
    "a process with half a startup": (
        "lead",
        "UPDATE incarnations SET startup_epoch = 1 WHERE pane_id='lead' AND retired_at IS NULL",
    ),
    "a delivery that is two things": ("worker-1", "UPDATE deliveries SET stage = 'delivered' WHERE pane_id='worker-1'"),
    "a batch of no calls": ("worker-2", "UPDATE batches SET calls_count = 0"),
}


@pytest.mark.parametrize(("pane_id", "sql"), DAMAGE.values(), ids=DAMAGE)
async def test_a_damaged_row_faults_its_pane_and_no_page(busy, pane_id, sql):
    there, browser = busy
    damage(there.path, sql)
    pages = await crawl(browser)
    said = text_of(pages["/dashboard"])
    assert f"{pane_id} faulted" in said
    assert "6 panes: 1 faulted, " in said
    assert "A row here cannot be read." in pages[f"/dashboard/panes/{pane_id}"]


async def test_damage_that_no_pane_needs_any_more_is_told_where_it_stands(busy):
    there, browser = busy
    damage(there.path, "UPDATE incarnations SET retire_reason = NULL WHERE pane_id='docs'")
    damage(there.path, "UPDATE calls SET status = 'planned', placed_at = NULL WHERE source_index = 0")
    damage(there.path, f"UPDATE runs SET native = 'x', outcome = NULL WHERE delivery_id = '{POSTED}'")
    damage(there.path, "UPDATE events SET data = 'no JSON' WHERE seq = (SELECT max(seq) FROM events)")
    await crawl(browser)
    assert "cannot be read" in await seen(browser, "/dashboard/health")
    assert "cannot be read" in await seen(browser, "/dashboard/panes/lead")
    assert "cannot be read" in await seen(browser, "/dashboard/panes/docs")
    assert "Fleet lead faulted" in await seen(browser, "/dashboard/panes/lead")
    assert "cannot be read" in await seen(browser, f"/dashboard/panes/worker-2/batches/{BATCH}")
    assert "cannot be read" in await seen(browser, f"/dashboard/panes/lead/deliveries/{POSTED}")


async def test_a_quarantined_actor_faults_its_pane_and_can_be_revived(tmp_path):
    async with dashboard_world(tmp_path / "bridge.db", options=BROKEN) as there:
        await make_broken(there)
        async with there.browser() as browser:
            assert "flaky faulted" in await seen(browser, "/dashboard")
            assert "pane:flaky is quarantined" in await seen(browser, "/dashboard")
            assert "pane:flaky It crashed too often" in await seen(browser, "/dashboard/health")
            answer = await there.decide(browser, "revive", address="pane:flaky")
            assert "Revive an actor: applied" in text_of(answer.text)
            assert "flaky in sync" in await seen(browser, "/dashboard")


async def test_a_store_that_failed_is_told_while_the_bridge_still_answers(busy):
    there, browser = busy
    there.supervisor._runtime._store.refuse(OSError("the disk is full"))
    with pytest.raises(Exception, match="disk"):
        await there.supervisor.pane("lead").detect(moved("main-9a2e", "main-ffff"))
    said = await seen(browser, "/dashboard/health")
    assert "The store failed." in said
    assert "the disk is full" in said


async def test_a_store_that_cannot_be_read_is_503_and_a_page(busy):
    there, browser = busy
    there.bridge.supervisor.reader().close()
    there.path.rename(there.path.with_name("gone.db"))
    answer = await browser.get("/dashboard")
    assert (answer.status_code, "cannot answer now" in answer.text) == (503, True)
    said = await seen(browser, "/dashboard/health")
    assert "The store cannot be read beside the runtime." in said
    assert "does not exist" in said
    assert not there.bridge.stopping.asked.is_set()  # who looks into a store stops no bridge


# -- texts of whoever --------------------------------------------------------------------------------------------------

HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>{{ 7 * 7 }}{% raw %}javascript:alert(3)"""
HOSTILE_ID = HOSTILE.replace("\n", "")


async def test_hostile_ids_and_texts_are_escaped_everywhere(tmp_path):
    async with dashboard_world(tmp_path / "bridge.db") as there:
        await make_hostile(there)
        async with there.browser() as browser:
            pages = await crawl(browser)
            assert len(pages) > 10
            for path in list(pages):
                for show in ("text", "payload", "0", "reply"):
                    pages[f"{path}?show={show}"] = (await browser.get(f"{path.partition('?')[0]}?show={show}")).text
            for path, page in pages.items():
                assert "<script>alert" not in page, path
                assert "<img" not in page, path
                assert all(one.startswith(("/dashboard", "#", "?")) for one in _Links(page).links), path
            assert sum("&lt;script&gt;alert(1)" in page for page in pages.values()) > 5
            assert sum("{{ 7 * 7 }}" in page for page in pages.values()) > 5  # as it stands, and nobody's template


async def make_hostile(there):
    pane = there.supervisor.pane(HOSTILE_ID)
    there.seats.admit(HOSTILE_ID)
    await pane.launch(HOSTILE_ID, HOSTILE_ID)
    harness = await Harness.start(pane)
    await pane.detect(moved(HOSTILE_ID, HOSTILE_ID[:60]))
    await harness.call(1, HOSTILE_ID)
    await harness.pane.retire(harness.incarnation_id, HOSTILE)
    other = there.supervisor.pane("other/pane ?&#")
    await other.launch("claude-code")
    calls = [PlannedCall(HOSTILE_ID, "search", {"name": HOSTILE}), PlannedCall("second", HOSTILE, {}, refusal=HOSTILE)]
    await (await other.start_batch(HOSTILE_ID, ModelTurn(HOSTILE_ID, 1), HOSTILE_ID, calls)).wait()
    there.mechanism.says = [MechanismOutcome("uncertain", HOSTILE, HOSTILE, HOSTILE)]
    await other.deliver(Outbound(HOSTILE, "opencode", UNCERTAIN))
    await other.mark_delivered(HOSTILE_ID, HOSTILE_ID, HOSTILE_ID, HOSTILE_ID)
    reviewer = there.supervisor.pane("reviewer")
    await reviewer.detect(moved("a", "b", ambiguous=HOSTILE))


async def test_a_hostile_query_is_escaped_or_refused(busy):
    _, browser = busy
    for query in (
        "?pane=%3Cscript%3Ealert(1)%3C/script%3E",
        "?delivery_id=%22%3E%3Cimg%20src=x%3E",
        "?pane=%ff%00",
        "?pane=a&pane=b",
    ):
        answer = await browser.get(f"/dashboard/actions/settle{query}")
        assert answer.status_code in {200, 400}
        assert "<script>" not in answer.text
        assert "<img" not in answer.text
        _Links(answer.text)


# -- deciding ----------------------------------------------------------------------------------------------------------


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
