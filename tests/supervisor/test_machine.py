"""Random lives of several panes in the real runtime, step by step against a model that was written independently.

Each example is a bridge that opens, works, dies and comes back over one store.  The runtime lives in a trio run of its
own thread; each rule does one thing there, waits until nothing moves any more, and then compares: what every caller
was told, and every row that is durable.  Reconciliations never end by themselves, a rule ends them.  Time stands
still, a rule makes it pass.

A Chaos kills at any point passed before.  What a death leaves must be one of the states the model passed through on
the way, not earlier than what any caller had been told by then, with what a new activation takes up again.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import tempfile
import time
import uuid
from typing import Any

import hypothesis
import pytest
import trio
from bridges import Harness, Processes, Workspace, moved, reconciled
from frozen_time import Loop
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from intent_model import ALLOW, APPLIED, PASS, UNCHANGED, Call, Durable, Intent, PaneModel, Process, Waiting

from fencepost.mailbox.query import Query
from fencepost.mailbox.records import AdmissionRecord, IncarnationRecord, IntentRecord, TriggerRecord
from fencepost.mailbox.stores.store import open_reader
from fencepost.supervisor import (
    Allow,
    Applied,
    BaseTransition,
    BlockGeneric,
    BlockPayload,
    BlockRestart,
    Capabilities,
    Chaos,
    DetectedIntent,
    Diverged,
    Fenced,
    FencepostError,
    Launch,
    LaunchBlocked,
    ModelTurn,
    NeedsRecovery,
    Options,
    Refused,
    StoreFault,
    ToolBoundary,
    TransitionKind,
    Unchanged,
    check,
    open_supervisor,
)

PANES = ("p", "q")
OPTIONS = Options(startup_attempts_max=2, soft_redeliveries_max=1, crash_window_seconds=0)
"""No crash is remembered: nobody is quarantined, and no restart waits for a time that stands still."""
LONG = OPTIONS.idle_seconds * 4
_RUNS = itertools.count()

DEATHS = {"ActorCrashed", "StoreFault"}


# -- the world around the runtime --------------------------------------------------------------------------------


class Clock:
    """Never the same moment twice."""

    def __init__(self, mock) -> None:
        self._mock = mock
        self._ticks = itertools.count(1)

    def now_ns(self) -> int:
        return next(self._ticks)

    def monotonic(self) -> float:
        return self._mock.current_time()


class Ids:
    """Fresh and the same in every run of an example."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new_id(self, kind: str) -> str:
        return str(uuid.UUID(int=next(self._numbers)))


class Points(Chaos):
    """A Chaos that says whether an arm was hit, and can be told to forget its arms."""

    died: str | None = None

    def passed(self, point: str):
        kill = super().passed(point)
        if kill is not None:
            self.died = kill.value
        return kill

    def count(self, point: str) -> int:
        return self._counts[point]

    @property
    def armed(self) -> bool:
        return bool(self._arms)

    def disarm(self) -> None:
        self._arms.clear()
        self.died = None


class Work:
    """One attempt at a reconciliation, held until somebody ends it."""

    def __init__(self, attempt) -> None:
        self.attempt = attempt
        self.outcome: Any = None
        self.ended = trio.Event()


class Held:
    """A Reconciler whose attempts wait for a rule."""

    def __init__(self) -> None:
        self.current: dict[str, Work] = {}
        self.over: list[Work] = []
        self.tried: dict[str, int] = {}
        self.wrong: list[str] = []

    async def reconcile(self, attempt):
        intent_id = attempt.intent.intent_id
        if intent_id in self.current:
            self.wrong.append(f"two attempts at {intent_id} at once")
        if self.tried.get(intent_id) and not attempt.resumed:
            self.wrong.append(f"a later attempt at {intent_id} is not told so")
        self.tried[intent_id] = self.tried.get(intent_id, 0) + 1
        work = self.current[intent_id] = Work(attempt)
        try:
            await work.ended.wait()
        finally:
            del self.current[intent_id]
            self.over.append(work)
        if isinstance(work.outcome, Exception):
            raise work.outcome
        return work.outcome


