# ruff: noqa: INP001 - a script, not a package
"""Render the tables of README that come from the code: the protocols', the ladder, and the list of chaos points.

    python docs/tables.py --check README.md     exit 1 if a table in README is not the code's
    python docs/tables.py --write README.md     replace each table by the code's

A table stands between `<!-- table:NAME -->` and `<!-- /table -->`; each name in `TABLES` must stand there once, each
in `RUNTIME_TABLES` once or not at all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, get_args

import click

from fencepost.actors import (
    calls,
    delivery_calls,
    delivery_desk,
    delivery_intake,
    delivery_native,
    delivery_operator,
    delivery_seats,
    inbound_desk,
    intent_actor,
    invocation,
    pane_actor,
    pane_incarnations,
    tool_batch_actor,
    tool_calls,
    tool_execution,
    tool_placement,
    tool_state,
    tool_writes,
)
from fencepost.actors.intent_events import IntentEvent, Plan
from fencepost.actors.intent_state import TABLE, Code
from fencepost.actors.intent_verdicts import VERDICTS, Relation
from fencepost.mailbox.ladder import ANYTHING_ELSE, MAPPING, Fallback, Mapped, Reach, Retry, Stage, Stop, may_follow
from fencepost.mailbox.records import CallStatus, Replay
from fencepost.supervisor.chaos import BOUNDARIES

__all__ = ["RUNTIME_TABLES", "TABLES", "chaos_groups", "main", "replaced"]

CODES: Final[Mapping[Code, tuple[str, str, str]]] = {
    Code.D: ("detected", "none", "bound to nothing; later compatible transitions still coalesce into it"),
    Code.C_OPEN: ("reconciling", "soft batch", "bound; the blocked batch is open"),
    Code.C_COMPLETE: ("reconciling", "soft batch", "bound; the batch completed before there was a payload"),
    Code.C_UNATTENDED: ("reconciling", "kept or none", "no live process to serve"),
    Code.M_OPEN: ("materialized", "soft batch", "payload saved; the batch is open"),
    Code.M_COMPLETE: ("materialized", "soft batch", "payload saved; the batch is complete"),
    Code.M_UNATTENDED: ("materialized", "none", "payload saved while no process was running"),
    Code.L_OPEN: ("delivered", "soft batch", "handed to the batch, which is open"),
    Code.L_COMPLETE: ("delivered", "soft batch", "handed to the batch, which is complete"),
    Code.M_RESTART: ("materialized", "restart", "bound to a replacement; handshake awaited"),
    Code.L_RESTART: ("delivered", "restart", "delivered before, bound to a new replacement; handshake awaited"),
    Code.L_HANDSHAKE: ("delivered", "restart", "handshake accepted; the first turn's echo awaited"),
    Code.EXHAUSTED: ("materialized or delivered", "restart", "no attempt left; a person rearms or discards"),
    Code.RECOVERY_REQUIRED: ("recovery_required", "as before", "a person must resolve the workspace"),
    Code.TOPOLOGY_DIVERGED: ("topology_diverged", "as before", "a person must resolve the topology"),
    Code.ACKNOWLEDGED: ("acknowledged", "none", "the agent has it; nothing happens any more"),
    Code.SUPERSEDED: ("superseded", "none", "an earlier result covers it; nothing happens any more"),
}


def intent_codes() -> str:
    """Render what each code stands for."""
    return markdown(("code", "state", "mode", "meaning"), ([f"`{code}`", *CODES[code]] for code in Code))


def intent_transitions() -> str:
    """Render every transition there is, an event a row."""
    rows = []
    for event in get_args(IntentEvent):
        moves = [
            f"`{code}` → {', '.join(f'`{after}`' for after in Code if after in TABLE[code, event])}"
            for code in Code
            if (code, event) in TABLE
        ]
        rows.append([f"`{event.__name__}`", "; ".join(moves), first_sentence(event)])
    return markdown(("event", "from → to", "meaning"), rows)


def soft_proof_verdicts() -> str:
    """Render what a tool call gets while a soft proof is open."""
    rows = [
        [f"`{code}`", *(str(VERDICTS[code][relation]) for relation in Relation)] for code in Code if code in VERDICTS
    ]
    return markdown(("code", *(str(relation) for relation in Relation)), rows)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "intent-codes": intent_codes,
    "intent-transitions": intent_transitions,
    "soft-proof-verdicts": soft_proof_verdicts,
}


# -- tool calls ----------------------------------------------------------------------------------------------------

STATUSES: Final[Mapping[CallStatus, tuple[str, str]]] = {
    CallStatus.PLANNED: ("its arguments", "nothing of it has run"),
    CallStatus.EFFECT_PENDING: ("its arguments, memos and latest checkpoint", "its effect may have begun"),
    CallStatus.OUTCOME_READY: (
        "its arguments and its complete result",
        "it never runs again; it waits for its place",
    ),
    CallStatus.COMPLETED: ("its entry in the transcript", "nothing happens any more"),
}


def tool_statuses() -> str:
    """Render what each status of a call stands for."""
    return markdown(
        ("status", "durable beside the row", "meaning"), ([f"`{status}`", *STATUSES[status]] for status in CallStatus)
    )


def tool_transitions() -> str:
    """Render what every event does in every status of a call."""
    rows = [
        [
            f"`{event.__name__}`",
            *(f"`{after}`" if (after := tool_state.TABLE.get((status, event))) else "–" for status in CallStatus),
            first_sentence(event),
        ]
        for event in get_args(tool_state.CallEvent)
    ]
    return markdown(("event", *(f"in `{status}`" for status in CallStatus), "meaning"), rows)


def tool_orphans() -> str:
    """Render what becomes of an effect whose runtime died, by enumeration of all that decides it."""
    declared: list[Replay | None] = [*Replay, None]
    rows = [
        [
            f"`{stored}`",
            f"`{now}`" if now else "no such tool",
            *(str(tool_state.judge_orphan(stored, now, cancelled=cancelled)) for cancelled in (False, True)),
        ]
        for stored in Replay
        for now in declared
    ]
    return markdown(("declared when it began", "declared now", "not cancelled", "cancelled"), rows)


# -- the ladder ----------------------------------------------------------------------------------------------------

MEANINGS: Final[Mapping[Stage | Stop, str]] = {
    Stage.STORED: "it is written down, and its delivery is owed; nobody need have been reached",
    Stage.DELIVERED: "the other side of the line has it: a channel, a bridge, a mailbox; the harness need not",
    Stage.CONSUMED: "the harness took it: a turn was queued, started or steered; no model need have read it",
    Stage.RESPONDED: "something came back that belongs to it: a reply, or the end of its turn",
    Stop.UNAVAILABLE: "there was no permitted way, so nothing left",
    Stop.UNCERTAIN: "it left, or may have, and nobody knows how far it got",
    Stop.EXPIRED: "it ended before anybody consumed it",
    Stop.REJECTED: "a rule or a check turned it down",
}

RETRIES: Final[Mapping[Retry, str]] = {
    Retry.NO: "no",
    Retry.ORIGINAL_RECEIPT: "answered from the original; nothing is sent",
    Retry.NEW_REQUEST: "a new request, with an id of its own",
    Retry.AFTER_RECONCILE: "not before it is known what became of it",
    Retry.NEW_ID: "under a new id",
}

FALLBACKS: Final[Mapping[Fallback, str]] = {
    Fallback.NO: "no",
    Fallback.BEFORE_DISPATCH: "the mechanism's own, if nothing was ever sent",
}


def ladder_steps() -> str:
    """Render what each stage and stop means and what may follow it."""
    rows = []
    for word in [*Stage, *Stop]:
        following = may_follow(Reach(word) if isinstance(word, Stage) else Reach(stop=word))
        automatic = "yes" if following.automatic_retry else "no"
        then = (RETRIES[following.explicit_retry], automatic, FALLBACKS[following.fallback])
        rows.append([f"`{word}`", MEANINGS[word], *then])
    return markdown(("report", "means", "sent again by a caller", "by itself", "by another channel"), rows)


def ladder_mapping() -> str:
    """Render where each mechanism's own words stand on the ladder, a mechanism a row."""
    rows = [
        [f"`{mechanism}`", "; ".join(said_as(list(same)) for _, same in groupby(mapped, lambda row: row.reach))]
        for mechanism, mapped in groupby(MAPPING, lambda row: row.mechanism)
    ]
    return markdown(("mechanism", "its words, and what they are on the ladder"), rows)


