"""`fencepost status`: the fleet at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from attrs import asdict, frozen

from fencepost.mailbox.query import NOT_NULL, Query
from fencepost.mailbox.records import UNRESOLVED_STATES, IncarnationRecord, IntentRecord, IntentState
from fencepost.mailbox.stores.store import StoreReader
from fencepost.supervisor.cli.output import JSON, lines, on_terminal, say, say_json, shown
from fencepost.supervisor.cli.reading import FOLDER, URL, default_folder, reading, store_named
from fencepost.supervisor.overview import BatchLine, Fleet, IncarnationLine, IntentLine, PaneLine, fleet_within

__all__ = ["status"]


@frozen(kw_only=True)
class _Bridge:
    """What only the bridge itself can tell, if one serves."""

    serving: bool
    quarantined: tuple[str, ...] = ()
    awake: int | None = None
    line_depth: int | None = None
    fault: str | None = None
    error: str | None = None
    """Why it could not be asked."""


@click.command(
    epilog="""\b
Examples:
  fencepost status
  fencepost status --folder /srv/fencepost --json | jq '.panes[] | select(.standing != "in_sync")'
  fencepost status sqlite:///backup.db
""",
)
@URL
@FOLDER
@JSON
def status(url: str | None, folder: Path | None, as_json: bool) -> None:
    """Show how every pane stands, what it waits for, and what only a person can decide.

    Reads the store named by URL, or bridge.db in the bridge's folder.  The bridge that serves from the folder is also
    asked who is quarantined; with a URL, only if --folder names it.

    A pane is in_sync, pending (something is owed to it), conflicted (a person must decide: see resolve, rearm and
    discard) or faulted (a stored row of it is damaged, or an actor of it is quarantined: see revive).

    On a terminal a line a pane, then the totals; elsewhere tab-separated lines, an empty one between the two.  --json
    prints one object: version, store, bridge (null where only a URL was given), panes, totals and damage.
    """
    store = store_named(url, folder if url is None else None)
    bridge = None if url is not None and folder is None else _ask(folder or default_folder())
    with reading(store) as reader:
        found = fleet_within(reader, () if bridge is None else bridge.quarantined)
        totals = _totals(reader, found, bridge)
    if as_json:
        _say_json(store, found, totals, bridge)
    elif on_terminal():
        _draw(found, totals, bridge)
    else:
        lines(_HEADS, map(_fields, found.panes))
        say("")
        told = [("damage", text) for text in found.damage]
        if bridge is not None:
            told.append(("bridge", "serves" if bridge.serving else bridge.error or "none serves"))
        lines(("what", "count"), [*totals.items(), *told])


def _ask(folder: Path) -> _Bridge:
    """Ask the bridge that serves from the folder; that none does is an answer."""
    from fencepost.supervisor.bridge.client import ClientError, NobodyServes, Operator

    try:
        runtime = Operator(folder, seconds=5.0).status()["runtime"]
        return _Bridge(
            serving=True,
            quarantined=tuple(map(str, runtime["quarantined"])),
            awake=runtime["awake"],
            line_depth=runtime["line_depth"],
            fault=runtime["fault"],
        )
    except NobodyServes:
        return _Bridge(serving=False)
    except (ClientError, KeyError, TypeError) as error:
        return _Bridge(serving=False, error=str(error))


def _totals(reader: StoreReader, found: Fleet, bridge: _Bridge | None) -> dict[str, object]:
    states = [state for state in IntentState if state in UNRESOLVED_STATES]
    return {
        "panes": found.totals.panes,
        "live incarnations": reader.count(Query(IncarnationRecord, {"retired_at": None})),
        "unresolved intents": found.totals.unresolved_intents,
        **{
            f"unresolved intents, {state.value}": reader.count(Query(IntentRecord, {"state": state.value}))
            for state in states
        },
        "exhausted intents": reader.count(Query(IntentRecord, {"exhausted_at": NOT_NULL})),
        "open batches": found.totals.open_batches,
        "uncertain deliveries": found.totals.uncertain_deliveries,
        "dead letters": found.totals.dead_letters,
        **({"quarantined actors": len(bridge.quarantined)} if bridge is not None and bridge.serving else {}),
    }


def _say_json(store: str, found: Fleet, totals: Mapping[str, object], bridge: _Bridge | None) -> None:
    told: dict[str, Any] = {"version": 1, "store": store, "bridge": None if bridge is None else asdict(bridge)}
    told["panes"] = [asdict(line) for line in found.panes]
    told["totals"] = {name.replace(", ", " ").replace(" ", "_"): count for name, count in totals.items()}
    say_json({**told, "damage": list(found.damage)})


# -- words -------------------------------------------------------------------------------------------------------------

_HEADS: Final = ("pane", "standing", "process", "harness", "owed", "waits for", "batch", "deliveries", "trouble")


def _fields(line: PaneLine) -> tuple[object, ...]:
    """One pane's fields; None where there is nothing to tell."""
    return (
        line.pane_id,
        line.standing.value,
        None if line.process is None else _process(line.process),
        None if line.process is None else line.process.harness,
        None if line.owed is None else _owed(line.owed, line.unresolved),
        None if line.owed is None else line.owed.why,
        None if line.batch is None else _batch(line.batch),
        "; ".join(_deliveries(line)) or None,
        "; ".join(_trouble(line)) or None,
    )


