"""What only the JSON lines store can get wrong: its lines, its torn end, damage, faults and compaction."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from attrs import evolve
from children import told_until_killed
from mailbox_samples import NOON, PREPARED, SOFT, dead_letter, event, incarnation, intent, open_line, putting, trigger

from fencepost.mailbox.errors import CorruptRecord, MutationRefused, SchemaTooNew, StoreFault, StoreOwned
from fencepost.mailbox.mutation import Delete, Mutation, NewEvent
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import (
    RECORD_TYPES,
    BatchMode,
    BatchRecord,
    CallRecord,
    CallStatus,
    Checkpoint,
    CheckpointRecord,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    Replay,
    TranscriptRecord,
    TriggerRecord,
)
from fencepost.mailbox.stores import jsonl_file, jsonl_reader
from fencepost.mailbox.stores.jsonl import DEAD_BYTES_MIN, JsonlStore
from fencepost.mailbox.stores.jsonl_changes import BASE_LINE_BYTES
from fencepost.mailbox.stores.jsonl_format import SEAL_BYTES, Header, _sealed, base_lines, header_line
from fencepost.mailbox.stores.jsonl_reader import JsonlReader
from fencepost.mailbox.stores.store import SCHEMA_VERSION, Load, open_reader

IN_MEMORY = Path("/dev/shm")
"""Where there is such a folder, the many openings of these tests wait for no disk."""


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        yield Path(folder) / "store.jsonl"


def finish(coroutine):
    """Run a coroutine of the store, none of which ever waits."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


@contextmanager
def opened(path, kept=100):
    store = JsonlStore(path)
    finish(store.open(kept))
    try:
        yield store
    finally:
        finish(store.close())


def commit(store, mutation):
    """Commit `mutation` and return its events."""
    (events,) = store.run([mutation], None)
    assert isinstance(events, tuple)
    return events


def held(reader):
    with reader.snapshot():
        rows = [reader.select(Query(kind)) for kind in RECORD_TYPES]
        return rows, reader.events(), reader.dead_letters()


def contents(path):
    with JsonlReader(path) as reader:
        return held(reader)


GROUPS = (
    [putting(incarnation(), events=[event(n=1)])],
    [putting(intent(), trigger(), events=[event(n=2**70), event()])],
    [Mutation(label="a.b", deletes=(Delete(TriggerRecord, trigger().key),), dead_letters=(dead_letter(),))],
    [
        putting(trigger(2), events=[event(text="é\n\x00")]),
        putting(intent().next(state=IntentState.RECONCILING, **SOFT)),
        putting(trigger(3), events=[event()]),
    ],
)


def write_groups(path, groups=GROUPS):
    """Commit each group; return where each begins, the file's size last."""
    with opened(path) as store:
        starts = [path.stat().st_size]
        for group in groups:
            assert all(isinstance(answer, tuple) for answer in store.run(group, None))
            starts.append(path.stat().st_size)
    return starts


def line_starts(data):
    return [0, *(at + 1 for at, byte in enumerate(data) if byte == 0x0A)][:-1]


def refused(path, line, match=None):
    """Whoever opens it is told the line, and the file stays as it is."""
    before = path.read_bytes()
    for look in (lambda: finish(JsonlStore(path).open(100)), lambda: JsonlReader(path)):
        with pytest.raises(CorruptRecord, match=match) as corrupt:
            look()
        assert (corrupt.value.line, corrupt.value.where) == (line, str(path))
    assert path.read_bytes() == before


# ----------------------------------------------------------------------------------------------------------- the lines


def test_every_line_is_json_that_a_person_can_read(path):
    bytes_kept = PREPARED | {"payload": "gelesen? é\n".encode()}
    raw = TranscriptRecord(dedup_key="raw", intent_id="intent-1", payload=b"\xff\x00", at=-(2**63))
    prepared = intent(state=IntentState.MATERIALIZED, reason="z\x00", **bytes_kept)
    with opened(path) as store:
        store.run([putting(prepared, raw, events=[event(deep={"n": 2**70, "x": [1.5, None]})])], None)
    header, line = map(json.loads, path.read_text().splitlines())
    assert header["store"] == "fencepost"
    assert header["schema"] == SCHEMA_VERSION
    assert line["group"] == [1, 0, 1]
    (_, columns), (_, transcript) = line["puts"]
    assert columns["payload"] == "gelesen? é\n"
    assert "turn_id" not in columns
    assert transcript["payload"] == {"base64": "/wA="}
    assert line["events"] == [[1, NOON, "intent.detected", "intent:intent-1", {"deep": {"n": 2**70, "x": [1.5, None]}}]]
    rows, events, _ = contents(path)
    assert (rows[0], rows[5]) == ([prepared], [raw])
    assert events[0].data == {"deep": {"n": 2**70, "x": [1.5, None]}}


def test_a_batch_is_one_write_and_one_sync_and_a_load_none(path, faulty):
    with opened(path) as store:
        faulty.calls.clear()
        answers = store.run([*GROUPS[0], *GROUPS[1], putting(trigger(5, intent_id="nobody")), *GROUPS[2]], None)
        assert [type(answer) for answer in answers] == [tuple, tuple, MutationRefused, tuple]
        assert faulty.calls == ["write", "fsync"]
        store.run([Load((Query(IntentRecord),)), Mutation(label="a.b")], None)
        assert faulty.calls == ["write", "fsync"]
    assert len(path.read_bytes().splitlines()) == 4


