"""The operator's client of a bridge that serves from a folder of this user: blocking, for programs of one request.

    bridge = Operator(default_folder())  # of `folder`; or wherever `fencepost serve --folder` was told
    bridge.status()["panes"]

The folder tells where the bridge listens and holds the token; both must be private to this user, or nothing is sent.
The token goes to a loopback address only, and only while somebody listens on the folder's own socket: a port that a
killed bridge left in `endpoints.json` may be another program's by now.

No request is ever repeated.  Where no answer came, `NoAnswer` says so, and the status tells what was done.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlsplit

from fencepost.supervisor.bridge.auth import read_operator_token
from fencepost.supervisor.bridge.private_files import Unsafe, read_private, require_private_folder

__all__ = [
    "BridgeStopping",
    "ClientError",
    "Members",
    "NoAnswer",
    "NobodyServes",
    "NotNow",
    "Operator",
    "RequestRejected",
    "TokenRefused",
    "store_kept_by",
]

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_FILE_BYTES_MAX: Final = 64 * 1024

Members = dict[str, Any]
"""An answer: a JSON object, as openapi.json tells it."""


class ClientError(Exception):
    """Why a bridge did not do what it was asked; the message is for a person, and may hold what the bridge sent."""


class NobodyServes(ClientError):  # noqa: N818 - named for what is so, here and below
    """No bridge serves from the folder; nothing was sent."""


class TokenRefused(ClientError):  # noqa: N818
    """The bridge knows another token."""


class BridgeStopping(ClientError):  # noqa: N818
    """The bridge is about to end; whether it did what was asked is not known."""


class NotNow(ClientError):  # noqa: N818
    """The service cannot answer, in its own words: its store failed, or an actor crashed or is quarantined."""


class NoAnswer(ClientError):  # noqa: N818
    """What came back is no answer, or nothing did; whether the bridge did what was asked is not known."""


class RequestRejected(ClientError):  # noqa: N818
    """The bridge knows no such request (400, 404) or the protocol no such step (409); nothing was done."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Operator:
    """A bridge's operator.  Every call is one request over a connection of its own, and raises `ClientError`.

    `seconds` is how long the bridge may be silent.
    """

    def __init__(self, folder: Path, *, seconds: float = 15.0) -> None:
        self.folder = folder.absolute()
        self._seconds = seconds

    def status(self) -> Members:
        """`GET operator/status`."""
        return self.request("GET", "operator/status")

    def pane(self, pane_id: str) -> Members:
        """`GET operator/panes/{pane}`."""
        return self.request("GET", _of_pane(pane_id))

    def act(self, name: str, pane_id: str | None, fields: Mapping[str, str]) -> Members:
        """One of `operator_api.ACTIONS`; `pane_id` None for the one that has no pane."""
        path = f"operator/{name}" if pane_id is None else f"{_of_pane(pane_id)}/{name}"
        return self.request("POST", path, dict(fields))

    def detect(self, pane_id: str, transition: Mapping[str, str], *, new: bool = False) -> Members:
        """`POST operator/panes/{pane}/transitions`; the members are those of a `BaseTransition`.

        `new`: the pane may be one that the bridge knows nothing of.
        """
        return self.request("POST", f"{_of_pane(pane_id)}/transitions", {**transition, "new": new})

    def deliver(
        self, pane_id: str, via: str, text: str, delivery_id: str, *, seconds: float = 120.0, new: bool = False
    ) -> Members:
        """`POST operator/panes/{pane}/deliveries`; waits up to `seconds` for as long as the mechanism does."""
        members = {"via": via, "text": text, "delivery_id": delivery_id, "new": new}
        return self.request(
            "POST", f"{_of_pane(pane_id)}/deliveries", members, seconds=seconds, not_known=_HOW_FAR_NOT_KNOWN
        )

    def url(self, path: str) -> str:
        """Where the operator's listener has this path, for another program of this user; tells no token."""
        host, port, _ = self._find()
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/{path}"

    def request(
        self,
        method: str,
        path: str,
        members: Mapping[str, object] | None = None,
        *,
        seconds: float | None = None,
        not_known: str | None = None,
    ) -> Members:
        """One request of any route; `members` get the wire's version, and None sends no body.

        `not_known` is what an error says where no answer came, in place of the advice to look at the status.
        """
        not_known = not_known or (_ONLY_ASKED if method == "GET" else _NOT_KNOWN)
        host, port, token = self._find()
        body = None if members is None else json.dumps({"version": 1, **members}).encode("ascii")
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Connection": "close"}
        connection = http.client.HTTPConnection(host, port, timeout=self._seconds if seconds is None else seconds)
        try:
            connection.connect()
        except OSError as error:
            raise NobodyServes(f"nobody serves from {self.folder}: {host}:{port}: {error}") from error
        try:
            connection.request(method, f"/{path}", body, headers)
            response = connection.getresponse()
            content = response.read(ANSWER_BYTES_MAX + 1)
            if response.length and len(content) <= ANSWER_BYTES_MAX:
                raise http.client.IncompleteRead(content, response.length)
        except TimeoutError as error:
            raise NoAnswer(f"the bridge has not answered in time; {not_known}") from error
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"the bridge ended the connection: {error!r:.200}; {not_known}") from error
        finally:
            connection.close()
        return _judged(response.status, content, not_known)

    def _find(self) -> tuple[str, int, str]:
        """Where it listens and what opens it.  Sends nothing to anybody who is not of this user."""
        try:
            require_private_folder(self.folder)
            host, port = _loopback(read_private(self.folder / "endpoints.json", _FILE_BYTES_MAX))
            token = read_operator_token(self.folder / "operator.token")
            with socket.socket(socket.AF_UNIX) as local:
                local.settimeout(self._seconds)
                local.connect(str(self.folder / "local.sock"))
        except Unsafe as error:
            raise ClientError(str(error)) from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NobodyServes(f"nobody serves from {self.folder}; start `fencepost serve` there") from error
        except OSError as error:
            raise ClientError(f"{self.folder} cannot be used: {error}") from error
        return host, port, token


