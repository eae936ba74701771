"""What a transcript proves of a call: every shape a line can have, and every way one can be damaged."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from claude_session import ClaudeSession, tool_use
from hypothesis import given, strategies as st

from fencepost.supervisor.bridge.adapters.claude_turns import (
    NoTurn,
    Place,
    begins_here,
    completed,
    place_of,
    prompt_texts,
    read_entries,
)

TEXT = {"type": "text", "text": "so"}


@pytest.fixture
def session(tmp_path) -> ClaudeSession:
    return ClaudeSession(tmp_path)


def entries(session: ClaudeSession):
    return read_entries(session.path.read_bytes())


def test_a_call_belongs_to_the_message_that_made_it(session) -> None:
    session.prompt("do it")
    session.turn("a", "b")
    session.results("b", "a")
    session.turn("c")
    first, second = (place_of(entries(session), call) for call in "ac")
    assert first == place_of(entries(session), "b")
    assert first.message_id == "msg_1"
    assert first.calls == {"a", "b"}
    assert second.message_id == "msg_2"
    assert second.offset > first.offset
    assert second.batch_id != first.batch_id


def test_a_place_stays_while_the_transcript_grows_and_however_much_of_it_is_read(session) -> None:
    session.turn("before")
    session.turn("a", "b")
    found = place_of(entries(session), "a")
    content = session.path.read_bytes()
    for start in range(1, len(content)):
        read = read_entries(content[start:], start)
        seen = place_of(read, "a")
        assert seen == found or seen is NoTurn.MISSING or not begins_here(read, seen)
        assert begins_here(read, found) <= (start < found.offset)
    session.turn("after")
    assert place_of(entries(session), "a") == found


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
def test_blocks_and_results_may_stand_in_any_order(session, order) -> None:
    blocks = session.assistant("msg_1", TEXT, tool_use("a"), tool_use("b"))
    result = session.line("user", {"role": "user", "content": []}, promptId="p")
    session.write(*[[*blocks, result][place] for place in order])
    assert place_of(entries(session), "a") == place_of(entries(session), "b")
    assert place_of(entries(session), "a").calls == {"a", "b"}


def test_a_call_of_two_messages_has_no_turn(session) -> None:
    session.turn("a", message_id="msg_x")
    session.turn("a", message_id="msg_y")
    assert place_of(entries(session), "a") is NoTurn.AMBIGUOUS


def test_a_nested_agents_call_has_no_turn_of_the_main_chain(session) -> None:
    session.turn("main")
    session.write(*session.assistant("msg_nested", tool_use("deep"), isSidechain=True, agentId="a1"))
    assert place_of(entries(session), "deep") is NoTurn.NESTED
    assert place_of(entries(session), "main").calls == {"main"}


@pytest.mark.parametrize("says", [None, 0, "false", [], True])
def test_only_a_line_that_says_it_is_of_the_main_chain_is(session, says) -> None:
    session.write(*session.assistant("msg_1", tool_use("a"), isSidechain=says))
    assert place_of(entries(session), "a") is NoTurn.NESTED


@pytest.mark.parametrize("message_id", [None, 7, "", {"id": "x"}, ["x"]])
def test_a_message_without_an_id_proves_nothing(session, message_id) -> None:
    (line,) = session.assistant("msg_1", tool_use("a"))
    line["message"]["id"] = message_id
    session.write(line)
    assert place_of(entries(session), "a") is NoTurn.MISSING


def test_the_torn_last_line_is_not_there_yet(session) -> None:
    session.turn("a", "b")
    content = session.path.read_bytes()
    last_line = content.rindex(b"\n", 0, -1) + 1
    for end in range(last_line, len(content)):
        assert place_of(read_entries(content[:end]), "b") is NoTurn.MISSING
    assert isinstance(place_of(read_entries(content), "b"), Place)


def test_a_batch_is_complete_only_with_all_of_its_calls(session) -> None:
    session.turn("a", "b")
    session.turn("c")
    read = entries(session)
    for size in range(4):
        for calls in itertools.combinations("abc", size):
            place = completed(read, calls)
            expected = {("a", "b"): "msg_1", ("c",): "msg_2"}.get(calls)
            assert (None if place is None else place.message_id) == expected


def test_a_prompts_texts_are_the_users_own(session) -> None:
    session.prompt("first")
    old = session.prompt_id
    session.prompt("second")
    session.turn("a")
    session.results("a")
    nested = session.line("user", {"role": "user", "content": "deep"}, promptId=session.prompt_id, isSidechain=True)
    blocks = [{"type": "text", "text": "x"}, {"type": "image"}, {"type": "text", "text": "y"}]
    session.write(nested, session.line("user", {"role": "user", "content": blocks}, promptId=session.prompt_id))
    assert prompt_texts(entries(session), session.prompt_id) == ["second", "x\ny"]
    assert prompt_texts(entries(session), old) == ["first"]
    assert prompt_texts(entries(session), "") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("tool_use") | st.just("a"),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "message", "role", "id", "content", "promptId", "isSidechain", "text"]), inner
        )
    ),
    max_leaves=20,
)
KINDS = st.sampled_from(["assistant", "user", "system"])
LINES = st.binary(max_size=60) | st.builds(
    lambda kind, role, more, content: json.dumps(
        {**more, "type": kind, "promptId": "p", "message": {"role": role, "id": "m", "content": content}}
    ).encode(),
    KINDS,
    KINDS,
    st.dictionaries(st.sampled_from(["isSidechain", "promptId"]), JSON),
    JSON,
)


@given(st.lists(LINES, max_size=8), st.integers(0, 3), JSON)
def test_nothing_in_a_transcript_can_raise(lines, start, call) -> None:
    read = read_entries(b"\n".join(lines), start)
    assert isinstance(place_of(read, str(call)), Place | NoTurn)
    assert all(isinstance(text, str) for text in prompt_texts(read, "p"))
    place = completed(read, ["a"])
    assert place is None or place.calls == {"a"}


def test_a_line_nested_beyond_all_reason_is_skipped(session) -> None:
    session.turn("a")
    with Path(session.path).open("ab") as file:
        file.write(b'{"promptId":' + b"[" * 200_000 + b"\n")
    session.turn("b")
    assert {place_of(entries(session), call).message_id for call in "ab"} == {"msg_1", "msg_2"}


def test_a_line_of_more_values_than_anybody_says_is_skipped(session) -> None:
    said = session.assistant("msg_1", tool_use("a"))[0]
    session.write(
        {**said, "more": [[]] * 100_000},
        {**said, "more": "[{,\\" * 100_000},
        session.assistant("msg_2", tool_use("b"))[0],
    )
    found = entries(session)
    assert len(found) == 2
    session.write({**said, "more": [[]] * 100_001})
    assert entries(session) == found
