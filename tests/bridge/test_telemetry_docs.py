"""docs/observability.md has the names of the code, each in its table, and the example in it holds."""

from __future__ import annotations

import logging
import re
import textwrap
import types
from pathlib import Path

import attrs
from bridge.http_world import OURS
from bridge.telemetry_world import observed
from prometheus_client.parser import text_string_to_metric_families

from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.telemetry import kinds, logs, spans, telemetry
from fencepost.supervisor.bridge.telemetry.following import SEED_MAX
from fencepost.supervisor.bridge.telemetry.kinds import KINDS
from fencepost.supervisor.bridge.telemetry.observer import DECISIONS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")


def rows_of(head: str) -> list[list[str]]:
    """The cells of the table that begins with this column."""
    (table,) = [block for block in TEXT.split("\n\n") if block.startswith(f"| {head} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def name_of(family) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


async def test_the_metrics_are_those_that_are_answered():
    async with observed() as here, here.there.entitled(Listener.OPERATOR) as client:
        await here.hook("agent", turn=1, batch="b")
        text = (await client.get("/metrics")).text
    families = list(text_string_to_metric_families(text))
    answered = {name_of(family): family.type for family in families}
    assert {names_in(name)[0]: kind for name, kind, *_ in rows_of("metric")} == answered
    labels = {names_in(name)[0]: sorted(names_in(cell)) for name, _, cell, _ in rows_of("metric")}
    for family in families:
        for sample in family.samples:
            assert sorted(sample.labels.keys() - {"le"}) == labels[name_of(family)]


def test_the_decisions_are_those_of_the_code():
    assert tuple(names_in(row[0])[0] for row in rows_of("decision")) == DECISIONS


def test_the_levels_of_events_are_those_of_the_code():
    told = {name: row[0] for row in rows_of("level") for name in names_in(row[1])}
    raised = {kind: level for kind, level in KINDS.items() if level > logging.INFO}
    assert told == {kind: logging.getLevelName(level).lower() for kind, level in raised.items()}
    quiet = {kind for kind, level in KINDS.items() if level == logging.DEBUG}
    assert quiet == {kind for kind in KINDS if "." not in kind}  # those of tool batches


def test_the_ids_the_spans_and_the_bounds_are_those_of_the_code():
    sentence = re.search(r"its id as a field: (.*?)\. What", TEXT, re.DOTALL)
    assert sentence is not None
    assert tuple(names_in(sentence[1])) == kinds._IDS
    made = {story.name for story in spans._STORIES} | {"fencepost.hook"}
    assert {names_in(row[0])[0] for row in rows_of("span")} == made
    assert f"the last {SEED_MAX} stored ones" in TEXT
    assert f"more than {spans.OPEN_MAX} open ones" in TEXT
    assert f"at most {telemetry.DEAD_LETTER_SECONDS:g} seconds later" in TEXT


async def test_the_loggers_are_those_of_the_code(caplog):
    caplog.set_level(logging.DEBUG, "fencepost")
    async with observed() as here:
        pane = here.there.supervisor.pane(OURS)
        await here.hook((await pane.launch("plain")).incarnation_id, turn=1, batch="b")
        await pane.retire("ghost", "no reason")
        await here.telemetry._follower.look_for_dead_letters()
        await here.followed()
    assert {record.name for record in caplog.records} == {names_in(row[0])[0] for row in rows_of("logger")}


def test_the_example_is_a_program():
    section = TEXT.partition("## In a program of your own\n")[2]
    code = textwrap.dedent("".join(re.findall(r"^(?: {4}.*)?\n", section, re.MULTILINE)))
    program = types.ModuleType("example")
    exec(compile(code, "observability.md", "exec"), vars(program))
    assert program.logging_to is logs.logging_to
    assert "telemetry" in attrs.fields_dict(program.Bridge)