def test_a_value_of_another_type_than_its_column_is_refused_or_made_to_fit(path):
    class Word(str):
        __slots__ = ()

    class Raw(bytes):
        __slots__ = ()

    worded = Word("d")
    with opened(path) as store:
        answers = store.run(
            [
                putting(intent(reason=5)),
                putting(intent(reason=b"x")),
                putting(intent(payload=None, to_base=None)),
                Mutation(label="\ud800", puts=(intent(reason=Word("w"), turn_id=None, seq=True),)),
                Mutation(label="a.b", events=(NewEvent(kind="k", address="a", at=1.5),)),
                Mutation(label="a.b", events=(NewEvent(kind="k", address="a", at=True),)),
                Mutation(label="a.b", dead_letters=(evolve(dead_letter(), at=True),)),
                Mutation(label="a.b", dead_letters=(evolve(dead_letter(), address=worded),)),
                putting(TranscriptRecord(dedup_key="raw", intent_id="i", payload=Raw(b"\xff"), at=1)),
            ],
            None,
        )
        refusals = [number for number, answer in enumerate(answers) if isinstance(answer, MutationRefused)]
        assert refusals == [0, 1, 2, 4, 5, 6]
        assert store.run([Load((Query(IntentRecord),))], None) == [[[intent(reason="w")]]]
    assert contents(path)[0][0] == [intent(reason="w")]
    rows, _, letters = contents(path)
    assert type(rows[0][0].seq) is int
    assert rows[5][0].payload == b"\xff"
    assert [letter.address for letter in letters] == ["d"]


# -------------------------------------------------------------------------------------------------------- the torn end


SMALL = (GROUPS[1], [Mutation(label="a.b", dead_letters=(dead_letter(),)), putting(events=[event()])])


@pytest.mark.parametrize("groups", [SMALL, (*GROUPS[:2], *SMALL[1:], GROUPS[2])], ids=["several lines", "one line"])
def test_a_group_that_is_cut_off_anywhere_is_dropped_whole(path, groups, caplog):
    starts = write_groups(path, groups)
    data = path.read_bytes()
    begins, ends = starts[-2:]
    path.write_bytes(data[:begins])
    before = contents(path)
    for cut in range(begins + 1, ends):
        path.write_bytes(data[:cut])
        assert contents(path) == before
        assert path.stat().st_size == cut  # a reader repairs nothing
        caplog.clear()
        with opened(path) as store:
            assert path.read_bytes() == data[:begins]
            assert f"{cut - begins} bytes" in caplog.text
            assert held(store.reader()) == before
            (given,) = commit(store, putting(events=[event()]))
            assert given.seq == len(before[1]) + 1
        assert contents(path)[1] == [*before[1], given]


@pytest.mark.parametrize("page", [16, 64, 512])
def test_missing_pages_of_the_last_group_are_a_torn_end(path, page):
    starts = write_groups(path)
    data = path.read_bytes()
    path.write_bytes(data[: starts[-2]])
    before = contents(path)
    for at in range(starts[-2], starts[-1], page):
        torn = bytearray(data)
        missing = slice(at, min(at + page, len(torn)))
        torn[missing] = bytes(len(torn[missing]))
        path.write_bytes(torn)
        assert contents(path) == before
        with opened(path):
            assert path.read_bytes() == data[: starts[-2]]
    path.write_bytes(data[: starts[-2]] + bytes(10_000))
    with opened(path):
        assert path.read_bytes() == data[: starts[-2]]
    path.write_bytes(data + bytes(10_000))
    with opened(path):
        assert path.read_bytes() == data


def flips(data, stride):
    """Yield damaged copies of `data`: in every line some bytes, its end and start among them, are other ones."""
    starts = line_starts(data)
    for number, (start, end) in enumerate(pairwise([*starts, len(data)]), 1):
        for at in sorted({*range(start, end, stride), start + SEAL_BYTES - 1, end - 1}):
            for byte in {data[at] ^ 1, 0x0A, 0x00, 0x30} - {data[at]}:
                yield number, data[:at] + bytes([byte]) + data[at + 1 :]


def flip_everywhere(path, stride):
    starts = write_groups(path)
    data = path.read_bytes()
    path.write_bytes(data[: starts[-2]])
    before = contents(path)
    last_group = data[: starts[-2]].count(b"\n") + 1
    for line, damaged in flips(data, stride):
        path.write_bytes(damaged)
        if line < last_group:
            refused(path, line)
        else:
            assert contents(path) == before
            with opened(path):
                assert path.read_bytes() == data[: starts[-2]]


def test_a_byte_flipped_in_the_middle_is_told_and_in_the_last_group_drops_it(path):
    flip_everywhere(path, 37)


@pytest.mark.slow
def test_any_byte_flipped_in_the_middle_is_told_and_in_the_last_group_drops_it(path):
    flip_everywhere(path, 1)


