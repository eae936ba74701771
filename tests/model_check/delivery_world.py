"""The delivery core: two bridges, one pane, a lossy wire, restarts anywhere; every interleaving.

Both sides are the shipped pure functions: the bridges decide by `claim`, the service by `inbound_state`.  The wire
between them may lose, delay, double and reorder; bridges, the service's actor and the service die at any step, and what
each of them had written down stays.  Receipts cross it as the JSON of contract D-28, so each side reads what the other
one wrote.

Each bridge has a text to send.  What a bridge was told is kept, and so are the POSTs and the turns of every id: the
invariants of protocol-delivery.md section 10 are about those, and 1 to 10 and 12 are judged here.  What a rule says is
carried out, whatever it is, also if it is to type (see `outlets`).

Where a world has damage, the claim's file and every record of the service may become unreadable in any state, some at
once.  The claim's file may be readable again at any time; a record of the service is mended with no service running.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from fencepost.actors.delivery_messages import InboundPost, Receipt
from fencepost.actors.inbound_state import (
    Accept,
    Answered,
    Asked,
    Traces,
    judge_lookup,
    judge_post as judge_accept,
    stored,
    unpublished,
)
from fencepost.mailbox.claim import (
    Blocked,
    Claim,
    Finding,
    Judged,
    Removed,
    Response,
    Step,
    judge_hindrance,
    judge_post,
    judge_receipt,
    judge_removal,
)
from fencepost.mailbox.delivery_records import AcceptanceRecord, FenceRecord, RunRecord, TombstoneRecord
from fencepost.mailbox.errors import CorruptRecord
from fencepost.mailbox.ladder import Stage, Stop
from model_check.breadth import Found, search
from model_check.outlets import Broken, TerminalInput, require_nothing_typed

__all__ = ["WORLDS", "Broken", "State", "World", "explore"]

PANE: Final = "pane"
BINDING: Final = "b" * 64
IDS_MAX: Final = 2


class World(NamedTuple):
    """What the bridges want to send, each in its order, how many POSTs the wire may double, and how much is damaged."""

    wanted: tuple[tuple[str, ...], ...]
    doubled_max: int = 1
    unreadable_max: int = 0
    """How many things may be unreadable at once."""

    def __str__(self) -> str:
        """What a person calls it."""
        texts = " and ".join(", then ".join(map(repr, texts)) for texts in self.wanted)
        damage = f", evidence unreadable ({self.unreadable_max} at once)" if self.unreadable_max else ""
        return f"{'two bridges that send' if len(self.wanted) == 2 else 'a bridge that sends'} {texts}{damage}"


WORLDS: Final = (
    World((("one",), ("other",))),
    World((("same",), ("same",))),
    World((("one", "other"),), unreadable_max=2),
    World((("one",), ("other",)), doubled_max=0, unreadable_max=1),
    World((("same",), ("same",)), doubled_max=0, unreadable_max=1),
)


class Bridge(NamedTuple):
    """One bridge: how many texts it has dealt with, and what it waits for."""

    done: int = 0
    step: str = "idle"
    """idle, claimed (the claim is written, nothing sent), posting or asking."""
    claim: Claim | None = None


class Request(NamedTuple):
    """On its way to the service."""

    kind: str
    bridge: int
    claim: Claim


class Reply(NamedTuple):
    """On its way to a bridge."""

    kind: str
    bridge: int
    claim: Claim
    word: str


class Service(NamedTuple):
    """What the service has written down, and the request it is in the middle of."""

    fence: FenceRecord | None = None
    tombstones: frozenset[TombstoneRecord] = frozenset()
    acceptances: frozenset[AcceptanceRecord] = frozenset()
    runs: frozenset[str] = frozenset()
    busy: tuple[Request, str] | None = None
    unreadable: frozenset[tuple[str, str]] = frozenset()
    """The records that cannot be read: what they are, and of which id; a fence is its pane's."""


