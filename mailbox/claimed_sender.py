"""Sending from a bridge process that only talks HTTP: each message once, and never two at a time for a pane.

`ClaimedSender` carries out the table of `fencepost.mailbox.claim`: it claims the scope, posts once, and lets go of the
claim only for an answer about exactly that message.  While a claim stands, every further `send`, from whichever bridge
and after whichever restart, sends nothing and asks about the original instead.  Blocking; one may be shared by threads.

Whatever goes wrong is a report, never an exception that leaves open whether something was sent; only arguments that
are wrong raise, before anything is done.  Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fencepost.mailbox.claim import (
    Blocked,
    Finding,
    Judged,
    Locked,
    Outcome,
    Removed,
    Response,
    Step,
    Unwritable,
    judge_binding,
    judge_hindrance,
    judge_post,
    judge_receipt,
    judge_removal,
    judge_text,
)
from fencepost.mailbox.claim_files import ClaimFiles
from fencepost.mailbox.claim_record import Claim, check_scope, fingerprint_of
from fencepost.mailbox.delivery_ids import check_delivery_id
from fencepost.mailbox.ladder import Stage, Stop

__all__ = ["ClaimedSender", "Response", "SendReport", "Transport"]


class Transport(Protocol):
    """How requests reach the service (contract D-27).

    Each call is one request and raises an `OSError` when no answer came: `ConnectionRefusedError` if every address
    refused the connection, anything else if the request may have left.  It repeats nothing and follows no redirect.
    """

    def read_binding(self) -> Response:
        """Ask for the pane's current binding."""
        ...

    def post(self, delivery_id: str, binding: str, text: str) -> Response:
        """Hand the message over."""
        ...

    def read_receipt(self, delivery_id: str, binding: str, fingerprint: str) -> Response:
        """Ask what became of a message; sends nothing."""
        ...

    def refresh(self) -> None:
        """Find out again where the service listens."""
        ...


@dataclass(frozen=True)
class SendReport:
    """How far a message got: a stage or a stop (contract D-27).

    `delivery_id`, `binding` and `fingerprint` are those of the message under claim, which may be an earlier one; all
    three are None where this text was not sent and nothing was asked about.
    """

    stage: Stage | None
    stop: Stop | None
    delivery_id: str | None
    binding: str | None
    fingerprint: str | None
    detail: str | None


