"""The delivery core under its model: two bridges and a lossy wire, and the mistakes it must notice."""

from __future__ import annotations

import pytest
from model_check import delivery_world
from model_check.delivery_world import WORLDS, Broken, World, explore

from fencepost.actors.inbound_state import Accept, Answered, stored
from fencepost.mailbox.claim import Finding, Judged

QUICK = World((("same",), ("same",)), doubled_max=0)


def test_10_1_to_10_9_every_interleaving_of_two_bridges_with_the_same_text():
    found = explore(QUICK)
    assert found.states > 5_000
    assert found.ends > 100


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_10_1_to_10_10_and_10_12_every_interleaving_of_bridges_a_wire_that_doubles_and_damage(world):
    assert explore(world).ends > 100


def accept_whatever_has_no_acceptance(right):
    def judge_post(pane_id, post, traces):
        verdict = right(pane_id, post, traces)
        if traces.acceptance is None and isinstance(verdict, Answered):
            receipt = verdict.receipt
            asked = delivery_world.Asked(
                delivery_id=receipt.delivery_id,
                pane_id=pane_id,
                binding=receipt.binding,
                fingerprint=receipt.fingerprint,
            )
            return Accept(asked, post.text)
        return verdict

    return judge_post


def a_tombstone_is_good_enough(right):
    def judge_lookup(asked, traces):
        return Answered(stored(asked)) if traces.tombstone is not None else right(asked, traces)

    return judge_lookup


def silence_means_not_sent(right):
    def judge_post(claim, outcome):
        judged = right(claim, outcome)
        return Judged(Finding.POST_UNAVAILABLE) if judged.finding is Finding.POST_BROKEN else judged

    return judge_post


def no_trace_means_not_sent(right):
    def judge_receipt(claim, fingerprint, outcome):
        judged = right(claim, fingerprint, outcome)
        return Judged(Finding.POST_UNAVAILABLE) if judged.finding is Finding.RECEIPT_OPEN else judged

    return judge_receipt


def every_text_is_the_original(right):
    return lambda claim, _fingerprint, outcome: right(claim, claim.fingerprint, outcome)


def the_same_text_is_another(right):
    return lambda claim, _fingerprint, outcome: right(claim, "0" * 64, outcome)


def a_question_sends(right):
    def begin(state, number, bridge, text):
        for name, after in right(state, number, bridge, text):
            asks = state.claim is not None
            yield name, after._replace(posts=delivery_world._raised(after.posts, 0)) if asks else after

    return begin


def recovery_runs_it_again(right):
    def restarted(service):
        after = right(service)
        return after._replace(busy=service.busy and (service.busy[0], "dispatch"))

    return restarted


def acceptance_before_its_tombstone(_right):
    return {**delivery_world._STEPS, "fence": delivery_world._accept}


@pytest.mark.parametrize(
    ("name", "wrong", "law"),
    [
        ("judge_accept", accept_whatever_has_no_acceptance, "2|3"),
        ("judge_lookup", a_tombstone_is_good_enough, "5"),
        ("judge_post", silence_means_not_sent, "7"),
        ("judge_receipt", no_trace_means_not_sent, "7"),
        ("judge_receipt", every_text_is_the_original, "8"),
        ("_begin", a_question_sends, "6"),
        ("restarted", recovery_runs_it_again, "3|5"),
        ("_STEPS", acceptance_before_its_tombstone, "4"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_deliberate_mistake_is_noticed(monkeypatch, name, wrong, law):
    monkeypatch.setattr(delivery_world, name, wrong(getattr(delivery_world, name)))
    with pytest.raises(Broken, match=law):
        explore(World((("same",), ("other",))))


def test_10_9_the_same_text_told_as_another_is_noticed(monkeypatch):
    monkeypatch.setattr(delivery_world, "judge_receipt", the_same_text_is_another(delivery_world.judge_receipt))
    with pytest.raises(Broken, match="9"):
        explore(QUICK)
