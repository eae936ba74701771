"""The process's log: one line a record, as text or as JSON, with the ids as fields.

    text    2026-11-30T17:24:59.123Z INFO fencepost.hooks pane_id=pane-1 decision=allow: a hook was decided
    json    {"time": "…", "level": "info", "logger": "fencepost.hooks", "message": "…", "pane_id": "pane-1", …}

A record's fields are what its call gave as `extra`, over those that `about` bound around it.  A line is printable
ASCII whatever is in the record, so nobody's text can end it, begin another, or move a terminal's cursor; and in text
the fields stand before the message, so a message cannot pretend to be one.

Records are made into lines where they arise, and written by a thread a moment later.  Lines wait for it in bounded
number: when whoever reads the log is slower than that, or not there, the newest are dropped and counted, and behind
those that were queued a line says how many.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Literal, TextIO, TypeAlias

import trio
from attrs import define

__all__ = ["LogFormat", "about", "logging_to"]

LogFormat: TypeAlias = Literal["text", "json"]

TEXT_MAX: Final = 2_000
"""Characters of a message or of a field; a traceback may have ten times as many."""
_LINES_MAX: Final = 10_000
_CLOSE_SECONDS: Final = 2.0
_LINGER_SECONDS: Final = 0.02
"""How long the thread lets lines gather: waking it for each would cost the others more than making the line."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/@%+-]{1,256}")
"""Stands for itself in text; all else is quoted, a colon too, so the first one outside of quotes ends the fields."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# -- the fields of what is logged around here --------------------------------------------------------------------------


@define(eq=False)
class _Around:
    fields: Mapping[str, object]
    task: object
    open: bool = True


_around: Final[ContextVar[_Around | None]] = ContextVar("fencepost-log-fields", default=None)


@contextmanager
def about(**fields: object) -> Generator[None]:
    """Every record that arises within has these fields too; those that are None are left out.

    Only in this task and in threads it waits for: an actor that is woken from within inherits the context, and what it
    logs is not about this request.
    """
    told = {name: value for name, value in fields.items() if value is not None}
    around = _Around({**_bound(), **told}, _task())
    token = _around.set(around)
    try:
        yield
    finally:
        around.open = False
        _around.reset(token)


def _bound() -> Mapping[str, object]:
    around = _around.get()
    if around is None or not around.open:
        return {}
    task = _task()
    return around.fields if task is None or task is around.task else {}


def _task() -> object:
    return trio.lowlevel.current_task() if trio.lowlevel.in_trio_task() else None


# -- from a record to a line -------------------------------------------------------------------------------------------


class _Line(logging.Formatter):
    """What both forms have in common."""

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """The ids and whatever else the record's caller told beside its message."""
        own = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        told = {**_bound(), **own}
        if record.exc_info:
            told["exception"] = _cut(self.formatException(record.exc_info), 10 * TEXT_MAX)
        return {name: _scalar(value) for name, value in told.items() if value is not None}


class JsonLine(_Line):
    """One JSON object in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line, without its end."""
        head: dict[str, object] = {
            "time": _moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage(), TEXT_MAX),
        }
        return _ascii({**head, **self.fields(record), **head})  # the head is first, and it is what it is


class TextLine(_Line):
    """For people: time, level and logger, the fields, and behind a colon the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line, without its end."""
        fields = "".join(f" {name}={_quoted(value)}" for name, value in self.fields(record).items())
        message = _ascii(_cut(record.getMessage(), TEXT_MAX))[1:-1].replace('\\"', '"')
        return f"{_moment(record.created)} {record.levelname} {record.name}{fields}: {message}"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _scalar(value: object) -> object:
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str):
        return _cut(value, 10 * TEXT_MAX)
    return _cut(ascii(value), TEXT_MAX)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[:size]}... ({len(text)} characters)"


def _ascii(value: object) -> str:
    return json.dumps(value, allow_nan=False).replace("\x7f", "\\u007f")


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else _ascii(value)
    return text if _PLAIN.fullmatch(text) else _ascii(text)


# -- from a line to the file -------------------------------------------------------------------------------------------


class LineHandler(logging.Handler):
    """Hands lines to a thread that writes them; nobody waits, and what does not fit is counted in `dropped`."""

    def __init__(self, write: Callable[[bytes], object], formatter: logging.Formatter, *, lines_max: int) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.dropped = 0
        self._write = write
        self._lines_max = lines_max
        self._lines: deque[str] = deque()
        self._news, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="fencepost-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's line, or count it as dropped."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a record that cannot be shown must not fail whoever logged it
            self.dropped += 1
            return
        if len(self._lines) >= self._lines_max:
            self.dropped += 1
            return
        self._lines.append(line)
        if not self._news.is_set():
            self._news.set()

    def close(self) -> None:
        """Write what is queued, within a bounded time; a reader that does not read keeps nobody, and no second time."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._news.set()
        self._thread.join(_CLOSE_SECONDS)
        super().close()

    def _write_all(self) -> None:
        told = 0
        while not self._closing.is_set() or self._lines:
            self._news.wait()
            self._closing.wait(_LINGER_SECONDS)
            self._news.clear()  # before they are taken: who adds one behind them sets it again
            dropped, count = self.dropped, len(self._lines)
            lines = [self._lines.popleft() for _ in range(count)]
            if dropped > told:  # they came when these were queued
                lines.append(self._about_dropped(dropped - told))
            try:
                self._write("".join(f"{line}\n" for line in lines).encode("ascii", "backslashreplace"))
                told = dropped
            except (OSError, ValueError):  # a full disk, a reader that left, a closed stream
                with self.lock or nullcontext():
                    self.dropped += count

    def _about_dropped(self, count: int) -> str:
        message = "records were dropped: the log is not read fast enough"
        said = {"name": __name__, "msg": message, "levelno": logging.WARNING, "levelname": "WARNING", "dropped": count}
        return self.format(logging.makeLogRecord(said))


@contextmanager
def logging_to(
    stream: TextIO, style: LogFormat = "text", level: int = logging.INFO, *, lines_max: int = _LINES_MAX
) -> Generator[LineHandler]:
    """Log the process to `stream` within: fencepost from `level` on, whatever else from WARNING on.

    The one place that configures logging; what was configured before is as it was afterwards.  A stream with a file
    descriptor is written past its own buffer.
    """
    formatter = JsonLine() if style == "json" else TextLine()
    handler = LineHandler(_writer(stream), formatter, lines_max=lines_max)
    root, ours = logging.getLogger(), logging.getLogger("fencepost")
    before = ours.level
    root.addHandler(handler)
    ours.setLevel(level)
    try:
        yield handler
    finally:
        ours.setLevel(before)
        root.removeHandler(handler)
        handler.close()


def _writer(stream: TextIO) -> Callable[[bytes], object]:
    """Past the stream's buffer, whose lock a thread that is stuck would hold over the end of the process."""
    try:
        descriptor = stream.fileno()
    except (io.UnsupportedOperation, AttributeError):

        def write_text(line: bytes) -> None:
            stream.write(line.decode("ascii"))
            stream.flush()

        return write_text

    def write(line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    return write
