"""The small pieces that the shapes of the OpenAPI document are made of."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ANSWER", "ID", "TEXT", "UUID", "VERSION", "Schema", "list_of", "object_of", "optional"]

Schema = dict[str, Any]


def object_of(required: str = "", **properties: Schema) -> Schema:
    """An object with these members, of which those named in `required`, between blanks, are always there."""
    names = required.split()
    return {"type": "object", "properties": properties} | ({"required": names} if names else {})


def list_of(items: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": items}


def optional(schema: Schema) -> Schema:
    """This, or null."""
    kind = schema.get("type")
    return {**schema, "type": [kind, "null"]} if isinstance(kind, str) else {"oneOf": [schema, {"type": "null"}]}


TEXT: Final[Schema] = {"type": "string"}
ID: Final[Schema] = {"type": "string", "pattern": "^[ -~]{1,256}$"}
UUID: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}
VERSION: Final[Schema] = {"const": 1}
ANSWER: Final = object_of(
    "version answer",
    version=VERSION,
    answer={"enum": ["applied", "unchanged", "refused"]},
    reason=TEXT,
    detail=TEXT,
)
