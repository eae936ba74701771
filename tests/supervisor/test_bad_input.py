"""What a careless bridge, a lying harness or a damaged disk can do: a clear answer, nothing written, nothing lost."""

from __future__ import annotations

import copy
import os
import pickle
import sqlite3
import sys

import pytest
import trio
from bridges import Harness, Workspace, moved

from fencepost.supervisor import (
    Allow,
    Applied,
    BaseTransition,
    BlockGeneric,
    BlockRestart,
    Diverged,
    FencepostError,
    InvalidIdentifier,
    InvalidTransition,
    LaunchBlocked,
    MailboxClosed,
    ModelTurn,
    NeedsRecovery,
    Options,
    Reason,
    Refused,
    SchemaTooNew,
    StoreFault,
    StoreOwned,
    ToolBoundary,
    TransitionKind,
    Unchanged,
    check,
    open_supervisor,
)

BAD_IDS = ["", "x" * 257, "naïve", "tab\there", "nul\0", "new\nline", None, 7]


@pytest.mark.parametrize("bad", BAD_IDS)
async def test_ids_out_of_bounds_are_named_and_shown(url, bad):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        calls = {
            "pane_id": lambda: supervisor.pane(bad),
            "intent_id": lambda: supervisor.intent(bad),
            "id": lambda: ModelTurn(bad, 1),
            "batch_id": lambda: ToolBoundary("i", None, bad),
            "from_base": lambda: BaseTransition(TransitionKind.NATIVE_REWRITE, bad, "B", "o", "t"),
        }
        for field, call in calls.items():
            with pytest.raises(InvalidIdentifier) as refused:
                call()
            assert (refused.value.field, refused.value.value) == (field, bad)
        with pytest.raises(InvalidIdentifier):
            await pane.launch(bad)
        with pytest.raises(InvalidIdentifier):
            await pane.mark_delivered(bad, "i", "t", "b")
        with pytest.raises(InvalidIdentifier):
            await pane.post_tool_batch("i", bad, "b")
        assert await supervisor.dead_letters() == []
        assert [event async for event in supervisor.events(follow=False)] == []


