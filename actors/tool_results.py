"""What a call came to, made durable: judged, bounded, copied.  Pure.

A tool is free to return anything, and whatever it returns its effect has happened.  So `outcome_of` never fails: a
result that cannot be stored, or is none at all, becomes an error result of its call (contract T-15, T-16).  Progress
is different: the tool is still there to be told, so `progress_of` raises ValueError.

The words of every result the runtime itself writes are here, in one place.  They claim nothing that is not known: the
marker of an interruption speaks of preceding output only where there is some, and of the external outcome it says
that it is unknown, because it is (contract T-19).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast

from attrs import evolve, frozen

from fencepost.actors.tool_messages import ResultEntry, ToolResult
from fencepost.mailbox.records import CheckpointRecord, EntryRecord, OutcomeRecord
from fencepost.mailbox.strict_json import JsonValue, json_copy, json_value, text_of_copy
from fencepost.mailbox.text import storable_text

__all__ = [
    "ABORTED_BEFORE_START",
    "INTERRUPTED",
    "INTERRUPTED_AFTER_OUTPUT",
    "Blocks",
    "Outcome",
    "Progress",
    "aborted",
    "checkpoint_record",
    "entry_view",
    "error_outcome",
    "failure_of",
    "interrupted",
    "missing_tool",
    "not_executed",
    "outcome_of",
    "outcome_record",
    "progress_data",
    "progress_of",
    "progress_of_record",
    "result_data",
    "result_of",
    "result_of_outcome",
    "result_of_progress",
]

Blocks: TypeAlias = list[dict[str, JsonValue]]

INTERRUPTED_AFTER_OUTPUT: Final = (
    "[Tool execution was interrupted. The preceding output is the latest durable progress snapshot; newer live output"
    " may be missing, and the external outcome is unknown.]"
)
INTERRUPTED: Final = (
    "[Tool execution was interrupted. No output had been saved before that, and the external outcome is unknown.]"
)
ABORTED_BEFORE_START: Final = "[Tool execution was aborted before it started.]"
ABORTED_AFTER_OUTPUT: Final = (
    "[Tool execution was aborted. The preceding output is its latest progress; newer output may be missing, and the"
    " external outcome is unknown.]"
)
ABORTED: Final = "[Tool execution was aborted before it had reported anything, and its external outcome is unknown.]"


@frozen
class Progress:
    """One whole snapshot of a running tool's output; copied, so the tool cannot change it any more."""

    content: Blocks
    details: JsonValue = None
    usage: JsonValue = None

    @property
    def shows_output(self) -> bool:
        """Whether a reader would see anything of it."""
        return any(block["type"] != "text" or block["text"] for block in self.content)


@frozen(kw_only=True)
class Outcome:
    """One final result, storable as it is."""

    content: Blocks
    details: JsonValue = None
    is_error: bool = False
    usage: JsonValue = None
    added_tool_names: tuple[str, ...] = ()
    terminate: bool = False


# -- judging what a tool handed over -----------------------------------------------------------------------------


def progress_of(partial: object) -> Progress:
    """Return a strict copy of an update.  Raises ValueError for what cannot be stored."""
    if not isinstance(partial, ToolResult):
        raise ValueError(f"an update is a ToolResult, not {partial!r}")  # noqa: TRY004 - the contract's one error
    return Progress(_blocks(partial.content), json_copy(partial.details, "details"), json_copy(partial.usage, "usage"))


def outcome_of(result: object, bytes_max: int) -> Outcome:
    """Return what is stored of a tool's answer; an unstorable one is an error result that says why."""
    if not isinstance(result, ToolResult):
        return error_outcome(f"The tool returned no ToolResult but {_shown(result)}.")
    try:
        outcome = Outcome(
            content=_blocks(result.content),
            details=json_copy(result.details, "details"),
            is_error=_flag(result.is_error, "is_error"),
            usage=json_copy(result.usage, "usage"),
            added_tool_names=_names(result.added_tool_names),
            terminate=_flag(result.terminate, "terminate"),
        )
        return bounded(outcome, bytes_max)
    except Exception as error:  # noqa: BLE001 - a tool's own classes may raise anything when looked at
        return error_outcome(f"The tool ran, but its result cannot be stored: {_text_of(error)}")


