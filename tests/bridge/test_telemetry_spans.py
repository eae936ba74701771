"""Spans and numbers for OpenTelemetry: one for each hook, reconciliation, launch and delivery; none without its API."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio
from bridge.http_world import OURS
from bridge.telemetry_world import Deciding, logged, observed
from bridges import Workspace, moved, payload_of
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from fencepost.supervisor import Diverged, Event, NeedsRecovery, Outbound
from fencepost.supervisor.bridge.telemetry import spans
from fencepost.supervisor.bridge.telemetry.spans import Tracing
from fencepost.supervisor.bridge.telemetry.telemetry import Telemetry

UUID = "00000000-0000-4000-8000-000000000001"


class Told:
    """Providers of one test's own, and what they were told."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(tracers=self.tracers, meters=self.meters)

    def spans(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == f"fencepost.{name}"]

    def numbers(self) -> dict[tuple, object]:
        data = self.reader.get_metrics_data()
        return {
            (metric.name, *(str(value) for _, value in sorted(point.attributes.items()))): point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }


@pytest.fixture
def told():
    told = Told()
    yield told
    told.tracers.shutdown()
    told.meters.shutdown()


def ids(span, *names):
    return tuple(span.attributes.get(f"fencepost.{name}") for name in names)


async def stored(here) -> dict[str, Event]:
    """The last event of each kind."""
    return {event.kind: event async for event in here.there.supervisor.events(follow=False)}


# -- hooks -------------------------------------------------------------------------------------------------------------


async def test_a_decision_is_a_span_with_its_ids_and_what_is_traced_within_is_below_it(told):
    tracer = told.tracers.get_tracer("an adapter's")

    class Tracing(Deciding):
        async def on_hook(self, pane, incarnation_id, event, wait_seconds):
            with tracer.start_as_current_span("fencepost.within"):
                return await super().on_hook(pane, incarnation_id, event, wait_seconds)

    async with observed(telemetry=told.telemetry, adapter=Tracing(), reconciler=Workspace()) as here:
        pane = here.there.supervisor.pane(OURS)
        agent = (await pane.launch("plain")).incarnation_id
        intent = (await pane.detect(moved("a", "b"))).intent_id
        await here.hook(agent, turn=1, batch="b", call="c")
        assert not trace.get_current_span().is_recording()
    (span,), (within,) = told.spans("hook"), told.spans("within")
    names = ("pane_id", "incarnation_id", "decision", "intent_id", "batch_id", "turn_id", "tool_call_id", "harness")
    assert ids(span, *names) == (OURS, agent, "block_payload", intent, "b", "turn-1", "c", "plain")
    assert span.status.status_code is StatusCode.UNSET
    assert within.parent.span_id == span.context.span_id
    assert span.parent is None
    assert payload_of("b").decode() not in span.to_json()


async def test_a_decision_that_failed_is_an_error_without_what_was_sent(told):
    async with observed(telemetry=told.telemetry) as here:
        await here.hook("agent", turn=1, batch="x\x1bsecret")
    (span,) = told.spans("hook")
    assert ids(span, "pane_id", "incarnation_id", "decision") == (OURS, "agent", "failed")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "InvalidIdentifier")
    assert "secret" not in span.to_json()


class Broken(trace.NoOpTracer):
    def start_span(self, *_, **__):
        raise RuntimeError("no spans today")


class BrokenProvider(trace.TracerProvider):
    def get_tracer(self, *_, **__):
        return Broken()


async def test_a_tracer_that_raises_fails_no_hook_and_no_event():
    with logged() as records:
        async with observed(telemetry=Telemetry(tracers=BrokenProvider())) as here:
            agent = (await here.there.supervisor.pane(OURS).launch("plain")).incarnation_id
            for turn in (1, 2):
                assert (await here.hook(agent, turn=turn, batch=f"b{turn}")).status_code == 200
            await here.followed()
            samples = await here.samples()
    assert samples["fencepost_hook_decisions_total", "allow"] == 2
    assert samples["fencepost_events_total", "incarnation.launched"] == 1
    assert len([record for record in records if record["level"] == "error"]) == 1


# -- the runtime -------------------------------------------------------------------------------------------------------


async def test_a_reconciliation_is_a_span_from_its_detection_to_its_payload(told):
    async with observed(telemetry=told.telemetry, reconciler=Workspace()) as here:
        pane = here.there.supervisor.pane(OURS)
        agent = (await pane.launch("plain")).incarnation_id
        intent = (await pane.detect(moved("a", "b"))).intent_id
        await pane.detect(moved("b", "c"))
        await here.hook(agent, turn=1, batch="b")
        await here.followed()
        events = await stored(here)
    (span,) = told.spans("reconciliation")
    assert ids(span, "pane_id", "intent_id", "from_base", "state", "end") == (
        OURS,
        intent,
        "a",
        "materialized",
        "intent.materialized",
    )
    assert (span.start_time, span.end_time) == (events["intent.detected"].at, events["intent.materialized"].at)
    assert [event.name for event in span.events] == ["intent.coalesced", "intent.reconciling"]
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("outcome", "end"),
    [(Diverged("two"), "intent.topology_diverged"), (NeedsRecovery("torn"), "intent.recovery_required")],
)
async def test_one_that_stops_is_an_error_and_its_next_attempt_another_span(told, outcome, end):
    async with observed(telemetry=told.telemetry, reconciler=Workspace(outcome)) as here:
        pane = here.there.supervisor.pane(OURS)
        agent = (await pane.launch("plain")).incarnation_id
        intent = (await pane.detect(moved("a", "b"))).intent_id
        await here.hook(agent, turn=1, batch="b")
        await here.followed()
        (span,) = told.spans("reconciliation")
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, end)
        await pane.resolve(intent, "put right", "a person")
        await here.hook(agent, turn=1, batch="b")
        await here.followed()
    again = told.spans("reconciliation")[-1]
    assert ids(again, "intent_id", "end") == (intent, "intent.materialized")


