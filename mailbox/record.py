"""What every durable record is: a frozen class a table, valid because it exists.

Field names are column names and field types are column types: `str` TEXT, `int` INTEGER, `bool` INTEGER 0 or 1,
`bytes` BLOB, an enum its TEXT value.  Timestamps are int nanoseconds UTC.

Two kinds of record:

* *versioned* ones (`VERSIONED`) are updated in place and carry `revision`, 1 when inserted and one more with every
  write.  Writing revision N+1 is itself the guard that the stored row still has revision N.
* the others are inserted once and never updated; inserting a key that exists is refused.

What must never be stored is refused here on construction and again by the store's own CHECKs, unique indexes and
foreign keys.
"""

from __future__ import annotations

from typing import ClassVar, Self

from fencepost.mailbox.errors import CorruptRecord

__all__ = ["Record", "Versioned", "given"]


class Record:
    """Base of every durable record.

    `TABLE` is its table and `KEY` the names of its key's fields.  Of the other fields no update may change those in
    `FIXED`, nor those in `SETTLED` once they are set; and once the `SEAL` is set, no update is allowed at all.
    """

    __slots__ = ()

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    FIXED: ClassVar[tuple[str, ...]] = ()
    SETTLED: ClassVar[tuple[str, ...]] = ()
    SEAL: ClassVar[str | None] = None
    VERSIONED: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        """Refuse to exist as what must never be stored."""
        law = self.broken_law()
        if law is not None:
            raise CorruptRecord(f"{self.TABLE}{self.key!r}", law)

    @property
    def key(self) -> tuple[object, ...]:
        """The values of the key's fields, in order."""
        return tuple(getattr(self, name) for name in self.KEY)

    def broken_law(self) -> str | None:
        """Return the law that this row breaks, as far as one row can tell, or None."""
        return None


class Versioned(Record):
    """Base of the records that are updated in place.

    Every transition makes one from the one before it, and most fields stay as they are.  So these have a `__dict__`,
    which is copied in one step, where slots would be copied one by one.
    """

    VERSIONED: ClassVar[bool] = True

    revision: int

    def next(self, **changes: object) -> Self:
        """Return the row after one more write: `changes` applied, revision one higher, laws checked."""
        after = object.__new__(type(self))
        fields = after.__dict__
        fields.update(self.__dict__)
        fields["revision"] = self.revision + 1
        known = len(fields)
        fields.update(changes)
        if len(fields) != known:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(changes.keys() - self.__dict__.keys())}")
        after.__attrs_post_init__()
        return after


def given(*values: object) -> int:
    """Return how many of `values` are not None."""
    return len(values) - values.count(None)
