"""What every store must do, asked through the line as a runtime asks it."""

from __future__ import annotations

from uuid import uuid4

import pytest
from attrs import evolve
from mailbox_samples import (
    NOON,
    PREPARED,
    RESTART,
    SOFT,
    STARTUP,
    Points,
    dead_letter,
    event,
    incarnation,
    intent,
    life_of_an_intent,
    open_line,
    putting,
    trigger,
)

from fencepost.mailbox.errors import MutationRefused, StoreFault, StoreOwned
from fencepost.mailbox.mutation import Absent, Delete, Live, Mutation, Unchanged
from fencepost.mailbox.ports import ActorKilled, Kill, RuntimeKilled
from fencepost.mailbox.query import NOT_NULL, Above, Query
from fencepost.mailbox.records import (
    AdmissionDecision,
    AdmissionRecord,
    IncarnationRecord,
    IntentRecord,
    IntentState,
    ProjectionRecord,
    TranscriptRecord,
    TransitionKind,
    TriggerRecord,
)
from fencepost.mailbox.stores.store import open_reader

ADMISSION = AdmissionRecord(
    incarnation_id="inc-1",
    turn_id="",
    batch_id="batch-1",
    pane_id="pane-1",
    turn_ordinal=None,
    decision=AdmissionDecision.PASS,
    intent_id=None,
    at=NOON,
)
EVERY_KIND = (
    incarnation(),
    intent(
        state=IntentState.DELIVERED, delivered_at=NOON + 3, discarded=True, reason="ünïcode\x00", **SOFT, **PREPARED
    ),
    trigger(),
    ADMISSION,
    ProjectionRecord(intent_id="intent-1", pane_id="pane-1", at=NOON),
    TranscriptRecord(dedup_key="cascade:intent-1", intent_id="intent-1", payload=b"", at=-(2**63)),
)


async def test_what_is_committed_is_there_after_reopening(url):
    async with open_line(url) as line:
        events = await line.commit(Mutation(label="a.b", puts=EVERY_KIND, events=(event(n=1), event(n=2))))
        assert [(item.seq, item.data) for item in events] == [(1, {"n": 1}), (2, {"n": 2})]
    async with open_line(url) as line:
        for record in EVERY_KIND:
            assert await line.load(Query(type(record))) == [[record]]
        assert tuple(await line.load_events()) == events


async def test_a_whole_life_can_be_written(url):
    async with open_line(url) as line:
        for records in life_of_an_intent():
            await line.commit(putting(*records))
        ((stored,),) = await line.load(Query(IntentRecord))
        assert stored == life_of_an_intent()[-1][1]


async def test_event_data_comes_back_as_json_has_it(url):
    events = []
    async with open_line(url, events) as line:
        data = {"list": (1, 2), "deep": {"x": None, "y": [True, 1.5]}, "text": "ü\x00"}
        (given,) = await line.commit(putting(events=[event(**data)]))
        assert given.data == data | {"list": [1, 2]}
        assert [given] == await line.load_events() == events


