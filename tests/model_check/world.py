"""Everything around the store, and every step that is possible in a state.

A `State` is a store, whether an attempt at reconciling runs, and the latest process.  `World.steps` yields every step
that is possible, with the state it leads to; a step that breaks a law is yielded with what it broke instead.

Files need no state of their own.  They may change at any instant from an attempt's plan to its outcome, in as many
attempts as there are deaths on the way, so in every such state no tool that was let pass may be running.

What is assumed of a host and an adapter:

* a process is gone before its successor is launched, or files are changed unattended (the Launcher's `stop`, or the
  host's word);
* a harness goes on to its next batch only when every call of the last one has ended, and it reports a batch as
  completed only if the hook of each of its calls wrote out the answer it got;
* a hook that ends without an answer lets no tool run, unless nobody could be reached at all, the last batch was let
  pass, and no call of this one was ever answered; then the adapter says so in `passed_unseen`;
* a request may be served again although its hook has ended, but a batch of which that is true is not reported complete
  afterwards, and not once a later batch was let pass if its own batch was never decided (`Bounds.strays` drops this).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.actors.intent_state import Code
from fencepost.actors.pane_state import Limits
from fencepost.mailbox.records import IncarnationRecord
from model_check.laws import Broken
from model_check.ledger import (
    BLOCKED_BY,
    NO_ADMISSION,
    PASSED,
    UNSEEN,
    Call,
    Ledger,
    Reply,
    Store,
    Transaction,
    described,
)

__all__ = ["Batch", "Bounds", "Process", "State", "Step", "World"]


class Bounds(NamedTuple):
    """How large the world is."""

    faults: int | None
    """How many faults a run may have; None for any number."""
    calls: int = 2
    """Tool calls of a batch."""
    batches_a_turn: int = 2
    late_batches: int = 1
    """How many earlier batches, besides the bound one, may still have messages under way."""
    startup_attempts: int = 2
    soft_redeliveries: int = 1
    strays: bool = False
    """Whether a repeated request may still be served after its batch ended and before that was reported."""
    second_intent: bool = True
    """Whether a second transition is ever detected."""
    soft_only: bool = False
    """Whether every harness takes soft batches."""


# A call of the current batch: still asking, ended without having run, or running.
ASKS, BLOCKED, RUNS = 0, 1, 2

# The tagged input of a replacement: never reached it; accepted, so that its handshake may arrive; accepted and what its
# first turn springs from, so that its calls echo the startup delivery id.
UNTAGGED, ACCEPTED, ECHOED = 0, 1, 2

# A process of the latest incarnation.
UNBORN, ALIVE, DEAD, ZOMBIE, BUSY_ZOMBIE = "not yet started", "alive", "dead", "zombie", "zombie with running tools"


class Batch(NamedTuple):
    """A tool batch: what the store holds of it, and what only an onlooker knows."""

    turn: int = 1
    nth: int = 1
    """Which batch of its turn it is."""
    named: bool = True
    """Whether the adapter could name the turn."""
    admission: int = NO_ADMISSION
    denied: bool = False
    """Whether it was admitted as a block, or any of its calls was ever answered with one."""
    heard: bool = True
    """Whether every call that ended did so on an answer that its hook wrote out; else no completion is reported."""
    unseen: str | None = None
    """What the adapter says about calls it let pass on its own."""
    known: int = 0
    """The intents whose payload the model had been shown before it planned this batch, one bit each."""
    printed: int = 0
    """The intents whose payload a hook of this batch wrote out; its mark_delivered may arrive from now on."""


class Process(NamedTuple):
    """The process of the latest incarnation; the last of its batches is the current one."""

    condition: str
    tagged: int = UNTAGGED
    """What became of its tagged input, where it has one."""
    shown: int = 0
    """What the model will have been shown when it plans its next turn."""
    batches: tuple[Batch, ...] = ()
    calls: tuple[int, ...] = ()


class State(NamedTuple):
    """All that the future can depend on."""

    store: Store = Store()
    attempt: bool = False
    """Whether an attempt at reconciling the head is running, in memory."""
    process: Process | None = None


class Step(NamedTuple):
    """One possible step: how many faults it takes, what happens, and where it leads, or which law it breaks."""

    faults: int
    text: str
    state: State
    broken: str | None = None


def _bit(number: int) -> int:
    return 1 << (number - 1)


class World:
    """The steps of a world of a given size."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._numberings: dict[object, Numbered] = {}
        self.ledger = Ledger(
            Limits(startup_attempts_max=bounds.startup_attempts, soft_redeliveries_max=bounds.soft_redeliveries)
        )

    # -- what a state looks like ---------------------------------------------------------------------------------

    def good_end(self, state: State) -> bool:
        """Whether nothing is owed: everything detected is resolved."""
        return bool(state.store.first) and not self.ledger.head(state.store)

    def described(self, state: State) -> str:
        """The rows' codes and where everybody is, in one line."""
        store, live = state.store, self.ledger.live(state.store)
        parts = [described(intent, live=live) for intent in self.ledger.intents(store)] or ["no intent"]
        row = self.ledger.latest(store)
        if row is None:
            parts.append("no process yet")
        else:
            parts.append(_described_process(row, state.process))
        if state.attempt:
            parts.append("reconciling")
        return "; ".join(parts)

    # -- steps ---------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step]:
        """Every step possible in `state`."""
        try:
            self.ledger.probe(state.store)
        except Broken as broken:
            yield Step(0, "somebody without a right to speaks", state, str(broken))
            return
        yield from self._detections(state)
        yield from self._reconciliation(state)
        yield from self._host(state)
        yield from self._human(state)
        process = state.process
        if process is None:
            return
        if process.condition in {ZOMBIE, BUSY_ZOMBIE}:
            if process.condition == BUSY_ZOMBIE:
                yield Step(0, "the retired process's tools end", state._replace(process=Process(ZOMBIE)))
            return
        yield from self._messages(state, process)
        if process.condition == ALIVE:
            yield from self._calls(state, process)
            yield from self._harness(state, process)

    def _try(self, faults: int, text: str, state: State, action: str, *args: object, **moved: object) -> Iterator[Step]:
        """The step that one transaction makes; `moved` is what else it changes in the state."""
        try:
            done: Transaction | None = getattr(self.ledger, action)(state.store, *args)
            if done is not None:
                after = state._replace(**moved) if moved else state  # type: ignore[arg-type]
                yield Step(faults, text, self._after(after, done, known=None))
        except Broken as broken:
            yield Step(faults, text, state, str(broken))

    def _detections(self, state: State) -> Iterator[Step]:
        if not state.store.first:
            yield from self._try(0, "a base moves: detected", state, "detect", "first")
            yield from self._try(0, "a base moves, ambiguously: detected", state, "detect", "first, ambiguous")
        elif state.store.detected == UNSEEN and self.bounds.second_intent:
            for how in ("incompatible", "compatible"):
                yield from self._try(0, f"the base moves again ({how}): detected", state, "detect", how)
                told = f"the base moves again (ambiguous, {how}): detected"
                yield from self._try(1, told, state, "detect", f"ambiguous, {how}")

    # -- the runtime: reconciling, dying, coming back ------------------------------------------------------------

    def _reconciliation(self, state: State) -> Iterator[Step]:
        head = self.ledger.head(state.store)
        row, code = self.ledger.intent(head), self.ledger.codes[head]
        process = state.process
        if state.attempt or (process is not None and process.condition == UNBORN):
            yield self._crash(state)
        if code in _UNPROVED:
            text = "the runtime dies; reopened, it gives the unproved startup attempt up"
            yield from self._try(1, text, self._crash(state).state, "reopen")
        if row is None or code not in _RECONCILING:
            return
        if not state.attempt:
            yield Step(0, "the interrupted reconciliation is resumed", state._replace(attempt=True))
            return
        if row.planned_op is None:
            yield from self._try(0, "the attempt commits its plan", state, "plan")
        else:
            if process is not None and (RUNS in process.calls or process.condition == BUSY_ZOMBIE):
                broken = "files are changed while a tool call that was let pass is running"
                yield Step(0, "the attempt changes files", state, broken)
                return
            yield from self._try(0, "files are changed, the result is verified and saved", state, "outcome", "plain")
            yield from self._try(
                0, "files are changed, the result covers the later intent, and is saved", state, "outcome", "covering"
            )
            if state.store.detected == UNSEEN and self.bounds.second_intent:
                text = "files are changed, the result is saved with a transition discovered on the way"
                yield from self._try(0, text, state, "outcome", "discovering")
        yield from self._try(1, "the probe finds files it cannot vouch for", state, "outcome", "recovery")
        yield from self._try(1, "the probe finds no provable target", state, "outcome", "diverged")

    @staticmethod
    def _crash(state: State) -> Step:
        unborn = state.process is not None and state.process.condition == UNBORN
        return Step(
            1,
            "the runtime dies, and is reopened",
            state._replace(attempt=False, process=Process(DEAD) if unborn else state.process),
        )

    # -- the host ------------------------------------------------------------------------------------------------

    def _host(self, state: State) -> Iterator[Step]:
        store, process = state.store, state.process
        live = self.ledger.live(store)
        condition = None if process is None else process.condition
        if condition in {ZOMBIE, BUSY_ZOMBIE}:
            yield Step(0, "the retired process is stopped, and is provably gone", state._replace(process=None))
            return
        if condition == UNBORN:
            yield from self._start(state)
        gone = not live or condition == DEAD
        fault = 0 if gone else 1
        how = "launches a process" if gone else "launches a process in place of the live one, which is gone"
        yield from self._try(fault, f"the host {how}", state, "launch", True, process=None)
        if not self.bounds.soft_only:
            weak = f"the host {how} (of a kind that takes no soft batches)"
            yield from self._try(1, weak, state, "launch", False, process=None)
        if live:
            dead = condition == DEAD
            told = "the host reports that the process is gone" if dead else "the host reports a failed launch"
            yield from self._try(0 if dead else 1, told, state, "launch_failed")
            yield from self._try(1, "the host retires the process", state, "retire")
        elif store.latest and self.ledger.codes[self.ledger.head(store)] is Code.D:
            yield from self._try(0, "with no process alive, reconciling begins", state, "unattended")

    def _start(self, state: State) -> Iterator[Step]:
        row = self.ledger.latest(state.store)
        assert row is not None
        process = Process(ALIVE, batches=(Batch(),), calls=(ASKS,) * self.bounds.calls)
        if row.startup_intent_id is None:
            yield self._step(0, "the process starts", state, process)
            return
        number = int(row.startup_intent_id.removeprefix("intent-"))
        shown = _bit(number)
        told = process._replace(tagged=ECHOED, shown=shown, batches=(Batch(known=shown),))
        for faults, text, started in (
            (0, f"the process starts; its first turn is given the payload of intent {number}", told),
            (
                1,
                "the process accepts its tagged input, but its first turn begins without it",
                process._replace(tagged=ACCEPTED),
            ),
            (1, "the process starts, but its tagged input does not reach it", process),
        ):
            yield self._step(faults, text, state, started)

    def _human(self, state: State) -> Iterator[Step]:
        code = self.ledger.codes[self.ledger.head(state.store)]
        if code in _CONFLICTED:
            yield from self._try(0, "a human resolves the conflict", state, "resolve")
        elif code is Code.EXHAUSTED:
            yield from self._try(0, "a human grants new attempts", state, "rearm")
            yield from self._try(0, "a human discards the delivery", state, "discard")

    # -- messages that are under way -----------------------------------------------------------------------------

    def _messages(self, state: State, process: Process) -> Iterator[Step]:
        head = self.ledger.head(state.store)
        number = 1 if head == state.store.first else 2
        batches = process.batches
        for position, batch in enumerate(batches):
            place = (batch.turn, batch.nth)
            if head and batch.printed & _bit(number):
                yield from self._try(0, "the hook's mark_delivered arrives", state, "mark", number, place)
            if position < len(batches) - 1 and batch.heard:
                yield from self._try(0, "the report that the batch completed arrives", state, "complete", place)
        if process.tagged:
            yield from self._try(0, "the process's startup handshake arrives", state, "ready")
        for position, batch in enumerate(batches):
            current = position == len(batches) - 1
            if current and ASKS in process.calls:
                continue
            late = state
            if not self.bounds.strays:
                # A request is served though its hook has ended: the report has arrived before, or never will.
                if batch.admission == NO_ADMISSION and any(later.admission == PASSED for later in batches[position:]):
                    continue
                late = state._replace(process=_with_batch(process, position, heard=False))
            which = "the current batch" if current and process.condition == ALIVE else "an earlier batch"
            text = f"a tool call of {which} arrives again, or late"
            yield from self._answers(late, position, text, fault=1, heard=False)

    # -- tool calls ----------------------------------------------------------------------------------------------

    def _calls(self, state: State, process: Process) -> Iterator[Step]:
        if ASKS not in process.calls:
            return
        position = len(process.batches) - 1
        yield from self._answers(state, position, "a tool call asks", fault=0, heard=True)
        yield self._step(1, "a hook gives up waiting, with its request still under way", state, self._unheard(process))
        if self._may_pass_unseen(state, process):
            for unseen, told in (("yes", ""), ("maybe", ", and forgets whether it did")):
                passed = _with_batch(self._with_call(process, RUNS), position, unseen=unseen)
                text = f"nobody can be reached; the adapter lets a call pass on its own{told}"
                yield self._step(1, text, state, passed)

    def _may_pass_unseen(self, state: State, process: Process) -> bool:
        """Whether an adapter that reaches nobody knows of no barrier."""
        batch = process.batches[-1]
        if batch.admission != NO_ADMISSION or batch.denied or BLOCKED in process.calls:
            return False
        if any(before.admission != PASSED or before.denied for before in process.batches[-2:-1]):
            return False
        row = self.ledger.latest(state.store)
        return row is not None and row.startup_intent_id is None

    def _answers(self, state: State, position: int, text: str, *, fault: int, heard: bool) -> Iterator[Step]:
        """Everything that can come of one request: its transactions, its answer, and a death between any two."""
        process = state.process
        assert process is not None
        try:
            reply, later = (
                self.ledger.ask(state.store, self._request(process, position, patient=patient))
                for patient in (True, False)
            )
        except Broken as broken:
            yield Step(fault, text, state, str(broken))
            return
        yield from self._outcomes(state, position, text, reply, fault=fault, heard=heard)
        if later != reply:
            told = f"{text}, and its time to wait is spent"
            yield from self._outcomes(state, position, told, later, fault=fault, heard=heard)

    def _outcomes(
        self, state: State, position: int, text: str, reply: Reply, *, fault: int, heard: bool
    ) -> Iterator[Step]:
        try:
            for count, commit in enumerate(reply.commits, start=1):
                state = self._committed(state, position, commit)
                if count < len(reply.commits) or reply.answer is not None:
                    died = f"{text}; the runtime commits, and dies before it answers"
                    yield Step(fault + 1, died, self._settled(self._crash(state).state))
        except Broken as broken:
            yield Step(fault, text, state, str(broken))
            return
        if reply.answer is None:
            if reply.commits:
                yield Step(fault, f"{text}, and waits behind the reconciliation", self._settled(state))
            return
        process = state.process
        assert process is not None
        denied = reply.answer != "allowed"
        if not denied and process.batches[position].denied:
            law = "a call was allowed, in a batch of which a call had been blocked"
            yield Step(fault, f"{text}: allowed", state, law)
            return
        if denied and not process.batches[position].denied:
            process = _with_batch(process, position, denied=True)
        told = f"{text}: {reply.answer}"
        if not heard:
            yield self._step(fault, told, state, process)
        elif reply.answer == "allowed":
            yield self._step(fault, told, state, self._with_call(process, RUNS))
            yield self._step(fault + 1, f"{told}, which its hook does not live to say", state, self._unheard(process))
        elif reply.shown:
            bit = _bit(reply.shown)
            printed = _with_batch(process, position, printed=process.batches[position].printed | bit)
            printed = printed._replace(shown=process.shown | bit)
            yield self._step(fault, f"{told}, which its hook writes out", state, self._with_call(printed, BLOCKED))
            yield self._step(fault + 1, f"{told}, which its hook does not live to say", state, self._unheard(process))
        else:
            yield self._step(fault, told, state, self._with_call(process, BLOCKED))

    def _step(self, faults: int, text: str, state: State, process: Process) -> Step:
        """A step that moves nothing but the process."""
        return Step(faults, text, self._settled(State(state.store, state.attempt, process)))

    def _request(self, process: Process, position: int, *, patient: bool) -> Call:
        batch = process.batches[position]
        return Call(
            batch.turn, batch.nth, batch.named, batch.admission, process.tagged == ECHOED, batch.unseen, patient
        )

    def _committed(self, state: State, position: int, commit: Transaction) -> State:
        """The state after one of a call's transactions, not yet settled: its batches keep their places."""
        process = state.process
        assert process is not None
        batch = process.batches[position]
        self._check_told(commit, batch.known)
        if commit.admission is not None:
            if batch.admission not in {NO_ADMISSION, commit.admission}:
                raise Broken("the first decision of a batch was changed")
            process = _with_batch(process, position, admission=commit.admission)
        return State(commit.store, self._begun(state, commit), process)

    @staticmethod
    def _with_call(process: Process, outcome: int) -> Process:
        """One asking call ends so; which of them does not matter."""
        condition, tagged, shown, batches, calls = process
        asking = calls.index(ASKS)
        ended = sorted((*calls[:asking], outcome, *calls[asking + 1 :]))
        return Process(condition, tagged, shown, batches, tuple(ended))

    def _unheard(self, process: Process) -> Process:
        """One asking call's hook ends without having written anything out; the tool does not run."""
        return _with_batch(self._with_call(process, BLOCKED), len(process.batches) - 1, heard=False)

    # -- the harness ---------------------------------------------------------------------------------------------

    def _harness(self, state: State, process: Process) -> Iterator[Step]:
        yield self._step(1, "the process dies", state, process._replace(condition=DEAD))
        if ASKS in process.calls:
            return
        last = process.batches[-1]
        calls = (ASKS,) * self.bounds.calls
        turn = Batch(turn=last.turn + 1, known=process.shown)
        for faults, text, batch in (
            (0, "the batch ends; the model is shown its results and begins its next turn", turn),
            (1, "the batch ends; the next turn begins, which the adapter cannot name", turn._replace(named=False)),
            (
                0,
                "the batch ends; the same turn goes on with another batch",
                Batch(turn=last.turn, nth=last.nth + 1, named=last.named, known=last.known),
            ),
        ):
            if batch.nth <= self.bounds.batches_a_turn:
                after = process._replace(batches=(*process.batches, batch), calls=calls)
                yield self._step(faults, text, state, after)

    # -- settling ------------------------------------------------------------------------------------------------

    def _after(self, state: State, commit: Transaction, *, known: int | None) -> State:
        self._check_told(commit, known)
        process = Process(UNBORN) if commit.launched else state.process
        return self._settled(State(commit.store, self._begun(state, commit), process))

    @staticmethod
    def _check_told(commit: Transaction, known: int | None) -> None:
        """No silent loss: an acknowledgement names what the model was shown before the acknowledging turn."""
        for number in (1, 2):
            if commit.acknowledged & _bit(number):
                if known is None:
                    raise Broken(f"intent {number} was acknowledged by something that is no tool call")
                if not known & _bit(number):
                    raise Broken(
                        f"intent {number} was acknowledged by a turn that began before the model was shown its payload"
                    )

    @staticmethod
    def _begun(state: State, commit: Transaction) -> bool:
        """Whether an attempt runs after the transaction; law 13: one begins only where none is running."""
        if commit.attempt and state.attempt:
            raise Broken("law 13: a second reconciliation was begun beside the running one")
        return commit.attempt or state.attempt

    def _settled(self, state: State) -> State:
        """The canonical state: what can matter no more is forgotten, turns are numbered by rank."""
        store, attempt, process = state
        ledger = self.ledger
        head = ledger.head(store)
        bound = ledger.bound[head]
        place = (1, 1) if bound else None
        if process is not None and not ledger.live(store):
            process = _retired(process)
        elif process is not None and process.batches:
            process, place = self._numbered(process, head, self._open(store))
        if place is not None and bound != place:
            moved = ledger.moved(head, place)
            store = store._replace(first=moved) if head == store.first else store._replace(second=moved)
        return State(store, attempt and ledger.codes[head] in _RECONCILING, process)

    def _open(self, store: Store) -> int:
        """The intents that are not resolved, one bit each."""
        unresolved = self.ledger.unresolved
        return unresolved[store.first] | unresolved[store.second] << 1

    def _numbered(self, process: Process, head: int, open_bits: int) -> Numbered:
        """The process with its batches forgotten and renumbered, and where that leaves the bound one; remembered."""
        key = (process, head, open_bits)
        found = self._numberings.get(key)
        if found is None:
            row = self.ledger.intent(head)
            complete = row is not None and row.batch_completed_at is not None
            found = _numbered(process, self.ledger.bound[head], open_bits, self.bounds, complete=complete)
            self._numberings[key] = found
        return found


