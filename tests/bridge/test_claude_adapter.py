"""The Claude Code adapter against a real runtime: what its hooks print, and what the pane knows afterwards."""

from __future__ import annotations

import json
import os
import threading
from contextlib import asynccontextmanager

import pytest
import trio
from bridges import Workspace, moved, payload_of
from claude_session import ClaudeSession
from hypothesis import given, strategies as st

from fencepost.supervisor import (
    Applied,
    IntentState,
    Options,
    Reason,
    Unchanged,
    open_supervisor,
)
from fencepost.supervisor.bridge.adapters import HookAnswer, claude, transcripts
from fencepost.supervisor.bridge.adapters.answers import denial
from fencepost.supervisor.bridge.adapters.claude import ClaudeCodeAdapter
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.adapters.transcripts import TranscriptMemory
from fencepost.supervisor.bridge.startup_tag import tagged_input

ALLOWED = HookAnswer()


class Life:
    """One process in one pane: its session, its incarnation, and the adapter that answers its hooks."""

    def __init__(self, folder, supervisor) -> None:
        self.folder = folder
        self.supervisor = supervisor
        self.pane = supervisor.pane("pane/1")
        self.session = ClaudeSession(folder)
        self.incarnation_id = ""
        self.launch = None
        self.new_bridge()

    def new_bridge(self) -> None:
        """A bridge that remembers nothing."""
        self.adapter = ClaudeCodeAdapter(Gate(self.folder / "spool"), transcripts=[self.session.projects])

    async def start(self, version="2.1.197") -> None:
        capabilities = self.adapter.capabilities(version)
        self.launch = await self.pane.launch("claude-code", self.session.session_id, capabilities)
        self.incarnation_id = self.launch.incarnation_id

    async def hook(self, event, wait=2.0, incarnation_id=None) -> HookAnswer:
        return await self.adapter.on_hook(self.pane, incarnation_id or self.incarnation_id, event, wait)

    async def all(self, events) -> list[HookAnswer]:
        """All hooks of a message at once, as the harness runs them."""
        answers = {}

        async def one(place, event) -> None:
            answers[place] = await self.hook(event)

        async with trio.open_nursery() as nursery:
            for place, event in enumerate(events):
                nursery.start_soon(one, place, event)
        return [answers[place] for place in range(len(events))]

    async def mark(self, delivered):
        return await self.pane.mark_delivered(
            delivered.intent_id, delivered.incarnation_id, delivered.turn_id, delivered.batch_id
        )

    async def intent(self):
        return (await self.pane.intents())[-1]


@asynccontextmanager
async def life(folder, workspace=None, started=True, **options):
    async with open_supervisor("memory://", reconciler=workspace or Workspace(), options=Options(**options)) as opened:
        alive = Life(folder, opened)
        if started:
            await alive.start()
        yield alive


def reason_in(answer: HookAnswer) -> str:
    said = json.loads(answer.stdout)["hookSpecificOutput"]
    assert (said["hookEventName"], said["permissionDecision"]) == ("PreToolUse", "deny")
    assert answer.exit_code == 0
    return said["permissionDecisionReason"]


async def is_restarted(alive: Life, answer: HookAnswer, reason: Reason) -> bool:
    """Whether the process was fenced, for this reason: its next hook is a dead one's."""
    assert answer.delivered is None
    late = await alive.hook(alive.session.call("late"), wait=0)
    letters = await alive.supervisor.dead_letters()
    assert [letter.reason for letter in letters] == [Reason.RETIRED_INCARNATION]
    retired = [e async for e in alive.supervisor.events(follow=False) if e.kind == "incarnation.retired"]
    return reason_in(late).startswith("This process has been replaced") and retired[-1].data["reason"] == reason


# -- soft delivery ---------------------------------------------------------------------------------------------------


