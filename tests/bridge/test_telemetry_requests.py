"""Requests and hooks as log records: which route, listener, status and pane, how long, and at which level."""

from __future__ import annotations

import logging

import pytest
from bridge.http_world import OURS, THEIRS, world
from bridge.telemetry_world import Deciding, logged, observed

from fencepost.supervisor import StoreFault
from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.telemetry.observer import Observer, Quietly

UUID = "00000000-0000-4000-8000-000000000001"


def requests_in(told):
    return [record for record in told if record["logger"] == "fencepost.bridge.requests"]


def shown(record):
    return tuple(record.get(name) for name in ("level", "listener", "route", "status", "pane_id"))


async def test_each_request_is_one_record_at_a_level_of_its_own():
    with logged() as told:
        async with observed(follow=False) as here, here.there.entitled(Listener.FLEET) as client:
            await client.get(f"/seats/{OURS}/messages")
            await client.post(f"/seats/{OURS}/events/{UUID}/ack", json={"version": 1})
            await client.post(
                f"/seats/{OURS}/messages", json={"version": 1, "delivery_id": UUID, "binding": "b" * 64, "text": "t"}
            )
            await client.get("/no/such/route")
    records = requests_in(told)
    assert [shown(record) for record in records] == [
        ("debug", "fleet", "binding", "200", OURS),
        ("info", "fleet", "acknowledge", "404", OURS),
        ("info", "fleet", "message", "200", OURS),
        ("debug", "fleet", "none", "404", None),
    ]
    assert [record["message"] for record in records][0::3] == ["fleet binding: 200", "fleet none: 404"]
    assert records[1]["delivery_id"] == UUID
    assert all(0 <= record["milliseconds"] < 60_000 for record in records)


async def test_the_pane_of_a_request_is_one_that_was_proven():
    with logged() as told:
        async with observed(follow=False) as here:
            async with here.there.client(Listener.FLEET) as nobody:
                await nobody.get(f"/seats/{OURS}/messages")
            async with here.there.entitled(Listener.FLEET) as ours:
                await ours.get(f"/seats/{THEIRS}/messages")
            async with here.there.entitled(Listener.OPERATOR) as operator:
                await operator.get("/seats/%22%20pane_id%3Dforged/messages")
    assert [(record["status"], record.get("pane_id")) for record in requests_in(told)] == [
        ("401", None),
        ("403", None),
        ("200", '" pane_id=forged'),
    ]


@pytest.mark.parametrize(
    ("error", "status", "level"),
    [
        (RuntimeError("\x1b[2J\nforged"), "500", "error"),
        (StoreFault("disk full"), "503", "warning"),
        (ValueError("no"), "400", "info"),
    ],
)
async def test_a_failure_is_one_record_with_its_reason_escaped(error, status, level):
    class Failing(Deciding):
        async def on_hook(self, pane, incarnation_id, event, wait_seconds):
            raise error

    with logged(level=logging.INFO) as told:
        async with observed(follow=False, adapter=Failing()) as here:
            await here.hook("agent")
    (record,) = requests_in(told)
    assert (record["status"], record["level"]) == (status, level)
    assert record["message"] == f"operator hook: {status} ({error!a})"
    (decision,) = [record for record in told if record["logger"] == "fencepost.hooks"]
    assert (decision["decision"], decision["level"]) == ("failed", "warning")


async def test_what_an_adapter_logs_is_about_its_hook():
    class Talking(Deciding):
        async def on_hook(self, pane, incarnation_id, event, wait_seconds):
            logging.getLogger("fencepost.supervisor.bridge.adapters.plain").warning("a process said something")
            return await super().on_hook(pane, incarnation_id, event, wait_seconds)

    with logged() as told:
        async with observed(follow=False, adapter=Talking()) as here:
            await here.hook("agent", kind="prompt")
    (record,) = [record for record in told if record["logger"].endswith("adapters.plain")]
    assert (record["pane_id"], record["incarnation_id"]) == (OURS, "agent")


async def test_a_call_that_may_run_is_no_news_and_one_that_may_not_is():
    with logged(level=logging.INFO) as told:
        async with observed(follow=False) as here:
            agent = (await here.there.supervisor.pane(OURS).launch("plain")).incarnation_id
            await here.hook(agent, turn=1, batch="b")
            await here.hook("ghost", turn=1, batch="b")
    (decision,) = [record for record in told if record["logger"] == "fencepost.hooks"]
    shown = tuple(decision[name] for name in ("decision", "incarnation_id", "batch_id", "reason"))
    assert shown == ("block_generic", "ghost", "b", "unknown_incarnation")


async def test_without_telemetry_requests_are_logged_all_the_same():
    with logged() as told:
        async with world() as there, there.entitled(Listener.LOCAL) as client:
            assert type(there.bridge.telemetry) is Observer
            await client.get(f"/seats/{OURS}/messages")
    assert [shown(record) for record in requests_in(told)] == [("debug", "local", "binding", "200", OURS)]


class Failing(Observer):
    def _ended(self, request, status, seconds):
        raise RuntimeError("no")

    def _decided(self, hook):
        raise RuntimeError("no")


async def test_an_observer_that_fails_fails_no_request(monkeypatch):
    monkeypatch.setattr("fencepost.supervisor.bridge.telemetry.observer._QUIETLY", Quietly())
    with logged() as told:
        async with observed(follow=False, telemetry=Failing()) as here:
            agent = (await here.there.supervisor.pane(OURS).launch("plain")).incarnation_id
            for _ in range(3):
                assert (await here.hook(agent, turn=1, batch="b")).status_code == 200
    assert [record["level"] for record in told] == ["error"]  # once, and not for each
