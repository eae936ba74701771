"""OpenCode's own server as a `NativeControl`: a message goes to exactly one session, whose history proves it.

    send      POST …/prompt_async, once, under a message id made of the delivery's ─▶ the history shows it ─▶ delivered
    inspect   GET …/message: each message of the user's is an entry of the operator's

OpenCode answers that POST before it has written the message down, so its answer proves nothing; the history does, and
is looked at until it shows the message under its id.  If that never comes about, nobody knows, and a later look at the
same session can still tell.  Nothing is posted twice: OpenCode adds a repetition to the message that it has.

For `OpenCodeControl(OpenCodeServer(…))`.  Runs on trio.  What the server says is untrusted: it is bounded, and a
history that is not what was seen of the version in docs/harnesses.md counts as unreadable.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, urlsplit

import trio
from attrs import Attribute, field, frozen

from fencepost.supervisor import MechanismOutcome, NativeSession, TranscriptEntry

__all__ = ["OpenCodeServer", "ServerPlace", "entries_of", "message_id_of", "outcome_of_post"]

AGENT: Final = "opencode"
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_LOOK_SECONDS: Final = 0.2
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def _loopback(_instance: object, attribute: Attribute[Any], value: str) -> None:
    parts = urlsplit(value)
    if parts.scheme != "http" or parts.hostname not in _LOOPBACK or parts.port is None:
        raise ValueError(f"{attribute.name} must be http://127.0.0.1:PORT, not {value!r:.200}")


@frozen
class ServerPlace:
    """The server of a pane's OpenCode, its password, and the session that is the pane's conversation.

    Raises ValueError for a URL that is not on loopback: what is sent there are a password and an agent's words.
    """

    url: str = field(validator=_loopback)
    password: str = field(repr=False)
    session_id: str


class OpenCodeServer:
    """See the module.  `place_of` says where a pane's OpenCode is now, or None; it may change from call to call.

    `request_seconds` bounds one request.  An exception of `send` means that nobody knows how far the message got.
    """

    def __init__(self, place_of: Callable[[str], ServerPlace | None], *, request_seconds: float = 10.0) -> None:
        self._place_of = place_of
        self._request_seconds = request_seconds

    async def inspect(self, pane_id: str) -> NativeSession | None:
        """See `NativeControl.inspect`; the entries are None where the history cannot be read.

        None where the server does not answer, or has no such session.
        """
        place = self._place_of(pane_id)
        if place is None:
            return None
        try:
            status, content = await self._ask(place, "GET", _messages_of(place.session_id))
        except (OSError, http.client.HTTPException):
            return None
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        entries = entries_of(content) if status == http.HTTPStatus.OK else None
        return NativeSession(place.session_id, pane_id, AGENT, entries)

    async def send(self, session: NativeSession, delivery_id: str, text: str) -> MechanismOutcome:
        """See `NativeControl.send`; waits until the history shows the message, however long.

        Raises OSError and `http.client.HTTPException` where no answer came.
        """
        place = self._place_of(session.pane_id)
        if place is None or place.session_id != session.session_id:
            return MechanismOutcome("unbound", detail="the pane has another session now")
        message_id = message_id_of(delivery_id)
        busy = await self._is_busy(place)
        body = {"messageID": message_id, "parts": [{"type": "text", "text": text}]}
        status, _ = await self._ask(place, "POST", f"/session/{quote(place.session_id, safe='')}/prompt_async", body)
        outcome = outcome_of_post(status, busy=busy)
        if outcome.outcome == "delivered":
            await self._shown(place, message_id, text)
        return outcome

    async def _shown(self, place: ServerPlace, message_id: str, text: str) -> None:
        """Return when the history shows the message; another process writes it, so it can only be looked for."""
        while True:
            if await self._shows(place, message_id, text):
                return
            await trio.sleep(_LOOK_SECONDS)

    async def _is_busy(self, place: ServerPlace) -> bool:
        status, content = await self._ask(place, "GET", "/session/status")
        found = _json(content) if status == http.HTTPStatus.OK else None
        standing = found.get(place.session_id) if isinstance(found, dict) else None
        return isinstance(standing, dict) and standing.get("type") != "idle"

    async def _shows(self, place: ServerPlace, message_id: str, text: str) -> bool:
        try:
            status, content = await self._ask(place, "GET", _messages_of(place.session_id))
        except (OSError, http.client.HTTPException):
            return False  # it may be there again later
        entries = (entries_of(content) or ()) if status == http.HTTPStatus.OK else ()
        return any(entry.entry_id == message_id and entry.text == text for entry in entries)

    async def _ask(self, place: ServerPlace, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        return await trio.to_thread.run_sync(
            _asked, place, method, path, body, self._request_seconds, abandon_on_cancel=True
        )


def message_id_of(delivery_id: str) -> str:
    """The id under which a delivery stands in the history: OpenCode keeps one that begins with `msg`."""
    return f"msg_{delivery_id.replace('-', '')}"


def outcome_of_post(status: int, *, busy: bool) -> MechanismOutcome:
    """What an answer to the one POST means; pure.  `delivered` holds only once the history shows the message too.

    A refusal that was seen to leave nothing behind is `unbound`; whatever else comes says nothing.
    """
    if status == http.HTTPStatus.NO_CONTENT:
        return MechanismOutcome("delivered", delay="a turn of the session is running" if busy else None)
    if status in {http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.NOT_FOUND}:
        return MechanismOutcome("unbound", detail=f"the server refused it with status {status}")
    return MechanismOutcome("uncertain", detail=f"the server answered with status {status}")


def entries_of(content: bytes) -> tuple[TranscriptEntry, ...] | None:
    """The messages of a history in their order; None for what is no history.  Pure, and total.

    What the user said is the operator's; parts that OpenCode added itself (`synthetic`) are none of it.
    """
    history = _json(content)
    if not isinstance(history, list):
        return None
    entries = [_entry_of(one) for one in history]
    return None if None in entries else tuple(entry for entry in entries if entry is not None)


def _entry_of(message: object) -> TranscriptEntry | None:
    match message:
        case {"info": {"id": str(entry_id), "role": "user" | "assistant" as role}, "parts": list(parts)}:
            said = [part for part in parts if isinstance(part, dict) and part.get("type") == "text"]
            texts = [part.get("text") for part in said if not part.get("synthetic")]
            if not all(isinstance(one, str) for one in texts):
                return None
            return TranscriptEntry(entry_id, "operator" if role == "user" else "agent", "\n".join(map(str, texts)))
        case _:
            return None


def _messages_of(session_id: str) -> str:
    return f"/session/{quote(session_id, safe='')}/message"


def _json(content: bytes) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _asked(place: ServerPlace, method: str, path: str, body: object, seconds: float) -> tuple[int, bytes]:
    """One request over a connection of its own: neither proxies nor redirects are followed.  Blocks."""
    parts = urlsplit(place.url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)
    entitled = base64.b64encode(f"{AGENT}:{place.password}".encode()).decode()
    headers = {"Authorization": f"Basic {entitled}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        content = answer.read(_ANSWER_BYTES_MAX + 1)
        if len(content) > _ANSWER_BYTES_MAX:
            raise http.client.HTTPException(f"an answer of more than {_ANSWER_BYTES_MAX} bytes")
        return answer.status, content
    finally:
        connection.close()