REFUSED = {
    "a key that exists": ([intent()], intent(seq=2), ("intents", "intent-1")),
    "an unversioned key that exists": ([intent(), trigger()], trigger(at=1), ("triggers", "pane-1")),
    "an old revision": ([intent(), intent().next(to_base="x")], intent().next(to_base="y"), ("intents", "intent-1")),
    "a revision skipped": ([intent()], intent(revision=3), ("intents", "intent-1")),
    "an update of nothing": ([], intent(revision=2), ("intents", "intent-1")),
    "another pane": ([intent()], intent(pane_id="pane-2", revision=2), ("intents", "intent-1")),
    "another seq": ([intent()], intent(seq=9, revision=2), ("intents", "intent-1")),
    "a seq used twice": ([intent()], intent(2, seq=1), ("intents", "intent-2")),
    "two active intents": (
        [incarnation(), intent(state=IntentState.RECONCILING, **SOFT)],
        intent(2, state=IntentState.RECOVERY_REQUIRED),
        ("intents", "intent-2"),
    ),
    "two live incarnations": ([incarnation()], incarnation(2), ("incarnations", "inc-2")),
    "an epoch used twice": (
        [incarnation(retired_at=NOON, retire_reason="gone")],
        incarnation(2, epoch=1),
        ("incarnations", "inc-2"),
    ),
    "a startup id used twice": (
        [intent(), incarnation(retired_at=NOON, retire_reason="gone", **STARTUP)],
        incarnation(2, **STARTUP),
        ("incarnations", "inc-2"),
    ),
    "a marker used twice": (
        [intent(), incarnation(delivered_intent_id="intent-1"), intent(5, pane_id="pane-2")],
        incarnation(2, pane_id="pane-2", delivered_intent_id="intent-1"),
        ("incarnations", "inc-2"),
    ),
    "an incarnation that is not": ([], intent(state=IntentState.RECONCILING, **SOFT), ("intents", "intent-1")),
    "an incarnation of another pane": (
        [incarnation(pane_id="pane-2")],
        intent(state=IntentState.RECONCILING, **SOFT),
        ("intents", "intent-1"),
    ),
    "an update to an incarnation that is not": (
        [intent()],
        intent().next(state=IntentState.RECONCILING, **SOFT),
        ("intents", "intent-1"),
    ),
    "a marker on no intent": ([], incarnation(delivered_intent_id="intent-1"), ("incarnations", "inc-1")),
    "a startup of another pane's intent": (
        [intent(pane_id="pane-2")],
        incarnation(**STARTUP),
        ("incarnations", "inc-1"),
    ),
    "a trigger of no intent": ([], trigger(), ("triggers", "pane-1")),
    "a trigger of another pane's intent": ([intent(pane_id="pane-2")], trigger(), ("triggers", "pane-1")),
    "an admission of no incarnation": ([], ADMISSION, ("admissions", "inc-1")),
    "a projection of no intent": ([], EVERY_KIND[4], ("projections", "intent-1")),
    "another payload": (
        [incarnation(), intent(state=IntentState.MATERIALIZED, **SOFT, **PREPARED)],
        intent(state=IntentState.MATERIALIZED, revision=2, **SOFT, **(PREPARED | {"payload": b"other"})),
        ("intents", "intent-1"),
    ),
    "a payload taken back": (
        [incarnation(), intent(state=IntentState.MATERIALIZED, **SOFT, **PREPARED)],
        intent(state=IntentState.RECONCILING, revision=2, **SOFT),
        ("intents", "intent-1"),
    ),
    "another delivery time": (
        [incarnation(), intent(state=IntentState.DELIVERED, delivered_at=NOON, **SOFT, **PREPARED)],
        intent(state=IntentState.DELIVERED, delivered_at=NOON + 1, revision=2, **SOFT, **PREPARED),
        ("intents", "intent-1"),
    ),
    "an acknowledged intent": (
        [intent(state=IntentState.ACKNOWLEDGED, acknowledged_at=NOON, discarded=True, **PREPARED)],
        intent(state=IntentState.ACKNOWLEDGED, acknowledged_at=NOON, discarded=True, revision=2, **PREPARED),
        ("intents", "intent-1"),
    ),
    "a return from the dead": (
        [incarnation(retired_at=NOON, retire_reason="gone")],
        incarnation(revision=2),
        ("incarnations", "inc-1"),
    ),
    "an int over 64 bits": ([], intent(seq=2**63), ("intents", "intent-1")),
    "a lone surrogate": ([], intent(reason="\ud800"), ("intents", "intent-1")),
    "a lone surrogate in an update": ([intent()], intent().next(reason="\udfff"), ("intents", "intent-1")),
    "a float": ([], intent(detected_at=1.5), ("intents", "intent-1")),
    "a word that is no enum's": ([], intent(state="detected"), ("intents", "intent-1")),
    "a list": ([], intent(reason=["x"]), ("intents", "intent-1")),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("company", ["alone", "with another before it"])
async def test_a_mutation_is_refused_for(url, case, company):
    stored, bad, (table, key) = REFUSED[case]
    async with open_line(url) as line:
        for record in stored:
            await line.commit(putting(record))
        before = [await line.load(Query(kind)) for kind in (IntentRecord, IncarnationRecord, TriggerRecord)]
        company_records = [intent(77, pane_id="pane-77")] if company != "alone" else []
        with pytest.raises(MutationRefused) as refusal:
            await line.commit(putting(*company_records, bad, label="the.label", events=[event()]))
        assert (refusal.value.label, refusal.value.table) == ("the.label", table)
        assert refusal.value.key[0] == key
        assert refusal.value.why
        assert [await line.load(Query(kind)) for kind in (IntentRecord, IncarnationRecord, TriggerRecord)] == before
        assert line.fault is None
        (next_event,) = await line.commit(putting(intent(78, pane_id="pane-78"), events=[event()]))
        assert next_event.seq == 1


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"x": object()}, id="an object"),
        {"x": "\ud800"},
        {1: "x"},
        {"x": {"y": b"bytes"}},
        pytest.param({"x": 2**64, "y": object()}, id="a long integer and an object"),
        pytest.param({"x": 10**5000}, id="an integer too long to print"),
    ],
    ids=repr,
)
async def test_event_data_that_is_not_json_is_refused(url, bad):
    async with open_line(url) as line:
        with pytest.raises(MutationRefused):
            await line.commit(putting(intent(), events=[event(), evolve(event(), data=bad)]))
        assert await line.load(Query(IntentRecord)) == [[]]
        assert await line.load_events() == []


