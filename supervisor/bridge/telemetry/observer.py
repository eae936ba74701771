"""What a listener tells of its requests and hooks; by itself an observer logs them, `Telemetry` also counts them.

    seen = observer.began(listener)                     a request came in; its route and ids are added as they are known
    observer.ended(seen, status)                        it was answered, or nobody was there to be answered
    with observer.hook(pane_id, asked) as hook: …       one hook event is being decided
        hook.answer = …

Neither can fail: what goes wrong in here is logged once, and the request goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Final

import trio
from attrs import Factory, define

from fencepost.supervisor import Allow, BlockGeneric, BlockPayload, BlockRestart
from fencepost.supervisor.bridge.telemetry.logs import about

if TYPE_CHECKING:
    from fencepost.supervisor import Supervisor
    from fencepost.supervisor.bridge.adapters import HookAnswer
    from fencepost.supervisor.bridge.wire import HookEvent

__all__ = ["DECISIONS", "NO_ROUTE", "Hook", "Observer", "Request"]

_REQUESTS: Final = logging.getLogger("fencepost.bridge.requests")
_HOOKS: Final = logging.getLogger("fencepost.hooks")
_OWN: Final = logging.getLogger(__name__)

NO_ROUTE: Final = "none"
"""The route of a request that has none."""
LEFT: Final = "left"
"""The status of a request, and the decision of a hook, whose client left before it was answered."""

DECISIONS: Final = ("allow", "block_payload", "block_generic", "block_restart", "none", "failed", LEFT)
"""What may come of a hook event.  `none`: it was no question, as a prompt's is none, or its adapter does not say;
`failed`: it was answered with an error, so the hook client blocked on its own."""


@define(eq=False)
class Request:
    """One request, as far as it is known."""

    listener: str
    route: str = NO_ROUTE
    method: str = ""
    ids: Mapping[str, str] = Factory(dict)
    """The pane, once it is proven that the caller speaks for it, and what the path names."""
    error: str | None = None
    """What went wrong, in printable ASCII; it may repeat what was sent, so it is for the log alone."""
    began: float = Factory(perf_counter)


@define(eq=False)
class Hook:
    """One hook event under decision."""

    pane_id: str
    incarnation_id: str
    harness: str
    answer: HookAnswer | None = None
    """What the adapter answered."""
    failure: BaseException | None = None
    began: float = Factory(perf_counter)
    seconds: float = 0.0

    @property
    def decision(self) -> str:
        """One of `DECISIONS`."""
        if self.failure is not None:
            return LEFT if _left(self.failure) else "failed"
        decided = None if self.answer is None else self.answer.decided
        match None if decided is None else decided.decision:
            case Allow():
                return "allow"
            case BlockPayload():
                return "block_payload"
            case BlockGeneric():
                return "block_generic"
            case BlockRestart():
                return "block_restart"
            case _:
                return "none" if self.answer is None or self.answer.delivered is None else "block_payload"

    def fields(self) -> dict[str, object]:
        """What is known of it: the ids of the question, and what the decision names."""
        fields: dict[str, object] = {
            "pane_id": self.pane_id,
            "incarnation_id": self.incarnation_id,
            "harness": self.harness,
            "decision": self.decision,
        }
        if self.answer is None:
            return fields
        if (decided := self.answer.decided) is not None:
            boundary, decision = decided.boundary, decided.decision
            fields |= {"batch_id": boundary.batch_id, "tool_call_id": boundary.tool_call_id}
            fields["turn_id"] = None if boundary.turn is None else boundary.turn.id
            fields["intent_id"] = getattr(decision, "intent_id", None)
            fields["reason"] = getattr(decision, "reason", None)
        elif (delivered := self.answer.delivered) is not None:
            fields |= {name: getattr(delivered, name) for name in ("intent_id", "turn_id", "batch_id")}
        return {name: value for name, value in fields.items() if value is not None}


class Observer:
    """Logs what it is told of; see the module."""

    def began(self, listener: str) -> Request:
        """A request came in."""
        return Request(listener)

    def ended(self, request: Request, status: int | None) -> None:
        """It was answered with this status; None: the client left before."""
        with _QUIETLY:
            self._ended(request, status, perf_counter() - request.began)

    @contextmanager
    def hook(self, pane_id: str, asked: HookEvent) -> Generator[Hook]:
        """A hook event is decided within; what is logged meanwhile is about its pane and process."""
        hook = Hook(pane_id, asked.incarnation_id, asked.harness)
        try:
            with about(pane_id=pane_id, incarnation_id=asked.incarnation_id):
                yield hook
        except BaseException as failure:
            hook.failure = failure
            raise
        finally:
            hook.seconds = perf_counter() - hook.began
            with _QUIETLY:
                self._decided(hook)

    async def follow(
        self,
        supervisor: Supervisor,  # noqa: ARG002 - what a subclass follows
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Follow the runtime until it closes or fails; this one does not."""
        task_status.started()

    async def exposition(self, supervisor: Supervisor) -> bytes | None:  # noqa: ARG002 - what a subclass reads
        """What `GET metrics` answers; None: no metrics are kept."""
        return None

    def _ended(self, request: Request, status: int | None, seconds: float) -> None:
        """Log it: what changed something or failed from INFO on, what only asked at DEBUG."""
        level = _level(request, status)
        if not _REQUESTS.isEnabledFor(level):
            return
        told = LEFT if status is None else str(status)
        fields = {
            **request.ids,
            "listener": request.listener,
            "route": request.route,
            "status": told,
            "milliseconds": round(seconds * 1_000, 3),
        }
        message = "%s %s: %s" if request.error is None else "%s %s: %s (%s)"
        args = (request.listener, request.route, told, *(() if request.error is None else (request.error,)))
        _REQUESTS.log(level, message, *args, extra=fields)

    def _decided(self, hook: Hook) -> None:
        """Log it: a call that may not run at INFO, one that may at DEBUG."""
        decision = hook.decision
        level = logging.INFO if decision.startswith("block") else logging.DEBUG
        level = logging.WARNING if decision == "failed" else level
        if _HOOKS.isEnabledFor(level):
            fields = {**hook.fields(), "milliseconds": round(hook.seconds * 1_000, 3)}
            _HOOKS.log(level, "a hook was decided: %s", decision, extra=fields)


def _left(failure: BaseException) -> bool:
    from fencepost.supervisor.bridge.handlers import Gone

    return isinstance(failure, Gone) or not isinstance(failure, Exception)  # no Exception: the request was cut


def _level(request: Request, status: int | None) -> int:
    if status is None:
        return logging.INFO
    if status >= 500:
        return logging.WARNING if status == 503 else logging.ERROR
    if request.route == NO_ROUTE:
        return logging.DEBUG
    return logging.INFO if status >= 400 or request.method != "GET" else logging.DEBUG


class Quietly:
    """Keeps what fails within from whoever is observed; the first failure is logged, the others would repeat it."""

    def __init__(self) -> None:
        self._told = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._told:
            self._told = True
            _OWN.error("what the bridge tells about itself is incomplete from now on", exc_info=error)
        return True


_QUIETLY: Final = Quietly()
