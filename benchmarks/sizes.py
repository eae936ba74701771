"""How much of everything one run measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen


@frozen(kw_only=True)
class Sizes:
    """How much of everything one run measures."""

    rounds: int = 7
    raw_commits: int = 200
    lives_one: int = 20
    """Lives of the single pane in each round."""
    lives_many: int = 4
    lives_most: int = 2
    boundaries: int = 200
    """Tool calls in each round."""
    asks: int = 2_000
    stored_panes: int = 10_000
    unresolved: int = 1_000
    memory_panes: int = 10_000
    batches: Mapping[int, int] = {1: 50, 8: 20, 64: 8, 1_000: 2}
    """How often a batch of so many calls is run in each round."""
    unresolved_calls: tuple[int, ...] = (1, 100, 1_000)
    unresolved_panes: int = 1_000
    checkpoints: int = 200
    hook_processes: int = 20
    """Of the one pane in each round; of each of many, the next."""
    hook_processes_many: int = 2
    hook_questions: int = 300
    hook_questions_many: int = 20
    flooded_calls: int = 100
    """Questions over a new connection each, while connections are what the flood is made of."""


QUICK: Final = Sizes(
    rounds=1,
    raw_commits=40,
    lives_one=3,
    lives_many=1,
    lives_most=1,
    boundaries=40,
    asks=200,
    stored_panes=1_000,
    unresolved=100,
    memory_panes=500,
    batches={1: 5, 8: 2, 64: 1, 1_000: 1},
    unresolved_panes=100,
    checkpoints=20,
    hook_processes=3,
    hook_processes_many=1,
    hook_questions=20,
    hook_questions_many=2,
    flooded_calls=5,
)
