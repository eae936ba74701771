"""The book of the panes: a start is written down beside what runs, and is what runs once it was launched."""

from __future__ import annotations

import json
import threading
from functools import partial

import pytest
import trio
import trio.testing
from attrs import evolve
from launch_world import new_launch, view_of

from fencepost.supervisor.bridge.launching import PaneLauncher
from fencepost.supervisor.bridge.panes import Intended, PaneBook, PaneSpec, Terminal
from fencepost.supervisor.bridge.private_files import replace_private
from fencepost.supervisor.bridge.seats import Seats

OLD = PaneSpec(argv=("claude",), cwd="/", environment={}, harness="claude-code", session_id="s-old", wanted=True)
NEW = evolve(OLD, argv=("claude", "--new"), session_id="s-new", prompt="go")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "panes.json"


@pytest.fixture
def book(path):
    made = PaneBook(path)
    made.put("left", OLD)
    made.intend("left", NEW, 3)
    return made


def kept(path) -> tuple[PaneSpec | None, PaneSpec | None]:
    """What a later bridge reads: what runs, and what is about to."""
    read = PaneBook(path)
    intended = read.intended("left")
    return read.get("left"), None if intended is None else intended.spec


def test_what_is_intended_stands_beside_what_runs(book, path):
    assert (book.get("left"), book.intended("left").spec) == (OLD, NEW)
    assert kept(path) == (OLD, NEW)
    assert book.take_prompt("left") is None, "it is the next one's"


@pytest.mark.parametrize(
    ("harness", "session_id", "epoch", "is_it"),
    [
        ("claude-code", "s-new", 4, True),
        ("claude-code", "s-new", 5, True),  # the runtime's own came in between
        ("claude-code", "s-new", 3, False),
        ("claude-code", "s-old", 4, False),
        ("claude-code", None, 4, False),
        ("codex", "s-new", 4, False),
    ],
)
def test_it_is_what_runs_once_it_was_launched(book, path, harness, session_id, epoch, is_it):
    assert book.launched("left", harness, session_id, epoch) == is_it
    assert kept(path) == ((NEW, None) if is_it else (OLD, NEW))
    assert book.call_off("left") == (not is_it)
    assert kept(path) == ((NEW, None) if is_it else (OLD, None))
    assert not book.launched("left", "claude-code", "s-new", 6)


@pytest.mark.parametrize(
    ("latest", "runs"),
    [
        ({}, OLD),
        ({"right": ("claude-code", "s-new", 4)}, OLD),
        ({"left": ("claude-code", "s-old", 3)}, OLD),
        ({"left": ("claude-code", "s-old", 4)}, OLD),
        ({"left": ("claude-code", "s-new", 4)}, NEW),
    ],
)
def test_the_next_bridge_settles_it_by_what_the_store_has_launched(book, path, latest, runs):
    PaneBook(path).settle(latest)
    assert kept(path) == (runs, None)


def test_a_pane_that_is_ended_is_to_have_nothing(book, path):
    book.unwanted("left")
    assert kept(path) == (evolve(OLD, wanted=False), None)
    assert book.was_ended("left")
    book.unwanted("left")
    book.intend("right", NEW, 0)
    book.unwanted("right")
    assert (PaneBook(path).intended("right"), PaneBook(path).get("right")) == (None, None)


def test_a_first_start_that_comes_to_nothing_leaves_no_entry(path):
    book = PaneBook(path)
    book.intend("left", NEW, 0)
    assert (list(book), book.get("left"), book.specs()) == ([], None, ())
    assert book.call_off("left")
    assert kept(path) == (None, None)


def test_a_start_in_the_same_conversation_follows_it_to_another(path):
    book = PaneBook(path)
    book.put("left", OLD)
    book.intend("left", evolve(OLD, prompt="more"), 3)
    book.learn_session("left", "s-cleared", instead_of="s-old")
    assert [one.session_id for one in kept(path)] == ["s-cleared", "s-cleared"]
    assert book.launched("left", "claude-code", "s-old", 4), "the launch was asked for before"
    assert book.get("left").session_id == "s-cleared"


