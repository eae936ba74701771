"""The hook program against a bridge that behaves, and against every way a bridge can misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hook_programs import PROGRAM, SLOW_MACHINE, asked_of, call, finish, place, response, served, started

from fencepost.supervisor import open_supervisor
from fencepost.supervisor.bridge import hook
from fencepost.supervisor.bridge.adapters.answers import denial

PAYLOAD = 'The files moved: ünïcode 🙂 "quoted",\nand a second line.'
DELIVERED = {"intent_id": "i", "incarnation_id": "incarnation-1", "turn_id": "t", "batch_id": "b"}
ALLOW = {"version": 1, "stdout": "", "exit_code": 0, "delivered": None}
TOLD = {"version": 1, "stdout": denial(PAYLOAD).decode(), "exit_code": 0, "delivered": DELIVERED}


@pytest.fixture
def here():
    with place() as found:
        yield found


async def stored(here) -> None:
    """A store in which the process of `here` lives, and nothing is pending; as a bridge leaves it that is gone."""
    async with open_supervisor(here.environment["FENCEPOST_STORE"]) as supervisor:
        launch = await supervisor.pane("pane/1").launch("claude-code")
    here.environment["FENCEPOST_INCARNATION"] = launch.incarnation_id


def test_the_two_ways_of_denying_print_the_same() -> None:
    assert hook.denial(PAYLOAD) == denial(PAYLOAD)
    assert hook.denial(hook.NO_ANSWER) == hook.FIXED_DENIAL


def test_the_event_goes_out_as_it_came_and_the_answer_is_printed_as_it_came(here) -> None:
    event = call(tool_input={"command": "echo ünïcode \ud800"}, unknown=[1, None])
    with served(here.socket, lambda c: c.sendall(response(TOLD))) as asked:
        ran = here.run(event, deadline=6)
    assert ran.stdout == TOLD["stdout"].encode()
    assert ran.reason == PAYLOAD
    first, second = map(asked_of, asked)
    assert first[0] == "POST /seats/pane%2F1/hook HTTP/1.0"
    assert first[1] == {
        "version": 1,
        "incarnation_id": "incarnation-1",
        "harness": "claude-code",
        "event": event,
        "wait_seconds": first[1]["wait_seconds"],
    }
    assert 0 < first[1]["wait_seconds"] < 6
    assert second == (first[0], {"version": 1, "delivered": DELIVERED})


def test_a_delivery_is_reported_only_once_it_is_printed(here) -> None:
    printed = threading.Event()
    order = []

    def answer(connection) -> None:
        connection.sendall(response(TOLD))
        if len(asked) == 2:
            order.append(printed.wait(SLOW_MACHINE))

    with served(here.socket, answer) as asked:
        process = here.start(deadline=30)
        process.stdin.write(json.dumps(call()).encode())
        process.stdin.close()
        assert process.stdout.read(len(TOLD["stdout"])) == TOLD["stdout"].encode()
        printed.set()
        assert process.wait(SLOW_MACHINE) == 0
        process.stdout.close()
        process.stderr.close()
    assert order == [True]


@pytest.mark.parametrize("second", [response(b"", "500 No"), b""])
def test_a_lost_report_is_repeated_once(here, second) -> None:
    def answer(connection) -> None:
        connection.sendall(response(TOLD) if len(asked) == 1 else second)

    with served(here.socket, answer) as asked:
        ran = here.run(call(), deadline=6)
    assert ran.reason == PAYLOAD
    assert [asked_of(request)[1].get("delivered") for request in asked] == [None, DELIVERED, DELIVERED]


def test_an_allowed_call_prints_nothing(here) -> None:
    with served(here.socket, lambda c: c.sendall(response(ALLOW))) as asked:
        assert here.run(call()).stdout == b""
    assert len(asked) == 1
    assert not here.spool.exists()


def test_a_long_event_goes_out_without_its_bulk(here) -> None:
    calls = [{"tool_use_id": "a", "tool_response": "x" * 1_000_000}]
    event = call(tool_input={"content": "x" * 3_000_000}, tool_calls=calls)
    with served(here.socket, lambda c: c.sendall(response(ALLOW))) as asked:
        assert here.run(event, deadline=10).stdout == b""
    assert asked_of(asked[0])[1]["event"] == call(tool_calls=[{"tool_use_id": "a"}])


# -- a bridge that misbehaves --------------------------------------------------------------------------------------


def _silent(connection) -> None:
    connection.settimeout(SLOW_MACHINE)
    connection.recv(1)


def _drip(connection) -> None:
    """A byte at a time, for ever: each arrives within any timeout of a single read."""
    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 100_000:
        connection.send(bytes([byte]))
        gone = threading.Event()
        gone.wait(0.05)


def _endless(connection) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        connection.sendall(b" " * 1_000_000)


NO_ANSWERS = {
    "silent": _silent,
    "slow drip": _drip,
    "endless": _endless,
    "closes at once": lambda c: None,
    "half a head": lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "half a body": lambda c: c.sendall(response(ALLOW)[:-5]),
    "no http": lambda c: c.sendall(b"\x00\xff garbage\r\n\r\n" * 50),
    "no json": lambda c: c.sendall(response(b"<html>")),
    "deep json": lambda c: c.sendall(response(b"[" * 100_000)),
    "a list": lambda c: c.sendall(response([ALLOW])),
    "another version": lambda c: c.sendall(response({**ALLOW, "version": 2})),
    "nothing to print": lambda c: c.sendall(response({"version": 1})),
    "no text to print": lambda c: c.sendall(response({**ALLOW, "stdout": 7})),
    "a lone surrogate": lambda c: c.sendall(response({**ALLOW, "stdout": "\ud800"})),
    "a strange delivery": lambda c: c.sendall(response({**ALLOW, "delivered": "yes"})),
    "500": lambda c: c.sendall(response(ALLOW, "500 Broken")),
    "503": lambda c: c.sendall(response(ALLOW, "503 Closing")),
    "redirect": lambda c: c.sendall(response(b"", "307 Elsewhere", "Location: http://127.0.0.1:1/")),
    "204": lambda c: c.sendall(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "many headers": lambda c: c.sendall(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n"),
    "a long header": lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200_000 + b"\r\n\r\n"),
}


EVERYDAY = {"slow drip", "endless", "half a body", "no http", "redirect"}


@pytest.mark.parametrize(
    "misbehave",
    [
        pytest.param(how, id=name, marks=() if name in EVERYDAY else pytest.mark.slow)
        for name, how in NO_ANSWERS.items()
    ],
)
async def test_without_an_answer_a_call_is_denied_where_the_store_tells_nothing(here, misbehave) -> None:
    with served(here.socket, misbehave):
        ran = here.run(call(), deadline=2)
    assert ran.reason == hook.NO_BARRIER_KNOWN


@pytest.mark.parametrize("how", ["silent", "closes at once", "500"])
async def test_without_an_answer_a_call_passes_where_nothing_is_pending_and_is_written_down(here, how) -> None:
    await stored(here)
    with served(here.socket, NO_ANSWERS[how]):
        ran = here.run(call(), deadline=3)
    assert ran.stdout == b""
    assert [line["event"] for line in here.spooled()] == [call()]


REFUSALS = {
    "400 Bad": hook.UNREADABLE,
    "401 Who": hook.NOT_ADMITTED,
    "403 No": hook.NOT_ADMITTED,
    "404 None": hook.NOT_ADMITTED,
    "408 Slow": hook.NO_ANSWER,
    "409 No": hook.NO_ANSWER,
    "413 Long": hook.UNREADABLE,
    "429 Many": hook.NO_ANSWER,
}


@pytest.mark.parametrize(("status", "told"), REFUSALS.items(), ids=REFUSALS)
async def test_what_is_refused_does_not_run_and_only_who_is_refused_is_a_persons_matter(here, status, told) -> None:
    await stored(here)
    with served(here.socket, lambda c: c.sendall(response(ALLOW, status))):
        assert here.run(call()).reason == told
    assert not here.spool.exists()
    assert ("a person must look" in told) == (told is hook.NOT_ADMITTED)


@pytest.mark.parametrize(("status", "kept"), [("429 Many", 1), ("403 No", 0), ("400 Bad", 0)])
def test_the_end_of_a_batch_that_is_not_taken_now_is_told_later(here, status, kept) -> None:
    said = {"hook_event_name": "PostToolBatch", "tool_calls": [{"tool_use_id": "a"}]}
    with served(here.socket, lambda c: c.sendall(response(ALLOW, status))):
        assert here.run(said, "PostToolBatch").stdout == b""
    assert len(here.spooled()) == kept


@pytest.mark.parametrize("missing", ["FENCEPOST_PANE", "FENCEPOST_INCARNATION", "FENCEPOST_SOCKET"])
async def test_a_process_of_no_pane_may_run_nothing(here, missing) -> None:
    await stored(here)
    assert here.run(call(), **{missing: ""}).reason == hook.NOT_ADMITTED


@pytest.mark.parametrize("event", ["UserPromptSubmit", "PostToolBatch"])
@pytest.mark.parametrize("misbehave", [None, "silent"])
def test_other_events_print_nothing_whatever_happens(here, event, misbehave) -> None:
    said = {"hook_event_name": event, "prompt": "x", "tool_calls": [{"tool_use_id": "a"}]}
    if misbehave is None:
        assert here.run(said, event).stdout == b""
    else:
        with served(here.socket, NO_ANSWERS[misbehave]):
            assert here.run(said, event, deadline=2).stdout == b""


def test_a_listener_that_never_accepts_costs_no_more_than_the_deadline(here) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(here.socket))
        listener.listen(0)
        first.connect(str(here.socket))
        ran = here.run(call(), deadline=2)
    assert ran.reason == hook.NO_BARRIER_KNOWN
    assert ran.seconds < 2 + SLOW_MACHINE


def test_behind_others_who_connect_faster_than_they_are_let_in_it_waits_its_turn(here, monkeypatch) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(here.socket))
        listener.listen(0)
        first.connect(str(here.socket))
        tries = []

        def sleep(seconds: float) -> None:
            tries.append(seconds)
            if len(tries) == 3:
                listener.accept()[0].close()
                threading.Thread(target=answer).start()

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(response(ALLOW))

        monkeypatch.setattr(hook, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        assert hook.exchange(str(here.socket), hook.request_of("pane", b"{}"), 20).endswith(json.dumps(ALLOW).encode())
        assert len(tries) == 3


@pytest.mark.parametrize("path", ["{folder}/not/there.sock", "{folder}/" + "x" * 300, "relative.sock"])
def test_a_socket_that_is_none_is_no_answer(here, path) -> None:
    ran = here.run(call(), FENCEPOST_SOCKET=path.format(folder=here.folder))
    assert ran.reason == hook.NO_BARRIER_KNOWN
    assert not (here.folder / "not").exists()
    assert not Path("hook-spool").exists()


# -- a harness that misbehaves -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 200_000, b'{"hook_event_name":"Stop"}', b'{"hook_event_name":7}'],
    ids=["empty", "torn", "list", "null", "bytes", "deep", "other", "number"],
)
def test_an_event_that_is_none_runs_nothing(here, said) -> None:
    with served(here.socket, lambda c: c.sendall(response(ALLOW))) as asked:
        assert here.run(said).reason == hook.NO_ANSWER
    assert asked == []


def test_a_harness_that_never_ends_its_event_is_answered_at_the_deadline(here) -> None:
    process = here.start(deadline=1)
    try:
        assert process.stdout.read() == hook.FIXED_DENIAL
        assert process.wait(SLOW_MACHINE) == 0
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def test_a_harness_that_reads_after_the_deadline_gets_the_whole_decision(here) -> None:
    long = {**TOLD, "stdout": denial("x" * 1_000_000).decode()}
    with served(here.socket, lambda c: c.sendall(response(long))):
        process = here.start(deadline=4)
        process.stdin.write(json.dumps(call()).encode())
        process.stdin.close()
        threading.Event().wait(4.5)  # a slow reader
        assert process.stdout.read() == long["stdout"].encode()
        assert process.wait(SLOW_MACHINE) == 0
        process.stdout.close()
        process.stderr.close()


def test_half_a_decision_is_gone_on_with_where_a_pipe_does_not_wait(monkeypatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    write, came = os.write, []
    monkeypatch.setattr(hook, "os", SimpleNamespace(write=lambda _, data: write(writing, data)))
    monkeypatch.setattr(hook, "_wait_until_writable", lambda: came.append(os.read(reading, 1 << 20)))
    said = denial("x" * 300_000)
    assert hook.Voice(0).say(said)
    os.close(writing)
    with os.fdopen(reading, "rb") as rest:
        assert b"".join([*came, rest.read()]) == said
    assert len(came) > 1


def test_a_pipe_that_nobody_waits_for_gets_the_whole_decision(here) -> None:
    long = {**TOLD, "stdout": denial("x" * 1_000_000).decode()}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with served(here.socket, lambda c: c.sendall(response(long))), os.fdopen(reading, "rb") as stdout:
        options = ["--event", "PreToolUse", "--deadline", "15"]
        process = subprocess.Popen([*PROGRAM, *options], env=here.environment, stdin=subprocess.PIPE, stdout=writing)
        os.close(writing)
        process.stdin.write(json.dumps(call()).encode())
        process.stdin.close()
        assert stdout.read() == long["stdout"].encode()
        assert process.wait(SLOW_MACHINE) == 0


def test_a_pipe_that_is_full_and_never_read_keeps_no_process_after_its_deadline(here) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 65_536)
    os.set_blocking(writing, True)
    program = (
        f"import sys; sys.path.insert(0, {str(Path(hook.__file__).parent)!r}); sys.argv[1:] = ['--deadline', '1'];"
        " import hook; hook.WRITING_SECONDS = 0.5; hook.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program], env=here.environment, stdin=subprocess.PIPE, stdout=writing
    )
    try:
        assert process.wait(SLOW_MACHINE) == 0
    finally:
        process.kill()
        process.stdin.close()
        os.close(reading)
        os.close(writing)


def test_a_harness_that_has_closed_its_end_costs_nothing(here) -> None:
    with served(here.socket, lambda c: c.sendall(response(TOLD))):
        process = here.start()
        process.stdout.close()
        process.stdin.write(json.dumps(call()).encode())
        process.stdin.close()
        assert process.wait(SLOW_MACHINE) == 0
        process.stderr.close()


@pytest.mark.parametrize("options", [[], ["--what", "ever", "--deadline", "x", "--event"]])
def test_strange_options_are_left_to_their_defaults(here, options) -> None:
    with served(here.socket, lambda c: c.sendall(response(TOLD))):
        process = started([*PROGRAM, *options], here.environment)
        assert finish(process, call(), 15).reason == PAYLOAD


def test_what_goes_to_stderr_is_one_escaped_line(here) -> None:
    ran = here.run({"hook_event_name": "\x1b[31m\nred\u2028"})
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.strip().isprintable()


def test_starting_it_loads_nothing_but_what_an_interpreter_has_anyway() -> None:
    program = f"""
import os, sys
sys.path.insert(0, os.path.dirname({hook.__file__!r}))
before = set(sys.modules)
import hook
print(*sorted(set(sys.modules) - before))
"""
    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, text=True)
    assert set(run.stdout.split()) <= {"hook", "__future__"}


def test_whoever_speaks_first_speaks_though_the_other_says_in_between_that_nothing_passes(monkeypatch):
    looks: list[tuple[int, int] | None] = [(-1, 0), None]  # there when it is looked at, and gone at the next look
    passing = property(lambda _voice: looks.pop(0), lambda _voice, _passing: None)
    racing = type("Racing", (hook.Voice,), {"passing": passing})
    said = list[bytes]()

    def write(_descriptor: int, data: bytes) -> int:
        said.append(bytes(data))
        return len(data)

    monkeypatch.setattr(hook.os, "write", write)
    monkeypatch.setattr(hook, "complain", lambda _error: None)
    voice = racing(deadline=0.0)
    assert voice.say(hook.FIXED_DENIAL, takes_back=True)
    assert said == [hook.FIXED_DENIAL]
    assert voice._written.acquire(blocking=False)
