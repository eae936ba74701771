"""The stores side by side: whatever is asked of them, they agree at every step."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from queue import SimpleQueue

from attrs import evolve
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from mailbox_samples import NOON, PREPARED, RESTART, SOFT, STARTUP, UNBOUND, dead_letter, event

from fencepost.mailbox.errors import CorruptRecord, MutationRefused
from fencepost.mailbox.mutation import Absent, Delete, Live, Mutation, Unchanged
from fencepost.mailbox.query import NOT_NULL, Query
from fencepost.mailbox.records import (
    RECORD_TYPES,
    AdmissionDecision,
    AdmissionRecord,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    ProjectionRecord,
    TransitionKind,
    TriggerRecord,
)
from fencepost.mailbox.stores.jsonl import JsonlStore
from fencepost.mailbox.stores.jsonl_format import base_lines
from fencepost.mailbox.stores.jsonl_reader import JsonlReader
from fencepost.mailbox.stores.memory import MemoryStore
from fencepost.mailbox.stores.sqlite import SqliteStore
from fencepost.mailbox.stores.store import RAW_TABLES, Load, LoadDeadLetters, LoadEvents


class Opened:
    """A store with its `run` within reach: a thread sits in `serve` and runs what it is sent."""

    def __init__(self, store):
        self.store = store
        self.asked, self.answered = SimpleQueue(), SimpleQueue()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._live()))
        self.thread.start()
        self.answered.get()

    async def _live(self):
        await self.store.open(20)
        self.answered.put(None)
        await self.store.serve(self._work)
        await self.store.close()

    def _work(self, run):
        while (jobs := self.asked.get()) is not None:
            self.answered.put(run(jobs, None))

    def run(self, *jobs):
        self.asked.put(jobs)
        return self.answered.get()

    def close(self):
        self.asked.put(None)
        self.thread.join()


few = st.integers(1, 3)
panes = st.sampled_from(["pane-1", "pane-2"])
times = st.sampled_from([None, NOON, NOON + 1])
texts = st.sampled_from([None, "", "é", "z\x00", "\ud800"])


def built(make):
    """Records that the record classes allow; the rest is not the stores' business."""

    def try_to(fields):
        try:
            return make(fields)
        except CorruptRecord:
            return None

    return try_to


@st.composite
def intents(draw):
    fields = {
        "intent_id": f"intent-{draw(few)}",
        "pane_id": draw(panes),
        "revision": draw(few),
        "seq": draw(st.sampled_from([1, 2, 3, 2**63])),
        "kind": draw(st.sampled_from(TransitionKind)),
        "from_base": "a",
        "to_base": draw(st.sampled_from(["b", "c"])),
        "classification_op": "op",
        "detected_at": NOON,
        "state": draw(st.sampled_from(IntentState)),
        "reason": draw(texts),
        "discarded": draw(st.booleans()),
        "acknowledged_at": None,
    }
    if fields["state"] in {"materialized", "delivered", "acknowledged"}:
        fields |= PREPARED | {"payload": draw(st.sampled_from([b"", b"x"]))}
        fields["delivered_at"] = draw(times)
    if fields["state"] == "acknowledged":
        fields["acknowledged_at"] = NOON + 5
    fields |= draw(st.sampled_from([{}, SOFT, RESTART, SOFT | {"incarnation_id": "inc-2"}]))
    return built(lambda given: IntentRecord(**given))(fields)


@st.composite
def incarnations(draw):
    retired_at = draw(times)
    fields = {
        "incarnation_id": f"inc-{draw(few)}",
        "pane_id": draw(panes),
        "revision": draw(few),
        "epoch": draw(few),
        "harness": "claude",
        "session_id": draw(st.sampled_from([None, "s"])),
        "launched_at": NOON,
        "retired_at": retired_at,
        "retire_reason": None if retired_at is None else "x",
        "relaunch": draw(st.booleans()),
        "delivered_intent_id": draw(st.sampled_from([None, None, "intent-1", "intent-2"])),
        **draw(st.sampled_from([{}, {}, STARTUP, STARTUP | {"startup_delivery_id": "startup-2"}])),
    }
    return built(lambda given: IncarnationRecord(**given))(fields)


