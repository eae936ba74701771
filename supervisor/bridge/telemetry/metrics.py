"""The numbers, as Prometheus reads them: text exposition format 0.0.4.

They live in a registry of their own.  No label has values that a peer can make up: no ids, no harness names; what is
not known of a kind or a reason is `other`.  Counters begin at 0 with the process; the gauges are the runtime's status
at the moment they are read, and are left out where that cannot be had.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from attrs import frozen
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fencepost.supervisor import DeadLetter, Event, RuntimeStatus
from fencepost.supervisor.bridge.telemetry.kinds import kind_label, reason_label
from fencepost.supervisor.bridge.telemetry.observer import LEFT, Hook, Request
from fencepost.supervisor.overview import UNRESOLVED

__all__ = ["CONTENT_TYPE", "HOOK_BUCKETS", "Metrics", "Now"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
HOOK_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds: a decision takes milliseconds, one that waits for a reconciliation up to a minute."""

_GAUGES: Final = (
    ("fencepost_panes", "panes", "Panes in the store."),
    ("fencepost_actors_awake", "awake", "Actors that hold a task and memory."),
    ("fencepost_open_batches", "open_batches", "Tool batches that are not closed."),
    ("fencepost_uncertain_deliveries", "uncertain_deliveries", "Deliveries nobody knows the outcome of."),
    ("fencepost_dead_letters", "dead_letters", "Refused and fenced calls in the store."),
    ("fencepost_line_depth", "line_depth", "Calls of the mutation line that have no answer yet."),
)


class Metrics:
    """All metrics of one bridge.  Counted and read in its one thread, so nothing here is locked."""

    def __init__(self) -> None:
        self._events = _Counts("fencepost_events", "The runtime's events, by kind.", "kind")
        self._requests = _Counts("fencepost_requests", "Requests that ended.", "listener", "route", "status")
        self._decisions = _Counts("fencepost_hook_decisions", "Hook events, by what came of them.", "decision")
        self._hook_seconds = _Seconds("fencepost_hook_seconds", "How long hook events took to decide.")
        self._refused = _Counts("fencepost_refused_calls", "Refused and fenced calls, by reason.", "reason")
        self._launches = _Counts("fencepost_process_launches", "Processes, by what they begin with.", "startup")
        self._ends = _Counts("fencepost_process_ends", "Processes retired.")
        self._registry = CollectorRegistry()
        self._gauges = _Gauges()
        for collector in (
            self._events,
            self._requests,
            self._decisions,
            self._hook_seconds,
            self._refused,
            self._launches,
            self._ends,
            self._gauges,
        ):
            self._registry.register(collector)

    def event(self, event: Event) -> None:
        """Count an event of the runtime."""
        self._events.add(kind_label(event.kind))
        if event.kind == "incarnation.launched":
            self._launches.add("plain" if event.data.get("intent_id") is None else "payload")
        elif event.kind == "incarnation.retired":
            self._ends.add()

    def dead_letter(self, letter: DeadLetter) -> None:
        """Count a refused or fenced call."""
        self._refused.add(reason_label(letter.reason))

    def request(self, request: Request, status: int | None) -> None:
        """Count a request that ended."""
        self._requests.add(request.listener, request.route, LEFT if status is None else str(status))

    def hook(self, hook: Hook) -> None:
        """Count a hook event, and the seconds it took."""
        self._decisions.add(hook.decision)
        self._hook_seconds.add(hook.seconds)

    def exposition(self, now: Now) -> bytes:
        """Every metric as text, the gauges as of `now`."""
        self._gauges.families = tuple(_families(now))
        return generate_latest(self._registry)


@frozen(kw_only=True)
class Now:
    """What is measured when it is read."""

    status: RuntimeStatus | None
    """None if the runtime cannot tell it any more, because it failed."""
    intents: Mapping[str, int]
    """Unresolved intents by state, as the events tell them."""
    following: bool
    """Whether the events are still followed; if not, what is counted from them stands still."""
    log_dropped: int


class _Counts(Collector):
    """A counter.  The library's own would be files where the environment says so, for the whole process."""

    def __init__(self, name: str, documentation: str, *labels: str) -> None:
        self._name, self._documentation, self._labels = name, documentation, labels
        self._counts: Counter[tuple[str, ...]] = Counter() if labels else Counter({(): 0})

    def add(self, *values: str) -> None:
        """Count one; `values` are those of the labels."""
        self._counts[values] += 1

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count)
        yield family


class _Seconds(Collector):
    """A histogram of durations."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name, self._documentation = name, documentation
        self._counts = [0] * (len(HOOK_BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one; a bucket takes what is at most its bound."""
        self._counts[bisect_left(HOOK_BUCKETS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        bounds = [*map(floatToGoString, HOOK_BUCKETS), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=self._sum)


class _Gauges(Collector):
    """Shows what it was handed last."""

    def __init__(self) -> None:
        self.families: tuple[Metric, ...] = ()

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        yield from self.families


def _families(now: Now) -> Iterator[Metric]:
    failed = now.status is None or now.status.fault is not None
    yield GaugeMetricFamily("fencepost_fault", "1 if the store failed, else 0.", float(failed))
    yield GaugeMetricFamily("fencepost_following", "1 while the events are followed, else 0.", float(now.following))
    dropped = "Log records dropped because the log is not read fast enough."
    yield CounterMetricFamily("fencepost_log_records_dropped", dropped, now.log_dropped)
    if now.status is None:
        return
    for name, attribute, documentation in _GAUGES:
        yield GaugeMetricFamily(name, documentation, getattr(now.status, attribute))
    yield GaugeMetricFamily("fencepost_quarantined", "Actors that crashed too often.", len(now.status.quarantined))
    unresolved = GaugeMetricFamily("fencepost_unresolved_intents", "Unresolved intents, by state.", labels=["state"])
    for state in UNRESOLVED:
        unresolved.add_metric([state], now.intents.get(state, 0))
    unresolved.add_metric(["unknown"], max(0, now.status.unresolved_intents - sum(now.intents.values())))
    yield unresolved
