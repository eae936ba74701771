"""What each route does once its caller is known: one function a route, its name the route's.

A handler confirms the caller's identity right before it acts, calls the pane, and answers (status, JSON).  What it
raises is turned into an answer by `app`.  One that has no JSON to tell answers with a response of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import trio
from attrs import Factory, frozen
from starlette.background import BackgroundTask
from starlette.responses import Response

from fencepost.supervisor import Answer, Pane, Reason, Refused, Supervisor
from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.adapters import Adapter, Delivered, HookAnswer
from fencepost.supervisor.bridge.adapters.answers import denial
from fencepost.supervisor.bridge.auth import Denied, Identity
from fencepost.supervisor.bridge.dashboard.board import Dashboard
from fencepost.supervisor.bridge.durably import durably
from fencepost.supervisor.bridge.escaped import error_told
from fencepost.supervisor.bridge.failures import NOT_NOW, NotFound, told as told_of
from fencepost.supervisor.bridge.hook import refusal
from fencepost.supervisor.bridge.limits import Limits, Stopping
from fencepost.supervisor.bridge.routes import UUID
from fencepost.supervisor.bridge.seats import NotThere, SeatRegistry, Seats
from fencepost.supervisor.bridge.telemetry.observer import Observer

if TYPE_CHECKING:
    from fencepost.supervisor.bridge.operator_api import Action
    from fencepost.supervisor.bridge.pane_processes import PaneProcesses

__all__ = ["HANDLERS", "Answered", "Bridge", "Call", "Gone", "Handler", "ToolEndpoint"]

T = TypeVar("T")

log: Final = logging.getLogger("fencepost.bridge")

Answered: TypeAlias = tuple[int, Mapping[str, object]] | Response
"""A status and the members of a JSON object, or a response of another kind, made whole by its handler."""


class ToolEndpoint(Protocol):
    """The fleet's tool endpoint, where a bridge offers one: JSON in, JSON out, for the pane that is proven."""

    async def __call__(self, pane: Pane, request: Mapping[str, object]) -> Mapping[str, object]:
        """Answer one request.  Raises ValueError for one that is malformed, and whatever the pane raises."""
        ...


@frozen
class Bridge:
    """What all listeners serve."""

    supervisor: Supervisor
    seats: SeatRegistry
    adapters: Mapping[str, Adapter] = Factory(dict)
    """By the harness name that hooks give."""
    operator_token: str | None = None
    """None: nobody is the operator."""
    head_pane: str | None = None
    """The pane whose mailbox is the head seat's; None: there is no head."""
    tools: ToolEndpoint | None = None
    limits: Limits = Factory(Limits)
    stopping: Stopping = Factory(Stopping)
    processes: PaneProcesses | None = None
    """What starts and ends the panes' processes; None: the bridge starts none."""
    telemetry: Observer = Factory(Observer)
    """Is told of requests and hooks."""
    dashboard: Dashboard = Factory(Dashboard)

    async def decide(self, action: Action, pane_id: str, fields: Mapping[str, str]) -> Answer:
        """Do what a human decided.  Raises what `Action.run` does."""

        async def run() -> Answer:
            return await action.run(self.supervisor, pane_id, fields)

        if action.starts and self.processes is not None:
            return await self.processes.rearmed(pane_id, run)
        return await run()


class Gone(Exception):  # noqa: N818
    """The client left, so nobody is there to be answered."""


@frozen
class Call:
    """One admitted request."""

    bridge: Bridge
    identity: Identity
    parameters: Mapping[str, str]
    query: bytes
    members: Mapping[str, object]
    """The body's; empty where the route takes none."""
    left: Callable[[], Awaitable[None]]
    """Returns when the client has left."""
    promise: Callable[[Answered], None]
    """Is told what is answered if the request is cut off from now on; without that it is 503."""

    @property
    def pane(self) -> Pane:
        """The pane in the path."""
        return self.bridge.supervisor.pane(self.parameters["pane"])

    async def unless_gone(self, work: Callable[[], Awaitable[T]], *, until_stop: bool = False) -> T | None:
        """Wait for `work` as long as somebody is there to wait for it; None if the bridge is about to stop.

        A question nobody waits for any more is withdrawn: what is handed to nobody counts as handed out.
        """
        member, left = self.identity.member, False
        result: T | None = None
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def client_left() -> None:
                nonlocal left
                await self.left()
                left = True
                nursery.cancel_scope.cancel()

            async def cancel_after(wait: Callable[[], Awaitable[None]]) -> None:
                await wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(client_left)
            if member is not None:
                nursery.start_soon(cancel_after, member.gone.wait)
            if until_stop:
                nursery.start_soon(cancel_after, self.bridge.stopping.asked.wait)
            try:
                result = await work()
            except Exception as error:  # noqa: BLE001 - raised below, outside the nursery, which would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if result is not None:
            return result
        if left:
            raise Gone
        self.identity.confirm()
        return None


