"""The durable half of the world: rows, and the transactions that the shipped decisions make of them.

A `Store` is four small numbers: the two intents' rows, how the second transition was detected, and the latest
incarnation's row, each row a number in the ledger's table of canonical rows.  Equal stores are equal tuples, and every
decision is asked for once per store and message; the answer, or the law it broke, is remembered.

Canonical: the latest incarnation is `process-2`, anything older `process-1`, a fresh one `process-3`; what is stored
happened at 1, now is 2; revisions are 1; texts that nothing reads are gone.  So a row never seen before is a row that
differs in something a rule may depend on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from attrs import evolve, fields

from fencepost.actors import (
    boundary,
    incarnation_state,
    intent_state,
    pane_detection,
    pane_outcome,
    pane_reports,
    pane_resolution,
)
from fencepost.actors.decision import Decision, Replace, RetiredIncarnation
from fencepost.actors.incarnation_state import LaunchRequest
from fencepost.actors.intent_events import IntentEvent, Plan
from fencepost.actors.intent_state import Code, code_of
from fencepost.actors.messages import (
    Allow,
    Anchor,
    BaseTransition,
    BlockGeneric,
    BlockPayload,
    BlockRestart,
    Capabilities,
    Diverged,
    ModelTurn,
    NeedsRecovery,
    Outcome,
    Reconciled,
    Refused,
    ToolBoundary,
)
from fencepost.actors.pane_state import Limits, PaneState
from fencepost.mailbox.errors import FencepostError, LaunchBlocked
from fencepost.mailbox.records import (
    AdmissionDecision,
    AdmissionRecord,
    DeliveryMode,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    Record,
    TransitionKind,
    TriggerRecord,
)
from model_check import laws
from model_check.laws import Broken, Change, Snapshot

__all__ = ["BLOCKED_BY", "NO_ADMISSION", "PASSED", "Call", "Ledger", "Reply", "Store", "Transaction"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

PANE: Final = "pane"
OLD, LATEST, FRESH = "process-1", "process-2", "process-3"
STORED, NOW = 1, 2

# Whether the second transition was detected: not yet, merged into the first intent, as an intent of its own.
UNSEEN, MERGED, OWN = 0, 1, 2

# A batch's admission: none, a pass, or BLOCKED_BY + the number of the intent that blocked it.
NO_ADMISSION, PASSED, BLOCKED_BY = 0, 1, 10


class Store(NamedTuple):
    """What is durable; rows are numbers in the ledger's table, 0 is no row."""

    first: int = 0
    second: int = 0
    detected: int = UNSEEN
    latest: int = 0


class Call(NamedTuple):
    """One tool call's request, with what the store holds about its batch."""

    turn: int
    nth: int
    named: bool
    admission: int
    echo: bool
    unseen: str | None
    patient: bool


class Transaction(NamedTuple):
    """One committed transaction and what the world must know about it."""

    store: Store
    admission: int | None = None
    """The admission it wrote, if it wrote one."""
    acknowledged: int = 0
    """The intents acknowledged in it on proof, one bit each."""
    attempt: bool = False
    """Whether a reconciliation begins with it."""
    launched: bool = False


class Reply(NamedTuple):
    """What a tool call led to: the transactions in their order, then the answer; no answer means that it waits."""

    commits: tuple[Transaction, ...]
    answer: str | None
    shown: int = 0
    """The number of the intent whose payload is the answer."""


def remembered(
    method: Callable[Concatenate[Ledger, _P], _T],
) -> Callable[Concatenate[Ledger, _P], _T]:
    """Ask once per argument tuple; a broken law is remembered like an answer."""
    name = method.__name__

    @wraps(method)
    def ask(self: Ledger, *args: _P.args, **_kwargs: _P.kwargs) -> _T:
        memo = self.memos[name]
        found: Any
        try:
            found = memo[args]
        except KeyError:
            try:
                found = method(self, *args)  # type: ignore[call-arg]
            except Broken as broken:
                found = broken
            memo[args] = found
        if isinstance(found, Broken):
            raise found
        return found  # type: ignore[no-any-return]

    return ask  # type: ignore[return-value]


