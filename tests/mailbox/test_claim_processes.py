"""Bridges as processes: they share a claim, and are killed at every step (sections 5.1 and 11)."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections import Counter

import pytest
from children import SIGKILLED
from claim_bridge import Bridge, FileService, in_folder
from claim_service import SCOPE

from fencepost.mailbox import ClaimedSender, Stage, Stop, claim_files
from fencepost.mailbox.claim import ABANDONED, fingerprint_of
from fencepost.mailbox.claim_record import decode_claim

TEXT = "first"


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(claim_files, "LOCK_WAIT_SECONDS", 0.02)


class World:
    """What a bridge left behind: its files, and what the service knows."""

    def __init__(self, folder):
        self.folder = folder
        self.service = FileService(folder / "service")
        self.sender = ClaimedSender(folder / "state", SCOPE, self.service)
        self.service.claim_path = self.sender.claim_path

    @property
    def claim(self):
        path = self.sender.claim_path
        return decode_claim(path.read_bytes()) if path.exists() else None

    @property
    def locked(self):
        return self.sender.lock_path.exists()

    def audit(self):
        """Invariants 1 and 2: one POST an id, and each under its own claim."""
        posts = self.service.posts
        assert len({delivery_id for delivery_id, _, _ in posts}) == len(posts)
        assert all(claimed for _, _, claimed in posts)


@pytest.fixture(scope="module")
def nursery():
    """Where bridges that are to die come from."""
    with Bridge() as bridges:
        yield bridges


@pytest.fixture
def killed_at(nursery):
    """What is left of a bridge that was killed just before its Nth step."""

    def left(folder, point, command, **config):
        assert nursery.ask([in_folder(folder, {"die_at": point, **config}), command]) == SIGKILLED
        return World(folder)

    return left


def trace_of(folder, command):
    with Bridge(folder, trace=True) as bridge:
        (*_, points), code = bridge.run(command)
    assert code == 0
    return points


def place(points, name, nth=0):
    return [index for index, point in enumerate(points) if point == name][nth]


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """Every step of one send that goes well, in a state folder that is not there yet."""
    return trace_of(tmp_path_factory.mktemp("trace"), {"send": TEXT})


# -- section 5.1 -------------------------------------------------------------------------------------------------


def test_b1_killed_before_the_claim_is_created(tmp_path, points, killed_at):
    world = killed_at(tmp_path, place(points, "binding") + 1, {"send": TEXT})
    assert (world.claim, world.locked, world.service.posts) == (None, False, [])
    assert world.sender.send(TEXT).stage is Stage.STORED, "a new send starts clean"
    assert len(world.service.posts) == 1


def test_b2_killed_after_the_claim_and_before_the_post(tmp_path, points, killed_at):
    world = killed_at(tmp_path, place(points, "post"), {"send": TEXT})
    claim = world.claim
    assert (claim.text, world.locked, world.service.posts) == (TEXT, False, [])
    for text in (TEXT, "second", TEXT):
        report = world.sender.send(text)
        assert (report.stop, report.delivery_id) == (Stop.UNCERTAIN, claim.delivery_id)
    assert world.service.posts == []
    assert world.sender.settle(claim.delivery_id, "the owner").detail == ABANDONED
    assert world.sender.send("second").stage is Stage.STORED
    assert [text for _, text, _ in world.service.posts] == ["second"]


@pytest.mark.parametrize("deaf", [False, True])
def test_b3_killed_while_the_post_is_under_way(tmp_path, points, killed_at, deaf):
    world = killed_at(tmp_path, place(points, "posted"), {"send": TEXT}, deaf=deaf)
    claim = world.claim
    assert len(world.service.posts) == 1
    report = world.sender.send(TEXT)
    assert report.delivery_id == claim.delivery_id
    assert (report.stage, report.stop) == ((None, Stop.UNCERTAIN) if deaf else (Stage.STORED, None))
    assert len(world.service.posts) == 1


@pytest.mark.parametrize(("text", "stage"), [(TEXT, Stage.STORED), ("second", None)])
def test_b4_killed_with_the_answer_in_hand(tmp_path, points, killed_at, text, stage):
    world = killed_at(tmp_path, place(points, "posted") + 1, {"send": TEXT})
    assert world.claim.text == TEXT
    report = world.sender.send(text)
    assert (report.stage, report.stop) == (stage, None if stage else Stop.UNAVAILABLE)
    assert (world.claim, len(world.service.posts)) == (None, 1)


INSIDE_THE_LOCK = {
    "claiming, nothing written": ("open .part", 0, 0, False),
    "claiming, not yet linked": ("link .part", 0, 0, False),
    "claiming, linked": ("link .part", 0, 1, True),
    "claiming, about to let go": ("unlink .lock", 0, 0, True),
    "clearing, nothing done": ("unlink .json", 0, 0, True),
    "clearing, removed": ("unlink .json", 0, 1, False),
    "clearing, about to let go": ("unlink .lock", 1, 0, False),
}


@pytest.mark.parametrize(("name", "nth", "after", "held"), INSIDE_THE_LOCK.values(), ids=INSIDE_THE_LOCK)
def test_b5_killed_inside_the_lock(tmp_path, points, killed_at, name, nth, after, held):
    world = killed_at(tmp_path, place(points, name, nth) + after, {"send": TEXT})
    posts = world.service.posts
    assert (world.locked, world.claim is not None) == (True, held)
    for text in (TEXT, "second"):
        report = world.sender.send(text)
        assert report.stop is Stop.UNCERTAIN
        assert (report.delivery_id is not None) == held
    if held:
        report = world.sender.settle(world.claim.delivery_id, "the owner")
        assert report.detail != ABANDONED
    assert (world.locked, world.claim is not None) == (True, held)
    assert world.service.posts == posts, "every mutation for this pane is blocked"


# -- every step ----------------------------------------------------------------------------------------------------


def check_after_death(world):
    """Whatever step a bridge died at, the next one tells the truth and sends nothing twice."""
    world.audit()
    claim, locked, posts = world.claim, world.locked, world.service.posts
    report = world.sender.send("second")
    if locked:
        assert report.stop is Stop.UNCERTAIN
        assert world.service.posts == posts
    elif claim is None:
        assert report.stage is Stage.STORED
        assert [text for _, text, _ in world.service.posts] == [text for _, text, _ in posts] + ["second"]
    elif posts:
        assert report.stop is Stop.UNAVAILABLE
        assert (world.claim, world.service.posts) == (None, posts)
    else:
        assert (report.stop, report.delivery_id) == (Stop.UNCERTAIN, claim.delivery_id)
        assert world.service.posts == []
    world.audit()


def check_after_settlement(world, delivery_id):
    """Whatever step a settlement died at, it either was recorded or was not."""
    posts, locked, claim = world.service.posts, world.locked, world.claim
    recorded = world.sender.claim_path.with_suffix(f".{delivery_id}.abandoned").exists()
    assert claim is not None or recorded, "nothing goes without a record"
    report = world.sender.send("second")
    if locked:
        assert report.stop is Stop.UNCERTAIN
        assert world.service.posts == posts
    elif recorded:
        assert report.stage is Stage.STORED
        assert world.sender.settle(delivery_id, "again").detail == ABANDONED
    else:
        assert (report.stop, report.delivery_id) == (Stop.UNAVAILABLE, None)


def test_a_bridge_may_be_killed_at_any_step(tmp_path, points, killed_at):
    assert len(points) > 20
    for point in range(len(points)):
        check_after_death(killed_at(tmp_path / str(point), point, {"send": TEXT}))


def test_a_bridge_that_asks_may_be_killed_at_any_step(tmp_path, points, killed_at):
    unanswered = place(points, "posted")
    killed_at(tmp_path, unanswered, {"send": TEXT})
    asking = trace_of(tmp_path, {"send": TEXT})
    assert len(asking) > 5
    for point in range(len(asking)):
        killed_at(tmp_path / str(point), unanswered, {"send": TEXT})
        check_after_death(killed_at(tmp_path / str(point), point, {"send": TEXT}))


def test_a_settlement_may_be_killed_at_any_step(tmp_path, points, killed_at):
    unanswered = place(points, "posted")
    delivery_id = killed_at(tmp_path, unanswered, {"send": TEXT}).claim.delivery_id
    settling = trace_of(tmp_path, {"settle": delivery_id})
    assert len(settling) > 10
    for point in range(len(settling)):
        delivery_id = killed_at(tmp_path / str(point), unanswered, {"send": TEXT}).claim.delivery_id
        check_after_settlement(killed_at(tmp_path / str(point), point, {"settle": delivery_id}), delivery_id)


# -- section 11 --------------------------------------------------------------------------------------------------


def test_11_1_two_bridges_same_text_one_post_and_the_same_original(tmp_path):
    with Bridge(tmp_path, hold=True) as first, Bridge(tmp_path) as second, Bridge(tmp_path) as third:
        delivery_id = first.ask({"send": TEXT})["posted"]
        for loser in (second, third):
            report = loser.ask({"send": TEXT})
            assert (report["stop"], report["delivery_id"]) == ("uncertain", delivery_id)
        first.tell()
        report = first.hear()
    assert (report["stage"], report["delivery_id"]) == ("stored", delivery_id)
    assert len(World(tmp_path).service.posts) == 1


def test_11_2_two_bridges_different_texts_one_post_and_the_other_unsent(tmp_path):
    with Bridge(tmp_path, hold=True) as first, Bridge(tmp_path) as second:
        delivery_id = first.ask({"send": TEXT})["posted"]
        report = second.ask({"send": "second"})
        assert (report["stop"], report["delivery_id"]) == ("uncertain", delivery_id)
        assert report["fingerprint"] == fingerprint_of(TEXT)
        first.tell()
        assert first.hear()["stage"] == "stored"
    assert [text for _, text, _ in World(tmp_path).service.posts] == [TEXT]


def test_a_bridge_killed_in_its_post_is_resolved_by_the_others(tmp_path):
    with Bridge(tmp_path, hold=True, lose=["post"]) as first, Bridge(tmp_path) as second, Bridge(tmp_path) as third:
        delivery_id = first.ask({"send": TEXT})["posted"]
        first.tell()
        assert first.hear()["stop"] == "uncertain"
        first.kill()
        report = second.ask({"send": "second"})
        assert (report["stop"], report["delivery_id"]) == ("unavailable", None)
        report = third.ask({"send": "third"})
        assert report["stage"] == "stored"
    assert [text for _, text, _ in World(tmp_path).service.posts] == [TEXT, "third"]
    assert delivery_id == World(tmp_path).service.posts[0][0]


def test_10_1_all_start_at_once_one_posts(tmp_path):
    """Whoever claims holds its POST until everybody else has an answer."""
    count = 4
    bridges = [Bridge(tmp_path, hold=True) for _ in range(count)]
    try:
        for number, bridge in enumerate(bridges):
            bridge.tell({"send": f"text {number}"})
        said = [bridge.hear() for bridge in bridges]
        [winner] = [number for number, line in enumerate(said) if "posted" in line]
        losers = [line for line in said if "posted" not in line]
        assert {line["stop"] for line in losers} == {"uncertain"}
        assert {line["delivery_id"] for line in losers} <= {said[winner]["posted"], None}
        bridges[winner].tell()
        assert bridges[winner].hear()["stage"] == "stored"
    finally:
        for bridge in bridges:
            bridge.kill()
    assert [text for _, text, _ in World(tmp_path).service.posts] == [f"text {winner}"]


def check_honesty(reports, service):
    """Each text was sent once or not at all, just as its report says; no two texts are the same."""
    posted = Counter(text for _, text, _ in service.posts)
    ids = {text: delivery_id for delivery_id, text, _ in service.posts}
    assert set(posted.values()) <= {1}
    for text, report in reports:
        if report is None:  # its bridge died, and said nothing of it
            continue
        mine = report["fingerprint"] == fingerprint_of(text)
        assert (text in posted) == mine
        if mine:
            assert report["delivery_id"] == ids[text]
        else:
            assert report["stage"] is None


def storm(folder, rounds, seed, **config):
    """In each round four bridges send at the same time, some of them deaf to answers; returns the texts' reports."""
    chance = random.Random(seed)
    reports = []
    names = (f"text {number}" for number in itertools.count())
    for _ in range(rounds):
        bridges = [Bridge(folder, lose=["post"] if chance.random() < 0.4 else [], **config) for _ in range(4)]
        try:
            for _ in range(5):
                texts = [next(names) for _ in bridges]
                for bridge, text in zip(bridges, texts, strict=True):
                    with contextlib.suppress(BrokenPipeError):
                        bridge.tell({"send": text})
                reports += zip(texts, [bridge.hear() for bridge in bridges], strict=True)
        finally:
            for bridge in bridges:
                bridge.kill()
    world = World(folder)
    world.audit()
    check_honesty(reports, world.service)
    return reports


def test_many_bridges_at_once_send_each_text_once_or_not_at_all(tmp_path, seed):
    reports = storm(tmp_path, 1, seed)
    assert all(reports)
    world = World(tmp_path)
    assert world.service.posts, "some text was sent, whoever was told of it"
    assert not world.locked


@pytest.mark.slow
def test_bridges_in_a_storm_of_which_some_die(tmp_path, seed, sweep_seconds):
    deadline = time.monotonic() + min(sweep_seconds, 60)
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        storm(folder, 3, seed + number)
        reports = storm(folder / "deadly", 1, seed + number, die_at=random.Random(seed + number).randrange(80))
        assert reports
        if time.monotonic() > deadline:
            break
