"""The report of an outdated attempt is fenced wherever its intent stands in the chain, and nothing of it is written."""

from __future__ import annotations

import pytest
import trio
from attrs import evolve
from bridges import Harness, Workspace, moved, reconciled

from fencepost.actors.calls import Link
from fencepost.actors.intent_events import Prepare, Supersede
from fencepost.actors.joining import join
from fencepost.mailbox.errors import Fenced
from fencepost.mailbox.mutation import Mutation
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import IntentRecord, IntentState
from fencepost.supervisor import open_supervisor


@pytest.mark.parametrize("reported_first", [True, False])
async def test_an_outdated_report_is_fenced_for_the_whole_chain(url, reported_first):
    async with open_supervisor(url, reconciler=Workspace(gate=trio.Event())) as supervisor:
        pane = supervisor.pane("pane")
        harness = await Harness.start(pane)
        await pane.detect(moved("A", "B"))
        await harness.call(1, "b1", wait=0)
        await pane.detect(moved("X", "C"))
        registry = supervisor._runtime._registry
        (before,) = await registry.line.load(Query(IntentRecord, order_by=("seq",)))
        first, second = before
        current = registry._awake[f"intent:{first.intent_id}"].token
        prepare = Link(seen=first, events=(Prepare(result=reconciled("B"), live=True),))
        supersede = Link(seen=second, events=(Supersede(by_intent_id=first.intent_id),))

        async def report(token):
            reported = evolve(prepare, attempt=token)
            links = (reported, supersede) if reported_first else (supersede, reported)
            return await join(registry, links, Mutation(label="pane.reconciled"), 1)

        for outdated in ((current[0] - 1, current[1]), (current[0], current[1] - 1)):
            with pytest.raises(Fenced):
                await report(outdated)
        assert await registry.line.load(Query(IntentRecord, order_by=("seq",))) == [before]
        assert [letter.reason for letter in await supervisor.dead_letters()] == ["older_activation"] * 2
        await report(current)
        (after,) = await registry.line.load(Query(IntentRecord, order_by=("seq",)))
        assert [intent.state for intent in after] == [IntentState.MATERIALIZED, IntentState.SUPERSEDED]
