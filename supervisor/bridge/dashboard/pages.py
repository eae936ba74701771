"""What each page does once its visitor is known: one function a page, its name the route's.

A page reads the store beside the runtime and shows what it finds, damage included.  Payloads, texts and results are
told by their length and hash; `?show=` of one of them shows it, escaped and cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.resources import files
from typing import Any, Final

from attrs import frozen
from starlette.responses import Response

from fencepost.mailbox.stores.store import StoreReader
from fencepost.supervisor import FencepostError, StoreFault
from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.auth import Denied
from fencepost.supervisor.bridge.dashboard import deciding, details, views
from fencepost.supervisor.bridge.dashboard.board import Dashboard
from fencepost.supervisor.bridge.dashboard.browser import Visitor, cookie_name
from fencepost.supervisor.bridge.dashboard.journey import process_bars
from fencepost.supervisor.bridge.dashboard.live import Stream
from fencepost.supervisor.bridge.dashboard.sessions import SESSION_SECONDS
from fencepost.supervisor.bridge.dashboard.shown import Shown, shown
from fencepost.supervisor.bridge.failures import NotFound
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.seats import Seats

__all__ = ["PAGE_HANDLERS", "Visit", "serve_page"]


@frozen
class Visit:
    """One admitted request of a browser."""

    bridge: Bridge
    board: Dashboard
    visitor: Visitor
    parameters: Mapping[str, str]
    query: bytes
    body: bytes

    def asked(self, *names: str) -> dict[str, str]:
        """The query's members of these names.  Raises `wire.Malformed`."""
        return wire.query(self.query, *names)

    def show(self, template: str, status: int = 200, *, live: bool = True, **context: Any) -> Response:  # noqa: ANN401
        """A page of the session's."""
        return self.board.page(template, status, session=self.visitor.session, live=live, **context)


class _Unreadable(Exception):  # noqa: N818 - ends a page early
    """The store cannot be read beside the runtime, which tells of its own faults itself."""


async def serve_page(name: str, visit: Visit) -> Response:
    """The page of that name.  Raises what a request may end with; a store that cannot be read is a page."""
    try:
        return await PAGE_HANDLERS[name](visit)
    except _Unreadable:
        return visit.board.failure(503, "the store cannot be read")


async def _look(visit: Visit, see: Callable[[StoreReader], Any]) -> Any:  # noqa: ANN401 - what `see` answers
    visit.visitor.confirm()
    try:
        return await visit.board.look(visit.bridge.supervisor, see)
    except StoreFault as error:
        raise _Unreadable(str(error)) from error


async def _quarantined(visit: Visit) -> tuple[str, ...]:
    """The addresses that are out; none where the runtime cannot tell any more."""
    try:
        return (await visit.bridge.supervisor.status()).quarantined
    except FencepostError:
        return ()


def _members(visit: Visit) -> Collection[str]:
    """The panes that are members; none where the program that embeds the bridge keeps them elsewhere."""
    seats = visit.bridge.seats
    return seats.panes if isinstance(seats, Seats) else ()


# -- coming and going --------------------------------------------------------------------------------------------------


async def login(visit: Visit) -> Response:
    """`GET dashboard/login?ticket=`: a ticket for a cookie.

    It answers with a page and no redirect: the cookie is for navigations of this site only, and a redirect still
    belongs to whoever linked here.
    """
    cookie = visit.board.sessions.spend(visit.asked("ticket").get("ticket", ""))
    if cookie is None:
        raise Denied(401, "the ticket is unknown, was used before or is too old")
    answer = visit.board.page("welcome.html", refresh="/dashboard")
    name = cookie_name(visit.visitor.address)
    answer.set_cookie(name, cookie, SESSION_SECONDS, path="/dashboard", httponly=True, samesite="strict")
    return answer


async def logout(visit: Visit) -> Response:
    """`POST dashboard/logout`."""
    session = deciding.checked(visit.visitor, visit.body)[0]
    visit.board.sessions.end(session)
    answer = visit.board.page("goodbye.html")
    answer.delete_cookie(cookie_name(visit.visitor.address), path="/dashboard", httponly=True, samesite="strict")
    return answer


_STATIC: Final = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}


async def static(visit: Visit) -> Response:
    """`GET dashboard/static/{file}`: one of the few there are."""
    name = visit.parameters["file"]
    if name not in _STATIC:
        raise NotFound("there is no such file")
    content = files("fencepost.supervisor.bridge.dashboard").joinpath("static", name).read_bytes()
    return Response(content, media_type=_STATIC[name])


async def events(visit: Visit) -> Response:
    """`GET dashboard/events`: the stream; see `live`."""
    visit.visitor.confirm()
    if visit.board.streams.full:
        return visit.board.failure(429, "too many streams at once")
    return Stream(visit.board, visit.bridge.supervisor, visit.visitor, visit.bridge.stopping)


# -- looking -----------------------------------------------------------------------------------------------------------


async def fleet(visit: Visit) -> Response:
    """`GET dashboard`."""
    out, now = await _quarantined(visit), visit.board.now()
    found = await _look(visit, lambda reader: views.fleet(reader, _members(visit), out, now))
    return visit.show("fleet.html", fleet=found, stray=[one for one in out if one not in _named(found)])


def _named(found: views.FleetView) -> set[str]:
    """The quarantined addresses that a task names already."""
    return {task.fields["address"] for task in found.tasks if "address" in task.fields}


