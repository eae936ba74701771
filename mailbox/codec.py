"""The one place where records become rows and rows become records, and event data becomes JSON and comes back.

A row is a tuple in the order of `RecordCodec.columns`.  Encoding is one `attrgetter` call, which is what makes it
cheap.  It reaches through an enum to its word and through a bool to its int, except where the field is optional: there
the enum itself is in the row, which is a str too and is stored as its word.  Decoding trusts
nothing: every value's type is compared with the field's, an enum must be one of its words, and the record's own laws
are checked by constructing it.  Whatever fails there is a `CorruptRecord` that says where it lies.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import NoneType
from typing import Any, Final, Generic, TypeVar, cast, get_args, get_type_hints

import orjson
from attrs import AttrsInstance, fields, frozen

from fencepost.mailbox.errors import CorruptEvent, CorruptRecord
from fencepost.mailbox.mutation import DeadLetter, Event, NewDeadLetter, NewEvent
from fencepost.mailbox.records import Record
from fencepost.mailbox.storable import INTEGER_MAX, INTEGER_MIN, Unstorable, require_storable
from fencepost.mailbox.strict_json import json_text, json_value

__all__ = [
    "DEAD_LETTER_COLUMNS",
    "EVENT_COLUMNS",
    "UNSTORABLE",
    "RecordCodec",
    "codec_of",
    "decode_dead_letter",
    "decode_event",
    "encode_dead_letter",
    "encode_numbered_event",
    "plain",
]

R = TypeVar("R", bound=Record)
Row = tuple[object, ...]

SIGNATURES_MAX: Final = 512
"""How many patterns of column types a decoder remembers as good before it starts afresh."""

EVENT_COLUMNS: Final = ("seq", "at", "kind", "address", "data")
DEAD_LETTER_COLUMNS: Final = ("seq", "at", "address", "call", "incarnation_id", "reason", "detail")


UNSTORABLE: Final = (Unstorable, OverflowError, UnicodeEncodeError, TypeError, AttributeError)
"""What encoding a value raises when the value (or its type, where nobody checked it), not the store, is at fault."""


@frozen
class _Field:
    """One field as the codec sees it: its name, the exact types its column may have, and its enum, if it is one."""

    name: str
    stored_types: frozenset[type]
    enum: type[StrEnum] | None
    optional: bool
    boolean: bool

    @property
    def plain_suffix(self) -> str:
        """What to append to the field's name to reach its stored value, where that is not the value itself."""
        if self.enum is not None and not self.optional:
            return "._value_"
        return ".real" if self.boolean else ""  # an int, which sqlite3 binds without looking for an adapter


def _field(name: str, annotation: object) -> _Field:
    parts = get_args(annotation) or (annotation,)
    (kind,) = (cast("type", part) for part in parts if part is not NoneType)
    optional = NoneType in parts
    if optional and kind is bool:
        raise TypeError(f"{name}: an optional bool has no encoding")
    enum = kind if issubclass(kind, StrEnum) else None
    stored = {str if enum else int if kind is bool else kind} | ({NoneType} if optional else set())
    return _Field(name, frozenset(stored), enum, optional, kind is bool)


class RecordCodec(Generic[R]):
    """Turns records of one type into rows and back.

    `encode(record)` is a plain callable: it never fails and checks nothing, because a record that exists is valid.
    Values a store cannot hold (an int over 64 bits, a lone surrogate) are the store's to refuse.
    """

    def __init__(self, record_type: type[R]) -> None:
        hints = get_type_hints(record_type)
        described = [
            _field(attribute.name, hints[attribute.name])
            for attribute in fields(cast("type[AttrsInstance]", record_type))
        ]
        self.record_type = record_type
        self.columns: tuple[str, ...] = tuple(item.name for item in described)
        self.stored_types: tuple[frozenset[type], ...] = tuple(item.stored_types for item in described)
        self._fields = described
        self._key_of = operator.itemgetter(*(self.columns.index(name) for name in record_type.KEY))
        self._converted: list[tuple[int, dict[object, object]]] = [
            (index, conversion) for index, item in enumerate(described) if (conversion := _conversion(item)) is not None
        ]
        self._good_signatures: set[tuple[type, ...]] = set()
        self.encode = self.encoder_of(self.columns)

    def encoder_of(self, columns: Sequence[str]) -> Callable[[R], Row]:
        """Return a function that takes just these columns' values from a record, in this order."""
        suffix_of = {item.name: item.plain_suffix for item in self._fields}
        return cast("Callable[[R], Row]", operator.attrgetter(*(name + suffix_of[name] for name in columns)))

    def decode(self, row: Sequence[object], where: str) -> R:
        """Return the record that `row` holds.

        Raises `CorruptRecord` naming `where` (the file), the table and the key if no record can have been written so.
        """
        signature = (*map(type, row),)
        if signature not in self._good_signatures:
            self._check_types(signature, row, where)
        values = dict(zip(self.columns, row, strict=True))
        try:
            for index, conversion in self._converted:
                values[self.columns[index]] = conversion[row[index]]
            return self.record_type(**values)
        except KeyError as error:
            raise CorruptRecord(self._place(row, where), f"{error.args[0]!r} is not a value of its field") from error
        except CorruptRecord as error:
            law = str(error).removeprefix(f"{error.where}: ")
            raise CorruptRecord(self._place(row, where), law) from error

    def _check_types(self, signature: tuple[type, ...], row: Sequence[object], where: str) -> None:
        if len(signature) != len(self._fields):
            raise CorruptRecord(
                f"{where}: {self.record_type.TABLE}", f"{len(signature)} columns, not {len(self._fields)}"
            )
        for item, found in zip(self._fields, signature, strict=True):
            if found not in item.stored_types:
                raise CorruptRecord(self._place(row, where), f"{item.name} holds a value of type {found.__name__}")
        if len(self._good_signatures) >= SIGNATURES_MAX:
            self._good_signatures.clear()
        self._good_signatures.add(signature)

    def _place(self, row: Sequence[object], where: str) -> str:
        key = self._key_of(row)
        return f"{where}: {self.record_type.TABLE}{key if isinstance(key, tuple) else (key,)!r}"