async def test_event_data_holds_integers_of_any_size(url):
    data = {"x": 2**64, "y": [-(10**40)]}
    async with open_line(url) as line:
        (told,) = await line.commit(putting(intent(), events=[evolve(event(), data=data)]))
        (kept,) = await line.load_events()
        assert told.data == kept.data == data


async def test_unstorable_dead_letters_are_refused(url):
    async with open_line(url) as line:
        with pytest.raises(MutationRefused):
            await line.commit(Mutation(label="a.b", dead_letters=(dead_letter(), dead_letter("\ud800"))))
        await line.commit(Mutation(label="a.b", dead_letters=(dead_letter("kept"),)))
        (kept,) = await line.load_dead_letters()
        assert (kept.seq, kept.detail) == (1, "kept")


async def test_guards(url):
    async with open_line(url) as line:
        await line.commit(putting(intent(), trigger()))
        standing = Mutation(
            label="a.b",
            guards=(Unchanged(intent()), Unchanged(trigger()), Absent(IncarnationRecord, ("inc-1",))),
            events=(event(),),
        )
        await line.commit(standing)
        for guard in (
            Unchanged(intent(revision=2)),
            Unchanged(intent(2)),
            Unchanged(trigger(2)),
            Absent(IntentRecord, ("intent-1",)),
            Absent(TriggerRecord, ("pane-1", "op-1")),
        ):
            with pytest.raises(MutationRefused) as refusal:
                await line.commit(Mutation(label="a.b", guards=(guard,), puts=(trigger(3),), events=(event(),)))
            assert refusal.value.why in {"has revision 1, not 2", "does not exist", "exists already"}
        assert len(await line.load_events()) == 1
        assert await line.load(Query(TriggerRecord)) == [[trigger()]]


async def test_a_guard_holds_while_an_incarnation_is_live(url):
    async with open_line(url) as line:
        guarded = Mutation(label="a.b", guards=(Live("inc-1"),), events=(event(),))
        with pytest.raises(MutationRefused, match="is not live"):  # there is none
            await line.commit(guarded)
        await line.commit(putting(incarnation()))
        await line.commit(guarded)
        await line.commit(putting(incarnation().next(retired_at=2, retire_reason="over")))
        with pytest.raises(MutationRefused, match="is not live") as refusal:
            await line.commit(guarded)
        assert (refusal.value.table, refusal.value.key) == ("incarnations", ("inc-1",))
        assert len(await line.load_events()) == 1


async def test_deletes(url):
    async with open_line(url) as line:
        await line.commit(putting(intent(), trigger(), incarnation(), ADMISSION))
        with pytest.raises(MutationRefused):  # a trigger still names it
            await line.commit(Mutation(label="a.b", deletes=(Delete(IntentRecord, ("intent-1",)),), events=(event(),)))
        gone = (Delete(TriggerRecord, ("pane-1", "op-1")), Delete(IntentRecord, ("intent-1",)))
        await line.commit(Mutation(label="a.b", deletes=(*gone, *gone)))
        await line.commit(Mutation(label="a.b", deletes=(Delete(AdmissionRecord, ADMISSION.key),)))
        assert await line.load(Query(IntentRecord), Query(TriggerRecord), Query(AdmissionRecord)) == [[], [], []]
        await line.commit(putting(intent(), trigger()))


async def test_events_and_dead_letters_have_numbers_of_their_own_without_gaps(url):
    async with open_line(url) as line:
        for number in range(1, 6):
            with pytest.raises(MutationRefused):
                await line.commit(
                    Mutation(
                        label="a.b",
                        puts=(intent(number), trigger(number, intent_id="nobody")),
                        events=(event(),),
                        dead_letters=(dead_letter(),),
                    )
                )
            await line.commit(
                Mutation(label="a.b", events=(event(n=number), event()), dead_letters=(dead_letter(str(number)),))
            )
    async with open_line(url) as line:
        assert [item.seq for item in await line.load_events()] == [*range(1, 11)]
        assert [item.seq for item in await line.load_events(3, 2)] == [4, 5]
        assert [item.data for item in await line.load_events(8)] == [{"n": 5}, {}]
        assert await line.load_events(10) == []
        assert [(item.seq, item.detail) for item in await line.load_dead_letters(2, 2)] == [(3, "3"), (4, "4")]
        (item,) = await line.commit(putting(events=[event()]))
        assert item.seq == 11


