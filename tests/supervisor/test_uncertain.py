"""Nothing leaves *uncertain* by itself, and nothing uncertain is sent again: over the whole surface, in one property.

Three originals are uncertain at once: a delivery to one pane by any mechanism, a message from another pane whose
acceptance a death cut short, and the claim of the bridge that posted it.  Then anything happens that is no evidence.
After every step each of the three is what it was, and the harness, the room, the model and the wire have seen nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

import trio
from attrs import define, field
from claim_service import binding_body, receipt_body
from delivery_scenarios import World, opened, rows, uid, unresolved
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from fencepost.mailbox import ClaimedSender, Response
from fencepost.mailbox.claim_record import decode_claim, fingerprint_of
from fencepost.supervisor import (
    Chaos,
    FencepostError,
    InboundPost,
    Options,
    Outbound,
    Receipt,
    Stop,
    TranscriptEntry,
    TurnEnd,
    check,
)

A, B = uid(1), uid(2)
TEXT, POSTED = "to the pane", "from the other"
SEATS = ("head_seat", "fleet_seat")
VIAS = (*SEATS, "harness_seat", "channel_turn")
SCOPE = ("/run/terminal.sock", "from")


class Wire:
    """A bridge's way to the service, called in the bridge's thread."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.fate = "answered"

    def read_binding(self) -> Response:
        return Response(200, binding_body(trio.from_thread.run(self.story.posting.binding).binding))

    def post(self, delivery_id: str, binding: str, text: str) -> Response:
        self.story.posts[delivery_id] += 1
        try:
            return self._answer(
                trio.from_thread.run(self.story.posting.accept, InboundPost(delivery_id, binding, text))
            )
        except FencepostError:
            raise ConnectionResetError from None

    def read_receipt(self, delivery_id: str, binding: str, fingerprint: str) -> Response:
        if self.fate == "unreachable":
            raise ConnectionRefusedError
        if self.fate == "silent":
            raise TimeoutError
        receipt = trio.from_thread.run(self.story.posting.receipt, delivery_id, binding, fingerprint)
        return Response(403, b"") if self.fate == "denied" else self._answer(receipt)

    def _answer(self, receipt: Receipt) -> Response:
        word = str(receipt.stage or receipt.stop)
        return Response(200, receipt_body(word, receipt.delivery_id, receipt.binding, receipt.fingerprint))

    def refresh(self) -> None:
        """The service has not moved."""


