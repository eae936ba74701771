"""`GET metrics`: what is counted and measured, read as Prometheus reads it, with no label that a peer can make up."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import httpx
import prometheus_client
import pytest
import trio
from bridge.http_world import OPERATOR_TOKEN, OURS, bearer, served
from bridge.telemetry_world import Deciding, logged, observed, samples_in
from bridges import Workspace, moved
from prometheus_client.parser import text_string_to_metric_families

from fencepost.supervisor import Chaos, DeadLetter, Event, Reason, StoreFault
from fencepost.supervisor.bridge.routes import ROUTES, Listener
from fencepost.supervisor.bridge.telemetry.kinds import KINDS, REASONS
from fencepost.supervisor.bridge.telemetry.metrics import HOOK_BUCKETS, Metrics, Now
from fencepost.supervisor.bridge.telemetry.observer import DECISIONS, Hook
from fencepost.supervisor.bridge.telemetry.telemetry import Telemetry
from fencepost.supervisor.overview import UNRESOLVED

EVIL = 'evil"\\\n} 1\nforged_total 1'


# -- the route ---------------------------------------------------------------------------------------------------------


async def test_it_is_the_operators_and_in_the_format_that_it_says():
    async with observed() as here:
        async with here.there.entitled(Listener.OPERATOR) as client:
            answer = await client.get("/metrics")
            assert (answer.status_code, answer.headers["content-type"]) == (
                200,
                "text/plain; version=0.0.4; charset=utf-8",
            )
            assert answer.headers["cache-control"] == "no-store"
            assert answer.text.endswith("\n")
        families = list(text_string_to_metric_families(answer.text))
        assert all(family.name.startswith("fencepost_") and family.documentation for family in families)
        assert {family.type for family in families} == {"counter", "gauge", "histogram"}
        async with here.there.client(Listener.OPERATOR) as nobody:
            assert (await nobody.get("/metrics")).status_code == 401
        async with here.there.entitled(Listener.FLEET) as pane:
            assert (await pane.get("/metrics")).status_code == 404


async def test_it_is_served_on_a_socket_too(tmp_path):
    headers = bearer(OPERATOR_TOKEN)
    async with (
        observed() as here,
        served(here.there, tmp_path) as where,
        httpx.AsyncClient(base_url=where.operator, headers=headers) as client,
    ):
        assert ("fencepost_panes",) in samples_in((await client.get("/metrics")).text)
        samples = samples_in((await client.get("/metrics")).text)
        assert samples["fencepost_requests_total", "operator", "metrics", "200"] == 1


async def test_nothing_of_it_is_global_and_two_bridges_count_apart():
    async with observed() as one, observed() as other:
        await one.there.supervisor.pane("p").launch("plain")
        await one.followed()
        launched = ("fencepost_events_total", "incarnation.launched")
        assert ((await one.samples())[launched], launched in await other.samples()) == (1, False)
    names = prometheus_client.REGISTRY._names_to_collectors
    assert not [name for name in names if name.startswith("fencepost")]


def test_an_environment_that_makes_files_of_the_librarys_counters_changes_nothing(tmp_path):
    program = """
