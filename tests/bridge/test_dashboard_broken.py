"""Every page over a store that is damaged or has failed, and with texts of whoever."""

from __future__ import annotations

import pytest
from bridge.dashboard_pages import BATCH, Links, busy_dashboard, crawl, seen, text_of
from bridge.dashboard_world import BROKEN, POSTED, UNCERTAIN, damage, dashboard_world, make_broken
from bridges import Harness, moved

from fencepost.mailbox.stores.store import open_reader
from fencepost.supervisor import MechanismOutcome, ModelTurn, Outbound, PlannedCall, open_supervisor
from fencepost.supervisor.bridge.dashboard.details import events_of


@pytest.fixture
async def busy(tmp_path):
    async with busy_dashboard(tmp_path / "bridge.db") as both:
        yield both


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


async def test_a_damaged_event_is_told_and_hides_no_newer_one(tmp_path):
    path = tmp_path / "store.db"
    async with open_supervisor(f"sqlite:///{path}") as supervisor:
        pane = supervisor.pane("p")
        for _ in range(3):
            await pane.retire((await pane.launch("plain")).incarnation_id, "a test ends it")
    damage(path, "UPDATE events SET data = '{' WHERE seq IN (2, 6)")
    with open_reader(f"sqlite:///{path}") as reader:
        found = events_of(reader, "p")
    assert [event.seq for event in found.rows] == [5, 4, 3, 1]
    assert found.damage is not None
    assert "events(6,): data is not JSON" in found.damage


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
                assert all(one.startswith(("/dashboard", "#", "?")) for one in Links(page).links), path
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
        Links(answer.text)