def _with_batch(process: Process, position: int, **changed: Any) -> Process:
    batches = process.batches
    changed_batch = batches[position]._replace(**changed)
    return process._replace(batches=(*batches[:position], changed_batch, *batches[position + 1 :]))


Numbered: TypeAlias = tuple[Process, tuple[int, int] | None]


def _numbered(
    process: Process, bound: tuple[int, int] | None, open_bits: int, bounds: Bounds, *, complete: bool
) -> Numbered:
    kept = _remembered(process.batches, bound, bounds.late_batches)
    turns = sorted({batch.turn for batch in kept} | ({bound[0]} if bound else set()))
    rank = {turn: number for number, turn in enumerate(turns, start=1)}
    batches, place = [], None
    for position, batch in enumerate(kept, start=1):
        nth = sum(other.turn == batch.turn and other.nth <= batch.nth for other in kept)
        is_bound = (batch.turn, batch.nth) == bound
        if is_bound:
            place = (rank[batch.turn], nth)
        batches.append(
            Batch(
                turn=rank[batch.turn],
                nth=nth,
                named=batch.named,
                admission=batch.admission,
                denied=batch.denied or batch.admission >= BLOCKED_BY,
                heard=batch.heard and (bounds.strays or position == len(kept) or (is_bound and not complete)),
                unseen=batch.unseen if batch.admission == NO_ADMISSION else None,
                known=batch.known & open_bits,
                printed=batch.printed & open_bits if is_bound else 0,
            )
        )
    if bound and place is None:  # bound to something that no batch of this process is
        place = (rank[bound[0]], 9)
    calls = () if process.condition == DEAD else process.calls
    return Process(process.condition, process.tagged, process.shown & open_bits, tuple(batches), calls), place