class Ledger:
    """All rows ever seen, and every decision ever asked for."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.memos: defaultdict[str, dict[Any, Any]] = defaultdict(dict)
        self._rows: list[Record | None] = [None]
        self._numbers: dict[Record, int] = {}
        self.bound: list[tuple[int, int] | None] = [None]
        """For each row, the turn and batch it is bound to."""
        self.codes: list[Code | None] = [None]
        self.unresolved: list[bool] = [False]
        self.taken: set[tuple[Code, type[IntentEvent]]] = set()
        """Which rows of the shipped transition table were ever taken."""

    # -- rows ----------------------------------------------------------------------------------------------------

    def number(self, row: Record) -> int:
        """The row's number in the table."""
        known = self._numbers.get(row)
        if known is not None:
            return known
        self._numbers[row] = number = len(self._rows)
        self._rows.append(row)
        intent = row if isinstance(row, IntentRecord) else None
        soft = intent is not None and intent.batch_id is not None
        self.bound.append(_place(str(intent.batch_id)) if intent is not None and soft else None)
        self.codes.append(code_of(intent) if intent is not None else None)
        self.unresolved.append(intent is not None and not intent.resolved)
        return number

    def intent(self, number: int) -> IntentRecord | None:
        """The intent row with this number."""
        row = self._rows[number]
        assert row is None or isinstance(row, IntentRecord)
        return row

    def latest(self, store: Store) -> IncarnationRecord | None:
        """The latest incarnation."""
        row = self._rows[store.latest]
        assert row is None or isinstance(row, IncarnationRecord)
        return row

    @remembered
    def intents(self, store: Store) -> tuple[IntentRecord, ...]:
        """Every intent, resolved or not, oldest first."""
        return tuple(row for row in (self.intent(store.first), self.intent(store.second)) if row is not None)

    @remembered
    def pane(self, store: Store) -> PaneState:
        """The pane's memory as a reopen would load it."""
        return _loaded(self.intents(store), self.latest(store), store.detected)

    @remembered
    def live(self, store: Store) -> bool:
        """Whether the latest incarnation is live."""
        return self.pane(store).live is not None

    @remembered
    def head(self, store: Store) -> int:
        """The row number of the oldest unresolved intent, 0 for none."""
        if self.unresolved[store.first]:
            return store.first
        return store.second if self.unresolved[store.second] else 0

    def moved(self, number: int, place: tuple[int, int]) -> int:
        """The number of the same intent row, bound to another turn and batch."""
        return number if self.bound[number] == place else self._moved(number, place)

    @remembered
    def _moved(self, number: int, place: tuple[int, int]) -> int:
        row = self.intent(number)
        assert row is not None
        turn = _turn(place[0])
        batch_id = _batch(place)
        return self.number(evolve(row, turn_id=turn.id, turn_ordinal=turn.ordinal, batch_id=batch_id))

    # -- the steps of the protocol -------------------------------------------------------------------------------

    @remembered
    def ask(self, store: Store, call: Call) -> Reply:
        """A tool call at its boundary, decided again for as long as the decision says so."""
        commits: tuple[Transaction, ...] = ()
        for _ in range(4):
            decision = self._decide(partial(self._asked, store, call))
            commits += tuple(self._committed(store, decision))
            if commits:
                store = commits[-1].store
                call = call._replace(admission=commits[-1].admission or call.admission)
            if not decision.again:
                return self._reply(store, commits, decision)
        raise Broken("the same call is decided again and again")

    def _asked(self, store: Store, call: Call) -> Decision:
        admission = self._admission(call)
        return boundary.decide_boundary(
            self.pane(store),
            boundary.Boundary(
                call=_tool_boundary(call),
                speaker=self.latest(store),
                admission=admission,
                blocked_by=self._blocked_by(store, admission),
                patient=call.patient,
                limits=self.limits,
                now=NOW,
                mint=_Mint(self, store),
            ),
        )

    @remembered
    def detect(self, store: Store, how: str) -> Transaction:
        """A base moved."""
        return self._only(
            store, lambda mint: pane_detection.decide_detect(self.pane(store), _transition(how), NOW, mint)
        )

    @remembered
    def plan(self, store: Store) -> Transaction:
        """The running attempt says which operation it is about to run."""
        return self._happen(store, Plan(planned_op="op-planned", starting_op="op-start"))

    @remembered
    def outcome(self, store: Store, kind: str) -> Transaction:
        """The running attempt ends."""
        head = self.intent(self.head(store))
        assert head is not None
        return self._only(
            store,
            lambda mint: pane_outcome.decide_outcome(
                self.pane(store), head, _outcome(kind, head), frozenset(), self.limits, NOW, mint
            ),
        )

    @remembered
    def mark(self, store: Store, number: int, place: tuple[int, int]) -> Transaction | None:
        """A hook reports that it wrote the payload of intent `number` out, in the batch at `place`; None: no change."""
        return self._report(store, self._mark(store, f"intent-{number}", LATEST, place))

    @remembered
    def complete(self, store: Store, place: tuple[int, int]) -> Transaction | None:
        """The harness reports that the batch at `place` completed; None: no change."""
        return self._report(store, self._complete(store, LATEST, place))

    @remembered
    def ready(self, store: Store) -> Transaction | None:
        """The replacement reports that it was given its tagged input; None: no change."""
        return self._report(store, self._ready(store, LATEST, None, None))

    @remembered
    def launch(self, store: Store, soft: bool) -> Transaction | None:
        """Launch a process, or reconcile first what it could not be told otherwise; None: launching is forbidden."""
        pane, capabilities = self.pane(store), Capabilities(soft_batches=soft)
        try:
            incarnation_state.check_launch(pane, self.limits)
        except LaunchBlocked:
            return None
        if incarnation_state.needs_payload_first(pane, capabilities):
            return self.unattended(store)
        request = LaunchRequest(harness="harness", session_id=None, capabilities=capabilities)
        return self._only(store, lambda mint: incarnation_state.decide_launch(pane, request, self.limits, NOW, mint))

    @remembered
    def unattended(self, store: Store) -> Transaction:
        """Begin reconciling while no process is alive."""
        return self._only(store, lambda _mint: incarnation_state.begin_unattended(self.pane(store), NOW))

    @remembered
    def retire(self, store: Store) -> Transaction:
        """The host ends the live incarnation."""
        return self._only(
            store,
            lambda mint: incarnation_state.decide_retire(
                self.pane(store), self.latest(store), LATEST, "host", NOW, limits=self.limits, mint=mint
            ),
        )

    @remembered
    def launch_failed(self, store: Store) -> Transaction:
        """The host says that the live incarnation's process never came up, or died."""
        return self._only(
            store,
            lambda mint: incarnation_state.decide_launch_failed(
                self.pane(store), self.latest(store), LATEST, "failed", NOW, limits=self.limits, mint=mint
            ),
        )

    @remembered
    def reopen(self, store: Store) -> Transaction | None:
        """A reopen with a Launcher gives an unproved attempt up; None: there is none."""
        pane = self.pane(store)
        if not incarnation_state.unproved(pane):
            return None
        return self._only(
            store, lambda mint: incarnation_state.give_up(pane, "unproved", self.limits, NOW, mint, replace=True)
        )

    @remembered
    def resolve(self, store: Store) -> Transaction | None:
        """A human resolves the head; None: there is nothing to resolve."""
        head = self.intent(self.head(store))
        if head is None:
            return None
        return self._report(store, self._resolved(store, head))

    def _resolved(self, store: Store, head: IntentRecord) -> Decision:
        """What a human's resolution of the head comes to."""
        return self._decide(lambda: pane_resolution.decide_resolve(self.pane(store), head.intent_id, "go", "me", NOW))

    @remembered
    def rearm(self, store: Store) -> Transaction | None:
        """A human grants new attempts; None: the head is not exhausted."""
        head = self.intent(self.head(store))
        if head is None:
            return None
        return self._report(
            store, self._decide(lambda: pane_resolution.decide_rearm(self.pane(store), head.intent_id, NOW))
        )

    @remembered
    def discard(self, store: Store) -> Transaction | None:
        """A human discards with the approval shown; None: the head is not exhausted."""
        head = self.intent(self.head(store))
        if head is None:
            return None
        return self._report(
            store,
            self._decide(
                lambda: pane_resolution.decide_discard(self.pane(store), head.intent_id, str(head.approval), NOW)
            ),
        )

    # -- what must change nothing --------------------------------------------------------------------------------

    @remembered
    def probe(self, store: Store) -> None:
        """Try everything that no speaker has a right to: fenced, forged, foreign or repeated; none may write a row."""
        for told, decision in self._probes(store):
            if decision.puts or decision.intent_events:
                wrote = ", ".join(
                    [type(record).__name__ for record in decision.puts]
                    + [type(event).__name__ for _, event in decision.intent_events]
                )
                raise Broken(f"{told} changed something ({wrote})")
            if isinstance(decision.answer, Allow | BlockPayload):
                raise Broken(f"{told} was answered {type(decision.answer).__name__}")

    def _probes(self, store: Store) -> Iterator[tuple[str, Decision]]:
        head = self.intent(self.head(store))
        for intent in self.intents(store):
            number = intent.seq
            bound = (str(intent.turn_id), str(intent.batch_id)) if intent.batch_id else None
            for place in filter(None, (_place(bound[1]) if bound else None, (1, 1), (9, 9))):
                yield (
                    f"a mark_delivered of a process long gone, for intent {number}",
                    self._mark(store, intent.intent_id, OLD, place),
                )
                if not self.live(store) and store.latest:
                    yield (
                        f"a mark_delivered of the retired process, for intent {number}",
                        self._mark(store, intent.intent_id, LATEST, place),
                    )
            if self.live(store):
                yield (
                    f"a mark_delivered with a batch nobody knows, for intent {number}",
                    self._mark(store, intent.intent_id, LATEST, (9, 9)),
                )
        for name in (OLD, LATEST):
            if name == LATEST and (self.live(store) or not store.latest):
                continue
            place = self.bound[self.head(store)] or (1, 1)
            who = "the retired process" if name == LATEST else "a process long gone"
            yield f"a batch completion of {who}", self._complete(store, name, place)
            yield f"a startup handshake of {who}", self._ready(store, name, None, None)
            for echo in (True, False):
                call = Call(place[0] + 1, 1, True, NO_ADMISSION, echo, None, True)
                yield f"a tool call of {who}", self._zombie_call(store, name, call)
        if self.live(store):
            yield "the completion of a batch nobody knows", self._complete(store, LATEST, (9, 9))
            yield "a handshake with a wrong startup id", self._ready(store, LATEST, "startup-9", None)
            yield "a handshake with a wrong hash", self._ready(store, LATEST, None, "f" * 64)
        if head is not None:
            if head.state is not IntentState.RECONCILING:
                yield (
                    "a second result with other bytes",
                    self._decide(
                        lambda: pane_outcome.decide_outcome(
                            self.pane(store),
                            head,
                            _outcome("other bytes", head),
                            frozenset(),
                            self.limits,
                            NOW,
                            _Mint(self, store),
                        )
                    ),
                )
            if head.exhausted_at is None:
                yield (
                    "a rearm of what is not exhausted",
                    self._decide(lambda: pane_resolution.decide_rearm(self.pane(store), head.intent_id, NOW)),
                )
            if head.state not in {IntentState.RECOVERY_REQUIRED, IntentState.TOPOLOGY_DIVERGED}:
                yield (
                    "a resolution of what has no conflict",
                    self._resolved(store, head),
                )
            yield (
                "a discard without the approval",
                self._decide(
                    lambda: pane_resolution.decide_discard(self.pane(store), head.intent_id, "approval-9", NOW)
                ),
            )

    # -- how the shipped functions are called --------------------------------------------------------------------

    def _speaker(self, store: Store, name: str) -> IncarnationRecord | None:
        """The incarnation that says something; one long gone is any retired one that was bound to the same intent."""
        latest = self.latest(store)
        if name == LATEST:
            return latest
        head = self.intent(self.head(store))
        bound = head is not None and head.payload is not None
        return IncarnationRecord(
            incarnation_id=OLD,
            pane_id=PANE,
            epoch=1,
            harness="harness",
            launched_at=STORED,
            retired_at=STORED,
            retire_reason="replaced",
            startup_intent_id=head.intent_id if head is not None and bound else None,
            startup_delivery_id="startup-1" if bound else None,
            startup_payload_sha256=str(head.payload_sha256) if head is not None and bound else None,
            startup_epoch=head.epoch if head is not None and bound else None,
            startup_attempt=1 if bound else None,
        )

    def _mark(self, store: Store, intent_id: str, name: str, place: tuple[int, int]) -> Decision:
        intents = {intent.intent_id: intent for intent in self.intents(store)}
        return self._decide(
            lambda: pane_reports.decide_mark_delivered(
                self.pane(store),
                self._speaker(store, name),
                intents.get(intent_id),
                intent_id=intent_id,
                incarnation_id=name,
                turn_id=_turn(place[0]).id,
                batch_id=_batch(place),
                now=NOW,
            )
        )

    def _complete(self, store: Store, name: str, place: tuple[int, int]) -> Decision:
        return self._decide(
            lambda: pane_reports.decide_batch_completed(
                self.pane(store),
                self._speaker(store, name),
                incarnation_id=name,
                turn_id=_turn(place[0]).id,
                batch_id=_batch(place),
                now=NOW,
            )
        )

    def _ready(self, store: Store, name: str, startup: str | None, sha256: str | None) -> Decision:
        speaker = self._speaker(store, name)
        intents = {intent.intent_id: intent for intent in self.intents(store)}
        intent = intents.get(str(speaker.startup_intent_id)) if speaker is not None else None
        own = (speaker.startup_delivery_id, speaker.startup_payload_sha256) if speaker is not None else (None, None)
        return self._decide(
            lambda: incarnation_state.decide_handshake(
                self.pane(store),
                speaker,
                intent,
                incarnation_id=name,
                startup_delivery_id=startup or own[0] or "startup-none",
                payload_sha256=sha256 or own[1] or "",
                now=NOW,
            )
        )

    def _zombie_call(self, store: Store, name: str, call: Call) -> Decision:
        speaker = self._speaker(store, name)
        asked = evolve(
            _tool_boundary(call),
            incarnation_id=name,
            startup_delivery_id=speaker.startup_delivery_id if call.echo and speaker is not None else None,
        )
        return self._decide(
            lambda: boundary.decide_boundary(
                self.pane(store),
                boundary.Boundary(
                    call=asked, speaker=speaker, patient=True, limits=self.limits, now=NOW, mint=_Mint(self, store)
                ),
            )
        )

    def _admission(self, call: Call) -> AdmissionRecord | None:
        if call.admission == NO_ADMISSION:
            return None
        passed = call.admission == PASSED
        turn = _turn(call.turn)
        return AdmissionRecord(
            incarnation_id=LATEST,
            turn_id=turn.id if call.named else "",
            batch_id=_batch((call.turn, call.nth)),
            pane_id=PANE,
            turn_ordinal=turn.ordinal if call.named else None,
            decision=AdmissionDecision.PASS if passed else AdmissionDecision.BLOCK,
            intent_id=None if passed else f"intent-{call.admission - BLOCKED_BY}",
            at=STORED,
        )

    def _blocked_by(self, store: Store, admission: AdmissionRecord | None) -> IntentRecord | None:
        if admission is None:
            return None
        return next((intent for intent in self.intents(store) if intent.intent_id == admission.intent_id), None)

    def _decide(self, decide: Callable[[], Decision]) -> Decision:
        """Call into the shipped code; nothing that can really be asked may make it raise."""
        try:
            return decide()
        except (FencepostError, AssertionError) as error:
            raise Broken(f"the decision raised {type(error).__name__}: {error}") from error

    # -- committing ----------------------------------------------------------------------------------------------

    def _only(self, store: Store, decide: Callable[[_Mint], Decision]) -> Transaction:
        mint = _Mint(self, store)
        decision = self._decide(lambda: decide(mint))
        return next(self._committed(store, decision), Transaction(store))

    def _report(self, store: Store, decision: Decision) -> Transaction | None:
        committed = next(self._committed(store, decision), None)
        if committed is not None and isinstance(decision.answer, Refused):
            raise Broken(f"a refusal ({decision.answer.reason}) changed rows")
        return committed

    def _happen(self, store: Store, event: IntentEvent) -> Transaction:
        head = self.intent(self.head(store))
        assert head is not None
        return self._only(store, lambda _mint: Decision(intent_events=((head, event),)))

    def _reply(self, store: Store, commits: tuple[Transaction, ...], decision: Decision) -> Reply:
        match decision.answer:
            case None:
                return Reply(commits, None)
            case Allow():
                self._may_allow(store)
                return Reply(commits, "allowed")
            case BlockPayload(intent_id=intent_id, payload=payload):
                intent = next(row for row in self.intents(store) if row.intent_id == intent_id)
                if payload != intent.payload:
                    raise Broken(f"a call was given {payload!r}; saved for intent {intent.seq} is {intent.payload!r}")
                return Reply(commits, f"given the payload of intent {intent.seq}", intent.seq)
            case BlockGeneric(reason=reason):
                return Reply(commits, f"blocked ({reason})")
            case BlockRestart(reason=reason):
                return Reply(commits, f"blocked, and the process is retired ({reason})")
            case other:
                raise Broken(f"a tool call was answered {other!r}")

    def _may_allow(self, store: Store) -> None:
        for intent in self.intents(store):
            if intent.resolved:
                continue
            if intent.mode is not None or intent.state not in {IntentState.DETECTED, IntentState.TOPOLOGY_DIVERGED}:
                raise Broken(f"a call was allowed while intent {intent.seq} is {code_of(intent)}")

    def _committed(self, store: Store, decision: Decision) -> Iterator[Transaction]:
        """The one transaction that a decision makes, checked against every law; nothing if it writes no row.

        Of deliveries' law 10, "no terminal input anywhere", this is the intents' part: what a decision has done beside
        its rows is one of two things, and neither of them writes to a pane.
        """
        for effect in decision.effects:
            if not isinstance(effect, RetiredIncarnation | Replace):
                raise Broken(f"law 10 of deliveries: {effect!r} is to be done, which is no effect of a pane's")
        if not (decision.puts or decision.intent_events):
            return
        before = Snapshot(self.intents(store), tuple(filter(None, [self.latest(store)])))
        rows: dict[str, IntentRecord] = {intent.intent_id: intent for intent in before.intents}
        written: list[Record] = list(decision.puts)
        attempt = False
        try:
            for known, event in decision.intent_events:
                if rows.get(known.intent_id) != known:
                    raise Broken(f"decided on a row of {known.intent_id} that is not the stored one")
                step = intent_state.step(known, event, NOW)
                self.taken.add((code_of(known), type(event)))
                written.extend(step.puts)
                attempt = attempt or intent_state.starts_attempt(event, step.after)
        except (FencepostError, AssertionError) as error:
            raise Broken(f"a transition raised {type(error).__name__}: {error}") from error
        after = before.after(written)
        events = tuple(event for _, event in decision.intent_events)
        laws.check(Change(before, after, written, events, self.limits))
        self._check_memory(store, after, written)
        yield self._canonical(store, after, written, attempt=attempt)

    def _check_memory(self, store: Store, after: Snapshot, written: list[Record]) -> None:
        """What the pane remembers after the commit is what a reopen would load."""
        remembers = self.pane(store).after(written)
        detected = _detection(store, written)
        latest = max(after.incarnations, key=lambda row: row.epoch, default=None)
        loads = _loaded(after.intents, latest, detected)
        if not (remembers.intents and remembers.intents[-1].state is IntentState.DETECTED):
            remembers = evolve(remembers, tail_triggers=loads.tail_triggers)  # only a detected tail takes more triggers
        for name in ("latest", "intents", "seq_last", "tail_triggers"):
            if getattr(remembers, name) != getattr(loads, name):
                raise Broken(f"the pane's memory and its store differ after the commit, in {name}")

    def _canonical(self, store: Store, after: Snapshot, written: list[Record], *, attempt: bool) -> Transaction:
        latest = max(after.incarnations, key=lambda row: row.epoch, default=None)
        launched = latest is not None and latest.incarnation_id == FRESH
        intents = list(after.intents)
        resolved = {intent.intent_id for intent in intents if intent.resolved}
        detected = _detection(store, written)
        if latest is not None:
            latest = self._plain_incarnation(latest, resolved)
        head = next((intent for intent in intents if not intent.resolved), None)
        if latest is not None and head is not None and latest.startup_intent_id == head.intent_id:
            same = latest.startup_epoch == head.epoch
            latest = evolve(latest, startup_epoch=0)
            intents[head.seq - 1] = evolve(head, epoch=0 if same else 1)
        elif head is not None:
            intents[head.seq - 1] = evolve(head, epoch=0)
        numbers = [self.number(self._plain_intent(intent, detected, launched=launched)) for intent in intents]
        first, second = [*numbers, 0, 0][:2]
        admissions = [record for record in written if isinstance(record, AdmissionRecord)]
        acknowledged = 0
        for old, new in zip(self.intents(store), after.intents, strict=False):
            if new.state is IntentState.ACKNOWLEDGED and not old.resolved and not new.discarded:
                acknowledged |= 1 << (new.seq - 1)
        return Transaction(
            store=Store(first, second, detected, self.number(latest) if latest is not None else 0),
            admission=_admitted(admissions[0]) if admissions else None,
            acknowledged=acknowledged,
            attempt=attempt,
            launched=launched,
        )

    @staticmethod
    def _plain_incarnation(row: IncarnationRecord, resolved: set[str]) -> IncarnationRecord:
        over = row.startup_intent_id in resolved
        return evolve(
            row,
            incarnation_id=LATEST,
            revision=1,
            epoch=2,
            launched_at=STORED,
            retired_at=None if row.retired_at is None else STORED,
            retire_reason=None if row.retire_reason is None else "retired",
            startup_delivery_id=None if row.startup_delivery_id is None else "startup-2",
            startup_epoch=0 if over else row.startup_epoch,
            startup_attempt=1 if over else row.startup_attempt,
        )

    @staticmethod
    def _plain_intent(row: IntentRecord, detected: int, *, launched: bool) -> IntentRecord:
        changes: dict[str, Any] = {name: STORED for name in _TIMES if getattr(row, name) is not None}
        conflicted = row.state in {IntentState.RECOVERY_REQUIRED, IntentState.TOPOLOGY_DIVERGED}
        changes.update(
            revision=1,
            reason="conflict" if conflicted else None,
            bundle_path=None,
            bundle_fingerprint=None,
            recovery_details=None,
            resolution=None,
            resolved_by=None,
            approval=None if row.approval is None else "approval-2",
        )
        if row.incarnation_id is not None:
            newest = FRESH if launched else LATEST
            changes["incarnation_id"] = LATEST if row.incarnation_id == newest else OLD
        if row.startup_delivery_id is not None:
            newest = "startup-3" if launched else "startup-2"
            changes["startup_delivery_id"] = "startup-2" if row.startup_delivery_id == newest else "startup-1"
        if detected != UNSEEN:
            changes.update(from_base="base-1", to_base="base-2", kind=TransitionKind.PARENT_ADVANCE)
            changes.update(classification_op="op-view")
        if row.resolved:
            changes.update(consumed_at=None, soft_redeliveries=0, epoch=0)
        return evolve(row, **changes)


