"""The operator's routes: each right, malformed, refused, without a token."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing
from bridge.http_world import OURS, world
from bridge.operated import EVIL, PANE, UUID, fits, operated, uncertain
from bridges import Harness, Workspace, moved

from fencepost.supervisor import (
    Applied,
    FleetSeatMailbox,
    NeedsRecovery,
    Options,
    StoreFault,
    SyncStatus,
)
from fencepost.supervisor.bridge.openapi_operator import OPERATOR_REQUESTS, OPERATOR_RESPONSES
from fencepost.supervisor.bridge.operator_api import ACTIONS, TEXT_CHARACTERS_MAX
from fencepost.supervisor.bridge.routes import Listener

OPERATOR, FLEET, LOCAL = Listener
TRANSITION = {
    "version": 1,
    "kind": "parent_advance",
    "from_base": "A",
    "to_base": "B",
    "classification_op": "view-B",
    "trigger_op": "trigger-B",
}
GOOD = {
    f"{PANE}/transitions": TRANSITION,
    f"{PANE}/deliveries": {"version": 1, "via": "fleet_seat", "text": "hello", "delivery_id": UUID},
    f"{PANE}/settle": {"version": 1, "delivery_id": UUID, "approval": "ada"},
    f"{PANE}/resolve": {"version": 1, "intent_id": "i", "resolution": "go on", "by": "ada"},
    f"{PANE}/rearm": {"version": 1, "intent_id": "i"},
    f"{PANE}/discard": {"version": 1, "intent_id": "i", "approval": "token"},
    "/operator/revive": {"version": 1, "address": f"pane:{OURS}"},
}
"""By path, a body that is well formed."""


# -- what every one of them does ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GOOD)
async def test_without_the_token_it_is_401_and_elsewhere_there_is_no_such_route(path):
    async with world() as there:
        async with there.client(OPERATOR) as nobody:
            assert (await nobody.post(path, json=GOOD[path])).status_code == 401
        for listener in (FLEET, LOCAL):
            async with there.entitled(listener) as pane:
                assert (await pane.post(path, json=GOOD[path])).status_code == 404
        assert await there.supervisor.dead_letters() == []


@pytest.mark.parametrize("path", [*GOOD, "/operator/status", PANE])
async def test_another_method_has_no_route(path):
    async with world() as there, there.entitled(OPERATOR) as client:
        for method in ("PUT", "DELETE", "PATCH", "POST" if path not in GOOD else "GET"):
            assert (await client.request(method, path, json={"version": 1})).status_code == 404


def spoilt():
    """Each well-formed body with one thing wrong, and what the answer names."""
    for path, members in GOOD.items():
        yield path, {**members, "version": 2}, "version"
        for name in members.keys() - {"version", "delivery_id", "ambiguous"}:
            yield path, {one: value for one, value in members.items() if one != name}, name
            for wrong in (None, 7, ["x"], {"x": "y"}, True):
                yield path, {**members, name: wrong}, name
            if name != "text":
                yield path, {**members, name: ""}, name
            if name not in {"approval", "resolution", "by", "text"}:
                yield path, {**members, name: EVIL}, name
                yield path, {**members, name: "x" * 5_000}, name
    yield f"{PANE}/settle", {**GOOD[f"{PANE}/settle"], "delivery_id": "not-a-uuid"}, "delivery_id"
    yield f"{PANE}/deliveries", {**GOOD[f"{PANE}/deliveries"], "delivery_id": UUID.upper() + "A"}, "delivery_id"
    yield f"{PANE}/deliveries", {**GOOD[f"{PANE}/deliveries"], "delivery_id": 7}, "delivery_id"
    yield f"{PANE}/deliveries", {**GOOD[f"{PANE}/deliveries"], "text": "x" * 1_048_577}, "1048577 bytes"
    yield f"{PANE}/settle", {**GOOD[f"{PANE}/settle"], "approval": " \n "}, "approval"
    yield f"{PANE}/settle", {**GOOD[f"{PANE}/settle"], "approval": "x" * (TEXT_CHARACTERS_MAX + 1)}, "approval"
    yield "/operator/revive", {"version": 1, "address": "nonsense"}, "address"
    yield "/operator/revive", {"version": 1, "address": f"pane:{EVIL}"}, "address"


async def test_a_malformed_body_is_400_says_what_is_wrong_and_repeats_nothing_raw():
    async with operated(reconciler=Workspace()) as there:
        tried = 0
        for path, members, names in spoilt():
            said = await there.ask(path, members, status=400)
            assert names in said["error"] or f"{names}_id" in said["error"], (path, members)
            assert said["error"].isprintable()
            assert len(said["error"]) < 600
            tried += 1
        assert tried > 100
        assert await there.supervisor.dead_letters() == []
        assert (await there.supervisor.status()).panes == 0


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"version":1,"version":1}', b'{"version":NaN}'])
async def test_a_body_that_is_no_object_is_400(path, body):
    async with world() as there, there.entitled(OPERATOR) as client:
        answer = await client.post(path, content=body)
        assert answer.status_code == 400
        assert "error" in answer.json()


def test_every_action_has_its_route_its_shape_and_its_sentences():
    assert list(ACTIONS) == ["settle", "resolve", "rearm", "discard", "revive"]
    for name, action in ACTIONS.items():
        assert action.name == name
        required = {"version", *(one.name for one in action.fields)}
        assert set(OPERATOR_REQUESTS[name]["required"]) == required
        (path,) = (path for path in GOOD if path.endswith(name))
        assert GOOD[path].keys() == required
        for sentence in (action.summary, action.claims, action.does_not_claim, *(one.help for one in action.fields)):
            assert sentence.endswith(".")


@pytest.mark.parametrize("error", [StoreFault("the disk is gone"), RuntimeError("an accident")])
async def test_what_fails_in_the_runtime_is_503_in_its_words_or_500_without(error, monkeypatch):
    async with operated() as there:

        async def fail(*_):
            raise error

        monkeypatch.setattr(type(there.supervisor), "revive", fail)
        status, words = (503, "the disk is gone") if isinstance(error, StoreFault) else (500, "the bridge failed")
        assert (await there.ask("/operator/revive", GOOD["/operator/revive"], status))["error"] == words
        assert there.bridge.stopping.asked.is_set() == isinstance(error, StoreFault)


# -- detect ------------------------------------------------------------------------------------------------------------


async def test_a_base_moved():
    async with operated(reconciler=Workspace()) as there:
        first = await there.ask(f"{PANE}/transitions", TRANSITION)
        assert fits(first, OPERATOR_RESPONSES["detect"])
        assert (first["seq"], first["coalesced"]) == (1, False)
        again = await there.ask(f"{PANE}/transitions", TRANSITION)
        assert again["intent_id"] == first["intent_id"]
        (view,) = await there.supervisor.pane(OURS).intents()
        assert (view.from_base, view.to_base, view.triggers) == ("A", "B", ("trigger-B",))
        members = {**TRANSITION, "to_base": "C", "from_base": "X", "trigger_op": "other", "ambiguous": EVIL}
        diverged = await there.ask(f"{PANE}/transitions", members)
        assert diverged["state"] in {"topology_diverged", "detected"}


@pytest.mark.parametrize("route", ["transitions", "deliveries"])
async def test_a_pane_of_which_nothing_is_known_must_be_said_to_be_new(route):
    async with operated(reconciler=Workspace()) as there:
        members, typo = GOOD[f"{PANE}/{route}"], f"/operator/panes/nosuch/{route}"
        said = await there.ask(typo, members, 404)
        assert "nothing is known of pane nosuch" in said["error"]
        assert (await there.ask(typo, {**members, "new": "yes"}, 400))["error"] == "new must be true or false"
        assert await there.supervisor.pane("nosuch").intents() == []


async def test_what_was_launched_is_a_member_or_has_a_row_is_known():
    async with operated(reconciler=Workspace()) as there:
        await there.supervisor.pane("launched").launch("plain")
        there.world.seats.admit("member")
        for known in ("launched", "member"):
            assert (await there.ask(f"/operator/panes/{known}/transitions", TRANSITION))["seq"] == 1
        await there.ask("/operator/panes/new/transitions", {**TRANSITION, "new": True})
        later = {**TRANSITION, "trigger_op": "next", "from_base": "B", "to_base": "C"}
        await there.ask("/operator/panes/new/transitions", later)


async def test_what_the_protocol_does_not_know_is_409_in_its_own_words():
    async with operated(reconciler=Workspace()) as there:
        said = await there.ask(f"{PANE}/transitions", {**TRANSITION, "to_base": "A"}, status=409)
        assert "from_base and to_base are both 'A'" in said["error"]
    async with operated() as there:
        said = await there.ask(f"{PANE}/transitions", TRANSITION, status=409)
        assert "reconciler" in said["error"].lower()


# -- deliver and settle ------------------------------------------------------------------------------------------------


async def test_a_message_is_delivered_and_the_report_is_the_answer():
    async with operated() as there:
        answers = []

        async def deliver():
            answers.append(await there.ask(f"{PANE}/deliveries", GOOD[f"{PANE}/deliveries"]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            (event,) = await there.supervisor.pane(OURS).poll_events(20)
            assert (event.event_id, event.text) == (UUID, "hello")
            await there.supervisor.pane(OURS).acknowledge_event(UUID, "started")
        assert fits(answers[0], OPERATOR_RESPONSES["deliver"])
        assert (answers[0]["stage"], answers[0]["native"], answers[0]["delivery_id"]) == ("consumed", "started", UUID)
        again = await there.ask(f"{PANE}/deliveries", GOOD[f"{PANE}/deliveries"])
        assert (again["stage"], again["delivery_id"]) == ("consumed", UUID)  # from the original's receipt
        assert await there.supervisor.pane(OURS).poll_events() == []
        said = await there.ask(f"{PANE}/deliveries", {"version": 1, "via": "no such", "text": "x"}, status=409)
        assert "'no such'" in said["error"]


async def test_a_client_that_leaves_takes_nothing_back():
    async with operated() as there:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.ask, f"{PANE}/deliveries", GOOD[f"{PANE}/deliveries"])
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        (event,) = await there.supervisor.pane(OURS).poll_events(20)
        assert event.event_id == UUID


async def test_an_uncertain_delivery_is_settled_once():
    async with operated(mechanisms=[FleetSeatMailbox(acknowledge_seconds=0.01)]) as there:
        await uncertain(there)
        status = await there.ask("/operator/status")
        assert status["runtime"]["uncertain_deliveries"] == 1
        (line,) = status["panes"]
        (fencing,) = line["deliveries"]
        assert (fencing["delivery_id"], fencing["uncertain"]) == (UUID, True)
        assert fencing["words"].startswith("uncertain: it may have arrived")
        settle = {"version": 1, "delivery_id": UUID, "approval": EVIL}
        assert await there.ask(f"{PANE}/settle", settle) == {"version": 1, "answer": "applied"}
        assert await there.ask(f"{PANE}/settle", settle) == {"version": 1, "answer": "unchanged"}
        (line,) = (await there.ask(PANE))["deliveries"]
        assert line["words"].startswith("abandoned by a person")
        refused = await there.ask(f"{PANE}/settle", {**settle, "delivery_id": UUID.replace("1", "2")})
        assert (refused["answer"], refused["reason"]) == ("refused", "unknown_delivery")
        assert "a secret" not in json.dumps(await there.ask(PANE))


# -- what leads an intent on -------------------------------------------------------------------------------------------


async def test_an_intent_that_needs_recovery_is_resolved():
    workspace = Workspace(NeedsRecovery(f"dirty {EVIL}"))
    async with operated(reconciler=workspace) as there:
        harness = await Harness.start(there.supervisor.pane(OURS))
        intent_id = (await there.ask(f"{PANE}/transitions", TRANSITION))["intent_id"]
        await harness.call(1, "b1")
        (line,) = (await there.ask("/operator/status"))["panes"]
        assert (line["standing"], line["owed"]["needs_a_person"]) == ("conflicted", True)
        resolve = {"version": 1, "intent_id": intent_id, "resolution": "cleaned", "by": "ada"}
        assert (await there.ask(f"{PANE}/resolve", {**resolve, "intent_id": "none"}))["reason"] == "unknown_intent"
        assert await there.ask(f"{PANE}/resolve", resolve) == {"version": 1, "answer": "applied"}
        view = await there.supervisor.intent(intent_id).view()
        assert (view.resolution, view.resolved_by) == ("cleaned", "ada")
        assert (await there.ask(f"{PANE}/resolve", resolve))["answer"] == "unchanged"


async def exhausted(there) -> str:
    pane = there.supervisor.pane(OURS)
    harness = await Harness.start(pane)
    intent = await pane.detect(moved("A", "B"))
    await harness.call(1, "b1")
    await give_up(pane)
    return intent.intent_id


async def give_up(pane):
    launch = await pane.launch("claude-code")
    assert await pane.launch_failed(launch.incarnation_id, "did not come up") == Applied()


async def test_an_exhausted_intent_is_rearmed_and_then_discarded_with_its_token():
    async with operated(reconciler=Workspace(), options=Options(startup_attempts_max=1)) as there:
        intent_id = await exhausted(there)
        pane = there.supervisor.pane(OURS)
        rearm = {"version": 1, "intent_id": intent_id}
        assert (await there.ask(f"{PANE}/rearm", rearm))["answer"] == "applied"
        assert (await there.ask(f"{PANE}/rearm", rearm))["reason"] == "not_exhausted"
        await give_up(pane)
        history = await there.ask(PANE)
        assert fits(history, OPERATOR_RESPONSES["operator_pane"])
        (entry,) = history["intents"]
        assert entry["why"] == "every permitted start with its payload failed: a person must rearm or discard it"
        assert len(entry["approval"]) > 10
        guessed = await there.ask(f"{PANE}/discard", {**rearm, "approval": EVIL})
        assert (guessed["answer"], guessed["reason"]) == ("refused", "proof_mismatch")
        discard = {**rearm, "approval": entry["approval"]}
        assert (await there.ask(f"{PANE}/discard", discard))["answer"] == "applied"
        assert (await there.ask(f"{PANE}/discard", discard))["reason"] == "not_exhausted"
        assert await pane.sync_status() is SyncStatus.IN_SYNC
        (entry,) = (await there.ask(PANE))["intents"]
        assert (entry["discarded"], entry["approval"], entry["why"], entry["reached"]) == (
            True,
            None,
            None,
            "uncertain",
        )


async def test_a_quarantined_actor_is_told_and_revived():
    async with operated(options=Options(crashes_max=2)) as there:
        pane, supervisor = there.supervisor.pane(OURS), there.supervisor
        await pane.launch("claude-code")
        while not (await supervisor.status()).quarantined:
            await supervisor.kill(f"pane:{OURS}")
            await trio.testing.wait_all_tasks_blocked()
            if not (await supervisor.status()).quarantined:
                await pane.sync_status()
        status = await there.ask("/operator/status")
        assert status["runtime"]["quarantined"] == [f"pane:{OURS}"]
        (line,) = status["panes"]
        assert (line["standing"], line["quarantined"]) == ("faulted", [f"pane:{OURS}"])
        stuck = await there.ask(f"{PANE}/rearm", GOOD[f"{PANE}/rearm"], status=503)
        assert stuck["error"] == f"pane:{OURS} is quarantined after repeated crashes; revive it to try again"
        revive = GOOD["/operator/revive"]
        assert (await there.ask("/operator/revive", revive))["answer"] == "applied"
        assert (await there.ask("/operator/revive", revive))["answer"] == "unchanged"
        (line,) = (await there.ask("/operator/status"))["panes"]
        assert line["standing"] == "in_sync"