class Rows:
    """Everything durable of one pane, in the model's words, and the ids behind them."""

    def __init__(self, reader, pane_id: str) -> None:
        pane = {"pane_id": pane_id}
        processes = reader.select(Query(IncarnationRecord, pane, order_by=("epoch",)))
        intents = reader.select(Query(IntentRecord, pane, order_by=("seq",)))
        self.intents = {row.seq: row for row in intents}
        self.processes = {row.epoch: row for row in processes}
        self.seq = {row.intent_id: row.seq for row in intents}
        self.epoch = {row.incarnation_id: row.epoch for row in processes}
        self.durable = Durable(
            processes={row.epoch: self._process(row) for row in processes},
            intents=[self._intent(row) for row in intents],
            admissions={
                (self.epoch[row.incarnation_id], row.turn_id, row.batch_id): (
                    PASS if row.intent_id is None else self.seq[row.intent_id]
                )
                for row in reader.select(Query(AdmissionRecord, pane))
            },
        )
        for trigger in reader.select(Query(TriggerRecord, pane, order_by=("position",))):
            self.durable.intents[self.seq[trigger.intent_id] - 1].triggers.append(trigger.operation_id)

    def _process(self, row: IncarnationRecord) -> Process:
        return Process(
            epoch=row.epoch,
            soft=row.soft_batches,
            ordered=row.turn_order,
            live=row.live,
            wanted=row.relaunch,
            marker=None if row.delivered_intent_id is None else self.seq[row.delivered_intent_id],
            startup=None if row.startup_intent_id is None else self.seq[row.startup_intent_id],
            startup_epoch=row.startup_epoch,
            attempt=row.startup_attempt,
        )

    def _intent(self, row: IntentRecord) -> Intent:
        process = None if row.incarnation_id is None else self.epoch[row.incarnation_id]
        if row.startup_delivery_id is not None:
            assert row.startup_delivery_id == self.processes[process].startup_delivery_id
        return Intent(
            seq=row.seq,
            from_base=row.from_base,
            to_base=row.to_base,
            triggers=[],
            state=row.state.value,
            mode=None if row.mode is None else row.mode.value,
            process=process,
            turn=row.turn_ordinal,
            batch=row.batch_id,
            completed=row.batch_completed_at is not None,
            offered=row.payload_offered_at is not None,
            handshake=row.handshake_at is not None,
            delivered=row.delivered_at is not None,
            redeliveries=row.soft_redeliveries,
            epoch=row.epoch,
            exhausted=row.exhausted_at is not None,
            discarded=row.discarded,
            payload=row.payload,
            planned=row.planned_op,
        )


# -- the machine -------------------------------------------------------------------------------------------------

