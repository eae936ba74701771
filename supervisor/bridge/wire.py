"""The bridge's JSON, both ways (contract D-28).  Pure.

What comes in is hostile: one object in UTF-8, finite numbers, no key twice (two readers must not see two texts), nested
at most `DEPTH_MAX` deep.  Keys nobody knows are ignored, so that a newer client is served.  Whatever else is wrong is
`Malformed`, whose text is fixed: it never repeats what was sent.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Final, NoReturn, TypeAlias, TypeGuard
from urllib.parse import parse_qsl

from attrs import frozen

from fencepost.supervisor import Answer, InboundPost, MailboxEvent, Receipt, Refused, Stop, Unchanged
from fencepost.supervisor.bridge.adapters import Delivered, HookAnswer
from fencepost.supervisor.bridge.pieces import has_too_many_pieces

__all__ = [
    "DEPTH_MAX",
    "VERSION",
    "HookEvent",
    "Malformed",
    "Members",
    "acknowledgement",
    "answer",
    "events",
    "fingerprint_of",
    "hook_answer",
    "how_acknowledged",
    "id_of",
    "is_digest",
    "optional_text",
    "parse",
    "process_of",
    "query",
    "read_hook",
    "read_message",
    "read_plain_hook",
    "receipt",
    "rejected",
    "reply_text",
    "seconds_of",
    "uncertain",
    "versioned",
]

VERSION: Final = 1
DEPTH_MAX: Final = 200

Members: TypeAlias = Mapping[str, object]

_ID: Final = re.compile(r"[ -~]{1,256}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SECONDS: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
_LONE_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_PID_MAX: Final = 2**31 - 1


class Malformed(ValueError):  # noqa: N818 - what it is, not an error of ours
    """What was sent is not of the shape that its route takes; the text says which rule it breaks."""


# -- in ----------------------------------------------------------------------------------------------------------------


def parse(body: bytes) -> dict[str, object]:
    """The one object of a body.  Raises `Malformed`."""
    if has_too_many_pieces(body):
        raise Malformed("the body has too many values")
    try:
        value: object = json.loads(
            body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_number, parse_float=_finite
        )
    except Malformed:
        raise
    except UnicodeDecodeError:
        raise Malformed("the body is not UTF-8") from None
    except RecursionError:
        raise Malformed("the body is nested too deeply") from None
    except ValueError:
        raise Malformed("the body is not JSON") from None
    if not isinstance(value, dict):
        raise Malformed("the body is not a JSON object")
    _check_depth(value)
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Malformed("a key stands twice in one object")
    return members


def _refuse_number(_text: str) -> NoReturn:
    raise Malformed("JSON has no such number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def _check_depth(value: object) -> None:
    layer: list[object] = [value]
    for _ in range(DEPTH_MAX):
        layer = [
            child
            for parent in layer
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not layer:
            return
    raise Malformed("the body is nested too deeply")


def versioned(members: Members) -> Members:
    """The members, if they are of this version of the wire.  Raises `Malformed`."""
    version = members.get("version")
    if type(version) is not int or version != VERSION:
        raise Malformed("version must be 1")
    return members


def query(query_string: bytes, *names: str) -> dict[str, str]:
    """The parameters of these names; others are ignored, one that stands twice is `Malformed`."""
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, max_num_fields=32)
    except ValueError:
        raise Malformed("the query is malformed") from None
    wanted = [pair for pair in pairs if pair[0] in names]
    found = dict(wanted)
    if len(found) != len(wanted):
        raise Malformed("a parameter stands twice")
    return found


def seconds_of(text: str) -> float:
    """A waiting time as a query has it: plain decimal seconds.  Raises `Malformed`."""
    if _SECONDS.fullmatch(text) is None:
        raise Malformed("wait must be decimal seconds")
    return float(text)


@frozen
class HookEvent:
    """A hook's question."""

    incarnation_id: str
    harness: str
    event: Mapping[str, object]
    wait_seconds: float


def read_hook(members: Members) -> HookEvent | Delivered:
    """A hook's question, or its report of a delivery.  Raises `Malformed`."""
    versioned(members)
    event, delivered = members.get("event"), members.get("delivered")
    if (event is None) == (delivered is None):
        raise Malformed("either event or delivered is required")
    if delivered is not None:
        if not isinstance(delivered, dict):
            raise Malformed("delivered must be an object")
        ids = (id_of(delivered, name) for name in ("intent_id", "incarnation_id", "turn_id", "batch_id"))
        return Delivered(*ids)
    if not isinstance(event, dict):
        raise Malformed("event must be an object")
    wait = members.get("wait_seconds", 0)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= 1_000_000:
        raise Malformed("wait_seconds must be a number of seconds")
    return HookEvent(id_of(members, "incarnation_id"), id_of(members, "harness"), event, float(wait))


def read_plain_hook(asked: Mapping[str, str], event: Members) -> HookEvent:
    """A hook's question as a harness's own HTTP hook sends it: the event is the body, the rest is in the URL."""
    wait_seconds = seconds_of(asked.get("wait", "0"))
    return HookEvent(id_of(asked, "incarnation"), id_of(asked, "harness"), event, wait_seconds)


