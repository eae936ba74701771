"""A log of a JSON lines store read back into rows, and how its torn end is told from damage.

A group is written only after the one before it was synced.  So a machine that loses power, or a process that dies, can
leave nothing but the *last* group half written: cut off, or with pages missing anywhere in it (a missing page is
NULs).  Nobody was told that this group is durable, so it is dropped, all of it: a batch is one transaction, as it is
with every other store, whole or not there.

Anything else that is wrong is damage, and what is damaged is never dropped:

* a damaged line with a line of a later group anywhere behind it, whole or not: its own group had been synced;
* a damaged header or base line: they were synced before the file had its name;
* a whole line that is out of order, that breaks a law between rows or says what no store writes.

`CorruptRecord.line` is the first damaged line.  What cannot be told from a torn write is damage to the last group
itself, long after it was synced.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from fencepost.mailbox.errors import CorruptRecord, StoreFault
from fencepost.mailbox.records import Record
from fencepost.mailbox.stores.jsonl_changes import Change, Json, Malformed, Weights, decode_change
from fencepost.mailbox.stores.jsonl_format import SEAL_BYTES, claims_later_group, decode_header, opened
from fencepost.mailbox.stores.rows import Refusal, Rows

__all__ = ["Replay"]


class Replay:
    """What a log says, as far as it was read: `offset` bytes, `lines` lines, all groups before `next_group`.

    `where` is the file's name for errors.  After an error it is of no use any more.
    """

    def __init__(self, where: str) -> None:
        self.rows = Rows()
        self.weights = Weights(0)
        self.offset = 0
        self.lines = 0
        self.next_group = 1
        self.last_seal = (0, b"")
        """Where the last line that was read starts and how, by which it is known again."""
        self._where = where

    def read(self, file: BinaryIO) -> int:
        """Take in every whole group that `file` has behind `offset`; return how many bytes of a torn one follow.

        `file` must not have been read before: what it buffers may have been replaced.  Raises `CorruptRecord`,
        `SchemaTooNew`, `StoreFault` if there is nothing at all in the file, and OSError.
        """
        file.seek(self.offset)
        if not self.offset:
            self._read_base(file)
        while (group := self._next_group(file)) is not None:
            self._apply(group)
        return file.seek(0, os.SEEK_END) - self.offset

    # ----------------------------------------------------------------------------------------------- header and base

    def _read_base(self, file: BinaryIO) -> None:
        first = file.readline()
        if not first:
            raise StoreFault(f"{self._where} has nothing in it yet")
        with self._reading(1):
            said = opened(first)
            if said is None:
                raise Malformed("is damaged, or this is a file of another program")
            header = decode_header(said, self._where)
        self._passed(first)
        self.next_group = header.next_group
        self.rows.last_event_seq = header.trimmed_seq
        self.weights = Weights(header.trimmed_seq)
        restored: list[tuple[int, Record]] = []
        for number in range(header.base_lines):
            line = file.readline()
            with self._reading(self.lines + 1):
                restored += ((self.lines + 1, record) for record in self._restore(opened(line), number))
            self._passed(line)
        for line_number, record in restored:
            with self._reading(line_number):
                if (why := self.rows.missing_parent(record)) is not None:
                    raise Refusal(record.TABLE, record.key, why)

    def _restore(self, said: Json | None, number: int) -> Sequence[Record]:
        """Take in a base line; return the rows whose references are to be checked once all are there."""
        if said is None:
            raise Malformed("is damaged or missing")
        if said.get("base") != number:
            raise Malformed(f"is not base line {number}")
        change = decode_change(said, self._where, base=True)
        self._require_numbers(change)
        for record in change.puts:
            self.rows.restore(record)
        self.rows.apply((), (), change.events, change.letters)
        self.weights.count(change)
        return change.puts

    # -------------------------------------------------------------------------------------------------------- groups

    def _next_group(self, file: BinaryIO) -> list[tuple[bytes, Json]] | None:
        """Return the lines of the next group, with what they say, or None if there is no whole one."""
        group: list[tuple[bytes, Json]] = []
        size = 1
        while len(group) < size:
            line = file.readline()
            if not line:
                return None
            number = self.lines + len(group) + 1
            with self._reading(number):
                said = opened(line)
                if said is None:
                    self._require_torn(file, line)
                    return None
                size = self._require_place(said, len(group), size)
            group.append((line, said))
        return group

    def _require_place(self, said: Json, index: int, size: int) -> int:
        """Return how many lines the group of this line has; raise unless it is the next line of the next group."""
        place = said.get("group")
        if not isinstance(place, list) or len(place) != 3 or any(type(part) is not int for part in place):
            raise Malformed("is of no group")
        stated = place[2]
        assert isinstance(stated, int)
        if place[:2] != [self.next_group, index] or stated <= index or (index and stated != size):
            raise Malformed(f"says that it is {place}, where line {index} of group {self.next_group} belongs")
        return stated

    def _require_torn(self, file: BinaryIO, damaged: bytes) -> None:
        """Raise unless the damaged line can be one of a torn write: no line behind it is of a later group."""
        text, first = damaged, 1  # what the damaged line says of itself is no witness
        while text:
            if claims_later_group(text, self.next_group, first):
                raise Malformed("is damaged, and groups that were committed after it follow")
            text, first = file.readline(), 0

    def _apply(self, group: Sequence[tuple[bytes, Json]]) -> None:
        self.rows.begin()
        for line, said in group:
            with self._reading(self.lines + 1):
                change = decode_change(said, self._where, base=False)
                self._require_numbers(change)
                self.rows.apply(change.deletes, change.puts, change.events, change.letters)
                if change.trimmed is not None:
                    if not self.rows.trimmed_seq <= change.trimmed <= self.rows.last_event_seq:
                        raise Malformed(f"trims events to {change.trimmed}, which are not there")
                    self.rows.trim(change.trimmed)
                self.weights.count(change)
            self._passed(line)
        self.next_group += 1

    def _require_numbers(self, change: Change) -> None:
        """Raise unless the events and dead letters have the numbers that come next."""
        for kind, found, last in (
            ("event", [event.seq for event in change.events], self.rows.last_event_seq),
            ("dead letter", [letter[0] for letter in change.letters], len(self.rows.dead_letters)),
        ):
            wanted = [*range(last + 1, last + 1 + len(found))]
            if found != wanted:
                raise Malformed(f"numbers its {kind}s {found}, and {wanted} come next")

    # ------------------------------------------------------------------------------------------------------- helpers

    def _passed(self, line: bytes) -> None:
        self.last_seal = (self.offset, line[:SEAL_BYTES])
        self.offset += len(line)
        self.lines += 1

    @contextmanager
    def _reading(self, line: int) -> Generator[None]:
        """Say of whatever is wrong in here on which line it is."""
        try:
            yield
        except Refusal as error:
            raise CorruptRecord(self._where, f"{error.table}{error.key!r} {error.why}", line) from error
        except CorruptRecord as error:
            raise CorruptRecord(self._where, str(error).removeprefix(f"{self._where}: "), line) from error
        except ValueError as error:
            raise CorruptRecord(self._where, str(error), line) from error
