"""Rows in memory, where the agreement of the stores shows nothing: what a query looks at to find what it wants."""

from __future__ import annotations

import attrs
import pytest
from mailbox_samples import intent, trigger

from fencepost.mailbox.query import Query
from fencepost.mailbox.records import IntentRecord, TriggerRecord
from fencepost.mailbox.stores.rows import Rows


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (Query(IntentRecord, {"intent_id": ("intent-7", "intent-3", "intent-3", "nothing")}), 2),
        (Query(IntentRecord, {"intent_id": "intent-7"}), 1),
        (Query(TriggerRecord, {"intent_id": ("intent-7", "nothing")}), 1),
        (Query(TriggerRecord, {"intent_id": "intent-7", "pane_id": "pane-1"}), 1),
    ],
)
def test_rows_wanted_by_their_names_are_found_without_looking_at_the_others(query, found, monkeypatch):
    rows, looked_at = Rows(), []
    for number in range(1, 50):
        one = intent(number)
        rows.restore(one)
        rows.restore(attrs.evolve(trigger(number), intent_id=one.intent_id))
    table = rows.tables[query.record_type]
    candidates = table._candidates

    def noting(wanted):
        looked_at.extend(candidates(wanted))
        return list(looked_at)

    monkeypatch.setattr(table, "_candidates", noting)
    assert len(table.select(query)) == len(looked_at) == found