def test_damage_over_the_last_two_groups_is_no_torn_end(path):
    starts = write_groups(path)
    data = bytearray(path.read_bytes())
    data[starts[-3] + 60] ^= 1
    data[starts[-2] + 60] ^= 1
    path.write_bytes(data)
    refused(path, 4)
    data[starts[-3] : starts[-2] - 1] = bytes(starts[-2] - starts[-3] - 1)
    path.write_bytes(data)
    refused(path, 4)


def test_a_lost_line_end_between_the_last_two_commits_is_no_torn_end(path):
    starts = write_groups(path, GROUPS[:3])
    data = path.read_bytes()
    for byte in (b" ", b"\x00"):
        path.write_bytes(data[: starts[-2] - 1] + byte + data[starts[-2] :])
        refused(path, 3)


def test_what_a_damaged_line_says_of_itself_proves_nothing(path):
    starts = write_groups(path, GROUPS[:3])
    data = path.read_bytes()
    path.write_bytes(data[: starts[-2]] + data[starts[-2] :].replace(b'"group":[3,', b'"group":[9,'))
    with opened(path):
        assert path.read_bytes() == data[: starts[-2]]


@pytest.mark.parametrize("gone", [2, 3, 4, 5, 6])
def test_a_missing_line_is_damage(path, gone):
    write_groups(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: gone - 1] + lines[gone:]))
    refused(path, gone, "where line")


def test_event_data_that_looks_like_a_line_is_no_witness(path):
    forged = {"crc32": "00000000", "group": [99, 0, 1]}
    starts = write_groups(path, [*GROUPS[:1], [putting(events=[event(x=[forged]), event(**forged)])]])
    path.write_bytes(path.read_bytes()[:-1])
    with opened(path):
        assert path.stat().st_size == starts[-2]


# -------------------------------------------------------------------------------------------------------------- damage


GOOD = {"group": [5, 0, 1], "label": "a.b"}
INTENT = {"intent_id": "i", "pane_id": "p", "revision": 1, "seq": 1, "kind": "parent_advance", "from_base": "a"} | {
    "to_base": "b", "classification_op": "c", "detected_at": 1, "state": "detected", "discarded": 0,
    "soft_redeliveries": 0, "epoch": 0,
}  # fmt: skip
BAD_LINES = {
    "no object": [1],
    "no group": {"label": "a.b"},
    "a base line": {"base": 0},
    "a bad group": GOOD | {"group": [5, 0]},
    "a group of text": GOOD | {"group": ["5", 0, 1]},
    "the group before": GOOD | {"group": [4, 0, 1]},
    "the group after": GOOD | {"group": [6, 0, 1]},
    "another index": GOOD | {"group": [5, 1, 2]},
    "a group of none": GOOD | {"group": [5, 0, 0]},
    "an unknown member": GOOD | {"more": 1},
    "puts that are no list": GOOD | {"puts": {}},
    "a put that is no pair": GOOD | {"puts": [["intents"]]},
    "an unknown table": GOOD | {"puts": [["bookmarks", {}]]},
    "a table that is no word": GOOD | {"puts": [[[], {}]]},
    "no columns": GOOD | {"puts": [["intents", []]]},
    "an unknown column": GOOD | {"puts": [["intents", INTENT | {"colour": "red"}]]},
    "a missing column": GOOD | {"puts": [["intents", {"intent_id": "i"}]]},
    "a wrong type": GOOD | {"puts": [["intents", INTENT | {"seq": "1"}]]},
    "a list for a value": GOOD | {"puts": [["intents", INTENT | {"seq": [1]}]]},
    "a float": GOOD | {"puts": [["intents", INTENT | {"seq": 1.0}]]},
    "a long int": GOOD | {"puts": [["intents", INTENT | {"seq": 2**63}]]},
    "an unknown word": GOOD | {"puts": [["intents", INTENT | {"state": "asleep"}]]},
    "bytes that are no base64": GOOD | {"puts": [["intents", INTENT | {"payload": {"base64": "?"}}]]},
    "bytes that are nothing": GOOD | {"puts": [["intents", INTENT | {"payload": {"base16": "00"}}]]},
    "a record's own law": GOOD | {"puts": [["intents", INTENT | {"state": "delivered"}]]},
    "a law between rows": GOOD | {"puts": [["intents", INTENT | {"intent_id": "intent-1"}]]},
    "a revision from nowhere": GOOD | {"puts": [["intents", INTENT | {"revision": 3}]]},
    "a missing parent": GOOD
    | {"puts": [["triggers", {"pane_id": "p", "operation_id": "o", "intent_id": "x", "position": 0, "at": 1}]]},
    "a row still named": GOOD | {"deletes": [["intents", ["intent-1"]]]},
    "a key that is no list": GOOD | {"deletes": [["intents", "intent-1"]]},
    "a key that is no scalar": GOOD | {"deletes": [["intents", [["intent-1"]]]]},
    "an event of the past": GOOD | {"events": [[1, 1, "k", "a", {}]]},
    "an event skipped": GOOD | {"events": [[7, 1, "k", "a", {}]]},
    "an event without data": GOOD | {"events": [[6, 1, "k", "a"]]},
    "an event's data is a list": GOOD | {"events": [[6, 1, "k", "a", []]]},
    "an event's long time": GOOD | {"events": [[6, 2**64, "k", "a", {}]]},
    "a dead letter skipped": GOOD | {"dead_letters": [[3, 1, "a", "c", None, "r", "d"]]},
    "a dead letter too short": GOOD | {"dead_letters": [[2, 1, "a", "c", None, "r"]]},
    "a dead letter of a wrong type": GOOD | {"dead_letters": [[2, 1, "a", "c", None, "r", 5]]},
    "a trim beyond the end": GOOD | {"trimmed": 99},
    "a trim of a wrong type": GOOD | {"trimmed": True},
    "a trim below nothing": GOOD | {"trimmed": -1},
}
BAD_TEXTS = {
    "no json": b'{"group":[5,0,1],}',
    "not a number": b'{"group":[5,0,1],"events":[[6,1,"k","a",{"n":NaN}],[7,1,"k","a",{"m":18446744073709551616}]]}',
    "a lone surrogate": b'{"group":[5,0,1],"events":[[6,1,"k","a",{"n":"\\ud800","m":18446744073709551616}]]}',
    "nested too deep": b'{"group":[5,0,1],"x":' + b"[" * 100_000,
    "nested too deep, with a long number": b'{"group":[5,0,1],"y":18446744073709551616,"x":' + b"[" * 100_000,
}


