"""What only a human decides, done from a form: settle, resolve, rearm, discard, revive.

The form carries the session's own token and every argument; nothing is taken from a query.  What an action says of
itself is `operator_api.ACTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from attrs import frozen

from fencepost.supervisor import Applied, FencepostError, Refused, StoreFault, Unchanged
from fencepost.supervisor.bridge import wire
from fencepost.supervisor.bridge.auth import Denied
from fencepost.supervisor.bridge.dashboard.browser import Visitor
from fencepost.supervisor.bridge.dashboard.sessions import Session
from fencepost.supervisor.bridge.failures import NotFound
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.operator_api import ACTIONS, Action, read_fields

__all__ = ["FORM_BYTES_MAX", "Done", "action_of", "checked", "run"]

FORM_BYTES_MAX: Final = 65_536
_FIELDS_MAX: Final = 16


@frozen
class Done:
    """What came of it."""

    word: str
    """`applied`, `unchanged` or `refused`."""
    reason: str | None = None
    detail: str | None = None
    problem: str | None = None
    """Why it was not tried: an argument that cannot be."""


def action_of(name: str) -> Action:
    """The action of that name.  Raises `NotFound`."""
    if name not in ACTIONS:
        raise NotFound("there is no such action")
    return ACTIONS[name]


def checked(visitor: Visitor, body: bytes) -> tuple[Session, dict[str, str]]:
    """The fields of a form of this visitor's.  Raises `Denied` if it is not his, `wire.Malformed` if it is none."""
    form = _form(body)
    session = visitor.session
    if session is None or not session.owns_form(form.pop("form_token", "")):
        raise Denied(403, "the form was not made for this session")
    return session, form


def _form(body: bytes) -> dict[str, str]:
    if len(body) > FORM_BYTES_MAX:
        raise wire.Malformed("the form is too large")
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=_FIELDS_MAX,
        )
    except ValueError:
        raise wire.Malformed("the form is malformed") from None
    form = dict(pairs)
    if len(form) != len(pairs):
        raise wire.Malformed("a field of the form stands twice")
    return form


async def run(bridge: Bridge, action: Action, form: Mapping[str, str]) -> Done:
    """Do it.  Raises `StoreFault` and what else says nothing of the arguments."""
    fields = {field.name: form.get(field.name, "").strip() for field in action.fields}
    empty = [field.label for field in action.fields if not fields[field.name]]
    if empty:
        return Done("refused", problem=f"Fill in: {', '.join(empty)}.")
    try:
        answer = await bridge.decide(action, form.get("pane", ""), read_fields(action, fields))
    except StoreFault:
        raise
    except (FencepostError, ValueError) as error:
        return Done("refused", problem=str(error))
    match answer:
        case Applied():
            return Done("applied")
        case Unchanged():
            return Done("unchanged")
        case Refused():
            return Done("refused", str(answer.reason), answer.detail or None)