def test_a_start_in_another_conversation_stays_in_that(book, path):
    book.learn_session("left", "s-cleared", instead_of="s-old")
    assert [one.session_id for one in kept(path)] == ["s-cleared", "s-new"]


def test_a_prompt_that_was_taken_is_not_taken_back(book):
    book.put("left", evolve(OLD, prompt="more"))
    book.take_back_prompt("left", None, "earlier")
    assert book.get("left").prompt == "more"
    book.take_back_prompt("left", "more", "earlier")
    assert book.take_prompt("left") == "earlier"
    book.take_back_prompt("left", "more", "earlier")
    assert book.get("left").prompt is None


def test_what_cannot_be_written_down_is_neither_intended_nor_launched(book, path):
    (path.parent / "panes.json.part").mkdir()
    for change in (
        lambda: book.intend("left", OLD, 4),
        lambda: book.launched("left", "claude-code", "s-new", 4),
        lambda: book.call_off("left"),
    ):
        with pytest.raises(OSError, match="directory"):
            change()
        assert (book.get("left"), book.intended("left").spec, kept(path)) == (OLD, NEW, (OLD, NEW))


@pytest.mark.parametrize(
    "intended",
    [
        [],
        {"left": []},
        {"left": {"epoch": 1}},
        {"left": {"spec": {"argv": []}, "epoch": 1}},
        {"": {"spec": "ok", "epoch": 1}},
        {"left": {"spec": "ok"}},
        {"left": {"spec": "ok", "epoch": -1}},
        {"left": {"spec": "ok", "epoch": True}},
        {"left": {"spec": "ok", "epoch": 1, "session_id": ""}},
        {"left": {"spec": "ok", "epoch": 1, "more": 1}},
    ],
)
def test_a_damaged_intention_is_told_and_not_guessed_at(path, intended):
    spec = {"argv": ["claude"], "cwd": "/", "environment": {}, "harness": "claude-code"}
    text = json.dumps({"version": 1, "panes": {}, "intended": intended}).replace('"ok"', json.dumps(spec))
    replace_private(path, text)
    with pytest.raises(ValueError, match="is damaged"):
        PaneBook(path)


async def test_nothing_is_stopped_and_so_nothing_is_launched_before_the_book_is_settled(tmp_path):
    book = PaneBook()
    book.put("left", evolve(OLD, terminal=Terminal.NONE))
    book.intend("left", NEW, 3)

    def command_for(_launch: object) -> object:
        raise AssertionError

    launcher = PaneLauncher(command_for, book, Seats(), {}, tmp_path, socket_path="/s", store_url="sqlite:////s")
    launcher.hold()
    stopped: list[PaneSpec | None] = []

    async def stop() -> None:
        await launcher.stop(view_of(new_launch(pane_id="left")))
        stopped.append(book.get("left"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        await trio.testing.wait_all_tasks_blocked()
        assert stopped == []
        await launcher.settle({"left": ("claude-code", "s-new", 4)})
    assert (stopped, launcher.epoch("left"), launcher.epoch("right")) == ([NEW], 4, 0)


def test_a_conversation_that_is_learnt_while_a_launch_is_written_down_is_kept(monkeypatch):
    book = PaneBook()
    spec = PaneSpec(argv=("claude",), cwd="/", environment={}, harness="claude-code", session_id="first")
    book.put("left", spec)
    book.intend("left", spec, 1)
    learning = threading.Thread(target=partial(book.learn_session, "left", "second", instead_of="first"))
    judged = Intended.is_launched_by

    def in_between(*what: object) -> bool:
        learning.start()
        learning.join(0.2)  # not done, if the book keeps the two apart
        return judged(*what)

    monkeypatch.setattr(Intended, "is_launched_by", in_between)
    assert book.launched("left", "claude-code", "first", 2)
    learning.join()
    assert book.get("left").session_id == "second"