@pytest.mark.parametrize("name", [*BAD_LINES, *BAD_TEXTS])
def test_a_whole_line_that_no_store_writes_is_damage(path, name):
    write_groups(path)
    body = BAD_TEXTS[name] if name in BAD_TEXTS else json.dumps(BAD_LINES[name], separators=(",", ":")).encode()
    with path.open("ab") as file:
        file.write(_sealed(body))
    refused(path, 8)


def test_a_line_of_the_form_that_those_break_is_taken(path):
    write_groups(path)
    row = INTENT | {"payload": {"base64": "eA=="}} | dict.fromkeys(["state"], "materialized")
    row |= {name: value for name, value in PREPARED.items() if name != "payload"}
    with path.open("ab") as file:
        body = GOOD | {"puts": [["intents", row]], "events": [[6, 1, "k", "a", {}]], "trimmed": 6}
        body |= {"dead_letters": [[2, 1, "a", "c", None, "r", "d"]]}
        file.write(_sealed(json.dumps(body, separators=(",", ":")).encode()))
    rows, events, letters = contents(path)
    assert rows[0][0].payload == b"x"
    assert (events, len(letters)) == ([], 2)


async def test_a_newer_schema_is_left_alone(path):
    write_groups(path)
    newer = _sealed(b'{"store":"fencepost","schema":%d,"folded":[]}' % (SCHEMA_VERSION + 1))
    path.write_bytes(newer + b"something new")
    for look in (lambda: finish(JsonlStore(path).open(100)), lambda: open_reader(f"jsonl:///{path}")):
        with pytest.raises(SchemaTooNew) as new:
            look()
        assert (new.value.found, new.value.known) == (SCHEMA_VERSION + 1, SCHEMA_VERSION)
    assert path.read_bytes() == newer + b"something new"


@pytest.mark.parametrize(
    "content",
    [b"some notes\n", b"{}\n", b'{"event":1}\n{"event":2}\n', b"\x00" * 512, b"SQLite format 3\x00", b"x", b"\n",
     _sealed(b'{"store":"another"}'), _sealed(b'{"group":[1,0,1]}'), _sealed(b'{"store":"fencepost","schema":"1"}'),
     header_line(Header(0, 1, 0))[:-1], header_line(Header(-1, 1, 0)), header_line(Header(0, 2**63, 0))],
)  # fmt: skip
def test_another_programs_file_is_left_alone(path, content):
    path.write_bytes(content)
    refused(path, 1)
    assert {entry.name for entry in path.parent.iterdir()} == {"store.jsonl", "store.jsonl.lock"}


def test_what_is_no_place_for_a_file(path):
    folder = path.parent
    for where in (folder, folder / "missing" / "store.jsonl"):
        with pytest.raises(StoreFault, match=r"missing|not a file"):
            finish(JsonlStore(where).open(100))
    with pytest.raises(StoreFault, match="does not exist"):
        JsonlReader(path)
    assert [*folder.iterdir()] == []
    Path(f"{folder}.lock").unlink()


