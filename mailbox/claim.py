"""The pending claim of a bridge: what an answer of the service proves of it, and what follows.

A bridge that hands a message to the service over HTTP may die, or lose the answer, at any step.  So before it sends
it claims its (socket, pane): one durable record of the one message that may be under way.  While that stands nothing
else is sent for the pane, by whichever bridge; only an answer about exactly that message removes it.  "Exactly" is the
triple of delivery id, binding and fingerprint in an answer with a success status; everything else proves nothing, and
what proves nothing leaves the claim where it is.

    none ──claim──► held ──POST, once──► held ──exact answer──► none
                     │▲                   │▲
                     └┴──GET, any number──┴┘         corrupt: blocks until a person looks

The decisions are a table, `RULES`: one row for each thing that can be found out (protocol-delivery.md section 5).  The
`judge_` functions say which row an answer belongs to, whatever the answer is.  `ClaimedSender` carries the rows out,
`claim_record` has the claim itself, and `ClaimFiles` keeps it.

Standard library only.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, TypeAlias

from fencepost.mailbox.claim_record import TEXT_BYTES_MAX, Claim, fingerprint_of, fits, object_in
from fencepost.mailbox.delivery_ids import is_digest
from fencepost.mailbox.ladder import Reach, Stage, Stop
from fencepost.mailbox.text import TOLD_MAX, storable_text, told

__all__ = [
    "ABANDONED",
    "RULES",
    "TEXT_BYTES_MAX",
    "Blocked",
    "Claim",
    "ClaimState",
    "Finding",
    "Judged",
    "Locked",
    "Outcome",
    "Removed",
    "Response",
    "Rule",
    "Step",
    "Unwritable",
    "fingerprint_of",
    "judge_binding",
    "judge_hindrance",
    "judge_post",
    "judge_receipt",
    "judge_removal",
    "judge_text",
]

ABANDONED: Final = "abandoned, outcome unknown"

_WIRE_VERSION: Final = 1
_BODY_BYTES_MAX: Final = 1_048_576  # of an answer; more is no receipt of ours


@dataclass(frozen=True)
class Response:
    """What the service answered: the HTTP status and the body's bytes, a redirect as it came (contract D-27)."""

    status: int
    body: bytes


Outcome: TypeAlias = "Response | Exception"
"""What became of a request: an answer, or what the transport raised."""


# -- what a use of the claim's files can come to ------------------------------------------------------------------


class Locked(Exception):  # noqa: N818 - becomes a report one frame up
    """The lock is there."""


class Blocked(Exception):  # noqa: N818
    """What is there cannot be read or trusted, so nothing may be sent."""


class Unwritable(Exception):  # noqa: N818
    """Nothing could be written, and nothing is in the way."""


class Removed(Enum):
    """What a removal came to."""

    REMOVED = auto()
    NOT_THERE = auto()  # no claim, or a newer one of another delivery
    ABANDONED = auto()  # its owner has given it up


# -- the table (protocol-delivery.md section 5) ----------------------------------------------------------------------


class ClaimState(StrEnum):
    """What a scope has."""

    NONE = "none"
    HELD = "held"
    CORRUPT = "corrupt"


class Step(StrEnum):
    """What the bridge does next."""

    REPORT = "report"
    CLAIM = "claim, then post once"
    RECONCILE = "ask about the original"
    CLEAR = "clear under the lock"
    KEEP = "keep"
    REFRESH = "keep and refresh the link"


class Finding(StrEnum):
    """What was found out; the values are the names of the table's rows."""

    TEXT_BLANK = "the text is blank"
    TEXT_TOO_LARGE = "the text is too large"

    BINDING_REFUSED = "the read of the binding was refused"
    BINDING_MISSING = "there is no binding"
    BINDING_UNREACHABLE = "the read of the binding failed"
    BINDING_KNOWN = "the binding is known"
    LOCKED = "the lock exists"
    UNWRITABLE = "the claim cannot be written"
    OVERTAKEN = "another bridge's claim is there"

    POST_STORED = "posted: stored, exactly"
    POST_REJECTED = "posted: rejected, exactly"
    POST_UNAVAILABLE = "posted: unavailable, exactly"
    POST_UNCERTAIN = "posted: uncertain, exactly"
    POST_INEXACT = "posted: a success without the exact triple"
    POST_UNSUCCESSFUL = "posted: no success"
    POST_BROKEN = "posted: no answer"
    POST_UNREACHED = "posted: connection refused"

    RECEIPT_STORED = "asked: stored, exactly, and this is its text"
    RECEIPT_STORED_OTHER_TEXT = "asked: stored, exactly, and this is another text"
    RECEIPT_OPEN = "asked: anything else"

    NOT_CLEARED = "the claim cannot be removed"
    ABANDONED = "the owner gave it up"

    CORRUPT = "the claim is corrupt"