def read_message(members: Members) -> InboundPost:
    """A message of a pane; what the pane itself judges (its ids' forms, its size) is left to it."""
    delivery_id, binding, text = (members.get(name) for name in ("delivery_id", "binding", "text"))
    if not isinstance(delivery_id, str) or not isinstance(binding, str):
        raise Malformed("delivery id required: a delivery id and a binding")
    versioned(members)
    if not isinstance(text, str):
        raise Malformed("text required")
    return InboundPost(delivery_id, binding, text)


def how_acknowledged(members: Members) -> tuple[str | None, str | None]:
    """What an acknowledgement may add: the harness's own word, and a known delay."""
    return optional_text(members, "native"), optional_text(members, "delay")


def reply_text(members: Members) -> str:
    """What a seat replied."""
    text = versioned(members).get("text")
    if not isinstance(text, str):
        raise Malformed("text required")
    return text


def is_digest(value: object) -> TypeGuard[str]:
    """Whether it is 64 lower-case hex digits, as bindings and fingerprints are."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def process_of(members: Members) -> int | None:
    """The process id that a launcher names, if it does."""
    pid = versioned(members).get("pid")
    if pid is None:
        return None
    if type(pid) is not int or not 1 < pid <= _PID_MAX:
        raise Malformed("pid must be a process id")
    return pid


def id_of(members: Members, name: str) -> str:
    """The id of that name.  Raises `Malformed`."""
    value = members.get(name)
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise Malformed(f"{name} must be 1 to 256 printable ASCII characters")
    return value


def optional_text(members: Members, name: str) -> str | None:
    """The text of that name, if there is one.  Raises `Malformed`."""
    value = members.get(name)
    if value is not None and not isinstance(value, str):
        raise Malformed(f"{name} must be text")
    return value


# -- out ---------------------------------------------------------------------------------------------------------------


def events(page: list[MailboxEvent]) -> dict[str, object]:
    """A page of events."""
    shown = [
        {
            "event_id": one.event_id,
            "delivery_id": one.delivery_id,
            "pane_id": one.pane_id,
            "mechanism": one.mechanism,
            "text": one.text,
        }
        for one in page
    ]
    return {"version": VERSION, "events": shown}


def acknowledgement() -> dict[str, object]:
    """An event is acknowledged, now or before."""
    return {"version": VERSION, "acknowledged": True, "stage": "delivered"}


def answer(said: Answer) -> dict[str, object]:
    """A pane's answer; a refusal is one of them."""
    if isinstance(said, Refused):
        return {"version": VERSION, "answer": "refused", "reason": said.reason.value, "detail": said.detail}
    return {"version": VERSION, "answer": "unchanged" if isinstance(said, Unchanged) else "applied"}


def hook_answer(said: HookAnswer) -> dict[str, object]:
    """What a hook client prints, how it leaves, and what it reports then.

    Raises UnicodeDecodeError for an adapter whose output is no text: no payload may arrive changed.
    """
    told = said.delivered
    delivered = None if told is None else {name: getattr(told, name) for name in _DELIVERED}
    return {
        "version": VERSION,
        "stdout": said.stdout.decode("utf-8"),
        "exit_code": said.exit_code,
        "delivered": delivered,
    }


_DELIVERED: Final = ("intent_id", "incarnation_id", "turn_id", "batch_id")


def receipt(said: Receipt) -> dict[str, object]:
    """A receipt: one field for stage or stop."""
    word = said.stage or said.stop or Stop.UNCERTAIN
    return _receipt(word.value, said.delivery_id, said.binding, said.fingerprint, said.detail)


def rejected(members: Members, detail: str) -> dict[str, object]:
    """The receipt of a post that is malformed; it repeats what was asked, as far as that is text."""
    delivery_id, binding, text = (
        value if isinstance(value, str) else None for value in map(members.get, ("delivery_id", "binding", "text"))
    )
    return _receipt("rejected", delivery_id, binding, None if text is None else fingerprint_of(text), detail)


def uncertain(delivery_id: str | None, binding: str | None, fingerprint: str, detail: str) -> dict[str, object]:
    """The receipt where nobody can say how far it got (contract DA-7)."""
    return _receipt("uncertain", delivery_id, binding, fingerprint, detail)


def _receipt(
    word: str, delivery_id: str | None, binding: str | None, fingerprint: str | None, detail: str | None
) -> dict[str, object]:
    members: dict[str, object] = {"version": VERSION, "received": word == "stored", "stage": word}
    members |= {"delivery_id": delivery_id, "binding": binding, "fingerprint": fingerprint}
    return members if detail is None else {**members, "detail": detail}


def fingerprint_of(text: str) -> str:
    """SHA-256, in hex, of a message with its line ends unified and its outer blanks trimmed (contract DA-13)."""
    whole = _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
    trimmed = whole.replace("\r\n", "\n").replace("\r", "\n").strip()
    return hashlib.sha256(trimmed.encode()).hexdigest()