_RECONCILING: Final = {Code.C_OPEN, Code.C_COMPLETE, Code.C_UNATTENDED}
_CONFLICTED: Final = {Code.RECOVERY_REQUIRED, Code.TOPOLOGY_DIVERGED}
_UNPROVED: Final = {Code.M_RESTART, Code.L_RESTART}


def _remembered(batches: tuple[Batch, ...], bound: tuple[int, int] | None, late: int) -> tuple[Batch, ...]:
    """The current batch, the bound one, and the latest few others."""
    kept, others = [batches[-1]], 0
    for batch in reversed(batches[:-1]):
        if (batch.turn, batch.nth) == bound:
            kept.append(batch)
        elif others < late:
            kept.append(batch)
            others += 1
    return tuple(reversed(kept))


def _retired(process: Process) -> Process | None:
    """Of a retired process only matters whether it may still be there, and may still be touching files."""
    if process.condition in {UNBORN, DEAD}:
        return None
    if process.condition == ALIVE:
        return Process(BUSY_ZOMBIE if RUNS in process.calls else ZOMBIE)
    return process


def _described_process(row: IncarnationRecord, process: Process | None) -> str:
    condition = "gone" if process is None else process.condition
    text = f"process {'live' if row.live else 'retired'}, {condition}"
    if row.startup_intent_id is not None:
        text += f", attempt {row.startup_attempt} for {row.startup_intent_id.replace('-', ' ')}"
    if row.delivered_intent_id is not None:
        text += ", marked"
    if process is not None and process.condition == ALIVE:
        text += f", calls {'/'.join(('asking', 'ended', 'running')[call] for call in process.calls)}"
    return text