def _conversion(item: _Field) -> dict[object, object] | None:
    """Return what a stored value of this field means, value by value, or None where it means itself."""
    if item.boolean:
        return {0: False, 1: True}
    if item.enum is None:
        return None
    words: dict[object, object] = {member.value: member for member in item.enum}
    return {None: None, **words} if item.optional else words


_CODECS: Final[dict[type[Record], RecordCodec[Any]]] = {}


def codec_of(record_type: type[R]) -> RecordCodec[R]:
    """Return the codec of `record_type`, made once."""
    codec = _CODECS.get(record_type)
    if codec is None:
        codec = _CODECS[record_type] = RecordCodec(record_type)
    return codec


def plain(value: object) -> object:
    """Return `value` as a store keeps it: an enum's word for the enum, anything else as it is."""
    return value.value if isinstance(value, StrEnum) else value


def _mapping_as_dict(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"event data holds a {type(value).__name__}")


def encode_numbered_event(seq: int, event: NewEvent | Event) -> tuple[Row, Event]:
    """Return the event's row with `data` as JSON text, and the event as whoever reads that row will see it.

    Raises one of `UNSTORABLE` if it cannot be kept.
    """
    at, kind, address = event.at, event.kind, event.address
    if not (kind.isascii() and address.isascii() and INTEGER_MIN <= at <= INTEGER_MAX):
        for value in (at, kind, address):
            require_storable(value)
    text = _data_text(event.data)
    stored = Event(seq=seq, at=at, kind=kind, address=address, data=cast("dict[str, object]", json_value(text)))
    return (seq, at, kind, address, text), stored


def _data_text(data: Mapping[str, object]) -> str:
    try:
        return orjson.dumps(data, default=_mapping_as_dict).decode()
    except TypeError as error:
        if "64-bit" not in str(error):
            raise
    try:
        return json_text(data, "event data")  # a tool's integers may be of any size
    except ValueError as error:
        raise Unstorable(str(error)) from error


def decode_event(row: Sequence[object], where: str) -> Event:
    """Return the event in `row`, in the order of `EVENT_COLUMNS`; `CorruptEvent` if it cannot be one."""
    seq, at, kind, address, text = row
    if bytes in map(type, row):
        raise CorruptEvent(where, cast("int", seq), "holds text that is not UTF-8")
    try:
        data: object = json_value(cast("str", text))
    except (ValueError, RecursionError) as error:
        raise CorruptEvent(where, cast("int", seq), f"data is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise CorruptEvent(where, cast("int", seq), "data is not a JSON object")
    return Event(
        seq=cast("int", seq), at=cast("int", at), kind=cast("str", kind), address=cast("str", address), data=data
    )


def encode_dead_letter(letter: NewDeadLetter) -> Row:
    """Return the letter's row without its `seq`; raises one of `UNSTORABLE` if it cannot be kept."""
    row = (letter.at, letter.address, letter.call, letter.incarnation_id, plain(letter.reason), letter.detail)
    for value in row:
        require_storable(value)
    return row


def decode_dead_letter(row: Sequence[object]) -> DeadLetter:
    """Return the dead letter in `row`, in the order of `DEAD_LETTER_COLUMNS`."""
    return DeadLetter(**dict(zip(DEAD_LETTER_COLUMNS, row, strict=True)))  # type: ignore[arg-type]
