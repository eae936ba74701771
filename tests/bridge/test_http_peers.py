"""Who connected, which pane it lives in, and what is kept private: processes, members, tokens."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.supervisor import InvalidIdentifier
from fencepost.supervisor.bridge import private_files
from fencepost.supervisor.bridge.auth import operator_token
from fencepost.supervisor.bridge.panes import PaneBook
from fencepost.supervisor.bridge.peers import Process, Stat, lineage, peer_of, process, stat_of
from fencepost.supervisor.bridge.private_files import Unsafe, private_folder, read_private, replace_private
from fencepost.supervisor.bridge.seats import NotThere, Seats

# A pane: it says its child's process id, and its child waits for a line.  `orphan` lets the child's parent die.
PANE = """
import os, sys
manner = sys.argv[1]
if manner == "session":
    os.setsid()
middle = os.fork()
if not middle:
    child = os.fork()
    if not child:
        sys.stdin.readline()
        os._exit(0)
    print(child, flush=True)
    if manner == "child":
        os.waitpid(child, 0)
    os._exit(0)
if manner != "child":
    os.waitpid(middle, 0)
    print("orphaned", flush=True)
sys.stdin.readline()
"""


class Pane:
    """A process with a grandchild."""

    def __init__(self, manner: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PANE, manner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.child = int(self.process.stdout.readline())
        if manner != "child":
            assert self.process.stdout.readline() == "orphaned\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate("\n\n")


def test_a_child_lives_in_its_panes_process(tmp_path):
    seats = Seats()
    with Pane("child") as ours, Pane("child") as theirs:
        for name, pane in (("ours", ours), ("theirs", theirs)):
            seats.admit(name)
            seats.occupy(name, pane.process.pid)
        assert seats.by_process(process(ours.child)).pane_id == "ours"
        assert seats.by_process(process(ours.process.pid)).pane_id == "ours"
        assert seats.by_process(process(theirs.child)).pane_id == "theirs"
        assert seats.by_process(process(os.getpid())) is None  # above them, and in no pane
        seats.dismiss("ours")
        assert seats.by_process(process(ours.child)) is None
        gone = process(theirs.child)
    assert seats.by_process(gone) is None


def test_an_orphan_is_known_by_its_session_and_by_nothing_less():
    seats = Seats()
    seats.admit("pane")
    with Pane("session") as pane:
        seats.occupy("pane", pane.process.pid)
        assert seats.by_process(process(pane.child)).pane_id == "pane"
    with Pane("orphan") as pane:  # its session is this test's
        seats.occupy("pane", pane.process.pid)
        assert seats.by_process(process(pane.child)) is None


def test_the_nearest_pane_is_its_own():
    seats = Seats()
    with Pane("child") as pane:
        for name, pid in (("outer", os.getpid()), ("inner", pane.process.pid)):
            seats.admit(name)
            seats.occupy(name, pid)
        assert seats.by_process(process(pane.child)).pane_id == "inner"
        assert seats.by_process(process(os.getpid())).pane_id == "outer"


def test_the_kernel_tells_who_connected():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer_of(ours) == process(os.getpid())


def test_without_credentials_or_proc_nobody_is_proven(tmp_path, monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer_of(ours, tmp_path) is None
        monkeypatch.setattr(os, "getuid", lambda: 12_345)
        assert peer_of(ours) is None
        monkeypatch.undo()
        monkeypatch.delattr(socket, "SO_PEERCRED")
        assert peer_of(ours) is None
    with socket.socket(socket.AF_INET) as tcp:
        assert peer_of(tcp) is None


# -- a pretended /proc: what cannot be brought about on purpose --------------------------------------------------------


def proc_of(folder: Path, *rows: tuple[int, int, int, int], name: str = "x") -> Path:
    """A /proc with processes of (pid, parent, session, start)."""
    for pid, parent, session, started in rows:
        (folder / str(pid)).mkdir(exist_ok=True)
        fields = ["S", parent, 0, session, *[0] * 15, started, 0]
        (folder / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")
    return folder


@pytest.mark.parametrize("name", ["x", "a b", ") S 1 1 1 1", "(((", "\n) R 7 7 7"])
def test_a_program_cannot_choose_its_parent_by_its_name(tmp_path, name):
    proc = proc_of(tmp_path, (50, 40, 30, 9), name=name)
    assert stat_of(50, proc) == Stat(Process(50, 9), 40, 30)


@pytest.mark.parametrize("text", ["", "50", "50 (x) S 1", "50 (x) S one 0 1 " + "0 " * 20, "50 (x"])
def test_what_is_no_stat_is_no_process(tmp_path, text):
    (tmp_path / "50").mkdir()
    (tmp_path / "50" / "stat").write_text(text)
    assert stat_of(50, tmp_path) is None


def test_an_id_that_is_used_again_is_another_process(tmp_path):
    seats = Seats(proc=proc_of(tmp_path, (50, 1, 50, 100)))
    seats.admit("pane")
    seats.occupy("pane", 50)
    assert seats.by_process(Process(50, 100)).pane_id == "pane"
    proc_of(tmp_path, (50, 1, 50, 200), (51, 50, 50, 210))
    assert seats.by_process(Process(50, 100)) is None  # it is gone
    assert seats.by_process(Process(50, 200)) is None
    assert seats.by_process(Process(51, 210)) is None  # its parent is another one than the pane's


def test_a_parent_that_is_younger_than_its_child_is_none(tmp_path):
    proc = proc_of(tmp_path, (60, 50, 60, 100), (50, 1, 50, 101))
    assert list(lineage(Process(60, 100), proc)) == [Process(60, 100), Process(60, 100)]


def test_a_circle_of_parents_ends(tmp_path):
    proc = proc_of(tmp_path, (60, 61, 7, 5), (61, 60, 7, 5))
    assert set(lineage(Process(60, 5), proc)) == {Process(60, 5), Process(61, 5)}


# -- members -----------------------------------------------------------------------------------------------------------


def test_members_outlive_the_bridge_and_their_tokens_cannot_be_read(tmp_path):
    path = tmp_path / "seats.json"
    first = Seats(path)
    tokens = {pane: first.admit(pane) for pane in ("a", "b", "c")}
    first.occupy("a", os.getpid())
    first.dismiss("c")
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(token in path.read_text() for token in tokens.values())
    again = Seats(path)
    assert again.by_link(tokens["a"]).pane_id == "a"
    assert again.by_link(tokens["b"]).pane_id == "b"
    assert again.by_link(tokens["c"]) is None
    assert again.by_process(process(os.getpid())).pane_id == "a"
    new = again.admit("a")
    assert again.by_link(tokens["a"]) is None
    assert again.by_link(new).process is None
    assert again.by_link("") is None


def test_a_membership_that_cannot_be_written_down_is_as_it_was(tmp_path):
    path = tmp_path / "seats.json"
    seats = Seats(path)
    token = seats.admit("pane")
    seats.occupy("pane", os.getpid())
    member, written = seats.by_link(token), path.read_bytes()
    blocked = path.with_name("seats.json.part")
    blocked.mkdir()
    for change in (
        lambda: seats.admit("pane"),
        lambda: seats.admit("other"),
        lambda: seats.occupy("pane", os.getppid()),
        lambda: seats.dismiss("pane"),
    ):
        with pytest.raises(OSError, match="part"):
            change()
        assert (seats.by_link(token), seats.by_process(process(os.getpid())), seats.panes) == (
            member,
            member,
            ("pane",),
        )
        assert not member.gone.is_set()
        assert path.read_bytes() == written
    blocked.rmdir()
    assert seats.dismiss("pane")
    assert member.gone.is_set()
    assert Seats(path).by_link(token) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version":2,"seats":[]}', '{"version":1,"seats":[{}]}', '{"version":1}']
)
def test_a_damaged_file_of_members_is_not_guessed_at(tmp_path, text):
    replace_private(tmp_path / "seats.json", text)
    with pytest.raises(ValueError, match="damaged"):
        Seats(tmp_path / "seats.json")


def test_what_is_no_member_has_no_process():
    seats = Seats()
    with pytest.raises(NotThere, match="member"):
        seats.occupy("nobody", os.getpid())
    seats.admit("pane")
    with pytest.raises(NotThere, match="process"):
        seats.occupy("pane", 2**31 - 1)
    for bad in ("", "x" * 257, "a\n", "ü"):
        with pytest.raises(InvalidIdentifier):
            seats.admit(bad)


# -- private files -----------------------------------------------------------------------------------------------------


def test_the_operators_token_is_made_once_and_private(tmp_path):
    path = tmp_path / "operator.token"
    token = operator_token(path)
    assert (path.stat().st_mode & 0o777, len(token) >= 43) == (0o600, True)
    assert operator_token(path) == token == path.read_text().strip()
    path.unlink()
    assert operator_token(path) != token


@pytest.mark.parametrize("step", ["write", "fsync", "link"])
def test_a_death_while_a_token_is_made_leaves_none_and_the_next_start_makes_it(tmp_path, monkeypatch, step):
    path = tmp_path / "operator.token"

    def dies(*_arguments, **_more) -> None:
        raise SystemError("dead")

    with monkeypatch.context() as patched, pytest.raises(SystemError):
        if step == "write":
            patched.setattr(private_files, "open", dies, raising=False)
        else:
            patched.setattr(os, step, dies)
        operator_token(path)
    assert not path.exists()
    token = operator_token(path)
    assert path.read_text().strip() == token
    assert [one.name for one in tmp_path.iterdir()] == ["operator.token"]


def test_a_file_that_is_there_is_not_replaced_by_a_new_one(tmp_path):
    path = tmp_path / "file"
    assert private_files.create_private(path, b"one")
    assert not private_files.create_private(path, b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"one", 0o600)
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_token_that_others_can_read_is_not_used(tmp_path, mode):
    path = tmp_path / "operator.token"
    operator_token(path)
    path.chmod(mode)
    with pytest.raises(Unsafe, match="0600"):
        operator_token(path)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 50, b"a b\x00" * 20])
def test_a_file_without_a_token_is_not_used(tmp_path, content):
    path = tmp_path / "operator.token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(Unsafe, match="no token"):
        operator_token(path)


def test_no_link_is_followed_to_a_token(tmp_path):
    operator_token(tmp_path / "real")
    (tmp_path / "operator.token").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="symbolic"):
        operator_token(tmp_path / "operator.token")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(Unsafe):
        operator_token(tmp_path / "pipe")


def test_a_folder_is_private_or_refused(tmp_path):
    assert private_folder(tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    for name in ("open", "link"):
        with pytest.raises(Unsafe):
            private_folder(tmp_path / name)
    with pytest.raises(FileExistsError):
        private_folder(tmp_path / "file")


@pytest.mark.parametrize("kept", [Seats, PaneBook])
@pytest.mark.parametrize("mode", [0o640, 0o602])
def test_what_others_could_have_read_or_written_is_not_believed(tmp_path, kept, mode):
    path = tmp_path / "kept.json"
    replace_private(path, "{}")
    path.chmod(mode)
    with pytest.raises(Unsafe, match="chmod 600"):
        kept(path)


def test_a_private_file_is_read_up_to_a_bound(tmp_path):
    replace_private(tmp_path / "file", "content")
    assert (read_private(tmp_path / "file"), read_private(tmp_path / "file", 4)) == (b"content", b"cont")
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none")


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "file.json"
    (tmp_path / "file.json.part").write_text("left by a crash")
    for number in range(2):
        replace_private(path, json.dumps(number))
        assert json.loads(path.read_text()) == number
    assert [one.name for one in tmp_path.iterdir()] == ["file.json"]


def test_a_shared_file_is_written_beside_another_process_that_writes_it(tmp_path):
    (tmp_path / f"page.html.{os.getpid() + 1}.part").write_text("half of")
    replace_private(tmp_path / "page.html", "whole", shared=True)
    assert (tmp_path / "page.html").read_text() == "whole"
    assert (tmp_path / f"page.html.{os.getpid() + 1}.part").read_text() == "half of"