def said_as(mapped: Sequence[Mapped]) -> str:
    """Render neighbouring rows of one reach: the words of one outcome together, then the reach."""
    said = []
    for outcome, rows in groupby(mapped, lambda row: row.outcome):
        natives = [row.native for row in rows]
        words = [f"`{native}`" for native in natives if native is not None and native is not ANYTHING_ELSE]
        words += ["anything else"] if ANYTHING_ELSE in natives else []
        said += [f"`{outcome}`"] if None in natives else []
        said += [f"`{outcome}` ({', '.join(words)})"] if words else []
    return f"{', '.join(said)} → {mapped[0].reach}"


# -- chaos points --------------------------------------------------------------------------------------------------

LINE: Final = ("enqueued", "begun", "written", "committed")
"""The boundaries of whatever the mutation line commits."""


def chaos_groups() -> list[tuple[str, list[str], tuple[str, ...]]]:
    """Return what passes points, the transitions there are of it, and the boundaries such a transition can pass."""
    pane_source = inspect.getsource(pane_actor) + inspect.getsource(pane_incarnations)
    intent_source = inspect.getsource(intent_actor)
    to_intent = set(re.findall(r"case (\w+)\(\)", inspect.getsource(intent_actor.IntentActor.handle)))
    messages = {name: message for name in calls.__all__ if "CALL" in vars(message := getattr(calls, name))}
    tool_messages = {name: getattr(tool_calls, name) for name in tool_calls.__all__}
    to_pane = {"StartBatch", "PlaceResults"}
    pane_calls = [message.CALL for name, message in messages.items() if name not in to_intent]
    pane_calls += [message.CALL for name, message in tool_messages.items() if name in to_pane]
    batch_calls = [message.CALL for name, message in tool_messages.items() if name not in to_pane]
    silent = [message.CALL for name, message in messages.items() if name in to_intent and name != "PlanAttempt"]
    events = [snake(event.__name__) for event in get_args(IntentEvent) if event is not Plan]
    of_its_own = set(re.findall(r'\.commit\(\s*"(\w+)"', pane_source)) - set(pane_calls)
    on_the_line = set(re.findall(r'label="intent\.(\w+)"', intent_source)) - {"plan"}
    batch_source = "".join(map(inspect.getsource, (tool_batch_actor, tool_placement)))
    of_a_batch = set(re.findall(r'(?:StepQueue|reached)\("(\w+)"', batch_source)) - set(batch_calls)
    tool_sources = "".join(map(inspect.getsource, (tool_execution, tool_writes, invocation)))
    beside_a_batch = set(re.findall(r'label="batch\.(\w+)"', tool_sources)) - of_a_batch - set(batch_calls)
    deciding = ("decided", *LINE, "applied")
    delivery_calls_made, of_a_delivery = delivery_transitions()
    return [
        ("a pane serves a call", named("pane", pane_calls), BOUNDARIES),
        ("a pane does something unasked", named("pane", of_its_own), deciding),
        ("a pane serves a call about a delivery", named("pane", delivery_calls_made), BOUNDARIES),
        ("a pane writes down what became of a delivery", named("pane", of_a_delivery), deciding),
        ("an event happens to an intent, together with the pane's part", named("intent", events), deciding),
        ("a reconciler plans", named("intent", ["plan"]), BOUNDARIES),
        ("a reconciler has answered", named("intent", ["reconcile"]), ("decided",)),
        ("a pane speaks to an intent", named("intent", silent), ("received", "answered")),
        ("an intent commits on its own", named("intent", on_the_line), LINE),
        ("a tool batch serves a call", named("batch", batch_calls), BOUNDARIES),
        ("a tool batch carries its calls and places their results", named("batch", of_a_batch), deciding),
        ("a running tool saves something, or a hook failed", named("batch", beside_a_batch), LINE),
        ("the supervisor tells of an actor", named("supervisor", ["crashed", "quarantined", "revived"]), LINE),
    ]


