"""A remembered transcript is looked at as one that is read anew, whatever was done to the file in between."""

from __future__ import annotations

import json
import tempfile
import uuid
from pathlib import Path

import pytest
from claude_session import ClaudeSession
from hypothesis import given, settings, strategies as st

from fencepost.supervisor.bridge.adapters import transcripts
from fencepost.supervisor.bridge.adapters.claude_turns import Place
from fencepost.supervisor.bridge.adapters.transcripts import RefusedPath, TranscriptMemory, look_for

CALLS = ["a", "b", "c"]


def line(message: str, call: str, padding: int = 0, one: uuid.UUID | None = None) -> bytes:
    """One line of an assistant's message that makes a call; like each line of a transcript it has an id of its own."""
    content = [{"type": "tool_use", "id": call}]
    said = {"role": "assistant", "id": message, "content": content, "more": "x" * padding}
    return json.dumps({"type": "assistant", "isSidechain": False, "message": said, "uuid": str(one)}).encode() + b"\n"


LINES = st.builds(line, st.sampled_from(["m1", "m2", "m3"]), st.sampled_from(CALLS), st.integers(0, 200), st.uuids())
STEPS = st.one_of(
    st.tuples(st.just("append"), LINES),
    st.tuples(st.just("append"), st.builds(lambda whole, cut: whole[:cut], LINES, st.integers(1, 60))),
    st.tuples(st.just("append"), st.just(b"\n")),
    st.tuples(st.just("cut"), st.integers(0, 400)),
    st.tuples(st.just("rewrite"), st.lists(LINES, max_size=6).map(b"".join)),
    st.tuples(st.just("replace"), st.lists(LINES, max_size=6).map(b"".join)),
)


@settings(max_examples=300)
@given(st.lists(st.tuples(STEPS, st.sampled_from(CALLS)), max_size=14))
def test_it_finds_what_a_fresh_look_finds(steps):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(transcripts, "WINDOW_BYTES", 700)
        path, memory = Path(folder) / "t.jsonl", TranscriptMemory()
        path.touch()
        for (what, how), call in steps:
            change(path, what, how)
            fresh = look_for(str(path), call, [Path(folder)], 5_000)
            look = memory.look_for(str(path), call, [Path(folder)], 5_000)
            assert (look.found, list(look.entries)) == (fresh.found, list(fresh.entries))


def change(path: Path, what: str, how) -> None:
    whole = path.read_bytes()
    if what == "append":
        with path.open("ab") as file:
            file.write(how)
    elif what == "cut":
        path.write_bytes(whole[: max(0, len(whole) - how)])
    elif what == "rewrite":
        path.write_bytes(how)
    else:
        path.rename(path.with_suffix(".old"))
        path.write_bytes(how)


def test_it_reads_only_what_was_added(tmp_path, monkeypatch):
    session = ClaudeSession(tmp_path)
    for number in range(40):
        session.turn(f"old-{number}")
    memory, path, roots = TranscriptMemory(), str(session.path), [session.projects]
    assert isinstance(memory.look_for(path, "old-39", roots).found, Place)
    read, real = [], transcripts._read

    def counted(descriptor, start, length):
        read.append(length)
        return real(descriptor, start, length)

    monkeypatch.setattr(transcripts, "_read", counted)
    before = session.path.stat().st_size
    session.turn("new")
    assert isinstance(memory.look_for(path, "new", roots).found, Place)
    assert sum(read) == session.path.stat().st_size - before + transcripts._MARK_BYTES


def test_it_does_not_remember_its_way_around_a_refusal(tmp_path):
    session = ClaudeSession(tmp_path)
    session.turn("a")
    memory, path = TranscriptMemory(), str(session.path)
    assert isinstance(memory.look_for(path, "a", [session.projects]).found, Place)
    with pytest.raises(RefusedPath):
        memory.look_for(path, "a", [tmp_path / "elsewhere"])
    session.path.unlink()
    with pytest.raises(RefusedPath):
        memory.look_for(path, "a", [session.projects])


def test_it_remembers_so_many_files_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(transcripts, "_REMEMBERED_MAX", 2)
    memory = TranscriptMemory()
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_bytes(line("m1", name))
        assert isinstance(memory.look_for(str(tmp_path / f"{name}.jsonl"), name, [tmp_path]).found, Place)
    assert [Path(path).stem for path in memory._seen] == ["b", "c"]
