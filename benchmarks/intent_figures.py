"""The figures about intents, panes and asks, each beside its floor."""

from __future__ import annotations

from statistics import median

import click
import intents
from figures import Run, percentile
from floors import channel_round_trips, raw_same_rows, raw_single_commits
from large_store import bytes_per_pane, make_large_store, open_large_store
from lives import TRANSITIONS_PER_LIFE
from tape import Tape, record_tape


def measure_intents(run: Run) -> None:
    """Measure (a) to (g)."""
    tape = record_tape(run.folder, lives=max(run.sizes.lives_many, run.sizes.lives_most))
    single(run, tape)
    many(run, "panes64", tape, 64, run.sizes.lives_many)
    many(run, "panes512", tape, 512, run.sizes.lives_most)
    boundaries(run)
    ask(run)
    large_store(run)


def single(run: Run, tape: Tape) -> None:
    """(a) One pane, one transition at a time."""
    raw: list[float] = []
    same: list[float] = []
    subject: list[float] = []
    medians, ratios = [], []
    for _ in run.rounds("one pane"):
        floor = raw_single_commits(run.folder, run.sizes.raw_commits)
        same += raw_same_rows(run.folder, tape, 4, per_commit=1)
        got = intents.one_pane(run.url(), run.sizes.lives_one)
        medians.append(median(floor))
        ratios.append(median(got) / medians[-1])
        raw += floor
        subject += got
    report = run.report
    report.heading("(a) one pane, whole lives of intents, one transition at a time")
    report.times("floor: raw sqlite3, one row, one commit", "raw_commit", raw)
    report.times("the same rows, raw, one mutation a commit", "raw_same_rows_single", same)
    report.times("a transition", "single", subject, median(ratios))
    report.steadiness("raw_commit", medians)
    report.keep(
        single_p50_over_raw=median(ratios),
        single_p99_over_raw=percentile(subject, 0.99) / percentile(raw, 0.99),
        single_p50_over_same_rows=median(subject) / median(same),
    )


def many(run: Run, key: str, tape: Tape, panes: int, lives: int) -> None:
    """(b), (c) Many panes at once."""
    floors, rates, ratios = [], [], []
    part = Tape(tape.launch, tape.lives[: lives * TRANSITIONS_PER_LIFE])
    for _ in run.rounds(f"{panes} panes"):
        floor = panes * len(part.lives) / sum(raw_same_rows(run.folder, part, panes))
        rate = intents.many_panes(run.url(), panes, lives)
        floors.append(floor)
        rates.append(rate)
        ratios.append(rate / floor)
    report = run.report
    report.heading(f"({'b' if panes == 64 else 'c'}) {panes} panes at once")
    report.rate("floor: the same rows, raw, 64 a commit", f"{key}_same_rows", median(floors))
    report.rate("transitions", key, median(rates), median(ratios))
    report.keep(**{f"{key}_over_same_rows": median(ratios)})


def boundaries(run: Run) -> None:
    """(d) Tool calls that pass."""
    admitted: list[float] = []
    new: list[float] = []
    raw: list[float] = []
    medians, ratios = [], []
    for _ in run.rounds("passing tool calls"):
        floor = raw_single_commits(run.folder, run.sizes.raw_commits)
        again, first = intents.boundaries(run.url(), run.sizes.boundaries)
        medians.append(median(floor))
        ratios.append(median(first) / medians[-1])
        admitted += again
        new += first
        raw += floor
    report = run.report
    report.heading("(d) pre_tool_use that passes")
    report.times("on a batch already admitted (no commit)", "admitted", admitted)
    report.times("floor: raw sqlite3, one row, one commit", "boundary_raw_commit", raw)
    report.times("on a new batch", "new_batch", new, median(ratios))
    report.steadiness("boundary_raw_commit", medians)
    report.keep(new_batch_p50_over_raw=median(ratios))


def ask(run: Run) -> None:
    """(g) An ask that writes nothing."""
    floors: list[float] = []
    subject: list[float] = []
    ratios = []
    for _ in run.rounds("asks"):
        floor = channel_round_trips(run.sizes.asks)
        got = intents.asks(run.sizes.asks)
        ratios.append(median(got) / median(floor))
        floors += floor
        subject += got
    report = run.report
    report.heading("(g) an ask of an actor that writes nothing")
    report.times("floor: a round trip over trio channels", "channel", floors)
    report.times("pane.sync_status()", "ask", subject, median(ratios))
    report.keep(ask_over_channel=median(ratios))


def large_store(run: Run) -> None:
    """(e), (f) A large store: the time to open it, and what its panes weigh."""
    panes, unresolved = run.sizes.stored_panes, run.sizes.unresolved
    report = run.report
    click.echo(f"a store of {panes} panes", err=True)
    url = run.url()
    pane_ids = make_large_store(url, panes, unresolved)
    times = [open_large_store(url, unresolved) for _ in run.rounds("opening it")]
    opened, resumed = (median(column) for column in zip(*times, strict=True))
    report.heading(f"(e) a store of {panes:,} panes, {unresolved:,} of them with an unresolved intent")
    report.line("open", f"{opened:.3f} s")
    report.line("every reconciliation taken up again", f"{resumed:.3f} s")
    report.keep(open_10k_seconds=opened, open_10k_resumed_seconds=resumed, open_panes=panes)

    addressed = pane_ids[-run.sizes.memory_panes :]
    click.echo(f"memory of {len(addressed)} panes", err=True)
    asleep, awake = bytes_per_pane(url, addressed)
    report.heading(f"(f) memory of {len(addressed):,} addressed panes")
    report.line("asleep", f"{asleep:,.0f} B", "each")
    report.line("awake", f"{awake:,.0f} B", "each")
    report.keep(bytes_per_sleeping_pane=asleep, bytes_per_awake_pane=awake)