@pytest.mark.parametrize("kept", [0, 1, 7])
async def test_old_events_are_trimmed_and_their_numbers_never_come_back(url, kept):
    async with open_line(url, events_kept_max=kept) as line:
        for _ in range(4):
            await line.commit(putting(events=[event()] * 5))
        assert [item.seq for item in await line.load_events()] == [*range(21 - kept, 21)]
    async with open_line(url, events_kept_max=kept) as line:
        (item,) = await line.commit(putting(events=[event()]))
        assert item.seq == 21


async def test_queries(url):
    intents = [
        intent(1, pane_id="a"),
        intent(2, pane_id="a", reason="z"),
        intent(3, pane_id="b", reason="é"),
        intent(4, pane_id="b", kind=TransitionKind.NATIVE_REWRITE, discarded=True),
        intent(5, pane_id="c", reason=""),
    ]

    def numbers(found):
        return [int(record.intent_id[-1]) for record in found]

    cases = {
        (): [1, 2, 3, 4, 5],
        (("pane_id", "a"),): [1, 2],
        (("pane_id", ("a", "c", "nowhere")),): [1, 2, 5],
        (("pane_id", ()),): [],
        (("reason", None),): [1, 4],
        (("reason", NOT_NULL),): [2, 3, 5],
        (("reason", ""),): [5],
        (("discarded", True),): [4],
        (("discarded", False), ("pane_id", "b")): [3],
        (("kind", intents[0].kind),): [1, 2, 3, 5],
        (("state", (IntentState.DETECTED, IntentState.RECONCILING)), ("seq", 2)): [2],
        (("intent_id", "intent-4"),): [4],
        (("intent_id", "intent-4"), ("pane_id", "a")): [],
        (("seq", Above(3)),): [4, 5],
        (("seq", Above(1)), ("pane_id", "a")): [2],
        (("seq", Above(5)),): [],
        (("seq", Above(-1)),): [1, 2, 3, 4, 5],
        (("prepared_at", Above(-(2**63))),): [],  # absent is not above anything
    }
    async with open_line(url) as line:
        for record in intents:
            await line.commit(putting(record))
        queries = [Query(IntentRecord, dict(where)) for where in cases]
        assert [numbers(found) for found in await line.load(*queries)] == list(cases.values())
        with open_reader(url) as reader:
            assert [reader.count(query) for query in queries] == [len(found) for found in cases.values()]
            assert [numbers(reader.select(query)) for query in queries] == list(cases.values())

        def ordered(*names, **options):
            return line.load(Query(IntentRecord, {}, names, **options))

        assert numbers((await ordered("reason"))[0]) == [1, 4, 5, 2, 3]  # absent first, then by code point
        assert numbers((await ordered("reason", descending=True))[0]) == [3, 2, 5, 4, 1]
        assert numbers((await ordered("pane_id", "seq", descending=True, limit=2))[0]) == [5, 4]
        assert numbers((await ordered(limit=0))[0]) == []


def test_a_query_names_only_what_exists():
    for where, order in (({"nothing": 1}, ()), ({}, ("nothing",)), ({"seq": 2**63}, ()), ({"seq": (None,)}, ())):
        with pytest.raises(ValueError):
            Query(IntentRecord, where, order)
    for where in ({"reason": Above(1)}, {"discarded": Above(0)}, {"seq": Above(True)}, {"seq": Above(2**63)}):
        with pytest.raises(ValueError):
            Query(IntentRecord, where)
    with pytest.raises(ValueError):
        Query(IntentRecord, limit=-1)
    with pytest.raises(ValueError):
        Query(IntentRecord, {"reason": "\ud800"})


async def test_a_second_runtime_is_told_who_owns_the_store(url):
    async with open_line(url):
        with pytest.raises(StoreOwned) as owned:
            async with open_line(url):
                pass
        assert "process" in owned.value.holder
    async with open_line(url):
        pass


