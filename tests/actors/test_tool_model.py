"""The tool core under its model: every interleaving of a batch of three, and the mistakes it must notice."""

from __future__ import annotations

import pytest
from attrs import evolve
from model_check import tool_world
from model_check.tool_world import Broken, explore

from fencepost.actors.tool_state import Orphan
from fencepost.mailbox.records import BatchMode, CheckpointRecord, MemoRecord


def test_every_interleaving_of_a_sequential_batch_of_three():
    found = explore(BatchMode.SEQUENTIAL)
    assert found.ends > 10


@pytest.mark.slow
def test_every_interleaving_of_a_parallel_batch_of_three():
    found = explore(BatchMode.PARALLEL)
    assert found.states > 1_000


@pytest.mark.parametrize(
    ("name", "wrong", "number"),
    [
        ("judge_orphan", lambda *_, **__: Orphan.REPLAY, "2"),
        ("settle", lambda right: lambda *a, **k: evolve(right(*a, **k), deletes=()), "left behind"),
        (
            "clear_and_replay",
            lambda right: lambda *a, **k: evolve(right(*a, **k), puts=()),
            None,
        ),
        ("finalize", lambda right: lambda *a, **k: evolve(right(*a, **k), deletes=()), "14|3"),
        ("place", lambda right: lambda *a, **k: (p := right(*a, **k)) and evolve(p, deletes=()), "left behind"),
        ("admit", lambda right: lambda *a, **k: evolve(right(*a, **k), guards=()), "15"),
        ("clear_and_replay", lambda right: lambda *a, **k: evolve(right(*a, **k), guards=()), "15"),
    ],
    ids=[
        "replays everything",
        "keeps memos",
        "keeps the row",
        "keeps everything",
        "keeps outcomes",
        "admits behind the retirement",
        "replays behind the retirement",
    ],
)
def test_a_deliberate_mistake_is_noticed(monkeypatch, name, wrong, number):
    right = getattr(tool_world, name)
    monkeypatch.setattr(tool_world, name, wrong if name == "judge_orphan" else wrong(right))
    if number is None:
        explore(BatchMode.SEQUENTIAL)  # a revision is not in the model; the store's own tests have it
        return
    with pytest.raises(Broken, match=number):
        explore(BatchMode.SEQUENTIAL)


def test_a_late_write_is_refused_by_the_law_and_by_nothing_else(monkeypatch):
    laws = tuple(law for law in tool_world.FOREIGN_KEYS if law.child not in {MemoRecord, CheckpointRecord})
    monkeypatch.setattr(tool_world, "FOREIGN_KEYS", laws)
    with pytest.raises(Broken, match="12"):
        explore(BatchMode.SEQUENTIAL)
