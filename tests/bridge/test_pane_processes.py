"""A pane's process under several hands at once: operators, the watcher, the runtime, and a bridge that died between."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from attrs import evolve
from bridge.claude_program import install
from bridge.program_world import Life, World, moved, world
from launch_world import new_launch, running, view_of

from fencepost.supervisor import ActorCrashed, Applied, IncarnationView, IntentState, Launch, LaunchBlocked
from fencepost.supervisor.bridge.auth import Identity
from fencepost.supervisor.bridge.handlers import Call, Handler
from fencepost.supervisor.bridge.launchers import Command, DamagedNote, LaunchError, TmuxError
from fencepost.supervisor.bridge.launching import PaneLauncher
from fencepost.supervisor.bridge.operator_handlers import failed
from fencepost.supervisor.bridge.pane_processes import Occupied, PaneProcesses
from fencepost.supervisor.bridge.panes import PaneBook, PaneSpec, Restart, Terminal
from fencepost.supervisor.bridge.peers import process
from fencepost.supervisor.bridge.private_files import replace_private
from fencepost.supervisor.bridge.process_api import _attach, look_at_process, run_process
from fencepost.supervisor.bridge.program import open_bridge
from fencepost.supervisor.bridge.seats import Seats
from fencepost.supervisor.bridge.watching import Watcher


@pytest.fixture
async def place():
    async with world() as made:
        yield made


def notes(place: World) -> list:
    return list((place.folder / "launcher" / "processes").glob("*.json"))


async def test_of_two_who_start_at_once_one_is_told_that_the_pane_is_occupied(place: World):
    async with place.bridge() as life:
        told = []

        async def start(prompt: str) -> None:
            try:
                told.append((prompt, (await life.processes.run("left", place.spec(prompt=prompt))).incarnation_id))
            except Occupied as occupied:
                told.append((prompt, occupied))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, "one")
            nursery.start_soon(start, "two")
        (started,) = [one for one in told if isinstance(one[1], str)]
        run = await place.next_run()
        assert (run.about["said"], run.about["environ"]["FENCEPOST_INCARNATION"]) == started
        (refused,) = [why for _, why in told if isinstance(why, Occupied)]
        assert "lives in pane left" in str(refused)
        assert life.processes.book.get("left").session_id == run.about["session"]
        await life.processes.end("left")


async def test_a_start_that_waited_does_nothing_where_an_operator_was_meanwhile(place: World):
    async with place.bridge() as life:
        first = await life.processes.run("left", place.spec(prompt="go"))
        (await place.next_run()).tell(exit=0)
        await life.kind("incarnation.retired")
        await life.processes.again("left", "go on")
        run = await place.next_run()
        assert await life.processes.start_again("left", first.incarnation_id) is None  # as the watcher does, late
        assert await run.batch("a1") == [None]
        await life.processes.end("left")
        assert await life.processes.start_again("left", None) is None
        assert (await life.processes.launcher.processes()) == {}


async def test_a_stop_that_comes_late_leaves_the_successor_in_the_fleet(place: World):
    async with place.bridge() as life:
        first = await life.processes.run("left", place.spec(prompt="go"))
        await place.next_run()
        await life.processes.run("left", place.spec(prompt="other"), replace=True)
        run = await place.next_run()
        await life.processes.launcher.stop(IncarnationView(first.incarnation_id, "left", 1, "", None, 0, None))
        member = life.bridge.seats.by_process(process(run.about["pid"]))
        assert member is not None
        assert life.bridge.seats.by_link(run.about["environ"]["FENCEPOST_LINK"]) is member
        await life.processes.end("left")


async def forever(*_arguments: object) -> None:
    await trio.sleep_forever()


async def test_what_a_bridge_had_not_started_again_when_it_died_is_started_by_the_next(place: World, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(PaneProcesses, "start_again", forever)
        async with place.bridge() as life:
            await life.processes.run("left", place.spec(prompt="go"))
            run = await place.next_run()
            await run.batch("a1")
            await life.pane.detect(moved())
            assert None not in await run.batch("b1")
            run.tell(exit=0)
            await life.kind("incarnation.retired")
    async with place.bridge() as life:
        again = await place.next_run()
        assert again.about["session"] == run.about["session"]
        assert await again.batch("c1") == [None]
        assert [one.state for one in await life.pane.intents()] == [IntentState.ACKNOWLEDGED]
        decided, unwanted = trio.Event(), PaneBook.unwanted

        def decide(book: PaneBook, pane_id: str) -> None:
            unwanted(book, pane_id)
            trio.from_thread.run_sync(decided.set)

        monkeypatch.setattr(PaneBook, "unwanted", decide)
        again.tell(exit=0)
        await decided.wait()
    book = PaneBook(place.folder / "panes.json")
    assert not book.wants("left")  # nothing is owed, so no later bridge starts it


async def test_what_the_runtime_starts_when_a_bridge_opens_waits_for_the_listeners(tmp_path):
    told = tmp_path / "told"

    def command_for(launch: Launch) -> Command:
        return Command((sys.executable, "-c", f"open({str(told)!r}, 'w').write({launcher.links[launch.pane_id]!r})"))

    book, seats, launch = PaneBook(), Seats(), new_launch(pane_id="left")
    spec = PaneSpec(argv=("claude",), cwd="/", environment={}, harness="claude-code", terminal=Terminal.NONE)
    book.put("left", evolve(spec, prompt="go", wanted=True))
    launcher = PaneLauncher(command_for, book, seats, {}, tmp_path, socket_path="/s", store_url="sqlite:////s")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(launcher.start, launch)
        await trio.testing.wait_all_tasks_blocked()
        assert (launcher.links, launcher.current("left")) == ({}, None)
        launcher.open()
    await launcher.wait(launch.incarnation_id)
    assert seats.by_link(told.read_text()).pane_id == "left"
    assert launcher.current("left") == launch.incarnation_id
    await launcher.stop(view_of(launch))
    assert (launcher.links, launcher.current("left"), seats.by_link(told.read_text())) == ({}, None, None)


async def test_the_process_that_is_being_replaced_does_not_give_its_conversation_to_the_next(place: World, monkeypatch):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        launch = PaneProcesses._launch

        async def launch_late(processes: PaneProcesses, pane_id: str, *more) -> object:
            assert await run.ask(prompt="one more") == {"prompted": True}
            return await launch(processes, pane_id, *more)

        monkeypatch.setattr(PaneProcesses, "_launch", launch_late)
        await life.processes.run("left", place.spec(prompt="other"), replace=True)
        new = await place.next_run()
        assert new.about["session"] != run.about["session"]
        assert life.processes.book.get("left").session_id == new.about["session"]
        await life.processes.end("left")


async def test_a_prompt_that_was_not_given_is_not_said_at_a_later_start(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        (await place.next_run()).tell(exit=0)
        await life.kind("incarnation.retired")
        place.program.unlink()
        with pytest.raises(LaunchError, match="is not found"):
            await life.processes.again("left", "go on")
        install(place.program.parent)
        with pytest.raises(ValueError, match="first input"):
            await life.processes.again("left")


async def test_a_prompt_beside_what_moved_is_kept_and_said_by_the_next_start(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
        assert None not in await run.batch("b1")
        await life.processes.end("left")
        said = await asked(run_process, life, prompt="write the changelog")
        told = await place.next_run()
        assert (said["startup_delivery_id"] is not None, said["prompt_kept"]) == (True, True)
        assert "write the changelog" not in told.about["said"]
        assert (await asked(look_at_process, life))["prompt_kept"] is True
        assert await told.batch("c1") == [None]
        told.tell(exit=0)
        await life.until(lambda event: event.kind == "incarnation.retired" and event.data["epoch"] == 2)
        said = await asked(run_process, life)
        assert (said["startup_delivery_id"], said["prompt_kept"]) == (None, False)
        assert (await place.next_run()).about["said"] == "write the changelog"
        await life.processes.end("left")


async def asked(handler: Handler, life: Life, **members: object) -> Mapping[str, object]:
    """What the operator is answered about the pane's process."""
    operator, body = Identity(None, lambda: True), {"version": 1, **members}
    answer = await handler(Call(life.bridge, operator, {"pane": "left"}, b"", body, trio.sleep_forever, lambda _: None))
    assert isinstance(answer, tuple)
    return answer[1]


