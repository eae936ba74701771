"""The figures about tool batches, each beside its floor and its aim."""

from __future__ import annotations

from statistics import median
from typing import Final

import click
from figures import Aim, Run
from floors import raw_replacements, raw_single_commits
from lives import new_id
from tool_batches import checkpoints, copied, leave_unresolved, new_bodies, no_op_batches, recover

OVER_RAW_64: Final = Aim(10 * 0.17, 0.17, "×")
PER_SECOND_1000: Final = Aim(10 * 296, 296, "/s")
RECOVERY_1000: Final = Aim(0.2, 1.6, "s", at_most=True)


def measure_tools(run: Run) -> None:
    """Measure (h) to (j)."""
    run.report.heading("(h) tool batches of no-op calls, from start_batch to the last placed result")
    for calls, times in run.sizes.batches.items():
        batches(run, calls, times)
    run.report.heading("(i) recovery of effects that a killed runtime left without an outcome, opening included")
    for calls in run.sizes.unresolved_calls:
        recovery(run, f"recover{calls}", f"{calls:,} in one batch", panes=1, calls=calls)
    panes = run.sizes.unresolved_panes
    recovery(run, "recover_panes", f"{panes:,} panes with one each", panes=panes, calls=1)
    checkpointing(run)


def batches(run: Run, calls: int, times: int) -> None:
    """(h) Durable calls a second, and as a fraction of raw commits of one small row."""
    floors, rates, ratios = [], [], []
    for _ in run.rounds(f"batches of {calls} calls"):
        floors.append(1 / median(raw_single_commits(run.folder, run.sizes.raw_commits)))
        rates.append(calls / median(no_op_batches(run.url(), calls, times)))
        ratios.append(rates[-1] / floors[-1])
    report, key = run.report, f"tools{calls}"
    report.median_of("floor: raw sqlite3, one row, one commit", f"{key}_raw_per_second", floors, "/s")
    rate = report.median_of(f"calls, {calls:,} in a batch", f"{key}_per_second", rates, "/s")
    ratio = report.median_of("", f"{key}_over_raw", ratios, "×", "the rate of raw commits")
    if calls == 64:
        report.aim(key, ratio, OVER_RAW_64, floors)
    if calls == 1_000:
        report.aim(key, rate, PER_SECOND_1000, floors)
    report.steadiness(f"{key}_raw", floors)


def recovery(run: Run, key: str, what: str, *, panes: int, calls: int) -> None:
    """(i) From `open_supervisor` to every outcome; raw commits between the rounds only tell how steady the disk was."""
    click.echo(f"leaving {panes * calls} calls unresolved in {panes} panes", err=True)
    path = run.folder / f"{new_id()}.db"
    pane_ids = leave_unresolved(path, panes, calls)
    recover(copied(path), pane_ids, calls)  # a warm-up
    floors, seconds = [], []
    for _ in run.rounds(f"recovering {what}"):
        floors.append(median(raw_single_commits(run.folder, run.sizes.raw_commits)))
        seconds.append(recover(copied(path), pane_ids, calls))
    measured = run.report.median_of(what, f"{key}_seconds", seconds, "s")
    if key == "recover1000":
        run.report.aim(key, measured, RECOVERY_1000, floors)
    run.report.steadiness(f"{key}_raw", floors)


def checkpointing(run: Run) -> None:
    """(j) Checkpoints of 50 KiB that differ, one after the other, and as a fraction of raw replacements of a row."""
    floors, rates, ratios = [], [], []
    for _ in run.rounds("checkpoints"):
        floors.append(1 / median(raw_replacements(run.folder, new_bodies(run.sizes.checkpoints))))
        rates.append(checkpoints(run.url(), new_bodies(run.sizes.checkpoints)))
        ratios.append(rates[-1] / floors[-1])
    report = run.report
    report.heading("(j) checkpoints of 50 KiB, each another text, one after the other")
    report.median_of("floor: raw sqlite3, one row replaced, one commit", "raw_replacements_per_second", floors, "/s")
    report.median_of("checkpoints", "checkpoints_per_second", rates, "/s")
    report.median_of("", "checkpoints_over_raw", ratios, "×", "the rate of raw replacements")
    report.steadiness("raw_replacements", floors)
