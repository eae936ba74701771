"""A pane that is stopped and owes nothing is let go of: nothing is kept for it but its history in the store."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
from bridge.program_world import Life, World, moved, world
from trio import sleep_forever

from fencepost.supervisor import Allow, IntentView, ToolBoundary
from fencepost.supervisor.bridge import pane_processes, wire
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.auth import Identity
from fencepost.supervisor.bridge.handlers import Answered, Call, NotFound
from fencepost.supervisor.bridge.launching import output_path
from fencepost.supervisor.bridge.pane_processes import Owes
from fencepost.supervisor.bridge.panes import PaneBook, Terminal
from fencepost.supervisor.bridge.process_api import end_process, look_at_process

SECRET = "a-key-in-the-environment"


@pytest.fixture
async def place():
    async with world() as made:
        yield made


def call(life: Life, query: bytes = b"forget=true") -> Call:
    return Call(life.bridge, Identity(None, lambda: True), {"pane": "left"}, query, {}, sleep_forever, lambda _: None)


async def run_once(life: Life, place: World) -> None:
    environment = {**place.environment, "KEY": SECRET}
    await life.processes.run("left", place.spec(prompt="go", environment=environment))
    assert await (await place.next_run()).batch("a1") == [None]


def told(answer: Answered) -> tuple[int, dict[str, object]]:
    assert isinstance(answer, tuple)
    return answer[0], dict(answer[1])


def kept(place: World) -> set[str]:
    """The files of the bridge's folder that speak of the pane's environment, of its hooks, or of what it printed."""
    files = [one for one in place.folder.rglob("*") if one.is_file()]
    found = {one.name for one in files if SECRET.encode() in one.read_bytes()}
    return found | {one.parent.name for one in files if one.parent.name in {"hook-spool", "output"}}


async def test_nothing_is_kept_of_a_pane_that_was_forgotten(place: World):
    async with place.bridge() as life:
        await run_once(life, place)
        adapter = life.bridge.adapters["claude-code"]
        assert kept(place) == {"panes.json", "hook-spool", "output"}
        assert "left" in adapter._known
        assert told(await end_process(call(life))) == (
            200,
            {"version": 1, "pane": "left", "ended": True, "forgotten": True},
        )
        assert (kept(place), list(life.processes.book)) == (set(), [])
        assert not {"left"} & {*adapter._known, *adapter._gate._taken, *adapter._gate._spool._turns}
        assert "left" not in life.bridge.seats.panes
        with pytest.raises(NotFound):
            await look_at_process(call(life))
        assert told(await end_process(call(life)))[1]["ended"] is False, "again, and nothing is in the way"
    assert list(PaneBook(place.folder / "panes.json")) == []


async def test_a_pane_that_owes_something_is_ended_only(place: World):
    async with place.bridge() as life:
        await run_once(life, place)
        intent = await life.pane.detect(moved())
        status, said = told(await end_process(call(life)))
        words = f"pane 'left' is ended, and not forgotten: its intent {intent.intent_id} is detected"
        assert (status, words in str(said)) == (409, True)
        assert await life.processes.launcher.processes() == {}
        assert kept(place) == {"panes.json", "hook-spool", "output"}
        assert life.processes.book.was_ended("left")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"damage": ("a row is cut",)}, "its records are damaged .a row is cut."),
        ({"batch": SimpleNamespace(operation_id="op", turn_id="t")}, "its tool batch op/t is open"),
        ({"deliveries": (SimpleNamespace(delivery_id="d-1"),)}, "its delivery d-1 is unresolved"),
    ],
)
async def test_what_is_not_over_is_named(place: World, monkeypatch, line, why):
    whole = {"damage": (), "owed": None, "batch": None, "deliveries": (), **line}
    monkeypatch.setattr(pane_processes, "pane_line", lambda *_: SimpleNamespace(**whole))
    async with place.bridge() as life:
        output_path(place.folder, "left").write_text("printed")
        with pytest.raises(Owes, match=why):
            await life.processes.end("left", forget=True)
        assert kept(place) == {"output"}


async def test_only_who_asks_for_it_has_a_pane_forgotten(place: World):
    async with place.bridge() as life:
        await run_once(life, place)
        with pytest.raises(wire.Malformed):
            await end_process(call(life, b"forget=yes"))
        assert told(await end_process(call(life, b"")))[1]["forgotten"] is False
        assert life.processes.book.was_ended("left")


async def test_what_a_terminal_showed_is_forgotten_and_so_is_the_folder(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go", terminal=Terminal.TMUX))
        await place.next_run()
        assert await life.processes.launcher.attach_to("left") is not None
    async with place.bridge() as life:
        (places,) = life.processes.others
        assert await life.processes.end("left", forget=True)
        assert await life.processes.launcher.attach_to("left") is None
        assert (places.notes, places.folder_of("left")) == ({}, None)


async def test_a_pane_may_be_forgotten_while_a_call_of_it_is_decided(tmp_path):
    gate, asked, go_on = Gate(tmp_path / "spool"), trio.Event(), trio.Event()

    class Asked:
        pane_id = "left"

        async def unresolved_intents(self) -> list[IntentView]:
            return []

        async def pre_tool_use(self, _boundary: ToolBoundary, wait_seconds: float) -> Allow:
            asked.set()
            await go_on.wait()
            return Allow()

    async def ask() -> None:
        assert await gate.pre_tool_use(Asked(), ToolBoundary("one", None, "batch"), 0) == Allow()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await asked.wait()
        gate._taken.pop("left", None)  # what `forget` does first; then it waits for the spool
        go_on.set()