@st.composite
def small_records(draw):
    pane, at, number = draw(panes), draw(st.sampled_from([1, 2])), draw(few)
    decision = draw(st.sampled_from(AdmissionDecision))
    return draw(
        st.sampled_from(
            [
                TriggerRecord(pane_id=pane, operation_id=f"op-{number}", intent_id="intent-1", position=0, at=at),
                ProjectionRecord(intent_id=f"intent-{number}", pane_id=pane, at=at),
                AdmissionRecord(
                    incarnation_id=f"inc-{number}",
                    turn_id="",
                    batch_id="batch",
                    pane_id=pane,
                    turn_ordinal=None,
                    decision=decision,
                    intent_id="intent-2" if decision == "block" else None,
                    at=at,
                ),
            ]
        )
    )


records = st.one_of(intents(), incarnations(), small_records()).filter(lambda record: record is not None)
keys = {
    IntentRecord: few.map(lambda number: (f"intent-{number}",)),
    IncarnationRecord: few.map(lambda number: (f"inc-{number}",)),
    TriggerRecord: few.map(lambda number: ("pane-1", f"op-{number}")),
    ProjectionRecord: few.map(lambda number: (f"intent-{number}",)),
}
places = st.sampled_from(list(keys)).flatmap(lambda kind: st.tuples(st.just(kind), keys[kind]))
mutations = st.builds(
    Mutation,
    label=st.just("a.b"),
    guards=st.lists(
        st.one_of(
            records.map(Unchanged),
            places.map(lambda place: Absent(*place)),
            few.map(lambda number: Live(f"inc-{number}")),
        ),
        max_size=1,
    ).map(tuple),
    puts=st.lists(records, max_size=3).map(tuple),
    deletes=st.lists(places.map(lambda place: Delete(*place)), max_size=1).map(tuple),
    events=st.lists(
        st.builds(lambda data: event(x=data), st.sampled_from([None, (1, 2), {"y": "é"}, 2**64])), max_size=2
    ).map(tuple),
    dead_letters=st.lists(st.builds(dead_letter, st.sampled_from(["a", "\udfff"])), max_size=1).map(tuple),
)
EVERYTHING = (Load(tuple(Query(kind) for kind in RECORD_TYPES)), LoadEvents(0, None), LoadDeadLetters(0, None))


IN_MEMORY = Path("/dev/shm")
"""Nothing loses power here, so where there is such a folder nobody waits for a disk."""


def comparable(answer):
    if isinstance(answer, MutationRefused):
        return ("refused", answer.label, answer.table, answer.key)
    return answer


