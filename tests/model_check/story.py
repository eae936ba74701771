"""A counterexample in numbered sentences, with the rows' codes after each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from model_check.search import Counterexample
from model_check.world import State, World

__all__ = ["told"]


def told(world: World, counterexample: Counterexample) -> list[str]:
    """The lines of the story; the last one says what is broken."""
    return list(_lines(world, counterexample))


def _lines(world: World, counterexample: Counterexample) -> Iterator[str]:
    number = 0
    for before, after in pairwise(counterexample.path):
        number += 1
        yield f"{number:3}. {_sentence(world, before, after)}"
        yield f"       [{world.described(after)}]"
    if counterexample.last is not None:
        yield f"{number + 1:3}. {counterexample.last}"
    yield f"  => {counterexample.broken}"


def _sentence(world: World, before: State, after: State) -> str:
    """What happened between the two: the least faulty step that leads from one to the other."""
    found = [step for step in world.steps(before) if step.state == after and step.broken is None]
    return min(found, key=lambda step: step.faults).text
