"""The intent protocol once more, in the plainest words: what a machine of random steps compares the runtime with.

Written from the protocol's tables and the contract, not from the code they describe: one object a pane, changed in
place, no actors, no store, no time.  Processes are named by their epoch, intents by their seq; a time is only whether
it is set.  Every method answers what the bridge must be told, and calls `commit` where something becomes durable, so
that after a death the states it could have left are at hand.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

SOFT, RESTART = "soft_batch", "restart_startup"
PASS = "pass"
RESOLVED = ("acknowledged", "superseded")
CONFLICTED = ("recovery_required", "topology_diverged")

ALLOW, APPLIED, UNCHANGED = ("allow",), ("applied",), ("unchanged",)
ACKNOWLEDGES = ("acknowledges",)
"""No answer: what comes next decides the same call."""


def payload(seq: int) -> tuple:
    return ("payload", seq)


def generic(reason: str) -> tuple:
    return ("generic", reason)


def restart(reason: str) -> tuple:
    return ("restart", reason)


def refused(reason: str) -> tuple:
    return ("refused", reason)


@dataclass
class Process:
    epoch: int
    soft: bool = True
    ordered: bool = True
    live: bool = True
    wanted: bool = False
    """Its successor was wished for by the runtime."""
    marker: int | None = None
    startup: int | None = None
    """The intent its startup delivery carries; the delivery itself is named by the process."""
    startup_epoch: int | None = None
    attempt: int | None = None


@dataclass
class Intent:
    seq: int
    from_base: str
    to_base: str
    triggers: list[str]
    state: str = "detected"
    mode: str | None = None
    process: int | None = None
    turn: int | None = None
    batch: str | None = None
    completed: bool = False
    offered: bool = False
    handshake: bool = False
    delivered: bool = False
    redeliveries: int = 0
    epoch: int = 0
    exhausted: bool = False
    discarded: bool = False
    payload: bytes | None = None
    planned: str | None = None

    def bind(self, mode: str | None = None, process: int | None = None, turn: int | None = None, batch=None) -> None:
        self.mode, self.process, self.turn, self.batch = mode, process, turn, batch
        self.completed = self.offered = self.handshake = False


@dataclass(frozen=True)
class Call:
    """A tool call; `epoch` None is a process nobody knows, `echo` the epoch of the process whose startup it names."""

    epoch: int | None
    turn: int | None
    batch: str
    echo: int | str | None = None
    unseen: str | None = None
    name: str | None = None
    """The tool call's own id."""

    @property
    def key(self) -> tuple[int | None, str, str]:
        return (self.epoch, "" if self.turn is None else f"turn-{self.turn}", self.batch)


@dataclass
class Waiting:
    """A caller that waits for a reconciliation: a tool call, or a launch with its capabilities."""

    what: Call | tuple[bool, bool]
    name: int
    patient: bool = True


@dataclass
class Durable:
    processes: dict[int, Process] = field(default_factory=dict)
    intents: list[Intent] = field(default_factory=list)
    admissions: dict[tuple, int | str] = field(default_factory=dict)
    letters: int = 0


class Blocked(Exception):  # noqa: N818
    """A launch that section 8 forbids."""


