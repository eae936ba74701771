"""Inbound messages: what is accepted, what a receipt may say, and what is written in which order.  Pure.

Theory of operation
===================

Accepting writes four things, each durable before the next (protocol-delivery.md section 6, contract DA-6):

    fence         the pane has one pending original
    tombstone     this id was attempted
    acceptance    the text is stored: the one fact that a receipt with STORED is backed by
    publication   the run and its `delivery.accepted` event

and only then is the turn dispatched and the fence cleared.  Whatever stands there without an acceptance stays
uncertain for ever: a repetition of the same id with the same text is not accepted either, because nobody can say that
the first request is not still under way.

* A post is judged by what `Traces` holds, read in one moment; so is a lookup, which never sends, accepts or dispatches.
* Evidence that cannot be read or does not fit together answers UNCERTAIN, not an error (DA-7).  What cannot be read is
  handed in as its damage, in place of what it holds, so that nothing here can take it for empty.
* A binding names which native session spoke.  It grants nothing; the text stays what an untrusted agent said.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from attrs import evolve, frozen

from fencepost.actors.delivery_messages import AcceptedTurn, InboundPost, Receipt, TurnEnd, text_of
from fencepost.mailbox.claim import ABANDONED, fingerprint_of
from fencepost.mailbox.delivery_ids import is_delivery_id, is_digest
from fencepost.mailbox.delivery_records import (
    AcceptanceRecord,
    FenceRecord,
    RunRecord,
    SettlementRecord,
    TombstoneRecord,
)
from fencepost.mailbox.errors import CorruptRecord, UnmappedMechanism
from fencepost.mailbox.ladder import Reach, Stage, Stop, report
from fencepost.mailbox.mutation import NewEvent
from fencepost.mailbox.records import IncarnationRecord
from fencepost.mailbox.text import storable_text

__all__ = [
    "SERVICE_RESTARTED",
    "Accept",
    "Answered",
    "Asked",
    "Traces",
    "accepted_event",
    "accepted_exactly",
    "binding_of",
    "ended_events",
    "judge_lookup",
    "judge_post",
    "known_end",
    "malformed",
    "no_dispatcher",
    "stored",
    "too_many",
    "turn_of",
    "uncertain",
    "unpublished",
    "unreadable",
    "wrapped",
]

SERVICE_RESTARTED: Final = "service_restarted"
_TAG: Final = "untrusted-agent-message"


def binding_of(live: IncarnationRecord | None) -> str | None:
    """The binding of the live incarnation: the same for every process of one harness session in one pane (D-16)."""
    if live is None:
        return None
    # Without a session id nobody can say that a later process continues this one.
    session = f"incarnation {live.incarnation_id}" if live.session_id is None else f"session {live.session_id}"
    return hashlib.sha256(f"{live.pane_id}\0{live.harness}\0{session}".encode()).hexdigest()


@frozen(kw_only=True)
class Asked:
    """The evidence a caller names; a receipt carries it back, and never another original's."""

    delivery_id: str
    pane_id: str
    binding: str
    fingerprint: str

    def is_of(self, record: FenceRecord | TombstoneRecord | AcceptanceRecord) -> bool:
        """Whether `record` is exactly this original's."""
        return (record.delivery_id, record.pane_id, record.binding, record.fingerprint) == (
            self.delivery_id,
            self.pane_id,
            self.binding,
            self.fingerprint,
        )


@frozen(kw_only=True)
class Traces:
    """All that is durable about an id and about its pane, at one moment."""

    binding: str | None
    """The binding of the pane's live session, None without one."""
    fence: FenceRecord | None = None
    """The pane's pending original."""
    fenced_elsewhere: bool = False
    """Whether the id is the pending original of another pane."""
    tombstone: TombstoneRecord | None = None
    acceptance: AcceptanceRecord | None = None
    settlement: SettlementRecord | None = None

    @property
    def abandoned(self) -> bool:
        """Whether somebody gave it up.  What was accepted cannot be, though one sent out with the same id can."""
        return self.settlement is not None and self.acceptance is None

    @property
    def none_of_the_id(self) -> bool:
        """Whether nothing at all is known of the id."""
        records = (self.tombstone, self.acceptance, self.settlement)
        return records == (None, None, None) and not self.fenced_elsewhere


@frozen
class Answered:
    """The whole answer; `clears` says that the pane's fence is this original's and has done its work."""

    receipt: Receipt
    clears: bool = False


@frozen
class Accept:
    """A new original: write fence, tombstone, acceptance and publication, dispatch it, clear the fence."""

    asked: Asked
    text: str