async def pane(visit: Visit) -> Response:
    """`GET dashboard/panes/{pane}`."""
    pane_id, out, now = visit.parameters["pane"], await _quarantined(visit), visit.board.now()
    view, told = await _look(
        visit, lambda reader: (views.pane(reader, pane_id, out, now), details.events_of(reader, pane_id))
    )
    if not view.known and pane_id not in _members(visit):
        raise NotFound("there is no such pane")
    bars = process_bars(view.incarnations.rows, now)
    return visit.show("pane.html", view=view, line=view.line, bars=bars, events=told)


async def intent(visit: Visit) -> Response:
    """`GET dashboard/panes/{pane}/intents/{intent}`."""
    pane_id, intent_id = visit.parameters["pane"], visit.parameters["intent"]
    found = await _look(visit, lambda reader: details.intent(reader, pane_id, intent_id))
    if found.intent is None and found.damage is None:
        raise NotFound("there is no such intent in this pane")
    payload = None if found.intent is None or found.intent.payload is None else shown(found.intent.payload)
    return visit.show("intent.html", pane_id=pane_id, view=found, payload=payload, show=_wanted(visit))


async def batch(visit: Visit) -> Response:
    """`GET dashboard/panes/{pane}/batches/{batch}`."""
    pane_id, address = visit.parameters["pane"], visit.parameters["batch"]
    now = visit.board.now()
    found = await _look(visit, lambda reader: details.batch(reader, pane_id, address, now))
    if found.batch is None and found.damage is None:
        raise NotFound("there is no such batch in this pane")
    results = {name: shown(one.content) for name, one in found.results.items()}
    return visit.show("batch.html", pane_id=pane_id, view=found, results=results, show=_wanted(visit))


async def delivery(visit: Visit) -> Response:
    """`GET dashboard/panes/{pane}/deliveries/{delivery}`."""
    pane_id, delivery_id = visit.parameters["pane"], visit.parameters["delivery"]
    found = await _look(visit, lambda reader: details.delivery(reader, pane_id, delivery_id))
    if not found.rows and found.damage is None:
        raise NotFound("there is no such message in this pane")
    message = found.rows[0] if found.rows else None
    texts = dict[str, Shown]()
    if isinstance(message, views.Outbound):
        texts["text"] = shown(message.row.text)
        if message.row.reply is not None:
            texts["reply"] = shown(message.row.reply)
    elif message is not None and message.acceptance is not None:
        texts["text"] = shown(message.acceptance.text)
    return visit.show(
        "delivery.html",
        pane_id=pane_id,
        delivery_id=delivery_id,
        message=message,
        outbound=isinstance(message, views.Outbound),
        texts=texts,
        damage=found.damage,
        show=_wanted(visit),
    )


def _wanted(visit: Visit) -> str | None:
    """What is to be shown in full."""
    return visit.asked("show").get("show")


async def letters(visit: Visit) -> Response:
    """`GET dashboard/dead-letters`."""
    found, count = await _look(visit, details.letters)
    return visit.show("letters.html", letters=found, count=count)


async def health(visit: Visit) -> Response:
    """`GET dashboard/health`; answers also when the store has failed, or cannot be read."""
    runtime, store, fault, unread = None, None, None, None
    try:
        runtime = await visit.bridge.supervisor.status()
        fault = runtime.fault
    except FencepostError as error:  # it names its own fault, so this is one of reading
        unread = str(error)
    try:
        store = await _look(visit, lambda reader: details.health(reader, visit.board.store_url))
    except _Unreadable as error:
        unread = str(error)
    return visit.show("health.html", runtime=runtime, fault=fault, unread=unread, store=store)


# -- deciding ----------------------------------------------------------------------------------------------------------


async def confirm(visit: Visit) -> Response:
    """`GET dashboard/actions/{action}`: what it claims; nothing is done."""
    action = deciding.action_of(visit.parameters["action"])
    asked = visit.asked("pane", *(field.name for field in action.fields))
    approval = None
    if action.name == "discard" and "approval" not in asked:
        found = await _look(
            visit, lambda reader: details.intent(reader, asked.get("pane", ""), asked.get("intent_id", ""))
        )
        approval = None if found.intent is None else found.intent.approval
    fields = asked if approval is None else {**asked, "approval": approval}
    return visit.show("confirm.html", live=False, action=action, fields=fields, problem=None)


async def act(visit: Visit) -> Response:
    """`POST dashboard/actions/{action}`: do it, for the session whose form this is."""
    action = deciding.action_of(visit.parameters["action"])
    _, form = deciding.checked(visit.visitor, visit.body)
    if form.get("confirmed") != "yes":
        problem = "Say first that you have read what it claims."
        return visit.show("confirm.html", 400, live=False, action=action, fields=form, problem=problem)
    visit.visitor.confirm()
    done = await deciding.run(visit.bridge, action, form)
    if done.problem is not None:
        return visit.show("confirm.html", 400, live=False, action=action, fields=form, problem=done.problem)
    return visit.show("done.html", live=False, action=action, fields=form, done=done)


PAGE_HANDLERS: Final[Mapping[str, Callable[[Visit], Awaitable[Response]]]] = {
    handler.__name__: handler
    for handler in (
        login,
        static,
        fleet,
        pane,
        intent,
        batch,
        delivery,
        letters,
        health,
        events,
        confirm,
        act,
        logout,
    )
}
