"""The pure decisions about inbound messages: every combination of traces, judged for a post and for a lookup."""

from __future__ import annotations

import itertools

import pytest
from attrs import evolve

from fencepost.actors.delivery_messages import InboundPost, TurnEnd
from fencepost.actors.inbound_state import (
    Accept,
    Answered,
    Asked,
    Traces,
    binding_of,
    ended_events,
    judge_lookup,
    judge_post,
    known_end,
    malformed,
    unpublished,
    wrapped,
)
from fencepost.mailbox.claim import fingerprint_of
from fencepost.mailbox.delivery_records import (
    AcceptanceRecord,
    FenceRecord,
    RunRecord,
    SettlementRecord,
    TombstoneRecord,
)
from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.ladder import Stage, Stop

A, B = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"
BOUND, OTHER = "b" * 64, "0" * 64
TEXT = "from the pane"
PRINT = fingerprint_of(TEXT)
ASKED = Asked(delivery_id=A, pane_id="pane", binding=BOUND, fingerprint=PRINT)
POST = InboundPost(A, BOUND, TEXT)

_MINE = {"delivery_id": A, "pane_id": "pane", "binding": BOUND, "fingerprint": PRINT, "at": 1}
FENCE = FenceRecord(**_MINE)
TOMBSTONE = TombstoneRecord(**_MINE)
ACCEPTANCE = AcceptanceRecord(**_MINE, conversation_id="c", text=TEXT, wrapped_text="w", run_id="r")
SETTLEMENT = SettlementRecord(delivery_id=A, pane_id="pane", approval="me", at=1)

BINDINGS = [BOUND, OTHER, None]
FENCES = [None, FENCE, evolve(FENCE, fingerprint=OTHER), evolve(FENCE, binding=OTHER), evolve(FENCE, delivery_id=B)]
TOMBSTONES = [None, TOMBSTONE, evolve(TOMBSTONE, fingerprint=OTHER), evolve(TOMBSTONE, pane_id="other")]
ACCEPTANCES = [
    None,
    ACCEPTANCE,
    evolve(ACCEPTANCE, pane_id="other"),
    evolve(ACCEPTANCE, binding=OTHER),
    evolve(ACCEPTANCE, fingerprint=OTHER),
    evolve(ACCEPTANCE, text="another text"),
]
ALL = [
    Traces(binding=b, fence=f, fenced_elsewhere=e, tombstone=t, acceptance=a, settlement=s)
    for b, f, e, t, a, s in itertools.product(
        BINDINGS, FENCES, (False, True), TOMBSTONES, ACCEPTANCES, (None, SETTLEMENT)
    )
]


def proved(traces: Traces) -> bool:
    return traces.acceptance == ACCEPTANCE and traces.tombstone == TOMBSTONE


def expected_post(traces: Traces) -> str:
    """Section 6.1, steps 4 to 8, written down once more."""
    traceless = (
        traces.tombstone is None
        and traces.acceptance is None
        and traces.settlement is None
        and not traces.fenced_elsewhere
        and traces.fence is None
    )
    if traces.binding is None:
        return "unavailable" if traceless else "uncertain"
    if traces.binding != BOUND:
        return "uncertain"
    if proved(traces):
        return "stored"
    return "accept" if traceless else "uncertain"


def test_6_1_4_to_6_1_8_and_6_3_7_a_post_against_every_combination_of_traces():
    for traces in ALL:
        verdict = judge_post("pane", POST, traces)
        if isinstance(verdict, Accept):
            assert expected_post(traces) == "accept", traces
            assert verdict == Accept(ASKED, TEXT)
            continue
        receipt = verdict.receipt
        assert str(receipt.stage or receipt.stop) == expected_post(traces), traces
        assert receipt.received == (receipt.stage is Stage.STORED)
        assert (receipt.delivery_id, receipt.binding, receipt.fingerprint) == (A, BOUND, PRINT)
        assert verdict.clears == (receipt.received and traces.fence == FENCE)


def test_6_2_1_to_6_2_6_and_6_2_8_and_6_2_10_and_10_6_a_lookup_against_every_combination_of_traces():
    for traces in ALL:
        verdict = judge_lookup(ASKED, traces)
        assert isinstance(verdict, Answered)
        stored = traces.binding == BOUND and proved(traces) and traces.fence in (None, FENCE)
        receipt = verdict.receipt
        assert (receipt.stage, receipt.stop) == ((Stage.STORED, None) if stored else (None, Stop.UNCERTAIN)), traces
        assert (receipt.delivery_id, receipt.binding, receipt.fingerprint) == (A, BOUND, PRINT)
        assert verdict.clears == (stored and traces.fence == FENCE)
        assert receipt.stop is not Stop.UNAVAILABLE, "a denied lookup clears no claim"