class PaneModel:
    """What one pane must do.  `launcher` says whether the runtime has one, `attempts_max` and so on its options."""

    def __init__(self, *, launcher: bool, attempts_max: int, redeliveries_max: int) -> None:
        self.launcher = launcher
        self.attempts_max = attempts_max
        self.redeliveries_max = redeliveries_max
        self.now = Durable()
        self.waiting: list[Waiting] = []
        self.waited: list[Waiting] = []
        """Who waited when this step began."""
        self.answers: dict[int, tuple[tuple, int]] = {}
        """What callers who waited were told, by their names, and after how many commits."""
        self.stages: list[Durable] = []
        self.told_at: int | None = None
        """After how many commits the caller of this step had its answer, if not after all of them."""

    # -- looking --

    @property
    def unresolved(self) -> list[Intent]:
        return [intent for intent in self.now.intents if intent.state not in RESOLVED]

    @property
    def head(self) -> Intent | None:
        return next(iter(self.unresolved), None)

    @property
    def latest(self) -> Process | None:
        return self.now.processes[max(self.now.processes)] if self.now.processes else None

    @property
    def live(self) -> Process | None:
        return self.latest if self.latest is not None and self.latest.live else None

    def intent(self, seq: int) -> Intent | None:
        return self.now.intents[seq - 1] if 1 <= seq <= len(self.now.intents) else None

    def status(self) -> str:
        if any(intent.state in CONFLICTED or intent.exhausted for intent in self.unresolved):
            return "conflicted"
        return "pending" if self.unresolved else "in_sync"

    def attempts(self, intent: Intent) -> int:
        mine = (intent.seq, intent.epoch)
        return sum((process.startup, process.startup_epoch) == mine for process in self.now.processes.values())

    # -- commits and answers --

    def begin(self) -> None:
        """A step of the machine begins: what a death in it may leave counts from here."""
        self.stages = [copy.deepcopy(self.now)]
        self.waited = [copy.copy(waiting) for waiting in self.waiting]
        self.answers = {}
        self.told_at = None

    def commit(self) -> None:
        self.stages.append(copy.deepcopy(self.now))

    def refuse(self, reason: str, answer: tuple | None = None) -> tuple:
        self.now.letters += 1
        self.commit()
        return answer or refused(reason)

    def fence(self, epoch: int | None, *, elsewhere: bool = False, retired: bool = True) -> str | None:
        process = None if epoch is None else self.now.processes.get(epoch)
        if elsewhere:
            return "other_pane"
        if process is None:
            return "unknown_incarnation"
        return "retired_incarnation" if retired and not process.live else None

    def settle(self) -> None:
        """Callers who wait are decided again, first come first served."""
        for waiting in list(self.waiting):
            answer = self._again(waiting)
            if answer is not None:
                self.waiting.remove(waiting)
                self.answers[waiting.name] = (answer, len(self.stages) - 1)

    def _again(self, waiting: Waiting) -> tuple | None:
        if isinstance(waiting.what, Call):
            return self.tool_call(waiting.what, patient=waiting.patient, settling=True)
        if self.head is not None and self.head.state == "reconciling" and waiting.patient:
            return None
        try:
            return self.start(*waiting.what)
        except Blocked:
            return ("blocked",)

    # -- tool calls: sections 3, 4 and 7.4 --

    def tool_call(self, call: Call, *, patient: bool, elsewhere: bool = False, settling: bool = False) -> tuple | None:
        """The decision, or None for a caller that waits."""
        answer = self._decide(call, patient=patient, elsewhere=elsewhere)
        self.told_at = len(self.stages) - 1
        if not settling:
            self._after()
        return answer

    def _decide(self, call: Call, *, patient: bool, elsewhere: bool) -> tuple | None:
        stranger = self.fence(call.epoch, elsewhere=elsewhere)
        if stranger is not None:
            return self.refuse(stranger, generic(stranger))
        speaker = self.now.processes[call.epoch or 0]
        while True:
            head = self.head
            if head is None or head.exhausted or head.mode is None:
                return self._without_proof(call, speaker, head, patient=patient)
            if head.process != speaker.epoch:
                return self._restart("payload_unbound")
            if head.mode == RESTART:
                if call.echo != speaker.epoch:
                    return self._restart("wrong_startup_id")
                if not head.handshake:
                    return self._restart("unproved_startup")
            else:
                answer = self._against(head, call, patient=patient)
                if answer != ACKNOWLEDGES:
                    return answer
            self._acknowledge(head, speaker)

    def _against(self, head: Intent, call: Call, *, patient: bool) -> tuple | None:
        """Section 4, for the bound process."""
        if head.state in CONFLICTED:
            self._admit(call, head.seq)
            return generic("conflicted")
        relation = self._relation(head, call)
        if relation == "unknown":
            return self._restart("turn_order_unknown")
        if not head.completed and relation != "same batch":
            return self._restart("batch_not_complete")
        if head.state == "reconciling":
            self._admit(call, head.seq)
            if relation == "same turn":
                return generic("reconciling")
            return None if patient else generic("reconciling")
        if relation == "later" and head.state == "delivered":
            return ACKNOWLEDGES
        if relation == "later" and head.offered:
            head.delivered = True
            return ACKNOWLEDGES
        if relation != "same batch" and head.state == "materialized":
            if head.redeliveries >= self.redeliveries_max:
                return self._restart("redeliveries_spent")
            head.bind(SOFT, call.epoch, call.turn, call.batch)
            head.offered = True
            head.redeliveries += 1
            self._admit(call, head.seq, always=True)
            return payload(head.seq)
        offered = head.offered
        if not head.completed and not offered:
            head.offered = True
        self._admit(call, head.seq, always=head.offered and not offered)
        return payload(head.seq)

    @staticmethod
    def _relation(head: Intent, call: Call) -> str:
        if call.turn is None or call.turn < (head.turn or 0):
            return "unknown"
        if call.turn == head.turn:
            return "same batch" if call.batch == head.batch else "same turn"
        return "later" if call.batch != head.batch else "unknown"

    def _without_proof(self, call: Call, speaker: Process, head: Intent | None, *, patient: bool) -> tuple | None:
        first = self.now.admissions.get(call.key)
        if first == PASS:
            return ALLOW
        if first is None and call.unseen == "maybe":
            return self._restart("admission_lost")
        if first is None and (head is None or call.unseen == "yes"):
            self._admit(call, PASS)
            return ALLOW
        if head is not None and (head.exhausted or head.state in CONFLICTED):
            self._admit(call, head.seq)
            return generic("conflicted")
        if first is not None and (head is None or (head.state == "detected" and first != head.seq)):
            blocker = self.intent(int(first))
            assert blocker is not None
            return generic("reconciling") if blocker.payload is None else payload(blocker.seq)
        assert head is not None
        if head.state != "detected" or not speaker.soft:
            return self._restart("payload_unbound")
        if call.turn is None or not speaker.ordered:
            return self._restart("turn_order_unknown")
        head.state = "reconciling"
        head.bind(SOFT, speaker.epoch, call.turn, call.batch)
        self._admit(call, head.seq, always=True)
        return None if patient else generic("reconciling")

    def _admit(self, call: Call, decision: int | str, *, always: bool = False) -> None:
        """The first decision of a batch stands; committed with whatever else was changed."""
        if call.key not in self.now.admissions:
            self.now.admissions[call.key] = decision
            always = True
        if always:
            self.commit()

    def _acknowledge(self, head: Intent, speaker: Process) -> None:
        head.state = "acknowledged"
        head.bind()
        speaker.marker = None
        self.commit()

    def _restart(self, reason: str) -> tuple:
        self._give_up(replace=True)
        return restart(reason)

    # -- processes: sections 7 and 8 --

    def _retire(self, *, wanted: bool) -> None:
        if self.live is not None:
            process = self.live
            process.live, process.wanted, process.marker = False, wanted, None

    def _give_up(self, *, replace: bool) -> None:
        head, live = self.head, self.live
        mine = head is not None and live is not None and head.mode == RESTART and head.process == live.epoch
        if head is not None and mine and self.attempts(head) >= self.attempts_max:
            head.exhausted = True
            replace = False
        self._retire(wanted=replace)
        self.commit()

    def _may_launch(self) -> None:
        head = self.head
        if head is None or head.state == "detected":
            return
        if head.exhausted or head.state in {*CONFLICTED, "reconciling"}:
            raise Blocked
        if self.live is not None and self.attempts(head) >= self.attempts_max:
            raise Blocked

    def launch(self, soft: bool, ordered: bool) -> tuple | None:
        """The host launches; None for a caller that waits for a payload."""
        try:
            self._may_launch()
        except Blocked:
            return ("blocked",)
        if self.launcher and self.live is not None:
            self._retire(wanted=True)
            self.commit()
        head = self.head
        if head is not None and head.state == "detected" and not (soft and ordered):
            self._retire(wanted=True)
            head.state = "reconciling"
            self.commit()
            return None
        answer = self.start(soft, ordered)
        self.told_at = len(self.stages) - 1
        self._after()
        return answer

    def start(self, soft: bool, ordered: bool) -> tuple:
        self._may_launch()
        head = self.head
        self._retire(wanted=False)
        if self.latest is not None:
            self.latest.wanted = False
        process = Process(epoch=len(self.now.processes) + 1, soft=soft, ordered=ordered)
        bound = head is not None and head.payload is not None
        if head is not None and bound:
            process.attempt = self.attempts(head) + 1
            process.startup, process.startup_epoch = head.seq, head.epoch
            head.bind(RESTART, process.epoch)
        self.now.processes[process.epoch] = process
        self.commit()
        return ("launched", process.epoch, process.startup)

    def _after(self) -> None:
        """What follows from a change by itself: callers are decided again, a wished-for successor is started.

        Whoever caused it had its answer before that.
        """
        told_at = self.told_at
        self.settle()
        self._replace()
        self.told_at = told_at

    def _replace(self) -> None:
        latest = self.latest
        if not self.launcher or latest is None or latest.live or not latest.wanted or self.waiting:
            return
        head = self.head
        if head is not None and head.state == "detected":
            head.state = "reconciling"
            self.commit()
        try:
            self.start(latest.soft, latest.ordered)
        except Blocked:
            return

    def wake(self) -> None:
        """A new activation takes up what an earlier one left undone."""
        head, live = self.head, self.live
        bound = head is not None and live is not None and (head.mode, head.process) == (RESTART, live.epoch)
        if self.launcher and head is not None and bound and not head.handshake and not head.exhausted:
            self._give_up(replace=True)
        self._replace()

    def ready(self, epoch: int | None, echo: int | str | None, *, hash_right: bool, elsewhere: bool = False) -> tuple:
        stranger = self.fence(epoch, elsewhere=elsewhere)
        if stranger is not None:
            return self.refuse(stranger)
        process = self.now.processes[epoch or 0]
        if process.startup is None:
            return self.refuse("other_mode")
        intent = self.intent(process.startup)
        assert intent is not None
        if echo != epoch:
            return self.refuse("wrong_startup_id")
        if intent.state in RESOLVED or (intent.mode, intent.process) != (RESTART, epoch):
            return self.refuse("consumed_startup_id")
        if not hash_right:
            return self.refuse("payload_drift")
        if intent.handshake:
            return UNCHANGED
        intent.state, intent.delivered, intent.handshake = "delivered", True, True
        process.marker = intent.seq
        self.commit()
        return APPLIED

    def end(self, epoch: int | None, *, failed: bool, elsewhere: bool = False) -> tuple:
        """`retire`, or `launch_failed`."""
        stranger = self.fence(epoch, elsewhere=elsewhere, retired=False)
        if stranger is not None:
            return self.refuse(stranger)
        process = self.now.processes[epoch or 0]
        if not process.live:
            return UNCHANGED
        head = self.head
        bound = head is not None and (head.mode, head.process) == (RESTART, epoch)
        self._give_up(replace=failed and bound)
        self.told_at = len(self.stages) - 1
        self._after()
        return APPLIED

    # -- reports: section 5 --

    def mark_delivered(
        self, seq: int | None, epoch: int | None, turn: int | None, batch: str, *, elsewhere=False
    ) -> tuple:
        stranger = self.fence(epoch, elsewhere=elsewhere)
        if stranger is not None:
            return self.refuse(stranger)
        intent = None if seq is None else self.intent(seq)
        if intent is None:
            return self.refuse("unknown_intent")
        if intent.state == "acknowledged":
            return UNCHANGED
        if intent.mode == RESTART:
            return self.refuse("other_mode")
        if intent.state not in {"materialized", "delivered"}:
            return self.refuse("not_prepared")
        if (intent.process, intent.turn, intent.batch) != (epoch, turn, batch):
            return self.refuse("proof_mismatch")
        if intent.state == "delivered":
            return UNCHANGED
        intent.state, intent.delivered = "delivered", True
        self.now.processes[epoch or 0].marker = intent.seq
        self.commit()
        return APPLIED

    def completed(self, epoch: int | None, turn: int | None, batch: str, *, elsewhere: bool = False) -> tuple:
        stranger = self.fence(epoch, elsewhere=elsewhere)
        if stranger is not None:
            return self.refuse(stranger)
        head = self.head
        if head is not None and head.mode == RESTART:
            return self.refuse("other_mode")
        if head is None or (head.mode, head.process, head.turn, head.batch) != (SOFT, epoch, turn, batch):
            return UNCHANGED
        if head.completed:
            return UNCHANGED
        head.completed = True
        self.commit()
        return APPLIED

    # -- detection, reconciliation, a human's word --

    def detect(self, from_base: str, to_base: str, trigger: str, *, ambiguous: bool) -> tuple:
        for intent in self.now.intents:
            if trigger in intent.triggers:
                return ("detected", intent.seq, False)
        tail = self.unresolved[-1] if self.unresolved else None
        if tail is not None and tail.state == "detected" and tail.to_base == from_base:
            tail.triggers.append(trigger)
            if ambiguous:
                tail.state = "topology_diverged"
            else:
                tail.to_base = to_base
            self.commit()
            return ("detected", tail.seq, True)
        self._open(from_base, to_base, trigger, ambiguous=ambiguous)
        self.commit()
        return ("detected", len(self.now.intents), False)

    def _open(self, from_base: str, to_base: str, trigger: str, *, ambiguous: bool) -> None:
        state = "topology_diverged" if ambiguous else "detected"
        self.now.intents.append(Intent(len(self.now.intents) + 1, from_base, to_base, [trigger], state))

    def plan(self, seq: int, operation: str) -> None:
        intent = self.intent(seq)
        assert intent is not None
        if intent.planned is None:
            intent.planned = operation
            self.commit()

    def reconciled(self, seq: int, data: bytes, covers: set[int], discovered: list[tuple[str, str, str]]) -> None:
        intent = self.intent(seq)
        assert intent is not None
        for other in self.unresolved:
            if other.seq in covers and other.seq > seq and other.state == "detected":
                other.state = "superseded"
        for from_base, to_base, trigger in discovered:
            if not any(trigger in known.triggers for known in self.now.intents):
                self._open(from_base, to_base, trigger, ambiguous=False)
        intent.state, intent.payload = "materialized", data
        if self.live is None or intent.process != self.live.epoch:
            intent.bind()
        self.commit()
        self._after()

    def blocked(self, seq: int, state: str) -> None:
        intent = self.intent(seq)
        assert intent is not None
        intent.state = state
        self.commit()
        self._after()

    def raised(self) -> None:
        """The reconciler raised: nobody waits for that attempt any longer."""
        for waiting in self.waiting:
            waiting.patient = False
        self.settle()

    def resolve(self, seq: int | None) -> tuple:
        intent = None if seq is None else self.intent(seq)
        if intent is None:
            return self.refuse("unknown_intent")
        if intent.state not in CONFLICTED:
            return UNCHANGED
        if intent is not self.head:
            return self.refuse("reconciling")
        # Found diverged while a process was there: files may not change under what was let pass.
        lingering = intent.state == "topology_diverged" and self.latest is not None
        attended = intent.mode is None and (self.live is not None or lingering)
        intent.state = "detected" if attended else "reconciling"
        self.commit()
        self._replace()
        return APPLIED

    def rearm(self, seq: int | None) -> tuple:
        intent = None if seq is None else self.intent(seq)
        if intent is None:
            return self.refuse("unknown_intent")
        if not intent.exhausted:
            return self.refuse("not_exhausted")
        intent.exhausted, intent.redeliveries = False, 0
        intent.epoch += 1
        if self.latest is not None and not self.latest.live:
            self.latest.wanted = True
        self.commit()
        self.told_at = len(self.stages) - 1
        self._replace()
        return APPLIED

    def discard(self, seq: int | None, *, approved: bool) -> tuple:
        intent = None if seq is None else self.intent(seq)
        if intent is None:
            return self.refuse("unknown_intent")
        if not intent.exhausted:
            return self.refuse("not_exhausted")
        if not approved:
            return self.refuse("proof_mismatch")
        intent.state, intent.exhausted, intent.discarded = "acknowledged", False, True
        intent.bind()
        self.commit()
        return APPLIED
