"""Two bridges with the shipped claim, a lossy wire, and the shipped runtime behind it; restarts of either side.

A history is a list of things that happen.  Afterwards, and at every step, the model's books must agree with what the
bridges were told: a message is worked on at most once, what was told STORED is accepted, what was told unsent is not.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import trio
from attrs import define, field
from hypothesis import given, settings, strategies as st
from store_urls import urls

from fencepost.mailbox import ClaimedSender, Response
from fencepost.supervisor import FencepostError, InboundPost, Receipt, Stage, Stop, TurnEnd, check, open_supervisor

SCOPE = ("/run/terminal.sock", "pane")
FATES = ["answered"] * 4 + ["request lost", "answer lost", "doubled", "late", "legacy answer", "denied"]
HAPPENINGS = st.one_of(
    st.tuples(
        st.just("send"), st.sampled_from([0, 1]), st.sampled_from(["one", "two", " one\r\n"]), st.sampled_from(FATES)
    ),
    st.tuples(st.just("the bridge restarts"), st.sampled_from([0, 1])),
    st.tuples(
        st.sampled_from(
            ["the service restarts", "the service dies", "the pane dies", "what was late arrives", "the owner settles"]
        )
    ),
    st.tuples(st.just("another session"), st.sampled_from(["s1", "s2"])),
)


def encoded(receipt: Receipt) -> bytes:
    """A receipt as the wire carries it (contract D-28)."""
    members = {
        "version": 1,
        "received": receipt.received,
        "stage": str(receipt.stage or receipt.stop),
        "delivery_id": receipt.delivery_id,
        "binding": receipt.binding,
        "fingerprint": receipt.fingerprint,
    }
    return json.dumps(members).encode()


@define(eq=False)
class World:
    """The service's life after life, and the books about it."""

    url: str
    posts: Counter[str] = field(factory=Counter)
    work: Counter[str] = field(factory=Counter)
    texts: dict[str, str] = field(factory=dict)
    late: list[InboundPost] = field(factory=list)
    told: list[tuple[str | None, Stage | None, Stop | None]] = field(factory=list)
    session: str = "s1"
    open: object = None
    supervisor: object = None

    async def dispatch(self, turn) -> TurnEnd:
        self.work[turn.delivery_id] += 1
        return TurnEnd("settled")

    async def start(self) -> None:
        self.open = open_supervisor(self.url, dispatcher=self.dispatch)
        self.supervisor = await self.open.__aenter__()

    async def stop(self) -> None:
        if self.open is not None:
            await self.open.__aexit__(None, None, None)
        self.open = self.supervisor = None

    @property
    def pane(self):
        return self.supervisor.pane("pane")

    async def accept(self, post: InboundPost) -> Receipt | None:
        try:
            return await self.pane.accept(post)
        except FencepostError:
            return None


class Wire:
    """One bridge's way to the service, for one request: it is called in the sender's thread."""

    def __init__(self, world: World, fate: str) -> None:
        self.world = world
        self.fate = fate

    def read_binding(self) -> Response:
        if self.fate == "denied":
            return Response(403, b"")
        binding = trio.from_thread.run(self.world.pane.binding)
        return Response(200, json.dumps({"version": 1, "binding": binding.binding}).encode())

    def post(self, delivery_id: str, binding: str, text: str) -> Response:
        self.world.posts[delivery_id] += 1
        self.world.texts[delivery_id] = text
        post = InboundPost(delivery_id, binding, text)
        if self.fate == "request lost":
            raise TimeoutError
        if self.fate == "late":
            self.world.late.append(post)
            raise TimeoutError
        receipt = trio.from_thread.run(self.world.accept, post)
        if self.fate == "doubled":
            receipt = trio.from_thread.run(self.world.accept, post)
        return self._answer(receipt)

    def read_receipt(self, delivery_id: str, binding: str, fingerprint: str) -> Response:
        if self.fate in {"request lost", "late"}:
            raise TimeoutError
        return self._answer(trio.from_thread.run(self.world.pane.receipt, delivery_id, binding, fingerprint))

    def _answer(self, receipt: Receipt | None) -> Response:
        if self.fate == "answer lost" or receipt is None:
            raise ConnectionResetError
        if self.fate == "legacy answer":
            return Response(200, b'{"received": true}')
        return Response(403, b"") if self.fate == "denied" else Response(200, encoded(receipt))

    def refresh(self) -> None:
        raise OSError("the service has not moved")


