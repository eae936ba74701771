"""How a browser becomes the operator of the dashboard, and of nothing else."""

from __future__ import annotations

import re

import pytest
from bridge.dashboard_world import HERE, HOST, UNCERTAIN, dashboard_world
from bridge.http_world import OPERATOR_TOKEN, bearer, world

from fencepost.supervisor import MechanismOutcome, Outbound
from fencepost.supervisor.bridge.dashboard.browser import cookie_name
from fencepost.supervisor.bridge.dashboard.routes import OPEN_PAGES, PAGES
from fencepost.supervisor.bridge.dashboard.sessions import (
    SESSION_SECONDS,
    TICKET_SECONDS,
    Sessions,
)
from fencepost.supervisor.bridge.routes import Listener, match

COOKIE = cookie_name(HOST)
PATHS = {
    "login": "/dashboard/login",
    "static": "/dashboard/static/dashboard.css",
    "fleet": "/dashboard",
    "pane": "/dashboard/panes/lead",
    "intent": "/dashboard/panes/lead/intents/none",
    "batch": "/dashboard/panes/lead/batches/none",
    "delivery": f"/dashboard/panes/lead/deliveries/{UNCERTAIN}",
    "letters": "/dashboard/dead-letters",
    "health": "/dashboard/health",
    "events": "/dashboard/events",
    "confirm": "/dashboard/actions/settle",
    "act": "/dashboard/actions/settle",
    "logout": "/dashboard/logout",
}
CLOSED = [route for route in PAGES if route.name not in OPEN_PAGES]


@pytest.fixture
async def there(tmp_path):
    async with dashboard_world(tmp_path / "bridge.db") as found:
        yield found


def test_every_page_has_its_path():
    for route in PAGES:
        found = match(Listener.OPERATOR, route.method, PATHS[route.name].encode(), PAGES)
        assert found.route is route


# -- tickets and sessions ----------------------------------------------------------------------------------------------


class Time:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_ticket_is_good_once():
    sessions = Sessions(Time())
    ticket = sessions.mint()
    cookie = sessions.spend(ticket)
    assert sessions.of(cookie) is not None
    assert sessions.spend(ticket) is None
    assert sessions.spend(cookie) is None
    assert sessions.of(ticket) is None


def test_a_ticket_and_a_session_end():
    time = Time()
    sessions = Sessions(time)
    early, late = sessions.mint(), sessions.mint()
    time.now += TICKET_SECONDS - 0.1
    session = sessions.of(sessions.spend(late))
    time.now += 0.1
    assert sessions.spend(early) is None
    time.now += SESSION_SECONDS - 0.2
    assert sessions.holds(session)
    time.now += 0.2
    assert not sessions.holds(session)
    assert sessions._sessions == {}


def test_tickets_and_sessions_are_bounded_and_the_newest_stay():
    sessions = Sessions(Time())
    tickets = [sessions.mint() for _ in range(100)]
    assert len(sessions._tickets) < 20
    assert sessions.spend(tickets[0]) is None
    cookies = [sessions.spend(tickets[-1]), *(sessions.spend(sessions.mint()) for _ in range(99))]
    assert len(sessions._sessions) < 20
    assert sessions.of(cookies[0]) is None
    assert sessions.of(cookies[-1]) is not None


def test_neither_is_kept_as_it_is():
    sessions = Sessions(Time())
    ticket = sessions.mint()
    cookie = str(sessions.spend(sessions.mint()))
    held = repr(vars(sessions)) + repr(list(sessions._sessions.values()))
    assert ticket not in held
    assert cookie not in held
    assert sessions.of(cookie).form_token not in held


# -- logging in --------------------------------------------------------------------------------------------------------


async def test_only_the_bearer_mints_a_ticket(there):
    async with there.client() as nobody:
        answer = await nobody.post("/operator/dashboard-ticket", json={"version": 1})
        assert answer.status_code == 401
    async with there.browser() as browser:
        answer = await browser.post("/operator/dashboard-ticket", json={"version": 1}, headers={"origin": HERE})
        assert answer.status_code == 401  # a session is no bearer
    assert there.bridge.dashboard.sessions._tickets == {}


