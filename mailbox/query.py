"""A query: which records of one type, in which order, at most how many.

Pure and closed: a query is a value that every store can answer the same way, so it knows equality, membership and
presence, and nothing that one store could express and another could not.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Generic, TypeVar, cast

from attrs import AttrsInstance, field, fields_dict, frozen

from fencepost.mailbox.records import Record
from fencepost.mailbox.storable import require_storable

__all__ = ["NOT_NULL", "Present", "Query"]

R_co = TypeVar("R_co", bound=Record, covariant=True)


class Present(Enum):
    """The type of `NOT_NULL`."""

    NOT_NULL = "NOT NULL"


NOT_NULL: Final = Present.NOT_NULL
"""As a `where` value: the field holds something."""


@frozen
class Query(Generic[R_co]):
    """Records of `record_type`, every one for which all of `where` holds.

    A `where` value is a scalar (equal to it), None (absent), `NOT_NULL` (present) or a tuple of scalars (one of them).
    The order is that of `order_by`, absent values first, ties broken by the key, so an answer's order is always
    defined; `descending` turns all of it round.  A field the record does not have, or a value no
    store could hold, is a ValueError.
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
            parts = value if isinstance(value, tuple) else (None if isinstance(value, Present) else value,)
            if isinstance(value, tuple) and None in parts:
                raise ValueError(f"where {name!r}: a tuple holds values only, not {value!r}")
            for part in parts:
                require_storable(part)
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"limit must not be negative, not {self.limit}")

    @property
    def order(self) -> tuple[str, ...]:
        """The whole order: `order_by`, then the key's fields not named in it."""
        return (*self.order_by, *(name for name in self.record_type.KEY if name not in self.order_by))