_TIMES: Final = tuple(attribute.name for attribute in fields(IntentRecord) if attribute.name.endswith("_at"))


class _Mint:
    """Fresh ids of one decision; names that no canonical row has."""

    def __init__(self, ledger: Ledger, store: Store) -> None:
        self._next_intent = len(ledger.intents(store)) + 1

    def __call__(self, kind: str) -> str:
        if kind == "intent":
            self._next_intent += 1
            return f"intent-{self._next_intent - 1}"
        return {"incarnation": FRESH, "startup_delivery": "startup-3", "approval": "approval-3"}[kind]


def _loaded(intents: tuple[IntentRecord, ...], latest: IncarnationRecord | None, detected: int) -> PaneState:
    unresolved = tuple(intent for intent in intents if not intent.resolved)
    triggers = 0
    if intents and not intents[-1].resolved:
        triggers = 2 if detected == MERGED else 1
    return PaneState(pane_id=PANE, latest=latest, intents=unresolved, seq_last=len(intents), tail_triggers=triggers)


def _turn(turn: int) -> ModelTurn:
    return ModelTurn(f"turn-{turn}", turn)


def _batch(place: tuple[int, int]) -> str:
    return f"batch-{place[0]}.{place[1]}"


def _place(batch_id: str) -> tuple[int, int]:
    turn, nth = batch_id.removeprefix("batch-").split(".")
    return int(turn), int(nth)


