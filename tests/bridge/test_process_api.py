"""The operator's routes for a pane's process, where nothing can be started or ended."""

from __future__ import annotations

import pytest
from attrs import evolve
from bridge.http_world import OURS, world

from fencepost.supervisor.bridge.launchers import LaunchError
from fencepost.supervisor.bridge.processes import StillRunning
from fencepost.supervisor.bridge.routes import Listener

EVIL = "\x1b]0;owned\x07\u202e\n\ttab"


class Hindered:
    """What starts and ends processes, where neither succeeds, for a reason that a harness had a say in."""

    async def again(self, _pane_id, _prompt, *, replace):
        raise LaunchError(f"it said {EVIL} (replace: {replace})")

    async def end(self, _pane_id, **_):
        raise StillRunning(f"alive: {EVIL}")


@pytest.mark.parametrize(("method", "begins"), [("PUT", "it said "), ("DELETE", "alive: ")])
async def test_why_a_process_was_not_started_or_ended_is_told_escaped(method, begins):
    async with world() as there:
        there.bridge = evolve(there.bridge, processes=Hindered())
        body = {"json": {"version": 1}} if method == "PUT" else {}
        async with there.entitled(Listener.OPERATOR) as client:
            answer = await client.request(method, f"/operator/panes/{OURS}/process", **body)
        assert (answer.status_code, answer.json()["version"]) == (409, 1)
        assert answer.json()["error"].startswith(f"{begins}\\x1b]0;owned\\x07\\u202e\\n\\ttab")