def test_an_empty_file_becomes_a_store_and_keeps_its_rights(path):
    path.touch(0o600)
    with pytest.raises(StoreFault, match="nothing in it"):
        JsonlReader(path)
    with opened(path) as store:
        store.run(GROUPS[0], None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(contents(path)[1]) == 1


# -------------------------------------------------------------------------------------------------------------- faults


class Faulty:
    """The `os` of the module that writes, with faults to order."""

    def __init__(self):
        self.calls = []
        self.faults = {}

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in {"write", "fsync", "ftruncate"}:
            return real

        def call(*arguments):
            self.calls.append(name)
            fault = self.faults.get(name)
            return real(*arguments) if fault is None else fault(*arguments)

        return call


@pytest.fixture
def faulty(monkeypatch):
    fake = Faulty()
    monkeypatch.setattr(jsonl_file, "os", fake)
    return fake


def failing(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


def full_after(count):
    """A write that gets `count` bytes onto the disk, a few at a time, and then finds it full."""
    left = [count]

    def write(fd, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(fd, bytes(data[: min(7, left[0])]))
        left[0] -= written
        return written

    return write


@pytest.mark.parametrize(
    "faults",
    [
        {"write": failing(errno.EIO)},
        {"write": full_after(300)},
        {"fsync": failing(errno.EIO)},
        {"fsync": failing(errno.EIO), "ftruncate": failing(errno.EIO)},
        {"write": full_after(300), "ftruncate": failing(errno.EIO)},
    ],
)
def test_a_failing_disk_fails_the_batch_whole_and_sticks(path, faulty, faults):
    with opened(path) as store:
        store.run(GROUPS[0], None)
        before, size = contents(path), path.stat().st_size
        faulty.faults = faults
        with pytest.raises(OSError, match=r"Errno"):
            store.run([*GROUPS[1], *GROUPS[2]], None)
        faulty.faults = {}
        assert held(store.reader()) == before
        for _ in range(2):
            with pytest.raises(StoreFault) as fault:
                store.run(GROUPS[1], None)
            assert isinstance(fault.value.__cause__, OSError)
        assert ("ftruncate" in faults) == (path.stat().st_size != size)
    with opened(path) as store:
        stands = held(store.reader())
        whole = faults.keys() == {"fsync", "ftruncate"}  # all was written and nothing could be taken back
        assert stands == before or (whole and len(stands[1]) == 3)
        (given,) = commit(store, putting(events=[event()]))
        assert given.seq == len(stands[1]) + 1


def test_a_store_that_is_told_to_refuse_writes_nothing_more(path):
    with opened(path) as store:
        before = path.read_bytes()
        points = []

        def probe(point):
            points.append(point)
            if point == "written":
                store.refuse(RuntimeError("enough"))

        with pytest.raises(StoreFault, match="enough"):
            store.run(GROUPS[0], probe)
        assert points == ["begun", "written"]
        assert path.read_bytes() == before
        assert held(store.reader()) == contents(path)


async def test_a_full_disk_is_the_lines_sticky_fault(path, faulty):
    async with open_line(f"jsonl:///{path}") as line:
        await line.commit(GROUPS[0][0])
        faulty.faults = {"write": full_after(20)}
        with pytest.raises(StoreFault, match="No space") as fault:
            await line.commit(GROUPS[1][0])
        assert isinstance(fault.value.__cause__, OSError)
        faulty.faults = {}
        with pytest.raises(StoreFault, match="No space"):
            await line.commit(GROUPS[1][0])
    async with open_line(f"jsonl:///{path}") as line:
        await line.commit(GROUPS[1][0])


def test_short_writes_are_gone_on_with(path, faulty):
    faulty.faults = {"write": full_after(10**9)}
    write_groups(path)
    faulty.faults = {}
    assert len(contents(path)[1]) == 5


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_store_that_cannot_be_made_leaves_none(path, faulty, name):
    faulty.faults = {name: failing(errno.ENOSPC)}
    with pytest.raises(StoreFault, match="No space"):
        finish(JsonlStore(path).open(100))
    faulty.faults = {}
    assert not path.exists()
    write_groups(path)


# ---------------------------------------------------------------------------------------------------------- compaction


def ended(number):
    """An intent that is resolved as soon as it is there: the end of an operation."""
    done = {"state": IntentState.ACKNOWLEDGED, "acknowledged_at": NOON, "discarded": True}
    return intent(number, pane_id="pane-9", **done, **PREPARED)


def fill(store, dead=DEAD_BYTES_MIN * 2):
    """Write one row again and again until so many bytes are dead."""
    revision = store.run([Load((Query(IntentRecord, {"intent_id": "intent-1"}),))], None)[0][0][0]
    for _ in range(dead // 2000 + 1):
        revision = revision.next(reason=f"{revision.revision} " * 1000, soft_redeliveries=revision.soft_redeliveries)
        store.run([putting(revision, events=[event()])], None)


def test_a_finished_operation_takes_the_dead_bytes_along(path):
    write_groups(path)
    path.chmod(0o640)
    with opened(path, kept=10) as store:
        fill(store)
        grown = path.stat()
        assert grown.st_size > DEAD_BYTES_MIN * 2
        store.run([putting(ended(2), events=[event()])], None)
        before = held(store.reader())
        shrunk = path.stat()
        assert shrunk.st_size < grown.st_size / 8
        assert stat.S_IMODE(shrunk.st_mode) == 0o640
        assert contents(path) == before
        assert len(before[1]) <= 10
        (given,) = commit(store, putting(trigger(7), events=[event()]))
        assert given.seq == (before[1][-1].seq or 0) + 1
        with pytest.raises(StoreOwned):
            finish(JsonlStore(path).open(10))
    with opened(path, kept=10) as store:
        rows, events, letters = held(store.reader())
        assert (events[-1], letters) == (given, before[2])
        assert rows[1] == [*before[0][1], trigger(7)]
    assert {entry.name for entry in path.parent.iterdir()} == {"store.jsonl", "store.jsonl.lock"}


def test_it_waits_for_the_end_of_an_operation_or_the_next_opening(path):
    write_groups(path)
    with opened(path) as store:
        fill(store)
        store.run([putting(trigger(8))], None)
        assert path.stat().st_size > DEAD_BYTES_MIN
        before = held(store.reader())
    with opened(path) as store:
        assert path.stat().st_size < DEAD_BYTES_MIN
        assert held(store.reader()) == before
        inode = path.stat().st_ino
        store.run([putting(ended(3))], None)
        assert path.stat().st_ino == inode  # nothing to gain


def test_the_base_of_a_compacted_log_is_never_taken_for_a_torn_end(path):
    write_groups(path)
    with opened(path) as store:
        fill(store)
        store.run([putting(*(trigger(number) for number in range(10, 300)), ended(2))], None)
    data = path.read_bytes()
    assert data.count(b"\n") > 3
    for line, damaged in flips(data, 20_011):
        path.write_bytes(damaged)
        refused(path, line)
    for cut in line_starts(data)[1:]:
        path.write_bytes(data[:cut])
        refused(path, data[:cut].count(b"\n") + 1)
    lines = data.splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[2], lines[1], *lines[3:]]))
    refused(path, 2, "is not base line 0")


BASE = {"base": 0, "rows": [["intents", INTENT]]}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (BASE | {"rows": [["intents", INTENT]] * 2}, "exists already"),
        (BASE | {"rows": [["intents", INTENT], ["intents", INTENT | {"intent_id": "j"}]]}, "used once"),
        (BASE | {"rows": [["projections", {"intent_id": "x", "pane_id": "p", "at": 1}]]}, "names 'x'"),
        (BASE | {"events": [[1, 1, "k", "a", {}]]}, "come next"),
        (BASE | {"puts": []}, "unknown 'puts'"),
    ],
)
def test_a_base_line_keeps_the_laws(path, body, why):
    def write(said):
        path.write_bytes(header_line(Header(1, 4, 7)) + _sealed(json.dumps(said, separators=(",", ":")).encode()))

    write(BASE | {"events": [[8, 1, "k", "a", {}]]})
    assert [item.seq for item in contents(path)[1]] == [8]
    write(body)
    refused(path, 2, why)


