"""How spans are made.  A hook's is around its decision; the others are made from the runtime's events.

    fencepost.hook             one hook event, from its arrival to its answer
    fencepost.reconciliation   one intent, from its detection (or its next attempt) to its payload, or to its stop
    fencepost.launch           one process, from its launch to the first sign of it: its handshake, its first hook, or
                               its retirement
    fencepost.delivery         one message, from the moment before it leaves (or its acceptance) to what was heard of it

A span made from events has their times, so it also says how long something took that the bridge only heard of.  A span
that is open when the process ends is lost: the next life knows nothing of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextvars import Token
from typing import Final

from attrs import frozen
from opentelemetry.context import Context, attach, detach
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_tracer,
    set_span_in_context,
)

from fencepost.supervisor import DeadLetter, Event
from fencepost.supervisor.bridge.telemetry.kinds import event_fields, kind_label, reason_label
from fencepost.supervisor.bridge.telemetry.observer import LEFT, Hook, Request

__all__ = ["HookSpan", "Tracing"]

OPEN_MAX: Final = 4_096
"""Spans from events that are open at once; one more ends the oldest."""
_NAME: Final = "fencepost"


@frozen
class _Story:
    """Which events begin a span, which are noted in it, and which end it (as an error, if they are in `bad`)."""

    name: str
    ids: tuple[str, ...]
    begins: frozenset[str]
    ends: frozenset[str]
    bad: frozenset[str] = frozenset()
    notes: frozenset[str] = frozenset()


_STORIES: Final = (
    _Story(
        "fencepost.reconciliation",
        ("intent_id",),
        begins=frozenset({"intent.detected", "intent.reconciling", "intent.topology_diverged"}),
        notes=frozenset({"intent.coalesced", "intent.reconciling"}),
        ends=frozenset({"intent.materialized", "intent.superseded", "intent.discarded", "intent.acknowledged"}),
        bad=frozenset({"intent.recovery_required", "intent.topology_diverged"}),
    ),
    _Story(
        "fencepost.launch",
        ("incarnation_id",),
        begins=frozenset({"incarnation.launched"}),
        ends=frozenset({"incarnation.ready"}),
        bad=frozenset({"incarnation.retired"}),
    ),
    _Story(
        "fencepost.delivery",
        ("pane_id", "delivery_id"),
        begins=frozenset({"delivery.dispatched"}),
        ends=frozenset({"delivery.reported", "delivery.settled"}),
    ),
    _Story(
        "fencepost.delivery",
        ("run_id", "delivery_id"),
        begins=frozenset({"delivery.accepted"}),
        ends=frozenset({"delivery.ended"}),
        bad=frozenset({"delivery.failed"}),
    ),
)
_LAUNCH: Final = 1
_Key = tuple[object, ...]


@frozen
class HookSpan:
    """The span of a decision, and what takes it out of the task's context again."""

    span: Span
    token: Token[Context]


class Tracing:
    """Tells OpenTelemetry; see the module."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None) -> None:
        self._tracer = get_tracer(_NAME, tracer_provider=tracers)
        self._open: OrderedDict[_Key, Span] = OrderedDict()
        meter = get_meter(_NAME, meter_provider=meters)
        self._events = meter.create_counter("fencepost.events", description="The runtime's events.")
        self._requests = meter.create_counter("fencepost.requests", description="Requests that ended.")
        self._decisions = meter.create_counter("fencepost.hook.decisions", description="Hook events.")
        self._refused = meter.create_counter("fencepost.refused_calls", description="Refused and fenced calls.")
        self._hook_seconds = meter.create_histogram("fencepost.hook.duration", "s", "How long a decision took.")

    # -- hooks and requests --

    def begin_hook(self, hook: Hook) -> HookSpan:
        """A decision begins; what is traced in this task from now on is below its span."""
        self._close((_LAUNCH, hook.incarnation_id), None, {"fencepost.end": "hook"})
        span = self._tracer.start_span("fencepost.hook", kind=SpanKind.SERVER)
        return HookSpan(span, attach(set_span_in_context(span)))

    def end_hook(self, begun: HookSpan, hook: Hook) -> None:
        """It was made, or failed; the error's text may repeat what was sent, so its name has to do."""
        detach(begun.token)
        begun.span.set_attributes(_attributes(hook.fields()))
        if hook.decision == "failed":
            begun.span.set_status(Status(StatusCode.ERROR, type(hook.failure).__name__))
        begun.span.end()

    def decided(self, hook: Hook) -> None:
        """Count a hook event, and the seconds it took."""
        self._decisions.add(1, {"decision": hook.decision})
        self._hook_seconds.record(hook.seconds)

    def request(self, request: Request, status: int | None) -> None:
        """Count a request that ended."""
        told = LEFT if status is None else str(status)
        self._requests.add(1, {"listener": request.listener, "route": request.route, "status": told})

    # -- the runtime --

    def dead_letter(self, letter: DeadLetter) -> None:
        """Count a refused or fenced call."""
        self._refused.add(1, {"reason": reason_label(letter.reason)})

    def event(self, event: Event) -> None:
        """Count an event, and begin, note or end the span that it belongs to."""
        self._events.add(1, {"kind": kind_label(event.kind)})
        for number, story in enumerate(_STORIES):
            if event.kind in story.begins | story.notes | story.ends | story.bad:
                fields = event_fields(event)
                self._tell((number, *(fields.get(name) for name in story.ids)), story, event, fields)

    def _tell(self, key: _Key, story: _Story, event: Event, fields: Mapping[str, object]) -> None:
        attributes = _attributes(fields)
        is_new = key not in self._open and event.kind in story.begins
        if is_new:
            span = self._tracer.start_span(
                story.name, context=Context(), kind=SpanKind.INTERNAL, attributes=attributes, start_time=event.at
            )
            self._open[key] = span
        elif event.kind in story.notes and key in self._open:
            self._open[key].add_event(event.kind, attributes, timestamp=event.at)
        if event.kind in story.ends | story.bad:
            if event.kind in story.bad:
                self._fail(key, event.kind)
            self._close(key, event.at, {**attributes, "fencepost.end": event.kind})
        elif len(self._open) > OPEN_MAX:
            self._close(next(iter(self._open)), None, {"fencepost.end": "too many are open"})

    def _fail(self, key: _Key, kind: str) -> None:
        if (span := self._open.get(key)) is not None:
            span.set_status(Status(StatusCode.ERROR, kind))

    def _close(self, key: _Key, at: int | None, attributes: Mapping[str, str | int | float | bool]) -> None:
        if (span := self._open.pop(key, None)) is not None:
            span.set_attributes(attributes)
            span.end(at)


def _attributes(fields: Mapping[str, object]) -> dict[str, str | int | float | bool]:
    told = {f"fencepost.{name}": value for name, value in fields.items()}
    return {name: value for name, value in told.items() if isinstance(value, str | int | float | bool)}
