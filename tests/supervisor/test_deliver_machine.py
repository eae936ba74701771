"""Random lives of one pane's deliveries, in both directions, step by step against a model written from the tables.

The runtime lives in a trio run of its own thread whose clock stands still; a rule makes time pass.  The harness, the
chat room and the dispatcher do what the rules tell them, and outlive every death.  After each step every answer and
every durable row is what the model says, nothing was dispatched twice, and no stage went down.
"""

from __future__ import annotations

import itertools

import hypothesis
import pytest
import trio
from attrs import define
from delivery_scenarios import World, opened, rows, uid
from frozen_time import Loop
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fencepost.mailbox.claim import fingerprint_of
from fencepost.supervisor import (
    Chaos,
    DeliveryReport,
    FencepostError,
    InboundPost,
    MechanismOutcome,
    Options,
    Outbound,
    Receipt,
    Refused,
    TranscriptEntry,
    TurnEnd,
    check,
)

_RUNS = itertools.count()
OPTIONS = Options(idle_seconds=1e6, crashes_max=1_000_000)
SEATS = ("head_seat", "fleet_seat")
ORDER = ["stored", "delivered", "consumed", "responded"]
WAITS = "waits"


# -- the model ---------------------------------------------------------------------------------------------------


@define
class Sent:
    """One delivery that has a row: `reach` is None while it is in flight."""

    via: str
    text: str
    reach: str | None = None
    abandoned: bool = False
    replied: bool = False
    provable: bool = False
    since: float = 0
    """When its deadline began to run."""
    lapsed: bool = False
    """A chat turn whose callers were told that it is pending."""

    @property
    def unresolved(self) -> bool:
        return self.reach in (None, "uncertain") and not self.abandoned


# What each word leads to, written down once more from section 2.
SAYS = {
    "queued": (MechanismOutcome("accepted", "queued"), "consumed"),
    "released": (MechanismOutcome("released"), "unavailable"),
    "unmapped": (MechanismOutcome("swallowed"), "uncertain"),
    "raises": (RuntimeError("the line went dead"), "uncertain"),
    "silence": (None, None),
}
ENDS = {
    "settled": (TurnEnd("settled"), "responded"),
    "waiting_user": (TurnEnd("waiting_user"), "consumed"),
    "pending": (TurnEnd("pending"), "stored"),
    "refused": (TurnEnd("failed", "policy_refused"), "rejected"),
    "stalled": (TurnEnd("failed", "stalled"), "expired"),
    "unknown": (TurnEnd("failed", "who knows"), "uncertain"),
    "raises": (RuntimeError("the room is gone"), "uncertain"),
}
GRACE = 5
DEADLINES = {"head_seat": 30, "fleet_seat": 30, "harness_seat": 30, "channel_turn": 50}
POINTS = {
    # where the acceptance dies, and what is durable then
    "pane.accept/received": (),
    "pane.fence/decided": (),
    "pane.fence/applied": ("fence",),
    "pane.tombstone/applied": ("fence", "tombstone"),
    "pane.accept/applied": ("fence", "tombstone", "acceptance"),
    "pane.publish/applied": ("fence", "tombstone", "acceptance"),
}