def _uuid(call: Call, name: str) -> str:
    value = call.parameters[name]
    if UUID.fullmatch(value) is None:
        raise wire.Malformed(f"the {name} id must be a canonical lower-case UUID")
    return value


def _head(call: Call) -> Pane:
    if call.bridge.head_pane is None:
        raise NotFound("there is no head seat")
    return call.bridge.supervisor.pane(call.bridge.head_pane)


# -- events ------------------------------------------------------------------------------------------------------------


async def poll(call: Call) -> Answered:
    """`GET seats/{pane}/events?wait=`."""
    return await _poll(call, call.pane)


async def head_poll(call: Call) -> Answered:
    """`GET head/events?wait=`."""
    return await _poll(call, _head(call))


async def _poll(call: Call, pane: Pane) -> Answered:
    """One page; empty when the wait is over, or when the bridge stops.  An event on it is taken, whoever reads it."""
    asked = wire.seconds_of(wire.query(call.query, "wait").get("wait", "0"))
    wait_seconds = min(asked, call.bridge.limits.poll_seconds_max)
    call.identity.confirm()
    page = await call.unless_gone(lambda: pane.poll_events(wait_seconds), until_stop=True)
    return 200, wire.events(page or [])


async def acknowledge(call: Call) -> Answered:
    """`POST seats/{pane}/events/{event}/ack`."""
    return await _acknowledge(call, call.pane)


async def head_acknowledge(call: Call) -> Answered:
    """`POST head/events/{event}/ack`."""
    return await _acknowledge(call, _head(call))


async def _acknowledge(call: Call, pane: Pane) -> Answered:
    event_id = _uuid(call, "event")
    native, delay = wire.how_acknowledged(call.members)
    call.identity.confirm()
    if isinstance(await pane.acknowledge_event(event_id, native, delay), Refused):
        raise NotFound("no such event was handed out here")
    return 200, wire.acknowledgement()


async def head_reply(call: Call) -> Answered:
    """`POST head/events/{event}/reply`."""
    pane, event_id, text = _head(call), _uuid(call, "event"), wire.reply_text(call.members)
    call.identity.confirm()
    said = await pane.reply_event(event_id, text)
    if isinstance(said, Refused) and said.reason is Reason.UNKNOWN_DELIVERY:
        raise NotFound("no such event was handed out here")
    return 200, wire.answer(said)


# -- hooks -------------------------------------------------------------------------------------------------------------


async def hook(call: Call) -> Answered:
    """`POST seats/{pane}/hook`: a hook's question, or its report of a delivery.

    With `?harness=&incarnation=` it is a harness's own HTTP hook that asks, and is answered in the harness's words.
    """
    plain = wire.query(call.query, "harness", "incarnation", "wait")
    if "harness" in plain:
        return await _plain_hook(call, wire.read_plain_hook(plain, call.members))
    asked = wire.read_hook(call.members)
    call.identity.confirm()
    if isinstance(asked, Delivered):
        ids = (asked.intent_id, asked.incarnation_id, asked.turn_id, asked.batch_id)
        return 200, wire.answer(await call.pane.mark_delivered(*ids))
    return 200, wire.hook_answer(await _decided(call, asked))


async def _decided(call: Call, asked: wire.HookEvent) -> HookAnswer:
    adapter = call.bridge.adapters.get(asked.harness)
    if adapter is None:
        raise NotFound("no adapter for this harness")
    wait_seconds = min(asked.wait_seconds, call.bridge.limits.hook_seconds_max)
    with call.bridge.telemetry.hook(call.pane.pane_id, asked) as observed:
        said = observed.answer = await call.unless_gone(
            lambda: adapter.on_hook(call.pane, asked.incarnation_id, asked.event, wait_seconds)
        )
        if said is None:
            raise TypeError("the adapter did not answer")
    if call.bridge.processes is not None:
        await call.bridge.processes.heard(call.pane.pane_id, asked.incarnation_id, asked.event)
    return said


async def _plain_hook(call: Call, asked: wire.HookEvent) -> Answered:
    """Answer so that the harness obeys.  Any status but 200 would let the call run, so no failure is told by one."""
    call.identity.confirm()
    try:
        said = await _decided(call, asked)
    except (Gone, Denied):
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the call must not run
        call.bridge.stopping.heard(error)
        log.warning("hook: %s", error_told(error))
        calls = asked.event.get("hook_event_name") == "PreToolUse"
        status, _ = told_of(error)
        return Response(denial(refusal(status)) if calls else b"{}", 200, media_type="application/json")
    told = said.delivered
    report = None
    if told is not None:  # once the answer is on its way, as a hook program does once it has flushed
        ids = (told.intent_id, told.incarnation_id, told.turn_id, told.batch_id)
        report = BackgroundTask(call.pane.mark_delivered, *ids)
    return Response(said.stdout or b"{}", 200, media_type="application/json", background=report)


# -- messages ----------------------------------------------------------------------------------------------------------