def test_a_death_at_any_step_leaves_the_old_or_the_new_log(path, faulty, monkeypatch):
    """What a process leaves that dies just before or just after any call that changes something."""
    moments = []

    def noting(name, real):
        def call(*arguments):
            for moment in ("before", "after"):
                if moment == "after":
                    real(*arguments)
                files = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
                moments.append((name, moment, files))
            return len(arguments[1]) if name == "write" else None

        return call

    write_groups(path)
    with opened(path) as store:
        fill(store)
        before = held(store.reader())
        faulty.faults = {name: noting(name, getattr(os, name)) for name in ("write", "fsync")}
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", noting("replace", os.replace))
            store.run([putting(ended(2), events=[event()])], None)
        after = held(store.reader())
    faulty.faults = {}
    calls = [name for name, moment, _ in moments if moment == "before"]
    written = calls.count("write") - 1  # the first one is the commit, which is durable before the rest begins
    assert calls == ["write", "fsync", *["write"] * written, "fsync", "replace", "fsync"]
    assert written > 1
    for number, (name, moment, files) in enumerate(moments):
        for file in path.parent.iterdir():
            file.unlink()
        for file_name, content in files.items():
            path.with_name(file_name).write_bytes(content)
        committed = number > 0
        assert contents(path) == (after if committed else before), (name, moment)
        with opened(path) as store:
            assert held(store.reader()) == (after if committed else before)
        assert {entry.name for entry in path.parent.iterdir()} == {"store.jsonl", "store.jsonl.lock"}
    assert any("store.jsonl.new" in files for _, _, files in moments)


@pytest.mark.parametrize("name", ["open", "write", "fsync", "replace"])
def test_a_compaction_without_room_costs_nothing_but_itself(path, faulty, monkeypatch, caplog, name):
    write_groups(path)
    with opened(path) as store:
        fill(store)
        inode = path.stat().st_ino

        def fail_for_the_new_file(fd, *arguments):
            if os.fstat(fd).st_ino != inode:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return getattr(os, name)(fd, *arguments)

        with monkeypatch.context() as patch:
            if name == "replace":
                patch.setattr(os, "replace", failing(errno.ENOSPC))
            elif name == "open":
                patch.setattr(faulty, "open", failing(errno.EMFILE), raising=False)
            else:
                faulty.faults = {name: fail_for_the_new_file}
            (answer,) = store.run([putting(ended(2), events=[event()])], None)
            assert isinstance(answer, tuple)
            assert "could not be compacted" in caplog.text
            caplog.clear()
            store.run([putting(ended(3))], None)  # put off until it pays twice
            assert not caplog.text
        faulty.faults = {}
        assert path.stat().st_ino == inode
        before = held(store.reader())
        assert contents(path) == before
        fill(store, DEAD_BYTES_MIN * 4)
        store.run([putting(ended(4))], None)
        compacted = path.stat().st_ino
        assert compacted != inode
        fill(store)
        store.run([putting(ended(5))], None)
        assert path.stat().st_ino != compacted
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["store.jsonl", "store.jsonl.lock"]


