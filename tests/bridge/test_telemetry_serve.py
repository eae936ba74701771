"""`fencepost serve` tells about itself: its log in the form that is asked for, its metrics to the operator."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
from bridge.http_clients import Program
from bridge.telemetry_world import samples_in


def metrics_of(program) -> dict:
    token = (program.folder / "operator.token").read_text().strip()
    request = urllib.request.Request(
        f"{program.where['operator']}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return samples_in(answer.read().decode())


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_bridge_that_serves_logs_and_counts_what_it_does(style, tmp_path):
    with Program(tmp_path / "bridge", "--log-format", style) as program:
        program.started().operate("PUT", "operator/seats/pane-1", {"version": 1})
        samples = metrics_of(program)
        program.process.terminate()
        status, log = program.ended()
    assert status == 0
    assert samples["fencepost_requests_total", "operator", "admit", "200"] == samples["fencepost_following",] == 1
    lines = log.splitlines()
    assert all(line.isascii() and line.isprintable() for line in lines)
    if style == "json":
        records = [json.loads(line) for line in lines]
        assert ("admit", "pane-1") in {(record.get("route"), record.get("pane_id")) for record in records}
        assert "SIGTERM" in {record["message"] for record in records}
    else:
        assert [
            line
            for line in lines
            if re.search(r" INFO fencepost\.bridge\.requests pane_id=pane-1 .* route=admit ", line)
        ]


def test_the_level_is_the_one_that_is_asked_for(tmp_path):
    with Program(tmp_path / "bridge", "--log-level", "error") as program:
        program.started().operate("PUT", "operator/seats/pane-1", {"version": 1})
        program.process.terminate()
        assert program.ended() == (0, "")