class State(NamedTuple):
    """Everything there is."""

    claim: Claim | None
    """The claim's file."""
    bridges: tuple[Bridge, ...]
    wire: frozenset[Request | Reply]
    service: Service
    minted: int
    posts: tuple[int, ...]
    turns: tuple[int, ...]
    doubled: int
    told: frozenset[tuple[str, str]]
    """Pairs of an id and what was said of it; of texts that were not sent, under `unsent`.  That something is uncertain
    commits to nothing, so it is not kept."""
    claim_unreadable: bool = False
    typed: frozenset[str] = frozenset()


def first(world: World) -> State:
    """Nobody has sent anything."""
    return State(
        None,
        tuple(Bridge() for _ in world.wanted),
        frozenset(),
        Service(),
        0,
        (0,) * IDS_MAX,
        (0,) * IDS_MAX,
        0,
        frozenset(),
    )


def _id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def _number(delivery_id: str) -> int:
    return int(delivery_id[-12:])


def _raised(counts: tuple[int, ...], number: int) -> tuple[int, ...]:
    return tuple(count + (place == number) for place, count in enumerate(counts))


# -- bridges -----------------------------------------------------------------------------------------------------


def bridge_steps(state: State, world: World) -> Iterator[tuple[str, State]]:
    """What each bridge can do next, and that it may die."""
    for number, bridge in enumerate(state.bridges):
        if bridge.step != "idle":
            yield f"bridge {number} dies", _with_bridge(state, number, Bridge(bridge.done))
            yield f"bridge {number} gives up waiting", _finding(state, number, _lost(bridge))
        if bridge.step == "idle" and bridge.done < len(world.wanted[number]):
            yield from _begin(state, number, bridge, world.wanted[number][bridge.done])
        elif bridge.step == "claimed":
            assert bridge.claim is not None
            posting = _with_bridge(state, number, bridge._replace(step="posting"))
            sent = posting._replace(
                wire=posting.wire | {Request("POST", number, bridge.claim)},
                posts=_raised(posting.posts, _number(bridge.claim.delivery_id)),
            )
            yield f"bridge {number} posts", sent


def _lost(bridge: Bridge) -> Judged:
    """What no answer comes to."""
    assert bridge.claim is not None
    lost = TimeoutError("no answer")
    if bridge.step == "asking":
        return judge_receipt(bridge.claim, bridge.claim.fingerprint, lost)
    return judge_post(bridge.claim, lost)


def _begin(state: State, number: int, bridge: Bridge, text: str) -> Iterator[tuple[str, State]]:
    held = state.claim
    if state.claim_unreadable:
        yield f"bridge {number} finds a claim that it cannot read", _hindered(state, number, text)
    elif held is not None:
        asking = _with_bridge(state, number, bridge._replace(step="asking", claim=held))
        yield (
            f"bridge {number} asks about the original",
            asking._replace(wire=asking.wire | {Request("GET", number, held)}),
        )
    elif state.minted < IDS_MAX:
        yield f"bridge {number} claims", _claimed(state, number, text)


def _claimed(state: State, number: int, text: str) -> State:
    claim = Claim.of(_id(state.minted), BINDING, text)
    claimed = _with_bridge(state, number, state.bridges[number]._replace(step="claimed", claim=claim))
    return claimed._replace(claim=claim, minted=state.minted + 1)


def _hindered(state: State, number: int, text: str) -> State:
    """What a bridge does that cannot read what is in its scope; it has asked nobody for anything yet."""
    judged = judge_hindrance(Blocked("the claim cannot be read"))
    match judged.rule.step:
        case Step.REPORT:
            return _told(state, judged, "unsent")
        case Step.CLAIM if state.minted < IDS_MAX:
            return _claimed(state, number, text)
        case step:
            return _carried_out(state, number, step, text)


def _told(state: State, judged: Judged, delivery_id: str) -> State:
    """Tell the bridge's user.  12: while the claim cannot be read, nothing else than *uncertain* is told."""
    word = str(judged.rule.reach.stage or judged.rule.reach.stop)
    if state.claim_unreadable and word != Stop.UNCERTAIN:
        raise Broken(f"12: {delivery_id} is told as {word}, and the claim cannot be read")
    return state if word == Stop.UNCERTAIN else state._replace(told=state.told | {(delivery_id, word)})