async def test_a_parallel_batch_is_told_the_same_bytes_and_the_next_turn_proves_it(tmp_path) -> None:
    async with life(tmp_path) as alive:
        alive.session.prompt("go")
        assert await alive.all(alive.session.turn("a0")) == [ALLOWED]
        await alive.pane.detect(moved("main-1", "main-2"))

        answers = await alive.all(alive.session.turn("a", "b", "c"))
        assert {reason_in(answer).encode() for answer in answers} == {payload_of("main-2")}
        assert [type(await alive.mark(answer.delivered)) for answer in answers] == [Applied, Unchanged, Unchanged]
        assert (await alive.intent()).state is IntentState.DELIVERED
        assert (await alive.intent()).batch_completed_at is None

        alive.session.results("b", "a", "c")
        assert await alive.hook(alive.session.ended("a", "b", "c")) == ALLOWED
        assert (await alive.intent()).batch_completed_at is not None
        assert (await alive.intent()).state is IntentState.DELIVERED

        assert await alive.all(alive.session.turn("d", "e")) == [ALLOWED, ALLOWED]
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED


async def test_a_batch_that_was_let_pass_goes_on_and_the_next_is_told(tmp_path) -> None:
    async with life(tmp_path) as alive:
        first, second = alive.session.turn("a", "b")
        assert await alive.hook(first) == ALLOWED
        await alive.pane.detect(moved("main-1", "main-2"))
        assert await alive.hook(second) == ALLOWED
        (answer,) = await alive.all(alive.session.turn("c"))
        assert reason_in(answer).encode() == payload_of("main-2")


async def test_a_call_waits_for_the_files_and_its_budget_ends_with_a_block(tmp_path) -> None:
    gate = trio.Event()
    async with life(tmp_path, Workspace(gate=gate)) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        patient, impatient = alive.session.turn("a", "b")
        answers = []

        async def wait() -> None:
            answers.append(await alive.hook(patient, wait=30))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            blocked = await alive.hook(impatient, wait=0)  # also while the other waits: the lock is not held for that
            assert reason_in(blocked).startswith("The files are being brought up to date")
            assert blocked.delivered is None
            gate.set()
        assert reason_in(answers[0]).encode() == payload_of("main-2")