def delivery_transitions() -> tuple[list[str], set[str]]:
    """Return the calls about deliveries, and what else a pane commits of one."""
    messages = (getattr(delivery_calls, name) for name in delivery_calls.__all__)
    made = [message.CALL for message in messages if "CALL" in vars(message)]
    desks = (delivery_desk, delivery_intake, delivery_seats, delivery_native, delivery_operator, inbound_desk)
    source = "".join(map(inspect.getsource, desks))
    committing = r"(?:hear|_hear_of|end_unsent|_commit|_commit_first)"
    return made, set(re.findall(rf'\.{committing}\(\s*"(\w+)"', source)) - set(made)


def chaos_points() -> str:
    """Render the transitions at whose boundaries a `Chaos` can kill."""
    rows = [
        [what, ", ".join(f"`{name}`" for name in names), ", ".join(boundaries)]
        for what, names, boundaries in chaos_groups()
    ]
    return markdown(("passed when", "transitions", "boundaries"), rows)


def named(kind: str, transitions: Iterable[str]) -> list[str]:
    """Return the transitions as points name them, in order."""
    return sorted(f"{kind}.{transition}" for transition in transitions)


def snake(name: str) -> str:
    """Return a class's name as points write it: `MarkDelivered` is `mark_delivered`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


RUNTIME_TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "tool-statuses": tool_statuses,
    "tool-transitions": tool_transitions,
    "tool-orphans": tool_orphans,
    "ladder-steps": ladder_steps,
    "ladder-mapping": ladder_mapping,
    "chaos-points": chaos_points,
}


# -- text ----------------------------------------------------------------------------------------------------------


def first_sentence(documented: type) -> str:
    """Return the first sentence of a docstring, on one line and without references to notes README does not show."""
    text = " ".join((inspect.getdoc(documented) or "").split())
    sentence = re.split(r"(?<=\.)\s", text, maxsplit=1)[0]
    return re.sub(r" (\((section|note)[^)]*\)|\[[A-Z]\d+\])", "", sentence)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Render a table; a cell may not break it."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def replaced(text: str) -> str:
    """Return `text` with every table replaced by the code's; raise `ClickException` where one has no place."""
    for name, render in {**TABLES, **RUNTIME_TABLES}.items():
        pattern = re.compile(rf"(<!-- table:{re.escape(name)} -->\n).*?(<!-- /table -->)", re.DOTALL)
        before, *found = pattern.split(text)
        count = len(found) // 3
        if count == 0 and name in RUNTIME_TABLES:
            continue
        if count != 1:
            raise click.ClickException(f"table {name} must stand there once, between its markers, not {count} times")
        opening, closing, after = found
        text = f"{before}{opening}\n{render()}\n\n{closing}{after}"
    return text


@click.command()
@click.option("--check", "mode", flag_value="check", help="Compare only; exit 1 if a table is out of date.")
@click.option("--write", "mode", flag_value="write", help="Replace the tables.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(mode: str | None, file: Path) -> None:
    """Keep the tables in FILE equal to the code's."""
    if mode is None:
        raise click.UsageError("say --check or --write")
    before = file.read_text(encoding="utf-8")
    after = replaced(before)
    if before == after:
        return
    if mode == "check":
        raise click.ClickException(f"{file} is out of date: python docs/tables.py --write {file}")
    file.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