def _carried_out(state: State, number: int, step: object, text: str) -> State:
    """Do what a row of the claim's table says, beside reporting and clearing."""
    match step:
        case Step.REPORT | Step.CLEAR | Step.KEEP | Step.REFRESH:
            return state
        case TerminalInput():
            return state._replace(typed=state.typed | {text})
        case _:
            raise Broken(f"10: bridge {number} is to do {step!r}, which is none of the steps there")


def _with_bridge(state: State, number: int, bridge: Bridge) -> State:
    bridges = tuple(bridge if place == number else other for place, other in enumerate(state.bridges))
    return state._replace(bridges=bridges)


def _answered(state: State, reply: Reply, world: World) -> State:
    """A reply reaches its bridge, which waits for it."""
    bridge = state.bridges[reply.bridge]
    response = _response(reply)
    if reply.kind == "POST":
        return _finding(state, reply.bridge, judge_post(reply.claim, response))
    text = world.wanted[reply.bridge][bridge.done]
    fingerprint = Claim.of(reply.claim.delivery_id, BINDING, text).fingerprint
    judged = judge_receipt(reply.claim, fingerprint, response)
    _require_told_apart(judged, same=fingerprint == reply.claim.fingerprint)
    return _finding(state, reply.bridge, judged)


def _finding(state: State, number: int, judged: Judged) -> State:
    """Carry out what the table says, tell the bridge's user, and be idle again."""
    bridge, claim = state.bridges[number], state.claim
    assert bridge.claim is not None
    state = _carried_out(state, number, judged.rule.step, bridge.claim.text)
    if judged.rule.step is Step.CLEAR:
        removal = _removal(state, bridge.claim)
        judged = judge_removal(judged, removal)
        claim = None if removal is Removed.REMOVED else claim
    state = _told(state, judged, bridge.claim.delivery_id if judged.rule.original else "unsent")
    done = bridge.done + (judged.rule.reach.stop is not Stop.UNCERTAIN and judged.finding is not Finding.NOT_CLEARED)
    return _with_bridge(state, number, Bridge(done))._replace(claim=claim)


def _removal(state: State, claim: Claim) -> Removed | Blocked:
    """What the removal of a claim comes to: it reads what is there first, and takes away only its own."""
    if state.claim_unreadable:
        return Blocked("the claim cannot be read")
    mine = state.claim is not None and state.claim.delivery_id == claim.delivery_id
    return Removed.REMOVED if mine else Removed.NOT_THERE


# -- the wire ----------------------------------------------------------------------------------------------------


def wire_steps(state: State, world: World) -> Iterator[tuple[str, State]]:
    """Whatever is under way arrives, is lost, or is doubled; in any order."""
    for message in state.wire:
        rest = state._replace(wire=state.wire - {message})
        yield f"the wire loses a {message.kind} of bridge {message.bridge}", rest
        if isinstance(message, Reply):
            yield f"an answer reaches bridge {message.bridge}", _answered(rest, message, world)
        elif state.service.busy is None:
            busy = state.service._replace(busy=(message, "judge"))
            yield f"a {message.kind} of bridge {message.bridge} arrives", rest._replace(service=busy)
            if message.kind == "POST" and state.doubled < world.doubled_max:
                doubled = state._replace(service=busy, doubled=state.doubled + 1)
                yield f"a {message.kind} of bridge {message.bridge} arrives and comes again", doubled


def _response(reply: Reply) -> Response:
    """The receipt as it crosses the wire (contract D-28)."""
    members = {
        "version": 1,
        "received": reply.word == "stored",
        "stage": reply.word,
        "delivery_id": reply.claim.delivery_id,
        "binding": reply.claim.binding,
        "fingerprint": reply.claim.fingerprint,
    }
    return Response(200, json.dumps(members).encode())


# -- the service -------------------------------------------------------------------------------------------------


def service_steps(state: State, world: World) -> Iterator[tuple[str, State]]:
    """The next step of the request it serves, that it may die at any, and that what is kept may become unreadable."""
    service = state.service
    if world.unreadable_max:
        yield from _damages(state, world)
    yield from _deaths(state)
    if service.busy is None:
        return
    request, step = service.busy
    if request.kind == "GET":
        yield "a lookup is answered", _looked_up(state, request)
    else:
        yield f"the service: {step}", _STEPS[step](state, request)