def _process(process: IncarnationLine) -> str:
    state = "live" if process.live else f"ended ({process.retire_reason})"
    return f"#{process.epoch} {state}"


def _owed(owed: IntentLine, unresolved: int) -> str:
    more = f" and {unresolved - 1} more" if unresolved > 1 else ""
    return f"{owed.intent_id} {'exhausted' if owed.exhausted else owed.state.value}{more}"


def _batch(batch: BatchLine) -> str:
    ending = ", being cancelled" if batch.cancelling else ""
    return f"{batch.operation_id}/{batch.turn_id}: {batch.placed} of {batch.calls} results placed{ending}"


def _deliveries(line: PaneLine) -> list[str]:
    return [f"message {'from' if one.inbound else 'to'} it {one.delivery_id}: {one.words}" for one in line.deliveries]


def _trouble(line: PaneLine) -> list[str]:
    return [*(f"{address} is quarantined" for address in line.quarantined), *line.damage]


# -- on a terminal -----------------------------------------------------------------------------------------------------

_STYLES: Final = {"in_sync": "green", "pending": "yellow", "conflicted": "bold red", "faulted": "bold red reverse"}


def _draw(found: Fleet, totals: Mapping[str, object], bridge: _Bridge | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for head in ("pane", "standing", "process"):
        drawn.add_column(head, overflow="fold")
    drawn.add_column("what it waits for", overflow="fold", ratio=1)
    for line in found.panes:
        process = "-" if line.process is None else f"{line.process.harness} {_process(line.process)}"
        standing = line.standing.value
        drawn.add_row(
            Text(shown(line.pane_id)),
            Text(standing.replace("_", " "), _STYLES[standing]),
            Text(shown(process)),
            Text("\n".join(map(shown, _waits(line))) or "-"),
        )
    if found.panes:
        console.print(drawn)
        console.print()
    for text in _summary(found, totals, bridge):
        console.print(Text(shown(text)))


def _waits(line: PaneLine) -> list[str]:
    """All that one pane waits for, a sentence each; first what is wrong."""
    found = _trouble(line)
    if line.owed is not None:
        found.append(f"{_owed(line.owed, line.unresolved)}: {line.owed.why}")
    if line.batch is not None:
        found.append(f"batch {_batch(line.batch)}")
    return found + _deliveries(line)


def _summary(found: Fleet, totals: Mapping[str, object], bridge: _Bridge | None) -> list[str]:
    states = [
        f"{count} {name.rpartition(', ')[2].replace('_', ' ')}"
        for name, count in totals.items()
        if name.startswith("unresolved intents, ") and count
    ]
    by_state = f" ({', '.join(states)})" if states else ""
    counted = (
        f"{totals['panes']} panes, {totals['live incarnations']} with a live process.  "
        f"Intents: {totals['unresolved intents']} unresolved{by_state}, {totals['exhausted intents']} exhausted.  "
        f"Tool batches: {totals['open batches']} open.  "
        f"Deliveries: {totals['uncertain deliveries']} uncertain, counting exhausted intents.  "
        f"Dead letters: {totals['dead letters']}."
    )
    text = [counted, *(f"Damage: {damage}" for damage in found.damage)]
    if bridge is None:
        return text
    if bridge.serving:
        text.append(f"A bridge serves from this folder; {bridge.awake} actors are awake.")
        text += [f"Quarantined: {address} (fencepost revive {address})" for address in bridge.quarantined]
        text += [f"Its store has failed: {bridge.fault}"] if bridge.fault is not None else []
    elif bridge.error is not None:
        text.append(f"The bridge could not be asked who is quarantined: {bridge.error}")
    else:
        text.append("No bridge serves from this folder.")
    return text