_STOPPING: Final = "the bridge is stopping"
_NOT_KNOWN: Final = "it is not known whether it was done: look at the status"
_ONLY_ASKED: Final = "it was only asked how things stand, which changes nothing"
_HOW_FAR_NOT_KNOWN: Final = "it is not known how far the message got: ask again under its id"


def store_kept_by(folder: Path) -> str | None:
    """The URL of the store that the bridge in `folder` serves, or served when it was killed; None: nothing tells."""
    try:
        told = json.loads(read_private(folder / "endpoints.json", _FILE_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    store = told.get("store") if isinstance(told, dict) else None
    return store if isinstance(store, str) else None


def _of_pane(pane_id: str) -> str:
    return f"operator/panes/{quote(pane_id, safe='')}"


def _loopback(endpoints: bytes) -> tuple[str, int]:
    """The operator listener's address.  Raises `ClientError` for a file that names none."""
    try:
        url = urlsplit(json.loads(endpoints)["operator"])
        host, port = url.hostname or "", url.port
        is_loopback = url.scheme == "http" and ipaddress.ip_address(host).is_loopback
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ClientError("endpoints.json does not tell where the operator's listener is") from None
    if not is_loopback or not port:
        raise ClientError("endpoints.json names no loopback address for the operator's listener")
    return host, port


def _judged(status: int, content: bytes, not_known: str) -> Members:
    """The members of an answer that was given, or the error that it is."""
    if len(content) > ANSWER_BYTES_MAX:
        raise NoAnswer(f"the bridge's answer has more than {ANSWER_BYTES_MAX} bytes; {not_known}")
    try:
        members: object = json.loads(content)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise NoAnswer(f"the bridge's answer, with status {status}, is not JSON; {not_known}")
    if status == 200:
        return cast("Members", members)
    words = str(members.get("error", f"status {status}"))
    if status == 401:
        raise TokenRefused(
            "operator.token has another token than the bridge, which read it at its start: start it again"
        )
    if status == 503:
        raise BridgeStopping(f"{words}; {not_known}") if words == _STOPPING else NotNow(words)
    if status in {400, 404, 409, 413}:
        raise RequestRejected(status, words)
    raise NoAnswer(f"the bridge answers {status}: {words}; {not_known}")
