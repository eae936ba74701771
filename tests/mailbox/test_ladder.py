"""An intent is a delivery too: its words have their place on the ladder, and no other words have one."""

from __future__ import annotations

import pytest

from fencepost.mailbox.errors import FencepostError, UnmappedMechanism
from fencepost.mailbox.ladder import Reach, Stage, Stop, report


@pytest.mark.parametrize(
    ("outcome", "native", "reach"),
    [
        ("detected", None, Reach()),
        ("reconciling", None, Reach()),
        ("materialized", None, Reach(Stage.STORED)),
        ("delivered", None, Reach(Stage.DELIVERED)),
        ("delivered", "batch_completed", Reach(Stage.CONSUMED)),
        ("delivered", "handshake_accepted", Reach(Stage.CONSUMED)),
        ("acknowledged", None, Reach(Stage.RESPONDED)),
        ("exhausted", None, Reach(stop=Stop.UNCERTAIN)),
    ],
)
def test_an_intents_words_have_their_stage(outcome, native, reach):
    assert report("intent", outcome, native) == reach


@pytest.mark.parametrize(
    ("mechanism", "outcome", "native"),
    [
        ("intent", "superseded", None),
        ("intent", "recovery_required", None),
        ("intent", "", None),
        ("intent", "delivered", "shown"),
        ("intent", "materialized", "batch_completed"),
        ("pigeon", "delivered", None),
        ("", "", None),
    ],
)
def test_words_without_a_place_are_refused_by_name(mechanism, outcome, native):
    with pytest.raises(UnmappedMechanism) as refused:
        report(mechanism, outcome, native)
    assert refused.value.mechanism == mechanism
    assert refused.value.outcome is not None
    assert refused.value.outcome.startswith(outcome)
    assert isinstance(refused.value, FencepostError)


def test_stages_and_stops_are_the_protocols():
    assert [stage.value for stage in Stage] == ["stored", "delivered", "consumed", "responded"]
    assert [stop.value for stop in Stop] == ["unavailable", "uncertain", "expired", "rejected"]


def test_nothing_reached_is_neither_a_stage_nor_a_stop():
    assert (Reach().stage, Reach().stop) == (None, None)


def test_stages_compare_by_how_far_they_are():
    assert list(Stage) == sorted(Stage)
    assert Stage.STORED < Stage.DELIVERED < Stage.CONSUMED < Stage.RESPONDED
    assert Stage.RESPONDED >= Stage.CONSUMED > Stage.STORED
    assert max(Stage.CONSUMED, Stage.DELIVERED) is Stage.CONSUMED
