"""`Telemetry`: all that a bridge tells about itself, as one object.

    with logging_to(sys.stderr, "json", logging.INFO) as lines:
        telemetry = Telemetry(lines)
        async with open_supervisor(…) as supervisor, trio.open_nursery() as nursery:
            await nursery.start(telemetry.follow, supervisor)
            bridge = Bridge(supervisor, …, telemetry=telemetry)

Each part can fail without the others, and all of them without the bridge.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from fencepost.supervisor import DeadLetter, Event, StoreFault
from fencepost.supervisor.bridge.telemetry.following import Follower
from fencepost.supervisor.bridge.telemetry.kinds import dead_letter_fields, event_fields, level_of
from fencepost.supervisor.bridge.telemetry.metrics import Metrics, Now
from fencepost.supervisor.bridge.telemetry.observer import Hook, Observer, Quietly, Request
from fencepost.supervisor.bridge.telemetry.tracing import tracing

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from fencepost.supervisor import Supervisor
    from fencepost.supervisor.bridge.telemetry.logs import LineHandler
    from fencepost.supervisor.bridge.telemetry.spans import HookSpan
    from fencepost.supervisor.bridge.wire import HookEvent

__all__ = ["Telemetry"]

_EVENTS: Final = logging.getLogger("fencepost.events")
_DEAD_LETTERS: Final = logging.getLogger("fencepost.dead_letters")

DEAD_LETTER_SECONDS: Final = 5.0
"""How often dead letters are looked for."""


class Telemetry(Observer):
    """Logs, counts and traces what it is told of, and what the runtime tells."""

    def __init__(
        self,
        lines: LineHandler | None = None,
        *,
        tracers: TracerProvider | None = None,
        meters: MeterProvider | None = None,
        dead_letter_seconds: float = DEAD_LETTER_SECONDS,
    ) -> None:
        self._metrics = Metrics()
        self._tracing = tracing(tracers, meters)
        self._lines = lines
        self._dead_letter_seconds = dead_letter_seconds
        self._follower: Follower | None = None
        self._logging, self._counting, self._telling = Quietly(), Quietly(), Quietly()

    # -- the runtime --

    async def follow(
        self, supervisor: Supervisor, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Follow the runtime until it closes or fails; started once it stands where the store ends.  Never raises."""
        self._follower = Follower(supervisor, self._event, self._dead_letter)
        await self._follower.run(self._dead_letter_seconds, task_status)

    def _event(self, event: Event) -> None:
        with self._logging:
            level = level_of(event)
            if _EVENTS.isEnabledFor(level):
                _EVENTS.log(level, "%s", event.kind, extra=event_fields(event))
        with self._counting:
            self._metrics.event(event)
        if self._tracing is not None:
            with self._telling:
                self._tracing.event(event)

    def _dead_letter(self, letter: DeadLetter) -> None:
        with self._logging:
            _DEAD_LETTERS.warning("%s was refused: %s", letter.call, letter.reason, extra=dead_letter_fields(letter))
        with self._counting:
            self._metrics.dead_letter(letter)
        if self._tracing is not None:
            with self._telling:
                self._tracing.dead_letter(letter)

    # -- requests and hooks --

    @contextmanager
    def hook(self, pane_id: str, asked: HookEvent) -> Generator[Hook]:
        """See `Observer.hook`; the decision is also a span."""
        with super().hook(pane_id, asked) as hook:
            if self._tracing is None:
                yield hook
                return
            begun: HookSpan | None = None
            with self._telling:
                begun = self._tracing.begin_hook(hook)
            try:
                yield hook
            except BaseException as failure:
                hook.failure = failure
                raise
            finally:
                if begun is not None:
                    with self._telling:
                        self._tracing.end_hook(begun, hook)

    def _ended(self, request: Request, status: int | None, seconds: float) -> None:
        with self._logging:
            super()._ended(request, status, seconds)
        with self._counting:
            self._metrics.request(request, status)
        if self._tracing is not None:
            with self._telling:
                self._tracing.request(request, status)

    def _decided(self, hook: Hook) -> None:
        with self._logging:
            super()._decided(hook)
        with self._counting:
            self._metrics.hook(hook)
        if self._tracing is not None:
            with self._telling:
                self._tracing.decided(hook)

    # -- what is read --

    async def exposition(self, supervisor: Supervisor) -> bytes:
        """See `Observer.exposition`.  Raises `MailboxClosed` while the runtime closes."""
        try:
            status = await supervisor.status()
        except StoreFault:
            status = None
        follower = self._follower
        now = Now(
            status=status,
            intents={} if follower is None else follower.intents,
            following=follower is not None and follower.following,
            log_dropped=0 if self._lines is None else self._lines.dropped,
        )
        return self._metrics.exposition(now)
