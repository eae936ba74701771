"""The dashboard in a real Chromium, over a bridge on real sockets."""

from __future__ import annotations

import pytest
from bridge.dashboard_browser import ServedDashboard, chromium, needs_chromium, window
from bridge.dashboard_world import BROKEN, QUEUED, TEXT, UNCERTAIN, make_broken, make_busy
from bridge.test_dashboard_broken import make_hostile
from bridges import Harness, moved
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from fencepost.supervisor import MechanismOutcome, Outbound

pytestmark = [pytest.mark.slow, needs_chromium]

SECONDS = 20
BATCH = "/dashboard/panes/worker-2/batches/batch%3Aworker-2%2Foperation-1%2Fturn-12"
PAGES = (
    "/dashboard",
    "/dashboard/panes/lead",
    "/dashboard/panes/worker-1",
    "/dashboard/panes/docs",
    BATCH,
    f"/dashboard/panes/worker-1/deliveries/{UNCERTAIN}?show=text",
    f"/dashboard/actions/settle?pane=worker-1&delivery_id={UNCERTAIN}",
    "/dashboard/dead-letters",
    "/dashboard/health",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def served(tmp_path, browser):
    with ServedDashboard(tmp_path, make_busy) as found:
        window(browser, 1200, 800)
        browser.get(found.login_url())
        wait(browser, lambda: browser.current_url == f"{found.operator}/dashboard")
        yield found
        complaints = [entry for entry in browser.get_log("browser") if "content-security-policy" in str(entry).lower()]
        assert complaints == []


def wait(browser, condition):
    """Wait until it is so in the page, which changes by itself."""
    ignored = (NoSuchElementException, StaleElementReferenceException)
    return WebDriverWait(browser, SECONDS, 0.05, ignored).until(lambda _: condition())


def is_live(browser) -> bool:
    return browser.find_element(By.ID, "live").text == "Live"


def row(browser, pane_id: str) -> str:
    """The fleet's row of a pane."""
    link = browser.find_element(By.CSS_SELECTOR, f'#panes a[href="/dashboard/panes/{pane_id}"]')
    return link.find_element(By.XPATH, "ancestor::tr").text


def test_a_link_logs_in_once(served, browser):
    assert browser.title == "Fleet · fencepost"
    wait(browser, lambda: is_live(browser))
    assert browser.execute_script("return document.cookie") == ""
    assert all(cookie["httpOnly"] and cookie["sameSite"] == "Strict" for cookie in browser.get_cookies())
    link = served.login_url()
    for expected in ("Fleet", "You are not signed in"):
        browser.delete_all_cookies()
        browser.get(link)
        wait(browser, lambda expected=expected: browser.find_element(By.TAG_NAME, "h1").text == expected)


def test_signing_out(served, browser):
    browser.find_element(By.CSS_SELECTOR, ".top button").click()
    wait(browser, lambda: browser.find_element(By.TAG_NAME, "h1").text == "Signed out")
    browser.get(f"{served.operator}/dashboard")
    assert browser.find_element(By.TAG_NAME, "h1").text == "You are not signed in"


def test_a_change_shows_without_a_reload(served, browser):
    wait(browser, lambda: is_live(browser))
    browser.execute_script("window.mark = 'the same document'")
    assert "nothing is owed" in row(browser, "lead")
    served.run(served.there.supervisor.pane("lead").detect, moved("main-9a2e", "main-ffff"))
    wait(browser, lambda: "pending" in row(browser, "lead"))
    assert "Waits for the next batch of tool calls" in row(browser, "lead")
    served.run(served.there.supervisor.pane("new-one").launch, "codex")
    wait(browser, lambda: "codex" in row(browser, "new-one"))
    assert browser.execute_script("return window.mark") == "the same document"


def test_whoever_moves_with_the_keyboard_stays_where_he_is(served, browser):
    wait(browser, lambda: is_live(browser))
    link = browser.find_element(By.CSS_SELECTOR, '#panes a[href="/dashboard/panes/worker-1"]')
    browser.execute_script("arguments[0].focus()", link)
    served.run(served.there.supervisor.pane("lead").detect, moved("main-9a2e", "main-ffff"))
    wait(browser, lambda: "pending" in row(browser, "lead"))
    assert browser.switch_to.active_element.get_attribute("href").endswith("/dashboard/panes/worker-1")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait(browser, lambda: browser.find_element(By.TAG_NAME, "h1").text.startswith("worker-1"))


def test_a_bridge_that_is_gone_is_told(served, browser):
    wait(browser, lambda: is_live(browser))
    served.stop()
    wait(browser, lambda: browser.find_element(By.ID, "live").text.startswith("Not live, as of "))
    assert "docs" in row(browser, "docs")  # what was last known stays


def test_the_keyboard_reaches_the_content_first(served, browser):
    browser.get(f"{served.operator}/dashboard")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    skip = browser.switch_to.active_element
    assert (skip.text, skip.get_attribute("href")[-5:]) == ("Skip to the content", "#main")
    assert skip.rect["x"] >= 0


def test_an_action_is_confirmed_and_done(served, browser):
    wait(browser, lambda: is_live(browser))
    browser.find_element(By.LINK_TEXT, "Settle…").click()
    wait(browser, lambda: browser.find_element(By.TAG_NAME, "h1").text == "Settle a delivery")
    text = browser.find_element(By.TAG_NAME, "main").text
    assert "What you claim" in text
    assert "What you do not claim" in text
    button = browser.find_element(By.CSS_SELECTOR, "main button")
    button.click()  # the browser itself asks for what is missing
    assert browser.find_element(By.TAG_NAME, "h1").text == "Settle a delivery"
    browser.find_element(By.ID, "field-approval").send_keys("ada: looked at the pane, it is not there")
    browser.find_element(By.ID, "confirmed").click()
    button.click()
    wait(browser, lambda: browser.find_element(By.TAG_NAME, "h1").text == "Settle a delivery: applied")
    browser.find_element(By.LINK_TEXT, "Back to the pane").click()
    wait(browser, lambda: "settled, outcome unknown" in browser.find_element(By.ID, "outbound").text)
    there = served.there
    report = served.run(there.supervisor.pane("worker-1").deliver, Outbound(TEXT, "opencode", UNCERTAIN))
    assert report.stop == "uncertain"  # and is never sent again: the mechanism has no word left to say


WIDTHS = [320, 375, 768, 900, 1024]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_scrolls_sideways(served, browser, width):
    intents = served.run(served.there.supervisor.pane("docs").intents)
    for path in (*PAGES, f"/dashboard/panes/docs/intents/{intents[0].intent_id}?show=payload"):
        assert_fits(browser, f"{served.operator}{path}", width)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_id_or_text_makes_a_page_scroll_sideways(tmp_path, browser, width):
    with ServedDashboard(tmp_path, make_long) as served:
        browser.get(served.login_url())
        wait(browser, lambda: is_live(browser))
        assert_fits(browser, f"{served.operator}/dashboard", width)
        paths = {one.get_attribute("href") for one in browser.find_elements(By.CSS_SELECTOR, "main a")}
        for path in paths:
            assert_fits(browser, path, width)
            if "/panes/" in path:
                inner = [
                    one.get_attribute("href") for one in browser.find_elements(By.CSS_SELECTOR, "main td a, main th a")
                ]
                for one in inner:
                    assert_fits(browser, f"{one}?show=payload", width)


async def make_long(there):
    """Everything as long as it may be, without a place to break it."""
    long = "m" * 256
    await make_hostile(there)
    pane = there.supervisor.pane(long)
    await pane.launch(long, long)
    harness = await Harness.start(pane)
    await pane.detect(moved(long[:240], long[:239], ambiguous="w" * 5000))
    there.mechanism.says = [MechanismOutcome("uncertain", long, long, long)]
    await pane.deliver(Outbound(long * 20, "opencode", QUEUED))
    await pane.retire(harness.incarnation_id, long)
    await pane.mark_delivered(long, harness.incarnation_id, long, long)


def assert_fits(browser, path, width):
    window(browser, width, 740)
    browser.get(path)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width, path
    widest = browser.execute_script(WIDEST, width)
    assert widest is None, path


WIDEST = """
function inside(one) {
  for (; one; one = one.parentElement) if (getComputedStyle(one).overflowX === "auto") return true;
}
for (const one of document.querySelectorAll("main *")) {
  if (one.closest("thead") || inside(one.parentElement)) continue;
  if (one.getBoundingClientRect().right > arguments[0] + 1) return one.outerHTML.slice(0, 200);
}
return null;
"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_can_be_read_in_light_and_dark(served, browser, dark):
    window(browser, 1200, 800, dark=dark)
    browser.get(f"{served.operator}/dashboard")
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) is dark
    for path in PAGES:
        browser.get(f"{served.operator}{path}")
        assert browser.execute_script(CONTRAST) == [], path


CONTRAST = """
const channel = (value) => { value /= 255; return value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4; };
const parse = (color) => (color.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
function paper(one) {
  for (; one; one = one.parentElement) {
    const color = parse(getComputedStyle(one).backgroundColor);
    if (color.length === 3 || color[3] > 0) return color;
  }
  return [255, 255, 255];
}
const found = [];
for (const one of document.querySelectorAll("body *")) {
  const text = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!text || one.closest("svg") || !one.checkVisibility()) continue;
  const [a, b] = [light(parse(getComputedStyle(one).color)), light(paper(one))];
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) found.push([one.tagName, one.className, one.textContent.trim().slice(0, 40), ratio]);
}
return found;
"""


def test_what_is_broken_is_told_and_can_be_revived(tmp_path, browser):
    with ServedDashboard(tmp_path, make_broken, options=BROKEN) as served:
        window(browser, 1200, 800)
        browser.get(served.login_url())
        wait(browser, lambda: "faulted" in row(browser, "flaky"))
        browser.find_element(By.LINK_TEXT, "Revive…").click()
        wait(browser, lambda: browser.find_element(By.ID, "confirmed")).click()
        browser.find_element(By.CSS_SELECTOR, "main button").click()
        wait(browser, lambda: browser.find_element(By.TAG_NAME, "h1").text == "Revive an actor: applied")
        browser.get(f"{served.operator}/dashboard")
        assert "in sync" in row(browser, "flaky")


def test_hostile_texts_run_nothing(tmp_path, browser):
    with ServedDashboard(tmp_path, make_hostile) as served:
        browser.get(served.login_url())
        wait(browser, lambda: is_live(browser))
        paths = {one.get_attribute("href") for one in browser.find_elements(By.CSS_SELECTOR, "main a")}
        assert len(paths) > 3
        for path in paths:
            browser.get(path)  # an alert would raise here
            assert browser.find_elements(By.CSS_SELECTOR, "main img, main script") == []
