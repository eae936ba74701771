"""The operator's routes for a pane's process, where nothing can be started or ended."""

from __future__ import annotations

import pytest
from attrs import evolve
from bridge.http_world import OURS, world

from fencepost.supervisor import ActorCrashed, InvalidTransition, MailboxClosed, StoreFault
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


FAILURES = [
    (StoreFault("disk full"), 503),
    (MailboxClosed("the runtime is closed"), 503),
    (ActorCrashed(f"pane:{OURS}", 1), 503),
    (InvalidTransition("no row"), 409),
]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize(("error", "status"), FAILURES, ids=lambda value: type(value).__name__)
async def test_what_else_fails_is_told_as_on_every_route_of_the_operators_in_its_own_words(method, error, status):
    class Failing:
        async def again(self, _pane_id, _prompt, *, replace):
            raise error

        async def end(self, _pane_id, **_):
            raise error

    async with world() as there:
        there.bridge = evolve(there.bridge, processes=Failing())
        body = {"json": {"version": 1}} if method == "PUT" else {}
        async with there.entitled(Listener.OPERATOR) as client:
            answer = await client.request(method, f"/operator/panes/{OURS}/process", **body)
        assert (answer.status_code, answer.json()) == (status, {"version": 1, "error": str(error)})
        assert there.bridge.stopping.asked.is_set() is isinstance(error, StoreFault)


async def test_a_prompt_that_is_no_text_is_malformed():
    async with world() as there:
        there.bridge = evolve(there.bridge, processes=Hindered())
        async with there.entitled(Listener.OPERATOR) as client:
            answer = await client.put(f"/operator/panes/{OURS}/process", json={"version": 1, "prompt": 7})
        assert answer.status_code == 400
