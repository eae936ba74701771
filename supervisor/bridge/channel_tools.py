"""The two tools of a seat: send a message to the service, and ask how far messages got.

A message leaves through the pane's durable claim (`ClaimedSender`), so at most one is under way, over all bridges of
the pane and all their restarts.  What a tool answers is said in the ladder's words and never in more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import trio
from attrs import frozen

from fencepost.supervisor import ClaimedSender, SendReport, Stage, Stop, fingerprint_of

__all__ = ["Outbox", "Told", "Tools"]

REPORTS_MAX: Final = 64
"""Reports that are remembered for `delivery_status`; the service and the claim remember the rest."""

_WORDS: Final[Mapping[Stage | Stop | None, str]] = {
    Stage.STORED: "Stored: the service has it, under the id {id}. Nobody need have read it. Do not send it again.",
    Stop.UNAVAILABLE: "Not sent ({detail}). It may be sent again.",
    Stop.REJECTED: "Not sent: it was turned down ({detail}). Do not send the same again.",
}
_UNCERTAIN: Final = (
    "Uncertain: nobody knows yet whether message {id} arrived ({detail}). Do not send it again, nor anything in its "
    "place; delivery_status asks about it."
)
_OTHER: Final = (
    "This message was not sent: an earlier one, {id}, is unresolved ({detail}). Ask delivery_status about that one; "
    "once it is stored, this one may be sent."
)
_BLOCKED: Final = "This message was not sent ({detail}). It may be sent later; if this stays, a person must look."


@frozen
class Told:
    """A tool's answer: words for a model, the same as members, and whether what was asked for was not done."""

    text: str
    members: Mapping[str, object]
    failed: bool = False


class Outbox:
    """The pane's way out.  One message at a time; `pending` only asks.  Blocking calls, in trio's threads."""

    def __init__(self, sender: ClaimedSender) -> None:
        self._sender = sender
        self._turn = trio.Lock()
        self.reports: OrderedDict[str, SendReport] = OrderedDict()

    async def send(self, text: str) -> SendReport:
        """See `ClaimedSender.send`."""
        async with self._turn:
            return self._noted(await trio.to_thread.run_sync(self._sender.send, text))

    async def pending(self) -> SendReport | None:
        """See `ClaimedSender.pending`."""
        async with self._turn:
            report = await trio.to_thread.run_sync(self._sender.pending)
            return None if report is None else self._noted(report)

    def _noted(self, report: SendReport) -> SendReport:
        if report.delivery_id is not None:
            self.reports[report.delivery_id] = report
            self.reports.move_to_end(report.delivery_id)
            while len(self.reports) > REPORTS_MAX:
                self.reports.popitem(last=False)
        return report


class Tools:
    """What `tools/list` offers.  `events` says what becomes of the events that come to the pane."""

    LISTED: Final[tuple[Mapping[str, object], ...]] = (
        {
            "name": "send_message",
            "description": "Send a message from this pane to the service that supervises it. It is sent once at most. "
            "The answer says how far it got; follow what it says about sending again.",
            "inputSchema": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "The message; at most 1 MiB of UTF-8."}},
                "required": ["text"],
            },
            "annotations": {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False},
        },
        {
            "name": "delivery_status",
            "description": "Ask how far messages from this pane got: the one that is unresolved, or the one with this "
            "id; and whether messages to this pane are carried to it. Sends nothing.",
            "inputSchema": {"type": "object", "properties": {"delivery_id": {"type": "string"}}},
            "annotations": {"readOnlyHint": True},
        },
    )

    def __init__(self, outbox: Outbox, events: Callable[[], Mapping[str, object]]) -> None:
        self._outbox = outbox
        self._events = events

    async def call(self, name: str, arguments: Mapping[str, object]) -> Told | None:
        """Do it; None if there is no such tool.  Raises ValueError for arguments that are not as listed."""
        match name:
            case "send_message":
                return await self._send(arguments.get("text"))
            case "delivery_status":
                return await self._status(arguments.get("delivery_id"))
            case _:
                return None

    async def _send(self, text: object) -> Told:
        if not isinstance(text, str):
            raise ValueError("text is required")  # noqa: TRY004 - what was sent, not misuse
        report = await self._outbox.send(text)
        mine = report.fingerprint == fingerprint_of(text)
        said, failed = _said(report, mine=mine)
        return Told(said, _members(report), failed)

    async def _status(self, delivery_id: object) -> Told:
        if delivery_id is not None and not isinstance(delivery_id, str):
            raise ValueError("delivery_id is text")
        pending = await self._outbox.pending()
        report = pending if delivery_id is None else self._outbox.reports.get(delivery_id)
        events = self._events()
        members = {"message": None if report is None else _members(report), "events": events}
        if report is not None:
            said = _said(report, mine=True)[0]
        elif delivery_id is None:
            said = "No message of this pane is unresolved."
        else:
            said = "No message of that id is known here."
        return Told(f"{said}\nMessages to this pane: {events['state']}.", members)


def _said(report: SendReport, *, mine: bool) -> tuple[str, bool]:
    """The words for a report, and whether the text it answers was not sent."""
    word = report.stage or report.stop
    if word is Stop.UNCERTAIN:
        words = _BLOCKED if report.delivery_id is None else _UNCERTAIN if mine else _OTHER
        failed = words is not _UNCERTAIN
    else:
        words, failed = _WORDS[word], report.stage is None
    return words.format(id=report.delivery_id, detail=report.detail or "no more is known"), failed


def _members(report: SendReport) -> dict[str, object]:
    word = report.stage or report.stop
    ids = {name: getattr(report, name) for name in ("delivery_id", "fingerprint", "detail")}
    return {"stage": None if word is None else word.value, **ids}
