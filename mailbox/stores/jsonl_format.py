"""The lines of a JSON lines store, written and read.  Pure.

The first line says what the file is.  Then come the base lines, if the log was compacted: all that was live then.
Then one line a mutation; those that were committed together are a group:

    {"crc32": "…", "store":"fencepost","schema":1,"base_lines":1,"next_group":7,"trimmed_seq":0}
    {"crc32": "…", "base":0,"rows":[["intents",{…}],…],"events":[…],"dead_letters":[…]}
    {"crc32": "…", "group":[7,0,2],"label":"intent.detect","puts":[["intents",{…}]],"events":[[1,…]]}
    {"crc32": "…", "group":[7,1,2],"label":"pane.done","deletes":[["projections",["intent-1"]]]}

What stands between the brackets is in `jsonl_changes`.

The checksum is over what follows it.  Behind it everything is compact JSON, so the blank in `SEAL` occurs nowhere but
at a line's start: that is how the start of a line is known again where the end of the one before it is damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

import orjson

from fencepost.mailbox.errors import SchemaTooNew
from fencepost.mailbox.stores.jsonl_changes import (
    Json,
    Malformed,
    Weights,
    encode_rows,
    require_count,
    require_members,
)
from fencepost.mailbox.stores.rows import Rows
from fencepost.mailbox.stores.store import SCHEMA_VERSION
from fencepost.mailbox.strict_json import JsonValue

__all__ = [
    "SEAL_BYTES",
    "Header",
    "base_lines",
    "claims_later_group",
    "decode_header",
    "group_lines",
    "header_line",
    "opened",
]

SEAL: Final = b'{"crc32": "'
SEAL_BYTES: Final = len(SEAL) + 8
"""As many bytes of a line as tell it from any other: up to the end of its checksum."""
_AFTER_SEAL: Final = b'", '
_BODY_AT: Final = SEAL_BYTES + len(_AFTER_SEAL)
_CLAIM: Final = re.compile(re.escape(SEAL) + rb'.{8}", "group":\[(\d{1,19}),', re.DOTALL)
_LONG_NUMBER: Final = re.compile(rb"\d{20}|-\d{19}")
"""Where there may be an integer that orjson would round: over 64 bits, or under the least of them with a sign."""

STORE: Final = "fencepost"


class Header(NamedTuple):
    """What the first line says."""

    base_lines: int
    next_group: int
    trimmed_seq: int


def _sealed(body: bytes) -> bytes:
    """Return the line whose JSON object is `body` with a checksum put before its first member."""
    rest = body[1:]
    return b"%b%08x%b%b\n" % (SEAL, crc32(rest), _AFTER_SEAL, rest)


def opened(line: bytes) -> Json | None:
    """Return what a line says, without its checksum, or None if it is damaged.

    Raises `Malformed` where the checksum is right and what follows is no JSON object.
    """
    rest = line[_BODY_AT:-1]
    if line[-1:] != b"\n" or line[:_BODY_AT] != b"%b%08x%b" % (SEAL, crc32(rest), _AFTER_SEAL):
        return None
    body = b"{" + rest
    try:
        value: object = orjson.loads(body) if _LONG_NUMBER.search(body) is None else _long_numbers_value(body)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Malformed("is not a JSON object")
    return value


def _long_numbers_value(body: bytes) -> object:
    """Parse with integers of any size; the standard library takes more than JSON has, so what it took is written."""
    value: JsonValue = json.loads(body)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


def claims_later_group(text: bytes, group: int, first: int) -> bool:
    """Return whether a line that starts in `text`, at `first` or later, says that it is of a group after `group`."""
    return any(int(claim[1]) > group for claim in _CLAIM.finditer(text, first))


def header_line(header: Header) -> bytes:
    """Return the first line of a log."""
    return _sealed(orjson.dumps({"store": STORE, "schema": SCHEMA_VERSION, **header._asdict()}))


def decode_header(said: Json, where: str) -> Header:
    """Return what the first line says.  Raises `SchemaTooNew`, or `Malformed` if it is no header."""
    if said.get("store") != STORE:
        raise Malformed("is not the first line of a store")
    schema = require_count(said.get("schema"), "schema", 1)
    if schema > SCHEMA_VERSION:
        raise SchemaTooNew(where, schema, SCHEMA_VERSION)
    require_members(said, {"store", "schema", *Header._fields})
    return Header(*(require_count(said.get(name), name) for name in Header._fields))


def group_lines(group: int, contents: Sequence[bytes]) -> bytes:
    """Return the lines of one group, ready to be written."""
    size = len(contents)
    return b"".join(
        _sealed(b'{"group":[%d,%d,%d],%b' % (group, index, size, content[1:])) for index, content in enumerate(contents)
    )


def base_lines(rows: Rows, next_group: int) -> tuple[list[bytes], Weights]:
    """Return the lines of a log that says what `rows` hold and nothing else, header first, and their weights."""
    contents, weights = encode_rows(rows)
    header = header_line(Header(len(contents), next_group, rows.trimmed_seq))
    return [header, *(_sealed(b'{"base":%d,%b' % numbered) for numbered in enumerate(contents))], weights