@define(eq=False, slots=False)
class Story:
    """Three uncertain originals, and everything that could have moved them."""

    url: str
    folder: Path
    via: str
    world: World = field(
        factory=lambda: World(arrives=False, says=OSError("dead"), ends=TurnEnd("failed", "who knows"))
    )
    posts: Counter[str] = field(factory=Counter)
    bound: bool = True
    session: str = "session-1"
    claimed: str = ""
    binding: str = ""

    async def open(self, chaos: Chaos | None = None) -> None:
        ways = self.world.mechanisms() if self.bound else self.world.mechanisms()[3:]
        self.life = opened(self.url, self.world, chaos, mechanisms=ways, options=Options(idle_seconds=500))
        self.supervisor, self.pane = await self.life.__aenter__()
        self.posting = self.supervisor.pane("from")

    async def close(self) -> None:
        await self.life.__aexit__(None, None, None)

    async def send(self, text: str, fate: str = "answered"):
        """As a bridge that has just started: it has nothing but its files."""
        wire = Wire(self)
        wire.fate = fate
        return await trio.to_thread.run_sync(ClaimedSender(self.folder, SCOPE, wire).send, text)

    async def begin(self, point: str) -> None:
        chaos = Chaos()
        chaos.kill_at(point, what="runtime")
        await self.open(chaos)
        await self.posting.launch("claude-code", self.session)
        self.binding = (await self.posting.binding()).binding
        report = await self.send(POSTED)
        self.claimed = report.delivery_id
        await self.close()
        assert (chaos.unhit(), report.stop) == ([], Stop.UNCERTAIN)
        await self.open()
        if self.via in SEATS:
            await unresolved(self.pane, self.world, Outbound(TEXT, self.via, A))
        else:
            await self.pane.deliver(Outbound(TEXT, self.via, A))
        await self.judge()

    async def judge(self) -> None:
        ways = [self.via, *VIAS] if self.bound else ["channel_turn"]
        for outbound in (Outbound(TEXT, ways[0], A), Outbound("another", ways[-1], B)):
            report = await self.pane.deliver(outbound)
            assert (report.delivery_id, report.mechanism, report.stage, report.stop) == (
                A,
                self.via,
                None,
                Stop.UNCERTAIN,
            )
        print_ = fingerprint_of(POSTED)
        for receipt in (
            await self.posting.receipt(self.claimed, self.binding, print_),
            await self.posting.accept(InboundPost(self.claimed, self.binding, POSTED)),
        ):
            assert (receipt.received, receipt.stop) == (False, Stop.UNCERTAIN)
        report = await self.send(POSTED)
        assert (report.delivery_id, report.stage, report.stop) == (self.claimed, None, Stop.UNCERTAIN)
        (row,) = rows(self.url, "deliveries")
        assert (row["delivery_id"], row["stop"], row["resolved_at"]) == (A, "uncertain", None)
        (fence,) = rows(self.url, "inbound_fences")
        assert fence["delivery_id"] == self.claimed
        (claim,) = self.folder.glob("*/*.json")
        assert decode_claim(claim.read_bytes()).delivery_id == self.claimed
        assert (self.world.sends, self.world.work, self.posts) == ({A: 1}, {}, {self.claimed: 1})

    # -- what happens --

    async def time(self, seconds: int) -> None:
        await trio.sleep(seconds)

    async def restart(self, bound: bool) -> None:
        await self.close()
        self.bound = bound
        await self.open()

    async def death(self, of_the_actors: bool) -> None:
        if of_the_actors:
            for pane in ("pane", "from"):
                await self.supervisor.kill(f"pane:{pane}")
        else:
            self.supervisor._runtime.line.kill(RuntimeError("SIGKILL"))
            await self.restart(self.bound)

    async def age(self, seconds: int) -> None:
        """The claim has been lying there for long; the port has changed, and its maker is gone."""
        for path in self.folder.rglob("*"):
            os.utime(path, (seconds, seconds))

    async def reach(self, session: str | None) -> None:
        """The harness is gone, is another, or is back."""
        self.world.session = session
        if session is not None:
            await self.posting.launch("claude-code", session)

    async def ask(self, fate: str, text: str) -> None:
        report = await self.send(text, fate)
        assert (report.delivery_id, report.stop) == (self.claimed, Stop.UNCERTAIN)

    async def poll(self, wait: int) -> None:
        assert await self.pane.poll_events(wait) == []

    async def stray(self, what: str) -> None:
        """What is about something else, or looks like evidence and is none."""
        entry = TranscriptEntry("new", "operator", TEXT)
        match what:
            case "another id":
                assert (await self.pane.acknowledge_event(B)).reason == "unknown_delivery"
                assert (await self.pane.reply_event(B, "yes")).reason == "unknown_delivery"
            case "a fragment":
                await self.pane.reconcile(A, self.world.seen(entries=(TranscriptEntry("new", "operator", TEXT[:-1]),)))
            case "another session":
                await self.pane.reconcile(A, self.world.seen(session_id="another", entries=(entry,)))
            case "another message from there":
                binding = (await self.posting.binding()).binding
                if binding is not None:
                    assert (await self.posting.accept(InboundPost(B, binding, "another"))).stop is Stop.UNCERTAIN
            case _:
                await self.posting.reset_conversation()


HAPPENINGS = st.one_of(
    st.tuples(st.just("time"), st.sampled_from([1, 31, 601, 100_000])),
    st.tuples(st.just("restart"), st.booleans()),
    st.tuples(st.just("death"), st.booleans()),
    st.tuples(st.just("age"), st.sampled_from([0, 2**31])),
    st.tuples(st.just("reach"), st.sampled_from([None, "session-1", "session-2"])),
    st.tuples(
        st.just("ask"),
        st.sampled_from(["answered", "denied", "unreachable", "silent"]),
        st.sampled_from([POSTED, "another"]),
    ),
    st.tuples(st.just("poll"), st.sampled_from([0, 60])),
    st.tuples(
        st.just("stray"),
        st.sampled_from(["another id", "a fragment", "another session", "another message from there", "a reset"]),
    ),
)


async def lived(story: Story, point: str, history) -> None:
    await story.begin(point)
    for happening, *more in history:
        await getattr(story, happening)(*more)
        await story.judge()
    await story.close()
    assert await check(story.url) == []


@settings(max_examples=60)
@given(
    st.sampled_from(VIAS),
    st.sampled_from(["pane.fence/applied", "pane.tombstone/applied"]),
    st.lists(HAPPENINGS, min_size=1, max_size=8),
)
def test_10_7_and_10_3_nothing_leaves_uncertain_by_itself_and_nothing_is_sent_twice(via, point, history):
    with tempfile.TemporaryDirectory() as name:
        story = Story(f"memory://uncertain-{Path(name).name}", Path(name), via)
        trio.run(lived, story, point, history, clock=MockClock(autojump_threshold=0))