panes = st.sampled_from([PANES[0], PANES[0], PANES[1]])
whos = st.sampled_from(["live"] * 12 + ["retired", "retired", "unknown", "foreign"])
bases = st.sampled_from("ABC")


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.number = next(_RUNS)
        self.url = self.store_url()
        self.ids, self.clock = Ids(), Clock(self.loop.clock)
        self.points = Points()
        self.names, self.numbers = itertools.count(1), itertools.count(1)
        self.told: dict[int, object] = {}
        self.started: dict[int, str] = {}
        """Callers that were not told yet, and their panes."""
        self.spots: dict[tuple[str, int | None], tuple[int, int]] = {}
        self.first: dict[str, dict[str, object]] = {}
        """What every intent showed first of what never changes."""
        self.startups: dict[str, tuple[str, int]] = {}
        self.supervisor: Any = None

    def store_url(self) -> str:
        return f"memory://machine-{self.number}"

    @initialize(launcher=st.sampled_from([False, False, True]), soft=st.booleans())
    def open_for_the_first_time(self, launcher, soft) -> None:
        self.launcher = launcher
        self.models = {
            pane: PaneModel(
                launcher=launcher,
                attempts_max=OPTIONS.startup_attempts_max,
                redeliveries_max=OPTIONS.soft_redeliveries_max,
            )
            for pane in PANES
        }
        self.open()
        self.look()
        for pane in PANES:
            self.launch(pane, soft, True)

    # -- lives --

    def open(self) -> None:
        self.reconciler = Held()
        self.processes = Processes() if self.launcher else None
        opening = open_supervisor(
            self.url,
            reconciler=self.reconciler,
            launcher=self.processes,
            clock=self.clock,
            ids=self.ids,
            chaos=self.points,
            options=OPTIONS,
        )

        async def enter() -> None:
            try:
                self.supervisor = await opening.__aenter__()
            except FencepostError:
                if not self.points.died:
                    raise
            await trio.testing.wait_all_tasks_blocked()

        self.opening = opening
        self.loop.run(enter)

    def shut(self) -> None:
        async def leave() -> None:
            await self.opening.__aexit__(None, None, None)
            await trio.testing.wait_all_tasks_blocked()

        self.loop.run(leave)

    def look(self) -> None:
        """Read everything that is durable."""
        with open_reader(self.url) as reader, reader.snapshot():
            self.rows = {pane: Rows(reader, pane) for pane in PANES}
            owners = {f"pane:{pane}": pane for pane in PANES}
            for pane, rows in self.rows.items():
                owners |= {f"intent:{intent_id}": pane for intent_id in rows.seq}
            for letter in reader.dead_letters():
                self.rows[owners[letter.address]].durable.letters += 1

    # -- steps --

    async def _ask(self, name: int, fn, args) -> None:
        try:
            self.told[name] = await fn(*args)
        except FencepostError as error:
            self.told[name] = error

    def begin(self) -> None:
        for model in self.models.values():
            model.begin()
        self.told.clear()

    def step(
        self, pane: str, predicted: tuple | None, fn, *args, waits: Call | tuple[bool, bool] | None = None
    ) -> None:
        """Call the runtime; `predicted` is what the model, which has taken its step, says it answers."""
        name = next(self.names)
        model = self.models[pane]
        if predicted is None:
            assert waits is not None
            model.waiting.append(Waiting(waits, name))
        else:
            told_at = len(model.stages) - 1 if model.told_at is None else model.told_at
            model.answers[name] = (predicted, told_at)
        self.started[name] = pane

        async def act() -> None:
            self.loop.nursery.start_soon(self._ask, name, fn, args)
            await trio.testing.wait_all_tasks_blocked()

        self.loop.run(act)
        self.compare()

    def compare(self) -> None:
        """Everything that was told and everything that is durable, against the model."""
        self.look()
        answers = {name: self.words(self.started.pop(name), value) for name, value in self.told.items()}
        self.told.clear()
        if self.points.died is None:
            for pane, model in self.models.items():
                found = self.rows[pane].durable
                assert model.now == found, f"pane {pane} is {found}, the model {model.now}"
            expected = {name: answer for model in self.models.values() for name, (answer, _) in model.answers.items()}
            assert answers == expected, f"told {answers}, the model {expected}"
        else:
            self.accept_death(answers)
        waiting = sorted(waiting.name for model in self.models.values() for waiting in model.waiting)
        assert sorted(self.started) == waiting

    def accept_death(self, answers: dict[int, tuple]) -> None:
        """Somebody died at an armed point: before it or wholly after it, never between, never less than was told."""
        everything = self.points.died == "runtime"
        floors = dict.fromkeys(PANES, 0)
        for name, answer in answers.items():
            if answer[0] == "error" and answer[1] in DEATHS:
                continue
            pane, (expected, told_at) = next(
                (pane, model.answers[name]) for pane, model in self.models.items() if name in model.answers
            )
            assert answer == expected
            floors[pane] = max(floors[pane], told_at)
        if everything:
            self.shut()
            for name, value in list(self.told.items()):
                assert self.words(self.started.pop(name), value) == ("error", "StoreFault")
            self.told.clear()
        self.points.disarm()
        if everything:
            self.open()
            self.look()
        for pane, model in self.models.items():
            # Whom the model has told something that nobody told them, they go on waiting.
            waiting = {waiting.name: waiting for waiting in [*model.waiting, *model.waited]}
            left = [waiting[name] for name in sorted(waiting) if name in self.started]
            self.models[pane] = self.survivor(pane, model, floors[pane], left, everything=everything)

    def survivor(self, pane: str, model: PaneModel, floor: int, waiting, *, everything: bool) -> PaneModel:
        found = self.rows[pane].durable
        tried = []
        for stage in reversed(model.stages[floor:]):
            for wakes in (True, False):
                if everything and not wakes:
                    continue
                survivor = copy.copy(model)
                survivor.now, survivor.waiting = copy.deepcopy(stage), waiting
                survivor.begin()
                if wakes:
                    survivor.wake()
                if survivor.now == found:
                    survivor.begin()
                    return survivor
                tried.append(survivor.now)
        raise AssertionError(f"pane {pane} came back as {found}, which is none of {tried}")

    def words(self, pane: str, value: object) -> tuple:
        """What a caller was told, in the model's words."""
        rows = self.rows[pane]
        match value:
            case Allow():
                return ALLOW
            case BlockPayload(intent_id, payload):
                assert payload == rows.intents[rows.seq[intent_id]].payload
                return ("payload", rows.seq[intent_id])
            case BlockGeneric(reason, _):
                return ("generic", reason.value)
            case BlockRestart(reason, _):
                return ("restart", reason.value)
            case Applied():
                return APPLIED
            case Unchanged():
                return UNCHANGED
            case Refused(reason, _):
                return ("refused", reason.value)
            case DetectedIntent():
                assert rows.seq[value.intent_id] == value.seq
                return ("detected", value.seq, value.coalesced)
            case Launch():
                return self.launched(rows, value)
            case LaunchBlocked():
                return ("blocked",)
            case FencepostError():
                return ("error", type(value).__name__)
            case _:
                return (value,)

    @staticmethod
    def launched(rows: Rows, launch: Launch) -> tuple:
        assert rows.epoch[launch.incarnation_id] == launch.epoch
        if launch.startup is None:
            return ("launched", launch.epoch, None)
        row = rows.intents[rows.seq[launch.startup.intent_id]]
        assert launch.startup.payload == row.payload
        assert launch.startup.payload_sha256 == hashlib.sha256(launch.startup.payload).hexdigest()
        return ("launched", launch.epoch, row.seq)

    # -- who and what --

    def pane(self, pane: str) -> Any:
        return self.supervisor.pane(pane)

    def speaker(self, pane: str, who: str) -> tuple[int | None, str, bool]:
        """Epoch, incarnation id, and whether it belongs to another pane."""
        model = self.models[pane]
        retired = [epoch for epoch, process in model.now.processes.items() if not process.live]
        if who == "foreign":
            other = next(other for other in PANES if other != pane)
            if self.rows[other].processes:
                epoch = max(self.rows[other].processes)
                return epoch, self.rows[other].processes[epoch].incarnation_id, True
        elif who == "retired" and retired:
            return retired[-1], self.rows[pane].processes[retired[-1]].incarnation_id, False
        elif who != "unknown" and model.latest is not None:
            return model.latest.epoch, self.rows[pane].processes[model.latest.epoch].incarnation_id, False
        return None, "nobody", False

    def intent_id(self, pane: str, seq: int | None) -> str:
        row = self.rows[pane].intents.get(seq or 0)
        return "no-such-intent" if row is None else row.intent_id

    def some_intent(self, pane: str, which: str) -> int | None:
        model = self.models[pane]
        match which:
            case "head":
                return None if model.head is None else model.head.seq
            case "first":
                return 1 if model.now.intents else None
            case "last":
                return len(model.now.intents) or None
            case _:
                return None

    # -- rules: processes --

    @rule(pane=panes, soft=st.sampled_from([True, True, False]), ordered=st.sampled_from([True, True, False]))
    def launch(self, pane, soft, ordered) -> None:
        self.begin()
        predicted = self.models[pane].launch(soft, ordered)
        capabilities = Capabilities(soft_batches=soft, turn_order=ordered)
        call = self.pane(pane).launch
        self.step(pane, predicted, call, "claude-code", "session", capabilities, waits=(soft, ordered))

    @precondition(
        lambda self: any(process.startup for model in self.models.values() for process in model.now.processes.values())
    )
    @rule(
        pane=panes,
        who=whos,
        echo=st.sampled_from(["right"] * 4 + ["wrong"]),
        hash_right=st.sampled_from([True, True, False]),
    )
    def startup_ready(self, pane, who, echo, hash_right) -> None:
        epoch, incarnation_id, foreign = self.speaker(pane, who)
        row = None if foreign else self.rows[pane].processes.get(epoch or 0)
        known: int | str | None = "wrong"
        echo_id, sha = "not-the-one", "0" * 64
        if row is not None and row.startup_delivery_id is not None:
            if echo == "right":
                known, echo_id = epoch, row.startup_delivery_id
            if hash_right:
                sha = str(row.startup_payload_sha256)
        self.begin()
        predicted = self.models[pane].ready(epoch, known, hash_right=hash_right, elsewhere=foreign)
        self.step(pane, predicted, self.pane(pane).startup_ready, incarnation_id, echo_id, sha)

    @rule(pane=panes, who=whos, failed=st.booleans())
    def end_process(self, pane, who, failed) -> None:
        epoch, incarnation_id, foreign = self.speaker(pane, who)
        self.begin()
        predicted = self.models[pane].end(epoch, failed=failed, elsewhere=foreign)
        call = self.pane(pane).launch_failed if failed else self.pane(pane).retire
        self.step(pane, predicted, call, incarnation_id, "a reason")

    # -- rules: tool calls and reports --

    def spot(self, pane: str, epoch: int | None, where: str) -> tuple[int | None, str]:
        turn, batch = self.spots.get((pane, epoch), (1, 1))
        match where:
            case "new batch":
                batch += 1
            case "later turn":
                turn, batch = turn + 1, batch + 1
            case "earlier turn":
                return turn - 1, f"b{batch}"
            case "no turn":
                return None, f"b{batch}"
            case "bound":
                head = self.models[pane].head
                if head is not None and head.turn is not None:
                    return head.turn, str(head.batch)
            case _:
                pass
        self.spots[pane, epoch] = turn, batch
        return turn, f"b{batch}"

    @rule(
        pane=panes,
        who=whos,
        where=st.sampled_from(
            ["same", "same", "same", "bound", "new batch", "later turn", "later turn", "earlier turn", "no turn"]
        ),
        echo=st.sampled_from(["right", "right", "right", "wrong", None]),
        patient=st.booleans(),
        unseen=st.sampled_from([None] * 8 + ["yes", "maybe"]),
        name=st.sampled_from(["call-1", "call-2", "call-3"]),
    )
    def tool_call(self, pane, who, where, echo, patient, unseen, name) -> None:
        epoch, incarnation_id, foreign = self.speaker(pane, who)
        turn, batch = self.spot(pane, epoch, where)
        row = None if foreign else self.rows[pane].processes.get(epoch or 0)
        startup = None if row is None else row.startup_delivery_id
        echo_id = {"right": startup, "wrong": "not-the-one", None: None}[echo]
        call = Call(epoch, turn, batch, epoch if echo_id is not None and echo == "right" else echo, unseen, name)
        self.begin()
        predicted = self.models[pane].tool_call(call, patient=patient, elsewhere=foreign)
        boundary = ToolBoundary(
            incarnation_id,
            None if turn is None else ModelTurn(f"turn-{turn}", turn),
            batch,
            tool_call_id=name,
            startup_delivery_id=echo_id,
            passed_unseen=unseen,
        )
        self.never_let_by(pane, call, predicted)
        self.step(pane, predicted, self.pane(pane).pre_tool_use, boundary, LONG / 2 if patient else 0, waits=call)

    def never_let_by(self, pane: str, call: Call, predicted: tuple | None) -> None:
        """The model itself is held to the two laws nothing may break."""
        if predicted == ALLOW:
            head = self.models[pane].head
            assert head is None or head.mode is None, "a proof is open"
            assert self.models[pane].now.admissions[call.key] == PASS, "one of its calls was blocked"

    @precondition(lambda self: any(model.now.intents for model in self.models.values()))
    @rule(
        pane=panes,
        who=whos,
        which=st.sampled_from(["head"] * 6 + ["first", "none"]),
        where=st.sampled_from(["bound", "bound", "bound", "same", "later turn"]),
    )
    def mark_delivered(self, pane, who, which, where) -> None:
        epoch, incarnation_id, foreign = self.speaker(pane, who)
        seq = self.some_intent(pane, which)
        turn, batch = self.spot(pane, epoch, where)
        self.begin()
        predicted = self.models[pane].mark_delivered(seq, epoch, turn, batch, elsewhere=foreign)
        call = self.pane(pane).mark_delivered
        self.step(pane, predicted, call, self.intent_id(pane, seq), incarnation_id, f"turn-{turn}", batch)

    @precondition(lambda self: any(model.now.intents for model in self.models.values()))
    @rule(pane=panes, who=whos, where=st.sampled_from(["bound", "bound", "bound", "same", "later turn"]))
    def post_tool_batch(self, pane, who, where) -> None:
        epoch, incarnation_id, foreign = self.speaker(pane, who)
        turn, batch = self.spot(pane, epoch, where)
        self.begin()
        predicted = self.models[pane].completed(epoch, turn, batch, elsewhere=foreign)
        self.step(pane, predicted, self.pane(pane).post_tool_batch, incarnation_id, f"turn-{turn}", batch)

    # -- rules: intents --

    @rule(
        pane=panes,
        compatible=st.booleans(),
        to_base=bases,
        again=st.sampled_from([False, False, False, True]),
        ambiguous=st.sampled_from([False] * 7 + [True]),
    )
    def detect(self, pane, compatible, to_base, again, ambiguous) -> None:
        model = self.models[pane]
        tail = model.unresolved[-1].to_base if model.unresolved else "A"
        from_base = tail if compatible else "elsewhere"
        if from_base == to_base:
            to_base = "D"
        known = [trigger for intent in model.now.intents for trigger in intent.triggers]
        trigger = known[0] if again and known else f"op-{next(self.numbers)}"
        self.begin()
        predicted = model.detect(from_base, to_base, trigger, ambiguous=ambiguous)
        reason = "two parents" if ambiguous else None
        transition = BaseTransition(TransitionKind.PARENT_ADVANCE, from_base, to_base, "view", trigger, reason)
        self.step(pane, predicted, self.pane(pane).detect, transition)

    def working(self) -> list[tuple[str, int, Work]]:
        """Attempts that could be ended, with their panes and intents."""
        return [
            (pane, rows.seq[intent_id], work)
            for pane, rows in self.rows.items()
            for intent_id, work in sorted(self.reconciler.current.items())
            if intent_id in rows.seq
        ]

    @precondition(lambda self: self.reconciler.current)
    @rule(which=st.integers(0, 3), how=st.sampled_from(["ok"] * 8 + ["recovery", "diverged", "raises", "not text"]))
    def end_attempt(self, which, how) -> None:
        working = self.working()
        pane, seq, work = working[which % len(working)]
        self.begin()
        work.outcome = self.outcome(pane, seq, how)
        self.act(work.ended.set)

    def outcome(self, pane: str, seq: int, how: str) -> Any:
        model, number = self.models[pane], next(self.numbers)
        payload = f"Files of {pane} moved, {number}: ü".encode()
        match how:
            case "recovery":
                model.blocked(seq, "recovery_required")
                return NeedsRecovery("dirty")
            case "diverged":
                model.blocked(seq, "topology_diverged")
                return Diverged("two parents")
            case "raises":
                model.raised()
                return RuntimeError("the disk is gone")
            case "not text":
                model.blocked(seq, "recovery_required")
                return reconciled("B", b"\xff" + payload)
            case _:
                return self.success(pane, seq, payload, number)

    def success(self, pane: str, seq: int, payload: bytes, number: int) -> Any:
        """Now and then a result covers the next intent, or the one who made it found more."""
        model = self.models[pane]
        later = [intent.seq for intent in model.now.intents if intent.seq > seq]
        covers = set(later[:1]) if number % 4 == 0 else set()
        found = [("B", "E", f"found-{number}"), ("E", "F", f"found-{number}-too")] if number % 5 == 0 else []
        model.reconciled(seq, payload, covers, found)
        discovered = tuple(
            BaseTransition(TransitionKind.NATIVE_REWRITE, from_base, to_base, "view", trigger)
            for from_base, to_base, trigger in found
        )
        ids = tuple(self.intent_id(pane, other) for other in covers)
        return reconciled("B", payload, covers=ids, discovered=discovered)

    @precondition(lambda self: self.reconciler.current)
    @rule(which=st.integers(0, 3))
    def attempt_plans(self, which) -> None:
        working = self.working()
        pane, seq, work = working[which % len(working)]
        operation = f"plan-{seq}"
        self.begin()
        self.models[pane].plan(seq, operation)
        self.step(pane, (None,), work.attempt.plan, operation, "start")

    @precondition(lambda self: self.reconciler.over)
    @rule(which=st.integers(0, 3))
    def zombie_attempt_plans(self, which) -> None:
        work = self.reconciler.over[-1 - which % len(self.reconciler.over)]
        pane = next(pane for pane in PANES if work.attempt.intent.intent_id in self.rows[pane].seq)
        self.begin()
        self.models[pane].refuse("older_activation")
        self.step(pane, ("error", "Fenced"), work.attempt.plan, "another-plan", "start")

    @precondition(lambda self: self.conflicted())
    @rule(pane=panes, which=st.sampled_from(["head", "head", "last", "none"]))
    def resolve(self, pane, which) -> None:
        seq = self.some_intent(pane, which)
        self.begin()
        predicted = self.models[pane].resolve(seq)
        self.step(pane, predicted, self.pane(pane).resolve, self.intent_id(pane, seq), "go on", "ada")

    def conflicted(self) -> bool:
        return any(model.status() == "conflicted" for model in self.models.values())

    @precondition(lambda self: self.conflicted())
    @rule(
        pane=panes,
        which=st.sampled_from(["head", "head", "head", "none"]),
        how=st.sampled_from(["rearm", "rearm", "discard", "wrong"]),
    )
    def human(self, pane, which, how) -> None:
        seq = self.some_intent(pane, which)
        self.begin()
        if how == "rearm":
            self.step(pane, self.models[pane].rearm(seq), self.pane(pane).rearm, self.intent_id(pane, seq))
            return
        row = self.rows[pane].intents.get(seq or 0)
        approval = "wrong" if row is None or how == "wrong" or row.approval is None else row.approval
        predicted = self.models[pane].discard(seq, approved=how == "discard")
        self.step(pane, predicted, self.pane(pane).discard, self.intent_id(pane, seq), approval)

    def go_on_with(self, pane, steps) -> None:
        """What a well-behaved bridge does next, so that lives get somewhere."""
        for _ in range(steps):
            self.go_on_once(pane)

    # The more often a rule is there the more often it is taken.
    go_on = rule(pane=panes, steps=st.integers(1, 3))(go_on_with)
    go_on_too = rule(pane=panes, steps=st.integers(1, 3))(go_on_with)
    go_on_again = rule(pane=panes, steps=st.integers(1, 3))(go_on_with)
    go_on_further = rule(pane=panes, steps=st.integers(1, 6))(go_on_with)

    def go_on_once(self, pane) -> None:
        model = self.models[pane]
        head, live = model.head, model.live
        if head is not None and head.state == "reconciling":
            work = self.reconciler.current[self.intent_id(pane, head.seq)]
            self.begin()
            work.outcome = self.outcome(pane, head.seq, "ok")
            self.act(work.ended.set)
        elif head is not None and head.exhausted:
            self.human(pane, "head", "rearm")
        elif head is not None and head.state in {"recovery_required", "topology_diverged"}:
            self.resolve(pane, "head")
        elif live is None:
            self.launch(pane, True, True)
        elif head is None:
            self.detect(pane, True, "B", False, False)
        elif head.mode == "restart_startup" and not head.handshake:
            self.startup_ready(pane, "live", "right", True)
        elif head.mode == "soft_batch" and not head.offered and not head.completed:
            self.tool_call(pane, "live", "bound", None, False, None, "call-2")
        elif head.mode == "soft_batch" and head.state == "materialized" and not head.completed:
            self.mark_delivered(pane, "live", "head", "bound")
        elif head.mode == "soft_batch" and not head.completed:
            self.post_tool_batch(pane, "live", "bound")
        else:
            self.tool_call(pane, "live", "later turn", "right", True, None, "call-1")

    # -- rules: time, death, return --

    def act(self, fn, *args) -> None:
        """Something that is nobody's call happens in the runtime's thread."""

        async def act() -> None:
            answer = fn(*args)
            if answer is not None:
                await answer
            await trio.testing.wait_all_tasks_blocked()

        self.loop.run(act)
        self.compare()

    @rule()
    def time_passes(self) -> None:
        """Budgets are spent, and whoever owes nothing falls asleep."""
        self.begin()
        for model in self.models.values():
            for waiting in model.waiting:
                waiting.patient = not isinstance(waiting.what, Call)
            model.settle()
        self.act(self.loop.clock.jump, LONG)

    @rule(pane=panes)
    def kill_pane(self, pane) -> None:
        self.begin()
        model = self.models[pane]
        awake = f"pane:{pane}" in self.supervisor._runtime._registry.awake
        if awake:
            model.answers.update({waiting.name: (("error", "ActorCrashed"), 0) for waiting in model.waiting})
            model.waiting.clear()
            model.wake()
        self.act(self.supervisor.kill, f"pane:{pane}")

    @rule(pane=panes, which=st.sampled_from(["head", "first"]))
    def kill_intent(self, pane, which) -> None:
        self.begin()
        self.act(self.supervisor.kill, f"intent:{self.intent_id(pane, self.some_intent(pane, which))}")

    @rule()
    def close_and_reopen(self) -> None:
        self.begin()
        for model in self.models.values():
            model.answers.update({waiting.name: (("error", "MailboxClosed"), 0) for waiting in model.waiting})
            model.waiting.clear()
            model.wake()
        self.shut()
        self.open()
        self.compare()

    def arm(self, where, nth, what) -> None:
        """Somebody will die at a point that was passed lately."""
        self.points.disarm()
        known = sorted(set(self.points.trace[-100:]))
        point = known[where % len(known)]
        self.points.kill_at(point, self.points.count(point) + nth, what)

    arm_one = rule(where=st.integers(0, 99), nth=st.just(1), what=st.sampled_from(["actor", "runtime"]))(arm)
    arm_other = rule(where=st.integers(0, 99), nth=st.integers(1, 2), what=st.sampled_from(["actor", "runtime"]))(arm)

    # -- what always holds --

    @invariant()
    def views_tell_the_truth(self) -> None:
        if self.supervisor is None:
            return
        assert self.reconciler.wrong == []
        reconciling = {
            row.intent_id for rows in self.rows.values() for row in rows.intents.values() if row.state == "reconciling"
        }
        assert set(self.reconciler.current) == reconciling
        for pane, model in self.models.items():
            rows = self.rows[pane]
            assert sum(row.live for row in rows.processes.values()) <= 1
            for row in rows.processes.values():
                if row.startup_delivery_id is not None:
                    assert self.startups.setdefault(row.startup_delivery_id, (pane, row.epoch)) == (pane, row.epoch)
            for row in rows.intents.values():
                self.stays(row)
            if not self.points.armed:
                assert self.loop.run(self.views, pane) == model.status()
                assert self.points.died is None

    def stays(self, row: IntentRecord) -> None:
        """What was once there is there for ever, unchanged."""
        first = self.first.setdefault(row.intent_id, {})
        for name in ("seq", "from_base", "payload", "prepared_at", "result_op", "delivered_at", "acknowledged_at"):
            value = getattr(row, name)
            assert value == first.get(name, value), name
            if value is not None:
                first[name] = value

    async def views(self, pane: str) -> str:
        views = await self.pane(pane).intents()
        rows = self.rows[pane]
        assert [(view.seq, view.state, view.payload) for view in views] == [
            (row.seq, row.state, row.payload) for row in rows.intents.values()
        ]
        for view in views:
            assert view.startup_attempts == self.models[pane].attempts(self.models[pane].now.intents[view.seq - 1])
        status = (await self.pane(pane).sync_status()).value
        await trio.testing.wait_all_tasks_blocked()
        return status

    def teardown(self) -> None:
        try:
            if self.supervisor is not None:
                self.shut()
                assert self.loop.run(check, self.url) == []
        finally:
            self.loop.close()


