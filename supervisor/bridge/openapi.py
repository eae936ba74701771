"""The wire as an OpenAPI 3.1 document, made from the table of routes."""

from __future__ import annotations

from typing import Final

from fencepost.supervisor.bridge.limits import Limits
from fencepost.supervisor.bridge.openapi_operator import OPERATOR_REQUESTS, OPERATOR_RESPONSES
from fencepost.supervisor.bridge.routes import ROUTES, Listener, Route
from fencepost.supervisor.bridge.schema import (
    ANSWER as _ANSWER,
    ID as _ID,
    TEXT as _TEXT,
    UUID as _UUID,
    VERSION as _VERSION,
    Schema,
    object_of as _object,
)

__all__ = ["REQUESTS", "RESPONSES", "document"]

_DIGEST: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
_DELIVERED: Final = _object(
    "intent_id incarnation_id turn_id batch_id", intent_id=_ID, incarnation_id=_ID, turn_id=_ID, batch_id=_ID
)
_EVENT: Final = _object(
    "event_id delivery_id pane_id mechanism text",
    event_id=_UUID,
    delivery_id=_UUID,
    pane_id=_ID,
    mechanism=_TEXT,
    text=_TEXT,
)
_EVENTS: Final = _object("version events", version=_VERSION, events={"type": "array", "items": _EVENT})
_ACKNOWLEDGED: Final = _object(
    "version acknowledged stage", version=_VERSION, acknowledged={"const": True}, stage={"const": "delivered"}
)
_ECHO: Final[Schema] = {"type": ["string", "null"]}
_RECEIPT: Final = _object(
    "version received stage delivery_id binding fingerprint",
    version=_VERSION,
    received={"type": "boolean"},
    stage={"enum": ["stored", "uncertain", "rejected", "unavailable"]},
    delivery_id=_ECHO,
    binding=_ECHO,
    fingerprint=_ECHO,
    detail=_TEXT,
)
_ERROR: Final = _object("version error", version=_VERSION, error=_TEXT)
_HOOK: Final[Schema] = {
    "oneOf": [
        _object(
            "version incarnation_id harness event",
            version=_VERSION,
            incarnation_id=_ID,
            harness=_ID,
            event={"type": "object"},
            wait_seconds=_SECONDS,
        ),
        _object("version delivered", version=_VERSION, delivered=_DELIVERED),
    ]
}
_HOOK_ANSWER: Final = _object(
    "version stdout exit_code delivered",
    version=_VERSION,
    stdout=_TEXT,
    exit_code={"type": "integer"},
    delivered={"oneOf": [_DELIVERED, {"type": "null"}]},
)
_HOW: Final = _object("", version=_VERSION, native={"type": ["string", "null"]}, delay={"type": ["string", "null"]})

REQUESTS: Final[dict[str, Schema]] = {
    "acknowledge": _HOW,
    "head_acknowledge": _HOW,
    "hook": _HOOK,
    "message": _object(
        "version delivery_id binding text", version=_VERSION, delivery_id=_UUID, binding=_DIGEST, text=_TEXT
    ),
    "tools": _object("version", version=_VERSION),
    "head_reply": _object("version text", version=_VERSION, text=_TEXT),
    "admit": _object("version", version=_VERSION, pid={"type": ["integer", "null"]}),
    **OPERATOR_REQUESTS,
    "dashboard_ticket": _object("version", version=_VERSION),
}
"""By route, the body that it takes."""