async def live(world: World, folder: Path, history) -> None:
    await world.start()
    await world.pane.launch("claude-code", world.session)
    for happening, *more in history:
        match happening, more:
            case "send", [_, text, fate]:
                # A bridge is its files: a new process of it is a new sender on them.
                sender = ClaimedSender(folder, SCOPE, Wire(world, fate))
                report = await trio.to_thread.run_sync(sender.send, text)
                world.told.append((report.delivery_id, report.stage, report.stop))
            case "the bridge restarts", _:
                pass  # it has nothing but its files
            case "the service restarts", _:
                await world.stop()
                await world.start()
            case "the service dies", _:
                world.supervisor._runtime.line.kill(RuntimeError("SIGKILL"))
                await world.stop()
                await world.start()
            case "the pane dies", _:
                await world.supervisor.kill("pane:pane")
            case "what was late arrives", _:
                for post in world.late:
                    await world.accept(post)
                world.late.clear()
            case "the owner settles", _:
                await settle(world, folder)
            case "another session", [session]:
                await world.pane.launch("claude-code", session)
            case other:
                raise AssertionError(other)
        await judge(world)
    await world.stop()
    assert await check(world.url) == []


async def settle(world: World, folder: Path) -> None:
    """Give up on whatever is held, on both sides."""
    sender = ClaimedSender(folder, SCOPE, Wire(world, "denied"))
    if sender.claim_path.exists():
        delivery_id = json.loads(sender.claim_path.read_bytes())["delivery_id"]
        report = sender.settle(delivery_id, "the owner")
        assert report.stop is Stop.UNCERTAIN
        await world.pane.settle(delivery_id, "the owner")


async def judge(world: World) -> None:
    """Section 10, over everything that happened so far."""
    assert max(world.posts.values(), default=0) <= 1, "1: an id is posted once"
    assert max(world.work.values(), default=0) <= 1, "3: and worked on at most once, however the wire doubles it"
    accepted = {row.delivery_id: row.text for row in await acceptances(world)}
    assert accepted.items() <= world.texts.items(), "4, 5: what is accepted is what was posted"
    assert world.work.keys() <= accepted.keys(), "3: nothing is worked on that is not accepted"
    for delivery_id, stage, stop in world.told:
        if stage is Stage.STORED:
            assert delivery_id in accepted, "5: told stored, and is"
        if stop in {Stop.UNAVAILABLE, Stop.REJECTED, Stop.EXPIRED} and delivery_id is not None:
            assert delivery_id not in accepted, "7: told that it was not taken, and it was not"


async def acceptances(world: World):
    from fencepost.mailbox.query import Query
    from fencepost.mailbox.records import AcceptanceRecord

    (rows,) = await world.supervisor._runtime.line.load(Query(AcceptanceRecord))
    return rows


@settings(max_examples=150)
@given(st.lists(HAPPENINGS, max_size=12))
def test_10_1_and_10_3_and_10_4_and_10_5_and_10_7_any_history_of_two_bridges_and_the_runtime(history):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trio.run(live, World(urls(folder, "memory")("store")), folder, history)


def test_a_history_that_meets_every_fate_on_a_disk(tmp_path):
    history = [
        ("send", number % 2, "one" if number % 3 else "two", fate) for number, fate in enumerate(dict.fromkeys(FATES))
    ]
    between = [("the service restarts",), ("what was late arrives",), ("the service dies",), ("the pane dies",)]
    again = [("send", 1, "one", "answered"), ("the owner settles",)]
    mixed = [step for number, sent in enumerate(history) for step in (sent, between[number % 4], *again)]
    world = World(urls(tmp_path, "sqlite")("store"))
    trio.run(live, world, tmp_path, mixed)
    assert sum(world.work.values()) >= 3
    assert {stage for _, stage, _ in world.told} == {Stage.STORED, None}