OPEN = "the one under way"
ids = st.sampled_from([uid(n) for n in range(1, 5)])
targets = st.sampled_from([OPEN, OPEN, OPEN, uid(1), uid(2)])
texts = st.sampled_from(["one text", "another text"])
vias = st.sampled_from([*SEATS, "harness_seat", "channel_turn"])


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.url = f"memory://deliveries-machine-{next(_RUNS)}"
        self.world = World(arrives=False)
        self.names = itertools.count(1)
        self.told: dict[int, object] = {}
        self.waiting: dict[int, str] = {}
        self.best: dict[str, str] = {}
        self.now = 0
        self.held: tuple[str, trio.Event] | None = None
        self.sent: dict[str, Sent] = {}
        self.queued: tuple[str, Sent] | None = None
        self.fence: str | None = None
        self.fenced: dict[str, str] = {}
        self.tombstones: dict[str, str] = {}
        self.acceptances: set[str] = set()
        self.settled: set[str] = set()
        self.life = None
        self.open()
        self.loop.run_until_quiet(self.pane.launch, "claude-code", "session-1")
        self.binding = self.loop.run_until_quiet(self.pane.binding).binding

    # -- lives --

    def open(self) -> None:
        self.chaos = Chaos()
        times = {"grace": GRACE, "acknowledge": 30, "answer": 30, "wait": 50}
        self.life = opened(self.url, self.world, self.chaos, times=times, options=OPTIONS)
        self.supervisor, self.pane = self.loop.run_until_quiet(self.life.__aenter__)

    def shut(self) -> None:
        self.loop.run_until_quiet(self.life.__aexit__, None, None, None)

    def teardown(self) -> None:
        try:
            self.shut()
            assert self.loop.run_until_quiet(check, self.url) == []
        finally:
            self.loop.close()

    def died(self, *, runtime: bool) -> None:
        """What a death leaves: what was queued is gone, what was in flight is uncertain, who waited is told."""
        self.queued = self.held = None
        for row in self.sent.values():
            if row.reach is None:
                row.reach = "uncertain"
            row.lapsed = False
        if runtime:
            self.shut()
        for name in list(self.waiting):
            assert isinstance(self.told.pop(name), FencepostError)
            del self.waiting[name]
        if runtime:
            self.open()

    # -- steps --

    def call(self, fn, *args) -> object:
        """Call the runtime and let everything come to rest; the answer, or WAITS."""
        self.name = next(self.names)

        async def ask(name: int) -> None:
            try:
                self.told[name] = await fn(*args)
            except FencepostError as error:
                self.told[name] = error

        async def act() -> None:
            self.loop.nursery.start_soon(ask, self.name)

        self.loop.run_until_quiet(act)
        return self.told.pop(self.name, WAITS)

    def open_row(self) -> tuple[str, Sent] | None:
        return next(((one, row) for one, row in self.sent.items() if row.unresolved), None)

    def target(self, delivery_id: str) -> str:
        """The id a rule is about: often the one something can still happen to."""
        if delivery_id != OPEN:
            return delivery_id
        row = self.open_row()
        return row[0] if row else self.queued[0] if self.queued else self.fence or uid(3)

    def heard(self, delivery_id: str, reach: str) -> None:
        """The model hears of a delivery; whoever waits for it is told."""
        row = self.sent[delivery_id]
        assert row.reach in (None, "uncertain") or ORDER.index(reach) > ORDER.index(row.reach)
        row.reach = reach
        self.answer_callers(delivery_id, reach)

    def answer_callers(self, delivery_id: str, reach: str) -> None:
        for name in [name for name, one in self.waiting.items() if one == delivery_id]:
            del self.waiting[name]
            self.judge(self.told.pop(name), delivery_id, reach)

    def judge(self, report: object, delivery_id: str, reach: str) -> None:
        """One report: what it says, and that it takes nothing back that was said before."""
        assert isinstance(report, DeliveryReport), report
        assert (report.delivery_id, str(report.stage or report.stop)) == (delivery_id, reach), report
        before = self.best.get(delivery_id)
        if before in ORDER and before != "stored":
            assert reach in ORDER, f"{before} became {reach}"
            assert ORDER.index(reach) >= ORDER.index(before), f"{before} became {reach}"
        if before == "uncertain":
            assert reach == "uncertain" or reach in ORDER, f"uncertain became {reach}"
        self.best[delivery_id] = reach

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        found = {row["delivery_id"]: row["stage"] or row["stop"] for row in rows(self.url, "deliveries")}
        assert found == {one: row.reach for one, row in self.sent.items()}
        assert max(self.world.sends.values(), default=0) <= 1, self.world.sends
        assert max(self.world.work.values(), default=0) <= 1, self.world.work
        assert [row["delivery_id"] for row in rows(self.url, "inbound_fences")] == ([self.fence] if self.fence else [])
        assert {row["delivery_id"] for row in rows(self.url, "tombstones")} == set(self.tombstones)
        assert {row["delivery_id"] for row in rows(self.url, "acceptances")} == self.acceptances
        assert sorted(self.told) == [], "somebody was told something that the model does not know of"

    # -- outbound --

    @rule(delivery_id=ids, via=vias, text=texts, says=st.sampled_from(list(SAYS)), ends=st.sampled_from(list(ENDS)),
          held=st.booleans())  # fmt: skip
    def deliver(self, delivery_id, via, text, says, ends, held) -> None:
        self.world.says, said = SAYS[says]
        self.world.ends, ended = ENDS[ends]
        known, unresolved = self.sent.get(delivery_id), self.open_row()
        outbound = Outbound(text, via, delivery_id)
        if known is not None and not known.unresolved:
            self.judge(self.call(self.pane.deliver, outbound), delivery_id, known.reach)
        elif self.queued is not None:
            # The second of two callers is told so (section 3), although what is queued may yet end unsent.
            answer = self.call(self.pane.deliver, outbound)
            assert (answer.delivery_id, str(answer.stop)) == (self.queued[0], "uncertain")
        elif unresolved is not None:
            self.deliver_fenced(outbound, *unresolved)
        else:
            self.deliver_free(outbound, said, ended, held)

    @precondition(lambda self: self.queued is None and self.open_row() is None)
    @rule(delivery_id=ids, via=st.sampled_from(SEATS), text=texts)
    def deliver_and_poll(self, delivery_id, via, text) -> None:
        self.deliver(delivery_id, via, text, "queued", "settled", held=False)
        if self.queued is not None:
            self.poll()

    @precondition(lambda self: self.open_row() is None)
    @rule(delivery_id=ids, text=texts, says=st.sampled_from(["silence", "raises", "queued"]))
    def deliver_natively(self, delivery_id, text, says) -> None:
        self.deliver(delivery_id, "harness_seat", text, says, "settled", held=False)

    @precondition(lambda self: self.open_row() is None)
    @rule(delivery_id=ids, text=texts, ends=st.sampled_from(list(ENDS)), held=st.booleans())
    def deliver_to_the_room(self, delivery_id, text, ends, held) -> None:
        self.deliver(delivery_id, "channel_turn", text, "queued", ends, held=held)

    def deliver_fenced(self, outbound: Outbound, original: str, row: Sent) -> None:
        answer = self.call(self.pane.deliver, outbound)
        if row.reach is None and row.lapsed and outbound.delivery_id == original:
            assert (answer.delivery_id, str(answer.stage)) == (original, "stored")
        elif row.reach is None or row.via != "harness_seat" or not row.provable:
            assert (answer.delivery_id, str(answer.stop)) == (original, "uncertain")
        elif outbound.text == row.text:
            row.reach = "consumed"
            self.judge(answer, original, "consumed")
        else:
            row.reach = "consumed"
            assert (answer.delivery_id, str(answer.stop)) == (outbound.delivery_id, "unavailable")

    def deliver_free(self, outbound: Outbound, said: str | None, ended: str | None, held: bool) -> None:
        row, delivery_id = Sent(outbound.via, outbound.text, since=self.now), str(outbound.delivery_id)
        if outbound.via == "channel_turn" and held:
            self.world.gate, ended = trio.Event(), None
            self.held = (delivery_id, self.world.gate)
        answer = self.call(self.pane.deliver, outbound)
        self.world.gate = None
        if outbound.via in SEATS:
            self.queued = (delivery_id, row)
        else:
            self.sent[delivery_id] = row
            row.reach = said if outbound.via == "harness_seat" else ended
        if outbound.via in SEATS or row.reach is None:
            assert answer is WAITS
            self.waiting[self.name] = delivery_id
        else:
            self.judge(answer, delivery_id, row.reach)

    @precondition(lambda self: self.queued or self.sent)
    @rule()
    def somebody_polls(self) -> None:
        self.poll()

    def poll(self) -> None:
        events = self.world.took(self.call(self.pane.poll_events, 0))
        if self.queued is None:
            assert events == [], "a poll is handed nothing twice"
            return
        delivery_id, row = self.queued
        assert events == [delivery_id]
        self.queued = None
        row.since = self.now
        self.sent[delivery_id] = row

    def event_row(self, delivery_id: str) -> Sent | None:
        row = self.sent.get(delivery_id)
        return row if row is not None and row.via in SEATS and delivery_id in self.world.sends else None

    @precondition(lambda self: self.sent or self.queued or self.fence)
    @rule(delivery_id=targets, native=st.sampled_from([None, "queued", "odd"]))
    def acknowledge(self, delivery_id, native) -> None:
        delivery_id = self.target(delivery_id)
        answer = self.call(self.pane.acknowledge_event, delivery_id, native)
        row = self.event_row(delivery_id)
        if row is None:
            assert isinstance(answer, Refused)
            return
        reach = "consumed" if row.via == "fleet_seat" and native == "queued" else "delivered"
        higher = row.reach not in ORDER or ORDER.index(reach) > ORDER.index(row.reach)
        if row.abandoned or not higher:
            assert type(answer).__name__ == "Unchanged"
        else:
            assert type(answer).__name__ == "Applied"
            self.heard(delivery_id, reach)

    @precondition(lambda self: self.sent or self.queued or self.fence)
    @rule(delivery_id=targets)
    def reply(self, delivery_id) -> None:
        delivery_id = self.target(delivery_id)
        answer = self.call(self.pane.reply_event, delivery_id, "understood")
        row = self.event_row(delivery_id)
        if row is None:
            assert answer.reason == "unknown_delivery"
        elif row.via == "head_seat" and not row.unresolved and not row.replied:
            assert answer.reason == "reply_too_late"
        elif row.abandoned or row.replied:
            assert type(answer).__name__ == "Unchanged"
        else:
            assert type(answer).__name__ == "Applied"
            row.replied = True
            self.heard(delivery_id, "responded")

    @precondition(lambda self: self.sent or self.queued or self.fence)
    @rule(delivery_id=targets)
    def cancel(self, delivery_id) -> None:
        delivery_id = self.target(delivery_id)
        answer = self.call(self.pane.cancel_delivery, delivery_id)
        row = self.sent.get(delivery_id)
        if self.queued is not None and self.queued[0] == delivery_id:
            self.sent[delivery_id], self.queued = self.queued[1], None
            self.heard(delivery_id, "expired" if self.sent[delivery_id].via == "head_seat" else "unavailable")
        elif row is None:
            assert isinstance(answer, Refused)
        elif row.reach is None:
            assert type(answer).__name__ == "Applied"
            self.heard(delivery_id, "uncertain")
        else:
            assert type(answer).__name__ == "Unchanged"

    @precondition(lambda self: self.sent or self.queued or self.fence)
    @rule(delivery_id=targets, good=st.booleans())
    def evidence(self, delivery_id, good) -> None:
        delivery_id = self.target(delivery_id)
        row = self.sent.get(delivery_id)
        text = "neither text" if row is None or not good else row.text
        shown = self.world.seen(entries=(TranscriptEntry(f"shown-{next(self.names)}", "operator", text),))
        answer = self.call(self.pane.reconcile, delivery_id, shown)
        if row is None:
            assert isinstance(answer, FencepostError)
            return
        if good and row.via == "harness_seat" and row.reach == "uncertain" and not row.abandoned:
            row.reach = "consumed"
        if row.reach is not None:
            self.judge(answer, delivery_id, row.reach)
        else:
            assert str(answer.stop) == "uncertain"

    @precondition(lambda self: any(row.via == "harness_seat" and row.unresolved for row in self.sent.values()))
    @rule()
    def the_message_shows_up_in_the_transcript(self) -> None:
        for row in self.sent.values():
            if row.via == "harness_seat" and row.unresolved and not row.provable:
                row.provable = True
                self.world.wrote(row.text)

    @precondition(lambda self: self.held is not None)
    @rule(ends=st.sampled_from(list(ENDS)))
    def the_chat_turn_ends(self, ends) -> None:
        self.world.ends, reach = ENDS[ends]
        assert self.held is not None
        delivery_id, gate = self.held
        self.held = None

        async def let_go() -> None:
            gate.set()

        self.loop.run_until_quiet(let_go)
        row = self.sent[delivery_id]
        if not row.abandoned and (row.reach is None or reach in ORDER):
            self.heard(delivery_id, reach)

    @rule(seconds=st.sampled_from([4, 6, 31, 51, 100_000]))
    def time_passes(self, seconds) -> None:
        async def jump() -> None:
            self.loop.clock.jump(seconds)

        self.loop.run_until_quiet(jump)
        self.loop.run_until_quiet(trio.testing.wait_all_tasks_blocked)
        self.now += seconds
        if self.queued is not None and self.now - self.queued[1].since >= GRACE:
            delivery_id, self.sent[delivery_id] = self.queued
            self.queued = None
            self.heard(delivery_id, "unavailable")
        for delivery_id, row in self.sent.items():
            if row.reach is not None or self.now - row.since < DEADLINES[row.via]:
                continue
            if row.via == "channel_turn":
                row.lapsed = True
                self.answer_callers(delivery_id, "stored")
            else:
                self.heard(delivery_id, "uncertain")

    # -- both directions --

    @precondition(lambda self: self.sent or self.queued or self.fence)
    @rule(delivery_id=targets)
    def settle(self, delivery_id) -> None:
        delivery_id = self.target(delivery_id)
        answer = type(self.call(self.pane.settle, delivery_id, "the operator")).__name__
        row, changes = self.sent.get(delivery_id), False
        if row is not None and row.reach == "uncertain" and not row.abandoned:
            row.abandoned = changes = True
        if self.fence == delivery_id and delivery_id not in self.acceptances:
            self.tombstones.setdefault(delivery_id, self.fenced[delivery_id])
            self.fence = None
            changes = True
        if changes:
            self.settled.add(delivery_id)
        known = row is not None or delivery_id in self.tombstones or delivery_id in self.settled
        assert answer == ("Applied" if changes else "Unchanged" if known else "Refused")

    @rule(runtime=st.booleans(), chaotic=st.booleans())
    def die(self, runtime, chaotic) -> None:
        if not runtime:
            self.loop.run_until_quiet(self.supervisor.kill, "pane:pane")
        elif chaotic:
            self.chaos.kill_at("pane.binding/received", self.chaos.trace.count("pane.binding/received") + 1, "runtime")
            assert isinstance(self.call(self.pane.binding), FencepostError)
        self.died(runtime=runtime)

    # -- inbound --

    def expected_receipt(self, delivery_id: str, text: str) -> str:
        """Section 6.1, steps 5 to 7, or `accepted`."""
        if delivery_id in self.acceptances and self.tombstones[delivery_id] == text:
            return "stored"
        if delivery_id in self.tombstones or delivery_id in self.settled or self.fence is not None:
            return "uncertain"
        return "accepted"

    @rule(delivery_id=ids, text=texts, wrong=st.sampled_from([False, False, False, True]))
    def post(self, delivery_id, text, wrong) -> None:
        worked = self.world.work[delivery_id]
        receipt = self.call(self.pane.accept, InboundPost(delivery_id, "0" * 64 if wrong else self.binding, text))
        expected = "uncertain" if wrong else self.expected_receipt(delivery_id, text)
        if expected == "accepted":
            self.acceptances.add(delivery_id)
            self.tombstones[delivery_id] = text
            assert self.world.work[delivery_id] == worked + 1 == 1
            expected = "stored"
        elif expected == "stored" and self.fence == delivery_id:
            self.fence = None
        self.judge_receipt(receipt, expected)

    def judge_receipt(self, receipt: object, expected: str) -> None:
        assert isinstance(receipt, Receipt), receipt
        assert str(receipt.stage or receipt.stop) == expected
        assert receipt.received == (expected == "stored")

    @rule(delivery_id=ids, text=texts)
    def look_up(self, delivery_id, text) -> None:
        receipt = self.call(self.pane.receipt, delivery_id, self.binding, fingerprint_of(text))
        proved = self.expected_receipt(delivery_id, text) == "stored" and self.fence in (None, delivery_id)
        if proved:
            self.fence = None
        self.judge_receipt(receipt, "stored" if proved else "uncertain")

    @precondition(lambda self: self.fence is None)
    @rule(delivery_id=ids, text=texts, point=st.sampled_from(list(POINTS)), runtime=st.booleans())
    def post_and_die(self, delivery_id, text, point, runtime) -> None:
        if self.expected_receipt(delivery_id, text) != "accepted":
            return
        self.chaos.kill_at(point, self.chaos.trace.count(point) + 1, "runtime" if runtime else "actor")
        answer = self.call(self.pane.accept, InboundPost(delivery_id, self.binding, text))
        assert isinstance(answer, FencepostError)
        assert self.chaos.unhit() == []
        if "fence" in POINTS[point]:
            self.fence = delivery_id
            self.fenced[delivery_id] = text
        if "tombstone" in POINTS[point]:
            self.tombstones[delivery_id] = text
        if "acceptance" in POINTS[point]:
            self.acceptances.add(delivery_id)
        self.died(runtime=runtime)

    @precondition(lambda self: self.tombstones)
    @rule()
    def reset(self) -> None:
        self.call(self.pane.reset_conversation)
        if self.fence in self.acceptances:
            self.fence = None
        self.acceptances.clear()


def run(examples: int, steps: int, seed: int) -> None:
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(seed)(Machine), settings=profile)


def test_10_2_and_10_3_and_10_4_and_10_5_and_10_7_random_lives(seed):
    run(100, 50, seed)


@pytest.mark.slow
def test_many_random_lives(seed):
    run(1_500, 60, seed)
