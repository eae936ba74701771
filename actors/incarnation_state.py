"""Incarnations: launch, handshake, failure, retirement, and what they do to the head intent.  Pure.

Theory of operation
===================

An incarnation is one process of one harness.  At most one of a pane is live; a launch retires the one before it in
the same transaction, and what a retired one still sends is fenced.  What a launch may do depends on the head intent
alone (protocol-intent.md section 8):

    no head                          start plainly
    detected                         start plainly; a harness that cannot take soft batches waits for the payload
    reconciling, conflicted          not until the payload exists or a human has resolved it
    materialized, delivered          only bound: a fresh one-use startup delivery id, the hash of the saved payload
    exhausted, or no attempt left    not at all

Attempts are counted within the intent's epoch from the incarnation rows themselves.  Whoever gives up on the last
permitted attempt, for whatever cause, marks the intent exhausted in the same transaction (section 7.5); only a human
leads out of that (`pane_resolution`).
"""

from __future__ import annotations

from typing import Final

from attrs import evolve, frozen

from fencepost.actors.decision import Decision, Effect, Replace, RetiredIncarnation
from fencepost.actors.intent_events import (
    AcceptHandshake,
    BeginUnattended,
    BindRestart,
    Exhaust,
    IntentEvent,
)
from fencepost.actors.intent_verdicts import judge_handshake
from fencepost.actors.messages import (
    Applied,
    Capabilities,
    Launch,
    Reason,
    Refused,
    StartupDelivery,
    Unchanged,
)
from fencepost.actors.pane_state import RETIRED_FOR, STOP_FAILED, Limits, Mint, PaneState, fenced, refusal, stop_failure
from fencepost.mailbox.errors import LaunchBlocked
from fencepost.mailbox.mutation import NewEvent
from fencepost.mailbox.records import DeliveryMode, IncarnationRecord, IntentRecord, IntentState

__all__ = [
    "LaunchRequest",
    "begin_unattended",
    "check_launch",
    "decide_handshake",
    "decide_launch",
    "decide_launch_failed",
    "decide_retire",
    "decide_stop_failed",
    "give_up",
    "needs_payload_first",
    "unproved",
    "withdraw",
]


@frozen(kw_only=True)
class LaunchRequest:
    """What a host asks to be launched."""

    harness: str
    session_id: str | None
    capabilities: Capabilities


# -- launch (sections 7.2 and 8) ---------------------------------------------------------------------------------

_LAUNCH_FORBIDDEN: Final = {
    IntentState.RECONCILING: "its payload does not exist yet",
    IntentState.RECOVERY_REQUIRED: "it needs recovery first",
    IntentState.TOPOLOGY_DIVERGED: "its topology must be resolved first",
}


def check_launch(state: PaneState, limits: Limits) -> None:
    """Raise `LaunchBlocked` where section 8 forbids a new process; changes nothing."""
    head = state.head
    if head is None:
        return
    if head.exhausted_at is not None:
        raise LaunchBlocked(head.intent_id, head.state, "its startup attempts are exhausted; rearm or discard it")
    if head.state in _LAUNCH_FORBIDDEN:
        raise LaunchBlocked(head.intent_id, head.state, _LAUNCH_FORBIDDEN[head.state])
    # Only a live attempt can be given up.  With none alive and no mark (the bound was lowered since), one more starts.
    if head.payload is not None and state.live and state.startup_attempts >= limits.startup_attempts_max:
        raise LaunchBlocked(
            head.intent_id, head.state, "its last permitted startup attempt is still live; retire it to give it up"
        )


def needs_payload_first(state: PaneState, capabilities: Capabilities) -> bool:
    """Whether the head must be reconciled before this harness starts, as no soft batch can carry it later (I-3)."""
    head = state.head
    soft = capabilities.soft_batches and capabilities.turn_order
    return head is not None and head.state is IntentState.DETECTED and not soft


def begin_unattended(state: PaneState, now: int) -> Decision:
    """Begin reconciling a detected head while no process is alive; the live one, if any, is retired with it."""
    head = state.head
    if head is None or head.state is not IntentState.DETECTED:
        return Decision(answer=Unchanged())
    retired = _retired(state, "replaced", now, relaunch=True)
    return retired.plus(Decision(answer=Applied(), intent_events=((head, BeginUnattended()),)))


def withdraw(state: PaneState, now: int) -> Decision:
    """Fence the live incarnation because its successor is about to be started; a reopen goes on with that."""
    return _retired(state, "replaced", now, relaunch=True).plus(Decision(answer=Applied()))


