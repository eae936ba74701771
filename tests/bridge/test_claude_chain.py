"""Which calls a transcript proves to be of an agent that was told: the chain of its lines, and every break in it."""

from __future__ import annotations

import json

import pytest
from claude_session import ClaudeSession, tool_use
from hypothesis import given, strategies as st

from fencepost.supervisor.bridge.adapters.claude_chain import answered_above
from fencepost.supervisor.bridge.adapters.transcripts import told_in

STARTUP, OTHER = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"


def tagged(name: str = STARTUP) -> str:
    return f'<fencepost-startup id="{name}">\nThe files changed.\n</fencepost-startup>'


@pytest.fixture
def session(tmp_path) -> ClaudeSession:
    """An agent that was told, has answered, and calls something for another prompt."""
    made = ClaudeSession(tmp_path)
    made.prompt("before")
    made.turn("old")
    made.results("old")
    made.prompt(tagged())
    made.told = made.prompt_id
    made.answer("I have read it.")
    made.write({**made.line("system", {}), "message": None}, made.line("attachment", {}), {"type": "last-prompt"})
    made.prompt("go on")
    made.turn("a", "b")
    return made


def lines(session: ClaudeSession) -> list[dict]:
    return [json.loads(line) for line in session.path.read_bytes().splitlines()]


def prompts(said: list[dict], call: str = "a") -> list[str]:
    content = b"".join(json.dumps(line).encode() + b"\n" for line in said)
    return [entry.text for entry in answered_above(content, call)]


def test_the_prompts_above_a_call_are_those_that_the_model_has_answered(session) -> None:
    for call in "ab":
        assert prompts(lines(session), call) == [tagged(), "before"]
    assert prompts(lines(session), "old") == []
    assert prompts(lines(session), "nowhere") == []


def test_no_line_of_the_chain_can_be_missing_or_stand_there_twice_or_be_a_nested_agents(session) -> None:
    said = lines(session)
    named = [place for place, line in enumerate(said) if line.get("uuid")]
    at = next(place for place, line in enumerate(said) if line.get("promptId") == session.told)
    chain = [place for place in named if at <= place][:5]  # the tag, the answer, two lines between, the next prompt
    assert [said[place]["type"] for place in chain] == ["user", "assistant", "system", "attachment", "user"]
    for place in chain:
        assert tagged() not in prompts([*said[:place], *said[place + 1 :]])
        assert tagged() not in prompts([*said, said[place]])
        if said[place]["type"] in {"user", "assistant"}:
            nested = {**said[place], "isSidechain": True}
            assert tagged() not in prompts([*said[:place], nested, *said[place + 1 :]])


def test_a_chain_that_bites_its_tail_has_an_end(session) -> None:
    said = lines(session)
    first = next(line for line in said if line["type"] == "user")
    first["parentUuid"] = said[-1]["uuid"]
    assert prompts(said) == [tagged(), "before"]


def test_what_was_said_before_a_prompt_is_no_answer_to_it(session) -> None:
    session.prompt("another")
    session.turn("c")
    assert prompts(lines(session), "c") == ["go on", tagged(), "before"]


def test_a_call_of_two_messages_proves_nothing(session) -> None:
    session.turn("a")
    assert prompts(lines(session)) == []


def test_the_tag_in_a_tools_result_is_nobodys_prompt(tmp_path) -> None:
    session = ClaudeSession(tmp_path)
    session.prompt("read it")
    session.turn("read")
    content = [{"type": "tool_result", "tool_use_id": "read", "content": tagged()}]
    session.write(session.line("user", {"role": "user", "content": content}, promptId=session.prompt_id))
    session.answer("I have read it.")
    session.prompt("go on")
    session.turn("a")
    assert prompts(lines(session)) == ["read it"]


def test_the_one_prompt_with_the_tag_is_found_as_far_up_as_anything_is_read(session) -> None:
    def told(call: str, startup_delivery_id: str = STARTUP):
        return told_in(str(session.path), call, startup_delivery_id, [session.projects])

    found = told("a")
    assert (found.prompt_id, found.tag.payload) == (session.told, b"The files changed.")
    assert told("a", OTHER) is None
    session.prompt("x" * 3_000_000)
    session.turn("far")
    assert told("far") == found
    session.prompt("x" * 16_000_000)
    session.turn("too far")
    assert told("too far") is None


VALUES = st.none() | st.booleans() | st.text(max_size=3) | st.integers() | st.lists(st.just({}), max_size=2)
FIELDS = ("uuid", "parentUuid", "type", "message", "isSidechain", "promptId")


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(FIELDS), VALUES), max_size=4), st.binary(max_size=40))
def test_damaged_lines_prove_nothing_and_raise_nothing(tmp_path_factory, damages, more) -> None:
    session = ClaudeSession(tmp_path_factory.mktemp("fuzz"))
    session.prompt(tagged())
    session.answer("so")
    session.prompt("go on")
    session.write(*session.assistant("msg_9", tool_use("a")))
    said = lines(session)
    for place, field, value in damages:
        said[place % len(said)][field] = value
    assert {*prompts(said)} <= {tagged(), "go on"}
    cut = answered_above(more + session.path.read_bytes() + more, "a", cut=True)
    assert [entry.text for entry in cut] == ([tagged()] if more.endswith(b"\n") else [])
