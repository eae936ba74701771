"""The shapes of the operator's own routes: the lines of a fleet, a pane in full, and what he may decide.

The members of a line are those of its class (`overview`, `pane_history`), so the shapes are made from the classes.
"""

from __future__ import annotations

from enum import StrEnum
from types import NoneType, UnionType
from typing import Final, get_args, get_origin, get_type_hints

from fencepost.supervisor import RuntimeStatus, Stage, Stop, TransitionKind
from fencepost.supervisor.bridge.operator_api import ACTIONS, TEXT_CHARACTERS_MAX
from fencepost.supervisor.bridge.panes import Channel, Restart, Terminal
from fencepost.supervisor.bridge.schema import ANSWER, ID, TEXT, UUID, VERSION, Schema, list_of, object_of, optional
from fencepost.supervisor.overview import PaneLine
from fencepost.supervisor.pane_history import PaneHistory

__all__ = ["OPERATOR_REQUESTS", "OPERATOR_RESPONSES"]


def _shape(kind: object) -> Schema:
    """The shape of an annotation, as `attrs.asdict` and JSON have its values."""
    if isinstance(kind, UnionType):
        (held,) = (one for one in get_args(kind) if one is not NoneType)
        return optional(_shape(held))
    if get_origin(kind) is tuple:
        return list_of(_shape(get_args(kind)[0]))
    assert isinstance(kind, type)
    if issubclass(kind, StrEnum):
        return {"enum": [one.value for one in kind]}
    if kind in _PLAIN:
        return _PLAIN[kind]
    hints = get_type_hints(kind)
    return object_of(" ".join(hints), **{name: _shape(hint) for name, hint in hints.items()})


_PLAIN: Final[dict[type, Schema]] = {str: TEXT, int: {"type": "integer"}, bool: {"type": "boolean"}}
_WORDS: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": TEXT_CHARACTERS_MAX}
_PANE: Final = _shape(PaneHistory)

_BOOL: Final = _shape(bool)
_ARGV: Final = list_of(TEXT)
_TERMINAL, _CHANNEL, _RESTART = _shape(Terminal), _shape(Channel), _shape(Restart)
_REPORT: Final = optional({"enum": ["ready", "uncertain", "unbound"]})
_CLAIM: Final = optional(object_of("delivery_id session_id", delivery_id=UUID, session_id=optional(TEXT)))

OPERATOR_REQUESTS: Final[dict[str, Schema]] = {
    "run_process": object_of(
        "version",
        version=VERSION,
        argv=_ARGV,
        cwd=TEXT,
        environment={"type": "object", "additionalProperties": TEXT},
        harness=ID,
        terminal=_TERMINAL,
        restart=_RESTART,
        channel=_CHANNEL,
        prompt=TEXT,
        session_id=ID,
        replace=_BOOL,
    ),
    "detect": object_of(
        "version kind from_base to_base classification_op trigger_op",
        version=VERSION,
        kind=_shape(TransitionKind),
        from_base=ID,
        to_base=ID,
        classification_op=ID,
        trigger_op=ID,
        ambiguous=optional(TEXT),
        new=_BOOL,
    ),
    "deliver": object_of("version via text", version=VERSION, via=ID, text=TEXT, delivery_id=optional(UUID), new=_BOOL),
    **{
        name: object_of(
            " ".join(["version", *(one.name for one in action.fields)]),
            version=VERSION,
            **{one.name: {**_WORDS, "description": one.help} for one in action.fields},
        )
        for name, action in ACTIONS.items()
    },
}
"""By route, the body that it takes."""

OPERATOR_RESPONSES: Final[dict[str, Schema]] = {
    "run_process": object_of(
        "version pane incarnation_id epoch startup_delivery_id prompt_kept attach report claim",
        version=VERSION,
        pane=ID,
        incarnation_id=ID,
        epoch={"type": "integer"},
        startup_delivery_id=optional(TEXT),
        prompt_kept=_BOOL,
        attach=optional(_ARGV),
        report=_REPORT,
        claim=_CLAIM,
    ),
    "look_at_process": object_of(
        "version pane argv cwd harness terminal restart channel session_id prompt_kept pid incarnation_id attach "
        "report claim",
        version=VERSION,
        pane=ID,
        argv=_ARGV,
        cwd=TEXT,
        harness=ID,
        terminal=_TERMINAL,
        restart=_RESTART,
        channel=_CHANNEL,
        session_id=optional(TEXT),
        prompt_kept=_BOOL,
        pid=optional({"type": "integer"}),
        incarnation_id=optional(TEXT),
        attach=optional(_ARGV),
        report=_REPORT,
        claim=_CLAIM,
    ),
    "end_process": object_of("version pane ended forgotten", version=VERSION, pane=ID, ended=_BOOL, forgotten=_BOOL),
    "operator_status": object_of(
        "version runtime panes panes_left_out damage",
        version=VERSION,
        runtime=_shape(RuntimeStatus),
        panes=optional(list_of(_shape(PaneLine))),
        panes_left_out={"type": "integer"},
        damage=list_of(TEXT),
    ),
    "operator_pane": object_of(" ".join(["version", *_PANE["required"]]), version=VERSION, **_PANE["properties"]),
    "detect": object_of(
        "version intent_id seq state coalesced",
        version=VERSION,
        intent_id=ID,
        seq={"type": "integer"},
        state=optional(TEXT),
        coalesced={"type": "boolean"},
    ),
    "deliver": object_of(
        "version delivery_id mechanism outcome",
        version=VERSION,
        delivery_id=optional(UUID),
        stage=_shape(Stage),
        stop=_shape(Stop),
        mechanism=TEXT,
        outcome=TEXT,
        native=TEXT,
        delay=TEXT,
        detail=TEXT,
    ),
    **dict.fromkeys(ACTIONS, ANSWER),
}
"""By route, the body of a 200."""