RESPONSES: Final[dict[str, Schema]] = {
    "poll": _EVENTS,
    "head_poll": _EVENTS,
    "acknowledge": _ACKNOWLEDGED,
    "head_acknowledge": _ACKNOWLEDGED,
    "hook": {"oneOf": [_HOOK_ANSWER, _ANSWER]},
    "binding": _object("version binding", version=_VERSION, binding={"type": ["string", "null"]}, detail=_TEXT),
    "message": _RECEIPT,
    "receipt": _RECEIPT,
    "tools": {"type": "object"},
    "head_reply": _ANSWER,
    "admit": _object("version pane", version=_VERSION, pane=_ID, link=_TEXT, pid={"type": "integer"}),
    "dismiss": _object("version pane dismissed", version=_VERSION, pane=_ID, dismissed={"type": "boolean"}),
    "openapi": {"type": "object"},
    **OPERATOR_RESPONSES,
    "metrics": _TEXT,
    "dashboard_ticket": _object("version path seconds", version=_VERSION, path=_TEXT, seconds=_SECONDS),
}
"""By route, the body of a 200."""

ALWAYS: Final = (401, 403, 404, 429, 500, 503)
"""What every route may answer."""

_NO_JSON: Final = {"metrics": "text/plain"}
"""By route, the media type of a 200 that is no JSON."""

_MEANINGS: Final = {
    200: "Answered.",
    400: "The request is malformed.",
    401: "Nobody is known by what was presented.",
    403: "Not this pane's to ask, or no longer.",
    404: "There is no such route on this listener, or no such thing.",
    408: "The body took too long.",
    409: "The protocol has no such step.",
    413: "The body is too large.",
    429: "Too many connections or requests at once.",
    500: "The bridge failed.",
    503: "The service cannot answer now.",
}
_PARAMETERS: Final = {"pane": _ID, "event": _UUID, "message": _UUID}
_QUERIES: Final[dict[str, dict[str, Schema]]] = {
    "poll": {"wait": _SECONDS},
    "hook": {"harness": _ID, "incarnation": _ID, "wait": _SECONDS},
    "head_poll": {"wait": _SECONDS},
    "receipt": {"binding": _DIGEST, "fingerprint": _DIGEST},
    "end_process": {"forget": {"type": "boolean"}},
}


def document(limits: Limits) -> Schema:
    """The whole document; `limits` are told where a client has to know them."""
    paths: dict[str, Schema] = {}
    for route in ROUTES:
        paths.setdefault(f"/{route.path}", {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "The fencepost bridge",
            "version": "1",
            "description": f"A poll waits {limits.poll_seconds_max:g} s and a hook {limits.hook_seconds_max:g} s at "
            f"most; a body has {limits.body_bytes_max} bytes at most.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "operator": {"type": "http", "scheme": "bearer", "description": "The operator's token."},
                "fleet": {"type": "http", "scheme": "bearer", "description": "The link token of one pane."},
            }
        },
    }


def _operation(route: Route) -> Schema:
    security: list[Schema] = [{one.value: []} for one in Listener if one in route.listeners and one.value != "local"]
    operation: Schema = {
        "operationId": route.name,
        "summary": route.summary,
        "x-listeners": sorted(one.value for one in route.listeners),
        "security": [*security, {}] if Listener.LOCAL in route.listeners else security,
        "parameters": _parameters(route),
        "responses": {str(status): _response(route, status) for status in sorted({*route.statuses, *ALWAYS})},
    }
    if route.name in REQUESTS:
        required = route.name not in {"acknowledge", "head_acknowledge"}
        operation["requestBody"] = {"required": required, "content": _json(REQUESTS[route.name])}
    return operation


def _parameters(route: Route) -> list[Schema]:
    in_path = [piece[1:-1] for piece in route.pieces if piece.startswith("{")]
    found = [{"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]} for name in in_path]
    for name, schema in _QUERIES.get(route.name, {}).items():
        found.append({"name": name, "in": "query", "required": route.name == "receipt", "schema": schema})
    return found


def _response(route: Route, status: int) -> Schema:
    if status == 200:
        schema = RESPONSES[route.name]
        if route.name in _NO_JSON:
            return {"description": _MEANINGS[status], "content": {_NO_JSON[route.name]: {"schema": schema}}}
    else:
        schema = _RECEIPT if route.name == "message" and status == 400 else _ERROR
    return {"description": _MEANINGS[status], "content": _json(schema)}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}