from fencepost.supervisor.bridge.telemetry.metrics import Metrics, Now
from fencepost.supervisor.bridge.telemetry.observer import Hook
metrics = Metrics()
metrics.hook(Hook("p", "i", "plain"))
print(metrics.exposition(Now(status=None, intents={}, following=True, log_dropped=0)).decode())
"""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "not there")}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert samples_in(ran.stdout)["fencepost_hook_seconds_count",] == 1


# -- requests and hooks ------------------------------------------------------------------------------------------------


async def test_each_request_is_counted_by_its_route_its_listener_and_its_status():
    async with observed() as here, here.there.client(Listener.FLEET) as nobody:
        async with here.there.entitled(Listener.FLEET) as client:
            for path in (f"/seats/{OURS}/messages", f"/seats/{OURS}/messages", "/no/such/route", "/seats/%0a/events"):
                await client.get(path)
            await client.post(f"/seats/{OURS}/hook", content=b"{")
        await nobody.get(f"/seats/{OURS}/messages")
        counted = {
            key[1:]: value for key, value in (await here.samples()).items() if key[0] == "fencepost_requests_total"
        }
    assert counted == {
        ("fleet", "binding", "200"): 2,
        ("fleet", "none", "404"): 2,
        ("fleet", "hook", "400"): 1,
        ("fleet", "binding", "401"): 1,
    }


async def test_a_client_that_left_is_counted_as_left():
    async with observed() as here:
        app = here.there.app(Listener.OPERATOR)
        headers = [(b"authorization", f"Bearer {OPERATOR_TOKEN}".encode())]
        path = f"/seats/{OURS}/events"
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"wait=20", "headers": headers}

        async def left():
            return {"type": "http.disconnect"}

        await app(scope, left, None)
        assert (await here.samples())["fencepost_requests_total", "operator", "poll", "left"] == 1


async def test_each_decision_is_counted_and_timed():
    """With a payload, behind a reconciliation, for a replacement, without any; a prompt, a failure, one who left."""
    gate = trio.Event()
    async with observed(reconciler=Workspace(gate=gate)) as here:
        pane = here.there.supervisor.pane(OURS)
        agent = (await pane.launch("plain")).incarnation_id
        await here.hook(agent, turn=1, batch="allowed")
        await pane.post_tool_batch(agent, "turn-1", "allowed")
        await pane.detect(moved("a", "b"))
        await here.hook(agent, turn=2, batch="b", wait_seconds=0)  # reconciling
        gate.set()
        await here.hook(agent, turn=2, batch="b")
        await here.hook(agent, batch="no turn")
        await here.hook(agent, kind="prompt")
        await here.hook(agent, turn="none")
        await leave_a_hook(here)
        samples = await here.samples()
    decided = {decision: samples.get(("fencepost_hook_decisions_total", decision), 0) for decision in DECISIONS}
    assert decided == dict.fromkeys(DECISIONS, 1)
    assert samples["fencepost_hook_seconds_count",] == len(DECISIONS)
    assert samples["fencepost_hook_seconds_bucket", "+Inf"] == len(DECISIONS)
    assert samples["fencepost_hook_seconds_bucket", "60.0"] == len(DECISIONS)
    assert 0 < samples["fencepost_hook_seconds_sum",] < 60


async def leave_a_hook(here):
    """Ask, and leave while it is being decided."""
    asked = trio.Event()

    async def decide(*_):
        asked.set()
        await trio.sleep_forever()

    here.there.bridge.adapters["plain"].on_hook = decide
    body = b'{"version":1,"incarnation_id":"i","harness":"plain","event":{}}'
    scope = {"type": "http", "method": "POST", "path": f"/seats/{OURS}/hook", "query_string": b""}
    scope["headers"] = [(b"authorization", f"Bearer {OPERATOR_TOKEN}".encode())]
    messages = iter([{"type": "http.request", "body": body}])

    async def receive():
        if (message := next(messages, None)) is not None:
            return message
        await asked.wait()
        return {"type": "http.disconnect"}

    await here.there.app(Listener.OPERATOR)(scope, receive, None)


@pytest.mark.parametrize(("seconds", "bucket"), [(0, 0), (0.001, 0), (0.0011, 1), (60, 14), (60.1, 15), (1e9, 15)])
def test_a_bucket_takes_what_is_at_most_its_bound(seconds, bucket):
    metrics = Metrics()
    metrics.hook(Hook("p", "i", "plain", seconds=seconds))
    samples = samples_in(metrics.exposition(Now(status=None, intents={}, following=True, log_dropped=0)).decode())
    taken = [samples["fencepost_hook_seconds_bucket", str(bound)] for bound in (*HOOK_BUCKETS, "+Inf")]
    assert taken == [0] * bucket + [1] * (16 - bucket)
    assert samples["fencepost_hook_seconds_sum",] == seconds


async def test_an_adapter_that_does_not_say_is_known_by_what_is_to_be_reported():
    from bridge.http_world import Adapter

    async with observed(adapter=Adapter(), reconciler=Workspace()) as here:
        pane = here.there.supervisor.pane(OURS)
        agent = (await pane.launch("plain")).incarnation_id
        await here.hook(agent, turn=1, batch="allowed")
        await pane.post_tool_batch(agent, "turn-1", "allowed")
        await pane.detect(moved("a", "b"))
        await here.hook(agent, turn=2, batch="b")
        samples = await here.samples()
    assert samples["fencepost_hook_decisions_total", "none"] == 1
    assert samples["fencepost_hook_decisions_total", "block_payload"] == 1


# -- the runtime -------------------------------------------------------------------------------------------------------


async def test_the_runtimes_events_calls_and_processes_are_counted():
    async with observed(reconciler=Workspace(), telemetry=Telemetry(dead_letter_seconds=0.005)) as here:
        await here.replacement()
        await here.there.supervisor.pane(OURS).retire("ghost", "no reason")
        await here.followed()
        await here.telemetry._follower.look_for_dead_letters()
        samples = await here.samples()
    assert samples["fencepost_events_total", "incarnation.launched"] == 2
    assert samples["fencepost_process_launches_total", "plain"] == 1
    assert samples["fencepost_process_launches_total", "payload"] == 1
    assert samples["fencepost_process_ends_total",] == samples["fencepost_events_total", "incarnation.retired"] == 1
    assert samples["fencepost_refused_calls_total", "unknown_incarnation"] == 1
    assert samples["fencepost_dead_letters",] == 1


async def test_the_gauges_are_the_runtimes_status():
    async with observed(reconciler=Workspace()) as here:
        supervisor = here.there.supervisor
        await supervisor.pane("p").detect(moved("a", "b"))
        await supervisor.pane("q").detect(moved("a", "b", ambiguous="two heads"))
        await supervisor.pane("r").detect(moved("a", "b", ambiguous="two heads"))
        await here.followed()
        samples, status = await here.samples(), await supervisor.status()
    assert samples["fencepost_panes",] == status.panes == 3
    assert samples["fencepost_actors_awake",] == status.awake
    assert samples["fencepost_open_batches",] == samples["fencepost_uncertain_deliveries",] == 0
    assert samples["fencepost_quarantined",] == samples["fencepost_fault",] == samples["fencepost_line_depth",] == 0
    states = {key[1]: value for key, value in samples.items() if key[0] == "fencepost_unresolved_intents"}
    assert states == dict.fromkeys([*UNRESOLVED, "unknown"], 0) | {"detected": 1, "topology_diverged": 2}
    assert samples["fencepost_following",] == 1


async def test_intents_whose_state_nobody_told_are_unknown():
    async with observed(follow=False, reconciler=Workspace()) as here:
        await here.there.supervisor.pane("p").detect(moved("a", "b"))
        samples = await here.samples()
    assert samples["fencepost_unresolved_intents", "unknown"] == 1
    assert samples["fencepost_following",] == 0


async def test_a_runtime_that_failed_is_a_fault_and_shows_no_stale_numbers():
    chaos = Chaos()
    async with observed(chaos=chaos) as here:
        chaos.kill_at("pane.launch/committed", what="runtime")
        with pytest.raises(StoreFault):
            await here.there.supervisor.pane(OURS).launch("plain")
        samples = await here.samples()
    assert samples["fencepost_fault",] == 1
    assert ("fencepost_panes",) not in samples


async def test_dropped_log_records_are_counted():
    with logged() as _:
        from fencepost.supervisor.bridge.telemetry.logs import JsonLine, LineHandler

        lines = LineHandler(len, JsonLine(), lines_max=10)
        lines.dropped = 3
        async with observed(telemetry=Telemetry(lines)) as here:
            assert (await here.samples())["fencepost_log_records_dropped_total",] == 3
        lines.close()


# -- labels ------------------------------------------------------------------------------------------------------------


async def test_no_label_has_a_value_that_a_peer_made_up():
    async with observed(adapter=Deciding()) as here:
        pane = here.there.supervisor.pane("made-up-pane")
        agent = (await pane.launch("made-up-harness", "made-up-session")).incarnation_id
        for harness in ("plain", "made-up-harness"):
            await here.hook(agent, "made-up-pane", turn=1, batch="made-up-batch", harness=harness)
        await here.hook("made-up-process", "made-up-pane", turn=1, batch="b")
        async with here.there.entitled(Listener.OPERATOR) as client:
            for path in ("/made-up-path", "/seats/made-up-pane/messages/made-up-id", "/seats/made-up-pane/events"):
                await client.get(path)
                await client.request("MADEUP", path)
        await here.followed()
        metrics = here.telemetry._metrics
        metrics.event(Event(seq=1, at=1, kind=EVIL, address="a", data={"intent_id": EVIL}))
        refused = partial(DeadLetter, seq=1, at=1, address=EVIL, call=EVIL, incarnation_id=EVIL, detail=EVIL)
        metrics.dead_letter(refused(reason=EVIL))
        metrics.dead_letter(refused(reason=Reason.EXHAUSTED.value))
        samples = await here.samples()
    assert samples["fencepost_events_total", "other"] == samples["fencepost_refused_calls_total", "other"] == 1
    statuses = {str(status) for route in ROUTES for status in route.statuses} | {"401", "403", "404", "429", "500"}
    known = {*KINDS, *REASONS, *DECISIONS, *UNRESOLVED, *Listener, *statuses, "other", "none", "unknown", "left"}
    known |= {"plain", "payload", "503", *(route.name for route in ROUTES)}
    buckets = {label for name, *labels in samples if name == "fencepost_hook_seconds_bucket" for label in labels}
    assert {label for _, *labels in samples for label in labels} - buckets <= known
    assert len(buckets) == 16
