"""Who belongs to an incarnation, over made-up process tables."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given, strategies as st

from fencepost.supervisor.bridge.processes import Identity, ProcessNote, ProcessStat, family, parse_stat

NOTE = ProcessNote("pane", "incarnation", 100, 50, "boot")


def stat(pid: int, *, start=60, parent=1, group=None, session=None, state="S", threads=1, marked=False) -> ProcessStat:
    number = pid if group is None else group
    return ProcessStat(
        Identity(pid, start), parent, number, number if session is None else session, state, threads, marked
    )


LEADER = stat(100, start=50)
REAPED_AND_REUSED = stat(100, start=70)


def found(*stats: ProcessStat, known=(), leader_seen=False, note=NOTE) -> tuple[list[int], list[int]]:
    seen = family({each.identity.pid: each for each in stats}, note, known, leader_seen=leader_seen)
    return [each.identity.pid for each in seen.alive], [each.identity.pid for each in seen.doubts]


@pytest.mark.parametrize(
    ("what", "stats", "alive", "doubts"),
    [
        ("the leader", [LEADER], [100], []),
        ("a leader in another's group", [stat(100, start=50, group=7)], [100], []),
        ("a member of its session", [LEADER, stat(101, group=101, session=100)], [100, 101], []),
        ("a member of its group", [LEADER, stat(101, group=100, session=7)], [100, 101], []),
        ("a marked one", [stat(200, marked=True)], [200], []),
        ("a child with a session of its own", [LEADER, stat(101, parent=100)], [100, 101], []),
        ("a grandchild", [LEADER, stat(101, parent=100), stat(102, parent=101)], [100, 101, 102], []),
        ("a child of a marked one", [stat(200, marked=True), stat(201, parent=200)], [200, 201], []),
        ("a stranger", [LEADER, stat(300)], [100], []),
        ("one whose environment is not to be read", [LEADER, stat(300, marked=None)], [100], []),
        ("a dead leader keeps its number", [stat(100, start=50, state="Z"), stat(101, group=100)], [101], []),
        ("a leader whose threads run on", [stat(100, start=50, state="Z", threads=2)], [100], []),
        ("zombies only", [stat(100, start=50, state="Z"), stat(101, group=100, state="Z")], [], []),
        ("its pid used again", [REAPED_AND_REUSED, stat(101, group=100)], [], []),
        ("its pid used again, and a child of that", [REAPED_AND_REUSED, stat(101, parent=100)], [], []),
        ("a member without a leader", [stat(101, group=100)], [], [101]),
        ("two of them, one marked", [stat(101, group=100), stat(102, group=100, marked=True)], [101, 102], []),
        ("a dead member without a leader", [stat(101, group=100, state="Z")], [], []),
        ("a child older than its parent", [LEADER, stat(101, parent=100, start=40)], [100], []),
        ("a circle of parents", [stat(5, parent=6, marked=True), stat(6, parent=5)], [5, 6], []),
    ],
)
def test_who_belongs(what: str, stats: list[ProcessStat], alive: list[int], doubts: list[int]) -> None:
    assert found(*stats) == (alive, doubts)


def test_without_a_note_only_marks_and_descent_count() -> None:
    assert found(stat(100, start=50), stat(200, marked=True), stat(201, parent=200), note=None) == ([200, 201], [])


def test_who_was_found_once_stays_found() -> None:
    assert found(stat(101), known=[Identity(101, 60)]) == ([101], [])
    assert found(stat(101), known=[Identity(101, 59)]) == ([], []), "not for who has its number now"


def test_who_was_written_down_is_found_by_the_next_bridge() -> None:
    note = evolve(NOTE, family=(Identity(101, 60), Identity(102, 59)))
    assert found(stat(101), stat(102), note=note) == ([101], [])
    assert found(stat(101, group=100), stat(103, group=100), note=note) == ([101, 103], []), "and holds its session"


def test_members_are_beyond_doubt_once_the_leader_was_seen() -> None:
    assert found(stat(101, group=100), leader_seen=True) == ([101], [])
    assert family({100: LEADER}, NOTE, (), leader_seen=False).leader_seen
    assert not family({100: REAPED_AND_REUSED}, NOTE, (), leader_seen=False).leader_seen


numbers = st.integers(1, 12)
stats = st.builds(
    lambda pid, start, parent, group, session, state, threads, marked: ProcessStat(
        Identity(pid, start), parent, group, session, state, threads, marked
    ),
    numbers,
    st.integers(1, 5),
    numbers,
    numbers,
    numbers,
    st.sampled_from("SRDTZ"),
    st.integers(1, 2),
    st.sampled_from([True, False, None]),
)


@given(st.lists(stats, max_size=12), st.builds(Identity, numbers, st.integers(1, 5)), st.booleans())
def test_whatever_the_table_each_is_alive_and_ours_or_in_doubt_or_neither(table, leader, leader_seen: bool) -> None:
    note = ProcessNote("pane", "incarnation", leader.pid, leader.start_time, "boot")
    by_pid = {each.identity.pid: each for each in table}
    seen = family(by_pid, note, (), leader_seen=leader_seen)
    ours, doubts = {each.identity.pid for each in seen.alive}, {each.identity.pid for each in seen.doubts}
    assert not ours & doubts
    assert all(by_pid[pid].alive for pid in ours | doubts)
    for pid, each in by_pid.items():
        if each.alive and (each.marked or each.identity == leader):
            assert pid in ours
        if each.alive and each.parent in ours and each.identity.start_time >= by_pid[each.parent].identity.start_time:
            assert pid in ours
        if each.alive and note.pid in (each.pgid, each.session) and note.pid not in by_pid:
            assert pid in ours | doubts, "nobody who may be ours is passed over"


REST = b" S 1 100 100 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 12345 1 2 3"


@pytest.mark.parametrize("name", [b"sh", b"a b", b") S 1 1 1", b"((", b"))", b"\n", b"\xff", b""])
def test_a_processs_name_tells_nothing(name: bytes) -> None:
    read = parse_stat(b"42 (" + name + b")" + REST)
    assert read == ProcessStat(Identity(42, 12345), 1, 100, 100, "S", 3)
