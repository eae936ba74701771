"""Two bridges at one claim, step by step: the rows of the protocol's section 11 that concern bridges.

Each bridge is a thread.  A `Gate` stops whoever comes to it until the test has arranged what should happen meanwhile.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from claim_service import SCOPE, Service

from fencepost.mailbox import ClaimedSender, Stage, Stop, claim_files
from fencepost.mailbox.claim import ABANDONED, fingerprint_of
from fencepost.mailbox.claim_record import decode_claim

PATIENCE = 30


class Gate:
    def __init__(self):
        self.reached = threading.Event()
        self.opened = threading.Event()

    def pass_through(self):
        self.reached.set()
        assert self.opened.wait(PATIENCE)

    def wait(self):
        assert self.reached.wait(PATIENCE)

    def open(self):
        self.opened.set()

    def __enter__(self):
        self.wait()

    def __exit__(self, *_error):
        self.open()


class Link:
    """One bridge's way to the service, with gates in front of a request and of its answer."""

    def __init__(self, service, **gates):
        self.service = service
        self.gates = gates

    def _pass(self, gate):
        if gate in self.gates:
            self.gates[gate].pass_through()

    def read_binding(self):
        response = self.service.read_binding()
        self._pass("binding")
        return response

    def post(self, *request):
        self._pass("post")
        response = self.service.post(*request)
        self._pass("posted")
        return response

    def read_receipt(self, *request):
        self._pass("receipt")
        response = self.service.read_receipt(*request)
        self._pass("received")
        return response

    def refresh(self):
        pass


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def bridge(tmp_path, service):
    def made(**gates):
        return ClaimedSender(tmp_path, SCOPE, Link(service, **gates))

    return made


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as threads:
        yield threads


def claim_of(sender):
    return decode_claim(sender.claim_path.read_bytes()) if sender.claim_path.exists() else None


def overtaken(bridge, pool, text):
    """Two bridges have seen no claim and read the binding; then one claims and posts, and the other tries to claim."""
    first, second, posted = Gate(), Gate(), Gate()
    one = pool.submit(bridge(binding=first, posted=posted).send, "hello")
    two = pool.submit(bridge(binding=second).send, text)
    with second:
        with first:
            pass
        posted.wait()
    loser = two.result(PATIENCE)
    posted.open()
    return one.result(PATIENCE), loser


def test_11_1_two_bridges_same_text(bridge, pool, service):
    winner, loser = overtaken(bridge, pool, "hello")
    assert (winner.stage, loser.stage) == (Stage.STORED, Stage.STORED)
    assert winner.delivery_id == loser.delivery_id, "both end as the same original"
    assert len(service.posts) == 1


def test_11_2_and_10_8_two_bridges_different_texts(bridge, pool, service):
    winner, loser = overtaken(bridge, pool, "another")
    assert winner.stage is Stage.STORED
    assert (loser.stop, loser.delivery_id) == (Stop.UNAVAILABLE, None)
    assert [text for _, text in service.posts] == ["hello"], "unsent, whatever happens to the first"


@pytest.mark.parametrize("text", ["hello", "another"])
def test_11_3_two_bridges_the_loser_meets_only_the_lock(bridge, pool, service, monkeypatch, text):
    linking = Gate()
    link = os.link

    def slow_link(*arguments, **options):
        linking.pass_through()
        link(*arguments, **options)

    monkeypatch.setattr(os, "link", slow_link)
    sender = bridge()
    one = pool.submit(sender.send, "hello")
    with linking:
        report = bridge().send(text)
        assert (report.stop, report.delivery_id, report.fingerprint) == (Stop.UNCERTAIN, None, None)
        assert service.posts == []
    assert one.result(PATIENCE).stage is Stage.STORED
    assert [text for _, text in service.posts] == ["hello"]


