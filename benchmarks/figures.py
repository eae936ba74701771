"""One run of the bench: where its stores are, its rounds, and the report that it prints and keeps."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import click
from attrs import field, frozen
from lives import new_id
from sizes import Sizes

SPREAD_MAX: Final = 1.5


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the value that `share` of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@frozen
class Aim:
    """Where a figure should be, and where it was when that was said."""

    bound: float
    reference: float
    unit: str
    at_most: bool = False

    def __str__(self) -> str:
        bound = f"{'at most' if self.at_most else 'at least'} {_digits(self.bound)} {self.unit}"
        return f"aim: {bound}, {_digits(self.reference)} {self.unit} when it was set"

    def met_by(self, measured: float) -> bool:
        """Whether `measured` is good enough."""
        return measured <= self.bound if self.at_most else measured >= self.bound


class Report:
    """Prints figures as they come and keeps them for the file."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    def heading(self, text: str) -> None:
        click.echo(f"\n{text}")

    def line(self, name: str, value: str, note: str = "") -> None:
        click.echo(f"  {name:<44} {value:>14}  {note}".rstrip())

    def keep(self, **figures: float) -> None:
        self.figures.update({name: round(value, 6) for name, value in figures.items()})

    def times(self, name: str, key: str, samples: Sequence[float], ratio: float | None = None) -> None:
        """A latency in microseconds, as median and 99th percentile, and over its floor."""
        p50, p99 = percentile(samples, 0.5) * 1e6, percentile(samples, 0.99) * 1e6
        self.keep(**{f"{key}_p50_us": p50, f"{key}_p99_us": p99})
        self.line(name, f"{p50:,.1f} µs", f"p99 {p99:,.1f} µs" + ("" if ratio is None else f"   {ratio:.2f} × floor"))

    def steadiness(self, key: str, floors: Sequence[float]) -> None:
        """How far the floor moved between rounds: on a disk that others use, a ratio to it says little."""
        spread = max(floors) / min(floors)
        self.keep(**{f"{key}_spread": spread})
        if spread > SPREAD_MAX:
            self.line("", "unsteady", f"the floor moved by {spread:.1f} × between rounds; measure on an idle machine")

    def rate(self, name: str, key: str, rate: float, ratio: float | None = None) -> None:
        """A rate of transitions, and as a fraction of its floor's."""
        self.keep(**{f"{key}_per_second": rate})
        self.line(name, f"{rate:,.0f} /s", "" if ratio is None else f"{ratio:.2f} of the floor")

    def median_of(self, name: str, key: str, rounds: Sequence[float], unit: str, note: str = "") -> float:
        """A figure as the median of its rounds, and how far apart they were where that is too far."""
        middle, low, high = median(rounds), min(rounds), max(rounds)
        self.keep(**{key: middle})
        if high > SPREAD_MAX * low:
            note = f"{note}   rounds {_digits(low)} to {_digits(high)}".strip()
        self.line(name, f"{_digits(middle)} {unit}", note)
        return middle

    def aim(self, key: str, measured: float, aim: Aim, floors: Sequence[float]) -> None:
        """Whether a figure is where it should be; on a disk that was unsteady meanwhile that is left open."""
        met = aim.met_by(measured)
        self.keep(**{f"{key}_aim_met": met})
        verdict = "met" if met else "missed"
        if max(floors) > SPREAD_MAX * min(floors):
            verdict = f"{verdict}?"
        self.line("", verdict, str(aim))


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@frozen
class Run:
    """What every measurement shares: the folder for its stores, the sizes, and the report."""

    folder: Path
    sizes: Sizes
    report: Report = field(factory=Report)

    def url(self) -> str:
        """Return the URL of a new store."""
        return f"sqlite:///{self.folder / f'{new_id()}.db'}"

    def rounds(self, what: str) -> Iterator[int]:
        """Yield the number of each round, told to stderr, with the garbage of the one before collected."""
        for number in range(1, self.sizes.rounds + 1):
            click.echo(f"{what}: round {number} of {self.sizes.rounds}", err=True)
            gc.collect()
            yield number