def _tool_boundary(call: Call) -> ToolBoundary:
    return ToolBoundary(
        incarnation_id=LATEST,
        turn=_turn(call.turn) if call.named else None,
        batch_id=_batch((call.turn, call.nth)),
        startup_delivery_id="startup-2" if call.echo else None,
        passed_unseen=call.unseen,  # type: ignore[arg-type]
    )


def _transition(how: str) -> BaseTransition:
    start, end = ("base-8", "base-9") if "incompatible" in how else ("base-2", "base-3")
    if how.startswith("first"):
        start, end = "base-1", "base-2"
    return BaseTransition(
        kind=TransitionKind.PARENT_ADVANCE,
        from_base=start,
        to_base=end,
        classification_op="op-view",
        trigger_op="op-first" if how.startswith("first") else "op-second",
        ambiguous="ambiguous" if "ambiguous" in how else None,
    )


def _outcome(kind: str, intent: IntentRecord) -> Outcome:
    if kind == "recovery":
        return NeedsRecovery(reason="dirty", bundle_path="bundle", bundle_fingerprint="print")
    if kind == "diverged":
        return Diverged(reason="ambiguous")
    number = intent.seq
    covers: tuple[str, ...] = ("intent-2",) if kind == "covering" else ()
    discovered: tuple[BaseTransition, ...] = (_transition("incompatible"),) if kind == "discovering" else ()
    return Reconciled(
        result_op=f"op-result-{number}",
        workspace_commit=f"commit-{number}",
        payload=f"payload of intent {number}{', other' if kind == 'other bytes' else ''}".encode(),
        anchor=Anchor(f"change-{number}", f"commit-{number}", f"op-result-{number}"),
        covers=covers,  # type: ignore[arg-type]  # the field's converter takes any iterable
        discovered=discovered,  # type: ignore[arg-type]
    )


def _detection(store: Store, written: list[Record]) -> int:
    """How the second transition stands after these writes: its trigger tells."""
    for record in written:
        if isinstance(record, TriggerRecord) and record.operation_id != "op-first":
            return OWN if record.intent_id == "intent-2" else MERGED
    return store.detected


def _admitted(record: AdmissionRecord) -> int:
    if record.decision is AdmissionDecision.PASS:
        return PASSED
    return BLOCKED_BY + int(str(record.intent_id).removeprefix("intent-"))


def described(intent: IntentRecord, *, live: bool) -> str:
    """The row's code, and the marks that the code does not show."""
    marks = [
        word
        for word, shown in {
            "planned": intent.planned_op is not None and intent.state is IntentState.RECONCILING,
            "offered": intent.payload_offered_at is not None,
            "redelivered": intent.soft_redeliveries > 0 and not intent.resolved,
            "discarded": intent.discarded,
        }.items()
        if shown
    ]
    attended = live or intent.mode is not DeliveryMode.SOFT_BATCH
    return " ".join([f"{intent.seq}: {code_of(intent, live=attended)}", *marks])