async def test_a_part_of_a_batch_completes_nothing(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        for answer in await alive.all(alive.session.turn("a", "b")):
            await alive.mark(answer.delivered)
        await alive.hook(alive.session.ended("a"))
        await alive.hook(alive.session.ended("a", "b", "c"))
        await alive.hook(alive.session.ended("a", "b", agent_id="nested"))
        assert (await alive.intent()).batch_completed_at is None
        (answer,) = await alive.all(alive.session.turn("later"))
        assert await is_restarted(alive, answer, Reason.BATCH_NOT_COMPLETE)


async def test_a_hook_of_a_replaced_process_is_fenced(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        old, events = alive.incarnation_id, alive.session.turn("a", "b")
        answer = await alive.hook(events[0])
        await alive.start()
        late = await alive.hook(events[1], incarnation_id=old)
        assert reason_in(late) != payload_of("main-2").decode()
        assert late.delivered is None
        assert (await alive.mark(answer.delivered)).reason is Reason.RETIRED_INCARNATION
        await alive.hook(alive.session.ended("a", "b"), incarnation_id=old)
        reasons = [letter.reason for letter in await alive.supervisor.dead_letters()]
        assert reasons == [Reason.RETIRED_INCARNATION] * 3


# -- a proof that fails ----------------------------------------------------------------------------------------------


def _no_path(session) -> None:
    session.path.unlink()


def _no_message(session) -> None:
    session.path.write_text("")


def _two_messages(session) -> None:
    session.turn("a", message_id="msg_again")


def _elsewhere(session) -> None:
    outside = session.projects.parent / "outside.jsonl"
    session.path.rename(outside)
    session.path.symlink_to(outside)


def _pipe(session) -> None:
    session.path.unlink()
    os.mkfifo(session.path)


def _folder(session) -> None:
    session.path.unlink()
    session.path.mkdir()


def _strange_id(session) -> None:
    session.path.write_text("")
    session.turn("a", message_id="msg \x1b[31m")


def _long_id(session) -> None:
    session.path.write_text("")
    session.turn("a", message_id="m" * 300)


@pytest.mark.parametrize(
    "spoil", [_no_path, _no_message, _two_messages, _elsewhere, _pipe, _folder, _strange_id, _long_id]
)
async def test_without_a_proof_a_call_has_no_turn_and_a_pending_intent_restarts(
    tmp_path, spoil, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(claude, "_LOOK_SECONDS", 0.01)
    async with life(tmp_path) as alive:
        (event,) = alive.session.turn("a")
        spoil(alive.session)
        assert await alive.hook(event) == ALLOWED
        proved = {**event, "tool_use_id": "b"}
        if spoil in {_no_message, _two_messages, _strange_id, _long_id}:
            (proved,) = alive.session.turn("b")
        await alive.pane.detect(moved("main-1", "main-2"))
        answer = await alive.hook(proved)  # once without a proof, this process gets no turn any more
        assert await is_restarted(alive, answer, Reason.TURN_ORDER_UNKNOWN)
    assert "\x1b" not in caplog.text
    assert "no provable turns" in caplog.text


@pytest.mark.parametrize("path", ["", "relative.jsonl", "/etc/passwd", "/x\0y.jsonl", "/" + "a" * 4000 + ".jsonl"])
async def test_a_path_that_is_no_transcripts_is_not_opened(tmp_path, path, monkeypatch) -> None:
    monkeypatch.setattr(claude, "_LOOK_SECONDS", 0.01)
    async with life(tmp_path) as alive:
        (event,) = alive.session.turn("a")
        await alive.pane.detect(moved("main-1", "main-2"))
        answer = await alive.hook({**event, "transcript_path": path})
        assert await is_restarted(alive, answer, Reason.TURN_ORDER_UNKNOWN)


async def test_a_path_may_not_climb_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(claude, "_LOOK_SECONDS", 0.01)
    async with life(tmp_path) as alive:
        (event,) = alive.session.turn("a")
        stolen = tmp_path / "other.jsonl"
        stolen.write_bytes(alive.session.path.read_bytes())
        await alive.pane.detect(moved("main-1", "main-2"))
        answer = await alive.hook({**event, "transcript_path": f"{alive.session.projects}/../other.jsonl"})
        assert await is_restarted(alive, answer, Reason.TURN_ORDER_UNKNOWN)


@pytest.mark.parametrize("forgets", [False, True], ids=["same bridge", "another bridge"])
async def test_a_call_that_ran_without_a_turn_takes_its_siblings_turn_for_good(tmp_path, monkeypatch, forgets) -> None:
    monkeypatch.setattr(claude, "_LOOK_SECONDS", 0.01)
    async with life(tmp_path) as alive:
        first, second = alive.session.turn("a", "b")
        hidden = alive.session.path.rename(tmp_path / "hidden")
        assert await alive.hook(first) == ALLOWED
        hidden.rename(alive.session.path)
        if forgets:
            alive.new_bridge()
        await alive.pane.detect(moved("main-1", "main-2"))
        answer = await alive.hook(second)  # files may not move: the first one still runs
        assert (await alive.intent()).batch_id is None
        assert await is_restarted(alive, answer, Reason.TURN_ORDER_UNKNOWN)


async def test_a_call_whose_siblings_proof_fails_after_its_own_has_no_turn_either(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(claude, "_LOOK_SECONDS", 0.01)
    async with life(tmp_path) as alive:
        first, second = alive.session.turn("a", "b")
        is_placed, may_go_on, echo = trio.Event(), trio.Event(), ClaudeCodeAdapter._echo

        async def slow_echo(self, pane, call, entries):
            if call.tool_use_id == "b":
                is_placed.set()
                await may_go_on.wait()
            return await echo(self, pane, call, entries)

        monkeypatch.setattr(ClaudeCodeAdapter, "_echo", slow_echo)
        answers = []

        async def ask() -> None:
            answers.append(await alive.hook(second))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await is_placed.wait()
            alive.session.path.rename(tmp_path / "hidden")
            assert await alive.hook(first) == ALLOWED
            await alive.pane.detect(moved("main-1", "main-2"))
            may_go_on.set()
        assert await is_restarted(alive, answers[0], Reason.TURN_ORDER_UNKNOWN)


async def test_a_nested_agents_calls_take_no_turn_from_their_caller_in_the_next_bridge(tmp_path) -> None:
    async with life(tmp_path) as alive:
        (first,) = alive.session.turn("a")
        assert await alive.hook(first) == ALLOWED
        assert await alive.hook({**alive.session.call("n"), "agent_id": "nested"}) == ALLOWED
        alive.new_bridge()
        await alive.pane.detect(moved("main-1", "main-2"))
        (later,) = alive.session.turn("c")
        assert reason_in(await alive.hook(later)).encode() == payload_of("main-2")


@pytest.mark.parametrize("version", [None, "2.1.196", "2.2.0", "2.1.197-beta", ""])
async def test_an_unproved_version_is_told_by_a_restart(tmp_path, version) -> None:
    async with life(tmp_path, started=False) as alive:
        await alive.start(version)
        await alive.pane.detect(moved("main-1", "main-2"))
        (answer,) = await alive.all(alive.session.turn("a"))
        assert await is_restarted(alive, answer, Reason.PAYLOAD_UNBOUND)


async def test_a_half_written_last_line_is_waited_for(tmp_path, monkeypatch) -> None:
    async with life(tmp_path) as alive:
        events = alive.session.turn("a", "b")
        whole = alive.session.path.read_bytes()
        alive.session.path.write_bytes(whole[:-20])
        looked = []
        look_for = TranscriptMemory.look_for

        def look(*arguments):
            found = look_for(*arguments)
            looked.append(found.found)
            alive.session.path.write_bytes(whole)
            return found

        monkeypatch.setattr(TranscriptMemory, "look_for", look)
        await alive.pane.detect(moved("main-1", "main-2"))
        answer = await alive.hook(events[1])
        assert reason_in(answer).encode() == payload_of("main-2")
        assert len(looked) == 2


async def test_the_transcript_of_a_new_session_is_waited_for(tmp_path, monkeypatch) -> None:
    async with life(tmp_path) as alive:
        (event,) = alive.session.turn("a")
        later = alive.session.path.rename(tmp_path / "later")
        look_for = TranscriptMemory.look_for

        def look(*arguments):
            try:
                return look_for(*arguments)
            finally:
                if later.exists():
                    later.rename(alive.session.path)

        monkeypatch.setattr(TranscriptMemory, "look_for", look)
        await alive.pane.detect(moved("main-1", "main-2"))
        assert reason_in(await alive.hook(event)).encode() == payload_of("main-2")


async def test_a_message_that_is_waited_for_is_found_behind_a_line_longer_than_a_window(tmp_path, monkeypatch) -> None:
    async with life(tmp_path) as alive:
        alive.session.turn("old")
        content = [{"type": "tool_result", "tool_use_id": "old", "content": "x" * transcripts.WINDOW_BYTES}]
        result = alive.session.line("user", {"role": "user", "content": content}, promptId=alive.session.prompt_id)
        alive.session.write(result)
        before = alive.session.path.read_bytes()
        (event,) = alive.session.turn("a")
        after = alive.session.path.read_bytes()
        alive.session.path.write_bytes(before)
        look_for = TranscriptMemory.look_for

        def look(*arguments):
            try:
                return look_for(*arguments)
            finally:
                alive.session.path.write_bytes(after)

        monkeypatch.setattr(TranscriptMemory, "look_for", look)
        await alive.pane.detect(moved("main-1", "main-2"))
        assert reason_in(await alive.hook(event)).encode() == payload_of("main-2")


async def test_a_message_far_from_the_end_is_found_and_its_ordinal_is_its_place(tmp_path) -> None:
    async with life(tmp_path) as alive:
        alive.session.turn("old")
        (event,) = alive.session.turn("a")
        filler = {"type": "attachment", "attachment": "x" * 100_000}
        alive.session.write(*[filler] * 30)
        await alive.pane.detect(moved("main-1", "main-2"))
        await alive.hook(event)
        turn = (await alive.intent()).turn
        content = alive.session.path.read_bytes()
        assert turn.id == "msg_2"
        assert content[turn.ordinal :].startswith(b"{")
        assert b"msg_2" in content[turn.ordinal :].partition(b"\n")[0]
        assert b"msg_2" not in content[: turn.ordinal]


# -- another conversation of the same process --------------------------------------------------------------------------


def cleared(alive: Life, length: int):
    """A person clears the conversation: the next turn is in another transcript, so far from its begin."""
    alive.session = ClaudeSession(alive.folder)
    alive.session.prompt("another task" + "x" * length)
    return alive.session.turn("c", message_id="msg of another conversation")


@pytest.mark.parametrize("length", [0, 100_000], ids=["before", "behind"])
@pytest.mark.parametrize("forgets", [False, True], ids=["same bridge", "new bridge"])
async def test_a_turn_of_another_conversation_proves_nothing_of_the_last(tmp_path, length: int, forgets: bool) -> None:
    async with life(tmp_path) as alive:
        alive.session.prompt("y" * 1_000)
        await alive.pane.detect(moved("main-1", "main-2"))
        for answer in await alive.all(alive.session.turn("a", "b")):
            await alive.mark(answer.delivered)
        await alive.hook(alive.session.ended("a", "b"))
        if forgets:
            alive.new_bridge()
        (answer,) = await alive.all(cleared(alive, length))
        assert (await alive.intent()).acknowledged_at is None
        assert await is_restarted(alive, answer, Reason.TURN_ORDER_UNKNOWN)


async def test_another_conversation_is_told_as_the_first_was_while_nothing_was_open(tmp_path) -> None:
    async with life(tmp_path) as alive:
        alive.session.prompt("go")
        assert await alive.all(alive.session.turn("a")) == [ALLOWED]
        await alive.pane.detect(moved("main-1", "main-2"))
        (answer,) = await alive.all(cleared(alive, 0))
        assert reason_in(answer).encode() == payload_of("main-2")
        await alive.mark(answer.delivered)
        await alive.hook(alive.session.ended("c"))
        alive.new_bridge()
        assert await alive.all(alive.session.turn("d")) == [ALLOWED]
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED


# -- nested agents ---------------------------------------------------------------------------------------------------


async def test_a_nested_call_runs_while_nothing_is_pending_and_spoils_nothing(tmp_path) -> None:
    async with life(tmp_path) as alive:
        (event,) = alive.session.turn("agent")
        assert await alive.hook(event) == ALLOWED
        assert await alive.hook(alive.session.call("deep", agent_id="a1")) == ALLOWED
        await alive.hook(alive.session.ended("agent"))
        await alive.pane.detect(moved("main-1", "main-2"))
        (answer,) = await alive.all(alive.session.turn("next"))
        assert reason_in(answer).encode() == payload_of("main-2")


async def test_a_nested_call_is_no_later_turn(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.pane.detect(moved("main-1", "main-2"))
        (answer,) = await alive.all(alive.session.turn("a"))
        await alive.mark(answer.delivered)
        await alive.hook(alive.session.ended("a"))
        nested = await alive.hook(alive.session.call("deep", agent_id="a1"))
        assert (await alive.intent()).state is IntentState.DELIVERED
        assert await is_restarted(alive, nested, Reason.TURN_ORDER_UNKNOWN)


# -- delivery by a restart ---------------------------------------------------------------------------------------------


async def restarted(alive: Life) -> str:
    """Kill the process in the middle of a blocked batch; its replacement's tagged input."""
    await alive.pane.detect(moved("main-1", "main-2"))
    await alive.all(alive.session.turn("a", "b"))
    await alive.start()
    assert alive.launch.startup is not None
    return tagged_input(alive.launch.startup)


async def test_a_replacement_is_told_at_its_start_and_its_first_turn_proves_it(tmp_path) -> None:
    async with life(tmp_path) as alive:
        tagged = await restarted(alive)
        assert await alive.hook(alive.session.prompt(tagged)) == ALLOWED
        assert (await alive.intent()).state is IntentState.DELIVERED
        assert await alive.all(alive.session.turn("c", "d")) == [ALLOWED, ALLOWED]
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED
        assert await alive.supervisor.dead_letters() == []


@pytest.mark.parametrize("handshake", [True, False])
async def test_the_echo_outlives_the_bridge(tmp_path, handshake) -> None:
    async with life(tmp_path) as alive:
        event = alive.session.prompt(await restarted(alive))
        if handshake:
            await alive.hook(event)
        alive.new_bridge()
        assert await alive.all(alive.session.turn("c", "d")) == [ALLOWED, ALLOWED]
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED


async def test_a_call_of_another_prompt_is_no_echo(tmp_path) -> None:
    async with life(tmp_path) as alive:
        tagged = await restarted(alive)
        await alive.hook(alive.session.prompt(tagged))
        await alive.hook(alive.session.prompt("and now something else"))
        (answer,) = await alive.all(alive.session.turn("c"))
        assert reason_in(answer).startswith("This process did not prove")
        assert (await alive.intent()).state is IntentState.DELIVERED


@pytest.mark.parametrize("length", [0, 100_000, 400_000], ids=["near", "in reach", "beyond a window"])
@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("forgets", [False, True], ids=["same bridge", "new bridge"])
async def test_an_agent_that_answered_in_prose_proves_it_with_its_next_call(tmp_path, heard, forgets, length) -> None:
    async with life(tmp_path) as alive:
        event = alive.session.prompt(await restarted(alive))
        if heard:
            await alive.hook(event)
        alive.session.answer("I have read it.")
        if forgets:
            alive.new_bridge()
        await alive.hook(alive.session.prompt("and now this: " + "x" * length))
        alive.session.answer("Let me think.")
        await alive.hook(alive.session.prompt("go on"))
        assert (await alive.intent()).acknowledged_at is None, "an answer alone is no boundary"
        assert await alive.all(alive.session.turn("c", "d")) == [ALLOWED, ALLOWED]
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED
        assert await alive.supervisor.dead_letters() == []
        alive.session.results("c", "d")
        assert await alive.all(alive.session.turn("e")) == [ALLOWED]


async def test_a_process_whose_turns_are_not_proved_has_the_echo_of_what_it_answered(tmp_path) -> None:
    async with life(tmp_path, started=False) as alive:
        await alive.start("9.9.9")
        await alive.pane.detect(moved("main-1", "main-2"))
        await alive.all(alive.session.turn("a"))
        await alive.start("9.9.9")
        await alive.hook(alive.session.prompt(tagged_input(alive.launch.startup)))
        alive.session.answer("I have read it.")
        await alive.hook(alive.session.prompt("go on"))
        assert await alive.all(alive.session.turn("c")) == [ALLOWED]
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED


def _by_nobody(alive: Life, _before: str) -> None:
    alive.session.answer("An error occurred.", model="<synthetic>")


def _nested(alive: Life, _before: str) -> None:
    alive.session.write(*alive.session.assistant("msg_nested", isSidechain=True, agentId="a1"))


def _rewound(alive: Life, before: str) -> None:
    alive.session.answer("I have read it.")
    alive.session.last = before


def _compacted(alive: Life, _before: str) -> None:
    alive.session.answer("I have read it.")
    alive.session.last = None


def _cleared(alive: Life, _before: str) -> None:
    alive.session.answer("I have read it.")
    alive.session = ClaudeSession(alive.folder)


@pytest.mark.parametrize("then", [_by_nobody, _nested, _rewound, _compacted, _cleared])
async def test_who_did_not_answer_it_or_no_longer_knows_it_proves_nothing(tmp_path, then) -> None:
    async with life(tmp_path) as alive:
        tagged = await restarted(alive)
        before = alive.session.last
        await alive.hook(alive.session.prompt(tagged))
        then(alive, before)
        await alive.hook(alive.session.prompt("go on"))
        (answer,) = await alive.all(alive.session.turn("c"))
        assert reason_in(answer).startswith("This process did not prove")
        assert (await alive.intent()).state is IntentState.DELIVERED


async def test_a_successor_does_not_inherit_what_its_predecessor_answered(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.hook(alive.session.prompt(await restarted(alive)))
        alive.session.answer("I have read it.")
        await alive.start()  # in the same conversation, and told by nothing that it has seen
        await alive.hook(alive.session.prompt("go on"))
        (answer,) = await alive.all(alive.session.turn("c"))
        assert reason_in(answer).startswith("This process did not prove")


async def test_what_a_nested_agent_is_asked_is_no_startup_whatever_was_quoted_to_it(tmp_path) -> None:
    async with life(tmp_path) as alive:
        tagged = await restarted(alive)
        asked = alive.session.prompt(tagged, written=False)
        await alive.hook({**asked, "agent_id": "a1"})
        assert (await alive.intent()).handshake_at is None
        (answer,) = await alive.all(alive.session.turn("c"))
        assert reason_in(answer).startswith("This process did not prove")


async def test_what_a_nested_agent_is_asked_takes_no_echo_from_its_caller(tmp_path) -> None:
    async with life(tmp_path) as alive:
        asked = alive.session.prompt(await restarted(alive))
        await alive.hook(asked)
        await alive.hook({**asked, "prompt": "look around", "agent_id": "a1"})
        assert await alive.all(alive.session.turn("c")) == [ALLOWED]
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED


async def test_a_nested_agent_of_one_that_answered_proves_nothing(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.hook(alive.session.prompt(await restarted(alive)))
        alive.session.answer("I have read it.")
        await alive.hook(alive.session.prompt("go on"))
        (event,) = alive.session.turn("c")
        answer = await alive.hook({**event, "agent_id": "a1"})
        assert reason_in(answer).startswith("This process did not prove")


async def test_what_another_pane_says_of_one_that_answered_neither_proves_nor_spoils_it(tmp_path) -> None:
    async with life(tmp_path) as alive:
        await alive.hook(alive.session.prompt(await restarted(alive)))
        alive.session.answer("I have read it.")
        await alive.hook(alive.session.prompt("go on"))
        (event,) = alive.session.turn("c")
        foreign = await alive.adapter.on_hook(alive.supervisor.pane("pane/2"), alive.incarnation_id, event, 0)
        assert reason_in(foreign).startswith("This process belongs to another pane")
        assert (await alive.intent()).state is IntentState.DELIVERED
        assert await alive.hook(event) == ALLOWED
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace("The files", "No files"),
        lambda text: text.replace('id="', 'id="x'),
        lambda text: text.replace("</fencepost-startup>", ""),
        lambda text: text.split("\n", 1)[1],
    ],
)
async def test_a_spoiled_startup_input_proves_nothing(tmp_path, spoil) -> None:
    async with life(tmp_path) as alive:
        tagged = await restarted(alive)
        await alive.hook(alive.session.prompt(spoil(tagged)))
        assert (await alive.intent()).state is IntentState.MATERIALIZED
        (answer,) = await alive.all(alive.session.turn("c"))
        assert reason_in(answer).endswith("restarts.") or "never accepted" in reason_in(answer)
        assert (await alive.intent()).state is IntentState.MATERIALIZED


async def test_the_tag_in_a_nested_agents_prompt_is_no_handshake(tmp_path) -> None:
    async with life(tmp_path) as alive:
        tagged = await restarted(alive)
        alive.session.prompt("hello")
        message = {"role": "user", "content": tagged}
        alive.session.write(
            alive.session.line("user", message, promptId=alive.session.prompt_id, isSidechain=True, agentId="a1")
        )
        (answer,) = await alive.all(alive.session.turn("c"))
        assert reason_in(answer).startswith("This process did not prove")


# -- another pane ------------------------------------------------------------------------------------------------------


async def test_what_another_pane_says_of_a_process_takes_no_proof_from_it(tmp_path) -> None:
    async with life(tmp_path) as alive:
        other = alive.supervisor.pane("pane/2")
        lost = alive.session.call("nowhere")
        await alive.adapter.on_hook(
            other, alive.incarnation_id, lost, 0
        )  # no proof: that process has no turns any more
        await alive.pane.detect(moved("main-1", "main-2"))
        (answer,) = await alive.all(alive.session.turn("a"))
        assert reason_in(answer).encode() == payload_of("main-2")


async def test_what_another_pane_says_crowds_no_echo_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(claude, "_REMEMBERED_MAX", 2)
    async with life(tmp_path) as alive:
        await alive.hook(alive.session.prompt(await restarted(alive), written=False))  # so that only its hook told it
        for number in range(3):
            said = {"hook_event_name": "UserPromptSubmit", "prompt_id": f"p{number}", "prompt": "go"}
            await alive.adapter.on_hook(alive.supervisor.pane("pane/2"), "process", said, 0)
        assert await alive.all(alive.session.turn("a")) == [ALLOWED]
        assert (await alive.intent()).state is IntentState.ACKNOWLEDGED


async def test_a_pane_that_has_all_its_transcripts_read_at_once_holds_up_no_other(tmp_path, monkeypatch) -> None:
    looked, begun, released = TranscriptMemory.look_for, trio.Event(), threading.Event()
    in_runtime = trio.lowlevel.current_trio_token()
    reading: list[str] = []

    def slow(memory, path, call, *more):
        if not call.startswith("flood"):
            return looked(memory, path, call, *more)
        reading.append(call)
        in_runtime.run_sync_soon(begun.set)
        released.wait(60)
        return looked(memory, path, call, *more)

    monkeypatch.setattr(TranscriptMemory, "look_for", slow)
    async with life(tmp_path) as alive, trio.open_nursery() as nursery:
        other = alive.supervisor.pane("pane/2")
        for number in range(60):  # more than trio has threads for
            nursery.start_soon(alive.adapter.on_hook, other, "process", alive.session.ended(f"flood{number}"), 0)
        await begun.wait()
        try:
            with trio.fail_after(20):
                assert await alive.all(alive.session.turn("a")) == [ALLOWED]
            assert len(reading) == 1
        finally:
            released.set()


# -- hostile events ----------------------------------------------------------------------------------------------------


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["PreToolUse", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("hook_event_name", "tool_use_id", "prompt_id", "transcript_path", "agent_id", "tool_calls", "prompt")


@given(st.lists(st.tuples(st.sampled_from(FIELDS), VALUES), max_size=4), st.integers(0, 2))
def test_a_hostile_event_is_answered_or_is_no_event(tmp_path_factory, spoiled, which) -> None:
    folder = tmp_path_factory.mktemp("fuzz")

    async def one() -> None:
        async with life(folder) as alive:
            (event,) = alive.session.turn("a")
            events = [event, alive.session.prompt("go"), alive.session.ended("a")]
            try:
                answer = await alive.hook({**events[which], **dict(spoiled)}, wait=0)
            except ValueError:
                answer = ALLOWED
            assert answer == ALLOWED

    trio.run(one)


async def test_the_denial_is_the_payload_whatever_is_in_it() -> None:
    text = 'a "quoted" \\ line\r\n\tünïcode 🙂 \u2028 \x00 \x7f </script>'
    said = json.loads(denial(text))
    assert said["hookSpecificOutput"]["permissionDecisionReason"] == text
    assert denial(text).isascii()
