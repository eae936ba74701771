"""The way from a pane to its bridge: one request, one answer, one connection; and what a channel does over it.

`Link` asks over the local socket, where the process itself is the proof, or over the fleet's listener with a link
token.  `MailboxSource` is a pump's source over it, `ClaimTransport` a claimed sender's transport.

A request is made once.  It ends by its own deadline, however slowly an answer trickles in, and an answer is read up to
a bound; one that was cut off is no answer.  In HTTP/1.0, whose answers come in one piece and end with the connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote, urlsplit

import trio
from attrs import field, frozen

from fencepost.supervisor import MailboxEvent, Response
from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.hook import CONNECT_AGAIN_SECONDS, status_of
from fencepost.supervisor.bridge.private_files import read_private
from fencepost.supervisor.bridge.routes import UUID

__all__ = ["ClaimTransport", "Fleet", "Link", "Local", "MailboxSource"]

ANSWER_SECONDS: Final = 10.0
"""How long an answer may take, beside the time that a poll asked to wait for."""
MESSAGE_SECONDS: Final = 30.0
"""The same for a message that is posted, which is longer and is written down in more steps."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""An event has a text of at most 1 MiB, and JSON can spell a character of one byte with six."""
ENDPOINTS_BYTES_MAX: Final = 65_536


@frozen
class Local:
    """The bridge's unix socket; the connecting process is proven to live in its pane."""

    path: str

    async def connect(self) -> trio.SocketStream:
        """Raises OSError; ConnectionRefusedError where nobody listens.

        Where others connect faster than they are let in, it waits its turn: the kernel then refuses to wait, and trio
        takes that for a connection.
        """
        while True:
            try:
                stream = await trio.open_unix_socket(self.path)
            except FileNotFoundError as error:  # the bridge takes its socket away when it ends
                raise ConnectionRefusedError(str(error)) from error
            try:
                stream.socket.getpeername()
            except OSError:
                await trio.aclose_forcefully(stream)
                await trio.sleep(CONNECT_AGAIN_SECONDS)
            else:
                return stream

    def again(self, endpoints: Mapping[str, object]) -> Local:
        """The same listener where the bridge says that it is now."""
        return Local(_text(endpoints, "local"))

    def credentials(self) -> str:
        """No token proves anything here."""
        return ""


@frozen
class Fleet:
    """The fleet's listener, `http://HOST:PORT`, and the pane's link token.  Raises ValueError for another URL."""

    url: str
    token: str = field(repr=False)

    def __attrs_post_init__(self) -> None:
        """A token goes into a header, and nowhere but to this host and port."""
        if not self.token or not self.token.isascii() or not self.token.isprintable():
            raise ValueError("a link token is printable ASCII")
        self.address()

    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        if (
            parts.scheme != "http"
            or not parts.hostname
            or parts.port is None
            or any((parts.path.strip("/"), parts.query, parts.fragment, parts.username, parts.password))
        ):
            raise ValueError(f"the fleet's listener is http://HOST:PORT, not {self.url!a:.200}")
        return parts.hostname, parts.port

    async def connect(self) -> trio.SocketStream:
        """Raises OSError; ConnectionRefusedError only if every address refused."""
        try:
            return await trio.open_tcp_stream(*self.address())
        except OSError as error:
            if _all_refused(error):
                raise ConnectionRefusedError(str(error)) from error
            raise

    def again(self, endpoints: Mapping[str, object]) -> Fleet:
        """The same listener where the bridge says that it is now."""
        return Fleet(_text(endpoints, "fleet"), self.token)

    def credentials(self) -> str:
        """The header that proves the pane."""
        return f"Authorization: Bearer {self.token}\r\n"


Place: TypeAlias = Local | Fleet