async def test_a_login_sets_a_cookie_that_scripts_and_other_sites_never_see(there):
    path = await there.ticket()
    async with there.client() as browser:
        answer = await browser.get(path)
        assert answer.status_code == 200
        attributes = {one.strip().lower() for one in answer.headers["set-cookie"].split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/dashboard", f"max-age={SESSION_SECONDS}"} <= attributes
        assert '<meta http-equiv="refresh" content="0;url=/dashboard">' in answer.text
        assert (await browser.get("/dashboard")).status_code == 200
        again = await browser.get(path)
        assert again.status_code == 401
        assert "set-cookie" not in again.headers


@pytest.mark.parametrize("query", ["", "?ticket=", "?ticket=x", "?ticket=%00%ff", "?ticket=" + "x" * 5000])
async def test_no_other_ticket_opens_anything(there, query):
    async with there.client() as browser:
        answer = await browser.get(f"/dashboard/login{query}")
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        answer = await browser.get("/dashboard/login?ticket=a&ticket=b")
        assert answer.status_code == 400


@pytest.mark.parametrize("route", CLOSED, ids=lambda route: route.name)
async def test_no_page_is_there_without_a_session(there, route):
    for cookies in ({}, {COOKIE: ""}, {COOKIE: "x" * 43}, {"other": "x"}, {COOKIE: OPERATOR_TOKEN}):
        async with there.client(cookies=cookies) as nobody:
            answer = await nobody.request(route.method, PATHS[route.name], headers={"origin": HERE})
            assert answer.status_code == 401
            assert answer.headers["content-type"].startswith("text/html")
    async with there.client(headers={**bearer(OPERATOR_TOKEN), "origin": HERE}) as program:
        answer = await program.request(route.method, PATHS[route.name])
        assert answer.status_code == 401  # one proof for programs, another for browsers


async def test_the_open_pages_tell_nothing(there):
    there.seats.admit("a-secret-pane")
    async with there.client() as nobody:
        for file in ("dashboard.css", "dashboard.js", "icon.svg"):
            answer = await nobody.get(f"/dashboard/static/{file}")
            assert answer.status_code == 200
            assert "a-secret-pane" not in answer.text
        for file in ("other.css", "..%2Fboard.py", "../board.py", "templates"):
            assert (await nobody.get(f"/dashboard/static/{file}")).status_code == 404
        assert "a-secret-pane" not in (await nobody.get("/dashboard")).text


async def test_a_session_is_good_for_no_route_of_the_api(there):
    async with there.browser() as browser:
        cookie = browser.cookies[COOKIE]
        for method, path in (("GET", "/operator/status"), ("GET", "/openapi.json"), ("POST", "/operator/revive")):
            for token in ({}, bearer(cookie)):
                answer = await browser.request(method, path, json={"version": 1}, headers={**token, "origin": HERE})
                assert answer.status_code == 401


async def test_a_session_ends_by_time_and_by_logging_out(there):
    async with there.browser() as browser:
        there.now[0] += SESSION_SECONDS
        assert (await browser.get("/dashboard")).status_code == 401
    async with there.browser() as browser:
        cookie, form = browser.cookies[COOKIE], {"form_token": there.session.form_token}
        answer = await browser.post("/dashboard/logout", data=form, headers={"origin": HERE})
        assert answer.status_code == 200
    async with there.client(cookies={COOKIE: cookie}) as thief:
        assert (await thief.get("/dashboard")).status_code == 401


async def test_a_session_that_ends_while_the_body_is_read_does_nothing(there):
    await there.supervisor.pane("lead").launch("claude-code")
    async with there.browser() as browser:
        token = there.session.form_token

        async def body():
            yield f"form_token={token}&confirmed=yes&address=pane%3Alead".encode()
            there.bridge.dashboard.sessions.end(there.session)

        answer = await browser.post("/dashboard/actions/revive", content=body(), headers={"origin": HERE})
        assert answer.status_code == 403


# -- where a request comes from ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7410", "127.0.0.1", "127.0.0.1:7411", "localhost:7410", "127.0.0.1.nip.io:7410"],
)
@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/login?ticket=x", "/dashboard/static/dashboard.js"])
async def test_another_host_is_refused_also_with_a_session(there, host, path):
    async with there.browser() as browser:
        answer = await browser.get(path, headers={"host": host})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