def _deaths(state: State) -> Iterator[tuple[str, State]]:
    service = state.service
    if service.busy is not None or _unpublished(service):
        yield "the service dies and restarts", _restart(state, service)


def _restart(state: State, service: Service) -> State:
    """12: what is published at a restart rests on nothing that cannot be read; and it was not published before."""
    lost, after = _unpublished(service), restarted(service)
    if lost is not None:
        if lost in service.runs:
            raise Broken(f"3: {lost} is published twice")
        if service.unreadable & {("fence", PANE), *((kind, lost) for kind in ("tombstone", "acceptance", "run"))}:
            raise Broken(f"12: {lost} is published, and its evidence cannot be read")
    return state._replace(service=after)


def _unpublished(service: Service) -> str | None:
    """The pending original that is accepted and has no run (s4); a restart takes up only what it can read."""
    fence = service.fence
    if fence is None or ("fence", PANE) in service.unreadable:
        return None
    if fence.delivery_id in service.runs and not service.unreadable:
        return None  # as `unpublished` says, which is slower
    traces = _traces(service, fence.delivery_id)
    if ("run", fence.delivery_id) in service.unreadable:
        traces = CorruptRecord("a run", "cannot be read")
    runs = [_run(fence.delivery_id)] if fence.delivery_id in service.runs else []
    acceptance = unpublished(fence, traces, runs)
    return None if acceptance is None else acceptance.delivery_id


def _run(delivery_id: str) -> RunRecord:
    return RunRecord(run_id=delivery_id, delivery_id=delivery_id, pane_id=PANE, published_at=1)


def restarted(service: Service) -> Service:
    """What recovery makes of it: what was accepted and never published is published as failed, and nothing is run."""
    lost = _unpublished(service)
    return service._replace(busy=None, runs=service.runs if lost is None else service.runs | {lost})


def _damages(state: State, world: World) -> Iterator[tuple[str, State]]:
    service = state.service
    if len(service.unreadable) + state.claim_unreadable < world.unreadable_max:
        if not state.claim_unreadable:
            yield "the claim becomes unreadable", state._replace(claim_unreadable=True)
        for kind, whose in _kept(service) - service.unreadable:
            damaged = service._replace(unreadable=service.unreadable | {(kind, whose)})
            yield f"the {kind} of {whose} becomes unreadable", state._replace(service=damaged)
    if state.claim_unreadable:
        yield "the claim can be read again", state._replace(claim_unreadable=False)
    for kind, whose in service.unreadable:
        mended = service._replace(unreadable=service.unreadable - {(kind, whose)})
        yield f"the service dies, a person mends the {kind} of {whose}, it restarts", _restart(state, mended)


def _kept(service: Service) -> frozenset[tuple[str, str]]:
    """The records there are."""
    return frozenset(
        [
            *([("fence", PANE)] if service.fence is not None else []),
            *(("tombstone", row.delivery_id) for row in service.tombstones),
            *(("acceptance", row.delivery_id) for row in service.acceptances),
            *(("run", delivery_id) for delivery_id in service.runs),
        ]
    )


def _asked(claim: Claim) -> Asked:
    return Asked(delivery_id=claim.delivery_id, pane_id=PANE, binding=claim.binding, fingerprint=claim.fingerprint)


def _traces(service: Service, delivery_id: str) -> Traces | CorruptRecord:
    if unreadable := _unreadable(service, delivery_id):
        return CorruptRecord(str(unreadable), "cannot be read")
    tombstone = next((row for row in service.tombstones if row.delivery_id == delivery_id), None)
    acceptance = next((row for row in service.acceptances if row.delivery_id == delivery_id), None)
    return Traces(binding=BINDING, fence=service.fence, tombstone=tombstone, acceptance=acceptance)


def _unreadable(service: Service, delivery_id: str) -> frozenset[tuple[str, str]]:
    """What cannot be read of all that says whether this id was accepted, or may be."""
    return service.unreadable & {("fence", PANE), ("tombstone", delivery_id), ("acceptance", delivery_id)}