async def test_a_reader_sees_what_is_durable_beside_and_without_a_runtime(url):
    with pytest.raises(StoreFault):
        open_reader(url)
    async with open_line(url) as line:
        await line.commit(Mutation(label="a.b", puts=(intent(),), events=(event(),), dead_letters=(dead_letter(),)))
        with open_reader(url) as reader:
            assert reader.select(Query(IntentRecord)) == [intent()]
            with reader.snapshot():
                await line.commit(
                    Mutation(label="a.b", puts=(intent(2),), events=(event(),), dead_letters=(dead_letter(),))
                )
                assert reader.count(Query(IntentRecord)) == len(reader.events()) == len(reader.dead_letters()) == 1
            assert reader.count(Query(IntentRecord)) == 2
            assert [item.seq for item in reader.events(1)] == [2]
            assert [item.seq for item in reader.dead_letters(0, 1)] == [1]
    with open_reader(url) as reader:
        assert reader.select(Query(IntentRecord)) == [intent(), intent(2)]
    async with open_line(url):
        pass


async def test_killing_gives_the_store_back_with_what_was_committed(url):
    async with open_line(url) as line:
        await line.commit(putting(intent()))
        cause = RuntimeKilled("somewhere")
        line.kill(cause)
        for _ in range(2):
            with pytest.raises(StoreFault) as fault:
                await line.commit(putting(intent(2)))
            assert fault.value.__cause__ is cause
        async with open_line(url) as second:
            assert await second.load(Query(IntentRecord)) == [[intent()]]


SCENARIO = [
    putting(incarnation(), label="incarnation.launch", events=[event("incarnation.launched")]),
    putting(intent(), trigger(), label="intent.detect", events=[event("intent.detected")]),
    putting(intent().next(state=IntentState.RECONCILING, **SOFT), label="intent.bind", events=[event(), event()]),
]
BOUNDARIES = ("enqueued", "begun", "written", "committed")
POINTS = [f"{mutation.label}/{boundary}" for mutation in SCENARIO for boundary in BOUNDARIES]


async def play(url, points, events):
    """Run the scenario until something dies; return how many commits came back and what was raised."""
    done = 0
    async with open_line(url, events, crash_points=points) as line:
        try:
            for mutation in SCENARIO:
                await line.commit(mutation)
                done += 1
                await line.load(Query(IntentRecord))
        except (ActorKilled, StoreFault) as error:
            if isinstance(error, StoreFault):
                with pytest.raises(StoreFault):
                    await line.load_events()
                async with open_line(url):  # at once, before the dead line is closed
                    pass
            return done, error
    return done, None


async def test_the_same_scenario_passes_the_same_points(url):
    for number in range(3):
        points = Points()
        assert (await play(url if number == 0 else f"memory://{uuid4()}", points, []))[1] is None
        assert points.passed_points == POINTS


@pytest.mark.parametrize("what", Kill)
@pytest.mark.parametrize("point", POINTS)
async def test_death_at(url, point, what):
    events = []
    done, error = await play(url, Points(point, what), events)
    label, boundary = point.split("/")
    index = [mutation.label for mutation in SCENARIO].index(label)
    assert done == index
    if what is Kill.ACTOR:
        assert isinstance(error, ActorKilled)
        stands = index + 1
        assert error.point == point
    else:
        assert isinstance(error.__cause__, RuntimeKilled)
        stands = index + (boundary == "committed")
    async with open_line(url) as line:
        durable = await line.load_events()
        assert len(durable) == sum(len(mutation.events) for mutation in SCENARIO[:stands])
        assert [item.seq for item in durable] == [*range(1, len(durable) + 1)]
        told = stands if what is Kill.ACTOR else index
        assert events == durable[: sum(len(mutation.events) for mutation in SCENARIO[:told])]
        for mutation in SCENARIO[stands:]:
            await line.commit(mutation)
        assert await line.load(Query(IntentRecord)) == [[SCENARIO[2].puts[0]]]


async def test_a_refused_mutation_passes_no_written_and_no_committed(url):
    points = Points()
    async with open_line(url, crash_points=points) as line:
        with pytest.raises(MutationRefused):
            await line.commit(putting(intent(), trigger(intent_id="nobody"), label="a.b"))
        assert line.depth == 0
    assert points.passed_points == ["a.b/enqueued", "a.b/begun"]


async def test_restart_pair_is_stored_whole(url):
    async with open_line(url) as line:
        await line.commit(putting(intent(state=IntentState.MATERIALIZED, **PREPARED)))
        bound = intent(state=IntentState.MATERIALIZED, revision=2, **PREPARED, **RESTART)
        await line.commit(putting(incarnation(**STARTUP), bound))
        assert await line.load(Query(IntentRecord), Query(IncarnationRecord, {"startup_delivery_id": "startup-1"})) == [
            [bound],
            [incarnation(**STARTUP)],
        ]
