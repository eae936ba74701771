"""What a bridge is shown is read from one moment, and no further back than it asked."""

from __future__ import annotations

import pytest
from bridges import Harness, Workspace, moved
from tool_scenarios import World, call, opened, started

from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.records import EntryRecord
from fencepost.supervisor import open_supervisor


@pytest.fixture
def loads(monkeypatch):
    """What each load brought: a list of answers, one for each of its queries."""
    found = []
    load = MutationLine.load

    async def noting(self, *queries):
        answers = await load(self, *queries)
        found.append(list(zip(queries, answers, strict=True)))
        return answers

    monkeypatch.setattr(MutationLine, "load", noting)
    return found


async def test_intents_are_shown_with_what_belongs_to_them_from_one_load(url, loads):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await pane.detect(moved("B", "C"))
        await harness.call(1, "b1")
        await supervisor.pane("other").launch("claude-code")
        await supervisor.pane("other").detect(moved("A", "B"))
        loads.clear()
        (view,) = await pane.intents()
        assert len(loads) == 1
        assert await supervisor.intent(view.intent_id).view() == view
        assert len(loads) == 2
        assert len(view.triggers) == 2
        assert await supervisor.intent("nobody").view() is None
        assert await supervisor.pane("nowhere").intents() == []


async def test_entries_behind_one_are_read_without_those_before_it(url, loads):
    async with opened(url, World()) as (_, pane):
        batch = await started(pane, *map(call, "ABCDE"))
        await batch.wait()
        entries = await pane.entries()
        loads.clear()
        assert await pane.entries(after=entries[2].entry_id) == entries[3:]
        rows = [
            row for queries in loads for query, found in queries if query.record_type is EntryRecord for row in found
        ]
        assert [row.entry_id for row in rows] == [entry.entry_id for entry in entries[2:]]