@pytest.mark.parametrize("text", ["hello", "another"])
@pytest.mark.parametrize("first_to_clear", ["the POST", "the GET"])
def test_11_4_late_answer_of_the_post_while_the_get_of_a_replacement_is_under_way(
    bridge, pool, service, first_to_clear, text
):
    posted, received = Gate(), Gate()
    one = pool.submit(bridge(posted=posted).send, "hello")
    posted.wait()
    two = pool.submit(bridge(received=received).send, text)
    received.wait()
    first, gate = (one, posted) if first_to_clear == "the POST" else (two, received)
    gate.open()
    first.result(PATIENCE)
    sender = bridge()
    assert claim_of(sender) is None
    newer = Gate()
    three = pool.submit(bridge(post=newer).send, "newer")
    with newer:
        posted.open()
        received.open()
        assert one.result(PATIENCE).stage is Stage.STORED
        report = two.result(PATIENCE)
        assert (report.stage, report.stop) == ((Stage.STORED, None) if text == "hello" else (None, Stop.UNAVAILABLE))
        assert claim_of(sender).text == "newer", "whoever comes second leaves the newer claim alone"
    assert three.result(PATIENCE).stage is Stage.STORED
    assert [text for _, text in service.posts] == ["hello", "newer"]


def test_11_5_original_post_still_in_the_handler_while_a_get_arrives(bridge, pool, service):
    post = Gate()
    one = pool.submit(bridge(post=post).send, "hello")
    with post:
        asked = [bridge().send(text) for text in ("hello", "another")]
    assert [report.stop for report in asked] == [Stop.UNCERTAIN] * 2
    assert {report.fingerprint for report in asked} == {fingerprint_of("hello")}
    assert one.result(PATIENCE).stage is Stage.STORED
    assert {report.delivery_id for report in asked} == {one.result().delivery_id}
    assert len(service.posts) == 1


def test_a_settlement_while_the_post_is_under_way(bridge, pool, service):
    post = Gate()
    one = pool.submit(bridge(post=post).send, "hello")
    with post:
        delivery_id = claim_of(bridge()).delivery_id
        assert bridge().settle(delivery_id, "the owner").detail == ABANDONED
        assert bridge().send("next").stage is Stage.STORED
    report = one.result(PATIENCE)
    assert (report.stop, report.delivery_id, report.detail) == (Stop.UNCERTAIN, delivery_id, ABANDONED)
    assert bridge().settle(delivery_id, "again").detail == ABANDONED


def test_a_lock_that_is_let_go_in_time_is_waited_for(bridge, pool, service, monkeypatch):
    """A stored answer is not lost because another bridge holds the lock for a moment."""
    monkeypatch.setattr(claim_files, "LOCK_WAIT_SECONDS", PATIENCE)
    met = threading.Event()
    take = claim_files.ClaimFiles._take_lock

    def told(files, folder):
        lock = take(files, folder)
        if lock is None:
            met.set()
        return lock

    posted = Gate()
    sender = bridge(posted=posted)
    one = pool.submit(sender.send, "hello")
    with posted:
        sender.lock_path.touch()
        monkeypatch.setattr(claim_files.ClaimFiles, "_take_lock", told)
    assert met.wait(PATIENCE)
    sender.lock_path.unlink()
    assert one.result(PATIENCE).stage is Stage.STORED
    assert claim_of(sender) is None


def test_one_sender_may_be_shared_by_threads(bridge, service):
    sender = bridge()
    barrier = threading.Barrier(8)

    def send(number):
        barrier.wait(PATIENCE)
        return f"text {number}", sender.send(f"text {number}")

    with ThreadPoolExecutor(8) as threads:
        reports = list(threads.map(send, range(8)))
    sent = [text for _, text in service.posts]
    assert len(set(sent)) == len(sent) >= 1
    for text, report in reports:
        assert (text in sent) == (report.fingerprint == fingerprint_of(text))
        assert report.stage is not Stage.STORED or report.delivery_id in service.accepted
