"""What a bridge is shown is read from one moment, and no further back than it asked."""

from __future__ import annotations

from itertools import pairwise

import pytest
from bridges import Harness, Workspace, moved
from tool_scenarios import World, call, opened, started

from fencepost.mailbox.line import MutationLine
from fencepost.mailbox.records import EntryRecord, IncarnationRecord
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


async def test_unresolved_intents_are_read_without_those_that_are_over(url, loads):
    async with open_supervisor(url, reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        for turn, (before, after) in enumerate(pairwise("ABCDE"), 1):
            intent = await pane.detect(moved(before, after))
            await harness.call(turn, f"b{turn}")
            await harness.delivered(intent.intent_id, turn, f"b{turn}")
            await harness.completed(turn, f"b{turn}")
        await pane.detect(moved("E", "F"))
        await pane.detect(moved("F", "G"))
        *over, waiting, coalesced = await pane.intents()
        assert [one.state for one in over] == ["acknowledged"] * 3
        loads.clear()
        assert await pane.unresolved_intents() == [waiting, coalesced]
        rows = [row for queries in loads for _, found in queries for row in found]
        assert {row.intent_id for row in rows if not isinstance(row, IncarnationRecord)} == {
            waiting.intent_id,
            coalesced.intent_id,
        }
        assert await supervisor.pane("nowhere").unresolved_intents() == []


async def test_dead_letters_are_asked_for_in_pages(url, monkeypatch):
    asked = []
    load = MutationLine.load_dead_letters

    async def noting(self, after=0, limit=None):
        found = await load(self, after, limit)
        asked.append((after, limit, len(found)))
        return found

    monkeypatch.setattr(MutationLine, "load_dead_letters", noting)
    monkeypatch.setattr("fencepost.supervisor.views.LETTERS_AT_ONCE", 10)
    async with open_supervisor(url) as supervisor:
        for number in range(25):
            await supervisor.pane("pane").retire(f"nobody-{number}", "gone")
        told = await supervisor.dead_letters()
        assert [letter.incarnation_id for letter in told] == [f"nobody-{number}" for number in range(25)]
        assert asked == [(0, 10, 10), (10, 10, 10), (20, 10, 5)]
        assert await supervisor.dead_letters(after=23) == told[23:]
        assert await supervisor.dead_letters(after=99) == []


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