async def test_a_launch_is_a_span_to_the_first_sign_of_its_process(told):
    async with observed(telemetry=told.telemetry, reconciler=Workspace()) as here:
        first, launch = await here.replacement()
        startup = launch.startup
        await here.there.supervisor.pane(OURS).startup_ready(
            launch.incarnation_id, startup.startup_delivery_id, startup.payload_sha256
        )
        never = (await here.there.supervisor.pane("q").launch("plain")).incarnation_id
        await here.there.supervisor.pane("q").retire(never, "it did not come up")
        await here.followed()
        events = await stored(here)
    ended = {span.attributes["fencepost.incarnation_id"]: span for span in told.spans("launch")}
    assert {incarnation: ids(span, "end")[0] for incarnation, span in ended.items()} == {
        first.incarnation_id: "hook",
        launch.incarnation_id: "incarnation.ready",
        never: "incarnation.retired",
    }
    assert ended[launch.incarnation_id].end_time == events["incarnation.ready"].at
    assert ended[never].status.status_code is StatusCode.ERROR


async def test_a_delivery_is_a_span_to_what_was_heard_of_it(told):
    async with observed(telemetry=told.telemetry) as here:
        pane = here.there.supervisor.pane(OURS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pane.deliver, Outbound("the text", "fleet_seat", UUID))
            (event,) = await pane.poll_events(20)
            await pane.acknowledge_event(event.event_id)
        await here.followed()
        events = await stored(here)
    (span,) = told.spans("delivery")
    assert ids(span, "pane_id", "delivery_id", "mechanism", "stage") == (OURS, UUID, "fleet_seat", "delivered")
    assert (span.start_time, span.end_time) == (events["delivery.dispatched"].at, events["delivery.reported"].at)
    assert "the text" not in span.to_json()


def test_spans_that_never_end_are_bounded(told, monkeypatch):
    monkeypatch.setattr(spans, "OPEN_MAX", 3)
    tracing = Tracing(told.tracers, told.meters)
    for number in range(10):
        data = {"intent_id": f"intent-{number}", "state": "detected"}
        tracing.event(Event(seq=number, at=number, kind="intent.detected", address=f"intent:{number}", data=data))
    assert len(tracing._open) == 3
    ended = told.spans("reconciliation")
    assert [ids(span, "intent_id", "end") for span in ended] == [
        (f"intent-{number}", "too many are open") for number in range(7)
    ]


# -- numbers, and the API that is not there ----------------------------------------------------------------------------


async def test_what_prometheus_counts_opentelemetry_counts_too(told):
    async with observed(telemetry=told.telemetry) as here:
        pane = here.there.supervisor.pane(OURS)
        agent = (await pane.launch("plain")).incarnation_id
        await here.hook(agent, turn=1, batch="b")
        await pane.retire("ghost", "no reason")
        await here.telemetry._follower.look_for_dead_letters()
        await here.followed()
    numbers = told.numbers()
    assert numbers["fencepost.events", "incarnation.launched"].value == 1
    assert numbers["fencepost.requests", "operator", "hook", "200"].value == 1
    assert numbers["fencepost.hook.decisions", "allow"].value == 1
    assert numbers["fencepost.hook.duration",].count == 1
    assert numbers["fencepost.refused_calls", "unknown_incarnation"].value == 1


def test_nothing_global_is_set_up():
    Telemetry()
    assert trace._TRACER_PROVIDER is None
    assert metrics._internal._METER_PROVIDER is None


def test_without_the_api_there_are_logs_and_metrics_all_the_same():
    program = """
import sys
sys.modules["opentelemetry"] = None
import trio
from fencepost.supervisor import open_supervisor
from fencepost.supervisor.bridge.telemetry.telemetry import Telemetry
from fencepost.supervisor.bridge.wire import HookEvent

async def main():
    telemetry = Telemetry()
    assert telemetry._tracing is None
    with telemetry.hook("p", HookEvent("i", "plain", {}, 0)):
        pass
    telemetry.ended(telemetry.began("fleet"), 404)
    async with open_supervisor("memory://") as supervisor:
        text = (await telemetry.exposition(supervisor)).decode()
    assert 'fencepost_hook_decisions_total{decision="none"} 1.0' in text
    assert 'fencepost_requests_total{listener="fleet",route="none",status="404"} 1.0' in text
    assert not [name for name in sys.modules if name.startswith("opentelemetry.")]

trio.run(main)
"""
    command = [sys.executable, "-W", "error", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/", check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