async def test_a_start_that_fails_before_the_old_process_ended_leaves_all_as_it_was(place: World, monkeypatch):
    async def crash(*_arguments: object) -> None:
        raise ActorCrashed("pane:left", 1)

    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        was = life.processes.book.get("left")
        with monkeypatch.context() as patched:
            patched.setattr(PaneProcesses, "_launch", crash)
            with pytest.raises(ActorCrashed):
                await life.processes.run("left", place.spec(prompt="other"), replace=True)
            assert life.processes.book.get("left") == was
            install(place.program.parent, "9.9.9")
            with pytest.raises(ActorCrashed):
                await life.processes.again("left", "other", replace=True)
            assert life.processes.book.get("left") == was
        assert await run.batch("a1") == [None]
        await life.processes.end("left")
        assert not life.processes.book.wants("left")


async def test_a_bridge_that_ends_before_it_listens_does_not_wait_for_what_it_owes(place: World, monkeypatch):
    with monkeypatch.context() as patched:
        async with place.bridge() as life:
            await life.processes.run("left", place.spec(prompt="go"))
            run = await place.next_run()
            await run.batch("a1")
            await life.pane.detect(moved())
            assert None not in await run.batch("b1")
            patched.setattr(PaneLauncher, "start", forever)
            run.tell(exit=0)
            await life.until(lambda event: event.data.get("startup_delivery_id") is not None)
    store, seats = f"sqlite:///{place.folder / 'bridge.db'}", Seats(place.folder / "seats.json")
    asked = trio.Event()
    start = PaneLauncher.start

    async def started(launcher: PaneLauncher, launch: Launch) -> None:
        asked.set()
        await start(launcher, launch)

    monkeypatch.setattr(PaneLauncher, "start", started)
    with trio.fail_after(20):
        async with open_bridge(place.folder, store, seats=seats, operator_token=None):
            await asked.wait()
    async with place.bridge() as life:
        assert (await place.next_run()).about["environ"]["FENCEPOST_STARTUP"]
        await life.processes.end("left")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"prompt": "--version"}, "begin with '-'"),
        ({"prompt": "a\0b"}, "NUL"),
        ({"prompt": "x" * 131_072}, "131071 bytes"),
        ({"prompt": "go", "session_id": "-x"}, "read as an option"),
        ({"prompt": "go", "restart": Restart.ALWAYS}, "without a terminal"),
    ],
)
async def test_what_cannot_be_started_ends_nothing(place: World, more, why):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        with pytest.raises(ValueError, match=why):
            await life.processes.run("left", place.spec(**more), replace=True)
        if set(more) == {"prompt"}:
            with pytest.raises(ValueError, match=why):
                await life.processes.again("left", more["prompt"], replace=True)
        assert await run.batch("a1") == [None]
        await life.processes.end("left")