def test_10_12_what_cannot_be_read_answers_uncertain_and_does_nothing():
    damage = CorruptRecord("acceptances", "is garbage")
    for verdict in (judge_post("pane", POST, damage), judge_lookup(ASKED, damage)):
        assert isinstance(verdict, Answered)
        receipt = verdict.receipt
        assert (receipt.received, receipt.stop, verdict.clears) == (False, Stop.UNCERTAIN, False)
        assert (receipt.delivery_id, receipt.binding, receipt.fingerprint) == (A, BOUND, PRINT)
        assert "garbage" in (receipt.detail or "")
    assert unpublished(FENCE, damage, ()) is None


def test_7_s4_only_what_was_accepted_exactly_and_has_no_run_is_left_to_publish():
    run = RunRecord(run_id="r", delivery_id=A, pane_id="pane", published_at=1)
    for traces in ALL:
        left = unpublished(FENCE, traces, ())
        assert left == (ACCEPTANCE if proved(traces) else None), traces
        assert unpublished(FENCE, traces, (run,)) is None


@pytest.mark.parametrize("size", [1_048_576, 1_048_577])
def test_d_32_the_bound_itself_is_allowed(size):
    found = malformed(InboundPost(A, BOUND, "x" * size), 1_048_576)
    assert (found is None) == (size == 1_048_576)


@pytest.mark.parametrize("post", [
    InboundPost(None, BOUND, TEXT),
    InboundPost(A, None, TEXT),
    InboundPost(A.upper(), BOUND, TEXT),
    InboundPost(A, BOUND.upper(), TEXT),
    InboundPost(A, BOUND, " \n"),
    InboundPost(A, BOUND, None),
    InboundPost(5, 6, 7),
])  # fmt: skip
def test_d_31_what_is_malformed_is_rejected(post):
    receipt = malformed(post, 100)
    assert (receipt.received, receipt.stage, receipt.stop) == (False, None, Stop.REJECTED)
    assert isinstance(receipt.delivery_id, str | None)
    assert isinstance(receipt.binding, str | None)


def test_d_16_no_live_incarnation_has_no_binding():
    assert binding_of(None) is None


@pytest.mark.parametrize("end", [
    None, "settled", 17, TurnEnd("nonsense"), TurnEnd("pending"), TurnEnd(None), TurnEnd("settled", "odd"),
])  # fmt: skip
def test_what_a_dispatcher_answers_becomes_an_end_the_ladder_knows(end):
    known = known_end(end)
    assert known.outcome == "failed"
    assert known.native


@pytest.mark.parametrize(
    "end", [TurnEnd("settled"), TurnEnd("waiting_user"), TurnEnd("failed", "stalled"), TurnEnd("failed")]
)
def test_a_known_end_stays_what_it_is(end):
    assert known_end(end) == end


@pytest.mark.parametrize(("outcome", "native", "kind", "stage", "stop"), [
    ("settled", None, "delivery.ended", "responded", None),
    ("waiting_user", None, "delivery.ended", "consumed", None),
    ("failed", "policy_refused", "delivery.failed", "stored", "rejected"),
    ("failed", "stalled", "delivery.failed", "stored", "expired"),
    ("failed", None, "delivery.failed", "stored", "uncertain"),
    ("failed", "service_restarted", "delivery.failed", "stored", "uncertain"),
])  # fmt: skip
def test_d_3_the_event_of_an_end(outcome, native, kind, stage, stop):
    run = RunRecord(
        run_id="r", delivery_id=A, pane_id="pane", published_at=1, outcome=outcome, native=native, ended_at=2
    )
    (event,) = ended_events(run, 2)
    assert (event.kind, event.address, event.data["stage"], event.data.get("stop")) == (kind, "pane:pane", stage, stop)
    assert (event.data["delivery_id"], event.data["run_id"]) == (A, "r")
    assert ("reason" in event.data) == (native == "service_restarted")


def test_the_wrapping_names_pane_and_id_and_keeps_the_text():
    shown = wrapped(evolve(ASKED, pane_id='p"&<'), "a & b <c> \"d\" 'e'")
    assert shown.splitlines() == [
        f'<untrusted-agent-message pane="p&quot;&amp;&lt;" delivery-id="{A}">',
        "a & b <c> \"d\" 'e'",
        "</untrusted-agent-message>",
    ]