Verdict: TypeAlias = Answered | Accept


def judge_post(pane_id: str, post: InboundPost, traces: Traces | CorruptRecord) -> Verdict:
    """Judge a well-formed post, in the order of section 6.1."""
    assert post.delivery_id is not None
    assert post.binding is not None
    text = storable_text(post.text)
    asked = Asked(delivery_id=post.delivery_id, pane_id=pane_id, binding=post.binding, fingerprint=fingerprint_of(text))
    if isinstance(traces, CorruptRecord):
        return Answered(unreadable(asked, traces))
    if traces.abandoned:
        return Answered(uncertain(asked, ABANDONED))
    if traces.binding is None:
        if traces.none_of_the_id and traces.fence is None:
            return Answered(_stopped(asked, Stop.UNAVAILABLE, "no harness session is live in this pane"))
        return Answered(uncertain(asked, "no harness session is live in this pane, and there is a trace of a message"))
    if asked.binding != traces.binding:
        return Answered(uncertain(asked, "another session is live in this pane"))
    if accepted_exactly(asked, traces):
        return Answered(stored(asked), clears=traces.fence is not None and asked.is_of(traces.fence))
    if not traces.none_of_the_id:
        return Answered(uncertain(asked, "this id was attempted before, and nothing proves that this was accepted"))
    if traces.fence is not None:
        return Answered(uncertain(asked, "another message of this pane is pending"))
    return Accept(asked, text)


def judge_lookup(asked: Asked, traces: Traces | CorruptRecord) -> Answered:
    """Judge a lookup by section 6.2; it reads, and at most clears the fence of what it finds accepted."""
    if isinstance(traces, CorruptRecord):
        return Answered(unreadable(asked, traces))
    if traces.abandoned:
        return Answered(uncertain(asked, ABANDONED))
    if asked.binding != traces.binding:
        return Answered(uncertain(asked, "another session, or none, is live in this pane"))
    if not accepted_exactly(asked, traces):
        return Answered(uncertain(asked, "nothing proves that this was accepted"))
    if traces.fence is None:
        return Answered(stored(asked))
    if not asked.is_of(traces.fence):
        return Answered(uncertain(asked, "another message of this pane is pending"))
    return Answered(stored(asked), clears=True)


def accepted_exactly(asked: Asked, traces: Traces) -> bool:
    """Whether there is a readable acceptance with exactly this evidence, and nothing that contradicts it."""
    acceptance, tombstone = traces.acceptance, traces.tombstone
    return (
        acceptance is not None
        and asked.is_of(acceptance)
        and fingerprint_of(acceptance.text) == acceptance.fingerprint
        and tombstone is not None
        and asked.is_of(tombstone)
    )


def unpublished(
    fence: FenceRecord, traces: Traces | CorruptRecord, runs: Sequence[RunRecord]
) -> AcceptanceRecord | None:
    """What a restart has to publish: the acceptance of the pending original that has no run yet (section 7, s4).

    None also where any of its evidence cannot be read or does not fit: then nothing shows that it was not published.
    """
    if isinstance(traces, CorruptRecord) or runs:
        return None
    asked = Asked(
        delivery_id=fence.delivery_id, pane_id=fence.pane_id, binding=fence.binding, fingerprint=fence.fingerprint
    )
    return traces.acceptance if accepted_exactly(asked, traces) else None


# -- receipts ------------------------------------------------------------------------------------------------------


def malformed(post: InboundPost, text_bytes_max: int) -> Receipt | None:
    """The receipt of a post that is turned down before anything is looked at, or None (D-31, D-32, DA-15)."""
    if not is_delivery_id(post.delivery_id) or not is_digest(post.binding):
        return _turned_down(post, "delivery id required: a canonical UUID, and a binding of 64 hex digits")
    text: object = post.text  # whatever its annotation says, it came from outside
    if not isinstance(text, str):
        return _turned_down(post, f"text required, not {type(text).__name__}")
    size = len(storable_text(text).encode())
    if size > text_bytes_max:
        return _turned_down(post, f"the text has {size} bytes; {text_bytes_max} are allowed")
    if not text.strip():
        return _turned_down(post, "the text is blank")
    return None


def _turned_down(post: InboundPost, detail: str) -> Receipt:
    text = post.text if isinstance(post.text, str) else ""
    return Receipt(
        received=False,
        stage=None,
        stop=Stop.REJECTED,
        delivery_id=post.delivery_id if isinstance(post.delivery_id, str) else None,
        binding=post.binding if isinstance(post.binding, str) else None,
        fingerprint=fingerprint_of(text),
        detail=detail,
    )