def test_what_an_interrupted_compaction_left_is_removed_where_the_log_is_ours(path):
    left = path.with_name("store.jsonl.new")
    left.write_bytes(b"left over")
    path.write_bytes(b"notes\n")
    refused(path, 1)
    assert left.read_bytes() == b"left over"
    path.unlink()
    write_groups(path)
    assert not left.exists()
    left.write_bytes(b"left over")
    inode = path.stat().st_ino
    with opened(path):
        assert not left.exists()
    assert path.stat().st_ino == inode


def test_base_lines_are_of_bounded_size(path):
    write_groups(path)
    with opened(path) as store:
        fill(store)
        many = putting(*(trigger(number) for number in range(10, 1500)), events=[event(n=n) for n in range(1000)])
        store.run([many, putting(ended(2))], None)
        before = held(store.reader())
    lengths = [len(line) for line in path.read_bytes().splitlines()]
    assert max(lengths) < BASE_LINE_BYTES * 1.1
    assert len(lengths) < 12
    assert contents(path) == before


def test_what_is_live_is_all_that_a_compacted_log_would_hold(path):
    write_groups(path)
    with opened(path, kept=3) as store:
        store.run([Mutation(label="a.b", dead_letters=(dead_letter(),) * 50, events=(event(),) * 50)], None)
        lines, weights = base_lines(store._shared.rows, 9)
        assert store._weights == weights
        assert 0 < sum(map(len, lines)) - weights.live < 70 * len(lines) + 100
    with opened(path, kept=3) as store:
        assert store._weights == weights


def test_a_name_that_may_not_last_is_not_appended_to(path, faulty):
    write_groups(path)
    with opened(path) as store:
        fill(store)

        def fail_for_the_folder(fd):
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            os.fsync(fd)

        faulty.faults = {"fsync": fail_for_the_folder}
        (answer,) = store.run([putting(ended(2), events=[event()])], None)
        assert isinstance(answer, tuple)
        with pytest.raises(StoreFault, match="refuses every call"):
            store.run([putting(ended(3))], None)
        faulty.faults = {}
    assert answer[0] in contents(path)[1]


def test_growth_follows_the_checkpoints_and_the_batchs_end_reclaims_them(path):
    batch = BatchRecord(
        address="batch:1", pane_id="pane-1", seq=1, operation_id="op", turn_id="t", turn_ordinal=1,
        assistant_entry_id="a", incarnation_id="inc-1", mode=BatchMode.PARALLEL, fingerprint="f", calls_count=1,
        first_entry_seq=1, started_at=NOON,
    )  # fmt: skip
    call = CallRecord(
        invocation_id="call-1", pane_id="pane-1", batch="batch:1", source_index=0, tool_call_id="c", name="bash",
        status=CallStatus.EFFECT_PENDING, replay=Replay.NEVER,
    )  # fmt: skip
    gone = Delete(CheckpointRecord, ("call-1",))

    def checkpoint(number):
        content = f"{number:5}" * 2000
        progress = CheckpointRecord(invocation_id="call-1", content=content, details=None, usage=None, at=number)
        return Mutation(label="call.checkpoint", deletes=(gone,), puts=(progress,))

    with opened(path) as store:
        store.run([putting(incarnation()), putting(batch, call)], None)
        start = path.stat().st_size
        sizes = []
        for number in range(30):
            store.run([checkpoint(number)], None)
            sizes.append(path.stat().st_size)
        assert all(10_000 < later - earlier < 10_500 for earlier, later in pairwise([start, *sizes]))
        ready = call.next(status=CallStatus.OUTCOME_READY)
        store.run([Mutation(label="call.settle", deletes=(gone,), puts=(ready,))], None)
        assert path.stat().st_size > 300_000
        store.run([putting(batch.next(checkpoint=Checkpoint.MAY_FINISH, closed_at=NOON))], None)
        assert path.stat().st_size < 3_000
    assert contents(path)[0][10] == []


# ----------------------------------------------------------------------------------------------------- reader and owner


def test_a_reader_follows_appends_torn_writes_and_compaction(path):
    write_groups(path)
    with opened(path) as store, JsonlReader(path) as reader:

        def same():
            return held(reader) == held(store.reader())

        assert same()
        replayed = reader._replay
        store.run([putting(events=[event()])], None)
        assert same()
        with path.open("ab") as file:
            file.write(b'{"crc32": "0')
        assert same()
        assert reader._replay is replayed  # it followed, it did not begin anew
        os.truncate(path, path.stat().st_size - 12)
        store.run([putting(events=[event(n=1)])], None)
        assert same()
        assert reader._replay is replayed
        with reader.snapshot():
            moment = reader.events()
            fill(store)
            store.run([putting(ended(2))], None)
            assert reader.events() == moment
        assert same()
        assert reader._replay is not replayed


def test_a_reader_notices_that_a_group_was_replaced_by_another_of_its_length(path):
    starts = write_groups(path, [*GROUPS[:1], [putting(events=[event(n=1)])]])
    with JsonlReader(path) as reader:
        assert reader.events()[-1].data == {"n": 1}
        os.truncate(path, starts[-2])
        with opened(path) as store:
            store.run([putting(events=[event(n=2)])], None)
        assert path.stat().st_size == starts[-1]
        assert reader.events()[-1].data == {"n": 2}