@dataclass(frozen=True)
class Rule:
    """One row: in which state it is found, what to do, what to report, what the scope has then.

    `reach` is empty where the step goes on to another row.  `original` says whether the report carries the ids of the
    claim; a report without ids is about a text that was not sent and may not be asked about.
    """

    claim: ClaimState
    step: Step
    reach: Reach
    after: ClaimState
    original: bool = False
    detail: str | None = None


_NONE, _HELD, _CORRUPT = ClaimState
_ON: Final = Reach()
_STORED: Final = Reach(Stage.STORED)
_REJECTED: Final = Reach(stop=Stop.REJECTED)
_UNAVAILABLE: Final = Reach(stop=Stop.UNAVAILABLE)
_UNCERTAIN: Final = Reach(stop=Stop.UNCERTAIN)


def _none(reach: Reach, detail: str) -> Rule:
    return Rule(_NONE, Step.REPORT, reach, _NONE, detail=f"{detail}; nothing was sent")


def _cleared(reach: Reach, detail: str | None = None, *, original: bool = True) -> Rule:
    return Rule(_HELD, Step.CLEAR, reach, _NONE, original, detail)


def _kept(detail: str, step: Step = Step.KEEP) -> Rule:
    return Rule(_HELD, step, _UNCERTAIN, _HELD, original=True, detail=detail)


RULES: Final[Mapping[Finding, Rule]] = {
    Finding.TEXT_BLANK: _none(_REJECTED, "the text is blank"),
    Finding.TEXT_TOO_LARGE: _none(_REJECTED, f"the text has more than {TEXT_BYTES_MAX} bytes"),
    Finding.BINDING_REFUSED: _none(_REJECTED, "the service refused to tell this pane's binding"),
    Finding.BINDING_MISSING: _none(_UNAVAILABLE, "the service knows no binding of this pane"),
    Finding.BINDING_UNREACHABLE: _none(_UNAVAILABLE, "the service cannot be reached"),
    Finding.BINDING_KNOWN: Rule(_NONE, Step.CLAIM, _ON, _HELD),
    Finding.LOCKED: _none(_UNCERTAIN, "the lock is taken, by another bridge or by one that died holding it"),
    Finding.UNWRITABLE: _none(_UNAVAILABLE, "no claim could be made"),
    Finding.OVERTAKEN: Rule(_NONE, Step.RECONCILE, _ON, _HELD),
    Finding.POST_STORED: _cleared(_STORED),
    Finding.POST_REJECTED: _cleared(_REJECTED),
    Finding.POST_UNAVAILABLE: _cleared(_UNAVAILABLE),
    Finding.POST_UNCERTAIN: _kept("the service does not know what became of it"),
    Finding.POST_INEXACT: _kept("the answer is no receipt of this message"),
    Finding.POST_UNSUCCESSFUL: _kept("an answer without success is no receipt"),
    Finding.POST_BROKEN: _kept("it left, and no answer came"),
    Finding.POST_UNREACHED: _kept("the connection was refused", Step.REFRESH),
    Finding.RECEIPT_STORED: _cleared(_STORED),
    Finding.RECEIPT_STORED_OTHER_TEXT: _cleared(
        _UNAVAILABLE, "original is stored, this one was not sent", original=False
    ),
    Finding.RECEIPT_OPEN: _kept("the original is unresolved; nothing was sent"),
    Finding.NOT_CLEARED: _kept("the claim could not be removed"),
    Finding.ABANDONED: Rule(_HELD, Step.KEEP, _UNCERTAIN, _NONE, original=True, detail=ABANDONED),
    Finding.CORRUPT: Rule(
        _CORRUPT, Step.REPORT, _UNCERTAIN, _CORRUPT, detail="the claim cannot be read; nothing was sent"
    ),
}


# -- which row -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """The row that an outcome belongs to, and what it told: the binding, or more about why."""

    finding: Finding
    detail: str | None = None
    binding: str | None = None

    @property
    def rule(self) -> Rule:
        """The row itself."""
        return RULES[self.finding]


def judge_text(text: str) -> Judged | None:
    """Say why a text is not sent at all, or None (contract D-32, DA-15)."""
    if not fits(text):
        return Judged(Finding.TEXT_TOO_LARGE)
    return None if text.strip() else Judged(Finding.TEXT_BLANK)


