"""A query: which records of one type, in which order, at most how many.

Pure and closed: a query is a value that every store can answer the same way, so it knows equality, membership,
presence and the order of whole numbers, and nothing that one store could express and another could not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, Generic, TypeVar, cast, get_type_hints

from attrs import AttrsInstance, field, fields_dict, frozen

from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.records import Record
from fencepost.mailbox.storable import require_storable

__all__ = ["NOT_NULL", "Above", "Present", "Query", "first", "only"]

R = TypeVar("R", bound=Record)
R_co = TypeVar("R_co", bound=Record, covariant=True)


class Present(Enum):
    """The type of `NOT_NULL`."""

    NOT_NULL = "NOT NULL"


NOT_NULL: Final = Present.NOT_NULL
"""As a `where` value: the field holds something."""


@frozen
class Above:
    """As a `where` value of a field of whole numbers: the field holds a greater one than this."""

    number: int


@frozen
class Query(Generic[R_co]):
    """Records of `record_type`, every one for which all of `where` holds.

    A `where` value is a scalar (equal to it), None (absent), `NOT_NULL` (present), `Above` (greater) or a tuple of
    scalars (one of them).  The order is that of `order_by`, absent values first, ties broken by the key, so an
    answer's order is always defined; `descending` turns all of it round.  A field the record does not have, a value
    no store could hold, or `Above` for a field that holds no whole numbers is a ValueError.
    """

    record_type: type[R_co]
    where: Mapping[str, object] = field(factory=dict)
    order_by: tuple[str, ...] = ()
    descending: bool = field(default=False, kw_only=True)
    limit: int | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse names and values no store could answer."""
        known = fields_dict(cast("type[AttrsInstance]", self.record_type))
        for name in (*self.where, *self.order_by):
            if name not in known:
                raise ValueError(f"{self.record_type.__name__} has no field {name!r}")
        for name, value in self.where.items():
            for part in self._parts(name, value):
                require_storable(part)
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"limit must not be negative, not {self.limit}")

    def _parts(self, name: str, value: object) -> tuple[object, ...]:
        """Return the values that a store will compare the field with."""
        match value:
            case Present():
                return ()
            case Above(number):
                if get_type_hints(self.record_type)[name] not in (int, int | None) or type(number) is not int:
                    raise ValueError(f"where {name!r}: {value!r} asks for whole numbers")
                return (number,)
            case tuple():
                if None in value:
                    raise ValueError(f"where {name!r}: a tuple holds values only, not {value!r}")
                return value
            case _:
                return (value,)

    @property
    def order(self) -> tuple[str, ...]:
        """The whole order: `order_by`, then the key's fields not named in it."""
        return (*self.order_by, *(name for name in self.record_type.KEY if name not in self.order_by))


def only(record_type: type[R], rows: Iterable[Record]) -> list[R]:
    """Return the rows of one of several queries under their own type; a store that answers another is corrupt."""
    typed: list[R] = []
    for row in rows:
        if not isinstance(row, record_type):
            raise CorruptRecord(record_type.TABLE, f"the store answered a {type(row).__name__}")
        typed.append(row)
    return typed


def first(record_type: type[R], rows: Iterable[Record]) -> R | None:
    """Return the first row of one of several queries under its own type, or None if there is none."""
    return next(iter(only(record_type, rows)), None)