class ClaimedSender:
    """Sends a bridge's messages for one (socket path, pane id), under the durable claim of protocol section 5.

    The claim lies in `state_dir/inbound-receipts/`, which is made as needed; every bridge of that pane must be given
    the same `state_dir` and the same spelling of the scope.  Raises `InvalidIdentifier` for a scope that is none.
    """

    def __init__(self, state_dir: str | os.PathLike[str], scope: tuple[str, str], transport: Transport) -> None:
        self._files = ClaimFiles(state_dir, check_scope(scope))
        self._transport = transport

    @property
    def claim_path(self) -> Path:
        """Where the claim of this scope is, or would be (contract D-29)."""
        return self._files.claim_path

    @property
    def lock_path(self) -> Path:
        """Where the lock is while the claim is made or removed."""
        return self._files.lock_path

    def send(self, text: str) -> SendReport:
        """Send a message, or find out what became of the one that is under way.

        The claim is durable before the POST, and there is one POST at most.  STORED says that the service has it.
        UNAVAILABLE and REJECTED say that it did not and will not get it; UNCERTAIN that this is not known of the
        message named, so nothing may be sent in its place.  A text presented while another is unresolved is not sent,
        even if this very call resolves it.  Raises TypeError for what is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"a message is text, not {type(text).__name__}")
        unsendable = judge_text(text)
        if unsendable is not None:
            return _report(unsendable)
        try:
            held = self._held()
            return self._send(text) if held is None else self._ask_about(held, text)
        except (Locked, Blocked, Unwritable) as error:
            return _report(judge_hindrance(error))

    def pending(self) -> SendReport | None:
        """Find out what became of the message that is under way; None if there is none.

        Sends nothing, whatever it finds.  A message that the service has is STORED, and its claim is gone on return;
        every other answer is UNCERTAIN and leaves the claim.
        """
        try:
            held = self._held()
            return None if held is None else self._ask_about(held, held.text)
        except (Locked, Blocked, Unwritable) as error:
            return _report(judge_hindrance(error))

    def settle(self, delivery_id: str, approval: str) -> SendReport:
        """Give up on a claim that nothing resolves, on the owner's word, and free the scope (D-19, section 12 D4).

        `approval` is who said so, or why; it is kept with the claim's whole text.  Durable on return.  Nothing is
        claimed about the message: the report, and every later one of that id, is UNCERTAIN with the detail "abandoned,
        outcome unknown".  An id this scope has no claim of, or files that cannot be changed, change nothing: UNCERTAIN
        with another detail.  Raises `InvalidIdentifier` for what is no delivery id, ValueError for a blank approval.
        """
        check_delivery_id(delivery_id)
        if not isinstance(approval, str) or not approval.strip():
            raise ValueError(f"an approval says who gave it, or why, not {approval!r:.300}")
        try:
            claim = self._files.abandon(delivery_id, approval)
            if claim is not None:
                return _report(Judged(Finding.ABANDONED), claim)
            if self._files.was_abandoned(delivery_id):
                return _unsettled(delivery_id, Judged(Finding.ABANDONED).rule.detail)
        except Locked as error:
            return _unsettled(delivery_id, f"nothing was changed: the lock is taken ({error})")
        except (Blocked, Unwritable) as error:
            return _unsettled(delivery_id, f"not settled: {error}")
        return _unsettled(delivery_id, "nothing was changed: no claim of that id is held here")

    # -- the steps ---------------------------------------------------------------------------------------------------

    def _held(self) -> Claim | None:
        """The claim that stands; a settlement that a crash cut short is finished first."""
        held = self._files.look()
        if held is not None and self._files.was_abandoned(held.delivery_id):
            self._files.remove(held.delivery_id)
            return self._files.look()
        return held

    def _send(self, text: str) -> SendReport:
        judged = judge_binding(self._read(self._transport.read_binding))
        if judged.binding is None:
            return _report(judged)
        claim = Claim.of(str(uuid.uuid4()), judged.binding, text)
        holder = self._files.create(claim)
        if holder.delivery_id != claim.delivery_id:
            return self._ask_about(holder, text)
        outcome = _asked(lambda: self._transport.post(claim.delivery_id, claim.binding, claim.text))
        return self._carry_out(judge_post(claim, outcome), claim)

    def _ask_about(self, claim: Claim, text: str) -> SendReport:
        outcome = self._read(lambda: self._transport.read_receipt(claim.delivery_id, claim.binding, claim.fingerprint))
        return self._carry_out(judge_receipt(claim, fingerprint_of(text), outcome), claim)

    def _carry_out(self, judged: Judged, claim: Claim) -> SendReport:
        """Do to the held claim what the row says, and report."""
        if judged.rule.step is Step.REFRESH:
            self._refresh()
        if judged.rule.step is Step.CLEAR:
            return _report(judge_removal(judged, self._remove(claim.delivery_id)), claim)
        with contextlib.suppress(Blocked):
            if self._files.was_abandoned(claim.delivery_id):
                judged = Judged(Finding.ABANDONED)
        return _report(judged, claim)

    def _remove(self, delivery_id: str) -> Removed | Locked | Blocked | Unwritable:
        try:
            return self._files.remove(delivery_id)
        except (Blocked, Locked, Unwritable) as hindrance:
            return hindrance

    def _read(self, ask: Callable[[], Response]) -> Outcome:
        """Make a request that sends nothing; once more where the service has moved."""
        outcome = _asked(ask)
        if isinstance(outcome, ConnectionRefusedError) and self._refresh():
            return _asked(ask)
        return outcome

    def _refresh(self) -> bool:
        """Whether the link could be refreshed; if not, the next request says why."""
        try:
            self._transport.refresh()
        except Exception:  # noqa: BLE001 - the bridge's own class may raise anything
            return False
        return True


def _asked(ask: Callable[[], Response]) -> Outcome:
    """The answer, or what came instead; an answer that is none is like no answer."""
    try:
        response: object = ask()
    except Exception as error:  # noqa: BLE001 - whatever it is, the request may have left
        return error
    if isinstance(response, Response) and isinstance(response.status, int) and isinstance(response.body, bytes):
        return response
    return TypeError(f"the transport returned {type(response).__name__}, not a Response of int and bytes")


def _report(judged: Judged, claim: Claim | None = None) -> SendReport:
    rule = judged.rule
    details = [part for part in (rule.detail, judged.detail) if part]
    detail = f"{details[0]} ({details[1]})" if len(details) == 2 else next(iter(details), None)
    if claim is None or not rule.original:
        return SendReport(rule.reach.stage, rule.reach.stop, None, None, None, detail)
    return SendReport(rule.reach.stage, rule.reach.stop, claim.delivery_id, claim.binding, claim.fingerprint, detail)


def _unsettled(delivery_id: str, detail: str | None) -> SendReport:
    return SendReport(None, Stop.UNCERTAIN, delivery_id, None, None, detail)
