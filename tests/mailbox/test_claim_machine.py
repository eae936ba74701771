"""Any history of two bridges, a lossy network and a small service, against a model of what the claim must be.

Requests are lost, delivered late, twice or out of order; answers are lost, denied, redirected, those of an older
service, or damaged; while a request is out, the other bridge acts; a bridge dies with a request under way; the claim
is damaged, a lock is left behind, the owner settles.  After every step the client's invariants of section 10 hold:
1, 6, 7, 8, 9 and 12.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from claim_service import OTHER_BINDING, SCOPE, binding_body, body, receipt_body
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fencepost.mailbox import ClaimedSender, Response, Stage, Stop, claim_files
from fencepost.mailbox.claim import ABANDONED, fingerprint_of
from fencepost.mailbox.claim_record import decode_claim

TEXTS = st.sampled_from(["one", " one\r\n", "two", "three", "a\ud800\0"])
DAMAGE = st.sampled_from([b"", b"{}", b"null", b'{"version": 1}'])


class Died(BaseException):
    """The bridge's process ends here; nothing of it runs any more."""


@dataclass
class Plan:
    """What becomes of one bridge's requests during one send, and what the other bridge does meanwhile."""

    binding: str  # known, none, denied, lost, refused
    arrives: str  # at once, late, twice, never
    refuses: bool  # the service turns a POST down that it could take
    answer: str  # the truth, lost, denied, redirected, legacy, another's, garbage, refused, dead
    meanwhile: tuple = ()  # of (bridge, text, Plan)
    posted: str | None = None
    asked: str | None = None
    said: str | None = None  # the word of an exact receipt that the bridge got
    requests: list = field(default_factory=list)


def plans(meanwhile):
    return st.builds(
        Plan,
        binding=st.sampled_from(["known"] * 6 + ["none", "denied", "lost", "refused"]),
        arrives=st.sampled_from(["at once", "at once", "late", "twice", "never"]),
        refuses=st.sampled_from([False, False, False, True]),
        answer=st.sampled_from(
            ["the truth"] * 6 + ["lost", "denied", "redirected", "legacy", "another's", "garbage", "refused", "dead"]
        ),
        meanwhile=meanwhile,
    )


BRIDGES = st.sampled_from([0, 1])
ALONE = plans(st.just(()))
PLANS = plans(st.lists(st.tuples(BRIDGES, TEXTS, ALONE), max_size=2).map(tuple))