async def binding(call: Call) -> Answered:
    """`GET seats/{pane}/messages`."""
    call.identity.confirm()
    found = await call.pane.binding()
    members: dict[str, object] = {"version": wire.VERSION, "binding": found.binding}
    return 200, members if found.detail is None else {**members, "detail": found.detail}


async def message(call: Call) -> Answered:
    """`POST seats/{pane}/messages` (section 6.1): an exact answer travels with 200, only a malformed post with 400.

    Where nobody knows what became of the post, that is an exact answer too.
    """
    try:
        post = wire.read_message(call.members)
        _check_ids(post.delivery_id, post.binding)
    except wire.Malformed as error:
        return 400, wire.rejected(call.members, str(error))
    call.identity.confirm()
    fingerprint = wire.fingerprint_of(post.text)
    nobody_knows = 200, wire.uncertain(post.delivery_id, post.binding, fingerprint, "the service could not finish")
    call.promise(nobody_knows)
    try:
        return 200, wire.receipt(await call.pane.accept(post))
    except NOT_NOW as error:
        call.bridge.stopping.heard(error)
        return nobody_knows


async def receipt(call: Call) -> Answered:
    """`GET seats/{pane}/messages/{message}?binding=&fingerprint=` (section 6.2); never sends anything."""
    delivery_id = _uuid(call, "message")
    asked = wire.query(call.query, "binding", "fingerprint")
    binding_, fingerprint = asked.get("binding"), asked.get("fingerprint")
    if not wire.is_digest(binding_) or not wire.is_digest(fingerprint):
        raise wire.Malformed("binding and fingerprint must be 64 lower-case hex digits each")
    call.identity.confirm()
    nobody_knows = 200, wire.uncertain(delivery_id, binding_, fingerprint, "the service could not tell")
    call.promise(nobody_knows)
    try:
        return 200, wire.receipt(await call.pane.receipt(delivery_id, binding_, fingerprint))
    except NOT_NOW as error:
        call.bridge.stopping.heard(error)
        return nobody_knows


def _check_ids(delivery_id: str | None, binding_: str | None) -> None:
    if delivery_id is None or UUID.fullmatch(delivery_id) is None or not wire.is_digest(binding_):
        raise wire.Malformed("delivery id required: a canonical UUID, and a binding of 64 hex digits")


# -- tools -------------------------------------------------------------------------------------------------------------


async def tools(call: Call) -> Answered:
    """`POST tools`: whatever the bridge offers its fleet."""
    offered, member = call.bridge.tools, call.identity.member
    if offered is None or member is None:
        raise NotFound("this bridge offers no tools")
    request = wire.versioned(call.members)
    call.identity.confirm()
    pane = call.bridge.supervisor.pane(member.pane_id)
    answer = await call.unless_gone(lambda: offered(pane, request))
    if answer is None:
        raise TypeError("the tool endpoint did not answer")
    return 200, answer


# -- the operator's own ------------------------------------------------------------------------------------------------


async def admit(call: Call) -> Answered:
    """`PUT operator/seats/{pane}`: a new member without `pid`; with it, the process of one that is a member."""
    seats, pane_id, pid = _own_seats(call), call.parameters["pane"], wire.process_of(call.members)
    if pid is None:
        return 200, {"version": wire.VERSION, "pane": pane_id, "link": await durably(seats.admit, pane_id)}
    try:
        await durably(seats.occupy, pane_id, pid)
    except NotThere as error:
        raise NotFound(str(error)) from None
    return 200, {"version": wire.VERSION, "pane": pane_id, "pid": pid}


async def dismiss(call: Call) -> Answered:
    """`DELETE operator/seats/{pane}`."""
    pane_id = call.parameters["pane"]
    dismissed = await durably(_own_seats(call).dismiss, pane_id)
    return 200, {"version": wire.VERSION, "pane": pane_id, "dismissed": dismissed}


def _own_seats(call: Call) -> Seats:
    seats = call.bridge.seats
    if not isinstance(seats, Seats):
        raise NotFound("the members are not kept here")
    return seats


async def openapi(call: Call) -> Answered:
    """`GET openapi.json`."""
    from fencepost.supervisor.bridge.openapi import document

    return 200, document(call.bridge.limits)


async def metrics(call: Call) -> Answered:
    """`GET metrics`."""
    from fencepost.supervisor.bridge.telemetry.metrics import CONTENT_TYPE

    text = await call.bridge.telemetry.exposition(call.bridge.supervisor)
    if text is None:
        raise NotFound("no metrics are kept here")
    return Response(text, headers={"content-type": CONTENT_TYPE})


Handler: TypeAlias = Callable[[Call], Awaitable[Answered]]

HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler
    for handler in (
        poll,
        acknowledge,
        hook,
        binding,
        message,
        receipt,
        tools,
        head_poll,
        head_acknowledge,
        head_reply,
        admit,
        dismiss,
        openapi,
        metrics,
    )
}
