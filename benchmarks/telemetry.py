"""What a request and a hook cost with and without observation, in microseconds of the process's time, all its threads'.

    python benchmarks/telemetry.py [ROUNDS]

The rounds of all kinds are made in turns.  Each request goes through the application of the operator's listener,
without a socket.  `binding` asks the runtime a question, `hook` is answered by an adapter that decides at once, and
`decision` by the pane, which commits nothing: a batch that was let run before.  The log goes to /dev/null, as JSON,
from INFO on: a hook is one line there, its request's, and a question is none.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any, Final
from unittest.mock import patch

import trio
from attrs import evolve
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fencepost.supervisor import Allow, Capabilities, ModelTurn, Pane, ToolBoundary, open_supervisor
from fencepost.supervisor.bridge.adapters import HookAnswer
from fencepost.supervisor.bridge.adapters.answers import answer_of
from fencepost.supervisor.bridge.app import ListenerApp
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.seats import Seats
from fencepost.supervisor.bridge.telemetry.logs import logging_to
from fencepost.supervisor.bridge.telemetry.observer import Hook, Observer, Request
from fencepost.supervisor.bridge.telemetry.telemetry import Telemetry
from fencepost.supervisor.bridge.wire import HookEvent

TOKEN: Final = "t" * 43
EACH: Final = 300


class Blind(Observer):
    """Looks away."""

    def ended(self, request: Request, status: int | None) -> None:
        pass

    @contextmanager
    def hook(self, pane_id: str, asked: HookEvent) -> Generator[Hook]:
        yield Hook(pane_id, asked.incarnation_id, asked.harness)


class Deciding:
    """Answers by itself, or as the pane decides."""

    harness = "plain"

    def capabilities(self, version: str | None) -> Capabilities:  # noqa: ARG002 - no version proves anything
        return Capabilities()

    async def on_hook(
        self, pane: Pane, incarnation_id: str, event: Mapping[str, object], wait_seconds: float
    ) -> HookAnswer:
        boundary = ToolBoundary(incarnation_id, ModelTurn("turn-1", 1), "batch-1")
        decision = await pane.pre_tool_use(boundary, wait_seconds) if "ask" in event else Allow()
        return answer_of(decision, boundary, verbatim=True)


def observers() -> dict[str, Observer]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    name = "fencepost.supervisor.bridge.telemetry.telemetry.tracing"
    with patch(name, return_value=None):  # as if the API were not there
        without = Telemetry()
    return {
        "unobserved": Blind(),
        "logs": Observer(),
        "logs, metrics": without,
        "logs, metrics, OpenTelemetry without SDK": Telemetry(),
        "logs, metrics, OpenTelemetry with SDK": Telemetry(tracers=provider),
    }


def requests(incarnation_id: str) -> dict[str, tuple[dict[str, Any], bytes]]:
    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "query_string": b"", "headers": headers}
    hook = {"version": 1, "incarnation_id": incarnation_id, "harness": "plain"}
    post = scope | {"method": "POST", "path": "/seats/p/hook"}
    return {
        "binding": (scope | {"method": "GET", "path": "/seats/p/messages"}, b""),
        "hook": (post, json.dumps(hook | {"event": {}}).encode()),
        "decision": (post, json.dumps(hook | {"event": {"ask": 1}}).encode()),
    }


async def one_round(app: ListenerApp, scope: dict[str, Any], body: bytes) -> float:
    async def send(message: Any) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise RuntimeError(f"answered {message['status']}")

    began = process_time()
    for _ in range(EACH):
        messages = iter([{"type": "http.request", "body": body}])

        async def receive(messages: Iterator[dict[str, Any]] = messages) -> dict[str, Any]:
            if (message := next(messages, None)) is not None:
                return message
            await trio.sleep_forever()
            raise AssertionError

        await app(scope, receive, send)
    return (process_time() - began) / EACH * 1_000_000


async def measured(rounds: int) -> dict[str, dict[str, float]]:
    seats, kinds = Seats(), observers()
    async with open_supervisor("memory://") as supervisor:
        incarnation_id = (await supervisor.pane("p").launch("plain")).incarnation_id
        bridge = Bridge(supervisor, seats, {"plain": Deciding()}, TOKEN)
        taken: dict[str, dict[str, list[float]]] = {}
        for _ in range(rounds):
            for name, observer in kinds.items():
                app = ListenerApp(evolve(bridge, telemetry=observer), Listener.OPERATOR)
                for asked, (scope, body) in requests(incarnation_id).items():
                    taken.setdefault(asked, {}).setdefault(name, []).append(await one_round(app, scope, body))
    return {
        asked: {name: statistics.median(values) for name, values in by_kind.items()} for asked, by_kind in taken.items()
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with Path("/dev/null").open("w", encoding="ascii") as nowhere, logging_to(nowhere, "json", logging.INFO):
        figures = trio.run(measured, rounds)
    for asked, by_kind in figures.items():
        base = by_kind["unobserved"]
        for name, value in by_kind.items():
            print(f"{asked:10} {name:42} {value:8.1f} us {value - base:+8.1f}")


if __name__ == "__main__":
    main()