class Agreement(RuleBasedStateMachine):
    @initialize()
    def open(self):
        self.folder = tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None)
        folder = Path(self.folder.name)
        self.log = folder / "store.jsonl"
        self.make = (
            lambda: MemoryStore(self.folder.name),
            lambda: SqliteStore(folder / "store.db"),
            lambda: JsonlStore(self.log),
        )
        self.stores = [Opened(make()) for make in self.make]
        self.follower = JsonlReader(self.log)

    def all(self, *jobs):
        answers = [[comparable(answer) for answer in store.run(*jobs)] for store in self.stores]
        assert answers[0] == answers[1] == answers[2]
        return answers[0]

    @rule(batch=st.lists(mutations, min_size=1, max_size=4), load=st.integers(0, 4))
    def commit(self, batch, load):
        self.all(*batch[:load], *EVERYTHING, *batch[load:])

    @rule(data=st.data())
    def write_what_follows(self, data):
        """Random records seldom follow each other, so take a stored one a step further."""
        stored = [record for found in self.all(EVERYTHING[0])[0][:3] for record in found if record.VERSIONED]
        if not stored:
            return
        record = data.draw(st.sampled_from(stored))
        changes = st.sampled_from(
            [
                {"reason": "on"},
                {"state": IntentState.RECONCILING, **SOFT},
                {"state": IntentState.MATERIALIZED, **PREPARED},
                {"state": IntentState.DELIVERED, "delivered_at": NOON + 3},
                {"state": IntentState.ACKNOWLEDGED, "acknowledged_at": NOON + 4, **UNBOUND},
                {"state": IntentState.DETECTED, **UNBOUND},
                {**UNBOUND, **RESTART},
                {"payload": b"other"},
                {"delivered_at": NOON + 9},
                {"pane_id": "pane-9"},
            ]
            if isinstance(record, IntentRecord)
            else [
                {"session_id": "t"},
                {"delivered_intent_id": "intent-1"},
                {"retired_at": NOON, "retire_reason": "x", "delivered_intent_id": None},
                {"retired_at": None, "retire_reason": None},
                {"epoch": 9},
            ]
        )
        try:
            after = evolve(record, revision=record.revision + 1, **data.draw(changes))
        except CorruptRecord:
            return
        self.all(Mutation(label="a.b", puts=(after,), events=(event(),)))

    @rule(
        kind=st.sampled_from(RECORD_TYPES[:3]),
        where=st.dictionaries(
            st.sampled_from(["pane_id", "intent_id"]), st.sampled_from(["pane-1", ("pane-2", "intent-1"), NOT_NULL])
        ),
        descending=st.booleans(),
        limit=st.sampled_from([None, 0, 1, 2]),
    )
    def ask(self, kind, where, descending, limit):
        known = {name: value for name, value in where.items() if name in kind.__annotations__}
        query = Query(kind, known, (), descending=descending, limit=limit)
        (found,) = self.all(Load((query,)))
        readers = [*(store.store.reader() for store in self.stores), JsonlReader(self.log)]
        for reader in (*readers, self.follower):
            assert reader.select(query) == found[0]
            assert reader.count(query) == len(readers[0].select(Query(kind, known)))
            assert reader.events() == readers[0].events()
            assert reader.dead_letters() == readers[0].dead_letters()
        for reader in readers:
            reader.close()

    @rule()
    def reopen(self):
        for store in self.stores:
            store.close()
        self.stores = [Opened(make()) for make in self.make]

    @rule()
    def compact(self):
        store = self.stores[2].store
        store._weights.live = store._compact_over = -1
        before = self.log.stat()
        store._compact_if_it_pays(store._log, store._shared.rows)
        assert self.log.stat().st_ino != before.st_ino
        readers = [*(store.store.reader() for store in self.stores), self.follower]
        for table in RAW_TABLES:
            raw = [sorted(repr(sorted(row.items())) for row in reader.raw(table)) for reader in readers]
            assert raw == raw[:1] * 4
        readers[1].close()

    @invariant()
    def all_is_the_same(self):
        if hasattr(self, "stores"):
            self.all(*EVERYTHING)

    @invariant()
    def the_log_knows_what_is_live(self):
        if hasattr(self, "stores"):
            store = self.stores[2].store
            lines, weights = base_lines(store._shared.rows, 1)
            assert store._weights == weights
            rows = store._shared.rows
            items = sum(len(table.rows) for table in rows.tables.values()) + len(rows.events) + len(rows.dead_letters)
            around = sum(map(len, lines)) - weights.live
            assert 0 <= around <= 60 + 60 * len(lines) + items
            assert store._log.size == self.log.stat().st_size

    def teardown(self):
        if hasattr(self, "stores"):
            self.follower.close()
            for store in self.stores:
                store.close()
            self.folder.cleanup()


TestAgreement = Agreement.TestCase
TestAgreement.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
