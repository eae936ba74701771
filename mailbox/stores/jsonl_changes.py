"""What a line of a JSON lines store writes: rows, deletions, events, dead letters; encoded and decoded.  Pure.

A row is its table and its columns, absent ones left out.  Bytes are text where they are UTF-8 and `{"base64": …}` where
they are not; events and dead letters are lists in the order of their columns, an event's data is JSON within JSON.

How many bytes each of them takes is kept beside it: from these `Weights` tells how much of a log is dead.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias, cast

import orjson
from attrs import define, field

from fencepost.mailbox.codec import DEAD_LETTER_COLUMNS, codec_of, encode_numbered_event, plain
from fencepost.mailbox.mutation import Delete, Event
from fencepost.mailbox.records import RECORD_TYPES, Record
from fencepost.mailbox.storable import require_storable
from fencepost.mailbox.stores.rows import Key, Refusal, Row, Rows, Written
from fencepost.mailbox.strict_json import JsonValue, text_of_copy
from fencepost.mailbox.text import storable_text

__all__ = [
    "BASE_LINE_BYTES",
    "Change",
    "Json",
    "Malformed",
    "Weights",
    "decode_change",
    "encode_mutation",
    "encode_rows",
    "encode_trim",
    "require_count",
    "require_members",
]

BASE_LINE_BYTES: Final = 64 * 1024
"""About how long a base line gets; one that holds a single large row is as long as that."""

Json: TypeAlias = "dict[str, JsonValue]"


class Malformed(ValueError):  # noqa: N818 - becomes a CorruptRecord with its line one frame up
    """A line whose checksum is right says what no store can have written."""


@define(eq=False)
class Change:
    """What a line writes, with how many of its bytes each part takes."""

    deletes: Sequence[Delete] = ()
    puts: Sequence[Record] = ()
    put_sizes: Sequence[int] = ()
    events: Sequence[Event] = ()
    event_sizes: Sequence[int] = ()
    letters: Sequence[Row] = ()
    letter_sizes: Sequence[int] = ()
    trimmed: int | None = None


@define
class Weights:
    """How many bytes of a log still say something: those of the rows, events and dead letters that are there."""

    trimmed_seq: int
    live: int = 0
    _rows: dict[tuple[type[Record], Key], int] = field(factory=dict, init=False)
    _events: deque[int] = field(factory=deque, init=False)

    def count(self, change: Change) -> None:
        """Take in what one line changed."""
        for delete in change.deletes:
            self.live -= self._rows.pop((delete.record_type, delete.key), 0)
        for record, size in zip(change.puts, change.put_sizes, strict=True):
            place = (type(record), record.key)
            self.live += size - self._rows.get(place, 0)
            self._rows[place] = size
        self._events.extend(change.event_sizes)
        self.live += sum(change.event_sizes) + sum(change.letter_sizes)
        if change.trimmed is not None:
            for _ in range(change.trimmed - self.trimmed_seq):
                self.live -= self._events.popleft()
            self.trimmed_seq = change.trimmed


# ------------------------------------------------------------------------------------------------------------- encoding


def encode_mutation(label: str, written: Written) -> tuple[bytes, Change]:
    """Return the content of a mutation's line, `{}` if it wrote nothing, and what it changes.

    Raises `Refusal` for a value that its column cannot hold.
    """
    deletes = [Delete(step.record_type, step.key) for step in written.steps if step.new is None]
    records = [step.new for step in written.steps if step.new is not None]
    puts = [_put(record) for record in records]
    events = [_event(row) for row in written.event_rows]
    letters = [_letter(row) for row in written.letter_rows]
    sections = (
        (b"deletes", [orjson.dumps([delete.record_type.TABLE, delete.key]) for delete in deletes]),
        (b"puts", puts),
        (b"events", events),
        (b"dead_letters", letters),
    )
    said = [b'"%b":[%b]' % (name, b",".join(parts)) for name, parts in sections if parts]
    change = Change(
        deletes,
        records,
        [len(part) for part in puts],
        written.events,
        [len(part) for part in events],
        written.letter_rows,
        [len(part) for part in letters],
    )
    if not said:
        return b"{}", change
    return b'{"label":%b,%b}' % (orjson.dumps(storable_text(label)), b",".join(said)), change


def encode_trim(last: int) -> tuple[bytes, Change]:
    """Return the content of the line that says up to which seq events were trimmed away, and what it changes."""
    return b'{"trimmed":%d}' % last, Change(trimmed=last)


def _put(record: Record) -> bytes:
    codec = codec_of(type(record))
    columns: dict[str, object] = {}
    for name, value, types in zip(codec.columns, codec.encode(record), codec.stored_types, strict=True):
        if value is not None or type(None) not in types:
            if type(value) not in types:
                value = _of_type(record, name, value, types)  # noqa: PLW2901 - seldom, and the same value
            columns[name] = _text_or_base64(value) if type(value) is bytes else value
    return orjson.dumps((record.TABLE, columns))


def _of_type(record: Record, name: str, value: object, types: Iterable[type]) -> object:
    """Return `value` as the type that its column has: an enum is its word, True is 1, a subclass its base."""
    value = plain(value)
    for kind in (str, int):
        if kind in types and isinstance(value, kind):
            return kind(value)
    if bytes in types and isinstance(value, bytes):
        return bytes(value)
    raise Refusal(record.TABLE, record.key, f"cannot be stored: {name} is a {type(value).__name__}")


def _text_or_base64(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _event(row: Row) -> bytes:
    seq, at, kind, address, text = row
    if not _fits(at, (int,)):
        raise Refusal("events", (), f"cannot be stored: at is a {type(at).__name__}")
    return orjson.dumps((seq, at, kind, address, orjson.Fragment(cast("str", text))))


def _fits(value: object, types: tuple[type, ...]) -> bool:
    """Return whether `value` will be read back as one of `types`; True would be read back as itself."""
    return isinstance(value, types) and not isinstance(value, bool)


def _letter(row: Row) -> bytes:
    for name, value in zip(DEAD_LETTER_COLUMNS, row, strict=True):
        if not _fits(value, _LETTER_TYPES[name]):
            raise Refusal("dead_letters", (), f"cannot be stored: {name} is a {type(value).__name__}")
    return orjson.dumps(row)


def encode_rows(rows: Rows) -> tuple[list[bytes], Weights]:
    """Return the contents of as many base lines as it takes to say all that `rows` hold, and their weights.

    They lack their first brace: a number goes before them.
    """
    weights = Weights(rows.trimmed_seq)
    contents: list[bytes] = []
    change = Change()
    for kind in RECORD_TYPES:
        records = list(rows.tables[kind].rows.values())
        parts = [_put(record) for record in records]
        change.puts, change.put_sizes = records, [len(part) for part in parts]
        weights.count(change)
        contents += _packed(b"rows", parts)
    parts = [_event(encode_numbered_event(cast("int", event.seq), event)[0]) for event in rows.events]
    contents += _packed(b"events", parts)
    letters = [orjson.dumps([getattr(letter, name) for name in DEAD_LETTER_COLUMNS]) for letter in rows.dead_letters]
    contents += _packed(b"dead_letters", letters)
    weights.count(Change(event_sizes=[len(part) for part in parts], letter_sizes=[len(part) for part in letters]))
    return contents, weights


def _packed(name: bytes, parts: Iterable[bytes]) -> Iterable[bytes]:
    """Yield the rest of lines that hold `parts` under `name`."""
    line: list[bytes] = []
    size = 0
    for part in parts:
        if line and size + len(part) > BASE_LINE_BYTES:
            yield b'"%b":[%b]}' % (name, b",".join(line))
            line, size = [], 0
        line.append(part)
        size += len(part)
    if line:
        yield b'"%b":[%b]}' % (name, b",".join(line))


# ------------------------------------------------------------------------------------------------------------- decoding

_TYPES_OF_TABLE: Final = {kind.TABLE: kind for kind in RECORD_TYPES}
_LETTER_TYPES: Final[dict[str, tuple[type, ...]]] = {
    name: (int,) if name in {"seq", "at"} else (str, type(None)) if name == "incarnation_id" else (str,)
    for name in DEAD_LETTER_COLUMNS
}
_EVENT_TYPES: Final = (int, int, str, str, dict)
_BASE_MEMBERS: Final = frozenset({"base", "rows", "events", "dead_letters"})
_GROUP_MEMBERS: Final = frozenset({"group", "label", "deletes", "puts", "events", "dead_letters", "trimmed"})


def decode_change(said: Json, where: str, *, base: bool) -> Change:
    """Return what a base line or a line of a group writes.

    Raises `Malformed` for a form no store writes, and `CorruptRecord` for a row that no record can be.
    """
    require_members(said, _BASE_MEMBERS if base else _GROUP_MEMBERS)
    puts = _list(said, "rows" if base else "puts")
    events, letters = _list(said, "events"), _list(said, "dead_letters")
    trimmed = said.get("trimmed")
    return Change(
        [_decode_delete(item) for item in _list(said, "deletes")],
        [_decode_put(item, where) for item in puts],
        [*map(_size, puts)],
        [_decode_event(item) for item in events],
        [*map(_size, events)],
        [_decode_letter(item) for item in letters],
        [*map(_size, letters)],
        None if trimmed is None else require_count(trimmed, "trimmed"),
    )


def _size(item: JsonValue) -> int:
    """Return how many bytes of its line an item took."""
    return len(text_of_copy(item).encode())


def require_members(said: Json, known: Iterable[str]) -> None:
    """Raise `Malformed` if there is a member that is not `known`."""
    if unknown := said.keys() - set(known):
        raise Malformed(f"has the unknown {', '.join(map(repr, sorted(unknown)))}")


def require_count(value: object, name: str, least: int = 0) -> int:
    """Return the integer that `value` is.  Raises `Malformed` if it is none, or under `least`."""
    if type(value) is not int or value < least:
        raise Malformed(f"{name} is {value!r}")
    require_storable(value)
    return value


def _list(said: Json, name: str) -> list[JsonValue]:
    value = said.get(name, [])
    if not isinstance(value, list):
        raise Malformed(f"{name} is no list")
    return value


def _table_and_rest(item: JsonValue) -> tuple[type[Record], JsonValue]:
    if not isinstance(item, list) or len(item) != 2:
        raise Malformed("a row is no pair of a table and its columns")
    table, rest = item
    record_type = _TYPES_OF_TABLE.get(table) if isinstance(table, str) else None
    if record_type is None:
        raise Malformed(f"names the unknown table {table!r}")
    return record_type, rest


def _decode_put(item: JsonValue, where: str) -> Record:
    record_type, columns = _table_and_rest(item)
    if not isinstance(columns, dict):
        raise Malformed(f"a row of {record_type.TABLE} has no columns")
    codec = codec_of(record_type)
    if unknown := columns.keys() - set(codec.columns):
        raise Malformed(f"names the unknown column {record_type.TABLE}.{min(unknown)}")
    row = [
        _bytes_of(columns.get(name)) if bytes in types else columns.get(name)
        for name, types in zip(codec.columns, codec.stored_types, strict=True)
    ]
    return codec.decode(row, where)


def _bytes_of(value: JsonValue) -> object:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Mapping):
        encoded = value.get("base64")
        if len(value) != 1 or not isinstance(encoded, str):
            raise Malformed("bytes are neither text nor base64")
        return b64decode(encoded, validate=True)
    return value


def _decode_delete(item: JsonValue) -> Delete:
    record_type, key = _table_and_rest(item)
    if not isinstance(key, list) or any(type(part) not in {str, int} for part in key):
        raise Malformed(f"a deleted key of {record_type.TABLE} is no list of scalars")
    return Delete(record_type, tuple(key))


def _decode_event(item: JsonValue) -> Event:
    if not isinstance(item, list) or tuple(map(type, item)) != _EVENT_TYPES:
        raise Malformed("an event is not a seq, a time, a kind, an address and data")
    seq, at, kind, address, data = item
    require_storable(cast("int", seq))
    require_storable(cast("int", at))
    return Event(
        seq=cast("int", seq),
        at=cast("int", at),
        kind=cast("str", kind),
        address=cast("str", address),
        data=cast("dict[str, object]", data),
    )


def _decode_letter(item: JsonValue) -> Row:
    if (
        not isinstance(item, list)
        or len(item) != len(DEAD_LETTER_COLUMNS)
        or any(type(value) not in types for value, types in zip(item, _LETTER_TYPES.values(), strict=True))
    ):
        raise Malformed(f"a dead letter is not {', '.join(DEAD_LETTER_COLUMNS)}")
    for value in item:
        require_storable(value)
    return tuple(item)