def decide_launch(state: PaneState, request: LaunchRequest, limits: Limits, now: int, mint: Mint) -> Decision:
    """Retire what lives and insert its successor, bound to the head if that has a payload.

    The answer is a `Launch`; the process may be started once this is committed.  Raises `LaunchBlocked`.
    """
    check_launch(state, limits)
    head = state.head
    plain = IncarnationRecord(
        incarnation_id=mint("incarnation"),
        pane_id=state.pane_id,
        epoch=(state.latest.epoch if state.latest is not None else 0) + 1,
        harness=request.harness,
        session_id=request.session_id,
        soft_batches=request.capabilities.soft_batches,
        turn_order=request.capabilities.turn_order,
        launched_at=now,
    )
    incarnation = _with_startup(state, plain, mint)
    events: tuple[tuple[IntentRecord, IntentEvent], ...] = ()
    if head is not None and incarnation.startup_delivery_id is not None:
        bind = BindRestart(
            incarnation_id=incarnation.incarnation_id, startup_delivery_id=incarnation.startup_delivery_id
        )
        events = ((head, bind),)
    launched = Decision(
        answer=launch_of(incarnation, head),
        puts=(incarnation,),
        intent_events=events,
        events=(_event("incarnation.launched", state, incarnation, now),),
    )
    return _succeeded(state, now).plus(launched)


def launch_of(incarnation: IncarnationRecord, head: IntentRecord | None) -> Launch:
    """The launch an incarnation row stands for; `head` is the intent its startup delivery carries."""
    startup = None
    if incarnation.startup_delivery_id is not None and head is not None and head.payload is not None:
        startup = StartupDelivery(
            startup_delivery_id=incarnation.startup_delivery_id,
            intent_id=head.intent_id,
            payload=head.payload,
            payload_sha256=str(head.payload_sha256),
        )
    return Launch(
        pane_id=incarnation.pane_id,
        incarnation_id=incarnation.incarnation_id,
        epoch=incarnation.epoch,
        harness=incarnation.harness,
        session_id=incarnation.session_id,
        startup=startup,
    )


def _with_startup(state: PaneState, plain: IncarnationRecord, mint: Mint) -> IncarnationRecord:
    """The incarnation, bound to the head's payload if there is one: a fresh id, the saved hash, the next attempt."""
    head = state.head
    if head is None or head.payload is None:
        return plain
    return evolve(
        plain,
        startup_intent_id=head.intent_id,
        startup_delivery_id=mint("startup_delivery"),
        startup_payload_sha256=head.payload_sha256,
        startup_epoch=head.epoch,
        startup_attempt=state.startup_attempts + 1,
    )


def _succeeded(state: PaneState, now: int) -> Decision:
    """Retire the live one, or take back a retired one's wish to be replaced: here is its successor."""
    latest = state.latest
    if latest is None or latest.live:
        return _retired(state, "replaced", now, relaunch=False)
    return Decision(puts=(latest.next(relaunch=False),)) if latest.relaunch else Decision()


# -- the startup handshake (section 7.3) -------------------------------------------------------------------------


def decide_handshake(
    state: PaneState,
    speaker: IncarnationRecord | None,
    intent: IntentRecord | None,
    *,
    incarnation_id: str,
    startup_delivery_id: str,
    payload_sha256: str,
    now: int,
) -> Decision:
    """The replacement says it was given the tagged payload.  A refusal changes nothing (I-9).

    `intent` is the one the speaker's startup delivery carries, resolved or not.
    """
    stopped = fenced(state, "startup_ready", incarnation_id, speaker, now)
    if stopped is not None:
        return stopped
    assert speaker is not None
    if speaker.startup_delivery_id is None or intent is None:
        refused = Refused(Reason.OTHER_MODE, f"incarnation {incarnation_id} was started plainly")
        return refusal(state, "startup_ready", incarnation_id, refused, now)
    answer = judge_handshake(intent, startup_delivery_id, speaker.startup_delivery_id)
    if not isinstance(answer, Refused) and payload_sha256 != speaker.startup_payload_sha256:
        answer = Refused(
            Reason.PAYLOAD_DRIFT,
            f"the payload's hash is {speaker.startup_payload_sha256}, reported was {payload_sha256[:80]!r}",
        )
    if isinstance(answer, Refused):
        return refusal(state, "startup_ready", incarnation_id, answer, now)
    if isinstance(answer, Unchanged):
        return Decision(answer=answer)
    return Decision(
        answer=answer,
        puts=(speaker.next(delivered_intent_id=intent.intent_id),),
        intent_events=((intent, AcceptHandshake()),),
        events=(_event("incarnation.ready", state, speaker, now),),
    )


# -- retirement (sections 7.1 and 7.5) ---------------------------------------------------------------------------