def test_a_reader_meets_damage_once_it_is_there_and_goes_on_after_its_repair(path):
    write_groups(path)
    data = path.read_bytes()
    with JsonlReader(path) as reader:
        moment = held(reader)
        path.write_bytes(data + _sealed(b'{"group":[9,0,1]}'))
        for _ in range(2):
            with pytest.raises(CorruptRecord) as corrupt:
                reader.events()
            assert corrupt.value.line == 8
        path.write_bytes(data)
        assert held(reader) == moment
        path.unlink()
        with pytest.raises(StoreFault):
            reader.events()


def test_a_reader_that_met_half_of_a_repair_looks_again(path, monkeypatch):
    write_groups(path)
    with JsonlReader(path) as reader, opened(path) as store:
        commit(store, putting(events=[event()]))

        def torn(_file):
            raise CorruptRecord("here", "what was cut off and what was appended instead, in one look", 3)

        monkeypatch.setattr(reader._replay, "read", torn)
        assert held(reader) == held(store.reader())


def test_a_reader_changes_nothing(path):
    write_groups(path)
    path.write_bytes(path.read_bytes()[:-5])
    before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(path.parent.iterdir()))
    with open_reader(f"jsonl:///{path}") as reader:
        held(reader)
        assert [row["last_event_seq"] for row in reader.raw("trimmed")] == [0]
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(path.parent.iterdir())) == before


def test_a_reader_shows_nothing_before_it_is_synced(path, monkeypatch):
    write_groups(path)
    with opened(path) as store, JsonlReader(path) as reader:
        moment = reader.events()
        fake = Faulty()
        monkeypatch.setattr(jsonl_reader, "os", fake)
        assert reader.events() == moment
        assert fake.calls == []
        commit(store, putting(events=[event()]))
        assert len(reader.events()) == len(moment) + 1
        assert fake.calls == ["fsync"]
        commit(store, putting(events=[event()]))
        fake.faults = {"fsync": failing(errno.EIO)}
        for _ in range(2):
            with pytest.raises(StoreFault):
                reader.events()
        fake.faults = {"fsync": failing(errno.EROFS)}
        assert len(reader.events()) == len(moment) + 2


def test_what_a_dead_process_left_unsynced_is_synced_before_it_is_trusted(path, faulty):
    write_groups(path)
    faulty.calls.clear()
    with opened(path):
        assert faulty.calls == ["fsync", "fsync"]  # the file and its name
    faulty.faults = {"fsync": failing(errno.EIO)}
    with pytest.raises(StoreFault):
        finish(JsonlStore(path).open(100))
    faulty.faults = {}
    with opened(path):
        pass


def test_one_file_has_one_owner_by_whatever_name(path):
    link = path.parent / "link.jsonl"
    link.symlink_to(path)
    with opened(link) as store:
        store.run(GROUPS[0], None)
        for name in (path, link):
            with pytest.raises(StoreOwned) as owned:
                finish(JsonlStore(name).open(100))
            assert f"process {os.getpid()}" in owned.value.holder
    assert link.is_symlink()
    with opened(path) as store:
        assert len(store.reader().select(Query(IncarnationRecord))) == 1
    with pytest.raises(StoreFault, match="not open"):
        store.run(GROUPS[1], None)
    with pytest.raises(StoreFault, match="never opened"):
        JsonlStore(path).reader()


# --------------------------------------------------------------------------------------------------------- real deaths

CHILD = """
import os, sys, trio
sys.path.insert(0, {tests!r})
from mailbox_samples import *
async def main():
    async with open_line({url!r}, events_kept_max=10_000) as line:
        async def many(worker):
            number = {first} + worker
            row = intent(number, pane_id=f"p{{number}}")
            while True:
                (given,) = await line.commit(putting(row, events=[event(n=number, revision=row.revision)]))
                os.write(1, f"{{given.seq}} {{number}} {{row.revision}}\\n".encode())
                if row.revision < 6:
                    row = row.next(reason="x" * 3000)
                    continue
                await line.commit(putting(row.next(state=IntentState.SUPERSEDED, reason=None)))
                number += 1000
                row = intent(number, pane_id=f"p{{number}}")
        async with trio.open_nursery() as nursery:
            for worker in range(8):
                nursery.start_soon(many, worker)
trio.run(main)
"""


def test_whatever_was_acknowledged_survives_a_killed_process(tmp_path):
    path = tmp_path / "store.jsonl"
    acknowledged = {}
    for life in range(3):
        child = CHILD.format(tests=str(Path(__file__).parent.parent), url=f"jsonl:///{path}", first=10**6 * (life + 1))
        with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True) as process:
            lines = told_until_killed(process, 150 + 41 * life)
        for seq, number, revision in (map(int, line.split()) for line in lines):
            acknowledged[seq] = (number, revision)
        _, events, _ = contents(path)  # before anybody has repaired it
        assert [item.seq for item in events] == [*range(1, len(events) + 1)]
        kept = {item.seq: (item.data["n"], item.data["revision"]) for item in events}
        assert acknowledged.items() <= kept.items()

    async def look():
        async with open_line(f"jsonl:///{path}") as line:
            ((*intents,),) = await line.load(Query(IntentRecord))
            revisions = {record.seq: record.revision for record in intents}
            assert all(revisions[number] >= revision for number, revision in acknowledged.values())

    trio.run(look)