async def test_a_ticket_is_not_spent_for_another_host(there):
    path = await there.ticket()
    async with there.client() as browser:
        assert (await browser.get(path, headers={"host": "evil.example:7410"})).status_code == 403
        assert (await browser.get(path)).status_code == 200


async def test_two_hosts_are_none(there):
    async with there.browser() as browser:
        headers = [("host", HOST), ("host", HOST)]
        assert (await browser.get("/dashboard", headers=headers)).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "https://127.0.0.1:7410"},
        {"origin": "http://127.0.0.1:7411"},
        {"origin": f"{HERE}/"},
        {"origin": HERE, "sec-fetch-site": "cross-site"},
        {"origin": HERE, "sec-fetch-site": "same-site"},
    ],
)
async def test_a_form_of_another_site_does_nothing(there, headers):
    await _uncertain(there)
    async with there.browser() as browser:
        form = _settling(there)
        answer = await browser.post("/dashboard/actions/settle", data=form, headers=headers)
        assert answer.status_code == 403
        assert await _is_uncertain(there)
        headers = {"origin": HERE, "sec-fetch-site": "same-origin"}
        assert (await browser.post("/dashboard/actions/settle", data=form, headers=headers)).status_code == 200
        assert not await _is_uncertain(there)


@pytest.mark.parametrize("token", [None, "", "x", "é", "another's"])
async def test_a_form_without_the_sessions_token_does_nothing(there, token):
    await _uncertain(there)
    async with there.browser() as browser:
        form = {**_settling(there), "form_token": token}
        if token is None:
            del form["form_token"]
        elif token == "another's":
            sessions = there.bridge.dashboard.sessions
            form["form_token"] = sessions.of(sessions.spend(sessions.mint())).form_token
        answer = await browser.post("/dashboard/actions/settle", data=form, headers={"origin": HERE})
        assert answer.status_code == 403
        assert await _is_uncertain(there)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 403),
        (b"\xff\xfe", 400),
        (b"no pairs", 400),
        (b"a=%ff", 400),
        (b"a=1&a=2", 400),
        (b"&".join(b"a%d=1" % one for one in range(100)), 400),
        (b"a=" + b"x" * 70_000, 400),
        (b'{"form_token": "x"}', 400),
    ],
)
async def test_a_body_that_is_no_form_is_told(there, body, status):
    async with there.browser() as browser:
        answer = await browser.post("/dashboard/actions/settle", content=body, headers={"origin": HERE})
        assert answer.status_code == status


async def _uncertain(there):
    there.mechanism.says = [MechanismOutcome("uncertain")]
    await there.supervisor.pane("worker-1").deliver(Outbound("hello", "opencode", UNCERTAIN))


def _settling(there):
    decided = {"pane": "worker-1", "delivery_id": UNCERTAIN, "approval": "ada: the pane is gone"}
    return {"form_token": there.session.form_token, "confirmed": "yes", **decided}


async def _is_uncertain(there) -> bool:
    return (await there.supervisor.status()).uncertain_deliveries == 1


# -- what a page may do ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/dashboard", "/dashboard/health", "/dashboard/panes/none", "/dashboard/actions/settle"]
)
async def test_a_page_keeps_to_itself(there, path):
    async with there.browser() as browser:
        answer = await browser.get(path)
        policy = dict(one.strip().partition(" ")[::2] for one in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert not re.search(r"<script(?! src=\"/dashboard/static/)|\son\w+=|style=|<style|javascript:", answer.text)
        assert not re.search(r'(?:href|src|action)="(?!/dashboard|\?|#)', answer.text)


async def test_no_page_is_on_another_listener(tmp_path):
    async with world() as there:
        for listener in (Listener.FLEET, Listener.LOCAL):
            async with there.entitled(listener) as client:
                for route in PAGES:
                    assert (await client.request(route.method, PATHS[route.name])).status_code == 404
