"""JSON for what tools hand in and read back: strict when taken, whole when returned.  Pure.

Strict (contract T-15): None, bool, int, finite float, str, list or tuple, and mapping with str keys.  A tuple becomes
a list, a lone surrogate U+FFFD, and everything is copied, so nobody can change it afterwards.  Anything else is
unstorable: a ValueError that says where in the value it was found.  So is an int that Python would not read back.

orjson does the work; what it cannot do (integers over 64 bits, deep nesting) the standard library does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Final, TypeAlias

import orjson

from fencepost.mailbox.text import storable_text

__all__ = ["DEPTH_MAX", "INTEGER_BITS_MAX", "JsonValue", "json_copy", "json_text", "json_value", "text_of_copy"]

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

DEPTH_MAX: Final = 200
"""Deeper nesting is unstorable: no reader of the store could be trusted with it."""

INTEGER_BITS_MAX: Final = 14_284
"""A longer integer may have more than the 4,300 digits that Python, left as it is, writes and reads."""

_LONG_NUMBER: Final = re.compile(r"\d{19}")


def json_copy(value: object, where: str = "the value", depth: int = 0) -> JsonValue:
    """Return a strict copy of `value`.  Raises ValueError, naming `where` in it, for what JSON does not have."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return storable_text(str(value))
    if isinstance(value, int):
        if value.bit_length() > INTEGER_BITS_MAX:
            raise ValueError(f"{where} is an integer of {value.bit_length()} bits, {INTEGER_BITS_MAX} are allowed")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value!r}, and JSON has no such number")
        return float(value)
    if depth >= DEPTH_MAX:
        raise ValueError(f"{where[:80]}… is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, list | tuple):
        return [json_copy(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, where): json_copy(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    raise ValueError(f"{where} is a {type(value).__name__}, which JSON does not have")


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{where} has the key {key!r}, and JSON keys are strings")  # noqa: TRY004 - unstorable
    return storable_text(str(key))


def text_of_copy(value: JsonValue) -> str:
    """Return the JSON text of what `json_copy` returned."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_text(value: object, where: str = "the value") -> str:
    """Return the JSON text of `value`.  Raises ValueError for what JSON does not have."""
    return text_of_copy(json_copy(value, where))


def json_value(text: str) -> JsonValue:
    """Return what a JSON text holds, integers of any size included; each call returns objects of its own."""
    if _LONG_NUMBER.search(text) is not None:
        value: JsonValue = json.loads(text)
        return value
    whole: JsonValue = orjson.loads(text)
    return whole