def _replied(state: State, request: Request, receipt: Receipt, *, clears: bool) -> State:
    word = str(receipt.stage or receipt.stop)
    if receipt.stage is Stage.STORED:
        _require_backed(state, request.claim)
    service = state.service._replace(busy=None)
    if clears:
        service = service._replace(fence=None, unreadable=service.unreadable - {("fence", PANE)})
    reply = Reply(request.kind, request.bridge, request.claim, word)
    return state._replace(service=service, wire=state.wire | {reply})


def _looked_up(state: State, request: Request) -> State:
    verdict = judge_lookup(_asked(request.claim), _traces(state.service, request.claim.delivery_id))
    _require_blocked(state, request, verdict)
    return _replied(state, request, verdict.receipt, clears=verdict.clears)


def _judge(state: State, request: Request) -> State:
    claim = request.claim
    post = InboundPost(claim.delivery_id, claim.binding, claim.text)
    verdict: object = judge_accept(PANE, post, _traces(state.service, claim.delivery_id))
    _require_blocked(state, request, verdict)
    match verdict:
        case Answered(receipt, clears):
            return _replied(state, request, receipt, clears=clears)
        case Accept():
            return _next(state, request, "fence")
        case TerminalInput():
            return state._replace(typed=state.typed | {claim.text})
        case _:
            raise Broken(f"10: a post came to {verdict!r}, which is none of the verdicts there are")


def _next(state: State, request: Request, step: str, **written: object) -> State:
    return state._replace(service=state.service._replace(busy=(request, step), **written))


def _evidence(claim: Claim) -> dict[str, str]:
    return {"delivery_id": claim.delivery_id, "binding": claim.binding, "fingerprint": claim.fingerprint}


def _fence(state: State, request: Request) -> State:
    if state.service.fence is not None:
        raise Broken("2: a second pending original")
    fence = FenceRecord(pane_id=PANE, **_evidence(request.claim), at=1)
    return _next(state, request, "tombstone", fence=fence)


def _tombstone(state: State, request: Request) -> State:
    tombstone = TombstoneRecord(pane_id=PANE, **_evidence(request.claim), at=1)
    return _next(state, request, "accept", tombstones=state.service.tombstones | {tombstone})


def _accept(state: State, request: Request) -> State:
    acceptance = AcceptanceRecord(
        pane_id=PANE,
        conversation_id="c",
        **_evidence(request.claim),
        text=request.claim.text,
        wrapped_text=request.claim.text,
        run_id=request.claim.delivery_id,
        at=1,
    )
    return _next(state, request, "publish", acceptances=state.service.acceptances | {acceptance})


def _publish(state: State, request: Request) -> State:
    if request.claim.delivery_id in state.service.runs:
        raise Broken("3: published twice")
    return _next(state, request, "dispatch", runs=state.service.runs | {request.claim.delivery_id})


def _dispatch(state: State, request: Request) -> State:
    _require_backed(state, request.claim)
    number = _number(request.claim.delivery_id)
    return _next(state, request, "clear")._replace(turns=_raised(state.turns, number))


def _clear(state: State, request: Request) -> State:
    return _replied(state, request, stored(_asked(request.claim)), clears=True)


_STEPS: Final = {
    "judge": _judge,
    "fence": _fence,
    "tombstone": _tombstone,
    "accept": _accept,
    "publish": _publish,
    "dispatch": _dispatch,
    "clear": _clear,
}


# -- laws --------------------------------------------------------------------------------------------------------


def _require_backed(state: State, claim: Claim) -> None:
    """5: what is called stored is there, exactly.

    That it can be read is law 12, for an answer that rests on a read; the request that wrote the acceptance itself
    knows that it did, whatever became of the record since.
    """
    backed = any(_asked(claim).is_of(row) and row.text == claim.text for row in state.service.acceptances)
    if not backed:
        raise Broken(f"5: {claim.delivery_id} is called stored and is not")