class Claims(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.bridges = [self.bridge(), self.bridge()]
        # The service.
        self.accepted = {}  # id -> (binding, fingerprint)
        self.refused = set()
        self.under_way = []  # requests the network still has
        self.starts = Counter()  # of model work
        # The model of the client.
        self.claim = None  # id
        self.claims = {}  # id -> (binding, fingerprint), every one there ever was
        self.damaged = False
        self.locked = False
        self.abandoned = set()
        self.posts = Counter()
        self.reported = {}  # id -> what was last said of it
        self.plans = []

    def teardown(self):
        shutil.rmtree(self.folder)

    def bridge(self):
        return ClaimedSender(self.folder, SCOPE, self)

    @property
    def path(self):
        return self.bridges[0].claim_path

    # -- the network and the service: the transport of both bridges --------------------------------------------------

    def arrive(self, delivery_id, binding, text, *, refuses=False):
        """A POST comes to the service, which takes each id once, and one it refused never."""
        if delivery_id in self.refused or (refuses and delivery_id not in self.accepted):
            self.refused.add(delivery_id)
            return "unavailable"
        if delivery_id not in self.accepted:
            self.accepted[delivery_id] = (binding, fingerprint_of(text))
            self.starts[delivery_id] += 1
        return "stored"

    def answered(self, plan, word, delivery_id, binding, fingerprint):
        """What the network makes of the answer; it notes in the plan what the bridge learnt for sure."""
        exact = receipt_body(word, delivery_id, binding, fingerprint)
        match plan.answer:
            case "lost":
                raise TimeoutError
            case "refused":
                raise ConnectionRefusedError
            case "dead":
                raise Died
            case "denied":
                return Response(403, exact)
            case "redirected":
                return Response(307, exact)
            case "legacy":
                return Response(200, body(received=True))
            case "another's":
                return Response(200, receipt_body(word, delivery_id, OTHER_BINDING, fingerprint))
            case "garbage":
                return Response(200, exact[:-2])
            case _:
                plan.said = word
                return Response(200, exact)

    def read_binding(self):
        plan = self.plans[-1]
        plan.requests.append("binding")
        match plan.binding:
            case "none":
                return Response(404, b"")
            case "denied":
                return Response(403, b"")
            case "lost":
                raise TimeoutError
            case "refused":
                raise ConnectionRefusedError
            case _:
                return Response(200, binding_body())

    def post(self, delivery_id, binding, text):
        plan = self.plans[-1]
        plan.requests.append("post")
        plan.posted = delivery_id
        self.posts[delivery_id] += 1
        assert self.claim is None, "no original was unresolved when this one was claimed"
        self.claim = delivery_id
        self.claims[delivery_id] = (binding, fingerprint_of(text))
        found = decode_claim(self.path.read_bytes())
        assert (found.delivery_id, found.binding, found.text) == (delivery_id, binding, text), "claimed before it left"
        request = (delivery_id, binding, text)
        word = "uncertain"
        if plan.answer == "refused" or plan.arrives == "never":
            pass
        elif plan.arrives == "late":
            self.under_way.append(request)
        else:
            word = self.arrive(*request, refuses=plan.refuses)
            if plan.arrives == "twice":
                self.under_way.append(request)
        self.interlude(plan)
        return self.answered(plan, word, delivery_id, binding, fingerprint_of(text))

    def read_receipt(self, delivery_id, binding, fingerprint):
        plan = self.plans[-1]
        plan.requests.append("receipt")
        plan.asked = delivery_id
        if len(plan.requests) == 1:
            self.interlude(plan)
        word = "stored" if self.accepted.get(delivery_id) == (binding, fingerprint) else "uncertain"
        return self.answered(plan, word, delivery_id, binding, fingerprint)

    def refresh(self):
        self.plans[-1].requests.append("refresh")

    def interlude(self, plan):
        for bridge, text, inner in plan.meanwhile:
            self.send(bridge, text, inner)

    # -- what a send must come to ------------------------------------------------------------------------------------

    def send(self, bridge, text, plan):
        # A plan is drawn once and may be run again while a failure is made smaller.
        plan = Plan(plan.binding, plan.arrives, plan.refuses, plan.answer, plan.meanwhile)
        held, damaged, locked = self.claim, self.damaged, self.locked
        self.plans.append(plan)
        try:
            report = self.bridges[bridge].send(text)
        except Died:
            return  # the claim stays; a new process takes over with the next step
        finally:
            self.plans.pop()
        reads = [request for request in plan.requests if request != "refresh"]
        if damaged:
            assert reads == [], "invariant 12: nothing is sent and nothing read"
            self.says(report, Stop.UNCERTAIN, None)
        elif held is not None:
            assert set(reads) == {"receipt"}, "invariants 6 and 8: a text under another's claim is not sent"
            assert plan.asked == held
            self.after_receipt(report, plan, held, fingerprint_of(text))
        elif plan.posted is None:
            assert set(reads) == {"binding"}
            expected = {"none": Stop.UNAVAILABLE, "denied": Stop.REJECTED, "known": Stop.UNCERTAIN}
            assert plan.binding != "known" or locked
            self.says(report, expected.get(plan.binding, Stop.UNAVAILABLE), None)
        else:
            assert reads == ["binding", "post"], "a POST is never repeated"
            self.after_post(report, plan)

    def after_post(self, report, plan):
        delivery_id = plan.posted
        if delivery_id in self.abandoned:
            self.says(report, Stop.UNCERTAIN, delivery_id, ABANDONED)
        elif plan.said in {"stored", "unavailable"} and not self.locked:
            self.says(report, Stage.STORED if plan.said == "stored" else Stop.UNAVAILABLE, delivery_id)
            self.resolved(delivery_id)
        else:
            self.says(report, Stop.UNCERTAIN, delivery_id)

    def after_receipt(self, report, plan, held, fingerprint):
        if plan.said == "stored" and not self.locked:
            same = fingerprint == self.claims[held][1]
            self.says(report, Stage.STORED if same else Stop.UNAVAILABLE, held if same else None)
            self.resolved(held)
        else:
            self.says(report, Stop.UNCERTAIN, held)

    def resolved(self, delivery_id):
        if self.claim == delivery_id:
            self.claim = None

    def says(self, report, reach, delivery_id, detail=None):
        binding, fingerprint = self.claims.get(delivery_id, (None, None))
        found = (report.stage or report.stop, report.delivery_id, report.binding, report.fingerprint)
        assert found == (reach, delivery_id, binding, fingerprint)
        assert (report.stage is None) != (report.stop is None)
        assert detail is None or report.detail == detail
        if reach is Stage.STORED:
            assert self.accepted[delivery_id] == (binding, fingerprint), "backed by an acceptance"
        if delivery_id is not None:
            self.reported.setdefault(delivery_id, []).append(reach)

    # -- the rules -----------------------------------------------------------------------------------------------------

    @rule(bridge=BRIDGES, text=TEXTS, plan=PLANS)
    def a_bridge_sends(self, bridge, text, plan):
        self.send(bridge, text, plan)

    @rule(bridge=BRIDGES)
    def a_bridge_is_replaced(self, bridge):
        self.bridges[bridge] = self.bridge()

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def a_request_arrives_at_last(self, data):
        request = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1), label="which"))
        self.arrive(*request)

    @precondition(lambda self: self.under_way)
    @rule()
    def requests_get_lost(self):
        self.under_way.clear()

    @precondition(lambda self: self.claim is not None and not self.damaged)
    @rule(bridge=BRIDGES)
    def the_owner_settles(self, bridge):
        delivery_id = self.claim
        report = self.bridges[bridge].settle(delivery_id, "the owner")
        if self.locked:
            assert report.stop is Stop.UNCERTAIN
            assert report.detail != ABANDONED
            return
        self.abandoned.add(delivery_id)
        self.says(report, Stop.UNCERTAIN, delivery_id, ABANDONED)
        self.claim = None

    @precondition(lambda self: self.abandoned)
    @rule(bridge=BRIDGES, data=st.data())
    def an_abandoned_one_is_asked_about(self, bridge, data):
        delivery_id = data.draw(st.sampled_from(sorted(self.abandoned)))
        if not (self.locked or self.damaged):
            report = self.bridges[bridge].settle(delivery_id, "again")
            assert (report.stop, report.delivery_id, report.detail) == (Stop.UNCERTAIN, delivery_id, ABANDONED)

    @precondition(lambda self: not self.locked)
    @rule()
    def a_lock_is_left_behind(self):
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.bridges[0].lock_path.touch()
        self.locked = True

    @precondition(lambda self: self.locked)
    @rule()
    def the_owner_removes_the_lock(self):
        self.bridges[0].lock_path.unlink()
        self.locked = False

    @precondition(lambda self: self.claim is not None and not self.damaged)
    @rule(damage=DAMAGE)
    def the_claim_is_damaged(self, damage):
        self.kept = self.path.read_bytes()
        self.path.write_bytes(damage)
        self.damaged = True

    @precondition(lambda self: self.damaged)
    @rule()
    def the_damage_is_undone(self):
        self.path.write_bytes(self.kept)
        self.damaged = False

    # -- the invariants ------------------------------------------------------------------------------------------------

    @invariant()
    def one_claim_and_it_is_the_models(self):
        claims = list(self.path.parent.glob("*.json"))
        assert len(claims) <= 1
        if not self.damaged:
            found = decode_claim(self.path.read_bytes()) if claims else None
            assert (found and found.delivery_id) == self.claim

    @invariant()
    def one_post_an_id(self):
        assert set(self.posts.values()) <= {1}

    @invariant()
    def model_work_starts_at_most_once(self):
        assert set(self.starts.values()) <= {1}

    @invariant()
    def uncertain_becomes_nothing_but_stored_without_its_own_answer(self):
        for delivery_id, said in self.reported.items():
            if Stop.UNAVAILABLE in said:
                assert delivery_id in self.refused, "only the service's exact word for it"
            if delivery_id in self.abandoned:
                assert said[-1] is Stop.UNCERTAIN

    @invariant()
    def a_lock_is_there_only_if_one_was_left(self):
        assert self.bridges[0].lock_path.exists() == self.locked


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(claim_files, "LOCK_WAIT_SECONDS", 0.0)


HISTORIES = settings(stateful_step_count=30, phases=set(Phase) - {Phase.explain})


def test_10_1_and_10_6_and_10_7_and_10_8_and_10_9_and_10_12_any_history_of_two_bridges():
    run_state_machine_as_test(Claims, settings=settings(HISTORIES, max_examples=40))


@pytest.mark.slow
def test_many_histories_of_two_bridges(sweep_seconds):
    deadline = time.monotonic() + min(sweep_seconds, 60)
    while True:
        run_state_machine_as_test(Claims, settings=settings(HISTORIES, max_examples=100, database=None))
        if time.monotonic() > deadline:
            break