def _all_refused(error: BaseException) -> bool:
    """Whether each address that was tried refused: trio tells them in the cause of what it raises."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_all_refused, error.exceptions))
    if isinstance(error, ConnectionRefusedError):
        return True
    return error.__cause__ is not None and _all_refused(error.__cause__)


def _text(endpoints: Mapping[str, object], name: str) -> str:
    value = endpoints.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"the endpoints do not say where {name!r} is")
    return value


class Link:
    """Requests of one pane.  `endpoints` is the file in which the bridge says where it listens, if it can be read here.

    Trio's; may be asked several things at once.
    """

    def __init__(self, pane_id: str, place: Place, endpoints: Path | None = None) -> None:
        self.pane_id = pane_id
        self.place = place
        self._endpoints = endpoints

    async def ask(self, method: str, path: str, body: bytes = b"", *, seconds: float = ANSWER_SECONDS) -> Response:
        """Make one request below the pane's own path.

        Raises ConnectionRefusedError if it reached nobody, and another OSError if it may have left and no whole answer
        came within so many seconds.
        """
        with trio.move_on_after(seconds):
            stream = await self.place.connect()
            async with stream:
                try:
                    await stream.send_all(self._request(method, path, body))
                    return _response(await _all_of(stream))
                except trio.BrokenResourceError as error:
                    raise ConnectionResetError(f"the connection broke: {error.__cause__}") from error
                except ValueError as error:
                    raise ConnectionError(str(error)) from error
        raise TimeoutError(f"no answer within {seconds:g} seconds")

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        head = f"{method} /seats/{quote(self.pane_id, safe='')}/{path} HTTP/1.0\r\nHost: localhost\r\n"
        head += self.place.credentials()
        if method == "POST":
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n".encode("ascii") + body

    def refresh(self) -> None:
        """Read again where the bridge listens; nothing where no file says so.

        Raises OSError if the file is not there or not this user's alone, ValueError if it says nothing usable.
        """
        if self._endpoints is not None:
            said = read_private(self._endpoints, ENDPOINTS_BYTES_MAX)  # where it says the bridge is, a token is sent
            self.place = self.place.again(wire.versioned(wire.parse(said)))


async def _all_of(stream: trio.SocketStream) -> bytes:
    parts, size = list[bytes](), 0
    while part := await stream.receive_some(1 << 18):
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise ValueError("the answer is too long")
    return b"".join(parts)


def _response(data: bytes) -> Response:
    head, _, body = data.partition(b"\r\n\r\n")
    return Response(status_of(head, len(body)), body)


def _events(members: wire.Members, pane_id: str) -> list[MailboxEvent]:
    """The events of a page.  Raises ValueError if one of them is none, or another pane's."""
    page = members.get("events")
    if not isinstance(page, list):
        raise ValueError("the page has no events")  # noqa: TRY004 - what was sent, not misuse
    return [_event(one, pane_id) for one in page]


def _event(said: object, pane_id: str) -> MailboxEvent:
    if not isinstance(said, dict):
        raise ValueError("an event is an object")  # noqa: TRY004
    values = [said.get(name) for name in ("event_id", "delivery_id", "pane_id", "mechanism", "text")]
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) != len(values):
        raise ValueError("an event has five texts")
    event = MailboxEvent(*texts)
    if event.pane_id != pane_id or UUID.fullmatch(event.event_id) is None:
        raise ValueError("an event is another pane's, or has no id")
    return event


class MailboxSource:
    """The pane's mailbox as a pump's source."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def poll(self, wait_seconds: float) -> Sequence[MailboxEvent]:
        """See `PumpSource`.  A page with an event that is not this pane's, or is none, is no page."""
        seconds = wait_seconds + ANSWER_SECONDS
        answer = await self._link.ask("GET", f"events?wait={wait_seconds:.3f}", seconds=seconds)
        if answer.status != 200:
            raise LookupError(f"status {answer.status}")
        members = wire.versioned(wire.parse(answer.body))
        return _events(members, self._link.pane_id)

    async def acknowledge(self, event_id: str) -> bool:
        """See `PumpSource`.  Not cut short by a cancellation: the event is written, and this is what says so."""
        answer: Response | None = None
        with trio.CancelScope(shield=True):
            answer = await self._link.ask("POST", f"events/{event_id}/ack")
        if answer is None or not 200 <= answer.status < 300:
            return False
        return wire.versioned(wire.parse(answer.body)).get("acknowledged") is True

    async def refresh(self) -> None:
        """See `PumpSource`."""
        self._link.refresh()


class ClaimTransport:
    """A claimed sender's transport, for a thread that trio started."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def read_binding(self) -> Response:
        """See `Transport`."""
        return self._ask("GET", "messages")

    def post(self, delivery_id: str, binding: str, text: str) -> Response:
        """See `Transport`."""
        members = {"version": wire.VERSION, "delivery_id": delivery_id, "binding": binding, "text": text}
        return self._ask("POST", "messages", json.dumps(members).encode("ascii"), seconds=MESSAGE_SECONDS)

    def read_receipt(self, delivery_id: str, binding: str, fingerprint: str) -> Response:
        """See `Transport`."""
        return self._ask("GET", f"messages/{delivery_id}?binding={binding}&fingerprint={fingerprint}")

    def refresh(self) -> None:
        """See `Transport`."""
        self._link.refresh()

    def _ask(self, method: str, path: str, body: bytes = b"", *, seconds: float = ANSWER_SECONDS) -> Response:
        return trio.from_thread.run(partial(self._link.ask, method, path, body, seconds=seconds))