async def test_a_damaged_note_hinders_its_own_pane_only(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
    (path,) = notes(place)
    whole = path.read_bytes()
    path.write_bytes(b"{" * 100_000)
    async with place.bridge() as life:
        await life.processes.run("right", place.spec(prompt="over here"))
        other = await place.next_run()
        assert other.about["said"] == "over here"
        with pytest.raises(DamagedNote, match=path.name):
            await life.processes.run("left", place.spec(prompt="go"), replace=True)
        with pytest.raises(DamagedNote, match=path.name):
            await life.processes.end("left")
        path.write_bytes(whole)
        assert await life.processes.end("left")
        assert not running(run.about["pid"])
        await life.processes.end("right")


async def test_a_process_whose_note_was_lost_is_ended_and_not_only_said_to_be(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
    for path in notes(place):
        path.unlink()
    async with place.bridge() as life:
        await life.kind("incarnation.retired")
        assert not running(run.about["pid"])
        assert await life.processes.end("left") is False


async def test_a_process_is_served_on_though_the_members_of_the_fleet_were_lost(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
    (place.folder / "seats.json").unlink()
    async with place.bridge() as life:
        denied = await run.batch("b1")
        (intent,) = await life.pane.intents()
        assert denied == [intent.payload.decode()]
        assert await run.batch("c1") == [None]
        await life.processes.end("left")


async def test_a_process_is_watched_though_the_book_was_lost(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
    (place.folder / "panes.json").unlink()
    async with place.bridge() as life:
        os.kill(run.about["pid"], signal.SIGKILL)
        assert (await life.kind("incarnation.retired")).data["reason"] == "the process ended"


async def test_where_tmux_cannot_tell_a_started_process_is_told_as_started(place: World, monkeypatch):
    async def refuses(*_arguments: object) -> None:
        raise TmuxError("tmux did not answer")

    monkeypatch.setattr(PaneLauncher, "attach_to", refuses)
    async with place.bridge() as life:
        assert await _attach(life.processes, "left") is None


async def nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


class Crashing:
    """A pane whose activation dies over the first question."""

    def __init__(self) -> None:
        self.asked = 0

    def pane(self, _pane_id: str) -> Crashing:
        return self

    async def unresolved_intents(self) -> list:
        return []

    async def launch_failed(self, _incarnation_id: str, _reason: str) -> Applied:
        self.asked += 1
        if self.asked == 1:
            raise ActorCrashed("pane:left", 1)
        return Applied()

    async def wait(self, _incarnation_id: str) -> None:
        return None

    async def end(self, _pane_id: str, _incarnation_id: str) -> None:
        return None


async def test_an_end_is_told_to_the_next_activation_where_one_died_over_it(autojump_clock):
    crashing, book = Crashing(), PaneBook()
    spec = PaneSpec(argv=("claude",), cwd="/", environment={}, harness="claude-code", restart=Restart.ALWAYS)
    book.put("left", spec)
    started = []

    async def start_again(*what: object) -> None:
        started.append(what)
        if len(started) == 1:
            raise ActorCrashed("pane:left", 2)
        nursery.cancel_scope.cancel()

    watcher = Watcher(crashing, crashing, book, start_again, nothing)
    watcher.watch("left", "incarnation-1")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
    assert (crashing.asked, started) == (2, [("left", "incarnation-1")] * 2)


async def test_a_start_that_must_wait_for_a_reconciliation_comes_after_it(autojump_clock):
    crashing, book, states = Crashing(), PaneBook(), [IntentState.RECONCILING] * 3
    book.put("left", PaneSpec(argv=("claude",), cwd="/", environment={}, harness="claude-code", wanted=True))

    async def start_again(*_what: object) -> None:
        if states:
            raise LaunchBlocked("intent-1", states.pop(), "its payload does not exist yet")
        nursery.cancel_scope.cancel()

    async def owed() -> list:
        return [SimpleNamespace(state=IntentState.RECONCILING, incarnation_id=None, mode=None)]

    crashing.unresolved_intents = owed
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Watcher(crashing, crashing, book, start_again, nothing).run, ["left"])
    assert states == []


@pytest.mark.parametrize("failures", [3, 1000])
async def test_a_start_that_fails_for_the_moment_is_tried_again_though_not_for_ever(autojump_clock, failures, caplog):
    crashing, book, tried = Crashing(), PaneBook(), []
    book.put("left", PaneSpec(argv=("claude",), cwd="/", environment={}, harness="claude-code", wanted=True))

    async def start_again(*_what: object) -> None:
        tried.append(trio.current_time())
        if len(tried) <= failures:
            raise TmuxError("tmux refused 'new-window': the moment")

    async def owed() -> list:
        return [SimpleNamespace(state=IntentState.DETECTED, incarnation_id=None, mode=None)]

    crashing.unresolved_intents = owed
    with trio.move_on_after(600):
        await Watcher(crashing, crashing, book, start_again, nothing).run(["left"])
    assert len(tried) == (4 if failures == 3 else 6)
    assert book.wants("left")  # by the next life of the bridge, if this one gave up
    assert ("could not be started again" in caplog.text) == (failures == 1000)


async def test_a_start_leaves_the_successor_alone_that_the_runtime_itself_is_starting(place: World):
    async with place.bridge() as life:
        first = await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        starting = life.processes.launcher._current
        starting["left"] = "incarnation-2"
        assert await life.processes.start_again("left", first.incarnation_id) is None
        starting["left"] = first.incarnation_id
        assert await run.batch("b1") == [None]
        await life.processes.end("left")


async def test_a_process_without_a_terminal_is_started_again_with_what_moved_as_its_first_input(place: World):
    async with place.bridge() as life:
        await life.processes.run("left", place.spec(prompt="go"))
        run = await place.next_run()
        assert await run.batch("a1") == [None]
        await life.pane.detect(moved())
        run.tell(exit=0)  # no tool call of it was blocked: nothing was prepared yet
        again = await place.next_run()
        (intent,) = await life.pane.intents()
        assert intent.payload.decode() in again.about["said"]
        assert await again.batch("b1") == [None]
        assert [one.state for one in await life.pane.intents()] == [IntentState.ACKNOWLEDGED]
        await life.processes.end("left")


@pytest.mark.parametrize("kept", [PaneBook, Seats])
def test_of_a_damaged_file_nothing_is_told_that_was_in_it(tmp_path, kept):
    path = tmp_path / "damaged.json"
    replace_private(path, b'{"KEY": "the secret \xff"}')
    with pytest.raises(ValueError, match=r"is damaged.*in position 20") as caught:
        kept(path)
    assert "secret" not in str(caught.value)


def test_the_log_does_not_repeat_what_an_operator_was_told(caplog):
    caplog.set_level(logging.DEBUG)
    answer = failed(409, ValueError("'the prompt' is no option"))
    assert answer == (409, {"version": 1, "error": "'the prompt' is no option"})
    assert "operator: 409 (ValueError)" in caplog.text
    assert "prompt" not in caplog.text


def test_what_cannot_be_written_down_is_not_believed_either(tmp_path):
    book = PaneBook(tmp_path / "panes.json")
    spec = PaneSpec(argv=("claude",), cwd="/", environment={}, harness="claude-code", prompt="go")
    book.put("left", spec)
    blocked = tmp_path / "panes.json.part"
    blocked.mkdir()
    for change in (
        lambda: book.put("left", evolve(spec, prompt="other")),
        lambda: book.put("right", spec),
        lambda: book.take_prompt("left"),
        lambda: book.learn_session("left", "other", instead_of=None),
    ):
        with pytest.raises(OSError, match="directory"):
            change()
        assert (list(book), book.get("left"), book.get("right")) == (["left"], spec, None)
    blocked.rmdir()
    assert book.take_prompt("left") == "go"


@pytest.mark.parametrize(
    "member",
    [
        {"argv": "claude"},
        {"argv": []},
        {"argv": [1]},
        {"prompt": 1},
        {"session_id": ["x"]},
        {"session_id": ""},
        {"version": {}},
        {"wanted": "no"},
        {"terminal": "xterm"},
        {"environment": []},
        {"environment": {"A": 1}},
        {"cwd": None},
        {"more": 1},
    ],
)
def test_a_damaged_book_is_told_and_not_guessed_at(tmp_path, member):
    whole = {"argv": ["claude"], "cwd": "/", "environment": {}, "harness": "claude-code"}
    path = tmp_path / "panes.json"
    replace_private(path, json.dumps({"version": 1, "panes": {"left": whole}}))
    assert PaneBook(path).get("left").terminal is Terminal.TMUX
    replace_private(path, json.dumps({"version": 1, "panes": {"left": {**whole, **member}}}))
    with pytest.raises(ValueError, match="is damaged"):
        PaneBook(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 100_000, '{"version": 2, "panes": {}}', '{"version":1,"panes":[]}']
)
def test_a_file_that_is_no_book_is_told(tmp_path, text):
    path = tmp_path / "panes.json"
    replace_private(path, text)
    with pytest.raises(ValueError, match="is damaged"):
        PaneBook(path)


@pytest.mark.parametrize(
    "more", [{"argv": ("claude", "x" * 131_072)}, {"environment": {"A": "x" * 131_070}}, {"argv": ("claude", "\ud800")}]
)
def test_what_no_process_can_be_given_is_not_kept(more):
    PaneSpec(argv=("claude", "x" * 131_071), cwd="/", environment={"A": "x" * 131_069}, harness="codex")
    with pytest.raises(ValueError, match=r"131071|surrogates"):
        PaneSpec(**{"argv": ("claude",), "cwd": "/", "environment": {}, "harness": "codex", **more})