def decide_retire(
    state: PaneState,
    speaker: IncarnationRecord | None,
    incarnation_id: str,
    reason: str,
    now: int,
    *,
    limits: Limits,
    mint: Mint,
) -> Decision:
    """The host ends an incarnation; the intent stays as it is, unless its last permitted attempt is given up."""
    over = _not_live(state, "retire", incarnation_id, speaker, now)
    if over is not None:
        return over
    return give_up(state, reason, limits, now, mint, replace=False).plus(Decision(answer=Applied()))


def decide_launch_failed(
    state: PaneState,
    speaker: IncarnationRecord | None,
    incarnation_id: str,
    reason: str,
    now: int,
    *,
    limits: Limits,
    mint: Mint,
) -> Decision:
    """The process never came up, or died; a bound attempt is given up and, with a Launcher, replaced (I-10)."""
    over = _not_live(state, "launch_failed", incarnation_id, speaker, now)
    if over is not None:
        return over
    head = state.head
    replace = head is not None and head.mode is DeliveryMode.RESTART_STARTUP and state.is_live(head.incarnation_id)
    return give_up(state, reason, limits, now, mint, replace=replace).plus(Decision(answer=Applied()))


def decide_stop_failed(state: PaneState, incarnation_id: str, why: str, now: int) -> Decision:
    """The Launcher could not stop a process that was retired: told, and kept until a successor is launched (I-11)."""
    latest = state.latest
    if latest is None or latest.live or latest.incarnation_id != incarnation_id:
        return Decision(answer=Unchanged())
    was = str(latest.retire_reason)
    if stop_failure(latest) is not None:
        was = was.rpartition(RETIRED_FOR)[2]
    failed = latest.next(retire_reason=f"{STOP_FAILED}{why}{RETIRED_FOR}{was}")
    return Decision(
        answer=Applied(),
        puts=(failed,),
        events=(_event("incarnation.stop_failed", state, evolve(failed, retire_reason=why), now),),
    )


def _not_live(
    state: PaneState, call: str, incarnation_id: str, speaker: IncarnationRecord | None, now: int
) -> Decision | None:
    """What a call gets that would end an incarnation which is not this pane's, or is over; None if it is live."""
    if speaker is None or speaker.pane_id != state.pane_id:
        return fenced(state, call, incarnation_id, speaker, now)
    return None if state.is_live(incarnation_id) else Decision(answer=Unchanged())


def unproved(state: PaneState) -> bool:
    """Whether the live incarnation is a startup attempt whose handshake was never accepted."""
    head = state.head
    return (
        head is not None
        and head.mode is DeliveryMode.RESTART_STARTUP
        and head.handshake_at is None
        and head.exhausted_at is None
        and state.is_live(head.incarnation_id)
    )


def give_up(state: PaneState, reason: str, limits: Limits, now: int, mint: Mint, *, replace: bool) -> Decision:
    """Retire the live incarnation; exhaust the head if that was its last permitted attempt.

    `replace` records the runtime's wish for a successor, so that a reopen goes on with it; an exhausted intent gets
    none.
    """
    head = state.head
    last = (
        head is not None
        and head.mode is DeliveryMode.RESTART_STARTUP
        and state.is_live(head.incarnation_id)
        and state.startup_attempts >= limits.startup_attempts_max
    )
    if head is None or not last:
        effects: tuple[Effect, ...] = (Replace(),) if replace else ()
        return _retired(state, reason, now, relaunch=replace).plus(Decision(effects=effects))
    exhausting = Decision(intent_events=((head, Exhaust(approval=mint("approval"))),))
    return _retired(state, reason, now, relaunch=False).plus(exhausting)


def _retired(state: PaneState, reason: str, now: int, *, relaunch: bool) -> Decision:
    """Retire the live incarnation, if any: its marker goes, the intent's row stays as it is (section 7.1)."""
    live = state.live
    if live is None:
        return Decision()
    if reason.startswith(STOP_FAILED):
        reason = f"retired: {reason}"  # a host's word for it; those words are kept for what the Launcher said
    retired = live.next(retired_at=now, retire_reason=reason, relaunch=relaunch, delivered_intent_id=None)
    return Decision(
        puts=(retired,),
        events=(_event("incarnation.retired", state, retired, now),),
        effects=(RetiredIncarnation(),),
    )


def _event(kind: str, state: PaneState, incarnation: IncarnationRecord, now: int) -> NewEvent:
    data: dict[str, object] = {
        "pane_id": state.pane_id,
        "incarnation_id": incarnation.incarnation_id,
        "epoch": incarnation.epoch,
        "harness": incarnation.harness,
        "session_id": incarnation.session_id,
        "startup_delivery_id": incarnation.startup_delivery_id,
        "intent_id": incarnation.startup_intent_id,
    }
    if incarnation.retire_reason is not None:
        data["reason"] = incarnation.retire_reason
    return NewEvent(kind=kind, address=state.address, at=now, data=data)
