"""The process's log: one line a record whatever is in it, its fields, and a reader nobody waits for."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading

import pytest
import trio
import trio.testing
from bridge.telemetry_world import logged
from hypothesis import example, given, strategies as st

from fencepost.supervisor.bridge.telemetry import logs
from fencepost.supervisor.bridge.telemetry.logs import JsonLine, LineHandler, TextLine, about, logging_to

LOG = logging.getLogger("fencepost.test")
EVIL = "\x1b]0;owned\x07\r\n2026-11-30T00:00:00Z ERROR fencepost: forged\x7f\x9b\u2028\u202e\ud800"
FIELD = r' ([a-z_]+)=("(?:[^"\\]|\\.)*"|[^ ":]+)'


def record_of(message, *args, **fields):
    return logging.makeLogRecord(
        {"name": "fencepost.x", "levelname": "INFO", "levelno": 20, "msg": message, "args": args} | fields
    )


# -- a line ------------------------------------------------------------------------------------------------------------


@given(st.text(), st.text(), st.text())
@example(EVIL, EVIL, EVIL)
def test_a_record_is_one_line_of_json_whatever_is_in_it(message, pane_id, reason):
    line = JsonLine().format(record_of("%s", message, pane_id=pane_id, reason=reason))
    assert line.isascii()
    assert line.isprintable()
    told = json.loads(line)
    assert (told["message"], told["pane_id"], told["reason"]) == (message, pane_id, reason)
    assert (told["level"], told["logger"]) == ("info", "fencepost.x")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told["time"])


@given(st.text(), st.text(), st.text())
@example(EVIL, EVIL, EVIL)
@example(" pane_id=other: message", "a b", ": ")
@example('" intent_id=x', 'a" intent_id="x', "x\\")
def test_in_text_the_fields_stand_first_and_nothing_can_pretend_to_be_one(message, pane_id, reason):
    line = TextLine().format(record_of("%s", message, pane_id=pane_id, reason=reason))
    assert line.isascii()
    assert line.isprintable()
    whole = re.fullmatch(rf"\S+ INFO fencepost\.x((?:{FIELD})*): (.*)", line)
    assert whole is not None
    fields = {name: json.loads(value) if value[0] == '"' else value for name, value in re.findall(FIELD, whole[1])}
    assert fields == {"pane_id": pane_id, "reason": reason}


def test_a_name_of_the_line_itself_cannot_be_taken_by_a_field():
    told = json.loads(JsonLine().format(record_of("said", level="forged", time="never", logger="root")))
    assert (told["level"], told["logger"], told["message"]) == ("info", "fencepost.x", "said")
    assert told["time"] != "never"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, 3),
        (True, True),
        (0.5, 0.5),
        (float("nan"), "nan"),
        (None, None),
        (b"\xff", "b'\\xff'"),
        (["\x1b"], "['\\x1b']"),
    ],
)
def test_a_field_is_a_scalar_and_what_is_none_is_told_as_its_ascii(value, shown):
    assert json.loads(JsonLine().format(record_of("m", field=value))).get("field") == shown


def test_long_texts_are_cut_and_say_so():
    told = json.loads(JsonLine().format(record_of("x" * 1_000_000, field="y" * 1_000_000)))
    assert told["message"].endswith("... (1000000 characters)")
    assert len(told["message"]) < 3_000
    assert len(told["field"]) < 30_000


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_traceback_is_on_the_same_line(style):
    with logged(style) as told:
        try:
            raise RuntimeError(EVIL)
        except RuntimeError:
            LOG.exception("it failed")
    (record,) = told
    if style == "json":
        assert record["exception"].startswith("Traceback (most recent call last):\n")
        assert EVIL in record["exception"]
    else:
        assert record.isprintable()
        assert "\\nRuntimeError: " in record


# -- fields of what is around ------------------------------------------------------------------------------------------


def test_what_is_about_something_has_its_ids_and_may_add_its_own():
    with logged() as told:
        with about(pane_id="p", intent_id=None), about(incarnation_id="i", delivery_id="d"):
            LOG.info("within", extra={"delivery_id": "own"})
        LOG.info("after")
    within, after = told
    assert (within["pane_id"], within["incarnation_id"], within["delivery_id"]) == ("p", "i", "own")
    assert "intent_id" not in within
    assert not {"pane_id", "incarnation_id"} & after.keys()


async def test_a_task_that_began_within_is_about_something_else_and_a_thread_is_not():
    with logged() as told:
        async with trio.open_nursery() as nursery:
            with about(pane_id="p"):
                nursery.start_soon(trio.lowlevel.checkpoint)
                nursery.start_soon(_log_as_another_task)
                await trio.to_thread.run_sync(LOG.info, "thread")
                await trio.testing.wait_all_tasks_blocked()
                LOG.info("task")
    assert {record["message"]: record.get("pane_id") for record in told} == {"thread": "p", "other": None, "task": "p"}


async def _log_as_another_task():
    LOG.info("other")


async def test_what_outlives_it_is_not_about_it_any_more():
    with logged() as told:
        with about(pane_id="p"):
            context = contextvars.copy_context()
        context.run(LOG.info, "later")
    assert "pane_id" not in told[0]


# -- the configuration -------------------------------------------------------------------------------------------------


def test_it_shows_fencepost_from_the_level_on_and_others_from_warnings_on():
    with logged(level=logging.INFO) as told:
        logging.getLogger("fencepost.supervisor.bridge.adapters.claude").info("ours")
        logging.getLogger("fencepost.x").debug("too fine")
        logging.getLogger("hypercorn.error").info("not asked for")
        logging.getLogger("hypercorn.error").warning("theirs %s", EVIL)
    assert [(record["logger"], record["message"]) for record in told] == [
        ("fencepost.supervisor.bridge.adapters.claude", "ours"),
        ("hypercorn.error", f"theirs {EVIL}"),
    ]


def test_afterwards_everything_is_as_it_was():
    root, ours = logging.getLogger(), logging.getLogger("fencepost")
    before = (list(root.handlers), root.level, ours.level, threading.active_count())
    with pytest.raises(ZeroDivisionError), logging_to(io.StringIO(), "text", logging.DEBUG):
        raise ZeroDivisionError
    assert (list(root.handlers), root.level, ours.level, threading.active_count()) == before


# -- a reader nobody waits for -----------------------------------------------------------------------------------------


class Gated:
    """A writer that is held up until it is let go."""

    def __init__(self) -> None:
        self.entered, self.gate, self.lines = threading.Event(), threading.Event(), []

    def __call__(self, line: bytes) -> None:
        self.entered.set()
        assert self.gate.wait(20)
        self.lines += line.decode().splitlines()


def test_a_reader_that_is_slow_costs_records_that_are_counted_and_told():
    writer = Gated()
    handler = LineHandler(writer, JsonLine(), lines_max=3)
    handler.handle(record_of("first"))
    assert writer.entered.wait(20)  # the thread holds it, and the queue is empty
    for number in range(10):
        handler.handle(record_of("%d", number))
    assert handler.dropped == 7
    writer.gate.set()
    handler.close()
    told = [json.loads(line) for line in writer.lines]
    assert [one["message"] for one in told[:4]] == ["first", "0", "1", "2"]
    assert [(one["level"], one["dropped"]) for one in told[4:]] == [("warning", 7)]


def test_the_end_is_bounded_though_nobody_reads(monkeypatch):
    monkeypatch.setattr(logs, "_CLOSE_SECONDS", 0.05)
    writer = Gated()
    for lines in (1, 100):  # the queue is full, and it is not
        handler = LineHandler(writer, JsonLine(), lines_max=lines)
        for _ in range(5):
            handler.handle(record_of("x"))
        handler.close()
        assert handler._thread.is_alive()
    writer.gate.set()


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("message", "args", "fields"),
    [
        ("%s", (Unshowable(),), {}),
        ("%s", ("one", "more"), {}),
        ("%s %s", ("one",), {}),
        ("x", (), {"field": 10**10_000}),
        ("x", (), {"field": Unshowable}),
    ],
    ids=["raises", "too many", "too few", "too large", "fine"],
)
def test_a_record_that_cannot_be_shown_is_dropped_and_fails_nobody(message, args, fields, capfd):
    lines: list = []
    handler = LineHandler(lines.append, JsonLine(), lines_max=10)
    handler.handle(record_of(message, *args, **fields))
    handler.close()
    dropped = 0 if fields.get("field") is Unshowable else 1
    (told,) = [json.loads(line) for line in lines]
    assert (told.get("dropped", 0), handler.dropped, capfd.readouterr().err) == (dropped, dropped, "")


def test_a_stream_that_fails_costs_its_records_and_nothing_else():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, logging_to(stream) as handler:
        LOG.warning("into the void")
        LOG.warning("again")
        handler.close()
        assert handler.dropped == 2


def test_a_process_ends_though_its_log_is_stuck():
    program = """
import logging, os, sys
from fencepost.supervisor.bridge.telemetry import logs
logs._CLOSE_SECONDS = 0.1
with logs.logging_to(sys.stderr):
    for _ in range(20_000):
        logging.getLogger("fencepost").warning("x" * 1_000)
print("done")
"""
    stuck, end = os.pipe()
    try:
        ran = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=end, timeout=60, cwd="/", check=False
        )
    finally:
        os.close(stuck)
        os.close(end)
    assert (ran.returncode, ran.stdout) == (0, b"done\n")