def judge_binding(outcome: Outcome) -> Judged:
    """Say which row the read of the binding came to; its JSON is `{"version": 1, "binding": …}` (contract D-28)."""
    if not isinstance(outcome, Response):
        return Judged(Finding.BINDING_UNREACHABLE, told(outcome))
    if outcome.status in {400, 401, 403, 413}:
        return Judged(Finding.BINDING_REFUSED, f"status {outcome.status}")
    members = _versioned(outcome)
    binding = members.get("binding")
    if is_digest(binding):
        return Judged(Finding.BINDING_KNOWN, binding=binding)
    return Judged(Finding.BINDING_MISSING, f"status {outcome.status}")


_POSTED: Final = {
    "stored": Finding.POST_STORED,
    "rejected": Finding.POST_REJECTED,
    "unavailable": Finding.POST_UNAVAILABLE,
    "uncertain": Finding.POST_UNCERTAIN,
}


def judge_post(claim: Claim, outcome: Outcome) -> Judged:
    """Say which row the claim's POST came to."""
    if isinstance(outcome, ConnectionRefusedError):
        return Judged(Finding.POST_UNREACHED, told(outcome))
    if not isinstance(outcome, Response):
        return Judged(Finding.POST_BROKEN, told(outcome))
    if not _succeeded(outcome):
        return Judged(Finding.POST_UNSUCCESSFUL, f"status {outcome.status}")
    exact = _exact_receipt(claim, outcome)
    return Judged(Finding.POST_INEXACT) if exact is None else Judged(_POSTED[exact[0]], exact[1])


def judge_receipt(claim: Claim, fingerprint: str, outcome: Outcome) -> Judged:
    """Say which row the GET of the claim's receipt came to, for a caller whose text has this fingerprint.

    Only *stored* resolves: a service that has no trace of the original, or will not tell, does not prove it unsent.
    """
    if not isinstance(outcome, Response):
        return Judged(Finding.RECEIPT_OPEN, told(outcome))
    exact = _exact_receipt(claim, outcome)
    if exact is None or exact[0] != "stored":
        said = None if exact is None else exact[1]
        return Judged(Finding.RECEIPT_OPEN, said or f"status {outcome.status}")
    if fingerprint == claim.fingerprint:
        return Judged(Finding.RECEIPT_STORED, exact[1])
    return Judged(Finding.RECEIPT_STORED_OTHER_TEXT, f"the original is {claim.delivery_id}")


def judge_hindrance(hindrance: Locked | Blocked | Unwritable) -> Judged:
    """Say which row a claim's files came to that could not be used, so that nothing was read or sent."""
    if isinstance(hindrance, Locked):
        return Judged(Finding.LOCKED, str(hindrance))
    return Judged(Finding.CORRUPT if isinstance(hindrance, Blocked) else Finding.UNWRITABLE, str(hindrance))


def judge_removal(judged: Judged, came_of_it: Removed | Locked | Blocked | Unwritable) -> Judged:
    """Say which row an answer comes to once its claim was to be removed: what stands and cannot be removed is told."""
    if isinstance(came_of_it, Removed):
        return Judged(Finding.ABANDONED) if came_of_it is Removed.ABANDONED else judged
    # What the service said must not be told while the claim still stands; it can be asked again.
    return Judged(Finding.NOT_CLEARED, str(came_of_it))


def _exact_receipt(claim: Claim, response: Response) -> tuple[str, str | None] | None:
    """Return the word and the detail of a receipt for exactly this claim, or None for anything else (D-28, DA-16)."""
    members = _versioned(response)
    asked = {"delivery_id": claim.delivery_id, "binding": claim.binding, "fingerprint": claim.fingerprint}
    word, received, detail = members.get("stage"), members.get("received"), members.get("detail")
    if any(members.get(name) != value for name, value in asked.items()):
        return None
    if not isinstance(word, str) or word not in _POSTED or received is not (word == "stored"):
        return None
    if not isinstance(detail, str | None):
        return None
    return word, None if detail is None else storable_text(detail)[:TOLD_MAX]


def _succeeded(response: Response) -> bool:
    return 200 <= response.status < 300


def _versioned(response: Response) -> dict[str, object]:
    """Return the members of a successful answer of version 1; none for anything else."""
    if not _succeeded(response) or len(response.body) > _BODY_BYTES_MAX:
        return {}
    try:
        members = object_in(response.body)
    except ValueError:
        return {}
    version = members.get("version")
    return members if type(version) is int and version == _WIRE_VERSION else {}