class OnDisk(Machine):
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        super().__init__()

    def store_url(self) -> str:
        return f"sqlite:///{self._folder.name}/machine.db"

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._folder.cleanup()


# Explaining a failure takes hypothesis longer than finding it.
EXAMPLES = settings(deadline=None, stateful_step_count=40, phases=set(Phase) - {Phase.explain})

TestMachine = Machine.TestCase
TestMachine.settings = settings(EXAMPLES, max_examples=60)
TestMachineOnDisk = OnDisk.TestCase
TestMachineOnDisk.settings = settings(EXAMPLES, max_examples=8)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Machine, OnDisk])
def test_many_lives(machine, sweep_seconds, seed):
    end = time.monotonic() + sweep_seconds
    examples = settings(EXAMPLES, max_examples=20, stateful_step_count=100, database=None)
    for number in itertools.count(seed):
        run_state_machine_as_test(hypothesis.seed(number)(machine), settings=examples)
        if time.monotonic() >= end:
            return


# -- stories it has told -----------------------------------------------------------------------------------------


async def quiet() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_an_attempt_begins_when_the_one_before_it_is_gone():
    log = []

    class Stubborn:
        async def reconcile(self, attempt):
            number = len(log)
            log.append(f"begin {number}")
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await leave.wait()
                log.append(f"end {number}")

    leave = trio.Event()
    async with open_supervisor("memory://", reconciler=Stubborn()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1", wait=0)
        await quiet()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.kill, f"intent:{intent.intent_id}")
            await quiet()
            assert log == ["begin 0"]
            leave.set()
        await quiet()
        assert log == ["begin 0", "end 0", "begin 2"]


