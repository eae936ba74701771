"""The audit of rows by themselves: what is wrong with one, whatever the others say.

The protocol's words are written out once more on purpose: these laws also judge the records that keep the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.mailbox.codec import codec_of
from fencepost.mailbox.errors import CorruptRecord
from fencepost.supervisor.violations import TYPES, Row, Violation, later, sha256_of, violation

__all__ = ["row_violations"]

_PREPARED: Final = (
    "result_op",
    "workspace_commit",
    "payload",
    "payload_sha256",
    "anchor_change_id",
    "anchor_commit_id",
    "anchor_op_id",
    "prepared_at",
)
_SOFT: Final = ("turn_id", "turn_ordinal", "batch_id", "bound_at")
_SOFT_PROGRESS: Final = ("batch_completed_at", "payload_offered_at")
_PROOF: Final = ("mode", "incarnation_id", *_SOFT, *_SOFT_PROGRESS, "startup_delivery_id", "handshake_at")
_STARTUP: Final = (
    "startup_intent_id",
    "startup_delivery_id",
    "startup_payload_sha256",
    "startup_epoch",
    "startup_attempt",
)
_NOT_PREPARED_STATES: Final = {
    "detected",
    "reconciling",
    "recovery_required",
    "topology_diverged",
    "superseded",
}
_PREPARED_STATES: Final = {"materialized", "delivered", "acknowledged"}
_PROOFLESS_STATES: Final = {"detected", "acknowledged", "superseded"}


def _missing(row: Row, names: Iterable[str]) -> list[str]:
    return [name for name in names if row[name] is None]


def _present(row: Row, names: Iterable[str]) -> list[str]:
    return [name for name in names if row[name] is not None]


def _intent_laws(row: Row) -> Iterator[tuple[int, str]]:
    """What is wrong with this intent row, whatever the others say."""
    state, mode = row["state"], row["mode"]
    if state in _PREPARED_STATES and (missing := _missing(row, _PREPARED)):
        yield 1, f"is {state} without {', '.join(missing)}"
    if state in _NOT_PREPARED_STATES and (present := _present(row, _PREPARED)):
        yield 1, f"is {state} and has {', '.join(present)}"
    if state == "delivered" and row["delivered_at"] is None:
        yield 2, "is delivered without delivered_at"
    if state == "acknowledged" and row["acknowledged_at"] is None:
        yield 2, "is acknowledged without acknowledged_at"
    if state != "acknowledged" and row["acknowledged_at"] is not None:
        yield 2, f"is {state} and has acknowledged_at"
    if state == "acknowledged" and row["delivered_at"] is None and row["discarded"] != 1:
        yield 2, "is acknowledged, was never delivered and was not discarded"
    if row["payload"] is not None and row["payload_sha256"] != sha256_of(row["payload"]):
        yield 3, f"payload_sha256 is {row['payload_sha256']}, the payload's hash is {sha256_of(row['payload'])}"
    if type(row["seq"]) is not int or row["seq"] < 1:
        yield 4, f"seq is {row['seq']!r}"
    yield from _proof_laws(row, mode)
    if state in _PROOFLESS_STATES and (bound := _present(row, _PROOF)):
        yield 6, f"is {state} and has {', '.join(bound)}"
    if later(row["delivered_at"], row["acknowledged_at"]):
        yield 10, f"was delivered at {row['delivered_at']}, after it was acknowledged at {row['acknowledged_at']}"
    if row["consumed_at"] is not None and row["delivered_at"] is None:
        yield 0, "was consumed and never delivered"
    if (row["exhausted_at"] is None) != (row["approval"] is None):
        yield 0, "exhausted_at and approval do not come together"
    if row["exhausted_at"] is not None and mode != "restart_startup":
        yield 0, f"is exhausted in mode {mode}"
    if (row["planned_op"] is None) != (row["starting_op"] is None):
        yield 0, "planned_op and starting_op do not come together"


def _proof_laws(row: Row, mode: object) -> Iterator[tuple[int, str]]:
    soft, soft_missing = _present(row, _SOFT), _missing(row, _SOFT)
    if soft and soft_missing:
        yield 5, f"has {', '.join(soft)} without {', '.join(soft_missing)}"
    if mode == "soft_batch" and not soft:
        yield 5, "is in mode soft_batch without a tuple"
    if mode != "soft_batch" and soft:
        yield 5, f"has {', '.join(soft)} in mode {mode}"
    if mode != "soft_batch" and (progress := _present(row, _SOFT_PROGRESS)):
        yield 5, f"has {', '.join(progress)} in mode {mode}"
    if (mode == "restart_startup") != (row["startup_delivery_id"] is not None):
        yield 5, f"startup_delivery_id is {row['startup_delivery_id']} in mode {mode}"
    if (mode is None) != (row["incarnation_id"] is None):
        yield 5, f"incarnation_id is {row['incarnation_id']} in mode {mode}"
    if row["handshake_at"] is not None and mode != "restart_startup":
        yield 5, f"has handshake_at in mode {mode}"
    if mode == "restart_startup" and row["state"] in _NOT_PREPARED_STATES:
        yield 5, f"is {row['state']} in mode restart_startup, which only a payload can be"
    if row["state"] == "delivered" and mode is None:
        yield 5, "is delivered without a proof"
    if row["state"] != "delivered" and row["handshake_at"] is not None:
        yield 5, f"is {row['state']} and its handshake was accepted"


def _incarnation_laws(row: Row) -> Iterator[tuple[int, str]]:
    if row["retired_at"] is not None and row["delivered_intent_id"] is not None:
        yield 7, f"is retired and marks intent {row['delivered_intent_id']}"
    if (present := _present(row, _STARTUP)) and (missing := _missing(row, _STARTUP)):
        yield 8, f"has {', '.join(present)} without {', '.join(missing)}"
    if (row["retired_at"] is None) != (row["retire_reason"] is None):
        yield 0, "retired_at and retire_reason do not come together"
    if row["retired_at"] is None and row["relaunch"] != 0:
        yield 0, "is live and to be replaced"


def _admission_laws(row: Row) -> Iterator[tuple[int, str]]:
    if (row["decision"] == "block") != (row["intent_id"] is not None):
        yield 0, f"is a {row['decision']} and names intent {row['intent_id']}"
    if (row["turn_id"] == "") != (row["turn_ordinal"] is None):
        yield 0, "has half a turn"


_LAWS: Final = {"intents": _intent_laws, "incarnations": _incarnation_laws, "admissions": _admission_laws}


def row_violations(table: str, row: Row) -> Iterator[Violation]:
    """What is wrong with the row alone; that it cannot be read is news only where no law already says why."""
    explained = False
    for number, message in _LAWS.get(table, lambda _row: ())(row):
        explained = True
        yield violation(number, table, row, message)
    if explained:
        return
    codec = codec_of(TYPES[table])
    try:
        codec.decode([row[name] for name in codec.columns], table)
    except CorruptRecord as error:
        yield violation(0, table, row, f"cannot be read: {str(error).removeprefix(f'{error.where}: ')}")
