"""OpenCode's claim on the launcher's side: one session may be started while a delivery to it is unresolved."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager

import httpx
import pytest
from attrs import evolve
from bridge import opencode_program
from bridge.operated import fits
from bridge.program_world import Life, World, moved, world
from delivery_scenarios import World as Native, uid

from fencepost.supervisor import (
    Applied,
    CorruptRecord,
    OpenCodeControl,
    Outbound,
    Stage,
    Stop,
    check,
    open_supervisor,
)
from fencepost.supervisor.bridge.openapi_operator import OPERATOR_RESPONSES
from fencepost.supervisor.bridge.opencode_claims import ClaimOpen, OpenClaim, report_of, session_to_start
from fencepost.supervisor.bridge.panes import PaneSpec, Restart
from fencepost.supervisor.bridge.process_api import _reported
from fencepost.supervisor.overview import pane_line

ORIGINAL, OTHER = "ses_original", "ses_other"
A = uid(1)
CLAIM = OpenClaim("left", A, ORIGINAL)
PERSON, BRIDGE = True, False
REFUSED = object()
PROCESS = "/operator/panes/left/process"
OPERATOR = {"authorization": f"Bearer {'t' * 40}"}


@pytest.mark.parametrize(
    ("harness", "named", "claim", "who", "started"),
    [
        ("opencode", None, None, PERSON, None),
        ("opencode", OTHER, None, PERSON, OTHER),
        ("opencode", OTHER, None, BRIDGE, OTHER),
        ("opencode", ORIGINAL, CLAIM, PERSON, ORIGINAL),
        ("opencode", ORIGINAL, CLAIM, BRIDGE, ORIGINAL),
        ("opencode", OTHER, CLAIM, PERSON, REFUSED),
        ("opencode", None, CLAIM, PERSON, REFUSED),
        ("opencode", OTHER, CLAIM, BRIDGE, ORIGINAL),
        ("opencode", None, CLAIM, BRIDGE, ORIGINAL),
        *(
            ("opencode", named, evolve(CLAIM, session_id=unusable), who, REFUSED)
            for unusable in (None, "", "--fork", "a\nb", "é", "s" * 257)
            for named in (None, unusable)
            for who in (PERSON, BRIDGE)
        ),
        ("claude-code", None, CLAIM, PERSON, None),
        ("codex", OTHER, CLAIM, BRIDGE, OTHER),
    ],
)
def test_which_session_is_started(harness, named, claim, who, started) -> None:
    if started is REFUSED:
        with pytest.raises(ClaimOpen) as refused:
            session_to_start(harness, named, claim, by_a_person=who)
        assert refused.value.claim is claim
        assert str(refused.value).isprintable()
        assert all(one in str(refused.value) for one in ("'left'", A, "settle"))
    else:
        assert session_to_start(harness, named, claim, by_a_person=who) == started


@pytest.mark.parametrize(
    ("harness", "lives", "claim", "word"),
    [
        ("opencode", True, None, "ready"),
        ("opencode", False, None, "unbound"),
        ("opencode", True, CLAIM, "uncertain"),
        ("opencode", False, CLAIM, "uncertain"),
        ("codex", True, CLAIM, None),
    ],
)
def test_ready_is_refused_while_a_claim_is_open(harness, lives, claim, word) -> None:
    assert report_of(harness, lives=lives, claim=claim) == word


class Place(World):
    """A bridge's world in which a delivery to the pane's OpenCode may have been left unresolved."""

    native: Native

    def opencode(self, **more) -> PaneSpec:
        program = opencode_program.install(self.folder.parent / "bin")
        environment = {**self.environment, "OPENCODE_CONTROL": str(self.folder.parent / "control")}
        said = {"harness": "opencode", "environment": environment, "prompt": "go", **more}
        return evolve(self.spec(**said), argv=(str(program), "--model", "m/n"))

    @asynccontextmanager
    async def open(self, **harnesses):
        async with self.bridge(**harnesses) as life:
            yield life

    async def leave_unresolved(self, session: str = ORIGINAL) -> None:
        """An earlier life wrote to this session, and did not hear of it again."""
        self.native = Native(arrives=False, says=None, session=session, agent="opencode")
        mechanism = OpenCodeControl(self.native, answer_seconds=0.01)
        async with open_supervisor(self.store, mechanisms=[mechanism]) as supervisor:
            report = await supervisor.pane("left").deliver(Outbound("run the tests", "opencode", A))
        assert (report.outcome, report.stop) == ("uncertain", Stop.UNCERTAIN)

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder / 'bridge.db'}"


@pytest.fixture
async def place():
    async with world(Place) as made:
        yield made


async def reported(life: Life) -> tuple[object, object]:
    lives = "left" in await life.processes.launcher.processes()
    told = await _reported(life.processes, "left", "opencode", lives=lives)
    return told["report"], told["claim"]


@pytest.mark.parametrize("session", [None, OTHER])
async def test_a_person_who_names_another_session_is_refused_and_nothing_is_begun(place: Place, session):
    await place.leave_unresolved()
    async with place.open() as life:
        with pytest.raises(ClaimOpen, match=f"(?s)'left'.*{A}.*{ORIGINAL}"):
            await life.processes.run("left", place.opencode(session_id=session))
        assert life.processes.book.get("left") is None
        assert await life.processes.launcher.processes() == {}
        with life.supervisor.reader() as reader:
            assert {event.kind for event in reader.events()} == {"delivery.dispatched", "delivery.reported"}


async def test_the_original_session_is_resumed_and_not_ready_until_its_history_proves_the_delivery(place: Place):
    await place.leave_unresolved()
    async with place.open() as life:
        assert await reported(life) == ("uncertain", {"delivery_id": A, "session_id": ORIGINAL})
        await life.processes.run("left", place.opencode(session_id=ORIGINAL))
        run = await place.next_run()
        assert run.about["argv"] == ["run", "--model", "m/n", "--session", ORIGINAL]
        assert run.about["said"] == "go"
        assert await reported(life) == ("uncertain", {"delivery_id": A, "session_id": ORIGINAL})
        place.native.wrote("run the tests", complete=False)
        assert (await life.pane.reconcile(A, place.native.seen("left"))).stop is Stop.UNCERTAIN
        assert (await reported(life))[0] == "uncertain"
        place.native.wrote("run the tests")
        assert (await life.pane.reconcile(A, place.native.seen("left", session_id=OTHER))).stop is Stop.UNCERTAIN
        assert (await life.pane.reconcile(A, place.native.seen("left"))).stage is Stage.CONSUMED
        assert await reported(life) == ("ready", None)
        run.tell(exit=0)
        await life.kind("incarnation.retired")
        await life.processes.run("left", place.opencode(session_id=OTHER))
        assert (await place.next_run()).about["session"] == OTHER
        await life.processes.end("left")
        assert await reported(life) == ("unbound", None)
    assert place.native.sends == {A: 1}
    assert await check(place.store) == []


async def test_settling_lets_another_session_in_and_claims_nothing(place: Place):
    await place.leave_unresolved()
    async with place.open() as life:
        assert await life.pane.settle(A, "Ada: the session is gone") == Applied()
        await life.processes.run("left", place.opencode())
        assert (await place.next_run()).about["session"] is None
        assert await reported(life) == ("ready", None)
        await life.processes.end("left")


async def test_starting_again_by_hand_is_refused_where_the_pane_has_gone_on_to_another_session(place: Place):
    async with place.open() as life:
        await life.processes.run("left", place.opencode(session_id=OTHER))
        await place.next_run()
        await life.processes.end("left")
    await place.leave_unresolved()
    async with place.open() as life:
        with pytest.raises(ClaimOpen, match=OTHER):
            await life.processes.again("left", "go on")
        spec = life.processes.book.get("left")
        assert (spec.session_id, spec.prompt, spec.wanted) == (OTHER, None, False)


async def test_what_the_watcher_starts_resumes_the_claims_session_and_no_other(place: Place):
    async with place.open() as life:
        await life.processes.run("left", place.opencode(session_id=OTHER, restart=Restart.OWED))
        run = await place.next_run()
        await life.pane.detect(moved())
    await place.leave_unresolved()
    async with place.open() as life:
        run.tell(exit=0)
        again = await place.next_run()
        assert (again.about["session"], "moved from main-1 to main-2" in again.about["said"]) == (ORIGINAL, True)
        with life.supervisor.reader() as reader:
            assert pane_line(reader, "left").process.session_id == ORIGINAL
        await life.processes.end("left")


async def test_what_the_runtime_itself_replaces_resumes_the_claims_session_and_no_other(place: Place):
    async with place.open() as life:
        launch = await life.processes.run("left", place.opencode(session_id=OTHER))
        run = await place.next_run()
        await life.pane.detect(moved())
    await place.leave_unresolved()
    async with place.open() as life:
        event = {"hook_event_name": "PreToolUse", "session_id": OTHER, "turn_id": "t", "tool_use_id": "c"}
        adapter = life.bridge.adapters["opencode"]
        answer = await adapter.on_hook(life.pane, launch.incarnation_id, event, 0)
        assert b"deny" in answer.stdout
        again = await place.next_run()
        assert again.about["session"] == ORIGINAL
        assert run is not again
        await life.processes.end("left")


async def test_a_claim_on_a_session_that_cannot_be_resumed_keeps_the_bridge_from_starting_any(place: Place):
    async with place.open() as life:
        launch = await life.processes.run("left", place.opencode(session_id=OTHER))
        await place.next_run()
    await place.leave_unresolved("--fork")
    async with place.open() as life:
        with pytest.raises(ClaimOpen, match="no command line can resume"):
            await life.processes.start_again("left", launch.incarnation_id)
        await life.processes.end("left")


async def test_a_row_that_cannot_be_read_may_be_a_claim(place: Place):
    await place.leave_unresolved()
    with sqlite3.connect(place.folder / "bridge.db") as database:
        database.execute("UPDATE deliveries SET fingerprint = 'short'")
    database.close()
    async with place.open() as life:
        with pytest.raises(CorruptRecord, match=A):
            await life.processes.run("left", place.opencode(session_id=ORIGINAL))
        assert await reported(life) == ("uncertain", None)
        assert await life.processes.launcher.processes() == {}


async def test_another_harness_is_not_held_up_by_it(place: Place):
    await place.leave_unresolved()
    async with place.open() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        await place.next_run()
        await life.processes.end("left")


async def test_an_operator_is_told_over_the_wire_which_session_may_be_resumed(place: Place):
    await place.leave_unresolved()
    spec = place.opencode()
    body = {"version": 1, "argv": spec.argv, "cwd": spec.cwd, "environment": spec.environment, "terminal": "none"}
    async with place.open() as life, httpx.AsyncClient(base_url=life.endpoints.operator, headers=OPERATOR) as client:
        refused = await client.put(PROCESS, json={**body, "prompt": "go"})
        assert refused.status_code == 409
        assert all(one in refused.json()["error"] for one in ("'left'", A, ORIGINAL, "a new session"))
        started = await client.put(PROCESS, json={**body, "prompt": "go", "session_id": ORIGINAL})
        assert (await place.next_run()).about["session"] == ORIGINAL
        seen = await client.get(PROCESS)
        for answer, shape in ((started, "run_process"), (seen, "look_at_process")):
            assert answer.status_code == 200
            assert fits(answer.json(), OPERATOR_RESPONSES[shape])
            assert answer.json()["report"] == "uncertain"
            assert answer.json()["claim"] == {"delivery_id": A, "session_id": ORIGINAL}
        await life.processes.end("left")