def _require_blocked(state: State, request: Request, verdict: object) -> None:
    """12: where evidence cannot be read, nothing is accepted or cleared, and the answer is uncertain."""
    delivery_id = request.claim.delivery_id
    if not _unreadable(state.service, delivery_id):
        return
    if not isinstance(verdict, Answered) or verdict.clears:
        raise Broken(f"12: {delivery_id} comes to {verdict!r}, and its evidence cannot be read")
    if verdict.receipt.stop is not Stop.UNCERTAIN:
        word = verdict.receipt.stage or verdict.receipt.stop
        raise Broken(f"12: {delivery_id} is told as {word}, and its evidence cannot be read")


def _require_told_apart(judged: Judged, *, same: bool) -> None:
    """8, 9: under another's claim a text is that original, if it is the same, and else it was not sent."""
    if judged.rule.reach.stage is Stage.STORED and not same:
        raise Broken("8: a text that was not sent is told as stored")
    if not judged.rule.original and same:
        raise Broken("9: the original itself is told as another text")


def _posted_by_its_claimer(before: State, after: State) -> bool:
    pairs = zip(before.bridges, after.bridges, strict=True)
    return after.posts == before.posts or any((one.step, other.step) == ("claimed", "posting") for one, other in pairs)


def judge(before: State, after: State) -> None:
    """Section 10, by number, in one state and over the step that led to it."""
    require_nothing_typed(after.typed)
    if before.claim_unreadable and (after.claim, after.minted) != (before.claim, before.minted):
        raise Broken("12: a claim that cannot be read was taken away, or another one was made")
    if max(after.posts) > 1:
        raise Broken("1: an id was posted twice")
    if not _posted_by_its_claimer(before, after):
        raise Broken("6: a read sent something")
    if max(after.turns) > 1:
        raise Broken("3: a turn ran twice for one id")
    accepted = {row.delivery_id for row in after.service.acceptances}
    if not before.service.acceptances <= after.service.acceptances:
        raise Broken("4: an acceptance changed")
    if not before.service.tombstones <= after.service.tombstones:
        raise Broken("4: a tombstone went away")
    if not accepted <= {row.delivery_id for row in after.service.tombstones}:
        raise Broken("4: accepted without a tombstone")
    for number, turns in enumerate(after.turns):
        if turns and _id(number) not in accepted:
            raise Broken("3: a turn ran for what is not accepted")
    for delivery_id, word in after.told:
        if word == "stored" and delivery_id != "unsent" and delivery_id not in accepted:
            raise Broken(f"5: {delivery_id} was told stored and is not accepted")
        if word in {"unavailable", "rejected", "expired"} and delivery_id != "unsent" and delivery_id in accepted:
            raise Broken(f"7: {delivery_id} was told {word} and is accepted")
    if (
        before.claim is not None
        and after.claim != before.claim
        and not any(word in {"stored", "unavailable"} for _, word in after.told)
    ):
        raise Broken("7: a claim went away, and nobody was told how it ended")


# -- the search --------------------------------------------------------------------------------------------------


def steps(state: State, world: World) -> Iterator[tuple[str, State]]:
    """Every step that is possible in a state, and where it leads."""
    for step in (bridge_steps, wire_steps, service_steps):
        for name, after in step(state, world):
            yield name, _without_late_answers(after)


def _without_late_answers(state: State) -> State:
    """Nobody reads the answer to a request that its bridge has given up; forgetting it makes the space smaller."""
    late = {message for message in state.wire if isinstance(message, Reply) and not _awaited(state, message)}
    return state._replace(wire=state.wire - late) if late else state


def _awaited(state: State, reply: Reply) -> bool:
    bridge = state.bridges[reply.bridge]
    waits_for = {"posting": "POST", "asking": "GET"}.get(bridge.step)
    return (waits_for, bridge.claim) == (reply.kind, reply.claim)


def finished(state: State, world: World) -> bool:
    """Whether every bridge is done with its texts."""
    return all(bridge.done == len(wanted) for bridge, wanted in zip(state.bridges, world.wanted, strict=True))


def explore(world: World) -> Found:
    """Visit every state there is, breadth first; raise `Broken`, with the way there, at the first law that fails."""
    return search(first(world), partial(steps, world=world), judge, partial(finished, world=world))