def _shown(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, not a bool")  # noqa: TRY004 - unstorable, as everywhere
    return value


def _names(names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"added_tool_names is {names!r}, not a sequence of texts")
    return tuple(storable_text(name) for name in names)


def _blocks(content: object) -> Blocks:
    """Return content as blocks.  Raises ValueError for what is none."""
    if isinstance(content, str):
        return [{"type": "text", "text": storable_text(content)}]
    if isinstance(content, bytes) or not isinstance(content, Sequence):
        raise ValueError(f"content is {_shown(content)}, not a text or a sequence of blocks")  # noqa: TRY004
    return [_block(block, f"content[{index}]") for index, block in enumerate(content)]


def _block(block: object, where: str) -> dict[str, JsonValue]:
    copied = json_copy(block, where)
    if not isinstance(copied, dict):
        raise ValueError(f"{where} is {_shown(block)}, not a block")  # noqa: TRY004
    match copied:
        case {"type": "text", "text": str()}:
            return copied
        case {"type": "image", "mime_type": str(), "data": str(data)}:
            try:
                base64.b64decode(data, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"{where} has data that is not base64: {error}") from error
            return copied
        case _:
            raise ValueError(f"{where} is neither a text block nor an image block")


# -- bounds (contract T-16) --------------------------------------------------------------------------------------


def bounded(outcome: Outcome, bytes_max: int) -> Outcome:
    """Return the outcome within `bytes_max` bytes of content and of details each; what is cut says so."""
    content = _cut(outcome.content, bytes_max)
    if content is not outcome.content:
        outcome = evolve(outcome, content=content)
    beside: dict[str, JsonValue] = {
        "details": outcome.details,
        "usage": outcome.usage,
        "added_tool_names": list(outcome.added_tool_names),
    }
    sizes = {name: len(text_of_copy(value).encode()) for name, value in beside.items() if value}
    over = {name: size for name, size in sizes.items() if size > bytes_max}
    if not over:
        return outcome
    notes: Blocks = [
        {"type": "text", "text": f"[The tool's {name} have {size} bytes, {bytes_max} are allowed; they were dropped.]"}
        for name, size in over.items()
    ]
    return evolve(
        outcome,
        content=[*outcome.content, *notes],
        is_error=True,
        details=None if "details" in over else outcome.details,
        usage=None if "usage" in over else outcome.usage,
        added_tool_names=() if "added_tool_names" in over else outcome.added_tool_names,
    )


def _size(block: Mapping[str, JsonValue]) -> int:
    return len(str(block["text"] if block["type"] == "text" else block["data"]).encode())


def _cut(content: Blocks, bytes_max: int) -> Blocks:
    size = sum(map(_size, content))
    if size <= bytes_max:
        return content
    marker = f"\n[Cut here: the whole result has {size} bytes, {bytes_max} are allowed.]"
    # Within the bound, marker and all, unless the bound is so small that the marker would push everything else out.
    left = bytes_max - len(marker) if bytes_max > 4 * len(marker) else bytes_max
    kept: Blocks = []
    for block in content:
        if _size(block) <= left:
            kept.append(block)
            left -= _size(block)
            continue
        text = str(block["text"]) if block["type"] == "text" else ""
        head = text.encode()[:left].decode(errors="ignore")
        return [*kept, {"type": "text", "text": head + marker}]
    return [*kept, {"type": "text", "text": marker}]


# -- results the runtime writes itself ---------------------------------------------------------------------------


def error_outcome(text: str, *, terminate: bool = False) -> Outcome:
    """An error result with one text."""
    return Outcome(content=[{"type": "text", "text": storable_text(text)}], is_error=True, terminate=terminate)


def _text_of(error: BaseException) -> str:
    """What an error says; of a group, which only counts, also what those in it say."""
    try:
        text = str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - an exception's own __str__
        text = type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        return "\n".join([text, *map(_text_of, error.exceptions)])
    return text


def failure_of(error: BaseException, bytes_max: int) -> Outcome:
    """What a tool, a hook or a validator that raised leaves behind: its error's text."""
    return bounded(error_outcome(_text_of(error)), bytes_max)


def not_executed(text: str, bytes_max: int, *, terminate: bool = False) -> Outcome:
    """A call that was refused or blocked; the text is the reason."""
    return bounded(error_outcome(text, terminate=terminate), bytes_max)


def missing_tool(name: str) -> Outcome:
    """A call of a tool there is not."""
    return error_outcome(f"There is no tool named {name!r}.")


def interrupted(progress: Progress | None, bytes_max: int) -> Outcome:
    """An effect that began in an earlier life and will not be repeated: what was saved of it, and the truth."""
    return _marked(progress, INTERRUPTED_AFTER_OUTPUT, INTERRUPTED, bytes_max)


def aborted(progress: Progress | None, bytes_max: int, *, started: bool) -> Outcome:
    """A call whose batch was cancelled before it had a result of its own."""
    if not started:
        return error_outcome(ABORTED_BEFORE_START)
    return _marked(progress, ABORTED_AFTER_OUTPUT, ABORTED, bytes_max)


def _marked(progress: Progress | None, after_output: str, without: str, bytes_max: int) -> Outcome:
    """The progress, then the marker; progress has no final authority, so it adds no tools and ends nothing."""
    if progress is None:
        return error_outcome(without)
    shown = bounded(
        Outcome(content=progress.content, details=progress.details, usage=progress.usage, is_error=True), bytes_max
    )
    if not progress.shows_output:
        return evolve(shown, content=[{"type": "text", "text": without}])
    marker: dict[str, JsonValue] = {"type": "text", "text": after_output}
    return evolve(shown, content=[*shown.content, marker])


# -- to rows and back --------------------------------------------------------------------------------------------


def _optional_text(value: JsonValue) -> str | None:
    return None if value is None else text_of_copy(value)


def _optional_value(text: str | None) -> JsonValue:
    return None if text is None else json_value(text)


def checkpoint_record(invocation_id: str, progress: Progress, now: int) -> CheckpointRecord:
    """The row of a durable snapshot."""
    return CheckpointRecord(
        invocation_id=invocation_id,
        content=text_of_copy(cast("JsonValue", progress.content)),
        details=_optional_text(progress.details),
        usage=_optional_text(progress.usage),
        at=now,
    )


def progress_of_record(row: CheckpointRecord) -> Progress:
    """The snapshot a row holds."""
    content = cast("Blocks", json_value(row.content))
    return Progress(content, _optional_value(row.details), _optional_value(row.usage))


def outcome_record(invocation_id: str, outcome: Outcome, now: int) -> OutcomeRecord:
    """The row of a staged outcome."""
    return OutcomeRecord(
        invocation_id=invocation_id,
        content=text_of_copy(cast("JsonValue", outcome.content)),
        details=_optional_text(outcome.details),
        is_error=outcome.is_error,
        usage=_optional_text(outcome.usage),
        added_tool_names=text_of_copy(list(outcome.added_tool_names)),
        at=now,
    )


def _tool_result(content: Blocks, details: JsonValue, usage: JsonValue, **more: object) -> ToolResult:
    return ToolResult(cast("Sequence[Mapping[str, object]]", content), details, usage=usage, **more)  # type: ignore[arg-type]


def result_of_progress(progress: Progress) -> ToolResult:
    """Progress as a reader is shown it, in objects of its own."""
    return _tool_result(
        cast("Blocks", json_copy(cast("JsonValue", progress.content))),
        json_copy(progress.details),
        json_copy(progress.usage),
    )


def result_of_outcome(row: OutcomeRecord, *, terminate: bool) -> ToolResult:
    """A staged outcome as a reader or a hook is shown it, in objects of its own."""
    return _tool_result(
        cast("Blocks", json_value(row.content)),
        _optional_value(row.details),
        _optional_value(row.usage),
        is_error=row.is_error,
        added_tool_names=_names_of(row.added_tool_names),
        terminate=terminate,
    )


def result_of(outcome: Outcome) -> ToolResult:
    """An outcome as a hook is shown it, in objects of its own."""
    return _tool_result(
        cast("Blocks", json_copy(cast("JsonValue", outcome.content))),
        json_copy(outcome.details),
        json_copy(outcome.usage),
        is_error=outcome.is_error,
        added_tool_names=outcome.added_tool_names,
        terminate=outcome.terminate,
    )


def _names_of(text: str) -> tuple[str, ...]:
    return tuple(cast("list[str]", json_value(text)))


def entry_view(row: EntryRecord) -> ResultEntry:
    """A placed result as a bridge sees it."""
    return ResultEntry(
        entry_id=row.entry_id,
        parent_entry_id=row.parent_entry_id,
        operation_id=row.operation_id,
        turn_id=row.turn_id,
        source_index=row.source_index,
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
        content=cast("list[dict[str, object]]", json_value(row.content)),
        details=_optional_value(row.details),
        is_error=row.is_error,
        usage=_optional_value(row.usage),
        added_tool_names=_names_of(row.added_tool_names),
        terminate=row.terminate,
        at=row.at,
    )


# -- as events carry it ------------------------------------------------------------------------------------------


def progress_data(progress: Progress) -> dict[str, object]:
    """A snapshot as `tool_update` carries it."""
    return {"content": progress.content, "details": progress.details, "usage": progress.usage}


def result_data(outcome: Outcome) -> dict[str, object]:
    """A result as `tool_end` carries it, complete."""
    return {
        "content": outcome.content,
        "details": outcome.details,
        "is_error": outcome.is_error,
        "usage": outcome.usage,
        "added_tool_names": list(outcome.added_tool_names),
        "terminate": outcome.terminate,
    }