def uncertain(asked: Asked, detail: str) -> Receipt:
    """Nobody can say that this was accepted, nor that it was not."""
    return _stopped(asked, Stop.UNCERTAIN, detail)


def unreadable(asked: Asked, damage: CorruptRecord) -> Receipt:
    """What could say whether this was accepted cannot be read, which is never taken for its not being there."""
    return uncertain(asked, f"evidence cannot be read: {damage}")


def _stopped(asked: Asked, stop: Stop, detail: str) -> Receipt:
    return evolve(stored(asked), received=False, stage=None, stop=stop, detail=detail)


def no_dispatcher(asked: Asked) -> Receipt:
    """There is nobody who could run its turn, and nothing was written."""
    return _stopped(asked, Stop.UNAVAILABLE, "this runtime has no dispatcher")


def too_many(asked: Asked, turns: int) -> Receipt:
    """So many turns of the pane have not ended that its turn is not taken, and nothing was written."""
    return _stopped(asked, Stop.UNAVAILABLE, f"{turns} messages of this pane wait for the end of their turn already")


def stored(asked: Asked) -> Receipt:
    """It is accepted; there is an acceptance with exactly this evidence."""
    return Receipt(
        received=True,
        stage=Stage.STORED,
        stop=None,
        delivery_id=asked.delivery_id,
        binding=asked.binding,
        fingerprint=asked.fingerprint,
    )


# -- what is written -----------------------------------------------------------------------------------------------


def wrapped(asked: Asked, text: str) -> str:
    """The text as a model may be shown it: fenced by tags that nothing within it can close."""
    inside = re.sub(rf"<(\s*/?\s*{_TAG})", r"&lt;\1", text, flags=re.IGNORECASE)
    pane = html.escape(asked.pane_id, quote=True)
    return f'<{_TAG} pane="{pane}" delivery-id="{asked.delivery_id}">\n{inside}\n</{_TAG}>'


def turn_of(acceptance: AcceptanceRecord) -> AcceptedTurn:
    """What the dispatcher is called with."""
    return AcceptedTurn(
        run_id=acceptance.run_id,
        delivery_id=acceptance.delivery_id,
        pane_id=acceptance.pane_id,
        conversation_id=acceptance.conversation_id,
        text=acceptance.text,
        wrapped_text=acceptance.wrapped_text,
    )


def accepted_event(run: RunRecord, now: int) -> NewEvent:
    """A message was accepted; it is stored, which says nothing about a turn."""
    return _event("delivery.accepted", run, now, {"stage": Stage.STORED.value})


def ended_events(run: RunRecord, now: int) -> tuple[NewEvent, ...]:
    """How the turn of an accepted message ended.

    A refused, interrupted or unknown end is `delivery.failed`; the stage stays that of the receipt, which is STORED
    unless the turn itself got further (section 1.3, rule 6).
    """
    reach = _reach_of(run)
    data: dict[str, object] = {"stage": (reach.stage or Stage.STORED).value, "outcome": run.outcome}
    if reach.stop is not None:
        data["stop"] = reach.stop.value
    if run.native is not None:
        data["reason" if run.native == SERVICE_RESTARTED else "native"] = run.native
    kind = "delivery.failed" if reach.stage is None else "delivery.ended"
    return (_event(kind, run, now, data),)


def _reach_of(run: RunRecord) -> Reach:
    return report("channel_turn", run.outcome or "failed", run.native)


def known_end(end: object) -> TurnEnd:
    """What a dispatcher answered, in words the ladder knows; what it does not know is a failure of unknown kind."""
    if not isinstance(end, TurnEnd):
        return TurnEnd("failed", f"the dispatcher answered {text_of(end)}")
    said = TurnEnd(text_of(end.outcome), None if end.native is None else text_of(end.native))
    try:
        reach = report("channel_turn", said.outcome, said.native)
    except UnmappedMechanism:
        reach = Reach()
    if reach == Reach() or said.outcome == "pending":
        return TurnEnd("failed", f"the dispatcher answered {said.outcome!r}")
    return said


def _event(kind: str, run: RunRecord, now: int, data: dict[str, object]) -> NewEvent:
    ids = {"delivery_id": run.delivery_id, "run_id": run.run_id}
    return NewEvent(kind=kind, address=f"pane:{run.pane_id}", at=now, data={**ids, **data})
