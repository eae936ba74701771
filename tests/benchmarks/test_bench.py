"""The benchmark runs, says what it measured, and writes down every figure; how large they are is no test's business."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "benchmarks" / "bench.py"

FIGURES = {
    "single_p50_over_raw",
    "single_p50_us",
    "single_p99_us",
    "raw_commit_p50_us",
    "panes64_over_same_rows",
    "panes64_per_second",
    "panes64_same_rows_per_second",
    "panes512_over_same_rows",
    "panes512_per_second",
    "panes512_same_rows_per_second",
    "admitted_p50_us",
    "new_batch_p50_us",
    "new_batch_p50_over_raw",
    "open_10k_seconds",
    "bytes_per_sleeping_pane",
    "bytes_per_awake_pane",
    "ask_over_channel",
    "ask_p50_us",
    "channel_p50_us",
    *(f"tools{calls}_{what}" for calls in (1, 8, 64, 1_000) for what in ("per_second", "raw_per_second", "over_raw")),
    "tools64_aim_met",
    "tools1000_aim_met",
    "recover1_seconds",
    "recover100_seconds",
    "recover1000_seconds",
    "recover1000_aim_met",
    "recover_panes_seconds",
    "checkpoints_per_second",
    "checkpoints_over_raw",
    "raw_replacements_per_second",
    *(
        f"hook_{what}{panes}_{figure}"
        for what in ("process", "asked")
        for panes in (1, 64)
        for figure in ("p50_us", "p99_us", "floor_p50_us", "floor_p99_us", "over_floor", "added_us")
    ),
    "hook_asked1_aim_met",
}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("bench")
    return folder, run("--quick", "--dir", folder / "stores", "--output", folder / "bench.json")


@pytest.mark.slow
def test_a_quick_run_writes_every_figure(quick):
    folder, finished = quick
    assert finished.returncode == 0, finished.stderr
    figures = json.loads((folder / "bench.json").read_text())
    assert figures.keys() >= FIGURES
    assert all(math.isfinite(figure) for figure in figures.values())


@pytest.mark.slow
def test_figures_go_to_stdout_and_progress_to_stderr(quick):
    _, finished = quick
    assert "64 panes at once" in finished.stdout
    assert "round 1 of" not in finished.stdout
    assert "round 1 of" in finished.stderr


@pytest.mark.slow
def test_it_leaves_nothing_but_the_figures(quick):
    folder, _ = quick
    assert list((folder / "stores").iterdir()) == []


@pytest.mark.slow
def test_an_aim_is_told_as_met_or_missed_as_its_figure_is(quick):
    folder, finished = quick
    figures = json.loads((folder / "bench.json").read_text())
    aims = {
        "tools64_aim_met": figures["tools64_over_raw"] >= 1.7,
        "tools1000_aim_met": figures["tools1000_per_second"] >= 2_960,
        "recover1000_aim_met": figures["recover1000_seconds"] <= 0.2,
        "hook_asked1_aim_met": figures["hook_asked1_p50_us"] <= 1_000,
    }
    assert {name: bool(figures[name]) for name in aims} == aims
    told = [line.split()[0] for line in finished.stdout.splitlines() if " aim: " in line]
    assert told == ["met" if met else "missed" for met in aims.values()]


def test_help_says_what_it_does():
    finished = run("--help")
    assert finished.returncode == 0
    assert "--quick" in finished.stdout