async def test_strangers_and_foreigners_speak_for_nobody(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane, other = supervisor.pane("pane"), supervisor.pane("other")
        mine, theirs = await Harness.start(pane), await Harness.start(other)
        intent = await pane.detect(moved("A", "B"))
        await mine.call(1, "b1")
        before = await pane.intents()
        for incarnation_id, reason in [
            ("nobody", Reason.UNKNOWN_INCARNATION),
            (theirs.incarnation_id, Reason.OTHER_PANE),
        ]:
            boundary = ToolBoundary(incarnation_id, ModelTurn("turn-2", 2), "b2")
            decision = await pane.pre_tool_use(boundary)
            assert isinstance(decision, BlockGeneric)
            assert decision.reason is reason
            for answer in (
                await pane.mark_delivered(intent.intent_id, incarnation_id, "turn-1", "b1"),
                await pane.post_tool_batch(incarnation_id, "turn-1", "b1"),
                await pane.retire(incarnation_id, "not yours"),
                await pane.launch_failed(incarnation_id, "not yours"),
            ):
                assert isinstance(answer, Refused)
                assert answer.reason is reason
        assert await pane.intents() == before
        assert len(await supervisor.dead_letters()) == 10
        assert await theirs.call(1, "x1") == Allow(), "every other pane is served"
    assert await check(url) == []


async def test_reports_about_the_wrong_thing_are_refused(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        assert (await harness.delivered(intent.intent_id, 1, "b1")).reason is Reason.NOT_PREPARED
        await harness.call(1, "b1")
        assert (await harness.delivered("no-such-intent", 1, "b1")).reason is Reason.UNKNOWN_INTENT
        assert (await harness.delivered(intent.intent_id, 1, "b2")).reason is Reason.PROOF_MISMATCH
        assert await harness.completed(1, "b2") == Unchanged()
        assert (await pane.rearm(intent.intent_id)).reason is Reason.NOT_EXHAUSTED
        assert (await pane.discard(intent.intent_id, "please")).reason is Reason.NOT_EXHAUSTED
        assert (await pane.resolve("no-such-intent", "x", by="y")).reason is Reason.UNKNOWN_INTENT


@pytest.mark.parametrize(
    "turn",
    [None, ModelTurn("turn-1", 2), ModelTurn("turn-2", 1), ModelTurn("turn-0", 0)],
    ids=["missing", "same-id-other-ordinal", "same-ordinal-other-id", "earlier"],
)
async def test_a_turn_that_is_not_provably_later_fails_closed(url, turn):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        await harness.delivered(intent.intent_id, 1, "b1")
        await harness.completed(1, "b1")
        decision = await pane.pre_tool_use(ToolBoundary(harness.incarnation_id, turn, "b2"))
        assert isinstance(decision, BlockRestart)
        assert decision.reason is Reason.TURN_ORDER_UNKNOWN
        assert (await supervisor.intent(intent.intent_id).view()).acknowledged_at is None


async def test_a_transition_that_moves_nothing_is_misuse(url):
    with pytest.raises(InvalidTransition, match="'A'"):
        moved("A", "A")
    async with open_supervisor(url) as supervisor:
        with pytest.raises(InvalidTransition, match="Reconciler"):
            await supervisor.pane("pane").detect(moved("A", "B"))


async def test_another_plan_for_the_same_intent_is_refused(url):
    refusals: list[Exception] = []

    class Fickle(Workspace):
        async def reconcile(self, attempt):
            await attempt.plan("one", "start")
            await attempt.plan("one", "start")
            try:
                await attempt.plan("two", "start")
            except InvalidTransition as error:
                refusals.append(error)
            return await super().reconcile(attempt)

    async with open_supervisor(url, reconciler=Fickle()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        assert (await supervisor.intent(intent.intent_id).view()).planned_op == "one"
    assert "'two'" in str(refusals[0])


async def test_an_attempt_of_an_older_activation_is_fenced(url):
    kept = []
    gate = trio.Event()

    class Forgetful(Workspace):
        async def reconcile(self, attempt):
            kept.append(attempt)
            if len(kept) == 1:
                await gate.wait()
            return await super().reconcile(attempt)

    async with open_supervisor(url, reconciler=Forgetful()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1", wait=0)
        while not kept:
            await trio.testing.wait_all_tasks_blocked(0.001)
        await supervisor.kill(f"intent:{intent.intent_id}")
        await harness.call(1, "b1")
        with pytest.raises(FencepostError):
            await kept[0].plan("late", "start")
        assert [attempt.resumed for attempt in kept] == [False, True]
        assert (await supervisor.intent(intent.intent_id).view()).planned_op is None


@pytest.mark.parametrize(
    "options",
    [{"startup_attempts_max": 0}, {"close_seconds": -1}, {"inbox_max": 0}, {"idle_seconds": "soon"}],
)
def test_options_out_of_bounds_show_the_value(options):
    with pytest.raises(ValueError, match=repr(next(iter(options.values())))):
        Options(**options)


@pytest.mark.parametrize("bad", ["nonsense", "sqlite:/one-slash", "ftp:///x", "", "mysql://x"])
def test_an_unknown_store_url_is_shown(bad):
    with pytest.raises(Exception, match="memory://"):
        open_supervisor(bad)


async def test_a_store_has_one_owner(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_supervisor(url) as supervisor:
        await supervisor.pane("pane").launch("claude-code")
        with pytest.raises(StoreOwned) as owned:
            async with open_supervisor(url):
                pass
        assert str(os.getpid()) in owned.value.holder
        program = f"""
import trio
from fencepost.supervisor import StoreOwned, open_supervisor
async def main():
    try:
        async with open_supervisor({url!r}):
            pass
    except StoreOwned as owned:
        print("owned by", owned.holder)
trio.run(main)
"""
        finished = await trio.run_process([sys.executable, "-c", program], capture_stdout=True)
        assert str(os.getpid()) in finished.stdout.decode()
        assert (await supervisor.status()).panes == 1
    async with open_supervisor(url) as supervisor:
        assert (await supervisor.status()).panes == 1


async def test_a_newer_schema_is_left_untouched(tmp_path):
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 999")
    database.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match="999"):
        async with open_supervisor(f"sqlite:///{path}"):
            pass
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to look at" * 40, b"SQLite format 3\0short"]
)
async def test_a_file_that_is_no_database_is_told_and_left_untouched(tmp_path, content):
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(StoreFault, match=r"store\.db"):
        async with open_supervisor(f"sqlite:///{path}"):
            pass
    assert path.read_bytes() == content


async def test_a_corrupt_row_blocks_its_own_pane_and_no_other(tmp_path):
    path = tmp_path / "store.db"
    url = f"sqlite:///{path}"
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        await supervisor.pane("broken").detect(moved("A", "B"))
        await supervisor.pane("sound").launch("claude-code")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute("UPDATE intents SET state = 'confused'")
    database.close()
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        with pytest.raises(StoreFault, match="confused"):
            await supervisor.pane("broken").sync_status()
        with pytest.raises(StoreFault, match="confused"):
            await supervisor.pane("broken").sync_status()
        assert await supervisor.pane("sound").sync_status() == "in_sync"
        assert (await supervisor.status()).fault is None


async def test_closing_answers_whoever_waits(url):
    never = trio.Event()
    answers: list[BaseException] = []
    async with trio.open_nursery() as nursery, open_supervisor(url, reconciler=Workspace(gate=never)) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))

        async def wait() -> None:
            try:
                await harness.call(1, "b1", wait=1000)
            except MailboxClosed as closed:
                answers.append(closed)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
    assert len(answers) == 1
    with pytest.raises(MailboxClosed):
        await pane.sync_status()
    with pytest.raises(MailboxClosed):
        await pane.intents()


async def test_a_killed_actor_comes_back_and_too_many_deaths_quarantine_it(url):
    async with open_supervisor(url, options=Options(crashes_max=2)) as supervisor:
        pane = supervisor.pane("pane")
        await supervisor.kill("pane:pane")
        launch = await pane.launch("claude-code")
        for _ in range(3):
            await pane.sync_status()
            await supervisor.kill("pane:pane")
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(FencepostError, match="quarantined"):
            while True:
                await pane.sync_status()
        assert await supervisor.pane("another").sync_status() == "in_sync"
        assert await supervisor.revive("pane:pane") == Applied()
        assert await pane.retire(launch.incarnation_id, "done") == Applied()
        kinds = [event.kind async for event in supervisor.events(follow=False)]
        assert kinds.count("actor.crashed") == 3
        assert kinds.count("actor.quarantined") == kinds.count("actor.revived") == 1


FULL_DISK = """
import os, resource, sys
import trio
from bridges import Workspace, moved
from fencepost.supervisor import StoreFault, open_supervisor

async def main(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        print((await supervisor.pane("pane").detect(moved("A", "B"))).intent_id)
        path = url.removeprefix("sqlite:///")
        room = 100_000 + max(os.path.getsize(file) for file in (path, path + "-wal"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        acknowledged = 0
        try:
            while True:
                await supervisor.pane(f"pane-{acknowledged}").detect(moved("A", "B"))
                acknowledged += 1
        except StoreFault as fault:
            first = str(fault)
        try:
            await supervisor.pane("pane").sync_status()
        except StoreFault as fault:
            assert str(fault) == first and fault.__cause__ is not None, fault
        assert (await supervisor.status()).fault == first
        print(acknowledged)

trio.run(main, sys.argv[1])
"""


async def test_a_full_disk_faults_the_runtime_visibly_and_loses_nothing(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    command = [sys.executable, "-c", FULL_DISK, url]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    finished = await trio.run_process(command, capture_stdout=True, env=environment)
    intent_id, acknowledged = finished.stdout.decode().split()
    assert int(acknowledged) > 0
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        assert (await supervisor.intent(intent_id).view()).to_base == "B"
        for number in range(int(acknowledged)):
            assert len(await supervisor.pane(f"pane-{number}").intents()) == 1
    assert await check(url) == []


async def test_arguments_of_the_wrong_type_are_the_callers_alone(url):
    async with open_supervisor(url, reconciler=Workspace(), options=Options(crashes_max=0)) as supervisor:
        pane = supervisor.pane("pane")
        for call in (
            lambda: supervisor.dead_letters("x"),
            lambda: supervisor.dead_letters(2**70),
            lambda: anext(supervisor.events(after=None)),
            lambda: pane.detect(None),
            lambda: pane.pre_tool_use("boundary"),
            lambda: pane.pre_tool_use(ToolBoundary("i", None, "b"), wait_seconds=float("nan")),
            lambda: pane.launch("claude-code", None, "capable"),
            lambda: pane.retire("i", None),
            lambda: pane.resolve("i", 7, by="ada"),
        ):
            with pytest.raises((TypeError, ValueError)):
                await call()
        for make in (
            lambda: moved("A", "B", ambiguous=5),
            lambda: NeedsRecovery(None),
            lambda: Diverged(b"bytes"),
            lambda: ModelTurn("turn", 2**63),
            lambda: ModelTurn("turn", True),
        ):
            with pytest.raises((TypeError, ValueError)):
                make()
        assert (await supervisor.status()).fault is None
        assert await pane.sync_status() == "in_sync"


def test_errors_keep_their_attributes_when_they_travel():
    blocked = LaunchBlocked("intent-1", "reconciling", "its payload does not exist yet")
    for copied in (pickle.loads(pickle.dumps(blocked)), copy.copy(blocked)):
        assert (str(copied), copied.intent_id, copied.state) == (str(blocked), "intent-1", "reconciling")


async def test_a_store_reached_through_a_link_is_the_same_store(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    async with open_supervisor(f"sqlite:///{tmp_path}/store.db"):
        with pytest.raises(StoreOwned):
            async with open_supervisor(f"sqlite:///{tmp_path}/link.db"):
                pass


async def test_a_payload_that_is_not_what_its_hash_says_is_never_handed_out(tmp_path):
    path = tmp_path / "store.db"
    url = f"sqlite:///{path}"
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE intents SET payload = x'00'")
    database.close()
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        harness.pane = supervisor.pane("pane")
        for call in (harness.call(1, "b1"), harness.pane.launch("claude-code")):
            with pytest.raises(StoreFault, match="payload"):
                await call
        assert await supervisor.pane("another").sync_status() == "in_sync"


async def test_a_persons_word_about_an_intent_that_is_over(url):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        intent = await pane.detect(moved("A", "B"))
        await harness.call(1, "b1")
        await harness.completed(1, "b1")
        await harness.call(2, "b2")
        assert (await pane.rearm(intent.intent_id)).reason is Reason.NOT_EXHAUSTED
        assert (await pane.discard(intent.intent_id, "x")).reason is Reason.NOT_EXHAUSTED
        assert await pane.resolve(intent.intent_id, "x", by="y") == Unchanged()
        assert (await supervisor.pane("other").rearm(intent.intent_id)).reason is Reason.UNKNOWN_INTENT


async def test_a_kill_is_over_when_it_returns(url):
    async with open_supervisor(url) as supervisor:
        pane = supervisor.pane("pane")
        for _ in range(3):
            await pane.sync_status()
            await supervisor.kill("pane:pane")
            assert await pane.sync_status() == "in_sync"


async def test_a_waiting_call_of_a_later_turn_does_not_outrun_the_bound_batch(url):
    gate = trio.Event()
    async with open_supervisor(url, reconciler=Workspace(gate=gate)) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1", wait=0)
        await harness.completed(1, "b1")
        told = {}

        async def wait(turn: int, batch: str) -> None:
            told[batch] = await harness.call(turn, batch, wait=100)

        async with trio.open_nursery() as nursery:
            parked = supervisor._runtime._registry._awake["pane:pane"].waiting
            for waiting, (turn, batch) in enumerate([(2, "b2"), (1, "b1")], start=1):
                nursery.start_soon(wait, turn, batch)
                while len(parked) < waiting:
                    await trio.testing.wait_all_tasks_blocked(0.001)
            gate.set()
        assert {batch: type(decision).__name__ for batch, decision in told.items()} == {
            "b1": "BlockPayload",
            "b2": "BlockPayload",
        }