async def test_an_attempt_that_has_answered_plans_nothing_for_the_next():
    held = Held()
    async with open_supervisor("memory://", reconciler=held) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1", wait=0)
        await quiet()
        first = held.current[intent.intent_id]
        first.outcome = NeedsRecovery("dirty")
        first.ended.set()
        await quiet()
        await pane.resolve(intent.intent_id, "go on", by="ada")
        await quiet()
        with pytest.raises(Fenced):
            await first.attempt.plan("late", "start")
        await held.current[intent.intent_id].attempt.plan("mine", "start")
        assert [letter.call for letter in await supervisor.dead_letters()] == ["plan"]


async def test_a_result_that_covers_another_intent_counts_after_a_crash():
    workspace = Workspace(RuntimeError("the disk is gone"))
    async with open_supervisor("memory://", reconciler=workspace) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        covered = await pane.detect(moved("X", "C"))
        workspace.outcomes.append(reconciled("B", covers=(covered.intent_id,)))
        await harness.call(1, "b1")
        assert isinstance(await harness.call(1, "b1"), BlockPayload)
        assert [view.state for view in await pane.intents()] == ["materialized", "superseded"]
        assert len(workspace.attempts) == 2


async def test_a_successor_that_waited_for_a_human_is_started_then():
    processes = Processes()
    async with open_supervisor("memory://", reconciler=Workspace(), launcher=processes) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B", ambiguous="two parents"))
        assert isinstance(await harness.call(1, "b1", passed_unseen="maybe"), BlockRestart)
        await pane.resolve(intent.intent_id, "go on", by="ada")
        launch = await processes.launched(2)
        assert launch.startup is not None


@pytest.mark.parametrize("boundary", ["enqueued", "begun", "written", "committed"])
async def test_a_death_that_no_caller_meets_is_told_to_all_of_them(boundary):
    chaos = Chaos()
    async with open_supervisor("memory://", reconciler=Held(), chaos=chaos) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await supervisor.pane("other").launch("claude-code")
        await pane.detect(moved("A", "B"))

        async def wait() -> None:
            with pytest.raises(StoreFault):
                await harness.call(1, "b1", wait=1_000)

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await quiet()
                chaos.kill_at(f"supervisor.crashed/{boundary}", what="runtime")
                await supervisor.kill("pane:other")
    assert chaos.unhit() == []
